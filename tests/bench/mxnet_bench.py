#!/usr/bin/env python3
"""Times training or inference of resnet50-cifar10 in MXNet's gluon, hybridized with static memory: the layers and
optimizer of models/resnet50-cifar10.net, one random batch held in memory. Needs mxnet 1.9.1 with numpy 1.23.

  mxnet_bench.py resnet50-cifar10 [--mode train|infer] [--batch N] [--warmup 20] [--steps 100] [--repeat 3] [--serve]
"""
import sampling  # first: it takes the time of the start

import os

ARGS = sampling.options(__doc__).parse_args()
if ARGS.threads:
    os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)

import mxnet as mx  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402
from mxnet.gluon import nn  # noqa: E402


class Bottleneck(gluon.HybridBlock):
    def __init__(self, inputs, width, stride):
        super().__init__()
        with self.name_scope():
            self.body, self.shortcut = nn.HybridSequential(), nn.HybridSequential()
            conv_bn(self.body, width, 1, 1)
            self.body.add(nn.Activation("relu"))
            conv_bn(self.body, width, 3, stride)
            self.body.add(nn.Activation("relu"))
            conv_bn(self.body, 4 * width, 1, 1)
            if stride != 1 or inputs != 4 * width:
                conv_bn(self.shortcut, 4 * width, 1, stride)

    def hybrid_forward(self, F, x):
        return F.Activation(self.body(x) + (self.shortcut(x) if len(self.shortcut) else x), act_type="relu")


def conv_bn(to, channels, k, stride):
    to.add(nn.Conv2D(channels, k, stride, k // 2, use_bias=False), nn.BatchNorm())


def resnet50_cifar10():
    net, inputs = nn.HybridSequential(), 64
    conv_bn(net, 64, 3, 1)
    net.add(nn.Activation("relu"))
    for width, depth, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(depth):
            net.add(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return net


def main(a):
    if a.model != "resnet50-cifar10":
        raise SystemExit("mxnet_bench.py: only resnet50-cifar10 is written for MXNet")
    n = a.batch or 32
    net = resnet50_cifar10()
    net.initialize(mx.init.MSRAPrelu(slope=0))
    net.hybridize(static_alloc=True, static_shape=True)
    x, label = mx.nd.random.uniform(shape=(n, 3, 32, 32)), mx.nd.array([i % 10 for i in range(n)])
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    loss_of.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4},
                            kvstore=None)

    def train():
        with autograd.record():
            loss = loss_of(net(x), label)
        loss.backward()
        trainer.step(n)
        return loss.mean().asscalar()  # ours reads the loss of every step too

    def infer():
        return net(x).wait_to_read()

    sampling.run(a, n, train if a.mode == "train" else infer,
                 {"model": a.model, "target": "mxnet " + mx.__version__, "precision": "f32",
                  "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))},
                 finish=mx.nd.waitall)  # its engine is asynchronous: a loss that is read says nothing of the update


if __name__ == "__main__":
    main(ARGS)
