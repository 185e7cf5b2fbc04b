"""net_plan.py: what is tried with a model, and the trying: settings of builds and runs, and which of their numbers must
be near or the same.

An entry is a dict: args of `mantou build`, precision, and checks: "near" (training, evaluation and inference
as the interpreter's), "bits" (threads, sinks, stop and resume: the same bytes), "batch" (evaluation in batches of
another size, of what must not depend on it)."""
import json, random
from net_compare import Difference, Oracle, forward, gather, near, same, same_forward
from net_model import Follow
from net_run import Crash, Refused

PASSES = ("fold", "factor", "cse", "dce", "sparse", "layout", "recompute", "fuse", "reorder", "winograd", "strassen",
          "lowered", "prepack", "attention", "lstm", "gru", "fold,cse", "fuse,reorder", "layout,prepack")
FLAGS = {"x86-64-v3": ("avx2", "fma", "f16c"), "x86-64-v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
         "sapphirerapids": ("amx_bf16", "avx512_fp16")}


def architectures():
    """Architectures that this CPU runs."""
    try:
        with open("/proc/cpuinfo") as f:
            flags = set(next(line for line in f if line.startswith("flags")).split())
    except (OSError, StopIteration):
        flags = set()
    return [a for a, need in FLAGS.items() if flags.issuperset(need)] or ["native"]


ARCHS = architectures()


def entries(model, cuda=None, variants=2):
    """The plan of a model: the default build, some others, another batch; target cuda for every tenth."""
    rng = random.Random(model.seed * 31 + 7)
    plan = [{"args": [], "precision": "f32", "checks": ["near", "bits"]}]
    for _ in range(variants):
        kind = rng.choice(("level", "pass", "pass", "limit", "arch", "precision", "precision", "memory", "tuning",
                           "tuning", "several"))
        args, precision = [], "f32"
        if kind in ("level", "several"):
            args += ["-O" + rng.choice("001")]
        if kind in ("pass", "several"):
            args += ["--disable", rng.choice(PASSES)]
        if kind == "limit":
            args += ["--pass-limit", "%s:%d" % (rng.choice(("fuse", "fold", "cse", "layout", "factor", "sparse")),
                                                rng.randint(0, 9))]
        if kind in ("arch", "several"):
            args += ["--arch", rng.choice(ARCHS)]
        if kind == "precision" or kind == "several" and rng.random() < 0.5:
            precision = rng.choice(("bf16", "f16", "mixed"))
            args += ["--precision", precision]
        if kind == "memory":
            args += ["--memory", "%.2f" % rng.choice((0.5, 0.7, 0.9))]
        if kind == "tuning" or kind == "precision" and rng.random() < 0.3:
            args += ["--tuning", str(rng.randint(0, 99))]
        plan.append({"args": args, "precision": precision, "checks": ["near"] + ["bits"] * (rng.random() < 0.5)})
    if not model.full_only:
        plan.append({"args": ["--batch", str(other_batch(model, rng))], "precision": "f32", "checks": ["batch"]})
    if cuda and model.seed % 10 == 3:
        plan.append({"args": ["--target", "cuda", "--arch", "sm_80"], "precision": "f32", "checks": ["near"]})
    return plan


def other_batch(model, rng):
    """Another size of batch; even where an axis is a part of N."""
    div = 2 if any(isinstance(d, Follow) and d.div > 1
                   for s in model.statements() for v in s.outs for d in v.dims) else 1
    return max(div, rng.choice((1, model.batch - 1, model.batch + 1, model.test_examples)) // div * div)


def retuned(record, rng):
    """A tuning file's record with other parameters; those that do not fit are said to and not used."""
    key, kernel = record.split(" : ")
    if not kernel.startswith(("brgemm.1{", "winograd.1{", "strassen.1{", "lowered.1{")):
        return record
    tile = "mr=%d,nv=%d,lanes=%d" % (rng.randint(1, 14), rng.randint(1, 4), rng.choice((8, 16)))
    pairs = ",pairs" if "pairs" in kernel else ""
    if "conv2d" in key and rng.random() < 0.3:
        return "%s : winograd.1{%s}" % (key, tile)
    if " conv2d " in key and rng.random() < 0.3:
        return "%s : lowered.1{%s}" % (key, tile)
    if "matmul" in key and rng.random() < 0.4:
        return "%s : strassen.1{%s}" % (key, tile)
    if " conv2d.dw " in key:
        return "%s : brgemm.1{%s,parts=%d,band=%d%s%s}" % (key, tile, rng.randint(1, 8), rng.randint(1, 6),
                                                         rng.choice(("", ",images=2", ",images=4")), pairs)
    return "%s : brgemm.1{%s,outer=%s,pack=%d%s%s}" % (key, tile, rng.choice(("row", "panel")), rng.random() < 0.8,
                                                     ",copy=1" if "ta=true" in key and rng.random() < 0.5 else "",
                                                     pairs)


def title(entry):
    return "mantou build" + "".join(" " + a for a in entry["args"])


class Examination:
    """One model, its oracle and its programs, in a folder."""
    def __init__(self, lab, model, data_seed=0):
        self.lab, self.model, self.data_seed = lab, model, data_seed
        self.numbers = self.refused = 0
        model.write(lab.folder, data_seed)
        self.oracle = Oracle(lab, model, data_seed)
        self.oracle_commands = list(lab.commands)

    def check(self, k, entry):
        """Raises Difference."""
        lab = self.lab
        lab.commands = []
        args, setting = list(entry["args"]), title(entry)
        env = cuda_env(lab) if "cuda" in args else None
        if "--memory" in args:
            at = args.index("--memory") + 1
            args[at] = str(int(self.memory() * float(args[at])))
        if "--tuning" in args:
            at = args.index("--tuning") + 1
            args[at] = self.tuning(args[:at - 1] + args[at + 1:], int(args[at]))
        try:
            program = lab.build("p%d" % k, args)
            if "batch" in entry["checks"]:
                self.other_batch(program, setting, "b%d" % k)
                return
            got = gather(lab, program, self.model, "p%d" % k, "ref.st", ["--threads", "2", "--allow-nan"], env=env)
            if "near" in entry["checks"]:
                self.numbers += near(self.oracle, got, entry["precision"], setting)
            if "bits" in entry["checks"]:
                self.bits(program, "p%d" % k, setting)
                again = forward(lab, program, self.model, "ref.st", "again",
                                threads=random.Random(self.model.seed).choice((1, 3)), env=env)
                self.numbers += same_forward(again, got, setting)
        except Refused as e:
            self.refuse(entry, str(e))
        except Crash as e:
            raise Difference("crash", "program", "%s: %s" % (setting, e), self.oracle_commands + lab.commands)
        except Difference as e:
            e.commands = self.oracle_commands + lab.commands
            raise

    def refuse(self, entry, why):
        """Errors that a setting may bring: no such budget, a batch that does not go. Any other is a difference, as the
        interpreter took the model."""
        self.refused += 1
        if "--memory" in entry["args"] or "--batch" in entry["args"]:
            return
        raise Difference("status", "program", "%s: the interpreter's program runs, but %s" % (title(entry), why),
                         self.oracle_commands + self.lab.commands)

    def memory(self):
        return json.loads(self.lab.run("./p0", "info", "--json"))["arena_bytes"]

    def tuning(self, args, seed):
        """A tuning file for this model, every kernel's parameters by chance; its name."""
        rng, name = random.Random(seed), "random%d.tune" % seed
        records = json.loads(self.lab.run(self.lab.mantou, "info", "model.net", "--json", "--tuning",
                                          "/dev/null", *args))["records"]
        with open(self.lab.path(name), "w") as f:
            f.writelines(sorted(retuned(r, rng) + "\n" for r in records))
        return name

    def other_batch(self, program, setting, save):
        m = self.model
        want = [("output", s.name) for s in m.outputs() if isinstance(s.ins[0].sep, int)
                and s.ins[0].dims[s.ins[0].sep] == Follow(1, 1)]
        want += [("eval", s.name) for s in m.metrics() if s.average] + [("eval", "examples")]
        if all(s.average for s in m.body if s.kind == "loss"):
            want.append(("eval", "loss"))
        got = forward(self.lab, program, m, "ref.st", save)
        self.numbers += near(self.oracle, got, "f32", setting, "batch", ("eval", "output"), set(want))

    def bits(self, program, save, setting):
        """Training again in other ways. The first ran with two threads and the model's sink."""
        lab, rng = self.lab, random.Random(self.model.seed * 13 + len(save))
        first = lab.bits(save)
        sinks = [["--threads", str(rng.choice((1, 3))), "--sink", s] for s in rng.sample(("off", "1", "3", "epoch"), 2)]
        for args in sinks:
            lab.train(program, "again", *args, "--allow-nan")
            self.numbers += same(lab.bits("again"), first, "%s; train %s" % (setting, " ".join(args)),
                                 "train --threads 2")
        steps = sum("step" in line for line in first[1])
        stop = rng.randint(1, max(1, steps - 1))
        lab.train(program, "half", "--stop", str(stop), "--allow-nan", "--sink", rng.choice(("off", "epoch")))
        lab.train(program, "half", "--resume", "half.st", "--allow-nan")
        self.numbers += same(lab.bits("half"), first, "%s; train --stop %d, train --resume" % (setting, stop), "train")


def cuda_env(lab):
    return {"MANTOU_LIBCUDA": lab.simulator, "MANTOU_SIM_THREADS": "1"}
