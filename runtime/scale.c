/* scale.c: a box of an image scaled by Pillow's bilinear filter: a triangle, as wide as one output pixel where that is
 * wider than an input pixel (Turkowski 1990; Pillow's Resample).
 *
 * In: rows of 1 or 3 bytes a pixel.   Out: a window of the scaled box, channel by channel. First columns, then rows,
 * each with weights of 22 fraction bits and rounded to bytes; only what the window needs is made. Nothing outside of
 * the box is read. */
#include "bitmap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE_BITS = 22 };

/* Weights of output pixels: `taps` of each, of which count belong to inputs from first on. */
typedef struct Weights { int taps; int32_t *first, *count, *k; } Weights;

/* Of output pixels at .. at + n - 1 of `out`, from `in` input pixels. */
static bool
scale_weights(Weights *w, int in, int out, int at, int n, RtScratch *s, int which)
{
	double scale = (double)in / out, wide = scale > 1 ? scale : 1;
	int32_t *room;

	w->taps = (int)ceil(wide) * 2 + 1;
	room = rt_scratch(s, which,
	                  sizeof *room * (size_t)n * (size_t)(2 + w->taps) + sizeof(double) * (size_t)w->taps + 8);
	if (!room)
		return false;
	w->first = room;
	w->count = room + n;
	w->k = room + 2 * n;
	for (int i = 0; i < n; i++) {
		double centre = (at + i + 0.5) * scale, sum = 0;
		int from = (int)(centre - wide + 0.5), to = (int)(centre + wide + 0.5);
		int32_t *k = w->k + (size_t)i * (size_t)w->taps;

		from = centre - wide + 0.5 > 0 ? from : 0;
		to = to < in ? to : in;
		for (int pass = 0; pass < 2; pass++)     /* the sum first: weights of a pixel are 1 together */
			for (int j = from; j < to; j++) {
				double x = fabs((j - centre + 0.5) / wide), v = x < 1 ? 1 - x : 0;

				if (pass == 0)
					sum += v;
				else
					k[j - from] = (int32_t)(v / sum * (1 << SCALE_BITS) + 0.5);
			}
		w->first[i] = from;
		w->count[i] = to - from;
	}
	return true;
}

static uint8_t
scale_byte(int32_t sum)
{
	sum >>= SCALE_BITS;
	return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

static void
scale_row3(const Weights *w, int n, const uint8_t *in, uint8_t *out)
{
	for (int i = 0; i < n; i++, out += 3) {
		const uint8_t *x = in + (size_t)w->first[i] * 3;
		const int32_t *k = w->k + (size_t)i * (size_t)w->taps;
		int32_t a = 1 << (SCALE_BITS - 1), b = a, c = a;

		for (int j = 0; j < w->count[i]; j++, x += 3) {
			a += k[j] * x[0];
			b += k[j] * x[1];
			c += k[j] * x[2];
		}
		out[0] = scale_byte(a);
		out[1] = scale_byte(b);
		out[2] = scale_byte(c);
	}
}

static void
scale_row1(const Weights *w, int n, const uint8_t *in, uint8_t *out)
{
	for (int i = 0; i < n; i++) {
		const uint8_t *x = in + w->first[i];
		const int32_t *k = w->k + (size_t)i * (size_t)w->taps;
		int32_t a = 1 << (SCALE_BITS - 1);

		for (int j = 0; j < w->count[i]; j++)
			a += k[j] * x[j];
		out[i] = scale_byte(a);
	}
}

/* sum[i] of n bytes += k * x[i]; the loop that vectors are for. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("avx2", "default")))
#endif
static void
scale_add(int32_t *restrict sum, const uint8_t *restrict x, int32_t k, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		sum[i] += k * x[i];
}

static void
scale_out(const int32_t *sum, int channels, int width, bool flip, uint8_t *out, int64_t plane)
{
	for (int c = 0; c < channels; c++)
		for (int i = 0; i < width; i++)
			out[c * plane + (flip ? width - 1 - i : i)] = scale_byte(sum[i * channels + c]);
}

bool
rt_bitmap_scale(const RtBitmap *p, RtBox box, int width, int height, RtBox window, bool flip, RtScratch *s,
                 uint8_t *out, RtError *e)
{
	Weights across, down;
	int64_t line = (int64_t)window.width * p->channels, stride = (int64_t)p->width * p->channels,
	        plane = (int64_t)window.width * window.height;
	const uint8_t *in = p->at + box.y * stride + (int64_t)box.x * p->channels;
	int from, to;
	uint8_t *narrow;
	int32_t *sum;

	if (!scale_weights(&across, box.width, width, window.x, window.width, s, 2) ||
	    !scale_weights(&down, box.height, height, window.y, window.height, s, 3))
		return rt_fail(e, "out of memory for weights");
	from = down.first[0];
	to = down.first[window.height - 1] + down.count[window.height - 1];
	narrow = rt_scratch(s, 4, (size_t)((to - from) * line) + (size_t)line * sizeof *sum + 64);
	if (!narrow)
		return rt_fail(e, "out of memory for a scaled image");
	sum = (int32_t *)(void *)(narrow + (((to - from) * line + 63) & ~(int64_t)63));
	for (int i = from; i < to; i++)
		(p->channels == 3 ? scale_row3 : scale_row1)(&across, window.width, in + i * stride,
		                                             narrow + (i - from) * line);
	for (int i = 0; i < window.height; i++) {
		for (int64_t j = 0; j < line; j++)
			sum[j] = 1 << (SCALE_BITS - 1);
		for (int j = 0; j < down.count[i]; j++)
			scale_add(sum, narrow + (down.first[i] + j - from) * line,
			          down.k[(size_t)i * (size_t)down.taps + (size_t)j], line);
		scale_out(sum, p->channels, window.width, flip, out + (int64_t)i * window.width, plane);
	}
	return true;
}
