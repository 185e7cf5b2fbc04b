"""optimizers.py: optimizers and schedules beside their published formulas, in double, in NumPy.

The model is linear and a batch holds all examples, so that gradients are two lines of NumPy. The weight has two axes
and decays, the bias has one and does not."""
import math

import numpy as np

from recipe import build, load, log, run, test

NET = """model m(x: f32[N, 4], y: f32[N]) {
    loss mse(x |> dense(1) as head |> squeeze(1), y)
}
data { reader = npy(train = ["x.npy", "y.npy"], test = ["tx.npy", "ty.npy"]) }
train { batch = 40  SETTINGS }
"""
STEPS = 12


def gradients(p):
    x, y = np.load("x.npy").astype("f8"), np.load("y.npy").astype("f8")
    e = x @ p["head.weight"][0] + p["head.bias"][0] - y
    return {"head.weight": 2 / len(y) * (e @ x)[None], "head.bias": np.array([2 / len(y) * e.sum()])}


def rmsprop(rate, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    """torch.optim.RMSprop's documented algorithm."""
    def step(t, w, g, s, decays):
        g = g + (weight_decay * w if decays else 0)
        s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
        v = s["v"]
        if centered:
            s["g"] = alpha * s.get("g", 0) + (1 - alpha) * g
            v = v - s["g"] ** 2
        d = g / (np.sqrt(v) + eps)
        if momentum > 0:
            s["b"] = momentum * s.get("b", 0) + d
            d = s["b"]
        return w - rate * d
    return step


def lamb(rate, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01):
    """Algorithm 2 of You et al. 2019, phi the identity, the ratio for weights that decay."""
    def step(t, w, g, s, decays):
        s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
        s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g * g
        r = s["m"] / (1 - beta1 ** t) / (np.sqrt(s["v"] / (1 - beta2 ** t)) + eps) + (weight_decay * w if decays else 0)
        size, length = np.linalg.norm(w), np.linalg.norm(r)
        return w - rate * (size / length if decays and size > 0 and length > 0 else 1) * r
    return step


def walk(start, rule, steps=STEPS, decays=lambda name: name == "head.weight"):
    """Parameters after some steps from those of a checkpoint."""
    p = {k: start[k].astype("f8") for k in ("head.weight", "head.bias")}
    slots = {k: {} for k in p}
    for t in range(1, steps + 1):
        g = gradients(p)
        p = {k: rule(t, p[k], g[k], slots[k], decays(k)) for k in p}
    return p


def compare(settings, rule, **how):
    m = build(settings, net=NET)
    run(m, "train", "--steps", 0, "--save", "start.safetensors")
    run(m, "train", "--steps", STEPS, "--save", "end.safetensors")
    want, got = walk(load("start.safetensors")[0], rule, **how), load("end.safetensors")[0]
    for k in want:
        assert np.abs(want[k] - got[k]).max() < 2e-5, (settings, k, want[k], got[k])


@test
def rmsprop_is_pytorch_s():
    compare("optimizer = rmsprop(0.01)", rmsprop(0.01))
    compare("optimizer = rmsprop(0.01, alpha = 0.9, eps = 1e-3, weight_decay = 0.5, momentum = 0.8, centered = true)",
            rmsprop(0.01, 0.9, 1e-3, 0.5, 0.8, True))


@test
def lamb_is_its_paper_s():
    compare("optimizer = lamb(0.01)", lamb(0.01))
    compare("optimizer = lamb(0.05, beta1 = 0.8, beta2 = 0.9, eps = 1e-4, weight_decay = 0.5)",
            lamb(0.05, 0.8, 0.9, 1e-4, 0.5))
    compare("optimizer = lamb(0.05, weight_decay = 0)", lamb(0.05, weight_decay=0))
    compare("optimizer = lamb(0.05)  decay_all = true", lamb(0.05), decays=lambda name: True)


@test
def new_optimizers_go_on_where_they_stopped():
    for settings in ("optimizer = rmsprop(0.01, momentum = 0.5, centered = true)",
                     "optimizer = lamb(one_cycle(peak = 0.1))"):
        m = build(settings, net=NET)
        run(m, "train", "--steps", 9, "--save", "a.safetensors", "--sink", "off")
        run(m, "train", "--steps", 9, "--save", "b.safetensors", "--stop", 4)
        run(m, "train", "--resume", "b.safetensors", "--save", "b.safetensors")
        assert open("a.safetensors", "rb").read() == open("b.safetensors", "rb").read(), settings


def one_cycle(t, total, peak, pct_start=0.3, div_factor=25.0, final_div_factor=1e4, three_phase=False, linear=False):
    """torch.optim.lr_scheduler.OneCycleLR: get_lr."""
    low = peak / div_factor
    least = low / final_div_factor
    phases = [(pct_start * total - 1, low, peak)]
    if three_phase:
        phases.append((2 * pct_start * total - 2, peak, low))
        phases.append((total - 1, low, least))
    else:
        phases.append((total - 1, peak, least))
    start = 0
    for i, (end, a, b) in enumerate(phases):
        if t <= end or i == len(phases) - 1:
            f = (t - start) / (end - start)
            return (b - a) * f + a if linear else b + (a - b) / 2 * (math.cos(math.pi * f) + 1)
        start = end


@test
def one_cycle_is_pytorch_s():
    for text, args, total in (("peak = 0.1", {}, 100), ("peak = 0.1", {}, 7),
                              ("peak = 0.1, linear = true", {"linear": True}, 33),
                              ("0.3, 0.25, 10, 100, true", {"pct_start": 0.25, "div_factor": 10,
                                                            "final_div_factor": 100, "three_phase": True}, 50),
                              ("0.3, 0.4, 10, 100, true, true", {"pct_start": 0.4, "div_factor": 10,
                                                                 "final_div_factor": 100, "three_phase": True,
                                                                 "linear": True}, 50)):
        m = build("optimizer = sgd(one_cycle(%s))" % text, net=NET)
        run(m, "train", "--steps", total, "--no-save", "--no-eval", "--log", "l.jsonl")
        got = [o["rate"] for o in log("l.jsonl") if "step" in o]
        want = [one_cycle(t, total, 0.3 if text[0] == "0" else 0.1, **args) for t in range(total)]
        assert len(got) == total and max(abs(a - b) for a, b in zip(got, want)) < 1e-9, (text, got, want)
    run(m, "train", "--steps", 50, "--no-save", "--no-eval", "--log", "l.jsonl", "--rate", "0.7", "--set",
        "optimizer.rate.pct_start=0.2")
    args["pct_start"] = 0.2
    got = [o["rate"] for o in log("l.jsonl") if "step" in o]
    assert max(abs(a - one_cycle(t, 50, 0.7, **args)) for t, a in enumerate(got)) < 1e-9
