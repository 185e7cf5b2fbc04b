#!/usr/bin/env python3
"""`mantou tune`: test_tune.py [TEST...] prints FAIL lines and the counts. $MANTOU is the compiler, $LONG adds kills and
seeds, $KILLS says how many kills.

The model is tiny.net. Costs of kernels are planted, so the kernels that must win are known: the cheapest of
those that --dry-run lists. Each test is a function test_*; `expect` counts."""

import contextlib
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

mantou = os.environ["MANTOU"]
long = bool(os.environ.get("LONG"))
net = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny.net")
arch = ["--arch", "x86-64-v3"]
few = ["--trials", "36"]
passed, failed = 0, 0


def expect(name, good, detail=""):
    global passed, failed
    passed += bool(good)
    failed += not good
    if not good:
        print("FAIL tune: %s%s" % (name, ": " + str(detail)[:600] if detail != "" else ""))


def call(*args, **more):
    return subprocess.run(args, capture_output=True, text=True, timeout=900, **more)


class Place:
    """A folder with the model, and what may be tried there: of each key its own kernel and the others."""

    def __init__(self, folder):
        self.folder = folder
        self.net = os.path.join(folder, "tiny.net")
        self.file = os.path.join(folder, "tiny.tune")
        shutil.copy(net, self.net)
        self.keys = self.listed()

    def listed(self, *args):
        keys, key = {}, None
        for line in call(mantou, "tune", self.net, *arch, *few, "--dry-run", "--threads", "1",
                         *args).stdout.splitlines():
            if line.startswith("cpu "):
                key = line.split("  (")[0]
                keys[key] = []
            elif key:
                keys[key].append(line.split()[0])
        return keys

    def costs(self, planted, name="costs", noise=0.0, more=""):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write("noise %g\n%s" % (noise, more))
            for kernel, us in planted.items():
                f.write("cost %g %s\n" % (us, kernel))
        return path

    def command(self, costs, *args):
        """choices of passes take most of a search, and are what test_choices is of: without --level they are left
        out"""
        if "--level" not in args:
            args = ("--level", "kernels") + args
        return [mantou, "tune", self.net, *arch, "--costs", costs, "--budget", "1h", "--threads", "1", *few, *args]

    def tune(self, costs, *args):
        return call(*self.command(costs, *args))

    def clean(self):
        for name in os.listdir(self.folder):
            if name.startswith("tiny.tune"):
                os.unlink(os.path.join(self.folder, name))

    def text(self):
        return open(self.file).read() if os.path.exists(self.file) else ""

    def journal(self):
        """lines of the races, from the search's journal"""
        return [x for line in open(self.file + ".log") for x in json.loads(line).get("lines", [])]

    def left(self):
        """what a search has left beside its file and journal"""
        known = {"tiny.net", "tiny.tune", "tiny.tune.log"}
        return [x for x in os.listdir(self.folder) if x not in known and x.startswith(("tiny", "."))]


def kernels(text):
    """key to kernel of a tuning file, without versions"""
    out = {}
    for line in text.splitlines():
        if " : " in line and " lock " not in line:
            key, value = line.split(" : ")
            out[key] = re.sub(r"\.\d+{", "{", value.split(" ")[0])
    return out


def plant(place, seed, low=40, high=400):
    """A cost for every kernel that is known, and the cheapest of each key, None if that is its own."""
    r = random.Random(seed)
    cost, best = {}, {}
    for list_ in place.keys.values():
        for kernel in list_:
            cost.setdefault(kernel, r.uniform(low, high))
    for list_ in place.keys.values():
        cost[list_[0]] = r.uniform(0.7, 1) * high
    for key, list_ in place.keys.items():
        at = min(list_, key=lambda k: cost[k])
        best[key] = None if cost[at] > 0.98 * cost[list_[0]] else at
    return cost, best


# ---------------------------------------------------------------- what is found
def test_planted(place):
    for seed in range(6 if long else 2):
        place.clean()
        cost, best = plant(place, seed)
        done = place.tune(place.costs(cost))
        found = kernels(place.text())
        want = {key: kernel for key, kernel in best.items() if kernel}
        expect("planted kernels are found, seed %d" % seed, done.returncode == 0, done.stderr)
        # later rounds may find a neighbour that costs 100, as whatever is not planted does
        wrong = {k: (v, found.get(k)) for k, v in want.items() if found.get(k) != v and cost.get(found.get(k), 100)
                 > cost[v]}
        expect("the cheapest of each, seed %d" % seed, want and not wrong, wrong)
    # an exhaustive race with noise: within 2 % of the best
    for seed in range(4 if long else 1):
        place.clean()
        cost, best = plant(place, 100 + seed)
        phases = "steps 30..60 all x3\nsteps 90..110 products x2\n"
        done = place.tune(place.costs(cost, noise=0.1, more=phases), "--seed", str(seed + 1))
        found = kernels(place.text())
        far = {}
        for key, list_ in place.keys.items():
            least = min([cost[k] for k in list_])
            has = cost.get(found.get(key, list_[0]), 100)
            if has > 1.03 * least:
                far[key] = (found.get(key), has, least)
        expect("with noise and phases, seed %d" % seed, done.returncode == 0 and len(far) <= 1,
               (far, done.stderr[-300:]))


def test_again(place):
    """A second search on the file that was written changes no byte; nothing to win writes none."""
    place.clean()
    cost, _ = plant(place, 7)
    table = place.costs(cost, noise=0.02)
    first = place.tune(table, "--json", "--level", "all")
    text = place.text()
    report = json.loads(first.stdout)
    expect("--json", report["written"] and report["final"]["low"] > 0 and report["records"], first.stdout)
    expect("records of the report are those of the file", {r["record"]: r["kernel"] for r in report["records"]}
           == kernels(text))
    expect("states are equal", report["final"]["states"] == "equal")
    expect("sorted by bytes, with a lock", sorted(text.splitlines()) == text.splitlines() and " lock tiny train "
           in text, text)
    layer = call(mantou, "explain", place.net, *arch, "stem").stdout
    expect("explain LAYER says what was tried", "the program's own" in layer and re.search(r"; gains [0-9.]+ %", layer),
           layer)
    second = place.tune(table, "--seed", "5")
    expect("a second search changes nothing", second.returncode == 0 and place.text() == text, second.stderr)
    expect("and says so", "nothing was won: the file stays as it is" in second.stderr, second.stderr)
    expect("nothing is left over", not place.left(), place.left())
    built = call(mantou, "build", place.net, *arch, "--locked", "-o", os.path.join(place.folder, "program"))
    expect("build --locked", built.returncode == 0, built.stderr)
    verified = place.tune(table, "--verify")
    expect("--verify", verified.returncode == 0 and "lock      holds" in verified.stderr, verified.stderr)
    edited = re.sub(r"states=[0-9a-f]{4}", "states=0000", text)
    open(place.file, "w").write(edited)
    verified = place.tune(table, "--verify")
    expect("--verify of other states", verified.returncode == 1 and "the lock's states are" in verified.stderr,
           verified.stderr)
    open(place.file, "w").write("".join(x + "\n" for x in text.splitlines() if " lock " not in x))
    verified = place.tune(table, "--verify")
    expect("--verify makes a lock", verified.returncode == 0 and place.text() == text, verified.stderr)
    place.clean()
    done = place.tune(place.costs({}), "--level", "all")
    expect("nothing to win", done.returncode == 0 and not os.path.exists(place.file), done.stderr)
    key, list_ = next(iter(place.keys.items()))
    worse = "%s : %s ; us=1 bits=same\n" % (key, re.sub("{", ".1{", list_[2]))
    open(place.file, "w").write(worse)
    done = place.tune(place.costs({list_[2]: 300}))
    expect("a bad record goes", done.returncode == 0 and kernels(place.text()).get(key) != list_[2], place.text())


def test_choices(place):
    """Choices of passes that a file has the wrong way are turned back; with --level kernels they stay."""
    shutil.copy(os.path.join(os.path.dirname(net), "choices.net"), place.net)
    place.clean()
    table = place.costs({})
    records = json.loads(call(mantou, "info", place.net, *arch, "--json").stdout)["choices"]
    wrong = [r.replace("take=1", "take=0") for r in records if " fuse.prologue " in r and "take=1" in r]
    expect("the model has choices", len(wrong) >= 4, records)
    bad = "".join(sorted(r + "\n" for r in wrong))
    open(place.file, "w").write(bad)
    done = place.tune(table, "--level", "kernels", "--trials", "2")
    expect("--level kernels", done.returncode == 0 and place.text() == bad and "choices " not in done.stderr,
           done.stderr)
    key = records[0].split(" fuse.")[0].split(" layout.")[0].split(" reorder.")[0]
    open(place.file, "w").write("%s rates : rates.1{memory=2e11,map=3e10,start=1e-6}\n" % key)
    done = place.tune(table, "--level", "graph")
    expect("rates that are far off go", done.returncode == 0 and place.text() and " rates : " not in place.text(),
           done.stderr)
    open(place.file, "w").write(bad)
    done = place.tune(table, "--level", "graph", "--json")
    left = [x for x in place.text().splitlines() if " fuse.prologue " in x]
    expect("--level graph", done.returncode == 0 and len(left) < len(wrong) / 2, place.text())
    expect("bad choices go, nothing is put in", set(left) <= set(wrong) and json.loads(done.stdout)["written"],
           place.text())


def test_graphs(place):
    """Evaluation and inference race, too; records of one graph leave the states in the locks of others."""
    place.clean()
    cost, _ = plant(place, 3)
    place.tune(place.costs(cost))
    train = place.text()
    states = re.findall(r"lock tiny train .*states=(\w+)", train)
    expect("a lock of training", len(states) == 1, train)
    train_keys, place.keys = place.keys, place.listed("--graph", "infer")
    expect("other kernels", place.keys and all("[N<=" in k for k in place.keys)
           and not set(place.keys) & set(train_keys), place.keys)
    cost, best = plant(place, 41)
    wrong = sorted(k for list_ in place.keys.values() for k in list_[1:])[3]
    for graph in ("infer", "eval"):
        open(place.file, "w").write(train)
        for name in (".log", ".log.race"):
            if os.path.exists(place.file + name):
                os.unlink(place.file + name)
        done = place.tune(place.costs(cost, more="fault wrong %s\n" % wrong), "--graph", graph, "--json")
        found = kernels(place.text())
        want = {key: min([k for k in place.keys[key] if k != wrong], key=lambda k: cost[k]) for key in best}
        bad = {k: (v, found.get(k)) for k, v in want.items() if v != place.keys[k][0] and cost.get(found.get(k), 100)
               > cost[v]}
        expect("kernels of %s" % graph, done.returncode == 0 and not bad and want, (bad, done.stderr))
        report = json.loads(done.stdout) if done.returncode == 0 else {}
        expect("a wrong one is out, %s" % graph, report.get("failures", {}).get("wrong") == 1, report.get("failures"))
        expect("records of training stay, %s" % graph, kernels(train).items() <= found.items())
        expect("locks of both, %s" % graph, re.findall(r"lock tiny train .*states=(\w+)", place.text()) == states
            and " lock tiny %s " % graph in place.text(), place.text())
        built = call(mantou, "build", place.net, *arch, "--locked", "-o", os.path.join(place.folder, "program"))
        expect("build --locked, %s" % graph, built.returncode == 0, built.stderr)
        for which in ("train", graph):
            done = place.tune(place.costs(cost), "--verify", "--graph", which)
            expect("--verify of %s after %s" % (which, graph), "lock      holds" in done.stderr, done.stderr)
    bench = call(os.path.join(place.folder, "program"), "bench", "--mode", "eval", "--synthetic", "--steps", "1",
                 "--json")
    expect("bench --mode eval", {x["name"] for x in json.loads(bench.stdout)["results"]} == {"loss", "logits"},
           bench.stdout + bench.stderr)
    place.clean()
    program, results = os.path.join(place.folder, "prepared"), os.path.join(place.folder, "results")
    place.tune(place.costs(cost), "--prepare", program, "--graph", "infer")
    call(program, "race", "--graph", "infer", "--costs", place.costs(cost), "--threads", "1", "-o", results)
    done = place.tune(place.costs(cost), "--results", results, "--graph", "infer")
    expect("--results of inference", done.returncode == 0 and kernels(place.text()), done.stderr)
    done = call(program, "race")
    expect("its training has nothing to race", done.returncode == 1 and "no kernel of the training step" in done.stderr,
           done.stderr)
    place.clean()
    text = open(place.net).read()
    open(place.net, "w").write(text[: text.index("train {")])
    done = place.tune(place.costs(cost), "--graph", "infer", "--batch", "8")
    expect("a file without a section train", done.returncode == 0 and kernels(place.text()), done.stderr)
    done = call(mantou, "tune", place.net, "--graph", "update")
    expect("--graph update", done.returncode == 2 and "needs train, eval or infer" in done.stderr, done.stderr)


def test_unpredicted(place):
    """Choices that no cost decides, turned back where a file has them the wrong way: what is made again where it is
    read. Those that change bits need leave. With costs from a table bytes are what counts."""
    shutil.copy(os.path.join(os.path.dirname(net), "choices.net"), place.net)
    place.clean()
    lines = json.loads(call(mantou, "info", place.net, *arch, "--json").stdout)["choices"]
    wrong = [r.replace("take=1", "take=0") for r in lines if " fuse.recompute " in r and "take=1" in r
             and "N<=" not in r]
    reduced = [r.replace("take=1", "take=0") for r in lines if " fuse.reduce " in r and "take=1" in r
               and "N<=" not in r]
    expect("the model has such choices", len(wrong) > 20 and len(reduced) > 5, lines)
    open(place.file, "w").write("".join(sorted(r + "\n" for r in wrong + reduced)))
    done = place.tune(place.costs({}), "--level", "graph")
    left = [x for x in place.text().splitlines() if " fuse." in x]
    gone = set(wrong) - set(left)
    expect("wrong ones go", done.returncode == 0 and len(gone) >= 5, (len(gone), done.stderr))
    expect("none comes, and what changes bits stays", set(left) <= set(wrong + reduced) and set(reduced) <= set(left),
           left)


def test_families(place):
    """Recurrences, attention and small groups have parameters, too; results keep their bits."""
    shutil.copy(os.path.join(os.path.dirname(net), "families.net"), place.net)
    place.clean()
    some = ["--trials", "90", "--group", "lstm.*", "--group", "attention*", "--group", "conv2d*"]
    place.keys = place.listed(*some)
    families = {(k.split(" ")[3], x[0].split("{")[0]) for k, x in place.keys.items() if len(x) > 1}
    want = {("lstm.cells", "rnn"), ("lstm.cells.dx", "rnn"), ("attention", "attention"), ("conv2d", "depthwise"),
            ("conv2d.dw", "depthwise")}
    expect("families with others to try", want <= families, families)
    cost, best = plant(place, 43)
    done = place.tune(place.costs(cost), *some, "--json")
    found = kernels(place.text())
    bad = {k: (v, found.get(k)) for k, v in best.items() if v and cost.get(found.get(k), 100) > cost[v]}
    expect("the cheapest of each family", done.returncode == 0 and not bad and len(found) >= 4, (bad, done.stderr))
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    expect("none computes anything else", not report.get("failures"), report.get("failures"))
    expect("rnn.1{", " : rnn.1{" in place.text() and " : attention.1{" in place.text(), place.text())
    built = call(mantou, "build", place.net, *arch, "--locked", "-o", os.path.join(place.folder, "program"))
    expect("such records are read", built.returncode == 0 and not built.stderr, built.stderr)
    bad = re.sub(r"rnn.1{mr=\d+", "rnn.1{mr=28", place.text())
    open(place.file, "w").write(bad)
    done = call(mantou, "build", place.net, *arch, "-o", os.path.join(place.folder, "program"))
    expect("a tile beyond the registers", done.returncode == 0 and re.search(r"nv=\d does not fit", done.stderr)
           and "<= regs" in done.stderr, done.stderr)


def test_hints(place):
    """Parameters that change no bit in any shape: how many threads take part, what is fetched ahead, what goes past the
    caches. They are found where they are cheap, and the program's states stay those of the one without, whatever runs
    its steps."""
    two = ["--threads", "2", "--trials", "120"]
    text = open(net).read().replace("conv2d(8, 3", "conv2d(16, 3").replace("flatten |>",
                                                                           "flatten |> dense(64) |> tanh |>")
    open(place.net, "w").write(text)
    place.keys = place.listed(*two)
    names = ("threads=1", "ahead=4", "fetch=none", "stream=always")
    cost = {k: 100 for list_ in place.keys.values() for k in list_}
    cheap = {}
    for i, (key, list_) in enumerate(sorted(place.keys.items())):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            some = [k for k in list_[1:] if name in k and k not in cheap.values()]
            if some and key not in cheap:
                cheap[key] = some[0]
                cost[some[0]] = 40
    met = {name for name in names if any(name in k for k in cheap.values())}
    expect("each is tried", met == set(names), (met, place.keys))
    done = place.tune(place.costs(cost), *two, "--json")
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    found = kernels(place.text())
    bad = {k: (v, found.get(k)) for k, v in cheap.items() if cost.get(found.get(k), 100) > 40}
    expect("each is found", cheap and not bad, (bad, done.stderr))
    expect("none computes anything else", report and not report["failures"], report)
    states = {}
    for name, tuning in (("with", place.file), ("without", os.devnull)):
        program = os.path.join(place.folder, name)
        call(mantou, "build", place.net, *arch, "--tuning", tuning, "-o", program)
        for mode in ("off", "1", "epoch"):
            for n in ("1", "2", "3"):
                save = "%s.%s.%s" % (program, mode, n)
                done = call(program, "train", "--steps", "3", "--synthetic", "--no-eval", "--quiet", "--sink", mode,
                            "--threads", n, "--save", save)
                states[name, mode, n] = open(save, "rb").read()[-4000:] if done.returncode == 0 else done.stderr
    expect("the states are the same in every mode", len(set(states.values())) == 1,
           [k for k, v in states.items() if v != states["without", "off", "1"]])


def test_options(place):
    place.clean()
    cost, best = plant(place, 11)
    table = place.costs(cost)
    done = place.tune(table, "--group", "matmul", "-o", "-")
    found = kernels(done.stdout)
    expect("--group OPERATOR, -o -", found and all(" matmul " in k for k in found), done.stdout + done.stderr)
    expect("-o - writes no file", not os.path.exists(place.file) and not os.path.exists(place.file + ".log"))
    done = place.tune(table, "--group", "stem", "-o", "-")
    expect("--group LAYER", done.returncode == 0 and len(kernels(done.stdout)) <= 2, done.stdout + done.stderr)
    done = place.tune(table, "--trials", "5", "--json", "-o", os.path.join(place.folder, "few.tune"))
    expect("--trials", json.loads(done.stdout)["variants"] <= 5, done.stdout)
    done = place.tune(table, "--isolate", "--trials", "6", "--json", "-o", os.path.join(place.folder, "isolated.tune"))
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    expect("--isolate", report.get("variants") == 6 and report["records"], done.stderr)
    done = place.tune(table, "--explain", "--quiet")
    expect("--explain", done.stdout.count("the program's own") >= len(place.keys) and not done.stderr,
           done.stdout + done.stderr)
    for words in (["--budget", "5"], ["--budget", "0s"], ["--verify", "--dry-run"], ["--data", "x", "--synthetic"],
                  ["--target", "ref"], ["--seed", "-1"]):
        done = call(mantou, "tune", place.net, *words)
        expect("wrong usage: %s" % words, done.returncode == 2 and "mantou tune --help" in done.stderr, done.stderr)
    done = call(mantou, "tune")
    expect("no model", done.returncode == 2, done.stderr)
    done = call(mantou, "tune", os.path.join(place.folder, "none.net"))
    expect("a model that is not there", done.returncode == 1 and "none.net" in done.stderr, done.stderr)
    done = place.tune(os.path.join(place.folder, "none"))
    expect("costs that are not there", done.returncode == 1, done.stderr)


def test_elsewhere(place):
    """What was prepared races elsewhere; its results make a file without a lock."""
    place.clean()
    cost, best = plant(place, 13)
    table = place.costs(cost)
    program, results = os.path.join(place.folder, "prepared"), os.path.join(place.folder, "results")
    done = place.tune(table, "--prepare", program)
    expect("--prepare", done.returncode == 0 and os.access(program, os.X_OK) and not os.path.exists(place.file),
           done.stderr)
    done = call(program, "race", "--costs", table, "--threads", "1", "-o", results)
    expect("it races", done.returncode == 0, done.stderr)
    done = place.tune(table, "--results", results)
    expect("--results", done.returncode == 0 and kernels(place.text()) and " lock " not in place.text(), done.stderr)
    done = place.tune(table, "--verify")
    expect("verified", done.returncode == 0 and " lock " in place.text(), done.stderr)
    # a kernel that adds in another order says so, and needs leave
    place.clean()
    plain = {k for list_ in place.keys.values() for k in list_}
    allowed = call(mantou, "tune", place.net, *arch, "--dry-run", "--threads", "1", "--allow-reassociation").stdout
    others = [x.split()[0] for x in allowed.splitlines() if x.startswith("  ") and x.split()[0] not in plain]
    table = place.costs({k: 5 for k in others}, name="order")
    place.tune(table, "--prepare", program, "--allow-reassociation", "--trials", "400")
    os.unlink(results)
    call(program, "race", "--costs", table, "--threads", "1", "-o", results)
    place.clean()
    done = place.tune(table, "--results", results)
    expect("without leave", done.returncode == 0 and not set(kernels(place.text()).values()) & set(others),
           place.text())
    done = place.tune(table, "--results", results, "--allow-reassociation")
    expect("with leave", " bits=order t=1" in place.text(), (others[:3], done.stderr, place.text()))
    # a search of its own: the states are near, no longer equal, and it says so
    place.clean()
    done = place.tune(table, "--group", "conv2d.dw", "--allow-reassociation", "--json")
    final = json.loads(done.stdout)["final"] if done.returncode == 0 else {}
    expect("states of another order", final and final["states"] == "near" and final["low"] > 0, (final, done.stderr))
    open(results, "w").write("{}\n")
    done = place.tune(table, "--results", results)
    expect("results that are none", done.returncode == 1 and "has no results" in done.stderr, done.stderr)


def test_judged(place):
    """What races promise is held against the whole step: kernels that are slower there than in their races are halved
    away, the better half first; where all are, nothing is written. What a kernel costs the one behind it is charged."""
    place.clean()
    cost = {k: 100 for list_ in place.keys.values() for k in list_}
    keys = sorted(key for key, list_ in place.keys.items() if len(list_) > 2)
    first, second = keys[0], next(k for k in keys if set(place.keys[k]).isdisjoint(place.keys[keys[0]]))
    good, bad = place.keys[first][1], place.keys[second][1]
    cost.update({good: 40, bad: 70})
    done = place.tune(place.costs(cost, noise=0.01, more="whole 6 %s\n" % bad), "--json")
    found = kernels(place.text())
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    expect("the half that promised more stays", found.get(first) == good and bad not in found.values(),
           (found, done.stderr))
    expect("it says what was tried", "tried     " in done.stderr, done.stderr)
    dropped = {r["kernel"] for r in report.get("dropped", [])}
    expect("the others are told as dropped", bad in dropped and report["final"]["low"] > 0, report)
    place.clean()
    done = place.tune(place.costs(cost, noise=0.01, more="whole 6 %s\nwhole 6 %s\n" % (bad, good)), "--json")
    found = kernels(place.text())
    expect("where none is a gain none is written", done.returncode == 0 and good not in found.values()
           and bad not in found.values(), (found, done.stderr))
    place.clean()
    done = place.tune(place.costs(cost, noise=0.01, more="behind 30 %s\n" % good), "--json")
    expect("what is lost behind a kernel is its loss", done.returncode == 0
           and good not in kernels(place.text()).values(), place.text())


# ---------------------------------------------------------------- faults
def test_faults(place):
    """A kernel that crashes, hangs, stores elsewhere, computes wrongly or kills the compiler is lost, no other is."""
    cost, best = plant(place, 17)
    victims = [k for list_ in place.keys.values() for k in list_[1:]]
    order = random.Random(3).sample(sorted(set(victims)), 7)
    kinds = ["crash", "stray", "wrong", "nan", "ulp", "compiler", "hang"]
    faults = "".join("fault %s %s\n" % x for x in zip(kinds, order))
    place.clean()
    done = place.tune(place.costs(cost, more=faults), "--json")
    found = kernels(place.text())
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    expect("faults cost themselves only", done.returncode == 0, done.stderr)
    expect("none of them wins", not set(found.values()) & set(order), found)
    for key, list_ in place.keys.items():
        sound = [k for k in list_ if k not in order]
        least = min(sound, key=lambda k: cost[k])
        if cost[least] < 0.98 * cost[list_[0]]:
            expect("the best of the rest wins", cost.get(found.get(key), 100) <= cost[least],
                   (key, found.get(key), least))
    failures = report.get("failures", {})
    expect("they are counted", failures.get("kills the compiler") == 1 and sum(failures.values()) >= 6, failures)
    expect("nothing is left over", not place.left(), place.left())


def test_isolate(place):
    """A process for each kernel: one that crashes, one that hangs, one that is wrong are out, each for what it did; the
    race goes on, and the cheapest of the others win. A kernel that crashes in steps alone, behind its checks, too."""
    cost, _ = plant(place, 37)
    listed = place.listed("--trials", "14")
    victims = sorted({k for list_ in listed.values() for k in list_[1:]})
    kinds = ("crash", "hang", "wrong", "crash@3")
    which = dict(zip(random.Random(5).sample(victims, len(kinds)), kinds))
    faults = "".join("fault %s %s\n" % (kind, k) for k, kind in which.items())
    place.clean()
    done = place.tune(place.costs(cost, more=faults), "--isolate", "--trials", "14", "--json")
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    lines = place.journal() if done.returncode == 0 else []
    outs = {(x["out"]["kernel"], x["out"]["why"]) for x in lines if "out" in x}
    results = [x["result"] for x in lines if "result" in x]
    expect("a search goes on behind them", done.returncode == 0 and report.get("variants") == 14, done.stderr)
    expect("each is out for what it did", outs == {(k, kind.split("@")[0]) for k, kind in which.items()}, (outs, which))
    expect("none of them wins", not {x["kernel"] for x in results if x["won"]} & set(which), results)
    raced = {x["record"]: (x["kernel"], [k["kernel"] for k in x["kernels"] if k["kernel"] not in which])
             for x in results}
    bad = {key: x for key, x in raced.items() if cost.get(x[0], 100) > min(cost.get(k, 100) for k in x[1])}
    expect("the cheapest of the rest do", sum(x["won"] for x in results) > 2 and not bad, (bad, results))
    expect("nothing is left over", not place.left(), place.left())


def held_by(lock):
    """Who holds a file, as its lock says once it is held: the lock stands there a moment before that."""
    with contextlib.suppress(FileNotFoundError):
        with open(lock) as f:
            return f.read()
    return ""


def test_files(place):
    cost, _ = plant(place, 19)
    table = place.costs(cost)
    place.clean()
    old = "# mine\n\ncpu nothing * matmul f32[1] : brgemm.1{mr=1,nv=1,lanes=8,outer=row,pack=1} ; us=1\n"
    open(place.file, "w").write(old)
    place.tune(table)
    expect("comments and other records stay", place.text().startswith("# mine\n") and "cpu nothing *" in place.text(),
           place.text()[:200])
    # a disk that is full, whatever is written first, or a part of it later
    for size in (0, 200, 5000, 100000, 200000):
        place.clean()
        open(place.file, "w").write(old)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        done = call(*place.command(table), preexec_fn=limit)
        expect("a full disk at %d bytes" % size, done.returncode == 1 and done.stderr, (done.returncode, done.stderr))
        expect("leaves the file as it was, %d" % size, place.text() == old
               and not [x for x in place.left() if ".log" not in x], place.left())
    place.clean()
    done = place.tune(table, "-o", "/dev/full")
    expect("a full device", done.returncode == 1 and "/dev/full" in done.stderr, done.stderr)
    # two at once
    first = subprocess.Popen(place.command(table), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not held_by(place.file + ".lock") and first.poll() is None:
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)  # it shall not be done before the second has looked
    done = place.tune(table)
    first.send_signal(signal.SIGCONT)
    expect("of two the second says who holds the file", done.returncode == 1 and "is being written by" in done.stderr,
           done.stderr)
    first.wait()
    expect("and the first goes on", first.returncode == 0 and place.text())
    # what a killed search has started holds the file a moment longer
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open(place.file + ".lock", "w") as held:
        held.write("process %d on %s: mantou tune\n" % (gone.pid, socket.gethostname()))
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        last = subprocess.Popen(place.command(table), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        time.sleep(0.3)
        waits = last.poll() is None
    err = last.communicate()[1]
    expect("a search waits for what one that was killed has left", waits and last.returncode == 0,
           (waits, last.returncode, err))
    # a journal that did not end
    open(place.file + ".log", "a").write('{"round": 9, "race": ""}\n')
    done = place.tune(table)
    expect("an unfinished journal", done.returncode == 1 and "--resume" in done.stderr, done.stderr)
    done = place.tune(table, "--resume")
    expect("of another search", done.returncode == 1 and "journal of another search" in done.stderr, done.stderr)


def session_end(leader):
    """Ends what is left of the processes of a session: children of a search have groups of their own."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % number) as f:
                if int(f.read().rpartition(")")[2].split()[3]) == leader:
                    os.kill(int(number), signal.SIGKILL)
        except (OSError, IndexError):
            pass


def test_kill(place):
    """Killed at any moment: the file parses, and --resume comes to the same end."""
    cost, _ = plant(place, 23)
    table = place.costs(cost, noise=0.05)
    place.clean()
    began = time.time()
    place.tune(table)
    whole, seconds = place.text(), time.time() - began
    expect("there is something to win", kernels(whole))
    r, killed = random.Random(int(os.environ.get("SEED", 29))), 0
    for i in range(int(os.environ.get("KILLS", 40 if long else 4))):
        place.clean()
        args, torn, lost, leaders = [], [], [], []
        for _ in range(3):
            process = subprocess.Popen(place.command(table, *args), stderr=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, start_new_session=True)
            leaders.append(process.pid)
            time.sleep(r.uniform(0.02, 0.9) * seconds)
            process.kill()
            process.wait()
            if process.returncode == 0:
                break
            killed += 1
            torn += [x for x in [place.text()] if x not in ("", whole)]
            log = place.file + ".log"
            lines = open(log).read().splitlines(True) if os.path.exists(log) else []
            # whatever a journal has whole is there after the next kill, too: a step is all that is lost
            lost += [x for x in before if x not in lines] if args else []
            before = [x for x in lines if x.endswith("\n") and not x.startswith('{"end"')]
            if lines[-1:] == ['{"end": "done"}\n']:
                break
            args = ["--resume"]
        done = call(*place.command(table, "--resume")) if not place.text() else None
        expect("the file is whole, kill %d" % i, not torn, torn[:1])
        expect("no line of the journal is lost, kill %d" % i, not lost, lost[:1])
        expect("it goes on, kill %d" % i, done is None or done.returncode == 0, done and done.stderr)
        expect("to the same file, kill %d" % i, kernels(place.text()) == kernels(whole),
               (kernels(place.text()), kernels(whole)))
        for leader in leaders:
            session_end(leader)
        if killed and (i + 1) % 50 == 0:
            print("%d searches, %d kills: %d failed" % (i + 1, killed, failed), flush=True)
    expect("searches were killed", killed)


def test_interrupt(place):
    cost, _ = plant(place, 31)
    table = place.costs(cost, noise=0.05)
    place.clean()
    process = subprocess.Popen(place.command(table), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("race 1") and "rung 4" in line:
            process.send_signal(signal.SIGINT)
    process.wait()
    expect("what leads is written", kernels(place.text()), lines)
    expect("Ctrl-C", process.returncode == 130, (process.returncode, lines))
    done = call(mantou, "info", place.net, *arch)
    expect("the file can be read", done.returncode == 0 and "warning" not in done.stderr, done.stderr)
    expect("nothing is left over", not [x for x in place.left() if ".race" not in x], place.left())


with tempfile.TemporaryDirectory() as at:
    only = sys.argv[1:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not only or name in only):
            folder = os.path.join(at, name)
            os.mkdir(folder)
            since = time.time()
            test(Place(folder))
            if only:
                print("%s: %.1f s" % (name, time.time() - since))
print("%d passed, %d failed, 0 skipped" % (passed, failed))
sys.exit(failed != 0)
