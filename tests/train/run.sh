#!/bin/sh
# Whole training of small models. The same bits: every sink mode, one to three threads, stopped and resumed, killed and resumed, every --arch twice,
# a budget of memory; sums with fusion and without. The same within
# bounds: the program without optimisations, with tuned kernels, the interpreter. Losses of the first steps are compared, and whole checkpoints.
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

# train NAME PROGRAM ARGS...: leaves NAME.st and NAME.log
train() {
	name=$1 program=$2
	shift 2
	"$dir/$program" train --steps 10 --save "$dir/$name.st" --log "$dir/$name.log" --quiet "$@" >"$dir/out" 2>&1 || { bad "$name: $(tail -n 2 "$dir/out" | tr '\n' ' ')"; return 1; }
}
same() { # same NAME A B: checkpoints byte by byte, losses of the steps
	if cmp -s "$dir/$2.st" "$dir/$3.st"; then good; else bad "$1: checkpoints differ"; fi
}
# near NAME A B BOUND: every step's loss, relative
near() {
	if python3 - "$dir/$2.log" "$dir/$3.log" "$4" <<'END'
import json, sys
a, b = ([o["loss"] for o in map(json.loads, open(f)) if "step" in o] for f in sys.argv[1:3])
worst = max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b))
if len(a) != len(b) or len(a) != 10 or not worst <= float(sys.argv[3]):
    sys.exit("%d and %d losses, worst difference %.3g: %s and %s" % (len(a), len(b), worst, a[:3], b[:3]))
END
	then good; else bad "$1"; fi
}

for net in tests/train/*.net; do
	m=$(basename "$net" .net)
	for form in "plain" "o0 -O0" "nofuse --disable fuse" "ref --target ref"; do
		set -- $form
		name=$1
		shift
		"$mantou" build "$net" -o "$dir/$m.$name" "$@" >"$dir/out" 2>&1 || bad "build $m $*: $(head -n 2 "$dir/out" | tr '\n' ' ')"
	done
	train "$m.a" "$m.plain" --sink epoch --threads 2 || continue
	train "$m.again" "$m.plain" --sink epoch --threads 2 && same "$m twice" "$m.a" "$m.again"
	for sink in off 1 3; do
		train "$m.sink$sink" "$m.plain" --sink $sink --threads 2 && same "$m --sink $sink" "$m.a" "$m.sink$sink"
	done
	for threads in 1 3; do
		train "$m.t$threads" "$m.plain" --threads $threads && same "$m --threads $threads" "$m.a" "$m.t$threads"
	done
	for stop in 1 4; do
		train "$m.half" "$m.plain" --stop $stop && train "$m.resumed" "$m.plain" --resume "$dir/$m.half.st" && same "$m stopped after $stop and resumed" "$m.a" "$m.resumed"
	done
	train "$m.over" "$m.plain" --resume "$dir/$m.a.st" && same "$m resumed at its end" "$m.a" "$m.over"
	train "$m.o0" "$m.o0" && near "$m -O0" "$m.a" "$m.o0" 1e-4
	train "$m.nofuse" "$m.nofuse" && near "$m --disable fuse" "$m.a" "$m.nofuse" 1e-4
	train "$m.ref" "$m.ref" && near "$m against the interpreter" "$m.a" "$m.ref" 1e-4
	# what evaluation keeps of the weights: the same figures as without, in every sink mode, after training has changed them and from a checkpoint
	"$mantou" build "$net" --disable prepack -o "$dir/$m.nokeep" >"$dir/out" 2>&1 || bad "build $m --disable prepack"
	for form in "nokeep epoch" "plain epoch" "plain off" "plain 1"; do
		set -- $form
		"$dir/$m.$1" train --synthetic --epochs 2 --save "$dir/eval.st" --quiet --sink $2 --log "$dir/eval.log" >/dev/null 2>&1
		{
			sed -n 's/.*"eval": \({[^}]*}\).*/\1/p' "$dir/eval.log"
			"$dir/$m.$1" eval --synthetic --weights "$dir/eval.st" --json 2>&1
		} >"$dir/$1.$2.eval"
		if [ "$(wc -l <"$dir/$1.$2.eval")" -eq 3 ] && cmp -s "$dir/$1.$2.eval" "$dir/nokeep.epoch.eval"; then good; else bad "$m: evaluation, $form: $(tr '\n' ' ' <"$dir/$1.$2.eval" | head -c 300)"; fi
	done
	for precision in bf16 f16; do
		for form in keep nothing; do
			"$mantou" build "$net" --precision $precision --disable $([ $form = keep ] && echo prepack,winograd || echo winograd) -o "$dir/$m.narrow" >"$dir/out" 2>&1 || bad "build $m --precision $precision"
			"$dir/$m.narrow" eval --synthetic --weights "$dir/$m.a.st" --json >"$dir/$form.narrow" 2>&1
		done
		if grep -q '"loss"' "$dir/keep.narrow" && cmp -s "$dir/keep.narrow" "$dir/nothing.narrow"; then good; else bad "$m --precision $precision: what evaluation keeps changes it: $(cat "$dir/keep.narrow" "$dir/nothing.narrow" | tr '\n' ' ' | head -c 300)"; fi
	done
	train "$m.seed" "$m.plain" --seed 99 && { if cmp -s "$dir/$m.a.st" "$dir/$m.seed.st"; then bad "$m: another seed, the same bits"; else good; fi; }
done

# Each instruction set where the CPU has it; the two need not agree in bits with each other.
for arch in x86-64-v3 x86-64-v4; do
	"$mantou" build tests/train/convnet.net --arch $arch -o "$dir/convnet.$arch" >"$dir/out" 2>&1 || { bad "build --arch $arch: $(head -n 1 "$dir/out")"; continue; }
	if "$dir/convnet.$arch" info >/dev/null 2>&1; then
		train "convnet.$arch" "convnet.$arch" && near "--arch $arch" convnet.a "convnet.$arch" 1e-4
	else
		skipped=$((skipped + 1))
		echo "skip --arch $arch: this CPU does not have it"
	fi
done
. tests/train/sums.sh
. tests/train/precision.sh
. tests/train/memory.sh
. tests/train/tuned.sh
for target in cpu ref; do
	if python3 tests/train/finite.py "$mantou" "$dir" --target $target >"$dir/out" 2>&1; then good; else bad "finite.py --target $target: $(tail -n 1 "$dir/out")"; fi
done
# Killed at 20 random moments.
"$mantou" build models/lenet.net -o "$dir/lenet" >"$dir/out" 2>&1 || bad "build lenet: $(head -n 1 "$dir/out")"
if python3 tests/train/kill.py "$dir/lenet" models/digits 20 1 >"$dir/out" 2>&1; then good; cat "$dir/out"; else bad "kill.py: $(tail -n 1 "$dir/out")"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
