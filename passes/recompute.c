/* recompute.c: activations that the backward half reads are computed again instead of kept, until the plan fits the
 * budget.
 *
 * In: lowered graphs with layouts, and a budget (train.memory, --memory).   Out: graph train with clones of forward ops
 * in front of their backward readers, same stage; nothing where there is no budget or the plan fits as it is.
 * Two ways, the first before the second:
 * - alone: a value that elementwise ops and views make of values that are kept (the normalised activation of a batch
 * norm, from
 * the convolution's result) is computed by a chain of its own, which fuse makes one kernel of; fewest operands first;
 * - segments (Chen et al. 2016, arXiv:1604.06174): the forward half is cut where few bytes cross; what crosses is kept,
 * all else
 * of a segment is computed again when the backward half first needs some of it. Dearest contractions may be excepted.
 * Cheapest
 *    segment first, by flops a byte; the last one is kept, as its backward half begins at once.
 * How many values is found by bisection; every guess is measured by running the rest of the pipeline on a copy of the
 * module, so what is promised is what plan makes of it. Of several ways that fit, the one with the fewest flops wins.
 * A clone reads what is kept through op `after`, which waits for a gradient: the latest operand of a contraction of the
 * backward half, which stands in memory anyway. Fuse therefore cannot put the clone into a forward kernel, nor reorder
 * run it early. The clones are the same ops on the same operands: random numbers are functions of seed, step and
 * element, statistics are results of reductions and kept, stores are not cloned. So results are the same bits wherever
 * the kernels are the same.
 * Declines: inputs, states, results, results of reductions, what is read by effects alone, what is small. An error with
 * the smallest budget that works, if none of this suffices. Rules: recompute.alone, recompute.segment. */
#include "recompute.h"
#include <math.h>
#include <string.h>

enum { MAX_LEAVES = 4, MAX_CHAIN = 48, MAX_BISECTED = 4, SMALL_SHARE = 4096 };

/* A way to choose: number of segments (0: alone only), contractions dearer than this many flops a byte are kept, the
 * first n. */
typedef struct Way { int segments; double dear; uint32_t n; int64_t arena; double flops; } Way;

/* ---------------------------------------------------------------- the two halves of the graph */
/* Forward is what loss, metrics, outputs, checks and running statistics come of, and what stands before the loss:
 * results of forward ops that only the backward half reads. */
static bool *
find_forward(const Graph *g, Arena *a)
{
	bool *live = arena_array(a, bool, g->val.n), *forward = arena_array(a, bool, g->op.n);
	uint32_t loss = 0;

	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];

		live[r->v.id] |= r->kind <= RES_OUTPUT;
		if (r->kind == RES_LOSS && val_op(g, r->v))
			loss = val_info(g, r->v)->op;
	}
	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];
		bool used = op->kind == OP_store ? module_state(g->module, attr_str(op, A_state))->kind == ST_STAT
		                                 : op_has(op->kind, T_EFFECT);

		for (int k = 0; k < op->nout; k++)
			used |= live[op->out[k].id];
		used |= i < loss;
		forward[i] = used;
		for (int k = 0; used && k < op->nin; k++)
			live[op->in[k].id] = true;
	}
	return forward;
}

static bool
clonable(const Op *op, bool any)
{
	return is_cheap(op) || is_free(op) ||
	       (any && !op_has(op->kind, T_EFFECT | T_LOOP | T_STATE | T_SCATTER | T_REDUCE));
}

/* ---------------------------------------------------------------- what the plan without recomputation keeps */
typedef struct Names { const Graph *g; uint32_t *at, size; } Names;

static uint32_t
name_slot(const Names *t, const char *name)
{
	uint32_t i = (uint32_t)hash_bytes(HASH_START, name, strlen(name)) & (t->size - 1);

	while (t->at[i] && strcmp(t->g->val.at[t->at[i]].name, name))
		i = (i + 1) & (t->size - 1);
	return i;
}

static Names
names_of(const Graph *g, Arena *a)
{
	Names t = {.g = g, .size = 16};

	while (t.size < 2 * g->val.n)
		t.size *= 2;
	t.at = arena_array(a, uint32_t, t.size);
	for (uint32_t v = 1; v < g->val.n; v++)
		if (g->val.at[v].name)
			t.at[name_slot(&t, g->val.at[v].name)] = v;
	return t;
}

/* Values keep their names through the pipeline; one that is stored in 16 bits is a cast in the group that makes it. */
static void
find_stored(Half *h, const Graph *planned)
{
	Names names = names_of(h->g, h->a);

	for (uint32_t v = 1; v < planned->val.n; v++) {
		const ValInfo *i = &planned->val.at[v];
		const Op *def = val_op(planned, (Val){v});
		uint32_t to = names.at[name_slot(&names, i->name)];

		if (i->offset < 0 || (def && def->group < 0))
			continue;
		if (def && def->kind == OP_cast && val_info(planned, def->in[0])->offset < 0) {
			const Op *source = val_op(planned, def->in[0]);

			if (source && source->group == def->group && !to)
				to = names.at[name_slot(&names, val_info(planned, def->in[0])->name)];
		}
		if (to) {
			h->stored[to] = true;
			h->bytes[to] = type_bytes(&i->type);
		}
	}
}

/* Values that are never stored are computed where they are read: who reads them reads what they are computed from. */
static void
find_readers(Half *h)
{
	const Graph *g = h->g;
	bool *need = arena_array(h->a, bool, g->val.n);
	int64_t crossing = 0;

	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];
		uint32_t use = h->forward[i] ? i : 0;
		bool wanted = !h->forward[i];

		for (int k = 0; k < op->nout; k++) {
			uint32_t v = op->out[k].id;

			wanted |= need[v] && !h->stored[v];
			if (!h->stored[v] && h->last[v] > use)
				use = h->last[v];
		}
		for (int k = 0; k < op->nin; k++) {
			uint32_t v = op->in[k].id;

			need[v] |= wanted;
			if (h->forward[i] && h->last[v] < use)
				h->last[v] = use;
		}
	}
	for (uint32_t v = 1; v < g->val.n; v++) {
		uint32_t def = g->val.at[v].op;

		h->back[v] = h->stored[v] && need[v] && def != UINT32_MAX && h->forward[def];
		h->total += h->back[v] ? h->bytes[v] : 0;
		if (h->stored[v] && def != UINT32_MAX && h->forward[def] && h->last[v] > def) {
			h->cross[def] += h->bytes[v];
			h->cross[h->last[v]] -= h->bytes[v];
		}
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		h->cross[i] = crossing += h->cross[i];
}

static bool
is_later(const Graph *g, Val a, Val b)
{
	return !b.id || val_info(g, a)->op > val_info(g, b)->op;
}

/* The latest operand from the backward half of a kernel of its own, in memory whatever fuse does; else the latest that
 * its producers wait for. */
static Val
anchor_of(const Half *h, const Op *op)
{
	const Graph *g = h->g;
	bool alone = !op_has(op->kind, T_POINTWISE | T_REDUCE | T_VIEW | T_CONST | T_RANDOM | T_STATE);
	Val latest = NOVAL;

	for (int k = 0; k < op->nin; k++) {
		Val v = op->in[k];
		uint32_t def;

		while (alone && val_op(g, v) && view_moves_nothing(g, val_op(g, v)))
			v = val_op(g, v)->in[0];
		def = val_info(g, v)->op;
		if (def == UINT32_MAX || h->forward[def] || g->op.at[def].kind == OP_load)
			continue;
		if (!alone)
			v = h->anchor[def];
		if (v.id && is_later(g, v, latest))
			latest = v;
	}
	return latest;
}

/* What clones wait for, so early that the kernel that a reader joins is still to come. Backward ops that read forward
 * values alone wait for what their readers do; where that is too late, for the latest of all so far. */
static void
find_anchors(Half *h)
{
	const Graph *g = h->g;
	Val latest = NOVAL;

	for (uint32_t i = 0; i < g->op.n; i++)
		h->anchor[i] = h->forward[i] ? NOVAL : anchor_of(h, &g->op.at[i]);
	for (uint32_t i = g->op.n; i-- > 0;)
		for (int k = 0; h->anchor[i].id && k < g->op.at[i].nin; k++) {
			uint32_t def = val_info(g, g->op.at[i].in[k])->op;

			if (def != UINT32_MAX && !h->forward[def] && !h->anchor[def].id &&
			    val_info(g, h->anchor[i])->op < def)
				h->anchor[def] = h->anchor[i];
		}
	for (uint32_t i = 0; i < g->op.n; i++) {
		if (h->anchor[i].id && is_later(g, h->anchor[i], latest))
			latest = h->anchor[i];
		if (!h->forward[i] && !h->anchor[i].id)
			h->anchor[i] = latest;
	}
}

/* ---------------------------------------------------------------- choosing */
static bool
is_large(const Half *h, uint32_t v)
{
	return h->stored[v] && h->bytes[v] >= h->small;
}

bool
recompute_at_hand(const Half *h, Val v)
{
	const Op *op = val_op(h->g, v);

	return !op || op->kind == OP_load || is_free(op) || (!is_cheap(op) && type_bytes(val_type(h->g, v)) < h->small);
}

/* Forward ops before the first backward op: all that clones read stands before all that they wait for. */
static void
find_able(Half *h)
{
	for (uint32_t i = 0; i < h->g->op.n && h->forward[i]; i++) {
		const Op *op = &h->g->op.at[i];

		h->able[i] = clonable(op, true);
		for (int k = 0; k < op->nin && h->able[i]; k++)
			h->able[i] = h->stored[op->in[k].id] || recompute_at_hand(h, op->in[k]) ||
			             h->able[val_info(h->g, op->in[k])->op];
	}
}

static bool
is_result(const Half *h, uint32_t v)
{
	for (uint32_t i = 0; i < h->g->result.n; i++)
		if (h->g->result.at[i].v.id == v)
			return true;
	return false;
}

/* The chain that computes a value again: large values that it reads, ops. */
typedef struct Chain { Val leaf[MAX_LEAVES]; int nleaf, nop; double flops; bool good; } Chain;

static void walk(const Half *h, const Choice *c, Val v, Chain *w);

static void
walk_op(const Half *h, const Choice *c, const Op *op, Chain *w)
{
	w->good = w->good && clonable(op, false) && w->nop < MAX_CHAIN;
	if (!w->good)
		return;
	w->nop++;
	w->flops += op_flops(h->g, op);
	for (int k = 0; k < op->nin && w->good; k++)
		walk(h, c, op->in[k], w);
}

static void
walk(const Half *h, const Choice *c, Val v, Chain *w)
{
	const Op *op = val_op(h->g, v);
	bool input = !op && type_bytes(val_type(h->g, v)) >= h->small;

	if (op && (h->stored[v.id] ? c->drop[v.id] != KEPT : !recompute_at_hand(h, v))) {
		walk_op(h, c, op, w);
		return;
	}
	if (!input && (!op || !is_large(h, v.id)))
		return;
	for (int k = 0; k < w->nleaf; k++)
		if (w->leaf[k].id == v.id)
			return;
	w->good = w->good && w->nleaf < MAX_LEAVES;
	if (w->good)
		w->leaf[w->nleaf++] = v;
}

/* A leaf that nobody else keeps for the backward half has to be kept for the chain's sake. */
static int64_t
gain(const Half *h, uint32_t v, const Chain *w)
{
	int64_t bytes = h->bytes[v];

	for (int k = 0; k < w->nleaf; k++)
		if (!h->back[w->leaf[k].id] && val_op(h->g, w->leaf[k]))
			bytes -= h->bytes[w->leaf[k].id];
	return bytes;
}

static bool
candidate(const Half *h, const Choice *c, uint32_t v)
{
	return h->back[v] && is_large(h, v) && h->able[val_info(h->g, (Val){v})->op] && !c->drop[v] && !c->pinned[v] &&
	       !is_result(h, v);
}

/* Values that are computed again alone, those with the fewest leaves first, up to n; how many. */
static uint32_t
choose_alone(const Half *h, Choice *c, uint32_t n)
{
	uint32_t count = 0;

	for (int leaves = 0; leaves <= MAX_LEAVES; leaves++)
		for (uint32_t i = 0; i < h->g->op.n && count < n; i++)
			for (int k = 0; k < h->g->op.at[i].nout; k++) {
				uint32_t v = h->g->op.at[i].out[k].id;
				Chain w = {.good = true};

				if (!candidate(h, c, v))
					continue;
				walk_op(h, c, &h->g->op.at[i], &w);
				if (!w.good || w.nleaf > leaves || gain(h, v, &w) <= 0 || count >= n)
					continue;
				c->drop[v] = ALONE;
				c->scope[v] = (int32_t)v;
				count++;
			}
	return count;
}

/* ops first..last */
typedef struct Segment { uint32_t first, last; int64_t bytes; double flops; bool dropped; } Segment;
typedef VEC(Segment) Segments;

/* Cuts about every total / n bytes, within the half before where fewest bytes cross. */
static Segments
cut(const Half *h, int n)
{
	Segments s = {0};
	int64_t at = 0, want = h->total / n;
	uint32_t first = 0, best = UINT32_MAX;

	for (uint32_t i = 0; i < h->g->op.n; i++) {
		const Op *op = &h->g->op.at[i];

		for (int k = 0; h->forward[i] && k < op->nout; k++)
			at += h->back[op->out[k].id] ? h->bytes[op->out[k].id] : 0;
		if (h->forward[i] && at >= want / 2 && (best == UINT32_MAX || h->cross[i] <= h->cross[best]))
			best = i;
		if (at < want || best == UINT32_MAX)
			continue;
		vec_push(h->a, &s, ((Segment){.first = first, .last = best}));
		i = best;
		first = best + 1;
		best = UINT32_MAX;
		at = 0;
	}
	return s;
}

static bool
too_dear(const Half *h, const Op *op, uint32_t v, double dear)
{
	return op_flops(h->g, op) > dear * (double)h->bytes[v];
}

/* What of a segment is computed again, into c; bytes and flops of that. */
static void
weigh(const Half *h, Choice *c, Segment *s, int32_t scope, double dear)
{
	const Graph *g = h->g;

	s->bytes = 0;
	s->flops = 0;
	for (uint32_t i = s->first; i <= s->last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nout; k++) {
			uint32_t v = op->out[k].id;

			if (!h->able[i] || !is_large(h, v) || c->pinned[v] || c->drop[v] || h->last[v] > s->last ||
			    is_result(h, v) || too_dear(h, op, v, dear))
				continue;
			c->drop[v] = SEGMENT;
			c->scope[v] = -2 - scope;
			s->bytes += h->back[v] ? h->bytes[v] : 0;
			s->flops += op_flops(g, op);
		}
	}
}

/* What crosses either end of a segment stays. */
static void
pin(const Half *h, Choice *c, const Segment *s)
{
	for (uint32_t v = 1; v < h->g->val.n; v++) {
		uint32_t def = h->g->val.at[v].op;

		if (def != UINT32_MAX && h->stored[v] &&
		    ((def < s->first && h->last[v] >= s->first) || (def <= s->last && h->last[v] > s->last)))
			c->pinned[v] = true;
	}
}

static Choice
choice_new(const Half *h)
{
	uint32_t n = h->g->val.n;

	return (Choice){arena_array(h->a, uint8_t, n), arena_array(h->a, int32_t, n), arena_array(h->a, bool, n)};
}

/* The segments that a way leaves out, all of them if n is UINT32_MAX; how many there could be. */
static uint32_t
choose(const Half *h, const Way *way, Choice *c)
{
	*c = choice_new(h);
	if (!way->segments)
		return choose_alone(h, c, way->n);
	Segments s = cut(h, way->segments);
	Choice one = choice_new(h);
	uint32_t n = 0;

	for (uint32_t i = 0; i < s.n; i++)
		weigh(h, &one, &s.at[i], (int32_t)i, way->dear);
	for (; n < s.n && n < way->n; n++) {
		Segment *best = NULL;

		for (uint32_t i = 0; i < s.n; i++)
			if (!s.at[i].dropped && s.at[i].bytes &&
			    (!best || s.at[i].flops * (double)best->bytes < best->flops * (double)s.at[i].bytes))
				best = &s.at[i];
		if (!best)
			break;
		best->dropped = true;
		pin(h, c, best);
	}
	for (uint32_t i = 0; i < s.n; i++)
		if (s.at[i].dropped)
			weigh(h, c, &s.at[i], (int32_t)i, way->dear);
	choose_alone(h, c, UINT32_MAX);
	return s.n;
}

/* ---------------------------------------------------------------- measuring */
/* The rest of the pipeline, on a copy that lives in a. NULL after an error. */
static Module *
plan_copy(Half *h, const Choice *c, Arena *a, Cost *e)
{
	Module *copy = module_clone(h->m, a);
	PassCtx cx = *h->cx;
	const char *context = bug_context;

	if (c)
		*e = recompute_edit(h, c, graph_named(copy, h->g->name, false), a);
	memset(&cx.verdict, 0, sizeof cx.verdict);
	memset(&cx.choice, 0, sizeof cx.choice);
	cx.memory_budget = 0;
	cx.race = NULL; /* a racing program makes room for its own kernels, not for the others */
	cx.check = cx.time_passes = false;
	cx.print_after = cx.only = NULL;
	cx.stop_stage = NULL;
	cx.scratch = NULL;
	bool good = passes_run(copy, &cx);

	bug_context = context;
	h->cx->failed |= !good;
	return good ? copy : NULL;
}

static void
measure(Half *h, Way *way)
{
	Arena *a = arena_new(), *kept = h->a;
	Choice c;
	Cost e = {0};

	h->a = a;
	choose(h, way, &c);
	const Module *m = plan_copy(h, &c, a, &e);

	way->arena = m ? m->arena_bytes : INT64_MAX;
	way->flops = e.flops;
	h->a = kept;
	arena_free(a);
}

/* Fewest values, or segments, with which the way fits; it does with hi. */
static Way
bisect(Half *h, Way way, uint32_t hi)
{
	uint32_t lo = way.segments ? 0 : 1;
	Way best = way;

	while (lo < hi) {
		Way mid = way;

		mid.n = lo + (hi - lo) / 2;
		measure(h, &mid);
		if (mid.arena <= h->cx->memory_budget) {
			best = mid;
			hi = mid.n;
		} else {
			lo = mid.n + 1;
		}
	}
	return best;
}

/* Flops a byte of the contraction in the middle, by cost. */
static double
middle_cost(const Half *h)
{
	VEC(double) cost = {0};

	for (uint32_t v = 1; v < h->g->val.n; v++) {
		const Op *op = val_op(h->g, (Val){v});

		if (!op || !h->back[v] || !is_large(h, v) || is_cheap(op) || !(op_flops(h->g, op) > 0))
			continue;
		vec_push(h->a, &cost, op_flops(h->g, op) / (double)h->bytes[v]);
		for (uint32_t i = cost.n - 1; i > 0 && cost.at[i] < cost.at[i - 1]; i--) {
			double x = cost.at[i];

			cost.at[i] = cost.at[i - 1];
			cost.at[i - 1] = x;
		}
	}
	return cost.n ? cost.at[cost.n / 2] : 0;
}

/* Of several ways that fit the one that is measured to be fastest need not be that of the fewest flops. */
static int
choose_way(Half *h, int ways, int best)
{
	const Op **with = arena_array(h->a, const Op *, h->g->op.n);

	for (uint32_t i = 0; i < h->g->op.n; i++)
		with[i] = &h->g->op.at[i];
	return pass_choose(h->cx, "recompute", &(ChoiceAt){.g = h->g, .op = with[h->g->op.n - 1], .with = with,
		.nwith = (int)h->g->op.n,
		.more = arena_printf(h->a, "budget=%lld", (long long)h->cx->memory_budget)}, ways, best);
}

/* The cheapest way that fits; arena 0 if none does, and then the least that one needs. */
static Way
search(Half *h, int64_t *least)
{
	static const int parts[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64};
	enum { PARTS = sizeof parts / sizeof *parts };
	int64_t budget = h->cx->memory_budget;
	Way way = {.n = UINT32_MAX}, fit[2 * PARTS], found[MAX_BISECTED] = {{0}};
	double dear[2] = {middle_cost(h), INFINITY};
	int n = 0, tried = 0, best = 0;
	Choice c;

	measure(h, &way);
	*least = way.arena;
	if (way.arena <= budget)
		return bisect(h, way, choose(h, &way, &c));
	for (int d = 0; d < 2; d++)
		for (int k = 0; k < PARTS; k++) {
			way = (Way){.segments = parts[k], .dear = dear[d], .n = UINT32_MAX};
			measure(h, &way);
			if (way.arena < *least)
				*least = way.arena;
			if (way.arena <= budget)
				fit[n++] = way;
		}
	for (; tried < MAX_BISECTED && tried < n; tried++) {
		for (int k = tried + 1; k < n; k++)
			if (fit[k].flops < fit[tried].flops) {
				Way x = fit[k];

				fit[k] = fit[tried];
				fit[tried] = x;
			}
		found[tried] = bisect(h, fit[tried], choose(h, &fit[tried], &c));
		best = found[tried].flops < found[best].flops ? tried : best;
	}
	return found[tried > 1 ? choose_way(h, tried, best) : best];
}

/* ---------------------------------------------------------------- the pass */
static const char *
size_text(Arena *a, int64_t bytes)
{
	return bytes < 1 << 20 ? arena_printf(a, "%.2f KiB", (double)bytes / 0x1p10)
	                       : arena_printf(a, "%.2f MiB", (double)bytes / 0x1p20);
}

/* Asks for each value, and says what becomes of it. */
static void
settle(Half *h, Choice *c, int64_t *bytes, uint32_t *n)
{
	const Graph *g = h->g;

	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout; k++) {
			const Op *op = &g->op.at[i];
			uint32_t v = op->out[k].id;
			Chain w = {.good = true};

			if (!h->back[v] || !is_large(h, v))
				continue;
			bool alone = c->drop[v] == ALONE,
			     fired = c->drop[v] && pass_may(h->cx, alone ? "recompute.alone" : "recompute.segment");

			if (alone)
				walk_op(h, c, op, &w);
			const char *why = is_result(h, v) ? "it is a result of the graph"
			                  : c->drop[v]    ? "stopped by --pass-limit"
			                  : c->pinned[v]  ? "later segments begin with it"
			                  : !h->able[i]   ? "its kernel, or one that it needs, is not run a second time"
			                                  : "it costs more than the budget asks for";

			if (fired)
				why = alone ? arena_printf(h->a,
				                           "computed again from %d kept value%s by %d cheap op%s, %.3g "
				                           "MFLOP",
				                           w.nleaf, w.nleaf == 1 ? "" : "s", w.nop,
				                           w.nop == 1 ? "" : "s", w.flops / 1e6)
				            : arena_printf(h->a,
				                           "computed again with its segment, %.3g MFLOP of its own",
				                           op_flops(g, op) / 1e6);
			else
				c->drop[v] = KEPT;
			*bytes += fired ? h->bytes[v] : 0;
			*n += fired;
			verdict(h->cx, (Verdict){.pass = "recompute",
			                         .rule = alone ? "recompute.alone" : "recompute.segment",
			                         .graph = g->name,
			                         .a = op->path,
			                         .opa = op_info[op->kind].name,
			                         .fired = fired,
			                         .why = why,
			                         .value = op_flops(g, op),
			                         .bytes_saved = h->bytes[v],
			                         .loc = op->loc});
		}
}

static void
half_tables(Half *h, const Module *planned)
{
	const Graph *g = h->g;
	int64_t states = 0;

	for (uint32_t i = 0; i < h->m->state.n; i++)
		states += type_bytes(&h->m->state.at[i].type);
	h->small = (planned->arena_bytes - states) / SMALL_SHARE + 1;
	h->stored = arena_array(h->a, bool, g->val.n);
	h->bytes = arena_array(h->a, int64_t, g->val.n);
	h->back = arena_array(h->a, bool, g->val.n);
	h->last = arena_array(h->a, uint32_t, g->val.n);
	h->anchor = arena_array(h->a, Val, g->op.n);
	h->able = arena_array(h->a, bool, g->op.n);
	h->cross = arena_array(h->a, int64_t, g->op.n);
	find_stored(h, graph_named(planned, g->name, false));
	find_readers(h);
	find_anchors(h);
	find_able(h);
	for (uint32_t i = 0; i < g->op.n; i++)
		h->flops += op_flops(g, &g->op.at[i]);
}

static bool
impossible(const Half *h, int64_t least)
{
	int64_t budget = h->cx->memory_budget;

	diag_error(h->m->diags, (Loc){0},
	           "the memory budget of %s (%lld bytes) is too small: with activations recomputed the least that does "
	           "is %s, --memory %lld; a smaller --batch needs less",
	           size_text(h->a, budget), (long long)budget, size_text(h->a, least), (long long)least);
	h->cx->failed = true;
	return false;
}

bool
pass_recompute(Module *m, PassCtx *cx)
{
	Half h = {.m = m, .g = graph_named(m, "train", false), .cx = cx, .a = cx->scratch};
	uint32_t n = 0;
	int64_t least, bytes = 0;
	Choice c;

	if (!cx->memory_budget || !h.g)
		return false;
	const Module *planned = plan_copy(&h, NULL, cx->scratch, NULL);

	if (!planned || planned->arena_bytes <= cx->memory_budget)
		return false;
	h.forward = find_forward(h.g, h.a);
	half_tables(&h, planned);
	Way way = search(&h, &least);

	if (cx->failed || !way.arena || way.arena > cx->memory_budget)
		return cx->failed ? false : impossible(&h, least < planned->arena_bytes ? least : planned->arena_bytes);
	choose(&h, &way, &c);
	settle(&h, &c, &bytes, &n);
	Cost e = recompute_edit(&h, &c, h.g, cx->scratch);

	const char *why = arena_printf(
	        cx->scratch, "%u value%s of %s recomputed%s, %.3g GFLOP more a step (%.1f %%): %s instead of %s", n,
	        n == 1 ? "" : "s", size_text(h.a, bytes), way.segments ? " in segments" : "", e.flops / 1e9,
	        100 * e.flops / (h.flops > 0 ? h.flops : 1), size_text(h.a, way.arena),
	        size_text(h.a, planned->arena_bytes));
	bool asked = cx->choice.n && !strncmp(cx->choice.at[cx->choice.n - 1].what, "recompute ", 10);

	verdict(cx, (Verdict){.pass = "recompute",
	                      .rule = "recompute",
	                      .graph = h.g->name,
	                      .a = "",
	                      .fired = true,
	                      .value = e.flops,
	                      .bytes_saved = planned->arena_bytes - way.arena,
	                      .why = asked ? pass_chose(cx, why) : why});
	return e.clones > 0;
}
