#!/bin/sh
# Measurements run and print what other programs read; nothing is asserted about speed but that it is a number and below the peak.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
bad() {
	failed=$((failed + 1))
	echo "FAIL $1"
}
# json NAME FILE CONDITION: on the object o
json() {
	if python3 -c "import json, sys; o = json.load(open(sys.argv[1])); assert $3, o" "$dir/$2" 2>"$dir/err"; then passed=$((passed + 1)); else bad "$1: $(tail -n 1 "$dir/err" | head -c 400)"; fi
}
t() { # t NAME COMMAND...: succeeds; stdout to $dir/out
	name=$1
	shift
	if "$@" >"$dir/out" 2>"$dir/err"; then passed=$((passed + 1)); else bad "$name: $(head -n 2 "$dir/err")"; fi
}
keys='set("model target precision mode batch threads steps repeats examples_per_s ms_per_step gflop_per_step gflops peak_share peak_rss_bytes kernels_per_step first_step_s".split()) <= set(o)'
sane='o["examples_per_s"]["min"] <= o["examples_per_s"]["median"] <= o["examples_per_s"]["max"] and o["ms_per_step"]["median"] > 0 and (o["peak_share"] is None or o["peak_share"] <= 1 or o.get("suspect") is True)'
t "build" "$mantou" build models/lenet.net --batch 16 -o "$dir/lenet"
for mode in train infer; do
	t "bench $mode" "$dir/lenet" bench --synthetic --json --mode $mode --warmup 1 --steps 2 --repeat 3 --threads 1
	json "bench --mode $mode: keys" out "$keys"
	json "bench --mode $mode: figures" out "$sane"
	json "bench --mode $mode: what was asked" out "o[\"mode\"] == \"$mode\" and o[\"batch\"] == 16 and o[\"steps\"] == 2 and o[\"repeats\"] == 3 and o[\"threads\"] == 1"
done
t "bench for people" "$dir/lenet" bench --synthetic --warmup 1 --steps 2 --repeat 1
t "profile" "$dir/lenet" bench --synthetic --warmup 1 --steps 2 --repeat 1 --profile "$dir/trace.json"
if grep -q conv2d0 "$dir/out"; then passed=$((passed + 1)); else bad "the profile names no layer"; fi
json "trace" trace.json 'len(o["traceEvents"] if isinstance(o, dict) else o) > 10'
# What the compiler predicts and what the executable holds are of one plan.
"$mantou" info --json models/lenet.net --batch 16 >"$dir/info"
"$dir/lenet" info --json >"$dir/out"
json "info of the executable" out 'set("model target arch precision batch parameters parameter_bytes arena_bytes gflop_per_step bytes_per_step kernels_per_step inputs outputs source_hash".split()) <= set(o)'
for key in model target arch precision batch parameters parameter_bytes arena_bytes scratch_bytes gflop_per_step bytes_per_step kernels_per_step source_hash inputs outputs; do
	if python3 -c "import json, sys; a, b = (json.load(open(f))['$key'] for f in sys.argv[1:]); assert a == b, (a, b)" "$dir/info" "$dir/out" 2>"$dir/err"; then passed=$((passed + 1)); else bad "info: $key differs: $(tail -n 1 "$dir/err")"; fi
done
json "predicted time" info 'o["predicted_ms_per_step"] > 0 and sum(k["flops"] for k in o["kernels"]) > 1e6'
for f in tests/bench/*.py models/*.py; do
	if python3 -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" $f; then passed=$((passed + 1)); else bad "$f"; fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
