#!/usr/bin/env python3
"""Times what torchvision's users read photographs with, as torch_bench.py times PyTorch: Pillow decodes, a random crop
is scaled to 224 x 224 and mirrored.

  reader_bench.py photographs --mode reader --data FOLDER [--batch 32] [--steps 20] [--threads N] [--serve]
      FOLDER has list.txt, lines `path label`

One thread makes its images in this process; more are as many workers of a DataLoader."""
import sampling  # first: it takes the time of the start

import os

import torch
import torchvision
from PIL import Image
from torchvision import transforms

OPTIONS = sampling.options(__doc__)
OPTIONS.add_argument("--data", required=True)


class Photographs(torch.utils.data.Dataset):
    def __init__(self, folder):
        with open(os.path.join(folder, "list.txt")) as f:
            self.files = [os.path.join(folder, line.rsplit(None, 1)[0]) for line in f if line.strip()]
        self.make = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
                                        transforms.PILToTensor()])

    def __len__(self):
        return 1 << 40

    def __getitem__(self, i):
        return self.make(Image.open(self.files[i % len(self.files)]).convert("RGB"))


def main(a):
    n, threads = a.batch or 32, a.threads or 1
    torch.set_num_threads(1)
    photographs = Photographs(a.data)
    batches = iter(torch.utils.data.DataLoader(photographs, n, sampler=iter(range(1 << 40)), num_workers=threads
                                               if threads > 1 else 0))
    sampling.run(a, n, lambda: next(batches), {"model": a.model, "target": "torchvision " + torchvision.__version__,
                                               "precision": "u8", "threads": threads})


if __name__ == "__main__":
    main(OPTIONS.parse_args())
