#!/bin/sh
# Every gradient rule and every decomposition through the passes, against central differences of the reference evaluator.
here=$(dirname "$0")
exec "${BUILD:-$here/../../build-check}/tests/gradient/gradient" "$here/../operators" "$here/graphs.txt" "$@"
