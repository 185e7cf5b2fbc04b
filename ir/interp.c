/* interp.c: runs whole graphs with the reference evaluator.
 *
 * In: a module at any stage (groups, layouts and offsets are ignored), inputs, the number of examples.  Out: the
 * graph's results; state updated at the end of the run. Values live from their definition to their last use in blocks
 * that are kept from run to run and handed out best fit, so that a step costs no system calls once the first is done.
 * Stores wait until every other op
 * has run: loads see the old value and a failed check changes nothing.
 * Loops are the runtime's: the ref target calls one graph at a time. */
#include "interp.h"
#include "ref.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* last[id]: index of the last op that reads value id; FOREVER for results and what a store reads. */
#define FOREVER UINT32_MAX
typedef struct InterpPlan {
	const Graph *g;
	uint32_t *last;
	struct InterpBlock **held;
	struct InterpPlan *next;
} InterpPlan;
typedef struct InterpBlock { void *cells; int64_t cap; bool used; } InterpBlock;

/* ---------------------------------------------------------------- memory */
static InterpBlock *
block_take(Interp *in, int64_t n)
{
	InterpBlock *best = NULL;

	for (uint32_t i = 0; i < in->block.n; i++) {
		InterpBlock *b = in->block.at[i];

		if (!b->used && b->cap >= n && (!best || b->cap < best->cap))
			best = b;
	}
	if (!best || best->cap > 4 * n + 4096) {   /* a far larger one would be missed later */
		best = arena_new_of(in->module->arena, InterpBlock);
		best->cap = n ? n : 1;
		best->cells = malloc((size_t)best->cap * REF_CELL);
		if (!best->cells)
			die("out of memory: a tensor of %lld elements of %d bytes", (long long)n, REF_CELL);
		vec_push(in->module->arena, &in->block, best);
	}
	best->used = true;
	return best;
}

static void
value_free(Interp *in, Val v)
{
	if (in->plan->held[v.id])
		in->plan->held[v.id]->used = false;
	in->plan->held[v.id] = NULL;
	in->cx.val[v.id].f = NULL;
	in->cx.val[v.id].i = NULL;
}

/* Type, size and memory of a value about to be defined. */
static void
value_make(Interp *in, Val v)
{
	RefTensor *t = &in->cx.val[v.id];
	int64_t ext[MAX_RANK];
	InterpBlock *b;

	t->type = *val_type(in->cx.g, v);
	t->n = ref_extents(&in->cx, &t->type, ext);
	b = block_take(in, t->n);
	in->plan->held[v.id] = b;
	ref_point(t, b->cells);
}

/* ---------------------------------------------------------------- life of values */
static InterpPlan *
plan_of(Interp *in, const Graph *g)
{
	Arena *a = in->module->arena;
	InterpPlan *p;

	for (p = in->plan; p; p = p->next)
		if (p->g == g)
			return p;
	p = arena_new_of(a, InterpPlan);
	p->g = g;
	p->next = in->plan;
	p->last = arena_array(a, uint32_t, g->val.n);
	p->held = arena_array(a, InterpBlock *, g->val.n);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && k < op->nin; k++)
			if (p->last[op->in[k].id] != FOREVER)
				p->last[op->in[k].id] = op->kind == OP_store ? FOREVER : i;
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		p->last[g->result.at[i].v.id] = FOREVER;
	return p;
}

/* The plan in use is the list's head. */
static void
plan_use(Interp *in, InterpPlan *p)
{
	InterpPlan **at = &in->plan;

	while (*at && *at != p)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	p->next = in->plan;
	in->plan = p;
}

/* ---------------------------------------------------------------- the door */
Interp *
interp_new(Module *m, bool round)
{
	Interp *in = arena_new_of(m->arena, Interp);

	in->module = m;
	in->round = round;
	in->state = arena_array(m->arena, RefTensor, m->state.n);
	for (uint32_t i = 0; i < m->state.n; i++) {
		RefTensor *s = &in->state[i];

		s->type = m->state.at[i].type;
		s->n = type_elements(&s->type);
		ref_point(s, calloc((size_t)(s->n ? s->n : 1), REF_CELL));
		if (!ref_cells(s))
			die("out of memory: state %s of %lld elements of %d bytes", m->state.at[i].name,
			    (long long)s->n, REF_CELL);
	}
	return in;
}

static void
run_end(Interp *in)
{
	if (!in->arena)
		return;
	for (uint32_t v = 0; v < in->cx.g->val.n; v++)
		value_free(in, (Val){v});
	arena_free(in->arena);
	in->arena = NULL;
}

void
interp_free(Interp *in)
{
	run_end(in);
	for (uint32_t i = 0; i < in->block.n; i++)
		free(in->block.at[i]->cells);
	for (uint32_t i = 0; i < in->module->state.n; i++)
		free(ref_cells(&in->state[i]));
}

void
interp_begin(Interp *in, const Graph *g, int64_t n)
{
	run_end(in);
	plan_use(in, plan_of(in, g));
	in->failed = NULL;
	in->at = 0;
	in->arena = arena_new();
	in->cx = (RefCtx){
	        .g = g, .arena = in->arena, .n = n, .full = in->module->batch, .round = in->round, .state = in->state};
	in->cx.val = arena_array(in->arena, RefTensor, g->val.n);
	for (uint32_t i = 0; i < g->input.n; i++)
		value_make(in, g->input.at[i].v);
}

RefTensor *
interp_input(Interp *in, int k)
{
	return &in->cx.val[in->cx.g->input.at[k].v.id];
}

/* in->found, if a result of op has an element that is not finite */
static void
search(Interp *in, const Op *op)
{
	for (int k = 0; k < op->nout && !in->found.op; k++) {
		const RefTensor *t = &in->cx.val[op->out[k].id];

		for (int64_t e = 0; t->f && e < t->n && !in->found.op; e++) {
			InterpFound *f = &in->found;

			if (isfinite(t->f[e]) || (isinf(t->f[e]) && in->search[op->out[k].id]))
				continue;
			*f = (InterpFound){.op = op, .v = op->out[k], .rank = t->type.rank, .x = t->f[e]};
			ref_extents(&in->cx, &t->type, f->shape);
			for (int64_t i = f->rank, rest = e; i-- > 0; rest /= f->shape[i])
				f->index[i] = rest % f->shape[i];
		}
	}
}

static const char *
run_op(Interp *in, const Op *op, uint32_t at)
{
	const char *error;

	for (int k = 0; k < op->nout; k++)
		value_make(in, op->out[k]);
	error = ref_op(&in->cx, op);
	if (error) {
		in->failed = op;
		return error;
	}
	if (in->search && !in->found.op)
		search(in, op);
	for (int k = 0; k < op->nin; k++)
		if (in->plan->last[op->in[k].id] == at)
			value_free(in, op->in[k]);
	for (int k = 0; k < op->nout; k++)
		if (in->plan->last[op->out[k].id] == 0)   /* nobody reads it: op 0 defines, it cannot read a result */
			value_free(in, op->out[k]);
	return NULL;
}

const Op *
interp_resume(Interp *in, const char **error)
{
	const Graph *g = in->cx.g;

	/* of a shard whole batches run alone */
	for (; in->at < 2 * g->op.n && !*error; in->at++) {
		uint32_t i = in->at % g->op.n;
		const Op *op = &g->op.at[i];

		if (op->dead || (op->kind == OP_store) != (in->at >= g->op.n))
			continue;
		*error = run_op(in, op, i);
		if (!*error && (op->kind == OP_all_reduce || op->kind == OP_all_moments)) {
			in->at++;
			return op;
		}
	}
	return NULL;
}

const char *
interp_run(Interp *in)
{
	const Graph *g = in->cx.g;
	const char *error = NULL;

	if (g->full_only && in->cx.n != in->cx.full)
		return arena_printf(in->arena, "only whole batches of %lld run: %s", (long long)in->cx.full,
		                    g->full_why ? g->full_why : "");
	if (in->cx.n % g->multiple)
		return arena_printf(in->arena, "a batch of %lld does not run: it must be a multiple of %lld",
		                    (long long)in->cx.n, (long long)g->multiple);
	for (int stores = 0; stores < 2 && !error; stores++)
		for (uint32_t i = 0; i < g->op.n && !error; i++) {
			const Op *op = &g->op.at[i];

			if (!op->dead && (op->kind == OP_store) == stores)
				error = run_op(in, op, i);
		}
	return error;
}

const RefTensor *
interp_result(const Interp *in, int k)
{
	return &in->cx.val[in->cx.g->result.at[k].v.id];
}
