#!/bin/sh
# Racing programs, end to end: what --race builds, and the command race with times from a table: nothing here looks at
# a clock, processes and checks are real. Last line: the counts.
cd "$(dirname "$0")" || exit 1
export MANTOU="${MANTOU:-$PWD/../../build/mantou}"
if ! command -v python3 >/dev/null 2>&1; then
	echo "skip race: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
if ! grep -qw avx2 /proc/cpuinfo; then
	echo "skip race: the kernels that race are of x86-64-v3, which this CPU does not run"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
exec python3 test_race.py
