#!/bin/sh
# `mantou review`, `bench --usage`, `bench --reader`, `train --usage`. Skipped where there is no python3.
set -u
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "skip review: no python3"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
exec python3 tests/review/test_review.py "${MANTOU:-$PWD/build/mantou}"
