/* reorder.c: the schedule: which kernel runs when.
 *
 * In: a fused graph.   Out: the same ops in another legal order, ops of a group contiguous; stage scheduled.
 * The frontend's and autodiff's order (forward, then backward in reverse) is the backbone; two kinds of group leave it.
 * - Sources (no activation goes in: constants, packed weights, masks) run just before their first reader: they live
 *   short.
 * - Sinks (all results go to stores: the optimizer) run as soon as their operands stand and every reader of the old
 *   value is done: a gradient dies at once, and no full set of gradients ever exists. Where every gradient must be
 *   there first (clip_norm), the data dependences say so by themselves. Loads and small values that they need and that
 *   no data goes into (the rate, Adam's corrections) come first of all: behind the last gradient, they would hold up
 *   every update.
 * Where the target wants updates together (few launches for all parameters) they wait for the graph's end, and casts of
 * states stand at its start; gradients of shards, which travel to other processes, wait for an eighth of all only.
 * Graph update of a batch in shards goes from the last state's gradient to the first's, as backward makes them.
 * Checks come before any store, so that bad input stops a step before it changes anything.
 * Linear in ops and edges. */
#include "pass.h"
#include "plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_ELEMENTS = 1024, PORTIONS = 8, PORTION_BYTES = 1 << 20 };

typedef struct Node {        /* a group, or an op outside groups */
	VEC(uint32_t) op;
	VEC(uint32_t) dep;       /* nodes that come first */
	VEC(uint32_t) reader;    /* nodes that have this one in dep */
	uint32_t waiting;        /* dependences not emitted */
	bool source, sink, store, check, steady, emitted, onstack; /* steady: no data goes in, results are small */
	int64_t gradients;       /* bytes that it stores of those of a shard */
} Node;

typedef struct Sched {
	Graph *g;
	Arena *a;
	Node *node; uint32_t n;
	uint32_t *order; uint32_t norder;
	uint32_t checks;         /* not emitted yet */
	VEC(uint32_t) held;      /* sinks that wait for the last check, or for the end */
	bool together;           /* for the end */
	int64_t portion, behind; /* or for so many bytes of a shard's gradients; those since */
} Sched;

static void
add_dep(Sched *s, uint32_t node, uint32_t dep)
{
	Node *n = &s->node[node];

	if (node == dep)
		return;
	for (uint32_t i = n->dep.n; i-- > 0 && i + 8 > n->dep.n;)
		if (n->dep.at[i] == dep)
			return;
	vec_push(s->a, &n->dep, dep);
	vec_push(s->a, &s->node[dep].reader, node);
	n->waiting++;
}

static void emit(Sched *s, uint32_t id);

static void emit_now(Sched *s, uint32_t id);

static void
emit_held(Sched *s)
{
	s->behind = 0;
	for (uint32_t i = 0; i < s->held.n; i++) /* sinks: nobody waits for them */
		if (!s->node[s->held.at[i]].emitted)
			emit_now(s, s->held.at[i]);
	s->held.n = 0;
}

static void
emit_now(Sched *s, uint32_t id)
{
	Node *n = &s->node[id];

	n->emitted = true;
	s->order[s->norder++] = id;
	if (n->check && --s->checks == 0 && !s->together)
		emit_held(s);
	for (uint32_t i = 0; i < n->reader.n; i++) {
		Node *r = &s->node[n->reader.at[i]];

		if (--r->waiting == 0 && r->sink && !r->emitted) {
			if (s->checks || s->together)
				vec_push(s->a, &s->held, n->reader.at[i]);
			else
				emit_now(s, n->reader.at[i]);
			s->behind += r->gradients;
		}
	}
	s->behind += n->sink ? 0 : n->gradients;
	if (s->portion && s->behind >= s->portion && !s->checks)
		emit_held(s);
}

/* Emits a node after the sources that it still waits for. Depth is bounded by chains of sources; each is visited
 * once. */
static void
emit(Sched *s, uint32_t id)
{
	Node *n = &s->node[id];

	if (n->emitted)
		return;
	if (n->onstack)
		bug("reorder: kernels of graph %s depend on each other in a circle", s->g->name);
	n->onstack = true;
	for (uint32_t i = 0; i < n->dep.n; i++)
		if (!s->node[n->dep.at[i]].emitted)
			emit(s, n->dep.at[i]);
	n->onstack = false;
	if (!n->emitted)
		emit_now(s, id);
}

static bool
is_data(const Graph *g, Val v)
{
	for (uint32_t i = 0; i < g->input.n; i++)
		if (g->input.at[i].v.id == v.id)
			return g->input.at[i].kind == IN_DATA;
	return false;
}

/* Nodes and edges; *node_of gives each op's node. */
static void
collect(Sched *s, uint32_t *node_of)
{
	Graph *g = s->g;
	uint32_t *of_group = arena_array(s->a, uint32_t, g->group.n);

	s->node = arena_array(s->a, Node, g->op.n);
	for (uint32_t i = 0; i < g->group.n; i++)
		of_group[i] = UINT32_MAX;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		uint32_t id = op->group >= 0 ? of_group[op->group] : UINT32_MAX;

		if (id == UINT32_MAX) {
			id = s->n++;
			s->node[id].source = s->node[id].steady = true;
			if (op->group >= 0)
				of_group[op->group] = id;
		}
		node_of[i] = id;
		Node *n = &s->node[id];

		vec_push(s->a, &n->op, i);
		n->store |= op->kind == OP_store;
		if (op->kind == OP_check && !n->check) {
			n->check = true;
			s->checks++;
		}
		for (int k = 0; k < op->nin; k++) {
			const ValInfo *v = val_info(g, op->in[k]);

			if (v->op != UINT32_MAX && node_of[v->op] != id) {
				add_dep(s, id, node_of[v->op]);
				n->source &= s->node[node_of[v->op]].source;
				n->steady &= s->node[node_of[v->op]].steady;
			} else if (v->op == UINT32_MAX) {
				n->source = false;
				n->steady &= !is_data(g, op->in[k]);
			}
		}
		for (int k = 0; k < op->nout; k++)
			n->steady &= op->kind == OP_load || type_elements(val_type(g, op->out[k])) <= SMALL_ELEMENTS;
		if (op_has(op->kind, T_EFFECT))
			n->source = n->steady = false;
	}
}

/* Nothing but numbers of states in another type. */
static bool
only_casts(const Sched *s, const Node *n)
{
	bool casts = n->source;

	for (uint32_t i = 0; i < n->op.n; i++) {
		OpKind k = (OpKind)s->g->op.at[n->op.at[i]].kind;

		casts &= k == OP_cast || k == OP_load || k == OP_full;
	}
	return casts;
}

/* A store waits for every reader of the old value. */
static void
order_stores(Sched *s, const uint32_t *node_of)
{
	Graph *g = s->g;
	uint32_t nstate = g->module->state.n;
	typedef struct { VEC(uint32_t) reader; } Readers;
	Readers *readers = arena_array(s->a, Readers, nstate);
	int64_t *state_of = arena_array(s->a, int64_t, g->val.n); /* 1 + state of a load or a view of one */

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == OP_load)
			state_of[op->out[0].id] =
			        1 + (module_state(g->module, attr_str(op, A_state)) - g->module->state.at);
		for (int k = 0; k < op->nin; k++) {
			int64_t st = state_of[op->in[k].id];

			if (!st)
				continue;
			vec_push(s->a, &readers[st - 1].reader, node_of[i]);
			if (plan_is_alias(g, op))
				state_of[op->out[0].id] = st;
		}
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == OP_store) {
			Readers *r = &readers[module_state(g->module, attr_str(&g->op.at[i], A_state)) -
			                      g->module->state.at];

			for (uint32_t k = 0; k < r->reader.n; k++)
				add_dep(s, node_of[i], r->reader.at[k]);
		}
}

/* Graph update of a batch in shards: gradients come in the order in which backward makes them, from the last state to
 * the first, and so do their updates, which wait for no others. Key of a node: the gradient that came last of those
 * that go into it, by number; large where none does. */
static int
by_key(const void *x, const void *y)
{
	const uint32_t *a = x, *b = y;

	return a[0] != b[0] ? (a[0] > b[0] ? -1 : 1) : a[1] < b[1] ? -1 : a[1] > b[1];
}

/* The number of the gradient that op loads, if it is less. */
static uint32_t
gradient_of(const Graph *g, const Op *op, uint32_t least)
{
	const State *s = op->kind == OP_load ? module_state(g->module, attr_str(op, A_state)) : NULL;
	uint32_t at = s && s->kind == ST_GRAD ? (uint32_t)(s - g->module->state.at) : UINT32_MAX;

	return at < least ? at : least;
}

/* The nodes as the schedule comes upon them: those of the graph, or of graph update by their gradients. */
static uint32_t *
walk_of(const Sched *s, bool enabled)
{
	const Setting *shards = setting(s->g->module, "train.shards");
	uint32_t *walk = arena_array(s->a, uint32_t, s->n), (*key)[2] = arena_alloc(s->a, sizeof *key * (s->n + 1));
	bool sorts = enabled && shards && shards->i > 1 && !strcmp(s->g->name, "update"), more = sorts;

	for (uint32_t i = 0; i < s->n; i++) {
		const Node *n = &s->node[i];

		key[i][0] = UINT32_MAX;
		key[i][1] = i;
		for (uint32_t k = 0; k < n->op.n && sorts; k++)
			key[i][0] = gradient_of(s->g, &s->g->op.at[n->op.at[k]], key[i][0]);
	}
	while (more) {                           /* a group may stand before what it depends on */
		more = false;
		for (uint32_t i = 0; i < s->n; i++)
			for (uint32_t k = 0; k < s->node[i].dep.n; k++)
				if (key[s->node[i].dep.at[k]][0] < key[i][0]) {
					key[i][0] = key[s->node[i].dep.at[k]][0];
					more = true;
				}
	}
	for (uint32_t i = 0; i < s->n && sorts; i++) { /* and what it waits for, in the same order */
		uint32_t *dep = s->node[i].dep.at;

		for (uint32_t k = 1; k < s->node[i].dep.n; k++)
			for (uint32_t j = k; j > 0 && key[dep[j]][0] > key[dep[j - 1]][0]; j--) {
				uint32_t t = dep[j];

				dep[j] = dep[j - 1];
				dep[j - 1] = t;
			}
	}
	if (sorts)
		qsort(key, s->n, sizeof *key, by_key);
	for (uint32_t i = 0; i < s->n; i++)
		walk[i] = key[i][1];
	return walk;
}

static bool
only_stores(const Sched *s, const Node *n, const bool *is_result)
{
	const Graph *g = s->g;

	if (!n->store)
		return false;
	for (uint32_t i = 0; i < n->op.n; i++)
		for (int k = 0; k < g->op.at[n->op.at[i]].nout; k++)
			if (is_result[g->op.at[n->op.at[i]].out[k].id])
				return false;
	return n->reader.n == 0;
}

/* May it leave the order of the graph? The tuning file may say no. */
static bool
runs_early(const Sched *s, PassCtx *cx, const Node *n)
{
	const Op **with = arena_array(s->a, const Op *, n->op.n);

	for (uint32_t i = 0; i < n->op.n; i++)
		with[i] = &s->g->op.at[n->op.at[i]];
	return pass_choose(cx, "reorder.sink", &(ChoiceAt){.g = s->g, .op = with[0], .with = with + 1,
		.nwith = (int)n->op.n - 1, .update = true}, 2, true) && pass_may(cx, "reorder.sink");
}

typedef struct Waiting { uint32_t n; int64_t bytes; } Waiting; /* updates that wait for a node, and their gradients */

/* Does node `id`, an update or what makes its gradient, run later than the largest of what it reads would let it, and
 * what for? at: position of nodes in the schedule; w: by node; depth: elementwise kernels between update and
 * gradient. */
static void
note_waiting(const Sched *s, uint32_t id, const uint32_t *node_of, const uint32_t *at, Waiting *w, int depth)
{
	const Graph *g = s->g;
	const Node *n = &s->node[id];
	const ValInfo *gradient = NULL;
	const Op *last = NULL;

	for (uint32_t i = 0; i < n->op.n; i++)
		for (int k = 0; k < g->op.at[n->op.at[i]].nin; k++) {
			const ValInfo *v = val_info(g, g->op.at[n->op.at[i]].in[k]);
			const Op *def = v->op == UINT32_MAX ? NULL : &g->op.at[v->op];

			if (!def || node_of[v->op] == id || def->kind == OP_load || s->node[node_of[v->op]].steady)
				continue;
			if (!gradient || type_elements(&v->type) > type_elements(&gradient->type))
				gradient = v;
			if (!last || at[node_of[v->op]] > at[node_of[last - g->op.at]])
				last = def;
		}
	if (!gradient)
		return;
	if (node_of[gradient->op] == node_of[last - g->op.at]) {
		if (depth && op_has((OpKind)g->op.at[gradient->op].kind, T_POINTWISE))
			note_waiting(s, node_of[gradient->op], node_of, at, w, depth - 1);
		return;
	}
	w += node_of[last - g->op.at];
	w->n++;
	w->bytes += type_bytes(&gradient->type);
}

/* What it costs that updates wait for one number which needs every gradient. Returns how many do. */
static uint32_t
tell_waiting(const Sched *s, PassCtx *cx, const uint32_t *node_of)
{
	uint32_t *at = arena_array(s->a, uint32_t, s->n), most = 0;
	Waiting *w = arena_array(s->a, Waiting, s->n);

	for (uint32_t i = 0; i < s->norder; i++)
		at[s->order[i]] = i;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->node[i].sink)
			note_waiting(s, i, node_of, at, w, 2);
	for (uint32_t i = 0; i < s->n; i++)
		most = w[i].n > w[most].n ? i : most;
	if (!s->n || w[most].n < 2)
		return 0;
	verdict(cx, (Verdict){.pass = "reorder",
	                      .rule = "reorder.sink",
	                      .graph = s->g->name,
	                      .a = "",
	                      .fired = false,
	                      .value = (double)w[most].n,
	                      .bytes_saved = w[most].bytes,
	                      .why = arena_printf(cx->module->arena,
	                                          "%u updates wait for a number that every gradient goes into "
	                                          "(clipping, loss scaling): their gradients stand in memory at once",
	                                          w[most].n)});
	return w[most].n;
}

/* The ops of g in the order that was found; true: it is another. */
static bool
put_ops(Sched *s)
{
	Graph *g = s->g;
	Op *old = g->op.at, *new = arena_array(g->arena, Op, g->op.n);
	uint32_t at = 0;
	bool changed = false;

	for (uint32_t i = 0; i < s->norder; i++) {
		Node *n = &s->node[s->order[i]];

		for (uint32_t k = 0; k < n->op.n; k++) {
			changed |= n->op.at[k] != at;
			new[at] = old[n->op.at[k]];
			for (int r = 0; r < new[at].nout; r++)
				val_info(g, new[at].out[r])->op = at;
			at++;
		}
	}
	g->op.at = new;
	g->op.cap = g->op.n;
	return changed;
}

/* That so many updates run where the memory of their gradients is free soonest, or all together. */
static void
tell_early(PassCtx *cx, const Sched *s, int64_t updates)
{
	bool together = s->together;
	const char *why = s->portion ? arena_printf(cx->scratch,
	                                            "run together, behind every %.3g MB of gradients: few "
	                                            "launches, and what is complete may go to other processes",
	                                            (double)s->portion * 1e-6)
	                  : together ? "run behind all gradients: few launches for all of them"
	                             : "run as soon as their gradient is done";

	verdict(cx, (Verdict){.pass = "reorder",
	                      .rule = together ? "reorder.together" : "reorder.sink",
	                      .graph = s->g->name,
	                      .a = "",
	                      .fired = true,
	                      .value = (double)updates,
	                      .why = arena_printf(cx->module->arena, "%lld updates %s", (long long)updates, why)});
}

/* Stores of a shard's gradients, which travel while the rest is made: how much of them goes at a time. */
static void
count_gradients(Sched *s)
{
	const Setting *shards = setting(s->g->module, "train.shards");
	int64_t all = 0;

	for (uint32_t i = 0; i < s->n; i++)
		for (uint32_t k = 0; k < s->node[i].op.n; k++) {
			const Op *op = &s->g->op.at[s->node[i].op.at[k]];
			const State *to;

			if (op->kind != OP_store)
				continue;
			to = module_state(s->g->module, attr_str(op, A_state));
			if (to->kind != ST_GRAD)
				continue;
			s->node[i].gradients += type_bytes(&to->type);
			all += type_bytes(&to->type);
		}
	if (s->together && shards && shards->i > 1 && all >= PORTION_BYTES)
		s->portion = all / PORTIONS > PORTION_BYTES ? all / PORTIONS : PORTION_BYTES;
}

bool
pass_reorder(Graph *g, PassCtx *cx)
{
	Sched s = {.g = g, .a = cx->scratch};
	uint32_t *node_of = arena_array(s.a, uint32_t, g->op.n);
	bool *is_result = arena_array(s.a, bool, g->val.n), enabled = pass_enabled(cx, "reorder");

	collect(&s, node_of);
	order_stores(&s, node_of);
	for (uint32_t i = 0; i < g->result.n; i++)
		is_result[g->result.at[i].v.id] = true;
	s.order = arena_array(s.a, uint32_t, s.n);
	int64_t early = 0;

	for (uint32_t i = 0; i < s.n; i++) {
		s.node[i].sink = enabled && only_stores(&s, &s.node[i], is_result) && runs_early(&s, cx, &s.node[i]);
		early += s.node[i].sink;
	}
	/* checks first: they and what they need */
	for (uint32_t i = 0; i < s.n; i++)
		if (s.node[i].check)
			emit(&s, i);
	/* then what holds up updates for no reason */
	uint32_t *walk = walk_of(&s, enabled);

	for (uint32_t i = 0; i < s.n; i++) {
		const Node *n = &s.node[walk[i]];

		for (uint32_t k = 0; n->sink && k < n->dep.n; k++)
			if (s.node[n->dep.at[k]].steady)
				emit(&s, n->dep.at[k]);
	}
	s.together = enabled && target_does(cx->target, TARGET_joins_launches);
	count_gradients(&s);
	for (uint32_t i = 0; i < s.n && s.together; i++)
		if (only_casts(&s, &s.node[i]))
			emit(&s, i);
	for (uint32_t i = 0; i < s.n; i++) {
		Node *n = &s.node[walk[i]];

		if (n->emitted || (s.together && n->sink) || (enabled && n->source && n->reader.n && !n->store))
			continue;
		emit(&s, walk[i]);
	}
	for (uint32_t i = 0; i < s.n; i++)
		emit(&s, walk[i]);
	if (s.norder != s.n)
		bug("reorder: %u of %u kernels could be ordered in graph %s", s.norder, s.n, g->name);

	early -= tell_waiting(&s, cx, node_of);
	if (early > 0)
		tell_early(cx, &s, early);
	return put_ops(&s);
}
