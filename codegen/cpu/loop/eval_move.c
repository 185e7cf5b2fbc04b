/* eval_move.c: concat, pad, gather, take and crop as questions about their operands.
 *
 * In: an op and indices of its result.   Out: a cell. An operand outside whose range the index falls is not read: the
 * test joins Emit.mask (lanes) or Emit.pred (one number) while the operand is evaluated, and the fill value is
 * selected. */
#include "../cpu.h"
#include <string.h>

void
valid_and(Emit *e, Valid *v, V test, bool vec)
{
	V *to = vec ? &v->lane : &v->one;

	*to = mask_and(e, *to, test);
}

V
valid_all(Emit *e, Valid v, bool *vec)
{
	*vec = v.lane != NULL;
	return *vec && v.one ? mask_and(e, v.lane, splat(e, v.one)) : *vec ? v.lane : v.one;
}

static bool
is_true(V v)
{
	return !v || (LLVMIsConstant(v) && LLVMConstIntGetZExtValue(v));
}

/* x at ix where valid, else fill. A test of all lanes stays one: an address that is the same in all lanes is loaded
 * once, whatever the lanes' masks. */
static Cell
guarded(Emit *e, Val x, const Ix *ix, Valid valid, Cell fill)
{
	V mask = e->mask, pred = e->pred, all;
	bool vec;

	e->mask = mask_and(e, mask, valid.lane);
	if (!is_true(valid.one))
		e->pred = mask_and(e, pred, valid.one);
	Cell c = e->eval(e, x, ix);

	e->mask = mask;
	e->pred = pred;
	all = valid_all(e, valid, &vec);
	return cell_select(e, cell_of(all, vec, DT_bool), c, fill);
}

/* x at ix where one test holds, else fill. */
static Cell
guarded_by(Emit *e, Val x, const Ix *ix, V test, bool vec, Cell fill)
{
	Valid v = {NULL, NULL};

	valid_and(e, &v, test, vec);
	return guarded(e, x, ix, v, fill);
}

static Cell
eval_concat(Emit *e, const Op *op, const Ix *ix)
{
	int64_t a = attr_int(op, A_axis);
	V start = k64(e, 0);
	Cell r = cell_const(e, (DType)val_type(e->g, op->out[0])->dtype, 0);

	for (int k = 0; k < op->nin; k++) {
		Ix in[MAX_RANK];
		V ext = extent(e, val_type(e->g, op->in[k])->axis[a]);
		bool vec;

		memcpy(in, ix, sizeof in);
		in[a] = ix_add(e, ix[a], ix_s(i_sub(e, k64(e, 0), start)));
		V valid = ix_in_range(e, in[a], ext, &vec);

		r = guarded_by(e, op->in[k], in, valid, vec, r);
		start = i_add(e, start, ext);
	}
	return r;
}

static Cell
eval_pad(Emit *e, const Op *op, const Ix *ix)
{
	const Type *from = val_type(e->g, op->in[0]);
	int64_t a = attr_int(op, A_axis), step = attr_int(op, A_step);
	Cell fill = cell_attr(e, (DType)from->dtype, attr_get(op, A_value));
	V ext = extent(e, from->axis[a]), test;
	Ix in[MAX_RANK], t = ix_add_k(e, ix[a], -attr_int(op, A_before));
	Valid valid = {NULL, NULL};
	bool vec;

	memcpy(in, ix, sizeof(Ix) * from->rank);
	if (step == 1) {
		in[a] = t;
		test = ix_in_range(e, t, ext, &vec);
		valid_and(e, &valid, test, vec);
	} else {
		V span = i_add(e, i_mul(e, i_sub(e, ext, k64(e, 1)), k64(e, step)), k64(e, 1));

		test = ix_in_range(e, t, span, &vec);
		valid_and(e, &valid, test, vec);
		Ix rem = ix_rem(e, t, k64(e, step));

		test = ix_in_range(e, rem, k64(e, 1), &vec);
		valid_and(e, &valid, test, vec);
		in[a] = ix_div(e, t, k64(e, step));
	}
	return guarded(e, op->in[0], in, valid, fill);
}

static Cell
eval_gather(Emit *e, const Op *op, const Ix *ix)
{
	const Type *from = val_type(e->g, op->in[0]);
	int64_t a = attr_int(op, A_axis);
	Ix in[MAX_RANK];
	bool vec;

	memcpy(in, ix, sizeof(Ix) * from->rank);
	in[a] = ix_of_cell(e, e->eval(e, op->in[1], ix));
	V valid = ix_in_range(e, in[a], extent(e, from->axis[a]), &vec);

	return guarded_by(e, op->in[0], in, valid, vec, cell_const(e, (DType)from->dtype, 0));
}

static Cell
eval_take(Emit *e, const Op *op, const Ix *ix)
{
	const Type *from = val_type(e->g, op->in[0]), *ids = val_type(e->g, op->in[1]);
	int a = (int)attr_int(op, A_axis);
	Ix in[MAX_RANK];
	bool vec;

	for (int i = 0; i < a; i++)
		in[i] = ix[i];
	in[a] = ix_of_cell(e, e->eval(e, op->in[1], ix + a));
	for (int i = a + 1; i < from->rank; i++)
		in[i] = ix[i - 1 + ids->rank];
	V valid = ix_in_range(e, in[a], extent(e, from->axis[a]), &vec);

	return guarded_by(e, op->in[0], in, valid, vec, cell_const(e, (DType)from->dtype, 0));
}

static Cell
eval_crop(Emit *e, const Op *op, const Ix *ix)
{
	const Type *from = val_type(e->g, op->in[0]);
	Ix in[4] = {ix[0], ix[1], ix[2], ix[3]};
	Valid valid = {NULL, NULL};

	for (int d = 0; d < 2; d++)
		in[2 + d] = ix_add(e, ix[2 + d], ix_of_cell(e, e->eval(e, op->in[1 + d], ix)));
	for (int d = 0; d < 2; d++) {
		bool vec;
		V test = ix_in_range(e, in[2 + d], extent(e, from->axis[2 + d]), &vec);

		valid_and(e, &valid, test, vec);
	}
	return guarded(e, op->in[0], in, valid, cell_const(e, (DType)from->dtype, 0));
}

Cell
eval_move(Emit *e, const Op *op, const Ix *ix)
{
	switch (op->kind) {
	case OP_concat: return eval_concat(e, op, ix);
	case OP_pad: return eval_pad(e, op, ix);
	case OP_gather: return eval_gather(e, op, ix);
	case OP_take: return eval_take(e, op, ix);
	case OP_crop: return eval_crop(e, op, ix);
	default: bug("target cpu has no code for %s: a T_MOVE has a case in eval_move", op_info[op->kind].name);
	}
}

/* ---------------------------------------------------------------- gather.dx of few indices */
#define FEW 4

bool
gather_dx_pulls(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->out[0]), *idx = val_type(g, op->in[1]);
	int a = (int)attr_int(op, A_axis);

	for (int j = 0; j < x->rank; j++)
		if (j != a && !axis_same(x->axis[j], idx->axis[j]))
			return false;
	return !idx->axis[a].mul && idx->axis[a].n <= FEW;
}

/* Sum over the indices of an element: g where the index is the element's own. */
Cell
eval_gather_dx(Emit *e, const Op *op, const Ix *ix)
{
	const Type *to = val_type(e->g, op->out[0]), *idx = val_type(e->g, op->in[1]);
	int a = (int)attr_int(op, A_axis);
	Cell mine = ix_cell(e, ix[a], DT_i64), zero = cell_const(e, (DType)to->dtype, 0), r = zero;

	for (int64_t j = 0; j < idx->axis[a].n; j++) {
		Ix at[MAX_RANK];

		memcpy(at, ix, sizeof(Ix) * to->rank);
		at[a] = ix_k(e, j);
		Cell hit = cell_bin(e, EX_EQ, cell_cast(e, e->eval(e, op->in[1], at), DT_i64), mine);
		Cell x = cell_select(e, hit, e->eval(e, op->in[0], at), zero);

		r = j ? cell_bin(e, EX_ADD, r, x) : x;
	}
	return r;
}

/* ---------------------------------------------------------------- shared with windows and contractions */
/* x[.., h, w] where 0 <= h < H and 0 <= w < W, else fill; h and w are the axes 2 and 3 of in. extra adds tests;
 * *valid_out (may be NULL): where all hold. */
Cell
eval_plane(Emit *e, Val x, const Ix in[4], Valid extra, Cell fill, V *valid_out, bool *valid_vec)
{
	const Type *t = val_type(e->g, x);

	for (int d = 0; d < 2; d++) {
		bool vec;
		V test = ix_in_range(e, in[2 + d], extent(e, t->axis[2 + d]), &vec);

		valid_and(e, &extra, test, vec);
	}
	if (valid_out)
		*valid_out = valid_all(e, extra, valid_vec);
	return guarded(e, x, in, extra, fill);
}
