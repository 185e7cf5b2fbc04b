#!/bin/sh
# Every file of models/ passes the frontend and the pipeline; the language's example is the one of its page; the digits are learnt.
set -u
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
for net in models/*.net; do
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
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
