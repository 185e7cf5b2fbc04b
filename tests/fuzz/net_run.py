"""net_run.py: builds programs of one model and runs them: what training logged and saved, what eval printed,
what infer wrote. Standard library and numpy.

Commands run in the model's folder and are kept as text, so that a difference can name them. A failure is a
crash (a signal, a bug, a status that is none of 0, 1, 2), a hang, or a refusal: status 1 or 2 and an error that says
why."""
import json, os, shlex, struct, subprocess
import numpy as np

LIMIT = 300        # seconds of any command; a busy machine takes long
DTYPE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?", "BF16": "<u2"}


class Crash(Exception):
    """The compiler or a program ended as none should."""


class Refused(Exception):
    """An error of status 1 or 2 that says why."""


def tensors(path):
    """name -> array of a safetensors file, and its metadata."""
    with open(path, "rb") as f:
        blob = f.read()
    n = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8:8 + n])
    meta = head.pop("__metadata__", {})
    return {k: np.frombuffer(blob[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]],
                             DTYPE[t["dtype"]]).reshape(t["shape"]) for k, t in head.items()}, meta


def write_tensors(path, arrays):
    head, data = {}, b""
    for name, a in arrays.items():
        raw = a.tobytes()
        head[name] = {"dtype": next(k for k, v in DTYPE.items() if np.dtype(v) == a.dtype), "shape": list(a.shape),
                      "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def log_lines(path):
    """Lines of a log without what time measures."""
    with open(path) as f:
        return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "examples_per_s")} for line in f]


class Lab:
    """A folder with a model, its data and the programs made of it."""
    def __init__(self, mantou, folder, env=None):
        self.mantou, self.folder, self.env, self.commands, self.programs = mantou, folder, env or {}, [], 0

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, *command, env=None):
        """stdout of a command that ended well."""
        more = dict(self.env, **(env or {}))
        words = [str(c) for c in command]
        self.commands.append(" ".join(["%s=%s" % kv for kv in (env or {}).items()]
                                      + ["mantou" if w == self.mantou else shlex.quote(w) for w in words]))
        try:
            r = subprocess.run(words, cwd=self.folder, env=dict(os.environ, **more), capture_output=True, text=True,
                               errors="replace", timeout=LIMIT, stdin=subprocess.DEVNULL,
                               start_new_session=True)    # Ctrl-C is for the hunt alone
        except subprocess.TimeoutExpired:
            raise Crash("%s: not done after %d s" % (self.commands[-1], LIMIT))
        said = r.stderr.strip()
        if (r.returncode not in (0, 1, 2) or "Sanitizer" in said or "runtime error:" in said
                or "simulated device:" in said or "this is a bug" in said.lower()):
            raise Crash("%s: status %d: %s" % (self.commands[-1], r.returncode, said[-1500:]))
        if r.returncode:
            if "error:" not in said and r.returncode == 1:
                raise Crash("%s: status 1 without an error: %s" % (self.commands[-1], said[-1500:]))
            raise Refused("%s: %s" % (self.commands[-1], said[:1500]))
        return r.stdout

    def build(self, name, args):
        self.programs += 1
        self.run(self.mantou, "build", "model.net", "-o", name, *args)
        return name

    def train(self, program, save, *args, data=".", env=None):
        """SAVE.st and SAVE.log."""
        if os.path.exists(self.path(save + ".log")) and "--resume" not in args:
            os.unlink(self.path(save + ".log"))
        self.run("./" + program, "train", "--data", data, "--quiet", "--save", save + ".st", "--log", save + ".log",
                 *args, env=env)

    def eval(self, program, weights, *args, data=".", env=None):
        return json.loads(self.run("./" + program, "eval", "--data", data, "--weights", weights, "--json",
                                   *args, env=env))

    def infer(self, program, weights, model, save, *args, data=".", env=None):
        """name of output -> array."""
        if not model.outputs():
            return {}
        inputs = [x for i in model.inputs
                  for x in ("--input", "%s=%s" % (i.name, os.path.join(data, i.name + ".test.npy")))]
        outputs = [x for o in model.outputs() for x in ("--output", "%s=%s.%s.npy" % (o.name, save, o.name))]
        self.run("./" + program, "infer", "--weights", weights, *inputs, *outputs, *args, env=env)
        return {o.name: np.load(self.path("%s.%s.npy" % (save, o.name))) for o in model.outputs()}

    def bits(self, save):
        with open(self.path(save + ".st"), "rb") as f:
            return f.read(), log_lines(self.path(save + ".log"))
