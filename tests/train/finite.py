"""A loss that is not finite, in every sink mode: python3 finite.py MANTOU FOLDER [--target TARGET OPTION...]

Models of a few layers are given data or constants that overflow in a known place. The message must name it: an example
of the data and the element, a parameter from before the step, or the first layer whose tensor is not finite, with its
line. The log's last line is that of the step, the same in every mode, and no parameter was touched by it."""
import array
import itertools
import json
import math
import pathlib
import random
import re
import subprocess
import sys

MANTOU, FOLDER, TARGET = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
REF = "ref" in TARGET
NET = """const file = "x.npy"
const scale = 1.0
model finite(x: f32[N, 6, 8], y: f32[N]) {
    a = x |> flatten |> dense(24) |> relu |> reshape([N, 6, 4])
    heads = a |> reshape([N, 2, 6, 2])
    masked = attention(heads, heads, heads, causal = true) |> flatten
    b = a * scale
    c = b |> transpose([0, 2, 1]) |> softmax(axis = 2)
    d = [c |> flatten, masked] |> concat(axis = 1) |> dense(1) as head |> squeeze(1)
    loss   mse(d, y)
    metric off = mean(abs(d - y))
}
data { reader = npy(train = [file, "y.npy"], test = ["x.npy", "y.npy"])  shuffle = true }
train { batch = 8  epochs = 3  SETTINGS }
"""


def save(name, shape, values):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }" % ", ".join(map(str, shape))
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
    (FOLDER / name).write_bytes(head + array.array("f", values).tobytes())


def train(net, *args, define=(), options=()):
    """The message and the log's steps, the same in all modes."""
    (FOLDER / "finite.net").write_text(net)
    program = FOLDER / "finite"
    built = subprocess.run([MANTOU, "build", FOLDER / "finite.net", "-o", program, *TARGET, *options,
                            *itertools.chain(*(("-D", d) for d in define))],
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    seen = []
    for sink in ("epoch", "3", "off"):
        r = subprocess.run([program, "train", "--data", FOLDER, "--save", FOLDER / "s", "--log", FOLDER / "log",
                            "--quiet", "--overwrite", "--sink", sink, *args],
                           capture_output=True, text=True, timeout=300)
        assert r.returncode == 1, (r.returncode, r.stdout, r.stderr)
        steps = [o for o in map(json.loads, open(FOLDER / "log")) if "step" in o]
        seen.append((r.stderr, json.dumps(steps)))
    assert len(set(seen)) == 1, seen
    assert steps[-1]["loss"] is None and all(o["loss"] is not None for o in steps[:-1]), steps
    assert f"the loss of step {steps[-1]['step']} is " in seen[0][0], seen[0][0]
    return seen[0][0].replace(str(FOLDER) + "/", ""), len(steps)


def expect(pattern, text):
    assert re.search(pattern, text), f"no /{pattern}/ in: {text}"


n, rng = 80, random.Random(3)
x = [rng.gauss(0, 1) for _ in range(n * 48)]
save("x.npy", (n, 6, 8), x)
save("y.npy", (n,), [rng.gauss(0, 1) for _ in range(n)])
x[37 * 48 + 5 * 8 + 2] = math.nan
save("bad.npy", (n, 6, 8), x)
sgd, adam = (NET.replace("SETTINGS", f"optimizer = {o}") for o in ("sgd(0.01)", "adam(0.01)"))
for net in (sgd, adam, adam.replace("epochs = 3", "epochs = 3  accumulate = 2"),
            adam.replace("epochs = 3", "epochs = 3  shards = 2")):
    message, _ = train(net, define=['file="bad.npy"'])
    expect(r"is nan: the data hold it: input x, example 37 of the training data \(from 0\): element \[5,2\] of "
           r"f32\[6,8\] is nan", message)
message, steps = train(sgd, define=["scale=1e39"])
# The causal mask's own infinities, where attention is expanded into its operations, are none of the search's.
expanded, _ = train(sgd, define=["scale=1e39"], options=["--disable", "attention,fuse"])
expect(r"is made by mul|is made by [a-z0-9]+ \(finite.net:7:", expanded)
assert steps == 1
expect(r"is nan: the first tensor that is not finite is made by [a-z0-9]+ \(finite.net:[78]:\d+\): element \[[0-9,]*\] "
       r"of f32\[[0-9,]*\] is (nan|inf);", message)
expect(r"%s; the batch's data and the parameters are finite; nothing was saved; --allow-nan"
       % ("" if REF else "kernel train_[a-z0-9_.]+, of .*"), message)
# The rate is what makes it: the first step is good, its update is not.
message, steps = train(NET.replace("SETTINGS", "optimizer = sgd(1e39)"))
assert steps == 2
expect(r"an update before this step made it so: parameter [a-z0-9]+\.(weight|bias): element \[[0-9,]+\] of "
       r"f32\[[0-9,]+\] is -?(inf|nan); the batch's data are finite", message)
if "cuda" in TARGET:                             # shards on a device are not told apart
    message, _ = train(sgd.replace("epochs = 3", "epochs = 3  shards = 2"), define=["scale=1e39"])
    expect(r"is nan: the batch's data are finite; what made it is not looked for in these shards of a batch: a program "
           r"built with --shards 1 says it", message)
else:                                            # shards that share statistics run side by side
    joined = sgd.replace("flatten |> dense(24)",
                         "flatten |> dense(24) |> batch_norm").replace("epochs = 3", "epochs = 3  shards = 2")
    message, _ = train(joined, define=["scale=1e39"])
    expect(r"made by full \(finite.net:7" if REF
           else r"is nan: the batch's data are finite; what made it is not looked for in these shards of a batch: a "
                r"program built with --shards 1 says it", message)
    message, _ = train(joined, define=['file="bad.npy"'])
    expect(r"is nan: the data hold it: input x, example 37 of the training data \(from 0\): element \[5,2\]", message)
print("a loss that is not finite: the place is named")
