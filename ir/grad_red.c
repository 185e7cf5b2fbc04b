/* grad_red.c: gradients of the reductions, the functions that red.def names.
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

/* op's; false: nothing is asked. */
static bool
reduced(Reduced *r, Build *b, const Op *op, const Val *dout, const bool *need)
{
	*r = (Reduced){.b = b, .op = op, .x = *val_type(b->g, op->in[0])};
	r->axes = attr_ints(op, A_axes, &r->n);
	return need[0] && (dout[0].id || (op->nout > 1 && dout[1].id));
}

void
grad_sum(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Reduced r;

	if (reduced(&r, b, op, dout, need))
		din[0] = rule_like(b, kept(&r, dout[0]), &r.x);
}

void
grad_mean(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Reduced r;

	if (!reduced(&r, b, op, dout, need))
		return;
	Val g = kept(&r, dout[0]);

	din[0] = rule_like(b, build(b, OP_div, g, count(&r)), &r.x);
}

void
grad_extremum(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Reduced r;

	if (!reduced(&r, b, op, dout, need))
		return;
	Val hit = build(b, OP_eq, op->in[0], kept(&r, op->out[0]));
	Val ties = build_reduce(b, OP_sum, build_cast(b, hit, r.x.dtype), r.axes, r.n, true);
	Val whole = kept(&r, dout[0]), share = build(b, OP_div, whole, ties);

	din[0] = rule_like(b, build(b, OP_where, hit, share, build_const(b, r.x.dtype, 0)), &r.x);
}

void
grad_moments(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Val dmean = dout[0], dvar = dout[1], sum = NOVAL;
	Reduced r;

	if (!reduced(&r, b, op, dout, need))
		return;
	if (dvar.id) {
		Val centred = build(b, OP_sub, op->in[0], kept(&r, op->out[0]));
		Val g = kept(&r, dvar), twice = build(b, OP_mul, g, build_const(b, r.x.dtype, 2));

		sum = build(b, OP_mul, centred, build(b, OP_div, twice, count(&r)));
	}
	if (dmean.id) {
		Val g = kept(&r, dmean), share = build(b, OP_div, g, count(&r));

		sum = sum.id ? build(b, OP_add, sum, share) : share;
	}
	din[0] = rule_like(b, sum, &r.x);
}

void
grad_logsumexp(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	Reduced r;

	if (!reduced(&r, b, op, dout, need))
		return;
	Val below = build(b, OP_exp, build(b, OP_sub, op->in[0], kept(&r, op->out[0])));

	din[0] = rule_like(b, build(b, OP_mul, below, kept(&r, dout[0])), &r.x);
}
