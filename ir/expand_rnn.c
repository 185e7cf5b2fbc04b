/* expand_rnn.c: lstm, gru and their gradients unrolled over T into primitive ops.
 *
 * In: the composite op; x [N,T,C], gates of G = 4 (i f g o) or 3 (r z n) blocks of H.  Out: the same results.
 * Only what the recurrence forces stays in the unrolled part. Forward: x W_ih^T + b for all steps is one product; a step
 * has one product h W_hh^T and its gates. Backward: gates of all steps are recomputed in two products from x and the
 * previous h (y moved by one step), the derivatives of the gates become coefficient tensors for all steps at once, and a
 * step only multiplies the running gradient by them and by W_hh; weight gradients are one product over all steps.
 * `length` masks: past it a step leaves h and c alone and y is 0; backward the coefficients there are 0 and the running
 * gradient passes. With reverse the first live step of a row follows dead ones, so its previous state is the start. */
#include "grad.h"
#include "rules.h"

typedef struct Rnn {
	Build *b;
	const Op *op;
	DType dt;
	Axis n, rows;            /* the batch; batch times T */
	int64_t t, h, gates;     /* steps, width, gates per cell */
	bool reverse;
	Val x, w_ih, w_hh, b_ih, b_hh, h0, c0, length;
	Val alive;               /* bool [N,T,1], none without length */
} Rnn;

static int64_t
step_at(const Rnn *r, int64_t i)
{
	return r->reverse ? r->t - 1 - i : i;
}

static Val
ew(const Rnn *r, OpKind k, Val x, Val y)
{
	return build(r->b, k, x, y);
}

static Val
constant(const Rnn *r, double v)
{
	return build_const(r->b, r->dt, v);
}

static Val
one_minus(const Rnn *r, Val x)
{
	return ew(r, OP_sub, constant(r, 1), x);
}

/* [N,T,W] -> [N*T,W] and back. */
static Val
flat(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[2];

	return build_reshape(r->b, v, 2, (Axis[]){r->rows, width});
}

static Val
steps(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[1];

	return build_reshape(r->b, v, 3, (Axis[]){r->n, axis(r->t), width});
}

/* Step t of [N,T,W] as [N,W]. */
static Val
at_step(const Rnn *r, Val v, int64_t t)
{
	Val s = rule_slice(r->b, v, 1, t, t + 1, 1);
	Axis width = val_type(r->b->g, s)->axis[2];

	return build_reshape(r->b, s, 2, (Axis[]){r->n, width});
}

/* [N,W] as one step of a concat over T: [N,1,W]. */
static Val
as_step(const Rnn *r, Val v)
{
	Axis width = val_type(r->b->g, v)->axis[1];

	return build_reshape(r->b, v, 3, (Axis[]){r->n, axis(1), width});
}

/* Block k of the gates along the last axis. */
static Val
gate(const Rnn *r, Val v, int k)
{
	return rule_slice(r->b, v, val_type(r->b->g, v)->rank - 1, k * r->h, (k + 1) * r->h, 1);
}

static Rnn
rnn_of(Build *b, const Op *op, int first, int64_t gates, bool cell, int between)
{
	Rnn r = {.b = b, .op = op, .gates = gates, .reverse = attr_bool(op, A_reverse)};
	Type x = *val_type(b->g, op->in[first]);
	const Val *in = op->in + first;

	r.dt = x.dtype;
	r.n = x.axis[0];
	r.t = x.axis[1].n;
	r.rows = rule_merge(&x, 0, 2);
	r.h = val_type(b->g, in[2])->axis[1].n;
	r.x = in[0], r.w_ih = in[1], r.w_hh = in[2], r.b_ih = in[3], r.b_hh = in[4], r.h0 = in[5];
	r.c0 = cell ? in[6] : NOVAL;
	if (attr_bool(op, A_has_length)) {
		Type t = type_of(DT_i32, 3, (Axis[]){axis(1), axis(r.t), axis(1)});
		Val pos = build_op(b, OP_iota, NULL, 0, ATTRS(AI(axis, 1)), &t);
		Val length = build_cast(b, in[6 + cell + between], DT_i32);

		length = build_reshape(b, length, 3, (Axis[]){r.n, axis(1), axis(1)});
		r.alive = build(b, OP_lt, pos, length);
	}
	return r;
}

/* x W^T + bias for all steps: [N,T,G*H]. */
static Val
project(const Rnn *r, Val x, Val w, Val bias)
{
	return steps(r, ew(r, OP_add, rule_matmul(r->b, flat(r, x), w, false, true), bias));
}

/* The steps' values in the order of time, as [N,T,W]. v[i] is of the i-th step processed. */
static Val
in_time(const Rnn *r, const Val *v)
{
	Val *ordered = arena_array(r->b->g->arena, Val, r->t);

	for (int64_t i = 0; i < r->t; i++)
		ordered[step_at(r, i)] = as_step(r, v[i]);
	return rule_concat(r->b, ordered, (int)r->t, 1);
}

/* v [N,T,W] of the step processed before, the start's for the first live one. */
static Val
previous(const Rnn *r, Val v, Val start)
{
	Build *b = r->b;
	Val first = as_step(r, start), moved;

	if (r->t == 1)
		return first;
	if (!r->reverse)
		return rule_concat(b, (Val[]){first, rule_slice(b, v, 1, 0, r->t - 1, 1)}, 2, 1);
	moved = rule_slice(b, v, 1, 1, r->t, 1);
	if (r->alive.id)
		moved = build(b, OP_where, rule_slice(b, r->alive, 1, 1, r->t, 1), moved, first);
	return rule_concat(b, (Val[]){moved, first}, 2, 1);
}

/* coefficients where alive, else dead. */
static Val
masked(const Rnn *r, Val v, double dead)
{
	return r->alive.id ? build(r->b, OP_where, r->alive, v, constant(r, dead)) : v;
}

/* ---------------------------------------------------------------- lstm */
static void
lstm_step(const Rnn *r, Val gates, Val *h, Val *c)
{
	Build *b = r->b;
	Val i = build(b, OP_sigmoid, gate(r, gates, 0)), f = build(b, OP_sigmoid, gate(r, gates, 1));
	Val g = build(b, OP_tanh, gate(r, gates, 2)), o = build(b, OP_sigmoid, gate(r, gates, 3));

	Val kept = ew(r, OP_mul, f, *c);

	*c = ew(r, OP_add, kept, ew(r, OP_mul, i, g));
	*h = ew(r, OP_mul, o, build(b, OP_tanh, *c));
}

void
expand_lstm(Build *b, const Op *op, Val *out)
{
	Rnn r = rnn_of(b, op, 0, 4, true, 0);
	Val gx = project(&r, r.x, r.w_ih, ew(&r, OP_add, r.b_ih, r.b_hh)), h = r.h0, c = r.c0;
	Val *ys = arena_array(b->g->arena, Val, r.t), *cs = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = 0; i < r.t; i++) {
		int64_t t = step_at(&r, i);
		Val h1 = h, c1 = c;
		Val from_x = at_step(&r, gx, t), from_h = rule_matmul(b, h, r.w_hh, false, true);

		lstm_step(&r, ew(&r, OP_add, from_x, from_h), &h1, &c1);
		ys[i] = h1;
		if (r.alive.id) {
			Val alive = at_step(&r, r.alive, t);

			ys[i] = build(b, OP_where, alive, h1, constant(&r, 0));
			h1 = build(b, OP_where, alive, h1, h);
			c1 = build(b, OP_where, alive, c1, c);
		}
		h = h1;
		cs[i] = c = c1;
	}
	out[0] = in_time(&r, ys);
	out[1] = in_time(&r, cs);
	out[2] = h;
	out[3] = c;
}

/* Weight, bias and input gradients from the gates' gradients [N,T,G*H] on either side. */
static void
rnn_products(const Rnn *r, Val di, Val dh, Val h_before, Val dx_dwih_dwhh_dbih_dbhh[5])
{
	Val *out = dx_dwih_dwhh_dbih_dbhh;
	Val fi = flat(r, di), fh = dh.id == di.id ? fi : flat(r, dh);
	int64_t rows = 0;

	out[0] = steps(r, rule_matmul(r->b, fi, r->w_ih, false, false));
	out[1] = rule_matmul(r->b, fi, flat(r, r->x), true, false);
	out[2] = rule_matmul(r->b, fh, flat(r, h_before), true, false);
	out[3] = build_reduce(r->b, OP_sum, fi, &rows, 1, false);
	out[4] = dh.id == di.id ? out[3] : build_reduce(r->b, OP_sum, fh, &rows, 1, false);
}

/* What a step of lstm's backward multiplies by, for all steps. */
typedef struct LstmCoefficients { Val cell[3], output, keep, forget, dead; } LstmCoefficients;

static LstmCoefficients
lstm_coefficients(const Rnn *r, Val gates, Val c, Val c_before)
{
	Build *b = r->b;
	Val i = build(b, OP_sigmoid, gate(r, gates, 0)), f = build(b, OP_sigmoid, gate(r, gates, 1));
	Val g = build(b, OP_tanh, gate(r, gates, 2)), o = build(b, OP_sigmoid, gate(r, gates, 3)), tc = build(b, OP_tanh, c);
	LstmCoefficients k;

	k.cell[0] = masked(r, ew(r, OP_mul, g, ew(r, OP_mul, i, one_minus(r, i))), 0);
	k.cell[1] = masked(r, ew(r, OP_mul, c_before, ew(r, OP_mul, f, one_minus(r, f))), 0);
	k.cell[2] = masked(r, ew(r, OP_mul, i, one_minus(r, build(b, OP_square, g))), 0);
	k.output = masked(r, ew(r, OP_mul, tc, ew(r, OP_mul, o, one_minus(r, o))), 0);
	k.keep = masked(r, ew(r, OP_mul, o, one_minus(r, build(b, OP_square, tc))), 0);
	k.forget = masked(r, f, 1);
	k.dead = r->alive.id ? build_cast(b, build(b, OP_not, r->alive), r->dt) : NOVAL;
	return k;
}

/* The running gradients through step t, and that step's gates' gradient [N,4H]. */
static Val
lstm_back(const Rnn *r, const LstmCoefficients *k, Val gy, int64_t t, Val *dh, Val *dc)
{
	Val h = ew(r, OP_add, at_step(r, gy, t), *dh), part[4], d;
	Val c = ew(r, OP_add, *dc, ew(r, OP_mul, h, at_step(r, k->keep, t)));

	for (int j = 0; j < 3; j++)
		part[j] = ew(r, OP_mul, c, at_step(r, k->cell[j], t));
	part[3] = ew(r, OP_mul, h, at_step(r, k->output, t));
	d = rule_concat(r->b, part, 4, 1);
	*dc = ew(r, OP_mul, c, at_step(r, k->forget, t));
	*dh = rule_matmul(r->b, d, r->w_hh, false, false);
	if (k->dead.id)
		*dh = ew(r, OP_add, *dh, ew(r, OP_mul, h, at_step(r, k->dead, t)));
	return d;
}

void
expand_lstm_dx(Build *b, const Op *op, Val *out)
{
	Rnn r = rnn_of(b, op, 3, 4, true, 2);
	Val y = op->in[10], c = op->in[11], gy = masked(&r, op->in[0], 0), dh = op->in[1], dc = op->in[2];
	Val h_before = previous(&r, y, r.h0), c_before = previous(&r, c, r.c0), product[5], d;
	Val from_x = project(&r, r.x, r.w_ih, ew(&r, OP_add, r.b_ih, r.b_hh));
	Val from_h = steps(&r, rule_matmul(b, flat(&r, h_before), r.w_hh, false, true)), gates = ew(&r, OP_add, from_x, from_h);
	LstmCoefficients k = lstm_coefficients(&r, gates, c, c_before);
	Val *ds = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = r.t; i-- > 0;)
		ds[i] = lstm_back(&r, &k, gy, step_at(&r, i), &dh, &dc);
	d = in_time(&r, ds);
	rnn_products(&r, d, d, h_before, product);
	for (int i = 0; i < 5; i++)
		out[i] = product[i];
	out[5] = dh;
	out[6] = dc;
}

/* ---------------------------------------------------------------- gru */
static Val
gates_sum(const Rnn *r, Val gx, Val gh, int k)
{
	Val x = gate(r, gx, k);

	return ew(r, OP_add, x, gate(r, gh, k));
}

/* h' = n + z (h - n), n = tanh(gx_n + r gh_n). */
static Val
gru_step(const Rnn *r, Val gx, Val gh, Val h)
{
	Build *b = r->b;
	Val reset = build(b, OP_sigmoid, gates_sum(r, gx, gh, 0)), z = build(b, OP_sigmoid, gates_sum(r, gx, gh, 1));
	Val nx = gate(r, gx, 2), n = build(b, OP_tanh, ew(r, OP_add, nx, ew(r, OP_mul, reset, gate(r, gh, 2))));

	return ew(r, OP_add, n, ew(r, OP_mul, z, ew(r, OP_sub, h, n)));
}

void
expand_gru(Build *b, const Op *op, Val *out)
{
	Rnn r = rnn_of(b, op, 0, 3, false, 0);
	Val gx = project(&r, r.x, r.w_ih, r.b_ih), h = r.h0;
	Val *ys = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = 0; i < r.t; i++) {
		int64_t t = step_at(&r, i);
		Val gh = ew(&r, OP_add, rule_matmul(b, h, r.w_hh, false, true), r.b_hh);
		Val h1 = gru_step(&r, at_step(&r, gx, t), gh, h);

		ys[i] = h1;
		if (r.alive.id) {
			Val alive = at_step(&r, r.alive, t);

			ys[i] = build(b, OP_where, alive, h1, constant(&r, 0));
			h1 = build(b, OP_where, alive, h1, h);
		}
		h = h1;
	}
	out[0] = in_time(&r, ys);
	out[1] = h;
}

/* Coefficients of dh, for all steps: gates r, z, n on x's side, n on h's side, and what passes straight to the step before. */
typedef struct GruCoefficients { Val gate[3], n_hidden, pass; } GruCoefficients;

static GruCoefficients
gru_coefficients(const Rnn *r, Val gx, Val gh, Val h_before)
{
	Build *b = r->b;
	Val reset = build(b, OP_sigmoid, gates_sum(r, gx, gh, 0)), z = build(b, OP_sigmoid, gates_sum(r, gx, gh, 1));
	Val nx = gate(r, gx, 2), ghn = gate(r, gh, 2), n = build(b, OP_tanh, ew(r, OP_add, nx, ew(r, OP_mul, reset, ghn)));
	Val fresh = one_minus(r, z), dn = masked(r, ew(r, OP_mul, fresh, one_minus(r, build(b, OP_square, n))), 0), t;
	GruCoefficients k;

	k.gate[2] = dn;
	k.n_hidden = ew(r, OP_mul, dn, reset);
	t = ew(r, OP_mul, k.n_hidden, ghn);
	k.gate[0] = ew(r, OP_mul, t, one_minus(r, reset));
	t = ew(r, OP_sub, h_before, n);
	k.gate[1] = masked(r, ew(r, OP_mul, t, ew(r, OP_mul, z, fresh)), 0);
	k.pass = masked(r, z, 1);
	return k;
}

/* The gates' gradients from all steps' dh: [N,T,3H]. */
static Val
gru_gates(const Rnn *r, const GruCoefficients *k, Val dh, Val n)
{
	const Val by[3] = {k->gate[0], k->gate[1], n};
	Val part[3];

	for (int j = 0; j < 3; j++)
		part[j] = ew(r, OP_mul, dh, by[j]);
	return rule_concat(r->b, part, 3, 2);
}

void
expand_gru_dx(Build *b, const Op *op, Val *out)
{
	Rnn r = rnn_of(b, op, 2, 3, false, 1);
	Val gy = masked(&r, op->in[0], 0), dh = op->in[1], h_before = previous(&r, op->in[8], r.h0), all, product[5];
	Val gx = project(&r, r.x, r.w_ih, r.b_ih), gh = project(&r, h_before, r.w_hh, r.b_hh);
	GruCoefficients k = gru_coefficients(&r, gx, gh, h_before);
	Val hidden = rule_concat(b, (Val[]){k.gate[0], k.gate[1], k.n_hidden}, 3, 2);
	Val *dhs = arena_array(b->g->arena, Val, r.t);

	for (int64_t i = r.t; i-- > 0;) {
		int64_t t = step_at(&r, i);
		Val d = ew(&r, OP_add, at_step(&r, gy, t), dh), thrice = rule_concat(b, (Val[]){d, d, d}, 3, 1);

		dhs[i] = d;
		dh = rule_matmul(b, ew(&r, OP_mul, thrice, at_step(&r, hidden, t)), r.w_hh, false, false);
		dh = ew(&r, OP_add, dh, ew(&r, OP_mul, d, at_step(&r, k.pass, t)));
	}
	all = in_time(&r, dhs);
	gx = gru_gates(&r, &k, all, k.gate[2]);
	gh = gru_gates(&r, &k, all, k.n_hidden);
	rnn_products(&r, gx, gh, h_before, product);
	for (int i = 0; i < 5; i++)
		out[i] = product[i];
	out[5] = dh;
}
