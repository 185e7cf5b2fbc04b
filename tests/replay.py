"""The part of replay.sh that compares: replay.py MANTOU_BASE MANTOU_NOW KEPT [OPTIONS] [MODEL.net...]

For each model, precision and architecture both compilers print the planned IR and the code. Texts are cut into parts
with names (an op's group, a function of the machine code or of the CUDA C), so that a difference names the kernels that
it concerns. KEPT is a folder of BASE's texts, by the model's text and the options.
"""
import argparse
import concurrent.futures
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zlib

ARCHS = {"cpu": ["x86-64-v3", "x86-64-v4", "znver4", "znver5", "sapphirerapids-noamx", "sapphirerapids"],
         "cuda": ["sm_80", "sm_90a"]}
PRECISIONS = ["f32", "mixed", "bf16", "f16"]


def output(mantou, command):
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder) / "text"
        done = subprocess.run([mantou, *command, "-o", at], capture_output=True, timeout=3600)
        return at.read_bytes() if done.returncode == 0 else b"exit %d\n" % done.returncode + done.stderr


def commands(model, precision, target, arch, code):
    options = [str(model), "--precision", precision, "--target", target, "--arch", arch]
    yield "ir", ["dump", *options, "--stage", "planned"]
    if code:
        kind = "asm" if target == "cpu" else "cuda"
        yield kind, ["build", *options, "--emit", kind]


def kept(folder, mantou, model, command):
    """BASE's text, from the folder where it was made before."""
    text = b"".join(p.read_bytes() for p in sorted(model.parent.glob("*.net"))
                    if p == model or model.name not in p.name)
    at = folder / hashlib.sha256(b"\0".join([text, *(w.encode() for w in command)])).hexdigest()
    if at.exists():
        return zlib.decompress(at.read_bytes())
    made = output(mantou, command)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = at.with_suffix(".new%d" % id(made))
    fresh.write_bytes(zlib.compress(made, 1))
    fresh.replace(at)
    return made


def parts(kind, text):
    """The text by name: groups of a graph, functions."""
    found, name, graph, groups = {}, "(head)", "", {}
    for line in text.decode("utf-8", "replace").splitlines():
        if kind == "ir":
            if m := re.match(r"(?:graph|loop) (\S+?)\(", line):
                graph, name, groups = m[1], f"{m[1]}()", {}
            elif m := re.match(r"  group #(\d+) (\S+)", line):
                groups[m[1]] = name = m[2]
            elif m := re.search(r" #(\d+)(?: |$)", line):
                name = groups.get(m[1], f"{graph} #{m[1]}")
            elif line.startswith("state "):
                name = line.split()[1]
        elif kind == "asm":
            if m := re.match(r"([A-Za-z_][\w.$]*):", line):
                name = m[1]
            line = re.sub(r"\.L(?:BB|CPI|tmp|func_\w+?)\d+(?:_\d+)?", ".L", line)   # numbers of other functions
        elif m := re.search(r"KERNEL2?\s.*?(\w+)\s*\(", line):
            name = m[1]
        found.setdefault(name, []).append(line)
    return found


def difference(kind, a, b):
    old, new = parts(kind, a), parts(kind, b)
    names = [n for n in dict.fromkeys([*old, *new]) if old.get(n) != new.get(n)]
    told = [f"{'-' if n not in new else '+' if n not in old else ''}{n}" for n in names]
    return ", ".join(told[:12]) + (f" and {len(told) - 12} more" if len(told) > 12 else "") or "the order of its parts"


def compare(options, folder, base, now, model, precision, target, arch):
    lines, n = [], 0
    for kind, command in commands(model, precision, target, arch, not options.ir):
        a, b = kept(folder, base, model, command), output(now, command)
        n += 1
        if a != b:
            lines.append(f"{model.stem} {precision} {arch} {kind}: {difference(kind, a, b)}")
    return n, lines


def main():
    p = argparse.ArgumentParser(prog="replay.sh", usage="sh tests/replay.sh BASE [options] [MODEL.net...]")
    p.add_argument("base"), p.add_argument("now"), p.add_argument("kept", type=pathlib.Path)
    p.add_argument("model", nargs="*", type=pathlib.Path)
    p.add_argument("--models", help="names without .net, separated by commas")
    p.add_argument("--precisions", default=",".join(PRECISIONS)), p.add_argument("--archs")
    p.add_argument("--ir", action="store_true", help="only the IR"), p.add_argument("-j", type=int, default=2)
    options = p.parse_args()
    models = options.model or (sorted(pathlib.Path("models").glob("*.net"))
                               + sorted(pathlib.Path("tests/bench").glob("*.net")))
    if options.models:
        models = [m for m in models if m.stem in options.models.split(",")]
    archs = [(t, a) for t, names in ARCHS.items() for a in names if not options.archs or a in options.archs.split(",")]
    if not models or not archs:
        p.error("nothing to compare: no such model or architecture")
    jobs = [(m, precision, t, a) for m in models for precision in options.precisions.split(",") for t, a in archs]
    same = different = 0
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        for n, lines in pool.map(lambda job: compare(options, options.kept, options.base, options.now, *job), jobs):
            same += n - len(lines)
            different += len(lines)
            for line in lines:
                print(line, flush=True)
    print("identical" if not different else f"{different} of {same + different} texts differ",
          f"({same + different} texts)" if not different else "")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
