/* decompose_cells.c: the recurrences lstm.cells, gru.cells and their gradients unrolled over T into primitive ops.
 *
 * In: the op; gx [N,T,G*H] holds what does not depend on earlier steps.  Out: the same results.
 * A step has one product with W_hh and its gates. Backward, the derivatives of the gates become coefficient tensors for
 * all steps at once, and a step only multiplies the running gradient by them and by W_hh.
 * `length` masks: past it a step leaves h and c alone and y and the gates are 0; backward the coefficients there are 0
 * and the running gradient passes. W_hh alone may be of 16 bits. */
#include "rnn.h"
#include "rules.h"

/* Step t of [N,T,W] as [N,W]. */
static Val
at_step(const Rnn *r, Val v, int64_t t)
{
	Val s = rule_slice(r->b, v, 1, t, t + 1, 1);
	Axis width = val_type(r->b->g, s)->axis[2];

	return build_reshape(r->b, s, 2, (Axis[]){r->n, width});
}

static Val
one_minus(const Rnn *r, Val x)
{
	return rnn_ew(r, OP_sub, rnn_constant(r, 1), x);
}

/* The steps' values in the order of time, as [N,T,W]. v[i] is of the i-th step processed. */
static Val
in_time(const Rnn *r, const Val *v)
{
	Val *ordered = arena_array(r->b->g->arena, Val, r->t);

	for (int64_t i = 0; i < r->t; i++)
		ordered[rnn_step(r, i)] = rnn_first(r, v[i]);
	return rule_concat(r->b, ordered, (int)r->t, 1);
}

/* dead NOVAL: 0. */
static Val
where_alive(const Rnn *r, int64_t t, Val live, Val dead)
{
	if (!r->alive.id)
		return live;
	if (!dead.id)
		dead = rnn_constant(r, 0);
	return build(r->b, OP_where, at_step(r, r->alive, t), live, dead);
}

/* x W_hh, or x W_hh^T; W_hh of 16 bits: x is rounded to its type, sums are as wide as x. */
static Val
times_weights(const Rnn *r, Val x, Val w_hh, bool transposed)
{
	DType of = (DType)val_type(r->b->g, x)->dtype, to = (DType)val_type(r->b->g, w_hh)->dtype;

	if (of == to)
		return rule_matmul(r->b, x, w_hh, false, transposed);
	return build_op(r->b, OP_matmul, VALS(build_cast(r->b, x, to), w_hh), ATTRS(AB(tb, transposed), AB(wide, true)),
	                NULL);
}

/* ---------------------------------------------------------------- lstm */
/* i f g o after their activations, of sums [..., 4H]. */
static void
lstm_activate(const Rnn *r, Val sums, Val gate[4])
{
	for (int k = 0; k < 4; k++)
		gate[k] = build(r->b, k == 2 ? OP_tanh : OP_sigmoid, rnn_gate(r, sums, k));
}

Val
lstm_gates(const Rnn *r, Val sums)
{
	Val gate[4];

	lstm_activate(r, sums, gate);
	return rnn_masked(r, rule_concat(r->b, gate, 4, 2), 0);
}

void
decompose_lstm_cells(Build *b, const Op *op, Val *out)
{
	Val gx = op->in[0], w_hh = op->in[1], h = op->in[2], c = op->in[3];
	Rnn r = rnn_begin(b, op, gx, val_type(b->g, w_hh)->axis[1].n, 4);
	Val *ys = arena_array(b->g->arena, Val, r.t), *cs = arena_array(b->g->arena, Val, r.t),
	    *gs = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = 0; i < r.t; i++) {
		int64_t t = rnn_step(&r, i);
		Val from_x = at_step(&r, gx, t), from_h = times_weights(&r, h, w_hh, true), gate[4], kept, c1, h1;

		lstm_activate(&r, rnn_ew(&r, OP_add, from_x, from_h), gate);
		kept = rnn_ew(&r, OP_mul, gate[1], c);
		c1 = rnn_ew(&r, OP_add, kept, rnn_ew(&r, OP_mul, gate[0], gate[2]));
		h1 = rnn_ew(&r, OP_mul, gate[3], build(b, OP_tanh, c1));
		gs[i] = where_alive(&r, t, rule_concat(b, gate, 4, 1), NOVAL);
		ys[i] = where_alive(&r, t, h1, NOVAL);
		h = where_alive(&r, t, h1, h);
		cs[i] = c = where_alive(&r, t, c1, c);
	}
	out[0] = in_time(&r, ys);
	out[1] = in_time(&r, cs);
	out[2] = in_time(&r, gs);
	out[3] = h;
	out[4] = c;
}

/* What a step of lstm's backward multiplies by, for all steps. */
typedef struct LstmCoefficients { Val cell[3], output, keep, forget, dead; } LstmCoefficients;

static LstmCoefficients
lstm_coefficients(const Rnn *r, Val gates, Val c, Val c_before)
{
	Build *b = r->b;
	Val i = rnn_gate(r, gates, 0), f = rnn_gate(r, gates, 1), g = rnn_gate(r, gates, 2), o = rnn_gate(r, gates, 3),
	    tc = build(b, OP_tanh, c);
	LstmCoefficients k;

	k.cell[0] = rnn_masked(r, rnn_ew(r, OP_mul, g, rnn_ew(r, OP_mul, i, one_minus(r, i))), 0);
	k.cell[1] = rnn_masked(r, rnn_ew(r, OP_mul, c_before, rnn_ew(r, OP_mul, f, one_minus(r, f))), 0);
	k.cell[2] = rnn_masked(r, rnn_ew(r, OP_mul, i, one_minus(r, build(b, OP_square, g))), 0);
	k.output = rnn_masked(r, rnn_ew(r, OP_mul, tc, rnn_ew(r, OP_mul, o, one_minus(r, o))), 0);
	k.keep = rnn_masked(r, rnn_ew(r, OP_mul, o, one_minus(r, build(b, OP_square, tc))), 0);
	k.forget = rnn_masked(r, f, 1);
	k.dead = r->alive.id ? build_cast(b, build(b, OP_not, r->alive), r->dt) : NOVAL;
	return k;
}

/* The running gradients through step t, and that step's gates' gradient [N,4H]. */
static Val
lstm_back(const Rnn *r, const LstmCoefficients *k, Val w_hh, Val gy, int64_t t, Val *dh, Val *dc)
{
	Val h = rnn_ew(r, OP_add, at_step(r, gy, t), *dh), part[4], d;
	Val c = rnn_ew(r, OP_add, *dc, rnn_ew(r, OP_mul, h, at_step(r, k->keep, t)));

	for (int j = 0; j < 3; j++)
		part[j] = rnn_ew(r, OP_mul, c, at_step(r, k->cell[j], t));
	part[3] = rnn_ew(r, OP_mul, h, at_step(r, k->output, t));
	d = rule_concat(r->b, part, 4, 1);
	*dc = rnn_ew(r, OP_mul, c, at_step(r, k->forget, t));
	*dh = times_weights(r, d, w_hh, false);
	if (k->dead.id)
		*dh = rnn_ew(r, OP_add, *dh, rnn_ew(r, OP_mul, h, at_step(r, k->dead, t)));
	return d;
}

void
decompose_lstm_cells_dx(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in;                      /* gy gh gc gates c w_hh c0 */
	Rnn r = rnn_begin(b, op, in[3], val_type(b->g, in[5])->axis[1].n, 7);
	Val gy = rnn_masked(&r, in[0], 0), dh = in[1], dc = in[2], c_before = rnn_previous(&r, in[4], in[6]);
	LstmCoefficients k = lstm_coefficients(&r, in[3], in[4], c_before);
	Val *ds = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = r.t; i-- > 0;)
		ds[i] = lstm_back(&r, &k, in[5], gy, rnn_step(&r, i), &dh, &dc);
	out[0] = in_time(&r, ds);
	out[1] = dh;
	out[2] = dc;
}

/* ---------------------------------------------------------------- gru */
/* r z n and U h + b of n, from both sides' sums [..., 3H]. */
static void
gru_activate(const Rnn *r, Val gx, Val gh, Val gate[4])
{
	Build *b = r->b;

	for (int k = 0; k < 2; k++) {
		Val x = rnn_gate(r, gx, k);

		gate[k] = build(b, OP_sigmoid, rnn_ew(r, OP_add, x, rnn_gate(r, gh, k)));
	}
	Val nx = rnn_gate(r, gx, 2);

	gate[3] = rnn_gate(r, gh, 2);
	gate[2] = build(b, OP_tanh, rnn_ew(r, OP_add, nx, rnn_ew(r, OP_mul, gate[0], gate[3])));
}

Val
gru_gates(const Rnn *r, Val gx, Val gh)
{
	Val gate[4];

	gru_activate(r, gx, gh, gate);
	return rnn_masked(r, rule_concat(r->b, gate, 4, 2), 0);
}

/* h' = n + z (h - n), n = tanh(gx_n + r gh_n). */
void
decompose_gru_cells(Build *b, const Op *op, Val *out)
{
	Val gx = op->in[0], w_hh = op->in[1], h = op->in[3];
	Rnn r = rnn_begin(b, op, gx, val_type(b->g, w_hh)->axis[1].n, 4);
	Val *ys = arena_array(b->g->arena, Val, r.t), *gs = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = 0; i < r.t; i++) {
		int64_t t = rnn_step(&r, i);
		Val gh = rnn_ew(&r, OP_add, times_weights(&r, h, w_hh, true), op->in[2]), gate[4], h1;

		gru_activate(&r, at_step(&r, gx, t), gh, gate);
		h1 = rnn_ew(&r, OP_add, gate[2], rnn_ew(&r, OP_mul, gate[1], rnn_ew(&r, OP_sub, h, gate[2])));
		gs[i] = where_alive(&r, t, rule_concat(b, gate, 4, 1), NOVAL);
		ys[i] = where_alive(&r, t, h1, NOVAL);
		h = where_alive(&r, t, h1, h);
	}
	out[0] = in_time(&r, ys);
	out[1] = in_time(&r, gs);
	out[2] = h;
}

/* Coefficients of dh, for all steps: gates r, z, n on x's side, n on h's side, and what passes straight to the step
 * before. */
typedef struct GruCoefficients { Val gate[3], n_hidden, pass; } GruCoefficients;

static GruCoefficients
gru_coefficients(const Rnn *r, Val gates, Val h_before)
{
	Val reset = rnn_gate(r, gates, 0), z = rnn_gate(r, gates, 1), n = rnn_gate(r, gates, 2),
	    ghn = rnn_gate(r, gates, 3);
	Val fresh = one_minus(r, z),
	    dn = rnn_masked(r, rnn_ew(r, OP_mul, fresh, one_minus(r, build(r->b, OP_square, n))), 0), t;
	GruCoefficients k;

	k.gate[2] = dn;
	k.n_hidden = rnn_ew(r, OP_mul, dn, reset);
	t = rnn_ew(r, OP_mul, k.n_hidden, ghn);
	k.gate[0] = rnn_ew(r, OP_mul, t, one_minus(r, reset));
	t = rnn_ew(r, OP_sub, h_before, n);
	k.gate[1] = rnn_masked(r, rnn_ew(r, OP_mul, t, rnn_ew(r, OP_mul, z, fresh)), 0);
	k.pass = rnn_masked(r, z, 1);
	return k;
}

/* The gates' gradients from all steps' dh: [N,T,3H]. */
static Val
gru_all(const Rnn *r, const GruCoefficients *k, Val dh, Val n)
{
	const Val by[3] = {k->gate[0], k->gate[1], n};
	Val part[3];

	for (int j = 0; j < 3; j++)
		part[j] = rnn_ew(r, OP_mul, dh, by[j]);
	return rule_concat(r->b, part, 3, 2);
}

void
decompose_gru_cells_dx(Build *b, const Op *op, Val *out)
{
	const Val *in = op->in;                      /* gy gh gates y w_hh h0 */
	Rnn r = rnn_begin(b, op, in[2], val_type(b->g, in[4])->axis[1].n, 6);
	Val gy = rnn_masked(&r, in[0], 0), dh = in[1], all;
	GruCoefficients k = gru_coefficients(&r, in[2], rnn_previous(&r, in[3], in[5]));
	Val hidden = rule_concat(b, (Val[]){k.gate[0], k.gate[1], k.n_hidden}, 3, 2);
	Val *dhs = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = r.t; i-- > 0;) {
		int64_t t = rnn_step(&r, i);
		Val d = rnn_ew(&r, OP_add, at_step(&r, gy, t), dh), thrice = rule_concat(b, (Val[]){d, d, d}, 3, 1);

		dhs[i] = d;
		dh = times_weights(&r, rnn_ew(&r, OP_mul, thrice, at_step(&r, hidden, t)), in[4], false);
		dh = rnn_ew(&r, OP_add, dh, rnn_ew(&r, OP_mul, d, at_step(&r, k.pass, t)));
	}
	all = in_time(&r, dhs);
	out[0] = gru_all(&r, &k, all, k.gate[2]);
	out[1] = gru_all(&r, &k, all, k.n_hidden);
	out[2] = dh;
}
