/* grad_red.c: gradients of the reductions of red.def.
 *
 * In: a reduction over attribute axes.  Out: the gradient broadcast back over these axes.
 * sum: g. mean: g / n. max, min: equal shares among the elements that attain the extremum (PyTorch's amax). moments:
 * dmean / n + 2 dvar (x - mean) / n. logsumexp: g exp(x - r), the softmax. argmax has none.
 * n is a constant unless a reduced axis follows the batch. */
#include "grad.h"

typedef struct Reduced { Build *b; const Op *op; Type x; const int64_t *axes; int n; } Reduced;

/* A result-shaped value, ready to broadcast against x. */
static Val
kept(const Reduced *r, Val v)
{
	return rule_keep(r->b, v, &r->x, r->axes, r->n);
}

static Val
count(const Reduced *r)
{
	return rule_count(r->b, &r->x, r->axes, r->n, r->x.dtype);
}

static Val
extremum_dx(const Reduced *r, Val g)
{
	Build *b = r->b;
	Val hit = build(b, OP_eq, r->op->in[0], kept(r, r->op->out[0]));
	Val ties = build_reduce(b, OP_sum, build_cast(b, hit, r->x.dtype), r->axes, r->n, true);
	Val whole = kept(r, g), share = build(b, OP_div, whole, ties);

	return build(b, OP_where, hit, share, build_const(b, r->x.dtype, 0));
}

static Val
moments_dx(const Reduced *r, Val dmean, Val dvar)
{
	Build *b = r->b;
	Val sum = NOVAL;

	if (dvar.id) {
		Val centred = build(b, OP_sub, r->op->in[0], kept(r, r->op->out[0]));
		Val g = kept(r, dvar), twice = build(b, OP_mul, g, build_const(b, r->x.dtype, 2));

		sum = build(b, OP_mul, centred, build(b, OP_div, twice, count(r)));
	}
	if (dmean.id) {
		Val g = kept(r, dmean), share = build(b, OP_div, g, count(r));

		sum = sum.id ? build(b, OP_add, sum, share) : share;
	}
	return sum;
}

void
grad_red(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Reduced r = {.b = b, .op = op, .x = *val_type(b->g, op->in[0])};
	Val g = dout[0], dx = NOVAL;

	if (!need[0] || op->kind == OP_argmax)
		return;
	r.axes = attr_ints(op, A_axes, &r.n);
	if (op->kind == OP_moments)
		dx = moments_dx(&r, dout[0], dout[1]);
	else if (!g.id)
		return;
	else if (op->kind == OP_sum)
		dx = kept(&r, g);
	else if (op->kind == OP_mean)
		g = kept(&r, g), dx = build(b, OP_div, g, count(&r));
	else if (op->kind == OP_max || op->kind == OP_min)
		dx = extremum_dx(&r, g);
	else if (op->kind == OP_logsumexp)
		dx = build(b, OP_exp, build(b, OP_sub, op->in[0], kept(&r, op->out[0]))),
		dx = build(b, OP_mul, dx, kept(&r, g));
	else
		bug("no gradient rule for the reduction %s", op_info[op->kind].name);
	if (dx.id)
		din[0] = rule_like(b, dx, &r.x);
}
