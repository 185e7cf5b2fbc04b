"""What the rivals' programs share: their options, and how a step is timed. A program makes its model, hands over a
function that runs one step, and is timed in one go (as `PROGRAM bench --json` does, with the same keys) or, with
--serve, a sample for each line on stdin, a number of steps, until it ends: so measure.py can start it once and take
samples in turn with others."""
import argparse
import json
import resource
import statistics
import sys
import time

# the program has just begun: what it imports after this is part of the time to its first step
START = time.perf_counter()


def options(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--mode", choices=["train", "infer", "generate", "reader"], default="train")
    p.add_argument("--batch", type=int, default=0, help="default: the .net file's")
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--threads", type=int, default=0, help="default: as the library chooses")
    p.add_argument("--serve", action="store_true", help="a sample for each line on stdin, a number of steps")
    return p


def seconds(step, n, finish):
    begin = time.perf_counter()
    for _ in range(n):
        step()
    finish()
    return (time.perf_counter() - begin) / n


def rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(a, examples, step, about, finish=lambda: None):
    """a: options; examples of a step; about: model, target, precision, threads, for whoever reads the line; finish:
    waits for what step left under way."""
    step()
    finish()
    about = dict(about, mode=a.mode, batch=examples, first_step_s=time.perf_counter() - START)
    for _ in range(a.warmup):
        step()
    finish()
    if a.serve:
        print(json.dumps(about), flush=True)
        for line in sys.stdin:
            print(json.dumps({"examples_per_s": examples / seconds(step, int(line), finish), "peak_rss_bytes": rss()}),
                  flush=True)
        return
    times = [seconds(step, a.steps, finish) for _ in range(a.repeat)]
    print(json.dumps(dict(about, steps=a.steps, repeats=a.repeat, peak_rss_bytes=rss(),
                          examples_per_s={"median": examples / statistics.median(times), "min": examples / max(times),
                                          "max": examples / min(times)},
                          ms_per_step={"median": 1e3 * statistics.median(times), "min": 1e3 * min(times),
                                       "max": 1e3 * max(times)})))
