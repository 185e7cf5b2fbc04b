/* winograd_points.c: Winograd's transforms, of one dimension and of two.
 *
 * In: vectors of pixels, taps or points.   Out: LLVM instructions for their points, or back; winograd.c has the source
 * and why these points. */
#include "winograd.h"

#define P1 0.75
#define P2 1.5
#define Q1 (P1 * P1)
#define Q2 (P2 * P2)
#define SCALE1 (1 / (2 * Q1 * (Q1 - Q2)))
#define SCALE2 (1 / (2 * Q2 * (Q2 - Q1)))

static V
times(Emit *e, V a, double k)
{
	return LLVMBuildFMul(here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), "");
}

/* a * k + c */
static V
fma_k(Emit *e, V a, double k, V c)
{
	return llvm_fma(e->l, here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), c);
}

static V
add(Emit *e, V a, V b)
{
	return LLVMBuildFAdd(here(e), a, b, "");
}
static V
sub(Emit *e, V a, V b)
{
	return LLVMBuildFSub(here(e), a, b, "");
}

/* Six pixels to six points: B^T. */
static void
to_data(Emit *e, const V *d, V *r)
{
	V even1 = fma_k(e, d[2], -Q2, d[4]), odd1 = fma_k(e, d[1], -Q2, d[3]), even2 = fma_k(e, d[2], -Q1, d[4]),
	  odd2 = fma_k(e, d[1], -Q1, d[3]);

	r[0] = fma_k(e, d[0], Q1 * Q2, fma_k(e, d[2], -(Q1 + Q2), d[4]));
	r[1] = fma_k(e, odd1, P1, even1);
	r[2] = fma_k(e, odd1, -P1, even1);
	r[3] = fma_k(e, odd2, P2, even2);
	r[4] = fma_k(e, odd2, -P2, even2);
	r[5] = fma_k(e, d[1], Q1 * Q2, fma_k(e, d[3], -(Q1 + Q2), d[5]));
}

/* Three taps to six points: G. */
static void
to_weights(Emit *e, const V *g, V *r)
{
	V even1 = times(e, fma_k(e, g[2], Q1, g[0]), SCALE1), even2 = times(e, fma_k(e, g[2], Q2, g[0]), SCALE2);

	r[0] = times(e, g[0], 1 / (Q1 * Q2));
	r[1] = fma_k(e, g[1], SCALE1 * P1, even1);
	r[2] = fma_k(e, g[1], -SCALE1 * P1, even1);
	r[3] = fma_k(e, g[1], SCALE2 * P2, even2);
	r[4] = fma_k(e, g[1], -SCALE2 * P2, even2);
	r[5] = g[2];
}

/* Five taps. */
static void
to_weights5(Emit *e, const V *g, V *r)
{
	V even1 = fma_k(e, fma_k(e, g[4], Q1, g[2]), Q1, g[0]), even2 = fma_k(e, fma_k(e, g[4], Q2, g[2]), Q2, g[0]),
	  odd1 = fma_k(e, g[3], Q1, g[1]), odd2 = fma_k(e, g[3], Q2, g[1]);

	even1 = times(e, even1, SCALE1);
	even2 = times(e, even2, SCALE2);
	r[0] = times(e, g[0], 1 / (Q1 * Q2));
	r[1] = fma_k(e, odd1, SCALE1 * P1, even1);
	r[2] = fma_k(e, odd1, -SCALE1 * P1, even1);
	r[3] = fma_k(e, odd2, SCALE2 * P2, even2);
	r[4] = fma_k(e, odd2, -SCALE2 * P2, even2);
	r[5] = g[4];
}

/* Six points to four pixels: A^T. */
static void
to_pixels(Emit *e, const V *m, V *y)
{
	V s1 = add(e, m[1], m[2]), d1 = sub(e, m[1], m[2]), s2 = add(e, m[3], m[4]), d2 = sub(e, m[3], m[4]);

	y[0] = add(e, add(e, m[0], s1), s2);
	y[1] = fma_k(e, d1, P1, times(e, d2, P2));
	y[2] = fma_k(e, s1, Q1, times(e, s2, Q2));
	y[3] = fma_k(e, d1, P1 * Q1, fma_k(e, d2, P2 * Q2, m[5]));
}

/* To two. */
static void
to_pixels2(Emit *e, const V *m, V *y)
{
	y[0] = add(e, add(e, m[0], add(e, m[1], m[2])), add(e, m[3], m[4]));
	y[1] = fma_k(e, sub(e, m[1], m[2]), P1, fma_k(e, sub(e, m[3], m[4]), P2, m[5]));
}

/* Four pixels of a gradient to six points: A. */
static void
to_gradient(Emit *e, const V *y, V *r)
{
	V even1 = fma_k(e, y[2], Q1, y[0]), odd1 = times(e, fma_k(e, y[3], Q1, y[1]), P1),
	  even2 = fma_k(e, y[2], Q2, y[0]), odd2 = times(e, fma_k(e, y[3], Q2, y[1]), P2);

	r[0] = y[0];
	r[1] = add(e, even1, odd1);
	r[2] = sub(e, even1, odd1);
	r[3] = add(e, even2, odd2);
	r[4] = sub(e, even2, odd2);
	r[5] = y[3];
}

/* Two pixels. */
static void
to_gradient2(Emit *e, const V *y, V *r)
{
	r[0] = y[0];
	r[1] = fma_k(e, y[1], P1, y[0]);
	r[2] = fma_k(e, y[1], -P1, y[0]);
	r[3] = fma_k(e, y[1], P2, y[0]);
	r[4] = fma_k(e, y[1], -P2, y[0]);
	r[5] = y[1];
}

/* Six points to the gradients of three taps: G^T. */
static void
to_taps(Emit *e, const V *m, V *g)
{
	V s1 = add(e, m[1], m[2]), d1 = sub(e, m[1], m[2]), s2 = add(e, m[3], m[4]), d2 = sub(e, m[3], m[4]);

	g[0] = fma_k(e, m[0], 1 / (Q1 * Q2), fma_k(e, s1, SCALE1, times(e, s2, SCALE2)));
	g[1] = fma_k(e, d1, SCALE1 * P1, times(e, d2, SCALE2 * P2));
	g[2] = fma_k(e, s1, SCALE1 * Q1, fma_k(e, s2, SCALE2 * Q2, m[5]));
}

/* Of five. */
static void
to_taps5(Emit *e, const V *m, V *g)
{
	V s1 = times(e, add(e, m[1], m[2]), SCALE1), d1 = times(e, sub(e, m[1], m[2]), SCALE1 * P1),
	  s2 = times(e, add(e, m[3], m[4]), SCALE2), d2 = times(e, sub(e, m[3], m[4]), SCALE2 * P2);

	g[0] = fma_k(e, m[0], 1 / (Q1 * Q2), add(e, s1, s2));
	g[1] = add(e, d1, d2);
	g[2] = fma_k(e, s1, Q1, times(e, s2, Q2));
	g[3] = fma_k(e, d1, Q1, times(e, d2, Q2));
	g[4] = fma_k(e, s1, Q1 * Q1, fma_k(e, s2, Q2 * Q2, m[5]));
}

/* Filters of three taps in tiles of two pixels, at 0, +-1 and infinity: four pixels to four points. */
static void
to_data4(Emit *e, const V *d, V *r)
{
	r[0] = sub(e, d[0], d[2]);
	r[1] = add(e, d[1], d[2]);
	r[2] = sub(e, d[2], d[1]);
	r[3] = sub(e, d[1], d[3]);
}

/* Three taps to four points. */
static void
to_weights4(Emit *e, const V *g, V *r)
{
	V even = times(e, add(e, g[0], g[2]), 0.5);

	r[0] = g[0];
	r[1] = fma_k(e, g[1], 0.5, even);
	r[2] = fma_k(e, g[1], -0.5, even);
	r[3] = g[2];
}

/* Four points to two pixels. */
static void
to_pixels4(Emit *e, const V *m, V *y)
{
	y[0] = add(e, m[0], add(e, m[1], m[2]));
	y[1] = sub(e, sub(e, m[1], m[2]), m[3]);
}

Transform *const *
winograd_transforms(int taps, int span)
{
	static const struct { int taps, span; Transform *by[WAYS]; } rows[] = {
		{3, SPAN, {to_data, to_weights, to_gradient, to_pixels, to_taps}},
		{5, SPAN, {to_data, to_weights5, to_gradient2, to_pixels2, to_taps5}},
		{3, SHORT_SPAN, {[DATA] = to_data4, [WEIGHTS] = to_weights4, [PIXELS] = to_pixels4}},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].taps == taps && rows[i].span == span)
			return rows[i].by;
	return NULL;
}

int
winograd_taken(const Side *s, Way way)
{
	return way == WEIGHTS ? s->taps : way == GRADIENT ? s->tile : s->span;
}

static int
made(const Side *s, Way way)
{
	return way == PIXELS ? s->tile : way == TAPS ? s->taps : s->span;
}

void
winograd_both(Emit *e, const Shape *s, Way way, const V *in, V *out)
{
	const Side *rows = &s->side[0], *columns = &s->side[1];
	int n[2] = {winograd_taken(rows, way), winograd_taken(columns, way)}, m[2] = {made(rows, way), made(columns, way)};
	V half[POINTS], column[SPAN], r[SPAN];

	for (int j = 0; j < n[1]; j++) {
		for (int i = 0; i < n[0]; i++)
			column[i] = in[i * n[1] + j];
		rows->by[way](e, column, r);
		for (int i = 0; i < m[0]; i++)
			half[i * n[1] + j] = r[i];
	}
	for (int i = 0; i < m[0]; i++)
		columns->by[way](e, half + i * n[1], out + i * m[1]);
}
