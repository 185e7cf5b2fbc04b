#!/bin/sh
# What a training is asked for day by day, by executables of small models: the best evaluation kept, an early stop. Each
# is compared with NumPy, or with a run that was not stopped. Skipped where there is no NumPy.
set -u
cd "$(dirname "$0")/../.."
python=$(sh tests/numpy.sh) || { echo "skip recipe: no python3 with numpy"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
exec "$python" tests/recipe/test_recipe.py "${MANTOU:-$PWD/build/mantou}" "$@"
