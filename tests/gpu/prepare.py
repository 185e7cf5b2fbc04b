"""prepare.py DIR [--arch sm_90a] [--kit FOLDER] [--tiny]: what tests/gpu/run.sh takes to a machine with a GPU, built on
one without. Needs the compiler and its build folder (MANTOU, BUILD), NVRTC, and the simulated driver for what is
expected of kernels.

  about.json         what is there: programs, the plan's kernels with their bytes, what was built
  small/             programs that train in seconds, packed, with the checkpoints of the CPU's program and of the
                     interpreter
  model/             programs that are measured, packed; what two steps' losses are on the CPU, in f32, stands in
                     about.json
  kernels/           the test of instructions; the test of kernels, all PTX that it needs, and substitutes for the
                     libraries that it then does without
  tune/              racing programs of some models (mantou tune --prepare), packed
  kit/               with --kit, a conformance kit (FOLDER/run.py --mantou PATH --ops): itself, and the programs of its
                     cases, packed by precision"""
import argparse, contextlib, json, lzma, os, shutil, subprocess, sys, tarfile, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
sys.path.insert(0, os.path.join(root, "tests", "sink"))
import numbers_near
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(root, "build")))
MANTOU = os.path.abspath(os.environ.get("MANTOU", os.path.join(BUILD, "mantou")))
SMALL = [("resnet", "tests/sink/resnet.net"), ("gpt", "tests/sink/gpt.net"), ("lstm", "tests/sink/lstm.net"),
         ("lenet", "models/lenet.net")]
# name, file, batch, precisions. Of those in VARIANTS (name and batch) bf16 is built once more without an instruction.
MODELS = [("resnet50-cifar10", "models/resnet50-cifar10.net", 32, "bf16 f16 f32"),
          ("resnet50-cifar10", "models/resnet50-cifar10.net", 512, "bf16"), ("resnet50", "models/resnet50.net", 256,
                                                                             "bf16 f16"),
                                                                             ("resnet50", "models/resnet50.net", 8,
                                                                              "bf16 f32"),
                                                                              ("vgg16-cifar10",
                                                                               "models/vgg16-cifar10.net", 64, "bf16"),
          ("bert-base", "models/bert-base.net", 32, "bf16"), ("lstm-512", "tests/bench/lstm-512.net", 32, "bf16"),
          ("lenet", "models/lenet.net", 64, "f32")]
VARIANTS = {("resnet50", 256): ("wgmma", "tma"), ("resnet50-cifar10", 32): ("wgmma",),
            ("bert-base", 32): ("wgmma", "tma"), ("lenet", 4): ("tma",)}
# Name, file, batch, precision, kernels to be tried at most, seconds of their race.
TUNE = [("resnet50-cifar10", "models/resnet50-cifar10.net", 32, "bf16", 96, 150),
        ("bert-base", "models/bert-base.net", 32, "bf16", 64, 150), ("lstm-512", "tests/bench/lstm-512.net", 32, "bf16",
                                                                     32, 60)]
TINY_TUNE = [("lenet", "models/lenet.net", 4, "bf16", 1, 60)]
LIMIT_MB = 45     # of the folder: 64 MiB travel, with the sources
TINY = [("lenet", "models/lenet.net", 4, "bf16"), ("mlp", "models/mlp.net", 8, "f32")]
# What the test of kernels does in one go: a name, files, a word that names must contain, an architecture.
KERNELS = [("wgmma", ["tests/cuda/wgmma.ir"], "", "sm_90a"),
           ("tiles", ["tests/cuda/tiles.ir", "tests/cuda/composites.ir", "tests/cuda/windows.ir", "tests/cuda/rows.ir",
                      "tests/cuda/images.ir"], "", "sm_80"),
           *[(f, ["tests/operators/%s.txt" % f], "", "sm_80")
             for f in ("elementwise", "reductions", "moves", "lookups", "contractions", "windows", "composites")],
           ("groups", ["tests/cpu/groups.ir"], "", "sm_80"), ("pairs", ["tests/cpu/pairs.ir"], "", "sm_80")]
ELEMENTWISE = ["tests/operators/elementwise.txt"]
TINY_KERNELS = [("tanh", ELEMENTWISE, "tanh", "sm_80"), ("exp", ELEMENTWISE, "exp", "sm_80"),
                ("wgmma", ["tests/cuda/wgmma.ir"], "conv_residual_relu", "sm_90a")]


def sh(*args, **more):
    r = subprocess.run(args, capture_output=True, text=True, **more)
    if r.returncode:
        sys.exit("prepare: %s: %s" % (" ".join(args), (r.stderr or r.stdout)[-600:]))
    return r.stdout


def packed(path):
    with open(path, "rb") as f, lzma.open(path + ".xz", "wb", preset=6) as g:
        shutil.copyfileobj(f, g)
    os.unlink(path)


def small(folder, arch, tiny, about):
    for net, path in SMALL[2:3] if tiny else SMALL:
        for precision in ("f32", "f16") if tiny else ("f32", "bf16", "f16"):
            name = "%s.%s" % (net, precision)
            batch = ["--batch", "8"] if net == "lenet" else []
            # the simulated driver takes no machine code
            sh(MANTOU, "build", os.path.join(root, path), "--target", "cuda", "--arch", arch, "--precision", precision,
               *batch, *(["--ptx-only"] if tiny else []), "-o", os.path.join(folder, name))
            for to, target, p, steps in ((name + ".cpu", "cpu", precision, "5"), (net + ".truth", "ref", "f32", "5"),
                                         (net + ".start", "cpu", "f32", "0")):
                to = os.path.join(folder, to)
                if not os.path.exists(to + ".st"):
                    sh(MANTOU, "build", os.path.join(root, path), "--target", target, "--precision", p, *batch, "-o",
                       "program")
                    sh(os.path.abspath("program"), "train", "--synthetic", "--steps", steps, "--no-eval", "--quiet",
                       "--save", to + ".st", "--log", to + ".log")
            packed(os.path.join(folder, name))
            about["small"].append({"name": name, "net": net, "precision": precision, "program": "small/%s.xz" % name})


MOST_BYTES = 12e9   # a step of a larger model is not done on the CPU


def losses(path, batch):
    """Of two steps of the CPU's program in f32; None if that takes too much memory."""
    args = [os.path.join(root, path), "--target", "cpu", "--precision", "f32", "--batch", str(batch)]
    if json.loads(sh(MANTOU, "info", *args, "--json"))["arena_bytes"] > MOST_BYTES:
        return None
    sh(MANTOU, "build", *args, "-o", "program")
    with contextlib.suppress(FileNotFoundError):
        os.unlink("losses.log")
    sh(os.path.abspath("program"), "train", "--synthetic", "--steps", "2", "--no-eval", "--no-save", "--quiet", "--log",
       "losses.log")
    return numbers_near.losses("losses.log")


def models(folder, arch, tiny, about):
    for net, path, batch, precisions in TINY if tiny else MODELS:
        expected = losses(path, batch)
        builds = [(p, "") for p in precisions.split()] + [("bf16", v) for v in VARIANTS.get((net, batch), ())
                                                          if "bf16" in precisions.split()]
        for precision, without in builds:
            name, begin = "%s.%d.%s%s" % (net, batch, precision, without and ".no-" + without), time.time()
            args = [os.path.join(root, path), "--target", "cuda", "--arch", arch, "--precision", precision, "--batch",
                    str(batch), *(["--disable", without] if without else [])]
            r = subprocess.run([MANTOU, "build", *args, "-o", os.path.join(folder, name)], capture_output=True,
                               text=True)
            row = {"name": name, "model": net, "batch": batch, "precision": precision, "without": without,
                   "losses": expected}
            if r.returncode:
                row["missing"] = r.stderr.strip()[-300:]
                print("prepare: %s is not built: %s" % (name, row["missing"]), file=sys.stderr)
            else:
                plan = json.loads(sh(MANTOU, "info", *args, "--json"))
                row.update(program="model/%s.xz" % name, build_s=round(time.time() - begin, 1),
                           program_bytes=os.path.getsize(os.path.join(folder, name)), arena_bytes=plan["arena_bytes"],
                           bytes_per_step=plan["bytes_per_step"], gflop_per_step=plan["gflop_per_step"],
                           forecast_ms=plan["forecast_ms_per_step"],
                           kernels=[{k: x[k] for k in ("name", "kernel", "flops", "bytes", "forecast_us", "why")
                                     if k in x} for x in plan["kernels"]])
                packed(os.path.join(folder, name))
            about["models"].append(row)


def tune(folder, arch, tiny, about):
    for net, path, batch, precision, trials, seconds in TINY_TUNE if tiny else TUNE:
        name = "%s.%d.%s.race" % (net, batch, precision)
        words = ["--target", "cuda", "--arch", arch.split(",")[0], "--precision", precision, "--batch", str(batch)]
        r = subprocess.run([MANTOU, "tune", os.path.join(root, path), *words, "--trials", str(trials), "--prepare",
                            os.path.join(folder, name)], capture_output=True, text=True)
        row = {"name": name, "seconds": seconds, "then": "mantou tune %s %s --results" % (path, " ".join(words))}
        if r.returncode:
            row["missing"] = r.stderr.strip()[-300:]
            print("prepare: %s is not built: %s" % (name, row["missing"]), file=sys.stderr)
        else:
            row["program"] = "tune/%s.xz" % name
            packed(os.path.join(folder, name))
        about["tune"].append(row)


def stand_in(folder):
    """A library that the test of kernels opens, and calls nothing of where all PTX is there: NVRTC, which knows its
    version."""
    with open("version.c", "w") as f:
        f.write('#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **at) { for (int i = 1, a, b; i < n; '
                'i++) { void *l = dlopen(at[i], RTLD_NOW); int (*v)(int *, int *);\n'
                'if (l && (*(void **)&v = dlsym(l, "nvrtcVersion")) && !v(&a, &b)) { printf("%d %d\\n", a, b); return '
                '0; } } return 1; }\n')
    sh("cc", "-w", "-o", "version", "version.c", "-ldl")
    given = os.environ.get("MANTOU_LIBNVRTC")
    where = [given] if given else [d + n for d in ("", "/usr/local/cuda/lib64/")
                                   for n in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")]
    major, minor = sh(os.path.abspath("version"), *where).split()
    with open("nvrtc.c", "w") as f:
        f.write("int nvrtcVersion(int *a, int *b) { *a = %s; *b = %s; return 0; }\n" % (major, minor))
        f.write("".join("int nvrtc%s() { return 11; }\n" % n
                        for n in "CreateProgram CompileProgram DestroyProgram GetPTXSize GetPTX GetCUBINSize GetCUBIN "
                                 "GetProgramLogSize GetProgramLog".split()))
    sh("cc", "-shared", "-fPIC", "-w", "-o", os.path.join(folder, "libnvrtc.so"), "nvrtc.c")


def kernels(folder, tiny, about):
    program = os.path.join(folder, "cuda")
    shutil.copy(os.path.join(BUILD, "tests", "cuda", "cuda"), program)
    shutil.copy(os.path.join(BUILD, "tests", "cudasim", "simtest"), folder)
    for f in (program, os.path.join(folder, "simtest")):
        subprocess.run(["strip", f])
    stand_in(folder)
    cache = os.path.abspath("cache")
    sim = os.path.join(BUILD, "tests", "cudasim", "libcuda.so.1")
    for name, files, word, arch in TINY_KERNELS if tiny else KERNELS:
        r = subprocess.run([program, *(os.path.join(root, f) for f in files), *([word] if word else [])],
                           capture_output=True, text=True, cwd=root,
                           env=dict(os.environ, MANTOU_CACHE=cache, MANTOU_LIBCUDA=sim, MANTOU_SIM_CHECK="0",
                                    CUDA_TEST_ARCH=arch))
        last = (r.stdout.strip().splitlines() or [""])[-1]
        print("prepare: kernels %s: %s" % (name, last), file=sys.stderr)
        if r.returncode == 77:
            sys.exit("prepare: " + last)
        about["kernels"].append({"name": name, "files": files, "word": word, "arch": arch, "expected": last})
    with tarfile.open(os.path.join(folder, "cache.tar.xz"), "w:xz", preset=6) as t:
        t.add(cache, "cache")


def kit(folder, arch, tiny, source, about):
    """The kit runs here as it will there, with a compiler that keeps each program and leaves one that fails at once:
    its cases are those that come to a comparison."""
    for name in ("run.py", "ops.json", "ops.safetensors"):
        shutil.copy(os.path.join(source, name), folder)
    for precision in ("f32",) if tiny else ("f32", "bf16", "f16"):
        os.makedirs("kit/programs")
        shutil.copy(os.path.join(here, "kit_mantou.sh"), "kit/mantou")
        os.chmod("kit/mantou", 0o755)
        row = {"precision": precision, "args": ["--ops", "--bounds", precision, "--build-args",
                                                "--target cuda --arch %s --precision %s" % (arch, precision),
                                                *(["--filter", "^(relu|gelu)"] if tiny else [])]}
        r = subprocess.run([sys.executable, os.path.join(folder, "run.py"), "--mantou", "kit/mantou", "-j",
                            str(os.cpu_count()), *row["args"]], capture_output=True, text=True,
                            env=dict(os.environ, KIT_COMPILER=MANTOU))
        programs = os.listdir("kit/programs")
        row.update(cases=sum(l.startswith("FAIL") for l in r.stdout.splitlines()),
                   programs=sum("." not in f for f in programs))
        if not row["programs"]:
            sys.exit("prepare: kit: " + (r.stdout + r.stderr)[-600:])
        print("prepare: kit %s: %d cases, %d programs, %d that could not be built" % (precision, row["cases"],
                                                                                      row["programs"],
                                                                                      len(programs) - row["programs"]),
                                                                                      file=sys.stderr)
        # as one: programs differ by their kernels alone
        with tarfile.open(os.path.join(folder, precision + ".tar.xz"), "w:xz", preset=6 if tiny
                          else 9 | lzma.PRESET_EXTREME) as t:
            t.add("kit")
        shutil.rmtree("kit")
        about["kit"].append(row)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--only", default="small,models,tune,kernels", help="of these and, with --kit, kit")
    p.add_argument("--kit", metavar="FOLDER", help="a conformance kit")
    a = p.parse_args()
    a.dir = os.path.abspath(a.dir)
    wanted, source = a.only.split(","), os.path.abspath(a.kit) if a.kit else None
    if source:
        wanted.append("kit")
        if not os.path.isfile(os.path.join(source, "run.py")):
            p.error("%s holds no run.py" % a.kit)
    elif "kit" in wanted:
        p.error("--only kit needs --kit FOLDER")
    for f in ("small", "model", "tune", "kernels", *(["kit"] if source else [])):
        os.makedirs(os.path.join(a.dir, f), exist_ok=True)
    about = {"id": os.urandom(4).hex(), "arch": a.arch, "tiny": a.tiny,
             "commit": subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True,
                                      text=True).stdout.strip(), "small": [], "models": [], "tune": [], "kernels": [],
                                      "kit": []}
    with tempfile.TemporaryDirectory(prefix="prepare.") as work:
        os.chdir(work)
        for part, make in (("small", lambda: small(os.path.join(a.dir, "small"), a.arch, a.tiny, about)),
                           ("models", lambda: models(os.path.join(a.dir, "model"), a.arch, a.tiny, about)),
                           ("tune", lambda: tune(os.path.join(a.dir, "tune"), a.arch, a.tiny, about)),
                           ("kernels", lambda: kernels(os.path.join(a.dir, "kernels"), a.tiny, about)),
                           ("kit", lambda: kit(os.path.join(a.dir, "kit"), a.arch, a.tiny, source, about))):
            if part in wanted:
                begin = time.time()
                make()
                print("prepare: %s: %.0f s" % (part, time.time() - begin), file=sys.stderr)
        os.chdir(a.dir)
    with open(os.path.join(a.dir, "about.json"), "w") as f:
        json.dump(about, f, indent=1)
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(a.dir) for f in files)
    print("prepare: %s holds %.1f MB" % (a.dir, size / 1e6), file=sys.stderr)
    if size > LIMIT_MB * 1e6:
        sys.exit("prepare: that is more than %d MB: prepare parts of it in folders of their own (--only)" % LIMIT_MB)


if __name__ == "__main__":
    main()
