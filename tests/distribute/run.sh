#!/bin/sh
# Shards of a batch: the same bits for every sink mode, number of threads, stopped and resumed; near the interpreter, and near one shard where
# nothing looks across examples. Several processes, under each MPI library that is here: the same checkpoint as one, killed, stopped and resumed; each fault
# with its text, status and time, and no process left.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'umount "$dir"/*/disk 2>/dev/null; rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
good() { passed=$((passed + 1)); }
bad() {
	failed=$((failed + 1))
	echo "FAIL $1"
}
build() { # build NAME MODEL ARGS...
	name=$1 net=tests/distribute/$2.net
	shift 2
	"$mantou" build "$net" -o "$dir/$name" "$@" >"$dir/out" 2>&1 || bad "build $name $*: $(head -n 2 "$dir/out" | tr '\n' ' ')"
}
train() { # train NAME PROGRAM ARGS...: leaves NAME.st and NAME.log
	name=$1 program=$2
	shift 2
	"$dir/$program" train --steps 8 --save "$dir/$name.st" --log "$dir/$name.log" --quiet "$@" >"$dir/out" 2>&1 ||
		{ bad "$name: $(tail -n 2 "$dir/out" | tr '\n' ' ')"; return 1; }
}
same() { # same WHAT A B: checkpoints byte by byte
	if cmp -s "$dir/$2.st" "$dir/$3.st"; then good; else bad "$1: checkpoints differ"; fi
}
near() { # near WHAT A B BOUND: every step's loss, relative
	if python3 - "$dir/$2.log" "$dir/$3.log" "$4" <<'END'
import json, sys
a, b = ([o["loss"] for o in map(json.loads, open(f)) if "step" in o] for f in sys.argv[1:3])
worst = max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b))
if len(a) != len(b) or len(a) != 8 or not worst <= float(sys.argv[3]):
    sys.exit("%d and %d losses, worst difference %.3g: %s and %s" % (len(a), len(b), worst, a[:3], b[:3]))
END
	then good; else bad "$1"; fi
}

ranks() { # ranks LIBRARY P NAME PROGRAM ARGS...: as train
	library=$1 p=$2 name=$3 program=$4
	shift 4
	timeout 100 tests/distribute/ranks $library $p "$dir/$program" train --steps 8 --save "$dir/$name.st" --quiet "$@" >"$dir/out" 2>&1 ||
		{ bad "$library, $p ranks, $program $*: $(grep -v '^[-=]' "$dir/out" | head -n 3 | tr '\n' ' ')"; return 1; }
}
# fails WHAT STATUS TEXT COMMAND...: ends with the status, says the text once. Where ranks end at once, MPICH's mpirun may end with 0, as it has not heard of
# their ends: then a rank's own word is taken; or, before it has passed on a word, of a closed pipe (141): then it is started again.
fails() {
	what=$1 status=$2 text=$3
	shift 3
	for try in 1 2 3 4; do
		rm -f "$dir/own"
		RANKS_OWN="$dir/own" timeout 60 "$@" >"$dir/out" 2>&1
		got=$?
		[ $got -eq 141 ] && [ ! -s "$dir/out" ] || break
	done
	[ $got -ne 0 ] || ! grep -qx "$status" "$dir/own" 2>/dev/null || got=$status
	n=$(grep -c -e "$text" "$dir/out")
	if [ $got -eq "$status" ] && [ "$n" -eq 1 ]; then good; else bad "$what: status $got, '$text' $n times: $(head -n 4 "$dir/out" | tr '\n' ' ')"; fi
}
# gone: waits until no process of the program is left (at most 20 s); left: those that are
gone() {
	for i in $(seq 200); do
		left=$(pgrep -f "^$dir/slow train" | tr '\n' ' ')
		[ -n "$left" ] || return
		sleep 0.1
	done
}
# ended: waits for the launcher, at most 20 s: Open MPI's may stand for ever when a rank was killed while the two were meeting; its ranks have ended by then
ended() {
	for i in $(seq 200); do
		case $(ps -o stat= -p $job) in '' | Z*) break ;; esac
		sleep 0.1
	done
	kill -9 $job 2>/dev/null
	wait $job 2>/dev/null
}
# Runs until SIGNAL goes to the process that TARGET names; then status, text, seconds, and no process left. STATUS: the launcher's, or "each N": that of
# ranks by their own word (MPICH's mpirun ends with 0 where it has not heard of its ranks' ends), or -: any. SECONDS beside those that a busy machine takes.
interrupted() { # interrupted WHAT LIBRARY SIGNAL TARGET STATUS SECONDS TEXT ARGS...
	what="$2: $1" library=$2 signal=$3 target=$4 status=$5 seconds=$6 text=$7 own=
	shift 7
	# MPICH's mpirun may end of a rank's abort before it has passed on a word: then once more
	for try in 1 2 3; do
		rm -f "$dir/i.st" "$dir/each"
		case $status in each*) own="sh tests/distribute/own $dir/each" ;; esac
		tests/distribute/ranks $library 3 $own "$dir/slow" train --no-eval --quiet --every 1 --save "$dir/i.st" "$@" >"$dir/out" 2>&1 &
		job=$!
		for i in $(seq 600); do [ -s "$dir/i.st" ] && break; sleep 0.05; done
		case $target in
		launcher) pid=$job ;;
		rank) pid=$(pgrep -f "^$dir/slow train" | tail -n 1) ;;
		esac
		begin=$(date +%s)
		kill -$signal $pid
		ended
		got=$? took=$(($(date +%s) - begin))
		gone
		[ -n "$text" ] && [ "$library" = mpich ] && [ ! -s "$dir/out" ] || break
	done
	case $status in
	each*) got="each $(sort -u "$dir/each" | tr '\n' ' ' | sed 's/ $//')" ;; # Open MPI ends the others once one has ended
	-) got=- ;;
	esac
	if [ "$got" = "$status" ] && [ $took -le $((seconds + 15)) ] && [ -z "$left" ] && { [ -z "$text" ] || grep -q -e "$text" "$dir/out"; }; then good
	else bad "$what: status $got, $took s, left: $left: $(head -n 3 "$dir/out" | tr '\n' ' ')"; fi
	[ -z "$left" ] || kill -9 $left
	# the last checkpoint is whole, and goes on with another number of processes
	if "$dir/slow" train --no-eval --quiet --stop 3 --resume "$dir/i.st" --no-save >"$dir/out" 2>&1; then good; else bad "$what: $(cat "$dir/out")"; fi
}

# whole FILE: a checkpoint whose tensors all lie in it, or none yet
whole() {
	[ ! -e "$1" ] || python3 -c 'import json, os, struct, sys
f = open(sys.argv[1], "rb"); n, = struct.unpack("<Q", f.read(8)); head = json.loads(f.read(n)); del head["__metadata__"]
sys.exit(os.path.getsize(sys.argv[1]) != 8 + n + max(t["data_offsets"][1] for t in head.values()))' "$1" 2>"$dir/out"
}
# killed LIBRARY N: a queue that runs the job again whenever it is killed, with another number of ranks each time: N kills of the launcher or a rank, at
# any moment, the first seconds included, gradients by what all see or by messages. Behind each no process is left within its time, and the checkpoint is whole; at the end it is that of an
# undisturbed run.
killed() {
	library=$1 kills=$2 ranks=0 launchers=0 longest=0
	rm -f "$dir/k.st" "$dir/k.st~"
	while [ $kills -gt 0 ]; do
		p=$((1 + $(od -An -N1 -tu1 /dev/urandom) % 4))
		[ $(($(od -An -N1 -tu1 /dev/urandom) % 2)) -eq 0 ] && by=tree || by=messages
		RANKS_HELD=1 tests/distribute/ranks $library $p "$dir/slow" train --no-eval --quiet --every 1 --steps 100000 --save "$dir/k.st" --continue --exchange $by >"$dir/out" 2>&1 &
		job=$!
		# the last kill comes behind a checkpoint, however slow the machine
		for i in $(seq 600); do [ $kills -gt 1 ] || [ -s "$dir/k.st" ] && break; sleep 0.1; done
		sleep $((kills % 3)).$((1 + $(od -An -N1 -tu1 /dev/urandom) % 9))
		pid=
		# a process alone with torchrun's variables does not end with its parent
		[ $((kills % 2)) -eq 0 ] && [ $library$p != torchrun1 ] || pid=$(pgrep -f "^$dir/slow train" | shuf -n 1)
		begin=$(date +%s%N)
		kill -9 ${pid:-$job} 2>/dev/null # where no rank has begun, the launcher
		gone
		took=$((($(date +%s%N) - begin) / 1000000))
		ended
		[ -n "$pid" ] && ranks=$((ranks + 1)) || launchers=$((launchers + 1))
		[ $took -le $longest ] || longest=$took
		# 5 s, beside those that a busy machine takes
		[ -z "$left" ] && [ $took -le 20000 ] || { bad "$library, killed: after $took ms there are left: $left"; kill -9 $left; }
		whole "$dir/k.st" || { bad "$library, killed: the checkpoint is not whole: $(tail -n 1 "$dir/out")"; return; }
		kills=$((kills - 1))
	done
	[ -s "$dir/k.st" ] || { bad "$library, killed: nothing was saved"; return; }
	# where it stands: an undisturbed run of one process goes as far
	python3 -c 'import json, struct, sys
f = open(sys.argv[1], "rb"); n, = struct.unpack("<Q", f.read(8)); print(json.loads(f.read(n))["__metadata__"]["step"])' "$dir/k.st" >"$dir/step"
	stop=$(($(cat "$dir/step") + 5))
	tests/distribute/ranks $library 3 "$dir/slow" train --no-eval --quiet --steps 100000 --stop $stop --save "$dir/k.st" --continue >"$dir/out" 2>&1 || bad "$library, after $2 kills: $(cat "$dir/out")"
	"$dir/slow" train --no-eval --quiet --steps 100000 --stop $stop --save "$dir/w.st" --overwrite >"$dir/out" 2>&1
	if cmp -s "$dir/k.st" "$dir/w.st"; then good; else bad "$library: $2 kills, then step $stop: checkpoints differ"; fi
	[ -z "${LONG:-}" ] || echo "$library: $ranks kills of a rank, $launchers of the launcher up to step $stop: the processes ended within $longest ms"
}
# matrix LIBRARY (--long): models as they are, 8 shards, 40 steps, 1 to 8 processes, in every way, against one
matrix() {
	library=$1
	for m in lenet resnet20-cifar10 resnet20-cifar10:batch; do
		n=${m%:*}
		case $m in *:batch) sed 's/^    seed  .*/&  batch_stats = batch/' models/$n.net >"$dir/m.net" ;; *) cp models/$n.net "$dir/m.net" ;; esac
		for way in '' --shard-optimizer '--disable overlap' '--precision f16'; do
			"$mantou" build "$dir/m.net" --batch 32 --shards 8 --distribute mpi $way -o "$dir/m" >"$dir/out" 2>&1 || { bad "$m $way: $(tail -n 1 "$dir/out")"; continue; }
			"$dir/m" train --synthetic --no-eval --quiet --steps 40 --save "$dir/m.st" --overwrite >"$dir/out" 2>&1 || bad "$m $way: $(cat "$dir/out")"
			for p in 1 2 3 4 8; do
				case $p in 2) more="--sink off" ;; 3) more="--sink 7" ;; 4) more="--threads 1" ;; 8) more="--threads 2" ;; *) more= ;; esac
				tests/distribute/ranks $library $p "$dir/m" train --synthetic --no-eval --quiet --steps 40 --save "$dir/mp.st" --overwrite $more >"$dir/out" 2>&1 || bad "$library, $p ranks, $m $way: $(head -n 3 "$dir/out")"
				same "$library, $p ranks, $m $way $more" m mp
			done
		done
	done
}
# ---- the parts: of a library
bits() {
	library=$1
	for p in 2 3 8; do ranks $library $p b attention.mpi --threads 1 && same "$library, $p ranks" attention.a b; done
	# by messages, as between machines: else processes of one see each other's sums
	for p in 2 3 8; do ranks $library $p b attention.mpi --threads 1 --exchange messages && same "$library, $p ranks, messages" attention.a b; done
	for p in 2 4 5; do ranks $library $p b wide --exchange messages && same "$library, buckets, $p ranks, messages" wide.a b; done
	for p in 2 4; do ranks $library $p b wide.so --exchange messages && same "$library, --shard-optimizer, $p ranks, messages" wide.a b; done
	ranks $library 7 b norm.mpi --exchange messages && same "$library, 7 ranks, messages" norm.a b
	ranks $library 3 b attention.mpi16 --exchange messages && same "$library, f16, messages" f16.a b
	ranks $library 7 b norm.mpi --sink off && same "$library, 7 ranks --sink off" norm.a b
	ranks $library 4 b norm.mpi --sink 3 --threads 2 && same "$library, 4 ranks --sink 3" norm.a b
	for p in 2 4 7; do ranks $library $p b stats.mpi && same "$library, $p ranks, statistics of the batch" stats.a b; done
	ranks $library 3 b stats.mpi --sink off --threads 2 && same "$library, 3 ranks, statistics of the batch --sink off" stats.a b
	ranks $library 6 b ignored.mpi && same "$library, 6 ranks, labels ignored" ignored.a b
	ranks $library 4 b ignored.mpi --sink off && same "$library, 4 ranks, labels ignored --sink off" ignored.a b
	ranks $library 4 b wide.one && same "$library, --disable overlap" wide.a b
	for p in 2 4 5; do ranks $library $p b wide && same "$library, buckets, $p ranks" wide.a b; done
	ranks $library 3 b wide --sink off && same "$library, buckets, --sink off" wide.a b
	tests/distribute/ranks $library 2 "$dir/wide" bench --synthetic --steps 4 --warmup 1 --repeat 1 --json >"$dir/out" 2>/dev/null
	if grep -q '"processes": 2, "shards": 5, "exchange_bytes": [0-9]*, "hidden_share": [0-9]' "$dir/out"; then good; else bad "$library bench: $(cat "$dir/out")"; fi
	tests/distribute/ranks $library 2 "$dir/wide" bench --synthetic --steps 4 --warmup 1 --repeat 1 --json --no-exchange >"$dir/out" 2>/dev/null
	if grep -q '"processes": 2, "shards": 5, "exchange_bytes": 0, "hidden_share": 0' "$dir/out"; then good; else bad "$library bench --no-exchange: $(cat "$dir/out")"; fi
	# slots by rank: in every --every's checkpoint, with other ranks behind it
	for p in 2 4; do ranks $library $p b wide.so && same "$library, --shard-optimizer, $p ranks" wide.a b; done
	ranks $library 3 half wide.so --stop 5 --every 2 && ranks $library 5 b wide.so --resume "$dir/half.st" --sink off && same "$library, --shard-optimizer: stopped with 3 ranks, resumed with 5" wide.a b
	train b wide --resume "$dir/half.st" && same "$library, --shard-optimizer: stopped with 3 ranks, resumed alone" wide.a b
	ranks $library 3 b norm.so && same "$library, --shard-optimizer, convolutions" norm.a b
	ranks $library 3 b attention.so16 && same "$library, --shard-optimizer, f16" f16.a b
	for p in 2 3 5; do ranks $library $p b clip.so && same "$library, --shard-optimizer, clipped, $p ranks" clip.a b; done
	ranks $library 4 b clip.so --sink off --threads 2 && same "$library, --shard-optimizer, clipped, --sink off" clip.a b
	ranks $library 4 b clip && same "$library, clipped, 4 ranks" clip.a b
	ranks $library 5 b wide.each && same "$library, shards of one example" each.a b
	for p in 2 5; do
		ranks $library $p b late.so --log "$dir/b.log" && same "$library, --shard-optimizer, copies and averages, $p ranks" late.a b
		# an evaluation reads what the steps do not
		if [ "$(grep -o '"eval": {[^}]*}' "$dir/b.log")" = "$(grep -o '"eval": {[^}]*}' "$dir/late.a.log")" ]; then good; else bad "$library, $p ranks, --shard-optimizer: evaluated otherwise"; fi
		rm -f "$dir/b.log"
	done
	ranks $library 3 half late.so --stop 5 --every 2 && ranks $library 2 b late --resume "$dir/half.st" && same "$library, --shard-optimizer, copies and averages, resumed" late.a b
	for p in 2 5; do ranks $library $p b lamb.so && same "$library, --shard-optimizer, lamb, $p ranks" lamb.a b; done
	ranks $library 3 half lamb.so --stop 3 && train b lamb --resume "$dir/half.st" && same "$library, --shard-optimizer, lamb, resumed" lamb.a b
	ranks $library 2 b attention.so --exchange library && same "$library, --shard-optimizer --exchange library" attention.a b
	ranks $library 3 b attention.mpi16 && same "$library, f16" f16.a b
	ranks $library 2 half attention.mpi --stop 3 && ranks $library 5 b attention.mpi --resume "$dir/half.st" && same "$library: stopped with 2 ranks, resumed with 5" attention.a b
	train b attention --resume "$dir/half.st" && same "$library: stopped with 2 ranks, resumed alone" attention.a b
	"$dir/norm" eval --synthetic --weights "$dir/norm.a.st" --json >"$dir/want"
	tests/distribute/ranks $library 3 "$dir/norm.mpi" eval --synthetic --weights "$dir/norm.a.st" --json >"$dir/out" 2>/dev/null
	if cmp -s "$dir/out" "$dir/want"; then good; else bad "$library eval: $(cat "$dir/out")"; fi
	"$dir/ignored" eval --synthetic --weights "$dir/ignored.a.st" --json >"$dir/want"
	tests/distribute/ranks $library 3 "$dir/ignored.mpi" eval --synthetic --weights "$dir/ignored.a.st" --json >"$dir/out" 2>/dev/null
	if cmp -s "$dir/out" "$dir/want"; then good; else bad "$library eval, labels ignored: $(cat "$dir/out")"; fi
	# the library's own sum: of two numbers there is one; of three bits may differ, and it says so
	ranks $library 2 b attention.mpi --exchange library && same "$library, 2 ranks --exchange library" attention.a b
	ranks $library 2 b attention.mpi --exchange library --sink off && same "$library, 2 ranks --exchange library --sink off" attention.a b
	tests/distribute/ranks $library 3 "$dir/wide" train --steps 8 --save "$dir/b.st" --overwrite --log "$dir/b.log" --exchange library >"$dir/out" 2>&1 || bad "$library, --exchange library: $(cat "$dir/out")"
	near "$library, 3 ranks, buckets, --exchange library" b wide.a 1e-5
	if [ "$(grep -c 'note: --exchange library: bits of the result depend on the number of processes and on [OM]' "$dir/out")" = 1 ]; then good; else bad "$library, --exchange library: $(cat "$dir/out")"; fi
	ranks $library 2 b attention.mpi16 --exchange library && same "$library, f16 --exchange library" f16.a b
	# the exchange alone, the links as mantou scale reads them
	tests/distribute/ranks $library 2 "$dir/wide" bench --only-exchange --steps 3 --warmup 1 --repeat 3 --json >"$dir/out" 2>/dev/null
	if grep -q '"processes": 2, "shards": 5, "exchange_bytes": [0-9]*, "by": "tree", "exchange_ms": {"median": [0-9.]*[1-9]' "$dir/out"; then good; else bad "$library bench --only-exchange: $(cat "$dir/out")"; fi
	{ echo "node 1 of 4"; echo "rate 100 batch 8"; tests/distribute/ranks $library 2 "$dir/wide" bench --links 2>/dev/null; } >"$dir/cluster"
	if [ "$(grep -c '^link inside [0-9.e+]*us [0-9.e+]*GB/s$\|^sum [0-9.e+]*GB/s$' "$dir/cluster")" = 2 ] && "$mantou" scale tests/distribute/wide.net --cluster "$dir/cluster" --processes 1,2 >"$dir/out" 2>&1; then good
	else bad "$library bench --links: $(cat "$dir/cluster" "$dir/out")"; fi
}
faults() {
	library=$1 run="tests/distribute/ranks $1"
	fails "$library: a number out of range, in step" 1 'id 256 is out of range 0..255 (example 2 of step 3, ' tests/distribute/ranks $library 3 "$dir/ranges" train --no-save --quiet
	# a library whose network is slow, and one that stands still on one rank: cc links the real one behind slow.c
	if cc -shared -fPIC -O1 tests/distribute/slow.c -o "$dir/libslow.so" -Wl,--no-as-needed -l:$(case $library in openmpi) echo libmpi.so.40 ;; mpich) echo libmpich.so.12 ;; esac) 2>"$dir/out"; then
		MANTOU_LIBMPI="$dir/libslow.so" SLOW_RATE=1e8 ranks $library 4 b wide --exchange messages && same "$library, a slow network" wide.a b
		# slots by process: no more goes round where every gradient goes into a norm, nor are parts of the sums that are told
		for p in 2 5; do
			for m in clip clip.so; do
				rm -f "$dir"/sent.*
				MANTOU_LIBMPI="$dir/libslow.so" SLOW_RATE=1e12 SLOW_COUNT="$dir/sent" tests/distribute/ranks $library $p "$dir/$m" train --exchange messages --steps 8 --no-save --no-eval --quiet >"$dir/out" 2>&1
				cat "$dir"/sent.* | awk '{ n += $1 } END { print n }'
			done >"$dir/volumes"
			if python3 -c 'import sys
whole, parts = map(int, open(sys.argv[1]))
sys.exit(not 1e7 < whole or not 0.98 < parts / whole < 1.03)' "$dir/volumes"; then good; else bad "$library, $p ranks, clipped, slots by process: $(cat "$dir/volumes" | tr '\n' ' ')"; fi
		done
		for m in late late.so; do
			rm -f "$dir"/sent.*
			MANTOU_LIBMPI="$dir/libslow.so" SLOW_RATE=1e12 SLOW_COUNT="$dir/sent" tests/distribute/ranks $library 2 "$dir/$m" train --exchange messages --steps 8 --no-save --no-eval --quiet >"$dir/out" 2>&1
			cat "$dir"/sent.* | awk '{ n += $1 } END { print n }'
		done >"$dir/volumes"
		if python3 -c 'import sys
whole, parts = map(int, open(sys.argv[1]))
sys.exit(not 1e7 < whole or not 0.7 < parts / whole < 0.85)' "$dir/volumes"; then good; else bad "$library, slots by process, copies and averages: $(cat "$dir/volumes" | tr '\n' ' ')"; fi
		rm -f "$dir/b.log"
		MANTOU_LIBMPI="$dir/libslow.so" SLOW_RATE=2e7 tests/distribute/ranks $library 2 "$dir/wide" train --exchange messages --steps 8 --no-save --log "$dir/b.log" >"$dir/out" 2>&1
		if [ "$(grep -c 'warning: [0-9]* % of epoch 1 was spent waiting for other processes: .* GB/s were exchanged, buckets are cut for 1' "$dir/out")" = 1 ] &&
			grep -q '"exchange": {"bytes": [1-9][0-9]*, "seconds": [0-9.]*, "exposed": [0-9.]*}' "$dir/b.log"; then good; else bad "$library, slow: $(cat "$dir/out")"; fi
		begin=$(date +%s)
		MANTOU_LIBMPI="$dir/libslow.so" SLOW_STOP=2:3 fails "$library: a library that stands still" 1 'rank 2 (.*) silent for 2 s; last in step' tests/distribute/ranks $library 3 "$dir/slow" train --no-eval --no-save --quiet --steps 1000000 --patience 2
		gone
		if [ -z "$left" ] && [ $(($(date +%s) - begin)) -le 30 ]; then good; else bad "$library: processes left, or $(($(date +%s) - begin)) s"; fi
	else
		skipped=$((skipped + 1))
		echo "skip $library, slow: $(head -n 1 "$dir/out")"
	fi
	fails "$library: a number out of range, --exchange library" 1 'id 256 is out of range 0..255 (example 2 of step 3, ' $run 3 "$dir/range" train --no-save --quiet --exchange library
	fails "$library: more ranks than shards" 2 '5 processes are more than the model.s 4 shards: train.shards = 5' $run 5 "$dir/slow" train --no-save
	fails "$library: a program for one" 2 'started 2 processes, but this program is for one' $run 2 "$dir/attention" train --no-save
	fails "$library: info" 2 'info is for one process' $run 2 "$dir/slow" info
	fails "$library: no such library" 1 'MANTOU_LIBMPI: ' env MANTOU_LIBMPI="$dir/none.so" $run 2 "$dir/slow" train --no-save
	fails "$library: a library of another kind" 1 'libm.so.6 has no MPI_Init_thread: it is no MPI library, or too old' env MANTOU_LIBMPI=libm.so.6 $run 2 "$dir/slow" train --no-save
	# no room on rank 0's disk: training goes on, the last save is an error, what was saved before is whole
	mkdir "$dir/disk"
	if mount -t tmpfs -o size=1m tmpfs "$dir/disk" 2>/dev/null; then
		save="--quiet --no-eval --every 3 --save $dir/disk/f.st"
		$run 2 "$dir/slow" train $save --stop 3 >"$dir/out" 2>&1 && cp "$dir/disk/f.st" "$dir/f.st"
		cat /dev/zero >"$dir/disk/full" 2>/dev/null
		fails "$library: a full disk" 1 'error: rank 0 (.*): cannot save: .*/f.st: No space left on device' $run 3 "$dir/slow" train $save --continue --stop 9
		if grep -q 'warning: cannot save: .*/f.st: No space left on device; training goes on' "$dir/out" && cmp -s "$dir/f.st" "$dir/disk/f.st"; then good; else bad "$library, a full disk: $(cat "$dir/out")"; fi
		umount "$dir/disk"
		if "$dir/slow" train --quiet --no-eval --resume "$dir/f.st" --no-save --stop 6 >"$dir/out" 2>&1; then good; else bad "$library, behind a full disk: $(cat "$dir/out")"; fi
	else
		skipped=$((skipped + 1))
		echo "skip $library, a full disk: no mount of a tmpfs"
	fi
	fails "$library: a file that rank 0 has not" 1 'nix.st: No such file' $run 2 "$dir/slow" train --no-save --resume "$dir/nix.st"
	fails "$library: other options" 1 'the ranks do not agree: --seed is 0 on rank 0 .*, 1 on rank 1' $run 2 sh -c \
		'exec "$0" train --no-save --seed ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}' "$dir/slow"
	fails "$library: another executable" 1 'the ranks do not agree: executable is .* on rank 0 .* on rank 1' $run 2 sh -c \
		'exec "$0$([ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] || echo 1)" train --no-save' "$dir/slow"
	fails "$library: other data" 1 'the ranks do not agree: data is .* on rank 0 .* on rank 1' $run 2 sh -c \
		'exec "$0" train --no-save --data "$1.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"' "$dir/npy" "${dir%/*}/npy"
	fails "$library: a loss that is no number" 1 "error: the loss of step 1 is nan: the batch's data are finite; what made it is not looked for where processes share a batch: one process .* says it; nothing was saved" $run 3 "$dir/slow" train --no-save --no-eval --quiet --rate 1e38
	fails "$library: a number out of range" 1 'id 256 is out of range 0..255 (example 2 of step 3, ' $run 3 "$dir/range" train --no-save --quiet
}
# torchrun's variables: processes meet over sockets, without an MPI library
sockets() {
	library=torchrun run="tests/distribute/ranks torchrun"
	for p in 2 3 8; do ranks torchrun $p b attention.mpi --threads 1 && same "torchrun, $p ranks" attention.a b; done
	ranks torchrun 4 b norm.mpi --sink 3 && same "torchrun, 4 ranks --sink 3" norm.a b
	ranks torchrun 3 b stats.mpi && same "torchrun, 3 ranks, statistics of the batch" stats.a b
	ranks torchrun 5 b wide && same "torchrun, buckets, 5 ranks" wide.a b
	for m in wide wide.so; do ranks torchrun 3 b $m --exchange messages && same "torchrun, $m, messages" wide.a b; done
	for p in 2 8; do ranks torchrun $p b attention.mpi --threads 1 --exchange messages && same "torchrun, $p ranks, messages" attention.a b; done
	ranks torchrun 3 half wide.so --stop 5 --every 2 && ranks torchrun 2 b wide.so --resume "$dir/half.st" && same "torchrun, --shard-optimizer: stopped with 3 ranks, resumed with 2" wide.a b
	# CPUs that differ: the best code object that all have, whichever rank has less
	build images wide --arch x86-64-v3,x86-64-v2 --distribute mpi
	train v3 images --threads 1
	MANTOU_WITHOUT=avx2 train v2 images --threads 1
	if cmp -s "$dir/v2.st" "$dir/v3.st"; then bad "two code objects: the same bits, so nothing is shown"; else good; fi
	for less in 0 2; do
		rm -f "$dir/b.st"
		tests/distribute/ranks torchrun 3 sh -c '[ $RANK != '$less' ] || export MANTOU_WITHOUT="fma avx2"; exec "$0" train --steps 8 --save "$1"' "$dir/images" "$dir/b.st" >"$dir/out" 2>&1
		same "CPUs that differ, rank $less" v2 b
	done
	if [ "$(grep -c 'note: the CPUs differ: the code object for x86-64-v2 is the best that all have' "$dir/out")" = 1 ]; then good; else bad "CPUs that differ: $(head -n 3 "$dir/out")"; fi
	fails "torchrun: more ranks than shards" 2 '5 processes are more than the model.s 4 shards' $run 5 "$dir/slow" train --no-save
	fails "torchrun: a program for one" 2 'torchrun started 2 processes, but this program is for one' $run 2 "$dir/attention" train --no-save
	fails "torchrun: other options" 1 'the ranks do not agree: --seed is 0 on rank 0 .*, 1 on rank 1' $run 2 sh -c 'exec "$0" train --no-save --seed $RANK' "$dir/slow"
	fails "torchrun: --exchange library" 1 'exchange library: sockets add nothing up' $run 2 "$dir/wide" train --no-save --exchange library
	fails "torchrun: a number out of range" 1 'id 256 is out of range 0..255 (example 2 of step 3, ' $run 3 "$dir/range" train --no-save --quiet
	fails "torchrun: what one rank alone knows" 1 'error: rank 1 (.*): .*nix: No such file' $run 3 sh -c '[ $RANK = 1 ] && d=nix || d=$1; exec "$0" train --no-save --quiet --data "$d"' "$dir/npy" "${dir%/*}/npy.0"
	fails "torchrun: a master that is no host" 1 'MASTER_ADDR nowhere.invalid, MASTER_PORT 29500: ' env RANK=1 WORLD_SIZE=2 MASTER_ADDR=nowhere.invalid MASTER_PORT=29500 "$dir/slow" train --no-save
	interrupted "a rank killed" torchrun KILL rank - 5 'rank [0-2] (.*) has ended; last in step'
	interrupted "a rank stopped" torchrun STOP rank - 7 'silent for 2 s; last in step' --patience 2
	interrupted "asked to stop" torchrun USR1 launcher 130 5 'stopped after step [0-9]* of .*, saved in '
	killed torchrun $([ -n "${LONG:-}" ] && echo 50 || echo 3)
}
signals() {
	library=$1
	interrupted "a rank killed" $library KILL rank - 5 ''
	interrupted "a rank stopped" $library STOP rank 1 7 'silent for 2 s; last in step' --patience 2
	interrupted "asked to stop" $library USR1 launcher "each 130" 5 'stopped after step [0-9]* of .*, saved in '
	# Ctrl-C: Open MPI's mpirun waits so long, passes it on, waits again, kills
	export OMPI_MCA_odls_base_sigkill_timeout=3
	interrupted "Ctrl-C" $library INT launcher - 5 'stopped after step [0-9]* of .*, saved in '
	unset OMPI_MCA_odls_base_sigkill_timeout
	interrupted "the launcher killed" $library KILL launcher - 5 ''
	# alone under its launcher, which died before it began: nobody reads what it would say
	case $library in openmpi) alone="OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0" ;; mpich) alone="PMI_SIZE=1 PMI_RANK=0" ;; esac
	begin=$(date +%s)
	timeout 30 env $alone sh -c 'sleep 0.5; exec "$0" train --no-eval --quiet --no-save --steps 1000000' "$dir/slow" 2>&1 | true
	if [ $(($(date +%s) - begin)) -lt 25 ]; then good; else bad "$library: its launcher died first: it went on"; fi
	killed $library $([ -n "${LONG:-}" ] && echo 100 || echo 4)
}
# those of one process, and those of several
programs() {
	case $1 in
	one)
		for m in attention norm stats ignored; do build $m $m && train $m.a $m --sink epoch --threads 2; done
		build attention.f16 attention --precision f16 && train f16.a attention.f16 --sink off
		for shards in 1 3 24; do build attention.s$shards attention --shards $shards; done
		for m in attention norm stats ignored; do build $m.ref $m --target ref; done ;;
	several)
		build wide wide --distribute mpi && train wide.a wide
		build wide.one wide --distribute mpi --disable overlap
		build wide.each wide --distribute mpi --batch 5 && train each.a wide.each # a shard of one example
		for m in wide attention norm; do build $m.so $m --distribute mpi --shard-optimizer; done
		# every gradient goes into a norm, of some in several pieces
		sed 's/adam(rate = 0.001)/&  clip_norm = 0.02/' tests/distribute/wide.net >"$dir/clip.net"
		# each parameter's step has the length of the parameter
		sed 's/adam(rate = 0.001)/lamb(rate = 0.01, weight_decay = 0.1)/' tests/distribute/wide.net >"$dir/lamb.net"
		for m in clip lamb; do
			for way in '' --shard-optimizer; do
				"$mantou" build "$dir/$m.net" --distribute mpi $way -o "$dir/$m${way:+.so}" 2>"$dir/out" || bad "$m $way: $(cat "$dir/out")"
			done
			train $m.a $m
		done
		build attention.so16 attention --precision f16 --distribute mpi --shard-optimizer
		# parameters that no step reads but their update: of f16 there are copies (where kernels do not narrow by themselves, as with AVX512-FP16), averages are for others
		sed 's/adam(rate = 0.001)/&  average = ema(0.9)/' tests/distribute/wide.net >"$dir/late.net"
		for way in '' --shard-optimizer; do
			"$mantou" build "$dir/late.net" --arch x86-64-v3 --precision f16 --distribute mpi $way -o "$dir/late${way:+.so}" 2>"$dir/out" || bad "late $way: $(cat "$dir/out")"
		done
		train late.a late
		for m in attention norm stats ignored; do build $m.mpi $m --distribute mpi; done
		build attention.mpi16 attention --precision f16 --distribute mpi
		build slow slow --distribute mpi
		build slow1 slow --distribute mpi --disable fuse
		build range range --distribute mpi
		# files, of which rank 1 has others
		sed 's/synthetic(.*)/npy(train = ["x.npy", "y.npy"], test = ["x.npy", "y.npy"])/' tests/distribute/wide.net >"$dir/npy.net"
		"$mantou" build "$dir/npy.net" --distribute mpi -o "$dir/npy" 2>"$dir/out" || bad "npy: $(cat "$dir/out")"
		for r in 0 1; do
			mkdir "$dir/npy.$r"
			python3 -c 'import struct, sys
for name, shape in (("x", (600, 64)), ("y", (600,))):
    head = ("{\x27descr\x27: \x27<f4\x27, \x27fortran_order\x27: False, \x27shape\x27: %r, }" % (shape,)).ljust(117) + "\n"
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    with open("%s.%s/%s.npy" % (sys.argv[1], sys.argv[2], name), "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%df" % n, *(int(sys.argv[2]) + i % 7 for i in range(n))))' "$dir/npy" $r
		done
		sed 's/|> mean(axes = \[1\])/|> mean(axes = [1]) |> dense(8) |> batch_norm/; s/shards .*/&  batch_stats = batch/' tests/distribute/range.net >"$dir/ranges.net"
		"$mantou" build "$dir/ranges.net" --distribute mpi -o "$dir/ranges" 2>"$dir/out" || bad "ranges: $(cat "$dir/out")" ;;
	esac
}
# A part has a folder and counts of its own and runs beside the others, as much of their time is waiting. In its folder stand the programs and what one
# process made of them.
part() { # part FUNCTION ARG
	mkdir "$dir/$1.$2"
	for f in "$dir"/*; do
		case $f in *.a.st | *.a.log) ln "$f" "$dir/$1.$2" ;; *) [ -f "$f" ] && [ -x "$f" ] && ln "$f" "$dir/$1.$2" ;; esac
	done
	(
		passed=0 failed=0 skipped=0 counts=$dir/$1.$2.counts dir=$dir/$1.$2
		$1 $2
		echo "$passed $failed $skipped" >"$counts"
	) >"$dir/$1.$2.said" 2>&1 &
	parts="$parts $1.$2:$!"
}
# Waits for the parts, tells what they said, adds up.
join() {
	for f in $parts; do
		wait ${f#*:}
		f=${f%:*}
		cat "$dir/$f.said"
		if read a b c 2>/dev/null <"$dir/$f.counts"; then passed=$((passed + a)) failed=$((failed + b)) skipped=$((skipped + c)); else bad "$f ended early"; fi
	done
	parts=
}
parts=

part programs one
part programs several
# Debian has both side by side; where they do not install, their part is skipped
for library in openmpi mpich; do
	tests/distribute/ranks $library 1 true >/dev/null 2>&1 || { sh tests/install.sh openmpi-bin libopenmpi3 mpich >"$dir/out" 2>&1; break; }
done
join
rm "$dir"/programs.*/out
mv "$dir"/programs.*/* "$dir"
for library in openmpi mpich; do
	if tests/distribute/ranks $library 1 true >/dev/null 2>&1; then
		for f in signals bits faults ${LONG:+matrix}; do part $f $library; done
	else
		skipped=$((skipped + 1))
		echo "skip $library: its mpirun is not here (Debian: apt-get install openmpi-bin libopenmpi3 mpich)"
	fi
done

part sockets torchrun

# ---- one process, meanwhile
for m in attention norm stats ignored; do
	for sink in off 1 3; do train $m.b $m --sink $sink --threads 2 && same "$m --sink $sink" $m.a $m.b; done
	train $m.b $m --threads 1 && same "$m --threads 1" $m.a $m.b
	train $m.half $m --stop 3 && train $m.b $m --resume "$dir/$m.half.st" && same "$m stopped and resumed" $m.a $m.b
	train $m.r $m.ref && near "$m against the interpreter" $m.a $m.r 1e-4
done
for shards in 1 3 24; do
	train attention.s$shards attention.s$shards && near "8 and $shards shards" attention.a attention.s$shards 2e-5
done
# what is exchanged within a step is the whole batch's: one shard of it gives the same up to rounding
for m in stats:1 stats:2 ignored:1 ignored:4; do
	n=${m%:*}
	build $n.s $n --shards ${m#*:}
	train $n.s $n.s && near "$n, other shards" $n.a $n.s 2e-5
done
# one shard is as if there were none, to the bit
for m in attention norm; do
	sed '/shards/d' tests/distribute/$m.net >"$dir/$m.whole.net"
	"$mantou" build "$dir/$m.whole.net" -o "$dir/$m.whole" 2>"$dir/out" || bad "$m without shards: $(cat "$dir/out")"
	build $m.s1 $m --shards 1
	train s0 $m.whole && train s1 $m.s1
	if python3 -c 'import struct, sys
a, b = (x[8 + struct.unpack("<Q", x[:8])[0]:] for x in (open(f, "rb").read() for f in sys.argv[1:])) # behind the header, which has the hash of the text
sys.exit(a != b or len(a) < 1000)' "$dir/s0.st" "$dir/s1.st"; then good; else bad "$m, one shard: other bits than without shards"; fi
done
# evaluated in batches of 4 and of 6, with different numbers of labels that count: the loss is that of the set
for m in ignored ignored.s; do "$dir/$m" eval --synthetic --weights "$dir/ignored.a.st" --json 2>"$dir/out" || bad "eval of $m: $(cat "$dir/out")"; done >"$dir/evals"
if python3 -c 'import json, sys
a, b = (json.loads(l)["loss"] for l in open(sys.argv[1])); sys.exit(abs(a - b) > 1e-6 * b)' "$dir/evals"; then good; else bad "labels ignored, evaluated in other batches: $(cat "$dir/evals")"; fi
case $("$dir/ignored" info --json) in *'"joins": 1, "in_step": false'*) good ;; *) bad "labels that count: $("$dir/ignored" info --json)" ;; esac
case $("$dir/stats" info --json) in *'"joins": 1'[0-9]', "in_step": true'*) good ;; *) bad "statistics: $("$dir/stats" info --json)" ;; esac
build stats.f16 stats --precision f16
train s16.a stats.f16 --sink off && train s16.b stats.f16 --sink epoch --threads 1 && same "statistics, f16" s16.a s16.b
train stats.b stats --readers 1 && same "statistics, a reader thread" stats.a stats.b
train ignored.b ignored --readers 1 && same "ignored, a reader thread" ignored.a ignored.b
train stats.b stats --watch all && same "statistics, watched" stats.a stats.b
if "$dir/ranges" train --no-save --quiet >"$dir/out" 2>&1; then bad "a number out of range, in step"; elif grep -q 'id 256 is out of range 0..255 (example 2 of step 3, ' "$dir/out"; then good; else bad "in step: $(cat "$dir/out")"; fi
train f16.b attention.f16 --sink epoch --threads 1 && same "f16" f16.a f16.b
# another number of shards is another run
if "$dir/attention.s3" train --steps 8 --resume "$dir/attention.half.st" --save "$dir/x.st" >"$dir/out" 2>&1; then
	bad "resumed with another number of shards"
elif grep -q 'the checkpoint has shards = 8, this run 3; with --replan' "$dir/out"; then good; else bad "shards: $(cat "$dir/out")"; fi
train x attention.s3 --resume "$dir/attention.half.st" --replan && good
grep -q '"shards": 8' <<END && good || bad "info --json"
$("$dir/attention" info --json)
END

# ---- --continue: starts where there is no checkpoint, else goes on
train go attention --continue --stop 3 && cmp -s "$dir/go.st" "$dir/attention.half.st" && good || bad "--continue that starts"
train go attention --continue && same "--continue" attention.a go
"$dir/attention" train --steps 8 --save "$dir/go.st" --continue >"$dir/out" 2>&1 && grep -q "note: goes on from $dir/go.st" "$dir/out" && same "--continue of a run that is over" attention.a go
wrong() { # wrong TEXT ARGS...: usage
	text=$1
	shift
	"$dir/attention" train "$@" >"$dir/out" 2>&1
	if [ $? -eq 2 ] && grep -q -e "$text" "$dir/out"; then good; else bad "$*: $(head -n 1 "$dir/out")"; fi
}
wrong '--continue and --resume exclude each other' --continue --resume "$dir/go.st"
wrong '--exchange is of programs for several processes' --exchange library
"$mantou" build tests/distribute/wide.net --target cuda --arch sm_80 --distribute mpi -o "$dir/no" >"$dir/out" 2>&1
if [ $? -eq 2 ] && grep -q -e "--distribute mpi is of target cpu, not cuda" "$dir/out"; then good; else bad "mpi of cuda: $(cat "$dir/out")"; fi
wrong '--exchange wants tree, messages or library, not .ring' --exchange ring
wrong '--continue and --no-save exclude each other' --continue --no-save
echo nothing >"$dir/x.st"
if "$dir/attention" train --steps 8 --save "$dir/x.st" --continue >"$dir/out" 2>&1; then bad "--continue from no checkpoint"; elif grep -q "x.st: " "$dir/out"; then good; else bad "--continue from no checkpoint: $(cat "$dir/out")"; fi

# ---- the examples of README.md, as far as they can be checked here
if bash -n tests/distribute/examples/train.slurm 2>"$dir/out"; then good; else bad "train.slurm: $(cat "$dir/out")"; fi
for option in $(grep -h 'train --data' tests/distribute/examples/train.slurm tests/distribute/examples/mpijob.yaml | grep -o -e ' --[a-z-]*' | sort -u); do
	case $option in --mpi | --cpus-per-task | --mca) continue ;; esac
	"$dir/attention" train --help | grep -q -e "^  $option " || bad "examples: train has no option $option"
done
if python3 -c 'import yaml' 2>/dev/null; then
	if python3 - tests/distribute/examples/mpijob.yaml <<'END' 2>"$dir/out"
import sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
spec = job["spec"]["mpiReplicaSpecs"]
assert job["apiVersion"] == "kubeflow.org/v2beta1" and job["kind"] == "MPIJob" and set(spec) == {"Launcher", "Worker"}
assert spec["Launcher"]["replicas"] == 1
ranks = spec["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
for kind in spec.values():
    pod = kind["template"]["spec"]
    named = {v["name"] for v in pod["volumes"]}
    assert all(m["name"] in named for c in pod["containers"] for m in c["volumeMounts"])
assert "-np %d " % ranks in spec["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
END
	then good; else bad "mpijob.yaml: $(tail -n 1 "$dir/out")"; fi
else
	skipped=$((skipped + 1))
	echo "skip mpijob.yaml: there is no module yaml of Python"
fi

case $("$dir/wide" info --json) in *'"buckets": '[2-9]*) good ;; *) bad "one bucket: nothing overlaps" ;; esac
"$mantou" explain tests/distribute/wide.net >"$dir/out" 2>&1
# each bucket: where it starts, what hides it, which update waits for it; the first one's do not wait for the second
if [ "$(grep -c 'all_reduce: bucket [01]: .* MB, complete behind .* hidden.*; waited for before update_' "$dir/out")" = 2 ] &&
	[ "$(grep -o 'waited for before .*' "$dir/out" | sort -u | wc -l)" = 2 ] && grep -q 'bucket 1: .* % by updates before; ' "$dir/out"; then good; else bad "explain: $(grep bucket "$dir/out")"; fi
case $("$dir/wide.one" info --json) in *'"buckets": 0'*) good ;; *) bad "--disable overlap: $("$dir/wide.one" info --json)" ;; esac
# cut for a described cluster: where messages are cheap more buckets, where they are dear one; the same bits; explain and info say for what
printf 'node 1 of 4\nlink inside 1us 40GB/s\nsum 100GB/s\n' >"$dir/fast"
printf 'node 4 of 2\nlink inside 5us 60GB/s\nlink between 500us 0.2GB/s shared\nsum 40GB/s\n' >"$dir/far"
build wide.fast wide --distribute mpi --cluster "$dir/fast"
build wide.far wide --distribute mpi --cluster "$dir/far"
case $("$dir/wide.fast" info --json) in *'"buckets": '[3-9]', "cut_for": {"processes": 4, "start_us": 2, "gb_per_s": 22.2'*) good ;; *) bad "--cluster: $("$dir/wide.fast" info --json)" ;; esac
case $("$dir/wide.far" info --json) in *'"buckets": '[01]', "cut_for": {"processes": 5, "start_us": 1000, '*) good ;; *) bad "--cluster, far: $("$dir/wide.far" info --json)" ;; esac
case $("$mantou" info tests/distribute/wide.net --cluster "$dir/far") in *'1 bucket, for 5 processes, 1e+03 us and 0.0898 GB/s a bucket'*) good ;; *) bad "info --cluster" ;; esac
"$mantou" explain tests/distribute/wide.net --cluster "$dir/far" >"$dir/out" 2>&1
if [ "$(grep -c 'all_reduce: bucket 0: .* 45.[0-9] ms predicted' "$dir/out")" = 1 ]; then good; else bad "explain --cluster: $(grep bucket "$dir/out")"; fi
for b in fast far; do train wide.b wide.$b && same "--cluster $b" wide.a wide.b; done
for library in openmpi mpich; do
	! tests/distribute/ranks $library 1 true >/dev/null 2>&1 || { ranks $library 3 b wide.fast && same "$library, --cluster, 3 ranks" wide.a b; }
done
"$mantou" dump tests/distribute/wide.net --stage planned --cluster "$dir/far" -o "$dir/far.ir" && "$mantou" dump "$dir/far.ir" --stage planned >"$dir/out" 2>&1
if cmp -s "$dir/far.ir" "$dir/out" && grep -q '^setting bucket.link = link(processes = 5, start = 0.001' "$dir/out"; then good; else bad "--cluster, read back: $(grep bucket "$dir/out")"; fi
fails "--cluster of what is cut" 2 "--cluster: the exchange of .* is cut already" "$mantou" explain "$dir/far.ir" --cluster "$dir/far"
fails "--cluster of one process" 2 '--cluster cuts the exchange of several processes: it needs --distribute mpi' "$mantou" build tests/distribute/wide.net --cluster "$dir/far" -o "$dir/no"
fails "--cluster without shards" 2 '--cluster cuts the exchange of several processes: it needs train.shards' "$mantou" info models/lenet.net --cluster "$dir/far"
fails "no such cluster" 1 'nothere: No such file' "$mantou" info tests/distribute/wide.net --cluster "$dir/nothere"
echo 'node 1 of 1' >"$dir/one"
fails "a cluster of one" 2 'describes one process, which exchanges nothing' "$mantou" info tests/distribute/wide.net --cluster "$dir/one"
train wide.b wide.one && same "--disable overlap" wide.a wide.b
train attention.b attention.mpi && same "alone, linked for several" attention.a attention.b
case $(ldd "$dir/attention.mpi" 2>/dev/null) in *mpi*) bad "linked with an MPI library" ;; *) good ;; esac
train wide.b wide.so && same "--shard-optimizer, one process" wide.a wide.b
# slots of others have no memory: of 1.9 million parameters with two slots each a rank of five has a fifth
if for b in wide wide.so; do "$dir/$b" info --json --processes 5; done >"$dir/rooms" && python3 -c 'import json, sys
whole, parts = (json.loads(l) for l in open(sys.argv[1]))
spared = whole["process"]["arena_bytes"] - parts["process"]["arena_bytes"]
assert 0.75 < spared / (2 * whole["parameter_bytes"]) < 0.85, (whole["parameter_bytes"], spared)' "$dir/rooms" 2>"$dir/out"; then good
else bad "--shard-optimizer, info --processes: $(cat "$dir/out")"; fi
fails "--shard-optimizer of one process" 2 '--shard-optimizer is of several processes: it needs --distribute mpi, and train.shards' \
	"$mantou" build tests/distribute/wide.net --shard-optimizer -o "$dir/no"
sed 's/adam(rate = 0.001)/sgd(rate = 0.001)/' tests/distribute/wide.net >"$dir/plain.net"
fails "--shard-optimizer without slots" 1 '--shard-optimizer: there is no parameter of wide whose optimizer slots' \
	"$mantou" build "$dir/plain.net" --distribute mpi --shard-optimizer -o "$dir/no"
# memory of P processes: more shards, more sums; values of the shards that run in step; what arrives of other ranks; no more ranks than shards
if for p in 1 2 5; do "$dir/wide" info --json --processes $p; done >"$dir/rooms" && "$dir/stats.mpi" info --json --processes 2 >>"$dir/rooms" &&
	python3 -c 'import json, sys
one, two, five, stats = map(json.loads, open(sys.argv[1]))
for o in one, two, five, stats:
    p = o["process"]
    assert p["bytes"] == p["arena_bytes"] + p["sums_bytes"] + p["arrives_bytes"] + p["joins_bytes"], o
assert [o["process"]["shards"] for o in (one, two, five)] == [5, 2, 1]
assert one["process"]["arrives_bytes"] == 0 < two["process"]["arrives_bytes"] <= 32 << 20
grads = two["process"]["sums_bytes"]
assert grads >= one["parameter_bytes"] and one["process"]["sums_bytes"] == 2 * grads and five["process"]["sums_bytes"] == 0
assert stats["process"]["arena_bytes"] >= stats["process"]["shards"] * stats["arena_bytes"] and stats["process"]["joins_bytes"] > 0' "$dir/rooms" 2>"$dir/out"; then good
else bad "info --processes: $(cat "$dir/out")"; fi
fails "info --processes" 2 '--processes: 6 are more than the model.s 5 shards' "$dir/wide" info --processes 6
fails "info --processes of a program for one" 2 '--processes is of programs for several processes' "$dir/attention" info --processes 2
"$dir/wide.one" bench --links >"$dir/out" 2>&1
if [ $? -eq 1 ] && grep -q -e '--links: one process exchanges nothing' "$dir/out"; then good; else bad "bench --links alone: $(cat "$dir/out")"; fi
"$dir/attention" bench --only-exchange >"$dir/out" 2>&1
if [ $? -eq 2 ] && grep -q -e '--only-exchange is of programs for several' "$dir/out"; then good; else bad "bench --only-exchange: $(cat "$dir/out")"; fi
# no library at all: one that says so stands before libc's dlopen
if echo 'void *dlopen(const char *f, int flags) { (void)f, (void)flags; return (void *)0; }' | cc -shared -fPIC -x c - -o "$dir/none.so" 2>"$dir/out"; then
	fails "no MPI library" 1 'MPICH started 2 processes, but there is no MPI library: looked for libmpich.so.12, .* (Debian: apt-get install libmpich12)' \
		env PMI_SIZE=2 PMI_RANK=0 LD_PRELOAD="$dir/none.so" "$dir/slow" train --no-save
else
	skipped=$((skipped + 1))
	echo "skip no MPI library: no cc"
fi
join
# TCP, in a network that passes 800 Mbit/s: as predicted. Each rank has one piece of the sum.
build wide4 wide --shards 4 --distribute mpi
if tests/distribute/ranks tcp 1 true >/dev/null 2>&1; then
	ranks tcp 3 b wide --exchange messages && same "TCP, 3 ranks" wide.a b
	# all pass one card; another try where the machine is busy
	for try in 1 2 3 4 5; do
		tests/distribute/ranks tcp 2 "$dir/wide4" bench --only-exchange --exchange messages --steps 5 --warmup 2 --repeat 3 --json >"$dir/alone" 2>/dev/null
		python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
ms, said = o["exchange_ms"]["median"], o["exchange_bytes"] * 1e3 * 2 * (o["processes"] - 1) / 1e8
print("%.1f ms, %.1f predicted" % (ms, said))
sys.exit(not abs(said / ms - 1) < 0.1)' "$dir/alone" >"$dir/out" 2>&1 && break
	done
	if [ $? -eq 0 ]; then good; else bad "TCP at 800 Mbit/s: $(cat "$dir/out")"; fi
else
	skipped=$((skipped + 1))
	echo "skip TCP: no mpirun of Open MPI, or no network of one's own (unshare -rn, tc)"
fi
# three hosts, as far as one machine can be several: names, cards and a bridge of their own; torchrun's variables
sh tests/distribute/hosts 1 true >"$dir/out" 2>&1
if [ $? -ne 77 ]; then
	rm -f "$dir/b.st"
	timeout 100 sh tests/distribute/hosts 3 "$dir/wide" train --steps 8 --no-eval --save "$dir/b.st" >"$dir/out" 2>&1 || bad "hosts: $(tail -n 2 "$dir/out" | tr '\n' ' ')"
	same "3 hosts" wide.a b
	if [ "$(grep -c '^3 processes on 3 nodes (TCP), 5 shards' "$dir/out")" = 1 ]; then good; else bad "3 hosts: $(head -n 2 "$dir/out")"; fi
	# between hosts an exchange takes what its card does, by the formula of mantou scale; another try where the machine is busy
	for p in 2 4; do
		for try in 1 2 3 4 5; do
			TCP_RATE=200mbit timeout 100 sh tests/distribute/hosts $p "$dir/wide4" bench --links >"$dir/links" 2>/dev/null
			TCP_RATE=200mbit timeout 100 sh tests/distribute/hosts $p "$dir/wide4" bench --only-exchange --steps 5 --warmup 2 --repeat 3 --json >"$dir/alone" 2>/dev/null
			python3 - "$dir/links" "$dir/alone" >"$dir/out" 2>&1 <<'END' && break
import json, re, sys
links, o = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
seen, ms, p = float(re.search(r"^link between [0-9.e+-]+us ([0-9.e+-]+)GB/s$", links, re.M)[1]), o["exchange_ms"]["median"], o["processes"]
rate = 0.025 * 1448 / 1514   # a packet's bytes with and without its heads
said = o["exchange_bytes"] * 1e-6 * 2 * (p - 1) / p / rate
print("%.1f ms, %.1f predicted; links: %.4f GB/s" % (ms, said, seen))
sys.exit(not (abs(said / ms - 1) < 0.1 and 0.02 < seen < 0.03))
END
		done
		if [ $? -eq 0 ]; then good; else bad "$p hosts at 200 Mbit/s: $(cat "$dir/out")"; fi
	done
else
	skipped=$((skipped + 1))
	echo "skip hosts: no network and names of one's own (unshare -rnm, ip, tc)"
fi
# the other's library: each process believes that it is alone
if command -v mpirun.openmpi >/dev/null && command -v mpirun.mpich >/dev/null; then
	fails "another library" 2 'started 2 processes, Open MPI .* knows of 1' env MANTOU_LIBMPI=libmpi.so.40 tests/distribute/ranks mpich 2 "$dir/slow" train --no-save
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
