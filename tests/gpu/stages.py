"""stages.py STAGE DIR RESULTS: one stage of run.sh; stages.py table DIR RESULTS: the table. A stage is a list of items;
each adds a JSON object with stage, item and status (ok, FAIL, skip, with why) to RESULTS, and is not done again where
it stands there. Standard library only, but for torch_cuda.py."""
import atexit, concurrent.futures, contextlib, ctypes, importlib.util, json, lzma, os, re
import select, shutil, statistics, subprocess, sys, tarfile, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
STAGE, DIR, RESULTS = sys.argv[1], *map(os.path.abspath, sys.argv[2:4])
sys.path.insert(0, os.path.join(root, "tests", "sink"))
ABOUT = json.load(open(os.path.join(DIR, "about.json"))) if os.path.exists(os.path.join(DIR, "about.json")) else {}
TINY = ABOUT.get("tiny", False)
LIBCUDA = os.environ.get("MANTOU_LIBCUDA") or "libcuda.so.1"
UNPACKED = []    # the folder of programs that were packed
PREPARED = ABOUT.get("id", "")   # results of another preparation do not count
# seconds for some steps of a small model: a kernel that waits for ever must not take a stage's time
HUNG = float(os.environ.get("GPU_HUNG") or (60 if TINY else 20))


class Skip(Exception):
    pass


AGAIN = os.environ.get("GPU_AGAIN") == "1"       # what failed is done once more
BEGUN = []       # items of this process: not a second time


def done():
    last = {}
    with open(RESULTS) as f:
        for o in map(json.loads, f):
            if o["status"] != "timeout" and o.get("prepared", PREPARED) == PREPARED:
                last[o["stage"], o["item"]] = o["status"]
    return {k for k, status in last.items() if not (AGAIN and status == "FAIL" and k not in BEGUN)}


def item(name, f, *args):
    """Does f unless it stands in the results; what it returns is added to its line."""
    if (STAGE, name) in done():
        return
    BEGUN.append((STAGE, name))
    begin, line = time.time(), {"stage": STAGE, "item": name, "status": "ok", "prepared": PREPARED}
    try:
        line.update(f(*args) or {})
    except Skip as e:
        line.update(status="skip", why=str(e))
    except Exception as e:
        line.update(status="FAIL", why="%s: %s" % (type(e).__name__, str(e)[-600:]))
    line["seconds"] = round(time.time() - begin, 2)
    with open(RESULTS, "a") as f:
        f.write(json.dumps(line) + "\n")
    print("%-5s %s %s%s" % (line["status"], STAGE, name, ": " + line["why"] if "why" in line else ""), flush=True)


def run(*args, seconds=120, **env):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=seconds,
                       env=dict(os.environ, **env))
    assert r.returncode == 0, "%s: status %d: %s" % (" ".join(map(str, args)), r.returncode,
                                                     (r.stderr or r.stdout).strip())
    note = [l for l in r.stderr.splitlines() if "no loop in a graph" in l]
    assert not note or driver_version() < 12040, "%s: %s" % (" ".join(map(str, args)), note[0])
    return r.stdout


def driver_version():
    version = ctypes.c_int()
    return 0 if ctypes.CDLL(LIBCUDA).cuDriverGetVersion(ctypes.byref(version)) else version.value


def path(row):
    if "program" not in row:
        raise Skip("was not built: " + row["missing"])
    packed = os.path.abspath(os.path.join(DIR, row["program"]))
    if not UNPACKED:
        UNPACKED.append(tempfile.mkdtemp(prefix="gpu."))
        atexit.register(shutil.rmtree, UNPACKED[0])
    to = os.path.join(UNPACKED[0], row["name"])
    if not os.path.exists(to):
        with lzma.open(packed) as f, open(to, "wb") as g:
            shutil.copyfileobj(f, g)
        os.chmod(to, 0o755)
    return to


# ---- 1: what there is
def smi():
    if not shutil.which("nvidia-smi"):
        raise Skip("no nvidia-smi here")
    keys = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_mode"
    return dict(zip(keys.split(","), (x.strip() for x in run("nvidia-smi", "--query-gpu=" + keys,
                                                             "--format=csv,noheader",
                                                             seconds=20).splitlines()[0].split(","))))


ATTRIBUTES = {"multiprocessors": 16, "l2_bytes": 38, "shared_bytes_per_block": 97,
              "shared_bytes_per_multiprocessor": 81, "registers_per_multiprocessor": 82, "clock_khz": 13,
              "memory_clock_khz": 36, "memory_bus_bits": 37, "major": 75, "minor": 76, "cooperative": 95,
              "clusters": 120}


def driver():
    """Attributes, and what copying within the device moves a second, read and written."""
    lib, device, context, value, out = ctypes.CDLL(LIBCUDA), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), {}

    def call(name, *args):
        status = getattr(lib, name)(*args)
        assert status == 0, "%s: status %d" % (name, status)
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(value))
    out["driver_cuda"] = value.value
    call("cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(200)
    call("cuDeviceGetName", name, 200, device)
    out["name"] = name.value.decode()
    for k, number in ATTRIBUTES.items():
        out[k] = value.value if lib.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else None
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    free, total, a, b = (ctypes.c_size_t() for _ in range(4))
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    n, times = (1 << 16 if TINY else 1 << 30), 3 if TINY else 20
    for x in (a, b):
        call("cuMemAlloc_v2", ctypes.byref(x), ctypes.c_size_t(n))
        call("cuMemsetD8_v2", x, ctypes.c_ubyte(1), ctypes.c_size_t(n))
    for repeat in range(2):
        call("cuCtxSynchronize")
        begin = time.perf_counter()
        for _ in range(times):
            call("cuMemcpyDtoDAsync_v2", b, a, ctypes.c_size_t(n), None)
        call("cuCtxSynchronize")
        out["copy_gbytes_s"] = round(2e-9 * n * times / (time.perf_counter() - begin), 3)
    for x in (a, b):
        call("cuMemFree_v2", x)
    return dict(out, memory_free=free.value, memory_total=total.value)


def there():
    found = {"nvcc": shutil.which("nvcc"), "ncu": shutil.which("ncu"),
             "compute-sanitizer": shutil.which("compute-sanitizer")}
    for module in ("torch", "triton"):
        try:
            found[module] = subprocess.run([sys.executable, "-c", "import %s; print(%s.__version__)"
                                            % (module, module)], capture_output=True, text=True,
                                            timeout=30).stdout.strip() or None
        except subprocess.TimeoutExpired:
            found[module] = "not imported within 30 s"
    return dict(found, python=sys.version.split()[0], cpus=os.cpu_count(), commit=ABOUT["commit"],
                arch=ABOUT["arch"])


def probe():
    item("nvidia-smi", smi)
    item("driver", driver)
    item("programs", there)


# ---- 2: single instructions
def instructions(group):
    folder = os.path.abspath(os.path.join(DIR, "kernels"))
    program, libraries = os.path.join(folder,
                                      "simtest"), [
                                          os.path.dirname(os.path.abspath(LIBCUDA))] if os.sep in LIBCUDA else []
    if not os.path.exists(program):
        raise Skip("no instructions were prepared")
    os.chmod(program, 0o755)
    r = subprocess.run([program, group], capture_output=True, text=True, timeout=30 + HUNG,
                       env=dict(os.environ, SIM_HARDWARE="1", MANTOU_NVRTC="none",
                                LD_LIBRARY_PATH=":".join(libraries + [os.environ.get("LD_LIBRARY_PATH", "")])))
    said = r.stdout.strip().splitlines() or [""]
    m = re.match(r"(\d+) passed, (\d+) failed, ", said[-1])
    assert m and m.group(2) == "0", "%s: %s %s" % (said[-1], " | ".join(said[:-1][:12]), r.stderr[-300:])
    return {"runs": int(m.group(1))}


def intrinsics():
    for group in ("ops", "convert", "matrix"):
        item(group, instructions, group)


# ---- 3: kernels
KERNEL_SECONDS = 220


def lines_until_quiet(args, env, seconds):
    """Lines of a program's output, and its status: None if for that long it says nothing, or the stage's time is
    over."""
    p = subprocess.Popen(args, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = b""
    while True:
        if not select.select([p.stdout], [], [], max(0, seconds()))[0]:
            p.kill()
            p.wait()
            return said.decode(errors="replace").splitlines(), None
        part = os.read(p.stdout.fileno(), 65536)
        if not part:
            return said.decode(errors="replace").splitlines(), p.wait()
        said += part


def kernel_cases(row, cache):
    """What fails so that the device is of no more use, or hangs, ends its process; the next one goes on behind that
    case."""
    folder, end, bad, at = os.path.abspath(os.path.join(DIR, "kernels")), time.time() + KERNEL_SECONDS, [], 0
    args = [os.path.join(folder, "cuda"), *(os.path.join(root, f) for f in row["files"]),
            *([row["word"]] if row["word"] else [])]
    os.chmod(args[0], 0o755)
    while True:
        env = dict(os.environ, CUDA_TEST_CACHED="1", CUDA_TEST_TRACE="1", CUDA_TEST_FROM=str(at),
                   CUDA_TEST_ARCH=row["arch"], MANTOU_CACHE=cache, MANTOU_LIBNVRTC=os.path.join(folder, "libnvrtc.so"),
                   LD_LIBRARY_PATH=folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
        said, status = lines_until_quiet(args, env, lambda: min(HUNG, end - time.time()))
        if status == 77:
            skipping(said[-1])
        bad += [l for l in said if l.startswith("FAIL")]
        begun = [m for m in (re.match(r"run (\d+): (.*)", l) for l in said) if m]
        ended = re.match(r"sm_\w+: (\d+) runs, (\d+) failures$", said[-1] if said else "")
        if status is None and begun:
            bad.append("FAIL %s: hangs" % begun[-1].group(2))
        if ended or not begun or int(begun[-1].group(1)) <= at or time.time() > end or len(bad) > 40:
            break
        at = int(begun[-1].group(1))
    assert ended and not bad, "%s (on the simulated device: %s): %d failures: %s" % (said[-1] if said else status,
                                                                                     row["expected"], len(bad),
                                                                                     " | ".join(bad[:12]))
    return {"runs": int(ended.group(1)), "failures": 0}


def kernels():
    if not ABOUT["kernels"]:
        return item("all", skipping, "no kernels were prepared")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(os.path.join(DIR, "kernels", "cache.tar.xz")) as t:
            t.extractall(folder)
        # side by side: the driver compiles each kernel's PTX, which takes longer than running it
        with concurrent.futures.ThreadPoolExecutor(max(1, min(len(ABOUT["kernels"]), os.cpu_count() or 1))) as pool:
            list(pool.map(lambda row: item(row["name"], kernel_cases, row, os.path.join(folder, "cache")),
                          ABOUT["kernels"]))


def skipping(why):
    raise Skip(why)


# ---- 4: every way to run gives the same bits
def same_bits(row):
    from numbers_near import bits, near
    image, folder = path(row), os.path.abspath(os.path.join(DIR, "small"))
    train = lambda save, *args: run(image, "train", "--synthetic", "--no-eval", "--quiet", "--steps", "5", "--save",
                                    save + ".st", "--log", save + ".log", *args, seconds=HUNG)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as back:
        back.callback(os.chdir, before)
        os.chdir(work)
        train("a", "--sink", "off")              # the plainest first: what fails is named by the first mode that does
        for i, more in enumerate((["--sink", "off"], ["--sink", "1"], ["--sink", "3"], ["--sink", "epoch"], [])):
            train("b%d" % i, *more)
            assert bits("b%d" % i) == bits("a"), "other bits with %s" % (" ".join(more) or "the same once more")
        train("h", "--stop", "2")
        os.unlink("h.log")
        train("h", "--resume", "h.st")
        assert bits("h")[0] == bits("a")[0], "other bits when stopped and resumed"
        near(row["precision"], "a", *(os.path.join(folder, n) for n in (row["name"] + ".cpu", row["net"] + ".truth",
                                                                        row["net"] + ".start")))
    return {}


def modes():
    for row in ABOUT["small"]:
        item(row["name"], same_bits, row)


# ---- 5: what a loop costs
def bench(row, *args, steps, seconds=120):
    return json.loads(run(path(row), "bench", "--synthetic", "--json", "--warmup", "2" if TINY else "20", "--steps",
                          steps, "--repeat", "2" if TINY else "3", *args, seconds=seconds))


def loop_cost(row, sink):
    o = bench(row, "--sink", sink, steps=2 if TINY else 50 if sink == "off" else 500, seconds=30 + HUNG)
    return {"steps_per_s": round(1e3 / o["ms_per_step"]["median"], 1),
            "us_per_kernel": round(1e3 * o["ms_per_step"]["median"] / o["kernels_per_step"], 3),
            "kernels": o["kernels_per_step"]}


def loop():
    for row in ABOUT["small"]:
        if row["precision"] == "f32":
            for sink in ("off", "1", "10", "epoch"):
                item("%s sink %s" % (row["name"], sink), loop_cost, row, sink)


# ---- 6: whole models
NEAR = {"f32": 1e-3, "bf16": 0.01, "f16": 0.01}


def first_losses(row):
    """Two steps in the real shapes, near the CPU's in f32: a wrong kernel of any family is farther off."""
    from numbers_near import losses
    if not row.get("losses"):
        return {"why": "too large a model for the CPU that prepared this: its losses are not compared"}
    with tempfile.TemporaryDirectory() as work:
        log = os.path.join(work, "log")
        run(path(row), "train", "--synthetic", "--steps", "2", "--no-eval", "--no-save", "--quiet", "--log", log,
            seconds=60)
        got = losses(log)
    # the second step's differs by what the first update makes of roundings too
    assert len(got) == 2 and all(abs(a - b) <= far * NEAR[row["precision"]] * max(1, abs(b))
                                 for far, a, b in zip((1, 4), got,
                                                      row["losses"])), "losses %s, on the CPU in f32 %s" % (
                                                          got, row["losses"])
    return {"losses": got}


def measure(row):
    o = bench(row, steps=1 if TINY else 30 if row["gflop_per_step"] > 500 else 100, seconds=100)
    ms = o["ms_per_step"]["median"]
    return {**first_losses(row), "who": "mantou", "model": row["model"], "batch": row["batch"],
            "precision": row["precision"], "without": row["without"] and ", without " + row["without"],
            "forecast_ms": row.get("forecast_ms"), "device": o["device"], "examples_per_s": o["examples_per_s"],
            "ms_per_step": o["ms_per_step"],
            "kernels": o["kernels_per_step"], "tflops": round(row["gflop_per_step"] / ms, 3),
            "plan_gbytes_s": round(row["bytes_per_step"] / ms / 1e6, 1),
            "plan_mb_per_example": round(row["bytes_per_step"] / row["batch"] / 1e6, 2),
            "device_bytes": o.get("device_bytes"), "host_share": host_share(row, ms)}


def host_share(row, ms):
    """The CPU's time as a share of the time, over some seconds of training."""
    import resource
    steps = 2 if TINY else max(20, int(3000 / ms))
    clock = lambda: (lambda u: u.ru_utime + u.ru_stime)(resource.getrusage(resource.RUSAGE_CHILDREN))
    used, begin = [], []
    for n in (1, steps):                         # what the start takes is taken off
        before, start = clock(), time.perf_counter()
        run(path(row), "bench", "--synthetic", "--json", "--warmup", "1", "--steps", n, "--repeat", "1")
        used.append(clock() - before)
        begin.append(time.perf_counter() - start)
    return round((used[1] - used[0]) / max(1e-9, begin[1] - begin[0]), 4)


def models():
    for row in ABOUT["models"]:
        item(row["name"], measure, row)


# ---- 7: kernels that were prepared race
def race(row):
    """The journal stays beside the results, is gone on with by --again, and is what `mantou tune --results` reads."""
    image, journal = path(row), "%s.%s" % (RESULTS, row["name"])
    more = ["--resume"] if os.path.exists(journal) else []
    r = subprocess.run([image, "race", "--synthetic", "--budget", "%ds" % row["seconds"], "-o", journal, *more],
                       capture_output=True, text=True, timeout=row["seconds"] + 30 + HUNG)
    said = (r.stderr or r.stdout).strip().splitlines() or [""]
    assert r.returncode == 0, "status %d: %s" % (r.returncode, " | ".join(said[-6:]))
    with open(journal) as f:
        lines = [json.loads(l) for l in f]
    out = [o["out"] for o in lines if "out" in o]
    results = [o["result"] for o in lines if "result" in o]
    assert not out, "%d kernels left: %s" % (len(out), "; ".join("%s: %s" % (o["kernel"], o["why"]) for o in out[:6]))
    won = sorted((o for o in results if o["won"]), key=lambda o: -o["share"] * o["gain"])
    return {"said": said[-1], "kernels": len(results), "checked": sum(len(o["good"]) for o in lines if "good" in o),
            "then": "%s %s" % (row["then"], os.path.basename(journal)),
            "won": [{k: o[k] for k in ("record", "kernel", "gain", "low", "high", "us", "share")} for o in won[:20]]}


def tune():
    if not ABOUT.get("tune"):
        return item("all", skipping, "no races were prepared")
    for row in ABOUT["tune"]:
        item(row["name"], race, row)


# ---- 8: PyTorch
RIVAL = []       # asked once: None, or why there is none


def torch_row(row, how):
    if not RIVAL:
        r = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
                           capture_output=True, text=True)
        RIVAL.append("no torch here" if r.returncode else None if "True" in r.stdout else "torch sees no GPU")
    if RIVAL[0]:
        raise Skip(RIVAL[0])
    out = run(sys.executable, os.path.join(here, "torch_cuda.py"), row["model"], "--batch", row["batch"], "--precision",
              row["precision"], "--how", how, "--steps", 30 if row["gflop_per_step"] > 500 else 100,
              seconds=110)
    return dict(json.loads(out.strip().splitlines()[-1]), who="torch " + how)


def torch():
    for how in ("eager", "graphs", "compiled"):
        for row in ABOUT["models"]:
            if "program" in row and not row.get("without"):
                item("%s %s" % (row["name"], how), torch_row, row, how)


# ---- 9: kernel by kernel
def profile(row):
    """Time per kernel beside the bytes that the plan gives it: the rate that they would make. A rate above the memory's
    says that a cache served it."""
    trace = os.path.join(tempfile.gettempdir(), "mantou-trace.json")
    o = bench(row, "--profile=" + trace, steps=1 if TINY else 10, seconds=30 + HUNG)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(trace)
    plan = {k["name"]: k for k in row["kernels"]}
    rows = [{"name": k["name"], "kernel": plan.get(k["name"], {}).get("kernel", "").split("{")[0],
             "us": round(1e6 * k["seconds"], 2), "mb": round(k["bytes"] / 1e6, 3),
             "gbytes_s": round(k["bytes"] / k["seconds"] / 1e9, 1), "tflops": round(k["gflop"] / k["seconds"] / 1e3, 2),
             "forecast_us": plan.get(k["name"], {}).get("forecast_us"), "why": plan.get(k["name"], {}).get("why", "")}
             for k in o["kernels"] if k["seconds"] > 0]
    assert rows, "no kernels"
    rows.sort(key=lambda k: -k["us"])
    told = [k for k in rows if k["forecast_us"]]
    # by the time that is told wrongly: what to mend first
    worst = sorted(told, key=lambda k: -abs(k["us"] - k["forecast_us"]))[:10]
    return {"sum_ms": round(sum(k["us"] for k in rows) / 1e3, 3), "kernels": len(rows), "slowest": rows[:40],
            "forecast_ms": round(sum(k["forecast_us"] for k in told) / 1e3, 3),
            "measured_of_those_ms": round(sum(k["us"] for k in told) / 1e3, 3), "farthest_forecasts": worst}


def counters(row):
    """ncu's own count of the memory's bytes beside the plan's, for the kernels of one step."""
    if not shutil.which("ncu"):
        raise Skip("no ncu here")
    text = run("ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--launch-skip",
               row_kernels(row) + 2, "--launch-count", row_kernels(row) + 2, "--metrics", "dram__bytes.sum",
               path(row), "bench", "--synthetic", "--sink", "off", "--warmup", "1", "--steps", "1", "--repeat", "1",
               "--quiet", seconds=80)
    import csv
    lines = [l for l in text.splitlines() if l.startswith('"')]
    seen = {}
    for o in csv.DictReader(lines):
        if o.get("Metric Name") == "dram__bytes.sum":
            assert o["Metric Unit"] == "byte", o
            seen[o["Kernel Name"].split("(")[0]] = float(o["Metric Value"].replace(",", ""))
    plan = {k["name"]: k["bytes"] for k in row["kernels"]}
    both = [(seen[k], plan[k]) for k in seen if k in plan]
    assert both, "ncu names no kernel of the plan: %s" % text[-300:]
    far = sorted(((seen[k] / 1e6, plan[k] / 1e6, k) for k in seen if k in plan), key=lambda x: -abs(x[0] - x[1]))
    return {"measured_mb": round(sum(b[0] for b in both) / 1e6, 2), "plan_mb": round(sum(b[1] for b in both) / 1e6, 2),
            "kernels": len(both),
            "farthest": [{"name": k, "measured_mb": round(a, 3), "plan_mb": round(b, 3)} for a, b, k in far[:20]]}


TOOLS = ("memcheck", "racecheck", "synccheck")


def sanitized(row, tool):
    """A step of a small program, kernel by kernel, under compute-sanitizer: what the simulated device looks for, on
    real memory."""
    if not shutil.which("compute-sanitizer"):
        raise Skip("no compute-sanitizer here")
    r = subprocess.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", "--print-limit", "8", path(row),
                        "train", "--synthetic", "--no-eval", "--no-save", "--quiet", "--sink", "off", "--steps", "1"],
                       capture_output=True, text=True, timeout=60 + HUNG)
    said = (r.stdout + r.stderr).strip().splitlines()
    assert r.returncode == 0 and any("ERROR SUMMARY: 0 errors" in l or "RACECHECK SUMMARY: 0 hazards" in l
                                     for l in said), "status %d: %s" % (r.returncode, " | ".join(said[-12:]))
    return {}


def sanitize():
    rows = [r for r in ABOUT["small"] if r["precision"] != "f32"][:2]
    for tool in TOOLS:
        for row in rows:
            item("%s %s" % (row["name"], tool), sanitized, row, tool)


def row_kernels(row):
    return sum(k["name"].startswith("train_") or k["name"].startswith("update_") for k in row["kernels"])


def profiles():
    rows = [r for r in ABOUT["models"] if "program" in r and not r.get("without")]
    for row in rows:
        item(row["name"], profile, row)
    for row in rows[:1] + [r for r in rows if r["model"] == "resnet50"][:1]:
        item(row["name"] + " counters", counters, row)


# ---- 10: a conformance kit's operators
KIT_SECONDS = 480


def kit_cases(row, end):
    """Program by program against the kit's own numbers; what was built before stands in for the compiler."""
    if importlib.util.find_spec("numpy") is None:
        raise Skip("no numpy here")
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(os.path.join(DIR, "kit", row["precision"] + ".tar.xz")) as t:
            t.extractall(work)
        try:
            r = subprocess.run([sys.executable, os.path.join(DIR, "kit", "run.py"), "--mantou",
                                os.path.join(work, "kit", "mantou"), "--timeout", str(int(HUNG)), "-j",
                                str(min(16, os.cpu_count() or 1)), *row["args"]],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=max(1, end - time.time()))
        except subprocess.TimeoutExpired as e:
            said, ended = (e.stdout or b"").decode(errors="replace").splitlines(), None
        else:
            said = r.stdout.decode(errors="replace").splitlines()
            ended = re.match(r"(\d+) passed, (\d+) failed, \d+ skipped", said[-1] if said else "")
    bad = [l for l in said if l.startswith("FAIL")]
    if ended and int(ended.group(1)) == row["cases"] and not bad:
        return {"cases": row["cases"]}
    return {"status": "FAIL", "why": "%s, of %d cases; %s" % (said[-1] if ended else "cut off after %d lines"
                                                              % len(said), row["cases"], " | ".join(bad[:6])),
                                                              "failures": bad}


def kit():
    end = time.time() + KIT_SECONDS
    if not ABOUT.get("kit"):
        return item("all", skipping, "no kit was prepared")
    for row in ABOUT["kit"]:
        item(row["precision"], kit_cases, row, end)


# ---- the table
def table():
    lines = [json.loads(l) for l in open(RESULTS)]
    this = PREPARED or next((o["prepared"] for o in reversed(lines) if "prepared" in o), "")
    lines = [o for o in lines if o.get("prepared", this) == this]
    last = {}
    for o in lines:
        last[o["stage"], o["item"]] = o
    for (stage, name), o in list(last.items()):  # a stage that was cut off, and went on to its end
        if name == "*" and any(p["stage"] == stage for p in lines[lines.index(o) + 1:]):
            del last[stage, name]
    n = {s: sum(o["status"] == s for o in last.values()) for s in ("ok", "FAIL", "timeout", "skip")}
    for o in last.values():
        if o["status"] != "ok":
            print("%-7s %s %s: %s" % (o["status"], o["stage"], o["item"], o.get("why", "")))
    for o in last.values():
        if o["stage"] == "probe" and o["status"] == "ok":
            print("%s: %s" % (o["item"], ", ".join("%s %s" % (k, v) for k, v in o.items()
                                                   if k not in ("stage", "item", "status", "seconds", "prepared")
                                                   and v is not None)))
        elif o["stage"] == "kit" and o["status"] == "ok":
            print("conformance kit %s: %d cases, no failures" % (o["item"], o["cases"]))
        elif o["stage"] in ("intrinsics", "kernels") and o["status"] == "ok":
            print("%s %s: %d runs, no failures" % (o["stage"], o["item"], o["runs"]))
    for o in last.values():
        if o["stage"] == "tune" and o["status"] == "ok":
            print("\n%s: %d kernels, %d variants that compute the same; %s; then: %s" % (o["item"], o["kernels"],
                                                                                         o["checked"], o["said"],
                                                                                         o["then"]))
            for w in o["won"][:10]:
                print("  %.1f us, %.1f %% less (%.1f to %.1f): %s: %s"
                      % (w["us"], *(100 * w[k] for k in ("gain", "low", "high")), w["record"], w["kernel"]))
    loops = [o for o in last.values() if o["stage"] == "loop" and o["status"] == "ok"]
    if loops:
        print("\n| program and sink mode | steps/s | us a kernel | kernels |\n|---|---|---|---|")
        for o in loops:
            print("| %s | %.1f | %.2f | %d |" % (o["item"], o["steps_per_s"], o["us_per_kernel"], o["kernels"]))
    ours = {(o["model"], o["batch"], o["precision"] + o.get("without", "")): o for o in last.values()
            if o["stage"] == "models" and o["status"] == "ok"}
    if ours:
        print("\n| model, batch, precision | who | examples/s, median (best) | ms a step | mantou to this | TFLOP/s | "
              "kernels | host |\n|---|---|---|---|---|---|---|---|")
    for key, o in ours.items():
        rivals = [p for p in last.values() if p["stage"] == "torch" and p["status"] == "ok"
                  and (p["model"], p["batch"], p["precision"]) == key]
        for p in [o] + rivals:
            e = p["examples_per_s"]
            print("| %s, %d, %s | %s | %.1f (%.1f) | %.3f | %s | %s | %s | %s |" % (*key, p["who"], e["median"],
                                                                                    e["max"],
                                                                                    p["ms_per_step"]["median"],
                  "" if p is o else "%.2f (%.2f)" % (o["examples_per_s"]["median"] / e["median"],
                                                     o["examples_per_s"]["max"] / e["max"]), p.get("tflops", ""),
                                                     p.get("kernels", ""), p.get("host_share", "")))
    for o in last.values():
        if o["stage"] == "profile" and o["status"] == "ok" and "slowest" in o:
            print("\n%s: %d kernels, %.3f ms kernel by kernel\n| kernel | family | us | MB of the plan | GB/s | "
                  "TFLOP/s |\n|---|---|---|---|---|---|" % (o["item"], o["kernels"], o["sum_ms"]))
            for k in o["slowest"][:10]:
                print("| %s | %s | %.1f | %.3f | %.1f | %.2f |" % (k["name"], k["kernel"], k["us"], k["mb"],
                                                                   k["gbytes_s"], k["tflops"]))
            if o.get("farthest_forecasts"):
                print("\n%s: forecast %.3f ms, measured %.3f; by kernel the farthest apart\n| kernel | measured, us | "
                      "forecast, us | what was to bind it |\n|---|---|---|---|" % (o["item"], o["forecast_ms"],
                                                                                   o["measured_of_those_ms"]))
                for k in o["farthest_forecasts"]:
                    print("| %s | %.1f | %.1f | %s |" % (k["name"], k["us"], k["forecast_us"], k["why"] or "memory"))
        elif o["stage"] == "profile" and o["status"] == "ok":
            print("\n%s: the memory moved %.1f MB, the plan says %.1f" % (o["item"], o["measured_mb"], o["plan_mb"]))
    print("\n%d passed, %d failed, %d skipped" % (n["ok"], n["FAIL"] + n["timeout"], n["skip"]))
    return n["FAIL"] + n["timeout"] > 0


STAGES = {"probe": probe, "intrinsics": intrinsics, "kernels": kernels, "modes": modes, "loop": loop, "models": models,
          "tune": tune, "torch": torch, "profile": profiles, "sanitize": sanitize, "kit": kit, "table": table}
sys.exit(STAGES[STAGE]() or 0)
