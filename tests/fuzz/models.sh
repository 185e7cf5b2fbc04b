#!/bin/sh
# Random models of the .net language, compared (models.py): models.sh SECONDS [SEED] [OPTION...], from seed 1 unless told, by all CPUs unless told -j JOBS.
# The compiler is that of $MANTOU, else of $BUILD or build-check/; every tenth model runs on the simulated device too, where that folder has it. What differs is kept in
# found-models/ of the build folder: model, data and again.sh, the commands. `models.sh --suite` are the fixed seeds of the suite (exit status 77: skipped).
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-build-check}
case $build in /*) ;; *) build=$PWD/$build ;; esac
mantou=${MANTOU:-$build/mantou}
python=$(sh tests/numpy.sh 2>/dev/null) || { echo "skip fuzz_models: no python3 with numpy"; exit 77; }
if [ "${1:-}" = --suite ]; then
	exec "$python" tests/fuzz/models.py --mantou "$mantou" --keep "$build/found-models" "$@"
fi
case ${1:-} in '' | *[!0-9]*) sed -n '2,5s/^# //p' "$0"; exit 2 ;; esac
seconds=$1 seed=1
shift
case ${1:-} in '' | *[!0-9]*) ;; *) seed=$1; shift ;; esac
[ ! -f "$build/tests/cudasim/libcuda.so.1" ] || set -- --cuda "$build/tests/cudasim/libcuda.so.1" --cache "$build/tests/nvrtc" "$@"
exec "$python" tests/fuzz/models.py --mantou "$mantou" --keep "$build/found-models" --seconds "$seconds" --seed "$seed" "$@"
