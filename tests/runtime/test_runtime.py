"""test_runtime.py IMAGE: tests of the runtime through the executable of image.c. Standard library only.

Sink modes and thread counts give the same bits; a killed, stopped or interrupted run goes on with the same bits;
checkpoints survive a full disk and refuse damage; readers, weights and options name what is wrong."""
import gzip, hashlib, json, math, os, pty, random, re, resource, shutil, signal, struct, subprocess, sys, tempfile, time

IMAGE = os.path.abspath(sys.argv[1])
NAME = os.path.basename(IMAGE)
DEVICE = "device" in NAME    # ../device runs these tests on its executable
counts = {"passed": 0, "failed": 0, "skipped": 0}
NPY = '{"kind": "npy", "train": ["x.npy", "y.npy", "label.npy"], "test": ["x.npy", "y.npy", "label.npy"]}'


class Skip(Exception):
    pass


# ---- files
def npy(path, kind, shape, values, version=1, order="False", head=None):
    text = head if head is not None else "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }" % (
        kind, order, "".join("%d," % s for s in shape))
    room = 10 if version == 1 else 12
    text = text.encode() + b" " * (-(room + len(text) + 1) % 64) + b"\n"
    code = {"f4": "f", "f8": "d", "i8": "q", "i4": "i", "u1": "B", "b1": "B", "f2": "e"}[kind[1:]]
    data = struct.pack((">" if kind[0] == ">" else "<") + "%d%s" % (len(values), code), *values)
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text
                + data)


def read_npy(path):
    blob = open(path, "rb").read()
    n = struct.unpack("<H", blob[8:10])[0]
    head = eval(blob[10:10 + n])
    code = {"<f4": "f", "<i4": "i", "<i8": "q", "<f8": "d"}[head["descr"]]
    data = blob[10 + n:]
    return head["shape"], list(struct.unpack("<%d%s" % (len(data) // struct.calcsize(code), code), data))


def safetensors(path, tensors, meta=None):
    head, data = {}, b""
    if meta:
        head["__metadata__"] = meta
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def load(path):
    blob = open(path, "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8:8 + n])
    meta = head.pop("__metadata__", {})
    return {k: (v, blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}, meta


def states(path):
    """SHA-256 of a checkpoint: nothing in it depends on time."""
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def weights(path, w=(0.5, -0.5, 0.25, 1.0), b=0.125):
    safetensors(path, {"dense0.weight": ("F32", [1, 4], struct.pack("<4f", *w)),
                       "dense0.bias": ("F32", [1], struct.pack("<f", b))})


def data_set(n=100):
    r = random.Random(7)
    x = [r.uniform(-1, 1) for _ in range(4 * n)]
    npy("x.npy", "<f4", [n, 4], x)
    npy("y.npy", "<f4", [n], [x[4 * i] - 2 * x[4 * i + 1] + 3 * x[4 * i + 2] + 0.25 for i in range(n)])
    npy("label.npy", "<i8", [n], [i % 3 for i in range(n)])


# ---- running
def run(*args, env=None, status=0, err=None, out=None, **more):
    e = dict(os.environ, RTI_READER=NPY)
    e.update(env or {})
    r = subprocess.run([IMAGE] + [str(a) for a in args], env=e, capture_output=True, text=True, timeout=120, **more)
    shown = "%s: exit %d\n%s%s" % (" ".join(map(str, args)), r.returncode, r.stdout, r.stderr)
    assert r.returncode == status, "expected exit %s; %s" % (status, shown)
    for pattern, text in ((err, r.stderr), (out, r.stdout)):
        assert pattern is None or re.search(pattern, text), "expected %r; %s" % (pattern, shown)
    assert "Sanitizer" not in r.stderr and "runtime error" not in r.stderr, shown
    return r


def train(*args, **more):
    return run("train", "--data", ".", *args, **more)


def log(path):
    return [json.loads(line) for line in open(path)]


def left():
    """Names that no run may leave behind."""
    return [f for f in os.listdir(".") if ".tmp" in f or f.endswith(".lock")]


def steps(path):
    return [o for o in log(path) if "step" in o]


tests = []


def test(f):
    tests.append(f)
    return f


# ---- training
@test
def sink_modes_and_threads_give_the_same_bits():
    want = None
    for sink in ("epoch", "off", "1", "5"):
        for threads in (1, 2, 3):
            train("--sink", sink, "--threads", threads, "--save", "s.safetensors", "--log", "l.jsonl")
            got = states("s.safetensors"), [(o["step"], o["loss"], o["rate"], o["grad_norm"]) for o in steps("l.jsonl")]
            want = want or got
            assert got == want, (sink, threads)
    assert [s[0] for s in want[1]] == list(range(36))


@test
def accumulation_in_every_sink_mode():
    want = None
    for sink in ("epoch", "off", "2"):
        train("--sink", sink, "--save", "s.safetensors", "--log", "l.jsonl", env={"RTI_ACCUMULATE": "3"})
        got = states("s.safetensors"), [(o["step"], o["loss"], o["grad_norm"]) for o in steps("l.jsonl")]
        want = want or got
        assert got == want, sink
    assert len(want[1]) == 12    # 100 examples: 12 batches, 4 updates an epoch
    train("--sink", "off", "--save", "t.safetensors", "--stop", "6", env={"RTI_ACCUMULATE": "3"})
    train("--resume", "t.safetensors", "--save", "t.safetensors", env={"RTI_ACCUMULATE": "3"})
    assert states("t.safetensors") == want[0]


@test
def stopped_and_resumed_is_the_same():
    train("--save", "a.safetensors", "--log", "a.jsonl")
    for sink in ("epoch", "off", "4"):
        train("--save", "b.safetensors", "--log", "b.jsonl", "--stop", "17", "--sink", sink)
        assert load("b.safetensors")[1]["step"] == "17"
        train("--save", "b.safetensors", "--log", "b.jsonl", "--resume", "b.safetensors", "--sink", sink)
        assert states("a.safetensors") == states("b.safetensors")
        a, b = log("a.jsonl"), log("b.jsonl")
        for o in a + b:
            o.pop("seconds", 0), o.pop("examples_per_s", 0)
        assert a == b, [x for x in zip(a, b) if x[0] != x[1]][:2]


@test
def resume_keeps_the_plan():
    train("--steps", "30", "--stop", "10", "--save", "a.safetensors")
    train("--resume", "a.safetensors", "--steps", "40", status=1,
          err="a length in updates of T = 30, this run 40.*--replan")
    train("--resume", "a.safetensors", "--seed", "9", status=1, err="seed 3, this run 9.*--replan")
    train("--resume", "a.safetensors", "--steps", "40", "--replan", "--save", "b.safetensors")
    assert load("b.safetensors")[1]["total_steps"] == "40"
    train("--resume", "a.safetensors", "--save", "c.safetensors")
    assert load("c.safetensors")[1]["step"] == "30"
    train("--resume", "c.safetensors", "--steps", "20", "--replan", status=1, err="beyond this run's last step 20")


@test
def a_kill_leaves_the_last_whole_checkpoint():
    slow = {"RTI_SLEEP_US": "3000"}
    train("--epochs", "8", "--save", "a.safetensors")
    for wait in (0.05, 0.12, 0.2):
        while True:
            if os.path.exists("k.safetensors"):
                os.unlink("k.safetensors")
            p = subprocess.Popen([IMAGE, "train", "--data", ".", "--epochs", "8", "--every", "2", "--save",
                                  "k.safetensors", "--quiet",
                                  "--log", "k.jsonl"], env=dict(os.environ, RTI_READER=NPY, **slow))
            while not os.path.exists("k.safetensors") and p.poll() is None:
                time.sleep(0.005)
            time.sleep(wait)
            p.kill()
            if p.wait() != 0:
                break
            wait /= 2                            # it had come to its end: this machine is fast
            assert wait > 1e-3
        step = int(load("k.safetensors")[1]["step"])
        assert step % 2 == 0 and 0 < step < 96, step
        train("--resume", "k.safetensors", "--save", "k.safetensors", "--log", "k.jsonl")
        assert states("a.safetensors") == states("k.safetensors") and left() == [], left()
        assert [o["step"] for o in steps("k.jsonl")] == list(range(96))


@test
def ctrl_c_saves_and_exits_130():
    train("--epochs", "20", "--save", "a.safetensors", "--no-eval")
    for number, sink in ((signal.SIGINT, "epoch"), (signal.SIGINT, "off"), (signal.SIGTERM, "3")):
        open("c.jsonl", "w").close()
        p = subprocess.Popen([IMAGE, "train", "--data", ".", "--epochs", "20", "--save", "c.safetensors", "--quiet",
                              "--sink", sink, "--log", "c.jsonl"],
                             env=dict(os.environ, RTI_READER=NPY, RTI_SLEEP_US="5000"), stderr=subprocess.PIPE,
                             text=True)
        while not os.path.getsize("c.jsonl") and p.poll() is None:
            time.sleep(0.01)
        p.send_signal(number)
        err = p.communicate(timeout=10)[1]
        assert p.returncode == 128 + number, (p.returncode, err)
        step = int(load("c.safetensors")[1]["step"])
        assert 0 < step < 240 and len(steps("c.jsonl")) == step, (step, len(steps("c.jsonl")))
        assert "stopped after step %d of 240" % step in err, err
        train("--resume", "c.safetensors", "--save", "c.safetensors", "--no-eval")
        assert states("a.safetensors") == states("c.safetensors")


@test
def a_foreign_file_is_kept():
    open("f.safetensors", "w").write("mine")
    os.chmod("f.safetensors", 0o640)
    r = train("--save", "f.safetensors", "--steps", "3", "--every", "1")
    assert len(re.findall("note: .*/f.safetensors was not this run's: it is kept as .*/f.safetensors~; --overwrite",
                          r.stderr)) == 1, r.stderr
    assert os.stat("f.safetensors").st_mode & 0o777 == 0o640
    assert open("f.safetensors~").read() == "mine"
    first = states("f.safetensors")
    train("--save", "f.safetensors", "--resume", "f.safetensors", "--steps", "5", "--replan")
    assert open("f.safetensors~").read() == "mine"    # resumed from it: replaced
    r = train("--save", "f.safetensors", "--steps", "3")
    assert states("f.safetensors") == first and states("f.safetensors~") != first
    assert "/f.safetensors~, in place of what that was; --overwrite" in r.stderr, r.stderr
    r = train("--save", "f.safetensors", "--steps", "4", "--overwrite")
    assert r.stderr == "" and states("f.safetensors") != first and states("f.safetensors~") != first, r.stderr
    assert train("--save", "f.safetensors", "--steps", "3", "--quiet").stderr == "" and states("f.safetensors") == first
    train("--overwrite", "--no-save", status=2, err="--overwrite and --no-save exclude each other")
    os.mkdir("d.safetensors")
    train("--save", "d.safetensors", status=1, err="not a regular file")
    train("--save", "/dev/null", status=1, err="not a regular file")
    train("--save", "no/such/x.safetensors", status=1, err="No such file")


def start(*args, sleep="20000", **more):
    """A training in the background that takes its time: sleep is a step's, in microseconds."""
    return subprocess.Popen([IMAGE, "train", "--data", ".", "--quiet", "--no-eval", *args],
                            env=dict(os.environ, RTI_READER=NPY, RTI_SLEEP_US=sleep),
                            stderr=subprocess.PIPE, text=True, **more)


def wait_for(path, p):
    while not os.path.exists(path) and p.poll() is None:
        time.sleep(0.005)


def ended(p, status=0, err=""):
    text = p.communicate(timeout=120)[1]
    assert p.returncode == status and re.search(err, text), (p.returncode, text)


@test
def one_run_saves_to_a_checkpoint():
    train("--epochs", "5", "--no-eval", "--save", "a.safetensors", "--every", "1")
    os.symlink("s.safetensors", "link.safetensors")
    p = start("--epochs", "5", "--save", "s.safetensors", "--every", "1")
    wait_for("s.safetensors", p)
    for name in ("s.safetensors", "./s.safetensors", "link.safetensors"):
        train("--steps", "3", "--save", name, status=1,
              err=r"cannot save .*/s.safetensors: another run, process %d, saves there .it holds "
                  r".*s.safetensors.lock.; --save names another file, --no-save none" % p.pid)
    train("--steps", "3", "--no-save")
    reads = 0
    while p.poll() is None:                  # what stands there is whole at any moment
        run("eval", "--data", ".", "--weights", "s.safetensors")
        reads += 1
    ended(p)
    assert reads > 2 and states("s.safetensors") == states("a.safetensors") and left() == [], (reads, left())
    p = start("--epochs", "50", "--save", "s.safetensors")
    wait_for("s.safetensors.lock", p)
    p.kill()
    p.communicate()
    assert os.path.exists("s.safetensors.lock")
    train("--steps", "3", "--save", "s.safetensors")  # the lock of a killed run holds nobody up
    assert left() == []


@test
def temporary_files_of_killed_runs():
    import fcntl
    names = ["s.safetensors.tmp-0123456789ab", "p.npy.tmp-0123456789ab", "l.jsonl.tmp-0123456789ab",
             "t.json.tmp-0123456789ab", "s.safetensors~.tmp-0123456789ab"]
    mine = ["s.safetensors.tmp", "s.safetensors.tmp-backup", "s.safetensors.tmp-0123456789abc",
            "other.tmp-0123456789ab"]
    weights("w.safetensors")
    open("s.safetensors", "w").write("old")
    for f in names + mine:
        open(f, "w").write("x")
    held = open("s.safetensors.tmp-ba9876543210", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    train("--steps", "3", "--save", "s.safetensors", "--log", "l.jsonl")
    train("--resume", "s.safetensors", "--save", "s.safetensors", "--log", "l.jsonl")
    run("infer", "--weights", "w.safetensors", "--input", "x=x.npy", "--output", "pred=p.npy")
    run("bench", "--steps", "1", "--warmup", "1", "--repeat", "1", "--profile", "t.json")
    assert sorted(left()) == sorted(mine + ["s.safetensors.tmp-ba9876543210"]), left()
    held.close()
    train("--steps", "3", "--save", "s.safetensors")
    assert sorted(left()) == sorted(mine), left()


HELD = '''
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int rename(const char *from, const char *to)
{
	int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
	close(open("renaming", O_WRONLY | O_CREAT, 0666));
	for (int i = 0; i < 3000 && access("go", F_OK); i++)
		usleep(10000);
	return real(from, to);
}
'''


@test
def who_cleans_leaves_a_file_that_is_about_to_be_renamed():
    with open("held.c", "w") as f:
        f.write(HELD)
    if not shutil.which("cc") or subprocess.run(["cc", "-shared", "-fPIC", "-o", "held.so", "held.c", "-ldl"],
                                                capture_output=True).returncode:
        raise Skip("no C compiler for a rename that waits")
    weights("w.safetensors")
    infer = ("infer", "--weights", "w.safetensors", "--input", "x=x.npy", "--output", "pred=p.npy")
    save = ("train", "--data", ".", "--quiet", "--no-eval", "--steps", "3", "--save", "s.safetensors")
    for args, file, other in ((infer, "p.npy", dict()), (save, "s.safetensors",
                                                         dict(status=1,
                                                              err="another run, process [0-9]+, saves there"))):
        p = subprocess.Popen([IMAGE, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, RTI_READER=NPY, LD_PRELOAD=os.path.abspath("held.so"),
                                      ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0"))
        wait_for("renaming", p)
        open(file + ".tmp-0123456789ab", "w").close()
        run(*args, **other)
        assert os.path.exists(file + ".tmp-0123456789ab") == bool(other), "a run that is turned away touches nothing"
        open("go", "w").close()
        ended(p)
        assert os.path.exists(file)
        for f in ("go", "renaming", file + ".tmp-0123456789ab"):
            if os.path.exists(f):
                os.remove(f)
        assert left() == [], left()


@test
def files_that_cannot_be_written_are_noticed_at_once():
    def bad(err, *args, **more):
        r = train("--epochs", "3", *args, status=1, err=err, **more)
        assert "epoch" not in r.stdout, r.stdout
    open("f.safetensors", "w").write("mine")
    os.mkdir("f.safetensors~")
    bad(r"f.safetensors is there already and cannot be renamed: .*f.safetensors~: is a folder; --save", "--save",
        "f.safetensors")
    train("--steps", "3", "--save", "g.safetensors")
    os.mkdir("g.safetensors~")
    train("--resume", "g.safetensors", "--save", "g.safetensors")  # no backup is asked for
    bad("cannot save: no/such/f: No such file or directory; --save", "--save", "no/such/f", "--data", "nowhere")
    bad("cannot save: x.npy/f: Not a directory", "--save", "x.npy/f")
    bad("--log no/such/l: No such file", "--no-save", "--log", "no/such/l")
    bad("--log .: Is a directory|--log: .: is a folder", "--no-save", "--log", ".")
    bad("--log .*both.safetensors: the checkpoint is saved there", "--save", "both.safetensors", "--log",
        "./both.safetensors")
    run("bench", "--steps", "1000000", "--repeat", "1000", "--profile", "no/such/t.json", status=1,
        err="--profile: no/such/t.json: No such file")
    weights("w.safetensors")
    infer = ["infer", "--weights", "w.safetensors", "--input", "x=x.npy"]
    run(*infer, "--output", "pred=no/p.npy", status=1, err="--output pred: no/p.npy: No such file")
    run(*infer, "--output", "pred=.", status=1, err="--output pred: .: is a folder")
    run(*infer, "--output", "pred=p.npy", "--output", "pred=./p.npy", status=1,
        err="output pred has 2 files, and each input one")
    run(*infer, "--input", "x=x.npy", "--output", "pred=p.npy", "--output", "pred=./p.npy", status=1,
        err="output pred is to be written to ./p.npy twice")
    os.chmod(".", 0o755)
    if os.geteuid() == 0 and subprocess.run(["cat", IMAGE], user=65534, capture_output=True).returncode == 0:
        os.mkdir("tight")                    # whose files only their owner may rename, as in /tmp
        for f in ("f.safetensors", "f.safetensors~"):
            open("tight/" + f, "w").write("root's")
        os.chmod("tight", 0o1777)
        bad("tight/f.safetensors: Operation not permitted", "--save", "tight/f.safetensors", user=65534)
        os.chown("tight/f.safetensors", 65534, 65534)
        bad("cannot be renamed: .*tight/f.safetensors~: Operation not permitted", "--save", "tight/f.safetensors",
            user=65534)
        bad("h.safetensors: Permission denied", "--save", "h.safetensors", user=65534)
        bad("--log l.jsonl: Permission denied", "--no-save", "--log", "l.jsonl", user=65534)


@test
def devices_pipes_and_links():
    weights("w.safetensors")
    infer = ["infer", "--weights", "w.safetensors", "--input", "x=x.npy", "--output"]
    run(*infer, "pred=p.npy")
    want = open("p.npy", "rb").read()
    run(*infer, "pred=/dev/null")
    run(*infer, "pred=/dev/full", status=1, err="/dev/full: No space left")
    os.symlink("to.npy", "link.npy")         # of a file that is not there yet
    run(*infer, "pred=link.npy")
    assert os.path.islink("link.npy") and open("to.npy", "rb").read() == want
    os.mkfifo("fifo")
    for out in ("pred=fifo", "pred=/dev/stdout", "pred=/dev/fd/1"):
        cat = subprocess.Popen(["cat", "fifo"], stdout=subprocess.PIPE) if "fifo" in out else None
        p = subprocess.run([IMAGE] + infer + [out], env=dict(os.environ, RTI_READER=NPY), stdout=subprocess.PIPE,
                           timeout=60)
        assert (cat.communicate()[0] if cat else p.stdout) == want and p.returncode == 0, out
    with open("out", "w") as f:              # a descriptor that is a file: written as a descriptor, not replaced
        f.write("before\n")
        f.flush()
        subprocess.run([IMAGE] + infer + ["pred=/dev/stdout"], env=dict(os.environ, RTI_READER=NPY), stdout=f,
                       check=True, timeout=60)
    assert open("out", "rb").read() == b"before\n" + want
    with open("out", "w") as f:
        subprocess.run([IMAGE, "train", "--data", ".", "--no-save", "--no-eval", "--log", "/dev/stdout"],
                       env=dict(os.environ, RTI_READER=NPY), stdout=f, check=True, timeout=60)
    lines = open("out").read().splitlines()
    assert len(lines) == 42 and sum(line.startswith("epoch ")
                                    for line in lines) == 3 and sum(line.startswith('{"step"')
                                                                    for line in lines) == 36, lines
    for out in ("/dev/stdout", "/dev/null", "fifo"):
        train("--save", out, status=1, err="--save %s: is not a regular file" % out)
    train("--save", "s.safetensors", "--steps", "3")
    for args in ((), ("--resume", "s.safetensors", "--steps", "5", "--replan")):
        train("--no-save", "--log", "/dev/null", *args)
        train("--no-save", "--log", "/dev/full", *args, status=1,
              err="--log /dev/full: No space left on device: lines are missing")
        cat = subprocess.Popen(["cat", "fifo"], stdout=subprocess.PIPE, text=True)
        train("--no-save", "--no-eval", "--log", "fifo", *args)
        assert '{"step"' in cat.communicate()[0]
    os.symlink("real.jsonl", "l.jsonl")
    train("--save", "s.safetensors", "--stop", "5", "--log", "l.jsonl")
    train("--save", "s.safetensors", "--resume", "s.safetensors", "--log", "l.jsonl")
    assert os.path.islink("l.jsonl") and [o["step"] for o in steps("real.jsonl")] == list(range(36))
    p = start("--epochs", "3", "--no-save", "--log", "shared.jsonl")
    wait_for("shared.jsonl", p)
    time.sleep(0.1)
    train("--no-save", "--log", "shared.jsonl", status=1, err="--log shared.jsonl: another run writes there")
    ended(p)
    assert [o["step"] for o in steps("shared.jsonl")] == list(range(36)) and left() == []


@test
def who_reads_the_lines_may_leave():
    train("--epochs", "6", "--no-eval", "--save", "a.safetensors")
    p = subprocess.Popen([IMAGE, "train", "--data", ".", "--epochs", "6", "--no-eval", "--save", "s.safetensors"],
                         env=dict(os.environ, RTI_READER=NPY, RTI_SLEEP_US="5000"),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.readline()
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(timeout=60) == 128 + signal.SIGPIPE and "stopped after step" in err and "saved in" in err, (
        p.returncode, err)
    train("--resume", "s.safetensors", "--save", "s.safetensors", "--no-eval")
    assert states("s.safetensors") == states("a.safetensors")
    os.mkfifo("fifo")                        # a log's reader: the run goes on, and says that lines are missing
    p = start("--epochs", "6", "--save", "l.safetensors", "--log", "fifo", sleep="2000")
    with open("fifo") as f:
        f.readline()
    ended(p, 1, "--log fifo: Broken pipe: lines are missing")
    assert states("l.safetensors") == states("a.safetensors")


@test
def a_run_without_a_step_replaces_nothing():
    exe = os.path.abspath("named")
    shutil.copy(IMAGE, exe)

    def named(*args, status=0, err="nothing is saved; --save FILE"):
        p = subprocess.run([exe, "train", "--data", ".", *args], env=dict(os.environ, RTI_READER=NPY),
                           capture_output=True, text=True, timeout=60)
        assert p.returncode == status and re.search(err, p.stderr), (args, p.returncode, p.stderr)
    named("--epochs", "2", err="^$")
    want = states("named.safetensors")
    for args in (("--epochs", "0"), ("--steps", "0"), ("--stop", "0"), ("--resume", "named.safetensors"),
                 ("--resume", "named.safetensors", "--stop", "3")):
        named(*args)
        assert states("named.safetensors") == want and not os.path.exists("named.safetensors~") and left() == [], args
    named("--epochs", "0", "--quiet", err="^$")
    named("--epochs", "0", "--no-save", err="^$")
    named("--epochs", "0", "--save", "named.safetensors", err="^note: .*kept as .*\n$")
    assert load("named.safetensors")[1]["step"] == "0" and states("named.safetensors~") == want
    named("--stop", "0", "--save", "z.safetensors", err="^$")
    assert load("z.safetensors")[1]["step"] == "0"


@test
def another_precision_goes_on():
    half = {"RTI_PRECISION": "f16"}
    train("--save", "a.safetensors", "--log", "a.jsonl", "--stop", "17")
    r = train("--resume", "a.safetensors", "--save", "b.safetensors", "--log", "a.jsonl", env=half,
              err=r"note: a.safetensors is of a run in f32, this program computes in f16: it goes on with a new loss "
                  r"scale, and is no longer the same bits")
    assert load("b.safetensors")[1]["step"] == "36" and struct.unpack("<f",
                                                                      load("b.safetensors")[0]["loss_scale"][1]) == (
                                                                          32,)
    train("--save", "whole.safetensors", "--log", "whole.jsonl")
    same = lambda x, y: all(abs(x[k] - y[k]) < 1e-6 for k in ("loss", "mae", "grad_norm"))
    one, two = ([o["train"] for o in log(f) if "step" not in o] for f in ("a.jsonl", "whole.jsonl"))
    assert len(one) == 3 and all(map(same, one, two)), (one, two)  # the epoch's sums found their names
    train("--save", "c.safetensors", "--stop", "17", env=half)
    r = train("--resume", "c.safetensors", "--save", "d.safetensors", "--log", "d.jsonl",
              err=r"note: c.safetensors is of a run in f16, this program computes in f32: it goes on without a loss "
                  r"scale, and is no longer the same bits")
    assert "loss_scale" not in load("d.safetensors")[0] and same([o["train"] for o in log("d.jsonl")
                                                                  if "step" not in o][0], two[1]), r.stderr
    assert train("--resume", "c.safetensors", "--no-save",
                 env=half).stderr == "" and train("--resume", "c.safetensors", "--no-save", "--quiet").stderr == ""
    r = train("--resume", "c.safetensors", "--no-save", env={"RTI_ACCUMULATE": "2"}, status=1,
              err="dense0.weight.grad is missing: the checkpoint is of another model or optimizer")
    train("--save", "e.safetensors", "--stop", "2", env={"RTI_ACCUMULATE": "2"})
    train("--resume", "e.safetensors", "--no-save", "--replan",
          err="note: the program has no .*dense0.weight.grad.*: left over in e.safetensors")


@test
def default_save_and_no_save():
    exe = os.path.abspath("named")
    shutil.copy(IMAGE, exe)
    subprocess.run([exe, "train", "--data", ".", "--quiet"], check=True, env=dict(os.environ, RTI_READER=NPY))
    assert os.path.exists("named.safetensors") and left() == []
    os.unlink("named.safetensors")
    subprocess.run([exe, "train", "--data", ".", "--quiet", "--no-save"], check=True,
                   env=dict(os.environ, RTI_READER=NPY))
    assert not os.path.exists("named.safetensors")


@test
def a_full_disk_keeps_the_old_checkpoint():
    train("--steps", "4", "--save", "q.safetensors")
    before = states("q.safetensors")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
    run("train", "--data", ".", "--resume", "q.safetensors", "--steps", "6", "--replan", "--save", "q.safetensors",
        preexec_fn=limit, status=1,
        err="cannot save.*q.safetensors: File too large")
    assert states("q.safetensors") == before and left() == []
    train("--steps", "40", "--no-save", "--log", "q.jsonl", preexec_fn=limit, status=1,
          err="--log q.jsonl: File too large: lines are missing")
    train("--steps", "2", "--save", "q.safetensors")
    infer = ["infer", "--weights", "q.safetensors", "--input", "x=x.npy", "--output"]
    open("old.npy", "w").write("old")
    run(*infer, "pred=old.npy", preexec_fn=limit, status=1, err="old.npy: File too large")
    assert open("old.npy").read() == "old" and left() == []
    run(*infer, "pred=new.npy", preexec_fn=limit, status=1, err="new.npy: File too large")
    assert not os.path.exists("new.npy")
    os.symlink("old.npy", "link.npy")
    run(*infer, "pred=link.npy")
    assert os.path.islink("link.npy") and read_npy("old.npy")
    if os.geteuid() == 0 and shutil.which("mount"):
        os.mkdir("small")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", "small"],
                          capture_output=True).returncode == 0:
            try:
                train("--steps", "4", "--save", "small/q.safetensors")
                before = states("small/q.safetensors")
                open("small/fill", "wb").write(b"x" * 4096)
                train("--resume", "small/q.safetensors", "--steps", "6", "--replan", "--save", "small/q.safetensors",
                      status=1, err="No space left")
                assert states("small/q.safetensors") == before
            finally:
                subprocess.run(["umount", "small"])


@test
def steps_0_writes_the_initial_state():
    run("train", "--steps", "0", "--save", "i.safetensors")
    t, meta = load("i.safetensors")
    w = struct.unpack("<4f", t["dense0.weight"][1])
    assert meta["step"] == "0" and all(math.isfinite(v) and v != 0 for v in w)

    def philox(stream, group, seed=3):
        h = 0x811C9DC5
        for c in stream.encode():
            h = ((h ^ c) * 0x01000193) & 0xFFFFFFFF
        c, k = [group, 0, 0, 0], [seed, h]
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return [(x >> 8) * 2.0 ** -24 for x in c]
    u = philox("dense0.weight", 0)
    for j in (0, 2):
        r = 0.5 * math.sqrt(-2 * math.log(1 - u[j]))
        assert abs(r * math.cos(2 * math.pi * u[j + 1]) - w[j]) < 1e-7 and abs(r * math.sin(2 * math.pi * u[j + 1])
                                                                               - w[j + 1]) < 1e-7
    b = struct.unpack("<f", t["dense0.bias"][1])[0]
    assert abs(-0.5 + philox("dense0.bias", 0)[0] - b) < 1e-7
    train("--resume", "i.safetensors", "--save", "j.safetensors")
    train("--save", "k.safetensors")
    assert states("j.safetensors") == states("k.safetensors")


@test
def the_lines_of_an_epoch():
    r = train("--epochs", "2", "--no-save")
    lines = r.stdout.splitlines()
    assert len(lines) == 4, lines
    for i, line in enumerate(lines[::2]):
        assert re.fullmatch(r"epoch %d/2  loss \d+\.\d{4}  mae \d+\.\d{4}  \d+\.\d s  \d+ examples/s" % (i + 1),
                            line), line
    assert re.fullmatch(r"eval  loss \d+\.\d{4}  mae \d+\.\d{4}", lines[1]), lines[1]
    assert r.stderr == ""
    assert train("--quiet", "--no-save").stdout == ""
    assert len(train("--no-eval", "--no-save", "--epochs", "1").stdout.splitlines()) == 1


@test
def the_log():
    train("--log", "l.jsonl", "--no-save", "--epochs", "2")
    lines = log("l.jsonl")
    assert [o["epoch"] for o in lines if "step" not in o] == [0, 1]
    first = [o for o in lines if o.get("epoch") == 0 and "step" in o]
    mean = sum(o["loss"] for o in first) / len(first)
    epoch = [o for o in lines if "step" not in o][0]
    assert abs(epoch["train"]["loss"] - mean) < 1e-6 * mean and set(epoch) == {"epoch", "train", "eval", "seconds",
                                                                               "examples_per_s"}
    assert re.match(r'\{"step": 0, "epoch": 0, "loss": [0-9.]+, "rate": 0\.001, "mae"', open("l.jsonl").readline())
    train("--log", "no/such/l.jsonl", "--no-save", status=1, err="--log no/such/l.jsonl: No such file")


@test
def rates():
    def curve(rate, *args):
        train("--log", "r.jsonl", "--no-save", "--no-eval", "--allow-nan", *args, env={"RTI_RATE": json.dumps(rate)})
        return [o["rate"] for o in steps("r.jsonl")]

    def close(got, want):
        assert len(got) == len(want) and all(abs(a - b) <= 1e-8 * abs(b) + 1e-12
                                             for a, b in zip(got, want)), (got, want)
    close(curve({"kind": "constant", "rate": 1e-3}, "--steps", "3"), [1e-3] * 3)
    warm = lambda t, w: 1e-3 + (0.05 - 1e-3) * t / w
    f = lambda t, w, n: (t - w) / (n - w)
    base = {"from": 1e-3, "peak": 0.05, "to": 1e-4}
    close(curve(dict(base, kind="cosine", warmup_steps=4), "--steps", "20"),
          [warm(t, 4) if t < 4 else 1e-4 + (0.05 - 1e-4) * (1 + math.cos(math.pi * f(t, 4, 20))) / 2
           for t in range(20)])
    close(curve(dict(base, kind="poly", power=2, warmup_epochs=0.5), "--epochs", "2"),
          [warm(t, 6) if t < 6 else 1e-4 + (0.05 - 1e-4) * (1 - f(t, 6, 24)) ** 2 for t in range(24)])
    close(curve(dict(base, kind="linear"), "--steps", "10"), [1e-4 + (0.05 - 1e-4) * (1 - t / 10) for t in range(10)])
    close(curve({"kind": "step", "rate": 0.01, "at": [1, 2], "factor": 0.1}),
          [0.01 * 0.1 ** (t // 12) for t in range(36)])


@test
def a_loss_that_is_not_finite():
    huge = {"RTI_RATE": '{"kind": "constant", "rate": 1e18}'}
    for sink in ("epoch", "off"):
        r = train("--save", "n.safetensors", "--sink", sink, env=huge, status=1,
                  err=r"the loss of step [0-9]+ is -?(inf|nan).*nothing was saved.*--allow-nan")
        assert not os.path.exists("n.safetensors")
    r = train("--save", "m.safetensors", "--every", "1", env=huge, status=1,
              err="last good checkpoint is .*m.safetensors, of step")
    step = int(re.search(r"the loss of step (\d+)", r.stderr).group(1))
    assert int(load("m.safetensors")[1]["step"]) == step
    train("--save", "o.safetensors", "--allow-nan", "--log", "o.jsonl", env=huge)
    assert load("o.safetensors")[1]["step"] == "36" and steps("o.jsonl")[-1]["loss"] is None


@test
def a_fault_stops_before_any_update():
    npy("label.npy", "<i8", [100], [11 if i == 3 else 0 for i in range(100)])
    try:
        run("train", "--steps", "0", "--save", "i.safetensors")
        env = {"RTI_LIMIT": "0"}             # the reader lets it pass: the graph's check finds it
        for sink in ("epoch", "off"):
            r = train("--sink", sink, "--save", "f.safetensors", env=env, status=1,
                      err=r"embedding0: id 11 is out of range 0\.\.2 \(example \d of step \d+, line\.net:3:9\)")
            assert not os.path.exists("f.safetensors")
        train("--sink", "off", status=1, err=r"label.npy: label 11 is out of range 0\.\.2 \(element 3, example 3\)")
    finally:
        data_set()


@test
def shuffling_follows_seed_and_epoch():
    def losses(*args):
        train("--log", "l.jsonl", "--no-save", "--no-eval", "--steps", "5", *args)
        return [o["loss"] for o in steps("l.jsonl")]
    assert losses() == losses() and losses("--seed", "8") != losses()


def on_terminal(columns, *args, **extra):
    """What a training prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    import fcntl, termios
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = dict(os.environ, RTI_READER=NPY, RTI_SLEEP_US="20000", TERM="xterm", **extra)
    p = subprocess.Popen([IMAGE, "train", "--data", ".", "--no-save", "--epochs", "1", *args], env=env, stdout=slave,
                         stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    assert p.wait() == 0
    os.close(master)
    return text.decode()


@test
def progress_bar_on_a_terminal():
    for extra in ({}, {"NO_COLOR": "1"}):
        text = on_terminal(120, **extra)
        assert re.search(r"\repoch 1/1 .*/12  loss", text), text
        assert ("\033[36m" in text) == (not extra), text


@test
def progress_bar_fits_and_ends():
    for columns in (60, 80, 300):
        for _ in range(5):  # a run may end before the first tenth of a second, when a bar is drawn
            text = on_terminal(columns, NO_COLOR="1")
            bars = re.findall(r"\r(epoch [^\r\n]*)\033\[K", text)
            if bars and any("█" in b for b in bars):
                break
        assert bars and all("/12  loss" in b and len(b) < columns for b in bars), (columns, bars)
        assert any("█" in b for b in bars), (columns, bars)
    for args in ((), ("--no-eval",)):
        text = on_terminal(100, *args)
        assert text.endswith("\n"), text  # no bar after the last line
    assert "\033[K" not in on_terminal(50, NO_COLOR="1")


# ---- evaluation, inference
@test
def evaluation():
    weights("w.safetensors")
    for threads in (1, 2):
        r = run("eval", "--data", ".", "--weights", "w.safetensors", "--json", "--threads", threads)
        o = json.loads(r.stdout)
        assert o["examples"] == 100 and set(o) == {"examples", "loss", "metrics"} and list(o["metrics"]) == ["mae"]
    x, y = read_npy("x.npy")[1], read_npy("y.npy")[1]
    error = [sum(a * b for a, b in zip(x[4 * i:4 * i + 4], (0.5, -0.5, 0.25, 1))) + 0.125 - y[i] for i in range(100)]
    assert abs(o["loss"] - sum(e * e for e in error) / 100) < 1e-5 and abs(o["metrics"]["mae"]
                                                                           - sum(map(abs, error)) / 100) < 1e-5
    assert re.match(r"eval  loss", run("eval", "--data", ".", "--weights", "w.safetensors").stdout)
    run("eval", "--data", ".", "--weights", "w.safetensors", env={"RTI_FULL_ONLY": "why (line.net:1:1)"}, status=1,
        err=r"100 test examples are no multiple of the batch of 8, and why \(line.net:1:1\); "
            r"`mantou build --batch` of a number")
    run("eval", "--weights", "w.safetensors", status=2, err="--data DIR")
    run("eval", "--synthetic", "--weights", "w.safetensors")


@test
def inference():
    weights("w.safetensors")
    x = read_npy("x.npy")[1]
    want = [sum(a * b for a, b in zip(x[4 * i:4 * i + 4], (0.5, -0.5, 0.25, 1))) + 0.125 for i in range(100)]
    for n in (1, 7, 8, 9, 100):
        npy("part.npy", "<f4", [n, 4], x[:4 * n])
        run("infer", "--weights", "w.safetensors", "--input", "x=part.npy", "--output", "pred=p.npy")
        shape, got = read_npy("p.npy")
        assert shape == (n,) and all(abs(a - b) < 1e-5 for a, b in zip(got, want)), n
    npy("wide.npy", ">f8", [100, 2, 2], x)
    run("infer", "--weights", "w.safetensors", "--input", "x=wide.npy", "--input", "y=y.npy", "--output", "pred=q.npy")
    assert read_npy("q.npy")[1] == got
    bad = lambda err, *a: run("infer", "--weights", "w.safetensors", *a, status=1, err=err)
    bad("no input z", "--input", "z=x.npy", "--output", "pred=p.npy")
    bad("no output prde; did you mean pred", "--input", "x=x.npy", "--output", "prde=p.npy")
    bad("input x is missing", "--output", "pred=p.npy")
    bad("y.npy holds 100 examples, the inputs before it 9", "--input", "x=part9.npy", "--input", "y=y.npy", "--output",
        "pred=p.npy") if npy("part9.npy", "<f4", [9, 4], x[:36]) is None else 0
    bad("do not make input x", "--input", "x=y.npy", "--output", "pred=p.npy")
    bad("No such file", "--input", "x=none.npy", "--output", "pred=p.npy")
    run("infer", "--weights", "w.safetensors", "--input", "x", "--output", "pred=p.npy", status=2, err="NAME=FILE")


# ---- checkpoints
@test
def weights_and_partial():
    f = lambda *v: struct.pack("<%df" % len(v), *v)
    weights("w.safetensors")
    train("--weights", "w.safetensors", "--steps", "0", "--save", "a.safetensors")
    assert load("a.safetensors")[0]["dense0.weight"][1] == f(0.5, -0.5, 0.25, 1.0)
    safetensors("m.safetensors", {"dense0.weights": ("F32", [1, 4], f(1, 2, 3, 4)), "dense0.bias": ("F32", [1], f(9)),
                                  "other": ("F32", [1], f(0))})
    train("--weights", "m.safetensors", "--steps", "0", status=1,
          err="parameter dense0.weight is missing .there is dense0.weights.*--partial")
    r = train("--weights", "m.safetensors", "--partial", "--steps", "0", "--save", "b.safetensors")
    assert "dense0.weight is not in the file" in r.stderr and "no dense0.weights, other: left over" in r.stderr.replace(
        "\n", " "), r.stderr
    run("train", "--steps", "0", "--save", "i.safetensors")
    assert load("b.safetensors")[0]["dense0.weight"][1] == load("i.safetensors")[0]["dense0.weight"][1]
    assert load("b.safetensors")[0]["dense0.bias"][1] == f(9)
    safetensors("s.safetensors", {"dense0.weight": ("F32", [4], f(1, 2, 3, 4)), "dense0.bias": ("F32", [1], f(9))})
    train("--weights", "s.safetensors", status=1, err=r"dense0.weight is f32\[4\], the model has f32\[1, 4\]")
    safetensors("t.safetensors", {"dense0.weight": ("I32", [1, 4], f(1, 2, 3, 4)), "dense0.bias": ("F32", [1], f(9))})
    train("--weights", "t.safetensors", status=1, err=r"dense0.weight is i32\[1, 4\]")
    bf16 = b"".join(f(v)[2:] for v in (0.5, -0.5, 0.25, 1.0))
    safetensors("h.safetensors", {"dense0.weight": ("BF16", [1, 4], bf16),
                                  "dense0.bias": ("F64", [1], struct.pack("<d", 0.125))})
    train("--weights", "h.safetensors", "--steps", "0", "--save", "c.safetensors")
    assert states("c.safetensors") == states("a.safetensors")
    train("--resume", "w.safetensors", status=1, err="no checkpoint of a training; --weights")


@test
def damaged_checkpoints():
    train("--steps", "5", "--save", "g.safetensors")
    blob = open("g.safetensors", "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]

    def bad(err, data):
        open("bad.safetensors", "wb").write(data)
        train("--resume", "bad.safetensors", "--no-save", status=1, err=err)
        run("eval", "--data", ".", "--weights", "bad.safetensors", status=1, err="bad.safetensors")
    bad("is empty", b"")
    bad("4 bytes", blob[:4])
    bad("truncated", blob[:-5])
    bad("truncated", blob[:50])
    bad("belong to none", blob + b"x")
    bad("check sum|damaged", blob[:-1] + bytes([blob[-1] ^ 1]))
    bad("limit|announces", struct.pack("<Q", 1 << 60) + blob[8:])
    r = random.Random(3)
    for bit in [r.randrange(8 * len(blob)) for _ in range(150)] + list(range(64)):
        data = bytearray(blob)
        data[bit // 8] ^= 1 << bit % 8
        open("bad.safetensors", "wb").write(data)
        p = subprocess.run([IMAGE, "eval", "--data", ".", "--weights", "bad.safetensors"],
                           env=dict(os.environ, RTI_READER=NPY), capture_output=True, text=True)
        assert p.returncode == 1 and p.stderr, (bit, p.returncode, p.stdout, p.stderr)
    f4 = struct.pack("<4f", 1, 2, 3, 4)

    def header(err, o, data=f4 + f4):
        text = json.dumps(o).encode()
        open("bad.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
        run("eval", "--data", ".", "--weights", "bad.safetensors", status=1, err=err)
    w = {"dtype": "F32", "shape": [1, 4], "data_offsets": [0, 16]}
    header("overlaps", {"dense0.weight": w, "dense0.bias": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
                        "x": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]}})
    header("hole", {"dense0.weight": w, "dense0.bias": {"dtype": "F32", "shape": [3], "data_offsets": [20, 32]}})
    header("lie outside", {"dense0.weight": dict(w, data_offsets=[0, 64])})
    header("its type and shape need", {"dense0.weight": dict(w, shape=[1, 5])})
    header("bad shape", {"dense0.weight": dict(w, shape=[1 << 40, 1 << 40])})
    header("unknown element type", {"dense0.weight": dict(w, dtype="Q7")})
    header("no data_offsets", {"dense0.weight": dict(w, data_offsets=[16])})
    open("bad.safetensors", "wb").write(struct.pack("<Q", 200) + b"[" * 200)
    run("eval", "--data", ".", "--weights", "bad.safetensors", status=1, err="nested too deeply")
    text = json.dumps({"a": dict(w,
                                 shape=[4])})[:-1] + ', "a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}}'
    open("bad.safetensors", "wb").write(struct.pack("<Q", len(text)) + text.encode() + f4 + f4)
    run("eval", "--data", ".", "--weights", "bad.safetensors", status=1, err="stands there twice")


# ---- readers
def reader(kind, train_files, test_files=None, **more):
    return {"RTI_READER": json.dumps(dict(kind=kind, train=train_files, test=test_files or train_files, **more))}


@test
def bad_npy_files():
    x = read_npy("x.npy")[1]
    good = ["x.npy", "y.npy", "label.npy"]

    def bad(err, name="b.npy", files=None):
        train("--no-save", env=reader("npy", files or [name] + good[1:]), status=1, err=err)
    bad("no file matches none", "none*.npy")
    run("train", "--data", "nowhere", "--no-save", status=1, err="--data nowhere: No such file")
    bad("names 2 files, the model has 3 inputs", files=good[:2])
    open("b.npy", "wb").write(b"")
    bad("b.npy: not a .npy file")
    open("b.npy", "wb").write(open("x.npy", "rb").read()[:-3])
    bad("truncated: 400 elements of f32 need 1600 bytes, the file has 1597")
    open("b.npy", "wb").write(open("x.npy", "rb").read() + b"x")
    bad("wrong size")
    open("b.npy", "wb").write(open("x.npy", "rb").read()[:40])
    bad("truncated header")
    npy("b.npy", "<f4", [100, 4], x, order="True")
    bad("Fortran order")
    npy("b.npy", "<f4", [100, 4], x, head="{'descr': '<c8', 'fortran_order': False, 'shape': (100, 4), }")
    bad("'<c8' is not one of f8 f4 f2 i8 i4 u1 b1 i2 u2 i1: numpy's astype makes it one")
    npy("b.npy", "<f4", [100, 4], x, head="{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, "
                                          "4), }")
    bad("bad header")
    npy("b.npy", "<f4", [100, 4], x, head="{'descr': '<f4'")
    bad("bad header")
    npy("b.npy", "<f4", [100], x[:100])
    bad(r"b.npy: holds f32\[100\], which cannot be reshaped to input x")
    npy("b.npy", "<f4", [50, 4], x[:200])
    bad("b.npy holds 50 examples, .*y.npy 100")
    npy("b.npy", "<f4", [0, 4], [])
    bad("no examples|holds 0 examples")
    for n in ("sx", "sy", "sl"):
        npy(n + ".npy", "<f4", [5, 4] if n == "sx" else [5], [0] * (20 if n == "sx" else 5))
    bad("5 training examples are fewer than one batch of 8", files=["sx.npy", "sy.npy", "sl.npy"])
    npy("big.npy", "<i8", [100], [1 << 40] * 100)
    train("--no-save", env=dict(reader("npy", good[:2] + ["big.npy"]), RTI_LIMIT="0"), status=1,
          err="1099511627776 does not fit in i32, the type of input label")
    for version in (2, 3):
        npy("b.npy", "<f8", [100, 4], x, version=version)
        train("--no-save", env=reader("npy", ["b.npy"] + good[1:]))
    train("--no-save", env={"RTI_READER": '{"kind": "none"}'}, status=1, err="no data block.*--synthetic")
    run("train", "--synthetic", "--no-save", "--steps", "3", env={"RTI_READER": '{"kind": "none"}'})


@test
def globs_and_gzip():
    x = read_npy("x.npy")[1]
    npy("part_a.npy", "<f4", [60, 4], x[:240])
    npy("part_b.npy", "<f4", [40, 4], x[240:])
    gz = gzip.compress(open("part_b.npy", "rb").read())
    open("part_b.npy", "wb").write(gz)
    train("--save", "a.safetensors")
    train("--save", "b.safetensors", env=reader("npy", ["part_*.npy", "y.npy", "label.npy"]))
    assert states("a.safetensors") == states("b.safetensors")
    open("part_b.npy", "wb").write(gz[:-20])
    train("--no-save", env=reader("npy", ["part_*.npy", "y.npy", "label.npy"]), status=1,
          err="part_b.npy: gzip: truncated")
    open("part_b.npy", "wb").write(gz[:30] + b"\xff\xff" + gz[32:])
    train("--no-save", env=reader("npy", ["part_*.npy", "y.npy", "label.npy"]), status=1, err="part_b.npy: gzip: ")
    os.mkdir("od[d]*")
    for f in ("x.npy", "y.npy", "label.npy"):
        shutil.copy(f, "od[d]*")
    run("train", "--data", "od[d]*", "--no-save")


def idx(path, kind, shape, raw, pack=False):
    blob = struct.pack(">BBBB", 0, 0, kind, len(shape)) + b"".join(struct.pack(">I", s) for s in shape) + raw
    open(path, "wb").write(gzip.compress(blob) if pack else blob)


@test
def idx_files():
    x = read_npy("x.npy")[1]
    y = read_npy("y.npy")[1]
    idx("x.idx", 13, [100, 2, 2], struct.pack(">400f", *x), pack=True)
    idx("y.idx", 13, [100], struct.pack(">100f", *y))
    idx("l.idx", 8, [100], bytes(i % 3 for i in range(100)))
    train("--save", "a.safetensors")
    train("--save", "b.safetensors", env=reader("idx", ["x.idx", "y.idx", "l.idx"]))
    assert states("a.safetensors") == states("b.safetensors")

    def bad(err):
        train("--no-save", env=reader("idx", ["x.idx", "y.idx", "b.idx"]), status=1, err=err)
    train("--no-save", env=reader("idx", ["l.idx", "l.idx", "l.idx"]), status=1,
          err=r"input label is fed by .*l.idx: .*l.idx: holds u8\[100\], which cannot be reshaped to input x")
    train("--no-save", env=reader("idx", ["x.idx", "y.idx", "y.idx"]), status=1,
          err=r"y.idx: \S+ is no whole number, and input label is i32, a label or id \(element 0, example 0\)")
    train("--no-save", "--data", "l.idx", env=reader("idx", ["x.idx", "y.idx", "l.idx"]), status=1,
          err="--data l.idx: is a file; --data names the folder that holds x.idx")
    open("b.idx", "wb").write(b"\0\0")
    bad("b.idx: not an IDX file")
    idx("b.idx", 10, [100], b"\0" * 100)
    bad("element type 0x0a")
    idx("b.idx", 8, [100], b"\0" * 99)
    bad("truncated: 100 elements of u8 need 100 bytes, the file has 99")
    idx("b.idx", 8, [90], b"\0" * 90)
    bad("100 examples, .*b.idx 90")
    idx("b.idx", 8, [100], b"\0" * 99 + b"\3")
    bad(r"label 3 is out of range 0\.\.2 \(element 99, example 99\)")


@test
def cifar_files():
    def bad(err, data):
        open("c.bin", "wb").write(data)
        train("--no-save", env=reader("cifar10", ["c*.bin"]), status=1, err=err)
    bad("input x has 4 elements", bytes(3073 * 3))


# ---- other commands
@test
def bench_reports():
    o = json.loads(run("bench", "--steps", "5", "--warmup", "2", "--repeat", "2", "--json", "--threads", "2").stdout)
    for key in ("model", "target", "precision", "mode", "batch", "threads", "steps", "repeats", "gflop_per_step",
                "gflops", "peak_share", "peak_rss_bytes",
                "kernels_per_step", "first_step_s"):
        assert key in o, key
    assert o["mode"] == "train" and o["steps"] == 5 and o["repeats"] == 2 and o["threads"] == 2 and o[
        "batch"] == 8 and o["kernels_per_step"] == 5
    assert o["examples_per_s"]["min"] <= o["examples_per_s"]["median"] <= o["examples_per_s"][
        "max"] and "suspect" not in o
    assert abs(o["ms_per_step"]["median"] * o["examples_per_s"]["median"] / 8000 - 1) < 1e-6
    o = json.loads(run("bench", "--mode", "infer", "--steps", "5", "--json", "--profile", "t.json").stdout)
    assert o["mode"] == "infer" and [k["name"] for k in o["kernels"]] == ["pack", "pred"]
    assert json.load(open("t.json"))["traceEvents"][1]["name"] == "pred"
    o = json.loads(run("bench", "--mode", "infer", "--latency", "--steps", "50", "--repeat", "2", "--json").stdout)
    us = o["latency_us"]
    assert us["calls"] == 100 and 0 < us["min"] <= us["median"] <= us["p99"] <= us["max"], us
    # a step is a call: their mean cannot lie outside of what the calls took
    assert us["min"] <= 1e3 * o["ms_per_step"]["max"] and 1e3 * o["ms_per_step"]["min"] <= us["max"] + 50, o
    r = run("bench", "--mode", "infer", "--latency", "--steps", "5", "--repeat", "1")
    assert re.search(r"^latency us +[0-9.]+ median, [0-9.]+ 99th percentile, [0-9.]+ min, [0-9.]+ max$", r.stdout,
                     re.M), r.stdout
    assert "latency" not in run("bench", "--mode", "infer", "--steps", "5", "--repeat", "1").stdout
    run("bench", "--latency", "--steps", "1", status=1,
        err="--latency times calls of an inference: use it with --mode infer")
    r = run("bench", "--steps", "3", "--repeat", "1", "--data", ".", "--profile=u.json", "--sink", "off")
    assert "update" in r.stdout and "examples/s" in r.stdout
    events = json.load(open("u.json"))["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] == "kernel"]
    steps = [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "step"]
    assert steps == ["step 1", "step 2", "step 3"] and {e["tid"] for e in events
                                                        if e.get("cat") == "step"} == {0}, steps
    assert lanes == ({1: "device 1"} if DEVICE else {1: "thread 1", 2: "thread 2"}) | {0: "steps"}, events
    assert {e["tid"] for e in kernels} <= set(lanes), events
    assert len(kernels) >= 3 * 5 and sum(e["name"] == kernels[0]["name"] for e in kernels) >= 3     # three steps
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "step"]
    assert all(any(a - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= b + 0.01 for a, b in spans) for e in kernels), events
    for tid in lanes:                                 # what one thread does comes one after the other
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels if e["tid"] == tid)
        assert all(a[1] <= b[0] + 0.01 for a, b in zip(mine, mine[1:])), mine
    r = run("bench", "--steps", "3", "--repeat", "1", "--data", ".", "--profile=top")
    rows = re.findall(r"^ +([0-9.]+) +([0-9.]+)% +(?:([0-9]+)%|-)  (.*)\n +(\S+?)(?:: (.*))?$", r.stdout, re.M)
    assert len(rows) == 5 and [float(x[0]) for x in rows] == sorted((float(x[0]) for x in rows), reverse=True), r.stdout
    assert "a kernel's name: graph" in r.stdout and "the other 0 kernels" in r.stdout and not os.path.exists(
        "top"), r.stdout


@test
def info_reports():
    o = json.loads(run("info", "--json").stdout)
    assert o["model"] == "line" and o["arch"] == ["any"] and o["parameters"] == 5 and o["inputs"][0] == {
        "name": "x", "dtype": "f32", "shape": [8, 4]}
    assert [x["name"] for x in o["outputs"]] == ["pred"] and o["kernels_per_step"] == 5
    assert "dense0" in run("info").stdout


@test
def the_command_line():
    assert run("--version").stdout.startswith(NAME)
    run("--help", out="train .*\n(.*\n)*.*examples|Examples")
    for c in ("train", "eval", "infer", "bench", "info"):
        run(c, "--help", out="example: " + NAME + " " + c)
    run(status=2, err="usage")
    run("trian", status=2, err="did you mean train")
    run("train", "--epoch", "3", status=2, err="did you mean --epochs")
    run("train", "--lr", "0.1", status=2, err="unknown option --lr; did you mean --rate?")
    run("train", "--batch-size", "8", status=2,
        err="unknown option --batch-size; the batch is fixed when building: mantou build --batch N")
    run("train", "--json", status=2, err="--json is no option of train")
    run("train", "--epochs", status=2, err="--epochs wants N")
    run("train", "--epochs", "x", status=2, err="wants a number")
    run("train", "--epochs", "-1", status=2, err="number from 0")
    run("train", "--threads=0", status=2, err="number from 1")
    most = 10 ** 15
    for command, option, low, high in (("train", "--epochs", 0, most), ("train", "--steps", 0, most),
                                       ("train", "--stop", 0, most), ("train", "--every", 1, most),
                                       ("train", "--sink", 1, most), ("train", "--threads", 1, 4096),
                                       ("eval", "--threads", 1, 4096), ("bench", "--warmup", 0, 10 ** 9),
                                       ("bench", "--steps", 1, 10 ** 9), ("bench", "--repeat", 1, 10 ** 5),
                                       ("bench", "--sink", 1, most), ("infer", "--seed", -2 ** 63, 2 ** 63 - 1)):
        for value in (low - 1, high + 1, 2305843009213693953, 2 ** 63 - 1, 2 ** 63, 2 ** 64 + 2, -2 ** 63 - 1, "1x",
                      "1 ", " 1", "+1", "0x10", "1e3", "1.0", "", "-"):
            if isinstance(value, int) and low <= value <= high:
                continue
            run(command, "%s=%s" % (option, value), status=2, err=r"%s wants .*a number from %d to %d, not '%s'"
                % (option, low, high, re.escape(str(value))))
    train("--epochs", str(most), "--no-save", status=1, err="%d epochs of 12 steps are more than %d steps"
          % (most, most))
    for option in ("--steps", "--stop"):
        train(option, str(most), "--steps" if option == "--stop" else "--stop", "2", "--no-save", "--every", str(most),
              "--sink", str(most))
    r = None if DEVICE else subprocess.run(["sh", "-c",
                                            'ulimit -v 400000; exec "$0" train --data . --no-save --threads 4096',
                                            IMAGE], env=dict(os.environ, RTI_READER=NPY), capture_output=True,
                                            text=True)
    assert DEVICE or r.returncode == 1 and re.search(r"scratch memory of thread \d+ of 4096 needs 2.0 MiB|thread \d+ "
                                                     r"of 4096 could not be started", r.stderr), r.stderr
    run("train", "--epochs", "2", "--steps", "3", status=2, err="exclude each other")
    run("train", "--partial", status=2, err="--weights")
    run("train", "--replan", status=2, err="--resume")
    run("train", "--sink", "of", status=2, err="epoch, off or a number")
    run("train", "x", status=2, err="unexpected argument 'x'")
    run("train", "--", "x", status=2, err="unexpected argument 'x'")
    run("train", "--data=.", "--epochs=1", "--no-save", "--")
    DEVICE or run("info", env={"RTI_NEEDS": "avx2 warp9"}, status=1, err="this CPU runs none.*needs warp9")
    with open("/dev/full", "w") as full:
        e = dict(os.environ, RTI_READER=NPY)
        p = subprocess.run([IMAGE, "info"], stdout=full, stderr=subprocess.PIPE, env=e)
        assert p.returncode == 1 and b"cannot write" in p.stderr


def main():
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    for t in tests:
        if only not in t.__name__:
            continue
        folder = tempfile.mkdtemp(prefix="runtime-test-")
        os.chdir(folder)
        try:
            data_set()
            t()
            counts["passed"] += 1
        except Skip as e:
            counts["skipped"] += 1
            print("skip %s: %s" % (t.__name__, e))
        except Exception as e:
            counts["failed"] += 1
            print("FAIL %s: %s: %s" % (t.__name__, type(e).__name__, str(e)[:1500]))
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
