/* decompose_rnn.c: lstm, gru and their gradients as matrix products over all steps and one op for the recurrence.
 *
 * In: the composite op; x [N,T,C], gates of G = 4 (i f g o) or 3 (r z n) blocks of H.  Out: the same results.
 * Forward: x W_ih^T + b for all steps is one product; lstm.cells (gru.cells) does what only steps in order can do and
 * keeps the activated gates. Backward: lstm.cells.dx walks back and gives the gates' gradients of all steps; the
 * gradients of x, of the weights and of the biases are one product or sum each over all steps.
 * The gates come from the forward op where it stands in the same graph; else they are computed again in two products
 * from x and the previous h (y moved by one step). With reverse the first live step of a row follows dead ones, so its
 * previous state is the start. Targets without a kernel for the recurrence have it unrolled: decompose_cells.c. */
#include "rnn.h"
#include "rules.h"

Rnn
rnn_begin(Build *b, const Op *op, Val x, int64_t h, int length)
{
	Rnn r = {.b = b, .op = op, .h = h, .reverse = attr_bool(op, A_reverse)};
	Type xt = *val_type(b->g, x);

	r.dt = (DType)xt.dtype;
	r.n = xt.axis[0];
	r.t = xt.axis[1].n;
	r.rows = rule_merge(&xt, 0, 2);
	if (attr_bool(op, A_has_length)) {
		Type t = type_of(DT_i32, 3, (Axis[]){axis(1), axis(r.t), axis(1)});
		Val pos = build_op(b, OP_iota, NULL, 0, ATTRS(AI(axis, 1)), &t), n;

		r.length = op->in[length];
		n = build_reshape(b, build_cast(b, r.length, DT_i32), 3, (Axis[]){r.n, axis(1), axis(1)});
		r.alive = build(b, OP_lt, pos, n);
	}
	return r;
}

Val
rnn_ew(const Rnn *r, OpKind k, Val x, Val y)
{
	return build(r->b, k, x, y);
}

Val
rnn_constant(const Rnn *r, double v)
{
	return build_const(r->b, r->dt, v);
}

Val
rnn_flat(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[2];

	return build_reshape(r->b, v, 2, (Axis[]){r->rows, width});
}

Val
rnn_steps(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[1];

	return build_reshape(r->b, v, 3, (Axis[]){r->n, axis(r->t), width});
}

Val
rnn_first(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[1];

	return build_reshape(r->b, v, 3, (Axis[]){r->n, axis(1), width});
}

Val
rnn_gate(const Rnn *r, Val v, int k)
{
	return rule_slice(r->b, v, val_type(r->b->g, v)->rank - 1, k * r->h, (k + 1) * r->h, 1);
}

Val
rnn_project(const Rnn *r, Val x, Val w, Val bias)
{
	Val product = rule_matmul(r->b, rnn_flat(r, x), w, false, true);

	return rnn_steps(r, bias.id ? rnn_ew(r, OP_add, product, bias) : product);
}

Val
rnn_previous(const Rnn *r, Val v, Val start)
{
	Build *b = r->b;
	Val first = rnn_first(r, start), moved;

	if (r->t == 1)
		return first;
	if (!r->reverse)
		return rule_concat(b, (Val[]){first, rule_slice(b, v, 1, 0, r->t - 1, 1)}, 2, 1);
	moved = rule_slice(b, v, 1, 1, r->t, 1);
	if (r->alive.id)
		moved = build(b, OP_where, rule_slice(b, r->alive, 1, 1, r->t, 1), moved, first);
	return rule_concat(b, (Val[]){moved, first}, 2, 1);
}

Val
rnn_masked(const Rnn *r, Val v, double dead)
{
	return r->alive.id ? build(r->b, OP_where, r->alive, v, rnn_constant(r, dead)) : v;
}

/* The attributes that the recurrence takes over. */
#define CELL_ATTRS(r) ATTRS(AB(reverse, (r)->reverse), AB(has_length, (r)->alive.id != 0))

/* Appends op k with n operands and the lengths; its results are in build_last. */
static const Op *
cells(const Rnn *r, OpKind k, const Val *operand, int n)
{
	Val in[8];

	for (int i = 0; i < n; i++)
		in[i] = operand[i];
	if (r->length.id)
		in[n++] = r->length;
	build_op(r->b, k, in, n, CELL_ATTRS(r), NULL);
	return build_last(r->b);
}

/* Result `which` of the recurrence that made y in this graph; NOVAL if y comes from elsewhere. */
static Val
kept_gates(const Rnn *r, Val y, OpKind kind, int which)
{
	const Op *op = val_op(r->b->g, y);

	return op && (OpKind)op->kind == kind && op->out[0].id == y.id ? op->out[which] : NOVAL;
}

/* Input, weight and bias gradients from the gates' gradients [N,T,G*H] on either side. */
static void
rnn_products(const Rnn *r, const Val *in, Val di, Val dh, Val h_before, Val *out)
{
	Val fi = rnn_flat(r, di), fh = dh.id == di.id ? fi : rnn_flat(r, dh);
	int64_t rows = 0;

	out[0] = rnn_steps(r, rule_matmul(r->b, fi, in[1], false, false));
	out[1] = rule_matmul(r->b, fi, rnn_flat(r, in[0]), true, false);
	out[2] = rule_matmul(r->b, fh, rnn_flat(r, h_before), true, false);
	out[3] = build_reduce(r->b, OP_sum, fi, &rows, 1, false);
	out[4] = dh.id == di.id ? out[3] : build_reduce(r->b, OP_sum, fh, &rows, 1, false);
}

/* ---------------------------------------------------------------- lstm */
void
decompose_lstm(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in;                      /* x w_ih w_hh b_ih b_hh h0 c0 */
	Rnn r = rnn_begin(b, op, in[0], val_type(b->g, in[2])->axis[1].n, 7);
	Val bias = rnn_ew(&r, OP_add, in[3], in[4]), gx = rnn_project(&r, in[0], in[1], bias);
	const Op *made = cells(&r, OP_lstm_cells, (Val[]){gx, in[2], in[5], in[6]}, 4);

	out[0] = made->out[0];
	out[1] = made->out[1];
	out[2] = made->out[3];
	out[3] = made->out[4];
}

void
decompose_lstm_dx(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in + 3;                  /* the forward op's, then y, c */
	Rnn r = rnn_begin(b, op, in[0], val_type(b->g, in[2])->axis[1].n, 12);
	Val y = in[7], c = in[8], gates = kept_gates(&r, y, OP_lstm_cells, 2), h_before = rnn_previous(&r, y, in[5]), d;
	const Op *made;

	if (!gates.id) {
		Val bias = rnn_ew(&r, OP_add, in[3], in[4]), from_x = rnn_project(&r, in[0], in[1], bias);
		Val from_h = rnn_project(&r, h_before, in[2], NOVAL);

		gates = lstm_gates(&r, rnn_ew(&r, OP_add, from_x, from_h));
	}
	made = cells(&r, OP_lstm_cells_dx, (Val[]){op->in[0], op->in[1], op->in[2], gates, c, in[2], in[6]}, 7);
	d = made->out[0];
	out[5] = made->out[1];
	out[6] = made->out[2];
	rnn_products(&r, in, d, d, h_before, out);
}

/* ---------------------------------------------------------------- gru */
void
decompose_gru(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in;                      /* x w_ih w_hh b_ih b_hh h0 */
	Rnn r = rnn_begin(b, op, in[0], val_type(b->g, in[2])->axis[1].n, 6);
	Val gx = rnn_project(&r, in[0], in[1], in[3]);
	const Op *made = cells(&r, OP_gru_cells, (Val[]){gx, in[2], in[4], in[5]}, 4);

	out[0] = made->out[0];
	out[1] = made->out[2];
}

void
decompose_gru_dx(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in + 2;                  /* the forward op's, then y */
	Rnn r = rnn_begin(b, op, in[0], val_type(b->g, in[2])->axis[1].n, 9);
	Val y = in[6], gates = kept_gates(&r, y, OP_gru_cells, 1), h_before = rnn_previous(&r, y, in[5]), di, dh;
	const Op *made;

	if (!gates.id) {
		Val gx = rnn_project(&r, in[0], in[1], in[3]);

		gates = gru_gates(&r, gx, rnn_project(&r, h_before, in[2], in[4]));
	}
	made = cells(&r, OP_gru_cells_dx, (Val[]){op->in[0], op->in[1], gates, y, in[2], in[5]}, 6);
	di = made->out[0];
	dh = made->out[1];
	out[5] = made->out[2];
	rnn_products(&r, in, di, dh, h_before, out);
}
