#!/usr/bin/env python3
"""How fast the reader csv is, in MB of text a second, beside numpy.loadtxt where there is NumPy.

  csv_bench.py [--rows 1000000] [--mantou PROGRAM] [--keep FOLDER]

The table has eleven columns of normal numbers with six digits behind the point. `reader`: shuffled batches of 1,024
rows, by one thread and by two. `epoch`: a program from its start to its end, every row checked, then one epoch of a
single dense layer. Needs nothing but Python for these."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

COLUMNS = 11
MODEL = """model table(x: f32[N, 10], y: f32[N, 1]) { loss mse(x |> dense(1), y) }
data { reader = csv(train = "table.csv", test = "table.csv") }
train { batch = 1024 }
"""


def table(path, rows):
    """Written once; of a thousand different lines, in an order of their own."""
    rng = random.Random(1)
    lines = [",".join("%.6f" % rng.gauss(0, 1) for _ in range(COLUMNS)) + "\n" for _ in range(1000)]
    with open(path, "w") as f:
        f.write(",".join("c%d" % i for i in range(COLUMNS)) + "\n")
        for _ in range(rows // 1000):
            rng.shuffle(lines)
            f.writelines(lines)
    return os.path.getsize(path) / 1e6


def show(what, mb, seconds):
    print("%-28s %8.1f MB/s  %6.2f s" % (what, mb / seconds, seconds), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--mantou", default=os.environ.get("MANTOU", "build/mantou"))
    parser.add_argument("--keep")
    o = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    at = o.keep or folder.name
    mb = table(os.path.join(at, "table.csv"), o.rows)
    with open(os.path.join(at, "table.net"), "w") as f:
        f.write(MODEL)
    program = os.path.join(at, "table")
    subprocess.run([o.mantou, "build", program + ".net", "-o", program], check=True)
    print("%d rows, %.1f MB" % (o.rows, mb))
    for threads in 1, 2:
        text = subprocess.run([program, "bench", "--reader", "--data", at, "--readers", str(threads), "--threads",
                               str(threads), "--json"], check=True, capture_output=True, text=True).stdout
        rows = json.loads(text)["examples_per_s"]["median"]
        show("reader, %d thread%s" % (threads, "s"[:threads - 1]), mb, o.rows / rows)
    for threads in 1, 2:
        start = time.perf_counter()
        subprocess.run([program, "train", "--data", at, "--no-eval", "--no-save", "--quiet", "--threads", str(threads),
                        "--readers", str(threads)], check=True)
        show("epoch, %d thread%s" % (threads, "s"[:threads - 1]), mb, time.perf_counter() - start)
    try:
        import numpy
    except ImportError:
        sys.exit(0)
    start = time.perf_counter()
    numpy.loadtxt(os.path.join(at, "table.csv"), delimiter=",", skiprows=1, dtype=numpy.float32)
    show("numpy.loadtxt " + numpy.__version__, mb, time.perf_counter() - start)


if __name__ == "__main__":
    main()
