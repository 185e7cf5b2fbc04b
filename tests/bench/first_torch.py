#!/usr/bin/env python3
"""The networks of models/first/ in PyTorch: the same data, recipe and initial distributions.

  first_torch.py convnet|regression|words FOLDER [--seed N] [--epochs N]     trains, prints what the test set says
      after each epoch
  first_torch.py NAME FOLDER --bench STEPS                                   examples a second, the median of three
      measurements

Needs PyTorch and NumPy; FOLDER is what `train --data` of the mantou program reads."""
import argparse
import glob
import math
import os
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def conv_norm(c, channels, k=1, stride=1, groups=1):
    conv = nn.Conv2d(c, channels, k, stride, k // 2, groups=groups, bias=False)
    nn.init.normal_(conv.weight, 0, math.sqrt(2 / (channels * k * k)))
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


def dense(inputs, features):
    layer = nn.Linear(inputs, features)
    nn.init.uniform_(layer.weight, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
    return layer


class Excite(nn.Module):
    def __init__(self, c, reduction=4):
        super().__init__()
        self.part = nn.Sequential(dense(c, c // reduction), nn.ReLU(), dense(c // reduction, c), nn.Sigmoid())

    def forward(self, x):
        return x * self.part(x.mean((2, 3)))[:, :, None, None]


class Separable(nn.Module):
    def __init__(self, c, channels, stride=1):
        super().__init__()
        self.part = nn.Sequential(conv_norm(c, c, 3, stride, c), nn.SiLU(), Excite(c), conv_norm(c, channels))
        self.add = stride == 1 and c == channels

    def forward(self, x):
        return x + self.part(x) if self.add else self.part(x)


class Convnet(nn.Module):
    batch, epochs, warmup, peak, decay, every_weight = 64, 5, 0.5, 0.003, 0.05, False

    def __init__(self, width=16):
        super().__init__()
        layers, c = [conv_norm(3, width, 3), nn.SiLU()], width
        for channels, stride in (2 * width, 1), (4 * width, 2), (8 * width, 2):
            layers += [Separable(c, channels, stride), Separable(channels, channels)]
            c = channels
        self.body, self.head = nn.Sequential(*layers, nn.SiLU()), nn.Sequential(nn.Dropout(0.1), dense(c, 10))
        self.register_buffer("mean", torch.tensor([125.3, 123.0, 113.9])[:, None, None])
        self.register_buffer("std", torch.tensor([63.0, 62.1, 66.7])[:, None, None])

    def data(self, folder):
        parts = []
        for pattern in "data_batch_*.bin", "test_batch.bin":
            a = np.concatenate([np.fromfile(f, np.uint8).reshape(-1, 3073)
                                for f in sorted(glob.glob(os.path.join(folder, pattern)))])
            parts.append((torch.from_numpy(a[:, 1:].reshape(-1, 3, 32, 32).copy()),
                          torch.from_numpy(a[:, 0].astype(np.int64))))
        return parts

    def optimizer(self, groups):
        return torch.optim.AdamW(groups, self.peak)

    def forward(self, image):
        x = (image.float() - self.mean) / self.std
        if self.training:  # a crop of its own for each image, every other one mirrored
            n = len(x)
            rows = torch.randint(0, 9, (n, 1)) + torch.arange(32)
            columns = torch.randint(0, 9, (n, 1)) + torch.arange(32)
            columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
            x = F.pad(x, (4, 4, 4, 4))[torch.arange(n)[:, None, None], :, rows[:, :, None],
                                       columns[:, None, :]].permute(0, 3, 1, 2)
        return self.head(self.body(x).mean((2, 3)))

    def loss(self, image, label):
        return F.cross_entropy(self(image), label, label_smoothing=0.1)

    def judge(self, image, label):
        right = sum((self(i).argmax(1) == t).sum().item() for i, t in zip(image.split(256), label.split(256)))
        return "accuracy %.4f" % (right / len(label))


class Regression(nn.Module):
    batch, epochs, warmup, peak, decay, every_weight = 128, 30, 0, 0.01, 0, False

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(10), dense(10, 64), nn.SiLU(), dense(64, 64), nn.SiLU(), dense(64, 1))

    def data(self, folder):
        return [tuple(torch.from_numpy(np.load(os.path.join(folder, "%s-%s.npy" % (part, k)))) for k in "xy")
                for part in ("train", "test")]

    def optimizer(self, groups):
        return torch.optim.Adam(groups, self.peak)

    def schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.peak, steps, cycle_momentum=False)

    def forward(self, x):
        return self.body(x).squeeze(1)

    def loss(self, x, y):
        return F.smooth_l1_loss(self(x), y)

    def judge(self, x, y):
        d = self(x) - y
        return "rmse %.4f  r2 %.4f" % (d.square().mean().sqrt(), 1 - d.square().sum() / (y - y.mean()).square().sum())


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.join, self.out = dense(width, 3 * width), dense(width, width)
        self.wide, self.narrow = dense(width, 4 * width), dense(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.join(self.norm(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        p = 0.1 if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p).transpose(1, 2).reshape(n, t, c)
        x = x + F.dropout(self.out(y), 0.1, self.training)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)))), 0.1, self.training)


class Words(nn.Module):
    batch, epochs, warmup, peak, decay, every_weight = 64, 5, 200, 0.001, 0.01, False

    def __init__(self, words=4000, length=24, width=128, heads=4):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, width) * 0.02)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        self.body, self.norm = nn.Sequential(Layer(width, heads), Layer(width, heads)), nn.LayerNorm(width)

    def data(self, folder):
        return [tuple(torch.from_numpy(np.load(os.path.join(folder, part + k + ".npy")).astype(np.int64))
                      for k in ("ids", "next")) for part in ("", "test-")]

    def optimizer(self, groups):
        return torch.optim.AdamW(groups, self.peak)

    def forward(self, ids):
        x = F.dropout(F.embedding(ids, self.table) + self.place, 0.1, self.training)
        return self.norm(self.body(x)) @ self.table.T

    def loss(self, ids, goal):
        return F.cross_entropy(self(ids).flatten(0, 1), goal.flatten(), ignore_index=0)

    def judge(self, ids, goal):
        nats = right = count = 0
        for i, t in zip(ids.split(100), goal.split(100)):
            y = self(i)
            nats += F.cross_entropy(y.flatten(0, 1), t.flatten(), ignore_index=0, reduction="sum").item()
            right += ((y.argmax(2) == t) & (t != 0)).sum().item()
            count += (t != 0).sum().item()
        return "nats %.4f  perplexity %.2f  accuracy %.4f" % (nats / count, math.exp(nats / count), right / count)


def cosine(model, steps_in_epoch, steps):
    warm = round(model.warmup * steps_in_epoch) if model.warmup < 1 else model.warmup
    return lambda t: t / warm if t < warm else (1 + math.cos(math.pi * (t - warm) / max(steps - warm, 1))) / 2


class Run:
    """A model with its data, optimizer and schedule; decay reaches weights of two axes and more."""

    def __init__(self, model, folder, epochs):
        self.model, (self.train, self.test) = model, model.data(folder)
        self.steps = len(self.train[0]) // model.batch
        wide = [p for p in model.parameters() if p.dim() > 1]
        flat = [p for p in model.parameters() if p.dim() < 2]
        self.opt = model.optimizer([{"params": wide, "weight_decay": model.decay}, {"params": flat, "weight_decay": 0}])
        total = self.steps * epochs
        own = getattr(model, "schedule", None)
        self.rate = own(self.opt, total) if own else torch.optim.lr_scheduler.LambdaLR(self.opt,
                                                                                       cosine(model, self.steps, total))
        # models/first/regression.net evaluates the running mean of its weights
        ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
        self.mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=ema) if own else None

    def step(self, at):
        self.model.train()
        loss = self.model.loss(*(a[at] for a in self.train))
        self.opt.zero_grad()
        loss.backward()
        if isinstance(self.model, Words):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1)
        self.opt.step()
        self.rate.step()
        if self.mean:
            self.mean.update_parameters(self.model)
        return loss

    def judge(self):
        model = self.model
        if self.mean:  # running statistics of batch_norm are the model's own
            model = self.mean.module
            for a, b in zip(model.buffers(), self.model.buffers()):
                a.copy_(b)
        model.eval()
        with torch.no_grad():
            return model.judge(*self.test)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=["convnet", "regression", "words"])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bench", type=int, metavar="STEPS")
    o = parser.parse_args()
    torch.manual_seed(o.seed)
    torch.set_num_threads(o.threads)
    model = {"convnet": Convnet, "regression": Regression, "words": Words}[o.name]()
    run = Run(model, o.folder, 10 ** 4 if o.bench else o.epochs or model.epochs)
    print("%d parameters, PyTorch %s, %d threads" % (sum(p.numel() for p in model.parameters()), torch.__version__,
                                                     o.threads))
    if o.bench:
        speeds = []
        for repeat in range(4):  # the first one warms up
            start = time.perf_counter()
            for _ in range(o.bench):
                run.step(torch.randint(0, len(run.train[0]), (model.batch,)))
            speeds.append(o.bench * model.batch / (time.perf_counter() - start))
        print("%.1f examples/s" % statistics.median(speeds[1:]))
        return
    for epoch in range(o.epochs or model.epochs):
        start, losses = time.perf_counter(), []
        for at in torch.randperm(len(run.train[0]))[:run.steps * model.batch].split(model.batch):
            losses.append(run.step(at).item())
        seconds = time.perf_counter() - start
        print("epoch %d  loss %.4f  %.1f s  %s" % (epoch + 1, statistics.mean(losses), seconds, run.judge()),
              flush=True)


if __name__ == "__main__":
    main()
