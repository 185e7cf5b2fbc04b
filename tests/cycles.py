"""cycles.py BUILD: how the files of codegen/ use each other, by the symbols of their objects.

A line for each cycle of more than MOST files, each file with those of the cycle that it names a symbol of; and for each
use of a folder by one that lies below it. The order of the folders stands here and, drawn, in codegen/README.md: each
target's folders from above to below, which is held too."""
import collections, glob, os, subprocess, sys

MOST = 3
# Every folder sees those behind it in its row, and the files beside these; contract and kernels of cuda see each other.
ABOVE = {"cpu": ("composite", "contract", "micro", "loop", "emit"), "cuda": ("composite", "contract kernels", "emit")}


def objects(build):
    """file -> (symbols it defines, symbols it needs), files as paths below codegen/ without their ending."""
    have = [os.path.relpath(f, "codegen")[:-2] for f in glob.glob("codegen/**/*.c", recursive=True)]
    for name in have:
        path = os.path.join(build, "codegen", "libcodegen.a.p", name.replace("/", "_") + ".c.o")
        if os.path.exists(path):
            lines = [l.split()[-2:] for l in subprocess.run(["nm", path], capture_output=True, text=True,
                                                            check=True).stdout.splitlines()]
            yield name, {s for kind, s in lines if kind in "TDRBC"}, {s for kind, s in lines if kind == "U"}


def cycles(uses):
    """Sets of files each of which reaches the others."""
    reach = {}
    for f in uses:
        seen, todo = set(), [f]
        while todo:
            for x in uses[todo.pop()] - seen:
                seen.add(x)
                todo.append(x)
        reach[f] = seen
    done = set()
    for f in sorted(uses):
        ring = {x for x in reach[f] if f in reach[x]} | {f}
        if f not in done and len(ring) > 1:
            done |= ring
            yield ring


def rank(name):
    """Of a file in a folder of a target: (target, how far down); else None."""
    at = name.split("/")
    for depth, row in enumerate(ABOVE.get(at[0], ())):
        if len(at) == 3 and at[1] in row.split():
            return at[0], depth
    return None


def drawing():
    """What is wrong with the drawing: where in it a target's folders stand."""
    with open("codegen/README.md") as f:
        text = f.read().split("```")[1]
    for target, rows in ABOVE.items():
        have = {d for d in os.listdir("codegen/" + target) if os.path.isdir("codegen/%s/%s" % (target, d))}
        named = {d for row in rows for d in row.split()} | {"forecast"} & have
        for d in sorted(have - named):
            yield "codegen/%s/%s has no place in the order" % (target, d)
        for d in sorted(have):
            if d + "/" not in text:
                yield "the drawing in codegen/README.md has no %s/" % d
        lines = [min([i for i, l in enumerate(text.split("\n")) for d in row.split() if d + "/" in l], default=0)
                 for row in rows]
        if lines != sorted(lines):
            yield "the drawing in codegen/README.md has the folders of %s in another order" % target


def main():
    files = list(objects(sys.argv[1]))
    if not files:
        sys.exit("no objects of codegen in " + sys.argv[1])
    owner = {s: name for name, defines, _ in files for s in defines}
    uses = {name: {owner[s] for s in needs if s in owner} - {name} for name, _, needs in files}
    for line in drawing():
        print(line)
    for ring in cycles(uses):
        if len(ring) > MOST:
            print("a cycle of %d files, at most %d: %s" % (len(ring), MOST,
                                                           "; ".join("%s uses %s"
                                                                     % (f, " ".join(sorted(uses[f] & ring)))
                                                                     for f in sorted(ring))))
    for name, _, needs in sorted(files):
        for s in sorted(needs):
            low, high = rank(name), rank(owner.get(s, ""))
            if low and high and low[0] == high[0] and high[1] < low[1]:
                print("%s uses %s of %s, which lies above it" % (name, s, owner[s]))


main()
