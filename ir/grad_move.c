/* grad_move.c: gradients of moves and scans: concat, pad, gather, take, crop, cumsum; and of roi_align.
 *
 * In: the move.  Out: the gradient moved back; gather and take add rows into zeros (gather.dx, take.dx). A crop's
 * gradient is a crop with negated offsets whose size is the input's: out[i] = x[i + row] gives dx[j] = g[j - row], 0
 * outside. */
#include "grad.h"
#include "rules.h"

void
grad_concat(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	int64_t ax = attr_int(op, A_axis), at = 0;

	for (int k = 0; k < op->nin; k++) {
		int64_t n = val_type(b->g, op->in[k])->axis[ax].n;

		if (need[k] && dout[0].id)
			din[k] = rule_slice(b, dout[0], (int)ax, at, at + n, 1);
		at += n;
	}
}

/* before and after may be negative (they cut), so the opposite counts bring x's positions back to 0, step, 2 step,
 * ... */
void
grad_pad(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	int64_t ax = attr_int(op, A_axis), before = attr_int(op, A_before), after = attr_int(op, A_after);
	int64_t step = attr_int(op, A_step), n = val_type(b->g, op->in[0])->axis[ax].n, span = (n - 1) * step + 1;
	Val g = dout[0];

	if (!need[0] || !g.id)
		return;
	if (before >= 0 && after >= 0) {
		din[0] = rule_slice(b, g, (int)ax, before, before + span, step);
		return;
	}
	g = build_op(b, OP_pad, &g, 1, ATTRS(AI(axis, ax), AI(before, -before), AI(after, -after)), NULL);
	din[0] = rule_slice(b, g, (int)ax, 0, span, step);
}

/* The gradient of x, added up from pieces of dout; in f32 where that has 16 bits, in which many small ones would come
 * to nothing beside what is there already. */
static Val
scattered(Build *b, OpKind kind, const Op *op, Val dout)
{
	Type x = *val_type(b->g, op->in[0]), sum = x;
	bool narrow = x.dtype == DT_f16 || x.dtype == DT_bf16;

	if (narrow) {
		sum.dtype = DT_f32;
		dout = build_cast(b, dout, DT_f32);
	}
	Val d = build_op(b, kind, VALS(dout, op->in[1]), ATTRS(AI(axis, attr_int(op, A_axis))), &sum);

	return narrow ? build_cast(b, d, (DType)x.dtype) : d;
}

void
grad_gather(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	if (need[0] && dout[0].id)
		din[0] = scattered(b, OP_gather_dx, op, dout[0]);
}

void
grad_take(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	if (need[0] && dout[0].id)
		din[0] = scattered(b, OP_take_dx, op, dout[0]);
}

void
grad_crop(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	const Type *x = val_type(b->g, op->in[0]);
	int64_t size[2] = {x->axis[2].n, x->axis[3].n};

	if (!need[0] || !dout[0].id)
		return;
	Val row = build(b, OP_neg, op->in[1]), column = build(b, OP_neg, op->in[2]);

	din[0] = build_op(b, OP_crop, VALS(dout[0], row, column), ATTRS(AL(size, size, 2)), NULL);
}

void
grad_cumsum(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_cumsum, dout, 1,
		                  ATTRS(AI(axis, attr_int(op, A_axis)), AB(reverse, !attr_bool(op, A_reverse))), NULL);
}

/* Boxes get none. */
void
grad_roi_align(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Type x = *val_type(b->g, op->in[0]);

	rule_attrs(op, attrs);
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_roi_align_dx, VALS(dout[0], op->in[1]), attrs, &x);
}
