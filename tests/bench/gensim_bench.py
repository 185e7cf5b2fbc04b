#!/usr/bin/env python3
"""Times gensim's Word2Vec as torch_bench.py times PyTorch, with the recipe of models/word2vec.net: width 100, window 5,
5 negatives, words seen 5 times.

  gensim_bench.py word2vec --data FOLDER [--batch 128] [--steps 2000] [--threads N] [--serve]        FOLDER has
      words.txt.gz

An example is a word that the subsampling leaves, on both sides. Steps are only counted, and trained together at the end
of a sample: a call starts threads, which a whole training does once an epoch."""
import sampling  # first: it takes the time of the start

import gzip
import itertools
import os

import gensim

OPTIONS = sampling.options(__doc__)
OPTIONS.add_argument("--data", required=True)


def main(a):
    with gzip.open(os.path.join(a.data, "words.txt.gz"), "rt") as f:
        text = [line.split() for line in f]
    n, threads = a.batch or 128, a.threads or os.cpu_count()
    net = gensim.models.Word2Vec(vector_size=100, window=5, negative=5, sample=1e-3, min_count=5, sg=1, workers=threads,
                                 seed=1)
    net.build_vocab(text)
    kept = sum(min(1.0, net.wv.get_vecattr(w, "sample_int") / 2 ** 32) * net.wv.get_vecattr(w, "count")
               for w in net.wv.index_to_key) / sum(map(len, text))
    lines, steps = itertools.cycle(text), [0]

    def step():
        steps[0] += 1

    def finish():
        want, part, total = steps[0] * n / kept, [], 0
        while total < want:
            part.append(next(lines))
            total += len(part[-1])
        steps[0] = 0
        if part:
            net.train(part, total_examples=len(part), epochs=1, start_alpha=0.02, end_alpha=0.02)

    sampling.run(a, n, step, {"model": a.model, "target": "gensim " + gensim.__version__, "precision": "f32",
                              "threads": threads}, finish)


if __name__ == "__main__":
    main(OPTIONS.parse_args())
