#!/bin/sh
# Shards of a batch: the same bits for every sink mode, number of threads, stopped and resumed; near the interpreter, and near one shard where
# nothing looks across examples.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
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

for m in attention norm; do
	build $m $m
	build $m.ref $m --target ref
	train $m.a $m --sink epoch --threads 2 || continue
	for sink in off 1 3; do train $m.b $m --sink $sink --threads 2 && same "$m --sink $sink" $m.a $m.b; done
	train $m.b $m --threads 1 && same "$m --threads 1" $m.a $m.b
	train $m.half $m --stop 3 && train $m.b $m --resume "$dir/$m.half.st" && same "$m stopped and resumed" $m.a $m.b
	train $m.r $m.ref && near "$m against the interpreter" $m.a $m.r 1e-4
done
for shards in 1 3 24; do
	build attention.s$shards attention --shards $shards
	train attention.s$shards attention.s$shards && near "8 and $shards shards" attention.a attention.s$shards 2e-5
done
build attention.f16 attention --precision f16
train f16.a attention.f16 --sink off && train f16.b attention.f16 --sink epoch --threads 1 && same "f16" f16.a f16.b
# another number of shards is another run
if "$dir/attention.s3" train --steps 8 --resume "$dir/attention.half.st" --save "$dir/x.st" >"$dir/out" 2>&1; then
	bad "resumed with another number of shards"
elif grep -q 'the checkpoint has shards = 8, this run 3; with --replan' "$dir/out"; then good; else bad "shards: $(cat "$dir/out")"; fi
train x attention.s3 --resume "$dir/attention.half.st" --replan && good
grep -q '"shards": 8' <<END && good || bad "info --json"
$("$dir/attention" info --json)
END

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
