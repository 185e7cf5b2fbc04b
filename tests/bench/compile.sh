#!/bin/sh
# Time and memory of compiling chains of equal layers and some models: user seconds, which a busy machine disturbs least.
#   sh tests/bench/compile.sh [LAYERS...]     (default: 250 1000 3900)
# A line for each: what, layers, user and system seconds, peak memory, size of the executable. A release build of mantou: in others every pass is checked.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
[ $# -gt 0 ] || set -- 250 1000 3900
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$mantou" "$dir/out" "$@" <<'END'
import os, sys
mantou, out, layers = sys.argv[1], sys.argv[2], sys.argv[3:]
jobs = [(f"tests/scale/{net}.net", ["-D", f"layers={n}"], f"{net:18s} {n:>6s}") for net in ("dense", "conv") for n in layers]
jobs += [(f"models/{net}.net", [], f"{net:18s} {'':6s}") for net in ("lenet", "resnet50-cifar10", "bert-small")]
print(f"{'model':18s} {'layers':>6s} {'user s':>7s} {'sys s':>6s} {'MB':>6s} {'exe MB':>7s}")
for net, args, name in jobs:
    pid = os.posix_spawn(mantou, [mantou, "build", net, *args, "-o", out], os.environ)
    _, status, use = os.wait4(pid, 0)
    if status:
        sys.exit(f"{net}: build failed")
    print(f"{name} {use.ru_utime:7.2f} {use.ru_stime:6.2f} {use.ru_maxrss / 1024:6.0f} {os.path.getsize(out) / 1e6:7.2f}", flush=True)
END
