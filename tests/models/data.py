"""data.py FOLDER: small data sets for the tiny versions of models: bright squares of two sizes, a class each, as .npy
and as COCO's JSON with images; sentences and themselves backwards (words/); words that come in groups of four
(words.txt.gz), as text of bytes too (train.txt, test.txt); films that users take or not by their number (films/); the
squares with their boxes in Pascal VOC's XML (voc/); coloured images in CIFAR-10's form. Needs NumPy; the same bytes on
every run."""
import gzip
import json
import os
import random
import struct
import sys
import zlib

import numpy as np

MOST, IMAGES = 6, 16


def squares(rng):
    image = np.zeros((IMAGES, 1, 128, 128), np.uint8)
    boxes, labels = np.zeros((IMAGES, MOST, 4), np.float32), np.full((IMAGES, MOST), -1, np.int32)
    for i in range(IMAGES):
        for k in range(2):
            size = (20, 40)[k]
            x, y = rng.integers(0, 64 - size // 2) + 64 * k, rng.integers(0, 128 - size)
            x = min(x, 128 - size)
            image[i, 0, y:y + size, x:x + size] = 200
            boxes[i, k], labels[i, k] = (x, y, x + size, y + size), k
    return image, boxes, labels


def png(path, grey):
    """Three equal channels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + r.tobytes() for r in np.repeat(grey[:, :, None], 3, 2))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 2, 0, 0,
                                                                  0)) + chunk(b"IDAT", zlib.compress(rows))
                                                                  + chunk(b"IEND", b""))


def coco(folder, image, boxes, labels):
    """The names that faster-rcnn.net reads; half of the images."""
    for part in "train2017", "val2017":
        os.makedirs(os.path.join(folder, part))
        images, marks = [], []
        for i in range(IMAGES // 2):
            name = "%d.png" % i
            png(os.path.join(folder, part, name), image[i, 0])
            images.append({"id": i, "file_name": name, "width": 128, "height": 128})
            for box, label in zip(boxes[i], labels[i]):
                if label >= 0:
                    x1, y1, x2, y2 = map(float, box)
                    marks.append({"image_id": i, "category_id": int(label) + 1, "bbox": [x1, y1, x2 - x1, y2 - y1]})
        with open(os.path.join(folder, "instances_%s.json" % part), "w") as f:
            json.dump({"images": images, "annotations": marks, "categories": [{"id": k + 1} for k in range(5)]}, f)


def voc(folder, image, boxes, labels):
    """One list after the other takes a third of the images."""
    for at in "Annotations", "ImageSets/Main", "JPEGImages":
        os.makedirs(os.path.join(folder, at))
    for i in range(IMAGES):
        png(os.path.join(folder, "JPEGImages", "%d.png" % i), image[i, 0])
        marks = "".join(
            "<object><name>%s</name><bndbox><xmin>%d</xmin><ymin>%d</ymin><xmax>%d</xmax><ymax>%d</ymax></bndbox>"
            "</object>" % (("small", "large")[k], x1 + 1, y1 + 1, x2, y2)
            for (x1, y1, x2, y2), k in zip(boxes[i], labels[i]) if k >= 0)
        with open(os.path.join(folder, "Annotations", "%d.xml" % i), "w") as f:
            f.write("<annotation><filename>%d.png</filename><size><width>128</width><height>128</height></size>%s"
                    "</annotation>" % (i, marks))
    for k, part in enumerate(("train", "val", "test")):
        with open(os.path.join(folder, "ImageSets", "Main", part + ".txt"), "w") as f:
            f.write("".join("%d\n" % i for i in range(k, IMAGES, 3)))


def sentences(rng):
    source = rng.integers(3, 30, (16, 6)).astype(np.int32)
    label = source[:, ::-1].copy()
    return {"source": source, "count": np.full(16, 6, np.int32),
            "target": np.concatenate([np.ones((16, 1), np.int32), label[:, :-1]], 1), "label": label}


def groups():
    rng, words = random.Random(1), []
    for _ in range(4000):
        k = rng.randrange(5)
        words += rng.sample(["w%d" % (4 * k + j) for j in range(4)], 4)
    return " ".join(words)


def films(folder):
    """User u takes film f where their sum is even."""
    os.makedirs(folder)
    for part in "train", "test":
        user, film = np.repeat(np.arange(8, dtype=np.int32), 8), np.tile(np.arange(8, dtype=np.int32), 8)
        order = np.random.default_rng(2).permutation(64)
        for name, a in ("user", user), ("film", film), ("taken", ((user + film) % 2 == 0).astype(np.float32)):
            np.save(os.path.join(folder, "%s-%s.npy" % (part, name)), a[order])


def cifar(folder, rng):
    """Two of the ten classes: dark ones and red ones, in noise."""
    for name in "data_batch_1.bin", "test_batch.bin":
        label = np.arange(40, dtype=np.uint8) % 2
        image = rng.integers(0, 60, (40, 3, 1024)).astype(np.uint8)
        image[:, 0] += 180 * label[:, None]
        with open(os.path.join(folder, name), "wb") as f:
            f.write(np.concatenate([label[:, None], image.reshape(40, 3072)], 1).tobytes())


def main(folder):
    rng = np.random.default_rng(1)
    image, boxes, labels = squares(rng)
    coco(folder, image, boxes, labels)
    voc(os.path.join(folder, "voc"), image, boxes, labels)
    os.makedirs(os.path.join(folder, "words"))
    files = {"image": image, "boxes": boxes, "labels": labels}
    files.update(("words/" + k, a) for k, a in sentences(rng).items())
    for name, a in files.items():
        for part in "train", "test":
            at, base = os.path.split(name)
            np.save(os.path.join(folder, at, "%s-%s.npy" % (part, base)), a)
    with gzip.open(os.path.join(folder, "words.txt.gz"), "wt") as f:
        f.write(groups())
    for part in "train", "test":
        with open(os.path.join(folder, part + ".txt"), "w") as f:
            f.write(groups()[:8000])
    films(os.path.join(folder, "films"))
    cifar(folder, rng)


if __name__ == "__main__":
    main(sys.argv[1])
