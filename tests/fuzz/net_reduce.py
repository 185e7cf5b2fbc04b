"""net_reduce.py: a smaller model with the same difference: greedy, one change at a time, kept where the same check
of the same setting still fails.

Changes, largest first: results and their statements go, a statement's value is taken from an input or an earlier
value of its shape, settings and options go, batches shrink."""
import copy, re, time
from net_model import INTS, Follow, Input, N, Stmt

LIMIT = 120        # seconds


def replace(m, stmt, make):
    """Statement number STMT goes; make(copy, its value) gives what stands in its place."""
    c = copy.deepcopy(m)
    body, s = next((b, s) for b in [k.body for k in c.blocks] + [c.body] for s in b
                   if s.outs and s.outs[0].name == stmt.outs[0].name)
    value = make(c, body, s)
    if value is None:
        return None
    body.remove(s)
    for x in c.statements():
        x.ins = [value if v.name == s.outs[0].name else v for v in x.ins]
    for b in c.blocks:
        if b.result.name == s.outs[0].name:
            b.result = value
    return c


def like(v, w):
    return v.dims == w.dims and v.dtype == w.dtype and (v.grid is None) == (w.grid is None)


def earlier(c, body, s):
    """A value of the same type and shape: the statement's own input rather, else any before it."""
    inside = next((b.param for b in c.blocks if b.body is body), None)
    before = [v for x in body[:body.index(s)] for v in x.outs]
    for v in s.ins + ([inside] if inside else list(c.inputs)) + before[::-1]:
        if like(v, s.outs[0]):
            return v
    return None


def fresh(c, body, s):
    """A new input, where the value's examples stand first."""
    v = s.outs[0]
    if (body is not c.body or not v.dims or v.dims[0] != N or any(isinstance(d, Follow) for d in v.dims[1:])
            or len(c.inputs) >= 15):
        return None
    data = (("real", -2, 2) if v.grid is None
            else ("int" if v.dtype in INTS + ("bool",) else "grid",)
            + tuple(v.grid if v.dtype not in INTS + ("bool",) else v.grid[:2]))
    i = Input(v.name, v.dtype, v.dims, data, grid=v.grid, sep=0)
    c.inputs.append(i)
    return i


def constant(c, body, s):
    v = s.outs[0]
    if v.grid is not None or v.dtype != "f32" or not v.dims or not v.fixed() or s.text.startswith("&0 = param"):
        return None
    from net_model import shape_text
    p = Stmt("param", "&0 = param(%s, init = uniform(-1, 1)) as %s" % (shape_text(v.dims), v.name + "p"), [],
             [copy.copy(v)])
    p.outs[0].name = v.name + "p"
    body.insert(body.index(s), p)
    return p.outs[0]


def changes(m, entry):
    """(model, entry) pairs, each a step smaller."""
    for k in range(len(m.body)):
        if m.body[k].kind != "let" and (m.body[k].kind != "loss" or sum(s.kind == "loss" for s in m.body) > 1):
            c = copy.deepcopy(m)
            del c.body[k]
            yield c, entry
    for way in (fresh, earlier, constant):
        for s in reversed(m.statements()):
            if s.kind == "let" and len(s.outs) == 1:
                c = replace(m, s, way)
                if c:
                    yield c, entry
    for key in list(m.settings):
        if key not in ("optimizer", "seed"):
            c = copy.deepcopy(m)
            del c.settings[key]
            yield c, entry
    if m.settings.get("optimizer") != "sgd(0.05)":
        c = copy.deepcopy(m)
        c.settings["optimizer"] = "sgd(0.05)"
        yield c, entry
    for key, value in (("train_examples", m.batch), ("test_examples", m.test_examples - m.batch), ("test_examples", 1),
                       ("shuffle", False)):
        if getattr(m, key) != value and (value is False or value > 0):
            c = copy.deepcopy(m)
            setattr(c, key, value)
            yield c, entry
    for s in m.statements():                     # one part of a longer expression
        plain = re.fullmatch(r"(&0 = )@0 \|> .*\|> (\w+)", s.text)
        if plain:
            c = copy.deepcopy(m)
            twin = next(x for x in c.statements() if x.outs and x.outs[0].name == s.outs[0].name)
            twin.text = "&0 = %s(@0)" % plain[2]
            yield c, entry
    args = entry["args"]
    for k in range(len(args)):
        if args[k].startswith("-") and len(args) > 2:
            cut = 1 if args[k].startswith("-O") else 2
            yield m, dict(entry, args=args[:k] + args[k + cut:])


def reduce(m, entry, fails, limit=LIMIT):
    """fails(model, entry) says whether the difference is still there. Returns the smallest that was found and how many
    were tried."""
    end, tried, again = time.time() + limit, 0, True
    while again and time.time() < end:
        again = False
        for c, e in changes(m, entry):
            if time.time() > end:
                break
            c = copy.deepcopy(c).trim()
            tried += 1
            if fails(c, e):
                m, entry, again = c, e, True
                break
    return m, entry, tried
