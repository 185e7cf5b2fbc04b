/* frame.c: what many kernels begin with: a loop of threads over indices, and which rows the taps of a filter meet.
 *
 * In: a type and a set of its axes; a row, a tap, stride, dilation and padding.   Out: text, indices, conditions. */
#include "../cuda.h"
#include <string.h>

/* ---------------------------------------------------------------- threads over indices */
/* Opens the loop of threads over a set of axes of t. */
Scope
cu_threads_open(Cuda *c, const Type *t, uint32_t axes, Ix *ix)
{
	Ix i = cu_fresh(c, 'i'), count = cu_product(c, t, axes);
	Scope s = cu_scope_open(c, "for (%s %s = blockIdx.x * BLOCK + threadIdx.x; %s < %s; %s += gridDim.x * BLOCK)",
	                        c->it, i, i, count, i);

	cu_take_apart(c, t, axes, i, ix);
	if (axes == (1u << t->rank) - 1) {
		c->root = t;
		c->root_i = t->rank && strcmp(count, "1") ? i : "0";
		memcpy(c->root_ix, ix, sizeof(Ix) * t->rank);
	}
	return s;
}

int64_t
cu_blocks_of(const Type *t, uint32_t axes)
{
	return (cu_full_product(t, axes) + BLOCK - 1) / BLOCK;
}

/* ---------------------------------------------------------------- rows and taps */
const char *
cu_in_plane(Cuda *c, const Type *t, const Ix *ix, const char *valid)
{
	for (int d = 2; d < 4; d++)
		valid = cu_both(c, valid, cu_in_range(c, ix[d], cu_extent(c, t->axis[d])));
	return valid;
}

Ix
cu_row_in(Cuda *c, Ix o, int64_t stride, Ix tap, int64_t dil, int64_t pad)
{
	return cu_ix_add(c, cu_ix_add(c, cu_ix_mul(c, o, cu_ix_k(c, stride)), cu_ix_mul(c, tap, cu_ix_k(c, dil))),
	                 cu_ix_k(c, -pad));
}

/* (i + pad - tap * dil) / stride, where that is whole. */
Ix
cu_row_out(Cuda *c, Ix i, int64_t stride, Ix tap, int64_t dil, int64_t pad, const char **valid)
{
	Ix t = cu_ix_add(c, cu_ix_sub(c, i, cu_ix_mul(c, tap, cu_ix_k(c, dil))), cu_ix_k(c, pad)),
	   s = cu_ix_k(c, stride);

	if (stride == 1)
		return t;
	*valid = cu_both(c, *valid, arena_printf(c->a, "(%s >= 0 && %s == 0)", t, cu_ix_rem(c, t, s)));
	return cu_ix_div(c, t, s);
}
