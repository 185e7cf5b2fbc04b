#!/usr/bin/env python3
"""Trains ResNet-20 on CIFAR-10's binary files as models/resnet20-cifar10.net does, in PyTorch: the same initial
distributions, rate, decay, crops and flips, with PyTorch's random numbers. Prints a line per epoch. What it is for: the
accuracy that this recipe reaches elsewhere.

  torch_train.py DIR [--epochs 10] [--seed 1] [--threads N]
"""
import argparse
import glob
import math
import os
import time

import torch
import torch.nn.functional as F

from torch_models import MODELS

BATCH, FROM, PEAK, TO, MOMENTUM, DECAY, WARMUP_EPOCHS = 128, 0.01, 0.1, 1e-4, 0.9, 1e-4, 1


def read(pattern):
    """Images [n, 3, 32, 32] normalised as the .net file does, and labels."""
    files = sorted(glob.glob(pattern))
    if not files:
        raise SystemExit("torch_train.py: no file %s" % pattern)
    rows = torch.cat([torch.frombuffer(bytearray(open(f, "rb").read()), dtype=torch.uint8).view(-1, 3073)
                      for f in files])
    mean, std = torch.tensor([125.3, 123.0, 113.9]), torch.tensor([63.0, 62.1, 66.7])
    x = (rows[:, 1:].reshape(-1, 3, 32, 32).float() - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    return x, rows[:, 0].long()


def augment(x):
    """A crop of each image padded by 4, and a flip of every second one by chance."""
    n = len(x)
    padded = F.pad(x, (4, 4, 4, 4))
    row, column = (torch.randint(9, (n, 1)) + torch.arange(32) for _ in range(2))
    x = padded[torch.arange(n)[:, None, None], :, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)
    return torch.where((torch.rand(n) < 0.5)[:, None, None, None], x.flip(3),
                       x).contiguous(memory_format=torch.channels_last)


def rate(t, warmup, total):
    if t < warmup:
        return FROM + (PEAK - FROM) * t / warmup
    return TO + (PEAK - TO) * (1 + math.cos(math.pi * (t - warmup) / (total - warmup))) / 2


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=0)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    images, labels = read(os.path.join(a.dir, "data_batch_*.bin"))
    test_images, test_labels = read(os.path.join(a.dir, "test_batch.bin"))
    net = MODELS["resnet20-cifar10"][1]().to(memory_format=torch.channels_last)
    for m in net.modules():
        if isinstance(m, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    decayed = [w for w in net.parameters() if w.dim() > 1]
    others = [w for w in net.parameters() if w.dim() <= 1]
    opt = torch.optim.SGD([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}], PEAK,
                          momentum=MOMENTUM)
    steps = len(images) // BATCH
    t = 0
    for epoch in range(a.epochs):
        start, losses = time.perf_counter(), 0.0
        net.train()
        order = torch.randperm(len(images))
        for i in range(steps):
            ids = order[i * BATCH:(i + 1) * BATCH]
            for group in opt.param_groups:
                group["lr"] = rate(t, WARMUP_EPOCHS * steps, a.epochs * steps)
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(augment(images[ids])), labels[ids])
            loss.backward()
            opt.step()
            losses += loss.item()
            t += 1
        seconds = time.perf_counter() - start
        net.eval()
        with torch.inference_mode():
            right = sum((net(x).argmax(1) == y).sum().item() for x, y in zip(test_images.split(500),
                                                                             test_labels.split(500)))
        print("epoch %d/%d  loss %.4f  eval accuracy %.4f  %.1f s" % (epoch + 1, a.epochs, losses / steps,
                                                                      right / len(test_labels), seconds), flush=True)


if __name__ == "__main__":
    main()
