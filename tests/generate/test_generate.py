"""The command generate beside NumPy: python3 test_generate.py MANTOU

The model is a table: row t of its logits is table[token t] + place[t], so that whatever follows a prompt can be
computed here. A beam that is wide enough sees every continuation, and its answer is the best of all of them. """
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

PLACES, VOCAB = 6, 5
NET = """# A table of what follows what.
model table(ids: i32[N, 6], next: i32[N, 6]) {
    logits = embedding(ids, 5, 5) as after
    place = param([6, 5]) as place
    logits = logits + place
    loss cross_entropy(logits, next)
    output logits
}
generate { token = ids  logits = logits  start = 2 %s }
data { reader = %s }
train { batch = 3 }
"""
NPY = 'npy(train = ["a.npy", "b.npy"], test = ["a.npy", "b.npy"])'
TOKENS = 'tokens(train = "a.txt", test = "a.txt", length = 6)'
passed, failed = 0, 0


def result(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("FAIL " + what)


def save_weights(path, arrays):
    head, at = {}, 0
    for name, a in arrays.items():
        head[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))


class Table:
    def __init__(self, mantou, folder, name, end, reader=NPY, options=(), vocab=VOCAB):
        self.dir, self.end = folder, end
        net = (NET % ("" if end is None else "end = %d" % end, reader)).replace("ids, 5, 5",
                                                                                "ids, %d, %d" % (vocab, vocab)).replace(
                                                                                    "[6, 5]", "[6, %d]" % vocab)
        (folder / (name + ".net")).write_text(net)
        self.exe = folder / name
        built = subprocess.run([mantou, "build", folder / (name + ".net"), "-o", self.exe, *options],
                               capture_output=True, text=True)
        if built.returncode:
            sys.exit("FAIL build %s: %s" % (name, built.stderr))
        rng = np.random.default_rng(3)
        self.after = rng.normal(size=(vocab, vocab)).astype(np.float32)
        self.place = rng.normal(size=(PLACES, vocab)).astype(np.float32)
        save_weights(folder / (name + ".w"), {"after.weight": self.after, "place": self.place})
        self.weights = folder / (name + ".w")

    def run(self, *options):
        return subprocess.run([self.exe, "generate", "--weights", self.weights, *map(str, options)],
                              capture_output=True, cwd=self.dir, timeout=60)

    def ids(self, *options):
        done = self.run(*options, "--output", "ids=ids.npy", "--output", "score=score.npy")
        if done.returncode:
            result(False, "%s: %s" % (options, done.stderr.decode()))
            return np.zeros((1, 1), np.int32), np.zeros(1)
        return np.load(self.dir / "ids.npy"), np.load(self.dir / "score.npy")

    def logp(self, token, place):
        z = (self.after[token] + self.place[place]).astype(np.float64)
        return z - np.log(np.sum(np.exp(z - z.max()))) - z.max()

    def greedy(self, prompt, length):
        """Windows begin anew with half of the tokens where place 6 is reached."""
        seq, score, at = list(prompt), 0.0, len(prompt) - 1
        while len(seq) < len(prompt) + length:
            if at == PLACES:
                at = PLACES // 2 - 1
            p = self.logp(seq[-1], at)
            seq.append(int(np.argmax(p)))
            score += p[seq[-1]]
            at += 1
            if seq[-1] == self.end:
                break
        out = seq[len(prompt):]
        return out + [self.end] * (length - len(out)), score

    def best(self, prompt, length, penalty):
        """Of all continuations, by penalised score."""
        found = []
        for n in range(1, length + 1):
            for tail in itertools.product(range(len(self.after)), repeat=n):
                ends = tail[-1] == self.end
                if self.end in tail[:-1] or (n < length and not ends):
                    continue
                seq = list(prompt) + list(tail)
                score = sum(self.logp(seq[i - 1], i - 1)[seq[i]] for i in range(len(prompt), len(seq)))
                found.append((score / ((5 + n) / 6) ** penalty, list(tail) + [self.end] * (length - n)))
        return max(found)

    def beam(self, prompt, length, width, penalty):
        """The first 2 width continuations of the live hypotheses, step by step: of equals the earlier hypothesis, the
        lower token."""
        live, over = [(0.0, list(prompt))], []
        for n in range(1, length + 1):
            all = [(score + p, k, v) for k, (score, seq) in enumerate(live)
                   for v, p in enumerate(self.logp(seq[-1], len(seq) - 1))]
            was, live = live, []
            for rank, (score, k, v) in enumerate(sorted(all, key=lambda c: (-c[0], c[1], c[2]))[:2 * width]):
                tail = was[k][1] + [v]
                if v == self.end and rank < width:
                    over.append((score / ((5 + n) / 6) ** penalty, tail))
                elif v != self.end and len(live) < width:
                    live.append((score, tail))
            if len(over) >= width or not live:
                break
        if len(over) < width:
            over += [(score / ((5 + length) / 6) ** penalty, seq) for score, seq in live]
        score, seq = max(over, key=lambda c: c[0])
        return seq[len(prompt):] + [self.end] * (length + len(prompt) - len(seq)), score


def close(a, b):
    return np.allclose(a, b, rtol=0, atol=1e-4)


def greedy(mantou, folder):
    for name, options in (("plain", []), ("ref", ["--target", "ref"])):
        for end in (None, 1):
            t = Table(mantou, folder, name + str(end), end, options=options)
            prompts = np.array([[0, 1], [3, 2], [4, 4], [1, 0]], np.int32)[:, ::1]
            np.save(folder / "p.npy", prompts)
            for length in (4, 13):                # within the places, and in three windows
                ids, score = t.ids("--input", "ids=p.npy", "--length", length)
                want = [t.greedy(p, length) for p in prompts]
                result(ids.tolist() == [w[0] for w in want] and close(score, [w[1] for w in want]),
                       "%s end %s length %d: %s, %s" % (name, end, length, ids.tolist(), want))
            ids, score = t.ids()
            result(ids.shape == (1, PLACES) and ids[0].tolist() == t.greedy([2], PLACES)[0], "%s end %s from the start"
                   % (name, end))


def beams(mantou, folder):
    t = Table(mantou, folder, "beam", 1)
    np.save(folder / "p.npy", np.array([[0], [3], [2], [4]], np.int32))
    for penalty in (0, 1.5):
        ids, score = t.ids("--input", "ids=p.npy", "--length", 3, "--beam", 200, "--length-penalty", penalty)
        want = [t.best([p], 3, penalty) for p in (0, 3, 2, 4)]
        result(ids.tolist() == [w[1] for w in want] and close(score, [w[0] for w in want]), "beam, penalty %g: %s, %s"
               % (penalty, ids.tolist(), want))
    for vocab in (16, 37):                        # whole vectors of a vocabulary, and what is left of one; equal logits
        t = Table(mantou, folder, "beam%d" % vocab, 1, options=["--batch", "12"], vocab=vocab)
        t.after[:, 3::2], t.place[:, 3::2] = t.after[:, 2:-1:2], t.place[:, 2:-1:2]
        t.after[2], t.place[0] = -80, -80
        t.after[2, 7], t.place[3, 9] = 1000, 90   # of others nothing is left
        save_weights(t.weights, {"after.weight": t.after, "place": t.place})
        prompts = np.arange(10, dtype=np.int32)[:, None]
        np.save(folder / "q.npy", prompts)
        for width, penalty in ((3, 0.6), (5, 0)):
            ids, score = t.ids("--input", "ids=q.npy", "--length", 5, "--beam", width, "--length-penalty", penalty)
            want = [t.beam(p, 5, width, penalty) for p in prompts.tolist()]
            result(ids.tolist() == [w[0] for w in want] and np.allclose(score, [w[1] for w in want], rtol=1e-6),
                   "beam %d of %d tokens: %s %s, expected %s" % (width, vocab, ids.tolist(), score, want))
    t = Table(mantou, folder, "beam", 1)
    narrow, _ = t.ids("--input", "ids=p.npy", "--length", 3, "--beam", 1)
    plain, _ = t.ids("--input", "ids=p.npy", "--length", 3)
    result(narrow.tolist() == plain.tolist(), "a beam of one is greedy")


def draws(mantou, folder):
    t = Table(mantou, folder, "draw", None)
    ids, _ = t.ids("--samples", 3000, "--length", 1, "--temperature", 0.7, "--seed", 4)
    z = (t.after[2] + t.place[0]).astype(np.float64) / 0.7
    p = np.exp(z) / np.exp(z).sum()
    share = np.bincount(ids[:, 0], minlength=VOCAB) / 3000
    result(np.abs(share - p).max() < 4 * 0.5 / 3000 ** 0.5, "temperature: shares %s, expected %s" % (share, p))
    again, _ = t.ids("--samples", 3000, "--length", 1, "--temperature", 0.7, "--seed", 4, "--threads", 1)
    other, _ = t.ids("--samples", 3000, "--length", 1, "--temperature", 0.7, "--seed", 5)
    result((again == ids).all() and (other != ids).any(), "the seed, and nothing else, says what is drawn")
    for option, value, kept in (("--top-k", 2, 2), ("--top-p", p[np.argsort(-p)][:3].sum() - 1e-6, 3),
                                ("--top-p", 1e-9, 1)):
        ids, _ = t.ids("--samples", 500, "--length", 1, "--temperature", 0.7, option, value)
        result(set(ids[:, 0]) == set(np.argsort(-p)[:kept]), "%s %g: %s, expected %s" % (option, value, set(ids[:, 0]),
                                                                                         np.argsort(-p)[:kept]))


def text(mantou, folder):
    t = Table(mantou, folder, "text", None, TOKENS, vocab=128)
    done = t.run("--prompt", "ab", "--length", 5)
    want = t.greedy([97, 98], 5)[0]
    result(done.returncode == 0 and done.stdout == bytes(want) + b"\n",
           "text: %s, expected %s" % (done.stdout, bytes(want)))
    done, want_start = t.run("--length", 5), t.greedy([2], 5)[0]
    result(done.stdout == bytes(want_start) + b"\n",
           "text without a prompt: %s, expected %s" % (done.stdout, bytes(want_start)))
    for options in (["--quiet"], ["--output", "ids=text.npy"]):
        done = t.run("--length", 5, *options)
        result(done.returncode == 0 and not done.stdout, "no text with %s: %s" % (options, done.stdout))
    told = json.loads(t.run("--prompt", "ab", "--samples", 2, "--length", 4, "--json").stdout)
    result(told["sequences"] == 2 and told["tokens"] == 8 and told["graph"] == "step" and told["ids"] == [want[:4]] * 2,
           "json: %s" % told)


def benches(mantou, folder):
    t = Table(mantou, folder, "bench", 1)
    for options, length, beam in (([], 6, 1), (["--length", 4, "--samples", 5], 4, 1),
                                  (["--length", 3, "--beam", 2], 3, 2)):
        done = subprocess.run([t.exe, "bench", "--mode", "generate", "--repeat", "2", "--json", *map(str, options)],
                              capture_output=True, text=True)
        told = json.loads(done.stdout) if done.returncode == 0 else {}
        result(told.get("mode") == "generate" and told["length"] == length and told["beam"] == beam and told["graph"]
               == "step" and told["sequences"] == (5 if "--samples" in options else 1)
               and 0 < told["tokens_per_s"]["min"] <= told["tokens_per_s"]["median"] <= told["tokens_per_s"]["max"],
               "bench of generate: %s %s" % (told, done.stderr))
        result(abs(told["ms_per_token"]["median"] * told["tokens_per_s"]["median"] / 1000 / told["sequences"] - 1)
               < 1e-6, "bench of generate: time and speed: %s" % told)
    for words, options in (("goes with --mode generate", ["--length", "3"]),
                           ("goes with --mode generate", ["--mode", "infer", "--beam", "2"]),
                           ("--profile is of", ["--mode", "generate", "--profile"])):
        done = subprocess.run([t.exe, "bench", *options], capture_output=True, text=True)
        result(done.returncode == 2 and words in done.stderr, "bench %s: %s" % (options, done.stderr))


def errors(mantou, folder):
    t = Table(mantou, folder, "error", 1)
    np.save(folder / "long.npy", np.zeros((2, 7), np.int32))
    np.save(folder / "flat.npy", np.zeros(7, np.int32))
    np.save(folder / "far.npy", np.full((1, 2), 9, np.int32))
    for words, options in (("a prompt of 7 tokens, the model has 6 places", ["--input", "ids=long.npy"]),
                           ("prompts are [n, P]", ["--input", "ids=flat.npy"]),
                           ("9", ["--input", "ids=far.npy"]),
                           ("the model has no input id", ["--input", "id=long.npy"]),
                           ("no output logits: ids and score", ["--output", "logits=a.npy"]),
                           ("--prompt is text", ["--prompt", "a"])):
        done = t.run(*options)
        result(done.returncode == 1 and words in done.stderr.decode(),
               "%s: exit %d, %s" % (options, done.returncode, done.stderr.decode()))
    for words, options in (("exclude each other", ["--beam", 2, "--temperature", 1]),
                           ("goes with --temperature", ["--top-k", 2]),
                           ("goes with --temperature", ["--top-p", 0.5]), ("goes with --beam", ["--length-penalty", 1]),
                           ("above 0, 1 at most", ["--top-p", 2]), ("a number from 0 to 1000",
                                                                    ["--temperature", "hot"])):
        done = t.run(*options)
        result(done.returncode == 2 and words in done.stderr.decode(),
               "%s: exit %d, %s" % (options, done.returncode, done.stderr.decode()))
    net = folder / "none.net"
    net.write_text(t.exe.with_suffix(".net").read_text().replace("generate {", "# {"))
    subprocess.run([mantou, "build", net, "-o", folder / "none"], check=True)
    done = subprocess.run([folder / "none", "generate", "--weights", t.weights], capture_output=True)
    result(done.returncode == 1 and b"no section generate" in done.stderr, "without the section: %s" % done.stderr)


ATTENTION = """
    q = reshape(x, [N, 6, 2, 4]) |> transpose([0, 2, 1, 3])
    k = x |> dense(8) |> reshape([N, 6, 2, 4]) |> transpose([0, 2, 1, 3])
    x = x + (attention(q, k, q%s, causal = true) |> transpose([0, 2, 1, 3]) |> reshape([N, 6, 8]))"""
ENCODER = """
    memory = embedding(more, 9, 8) as memory |> gru(8, reverse = true)
    x = x + attention(x, memory, memory%s)"""
# what stands between x [N, 6, 8] and the logits; its other input; the graph that writes
BODIES = {
    "transformer": ("    x = x + param([6, 8], init = normal(1.0)) as place" + 2 * (ATTENTION % "")
                    + "\n    x = layer_norm(x)", None, "step"),
    "masked": (ATTENTION % ", mask = range(6, dtype = i32) > -1", None, "step"),
    "biased": (ATTENTION % ", mask = expand(reshape(param([6], init = normal(1.0)) as bias, [6, 1]), [6, 6])", None,
               "step"),
    "lstm": ("    x = x |> lstm(8) |> dropout(0.1) |> lstm(8)", None, "step"),
    "gru": ("    x = x |> gru(8)", None, "step"),
    "sums": ("    x = tanh(cumsum(x, 1)) + x", None, "step"),
    "translator": (ENCODER % "" + "\n    x = x |> lstm(8)" + ATTENTION % "", "more: i32[N, 5]", "step"),
    "softmax": ("    memory = embedding(more, 9, 8) as memory\n    x = x + matmul(softmax(matmul(x, transpose(memory, "
                "[0, 2, 1]))), memory)", "more: i32[N, 5]", "step"),
    "merged": ("    x = reshape(x, [N * 6, 8]) |> dense(8) |> reshape([N, 6, 8])", None, "whole"),
    "window": ("    y = concat([full([N, 1, 8], 0), slice(x, 1, 0, 5)], 1)\n    x = x + y", None, "whole"),
}


def steps(mantou, folder):
    """By steps and by whole windows: the same tokens, greedy, drawn and by a beam, over new windows too."""
    rng = np.random.default_rng(5)
    np.save(folder / "p.npy", rng.integers(0, 9, (5, 2)).astype(np.int32))
    np.save(folder / "more.npy", rng.integers(0, 9, (5, 5)).astype(np.int32))
    for name, (body, other, graph) in BODIES.items():
        for target, options in (("cpu", []), ("ref", ["--target", "ref"]), ("mixed", ["--precision", "bf16"]),
                                ("plain", ["-O", "0"])):
            if target != "cpu" and name not in ("transformer", "translator"):
                continue
            net = folder / (name + ".net")
            net.write_text("model steps(ids: i32[N, 6], %snext: i32[N, 6]) {\n    x = embedding(ids, 9, 8, init = "
                           "normal(1.0)) as table\n%s\n"
                           "    logits = x |> dense(9, init = normal(1.0)) as head\n    loss cross_entropy(logits, "
                           "next)\n    output logits\n}\n"
                           "generate { token = ids  logits = logits  start = 2  end = 1 }\ndata { reader = npy(train = "
                           "[\"a\", %s\"b\"], test = [\"a\", %s\"b\"]) }\ntrain { batch = 4 }\n"
                           % (other + ", " if other else "", body, '"c", ' if other else "", '"c", ' if other else ""))
            exe = folder / (name + target)
            built = subprocess.run([mantou, "build", net, "-o", exe, *options], capture_output=True, text=True)
            if built.returncode:
                result(False, "%s: %s" % (name, built.stderr))
                continue
            subprocess.run([exe, "train", "--synthetic", "--steps", "4", "--save", exe.with_suffix(".w"), "--quiet",
                            "--no-eval"], check=True)
            head = exe.with_suffix(".w").read_bytes()
            names = list(json.loads(head[8:8 + struct.unpack("<Q", head[:8])[0]]))
            result(not [n for n in names if n.startswith("generate.")], "%s: what is carried is no weight: %s"
                   % (name, names))
            more = ["--input", "more=more.npy"] if other else []
            long = 11 if target == "cpu" and (graph == "step" and name not in ("lstm", "gru", "sums",
                                                                               "translator")) else 5
            for how in (["--length", long], ["--length", 5, "--temperature", 1.3, "--seed", 4],
                        ["--length", 4, "--beam", 3, "--length-penalty", 0.6]):
                ids, scores = [], []
                for way in ([], ["--whole"], ["--threads", 1]):
                    done = subprocess.run([exe, "generate", "--weights", exe.with_suffix(".w"), "--input", "ids=p.npy",
                                           *more, *map(str, how + way), "--json",
                                           "--output", "score=score.npy"], capture_output=True, cwd=folder, text=True)
                    told = json.loads(done.stdout) if done.returncode == 0 else {"ids": done.stderr, "graph": ""}
                    ids.append(told["ids"])
                    scores.append(np.load(folder / "score.npy") if done.returncode == 0 else np.zeros(1))
                    result(told["graph"] == ("whole" if way == ["--whole"] else graph), "%s %s %s %s: graph %s %s"
                           % (name, target, how, way, told["graph"], done.stderr))
                    result(graph == "step" or way == ["--whole"] or "each token costs a whole window: " in done.stderr,
                           "%s: the note: %s" % (name, done.stderr))
                result(ids[0] == ids[1] == ids[2] and np.allclose(scores[0], scores[1], atol=3e-2 if target == "mixed"
                                                                  else 1e-4), "%s %s %s: %s" % (name, target, how, ids))


def leaves(mantou, folder):
    """Many sequences in one batch, which end at places of their own: their rows leave it, the others' encoder moves
    with them. The same tokens as by whole windows, as alone, and where weights are packed in each call."""
    rng = np.random.default_rng(6)
    net = folder / "leaves.net"
    net.write_text("""model leaves(ids: i32[N, 24], more: i32[N, 5], next: i32[N, 24]) {
    memory = embedding(more, 9, 8, init = normal(1.0)) as memory |> gru(8, reverse = true)
    x = embedding(ids, 9, 8, init = normal(1.0)) as table
    x = x + attention(x, memory, memory) |> lstm(8)
    logits = x |> dense(9, init = normal(2.0)) as head
    loss cross_entropy(logits, next)
    output logits
}
generate { token = ids  logits = logits  start = 2  end = 2 }
data { reader = npy(train = ["a", "c", "b"], test = ["a", "c", "b"]) }
train {
    batch = 4
    seed  = 10
}
""")
    np.save(folder / "more.npy", rng.integers(0, 9, (12, 5)).astype(np.int32))
    for target in ("cpu", "ref"):
        got = {}
        for batch, options in ((48, []), (4, []), (50, ["--disable", "prepack"])):
            exe = folder / ("leaves%d" % batch)
            subprocess.run([mantou, "build", net, "-o", exe, "--batch", str(batch), "--target", target,
                            *(options if target == "cpu" else [])], check=True)
            if batch == 48:
                subprocess.run([exe, "train", "--synthetic", "--steps", "0", "--save", folder / "leaves.w", "--quiet",
                                "--no-eval"], check=True)
            for beam in (1, 4):
                for way in ([], ["--whole"]) if batch == 48 else ([],):
                    done = subprocess.run([exe, "generate", "--weights", folder / "leaves.w", "--input",
                                           "more=more.npy", "--beam", str(beam), "--length", "24", *way, "--json",
                                           "--output", "score=score.npy"], capture_output=True, cwd=folder, text=True)
                    told = json.loads(done.stdout) if done.returncode == 0 else {"ids": done.stderr}
                    score = np.load(folder / "score.npy") if done.returncode == 0 else np.zeros(12)
                    want = got.setdefault(beam, (told["ids"], score))
                    result(told["ids"] == want[0] and close(score, want[1]), "%s, batch %d, beam %d %s: %s, expected "
                           "%s" % (target, batch, beam, way, told["ids"], want[0]))
        ends = sorted(row.index(2) if 2 in row else 24 for row in got[1][0])
        result(ends[0] < ends[6] <= 12 and ends[-1] > 15, "%s: sequences end early and late: %s" % (target, ends))


def recurrent(mantou, folder):
    """A state is carried beyond the places by steps; windows cannot begin anew."""
    net = folder / "gru.net"
    net.write_text(NET.replace("embedding(ids, 5, 5) as after", "embedding(ids, 5, 5) |> gru(5)") % ("", NPY))
    subprocess.run([mantou, "build", net, "-o", folder / "gru"], check=True)
    subprocess.run([folder / "gru", "train", "--synthetic", "--steps", "0", "--save", folder / "gru.w", "--quiet",
                    "--no-eval"], check=True)
    done = subprocess.run([folder / "gru", "generate", "--weights", folder / "gru.w", "--length", "7", "--whole"],
                          capture_output=True)
    result(done.returncode == 1 and b"cannot begin a new" in done.stderr, "a recurrent model beyond T: %s"
           % done.stderr)
    done = subprocess.run([folder / "gru", "generate", "--weights", folder / "gru.w", "--length", "20", "--json"],
                          capture_output=True)
    told = json.loads(done.stdout) if done.returncode == 0 else {"ids": [[]]}
    result(len(told["ids"][0]) == 20, "by steps it goes on: %s" % done.stderr)
    done = subprocess.run([folder / "gru", "generate", "--weights", folder / "gru.w", "--length", "6", "--json"],
                          capture_output=True)
    result(done.returncode == 0 and len(json.loads(done.stdout)["ids"][0]) == 6, "and to T: %s" % done.stderr)


def main():
    mantou = sys.argv[1]
    for test in (greedy, beams, draws, text, benches, errors, steps, leaves, recurrent):
        with tempfile.TemporaryDirectory() as folder:
            test(mantou, pathlib.Path(folder))
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
