#!/bin/sh
# Time and memory of compiling chains of equal layers and some models: user seconds, which a busy machine disturbs least.
#   sh tests/bench/compile.sh [LAYERS...]     (default: 250 1000 3900)
# A line for each: what, layers, user and system seconds with an empty cache, peak memory, size of the executable, elapsed seconds, those of the same build once
# more, from the cache. A release build of mantou: in others every pass is checked.
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou}
[ $# -gt 0 ] || set -- 250 1000 3900
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$mantou" "$dir/out" "$@" <<'END'
import os, shutil, sys, time
mantou, out, layers = sys.argv[1], sys.argv[2], sys.argv[3:]
jobs = [(f"tests/scale/{net}.net", ["-D", f"layers={n}"], f"{net:18s} {n:>6s}") for net in ("dense", "conv") for n in layers]
models = ("models/lenet", "models/resnet50-cifar10", "models/bert-small", "models/bert-base", "tests/bench/lstm-512", "tests/bench/densenet121")
jobs += [(f"{net}.net", [], f"{net.split('/')[-1]:18s} {'':6s}") for net in models]
print(f"{'model':18s} {'layers':>6s} {'user s':>7s} {'sys s':>6s} {'MB':>6s} {'exe MB':>7s} {'elapsed':>8s} {'again':>6s}")
def build(net, args):
    since = time.monotonic()
    pid = os.posix_spawn(mantou, [mantou, "build", net, *args, "-o", out], dict(os.environ, MANTOU_CACHE=out + ".cache"))
    _, status, use = os.wait4(pid, 0)
    if status:
        sys.exit(f"{net}: build failed")
    return use, time.monotonic() - since
for net, args, name in jobs:
    shutil.rmtree(out + ".cache", ignore_errors=True)
    use, first = build(net, args)
    again = build(net, args)[1]
    print(f"{name} {use.ru_utime:7.2f} {use.ru_stime:6.2f} {use.ru_maxrss / 1024:6.0f} {os.path.getsize(out) / 1e6:7.2f} {first:8.2f} {again:6.2f}", flush=True)
END
