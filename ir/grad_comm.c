/* grad_comm.c: gradients of what shards of a batch exchange.
 *
 * A joined value is read by the loss of every shard, so that its gradient is the sum G of the shards' own. all_reduce:
 * each shard's term gets G. all_reduce.moments of S shards: mean = sum of mean_s / S, variance = sum of
 * (var_s + (mean_s - mean)^2) / S, so mean_s gets (G_mean + 2 G_var (mean_s - mean)) / S and var_s G_var / S: the
 * means' own part of the squares vanishes, as deviations add up to 0. */
#include "grad.h"

static Val
joined(Build *b, Val g)
{
	return g.id ? build_op(b, OP_all_reduce, &g, 1, NULL, NULL) : NOVAL;
}

void
grad_all_reduce(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	(void)op;
	if (need[0])
		din[0] = joined(b, dout[0]);
}

void
grad_all_moments(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	DType t = (DType)val_type(b->g, op->in[0])->dtype;
	Val mean = joined(b, dout[0]), var = joined(b, dout[1]), s, away;

	if (!mean.id && !var.id)
		return;
	s = build_const(b, t, (double)attr_int(op, A_shards));
	if (var.id && need[0]) {
		away = build(b, OP_mul, build(b, OP_sub, op->in[0], op->out[0]), build_const(b, t, 2));
		away = build(b, OP_mul, var, away);
		mean = mean.id ? build(b, OP_add, mean, away) : away;
	}
	if (mean.id && need[0])
		din[0] = build(b, OP_div, mean, s);
	if (var.id && need[1])
		din[1] = build(b, OP_div, var, s);
}
