#!/bin/sh
# Tests of the runtime through an executable written by hand (image.c), without the compiler. Last line: the counts.
set -u
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null; then
	echo "skip runtime: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
build=${BUILD:-../../build}
if [ -z "${LONG:-}" ]; then
	exec python3 test_runtime.py "${RTIMAGE:-$build/tests/runtime/rtimage}"
fi
# Once more under ThreadSanitizer, whose reports count, and nothing that a slow program fails besides.
counts=$(python3 test_runtime.py "$build/tests/runtime/rtimage" | tee /dev/stderr | tail -n 1)
if ! ninja -C "$build" tests/runtime/rtimage_tsan >/dev/null 2>&1; then
	echo "skip runtime: no ThreadSanitizer"
	echo "$counts" | awk '{print $1 " passed, " $3 " failed, " $5 + 1 " skipped"}'
	exit 0
fi
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
TSAN_OPTIONS="log_path=$reports/report exitcode=0 report_signal_unsafe=0" timeout 1500 python3 test_runtime.py "$build/tests/runtime/rtimage_tsan" >/dev/null 2>&1
races=$(cat "$reports"/* 2>/dev/null | grep '^SUMMARY: ThreadSanitizer' | sort | uniq -c)
[ -z "$races" ] || echo "$races" | sed 's/^ */FAIL runtime under ThreadSanitizer, times: /'
echo "$counts" | awk -v bad="$races" '{print $1 + (bad == "") " passed, " $3 + (bad != "") " failed, " $5 " skipped"}'
[ -z "$races" ]
