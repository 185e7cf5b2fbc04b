#!/usr/bin/env python3
"""Boxes in Pascal VOC's XML to the JSON files that the reader coco takes: voc-data.py VOC FOLDER. Needs nothing but
Python.

For each list NAME.txt of VOC/ImageSets/Main writes FOLDER/NAME.json, and FOLDER/images, a link to VOC/JPEGImages.
Classes get numbers from 1 in the order of their names. VOC counts pixels from 1, to the last one included: xmin - 1,
ymin - 1, xmax, ymax are the edges, cut at those of the image."""
import json
import os
import sys
import xml.etree.ElementTree as ET


def objects(tree):
    """(class, x1, y1, x2, y2) of each box that has an area."""
    width, height = (int(tree.findtext("size/" + k)) for k in ("width", "height"))
    for thing in tree.iter("object"):
        left, top, right, bottom = (float(thing.findtext("bndbox/" + k)) for k in ("xmin", "ymin", "xmax", "ymax"))
        left, top, right, bottom = max(left - 1, 0), max(top - 1, 0), min(right, width), min(bottom, height)
        if right > left and bottom > top:
            yield thing.findtext("name"), left, top, right, bottom


def main(voc, folder):
    lists = os.path.join(voc, "ImageSets", "Main")
    sets = {}
    for name in sorted(os.listdir(lists)):
        if name.endswith(".txt"):
            with open(os.path.join(lists, name)) as f:
                sets[name[:-4]] = sorted(f.read().split())
    trees = {n: ET.parse(os.path.join(voc, "Annotations", n + ".xml")).getroot() for names in sets.values()
             for n in names}
    classes = sorted({thing.findtext("name") for tree in trees.values() for thing in tree.iter("object")})
    os.makedirs(folder, exist_ok=True)
    for part, names in sets.items():
        images, marks = [], []
        for i, n in enumerate(names):
            tree = trees[n]
            images.append({"id": i, "file_name": tree.findtext("filename"), "width": int(tree.findtext("size/width")),
                           "height": int(tree.findtext("size/height"))})
            for kind, x1, y1, x2, y2 in objects(tree):
                marks.append({"id": len(marks), "image_id": i, "category_id": classes.index(kind) + 1,
                              "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0})
        with open(os.path.join(folder, part + ".json"), "w") as f:
            json.dump({"images": images, "annotations": marks,
                       "categories": [{"id": k, "name": c} for k, c in enumerate(classes, 1)]}, f)
        print("%s: %d images, %d boxes" % (part, len(images), len(marks)))
    link = os.path.join(folder, "images")
    if not os.path.lexists(link):
        os.symlink(os.path.abspath(os.path.join(voc, "JPEGImages")), link)
    print("classes: " + ", ".join(classes))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
