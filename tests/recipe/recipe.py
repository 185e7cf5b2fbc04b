"""recipe.py: what the tests of this folder share: a small regression, its data, programs that are built once.

A model is a text with NAME = VALUE settings of train in it; build() compiles it, run() starts a command in the
folder."""
import json, os, struct, subprocess, sys, tempfile, traceback

import numpy as np

MANTOU = os.path.abspath(sys.argv[1])
counts = {"passed": 0, "failed": 0, "skipped": 0}
tests = []
built = {}

NET = """model m(x: f32[N, 4], y: f32[N]) {
    p = x |> dense(8) |> tanh |> dense(1) as head |> squeeze(1)
    loss mse(p, y)
    metric mae = mean(abs(p - y))
    metric middle = mean(p)
    output p
}
data { reader = npy(train = ["x.npy", "y.npy"], test = ["tx.npy", "ty.npy"]) }
train { batch = 8  epochs = 12  SETTINGS }
"""


def data():
    r = np.random.default_rng(0)
    x = r.normal(size=(64, 4)).astype("f4")
    y = (x[:, 0] * x[:, 1] + r.normal(size=64)).astype("f4")
    for name, value in (("x", x[:40]), ("y", y[:40]), ("tx", x[40:]), ("ty", y[40:])):
        np.save(name + ".npy", value)


def build(settings, net=NET, args=()):
    """The program of a model with these settings; its path."""
    key = settings, net, args
    if key not in built:
        name = "m%d" % len(built)
        with open(name + ".net", "w") as f:
            f.write(net.replace("SETTINGS", settings))
        r = subprocess.run([MANTOU, "build", name + ".net", "-o", name, *args], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        built[key] = "./" + name
    return built[key]


def run(program, *args, status=0, input=None):
    r = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=120, input=input)
    assert r.returncode == status, (args, r.returncode, r.stdout[-500:], r.stderr[-500:])
    return r


def load(path):
    """Tensors and metadata of a checkpoint."""
    blob = open(path, "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8:8 + n])
    meta = head.pop("__metadata__", {})
    kinds = {"F32": "f4", "F64": "f8", "I32": "i4", "I64": "i8"}
    return {k: np.frombuffer(blob[8 + n:][v["data_offsets"][0]:v["data_offsets"][1]],
                             kinds[v["dtype"]]).reshape(v["shape"])
            for k, v in head.items()}, meta


def save(path, tensors):
    head, data = {}, b""
    for name, v in tensors.items():
        head[name] = {"dtype": {"f4": "F32", "f8": "F64"}[v.dtype.str[1:]], "shape": v.shape,
                      "data_offsets": [len(data), len(data) + v.nbytes]}
        data += v.tobytes()
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def same(a, b, what):
    """Two checkpoints hold the same tensors, bit for bit."""
    x, y = load(a)[0], load(b)[0]
    assert x.keys() == y.keys(), (what, x.keys() ^ y.keys())
    for k in x:
        assert x[k].tobytes() == y[k].tobytes(), (what, k, x[k], y[k])


def log(path):
    return [json.loads(line) for line in open(path)]


def epochs(path):
    return [o for o in log(path) if "train" in o]


def test(f):
    tests.append(f)
    return f


def main():
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        data()
        for f in tests:
            try:
                f()
                counts["passed"] += 1
            except Exception as e:
                counts["failed"] += 1
                line = traceback.extract_tb(e.__traceback__)[-1]
                print("FAIL %s: line %d, %s: %s" % (f.__name__, line.lineno, type(e).__name__, str(e)[:1500]))
        os.chdir(home)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    sys.exit(counts["failed"] > 0)
