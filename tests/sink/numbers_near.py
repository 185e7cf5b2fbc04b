"""numbers_near.py: what a run left, compared: bit for bit with another, or within bounds that the precision gives.
Standard library only; test_sink.py and ../gpu use it."""
import array, math, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "runtime"))
import test_runtime as base
UNIT = {"f32": 2.0 ** -24, "bf16": 2.0 ** -8, "f16": 2.0 ** -11}    # half the distance of neighbours near 1


def bits(save):
    """A checkpoint's bytes and a log without its times."""
    lines = [{k: v for k, v in o.items() if "second" not in k and "_per_s" not in k} for o in base.log(save + ".log")]
    return open(save + ".st", "rb").read(), lines


def tensors(path):
    return {k: array.array("f", raw) for k, (v, raw) in base.load(path)[0].items() if v["dtype"] == "F32"
            and not k.startswith("loss_scale")}


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def losses(path):
    return [o["loss"] for o in base.steps(path)]


def near(precision, got, beside, truth, start):
    """Each tensor of the checkpoint GOT is near that of the interpreter in double, TRUTH. BESIDE, the CPU's, shows how
    far rounding takes a tensor in this model: three times that, and what sixteen roundings in a row make of a tensor's
    way from START, and four of the f32 numbers that hold it."""
    t = [tensors(p + ".st") for p in (got, beside, truth, start)]
    assert t[0].keys() == t[1].keys() == t[2].keys()
    moved = 0
    for k in t[0]:
        a, b, c, z = (x[k] for x in t)
        away, other, way = distance(a, c), distance(b, c), distance(c, z)
        bound = 3 * other + 16 * UNIT[precision] * way + 4 * UNIT["f32"] * distance(c, [0] * len(c))
        assert away <= bound, "%s: %.3g from the interpreter, the CPU's %.3g, the way %.3g" % (k, away, other, way)
        moved += way > 0
    assert moved > len(t[0]) / 2, "most tensors did not move"
    l = [losses(p + ".log") for p in (got, beside, truth)]
    assert len(l[0]) == len(l[1]) == len(l[2]) > 0
    worst = max(abs(b - c) for b, c in zip(l[1], l[2]))
    for a, c in zip(l[0], l[2]):
        assert abs(a - c) <= 3 * worst + 2 * UNIT[precision] * abs(c) + 4 * UNIT["f32"] * abs(
            c), "losses %s, CPU %s, interpreter %s" % tuple(l)
