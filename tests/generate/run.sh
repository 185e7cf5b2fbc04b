#!/bin/sh
# The command generate of executables: small models whose next token NumPy can say, by every way of choosing. Skipped where there is no NumPy.
set -u
cd "$(dirname "$0")/../.."
python=$(sh tests/numpy.sh) || { echo "skip generate: no python3 with numpy"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
exec "$python" tests/generate/test_generate.py "${MANTOU:-$PWD/build/mantou}"
