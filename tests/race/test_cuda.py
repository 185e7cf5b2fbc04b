#!/usr/bin/env python3
"""Racing programs of CUDA, on the simulated device: test_cuda.py prints FAIL lines and the counts. $MANTOU is the
compiler, $BUILD the folder that has the device. Skipped where there is no NVRTC or no device."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

mantou = os.environ["MANTOU"]
build = os.environ.get("BUILD", os.path.dirname(mantou))
here = os.path.dirname(os.path.abspath(__file__))
passed, failed = 0, 0
plain = {k: v for k, v in os.environ.items() if k != "MANTOU_LIBCUDA"}
simulated = dict(plain, MANTOU_LIBCUDA=os.path.join(build, "tests", "cudasim", "libcuda.so.1"), MANTOU_SIM_THREADS="1")
nowhere = dict(plain, MANTOU_LIBCUDA=os.path.join(here, "none"))


def expect(name, good, detail=""):
    global passed, failed
    passed += bool(good)
    failed += not good
    if not good:
        print("FAIL race of CUDA: %s%s" % (name, ": " + str(detail)[:600] if detail != "" else ""))


def call(*args, env=simulated):
    return subprocess.run(args, capture_output=True, text=True, timeout=900, env=env)


def journal(path):
    return [json.loads(x) for x in open(path).read().splitlines()]


def skip(why):
    print("skip race of CUDA: %s\n0 passed, 0 failed, 1 skipped" % why)
    sys.exit(0)


with tempfile.TemporaryDirectory() as at:
    net, program = os.path.join(at, "tiny.net"), os.path.join(at, "prepared")
    shutil.copy(os.path.join(here, "..", "tune", "tiny.net"), net)
    # three products with --long, else one convolution: forecasts compile half of what this file takes
    op = "matmul" if os.environ.get("LONG") else "conv2d"
    count = 3 if op == "matmul" else 1
    cuda = ["--target", "cuda", "--group", op]
    both = cuda + ["--arch", "sm_80,sm_90a", "--machine", "sm=100"]

    if not os.path.exists(simulated["MANTOU_LIBCUDA"]):
        skip("there is no simulated device")
    if call(mantou, "build", net, "--target", "cuda", "--arch", "sm_80", "--emit", "ptx", "-o", os.devnull).returncode:
        skip("there is no NVRTC")

    # a program for machines that are not here: built without a device
    done = call(mantou, "tune", net, *both, "--trials", "12", "--prepare", program, env=nowhere)
    expect("--prepare without a device", done.returncode == 0
           and "12 variants of %d kernels" % (2 * count) in done.stderr, done.stderr)
    expect("what to do there, and here then", program + " race " in done.stderr and "--results RESULTS" in done.stderr,
           done.stderr)
    results = os.path.join(at, "checked")
    done = call(program, "race", "-o", results, "--threads", "1")
    expect("its race on a simulated device", done.returncode == 0 and "nothing was timed" in done.stderr, done.stderr)
    lines = journal(results)
    good = [x for x in lines if "good" in x]
    expect("checks every kernel", sum(len(x["good"]) for x in good) == 6 and not [x for x in lines if "out" in x],
           lines)
    expect("and times none", lines[-1] == {"end": "checked"} and lines[0]["clock"] == "none"
           and "simulated" in lines[0]["device"], lines[0])
    done = call(mantou, "tune", net, *both, "--results", results, env=nowhere)
    expect("which is no result", done.returncode == 1 and "only compared results" in done.stderr, done.stderr)
    done = call(program, "race", "-o", results, env=nowhere)
    expect("without a device", done.returncode == 1 and "NVIDIA driver" in done.stderr, done.stderr)

    # times that the machine code of candidates is predicted to take give their order, here and in what is prepared
    def dry(**env):
        """For each record its kernels' times, of its own kernel's; None: nothing is predicted."""
        shown = call(mantou, "tune", net, *cuda, "--arch", "sm_90a", "--machine", "sm=100", "--dry-run", "--trials",
                     "12", env=dict(nowhere, **env))
        times = {}
        for line in shown.stdout.splitlines():
            kernel = re.match(r"  (\S+) +(\S+)(?: +(\S+) us)?$", line)
            if not kernel:
                own = times.setdefault(line.split("  (")[0], {})
            else:
                own[kernel.group(1)] = float(kernel.group(2)) if kernel.group(3) else None
        return {k: v for k, v in times.items() if len(v) > 1}

    times = dry()
    steps = {k: [int(20 * x + 0.5) for x in list(v.values())[1:]] for k, v in times.items() if None not in v.values()}
    expect("candidates have predicted times", len(steps) == count
           and all(list(times[k].values())[0] == 1 for k in steps)
           and len({x for v in steps.values() for x in v}) > 1, times)
    expect("the best of them first", all(v == sorted(v) for v in steps.values()), times)
    orders = [([k for k in times[x["key"]] if k in x["kernels"]], x["kernels"]) for x in lines[0]["records"]]
    expect("and so they are prepared", all(a == b for a, b in orders), orders)
    unknown = dry(MANTOU_LIBNVRTC=os.path.join(at, "none"), MANTOU_CACHE="off")
    expect("without NVRTC nothing is predicted", set(unknown) == set(times)
           and not [x for v in unknown.values() for x in v.values() if x], unknown)

    # with times of a table; a kernel that crashes, one that is wrong, one that stores elsewhere
    keys = {x["key"]: x["kernels"] for x in lines[0]["records"]}
    others = sorted({k for list_ in keys.values() for k in list_[1:]})
    bad = dict(zip(("crash", "wrong", "stray"), others))
    costs = os.path.join(at, "costs")
    with open(costs, "w") as f:
        f.write("noise 0.02\n" + "".join("fault %s %s\n" % x for x in bad.items()))
        f.write("".join("cost %d %s\n" % (40 + i, k) for i, k in enumerate(others)))
    timed = os.path.join(at, "timed")
    done = call(program, "race", "-o", timed, "--costs", costs, "--rungs", "2,8", "--threads", "1")
    lines = journal(timed)
    outs = {(x["out"]["kernel"], x["out"]["why"]) for x in lines if "out" in x}
    expect("faults are their kernels'", outs and outs == {(v, k) for k, v in bad.items()
                                                          if any(v in l for l in keys.values())},
                                                          (outs, bad, done.stderr))
    want = {}
    for key, list_ in keys.items():
        sound = [k for k in list_[1:] if k not in bad.values()]
        if sound:
            want[key] = min(sound, key=others.index)
    won = {x["result"]["record"]: x["result"]["kernel"] for x in lines if "result" in x and x["result"]["won"]}
    expect("the cheapest of the others win", done.returncode == 0 and want and won == want, (won, want, done.stderr))
    tuning = os.path.join(at, "tiny.tune")
    done = call(mantou, "tune", net, *both, "--results", timed, env=nowhere)
    text = open(tuning).read() if os.path.exists(tuning) else ""
    found = {x.split(" : ")[0]: re.sub(r"\.\d+{", "{", x.split(" : ")[1].split(" ;")[0]) for x in text.splitlines()}
    expect("--results writes them, without a lock", done.returncode == 0 and found == want and " lock " not in text,
           (text, done.stderr))
    beginning = "cuda %s sm=100 %s " % (lines[0]["arch"], op)
    expect("of the architecture that has raced", text and all(x.startswith(beginning) for x in text.splitlines()), text)
    used = call(mantou, "info", net, "--target", "cuda", "--arch", lines[0]["arch"], "--machine", "sm=100", "--json",
                env=nowhere)
    expect("such records are read", not used.stderr and all(v in used.stdout for v in want.values()), used.stderr)

    # kernels beside contractions: another tile of attention computes the same bits; a forward pass's columns may not
    shutil.copy(os.path.join(here, "..", "tune", "families.net"), net)

    def others_race(what, ops, least, *options):
        """What was tried, by operator."""
        others = ["--target", "cuda", "--arch", "sm_90a", "--machine", "sm=100", "--trials", "20", *options]
        for op in ops:
            others += ["--group", op]
        done = call(mantou, "tune", net, *others, "--prepare", program, env=nowhere)
        expect(what + " are prepared", done.returncode == 0, done.stderr)
        done = call(program, "race", "-o", results, "--threads", "1")
        lines = journal(results)
        tried = {x["key"].split(" ")[3]: x["kernels"] for x in lines[0]["records"]}
        counts = {k: len(v) for k, v in tried.items()}
        expect(what + " have others to try", set(counts) == ops and min(counts.values()) > least, counts)
        good = sum(len(x["good"]) for x in lines if "good" in x)
        expect(what + " all compute the same", good == sum(counts.values()) - len(counts)
               and not [x for x in lines if "out" in x], (counts, lines))
        return tried

    others_race("tiles of attention", {"attention", "attention.dx"}, 1)
    tried = others_race("recurrences", {"lstm.cells", "lstm.cells.dx"}, 8)
    expect("recurrences are tried alone and held", {"blocks=" in k for v in tried.values() for k in v} == {True, False},
           tried)
    tried = others_race("reductions", {"mean", "expand"}, 6, "--allow-reassociation")
    forms = {re.sub(r"\d+", "", k) for list_ in tried.values() for k in list_}
    expect("rows and columns have their parameters", forms >= {"rows{threads=}", "rows{threads=,rows=}",
                                                              "rows{threads=,unroll=}", "columns{m=,n=}",
                                                              "columns{m=,n=,ahead=}"}, forms)
    tried = others_race("convolutions of small groups", {"conv2d", "conv2d.dw"}, 6, "--allow-reassociation")
    forms = {re.sub(r"\d+", "", k) for list_ in tried.values() for k in list_}
    expect("they have their parameters", {"depthwise{pixels=}", "depthwise{pixels=,vec=}",
                                          "depthwise{pixels=,pieces=,taps=}", "depthwise{pixels=,pieces=,lanes=}"}
           < forms and "depthwise{pixels=4}" in tried["conv2d"], tried)
    shutil.copy(os.path.join(here, "..", "tune", "tiny.net"), net)

    # here: a device that is simulated, or none
    if os.path.exists(tuning):
        os.unlink(tuning)
    here_ = cuda + ["--arch", "sm_80"]
    done = call(mantou, "tune", net, *here_, "--trials", "3", "--json")
    report = json.loads(done.stdout) if done.returncode == 0 else {}
    expect("a search on a simulated device", report.get("simulated") and not report["written"] and report["variants"]
           == 3, done.stderr)
    expect("says that it only checks", "3 of 3 variants compute" in done.stderr and "nothing is written" in done.stderr,
           done.stderr)
    expect("and writes no file", not os.path.exists(tuning))
    done = call(mantou, "tune", net, *here_, env=nowhere)
    expect("a search without a device", done.returncode == 1 and "--prepare FILE" in done.stderr, done.stderr)
    done = call(mantou, "tune", net, *both)
    expect("a search for two architectures", done.returncode == 2 and "one --arch" in done.stderr, done.stderr)
    done = call(mantou, "tune", net, "--target", "ref")
    expect("a target without parameters", done.returncode == 2 and "no kernels with parameters" in done.stderr,
           done.stderr)

print("%d passed, %d failed, 0 skipped" % (passed, failed))
sys.exit(failed != 0)
