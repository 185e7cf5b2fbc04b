#!/bin/sh
# Training with two processes on this machine, a core each, against one process with one core: speed-up, what the exchange costs, how much of it is hidden.
#   sh tests/bench/distribute.sh [--rounds N] [--steps N] [LIBRARY...]     (default: 5 rounds, openmpi mpich)
# A line for each model and library. Columns are medians of rounds that go through all ways in turn: examples/s of one process, of two; their ratio; two
# processes of those that exchange nothing (--no-exchange), which share caches and memory but no gradients; by the library's own sum; one bucket behind
# the shard (--disable overlap); the share of the exchange's time that bench says was hidden. Slow: some seconds for each model, way and round.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou} rounds=5 steps=
while [ $# -gt 0 ]; do
	case $1 in
	--rounds) rounds=$2; shift 2 ;;
	--steps) steps=$2; shift 2 ;;
	-*) echo "distribute.sh: unknown option $1" >&2; exit 2 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || set -- openmpi mpich
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$mantou" "$dir" "$rounds" "${steps:-0}" "$@" <<'END'
import json, statistics, subprocess, sys
mantou, folder, rounds, asked, libraries = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
# model, arguments, steps of a measurement
models = [("models/lenet.net", ["--batch", "128"], 40), ("models/resnet20-cifar10.net", ["--batch", "64"], 4),
          ("tests/distribute/wide.net", ["--batch", "64"], 40)]


def bench(library, p, program, steps, *args):
    command = ["tests/distribute/ranks", library, str(p), program, "bench", "--synthetic", "--threads", "1", "--json", "--repeat", "1",
               "--warmup", "2", "--steps", str(steps), *args]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit("FAIL %s: %s" % (" ".join(command), out.stderr))
    return json.loads(out.stdout)


print("%-18s %-8s %9s %9s %8s %11s %8s %11s %7s" % ("model", "library", "1 process", "2", "speed-up", "no exchange", "library", "one bucket", "hidden"))
for model, args, steps in models:
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
END
