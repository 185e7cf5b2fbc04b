/* wgmma.c: wgmma.mma_async: 64 x N x K products of a warpgroup, operands in shared memory or A in registers.
 *
 * In: matrix descriptors (PTX ISA, "Matrix descriptor"): start, leading and stride byte offsets, swizzle.   Out: this
 * warp's 16 rows of D. Each of the four warps makes its own rows when it reaches the instruction; the wait for its
 * group reads the operands again, so that who changes them before is found. What it cannot see is an accumulator read
 * before the wait. wgmma reads by another proxy than loads and stores: what threads wrote, cp.async too, must have been
 * fenced by them. Layouts are those of the canonical forms: K-major (rows of 16, 32, 64 or 128 bytes, eight to a group)
 * and MN-major. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
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

	return (Descriptor){(uint32_t)(v & 0x3fff) << 4, (uint32_t)(v >> 16 & 0x3fff) << 4,
	                    (uint32_t)(v >> 32 & 0x3fff) << 4, modes[v >> 62], trans};
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

/* A product that is under way: what it read, until it is waited for. */
typedef struct Product {
	const Ins *x;
	Descriptor a, b;
	uint32_t group, sum;
} Product;

/* Has whoever wrote these bytes last fenced them since? */
static void
check_fence(Warp *w, const Ins *x, uint32_t at)
{
	const SharedWord *v = &w->block->word[(at - SHARED_BASE) / 4];
	uint32_t by = v->write ? (v->write - 1u) / LANES : BULK_CLOCK, first = w->block->rank * MAX_WARPS;

	if (by != BULK_CLOCK && by >= first && by < first + (uint32_t)w->block->nwarp &&
	    w->block->warp[by - first]->fenced < v->write_clock)
		report(w, x, -1, CUDA_ERROR_LAUNCH_FAILED,
		       "reads shared memory at %u, which thread %u of the block wrote without a fence.proxy.async "
		       "behind it",
		       at, (v->write - 1u) % (MAX_WARPS * LANES));
}

static uint32_t
read_matrix(Warp *w, const Ins *x, const Descriptor *d, uint32_t row, uint32_t rows, uint32_t k, int code, float *to,
            int by_row, int by_k)
{
	uint32_t bytes = code == ELEMENT_TF32 ? 4 : 2, sum = 0;

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t l = 0; l < k; l++) {
			uint32_t v = 0, at = element_address(d, row + r, l, bytes);

			memcpy(&v, shared_at(w, x, 0, at, bytes, bytes, ACCESS_READ), bytes);
			if (w->block->launch->checks)
				check_fence(w, x, at);
			sum = (sum ^ v) * 0x9E3779B1u;
			to[(int)r * by_row + (int)l * by_k] = element_float(v, code);
		}
	return sum;
}

static void
product_keep(Warp *w, Product p)
{
	if (w->nproduct == w->capproduct) {
		w->capproduct = w->capproduct ? 2 * w->capproduct : 16;
		w->product = realloc(w->product, (size_t)w->capproduct * sizeof *w->product);
		if (!w->product)
			abort();
	}
	w->product[w->nproduct++] = p;
}

void
op_wgmma(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;
	int n = x->n * 8, nd = n / 2, na = x->bytes, e = x->type == ELEMENT_TF32 ? 1 : 2;
	uint32_t rank = w->index % 4;
	Product p = {.x = x,
	             .b = descriptor(REG(w, uint64_t, reg[nd + (na ? na : 1)])[0], x->imm >> 3 & 1),
	             .group = w->products};
	float a[16 * 16], b[16 * 256], d[16 * 256];
	bool add = *REG(w, uint32_t, x->c) & 1;

	if (m != ALL_LANES || w->block->nwarp < 4)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "wgmma without a whole warpgroup");
	if (na) {
		for (int r = 0; r < na; r++)
			for (int i = 0; i < LANES; i++)
				for (int k = 0; k < e; k++)
					a[(i / 4 + 8 * (r & 1)) * x->wide + i % 4 * e + 4 * e * (r >> 1) + k] =
					        element_float(REG(w, uint32_t, reg[nd + r])[i] >> 32 / e * k, x->type);
	} else {
		p.a = descriptor(REG(w, uint64_t, reg[nd])[0], x->imm >> 2 & 1);
		p.sum = read_matrix(w, x, &p.a, rank * 16, 16, x->wide, x->type, a, x->wide, 1);
	}
	p.sum ^= read_matrix(w, x, &p.b, 0, (uint32_t)n, x->wide, x->type, b, 1, n);
	if (w->block->launch->checks)
		product_keep(w, p);
	if ((x->imm & 1) != (x->imm >> 1 & 1))
		for (int i = 0; i < 16 * x->wide; i++)
			a[i] = -a[i];
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++)
			d[(i / 4 + 8 * (r >> 1 & 1)) * n + r / 4 * 8 + i % 4 * 2 + (r & 1)] =
			        add ? bits_float(REG(w, uint32_t, reg[r])[i]) : 0;
	PRODUCT(d, a, b, 16, n, x->wide, n, x->wide, n);
	for (int r = 0; r < nd; r++)
		for (int i = 0; i < LANES; i++)
			REG(w, uint32_t, reg[r])
			[i] = float_bits(d[(i / 4 + 8 * (r >> 1 & 1)) * n + r / 4 * 8 + i % 4 * 2 + (r & 1)]);
}

void
op_wgmma_commit(Warp *w, const Ins *x, uint32_t m)
{
	(void)x;
	(void)m;
	w->products++;
}

/* Products of all but the last x->imm groups have ended: until now they may have read their operands. */
void
op_wgmma_wait(Warp *w, const Ins *x, uint32_t m)
{
	float room[16 * 256];
	int kept = 0;

	(void)m;
	for (int i = 0; i < w->nproduct; i++) {
		const Product *p = &w->product[i];
		uint32_t sum = 0;

		if (p->group + (uint32_t)x->imm >= w->products) {
			w->product[kept++] = *p;
			continue;
		}
		if (!p->x->bytes)
			sum = read_matrix(w, p->x, &p->a, w->index % 4 * 16, 16, p->x->wide, p->x->type, room,
			                  p->x->wide, 1);
		sum ^= read_matrix(w, p->x, &p->b, 0, p->x->n * 8u, p->x->wide, p->x->type, room, 1, p->x->n * 8);
		if (sum != p->sum)
			report(w, p->x, -1, CUDA_ERROR_LAUNCH_FAILED,
			       "a product whose operands were changed before it was waited for");
	}
	w->nproduct = kept;
}

/* What this warp wrote before is seen by wgmma and bulk copies. */
void
op_proxy_fence(Warp *w, const Ins *x, uint32_t m)
{
	(void)x;
	(void)m;
	w->fenced = w->clock[w->block->rank * MAX_WARPS + w->index]++;
}
