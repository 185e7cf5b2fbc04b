#!/bin/sh
# `mantou tune`, end to end: times come from a table (--costs), so that what must win is known and nothing looks at a
# clock; processes, kernels, checks and files are real. Last line: the counts. --long adds more kills and seeds.
cd "$(dirname "$0")" || exit 1
export MANTOU="${MANTOU:-$PWD/../../build/mantou}"
if ! command -v python3 >/dev/null 2>&1; then
	echo "skip tune: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
if ! grep -qw avx2 /proc/cpuinfo; then
	echo "skip tune: the kernels that race are of x86-64-v3, which this CPU does not run"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
exec python3 test_tune.py
