#!/bin/sh
# Golden files: one behaviour a file, exact text. BLESS=1 rewrites what is expected.
here=$(dirname "$0")
exec "${BUILD:-$here/../../build-check}/tests/golden/golden" ${BLESS:+--bless} "${@:-$here}"
