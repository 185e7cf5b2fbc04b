#!/bin/sh
# Executables of target cuda on the simulated driver, as they are shipped: beside the CPU's and the interpreter's, and every way to run them beside every
# other. What NVRTC makes is kept in the build folder. Skipped where there is no NVRTC. With --long every file of models/ is compiled in each precision and trains for a step, and the
# conformance kit's operator cases run.
set -u
cd "$(dirname "$0")/../.."
group=sink
. tests/sink/prepare.sh
kit=../shared/reference/run.py
if [ -n "${LONG:-}" ] && [ -f $kit ] && [ $# = 0 ] && python3 -c 'import numpy' 2>/dev/null; then
	kit() {
		python3 $kit --mantou "$MANTOU" --timeout 600 -j 2 "$@" >"$tmp/cases" 2>&1
		grep '^FAIL' "$tmp/cases"
		tail -n 1 "$tmp/cases" | grep -E '^[0-9]+ passed' >>"$tmp/kit" || echo "0 passed, 1 failed, 0 skipped" >>"$tmp/kit"
	}
	kit --ops --build-args "--target cuda --arch sm_80"
	[ ! -d ../shared/reference/ops2 ] || for precision in f32 bf16 f16; do
		kit --dir ../shared/reference/ops2 --bounds $precision --build-args "--target cuda --arch sm_80 --precision $precision"
	done
else
	echo "0 passed, 0 failed, 0 skipped" >"$tmp/kit"
fi
python3 tests/sink/test_sink.py "$MANTOU" "$@" >"$tmp/out"
grep -v ' passed, ' "$tmp/out"
tail -n 1 "$tmp/out" | grep -qE '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped" >>"$tmp/out"
{ cat "$tmp/kit"; tail -n 1 "$tmp/out"; } | tr -dc '0-9 \n' | awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
