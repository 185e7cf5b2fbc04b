#!/usr/bin/env python3
"""Racing programs: test_race.py prints FAIL lines and the counts. $MANTOU is the compiler.

The model is small.net; of each training kernel some others race that differ in their tiles. Times come from a table
(race --costs), so what must win is known. Each test is a function test_*; `expect` counts."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

mantou = os.environ["MANTOU"]
net = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small.net")
arch = ["--arch", "x86-64-v3", "--tuning", "/dev/null"]
passed, failed = 0, 0


def expect(name, good, detail=""):
    global passed, failed
    passed += bool(good)
    failed += not good
    if not good:
        print("FAIL race: %s%s" % (name, ": " + str(detail)[:400] if detail != "" else ""))


def call(*args, **more):
    return subprocess.run(args, capture_output=True, text=True, timeout=900, **more)


def tile(kernel, mr, nv):
    return re.sub(r"mr=\d+,nv=\d+", "mr=%d,nv=%d" % (mr, nv), kernel)


# ---------------------------------------------------------------- the program
class Program:
    """The model's training kernels with others beside them: tiles of TILES that are not the kernel's own. Those of 5
    rows have the bits of the own kernel, where products are in tiles of many sums each."""

    TILES = [(5, 2), (4, 2), (3, 2), (2, 2), (8, 1), (4, 1)]

    def __init__(self, folder):
        records = json.loads(call(mantou, "info", "--json", net, *arch).stdout)["records"]
        self.own, self.others, lines = {}, {}, []
        for record in records:
            key, kernel = record.split(" : ")
            kernel = re.sub(r"\.\d+{", "{", kernel.split(" ")[0])
            if "N<=" in key:
                continue
            self.own[key] = kernel
            self.others[key] = [tile(kernel, *t) for t in self.TILES if tile(kernel, *t) != kernel]
            for other in self.others[key]:
                lines.append("%s : %s ; bits=%s" % (key, other, "same" if "winograd{mr=5" in other else "order"))
        self.folder = folder
        self.file = os.path.join(folder, "small.racefile")
        self.path = os.path.join(folder, "small")
        with open(self.file, "w") as f:
            f.write("# what races\n" + "\n".join(lines) + "\n")
        self.built = call(mantou, "build", net, *arch, "--race", self.file, "-o", self.path)

    def command(self, costs, output, *args, threads=1):
        table = os.path.join(self.folder, output + ".costs")
        with open(table, "w") as f:
            f.write(costs)
        return [
            self.path,
            "race",
            "--costs",
            table,
            "--threads",
            str(threads),
            "-o",
            os.path.join(self.folder, output),
            *args,
        ]

    def race(self, costs, output="race", *args, threads=1):
        """status, what it said on stderr, the journal's lines"""
        journal = os.path.join(self.folder, output)
        if "--resume" not in args and os.path.exists(journal):
            os.unlink(journal)
        done = call(*self.command(costs, output, *args, threads=threads))
        return done.returncode, done.stderr, self.journal(output)

    def journal(self, output="race"):
        path = os.path.join(self.folder, output)
        if not os.path.exists(path):
            return []
        with open(path) as f:
            return [json.loads(line) for line in f.read().split("\n")[:-1]]

    def costs(self, planted, noise, more=""):
        """A table in which every kernel takes 100 us but those of `planted`."""
        return "noise %g\n%s%s" % (
            noise,
            "".join("cost %g %s\n" % (us, kernel) for kernel, us in planted.items()),
            more,
        )


def results(lines):
    """of a journal's end: kernel by record"""
    return {r["result"]["record"]: r["result"] for r in lines if "result" in r}


def outs(lines):
    return {(r["out"]["kernel"], r["out"]["why"]) for r in lines if "out" in r}


def winners(lines):
    return {key: r["kernel"] for key, r in results(lines).items() if r["won"]}


# ---------------------------------------------------------------- the compiler's part
def test_build(p):
    expect("builds without a word", p.built.returncode == 0 and not p.built.stderr, p.built.stderr)
    plain = os.path.join(p.folder, "plain")
    call(mantou, "build", net, *arch, "-o", plain)
    for program in (plain, p.path):
        done = call(program, "train", "--steps", "4", "--threads", "2", "--save", program + ".st", "--quiet")
        expect("trains", done.returncode == 0, done.stderr)
    expect("trains as the ordinary program does", open(plain + ".st", "rb").read() == open(p.path + ".st", "rb").read())
    done = call(plain, "race")
    expect(
        "an ordinary program has no command race",
        done.returncode == 2 and "unknown command 'race'" in done.stderr,
        done.stderr,
    )
    ir = call(mantou, "build", net, *arch, "--race", p.file, "--emit", "ir", "-o", "-").stdout
    again = os.path.join(p.folder, "again.ir")
    open(again, "w").write(ir)
    expect("variants stand in the IR", ir.count("  variant #") > 50, ir.count("  variant #"))
    expect("and read back", call(mantou, "build", again, "--emit", "ir", "-o", "-").stdout == ir)
    asm = [
        call(mantou, "build", x, *(arch if x == net else []), *y, "--emit", "asm", "-o", "-").stdout
        for x, y in ((net, ["--race", p.file]), (again, []))
    ]
    functions = len(re.findall(r"^\t\.p2align\t6", asm[0], re.M))
    all_of_them = len(re.findall(r"^\t\.type\t.*,@function", asm[0], re.M))
    expect("functions begin at cache lines", functions >= all_of_them > 50, (functions, all_of_them))
    expect("code of IR with variants", asm[0] == asm[1] and len(asm[0]) > 100000, [len(x) for x in asm])


def test_refusals(p):
    path = os.path.join(p.folder, "bad.racefile")
    key, own = next(iter(p.own.items()))
    good = "%s : %s\n" % (key, p.others[key][0])
    for name, text, message in (
        (
            "a kernel that does not fit",
            "%s : %s\n" % (key, tile(own, 99, 2)),
            r":1:1: warning: this kernel does not fit, and does not race: ",
        ),
        ("another family", "%s : nonsense{a=1}\n" % key, r"does not fit, and does not race"),
        ("an unknown key", "cpu znver4 nothing : %s\n" % own, r"no kernel of this model has this key"),
        ("no record", "hello\n", r"expected KEY : KERNEL"),
        ("a bad class", good[:-1] + " ; bits=few\n", r"bits= is same, order or round"),
        ("a bad bound", good[:-1] + " ; bits=order bound=x\n", r"bound= is a number"),
        ("a bound of the same bits", good[:-1] + " ; bits=same bound=3\n", r"the same bits have no bound"),
        ("twice", good + good, r":2:1: warning: line 1 asks for this kernel already"),
    ):
        open(path, "w").write(text)
        done = call(mantou, "build", net, *arch, "--race", path, "--emit", "ir", "-o", "/dev/null")
        expect(name, done.returncode == 0 and re.search(message, done.stderr), done.stderr)
    expect(
        "no file",
        "cannot read the race file"
        in call(mantou, "build", net, *arch, "--race", path + "x", "--emit", "ir", "-o", "-").stderr,
    )
    expect(
        "another target",
        "has no racing programs"
        in call(mantou, "build", net, "--target", "ref", "--race", p.file, "-o", "/dev/null").stderr,
    )
    open(path, "w").write("# nothing\n")
    nothing = os.path.join(p.folder, "nothing")
    call(mantou, "build", net, *arch, "--race", path, "-o", nothing)
    done = call(nothing, "race", "-o", nothing + ".race")
    expect(
        "nothing to race",
        done.returncode == 1 and "no kernel of the training step has another" in done.stderr,
        done.stderr,
    )


def test_text(p):
    """What of variants does not read back, or is no plan that can run."""
    ir = call(mantou, "build", net, *arch, "--race", p.file, "--emit", "ir", "-o", "-").stdout
    first = re.search(r"^  variant #(\d+) .*$", ir, re.M)
    path = os.path.join(p.folder, "bad.ir")
    for name, old, new, message in (
        (
            "a class of a variant",
            first.group(0),
            first.group(0).replace(" same", " few"),
            "same, order or round expected",
        ),
        (
            "a variant of another group",
            first.group(0),
            first.group(0).replace("#" + first.group(1), "#0"),
            "a variant stands behind its group's line",
        ),
        ("a word behind a variant", first.group(0), first.group(0) + " often", "bound, workspace or kept expected"),
        (
            "a variant that needs more",
            first.group(0),
            first.group(0) + " workspace 99999999",
            "has less room than its variant",
        ),
        (
            "a first variant that is not the group's own",
            first.group(0),
            first.group(0).replace("mr=6", "mr=5"),
            "the first must be its own kernel",
        ),
        ("a group's word", " record ", " recorded ", "once, launch or record expected"),
        ("parameters of a variant", "mr=4,", "mr=61,", "is no plan that can run"),
    ):
        open(path, "w").write(ir.replace(old, new, 1))
        done = call(mantou, "build", path, "--emit", "ir", "-o", "-")
        expect(name, done.returncode == 1 and message in done.stderr, done.stderr)


def test_budget_of_memory(p):
    key = next(k for k in p.own if "conv2d f32[8,16" in k)
    path = os.path.join(p.folder, "large.racefile")
    open(path, "w").write("%s : %s\n" % (key, tile(p.own[key], 5, 2)))
    size = int(
        re.search(r"arena_bytes=(\d+)", call(mantou, "build", net, *arch, "--emit", "ir", "-o", "-").stdout).group(1)
    )
    done = call(mantou, "build", net, *arch, "--race", path, "--memory", str(size), "--emit", "ir", "-o", "-")
    need = int(re.search(r"arena_bytes=(\d+)", done.stdout).group(1))
    expect(
        "a racing program keeps the budget of memory", done.returncode == 0 and need <= size, (need, size, done.stderr)
    )


def test_symbols(p):
    """Bar T12: linked without -s, an ordinary program has no symbol of librtrace.a, a racing one has."""
    cc = os.path.join(p.folder, "cc.sh")
    open(cc, "w").write(
        '#!/bin/sh\nfor a; do shift; case $a in *,-s,*) a=$(echo "$a" | sed "s/,-s,/,/") ;; esac\n'
        'set -- "$@" "$a"; done\nexec cc "$@"\n'
    )
    os.chmod(cc, 0o755)
    names = []
    for more in ([], ["--race", p.file]):
        out = os.path.join(p.folder, "unstripped")
        built = call(mantou, "build", net, *arch, *more, "-o", out, env=dict(os.environ, CC=cc))
        expect("links unstripped", built.returncode == 0, built.stderr)
        names.append(set(re.findall(r" (\w+)$", call("nm", out).stdout, re.M)))
    raced = {n for n in names[1] - names[0] if "race" in n}
    expect("a racing program has the command", "rt_race_main" in raced and "race_take" in raced, sorted(raced)[:5])
    expect(
        "an ordinary program has nothing of it",
        "rt_main" in names[0] and not [n for n in names[0] if "race" in n],
        [n for n in names[0] if "race" in n],
    )


# ---------------------------------------------------------------- checks and judgement
def plant(p, us=60.0):
    """For each kernel text that is some record's own one of the others, faster, no two by the same. A text may be of
    several records: it costs the same in all."""
    planted = {}
    for i, own in enumerate(sorted(set(p.own.values()))):
        key = next(k for k in sorted(p.own) if p.own[k] == own)
        planted.setdefault(p.others[key][i % len(p.others[key])], us * 0.85 ** len(planted))
    return planted, {key: min([own, *p.others[key]], key=lambda k: planted.get(k, 100)) for key, own in p.own.items()}


def test_all_run_right(p):
    status, said, lines = p.race("noise 0\n", threads=3)
    good = sum(len(x["good"]) for x in lines if "good" in x)
    head = lines[0]
    want = sum(len(head["records"][g["record"]]["kernels"]) - 1 for g in head["groups"])
    expect("every kernel of every group is checked", status == 0 and good == want and want > 80, (status, good, want))
    expect("and right", not outs(lines), outs(lines))
    expect(
        "alike layers share a record",
        len(head["groups"]) > len(head["records"]) == len(p.own),
        (len(head["groups"]), len(head["records"])),
    )
    expect("equal times: nothing wins", not winners(lines) and lines[-1] == {"end": "done"}, winners(lines))
    expect(
        "all records are judged",
        len(results(lines)) == len(p.own) and all(r["finished"] for r in results(lines).values()),
    )


def test_planted(p):
    planted, best = plant(p)
    for name, noise, more, seeds in (
        ("without noise", 0, "", (1,)),
        ("with noise of 10 %", 0.1, "", (1, 2, 3, 4, 5)),
        ("in slow phases", 0.05, "steps 10..14 all x3\nsteps 20..60 all x1.3\nsteps 70..400 memory x2.5\n", (1, 2, 3)),
    ):
        for seed in seeds:
            status, said, lines = p.race(
                p.costs(planted, noise, more), "planted", "--seed", str(seed), "--budget", "60s"
            )
            expect(
                "the planted kernels win %s, seed %d" % (name, seed),
                status == 0 and winners(lines) == best,
                {k: v for k, v in winners(lines).items() if v != best[k]} or said,
            )
    gains = [r["gain"] for r in results(lines).values()]
    expect("gains are those that were planted", all(0.3 < g < 0.9 for g in gains), gains)
    planted, best = plant(p)
    status, said, lines = p.race(p.costs({k: 99.5 for k in planted}, 0), "planted")
    expect("half a percent is no gain", status == 0 and not winners(lines), winners(lines))
    status, said, lines = p.race(
        p.costs({k: 300 for other in p.others.values() for k in other if k not in p.own.values()}, 0.02), "planted"
    )
    first = {k["out"] for r in results(lines).values() for k in r["kernels"][1:]}
    expect(
        "what takes twice the time leaves after a sample",
        first == {"twice the leader's time in its first sample"},
        first,
    )


def test_same_again(p):
    planted, _ = plant(p)
    texts = []
    for output in ("one", "two"):
        p.race(p.costs(planted, 0.1), output, "--seed", "7")
        texts.append(open(os.path.join(p.folder, output), "rb").read())
    expect("the same seed makes the same journal", texts[0] == texts[1] and len(texts[0]) > 10000)
    p.race(p.costs(planted, 0.1), "two", "--seed", "8")
    expect("another seed another one", texts[0] != open(os.path.join(p.folder, "two"), "rb").read())


def test_unrest(p):
    planted, best = plant(p)
    status, said, lines = p.race(p.costs(planted, 0.02, "steps 10..4000 all x2.5\n"), "unrest", "--budget", "60s")
    kinds = [x["kind"] for x in lines if "step" in x]
    expect(
        "a machine that became slow is said, and measured anew",
        "the machine is not quiet" in said and "reference" in kinds[10:],
        said,
    )
    expect("and the best still win", winners(lines) == best, winners(lines))


def test_short_budget(p):
    planted, best = plant(p)
    status, said, lines = p.race(p.costs(planted, 0.02), "short", "--budget", "0.12s")
    steps = sum("step" in x for x in lines)
    full = p.race(p.costs(planted, 0.02), "long")[2]
    expect("a short budget ends the race earlier", status == 0 and steps < sum("step" in x for x in full), steps)
    spent = [x["spent"] for x in lines if "step" in x][-1]
    expect("in time", spent < 1.4e8, spent)
    status, said, lines = p.race(p.costs(planted, 0.02), "short", "--budget", "0.01s")
    expect(
        "no time at all: nothing wins", status == 0 and lines[-1] == {"end": "budget"} and not winners(lines), lines[-1]
    )


def test_charge(p):
    """A kernel that is faster, but behind which the next one is slower by more."""
    key = next(k for k in p.own if "conv2d f32[8,8" in k)
    own = p.own[key]
    fast = tile(own, 5, 2)
    status, said, lines = p.race(p.costs({fast: 90}, 0.01), "charge")
    expect("the fast kernel wins", fast in winners(lines).values(), winners(lines))
    status, said, lines = p.race(p.costs({fast: 90}, 0.01, "behind 3 %s\n" % fast), "charge")
    charged = results(lines)[key]
    expect(
        "what it costs the kernel behind is charged",
        winners(lines).get(key) != fast and charged["charge"] > 0.1,
        charged,
    )


def test_isolated(p):
    """--isolate: no two kernels that are tried meet in a process; the same ones win, and faults stay their own."""
    key = next(k for k in p.own if "conv2d f32[8,8" in k)
    fast, crash = tile(p.own[key], 5, 2), tile(p.own[key], 4, 2)
    costs = p.costs({fast: 60}, 0.01, "fault crash@3 %s\n" % crash)
    status, said, lines = p.race(costs, "isolated", "--isolate", "--rungs", "1,6")
    record = {g: x["record"] for g, x in enumerate(lines[0]["groups"])}
    met = [{(record[g], k) for g, k in enumerate(x["run"]) if k} for x in lines if x.get("kind") == "race"]
    expect("one kernel a step", status == 0 and met and max(len(x) for x in met) == 1, (status, said))
    expect("the fast one wins", winners(lines).get(key) == fast, winners(lines))
    expect("a crash is its own kernel's", outs(lines) == {(crash, "crash")}, outs(lines))


def test_faults(p):
    """Each costs the kernel that has it, and only that one; who is left still finds the best."""
    conv = next(k for k in p.own if "conv2d f32[8,16" in k)
    own, others = p.own[conv], p.others[conv]
    same, best = tile(own, 5, 2), tile(own, 4, 1)
    kinds = [
        ("crash", "crash"),
        ("hang", "hang"),
        ("stray", "stray"),
        ("far", "stray"),
        ("wrong", "wrong"),
        ("nan", "nan"),
    ]
    hit = [k for k in others if k not in (same, best)]
    for kind, why in kinds:
        status, said, lines = p.race(p.costs({best: 60, hit[0]: 10}, 0.02, "fault %s %s\n" % (kind, hit[0])), "fault")
        expect(
            "%s: only that kernel is out" % kind,
            status == 0 and outs(lines) == {(hit[0], why)},
            (status, outs(lines), said),
        )
        expect("%s: the best still wins" % kind, winners(lines).get(conv) == best, winners(lines))
        expect(
            "%s: it is said" % kind,
            re.search(r"^out +%s of train_\w+: %s" % (re.escape(hit[0]), why), said, re.M),
            said,
        )
    status, said, lines = p.race(p.costs({best: 60}, 0.02, "fault ulp %s\nfault ulp %s\n" % (same, hit[0])), "fault")
    expect("one unit in the last place of a kernel of the same bits", outs(lines) == {(same, "wrong")}, outs(lines))
    table = "".join("fault %s %s\n" % (kind[0], k) for kind, k in zip(kinds, hit))
    status, said, lines = p.race(p.costs({best: 60}, 0.02, table + "fault ulp %s\n" % same), "fault")
    expect(
        "all at once",
        outs(lines) == {(k, kind[1]) for kind, k in zip(kinds, hit)} | {(same, "wrong")}
        and winners(lines).get(conv) == best,
        (outs(lines), winners(lines)),
    )
    for kind in ("crash", "hang"):
        status, said, lines = p.race(
            p.costs({best: 60, hit[1]: 80}, 0.02, "fault %s@12 %s\n" % (kind, hit[1])), "fault"
        )
        expect(
            "%s in the middle" % kind,
            status == 0 and outs(lines) == {(hit[1], kind)} and winners(lines).get(conv) == best,
            (status, outs(lines), winners(lines)),
        )
        expect(
            "%s in the middle: no step is lost" % kind,
            [x["step"] for x in lines if "step" in x] == list(range(sum("step" in x for x in lines))),
        )


# ---------------------------------------------------------------- ends
def started(p, costs, output, steps, *args):
    """A race under way, with so many steps in its journal."""
    journal = os.path.join(p.folder, output)
    if "--resume" not in args and os.path.exists(journal):
        os.unlink(journal)
    process = subprocess.Popen(
        p.command(costs, output, *args), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        if os.path.exists(journal) and open(journal, "rb").read().count(b'{"step"') >= steps:
            break
        time.sleep(0.001)
    return process


def worker_of(process):
    found = open("/proc/%d/task/%d/children" % (process.pid, process.pid)).read().split()
    return int(found[0]) if found else None


LONG = ("--rungs", "2,4,8,150", "--budget", "100s")


def test_killed(p):
    planted, best = plant(p)
    costs = p.costs(planted, 0.1)
    whole = p.race(costs, "whole", *LONG)[2]
    killed = started(p, costs, "worker", 20, *LONG)
    worker = worker_of(killed)
    os.kill(worker, signal.SIGKILL)
    killed.communicate()
    lines = p.journal("worker")
    expect(
        "a killed worker is replaced",
        killed.returncode == 0 and sum("death" in x for x in lines) == 1,
        killed.returncode,
    )
    expect("and blames no kernel", not outs(lines) and results(lines) == results(whole))
    cut = 0
    for steps in (0, 3, 17, 60):
        killed = started(p, costs, "parent", steps, *LONG)
        worker = worker_of(killed)
        killed.kill()
        killed.communicate()
        cut += killed.returncode == -signal.SIGKILL
        for _ in range(5000):
            if (
                not worker
                or not os.path.exists("/proc/%d" % worker)
                or open("/proc/%d/stat" % worker).read().split(") ")[1][0] == "Z"
            ):
                break
            time.sleep(0.001)
        else:
            expect("a worker ends with its parent", False)
        if steps == 17:
            with open(os.path.join(p.folder, "parent"), "ab") as f:
                f.write(b'{"step": 18, "kind": "ra')
        if steps == 60:
            done = call(*p.command(costs, "parent", *LONG))
            expect(
                "a journal that is not at its end",
                done.returncode == 1 and "--resume goes on with it" in done.stderr,
                done.stderr,
            )
            done = call(*p.command(costs, "parent", *LONG, "--resume", "--seed", "99"))
            expect(
                "the journal of another race",
                done.returncode == 1 and "is the journal of another race" in done.stderr,
                done.stderr,
            )
        status, said, lines = p.race(costs, "parent", *LONG, "--resume")
        expect(
            "killed after %d steps and resumed: the same end" % steps,
            status == 0 and results(lines) == results(whole),
            said,
        )
        expect(
            "killed after %d steps and resumed: the same steps" % steps,
            [x for x in lines if "step" in x] == [x for x in whole if "step" in x],
        )
    expect("races were killed", cut >= 3, cut)
    before = open(os.path.join(p.folder, "parent"), "rb").read()
    status, said, lines = p.race(costs, "parent", *LONG, "--resume")
    expect(
        "a race that is over stays as it is",
        status == 0 and open(os.path.join(p.folder, "parent"), "rb").read() == before,
    )


def test_deaths_without_reason(p):
    racing = started(p, p.costs({}, 0.1), "deaths", 5, "--rungs", "2,4,8,5000", "--budget", "1000s")
    seen = set()
    for _ in range(20000):
        if racing.poll() is not None:
            break
        try:
            worker = worker_of(racing)
            if worker and worker not in seen:
                seen.add(worker)
                os.kill(worker, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
        time.sleep(0.001)
    said = racing.communicate()[1]
    expect(
        "the third death that no kernel explains ends the race",
        racing.returncode == 1 and "died three times" in said and len(seen) == 3,
        (racing.returncode, said, len(seen)),
    )


def test_two_at_once(p):
    racing = started(p, p.costs({}, 0.1), "both", 3, *LONG)
    done = call(*p.command(p.costs({}, 0.1), "both", *LONG, "--resume"))
    expect("a second race with the same journal", done.returncode == 1 and "another run" in done.stderr, done.stderr)
    racing.communicate()
    expect("harms the first one not", racing.returncode == 0 and p.journal("both")[-1] == {"end": "done"})


def test_interrupted(p):
    planted, best = plant(p)
    costs = p.costs(planted, 0.1)
    whole = results(p.race(costs, "whole", *LONG)[2])
    racing = started(p, costs, "stopped", 12, *LONG)
    os.kill(racing.pid, signal.SIGINT)
    racing.communicate()
    lines = p.journal("stopped")
    expect(
        "Ctrl-C ends it with the step",
        racing.returncode == 130 and lines[-1] == {"end": "stopped"},
        (racing.returncode, lines[-1]),
    )
    expect(
        "with what leads so far",
        len(results(lines)) == len(p.own) and not all(r["finished"] for r in results(lines).values()),
    )
    status, said, lines = p.race(costs, "stopped", *LONG, "--resume")
    expect("and it can be resumed", status == 0 and results(lines) == whole, said)


def test_full_disk(p):
    """Wherever the file may not grow any more: status 1, what is there can be resumed."""
    costs = p.costs(plant(p)[0], 0.1)
    whole = p.race(costs, "whole")[2]
    for blocks in (1, 16, 40):
        if os.path.exists(os.path.join(p.folder, "full")):
            os.unlink(os.path.join(p.folder, "full"))
        command = p.command(costs, "full", "--quiet")
        done = call("sh", "-c", 'ulimit -f %d; exec "$@"' % blocks, "sh", *command)
        expect("a full disk, %d blocks" % blocks, done.returncode == 1 and "cannot write" in done.stderr, done.stderr)
        status, said, lines = p.race(costs, "full", "--resume")
        expect("a full disk, %d blocks: resumed" % blocks, status == 0 and results(lines) == results(whole), said)


def test_usage(p):
    for args, message in (
        (["--bogus"], "unknown option --bogus"),
        (["--budget", "8"], "--budget wants TIME"),
        (["--rungs", "2,x"], "--rungs wants"),
        (["--threads", "0"], "--threads wants"),
        (["--graph", "test"], "--graph wants NAME"),
        (["--data", "x", "--synthetic"], "exclude each other"),
        (["-o"], "wants a value"),
    ):
        done = call(p.path, "race", *args)
        expect("usage %s" % " ".join(args), done.returncode == 2 and message in done.stderr, done.stderr)
    expect("help", call(p.path, "race", "--help").stdout.startswith("usage: small race"))
    done = call(*p.command("cost x\n", "usage"))
    expect(
        "a bad table of costs", done.returncode == 1 and ":1: no line of a table of costs" in done.stderr, done.stderr
    )
    done = call(p.path, "race", "-o", os.path.join(p.folder, "none", "x"))
    expect("a journal that cannot be written", done.returncode == 1 and "none/x" in done.stderr, done.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = Program(folder)
        tests = [
            (n, f)
            for n, f in sorted(globals().items())
            if n.startswith("test_") and (len(sys.argv) < 2 or n in sys.argv[1:])
        ]
        for name, test in [t for t in tests if t[0] == "test_build"] + [t for t in tests if t[0] != "test_build"]:
            try:
                test(program)
            except Exception as e:  # a test that cannot go on has failed, the others still count
                expect(name, False, repr(e))
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return failed > 0


sys.exit(main())
