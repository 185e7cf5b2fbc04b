#!/bin/sh
# The simulated device: instructions, kernels, streams, graphs against C; each fault against what must be said of it; drivers that are bad or fail.
# In: $BUILD. Kernels in CUDA C are skipped where there is no NVRTC. Prints FAIL lines and the counts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dir=$BUILD/tests/cudasim
sim=$dir/simtest SIM_TESTS=$here
LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH SIM_TESTS
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
	mkdir "$tmp/kept.$group"
	SIM_KEEP=$tmp/kept.$group "$sim" $group >"$tmp/$group" 2>&1
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

# What these groups load is valid for a real assembler as well: all texts of version 8.0, with a number in their names, as one for sm_90a, and once more for sm_80 those that it may take.
ptxas=${MANTOU_PTXAS:-$(command -v ptxas || echo /usr/local/cuda/bin/ptxas)}
assemble() { # assemble ARCH, what its texts are for
	awk -v arch="${1%a}" -v targets="^[.]target ($2)$" 'FNR == 1 { n++; takes = $0 == ".version 8.0" }
		FNR == 2 { takes = takes && $0 ~ targets; if (takes && !count++) print ".version 8.0\n.target " arch "\n.address_size 64" }
		FNR > 3 && takes { gsub(/entry k[(]/, "entry k" n "("); gsub(/room/, "room" n); print }
		END { print count + 0 >"/dev/stderr" }' "$tmp"/kept.*/*.ptx >"$tmp/all.ptx" 2>"$tmp/count"
	if [ "$(cat "$tmp/count")" -ge "$3" ] && "$ptxas" -arch="$1" -o "$tmp/all.cubin" "$tmp/all.ptx" >"$tmp/out" 2>&1; then good; else
		bad "ptxas, $1: $(cat "$tmp/count") texts, $(grep -m 3 error "$tmp/out" | tr '\n' ' ')"
	fi
}
if [ -x "$ptxas" ]; then
	assemble sm_90a 'sm_[789].' 490
	assemble sm_80 'sm_[78].' 50
else
	skipped=$((skipped + 1))
	echo "skip what an assembler says of these texts: no ptxas in the PATH, in /usr/local/cuda/bin or by MANTOU_PTXAS"
fi

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

# Every call in turn fails, once with a status that passes and twice with one that stays: the program ends with a message each time.
MANTOU_SIM_LOG=$tmp/log "$sim" run "$here/ptx/bounds-good.ptx" >/dev/null 2>&1
calls=$(sed -n 's/.*"host_calls": \([0-9]*\).*/\1/p' "$tmp/log")
for code in 2 700 999; do
	call=1 wrong=
	while [ $call -le "${calls:-0}" ]; do
		MANTOU_SIM_FAIL=$call:$code timeout 20 "$sim" run "$here/ptx/bounds-good.ptx" >"$tmp/out" 2>&1
		status=$?
		{ [ $status -le 1 ] && grep -q "call $call, .* fails with $code" "$tmp/out" && ! grep -q 'status 0' "$tmp/out"; } || wrong="$wrong $call"
		call=$((call + 1))
	done
	if [ -z "$wrong" ] && [ "${calls:-0}" -gt 5 ]; then good; else bad "calls that fail with $code:$wrong"; fi
done
if grep -q '"kernel_launches": 1, .*"bytes_set": 128, .*"leaks": 1, "lost": 0}' "$tmp/log"; then good; else bad "log: $(cat "$tmp/log")"; fi

# Two processes have a device each: both fill most of the memory at once.
for k in 1 2; do
	MANTOU_SIM_MEMORY=2000000 MANTOU_SIM_GRAIN=65536 MANTOU_SIM_LOG=$tmp/log$k "$sim" memory >"$tmp/two$k" 2>&1 &
done
wait
for k in 1 2; do
	grep "^FAIL " "$tmp/two$k"
	add "$tmp/two$k" "process $k of two"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
