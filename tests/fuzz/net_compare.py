"""net_compare.py: what programs of one model computed, compared: bit for bit, or with the interpreter's in double
within bounds. Standard library and numpy.

How far rounding may take a number depends on the model, so the model says it: the interpreter runs again with
parameters and data shifted by a known share (twice, each element by chance), and how far the number then moves, over
that share, is its condition. Bound: unit roundoff times 32 conditions and 64 + sqrt(K) of the tensor's largest element,
where K is the most elements that a value of the model has (a sum of K numbers in f32); in 16 bits 6 conditions and 8 of
the largest. A number may be the sum of larger ones, so that the largest counts as 0.2 at least of means and as 0.05 of
tensors."""
import os
import numpy as np
from net_run import Refused, log_lines, tensors, write_tensors

UNIT = {"f32": 2.0 ** -24, "mixed": 2.0 ** -8, "bf16": 2.0 ** -8, "f16": 2.0 ** -11}
SHIFTS = 2         # how often the interpreter runs with everything shifted


class Ill(Exception):
    """The model's numbers are not finite: nothing to compare."""


class Difference(Exception):
    """check: near, bits, batch, status or crash; quantity: log, checkpoint, eval, output, program."""
    def __init__(self, check, quantity, text, commands=()):
        super().__init__(text)
        self.check, self.quantity, self.text, self.commands = check, quantity, text, list(commands)


def gather(lab, program, model, save, weights=None, train=(), data=".", evaluate=True, env=None):
    """{quantity: {name: array}} of a program: it trains, and evaluates and infers with the checkpoint WEIGHTS,
    its own if none."""
    got = {"log": {}, "checkpoint": {}, "eval": {}, "output": {}}
    lab.train(program, save, *train, data=data, env=env)
    for line in log_lines(lab.path(save + ".log")):
        where = "step %d" % line["step"] if "step" in line else "epoch %d" % line["epoch"]
        for key, value in line.items():
            for k, v in (value if isinstance(value, dict) else {"": value}).items():
                if key not in ("step", "epoch"):
                    got["log"]["%s of %s" % ((key + " " + k).strip(), where)] = np.float64(np.nan if v is None else v)
    state, meta = tensors(lab.path(save + ".st"))
    got["checkpoint"] = {k: v for k, v in state.items() if not k.startswith("loss_scale")}
    got["meta"] = {k: meta.get(k) for k in ("step", "seed", "total_steps", "batch")}
    if evaluate:
        got.update(forward(lab, program, model, weights or save + ".st", save, data, env=env))
    return got


def forward(lab, program, model, weights, save, data=".", threads=2, env=None):
    r = lab.eval(program, weights, "--threads", threads, data=data, env=env)
    numbers = {"examples": r["examples"], "loss": r["loss"], **r["metrics"]}
    return {"eval": {k: np.float64(np.nan if v is None else v) for k, v in numbers.items()},
            "output": lab.infer(program, weights, model, save, "--threads", threads, data=data, env=env)}


class Oracle:
    """What the interpreter computes, and the condition of each number."""
    def __init__(self, lab, model, data_seed):
        self.lab, self.model, self.data_seed = lab, model, data_seed
        self.refused, self.shifted, self.used = None, {}, {}
        self.long = max([v.size(model.batch) for s in model.statements() for v in s.outs + s.ins] + [1]) ** 0.5
        lab.build("ref", ["--target", "ref"])
        while True:                              # an error of the last batch alone, or of several batches?
            try:
                self.truth = gather(lab, "ref", model, "ref")
                break
            except Refused as e:
                if "not finite" in str(e):
                    raise Ill(str(e))
                whole = model.batch * max(1, model.test_examples // model.batch)
                fewer = model.batch if whole == model.test_examples else whole
                if fewer == model.test_examples:
                    raise
                self.refused, model.test_examples = str(e), fewer
                model.write(lab.folder, data_seed)
        if not all(np.all(np.isfinite(v)) for part in ("log", "checkpoint") for v in self.truth[part].values()):
            raise Ill("not finite")
        lab.train("ref", "start", "--steps", "0", "--no-eval")

    def condition(self, share):
        """{quantity: {name: largest change over share}}."""
        if share in self.shifted:
            return self.shifted[share]
        lab, worst = self.lab, {}
        for k in range(SHIFTS):
            rng = np.random.RandomState(k + 1)
            folder = "shifted%d" % k
            os.makedirs(lab.path(folder), exist_ok=True)
            self.model.write_data(lab.path(folder), self.data_seed, share)
            for name in ("start", "ref"):
                state, _ = tensors(lab.path(name + ".st"))
                write_tensors(lab.path(folder, name + ".st"),
                              {n: (a * (1 + share * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
                               if a.dtype.kind == "f" else a for n, a in state.items()})
            got = gather(lab, "ref", self.model, os.path.join(folder, "got"), os.path.join(folder, "ref.st"),
                         ["--weights", os.path.join(folder, "start.st"), "--allow-nan"], folder)
            for part in ("log", "checkpoint", "eval", "output"):
                for name, a in got[part].items():
                    b = self.truth[part].get(name)
                    away = (np.abs(np.asarray(a, "f8") - np.asarray(b, "f8"))
                            if b is not None and np.shape(a) == np.shape(b) else np.array(np.inf))
                    away = float(np.max(away, initial=0)) if np.all(np.isfinite(away)) else np.inf
                    worst[part, name] = max(worst.get((part, name), 0), away / share)
        self.shifted[share] = worst
        return worst


def near(oracle, got, precision, setting, check="near", parts=("log", "checkpoint", "eval", "output"), only=None):
    """Compares all that is in GOT with the truth; returns how many numbers it compared. Raises Difference for
    the first that is out of its bound."""
    unit = max(UNIT[precision], oracle.model.eps)
    narrow = unit > 2.0 ** -12               # then sums in f32 add nothing
    worst = oracle.condition(unit if narrow else 64 * unit)
    conditions, largest = (6, 8) if narrow else (32, 64 + oracle.long)
    count = 0
    scales = [float(v) for k, v in sorted(got["log"].items()) if k.startswith("scale of step")] if "log" in got else []
    # a step that overflowed changed nothing: the interpreter's did
    if any(b < a for a, b in zip(scales, scales[1:])):
        parts = [p for p in parts if p not in ("log", "checkpoint")]
    for part in parts:
        truth = oracle.truth[part]
        names = [n for n in truth if only is None or (part, n) in only]
        missing = [n for n in names if n not in got[part]]
        if missing:
            raise Difference(check, part, "%s: %s is missing" % (setting, missing[0]))
        for name in names:
            a, b = np.asarray(got[part][name]), np.asarray(truth[name])
            if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
                raise Difference(check, part, "%s: %s is %s%s, the interpreter's %s%s"
                                 % (setting, name, a.dtype, a.shape, b.dtype, b.shape))
            count += a.size
            if a.dtype.kind != "f":
                bad = a != b
                bound = 0
            else:
                x, y = a.astype("f8"), b.astype("f8")
                finite = np.abs(y[np.isfinite(y)])
                bound = unit * (conditions * worst[part, name]
                                + largest * max(float(np.max(finite, initial=0)),
                                                0.2 if part in ("log", "eval") else 0.05))
                with np.errstate(invalid="ignore"):
                    oracle.used[precision] = max(oracle.used.get(precision, 0),
                                                 float(np.nanmax(np.abs(x - y) / bound, initial=0)))
                    bad = ~((np.abs(x - y) <= bound) | (x == y) | (np.isnan(x) & np.isnan(y)))
            if np.any(bad):
                at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
                p, q = (np.atleast_1d(v)[at] for v in (a, b))
                raise Difference(check, part, "%s: %s%s: %.9g, the interpreter's %.9g, bound %.3g (%d of %d elements)" %
                                 (setting, name, list(at) if a.shape else "", p, q, bound, int(np.sum(bad)), a.size))
    return count


def same(one, two, setting, first):
    """Checkpoints' bytes and the lines of the logs."""
    if one[1] != two[1]:
        pair = next(((a, b) for a, b in zip(one[1], two[1]) if a != b), (len(one[1]), len(two[1])))
        raise Difference("bits", "log", "%s: %s, but %s: %s" % (setting, pair[0], first, pair[1]))
    if one[0] != two[0]:
        raise Difference("bits", "checkpoint", "%s: the checkpoint differs from that of %s" % (setting, first))
    return len(one[0]) // 4 + len(one[1])


def same_forward(one, two, setting):
    """Evaluation and outputs by another number of threads."""
    for part in ("eval", "output"):
        for name, a in one[part].items():
            if np.asarray(a).tobytes() != np.asarray(two[part][name]).tobytes():
                raise Difference("bits", part, "%s: %s by another number of threads: %s, but by two %s"
                                 % (setting, name, str(a)[:100], str(two[part][name])[:100]))
    return sum(np.size(a) for part in ("eval", "output") for a in one[part].values())
