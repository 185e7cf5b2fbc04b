"""test_data.py [NAME...]: readers of compiled programs; with names only the tests whose name has one of them in it."""
import hashlib, os, random, subprocess, sys, time
from common import *
import test_coco, test_csv, test_images, test_runs, test_words

LINE = """train { batch = 8  epochs = 3  optimizer = momentum(0.05) }
data { reader = npy(train = ["x.npy", "y.npy"], test = ["x.npy", "y.npy"]) }
model m(x: f32[N, %d], y: f32[N, 1]) {
    p = x |> dense(1)
    loss mean((p - y) * (p - y))
    output p
}
"""


def same(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def line_set(n=50):
    r = random.Random(3)
    npy("x.npy", "<f8", [n, 4], [r.uniform(-1, 1) for _ in range(4 * n)])
    npy("y.npy", "<f4", [n, 1], [r.uniform(-1, 1) for _ in range(n)])


def test_readers_same_bits():
    line_set()
    m = build(LINE % 4)
    hashes = set()
    for readers in ([], ["--readers", 1], ["--readers", 3], ["--readers", 7, "--sink", "off"],
                    ["--readers", 2, "--threads", 1]):
        run([m, "train", "--save", "a.safetensors", "--quiet", *readers])
        hashes.add(same("a.safetensors"))
    run([m, "train", "--save", "a.safetensors", "--readers", 2, "--stop", 7])
    run([m, "train", "--save", "a.safetensors", "--readers", 3, "--resume", "a.safetensors"])
    hashes.add(same("a.safetensors"))
    check(len(hashes) == 1, "checkpoints differ:", hashes)


def test_infer_of_a_set():
    line_set()
    m = build(LINE % 4)
    run([m, "train", "--save", "a.safetensors", "--quiet"])
    run([m, "infer", "--weights", "a.safetensors", "--input", "x=x.npy", "--output", "p=p.npy"])
    run([m, "infer", "--weights", "a.safetensors", "--data", ".", "--output", "p=q.npy"])
    run([m, "infer", "--weights", "a.safetensors", "--data", ".", "--readers", 2, "--output", "p=r.npy"])
    check(read_npy("p.npy") == read_npy("q.npy") == read_npy("r.npy"), "outputs differ")
    run([m, "infer", "--weights", "a.safetensors", "--data", ".", "--input", "x=x.npy", "--output", "p=q.npy"],
        status=2, err="--data and --input exclude each other")


def peak_of_large(rows, width, written, readers):
    """The peak, in MiB, of an epoch of rows of so many zeros: holes of a file, or written, of which some systems keep
    large pages."""
    with open("x.npy", "wb") as f:
        f.write(npy_head("<f4", [rows, width]))
        end = f.tell() + 4 * rows * width
        while written and f.tell() < end:
            f.write(bytes(min(1 << 23, end - f.tell())))
        f.truncate(end)
    npy("y.npy", "<f4", [rows, 1], [1] * rows)
    m = build(LINE % width)
    r = run(["sh", "-c", 'exec "$@"', "sh", sys.executable, "-c",
             "import resource, subprocess, sys; s = subprocess.call(sys.argv[1:]); "
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(s)",
             m, "train", "--no-eval", "--no-save", "--quiet", "--epochs", 1, *readers], timeout=600)
    return int(r.stdout.split()[-1]) / 1024


def test_set_is_not_held():
    """900 MB of holes train in far less memory, by whoever gathers; with --long 6.3 GB, which the page cache need not
    hold either. Around a row of 4 KiB that was written some systems map 2 MiB."""
    for rows, width, written in [(3600, 65536, False),
                                 (220000, 1024, True)] + [(24000, 65536, False)] * bool(os.environ.get("LONG")):
        for readers in [], ["--readers", 1]:
            peak = peak_of_large(rows, width, written, readers)
            check(peak < 520, rows, "rows:", peak, "MiB at the peak")


def test_file_that_shrinks():
    n = 200000
    npy("x.npy", "<f4", [n, 4], [1] * 4 * n)
    npy("y.npy", "<f4", [n, 1], [1] * n)
    m = build(LINE % 4)
    p = subprocess.Popen([m, "train", "--no-eval", "--no-save", "--quiet", "--epochs", "100000"],
                         stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    os.truncate("x.npy", 4096)
    err = p.communicate(timeout=60)[1]
    check(p.returncode == 1 and "x.npy: became shorter" in err, p.returncode, err)


def test_numbers_that_do_not_fit():
    """They are found before the first step, whichever file they stand in."""
    m = build("""train { batch = 4 }
data { reader = npy(train = ["x-*.npy", "id.npy"], test = ["x-*.npy", "id.npy"]) }
model m(x: i32[N, 2], id: i32[N]) {
    h = embedding(id, 5, 3)
    loss mean(h) + mean(cast(x, f32))
}
""")
    npy("x-1.npy", "<i8", [4, 2], range(8))
    npy("x-2.npy", "<i8", [4, 2], list(range(7)) + [1 << 40])
    npy("id.npy", "<i8", [8], [0, 1, 2, 3, 4, 0, 1, 2])
    run([m, "train", "--data", "."], status=1,
        err="x-2.npy: 1099511627776 does not fit in i32, the type of input x (element 7)")
    npy("x-2.npy", "<i8", [4, 2], range(8))
    run([m, "train", "--data", ".", "--no-save"])
    npy("id.npy", "<f4", [8], [0, 1, 2, 3, 4, 0, 1, 2.5])
    run([m, "train", "--data", "."], status=1,
        err="id.npy: 2.5 is no whole number, and input id is i32, a label or id (element 7, example 7)")
    npy("id.npy", "<i4", [8], [0, 1, 2, 3, 4, 0, -1, 2])
    run([m, "train", "--data", "."], status=1, err="id.npy: id -1 is out of range 0..4 (element 6, example 6)")


TESTS = [test_readers_same_bits, test_infer_of_a_set, test_set_is_not_held, test_file_that_shrinks,
         test_numbers_that_do_not_fit]
if __name__ == "__main__":
    sys.exit(main(TESTS + test_csv.TESTS + test_images.TESTS + test_words.TESTS + test_coco.TESTS + test_runs.TESTS))
