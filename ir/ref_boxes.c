/* ref_boxes.c: reference evaluation of order, nms and roi_align.
 *
 * In: tensors of the actual batch; boxes as x1 y1 x2 y2.   Out: places, masks, regions. NaN stands above every number
 * and
 * -0 equals 0. What nms decides depends on rounding, so its arithmetic is that of the boxes' type; all else is double.
 * roi_align: He et al. 2017 as torchvision has it; sums over a map's element go by box, bin and sample. */
#include "ref.h"
#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------- order */
typedef struct Ranked { double f; int64_t i; int32_t at; } Ranked;

/* -1, 0, 1: a before, equal to, behind b, in rising order. */
static int
compare_numbers(const Ranked *a, const Ranked *b)
{
	bool an = isnan(a->f), bn = isnan(b->f);

	if (an || bn)
		return an - bn;
	if (a->f != b->f)
		return a->f < b->f ? -1 : 1;
	return (a->i > b->i) - (a->i < b->i);
}

static int
by_rise(const void *x, const void *y)
{
	const Ranked *a = x, *b = y;
	int c = compare_numbers(a, b);

	return c ? c : (a->at > b->at) - (a->at < b->at);
}

static int
by_fall(const void *x, const void *y)
{
	const Ranked *a = x, *b = y;
	int c = compare_numbers(b, a);

	return c ? c : (a->at > b->at) - (a->at < b->at);
}

const char *
ref_order(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	int64_t ext[MAX_RANK], rext[MAX_RANK], ax = attr_int(op, A_axis), outer = 1, inner = 1;

	ref_extents(cx, &x->type, ext);
	ref_extents(cx, &r->type, rext);
	for (int i = 0; i < x->type.rank; i++)
		*(i < ax ? &outer : &inner) *= i == ax ? 1 : ext[i];
	int64_t n = ext[ax], count = rext[ax];
	Ranked *line = arena_array(cx->arena, Ranked, n);

	for (int64_t o = 0; o < outer; o++)
		for (int64_t j = 0; j < inner; j++) {
			for (int64_t i = 0; i < n; i++) {
				int64_t at = (o * n + i) * inner + j;

				line[i] =
				        (Ranked){.f = x->f ? x->f[at] : 0, .i = x->i ? x->i[at] : 0, .at = (int32_t)i};
			}
			qsort(line, (size_t)n, sizeof *line, attr_bool(op, A_descending) ? by_fall : by_rise);
			for (int64_t i = 0; i < count; i++)
				r->i[(o * count + i) * inner + j] = line[i].at;
		}
	return NULL;
}

/* ---------------------------------------------------------------- nms */
/* Does a remove b? Not where the quotient is NaN, as with 0 / 0 or a coordinate that is. Every step is rounded to the
 * boxes' type: of two such numbers a sum, product or quotient in double, rounded again, is that type's own. */
static bool
suppresses(const RefTensor *boxes, int64_t a, int64_t b, double iou)
{
	const double *p = boxes->f + 4 * a, *q = boxes->f + 4 * b;
	DType t = (DType)boxes->type.dtype;

	for (int k = 0; k < 4; k++)
		if (isnan(p[k]) || isnan(q[k]))
			return false;
#define R(x) ref_round(t, x, true)
	double w = fmax(R(fmin(p[2], q[2]) - fmax(p[0], q[0])), 0), h = fmax(R(fmin(p[3], q[3]) - fmax(p[1], q[1])), 0),
	       inter = R(w * h);
	double first = R(R(p[2] - p[0]) * R(p[3] - p[1])), second = R(R(q[2] - q[0]) * R(q[3] - q[1]));

	return R(inter / R(R(first + second) - inter)) > R(iou);
#undef R
}

const char *
ref_nms(RefCtx *cx, const Op *op)
{
	const RefTensor *boxes = ref_in(cx, op, 0), *scores = ref_in(cx, op, 1),
	                *group = attr_bool(op, A_has_group) ? ref_in(cx, op, 2) : NULL;
	RefTensor *index = ref_zeros(cx, op, 0), *keep = ref_zeros(cx, op, 1);
	int64_t ext[MAX_RANK], count = attr_int(op, A_count);
	double iou = attr_num(op, A_iou), least = attr_num(op, A_least);

	ref_extents(cx, &scores->type, ext);
	int64_t p = ext[scores->type.rank - 1];
	Ranked *line = arena_array(cx->arena, Ranked, p);

	for (int64_t first = 0, row = 0; p && first < scores->n; first += p, row++) {
		int64_t n = 0, found = 0;

		for (int64_t i = 0; i < p; i++)
			if (scores->f[first + i] > least)
				line[n++] = (Ranked){.f = scores->f[first + i], .at = (int32_t)i};
		qsort(line, (size_t)n, sizeof *line, by_fall);
		for (int64_t i = 0; i < n && found < count; i++) {
			int64_t at = line[i].at;
			bool free = true;

			for (int64_t k = 0; k < found && free; k++) {
				int64_t other = index->i[row * count + k];

				free = (group && group->i[first + other] != group->i[first + at]) ||
				       !suppresses(boxes, first + other, first + at, iou);
			}
			if (!free)
				continue;
			index->i[row * count + found] = at;
			keep->f[row * count + found++] = 1;
		}
	}
	return NULL;
}

/* ---------------------------------------------------------------- roi_align */
typedef struct Roi {
	int64_t n, c, h, w, r, size[2], samples;
	double scale, shift;
} Roi;
typedef struct Place { int64_t at[2]; double share[2]; } Place; /* between two rows or columns; shares 0 outside */

static Roi
roi_of(const RefCtx *cx, const Op *op, const Type *x)
{
	const int64_t *size = attr_ints(op, A_size, NULL);
	int64_t xe[MAX_RANK], be[MAX_RANK];

	ref_extents(cx, x, xe);
	ref_extents(cx, &ref_in(cx, op, 1)->type, be);
	return (Roi){.n = xe[0],
	             .c = xe[1],
	             .h = xe[2],
	             .w = xe[3],
	             .r = be[1],
	             .size = {size[0], size[1]},
	             .samples = attr_int(op, A_samples),
	             .scale = attr_num(op, A_scale),
	             .shift = attr_bool(op, A_aligned) ? 0.5 : 0};
}

/* Sample k of bin i of size bins from `low` to `high` (of the map), along an axis of extent n. */
static Place
place_of(const Roi *p, double low, double high, int64_t i, int64_t k, int64_t size, int64_t n)
{
	double length = high - low;

	if (p->shift == 0 && length < 1)
		length = 1;
	double bin = length / (double)size, y = low + (double)i * bin + ((double)k + 0.5) * bin / (double)p->samples;

	if (y < -1 || y > (double)n)
		return (Place){0};
	y = fmin(fmax(y, 0), (double)(n - 1));
	int64_t at = (int64_t)y, next = at + 1 < n ? at + 1 : at;
	double far = y - (double)at;

	return (Place){{at, next}, {1 - far, far}};
}

static void
add_sample(const double *plane, double *into, double value, double *sum, const Place *row, const Place *column,
           int64_t w)
{
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++) {
			double share = row->share[i] * column->share[j];
			int64_t at = row->at[i] * w + column->at[j];

			if (share == 0) /* what is not read may be infinite */
				continue;
			if (into)
				into[at] += value * share;
			else
				*sum += plane[at] * share;
		}
}

/* Forward (into NULL): bins of y; backward: g's bins are added into dx. */
static void
roi_box(const Roi *p, const double *box, const double *plane, double *into, double *bins)
{
	double b[4], area = (double)(p->samples * p->samples);
	bool finite = true;

	for (int k = 0; k < 4; k++) {
		finite &= isfinite(box[k]) != 0;
		b[k] = box[k] * p->scale - p->shift;
	}
	for (int64_t i = 0; i < p->size[0]; i++)
		for (int64_t j = 0; j < p->size[1]; j++) {
			double *bin = bins + i * p->size[1] + j, sum = 0;

			for (int64_t s = 0; s < p->samples * p->samples && finite; s++) {
				Place row = place_of(p, b[1], b[3], i, s / p->samples, p->size[0], p->h);
				Place column = place_of(p, b[0], b[2], j, s % p->samples, p->size[1], p->w);

				add_sample(plane, into, into ? *bin / area : 0, &sum, &row, &column, p->w);
			}
			if (!into)
				*bin = finite ? sum / area : NAN;
		}
}

static void
roi_all(const Roi *p, const RefTensor *boxes, const double *x, double *dx, double *regions)
{
	int64_t plane = p->h * p->w, bins = p->size[0] * p->size[1];

	for (int64_t n = 0; n < p->n; n++)
		for (int64_t r = 0; r < p->r; r++)
			for (int64_t c = 0; c < p->c; c++) {
				int64_t at = (n * p->c + c) * plane;

				roi_box(p, boxes->f + 4 * (n * p->r + r), x ? x + at : NULL, dx ? dx + at : NULL,
				        regions + ((n * p->r + r) * p->c + c) * bins);
			}
}

const char *
ref_roi_align(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	Roi p = roi_of(cx, op, &x->type);

	roi_all(&p, ref_in(cx, op, 1), x->f, NULL, ref_out(cx, op, 0)->f);
	return NULL;
}

const char *
ref_roi_align_dx(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_zeros(cx, op, 0);
	Roi p = roi_of(cx, op, &r->type);

	roi_all(&p, ref_in(cx, op, 1), NULL, r->f, ref_in(cx, op, 0)->f);
	return NULL;
}
