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
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for test in race cuda; do
	python3 test_$test.py >"$dir/$test" 2>&1
	cat "$dir/$test" >>"$dir/all"
	tail -n 1 "$dir/$test" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped" >>"$dir/all"
done
grep -vE '^[0-9]+ passed' "$dir/all"
grep -E '^[0-9]+ passed' "$dir/all" | tr -dc '0-9 \n' | awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
