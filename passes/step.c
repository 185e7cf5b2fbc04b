/* step.c: makes graphs `begin`, `step`, `hop`, `share`: how a model with a section generate writes a token at a time.
 *
 * In: graph infer, typed; generate.token [N, T] and generate.logits [N, T, V].   Out: `begin` computes what does not
 * depend on the token (an encoder) and the carried states' first values; `step` reads the token at place `step` alone
 * and gives logits [N, 1, V]; `hop` gives each row the moving states of another row, whose number stands at the row's
 * place 0, and `share` what begin has left for that one. States of kind carry hold keys, values, h, c and running sums
 * between calls. The axis T is followed from the token on, op by op: ops that see one place at a time are made again
 * with T = 1, operands with an extent T of their own are cut at the place, ops that carry something along T get a state
 * (Shazeer 2019, arXiv:1911.02150, on the cost of such decoding).
 * Declines, in a verdict and in setting generate.whole: an op that mixes places in another way. Then, and where T is
 * merged with another axis, whole windows are evaluated for each token. Setting generate.places says that something
 * depends on the place, so that nothing may be written beyond T. */
#include "passes.h"
#include <string.h>

enum { FREE = -1 };              /* does not depend on the token */
typedef struct Cut {
	Module *m;
	const Graph *g;          /* infer */
	Graph *begin;
	Arena *a;
	Build b;                 /* of graph step */
	int64_t places;          /* T */
	int *axis;               /* by value: which axis is T; FREE */
	bool *fed;               /* by value: depends on an input */
	Val *to;                 /* by value: what stands for it in graph step; NOVAL */
	Val at;                  /* the place, i64[1] */
	const char **kept;       /* by value: the state that holds it from begin on */
	bool placed;             /* the place counts */
	int states;
	VEC(const char *) moving, left; /* states that steps write; that begin alone does */
	const Op *bad; const char *why;
} Cut;

static bool
refuse(Cut *c, const Op *op, const char *why)
{
	if (!c->bad) {
		c->bad = op;
		c->why = why;
	}
	return false;
}

static const Type *
typ(const Cut *c, Val v)
{
	return val_type(c->g, v);
}

static int
axis_of(const Cut *c, const Op *op, int k)
{
	return c->axis[op->in[k].id];
}

/* ---------------------------------------------------------------- where T goes */
/* Operands that broadcast against each other: the axis of a result of this rank. FREE after a refusal. */
static int
aligned(Cut *c, const Op *op, int first, int last, int rank)
{
	int found = FREE;

	for (int k = first; k < last; k++) {
		int ax = axis_of(c, op, k), to = ax + rank - typ(c, op->in[k])->rank;

		if (ax == FREE)
			continue;
		if (found != FREE && found != to) {
			refuse(c, op, "reads each place with every other");
			return FREE;
		}
		found = to;
	}
	return found;
}

static int64_t
extent_product(const Type *t, int from, int to, int64_t *marks)
{
	int64_t n = 1;

	for (int i = from; i < to; i++) {
		n *= t->axis[i].n;
		*marks += t->axis[i].mul != 0;
	}
	return n;
}

static int
through_reshape(Cut *c, const Op *op)
{
	const Type *x = typ(c, op->in[0]), *y = typ(c, op->out[0]);
	int ax = axis_of(c, op, 0);
	int64_t marks = 0, before = extent_product(x, 0, ax, &marks);

	for (int i = 0; i < y->rank; i++) {
		int64_t m = 0;

		if (extent_product(y, 0, i, &m) == before && m == marks && y->axis[i].n == c->places && !y->axis[i].mul)
			return i;
	}
	refuse(c, op, "merges the places with another axis");
	return FREE;
}

static int
through_matmul(Cut *c, const Op *op)
{
	int rank = typ(c, op->out[0])->rank, found = FREE;

	for (int k = 0; k < 2; k++) {
		int ax = axis_of(c, op, k), r = typ(c, op->in[k])->rank, to;
		bool swapped = attr_bool(op, k ? A_tb : A_ta);
		int outer = (k == 0) != swapped ? r - 2 : r - 1; /* the axis that the result has */

		if (ax == FREE)
			continue;
		if (ax >= r - 2 && ax != outer) {
			refuse(c, op, "adds up over the places");
			return FREE;
		}
		to = ax == outer ? rank - 2 + k : ax + rank - r;
		if (found != FREE && found != to) {
			refuse(c, op, "reads each place with every other");
			return FREE;
		}
		found = to;
	}
	return found;
}

static int
through_take(Cut *c, const Op *op)
{
	int x = axis_of(c, op, 0), ids = axis_of(c, op, 1), ax = (int)attr_int(op, A_axis);
	int rank = typ(c, op->in[1])->rank;

	if (x != FREE && (ids != FREE || x == ax)) {
		refuse(c, op, "picks places");
		return FREE;
	}
	return ids != FREE ? ax + ids : x < ax ? x : x - 1 + rank;
}

static int
through_reduce(Cut *c, const Op *op)
{
	int ax = axis_of(c, op, 0), n, to = ax;
	const int64_t *axes = attr_ints(op, A_axes, &n);

	for (int i = 0; i < n; i++) {
		if (axes[i] == ax) {
			refuse(c, op, "reduces over the places");
			return FREE;
		}
		to -= !attr_bool(op, A_keep) && axes[i] < ax;
	}
	return to;
}

/* (q, k, v [, mask]): all of them at each place, causal; or the rows of q alone. */
static int
through_attention(Cut *c, const Op *op)
{
	const Type *y = typ(c, op->out[0]);
	int rows = y->rank - 2, q = axis_of(c, op, 0), k = axis_of(c, op, 1), v = axis_of(c, op, 2);
	bool causal = attr_bool(op, A_causal), has_mask = attr_bool(op, A_has_mask);
	int mask = has_mask ? axis_of(c, op, 3) : FREE, found = FREE;

	if (attr_num(op, A_p) > 0)
		refuse(c, op, "draws at random");
	else if (mask != FREE && mask != typ(c, op->in[3])->rank - 2)
		refuse(c, op, "has a mask that depends on the token at every key");
	else if (q != typ(c, op->in[0])->rank - 2 && (q != FREE || mask == FREE))
		refuse(c, op, "reads each place with every other");
	else if (k == FREE && v == FREE && !causal)
		found = rows;
	else if (causal && k == typ(c, op->in[1])->rank - 2 && v == typ(c, op->in[2])->rank - 2 && q != FREE)
		found = rows;
	else
		refuse(c, op, causal ? "reads each place with every other" : "is not causal");
	return found;
}

static int
through_recurrence(Cut *c, const Op *op)
{
	for (int k = 1; k < op->nin; k++)
		if (axis_of(c, op, k) != FREE)
			refuse(c, op, "begins from what depends on the token");
	if (axis_of(c, op, 0) != 1)
		refuse(c, op, "runs along another axis than the places");
	if (attr_bool(op, A_reverse))
		refuse(c, op, "runs from the last place to the first");
	if (attr_bool(op, A_has_length))
		refuse(c, op, "ends at a length of its own");
	return c->bad ? FREE : 1;
}

static int
along(Cut *c, const Op *op)
{
	if (attr_int(op, A_axis) == axis_of(c, op, 0) && !(op->kind == OP_cumsum && !attr_bool(op, A_reverse))) {
		refuse(c, op, "reads other places");
		return FREE;
	}
	return axis_of(c, op, 0);
}

/* The axis of op's results that is T; operators say so by traits where they can. */
static int
through(Cut *c, const Op *op)
{
	int rank = op->nout ? typ(c, op->out[0])->rank : 0;

	switch (op->kind) {
	case OP_check: return FREE;
	case OP_reshape: return through_reshape(c, op);
	case OP_transpose: {
		const int64_t *perm = attr_ints(op, A_perm, NULL);
		int i = 0;

		while (perm[i] != axis_of(c, op, 0))
			i++;
		return i;
	}
	case OP_expand: return aligned(c, op, 0, 1, rank);
	case OP_matmul: return through_matmul(c, op);
	case OP_take: return through_take(c, op);
	case OP_concat:
	case OP_gather: {
		int ax = aligned(c, op, 0, op->nin, rank);

		if (ax == attr_int(op, A_axis))
			refuse(c, op, "moves places");
		return ax;
	}
	case OP_slice: case OP_reverse: case OP_pad: case OP_cumsum: case OP_order: return along(c, op);
	case OP_attention: return through_attention(c, op);
	case OP_lstm: case OP_gru: return through_recurrence(c, op);
	default: break;
	}
	if (op_has(op->kind, T_POINTWISE) || op->kind == OP_stop_gradient)
		return aligned(c, op, 0, op->nin, rank);
	if (op_has(op->kind, T_REDUCE))
		return through_reduce(c, op);
	refuse(c, op, "has no rule for one place at a time");
	return FREE;
}

/* Of lstm's and gru's last results, which are of no place: MAX_RANK. */
static int
result_axis(const Cut *c, const Op *op, int k, int ax)
{
	if ((op->kind == OP_lstm && k > 1) || (op->kind == OP_gru && k))
		return MAX_RANK;
	return op->kind == OP_attention && k ? typ(c, op->out[k])->rank - 1 : ax;
}

/* False where some op mixes places. */
static bool
follow(Cut *c, Val token)
{
	const Graph *g = c->g;

	for (uint32_t v = 0; v < g->val.n; v++)
		c->axis[v] = FREE;
	for (uint32_t i = 0; i < g->input.n; i++)
		c->fed[g->input.at[i].v.id] = true;
	c->axis[token.id] = 1;
	for (uint32_t i = 0; i < g->op.n && !c->bad; i++) {
		const Op *op = &g->op.at[i];
		bool reads = false, fed = false;
		int ax;

		for (int k = 0; k < op->nin; k++) {
			reads |= axis_of(c, op, k) != FREE;
			fed |= c->fed[op->in[k].id];
		}
		for (int k = 0; k < op->nout; k++)
			c->fed[op->out[k].id] = fed;
		for (int k = 0; k < op->nin && !c->bad; k++)
			if (axis_of(c, op, k) == MAX_RANK)
				refuse(c, op, "reads the state behind the last place");
		if (!reads || c->bad)
			continue;
		ax = through(c, op);
		for (int k = 0; k < op->nout; k++)
			c->axis[op->out[k].id] = result_axis(c, op, k, ax);
	}
	return !c->bad;
}

/* ---------------------------------------------------------------- building */
static Type
at_one(const Type *t, int ax)
{
	Type r = type_of((DType)t->dtype, t->rank, t->axis);

	if (ax >= 0 && ax < t->rank)
		r.axis[ax] = axis(1);
	return r;
}

static const char *
new_state(Cut *c, const char *what, const Type *t, bool moves)
{
	const char *name = arena_printf(c->m->arena, "generate.%s%d", what, c->states++);
	State *s = module_add_state(c->m, name, at_one(t, FREE), ST_CARRY);

	s->init = INIT_CONSTANT;
	if (moves)
		vec_push(c->a, &c->moving, name);
	else
		vec_push(c->a, &c->left, name);
	return name;
}

static void
put_store(Graph *g, const Build *like, Val v, const char *state)
{
	Build b = {.g = g, .loc = like->loc, .path = like->path};

	build_op(&b, OP_store, &v, 1, ATTRS(AS(state, state)), NULL);
	if (b.error)
		bug("graph %s: store of %s: %s", g->name, state, b.error);
}

/* An op of infer again, of other operands; T is 1 in its results. */
static const Val *
again(Cut *c, const Op *op, const Val *in)
{
	Type *types = arena_array(c->a, Type, op->nout + 1);

	for (int k = 0; k < op->nout; k++) {
		types[k] = at_one(typ(c, op->out[k]), c->axis[op->out[k].id]);
		if (op->kind != OP_reshape && op->kind != OP_expand && op->kind != OP_cast &&
		    !op_has(op->kind, T_CONST | T_RANDOM))
			types[k] = (Type){0};
	}
	return build_again(&c->b, op, in, types);
}

/* In graph step: a value that does not depend on the token. What no input goes into is computed there, once; views
 * cost nothing; all else begin has left in a state. */
static Val
fixed(Cut *c, Val v)
{
	const Op *op = val_op(c->g, v);
	Loc loc = c->b.loc;
	const char *path = c->b.path;

	if (c->to[v.id].id)
		return c->to[v.id];
	if (op)
		c->b.loc = op->loc, c->b.path = op->path;
	if (op && (!c->fed[v.id] || (op_has(op->kind, T_VIEW) && op->nin == 1))) {
		Val *in = arena_array(c->a, Val, op->nin + 1);
		const Val *out;

		for (int k = 0; k < op->nin; k++)
			in[k] = fixed(c, op->in[k]);
		c->b.loc = op->loc, c->b.path = op->path;
		out = again(c, op, in);
		for (int k = 0; k < op->nout; k++)
			c->to[op->out[k].id] = out[k];
	} else {
		const char *name = new_state(c, "kept", typ(c, v), false);

		put_store(c->begin, &c->b, v, name);
		c->to[v.id] = build_load(&c->b, name);
	}
	c->b.loc = loc;
	c->b.path = path;
	return c->to[v.id];
}

/* The same, cut at the place along an axis of extent T. */
static Val
cut(Cut *c, Val v, int ax)
{
	const Type *t = typ(c, v);

	if (ax < 0 || ax >= t->rank || t->axis[ax].n != c->places || t->axis[ax].mul || c->places == 1)
		return fixed(c, v);
	c->placed = true;
	return build_op(&c->b, OP_take, VALS(fixed(c, v), c->at), ATTRS(AI(axis, ax)), NULL);
}

/* Operand k as graph step has it: ax is the axis of the result that is T, rank the result's; -1: it is never cut. */
static Val
operand(Cut *c, const Op *op, int k, int ax, int rank)
{
	Val v = op->in[k];

	if (c->axis[v.id] != FREE)
		return c->to[v.id];
	return rank < 0 ? fixed(c, v) : cut(c, v, ax - rank + typ(c, v)->rank);
}

/* A carried state's first value is `from` of graph infer; NOVAL: zeros. */
static const char *
carry(Cut *c, const char *what, const Type *t, Val from)
{
	const char *name = new_state(c, what, t, true);

	if (!from.id) {
		Build b = {.g = c->begin, .loc = c->b.loc, .path = c->b.path};

		from = build_full(&b, at_one(t, FREE), 0);
	}
	put_store(c->begin, &c->b, from, name);
	return name;
}

/* Keys or values of all places so far: a state, to which this place's row is added where zeros stood. */
static Val
cached(Cut *c, const Op *op, int k)
{
	const Type *t = typ(c, op->in[k]);
	const char *name = carry(c, k == 1 ? "keys" : "values", t, NOVAL);
	Val old = build_load(&c->b, name), v;

	v = build_op(&c->b, OP_take_add, VALS(old, c->to[op->in[k].id], c->at), ATTRS(AI(axis, t->rank - 2)), NULL);
	put_store(c->b.g, &c->b, v, name);
	return v;
}

/* bool [T]: places up to this one; with the model's own mask, if it has one. */
static Val
mask_so_far(Cut *c, const Op *op, int rank)
{
	Build *b = &c->b;
	Type t = type_of(DT_i64, 1, (Axis[]){axis(c->places)});
	Val live = build(b, OP_le, build_op(b, OP_iota, NULL, 0, NULL, &t), c->at), own;

	if (!attr_bool(op, A_has_mask))
		return live;
	own = operand(c, op, 3, rank - 2, rank);
	if (val_type(b->g, own)->dtype == DT_bool)
		return build(b, OP_and, live, own);
	return build(b, OP_where, live, own, build_const(b, (DType)val_type(b->g, own)->dtype, -INFINITY));
}

static void
put_attention(Cut *c, const Op *op)
{
	int rank = typ(c, op->out[0])->rank;
	Val in[4] = {c->to[op->in[0].id], NOVAL, NOVAL, NOVAL};
	bool causal = attr_bool(op, A_causal);

	in[0] = operand(c, op, 0, rank - 2, rank);
	for (int k = 1; k < 3; k++)
		in[k] = causal ? cached(c, op, k) : operand(c, op, k, FREE, -1);
	if (causal)
		in[3] = mask_so_far(c, op, rank);
	else if (attr_bool(op, A_has_mask))
		in[3] = operand(c, op, 3, rank - 2, rank);
	c->placed |= causal;
	build_op(&c->b, OP_attention, in, in[3].id ? 4 : 3,
	         ATTRS(AF(scale, attr_num(op, A_scale)), AB(has_mask, in[3].id != 0)), NULL);
}

static void
put_recurrence(Cut *c, const Op *op)
{
	bool lstm = op->kind == OP_lstm;
	Val in[7];
	const char *h, *s = NULL;
	const Op *made;

	for (int k = 0; k < 5; k++)
		in[k] = operand(c, op, k, FREE, -1);
	h = carry(c, "h", typ(c, op->in[5]), op->in[5]);
	in[5] = build_load(&c->b, h);
	if (lstm) {
		s = carry(c, "c", typ(c, op->in[6]), op->in[6]);
		in[6] = build_load(&c->b, s);
	}
	again(c, op, in);
	if (c->b.error)
		return;
	made = build_last(&c->b);
	Val h1 = made->out[lstm ? 2 : 1], c1 = lstm ? made->out[3] : NOVAL;

	for (int k = 0; k < op->nout; k++)
		c->to[op->out[k].id] = made->out[k];
	put_store(c->b.g, &c->b, h1, h);
	if (lstm)
		put_store(c->b.g, &c->b, c1, s);
}

static void
put_cumsum(Cut *c, const Op *op)
{
	Type t = at_one(typ(c, op->in[0]), axis_of(c, op, 0));
	const char *name = carry(c, "sum", &t, NOVAL);
	Val sum = build(&c->b, OP_add, build_load(&c->b, name), c->to[op->in[0].id]);

	put_store(c->b.g, &c->b, sum, name);
	c->to[op->out[0].id] = sum;
}

/* An op that depends on the token. */
static void
put_op(Cut *c, const Op *op)
{
	int rank = op->nout ? typ(c, op->out[0])->rank : 0, ax = op->nout ? c->axis[op->out[0].id] : FREE;
	bool broadcasts = op_has(op->kind, T_POINTWISE) || op->kind == OP_concat || op->kind == OP_gather;
	Val *in = arena_array(c->a, Val, op->nin + 1);
	const Val *out;

	c->b.loc = op->loc;
	c->b.path = op->path;
	if (op->kind == OP_lstm || op->kind == OP_gru) {
		put_recurrence(c, op);
		return;
	}
	if (op->kind == OP_cumsum && attr_int(op, A_axis) == axis_of(c, op, 0)) {
		put_cumsum(c, op);
		return;
	}
	if (op->kind == OP_attention) {
		put_attention(c, op);
		out = build_last(&c->b)->out;
	} else {
		/* batch axes of a product broadcast, its last two do not */
		for (int k = 0; k < op->nin; k++)
			in[k] = operand(c, op, k, ax,
			                broadcasts || (op->kind == OP_matmul && ax < rank - 2) ? rank : -1);
		out = again(c, op, in);
	}
	for (int k = 0; k < op->nout && !c->b.error; k++)
		c->to[op->out[k].id] = out[k];
}

/* ---------------------------------------------------------------- the graphs */
static Val
input_named(const Graph *g, const char *name)
{
	for (uint32_t i = 0; i < g->input.n; i++)
		if (g->input.at[i].kind == IN_DATA && !strcmp(g->input.at[i].name, name))
			return g->input.at[i].v;
	return NOVAL;
}

/* Each row's states, of the names given, become those of the row whose number stands at its place 0. */
static void
make_moves(Cut *c, const char *graph, const char *token, Type t, const char *const *state, uint32_t n)
{
	Graph *g = module_add_graph(c->m, graph);
	Build b = {.g = g, .loc = c->b.loc, .path = ""};
	Val from = graph_add_input(g, t, token, IN_DATA);

	from = build_op(&b, OP_slice, &from, 1, ATTRS(AI(axis, 1), AI(start, 0), AI(end, 1)), NULL);
	from = build_reshape(&b, from, 1, t.axis);
	for (uint32_t i = 0; i < n; i++) {
		Val v = build_op(&b, OP_take, VALS(build_load(&b, state[i]), from), NULL, NULL);

		build_op(&b, OP_store, &v, 1, ATTRS(AS(state, state[i])), NULL);
	}
	if (b.error)
		bug("graph %s: %s", graph, b.error);
	g->multiple = 1;
	graph_stores_last(g);
	graph_place_after(c->m, g, graph_named(c->m, "step", false));
}

static void
set_bool(Module *m, const char *name, bool value)
{
	vec_push(m->arena, &m->setting, ((Setting){.kind = SET_BOOL, .name = name, .i = value}));
}

static void
tell(Cut *c, PassCtx *cx, bool fired, const char *why, const Op *op)
{
	verdict(cx, (Verdict){.pass = "step", .rule = "step.place", .graph = "infer", .a = op ? op->path : "",
	                      .opa = op ? op_info[op->kind].name : "generate", .fired = fired, .why = why,
	                      .value = NAN, .loc = op ? op->loc : (Loc){0}});
	if (!fired)
		vec_push(c->m->arena, &c->m->setting,
		         ((Setting){.kind = SET_STR, .name = "generate.whole", .s = arena_strdup(c->m->arena, why)}));
}

static const char *
why_whole(const Cut *c)
{
	const Diags *d = c->m->diags;
	Loc l = c->bad->loc;

	if (!d || !l.file || l.file >= d->source.n)
		return arena_printf(c->m->arena, "%s %s", op_info[c->bad->kind].name, c->why);
	return arena_printf(c->m->arena, "%s %s (%s:%u:%u)", op_info[c->bad->kind].name, c->why,
	                    d->source.at[l.file].name, (unsigned)l.line, (unsigned)l.col);
}

static void
make_graphs(Cut *c, PassCtx *cx, const char *token, const char *logits)
{
	Module *m = c->m;
	Graph *step;
	Val in, ids;

	c->begin = graph_copy(m, c->g, "begin");
	graph_place_after(m, c->begin, c->g);
	c->begin->result.n = 0;
	step = module_add_graph(m, "step");
	graph_place_after(m, step, c->begin);
	step->full_only = c->g->full_only;
	step->full_loc = c->g->full_loc;
	step->full_why = c->g->full_why;
	c->b = (Build){.g = step, .path = ""};
	in = input_named(c->g, token);
	ids = graph_add_input(step, *typ(c, in), token, IN_DATA);
	c->at = build_reshape(&c->b, graph_need_input(step, IN_STEP), 1, (Axis[]){axis(1)});
	c->to[in.id] = build_op(&c->b, OP_take, VALS(ids, c->at), ATTRS(AI(axis, 1)), NULL);
	for (uint32_t i = 0; i < c->g->op.n && !c->b.error; i++) {
		const Op *op = &c->g->op.at[i];
		bool reads = false;

		for (int k = 0; k < op->nin; k++)
			reads |= axis_of(c, op, k) != FREE;
		if (reads)
			put_op(c, op);
	}
	if (c->b.error)
		bug("graph step: %s", c->b.error);
	for (uint32_t i = 0; i < c->g->result.n; i++)
		if (!strcmp(c->g->result.at[i].name, logits))
			graph_add_result(step, c->to[c->g->result.at[i].v.id], logits, RES_OUTPUT);
	if (c->left.n)
		make_moves(c, "share", token, *typ(c, in), c->left.at, c->left.n);
	if (c->moving.n)
		make_moves(c, "hop", token, *typ(c, in), c->moving.at, c->moving.n);
	graph_idle_checks(c->begin, cx->scratch);
	graph_sweep(c->begin, cx->scratch);
	graph_stores_last(c->begin);
	graph_multiple(c->begin);
	graph_stores_last(step);
	graph_sweep(step, cx->scratch);
	graph_multiple(step);
}

bool
pass_step(Module *m, PassCtx *cx)
{
	const Graph *infer = graph_named(m, "infer", false);
	const Setting *token = setting(m, "generate.token"), *logits = setting(m, "generate.logits");
	Cut c = {.m = m, .g = infer, .a = cx->scratch};
	Val in, out = NOVAL;

	if (!infer || !token || !logits || graph_named(m, "step", false))
		return false;
	in = input_named(infer, token->s);
	for (uint32_t i = 0; i < infer->result.n; i++)
		if (!strcmp(infer->result.at[i].name, logits->s))
			out = infer->result.at[i].v;
	if (!in.id || !out.id || typ(&c, in)->rank != 2)
		return false;
	c.places = typ(&c, in)->axis[1].n;
	c.axis = arena_array(c.a, int, infer->val.n);
	c.fed = arena_array(c.a, bool, infer->val.n);
	c.to = arena_array(c.a, Val, infer->val.n);
	if (!follow(&c, in)) {
		tell(&c, cx, false, why_whole(&c), c.bad);
		return true;
	}
	if (c.axis[out.id] != 1) {
		tell(&c, cx, false, "the logits do not depend on the token", val_op(infer, out));
		return true;
	}
	if (!pass_may(cx, "step.place")) {
		tell(&c, cx, false, "stopped by --pass-limit", NULL);
		return true;
	}
	make_graphs(&c, cx, token->s, logits->s);
	set_bool(m, "generate.places", c.placed);
	tell(&c, cx, true, arena_printf(m->arena, "a place costs a step: %d states are carried or kept%s", c.states,
	                                c.placed ? ", and the place counts" : ""), NULL);
	return true;
}
