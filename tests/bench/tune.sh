#!/bin/sh
# What tuning gains on this machine: each model is tuned as its user would, from no file, and both programs timed by
# tune's own final: fresh processes A B B A .., Wilcoxon's interval of 95 % of the pairs' ratios.
#   sh tests/bench/tune.sh [--budget TIME] [MODEL.net | MODEL.net:PRECISION ...]
# A line for each model. Exit status 1 if a file was written that is slower, or a search failed. Release builds only;
# nothing else may run on the machine.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
budget=5m
while [ $# -gt 0 ]; do
	case $1 in
	--budget) budget=$2; shift 2 ;;
	-h | --help) sed -n '2,7s/^# //p' "$0"; exit 0 ;;
	-*) echo "tune.sh: unknown option $1" >&2; exit 2 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || set -- models/lenet.net models/resnet50-cifar10.net models/resnet50-cifar10.net:mixed \
	models/vgg16-cifar10.net models/bert-base.net models/lstm-bytes.net
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
lscpu | sed -n 's/^Model name: *//p'
printf '%-28s %-6s %10s %10s %7s %16s %8s %8s %6s\n' model bits 'before ms' 'after ms' gain '95 %' predicted records s
status=0
for job; do
	net=${job%%:*} precision=f32
	case $job in *:*) precision=${job#*:} ;; esac
	[ -f "$net" ] || { echo "tune.sh: there is no $net" >&2; status=1; continue; }
	start=$(date +%s)
	rm -f "$dir"/it.*
	if ! "$mantou" tune "$net" --precision "$precision" --budget "$budget" -o "$dir/it.tune" --json --quiet >"$dir/out" 2>"$dir/err"; then
		echo "$net: $(head -n 1 "$dir/err")"
		status=1
		continue
	fi
	python3 - "$net" "$precision" "$dir/out" $(($(date +%s) - start)) <<'END' || status=1
import json, os, sys
o = json.load(open(sys.argv[3]))
f = o["final"]
name = os.path.basename(sys.argv[1])
if f and o["written"]:
    print(f"{name:28s} {sys.argv[2]:6s} {f['base_ms']:10.4g} {f['tuned_ms']:10.4g} {100 * f['gain']:+6.1f}% "
          f"{100 * f['low']:+6.1f} ..{100 * f['high']:+6.1f} {100 * f['predicted']:+7.1f}% {len(o['records']):8d} {sys.argv[4]:>6s}")
    sys.exit(f["low"] <= 0)
print(f"{name:28s} {sys.argv[2]:6s} {o['baseline_ms']:10.4g} {'':10s} nothing was won{'':22s} {sys.argv[4]:>6s}")
END
done
exit $status
