#!/bin/sh
# Every reader under libFuzzer, with the address and undefined-behaviour sanitizers: long.sh [SECONDS [TARGET...]], 600 seconds a target unless said.
# It builds with clang in build-fuzz/, keeps what it found worth keeping in build-fuzz/corpus/TARGET (a later run goes on from there) and what failed in
# build-fuzz/found/: crashes, leaks, more than 2 GiB, more than 20 s (sanitizers take five times as long as what is delivered). A file from there is run again by build-fuzz/tests/fuzz/libfuzz_TARGET FILE.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
seconds=${1:-600}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- net ir tune safetensors npy idx cifar
build=${BUILD_FUZZ:-build-fuzz}
cc=
for name in clang-19 clang; do
	[ -n "$cc" ] || ! command -v $name >/dev/null || cc=$name
done
[ -n "$cc" ] || { echo "long.sh: clang is missing: apt-get install clang-19" >&2; exit 1; }
{ [ -f "$build/build.ninja" ] || CC=$cc meson setup "$build" -Dfuzz=true -Dasan=true; } >/dev/null || exit 1
build=$(cd "$build" && pwd)
for t in "$@"; do
	targets="${targets:-} tests/fuzz/libfuzz_$t tests/fuzz/fuzz_$t"
done
ninja -C "$build" $targets >"$build/ninja.log" || { tail -n 20 "$build/ninja.log"; exit 1; }
mkdir -p "$build/found"
cd "$build/found" || exit 1
failed=0
for t in "$@"; do
	corpus=$build/corpus/$t
	mkdir -p "$corpus"
	case $t in
	net) find "$root/models" "$root/tests" -name '*.net' -exec cp {} "$corpus" \; ;;
	ir) find "$root/tests" \( -name '*.ir' -o -name '*.txt' \) -size -100k -exec cp {} "$corpus" \; ;;
	esac
	"$build/tests/fuzz/fuzz_$t" --seeds "$corpus" || failed=1
	if "$build/tests/fuzz/libfuzz_$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$t-" -print_final_stats=1 "$corpus" >"$t.log" 2>&1; then
		echo "$t: $(sed -n 's/^stat::number_of_executed_units: *//p' "$t.log") runs in $seconds s, $(grep -c . "$t.log") lines of log, nothing found"
	else
		failed=1
		echo "FAIL $t: $(grep -m 1 -E 'ERROR|runtime error|deadly|out-of-memory|timeout' "$t.log"); $build/found/$t.log"
	fi
done
exit $failed
