"""streams.py: infer of standard input and output: many arrays in one process, as from files one by one."""
import io
import os
import re
import subprocess

import numpy as np

from recipe import MANTOU, build, run, test

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

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
    r = subprocess.run([m, "infer", "--weights", "w.safetensors", *args], input=f.getvalue(), capture_output=True,
                       timeout=60)
    assert r.returncode == status, (args, r.returncode, r.stderr)
    return r


def from_file(m, x):
    np.save("one.npy", x)
    run(m, "infer", "--weights", "w.safetensors", "--input", "x=one.npy", "--output", "p=p.npy")
    return np.load("p.npy")


def block(path, kind, has):
    """The first fenced block of that kind in a document that holds has."""
    text = open(os.path.join(ROOT, path)).read()
    return next(b for b in re.findall("```%s\n(.*?)```" % kind, text, re.S) if has in b)


@test
def the_cookbooks_server():
    """Its Python runs as it stands there, on the program that the README makes."""
    home, names = os.getcwd(), {}
    os.mkdir("readme"), os.chdir("readme")
    try:
        exec(block("README.md", "python", "np.save"), {})
        open("price.net", "w").write(block("README.md", "net", "model price"))
        run(MANTOU, "build", "price.net")
        run("./price", "train", "--epochs", "1", "--quiet")
        exec(block("models/cookbook.md", "python", "Popen"), names)
        more = [names["predict"](x) for x in (np.load("test-x.npy")[:5], np.ones((1, 8), "f4"))]
        names["server"].stdin.close()
        assert names["server"].wait() == 0
        run("./price", "infer", "--weights", "price.safetensors", "--input", "x=test-x.npy", "--output",
            "predicted=p.npy")
        assert names["answer"].shape == (3,) and (more[0] == np.load("p.npy")[:5]).all() and np.isfinite(more[1]).all()
    finally:
        os.chdir(home)


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
    got = arrays(stream(build("", net=BOTH), ("--input", "z=-", "--input", "x=-", "--output", "q=-", "--output", "p=-"),
                        *pairs).stdout)
    assert len(got) == 10
    for k, x in enumerate(given):
        assert got[2 * k + 1].tobytes() == from_file(m, x).tobytes()
        assert (got[2 * k] == got[2 * k + 1] + z[k]).all()


@test
def answers_come_before_the_next_question():
    m = build("", net=NET)
    p = subprocess.Popen([m, "infer", "--weights", "w.safetensors", "--input", "x=-", "--output", "p=-"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
    r = subprocess.run([m, "infer", "--weights", "w.safetensors", "--input", "x=one.npy", "--output", "p=-"],
                       capture_output=True)
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
            (("--input", "x=-", "--output", "p=-"), (f.getvalue()[:-3],),
             b"input x: ends within an array: 157 bytes of 160"),
            (("--input", "x=-", "--output", "p=-"), (f.getvalue()[:20],), b"ends within an array"),
            (("--input", "x=-", "--output", "p=-"), (np.ones((2, 5), "f4"),),
             b"standard input: 5 elements a row do not make input x"),
            (("--input", "x=-", "--input", "z=-", "--output", "q=-"), (x,),
             b"standard input ends before an array for input z"),
            (("--input", "x=-", "--output", "p=p.npy"), (x, x), b"--output p=- takes all")):
        r = stream(build("", net=BOTH) if "z=-" in args else m, args, *given, status=1)
        assert words in r.stderr, (args, r.stderr)


@test
def several_files_in_one_process():
    m, both = build("", net=NET), build("", net=BOTH)
    r = np.random.default_rng(2)
    given = {k: r.normal(size=(n, 4)).astype("f4") for k, n in (("a", 3), ("b", 8), ("c", 21))}
    beside = {k: r.normal(size=len(x)).astype("f4") for k, x in given.items()}
    os.makedirs("in", exist_ok=True), os.makedirs("out", exist_ok=True)
    for k in given:
        np.save("in/x-%s.npy" % k, given[k]), np.save("in/z-%s.npy" % k, beside[k])
    want = {k: from_file(m, x) for k, x in given.items()}
    infer = lambda m, *args, status=0: run(m, "infer", "--weights", "w.safetensors",
                                           *[w for a in args for w in ("--output" if a[0] in "pq" else "--input", a)],
                                           status=status)

    def there(names):
        got = {k: np.load(f).tobytes() == want[k].tobytes() for k, f in names.items()}
        for f in names.values():
            os.unlink(f)
        assert all(got.values()), got
    infer(m, "x=in/x-c.npy", "x=in/x-a.npy", "p=1.npy", "p=2.npy")
    there({"c": "1.npy", "a": "2.npy"})
    infer(m, "x=in/x-*.npy", "p=out/*.npy")
    there({k: "out/%s.npy" % k for k in given})
    infer(both, "x=in/x-*.npy", "z=in/z-*.npy", "p=p-*.npy", "q=q1.npy", "q=q2.npy", "q=q3.npy")
    for n, k in enumerate(given):
        assert (np.load("q%d.npy" % (n + 1)) == want[k] + beside[k]).all()
    there({k: "p-%s.npy" % k for k in given})
    np.save("z1.npy", np.float32([1]))
    np.save("x1.npy", given["a"][:1]), np.save("x2.npy", given["b"][:1])
    infer(both, "x=x1.npy", "z=z1.npy", "x=x2.npy", "q=q1.npy", "q=q2.npy")  # z in both rounds
    assert [float(np.load("q%d.npy" % n)[0]) for n in (1, 2)] == [float(from_file(m, given[k][:1])[0] + np.float32(1))
                                                                  for k in "ab"]
    out = subprocess.run([m, "infer", "--weights", "w.safetensors", "--input", "x=in/x-*.npy", "--output", "p=-"],
                         capture_output=True)
    assert [a.tobytes() for a in arrays(out.stdout)] == [w.tobytes() for w in want.values()], out.stderr
    os.rename("in/x-a.npy", "in/x-*.npy")    # a name of a file that is there
    infer(m, "x=in/x-*.npy", "p=1.npy")
    os.rename("in/x-*.npy", "in/x-a.npy")
    there({"a": "1.npy"})

    many = 300                               # more than a power of two, and than one page of names
    for i in range(many):
        np.save("in/m%03d.npy" % i, given["a"][i % 3:i % 3 + 1])
    infer(m, "x=in/m*.npy", "p=out/m*.npy")
    one = [from_file(m, given["a"][i:i + 1]) for i in range(3)]
    assert all(np.load("out/m%03d.npy" % i) == one[i % 3] for i in range(many))
    np.save("bad.npy", np.ones((2, 5), "f4"))
    two = ("x=x1.npy", "x=x2.npy")
    for prog, args, words in (
            (m, (*two, "p=1.npy"), r"output p has 1 file, the inputs 2: give one for each in their order, or p=- for "
                                   r"all"),
            (m, ("x=in/x-*.npy", "p=1.npy"), r"output p has 1 file, the inputs 3: give one for each, or a name with a "
                                             r"\*, or p=- for all"),
            (m, ("x=x1.npy", "p=1.npy", "p=2.npy"), r"output p has 2 files, and each input one"),
            (m, (*two, "p=1.npy", "p=./1.npy"), r"output p is to be written to ./1.npy twice"),
            (both, (*two, "z=z1.npy", "p=1.npy", "p=2.npy", "q=2.npy", "q=3.npy"),
             r"outputs p and q are both to be written to 2.npy|outputs q and p are both"),
            (both, (*two, "x=x1.npy", "z=z1.npy", "z=z1.npy", "q=-"),
             r"input x has 3 files, input z 2: give as many of both, or one for all"),
            (both, ("x=in/x-*.npy", "z=in/m*.npy", "q=-"),
             r"inputs z and x do not go together: in/m000.npy and in/x-a.npy have other words for the \*"),
            (m, ("x=no-*.npy", "p=*.npy"), r"input x: no file is called no-\*.npy"),
            (m, ("x=in/*-*.npy", "p=-"), r"--input x=in/\*-\*.npy: a name has one \* at most"),
            (m, ("x=in/x-*.npy", "p=*-*.npy"), r"--output p=\*-\*.npy: a name has one \* at most"),
            (m, (*two, "p=*.npy"), r"--output p=\*.npy: no input has a \* that says what it stands for"),
            (m, ("x=in/x-*.npy", "x=x1.npy", "p=*.npy"),
             r"no input has a \* that says what it stands for beside x1.npy"),
            (m, ("x=x1.npy", "x=-", "p=-"), r"input x: standard input may hold many arrays, and is given beside other "
                                            r"files"),
            (both, ("x=-", "z=z1.npy", "z=z1.npy", "q=-"),
             r"input x is standard input, which may hold many arrays, and input z has 2 files; give it one"),
            (m, ("x=x1.npy", "x=bad.npy", "p=1.npy", "p=2.npy"), r"bad.npy: 5 elements a row do not make input x")):
        assert re.search(words, infer(prog, *args, status=1).stderr), (args, words)
    assert os.path.exists("1.npy") and not os.path.exists("2.npy")  # what was done before the bad one stays
