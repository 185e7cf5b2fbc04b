"""net_places.py: more operators of random models, those that name elements or axes: einsum, sort and top_k, images of
another size, regions and boxes, convolutions along one axis. As in net_ops.py; what is not continuous (places, boxes
that are suppressed) takes values of a grid, and boxes stay where no sample falls on the border of the map."""
from net_model import Follow, N, Value, extent
from net_ops import op
from net_pool import Unfit


def fixed(v, *axes):
    return not any(isinstance(v.dims[a], Follow) for a in axes)


@op("einsum", 2.5)
def einsum(g):
    a = g.real((1, 4))
    letters = "ijklmn"[:len(a.dims)]
    axes = dict(zip(letters, a.dims))
    kind = g.one("one", "param", "param", "other", "three")
    ins, words = [a], [letters]
    if kind == "other":                          # with another of which it has an axis
        fit = [v for v in g.pool if v.dtype == "f32" and v.grid is None and 1 <= len(v.dims) <= 3
               and any(d in a.dims for d in v.dims)]
        b = g.one(*fit)
        free, word, left = iter("pqrs"), "", list(letters)
        for d in b.dims:
            same = next((x for x in left if axes[x] == d), None)
            if same and g.chance(0.7):
                left.remove(same)
            else:
                same = next(free)
                axes[same] = d
            word += same
        ins, words = ins + [b], words + [word]
    elif kind != "one":
        for fresh in "uv"[:1 + (kind == "three")]:
            own = [x for x in letters if not isinstance(axes[x], Follow) and g.chance(0.6)]
            if g.chance(0.8):
                axes[fresh] = g.extent(9)
                own.append(fresh)
            if not own:
                raise Unfit
            g.rng.shuffle(own)
            w = g.param(tuple(axes[x] for x in own), "normal(0.5)")
            ins, words = ins + [w], words + ["".join(own)]
    used = sorted(set("".join(words)))
    out = [x for x in used if g.chance(0.7)]
    g.rng.shuffle(out)
    space = Value("", "", tuple(axes[x] for x in used)).size(g.m.batch)
    if space > g.work:
        raise Unfit
    dims = tuple(axes[x] for x in out)
    summed = space / max(1, Value("", "", dims).size(g.m.batch))
    mag = summed ** 0.5
    for v in ins:
        mag *= max(v.mag, 0.3)
    # examples stay apart where every operand that has them along an axis has that axis in the result
    seps = set()
    for v, word in zip(ins, words):
        if v.sep != "free":
            seps.add(word[v.sep] if isinstance(v.sep, int) else None)
    name = seps.pop() if len(seps) == 1 else None if seps else "free"
    sep = "free" if name == "free" else out.index(name) if name in out else None
    text = 'einsum("%s->%s", %s)' % (",".join(words), "".join(out), ", ".join("@%d" % k for k in range(len(ins))))
    if kind == "param" and len(a.dims) > 2 and out[:1] == [letters[0]] and letters[0] not in words[1] and g.chance(0.6):
        text = text.replace(letters[0] + letters[1:], "..." + letters[1:], 1).replace("->" + letters[0], "->...", 1)
    g.emit("einsum", text, ins, "f32", dims, sep, mag, dup=any(v.dup for v in ins))


@op("einsum", 0.5)
def diagonal(g):
    v = g.real((2, 4), lambda v: len(set(v.dims)) < len(v.dims))
    a, b = next((i, j) for i in range(len(v.dims)) for j in range(i) if v.dims[i] == v.dims[j])
    word = list("ijkl"[:len(v.dims)])
    word[a] = word[b]
    out = sorted(set(word))
    g.rng.shuffle(out)
    dims = tuple(v.dims[word.index(x)] for x in out)
    sep = out.index(word[v.sep]) if isinstance(v.sep, int) else v.sep
    if isinstance(v.dims[a], Follow):
        sep = None
    g.emit("einsum", 'einsum("%s->%s", @0)' % ("".join(word), "".join(out)), [v], "f32", dims, sep, v.mag, dup=v.dup)


@op("sort", 2.5)
def in_order(g):
    """Values that are exact, and their places; of others the values alone, as rounding may exchange neighbours."""
    exact = g.chance(0.5)
    v = (g.exact(("f32", "f32", "i32", "i64", "u8", "i8", "i16", "u16"), lambda v: v.dims) if exact
         else g.real((1, 4), lambda v: not v.dup))
    a = g.rng.randrange(len(v.dims))
    n, sep = extent(v.dims[a], g.m.batch), v.sep
    shown = a if g.chance(0.6) else a - len(v.dims)
    if g.chance(0.5) and fixed(v, a):
        k = g.rng.randint(1, n)
        text, dims = "top_k(@0, %d, axis = %d)" % (k, shown), v.dims[:a] + (k,) + v.dims[a + 1:]
    else:
        text, dims = "sort(@0, axis = %d%s)" % (shown, g.one("", ", descending = true")), v.dims
        if not fixed(v, a):
            sep = None
    values = Value(g.name(), v.dtype, dims, v.grid, v.dup, sep, v.mag)
    places = Value(g.name(), "i32", dims, (0, n - 1, 1), True, sep, n)
    g.stmt("sort", "&0, &1 = " + text, [v], [values, places])
    if not exact:
        g.pool.remove(places)


@op("resize", 2)
def resize(g):
    v = g.image()
    h, w = v.dims[2:]
    rows, cols = ((2 * h, 2 * w) if g.chance(0.4) else (g.rng.randint(1, 2 * h + 1), g.rng.randint(1, 2 * w + 1)))
    size = "%d" % rows if rows == cols and g.chance(0.5) else "[%d, %d]" % (rows, cols)
    mode = g.one("", ', mode = "bilinear"', ', mode = "nearest"', ', mode = "nearest"')
    g.emit("resize", "resize(@0, %s%s)" % (size, mode), [v], "f32", v.dims[:2] + (rows, cols), v.sep, v.mag, dup=True)


@op("boxes", 1.5)
def regions(g):
    v = g.image(3)
    if v.dims[0] != N or v.sep != 0 or g.block:
        raise Unfit
    h, w = v.dims[2:]
    count, rows, cols = g.one(1, 2, 3, 5), g.rng.randint(1, 4), g.rng.randint(1, 4)
    boxes = g.input_grid("f32", (N, count, 4))
    scale = g.one(1, 0.5, 2)
    more = "".join((", scale = %s" % scale if scale != 1 else "", g.one("", ", samples = %d" % g.rng.randint(1, 3)),
                    g.one("", ", aligned = true")))
    g.emit("boxes", "roi_align(@0, clamp(@1, 1, %s), [%d, %d]%s)" % ((min(h, w) - 2) / scale + 0.5, rows, cols, more),
           [v, boxes], "f32", (N, count, v.dims[1], rows, cols), 0, v.mag, dup=True)


@op("boxes", 1)
def suppressed(g):
    if g.block:
        raise Unfit
    n = g.one(1, 2, 3, 5, 9, 20)
    boxes, scores = g.input_grid("f32", (N, n, 4)), g.input_grid("f32", (N, n))
    count = g.rng.randint(1, n)
    ins, more = [boxes, scores], g.one("", ", iou = 0.37", ", iou = 0.11", ", iou = 0")
    if g.chance(0.3):
        ins.append(g.ids((N, n), 3))
        more += ", group = @2"
    if g.chance(0.3):
        more += ", least = -0.3"
    corner = "concat([slice(@0, 2, 0, 2), slice(@0, 2, 0, 2) + abs(slice(@0, 2, 2, 4))], 2)"
    sep = 0 if all(i.sep == 0 for i in ins) else None
    outs = [Value(g.name(), "i32", (N, count), (0, n - 1, 1), True, sep, n),
            Value(g.name(), "bool", (N, count), (0, 1, 1), True, sep, 1.0)]
    g.stmt("boxes", "&0, &1 = nms(%s, @1, %d%s)" % (corner if g.chance(0.8) else "@0", count, more), ins, outs)


@op("line", 2)
def along_one_axis(g):
    v = g.real((3, 3), lambda v: v.dims[0] == N and fixed(v, 1, 2) and v.dims[2] > 1,
               (N, g.extent(9), g.one(4, 5, 7, 9, 16)))
    c, length = v.dims[1:]
    k, s, o = g.one(1, 2, 3, 3, 4), g.one(1, 1, 2, 3), g.extent(17)
    transposed = g.chance(0.3)
    if transposed:
        p, q = g.rng.randint(0, k - 1), g.rng.randint(0, s - 1)
        long = (length - 1) * s - 2 * p + k + q
        text = "conv_transpose1d(@0, %d, %d%s" % (o, k, options_of(stride=(s, 1), pad=(p, 0), output_pad=(q, 0)))
    else:
        p, d = g.one(k // 2, 0, 1, 2), g.one(1, 1, 2)
        long = (length + 2 * p - d * (k - 1) - 1) // s + 1
        groups = g.one(*[x for x in range(1, c + 1) if c % x == 0]) if g.chance(0.4) else 1
        o = groups * g.one(1, 2, 3) if groups > 1 else o
        text = "conv1d(@0, %d, %d%s" % (o, k, options_of(stride=(s, 1), pad=(p, 0), dilation=(d, 1),
                                                         groups=(groups, 1)))
        if length + 2 * p < d * (k - 1) + 1:
            raise Unfit
    if long < 1 or extent(N, g.m.batch) * o * long * c * k > g.work:
        raise Unfit
    g.emit("line", text + g.one(")", ")", ", bias = false)"), [v], "f32", (N, o, long), v.sep if v.sep == 0 else None,
           v.mag * (2.0 * c / o) ** 0.5 + 0.1, dup=True)


def options_of(**pairs):
    """Arguments that are not what they are by default: name = (value, default)."""
    return "".join(", %s = %d" % (name, value) for name, (value, default) in pairs.items() if value != default)
