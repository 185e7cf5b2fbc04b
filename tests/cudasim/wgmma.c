/* wgmma.c: wgmma.mma_async: 64 x N x K products of a warpgroup, operands in shared memory or A in registers.
 *
 * In: matrix descriptors (PTX ISA, "Matrix descriptor"): start, leading and stride byte offsets, swizzle.   Out: this warp's 16 rows of D.
 * Each of the four warps makes its own rows when it reaches the instruction; the wait for a group has nothing left to do. What it cannot see is therefore
 * an accumulator read before the wait. Layouts are those of the canonical forms: K-major (rows of 16, 32, 64 or 128 bytes, eight to a group) and MN-major. */
#include <string.h>

#include "half.h"
#include "tensor.h"
#include "tensormap.h"

#if defined(__x86_64__)
#define PRODUCT (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? mma_product_v3 : mma_product_v1)
#else
#define PRODUCT mma_product_v1
#endif

typedef struct Descriptor { uint32_t start, leading, stride; int mode; bool trans; } Descriptor;

static Descriptor
descriptor(uint64_t v, bool trans)
{
	static const uint8_t modes[] = { 0, 3, 2, 1 }; /* of the field: none, 128, 64, 32 bytes */

	return (Descriptor){ (uint32_t)(v & 0x3fff) << 4, (uint32_t)(v >> 16 & 0x3fff) << 4, (uint32_t)(v >> 32 & 0x3fff) << 4, modes[v >> 62], trans };
}

/* Address of element (r, k): r runs over M or N. The pattern of the swizzle is that of the address itself. */
static uint32_t
element_address(const Descriptor *d, uint32_t r, uint32_t k, uint32_t bytes)
{
	uint32_t span = 16u << d->mode, per = span / bytes, at;

	if (!d->trans && d->mode)
		at = r / 8 * d->stride + r % 8 * span + k * bytes;
	else if (!d->trans)
		at = r / 8 * d->stride + r % 8 * 16 + k / per * d->leading + k % per * bytes;
	else if (d->mode)
		at = r / per * d->leading + k / 8 * d->stride + k % 8 * span + r % per * bytes;
	else
		at = r / per * d->stride + k / 8 * d->leading + k % 8 * 16 + r % per * bytes;
	return swizzle(d->start + at, d->mode);
}

static void
read_matrix(Warp *w, const Ins *x, const Descriptor *d, uint32_t row, uint32_t rows, uint32_t k, int code, float *to, int by_row, int by_k)
{
	uint32_t bytes = code == ELEMENT_TF32 ? 4 : 2;

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t l = 0; l < k; l++) {
			uint32_t v = 0;

			memcpy(&v, shared_at(w, x, 0, element_address(d, row + r, l, bytes), bytes, bytes, ACCESS_READ), bytes);
			to[(int)r * by_row + (int)l * by_k] = element_float(v, code);
		}
}

void
op_wgmma(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;
	int n = x->n * 8, nd = n / 2, na = x->bytes, e = x->type == ELEMENT_TF32 ? 1 : 2;
	uint32_t rank = w->index % 4;
	Descriptor db = descriptor(REG(w, uint64_t, reg[nd + (na ? na : 1)])[0], x->imm >> 3 & 1);
	float a[16 * 16], b[16 * 256], d[16 * 256];
	bool add = *REG(w, uint32_t, x->c) & 1;

	if (m != ALL_LANES || w->block->nwarp < 4)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "wgmma without a whole warpgroup");
	if (na) {
		for (int r = 0; r < na; r++)
			for (int i = 0; i < LANES; i++)
				for (int k = 0; k < e; k++)
					a[(i / 4 + 8 * (r & 1)) * x->wide + i % 4 * e + 4 * e * (r >> 1) + k] = element_float(REG(w, uint32_t, reg[nd + r])[i] >> 32 / e * k, x->type);
	} else {
		Descriptor da = descriptor(REG(w, uint64_t, reg[nd])[0], x->imm >> 2 & 1);

		read_matrix(w, x, &da, rank * 16, 16, x->wide, x->type, a, x->wide, 1);
	}
	read_matrix(w, x, &db, 0, (uint32_t)n, x->wide, x->type, b, 1, n);
	if ((x->imm & 1) != (x->imm >> 1 & 1))
		for (int i = 0; i < 16 * x->wide; i++)
			a[i] = -a[i];
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++)
			d[(i / 4 + 8 * (r >> 1 & 1)) * n + r / 4 * 8 + i % 4 * 2 + (r & 1)] = add ? bits_float(REG(w, uint32_t, reg[r])[i]) : 0;
	PRODUCT(d, a, b, 16, n, x->wide, n, x->wide, n);
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++)
			REG(w, uint32_t, reg[r])[i] = float_bits(d[(i / 4 + 8 * (r >> 1 & 1)) * n + r / 4 * 8 + i % 4 * 2 + (r & 1)]);
}

void
op_wgmma_commit(Warp *w, const Ins *x, uint32_t m)
{
	(void)w;
	(void)x;
	(void)m;
}

void
op_wgmma_wait(Warp *w, const Ins *x, uint32_t m)
{
	(void)w;
	(void)x;
	(void)m;
}
