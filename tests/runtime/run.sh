#!/bin/sh
# Tests of the runtime through an executable written by hand (image.c), without the compiler. Last line: the counts.
set -u
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null; then
	echo "skip runtime: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
exec python3 test_runtime.py "${RTIMAGE:-${BUILD:-../../build}/tests/runtime/rtimage}"
