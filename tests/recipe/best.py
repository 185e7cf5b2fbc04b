"""best.py: --keep best, --by, --stop-after-worse."""
import json
import os

from recipe import NET, build, epochs, load, run, test

SETTINGS = "optimizer = momentum(rate = 0.3)"     # so large that evaluations get better and worse


def clean():
    for name in os.listdir("."):
        if "safetensors" in name:
            os.remove(name)


def best_epoch(values, largest):
    """Index of the first best value."""
    return max(range(len(values)), key=lambda i: (values[i] if largest else -values[i], -i))


@test
def the_best_by_any_metric_is_kept():
    m = build(SETTINGS)
    for by, key, largest in (("loss", "loss", False), ("mae", "mae", False), ("middle:max", "middle", True),
                             ("middle:min", "middle", False)):
        clean()
        r = run(m, "train", "--keep", "best", "--by", by, "--log", "l.jsonl", "--save", "s.safetensors")
        lines = epochs("l.jsonl")
        values = [o["eval"][key] for o in lines]
        best = best_epoch(values, largest)
        assert 0 < best < 11 or by == "middle:max", "a case that shows nothing"
        assert load("s.best.safetensors")[1]["step"] == str(5 * (best + 1)), (by, best)
        assert load("s.safetensors")[1]["step"] == "60"
        marked = [o.get("best", False) for o in lines]
        assert marked == [i == best_epoch(values[:i + 1], largest) for i in range(12)], (by, marked)
        assert "after epoch %d: " % (best + 1) in r.stderr, r.stderr
        got = json.loads(run(m, "eval", "--data", ".", "--weights", "s.best.safetensors", "--json").stdout)
        got = got["loss"] if key == "loss" else got["metrics"][key]
        assert abs(got - values[best]) < 1e-7 * max(1, abs(values[best])), (by, got, values[best])


@test
def a_resumed_run_judges_as_if_it_had_not_stopped():
    m = build(SETTINGS)
    clean()
    run(m, "train", "--keep", "best", "--save", "a.safetensors", "--log", "a.jsonl")
    for stop in (3, 5, 17, 30, 45):
        run(m, "train", "--keep", "best", "--save", "b.safetensors", "--log", "b.jsonl", "--stop", stop)
        run(m, "train", "--keep", "best", "--save", "b.safetensors", "--log", "b.jsonl", "--resume", "b.safetensors")
        for name in ("%s.safetensors", "%s.best.safetensors"):
            assert open(name % "a", "rb").read() == open(name % "b", "rb").read(), (stop, name)
        assert [o.get("best") for o in epochs("a.jsonl")] == [o.get("best") for o in epochs("b.jsonl")], stop
        assert not os.path.exists("b.best.safetensors~"), "what a resumed run finds there is its own"
        os.remove("b.safetensors"), os.remove("b.best.safetensors")


@test
def what_another_run_kept_is_kept():
    m = build(SETTINGS)
    clean()
    run(m, "train", "--keep", "best", "--save", "s.safetensors", "--epochs", 1)
    old = open("s.best.safetensors", "rb").read()
    run(m, "train", "--keep", "best", "--save", "s.safetensors", "--epochs", 1, "--seed", 5)
    assert open("s.best.safetensors~", "rb").read() == old
    r = run(m, "train", "--resume", "s.safetensors", "--replan", "--epochs", 2, "--keep", "best", "--by", "mae",
            "--save", "s.safetensors")
    assert "judged by loss:min: what is best begins anew" in r.stderr


@test
def an_early_stop():
    m = build(SETTINGS)
    clean()
    run(m, "train", "--no-save", "--log", "a.jsonl")
    values = [o["eval"]["loss"] for o in epochs("a.jsonl")]
    for patience in (1, 2, 4, 20):
        best, worse, end = None, 0, len(values)
        for i, v in enumerate(values):
            worse = 0 if best is None or v < best else worse + 1
            best = v if worse == 0 else best
            if worse == patience:
                end = i + 1
                break
        r = run(m, "train", "--stop-after-worse", patience, "--log", "b.jsonl", "--save", "s.safetensors")
        assert len(epochs("b.jsonl")) == end, (patience, end)
        assert load("s.safetensors")[1]["step"] == str(5 * end) and load("s.safetensors")[1]["total_steps"] == "60"
        assert ("stopped after step %d of 60" % (5 * end) in r.stderr) == (end < 12)
        assert not os.path.exists("s.best.safetensors")
    r = run(m, "train", "--stop-after-worse", 1, "--save", "s.safetensors")
    step = load("s.safetensors")[1]["step"]
    run(m, "train", "--stop-after-worse", 1, "--save", "s.safetensors", "--resume", "s.safetensors")
    assert load("s.safetensors")[1]["step"] == step, "it stays stopped"
    run(m, "train", "--save", "s.safetensors", "--resume", "s.safetensors")
    assert load("s.safetensors")[1]["step"] == "60", "without the option it goes on"


@test
def what_cannot_be_judged():
    m = build(SETTINGS)
    for args, status, words in (
            (("--keep", "worst"), 2, "--keep wants best, not 'worst'"),
            (("--keep", "best", "--no-save"), 2, "exclude each other"),
            (("--stop-after-worse", "2", "--no-eval"), 2, "--no-eval leaves out what --stop-after-worse judges"),
            (("--by", "mae"), 2, "--by goes with --keep best or --stop-after-worse"),
            (("--keep", "best", "--by", "midle"), 1, "the evaluation has no such metric; did you mean middle?"),
            (("--keep", "best", "--by", "middle"), 1, "--by middle:min or --by middle:max says so"),
            (("--keep", "best", "--by", "mae:mean"), 1, "after the metric comes :min or :max")):
        assert words in run(m, "train", *args, status=status).stderr, args
    m = build(SETTINGS, net=NET.replace("tx.npy", "none.npy"))
    assert "none.npy" in run(m, "train", "--keep", "best", status=1).stderr
    r = run(m, "train", "--keep", "best", "--epochs", 1, "--synthetic", "--quiet")
    assert r.stdout == r.stderr == "", r
