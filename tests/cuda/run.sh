#!/bin/sh
# Kernels of target cuda against the reference, on the device that libcuda.so.1 offers: MANTOU_LIBCUDA, the simulated device of the build, or a GPU's driver.
# The cases of numeric/, contractions in tiles, composite operators, poolings and every tenth group of the CPU's tests; with --long all of these tests, and an operator without a case is an error. What NVRTC makes is kept in the build folder. Contractions by wgmma run once more for sm_90a, which has it (without --long every second module: ptxas takes a third of a second for each), and so do some of the other kernels.
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
	part cuda tests/numeric/cases.txt tests/cpu/cases.txt tests/cpu/groups.ir tests/cpu/pairs.ir tests/cpu/depthwise.ir tests/cuda/tiles.ir tests/cuda/composites.ir tests/cuda/windows.ir tests/cuda/rows.ir tests/cuda/images.ir
else
	cat tests/cpu/groups.ir tests/cpu/pairs.ir | awk '/^module /{n++} !/^#/ && n % 10 == 1' >"$dir/some.ir"
	part numeric tests/numeric/cases.txt
	awk '/^module /{n++} !/^#/ && n % 4 == 1' tests/cuda/tiles.ir tests/cuda/composites.ir >"$dir/tiles.ir"
	part space --space=1 "$dir/tiles.ir"
	part space_rows --space=4 tests/cuda/rows.ir tests/cuda/depthwise.ir
	awk '/^module /{n++} !/^#/ && n % 2 == 1' tests/cpu/depthwise.ir >"$dir/depthwise.ir"
	part groups "$dir/some.ir" "$dir/depthwise.ir" tests/cuda/tiles.ir tests/cuda/composites.ir tests/cuda/windows.ir tests/cuda/rows.ir tests/cuda/images.ir
fi
CUDA_TEST_ARCH=sm_90a
export CUDA_TEST_ARCH
if [ -n "${LONG:-}" ]; then
	part wgmma tests/cuda/wgmma.ir
else
	awk '/^module /{n++} !/^#/ && n % 2 == 1' tests/cuda/wgmma.ir >"$dir/some90.ir"
	part wgmma "$dir/some90.ir"
fi
awk '/^module /{n++} !/^#/ && n % 12 == 1' tests/cuda/composites.ir tests/cuda/tiles.ir tests/cuda/windows.ir >"$dir/others90.ir"
part others90 "$dir/others90.ir" tests/cuda/rows.ir
awk '/^module /{n++} !/^#/ && n % 8 == 1' tests/cuda/wgmma.ir >"$dir/wgmma.ir"
part space90 --space=1 "$dir/wgmma.ir"
wait
passed=0 failed=0 skipped=0
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
