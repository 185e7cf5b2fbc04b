#!/usr/bin/env python3
"""MovieLens 100K's u.data to the .npy files that ncf.net reads: ncf-data.py u.data OUT_FOLDER. Needs nothing but
Python.

A rating of whatever height is a film taken. Each user's latest film is kept back for the test, with 99 films the user
never took; every other one trains, with four films not taken drawn beside it (He et al. 2017, section 4.1). The draws
are the same on every run. """
import array
import os
import random
import sys

USERS, FILMS, NEGATIVES, LISTED = 943, 1682, 4, 99


def write_npy(path, code, dtype, values):
    """A one-dimensional array in NumPy's format, version 1.0."""
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (dtype, len(values))
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        f.write(array.array(code, values).tobytes())


def read_ratings(path):
    """One list of (time, film) per user, numbers from 0."""
    taken = [[] for _ in range(USERS)]
    with open(path) as f:
        for line in f:
            part = line.split()
            if len(part) != 4 or not part[0].isdigit():
                continue  # a heading
            user, film, _, time = map(int, part)
            if not (1 <= user <= USERS and 1 <= film <= FILMS):
                sys.exit("%s: user %d or film %d is outside MovieLens 100K's ranges" % (path, user, film))
            taken[user - 1].append((time, film - 1))
    return taken


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: ncf-data.py u.data OUT_FOLDER")
    draw = random.Random(1)
    train, test = [], []
    for user, films in enumerate(read_ratings(sys.argv[1])):
        if not films:
            sys.exit("%s: user %d has no rating" % (sys.argv[1], user + 1))
        films.sort()
        mine = {film for _, film in films}
        others = [film for film in range(FILMS) if film not in mine]
        test.append((user, films[-1][1], 1))
        test += [(user, film, 0) for film in draw.sample(others, LISTED)]
        for _, film in films[:-1]:
            train.append((user, film, 1))
            train += [(user, draw.choice(others), 0) for _ in range(NEGATIVES)]
    os.makedirs(sys.argv[2], exist_ok=True)
    for part, rows in (("train", train), ("test", test)):
        for name, code, dtype, column in (("user", "i", "<i4", 0), ("film", "i", "<i4", 1), ("taken", "f", "<f4", 2)):
            write_npy(os.path.join(sys.argv[2], "%s-%s.npy" % (part, name)), code, dtype, [row[column] for row in rows])
    print("%d training rows, %d test rows in %s" % (len(train), len(test), sys.argv[2]))


if __name__ == "__main__":
    main()
