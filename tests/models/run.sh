#!/bin/sh
# Every file of models/ passes the frontend and the pipeline; the language's example is the one of its page; the digits are learnt,
# tiny versions of the others learn what data.py makes; sentences become pieces and come back.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
# result WHAT COMMAND...: counts it
result() {
	what=$1
	shift
	if "$@" >"$dir/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $what: $(tail -n 3 "$dir/out" | tr '\n' ' ')"
	fi
}
for net in models/*.net models/first/*.net; do
	grep -q '^model ' "$net" || continue # blocks, for other files
	result "check $net" "$mantou" check "$net"
done
# The contract's files are accepted as they stand; in small sizes they are built and take two steps.
contract=../shared/spec/models
for net in $contract/*.net; do
	[ -f "$net" ] && grep -q '^model ' "$net" || continue
	result "check $net" "$mantou" check "$net"
done
# steps NAME BUILD-OPTIONS: two steps on random data. Faster R-CNN's second may be no number: its gradients at regions without area are none.
steps() {
	name=$1
	shift
	"$mantou" build "$contract/$name.net" "$@" -o "$dir/$name" && "$dir/$name" train --synthetic --steps 2 --no-save --no-eval --quiet --allow-nan
}
small="-D vocab=30 -D width=16 -D source_length=6 -D target_length=6 --batch 16"
pyramid="-D height=128 -D width=128 -D classes=5 -D most=4 -D rows=32 --batch 2"
if [ -d $contract ]; then
	result "two steps of the contract's faster-rcnn-digits" steps faster-rcnn-digits --batch 4
	result "two steps of the contract's faster-rcnn" steps faster-rcnn $pyramid
	result "two steps of the contract's gnmt-small" steps gnmt-small $small
	result "two steps of the contract's gnmt" steps gnmt $small -D layers=3 -D residual=2
	result "two steps of the contract's word2vec" steps word2vec -D words=20 -D width=8 --batch 16
fi
# number KEY FILE [OPTIONS]: of info --json
number() {
	key=$1 net=$2
	shift 2
	"$mantou" info models/$net.net "$@" --json 2>/dev/null | sed -n 's/.*"'"$key"'": *\([0-9.e+]*\).*/\1/p' | head -n 1
}
# The attention's tanh is neither stored nor kept: gnmt plans 5.6 GB at most for a batch of 128.
bytes=$(number arena_bytes gnmt)
result "gnmt plans $bytes bytes" awk "BEGIN { exit !(${bytes:-1e99} <= 5.6e9) }"
# A step of word2vec costs the same for any number of words.
few=$(number bytes_per_step word2vec) many=$(number bytes_per_step word2vec -D words=150000)
result "word2vec: bytes of a step are $few, with ten times the words $many" [ "${few:-few}" = "${many:-many}" ]
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
# tiny NAME BOUND BUILD-OPTIONS -- TRAIN-OPTIONS: a small version trained for some steps; the mean loss of its last four
# is below BOUND (of a batch of two a single one may be anything)
tiny() {
	name=$1 bound=$2
	shift 2
	options=
	while [ "$1" != -- ]; do options="$options $1"; shift; done
	shift
	if "$mantou" build models/$name.net $options -o "$dir/$name" >"$dir/log" 2>&1 &&
		"$dir/$name" train "$@" --no-save --no-eval --log "$dir/$name.jsonl" --quiet >"$dir/log" 2>&1 &&
		awk -F'"loss": ' '/"step"/ { split($2, a, ","); last[n++ % 4] = a[1] }
			END { exit !(n >= 4 && last[0] + last[1] + last[2] + last[3] < 4 * '"$bound"') }' "$dir/$name.jsonl"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $name, a tiny one: $(tail -n 1 "$dir/$name.jsonl" 2>/dev/null), expected a loss below $bound: $(tail -n 2 "$dir/log")"
	fi
}
if python=$(sh tests/numpy.sh); then
	"$python" tests/models/data.py "$dir"
	# pieces of words: sentences come back as they were, but for case and the spaces between words and signs
	pieces() {
		"$python" -c "
for k in range(30):
    print('A Dog, number %d, runs %s.' % (k, 'far' * (k % 3)))" >"$dir/sentences" &&
			"$python" models/translation-data.py "$dir/sentences" "$dir/sentences" "$dir/pieces" --test "$dir/sentences" "$dir/sentences" --pieces 60 --length 16 &&
			"$python" models/translation-data.py --encode "$dir/pieces/vocab.txt" "$dir/sentences" "$dir/pieces/more" --length 16 &&
			cmp "$dir/pieces/more-source.npy" "$dir/pieces/test-source.npy" && cmp "$dir/pieces/more-count.npy" "$dir/pieces/test-count.npy" &&
			"$python" models/translation-data.py --decode "$dir/pieces/vocab.txt" "$dir/pieces/test-label.npy" | tr -d ' ' >"$dir/decoded" &&
			tr 'AD' 'ad' <"$dir/sentences" | tr -d ' ' | cmp - "$dir/decoded" &&
			steps_own gnmt-small -D vocab=60 -D width=8 -D source_length=16 -D target_length=16 --batch 6
	}
	steps_own() {
		name=$1
		shift
		"$mantou" build models/$name.net "$@" -o "$dir/$name" && "$dir/$name" train --data "$dir/pieces" --epochs 1 --save "$dir/w" --quiet &&
			"$dir/$name" generate --weights "$dir/w" --input source="$dir/pieces/more-source.npy" --input count="$dir/pieces/more-count.npy" --beam 2 --output ids="$dir/ids.npy" &&
			"$python" models/translation-data.py --decode "$dir/pieces/vocab.txt" "$dir/ids.npy" | awk 'END { exit NR != 30 }'
	}
	result "translation from text to text" pieces
	tiny word2vec 125 -D words=20 -D width=8 -D window=2 -D negatives=3 --batch 16 -- --data "$dir" --epochs 60
	tiny ncf 0.1 -D users=8 -D films=8 -D listed=16 --batch 16 -- --data "$dir/films" --rate 1e-2 --epochs 60
	text="-D width=32 -D length=16 --batch 8"
	tiny gpt-bytes 1.7 $text -D heads=2 -D depth=1 -- --data "$dir" --rate 1e-2 --steps 100
	tiny lstm-bytes 2.6 $text -- --data "$dir" --rate 5e-2 --steps 400
	tiny bert-small 3.3 $text -D heads=2 -D depth=1 -- --data "$dir" --rate 1e-2 --steps 400
	tiny resnet20-cifar10 0.5 -D depth=1 --batch 8 -- --data "$dir" --rate 0.05 --steps 40
	tiny gnmt-small 2.6 $small -- --data "$dir/words" --steps 400
	tiny gnmt 2.6 $small -D layers=3 -D residual=2 -- --data "$dir/words" --steps 400
	tiny faster-rcnn-digits 1.9 --batch 4 -- --data "$dir" --steps 24
	result "voc-data.py" "$python" models/voc-data.py "$dir/voc" "$dir/cells"
	tiny faster-rcnn-cells 1.9 --batch 4 -- --data "$dir/cells" --rate 0.01 --steps 24
	# the networks of first/ learn what their data script makes, and the coloured images
	result "first/data.py regression" "$python" models/first/data.py regression "$dir"
	seq 40 | sed 's/.*/A dog, number & of forty, runs far away./' >"$dir/runs"
	result "first/data.py words" "$python" models/first/data.py words "$dir/runs" "$dir/runs" "$dir"
	mkdir "$dir/first"
	tiny first/regression 1.2 -- --data "$dir" --steps 400
	tiny first/words 1.5 -D width=32 --batch 8 -- --data "$dir" --rate 1e-2 --steps 100
	tiny first/convnet 0.7 --batch 8 -- --data "$dir" --steps 60
	# the same bits for any number of threads and after a resume
	rcnn="$dir/faster-rcnn-digits train --data $dir --no-eval --quiet"
	result "faster-rcnn-digits: other bits for 1 thread, or after a resume" sh -c "
		$rcnn --stop 6 --threads 2 --save $dir/a && $rcnn --stop 6 --threads 1 --save $dir/b && $rcnn --stop 3 --save $dir/c &&
		$rcnn --stop 6 --resume $dir/c --save $dir/c && cmp $dir/a $dir/b && cmp $dir/a $dir/c"
	tiny faster-rcnn 3.4 $pyramid -- --data "$dir" --rate 1e-3 --steps 12
else
	skipped=$((skipped + 1))
	echo "skip tiny versions of models: no python3 with numpy"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
