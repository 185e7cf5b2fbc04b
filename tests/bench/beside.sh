#!/bin/sh
# mantou beside PyTorch on one model: one row of measure.py made of options, for models and settings that rows.txt does not have.
#   sh tests/bench/beside.sh MODEL [--mode train|infer] [--batch N] [--steps N] [--warmup N] [--rounds 3] [--threads N] [--precision f32] [--rival f32|bf16] [--compile yes]
# MODEL is a file of models/ or of this folder without .net. Needs build/mantou and a python3 with torch (PYTHON=...; best with intel-openmp beside it).
# --precision is ours, --rival theirs (bf16 by autocast), --compile yes: theirs through torch.compile. REALTIME=1: see run.sh.
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
case $compile in no) them=torch ;; yes) them=torch-compiled ;; *) echo "beside.sh: --compile yes or no, not $compile" >&2; exit 2 ;; esac
case $rival in f32) ;; bf16) them=$them-bf16 ;; *) echo "beside.sh: --rival f32 or bf16, not $rival" >&2; exit 2 ;; esac
mantou=${MANTOU:-$root/build/mantou}
python=$(command -v "${PYTHON:-python3}") || { echo "beside.sh: no ${PYTHON:-python3}" >&2; exit 1; }
[ -x "$mantou" ] || { echo "beside.sh: no $mantou; build first: meson setup build --buildtype=release && ninja -C build" >&2; exit 1; }
net=$root/models/$model.net
[ -f "$net" ] || net=$here/$model.net
[ -f "$net" ] || { echo "beside.sh: there is no models/$model.net" >&2; exit 1; }
[ -n "$batch" ] || batch=$(sed -n 's/^ *batch *= *\([0-9]*\).*/\1/p' "$net" | head -n 1)
exec "$python" "$here/measure.py" --python "$python" --mantou "$mantou" --threads "$threads" ${REALTIME:+--realtime} \
	--row "$model $model $mode $batch $precision 1.0 $warmup $steps $rounds $them"
