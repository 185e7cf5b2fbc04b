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

# Which rooms a room may look into: frontend sees all, codegen and passes see what lies below, the runtime stands alone (rt.h, philox.h, cudnn.h, kinds.def and readers.def are open to all).
includes() { # includes ROOM ALLOWED-ERE
	grep -n '^#include "\.\./' $(echo "$files" | grep -E "^$1/.*\.([chly]|def)$") /dev/null | awk -F: -v of="$1" -v allowed="^($2)\$" '{
		name = $3; sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
		path = $1; sub(/[^\/]*$/, "", path); path = path name
		while (sub(/[^\/.]+\/\.\.\//, "", path)) ;
		room = path; sub(/\/.*/, "", room)
		base = path; sub(/.*\//, "", base)
		open = room == "runtime" && (base ~ /^((rt|philox|cudnn)\.h|(kinds|readers)\.def)$/ || of == "runtime" || of == "frontend")
		if (!open && room !~ allowed) print $1 ":" $2 " includes " name
	}'
}
for rule in 'ir:ir' 'passes:passes|ir' 'codegen:codegen|passes|ir' 'frontend:frontend|codegen|passes|ir' 'runtime:runtime'; do
	check "includes of ${rule%%:*}" "$(includes "${rule%%:*}" "${rule#*:}")"
done

# How files of codegen use each other: needs the objects of a build.
build=${BUILD:-build-check}
if [ -d "$build/codegen/libcodegen.a.p" ] && command -v python3 >/dev/null && command -v nm >/dev/null; then
	check "cycles" "$(python3 tests/cycles.py "$build" 2>&1)"
fi

check "opening comment" "$(awk '
function close_file() { if (file != "" && !named) print file " does not open with `/* " base ": what it does`" }
FNR == 1 { close_file(); file = base = FILENAME; sub(/.*\//, "", base); named = 0 }
FNR <= 12 {
	at = index($0, base ": ")
	before = at ? substr($0, 1, at - 1) : ""
	named = named || (before ~ /\/\* ([^ ]*\/)?$/)
}
END { close_file() }' $(echo "$files" | grep -E '^(frontend|ir|passes|codegen|runtime)/.*\.([chly]|cu)$'))"
check "line length" "$(awk '
{
	n = split($0, part, "\t")
	columns = length(part[1])
	for (i = 2; i <= n; i++) columns += 8 - columns % 8 + length(part[i])
	if (columns > 120 && said++ < 20) print FILENAME ":" FNR " has " columns " columns, at most 120"
}' $(echo "$files" | grep -E '\.([chly]|cu|py)$'))"
# A function's body stands between braces in the first column, or (.cu) its head ends with the brace.
check "functions" "$(awk -v most=80 '
FNR == 1 { open = 0 }
/^\{/ { open = FNR; name = head }
/^\}/ {
	if (open && FNR - open - 1 > most) print FILENAME ":" open ": " name " has " FNR - open - 1 " lines, at most " most
	open = 0
}
/^[a-zA-Z_][a-zA-Z_0-9 *]*\(/ { head = $0; sub(/\(.*/, "", head); sub(/.*[ *]/, "", head) }
/^[a-zA-Z_].*\) \{$/ { open = FNR; name = head }
' $(echo "$files" | grep -E '\.([chly]|cu)$') /dev/null)"
check "length" "$(wc -l $(echo "$files" | grep -E '\.([chly]|cu)$') | awk '$1 > 900 && $2 != "total" { print $2 " has " $1 " lines, at most 900" }')"
# Links of documents: the file is there, and the heading. A heading's anchor is its text in small letters without signs, - for blanks; the second of a
# name gets -1.
documents=$(echo "$files" | grep '\.md$')
links() { # FILE TARGET [#ANCHOR] of each link, for those whose heading is missing with a fourth word
	awk '
	FNR == 1 { code = 0; dir = FILENAME; if (!sub(/[^\/]*$/, "", dir)) dir = "" }
	/^ *```/ { code = !code }
	code { next }
	pass == 1 && /^#+ / {
		s = tolower($0); sub(/^#+ /, "", s); gsub(/\]\([^)]*\)/, "", s); gsub(/[^a-z0-9_ -]/, "", s); gsub(/ /, "-", s)
		n = seen[FILENAME, s]++
		has[FILENAME, n ? s "-" n : s] = 1
	}
	pass == 2 {
		while (match($0, /\]\([^) ]*\)/)) {
			link = substr($0, RSTART + 2, RLENGTH - 3)
			$0 = substr($0, RSTART + RLENGTH)
			if (link ~ /^https?:/) continue
			at = frag = link; sub(/#.*/, "", at); sub(/^[^#]*#?/, "", frag)
			file = at == "" ? FILENAME : dir at
			while (sub(/[^\/]+\/\.\.\//, "", file)) ;
			print FILENAME, file, frag, frag != "" && !((file, frag) in has) ? "missing" : ""
		}
	}' pass=1 $documents pass=2 $documents
}
check "links of documents" "$(links | while read -r from file frag missing; do
	[ -e "$file" ] || echo "$from: there is no $file"
	[ "$missing" != missing ] || echo "$from: $file has no heading #$frag"
done)"
check "length of READMEs" "$(for f in $(echo "$files" | grep -E '(^|/)README\.md$'); do
	n=$(wc -w <"$f")
	[ "$n" -le 1500 ] || echo "$f has $n words, at most 1500: a part belongs into a page or a folder of its own"
done)"
# The pattern is written so that it does not find itself.
check "paths of one machine" "$(echo "$files" | grep -vE '\.(gz|npy|safetensors|png|jpe?g)$' | xargs grep -nE '(^|[^[:alnum:]_.])/(work|root|home/[a-z]+)/[a-z]' 2>/dev/null | grep -v '^tests/layout.sh:' | head -n 10)"
check "figures to come" "$(echo "$files" | grep -E '\.(md|net|[chly]|def|sh|py)$' | xargs grep -nE '@@[A-Z0-9]+@@' 2>/dev/null | head -n 10)"
# Words that the field has another for: CPU, images, L1, L2, L3.
check "words" "$(echo "$files" | grep -vE '\.(gz|npy|safetensors|png|jpe?g)$|^LICENSE$|^tests/layout\.sh$' |
	xargs grep -niwE '(a|the|this|of|one|all) (processors?|pictures?)|(first|second|third)-level( cache)?' 2>/dev/null | head -n 10)"
# Transposed, not turned; Winograd; FMA; a code object is no image.
check "words of code" "$(echo "$files" | grep -E '^(codegen|ir|passes|frontend|runtime)/.*\.([chly]|cu|def)$' |
	xargs grep -niwE 'turned|minimal filtering|multiply-adds?|RtImage|(processors?|pictures?) (may|of|have|has|is|are)' 2>/dev/null |
	grep -viE 'turned (away|together)' | head -n 10)"
check "simulated devices" "$(echo "$files" | grep -vE '\.(gz|npy|safetensors|png|jpe?g)$|^LICENSE$|^tests/(layout\.sh|golden/|gradient/)' |
	xargs grep -niE 'stand-ins? ?(for|driver|device|\.|,)|the stand-in' 2>/dev/null | head -n 10)"
check "members of struct Target" "$(awk '/^typedef struct Target \{/ { open = 1 } /^} Target;/ { open = 0 } open && /^\t[a-zA-Z].*;/ { n++ }
	END { if (n < 10 || n > 20) print n " members, at most 20: hooks about one thing share a struct" }' ir/target.h)"
# A reduction is asked for its row's columns (ir/red.h), never for its name.
check "names of reductions" "$(echo "$files" | grep -E '^(codegen|passes|ir)/.*\.[ch]$' |
	xargs grep -nE '(==|!=|case) *OP_('"$(sed -n 's/^RED(\([a-z_]*\),.*/\1/p' ir/red.def | paste -sd '|')"')\>' 2>/dev/null)"
check "model files" "$(for f in $(echo "$files" | grep -E '^models/.*\.net$'); do head -n 20 "$f" | grep -qiE 'source|arxiv|et al' || echo "$f: no source in its head comment"; done)"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
