"""The models of models/*.net in PyTorch, for comparisons: same layers, same optimizer, random data of the same shapes."""
import torch
from torch import nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a, self.an = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.b, self.bn = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c, self.cn = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.an(self.a(x)), inplace=True)
        y = F.relu(self.bn(self.b(y)), inplace=True)
        return F.relu(self.cn(self.c(y)) + self.shortcut(x), inplace=True)


class Basic(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a, self.an = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.b, self.bn = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.an(self.a(x)), inplace=True)
        return F.relu(self.bn(self.b(y)) + self.shortcut(x), inplace=True)


def resnet(block, expansion, stem, stages, classes):
    layers, inputs = list(stem[0]), stem[1]
    for width, depth, stride in stages:
        for i in range(depth):
            layers.append(block(inputs, width, stride if i == 0 else 1))
            inputs = expansion * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def conv_bn_relu(inputs, channels, k, stride):
    return [nn.Conv2d(inputs, channels, k, stride, k // 2, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def vgg(widths, norm, head):
    layers, inputs = [], 3
    for group in widths:
        for width in group:
            layers += [nn.Conv2d(inputs, width, 3, 1, 1, bias=not norm)] + ([nn.BatchNorm2d(width)] if norm else []) + [nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *head)


class Lstm(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(256, 64), nn.LSTM(64, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = F.dropout(self.a(self.table(ids))[0], 0.2, self.training)
        return self.head(F.dropout(self.b(x)[0], 0.2, self.training))


class Recurrent(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, num_layers=2, batch_first=True), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Attention(nn.Module):
    def __init__(self, width, heads, causal, p):
        super().__init__()
        self.heads, self.causal, self.p = heads, causal, p
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        n, t, c = x.shape
        cut = lambda y: y.view(n, t, self.heads, c // self.heads).transpose(1, 2)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(cut(self.query(x)), cut(self.key(x)), cut(self.value(x)), dropout_p=p, is_causal=self.causal)
        return F.dropout(self.merge(y.transpose(1, 2).reshape(n, t, c)), 0.1, self.training)


class Transformer(nn.Module):
    """gpt-bytes (normalisation first, causal) and bert (normalisation last, a transform before the tied output)."""

    def __init__(self, vocab, width, heads, depth, length, causal):
        super().__init__()
        self.causal = causal
        self.table, self.place = nn.Embedding(vocab, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.attention = nn.ModuleList(Attention(width, heads, causal, 0.0 if causal else 0.1) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        if not causal:
            self.transform, self.first, self.bias = nn.Linear(width, width), nn.LayerNorm(width), nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        x = self.table(ids) + self.place
        if not self.causal:
            x = self.first(x)
        x = F.dropout(x, 0.1, self.training)
        for i, (attention, inner) in enumerate(zip(self.attention, self.inner)):
            a, b = self.norms[2 * i], self.norms[2 * i + 1]
            if self.causal:
                x = x + attention(a(x))
                x = x + inner(b(x))
            else:
                x = a(x + attention(x))
                x = b(x + inner(x))
        if self.causal:
            return F.linear(self.norms[-1](x), self.table.weight)
        return F.linear(self.norms[-1](F.gelu(self.transform(x))), self.table.weight, self.bias)


class Inverted(nn.Module):
    def __init__(self, inputs, grow, channels, stride):
        super().__init__()
        wide = inputs * grow
        self.adds = stride == 1 and inputs == channels
        self.f = nn.Sequential(
            *([nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)] if grow > 1 else []),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return x + self.f(x) if self.adds else self.f(x)


def mobilenetv2():
    layers, inputs = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)], 32
    for grow, channels, n, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                      (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(n):
            layers.append(Inverted(inputs, grow, channels, stride if i == 0 else 1))
            inputs = channels
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Grouped(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a, self.an = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.b, self.bn = nn.Conv2d(width, width, 3, stride, 1, groups=32, bias=False), nn.BatchNorm2d(width)
        self.c, self.cn = nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 2 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 2 * width, 1, stride, bias=False), nn.BatchNorm2d(2 * width))

    forward = Bottleneck.forward


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        two = lambda i, c: nn.Sequential(*conv_bn_relu(i, c, 3, 1), *conv_bn_relu(c, c, 3, 1))
        self.down = nn.ModuleList([two(3, 64), two(64, 128), two(128, 256), two(256, 512)])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (256, 128, 64))
        self.after = nn.ModuleList(two(2 * c, c) for c in (256, 128, 64))
        self.map = nn.Conv2d(64, 10, 1)

    def forward(self, x):
        kept = []
        for i, f in enumerate(self.down):
            x = f(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i, (up, after) in enumerate(zip(self.up, self.after)):
            x = after(torch.cat([kept[2 - i], up(x)], 1))
        return self.map(x).mean((2, 3))


VGG16 = [[64, 64], [128, 128], [256, 256, 256], [512, 512, 512], [512, 512, 512]]


def image(size, classes):
    return lambda n: (torch.rand(n, 3, size, size), torch.randint(classes, (n,)))


def text(vocab, length, share=1.0):
    """share: of the tokens that count in the loss."""
    def make(n):
        ids = torch.randint(vocab, (n, length))
        target = torch.where(torch.rand(n, length) < share, torch.randint(vocab, (n, length)), torch.tensor(-100))
        return ids, target
    return make


def sgd(parameters, rate=0.01, decay=1e-4):
    try:
        return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay, fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay, foreach=True)


def adamw(parameters):
    try:
        return torch.optim.AdamW(parameters, 1e-4, fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(parameters, 1e-4, foreach=True)


# name: (batch of the .net file, network, data of n examples, optimizer, images)
MODELS = {
    "mlp": (64, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)),
            lambda n: (torch.rand(n, 1, 28, 28), torch.randint(10, (n,))), adamw, False),
    "lenet": (64, lambda: nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                                        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
              lambda n: (torch.rand(n, 1, 28, 28), torch.randint(10, (n,))), sgd, False),
    "resnet20-cifar10": (128, lambda: resnet(Basic, 1, (conv_bn_relu(3, 16, 3, 1), 16), [(16, 3, 1), (32, 3, 2), (64, 3, 2)], 10), image(32, 10), sgd, True),
    "resnet50-cifar10": (32, lambda: resnet(Bottleneck, 4, (conv_bn_relu(3, 64, 3, 1), 64), [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)], 10), image(32, 10), sgd, True),
    "resnet50": (16, lambda: resnet(Bottleneck, 4, (conv_bn_relu(3, 64, 7, 2) + [nn.MaxPool2d(3, 2, 1)], 64), [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)], 1000),
                 image(224, 1000), sgd, True),
    "vgg16-cifar10": (64, lambda: vgg(VGG16, True, [nn.Dropout(0.5), nn.Linear(512, 10)]), image(32, 10), sgd, True),
    "vgg16": (16, lambda: vgg(VGG16, False, [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 1000)]),
              image(224, 1000), sgd, True),
    "mobilenetv2": (8, mobilenetv2, image(224, 1000), sgd, True),
    "resnext50": (4, lambda: resnet(Grouped, 2, (conv_bn_relu(3, 64, 7, 2) + [nn.MaxPool2d(3, 2, 1)], 64),
                                    [(128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)], 1000), image(224, 1000), sgd, True),
    "unet": (4, Unet, image(128, 10), sgd, True),
    "lstm-512": (32, Recurrent, lambda n: (torch.rand(n, 64, 512), torch.randint(10, (n, 64))), adamw, False),
    "lstm-bytes": (32, Lstm, text(256, 64), adamw, False),
    "gpt-bytes": (16, lambda: Transformer(256, 128, 4, 4, 128, True), text(256, 128), adamw, False),
    "bert-base": (8, lambda: Transformer(30522, 768, 12, 12, 128, False), text(30522, 128, 0.15), adamw, False),
}
