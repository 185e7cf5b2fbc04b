/* grad_contract.c: gradients of matmul and the conv2d family.
 *
 * In: the contraction.  Out: one contraction per wanted input. The three convolutions are the three partial products of
 * one trilinear form in x, w and g, so the gradient of each is computed from the other two. A matmul whose second
 * operand is a plain matrix takes its weight gradient as one product over all leading axes instead of a batch of
 * products and a sum. */
#include "grad.h"
#include "rules.h"

/* a [..., M, K] as one matrix [M', K]. */
static Val
as_matrix(Build *b, Val v)
{
	Type t = *val_type(b->g, v);

	return t.rank == 2 ? v : build_reshape(b, v, 2, (Axis[]){rule_merge(&t, 0, t.rank - 1), t.axis[t.rank - 1]});
}

static Val
matmul_db(Build *b, Val x, Val y, Val g, bool ta, bool tb)
{
	if (val_type(b->g, y)->rank == 2 && !ta) {
		Val m = as_matrix(b, x), gm = as_matrix(b, g);

		return tb ? rule_matmul(b, gm, m, true, false) : rule_matmul(b, m, gm, true, false);
	}
	return tb ? rule_matmul(b, g, x, true, ta) : rule_matmul(b, x, g, !ta, false);
}

/* The gradient in the operands' type: a wide result's comes in f32. */
static Val
narrow_gradient(Build *b, const Op *op, Val g)
{
	return g.id ? build_cast(b, g, (DType)val_type(b->g, op->in[0])->dtype) : g;
}

void
grad_matmul(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	bool ta = attr_bool(op, A_ta), tb = attr_bool(op, A_tb);
	Val x = op->in[0], y = op->in[1], g = narrow_gradient(b, op, dout[0]);
	Type tx = *val_type(b->g, x), ty = *val_type(b->g, y);

	if (!g.id)
		return;
	if (need[0])
		din[0] = build_sum_to(b, ta ? rule_matmul(b, y, g, tb, true) : rule_matmul(b, g, y, false, !tb), &tx);
	if (need[1])
		din[1] = build_sum_to(b, matmul_db(b, x, y, g, ta, tb), &ty);
}

/* One of the family with op's stride, pad, dilation and groups. */
static Val
conv(Build *b, const Op *op, OpKind kind, Val p, Val q, Val like)
{
	AttrArg attrs[RULE_ATTRS];
	Type t = like.id ? *val_type(b->g, like) : (Type){0};

	rule_attrs(op, attrs);
	for (AttrArg *a = attrs; a->name != A_COUNT; a++)
		if (a->name == A_wide)
			a->i = false;
	return build_op(b, kind, VALS(p, q), attrs, like.id ? &t : NULL);
}

void
grad_conv2d(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Val g = narrow_gradient(b, op, dout[0]);

	if (!g.id)
		return;
	if (need[0])
		din[0] = conv(b, op, OP_conv2d_dx, g, op->in[1], op->in[0]);
	if (need[1])
		din[1] = conv(b, op, OP_conv2d_dw, op->in[0], g, op->in[1]);
}

/* (g, w) -> x */
void
grad_conv2d_dx(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Val g = narrow_gradient(b, op, dout[0]);

	if (!g.id)
		return;
	if (need[0])
		din[0] = conv(b, op, OP_conv2d, g, op->in[1], NOVAL);
	if (need[1])
		din[1] = conv(b, op, OP_conv2d_dw, g, op->in[0], op->in[1]);
}

/* (x, g) -> w */
void
grad_conv2d_dw(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Val g = narrow_gradient(b, op, dout[0]);

	if (!g.id)
		return;
	if (need[0])
		din[0] = conv(b, op, OP_conv2d_dx, op->in[1], g, op->in[0]);
	if (need[1])
		din[1] = conv(b, op, OP_conv2d, op->in[0], g, NOVAL);
}
