#!/bin/sh
# Kernels of target cuda against the reference, on the device that libcuda.so.1 offers: MANTOU_LIBCUDA, the simulated device of the build, or a GPU's driver.
# The small cases of operators/, contractions in tiles, composite operators, poolings and every tenth group of the CPU's tests; with --long all of these tests, and an operator without a case is an error. What NVRTC makes is kept in the build folder. Contractions by wgmma run once more for sm_90a, which has it (without --long every third module: ptxas takes a third of a second for each), and so do some of the other kernels.
# Some run with another kernel of those that `mantou tune` would try; tests/cuda/run --space is all of them.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build-check}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export XDG_CACHE_HOME="$build/tests/nvrtc"
[ -n "${MANTOU_LIBCUDA:-}" ] || [ ! -f "$build/tests/cudasim/libcuda.so.1" ] || export MANTOU_LIBCUDA="$build/tests/cudasim/libcuda.so.1"
# part NAME FILE...: a process of its own, beside the others
part() {
	name=$1
	shift
	names="$names $name"
	{
		"$build/tests/cuda/cuda" "$@" >"$dir/$name.out" 2>&1
		echo $? >"$dir/$name.status"
	} &
}
names=
if [ -n "${LONG:-}" ]; then
	part space --space=8 tests/cuda/tiles.ir tests/cuda/composites.ir tests/cuda/rows.ir tests/cuda/depthwise.ir
	part cuda tests/operators tests/cpu/groups.ir tests/cpu/pairs.ir tests/cpu/depthwise.ir tests/cuda/tiles.ir tests/cuda/composites.ir tests/cuda/windows.ir tests/cuda/rows.ir tests/cuda/images.ir
else
	cat tests/cpu/groups.ir tests/cpu/pairs.ir | awk '/^module /{n++} !/^#/ && n % 10 == 1' >"$dir/some.ir"
	# small kernels, which NVRTC takes longer for than the device does: the less it does the better
	fast=${MANTOU_NVRTC_FAST:-}
	[ -z "$fast" ] || MANTOU_NVRTC_FAST=max
	part small --small tests/operators
	[ -z "$fast" ] || MANTOU_NVRTC_FAST=$fast
	awk '/^module /{n++} !/^#/ && n % 4 == 1' tests/cuda/tiles.ir tests/cuda/composites.ir >"$dir/tiles.ir"
	part space --space=1 "$dir/tiles.ir"
	part space_rows --space=4 tests/cuda/rows.ir tests/cuda/depthwise.ir
	awk '/^module /{n++} !/^#/ && n % 2 == 1' tests/cpu/depthwise.ir >"$dir/depthwise.ir"
	awk '/^module /{n++} !/^#/ && n % 4 != 1' tests/cuda/tiles.ir >"$dir/others.ir" # which space does not run
	part groups "$dir/some.ir" "$dir/depthwise.ir" "$dir/others.ir" tests/cuda/composites.ir tests/cuda/windows.ir tests/cuda/rows.ir tests/cuda/images.ir
fi
CUDA_TEST_ARCH=sm_90a
export CUDA_TEST_ARCH
if [ -n "${LONG:-}" ]; then
	part wgmma tests/cuda/wgmma.ir
else
	awk '/^module /{n++} !/^#/ && n % 3 == 1' tests/cuda/wgmma.ir >"$dir/some90.ir"
	part wgmma "$dir/some90.ir"
fi
awk '/^module /{n++} !/^#/ && n % 12 == 1' tests/cuda/composites.ir tests/cuda/tiles.ir tests/cuda/windows.ir >"$dir/others90.ir"
part others90 "$dir/others90.ir" tests/cuda/rows.ir
awk '/^module /{n++} !/^#/ && n % 8 == 1' tests/cuda/wgmma.ir >"$dir/wgmma.ir"
part space90 --space=1 "$dir/wgmma.ir"
# ---- speed, as far as it is predicted. By the plan no operator at less than a tenth of the roofline, and no contraction a number at a time; by the machine code none of a step's kernels that is above 3 % of it at less than half of its roofline, but those whose reason stands here
mantou=${MANTOU:-$build/mantou}
passed=0 failed=0 skipped=0
for arch in sm_80 sm_90a; do
	for precision in f32 bf16 f16; do
		"$mantou" explain tests/cuda/operators.net --target cuda --arch $arch --precision $precision --json >"$dir/plan.json" 2>"$dir/plan.err"
		if python3 -c 'import json, sys
slow = [x["why"] for x in json.load(open(sys.argv[1])) if x["rule"] == "roofline"]
sys.exit("\n".join(slow) or 0)' "$dir/plan.json"; then passed=$((passed + 1)); else
			failed=$((failed + 1))
			echo "FAIL operators, $arch $precision: at less than a tenth of the roofline by the plan $(head -n 3 "$dir/plan.err")"
		fi
	done
done
# shares NAME FILE BATCH [KERNELS]: those may, for the reason beside the call
shares() {
	"$mantou" info "$2" --target cuda --arch sm_90a --precision bf16 --batch "$3" --json >"$dir/forecast.json" 2>"$dir/forecast.err"
	python3 - "$dir/forecast.json" "${4:-^$}" <<'END'
import json, re, sys
d = json.load(open(sys.argv[1]))
step = 1e3 * d["forecast_ms_per_step"]
if not step:
    sys.exit(77)
bad = [k for k in d["kernels"] if k.get("forecast_us", 0) > 0.03 * step and k["predicted_us"] < 0.5 * k["forecast_us"]
       and not re.search(sys.argv[2], k["name"])]
sys.exit("\n".join("%(name)s: %(forecast_us).1f us, %(predicted_us).1f by the roofline" % k for k in bad) or 0)
END
	case $? in
	0) passed=$((passed + 1)) ;;
	77) skipped=$((skipped + 1)) ;;
	*)
		failed=$((failed + 1))
		echo "FAIL $1: kernels of more than 3 % of a step by the forecast, at less than half of their roofline: $(head -n 3 "$dir/forecast.err")"
		;;
	esac
}
# 64 steps, each of which waits for words of other blocks
shares lstm-bytes models/lstm-bytes.net 32 lstm_cells
[ -z "${LONG:-}" ] || shares "ResNet-50, 224 x 224" models/resnet50.net 256
wait
for name in $names; do
	status=$(cat "$dir/$name.status")
	cat "$dir/$name.out"
	if [ "$status" = 77 ]; then
		skipped=$((skipped + 1))
		continue
	fi
	set -- $(sed -n '$s/^sm_[0-9a-z]*: \([0-9]*\) runs, \([0-9]*\) failures$/\1 \2/p' "$dir/$name.out")
	if [ $# != 2 ]; then
		echo "FAIL $name ends early, status $status: $(tail -n 1 "$dir/$name.out")"
		set -- 1 1
	fi
	passed=$((passed + ($1 > $2 ? $1 - $2 : 0))) failed=$((failed + $2))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
