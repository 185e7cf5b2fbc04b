#!/bin/sh
# Training with several processes on this machine, a thread each: speed-up, what the exchange costs, how much of it is hidden.
# Where others work on the machine: at real-time priority with `chrt -r 30 sh tests/bench/..`. Not with -f: 4 ranks on 2 CPUs take turns.
#   sh tests/bench/distribute.sh [--rounds N] [--steps N] [LIBRARY...]     (default: 5 rounds, openmpi mpich)
# Tables (`--only TABLE,TABLE`; default: all), a line for each model and library. Columns are medians of rounds that go through all ways in turn; a round's
# figure is the median of several short measurements.
#   speed   examples/s of one process and of two; their ratio; of two that exchange nothing (--no-exchange), which share caches and memory but no
#           gradients; by messages, as between machines; by the library's own sum
#   weak    resnet50-cifar10, 32 examples a process, beside as many processes that exchange nothing
#   alone   the exchange alone (bench --only-exchange) of 0.25, 4, 25 and 100 MB, by what processes of one machine see, by messages, by the library's sum
#   hidden  by messages, in a network so slow (tests/distribute/slow.c) that the exchange alone takes 0.4 of a step, 0.6 of its backward half, buckets being
#           cut for a network like that (--cluster): 1 - (step - step without exchange) / exchange alone; and with one bucket
#   scale   what `mantou scale` predicts of 1, 2 and 4 processes from `bench --links`, beside what they take: as they are, and by messages in three such networks
set -eu
cd "$(dirname "$0")/../.."
mantou=${MANTOU:-$PWD/build/mantou} rounds=5 steps= only=speed,weak,alone,hidden,scale
while [ $# -gt 0 ]; do
	case $1 in
	--rounds) rounds=$2; shift 2 ;;
	--steps) steps=$2; shift 2 ;;
	--only) only=$2; shift 2 ;;
	-*) echo "distribute.sh: unknown option $1" >&2; exit 2 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || set -- openmpi mpich
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$mantou" "$dir" "$rounds" "${steps:-0}" "$only" "$@" <<'END'
import json, os, statistics, subprocess, sys
mantou, folder, rounds, asked, only, libraries = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(","), sys.argv[6:]
ALONE, MESSAGES = ["--only-exchange"], ["--exchange", "messages"]


def run(library, p, program, *args, **env):
    command = ["tests/distribute/ranks", library, str(p), folder + "/" + program, "bench", *args]
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=300)
    if out.returncode:
        sys.exit("FAIL %s: %s" % (" ".join(command), out.stderr))
    return out.stdout


def bench(library, p, program, steps, repeat, *args, **env):
    """Milliseconds of a step, or of an exchange alone, and all that bench says."""
    o = json.loads(run(library, p, program, *([] if "--only-exchange" in args else ["--synthetic"]), "--threads", "1", "--json", "--repeat", str(repeat),
                       "--warmup", "2", "--steps", str(asked or steps), *args, **env))
    return (o["exchange_ms"] if "exchange_ms" in o else o["ms_per_step"])["median"], o


def turns(ways, steps, repeat):
    """Medians by way over all rounds, each of which goes through all ways. ways: name: (library, p, program, args, env)."""
    seen = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (library, p, program, args, env) in ways.items():
            seen[way].append(bench(library, p, program, steps, repeat, *args, **env)[0])
    return {way: statistics.median(x) for way, x in seen.items()}


def build(name, model, *args):
    subprocess.run([mantou, "build", model, *args, "--distribute", "mpi", "-o", folder + "/" + name], check=True, stderr=subprocess.DEVNULL)
    return name


def delayed(library):
    """The library with a slow network in front; None where cc does not find it."""
    real, slow = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}[library], folder + "/lib%s.so" % library
    made = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "tests/distribute/slow.c", "-o", slow, "-Wl,--no-as-needed", "-l:" + real])
    return None if made.returncode else slow


def write(name, text):
    with open(folder + "/" + name, "w") as f:
        f.write(text)
    return folder + "/" + name


def speed():
    print("%-17s %-8s %9s %9s %8s %11s %9s %9s   speed, examples/s" % ("model", "library", "1 process", "2", "speed-up", "no exchange", "messages", "library"))
    for model, batch, steps in ("models/lenet.net", 128, 20), ("models/resnet20-cifar10.net", 64, 1), ("tests/distribute/wide.net", 64, 20):
        build("model", model, "--batch", str(batch), "--shards", "2")
        for library in libraries:
            ways = {way: (library, p, "model", args, {}) for way, p, args in (("one", 1, []), ("two", 2, []), ("free", 2, ["--no-exchange"]),
                                                                               ("messages", 2, MESSAGES), ("library", 2, ["--exchange", "library"]))}
            x = {way: 1e3 * batch / ms for way, ms in turns(ways, steps, 15).items()}
            print("%-17s %-8s %9.1f %9.1f %8.2f %11.1f %9.1f %9.1f" % (model.split("/")[-1][:-4], library, x["one"], x["two"], x["two"] / x["one"], x["free"],
                                                                       x["messages"], x["library"]), flush=True)


def weak():
    print("\n%-8s %9s %11s %11s %7s   weak scaling, examples/s" % ("library", "processes", "exchanging", "no exchange", "ratio"))
    for library in libraries:
        for p in 2, 4:
            build("weak", "models/resnet50-cifar10.net", "--batch", str(32 * p), "--shards", str(p))
            x = turns({way: (library, p, "weak", [way] if way else [], {}) for way in ("", "--no-exchange")}, 1, 3)
            print("%-8s %9d %11.2f %11.2f %7.3f" % (library, p, 32e3 * p / x[""], 32e3 * p / x["--no-exchange"], x["--no-exchange"] / x[""]), flush=True)


def alone():
    print("\n%-8s %6s %9s %9s %9s %9s %7s   the exchange alone, ms" % ("library", "MB", "processes", "seen", "messages", "library's", "ratio"))
    for size in 0.25, 4, 25, 100:
        side = int((size * 250000) ** 0.5)
        build("square", write("square.net", "model square(x: f32[N, %d]) { loss mean(square(dense(x, %d))) }\ndata { reader = synthetic(64) }\n"
                              "train { batch = 8  shards = 4 }\n" % (side, side)))
        for library in libraries:
            for p in 2, 4:
                x = turns({by: (library, p, "square", [*ALONE, "--exchange", by], {}) for by in ("tree", "messages", "library")}, 5, 5)
                print("%-8s %6.4g %9d %9.2f %9.2f %9.2f %7.2f" % (library, size, p, x["tree"], x["messages"], x["library"], x["tree"] / x["library"]), flush=True)


def hidden():
    model = ["models/resnet20-cifar10.net", "--batch", "64", "--shards", "2"]
    print("\n%-8s %12s %14s %12s %7s %10s   a slow network" % ("library", "step, ms", "no exchange", "alone", "hidden", "one bucket"))
    for library in libraries:
        slow = delayed(library)
        if not slow:
            continue
        build("model", *model)
        free = turns({"": (library, 2, "model", ["--no-exchange"], {})}, 1, 31)[""]
        one = turns({"": (library, 1, "model", [], {})}, 1, 9)[""]
        rate = bench(library, 2, "model", 1, 1, *ALONE)[1]["exchange_bytes"] / (0.4e-3 * free)
        build("model", *model, "--cluster", write("cluster", "node 1 of 2\nrate %g\nlink inside 50us %gGB/s\n" % (64e3 / one, 1e-9 * rate)))
        build("one", *model, "--disable", "overlap")
        env = {"MANTOU_LIBMPI": slow, "SLOW_RATE": str(rate)}
        x = turns({"free": (library, 2, "model", ["--no-exchange"], {}), "alone": (library, 2, "model", ALONE + MESSAGES, env),
                   "step": (library, 2, "model", MESSAGES, env), "one": (library, 2, "one", MESSAGES, env), "one free": (library, 2, "one", ["--no-exchange"], {}),
                   "one alone": (library, 2, "one", ALONE + MESSAGES, env)}, 1, 31)
        print("%-8s %12.1f %14.1f %12.1f %7.2f %10.2f" % (library, x["step"], x["free"], x["alone"], 1 - (x["step"] - x["free"]) / x["alone"],
                                                          1 - (x["one"] - x["one free"]) / x["one alone"]), flush=True)


def scale():
    model = ["models/resnet20-cifar10.net", "--batch", "64", "--shards", "4"]
    print("\n%-8s %8s %9s %12s %12s %7s   mantou scale, from bench --links" % ("library", "network", "processes", "measured, ms", "predicted", "off"))
    build("model", *model)
    for library in libraries:
        slow = delayed(library)
        for rate in (0, 1e7, 3e7, 1e8) if slow else (0,):
            env, by = ({"MANTOU_LIBMPI": slow, "SLOW_RATE": str(rate)}, MESSAGES) if rate else ({}, [])
            links = run(library, 2, "model", "--links", *by, **env)
            one = turns({"": (library, 1, "model", [], {})}, 1, 9)[""]
            for p in 1, 2, 4:
                # what all processes together lengthen a step, kernels alone
                steps, repeat = (12, 3) if p > 2 else (1, 9)   # longer than the turns that processes take on a CPU
                free = turns({"": (library, p, "model", ["--no-exchange"], {})}, steps, repeat)[""] if p > 1 else one
                cluster = write("cluster", "node 1 of %d\nrate %g\nbusy %g%%\nspread 0%%\n%s" % (p, 64e3 / one, 100 * max(0, free * p / one - 1), links))
                build("cut", *model, *(["--cluster", cluster] if p > 1 else []))
                ms = turns({"": (library, p, "cut", by if p > 1 else [], env)}, steps, repeat)[""]
                said = subprocess.run([mantou, "scale", *model, "--cluster", cluster, "--json", "--processes", str(p)], capture_output=True, text=True)
                if said.returncode:
                    sys.exit("FAIL scale: " + said.stderr)
                guess = json.loads(said.stdout)["predicted"][0]["ms_per_step"]["median"]
                print("%-8s %8s %9d %12.1f %12.1f %6.1f%%" % (library, "%.4g MB/s" % (rate * 1e-6) if rate else "none", p, ms, guess, 100 * (guess / ms - 1)),
                      flush=True)


for table in speed, weak, alone, hidden, scale:
    if table.__name__ in only:
        table()
END
