"""streams.py: infer of standard input and output: many arrays in one process, as from files one by one."""
import io
import subprocess

import numpy as np

from recipe import build, run, test

NET = """model m(x: f32[N, 4], z: f32[N], y: f32[N]) {
    p = x |> dense(8) |> batch_norm |> tanh |> dense(1) as head |> squeeze(1)
    loss mse(p, y)
    output p
}
data { reader = synthetic(examples = 64) }
train { batch = 8  SETTINGS }
"""
BOTH = NET.replace("    output p\n", "    output p\n    output q = p + z\n")


def arrays(blob):
    f, out = io.BytesIO(blob), []
    while f.tell() < len(blob):
        out.append(np.load(f))
    return out


def stream(m, args, *given, status=0):
    f = io.BytesIO()
    for a in given:
        f.write(a) if isinstance(a, bytes) else np.save(f, a)
    r = subprocess.run([m, "infer", "--weights", "w.safetensors", *args], input=f.getvalue(), capture_output=True, timeout=60)
    assert r.returncode == status, (args, r.returncode, r.stderr)
    return r


def from_file(m, x):
    np.save("one.npy", x)
    run(m, "infer", "--weights", "w.safetensors", "--input", "x=one.npy", "--output", "p=p.npy")
    return np.load("p.npy")


@test
def many_arrays_in_one_process():
    m = build("", net=NET)
    run(m, "train", "--save", "w.safetensors", "--quiet")
    r = np.random.default_rng(1)
    given = [r.normal(size=(n, 4)).astype(t) for n, t in ((1, "f4"), (8, "f4"), (21, "f8"), (3, ">f4"), (40, "f4"))]
    got = arrays(stream(m, ("--input", "x=-", "--output", "p=-"), *given).stdout)
    assert [len(a) for a in got] == [1, 8, 21, 3, 40]
    for a, x in zip(got, given):
        assert a.tobytes() == from_file(m, x).tobytes()
    z = [r.normal(size=len(x)).astype("f4") for x in given]
    pairs = [a for pair in zip(z, given) for a in pair]
    got = arrays(stream(build("", net=BOTH), ("--input", "z=-", "--input", "x=-", "--output", "q=-", "--output", "p=-"), *pairs).stdout)
    assert len(got) == 10
    for k, x in enumerate(given):
        assert got[2 * k + 1].tobytes() == from_file(m, x).tobytes()
        assert (got[2 * k] == got[2 * k + 1] + z[k]).all()


@test
def answers_come_before_the_next_question():
    m = build("", net=NET)
    p = subprocess.Popen([m, "infer", "--weights", "w.safetensors", "--input", "x=-", "--output", "p=-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for n in 2, 5, 2:
        f = io.BytesIO()
        np.save(f, np.ones((n, 4), "f4"))
        p.stdin.write(f.getvalue())
        p.stdin.flush()
        head = p.stdout.read(128)
        data = p.stdout.read(4 * n)
        assert np.load(io.BytesIO(head + data)).shape == (n,)
    p.stdin.close()
    assert p.stdout.read() == b"" and p.wait(20) == 0


@test
def files_and_streams_together():
    m = build("", net=NET)
    x = np.arange(20).reshape(5, 4).astype("f4")
    np.save("z.npy", np.arange(5).astype("f4"))
    got = arrays(stream(build("", net=BOTH), ("--input", "x=-", "--input", "z=z.npy", "--output", "q=-"), x, x).stdout)
    assert len(got) == 2 and (got[0] == got[1]).all() and (got[0] == from_file(m, x) + np.arange(5, dtype="f4")).all()
    stream(m, ("--input", "x=-", "--output", "p=q.npy"), x)
    assert np.load("q.npy").tobytes() == from_file(m, x).tobytes()
    r = subprocess.run([m, "infer", "--weights", "w.safetensors", "--input", "x=one.npy", "--output", "p=-"], capture_output=True)
    assert np.load(io.BytesIO(r.stdout)).tobytes() == from_file(m, x).tobytes()


@test
def streams_that_break():
    m = build("", net=NET)
    x = np.ones((2, 4), "f4")
    f = io.BytesIO()
    np.save(f, x)
    for args, given, words in (
            (("--input", "x=-", "--output", "p=-"), (), b"standard input is empty"),
            (("--input", "x=-", "--output", "p=-"), (x, b"garbage that is none"), b"input x: is no .npy array"),
            (("--input", "x=-", "--output", "p=-"), (f.getvalue()[:-3],), b"input x: ends within an array: 157 bytes of 160"),
            (("--input", "x=-", "--output", "p=-"), (f.getvalue()[:20],), b"ends within an array"),
            (("--input", "x=-", "--output", "p=-"), (np.ones((2, 5), "f4"),), b"standard input: 5 elements a row do not make input x"),
            (("--input", "x=-", "--input", "z=-", "--output", "q=-"), (x,), b"standard input ends before an array for input z"),
            (("--input", "x=-", "--output", "p=p.npy"), (x, x), b"--output p=- takes all")):
        r = stream(build("", net=BOTH) if "z=-" in args else m, args, *given, status=1)
        assert words in r.stderr, (args, r.stderr)
