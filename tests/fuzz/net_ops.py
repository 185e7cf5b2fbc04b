"""net_ops.py: the operators of random models, a function or more for each group. Each takes values of the pool that it
can work on and adds statements; it raises Unfit where there are none."""
from net_model import FLOATS, INTS, RANGE, Block, Follow, N, Value, extent, extent_text, shape_text, times
from net_pool import Unfit, broadcast, dropped, join, moved, small

OPS = []           # (group, weight, function)


def op(group, weight=1.0):
    def add(f):
        OPS.append((group, weight, f))
        return f
    return add


# ---- elementwise
UNARY = ("relu", "relu6", "leaky_relu(slope = 0.1)", "leaky_relu", "elu", "elu(alpha = 0.5)", "silu", "gelu",
         'gelu(approximate = "tanh")', "sigmoid", "tanh", "softplus", "hardswish",
         "hardsigmoid", "square", "abs", "erf", "sin", "cos", "clamp(low = -0.7, high = 0.9)", "stop_gradient")
GUARDED = ("exp(tanh(@0))", "log(square(@0) + 0.5)", "log1p(square(@0))", "sqrt(square(@0) + 0.25)",
           "rsqrt(square(@0) + 0.5)", "reciprocal(abs(@0) + 0.75)", "pow(square(@0) + 0.5, 0.7)",
           "-@0", "1 - @0", "@0 / 3", "2 / (square(@0) + 1)", "pow(@0, 2)", "exp(-square(@0))",
           "pow(abs(@0) + 0.5, tanh(@0))", "maximum(@0, 0.3)", "minimum(0.1, @0)", "sin(@0) * cos(@0)")
STEEP = ("sigmoid(@0 * 30)", "softplus(@0 * 50) * 0.02", "exp(-abs(@0) * 40)", "tanh(@0 * 20)", "gelu(@0 * 10) * 0.1",
         "silu(@0 * 40) * 0.025", "elu(@0 * 20) * 0.05", "sin(@0 * 9)", "cos(@0 * 9)",
         "log(abs(@0) * 1000 + 1) * 0.3", "sqrt(abs(@0) * 100 + 0.01) * 0.1", "erf(@0 * 8)")
# of small numbers, which must be as exact as others
SLIGHT = ("tanh", "erf", "sin", "log1p", "gelu", "silu", "elu", "hardswish", "leaky_relu")


@op("elementwise", 4)
def unary(g):
    v = g.real((0, 5))
    if g.chance(0.6):
        f = g.one(*UNARY)
        name, more = (f[:-1].split("(", 1) + [""])[:2] if "(" in f else (f, "")
        text = "%s(@0%s)" % (name, ", " + more if more else "") if g.chance(0.7) else "@0 |> " + f
        flat = name in ("relu", "relu6", "clamp", "hardsigmoid", "hardswish")
    elif g.chance(0.6):
        text, name = g.one(*GUARDED), ""
        flat = "imum" in text
    elif g.chance(0.5):
        text, flat = g.one(*STEEP), True
        g.emit("elementwise", text, [v], v.dtype, v.dims, v.sep, 2.0, dup=True)
        return
    else:
        small_text = "%s(@0 * 0.001) * 1000" % g.one(*SLIGHT)
        g.emit("elementwise", small_text, [v], v.dtype, v.dims, v.sep, v.mag + 0.2, dup=True)
        return
    g.emit("elementwise", text, [v], v.dtype, v.dims, v.sep,
           min(v.mag * v.mag, 6) if "square" in text or "pow" in text else min(v.mag, 3) + 0.5, dup=v.dup or flat)


@op("broadcast", 4)
def binary(g):
    a = g.real((0, 5))
    same = [v for v in g.pool if v.dtype == "f32" and v is not a and broadcast(a, v) is not None]
    b = g.one(*same) if same and g.chance(0.7) else None
    if b is None:                                # a parameter of some of the axes, others 1
        dims = [d if not isinstance(d, Follow) and g.chance(0.7) else 1 for d in a.dims][g.rng.randint(0, len(a.dims)):]
        b = g.param(tuple(dims) or (1,))
    f = g.one("@0 + @1", "@0 + @1", "@0 * @1", "@0 * tanh(@1)", "@0 - 0.7 * @1", "maximum(@0, @1 * 0.9)",
              "minimum(@0 * 1.1, @1)",
              "@1 / (square(@0) + 1)", "@0 / (abs(@1) + 1)", "pow(abs(@0) + 0.5, tanh(@1))", "where(@1 > 100, @1, @0)")
    dims = broadcast(a, b)
    g.emit("broadcast", f, [a, b], "f32", dims, join(a, b, rank=len(dims)),
           a.mag * b.mag if "*" in f else a.mag + b.mag, dup=a.dup or b.dup or dims != a.dims)


@op("integer", 3)
def exact_binary(g):
    a = g.exact()
    same = [v for v in g.pool if v.dtype == a.dtype and v.grid and v is not a and broadcast(a, v) is not None]
    number = g.one(2, 3, 5, 7)
    b = g.one(*same) if same and g.chance(0.7) else Value("", a.dtype, (), (number, number, 1))
    f = (g.one("+", "-", "*", "/", "%", "maximum", "minimum") if a.dtype in INTS
         else g.one("+", "-", "*", "maximum", "minimum"))
    (al, ah, s), (bl, bh, t) = a.grid, b.grid
    corner = [al * bl, al * bh, ah * bl, ah * bh]
    low, high, step = {"+": (al + bl, ah + bh, min(s, t)), "-": (al - bh, ah - bl, min(s, t)),
                       "*": (min(corner), max(corner), s * t), "/": (min(al, -ah, 0), max(-al, ah), 1),
                       "%": (min(bl + 1, 0), max(bh - 1, 0), 1), "maximum": (max(al, bl), max(ah, bh), min(s, t)),
                       "minimum": (min(al, bl), min(ah, bh), min(s, t))}[f]
    grid = small(low, high, step, a.dtype)
    if grid is None and a.dtype in ("i32", "i16", "u16", "i8", "u8") and f in "+-*":        # wraps
        grid = RANGE[a.dtype] + (1,)
    dims = broadcast(a, b)
    if grid is None or dims is None:
        raise Unfit
    second = "@1" if b.name else str(number)
    g.emit("integer", "%s(@0, %s)" % (f, second) if f[0] == "m" else "@0 %s %s" % (f, second),
           [a, b] if b.name else [a], a.dtype, dims, join(a, b, rank=len(dims)), grid=grid, dup=True)


@op("integer", 2)
def exact_unary(g):
    v = g.exact()
    low, high, step = v.grid
    if v.dtype in INTS:
        f = g.one("abs(@0)", "-@0", "clamp(@0, 1, 6)", "clamp(@0, 0, 3)", "where(@0 > 2, @0, 1)")
        if v.dtype in ("u8", "u16") and f == "-@0" or low == RANGE[v.dtype][0]:
            f = "clamp(@0, 0, 5)"
    else:
        f = g.one("floor(@0)", "ceil(@0)", "round(@0)", "sign(@0)", "abs(@0)", "round(@0 * 0.5)", "floor(@0 / 2)",
                  "clamp(@0, -1, 2)", "@0 % 2", "@0 % 3", "@0 % 0.75", "relu(@0)", "where(@0 == 1, @0, 0)")
    top = max(abs(low), abs(high))
    grid = ((0, 6, min(step, 1)) if "clamp(@0, 1" in f
            else (-top, top, min(step, 1)) if f != "-@0" else (-high, -low, step))
    grid = {"clamp(@0, 0, 3)": (0, 3, step), "clamp(@0, 0, 5)": (0, 5, step), "sign(@0)": (-1, 1, 1),
            "@0 % 2": (0, 2, step), "@0 % 3": (0, 3, step), "@0 % 0.75": (0, 0.75, min(step, 0.25)),
            "abs(@0)": (0, top, step), "relu(@0)": (0, max(high, 0), step),
            "clamp(@0, -1, 2)": (-1, 2, min(step, 1))}.get(f, grid)
    if v.dtype in ("u8", "u16"):
        grid = (max(grid[0], 0),) + grid[1:]
    g.emit("integer", f, [v], v.dtype, v.dims, v.sep, grid=small(*grid, v.dtype) or v.grid, dup=True)


@op("cast", 3)
def cast(g):
    v = g.exact(("f32", "f32", "f64", "f16", "bf16") + INTS + ("bool",))
    low, high, step = v.grid
    to = g.one("f32", "f32", "f64", "bf16", "f16", "i64", "i32", "i16", "u16", "i8", "u8", "bool")
    if to == v.dtype or (to in FLOATS and small(low, high, step, "f32") is None):
        raise Unfit
    if to == "bool":
        grid = (0, 1, 1)
    elif to in INTS and v.dtype in INTS:
        grid = (low, high, 1) if RANGE[to][0] <= low and high <= RANGE[to][1] else RANGE[to] + (1,)
    elif to in INTS:
        grid = (max(int(low), RANGE[to][0]), min(int(high), RANGE[to][1]), 1)
    else:
        grid = v.grid
    text = "cast(@0, %s)" % to if g.chance(0.5) else "@0 |> cast(%s)" % to
    g.emit("cast", text, [v], to, v.dims, v.sep, grid=grid, dup=True, mag=max(abs(low), abs(high)))


@op("cast", 2)
def to_real(g):
    """What is exact meets what is not: integers scaled, bits chosen between."""
    v = g.exact(FLOATS + INTS + ("bool",))
    top = float(max(abs(v.grid[0]), abs(v.grid[1]), 1))
    text = "cast(@0, f32)" if v.dtype != "f32" else "@0"
    g.emit("cast", "%s * %.6g" % (text, g.one(0.37, 0.5, 1) * min(1.0, 2 / top)), [v], "f32", v.dims, v.sep,
           1.0, dup=True)


@op("types", 1.5)
def other_types(g):
    """A few operators in f64, f16 or bf16."""
    v, t = g.real((1, 4)), g.one("f64", "f64", "bf16", "f16")
    a = g.emit("types", "cast(@0, %s)" % t, [v], t, v.dims, v.sep, v.mag, dup=True)
    b = g.emit("types", g.one("tanh(@0)", "@0 * @0", "@0 + 0.5", "softplus(@0)", "maximum(@0, 0.25)", "sin(@0)"), [a],
               t, v.dims, v.sep, max(v.mag, v.mag ** 2), dup=True)
    if not isinstance(v.dims[-1], Follow) and g.chance(0.4):
        k = g.extent(9)
        b = g.emit("types", "dense(@0, %d)" % k, [b], t, v.dims[:-1] + (k,),
                   v.sep if v.sep != len(v.dims) - 1 else None, v.mag, dup=True)
    g.emit("types", "cast(@0, f32)", [b], "f32", b.dims, b.sep, b.mag, dup=True)
    for x in (a, b):
        if x in g.pool:
            g.pool.remove(x)


@op("where", 2)
def choose(g):
    a = g.exact()
    f = g.one("@0 > 1", "@0 == 2", "@0 <= 0", "@0 != 1", "not (@0 < 2)", "@0 > 0 and @0 < 3", "@0 < 1 or @0 > 3")
    c = g.emit("where", f, [a], "bool", a.dims, a.sep, grid=(0, 1, 1), dup=True)
    fit = [v for v in g.pool if v.dtype == "f32" and v.grid is None and broadcast(c, v) is not None]
    if fit:
        v = g.one(*fit)
        dims = broadcast(c, v)
        f = g.one("where(@0, @1, @1 * 0.5)", "where(@0, @1, 0)", "where(@0, 1, @1)", "where(not @0, tanh(@1), @1)")
        g.emit("where", f, [c, v], "f32", dims, join(c, v, rank=len(dims)), v.mag, dup=True)


# ---- reductions and scans
@op("reduce", 4)
def reduce(g):
    f = g.one("sum", "mean", "mean", "max", "min")
    exact = g.chance(0.3)
    v = (g.exact(("f32", "bool") + INTS, lambda v: v.dims) if exact
         else g.real((1, 5), lambda v: not (v.dup and f[0] == "m" and f != "mean")))
    axes = sorted(g.rng.sample(range(len(v.dims)), g.rng.randint(1, min(2, len(v.dims)))))
    if g.chance(0.6):
        axes = [a for a in axes if not isinstance(v.dims[a], Follow)] or axes
    keep, n = g.chance(0.4), 1
    for a in axes:
        n *= extent(v.dims[a], g.m.batch)
    dims = tuple(1 if k in axes else d for k, d in enumerate(v.dims) if keep or k not in axes)
    dtype, grid = v.dtype, v.grid
    if exact:
        if f == "mean":
            grid = None
            if dtype in INTS + ("bool",):
                raise Unfit
        elif f == "sum":
            dtype = {"bool": "i32", "f32": "f32"}.get(dtype, "i64")
            grid = small(min(n * grid[0], 0), max(n * grid[1], 0), grid[2], dtype)
            if grid is None:
                raise Unfit
        elif dtype == "bool":
            raise Unfit
    shown = [a - len(v.dims) if g.chance(0.3) else a for a in axes]
    all_axes = len(axes) == len(v.dims) and g.chance(0.5) and not keep
    text = "%s(@0%s%s)" % (f, "" if all_axes
                           else ", axes = %s" % shown if len(axes) > 1 or g.chance(0.5)
                           else ", %d" % shown[0], ", keep = true" if keep else "")
    g.emit("reduce", text, [v], dtype, dims, dropped(v, axes, keep), v.mag * (n if f == "sum" else 1), grid,
           v.dup or grid is not None)


@op("reduce", 1)
def centred(g):
    """Less the mean of an axis, N among them."""
    v = g.real((2, 4))
    a = g.rng.randrange(len(v.dims))
    m = g.emit("reduce", "mean(@0, %d, keep = true)" % a, [v], "f32", v.dims[:a] + (1,) + v.dims[a + 1:],
               dropped(v, [a], True), v.mag, dup=v.dup)
    g.emit("reduce", "@0 - 0.8 * @1", [v, m], "f32", v.dims, join(v, m, rank=len(v.dims)), v.mag, dup=v.dup)


@op("argmax", 1)
def argmax(g):
    v = g.exact(("f32", "i32"), lambda v: v.dims)
    a = g.rng.randrange(len(v.dims))
    n = extent(v.dims[a], g.m.batch)
    g.emit("argmax", "argmax(@0, %d)" % (a if g.chance(0.6) else a - len(v.dims)), [v], "i32",
           v.dims[:a] + v.dims[a + 1:], dropped(v, [a], False), grid=(0, n - 1, 1), dup=True)


@op("scan", 1.5)
def cumsum(g):
    v = g.real((1, 4)) if g.chance(0.7) else g.exact(("i32", "i64"), lambda v: v.dims)
    a = g.rng.randrange(len(v.dims))
    n = extent(v.dims[a], g.m.batch)
    grid = v.grid and small(min(n * v.grid[0], v.grid[0]), max(n * v.grid[1], v.grid[1]), 1, v.dtype)
    if v.grid and not grid:
        raise Unfit
    y = g.emit("scan", "cumsum(@0, %d)" % a, [v], v.dtype, v.dims, None if isinstance(v.dims[a], Follow) else v.sep,
               v.mag * n ** 0.7, grid, v.dup)
    if not grid and g.chance(0.3):
        g.emit("scan", "reverse(cumsum(reverse(@0, %d), %d), %d)" % (a, a, a), [y], v.dtype, v.dims,
               y.sep if not isinstance(v.dims[a], Follow) else None, y.mag * n ** 0.7, None, v.dup)


@op("softmax", 2)
def softmax(g):
    v = g.real((1, 4))
    a = g.rng.randrange(len(v.dims)) if g.chance(0.5) else len(v.dims) - 1
    f = g.one("softmax", "log_softmax")
    g.emit("softmax", "%s(@0%s%s)" % (f, " * 30" if f == "softmax" and g.chance(0.15) else "",
                                      "" if a == len(v.dims) - 1 and g.chance(0.5) else ", axis = %d" % a),
           [v], "f32", v.dims, None if isinstance(v.dims[a], Follow) else v.sep,
           1.0 if f == "softmax" else v.mag + 3, dup=v.dup)


# ---- contractions
@op("dense", 4)
def dense(g):
    v = g.real((1, 5), lambda v: not isinstance(v.dims[-1], Follow), g.dims((2, 3)))
    k = g.extent()
    if v.size(g.m.batch) * k > g.work:
        raise Unfit
    sep = v.sep
    if g.chance(0.2):                            # weights that another may share
        fit = [w for w in g.pool if w.name[0] == "w" and len(w.dims) == 2 and w.dims[1] == v.dims[-1]]
        w = g.one(*fit) if fit else g.param((k, v.dims[-1]), "uniform(-0.4, 0.4)")
        b = g.param((w.dims[0],), g.one("zeros", "uniform(-0.1, 0.1)")) if g.chance(0.4) else None
        g.emit("dense", "dense(@0, %d, weight = @1, bias = %s)" % (w.dims[0], "@2" if b else "false"),
               [v, w] + [b] * bool(b), "f32", v.dims[:-1] + (w.dims[0],), sep, v.mag + 0.3, dup=v.dup)
        return
    more = g.one("", "", ", bias = false", ", init = normal(0.3)", ", init = xavier_uniform")
    y = g.emit("dense", "dense(@0, %d%s)" % (k, more), [v], "f32", v.dims[:-1] + (k,), sep,
               v.mag * 0.7 + 0.3, dup=v.dup)
    if g.chance(0.4):
        g.emit("dense", "@0 |> " + g.one("relu", "tanh", "gelu", "silu"), [y], "f32", y.dims, sep, y.mag, dup=True)


@op("matmul", 3)
def matmul(g):
    a = g.real((1, 4))
    k = a.dims[-1]
    fit = [v for v in g.pool if v.dtype == "f32" and v.grid is None and v.dims
           and (v.dims[-2] if len(v.dims) > 1 else v.dims[-1]) == k]
    b = g.one(*fit) if fit and g.chance(0.6) else None
    if b is None:
        # with itself, an axis of the batch summed over where there is one
        if isinstance(k, Follow) or g.chance(0.3):
            if len(a.dims) < 2:
                raise Unfit
            t = list(range(len(a.dims) - 2)) + [len(a.dims) - 1, len(a.dims) - 2]
            order = tuple(a.dims[i] for i in t)
            b = g.emit("matmul", "transpose(@0, %s)" % t, [a], "f32", order, moved(a.sep, t), a.mag, dup=a.dup)
        else:
            lead = (tuple(d if not isinstance(d, Follow) and g.chance(0.5) else 1 for d in a.dims[:-2])
                    if g.chance(0.4) else ())
            b = g.param(lead + (k, g.extent()), "normal(0.4)")
    lead = broadcast(Value("", "", a.dims[:-2]), Value("", "", b.dims[:-2]))
    if lead is None:
        raise Unfit
    rows, cols = a.dims[-2:-1], b.dims[-1:] if len(b.dims) > 1 else ()
    dims = lead + rows + cols
    n = extent(k, g.m.batch)
    if Value("", "", dims).size(g.m.batch) * n > g.work:
        raise Unfit
    sep = None
    if not isinstance(k, Follow):
        def where(v, last):                      # the axis of the result that v's examples are along
            if not isinstance(v.sep, int):
                return v.sep
            back = len(v.dims) - v.sep           # 1: last axis
            if back > 2:
                return len(lead) - (back - 2)
            return (len(lead) if back == 2 else None) if not last else (len(dims) - 1 if back == 1 else None)
        axes = {where(a, False), where(b, True)} - {"free"}
        sep = "free" if not axes else axes.pop() if len(axes) == 1 else None
    g.emit("matmul", "matmul(@0, @1)", [a, b], "f32", dims, sep, a.mag * b.mag * n ** 0.5, dup=a.dup or b.dup)


def spatial(g, one, two):
    return str(one) if one == two and g.chance(0.7) else "[%d, %d]" % (one, two)


def options(g, **pairs):
    """Arguments of two axes each that are not what they are by default."""
    return "".join(", %s = %s" % (name, spatial(g, *p)) for name, p in pairs.items()
                   if p != ((0, 0) if "pad" in name else (1, 1)))


@op("conv", 4)
def conv2d(g):
    v = g.image(2)
    c, h, w = v.dims[1:]
    for _ in range(20):
        kh, kw = (3, 3) if g.chance(0.4) else (g.one(1, 2, 3, 4, 5), g.one(1, 2, 3, 5))
        sh, sw = (1, 1) if g.chance(0.5) else (g.one(1, 2, 3), g.one(1, 2))
        ph, pw = (kh // 2, kw // 2) if g.chance(0.5) else (g.rng.randint(0, 2), g.rng.randint(0, 2))
        dh, dw = (1, 1) if g.chance(0.7) else (g.one(1, 2, 3), g.one(1, 2))
        oh, ow = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        groups = g.one(*[d for d in range(1, c + 1) if c % d == 0]) if g.chance(0.4) else 1
        o = groups * g.one(1, 2, 3) if groups > 1 else g.extent(17)
        if oh > 0 and ow > 0 and h + 2 * ph >= dh * (kh - 1) + 1 and w + 2 * pw >= dw * (kw - 1) + 1 \
                and g.fits((v.dims[0], o, oh, ow)) \
                and extent(v.dims[0], g.m.batch) * o * oh * ow * c // groups * kh * kw <= g.work:
            break
    else:
        raise Unfit
    more = options(g, stride=(sh, sw), pad=(ph, pw), dilation=(dh, dw))
    more += ", groups = %d" % groups if groups > 1 else ""
    more += g.one("", "", ", bias = false")
    if g.chance(0.15):
        weight = g.param((o, c // groups, kh, kw), "normal(0.3)")
        text, ins = "conv2d(@0, %d, %s%s, weight = @1)" % (
            o, spatial(g, kh, kw), more + ("" if "bias" in more else ", bias = false")), [v, weight]
    else:
        text, ins = "conv2d(@0, %d, %s%s)" % (o, spatial(g, kh, kw), more), [v]
    y = g.emit("conv", text, ins, "f32", (v.dims[0], o, oh, ow), v.sep if v.sep != 1 else None,
               v.mag * (2.0 * c / o) ** 0.5 + 0.1, dup=v.dup)
    if g.chance(0.5):
        f = (g.one("relu", "batch_norm |> relu", "hardswish", "batch_norm", "leaky_relu")
             if extent(y.dims[0], g.m.batch) * oh * ow > 6 else "tanh")
        g.emit("conv", "@0 |> " + f, [y], "f32", y.dims, y.sep, 2.0, dup=True)


@op("conv_transpose", 2)
def conv_transpose2d(g):
    v = g.image()
    c, h, w = v.dims[1:]
    for _ in range(20):
        kh, kw, sh, sw = g.one(1, 2, 3, 4), g.one(1, 2, 3), g.one(1, 2, 3), g.one(1, 2)
        ph, pw = g.rng.randint(0, kh - 1), g.rng.randint(0, kw - 1)
        qh, qw = g.rng.randint(0, sh - 1), g.rng.randint(0, sw - 1)
        oh, ow = (h - 1) * sh - 2 * ph + kh + qh, (w - 1) * sw - 2 * pw + kw + qw
        o = g.extent(9)
        if oh > 0 and ow > 0 and g.fits((v.dims[0], o, oh, ow)) and v.size(g.m.batch) * o * kh * kw <= g.work:
            break
    else:
        raise Unfit
    more = options(g, stride=(sh, sw), pad=(ph, pw), output_pad=(qh, qw)) + g.one("", ", bias = false")
    sep = v.sep if v.sep != 1 else None
    g.emit("conv_transpose", "conv_transpose2d(@0, %d, %s%s)" % (o, spatial(g, kh, kw), more), [v], "f32",
           (v.dims[0], o, oh, ow), sep, v.mag * (2.0 * c / o) ** 0.5 + 0.1, dup=True)


@op("pool", 2)
def pool(g):
    v = g.image(2)
    h, w = v.dims[2:]
    kh, kw = g.rng.randint(1, min(h, 4)), g.rng.randint(1, min(w, 4))
    sh, sw = (kh, kw) if g.chance(0.4) else (g.one(1, 2, 3), g.one(1, 2, 3))
    ph, pw = (g.rng.randint(0, kh // 2), g.rng.randint(0, kw // 2)) if g.chance(0.5) else (0, 0)
    f = "max" if not v.dup and g.chance(0.6) else "avg"
    more = "" if (sh, sw) == (kh, kw) and g.chance(0.5) else ", stride = " + spatial(g, sh, sw)
    more += ", pad = " + spatial(g, ph, pw) if (ph, pw) != (0, 0) else ""
    more += ", count_pad = false" if f == "avg" and g.chance(0.4) else ""
    dims = v.dims[:2] + ((h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1)
    g.emit("pool", "%s_pool2d(@0, %s%s)" % (f, spatial(g, kh, kw), more), [v], "f32", dims, v.sep, v.mag,
           dup=v.dup or f == "max")


# ---- layers
@op("norm", 3)
def norm(g):
    f = g.one("batch_norm", "batch_norm", "layer_norm", "rms_norm", "group_norm", "normalize")
    axis = -1 if f in ("layer_norm", "rms_norm") else 1
    v = g.real((2, 5), lambda v: not isinstance(v.dims[axis], Follow) and (f == "normalize" or not v.dup))
    c, all_of = v.dims[axis], v.size(g.m.batch)
    sep, more = v.sep, ""
    if f == "batch_norm":
        if all_of // c < 5 or (g.block and not v.sep == 0):
            raise Unfit
        more = g.one("", ", eps = 0.01", ", momentum = 0.3")
    elif f == "normalize":
        more = (", mean = 0.2, std = 1.5" if g.chance(0.3) or c > 6
                else ", mean = [%s], std = [%s]" % (", ".join("%.2g" % (0.1 * k) for k in range(c)),
                                                    ", ".join("%.3g" % (1 + 0.2 * k) for k in range(c))))
    elif f == "group_norm":
        groups = g.one(*[d for d in range(1, c + 1) if c % d == 0])
        if all_of // extent(v.dims[0], g.m.batch) // groups < 3:
            raise Unfit
        if any(isinstance(d, Follow) for d in v.dims[1:]):
            sep = None
        more = ", %d" % groups
    elif c < 3:
        raise Unfit
    g.emit("norm", "%s(@0%s)" % (f, more), [v], "f32", v.dims, sep, 1.5, dup=v.dup)


@op("attention", 2.5)
def attention(g):
    v = g.real((2, 4), lambda v: not isinstance(v.dims[-1], Follow), (N, g.extent(17), g.extent(17)))
    t = v.dims[-2]
    if v.size(g.m.batch) * extent(t, g.m.batch) > g.work:
        raise Unfit
    sep = None if v.sep == len(v.dims) - 2 else v.sep
    kind, e = g.rng.randrange(4), g.extent(17)
    proj = lambda x, k: g.emit("attention", "dense(@0, %d)" % k, [x], "f32", x.dims[:-1] + (k,), x.sep,
                               x.mag * 0.7 + 0.3, dup=x.dup)
    q, k, w = (v, v, v) if kind == 0 else (proj(v, e), proj(v, e), proj(v, g.extent(17)))
    fixed_t = not isinstance(t, Follow)
    if kind == 2 and fixed_t and t > 2:          # keys of other length
        cut = g.rng.randint(1, t - 1)
        k, w = (g.emit("attention", "slice(@0, %d, 0, %d)" % (len(v.dims) - 2, cut), [x], "f32",
                       x.dims[:-2] + (cut,) + x.dims[-1:], x.sep, x.mag, dup=x.dup) for x in (k, w))
    more, ins, same = "", [q, k, w], k.dims[-2] == q.dims[-2]
    if g.chance(0.4) and same:
        more += ", causal = true"
    if g.chance(0.2):
        more += ", scale = 0.4"
    if g.chance(0.3) and fixed_t:
        s = k.dims[-2]
        if g.chance(0.5):
            ins.append(g.param((t, s), "normal(1)"))
        else:
            a = g.emit("attention", "reshape(range(%d, dtype = i32), [%d, 1]) + %d > range(%d, dtype = i32)"
                       % (t, t, g.rng.randint(1, 4), s), [], "bool", (t, s), grid=(0, 1, 1), dup=True)
            ins.append(a)
        more += ", mask = @3"
    if g.chance(0.2):
        more += ", dropout = 0.2"
    g.emit("attention", "attention(@0, @1, @2%s)" % more, ins, "f32", q.dims[:-1] + (w.dims[-1],), sep,
           v.mag, dup=v.dup)


@op("recurrent", 2)
def recurrent(g):
    v = g.real((3, 3), lambda v: (v.dims[0] == N and v.fixed() is False
                                  and not any(isinstance(d, Follow) for d in v.dims[1:])),
               (N, g.one(1, 2, 3, 5, 7), g.extent(17)))
    t, h, cell = v.dims[1], g.extent(17), g.one("lstm", "gru")
    if t > 17 or v.size(g.m.batch) * h * 4 > g.work:
        raise Unfit
    ins, more = [v], ""
    if g.chance(0.3):
        more += ", reverse = true"
    if g.chance(0.3):
        ins.append(g.ids((N,), t + 1))
        more += ", length = @1"
    if g.chance(0.3):
        starts = []
        for _ in range(1 + (cell == "lstm")):
            s = g.emit("recurrent", "tanh(dense(mean(@0, 1), %d))" % h, [v], "f32", (N, h), v.sep, 0.7, dup=v.dup)
            starts.append("@%d" % len(ins))
            ins.append(s)
        more += ", start = [%s]" % ", ".join(starts)
    sep = v.sep if all(i.sep == v.sep for i in ins) else None      # lengths may follow the place in the batch
    if g.chance(0.4):
        outs = [Value(g.name(), "f32", d, None, True, sep, 0.5)
                for d in [(N, t, h), (N, h), (N, h)][:3 if cell == "lstm" else 2]]
        g.stmt("recurrent", "%s = %s_state(@0, %d%s)" % (", ".join("&%d" % k for k in range(len(outs))), cell, h, more),
               ins, outs)
    else:
        g.emit("recurrent", "%s(@0, %d%s)" % (cell, h, more), ins, "f32", (N, t, h), sep, 0.5, dup=True)


@op("index", 3)
def index(g):
    kind = g.one("embedding", "take", "gather", "one_hot", "table", "batch")
    if kind in ("embedding", "table"):
        ids = (g.exact(INTS, lambda v: v.grid[0] >= 0 and v.grid[1] < 40 and len(v.dims) < 4) if g.chance(0.5)
               else g.ids(g.dims((1, 2)), g.extent()))
        vocab, k = ids.grid[1] + 1 + g.one(0, 3), g.extent(17)
        if kind == "embedding":
            g.emit("index", "embedding(@0, %d, %d)" % (vocab, k), [ids], "f32", ids.dims + (k,), ids.sep, 1.0, dup=True)
        else:
            w = g.param((vocab, k), "normal(0.5)")
            g.emit("index", "take(@1, @0)", [ids, w], "f32", ids.dims + (k,), ids.sep, 1.0, dup=True)
    elif kind == "take":
        v = g.real((2, 4))
        a = g.one(*[k for k, d in enumerate(v.dims) if not isinstance(d, Follow)] or [None])
        if a is None:
            raise Unfit
        k = g.one(1, 2, 3, 5)
        ids = g.emit("index", "range(%d, dtype = i32) * %d %% %d" % (k, g.one(1, 2, 3), v.dims[a]), [], "i32", (k,),
                     grid=(0, v.dims[a] - 1, 1), dup=True)
        g.emit("index", "take(@0, @1, axis = %d)" % a, [v, ids], "f32", v.dims[:a] + (k,) + v.dims[a + 1:], v.sep,
               v.mag, dup=True)
    elif kind == "gather":
        v = g.real((2, 3), lambda v: v.dims[0] == N and not any(isinstance(d, Follow) for d in v.dims[1:]),
                   g.dims((2, 3)))
        a = g.rng.randrange(1, len(v.dims))
        dims = v.dims[:a] + (g.extent(9),) + v.dims[a + 1:]
        ids = g.ids(dims, v.dims[a])
        g.emit("index", "gather(@0, @1, %d)" % a, [v, ids], "f32", dims, v.sep if ids.sep == v.sep else None,
               v.mag, dup=True)
    elif kind == "one_hot":
        ids = g.exact(INTS, lambda v: v.grid[0] >= -5 and v.grid[1] < 40)
        k = max(2, ids.grid[1] + g.one(0, 1))
        g.emit("index", "one_hot(@0, %d)" % k, [ids], "f32", ids.dims + (k,), ids.sep, grid=(0, 1, 1), dup=True)
    else:                                        # along N, in opposite order
        v = g.real((1, 4), lambda v: v.dims[0] == N)
        ids = g.emit("follow", "range(N, dtype = i32)", [], "i32", (N,), None, grid=(0, g.m.batch - 1, 1), dup=True)
        g.emit("follow", "take(@0, @1)", [v, ids], "f32", v.dims, v.sep if v.sep in ("free",) else None,
               v.mag, dup=v.dup)


# ---- shapes
@op("view", 4)
def view(g):
    v = g.pick(lambda v: 1 <= len(v.dims) <= 5 and v.size(g.m.batch) > 1, lambda: g.input_real(g.dims((2, 4))))
    kind = g.one("transpose", "transpose", "reshape", "reshape", "flatten", "squeeze", "unsqueeze", "expand")
    r = len(v.dims)
    sep, dup, dims, text = v.sep, v.dup, v.dims, None
    if kind == "transpose":
        order = g.rng.sample(range(r), r)
        text, dims, sep = "transpose(@0, %s)" % order, tuple(v.dims[a] for a in order), moved(v.sep, order)
    elif kind == "reshape":
        k = next((i for i in range(r) if isinstance(v.dims[i], Follow)), None)
        if k is None or k > 0 or g.chance(0.3):
            a = g.rng.randrange(r)               # an axis in two
            if isinstance(v.dims[a], Follow):
                raise Unfit
            p = g.one(*[d for d in range(1, v.dims[a] + 1) if v.dims[a] % d == 0])
            dims = v.dims[:a] + (p, v.dims[a] // p) + v.dims[a + 1:]
            sep = v.sep + (v.sep > a) if isinstance(v.sep, int) else v.sep
        else:
            rest = (int(Value("", "", v.dims[1:]).size(1))
                    if all(not isinstance(d, Follow) for d in v.dims[1:]) else None)
            if rest is None:
                raise Unfit
            p = g.one(*[d for d in range(1, rest + 1) if rest % d == 0])
            dims = (v.dims[0], p, rest // p) if g.chance(0.5) else (v.dims[0], rest)
        shown = shape_text(dims)
        if g.chance(0.3):
            a = g.rng.randrange(len(dims))
            shown = "[" + ", ".join("-1" if i == a else "@0.shape[0]" if d == v.dims[0] and i == 0 else extent_text(d)
                                    for i, d in enumerate(dims)) + "]"
        text = "reshape(@0, %s)" % shown
    elif kind == "flatten":
        a = g.rng.randrange(r)
        if any(isinstance(d, Follow) for d in v.dims[a + 1:]) or (isinstance(v.dims[a], Follow) and r - a > 1):
            raise Unfit
        last = 1
        for d in v.dims[a + 1:]:
            last *= d
        text, dims = "flatten(@0, from = %d)" % a, v.dims[:a] + (times(v.dims[a], last),)
    elif kind == "squeeze":
        fit = [k for k, d in enumerate(v.dims) if d == 1]
        if not fit:
            raise Unfit
        a = g.one(*fit)
        text, dims = "squeeze(@0, %d)" % a, v.dims[:a] + v.dims[a + 1:]
        sep = v.sep - (v.sep > a) if isinstance(v.sep, int) else v.sep
    elif kind == "unsqueeze":
        a = g.rng.randint(0, r)
        text, dims = "unsqueeze(@0, %d)" % a, v.dims[:a] + (1,) + v.dims[a:]
        sep = v.sep + (v.sep >= a) if isinstance(v.sep, int) else v.sep
    else:
        lead = (g.one(2, 3),) if g.chance(0.5) else ()
        dims = lead + tuple(g.one(2, 3, 5) if d == 1 and g.chance(0.7) else d for d in v.dims)
        if dims == v.dims:
            raise Unfit
        text = "expand(@0, [%s])" % ", ".join("-1" if g.chance(0.3) and k >= len(lead) and d == v.dims[k - len(lead)]
                                              else extent_text(d) for k, d in enumerate(dims))
        dup, sep = True, v.sep + len(lead) if isinstance(v.sep, int) else v.sep
    g.emit("view", text, [v], v.dtype, dims, sep, v.mag, v.grid, dup)


@op("join", 2)
def concat(g):
    v = g.pick(lambda v: v.dims and (v.dtype == "f32" or v.grid), lambda: g.input_real(g.dims((2, 4))))
    fixed = [k for k, d in enumerate(v.dims) if not isinstance(d, Follow)]
    if not fixed:
        raise Unfit
    a = g.one(*fixed)
    fit = [w for w in g.pool if w.dtype == v.dtype and len(w.dims) == len(v.dims)
           and all(x == y for k, (x, y) in enumerate(zip(v.dims, w.dims)) if k != a)
           and not isinstance(w.dims[a], Follow)]
    parts = [v] + [g.one(*fit) for _ in range(g.one(1, 1, 2))]
    dims = v.dims[:a] + (sum(p.dims[a] for p in parts),) + v.dims[a + 1:]
    grid = (None if any(p.grid is None for p in parts)
            else (min(p.grid[0] for p in parts), max(p.grid[1] for p in parts), min(p.grid[2] for p in parts)))
    g.emit("join", "concat([%s], %d)" % (", ".join("@%d" % k for k in range(len(parts))), a), parts, v.dtype, dims,
           join(*parts, rank=len(dims)), max(p.mag for p in parts),
           grid if grid is None or small(*grid, v.dtype) else None, True)


@op("join", 1.5)
def split(g):
    v = g.real((1, 4), lambda v: any(not isinstance(d, Follow) and d > 1 for d in v.dims))
    a = g.one(*[k for k, d in enumerate(v.dims) if not isinstance(d, Follow) and d > 1])
    p = g.rng.randint(1, v.dims[a] - 1)
    sizes = [p, v.dims[a] - p]
    outs = [Value(g.name(), v.dtype, v.dims[:a] + (s,) + v.dims[a + 1:], None, v.dup, v.sep, v.mag) for s in sizes]
    g.stmt("join", "&0, &1 = split(@0, %s, %d)" % (sizes, a), [v], outs)


@op("cut", 3)
def cut(g):
    v = g.pick(lambda v: v.dims and v.dtype != "bool" and any(not isinstance(d, Follow) for d in v.dims),
               lambda: g.input_real(g.dims((2, 4))))
    a = g.one(*[k for k, d in enumerate(v.dims) if not isinstance(d, Follow)])
    kind, n = g.one("slice", "slice", "pad", "reverse"), v.dims[a]
    dims, grid = v.dims, v.grid
    if kind == "slice":
        start, step = g.rng.randrange(n), g.one(1, 1, 2, 3)
        end = g.rng.randint(start + 1, n)
        dims = v.dims[:a] + ((end - start + step - 1) // step,) + v.dims[a + 1:]
        text = "slice(@0, %d, %d, %s%s)" % (a, start - n if start and g.chance(0.3) else start,
                                            "none" if end == n and g.chance(0.4)
                                            else end - n if end < n and g.chance(0.3) else end,
                                            ", step = %d" % step if step > 1 else "")
    elif kind == "pad":
        before, after = g.rng.randint(0, 3), g.rng.randint(0, 3)
        value = g.one(0, 0, 1)
        dims = v.dims[:a] + (n + before + after,) + v.dims[a + 1:]
        text = "pad(@0, %d, %d, %d%s)" % (a, before, after, ", value = %d" % value if value else "")
        grid = grid and (min(grid[0], value), max(grid[1], value), grid[2])
    else:
        text = "reverse(@0, %d)" % a
    g.emit("cut", text, [v], v.dtype, dims, v.sep, v.mag, grid, v.dup or kind == "pad")


# ---- what follows the batch
@op("follow", 3)
def follow(g):
    kind = g.one("transpose", "more", "fewer", "sum", "count", "softmax", "cumsum", "reverse", "gram", "positions",
                 "once", "whole")
    if kind == "positions":
        k = g.extent(9)
        text, dims = g.one(("range(N, dtype = f32) * 0.1", (N,)), ("ones([N, %d]) * 0.5" % k, (N, k)),
                           ("reshape(cast(range(N, dtype = i32) % 3, f32), [N, 1])", (N, 1)),
                           ("zeros([%d, N]) + 0.3" % k, (k, N)))
        g.emit("follow", text, [], "f32", dims, None, 0.5, dup=True)
        return
    if kind == "once":                           # of parameters alone, but as long as the batch
        k, d = g.extent(9), g.extent(9)
        g.emit("follow", "matmul(%s([N, %d]%s), @0)" % (g.one(("ones", k, ""), ("full", k, ", 0.3"))),
               [g.param((k, d), "normal(0.6)")], "f32", (N, d), None, k ** 0.5, dup=True)
        return
    if kind == "count":                          # how many there are
        v = g.real((1, 4), lambda v: v.dims[0] == N)
        n = g.emit("follow", "sum(ones([%s]))" % g.one("N", "N", "2 * N"), [], "f32", (), None, 4.0, dup=True)
        s = g.emit("follow", "sum(@0, 0)", [v], "f32", v.dims[1:], None, v.mag * g.m.batch ** 0.5, dup=v.dup)
        g.emit("follow", "@0 / @1", [s, n], "f32", s.dims, None, v.mag, dup=v.dup)
        return
    v = g.real((2, 4), lambda v: v.dims[0] == N and not any(isinstance(d, Follow) for d in v.dims[1:]), g.dims((2, 4)))
    rest = Value("", "", v.dims[1:]).size(1)
    if kind == "transpose":
        order = list(range(1, len(v.dims))) + [0]
        g.emit("follow", "transpose(@0, %s)" % order, [v], "f32", tuple(v.dims[a] for a in order), moved(v.sep, order),
               v.mag, dup=v.dup)
    elif kind == "more":
        p = g.one(*[d for d in range(1, rest + 1) if rest % d == 0])
        g.emit("follow", "reshape(@0, [%s, %d])" % (extent_text(times(N, p)), rest // p), [v], "f32",
               (times(N, p), rest // p), None if p > 1 or v.sep != 0 else 0, v.mag, dup=v.dup)
    elif kind == "fewer":
        if g.m.batch % 2:
            raise Unfit
        g.emit("follow", "reshape(@0, [N / 2, %d])" % (2 * rest), [v], "f32", (Follow(1, 2), 2 * rest), None,
               v.mag, dup=v.dup)
    elif kind == "sum":
        g.emit("follow", "%s(@0, 0%s)" % (g.one("mean", "sum"), ", keep = true" if (keep := g.chance(0.5)) else ""),
               [v], "f32", ((1,) if keep else ()) + v.dims[1:], None, v.mag * g.m.batch ** 0.5, dup=v.dup)
    elif kind in ("softmax", "cumsum", "reverse"):
        text = {"softmax": "softmax(@0, axis = 0)", "cumsum": "cumsum(@0, 0)", "reverse": "reverse(@0, 0)"}[kind]
        g.emit("follow", text, [v], "f32", v.dims, None,
               v.mag * (g.m.batch ** 0.7 if kind == "cumsum" else 1), dup=v.dup)
    elif kind == "gram":
        x = g.emit("follow", "flatten(@0)", [v], "f32", (N, rest), v.sep, v.mag, dup=v.dup)
        if rest > 40:
            raise Unfit
        if g.chance(0.5):
            g.emit("follow", "matmul(transpose(@0, [1, 0]), @0)", [x], "f32", (rest, rest), None,
                   v.mag ** 2 * g.m.batch ** 0.5, dup=True)
        else:
            g.emit("follow", "matmul(@0, transpose(@0, [1, 0]))", [x], "f32", (N, N), None,
                   v.mag ** 2 * rest ** 0.5, dup=True)
    else:                                        # joined along N: whole batches only
        if not g.chance(0.3):
            raise Unfit
        g.m.full_only = True
        g.emit("follow", g.one("concat([@0, @0 * 0.5], 0)", "pad(@0, 0, %d, 0)" % g.m.batch), [v], "f32",
               (times(N, 2),) + v.dims[1:], None, v.mag, dup=True)


# ---- randomness, constants, control
@op("random", 2)
def randomness(g):
    kind = g.one("dropout", "dropout", "random", "crop", "flip", "image")
    if kind == "dropout":
        v = g.real((1, 4))
        g.emit("random", "dropout(@0, %s)" % g.one("0.1", "0.5", "0.3"), [v], "f32", v.dims, v.sep,
               v.mag * 1.5, dup=True)
    elif kind == "random":
        v = g.real((1, 3))
        r = g.emit("random", "random(%s%s)" % (shape_text(v.dims), g.one("", ", -1, 1")), [], "f32", v.dims, None, 0.6)
        g.emit("random", "@0 + 0.2 * @1", [v, r], "f32", v.dims, None, v.mag)
    elif kind == "image":                        # what a reader's images go through
        if g.block:
            raise Unfit
        h, w, c, p = g.one(4, 5, 8, 9), g.one(4, 6, 7), g.one(1, 3), g.one(0, 1, 2)
        v = g.pick(lambda v: v.dtype == "u8" and len(v.dims) == 4, lambda: g.input_grid("u8", (N, c, h, w)))
        c, h, w = v.dims[1:]
        rows, cols = g.rng.randint(2, h), g.rng.randint(2, w)
        more = g.one("|> random_crop([%d, %d], pad = %d)" % (rows, cols, p),
                     "|> random_flip |> random_crop([%d, %d])" % (rows, cols),
                     "|> slice(2, 0, %d) |> slice(3, 0, %d) |> random_flip" % (rows, cols))
        text = g.one("@0 |> cast(f32) |> normalize(mean = 120, std = 60) " + more,
                     "@0 %s |> cast(f32) |> normalize(mean = 120, std = 60)" % more, "(cast(@0, f32) / 255) " + more)
        g.emit("random", text, [v], "f32", (v.dims[0], c, rows, cols), v.sep, 1.5, dup=True)
    else:
        v = g.image(2)
        if v.dims[0] != N:
            raise Unfit
        if kind == "flip":
            g.emit("random", "random_flip(@0)", [v], "f32", v.dims, v.sep, v.mag, dup=v.dup)
        else:
            h, w, p = v.dims[2], v.dims[3], g.one(0, 1, 2)
            rows, cols = g.rng.randint(1, h + p), g.rng.randint(1, w + p)
            g.emit("random", "random_crop(@0, [%d, %d]%s)" % (rows, cols, ", pad = %d" % p if p else ""), [v], "f32",
                   v.dims[:2] + (rows, cols), v.sep, v.mag, dup=True)


@op("constant", 1)
def constant(g):
    k = g.extent(9)
    text, dims, dtype = g.one(("ones([%d]) * 0.5" % k, (k,), "f32"), ("full([%d, 2], 0.3)" % k, (k, 2), "f32"),
                              ("range(0, %d, 2, dtype = f32) * 0.1" % (2 * k), (k,), "f32"),
                              ("range(%d, dtype = i32)" % k, (k,), "i32"), ("zeros([1, %d])" % k, (1, k), "f32"),
                              ("ones([2, %d], dtype = i32)" % k, (2, k), "i32"))
    g.emit("constant", text, [], dtype, dims, grid=(0, k, 1) if dtype == "i32" else None, dup=True, mag=1.0)


@op("control", 2.5)
def control(g):
    v = g.real((1, 4))
    kind = g.one("training", "training", "for", "repeat", "block", "block") if not g.block else g.one("training", "for")
    if kind == "training":
        text = "&0 = @0\nif training { &0 = %s }" % g.one("dropout(&0, 0.2)", "&0 * 1.1", "&0 + 0.1 * random(&0.shape)")
        g.stmt("control", text, [v], [Value(g.name(), "f32", v.dims, None, True, v.sep, v.mag * 1.3)])
    elif kind == "for":
        g.stmt("control", "&0 = @0\nfor s, t in [[1, 0.5], [2, 0.25]] { &0 = tanh(&0 * t + s * 0.1) }", [v],
               [Value(g.name(), "f32", v.dims, None, v.dup, v.sep, 1.0)])
    elif kind == "repeat":
        if isinstance(v.dims[-1], Follow) or v.size(g.m.batch) * v.dims[-1] > g.work:
            raise Unfit
        g.stmt("control", "&0 = @0\nrepeat %d { &0 = &0 + 0.5 * tanh(dense(&0, %d)) }" % (g.one(1, 2, 3), v.dims[-1]),
               [v], [Value(g.name(), "f32", v.dims, None, v.dup, v.sep, v.mag + 1)])
    else:
        call_block(g, v)


def call_block(g, v):
    b = Block(g.name("b"), None)
    param = Value(g.name(), "f32", v.dims, None, v.dup, v.sep, max(v.mag, 1.5))
    b.param = param
    outer = g.body, g.pool
    g.body, g.pool, g.block = b.body, [param], b
    try:
        for _ in range(g.rng.randint(2, 6)):
            random_op(g, ("follow", "loss"))
        fit = [x for x in g.pool if x.dtype == "f32" and x.grid is None and broadcast(x, param) == param.dims
               and x is not param]
        last = fit[-1] if fit else param
        b.result = g.emit("control", "tanh(@0 + 0.5 * @1)", [param, last], "f32", v.dims,
                          join(param, last, rank=len(v.dims)), 1.0, dup=True)
    finally:
        (g.body, g.pool), g.block = outer, None
    g.m.blocks.append(b)
    sep = b.result.sep
    kind = g.one("once", "twice", "repeat", "given")
    out = [Value(g.name(), "f32", v.dims, None, True, sep, 1.0)]
    text = {"once": "&0 = %s(@0)", "twice": "&0 = @0 |> %s |> %s", "repeat": "&0 = @0\nrepeat 2 { &0 = %s(&0) }",
            "given": "&0 = %s(@0) as %s"}[kind]
    names = {"once": b.name, "repeat": b.name}.get(kind, (b.name, b.name) if kind == "twice"
                                                   else (b.name, g.name("label")))
    g.stmt("control", text % names, [v], out)


# ---- losses and metrics of labels
@op("loss", 1.5)
def labelled(g):
    """Logits and labels: the losses and metrics that take both."""
    if g.block:
        raise Unfit
    v = g.real((2, 3), lambda v: (v.dims[0] == N and not any(isinstance(d, Follow) for d in v.dims[1:])
                                  and 2 <= v.dims[-1] <= 33), (N, g.extent(17) + 1))
    classes = v.dims[-1]
    label = g.ids(v.dims[:-1], classes)
    more = g.one("", "", ", smoothing = 0.1", ", ignore = 1" if classes > 1 else "")
    average = v.sep == 0 and label.sep in (0, "free")  # sorted over the batch, labels are other examples'
    g.stmt("loss", "loss cross_entropy(@0, @1%s)" % more, [v, label], [], "loss",
           average=average and "ignore" not in more)
    if g.chance(0.7) and not v.dup and v.sep == 0:
        name = g.name("acc")
        kind = g.one("accuracy(@0, @1)", "top_k_accuracy(@0, @1, %d)" % g.rng.randint(1, classes))
        g.stmt("metric", "metric %s = %s" % (name, kind), [v, label], [], "metric", name=name, average=average)


# ---- the choice
def random_op(g, without=()):
    """One that finds what it needs."""
    ops = [o for o in OPS if o[0] not in without]
    for _ in range(20):
        group, _, f = g.rng.choices(ops, [o[1] for o in ops])[0]
        if attempt(g, f):
            return


def attempt(g, f):
    kept = len(g.body), len(g.pool), len(g.m.inputs)
    try:
        f(g)
        return True
    except Unfit:
        del g.body[kept[0]:], g.m.inputs[kept[2]:]
        made = {v.name for s in g.body for v in s.outs} | {i.name for i in g.m.inputs}
        g.pool[:] = [v for v in g.pool if v.name in made or (g.block and v is g.block.param)]
        return False
