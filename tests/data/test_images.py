"""test_images.py: the reader images, on PNG made here and, where they and Pillow are there, on photographs beside
Pillow."""
import math, os, random, tarfile, io
from common import *

MODEL = """train { batch = %d  optimizer = sgd(1) }
data { reader = images(train = "%s", test = "%s", size = %s%s) }
model m(image: u8[N, %d, %d, %d], label: i32[N]) {
    w = param([%d, %d, %d]) as w
    loss sum(mean(cast(image, f32) * w, axes = [0]))
    loss 0 * mean(embedding(label, %d, 2))
    output image = image
    output label = label
}
"""


def images(m="m", train="train", test="train", rows=8, columns=8, channels=3, more="", batch=1, classes=10, **how):
    size = "[%d, %d]" % (rows, columns)
    return build(MODEL % (batch, train, test, size, more, channels, rows, columns, channels, rows, columns, classes), m,
                 **how)


def evaluated(m, *more, **how):
    """Images and labels of the test set."""
    open("none.safetensors", "wb").write(struct.pack("<Q", 2) + b"{}")
    run([m, "train", "--steps", 0, "--save", "w.safetensors", "--quiet"])
    run([m, "infer", "--weights", "w.safetensors", "--data", ".", "--output", "image=i.npy", "--output", "label=l.npy",
         *more], **how)
    return read_npy("i.npy"), read_npy("l.npy")[1]


def trained(m, channels, rows, columns, step=1):
    """The image that training's step saw first: its gradient is w."""
    run([m, "train", "--steps", 1, "--save", "w.safetensors", "--quiet", "--no-eval", *(["--seed", 7])])
    blob = open("w.safetensors", "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]
    head = __import__("json").loads(blob[8:8 + n])
    name = next(k for k in head if k.endswith("w.value") or k == "w" or k.startswith("w"))
    begin, end = head[name]["data_offsets"]
    return [-x for x in struct.unpack("<%df" % (channels * rows * columns), blob[8 + n + begin:8 + n + end])]


def noise(rows, columns, channels=3, seed=1):
    r = random.Random(seed)
    return [[r.randrange(256) for _ in range(columns * channels)] for _ in range(rows)]


def planes(rows, channels=3):
    return [v for c in range(channels) for row in rows for v in row[c::channels]]


def test_folders():
    """Classes in byte order of their names, files in that of theirs; all kinds of PNG."""
    for name in ("b", "B", "a"):
        os.makedirs("train/" + name)
    rgb, grey = noise(8, 8), noise(8, 8, 1, 2)
    deep = [[x for v in row for x in (v, 77)] for row in rgb]
    alpha = [[x for k in range(8) for x in row[3 * k:3 * k + 3] + [9]] for row in rgb]
    png("train/a/2.png", rgb)
    png("train/a/10.PNG", alpha, 4)
    png("train/B/x.Jpg", grey, 1)       # told by content
    png("train/b/deep.png", deep, 3, 16)
    open("train/b/note.txt", "w").write("no image")
    m = images()
    (shape, got), labels = evaluated(m)
    check(labels == [0, 1, 1, 2] and shape == (4, 3, 8, 8), labels, shape)
    spread = planes([[v for v in row for _ in range(3)] for row in grey])
    check(got == spread + planes(rgb) + planes(rgb) + planes(rgb), "pixels differ")
    m = images(channels=1)
    (shape, got), labels = evaluated(m)
    check(got[:64] == planes(grey, 1), "grey differs")
    want = [(row[3 * k] * 19595 + row[3 * k + 1] * 38470 + row[3 * k + 2] * 7471 + 0x8000) >> 16 for row in rgb
            for k in range(8)]
    check(got[64:128] == want, "grey of colour differs")
    m = images(classes=2)
    run([m, "train"], status=1, err="train/b/deep.png: class 2 (b) is out of range 0..1, which input label has")


def shard(path, members):
    with tarfile.open(path, "w") as t:
        for name, data in members:
            x = tarfile.TarInfo(name)
            x.size = len(data)
            t.addfile(x, io.BytesIO(data))


def test_shards_and_lists():
    drawn = [noise(8, 8, 3, k) for k in range(6)]
    blobs = [png(None, p) for p in drawn]
    long_name = "d" * 90 + "/" + "e" * 90
    shard("s-08.tar", [("k0.png", blobs[0]), ("k0.cls", b"3\n"), ("k0.json", b"{}"), ("k1.cls", b"1"),
                       ("k1.png", blobs[1])])
    shard("s-09.tar", [(long_name + "/k2.png", blobs[2]), (long_name + "/k2.cls", b"0")])
    shard("s-10.tar", [("cats/1.png", blobs[3]), ("dogs/1.png", blobs[4]), ("cats/2.png", blobs[5])])
    m = images(test="s-{08..10}.tar", train="s-{08..10}.tar")
    (shape, got), labels = evaluated(m)
    check(labels == [3, 1, 0, 0, 1, 0], labels)
    check(got == [v for p in drawn for v in planes(p)], "pixels differ")
    os.makedirs("in/deep folder")
    for k in range(3):
        open("in/deep folder/%d.png" % k, "wb").write(blobs[k])
    open("in/list.txt", "w", newline="").write("deep folder/2.png 5\r\n\ndeep folder/0.png\t9\n%s/in/deep folder/1.png "
                                               "0" % os.getcwd())
    m = images(test="in/list.txt", train="in/list.txt")
    (shape, got), labels = evaluated(m)
    check(labels == [5, 9, 0] and got == [v for k in (2, 0, 1) for v in planes(drawn[k])], labels)
    for text, err in (("deep folder/2.png\n", "in/list.txt:1: `path label` is needed"),
                      ("a.png 1\n", "in/a.png: No such file"),
                      ("deep folder/2.png 1\ndeep folder/0.png 10\n",
                       "in/deep folder/0.png: class 10 is out of range 0..9")):
        open("in/list.txt", "w").write(text)
        run([m, "train"], status=1, err=err)
    m = images(test="s-*.tar", train="s-*.tar")
    for at, err in ((1600, "truncated: a member's end is missing"), (1100, "truncated: the header at byte 1024")):
        os.truncate("s-09.tar", at)
        run([m, "train"], status=1, err="s-09.tar: " + err)
    shard("s-09.tar", [("k.png", blobs[0])])
    run([m, "train"], status=1, err="k.png has no .cls beside it and stands in no folder of a class")
    shard("s-09.tar", [("k.png", blobs[0]), ("k.cls", b"cat")])
    run([m, "train"], status=1, err="k.cls holds no number of a class")
    open("s-09.tar", "w").close()
    run([m, "train"], status=1, err="s-09.tar: is empty")


def test_broken():
    os.makedirs("train/a")
    good = png("train/a/1.png", noise(8, 8))
    m = images()
    huge = bytearray(good)
    huge[16:24] = struct.pack(">II", 30000, 30000)
    jpeg = b"\xff\xd8\xff\xe0\x00\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xc0\x00\x11\x08\x75\x30\x75\x30\x03\x01\x11\0" \
           b"\x02\x11\1\x03\x11\1"
    early = ((b"", "is empty"), (b"GIF89a" + b"\0" * 30, "is a GIF, and neither JPEG nor PNG"),
             (b"RIFF\0\0\0\0WEBP", "is a WebP"),
             (b"hello", "is neither JPEG nor PNG"), (bytes(huge), "30000 x 30000 pixels, at most 134 million are read"),
             (good[:20], "truncated PNG"),
             (jpeg + b"\0" * 20, "30000 x 30000 pixels, at most 134 million are read"))
    late = ((good[:60], "PNG: truncated"), (good[:50] + b"\0\0\0\0" + good[54:], "PNG:"),
            (jpeg.replace(b"\x75\x30", b"\0\x08") + b"\0" * 20, "JPEG:"),
            (b"\xff\xd8\xff", "JPEG:"))
    for blob, err in early + late:
        open("train/a/2.png", "wb").write(blob)
        r = run([m, "train", "--no-eval", "--epochs", 3, "--save", "c.safetensors"], status=1,
                err="train/a/2.png: " + err)
        check(("nothing was saved" in r.stderr) == ((blob, err) in late), err, r.stderr)
        check(not os.path.exists("c.safetensors"), "a checkpoint of a broken step")
    # the file breaks while training goes on: the last checkpoint is whole, and says so
    open("train/a/2.png", "wb").write(good)
    run([m, "train", "--no-eval", "--epochs", 1, "--save", "c.safetensors"])
    before = open("c.safetensors", "rb").read()
    open("train/a/2.png", "wb").write(good[:60])
    for readers in (1, 3):
        run([m, "train", "--no-eval", "--epochs", 2, "--save", "d.safetensors", "--resume", "c.safetensors", "--replan",
             "--readers", readers], status=1,
            err=["train/a/2.png: PNG: truncated", "the last good checkpoint is"])
        check(open("c.safetensors", "rb").read() == before, "the checkpoint changed")
    os.remove("train/a/2.png")
    os.remove("train/a/1.png")
    run([m, "train"], status=1, err="no folder in it holds .jpg, .jpeg or .png files")


def test_same_bits_and_linking():
    r = random.Random(4)
    for k in range(30):
        os.makedirs("train/%d" % (k % 3), exist_ok=True)
        png("train/%d/%d.png" % (k % 3, k), noise(r.randint(5, 20), r.randint(5, 20), 3, k))
    m = images(more=", crop = [0.2, 1], flip = true", batch=4)
    seen = set()
    for more in (["--readers", 1], ["--readers", 5], ["--readers", 2, "--sink", "off"], ["--threads", 1]):
        run([m, "train", "--epochs", 3, "--save", "w.safetensors", "--quiet", *more])
        seen.add(open("w.safetensors", "rb").read())
    run([m, "train", "--epochs", 3, "--save", "w.safetensors", "--quiet", "--stop", 11])
    run([m, "train", "--epochs", 3, "--save", "w.safetensors", "--quiet", "--resume", "w.safetensors"])
    seen.add(open("w.safetensors", "rb").read())
    check(len(seen) == 1, "checkpoints differ")
    r = run(["ldd", m])
    check("jpeg" not in r.stdout and "png" not in r.stdout and "libz" not in r.stdout, r.stdout)


# ---- the numbers of crops, as the contract has them
def philox(seed, stream, step, j):
    name = 0x811C9DC5
    for c in stream.encode():
        name = (name ^ c) * 0x01000193 & 0xffffffff
    x, k = [j >> 2 & 0xffffffff, j >> 34, step & 0xffffffff, 0], [seed & 0xffffffff, name]
    for i in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ k[0], b & 0xffffffff, a >> 32 ^ x[3] ^ k[1], a & 0xffffffff]
        k = [k[0] + 0x9E3779B9 & 0xffffffff, k[1] + 0xBB67AE85 & 0xffffffff]
    return x[j & 3]


def uniform(seed, stream, step, j):
    return (philox(seed, stream, step, j) >> 8) * 2.0 ** -24


def crop_of(seed, epoch, example, width, height, least, most, ratio):
    u = lambda j: uniform(seed, "images", epoch, 64 * example + j)
    for i in range(10):
        area = height * width * (least + (most - least) * u(4 * i))
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * u(4 * i + 1))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            y, x = math.floor(u(4 * i + 2) * (height - h + 1)), math.floor(u(4 * i + 3) * (width - w + 1))
            return (x, y, x + w, y + h), u(40) < 0.5
    return None, u(40) < 0.5


def compare(got, want, what):
    """Pixels differ by at most 2, their mean by at most 0.5."""
    most = max(abs(a - b) for a, b in zip(got, want))
    mean = abs(sum(got) - sum(want)) / len(want)
    check(len(got) == len(want) and most <= 2 and mean <= 0.5, what, "differs by", most, "mean", mean)


def photographs():
    try:
        from PIL import Image
    except ImportError:
        raise Skip("no Pillow")
    folder = os.path.join(SHARED, "imagenet-sample")
    if not os.path.isdir(folder):
        raise Skip("no folder imagenet-sample")
    return Image, sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".JPEG"))


def test_evaluation_is_pillows():
    Image, files = photographs()
    files = files[:12]
    open("list.txt", "w").write("".join("%s %d\n" % (f, k % 10) for k, f in enumerate(files)))
    for rows, columns, resize, channels in ((112, 112, 128, 3), (40, 64, None, 3), (96, 96, 100, 1)):
        m = images(train="list.txt", test="list.txt", rows=rows, columns=columns, channels=channels,
                   more=", resize = %d" % resize if resize else "")
        (shape, got), _ = evaluated(m)
        size = channels * rows * columns
        for k, f in enumerate(files):
            p = Image.open(f).convert("RGB")
            w, h = p.size
            if resize:
                to = (w * resize // h, resize) if w > h else (resize, h * resize // w)
            elif rows * w >= columns * h:
                to = (max(columns, w * rows // h), rows)
            else:
                to = (columns, max(rows, h * columns // w))
            p = p.convert("L") if channels == 1 else p
            p = p.resize(to, Image.BILINEAR)
            x, y = (to[0] - columns) // 2, (to[1] - rows) // 2
            data = p.crop((x, y, x + columns, y + rows)).tobytes()
            compare(got[k * size:(k + 1) * size], [v for c in range(channels) for v in data[c::channels]], f)


def test_training_crops_are_the_contracts():
    Image, files = photographs()
    mirrored = 0
    for k, f in enumerate(files[20:28]):
        open("list.txt", "w").write("%s 0\n" % f)
        m = images(train="list.txt", test="list.txt", rows=48, columns=64, more=", crop = [0.08, 1], flip = true")
        got = trained(m, 3, 48, 64)
        p = Image.open(f).convert("RGB")
        box, flip = crop_of(7, 0, 0, *p.size, 0.08, 1, (0.75, 1.3333333))
        p = p.crop(box).resize((64, 48), Image.BILINEAR)
        data = (p.transpose(Image.FLIP_LEFT_RIGHT) if flip else p).tobytes()
        mirrored += flip
        compare(got, [v for c in range(3) for v in data[c::3]], f)


TESTS = [test_folders, test_shards_and_lists, test_broken, test_same_bits_and_linking, test_evaluation_is_pillows,
         test_training_crops_are_the_contracts]
