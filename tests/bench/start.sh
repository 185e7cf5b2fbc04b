#!/bin/sh
# From the start of an executable to the end of its first step, less the step itself: reading and checking the data, memory, initial values, threads.
#   start.sh [MODEL...]            resnet50-cifar10 and lenet unless said; CIFAR's files are made here (50,000 records), the digits are models/digits
# A round runs `train --steps 1` to its end, by the clock of the caller, and then `bench` for the step; it prints the median and the best of the rounds.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
[ $# -gt 0 ] || set -- resnet50-cifar10 lenet
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/cifar"
for k in 1 2 3 4 5; do
	head -c 30730000 /dev/zero >"$dir/cifar/data_batch_$k.bin"
done
for model; do
	"$mantou" build "models/$model.net" -o "$dir/$model" >/dev/null 2>&1 || { "$mantou" build "models/$model.net" -o "$dir/$model"; exit 1; }
	case $model in
	*cifar10*) data=$dir/cifar ;;
	*) data=models/digits ;;
	esac
	MODEL=$model ROUNDS=${ROUNDS:-5} python3 - "$dir/$model" "$data" <<'END'
import json, os, statistics, subprocess, sys, time
program, data = sys.argv[1:]
extra = []
def first():
    begin = time.monotonic()
    subprocess.run([program, "train", "--data", data, "--steps", "1", "--no-save", "--no-eval", "--quiet"], check=True)
    return time.monotonic() - begin
def step():
    o = subprocess.run([program, "bench", "--data", data, "--json", "--warmup", "1", "--steps", "3", "--repeat", "3"], check=True, capture_output=True, text=True)
    return json.loads(o.stdout)["ms_per_step"]["median"] * 1e-3
first()                                  # the files into memory
for _ in range(int(os.environ["ROUNDS"])):
    whole, one = first(), step()
    extra.append((whole - one, whole, one))
median, best = statistics.median(x[0] for x in extra), min(extra)
print(f"{os.environ['MODEL']}: {median:.3f} s beyond the first step (best {best[0]:.3f} = {best[1]:.3f} - {best[2]:.3f})", flush=True)
END
done
