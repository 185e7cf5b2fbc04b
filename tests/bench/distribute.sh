#!/bin/sh
# Training with two processes on this machine, a core each, against one process with one core: speed-up, what the exchange costs, how much of it is hidden.
# Not at real-time priority: ranks that wait spin, and more of them than CPUs starve the others for ever (seen with MPICH, 4 ranks on 2 CPUs).
#   sh tests/bench/distribute.sh [--rounds N] [--steps N] [LIBRARY...]     (default: 5 rounds, openmpi mpich)
# A line for each model and library. Columns are medians of rounds that go through all ways in turn: examples/s of one process, of two; their ratio; two
# processes of those that exchange nothing (--no-exchange), which share caches and memory but no gradients; by the library's own sum; one bucket behind
# the shard (--disable overlap); the share of the exchange's time that bench says was hidden. Slow: some seconds for each model, way and round.
# `--only TABLE,TABLE` of speed, weak, alone, hidden, scale; default: all.
# Then weak scaling: resnet50-cifar10, 32 examples and one thread a process, beside as many that exchange nothing. Then the exchange alone (bench --only-exchange) of 4, 25 and 100 MB by 2 and 4 processes beside the library's own sum; last what is hidden of a network so
# slow (tests/distribute/slow.c) that the exchange alone takes 0.4 of a step: 1 - (step - step without exchange) / exchange alone, with buckets and with one;
# and what `mantou scale` predicts of 1, 2 and (on four CPUs or more) 4 processes from `bench --links`, with three such networks.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou} rounds=5 steps= only=speed,weak,alone,hidden,scale
while [ $# -gt 0 ]; do
	case $1 in
	--rounds) rounds=$2; shift 2 ;;
	--steps) steps=$2; shift 2 ;;
	--only) only=$2; shift 2 ;;
	-*) echo "distribute.sh: unknown option $1" >&2; exit 2 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || set -- openmpi mpich
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$mantou" "$dir" "$rounds" "${steps:-0}" "$only" "$@" <<'END'
import json, os, statistics, subprocess, sys
mantou, folder, rounds, asked, only, libraries = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(","), sys.argv[6:]
# model, arguments, steps of a measurement
models = [("models/lenet.net", ["--batch", "128"], 40), ("models/resnet20-cifar10.net", ["--batch", "64"], 4),
          ("tests/distribute/wide.net", ["--batch", "64"], 40)]


def bench(library, p, program, steps, *args, **env):
    command = ["tests/distribute/ranks", library, str(p), program, "bench", "--synthetic", "--threads", "1", "--json", "--repeat", "1",
               "--warmup", "2", "--steps", str(steps), *args]
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=300)
    if out.returncode:
        sys.exit("FAIL %s: %s" % (" ".join(command), out.stderr))
    return json.loads(out.stdout)


def build(name, model, *args):
    subprocess.run([mantou, "build", model, *args, "--distribute", "mpi", "-o", folder + "/" + name], check=True, stderr=subprocess.DEVNULL)
    return folder + "/" + name


def delayed(library):
    """The library with a slow network in front; None where cc does not find it."""
    real, slow = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}[library], folder + "/lib%s.so" % library
    made = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "tests/distribute/slow.c", "-o", slow, "-Wl,--no-as-needed", "-l:" + real])
    return None if made.returncode else slow


if "speed" in only:
    print("%-18s %-8s %9s %9s %8s %11s %8s %11s %7s" % ("model", "library", "1 process", "2", "speed-up", "no exchange", "library", "one bucket", "hidden"))
for model, args, steps in models if "speed" in only else []:
    name = model.split("/")[-1][:-4]
    for program, more in ("one", ["--disable", "overlap"]), ("model", []):
        subprocess.run([mantou, "build", model, *args, "--shards", "2", "--distribute", "mpi", "-o", folder + "/" + program, *more], check=True,
                       stderr=subprocess.DEVNULL)
    for library in libraries:
        ways = [("alone", 1, "model", []), ("two", 2, "model", []), ("apart", 2, "model", ["--no-exchange"]), ("library", 2, "model", ["--exchange", "library"]),
                ("bucket", 2, "one", [])]
        seen = {way: [] for way, *_ in ways}
        hidden = []
        for _ in range(rounds):
            for way, p, program, more in ways:
                o = bench(library, p, folder + "/" + program, asked or steps, *more)
                seen[way].append(o["examples_per_s"]["median"])
                if way == "two":
                    hidden.append(o["hidden_share"])
        x = {way: statistics.median(v) for way, v in seen.items()}
        print("%-18s %-8s %9.1f %9.1f %8.2f %11.1f %8.1f %11.1f %6.0f%%" % (name, library, x["alone"], x["two"], x["two"] / x["alone"], x["apart"], x["library"],
                                                                      x["bucket"], 100 * statistics.median(hidden)), flush=True)


if "weak" in only:
    print("\n%-8s %9s %11s %11s %7s   weak scaling, examples/s" % ("library", "processes", "exchanging", "no exchange", "ratio"))
for library in libraries if "weak" in only else []:
    for p in 2, 4:
        program, seen = build("weak", "models/resnet50-cifar10.net", "--batch", str(32 * p), "--shards", str(p)), {(): [], ("--no-exchange",): []}
        for _ in range(rounds):
            for more in seen:
                seen[more].append(bench(library, p, program, asked or 2, *more)["examples_per_s"]["median"])
        x, free = (statistics.median(v) for v in seen.values())
        print("%-8s %9d %11.2f %11.2f %7.3f" % (library, p, x, free, x / free), flush=True)


def millis(library, p, program, *args, **env):
    command = ["tests/distribute/ranks", library, str(p), program, "bench", "--threads", "1", "--json", "--repeat", "3", "--warmup", "2", "--steps", "5", *args]
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=300)
    if out.returncode:
        sys.exit("FAIL %s: %s" % (" ".join(command), out.stderr))
    o = json.loads(out.stdout)
    return o["exchange_ms"]["median"] if "exchange_ms" in o else 1e3 * o["batch"] / o["examples_per_s"]["median"], o["exchange_bytes"]


if "alone" in only:
    print("\n%-8s %6s %9s %9s %9s %7s" % ("library", "MB", "processes", "tree, ms", "library's", "ratio"))
for size in (0.25, 4, 25, 100) if "alone" in only else []:
    side = int((size * 250000) ** 0.5)
    with open(folder + "/square.net", "w") as net:
        net.write("model square(x: f32[N, %d]) { loss mean(square(dense(x, %d))) }\ndata { reader = synthetic(64) }\ntrain { batch = 8  shards = 4 }\n" % (side, side))
    subprocess.run([mantou, "build", folder + "/square.net", "--distribute", "mpi", "-o", folder + "/square"], check=True, stderr=subprocess.DEVNULL)
    for library in libraries:
        for p in 2, 4:
            x = {by: [] for by in ("tree", "library")}
            for _ in range(rounds):
                for by in x:
                    x[by].append(millis(library, p, folder + "/square", "--only-exchange", "--exchange", by)[0])
            tree, own = (statistics.median(v) for v in x.values())
            print("%-8s %6.4g %9d %9.2f %9.2f %7.2f" % (library, size, p, tree, own, tree / own), flush=True)

if "hidden" in only:
    print("\n%-8s %12s %14s %12s %7s %10s" % ("library", "step, ms", "no exchange", "alone", "hidden", "one bucket"))
for program, more in (("one", ["--disable", "overlap"]), ("model", [])) if "hidden" in only else []:
    build(program, "models/resnet20-cifar10.net", "--batch", "64", "--shards", "2", *more)
for library in libraries if "hidden" in only else []:
    slow = delayed(library)
    if not slow:
        continue
    free, size = millis(library, 2, folder + "/model", "--synthetic", "--no-exchange")[0], millis(library, 2, folder + "/model", "--only-exchange")[1]
    env = {"MANTOU_LIBMPI": slow, "SLOW_RATE": str(size / (0.4e-3 * free))}
    alone = millis(library, 2, folder + "/model", "--only-exchange", **env)[0]
    step, one = (millis(library, 2, folder + "/" + name, "--synthetic", **env)[0] for name in ("model", "one"))
    print("%-8s %12.1f %14.1f %12.1f %7.2f %10.2f" % (library, step, free, alone, 1 - (step - free) / alone, 1 - (one - free) / alone), flush=True)

if "scale" in only:
    print("\n%-8s %7s %9s %12s %12s %7s   mantou scale, from bench --links" % ("library", "MB/s", "processes", "measured, ms", "predicted", "off"))
    build("model", "models/resnet20-cifar10.net", "--batch", "64", "--shards", "4")
for library in libraries if "scale" in only else []:
    slow = delayed(library)
    for rate in (1e7, 3e7, 1e8) if slow else ():
        env, counts = {"MANTOU_LIBMPI": slow, "SLOW_RATE": str(rate)}, [1, 2] + [4] * ((os.cpu_count() or 1) >= 4)
        links = subprocess.run(["tests/distribute/ranks", library, "2", folder + "/model", "bench", "--links"], capture_output=True, text=True, env={**os.environ, **env}, timeout=300)
        seen, free = {p: [] for p in counts}, []
        for _ in range(rounds):
            for p in counts:
                seen[p].append(millis(library, p, folder + "/model", "--synthetic", **env)[0])
            free.append(millis(library, counts[-1], folder + "/model", "--synthetic", "--no-exchange")[0])
        ms = {p: statistics.median(seen[p]) for p in counts}
        # what all processes together lengthen a step, kernels alone
        busy = max(0, statistics.median(free) * counts[-1] / ms[1] - 1)
        with open(folder + "/cluster", "w") as f:
            f.write("node 1 of %d\nrate %g\nbusy %g%%\nspread 0%%\n%s" % (counts[-1], 64e3 / ms[1], 100 * busy, links.stdout))
        said = subprocess.run([mantou, "scale", "models/resnet20-cifar10.net", "--batch", "64", "--shards", "4", "--cluster", folder + "/cluster", "--json",
                               "--processes", ",".join(map(str, counts))], capture_output=True, text=True)
        if said.returncode:
            sys.exit("FAIL scale: " + said.stderr)
        for o in json.loads(said.stdout)["predicted"]:
            p, guess = o["processes"], o["ms_per_step"]["median"]
            print("%-8s %7.4g %9d %12.1f %12.1f %6.1f%%" % (library, rate * 1e-6, p, ms[p], guess, 100 * (guess / ms[p] - 1)), flush=True)
END
