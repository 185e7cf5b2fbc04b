"""net_gen.py: a random well-typed model of the .net language for a seed.

A pool of values grows by random operators of all groups; what nothing uses in the end goes into losses, metrics and
outputs. Seed modulo the number of groups names the group that comes first, so that consecutive seeds touch all of them.
Values stay small (`mag` is their usual size), arguments of log, sqrt and division away from zero, and what is not
continuous takes values of a grid alone."""
import re
from net_model import Follow, N
import net_places                                # more of net_ops.OPS
from net_ops import OPS, attempt, dense, random_op
from net_pool import Gen

GROUPS = sorted({o[0] for o in OPS})


# ---- losses, metrics, outputs, settings
def losses(g):
    """Values that nothing used yet go into losses or outputs; a few into metrics."""
    left = [v for v in g.pool if v.name not in g.used and v.name[0] != "w"]
    g.rng.shuffle(left)
    if not any(s.kind == "loss" for s in g.body) and not any(v.dtype == "f32" and v.grid is None for v in left):
        left.insert(0, g.real((1, 5)))
    done = 0
    for v in left:
        if v.dtype != "f32" or v.grid is not None:
            output(g, v)
            continue
        if done >= 5 or (done and g.chance(0.15)):
            output(g, v)
            continue
        done += 1
        pairs = [w for w in g.pool if w is not v and w.dtype == "f32" and w.dims == v.dims and not (w.dup and v.dup)]
        f = g.one("mean(square(@0))", "mean(square(@0 - 0.3))", "mean(tanh(@0))", "smooth_l1(@0, 0.37)",
                  "smooth_l1(@0, 0.21, beta = 0.5)", "mse(@0, 0.5)", "l1(@0, 300.731)", "mean(softplus(@0))")
        ins, w = [v], None
        if pairs and g.chance(0.5):
            w = g.one(*pairs)
            f, ins = g.one("mse(@0, @1)", "smooth_l1(@0, @1, beta = 0.7)", "binary_cross_entropy(@0, sigmoid(@1))",
                           "mean(square(@0 + 0.3 * @1))"), [v, w]
        scale = "%.2g * " % g.one(0.3, 0.1, 0.5) if g.chance(0.5) or v.mag > 3 else ""
        average = v.sep == 0 and (w is None or w.sep == 0)
        g.stmt("loss", "loss %s%s" % (scale, f), ins, [], "loss",
               average=average or (v.sep == "free" and (w is None or w.sep in (0, "free"))))
        if g.chance(0.35):
            name = g.name("metric")
            kind = g.one("mean(@0)", "mean(abs(@0))", "mean(square(@0))", "sqrt(mean(square(@0)) + 0.01)",
                         "sum(square(@0))", "max(abs(@0))", "mean(cast(@0 > 100, f32))")
            if kind.startswith("max") and v.dup:
                kind = "mean(@0)"
            g.stmt("metric", "metric %s = %s" % (name, kind), [v], [], "metric", name=name,
                   average=v.sep in (0, "free") and (kind[0] == "m" and kind[:3] != "max" or kind[:4] == "sqrt"))
        if g.chance(0.5):
            output(g, v)
    for w in [v for v in g.pool if v.name[0] == "w"]:
        if g.chance(0.1):
            g.stmt("loss", "loss 0.01 * sum(square(@0))", [w], [], "loss", average=True)
    for v in g.pool:
        if g.chance(0.1) and len(g.m.outputs()) < 4:
            output(g, v)
    if not g.m.outputs() and g.chance(0.9):
        output(g, g.one(*g.pool))


def output(g, v):
    if len(g.m.outputs()) >= 8 or any(v is s.ins[0] for s in g.m.outputs()):
        return
    name = g.name("out")
    g.stmt("output", "output %s = %s" % (name, "@0" if v.dtype not in ("bf16", "f16") else "cast(@0, f32)"), [v], [],
           "output", name=name)


def settings(g):
    m, s = g.m, g.m.settings
    rate = g.one("0.05", "0.02", "poly(from = 0.01, peak = 0.05, to = 0.001, warmup_steps = 1)",
                 "poly(peak = 0.04, power = 1.5)", "cosine(peak = 0.05)",
                 "cosine(from = 0.01, peak = 0.05, to = 0.01, warmup_epochs = 1)", "linear(peak = 0.05)",
                 "one_cycle(peak = 0.05, pct_start = 0.4)", "step(0.05, at = [1], factor = 0.3)")
    slow = rate.replace("0.0", "0.00")           # Adam's steps are of the rate's size
    decay = ", weight_decay = %s" % g.one("0.01", "0.1") if g.chance(0.4) else ""
    s["optimizer"] = g.one("sgd(%s%s)" % (rate, decay), "momentum(%s, momentum = 0.8%s)" % (rate, decay),
                           "momentum(%s%s, nesterov = true)" % (rate, decay),
                           "adam(%s, eps = 0.01%s)" % (slow, decay),
                           "adamw(%s, beta2 = 0.99, eps = 0.01%s)" % (slow, decay),
                           "rmsprop(%s, eps = 0.01%s%s)" % (slow, decay, g.one("", ", momentum = 0.5",
                                                                               ", centered = true")),
                           "lamb(%s, eps = 0.01%s)" % (slow, decay))
    s["epochs"] = 2
    s["seed"] = g.rng.randint(0, 2 ** 40)
    accumulate = g.one(1, 1, 1, 2, 3)
    if accumulate > 1:
        s["accumulate"] = accumulate
    if g.chance(0.4):
        s["clip_norm"] = g.one("1", "0.3", "5.0")
    if g.chance(0.2):
        s["decay_all"] = "true"
    if g.chance(0.2):
        s["average"] = "ema(decay = %s)" % g.one("0.9", "0.5")
    params = [v.name for v in g.pool if v.name[0] == "w"]
    calls = [k + "0" for k in ("dense", "conv2d", "layer_norm", "embedding")
             if any(re.search(r"\b%s\(@0" % k, x.text) and "weight" not in x.text and "repeat" not in x.text
                    for x in g.m.body)]
    if params + calls and g.chance(0.3):
        s["freeze"] = '["%s"]' % g.one(*params + calls)
    if g.chance(0.3):
        s["sink"] = g.one("off", "1", "2", "epoch")
    m.shuffle = g.chance(0.7)
    m.train_examples = m.batch * accumulate * 2 + g.rng.randrange(m.batch)
    rest = g.rng.randint(1, m.batch - 1)
    if any(isinstance(d, Follow) and d.div > 1 for st in m.statements() for v in st.outs for d in v.dims):
        rest = max(2, rest // 2 * 2) if m.batch > 2 else 0
    m.test_examples = m.batch * g.one(0, 1, 1, 2) + rest if not m.full_only else m.batch * 2
    m.test_examples = m.test_examples or m.batch


def generate(seed):
    g = Gen(seed)
    focus = GROUPS[seed % len(GROUPS)]
    first = [o[2] for o in OPS if o[0] == focus]
    for _ in range(2):
        for _ in range(20):
            if attempt(g, g.one(*first)):
                break
    for _ in range(g.one(1, 2, 3, 4, 5, 6, 8, 10, 14)):
        random_op(g)
    if not g.m.inputs or not any(v.dtype == "f32" and v.grid is None for v in g.pool):
        g.input_real((N, 5))
    if not any("dense" in s.text or "param" in s.text or "conv" in s.text or "norm" in s.text
               for s in g.m.statements()):
        attempt(g, dense)
    losses(g)
    settings(g)
    return g.m
