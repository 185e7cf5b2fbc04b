#!/bin/sh
# mantou beside PyTorch on one model, in one interleaved run: ours, theirs, ours, theirs, ... so that a slow hour of a shared machine meets both.
#   sh tests/bench/beside.sh MODEL [--mode train|infer] [--batch N] [--steps N] [--warmup N] [--rounds 3] [--threads N] [--precision f32] [--rival f32|bf16] [--compile yes]
# MODEL is a file of models/ or of this folder without .net. Needs build/mantou and a python3 with torch (PYTHON=...; best with intel-openmp beside it). Prints a line per
# sample, then median and best of each and their ratio. PyTorch runs as its users would tune it: one OpenMP runtime, huge pages, channels_last, fused
# optimizer. For mantou nothing is set. --precision is ours, --rival theirs (bf16 by autocast), --compile yes: theirs through torch.compile.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -gt 0 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
model=$1
shift
mode=train batch= steps=20 warmup=5 rounds=3 threads=$(nproc) precision=f32 rival=f32 compile=no
while [ $# -gt 0 ]; do
	[ $# -gt 1 ] || { echo "beside.sh: $1 needs a value" >&2; exit 2; }
	case $1 in
	--mode) mode=$2 ;; --batch) batch=$2 ;; --steps) steps=$2 ;; --warmup) warmup=$2 ;; --rounds) rounds=$2 ;; --threads) threads=$2 ;;
	--precision) precision=$2 ;; --rival) rival=$2 ;; --compile) compile=$2 ;;
	*) echo "beside.sh: unknown option $1" >&2; exit 2 ;;
	esac
	shift 2
done
mantou=${MANTOU:-$root/build/mantou}
python=${PYTHON:-python3}
[ -x "$mantou" ] || { echo "beside.sh: no $mantou; build first: meson setup build --buildtype=release && ninja -C build" >&2; exit 1; }
"$python" -c 'import torch' 2>/dev/null || { echo "beside.sh: $python has no torch (PYTHON=... names another)" >&2; exit 1; }
case $rival in f32) more= ;; bf16) more=--bf16 ;; *) echo "beside.sh: --rival f32 or bf16, not $rival" >&2; exit 2 ;; esac
case $compile in no) ;; yes) more="$more --compile" ;; *) echo "beside.sh: --compile yes or no, not $compile" >&2; exit 2 ;; esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
net=$root/models/$model.net
[ -f "$net" ] || net=$here/$model.net
"$mantou" build "$net" -o "$dir/$model" --precision "$precision" ${batch:+--batch "$batch"}
omp=$("$python" -c 'import glob, sys; print((glob.glob(sys.prefix + "/lib/libiomp5.so") + [""])[0])')
[ -n "$omp" ] || echo "beside.sh: no libiomp5.so: PyTorch will be slower than it could be (pip install intel-openmp)" >&2
pages=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592
ours() { "$dir/$model" bench --synthetic --json --mode "$mode" --warmup "$warmup" --steps "$steps" --repeat 1 --threads "$threads"; }
theirs() {
	env OMP_NUM_THREADS="$threads" OPENBLAS_NUM_THREADS=1 GLIBC_TUNABLES="$pages" ${omp:+LD_PRELOAD="$omp"} \
		"$python" "$here/torch_bench.py" "$model" --mode "$mode" --warmup "$warmup" --steps "$steps" --repeat 1 --threads "$threads" ${batch:+--batch "$batch"} $more
}
i=0
while [ $i -lt "$rounds" ]; do
	ours >>"$dir/ours"
	theirs >>"$dir/theirs"
	i=$((i + 1))
	for who in ours theirs; do
		tail -n 1 "$dir/$who" | "$python" -c 'import json, sys; o = json.load(sys.stdin); print("round %s  %-7s %10.2f examples/s  %9.3f ms/step" % (sys.argv[1], sys.argv[2], o["examples_per_s"]["median"], o["ms_per_step"]["median"]))' $i $who
	done
done
"$python" - "$dir" "$model" "$mode" <<'END'
import json, statistics, sys
rows = {}
for who in ("ours", "theirs"):
    rows[who] = [json.loads(line) for line in open("%s/%s" % (sys.argv[1], who)) if line.strip()]
    rate = [o["examples_per_s"]["median"] for o in rows[who]]
    last = rows[who][-1]
    print("%-7s %s %s %s %s batch %d, %d threads: median %.2f, best %.2f examples/s; %.0f MB; first step after %.2f s" % (
        who, last["target"], last["precision"], sys.argv[2], sys.argv[3], last["batch"], last["threads"], statistics.median(rate), max(rate), last["peak_rss_bytes"] / 1e6, last["first_step_s"]))
ratio = [statistics.median(a["examples_per_s"]["median"] for a in rows["ours"]) / statistics.median(a["examples_per_s"]["median"] for a in rows["theirs"]),
         max(a["examples_per_s"]["median"] for a in rows["ours"]) / max(a["examples_per_s"]["median"] for a in rows["theirs"])]
print("ratio ours / theirs: %.3f of medians, %.3f of bests" % tuple(ratio))
END
