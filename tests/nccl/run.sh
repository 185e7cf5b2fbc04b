#!/bin/sh
# Programs of several processes with a device each (--distribute nccl): on the simulated driver of tests/cudasim and the simulated NCCL of this folder, as
# they are shipped, started with torchrun's variables and by the MPI libraries that are here. Skipped where there is no NVRTC. Last line: the counts.
set -u
cd "$(dirname "$0")/../.."
group=nccl
. tests/sink/prepare.sh
export MANTOU_LIBNCCL="$build/tests/nccl/libnccl.so.2" LESS="$build/tests/nccl/libnccl_less.so"
python3 tests/nccl/test_nccl.py "$MANTOU" "$@" >"$tmp/out"
cat "$tmp/out"
tail -n 1 "$tmp/out" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped"
