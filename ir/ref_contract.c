/* ref_contract.c: reference evaluation of matmul and of the conv2d family.
 *
 * In: dense double arrays.  Out: sums in double, in the order of k. A convolution copies the patches of one image and
 * group into a matrix (im2col) and multiplies: y = W P; its gradients are P's transpose times g, and W^T g added back
 * to the places the patches came from. One matrix product serves all: four rows at a time, two columns per vector. */
#include "ref.h"
#include <string.h>

typedef double Pair __attribute__((vector_size(16)));

static inline Pair
pair_at(const double *p)
{
	Pair v;

	memcpy(&v, p, sizeof v);
	return v;
}

/* Some rows of C += A B, by pairs of columns; b's row k is contiguous. The last pairs' columns are done singly. */
static inline __attribute__((always_inline)) void
some_rows(int rows, int pairs, int64_t n, int64_t k, const double *a, int64_t ai, int64_t ak, const double *b,
          int64_t bk, double *c, int64_t ci)
{
	int64_t j = 0;

	for (; j + 2 * pairs <= n; j += 2 * pairs) {
		Pair s[4][4];

		for (int r = 0; r < rows; r++)
			for (int h = 0; h < pairs; h++)
				s[r][h] = pair_at(c + r * ci + j + 2 * h);
		for (int64_t q = 0; q < k; q++)
			for (int r = 0; r < rows; r++) {
				double x = a[r * ai + q * ak];
				Pair v = {x, x};

				for (int h = 0; h < pairs; h++)
					s[r][h] += v * pair_at(b + q * bk + j + 2 * h);
			}
		for (int r = 0; r < rows; r++)
			for (int h = 0; h < pairs; h++)
				memcpy(c + r * ci + j + 2 * h, &s[r][h], sizeof(Pair));
	}
	for (; j < n; j++)
		for (int r = 0; r < rows; r++) {
			double sum = c[r * ci + j];

			for (int64_t q = 0; q < k; q++)
				sum += a[r * ai + q * ak] * b[q * bk + j];
			c[r * ci + j] = sum;
		}
}

/* C [M,N] += A B with A(i,k) = a[i*ai + k*ak], B(k,j) = b[k*bk + j], C(i,j) = c[i*ci + j]. Sums run over k in order. */
static void
ref_gemm(int64_t m, int64_t n, int64_t k, const double *a, int64_t ai, int64_t ak, const double *b, int64_t bk,
         double *c, int64_t ci)
{
	int64_t i = 0;

	for (; i + 4 <= m; i += 4)
		some_rows(4, 2, n, k, a + i * ai, ai, ak, b, bk, c + i * ci, ci);
	for (; i + 2 <= m; i += 2)
		some_rows(2, 4, n, k, a + i * ai, ai, ak, b, bk, c + i * ci, ci);
	for (; i < m; i++)
		some_rows(1, 4, n, k, a + i * ai, ai, ak, b, bk, c + i * ci, ci);
}

static double *
scratch(RefCtx *cx, int64_t n)
{
	return arena_array(cx->arena, double, n);
}

/* ---------------------------------------------------------------- matmul */
/* Strides of the operand's leading axes in the result's, 0 where it broadcasts. */
static void
leading(const RefCtx *cx, const RefTensor *t, int rank, int64_t *stride)
{
	int64_t ext[MAX_RANK], s[MAX_RANK];
	int lead = rank - (t->type.rank - 2);

	ref_extents(cx, &t->type, ext);
	ref_strides(t->type.rank, ext, s);
	for (int i = 0; i < rank; i++)
		stride[i] = i < lead || ext[i - lead] == 1 ? 0 : s[i - lead];
}

const char *
ref_matmul(RefCtx *cx, const Op *op)
{
	const RefTensor *a = ref_in(cx, op, 0), *b = ref_in(cx, op, 1);
	RefTensor *r = ref_zeros(cx, op, 0);
	bool ta = attr_bool(op, A_ta), tb = attr_bool(op, A_tb);
	int64_t ext[MAX_RANK], ae[MAX_RANK], be[MAX_RANK], stride[2][MAX_RANK], off[2] = {0}, m, n, k;
	int rank = r->type.rank;
	double *c = r->f, *transposed = NULL;
	RefWalk w = {.rank = rank - 2};

	ref_extents(cx, &r->type, ext);
	ref_extents(cx, &a->type, ae);
	ref_extents(cx, &b->type, be);
	memcpy(w.ext, ext, sizeof ext);
	leading(cx, a, rank - 2, stride[0]);
	leading(cx, b, rank - 2, stride[1]);
	m = ext[rank - 2];
	n = ext[rank - 1];
	k = ae[a->type.rank - (ta ? 2 : 1)];
	if (r->n == 0)
		return NULL;
	if (be[b->type.rank - (tb ? 1 : 2)] != k)
		return ref_fail(cx, "matmul: the inner extents differ for a batch of %lld", (long long)cx->n);
	if (tb)
		transposed = scratch(cx, n * k);
	do {
		const double *bp = b->f + off[1];

		if (tb) {
			for (int64_t j = 0; j < n; j++)
				for (int64_t q = 0; q < k; q++)
					transposed[q * n + j] = bp[j * k + q];
			bp = transposed;
		}
		ref_gemm(m, n, k, a->f + off[0], ta ? 1 : k, ta ? m : 1, bp, n, c, n);
		c += m * n;
	} while (ref_next(&w, 2, off, stride));
	return NULL;
}

/* ---------------------------------------------------------------- convolution */
typedef struct Conv {
	int64_t n, groups, c, h, w;      /* c: input channels of a group */
	int64_t o, oh, ow;               /* o: output channels of a group */
	int64_t k[2], stride[2], pad[2], dilation[2];
	int64_t patch;                   /* c * k[0] * k[1] */
	int64_t pixels;                  /* oh * ow */
} Conv;

static Conv
conv_of(const RefCtx *cx, const Op *op, const Type *x, const Type *w, const Type *y)
{
	int64_t xe[MAX_RANK], we[MAX_RANK], ye[MAX_RANK];
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL),
	              *dil = attr_ints(op, A_dilation, NULL);
	Conv v = {.groups = attr_int(op, A_groups)};

	ref_extents(cx, x, xe);
	ref_extents(cx, w, we);
	ref_extents(cx, y, ye);
	v.n = xe[0], v.c = we[1], v.h = xe[2], v.w = xe[3];
	v.o = we[0] / v.groups, v.oh = ye[2], v.ow = ye[3];
	for (int i = 0; i < 2; i++) {
		v.k[i] = we[2 + i];
		v.stride[i] = stride[i];
		v.pad[i] = pad[i];
		v.dilation[i] = dil[i];
	}
	v.patch = v.c * v.k[0] * v.k[1];
	v.pixels = v.oh * v.ow;
	return v;
}

/* Copies the image into patches (row stride rs, pixel stride ps; 0 outside the image), or back: adds patches into
 * it. */
static void
patches(const Conv *v, double *image, double *p, int64_t rs, int64_t ps, bool back)
{
	for (int64_t c = 0, row = 0; c < v->c; c++)
		for (int64_t ky = 0; ky < v->k[0]; ky++)
			for (int64_t kx = 0; kx < v->k[1]; kx++, row++)
				for (int64_t oy = 0; oy < v->oh; oy++) {
					int64_t y = oy * v->stride[0] - v->pad[0] + ky * v->dilation[0];
					int64_t line = (c * v->h + y) * v->w;
					double *to = p + row * rs + oy * v->ow * ps;
					int64_t x = kx * v->dilation[1] - v->pad[1];

					for (int64_t ox = 0; ox < v->ow; ox++, x += v->stride[1], to += ps) {
						bool inside = y >= 0 && y < v->h && x >= 0 && x < v->w;

						if (!back)
							*to = inside ? image[line + x] : 0;
						else if (inside)
							image[line + x] += *to;
					}
				}
}

const char *
ref_conv2d(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0), *w = ref_in(cx, op, 1);
	RefTensor *y = ref_zeros(cx, op, 0);
	Conv v = conv_of(cx, op, &x->type, &w->type, &y->type);
	double *p = scratch(cx, v.patch * v.pixels);

	for (int64_t i = 0; i < v.n * v.groups; i++) {
		int64_t g = i % v.groups;

		patches(&v, x->f + i * v.c * v.h * v.w, p, v.pixels, 1, false);
		ref_gemm(v.o, v.pixels, v.patch, w->f + g * v.o * v.patch, v.patch, 1, p, v.pixels,
		         y->f + i * v.o * v.pixels, v.pixels);
	}
	return NULL;
}

const char *
ref_conv2d_dx(RefCtx *cx, const Op *op)
{
	const RefTensor *y = ref_in(cx, op, 0), *w = ref_in(cx, op, 1);
	RefTensor *x = ref_zeros(cx, op, 0);
	Conv v = conv_of(cx, op, &x->type, &w->type, &y->type);
	double *p = scratch(cx, v.patch * v.pixels);

	for (int64_t i = 0; i < v.n * v.groups; i++) {
		int64_t g = i % v.groups;

		memset(p, 0, (size_t)(v.patch * v.pixels) * sizeof(double));
		ref_gemm(v.patch, v.pixels, v.o, w->f + g * v.o * v.patch, 1, v.patch, y->f + i * v.o * v.pixels,
		         v.pixels, p, v.pixels);
		patches(&v, x->f + i * v.c * v.h * v.w, p, v.pixels, 1, true);
	}
	return NULL;
}

const char *
ref_conv2d_dw(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0), *y = ref_in(cx, op, 1);
	RefTensor *w = ref_zeros(cx, op, 0);
	Conv v = conv_of(cx, op, &x->type, &w->type, &y->type);
	double *p = scratch(cx, v.patch * v.pixels);

	for (int64_t i = 0; i < v.n * v.groups; i++) {
		int64_t g = i % v.groups;

		patches(&v, x->f + i * v.c * v.h * v.w, p, 1, v.patch, false);
		ref_gemm(v.o, v.patch, v.pixels, y->f + i * v.o * v.pixels, v.pixels, 1, p, v.patch,
		         w->f + g * v.o * v.patch, v.patch);
	}
	return NULL;
}
