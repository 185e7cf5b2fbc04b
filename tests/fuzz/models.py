"""models.py: random models of the .net language, built in random settings: the programs' numbers beside the
interpreter's, and the same bits where they are promised.

  models.py --mantou FILE [--seconds S] [--seed FIRST] [--count N] [-j JOBS] [--keep DIR] [--cuda LIBCUDA]
            [--variants V] [--no-reduce]
  models.py --mantou FILE --suite          the seeds of the suite; all groups of operators must be among them
  models.py --show SEED                    that model's text

The last line counts models, programs, numbers compared, refused models and settings, and differences; exit status 1 if
there are differences. A difference is one that two of three data sets show; one that a single data set shows is a
doubt, printed and counted, as a kink that rounding crossed looks like that."""
import argparse, concurrent.futures, copy, os, shutil, signal, sys, tempfile, threading, time
import net_gen, net_plan, net_reduce
from net_compare import Difference, Ill
from net_run import Crash, Lab, Refused

SUITE = (2605, 3966, 2644)
lock = threading.Lock()
total = dict.fromkeys(("models", "programs", "numbers", "refused", "settings", "ill", "differences",
                       "doubts", "used"), 0)


def say(text):
    with lock:
        print(text, flush=True)


def new_lab(o, folder):
    os.makedirs(folder, exist_ok=True)
    lab = Lab(o.mantou, folder, {"MANTOU_CACHE": o.cache} if o.cache else None)
    lab.simulator = o.cuda
    return lab


def examine(o, model, plan, folder, data_seed=0):
    """The first difference of each entry, and the lab's counts."""
    shutil.rmtree(folder, ignore_errors=True)
    lab, found = new_lab(o, folder), []
    try:
        e = net_plan.Examination(lab, model, data_seed)
    except Crash as x:
        return [(plan[0], Difference("crash", "program", "target ref: %s" % x, lab.commands))], lab, None
    for k, entry in enumerate(plan):
        if o.end and time.time() > o.end and k > 1:
            break
        try:
            e.check(k, entry)
        except Difference as d:
            found.append((entry, d))
    return found, lab, e


def still(o, entry, d, folder, data_seed=0):
    """Does a model differ in the same way?"""
    def fails(m, e):
        try:
            plan = [e] if e["checks"] != ["near"] or "--memory" not in e["args"] else [dict(e, args=[]), e]
            found, _, _ = examine(o, copy.deepcopy(m), plan, folder, data_seed)
        except (Refused, Ill, Difference, ValueError, OSError):
            return False
        return any(x.check == d.check and x.quantity == d.quantity for f, x in found if f is e)
    return fails


def confirmed(o, model, entry, d, folder):
    if d.check in ("crash", "status", "bits"):
        return True
    return any(still(o, entry, d, folder, seed)(model, entry) for seed in (1, 2))


def handle(o, seed, model, entry, d, folder):
    """Says what was found, makes it smaller and keeps it."""
    sure = confirmed(o, model, entry, d, folder)
    with lock:
        total["differences" if sure else "doubts"] += 1
        at = os.path.join(o.keep, "%d-%d" % (seed, sum(name.startswith("%d-" % seed) for name in os.listdir(o.keep))
                                             if os.path.isdir(o.keep) else 0))
        os.makedirs(at)
    say("%s seed %d (%s): %s" % ("DIFFERS" if sure else "doubt", seed, d.check, d.text))
    small, e, tried = model, entry, 0
    if sure and o.reduce:
        small, e, tried = net_reduce.reduce(model, entry, still(o, entry, d, folder), o.reduce)
    shutil.rmtree(at)
    found, lab, _ = examine(o, small, [e] if "--memory" not in e["args"] else [dict(e, args=[]), e], at)
    last = found[-1][1] if found else d
    with open(os.path.join(at, "again.sh"), "w") as f:
        f.write("#!/bin/sh\n# seed %d, %s\n# %s\ncd \"$(dirname \"$0\")\" || exit 1\n"
                "mantou() { ${MANTOU:-%s} \"$@\"; }\n%s\n" %
                (seed, net_plan.title(e), last.text.replace("\n", "\n# "), o.mantou,
                 "\n".join(c for c in last.commands if "shifted" not in c)))
    shown = "\n".join("  | " + line for line in small.text().splitlines())
    say("  %s, %d changes tried; %s\n  commands: %s/again.sh\n%s" % (net_plan.title(e), tried, last.text[:600], at,
                                                                     shown))


def one(o, seed):
    if o.end and time.time() > o.end:
        return
    folder = os.path.join(o.folder, str(seed))
    try:
        model = net_gen.generate(seed).trim()
        plan = net_plan.entries(model, o.cuda, o.variants)
        try:
            found, lab, e = examine(o, model, plan, folder)
        except Ill as x:
            with lock:
                total["ill"] += 1
            return say("seed %d: %s" % (seed, str(x)[:300])) if o.verbose else None
        except Refused as x:
            with lock:
                total["refused"] += 1
            return say("seed %d is refused: %s" % (seed, str(x)[:700])) if o.verbose else None
        with lock:
            total["models"] += 1
            total["programs"] += lab.programs
            total["numbers"] += e.numbers if e else 0
            total["settings"] += e.refused if e else 0
            total["used"] = max([total["used"]] + [u for u in (e.oracle.used.values() if e else ()) if u <= 1])
            o.groups.update(model.groups())
        for entry, d in found:
            handle(o, seed, model, entry, d, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description="random .net models, compared")
    p.add_argument("--mantou")
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=0)
    p.add_argument("-j", type=int, default=os.cpu_count())
    p.add_argument("--keep", default="found-models")
    p.add_argument("--cuda", help="the simulated device's libcuda.so.1: every tenth model runs on it too")
    p.add_argument("--cache", help="folder for what NVRTC makes")
    p.add_argument("--variants", type=int, default=2)
    p.add_argument("--reduce", type=float, default=net_reduce.LIMIT,
                   help="seconds to make a model smaller; 0: not at all")
    p.add_argument("--suite", action="store_true")
    p.add_argument("--show", type=int)
    p.add_argument("--verbose", action="store_true")
    o = p.parse_args()
    if o.show is not None:
        return print(net_gen.generate(o.show).trim().text(), end="")
    o.mantou, o.keep, o.groups = os.path.abspath(o.mantou), os.path.abspath(o.keep), set()
    o.cuda, o.cache = (x and os.path.abspath(x) for x in (o.cuda, o.cache))
    o.end = time.time() + o.seconds if o.seconds else 0
    seeds = SUITE if o.suite else range(o.seed, o.seed + (o.count or 10 ** 9))
    if o.suite:
        o.variants = 0
    os.makedirs(o.keep, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):     # no further model; what is counted so far is told
        signal.signal(number, lambda *_: setattr(o, "end", time.time()))
    with tempfile.TemporaryDirectory(prefix="models.") as o.folder, concurrent.futures.ThreadPoolExecutor(o.j) as pool:
        running, errors = set(), []
        for seed in seeds:
            if o.end and time.time() > o.end:
                break
            running.add(pool.submit(one, o, seed))
            while len(running) >= 2 * o.j:
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                errors += [f.exception() for f in done if f.exception()]
            if errors:
                break
        errors += [f.exception() for f in concurrent.futures.wait(running)[0] if f.exception()]
    if errors:
        raise errors[0]
    missing = sorted(set(net_gen.GROUPS) - o.groups) if o.suite else []
    if missing:
        print("the suite's seeds reach no operator of: %s" % ", ".join(missing))
    print(("%(models)d models, %(programs)d programs, %(numbers)d numbers compared, "
           "at most %(used).2f of their bounds apart; %(refused)d models and %(settings)d settings refused, " +
           "%(ill)d not finite; %(doubts)d doubts, %(differences)d differences") % total)
    return 1 if total["differences"] or missing else 0


if __name__ == "__main__":
    sys.exit(main())
