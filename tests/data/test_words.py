"""test_words.py: the reader skipgram beside the contract's words in Python."""
import json, random
from common import *
from test_images import philox, uniform

MODEL = """train { batch = 1  epochs = %d  optimizer = sgd(0) }
data { shuffle = false
       reader = skipgram(train = ["a.txt", "b.txt.gz"], test = "t.txt", words = %d, window = 2,
                         negatives = 3, sample = %s, min_count = 2) }
model m(center: i32[N], near: i32[N, 4], count: i32[N], negative: i32[N, 3]) {
    loss 0 * mean(dense(cast(near, f32), 1))
    metric c = mean(cast(center, f32))
    metric k = mean(cast(count, f32))
    metric n = mean(sum(cast(near, f32) * [1, 64, 4096, 262144], axes = [1]))
    metric q = mean(sum(cast(negative, f32) * [1, 64, 4096], axes = [1]))
    output center = center
    output near = near
    output count = count
    output negative = negative
}
""".replace("[1, 64, 4096, 262144]", "four").replace("[1, 64, 4096]", "three").replace(
    "    loss 0", "    four = concat([full([1], 1.), full([1], 64.), full([1], 4096.), full([1], 262144.)], 0)\n"
    "    three = slice(four, 0, 0, 3)\n    loss 0")


def text(n, seed):
    r = random.Random(seed)
    words = ["w%d" % i for i in range(30)]
    return [words[min(int(r.paretovariate(0.7)) - 1, 29)] if r.random() < 0.97 else "rare%d" % r.randrange(1000)
            for _ in range(n)]


def vocabulary(words, most):
    count = {}
    for w in words:
        count[w] = count.get(w, 0) + 1
    kept = sorted((w for w in count if count[w] >= 2), key=lambda w: (-count[w], w.encode()))[:most]
    return kept, [count[w] for w in kept]


class Draws:
    def __init__(self, words, most, sample, seed=0):
        self.words, self.count = vocabulary(words, most)
        self.number = {w: i for i, w in enumerate(self.words)}
        self.sample, self.seed = sample, seed
        total, powers = sum(self.count), sum(c ** 0.75 for c in self.count)
        self.f = [c / total for c in self.count]
        run, self.share = 0, []
        for c in self.count:
            run += c ** 0.75
            self.share.append(run / powers)
        self.text = [self.number[w] for w in words if w in self.number]

    def epoch(self, e):
        if not self.sample:
            return self.text
        stays = lambda f: (self.sample / f) ** 0.5 + self.sample / f
        return [x for i, x in enumerate(self.text) if uniform(self.seed, "subsample", e, i) < stays(self.f[x])]

    def example(self, text, j, e, full=False):
        j %= len(text)
        reach = 2 if full else 1 + philox(self.seed, "window", e, j) % 2
        near = [text[i] for i in range(j - reach, j + reach + 1) if 0 <= i < len(text) and i != j]
        negative = [next(w for w, s in enumerate(self.share) if s > uniform(self.seed, "negative", e, j * 3 + q))
                    for q in range(3)]
        return text[j], near + [0] * (4 - len(near)), len(near), negative


def sets():
    import gzip
    a, b, t = text(300, 1), text(200, 2), text(80, 3)
    open("a.txt", "w").write("\n ".join(a) + "\n")
    gzip.open("b.txt.gz", "wt").write("\t" + " \n".join(b))
    open("t.txt", "w").write("  " + " ".join(t))
    return a + b, t


def test_test_set():
    train, test = sets()
    m = build(MODEL % (1, 20, "1e-3"))
    open("w.safetensors", "wb").write(struct.pack("<Q", 2) + b"{}")
    run([m, "train", "--steps", 0, "--save", "w.safetensors", "--quiet"])
    names = ("center", "near", "count", "negative")
    for readers in (1, 4):
        run([m, "infer", "--weights", "w.safetensors", "--data", ".", "--readers", readers]
            + [x for n in names for x in ("--output", "%s=%s.npy" % (n, n))])
        d = Draws(train, 20, 1e-3)
        words = [d.number[w] for w in test if w in d.number]
        want = [d.example(words, j, 0, full=True) for j in range(len(words))]
        for k, n in enumerate(names):
            flat = [v for x in want for v in (x[k] if isinstance(x[k], list) else [x[k]])]
            check(read_npy(n + ".npy")[1] == flat, n, "differs")


def test_training_draws():
    train, _ = sets()
    for most, sample in ((20, "0.05"), (12, "0"), (30, "1e-2")):
        m = build(MODEL % (3, most, sample))
        d = Draws(train, most, float(sample), 5)
        for more in (["--readers", 3], ["--sink", "off"]):
            run([m, "train", "--seed", 5, "--no-eval", "--no-save", "--log", "log.jsonl", "--words", "words.txt",
                 "--quiet", *more])
            check(open("words.txt").read().split("\n")[:-1] == d.words, "vocabulary differs")
            steps = [x for x in map(json.loads, open("log.jsonl")) if "step" in x and "rate" in x]
            per = len(d.epoch(0))
            check(len(steps) == 3 * per, len(steps), "steps, wanted", 3 * per)
            for e in range(3):
                text = d.epoch(e)
                for i in range(per):
                    c, near, count, negative = d.example(text, i, e)
                    s = steps[e * per + i]
                    s = s.get("metrics", s)
                    want = (c, count, sum(v * 64 ** p for p, v in enumerate(near)),
                            sum(v * 64 ** p for p, v in enumerate(negative)))
                    check((s["c"], s["k"], s["n"], s["q"]) == want, most, sample, e, i, s, want)


def test_resume_and_errors():
    train, _ = sets()
    m = build(MODEL % (2, 20, "0.05"))
    run([m, "train", "--seed", 9, "--quiet", "--no-eval", "--save", "a.safetensors"])
    run([m, "train", "--seed", 9, "--quiet", "--no-eval", "--save", "b.safetensors", "--stop", 40])
    run([m, "train", "--quiet", "--no-eval", "--save", "b.safetensors", "--resume", "b.safetensors"])
    check(open("a.safetensors", "rb").read() == open("b.safetensors", "rb").read(), "checkpoints differ")
    open("a.txt", "wb").write(b"one two\0three")
    run([m, "train"], status=1, err="a.txt: byte 4: no text of words")
    open("a.txt", "w").write("")
    import gzip
    gzip.open("b.txt.gz", "wt").write("x y z")
    run([m, "train"], status=1, err="no word is found 2 times")
    line = "train { batch = 1 }\nmodel m(x: f32[N]) { loss mean(x) }\n"
    m = build(line)
    run([m, "train", "--synthetic", "--words", "w"], status=1,
        err="--words writes the vocabulary of the reader skipgram")


TESTS = [test_test_set, test_training_draws, test_resume_and_errors]
