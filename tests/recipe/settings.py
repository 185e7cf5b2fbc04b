"""settings.py: --rate and --set: a program that is told a number computes as one that was built with it."""
import json

from recipe import NET, build, load, log, run, same, test

CASES = (   # what the file says, what is set, what the file would have said
    ("optimizer = sgd(0.1)", ("--rate", "0.03"), "optimizer = sgd(0.03)"),
    ("optimizer = sgd(0.1)", ("--set", "optimizer.rate=3e-2"), "optimizer = sgd(0.03)"),
    ("optimizer = sgd(0.1, weight_decay = 0.1)", ("--set", "optimizer.weight_decay=0"), "optimizer = sgd(0.1)"),
    ("optimizer = momentum(0.01, momentum = 0.9, weight_decay = 0.1)", ("--set", "optimizer.momentum=0.5", "--set",
                                                                        "optimizer.weight_decay=0.3"),
     "optimizer = momentum(0.01, momentum = 0.5, weight_decay = 0.3)"),
    ("optimizer = momentum(0.01, nesterov = true)", ("--set", "optimizer.momentum=0.3"),
     "optimizer = momentum(0.01, momentum = 0.3, nesterov = true)"),
    ("optimizer = adam(0.01, weight_decay = 0.1)", ("--set", "optimizer.weight_decay=0.7"),
     "optimizer = adam(0.01, weight_decay = 0.7)"),
    ("optimizer = adamw(0.01)", ("--set", "optimizer.weight_decay=0.7", "--rate", "0.02"),
     "optimizer = adamw(0.02, weight_decay = 0.7)"),
    ("optimizer = adamw(poly(peak = 0.1, warmup_steps = 4))", ("--rate", "0.05", "--set",
                                                               "optimizer.rate.warmup_steps=9", "--set",
                                                               "optimizer.rate.power=1",
                                                              "--set", "optimizer.rate.from=0.01", "--set",
                                                              "optimizer.rate.to=1e-3"),
     "optimizer = adamw(poly(from = 0.01, peak = 0.05, to = 0.001, power = 1, warmup_steps = 9))"),
    ("optimizer = sgd(step(0.1, at = [1, 2]))", ("--rate", "0.2", "--set", "optimizer.rate.factor=0.5"),
     "optimizer = sgd(step(0.2, at = [1, 2], factor = 0.5))"),
    ("optimizer = sgd(0.1)  clip_norm = 0.1", ("--set", "clip_norm=0.7"), "optimizer = sgd(0.1)  clip_norm = 0.7"),
    ("optimizer = sgd(0.1)  clip_norm = 0.1  accumulate = 2", ("--set", "clip_norm=0.7"),
     "optimizer = sgd(0.1)  clip_norm = 0.7  accumulate = 2"),
)


@test
def set_is_as_good_as_built():
    for file, args, other in CASES:
        for sink in ("epoch", "off"):
            run(build(file), "train", "--epochs", 3, "--save", "a.safetensors", "--sink", sink, *args)
            run(build(other), "train", "--epochs", 3, "--save", "b.safetensors")
            same("a.safetensors", "b.safetensors", (file, args))
        run(build(file), "train", "--epochs", 3, "--save", "c.safetensors")
        a, c = load("a.safetensors")[0], load("c.safetensors")[0]
        assert any((a[k] != c[k]).any() for k in a), "a case that shows nothing: %s" % (args,)


@test
def the_interpreter_is_told_too():
    run(build(CASES[3][0], args=("--target", "ref")), "train", "--steps", 4, "--save", "a.safetensors", *CASES[3][1])
    run(build(CASES[3][2]), "train", "--steps", 4, "--save", "b.safetensors")
    a, b = load("a.safetensors")[0], load("b.safetensors")[0]
    assert max(abs(a[k] - b[k]).max() for k in a) < 1e-6


@test
def the_log_and_the_checkpoint_say_it():
    m = build("optimizer = momentum(0.01, weight_decay = 0.1)")
    run(m, "train", "--epochs", 1, "--save", "a.safetensors", "--log", "l.jsonl")
    meta = load("a.safetensors")[1]
    said = {name: float(x) for name, x in (word.split("=") for word in meta["settings"].split())}
    assert said == {"optimizer.rate": 0.01, "optimizer.momentum": 0.9, "optimizer.weight_decay": 0.1}, meta
    assert "set" not in meta and not [o for o in log("l.jsonl") if "settings" in o]
    run(m, "train", "--epochs", 1, "--save", "a.safetensors", "--log", "l.jsonl", "--rate", "0.5", "--set",
        "optimizer.weight_decay=0.25")
    assert load("a.safetensors")[1]["set"] == "optimizer.rate optimizer.weight_decay"
    assert log("l.jsonl")[0] == {"settings": {"optimizer.rate": 0.5, "optimizer.momentum": 0.9,
                                              "optimizer.weight_decay": 0.25}, "from": 0}
    assert log("l.jsonl")[1]["rate"] == 0.5
    assert json.loads(run(m, "info", "--json").stdout)["settings"] == {"optimizer.rate": 0.01,
                                                                       "optimizer.momentum": 0.9,
                                                                       "optimizer.weight_decay": 0.1}
    assert "optimizer.weight_decay = 0.1\n" in run(m, "info").stdout


@test
def a_resumed_run_keeps_what_was_set():
    m = build("optimizer = momentum(0.01, weight_decay = 0.1)")
    args = ("--rate", "0.05", "--set", "optimizer.momentum=0.8")
    run(m, "train", "--epochs", 4, "--save", "a.safetensors", *args)
    for again in (), args:
        run(m, "train", "--epochs", 4, "--save", "b.safetensors", "--stop", 7, *args)
        r = run(m, "train", "--resume", "b.safetensors", "--save", "b.safetensors", *again)
        same("a.safetensors", "b.safetensors", again)
        assert "note" not in r.stderr, r.stderr
    run(m, "train", "--epochs", 4, "--save", "b.safetensors", "--stop", 7, *args)
    r = run(m, "train", "--resume", "b.safetensors", "--save", "b.safetensors", "--rate", "0.02")
    assert "note: optimizer.rate is 0.02 from step 7 on; b.safetensors was made with 0.05" in r.stderr, r.stderr
    assert "momentum" not in r.stderr
    other = build("optimizer = momentum(0.01, weight_decay = 0.2)")
    run(m, "train", "--epochs", 4, "--save", "b.safetensors", "--stop", 7)
    r = run(other, "train", "--resume", "b.safetensors", "--save", "c.safetensors")
    assert "note: optimizer.weight_decay is 0.2 from step 7 on; b.safetensors was made with 0.1" in r.stderr, r.stderr


@test
def what_cannot_be_set():
    m = build("optimizer = momentum(0.01)")
    for args, status, words in (
            (("--set", "momentum"), 2, "--set wants NAME=X, not 'momentum'"),
            (("--set", "optimizer.momentun=1"), 1, "did you mean optimizer.momentum?"),
            (("--set", "optimizer.weight_decay=0.1"), 1, "or gives as 0, is built in"),
            (("--set", "optimizer.momentum=1"), 1, "wants a number from 0 to below 1, not '1'"),
            (("--rate", "-1"), 1, "--rate: optimizer.rate wants a number, 0 or more, not '-1'"),
            (("--rate", "nan"), 1, "not 'nan'"), (("--rate", "1e999"), 1, "not '1e999'"),
            (("--rate", "0.1x"), 1, "not '0.1x'")):
        assert words in run(m, "train", *args, status=status).stderr, args


@test
def no_key_of_the_log_is_there_twice():
    """Metrics may be called as what a step's object holds beside them."""
    names = "step", "epoch", "rate", "scale", "grad_norm", "seconds"
    net = NET.replace("metric middle = mean(p)", "\n".join("metric %s = mean(p) + %d" % (n, k)
                                                          for k, n in enumerate(names, 100)))
    m = build("optimizer = sgd(0.1)  clip_norm = 1  precision = f16", net)
    run(m, "train", "--epochs", 1, "--no-save", "--log", "keys.jsonl")

    def object_of(pairs):
        assert len(pairs) == len(dict(pairs)), pairs
        return dict(pairs)
    lines = [json.loads(line, object_pairs_hook=object_of) for line in open("keys.jsonl")]
    assert [o["step"] for o in lines[:-1]] == [0, 1, 2, 3, 4] and all(o["rate"] == 0.1 for o in lines[:-1]), lines
    for o, own in [(o, names[:-1]) for o in lines[:-1]] + [(lines[-1][k], ("grad_norm",)) for k in ("train", "eval")]:
        for k, n in enumerate(names, 100):
            assert abs(o["metric." + n if n in own else n] - k) < 5, (n, o)
