/* ref_rnn.c: reference evaluation of lstm and gru and of their gradients, one example and one step at a time.
 *
 * In: x [N,T,C], PyTorch's weights and gate order, start states, lengths or none.  Out: as ops.def says. Steps at or
 * past an example's length give 0 and leave the state alone; c of such a step is the state that stands.
 * Backward runs the forward pass again and keeps the gates of every step (it does not read y and c), then walks back:
 *   lstm  h' = o tanh(c'), c' = f c + i g          gru  h' = (1 - z) n + z h, n = tanh(a_n + r b_n)
 * with a = W x + b_ih and b = U h + b_hh; da and db are the gradients of these two. */
#include "ref.h"
#include <math.h>
#include <string.h>

typedef struct Rnn {
	int64_t n, t, c, h, rows;              /* rows = gates * h */
	bool lstm, reverse;
	const double *x, *w, *u, *bw, *bu, *h0, *c0;
	const int64_t *length;
	/* of one example, by step of the walk (0 first): */
	double *a, *b;                         /* [t][rows] */
	double *hs, *cs;                       /* [t + 1][h]: states before step s */
} Rnn;

static double
sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static Rnn
rnn_of(RefCtx *cx, const Op *op, int first, bool lstm, int length)
{
	int64_t xe[MAX_RANK], ue[MAX_RANK];
	Rnn r = {.lstm = lstm, .reverse = attr_bool(op, A_reverse)};

	ref_extents(cx, &ref_in(cx, op, first)->type, xe);
	ref_extents(cx, &ref_in(cx, op, first + 2)->type, ue);
	r.n = xe[0], r.t = xe[1], r.c = xe[2], r.rows = ue[0], r.h = ue[1];
	r.x = ref_in(cx, op, first)->f;
	r.w = ref_in(cx, op, first + 1)->f;
	r.u = ref_in(cx, op, first + 2)->f;
	r.bw = ref_in(cx, op, first + 3)->f;
	r.bu = ref_in(cx, op, first + 4)->f;
	r.h0 = ref_in(cx, op, first + 5)->f;
	r.c0 = lstm ? ref_in(cx, op, first + 6)->f : NULL;
	r.length = attr_bool(op, A_has_length) ? ref_in(cx, op, length)->i : NULL;
	r.a = arena_alloc(cx->arena, (size_t)(r.t * r.rows) * sizeof(double));
	r.b = arena_alloc(cx->arena, (size_t)(r.t * r.rows) * sizeof(double));
	r.hs = arena_alloc(cx->arena, (size_t)((r.t + 1) * r.h) * sizeof(double));
	r.cs = arena_alloc(cx->arena, (size_t)((r.t + 1) * r.h) * sizeof(double));
	return r;
}

static int64_t
step_at(const Rnn *r, int64_t s)
{
	return r->reverse ? r->t - 1 - s : s;
}

static bool
alive(const Rnn *r, int64_t i, int64_t t)
{
	return !r->length || t < r->length[i];
}

/* out = m v + bias, m [rows, width]. */
static void
affine(const double *m, const double *v, const double *bias, int64_t rows, int64_t width, double *out)
{
	for (int64_t k = 0; k < rows; k++) {
		double sum = bias[k];

		for (int64_t j = 0; j < width; j++)
			sum += m[k * width + j] * v[j];
		out[k] = sum;
	}
}

/* One live step: states s -> s + 1. */
static void
rnn_step(const Rnn *r, int64_t s, const double *x)
{
	double *a = r->a + s * r->rows, *b = r->b + s * r->rows;
	const double *h = r->hs + s * r->h, *c = r->cs + s * r->h;
	double *h1 = r->hs + (s + 1) * r->h, *c1 = r->cs + (s + 1) * r->h;
	int64_t H = r->h;

	affine(r->w, x, r->bw, r->rows, r->c, a);
	affine(r->u, h, r->bu, r->rows, H, b);
	for (int64_t j = 0; j < H; j++)
		if (r->lstm) {
			double i = sigmoid(a[j] + b[j]), f = sigmoid(a[H + j] + b[H + j]),
			       g = tanh(a[2 * H + j] + b[2 * H + j]);

			c1[j] = f * c[j] + i * g;
			h1[j] = sigmoid(a[3 * H + j] + b[3 * H + j]) * tanh(c1[j]);
		} else {
			double reset = sigmoid(a[j] + b[j]), z = sigmoid(a[H + j] + b[H + j]),
			       n = tanh(a[2 * H + j] + reset * b[2 * H + j]);

			h1[j] = (1 - z) * n + z * h[j];
		}
}

/* All steps of example i. */
static void
rnn_run(const Rnn *r, int64_t i)
{
	size_t bytes = (size_t)r->h * sizeof(double);

	memcpy(r->hs, r->h0 + i * r->h, bytes);
	if (r->lstm)
		memcpy(r->cs, r->c0 + i * r->h, bytes);
	for (int64_t s = 0; s < r->t; s++) {
		int64_t t = step_at(r, s);

		if (alive(r, i, t)) {
			rnn_step(r, s, r->x + (i * r->t + t) * r->c);
		} else {
			memcpy(r->hs + (s + 1) * r->h, r->hs + s * r->h, bytes);
			memcpy(r->cs + (s + 1) * r->h, r->cs + s * r->h, bytes);
		}
	}
}

static const char *
forward(RefCtx *cx, const Op *op, bool lstm)
{
	Rnn r = rnn_of(cx, op, 0, lstm, lstm ? 7 : 6);
	double *y = ref_zeros(cx, op, 0)->f, *c = lstm ? ref_out(cx, op, 1)->f : NULL;
	double *hn = ref_out(cx, op, lstm ? 2 : 1)->f, *cn = lstm ? ref_out(cx, op, 3)->f : NULL;
	size_t bytes = (size_t)r.h * sizeof(double);

	for (int64_t i = 0; i < r.n; i++) {
		rnn_run(&r, i);
		for (int64_t s = 0; s < r.t; s++) {
			int64_t t = step_at(&r, s);

			if (alive(&r, i, t))
				memcpy(y + (i * r.t + t) * r.h, r.hs + (s + 1) * r.h, bytes);
			if (lstm)
				memcpy(c + (i * r.t + t) * r.h, r.cs + (s + 1) * r.h, bytes);
		}
		memcpy(hn + i * r.h, r.hs + r.t * r.h, bytes);
		if (lstm)
			memcpy(cn + i * r.h, r.cs + r.t * r.h, bytes);
	}
	return NULL;
}

const char *
ref_lstm(RefCtx *cx, const Op *op)
{
	return forward(cx, op, true);
}

const char *
ref_gru(RefCtx *cx, const Op *op)
{
	return forward(cx, op, false);
}

/* ---------------------------------------------------------------- backward */
typedef struct RnnGrad { double *x, *w, *u, *bw, *bu, *h0, *c0, *da, *db; } RnnGrad;

/* dh, dc: of the states after step s; become what passes to the states before it beside db's way through u. */
static void
gates_back(const Rnn *r, int64_t s, double *dh, double *dc, double *da, double *db)
{
	const double *a = r->a + s * r->rows, *b = r->b + s * r->rows, *h = r->hs + s * r->h, *c = r->cs + s * r->h;
	const double *c1 = r->cs + (s + 1) * r->h;
	int64_t H = r->h;

	for (int64_t j = 0; j < H; j++)
		if (r->lstm) {
			double i = sigmoid(a[j] + b[j]), f = sigmoid(a[H + j] + b[H + j]),
			       g = tanh(a[2 * H + j] + b[2 * H + j]);
			double o = sigmoid(a[3 * H + j] + b[3 * H + j]), tc = tanh(c1[j]),
			       d = dc[j] + dh[j] * o * (1 - tc * tc);

			da[j] = db[j] = d * g * i * (1 - i);
			da[H + j] = db[H + j] = d * c[j] * f * (1 - f);
			da[2 * H + j] = db[2 * H + j] = d * i * (1 - g * g);
			da[3 * H + j] = db[3 * H + j] = dh[j] * tc * o * (1 - o);
			dc[j] = d * f;
			dh[j] = 0;
		} else {
			double reset = sigmoid(a[j] + b[j]), z = sigmoid(a[H + j] + b[H + j]),
			       n = tanh(a[2 * H + j] + reset * b[2 * H + j]);
			double dn = dh[j] * (1 - z) * (1 - n * n);

			da[j] = db[j] = dn * b[2 * H + j] * reset * (1 - reset);
			da[H + j] = db[H + j] = dh[j] * (h[j] - n) * z * (1 - z);
			da[2 * H + j] = dn;
			db[2 * H + j] = dn * reset;
			dh[j] *= z;
		}
}

/* Gradients of m, bias and v of m v + bias. */
static void
affine_back(const double *d, const double *m, const double *v, int64_t rows, int64_t width, double *dm, double *dbias,
            double *dv)
{
	for (int64_t k = 0; k < rows; k++) {
		dbias[k] += d[k];
		for (int64_t j = 0; j < width; j++) {
			dm[k * width + j] += d[k] * v[j];
			dv[j] += d[k] * m[k * width + j];
		}
	}
}

static const char *
backward(RefCtx *cx, const Op *op, bool lstm)
{
	int ng = lstm ? 3 : 2;
	Rnn r = rnn_of(cx, op, ng, lstm, lstm ? 12 : 9);
	const double *gy = ref_in(cx, op, 0)->f, *gh = ref_in(cx, op, 1)->f, *gc = lstm ? ref_in(cx, op, 2)->f : NULL;
	RnnGrad d = {.x = ref_zeros(cx, op, 0)->f,
	             .w = ref_zeros(cx, op, 1)->f,
	             .u = ref_zeros(cx, op, 2)->f,
	             .bw = ref_zeros(cx, op, 3)->f,
	             .bu = ref_zeros(cx, op, 4)->f,
	             .h0 = ref_zeros(cx, op, 5)->f,
	             .c0 = lstm ? ref_zeros(cx, op, 6)->f : NULL};

	d.da = arena_alloc(cx->arena, (size_t)r.rows * sizeof(double));
	d.db = arena_alloc(cx->arena, (size_t)r.rows * sizeof(double));
	for (int64_t i = 0; i < r.n; i++) {
		/* the running gradients end as the start's */
		double *dh = d.h0 + i * r.h, *dc = lstm ? d.c0 + i * r.h : NULL;

		rnn_run(&r, i);
		memcpy(dh, gh + i * r.h, (size_t)r.h * sizeof(double));
		if (lstm)
			memcpy(dc, gc + i * r.h, (size_t)r.h * sizeof(double));
		for (int64_t s = r.t; s-- > 0;) {
			int64_t t = step_at(&r, s), at = i * r.t + t;

			if (!alive(&r, i, t))
				continue;
			for (int64_t j = 0; j < r.h; j++)
				dh[j] += gy[at * r.h + j];
			gates_back(&r, s, dh, dc, d.da, d.db);
			affine_back(d.da, r.w, r.x + at * r.c, r.rows, r.c, d.w, d.bw, d.x + at * r.c);
			affine_back(d.db, r.u, r.hs + s * r.h, r.rows, r.h, d.u, d.bu, dh);
		}
	}
	return NULL;
}

const char *
ref_lstm_dx(RefCtx *cx, const Op *op)
{
	return backward(cx, op, true);
}

const char *
ref_gru_dx(RefCtx *cx, const Op *op)
{
	return backward(cx, op, false);
}
