#!/bin/sh
# The suite: installs what is missing, builds in build-check/ (with checks after every pass), runs the groups, prints a line for each.
#   sh tests/run.sh [GROUP...] [--bless] [--long] [--quick]
# --bless rewrites the expected output of the groups golden and lang, and what tables make of frontend/language.md;
# --long adds what takes more than minutes; --quick runs the groups that take less than a minute together.
# A group is a folder's run.sh (its last line is `N passed, N failed, N skipped`), a folder's meson.build (unit,
# numeric, ...), or one of: layout, meson, bench and gpu (their check.sh), conformance. Groups that are named run one
# after the other, all of them three at a time (some wait more than they compute), the longest first. The last line
# counts them all; exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.."
bless= long= only= quick=
for word; do
	case $word in
	--bless) bless=1 ;;
	--long) long=1 ;;
	--quick) quick=1 ;;
	-h | --help) sed -n '2,10s/^# //p' "$0"; exit 0 ;;
	-*) echo "run.sh: unknown option $word" >&2; exit 2 ;;
	layout | meson | conformance) only="$only $word" ;;
	*)
		[ -f "tests/$word/run.sh" ] || [ -f "tests/$word/meson.build" ] || { echo "run.sh: there is no group $word" >&2; exit 2; }
		only="$only $word" ;;
	esac
done
build=${BUILD:-build-check}
case $build in /*) ;; *) build=$PWD/$build ;; esac
# Kernels that one group has compiled are there for the others.
MANTOU_CACHE=${MANTOU_CACHE:-$build/kept}
MANTOU=$build/mantou BUILD=$build BLESS=$bless LONG=$long
# Where the build has sanitizers: what lives until the end of a program is not freed by it.
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
# PTX that only the simulated device runs is optimised less unless --long is given: NVRTC takes half the time.
[ -n "$long" ] || MANTOU_NVRTC_FAST=${MANTOU_NVRTC_FAST-min}
# So are programs for the CPU, but for those of groups about kernels and what they compute: LLVM takes two fifths.
hurry=
[ -n "$long" ] || hurry=${MANTOU_LLVM_FAST-1}
export MANTOU MANTOU_CACHE BUILD BLESS LONG ASAN_OPTIONS MANTOU_NVRTC_FAST MANTOU_LLVM_FAST
# Sweeps over variants of kernels run some of them unless --long is given (cpu/chosen.c).
[ -n "$long" ] || export TEST_SOME=1

# count GROUP STATUS LOG SECONDS CPU-SECONDS: prints and keeps the counts in the log's last line; a group without one
# has failed.
count() {
	line=$(tail -n 1 "$3" 2>/dev/null | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' || true)
	if [ -z "$line" ]; then
		tail -n 20 "$3"
		line="0 passed, 1 failed, 0 skipped"
	fi
	set -- "$1" "$2" "$3" "$4 s, $5 s of CPU time" $(echo "$line" | tr -dc '0-9 ')
	if [ "$2" != 0 ] && [ "$6" = 0 ]; then
		tail -n 20 "$3"
		set -- "$1" "$2" "$3" "$4" "$5" 1 "$7"
	fi
	[ "$6" = 0 ] || grep -E '^(FAIL|not ok|[^ ]*: FAIL)|[0-9]+/[0-9]+ .*FAIL' "$3" | head -n 40
	[ "$7" = 0 ] || sed -n '/^skip /p' "$3" | sort -u | head -n 10
	echo "$5 $6 $7" >>"$counts"
	printf '%-12s %s passed, %s failed, %s skipped  (%s)\n' "$1" "$5" "$6" "$7" "$4"
}

group() {
	case $1 in conformance | models | bench) MANTOU_LLVM_FAST= ;; *) MANTOU_LLVM_FAST=$hurry ;; esac
	case $1 in
	layout) sh tests/layout.sh ;;
	meson) meson_group ;;
	conformance) conformance_group ;;
	bench | gpu) sh "tests/$1/check.sh" ;; # run.sh there measures
	*) if [ -f "tests/$1/run.sh" ]; then sh "tests/$1/run.sh"; else meson_group "$1"; fi ;;
	esac
}

# Whatever is registered with meson: unit tests and the like; all, or those whose name begins with a word.
meson_group() {
	tests=
	[ $# -eq 0 ] || tests=$(meson test -C "$build" --no-rebuild --list 2>/dev/null | sed 's/.*[:/] *//' | grep "^$1" | tr '\n' ' ')
	[ -z "$BLESS" ] || case ${1-lang} in lang*) bless_lang ;; esac
	printed=$build/meson-test${1:+-$1}.log
	meson test -C "$build" --no-rebuild --timeout-multiplier 6 --print-errorlogs --logbase "testlog${1:+-$1}" $tests >"$printed" 2>&1
	cat "$printed"
	number() { sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$printed" | tail -n 1 | grep . || echo 0; }
	echo "$(number Ok) passed, $(($(number Fail) + $(number Timeout))) failed, $(number Skipped) skipped"
}

bless_lang() {
	"$build/tests/lang/lang" --bless tests/lang
	"$build/tests/lang/reference" --bless tests/lang frontend/language.md models/cookbook.md README.md
}

# Reference numbers from PyTorch, which live outside the repository.
conformance_group() {
	kit=../shared/reference
	if [ ! -f $kit/run.py ]; then
		echo "skip conformance: no folder $kit"
		echo "0 passed, 0 failed, 1 skipped"
		return 0
	fi
	python=$(sh tests/numpy.sh) || { echo "FAIL no python3 with numpy"; return 1; }
	# cases DIR-OPTIONS: one run of the kit, whose last line is its counts
	cases() { "$python" $kit/run.py --mantou "$MANTOU" -j "$(nproc)" ${KIT_ARGS:-} "$@"; }
	# half K: a pattern of the names of every second case of ops2/, the first or the second on; with --long of all
	half() {
		[ -z "$LONG" ] || { echo .; return; }
		"$python" $kit/run.py --mantou "$MANTOU" --dir $kit/ops2 --list | awk -v k=$1 'NR % 2 == k' | paste -sd '|' |
			sed 's/.*/^(&)$/'
	}
	runs=1
	[ -n "$LONG${KIT_ARGS:-}" ] || runs=2
	[ ! -d $kit/ops2 ] || runs=$((runs + 3))
	{
		# without --long curves as a user's are compiled, operators as in other groups; the curves of ResNet-50, each
		# of which computes for half a minute, are left to it, those of ResNet-20 and VGG-11 are not
		if [ -n "$LONG${KIT_ARGS:-}" ]; then cases; else
			cases --filter '^curve/(?!resnet50)'
			MANTOU_LLVM_FAST=$hurry
			cases --filter '^(?!curve/)'
		fi
		[ ! -d $kit/ops2 ] || {
			cases --dir $kit/ops2 --bounds f32 --build-args "--precision f32"
			# in 16 bits every operator, its cases by turns in one type and the other
			cases --dir $kit/ops2 --bounds bf16 --build-args "--precision bf16" --filter "$(half 0)"
			cases --dir $kit/ops2 --bounds f16 --build-args "--precision f16" --filter "$(half 1)"
		}
	} | awk -v runs=$runs '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5; n++; next }
		/^skip .*: nothing to compare in/ { s--; next } # a case without bounds in 16 bits
		{ print }
		END { printf "%d passed, %d failed, %d skipped\n", p, f + (n != runs), s; exit f || n != runs }'
}

sh tests/install.sh || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
	# lines for debuggers take a sixth of the compiler's time, and a tenth of every link; what -O2 does beyond -O1 a fifth,
	# and of seven groups that were timed none is slower without (the simulated device has -O3)
	meson setup "$build" "-Dc_args=-g0 -O1 ${CFLAGS:-}" >"$build/setup.log" 2>&1 || { tail -n 20 "$build/setup.log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
fi
ninja -C "$build" >"$build/ninja.log" 2>&1 || { grep -E 'error|FAILED|warning' "$build/ninja.log" | head -n 40; echo "build failed: $build/ninja.log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }

# Where python3 is a script that looks for the program at each start (pyenv's takes 0.1 s of CPU time), the system's own,
# else the program itself.
real=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)
[ ! -x /usr/bin/python3 ] || real=/usr/bin/python3
if [ -x "$real" ] && head -c 2 "$(command -v python3)" | grep -q '^#!'; then
	mkdir -p "$build/bin"
	printf '#!/bin/sh\nexec "%s" "$@"\n' "$real" >"$build/bin/python3"
	chmod +x "$build/bin/python3"
	PATH=$build/bin:$PATH
fi

# cpu_seconds LOG: used = what this shell's children have used of the CPUs until now. A subshell's `times` is its own, so
# each lane is one: a shell that waits for anything counts its lanes that have ended, too.
cpu_seconds() {
	times >"$1.times"
	used=$(tail -n 1 "$1.times" | tr 'ms' '  ' | awk '{ print int(60 * ($1 + $3) + $2 + $4) }')
	rm -f "$1.times"
}

# lane GROUP...: one after the other, but those that another lane took
lane() {
	for g; do
		mkdir "$taken/$g" 2>/dev/null || continue
		log=$build/$(echo "$g" | tr / -).log
		start=$(date +%s)
		cpu_seconds "$log"
		before=$used
		group "$g" >"$log" 2>&1 </dev/null
		status=$?
		cpu_seconds "$log"
		count "$g" $status "$log" $(($(date +%s) - start)) $((used - before))
	done
}

counts=$build/counts taken=$build/taken
: >"$counts"
rm -rf "$taken"
mkdir "$taken"
lanes=3
if [ -n "$only" ]; then
	all=$(printf '%s\n' $only | awk '!seen[$0]++') lanes=1
elif [ -n "$quick" ]; then
	all="eval runtime layout cpu-algos cpu-asked cpu-narrow cuda-algos lang unit cudasim numeric gradient golden"
else
	all="cuda meson sink conformance cudnn nccl cli race models distribute gpu bench scale tune train device data"
	for g in tests/*/run.sh; do
		g=${g#tests/}
		g=${g%/run.sh}
		case " $all " in *" $g "*) ;; *) all="$all $g" ;; esac
	done
	all="$all layout"
fi
if [ $lanes = 3 ] && [ "$(nproc)" -gt 1 ]; then
	lane $all &
	lane $all &
	lane $all &
	wait
else
	lane $all
fi
rm -rf "$taken"
ended=$(wc -l <"$counts")
set -- $all
[ "$ended" -eq $# ] || { echo "FAIL $(($# - ended)) groups did not end"; echo "0 1 0" >>"$counts"; }
set -- $(awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}' "$counts")
echo "$1 passed, $2 failed, $3 skipped"
[ "$2" -eq 0 ]
