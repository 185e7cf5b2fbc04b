/* roi.c: roi_align and its gradient: regions of a map by bilinear samples (He et al. 2017, arXiv:1703.06870;
 * torchvision's rules).
 *
 * In: a map x [N,C,H,W] or the gradient of its regions, boxes [N,R,4] as x1 y1 x2 y2.   Out: regions
 * [N,R,C,rows,columns] or the gradient of x. Places are computed in double, values in f32 where the map is f32, else in
 * double. A sample lies between two rows and two columns, and these do not depend on each other: their places are found
 * once for a box, for all channels. The gradient of an element is added up by box, bin and sample, whatever the tasks.
 * A box with a coordinate that is not finite is NaN and gives none. */
#include "host.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* rows or columns low and high with their shares; low -1: outside */
typedef struct Place { int64_t low, high; double near, far; } Place;
static_assert(sizeof(Place) == RT_PLACE, "rt.h says how much scratch memory a place takes");

/* The samples of `size` bins along an axis of extent n, from box coordinate a to b of the map. False: all are
 * outside. */
static bool
places(const RtRoi *p, double a, double b, int64_t size, int64_t n, Place *to)
{
	double length = b - a;
	bool some = false;

	if (!p->aligned && length < 1)
		length = 1;
	double bin = length / (double)size;

	for (int64_t i = 0; i < size * p->samples; i++) {
		double y = a + (double)(i / p->samples) * bin +
		           ((double)(i % p->samples) + 0.5) * bin / (double)p->samples;

		to[i].low = -1;
		if (y < -1 || y > (double)n)
			continue;
		y = y < 0 ? 0 : y > (double)(n - 1) ? (double)(n - 1) : y;
		int64_t low = (int64_t)y;

		to[i] = (Place){low, low + 1 < n ? low + 1 : low, 1 - (y - (double)low), y - (double)low};
		some = true;
	}
	return some;
}

/* Of one box: rows and columns of its samples. REGION_NONE: nothing of it is in the map. */
typedef enum Region { REGION_NONE, REGION_SOME, REGION_NAN } Region;
typedef struct Samples { Place *row, *column; } Samples;

static Region
region_at(const RtRoi *p, const uint8_t *boxes, int64_t box, Samples *s, uint8_t *scratch)
{
	size_t bytes = (size_t)rt_dtype[p->box_dtype].bytes;
	double x[4], shift = p->aligned ? 0.5 : 0;

	for (int k = 0; k < 4; k++) {
		x[k] = rt_dtype_read((int)p->box_dtype, boxes + bytes * (size_t)(4 * box + k));
		if (!isfinite(x[k]))
			return REGION_NAN;
		x[k] = x[k] * p->scale - shift;
	}
	s->row = (Place *)(void *)scratch;
	s->column = s->row + p->rows * p->samples;
	return places(p, x[1], x[3], p->rows, p->height, s->row) &&
	                       places(p, x[0], x[2], p->columns, p->width, s->column)
	               ? REGION_SOME
	               : REGION_NONE;
}

/* ---------------------------------------------------------------- f32 */
static float
bin_f32(const RtRoi *p, const float *x, const Place *row, const Place *column)
{
	float sum = 0;

	for (int64_t i = 0; i < p->samples; i++) {
		if (row[i].low < 0)
			continue;
		const float *a = x + row[i].low * p->width, *b = x + row[i].high * p->width;
		float near = (float)row[i].near, far = (float)row[i].far;

		for (int64_t j = 0; j < p->samples; j++) {
			const Place *c = &column[j];

			if (c->low >= 0)
				sum += near * ((float)c->near * a[c->low] + (float)c->far * a[c->high]) +
				       far * ((float)c->near * b[c->low] + (float)c->far * b[c->high]);
		}
	}
	return sum / (float)(p->samples * p->samples);
}

static void
add_bin_f32(const RtRoi *p, float *dx, const Place *row, const Place *column, float g)
{
	g /= (float)(p->samples * p->samples);
	for (int64_t i = 0; i < p->samples; i++) {
		if (row[i].low < 0)
			continue;
		float *a = dx + row[i].low * p->width, *b = dx + row[i].high * p->width;
		float near = g * (float)row[i].near, far = g * (float)row[i].far;

		for (int64_t j = 0; j < p->samples; j++) {
			const Place *c = &column[j];

			if (c->low < 0)
				continue;
			a[c->low] += near * (float)c->near;
			a[c->high] += near * (float)c->far;
			b[c->low] += far * (float)c->near;
			b[c->high] += far * (float)c->far;
		}
	}
}

/* ---------------------------------------------------------------- other types, in double */
static double
value(const RtRoi *p, const uint8_t *at, int64_t i)
{
	return rt_dtype_read((int)p->dtype, at + i * rt_dtype[p->dtype].bytes);
}

static double
bin_any(const RtRoi *p, const uint8_t *x, const Place *row, const Place *column)
{
	double sum = 0;

	for (int64_t i = 0; i < p->samples; i++)
		for (int64_t j = 0; j < p->samples && row[i].low >= 0; j++) {
			int64_t a = row[i].low * p->width, b = row[i].high * p->width;
			const Place *c = &column[j];

			if (c->low >= 0)
				sum += row[i].near *
				               (c->near * value(p, x, a + c->low) + c->far * value(p, x, a + c->high)) +
				       row[i].far *
				               (c->near * value(p, x, b + c->low) + c->far * value(p, x, b + c->high));
		}
	return sum / (double)(p->samples * p->samples);
}

static void
add_bin_any(const RtRoi *p, double *dx, const Place *row, const Place *column, double g)
{
	g /= (double)(p->samples * p->samples);
	for (int64_t i = 0; i < p->samples; i++)
		for (int64_t j = 0; j < p->samples && row[i].low >= 0; j++) {
			double *a = dx + row[i].low * p->width, *b = dx + row[i].high * p->width;
			const Place *c = &column[j];

			if (c->low < 0)
				continue;
			a[c->low] += g * row[i].near * c->near;
			a[c->high] += g * row[i].near * c->far;
			b[c->low] += g * row[i].far * c->near;
			b[c->high] += g * row[i].far * c->far;
		}
}

/* ---------------------------------------------------------------- kernels */
void
rt_roi_align(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtRoi *p = spec;
	int64_t bins = p->rows * p->columns, plane = p->height * p->width, bytes = rt_dtype[p->dtype].bytes;

	for (int64_t t = t0; t < t1; t++) {
		uint8_t *y = buf[2] + t * p->channels * bins * bytes;
		Samples s;
		Region region = region_at(p, buf[1], t, &s, scratch);

		for (int64_t i = 0; region != REGION_SOME && i < p->channels * bins; i++)
			rt_dtype_write((int)p->dtype, y + i * bytes, region == REGION_NAN ? (double)NAN : 0);
		for (int64_t i = 0; region == REGION_SOME && i < p->channels * bins; i++) {
			const Place *row = s.row + i % bins / p->columns * p->samples,
			            *column = s.column + i % p->columns * p->samples;
			const uint8_t *x = buf[0] + (t / p->regions * p->channels + i / bins) * plane * bytes;

			if (p->dtype == RT_F32)
				((float *)(void *)y)[i] = bin_f32(p, (const float *)(const void *)x, row, column);
			else
				rt_dtype_write((int)p->dtype, y + i * bytes, bin_any(p, x, row, column));
		}
	}
}

/* The gradients of a region's bins, of one channel, into a plane: of f32, or of sums in double. */
static void
add_plane(const RtRoi *p, const uint8_t *g, const Samples *s, void *to)
{
	for (int64_t i = 0; i < p->rows * p->columns; i++) {
		const Place *row = s->row + i / p->columns * p->samples,
		            *column = s->column + i % p->columns * p->samples;

		if (p->dtype == RT_F32)
			add_bin_f32(p, to, row, column, ((const float *)(const void *)g)[i]);
		else
			add_bin_any(p, to, row, column, value(p, g, i));
	}
}

/* Planes [from, to) of one example, box by box: a box's samples are found once for all. */
static void
planes_f32(const RtRoi *p, uint8_t *const *buf, int64_t from, int64_t to, uint8_t *scratch)
{
	int64_t n = from / p->channels, bins = p->rows * p->columns, plane = p->height * p->width;
	Samples s;

	memset(buf[2] + from * plane * 4, 0, (size_t)((to - from) * plane * 4));
	for (int64_t r = n * p->regions; r < (n + 1) * p->regions; r++)
		if (region_at(p, buf[1], r, &s, scratch) == REGION_SOME)
			for (int64_t t = from; t < to; t++)
				add_plane(p, buf[0] + (r * p->channels + t % p->channels) * bins * 4, &s,
				          buf[2] + t * plane * 4);
}

/* A plane in double, rounded at the end. */
static void
plane_any(const RtRoi *p, uint8_t *const *buf, int64_t t, uint8_t *scratch)
{
	int64_t n = t / p->channels, bins = p->rows * p->columns, plane = p->height * p->width,
	        bytes = rt_dtype[p->dtype].bytes;
	double *sum = (double *)(void *)(scratch + RT_PLACE * (p->rows + p->columns) * p->samples);
	Samples s;

	for (int64_t i = 0; i < plane; i++)
		sum[i] = 0;
	for (int64_t r = n * p->regions; r < (n + 1) * p->regions; r++)
		if (region_at(p, buf[1], r, &s, scratch) == REGION_SOME)
			add_plane(p, buf[0] + (r * p->channels + t % p->channels) * bins * bytes, &s, sum);
	for (int64_t i = 0; i < plane; i++)
		rt_dtype_write((int)p->dtype, buf[2] + (t * plane + i) * bytes, sum[i]);
}

void
rt_roi_align_dx(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtRoi *p = spec;

	for (int64_t t = t0, to; t < t1; t = to) {
		int64_t end = (t / p->channels + 1) * p->channels;

		to = p->dtype != RT_F32 ? t + 1 : end < t1 ? end : t1;
		if (p->dtype == RT_F32)
			planes_f32(p, buf, t, to, scratch);
		else
			plane_any(p, buf, t, scratch);
	}
}
