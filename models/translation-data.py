#!/usr/bin/env python3
"""Sentences and their translations to the .npy files of gnmt-small.net, and numbers back to sentences. Needs NumPy; the
same bytes on every run.

  translation-data.py SOURCE TARGET FOLDER --test SOURCE TARGET    learns pieces, writes
                                                                   FOLDER/{train,test}-{source,count,target,label}.npy,
                                                                       vocab.txt
  translation-data.py --encode FOLDER/vocab.txt TEXT PREFIX        PREFIX-source.npy and PREFIX-count.npy of other
                                                                   sentences
  translation-data.py --decode FOLDER/vocab.txt IDS.npy            what `generate --output ids=IDS.npy` wrote, a
                                                                   sentence a line

Texts hold a sentence a line, line i of TARGET translating line i of SOURCE; a name that ends in .gz is compressed. All
is lower case. One vocabulary serves both languages (Sennrich et al. 2016, arXiv:1508.07909): padding, start, end,
unknown, each character, then pieces, each the pair of pieces that was the most frequent in the training sentences at
the time; a word's last piece ends in "_". A word is encoded by joining the pair of neighbours whose piece stands first
in the vocabulary, as often as there is one. Pairs of more than --length - 1 pieces are left out of training, elsewhere
they are cut."""
import argparse
import collections
import gzip
import os
import re
import sys

import numpy as np

SPECIAL = ["<pad>", "<start>", "<end>", "<unknown>"]
PAD, START, END, UNKNOWN = range(4)


def lines_of(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        return [re.findall(r"[^\W_]+|[^\w\s]", line.lower()) for line in f]


def characters(word):
    return list(word[:-1]) + [word[-1] + "_"]


def learn(sentences, size):
    """The vocabulary: pairs are counted once and kept up to date; of equally frequent ones the first in order of
    characters is taken."""
    counts = collections.Counter(w for s in sentences for w in s)
    words = [(characters(w), n) for w, n in sorted(counts.items())]
    pieces = SPECIAL + sorted({c for w, _ in words for c in w})
    known = set(pieces)
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (word, n) in enumerate(words):
        for p in zip(word, word[1:]):
            pairs[p] += n
            where[p].add(i)
    while len(pieces) < size and pairs:
        most = max(pairs.values())
        if most < 2:
            break
        pair = min(p for p, n in pairs.items() if n == most)
        if "".join(pair) not in known:
            known.add("".join(pair))
            pieces.append("".join(pair))
        for i in where.pop(pair):
            word, n = words[i]
            for p in zip(word, word[1:]):
                pairs[p] -= n
                if not pairs[p]:
                    del pairs[p]
            word = join(word, pair)
            words[i] = word, n
            for p in zip(word, word[1:]):
                pairs[p] += n
                where[p].add(i)
    return pieces


def join(word, pair):
    out, i = [], 0
    while i < len(word):
        if tuple(word[i:i + 2]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


class Encoder:
    def __init__(self, pieces):
        self.number, self.seen = {p: i for i, p in enumerate(pieces)}, {}

    def word(self, text):
        if text not in self.seen:
            word = characters(text)
            while True:
                ranks = [(self.number[a + b], (a, b)) for a, b in zip(word, word[1:]) if a + b in self.number]
                if not ranks:
                    break
                word = join(word, min(ranks)[1])
            self.seen[text] = [self.number.get(p, UNKNOWN) for p in word]
        return self.seen[text]

    def sentence(self, words):
        return [x for w in words for x in self.word(w)]


def rows(sentences, length, begin, end, fill):
    """One row each: the start token or none, the pieces cut to what fits, the end token or none, the filling."""
    out = np.full((len(sentences), length), fill, np.int32)
    for row, s in zip(out, sentences):
        s = begin + s[:length - 1] + end
        row[:len(s)] = s
    return out


def save_source(prefix, source, length):
    np.save(prefix + "-source.npy", rows(source, length, [], [END], PAD))
    np.save(prefix + "-count.npy", np.array([min(len(s), length - 1) + 1 for s in source], np.int32))


def save(folder, part, encoder, texts, length):
    source, target = ([encoder.sentence(s) for s in t] for t in texts)
    if len(source) != len(target):
        sys.exit("%s: %d sentences and %d translations" % (part, len(source), len(target)))
    if part == "train":
        kept = [(s, t) for s, t in zip(source, target) if max(len(s), len(t)) < length]
        if not kept:
            sys.exit("train: no sentence has less than %d pieces" % length)
        source, target = map(list, zip(*kept))
    prefix = "%s/%s" % (folder, part)
    save_source(prefix, source, length)
    np.save(prefix + "-target.npy", rows(target, length, [START], [], PAD))
    np.save(prefix + "-label.npy", rows(target, length, [], [END], -1))
    print("%s: %d sentences, %.1f and %.1f pieces each" % (part, len(source), np.mean([len(s) for s in source]),
                                                           np.mean([len(t) for t in target])))


def vocabulary(path):
    with open(path, encoding="utf-8") as f:
        return f.read().split("\n")[:-1]


def decode(pieces, row):
    row = list(row)
    row = row[:row.index(END)] if END in row else row
    text = "".join(pieces[i] for i in row if i not in (PAD, START))
    return text.replace("_", " ").strip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+", help=argparse.SUPPRESS)
    p.add_argument("--test", nargs=2, metavar=("SOURCE", "TARGET"))
    p.add_argument("--encode", action="store_true")
    p.add_argument("--decode", action="store_true")
    p.add_argument("--pieces", type=int, default=4113, metavar="N",
                   help="of the vocabulary, at most; the model's constant vocab")
    p.add_argument("--length", type=int, default=32, metavar="N",
                   help="places; the model's source_length and target_length")
    a = p.parse_args()
    if len(a.files) != (2 if a.decode else 3):
        p.error("%d files are given" % len(a.files))
    if a.decode:
        pieces = vocabulary(a.files[0])
        for row in np.load(a.files[1]):
            print(decode(pieces, row))
    elif a.encode:
        encoder = Encoder(vocabulary(a.files[0]))
        save_source(a.files[2], [encoder.sentence(s) for s in lines_of(a.files[1])], a.length)
    else:
        texts, folder = [lines_of(f) for f in a.files[:2]], a.files[2]
        pieces = learn(texts[0] + texts[1], a.pieces)
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/vocab.txt", "w", encoding="utf-8") as f:
            f.write("\n".join(pieces) + "\n")
        encoder = Encoder(pieces)
        save(folder, "train", encoder, texts, a.length)
        if a.test:
            save(folder, "test", encoder, [lines_of(f) for f in a.test], a.length)
        print("%d pieces" % len(pieces))


if __name__ == "__main__":
    main()
