#!/usr/bin/env python3
"""Times one model of torch_models.py the way `PROGRAM bench --json` does, and prints the same keys. Start it through beside.sh, which sets the
environment that PyTorch needs to be fast on a CPU: without it the comparison is worthless.

  torch_bench.py resnet50-cifar10 [--mode train|infer] [--batch N] [--warmup 20] [--steps 100] [--repeat 3] [--threads N] [--compile] [--bf16]
"""
import argparse
import json
import resource
import statistics
import time

START = time.perf_counter()
import torch  # noqa: E402  the import is part of the time to the first step
import torch.nn.functional as F  # noqa: E402

from torch_models import MODELS  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=sorted(MODELS))
    p.add_argument("--mode", choices=["train", "infer"], default="train")
    p.add_argument("--batch", type=int, default=0, help="default: the .net file's")
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--threads", type=int, default=0, help="default: OMP_NUM_THREADS, else all processors")
    p.add_argument("--compile", action="store_true", help="torch.compile")
    p.add_argument("--bf16", action="store_true", help="autocast to bf16; inference: the weights too")
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    batch, network, data, optimizer, images = MODELS[a.model]
    n = a.batch or batch
    net, (x, target) = network(), data(n)
    if images:  # what oneDNN computes in: without it every step converts
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if a.bf16 and a.mode == "infer":
        net = net.to(torch.bfloat16)
        x = x.to(torch.bfloat16) if x.is_floating_point() else x
    opt = optimizer(net.parameters())
    cast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=a.bf16 and a.mode == "train")
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
        with torch.inference_mode():
            return forward(x)

    net.train(a.mode == "train")
    step = train if a.mode == "train" else infer
    step()
    first = time.perf_counter() - START
    for _ in range(a.warmup):
        step()
    times = []
    for _ in range(a.repeat):
        begin = time.perf_counter()
        for _ in range(a.steps):
            step()
        times.append((time.perf_counter() - begin) / a.steps)
    rate = lambda f: n / f(times)
    print(json.dumps({
        "model": a.model, "target": "pytorch " + torch.__version__, "precision": "bf16" if a.bf16 else "f32", "mode": a.mode, "batch": n, "threads": torch.get_num_threads(),
        "steps": a.steps, "repeats": a.repeat,
        "examples_per_s": {"median": rate(statistics.median), "min": rate(max), "max": rate(min)},
        "ms_per_step": {"median": 1e3 * statistics.median(times), "min": 1e3 * min(times), "max": 1e3 * max(times)},
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "first_step_s": first}))


if __name__ == "__main__":
    main()
