#!/bin/sh
# The work of compiling grows no faster than the model: counted, not timed (times: tests/bench/compile.sh). Twice and thrice as many equal
# layers make no other functions, no longer ones, and as much text per layer; a long chain fits into memory that a quadratic table would exceed.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
export MANTOU_CACHE=off
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
	for n in 50 100 150; do
		"$mantou" build tests/scale/$net.net --arch x86-64-v3 -D layers=$n --emit llvm -o "$dir/$n.ll" >"$dir/out" 2>&1 || { cat "$dir/out"; rm -f "$dir/$n.ll"; : >"$dir/$n.ll"; }
		"$mantou" build tests/scale/$net.net --arch x86-64-v3 -D layers=$n --emit ir -o "$dir/$n.ir" >"$dir/out" 2>&1 || { cat "$dir/out"; : >"$dir/$n.ir"; }
	done
	check "$net: there are functions" "$(functions "$dir/50.ll")" -gt 5
	check "$net: equal layers share their functions" "$(functions "$dir/50.ll")" -eq "$(functions "$dir/100.ll")"
	check "$net: equal layers share their functions" "$(functions "$dir/50.ll")" -eq "$(functions "$dir/150.ll")"
	# code that calls the kernels in turn is cut into functions: LLVM's time is not linear in the length of one
	check "$net: no function grows by more than a call per 64 kernels" "$(longest "$dir/150.ll")" -le "$(($(longest "$dir/50.ll") + 250))"
	# the same lines of IR for the second fifty layers as for the third
	a=$(wc -l <"$dir/50.ir") b=$(wc -l <"$dir/100.ir") c=$(wc -l <"$dir/150.ir")
	check "$net: IR in proportion" "$((c - b))" -eq "$((b - a))"
	check "$net: IR in proportion" "$((b - a))" -gt 500
done
# Room for LLVM, the module and its texts; a table of all values for every kernel would take 8 GB here. A sanitizer maps terabytes.
if ! command -v prlimit >/dev/null; then
	skipped=$((skipped + 1))
elif grep -q __asan_init "$mantou"; then
	skipped=$((skipped + 1))
else
	MANTOU_LLVM_FAST= prlimit --as=2500000000 "$mantou" build tests/scale/conv.net --arch x86-64-v3 -D layers=600 --emit obj -o "$dir/600.o" >"$dir/out" 2>&1
	status=$?
	[ $status -eq 0 ] || tail -n 3 "$dir/out"
	check "conv: memory of 600 layers" $status -eq 0
fi

# ---- the command scale: published tables, its own arithmetic, every error
count=$(python3 tests/scale/tables.py "$mantou" tests/scale/tables.txt)
echo "$count" | grep FAIL
count=$(echo "$count" | tail -n 1 | grep -E '^[0-9]+ passed' || echo "0 passed, 1 failed")
passed=$((passed + $(echo "$count" | cut -d' ' -f1))) failed=$((failed + $(echo "$count" | cut -d' ' -f3)))
says() { # says STATUS TEXT ARGS...: of mantou scale tests/scale/dense.net
	want=$1 text=$2
	shift 2
	"$mantou" scale tests/scale/dense.net -D layers=4 "$@" >"$dir/out" 2>&1
	status=$?
	if [ $status -eq $want ] && grep -qF -e "$text" "$dir/out"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL scale $*: status $status, no '$text': $(head -n 3 "$dir/out")"; fi
}
cluster() { printf '%s\n' "$@" >"$dir/cluster"; }
while IFS='|' read -r line text; do
	cluster "node 2 of 4" "$line"
	says 1 "$dir/cluster:2: $text" --shards 8 --cluster "$dir/cluster"
done <<'END'
node 2|this line reads: node MACHINES of PROCESSES
node 1.5 of 2|'1.5' is no whole number up to 9999999
rate fast|'fast' is no number that 'rate' can have
rate 10 batch|this line reads: rate EXAMPLES_A_SECOND [batch EXAMPLES]
link around 5us 1GB/s|this line reads: link inside|between START BYTES_A_SECOND [shared]
link inside 5 1GB/s|'5' is no number of ns, us, ms or s that 'link' can have
link inside 5us 1GB|'1GB' is no number of KB/s, MB/s, GB/s, TB/s, Mb/s or Gb/s that 'link' can have
spread 1.5|'1.5' is no number of % that 'spread' can have
busy -3%|'-3%' is no number of % that 'busy' can have
drag 1ms|'1ms' is no number of us/MB or ms/MB that 'drag' can have
work 2|'2' is no number of us/MB or ms/MB that 'work' can have
exchange tree|this line reads: exchange direct|levels
mesured 2 100|'mesured' begins no line; did you mean 'measured'?
measured 2|this line reads: measured PROCESSES EXAMPLES_A_SECOND
measured 9 100|9 processes were measured, 2 nodes have 8
measured 2 100|what was measured is fitted beside the speed of one process: 'rate EXAMPLES_A_SECOND' is missing
END
cluster "rate 100"
says 1 "$dir/cluster: no line says 'node MACHINES of PROCESSES'" --cluster "$dir/cluster"
says 1 "$dir/none: No such file" --cluster "$dir/none"
says 2 "--processes: 3 are more than the 2 shards of" --shards 2 --processes 3
says 2 "--processes: 'x' is no number of processes" --processes 1,x
says 1 "scale predicts processes of --target cpu alone, none of target ref" --target ref
says 1 "scale predicts processes of --target cpu alone, none of target cuda" --target cuda --arch sm_90a
cluster "node 2 of 2" "work 1ms/MB" "exchange levels"
says 1 "$dir/cluster: 'work' is of 'exchange direct'" --shards 4 --cluster "$dir/cluster"
cluster "node 2 of 2" "rate 1000 batch 8"
says 2 "--processes: 5 are more than the cluster's 4 (2 nodes of 2)" --cluster "$dir/cluster" --processes 5
says 2 "--batch and --shards do not go with the cluster's" --cluster "$dir/cluster" --shards 2
# one process is as fast as was said; nothing uncertain: 8 examples in 8 ms, times busy; what is assumed is marked so
cluster "node 2 of 2" "rate 1000 batch 8" "busy 50%" "spread 0%" "drag 0ms/MB" "work 0ms/MB" "link inside 0us 9000TB/s" "link between 0us 9000TB/s" "sum 9000TB/s"
says 0 "kernels    50 % longer where a node is full (given), spread 0 % (given), drag 0 ms/MB (given), work 0 ms/MB (given)" --cluster "$dir/cluster"
"$mantou" scale tests/scale/dense.net -D layers=4 --arch x86-64-v3 --cluster "$dir/cluster" --json --processes 1,2,4 >"$dir/out" 2>&1
if python3 - "$dir/out" <<'END'
import json, sys
out = json.load(open(sys.argv[1]))
one, two, four = out["predicted"]
ms = one["ms_per_step"]
update = one["ms"]["update"]
assert ms["least"] == ms["median"] == ms["most"] and abs(ms["median"] - 8) < 1e-6 and one["speed_up"] == 1, ms
want = 8 + 0.5 * (8 - update)
assert abs(two["ms_per_step"]["median"] / want - 1) < 0.02, (two, want)  # two more each doubling's share of chance
assert abs(four["ms_per_step"]["median"] / want - 1) < 0.03 and four["ms_per_step"]["most"] > four["ms_per_step"]["least"], four
assert out["busy"] == {"value": 0.5, "origin": "given"} and out["exchange"] == "direct", out
END
then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL scale: arithmetic: $(head -c 300 "$dir/out")"; fi
# what is exchanged beside the kernels, all of it where links are fast, takes them so much for each MB; with levels nothing
for how in "exchange direct" "exchange levels"; do
	work="work 100ms/MB"
	[ "$how" = "exchange direct" ] || work="#"
	cluster "node 2 of 2" "rate 1000 batch 8" "busy 0%" "spread 0%" "drag 0ms/MB" "$work" "link inside 0us 9000TB/s" "link between 0us 9000TB/s" "sum 9000TB/s" "$how"
	"$mantou" scale tests/scale/dense.net -D layers=4 --arch x86-64-v3 --cluster "$dir/cluster" --json --processes 1,2,4 >"$dir/$how" 2>&1
done
if python3 - "$dir/exchange direct" "$dir/exchange levels" <<'END'
import json, sys
direct, levels = (json.load(open(f)) for f in sys.argv[1:])
assert direct["work_s_per_byte"] == {"value": 1e-7, "origin": "given"} and "work_s_per_byte" not in levels, direct
for a, b, p in zip(direct["predicted"], levels["predicted"], (1, 2, 4)):
    want = 1e3 * 1e-7 * direct["exchange_bytes"] * 2 * (p - 1) / p
    assert (p == 1) == (want == 0) and abs(a["ms"]["drag"] - want) <= 0.02 * want and b["ms"]["drag"] == 0, (p, want, a, b)
    more = a["ms_per_step"]["median"] - b["ms_per_step"]["median"]  # of medians, which chance moves
    assert abs(more - want) <= 0.05 * b["ms_per_step"]["median"], (p, want, more)
END
then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL scale: work: $(head -c 300 "$dir/exchange direct")"; fi
says 0 "(assumed)" --shards 4 --processes 1,2,3
says 0 "3 processes do not divide 4 shards: the busiest has 2" --shards 4 --processes 1,2,3
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
