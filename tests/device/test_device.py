"""test_device.py DEVICE_IMAGE IMAGE: what a device adds to the runtime, by the executables of image.c and
../runtime/image.c. Standard library only.

The checkpoints of the CPU's bits in every sink mode and from one to the other; launches, counted by the simulated
driver; data sets that do not fit; drivers that are bad, and every call failing in turn."""
import json, os, re, signal, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "runtime"))
DEVICE, CPU = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
import test_runtime as base
counts = {"passed": 0, "failed": 0, "skipped": 0}
tests = []


def test(f):
    tests.append(f)
    return f


def on(image, *args, **more):
    base.IMAGE = image
    return base.run(*args, **more)


def train(*args, image=DEVICE, **more):
    return on(image, "train", "--data", ".", *args, **more)


def counted(*args, **more):
    env = dict(more.pop("env", {}), MANTOU_SIM_LOG="sim.json")
    train(*args, env=env, **more)
    return json.load(open("sim.json"))


def lines(path):
    return [{k: v for k, v in o.items() if "second" not in k and "_per_s" not in k} for o in base.log(path)]


@test
def the_bits_of_the_processor():
    for accumulate in ("1", "3"):
        env = {"RTI_ACCUMULATE": accumulate}
        train("--save", "c.st", "--log", "c.jsonl", image=CPU, env=env)
        want = base.states("c.st"), lines("c.jsonl")
        for sink in ("off", "1", "5", "100", "epoch"):
            train("--save", "d.st", "--log", "d.jsonl", "--sink", sink, env=env)
            assert (base.states("d.st"), lines("d.jsonl")) == want, (sink, accumulate)


@test
def from_one_to_the_other():
    train("--save", "a.st", image=CPU)
    for first, second, sink in ((CPU, DEVICE, "epoch"), (DEVICE, CPU, "epoch"), (DEVICE, DEVICE, "4"),
                                (DEVICE, CPU, "off")):
        train("--save", "b.st", "--stop", "17", image=first)
        train("--save", "b.st", "--resume", "b.st", "--sink", sink, image=second)
        assert base.states("a.st") == base.states("b.st"), (first, second)
    for image in (CPU, DEVICE):
        on(image, "infer", "--weights", "a.st", "--input", "x=x.npy", "--output",
           "pred=%s.npy" % os.path.basename(image))
        e = json.loads(on(image, "eval", "--data", ".", "--weights", "a.st", "--json").stdout)
        assert image == CPU or e == want, (e, want)
        want = e
    assert open("rtimage.npy", "rb").read() == open("deviceimage.npy", "rb").read()


@test
def one_launch_for_an_epoch():
    c = counted("--no-save", "--no-eval", "--epochs", "5")
    assert c["graph_launches"] == 5 and c["conditional_runs"] == 60 and c["kernel_launches"] == 0 and c["leaks"] == 0, c
    c = counted("--no-save", "--no-eval", "--epochs", "5", "--sink", "1")
    assert c["graph_launches"] == 60 and c["conditional_runs"] == 0, c
    c = counted("--no-save", "--no-eval", "--epochs", "1", "--sink", "5")
    assert c["graph_launches"] == 4, c           # 5, 5, 1, 1
    c = counted("--no-save", "--no-eval", "--epochs", "1", "--sink", "off")
    assert c["graph_launches"] == 0 and c["kernel_launches"] == 60, c
    c = counted("--no-save", "--epochs", "3")
    assert c["graph_launches"] == 6 and c["kernel_launches"] == 9, c # an evaluation: pack, and the last, smaller batch


@test
def the_host_sleeps():
    base.data_set(24000)
    begin = time.time()
    c = counted("--no-save", "--no-eval", "--epochs", "1", env={"RTI_SLEEP_US": "500"})
    # naps become 2 ms
    assert c["graph_launches"] == 1 and c["host_calls"] < 600 + 600 * (time.time() - begin), c["host_calls"]
    base.data_set()


@test
def every_save_is_a_launch():
    c = counted("--save", "e.st", "--no-eval", "--epochs", "1", "--every", "5")
    assert c["graph_launches"] == 3, c


@test
def a_stop_comes_through():
    base.data_set(40000)
    for sink in ("epoch", "7", "1"):
        if os.path.exists("c.jsonl"):
            os.unlink("c.jsonl")
        p = subprocess.Popen([DEVICE, "train", "--data", ".", "--epochs", "20", "--save", "c.st", "--quiet",
                              "--no-eval", "--sink", sink, "--log", "c.jsonl"],
                             env=dict(os.environ, RTI_READER=base.NPY, RTI_SLEEP_US="500"), stderr=subprocess.PIPE,
                             text=True)
        while not os.path.exists("c.jsonl") or os.path.getsize("c.jsonl") < 1000:
            time.sleep(0.01)
            assert p.poll() is None
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=20)[1]
        step = int(base.load("c.st")[1]["step"])
        assert p.returncode == 130 and 0 < step < 5000 and len(base.steps("c.jsonl")) == step, (p.returncode, err, step)
        train("--stop", step, "--save", "d.st", "--epochs", "20", "--no-eval", image=CPU)
        assert base.states("c.st") == base.states("d.st")
    base.data_set()


@test
def a_stop_between_launches():
    """The wish may come when all that was launched is done, in an evaluation too: then nothing on the device has seen
    it."""
    for i in range(24):
        open("c.jsonl", "w").close()
        p = subprocess.Popen([DEVICE, "train", "--data", ".", "--epochs", "2000", "--no-save", "--quiet", "--sink", "1",
                              "--log", "c.jsonl"],
                             env=dict(os.environ, RTI_READER=base.NPY, RTI_SLEEP_US="0"), stderr=subprocess.PIPE,
                             text=True)
        while not os.path.getsize("c.jsonl") and p.poll() is None:
            time.sleep(0.001)
        time.sleep(i * 0.0007)
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=20)[1]
        assert p.returncode == 130, (p.returncode, err)


@test
def a_data_set_that_does_not_fit():
    base.data_set(20000)
    train("--save", "a.st", "--epochs", "2", image=CPU)
    for accumulate in ("1", "3"):
        env = {"RTI_ACCUMULATE": accumulate}
        r = train("--save", "c.st", "--epochs", "2", "--quiet", image=CPU, env=env)
        r = train("--save", "d.st", "--epochs", "2", "--quiet", env=dict(env, MANTOU_SIM_MEMORY="500000"))
        assert r.stderr.count("does not fit on the device") == 1 and base.states("c.st") == base.states(
            "d.st"), r.stderr
    r = train("--save", "d.st", "--epochs", "2", "--quiet", "--stop", "3001", env={"MANTOU_SIM_MEMORY": "500000"})
    train("--save", "d.st", "--resume", "d.st", "--epochs", "2")
    assert base.states("a.st") == base.states("d.st")
    base.data_set()


@test
def no_loop_in_a_graph():
    train("--save", "a.st", image=CPU)
    r = train("--save", "b.st", "--quiet", env={"MANTOU_SIM_MISSING": "cuGraphConditionalHandleCreate"},
              err="each step is a launch")
    assert r.stderr.count("\n") == 1 and base.states("a.st") == base.states("b.st"), r.stderr
    log = counted("--no-save", "--no-eval", "--epochs", "1", env={"MANTOU_SIM_MISSING": "cuGraphAddNode_v2"})
    assert log["graph_launches"] == 12, log


@test
def bad_drivers():
    bad = lambda text, **env: train("--no-save", "--steps", "3", status=1, err="^deviceimage: error: " + text, env=env)
    bad("this program needs an NVIDIA driver: .*nothing.so.*MANTOU_LIBCUDA", MANTOU_LIBCUDA="/nothing.so")
    bad("the CUDA driver does not start: cuInit: CUDA_ERROR_NO_DEVICE|the driver finds no", MANTOU_SIM_DEVICES="0")
    bad("the driver is for CUDA 11.4, 12.0 or newer", MANTOU_SIM_DRIVER="11040")
    bad("libcuda.so.1 has no cuGraphAddKernelNode_v2: the driver is too old",
        MANTOU_SIM_MISSING="cuGraphAddKernelNode_v2")
    bad("libcuda.so.1 has no cuLaunchKernel: it is no driver", MANTOU_SIM_MISSING="cuLaunchKernel")
    bad(".*capability 7.5\) runs none .*: code object 1 of 1 needs compute capability 8.0 or more; build with",
        MANTOU_SIM_SM="75")
    bad(".*code object 1 of 1 needs a driver for CUDA 13.0, this one is for 12.4; build with another --arch, for an "
        "older driver with its CUDA's NVRTC", MANTOU_SIM_DRIVER="12040")
    for arch, sm, text in (("sm_90a", "80", "9.0 exactly"), ("sm_80", "90", "8.0 to 8.9"),
                           ("sm_86", "80", "8.6 to 8.9")):
        bad(".*needs compute capability " + text, RTI_ARCH=arch, RTI_COMPILE="compute_80", MANTOU_SIM_SM=sm)
    bad(r".*capability 8.0\) runs none of the program's code objects: code object 1 of 2 needs compute capability 9.0 "
        r"exactly; code object 2 of 2 needs compute capability 8.6 to 8.9;",
        RTI_ARCH="sm_90a sm_86", RTI_COMPILE="compute_80", MANTOU_SIM_SM="80")
    train("--no-save", "--steps", "3", env={"RTI_ARCH": "sm_90a sm_86 compute_80", "RTI_COMPILE": "compute_80",
                                            "MANTOU_SIM_SM": "80"})
    for arch in ("compute_75", "compute_86", "compute_90a"):
        train("--no-save", "--steps", "3", env={"RTI_ARCH": arch, "MANTOU_SIM_SM": "75" if arch == "compute_75"
                                                else "90"})
    train("--no-save", "--steps", "3", env={"RTI_ARCH": "sm_80", "RTI_COMPILE": "compute_80", "MANTOU_SIM_SM": "86"})
    on(DEVICE, "info", env={"MANTOU_LIBCUDA": "/nothing.so"}, out="kernels")


@test
def out_of_memory():
    train("--no-save", status=1, err=r"the arena needs 0\.0 MiB \(0\.0 of them states\) for batches of 8, the device "
                                     r"has 0\.0 MiB free of 0\.0; the largest batch that fits is about [2-7]",
          env={"MANTOU_SIM_MEMORY": "900"})
    train("--no-save", status=1, err="no batch fits", env={"MANTOU_SIM_MEMORY": "100"})


@test
def a_profile():
    r = on(DEVICE, "bench", "--warmup", "3", "--steps", "20", "--repeat", "2", "--profile=t.json", "--json")
    k = json.loads(r.stdout)["kernels"]
    assert [x["name"] for x in k] == ["check", "pred", "loss", "grad", "update"] and all(x["seconds"] > 0 for x in k), k
    on(DEVICE, "bench", "--mode", "infer", "--warmup", "3", "--steps", "20", "--repeat", "2", out="examples/s")


@test
def every_call_fails_in_turn():
    for sink, step in (("epoch", 3), ("5", 11), ("off", 41)):
        args = "--steps", "14", "--every", "5", "--quiet", "--sink", sink
        calls = counted("--save", "f.st", *args)["host_calls"]
        steps, whole, tries = set(), 0, len(range(1, calls, step))
        for n in range(1, calls, step):
            if os.path.exists("g.st"):
                os.unlink("g.st")
            e = dict(os.environ, RTI_READER=base.NPY, MANTOU_SIM_FAIL=str(n))
            r = subprocess.run([DEVICE, "train", "--data", ".", "--save", "g.st", *args], env=e, capture_output=True,
                               text=True, timeout=60)
            failed = re.search(r"^deviceimage: error: .*(cu[A-Z]\w*: CUDA_ERROR_UNKNOWN 999)", r.stderr, re.M)
            # as it closes everything, after the last save; or fewer calls than counted, as there were fewer naps
            if r.returncode == 0:
                assert base.states("g.st") == base.states("f.st") and not failed, (n, r.stderr)
                whole += 1
            else:
                assert r.returncode == 1 and failed, (n, r.stderr)
                if os.path.exists("g.st"):
                    steps.add(int(base.load("g.st")[1]["step"]))
        assert steps <= {5, 10, 12, 14} and whole < tries / 2, (steps, whole, tries)


@test
def a_call_fails_and_the_next_do_not():
    want = None
    for n in range(1, 200, 7):
        r = subprocess.run([DEVICE, "train", "--data", ".", "--save", "g.st", "--steps", "14", "--quiet"],
                           env=dict(os.environ, RTI_READER=base.NPY, MANTOU_SIM_FAIL="%d:801" % n),
                           capture_output=True, text=True, timeout=60)
        if r.returncode == 0:
            want = want or base.states("g.st")
            assert base.states("g.st") == want
        else:
            assert "CUDA_ERROR_NOT_SUPPORTED 801" in r.stderr, r.stderr


def main():
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        base.data_set()
        for t in tests:
            if only not in t.__name__:
                continue
            try:
                t()
                counts["passed"] += 1
            except Exception as e:
                counts["failed"] += 1
                print("FAIL %s: %s: %s" % (t.__name__, type(e).__name__, e))
                base.data_set()
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return counts["failed"] > 0


if __name__ == "__main__":
    sys.exit(main())
