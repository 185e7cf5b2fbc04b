"""kill.py PROGRAM DATA [KILLS [SEED]]: a training run that is killed at random moments goes on to the same bits as one
that is not.

Each life of the run is ended by SIGKILL after a random time and the next resumes from whatever checkpoint lies there. A
run that ends before enough kills is compared and begun again. Prints what it met; exit status 1 and the last line say
what was wrong."""
import os, random, subprocess, sys, tempfile, time

program, data = sys.argv[1:3]
kills, seed = (int(x) for x in (sys.argv[3:5] + ["20", "1"][len(sys.argv) - 3:]))
draw = random.Random(seed)


def read(folder):
    with open(os.path.join(folder, "run.st"), "rb") as f:
        return f.read()


def start(folder, *more):
    save = os.path.join(folder, "run.st")
    resume = ["--resume", save] if os.path.exists(save) else []
    args = [program, "train", "--data", data, "--steps", "150", "--every", "4", "--no-eval", "--quiet", "--save",
            save] + resume
    return subprocess.Popen(args, stderr=subprocess.PIPE)


def ended(p, what):
    message = p.communicate(timeout=120)[1].decode()
    if p.returncode:
        sys.exit("%s: exit status %d: %s" % (what, p.returncode, message))


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
    begin = time.monotonic()
    ended(start(whole), "the unbroken run")
    longest = (time.monotonic() - begin) / 4
    done = compared = saving = early = 0
    while done < kills or not compared:
        p = start(broken)
        try:
            if done == kills:
                ended(p, "the last life")
            p.wait(draw.uniform(0, longest))
            ended(p, "a life that was let end")
            if read(whole) != read(broken):
                sys.exit("after %d kills: the bits differ (seed %d)" % (done, seed))
            compared += 1
            if done < kills:
                for name in os.listdir(broken):
                    os.unlink(os.path.join(broken, name))
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            done += 1
            saving += any(name.startswith("run.st.tmp-") for name in os.listdir(broken))
            early += not os.path.exists(os.path.join(broken, "run.st"))
    print("%d kills, %d of them while a checkpoint was written, %d before the first; %d runs to the end, the same bits"
          % (done, saving, early, compared))
