#!/bin/sh
# Evaluation and inference of small models, each a file here, on a data set whose last batch is smaller: the program beside the interpreter, and both beside
# numbers of NumPy where a file gives them. Skipped where there is no NumPy.
set -u
cd "$(dirname "$0")/../.."
python=$(sh tests/numpy.sh) || { echo "skip eval: no python3 with numpy"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
exec "$python" tests/eval/test_eval.py "${MANTOU:-$PWD/build/mantou}" "$@"
