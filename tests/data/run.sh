#!/bin/sh
# Readers from .net file to trained program: what comes out of them, sets larger than memory should hold, files that are broken.
# Needs python3 alone (test_data.py). Last line: the counts.
set -u
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null; then
	echo "skip data: no python3"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
exec python3 test_data.py
