"""Evaluation and inference of the models of this folder: python3 test_eval.py MANTOU [NAME...]

A file says in comments what its inputs and results are:
  # examples: 7                      rows of data; the files' batch is 4, so that the last batch is smaller
  # x = rng.normal(size=(n, 5))      an input's array, NumPy; `n` examples, `rng` the same for everybody; or a function
                                     that a truth calls
  # truth: loss = np.mean(x)         the right value of the loss, a metric or an output, on all examples at once
  # library: loss = sk.log_loss(..)  the same by scikit-learn (`sk`: sklearn.metrics), where it is installed
  # says: TEXT                       the command eval prints a line that begins so
  # near: 1e-6                       how far a result may be off, absolute and relative; 1e-5 where nothing is said
  # refused: eval: TEXT              the command (build, eval or infer) fails, and its message holds TEXT, in which ...
                                     stands for anything
  # blocks: FILE TAG                 the compiled file has the blocks of a document that are fenced as TAG in place of
                                     this line; every metric then needs a truth
Every model is built by the interpreter, and for the CPU in a few settings. All give the same loss, metrics and
outputs, and those of the truth.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

try:
    from sklearn import metrics as sk
except ImportError:
    sk = None
FORMS = [("ref", ["--target", "ref"]), ("cpu", []), ("nokeep", ["--disable", "prepack"]), ("O0", ["-O", "0"]),
         ("v3", ["--arch", "x86-64-v3"])]
NEAR = 1e-5


class Failed(Exception):
    pass


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)


def with_blocks(net):
    """The file's text, with the blocks of documents that it asks for."""
    def blocks(line):
        file, tag = line[1].split(" ", 1)
        found = re.findall(rf"^```{re.escape(tag)}\n(.*?)^```", (net.parent / file).read_text(), re.M | re.S)
        if not found:
            raise Failed(f"{file} has no block ```{tag}")
        return "".join(found)
    return re.sub(r"^ *# blocks: (.*)\n", blocks, net.read_text(), flags=re.M)


class Case:
    def __init__(self, net, mantou, folder):
        self.net, self.mantou, self.folder = folder / net.name, mantou, folder
        self.examples, self.given, self.truths, self.refused, self.library, self.near = 7, [], {}, {}, {}, NEAR
        self.says = []
        self.net.write_text(with_blocks(net))
        self.complete = "# blocks: " in net.read_text()
        for line in self.net.read_text().splitlines():
            if not line.startswith("# ") or ("=" not in line and ":" not in line):
                continue
            key, _, rest = line[2:].partition(":")
            if key == "says":
                self.says.append(rest[1:])
            elif key == "examples":
                self.examples = int(rest)
            elif key == "near":
                self.near = float(rest)
            elif key in ("truth", "library"):
                name, _, text = rest.partition("=")
                (self.truths if key == "truth" else self.library)[name.strip()] = text.strip()
            elif key == "refused":
                command, _, text = rest.partition(":")
                self.refused[command.strip()] = text.strip()
            elif line[2:].partition("=")[0].strip().isidentifier():
                name, _, text = line[2:].partition("=")
                self.given.append((name.strip(), text.strip()))

    def make_data(self):
        rng = np.random.default_rng(5)
        self.inputs = []
        self.names = {"np": np, "n": self.examples, "rng": rng}
        for name, text in self.given:
            value = eval(text, self.names)
            self.names[name] = value if callable(value) else np.asarray(value)
            if callable(value):
                continue
            self.inputs.append(name)
            if self.names[name].dtype == np.float64:
                self.names[name] = self.names[name].astype(np.float32)
            np.save(self.folder / f"{name}.npy", self.names[name])
            if self.names[name].dtype == np.float32:
                self.names[name] = self.names[name].astype(np.float64)

    def expect(self, command, done, what):
        """True if the command succeeded; a refusal must be the one that the file announces."""
        text = self.refused.get(command)
        if text is None and done.returncode:
            raise Failed(f"{what}: {(done.stderr or done.stdout).strip()[:300]}")
        if text is not None and (done.returncode != 1
                                 or any(part not in done.stderr + done.stdout for part in text.split("..."))):
            raise Failed(f"{what}: exit {done.returncode}, and no `{text}` in: "
                         f"{(done.stderr + done.stdout).strip()[:300]}")
        return text is None

    def results(self, form, options):
        """Loss, metrics and outputs of one form of the program, by name; {} where it was refused."""
        program, at = self.folder / form, self.folder
        if not self.expect("build", run(self.mantou, "build", self.net, "-o", program, *options), f"build {form}"):
            return {}
        info = run(program, "info", "--json")
        if info.returncode and "--arch" in options and "CPU" in info.stderr:
            return None                           # it does not have the architecture
        if info.returncode:
            raise Failed(f"info {form}: exit {info.returncode}: {info.stderr.strip()[:300]}")
        info = json.loads(info.stdout)
        weights = at / "initial.safetensors"
        if not weights.exists():
            done = run(program, "train", "--synthetic", "--steps", "0", "--no-eval", "--save", weights)
            if done.returncode:
                raise Failed(f"train {form}: {done.stderr.strip()[:300]}")
        found = {}
        if "loss" in self.net.read_text():
            done = run(program, "eval", "--data", at, "--weights", weights, "--json")
            if self.expect("eval", done, f"eval {form}"):
                told = json.loads(done.stdout)
                if told["examples"] != self.examples:
                    raise Failed(f"eval {form}: {told['examples']} examples, not {self.examples}")
                found |= {name: np.array(value, float)
                          for name, value in {"loss": told.get("loss", np.nan), **told["metrics"]}.items()}
        if self.says:
            lines = run(program, "eval", "--data", at, "--weights", weights).stdout.splitlines()
            for text in self.says:
                if not any(line.startswith(text) for line in lines):
                    raise Failed(f"eval {form} does not say `{text}` but: {lines}")
        if info["outputs"]:
            given = [f"--input={name}={at / name}.npy" for name in self.inputs]
            asked = [f"--output={o['name']}={at / o['name']}.{form}.npy" for o in info["outputs"]]
            if self.expect("infer", run(program, "infer", "--weights", weights, *given, *asked), f"infer {form}"):
                found |= {o["name"]: np.load(at / f"{o['name']}.{form}.npy") for o in info["outputs"]}
        return found

    def check(self):
        self.make_data()
        truth = {name: np.asarray(eval(text, self.names)) for name, text in self.truths.items()}
        for name, text in self.library.items() if sk else ():
            value = eval(text, {**self.names, "sk": sk})
            if not np.allclose(truth[name], value, rtol=1e-9, atol=1e-9):
                raise Failed(f"{name} is {truth[name]}, by scikit-learn {value}")
        for form, options in FORMS:
            found = self.results(form, options)
            if found is None:
                continue
            for name in truth:
                if name not in found:
                    raise Failed(f"{form}: no {name}, only {', '.join(found) or 'nothing'}")
            for name, value in found.items():
                if self.complete and name not in self.truths:
                    raise Failed(f"{name} has no truth")
                want = truth.setdefault(name, value)      # without a truth the interpreter's, which comes first
                if value.shape != want.shape:
                    raise Failed(f"{form}: {name} has the shape {value.shape}, not {want.shape}")
                if not np.allclose(value, want, rtol=self.near, atol=self.near, equal_nan=True):
                    raise Failed(f"{form}: {name} is {value.ravel()[:8]}, not {want.ravel()[:8]}")


def main(mantou, names):
    here, failed, passed, skipped = pathlib.Path(__file__).parent, 0, 0, 0
    for net in sorted(here.glob("*.net")):
        if names and net.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = Case(net, mantou, pathlib.Path(folder))
                case.check()
                passed += 1
                if case.library and not sk:
                    skipped += 1
                    print(f"skip {len(case.library)} metrics of {net.stem} beside scikit-learn: it is not installed")
            except Failed as why:
                failed += 1
                print(f"FAIL {net.stem}: {why}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
