"""test_runs.py: what parses, runs: every reader, optimizer, schedule of the rate and initial value that `mantou ops`
knows trains two steps in the frame that language.md gives it, with the example that stands there. A name without data
to read, or a frame, fails."""
import gzip, json, os, random, re
from common import *
from test_images import noise

LANGUAGE = os.path.abspath("../../frontend/language.md")


def idx(path, shape, data):
    with gzip.open(path, "wb") as f:
        f.write(bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", s) for s in shape) + bytes(data))


def cifar(names, head):
    for n in names:
        open(n, "wb").write(b"".join(bytes([1] * head) + bytes(3072) for _ in range(8)))


def picture_folders():
    for part in ("train", "val"):
        for k in range(8):
            os.makedirs("%s/%d" % (part, k % 2), exist_ok=True)
            png("%s/%d/%d.png" % (part, k % 2, k), noise(40, 36, 3, k))


def coco_files():
    for part in ("train", "val"):
        os.makedirs(part, exist_ok=True)
        png(part + "/a.png", noise(24, 32))
        images = [{"id": k, "file_name": "a.png", "width": 32, "height": 24} for k in range(8)]
        boxes = [{"image_id": k, "category_id": 1, "bbox": [1, 1, 9, 9]} for k in range(8)]
        json.dump({"images": images, "annotations": boxes, "categories": [{"id": 1}]}, open(part + ".json", "w"))


DATA = {
    "cifar10": lambda: cifar(("data_batch_1.bin", "test_batch.bin"), 1),
    "cifar100": lambda: cifar(("train.bin", "test.bin"), 2),
    "idx": lambda: [idx(n + "-images.gz", [8, 3, 32, 32], bytes(8 * 3072)) or idx(n + "-labels.gz", [8], bytes(8))
                    for n in ("train", "t10k")],
    "npy": lambda: [npy(n + "images.npy", "|u1", [8, 3, 32, 32], bytes(8 * 3072)) or npy(n + "labels.npy", "<i4", [8],
                                                                                         [1] * 8)
                                                                                         for n in ("", "test-")],
    "csv": lambda: [open(n + ".csv", "w").write("age,rooms,price\n" + "1,2,3\n" * 8) for n in ("train", "test")],
    "tokens": lambda: [open(n + ".txt", "w").write("abcde" * 200) for n in ("train", "test")],
    "images": picture_folders,
    "coco": coco_files,
    "skipgram": lambda: open("words.txt", "w").write("a b c d e " * 40),
    "synthetic": lambda: None,
}


def frames():
    text = open(LANGUAGE).read()
    return {name: body for name, body in re.findall(r"^```net frame (\w+)\n(.*?)^```", text, re.S | re.M)}


def model(frame, example):
    """The example in its frame, with a batch where it has none."""
    text = frame.replace("    ...", example)
    return text if re.search(r"\bbatch *=", text) else text + "train { batch = 4 }\n"


def words(kinds):
    every = json.loads(run([MANTOU, "ops", "--json"]).stdout)
    return [w for w in every if w["kind"] in kinds and w["section"]]


def test_readers():
    frame = frames()
    readers = words(("reader", "reader of data"))
    check({w["name"] for w in readers} == set(DATA), "readers without data in this test, or data without a reader:",
          {w["name"] for w in readers} ^ set(DATA))
    for w in readers:
        DATA[w["name"]]()
        m = build(model(frame.get(w["name"], frame["data"]), w["example"]))
        run([m, "train", "--data", ".", "--steps", 2, "--no-save"])


def test_recipes():
    frame = frames()
    recipes = words(("optimizer", "rate", "schedule of the rate"))
    check(len(recipes) >= 8, "only", [w["name"] for w in recipes])
    for w in recipes:
        m = build(model(frame["train"], w["example"]), "m", "-O0")
        run([m, "train", "--synthetic", "--steps", 2, "--no-save", "--no-eval"])


def test_initial_values():
    frame = frames()["body"]
    values = words(("init", "initial value"))
    check(len(values) >= 8, "only", [w["name"] for w in values])
    # one model with all of them: each call has its own parameters
    text = "\n".join("    " + w["example"].replace("scale)", "scale_%s)" % w["name"]) for w in values)
    m = build(model(frame, text), "m", "-O0")
    run([m, "train", "--synthetic", "--steps", 2, "--no-save", "--no-eval"])


TESTS = [test_readers, test_recipes, test_initial_values]
