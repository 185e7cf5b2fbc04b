#!/bin/sh
# The shape of the repository: the top level as listed in README.md, includes that point down only, files that open with their name and purpose,
# no paths of one machine. Prints FAIL lines and the count.
set -u
cd "$(dirname "$0")/.."
passed=0 failed=0
check() { # check NAME TEXT: TEXT lists what is wrong
	if [ -z "$2" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "$2" | sed "s|^|FAIL $1: |"
	fi
}
files=$(git ls-files -co --exclude-standard 2>/dev/null) || files=
[ -n "$files" ] || files=$(find . -type f -not -path './.git/*' -not -path './build*' | sed 's|^\./||')

check "top level" "$(echo "$files" | sed 's|/.*||' | sort -u | grep -vxE 'meson\.build|meson_options\.txt|meson\.options|README\.md|LICENSE|frontend|ir|passes|codegen|runtime|models|tests|\..*')"

# Which rooms a room may look into: frontend sees all, codegen and passes see what lies below, the runtime stands alone (rt.h, philox.h and cudnn.h are open to all).
includes() { # includes ROOM ALLOWED-ERE
	for f in $(echo "$files" | grep -E "^$1/.*\.([chly]|def)$"); do
		grep -n '^#include "' "$f" | while IFS=: read -r line text; do
			name=${text#*\"} name=${name%%\"*}
			case $name in
			../*) room=$(echo "$name" | sed 's|^\(\.\./\)*||;s|/.*||') ;;
			*) continue ;; # of its own folder
			esac
			base=${name##*/}
			case $room in
			runtime) [ "$base" = rt.h ] || [ "$base" = philox.h ] || [ "$base" = cudnn.h ] || [ "$1" = runtime ] || [ "$1" = frontend ] || echo "$f:$line includes $name" ;;
			*) echo "$room" | grep -qxE "$2" || [ -f "$(dirname "$f")/../$base" ] || echo "$f:$line includes $name" ;;
			esac
		done
	done
}
for rule in 'ir:ir' 'passes:passes|ir' 'codegen:codegen|passes|ir' 'frontend:frontend|codegen|passes|ir' 'runtime:runtime'; do
	check "includes of ${rule%%:*}" "$(includes "${rule%%:*}" "${rule#*:}")"
done

check "opening comment" "$(for f in $(echo "$files" | grep -E '^(frontend|ir|passes|codegen|runtime)/.*\.[chly]$'); do
	head -n 12 "$f" | grep -q "/\* \(.*/\)\?${f##*/}: " || echo "$f does not open with \`/* ${f##*/}: what it does\`"
done)"
check "length" "$(for f in $(echo "$files" | grep -E '\.[chly]$'); do n=$(wc -l <"$f"); [ "$n" -le 1500 ] || echo "$f has $n lines, at most 1500"; done)"
# The pattern is written so that it does not find itself.
check "paths of one machine" "$(echo "$files" | grep -vE '\.(gz|npy|safetensors|png|jpe?g)$' | xargs grep -nE '(^|[^[:alnum:]_.])/(work|root|home/[a-z]+)/[a-z]' 2>/dev/null | grep -v '^tests/layout.sh:' | head -n 10)"
check "figures to come" "$(echo "$files" | grep -E '\.(md|net|[chly]|def|sh|py)$' | xargs grep -nE '@@[A-Z0-9]+@@' 2>/dev/null | head -n 10)"
check "model files" "$(for f in $(echo "$files" | grep -E '^models/.*\.net$'); do head -n 20 "$f" | grep -qiE 'source|arxiv|et al' || echo "$f: no source in its head comment"; done)"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
