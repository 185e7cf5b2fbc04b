/* eval_move.c: operators that move elements (T_MOVE) as questions about their operands, by their access rules.
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

/* The element of an index operand that stands at ix of the result. */
static Ix
looked_up(Emit *e, const Op *op, int k, const Ix *ix)
{
	Access a;
	Ix in[MAX_RANK];

	op_access(e->g, op, k, &a);
	access_index(e, op, k, &a, ix, in, NULL);
	return ix_of_cell(e, e->eval(e, op->in[k], in));
}

/* The sum of the extents of the operands before k. */
static V
extents_before(Emit *e, const Op *op, int k, int axis)
{
	V start = k64(e, 0);

	for (int q = 0; q < k; q++)
		start = i_add(e, start, extent(e, val_type(e->g, op->in[q])->axis[axis]));
	return start;
}

/* Where the index may stand outside the operand: is it inside? Of ACCESS_spread it becomes the operand's only now. */
static void
axis_test(Emit *e, const AxisAccess *at, Axis axis, Ix *in, Valid *valid)
{
	V ext = extent(e, axis), test;
	bool vec, spread = at->form == ACCESS_spread && at->scale > 1;

	if (spread)
		ext = i_add_k(e, i_mul_k(e, i_sub_k(e, ext, 1), at->scale), 1);
	test = ix_in_range(e, *in, ext, &vec);
	valid_and(e, valid, test, vec);
	if (!spread)
		return;
	test = ix_in_range(e, ix_rem(e, *in, k64(e, at->scale)), k64(e, 1), &vec);
	valid_and(e, valid, test, vec);
	*in = ix_div(e, *in, k64(e, at->scale));
}

void
access_index(Emit *e, const Op *op, int k, const Access *a, const Ix *ix, Ix *in, Valid *valid)
{
	const Type *from = val_type(e->g, op->in[k]);

	for (int j = 0; j < from->rank; j++) {
		const AxisAccess *at = &a->at[j];

		switch (at->form) {
		case ACCESS_zero: in[j] = ix_k(e, 0); break;
		case ACCESS_same: in[j] = ix[at->axis]; break;
		case ACCESS_affine: in[j] = ix_add_k(e, ix_mul_k(e, ix[at->axis], at->scale), at->offset); break;
		case ACCESS_back:
			in[j] = ix_add(e, ix_s(i_sub_k(e, extent(e, from->axis[j]), 1)),
			               ix_mul_k(e, ix[at->axis], -1));
			break;
		case ACCESS_dealt:
			in[j] = ix_add(e, ix_mul_k(e, ix_rem(e, ix[at->axis], k64(e, at->scale)),
			                           from->axis[j].n / at->scale),
			               ix_div(e, ix[at->axis], k64(e, at->scale)));
			break;
		case ACCESS_spread: in[j] = ix_add_k(e, ix[at->axis], at->offset); break;
		case ACCESS_behind:
			in[j] = ix_add(e, ix[at->axis], ix_s(i_sub(e, k64(e, 0), extents_before(e, op, k, j))));
			break;
		case ACCESS_lookup: in[j] = looked_up(e, op, at->by, ix); break;
		case ACCESS_moved: in[j] = ix_add(e, ix[at->axis], looked_up(e, op, at->by, ix)); break;
		}
	}
	for (int j = 0; j < from->rank && valid; j++)
		if (a->at[j].form >= ACCESS_spread)
			axis_test(e, &a->at[j], from->axis[j], &in[j], valid);
}

Cell
eval_move(Emit *e, const Op *op, const Ix *ix)
{
	Cell r = {0};
	Access a;

	for (int k = 0; k < op->nin; k++) {
		DType dt = (DType)val_type(e->g, op->in[k])->dtype;
		Ix in[MAX_RANK];
		Valid valid = {NULL, NULL};

		if (!op_access(e->g, op, k, &a) || a.index)
			continue;
		if (k == 0)
			r = a.fill ? cell_attr(e, dt, a.fill) : cell_const(e, dt, 0);
		access_index(e, op, k, &a, ix, in, &valid);
		r = guarded(e, op->in[k], in, valid, r);
	}
	return r;
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
