/* ref_cells.c: reference evaluation of the recurrences lstm.cells, gru.cells and of their gradients, one example and
 * one step at a time.
 *
 * In: what does not depend on earlier steps (gx), W_hh, start states, lengths or none; backward the gates that the
 * forward op gave.  Out: as ops.def says. Steps at or past an example's length give 0 and leave the states alone; c of
 * such a step is the state that stands, its gates and their gradients are 0, and the running gradients pass it
 * unchanged. Backward no operand is read at such a step: with reverse the start stands before the first live one.
 * Where W_hh alone is of 16 bits, h, and the gradients of the gates, are rounded to its type as they meet it. */
#include "ref.h"
#include <math.h>
#include <string.h>

typedef struct Cells {
	int64_t n, t, h, rows;                 /* rows of W_hh: gates * h */
	bool reverse;
	const double *w;
	DType multiplied;                      /* what w is multiplied by is rounded to this */
	const int64_t *length;
	double *sum;                           /* [rows] */
	double *state;                         /* [rows]: what is multiplied */
} Cells;

static Cells
cells_of(RefCtx *cx, const Op *op, int y, int w, int length)
{
	int64_t ye[MAX_RANK], we[MAX_RANK];
	Cells c = {.reverse = attr_bool(op, A_reverse)};

	ref_extents(cx, &ref_in(cx, op, y)->type, ye);
	ref_extents(cx, &ref_in(cx, op, w)->type, we);
	c.n = ye[0], c.t = ye[1], c.rows = we[0], c.h = we[1];
	c.w = ref_in(cx, op, w)->f;
	c.multiplied = ref_in(cx, op, w)->type.dtype == ref_in(cx, op, y)->type.dtype
	               ? DT_f64 : (DType)ref_in(cx, op, w)->type.dtype;
	c.length = attr_bool(op, A_has_length) ? ref_in(cx, op, length)->i : NULL;
	c.sum = arena_array(cx->arena, double, c.rows);
	c.state = arena_array(cx->arena, double, c.rows);
	return c;
}

static int64_t
step_at(const Cells *c, int64_t s)
{
	return c->reverse ? c->t - 1 - s : s;
}

static bool
alive(const Cells *c, int64_t i, int64_t t)
{
	return !c->length || t < c->length[i];
}

static double
sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* n numbers as they are multiplied. */
static const double *
multiplied(const Cells *c, const double *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		c->state[i] = ref_round(c->multiplied, x[i], false);
	return c->state;
}

/* sum = W_hh h */
static void
times_h(const Cells *c, const double *h)
{
	h = multiplied(c, h, c->h);
	for (int64_t k = 0; k < c->rows; k++) {
		c->sum[k] = 0;
		for (int64_t j = 0; j < c->h; j++)
			c->sum[k] += c->w[k * c->h + j] * h[j];
	}
}

/* dh += W_hh^T d */
static void
times_d(const Cells *c, const double *d, double *dh)
{
	d = multiplied(c, d, c->rows);
	for (int64_t k = 0; k < c->rows; k++)
		for (int64_t j = 0; j < c->h; j++)
			dh[j] += c->w[k * c->h + j] * d[k];
}

const char *
ref_lstm_cells(RefCtx *cx, const Op *op)
{
	Cells r = cells_of(cx, op, 0, 1, 4);
	const double *gx = ref_in(cx, op, 0)->f, *h0 = ref_in(cx, op, 2)->f, *c0 = ref_in(cx, op, 3)->f;
	double *y = ref_zeros(cx, op, 0)->f, *cs = ref_out(cx, op, 1)->f, *gates = ref_zeros(cx, op, 2)->f;
	double *hn = ref_out(cx, op, 3)->f, *cn = ref_out(cx, op, 4)->f;
	int64_t H = r.h;

	for (int64_t i = 0; i < r.n; i++) {
		double *h = hn + i * H, *c = cn + i * H;

		memcpy(h, h0 + i * H, (size_t)H * sizeof *h);
		memcpy(c, c0 + i * H, (size_t)H * sizeof *c);
		for (int64_t s = 0; s < r.t; s++) {
			int64_t at = i * r.t + step_at(&r, s);
			const double *a = gx + at * 4 * H;
			double *g = gates + at * 4 * H;

			times_h(&r, h);
			for (int64_t j = 0; j < H && alive(&r, i, step_at(&r, s)); j++) {
				for (int k = 0; k < 4; k++) {
					double x = a[k * H + j] + r.sum[k * H + j];

					g[k * H + j] = k == 2 ? tanh(x) : sigmoid(x);
				}
				c[j] = g[H + j] * c[j] + g[j] * g[2 * H + j];
				h[j] = y[at * H + j] = g[3 * H + j] * tanh(c[j]);
			}
			memcpy(cs + at * H, c, (size_t)H * sizeof *c);
		}
	}
	return NULL;
}

const char *
ref_lstm_cells_dx(RefCtx *cx, const Op *op)
{
	Cells r = cells_of(cx, op, 0, 5, 7);
	const double *gy = ref_in(cx, op, 0)->f, *gh = ref_in(cx, op, 1)->f, *gc = ref_in(cx, op, 2)->f;
	const double *gates = ref_in(cx, op, 3)->f, *cs = ref_in(cx, op, 4)->f, *c0 = ref_in(cx, op, 6)->f;
	double *out = ref_zeros(cx, op, 0)->f, *dh0 = ref_out(cx, op, 1)->f, *dc0 = ref_out(cx, op, 2)->f;
	int64_t H = r.h;

	for (int64_t i = 0; i < r.n; i++) {
		double *dh = dh0 + i * H, *dc = dc0 + i * H;

		memcpy(dh, gh + i * H, (size_t)H * sizeof *dh);
		memcpy(dc, gc + i * H, (size_t)H * sizeof *dc);
		for (int64_t s = r.t; s-- > 0;) {
			int64_t at = i * r.t + step_at(&r, s);
			bool first = !s || !alive(&r, i, step_at(&r, s - 1));
			const double *g = gates + at * 4 * H,
			             *before = first ? c0 + i * H : cs + (i * r.t + step_at(&r, s - 1)) * H;
			double *d = out + at * 4 * H;

			if (!alive(&r, i, step_at(&r, s)))
				continue;
			for (int64_t j = 0; j < H; j++) {
				double in = g[j], f = g[H + j], u = g[2 * H + j], o = g[3 * H + j],
				       tc = tanh(cs[at * H + j]);
				double h = dh[j] + gy[at * H + j], c = dc[j] + h * o * (1 - tc * tc);

				d[j] = c * u * in * (1 - in);
				d[H + j] = c * before[j] * f * (1 - f);
				d[2 * H + j] = c * in * (1 - u * u);
				d[3 * H + j] = h * tc * o * (1 - o);
				dc[j] = c * f;
				dh[j] = 0;
			}
			times_d(&r, d, dh);
		}
	}
	return NULL;
}

const char *
ref_gru_cells(RefCtx *cx, const Op *op)
{
	Cells r = cells_of(cx, op, 0, 1, 4);
	const double *gx = ref_in(cx, op, 0)->f, *bias = ref_in(cx, op, 2)->f, *h0 = ref_in(cx, op, 3)->f;
	double *y = ref_zeros(cx, op, 0)->f, *gates = ref_zeros(cx, op, 1)->f, *hn = ref_out(cx, op, 2)->f;
	int64_t H = r.h;

	for (int64_t i = 0; i < r.n; i++) {
		double *h = hn + i * H;

		memcpy(h, h0 + i * H, (size_t)H * sizeof *h);
		for (int64_t s = 0; s < r.t; s++) {
			int64_t at = i * r.t + step_at(&r, s);
			const double *a = gx + at * 3 * H;
			double *g = gates + at * 4 * H;

			times_h(&r, h);
			for (int64_t j = 0; j < H && alive(&r, i, step_at(&r, s)); j++) {
				g[j] = sigmoid(a[j] + r.sum[j] + bias[j]);
				g[H + j] = sigmoid(a[H + j] + r.sum[H + j] + bias[H + j]);
				g[3 * H + j] = r.sum[2 * H + j] + bias[2 * H + j];
				g[2 * H + j] = tanh(a[2 * H + j] + g[j] * g[3 * H + j]);
				h[j] = y[at * H + j] = g[2 * H + j] + g[H + j] * (h[j] - g[2 * H + j]);
			}
		}
	}
	return NULL;
}

const char *
ref_gru_cells_dx(RefCtx *cx, const Op *op)
{
	Cells r = cells_of(cx, op, 0, 4, 6);
	const double *gy = ref_in(cx, op, 0)->f, *gh = ref_in(cx, op, 1)->f, *gates = ref_in(cx, op, 2)->f,
	             *y = ref_in(cx, op, 3)->f;
	const double *h0 = ref_in(cx, op, 5)->f;
	double *di = ref_zeros(cx, op, 0)->f, *dhid = ref_zeros(cx, op, 1)->f, *dh0 = ref_out(cx, op, 2)->f;
	int64_t H = r.h;

	for (int64_t i = 0; i < r.n; i++) {
		double *dh = dh0 + i * H;

		memcpy(dh, gh + i * H, (size_t)H * sizeof *dh);
		for (int64_t s = r.t; s-- > 0;) {
			int64_t at = i * r.t + step_at(&r, s);
			bool first = !s || !alive(&r, i, step_at(&r, s - 1));
			const double *g = gates + at * 4 * H,
			             *before = first ? h0 + i * H : y + (i * r.t + step_at(&r, s - 1)) * H;
			double *a = di + at * 3 * H, *b = dhid + at * 3 * H;

			if (!alive(&r, i, step_at(&r, s)))
				continue;
			for (int64_t j = 0; j < H; j++) {
				double reset = g[j], z = g[H + j], n = g[2 * H + j], d = dh[j] + gy[at * H + j],
				       dn = d * (1 - z) * (1 - n * n);

				a[j] = b[j] = dn * g[3 * H + j] * reset * (1 - reset);
				a[H + j] = b[H + j] = d * (before[j] - n) * z * (1 - z);
				a[2 * H + j] = dn;
				b[2 * H + j] = dn * reset;
				dh[j] = d * z;
			}
			times_d(&r, b, dh);
		}
	}
	return NULL;
}
