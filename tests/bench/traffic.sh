#!/bin/sh
# traffic.sh [MODEL.net [CACHE_KIB [BATCH]]]: bytes that a training step brings into a cache of that size, counted by valgrind's cache simulator, beside what the plan says,
# for the program as it is, with --disable winograd, and with --disable fuse. Counted are lines of 64 bytes that a read or a write misses; the difference of runs of one step and of two, so that the
# start does not count. Code is for x86-64-v3, the widest that valgrind knows; one thread. The plan counts each operand and result of a kernel once, what it
# keeps in its workspace twice; what the cache still holds of the kernel before, or does not hold to its second reading, makes the differences.
set -eu
cd "$(dirname "$0")/../.."
net=${1:-models/resnet20-cifar10.net} kib=${2:-1024} batch=${3:-32}
mantou=${MANTOU:-$PWD/build/mantou}
command -v valgrind >/dev/null || { echo "traffic.sh: valgrind is missing (Debian: valgrind)" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# counted EXECUTABLE STEPS: bytes of data that miss the last-level cache
counted() {
	valgrind --tool=cachegrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=$((kib * 1024)),16,64 --cachegrind-out-file="$dir/out" \
		"$1" train --synthetic --steps "$2" --threads 1 --no-save --no-eval --quiet >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
	awk '/^events:/ { for (i = 2; i <= NF; i++) at[$i] = i } /^summary:/ { printf "%.0f\n", ($at["DLmr"] + $at["DLmw"]) * 64 }' "$dir/out"
}

echo "$net, batch $batch, f32, MB a step; counted with a cache of $kib KiB"
for form in fused direct unfused; do
	case $form in fused) set -- ;; direct) set -- --disable winograd ;; *) set -- --disable winograd,fuse ;; esac
	"$mantou" build "$net" --precision f32 --batch "$batch" --arch x86-64-v3 "$@" -o "$dir/$form"
	plan=$("$dir/$form" info --json | sed -n 's/.*"bytes_per_step": \([0-9]*\).*/\1/p')
	one=$(counted "$dir/$form" 1)
	two=$(counted "$dir/$form" 2)
	echo "$form $plan $((two - one))"
done | awk '{ plan[$1] = $2; seen[$1] = $3; printf "%-8s plan %8.1f   counted %8.1f   counted / plan %.2f\n", $1, $2 / 1e6, $3 / 1e6, $3 / $2 }
	END { for (f in plan) if (f != "unfused") printf "%s / unfused: plan %.2f, counted %.2f\n", f, plan[f] / plan["unfused"], seen[f] / seen["unfused"] }'
