"""The models of models/*.net in PyTorch, for comparisons: same layers, same optimizer, random data of the same
shapes."""
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
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False),
                                          nn.BatchNorm2d(4 * width))

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
            layers += [nn.Conv2d(inputs, width, 3, 1, 1, bias=not norm)] + ([nn.BatchNorm2d(width)] if norm
                                                                            else []) + [nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *head)


class Lstm(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(256, 64), nn.LSTM(64, width,
                                                                    batch_first=True), nn.LSTM(
                                                                        width, width, batch_first=True)
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
    def __init__(self, width, heads, causal, p, after=0.1):
        super().__init__()
        self.heads, self.causal, self.p, self.after = heads, causal, p, after
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        n, t, c = x.shape
        cut = lambda y: y.view(n, t, self.heads, c // self.heads).transpose(1, 2)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(cut(self.query(x)), cut(self.key(x)), cut(self.value(x)), dropout_p=p,
                                           is_causal=self.causal)
        return F.dropout(self.merge(y.transpose(1, 2).reshape(n, t, c)), self.after, self.training)


class Transformer(nn.Module):
    """gpt-bytes (normalisation first, causal) and bert (normalisation last, a transform before the tied output)."""

    def __init__(self, vocab, width, heads, depth, length, causal):
        super().__init__()
        self.causal = causal
        self.table, self.place = nn.Embedding(vocab, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.attention = nn.ModuleList(Attention(width, heads, causal, 0.0 if causal else 0.1) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                                                 nn.Dropout(0.1)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        if not causal:
            self.transform, self.first, self.bias = nn.Linear(width,
                                                              width), nn.LayerNorm(width), nn.Parameter(
                                                                  torch.zeros(vocab))

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
            *([nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)] if grow > 1
              else []),
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
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 2 * width, 1, stride, bias=False),
                                          nn.BatchNorm2d(2 * width))

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


class Excite(nn.Module):
    """Squeeze and excitation (Hu et al. 2017)."""

    def __init__(self, channels, inner, inside, outside):
        super().__init__()
        self.f = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), inside(),
                               nn.Conv2d(inner, channels, 1), outside())

    def forward(self, x):
        return x * self.f(x)


class Excited(nn.Module):
    """The layer of EfficientNet and MobileNetV3: wide, depthwise, squeeze and excitation, narrow. inner: 0 without."""

    def __init__(self, inputs, wide, k, channels, stride, inner, act, inside, outside):
        super().__init__()
        self.adds = stride == 1 and inputs == channels
        self.f = nn.Sequential(
            *([nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), act(inplace=True)] if wide != inputs
              else []),
            nn.Conv2d(wide, wide, k, stride, k // 2, groups=wide, bias=False), nn.BatchNorm2d(wide), act(inplace=True),
            *([Excite(wide, inner, inside, outside)] if inner else []),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return x + self.f(x) if self.adds else self.f(x)


def efficientnet():
    layers, inputs = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(inplace=True)], 32
    for grow, k, channels, n, stride in [(1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2),
                                         (6, 5, 112, 3, 1),
                                         (6, 5, 192, 4, 2), (6, 3, 320, 1, 1)]:
        for i in range(n):
            layers.append(Excited(inputs, grow * inputs, k, channels, stride if i == 0 else 1, inputs // 4, nn.SiLU,
                                  nn.SiLU, nn.Sigmoid))
            inputs = channels
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))


def mobilenetv3():
    layers, inputs = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True)], 16
    for k, wide, channels, inner, swish, stride in [
            (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 24, 0, 2),
            (5, 120, 40, 32, 0, 1), (5, 120, 40, 32, 0, 1),
            (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
            (3, 480, 112, 120, 1, 1), (3, 672, 112, 168, 1, 1),
            (5, 672, 160, 168, 1, 2), (5, 960, 160, 240, 1, 1), (5, 960, 160, 240, 1, 1)]:
        layers.append(Excited(inputs, wide, k, channels, stride, inner, nn.Hardswish if swish else nn.ReLU, nn.ReLU,
                              nn.Hardsigmoid))
        inputs = channels
    layers += [nn.Conv2d(160, 960, 1, bias=False), nn.BatchNorm2d(960), nn.Hardswish(inplace=True),
               nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1280, 1000))


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2; with a stride both halves see all channels."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        half = channels // 2
        first = half if stride == 1 else inputs
        self.right = nn.Sequential(nn.Conv2d(first, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
                                   nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), nn.BatchNorm2d(half),
                                   nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True))
        self.left = None if stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True))

    def forward(self, x):
        if self.left is None:
            a, b = x.chunk(2, 1)
        else:
            a, b = self.left(x), x
        return F.channel_shuffle(torch.cat([a, self.right(b)], 1), 2)


def shufflenet():
    layers, inputs = conv_bn_relu(3, 24, 3, 2) + [nn.MaxPool2d(3, 2, 1)], 24
    for channels, n in [(116, 4), (232, 8), (464, 4)]:
        for i in range(n):
            layers.append(Shuffled(inputs, channels, 2 if i == 0 else 1))
            inputs = channels
    return nn.Sequential(*layers, *conv_bn_relu(464, 1024, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(1024, 1000))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.depth, self.norm, self.scale = nn.Conv2d(c, c, 7, 1, 3,
                                                      groups=c), nn.LayerNorm(c,
                                                                              1e-6), nn.Parameter(
                                                                                  torch.full((c,), 1e-6))
        self.f = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x):
        return x + (self.f(self.norm(self.depth(x).permute(0, 2, 3, 1))) * self.scale).permute(0, 3, 1, 2)


def convnext():
    layers, inputs = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, 1e-6)], 96
    for c, n in [(96, 3), (192, 3), (384, 9), (768, 3)]:
        if c != inputs:
            layers += [ChannelNorm(inputs, 1e-6), nn.Conv2d(inputs, c, 2, 2)]
        layers += [ConvNextLayer(c) for _ in range(n)]
        inputs = c
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, 1e-6), nn.Linear(768, 1000))


class Dense(nn.Module):
    """A layer of DenseNet; what it has read stands before what it has made."""

    def __init__(self, inputs, growth):
        super().__init__()
        self.f = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True),
                               nn.Conv2d(inputs, 4 * growth, 1, bias=False),
                               nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True),
                               nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False))

    def forward(self, x):
        return torch.cat([x, self.f(x)], 1)


def densenet121():
    layers, inputs = conv_bn_relu(3, 64, 7, 2) + [nn.MaxPool2d(3, 2, 1)], 64
    for i, n in enumerate([6, 12, 24, 16]):
        if i:
            layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, inputs // 2, 1, bias=False),
                       nn.AvgPool2d(2)]
            inputs //= 2
        layers += [Dense(inputs + 32 * j, 32) for j in range(n)]
        inputs += 32 * n
    return nn.Sequential(*layers, nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(inputs, 1000))


class Vit(nn.Module):
    def __init__(self, width=384, heads=6, depth=12):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 16, 16), nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(197, width) * 0.02)
        self.attention = nn.ModuleList(Attention(width, heads, False, 0.0, 0.0) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                   for _ in range(depth))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1)), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        for i, (attention, inner) in enumerate(zip(self.attention, self.inner)):
            x = x + attention(self.norms[2 * i](x))
            x = x + inner(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x)[:, 0])


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                  nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
        self.code = nn.Sequential(nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 4096), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1),
                                nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x):
        return self.up(self.code(self.down(x).flatten(1)).view(-1, 64, 8, 8)).mean((1, 2))


def cnn5():
    conv = lambda a, b, k, d=1: [nn.Conv2d(a, b, k, 1, d * (k // 2), d), nn.ReLU(inplace=True)]
    return nn.Sequential(*conv(3, 20, 7), *conv(20, 20, 5), nn.MaxPool2d(2), *conv(20, 50, 5), *conv(50, 50, 5),
                         nn.MaxPool2d(2),
                         *conv(50, 100, 5), *conv(100, 100, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3600, 200),
                         nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 10))


class Gru(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.table, self.gru, self.head = nn.Embedding(1000, 128), nn.GRU(128, width, num_layers=2,
                                                                          batch_first=True), nn.Linear(width, 1000)

    def forward(self, ids):
        return self.head(self.gru(self.table(ids))[0])


class Upsample(nn.Module):
    def __init__(self):
        super().__init__()
        one = lambda a, b: [nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.GroupNorm(8, b), nn.LeakyReLU(0.01, inplace=True)]
        two = lambda a, b: nn.Sequential(*one(a, b), *one(b, b))
        self.down = nn.ModuleList([two(3, 40), two(40, 80), two(80, 160)])
        self.after = nn.ModuleList([two(240, 80), two(120, 40)])
        self.map = nn.Conv2d(40, 10, 1)

    def forward(self, x):
        kept = []
        for i, f in enumerate(self.down):
            x = f(F.avg_pool2d(x, 2) if i else x)
            kept.append(x)
        for i, after in enumerate(self.after):
            skip = kept[1 - i]
            x = after(torch.cat([skip, F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)], 1))
        return self.map(x).mean((2, 3))


class Wavenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.reach, many = [2**i for i in range(10)], lambda f: nn.ModuleList(f(d) for d in self.reach)
        self.table, self.first = nn.Embedding(256, 48), nn.Conv1d(48, 96, 1)
        self.gate, self.value = many(lambda d: nn.Conv1d(48, 48, 2,
                                                         dilation=d)), many(lambda d: nn.Conv1d(48, 48, 2, dilation=d))
        self.skip, self.next = many(lambda d: nn.Conv1d(48, 96, 1)), many(lambda d: nn.Conv1d(48, 48, 1))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(96, 96, 1), nn.ReLU(), nn.Conv1d(96, 256, 1))

    def forward(self, ids):
        x = self.table(ids).transpose(1, 2)
        sums = self.first(x)
        for i, d in enumerate(self.reach):
            y = F.pad(x, (d, 0))
            z = torch.tanh(self.value[i](y)) * torch.sigmoid(self.gate[i](y))
            sums, x = sums + self.skip[i](z), x + self.next[i](z)
        return self.head(sums).transpose(1, 2)


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        unit = lambda a, b, k: [nn.Conv1d(a, b, k, padding=k // 2, bias=False), nn.BatchNorm1d(b),
                                nn.ReLU(inplace=True)]
        self.first = nn.Sequential(*unit(80, 256, 5), *unit(256, 256, 5), *unit(256, 256, 5))
        self.inner = nn.ModuleList(nn.Sequential(nn.Conv1d(256, 512, 9, padding=4), nn.ReLU(inplace=True),
                                                 nn.Conv1d(512, 256, 1)) for _ in range(3))
        self.last = nn.Sequential(*unit(256, 256, 5), *unit(256, 256, 5), *unit(256, 256, 5))
        self.head = nn.Linear(256, 50)

    def forward(self, x):
        x = self.first(x)
        for layer in self.inner:
            x = x + layer(x)
        return self.head(self.last(x).mean(2))


class Dcgan(nn.Module):
    def __init__(self):
        super().__init__()
        down = lambda a, b, k: [nn.Conv2d(a, b, k, 2, (k - 1) // 2, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        up = lambda a, b: [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        self.all = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), *down(64, 128, 4), *down(128, 256, 5),
                                 *up(256, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
        self.head = nn.Linear(192, 10)

    def forward(self, x):
        return self.head(self.all(x).mean(2).flatten(1))


class Pointnet(nn.Module):
    def __init__(self):
        super().__init__()
        one = lambda a, b: [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(inplace=True)]
        self.points = nn.Sequential(*one(3, 64), *one(64, 64), *one(64, 128), *one(128, 512))
        self.head = nn.Sequential(nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True), nn.Linear(256, 40))

    def forward(self, x):
        return self.head(self.points(x).amax(2))


class Longrow(nn.Module):
    """QuartzNet's blocks: depthwise filters of many taps."""

    def __init__(self):
        super().__init__()
        taps = lambda a, b, k, stride=1, d=1: nn.Sequential(
            nn.Conv1d(a, a, k, stride, d * (k // 2), d, groups=a, bias=False), nn.Conv1d(a, b, 1, bias=False),
            nn.BatchNorm1d(b))
        rows = [(256, 256, 33), (256, 256, 39), (256, 256, 51), (256, 512, 63), (512, 512, 75)]
        relu = lambda: nn.ReLU(inplace=True)
        self.stem = nn.Sequential(taps(64, 256, 33, 2), relu())
        self.main = nn.ModuleList(nn.Sequential(taps(a, b, k), relu(), taps(b, b, k), relu(), taps(b, b, k))
                                  for a, b, k in rows)
        self.side = nn.ModuleList(nn.Sequential(nn.Conv1d(a, b, 1, bias=False), nn.BatchNorm1d(b)) for a, b, _ in rows)
        self.head = nn.Sequential(taps(512, 512, 87, 1, 2), relu(), nn.Conv1d(512, 512, 1), nn.BatchNorm1d(512), relu(),
                                  nn.Conv1d(512, 29, 1))

    def forward(self, x):
        x = self.stem(x)
        for main, side in zip(self.main, self.side):
            x = F.relu(main(x) + side(x), inplace=True)
        return self.head(x).transpose(1, 2)


def board():
    return nn.Sequential(*conv_bn_relu(17, 96, 3, 1), *[Basic(96, 96, 1) for _ in range(5)], *conv_bn_relu(96, 2, 1, 1),
                         nn.Flatten(), nn.Linear(722, 362))


class Dense12(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.a, self.b = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 48, 1, bias=False)
        self.c, self.d = nn.BatchNorm2d(48), nn.Conv2d(48, 12, 3, 1, 1, bias=False)

    def forward(self, x):
        h = self.b(F.relu(self.a(x), inplace=True))
        return torch.cat([x, self.d(F.relu(self.c(h), inplace=True))], 1)


def densenetbc():
    layers, c = [nn.Conv2d(3, 24, 3, 2, 1, bias=False)], 24
    for i in range(3):
        if i:
            layers += [nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.Conv2d(c, c // 2, 1, bias=False), nn.AvgPool2d(2)]
            c //= 2
        layers += [Dense12(c + 12 * k) for k in range(8)]
        c += 96
    return nn.Sequential(*layers, nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(c, 100))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(inplace=True), nn.Conv2d(c, c, 3, 1, 1))

    def forward(self, x):
        return x + self.f(x)


class Subpixel(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body = nn.Conv2d(3, 20, 5, 1, 2), nn.Sequential(*[Residual(20) for _ in range(4)])
        self.up = nn.Sequential(nn.Conv2d(20, 80, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(20, 10, 3, 1, 1))

    def forward(self, x):
        x = self.first(x)
        return self.up(x + self.body(x)).mean((2, 3))


class Atrous(nn.Module):
    def __init__(self):
        super().__init__()
        unit = lambda a, b, k, d: nn.Sequential(nn.Conv2d(a, b, k, 1, d * (k - 1) // 2, d, bias=False),
                                                nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        self.trunk = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                                   nn.MaxPool2d(3, 2, 1), unit(64, 128, 3, 1), unit(128, 128, 3, 2),
                                   unit(128, 256, 3, 4))
        self.pyramid = nn.ModuleList([unit(256, 96, 1, 1)] + [unit(256, 96, 3, d) for d in (3, 6, 9)])
        self.join, self.head = unit(384, 128, 1, 1), nn.Linear(128, 20)

    def forward(self, x):
        x = self.trunk(x)
        return self.head(self.join(torch.cat([f(x) for f in self.pyramid], 1)).mean((2, 3)))


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
    "mlp": (64, lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2),
                                      nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)),
            lambda n: (torch.rand(n, 1, 28, 28), torch.randint(10, (n,))), adamw, False),
    "lenet": (64, lambda: nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5),
                                        nn.ReLU(), nn.MaxPool2d(2),
                                        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                                        nn.Linear(84, 10)),
              lambda n: (torch.rand(n, 1, 28, 28), torch.randint(10, (n,))), sgd, False),
    "resnet20-cifar10": (128, lambda: resnet(Basic, 1, (conv_bn_relu(3, 16, 3, 1), 16),
                                             [(16, 3, 1), (32, 3, 2), (64, 3, 2)], 10), image(32, 10), sgd, True),
    "resnet50-cifar10": (32, lambda: resnet(Bottleneck, 4, (conv_bn_relu(3, 64, 3, 1), 64),
                                            [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)], 10), image(32, 10),
                                            sgd, True),
    "resnet50": (16, lambda: resnet(Bottleneck, 4, (conv_bn_relu(3, 64, 7, 2) + [nn.MaxPool2d(3, 2, 1)], 64),
                                    [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)], 1000),
                 image(224, 1000), sgd, True),
    "vgg16-cifar10": (64, lambda: vgg(VGG16, True, [nn.Dropout(0.5), nn.Linear(512, 10)]), image(32, 10), sgd, True),
    "vgg16": (16, lambda: vgg(VGG16, False, [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096),
                                             nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 1000)]),
              image(224, 1000), sgd, True),
    "mobilenetv2": (8, mobilenetv2, image(224, 1000), sgd, True),
    "resnext50": (4, lambda: resnet(Grouped, 2, (conv_bn_relu(3, 64, 7, 2) + [nn.MaxPool2d(3, 2, 1)], 64),
                                    [(128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)], 1000), image(224, 1000), sgd,
                                    True),
    "unet": (4, Unet, image(128, 10), sgd, True),
    "efficientnet": (8, efficientnet, image(224, 1000), sgd, True),
    "mobilenetv3": (8, mobilenetv3, image(224, 1000), sgd, True),
    "shufflenet": (16, shufflenet, image(224, 1000), sgd, True),
    "densenet121": (4, densenet121, image(224, 1000), sgd, True),
    "convnext": (4, convnext, image(224, 1000), adamw, True),
    "vit": (8, Vit, image(224, 1000), adamw, True),
    "upsample": (8, Upsample, image(96, 10), adamw, True),
    "wavenet": (4, Wavenet, text(256, 4096), adamw, False),
    "speech": (8, Speech, lambda n: (torch.rand(n, 80, 400), torch.randint(50, (n,))), adamw, False),
    "dcgan": (32, Dcgan, image(64, 10), adamw, True),
    "pointnet": (16, Pointnet, lambda n: (torch.rand(n, 3, 1024), torch.randint(40, (n,))), adamw, False),
    "longrow": (4, Longrow, lambda n: (torch.rand(n, 64, 800), torch.randint(29, (n, 400))), adamw, False),
    "board": (33, board, lambda n: (torch.rand(n, 17, 19, 19), torch.randint(362, (n,))), sgd, True),
    "densenetbc": (7, densenetbc, lambda n: (torch.rand(n, 3, 97, 131), torch.randint(100, (n,))), sgd, True),
    "subpixel": (8, Subpixel, image(96, 10), adamw, True),
    "atrous": (16, Atrous, image(128, 20), sgd, True),
    "wide": (16, lambda: nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                                       nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)),
             lambda n: (torch.rand(n, 4096), torch.randint(1000, (n,))), sgd, False),
    "cnn5": (32, cnn5, image(48, 10), sgd, True),
    "autoencoder": (64, Autoencoder, lambda n: (torch.rand(n, 1, 64, 64), torch.randint(64, (n,))), adamw, True),
    "gru": (32, Gru, text(1000, 48), adamw, False),
    "gpt": (4, lambda: Transformer(8000, 512, 8, 6, 256, True), text(8000, 256), adamw, False),
    "lstm-512": (32, Recurrent, lambda n: (torch.rand(n, 64, 512), torch.randint(10, (n, 64))), adamw, False),
    "lstm-bytes": (32, Lstm, text(256, 64), adamw, False),
    "gpt-bytes": (16, lambda: Transformer(256, 128, 4, 4, 128, True), text(256, 128), adamw, False),
    "bert-base": (8, lambda: Transformer(30522, 768, 12, 12, 128, False), text(30522, 128, 0.15), adamw, False),
}
