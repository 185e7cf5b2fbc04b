#!/usr/bin/env python3
"""Times one model of torch_models.py or torch_tasks.py the way `PROGRAM bench --json` does, and prints the same keys.
Start it through run.sh or beside.sh, which set the environment that PyTorch needs to be fast on a CPU: without it the
comparison is worthless.

  torch_bench.py resnet50-cifar10[:NAME=NUMBER,..] [--mode train|infer|generate] [--batch N] [--warmup 20] [--steps
      100] [--repeat 3] [--threads N] [--compile] [--freeze] [--bf16] [--serve]
  torch_bench.py resnet50-cifar10 --batch N --export FILE.onnx
"""
import sampling  # first: it takes the time of the start

import os

OPTIONS = sampling.options(__doc__)
OPTIONS.add_argument("--compile", action="store_true", help="torch.compile")
OPTIONS.add_argument("--freeze", action="store_true",
                     help="with --compile, inference: weights are constants, folded and packed")
OPTIONS.add_argument("--bf16", action="store_true", help="autocast to bf16; inference: the weights too")
OPTIONS.add_argument("--export", metavar="FILE.onnx", help="write the network for inference and end")
ARGS = OPTIONS.parse_args()
if ARGS.freeze:
    os.environ["TORCHINDUCTOR_FREEZING"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from torch_models import MODELS  # noqa: E402
from torch_tasks import TASKS  # noqa: E402


def export(a, net, x):
    net.eval()
    more = {"do_constant_folding": True, "input_names": ["x"], "output_names": ["y"]}
    try:
        torch.onnx.export(net, (x,), a.export, dynamo=False, **more)
    except TypeError:  # a version without the choice
        torch.onnx.export(net, (x,), a.export, **more)


def main(a):
    name, _, sizes = a.model.partition(":")
    sizes = {k: int(v) for k, _, v in (pair.partition("=") for pair in sizes.split(",") if pair)}
    if name not in MODELS and name not in TASKS:
        raise SystemExit("torch_bench.py: no model %s; there are %s" % (name, ", ".join(sorted(MODELS | TASKS))))
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    if name not in MODELS or a.mode == "generate":
        n, step = TASKS[name](a.mode, a.batch, sizes)
        return sampling.run(a, n, step, {"model": a.model, "target": "pytorch " + torch.__version__, "precision": "f32",
                                         "threads": torch.get_num_threads()})
    batch, network, data, optimizer, images = MODELS[a.model]
    n = a.batch or batch
    net, (x, target) = network(), data(n)
    if a.export:
        return export(a, net, x)
    if images:  # what oneDNN computes in: without it every step converts
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if a.bf16 and a.mode == "infer":
        net = net.to(torch.bfloat16)
        x = x.to(torch.bfloat16) if x.is_floating_point() else x
    opt = optimizer(net.parameters())
    cast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=a.bf16 and a.mode == "train")
    net.train(a.mode == "train")
    forward = torch.compile(net) if a.compile else net

    def train():
        opt.zero_grad(set_to_none=True)
        with cast():
            y = forward(x)
            loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1))
        loss.backward()
        opt.step()
        return loss.item()  # ours reads the loss of every step too

    def infer():
        # freezing wants no_grad: tensors of inference mode have no version that it could hold on to
        with torch.no_grad() if a.freeze else torch.inference_mode():
            return forward(x)

    sampling.run(a, n, train if a.mode == "train" else infer,
                 {"model": a.model, "target": "pytorch " + torch.__version__, "precision": "bf16" if a.bf16 else "f32",
                  "threads": torch.get_num_threads()})


if __name__ == "__main__":
    main(ARGS)
