/* copies.c: parameters that a step reads in 16 bits stand so in memory from step to step, and whoever updates a
 * parameter writes both.
 *
 * In: fused graphs behind precision: kernels of graph train that do nothing but round a parameter.   Out: states
 * NAME.copy of kind copy, loaded in the place of what these kernels made, and stored by every kernel that stores the
 * parameter: the same bits, without a kernel that reads all parameters once more. The runtime rounds copies from their
 * parameters before the first step, and behind whatever it reads of a file; no checkpoint holds them. A step that loss
 * scaling leaves out stores a parameter as it was, and so its copy. Rule: copies.parameter, a verdict for each.
 * Declines: a parameter that is stored by anything but elementwise ops of the kernel that stores it (an update of some
 * rows; a store for itself where fuse is off), and one that is read in a second type. */
#include "passes.h"
#include <math.h>
#include <string.h>

typedef struct Copies {
	Module *m;
	PassCtx *cx;
	const char **of;         /* by state: its copy's name; NULL: it has none */
	Val *load;               /* by state: the copy, in the graph at work */
} Copies;

static bool
is_view(const Op *op)
{
	return op->group < 0 && op->nin == 1 && op->nout == 1 && op_has((OpKind)op->kind, T_VIEW);
}

/* The op whose result v is, or is a view of; NULL: an input. */
static const Op *
op_behind(const Graph *g, Val v)
{
	const Op *op = val_op(g, v);

	while (op && is_view(op))
		op = val_op(g, op->in[0]);
	return op;
}

static uint32_t
state_of(const Copies *c, const Op *op)
{
	return (uint32_t)(module_state(c->m, attr_str(op, A_state)) - c->m->state.at);
}

static uint32_t *
count_members(const Graph *g, Arena *a)
{
	uint32_t *n = arena_array(a, uint32_t, g->group.n + 1);

	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].group >= 0 && !g->op.at[i].dead)
			n[g->op.at[i].group]++;
	return n;
}

/* ---------------------------------------------------------------- which */
/* Is what the op stores computed in its kernel, element by element? */
static bool
stores_elements(const Graph *g, const Op *store)
{
	const Op *def = val_op(g, store->in[0]);

	return def && def->group >= 0 && def->group == store->group && op_has((OpKind)def->kind, T_POINTWISE);
}

/* NULL, or why not all who store state s can store a copy of it. */
static const char *
why_alone(const Copies *c, uint32_t s)
{
	for (uint32_t i = 0; i < c->m->graph.n; i++) {
		const Graph *g = c->m->graph.at[i];

		for (uint32_t k = 0; k < g->op.n && !g->is_loop; k++) {
			const Op *op = &g->op.at[k], *def = op->kind == OP_store ? val_op(g, op->in[0]) : NULL;

			if (op->kind != OP_store || state_of(c, op) != s || stores_elements(g, op))
				continue;
			return !def ? "an input is stored in its place"
			            : arena_printf(c->cx->scratch,
			                           "graph %s stores what %s makes, in no elementwise kernel",
			                           g->name, op_info[def->kind].name);
		}
	}
	return NULL;
}

/* NULL, or why what op makes, a cast of parameter s to type t, is not loaded. A result is read behind all stores. */
static const char *
why_not(const Copies *c, const Graph *g, const Op *op, uint32_t s, const Type *t)
{
	const State *copy = module_state(c->m, arena_printf(c->cx->scratch, "%s.copy", c->m->state.at[s].name));
	const char *why = copy ? NULL : why_alone(c, s);

	for (uint32_t i = 0; i < g->result.n; i++)
		if (op_behind(g, g->result.at[i].v) == op)
			return "it is a result of the graph";
	if (copy && (copy->kind != ST_COPY || copy->type.dtype != t->dtype))
		return "there is a state of that name in another type";
	if (why)
		return why;
	return pass_may(c->cx, "copies.parameter") ? NULL : "stopped by --pass-limit";
}

static const char *
new_copy(Copies *c, uint32_t s, const Type *t)
{
	const State *param = &c->m->state.at[s];
	const char *name = arena_printf(c->m->arena, "%s.copy", param->name);
	Type type = param->type;
	Loc loc = param->loc;
	State *copy = module_state(c->m, name);

	if (copy)
		return copy->name;
	type.dtype = t->dtype;
	copy = module_add_state(c->m, name, type, ST_COPY);
	copy->init = INIT_CONSTANT;
	copy->loc = loc;
	return copy->name;
}

/* By op: whether it is to be replaced by a load. False: none is. */
static bool
choose(Copies *c, const Graph *g, bool *kept)
{
	const uint32_t *members = count_members(g, c->cx->scratch);
	bool any = false;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool casts = op->kind == OP_cast && op->group >= 0 && members[op->group] == 1;
		const Op *load = casts ? op_behind(g, op->in[0]) : NULL;
		const Type *from = casts ? val_type(g, op->in[0]) : NULL, *to = casts ? val_type(g, op->out[0]) : NULL;

		if (!load || load->kind != OP_load || c->m->state.at[state_of(c, load)].kind != ST_PARAM ||
		    !dtype_is_float((DType)to->dtype) || dtype_info[to->dtype].bytes >= dtype_info[from->dtype].bytes)
			continue;
		uint32_t s = state_of(c, load);
		const char *why = why_not(c, g, op, s, to);

		verdict(c->cx, (Verdict){.pass = "copies",
		                         .rule = "copies.parameter",
		                         .graph = g->name,
		                         .a = op->path,
		                         .opa = op_info[op->kind].name,
		                         .fired = !why,
		                         .why = why ? why
		                                    : "stays from step to step: the update stores it beside the "
		                                      "parameter",
		                         .value = NAN,
		                         .bytes_saved = type_bytes(from),
		                         .loc = op->loc});
		if (why)
			continue;
		c->of[s] = new_copy(c, s, to);
		kept[i] = any = true;
	}
	return any;
}

/* ---------------------------------------------------------------- the graphs with copies */
static void
put(Graph *g, Op op)
{
	for (int k = 0; k < op.nout; k++) {
		val_info(g, op.out[k])->op = g->op.n;
		val_info(g, op.out[k])->index = (uint16_t)k;
	}
	vec_push(g->arena, &g->op, op);
}

static Val
put_new(Graph *g, Op op, Val in, const Type *t, const char *name)
{
	op.nin = 1;
	op.in = arena_array(g->arena, Val, 1);
	op.in[0] = in;
	op.out = arena_array(g->arena, Val, 1);
	op.out[0] = graph_add_val(g, *t, name, 0, 0);
	put(g, op);
	return op.out[0];
}

/* Of v, a parameter or a view of it, the copy, or the same view of that. */
static Val
copied(Copies *c, Rewrite *rw, Val v)
{
	Graph *g = rw->g;
	Op op = *val_op(g, v);
	Type t = *val_type(g, v);
	uint32_t s;

	if (op.kind != OP_load) {
		Val in = copied(c, rw, op.in[0]);

		t.dtype = val_type(g, in)->dtype;
		return put_new(g, op, in, &t, g->val.at[v.id].name);
	}
	s = state_of(c, &op);
	if (!c->load[s].id) {
		c->load[s] = build_load(&rw->b, c->of[s]);
		val_info(g, c->load[s])->type = module_state(c->m, c->of[s])->type;
	}
	return c->load[s];
}

/* Stores of parameters that have a copy: by Val.id the copy's state, and 1. */
static uint32_t *
find_stored(const Copies *c, const Graph *g)
{
	uint32_t *of = arena_array(c->cx->scratch, uint32_t, g->val.n), n = 0;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == OP_store && !op->dead && c->of[state_of(c, op)]) {
			of[op->in[0].id] = 1 + state_of(c, op);
			n++;
		}
	}
	return n ? of : NULL;
}

/* What op makes is stored as parameter s: the same, rounded, in op's kernel. */
static Val
put_rounded(const Copies *c, Graph *g, const Op *op, uint32_t s)
{
	Op cast = {.kind = OP_cast, .nout = 1, .group = op->group, .loc = op->loc, .path = op->path};
	Type t = *val_type(g, op->out[0]);

	t.dtype = module_state(c->m, c->of[s])->type.dtype;
	return put_new(g, cast, op->out[0], &t, g->val.at[op->out[0].id].name);
}

static void
put_store(const Copies *c, Graph *g, Op store, Val v)
{
	Attr *attr = arena_array(g->arena, Attr, store.nattr);

	memcpy(attr, store.attr, sizeof *attr * store.nattr);
	for (int k = 0; k < store.nattr; k++)
		if (attr[k].name == A_state)
			attr[k].s = c->of[state_of(c, &store)];
	store.attr = attr;
	store.in = arena_array(g->arena, Val, 1);
	store.in[0] = v;
	put(g, store);
}

/* Groups of no op go, and the others' numbers follow. */
static void
drop_groups(Graph *g, Arena *a)
{
	const uint32_t *members = count_members(g, a);
	int32_t *number = arena_array(a, int32_t, g->group.n + 1);
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->group.n; i++) {
		number[i] = (int32_t)n;
		if (members[i])
			g->group.at[n++] = g->group.at[i];
	}
	g->group.n = n;
	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].group >= 0)
			g->op.at[i].group = number[g->op.at[i].group];
}

/* kept: by op, NULL: none is replaced. */
static void
rewrite(Copies *c, Graph *g, const bool *kept)
{
	Arena *a = c->cx->scratch;
	const uint32_t *stored = find_stored(c, g);
	Val *rounded = arena_array(a, Val, g->val.n);

	if (!kept && !stored)
		return;
	memset(c->load, 0, sizeof *c->load * c->m->state.n);
	Rewrite rw = rewrite_begin(g, a);

	for (uint32_t i = 0; i < rw.nold; i++) {
		const Op *op = rewrite_inputs(&rw, i);

		if (kept && kept[i]) {
			rewrite_to(&rw, op->out[0], copied(c, &rw, op->in[0]));
			continue;
		}
		rewrite_keep(&rw, op);
		for (int k = 0; k < op->nout && stored; k++)
			if (stored[op->out[k].id])
				rounded[op->out[k].id] = put_rounded(c, g, op, stored[op->out[k].id] - 1);
		if (op->kind == OP_store && c->of[state_of(c, op)])
			put_store(c, g, *op, rounded[op->in[0].id]);
	}
	rewrite_end(&rw);
	drop_groups(g, a);
}

bool
pass_copies(Module *m, PassCtx *cx)
{
	Graph *train = graph_named(m, "train", false);
	uint32_t most = 2 * m->state.n + 1;      /* a copy of each */
	Copies c = {.m = m, .cx = cx};
	bool *kept;

	if (!train)
		return false;
	c.of = arena_array(cx->scratch, const char *, most);
	c.load = arena_array(cx->scratch, Val, most);
	kept = arena_array(cx->scratch, bool, train->op.n);
	if (!choose(&c, train, kept))
		return false;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			rewrite(&c, m->graph.at[i], m->graph.at[i] == train ? kept : NULL);
	return true;
}
