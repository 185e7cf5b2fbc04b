/* ref_red.c: reference evaluation of the reductions of red.def over any axes.
 *
 * In: a tensor and the axes to reduce.  Out: one or two arrays over the others. The input is read once (or twice) in
 * row-major order while an odometer follows the result's offset, so that each result element meets its elements in
 * row-major order. moments and logsumexp take two passes (mean, then squares about it; largest, then exponentials below
 * it): the same values as the table's one-pass forms, without their cancellation. max, min and argmax let a NaN win. */
#include "red.h"
#include "ref.h"
#include <math.h>
#include <string.h>

/* The rows' own tokens, in double. */
typedef double RedElement(double x);
typedef double RedValue(double s, double n, double i);
#define RED(id, types, join, element, value, then, grad, doc) \
	static double id##_element(double x) { return element; } \
	static double id##_value(double s, double n, double i) { (void)s, (void)n, (void)i; return value; }
#include "red.def"
#undef RED
static const struct { RedElement *element; RedValue *value; } rows[] = {
#define RED(id, ...) {id##_element, id##_value},
#include "red.def"
#undef RED
};

typedef struct Red {
	RefWalk outer;              /* all axes but the last */
	int64_t stride[1][MAX_RANK];/* of the result, 0 along reduced axes */
	int64_t row, row_stride;    /* the last axis */
	int64_t inner;              /* argmax: elements of the input per step along the reduced axis */
	int64_t count;              /* elements per result */
	int64_t along;              /* argmax: extent of the reduced axis */
	const RefTensor *x;
	RedElement *element;
	RedValue *value;
} Red;

static bool
in_list(const int64_t *list, int n, int ax)
{
	for (int i = 0; i < n; i++)
		if (list[i] == ax)
			return true;
	return false;
}

static Red
red_of_op(const RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	int row = op_info[op->kind].red;
	Red r = {.row = 1, .count = 1, .inner = 1, .along = 1, .x = x,
	         .element = rows[row].element, .value = rows[row].value};
	int64_t ext[MAX_RANK], s = 1;
	int naxes, last = x->type.rank - 1;
	const int64_t *axes = attr_ints(op, A_axes, &naxes);

	ref_extents(cx, &x->type, ext);
	for (int i = last; i >= 0; i--) {
		if (in_list(axes, naxes, i)) {
			r.stride[0][i] = 0;
			r.count *= ext[i];
			r.along = ext[i];
			r.inner = 1;
			for (int j = i + 1; j <= last; j++)
				r.inner *= ext[j];
		} else {
			r.stride[0][i] = s;
			s *= ext[i];
		}
	}
	if (last >= 0) {
		r.row = ext[last];
		r.row_stride = r.stride[0][last];
		r.outer.rank = last;
		memcpy(r.outer.ext, ext, sizeof ext);
	}
	return r;
}

/* Runs body for every element: x its value, of cells f (double) or i (int64_t), o the result's offset, e its number. */
#define RED_EACH(red, cells, body) do { \
	Red walk_ = *(red); \
	int64_t off_[1] = {0}, e_ = 0; \
	do { \
		for (int64_t i_ = 0; i_ < walk_.row; i_++, e_++) { \
			const __typeof__(*walk_.x->cells) x = walk_.x->cells[e_]; \
			const int64_t o = off_[0] + i_ * walk_.row_stride, e = e_; \
			(void)e; \
			body; \
		} \
	} while (ref_next(&walk_.outer, 1, off_, walk_.stride)); \
} while (0)

static void
fill(RefTensor *r, double v)
{
	for (int64_t i = 0; i < r->n; i++)
		r->f[i] = v;
}

/* Of integers in i64, where it wraps; of conditions a count. */
static void
red_add(const Red *red, RefTensor *r)
{
	double *f = r->f;
	int64_t *s = r->i;

	if (red->x->i)
		RED_EACH(red, i, s[o] = (int64_t)((uint64_t)s[o] + (uint64_t)x));
	else if (s)
		RED_EACH(red, f, s[o] += x != 0);
	else
		RED_EACH(red, f, f[o] += red->element(x));
}

static void
red_extremum(const Red *red, RefTensor *r, bool largest)
{
	double *f = r->f;
	int64_t *s = r->i;

	for (int64_t i = 0; i < r->n; i++)
		if (s)
			s[i] = largest ? INT64_MIN : INT64_MAX;
	if (f)
		fill(r, largest ? -INFINITY : INFINITY);
	if (s && largest)
		RED_EACH(red, i, s[o] = x > s[o] ? x : s[o]);
	else if (s)
		RED_EACH(red, i, s[o] = x < s[o] ? x : s[o]);
	else
		RED_EACH(red, f, {
			double v = red->element(x);

			f[o] = (largest ? v > f[o] : v < f[o]) || v != v ? v : f[o];
		});
}

/* The first of equals; the first NaN. r begins as zeros. */
#define FIRST(T, cells, of) do { \
	T *best = arena_array(cx->arena, T, r->n); \
	bool *any = arena_array(cx->arena, bool, r->n); \
	RED_EACH(red, cells, { \
		T v = of(x); \
		if (!any[o] || v > best[o] || (v != v && best[o] == best[o])) { \
			any[o] = true; \
			best[o] = v; \
			r->i[o] = e / red->inner % red->along; \
		} \
	}); \
} while (0)

static void
red_first(RefCtx *cx, const Red *red, RefTensor *r)
{
	if (red->x->i)
		FIRST(int64_t, i, );
	else
		FIRST(double, f, red->element);
}

static void
red_squares(const Red *red, const RefTensor *mean, RefTensor *r)
{
	RED_EACH(red, f, r->f[o] += (x - mean->f[o]) * (x - mean->f[o]));
	for (int64_t i = 0; i < r->n; i++)
		r->f[i] /= (double)red->count;
}

/* An infinite largest element is the result: the exponentials' differences would be NaN. */
static void
red_exponentials(RefCtx *cx, const Red *red, RefTensor *r)
{
	double *sum = arena_array(cx->arena, double, r->n);

	RED_EACH(red, f, sum[o] += isinf(r->f[o]) ? 0 : exp(x - r->f[o]));
	for (int64_t i = 0; i < r->n; i++)
		r->f[i] = isinf(r->f[i]) ? r->f[i] : r->f[i] + log(sum[i]);
}

const char *
ref_red(RefCtx *cx, const Op *op)
{
	const RedInfo *row = red_of(op);
	Red red = red_of_op(cx, op);
	RefTensor *r = ref_zeros(cx, op, 0);

	if (ref_in(cx, op, 0)->n == 0)
		return ref_fail(cx, "%s of no elements", op_info[op->kind].name);
	switch (row->join) {
	case RED_ADD: red_add(&red, r); break;
	case RED_HIGH: case RED_LOW: red_extremum(&red, r, row->join == RED_HIGH); break;
	case RED_FIRST: red_first(cx, &red, r); break;
	}
	for (int64_t i = 0; i < r->n && r->f; i++)
		r->f[i] = red.value(r->f[i], (double)red.count, 0);
	if (row->then == RED_SQUARES)
		red_squares(&red, r, ref_zeros(cx, op, 1));
	else if (row->then == RED_EXPONENTIALS)
		red_exponentials(cx, &red, r);
	return NULL;
}
