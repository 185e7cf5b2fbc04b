#!/bin/sh
# Does the compiler of this working tree make the same code as that of another commit?
#   sh tests/replay.sh BASE [--models a,b] [--precisions f32,bf16] [--archs znver4,sm_80] [--ir] [-j N] [MODEL.net...]
# Builds BASE and the working tree (release, in build-replay/), and compares, for every model of models/ and
# tests/bench/ or those that are named, in every precision and for every architecture: the IR at stage planned, and the
# machine code's text (--emit asm) or the CUDA C (--emit cuda). --ir leaves the code out. Prints a line for each
# combination that differs, with the groups and functions that do, and what of a message changed; last a count. Exit
# status 1 if anything differs. All of it takes hours of one CPU for two builds that were never compared: BASE's
# output is kept beside its build, by its commit.
set -u
cd "$(dirname "$0")/.."
case ${1:-} in '' | -*) sed -n '2,9s/^# //p' "$0"; exit 2 ;; esac
base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "replay.sh: there is no commit $1" >&2; exit 2; }
shift
work=$PWD/build-replay
mkdir -p "$work"

# compile SOURCE BUILD
compile() {
	[ -f "$2/build.ninja" ] || meson setup "$2" "$1" --buildtype=release >"$2.log" 2>&1 ||
		{ tail -n 20 "$2.log" >&2; return 1; }
	ninja -C "$2" mantou >"$2.log" 2>&1 || { grep -E 'error|FAILED' "$2.log" | head -n 20 >&2; return 1; }
}
if [ ! -d "$work/$base/source" ]; then
	git worktree prune
	git worktree add --quiet --detach "$work/$base/source" "$base" || exit 1
fi
compile "$work/$base/source" "$work/$base/build" && compile "$PWD" "$work/now" || exit 1
export MANTOU_CACHE=off
exec python3 tests/replay.py "$work/$base/build/mantou" "$work/now/mantou" "$work/$base/kept" "$@"
