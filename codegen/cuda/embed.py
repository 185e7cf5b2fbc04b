"""embed.py NAME SOURCE OUTPUT: a C file with the text of a CUDA source as the array NAME.

Left out: the opening comment, up to the first empty line, and lines that begin with //, which are for those who read
the source; the text goes into every module."""
import sys

name, source, output = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    text = f.read().split("\n\n", 1)[1]
lines = [line for line in text.splitlines(True) if not line.startswith("//")]
data = "".join(lines).encode()
with open(output, "w", encoding="utf-8") as f:
    f.write("extern const char %s[];\nconst char %s[] = {\n" % (name, name))
    for i in range(0, len(data), 24):
        f.write("\t" + ", ".join("%d" % b for b in data[i:i + 24]) + ",\n")
    f.write("\t0};\n")
