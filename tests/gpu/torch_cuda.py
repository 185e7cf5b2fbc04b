#!/usr/bin/env python3
"""One model of ../bench/torch_models.py on a GPU, timed as `PROGRAM bench --json` is: eager, compiled, or compiled with
the whole step as one CUDA graph. The data lie on the device, the loss is not read, f32 stays f32, in convolutions too;
16 bits are autocast's, f16 with a gradient scaler (not in a graph, which spares PyTorch the look at it).

  torch_cuda.py resnet50 --batch 256 [--precision f32|bf16|f16] [--how eager|compiled|graphs] [--warmup 20] [--steps
      100] [--repeat 3] [--device cuda]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import sampling  # noqa: E402  first: it takes the time of the start

OPTIONS = sampling.options(__doc__)
OPTIONS.add_argument("--precision", choices=["f32", "bf16", "f16"], default="f32")
OPTIONS.add_argument("--how", choices=["eager", "compiled", "graphs"], default="eager")
OPTIONS.add_argument("--device", default="cuda")
ARGS = OPTIONS.parse_args()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from torch_models import MODELS  # noqa: E402


def captured(step):
    """The step as one launch; three steps beside it first, as PyTorch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(a):
    batch, network, data, optimizer, images = MODELS[a.model]
    n, device, dtype = a.batch or batch, a.device, {"f32": torch.float32, "bf16": torch.bfloat16,
                                                    "f16": torch.float16}[a.precision]
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    # ours multiplies f32 in f32; for matrices that is PyTorch's own default
    torch.backends.cudnn.allow_tf32 = False
    net, (x, target) = network().to(device), (t.to(device) for t in data(n))
    if images:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    opt = optimizer(net.parameters())
    if a.how == "graphs":
        for group in opt.param_groups:
            if "capturable" in group:
                group["capturable"] = True
    scaler = torch.amp.GradScaler(device, enabled=a.precision == "f16" and a.how != "graphs" and device == "cuda")
    forward = net if a.how == "eager" else torch.compile(net)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype, enabled=a.precision != "f32"):
            y = forward(x)
            loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    sampling.run(a, n, captured(step) if a.how == "graphs" else step,
                 {"model": a.model, "target": "pytorch " + torch.__version__, "precision": a.precision}, finish)


if __name__ == "__main__":
    main(ARGS)
