/* fuse_broadcast.c: values that broadcasting makes much larger than all they are computed from.
 *
 * In: the tables of a pass in progress (fuse.h), kinds and `stored` filled in.   Out: Fuse.cone of ops whose result is
 * at least RATIO times as large as the tensors that it is computed from, whatever it costs to compute: readers make it
 * anew, and it is neither written nor kept for the backward half. So the tanh of an additive attention, [N, T, S, C] of
 * [N, T, C] and [N, S, C], is made by the sum over C, and by each sum of its gradient.
 * Declined: what a kernel of one op, a contraction or a view outside groups reads, a result of the graph; constants
 * alone. */
#include "fuse.h"
#include <math.h>

enum { RATIO = 8, BROADCAST_OPS = 48 };

/* Elements that are read to have v: its own where it stands in memory, else those of what it is computed from. */
static int64_t
elements_read(const Fuse *f, const int64_t *made, Val v)
{
	uint32_t d = f->g->val.at[v.id].op;
	int64_t own = type_elements(val_type(f->g, v));

	if (d == UINT32_MAX || (f->kind[d] != K_FREE && !made[d]))
		return own;
	return f->kind[d] == K_FREE && f->stored[v.id] ? own : made[d] < own ? made[d] : own;
}

/* Made of constants and random numbers alone: 0. */
static int64_t
made_of(const Fuse *f, const int64_t *made, const Op *op)
{
	int64_t n = 0;

	for (int k = 0; k < op->nin && !op_has((OpKind)op->kind, T_RANDOM); k++) {
		bool again = false;

		for (int i = 0; i < k; i++)
			again |= op->in[i].id == op->in[k].id;
		n += again ? 0 : elements_read(f, made, op->in[k]);
	}
	return n;
}

/* Operations to make it with, clones and all. */
static uint32_t
operations(const Fuse *f, const Op *op)
{
	uint32_t n = 1;

	for (int k = 0; k < op->nin; k++) {
		uint32_t d = f->g->val.at[op->in[k].id].op;

		if (d != UINT32_MAX && !f->stored[op->in[k].id])
			n += f->cone[d];
	}
	return n;
}

static const char *
why_stored(const Fuse *f, const Op *op, uint32_t ops)
{
	if (f->stored[op->out[0].id])
		return "it is a result of the graph, or a kernel of another kind reads it from memory";
	return ops > BROADCAST_OPS ? arena_printf(f->cx->module->arena, "%u operations to make it anew, at most %d",
	                                          ops, BROADCAST_OPS)
	                           : NULL;
}

/* The innermost axis of t in memory with more than one element; -1: there is none. */
static int
innermost(const Type *t)
{
	for (int i = t->rank; i-- > 0;)
		if (t->axis[t->perm[i]].n != 1 || t->axis[t->perm[i]].mul)
			return t->perm[i];
	return -1;
}

/* A transposition whose readers broadcast it would be gathered across memory over and over: it is stored once. */
static void
store_transposed(Fuse *f, const Op *op)
{
	const Type *t = val_type(f->g, op->out[0]), *x = val_type(f->g, op->in[0]);
	int64_t own = type_elements(t), most = 0;
	int last = innermost(t), n;

	if (f->stored[op->out[0].id] || last < 0 || attr_ints(op, A_perm, &n)[last] == innermost(x))
		return;
	for (uint32_t u = 0; u < f->users[op->out[0].id].n; u++) {
		uint32_t r = f->users[op->out[0].id].at[u];
		int64_t read = type_elements(val_type(f->g, f->g->op.at[r].out[0]));

		if (f->kind[r] != K_MAP || read < RATIO * own)
			return;
		most = read > most ? read : most;
	}
	if (!most || !pass_may(f->cx, "fuse.broadcast"))
		return;
	f->stored[op->out[0].id] = true;
	verdict(f->cx, (Verdict){.pass = "fuse",
	                         .rule = "fuse.broadcast",
	                         .graph = f->g->name,
	                         .a = op->path,
	                         .opa = op_info[op->kind].name,
	                         .loc = op->loc,
	                         .why = arena_printf(f->cx->module->arena,
	                                             "a transposition of %lld elements, of which %lld are made: stored "
	                                             "once, not gathered for each",
	                                             (long long)own, (long long)most),
	                         .value = (double)most / (double)own,
	                         .bytes_saved = type_bytes(t)});
}

void
fuse_find_broadcast(Fuse *f)
{
	int64_t *made = arena_array(f->a, int64_t, f->nop);

	for (uint32_t i = 0; i < f->nop && f->enabled; i++)
		if (f->kind[i] == K_FREE && f->g->op.at[i].kind == OP_transpose)
			store_transposed(f, &f->g->op.at[i]);
	for (uint32_t i = 0; i < f->nop; i++) {
		const Op *op = &f->g->op.at[i];

		if (f->kind[i] == K_FREE)
			made[i] = made_of(f, made, op);
		if (f->kind[i] != K_MAP || op->nout != 1)
			continue;
		const Type *t = val_type(f->g, op->out[0]);
		int64_t n = made_of(f, made, op), own = type_elements(t);

		if (!n || own < RATIO * n)
			continue;
		uint32_t ops = operations(f, op);
		const char *why = why_stored(f, op, ops);

		if (!why && !pass_may(f->cx, "fuse.broadcast"))
			continue;
		verdict(f->cx,
		        (Verdict){.pass = "fuse",
		                  .rule = "fuse.broadcast",
		                  .graph = f->g->name,
		                  .a = op->path,
		                  .opa = op_info[op->kind].name,
		                  .fired = !why,
		                  .loc = op->loc,
		                  .why = why ? why
		                             : arena_printf(f->cx->module->arena,
		                                            "%lld elements computed from %lld: made anew by whatever "
		                                            "reads it, never stored",
		                                            (long long)own, (long long)n),
		                  .value = (double)own / (double)n,
		                  .bytes_saved = type_bytes(t)});
		if (why)
			continue;
		made[i] = n;
		f->cone[i] = (uint8_t)ops;
		f->broadcast[i] = true;
	}
}
