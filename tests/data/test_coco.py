"""test_coco.py: the reader coco on images made here."""
import json, os, shutil
from common import *
from test_images import noise, planes, trained, uniform

MODEL = """train { batch = 1  optimizer = sgd(1) }
data { reader = coco(train = "train.json", test = "test.json", images = ["in", "in"], size = [8, 16], boxes = 3%s) }
model m(image: u8[N, 3, 8, 16], boxes: f32[N, 3, 4], labels: i32[N, 3]) {
    a = param([3, 8, 16]) as a
    b = param([3, 4]) as b
    c = param([3]) as c
    loss sum(mean(cast(image, f32) * a, axes = [0])) + sum(mean(boxes * b, axes = [0]))
       + sum(mean(cast(labels, f32) * c, axes = [0]))
    output image = image
    output boxes = boxes
    output labels = labels
}
"""


def sets(train=None):
    os.makedirs("in", exist_ok=True)
    drawn = {"a.png": noise(8, 16, 3, 1), "b.png": noise(8, 8, 3, 2), "c.png": noise(16, 32, 3, 3)}
    for name, rows in drawn.items():
        png("in/" + name, rows)
    images = [{"file_name": "c.png", "id": 30, "width": 32, "height": 16, "license": None},
              {"id": 7, "width": 16, "height": 8, "file_name": "a.png"},
              {"id": 9, "width": 8, "height": 8, "file_name": "b.png"}]
    box = lambda image, category, b, crowd=0: {"image_id": image, "category_id": category, "bbox": b, "iscrowd": crowd,
                                               "segmentation": [[1, 2.5, {"x": "]"}]]}
    boxes = [box(7, 90, [1, 2, 3, 4]), box(30, 3, [2, 4, 8, 8]), box(7, 18, [0, 0, 16, 8.0]), box(7, 3, [1, 1, 0, 5]),
             box(7, 3, [1, 1, 1, 1], 1),
             box(7, 90, [4, 4, 2, 2]), box(7, 90, [5, 5, 1, 1])]
    text = {"info": {"a": [1, -2e3, "x\\u00e9\""]}, "images": images, "annotations": boxes,
            "categories": [{"id": 18, "name": "d"}, {"id": 90}, {"id": 3}]}
    open("test.json", "w").write(json.dumps(text, indent=1).replace("b.png", "b\\u002ep\\u006eg"))
    json.dump(train or text, open("train.json", "w"))
    return drawn, text


def test_test_set():
    drawn, _ = sets()
    m = build(MODEL % "")
    run([m, "train", "--steps", 0, "--save", "w.safetensors", "--quiet"])
    args = [m, "infer", "--weights", "w.safetensors", "--data", "."] + [x for n in ("image", "boxes", "labels")
                                                                        for x in ("--output", "%s=%s.npy" % (n, n))]
    run(args, err="note: test data: 1 crowds, 1 boxes without area and 1 beyond the first 3 of an image are left out")
    check(read_npy("labels.npy")[1] == [0, -1, -1, 2, 1, 2, -1, -1, -1], read_npy("labels.npy"))
    zero = [0] * 4
    check(read_npy("boxes.npy")[1] == [1, 2, 5, 6] + zero * 2 + [1, 2, 4, 6, 0, 0, 16, 8, 4, 4, 6, 6] + zero * 3,
          read_npy("boxes.npy"))
    image = read_npy("image.npy")[1]
    n = 3 * 8 * 16
    check(image[n:2 * n] == planes(drawn["a.png"]), "the image that fits differs")
    check(image[2 * n:] == planes([row + [0] * 24 for row in drawn["b.png"]]), "the narrow image differs")
    whole = sum(v for row in drawn["c.png"] for v in row) / (3 * 16 * 32)
    check(abs(sum(image[:n]) / n - whole) < 2, "the scaled image's mean is off")


def test_mirrored_scaled():
    """13 columns become 6, not 6.5: boxes are mirrored in those."""
    os.makedirs("in", exist_ok=True)
    png("in/d.png", noise(16, 13, 3, 4))
    text = {"images": [{"file_name": "d.png", "id": 1, "width": 13, "height": 16}], "categories": [{"id": 3}],
            "annotations": [{"image_id": 1, "category_id": 3, "bbox": [2, 4, 6, 8], "iscrowd": 0}]}
    for name in "train.json", "test.json":
        json.dump(text, open(name, "w"))
    m = build(MODEL % ", flip = true")
    seed = next(s for s in range(99) if uniform(s, "images", 0, 40) < 0.5)
    run([m, "train", "--steps", 1, "--seed", seed, "--save", "w.safetensors", "--quiet", "--no-eval"])
    blob = open("w.safetensors", "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]
    at = json.loads(blob[8:8 + n])["b"]["data_offsets"]
    b = [-x for x in struct.unpack("<4f", blob[8 + n + at[0]:8 + n + at[0] + 16])]
    check(b == [2, 2, 5, 6], b)


def test_training():
    """Images without boxes are left out; what is mirrored is so with its boxes."""
    drawn, text = sets()
    m = build(MODEL % ", flip = true")
    seen = set()
    for seed in range(8):
        run([m, "train", "--steps", 1, "--seed", seed, "--save", "w.safetensors", "--quiet", "--no-eval"])
        blob = open("w.safetensors", "rb").read()
        n = struct.unpack("<Q", blob[:8])[0]
        head = json.loads(blob[8:8 + n])
        value = {k: [-x for x in struct.unpack("<%df" % ((v["data_offsets"][1] - v["data_offsets"][0]) // 4),
                                               blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])]
                 for k, v in head.items() if k[0] in "abc" and k != "__metadata__"}
        a, b, c = (next(v for k, v in value.items() if k[0] == x) for x in "abc")
        example = 0 if c[0] == 0 else 1
        flip = uniform(seed, "images", 0, 64 * example + 40) < 0.5
        seen.add((example, flip))
        if example == 0:
            check(b[:4] == ([11, 2, 15, 6] if flip else [1, 2, 5, 6])[:0] + ([16 - 5, 2, 15, 6] if flip
                                                                             else [1, 2, 5, 6]), flip, b)
        else:
            rows = [[v for k in reversed(range(16)) for v in row[3 * k:3 * k + 3]] if flip else row
                    for row in drawn["a.png"]]
            check(a == planes(rows), "pixels differ")
            check(b == ([12, 2, 15, 6, 0, 0, 16, 8, 10, 4, 12, 6] if flip else [1, 2, 4, 6, 0, 0, 16, 8, 4, 4, 6, 6]),
                  flip, b)
            check(c == [2, 1, 2], c)
    check(len(seen) > 2, seen)
    run([m, "train", "--epochs", 1, "--no-save", "--no-eval", "--log", "log.jsonl"])
    check(sum('"rate"' in x for x in open("log.jsonl")) == 2, "an image without a box was trained on")


def test_broken():
    _, text = sets()
    m = build(MODEL % "")
    good = open("train.json").read()
    for bad, err in ((good[:-1], "train.json: byte"), ("[1]", "train.json: byte 0: an object expected"),
                     (good + "x", "text behind the object"),
                     (good.replace('"image_id": 30', '"image_id": 31'),
                      "annotation 1 is of image 31, which is not there"),
                     (good.replace('"category_id": 90', '"category_id": 91'),
                      "annotation 0 is of category 91, which is not there"),
                     (good.replace("[2, 4, 8, 8]", "[2, 4, 8]"), "a box of four numbers expected"),
                     (good.replace('"width": 16, ', ""), "image 1 of the list lacks file_name, width or height"),
                     (good.replace("a.png", "z.png"), "in/z.png: No such file"),
                     (good.replace('"width": 16', '"width": 17'),
                      "in/a.png: is 16 x 8 pixels, the JSON file says 17 x 8"),
                     ("{" * 300, "expected"), ('{"x": ' + "[" * 300, "nested too deeply"), ("", "an object expected")):
        open("train.json", "w").write(bad)
        run([m, "train", "--epochs", 1, "--no-save", "--no-eval"], status=1, err=err)


def test_names():
    """Names of files with JSON's escapes: characters of one to four bytes."""
    _, text = sets()
    m = build(MODEL % "")
    good = open("train.json").read()
    name = "a/\u00e9 \u20ac\U0001f600.png"
    os.mkdir("in/a")
    shutil.copy("in/a.png", "in/" + name)
    for escaped in (json.dumps(name), json.dumps(name, ensure_ascii=False), json.dumps(name).replace("/", "\\/").upper()
                    .replace("\\U", "\\u").replace("A\\/", "a\\/").replace("PNG", "png")):
        open("train.json", "w").write(good.replace('"a.png"', escaped))
        run([m, "train", "--epochs", 1, "--no-save", "--no-eval"])
    for escaped in ("\\x", "\\u00e", "\\ud83d", "\\ude00", "\\u0000"):
        open("train.json", "w").write(good.replace('"a.png"', '"%s.png"' % escaped))
        run([m, "train", "--epochs", 1, "--no-save", "--no-eval"], status=1, err="an escape that is not one of JSON's")


def test_lists():
    """Two files of a set, with ids of their own, are one behind the other; they agree on categories."""
    _, text = sets()
    m = build((MODEL % "").replace('test = "test.json"', 'test = ["test.json", "more*.json"]'))
    more = {"categories": [{"id": 90}, {"id": 3}, {"id": 18}],
            "images": [{"file_name": "b.png", "id": 7, "width": 8, "height": 8}],
            "annotations": [{"image_id": 7, "category_id": 18, "bbox": [1, 2, 3, 4]},
                            {"image_id": 7, "category_id": 3, "bbox": [0, 0, 0, 4]}]}
    json.dump(more, open("more1.json", "w"))
    json.dump(dict(more, annotations=[]), open("more2.json", "w"))
    run([m, "train", "--steps", 0, "--save", "w.safetensors", "--quiet"])
    args = [m, "infer", "--weights", "w.safetensors", "--data", "."] + [x for n in ("image", "boxes", "labels")
                                                                        for x in ("--output", "%s=%s.npy" % (n, n))]
    run(args, err="note: test data: 1 crowds, 2 boxes without area and 1 beyond the first 3 of an image are left out")
    check(read_npy("labels.npy")[1] == [0, -1, -1, 2, 1, 2, -1, -1, -1, 1, -1, -1, -1, -1, -1], read_npy("labels.npy"))
    check(read_npy("boxes.npy")[1][36:48] == [1, 2, 4, 6] + [0] * 8, read_npy("boxes.npy"))
    image = read_npy("image.npy")[1]
    n = 3 * 8 * 16
    check(image[3 * n:4 * n] == image[2 * n:3 * n] == image[4 * n:], "the images of further files differ")
    json.dump(dict(more, categories=[{"id": 90}, {"id": 3}], annotations=[]), open("more2.json", "w"))
    run(args, status=1, err="more2.json: its categories are not those of the files before it")


TESTS = [test_test_set, test_mirrored_scaled, test_training, test_broken, test_names, test_lists]
