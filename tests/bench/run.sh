#!/bin/sh
# mantou beside its rivals, in one command: installs them into a folder of its own, builds mantou if build/ has none, and measures row by row (rows.txt) in
# interleaved rounds: medians, bests, the share of the peak measured in the same run, memory, time to the first step, the ratio to the best rival.
#   sh tests/bench/run.sh [--rows ROW,ROW...] [--rounds N] [--quick] [--list] [--rivals DIR] [--json FILE] [--realtime] [--threads N]
#   sh tests/bench/run.sh --from FILE      the tables of an earlier --json FILE again
# DIR (default ~/.cache/mantou-bench) becomes a Python environment with PyTorch, torchvision, gensim, ONNX Runtime and OpenVINO, and one within for MXNet, which needs an old
# numpy. What is there is not installed again; an environment that this script did not make is used as it is. What cannot be installed is said once, and
# again in its line of the table. TORCH_INDEX=URL is asked for PyTorch (a build without CUDA saves 5 GB); MANTOU=FILE names the compiler, PYTHON the python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
rivals=${HOME:-/tmp}/.cache/mantou-bench measures=1
python=${PYTHON:-python3}
# The folder is looked up here; measure.py reads the options and complains of wrong ones before anything is installed.
previous=
for word; do
	case $previous in --rivals) rivals=$word ;; esac
	case $word in
	--rivals=*) rivals=${word#*=} ;;
	-h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
	--list | --from | --from=*) measures= ;;
	esac
	previous=$word
done
mantou=${MANTOU:-$root/build/mantou}
[ -z "$measures" ] || "$python" "$here/measure.py" --rivals "$rivals" --mantou "$mantou" "$@" --list >/dev/null
[ -n "$measures" ] || exec "$python" "$here/measure.py" "$@"

# want ENVIRONMENT MODULE PACKAGE...: installed unless the module is there; a failure is remembered in missing.txt for the table.
want() {
	in=$1 module=$2
	shift 2
	"$in/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" 2>/dev/null && return 0
	echo "run.sh: installing $module into $in" >&2
	if ! "$in/bin/python" -m pip install -q --retries 2 "$@" >"$rivals/$module.log" 2>&1; then
		why=$(grep -i error "$rivals/$module.log" | tail -n 1 | cut -c 1-200)
		echo "run.sh: no $module: ${why:-pip failed} ($rivals/$module.log)" >&2
		echo "$module: ${why:-pip failed}" >>"$rivals/missing.txt"
	fi
}
# environment DIR: a Python environment with pip.
environment() {
	[ ! -x "$1/bin/python" ] || return 0
	mkdir -p "$1"
	"$python" -m venv "$1" >"$rivals/venv.log" 2>&1 || { sh "$root/tests/install.sh" python3-venv && "$python" -m venv "$1" >"$rivals/venv.log" 2>&1; } ||
		{ echo "run.sh: no Python environment in $1: $(tail -n 1 "$rivals/venv.log")" >&2; exit 1; }
}
if [ -x "$rivals/bin/python" ] && [ ! -f "$rivals/made-by-run.sh" ]; then
	echo "run.sh: $rivals is used as it is" >&2
else
	environment "$rivals"
	: >"$rivals/made-by-run.sh"
	: >"$rivals/missing.txt"
	want "$rivals" torch torch setuptools numpy ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
	want "$rivals" torchvision torchvision ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
	want "$rivals" gensim gensim
	want "$rivals" onnx onnx
	want "$rivals" onnxruntime onnxruntime
	want "$rivals" openvino openvino
	[ -f "$rivals/lib/libiomp5.so" ] || "$rivals/bin/python" -m pip install -q intel-openmp >"$rivals/intel-openmp.log" 2>&1 ||
		echo "run.sh: no intel-openmp: PyTorch will be slower than it could be" >&2
	# a numpy that old is there for a Python that old
	for word in python3.11 python3.10 python3.9 python3.8; do
		"$word" -c pass 2>/dev/null && python=$word && break
	done
	environment "$rivals/mxnet"
	want "$rivals/mxnet" mxnet mxnet==1.9.1 numpy==1.23.5
fi
command -v g++ >/dev/null || sh "$root/tests/install.sh" g++ || echo "run.sh: no g++: PyTorch cannot compile" >&2
if [ ! -x "$mantou" ]; then
	[ -z "${MANTOU:-}" ] || { echo "run.sh: no $mantou" >&2; exit 1; }
	sh "$root/tests/install.sh"
	echo "run.sh: building $mantou" >&2
	(cd "$root" && { [ -f build/build.ninja ] || meson setup build --buildtype=release; } && ninja -C build) >"$rivals/build.log" 2>&1 || { tail -n 20 "$rivals/build.log" >&2; exit 1; }
fi
exec "${PYTHON:-python3}" "$here/measure.py" --rivals "$rivals" --mantou "$mantou" "$@"
