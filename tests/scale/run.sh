#!/bin/sh
# The work of compiling grows no faster than the model: counted, not timed (times: tests/bench/compile.sh). Twice and thrice as many equal
# layers make no other functions, no longer ones, and as much text per layer; a long chain fits into memory that a quadratic table would exceed.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
check() { # check NAME CONDITION...: of test(1)
	name=$1
	shift
	if [ "$@" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $name: $*"; fi
}
# Functions of the kernels: a graph calls them from parts, whose number follows that of the kernels.
functions() { grep '^define' "$1" | grep -v '\.part[0-9]' | wc -l; }
longest() { awk '/^define/ { n = 0 } { n++ } /^}/ && n > most { most = n } END { print most + 0 }' "$1"; }

for net in dense conv; do
	for n in 100 200 300; do
		"$mantou" build tests/scale/$net.net --arch x86-64-v3 -D layers=$n --emit llvm -o "$dir/$n.ll" >"$dir/out" 2>&1 || { cat "$dir/out"; rm -f "$dir/$n.ll"; : >"$dir/$n.ll"; }
		"$mantou" build tests/scale/$net.net --arch x86-64-v3 -D layers=$n --emit ir -o "$dir/$n.ir" >"$dir/out" 2>&1 || { cat "$dir/out"; : >"$dir/$n.ir"; }
	done
	check "$net: there are functions" "$(functions "$dir/100.ll")" -gt 5
	check "$net: equal layers share their functions" "$(functions "$dir/100.ll")" -eq "$(functions "$dir/200.ll")"
	check "$net: equal layers share their functions" "$(functions "$dir/100.ll")" -eq "$(functions "$dir/300.ll")"
	# code that calls the kernels in turn is cut into functions: LLVM's time is not linear in the length of one
	check "$net: no function grows by more than a call per 64 kernels" "$(longest "$dir/300.ll")" -le "$(($(longest "$dir/100.ll") + 500))"
	# the same lines of IR for the second hundred layers as for the third
	a=$(wc -l <"$dir/100.ir") b=$(wc -l <"$dir/200.ir") c=$(wc -l <"$dir/300.ir")
	check "$net: IR in proportion" "$((c - b))" -eq "$((b - a))"
	check "$net: IR in proportion" "$((b - a))" -gt 500
done
# Room for LLVM, the module and its texts; a table of all values for every kernel would take 8 GB here. A sanitizer maps terabytes.
if ! command -v prlimit >/dev/null; then
	skipped=$((skipped + 1))
elif grep -q __asan_init "$mantou"; then
	skipped=$((skipped + 1))
else
	prlimit --as=2500000000 "$mantou" build tests/scale/conv.net --arch x86-64-v3 -D layers=600 --emit obj -o "$dir/600.o" >"$dir/out" 2>&1
	status=$?
	[ $status -eq 0 ] || tail -n 3 "$dir/out"
	check "conv: memory of 600 layers" $status -eq 0
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
