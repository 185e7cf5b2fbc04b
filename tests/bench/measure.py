#!/usr/bin/env python3
"""Measures models beside their rivals in interleaved rounds: ours, rival 1, rival 2, ..., ours, ... so that a slow hour
of a shared machine meets all. run.sh and beside.sh start it; it needs nothing but Python's own library.

In: rows (rows.txt, or --row TEXT in its form).   Out: for each row a table (medians, bests, share of the peak that was
measured in the same run, memory, time from the start to the end of the first step), the ratio of our median to that of
the best rival, and at the end a summary; --json FILE: a line a row. A rival is one process for all rounds, stopped
(SIGSTOP) while others have their turn; ours starts anew for each sample, as its users do. A sample that other work on
the machine disturbed is taken again. A rival that is not there or fails is a line that says why. --from FILE prints the
tables of an earlier --json FILE, computed again from its samples. """
import argparse
import datetime
import glob
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FIELDS = ["name", "model", "mode", "batch", "precision", "least", "warmup", "steps", "rounds", "rivals"]
MODES = {"train": "training", "infer": "inference", "generate": "generation, tokens", "reader": "the reader alone"}
START_S, SAMPLE_S, REALTIME = 900, 600, 10
# a sample during which others had more than this share of the CPUs is taken again, so many times at most
TAKES, DISTURBED = 8, 0.05
PEAK_S = 0.2  # what the measurement of the peak takes behind the steps
# Large allocations in huge pages and never given back: worth a fifth to PyTorch.
PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
# name: (what people read, interpreter, modules it needs, precision, program and options)
RIVALS = {
    "torch": ("PyTorch", "main", ["torch"], "f32", ["torch_bench.py"]),
    "torch-bf16": ("PyTorch, autocast", "main", ["torch"], "bf16", ["torch_bench.py", "--bf16"]),
    "torch-compiled": ("PyTorch, compiled", "main", ["torch"], "f32", ["torch_bench.py", "--compile"]),
    "torch-compiled-bf16": ("PyTorch, compiled, autocast", "main", ["torch"], "bf16",
                            ["torch_bench.py", "--compile", "--bf16"]),
    "torch-frozen": ("PyTorch, compiled, frozen", "main", ["torch"], "f32",
                     ["torch_bench.py", "--compile", "--freeze"]),
    "torchvision": ("torchvision", "main", ["torch", "torchvision"], "f32", ["torch_bench.py"]),
    "gensim": ("gensim", "main", ["gensim"], "f32", ["gensim_bench.py"]),
    "pillow": ("Pillow, torchvision", "main", ["torch", "torchvision", "PIL"], "f32", ["reader_bench.py"]),
    "mxnet": ("MXNet", "mxnet", ["mxnet"], "f32", ["mxnet_bench.py"]),
    "onnxruntime": ("ONNX Runtime", "main", ["torch", "onnx", "onnxruntime"], "f32",
                    ["onnx_bench.py", "--engine", "onnxruntime"]),
    "openvino": ("OpenVINO", "main", ["torch", "onnx", "openvino"], "f32", ["onnx_bench.py", "--engine", "openvino"]),
}


class Failure(Exception):
    """Why a contestant has no figures."""


def fail(text):
    print("measure.py: " + text, file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------- rows
def read_row(line):
    words = line.split()
    if len(words) != len(FIELDS):
        fail("a row has %d words, %s; this one has %d: %s" % (len(FIELDS), " ".join(FIELDS), len(words), line))
    row = dict(zip(FIELDS, words))
    try:
        row.update({k: int(row[k]) for k in ("batch", "warmup", "steps", "rounds")}, least=float(row["least"]),
                   rivals=row["rivals"].split(","))
    except ValueError as e:
        fail("row %s: %s" % (row["name"], e))
    unknown = [r for r in row["rivals"] if r not in RIVALS]
    if unknown:
        fail("row %s: there is no rival %s; there are %s" % (row["name"], unknown[0], ", ".join(RIVALS)))
    if row["mode"] not in MODES:
        fail("row %s: mode %s, not %s" % (row["name"], " or ".join(MODES), row["mode"]))
    return row


def sizes_of(row):
    """NAME:KEY=VALUE,..: what the model's constants are set to; `data` is a folder of --data instead of random data,
    `beam` the hypotheses of a sequence that is written, each a row of the program's batch."""
    sizes = dict(pair.partition("=")[::2] for pair in row["model"].partition(":")[2].split(",") if pair)
    return sizes, sizes.pop("data", None), sizes.pop("beam", None)


def data_of(row, a):
    """The folder whose data both sides read; None: random data."""
    data = sizes_of(row)[1]
    return data and os.path.join(os.path.abspath(a.data), data)


def read_rows(a):
    if a.row:
        return [read_row(a.row)]
    with open(os.path.join(HERE, "rows.txt")) as f:
        rows = [read_row(line) for line in f if line.strip() and not line.startswith("#")]
    if not a.rows:
        return rows
    names = [r["name"] for r in rows]
    for name in a.rows.split(","):
        if name not in names:
            fail("there is no row %s; there are %s" % (name, ", ".join(names)))
    return [r for r in rows if r["name"] in a.rows.split(",")]


def quick(row):
    """One short round, without rivals that take minutes to compile."""
    row["skipped"] = {r: "left out by --quick" for r in row["rivals"] if "--compile" in RIVALS[r][4]}
    row.update(rounds=1, steps=max(2, row["steps"] // 4))


# ---------------------------------------------------------------- contestants
class Rivals:
    """The interpreters of a folder made by run.sh, or one given by hand, and what they lack."""

    def __init__(self, folder, python):
        self.python = {"main": python or os.path.join(folder, "bin", "python"),
                       "mxnet": os.path.join(folder, "mxnet", "bin", "python")}
        self.lacks, self.omp, self.folder = {}, "", folder
        notes = os.path.join(folder, "missing.txt")  # `package: why`, written by run.sh
        if os.path.exists(notes):
            self.lacks = dict(line.strip().split(": ", 1) for line in open(notes) if ": " in line)
        if os.path.exists(self.python["main"]):
            prefix = subprocess.run([self.python["main"], "-c", "import sys; print(sys.prefix)"], capture_output=True,
                                    text=True).stdout.strip()
            self.omp = (glob.glob(prefix + "/lib/libiomp5.so") + [""])[0]

    def missing(self, name):
        """Why this rival cannot run; None: it can."""
        _, which, modules, _, _ = RIVALS[name]
        python = self.python[which]
        if not os.path.exists(python):
            return "not installed: " + self.lacks.get(which if which in self.lacks else modules[-1], "no %s" % python)
        for m in modules:
            done = subprocess.run([python, "-c", "import " + m], capture_output=True, text=True,
                                  env=self.environment(name, 1))
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["import fails"])[-1]
                return "not installed: " + self.lacks.get(m, why)
        return None

    def environment(self, name, threads):
        e = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS="1", GLIBC_TUNABLES=PAGES)
        if name.startswith("torch") and self.omp:  # one OpenMP runtime, and the fastest
            e["LD_PRELOAD"] = self.omp
        return e


def busy():
    """Seconds that all CPUs together have worked since the start of the machine."""
    with open("/proc/stat") as f:
        t = [int(x) for x in f.readline().split()[1:9]]
    return (sum(t) - t[3] - t[4]) / os.sysconf("SC_CLK_TCK")


def used(pid):
    """Seconds that a process has worked."""
    with open("/proc/%d/stat" % pid) as f:
        t = f.read().rpartition(")")[2].split()
    return (int(t[11]) + int(t[12])) / os.sysconf("SC_CLK_TCK")


def look(pid):
    return time.monotonic(), busy(), used(pid)


def others(before, after):
    """The share of the CPUs that others than this process had between two looks."""
    wall, work, own = (b - a for a, b in zip(before, after))
    return max(0.0, work - own) / (max(wall, 1e-3) * os.cpu_count())


def undisturbed(take, takes):
    """The sample that others disturbed least, of as many as it takes: take() gives the sample and their share."""
    best = None
    for i in range(takes):
        o, share = take()
        if best is None or share < best[1]:
            best = (o, share)
        if share <= DISTURBED:
            break
        time.sleep(1 + i)
    return best


def become_realtime():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME))


class Process:
    """A rival that has run its first step and waits, stopped."""

    def __init__(self, name, rivals, row, model, a):
        _, which, _, _, program = RIVALS[name]
        threads, realtime, data = a.threads, a.realtime, data_of(row, a)
        args = [rivals.python[which], os.path.join(HERE, program[0]), model, *program[1:], "--mode", row["mode"],
                "--batch", str(row["batch"]),
                "--warmup", str(row["warmup"]), "--threads", str(threads), "--serve"]
        args += ["--data", data] if data else []
        self.errors = tempfile.TemporaryFile("w+")
        early = realtime and "--compile" not in program  # compilers would hold up all else on the machine
        self.p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                  env=rivals.environment(name, threads), start_new_session=True,
                                  preexec_fn=become_realtime if early else None)
        self.about = self.answer(START_S)
        if realtime and not early:
            for task in os.listdir("/proc/%d/task" % self.p.pid):
                os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(REALTIME))
        os.killpg(self.p.pid, signal.SIGSTOP)

    def answer(self, limit):
        """The next line that is an object; libraries print other things too."""
        line, until = b"", time.monotonic() + limit
        while not line.startswith(b"{"):
            if not select.select([self.p.stdout], [], [], max(0, until - time.monotonic()))[0]:
                self.end()
                raise Failure("no answer within %d s" % limit)
            line = self.p.stdout.readline()
            if not line:
                self.p.wait()
                self.errors.seek(0)
                raise Failure("failed: " + (self.errors.read().strip().splitlines()
                                            or ["status %d" % self.p.returncode])[-1][:200])
        return json.loads(line)

    def sample(self, steps):
        os.killpg(self.p.pid, signal.SIGCONT)
        before = look(self.p.pid)
        self.p.stdin.write(b"%d\n" % steps)
        self.p.stdin.flush()
        o = self.answer(SAMPLE_S)
        share = others(before, look(self.p.pid))
        os.killpg(self.p.pid, signal.SIGSTOP)
        return o, share

    def end(self):
        try:
            os.killpg(self.p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.p.wait()


def our_arguments(row, a):
    """What `PROGRAM bench` is asked. Of generation, the steps of the row are sequences, of as many tokens as the model
    has places."""
    data, generates, beam = data_of(row, a), row["mode"] == "generate", sizes_of(row)[2]
    out = ["bench", "--json", "--warmup", str(row["warmup"]), "--repeat", str(row["steps"]) if generates else "1",
           "--threads", str(a.threads)]
    if row["mode"] == "reader":
        return out + ["--reader", "--steps", str(row["steps"]), "--data", data]
    out += ["--mode", row["mode"]] + (["--data", data] if data else ["--synthetic"])
    out += ["--beam", beam] if beam else []
    return out + (["--samples", str(row["batch"])] if generates else ["--steps", str(row["steps"])])


def our_sample(program, row, a):
    """One run of `PROGRAM bench`; others' share is that of its end, the measured steps: before, not all CPUs are
    needed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen([program, *our_arguments(row, a)], stdout=out, stderr=err, preexec_fn=become_realtime
                             if a.realtime else None)
        looks = [look(p.pid)]
        while os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:  # it stays to be looked at
            time.sleep(0.02)
            looks.append(look(p.pid))
        p.wait()
        out.seek(0)
        err.seek(0)
        if p.returncode:
            raise SystemExit("measure.py: %s bench: %s" % (row["model"], err.read().strip()))
        o = json.loads(out.read())
    if row["mode"] == "generate":  # a token is an example
        o.update(examples_per_s=o["tokens_per_s"], ms_per_step={"median": o["ms_per_token"]["median"] * o["length"]})
    begin = looks[-1][0] - o["ms_per_step"]["median"] * 1e-3 * row["steps"] - PEAK_S
    return o, others([x for x in looks if x[0] <= begin][-1] if looks[0][0] <= begin else looks[0], looks[-1])


def net_of(row):
    name = row["model"].partition(":")[0]
    net = os.path.join(ROOT, "models", name + ".net")
    return net if os.path.exists(net) else os.path.join(HERE, name + ".net")


def settings(row):
    """Constants of the row, as options of the compiler."""
    return [word for k, v in sizes_of(row)[0].items() for word in ("-D", "%s=%s" % (k, v))]


def build(mantou, row, folder):
    net = net_of(row)
    program, rows = os.path.join(folder, row["name"]), row["batch"] * int(sizes_of(row)[2] or 1)
    done = subprocess.run([mantou, "build", net, "-o", program, "--batch", str(rows), "--precision", row["precision"],
                           *settings(row)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("measure.py: mantou build %s failed: %s" % (net, done.stderr.strip()))
    return program


def work(mantou, row):
    """GFLOP of an example by direct sums, which is what all are asked for; Winograd does it with fewer."""
    net, options = net_of(row), ["--json", "--batch", str(row["batch"]), "--precision", "f32", *settings(row)]
    if row["mode"] in ("generate", "reader"):
        return 0.0
    if row["mode"] == "train":
        done = subprocess.run([mantou, "info", net, "--disable", "winograd", *options], capture_output=True, text=True)
    else:
        done = subprocess.run([mantou, "check", net, *options], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit("measure.py: %s: %s" % (net, done.stderr.strip()))
    o = json.loads(done.stdout)
    return (o["gflop_per_step"] if row["mode"] == "train" else sum(layer["flops"]
                                                                   for layer in o["layers"]) / 1e9) / row["batch"]


def export(rivals, row, folder):
    """The .onnx file of PyTorch's model, for the rivals that read one."""
    path = os.path.join(folder, row["name"] + ".onnx")
    done = subprocess.run([rivals.python["main"], os.path.join(HERE, "torch_bench.py"), row["model"], "--batch",
                           str(row["batch"]), "--export", path], capture_output=True, text=True)
    if done.returncode:
        raise Failure("no .onnx file: " + (done.stderr.strip().splitlines() or [""])[-1][:200])
    return path


# ---------------------------------------------------------------- one row
def start_rival(name, rivals, row, folder, a):
    why = row.get("skipped", {}).get(name) or rivals.missing(name)
    if why:
        raise Failure(why)
    model = export(rivals, row, folder) if RIVALS[name][4][0] == "onnx_bench.py" else row["model"]
    return Process(name, rivals, row, model, a)


def measure(row, rivals, a, folder):
    """The record of a row: what --json writes; figures that follow from the samples are left to `evaluate`."""
    program = build(a.mantou, row, folder)
    ours = {"name": "mantou", "target": "mantou", "precision": row["precision"], "samples": []}
    record = {k: row[k] for k in ("name", "model", "mode", "batch", "precision", "least", "steps", "rounds")}
    record.update(threads=a.threads, realtime=a.realtime, machine=machine(), gflop_per_example=work(a.mantou, row),
                  date=datetime.date.today().isoformat(), contestants=[ours])
    running = []
    try:
        for name in row["rivals"]:
            them = {"name": name, "precision": RIVALS[name][3]}
            record["contestants"].append(them)
            try:
                process = start_rival(name, rivals, row, folder, a)
                them.update(target=process.about["target"], first_step_s=process.about["first_step_s"], samples=[])
                running.append((them, process))
            except Failure as e:
                them["missing"] = str(e)
        for i in range(row["rounds"]):
            if sys.stderr.isatty():
                print("%s: round %d of %d" % (row["name"], i + 1, row["rounds"]), file=sys.stderr)
            o, share = undisturbed(lambda: our_sample(program, row, a), a.takes)
            ours["samples"].append(o["examples_per_s"]["median"])
            ours.update(peak_rss_bytes=max(o["peak_rss_bytes"], ours.get("peak_rss_bytes", 0)),
                        first_step_s=min(o.get("first_step_s") or 0, ours.get("first_step_s", 1e9)))
            record["others"] = max(share, record.get("others", 0))
            record["peak_gflops"] = max(o.get("peak_gflops") or 0, record.get("peak_gflops", 0))
            for them, process in list(running):
                try:
                    o, share = undisturbed(lambda: process.sample(row["steps"]), a.takes)
                    record["others"] = max(share, record["others"])
                    them["samples"].append(o["examples_per_s"])
                    them["peak_rss_bytes"] = o["peak_rss_bytes"]
                except Failure as e:
                    them["missing"] = str(e)
                    running.remove((them, process))
    finally:
        for _, process in running:
            process.end()
    return record


def machine():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def evaluate(record):
    """Adds what follows from the samples: median, best, rates, the best rival (by its median), the ratios and whether
    they are what was asked."""
    ran = []
    for c in record["contestants"]:
        if c.get("missing") or not c.get("samples"):
            continue
        c["median"], c["best"] = statistics.median(c["samples"]), max(c["samples"])
        c["gflops"] = c["median"] * record["gflop_per_example"]
        c["peak_share"] = c["gflops"] / record["peak_gflops"] if record["peak_gflops"] and record[
            "gflop_per_example"] else None
        ran.append(c)
    ours, them = ran[0], ran[1:]
    for c in them:
        c["ratio"] = ours["median"] / c["median"]
    if them:
        best = max(them, key=lambda c: c["median"])
        record.update(best_rival=best["name"], ratio={"median": ours["median"] / best["median"],
                                                      "best": ours["best"] / max(c["best"] for c in them)})
        record["met"] = record["ratio"]["median"] >= record["least"]
    else:
        record.update(best_rival=None, ratio=None, met=None)
    return record


# ---------------------------------------------------------------- tables for people
def number(x):
    return "%.0f" % x if x >= 1000 else "%.1f" % x if x >= 10 else "%.2f" % x


def label(c):
    if c["name"] == "mantou":
        return "mantou"
    text = RIVALS[c["name"]][0] if c["name"] in RIVALS else c["name"]
    version = c.get("target", "").split("+")[0].split()
    return text.replace(",", " %s," % version[-1],
                        1) if version and "," in text else text + (" " + version[-1] if version else "")


def print_row(r):
    print("\n%s: %s, %s, batch %d, %s; %d rounds of %d steps, %d threads%s; measured peak %.0f GFLOP/s; others had "
          "%.0f %% of the CPUs at most" % (
        r["name"], r["model"], MODES[r["mode"]], r["batch"], r["precision"], r["rounds"], r["steps"], r["threads"],
        ", real time" if r.get("realtime") else "", r["peak_gflops"], 100 * r.get("others", 0)))
    print("  %-36s %-5s %10s %10s %8s %7s %9s %12s %7s" % ("", "", "median/s", "best/s", "GFLOP/s", "peak", "MB",
                                                           "first step s", "ratio"))
    for c in r["contestants"]:
        if "median" not in c:
            print("  %-36s %-5s %s" % (label(c), c["precision"], c.get("missing", "no samples")))
            continue
        print("  %-36s %-5s %10s %10s %8.0f %7s %9.0f %12.3f %7s" % (label(c), c["precision"], number(c["median"]),
                                                                     number(c["best"]), c["gflops"],
              "%.1f %%" % (100 * c["peak_share"]) if c["peak_share"] else "-", c["peak_rss_bytes"] / 1e6,
              c["first_step_s"], "%.2f" % c["ratio"] if "ratio" in c else ""))
    if r["ratio"]:
        print("  mantou is %.2f times the best rival, %s, by medians, %.2f by bests; at least %.2f is asked: %s" % (
            r["ratio"]["median"], label(next(c for c in r["contestants"] if c["name"] == r["best_rival"])),
            r["ratio"]["best"], r["least"], "met" if r["met"] else "NOT met"))
    else:
        print("  no rival ran: no ratio")
    sys.stdout.flush()


def print_summary(records):
    print("\n%-16s %12s  %-34s %12s %7s %7s  %s" % ("row", "mantou/s", "best rival", "/s", "ratio", "asked", ""))
    for r in records:
        ours = r["contestants"][0]
        best = next((c for c in r["contestants"] if c["name"] == r["best_rival"]), None)
        print("%-16s %12s  %-34s %12s %7s %7.2f  %s" % (r["name"], number(ours["median"]),
                                                        label(best) + ", " + best["precision"] if best else "none ran",
                                                        number(best["median"]) if best else "-",
              "%.2f" % r["ratio"]["median"] if best else "-", r["least"], "" if not best else "met" if r["met"]
              else "NOT met"))
    ratios = {r["name"]: r["ratio"]["median"] for r in records if r["ratio"]}
    if ratios:
        least = min(ratios, key=ratios.get)
        print("of %d rows the geometric mean is %.2f, the least %.2f (%s)" % (len(ratios),
                                                                              statistics.geometric_mean(
                                                                                  ratios.values()), ratios[least],
                                                                                  least))
    print("GFLOP/s count sums done directly, for all; Winograd does 3x3 convolutions with fewer, so that a share may "
          "exceed the peak.")


def main():
    p = argparse.ArgumentParser(prog="measure.py", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--rows", metavar="ROW,ROW", help="only these")
    p.add_argument("--row", metavar="TEXT", help="a row that is not in the table: " + " ".join(FIELDS))
    p.add_argument("--rounds", type=int, metavar="N", help="instead of the row's")
    p.add_argument("--takes", type=int, default=TAKES, metavar="N",
                   help="a sample that others disturbed is taken so many times at most (default %d)" % TAKES)
    p.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N")
    p.add_argument("--quick", action="store_true", help="one short round, without compiled rivals")
    p.add_argument("--list", action="store_true", help="the rows, and end")
    p.add_argument("--rivals", default=".", metavar="DIR", help="the folder that run.sh installs into")
    p.add_argument("--python", metavar="FILE", help="an interpreter with the rivals, instead of that folder's")
    p.add_argument("--data", default=os.path.join(os.path.dirname(ROOT), "shared", "data"), metavar="DIR",
                   help="folder of the data sets that some rows read")
    p.add_argument("--mantou", default=os.path.join(ROOT, "build", "mantou"), metavar="FILE")
    p.add_argument("--realtime", action="store_true", help="samples at SCHED_FIFO %d: on a shared machine" % REALTIME)
    p.add_argument("--json", metavar="FILE", help="a line a row, appended")
    p.add_argument("--from", dest="source", metavar="FILE", help="tables of an earlier --json FILE")
    a = p.parse_args()
    for name in ("rounds", "threads"):
        if getattr(a, name) is not None and getattr(a, name) < 1:
            fail("--%s: a positive number is needed" % name)
    if a.source:
        try:
            with open(a.source) as f:
                records = [evaluate(json.loads(line)) for line in f if line.strip()]
        except (OSError, ValueError) as e:
            fail("--from %s: %s" % (a.source, e))
        for r in records:
            print_row(r)
        print_summary(records)
        return
    rows = read_rows(a)
    if a.list:
        print("# " + " ".join(FIELDS))
        for r in rows:
            print(" ".join(",".join(r[k]) if k == "rivals" else str(r[k]) for k in FIELDS))
        return
    if a.realtime:
        try:
            subprocess.run(["true"], preexec_fn=become_realtime, check=True)
        except (subprocess.SubprocessError, OSError):
            fail("--realtime: not permitted here")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # rivals end with us
    rivals, records = Rivals(os.path.abspath(a.rivals), a.python), []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            data = data_of(row, a)
            if data and not os.path.isdir(data):
                print("%s: not measured: no folder %s (--data)" % (row["name"], data))
                continue
            if a.quick:
                quick(row)
            if a.rounds:
                row["rounds"] = a.rounds
            records.append(evaluate(measure(row, rivals, a, folder)))
            print_row(records[-1])
            if a.json:
                with open(a.json, "a") as f:
                    f.write(json.dumps(records[-1]) + "\n")
    print_summary(records)


if __name__ == "__main__":
    main()
