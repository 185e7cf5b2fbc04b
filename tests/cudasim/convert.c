/* convert.c: conversions that no row of alu.def covers: saturating, directed, from and to 8-bit floats.
 *
 * In: a lane's source as its type says.   Out: the destination's bits. Everything passes through long double, whose 64
 * bits of significand hold every source exactly, and is rounded once. Slow, and the measure for the rows of alu.def. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "half.h"
#include "ptx.h"
#include "tensor.h"

typedef struct Format { int bits, lowest; long double most; } Format; /* significand; exponent of the smallest step */
static const Format formats[] = {[T_F16] = {11, -24, 65504},
                                 [T_BF16] = {8, -133, 0x1.fep127L},
                                 [T_F32] = {24, -149, 0x1.fffffep127L},
                                 [T_F64] = {53, -1074, 0x1.fffffffffffffp1023L},
                                 [T_E4M3] = {4, -9, 448},
                                 [T_E5M2] = {3, -16, 57344},
                                 [T_TF32] = {11, -136, 0x1.ffcp127L}};

/* mode: 0 nearest even, 1 to zero, 2 down, 3 up, 9 nearest away */
static long double
round_mode(long double v, int mode)
{
	switch (mode) {
	case 1: return truncl(v);
	case 2: return floorl(v);
	case 3: return ceill(v);
	case 9: return roundl(v);
	default: return rintl(v);
	}
}

static long double
round_format(long double v, const Format *f, int mode, bool finite)
{
	int e, q;
	long double r;

	if (v == 0 || v - v != 0) {
		if (finite && v == v && v != 0)
			return v > 0 ? f->most : -f->most;
		return v;
	}
	frexpl(v, &e);
	q = e - f->bits > f->lowest ? e - f->bits : f->lowest;
	r = ldexpl(round_mode(ldexpl(v, -q), mode), q);
	if (r > f->most)
		r = finite || mode == 1 || mode == 2 ? f->most : (long double)INFINITY;
	if (r < -f->most)
		r = finite || mode == 1 || mode == 3 ? -f->most : -(long double)INFINITY;
	return r == 0 ? copysignl(0, v) : r;
}

float
element_float(uint32_t bits, int code)
{
	int mantissa = code == ELEMENT_E4M3 ? 3 : 2, bias = code == ELEMENT_E4M3 ? 7 : 15, e, m;
	float v;

	switch (code) {
	case ELEMENT_F16: return f16_float((uint16_t)bits);
	case ELEMENT_BF16: return bf16_float((uint16_t)bits);
	case ELEMENT_TF32: return float_tf32_cut(bits_float(bits));
	case ELEMENT_S8: return (float)(int8_t)bits;
	case ELEMENT_U8: return (float)(uint8_t)bits;
	default: break;
	}
	e = (int)(bits & 0x7f) >> mantissa;
	m = (int)bits & ((1 << mantissa) - 1);
	if (code == ELEMENT_E4M3 ? (bits & 0x7f) == 0x7f : e == 31 && m)
		v = NAN;
	else if (code == ELEMENT_E5M2 && e == 31)
		v = INFINITY;
	else
		v = ldexpf((float)(e ? m | 1 << mantissa : m), (e ? e : 1) - bias - mantissa);
	return bits & 0x80 ? -v : v;
}

/* The 8 bits of a value that the format holds. */
static uint64_t
encode8(long double v, int code)
{
	if (v != v)
		return 0x7f;
	for (uint32_t b = 0; b < 128; b++)
		if ((long double)element_float(b, code) == fabsl(v))
			return b | (signbit(v) ? 0x80u : 0);
	return 0x7f;
}

static long double
source(uint64_t v, int type)
{
	double d;

	switch (type) {
	case T_U8: return (uint8_t)v;
	case T_S8: return (int8_t)v;
	case T_U16: return (uint16_t)v;
	case T_S16: return (int16_t)v;
	case T_U32: return (uint32_t)v;
	case T_S32: return (int32_t)v;
	case T_U64: return (long double)v;
	case T_S64: return (long double)(int64_t)v;
	case T_F16: return f16_float((uint16_t)v);
	case T_BF16: return bf16_float((uint16_t)v);
	case T_F64: memcpy(&d, &v, 8); return d;
	default: return bits_float((uint32_t)v);
	}
}

static uint64_t
to_int(long double v, int type, int mode, bool from_double)
{
	int bits = type <= T_S8 ? 8 : type <= T_S16 ? 16 : type <= T_S32 ? 32 : 64;
	bool is_signed = !(type & 1);
	long double low = is_signed ? -ldexpl(1, bits - 1) : 0, high = ldexpl(1, is_signed ? bits - 1 : bits) - 1;

	if (v != v)
		return from_double || bits == 64 ? 1ull << (bits - 1) : 0;
	v = round_mode(v, mode & 15);
	v = v < low ? low : v > high ? high : v;
	return v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
}

static uint64_t
to_float(long double v, int type, int mode, bool finite)
{
	double d;
	uint64_t u;

	if (mode >= 16)
		v = v - v == 0 ? round_mode(v, mode & 15) == 0 ? copysignl(0, v) : round_mode(v, mode & 15) : v;
	v = round_format(v, &formats[type], mode >= 16 ? 0 : mode, finite);
	switch (type) {
	case T_F16: return float_f16((float)v);
	case T_BF16: return float_bf16((float)v);
	case T_F64:
		d = (double)v;
		memcpy(&u, &d, 8);
		return v != v ? 0x7fffffffffffffffu : u;
	case T_E4M3: return encode8(v, ELEMENT_E4M3);
	case T_E5M2: return encode8(v, ELEMENT_E5M2);
	default: return v != v ? 0x7fffffff : float_bits((float)v);
	}
}

static uint64_t
convert(const Ins *x, uint64_t bits, int to, int from)
{
	long double v = source(bits, from);

	if (to <= T_S64) {
		bool clamp = x->imm & 1 || from > T_S64;

		if (!clamp) { /* integers: the low bits */
			bits = from & 1 ? (uint64_t)v : (uint64_t)(int64_t)v;
			return bits;
		}
		return to_int(v, to, x->n >= 16 ? x->n : 1, from == T_F64);
	}
	if (x->imm & 1)
		v = v > 0 ? v < 1 ? v : 1 : 0;
	if (x->imm & 2 && v == v)
		v = v > 0 ? v : 0;
	return to_float(v, to, x->n, x->imm & 4);
}

static uint64_t
widen(uint64_t v, int to, uint32_t wide)
{
	switch (to) {
	case T_U8: v &= 0xff; break;
	case T_S8: v = (uint64_t)(int64_t)(int8_t)v; break;
	case T_U16: v &= 0xffff; break;
	case T_S16: v = (uint64_t)(int64_t)(int16_t)v; break;
	case T_U32: v &= 0xffffffff; break;
	case T_S32: v = (uint64_t)(int64_t)(int32_t)v; break;
	default: break;
	}
	return wide == 8 ? v : v & ((1ull << wide * 8) - 1);
}

void
op_convert(Warp *w, const Ins *x, uint32_t m)
{
	FOR_LANES(i, m)
	lane_set(w, x->d, x->wide, (int)i,
	         widen(convert(x, lane_get(w, x->a, x->bytes, (int)i), x->type, x->sub), x->type, x->wide));
}

/* Two floats into a pair: the first operand is the upper half. */
void
op_convert_pack(Warp *w, const Ins *x, uint32_t m)
{
	int one = x->type == T_F16X2    ? T_F16
	          : x->type == T_BF16X2 ? T_BF16
	          : x->type == T_E4M3X2 ? T_E4M3
	                                : T_E5M2,
	    half = one == T_F16 || one == T_BF16 ? 16 : 8;

	FOR_LANES(i, m) {
		uint64_t hi = convert(x, REG(w, uint32_t, x->a)[i], one, T_F32),
		         lo = convert(x, REG(w, uint32_t, x->b)[i], one, T_F32);

		lane_set(w, x->d, x->wide, (int)i, hi << half | lo);
	}
}

/* A pair of 8-bit floats into a pair of f16. */
void
op_convert_unpack(Warp *w, const Ins *x, uint32_t m)
{
	int code = x->sub == T_E4M3X2 ? ELEMENT_E4M3 : ELEMENT_E5M2;

	FOR_LANES(i, m) {
		uint32_t v = (uint32_t)lane_get(w, x->a, x->bytes, (int)i);

		lane_set(w, x->d, 4, (int)i, pack_f16(element_float(v & 255, code), element_float(v >> 8 & 255, code)));
	}
}

/* Directed rounding of an operation of alu.c: the CPU's mode is changed around it. */
void
op_rounded(Warp *w, const Ins *x, uint32_t m)
{
	static const int modes[] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };

	fesetround(modes[x->sub]);
	x->inner(w, x, m);
	fesetround(FE_TONEAREST);
}
