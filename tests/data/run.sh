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
# One with Pillow, if there is one: photographs are compared with what it makes of them.
for python in python3 /usr/bin/python3; do
	"$python" -c 'import PIL' 2>/dev/null && exec "$python" test_data.py
done
exec python3 test_data.py
