/* dnn_tail.c: what follows a convolution in its group, as much as cuDNN makes in the same kernel.
 *
 * In: a group whose contraction a record gives to cuDNN with `fused=1`.   Out: the chain of elementwise ops from its
 * sums to the value that is stored in 16 bits: a number for each channel added, taken away or multiplied, a tensor
 * added, relu. cuDNN's patterns have a bias and no factor, so factors go into the filters: y = s x * w + t is x * (s w)
 * + t, with s and t of each channel computed by a kernel before the plan. Filters and bias are rounded to 16 bits then,
 * which is why a record must allow rounding. Refused, each with its words: sums that anything else reads (those of a
 * batch normalisation that trains), other ops, factors behind the addition of a tensor, results of more than 16
 * bits. */
#include "dnn.h"
#include "dnn_region.h"
#include <string.h>

/* The only reader of v; NULL if there are more, or v is a result. */
static const Op *
only_reader(const Graph *g, Val v)
{
	const Op *reader = NULL;

	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].v.id == v.id)
			return NULL;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin; k++) {
			if (g->op.at[i].dead || g->op.at[i].in[k].id != v.id)
				continue;
			if (reader)
				return NULL;
			reader = &g->op.at[i];
		}
	return reader;
}

/* A number for each channel of images, or one for all. */
static bool
by_channel(const Graph *g, Val v, Axis channels)
{
	const Type *t = val_type(g, v);

	for (int i = 0; i < t->rank; i++)
		if ((t->axis[i].n != 1 || t->axis[i].mul) && (i != t->rank - 3 || !axis_same(t->axis[i], channels)))
			return false;
	return true;
}

/* One op of the chain, whose value so far is v. NULL: it is one. */
static const char *
step(const Graph *g, const Op *op, Val v, DnnTail *t)
{
	const Type *o = val_type(g, v);
	int other = op->nin == 2 && op->in[0].id == v.id;
	Val x = op->nin == 2 ? op->in[other] : NOVAL;

	if (t->relu)
		return arena_printf(g->arena, "%s follows relu", op_info[op->kind].name);
	if (op->kind == OP_relu) {
		t->relu = true;
		return NULL;
	}
	if (op->kind == OP_add && !t->add.id && type_same_shape(val_type(g, x), o) && !by_channel(g, x, o->axis[1])) {
		t->add = x;
		return NULL;
	}
	bool affine = op->kind == OP_add || op->kind == OP_mul || (op->kind == OP_sub && other == 1);

	if (!affine || !by_channel(g, x, o->axis[1]))
		return arena_printf(g->arena, "%s is neither a number of each channel, nor a tensor added, nor relu",
		                    op_info[op->kind].name);
	if (t->add.id && op->kind == OP_mul)
		return "a factor behind the addition of a tensor";
	if (t->nstep == DNN_STEPS)
		return "more values of each channel than a plan has room for";
	t->scaled |= op->kind == OP_mul;
	t->step[t->nstep].op = (OpKind)op->kind;
	t->step[t->nstep++].x = x;
	return NULL;
}

const char *
cu_dnn_tail(const Graph *g, int group, const Op *op, const Type *result, DnnTail *t)
{
	Val v = op->out[0];

	*t = (DnnTail){.add = NOVAL, .result = NOVAL};
	if (op->kind != OP_conv2d)
		return "cuDNN has nothing but convolutions with what follows them for a device that is not there";
	if (val_type(g, v)->dtype != DT_f32)
		return "its sums are rounded before the group goes on";
	for (;;) {
		const Op *reader = only_reader(g, v);
		const char *why;

		if (!reader || reader->group != group)
			return "its sums, or what is computed from them, are read by more than one op: those of a "
			       "batch "
			       "normalisation that trains are, and cuDNN's patterns for these sum squares";
		if (reader->kind == OP_cast) {
			if (!type_same(val_type(g, reader->out[0]), result))
				return "what follows is not stored in 16 bits, as its result would be";
			t->result = reader->out[0];
			break;
		}
		if ((why = step(g, reader, v, t)))
			return why;
		v = reader->out[0];
	}
	return t->nstep || t->add.id || t->relu ? NULL : "nothing follows";
}

/* s and t of a channel: what the steps make of v is s v + t. */
static void
affine(Cuda *c, const DnnTail *t, const Type *result, Ix channel, Cell *s, Cell *b)
{
	*s = cu_cell_number(c, DT_f32, 1);
	*b = cu_cell_number(c, DT_f32, 0);
	for (int i = 0; i < t->nstep; i++) {
		Ix ix[MAX_RANK];
		const Type *x = val_type(c->g, t->step[i].x);

		for (int k = 0; k < x->rank; k++)
			ix[k] = k == x->rank - 3 && axis_same(x->axis[k], result->axis[1]) ? channel : "0";
		Cell number = cu_value_at(c, t->step[i].x, ix);

		if (t->step[i].op == OP_mul) {
			*s = cu_cell_bin(c, EX_MUL, *s, number);
			*b = cu_cell_bin(c, EX_MUL, *b, number);
		} else {
			*b = cu_cell_bin(c, t->step[i].op == OP_add ? EX_ADD : EX_SUB, *b, number);
		}
	}
}

void
cu_dnn_tail_emit(Cuda *c, const DnnTail *t, Val filter, const Type *filters, int64_t filters_at, const Type *result,
                 int64_t bias_at)
{
	Type bias = type_of((DType)result->dtype, 1, &result->axis[1]);
	Ix ix[MAX_RANK];
	Cell s, b;

	if (t->scaled) {
		cu_kernel_open(c, "copy");
		c->loose = true;
		Scope scope = cu_threads_open(c, filters, (1u << filters->rank) - 1, ix);

		affine(c, t, result, ix[0], &s, &b);
		cu_store_at(c, filters, filters_at, ix,
		            cu_cell_bin(c, EX_MUL, cu_cell_cast(c, cu_value_at(c, filter, ix), DT_f32), s));
		cu_scope_close(c, scope);
		cu_kernel_close(c, "an element to a thread", cu_blocks_of(filters, (1u << filters->rank) - 1));
	}
	cu_kernel_open(c, "copy");
	c->loose = true;
	Scope scope = cu_threads_open(c, &bias, 1, ix);

	affine(c, t, result, ix[0], &s, &b);
	cu_store_at(c, &bias, bias_at, ix, b);
	cu_scope_close(c, scope);
	cu_kernel_close(c, "an element to a thread", cu_blocks_of(&bias, 1));
}
