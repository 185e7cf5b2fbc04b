"""tables.py MANTOU TABLES: `mantou scale` on published tables: what was given to the fit predicts what was not.
Prints a line for each row with -v; a line FAIL for what fails, and the counts."""
import json
import statistics
import subprocess
import sys
import tempfile

mantou, tables, verbose = sys.argv[1], sys.argv[2], "-v" in sys.argv
clusters, errors, inside = {}, {}, []
with tempfile.TemporaryDirectory() as folder:
    for line in open(tables):
        word, *rest = line.split(" ", 2)
        if word == "cluster":
            clusters[rest[0]] = rest[1].strip().replace(";", "\n")
        if word != "row":
            continue
        head, numbers = line[4:].split(":")
        source, cluster, batch, name = head.split()
        given, held = [], []
        for number in numbers.split(","):
            kind, cards, rate = number.split()
            (given if kind == "c" else held).append((int(cards), float(rate)))
        path = folder + "/cluster"
        with open(path, "w") as f:
            f.write("%s\nrate %s batch %s\n" % (clusters[cluster], given[0][1], batch))
            f.writelines("measured %d %s\n" % row for row in given[1:])
        out = subprocess.run([mantou, "scale", "models/resnet50.net", "--arch", "x86-64-v3", "--cluster", path,
                              "--json",
                              "--processes", ",".join(str(cards) for cards, _ in held)], capture_output=True, text=True)
        if out.returncode:
            sys.exit("FAIL scale, %s %s: %s" % (source, name, out.stderr))
        for (cards, rate), p in zip(held, json.loads(out.stdout)["predicted"]):
            x = p["examples_per_s"]
            off, width = x["median"] / rate - 1, (x["most"] - x["least"]) / x["median"]
            errors.setdefault(source, []).append(abs(off))
            if source == "paddle":
                inside.append((x["least"] <= rate <= x["most"], width))
            if verbose:
                print("%-8s %-20s %3d cards: %9.1f of %9.1f, %+.1f %%, %.0f to %.0f, %.1f %% wide" %
                      (source, name, cards, x["median"], rate, 100 * off, x["least"], x["most"], 100 * width))
checks = [
    ("dlperf: median at most 3 %", statistics.median(errors["dlperf"]) <= 0.03),
    ("dlperf: none over 8 %", max(errors["dlperf"]) <= 0.08),
    ("inside a node: at most 4 %", max(errors["inside"]) <= 0.04),
    ("paddle: in the interval in 5 of 6", sum(good for good, _ in inside) >= 5 and len(inside) == 6),
    ("paddle: intervals at most 25 % wide", max(width for _, width in inside) <= 0.25),
]
bad = [name for name, good in checks if not good]
for name in bad:
    print("FAIL scale, " + name)
print("%d passed, %d failed, 0 skipped" % (len(checks) - len(bad), len(bad)))
