"""What is busy, the reader alone, and the table of models: python3 test_review.py MANTOU"""
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NET = """const hidden = 16
model %s(x: f32[N, 8], label: i32[N]) {
    y = x |> dense(hidden) |> relu |> dense(3)
    loss cross_entropy(y, label)
    output y
}
data { reader = %s }
train { batch = 4 }
"""
DIGITS = """model digits(image: u8[N, 28, 28], label: i32[N]) {
    y = image |> cast(f32) |> flatten |> dense(10)
    loss cross_entropy(y, label)
    output y
}
data { reader = idx(train = ["train-images-idx3-ubyte*", "train-labels-idx1-ubyte*"],
                    test = ["t10k-images-idx3-ubyte*", "t10k-labels-idx1-ubyte*"]) }
train { batch = 4 }
"""
passed, failed = 0, 0
root = pathlib.Path(__file__).resolve().parents[2]


def result(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("FAIL " + what)


def run(*args, cwd=None):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=cwd, timeout=300)


def share(x):
    return isinstance(x, (int, float)) and 0 <= x <= 1


def check_usage(u, what, interval, least):
    result(u.get("interval_s") == interval and u.get("samples", 0) >= least and share(u.get("cpu")) and u["cpu"] > 0
           and share(u.get("memory"))
           and u.get("rss_bytes", 0) > 1e6 and u.get("gpu", 0) is None and u.get("gpu_memory_busy", 0) is None
           and u.get("gpu_memory_bytes", 0) is None, "%s: usage %s" % (what, u))


def usage(mantou, folder):
    (folder / "a.net").write_text(NET % ("a", "npy(train = [\"x\", \"y\"], test = [\"x\", \"y\"])"))
    exe = folder / "a"
    built = run(mantou, "build", folder / "a.net", "-o", exe)
    result(built.returncode == 0, built.stderr)
    few = ["--synthetic", "--warmup", 1, "--steps", 2, "--repeat", 1]
    told = json.loads(run(exe, "bench", *few, "--json", "--usage", "--interval", "0.05").stdout)
    check_usage(told.get("usage", {}), "bench", 0.05, 3)        # the measurement alone is over in no time
    result(told["data"] == "synthetic", "bench says its data: %s" % told.get("data"))
    result("usage" not in json.loads(run(exe, "bench", *few, "--json").stdout), "without --usage nothing is sampled")
    text = run(exe, "bench", *few, "--usage", "--interval", "0.05").stdout
    result(re.search(r"usage +CPU [0-9.]+ %, memory [0-9.]+ % \([0-9]+ MB\): medians of [0-9]+ samples of 0.05 s",
                     text), "text: %s" % text)
    done = run(exe, "train", "--synthetic", "--steps", 20000, "--no-eval", "--no-save", "--quiet", "--usage",
               folder / "u.jsonl", "--interval", "0.02")
    lines = [json.loads(l) for l in (folder / "u.jsonl").read_text().splitlines()]
    result(done.returncode == 0 and lines, "train --usage: %s" % done.stderr)
    result(all(list(l) == ["seconds", "step", "cpu", "memory", "rss_bytes", "gpu", "gpu_memory_busy",
                           "gpu_memory_bytes"] and share(l["cpu"]) and 0 <= l["step"] <= 20000 for l in lines),
                           "lines: %s" % lines[:2])
    result(all(a["seconds"] < b["seconds"] and a["step"] <= b["step"] for a, b in zip(lines, lines[1:])),
           "lines in order")
    for words, status, args in (("wants seconds", 2, ["bench", "--usage", "--interval", "0"]),
                                ("cannot write", 1, ["train", "--synthetic", "--usage", folder / "no" / "u"])):
        done = run(exe, *args)
        result(done.returncode == status and words in done.stderr, "%s: %d %s" % (args, done.returncode, done.stderr))


def reader(mantou, folder):
    (folder / "d.net").write_text(DIGITS)
    exe = folder / "d"
    built = run(mantou, "build", folder / "d.net", "-o", exe)
    result(built.returncode == 0, built.stderr)
    few = ["--warmup", 1, "--steps", 20, "--repeat", 2, "--data", root / "models" / "digits"]
    told = json.loads(run(exe, "bench", "--reader", *few, "--json").stdout)
    result(told["mode"] == "reader" and told["data"].endswith("digits") and told["examples_per_s"]["median"] > 0
           and told["gflop_per_step"] == 0, "bench --reader: %s" % told)
    told = json.loads(run(exe, "bench", "--reader", "--readers", 2, *few, "--json").stdout)
    result(told["readers"] == 2 and told["mode"] == "reader", "with a ring: %s" % told)
    result("the reader" in run(exe, "bench", "--reader", *few).stdout, "text of --reader")
    for other in (["--synthetic"], ["--mode", "infer"], ["--profile"]):
        done = run(exe, "bench", "--reader", *other)
        result(done.returncode == 2 and "exclude each other" in done.stderr, "%s: %s" % (other, done.stderr))


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.bars, self.outside = 0, [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.rows += tag == "tr"
        if tag == "i":
            self.bars.append(float(re.search(r"width:([0-9.]+)%", attrs["style"]).group(1)))
        self.outside += [v for k, v in attrs.items() if k in ("src", "href")] + ([tag] if tag in ("script", "link")
                                                                                 else [])


def inference(mantou, folder):
    """The batch is there at each call, though kernels use its memory for other values: ids stay within their range."""
    exe = folder / "ncf"
    run(mantou, "build", root / "models" / "ncf.net", "--batch", 100, "-o", exe)
    done = run(exe, "bench", "--mode", "infer", "--synthetic", "--warmup", 1, "--steps", 5, "--repeat", 2, "--json")
    result(done.returncode == 0 and json.loads(done.stdout)["examples_per_s"]["median"] > 0,
           "ncf, inference: %s" % done.stderr)


def review(mantou, folder):
    (folder / "b.net").write_text(NET % ("b", "npy(train = [\"x\", \"y\"], test = [\"x\", \"y\"])"))
    (folder / "d.net").write_text(DIGITS)
    (folder / "list.tsv").write_text("# two models\nb.net hidden=12\ttrain\tf32,mixed\t4,8\t-\n"
                                     "b.net\tinfer\tf32\t4\t-\nd.net\ttrain\tf32\t4\tdigits\n"
                                     "no<ne.net\ttrain\tf32\t1\t-\n")
    base = ["review", "--list", folder / "list.tsv", "--quick"]
    done = run(mantou, *base, "--data", root / "models", "--html", folder / "page.html")
    lines = [l for l in done.stdout.splitlines() if l.startswith(("b ", "d "))]
    result(done.returncode == 1 and len(lines) == 6, "a row that fails is a line, the status 1: %d %s %s"
           % (done.returncode, done.stdout, done.stderr))
    result(all(re.match(r"\w+ +(train|infer) +(f32|mixed) +[48]  (synthetic|digits) +[0-9.]+ +[0-9.]+ +[0-9.]+ "
                        r"+[0-9.]+ +[0-9]+ +- +- +-$", l) for l in lines), "rows: %s" % lines)
    result("no<ne.net" in done.stdout and "No such file" in done.stdout, "what failed: %s" % done.stdout)
    result(done.stdout.count("mixed / f32: speed") == 2 and re.search(r"\d+ threads, [0-9.]+ GFLOP/s measured",
                                                                      done.stdout),
                                                                      "behind the table: %s" % done.stdout)
    page, text = Page(), (folder / "page.html").read_text()
    page.feed(text)
    result(page.rows == 8 and len(page.bars) == 6 and max(page.bars) == 100 and min(page.bars) > 0 and not page.outside,
           "page: %d rows, bars %s, %s" % (page.rows, page.bars, page.outside))
    result("no&lt;ne" in text and "no<ne" not in text, "names are escaped")
    told = json.loads(run(mantou, *base, "--rows", "^b train f32 [48] -$", "--json").stdout)
    result(set(told["machine"]) == {"cpu", "threads", "peak_gflops", "memory_bytes", "device", "driver"}
           and [r["batch"] for r in told["rows"]] == [4, 8], "json: %s" % told)
    for r in told["rows"]:
        check_usage(r["usage"], "review", 0.1, 3)
    (folder / "slow.tsv").write_text("d.net\ttrain\tf32\t8192\t-\n")
    told = json.loads(run(mantou, "review", "--list", folder / "slow.tsv", "--seconds", 1, "--json").stdout)
    result(told["rows"][0].get("cut") is True, "what takes too long is cut: %s" % told)
    check_usage(told["rows"][0].get("usage", {}), "what is cut", told["rows"][0].get("usage", {}).get("interval_s"), 3)
    for words, status, args in (("no regular expression", 2, ["--rows", "("]),
                                ("no row that --rows matches", 1, ["--rows", "xyz"]),
                                ("cannot read", 1, ["--list", folder / "no.tsv"])):
        done = run(mantou, *base, *args)
        result(done.returncode == status and words in done.stderr, "%s: %d %s" % (args, done.returncode, done.stderr))
    (folder / "bad.tsv").write_text("b.net\ttrain\tf32\n")
    done = run(mantou, "review", "--list", folder / "bad.tsv")
    result(done.returncode == 1 and "bad.tsv:1: a row is MODEL" in done.stderr, "a short line: %s" % done.stderr)


def main():
    mantou = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for test in (usage, reader, inference, review):
            with tempfile.TemporaryDirectory() as folder:
                test(mantou, pathlib.Path(folder))
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
