"""test_cudnn.py MANTOU [TEST]: contractions that a tuning file gives to cuDNN: which it takes, what is said of the
others, and executables with its plans on the simulated devices that MANTOU_LIBCUDA and SIMULATED name. Standard library
only."""
import json, os, re, subprocess, sys

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
sys.path.insert(0, os.path.join(root, "tests", "sink"))
import test_sink as sink
from test_sink import Skip
from numbers_near import bits, near, tensors

MANTOU, SIMULATED = sink.MANTOU, os.environ["SIMULATED"]
REAL = dict(os.environ)                         # the library that is installed, if any
os.environ["MANTOU_LIBCUDNN"] = os.path.join(SIMULATED, "libcudnn.so.9")
tests = []
NETS = (("odd", "bf16"), ("odd", "f16"), ("resnet", "bf16"), ("resnet", "f16"), ("lenet", "bf16"), ("gpt", "f16"),
        ("gpt", "bf16"), ("lstm", "bf16"))
FIRST = "cudnn{engine=-1,round=1}"
FUSED = "cudnn{engine=-1,round=1,fused=1}"


in_sink = sink.source
sink.source = lambda net: os.path.join(here, net + ".net") if net in ("odd", "plain", "race") else in_sink(net)


def test(f):
    tests.append(f)
    return f


def mantou(*args, env=None):
    r = subprocess.run([MANTOU] + [str(a) for a in args], capture_output=True, text=True, env=env)
    assert r.returncode == 0, "mantou %s: exit %d\n%s" % (" ".join(map(str, args)), r.returncode, r.stderr)
    return r


def options(net, precision, arch="sm_80"):
    return [sink.source(net), "--target", "cuda", "--arch", arch, "--precision", precision,
            *(["--batch", "4"] if net == "lenet" else [])]


def info(*of, env=os.environ):
    """What info says but for times: those need every kernel compiled by NVRTC, which it looks for in vain here."""
    return json.loads(mantou("info", *of, "--json", env=dict(env, MANTOU_LIBNVRTC="/nowhere")).stdout)


def records(path, kernel, of, only=""):
    """A tuning file with this kernel for every contraction of the model whose record holds a word."""
    lines = sorted({r.split(" : ")[0] + " : " + kernel.replace("{", ".1{", 1) for r in info(*of)["records"]
                    if only in r and re.search(r" (conv2d|matmul)[.\w]* ", r)})
    assert lines
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    return path


def program(net, precision, kernel=FIRST, only="", *more):
    """An executable whose contractions are all cuDNN's, but for those of f32."""
    name = "-".join(["dnn", net, precision, re.sub("[^a-z0-9]", "", kernel), only.strip(),
                     *(re.sub("[^a-z0-9]", "", a) for a in more)])
    if not os.path.exists(name):
        of = options(net, precision) + list(more)
        sink.build(name, *of, *sink.PTX, "--tuning", records(name + ".tune", kernel, of, only))
    return os.path.abspath(name)


def text(of, *more, env=None):
    """The generated text, and what is said."""
    r = mantou("build", *of, *more, "--emit", "cuda", "-o", "text.cu", env=env)
    return open("text.cu").read(), r.stderr


def verdicts(of, *more, env=None):
    return [v for v in json.loads(mantou("explain", *of, *more, "--json", env=env).stdout)
            if v["rule"] == "select.cudnn"]


# ---- what is taken
@test
def the_numbers_are_those_of_the_header():
    include = "/usr/local/cuda/include"
    if not os.path.exists(include + "/cudnn_graph.h"):
        raise Skip("there is no cudnn_graph.h in " + include)
    r = subprocess.run(["cc", "-w", "-I" + include, "-c", os.path.join(here, "numbers.c"), "-o", "numbers.o"],
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


@test
def every_contraction_says_which_engine():
    of = options("lenet", "bf16")
    own, said = text(of)
    assert "cuDNN" not in own and not said, said
    v = verdicts(of)
    assert len(v) > 15 and all(x["outcome"] == "declined" and re.match(r"mma\{.*\}, not cuDNN: no record", x["why"])
                               for x in v), v
    tune = records("all.tune", FIRST, of)
    v = verdicts(of, "--tuning", tune)
    assert all(x["outcome"] != "declined"
               and re.match(r"cudnn\{engine=(7,knob=2:16|3),round=1\}, \d+ bytes of workspace", x["why"]) for x in v), v
    made, said = text(of, "--tuning", tune)
    assert not said and made.count(": conv2d.dw bf16:") == 2, said
    assert " engine=7 knobs=2:16 workspace=0 */" in made and "mma_bf16(acc" not in made.split("/* graph", 1)[1], said
    for group in ("train_conv2d_conv2d0", "train_conv2d_conv2d1"):
        assert re.search("group %s_[0-9]+: a plan of cuDNN" % group, made), group
    # planned, it is built without the library
    ir = mantou("dump", *of, "--tuning", tune, "--stage", "planned", "-o", "planned.ir") and "planned.ir"
    again, said = text([ir, "--target", "cuda", "--arch", "sm_80"], env=dict(os.environ, MANTOU_LIBCUDNN="/nowhere"))
    assert again.split("\n", 1)[1] == made.split("\n", 1)[1] and not said, said


@test
def rows_stand_in_the_table_with_their_figures():
    of = options("lenet", "bf16")
    rows = {t: info(*of, *more) for t, more in (("own", []), ("dnn", ["--tuning", records("all.tune", FIRST, of)]))}
    assert rows["own"]["gflop_per_step"] == rows["dnn"]["gflop_per_step"] > 0
    assert rows["dnn"]["bytes_per_step"] > rows["own"]["bytes_per_step"]       # what goes through the workspace


@test
def switched_off_it_leaves_no_trace():
    of = options("lenet", "bf16")
    own = text(of)
    tune = records("all.tune", FIRST, of)
    assert text(of, "--tuning", tune, "--disable", "cudnn") == own
    v = verdicts(of, "--tuning", tune, "--disable", "cudnn")
    assert all(x["outcome"] == "declined" and x["why"].endswith("not cuDNN: it is switched off") for x in v), v
    limited = text(of, "--tuning", tune, "--pass-limit", "select.cudnn:2")[0]
    assert 0 < limited.count("a plan of cuDNN") < text(of, "--tuning", tune)[0].count("a plan of cuDNN")


@test
def without_the_library_records_are_not_taken():
    of = options("lenet", "bf16")
    tune = records("one.tune", FIRST, of, " conv2d.dw bf16[4,6")
    for lib, words in (("/nowhere/libcudnn.so.9", "cuDNN was not found: /nowhere/libcudnn.so.9"),
                       (os.environ["MANTOU_LIBCUDA"], "is no cuDNN 9: it has no cudnn")):
        env = dict(os.environ, MANTOU_LIBCUDNN=lib)
        made, said = text(of, "--tuning", tune, env=env)
        assert made == text(of)[0] and words in said and "one.tune:1:" in said, said
        assert any(words in x["why"] for x in verdicts(of, "--tuning", tune, env=env))


@test
def what_does_not_fit_is_said():
    conv, dw = " conv2d bf16[4,6", " conv2d.dw bf16[4,6"
    cases = (
        ("sm_80", "bf16", conv, "cudnn{engine=}", "a record of cuDNN is cudnn{engine=["),
        ("sm_80", "bf16", conv, "cudnn{engine=-3}", "engine=-3 does not fit: engine >= -1"),
        ("sm_80", "bf16", conv, "cudnn{knob=2:3}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=7,knob=2}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=-1,knob=2:3}",
         "knob=2:3 does not fit: !knob || engine >= 0, with engine=-1"),
         ("sm_80", "bf16", conv, "cudnn{engine=7,round=2}", "round=2 is not one of 0 1"),
        ("sm_80", "bf16", conv, "cudnn{engine=7,round=1,fused=2}", "fused=2 is not one of 0 1"),
        ("sm_80", "bf16", conv, "cudnn{engine=7,fused=1}", "fused=1 does not fit: !fused || round, with round=0"),
        ("sm_80", "bf16", dw, FUSED, "nothing but convolutions"),
        ("sm_80", "bf16", dw, "cudnn{engine=7,knob=4294967298:16,round=1}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=7,foo=1}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=7x}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=7" + 49 * ",knob=1:1" + "}", "a record of cuDNN is"),
        ("sm_80", "bf16", conv, "cudnn{engine=7}", "needed in f32, and cuDNN makes it in bf16; round=1"),
        ("sm_80", "bf16", dw, "cudnn{engine=-1}", "needed in f32"), ("sm_80", "bf16", dw, "cudnn{engine=9,round=1}",
                                                                     "engine 9 adds in no fixed order"),
        ("sm_80", "bf16", dw, "cudnn{engine=55,round=1}", "no engine 55 for this operation"),
        ("sm_80", "bf16", dw, "cudnn{engine=7,knob=2:101,round=1}", "has no value 101"),
        ("sm_86", "bf16", dw, FIRST, "no profile of a device of sm_86"),
        ("sm_80", "bf16", dw, "cudnn{engine=-1,round=1,device=h100}", "no profile of a device h100 of sm_80"),
        ("sm_80", "f32", " conv2d.dw f32[4,6", FIRST, "products of f16 or bf16 alone"),
        ("sm_80", "bf16", dw, "mma{m=3,n=4,k=5,stages=2,warps=1x1}", "m=3 is not one of 32 64 128 256"))
    for arch, precision, only, kernel, words in cases:
        of = options("lenet", precision, arch)
        made, said = text(of, "--tuning", records("bad.tune", kernel, of, only))
        assert words in said and "these parameters do not fit" in said, (kernel, said)
        assert made == text(of)[0], kernel
    of = options("lenet", "bf16", "sm_90a")
    assert "a plan of cuDNN" in text(of, "--tuning",
                                     records("good.tune", "cudnn{engine=7,knob=5:1,round=1,device=h100}", of, dw))[0]


@test
def what_is_selected_reads_back():
    # a knob of -1, which the heuristics name where something follows; a device whose plans need less than the
    # architecture's first
    for arch, kernel, only, chosen in (("sm_80", FUSED, " conv2d ",
                                        "cudnn{engine=7,knob=2:16,knob=12:-1,round=1,fused=1}"),
                                       ("sm_90a", "cudnn{engine=-1,round=1,device=h100}", " conv2d.dw",
                                        "cudnn{engine=7,knob=2:16,round=1,device=h100}")):
        of = [sink.source("plain"), "--target", "cuda", "--arch", arch, "--precision", "bf16"]
        once, said = text(of, "--tuning", records("first.tune", kernel, of, only))
        assert not said and "a plan of cuDNN" in once, said
        assert any(chosen in x["why"] for x in verdicts(of, "--tuning",
                                                        "first.tune")), verdicts(of, "--tuning", "first.tune")
        assert text(of, "--tuning", records("found.tune", chosen, of, only))[0] == once
        mantou("dump", *of, "--tuning", "first.tune", "--stage", "planned", "-o", "planned.ir")
        assert text(["planned.ir", "--target", "cuda", "--arch", arch])[0].split("\n", 1)[1] == once.split("\n", 1)[1]


# ---- executables
def trains(net, precision, kernel=FIRST, only=""):
    def check():
        image, name = program(net, precision, kernel, only), "dnn." + net + "." + precision
        sink.train(image, name, MANTOU_DNN_LOG="dnn.json")
        assert json.load(open("dnn.json"))["executions"] > (1 if kernel == FUSED else 10)
        near(precision, name, *sink.reference(net, precision))
        want = bits(name)
        for seed, mode in enumerate(("off", "1", "2", "epoch"), 2):
            sink.train(image, "again", "--sink", mode, MANTOU_SIM_SEED=str(seed), MANTOU_SIM_THREADS=str(seed - 1))
            assert bits("again") == want, "--sink " + mode
        sink.train(image, "half", "--stop", "2", "--sink", "epoch")
        sink.train(image, "half", "--resume", "half.st")
        assert bits("half")[0] == want[0], "stopped and resumed"
    check.__name__ = "trains_%s_%s%s" % (net, precision, "_fused" if kernel == FUSED else "")
    return check


for net, precision in NETS:
    tests.append(trains(net, precision))
for net, precision in (("plain", "bf16"), ("plain", "f16"), ("race", "bf16")):
    tests.append(trains(net, precision, FUSED, " conv2d "))


@test
def what_follows_a_convolution_is_the_plans():
    of = options("plain", "bf16")
    made, said = text(of, "--tuning", records("fused.tune", FUSED, of, " conv2d "))
    lines = re.findall(r": (conv2d bf16.*) \*/", made)
    assert not said and sorted(re.search(" then=([a-z,]*)", x).group(1)
                               for x in lines) == ["bias,add", "bias,add,relu", "bias,relu", "bias,relu"], (said, lines)
    # filters (with their factors), the bias, the plan, and nothing behind it; images before the first
    for group, kernels in (("first", 4), ("second", 3), ("fourth", 3)):
        assert len(re.findall(r"graph train, group train_conv2d_%s_[0-9]+: " % group, made)) == kernels, group
    assert "fused=1" in str(verdicts(of, "--tuning", "fused.tune"))
    resnet = options("resnet", "bf16")
    why = {(x["graph"], x["outcome"]): x["why"] for x in verdicts(resnet, "--tuning",
                                                                  records("resnet.tune", FUSED, resnet, " conv2d "))
                                                                  if "conv2d" in x["kinds"]}
    assert "that trains are, and cuDNN's patterns for these sum squares" in why["train",
                                                                                "declined"] and (
                                                                                    "eval",
                                                                                    "fused") in why and (
                                                                                        "infer", "fused") in why, why


@test
def evaluates_with_what_follows():
    """A normalisation that does not train is factors in filters and a bias; batches of 3 with 2 examples over."""
    fused, own = program("resnet", "bf16", FUSED, " conv2d "), sink.program("resnet", "bf16")
    losses = {}
    for name, image in (("fused", fused), ("own", own)):
        for mode in ("off", "epoch"):
            sink.train(image, "e", "--sink", mode, evaluate=True, MANTOU_DNN_LOG="dnn.json")
            losses[name, mode] = [o["eval"]["loss"] for o in sink.base.log("e.log") if "eval" in o]
        assert losses[name, "off"] == losses[name, "epoch"]
        assert name == "own" or json.load(open("dnn.json"))["executions"] > 10
    for a, b in zip(losses["fused", "off"], losses["own", "off"]):
        assert abs(a - b) < 0.02 * abs(b) and len(losses["own", "off"]) > 0, losses


@test
def products_keep_f32_where_it_is_needed():
    """And products of several matrices, turned and not, where attention is expanded; every contraction a kernel of its
    own, too."""
    for more in ((), ("--disable", "attention"), ("--disable", "attention,fuse")):
        of = options("gpt", "bf16") + list(more)
        made = text(of, "--tuning", records("wide.tune", "cudnn{engine=-1}", of))[0]
        assert re.search(r" matmul bf16:\S+ bf16:\S+ f32:", made) and (not more
                                                                       or re.search(r" matmul bf16:9,", made)), more
        sink.train(program("gpt", "bf16", "cudnn{engine=-1}", "", *more), "wide")
        near("bf16", "wide", *sink.reference("gpt", "bf16"))


@test
def evaluates_and_infers_batches_that_are_not_full():
    image, own = program("resnet", "bf16"), sink.program("resnet", "bf16")
    results = {}
    for name, x in (("dnn", image), ("own", own)):
        for mode in ("off", "epoch"):
            sink.train(x, "e", "--sink", mode, evaluate=True)
            results[name + mode] = [o["eval"]["loss"] for o in sink.base.log("e.log") if "eval" in o]
    assert results["dnnoff"] == results["dnnepoch"] and len(results["dnnoff"]) == len(results["ownoff"]) > 0
    for a, b in zip(results["dnnoff"], results["ownoff"]):
        assert abs(a - b) < 0.02 * abs(b), results


@test
def plans_need_workspace():
    """That of the arena, and more where the device asks for more."""
    image = program("resnet", "bf16", "cudnn{engine=8,round=1}", " conv2d")
    sink.train(image, "w")
    sink.train(program("resnet", "bf16", FIRST, " conv2d"), "v")
    assert bits("w") == bits("v")
    for mode in ("off", "epoch"):
        sink.train(image, "more", "--sink", mode, MANTOU_DNN_WORKSPACE="100000")
        assert bits("more") == bits("w"), mode
    sink.run(image, "train", "--synthetic", "--no-save", "--steps", "1", status=1,
             err="out of memory: the workspace of cuDNN's plans needs", MANTOU_DNN_WORKSPACE="1000000000000")


@test
def kernels_are_counted_in_every_mode():
    image = program("lenet", "bf16")
    launches = {m: sink.counted(image, "--steps", "3", "--sink", m) for m in ("off", "1", "epoch")}
    assert launches["off"]["kernel_launches"] > launches["1"]["graph_kernels"] / 2 > 0
    # the loop's own
    assert launches["1"]["graph_kernels"] == launches["epoch"]["graph_kernels"] - launches["epoch"][
        "conditional_runs"], launches
    r = sink.run(image, "bench", "--steps", "2", "--warmup", "1", "--repeat", "1", "--profile", "--synthetic")
    rows = [line.split() for line in r.stdout.split("\n") if line.startswith("  train_conv2d_dw")]
    # a plan with the figures, and kernels before and behind it
    assert len(rows) >= 4 and sum(float(x[3]) > 0 for x in rows) == 2, rows


# ---- errors of executables
def fails(image, words, *args, **env):
    r = sink.run(image, "train", *sink.data(image), "--no-save", "--steps", "3", *args, status=1, **env)
    assert re.search(words, r.stderr), r.stderr
    if not args:                                                                   # before the first step
        assert "this program has plans of cuDNN 9: built with --disable cudnn it needs none" in r.stderr, r.stderr
    return r.stderr


@test
def errors_name_what_failed_and_the_way_out():
    image = program("lenet", "bf16")
    fails(image, "cuDNN was not found: /nowhere", MANTOU_LIBCUDNN="/nowhere")
    fails(image, "libcudnn_less.so is no cuDNN 9: it has no cudnnBackendExecute",
          MANTOU_LIBCUDNN=os.path.join(SIMULATED, "libcudnn_less.so"))
    fails(image, r"cuDNN 91900 makes no plan of engine 7 for conv2d.* here: an execution plan: "
                 r"CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH \(3007\): engine 7 is for other devices",
                 MANTOU_DNN_REFUSE="7")
    fails(image, r"kernel \S*conv2d\S* \(.*conv2d0, .*lenet.net:\d+:\d+\): cudnnBackendExecute: "
                 r"CUDNN_STATUS_EXECUTION_FAILED \(5000\): execution 1 fails", MANTOU_DNN_EXECUTE="1")
    # an executable without plans does not look for the library
    sink.train(sink.program("lenet", "bf16"), "own", "--steps", "1", MANTOU_LIBCUDNN="/nowhere")
    sink.run(image, "info", MANTOU_LIBCUDNN="/nowhere")


@test
def a_failed_execution_in_every_mode():
    image = program("lenet", "bf16")
    for mode in ("off", "1", "2", "epoch"):
        said = fails(image, r"kernel \S+ \(.*\): cudnnBackendExecute: .*execution 17 fails", "--sink", mode,
                     MANTOU_DNN_EXECUTE="17")
        assert mode == "off" or "a graph of train" in said, said


@test
def every_call_of_the_driver_fails_in_turn():
    image = program("lenet", "bf16", FIRST, " conv2d")
    calls = sink.counted(image, "--steps", "1", "--sink", "1")["host_calls"]
    for n in range(1, calls, max(1, calls // 40)):
        r = subprocess.run([image, "train", "--data", "digits", "--no-save", "--steps", "1", "--sink", "1",
                            "--no-eval"], capture_output=True, text=True, env=dict(os.environ, MANTOU_SIM_FAIL=str(n)))
        assert r.returncode == 0 or (r.returncode == 1 and ("fails with" in r.stderr)
                                     and len(r.stderr.strip().split("\n")) > 1), "call %d of %d: exit %d: %s" % (
                                         n, calls, r.returncode, r.stderr)


@test
def damaged_plans():
    blob = open(program("lenet", "bf16"), "rb").read()
    at = blob.index(b"conv2d bf16:")
    line = blob[at:blob.index(b"\0", at)]
    changes = [(b" workspace=", b"\0workspace=", "its end is missing"),
               (b"conv2d bf16", b"conv3d bf16", "it names no operation"), (b"bf16:", b"bf17:", "a tensor is damaged"),
               (b",28/", b",0a/", "a tensor is damaged"), (b" pad=2,", b" pad=2;",
                                                           "its padding, stride or dilation is damaged"),
                                                           (b"stride=1,1", b"stride=0,1",
                                                            "its padding, stride or dilation"),
               (b"engine=7", b"engine=-", "its engine is damaged"), (b"knobs=2:16", b"knobs=2,16",
                                                                     "its engine is damaged"),
                                                                     (b"engine=7 ", b"engine=5 ",
                                                                      "no engine 5 for this operation")]
    for old, new, words in changes:
        assert old in line and len(old) == len(new), (old, line)
        with open("damaged", "wb") as f:
            f.write(blob[:at] + line.replace(old, new, 1) + blob[at + len(line):])
        os.chmod("damaged", 0o755)
        r = sink.run(os.path.abspath("damaged"), "train", "--data", "digits", "--no-save", "--steps", "1", status=1)
        assert words in r.stderr, (new, r.stderr)
    blob = open(program("plain", "bf16", FUSED, " conv2d "), "rb").read()
    for old, new, words in ((b"then=bias,relu", b"then=bias,rely", "its engine is damaged"),
                            (b" then=bias,add", b" tham=bias,add", "its engine is damaged")):
        with open("damaged", "wb") as f:
            f.write(blob.replace(old, new))
        os.chmod("damaged", 0o755)
        r = sink.run(os.path.abspath("damaged"), "train", "--synthetic", "--no-save", "--steps", "1", status=1)
        assert words in r.stderr, (new, r.stderr)


# ---- the real library
@test
def the_real_library_plans_for_the_profiles():
    env = {k: v for k, v in REAL.items() if k not in ("MANTOU_LIBCUDA",)}
    probe = options("lenet", "bf16")
    if "was not found" in text(probe, "--tuning", records("probe.tune", FIRST, probe, " conv2d.dw bf16[4,6"),
                               env=env)[1]:
        raise Skip("cuDNN 9 is not installed: no plan of it was made")
    for arch, precision in (("sm_80", "bf16"), ("sm_90", "f16")) if sink.LONG else (("sm_80", "bf16"),):
        of = [os.path.join(root, "models", "resnet50.net"), "--target", "cuda", "--arch", arch, "--precision",
              precision, "--batch", "32"]
        v = [x for x in verdicts(of, "--tuning", records("real.tune", FIRST, of, " conv2d"), env=env)
             if "conv2d" in str(x["ops"])]
        taken = [x for x in v if x["outcome"] != "declined"]
        assert len(taken) == len(v) > 150, "%s %s: %d of %d; %s" % (arch, precision, len(taken), len(v),
                                                                    [x["why"] for x in v
                                                                     if x["outcome"] == "declined"][:1])
        again = sorted({x["why"].split("}")[0] + "}" for x in taken})
        assert len(again) > 3, again
        # a record with the engine and knobs that were found makes the same plan
        once = text(of, "--tuning", "real.tune", env=env)[0]
        with open("found.tune", "w") as f:
            f.write("\n".join(sorted(r for r in info(*of, "--tuning", "real.tune", env=env)["records"]
                                     if "cudnn.1{" in r)) + "\n")
        assert text(of, "--tuning", "found.tune", env=env)[0] == once
    for arch in ("sm_80", "sm_90") if sink.LONG else ("sm_90",):
        for precision in ("bf16", "f16") if sink.LONG else ("bf16",):
            of = [os.path.join(root, "models", "resnet50-cifar10.net"), "--target", "cuda", "--arch", arch,
                  "--precision", precision]
            v = [x for x in verdicts(of, "--tuning", records("fused.tune", FUSED, of, " conv2d "), env=env)
                 if x["graph"] == "infer" and "conv2d" in x["kinds"]]
            declined = [x["why"] for x in v if x["outcome"] == "declined"]
            assert len(v) == 53 and len(declined) == 4 and all("nothing follows" in x for x in declined), declined
    of = [os.path.join(root, "models", "resnet50.net"), "--target", "cuda", "--arch", "sm_90", "--precision", "f16",
          "--batch", "32"]
    said = text(of, "--tuning", records("real.tune", "cudnn{engine=123456,round=1}", of, " conv2d f16[32,64,56,56]"),
                env=env)[1]
    assert "cuDNN: engine 123456: CUDNN_STATUS" in said, said


@test
def plans_race_with_kernels():
    """Among what a search tries are the library's plans; a racing program has them, and what won is read back."""
    of = options("plain", "bf16", "sm_80,sm_90a" if sink.LONG else "sm_80")
    search = ["tune", *of, "--machine", "sm=100", "--group", "conv2d", "--allow-rounding", "--trials",
              "40" if sink.LONG else "12"]
    nowhere = dict(os.environ, MANTOU_LIBCUDA="/nowhere")
    mantou(*search, "--prepare", "racing", env=nowhere)

    def race(name, *more):
        r = subprocess.run(["./racing", "race", "-o", name, "--threads", "1", *more], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        return [json.loads(x) for x in open(name)]

    lines = race("checked")
    tried = {x["key"]: x["kernels"] for x in lines[0]["records"]}
    plans = {k for v in tried.values() for k in v[1:] if k.startswith("cudnn{engine=")}
    assert len(tried) > 3 and all([k for k in v if k in plans] and [k for k in v[1:] if k not in plans]
                                  for v in tried.values()), tried
    assert not [x for x in lines if "out" in x] and sum(len(x["good"]) for x in lines if "good" in x) == sum(
        len(v) - 1 for v in tried.values()), lines
    with open("costs", "w") as f:
        f.write("noise 0.02\n" + "".join("cost %d %s\n" % (5 if k in plans else 50, k)
                                          for k in sorted({k for v in tried.values() for k in v})))
    race("timed", "--costs", "costs", "--rungs", "2,8")
    mantou(*search, "--results", "timed", "-o", "raced.tune", env=nowhere)
    found = [x.split(" ;")[0].split(" : ") for x in open("raced.tune")]
    assert {k for k, _ in found} == set(tried) and all(v.startswith("cudnn.1{engine=") for _, v in found), found
    v = verdicts(options("plain", "bf16", found[0][0].split()[1]), "--machine", "sm=100", "--tuning", "raced.tune")
    taken = [x for x in v if x["outcome"] != "declined" and "conv2d" in x["kinds"]]
    assert len(taken) >= len(tried), v
    search[1:1 + len(of)] = options("plain", "bf16")
    unpriced = dict(nowhere, MANTOU_LIBNVRTC="/nowhere")  # the list alone, no machine code for times
    left = mantou(*search, "--disable", "cudnn", "--dry-run", env=unpriced).stdout
    assert "cudnn{" not in left and "mma{" in left, left


if __name__ == "__main__":
    sys.exit(sink.main(tests, "cudnn"))
