"""scaling.py: what a step would take with more threads than this machine has, by simulation.

  PROGRAM bench --synthetic --threads 1 --profile --json >profile.json
  scaling.py profile.json [--threads 4,8,16,64] [--barrier-ns 500] [--thread-ns 50] [--rates 100,24] [--worst 10]
             [--json]

The profile gives each kernel's time on one thread and its number of tasks (with --rates the time is that of its
operations or bytes, GFLOP/s and GB/s of one thread: no noise); the runtime's own rule (runtime/threads.c)
says how tasks become shares and chunks, and which thread takes which. Tasks of one kernel count as equal. A job costs
what it takes to announce it and to hear that all are done: --barrier-ns, and --thread-ns for each thread that takes
part (the EPCC barrier benchmark, Bull 1999, on current servers: 2 to 4 us for 64 threads). Memory counts as if it grew
with the threads: what is printed is the loss to shares and barriers alone, which the compiler's choice of tasks
decides. A short step may be faster with fewer threads, which pace.c finds: `best` is the fastest number up to T."""
import argparse, heapq, json, sys

CHUNKS, FEW, EVEN = 4, 2, 2     # THREADS_CHUNKS and its like of runtime/threads.c


def makespan(tasks, threads, whole=1, chunks=CHUNKS):
    """The largest number of tasks that one thread does: shares by index, then the chunks of others."""
    if tasks <= 1 or threads == 1:
        return tasks
    shares = min(tasks, threads)
    wholes = tasks // whole
    if whole > 1 and wholes < chunks * shares:
        chunks = FEW if wholes < FEW * shares else wholes // shares
    chunks = chunks if tasks >= chunks * shares else tasks // shares
    count = shares * chunks
    cut = [tasks * c // count for c in range(count + 1)]
    if tasks >= EVEN * whole * count:
        cut = [c // whole * whole for c in cut[:-1]] + [tasks]
    size = [cut[c + 1] - cut[c] for c in range(count)]
    left = [list(range(k * chunks, (k + 1) * chunks)) for k in range(shares)]
    ready = [(0, k) for k in range(threads)]
    most = 0
    heapq.heapify(ready)
    while ready:
        at, k = heapq.heappop(ready)
        for j in range(shares):
            share = left[(k + j) % threads] if (k + j) % threads < shares else None
            if share:
                at += size[share.pop(0)]
                most = max(most, at)
                heapq.heappush(ready, (at, k))
                break
    return most


def kernel_seconds(kernel, threads, barrier, thread):
    tasks = kernel["tasks"]
    if tasks <= 1 or threads == 1:
        return kernel["seconds"]
    most = makespan(tasks, threads, kernel["whole"], 1 if kernel["shares"] else CHUNKS)
    return kernel["seconds"] * most / tasks + (barrier + thread * threads) * kernel.get("turns", 1)


def simulate(kernels, threads, barrier, thread):
    return [kernel_seconds(k, threads, barrier, thread) for k in kernels]


def report(name, kernels, counts, barrier, thread, worst):
    one = sum(k["seconds"] for k in kernels)
    rows = []
    for t in counts:
        each = simulate(kernels, t, barrier, thread)
        total = sum(each)
        tries = {n: sum(simulate(kernels, n, barrier, thread)) for n in counts if n <= t}
        best = min(tries, key=tries.get)
        parallel = sum((barrier + thread * t) * k.get("turns", 1) for k in kernels if k["tasks"] > 1)
        rows.append({"threads": t, "ms": total * 1e3, "efficiency": one / total / t,
                     "barriers": parallel / total, "shares": (total - parallel - one / t) / total,
                     "best": best, "best_ms": tries[best] * 1e3})
    last = simulate(kernels, counts[-1], barrier, thread)
    order = sorted(range(len(kernels)), key=lambda k: kernels[k]["seconds"] / counts[-1] - last[k])[:worst]
    lost = [{"name": kernels[k]["name"], "tasks": kernels[k]["tasks"], "us": kernels[k]["seconds"] * 1e6,
             "us_there": last[k] * 1e6,
             "loss": (last[k] - kernels[k]["seconds"] / counts[-1]) / sum(last)} for k in order]
    return {"model": name, "ms": one * 1e3, "rows": rows, "worst": lost}


def main():
    p = argparse.ArgumentParser(description="a step's time with more threads, simulated")
    p.add_argument("profile", nargs="+")
    p.add_argument("--threads", default="4,8,16,64")
    p.add_argument("--barrier-ns", type=float, default=500)
    p.add_argument("--thread-ns", type=float, default=50)
    p.add_argument("--rates", help="GFLOP/s,GB/s: times from these in place of the measured ones")
    p.add_argument("--worst", type=int, default=10)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    counts = sorted(int(x) for x in o.threads.split(","))
    for name in o.profile:
        with open(name) as f:
            profile = json.load(f)
        if profile["threads"] != 1:
            sys.exit("%s: made with %d threads; bench --threads 1" % (name, profile["threads"]))
        if o.rates:
            flops, memory = (float(x) for x in o.rates.split(","))
            for k in profile["kernels"]:
                k["seconds"] = max(k["gflop"] / flops, k["bytes"] * 1e-9 / memory, 1e-7)
        r = report(profile["model"], profile["kernels"], counts, o.barrier_ns * 1e-9, o.thread_ns * 1e-9, o.worst)
        if o.json:
            print(json.dumps(r))
            continue
        print("%s, batch %d: %.2f ms a step on one thread, %d kernels" % (r["model"], profile["batch"], r["ms"],
                                                                      len(profile["kernels"])))
        print("%8s %10s %11s %9s %9s   best of fewer" % ("threads", "ms", "efficiency", "barriers", "shares"))
        for x in r["rows"]:
            print("%8d %10.3f %10.1f%% %8.1f%% %8.1f%%   %d: %.3f ms" % (x["threads"], x["ms"], 100 * x["efficiency"],
                  100 * x["barriers"], 100 * x["shares"], x["best"], x["best_ms"]))
        print("lost most at %d threads, of the step:" % counts[-1])
        for x in r["worst"]:
            print("%7.2f%% %6d tasks %10.1f us on one, %8.1f there  %s" % (100 * x["loss"], x["tasks"], x["us"],
                  x["us_there"], x["name"]))


if __name__ == "__main__":
    main()
