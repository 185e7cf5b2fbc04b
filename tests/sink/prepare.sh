# What groups have in common that run executables of target cuda on the simulated driver: the environment, a folder $tmp for what they write; without python3 or NVRTC the group is skipped.
# In: $group, its name; read by its run.sh, in the repository's top folder. What NVRTC makes is kept in the build folder.
build=${BUILD:-$PWD/build}
export MANTOU="${MANTOU:-$build/mantou}" XDG_CACHE_HOME="$build/tests/nvrtc" MANTOU_LIBCUDA="$build/tests/cudasim/libcuda.so.1" MANTOU_SIM_THREADS=2
mkdir -p "$XDG_CACHE_HOME"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/$group.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
missing=
if ! command -v python3 >/dev/null; then
	missing="no python3"
elif ! "$MANTOU" build tests/train/table.net --target cuda --arch sm_80 -o "$tmp/probe" >"$tmp/out" 2>&1 && grep -qi nvrtc "$tmp/out"; then
	missing="there is no NVRTC"
fi
if [ -n "$missing" ]; then
	echo "skip $group: $missing"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
