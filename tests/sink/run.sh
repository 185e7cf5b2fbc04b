#!/bin/sh
# Executables of target cuda on the stand-in driver, as they are shipped: beside the processor's and the interpreter's, and every way to run them beside every
# other. What NVRTC makes is kept in the build folder. Skipped where there is no NVRTC. With --long every file of models/ trains for a step, and the
# conformance kit's operator cases run.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
export MANTOU="${MANTOU:-$build/mantou}" XDG_CACHE_HOME="$build/tests/sink/cache" MANTOU_SIM_THREADS=2
mkdir -p "$XDG_CACHE_HOME"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/sink.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
if ! command -v python3 >/dev/null; then
	echo "skip sink: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
if ! "$MANTOU" build tests/train/table.net --target cuda --arch sm_80 -o "$tmp/probe" >"$tmp/out" 2>&1 && grep -qi nvrtc "$tmp/out"; then
	echo "skip sink: there is no NVRTC"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
export MANTOU_LIBCUDA="$build/tests/cudasim/libcuda.so.1"
kit=../shared/reference/run.py
if [ -n "${LONG:-}" ] && [ -f $kit ] && [ $# = 0 ] && python3 -c 'import numpy' 2>/dev/null; then
	python3 $kit --mantou "$MANTOU" --ops --build-args "--target cuda --arch sm_80" --timeout 600 -j 2 >"$tmp/kit" 2>&1
	grep '^FAIL' "$tmp/kit"
	tail -n 1 "$tmp/kit" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped" >>"$tmp/kit"
else
	echo "0 passed, 0 failed, 0 skipped" >"$tmp/kit"
fi
python3 tests/sink/test_sink.py "$MANTOU" "$@" >"$tmp/out"
grep -v ' passed, ' "$tmp/out"
tail -n 1 "$tmp/out" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped" >>"$tmp/out"
tail -qn 1 "$tmp/kit" "$tmp/out" | tr -dc '0-9 \n' | awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
