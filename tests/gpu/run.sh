#!/bin/sh
# Everything that needs a GPU, in parts of at most ten minutes, the most telling first: does it live and how fast is it, where does the time go, is it right, which kernels are faster, how fast is PyTorch, what does a conformance kit say. What runs there is built before, on any machine:
#   sh tests/gpu/run.sh prepare DIR [--arch sm_90a] [--kit FOLDER] [--tiny]      DIR: programs, kernels, what is expected of them (README.md)
#   sh tests/gpu/run.sh DIR [--part 1 .. 6] [--only STAGE,...] [--again] [--results FILE]       --again: what failed is done once more
#   sh tests/gpu/run.sh table FILE
# Each stage has its time, and adds JSON lines to FILE (DIR/results.jsonl); what stands there is not done again (what another preparation left there is), so a run that was cut off goes on. The table
# is printed last; exit status 1 if something failed. --tiny prepares sizes for the simulated driver (MANTOU_LIBCUDA names it).
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
case ${1:-} in
prepare) shift; exec "$python" "$here/prepare.py" "$@" ;;
table) exec "$python" "$here/stages.py" table - "$2" ;;
'' | -*) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
dir=$1 part= only= results=
shift
while [ $# -gt 0 ]; do
	case $1 in
	--again) GPU_AGAIN=1 && export GPU_AGAIN && shift && continue ;;
	--part) part=$2 ;;
	--only) only=,$2, ;;
	--results) results=$2 ;;
	*) echo "run.sh: unknown option $1" >&2; exit 2 ;;
	esac
	shift 2
done
results=${results:-$dir/results.jsonl}
[ -f "$dir/about.json" ] || { echo "run.sh: $dir holds nothing that was prepared" >&2; exit 2; }
command -v "$python" >/dev/null || { echo "run.sh: no $python" >&2; exit 2; }
touch "$results"
id=$(sed -n 's/^ *"id": *"\([0-9a-f]*\)".*/\1/p' "$dir/about.json" | head -n 1)
# part, stage, seconds
while read -r p stage seconds; do
	[ -z "$part" ] || [ "$part" = "$p" ] || continue
	case $only in '' | *,$stage,*) ;; *) continue ;; esac
	echo "== $stage (at most $seconds s)"
	timeout -k 10 "$seconds" "$python" "$here/stages.py" "$stage" "$dir" "$results" </dev/null
	status=$?
	case $status in
	0) ;;
	124 | 137) echo "{\"stage\": \"$stage\", \"item\": \"*\", \"prepared\": \"$id\", \"status\": \"timeout\", \"why\": \"not done after $seconds s; run again to go on\"}" >>"$results" ;;
	*) echo "{\"stage\": \"$stage\", \"item\": \"*\", \"prepared\": \"$id\", \"status\": \"FAIL\", \"why\": \"the stage ended with status $status\"}" >>"$results" ;;
	esac
done <<END
1 probe 60
1 intrinsics 45
1 modes 240
1 loop 90
2 models 330
2 profile 150
3 sanitize 240
3 kernels 250
4 tune 480
5 torch 450
6 kit 490
END
exec "$python" "$here/stages.py" table "$dir" "$results"
