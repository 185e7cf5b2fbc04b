"""Models whose step is more than a network and a cross-entropy, in PyTorch and torchvision, for comparisons: random
data, sizes and recipes of models/*.net.

TASKS: name -> function(mode, batch, sizes) -> (examples of a step, the function that runs one step). sizes: what the
row sets by NAME=NUMBER. Detectors are torchvision's own; translation and generation carry states and caches, as a
program that is meant to be fast would."""
import torch
from torch import nn
import torch.nn.functional as F

from torch_models import MODELS


def clipped(parameters, optimizer, loss, clip=0.0):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return loss.item()


# ---------------------------------------------------------------- collaborative filtering
class Ncf(nn.Module):
    def __init__(self, users=943, films=1682, factors=8, width=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, w) for n in (users, films) for w in (factors, width))
        self.inner = nn.Sequential(*[m for a, b in ((64, 64), (64, 32), (32, 16), (16, 8))
                                     for m in (nn.Linear(a, b), nn.ReLU())])
        self.head = nn.Linear(16, 1)

    def forward(self, user, film):
        a, b, c, d = (t(x) for t, x in zip(self.tables, (user, user, film, film)))
        return self.head(torch.cat([a * c, self.inner(torch.cat([b, d], 1))], 1)).squeeze(1)


def ncf(mode, n, sizes):
    net = Ncf()
    user, film, taken = torch.randint(943, (n,)), torch.randint(1682, (n,)), torch.randint(2, (n,)).float()
    if mode == "infer":
        return n, torch.inference_mode()(lambda: net(user, film))
    adam = torch.optim.Adam(net.parameters(), 0.002, fused=True)
    return n, lambda: clipped(None, adam, F.binary_cross_entropy_with_logits(net(user, film), taken))


# ---------------------------------------------------------------- translation
class Gnmt(nn.Module):
    def __init__(self, vocab=4113, w=192):
        super().__init__()
        self.table, self.head = nn.Embedding(vocab, w), nn.Linear(w, vocab)
        self.both, self.second = nn.LSTM(w, w, bidirectional=True,
                                         batch_first=True), nn.LSTM(2 * w, w, batch_first=True)
        self.first, self.last = nn.LSTM(w, w, batch_first=True), nn.LSTM(2 * w, w, batch_first=True)
        self.query, self.key = nn.Linear(w, w, bias=False), nn.Linear(w, w, bias=False)
        self.w, self.g, self.b = nn.Parameter(torch.rand(w) * 0.2 - 0.1), nn.Parameter(torch.ones(1)), nn.Parameter(
            torch.zeros(w))

    def drop(self, x):
        return F.dropout(x, 0.2, self.training)

    def encode(self, source, count):
        pack = lambda x: nn.utils.rnn.pack_padded_sequence(x, count, batch_first=True, enforce_sorted=False)
        pad = lambda x: nn.utils.rnn.pad_packed_sequence(x, batch_first=True, total_length=source.shape[1])[0]
        memory = pad(self.second(pack(self.drop(pad(self.both(pack(self.drop(self.table(source))))[0]))))[0])
        return memory, self.key(memory), (torch.arange(source.shape[1]) >= count[:, None])[:, None]

    def decode(self, target, memory, key, dead, state=(None, None)):
        """Logits of the places given, and the states behind them."""
        y, first = self.first(self.drop(self.table(target)), state[0])
        score = (torch.tanh(self.query(y)[:, :, None] + key[:, None] + self.b) * (self.w / self.w.norm() * self.g)).sum(
            -1)
        context = score.masked_fill(dead, -1e9).softmax(-1) @ memory
        h, last = self.last(torch.cat([self.drop(y), context], -1), state[1])
        return self.head(self.drop(y + h)), (first, last)


def gnmt_small(mode, n, sizes):
    net, length = Gnmt(), 32
    source, target, label = (torch.randint(3, 4113, (n, length)) for _ in range(3))
    count = torch.randint(1, length + 1, (n,))
    if mode == "generate":
        net.eval()
        beam = sizes.get("beam", 1)
        return translate(net, source, count, length) if beam == 1 else beams(net, source, count, length, beam)
    adam = torch.optim.Adam(net.parameters(), 0.002, fused=True)

    def train():
        logits = net.decode(target, *net.encode(source, count))[0]
        return clipped(net.parameters(), adam, F.cross_entropy(logits.flatten(0, 1), label.flatten(),
                                                               label_smoothing=0.1), 5.0)
    return n, train


def translate(net, source, count, length):
    """Greedy, all sentences at once; a token of one sentence is an example."""
    @torch.inference_mode()
    def step():
        memory, token, state = net.encode(source, count), torch.ones(len(source), 1, dtype=torch.long), (None, None)
        for _ in range(length):
            logits, state = net.decode(token, *memory, state)
            token = logits.argmax(-1)
    return len(source) * length, step


def beams(net, source, count, length, width):
    """Of each sentence the `width` best hypotheses, all sentences at once; none ends, as in `bench` of ours."""
    n, penalty = len(source), 0.6

    @torch.inference_mode()
    def step():
        memory, key, dead = (x.repeat_interleave(width, 0) for x in net.encode(source, count))
        token, state = torch.ones(n * width, 1, dtype=torch.long), (None, None)
        written = torch.zeros(n * width, length, dtype=torch.long)
        score = torch.full((n, width), -1e9)
        score[:, 0] = 0
        first = torch.arange(n)[:, None] * width
        for t in range(length):
            logits, state = net.decode(token, memory, key, dead, state)
            each = F.log_softmax(logits[:, 0], -1).view(n, width, -1) + score[:, :, None]
            score, at = each.flatten(1).topk(width, 1)
            row, token = (first + at // each.shape[2]).flatten(), (at % each.shape[2]).view(-1, 1)
            written = written[row]
            written[:, t] = token[:, 0]
            state = tuple(tuple(s[:, row] for s in pair) for pair in state)
        return written.view(n, width, -1)[torch.arange(n), (score / ((5 + length) / 6) ** penalty).argmax(1)]
    return n * length, step


# ---------------------------------------------------------------- text
def gpt_bytes(mode, n, sizes):
    """One sequence, greedy, keys and values kept."""
    if mode != "generate":
        raise SystemExit("torch_tasks.py: gpt-bytes trains by torch_models.py")
    length, net = sizes.get("length", 128), MODELS["gpt-bytes"][1]()
    net.place = nn.Parameter(torch.randn(length, 128) * 0.02)
    net.eval()
    heads = 4

    @torch.inference_mode()
    def step():
        token, cache = torch.tensor([[10]]), [torch.zeros(2, 1, heads, length, 32) for _ in net.attention]
        for t in range(length):
            x = net.table(token) + net.place[t]
            for i, (attention, inner) in enumerate(zip(net.attention, net.inner)):
                a = net.norms[2 * i](x)
                cut = lambda f: f(a).view(1, 1, heads, 32).transpose(1, 2)
                cache[i][0][:, :, t:t + 1], cache[i][1][:, :, t:t + 1] = cut(attention.key), cut(attention.value)
                y = F.scaled_dot_product_attention(cut(attention.query), cache[i][0][:, :, :t + 1],
                                                   cache[i][1][:, :, :t + 1])
                x = x + attention.merge(y.transpose(1, 2).reshape(1, 1, 128))
                x = x + inner(net.norms[2 * i + 1](x))
            token = F.linear(net.norms[-1](x), net.table.weight).argmax(-1)
    return length, step


# ---------------------------------------------------------------- detection
def boxes(n, most, classes, height, width):
    out = []
    for _ in range(n):
        at, size = torch.rand(most, 2) * 0.6, torch.rand(most, 2) * 0.3 + 0.1
        out.append({"boxes": torch.cat([at, at + size], 1) * torch.tensor([width, height] * 2),
                    "labels": torch.randint(1, classes + 1, (most,))})
    return out


def detect(net, mode, n, channels, height, width, most, classes, rate):
    images, truth = [torch.rand(channels, height, width) for _ in range(n)], boxes(n, most, classes, height, width)
    if mode == "infer":
        net.eval()
        return n, torch.inference_mode()(lambda: net(images))
    sgd = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=1e-4, fused=True)
    return n, lambda: clipped(None, sgd, sum(net(images, truth).values()))


def digits(mode, n, sizes):
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign
    block = lambda a, b, s=1: [nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    body = nn.Sequential(*block(1, 16, 2), *block(16, 32, 2), *block(32, 32), *block(32, 64, 2), *block(64, 64),
                         *block(64, 64))
    body.out_channels = 64
    head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    net = FasterRCNN(body, rpn_anchor_generator=AnchorGenerator(((16, 24, 36, 52),), ((1.0, 2.0),)),
                     box_roi_pool=MultiScaleRoIAlign(["0"], 7, 2), box_head=head,
                     box_predictor=FastRCNNPredictor(128, 11), min_size=128, max_size=128, image_mean=[0.1],
                     image_std=[0.25], rpn_pre_nms_top_n_train=512, rpn_post_nms_top_n_train=128,
                     rpn_pre_nms_top_n_test=256, rpn_post_nms_top_n_test=64, rpn_batch_size_per_image=64,
                     box_batch_size_per_image=64, box_detections_per_img=32)
    return detect(net, mode, n, 1, 128, 128, 4, 10, 0.02)


def pyramid(mode, n, sizes):
    from torchvision.models.detection import fasterrcnn_resnet50_fpn
    height, width = sizes.get("height", 800), sizes.get("width", 1344)
    net = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91, trainable_backbone_layers=5,
                                  min_size=min(height, width), max_size=max(height, width),
                                  norm_layer=nn.BatchNorm2d)
    return detect(net, mode, n, 3, height, width, 8, 90, 0.0025)


TASKS = {"ncf": ncf, "gnmt-small": gnmt_small, "gpt-bytes": gpt_bytes, "faster-rcnn-digits": digits,
         "faster-rcnn": pyramid}
