"""net_pool.py: the pool of values that a random model grows in, and what is known of a result: how shapes broadcast,
which axis follows the examples. Standard library."""
import random
from net_model import BITS, FLOATS, INTS, RANGE, Follow, Input, Model, N, Stmt, Value, shape_text

EXTENTS = (1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11, 13, 16, 17, 19, 24, 31, 32, 33)
LARGEST = 6000     # elements of a value


class Unfit(Exception):
    """The pool has nothing that an operator could take."""


class Gen:
    def __init__(self, seed):
        self.rng, self.m = random.Random(seed), Model(seed)
        self.body, self.pool, self.count, self.block, self.used = self.m.body, [], 0, None, set()
        self.m.batch = self.rng.choice((2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 17 if self.chance(0.5) else 16))
        self.wide = self.chance(0.15)            # extents that fill blocks of kernels
        self.work = 3000000 if self.wide else 400000

    # ---- chance
    def chance(self, p):
        return self.rng.random() < p

    def one(self, *items):
        if not items:
            raise Unfit
        return self.rng.choice(items)

    def extent(self, most=33):
        if self.wide and most >= 17 and self.chance(0.5):
            return self.one(16, 32, 32, 48, 64, 65, 100, 128)
        return self.one(*[e for e in EXTENTS if e <= most])

    # ---- names and statements
    def name(self, stem="v"):
        self.count += 1
        return "%s%d" % (stem, self.count)

    def fits(self, dims):
        if len(dims) > 6 or any(isinstance(d, Follow) and (self.m.batch * d.mul) % d.div for d in dims):
            return False
        return Value("", "f32", dims).size(self.m.batch) <= (5 if self.wide else 1) * LARGEST

    def stmt(self, group, text, ins, outs, kind="let", **more):
        self.body.append(Stmt(group, text, ins, outs, kind, **more))
        self.used.update(v.name for v in ins)
        self.pool += outs
        return outs[0] if outs else None

    def emit(self, group, text, ins, dtype, dims, sep="free", mag=1.0, grid=None, dup=False):
        """NAME = text; limited by tanh where its values would be large."""
        if not self.fits(dims):
            raise Unfit
        self.coarse(dtype)
        v = Value(self.name(), dtype, dims, grid, dup, sep, mag)
        self.stmt(group, "&0 = " + text, ins, [v])
        if dtype in FLOATS and grid is None and mag > 6:
            w = Value(self.name(), dtype, dims, None, dup, sep, 1.0)
            self.stmt(group, "&0 = tanh(@0 * %.3g)" % (1 / mag), [v], [w])
            self.pool.remove(v)
            return w
        return v

    def coarse(self, dtype):
        if dtype in BITS:
            self.m.eps = max(self.m.eps, 2.0 ** -BITS[dtype])

    # ---- values to work on
    def pick(self, want, make=None):
        """A value that fits, newer ones and unused ones rather; else what make gives."""
        fit = [v for v in self.pool if want(v)]
        if fit and (make is None or self.chance(0.9)):
            return self.rng.choices(fit, [1 + 2.0 * k / len(fit) + (v.name not in self.used)
                                          for k, v in enumerate(fit)])[0]
        if make is None or (self.block and not fit):
            raise Unfit
        v = make() if not self.block else self.rng.choice(fit)
        if not want(v):
            raise Unfit
        return v

    def real(self, rank=(1, 5), want=lambda v: True, dims=None):
        """A floating tensor that is no grid; f32 nearly always."""
        return self.pick(lambda v: (v.dtype == "f32" and v.grid is None and rank[0] <= len(v.dims) <= rank[1]
                                    and want(v)), lambda: self.input_real(dims or self.dims(rank)))

    def dims(self, rank, first=N):
        k = self.rng.randint(max(1, rank[0]), max(1, min(rank[1], 4)))
        while True:
            dims = (first,) + tuple(self.extent() for _ in range(k - 1))
            if Value("", "f32", dims).size(self.m.batch) <= LARGEST / 4:
                return dims

    def image(self, least=1):
        return self.real((4, 4), lambda v: (not isinstance(v.dims[1], Follow)
                                            and all(not isinstance(d, Follow) and d >= least for d in v.dims[2:])),
                         (N, self.one(16, 32) if self.wide else self.one(1, 2, 3, 4, 5, 6, 8, 9),
                          max(least, self.one(3, 4, 5, 6, 7, 8, 9, 13)), max(least, self.one(2, 4, 5, 7, 8, 11, 12))))

    def exact(self, kinds=FLOATS[1:2] + INTS, want=lambda v: True):
        return self.pick(lambda v: v.grid is not None and v.dtype in kinds and want(v),
                         lambda: self.input_grid(self.one(*kinds)))

    def input(self, dtype, dims, data, **more):
        if len(self.m.inputs) >= 7:
            raise Unfit
        self.coarse(dtype)
        v = Input(self.name("x"), dtype, dims, data, sep=0, **more)
        self.m.inputs.append(v)
        self.pool.append(v)
        return v

    def input_real(self, dims):
        if dims[0] != N:
            raise Unfit
        return self.input("f32", dims, ("real", -2, 2), mag=1.2)

    def input_grid(self, dtype, dims=None, low=None, high=None):
        dims = dims or self.dims((1, 3))
        if dtype in FLOATS:
            step = self.one(0.25, 0.5, 1.0)
            return self.input(dtype, dims, ("grid", -8 * step, 8 * step, step), grid=(-8 * step, 8 * step, step),
                              dup=True, mag=4)
        if dtype == "bool":
            low, high = 0, 1
        if low is None:
            low, high = RANGE[dtype] if dtype in ("u8", "i8", "u16") else self.one((-9, 9), (0, 7), (-1000, 1000),
                                                                                   (-3, 3))
        return self.input(dtype, dims, ("int", low, high), grid=(low, high, 1), dup=True, mag=max(abs(low), high, 1))

    def ids(self, dims, below):
        """Integers in 0..below-1 of that shape."""
        return self.pick(lambda v: v.dtype in INTS and v.dims == tuple(dims) and v.grid[0] >= 0 and v.grid[1] < below,
                         lambda: self.input_grid(self.one("i32", "i32", "i64", "u8", "i16", "u16"), tuple(dims), 0,
                                                 below - 1))

    def param(self, dims, init=None):
        name = self.name("w")
        init = init or self.one("normal(0.5)", "uniform(-1, 1)", "normal(1)",
                                "xavier_uniform" if len(dims) > 1 else "normal(0.3)",
                                "constant(0.5)" if self.chance(0.3) else "normal(0.7)")
        v = Value(name, "f32", dims, dup="constant" in init or init in ("zeros", "ones"))
        if self.block:                           # a label of every call of the block
            self.pool.append(v)
            self.body.append(Stmt("param", "&0 = param(%s, init = %s) as %s" % (shape_text(dims), init, name), [], [v]))
            return v
        return self.stmt("param", "&0 = param(%s, init = %s) as %s" % (shape_text(dims), init, name), [], [v])

# ---- what is known of results
def join(*values, rank):
    """sep of an elementwise result: the axis all agree on, counted from the right where ranks differ."""
    axes = {v.sep if v.sep in ("free", None) else v.sep + rank - len(v.dims) for v in values} - {"free"}
    return "free" if not axes else axes.pop() if len(axes) == 1 else None


def broadcast(*values):
    rank, out = max(len(v.dims) for v in values), []
    for k in range(1, rank + 1):
        axis = {v.dims[-k] for v in values if len(v.dims) >= k} - {1}
        if len(axis) > 1:
            return None
        out.insert(0, axis.pop() if axis else 1)
    return tuple(out)


def small(low, high, step, dtype):
    """A grid that every type down to bf16 holds exactly; of integers those of the type."""
    if dtype in INTS:
        return ((low, high, step) if RANGE[dtype][0] <= low and high <= RANGE[dtype][1] and max(-low, high) < 2 ** 50
                else None)
    return (low, high, step) if max(abs(low), abs(high)) <= 256 * step else None


def moved(sep, order):
    return order.index(sep) if isinstance(sep, int) else sep


def dropped(v, axes, keep):
    """sep after a reduction over axes."""
    if any(isinstance(v.dims[a], Follow) for a in axes):
        return None
    return v.sep if keep or not isinstance(v.sep, int) else v.sep - sum(a < v.sep for a in axes)
