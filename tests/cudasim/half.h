/* half.h: 16-bit and 8-bit floating point formats as integers, to and from float.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; NaN becomes the machine's one NaN. Written so that the
 * compiler vectorises loops over them. */
#ifndef HALF_H
#define HALF_H
#include <stdint.h>
#include <string.h>

static inline float
bits_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static inline uint32_t
float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}

static inline float
bf16_float(uint16_t h)
{
	return bits_float((uint32_t)h << 16);
}

static inline uint16_t
float_bf16(float f)
{
	uint32_t u = float_bits(f), r = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return (uint16_t)(f != f ? 0x7fff : r);
}

/* The exponent is moved by a multiplication, which also makes subnormals right. */
static inline float
f16_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
	uint32_t u = float_bits(bits_float(rest) * bits_float(0x77800000)); /* 2^112 */

	u = rest >= 0x0f800000 ? rest | 0x7f800000 : u;
	return bits_float(u | sign);
}

static inline uint16_t
float_f16(float f)
{
	uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	uint32_t normal = (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
	/* Adding 0.5 leaves a subnormal's bits, rounded, at the bottom of the sum. */
	uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000;
	uint32_t r = a < 0x38800000 ? small : a >= 0x477ff000 ? 0x7c00 : normal;

	return (uint16_t)(a > 0x7f800000 ? 0x7fff : sign | r);
}

static inline float
float_tf32_cut(float f)
{
	return bits_float(float_bits(f) & 0xffffe000);
}

/* Rounds to nearest, ties away from zero: cvt.rna.tf32. */
static inline float
float_tf32(float f)
{
	return f != f ? bits_float(0x7fffffff) : bits_float((float_bits(f) + 0x1000) & 0xffffe000);
}

static inline float
flush_float(float f)
{
	return (float_bits(f) & 0x7f800000) == 0 ? bits_float(float_bits(f) & 0x80000000) : f;
}

static inline uint16_t
flush_f16(uint16_t h)
{
	return (uint16_t)((h & 0x7c00) == 0 ? h & 0x8000 : h);
}

static inline float
lo_f16(uint32_t v)
{
	return f16_float((uint16_t)v);
}

static inline float
hi_f16(uint32_t v)
{
	return f16_float((uint16_t)(v >> 16));
}

static inline float
lo_bf16(uint32_t v)
{
	return bits_float(v << 16);
}

static inline float
hi_bf16(uint32_t v)
{
	return bits_float(v & 0xffff0000);
}

static inline uint32_t
pack_f16(float lo, float hi)
{
	return float_f16(lo) | (uint32_t)float_f16(hi) << 16;
}

static inline uint32_t
pack_bf16(float lo, float hi)
{
	return float_bf16(lo) | (uint32_t)float_bf16(hi) << 16;
}
#endif
