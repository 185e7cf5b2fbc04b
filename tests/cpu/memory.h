/* memory.h: tensors as they lie in the arena, any dtype and layout, to doubles in logical row-major order and back. */
#ifndef TESTS_CPU_MEMORY_H
#define TESTS_CPU_MEMORY_H
#include "../../ir/ir.h"
#include <string.h>

__extension__ typedef _Float16 Half;

static float
half_to_float(uint16_t h)
{
	Half x;

	memcpy(&x, &h, 2);
	return (float)x;
}

static double
element_read(DType dt, const uint8_t *p)
{
	float f;
	double d;
	int64_t q;
	int32_t i;
	uint16_t h;
	uint32_t u;

	switch (dt) {
	case DT_f64: memcpy(&d, p, 8); return d;
	case DT_f32: memcpy(&f, p, 4); return f;
	case DT_f16: memcpy(&h, p, 2); return half_to_float(h);
	case DT_bf16: memcpy(&h, p, 2); u = (uint32_t)h << 16; memcpy(&f, &u, 4); return f;
	case DT_i64: memcpy(&q, p, 8); return (double)q;
	case DT_i32: memcpy(&i, p, 4); return i;
	case DT_i16: memcpy(&h, p, 2); return (int16_t)h;
	case DT_u16: memcpy(&h, p, 2); return h;
	case DT_i8: return (int8_t)*p;
	default: return *p;
	}
}

static void
element_write(DType dt, uint8_t *p, double x)
{
	float f = (float)x;
	int64_t q = (int64_t)x;
	int32_t i = (int32_t)x;
	uint32_t u;
	uint16_t h;
	Half g = (Half)x;

	switch (dt) {
	case DT_f64: memcpy(p, &x, 8); break;
	case DT_f32: memcpy(p, &f, 4); break;
	case DT_f16: memcpy(p, &g, 2); break;
	case DT_bf16:
		memcpy(&u, &f, 4);
		h = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
		memcpy(p, &h, 2);
		break;
	case DT_i64: memcpy(p, &q, 8); break;
	case DT_i32: memcpy(p, &i, 4); break;
	case DT_i16: case DT_u16: h = (uint16_t)i; memcpy(p, &h, 2); break;
	default: *p = (uint8_t)i;
	}
}

/* In elements, per logical axis, as n examples lie in memory. */
static void
type_strides(const Type *t, int64_t n, int64_t full, int64_t stride[MAX_RANK])
{
	int64_t step = 1;

	for (int i = t->rank; i-- > 0;) {
		stride[t->perm[i]] = step;
		step *= axis_at(t->axis[t->perm[i]], n, full);
	}
}

/* Copies between logical row-major numbers and memory in t's layout for n examples: doubles either way; out of memory
 * also integers, exact, into `whole`. */
static void
tensor_walk(const Type *t, int64_t n, int64_t full, uint8_t *at, double *x, int64_t *whole, bool in)
{
	int64_t stride[MAX_RANK], ext[MAX_RANK], idx[MAX_RANK] = {0}, count = 1;

	type_strides(t, n, full, stride);
	for (int i = 0; i < t->rank; i++) {
		ext[i] = axis_at(t->axis[i], n, full);
		count *= ext[i];
	}
	for (int64_t e = 0; e < count; e++) {
		int64_t off = 0;

		for (int i = 0; i < t->rank; i++)
			off += idx[i] * stride[i];
		uint8_t *p = at + off * dtype_info[t->dtype].bytes;

		if (whole && t->dtype == DT_i64)
			memcpy(&whole[e], p, sizeof *whole);
		else if (whole)
			whole[e] = (int64_t)element_read((DType)t->dtype, p);
		else if (in)
			element_write((DType)t->dtype, p, x[e]);
		else
			x[e] = element_read((DType)t->dtype, p);
		for (int i = t->rank; i-- > 0 && ++idx[i] == ext[i];)
			idx[i] = 0;
	}
}

static void
tensor_move(const Type *t, int64_t n, int64_t full, uint8_t *at, double *x, bool in)
{
	tensor_walk(t, n, full, at, x, NULL, in);
}

static int64_t
elements_at(const Type *t, int64_t n, int64_t full)
{
	int64_t r = 1;

	for (int i = 0; i < t->rank; i++)
		r *= axis_at(t->axis[i], n, full);
	return r;
}
#endif
