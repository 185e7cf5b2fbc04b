#!/usr/bin/env python3
"""A tuning file with every kernel's parameters changed at random, ROUNDS times: tuned.py NET.net ROUNDS SEED FOLDER
[BUILD OPTIONS...] prints a line a round, `ROUND: N kernels tuned, M misfits`, and leaves FOLDER/tunedROUND, built.
Those that do not fit must be said to, not crash."""
import json
import os
import random
import re
import subprocess
import sys

mantou = os.environ["MANTOU"]
net, rounds, seed, folder, *options = sys.argv[1:]
rng = random.Random(int(seed))


def call(*args):
    done = subprocess.run([mantou, *args, net, *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit("mantou %s: status %d: %s" % (" ".join(args), done.returncode, done.stderr[:300]))
    return done


def change(record):
    key, kernel = record.split(" : ")
    if not kernel.startswith(("brgemm.1{", "winograd.1{", "strassen.1{", "lowered.1{")):
        return record
    tile = "mr=%d,nv=%d,lanes=%d" % (rng.randint(1, 14), rng.randint(1, 4), rng.choice([8, 16]))
    ahead = rng.choice(["", ",ahead=4", ",ahead=16"])
    caches = rng.choice(["", ",fetch=l1", ",fetch=l3", ",fetch=none"]) + rng.choice(["", ",stream=never",
                                                                                     ",stream=always"])
    few = rng.choice(["", ",threads=1", ",threads=2"])
    pairs = few + (",pairs" if "pairs" in kernel else "")
    if " {" in key and "conv2d" in key and rng.random() < 0.3:
        return "%s : winograd.1{%s%s}" % (key, tile, few)
    if " conv2d " in key and rng.random() < 0.3:
        return "%s : lowered.1{%s%s%s}" % (key, tile, ahead, few)
    if " conv2d.dw " in key:
        images = rng.choice(["", ",images=2", ",images=4"])
        return "%s : brgemm.1{%s,parts=%d,band=%d%s%s%s}" % (key, tile, rng.randint(1, 8), rng.randint(1, 6), images,
                                                             ahead, pairs)
    if "matmul" in key and rng.random() < 0.3:
        return "%s : strassen.1{%s%s}" % (key, tile, few)
    copy = ",copy=1" if "ta=true" in key and rng.random() < 0.5 else ""
    return "%s : brgemm.1{%s,outer=%s,pack=%d%s%s%s%s}" % (key, tile, rng.choice(["row", "panel"]), rng.random() < 0.8,
                                                           copy, ahead, caches, pairs)


records = json.loads(call("info", "--json", "--tuning", "/dev/null").stdout)["records"]
for i in range(int(rounds)):
    path = os.path.join(folder, "tuned%d.tune" % i)
    with open(path, "w") as f:
        f.writelines(sorted(change(r) + "\n" for r in records))
    info = call("info", "--tuning", path)
    used, misfits = map(int, re.search(r"^tuned +(\d+) kernels, \d+ choices, (\d+) misfits,", info.stdout,
                                       re.M).groups())
    if "is no record" in info.stderr or used + misfits == 0 or (misfits > 0) != ("do not fit" in info.stderr):
        sys.exit("round %d: %d used, %d misfits: %s" % (i, used, misfits, info.stderr[:300]))
    call("build", "--tuning", path, "-o", os.path.join(folder, "tuned%d" % i))
    print("%d: %d kernels tuned, %d misfits" % (i, used, misfits))
