"""watch.py: train --watch: against NumPy on checkpoints, the norm that clip_norm reports, and infer's outputs."""
import json

import numpy as np

from recipe import NET, build, load, log, run, test

CLIP = "optimizer = momentum(rate = 0.02)  clip_norm = 1000"


def watched(path, step):
    return {(o["name"], o["number"]): o for line in log(path) if line.get("watch") == step for o in line["tensors"]}


def steps(path):
    return [line["watch"] for line in log(path) if "watch" in line]


@test
def watching_changes_no_bit():
    m = build(CLIP)
    run(m, "train", "--steps", 20, "--save", "a.st", "--log", "a.jsonl")
    for sink in ("off", "3", "epoch"):
        r = run(m, "train", "--steps", 20, "--save", "b.st", "--log", "b.jsonl", "--watch", "all", "--watch-every", 7,
                "--sink", sink)
        assert open("a.st", "rb").read() == open("b.st", "rb").read(), sink
        assert steps("b.jsonl") == [0, 7, 14], sink
        assert [o for o in log("a.jsonl") if "step" in o] == [o for o in log("b.jsonl") if "step" in o], sink
        assert r.stdout.count("head.weight ") == 3, r.stdout


@test
def parameters_are_those_of_the_checkpoints():
    m = build(CLIP)
    run(m, "train", "--steps", 8, "--stop", 6, "--save", "before.st", "--no-eval")
    run(m, "train", "--steps", 8, "--stop", 7, "--save", "after.st", "--no-eval", "--log", "w.jsonl", "--watch", "all",
        "--every", 6)
    before, after, seen = load("before.st")[0], load("after.st")[0], watched("w.jsonl", 6)
    names = [n for n in before if n + ".momentum" in before]
    assert sorted(names) == ["dense0.bias", "dense0.weight", "head.bias", "head.weight"]
    for name in names:
        w, d, o = before[name].astype("f8"), after[name].astype("f8") - before[name], seen[name, 0]
        assert o["kind"] == "parameter" and o["not_finite"] == 0
        for key, value in (("norm", np.sqrt((w * w).sum())), ("min", w.min()), ("max", w.max()),
                           ("zeros", (w == 0).mean()),
                           ("update_ratio", np.sqrt((d * d).sum() / (w * w).sum()))):
            assert abs(o[key] - value) <= 1e-6 * abs(value), (name, key, o[key], value)


def gradients_add_up(settings, args, tolerance):
    m = build(settings, args=args)
    run(m, "train", "--steps", 5, "--no-save", "--log", "w.jsonl", "--watch", "dense0,head", "--watch-every", 2)
    norms = {o["step"]: o["grad_norm"] for o in log("w.jsonl") if "step" in o}
    for step in (0, 2, 4):
        seen = watched("w.jsonl", step)
        got = sum(o["grad_norm"] ** 2 for o in seen.values() if o["kind"] == "parameter") ** 0.5
        assert len([o for o in seen.values() if "grad_norm" in o]) == 4, seen
        assert abs(got - norms[step]) <= tolerance * norms[step], (settings, args, step, got, norms[step])


@test
def gradients_make_the_norm_that_clipping_reports():
    gradients_add_up(CLIP, (), 1e-6)
    gradients_add_up(CLIP + "  accumulate = 3", (), 1e-6)
    gradients_add_up(CLIP + "  shards = 4", (), 1e-6)
    gradients_add_up(CLIP, ("--precision", "mixed"), 1e-2)
    gradients_add_up(CLIP, ("--precision", "f16"), 1e-2)
    gradients_add_up(CLIP, ("-O0",), 1e-6)
    gradients_add_up("optimizer = adamw(rate = 0.02)  clip_norm = 0.1", (), 1e-6)


@test
def activations_are_what_infer_computes():
    net = NET.replace("p = x |> dense(8) |> tanh |> dense(1)",
                      "h = x |> dense(8) |> relu\n    p = h |> dense(1)").replace("output p", "output h")
    m = build("optimizer = sgd(rate = 0)", net=net)
    run(m, "train", "--steps", 1, "--save", "a.st", "--no-eval")
    x = np.load("x.npy")
    np.save("x8.npy", x[:8])
    m2 = build("optimizer = sgd(rate = 0)", net=net.replace("data {", "data { shuffle = false "))
    run(m2, "train", "--weights", "a.st", "--steps", 1, "--no-save", "--no-eval", "--watch", "relu0", "--log",
        "w.jsonl")
    run(m2, "infer", "--weights", "a.st", "--input", "x=x8.npy", "--output", "h=h.npy")
    h, seen = np.load("h.npy").astype("f8"), watched("w.jsonl", 0)
    assert list(seen) == [("relu0", 0)], seen
    o = seen["relu0", 0]
    assert o["kind"] == "activation" and "grad_norm" not in o
    assert 0 < (h == 0).mean() < 1, "a case that shows nothing"
    for key, value in (("norm", np.sqrt((h * h).sum())), ("min", h.min()), ("max", h.max()),
                       ("zeros", (h == 0).mean())):
        assert abs(o[key] - value) <= 1e-6 * abs(value), (key, o[key], value)


@test
def what_is_not_finite_is_counted():
    np.save("bad.npy", np.where(np.arange(160).reshape(40, 4) == 5, np.inf, 0).astype("f4"))
    p = build("optimizer = sgd(rate = 0.1)", net=NET.replace('"x.npy"',
                                                             '"bad.npy"').replace("data {", "data { shuffle = false "))
    r = run(p, "train", "--steps", 1, "--allow-nan", "--no-save", "--no-eval", "--watch", "all", "--log", "w.jsonl")
    seen = watched("w.jsonl", 0)
    assert seen["dense0.weight", 0]["not_finite"] == 0 and seen["dense0.weight", 0]["grad_not_finite"] > 0, seen
    assert "of the gradient" in r.stdout


@test
def wrong_names_are_refused_before_anything_is_written():
    m = build(CLIP)
    for name, text in (("dens0", "did you mean dense0?"), ("head.wieght", "did you mean head.weight?"),
                       ("zzzzzz", "mantou check lists its layers"),
                       (",", "wants names"), ("dense0,nothing_like_it",
                                              "nothing_like_it: the model has no such layer")):
        r = run(m, "train", "--steps", 1, "--watch", name, "--log", "never.jsonl", status=1)
        assert text in r.stderr, (name, r.stderr)
    assert "goes with --watch" in run(m, "train", "--watch-every", 3, status=2).stderr
    ref = build(CLIP, args=("--target", "ref"))
    assert "for programs of target cpu" in run(ref, "train", "--steps", 1, "--watch", "all", status=1).stderr


@test
def a_resumed_run_goes_on_in_its_log():
    m = build(CLIP)
    common = ("--steps", 12, "--save", "r.st", "--log", "r.jsonl", "--watch", "head", "--watch-every", 3)
    run(m, "train", *common, "--log", "whole.jsonl", "--no-eval")
    run(m, "train", *common, "--stop", 8, "--every", 4, "--no-eval")
    with open("r.jsonl", "a") as f:                       # what a killed run may leave behind
        f.write(json.dumps({"watch": 9, "epoch": 1, "tensors": []}) + "\n")
    run(m, "train", *common, "--resume", "r.st", "--no-eval")
    assert steps("r.jsonl") == [0, 3, 6, 9]
    assert [o for o in log("r.jsonl") if "watch" in o] == [o for o in log("whole.jsonl") if "watch" in o]
