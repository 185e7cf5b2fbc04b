#!/bin/sh
# Golden files: one behaviour a file, exact text. BLESS=1 rewrites what is expected. Then whole models: the planned text,
# read back, gives the code that the model gives: nothing is decided behind the text. With names of files these alone.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
build=${BUILD:-$root/build-check}
mantou=${MANTOU:-$build/mantou}
[ $# -eq 0 ] || exec "$build/tests/golden/golden" ${BLESS:+--bless} "$@"
cd "$root" || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/tests/golden/golden" ${BLESS:+--bless} tests/golden >"$dir/log"
sed '$d' "$dir/log"
count=$(tail -n 1 "$dir/log" | tr -dc '0-9 ')
set -- ${count:-0 1 0}
passed=$1 failed=$2
while read -r model target arch precision kind; do
	options="--target $target --arch $arch"
	if "$mantou" dump "$model" $options --precision "$precision" --stage planned -o "$dir/planned.ir" &&
		"$mantou" opt "$dir/planned.ir" $options --emit "$kind" -o "$dir/back" &&
		"$mantou" build "$model" $options --precision "$precision" --emit "$kind" -o "$dir/code" &&
		cmp "$dir/code" "$dir/back"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $model $arch $precision: the planned text gives other code (-: of the model, +: of the text)"
		diff -u0 "$dir/code" "$dir/back" | tail -n +3 | cut -c 1-200 | head -n 20
	fi
done <<END
models/lenet.net cuda sm_90a mixed cuda
models/lenet.net cpu x86-64-v4 bf16 llvm
tests/bench/gru.net cuda sm_80 f32 cuda
tests/bench/gru.net cpu x86-64-v3 f32 llvm
tests/bench/shufflenet.net cuda sm_80 f16 cuda
models/word2vec.net cpu x86-64-v3 f32 llvm
models/faster-rcnn-digits.net cuda sm_80 f32 cuda
END
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
