"""test_sink.py MANTOU [TEST]: executables of target cuda, built from .net files, on the driver that MANTOU_LIBCUDA
names. Standard library only.

Near the interpreter and as near as the CPU's executable is; the same bits in every sink mode, for every order of what
is free, killed, stopped, and beside another process; what the host calls while a loop runs."""
import contextlib, gzip, json, math, os, random, re, resource, shutil, signal, struct, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
sys.path.insert(0, os.path.join(root, "tests", "runtime"))
MANTOU = os.path.abspath(sys.argv[1])
import test_runtime as base
from numbers_near import UNIT, bits, losses, near, tensors
LONG = bool(os.environ.get("LONG"))
tests = []
NETS = {"resnet": ("f32", "bf16", "f16"), "lenet": ("f32", "bf16", "f16"), "gpt": ("f32", "bf16", "f16"),
        "lstm": ("f32", "bf16", "f16")}
# shards of a batch: numbers by place, statistics of the shard, labels counted first, shards in step
# without --long one of 16 bits is enough for each: what differs between them the operators' cases have
HALF = {"resnet": "bf16", "lenet": "f16", "gpt": "f16", "lstm": "bf16"}
SHARDED = {"attention": ("f32", "f16"), "norm": ("f32",), "ignored": ("f32", "bf16"), "stats": ("f32", "f16")}


class Skip(Exception):
    """What a test needs is not here."""


def test(f):
    tests.append(f)
    return f


# ---- programs and runs
# ptxas takes three quarters of the time of a build, for code that the simulated device does not run: of one program and
# the tests of other architectures; with --long of every program of one model
ARCH, PTX = ["--arch", "sm_80"], ["--ptx-only"]


def source(net):
    own = {"lenet": "models", **{n: "tests/distribute" for n in SHARDED}, "range": "tests/distribute"}
    return os.path.join(root, own[net], net + ".net") if net in own else os.path.join(here, net + ".net")


def build(out, path, *args):
    r = subprocess.run([MANTOU, "build", path, "-o", out] + list(args), capture_output=True, text=True)
    assert r.returncode == 0, "build %s %s: %s" % (os.path.basename(path), " ".join(args), r.stderr)
    return os.path.abspath(out)


def program(net, precision="f32", target="cuda", *args):
    """The executable, built when first asked for; every kind of CPU's has one name of a file here."""
    name = "-".join([net, precision, target] + [re.sub("[^a-z0-9]", "", a) for a in args])
    whole = net == "lenet" and (LONG or (precision == "f32" and not args))
    if not os.path.exists(name):
        build(name, source(net), "--precision", precision, "--target", target,
              *(ARCH + ([] if whole else PTX) if target == "cuda" and "--arch" not in args else []),
              *(["--batch", "4"] if net == "lenet" else []), *args)
    return os.path.abspath(name)


def steps(image):
    return "3" if "lenet" in os.path.basename(image) else "5"


def data(image):
    return ["--data", "digits"] if "lenet" in os.path.basename(image) else ["--synthetic"]


def run(image, *args, status=0, err=None, **env):
    r = subprocess.run([image] + [str(a) for a in args], env=dict(os.environ, **env), capture_output=True, text=True,
                       timeout=600)
    shown = "%s %s: exit %d\n%s%s" % (os.path.basename(image), " ".join(map(str, args)), r.returncode, r.stdout,
                                      r.stderr)
    assert r.returncode == status, shown
    assert err is None or re.search(err, r.stderr), "expected %r; %s" % (err, shown)
    assert "simulated device:" not in r.stderr, shown
    return r


def train(image, save, *args, evaluate=False, **more):
    """Trains some steps unless told how many; SAVE.st and SAVE.log."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(save + ".log")
    given = [] if "--steps" in args or "--epochs" in args else ["--steps", steps(image)]
    return run(image, "train", *data(image), "--save", save + ".st", "--log", save + ".log", "--quiet", *given, *args,
               *([] if evaluate else ["--no-eval"]), **more)


def counted(image, *args, **more):
    run(image, "train", *data(image), "--quiet", "--no-save", *args, MANTOU_SIM_LOG="sim.json", **more)
    return json.load(open("sim.json"))


def reference(net, precision):
    """The interpreter in f32, at start and after steps(net), and the CPU's program after as many."""
    for name, image, n in ((net + ".truth", program(net, "f32", "ref"), steps(net)),
                           (net + ".start", program(net, "f32", "cpu"), "0"),
                           (net + "." + precision + ".cpu", program(net, precision, "cpu"), steps(net))):
        if not os.path.exists(name + ".st"):
            train(image, name, "--steps", n)
    return net + "." + precision + ".cpu", net + ".truth", net + ".start"


# ---- training
def trains(net, precision):
    def check():
        image, name = program(net, precision), net + "." + precision
        train(image, name)
        near(precision, name, *reference(net, precision))
        want = bits(name)
        # what a mode launches does not follow from the precision
        all_ways = LONG or precision == "f32"
        one = ["1"] if LONG or net == "gpt" else []
        for seed, sink in enumerate(["off", *one, "2", "epoch"] if all_ways else ["off", "epoch"], 2):
            train(image, "again", "--sink", sink, MANTOU_SIM_SEED=str(seed), MANTOU_SIM_THREADS=str(seed - 1))
            assert bits("again") == want, "--sink %s: %s" % (sink, "checkpoints differ" if bits("again")[1] == want[1]
                                                             else "losses differ")
        # 2 is within an epoch and within what a launch would do
        for sink in ("epoch",) if net == "lenet" or not all_ways else ("3", "epoch"):
            train(image, "half", "--stop", "2", "--sink", sink)
            assert base.load("half.st")[1]["step"] == "2"
            train(image, "half", "--resume", "half.st")
            assert bits("half")[0] == want[0], "stopped and resumed"
        for first, second in ((image, program(net, precision, "cpu")), (program(net, precision, "cpu"), image)):
            train(first, "half", "--stop", "2")
            shutil.copy("half.log", "first.log")
            train(second, "half", "--resume", "half.st")
            with open("half.log") as f, open("first.log", "a") as g:
                g.write(f.read())
            os.replace("first.log", "half.log")
            near(precision, "half", *reference(net, precision))
    check.__name__ = "trains_%s_%s" % (net, precision)
    return check


for net in {**NETS, **SHARDED}:
    for precision in {**NETS, **SHARDED}[net]:
        if LONG or precision in ("f32", HALF.get(net, precision)):
            tests.append(trains(net, precision))


@test
def other_architectures():
    """The same program for another card: its own kernels, the same bounds; of two code objects the best that runs."""
    for arch, sm, net, precision in (("sm_75", "75", "resnet", "f16"), ("sm_90a", "90", "gpt", "bf16")):
        image = program(net, precision, "cuda", "--arch", arch, *PTX)
        train(image, "other", MANTOU_SIM_SM=sm)
        near(precision, "other", *reference(net, precision))
        run(image, "train", "--synthetic", "--no-save", "--steps", "1", status=1, err="needs compute capability",
            MANTOU_SIM_SM="70")
    # the simulated device takes PTX, which the last has
    image = program("lstm", "f32", "cuda", "--arch", "sm_75,sm_80")
    for sm in ("80", "90"):
        train(image, "other", MANTOU_SIM_SM=sm)
        near("f32", "other", *reference("lstm", "f32"))


@test
def by_wgmma():
    """Contractions by wgmma where a tuning file says so, near the reference; another card's image beside them goes by
    mma.sync."""
    for precision, first, second in (("bf16", "m=64,n=64,k=64,stages=3,groups=1", 0),
                                     ("f16", "m=128,n=64,k=64,stages=4,groups=2", 1)):
        args = [source("eights"), "--target", "cuda", "--precision", precision]
        shown = [subprocess.run([MANTOU, "explain", *args, layer, "--arch", "sm_90a"], capture_output=True,
                                text=True).stdout for layer in ("stem", "bottleneck0", "dense0", "head")]
        records = sorted({x for x in "".join(shown).splitlines() if x.startswith("cuda sm_90a ")})
        tuned = [re.sub(" : mma.1{.*", " : wgmma.1{%s%s}" % (first, ",split=2" if second and "conv2d.dw" in x else ""),
                        x) for x in records]
        with open("wgmma.tune", "w") as f:
            f.write("\n".join(tuned) + "\n")
        r = subprocess.run([MANTOU, "dump", *args, "--arch", "sm_90a", "--tuning", "wgmma.tune", "--stage", "selected"],
                           capture_output=True, text=True)
        kinds = [len(re.findall('"%s{' % k, r.stdout)) for k in ("wgmma", "mma")]
        assert kinds[0] > 20 and kinds[0] > 3 * kinds[1], (kinds, len(records), r.stderr)
        # the simulated device takes PTX alone, which the last code object has; machine code of both and all that may go
        # wrong for the first precision, as it knows none
        archs = PTX + ["--arch", "sm_90a"] if second else ["--arch", "sm_80,sm_90a"]
        image = program("eights", precision, "cuda", *archs, "--tuning", "wgmma.tune")
        train(image, "eights")
        near(precision, "eights", *reference("eights", precision))
        want = bits("eights")
        train(image, "again", "--sink", "off", MANTOU_SIM_SEED="7")
        assert bits("again") == want
        if second and not LONG:
            continue
        # tensor maps: a driver without, a call that fails, a descriptor that was damaged
        run(image, "train", "--synthetic", "--no-save", "--steps", "1", status=1, err="no cuTensorMapEncodeTiled",
            MANTOU_SIM_MISSING="cuTensorMapEncodeTiled")
        blob = open(image, "rb").read()
        maps = re.search(rb'"maps": \[\[[0-9,]*,0,1\]', blob)
        with open("damaged", "wb") as f:
            f.write(blob[:maps.end() - 2] + b"0" + blob[maps.end() - 1:])
        os.chmod("damaged", 0o755)
        run("./damaged", "train", "--synthetic", "--no-save", "--steps", "1", status=1, err="kernel train_.*: bad row")
        box = re.search(rb'"maps": \[\[[0-9]*,[0-9]*,[0-9]*,64', blob)
        with open("damaged", "wb") as f:
            f.write(blob[:box.end() - 2] + b"63" + blob[box.end():])
        run("./damaged", "train", "--synthetic", "--no-save", "--steps", "1", status=1,
            err="cuTensorMapEncodeTiled: .*kernel train_|kernel train_.*cuTensorMapEncodeTiled: ")
        image = program("eights", precision, "cuda", "--arch", "sm_90a,sm_80", "--tuning", "wgmma.tune")
        for sm in ("80", "90") if LONG else ("90",):
            train(image, "other", MANTOU_SIM_SM=sm)
            near(precision, "other", *reference("eights", precision))
        assert bits("other") != want


@test
def weights_held_by_several_blocks():
    """Recurrences whose weights stay in the registers of blocks that wait for each other: the bits of blocks that read
    them for themselves, in other orders of blocks and in every sink mode."""
    shown = subprocess.run([MANTOU, "dump", source("held"), "--target", "cuda", "--arch", "sm_80", "--stage",
                            "selected"], capture_output=True, text=True).stdout
    kernels = re.findall(r'"cells{examples=\d+,threads=\d+(,blocks=\d+)?}', shown)
    assert len(kernels) >= 6 and all(kernels), shown
    few = ["--steps", "3" if LONG else "2"]
    train(program("held", "f32", "cuda", "--disable", "held"), "alone", *few)
    image = program("held")
    for sink, seed in (("epoch", "1"), ("off", "2"), ("2" if LONG else "1", "3")):
        train(image, "held", *few, "--sink", sink, MANTOU_SIM_SEED=seed)
        assert bits("held") == bits("alone"), sink
    most = max(int(n) for n in re.findall(r",blocks=(\d+)}", shown))
    run(image, "train", "--synthetic", "--no-save", "--steps", "1", status=1, MANTOU_SIM_SMS="1",
        MANTOU_SIM_BLOCKS=str(most - 1),
        err=r"kernel train_\w+ has %d blocks that wait for each other, the device holds %d at a time .1 "
            r"multiprocessors, %d blocks each.: mantou build --disable held" % (most, most - 1, most - 1))
    train(image, "held", *few, MANTOU_SIM_SMS="1", MANTOU_SIM_BLOCKS=str(most))
    assert bits("held") == bits("alone")
    kernels = json.loads(run(program("lstm"), "bench", "--synthetic", "--steps", "1", "--warmup", "1", "--json",
                             "--profile", MANTOU_SIM_BLOCKS="3").stdout)["kernels"]
    assert max(k["blocks_per_sm"] for k in kernels) == 3 and all(k["blocks_per_sm"] > 0 for k in kernels), kernels


@test
def launches_one_by_one():
    """Without pass launch every kernel is launched by itself: more launches, the same bits in every sink mode."""
    for net, precision in (("resnet", "bf16"), ("gpt", "f32"), *([("lenet", "f16")] if LONG else [])):
        together, apart = program(net, precision), program(net, precision, "cuda", "--disable", "launch")
        train(together, "t")
        for sink in ("off", "epoch"):
            train(apart, "a", "--sink", sink)
            assert bits("a") == bits("t"), "%s %s, --sink %s" % (net, precision, sink)
        few, many = (counted(i, "--steps", "1", "--no-eval", "--sink", "off")["kernel_launches"]
                     for i in (together, apart))
        assert few < many, (net, few, many)


@test
def copies_are_rounded_parameters():
    """Without pass copies every step rounds its parameters: a launch more, the same bits, also resumed and behind an
    evaluation."""
    for net, precision in (("resnet", "bf16"), ("gpt", "f16")):
        kept, rounded = program(net, precision), program(net, precision, "cuda", "--disable", "copies")
        train(rounded, "r")
        for sink in ("off", "epoch"):
            train(kept, "k", "--sink", sink)
            assert bits("k") == bits("r"), "%s %s, --sink %s" % (net, precision, sink)
        train(rounded, "half", "--stop", "2")
        train(kept, "k", "--resume", "half.st", evaluate=True)
        assert bits("k")[0] == bits("r")[0], "%s %s, resumed" % (net, precision)
        few, many = (counted(i, "--steps", "1", "--no-eval", "--sink", "off")["kernel_launches"]
                     for i in (kept, rounded))
        assert few < many, (net, few, many)


@test
def overflows_change_nothing_but_the_scale():
    path = os.path.join(root, "tests", "train", "f16", "overflow.net")
    for more in ([], ["-D", "batches=2", "-D", "clip=1.0"]):
        image, cpu = (build("overflow-" + t, path, "--precision", "f16", "--target", t,
                            *(ARCH + PTX if t == "cuda" else []), *more) for t in ("cuda", "cpu"))
        train(image, "o", "--steps", "10")
        train(cpu, "c", "--steps", "10")
        a, c = ([o["scale"] for o in base.steps(f + ".log")] for f in "oc")
        assert a == c and a[:2] == [32, 16], (a, c)
        for sink in ("off", "3"):
            train(image, "p", "--steps", "10", "--sink", sink)
            assert bits("o") == bits("p"), sink
        r = run(image, "train", "--synthetic", "--steps", "10", "--stop", "1", "--save", "p.st")
        assert "step 0: the gradient of " in r.stderr and "is not finite at loss scale 32" in r.stderr, r.stderr
        train(image, "z", "--steps", "0")
        a, b = tensors("p.st"), tensors("z.st")
        assert a == b and a
        train(image, "p", "--steps", "10", "--resume", "p.st")
        assert bits("o")[0] == bits("p")[0]


@test
def more_offsets_than_parameters():
    """A kernel that reads more tensors than a launch has parameters: 502 norms, to clip by all."""
    image, cpu = program("norms"), program("norms", "f32", "cpu")
    for i, name in ((image, "n"), (cpu, "c")):
        train(i, name, "--steps", "2")
    assert all(abs(a - b) <= 1e-4 * abs(b) for a, b in zip(losses("n.log"),
                                                           losses("c.log"))), (losses("n.log"), losses("c.log"))
    text = subprocess.run([MANTOU, "build", source("norms"), "--target", "cuda", "--arch", "sm_80", "--emit", "cuda",
                           "-o", "-"], capture_output=True, text=True).stdout
    assert re.search(r"_offsets\[50\d\] = {", text), "no table"


@test
def killed_and_resumed():
    image, draw, early = program("lstm"), random.Random(1), 0
    args = ["--steps", "40", "--every", "2"]
    begin = time.time()
    train(image, "whole", *args)
    longest = time.time() - begin
    for sink in ("epoch", "3", "off"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink("k.st")
        for life in range(4):
            resume = ["--resume", "k.st"] if os.path.exists("k.st") else []
            p = subprocess.Popen([image, "train", "--synthetic", "--no-eval", "--quiet", "--save", "k.st", "--sink",
                                  sink] + args + resume)
            try:
                assert p.wait(draw.uniform(0.2, 0.8) * longest) == 0
                break
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                early += not os.path.exists("k.st")
        else:
            train(image, "k", *args, "--sink", sink, *(["--resume", "k.st"] if os.path.exists("k.st") else []))
        assert open("k.st", "rb").read() == bits("whole")[0], sink
    assert early < 12, "no life came to its first checkpoint"


@test
def the_device_is_lost():
    """A call on the way fails, and all after it: the last checkpoint is whole, and the run goes on from it. Calls count
    naps too, of which a busy machine takes many: where no run that was tried had a checkpoint, more calls are tried."""
    image, args, seen = program("lstm"), ["--steps", "8", "--every", "3", "--no-eval"], set()
    train(image, "whole", *args)
    calls = counted(image, *args)["host_calls"]
    begin = counted(image, "--steps", "0")["host_calls"]
    for parts in 12, 48, 192:
        if seen:
            break
        for n in range(begin, calls, max(1, (calls - begin) // parts)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink("l.st")
            r = subprocess.run([image, "train", "--synthetic", "--no-eval", "--quiet", "--save", "l.st"] + args,
                               env=dict(os.environ, MANTOU_SIM_FAIL="%d:719" % n), capture_output=True, text=True)
            if r.returncode == 0:                    # it was closing
                assert open("l.st", "rb").read() == bits("whole")[0]
                continue
            assert r.returncode == 1 and re.search(r"error: .*cu[A-Z]\w*: CUDA_ERROR_LAUNCH_FAILED 719", r.stderr), \
                r.stderr
            if os.path.exists("l.st"):
                seen.add(int(base.load("l.st")[1]["step"]))
                train(image, "l", *args, "--resume", "l.st")
                assert bits("l")[0] == bits("whole")[0], n
    assert seen and seen <= {3, 5, 6, 8}, seen    # every 3 steps, at the end of an epoch, at the end


@test
def two_at_once():
    images = [program("resnet"), program("gpt", "bf16"), program("resnet")]
    for name, image in zip("ab", images):
        train(image, name)
    running = [subprocess.Popen([image, "train", "--synthetic", "--quiet", "--no-eval", "--steps", "5", "--save",
                                 "at%d.st" % i, "--log", "at%d.log" % i]) for i, image in enumerate(images)]
    assert [p.wait(300) for p in running] == [0, 0, 0]
    assert bits("at0") == bits("at2") == bits("a") and bits("at1") == bits("b")
    for i in range(3):
        os.unlink("at%d.log" % i)


@test
def what_the_host_calls():
    """One launch for an epoch; what is called more in a longer run is naps, which time counts."""
    image = program("lstm")
    for epochs in (1, 3):
        c = counted(image, "--no-eval", "--epochs", epochs)
        assert c["graph_launches"] == epochs and c["conditional_runs"] == 5 * epochs and c[
            "kernel_launches"] == 0 and c["leaks"] == 0, c
    c = counted(image, "--no-eval", "--epochs", "1", "--sink", "3")
    assert c["graph_launches"] == 3 and c["kernel_launches"] == 0, c         # 3, 1, 1
    kernels = counted(image, "--no-eval", "--epochs", "1", "--sink", "off")
    one = counted(image, "--no-eval", "--epochs", "1", "--sink", "1")
    # of 5 steps: loop_call, loop_loss, loop_emit
    assert one["graph_launches"] == 5 and kernels["graph_launches"] == 0 and kernels["kernel_launches"] == one[
        "graph_kernels"] - 15, (one, kernels)
    long = program("lstm", "f32", "cuda", "-D", "examples=420")
    short, begin = counted(image, "--no-eval", "--epochs", "1"), time.time()
    c = counted(long, "--no-eval", "--epochs", "1")
    assert c["conditional_runs"] == 60 and c["graph_launches"] == 1 and c["waits"] == short["waits"], (short, c)
    assert c["copies"] == short["copies"] and c["host_calls"] <= short["host_calls"] + 600 * (time.time() - begin), (
        short, c)
    # two batches for each step; shards, one after the other and in step
    for net in ("gpt", "norm", "stats"):
        c = counted(program(net), "--no-eval", "--epochs", "2")
        assert c["graph_launches"] == 2 and c["kernel_launches"] == 0 and c["leaks"] == 0, (net, c)


@test
def shards_of_sixteen_bits():
    """Dropout of attention by tiles draws what the whole batch would: rounding alone tells eight shards from one."""
    with open(source("attention")) as f:
        net = f.read().replace("16", "32").replace("2, 8]", "2, 16]").replace("dropout = 0.2",
                                                                              "dropout = 0.5").replace(
                                                                                  "9]", "16]").replace(", 9,", ", 16,")
    with open("wide.net", "w") as f:
        f.write(net)
    for precision in ("f16", "bf16", "f32"):
        seen = []
        for shards in ("8", "1"):
            image = build("wide-" + shards, "wide.net", "--target", "cuda", *ARCH, *PTX, "--precision", precision,
                          "--shards", shards)
            train(image, "wide", "--steps", "2")
            seen.append(losses("wide.log"))
        assert max(abs(a - b) for a, b in zip(*seen)) < 2 * UNIT[precision] + 1e-5, (precision, seen)


@test
def a_fault_in_a_shard():
    """The example's number is the batch's, in every mode."""
    for sink in ("off", "2", "epoch"):
        run(program("range"), "train", "--synthetic", "--no-save", "--quiet", "--sink", sink, status=1,
            err=r"id 256 is out of range 0..255 \(example 2 of step 3, ")


@test
def the_lowest_of_many_faults():
    """Of ids out of range in several blocks, threads and orders of them the lowest is told, as on the CPU."""
    with open("faults.net", "w") as f:
        f.write("""model faults(ids: i32[N, 64], y: f32[N]) {
    predicted = (ids + ids) |> embedding(199, 8) |> mean(axes = 1) |> dense(1) |> squeeze(1)
    loss mse(predicted, y)
}
data { reader = npy(train = ["ids.npy", "y.npy"], test = ["ids.npy", "y.npy"])  shuffle = false }
train { batch = 64  epochs = 1  optimizer = sgd(rate = 0.1) }
""")
    ids = [k % 100 for k in range(128 * 64)]
    for at in (777, 300, 4000, 2049, 301):
        ids[64 * 64 + at] = 100 + at % 7
    base.npy("ids.npy", "<i4", (128, 64), ids)
    base.npy("y.npy", "<f4", (128,), [0.5] * 128)
    for target in ("cpu", "cuda"):
        image = build("faults-" + target, "faults.net", "--target", target, *(ARCH + PTX if target == "cuda" else []))
        for seed, sink in enumerate(("off", "epoch", "epoch"), 1):
            run(image, "train", "--data", ".", "--no-save", "--quiet", "--no-eval", "--sink", sink, status=1,
                err=r"embedding0: id 212 is out of range 0..198 \(example 4 of step 1, ", MANTOU_SIM_SEED=str(seed),
                MANTOU_SIM_THREADS=str(seed))


@test
def shards_are_timed():
    """A profile has the kernels of every shard."""
    for net in ("norm", "ignored", "stats"):
        r = run(program(net), "bench", "--synthetic", "--steps", "1", "--warmup", "0", "--repeat", "1", "--profile",
                "--json")
        kernels = json.loads(r.stdout)["kernels"]
        assert len(kernels) > 10, r.stdout


@test
def what_is_infinite_ends_the_run():
    """Soon, whatever is launched ahead of it: the loss of an early step is no number, and 60 were asked for."""
    image, said = program("lstm", "f32", "cuda", "-D", "examples=420", "-D", "rate=1e38"), {}
    for sink, most in (("epoch", 1), ("3", 15), ("1", 30), ("off", 0)):
        r = run(image, "train", *data(image), "--quiet", "--no-save", "--no-eval", "--epochs", "1", "--sink", sink,
                status=1, err="error: ", MANTOU_SIM_LOG="sim.json")
        c, said[sink] = json.load(open("sim.json")), [l for l in r.stderr.splitlines() if "error: " in l]
        assert c["graph_launches"] <= most and c["kernel_launches"] <= 30 * 60, (sink, c)
    assert all(said[sink] == said["epoch"] for sink in said), said


@test
def where_a_loss_is_not_finite():
    """The place, as on the CPU, in every sink mode; no parameter was touched."""
    r = subprocess.run([sys.executable, os.path.join(root, "tests", "train", "finite.py"), MANTOU, os.getcwd(),
                        "--target", "cuda", *ARCH, *PTX], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr[-600:]


@test
def no_loop_in_a_graph():
    """The note says why, and what comes of it has the same bits."""
    image = program("lstm")
    train(image, "loop")
    r = train(image, "none", MANTOU_SIM_MISSING="cuGraphConditionalHandleCreate")
    assert re.search("note: no loop in a graph: that takes a driver for CUDA 12.4, this one is for [0-9]+.[0-9];",
                     r.stderr), r.stderr
    assert bits("none") == bits("loop")
    c = counted(image, "--no-eval", "--steps", "0")["host_calls"]
    for n in range(c):                           # the call that loads the condition's kernel
        with contextlib.suppress(FileNotFoundError):
            os.unlink("none.log")
        r = subprocess.run([image, "train", "--synthetic", "--no-eval", "--steps", "2", "--no-save"],
                           env=dict(os.environ, MANTOU_SIM_FAIL="%d:221" % n), capture_output=True, text=True)
        if "no loop in a graph" in r.stderr and "221" in r.stderr:
            return
    raise AssertionError("the status of a condition that does not load was never said")


@test
def evaluation_and_inference():
    for net, precision in (("resnet", "f32"), ("resnet", "bf16"), ("gpt", "f16"), ("lenet", "f32"), ("lstm", "bf16")):
        image, cpu, truth = program(net, precision), program(net, precision, "cpu"), program(net, "f32", "ref")
        save = reference(net, precision)[0]
        e = [json.loads(run(i, "eval", *data(i), "--weights", save + ".st", "--json").stdout)
             for i in (image, cpu, truth)]
        for k in ("loss", "accuracy"):
            a, b, c = (x.get(k, x["metrics"].get(k)) for x in e)
            assert k == "accuracy" or abs(a - c) <= 3 * abs(b - c) + 4 * UNIT[precision] * max(1, abs(c)), (
                net, precision, k, e)
            assert k == "loss" or precision != "f32" or a == c, (net, e)
        draw = random.Random(3)
        for n in (1, 5, 17):                     # one, and more than batches of 3, 4 and 7 hold
            if net in ("resnet", "lenet"):
                shape = [n, 3, 11, 11] if net == "resnet" else [n, 1, 28, 28]
                base.npy("x.npy", "|u1", shape, [draw.randrange(256) for _ in range(math.prod(shape))])
                name = "image"
            else:
                base.npy("x.npy", "<i4", [n, 9 if net == "gpt" else 6],
                         [draw.randrange(11) for _ in range(n * (9 if net == "gpt" else 6))])
                name = "ids"
            out = []
            for i in (image, cpu, truth):
                run(i, "infer", "--weights", save + ".st", "--input", name + "=x.npy", "--output", "logits=y.npy")
                out.append(base.read_npy("y.npy"))
            assert out[0][0] == out[2][0] and out[0][0][0] == n
            size = max(abs(v) for v in out[2][1])
            worst = max(abs(b - c) for b, c in zip(out[1][1], out[2][1]))
            assert all(abs(a - c) <= 3 * worst + 16 * UNIT[precision] * size
                       for a, c in zip(out[0][1], out[2][1])), (net, precision, n)


@test
def what_follows_an_epoch():
    """Evaluations between epochs see the trained weights, and training goes on as if there had been none."""
    image = program("resnet")
    train(image, "e", "--epochs", "2", evaluate=True)
    train(image, "f", "--epochs", "2", "--sink", "2")
    assert bits("e")[0] == bits("f")[0]
    last = [o for o in base.log("e.log") if "eval" in o][-1]["eval"]
    again = json.loads(run(image, "eval", "--synthetic", "--weights", "e.st", "--json").stdout)
    assert "%.9g" % again["loss"] == "%.9g" % last["loss"] and "%.9g" % again["metrics"]["accuracy"] == "%.9g" % last[
        "accuracy"], (last, again)
    for sink in ("off", "1"):
        train(image, "g", "--epochs", "2", "--sink", sink, evaluate=True)
        assert bits("g") == bits("e"), sink


@test
def data_that_do_not_fit():
    image = program("lenet")
    train(image, "a")
    peak = counted(image, "--no-eval", "--steps", steps(image))["memory_peak"]
    r = train(image, "b", MANTOU_SIM_MEMORY=str(peak - 30000))
    assert r.stderr.count("does not fit on the device") == 1 and bits("a")[0] == bits("b")[0], r.stderr


@test
def a_profile():
    for net, precision in (("resnet", "bf16"), ("lstm", "f32")):
        r = run(program(net, precision), "bench", "--synthetic", "--warmup", "1", "--steps", "2", "--repeat", "1",
                "--profile=t.json", "--json")
        k = json.loads(r.stdout)["kernels"]
        assert len(k) > 20 and all(x["seconds"] > 0 for x in k), k[:3]
        assert len(json.load(open("t.json"))) > 0


# ---- with --long
# Batches that the simulated device can do: the large ones in bf16 alone, whose products of matrices it does fast.
MODELS = {"mlp": (8, "f32 bf16 f16"), "lenet": (8, "f32 bf16 f16"), "ncf": (100, "f32 bf16"),
          "lstm-bytes": (2, "f32 bf16"), "gpt-bytes": (1, "f32 bf16"), "bert-small": (2, "f32 bf16"),
          "resnet20-cifar10": (2, "f32 bf16"), "resnet50-small": (2, "f32 bf16"), "vgg16-cifar10": (2, "bf16"),
          "resnet50-cifar10": (2, "bf16"), "resnet50": (2, "bf16"),
          "vgg16": (1, "bf16"), "bert-base": (1, "bf16")}


def model(net, batch, precision):
    """The first loss, and two steps' for the smaller ones, near the CPU's in f32: three times as far as the CPU's own
    in this precision, and some roundings; the second with room for an activation within a rounding of zero that falls
    on the other side, which is a part of some 1e-4 of a gradient."""
    def check():
        path, count = os.path.join(root, "models", net + ".net"), "1" if precision == "bf16" and "f32" not in MODELS[
            net][1] else "2"
        for name, target, p, env in (("truth", "cpu", "f32", {}), ("cpu", "cpu", precision, {}),
                                     ("cuda", "cuda", precision, {"MANTOU_SIM_CHECK": "1" if count == "2" else "0",
                                                                  "MANTOU_SIM_MEMORY": str(8 << 30),
                                                                  "MANTOU_SIM_LIMIT": str(10 ** 15)})):
            build("model", path, "--target", target, "--precision", p, "--batch", str(batch),
                  *(["--arch", "sm_80"] if target == "cuda" else []))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name + ".log")
            r = subprocess.run([os.path.abspath("model"), "train", "--synthetic", "--no-eval", "--no-save", "--quiet",
                                "--steps", count, "--log", name + ".log"],
                               env=dict(os.environ, **env), capture_output=True, text=True)
            assert r.returncode == 0, r.stderr
        a, b, c = (losses(n + ".log") for n in ("cuda", "cpu", "truth"))
        assert len(a) == len(b) == int(count)
        worst = max(abs(y - z) for y, z in zip(b, c))
        assert all(abs(x - z) <= 3 * worst + ((2 if i == 0 else 32) * UNIT[precision] + (1e-5 if i == 0 else 1e-4))
                   * max(1, abs(z)) for i, (x, z) in enumerate(zip(a, c))), (a, b, c)
    check.__name__ = "model_%s_%s" % (net, precision)
    return check


def compiled(net, precision):
    """At the file's own batch, whose tiles differ from a small one's: spills in a contraction and waits of wgmma that
    the compiler put in are errors."""
    def check():
        build("model", os.path.join(root, "models", net + ".net"), "--target", "cuda", "--precision", precision,
              "--arch", "sm_90a,sm_80")
    check.__name__ = "compiled_%s_%s" % (net, precision)
    return check


if LONG:
    for net, (batch, precisions) in MODELS.items():
        tests += [compiled(net, p) for p in ("f32", "bf16", "f16")]
        tests += [model(net, batch, p) for p in precisions.split()]


def digits():
    """The first of models/digits, as few as the simulated device can learn in time."""
    os.makedirs("digits", exist_ok=True)
    for kind, n in (("train", 61), ("t10k", 6)):
        for part, head, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            name = "%s-%s-ubyte.gz" % (kind, part)
            blob = gzip.open(os.path.join(root, "models", "digits", name)).read(head + n * size)
            with gzip.open(os.path.join("digits", name), "wb") as f:
                f.write(blob[:4] + struct.pack(">I", n) + blob[8:])


def cpu():
    """Seconds of CPU that this process and those it waited for have used."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(tests, name):
    """Runs those that the second argument is in the name of, in a folder of their own, and counts them in the last
    line."""
    only, counts = sys.argv[2] if len(sys.argv) > 2 else "", {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory(prefix=name + ".") as folder:
        os.chdir(folder)
        digits()
        for t in tests:
            if only not in t.__name__:
                continue
            begin, used = time.time(), cpu()
            try:
                t()
                counts["passed"] += 1
            except Skip as e:
                counts["skipped"] += 1
                print("skip %s: %s" % (t.__name__, e))
            except Exception as e:
                counts["failed"] += 1
                print("FAIL %s: %s: %s" % (t.__name__, type(e).__name__, str(e)[:3000]))
            print("%s: %.1f s, %.1f of CPU" % (t.__name__, time.time() - begin, cpu() - used), file=sys.stderr,
                  flush=True)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return counts["failed"] > 0


if __name__ == "__main__":
    sys.exit(main(tests, "sink"))
