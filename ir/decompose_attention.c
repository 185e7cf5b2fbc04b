/* decompose_attention.c: attention and attention.dx in primitive ops.
 *
 * In: the composite op.  Out: scores = q k^T scale (+ mask, causal by comparing two iotas), their row log-sum, weights
 * = exp(scores - log-sum), dropout on the weights, and y = weights v. Backward recomputes the weights from the log-sum
 * (Dao et al. 2022) and the dropout from (seed, step, stream): nothing of size T x S is kept from the forward pass.
 * wide: the operands of 16 bits are made f32 first, and all is f32.
 * With D = rowsum(g y): ds = p (dp - D), dq = scale ds k, dk = scale ds^T q, dv = w^T g. */
#include <math.h>
#include "grad.h"
#include "rules.h"

AttentionIn
attention_inputs(Build *b, const Op *op, int first)
{
	AttentionIn in = {.q = op->in[first], .k = op->in[first + 1], .v = op->in[first + 2]};
	int n = first + 3 + (first ? 2 : 0);   /* attention.dx has y and lse between v and the mask */

	if (attr_bool(op, A_has_mask))
		in.mask = op->in[n++];
	if (attr_num(op, A_p) > 0) {
		in.seed = op->in[n++];
		in.step = op->in[n];
	}
	if (attr_bool(op, A_wide)) {
		in.q = build_cast(b, in.q, DT_f32);
		in.k = build_cast(b, in.k, DT_f32);
		in.v = build_cast(b, in.v, DT_f32);
	}
	return in;
}

/* Positions 0, 1, ... along axis ax of t, extent 1 elsewhere. */
static Val
positions(Build *b, const Type *t, int ax)
{
	Axis axes[2] = {axis(1), axis(1)};
	Type r;

	axes[ax - (t->rank - 2)] = t->axis[ax];
	r = type_of(DT_i32, 2, axes);
	return build_op(b, OP_iota, NULL, 0, ATTRS(AI(axis, ax - (t->rank - 2))), &r);
}

Val
attention_scores(Build *b, const Op *op, const AttentionIn *in)
{
	DType dt = val_type(b->g, in->q)->dtype;
	Val s = rule_matmul(b, in->q, in->k, false, true);
	Type t;

	s = build(b, OP_mul, s, build_const(b, dt, attr_num(op, A_scale)));
	t = *val_type(b->g, s);
	if (in->mask.id) {
		if (dtype_is_float(val_type(b->g, in->mask)->dtype))
			s = build(b, OP_add, s, in->mask);
		else
			s = build(b, OP_where, in->mask, s, build_const(b, dt, -INFINITY));
	}
	if (attr_bool(op, A_causal)) {
		Val key = positions(b, &t, t.rank - 1), keep = build(b, OP_le, key, positions(b, &t, t.rank - 2));

		s = build(b, OP_where, keep, s, build_const(b, dt, -INFINITY));
	}
	return s;
}

/* The rows' log-sums; +infinity for a row whose mask hides every key, which makes its weights 0, as PyTorch's
 * scaled_dot_product_attention has them. Without a mask each row sees a key. */
static Val
log_sums(Build *b, Val s, const AttentionIn *in)
{
	int64_t last = val_type(b->g, s)->rank - 1;
	DType dt = (DType)val_type(b->g, s)->dtype;
	Val lse = build_reduce(b, OP_logsumexp, s, &last, 1, false), none;

	if (!in->mask.id)
		return lse;
	none = build(b, OP_eq, lse, build_const(b, dt, -INFINITY));
	return build(b, OP_where, none, build_const(b, dt, INFINITY), lse);
}

/* exp(s - lse), lse being of the rows' shape. */
static Val
weights_of(Build *b, Val s, Val lse)
{
	Type t = *val_type(b->g, s);
	int64_t last = t.rank - 1;

	return build(b, OP_exp, build(b, OP_sub, s, rule_keep(b, lse, &t, &last, 1)));
}

Val
attention_dropout(Build *b, const Op *op, const AttentionIn *in, const Type *scores, Val weights)
{
	double p = attr_num(op, A_p);
	Type t = type_of(DT_f32, scores->rank, scores->axis);
	Val u, keep, scaled;

	if (!(p > 0))
		return weights;
	u = build_op(b, OP_random, VALS(in->seed, in->step),
	             ATTRS(AS(stream, attr_str(op, A_stream)), AI(per, attr_int(op, A_per))), &t);
	/* uniforms are multiples of 2^-24: the bound rounded up to one is the same test, and exact in f32 */
	keep = build(b, OP_ge, u, build_const(b, DT_f32, ceil(p * 0x1p24) * 0x1p-24));
	scaled = p < 1 ? build(b, OP_mul, weights, build_const(b, scores->dtype, 1 / (1 - p))) : weights;
	return build(b, OP_where, keep, scaled, build_const(b, scores->dtype, 0));
}

void
decompose_attention(Build *b, const Op *op, Val *out)
{
	AttentionIn in = attention_inputs(b, op, 0);
	Val s = attention_scores(b, op, &in), w;
	Type t = *val_type(b->g, s);

	out[1] = log_sums(b, s, &in);
	w = attention_dropout(b, op, &in, &t, weights_of(b, s, out[1]));
	out[0] = rule_matmul(b, w, in.v, false, false);
}

Val
attention_dscores(Build *b, const Op *op, const AttentionIn *in, Val g, Val y, Val lse, Val dlse, Val *weights)
{
	Val s = attention_scores(b, op, in), p = weights_of(b, s, lse), dp, rows;
	Type t = *val_type(b->g, s), ty = *val_type(b->g, y);
	int64_t last = t.rank - 1, ylast = ty.rank - 1;

	*weights = attention_dropout(b, op, in, &t, p);
	dp = attention_dropout(b, op, in, &t, rule_matmul(b, g, in->v, false, true));
	rows = build_reduce(b, OP_sum, build(b, OP_mul, g, y), &ylast, 1, true);
	if (dlse.id)
		rows = build(b, OP_sub, rows, rule_keep(b, dlse, &t, &last, 1));
	return build(b, OP_mul, p, build(b, OP_sub, dp, rows));
}

void
attention_dqkv(Build *b, const Op *op, const AttentionIn *in, Val g, Val ds, Val weights, Val out[3])
{
	Type tq = *val_type(b->g, in->q), tk = *val_type(b->g, in->k), tv = *val_type(b->g, in->v);
	Val scaled = build(b, OP_mul, ds, build_const(b, tq.dtype, attr_num(op, A_scale)));

	out[0] = build_sum_to(b, rule_matmul(b, scaled, in->k, false, false), &tq);
	out[1] = build_sum_to(b, rule_matmul(b, scaled, in->q, true, false), &tk);
	out[2] = build_sum_to(b, rule_matmul(b, weights, g, true, false), &tv);
}

void
decompose_attention_dx(Build *b, const Op *op, Val *out)
{
	AttentionIn in = attention_inputs(b, op, 1);
	DType dt = (DType)val_type(b->g, in.q)->dtype; /* wide: f32 */
	Val g = build_cast(b, op->in[0], dt), y = build_cast(b, op->in[4], dt), weights;
	Val ds = attention_dscores(b, op, &in, g, y, op->in[5], NOVAL, &weights);

	attention_dqkv(b, op, &in, g, ds, weights, out);
}
