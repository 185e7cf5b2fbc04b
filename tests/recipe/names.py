"""names.py: --names: weights whose file calls them otherwise, by a table; what does not fit is said by line."""
import numpy as np

from recipe import build, load, run, save, test

NET = """model m(x: f32[N, 4], y: f32[N]) {
    h = x
    for i in range(2) { h = h |> dense(6) |> batch_norm |> tanh }
    loss mse(h |> dense(1) as head |> squeeze(1), y)
}
data { reader = npy(train = ["x.npy", "y.npy"], test = ["tx.npy", "ty.npy"]) }
train { batch = 8  SETTINGS }
"""
TABLE = """# theirs
-   *.num_batches_tracked
dense*.weight  net.*.fc.weight
dense*.bias    net.*.fc.bias      # one row for all
batch_norm*.weight  net.*.bn.weight
batch_norm*.bias  net.*.bn.bias
batch_norm*.running_mean  net.*.bn.running_mean
batch_norm*.running_var  net.*.bn.running_var
head.weight both.weight[1:2]
head.bias both.bias[1:2]
"""


def theirs(ours):
    out = {}
    for k, v in ours.items():
        layer, part = k.rsplit(".", 1)
        if layer == "head":
            out["both." + part] = np.concatenate([v + 1, v, v + 2])
        else:
            out["net.%s.%s.%s" % (layer[-1], "fc" if "dense" in layer else "bn", part)] = v
    out["net.0.bn.num_batches_tracked"] = np.zeros(1, "f4")
    return out


def table(text):
    with open("table.names", "w") as f:
        f.write(text)


@test
def names_of_another_program():
    m = build("optimizer = sgd(0.1)", net=NET)
    run(m, "train", "--steps", 4, "--save", "own.safetensors")
    own = {k: v for k, v in load("own.safetensors")[0].items() if v.dtype == np.float32}
    assert len(own) == 14, own.keys()
    save("theirs.safetensors", theirs(own))
    table(TABLE)
    r = run(m, "train", "--weights", "theirs.safetensors", "--names", "table.names", "--steps", 0, "--save",
            "b.safetensors")
    assert "left over" not in r.stderr, r.stderr
    got = load("b.safetensors")[0]
    for k, v in own.items():
        assert got[k].tobytes() == v.tobytes(), k
    a = run(m, "eval", "--data", ".", "--weights", "theirs.safetensors", "--names", "table.names", "--json").stdout
    assert a == run(m, "eval", "--data", ".", "--weights", "own.safetensors", "--json").stdout


@test
def names_that_do_not_fit():
    m = build("optimizer = sgd(0.1)", net=NET)
    start = ["train", "--weights", "theirs.safetensors", "--names", "table.names", "--steps", 0, "--no-save"]
    for old, new, text in (
            ("head.bias", "haed.bias", "table.names:10: the model has no parameter haed.bias; did you mean head.bias?"),
            ("both.bias", "both.bais", "table.names:10: the weights have no both.bais; did you mean both.bias?"),
            ("head.bias both", "dense0.bias both", "table.names:10: dense0.bias has a row already, in line 4"),
            ("[1:2]\nhead.bias", "[1:4]\nhead.bias", "table.names:9: both.weight has 3 rows, fewer than 4"),
            ("[1:2]\nhead.bias", "[0:2]\nhead.bias",
             "head.weight (both.weight of the file) is f32[2, 6], the model has f32[1, 6]"),
            ("[1:2]\nhead.bias", "[2]\nhead.bias", "table.names:9: rows are written as [0:768]"),
            ("net.*.fc.weight", "net.fc.weight", "table.names:3: both names need as many *"),
            ("head.bias both.bias[1:2]", "head.bias", "table.names:10: a row is two names"),
            ("head.bias both.bias[1:2]\n", "", "parameter head.bias is missing")):
        assert old in TABLE, old
        table(TABLE.replace(old, new))
        r = run(m, *start, status=1)
        assert text in r.stderr, (text, r.stderr)
    table(TABLE.replace("- ", "# "))
    assert "net.0.bn.num_batches_tracked: left over" in run(m, *start).stderr
    table(TABLE.replace("both.bias", "none.bias"))
    assert "head.bias is not in the file: it keeps its initial value" in run(m, *start, "--partial").stderr
    run(m, "train", "--names", "table.names", status=2)
