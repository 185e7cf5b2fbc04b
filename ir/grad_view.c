/* grad_view.c: gradients of views: reshape, transpose, expand, slice, reverse, interleave.
 *
 * In: the view op.  Out: the inverse view of the gradient; a slice's is a pad with zeros around and between. */
#include "grad.h"
#include "rules.h"

void
grad_reshape(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Type x = *val_type(b->g, op->in[0]);

	if (need[0] && dout[0].id)
		din[0] = build_reshape(b, dout[0], x.rank, x.axis);
}

void
grad_transpose(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	int n;
	const int64_t *perm = attr_ints(op, A_perm, &n);
	int64_t inverse[MAX_RANK] = {0};

	for (int i = 0; i < n; i++)
		inverse[perm[i]] = i;
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_transpose, dout, 1, ATTRS(AL(perm, inverse, n)), NULL);
}

void
grad_expand(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Type x = *val_type(b->g, op->in[0]);

	if (need[0] && dout[0].id)
		din[0] = build_sum_to(b, dout[0], &x);
}

void
grad_slice(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	int64_t ax = attr_int(op, A_axis), start = attr_int(op, A_start), step = attr_int(op, A_step);
	int64_t from = val_type(b->g, op->in[0])->axis[ax].n, taken = val_type(b->g, op->out[0])->axis[ax].n;

	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_pad, dout, 1, ATTRS(AI(axis, ax), AI(before, start),
		                  AI(after, from - start - ((taken - 1) * step + 1)), AI(step, step)), NULL);
}

void
grad_interleave(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	int64_t ax = attr_int(op, A_axis), n = val_type(b->g, op->in[0])->axis[ax].n;

	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_interleave, dout, 1,
		                  ATTRS(AI(axis, ax), AI(groups, n / attr_int(op, A_groups))), NULL);
}

void
grad_reverse(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_reverse, dout, 1, ATTRS(AI(axis, attr_int(op, A_axis))), NULL);
}
