#!/bin/sh
# Contractions by cuDNN: what records of a tuning file make of a program, and executables with plans on the stand-ins for cuDNN (this folder) and for the driver (cudasim), as they are
# shipped; plans of the real library for the stored profiles, where it is installed. Skipped where there is no NVRTC. Last line: the counts.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
export MANTOU="${MANTOU:-$build/mantou}" XDG_CACHE_HOME="$build/tests/cudnn/cache" MANTOU_SIM_THREADS=2 MANTOU_LIBCUDA="$build/tests/cudasim/libcuda.so.1" STANDIN="$build/tests/cudnn"
mkdir -p "$XDG_CACHE_HOME"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cudnn.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
if ! command -v python3 >/dev/null; then
	echo "skip cudnn: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
if ! "$MANTOU" build tests/train/table.net --target cuda --arch sm_80 -o "$tmp/probe" >"$tmp/out" 2>&1 && grep -qi nvrtc "$tmp/out"; then
	echo "skip cudnn: there is no NVRTC"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
python3 tests/cudnn/test_cudnn.py "$MANTOU" "$@" >"$tmp/out"
cat "$tmp/out"
tail -n 1 "$tmp/out" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped"
