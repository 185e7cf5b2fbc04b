#!/bin/sh
# The suite's group bench: measurements run and print what other programs read; nothing is asserted about speed but that it is a number and below the peak.
# run.sh's options and arithmetic are held by results made up (canned.jsonl), without any rival.
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
t "csv_bench.py" python3 tests/bench/csv_bench.py --rows 2000 --mantou "$mantou"
if grep -q 'reader, 2 threads.* MB/s' "$dir/out"; then passed=$((passed + 1)); else bad "csv_bench.py prints no speed"; fi
# More threads than there are: the pool's rule, from a profile and from tasks made up.
t "profile of one thread" "$dir/lenet" bench --synthetic --warmup 1 --steps 2 --repeat 1 --threads 1 --profile="$dir/t.json" --json
json "tasks of kernels" out 'all(k["tasks"] >= 1 and k["whole"] >= 1 for k in o["kernels"]) and any(k["whole"] > 1 for k in o["kernels"])'
cp "$dir/out" "$dir/profile"
printf 'model wide(x: f32[N, 1024]) { loss mean(square(x |> dense(1024) |> relu |> dense(1024))) }\ndata { reader = synthetic(2048) }\ntrain { batch = 1024 }\n' >"$dir/wide.net"
t "build of large products" "$mantou" build "$dir/wide.net" -o "$dir/wide"
t "profile of large products" "$dir/wide" bench --synthetic --warmup 1 --steps 1 --repeat 1 --threads 1 --profile="$dir/t.json" --json
json "large products have tasks for many threads" out 'len([k for k in o["kernels"] if k["gflop"] > 1.5]) == 5 and all(k["tasks"] >= 64 for k in o["kernels"] if k["gflop"] > 1.5)'
t "scaling.py" python3 tests/bench/scaling.py "$dir/profile" --threads 1,2,4 --rates 100,24 --json
json "predicted steps" out '[r["threads"] for r in o["rows"]] == [1, 2, 4] and o["rows"][0]["efficiency"] > 0.999 and o["rows"][1]["efficiency"] < 1 and o["rows"][2]["best_ms"] <= o["rows"][0]["ms"]'
t "scaling.py's shares" python3 -c '
import sys
sys.path.insert(0, "tests/bench")
from scaling import makespan as most
assert most(1, 64) == 1 and most(100, 1) == 100
assert most(64, 64) == 1 and most(65, 64) == 2         # one thread has two
assert most(28 * 16, 2, 16) == 14 * 16                 # rows of pixels stay whole
assert most(7 * 16, 2, 16) == 7 * 8                    # there are too few: they are parted
assert most(4 * 100, 64, 100) == 7                     # four parts, 64 threads
'
# What the compiler predicts and what the executable holds are of one plan.
"$mantou" info --json models/lenet.net --batch 16 >"$dir/info"
"$dir/lenet" info --json >"$dir/out"
json "info of the executable" out 'set("model target arch precision batch parameters parameter_bytes arena_bytes gflop_per_step bytes_per_step kernels_per_step inputs outputs source_hash".split()) <= set(o)'
for key in model target arch precision batch parameters parameter_bytes arena_bytes scratch_bytes gflop_per_step bytes_per_step kernels_per_step source_hash inputs outputs; do
	if python3 -c "import json, sys; a, b = (json.load(open(f))['$key'] for f in sys.argv[1:]); assert a == b, (a, b)" "$dir/info" "$dir/out" 2>"$dir/err"; then passed=$((passed + 1)); else bad "info: $key differs: $(tail -n 1 "$dir/err")"; fi
done
json "predicted time" info 'o["predicted_ms_per_step"] > 0 and sum(k["flops"] for k in o["kernels"]) > 1e6'
# Operators alone, in their smallest size: values are right, each with a line `time` is there, and each that has a kernel has such a line.
operators=${BUILD:-$PWD/build}/tests/bench/operators
t "operators" env MANTOU_LLVM_FAST=1 "$operators" tests/operators --quick --json
json "operators: rows" out 'len(o["rows"]) > 150 and all(r["us"] > 0 and r["roofline_share"] > 0 for r in o["rows"] if r["kernels"])'
json "operators: all that are timed" out '{r["operator"] for r in o["rows"]} == {l.split()[0] for f in __import__("glob").glob("tests/operators/*.txt") for l in open(f) if " time " in l and l[0] != "#"}'
json "operators: gradients" out '{"relu", "conv2d", "attention", "take"} <= {r["operator"] for r in o["rows"] if r["part"] == "gradient" and r["kernels"]}'
t "operators for people" env MANTOU_LLVM_FAST=1 "$operators" tests/operators/elementwise.txt tanh --quick --threads 1
if grep -q '% .* gradient: tanh' "$dir/out"; then passed=$((passed + 1)); else bad "operators: no row for tanh"; fi
# run.sh and measure.py
u() { # u NAME STATUS PATTERN COMMAND...: exit status, and a pattern that the output holds
	name=$1 want=$2 pattern=$3
	shift 3
	"$@" >"$dir/out" 2>&1
	got=$?
	if [ $got = "$want" ] && grep -qE -- "$pattern" "$dir/out"; then passed=$((passed + 1)); else bad "$name: status $got, no /$pattern/ in: $(head -c 300 "$dir/out")"; fi
}
has() { # has NAME PATTERN: so does what the command before printed
	if grep -qE -- "$2" "$dir/out"; then passed=$((passed + 1)); else bad "$1: no /$2/ in: $(head -c 300 "$dir/out")"; fi
}
run="sh tests/bench/run.sh --rivals $dir/none"
u "--list" 0 '^resnet50-mixed resnet50-cifar10 train 32 mixed 1.8 .* torch,torch-bf16' $run --list
if [ "$(grep -vc "^#" "$dir/out")" = "$(grep -vc "^#" tests/bench/rows.txt)" ]; then passed=$((passed + 1)); else bad "--list: not all rows"; fi
u "--list of some" 0 '^lenet8 lenet train 8' $run --list --rows lenet8
if [ "$(grep -vc "^#" "$dir/out")" = 1 ]; then passed=$((passed + 1)); else bad "--list --rows: more than that row"; fi
u "--help" 0 'run.sh .*--rounds N' $run --help
u "a row that is not there" 2 'there is no row resnet51; there are resnet50, ' $run --rows resnet51
u "no rounds" 2 'a positive number' $run --rounds 0
u "no number" 2 'invalid int value' $run --rounds many
u "an unknown option" 2 'unrecognized arguments: --fast' $run --fast
u "an option without value" 2 'expected one argument' $run --json
if [ -e "$dir/none" ]; then bad "something was installed"; else passed=$((passed + 1)); fi
measure="python3 tests/bench/measure.py"
u "a row with words missing" 2 'a row has 10 words, name .*; this one has 3' $measure --row 'a lenet train'
u "a row with a word for a number" 2 "row a: invalid literal" $measure --row 'a lenet train many f32 1.0 1 2 1 torch'
u "a row with an unknown rival" 2 'there is no rival torchy; there are torch, ' $measure --row 'a lenet train 8 f32 1.0 1 2 1 torchy'
u "no such file" 2 'No such file' $measure --from "$dir/none.jsonl"
u "medians" 0 '^  mantou  +f32 +25.0 +30.0 +200  80.0 % +1000 +1.500 *$' $run --from tests/bench/canned.jsonl
has "a rival" '^  PyTorch 2.15.0 +f32 +11.0 +12.5 +88  35.2 % +2000 +5.250 +2.27$'
has "a rival that failed" '^  PyTorch, compiled +f32   failed: no compiler$'
has "a rival of which a sample is missing" '^  MXNet 1.9.1 +f32 +15.0 +16.0 '
has "the best rival" 'mantou is 1.67 times the best rival, MXNet 1.9.1, by medians, 1.88 by bests; at least 1.50 is asked: met'
has "not what was asked" 'mantou is 0.78 times the best rival, ONNX Runtime 1.31.1, by medians, 1.11 by bests; at least 1.00 is asked: NOT met'
has "none there" '^  no rival ran: no ratio'
has "the summary" '^slower +200.0  ONNX Runtime 1.31.1, f32 +255.0 +0.78 +1.00  NOT met$'
has "their mean and the least" '^of 2 rows the geometric mean is 1\.14, the least 0\.78 \(slower\)$'
u "a row without rivals" 0 '^  PyTorch +f32   not installed: ' $measure --rivals "$dir/none" --mantou "$mantou" --json "$dir/rows.jsonl" --row 'alone lenet train 8 f32 1.0 1 2 2 torch,mxnet'
json "its record" rows.jsonl 'len(o["contestants"][0]["samples"]) == 2 and o["contestants"][0]["gflops"] > 0 and o["ratio"] is None and "not installed" in o["contestants"][2]["missing"] and o["peak_gflops"] > 0'
for f in tests/bench/*.py models/*.py; do
	if python3 -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" $f; then passed=$((passed + 1)); else bad "$f"; fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
