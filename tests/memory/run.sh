#!/bin/sh
# Allocations that fail, one in each run: compiler and runtime end with status 0 or 1, a message with the latter, and
# what was in a file before, or all that the run writes, is in it. Some of them; with --long each of them.
set -u
cd "$(dirname "$0")/../.."
library=${BUILD:-$PWD/build}/tests/memory/failing.so
if [ ! -f "$library" ]; then
	echo "skip memory: no library that makes allocations fail in this build"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
export MANTOU_CACHE=off # or a run would find what another compiled

# failing WORDS FILE CASES COMMAND...: with each of CASES allocations, spread over all of them, failing. FILE is what it
# writes, with $dir/before in it first; WORDS the name for messages.
failing() {
	name=$1 file=$2 cases=$3
	shift 3
	cp "$dir/before" "$file"
	"$@" >/dev/null 2>&1 || { echo "FAIL $name does not run"; failed=$((failed + 1)); return; }
	cp "$file" "$dir/after"
	all=$(env FAIL_COUNT=1 LD_PRELOAD="$library" "$@" 2>&1 >/dev/null | tail -n 1)
	[ -z "${LONG:-}" ] || cases=$all
	k=0
	while [ $k -lt "$cases" ]; do
		n=$((k * all / cases + 1)) k=$((k + 1))
		rm -f "$file"*
		cp "$dir/before" "$file"
		timeout -k 5 120 env FAIL_AT=$n LD_PRELOAD="$library" "$@" >"$dir/out" 2>"$dir/err"
		status=$? wrong=
		[ $status -le 1 ] || wrong="status $status"
		[ $status -eq 0 ] || [ -s "$dir/err" ] || wrong="no message"
		kept=
		for f in "$file"*; do # a checkpoint of another run is renamed
			if cmp -s "$f" "$dir/before" || cmp -s "$f" "$dir/after"; then kept=1; fi
		done
		[ -n "$kept" ] || wrong="$wrong what was in the file is lost"
		if [ -z "$wrong" ]; then
			passed=$((passed + 1))
		else
			failed=$((failed + 1))
			echo "FAIL $name, allocation $n of $all: $wrong: $(head -c 200 "$dir/err" | tr '\n' ' ')"
		fi
	done
}
echo before >"$dir/before"
failing "mantou dump" "$dir/mlp.ir" 24 "$MANTOU" dump models/mlp.net --stage planned --arch x86-64-v3 -o "$dir/mlp.ir"
failing "mantou build --emit asm" "$dir/mlp.s" 12 "$MANTOU" build models/mlp.net --arch x86-64-v3 --emit asm -o "$dir/mlp.s"
"$MANTOU" build models/mlp.net --arch x86-64-v3 -o "$dir/mlp" || { echo "FAIL mlp does not build"; failed=$((failed + 1)); }
"$dir/mlp" train --data models/digits --steps 3 --threads 2 --save "$dir/before" >/dev/null 2>&1
failing "a program's training" "$dir/mlp.safetensors" 24 "$dir/mlp" train --data models/digits --steps 6 --threads 2 --save "$dir/mlp.safetensors"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
