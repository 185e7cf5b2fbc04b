/* dtype.c: element types: names, reading, writing, conversion.
 *
 * In: little-endian elements as in the arena, or files' elements that may be byte-swapped.   Out: the language's
 * conversions: float to integer truncates and saturates, NaN to 0; to bool is != 0; to a narrower float rounds once, to
 * nearest even.
 * Refuses: an integer that the wanted integer type cannot hold, as no data file means that. */
#include "host.h"

#include <float.h>
#include <math.h>
#include <string.h>

const RtDTypeInfo rt_dtype[RT_DTYPE_COUNT] = {
	[RT_F64] = {"f64", 8, 'f', "F64", "<f8", 0, 0},
	[RT_F32] = {"f32", 4, 'f', "F32", "<f4", 0, 0},
	[RT_F16] = {"f16", 2, 'f', "F16", "<f2", 0, 0},
	[RT_BF16] = {"bf16", 2, 'f', "BF16", "", 0, 0},
	[RT_I64] = {"i64", 8, 'i', "I64", "<i8", -0x1p63, 0x1p63},
	[RT_I32] = {"i32", 4, 'i', "I32", "<i4", -2147483648.0, 2147483647.0},
	[RT_U8] = {"u8", 1, 'i', "U8", "|u1", 0, 255},
	[RT_BOOL] = {"bool", 1, 'b', "BOOL", "|b1", 0, 1},
	[RT_I16] = {"i16", 2, 'i', "I16", "<i2", -32768, 32767},
	[RT_U16] = {"u16", 2, 'i', "U16", "<u2", 0, 65535},
	[RT_I8] = {"i8", 1, 'i', "I8", "|i1", -128, 127},
};

int
rt_dtype_named(const char *name)
{
	for (int t = 1; t < RT_DTYPE_COUNT; t++)
		if (strcmp(rt_dtype[t].name, name) == 0)
			return t;
	return 0;
}

float
rt_bf16_to_f32(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float x;

	memcpy(&x, &u, 4);
	return x;
}

static uint16_t
rt_f32_to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float
rt_f16_to_f32(uint16_t h)
{
	int exponent = h >> 10 & 31, fraction = h & 1023;
	float sign = h >> 15 ? -1.0f : 1.0f;

	if (exponent == 31)
		return fraction ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexpf((float)fraction, -24);
	return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

uint16_t
rt_f64_to_f16(double x)
{
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	double a = fabs(x), scaled;
	int exponent;

	if (isnan(x))
		return sign | 0x7e00;
	if (a >= 65520.0)
		return sign | 0x7c00;
	/* subnormal: a multiple of 2^-24; 1024 of them is the smallest normal's code */
	if (a < 0x1p-14)
		return (uint16_t)(sign | (uint16_t)nearbyint(a * 0x1p24));
	(void)frexp(a, &exponent);
	scaled = nearbyint(ldexp(a, 11 - exponent)); /* 1024 .. 2048 */
	return (uint16_t)(sign | (uint16_t)((exponent + 13) * 1024 + (int)scaled));
}

/* bf16 from double in one rounding: a float rounded to odd keeps what the second rounding needs. */
static uint16_t
dtype_bf16(double x)
{
	float f = (float)x;
	uint32_t u;

	memcpy(&u, &f, 4);
	if (!isnan(x) && (double)f != x && !isinf(f)) {
		if (fabs((double)f) > fabs(x))
			u--;
		u |= 1;
		memcpy(&f, &u, 4);
	}
	return rt_f32_to_bf16(f);
}

double
rt_dtype_read(int dtype, const uint8_t *at)
{
	double d;
	float f;
	uint16_t h;
	int64_t l;
	int32_t i;

	switch (dtype) {
	case RT_F64: memcpy(&d, at, 8); return d;
	case RT_F32: memcpy(&f, at, 4); return f;
	case RT_F16: memcpy(&h, at, 2); return rt_f16_to_f32(h);
	case RT_BF16: memcpy(&h, at, 2); return rt_bf16_to_f32(h);
	case RT_I64: memcpy(&l, at, 8); return (double)l;
	case RT_I32: memcpy(&i, at, 4); return i;
	case RT_I16: memcpy(&h, at, 2); return (int16_t)h;
	case RT_U16: memcpy(&h, at, 2); return h;
	case RT_I8: return (int8_t)*at;
	default: return *at;
	}
}

static int64_t
dtype_integer(int dtype, double x)
{
	if (isnan(x))
		return 0;
	if (x <= rt_dtype[dtype].low)
		return dtype == RT_I64 ? INT64_MIN : (int64_t)rt_dtype[dtype].low;
	if (x >= rt_dtype[dtype].high)
		return dtype == RT_I64 ? INT64_MAX : (int64_t)rt_dtype[dtype].high;
	return (int64_t)x;
}

static void
dtype_write_integer(int dtype, uint8_t *at, int64_t v)
{
	int32_t i = (int32_t)v;
	uint16_t h = (uint16_t)v;

	if (dtype == RT_I64)
		memcpy(at, &v, 8);
	else if (dtype == RT_I32)
		memcpy(at, &i, 4);
	else if (rt_dtype[dtype].bytes == 2)
		memcpy(at, &h, 2);
	else
		*at = (uint8_t)v;
}

void
rt_dtype_write(int dtype, uint8_t *at, double x)
{
	float f = (float)x;
	uint16_t h;

	switch (dtype) {
	case RT_F64: memcpy(at, &x, 8); break;
	case RT_F32: memcpy(at, &f, 4); break;
	case RT_F16: h = rt_f64_to_f16(x); memcpy(at, &h, 2); break;
	case RT_BF16: h = dtype_bf16(x); memcpy(at, &h, 2); break;
	case RT_BOOL: *at = x != 0; break;
	default: dtype_write_integer(dtype, at, dtype_integer(dtype, x)); break;
	}
}

static int64_t
dtype_read_integer(int dtype, const uint8_t *at)
{
	int64_t l;

	if (dtype != RT_I64)
		return (int64_t)rt_dtype_read(dtype, at);
	memcpy(&l, at, 8);
	return l;
}

/* The conversions that data sets need most; false: another one, or elements that do not fit. gcc makes vectors of these
 * loops. */
#define CONVERT(From, To) for (int64_t j = 0; j < n; j++) { \
		From x; \
		To y; \
		memcpy(&x, in + j * (int64_t)sizeof x, sizeof x); \
		y = (To)x; \
		memcpy(out + j * (int64_t)sizeof y, &y, sizeof y); \
	}
static bool
dtype_convert_fast(int to, uint8_t *out, int from, const uint8_t *in, int64_t n)
{
	int64_t wide = 0;

	switch (from * RT_DTYPE_COUNT + to) {
	case RT_U8 * RT_DTYPE_COUNT + RT_F32: CONVERT(uint8_t, float) return true;
	case RT_U8 * RT_DTYPE_COUNT + RT_I32: CONVERT(uint8_t, int32_t) return true;
	case RT_I16 * RT_DTYPE_COUNT + RT_F32: CONVERT(int16_t, float) return true;
	case RT_U16 * RT_DTYPE_COUNT + RT_F32: CONVERT(uint16_t, float) return true;
	case RT_I8 * RT_DTYPE_COUNT + RT_F32: CONVERT(int8_t, float) return true;
	case RT_F64 * RT_DTYPE_COUNT + RT_F32: CONVERT(double, float) return true;
	case RT_F32 * RT_DTYPE_COUNT + RT_F64: CONVERT(float, double) return true;
	case RT_I32 * RT_DTYPE_COUNT + RT_I64: CONVERT(int32_t, int64_t) return true;
	case RT_F32 * RT_DTYPE_COUNT + RT_BF16:
		for (int64_t j = 0; j < n; j++) {
			float x;
			uint16_t y;

			memcpy(&x, in + j * 4, 4);
			y = rt_f32_to_bf16(x);
			memcpy(out + j * 2, &y, 2);
		}
		return true;
	case RT_I64 * RT_DTYPE_COUNT + RT_I32:
		for (int64_t j = 0; j < n; j++) {
			int64_t x;

			memcpy(&x, in + j * 8, 8);
			wide |= x ^ (int32_t)x;
		}
		if (wide)
			return false;
		CONVERT(int64_t, int32_t)
		return true;
	}
	return false;
}
#undef CONVERT

bool
rt_dtype_convert(int to, uint8_t *out, int from, const uint8_t *in, int64_t n, bool swap, int64_t *bad)
{
	int nin = rt_dtype[from].bytes, nout = rt_dtype[to].bytes;
	bool integers = rt_dtype[from].kind != 'f' && rt_dtype[to].kind == 'i';

	if (to == from && !swap && to != RT_BOOL) {
		memcpy(out, in, (size_t)n * (size_t)nin);
		return true;
	}
	if (!swap && dtype_convert_fast(to, out, from, in, n))
		return true;
	for (int64_t j = 0; j < n; j++, in += nin, out += nout) {
		uint8_t element[8];

		for (int b = 0; b < nin; b++)
			element[b] = in[swap ? nin - 1 - b : b];
		if (integers) {
			int64_t v = dtype_read_integer(from, element);

			if (to != RT_I64 && ((double)v < rt_dtype[to].low || (double)v > rt_dtype[to].high)) {
				*bad = j;
				return false;
			}
			dtype_write_integer(to, out, v);
		} else {
			rt_dtype_write(to, out, rt_dtype_read(from, element));
		}
	}
	return true;
}
