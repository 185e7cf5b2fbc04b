/* shards.c: graph train for one of the S equal parts of a batch (train.shards = S).
 *
 * In: stage typed, the module's batch being that of a shard; while autodiff works.   Out: three things that tell a
 * shard from a batch.
 * - Random numbers are those of the whole batch: input `first` is the place of the shard's first example in its batch,
 * and a random
 * op whose leading axis is the examples is given first * 2^32 + step mod 2^32 in place of the step, and `per`, its
 * elements of one
 *    example: element j of the shard is element first * per + j of the batch.
 *  - Running statistics: what a shard would store goes to a state NAME.shard of kind grad.
 *  - Graph update stores the mean of these over the shards, whose sum loop op `merge` leaves there.
 * Whether the leading axis is the examples is told by its extent, that of the shard. Refuses a random op of which
 * another axis, or a multiple of the extent, might be: the batch may have something outside its examples there (a
 * reshape to [T * N]). */
#include <string.h>
#include "passes.h"

#define SHARD ".shard"

/* Random numbers of one example; 0: they do not follow the examples; -1: unknown. */
static int64_t
per_example(const Graph *g, const Op *op, int64_t batch)
{
	Type t = *val_type(g, op->out[0]);

	if (op_has((OpKind)op->kind, T_COMPOSITE)) { /* of attention's scores: the rows of y, and a column a key */
		t.axis[t.rank - 1].n = val_type(g, op->in[1])->axis[val_type(g, op->in[1])->rank - 2].n;
		if (t.rank == 2)
			return -1;
	}
	if (t.rank && t.axis[0].n == batch)
		return type_elements(&t) / batch;
	for (int i = 0; i < t.rank; i++)
		if (t.axis[i].n % batch == 0)
			return -1;
	return 0;
}

static bool
is_random(const Op *op)
{
	return op_has((OpKind)op->kind, T_RANDOM) || (op->kind == OP_attention && attr_num(op, A_p) > 0);
}

/* The op again, drawing by the place of its examples. The step is the last operand. */
static void
number_one(Rewrite *rw, const Op *op, Val place, int64_t per)
{
	AttrArg attrs[16];
	Type types[4];
	Val in[16];
	int n = 0;

	for (int k = 0; k < op->nin; k++)
		in[k] = k == op->nin - 1 ? place : op->in[k];
	for (int k = 0; k < op->nout; k++)
		types[k] = *val_type(rw->g, op->out[k]);
	if (op->kind == OP_attention) {
		attrs[n++] = (AttrArg)AF(scale, attr_num(op, A_scale));
		attrs[n++] = (AttrArg)AB(causal, attr_bool(op, A_causal));
		attrs[n++] = (AttrArg)AB(has_mask, attr_bool(op, A_has_mask));
		attrs[n++] = (AttrArg)AF(p, attr_num(op, A_p));
		attrs[n++] = (AttrArg)AB(wide, attr_bool(op, A_wide));
	}
	attrs[n++] = (AttrArg)AS(stream, attr_str(op, A_stream));
	attrs[n++] = (AttrArg)AI(per, per);
	attrs[n] = (AttrArg){.name = A_COUNT};
	if (op->kind == OP_attention)
		build_op(&rw->b, op->kind, in, op->nin, attrs, NULL);
	else
		build_op(&rw->b, op->kind, in, op->nin, attrs, types);
	for (int k = 0; k < op->nout && !rw->b.error; k++)
		rewrite_to(rw, op->out[k], build_last(&rw->b)->out[k]);
}

bool
shards_number(Module *m, Graph *train, int64_t s)
{
	bool any = false, good = true;
	Arena *scratch = m->arena;
	Val first, step, place = NOVAL;

	for (uint32_t i = 0; i < train->op.n; i++) {
		const Op *op = &train->op.at[i];

		if (!is_random(op))
			continue;
		any = true;
		if (per_example(train, op, m->batch) < 0) {
			Buf type = {0};

			type_print(&type, val_type(train, op->out[0]));
			diag_error(m->diags, op->loc,
			           "%s draws random numbers of %s, where the examples of a shard, %lld, are not the "
			           "first axis: with "
			           "train.shards = %lld they cannot be those of the whole batch",
			           op->path && *op->path ? op->path : op_info[op->kind].name, type.at,
			           (long long)m->batch, (long long)s);
			buf_free(&type);
			good = false;
		}
	}
	if (!any || !good)
		return good;
	first = graph_need_input(train, IN_FIRST);
	step = graph_need_input(train, IN_STEP);
	Rewrite rw = rewrite_begin(train, scratch);

	rw.b.path = "";
	place = build(&rw.b, OP_imod, step, build_const(&rw.b, DT_i64, 0x1p32));
	place = build(&rw.b, OP_add, build(&rw.b, OP_mul, first, build_const(&rw.b, DT_i64, 0x1p32)), place);
	for (uint32_t i = 0; i < rw.nold; i++) {
		Op *op = rewrite_inputs(&rw, i);
		int64_t per = is_random(op) ? per_example(train, op, m->batch) : 0;

		if (per > 0)
			number_one(&rw, op, place, per);
		else
			rewrite_keep(&rw, op);
	}
	rewrite_end(&rw);
	graph_sweep(train, scratch);
	return true;
}

void
shards_redirect(Module *m, Graph *train)
{
	Rewrite rw = rewrite_begin(train, m->arena);

	for (uint32_t i = 0; i < rw.nold; i++) {
		Op *op = rewrite_inputs(&rw, i);
		const State *old = op->kind == OP_store ? module_state(m, attr_str(op, A_state)) : NULL;
		State *s;

		if (!old || old->kind != ST_STAT) {
			rewrite_keep(&rw, op);
			continue;
		}
		s = module_add_state(m, arena_printf(m->arena, "%s" SHARD, old->name), old->type, ST_GRAD);
		s->init = INIT_CONSTANT;
		s->loc = rw.b.loc;
		build_op(&rw.b, OP_store, op->in, 1, ATTRS(AS(state, s->name)), NULL);
	}
	rewrite_end(&rw);
}

void
shards_join(Build *b, Module *m, Graph *update, int64_t s)
{
	for (uint32_t i = 0; i < m->state.n; i++) {
		const State *from = &m->state.at[i];
		size_t n = strlen(from->name), tail = sizeof SHARD - 1;
		Val v;

		if (from->kind != ST_GRAD || n <= tail || strcmp(from->name + n - tail, SHARD) != 0)
			continue;
		b->g = update;
		b->loc = from->loc;
		b->path = "";
		v = build_load(b, from->name);
		v = build(b, OP_div, v, build_const(b, (DType)from->type.dtype, (double)s));
		build_op(b, OP_store, &v, 1, ATTRS(AS(state, arena_strndup(m->arena, from->name, n - tail))), NULL);
	}
}
