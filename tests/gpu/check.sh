#!/bin/sh
# The suite's group gpu: run.sh from end to end on the simulated driver, in sizes of seconds; nothing is asserted about speed. That what stands in the results is not
# done again, what is missing is said, and what is wrong is found.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
export BUILD="$build" MANTOU="${MANTOU:-$build/mantou}" XDG_CACHE_HOME="$build/tests/nvrtc" MANTOU_LIBCUDA="$build/tests/cudasim/libcuda.so.1" MANTOU_SIM_THREADS=2
mkdir -p "$XDG_CACHE_HOME"
dir=$(mktemp -d "${TMPDIR:-/tmp}/gpu.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
check() { # check NAME STATUS PATTERN COMMAND...
	name=$1 want=$2 pattern=$3
	shift 3
	"$@" >"$dir/out" 2>&1
	got=$?
	if [ $got = "$want" ] && grep -qE -- "$pattern" "$dir/out"; then passed=$((passed + 1)); else
		failed=$((failed + 1))
		echo "FAIL $name: status $got, no /$pattern/ in: $(grep -E 'FAIL|rror|prepare' "$dir/out" | head -c 600)"
	fi
}
has() { # has NAME PATTERN: so does what the command before printed
	if grep -qE -- "$2" "$dir/out"; then passed=$((passed + 1)); else
		failed=$((failed + 1))
		echo "FAIL $1: no /$2/ in: $(head -c 300 "$dir/out")"
	fi
}
if ! command -v python3 >/dev/null || { ! "$MANTOU" build tests/train/table.net --target cuda --arch sm_80 -o "$dir/probe" >"$dir/out" 2>&1 && grep -qi nvrtc "$dir/out"; }; then
	echo "skip gpu: no NVRTC or no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
gpu="sh tests/gpu/run.sh"
check "no folder" 2 "holds nothing that was prepared" $gpu "$dir/none"
check "no word" 2 "sh tests/gpu/run.sh prepare DIR" $gpu
check "prepare" 0 "holds [0-9.]* MB" $gpu prepare "$dir/p" --tiny
check "part 1" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p" --part 1
has "the device" "name simulated sm_90"
has "instructions" "^intrinsics convert: [1-9][0-9]* runs, no failures"
has "the cost of a loop" "^\| lstm.f32 sink epoch \| [0-9.]* \|"
command -v nvidia-smi >/dev/null || has "what is missing" "^skip +probe nvidia-smi: no nvidia-smi here"
check "part 2" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p" --part 2
has "models" "^\| lenet, 4, bf16 \| mantou \| [0-9.]* \([0-9.]*\)"
has "a model without an instruction" "^\| lenet, 4, bf16, without tma \| mantou \| [0-9.]* \([0-9.]*\)"
has "kernel by kernel" "^\| train_conv2d_dw_conv2d0"
has "forecasts beside it" "^lenet.4.bf16: forecast [0-9.]* ms, measured [0-9.]*; by kernel the farthest apart"
command -v compute-sanitizer >/dev/null || check "part 3 without a sanitizer" 0 "^skip +sanitize lstm.f16 racecheck: no compute-sanitizer here" $gpu "$dir/p" --only sanitize --results "$dir/tools.jsonl"
# One that finds something, then nothing: what failed is done once more.
mkdir "$dir/tools"
cat >"$dir/tools/compute-sanitizer" <<'END'
#!/bin/sh
[ "$1 $3 $5" = "--tool --error-exitcode --print-limit" ] || exit 9
shift 6
"$@" || exit 4
[ -z "${FOUND:-}" ] || { echo "========= ERROR SUMMARY: 2 errors"; exit 3; }
echo "========= ERROR SUMMARY: 0 errors"
END
chmod +x "$dir/tools/compute-sanitizer"
check "what a sanitizer finds" 1 "^FAIL +sanitize lstm.f16 memcheck: .*status 3: .*2 errors" env FOUND=1 PATH="$dir/tools:$PATH" $gpu "$dir/p" --only sanitize --results "$dir/found.jsonl"
check "stays found" 1 "^FAIL +sanitize lstm.f16 memcheck" env PATH="$dir/tools:$PATH" $gpu "$dir/p" --only sanitize --results "$dir/found.jsonl"
check "until it is asked again" 0 "^3 passed, 0 failed" env PATH="$dir/tools:$PATH" $gpu "$dir/p" --only sanitize --again --results "$dir/found.jsonl"
check "part 3" 0 "^[0-9]+ passed, 0 failed" env PATH="$dir/tools:$PATH" $gpu "$dir/p" --part 3
has "kernels" "^kernels tanh: [1-9][0-9]* runs, no failures"
has "kernels of another architecture" "^kernels wgmma: [1-9][0-9]* runs, no failures"
check "part 4" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p" --part 4
has "a race" "^lenet.4.bf16.race: [1-9][0-9]* kernels, [1-9][0-9]* variants that compute the same; .*nothing was timed.*then: mantou tune .*--results results.jsonl.lenet.4.bf16.race"
check "part 5" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p" --part 5
python3 -c 'import torch' 2>/dev/null || has "no rival" "^skip +torch lenet.4.bf16 eager: no torch here"
check "part 6" 0 "^skip +kit all: no kit was prepared" $gpu "$dir/p" --part 6
before=$(cksum <"$dir/p/results.jsonl")
check "once more" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p"
if [ "$before" = "$(cksum <"$dir/p/results.jsonl")" ]; then passed=$((passed + 1)); else
	failed=$((failed + 1))
	echo "FAIL what stood in the results was done again"
fi
# A run that was cut off goes on: one line is gone, one item comes back.
grep -v '"modes"' "$dir/p/results.jsonl" >"$dir/cut.jsonl"
printf '%s\n' '{"stage": "modes", "item": "*", "status": "timeout", "why": "cut"}' >>"$dir/cut.jsonl"
check "cut off" 1 "^timeout modes \*: cut" $gpu table "$dir/cut.jsonl"
check "goes on" 0 "^[0-9]+ passed, 0 failed" $gpu "$dir/p" --only modes --results "$dir/cut.jsonl"
# Another expectation is not met.
cp "$dir/p/small/lstm.start.st" "$dir/p/small/lstm.truth.st"
check "what is wrong is found" 1 "^FAIL +modes lstm.f32: " $gpu "$dir/p" --only modes --results "$dir/wrong.jsonl"
check "no loop in a graph" 1 "^FAIL +modes lstm.f32: .*no loop in a graph" env MANTOU_SIM_MISSING=cuGraphConditionalHandleCreate $gpu "$dir/p" --only modes --results "$dir/loop.jsonl"
check "a kernel that fails" 1 "^FAIL +kernels tanh: .*FAIL .*status 700 \| FAIL tanh" env MANTOU_SIM_FAIL=60:700 $gpu "$dir/p" --only kernels --results "$dir/fault.jsonl"
mkdir "$dir/far"
cp -r "$dir/p/model" "$dir/far"
python3 -c 'import json, sys
a = json.load(open(sys.argv[1]))
for row in a["models"]:
    row["losses"][0] *= 1.1
json.dump(a, open(sys.argv[2], "w"), indent=1)' "$dir/p/about.json" "$dir/far/about.json"
check "other losses" 1 "^FAIL +models lenet.4.bf16: .*on the CPU in f32" $gpu "$dir/far" --only models --results "$dir/far.jsonl"
mkdir -p "$dir/hang/kernels"
cp "$dir/p/about.json" "$dir/hang"
cp "$dir/p/kernels/cache.tar.xz" "$dir/hang/kernels"
cat >"$dir/hang/kernels/cuda" <<'END'
#!/bin/sh
if [ "$CUDA_TEST_FROM" = 0 ]; then echo "run 1: one case" && echo "run 2: another" && exec sleep 100; fi
echo "run 3: the last"
echo "$CUDA_TEST_ARCH: 3 runs, 0 failures"
END
check "a kernel that hangs" 1 "^FAIL +kernels tanh: .*3 runs, 0 failures .*: 1 failures: FAIL another: hangs" env GPU_HUNG=2 $gpu "$dir/hang" --only kernels --results "$dir/hang.jsonl"
sed 's/"prepared": "[0-9a-f]*"/"prepared": "other"/' "$dir/p/results.jsonl" >"$dir/other.jsonl"
printf '%s\n' '{"stage": "modes", "item": "gone", "prepared": "other", "status": "FAIL", "why": "old"}' >>"$dir/other.jsonl"
check "prepared anew" 0 "^[2-3] passed, 0 failed" $gpu "$dir/p" --only probe --results "$dir/other.jsonl"
# A conformance kit: its programs travel, and are held against its numbers there.
if [ ! -f ../shared/reference/run.py ]; then
	skipped=$((skipped + 1))
	echo "skip gpu kit: no folder ../shared/reference"
elif ! python=$(sh tests/numpy.sh); then
	skipped=$((skipped + 1))
	echo "skip gpu kit: no python3 with numpy"
else
	check "no kit" 2 "none.*holds no run.py" $gpu prepare "$dir/kit" --only kit --kit "$dir/none"
	check "prepare a kit" 0 "kit f32: [1-9][0-9]* cases, [1-9][0-9]* programs, 0 that could not be built" env PYTHON="$python" $gpu prepare "$dir/kit" --tiny --only kit --kit ../shared/reference
	check "the kit" 0 "^conformance kit f32: [1-9][0-9]* cases, no failures" env PYTHON="$python" $gpu "$dir/kit" --part 6
	check "the kit's failures" 1 "^FAIL +kit f32: 0 passed, [1-9][0-9]* failed, .*FAIL relu: .*700" env PYTHON="$python" MANTOU_SIM_FAIL=30:700 $gpu "$dir/kit" --part 6 --results "$dir/kit.jsonl"
	sed 's/"cases": [0-9]*/"cases": 999/' "$dir/kit/about.json" >"$dir/about" && mv "$dir/about" "$dir/kit/about.json"
	check "a case that is missing" 1 "^FAIL +kit f32: [1-9][0-9]* passed, 0 failed, 0 skipped, of 999 cases" env PYTHON="$python" $gpu "$dir/kit" --part 6 --results "$dir/kit2.jsonl"
fi
check "no driver" 1 "FAIL +probe driver: OSError" env MANTOU_LIBCUDA=/none.so $gpu "$dir/p" --only probe --results "$dir/none.jsonl"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
