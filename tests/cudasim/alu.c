/* alu.c: operations that read and write only registers: 32 lanes at a time, from the table alu.def.
 *
 * In: a warp, an instruction with the offsets of its operands, a mask.   Out: the lanes of the mask of its result.
 * Each row becomes a loop over 32 lanes, once without a mask, which the compiler vectorises. Values are computed for
 * every lane and only stored for those of the mask, so no expression may trap. The file is built twice, with and
 * without AVX2 (ALU_ROWS names its table). */
#include "sim.h"

#include <math.h>
#include <string.h>

#include "half.h"

#ifndef ALU_ROWS
#define ALU_ROWS alu_rows_v1
#endif
#ifdef __clang__
#define IVDEP
#else
#define IVDEP _Pragma("GCC ivdep")
#endif

__extension__ typedef unsigned __int128 Wide;
__extension__ typedef __int128 WideSigned;

static inline uint64_t
double_bits(double d)
{
	uint64_t u;

	memcpy(&u, &d, 8);
	return u;
}

static inline int32_t
sat32(int64_t v)
{
	return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}

static inline uint32_t
find_signed(int64_t v)
{
	uint64_t u = (uint64_t)(v < 0 ? ~v : v);

	return u ? 63 - (uint32_t)__builtin_clzll(u) : ~0u;
}

static inline uint32_t
reverse32(uint32_t v)
{
	v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
	v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
	v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
	return __builtin_bswap32(v);
}

/* Bits [pos, pos + len) of a, sign or zero extended; both counts are bytes. */
static inline uint64_t
extract_bits(uint64_t a, int is_signed, uint32_t width, uint32_t pos, uint32_t len)
{
	pos &= 255;
	len &= 255;

	uint32_t top = pos + len == 0 ? 0 : pos + len - 1 < width - 1 ? pos + len - 1 : width - 1;
	uint64_t sign = is_signed && len ? (a >> top & 1 ? ~0ull : 0) : 0;
	uint64_t v = pos < width ? a >> pos : 0;
	uint32_t have = pos < width ? (len < width - pos ? len : width - pos) : 0;
	uint64_t keep = have >= 64 ? ~0ull : (1ull << have) - 1;

	return (v & keep) | (sign & ~keep);
}

static inline uint64_t
insert_mask(uint32_t width, uint32_t pos, uint32_t len)
{
	pos &= 255;
	len &= 255;

	uint64_t m = len >= 64 ? ~0ull : (1ull << len) - 1;

	return pos >= width ? 0 : m << pos;
}

/* Each of the three sources is one of three bit patterns; the byte is what the wanted function gives for them. */
static inline uint32_t
lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t t)
{
	uint32_t r = 0;

	for (uint32_t k = 0; k < 8; k++)
		r |= (0u - (t >> k & 1)) & (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
	return r;
}

static inline uint32_t
permute(uint32_t a, uint32_t b, uint32_t c)
{
	uint64_t from = (uint64_t)b << 32 | a;
	uint32_t r = 0;

	for (uint32_t k = 0; k < 4; k++) {
		uint32_t s = c >> 4 * k & 15, byte = (uint32_t)(from >> 8 * (s & 7)) & 255;

		byte = s & 8 ? (byte >> 7) * 255 : byte;
		r |= byte << 8 * k;
	}
	return r;
}

static inline uint32_t
dot4(uint32_t a, uint32_t b, uint32_t c, int as, int bs)
{
	for (int k = 0; k < 4; k++) {
		int32_t x = as ? (int8_t)(a >> 8 * k) : (int32_t)(a >> 8 * k & 255),
		        y = bs ? (int8_t)(b >> 8 * k) : (int32_t)(b >> 8 * k & 255);

		c += (uint32_t)(x * y);
	}
	return c;
}

/* Halves of a by the two lower bytes of b. */
static inline uint32_t
dot2(uint32_t a, uint32_t b, uint32_t c, int as, int bs)
{
	for (int k = 0; k < 2; k++) {
		int32_t x = as ? (int16_t)(a >> 16 * k) : (int32_t)(a >> 16 * k & 65535),
		        y = bs ? (int8_t)(b >> 8 * k) : (int32_t)(b >> 8 * k & 255);

		c += (uint32_t)(x * y);
	}
	return c;
}

/* The number if one is NaN; -0 is less than +0. */
static inline float
least(float a, float b)
{
	float m = a < b ? a : b < a ? b : bits_float(float_bits(a) | float_bits(b));

	m = a != a ? b : m;
	m = b != b ? a : m;
	return a != a && b != b ? bits_float(0x7fffffff) : m;
}

static inline float
most(float a, float b)
{
	float m = a > b ? a : b > a ? b : bits_float(float_bits(a) & float_bits(b));

	m = a != a ? b : m;
	m = b != b ? a : m;
	return a != a && b != b ? bits_float(0x7fffffff) : m;
}

static inline float
saturate(float a)
{
	return a > 0 ? a < 1 ? a : 1.0f : 0.0f;
}

/* a * b + c for 16-bit operands, in float, rounded to odd: rounding that again to 16 bits is as if there had been one
 * rounding. The product is exact in double; the sum's error is found by Knuth's two-sum. */
static inline float
fma_odd(float a, float b, float c)
{
	double p = (double)a * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
	uint64_t u = double_bits(s);
	float f;
	double back;

	if (e != 0 && !(u & 1) && s - s == 0) {
		u += (e > 0) == (s > 0) ? 1 : (uint64_t)-1;
		memcpy(&s, &u, 8);
	}
	f = (float)s;
	back = f;
	if (back != s && !(float_bits(f) & 1) && f - f == 0)
		f = bits_float(float_bits(f) + ((s > back) == (back > 0 || (back == 0 && s > 0)) ? 1 : (uint32_t)-1));
	return f;
}

static inline int
half_nan_f16(uint16_t a, uint16_t b)
{
	return (a & 0x7fff) > 0x7c00 || (b & 0x7fff) > 0x7c00;
}

static inline int
half_nan_bf16(uint16_t a, uint16_t b)
{
	return (a & 0x7fff) > 0x7f80 || (b & 0x7fff) > 0x7f80;
}

/* A row of 16-bit floats is a scalar function, its operation and that on pairs. */
#define HALF1(op, t, value) \
	static inline uint16_t half1_##op##_##t(uint16_t x) \
	{ \
		float a = t##_float(x); \
		return float_##t(value); \
	}
#define HALF2(op, t, value) \
	static inline uint16_t half2_##op##_##t(uint16_t x, uint16_t y) \
	{ \
		float a = t##_float(x), b = t##_float(y); \
		return float_##t(value); \
	}
#define HALF3(op, t, value) \
	static inline uint16_t half3_##op##_##t(uint16_t x, uint16_t y, uint16_t z) \
	{ \
		float a = t##_float(x), b = t##_float(y), c = t##_float(z); \
		return float_##t(value); \
	}

#define BODY(D, LOAD, value) \
	D *d = REG(w, D, x->d); \
	\
	if (m == ALL_LANES) { \
		IVDEP for (int i = 0; i < LANES; i++) { LOAD d[i] = (D)(value); } \
	} else { \
		IVDEP for (int i = 0; i < LANES; i++) { LOAD D r = (D)(value); d[i] = m >> i & 1 ? r : d[i]; } \
	}
#define A1(id, names, D, A, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) \
	{ \
		const A *va = REG(w, A, x->a); \
		BODY(D, A a = va[i];, value) \
	}
#define A2(id, names, D, A, B, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) \
	{ \
		const A *va = REG(w, A, x->a); \
		const B *vb = REG(w, B, x->b); \
		BODY(D, A a = va[i]; B b = vb[i];, value) \
	}
#define A3(id, names, D, A, B, C, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) \
	{ \
		const A *va = REG(w, A, x->a); \
		const B *vb = REG(w, B, x->b); \
		const C *vc = REG(w, C, x->c); \
		const int64_t imm = x->imm; \
		(void)imm; \
		BODY(D, A a = va[i]; B b = vb[i]; C c = vc[i]; (void)a; (void)b;, value) \
	}
#define H1(op, t, value) \
	HALF1(op, t, value) \
	A1(op##_##t, #op "." #t, uint16_t, uint16_t, half1_##op##_##t(a)) \
	A1(op##_##t##x2, #op "." #t "x2", uint32_t, uint32_t, \
	   half1_##op##_##t((uint16_t)a) | (uint32_t)half1_##op##_##t((uint16_t)(a >> 16)) << 16)
#define H2(op, t, value) \
	HALF2(op, t, value) \
	A2(op##_##t, #op "." #t, uint16_t, uint16_t, uint16_t, half2_##op##_##t(a, b)) \
	A2(op##_##t##x2, #op "." #t "x2", uint32_t, uint32_t, uint32_t, \
	   half2_##op##_##t((uint16_t)a, (uint16_t)b) | \
	           (uint32_t)half2_##op##_##t((uint16_t)(a >> 16), (uint16_t)(b >> 16)) << 16)
#define H2N(op, t, value) \
	A2(op##n_##t, #op ".NaN." #t, uint16_t, uint16_t, uint16_t, \
	   half_nan_##t(a, b) ? 0x7fff : half2_##op##_##t(a, b)) \
	A2(op##n_##t##x2, #op ".NaN." #t "x2", uint32_t, uint32_t, uint32_t, \
	   (half_nan_##t((uint16_t)a, (uint16_t)b) ? 0x7fffu : half2_##op##_##t((uint16_t)a, (uint16_t)b)) | \
	           (half_nan_##t((uint16_t)(a >> 16), (uint16_t)(b >> 16)) \
	                    ? 0x7fffu \
	                    : half2_##op##_##t((uint16_t)(a >> 16), (uint16_t)(b >> 16))) \
	                   << 16)
#define H3(op, t, value) \
	HALF3(op, t, value) \
	A3(op##_##t, #op "." #t, uint16_t, uint16_t, uint16_t, uint16_t, half3_##op##_##t(a, b, c)) \
	A3(op##_##t##x2, #op "." #t "x2", uint32_t, uint32_t, uint32_t, uint32_t, \
	   half3_##op##_##t((uint16_t)a, (uint16_t)b, (uint16_t)c) | \
	           (uint32_t)half3_##op##_##t((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16)
#define COMPARE(id, A, LOADA, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) { \
		const A *va = REG(w, A, x->a), *vb = REG(w, A, x->b); uint32_t r = 0, *d = REG(w, uint32_t, x->d); \
		for (int i = 0; i < LANES; i++) { LOADA r |= (uint32_t)(value) << i; } \
		*d = (*d & ~m) | (r & m); }
#define C2(id, names, A, value) COMPARE(cmp_##id, A, A a = va[i]; A b = vb[i];, value)
#define ORDERED(M, T, t) \
	M(T, t, eq, a == b) \
	M(T, t, ne, a<b || a> b) M(T, t, lt, a < b) M(T, t, le, a <= b) M(T, t, gt, a > b) M(T, t, ge, a >= b) \
	        M(T, t, equ, !(a < b || a > b)) M(T, t, neu, a != b) M(T, t, ltu, !(a >= b)) M(T, t, leu, !(a > b)) \
	                M(T, t, gtu, !(a <= b)) M(T, t, geu, !(a < b)) M(T, t, num, a == a && b == b) \
	                        M(T, t, nan, a != a || b != b)
#define CF1(T, t, cmp, value) COMPARE(cmp_##cmp##_##t, T, T a = va[i]; T b = vb[i];, value)
#define CH1(T, t, cmp, value) \
	COMPARE(cmp_##cmp##_##t, uint16_t, float a = t##_float(va[i]); float b = t##_float(vb[i]);, value)
#define CF(T, t) ORDERED(CF1, T, t)
#define CH(t) ORDERED(CH1, uint16_t, t)
#define S3(id, names, T) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) { \
		const T *va = REG(w, T, x->a), *vb = REG(w, T, x->b); const uint32_t p = *REG(w, uint32_t, x->c); \
		BODY(T, T a = va[i]; T b = vb[i];, p >> i & 1 ? a : b) }
#define P1(id, names, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) { \
		uint32_t *d = REG(w, uint32_t, x->d), a = *REG(w, uint32_t, x->a); *d = (*d & ~m) | ((value) & m); }
#define P2(id, names, value) \
	static void op_##id(Warp *w, const Ins *x, uint32_t m) \
	{ \
		uint32_t *d = REG(w, uint32_t, x->d), a = *REG(w, uint32_t, x->a), b = *REG(w, uint32_t, x->b); \
		*d = (*d & ~m) | ((value)&m); \
	}

#include "alu.def"

#undef HALF1
#undef HALF2
#undef HALF3
#undef A1
#undef A2
#undef A3
#undef C2
#undef CF1
#undef CH1
#undef S3
#undef P1
#undef P2
#define HALF1(op, t, value)
#define HALF2(op, t, value)
#define HALF3(op, t, value)
#define A1(id, names, D, A, value) { names, op_##id, sizeof(D), sizeof(A), 0, 0 },
#define A2(id, names, D, A, B, value) { names, op_##id, sizeof(D), sizeof(A), sizeof(B), 0 },
#define A3(id, names, D, A, B, C, value) { names, op_##id, sizeof(D), sizeof(A), sizeof(B), sizeof(C) },
#define C2(id, names, A, value) { names, op_cmp_##id, 1, sizeof(A), sizeof(A), 0 },
#define CF1(T, t, cmp, value) { #cmp "." #t, op_cmp_##cmp##_##t, 1, sizeof(T), sizeof(T), 0 },
#define CH1(T, t, cmp, value) CF1(T, t, cmp, value)
#define S3(id, names, T) { names, op_##id, sizeof(T), sizeof(T), sizeof(T), 1 },
#define P1(id, names, value) { names, op_##id, 1, 1, 0, 0 },
#define P2(id, names, value) { names, op_##id, 1, 1, 1, 0 },
const AluRow ALU_ROWS[] = {
#include "alu.def"
	{ 0, 0, 0, 0, 0, 0 },
};
