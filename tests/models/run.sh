#!/bin/sh
# Every file of models/ passes the frontend and the pipeline; the language's example is the one of its page; the digits are learnt.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
for net in models/*.net; do
	grep -q '^model ' "$net" || continue # blocks, for other files
	if "$mantou" check "$net" >"$dir/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL check $net: $(head -n 3 "$dir/out" | tr '\n' ' ')"
	fi
done
# The contract's files are accepted as they stand.
for net in ../shared/spec/models/*.net; do
	[ -f "$net" ] && grep -q '^model ' "$net" || continue
	if "$mantou" check "$net" >"$dir/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL check $net: $(head -n 3 "$dir/out" | tr '\n' ' ')"
	fi
done
# The page's first block is the whole file; only comments of its own stand before it here.
page=../shared/spec/language.md
if [ ! -f "$page" ]; then
	skipped=$((skipped + 1))
	echo "skip resnet50-cifar10.net beside the language's page: no $page"
else
	awk '/^```/ { if (n++) exit; next } n && !/^#/' "$page" >"$dir/page"
	sed '/^#/d' models/resnet50-cifar10.net >"$dir/own"
	if [ -s "$dir/page" ] && cmp "$dir/page" "$dir/own" >"$dir/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL resnet50-cifar10.net is no longer the example of $page: $(cat "$dir/out")"
	fi
fi
# share FILE: the metric accuracy of `eval --json`
share() { sed -n 's/.*"accuracy": *\([0-9.]*\).*/\1/p' "$1"; }
for pair in lenet:0.97 mlp:0.94; do
	name=${pair%:*} want=${pair#*:}
	if "$mantou" build models/$name.net -o "$dir/$name" >"$dir/log" 2>&1 &&
		"$dir/$name" train --data models/digits --save "$dir/$name.safetensors" --quiet >"$dir/log" 2>&1 &&
		"$dir/$name" eval --data models/digits --weights "$dir/$name.safetensors" --json >"$dir/json" 2>"$dir/log" &&
		awk "BEGIN { exit !($(share "$dir/json") >= $want) }"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $name on digits: accuracy $(share "$dir/json" 2>/dev/null), expected $want: $(tail -n 2 "$dir/log")"
	fi
done
# tiny NAME BOUND BUILD-OPTIONS -- TRAIN-OPTIONS: a small version trained for some steps; its last loss is below BOUND
tiny() {
	name=$1 bound=$2
	shift 2
	options=
	while [ "$1" != -- ]; do options="$options $1"; shift; done
	shift
	if "$mantou" build models/$name.net $options -o "$dir/$name" >"$dir/log" 2>&1 &&
		"$dir/$name" train "$@" --no-save --no-eval --log "$dir/$name.jsonl" --quiet >"$dir/log" 2>&1 &&
		awk -F'"loss": ' '/"step"/ { split($2, a, ","); last = a[1] } END { exit !(last < '"$bound"') }' "$dir/$name.jsonl"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $name, a tiny one: $(tail -n 1 "$dir/$name.jsonl" 2>/dev/null), expected a loss below $bound: $(tail -n 2 "$dir/log")"
	fi
}
if python=$(sh tests/numpy.sh); then
	# bright squares of two sizes, a class each; sentences and themselves backwards
	mkdir "$dir/words"
	(cd "$dir" && "$python" -c '
import numpy as np
rng = np.random.default_rng(1)
image, boxes, labels = np.zeros((16, 1, 128, 128), np.uint8), np.zeros((16, 6, 4), np.float32), np.full((16, 6), -1, np.int32)
for i in range(16):
    for k in range(2):
        size = (20, 40)[k]
        x, y = rng.integers(0, 64 - size // 2) + 64 * k, rng.integers(0, 128 - size)
        x = min(x, 128 - size)
        image[i, 0, y:y + size, x:x + size] = 200
        boxes[i, k], labels[i, k] = (x, y, x + size, y + size), k
for part in "train", "test":
    for name, a in ("image", image), ("boxes", boxes), ("labels", labels):
        np.save("%s-%s.npy" % (part, name), a)
source = rng.integers(3, 30, (16, 6)).astype(np.int32)
label = source[:, ::-1].copy()
for part in "train", "test":
    for name, a in ("source", source), ("count", np.full(16, 6, np.int32)), ("target", np.concatenate([np.ones((16, 1), np.int32), label[:, :-1]], 1)), ("label", label):
        np.save("%s/%s-%s.npy" % ("words", part, name), a)
')
	# words that stand near each other come in groups of four
	"$python" -c '
import gzip, random
rng = random.Random(1)
words = []
for _ in range(4000):
    k = rng.randrange(5)
    words += rng.sample(["w%d" % (4 * k + j) for j in range(4)], 4)
gzip.open("'"$dir"'/words.txt.gz", "wt").write(" ".join(words))
'
	tiny word2vec 125 -D words=20 -D width=8 -D window=2 -D negatives=3 --batch 16 -- --data "$dir" --epochs 60
	small="-D vocab=30 -D width=16 -D source_length=6 -D target_length=6 --batch 16"
	tiny gnmt-small 2.6 $small -- --data "$dir/words" --steps 400
	tiny gnmt 2.6 $small -D layers=3 -D residual=2 -- --data "$dir/words" --steps 400
	tiny faster-rcnn-digits 1.9 --batch 4 -- --data "$dir" --steps 24
else
	skipped=$((skipped + 1))
	echo "skip tiny versions of gnmt, gnmt-small, word2vec, faster-rcnn-digits: no python3 with numpy"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
