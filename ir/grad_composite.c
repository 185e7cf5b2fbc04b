/* grad_composite.c: gradients of attention, lstm and gru: one gradient op each, which a target may have a kernel for
 * and pass expand replaces otherwise.
 *
 * In: the composite op.  Out: NAME.dx with the forward's results that it needs (attention: y and the rows' log-sums;
 * lstm: y and c; gru: y). A float mask that wants a gradient, or a gradient of the log-sums, gets the scores' gradient
 * written out, because attention.dx does not return it. */
#include "grad.h"
#include "rules.h"

static bool
any(const bool *need, int n)
{
	for (int i = 0; i < n; i++)
		if (need[i])
			return true;
	return false;
}

/* The gradient of a result that nobody used is zero. */
static Val
or_zeros(Build *b, Val g, Val result)
{
	Type t = *val_type(b->g, result);

	return g.id ? g : rule_zeros(b, &t);
}

/* Runs NAME.dx and hands out its results to the wanted among the first n inputs. */
static void
take_results(Build *b, OpKind kind, const Val *in, int nin, const AttrArg *attrs, const bool *need, Val *din, int n)
{
	const Op *dx;

	if (!build_op(b, kind, in, nin, attrs, NULL).id)
		return;
	dx = build_last(b);
	for (int i = 0; i < n; i++)
		if (need[i])
			din[i] = dx->out[i];
}

/* With the scores' gradient in the open: for a learned mask. */
static void
attention_open(Build *b, const Op *op, const Val *dout, const bool *need, Val *din, bool mask)
{
	AttentionIn in = attention_inputs(b, op, 0);
	Val g = or_zeros(b, dout[0], op->out[0]), weights, out[3];
	Val ds = attention_dscores(b, op, &in, g, op->out[0], op->out[1], dout[1], &weights);

	attention_dqkv(b, op, &in, g, ds, weights, out);
	for (int i = 0; i < 3; i++)
		if (need[i])
			din[i] = build_cast(b, out[i], (DType)val_type(b->g, op->in[i])->dtype);
	if (mask) {
		Type t = *val_type(b->g, in.mask);

		din[3] = build_sum_to(b, ds, &t);
	}
}

void
grad_attention(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Val in[10] = {dout[0]};
	bool mask = attr_bool(op, A_has_mask) && need[3] && dtype_is_float(val_type(b->g, op->in[3])->dtype);
	int n = 1;

	if (!any(need, op->nin) || (!dout[0].id && !dout[1].id))
		return;
	if (mask || dout[1].id) {
		attention_open(b, op, dout, need, din, mask);
		return;
	}
	/* of a wide one in f32, as the results are */
	for (int i = 0; i < 3; i++)
		in[n++] = build_cast(b, op->in[i], (DType)val_type(b->g, op->out[0])->dtype);
	in[n++] = op->out[0];
	in[n++] = op->out[1];
	for (int i = 3; i < op->nin; i++)
		in[n++] = op->in[i];
	rule_attrs(op, attrs);
	for (AttrArg *a = attrs; a->name != A_COUNT; a++)
		if (a->name == A_wide)
			a->i = false;
	take_results(b, OP_attention_dx, in, n, attrs, need, din, 3);
	for (int i = 0; i < 3; i++)
		if (need[i])
			din[i] = build_cast(b, din[i], (DType)val_type(b->g, op->in[i])->dtype);
}

void
grad_lstm(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Val in[13];
	int n = 0;

	if (!any(need, 7) || (!dout[0].id && !dout[2].id && !dout[3].id))
		return;
	if (dout[1].id)
		bug("lstm: a gradient of the cell states of every step");
	in[n++] = or_zeros(b, dout[0], op->out[0]);
	in[n++] = or_zeros(b, dout[2], op->out[2]);
	in[n++] = or_zeros(b, dout[3], op->out[3]);
	for (int i = 0; i < 7; i++)
		in[n++] = op->in[i];
	in[n++] = op->out[0];
	in[n++] = op->out[1];
	if (attr_bool(op, A_has_length))
		in[n++] = op->in[7];
	rule_attrs(op, attrs);
	take_results(b, OP_lstm_dx, in, n, attrs, need, din, 7);
}

void
grad_gru(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Val in[10];
	int n = 0;

	if (!any(need, 6) || (!dout[0].id && !dout[1].id))
		return;
	in[n++] = or_zeros(b, dout[0], op->out[0]);
	in[n++] = or_zeros(b, dout[1], op->out[1]);
	for (int i = 0; i < 6; i++)
		in[n++] = op->in[i];
	in[n++] = op->out[0];
	if (attr_bool(op, A_has_length))
		in[n++] = op->in[6];
	rule_attrs(op, attrs);
	take_results(b, OP_gru_dx, in, n, attrs, need, din, 6);
}
