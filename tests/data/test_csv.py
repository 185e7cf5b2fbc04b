"""test_csv.py: the reader csv."""
import gzip, random
from common import *

TABLE = """train { batch = 4  epochs = 2  optimizer = sgd(0.01) }
data { reader = csv(%s, columns = {x = ["a", "c"], id = "kind"}%s) }
model m(x: f32[N, 2], id: i32[N]) {
    loss mean(embedding(id, 3, 2) * x)
    output x = x * 1
    output id = id
}
"""


def put(path, text):
    open(path, "w", newline="").write(text)


def values(m, *more, **how):
    """What the test set's examples are, by infer."""
    run([m, "train", "--save", "w.safetensors", "--steps", 0])
    run([m, "infer", "--weights", "w.safetensors", "--data", ".", "--output", "x=x.npy", "--output", "id=id.npy",
         *more], **how)
    return read_npy("x.npy")[1], read_npy("id.npy")[1]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def test_fields():
    """Headings in another order, quotes, blanks, CRLF, empty lines, no end of the last line, two files, one of them
    packed."""
    m = build(TABLE % ('train = "t*.csv*", test = "t*.csv*"', ""))
    put("t1.csv", '\ufeffa,"b",c,kind\r\n1,text,-2.5,0\r\n\r\n "3e0" ,"a ""b"",\nc", +.5 ,2\r\n  \r\n')
    gzip.open("t2.csv.gz",
              "wt").write("kind,c,a,b\n1,0.1,123456789012345678901234567890e-10,nothing\n2,1e-320,1e999,x\n0,7.,-0,x")
    x, kind = values(m)
    check(kind == [0, 2, 1, 2, 0], kind)
    check(x == [1, -2.5, 3, 0.5, f32(123456789012345678901234567890e-10), f32(0.1), float("inf"), 0, 0, 7], x)


def test_rows_far_apart():
    """Long rows and empty lines, of one line each and of several: each row is found, in any order."""
    m = build(TABLE % ('train = "t.csv", test = "t.csv"', ""))
    r = random.Random(7)
    for gap in "z", '"\n"':
        rows = [(i % 3, r.randint(-99, 99), r.randint(-99, 99)) for i in range(200)]
        put("t.csv", "kind,skip,a,c\n" + "".join("%d,%s,%d,%s%d\n%s" % (k, gap * r.choice([0, 1, 3]) if gap == "z"
                                                                        else r.choice(["", gap]), a,
                                                                        " " * r.choice([0, 9, 40000]), c,
                                                                        "\n" * r.choice([0, 2, 70000 * (i % 50 == 7)]))
                                                     for i, (k, a, c) in enumerate(rows)))
        x, kind = values(m)
        check(kind == [k for k, _, _ in rows], "kinds differ")
        check(x == [float(v) for _, a, c in rows for v in (a, c)], "numbers differ")
        hashes = set()
        for readers in 1, 3:
            run([m, "train", "--readers", readers, "--save", "a.safetensors", "--overwrite", "--quiet"])
            hashes.add(open("a.safetensors", "rb").read())
        check(len(hashes) == 1, "checkpoints differ")


def test_numbers():
    """Every number is what Python reads in it."""
    r = random.Random(5)
    text = []
    for _ in range(3000):
        digits = "".join(r.choice("0123456789") for _ in range(r.randint(1, 24)))
        at = r.randint(0, len(digits))
        text.append(r.choice(["", "-", "+"]) + digits[:at] + r.choice([".", ""]) + digits[at:]
                    + r.choice(["", "", "e%d" % r.randint(-30, 8), "E+03"]))
    put("t.csv", "n\n" + "\n".join(text))
    m = build("""train { batch = 50 }
data { reader = csv("t.csv", "t.csv") }
model m(x: f32[N]) { loss mean(x)  output x = x * 1 }
""")
    run([m, "infer", "--weights", "w.safetensors", "--data", ".", "--output", "x=x.npy"], status=1)
    safetensors_empty("w.safetensors")
    run([m, "infer", "--weights", "w.safetensors", "--data", ".", "--output", "x=x.npy"])
    for got, t in zip(read_npy("x.npy")[1], text):
        try:
            want = f32(float(t))
        except OverflowError:
            want = float("-inf" if t[0] == "-" else "inf")
        check(got == want, t, got, want)


def safetensors_empty(path):
    open(path, "wb").write(struct.pack("<Q", 2) + b"{}")


def test_delimiters_and_numbers_of_columns():
    for name, sign in (("tab", "\t"), (";", ";"), ("|", "|"), (":", ":")):
        m = build("""train { batch = 2 }
data { reader = csv("t.csv", "t.csv", header = false, delimiter = "%s", columns = {x = [3, 0], id = [1]}) }
model m(x: f32[N, 2], id: i32[N]) { loss mean(x)  output x = x * 1  output id = id }
""" % name)
        put("t.csv", "\n".join(sign.join(row) for row in (["1", "7", "", "4"], ["-1", " 8 ", "..", "5"])))
        x, kind = values(m)
        check(x == [4, 1, 5, -1] and kind == [7, 8], name, x, kind)


def test_same_bits():
    m = build(TABLE % ('train = "t.csv", test = "t.csv"', ""))
    r = random.Random(1)
    put("t.csv", "a,b,c,kind\n" + "".join("%r,%s,%r,%d\n" % (r.uniform(-1, 1), "y" * r.randint(0, 9), r.gauss(0, 1),
                                                             r.randint(0, 2)) for _ in range(333)))
    seen = set()
    for more in ([], ["--readers", 1], ["--readers", 5], ["--sink", "off"]):
        run([m, "train", "--save", "w.safetensors", "--quiet", *more])
        seen.add(open("w.safetensors", "rb").read())
    check(len(seen) == 1, "checkpoints differ")


def test_broken():
    train = TABLE % ('train = "t.csv", test = "t.csv"', "")
    m = build(train)
    head = "a,b,c,kind\n1,2,3,0\n"
    for text, err in (
            ("", "t.csv: is empty"),
            ("a,b,d,kind\n1,2,3,0\n", 't.csv: there is no column "c"'),
            ("a,b,ccc,kind\n", 't.csv: there is no column "c"'),
            (head + "1,2,three,0\n", 't.csv:3: column 2 (c): "three" is no number'),
            (head + "1,2,,0\n", 't.csv:3: column 2 (c): "" is empty: a number is needed'),
            (head + "1,2,3\n", "t.csv:3: 3 fields, the first row has 4"),
            (head + "\n\n1,2,3,2,5\n", "t.csv:5: 5 fields, the first row has 4"),
            (head + "1,2,3,3\n", 't.csv:3: column 3 (kind): "3" is no id or label that the model has'),
            (head + "1,2,3,-1\n", 't.csv:3: column 3 (kind): "-1" is no id or label that the model has'),
            (head + "1,2,3,0.5\n", 't.csv:3: column 3 (kind): "0.5" is no whole number, which a label or id is'),
            (head + "1,2,0x10,0\n", 't.csv:3: column 2 (c): "0x10" is no number'),
            (head + '1,2,"3,0\n', "t.csv:3: column 2 (c)"),
            (head + '1,2,"3"4,0\n', "t.csv:3: column 2 (c)"),
            ("a,b,c,kind\n", "training data: there are no examples in the files")):
        put("t.csv", text)
        run([m, "train"], status=1, err=err)
    m = build('train { batch = 2 }\ndata { reader = csv("t.csv", "t.csv") }\nmodel m(x: f32[N, 3]) { loss mean(x) }\n')
    put("t.csv", "a,b\n1,2\n")
    run([m, "train"], status=1, err="t.csv: has 2 columns, the inputs hold 3 elements an example: columns = {...} says "
                                    "which feed which")
    put("t.csv", "a;b;c\n1;2;3\n")
    run([m, "train"], status=1, err='t.csv: has 1 column, the inputs hold 3 elements an example: delimiter = ";" or '
                                    'another parts columns')
    open("t.csv", "wb").write(b"\x93NUMPY\1\0 \n")
    run([m, "train"], status=1, err="t.csv: is a .npy file: reader = npy(...) reads it")
    m = build('train { batch = 2 }\ndata { reader = csv("t.csv", "t.csv", header = false) }\nmodel m(x: f32[N, 2]) { '
              'loss mean(x) }\n')
    put("t.csv", "a,b\n1,2\n3,4\n")
    run([m, "train"], status=1, err='t.csv:1: column 0: "a" is no number: a first line of headings is skipped with '
                                    'header = true')


TESTS = [test_fields, test_numbers, test_delimiters_and_numbers_of_columns, test_same_bits, test_broken]
