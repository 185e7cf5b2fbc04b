/* winograd_points.c: Winograd's transforms, of one dimension and of two.
 *
 * In: vectors of pixels, taps or points.   Out: LLVM instructions for their points, or back; winograd.c has the source
 * and why these points.
 *
 * A phase of s points has 0, unless s is odd, pairs +-P and infinity, in this order. Polynomials are worked out as one
 * of even and one of odd powers, which a pair shares. */
#include "winograd.h"

enum { POINT_PAIRS = LONG_SPAN / 2 - 1 };

typedef struct Points {
	int zero, pairs, last;               /* zero: 1 or 0 of them; last: infinity */
	double p[POINT_PAIRS], q[POINT_PAIRS]; /* of each pair; its square */
	/* one over the product of a point's differences from all others: of each pair, of point 0 */
	double scale[POINT_PAIRS], scale0;
} Points;

static Points
points_of(int points)
{
	static const double of_4[] = {1}, of_5[] = {0.5, 1.25}, of_6[] = {0.75, 1.5}, of_8[] = {0.5, 1, 2};
	const double *p = points == 4 ? of_4 : points == 5 ? of_5 : points == 6 ? of_6 : of_8;
	Points r = {.zero = points % 2 == 0, .pairs = (points - 1) / 2, .last = points - 1, .scale0 = 1};

	for (int i = 0; i < r.pairs; i++)
		r.p[i] = p[i], r.q[i] = p[i] * p[i], r.scale0 *= -r.q[i];
	r.scale0 = 1 / r.scale0;
	for (int i = 0; i < r.pairs; i++) {
		double product = 2 * (r.zero ? r.q[i] : r.p[i]);

		for (int j = 0; j < r.pairs; j++)
			product *= j == i ? 1 : r.q[i] - r.q[j];
		r.scale[i] = 1 / product;
	}
	return r;
}

static double
power(double p, int n)
{
	return n ? p * power(p, n - 1) : 1;
}

static V
times(Emit *e, V a, double k)
{
	return k == 1 ? a : LLVMBuildFMul(here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), "");
}

/* a * k + c; c NULL: nothing */
static V
fma_k(Emit *e, V a, double k, V c)
{
	return c ? llvm_fma(e->l, here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), c) : times(e, a, k);
}

/* a[first] + a[first + 2] * q + a[first + 4] * q^2 .. of n elements; NULL: of none. */
static V
every_second(Emit *e, const V *a, int first, int n, double q)
{
	V r = NULL;

	for (int i = first + (n - 1 - first) / 2 * 2; i >= first && i < n; i -= 2)
		r = r ? fma_k(e, r, q, a[i]) : a[i];
	return r;
}

/* Pixels d[first], d[first + 2] .. times the coefficients of the product of (x - Q) over all pairs but one (-1: over
 * all): a polynomial in x^2. */
static V
without(Emit *e, const Points *t, int pair, const V *d, int first)
{
	double c[POINT_PAIRS + 1] = {1};
	int n = 0;

	for (int i = 0; i < t->pairs; i++) {
		if (i == pair)
			continue;
		for (int k = ++n; k >= 0; k--)
			c[k] = (k ? c[k - 1] : 0) - t->q[i] * (k < n ? c[k] : 0);
	}
	V r = d[first + 2 * n];

	for (int k = n - 1; k >= 0; k--)
		r = fma_k(e, d[first + 2 * k], c[k], r);
	return r;
}

/* As many pixels as points to points: B^T. Without 0 the second of a pair has the other sign: scale would have it. */
static void
to_data(Emit *e, const Phase *f, const Points *t, const V *d, V *r)
{
	int z = t->zero;

	(void)f;
	if (z)
		r[0] = without(e, t, -1, d, 0);
	for (int i = 0; i < t->pairs; i++) {
		V high = without(e, t, i, d, z + 1), low = without(e, t, i, d, z);

		r[z + 2 * i] = fma_k(e, low, t->p[i], high);
		r[z + 1 + 2 * i] = z ? fma_k(e, low, -t->p[i], high)
		                     : LLVMBuildFSub(here(e), times(e, low, t->p[i]), high, "");
	}
	r[t->last] = without(e, t, -1, d, z);
}

/* Taps to points: G. */
static void
to_weights(Emit *e, const Phase *f, const Points *t, const V *g, V *r)
{
	int z = t->zero;

	if (z)
		r[0] = times(e, g[0], t->scale0);
	for (int i = 0; i < t->pairs; i++) {
		V even = times(e, every_second(e, g, 0, f->taps, t->q[i]), t->scale[i]),
		  odd = every_second(e, g, 1, f->taps, t->q[i]);

		r[z + 2 * i] = fma_k(e, odd, t->scale[i] * t->p[i], even);
		r[z + 1 + 2 * i] = fma_k(e, odd, -t->scale[i] * t->p[i], even);
	}
	r[t->last] = g[f->taps - 1];
}

static int
tile_of(const Phase *f)
{
	return f->points + 1 - f->taps;
}

/* A tile of a gradient to points: A. */
static void
to_gradient(Emit *e, const Phase *f, const Points *t, const V *y, V *r)
{
	int z = t->zero, tile = tile_of(f);

	if (z)
		r[0] = y[0];
	for (int i = 0; i < t->pairs; i++) {
		V even = every_second(e, y, 0, tile, t->q[i]), odd = every_second(e, y, 1, tile, t->q[i]);

		r[z + 2 * i] = fma_k(e, odd, t->p[i], even);
		r[z + 1 + 2 * i] = fma_k(e, odd, -t->p[i], even);
	}
	r[t->last] = y[tile - 1];
}

/* Points to n sums over points times their powers: sum k of each is scaled, by scales or not at all; the last one has
 * point infinity, too. */
static void
sums(Emit *e, const Points *t, const V *m, const double *scale, double scale0, int n, V *r)
{
	V both[2][POINT_PAIRS]; /* of even powers, of odd ones */

	for (int i = 0; i < t->pairs; i++) {
		const V *pair = m + t->zero + 2 * i;

		both[0][i] = LLVMBuildFAdd(here(e), pair[0], pair[1], "");
		both[1][i] = LLVMBuildFSub(here(e), pair[0], pair[1], "");
	}
	for (int k = 0; k < n; k++) {
		V sum = k == n - 1 ? m[t->last] : NULL;

		for (int i = t->pairs - 1; i >= 0; i--)
			sum = fma_k(e, both[k % 2][i], (scale ? scale[i] : 1) * power(t->p[i], k), sum);
		r[k] = k || !t->zero ? sum : fma_k(e, m[0], scale0, sum);
	}
}

/* To a tile's pixels: A^T. */
static void
to_pixels(Emit *e, const Phase *f, const Points *t, const V *m, V *y)
{
	sums(e, t, m, NULL, 1, tile_of(f), y);
}

/* To the gradients of taps: G^T. */
static void
to_taps(Emit *e, const Phase *f, const Points *t, const V *m, V *g)
{
	sums(e, t, m, t->scale, t->scale0, f->taps, g);
}

int
winograd_taken(const Side *s, Way way)
{
	const int of[] = {[DATA] = s->taken,  [WEIGHTS] = s->taps, [GRADIENT] = s->tile,
	                  [PIXELS] = s->span, [TAPS] = s->kinds};

	return of[way];
}

static int
made(const Side *s, Way way)
{
	const int of[] = {[DATA] = s->span,   [WEIGHTS] = s->kinds, [GRADIENT] = s->span,
	                  [PIXELS] = s->tile, [TAPS] = s->taps};

	return of[way];
}

/* How many elements of a phase a transform takes, and where element i of them stands among the side's. */
static int
phase_takes(const Phase *f, Way way)
{
	return way == WEIGHTS ? f->taps : way == GRADIENT ? tile_of(f) : f->points;
}

static int
place(const Phase *f, Way way, bool taken, int i)
{
	bool taps = taken ? way == WEIGHTS : way == TAPS, pixels = taken && way == DATA,
	     of_tile = taken ? way == GRADIENT : way == PIXELS;

	return taps ? f->tap + i * f->tap_step : pixels ? f->pixel + i * f->pixel_step
	       : of_tile ? f->made + i * f->made_step : f->point + i;
}

/* Along one side, phase by phase. Of one tap, pixels are their own points, and their one weight is the tap. */
void
winograd_along(Emit *e, const Side *s, Way way, const V *in, V *out)
{
	static void (*const by[])(Emit *, const Phase *, const Points *, const V *, V *) = {
		[DATA] = to_data,     [WEIGHTS] = to_weights, [GRADIENT] = to_gradient,
		[PIXELS] = to_pixels, [TAPS] = to_taps,
	};

	for (int i = 0; i < made(s, way); i++)
		out[i] = NULL;
	for (int k = 0; k < s->phases; k++) {
		Phase f = winograd_phase(s, k);
		Points t = points_of(f.points);
		V a[SPAN_MOST], r[SPAN_MOST];
		bool one = f.taps == 1;
		int takes = one && way == TAPS ? 1 : phase_takes(&f, way),
		    gives = one ? takes : way == PIXELS ? tile_of(&f) : way == TAPS ? f.taps : f.points;

		for (int i = 0; i < takes; i++)
			r[i] = a[i] = in[place(&f, way, true, i)];
		if (!one)
			by[way](e, &f, &t, a, r);
		for (int i = 0; i < gives; i++) {
			V *to = &out[place(&f, way, false, i)];

			*to = *to ? LLVMBuildFAdd(here(e), *to, r[i], "") : r[i];
		}
	}
}

void
winograd_both(Emit *e, const Shape *s, Way way, const V *in, V *out)
{
	const Side *rows = &s->side[0], *columns = &s->side[1];
	int n[2] = {winograd_taken(rows, way), winograd_taken(columns, way)};
	int m[2] = {made(rows, way), made(columns, way)};
	V half[POINTS_MOST], column[SPAN_MOST], r[SPAN_MOST];

	for (int j = 0; j < n[1]; j++) {
		for (int i = 0; i < n[0]; i++)
			column[i] = in[i * n[1] + j];
		winograd_along(e, rows, way, column, r);
		for (int i = 0; i < m[0]; i++)
			half[i * n[1] + j] = r[i];
	}
	for (int i = 0; i < m[0]; i++)
		winograd_along(e, columns, way, half + i * n[1], out + i * m[1]);
}
