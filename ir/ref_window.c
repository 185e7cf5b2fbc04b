/* ref_window.c: reference evaluation of pooling. In: [N, C, H, W], window, stride and padding.  Out: the largest
 * element or the mean of each window, and their gradients. Padding never wins a maximum; the first maximum of a window
 * (row-major) takes the gradient; the first NaN beats everything. A mean's divisor is the window clipped to the padded
 * image (PyTorch), or to the image. */
#include "ref.h"

typedef struct Pool { int64_t planes, h, w, oh, ow, k[2], stride[2], pad[2]; } Pool;
typedef struct Span { int64_t y0, y1, x0, x1, padded; } Span; /* within the image; padded: elements with padding */

static Pool
pool_of(const RefCtx *cx, const Op *op, const Type *x, const Type *y)
{
	int64_t xe[MAX_RANK], ye[MAX_RANK];
	const int64_t *k = attr_ints(op, A_k, NULL), *stride = attr_ints(op, A_stride, NULL),
	              *pad = attr_ints(op, A_pad, NULL);
	Pool p;

	ref_extents(cx, x, xe);
	ref_extents(cx, y, ye);
	p = (Pool){.planes = xe[0] * xe[1], .h = xe[2], .w = xe[3], .oh = ye[2], .ow = ye[3]};
	for (int i = 0; i < 2; i++) {
		p.k[i] = k[i];
		p.stride[i] = stride[i];
		p.pad[i] = pad[i];
	}
	return p;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static Span
span_of(const Pool *p, int64_t oy, int64_t ox)
{
	int64_t y = oy * p->stride[0] - p->pad[0], x = ox * p->stride[1] - p->pad[1];
	int64_t yend = least(y + p->k[0], p->h + p->pad[0]), xend = least(x + p->k[1], p->w + p->pad[1]);

	return (Span){.y0 = y < 0 ? 0 : y,
	              .y1 = least(yend, p->h),
	              .x0 = x < 0 ? 0 : x,
	              .x1 = least(xend, p->w),
	              .padded = (yend - y) * (xend - x)};
}

/* The window's first largest element, in the plane that begins at element `plane`. */
static int64_t
largest(const Pool *p, const RefTensor *x, int64_t plane, Span s)
{
	int64_t best = plane + s.y0 * p->w + s.x0;

	for (int64_t i = s.y0; i < s.y1; i++)
		for (int64_t j = s.x0; j < s.x1; j++) {
			int64_t at = plane + i * p->w + j;

			if (x->i ? x->i[at] > x->i[best]
			    : x->f[at] > x->f[best] || (x->f[at] != x->f[at] && x->f[best] == x->f[best]))
				best = at;
		}
	return best;
}

const char *
ref_max_pool2d(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	Pool p = pool_of(cx, op, &x->type, &r->type);
	int64_t out = 0;

	for (int64_t i = 0; i < p.planes; i++)
		for (int64_t oy = 0; oy < p.oh; oy++)
			for (int64_t ox = 0; ox < p.ow; ox++, out++) {
				int64_t at = largest(&p, x, i * p.h * p.w, span_of(&p, oy, ox));

				if (r->i)
					r->i[out] = x->i[at];
				else
					r->f[out] = x->f[at];
			}
	return NULL;
}

const char *
ref_max_pool2d_dx(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0), *g = ref_in(cx, op, 1);
	RefTensor *r = ref_zeros(cx, op, 0);
	Pool p = pool_of(cx, op, &x->type, &g->type);
	const double *d = g->f;

	for (int64_t i = 0; i < p.planes; i++)
		for (int64_t oy = 0; oy < p.oh; oy++)
			for (int64_t ox = 0; ox < p.ow; ox++)
				r->f[largest(&p, x, i * p.h * p.w, span_of(&p, oy, ox))] += *d++;
	return NULL;
}

static double
divisor(Span s, bool count_pad)
{
	return (double)(count_pad ? s.padded : (s.y1 - s.y0) * (s.x1 - s.x0));
}

const char *
ref_avg_pool2d(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	Pool p = pool_of(cx, op, &x->type, &r->type);
	bool count_pad = attr_bool(op, A_count_pad);
	double *out = r->f;

	for (int64_t i = 0; i < p.planes; i++)
		for (int64_t oy = 0; oy < p.oh; oy++)
			for (int64_t ox = 0; ox < p.ow; ox++) {
				Span s = span_of(&p, oy, ox);
				double sum = 0;

				for (int64_t y = s.y0; y < s.y1; y++)
					for (int64_t c = s.x0; c < s.x1; c++)
						sum += x->f[(i * p.h + y) * p.w + c];
				*out++ = sum / divisor(s, count_pad);
			}
	return NULL;
}

const char *
ref_avg_pool2d_dx(RefCtx *cx, const Op *op)
{
	const RefTensor *g = ref_in(cx, op, 0);
	RefTensor *r = ref_zeros(cx, op, 0);
	Pool p = pool_of(cx, op, &r->type, &g->type);
	bool count_pad = attr_bool(op, A_count_pad);
	const double *d = g->f;

	for (int64_t i = 0; i < p.planes; i++)
		for (int64_t oy = 0; oy < p.oh; oy++)
			for (int64_t ox = 0; ox < p.ow; ox++) {
				Span s = span_of(&p, oy, ox);
				double share = *d++ / divisor(s, count_pad);

				for (int64_t y = s.y0; y < s.y1; y++)
					for (int64_t c = s.x0; c < s.x1; c++)
						r->f[(i * p.h + y) * p.w + c] += share;
			}
	return NULL;
}
