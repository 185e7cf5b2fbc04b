#!/bin/sh
# The command line: exit status, what goes to stdout and what to stderr, files that are written and files that are not.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'umount "$dir/disk" 2>/dev/null; rm -rf "$dir"' EXIT
export XDG_CACHE_HOME="$dir/cache" MANTOU_CACHE="$dir/kept"
passed=0 failed=0 skipped=0

# t NAME STATUS PATTERN COMMAND...: the exit status, and an extended regular expression that stdout or stderr must hold ('' = any).
t() {
	name=$1 want=$2 pattern=$3
	shift 3
	"$@" >"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	if [ $got != "$want" ]; then
		bad "$name: exit status $got, expected $want: $(head -c 300 "$dir/err")"
	elif [ -n "$pattern" ] && ! cat "$dir/out" "$dir/err" | grep -qE -- "$pattern"; then
		bad "$name: no /$pattern/ in: $(cat "$dir/out" "$dir/err" | head -c 300)"
	else
		passed=$((passed + 1))
	fi
}
bad() {
	failed=$((failed + 1))
	echo "FAIL $1"
}
# same NAME FILE FILE
same() {
	if cmp -s "$2" "$3"; then passed=$((passed + 1)); else bad "$1: $2 and $3 differ"; fi
}
ok() { # ok NAME COMMAND...: the command's success is the test
	name=$1
	shift
	if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); else bad "$name"; fi
}

cat >"$dir/tiny.net" <<'END'
const width = 8
model tiny(x: f32[N, 4], label: i32[N]) {
    logits = x |> dense(width) |> relu |> dense(3) as head
    loss   cross_entropy(logits, label)
    metric accuracy = accuracy(logits, label)
    output logits
}
data { reader = synthetic(examples = 64) }
train { batch = 16  optimizer = sgd(0.1) }
END
sed 's/dense(3)/dens(3)/' "$dir/tiny.net" >"$dir/wrong.net"
net=$dir/tiny.net

# ---- help, version, usage
t "no argument" 2 'usage: mantou' "$mantou"
t "help" 0 'commands:' "$mantou" --help
t "version" 0 '^mantou [0-9]' "$mantou" --version
for c in build run check dump info opt explain tune scale ops ref-run; do
	t "$c --help has an example" 0 '^  mantou ' "$mantou" $c --help
done
"$mantou" build "$net" -o "$dir/helped"
for c in "$mantou --help" "$dir/helped --help" $(for c in build run check dump info opt explain tune ops; do echo "$mantou,$c,--help"; done) $(for c in train eval infer generate bench info; do echo "$dir/helped,$c,--help"; done); do
	ok "80 columns: $c" sh -c "\"\$@\" | awk 'length > 80 {bad = 1} END {exit bad || NR < 5}'" - $(echo "$c" | tr , ' ')
done
ok "bench --quiet prints nothing" sh -c "test -z \"\$('$dir/helped' bench --quiet --synthetic --warmup 1 --steps 2 --repeat 1 2>&1)\""
t "bench --quiet --json" 0 '"examples_per_s"' "$dir/helped" bench --quiet --json --synthetic --warmup 1 --steps 2 --repeat 1
t "misspelt command" 2 "did you mean 'build'" "$mantou" biuld "$net"
t "option before command" 2 'command comes first' "$mantou" --batch 4 build "$net"
t "misspelt option" 2 "did you mean '--batch'" "$mantou" check --bacth 4 "$net"
t "option of another command" 2 "option of 'dump'" "$mantou" check --stage typed "$net"
t "missing value" 2 "needs a value" "$mantou" check "$net" --batch
for v in -1 +4 ' 4' 4x 0x4 1e3 9223372036854775808 ''; do t "--batch '$v'" 2 'no value for .--batch.' "$mantou" check --batch "$v" "$net"; done
for v in -1 ' 1GiB' 0x10MiB nan inf 1GB 1GiBx 1e400 99999999TiB 0 ''; do t "--memory '$v'" 2 'no value for .--memory.' "$mantou" check --memory "$v" "$net"; done
for v in fuse: fuse:x fuse:-1 'fuse: 1' fuse:+1 fuse:1x fuse:99999999999999999999 :1; do t "--pass-limit '$v'" 2 'no value for .--pass-limit.' "$mantou" check --pass-limit "$v" "$net"; done
for v in 3 -1 22 2x ''; do t "-O '$v'" 2 'no value for .-O.' "$mantou" check -O "$v" "$net"; done
t "no number" 2 "'x' is no value for '--batch'" "$mantou" check --batch=x "$net"
for n in 1099511627777 9223372036854775807 9223372036854775808 -1 +5 ' 5' '5 ' 5x 0x5 1e3 ''; do
	t "batch '$n'" 2 "' is no value for '--batch': needs a number from 1 to 1099511627776" "$mantou" check "--batch=$n" "$net"
done
for n in 0 -1MiB +1MiB ' 1MiB' 0x10MiB inf nan 1e400 9e15GiB 1MB 1MiBx; do
	t "memory '$n'" 2 "' is no value for '--memory': needs a size" "$mantou" check "--memory=$n" "$net"
done
t "batch 0" 2 "no value for '--batch'" "$mantou" check --batch=0 "$net"
t "level 3" 2 "no value for '-O'" "$mantou" check -O3 "$net"
t "flag with a value" 2 "takes no value" "$mantou" check --json=yes "$net"
t "no file" 2 'a file is missing' "$mantou" build
t "two files" 2 'too many' "$mantou" build "$net" "$net"
t "run without --" 2 'after --' "$mantou" run "$net" train
t "unknown target" 2 "no 'gpu'" "$mantou" check --target gpu "$net"
t "unknown arch" 2 '--arch z80' "$mantou" check --arch z80 "$net"
t "a CPU without code of its own" 0 '^target +cpu skylake-avx512$' "$mantou" info --arch cascadelake "$net"
"$mantou" build --arch x86-64-v3 "$net" -o "$dir/level"
for feature in bmi lzcnt movbe; do # whatever LLVM may take for the level is asked for
	"$dir/level" info >"$dir/out" 2>&1 || break
	t "a machine that hides $feature" 1 "needs $feature;" env MANTOU_WITHOUT=$feature "$dir/level" info
done
cat >"$dir/large.net" <<'END'
const width = 1000000
model large(x: f32[N, 1000], label: i32[N]) { loss cross_entropy(x |> dense(width, bias = false) |> relu |> dense(3), label) }
train { batch = 16  optimizer = sgd(0.1) }
END
t "no batch is small enough" 0 "does not fit; parameters and the optimizer's state alone are [0-9.]+ TiB$" "$mantou" check -D width=1000000000 "$dir/large.net"
t "a smaller batch fits" 0 'does not fit; use a smaller --batch$' "$mantou" check -D width=10 --batch 1000000000 "$dir/large.net"
t "unknown pass" 2 "did you mean 'fuse'" "$mantou" check --disable fuze "$net"
ok "each is named once" sh -c "'$mantou' check --disable xyzzy '$net' 2>&1 | grep 'there are' | sed 's/.*there are //' | tr -d ' ' | tr ',' '\n' | sort | uniq -d | wc -l | grep -qx 0"
t "required pass" 2 'nothing runs without' "$mantou" check --disable autodiff "$net"
t "kernel variant" 0 '' "$mantou" check --disable winograd "$net"
t "misspelt kernel variant" 2 "did you mean 'winograd'" "$mantou" check --disable winogard "$net"
t "pass limit" 2 'RULE:N' "$mantou" check --pass-limit fuse "$net"
t "unknown stage" 2 "did you mean 'fused'" "$mantou" dump --stage fusd "$net"
t "unknown graph" 2 "--graph" "$mantou" dump --graph trian "$net"
t "unknown kind" 2 "did you mean 'llvm'" "$mantou" build --emit lvm "$net"
t "unknown constant" 1 'widht' "$mantou" check -D widht=4 "$net"
printf 'model still(x: f32[N, 2]) {\n    loss mean(x)\n}\ntrain { batch = 2 }\n' >"$dir/still.net"
t "a model without parameters" 0 'still.net:2:10: warning: model .still. has no parameters: training changes nothing' "$mantou" check "$dir/still.net"
ok "no word of it where there are some" sh -c '"$0" check "$1" 2>&1 | grep -q parameters && ! "$0" check "$1" 2>&1 | grep "has no parameters"' "$mantou" "$net"

# ---- what is not built in says so
t "tune of a model that is not there" 1 "cannot read '.*none.net'" "$mantou" tune "$dir/none.net" --dry-run
t "tune --dry-run" 0 ' variants of [1-9][0-9]* kernels' "$mantou" tune "$net" --trials 5 --dry-run
t "tune: a time without a unit" 2 "'5' is no value for '--budget': needs a time such as 90s, 10m or 1h" "$mantou" tune "$net" --budget 5
# ---- target cuda: text without CUDA, PTX and cubins where NVRTC is
cuda="$mantou build --target cuda"
t "cuda without an architecture" 2 'no device here to ask.*sm_90a' env MANTOU_LIBCUDA="$dir/none.so" $cuda --emit cuda "$net" -o -
# Sums behind a pooling: by channel in its kernel, a mask of dropout between them or not; of the whole tensor in one of their own.
cat >"$dir/pools.net" <<'END'
model pools(image: f32[N, 3, 16, 16], target: f32[N, 16, 4, 4]) {
    x = image |> conv2d(16, 3, pad = 1, bias = false) |> batch_norm |> relu |> dropout(0.1) |> max_pool2d(3, stride = 2, pad = 1)
    x = x |> conv2d(16, 3, pad = 1, bias = false) |> relu |> max_pool2d(2)
    e = x - target
    loss   mean(e * e)
    output x
}
data { reader = synthetic() }
train {
    batch     = 32
    epochs    = 1
    optimizer = sgd(rate = 0.1)
}
END
MANTOU_LIBNVRTC="$dir/none.so" "$mantou" info "$dir/pools.net" --target cuda --arch sm_80 --json 2>&1 | tr '{' '\n' | grep -o '"name":.*"kernel": *"[a-z]*' | tr -d ' "' >"$dir/pools"
for what in 'max_pool2d_dx_max_pool2d0_[0-9]*,.*kernel:columns' 'max_pool2d_max_pool2d1_[0-9]*,.*kernel:window' 'mean_mean0_[0-9]*,.*kernel:total'; do
	ok "sums behind a pooling: $what" grep -q "$what" "$dir/pools"
done
sim=$(dirname "$mantou")/tests/cudasim/libcuda.so.1
cuda_machine="$mantou info --machine --target cuda"
if [ -f "$sim" ]; then
	while read -r sm arch; do
		t "native on $sm" 0 "target +cuda $arch\$" env MANTOU_LIBNVRTC="$dir/none.so" MANTOU_LIBCUDA="$sim" MANTOU_SIM_SM="$sm" "$mantou" info "$net" --target cuda --arch native
	done <<-END
		75 sm_75
		80 sm_80
		87 sm_86
		90 sm_90a
		100 sm_90
	END
else
	skipped=$((skipped + 5))
	echo "skip native: no simulated driver"
fi
t "cuda, misspelt architecture" 2 "did you mean 'sm_90a'" $cuda --arch sm_90b --emit cuda "$net" -o -
t "cuda makes no llvm" 2 'target cuda makes cuda, ptx and cubin' $cuda --arch sm_80 --emit llvm "$net" -o -
for k in cuda ptx cubin; do t "emit $k of target cpu" 2 'needs --target cuda' "$mantou" build --emit $k "$net"; done
t "emit cuda" 0 '^KERNEL ' $cuda --arch sm_80 --emit cuda models/lenet.net -o -
$cuda --arch sm_80 --emit cuda models/lenet.net -o "$dir/lenet.cu"
"$mantou" dump --target cuda --arch sm_80 --stage planned models/lenet.net -o "$dir/lenet.ir"
sed -n 's/^.. graph [a-z]*, group \([a-z0-9_]*\): .*/\1/p' "$dir/lenet.cu" | grep -v '^-$' | sort -u >"$dir/kernels"
sed -n 's/^ *group #[0-9]* \([a-z0-9_]*\).*/\1/p' "$dir/lenet.ir" | sort >"$dir/groups"
same "kernels for each group" "$dir/kernels" "$dir/groups"
# launches: the plan says which kernels share one, and its text is followed; launch SED
launch() {
	sed "$1" "$dir/lenet.ir" >"$dir/launch.ir"
	if cmp -s "$dir/lenet.ir" "$dir/launch.ir"; then bad "launches: sed changes nothing: $1"; fi
}
t "launches of two kernels and more" 0 '' grep -q 'group #[0-9]* train_add_dense1_[0-9]* "map" launch 2$' "$dir/lenet.ir"
t "they are explained" 0 '4 kernels of one function are a launch, with a table .*launch.table; train' "$mantou" explain --target cuda --arch sm_80 models/lenet.net
t "and why others are none" 0 'declined .*(reads what train|writes what train|kernels beside it has its function).*launch' "$mantou" explain --target cuda --arch sm_80 models/lenet.net
launch '/train_add_dense1_/s/launch 2$/launch 9/'
t "a launch less one kernel" 0 '' "$mantou" opt "$dir/launch.ir" --target cuda --arch sm_80 --emit cuda -o "$dir/launch.cu"
ok "is in the code" sh -c "grep -q '^KERNEL train_add_[a-z0-9_]*_and_3' '$dir/lenet.cu' && ! grep -q '^KERNEL train_add_[a-z0-9_]*_and_3' '$dir/launch.cu' && grep -q '^KERNEL train_add_[a-z0-9_]*_and_2' '$dir/launch.cu'"
launch '/train_add_dense1_/s/launch 2$/launch 1/'
t "a launch of two functions" 1 'graph train: train_add_[a-z0-9_]* and [0-9]+ more are neither of one function nor small' "$mantou" build "$dir/launch.ir" --target cuda --arch sm_80 --emit cuda -o "$dir/launch.cu"
launch '/train_add_dense1_/s/launch 2$/launch 2, 2/'
t "a launch of a kernel that is not there" 1 'is not well formed|together, or not in their order' "$mantou" build "$dir/launch.ir" --target cuda --arch sm_80 --emit cuda -o "$dir/launch.cu"
launch '/train_add_dense1_/s/launch 2$/launch 2, 9/'
t "a launch of one more" 1 'has 1 kernels, and launches of 2' "$mantou" build "$dir/launch.ir" --target cuda --arch sm_80 --emit cuda -o "$dir/launch.cu"
launch 's/launch [0-9]*$//'
"$mantou" opt "$dir/launch.ir" --target cuda --arch sm_80 --emit cuda -o "$dir/launch.cu"
$cuda --arch sm_80 --disable launch --emit cuda models/lenet.net -o "$dir/apart.cu"
same "no launches in the text, or --disable launch" "$dir/launch.cu" "$dir/apart.cu"
t "no two kernels are one" 1 '' grep -q 'in one launch' "$dir/apart.cu"
once="--arch sm_80 --precision bf16 models/mlp.net"
$cuda $once --emit cuda -o "$dir/mlp.cu"
"$mantou" dump --target cuda --stage planned $once -o "$dir/mlp.ir"
sed -n 's/^.. graph [a-z]*, group \([a-z0-9_]*\): .*; once .*/\1/p' "$dir/mlp.cu" | sort -u >"$dir/kernels"
sed -n 's/^ *group #[0-9]* \([a-z0-9_]*\) .* once\( launch [0-9]*\)*$/\1/p' "$dir/mlp.ir" | sort >"$dir/groups"
same "kernels that run once are the groups that do" "$dir/kernels" "$dir/groups"
t "they come first in their graph" 0 'group eval_cast_[a-z0-9_]*: .*; once' sh -c "grep '^/. graph eval' '$dir/mlp.cu' | head -n 1"
$cuda $once --disable prepack --emit cuda -o "$dir/mlp.cu"
t "none without variant keep" 1 '' grep -q '; once' "$dir/mlp.cu"
# images: the first convolution and its weight gradient take pixels out of the data set, normalise, crop and reverse them; a large filter leaves that to one kernel before it
$cuda --arch sm_80 --precision bf16 --disable channels --emit cuda models/resnet20-cifar10.net -o "$dir/images.cu"
t "kernels that read the data set itself" 0 '^2$' sh -c "sed -n '/graph train/,/graph eval/p' '$dir/images.cu' | grep -c 'const unsigned char .const r[0-9]* = '"
for part in crop where_random_flip mul_normalize; do t "no kernel of $part" 1 '' grep -q "KERNEL train_$part" "$dir/images.cu"; done
t "one kernel before a large filter" 0 'KERNEL train_where_random_flip' sh -c "'$mantou' build --target cuda --arch sm_80 --precision bf16 --disable channels --emit cuda models/resnet50.net -o - | grep -B1 -A40 'KERNEL train_where_random_flip' | tee '$dir/own.cu'"
t "which reads the data set" 0 '^1$' grep -c 'const unsigned char .const r[0-9]* = ' "$dir/own.cu"
# channels: one kernel makes pixels of whole chunks for both of them, and reads the data set
$cuda --arch sm_80 --precision bf16 --emit cuda models/resnet20-cifar10.net -o "$dir/images.cu"
t "one kernel makes whole chunks" 0 '^1$' sh -c "sed -n '/graph train/,/graph eval/p' '$dir/images.cu' | grep -c 'const unsigned char .const r[0-9]* = '"
t "which is not the convolution's" 0 '^0$' sh -c "sed -n '/^KERNEL2* train_conv2d/,/^}/p' '$dir/images.cu' | grep -c 'const unsigned char .const r[0-9]* = '; true"
# composite operators: kernels of their own, and what they refuse
cat >"$dir/composites.net" <<'EOF'
model composites(x: f32[N, 6, 32]) {
    h = x |> dense(32)
    y = attention(h, h, h, causal = true)
    z = y |> lstm(8) |> gru(8)
    loss mean(square(z))
    output z
}
train { batch = 4  epochs = 1  optimizer = sgd(rate = 0.1) }
EOF
"$mantou" dump --target cuda --arch sm_80 --stage planned "$dir/composites.net" -o "$dir/composites.ir"
for k in 'attention_.* "attention{ffma,rows=16,columns=16}"' 'attention_dx_.* "attention{ffma,.*workspace' 'lstm_cells_.* "cells{examples=1,threads=32}" workspace' 'lstm_cells_dx_.* "cells{' 'gru_cells_.* "cells{' 'gru_cells_dx_.* "cells{'; do
	ok "a kernel of $k" grep -q "group #[0-9]* train_$k" "$dir/composites.ir"
done
t "in 16 bits by matrix instructions" 0 'train_attention_.* "attention.mma,' "$mantou" dump --target cuda --arch sm_80 --precision bf16 --stage planned "$dir/composites.net"
t "sm_75 has none for bf16" 0 'train_attention_.* "attention.ffma,' "$mantou" dump --target cuda --arch sm_75 --precision bf16 --stage planned "$dir/composites.net"
t "and for f16" 0 'train_attention_.* "attention.mma,' "$mantou" dump --target cuda --arch sm_75 --precision f16 --stage planned "$dir/composites.net"
$cuda --arch sm_80 --emit cuda "$dir/composites.net" -o "$dir/composites.cu"
t "a gradient is three kernels" 0 '^3$' grep -c 'graph train, group train_attention_dx' "$dir/composites.cu"
t "explain names the kernel" 0 'train: kernels of attention0: train_attention_attention0' "$mantou" explain --target cuda --arch sm_80 "$dir/composites.net" attention0
sed 's/dense(32)/dense(600)/' "$dir/composites.net" >"$dir/refused.net"
t "a width that does not fit" 0 'attention: widths of 600 and 600.*shared memory' "$mantou" explain --target cuda --arch sm_80 "$dir/refused.net" attention0
t "switched off" 0 'lstm.cells: switched off by --disable' "$mantou" explain --target cuda --arch sm_80 --disable lstm "$dir/composites.net" lstm0
# wgmma: wherever its tiles fit, on sm_90a alone
cat >"$dir/wide.net" <<'EOF'
model wide(x: f32[N, 2048]) {
    y = x |> dense(4096) |> relu |> dense(2048) as second |> dense(8) as narrow
    loss mean(square(y))
    output y
}
train { batch = 4096  epochs = 1  optimizer = sgd(rate = 0.1)  precision = bf16 }
EOF
wide="--target cuda $dir/wide.net"
t "wgmma is chosen" 0 'group #[0-9]* train_[a-z0-9_]*second[a-z0-9_]* "wgmma\{m=128,n=' "$mantou" dump --stage selected --arch sm_90a $wide
t "explain says why" 0 'done +matmul.*: products by mma.sync would take [0-9.]* of the time that memory takes.*select.wgmma' "$mantou" explain --arch sm_90a $wide second
t "and why not" 0 'declined +matmul.*: the result is narrower than half a tile.*select.wgmma' "$mantou" explain --arch sm_90a $wide narrow
for a in "sm_90a --disable wgmma" "sm_90a -O0" "sm_90a --precision f32" sm_90 sm_80; do
	t "no wgmma for $a" 0 '' sh -c "'$mantou' dump --stage selected $wide --arch $a >'$dir/without.ir' && ! grep -q wgmma '$dir/without.ir'"
done
t "explain says that it is switched off" 0 'declined +matmul.*: switched off.*select.wgmma' "$mantou" explain --arch sm_90a --disable wgmma $wide second
t "operands without the tensor memory accelerator" 0 'second[a-z0-9_]* "wgmma\{m=128,n=[^"]*,tma=0' "$mantou" dump --stage selected --arch sm_90a --disable tma $wide
t "no map of memory is made for them" 0 '' sh -c "'$mantou' build --emit cuda --arch sm_90a --disable tma $wide -o '$dir/copied.cu' && grep -q WGMMA '$dir/copied.cu' && ! grep -q 'TensorMap map_' '$dir/copied.cu'"
t "sums stay behind the wait, and a copy that never comes ends" 0 '' sh -c "'$mantou' build --emit cuda --arch sm_90a $wide -o '$dir/mapped.cu' && awk '/PRODUCTS_WAIT\\(0\\);/{w=NR} /\\tsums_fence\\(acc/{f=NR} /\\tbarriers_kept\\(lost/ && w && f>w {k=1} END{exit !k}' '$dir/mapped.cu'"
t "--ptx-only is of target cuda" 1 'ptx-only is of target cuda' "$mantou" build --ptx-only "$net" -o "$dir/program"
t "--ptx-only of text" 1 'ptx-only is of executables' "$mantou" build --ptx-only --target cuda --arch sm_80 --emit cubin "$net" -o "$dir/program"
t "--ptx-only of two" 1 'ptx-only takes one --arch' "$mantou" build --ptx-only --target cuda --arch sm_80,sm_90 "$net" -o "$dir/program"
t "--driver is of target cuda" 1 'driver is of target cuda' "$mantou" build --driver 580 "$net" -o "$dir/program"
t "its rate is in the forecast" 0 '418 by tensor cores, 643 by wgmma' "$mantou" info --arch sm_90a $wide
t "and not where it is not" 0 '418 by tensor cores, 4.18e' "$mantou" info --arch sm_90 $wide
ms() { "$mantou" info "$@" --json 2>/dev/null | sed -n 's/.*"predicted_ms_per_step": \([0-9.]*\).*/\1/p'; }
t "a step is forecast to be shorter" 0 '' test "$(ms --arch sm_90a $wide | cut -c -6 | tr -d .)" -lt "$(ms --arch sm_90a --disable wgmma $wide | cut -c -6 | tr -d .)"
"$mantou" dump --stage planned --arch sm_90a $wide -o "$dir/wide.ir"
sed 's/arch=sm_90a/arch=sm_80/' "$dir/wide.ir" >"$dir/other.ir"
t "text for another architecture" 1 'group [a-z0-9_]* .wgmma.*: wgmma is an instruction of sm_90a, not of sm_80' "$mantou" build --target cuda --arch sm_80 --emit cuda "$dir/other.ir" -o -
sed 's/"wgmma{m=[^"]*"/"wgmma{m=256,n=256,k=64,stages=8,groups=2}"/' "$dir/wide.ir" >"$dir/other.ir"
t "text with more shared memory than there is" 1 'group [a-z0-9_]* .wgmma.*: stages=8 does not fit' "$mantou" build --target cuda --arch sm_90a --emit cuda "$dir/other.ir" -o -
t "no NVRTC" 1 'need NVRTC.*was not found.*cuda-nvrtc' env MANTOU_LIBNVRTC="$dir/none.so" $cuda --arch sm_80 --emit ptx "$net" -o "$dir/none"
t "a forecast needs NVRTC, the table does not" 0 '^forecast +none: .*need NVRTC' env MANTOU_LIBNVRTC="$dir/none.so" "$mantou" info --target cuda --arch sm_80 "$net"
t "machine code is a GPU's" 2 '--sass needs --target cuda' "$mantou" info --sass "$net"
printf 'model b(x: u8[N, 6, 24]) {\n loss l1(cast(x, f32) * 0.01, 3.5)\n w = param([1], init = normal(1)) as w\n loss mean(w)\n}\ndata { reader = synthetic() }\ntrain { batch = 9 optimizer = sgd(rate = 0.1) }\n' >"$dir/bytes.net"
ok "bytes that are reduced to a number" $cuda --arch sm_80 --emit cuda "$dir/bytes.net" -o "$dir/bytes.cu"
printf 'model a(x: f32[N, 6, 16]) {\n w = param([6, 6], init = normal(1)) as w\n loss mse(attention(dense(x, 16), dense(x, 16), dense(x, 2), mask = w), 0.5)\n}\ndata { reader = synthetic() }\ntrain { batch = 2 optimizer = sgd(rate = 0.1) }\n' >"$dir/mask.net"
printf 'model c(x: f32[N, 24, 16]) {\n z = concat([dense(x, 16), dense(x, 16)], axis = 1)\n loss mse(attention(z, z, z), 0.5)\n}\ndata { reader = synthetic() }\ntrain { batch = 2 optimizer = sgd(rate = 0.1) }\n' >"$dir/joined.net"
for a in 'cpu --arch znver4' 'cuda --arch sm_80'; do t "attention of what is concatenated, in bf16: $a" 0 'attention .*wide=true' "$mantou" dump --stage planned --precision bf16 --target $a "$dir/joined.net"; done
for a in 'cpu --arch znver4' 'cuda --arch sm_80'; do t "attention with a trained mask, in bf16: $a" 0 'attention .*wide=true' "$mantou" dump --stage planned --precision bf16 --target $a "$dir/mask.net"; done
t "nor does it need LLVM" 0 '^KERNEL ' env MANTOU_LIBLLVM="$dir/none.so" $cuda --arch sm_80 --emit cuda "$net" -o -
t "machine code needs LLVM" 1 'needs LLVM 19, and .*none.so was not found .*MANTOU_LIBLLVM' env MANTOU_LIBLLVM="$dir/none.so" "$mantou" build "$net" -o "$dir/program"
t "the text needs no NVRTC" 0 '^KERNEL ' env MANTOU_LIBNVRTC="$dir/none.so" $cuda --arch sm_80 --emit cuda "$net" -o -
if $cuda --arch sm_80 --emit ptx "$net" -o "$dir/first.ptx" 2>"$dir/err"; then
	for a in sm_75 sm_80 sm_90a; do t "PTX for $a" 0 '\.visible \.entry' $cuda --arch $a --emit ptx models/lenet.net -o -; done
	t "NVRTC may not hurry so" 1 'MANTOU_NVRTC_FAST is min, mid or max, not soon' env MANTOU_NVRTC_FAST=soon $cuda --arch sm_80 --emit ptx "$net" -o "$dir/fast.ptx"
	ok "NVRTC optimises" env -u MANTOU_NVRTC_FAST $cuda --arch sm_80 --emit ptx "$net" -o "$dir/slow.ptx"
	ok "NVRTC hurries" env MANTOU_NVRTC_FAST=max $cuda --arch sm_80 --emit ptx "$net" -o "$dir/fast.ptx"
	t "which is other code, where NVRTC can" 0 '' sh -c "grep -q 'release 12' '$dir/slow.ptx' || ! cmp -s '$dir/slow.ptx' '$dir/fast.ptx'"
	t "a forecast by the machine code" 0 '^forecast +[0-9.e-]+ ms a step.*by the machine code' "$mantou" info --target cuda --arch sm_80 "$net"
	t "a card by its name" 0 'assumed: H100, .* 2.92e\+03 GB/s' "$mantou" info --target cuda --arch sm_90 --machine H100 "$net"
	t "a card that the architecture has not" 2 "'H100' is no value for '--machine'" "$mantou" info --target cuda --arch sm_80 --machine H100 "$net"
	t "the machine code, and where a warp waits" 0 'blocks of [0-9]+ threads, [0-9]+ registers, .* blocks an SM' "$mantou" info --sass --target cuda --arch sm_80 "$net"
	ok "a cubin" $cuda --arch sm_90 --emit cubin "$net" -o "$dir/x.cubin"
	ok "an executable" $cuda --arch sm_90,sm_80 "$net" -o "$dir/cuda-two"
	t "it needs no CUDA to be asked" 0 'target  *cuda' "$dir/cuda-two" info
	t "it needs a driver to train" 1 'needs an NVIDIA driver' env MANTOU_LIBCUDA="$dir/none.so" "$dir/cuda-two" train --synthetic --steps 1 --no-save
	t "libc and libm, nothing of CUDA" 1 '' sh -c "ldd '$dir/cuda-two' | grep -vE 'libc\.|libm\.|libdl|ld-linux|vdso'"
	for f in "$MANTOU_CACHE"/nvrtc/*/*; do printf x >>"$f"; done
	ok "a damaged cache entry is made again" $cuda --arch sm_80 --emit ptx "$net" -o "$dir/second.ptx"
	same "the same PTX" "$dir/first.ptx" "$dir/second.ptx"
	for f in "$MANTOU_CACHE"/nvrtc/*/*; do : >"$f"; done
	ok "an empty cache entry is made again" $cuda --arch sm_80 --emit ptx "$net" -o "$dir/second.ptx"
	same "the same PTX again" "$dir/first.ptx" "$dir/second.ptx"
elif grep -q 'need NVRTC' "$dir/err"; then
	echo "skip PTX and cubins of target cuda: there is no NVRTC here"
	skipped=$((skipped + 18))
else
	bad "emit ptx: $(head -c 300 "$dir/err")"
fi
t "html" 1 'not built in' "$mantou" dump --format html "$net"

# ---- files
t "no such file" 1 'cannot read' "$mantou" check "$dir/none.net"
t "a folder" 1 'is a folder' "$mantou" check "$dir"
t "a folder to build" 1 'a .net or .ir file is needed' "$mantou" build "$dir"
t "a name without .net" 1 "did you mean '$dir/tiny.net'" "$mantou" check "$dir/tiny"
t "target gpu" 2 "did you mean 'cuda'" "$mantou" build --target gpu "$net"
t "error in the model" 1 'wrong.net:3:[0-9]+: error: .*dens' "$mantou" check "$dir/wrong.net"
t "no file is left of a failed build" 1 '' "$mantou" build "$dir/wrong.net" -o "$dir/wrong"
ok "nothing written" test ! -e "$dir/wrong"
t "output is the input" 1 'is the input' "$mantou" build "$net" -o "$net"
t "output is a folder" 1 'is a folder' "$mantou" build "$net" -o "$dir"
t "output in no folder" 1 'cannot write' "$mantou" build "$net" -o "$dir/none/x"
t "build ref" 0 '' "$mantou" build --target ref "$net" -o "$dir/ref"
t "info of a target without kernels" 0 "a step +no kernels: the IR is interpreted" "$mantou" info --target ref "$net"
ok "launcher is executable" test -x "$dir/ref"
t "launcher trains" 0 '' "$dir/ref" train --steps 2 --save "$dir/r.safetensors" --quiet
t "build" 0 '' "$mantou" build "$net" -o "$dir/tiny"
t "executable trains" 0 'epoch 1/1' "$dir/tiny" train --save "$dir/t.safetensors"
ok "no temporary files" sh -c "! ls '$dir' | grep -q tmp"
# What stands under the name that the user gave: links stay links, devices and pipes what they are; names that programs would take for options.
mkdir "$dir/kinds"
echo old >"$dir/kinds/target"
ln -s target "$dir/kinds/link"
ln -s new "$dir/kinds/dangling"
ln -s /dev/null "$dir/kinds/null"
mkfifo "$dir/kinds/pipe"
for o in "" "--target ref" "--emit ir"; do
	for f in link dangling null; do t "build $o -o $f" 0 '' "$mantou" build "$net" $o -o "$dir/kinds/$f"; done
	ok "links are links" sh -c "cd '$dir/kinds' && test -L link -a -L dangling -a -L null -a -f target -a -f new -a -c /dev/null && test \"\$(head -c 3 target)\" != old && cmp target new"
	timeout 60 cat "$dir/kinds/pipe" >"$dir/kinds/read" &
	t "build $o into a pipe" 0 '' timeout 60 "$mantou" build "$net" $o -o "$dir/kinds/pipe"
	wait $!
	ok "it is a pipe, and all went through" sh -c "cd '$dir/kinds' && test -p pipe && cmp read target"
done
t "dump to a link" 0 '' "$mantou" dump "$net" -o "$dir/kinds/link"
ok "is one" test -L "$dir/kinds/link"
if mknod "$dir/kinds/device" c 1 3 2>/dev/null && (: >"$dir/kinds/device") 2>/dev/null; then
	t "build -o device" 0 '' "$mantou" build "$net" -o "$dir/kinds/device"
	ok "it is a device" test -c "$dir/kinds/device"
else
	skipped=$((skipped + 2))
	echo "skip a device of our own: mknod is not allowed here"
fi
(for i in 1 2 3 4; do "$mantou" build "$net" -o "$dir/kinds/twice" & done; wait) >"$dir/said" 2>&1
t "builds at once to one file" 0 '^model  *tiny' "$dir/kinds/twice" info
ok "without a word" test ! -s "$dir/said"
cp "$net" "$dir/kinds/-d.net"
t "a model called -d.net" 0 '' sh -c "cd '$dir/kinds' && '$mantou' build -- -d.net && ./-d info"
t "an output called -dd" 0 '' sh -c "cd '$dir/kinds' && '$mantou' build ../tiny.net -o -dd && ./-dd info"
t "an output called @dd" 0 '' sh -c "cd '$dir/kinds' && '$mantou' build ../tiny.net -o @dd && ./@dd info"
t "a launcher called -r" 0 '' sh -c "cd '$dir/kinds' && '$mantou' build ../tiny.net --target ref -o -r && ./-r info"
t "run -- MODEL -- ARGS" 0 '^model  *tiny' sh -c "cd '$dir/kinds' && '$mantou' run -- -d.net -- info"
odd="$dir/kinds/a b'c\"d
e$(printf '\377')"
mkdir "$odd"
cp "$net" "$odd/m.net"
for o in cpu ref; do t "an odd path, --target $o" 0 '^model  *tiny' sh -c '"$1" build "$2/m.net" --target $3 -o "$2/$2.out" 2>/dev/null || "$1" build "$2/m.net" --target $3 -o "$2/out" && "$2/out" info' sh "$mantou" "$odd" $o; done
for s in INT TERM; do for d in 0.02 0.05 0.1 0.2; do timeout -s $s $d "$mantou" build models/lenet.net -o "$dir/kinds/stopped" >/dev/null 2>&1; done; done
ok "a signal leaves no temporary files" sh -c "! ls -A '$dir/kinds' | grep -q tmp"
# Descriptors that are open already: what is written goes on where they stand, and nothing of the file is lost.
"$mantou" build "$net" --emit ir -o "$dir/emitted"
for f in /dev/stdout /dev/fd/1 /proc/self/fd/1 "$dir/out-link"; do
	ln -sf /dev/stdout "$dir/out-link"
	echo before >"$dir/appended"
	t "build -o $f >>FILE" 0 '' sh -c "'$mantou' build '$net' --emit ir -o '$f' >>'$dir/appended'"
	ok "is appended" sh -c "(echo before; cat '$dir/emitted') | cmp - '$dir/appended'"
	t "build -o $f between lines" 0 '' sh -c "(echo before; '$mantou' build '$net' --emit ir -o '$f'; echo behind) >'$dir/between'"
	ok "stands between them" sh -c "(echo before; cat '$dir/emitted'; echo behind) | cmp - '$dir/between'"
done
t "a descriptor that is closed" 1 "cannot write '/dev/fd/9'" sh -c "'$mantou' build '$net' --emit ir -o /dev/fd/9 9>&-"
# A kill leaves temporaries: whoever writes to that folder next removes them, but not those of a build that runs. The linker waits for a file.
mkdir "$dir/kill"
printf '#!/bin/sh\n[ "$0" = "$LATE" ] && : >"$0.linking" && while [ ! -f "$0.go" ] && [ -d %s ]; do sleep 0.05; done\nexec cc "$@"\n' "'$dir/kill'" >"$dir/kill/cc"
chmod +x "$dir/kill/cc"
linking() { i=0; while [ ! -f "$dir/kill/cc.linking" ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 0.05; done; rm -f "$dir/kill/cc.linking"; }
LATE="$dir/kill/cc" CC="$dir/kill/cc" "$mantou" build "$net" -o "$dir/kill/killed" >"$dir/said" 2>&1 &
killed=$!
linking
kill -9 $killed
wait $killed 2>/dev/null
LATE="$dir/kill/cc" CC="$dir/kill/cc" "$mantou" build "$net" -o "$dir/kill/late" >"$dir/said" 2>&1 &
linking
: >"$dir/kill/mantou-1-1.tmp"
mkdir "$dir/kill/mantou-1-x.tmp" "$dir/kill/my-mantou-1-1.tmp"
t "a build beside a killed and a waiting one" 0 '' "$mantou" build "$net" -o "$dir/kill/other"
ok "removes what no process holds, and nothing else" test "$(cd "$dir/kill" && ls -d *tmp* | sed "s/^mantou-[0-9]*-[0-9][0-9]*/TEMP/" | LC_ALL=C sort | tr '\n' ' ')" = "TEMP.tmp mantou-1-x.tmp my-mantou-1-1.tmp "
: >"$dir/kill/cc.go"
ok "the one that waited" wait $!
t "is whole" 0 '^model  *tiny' "$dir/kill/late" info
ok "without a word" test ! -s "$dir/said"
# ---- surroundings: a small stack, no temporary folder, closed and full outputs
t "a stack of 100 KiB" 0 '' sh -c "ulimit -s 100 && '$mantou' build models/lenet.net -o '$dir/small'"
awk 'BEGIN { printf "model m(x: f32[N, 4]) {\n    y = "; for (i = 0; i < 10000; i++) printf "("; printf "x"; for (i = 0; i < 10000; i++) printf ")"; print "\n    loss mean(y)\n}\ntrain { batch = 4 }" }' >"$dir/deep.net"
awk 'BEGIN { printf "setting a = "; for (i = 0; i < 10000; i++) printf "["; print "" }' >"$dir/deep.ir"
for f in deep.net deep.ir; do t "$f, and a stack of 100 KiB" 1 'nested too deeply' sh -c "ulimit -s 100 && '$mantou' dump '$dir/$f'"; done
t "no TMPDIR" 0 '' env TMPDIR="$dir/none" "$mantou" build "$net" -o "$dir/small"
t "no TMPDIR for what goes to a device" 0 '' env TMPDIR="$dir/none" "$mantou" build "$net" -o "$dir/kinds/null"
for c in "--version" "--help" "ops" "check --help" "check $net" "info $net" "dump $net" "explain $net" "dump $net --format json" "info --json $net"; do
	if [ -c /dev/full ]; then t "$c to a full disk" 1 'cannot write to stdout' sh -c "'$mantou' $c >/dev/full"; fi
	t "$c to a closed stdout" 1 'cannot write to stdout' sh -c "'$mantou' $c >&-"
	t "$c with nothing but stdout" 0 '' sh -c "'$mantou' $c <&- 2>&-"
done
t "a build with all three closed" 0 '' sh -c "'$mantou' build '$net' -o '$dir/small' <&- >&- 2>&-"
t "and an error" 1 '' sh -c "'$mantou' build '$dir/wrong.net' -o '$dir/small' <&- >&- 2>&-"
t "CC of two words" 0 '' env CC="cc -O2" "$mantou" build "$net" -o "$dir/small"
t "CC of blanks" 0 '' env CC="  " "$mantou" build "$net" -o "$dir/small"
ln -s "$(command -v cc)" "$dir/kinds/my cc"
t "CC with a blank in its path" 0 '' env CC="$dir/kinds/my cc" "$mantou" build "$net" -o "$dir/small"
t "no CC" 1 "no C compiler 'nocc' .*CC names it.*install one" env CC="nocc -O2" "$mantou" build "$net" -o "$dir/small"
# A disk or quota that ends at any of these places, in blocks of 512 bytes: a message, the old file whole, nothing beside it.
mkdir "$dir/quota"
echo old >"$dir/quota/tiny"
for blocks in 0 1 8 40 100 200 300; do # through a pipe, for the messages would end at the same place
	t "no room after $blocks blocks" 0 '(too large|may not grow).*status 1' sh -c "(ulimit -f $blocks; '$mantou' build '$net' -o '$dir/quota/tiny' 2>&1; echo status \$?) | tr '\n' ' '"
	ok "the old file after $blocks blocks" test "$(cat "$dir/quota"/*)" = old
done
if mkdir "$dir/disk" && mount -t tmpfs -o size=300k tmpfs "$dir/disk" 2>/dev/null; then
	for room in 0 20 60 120; do
		echo old >"$dir/disk/tiny"
		head -c $((290 - room))k /dev/zero >"$dir/disk/fill"
		t "a disk with $room KiB" 1 'No space left|disk is full' "$mantou" build "$net" -o "$dir/disk/tiny"
		ok "the old file on a disk with $room KiB" test "$(ls "$dir/disk" | tr '\n' ' ')$(cat "$dir/disk/tiny")" = "fill tiny old"
	done
	mount -o remount,ro "$dir/disk"
	t "a disk that is read-only" 1 "cannot write '.*/disk/x'.*Read-only" "$mantou" build "$net" -o "$dir/disk/x"
	umount "$dir/disk"
else
	skipped=$((skipped + 1))
	echo "skip a full and a read-only disk: mounting is not allowed here"
fi
mkdir "$dir/locked" && chmod a-w "$dir/locked"
if [ "$(id -u)" = 0 ]; then
	skipped=$((skipped + 1))
	echo "skip an unwritable folder: root may write everywhere"
else
	t "a folder without permission" 1 "cannot write '.*/locked/x'.*Permission denied" "$mantou" build "$net" -o "$dir/locked/x"
fi
t "default name" 0 '' sh -c "cd '$dir' && mkdir d && cd d && '$mantou' build ../tiny.net && test -x tiny"
for k in llvm:define asm:text ir:module; do
	t "emit ${k%:*}" 0 "${k#*:}" "$mantou" build --emit ${k%:*} "$net" -o -
done
for c in info explain dump; do
	t "$c --emit llvm" 0 '^define ' "$mantou" $c --emit llvm "$net"
done
for c in check run; do t "$c --emit" 2 "'--emit' is an option of 'build', not of '$c'" "$mantou" $c --emit llvm "$net"; done
t "check of standard input" 0 '^tiny: batch 16' sh -c "'$mantou' check - <'$net'"
t "its errors" 1 '^-:3:' sh -c "'$mantou' check - <'$dir/wrong.net'"
t "IR on standard input" 0 '^tiny: batch 16' sh -c "'$mantou' dump --stage typed '$net' | '$mantou' check -"
t "opt --emit asm" 0 '\.text' sh -c "'$mantou' dump --stage typed '$net' | '$mantou' opt --passes infer - --emit asm"
t "emit obj" 0 '' "$mantou" build --emit obj "$net" -o "$dir/x.o"
t "two archs" 0 '' "$mantou" build --arch x86-64-v3,x86-64-v4 "$net" -o "$dir/two"
t "an arch that only tests use" 2 "unknown architecture 'emulated-amx'" "$mantou" check --arch emulated-amx "$net"
t "matrix tiles or else f16 or else this machine" 0 '' "$mantou" build --precision mixed --arch sapphirerapids,sapphirerapids-noamx,native "$net" -o "$dir/three"
t "the first that runs" 0 '' "$dir/three" train --steps 2 --no-save --quiet
if ! grep -qw amx_tile /proc/cpuinfo; then
	t "matrix tiles alone" 0 '' "$mantou" build --precision mixed --arch sapphirerapids "$net" -o "$dir/tiles"
	t "a CPU without them" 1 'runs none of the program.s code objects: code object 1 of 1 needs (amx|avx)' "$dir/tiles" train --steps 2 --no-save
fi
t "two archs run" 0 '' "$dir/two" train --steps 2 --no-save --quiet

# ---- what a program's arithmetic is: the measured peak is that of f32 unless it multiplies narrower numbers
narrow() { "$mantou" build "$1" --emit llvm -o - | grep -aq 'narrow\\22: '"$2"; }
ok "f32 is not narrow" narrow "$net" false
sed 's/x |> dense(width)/x |> cast(bf16) |> dense(width) |> cast(f32)/' "$net" >"$dir/narrow.net"
ok "bf16 is narrow" narrow "$dir/narrow.net" true

# ---- threads that compile, and the cache of kernels: the same program, whatever was there
kept() { # kept NAME PATTERN [VARIABLE=VALUE...]: another build
	name=$1 pattern=$2
	shift 2
	rm -f "$dir/again"
	t "$name" 0 "$pattern" env "$@" "$mantou" build --time-passes "$net" $jobs -o "$dir/again"
	same "$name: the same program" "$dir/first" "$dir/again"
}
jobs= net=$dir/tiny.net
ok "a build without a cache" env MANTOU_CACHE=off "$mantou" build "$net" -o "$dir/first"
kept "an empty cache" ' 0 of [1-9][0-9]* functions from the cache' MANTOU_CACHE="$dir/cached"
kept "the same again" ' ([1-9][0-9]*) of \1 functions from the cache' MANTOU_CACHE="$dir/cached"
for damage in 'truncate -s -1' 'truncate -s 0' 'truncate -s +1' 'dd bs=1 seek=40 count=4 conv=notrunc if=/dev/zero of='; do
	for f in "$dir"/cached/kernels/*/*; do case $damage in dd*) $damage$f 2>/dev/null ;; *) $damage "$f" ;; esac; done
	kept "damaged kernels in the cache: $damage" ' 0 of [1-9][0-9]* functions from the cache' MANTOU_CACHE="$dir/cached"
done
sed 's/dense(3)/relu |> dense(3)/; s/width = 8/width = 9/' "$net" >"$dir/changed.net"
t "a changed model" 0 ' [1-9][0-9]* of [1-9][0-9]* functions from the cache' env MANTOU_CACHE="$dir/cached" "$mantou" build --time-passes "$dir/changed.net" -o "$dir/changed"
kept "a cache that cannot be" ' 0 of' MANTOU_CACHE=/dev/null
kept "no HOME, no cache" ' 0 of' -u MANTOU_CACHE -u XDG_CACHE_HOME -u HOME
kept "a HOME that is no folder, no cache" ' 0 of' -u MANTOU_CACHE -u XDG_CACHE_HOME HOME=/proc/none
for n in 1 2 3 1000; do
	jobs="--jobs $n"
	kept "$n threads" ' 0 of' MANTOU_CACHE=off
done
t "no threads" 2 "'0' is no value for '--jobs'" "$mantou" build --jobs 0 "$net" -o "$dir/again"

# ---- run and its cache
t "run" 0 'epoch 1/1' "$mantou" run "$net" -- train --no-save
n=$(find "$dir/cache/mantou" -type f | wc -l)
t "run again" 0 'epoch 1/1' "$mantou" run "$net" -- train --no-save
ok "the second run builds nothing" test "$(find "$dir/cache/mantou" -type f | wc -l)" = "$n"
t "run with another constant" 0 'epoch 1/1' "$mantou" run -D width=9 "$net" -- train --no-save
ok "another constant, another program" test "$(find "$dir/cache/mantou" -type f | wc -l)" = $((n + 1))
t "run for several processes" 0 'epoch 1/1' "$mantou" run --distribute mpi "$net" -- train --no-save
ok "for several processes another program" test "$(find "$dir/cache/mantou" -type f | wc -l)" = $((n + 2))
t "exit status of the program" 2 '' "$mantou" run "$net" -- trian
program=$(find "$dir/cache/mantou" -type f -name tiny -print | head -n 1)
for damage in 'truncate -s 100000' 'truncate -s 0' 'truncate -s +1' 'dd bs=1 seek=5000 count=4 conv=notrunc if=/dev/zero of='; do
	for f in $(find "$dir/cache/mantou" -type f -name tiny); do case $damage in dd*) $damage$f 2>/dev/null ;; *) $damage "$f" ;; esac; done
	cp "$program" "$dir/damaged"
	t "a damaged program in the cache: $damage" 0 'epoch 1/1' "$mantou" run "$net" -- train --no-save
done
# Where the cache cannot be: a folder of this user alone where temporary files go.
mkdir "$dir/temporary"
elsewhere="env -u XDG_CACHE_HOME -u HOME TMPDIR=$dir/temporary"
t "no HOME" 0 '^model +tiny' $elsewhere "$mantou" run "$net" -- info
t "a HOME that is no folder" 0 '^model +tiny' $elsewhere HOME=/proc/none "$mantou" run "$net" -- info
t "XDG_CACHE_HOME that is no folder" 0 '^model +tiny' env XDG_CACHE_HOME=/dev/null TMPDIR="$dir/temporary" "$mantou" run "$net" -- info
ok "one program, private" sh -c "test \$(find '$dir/temporary' -name tiny | wc -l) = 1 && find '$dir/temporary' -name 'mantou-*' -perm 0700 | grep -q ."
chmod 777 "$dir"/temporary/mantou-*
t "a folder that others may write to" 1 "no place for the cache: '.*where temporary files go: .*set XDG_CACHE_HOME" $elsewhere HOME=/proc/none "$mantou" run "$net" -- info
(for i in 1 2 3; do "$mantou" run --batch 8 "$net" -- train --no-save --quiet & done; wait) >/dev/null 2>&1
t "runs at once" 0 '' "$mantou" run --batch 8 "$net" -- train --no-save --quiet

# ---- batches of inference
if python3 -c '' 2>/dev/null; then
	MANTOU_LIBCUDA="$sim" python3 tests/cli/infer.py "$mantou" >"$dir/out" 2>&1
	grep -v ' passed, ' "$dir/out"
	read -r p _ f _ s _ <<-END
		$(tail -n 1 "$dir/out" | grep -E '^[0-9]+ passed' || echo "0 passed, 1 failed, 0 skipped")
	END
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
else
	skipped=$((skipped + 1))
	echo "skip infer: no python3"
fi

# ---- tables for people and for programs
json() { python3 -c "import json, sys; o = json.load(open(sys.argv[1])); assert $1, o" "$dir/out"; }
t "check" 0 'dense0 .*f32\[16,8\] .*40' "$mantou" check "$net"
t "check --json" 0 '' "$mantou" check --json "$net"
ok "check's JSON" json 'o["parameters"] == 67 and o["batch"] == 16'
t "check --batch" 0 'f32\[32,8\]' "$mantou" check --batch 32 "$net"
t "check -D" 0 'f32\[16,12\]' "$mantou" check -D width=12 "$net"
# The machine of an architecture, of which no figure follows from the host; sizes that are read stand beside them.
t "info --machine" 0 '^declared as +EPYC 9654$' "$mantou" info --machine --arch znver4
t "its caches" 0 '^L1 +32 KiB .*of a core$' "$mantou" info --machine --arch znver4
t "its units" 0 '^in a cycle +1 FMA and 1 load of full vectors, of a core$' "$mantou" info --machine --arch znver4
t "its peak" 0 '^nominal clock +2.4 GHz: 76.8 GFLOP/s of f32 a core$' "$mantou" info --machine --arch znver4
t "columns of the budget" 0 '^weight gradients +tiles of 4 vectors, sums of 256 steps a pass, operands copied$' "$mantou" info --machine --arch emeraldrapids
t "which another row has not" 0 '^weight gradients +tiles of 4 vectors, whole rows of pixels a pass$' "$mantou" info --machine --arch znver5
t "nor copies" 0 '^weight gradients +tiles of 2 vectors, sums of 128 steps a pass, operands copied$' "$mantou" info --machine --arch znver3
t "the budget of choices" 0 '^blocks for +32 KiB of L1, 1 MiB of L2, 32 MiB of L3$' "$mantou" info --machine --arch haswell
t "native by default" 0 '^machine +l1=[0-9]+[KM],l2=[0-9]+[KM] \(' "$mantou" info --machine
t "info --machine --json" 0 '' "$mantou" info --machine --json --arch znver4,haswell
ok "its JSON" json 'o[0]["arch"] == "znver4" and o[0]["declared"]["l2_bytes"] == 1 << 20 and o[0]["declared"]["fmas_per_cycle"] == 1 and o[1]["arch"] == "haswell" and o[1]["declared"]["vector_registers"] == 16 and len(o) == 2'
ok "the word is what is read, or what is declared" json 'all([(m["read"] if m["here"] else m["declared"])[k] == int(w[3:-1]) << {"K": 10, "M": 20}[w[-1]] for m in o for k, w in zip(["l1_bytes", "l2_bytes"], m["machine"].split(","))])'
t "a device that is not here" 0 '^machine +sm=108,smem=163K,l2=40M \(declared' env MANTOU_LIBCUDA="$dir/none.so" $cuda_machine --arch sm_80
t "its rates" 0 '^nominal clock +1.98 GHz: 66.91 TFLOP/s of f32$' env MANTOU_LIBCUDA="$dir/none.so" $cuda_machine --arch sm_90a
if [ -f "$sim" ]; then
	t "a device that is here" 0 '^machine +sm=132,smem=227K,l2=50M \(read here\)$' env MANTOU_LIBCUDA="$sim" MANTOU_SIM_SM=90 $cuda_machine --arch sm_90a
	t "beside what is declared" 0 '^L2 +60 MiB +50 MiB +shared by 132' env MANTOU_LIBCUDA="$sim" MANTOU_SIM_SM=90 $cuda_machine --arch sm_90a
	t "code for newer ones does not run on it" 0 '^machine +sm=132,smem=227K,l2=60M \(declared' env MANTOU_LIBCUDA="$sim" MANTOU_SIM_SM=80 $cuda_machine --arch sm_90
	t "sm_90a runs on 9.0 alone" 0 '^machine +sm=132,smem=227K,l2=60M \(declared' env MANTOU_LIBCUDA="$sim" MANTOU_SIM_SM=100 $cuda_machine --arch sm_90a
else
	skipped=$((skipped + 4))
fi
t "a machine and a model" 2 "of --arch, not of '.*tiny.net'" "$mantou" info --machine "$net"
t "neither" 2 'a file is missing.*info --machine' "$mantou" info
t "a target without machines" 1 'target ref interprets' "$mantou" info --machine --target ref
t "--machine of another command" 2 "a file is missing|is no value for '--machine'" "$mantou" check --machine "$net"
t "info --json" 0 '' "$mantou" info --json "$net"
ok "info's JSON" json 'o["parameters"] == 67 and o["parameter_bytes"] == 268 and o["inputs"][0]["shape"] == [16, 4] and o["kernels_per_step"] > 0 and o["arena_bytes"] > 0 and len(o["source_hash"]) == 16'
gflops() { "$mantou" info --json --arch $1 "$net" | sed -n 's/.*"threads": [1-9].*"gflops": \([0-9.]*\),.*/\1/p'; }
# Both run here, at a clock that may differ from one to the other; one begins half as many FMAs.
# Without FMA a product and a sum, in microkernels as everywhere: no call for each lane.
for a in x86-64 x86-64-v2; do
	"$mantou" build models/lenet.net --arch $a -o "$dir/lenet.$a" >/dev/null 2>&1
	ok "no call of fmaf: $a" sh -c "'$mantou' build models/lenet.net --arch $a --emit asm -o - | grep -q mulps && ! '$mantou' build models/bert-small.net --arch $a --emit asm -o - | grep -E 'call.*(fmaf?|floorf?|rintf?)@'"
	ok "no call to convert an f16: $a" sh -c "'$mantou' build models/lenet.net --arch $a --precision f16 --emit asm -o - >'$dir/f16.s' && ! grep -E 'call.*(extendhf|truncsfhf)' '$dir/f16.s'"
	ok "its convolutions are microkernels: $a" sh -c "'$mantou' dump models/lenet.net --arch $a --stage selected | grep -q 'conv2d_dw_conv2d1.*brgemm.*lanes=4'"
	"$dir/lenet.$a" train --data models/digits --steps 20 --no-save --quiet --log "$dir/log.$a" >/dev/null 2>&1
done
# -g: a kernel's line, whoever compiled it; a model whose lines moved has other code, cache or not.
lines() { nm "$1" 2>/dev/null | sed -n 's/ t train_conv2d_conv2d1_.*main.*//p' | head -n 1 | xargs addr2line -e "$1"; }
line=$(grep -n 'conv2d(16' models/lenet.net | cut -d: -f1)
t "build -g" 0 '' "$mantou" build models/lenet.net -g --jobs 1 -o "$dir/lenet.g"
ok "a kernel's line" sh -c "case '$(lines "$dir/lenet.g")' in */models/lenet.net:$line) ;; *) exit 1 ;; esac"
t "build -g by several threads, no cache" 0 '' env MANTOU_CACHE=off "$mantou" build models/lenet.net -g --jobs 3 -o "$dir/lenet.g3"
ok "the same program" cmp "$dir/lenet.g" "$dir/lenet.g3"
{ echo; cat models/lenet.net; } >"$dir/moved.net"
t "build -g of lines that moved" 0 '' "$mantou" build "$dir/moved.net" -g -o "$dir/moved"
ok "a moved kernel's line" sh -c "case '$(lines "$dir/moved")' in *moved.net:$((line + 1))) ;; *) exit 1 ;; esac"
if command -v gdb >/dev/null; then
	gdb -batch -ex 'rbreak lenet.net:train_conv2d_conv2d1_.*main' -ex 'run bench --synthetic --warmup 0 --steps 1 --repeat 1 --threads 1' -ex bt "$dir/lenet.g" </dev/null >"$dir/gdb.txt" 2>&1
	ok "gdb: a kernel's frame and its callers" sh -c "grep -q '^#0 .*conv2d1_.*main.*lenet.net:$line' '$dir/gdb.txt' && grep -q '^#[0-9]* .*\\bmain (' '$dir/gdb.txt'"
else
	echo "skip gdb is not installed"
	skipped=$((skipped + 1))
fi
if perf record -q -o "$dir/perf.data" "$dir/lenet.g" bench --synthetic --warmup 0 --steps 100 --repeat 1 --threads 1 >/dev/null 2>"$dir/perf.txt"; then
	perf script -i "$dir/perf.data" -F ip,sym,srcline >"$dir/perf.txt" 2>/dev/null
	ok "perf: samples under their line" sh -c "grep -A 1 'train_conv2d_.*conv2d1_' '$dir/perf.txt' | grep -q 'lenet.net:$line'"
else
	echo "skip perf is not installed or may not count here: $(head -n 1 "$dir/perf.txt" | cut -c1-100)"
	skipped=$((skipped + 1))
fi
t "-g of another target" 2 '-g is of target cpu, not ref' "$mantou" build models/lenet.net -g --target ref -o "$dir/x"
"$mantou" build models/lenet.net --target ref -o "$dir/lenet.ref" && "$dir/lenet.ref" train --data models/digits --steps 4 --no-eval --no-save --quiet --log "$dir/log.ref" >/dev/null 2>&1
ok "the interpreter's losses" python3 - "$dir/log.ref" "$dir/log.x86-64" "$dir/log.x86-64-v2" <<'END'
import json, sys
a, b, c = ([o["loss"] for o in map(json.loads, open(f)) if "step" in o] for f in sys.argv[1:])
assert len(a) == 4 and len(b) == 20 and b == c and max(abs(x - y) for x, y in zip(a, b)) < 1e-4, (a, b, c)
END
ok "a forecast counts with the architecture's units" awk "BEGIN { exit !($(gflops x86-64) > 0 && $(gflops x86-64) < 0.8 * $(gflops x86-64-v2)) }"
t "info bf16" 0 'precision +bf16: bf16 tensors' "$mantou" info --precision bf16 "$net"
t "info bf16 --json" 0 '"arithmetic": "bf16 tensors' "$mantou" info --json --precision bf16 "$net"
t "info of matrix tiles" 0 'precision +mixed: bf16 tensors, matrix tiles' "$mantou" info --precision mixed --arch sapphirerapids "$net"
t "info of f16 sums" 0 'precision +mixed: f16 tensors, f16 FMAs' "$mantou" info --precision mixed --arch sapphirerapids-noamx "$net"
t "info mixed" 0 'precision +mixed: (f32: nothing|bf16 tensors|f16 tensors)' "$mantou" info --precision mixed "$net"
t "precision disabled" 0 '' sh -c "! '$mantou' dump --stage scheduled --precision f16 --disable precision '$net' | grep -q 'loss_scale\|: f16\[' "
t "explain says where 16 bits are" 0 'precision.contract' "$mantou" explain --json --precision bf16 "$net"
t "info follows the batch" 0 '' "$mantou" info --json --batch 32 "$net"
ok "info's batch" json 'o["batch"] == 32 and o["inputs"][0]["shape"] == [32, 4]'
t "explain --json" 0 '' "$mantou" explain --json "$net"
ok "explain's JSON" json 'any(v["outcome"] == "fused" for v in o) and all(set("rule ops outcome why value bytes_saved where".split()) <= set(v) for v in o)'
"$mantou" explain models/lenet.net --arch x86-64-v3 --json >"$dir/explain.json"
"$mantou" explain models/lenet.net --arch x86-64-v3 >"$dir/explain.txt"
ok "explain's text has what its JSON has" python3 - "$dir/explain.json" "$dir/explain.txt" <<'END'
import collections, json, re, sys
rows, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
graphs = {m[1]: (int(m[2]), int(m[3])) for m in re.finditer(r"^(train|eval|infer) +\d+ +(\d+) +(\d+) ", text, re.M)}
count = collections.Counter((r["graph"], r["outcome"]) for r in rows)
assert len(graphs) == 3 and all(graphs[g] == (count[g, "fused"], count[g, "declined"]) for g in graphs)
words = collections.defaultdict(set)
for m in re.finditer(r"^  (fused|done|declined) .*\[([a-z_.]+); [a-z, ]+\]$", text, re.M):
    words[m[2]].add(m[1])
assert len(words) > 3 and words == {r: {v["did"] for v in rows if v["rule"] == r} for r in {v["rule"] for v in rows}}
assert all((r["did"] == "declined") == (r["outcome"] == "declined") for r in rows)
END
cat >"$dir/filter.net" <<'END'
model filter(x: f32[N, 32, 16, 16], label: i32[N]) {
    logits = x |> conv2d(32, 3, pad = 1) as same |> conv2d(32, 3, stride = 2) as half |> mean(axes = [2, 3])
    loss cross_entropy(logits, label)
    output logits
}
data { reader = synthetic() }
train { batch = 8  optimizer = sgd(rate = 0.1)  seed = 1 }
END
# kernels far below the roofline: f64 has no microkernel
cat >"$dir/odd.net" <<'END'
model odd(x: f32[N, 16], y: f32[N]) {
    h = x |> dense(32) |> relu
    a = h |> cast(f64)
    g = matmul(a, transpose(a, axes = [1, 0])) |> cast(f32)
    p = h |> dense(1) |> squeeze(1)
    loss mse(p, y) + 0.0001 * mean(g * g)
    output p
}
data { reader = synthetic(examples = 512) }
train { batch = 64  epochs = 1  optimizer = sgd(rate = 0.01) }
END
t "build warns of slow kernels with their line" 0 'odd.net:4:9: warning: matmul0: kernel train_matmul_matmul0_[0-9]+.m0 is the plain one.*at 2 % of the roofline, [0-9]+ % of a step' "$mantou" build --arch x86-64-v3 "$dir/odd.net" -o "$dir/odd"
t "explain warns too" 0 '^warning: transpose0: kernel .*the roofline, [0-9]+ % of a step .*odd.net:4:19' "$mantou" explain --arch x86-64-v3 "$dir/odd.net"
t "of another layer it does not" 0 '' "$mantou" explain --arch x86-64-v3 "$dir/odd.net" dense0
ok "no word of it there" sh -c '! grep -q ^warning "$1"' - "$dir/out"
t "explain's JSON has it" 0 '' "$mantou" explain --json --arch x86-64-v3 "$dir/odd.net"
ok "a rule of its own" python3 -c 'import json, sys; o = [v for v in json.load(open(sys.argv[1])) if v["rule"] == "roofline"]; assert len(o) == 3 and all(0 < v["value"] < .1 and .05 < v["share_of_step"] < 1 for v in o)' "$dir/out"
t "other models have no warning" 0 '' "$mantou" build --arch x86-64-v3 "$net" -o "$dir/even"
ok "nothing is said" sh -c '! test -s "$1"' - "$dir/err"
t "bench says what they take" 0 'plain kernel +[0-9.]+ % of the time: .*matmul0 \(.*odd.net:4:9\)' "$dir/odd" bench --steps 3 --warmup 1 --repeat 1
t "and its JSON" 0 '"plain_share": 0\.[0-9]' "$dir/odd" bench --steps 3 --warmup 1 --repeat 1 --json

t "a kernel variant that was chosen" 0 'done +conv2d.dw: Winograd.*select.winograd' "$mantou" explain "$dir/filter.net" same
t "and one that was not" 0 'declined +conv2d.dx: transforms cost what the products save.*select.winograd' "$mantou" explain "$dir/filter.net" half
t "one chosen beside products of pairs" 0 'done +conv2d, 11 times: Winograd.*select.winograd' "$mantou" explain models/resnet50-cifar10.net --arch znver4 --precision mixed
t "and one that those are faster than" 0 'declined +conv2d.dw, 4 times: 16-bit products are twice as fast.*select.winograd' "$mantou" explain models/resnet50-cifar10.net --arch znver4 --precision mixed
t "a kernel variant switched off" 0 'declined +conv2d.dw: switched off.*select.winograd' "$mantou" explain "$dir/filter.net" same --disable winograd
resnet="models/resnet20-cifar10.net --arch x86-64-v3 --precision f32"
t "fuse prices the kernel that loads an activation" 0 'fused +relu -> conv2d: made in 2 contractions: 16 MiB and' "$mantou" explain $resnet
t "of the one that is left where that is switched off" 0 'declined +relu -> conv2d: made in 2 contractions: 32 MiB and' "$mantou" explain $resnet --disable winograd
update="tests/train/wide.net --arch x86-64-v3"
t "an update in the tiles of its gradient" 0 "fused +matmul -> add.*both walk f32.601,901.*fuse.epilogue; train" "$mantou" explain $update
t "each new value takes the old one's place" 0 "" sh -c "'$mantou' dump $update --stage planned | grep 'f32.601,901. #13 at ' | wc -l | grep -qx 3"
t "not where L2 holds the state" 0 "declined +matmul -> add.*it updates a state that L2 holds" "$mantou" explain $update
t "long products by Strassen's algorithm" 0 "done +matmul, 7 times: Strassen's algorithm.*select.strassen; train" "$mantou" explain --arch x86-64-v3 tests/bench/lstm-512.net
t "in each step of a recurrence" 0 "done +lstm.cells.dx, 2 times: Strassen's algorithm in each step.*select.strassen; train" "$mantou" explain --arch znver4 tests/bench/lstm-512.net
t "switched off" 0 'declined +matmul, 7 times: switched off.*select.strassen' "$mantou" explain --arch x86-64-v3 --disable strassen tests/bench/lstm-512.net
t "a kernel variant limited" 0 'declined +conv2d.dw: switched off' "$mantou" explain "$dir/filter.net" same --pass-limit select.winograd:1
cat >"$dir/each.net" <<'END'
model each(x: f32[N, 32, 16, 16], label: i32[N]) {
    logits = x |> conv2d(32, 3, pad = 1, groups = 32, bias = false) as each |> batch_norm as norm |> relu |> conv2d(64, 3, groups = 2) as two |> mean(axes = [2, 3])
    loss cross_entropy(logits, label)
    output logits
}
data { reader = synthetic() }
train { batch = 8  optimizer = sgd(rate = 0.1)  seed = 1 }
END
t "a depthwise convolution's kernels" 0 'train_conv2d_dw_each_[0-9]+ "depthwise\{cols=4,parts=16' "$mantou" dump --stage selected --arch x86-64-v3 "$dir/each.net"
t "larger groups' kernels" 0 'train_conv2d_two_[0-9]+ "brgemm\{mr=6,nv=2,lanes=8' "$mantou" dump --stage selected --arch x86-64-v3 "$dir/each.net"
t "statistics in a depthwise convolution" 0 'fused +conv2d -> moments: reduced where it is made' "$mantou" explain --arch x86-64-v3 "$dir/each.net" each norm
t "memory of a thread" 0 '' "$mantou" info --json --precision f32 --batch 32 "$dir/filter.net"
ok "info counts what kernels hold for each thread" json 'o["scratch_bytes"] > 100000'
planned=$(sed -n 's/.*"scratch_bytes": \([0-9]*\).*/\1/p' "$dir/out")
"$mantou" build --precision f32 --batch 32 "$dir/filter.net" -o "$dir/filter" >/dev/null 2>&1
t "as the executable does" 0 "\"scratch_bytes\": $planned," "$dir/filter" info --json
# ---- tuning files
cp "$dir/filter.net" "$dir/tune.net"
filter="$dir/tune.net --precision f32 --arch x86-64-v3"
t "explain prints a layer's records" 0 '^cpu x86-64-v3 [^ ]+ conv2d.dw f32.* \{pad=\[1,1\]\} group=[0-9.a-f]+ : winograd\.1\{mr=' "$mantou" explain $filter same
grep '^cpu.* group=' "$dir/out" >"$dir/same.records"
t "and those of two layers' common kernels" 0 "^cpu x86-64-v3 [^ ]+ conv2d.dx f32" "$mantou" explain $filter half same
"$mantou" explain $filter half | grep '^cpu.* group=' >"$dir/half.records"
"$mantou" info --json $filter >"$dir/out"
ok "info --json has all records" json "set(open('$dir/same.records').read().split('\\n')) | set(open('$dir/half.records').read().split('\\n')) == set(o['records']) | {''}"
t "no tuning file, no word of it" 0 '' "$mantou" info $filter
ok "none" sh -c "! grep -q '^tuned' '$dir/out'"
t "a tuning file that is not there" 1 "cannot read the tuning file '.*/none.tune': No such" "$mantou" info --tuning "$dir/none.tune" $filter
t "a folder" 1 "cannot read the tuning file" "$mantou" info --tuning "$dir" $filter
sed 's/ : brgemm.1{mr=[0-9]*,nv=[0-9]*,lanes=8,outer=row/ : brgemm.1{mr=3,nv=1,lanes=8,outer=panel/' "$dir/half.records" >"$dir/tune.tune"
t "MODEL.tune beside the model" 0 '^tuned +[1-9][0-9]* kernels, 0 choices, 0 misfits, 0 stale, 0 of other machines, not locked; [1-9] records in .*/tune.tune$' "$mantou" info $filter
t "info --json" 0 '"tuned": \{"file": ".*tune.tune", "machine": "[^ ]+", "records": [1-9], "kernels": [1-9][0-9]*, "choices": 0, "misfits": 0, "stale": 0, "other_machines": 0, "lock": "not locked"\}' "$mantou" info --json $filter
t "explain says where parameters come from" 0 'done +conv2d: brgemm\{mr=3,nv=1,lanes=8,outer=panel,pack=1\}, from .*/tune.tune:[0-9]+  \[select.tuned' "$mantou" explain $filter half
t "dump shows them" 0 'brgemm\{mr=3,nv=1,lanes=8,outer=panel,pack=1\}' "$mantou" dump --stage selected $filter
"$mantou" dump --stage planned $filter >"$dir/planned.ir"
t "they stand in the IR" 0 'mr=3,nv=1' "$mantou" dump --stage planned "$dir/planned.ir"
t "an empty file switches tuning off" 0 '^tuned +0 kernels, 0 ' "$mantou" info $filter --tuning /dev/null
for o in "-O 0" "--pass-limit select.tuned:0" "--batch 4" "--arch x86-64-v4"; do
	t "no record is used: $o" 0 '^tuned +0 kernels, 0 ' "$mantou" info $filter $o
done
t "run looks at the tuning file" 0 '' "$mantou" run $filter -- train --steps 1 --no-save
n=$(find "$dir/cache/mantou" -type f | wc -l)
echo "# another" >>"$dir/tune.tune"
t "and builds again if it is another" 0 '' "$mantou" run $filter -- train --steps 1 --no-save
ok "another program" test "$(find "$dir/cache/mantou" -type f | wc -l)" = $((n + 1))
# tune NAME PATTERN SED: a warning about what sed makes of the records; the model still compiles
tune() {
	sed "$3" "$dir/half.records" >"$dir/tune.tune"
	t "tuning file: $1" 0 "$2" "$mantou" info $filter
}
tune "a line of an older form" 'tune.tune:1:15: warning: this and [1-9] more records are of an older form.*and ignored' 's/x86-64-v3 [^ ]*/x86-64-v3 0.1.0/;s/ : brgemm.1/ : brgemm/'
tune "one of an older form" 'tune.tune:1:15: warning: this record is of an older form' '1s/x86-64-v3 [^ ]*/x86-64-v3 9.9.9/'
tune "is counted" '^tuned +[0-9]+ kernels, 0 choices, 0 misfits, 1 stale, 0 of' '1s/x86-64-v3 [^ ]*/x86-64-v3 9.9.9/'
tune "another version of a family" 'tune.tune:1:[0-9]+: warning: this and [1-9] more records are of another version of brgemm, not of 1, and ignored' 's/brgemm.1{/brgemm.2{/'
tune "another machine" '^tuned +0 kernels, 0 choices, 0 misfits, 0 stale, [2-9] of other machines' '1s/x86-64-v3 [^ ]*/x86-64-v3 l1=1K,l2=2K/;2,$s/x86-64-v3 [^ ]*/x86-64-v3 l1=3K/'
tune "no machine" 'tune.tune:1:15: warning: this is no record.*expected a machine, such as l1=32K,l2=1M, or \*' '1s/x86-64-v3 [^ ]*/x86-64-v3 l1=/'
tune "no version" 'tune.tune:1:[0-9]+: warning: this is no record.*expected the family.s version' '1s/brgemm.1{/brgemm{/'
tune "another CPU's records" '^tuned +0 kernels' 's/x86-64-v3/znver9/'
tune "twice the same kernel" 'tune.tune:2:[0-9]+: warning: the same key as line 1: this record is ignored' 1p
tune "out of order" 'tune.tune:2:1: warning: not in order: this line belongs before line 1' '1{h;d};2G'
tune "few words" 'tune.tune:1:[0-9]+: warning: this is no record.*expected TARGET ARCH MACHINE' '1s/.*/cpu : brgemm.1{mr=1}/'
tune "no operator" 'there is no such operator, nor a rule' 's/ conv2d / conv3d /'
tune "no kernel" 'expected ` : `' '1s/ : .*//'
tune "no parameters" 'expected a family, its version and parameters' '1s/{mr.*//'
tune "more behind it" 'expected the end of the line, or facts' '1s/$/ or so/'
tune "facts behind it" '^tuned +[1-9]' 's/$/ ; us=3 and more/'
tune "bytes" 'it is not all text' "1s/conv/$(printf '\001')/"
tune "many lines" '[0-9]+ more lines are no records' '1s/.*/a\na\na\na\na\na\na\na\na\na\na\na\na/'
tune "another family" 'do not fit the kernel, and are ignored: conv2d takes parameters such as brgemm' '/ conv2d /s/ : .*/ : attention.1{x=1}/'
tune "too many rows" 'do not fit' 's/mr=[0-9]*/mr=536870912/'
tune "wider vectors" 'lanes=16 does not fit: lanes <= lanes_max, with lanes_max=8, lanes=16' 's/lanes=8/lanes=16/'
tune "not packed" 'pack=0 does not fit: pack \|\| matmul, with matmul=0, pack=0' '/ conv2d /s/pack=1/pack=0/'
tune "too many parts" 'parts=99 does not fit: parts <= pixel_rows, with pixel_rows=7, parts=99' 's/parts=[0-9]*/parts=99/'
tune "too long a band" 'band=99 does not fit: band <= pixel_rows, with pixel_rows=7, band=99' 's/band=[0-9]*/band=99/'
tune "images that do not divide the batch" 'images=1000 does not fit: .*, with n_images=[0-9]+, images=1000' 's/\(band=[0-9]*\)/\1,images=1000/'
tune "copied where nothing is turned" 'copy=1 does not fit: !copy \|\| copies, with copies=0, copy=1' '/ conv2d /s/pack=1/pack=1,copy=1/'
tune "pairs" 'pairs does not fit: pairs == products, with products=0, pairs=1' '/ conv2d /s/pack=1/pack=1,pairs/'
tune "Winograd" '8 points a side are for filters of one row or column' '/ conv2d /s/brgemm.1{\(.*lanes=8\).*/winograd.1{\1,span=8}/'
"$mantou" explain --target cuda --arch sm_80 --precision bf16 models/lenet.net head | grep '^cuda .* group=' | LC_ALL=C sort -u >"$dir/cuda.records"
# cuda_tune NAME PATTERN SED: the same of target cuda
cuda_arch=sm_80
cuda_tune() {
	sed "s/^cuda sm_80 /cuda $cuda_arch /;$3" "$dir/cuda.records" >"$dir/cuda.tune"
	t "tuning file of target cuda: $1" 0 "$2" $cuda --arch $cuda_arch --precision bf16 --tuning "$dir/cuda.tune" --emit cuda models/lenet.net -o -
}
cuda_tune "tiles" 'head[a-z0-9_]*: mma\{m=128,n=64,k=64,stages=2,warps=4x2\}, a tile to a block; blocks=1, threads=256, shared=49152' 's/ : mma.1{.*/ : mma.1{m=128,n=64,k=64,stages=2,warps=4x2}/'
cuda_tune "parts" ': mma\{m=64,n=64,k=32,stages=2,warps=2x2,split=2\}' 's/ : mma.1{.*/ : mma.1{m=64,n=64,k=32,stages=2,warps=2x2,split=2}/'
cuda_tune "another family" 'ffma multiplies f32; of bf16 there are matrix instructions' 's/ : mma.1{.*/ : ffma.1{m=64,n=64,k=8}/'
cuda_tune "an odd side" 'm=48 is not one of 32 64 128 256' 's/m=[0-9]*/m=48/'
cuda_tune "too many warps" 'x4 does not fit: warps_m \* warps_n <= 8, with warps_m=8, warps_n=4|warps=8 does not fit: imod\(m, 16 \* warps_m\) == 0' 's/warps=[0-9x]*/warps=8x4/'
cuda_tune "too large" 'x2 does not fit: m \* n <= 4096 \* warps_m \* warps_n, with m=256, n=128, warps_m=2, warps_n=2' 's/ : mma.1{.*/ : mma.1{m=256,n=128,k=32,stages=2,warps=2x2}/'
cuda_tune "too many stages" 'stages=7 is not one of 2\.\.6' 's/stages=[0-9]*/stages=7/'
cuda_tune "too many parts" 'split=9999 does not fit: split <= K, with K=' 's/}$/,split=9999}/'
cuda_tune "wgmma where there is none" 'wgmma is an instruction of sm_90a, not of sm_80' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=3,groups=1}/'
cuda_tune "tf32 of 16 bits" 'tf32 multiplies f32, from sm_80 on' 's/ : mma.1{.*/ : tf32.1{m=64,n=64,k=32,stages=2,warps=2x2}/'
"$mantou" explain --target cuda --arch sm_80 models/lenet.net head | grep '^cuda .* group=' | LC_ALL=C sort -u | sed 's/ : ffma.1{.*/ : tf32.1{m=64,n=32,k=32,stages=2,warps=2x1}/' >"$dir/tf32.tune"
t "tf32" 0 'head[a-z0-9_]*: tf32\{m=64,n=32,k=32,stages=2,warps=2x1\}, a tile to a block' $cuda --arch sm_80 --tuning "$dir/tf32.tune" --emit cuda models/lenet.net -o -
sed 's/^cuda sm_80/cuda sm_75/' "$dir/tf32.tune" >"$dir/turing.tune"
t "tf32 where there is none" 0 'tf32 multiplies f32, from sm_80 on' $cuda --arch sm_75 --tuning "$dir/turing.tune" --emit cuda models/lenet.net -o -
cuda_arch=sm_90
cuda_tune "wgmma without the a" 'wgmma is an instruction of sm_90a, not of sm_90' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=3,groups=1}/'
cuda_arch=sm_90a
cuda_tune "wgmma" 'head[a-z0-9_]*: wgmma\{m=64,n=64,k=64,stages=3,groups=1\}, a tile to a block; blocks=1, threads=128, shared=49152' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=3,groups=1}/'
cuda_tune "parts by wgmma" ': wgmma\{m=128,n=64,k=64,stages=4,groups=2,split=2\}' 's/ : mma.1{.*/ : wgmma.1{m=128,n=64,k=64,stages=4,groups=2,split=2}/'
cuda_tune "mma beside wgmma" ': mma\{m=64,n=64,k=32,stages=2,warps=2x2\}' 's/ : mma.1{.*/ : mma.1{m=64,n=64,k=32,stages=2,warps=2x2}/'
cuda_tune "a side that wgmma has not" 'n=32 is not one of 64 96 128 192 256' 's/ : mma.1{.*/ : wgmma.1{m=64,n=32,k=64,stages=3,groups=1}/'
cuda_tune "a depth that wgmma has not" 'k=32 is not one of 64' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=32,stages=3,groups=1}/'
cuda_tune "half a group" 'groups=2 does not fit: imod\(m, 64 \* groups\) == 0, with m=64, groups=2' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=3,groups=2}/'
cuda_tune "no group" 'groups=0 is not one of 1 2' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=3,groups=0}/'
cuda_tune "too many sums for wgmma" 'groups=1 does not fit: m \* n <= 16384 \* groups' 's/ : mma.1{.*/ : wgmma.1{m=256,n=128,k=64,stages=3,groups=1}/'
cuda_tune "more columns than threads" 'groups=1 does not fit: n <= 128 \* groups, with n=256, groups=1' 's/ : mma.1{.*/ : wgmma.1{m=64,n=256,k=64,stages=3,groups=1}/'
cuda_tune "two stages for wgmma" 'stages=2 is not one of 3\.\.8' 's/ : mma.1{.*/ : wgmma.1{m=64,n=64,k=64,stages=2,groups=1}/'
cuda_tune "more than wgmma's stages hold" 'stages=5 does not fit: 2 \* stages \* \(m \+ 64 \* idiv\(n \+ 63, 64\)\) \* k \+ 64 <= smem, with smem=232448' 's/ : mma.1{.*/ : wgmma.1{m=128,n=256,k=64,stages=5,groups=2}/'
cp "$dir/same.records" "$dir/tune.tune"
t "Winograd that is switched off" 0 'winograd is switched off' "$mantou" info $filter --disable winograd
t "explain says that a record does not fit" 0 'declined +conv2d.dw: winograd.*from .*tune.tune:[0-9]+: winograd is switched off  \[select.tuned' "$mantou" explain $filter same --disable winograd
sed 's/ : winograd.1{\(.*\)}/ : brgemm.1{\1,outer=row,pack=1}/' "$dir/same.records" >"$dir/tune.tune"
t "the direct way where Winograd was chosen" 0 'declined +conv2d: the tuning file says so  \[select.winograd' "$mantou" explain $filter same
# ---- choices, rates, threads
choices() { "$mantou" info --json $filter --tuning /dev/null | python3 -c 'import json, sys; print(*json.load(sys.stdin)["choices"], sep="\n")'; }
choices >"$dir/choices"
ok "info --json has choices" grep -qE '^cpu x86-64-v3 [^ ]+ fuse.recompute [a-z].* with=[0-9]+\.[0-9a-f]{16} : choice\.1\{take=1\}$' "$dir/choices"
sed 's/take=1/take=0/' "$dir/choices" | grep ' fuse.recompute ' >"$dir/tune.tune"
t "choices of a file" 0 '^tuned +0 kernels, [1-9][0-9]* choices, 0 misfits' "$mantou" info $filter
t "explain says whose word it was" 0 'declined +.*tune.tune:[0-9]+ says so; .*: stored all the same.*\[fuse.recompute' "$mantou" explain $filter
ok "as records" sh -c "'$mantou' explain $filter same | grep -q '^cpu .* fuse.recompute .*take=0'"
t "no choice at -O 0" 0 '^tuned +0 kernels, 0 choices' "$mantou" info $filter -O 0
t "nor for another precision" 0 '^tuned +0 kernels, 0 choices' "$mantou" info "$dir/tune.net" --precision bf16 --arch x86-64-v3
sed 's/take=1/take=7/' "$dir/choices" | grep -m 1 ' layout.choice ' >"$dir/tune.tune"
t "a way that there is not" 0 'tune.tune:1:[0-9]+: warning: take=7: there are 2 ways, 0 to 1: this record is ignored' "$mantou" info $filter
t "is counted" 0 '^tuned +0 kernels, 0 choices, 1 misfits' "$mantou" info $filter
sed 's/take=1/take=0/' "$dir/choices" | grep ' reorder.sink ' >"$dir/tune.tune"
t "updates in the order of the graph" 0 '^tuned +0 kernels, [1-9]' "$mantou" info $filter
t "train with them" 0 '' "$mantou" run $filter -- train --steps 2 --no-save
# All records and choices of a model as they are change nothing, and no key stands for two: each is found again, and the lock holds. Without NVRTC no forecast is made, which takes seconds of ptxas.
for of in "--target cpu --arch znver4" "--target cuda --arch sm_90a --precision bf16"; do
	of="$of models/resnet20-cifar10.net"
	MANTOU_LIBNVRTC=/none "$mantou" info --json $of --tuning /dev/null | python3 -c 'import json, sys
o = json.load(sys.stdin)
print(*sorted(o["records"] + o["choices"] + [o["lock"]]), sep="\n")' >"$dir/all.tune"
	"$mantou" build $of --tuning /dev/null --emit ir -o "$dir/own.ir" 2>"$dir/err"
	t "its own records: $of" 0 '' "$mantou" build --locked $of --tuning "$dir/all.tune" --emit ir -o "$dir/tuned.ir"
	same "its own records: $of" "$dir/own.ir" "$dir/tuned.ir"
	ok "nothing is said of them" sh -c "! grep -q . '$dir/err'"
	t "all are found: $of" 0 '^tuned +[1-9][0-9]+ kernels, [1-9][0-9]+ choices, 0 misfits, 0 stale, 0 of other machines, locked' env MANTOU_LIBNVRTC=/none "$mantou" info $of --tuning "$dir/all.tune"
done
word=$(sed -n '1s/ [a-z]*\.[a-z]* .*//p' "$dir/choices")
# tells NAME PATTERN RECORD: what info says of one record, whose first three words are those of this machine
tells() {
	echo "$word $3" >"$dir/tune.tune"
	t "record: $1" 0 "$2" "$mantou" info $filter
}
tells "rates" '^tuned .* 1 records in' 'rates : rates.1{memory=2.8e10,map=1.1e11,start=2e-6}'
tells "rates of another version" 'warning: this record is of another version of rates, not of 1, and ignored' 'rates : rates.2{memory=2.8e10}'
tells "no rates" 'this is no record.*expected rates.1' 'rates : rates.1{memory=-1}'
tells "rates of something" 'this is no record.*expected TARGET ARCH MACHINE rates : ' 'rates filter : rates.1{memory=1}'
tells "a choice of no way" 'this is no record.*expected choice.1' 'fuse.carry relu f32[4] -> f32[4] with=0.0 : choice.1{take=-1}'
tells "a rule that is none" 'there is no such operator, nor a rule' 'fuse.map relu f32[4] -> f32[4] with=0.0 : choice.1{take=0}'
tells "threads of two models" 'expected TARGET ARCH MACHINE threads MODEL' 'threads filter 1 : threads.1{start=1}'
tells "no threads" 'expected threads.1' 'threads filter : threads.1{start=0}'
tells "half a lock" 'expected TARGET ARCH MACHINE lock MODEL GRAPH batch=N PRECISION' 'lock filter : lock.1{kernels=0123456789abcdef}'
tells "a lock without a hash" 'expected lock.1' 'lock filter train batch=8 f32 : lock.1{kernels=0123}'
rm "$dir/tune.tune"
"$mantou" explain $filter >"$dir/nominal"
echo "$word rates : rates.1{memory=1e6,map=1e18,start=0}" >"$dir/tune.tune"
"$mantou" explain $filter >"$dir/slow"
ok "rates decide" sh -c "grep -q . '$dir/slow' && ! cmp -s '$dir/nominal' '$dir/slow'"
echo "$word threads filter : threads.1{start=1}" >"$dir/tune.tune"
t "threads to begin with" 0 '^setting tuning.threads = 1$' "$mantou" dump --stage planned $filter
"$mantou" build $filter -o "$dir/begins" 2>"$dir/err"
ok "the descriptor has them" grep -q '\\*"threads_start\\*": 1,' "$dir/begins"
# ---- facts
sed 's/$/ ; odd us=72.1 +-0.7% was=80.4 n=26 step=2.1% bits=same t=2/' "$dir/half.records" >"$dir/tune.tune"
t "the time, and the one before" 0 '^# .*tune.tune:[0-9]+: 72.1 us \+-0.7 %, 80.4 us before, 26 samples$' "$mantou" explain $filter half
t "the record as it is" 0 '^cpu x86-64-v3 .* : brgemm\.1\{.*\} ; odd us=72.1 \+-0.7% was=80.4 n=26 step=2.1% bits=same t=2$' "$mantou" explain $filter half
# ---- machines
sed 's/^cpu x86-64-v3 [^ ]*/cpu x86-64-v3 l1=1K,l2=2K/' "$dir/half.records" >"$dir/tune.tune"
t "records of a machine that is named" 0 '^tuned +[1-9][0-9]* kernels, 0 choices, 0 misfits, 0 stale, 0 of other machines' "$mantou" info $filter --machine l1=1K,l2=2K
t "but not of another" 0 '^tuned +0 kernels.* [1-9] of other machines' "$mantou" info $filter --machine 'l1=1K,l2=1K'
t "no machine" 2 "'l1' is no value for '--machine'" "$mantou" info $filter --machine=l1
sed 's/^cpu x86-64-v3 [^ ]*/cuda sm_80 sm=1/' "$dir/half.records" >"$dir/tune.tune"
t "the file's only machine, where the architecture is not here" 0 '"machine": "sm=1"' env MANTOU_LIBCUDA="$dir/none.so" MANTOU_LIBNVRTC="$dir/none.so" "$mantou" info --target cuda --arch sm_80 --json "$dir/tune.net" --precision f32
# ---- locks
locked="$mantou build --locked $filter -o $dir/fixed"
rm "$dir/tune.tune"
t "no file, no lock" 1 'the tuning file has no lock of filter train batch=8 f32 for cpu x86-64-v3' $locked
ok "nothing is built" test ! -e "$dir/fixed"
cp "$dir/half.records" "$dir/tune.tune"
t "a file without a lock" 1 'tune.tune has no lock of filter train batch=8 f32' $locked
t "info says so" 0 '^tuned .*, not locked; ' "$mantou" info $filter
"$mantou" info --json $filter | python3 -c 'import json, sys; print(json.load(sys.stdin)["lock"])' >>"$dir/tune.tune"
LC_ALL=C sort -o "$dir/tune.tune" "$dir/tune.tune"
cp "$dir/tune.tune" "$dir/whole.tune"
t "locked" 0 '' $locked
t "info says that it holds" 0 '^tuned .*, locked; ' "$mantou" info $filter
cp "$dir/fixed" "$dir/fixed.1"
t "locked again" 0 '' $locked
same "the same bytes" "$dir/fixed" "$dir/fixed.1"
t "run --locked" 0 '' "$mantou" run --locked $filter -- train --steps 1 --no-save
# breaks NAME PATTERN SED: a lock that does not hold
breaks() {
	sed "$3" "$dir/whole.tune" >"$dir/tune.tune"
	t "locked: $1" 1 "$2" $locked
}
breaks "a line edited" 'tune.tune:1:[0-9]+: note: the lock was not made with this record: conv2d ' '1s/mr=[0-9]*/mr=3/'
t "info says that it does not hold" 0 '^tuned .*, the lock does not hold; ' "$mantou" info $filter
t "run --locked looks again" 1 'the lock does not hold' "$mantou" run --locked $filter -- train --steps 1 --no-save
breaks "its hash edited" 'tune.tune:[0-9]+:[0-9]+: note: nothing is new here: it was made of more, or of less' 's/kernels=[0-9a-f]*/kernels=0123456789abcdef/'
breaks "a version raised" 'tune.tune:1:[0-9]+: error: this record is of another version of brgemm, not of 1: stale, and --locked' '1s/brgemm.1/brgemm.2/'
breaks "a misfit" 'tune.tune:1:[0-9]+: error: these parameters do not fit the kernel, and --locked takes no such record: .*lanes=16 does not fit' '1s/lanes=8/lanes=16/'
breaks "a line of an older form" 'error: this record is of an older form.*stale, and --locked' '1s/x86-64-v3 [^ ]*/x86-64-v3 0.1.0/'
{ cat "$dir/whole.tune"; grep -m 1 ' layout.choice ' "$dir/choices" | sed 's/take=1/take=9/'; } | LC_ALL=C sort >"$dir/tune.tune"
t "locked: a misfit of a choice" 1 'error: take=9: there are 2 ways, 0 to 1, and --locked' $locked
cp "$dir/whole.tune" "$dir/tune.tune"
t "locked: another default" 1 'tune.net:[0-9]+:[0-9]+: note: the lock was not made with this, of which the file has no record: ' $locked --disable winograd
t "locked: another batch" 1 'has no lock of filter train batch=4 f32' $locked --batch 4
t "locked: IR" 1 'its choices were made before' "$mantou" build --locked "$dir/planned.ir" -o "$dir/fixed"
t "locked: no kernels" 2 'target ref has no kernels' "$mantou" build --locked --target ref "$dir/tune.net" -o "$dir/fixed"
# ---- merging
merge="$mantou tune --merge $dir/a.tune $dir/b.tune -o $dir/c.tune"
key='cpu znver4 l1=32K,l2=1M tanh f32[4] -> f32[4] group=0'
printf '%s\n' '# of a' '' "$key : brgemm.1{mr=1} ; us=10 was=12 n=5 t=2" 'cpu znver5 * tanh f32[4] -> f32[4] group=0 : brgemm.1{mr=7} ; n=1' >"$dir/a.tune"
# merges NAME WANTED RECORD: of a file with that record and a lock
merges() {
	printf '%s\n' 'cpu znver4 * lock lenet train batch=32 f32 : lock.1{kernels=0123456789abcdef}' "$3" >"$dir/b.tune"
	t "merge: $1" 0 '; 1 lock left out' $merge
	ok "merge: $1: $2" grep -qxF "$key : $2" "$dir/c.tune"
}
merges "the larger gain" 'brgemm.1{mr=2} ; us=10 was=13 n=2 t=2' "$key : brgemm.1{mr=2} ; us=10 was=13 n=2 t=2"
merges "the smaller gain" 'brgemm.1{mr=1} ; us=10 was=12 n=5 t=2' "$key : brgemm.1{mr=2} ; us=10 was=11 n=20 t=2"
merges "more samples of the same" 'brgemm.1{mr=1} ; us=11 was=12 n=6' "$key : brgemm.1{mr=1} ; us=11 was=12 n=6"
merges "fewer" 'brgemm.1{mr=1} ; us=10 was=12 n=5 t=2' "$key : brgemm.1{mr=1} ; us=1 was=12 n=4 t=2"
merges "not timed" 'brgemm.1{mr=1} ; us=10 was=12 n=5 t=2' "$key : brgemm.1{mr=2}"
merges "other threads" 'brgemm.1{mr=1} ; us=10 was=12 n=5 t=2' "$key : brgemm.1{mr=2} ; us=1 was=13 n=9 t=4"
t "which is told" 0 'warning: .*a.tune:3 and .*b.tune:2: cpu znver4 .*the first stays' $merge
ok "merge: others stay, comments of the first too" sh -c "grep -qx '# of a' '$dir/c.tune' && grep -q '^cpu znver5 .*mr=7} ; n=1$' '$dir/c.tune' && ! grep -q lock '$dir/c.tune'"
ok "merge: in order" sh -c "grep -v '^#' '$dir/c.tune' | LC_ALL=C sort -c"
t "merge to stdout" 0 '^cpu znver4 .*mr=1' "$mantou" tune --merge "$dir/a.tune" "$dir/b.tune" -o -
t "merge into the first" 0 '' "$mantou" tune --merge "$dir/a.tune" "$dir/b.tune" -o "$dir/a.tune"
ok "merge leaves no lock file" test ! -e "$dir/a.tune.lock"
t "merge without a name" 2 'needs the name of the result' "$mantou" tune --merge "$dir/a.tune" "$dir/b.tune"
t "merge of one" 2 'a file is missing' "$mantou" tune --merge "$dir/a.tune" -o "$dir/c.tune"
t "merge of what is not there" 1 "cannot read the tuning file '.*/none.tune': No such" "$mantou" tune --merge "$dir/a.tune" "$dir/none.tune" -o "$dir/c.tune"
t "merge into no folder" 1 "cannot write '.*/none/c.tune': No such" "$mantou" tune --merge "$dir/a.tune" "$dir/b.tune" -o "$dir/none/c.tune"
echo old >"$dir/c.tune"
cat >"$dir/hold.py" <<'END'
import fcntl, subprocess, sys
with open(sys.argv[1] + ".lock", "w") as f:
    f.write("process 7 on here: mantou tune lenet.net\n")
    f.flush()
    fcntl.flock(f, fcntl.LOCK_EX)
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
END
t "two writers" 1 "c.tune' is being written by process 7 on here: mantou tune lenet.net" python3 "$dir/hold.py" "$dir/c.tune" $merge
ok "the file is as it was" test "$(cat "$dir/c.tune")" = old
t "a lock that a kill left holds nobody up" 0 '' $merge
ok "and is gone" test ! -e "$dir/c.tune.lock"
for i in $(seq 200); do echo "cpu znver4 * tanh f32[$i,4] -> f32[$i,4] group=0 : brgemm.1{mr=1} ; us=72.1 +-0.7% was=80.4 n=26 step=2.1% bits=same t=2"; done >"$dir/many.tune"
if mkdir -p "$dir/disk" && mount -t tmpfs -o size=64k tmpfs "$dir/disk" 2>/dev/null; then
	echo old >"$dir/disk/c.tune"
	for room in 0 8; do # its lock has no room; the file has not
		head -c $((60 - room))k /dev/zero >"$dir/disk/fill" 2>/dev/null
		t "merge on a disk with $room KiB" 1 "cannot write '.*/disk/c.tune': No space" "$mantou" tune --merge "$dir/many.tune" "$dir/b.tune" -o "$dir/disk/c.tune"
		ok "the old file on a disk with $room KiB" test "$(ls "$dir/disk" | tr '\n' ' ')$(cat "$dir/disk/c.tune")" = "c.tune fill old"
	done
	umount "$dir/disk"
else
	skipped=$((skipped + 1))
	echo "skip a tuning file on a full disk: mounting is not allowed here"
fi
t "explain a layer" 0 'dense0' "$mantou" explain "$net" dense0
t "explain two layers" 0 'declined|fused' "$mantou" explain "$net" dense0 relu0
t "explain two layers that are fused" 0 '^eval: dense0 and relu0 are fused in eval_matmul_dense0' "$mantou" explain "$net" dense0 relu0
t "explain two layers that are not" 0 '^eval: relu0 and head are not fused: relu0 is in eval_matmul_dense0_[0-9]+; head in eval_matmul_head_' "$mantou" explain "$net" relu0 head
t "the reason why" 0 'declined  relu -> matmul.*: the kernel before makes it on its way' "$mantou" explain "$net" relu0 head
# Updates of two layers are merged into a kernel, which is nobody's question.
t "explain two layers whose updates are merged" 0 '^train: dense0 and head are not fused: dense0 is in train_matmul_dense0_[0-9]+, ' "$mantou" explain models/lenet.net dense0 head
ok "and says nothing of updates" sh -c "! '$mantou' explain models/lenet.net dense0 head | grep -qE 'reorder.sink|fuse.recompute mul|train_add_'"
t "explain layers apart" 0 '^infer: dense0 and head are not fused.*neither reads what the other computes' "$mantou" explain "$net" dense0 head
t "explain's table of graphs" 0 '^train +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+ .?i?B ' "$mantou" explain "$net"
t "explain follows the model" 0 'both walk f32\[16,9\]' "$mantou" explain "$net" dense0 relu0 -D width=9
t "explain without fusion" 0 'pass fuse is switched off' "$mantou" explain "$net" dense0 relu0 --disable fuse
cat >"$dir/mixed.net" <<'END'
model mixed(x: f32[N, 2, 5, 4]) {
    y = attention(x, slice(x, 1, 0, 1), slice(x, 1, 0, 1)) |> sum([1, 2, 3])
    z = attention(x, x, x) |> sum([1, 2, 3])
    loss mean(y + z, 0)
}
data { reader = synthetic() }
train { batch = 2 }
END
t "why a composite operator was decomposed" 0 'attention: q, k and v differ in their leading axes' "$mantou" explain "$dir/mixed.net" attention0
t "and one that was not" 0 '^eval: .*attention_attention1' "$mantou" explain "$dir/mixed.net" attention1
t "but is if told to" 0 'attention: switched off by --disable' "$mantou" explain "$dir/mixed.net" attention1 --disable attention
t "explain an unknown layer" 1 "did you mean 'dense0'" "$mantou" explain "$net" dens0
t "ops" 0 '^conv2d\(' "$mantou" ops
t "ops NAME" 0 'gradient' "$mantou" ops conv2d
t "ops misspelt" 1 "did you mean 'conv2d'" "$mantou" ops conv2
t "ops not yet" 1 "'unfold' is not there yet" "$mantou" ops unfold
# every kind of name, with its arguments, defaults and an example
while read -r name pattern; do t "ops $name" 0 "$pattern" "$mantou" ops $name; done <<-'END'
	conv2d ^conv2d\(x, channels, k, stride=1
	conv2d ^  example   h = image
	adamw ^  weight_decay=0.01 +a number, 0 or more
	cosine ^  kind +schedule of the rate
	npy ^  example   reader = npy\(
	clip_norm ^  default +none
	batch ^  default +none: it must be set
	shuffle ^            shuffle = false
	normal ^normal\(std\)
	fused ^  kind +contract
	mixed ^  keep_f32=\[\] +a list of strings
	zeros ^  kind +initial value
	repeat ^  kind +word of the grammar
	training ^  kind +name that is always there
	bf16 ^  kind +type of elements
	% remainder
	linear it is dense here: h = x
	F.relu ^relu\(x\)
END
# other libraries' names
while read -r name pattern; do t "ops $name" 1 "$pattern" "$mantou" ops $name; done <<-'END'
	bmm it is 'matmul' here: h = matmul\(
	mm it is 'matmul'
	masked_fill it is 'where' here: h = where\(
	clip it is 'clamp'
	cat it is 'concat'
	concatenate it is 'concat'
	permute it is 'transpose'
	tensordot it is 'einsum'
	view it is 'reshape'
	Conv2d did you mean 'conv2d'
	BatchNorm2d it is 'batch_norm'
	CrossEntropyLoss it is 'cross_entropy' here: loss
	SGD did you mean 'sgd'
	CosineAnnealingLR did you mean 'cosine'
	batch_size did you mean 'batch'
	conv_3d 'conv_3d' is not there yet
	nn.Linear it is 'dense'
	depthwise it is 'conv2d' here: h = image .*groups = image.shape
	global_avg_pool it is 'mean'
	se it is 'dense' here: c = image
	transformer it is 'attention'
	pool look at: max_pool2d, avg_pool2d
	EMA did you mean 'ema'
	ignore_index is an argument of: cross_entropy, accuracy, top_k_accuracy
	xyzzy mantou ops lists all names
END
t "ops NAME --json" 0 '' "$mantou" ops zeros --json
ok "is one object" json 'o["kind"] == "operator" and o["also"]["kind"] == "init" and o["example"]'
t "ops SETTING --json" 0 '"default": "1"' "$mantou" ops epochs --json
t "ops --json" 0 '' "$mantou" ops --json
ok "ops' JSON" json 'any(p["name"] == "relu" for p in o)'
# whole models of the documents, to the end of the compiler; fragments are elaborated by tests/lang/reference.c
mkdir "$dir/doc"
awk -v dir="$dir/doc" '/^```net$/ {n++; f = dir "/" n ".net"; next} /^```/ {f = ""} f {print >f}' README.md frontend/language.md models/cookbook.md
whole=$(grep -l '^model ' "$dir"/doc/*.net)
ok "the documents have models" test "$(echo "$whole" | wc -l)" -ge 5
for f in $whole; do t "model of a document, $(grep '^model ' "$f" | cut -c 1-20)" 0 '' "$mantou" check "$f"; done
t "time passes" 0 'autodiff' "$mantou" check --time-passes "$net"
t "print after" 0 'graph train' "$mantou" check --print-after autodiff "$net"

# ---- contracts
contract() { sed "s/^    loss /    require $1\n    loss /" "$net" >"$dir/contract.net"; }
contract 'fused("dense0", "relu0") and peak_memory <= 1MiB and deterministic'
t "contracts hold" 0 '' "$mantou" build "$dir/contract.net" -o "$dir/contract"
contract 'peak_memory < 1KiB'
t "peak_memory is too small" 1 'contract.net:4:.*require peak_memory: the plan needs .* the bound is 1023 B' "$mantou" build "$dir/contract.net" -o "$dir/contract2"
ok "a broken contract leaves no file" test ! -e "$dir/contract2"
contract 'fused("head", "cross_entropy0")'
t "not fused" 1 'require fused\("head", "cross_entropy0"\): no kernel of graph' "$mantou" check "$dir/contract.net"
contract 'fused("head")'
t "a layer that is one kernel, but for the check of labels" 0 '' "$mantou" check "$dir/contract.net"
contract 'fused("cross_entropy0")'
t "a layer of several kernels" 1 "note: fuse.reduce, graph .*: the producer's kernel walks" "$mantou" check "$dir/contract.net"
contract 'fused("dense0", "cross_entropy0")'
t "layers that do not meet" 1 'note: in graph train neither reads what the other computes' "$mantou" check "$dir/contract.net"
contract 'peak_memory < 1KiB'
t "what fills the memory" 1 'note: the largest value is the .* in graph' "$mantou" check "$dir/contract.net"
t "explain answers all the same" 0 'declined' "$mantou" explain "$dir/contract.net"

# ---- a budget of memory
conv=tests/train/convnet.net
t "a budget that is kept" 0 'budget +1.00 GiB: the plan fits, nothing is recomputed' "$mantou" info "$conv" --memory 1GiB
t "a budget to recompute for" 0 'budget +235.00 KiB: [0-9]+ values? of .* recomputed, .* GFLOP more a step' "$mantou" info --arch znver4 "$conv" --memory 235KiB --disable winograd
t "check tells too" 0 '^budget: 235.00 KiB: ' "$mantou" check --arch znver4 "$conv" --memory 235KiB --disable winograd
t "and JSON" 0 '"budget": "235.00 KiB: ' "$mantou" info --arch znver4 "$conv" --memory 235KiB --disable winograd --json
ok "JSON of check" json '"recomputed" in o["budget"]'
t "why" 0 'recompute.alone|recompute.segment' "$mantou" explain --arch znver4 "$conv" --memory 235KiB --disable winograd
t "too small a budget" 1 'the memory budget of 1.00 KiB \(1024 bytes\) is too small: with activations recomputed the least that does is .* --memory [0-9]+;' "$mantou" build "$conv" --memory 1KiB -o "$dir/budget"
ok "which leaves no file" test ! -e "$dir/budget"
t "a budget without recomputing" 1 'the plan needs .*, the budget is 235.00 KiB; pass recompute is switched off' "$mantou" check --arch znver4 "$conv" --memory 235KiB --disable recompute,winograd
t "a budget without passes" 1 'the budget is 235.00 KiB; pass recompute is switched off' "$mantou" check --arch znver4 "$conv" --memory 235KiB -O0
t "a budget with a limit" 1 'the plan needs .*, the budget is 235.00 KiB: use' "$mantou" check --arch znver4 "$conv" --memory 235KiB --disable winograd --pass-limit recompute:0
t "a budget without a unit" 2 '--memory' "$mantou" check "$conv" --memory 255Kib
sed 's/^    batch .*/&\n    memory    = 235KiB/' "$conv" >"$dir/budget.net"
t "a budget in the model" 0 'budget +235.00 KiB: [0-9]+ values? of' "$mantou" info --arch znver4 "$dir/budget.net" --disable winograd
t "ResNet-50 in 700 MiB" 0 '"budget": "700.00 MiB: [0-9]+ values of' "$mantou" info models/resnet50-cifar10.net --precision f32 --memory 700MiB --json
ok "keeps them" json 'o["arena_bytes"] <= 700 << 20'

# ---- dump and opt
for s in typed diffed lowered fused scheduled selected planned; do
	t "dump $s" 0 '' "$mantou" dump --stage $s "$net" -o "$dir/$s.ir"
	t "opt $s" 0 '' "$mantou" opt "$dir/$s.ir" -o "$dir/$s.again"
	same "dump | opt at stage $s" "$dir/$s.ir" "$dir/$s.again"
	t "dump again $s" 0 '' "$mantou" dump --stage $s "$dir/$s.ir" -o "$dir/$s.again"
	same "dump of a dump at stage $s" "$dir/$s.ir" "$dir/$s.again"
done
t "the rest of the pipeline" 0 '' "$mantou" dump --stage planned "$dir/typed.ir" -o "$dir/continued.ir"
same "typed, then on" "$dir/planned.ir" "$dir/continued.ir"
t "build from IR" 0 '' "$mantou" build "$dir/typed.ir" -o "$dir/fromir"
# Planned text may be anybody's: plan NAME PATTERN SED
"$mantou" dump --stage planned --arch x86-64-v3 "$dir/filter.net" -o "$dir/good.ir"
t "planned text builds" 0 '' "$mantou" build "$dir/good.ir" -o "$dir/fromplan"
plan() {
	sed "$3" "$dir/good.ir" >"$dir/plan.ir"
	if cmp -s "$dir/good.ir" "$dir/plan.ir"; then bad "planned text, $1: sed changes nothing"; fi
	t "planned text, $1" 1 "$2" "$mantou" build "$dir/plan.ir" -o "$dir/fromplan"
}
plan "kept where a state is" 'no plan that can run: graph eval: .* (overwritten|after its store)' '/ eval_/s/prepacked_at [0-9]*/prepacked_at 64/'
plan "kept beyond the arena" 'has no place' '/ eval_/s/prepacked_at [0-9]*/prepacked_at 9223372036854775744/'
plan "less kept" 'it keeps [0-9]* bytes, not 64' '/ eval_/s/prepacked [0-9]*/prepacked 64/'
plan "kept by a kernel that keeps nothing" 'what eval_mean.* keeps is overwritten' 's/^\(  group .* eval_mean.*"rows"\)/\1 prepacked 64 prepacked_at 0/'
plan "a workspace over a state" 'state .* is overwritten|overwritten before|after its store|overlaps' '/ train_/s/\(workspace [0-9]*\) at [0-9]*/\1 at 64/'
plan "a small workspace" 'it needs a workspace of [0-9]* bytes, not of 64' '/"rows"/s/workspace [0-9]*/workspace 64/'
plan "a smaller arena" 'outside the arena|no place|beyond the arena' 's/arena_bytes=[0-9]*/arena_bytes=4096/'
plan "an input over a state" 'overwritten|after its store' 's/^graph eval(%x: \([^ ]*\) at [0-9]*/graph eval(%x: \1 at 64/'
plan "another family" "its kernel is 'rows'" '/"rows"/s/"rows"/"map"/'
plan "no kernel" "'nonsense': its kernel is" '/"rows"/s/"rows"/"nonsense"/'
plan "absurd parameters" 'brgemm.mr=1000000.*mr=1000000 does not fit: mr <= 64' '/brgemm/s/mr=[0-9]*/mr=1000000/'
plan "parameters of no kernel" 'brgemm.rm=.*: [a-z0-9_.]+ takes parameters such as brgemm.mr=' '/brgemm/s/mr=/rm=/'
plan "filters that it has not" 'Winograd is for convolutions|8 points a side are for' '/matmul/s/"brgemm{[^"]*"/"winograd{mr=6,nv=2,lanes=8}"/;/head/s/"brgemm{[^"]*"/"winograd{mr=6,nv=2,lanes=8}"/;/conv2d_half/s/"brgemm{[^"]*"/"winograd{mr=6,nv=2,lanes=8,span=8}"/'
plan "points of a stride that it has not" '9 points a side are for filters of 3 taps with a stride of 2' '/conv2d_same/s/"[a-z]*{[^"]*"/"winograd{mr=6,nv=2,lanes=8,span=9}"/'
plan "epochs" 'setting train.epochs needs an integer from 1' 's/^setting train.epochs = .*/setting train.epochs = 9223372036854775807/'
plan "accumulated steps" 'setting train.accumulate needs an integer from 1' 's/^setting train.accumulate = .*/setting train.accumulate = 9223372036854775807/'
t "backwards" 1 'lies before' "$mantou" dump --stage typed "$dir/fused.ir"
t "opt --passes" 0 'relu\.dx' "$mantou" opt "$dir/typed.ir" --passes infer,autodiff
t "opt of no IR" 1 'error' "$mantou" opt "$net"
t "dot" 0 '^digraph' "$mantou" dump --format dot "$net"
t "json" 0 '' "$mantou" dump --format json "$net"
ok "dump's JSON" json '{g["name"] for g in o["graphs"]} >= {"train", "eval", "infer"}'
t "JSON of carried states" 0 '"kind": "carry"' "$mantou" dump --format json --stage planned models/lstm-bytes.net
t "one graph" 0 '' "$mantou" dump --graph eval "$net"
ok "only eval" sh -c "! grep -q '^graph train' '$dir/out' && grep -q '^graph eval' '$dir/out'"
t "no colour in a pipe" 1 'error' "$mantou" check "$dir/wrong.net"
ok "no escapes" sh -c "! grep -q \"\$(printf '\\033')\" '$dir/err'"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
