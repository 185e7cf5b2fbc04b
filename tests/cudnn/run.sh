#!/bin/sh
# Contractions by cuDNN: what records of a tuning file make of a program, and executables with plans on the simulated cuDNN (this folder) and driver (cudasim), as they are
# shipped; plans of the real library for the stored profiles, where it is installed. Skipped where there is no NVRTC. Last line: the counts.
set -u
cd "$(dirname "$0")/../.."
group=cudnn
. tests/sink/prepare.sh
export SIMULATED="$build/tests/cudnn"
python3 tests/cudnn/test_cudnn.py "$MANTOU" "$@" >"$tmp/out"
cat "$tmp/out"
tail -n 1 "$tmp/out" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped"
