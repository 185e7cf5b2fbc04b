#!/bin/sh
# The runtime of CUDA executables, by one that is written by hand (image.c), on the simulated driver: the runtime's own tests, then what a device adds.
# Skipped where there is no NVRTC. Last line: the counts.
set -u
cd "$(dirname "$0")"
build=${BUILD:-../../build}
image=$build/tests/device/deviceimage
tmp=$(mktemp -d "${TMPDIR:-/tmp}/device.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
LD_LIBRARY_PATH=$(cd "$build/tests/cudasim" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} RTI_PTX=$tmp/ptx MANTOU_SIM_THREADS=2
export LD_LIBRARY_PATH RTI_PTX MANTOU_SIM_THREADS
"$image" info >"$tmp/out" 2>&1
if [ $? = 77 ] || ! command -v python3 >/dev/null; then
	echo "skip device: no NVRTC or no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
python3 ../runtime/test_runtime.py "$image" >"$tmp/first" 2>&1
grep -v ' passed, ' "$tmp/first"
python3 test_device.py "$image" "$build/tests/runtime/rtimage" >"$tmp/second" 2>&1
grep -v ' passed, ' "$tmp/second"
for f in first second; do
	tail -n 1 "$tmp/$f" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped" >>"$tmp/$f"
done
tail -qn 1 "$tmp/first" "$tmp/second" | tr -dc '0-9 \n' | awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
