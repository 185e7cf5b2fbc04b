"""average.py: train.average = ema(d): averages are those of the parameters after each update, evaluation reads them."""
import json

import numpy as np

from recipe import NET, build, load, run, same, save, test

# a convolution, whose weight lies in another order, an embedding, whose rows alone are updated, statistics
MIXED = """model m(x: f32[N, 4], y: f32[N]) {
    h = reshape(concat([x, x, x, x], axis = 1), [N, 1, 4, 4]) |> conv2d(3, 3, pad = 1) |> batch_norm |> relu |> flatten
    e = cast(y > 0, i32) |> embedding(4, 5)
    p = concat([h, e], axis = 1) |> dense(1) as head |> squeeze(1)
    loss mse(p, y)
    output p
}
data { reader = npy(train = ["x.npy", "y.npy"], test = ["tx.npy", "ty.npy"]) }
train { batch = 8  epochs = 2  SETTINGS }
"""


def averages(plain, d, steps, *args):
    """Of the parameters after each update of the program without averages."""
    mean = {}
    for t in range(1, steps + 1):
        run(plain, "train", "--stop", t, "--save", "w.safetensors", "--no-eval", "--quiet", *args)
        w = load("w.safetensors")[0]
        for k in w:
            if k.endswith((".weight", ".bias")):
                mean[k] = w[k].astype("f8") if t == 1 else d * mean[k] + (1 - d) * w[k]
    return mean


@test
def averages_are_those_of_the_parameters():
    for net, recipe in ((NET, "optimizer = adam(0.05)"),
                        (NET, "optimizer = momentum(0.05)  accumulate = 2  clip_norm = 1"),
                        (MIXED, "optimizer = sgd(0.05)"),
                        (MIXED, "optimizer = adam(0.05)  freeze = [\"head\"]")):
        plain, with_it = build(recipe, net=net), build(recipe + "  average = ema(0.8)", net=net)
        want = averages(plain, 0.8, 5)
        run(plain, "train", "--stop", 5, "--save", "a.safetensors")
        run(with_it, "train", "--stop", 5, "--save", "b.safetensors")
        a, b = load("a.safetensors")[0], load("b.safetensors")[0]
        frozen = "head." if "freeze" in recipe else "none"
        assert {k + ".average" for k in want if not k.startswith(frozen)} == b.keys() - a.keys(), (
            recipe, b.keys() - a.keys())
        for k in a:
            assert a[k].tobytes() == b[k].tobytes() or (net is MIXED and np.abs(a[k] - b[k]).max()
                                                        < 1e-6), (recipe, k, "training is what it was")
        for k in want:
            if not k.startswith(frozen):
                assert np.abs(want[k] - b[k + ".average"]).max() < 1e-5, (recipe, k, want[k], b[k + ".average"])


@test
def evaluation_and_inference_read_them():
    for net in NET, MIXED:
        recipe = "optimizer = momentum(0.05)"
        plain, with_it = build(recipe, net=net), build(recipe + "  average = ema(0.8)", net=net)
        r = run(with_it, "train", "--save", "b.safetensors", "--log", "l.jsonl")
        b = load("b.safetensors")[0]
        save("c.safetensors", {k: b.get(k + ".average", v) for k, v in b.items()
                               if not k.endswith((".average", ".momentum"))})
        figures = [json.loads(run(p, "eval", "--data", ".", "--weights", w, "--json").stdout)["loss"]
                   for p, w in ((with_it, "b.safetensors"), (plain, "c.safetensors"), (with_it, "c.safetensors"),
                                (plain, "b.safetensors"))]
        last = [json.loads(line) for line in open("l.jsonl")][-1]["eval"]["loss"]
        assert figures[0] == figures[1] == figures[2] != figures[3], figures
        assert abs(last - figures[0]) < 1e-6 * abs(last), (last, figures)
        for program, weights, name in (with_it, "b.safetensors", "p0.npy"), (plain, "c.safetensors", "p1.npy"):
            inputs = ["--input", "x=tx.npy"] + (["--input", "y=ty.npy"] if net is MIXED else [])
            run(program, "infer", "--weights", weights, *inputs, "--output", "p=" + name)
        assert np.load("p0.npy").tobytes() == np.load("p1.npy").tobytes()


@test
def averages_are_resumed():
    for settings, args in (("optimizer = adam(0.05)  average = ema(0.9)", ()),
                           ("optimizer = adam(0.05)  average = ema(0.9)", ("--precision", "f16"))):
        m = build(settings, net=MIXED, args=args)
        run(m, "train", "--save", "a.safetensors")
        for sink in "off", "epoch":
            run(m, "train", "--save", "b.safetensors", "--stop", 3, "--sink", sink)
            run(m, "train", "--resume", "b.safetensors", "--save", "b.safetensors", "--sink", sink)
            same("a.safetensors", "b.safetensors", (settings, args, sink))
    plain = build("optimizer = adam(0.05)", net=MIXED)
    run(plain, "train", "--save", "b.safetensors", "--stop", 3)
    m = build("optimizer = adam(0.05)  average = ema(0.9)", net=MIXED)
    r = run(m, "train", "--resume", "b.safetensors", "--save", "c.safetensors", "--stop", 4)
    assert "note: b.safetensors holds no averages: they begin as the parameters" in r.stderr, r.stderr
    b, c = load("b.safetensors")[0], load("c.safetensors")[0]
    assert np.abs(0.9 * b["head.weight"] + 0.1 * c["head.weight"] - c["head.weight.average"]).max() < 1e-6


@test
def the_interpreter_averages_too():
    settings = "optimizer = momentum(0.05)  average = ema(0.9)"
    run(build(settings, net=MIXED), "train", "--steps", 4, "--save", "a.safetensors")
    run(build(settings, net=MIXED, args=("--target", "ref")), "train", "--steps", 4, "--save", "b.safetensors")
    a, b = load("a.safetensors")[0], load("b.safetensors")[0]
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for k in a:
        assert np.abs(a[k] - b[k]).max() < 1e-4 * max(1, np.abs(a[k]).max()), (k, a[k], b[k])


@test
def the_decay_is_a_setting_of_the_run():
    a, b = build("average = ema(0.9)"), build("average = ema(0.5)")
    run(a, "train", "--epochs", 1, "--save", "a.safetensors", "--set", "average.decay=0.5")
    run(b, "train", "--epochs", 1, "--save", "b.safetensors")
    same("a.safetensors", "b.safetensors", "the decay set")
