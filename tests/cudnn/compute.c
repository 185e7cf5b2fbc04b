/* compute.c: convolutions, their gradients and products of matrices on the bytes of the simulated device.
 *
 * In: a Job.   Out: its result, summed in f32 in one order, with what follows, and rounded once; the workspace filled
 * with bytes that are no numbers. An address outside memory, tensors that overlap what is written, a workspace that is
 * missing end with a status, and a line says which. */
#include "compute.h"
#include "../../runtime/cuda/cudnn.h"
#include "../cudasim/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ILLEGAL_ADDRESS = 700 };
static MemoryFn *memory;

void
compute_memory(void *fn)
{
	*(void **)&memory = fn;
}

static int
wrong(const char *what)
{
	fprintf(stderr, "simulated device: cuDNN: %s\n", what);
	return ILLEGAL_ADDRESS;
}

static int64_t
bytes_of(const Tensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++)
		n += (t->dim[i] - 1) * t->stride[i];
	return n * (t->dtype == DNN_DATA_FLOAT ? 4 : 2);
}

static float
value(int dtype, const void *at)
{
	uint16_t half;
	float v;

	if (dtype == DNN_DATA_FLOAT) {
		memcpy(&v, at, 4);
		return v;
	}
	memcpy(&half, at, 2);
	return dtype == DNN_DATA_HALF ? f16_float(half) : bf16_float(half);
}

static void
value_put(int dtype, void *at, float v)
{
	uint16_t half = dtype == DNN_DATA_HALF ? float_f16(v) : float_bf16(v);

	memcpy(at, dtype == DNN_DATA_FLOAT ? (const void *)&v : &half, dtype == DNN_DATA_FLOAT ? 4 : 2);
}

/* Elements in the order of dims 0, 2, 3, 1 (channels innermost), or 0, 1, 2 of matrices: read into floats, or
 * written. */
static float *
elements(const Tensor *t, uint8_t *at, float *v, bool write)
{
	int64_t d[4] = {t->dim[0], t->rank == 4 ? t->dim[2] : t->dim[1], t->rank == 4 ? t->dim[3] : t->dim[2],
	                t->rank == 4 ? t->dim[1] : 1},
	        i = 0;
	int64_t s[4] = {t->stride[0], t->rank == 4 ? t->stride[2] : t->stride[1],
	                t->rank == 4 ? t->stride[3] : t->stride[2], t->rank == 4 ? t->stride[1] : 0},
	        size = t->dtype == DNN_DATA_FLOAT ? 4 : 2;

	if (!v)
		v = calloc((size_t)(d[0] * d[1] * d[2] * d[3]) + 1, sizeof *v);
	if (!v)
		abort();
	for (int64_t a = 0; a < d[0] && at; a++)
		for (int64_t b = 0; b < d[1]; b++)
			for (int64_t c = 0; c < d[2]; c++)
				for (int64_t e = 0; e < d[3]; e++, i++) {
					uint8_t *p = at + (a * s[0] + b * s[1] + c * s[2] + e * s[3]) * size;

					if (write)
						value_put(t->dtype, p, v[i]);
					else
						v[i] = value(t->dtype, p);
				}
	return v;
}

/* The products of one output pixel with one tap, all channels. */
static void
tap(const Job *j, float *x, float *w, float *y)
{
	int64_t each = j->w.dim[1], groups = j->x.dim[1] / each, out = j->w.dim[0] / groups,
	        line = j->w.dim[2] * j->w.dim[3] * each;

	for (int64_t k = 0; k < j->w.dim[0]; k++) {
		float *wk = w + k * line, *xk = x + k / out * each, s = 0;

		if (j->result == j->y.id) {
			for (int64_t c = 0; c < each; c++)
				s += xk[c] * wk[c];
			y[k] += s;
		} else if (j->result == j->x.id) {
			for (int64_t c = 0; c < each; c++)
				xk[c] += y[k] * wk[c];
		} else {
			for (int64_t c = 0; c < each; c++)
				wk[c] += y[k] * xk[c];
		}
	}
}

static void
convolve(const Job *j, float *x, float *w, float *y)
{
	const int64_t *xd = j->x.dim, *yd = j->y.dim, *wd = j->w.dim;

	for (int64_t n = 0; n < yd[0]; n++)
		for (int64_t p = 0; p < yd[2]; p++)
			for (int64_t q = 0; q < yd[3]; q++)
				for (int64_t r = 0; r < wd[2]; r++)
					for (int64_t s = 0; s < wd[3]; s++) {
						int64_t h = p * j->stride[0] + r * j->dilation[0] - j->pad[0],
						        v = q * j->stride[1] + s * j->dilation[1] - j->pad[1];

						if (h >= 0 && h < xd[2] && v >= 0 && v < xd[3])
							tap(j, x + ((n * xd[2] + h) * xd[3] + v) * xd[1],
							    w + (r * wd[3] + s) * wd[1],
							    y + ((n * yd[2] + p) * yd[3] + q) * yd[1]);
					}
}

static void
multiply(const Job *j, const float *a, const float *b, float *c)
{
	const int64_t *ad = j->x.dim, *bd = j->w.dim, *cd = j->y.dim;

	for (int64_t n = 0; n < cd[0]; n++)
		for (int64_t i = 0; i < cd[1]; i++)
			for (int64_t l = 0; l < ad[2]; l++)
				for (int64_t k = 0; k < cd[2]; k++)
					c[(n * cd[1] + i) * cd[2] + k] +=
					        a[((ad[0] == 1 ? 0 : n) * ad[1] + i) * ad[2] + l] *
					        b[((bd[0] == 1 ? 0 : n) * bd[1] + l) * bd[2] + k];
}

/* What is added, the bias, the rest. */
static void
follow(const Job *j, float *y, const float *add, const float *bias)
{
	int64_t k = j->y.dim[1], n = j->y.dim[0] * j->y.dim[2] * j->y.dim[3] * k;

	for (int64_t i = 0; i < n; i++) {
		float v = y[i] + (add ? add[i] : 0) + bias[i % k];

		y[i] = j->relu && v < 0 ? 0 : v;
	}
}

static bool
apart(unsigned long long a, int64_t na, unsigned long long b, int64_t nb)
{
	return a + (unsigned long long)na <= b || b + (unsigned long long)nb <= a;
}

int
compute_run(const void *job)
{
	const Job *j = job;
	const Tensor *t[5] = {&j->x, &j->w, &j->y, &j->bias, &j->add}, *o = j->result == j->x.id   ? &j->x
	                                                                    : j->result == j->w.id ? &j->w
	                                                                                           : &j->y;
	int n = 3 + j->biased + j->added;
	uint8_t *at[5],
	        *room = j->workspace_bytes && j->workspace ? memory(j->workspace, (size_t)j->workspace_bytes, 1) : NULL;
	float *v[5] = {0};

	if (j->workspace_bytes && !room)
		return wrong("the workspace lies outside memory");
	for (int k = 0; k < n; k++) {
		at[k] = memory(t[k]->at, (size_t)bytes_of(t[k]), t[k] == o);
		if (!at[k])
			return wrong("a tensor lies outside memory");
		if (t[k] != o && !apart(t[k]->at, bytes_of(t[k]), o->at, bytes_of(o)))
			return wrong("the result lies on an operand");
		if (room && !apart(t[k]->at, bytes_of(t[k]), j->workspace, j->workspace_bytes))
			return wrong("the workspace lies on a tensor");
	}
	if (room)
		memset(room, 0xff, (size_t)j->workspace_bytes);
	for (int k = 0; k < n; k++)
		v[k] = elements(t[k], t[k] == o ? NULL : at[k], NULL, false);
	if (j->kind == DNN_OPERATION_MATMUL)
		multiply(j, v[0], v[1], v[2]);
	else
		convolve(j, v[0], v[1], v[2]);
	if (j->biased)
		follow(j, v[2], v[4], v[3]);
	for (int k = 0; k < n; k++) {
		if (t[k] == o)
			elements(o, at[k], v[k], true);
		free(v[k]);
	}
	return 0;
}
