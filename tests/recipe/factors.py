"""factors.py: train.rates and train.decays: factors of rate and decay by parameter, beside NumPy."""
import subprocess

import numpy as np

from optimizers import NET, STEPS, gradients, lamb, rmsprop
from recipe import MANTOU, build, load, run, test


def sgd(rate, weight_decay=0.0):
    return lambda t, w, g, s, decays: w - rate * (g + weight_decay * w)


def adamw(rate, weight_decay):
    def step(t, w, g, s, decays):
        w = w - rate * weight_decay * w
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
        return w - rate * (s["m"] / (1 - 0.9 ** t)) / (np.sqrt(s["v"] / (1 - 0.999 ** t)) + 1e-8)
    return step


@test
def rates_and_decays_by_parameter():
    every = "  decay_all = true"
    for settings, weight, bias in (
            ("optimizer = sgd(0.01)  rates = [[\"head.weight\", 10]]", sgd(0.1), sgd(0.01)),
            ("optimizer = sgd(0.01)  rates = [[\"*.bias\", 0], [\"head\", 5]]", sgd(0.05), sgd(0)),
            ("optimizer = sgd(0.01)  rates = [[\"*\", 2], [\"head\", 5]]", sgd(0.02), sgd(0.02)),
            ("optimizer = sgd(0.05, weight_decay = 0.5)  decays = [[\"head.w*\", 3]]" + every, sgd(0.05, 1.5),
             sgd(0.05, 0.5)),
            ("optimizer = sgd(0.05, weight_decay = 0.5)  decays = [[\"*\", 0]]" + every, sgd(0.05), sgd(0.05)),
            ("optimizer = adamw(0.02, weight_decay = 0.5)  rates = [[\"*.bias\", 3]]  decays = [[\"*.weight\", 0.5]]"
             + every, adamw(0.02, 0.25), adamw(0.06, 0.5)),
            ("optimizer = adamw(0.02, weight_decay = 0.5)  decays = [[\"head.bias\", 0]]" + every, adamw(0.02, 0.5),
             adamw(0.02, 0)),
            ("optimizer = rmsprop(0.02, momentum = 0.5)  rates = [[\"head.b*s\", 3]]", rmsprop(0.02, momentum=0.5),
             rmsprop(0.06, momentum=0.5)),
            ("optimizer = lamb(0.02)  rates = [[\"head.weight\", 3]]", lamb(0.06), lamb(0.02))):
        m = build(settings, net=NET)
        run(m, "train", "--steps", 0, "--save", "start.safetensors")
        run(m, "train", "--steps", STEPS, "--save", "end.safetensors")
        start, got = load("start.safetensors")[0], load("end.safetensors")[0]
        rule = {"head.weight": weight, "head.bias": bias}
        p = {k: start[k].astype("f8") for k in rule}
        slots = {k: {} for k in rule}
        for t in range(1, STEPS + 1):
            g = gradients(p)
            p = {k: rule[k](t, p[k], g[k], slots[k], k == "head.weight") for k in p}
        for k in p:
            assert np.abs(p[k] - got[k]).max() < 2e-5, (settings, k, p[k], got[k])


@test
def what_is_no_factor():
    for setting, words in (("rates = [[\"haed\", 10]]",
                            "rates: no parameter begins with \"haed\"; did you mean \"head\"?"),
                           ("decays = [[\"x.*\", 10]]", "decays: no parameter begins with \"x.*\""),
                           ("rates = [[\"head\", -1]]", "train.rates is the integer -1, needs a number, 0 or more"),
                           ("rates = [\"head\", 1]", "needs a list of [pattern, factor], as in [[\"head.*\", 10]]"),
                           ("rates = 3", "train.rates is the integer 3, needs a list of [pattern, factor]")):
        with open("wrong.net", "w") as f:
            f.write(NET.replace("SETTINGS", setting))
        r = subprocess.run([MANTOU, "check", "wrong.net"], capture_output=True, text=True)
        assert r.returncode == 1 and words in r.stderr and "wrong.net:" in r.stderr, (setting, r.stderr)
