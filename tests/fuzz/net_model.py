"""net_model.py: a random model in parts: values, statements, inputs, settings; its .net text and its data. Standard
library and numpy.

A statement is text with @0, @1 for the values it uses and &0, &1 for those it makes, so that the reducer may drop it or
give it other values. A dimension is a number or Follow(mul, div), N * mul / div. What a value's `grid`, `dup` and `sep`
say keeps comparisons meaningful:
grid  (low, high, step): multiples of step between the two, exact in every type; only these reach floor,
      comparisons and whatever else is not continuous
dup   elements may be equal where they are not exact: no maximum takes them, as rounding would choose between their
      gradients
sep   the axis along which element n depends on example n alone; "free" where nothing depends on the batch, None
      where examples mix"""
import collections, os, re
import numpy as np

Follow = collections.namedtuple("Follow", "mul div")
N = Follow(1, 1)
BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
FLOATS = tuple(BITS)
INTS = ("i64", "i32", "i16", "u16", "i8", "u8")
RANGE = {"i64": (-2 ** 63, 2 ** 63 - 1), "i32": (-2 ** 31, 2 ** 31 - 1),
         "i16": (-2 ** 15, 2 ** 15 - 1), "u16": (0, 2 ** 16 - 1), "i8": (-128, 127), "u8": (0, 255)}
NUMPY = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "f4", "i64": "i8", "i32": "i4",
         "i16": "i2", "u16": "u2", "i8": "i1", "u8": "u1", "bool": "?"}


def extent(d, n):
    """The extent in a batch of n examples."""
    return n * d.mul // d.div if isinstance(d, Follow) else d


def extent_text(d):
    if not isinstance(d, Follow):
        return str(d)
    text = "N" if d.mul == 1 else "%d * N" % d.mul
    return text if d.div == 1 else "%s / %d" % (text, d.div)


def shape_text(dims):
    return "[" + ", ".join(extent_text(d) for d in dims) + "]"


def times(d, k):
    """A dimension times a number."""
    if not isinstance(d, Follow):
        return d * k
    g = int(np.gcd(d.mul * k, d.div))
    return Follow(d.mul * k // g, d.div // g)


class Value:
    def __init__(self, name, dtype, dims, grid=None, dup=False, sep="free", mag=1.0):
        self.name, self.dtype, self.dims, self.grid = name, dtype, tuple(dims), grid
        self.dup, self.sep, self.mag = dup, sep, mag

    def size(self, batch):
        return int(np.prod([extent(d, batch) for d in self.dims], dtype=np.int64))

    def fixed(self):
        return not any(isinstance(d, Follow) for d in self.dims)


class Stmt:
    """kind: "let", "loss", "metric" or "output"; metrics and outputs have a name of their own. average: a metric that
    is a mean over examples."""
    def __init__(self, group, text, ins, outs, kind="let", name="", average=False):
        self.group, self.text, self.ins, self.outs = group, text, list(ins), list(outs)
        self.kind, self.name, self.average = kind, name, average

    def show(self, names=None):
        def value(m):
            v = (self.ins if m[1] == "@" else self.outs)[int(m[2])]
            return (names or {}).get(v.name, v.name)
        return re.sub(r"([@&])(\d)", value, self.text)


class Block:
    """A block of one parameter that returns one value of the same type and shape."""
    def __init__(self, name, param):
        self.name, self.param, self.body, self.result = name, param, [], None


class Input(Value):
    """data: ("real", low, high), ("grid", low, high, step) or ("int", low, high)."""
    def __init__(self, name, dtype, dims, data, **more):
        super().__init__(name, dtype, dims, **more)
        self.data = data

    def numbers(self, rng, n):
        shape = (n,) + self.dims[1:]
        if self.data[0] == "real":
            x = rng.uniform(self.data[1], self.data[2], shape)
        elif self.data[0] == "grid":
            low, high, step = self.data[1:]
            x = low + step * rng.randint(0, int((high - low) / step) + 1, shape)
        else:
            x = rng.randint(self.data[1], self.data[2] + 1, shape)
        x = x.astype(NUMPY[self.dtype])
        if self.dtype == "bf16":               # .npy has no such type: the number of 16 bits in 32
            x = (x.view("u4") & 0xffff0000).view("f4")
        return x


class Model:
    def __init__(self, seed):
        self.seed, self.blocks, self.inputs, self.body, self.settings = seed, [], [], [], {}
        self.batch, self.train_examples, self.test_examples, self.full_only, self.shuffle = 4, 8, 6, False, True
        self.eps = 2.0 ** -24            # of the coarsest floating type in the text

    # ---- what stands in it
    def statements(self):
        return [s for b in self.blocks for s in b.body] + self.body

    def groups(self):
        return sorted({s.group for s in self.statements()})

    def outputs(self):
        return [s for s in self.body if s.kind == "output"]

    def metrics(self):
        return [s for s in self.body if s.kind == "metric"]

    def trim(self):
        """Drops what nothing uses: statements, blocks, inputs."""
        def live(body, roots):
            need, kept = set(roots), []
            for s in reversed(body):
                if s.kind != "let" or any(v.name in need for v in s.outs):
                    kept.append(s)
                    need.update(v.name for v in s.ins)
            return kept[::-1], need
        self.body, need = live(self.body, ())
        used = " ".join(s.text for s in self.body)
        for b in reversed(self.blocks):
            b.body, inside = live(b.body, (b.result.name,))
            used += " " + (" ".join(s.text for s in b.body) if re.search(r"\b%s\b" % b.name, used) else "")
        self.blocks = [b for b in self.blocks if re.search(r"\b%s\b" % b.name, used)]
        self.inputs = [i for i in self.inputs if i.name in need] or self.inputs[:1]
        return self

    # ---- text and data
    def text(self):
        lines = []
        for b in self.blocks:
            lines += (["block %s(%s) {" % (b.name, b.param.name)]
                      + ["    " + s.show().replace("\n", "\n    ") for s in b.body]
                      + ["    return " + b.result.name, "}", ""])
        lines.append("model m(%s) {" % ", ".join("%s: %s%s" % (i.name, i.dtype, shape_text(i.dims))
                                                 for i in self.inputs))
        lines += ["    " + s.show().replace("\n", "\n    ") for s in self.body] + ["}", ""]
        files = (", ".join('"%s.%s.npy"' % (i.name, part) for i in self.inputs) for part in ("train", "test"))
        lines.append("data { reader = npy(train = [%s], test = [%s])%s }"
                     % (*files, "" if self.shuffle else "  shuffle = false"))
        lines += (["train {"] + ["    %s = %s" % kv for kv in [("batch", self.batch)] + list(self.settings.items())]
                  + ["}", ""])
        return "\n".join(lines)

    def write(self, folder, data_seed=0, shift=0.0):
        """model.net and its data in a folder; shift perturbs what is real by that share of itself."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "model.net"), "w") as f:
            f.write(self.text())
        self.write_data(folder, data_seed, shift)

    def write_data(self, folder, data_seed=0, shift=0.0, examples=None):
        for k, i in enumerate(self.inputs):
            # of an input's own, whatever others there are
            name = sum(ord(c) * 31 ** p for p, c in enumerate(i.name))
            for part, n in (("train", self.train_examples), ("test", examples or self.test_examples)):
                rng = np.random.RandomState((self.seed * 1000003 + data_seed * 7919 + name * 17 + (part == "test"))
                                            % 2 ** 32)
                x = i.numbers(rng, n)
                if shift and i.data[0] == "real":
                    x = (x * (1 + shift * rng.uniform(-1, 1, x.shape))).astype(x.dtype)
                np.save(os.path.join(folder, "%s.%s.npy" % (i.name, part)), x)
