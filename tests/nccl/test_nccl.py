"""test_nccl.py MANTOU [TEST]: executables of --target cuda --distribute nccl, several processes with a simulated device
each. Standard library only.

The same checkpoint for any number of processes, in every sink mode, stopped and killed with some and resumed with
others; what the host calls while an epoch runs; each fault with its text and status, and no process left."""
import contextlib, json, os, re, signal, struct, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sink"))
from test_sink import ARCH, LONG, MANTOU, PTX, Skip, base, build, losses, main, root
tests = []
here = os.path.dirname(os.path.abspath(__file__))
PRECISION = {"attention": "f16", "ignored": "bf16", "clipped16": "f16", "scaled16": "f16"}
LARGE = ("p-owned", "p-clipped", "p-lamb")  # three of their steps take a second


def test(f):
    tests.append(f)
    return f


def program(net, *args):
    name = "-".join(["p", net] + [re.sub("[^a-z0-9]", "", a) for a in args])
    if not os.path.exists(name):
        folder = "." if os.path.exists(net + ".net") else here if net in ("small", "travels", "held", "owned") else (
            os.path.join(root, "tests/distribute"))
        build(name, os.path.join(folder, net + ".net"), "--target", "cuda", *ARCH, *PTX, "--distribute", "nccl",
              "--precision", PRECISION.get(net, "f32"), *args)
    return os.path.abspath(name)


def start(p, image, *args, library="torchrun", each=None, **env):
    """P processes, or one without a launcher. each: shell text before the program, which sees RANK."""
    command = ["sh", os.path.join(root, "tests/distribute/ranks"), library, str(p)] if p > 1 else []
    if each:
        command += ["sh", "-c", each + '; exec "$0" "$@"']
    return subprocess.Popen(command + [image] + [str(a) for a in args], env=dict(os.environ, MANTOU_SIM_THREADS="1",
                                                                                 **env), stdout=subprocess.PIPE,
                                                                                 stderr=subprocess.PIPE, text=True,
                            start_new_session=True, cwd=os.getcwd())


def ended(r, seconds=300):
    try:
        out, err = r.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(r.pid, signal.SIGKILL)
        out, err = r.communicate()
        raise AssertionError("still runs after %d s: %s%s" % (seconds, out, err))
    assert "simulated device:" not in err and "simulated NCCL:" not in err, err
    return r.returncode, out, err


def run(p, image, *args, status=0, err=None, **more):
    got, out, said = ended(start(p, image, *args, **more))
    shown = "%d processes, %s %s: exit %d\n%s%s" % (p, os.path.basename(image), " ".join(map(str, args)), got, out,
                                                    said)
    assert got == status, shown
    assert err is None or len(re.findall(err, said)) == 1, "expected %r once; %s" % (err, shown)
    return out, said


def steps(image):
    return "3" if not LONG and os.path.basename(image).startswith(LARGE) else "5"


def train(p, image, save, *args, **more):
    given = [] if "--steps" in args or "--continue" in args else ["--steps", steps(image)]
    return run(p, image, "train", "--synthetic", "--quiet", "--no-eval", "--overwrite", "--save", save + ".st", *given,
               *args, **more)


def bits(save):
    with open(save + ".st", "rb") as f:
        return f.read()


def equal(net, ways):
    def check():
        image = program(net)
        train(1, image, "one", "--sink", "off")
        want = bits("one")
        for p, sink in ways:
            train(p, image, "many", "--sink", sink, MANTOU_SIM_SEED=str(p))
            assert bits("many") == want, "%d processes, --sink %s: checkpoints differ" % (p, sink)
    check.__name__ = "equal_" + net
    return check


for net, ways in {"attention": ((2, "off"), (3, "epoch"), (8, "2")), "norm": ((2, "epoch"), (7, "3"), (4, "off")),
                  "ignored": ((2, "3"), (6, "epoch"), (4, "off")),
                  "stats": ((2, "off"), (4, "epoch"), (7, "2"), (3, "epoch")),
                  "small": ((2, "epoch"), (3, "off"), (4, "2"), (5, "epoch"))}.items():
    tests.append(equal(net, ways if LONG else ways[:2] if net != "stats" else ways[1:3]))


def logged(p, image, *args, **more):
    """A run's logs of each process: of the device, and of NCCL."""
    run(p, image, "train", "--synthetic", "--quiet", "--no-eval", "--no-save", "--steps", steps(image), *args,
        MANTOU_SIM_GRAIN="1024", each='export MANTOU_SIM_LOG=sim.$RANK MANTOU_NCCL_LOG=nccl', **more)
    r = [[json.load(open("%s.%d" % (log, k))) for k in range(p)] for log in ("sim", "nccl")]
    assert all(x["leaks"] == 0 for x in r[0]), r
    return r


@test
def slots_by_process():
    """--shard-optimizer: the same bits for any number of processes, as without; each has memory for the slots of its
    part alone, and no more goes round."""
    whole, image = program("owned"), program("owned", "--shard-optimizer")
    train(1, whole, "one", "--sink", "off")
    want = bits("one")
    slots = 2 * 4 * json.loads(run(1, whole, "info", "--json")[0])["parameters"]
    for p, sink, more in ((1, "epoch", []), (2, "off", ["--every", "2"]), (3, "epoch", ["--every", "1"]),
                          *([(4, "2", [])] if LONG else []), (5, "epoch", [])):
        train(p, image, "many", "--sink", sink, *more)
        assert bits("many") == want, "%d processes, --sink %s: checkpoints differ" % (p, sink)
    for p in (2, 5):
        (all_sim, all_sent), (sim, sent) = (logged(p, x) for x in (whole, image))
        for a, b in zip(all_sim, sim):
            spared = a["memory_peak"] - b["memory_peak"]
            assert spared > 0.8 * slots * (p - 1) / p, (p, spared, slots)
        a, b = (sum(x["sent"] for x in s) for s in (all_sent, sent))
        assert b <= a * 1.01, "%d processes send %d bytes, %d with slots of their own each" % (p, b, a)
    train(3, image, "half", "--stop", "2")
    for p, x in ((2, image), (1, whole), (4, whole)):
        train(p, x, "many", "--resume", "half.st")
        assert bits("many") == want, "%d processes, resumed" % p
    train(2, whole, "half", "--stop", "2")
    train(5, image, "many", "--resume", "half.st")
    assert bits("many") == want, "resumed with slots by process"
    # clipped, f16
    for net in ("small", "attention"):
        train(1, program(net), "one")
        for p, sink in ((2, "off"), (3, "epoch")):
            train(p, program(net, "--shard-optimizer"), "many", "--sink", sink)
            assert bits("many") == bits("one"), (net, p, sink)


@test
def norms_by_process():
    """--shard-optimizer, clipped, f16: processes make norms of their parts and tell each other the numbers, so that no
    more goes round than without; an overflow is everybody's. Under every sink mode, and stopped and resumed."""
    with open(os.path.join(here, "owned.net")) as f:
        text = f.read()
    for net, clip, ways in (("clipped", "clip_norm = 0.02", ((1, "epoch"), (2, "off"), (3, "epoch"), (5, "2"))),
                            ("clipped16", "clip_norm = 2.0", ((2, "epoch"), (5, "off"))),
                            ("scaled16", "", ((3, "epoch"),))):
        with open(net + ".net", "w") as f: # a loss as large as that overflows f16 in the first steps
            f.write(text.replace("adam(rate = 0.001)", "adam(rate = 0.001)\n    " + clip).replace(
                "(logits, label)", "(logits, label) * 50000" if net == "scaled16" else "(logits, label)"))
        whole, image = program(net), program(net, "--shard-optimizer")
        train(1, whole, "one", "--sink", "off")
        want = bits("one")
        if net == "scaled16":
            skipped = struct.unpack("<d", base.load("one.st")[0]["loss_scale.skipped"][1])[0]
            assert 0 < skipped < 5, "%g of 5 steps overflow" % skipped
        for p, sink in ways:
            train(p, image, "many", "--sink", sink, MANTOU_SIM_SEED=str(p))
            assert bits("many") == want, "%s, %d processes, --sink %s: checkpoints differ" % (net, p, sink)
        train(3, image, "half", "--stop", "2")
        train(2, image, "many", "--resume", "half.st")
        assert bits("many") == want, "%s, resumed" % net
        code = subprocess.run([MANTOU, "build", net + ".net", "--target", "cuda", *ARCH, "--distribute", "nccl",
                               "--precision", PRECISION.get(net, "f32"), "--shard-optimizer", "--emit", "cuda",
                               "-o", "-"], capture_output=True, text=True).stdout
        assert "6 kernels in one launch" in code, net + ": what joins the numbers of six gradients is no launch"
        for p in (2, 5) if net == "clipped" else (3,) if net == "clipped16" else ():
            a, b = (sum(x["sent"] for x in logged(p, i)[1]) for i in (whole, image))
            # parameters go round in f32 and in the 16 bits that a step reads
            assert 0.9 * a < b < (1.28 if "16" in net else 1.03) * a, (net, p, a, b)


@test
def updates_of_one_process():
    """--shard-optimizer, lamb: norms of a tensor's step see all of it, so it is one process's alone; clipped too."""
    with open(os.path.join(here, "owned.net")) as f:
        text = f.read()
    for net, clip in (("lamb", ""), ("lamb_clipped", "clip_norm = 0.02")):
        with open(net + ".net", "w") as f:
            f.write(text.replace("adam(rate = 0.001)", "lamb(rate = 0.01, weight_decay = 0.1)\n    " + clip))
        whole, image = program(net), program(net, "--shard-optimizer")
        train(1, whole, "one", "--sink", "off")
        want = bits("one")
        for p, sink in ((2, "off"), (3, "epoch"), (5, "2")):
            train(p, image, "many", "--sink", sink, MANTOU_SIM_SEED=str(p))
            assert bits("many") == want, "%s, %d processes, --sink %s: checkpoints differ" % (net, p, sink)
    train(3, image, "half", "--stop", "2")
    train(2, image, "many", "--resume", "half.st")
    assert bits("many") == want, "resumed with another number of processes"
    all_sim, sim = (logged(3, x)[0] for x in (whole, image))
    # the largest weight of the three is 40,000 of 54,810 numbers, with two slots each
    spared = sorted(a["memory_peak"] - b["memory_peak"] for a, b in zip(all_sim, sim))
    assert spared[0] > 0.5 * 8 * 14810 and spared[-1] > 0.9 * 8 * 40000, spared


@test
def a_weight_where_its_number_of_elements_says():
    """A parameter of 2,112 elements at byte 2,112 of the arena: a part has another number, and the same place."""
    with open("placed.net", "w") as f:
        f.write("""model placed(x: f32[N, 16], label: i32[N]) {
    logits = x |> dense(32, bias = false) |> relu |> dense(66) as head
    loss   cross_entropy(logits, label)
    output logits
}
data { reader = synthetic(examples = 24) }
train { batch = 6  epochs = 2  optimizer = adam(rate = 0.001)  shards = 3 }
""")
    r = subprocess.run([MANTOU, "dump", "placed.net", "--target", "cuda", *ARCH, "--stage", "planned"],
                       capture_output=True, text=True)
    assert re.search(r"^state @head\.weight : f32\[66,32\] .* at 2112 ", r.stdout, re.M), "elsewhere: " + r.stderr
    image = program("placed", "--shard-optimizer")
    train(1, image, "one")
    for p in (2, 3):
        train(p, image, "many")
        assert bits("many") == bits("one"), "%d processes: checkpoints differ" % p


@test
def slots_of_one_number():
    """Shards in step have a copy of the arena each; a slot of one number may be another process's, without memory."""
    with open("numbers.net", "w") as f:
        f.write("""model numbers(x: f32[N, 64], label: i32[N]) {
    h = x |> dense(1) |> dense(200) |> batch_norm |> relu |> dense(65) |> relu
    logits = h |> dense(10) as head
    loss   cross_entropy(logits, label)
    output logits
}
data { reader = synthetic(examples = 24) }
train { batch = 10  epochs = 2  optimizer = rmsprop(rate = 0.001)  shards = 5  batch_stats = batch }
""")
    image = program("numbers", "--shard-optimizer")
    train(1, image, "one")
    for p, sink in ((2, "2"), (3, "off")):
        train(p, image, "many", "--sink", sink)
        assert bits("many") == bits("one"), "%d processes: checkpoints differ" % p


@test
def slots_without_such_memory():
    """A device whose addresses have memory always."""
    train(1, program("owned"), "one")
    train(3, program("owned", "--shard-optimizer"), "many", MANTOU_SIM_GRAIN="0")
    assert bits("many") == bits("one")


@test
def under_mpi():
    """The launcher's library carries what the hosts say; NCCL the sums."""
    ran = 0
    for library in ("openmpi", "mpich"):
        if subprocess.run(["sh", os.path.join(root, "tests/distribute/ranks"), library, "1", "true"],
                          capture_output=True).returncode == 77:
            continue
        train(1, program("norm"), "one")
        train(3, program("norm"), "many", library=library)
        assert bits("many") == bits("one"), library
        ran += 1
    if not ran:
        raise Skip("no mpirun")


@test
def what_the_hosts_call():
    """A launch a step and no other work of a host's while the steps run: the same copies and waits for three times as
    many."""
    image, seen = program("small"), []
    for n in (4, 12):
        run(2, image, "train", "--synthetic", "--quiet", "--no-save", "--no-eval", "--steps", n,
            each='export MANTOU_SIM_LOG=sim.$RANK')
        c = [json.load(open("sim.%d" % r)) for r in range(2)]
        for x in c:
            assert x["graph_launches"] == n and x["leaks"] == 0, (n, c)
        seen.append(c)
    for few, many in zip(*seen):
        # the first exchange, before any graph
        assert many["kernel_launches"] == few["kernel_launches"] == 1, (few, many)


@test
def gradients_travel_while_others_are_made():
    """Buckets that are complete go beside the kernels of the last shard: in a graph neither waits for the other; the
    same bits, whichever comes first. Not beside blocks that wait for each other."""
    for net, blocks in (("travels", False), ("held", True)):
        with open("cluster", "w") as f:
            f.write("node 1 of 4\nrate 100 batch 16\nlink inside 5us 1GB/s\n")
        image = program(net, "--cluster", "cluster")
        assert int(re.search(r'"buckets": (\d+)', run(1, image, "info", "--json")[0]).group(1)) > 1
        few = ["--steps", "1" if blocks and not LONG else "2"]
        train(1, image, "one", "--sink", "off", *few)
        want = bits("one")
        ways = ((2, "epoch", "tree", 4 if LONG else 1), (4, "2", "tree", 1), (2, "off", "tree", 1),
                (2, "1", "library", 1))
        for p, sink, exchange, seeds in ((2, "epoch", "tree", 1),) if blocks else ways:
            for seed in range(seeds):
                train(p, image, "many", *few, "--sink", sink, "--exchange", exchange,
                      MANTOU_SIM_SEED=str(seed), each='export MANTOU_SIM_LOG=sim.$RANK')
                beside = [json.load(open("sim.%d" % r))["beside"] for r in range(p)]
                assert all((n > 0) == (sink != "off" and not blocks) for n in beside), (net, p, sink, beside)
                assert exchange != "tree" or bits("many") == want, (net, p, sink, seed)


@test
def stopped_and_resumed():
    image = program("stats")
    train(1, image, "one")
    train(3, image, "half", "--stop", "2")
    assert base.load("half.st")[1]["step"] == "2"
    train(2, image, "many", "--resume", "half.st")
    assert bits("many") == bits("one")
    train(1, image, "many", "--resume", "half.st")
    assert bits("many") == bits("one"), "resumed alone"
    train(4, image, "many", "--every", "2")
    assert bits("many") == bits("one"), "--every 2"


def ranks_of(image):
    return [int(p) for p in subprocess.run(["pgrep", "-f", "^" + image + " train"], capture_output=True,
                                           text=True).stdout.split()]


def interrupted(image, number, *args, p=3):
    """Signals the last process when something has been saved."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("i.st")
    r = start(p, image, "train", "--synthetic", "--quiet", "--no-eval", "--save", "i.st", "--every", "1", *args)
    for _ in range(600):
        if os.path.exists("i.st") or r.poll() is not None:
            break
        time.sleep(0.1)
    begin = time.time()
    if number == signal.SIGUSR1:
        os.kill(r.pid, number)
    else:
        os.kill(ranks_of(image)[-1], number)
    got = ended(r, 120)
    for _ in range(200):
        if not ranks_of(image):
            break
        time.sleep(0.1)
    assert not ranks_of(image), "processes left"
    return got + (time.time() - begin,)


@test
def killed():
    """A rank at any moment; the run goes on with another number of processes as if nothing had been."""
    image = program("small")
    status, out, err, took = interrupted(image, signal.SIGKILL, "--steps", "4000")
    assert status != 0 and re.search(r"rank [0-2] \(.*\) has ended; last in step|remote process exited",
                                     err) and took < 40, (status, err, took)
    step = int(base.load("i.st")[1]["step"])
    train(2, image, "i", "--continue", "--steps", "4000", "--stop", step + 3)
    train(1, image, "one", "--steps", "4000", "--stop", step + 3)
    assert bits("i") == bits("one"), "checkpoints differ at step %d" % (step + 3)


@test
def a_process_stands_still():
    status, out, err, took = interrupted(program("small"), signal.SIGSTOP, "--steps", "4000", "--patience", "4")
    assert status != 0 and re.search(r"rank 2 \(.*\) silent for 4 s; last in step",
                                     err) and took < 40, (status, err, took)


@test
def asked_to_stop():
    """All stop behind the same step."""
    image = program("small")
    status, out, err, took = interrupted(image, signal.SIGUSR1, "--steps", "4000")
    assert status == 130 and len(re.findall("stopped after step [0-9]* of 4000, saved in ", err)) == 1, (status, err)
    step = int(base.load("i.st")[1]["step"])
    train(1, image, "one", "--steps", "4000", "--stop", step)
    assert bits("i") == bits("one")


@test
def faults():
    image, quick = program("small"), ["train", "--synthetic", "--no-save", "--quiet", "--no-eval", "--steps", "3"]
    run(2, image, *quick, status=1, err=r"error: (rank [01] \(.*\): )?several processes of target cuda need NCCL 2\.13 "
                                        r"or newer: .*libnccl2", MANTOU_LIBNCCL="/nowhere/libnccl.so.2")
    run(2, image, *quick, status=1, err=r"is NCCL 2\.8, too old: 2\.13 or newer is needed", MANTOU_NCCL_VERSION="2804")
    run(2, image, *quick, status=1, err=r"is NCCL 2\.12, too old: 2\.13 or newer is needed",
        MANTOU_NCCL_VERSION="21212")
    run(2, image, *quick, status=1, err=r"has no ncclAllReduce: it is no NCCL, or too old",
        MANTOU_LIBNCCL=os.environ["LESS"])
    run(2, image, *quick, status=1, err=r"has no ncclGetVersion: it is no NCCL", MANTOU_LIBNCCL="libm.so.6")
    run(2, image, *quick, status=1, err=r"the ranks do not agree: NCCL is 22809 on rank 0 \(.*\), 21805 on rank 1",
        each='[ $RANK = 0 ] || export MANTOU_NCCL_VERSION=21805')
    run(3, image, *quick, status=1, err=r"error: rank 1 \(.*\): .*several processes of target cuda need NCCL",
        each='[ $RANK != 1 ] || export MANTOU_LIBNCCL=/nowhere')
    run(2, image, *quick, status=1, err=r"error: rank 1 \(.*\): .*NCCL 2\.28\.9, nccl(Send|Recv): unhandled system "
                                        r"error: as asked", each='[ $RANK = 0 ] || export MANTOU_NCCL_FAIL=9')
    begin = time.time()
    run(2, image, *quick, "--patience", "3", status=1,
        err=r"the exchange of step [0-9]* has not moved for 3 s, and all 2 processes live: NCCL 2\.28\.9: no error",
        MANTOU_NCCL_STOP="1:6")
    assert time.time() - begin < 60
    for sink in ("off", "epoch"):
        run(3, program("range"), "train", "--synthetic", "--no-save", "--quiet", "--sink", sink, status=1,
            err=r"id 256 is out of range 0..255 \(example 2 of step 3, ")
        run(2, image, "train", "--synthetic", "--no-save", "--quiet", "--no-eval", "--rate", "1e38", "--sink", sink,
            status=1, err=r"error: the loss of step [0-9]* is (nan|inf)")
    run(6, image, *quick, status=2, err="6 processes are more than the model's 5 shards")


@test
def the_library_adds():
    """Of two equal halves there is one sum; of three the bits are others, and that is said once."""
    image = program("attention")
    train(1, image, "one")
    for sink in ("off", "epoch"):
        train(2, image, "many", "--exchange", "library", "--sink", sink)
        assert bits("many") == bits("one"), sink
    image = program("small")
    run(1, image, "train", "--synthetic", "--quiet", "--no-save", "--no-eval", "--steps", "5", "--log", "one.log")
    for f in ("many.log",):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f)
    run(3, image, "train", "--synthetic", "--no-save", "--no-eval", "--steps", "5", "--log", "many.log", "--exchange",
        "library", err="note: --exchange library: bits of the result depend on the number of processes and on")
    a, b = losses("one.log"), losses("many.log")
    assert len(a) == len(b) == 5 and max(abs(x - y) for x, y in zip(a, b)) < 1e-5, (a, b)


@test
def evaluation_and_bench():
    image = program("norm")
    train(1, image, "one")
    want = run(1, image, "eval", "--synthetic", "--weights", "one.st", "--json")[0]
    assert run(3, image, "eval", "--synthetic", "--weights", "one.st", "--json")[0] == want
    for more in ([], ["--no-exchange"]):
        r = json.loads(run(2, program("stats"), "bench", "--synthetic", "--steps", "2", "--warmup", "1", "--repeat",
                           "1", "--json", *more)[0])
        assert r["processes"] == 2 and (r["exchange_bytes"] == 0) == bool(more), r
        assert 0 <= r["hidden_share"] <= 1, r
    r = json.loads(run(2, program("small"), "bench", "--only-exchange", "--steps", "2", "--warmup", "1", "--repeat",
                       "1", "--json")[0])
    assert r["exchange_ms"]["median"] > 0, r


@test
def what_an_exchange_costs():
    """Alone it takes what the links do; of one bucket behind the shard nothing is hidden."""
    def bench(*args):
        return json.loads(run(2, program("small", "--shard-optimizer"), "bench", "--steps", "1", "--warmup", "1",
                              "--repeat", "1", "--json", *args, MANTOU_NCCL_RATE="100000")[0])
    r = bench("--only-exchange")
    assert 0.9e-5 < r["exchange_ms"]["median"] * 1e-3 / r["exchange_bytes"] < 3e-5, r
    r = bench("--synthetic")
    assert r["hidden_share"] < 0.5, r
    lines = run(3, program("small", "--shard-optimizer"), "bench", "--links", MANTOU_NCCL_RATE="200000000")[0]
    link = re.fullmatch(r"link inside ([0-9.e+]+)us ([0-9.e+]+)GB/s\nsum [0-9.e+]+GB/s\n", lines)
    assert link and 0.05 < float(link[2]) < 0.21, lines
    with open("cluster", "w") as f:
        f.write("node 1 of 4\nrate 100 batch 30\n" + lines)
    subprocess.run([MANTOU, "scale", os.path.join(here, "small.net"), "--cluster", "cluster", "--processes", "1,2"],
                   check=True, capture_output=True)
    r = bench("--synthetic", "--no-exchange")
    assert r["hidden_share"] == 0 and r["exchange_bytes"] == 0, r


@test
def refused():
    def no(err, *args):
        r = subprocess.run([MANTOU, "build", os.path.join(here, "small.net"), "-o", "no", *args], capture_output=True,
                           text=True)
        assert r.returncode == 2 and re.search(err, r.stderr), r.stderr
    no("--distribute nccl is of target cuda, not cpu", "--distribute", "nccl")
    no("--distribute mpi is of target cpu, not cuda", "--distribute", "mpi", "--target", "cuda", "--arch", "sm_80")
    no("--distribute: 'gloo' is unknown, there are mpi and nccl", "--distribute", "gloo")
    no("--shard-optimizer is of several processes: it needs --distribute nccl", "--target", "cuda", "--arch", "sm_80",
       "--shard-optimizer")
    r = subprocess.run([MANTOU, "build", os.path.join(here, "travels.net"), "-o", "no", "--distribute", "nccl",
                        "--target", "cuda", *ARCH, *PTX, "--shard-optimizer"], capture_output=True, text=True)
    assert r.returncode == 1 and "there is no parameter of travels whose optimizer slots" in r.stderr, r.stderr


if __name__ == "__main__":
    sys.exit(main(tests, "nccl"))
