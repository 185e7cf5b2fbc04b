"""common.py: files, programs and counts of the tests in this folder. Standard library only."""
import os, re, shutil, struct, subprocess, sys, tempfile, zlib

MANTOU = os.environ.get("MANTOU") or os.path.abspath("../../build-check/mantou")
SHARED = os.path.abspath("../../../shared/data")
counts = {"passed": 0, "failed": 0, "skipped": 0}
CODES = {"f4": "f", "f8": "d", "i8": "q", "i4": "i", "u1": "B"}


class Skip(Exception):
    pass


def npy_head(kind, shape):
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (kind, "".join("%d," % s for s in shape))
    text = text.encode() + b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text


def npy(path, kind, shape, values):
    with open(path, "wb") as f:
        f.write(npy_head(kind, shape) + struct.pack("<%d%s" % (len(values), CODES[kind[1:]]), *values))


def read_npy(path):
    blob = open(path, "rb").read()
    n = struct.unpack("<H", blob[8:10])[0]
    head = eval(blob[10:10 + n])
    data, code = blob[10 + n:], CODES[head["descr"][1:]]
    return head["shape"], list(struct.unpack("<%d%s" % (len(data) // struct.calcsize(code), code), data))


def png(path, rows, channels=3, depth=8):
    """rows: lists of bytes of a line, as the file holds them."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    width = len(rows[0]) // (channels * depth // 8)
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    blob = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, color, 0, 0, 0))
    blob += chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(r) for r in rows))) + chunk(b"IEND", b"")
    if path:
        open(path, "wb").write(blob)
    return blob


def check(good, *what):
    if not good:
        raise AssertionError(" ".join(map(str, what)))


def run(args, status=0, err=None, out=None, timeout=120, **more):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout, **more)
    shown = "%s: exit %d\n%s%s" % (" ".join(map(str, args)), r.returncode, r.stdout, r.stderr)
    check(r.returncode == status, "status", status, "wanted:", shown)
    for text in [err] if isinstance(err, str) else err or []:
        check(text in r.stderr, "stderr lacks", repr(text), ":", shown)
    check(out is None or out in r.stdout, "stdout lacks", repr(out), ":", shown)
    return r


built = {}


def build(text, name="m", *options, status=0, err=None):
    """Builds a model; the program's path. The same text is built once."""
    key = (text,) + options
    if key in built and status == 0:
        shutil.copy(built[key], name)
        return "./" + name
    open(name + ".net", "w").write(text)
    run([MANTOU, "build", name + ".net", "-o", name, *options], status=status, err=err)
    if status == 0:
        keep = os.path.join(KEEP, "%d" % len(built))
        shutil.copy(name, keep)
        built[key] = keep
    return "./" + name


KEEP = tempfile.mkdtemp(prefix="mantou-data-")


def main(tests):
    only = sys.argv[1:]
    for t in tests:
        if only and not any(re.search(o, t.__name__) for o in only):
            continue
        folder = tempfile.mkdtemp(prefix="mantou-data-")
        back = os.getcwd()
        os.chdir(folder)
        try:
            t()
            counts["passed"] += 1
        except Skip as e:
            print("skip %s: %s" % (t.__name__, e))
            counts["skipped"] += 1
        except (AssertionError, subprocess.TimeoutExpired, OSError) as e:
            print("FAIL %s: %s" % (t.__name__, e))
            counts["failed"] += 1
        finally:
            os.chdir(back)
            shutil.rmtree(folder)
    shutil.rmtree(KEEP)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0
