#!/usr/bin/env python3
"""Data of the networks of this folder. Needs NumPy; the same bytes on every run.

  data.py regression FOLDER                 Friedman's first function: 8,000 examples to train, 2,000 to test
  data.py words TRAIN TEST FOLDER           sentences, one a line, as numbers of words; a name in .gz is compressed

CIFAR-10 needs no script: convnet.net reads its binary files."""
import collections
import gzip
import os
import re
import sys

import numpy as np

WORDS, LENGTH = 4000, 24  # words.net's constants
PAD, START, END, UNKNOWN = range(4)


def regression(folder):
    rng = np.random.default_rng(1)
    for part, n in ("train", 8000), ("test", 2000):
        x = rng.uniform(size=(n, 10))
        y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        np.save(os.path.join(folder, part + "-x.npy"), x.astype(np.float32))
        np.save(os.path.join(folder, part + "-y.npy"), (y + rng.normal(size=n)).astype(np.float32))


def sentences(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        return [re.findall(r"[^\W_]+|[^\w\s]", line.lower()) for line in f]


def words(train, test, folder):
    """ids begins with START, next is a place ahead and ends with END; both are filled up with PAD and cut at LENGTH."""
    parts = {"": sentences(train), "test-": sentences(test)}
    count = collections.Counter(w for s in parts[""] for w in s)
    vocabulary = ["<pad>", "<start>", "<end>", "<unknown>"]
    vocabulary += [w for w, n in sorted(count.items(), key=lambda e: (-e[1], e[0]))][:WORDS - len(vocabulary)]
    number = {w: i for i, w in enumerate(vocabulary)}
    for part, lines in parts.items():
        ids = np.full((len(lines), LENGTH + 1), PAD, np.int32)
        for row, s in zip(ids, lines):
            line = ([START] + [number.get(w, UNKNOWN) for w in s] + [END])[:LENGTH + 1]
            row[:len(line)] = line
        left, right = ids[:, :-1].copy(), ids[:, 1:].copy()
        left[right == PAD] = PAD
        np.save(os.path.join(folder, part + "ids.npy"), left)
        np.save(os.path.join(folder, part + "next.npy"), right)
    with open(os.path.join(folder, "words.txt"), "w", encoding="utf-8") as f:
        f.write("".join(w + "\n" for w in vocabulary))


def main(arg):
    if not (len(arg) == 2 and arg[0] == "regression" or len(arg) == 4 and arg[0] == "words"):
        sys.exit(__doc__)
    os.makedirs(arg[-1], exist_ok=True)
    regression(arg[1]) if arg[0] == "regression" else words(*arg[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
