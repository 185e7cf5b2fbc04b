"""infer.py MANTOU: infer joins the batches of a program of 4 examples to what the interpreter's program of 16 makes of
all examples at once. Standard library only.

Every place that an axis can have which follows N, N * 2 and N / 2, every element type that an output can have, on
every target and in every precision; what cannot be joined is named, and nothing is written."""
import math, os, random, re, struct, subprocess, sys, tempfile

MANTOU, HERE = os.path.abspath(sys.argv[1]), os.path.dirname(os.path.abspath(__file__))
CODES = {"<f4": "f", "<f8": "d", "<i4": "i", "|b1": "B"}
JOINED = {"first": 0, "second": 1, "third": 2, "last": 3, "twice": 1, "flags": 1, "wide": 1, "numbers": 1,
          "best": 0, "ones": 1}
WHOLE = {"square": r"f32\[4, 4\], has several axes that follow", "total": r"f32\[\], has no axis that follows",
         "sums": r"f32\[8\], has no axis that follows"}
SAME = ("held", "five")
HALF = """model half(x: f32[N, 3, 6, 4], ids: i32[N, 2]) {
    y = x |> dense(8) as d |> mean([1, 2])
    output pairs = transpose(reshape(y, [N / 2, 16]), [1, 0])
    loss mean(y)
}
data { reader = synthetic() }
train { batch = 4 }
"""
FREED = """model freed(x: f32[N, 8]) {
    o = exp(x)
    output o
    loss mean(tanh(reshape(x, [N / 2, 16])))
}
data { reader = synthetic(examples = 11) }
train { batch = 4 }
"""
counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(name, good, text=""):
    counts["passed" if good else "failed"] += 1
    if not good:
        print("FAIL infer: %s: %s" % (name, str(text).strip()[:400]))


def write(path, descr, shape, values):
    text = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, tuple(shape))).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text
                + struct.pack("<%d%s" % (len(values), CODES[descr]), *values))


def read(path):
    """Type, shape, elements: None if the file does not hold as many as its shape says."""
    blob = open(path, "rb").read()
    n = struct.unpack("<H", blob[8:10])[0]
    head = eval(blob[10:10 + n])
    count = 1
    for extent in head["shape"]:
        count *= extent
    values = (struct.unpack("<%d%s" % (count, CODES[head["descr"]]), blob[10 + n:])
              if len(blob) - 10 - n == count * struct.calcsize(CODES[head["descr"]]) else None)
    return head["descr"], head["shape"], values


def build(out, *args, net=os.path.join(HERE, "joined.net")):
    r = subprocess.run([MANTOU, "build", net, "-o", out, *args], capture_output=True, text=True)
    assert r.returncode == 0, "build %s: %s" % (" ".join(args), r.stderr)


def infer(program, n, *outputs):
    for name in outputs:
        if os.path.exists(name + ".npy"):
            os.unlink(name + ".npy")
    return subprocess.run(["./" + program, "infer", "--weights", "w.st", "--input", "x=x%d.npy" % n,
                           "--input", "ids=ids%d.npy" % n,
                           *[a for name in outputs for a in ("--output", "%s=%s.npy" % (name, name))]],
                           capture_output=True, text=True, timeout=300)


def near(a, b, bound):
    return a[2] is not None and a[:2] == b[:2] and all(abs(x - y) <= bound * max(1, abs(y)) for x, y in zip(a[2], b[2]))


def truth():
    """By number of examples: what the interpreter makes of them in one batch."""
    all = {}
    for n in (1, 4, 7, 8):
        draw = random.Random(n)
        write("x%d.npy" % n, "<f4", [n, 3, 6, 4], [draw.uniform(-1, 1) for _ in range(72 * n)])
        write("ids%d.npy" % n, "<i4", [n, 2], [draw.randrange(-1000, 1000) for _ in range(2 * n)])
        names = (*JOINED, *WHOLE, *SAME)
        r = infer("truth", n, *names)
        assert r.returncode == 0, r.stderr
        all[n] = {name: read(name + ".npy") for name in names}
    return all


def compare(program, want, bound):
    exact = [name for name in JOINED if name in ("numbers", "ones")]
    for n in want:
        names = (*JOINED, *SAME)
        r = infer(program, n, *names)
        check("%s of %d" % (program, n), r.returncode == 0, r.stderr)
        for name in names if r.returncode == 0 else []:
            got = read(name + ".npy")
            if name in ("flags", "best") and bound > 1e-3:  # a rounding may decide otherwise
                check("%s of %d: %s" % (program, n, name), got[2] is not None and got[:2] == want[n][name][:2], got[:2])
            else:
                check("%s of %d: %s" % (program, n, name), near(got, want[n][name], 0 if name in exact else bound),
                      (got[:2], want[n][name][:2]))
        for name, words in WHOLE.items():
            r = infer(program, n, "first", name)
            if n <= 4:
                check("%s of %d: %s" % (program, n, name),
                      r.returncode == 0 and near(read(name + ".npy"), want[n][name], 8 * bound), r.stderr)
            else:
                check("%s of %d: %s" % (program, n, name),
                      r.returncode == 1 and not os.path.exists(name + ".npy") and not os.path.exists("first.npy")
                      and re.search(r"output %s, %s the batch: .* %d examples make several batches of 4; "
                                    r"give 4 examples at most, or build with --batch %d" % (name, words, n, n),
                                    r.stderr), r.stderr)


def pairs():
    """An axis that follows N / 2: an odd number of examples is refused."""
    open("half.net", "w").write(HALF)
    build("half", net="half.net")
    build("halves", "--batch", "8", net="half.net")
    write("x6.npy", "<f4", [6, 3, 6, 4], [i / 100 for i in range(432)])
    blob = struct.pack("<%df" % 40, *[i / 7 for i in range(40)])
    head = (b'{"d.weight":{"dtype":"F32","shape":[8,4],"data_offsets":[0,128]},'
            b'"d.bias":{"dtype":"F32","shape":[8],"data_offsets":[128,160]}}')
    open("half.st", "wb").write(struct.pack("<Q", len(head)) + head + blob)
    run = lambda program, n: subprocess.run(["./" + program, "infer", "--weights", "half.st",
                                             "--input", "x=x%d.npy" % n, "--output", "pairs=%s.npy" % program],
                                            capture_output=True, text=True)
    for n in (1, 7):
        r = run("half", n)
        check("pairs of %d" % n, r.returncode == 1 and not os.path.exists("half.npy")
              and re.search(r"%d examples leave a last batch of %d, but the model takes multiples of 2" % (n, n % 4),
                            r.stderr), r.stderr)
    for n in (4, 6, 8):
        r = [run(program, n) for program in ("half", "halves")]
        check("pairs of %d" % n, all(x.returncode == 0 for x in r) and near(read("half.npy"), read("halves.npy"), 1e-5),
              r)


def freed():
    """What only the loss needs, N / 2 and all examples at once, does not bind infer."""
    open("freed.net", "w").write(FREED)
    w, want = [i / 10 for i in range(24)], None
    write("f3.npy", "<f4", [3, 8], w)
    for name, args in (("freed", ()), ("freed-ref", ("--target", "ref")), ("freed-O0", ("-O0",))):
        build(name, *args, net="freed.net")
        subprocess.run(["./" + name, "train", "--synthetic", "--steps", "1", "--no-eval", "--save", "f.st", "--quiet"],
                       check=True)
        r = subprocess.run(["./" + name, "infer", "--weights", "f.st", "--input", "x=f3.npy", "--output", "o=o.npy"],
                           capture_output=True, text=True)
        check("%s of 3" % name, r.returncode == 0 and near(read("o.npy"), ("<f4", (3, 8), [math.exp(x) for x in w]),
                                                           1e-5), r.stderr)
        r = subprocess.run(["./" + name, "eval", "--synthetic", "--weights", "f.st"], capture_output=True, text=True)
        check("%s still refuses to evaluate so many" % name, r.returncode == 1
              and re.search("11 test examples leave a last batch of 3, but the model takes multiples of 2", r.stderr),
              r.stderr)


def main():
    freed()
    build("truth", "--target", "ref", "--batch", "16")
    subprocess.run(["./truth", "train", "--synthetic", "--steps", "2", "--save", "w.st", "--quiet"], check=True)
    want = truth()
    pairs()
    forms = [("cpu", 1e-4, ()), ("cpu-O0", 1e-4, ("-O0",)), ("ref", 1e-5, ("--target", "ref"))]
    forms += [("cpu-" + p, 3e-2, ("--precision", p)) for p in ("bf16", "f16", "mixed")]
    for name, bound, args in forms:
        build(name, *args)
        compare(name, want, bound)
    try:
        build("cuda", "--target", "cuda", "--arch", "sm_80")
        if subprocess.run(["./cuda", "bench", "--steps", "1", "--warmup", "0", "--repeat", "1"],
                          capture_output=True).returncode:
            raise AssertionError("no device, nor one that is simulated")
    except AssertionError as e:
        counts["skipped"] += 1
        print("skip infer on cuda: %s" % str(e).splitlines()[0])
    else:
        compare("cuda", want, 1e-4)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
    os.chdir("/")
print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
sys.exit(counts["failed"] > 0)
