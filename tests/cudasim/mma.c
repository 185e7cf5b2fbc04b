/* mma.c: mma.sync m16n8k*, from registers to registers.
 *
 * In: fragments of A (16 x K, rows), B (K x 8, columns) and C (16 x 8) spread over 32 lanes.   Out: D = A B + C.
 * With lane = 4 g + t and e elements to a register, register r of A holds row g + 8 (r & 1), columns t e + 4 e (r >>
 * 1); register r of B column g, rows t e + 4 e r (PTX ISA, "Matrix Fragments"). Products are exact in float and summed
 * in the order of k; the machine's own order and rounding are not documented. Integers are summed exactly. */
#include <string.h>

#include "half.h"
#include "tensor.h"

static MmaFn *mma_product;

static void
mma_choose(void)
{
#if defined(__x86_64__)
	mma_product = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? mma_product_v3 : mma_product_v1;
#else
	mma_product = mma_product_v1;
#endif
}

/* The elements of a register, as floats. */
static inline void
unpack(uint32_t v, int code, int e, float *to)
{
	if (code == ELEMENT_BF16) {
		to[0] = lo_bf16(v);
		to[1] = hi_bf16(v);
	} else if (code == ELEMENT_F16) {
		to[0] = lo_f16(v);
		to[1] = hi_f16(v);
	} else {
		for (int k = 0; k < e; k++)
			to[k] = element_float(v >> 32 / e * k, code);
	}
}

static void
fragment_a(Warp *w, const uint32_t *reg, int n, int code, int e, float *to, int ld)
{
	for (int r = 0; r < n; r++) {
		const uint32_t *v = REG(w, uint32_t, reg[r]);

		for (int i = 0; i < LANES; i++)
			unpack(v[i], code, e, &to[(i / 4 + 8 * (r & 1)) * ld + i % 4 * e + 4 * e * (r >> 1)]);
	}
}

static void
fragment_b(Warp *w, const uint32_t *reg, int n, int code, int e, float *to)
{
	for (int r = 0; r < n; r++) {
		const uint32_t *v = REG(w, uint32_t, reg[r]);

		for (int i = 0; i < LANES; i++) {
			float f[4];

			unpack(v[i], code, e, f);
			for (int k = 0; k < e; k++)
				to[(i % 4 * e + 4 * e * r + k) * 8 + i / 4] = f[k];
		}
	}
}

/* 8-bit integers: float holds the sums of 32 products exactly; C is added as an integer. */
static void
mma_finish_int(Warp *w, const Ins *x, const uint32_t *d, const uint32_t *c, float sum[16][8])
{
	for (int r = 0; r < 4; r++)
		for (int i = 0; i < LANES; i++) {
			int64_t v = (int64_t)sum[i / 4 + 8 * (r >> 1)][i % 4 * 2 + (r & 1)] +
			            (int32_t)REG(w, uint32_t, c[r])[i];

			if (x->bytes)
				v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
			REG(w, uint32_t, d[r])[i] = (uint32_t)v;
		}
}

void
op_mma(Warp *w, const Ins *x, uint32_t m)
{
	int e = x->type <= ELEMENT_BF16   ? 2
	        : x->type == ELEMENT_TF32 ? 1
	                                  : 4,
	    na = x->n / (4 * e) * 2, nb = na / 2, nd = x->wide ? 2 : 4;
	const uint32_t *d = w->block->launch->module->extra + x->extra, *ra = d + nd, *rb = ra + na, *c = rb + nb;
	float a[16 * 32], b[32 * 8], sum[16][8];

	if (m != ALL_LANES)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "mma with lanes missing");
	if (!mma_product)
		mma_choose();
	fragment_a(w, ra, na, x->type, e, a, x->n);
	fragment_b(w, rb, nb, x->sub, e, b);
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++) {
			uint32_t v = REG(w, uint32_t, c[r])[i];
			bool integer = x->type == ELEMENT_S8 || x->type == ELEMENT_U8;

			if (x->wide) {
				sum[i / 4 + 8 * r][i % 4 * 2] = lo_f16(v);
				sum[i / 4 + 8 * r][i % 4 * 2 + 1] = hi_f16(v);
			} else {
				sum[i / 4 + 8 * (r >> 1)][i % 4 * 2 + (r & 1)] = integer ? 0 : bits_float(v);
			}
		}
	mma_product(&sum[0][0], a, b, 16, 8, x->n, 8, x->n, 8);
	if (x->type == ELEMENT_S8 || x->type == ELEMENT_U8) {
		mma_finish_int(w, x, d, c, sum);
		return;
	}
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++)
			REG(w, uint32_t, d[r])
			[i] = x->wide ? pack_f16(sum[i / 4 + 8 * r][i % 4 * 2], sum[i / 4 + 8 * r][i % 4 * 2 + 1])
			              : float_bits(sum[i / 4 + 8 * (r >> 1)][i % 4 * 2 + (r & 1)]);
}
