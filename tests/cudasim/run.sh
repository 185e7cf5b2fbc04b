#!/bin/sh
# The simulated device: instructions, kernels, streams, graphs against C; each fault against what must be said of it; drivers that are bad or fail.
# In: $BUILD. Kernels in CUDA C are skipped where there is no NVRTC. Prints FAIL lines and the counts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dir=$BUILD/tests/cudasim
sim=$dir/simtest
LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cudasim.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 skipped=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL $1"; }

# add TEXT: counts of a run of simtest, whose last line they are.
add() {
	line=$(tail -n 1 "$1" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$') || { bad "$2 ends early: $(tail -n 1 "$1")"; return; }
	set -- $(echo "$line" | tr -dc '0-9 ')
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

for group in ops convert kernels matrix streams graphs memory bulk; do
	"$sim" $group >"$tmp/$group" 2>&1
	grep -E '^(FAIL|skip) ' "$tmp/$group"
	add "$tmp/$group" $group
done

# Nodes of graphs and warps in other orders, one thread, no checks: the same results.
for set in SEED=2 SEED=3 THREADS=1 CHECK=0; do
	env "MANTOU_SIM_$set" "$sim" graphs streams bulk >"$tmp/again" 2>&1
	grep '^FAIL ' "$tmp/again" | sed "s/$/ ($set)/"
	add "$tmp/again" "$set"
done

# Each file of ptx/ says how it is launched, which status comes of it, and words of the message.
for f in "$here"/ptx/*.ptx; do
	expect=$(sed -n 's|^// expect ||p' "$f") set=$(sed -n 's|^// set ||p' "$f")
	status=${expect%% *} text=${expect#"$status"} text=${text# }
	env $set "$sim" run "$f" >"$tmp/out" 2>&1
	if grep -qx "status $status" "$tmp/out" && grep -qF "$text" "$tmp/out"; then
		good
	else
		bad "${f##*/}: expected $expect, found: $(head -n 3 "$tmp/out" | tr '\n' ' ')"
	fi
done

# Bad drivers: each setting, and what a program sees.
drive() { # drive SETTING STATUS
	env "MANTOU_SIM_$1" "$sim" run "$here/ptx/bounds-good.ptx" >"$tmp/out" 2>&1
	if grep -qE "$2" "$tmp/out"; then good; else bad "$1: $(head -n 2 "$tmp/out" | tr '\n' ' ')"; fi
}
drive DEVICES=0 'no context'
drive DRIVER=11040 'status 222'
drive SM=75 'status 209'
drive MEMORY=100 'status 1|no memory'
drive MISSING=cuLaunchKernel 'missing cuLaunchKernel'
drive CHECK=0 'status 0'
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
