/* copy.c: cp.async: copies of a thread from global to shared memory that land when they are waited for.
 *
 * In: addresses and sizes.   Out: the bytes, in shared memory, at the wait that covers their group and not before: who
 * reads too early is reported. The source is read when the copy is issued. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "tensor.h"

static uint64_t
source_address(Warp *w, const uint32_t *e, uint32_t lane)
{
	uint64_t base = e[1] == 8 ? REG(w, uint64_t, e[0])[lane] : e[1] == 4 ? REG(w, uint32_t, e[0])[lane] : 0;

	return base + (e[2] | (uint64_t)e[3] << 32);
}

void
op_cp_async(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *e = w->block->launch->module->extra + x->extra;

	FOR_LANES(i, m) {
		uint32_t given = !e[4]  ? x->bytes
		                 : e[5] ? (*REG(w, uint32_t, e[4]) >> i & 1 ? 0 : x->bytes)
		                        : REG(w, uint32_t, e[4])[i];
		uint64_t from = source_address(w, e, i);
		uint32_t to = (uint32_t)lane_address(w, x, x->a, (int)i);
		AsyncCopy *c;

		if (given > x->bytes)
			report(w, x, (int)i, CUDA_ERROR_ILLEGAL_INSTRUCTION, "cp.async of %u bytes is given %u",
			       x->bytes, given);
		if (w->ncopy == w->capcopy) {
			w->capcopy = w->capcopy ? 2 * w->capcopy : 64;
			w->copy = realloc(w->copy, (size_t)w->capcopy * sizeof *w->copy);
			if (!w->copy)
				abort();
		}
		c = &w->copy[w->ncopy];
		*c = (AsyncCopy){.to = to,
		                 .bytes = x->bytes,
		                 .lane = (uint8_t)i,
		                 .group = w->group[i],
		                 .line = (uint32_t)(x - w->block->launch->module->ins)};
		if (from & (x->bytes - 1u))
			report_at(w, x, (int)i, CUDA_ERROR_MISALIGNED_ADDRESS, from,
			          "copies %u bytes from 0x%llx, which is not a multiple of %u", x->bytes,
			          (unsigned long long)from, x->bytes);
		for (uint32_t k = 0, n; k < given; k += n) { /* what is given need not be a power of two */
			n = given - k >= 8 ? 8 : given - k >= 4 ? 4 : given - k >= 2 ? 2 : 1;
			memcpy(c->data + k, access_at(w, x, (int)i, SPACE_GENERIC, from + k, n, ACCESS_READ), n);
		}
		shared_at(w, x, (int)i, to, x->bytes, x->bytes, ACCESS_ASYNC);
		w->ncopy++;
	}
}

void
op_cp_commit(Warp *w, const Ins *x, uint32_t m)
{
	(void)x;
	FOR_LANES(i, m) w->group[i]++;
}

/* Lands the copies of the lanes in m whose group is before the limit of their lane. */
static void
copies_land(Warp *w, const Ins *x, uint32_t m, const uint32_t *limit)
{
	int kept = 0;

	for (int k = 0; k < w->ncopy; k++) {
		AsyncCopy *c = &w->copy[k];

		if (!(m >> c->lane & 1) || c->group >= limit[c->lane]) {
			w->copy[kept++] = *c;
			continue;
		}
		memcpy(shared_at(w, x, c->lane, c->to, c->bytes, c->bytes, ACCESS_ASYNC_END), c->data, c->bytes);
	}
	w->ncopy = kept;
}

void
op_cp_wait(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t limit[LANES];

	for (int i = 0; i < LANES; i++)
		limit[i] = x->imm < 0                       ? UINT32_MAX
		           : w->group[i] > (uint32_t)x->imm ? w->group[i] - (uint32_t)x->imm
		                                            : 0;
	copies_land(w, x, m, limit);
}

/* The arrival stands for the end of all copies that the thread has issued. */
void
op_cp_mbarrier(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t limit[LANES];

	memset(limit, 0xff, sizeof limit);
	copies_land(w, x, m, limit);
	FOR_LANES(i, m) {
		uint64_t at = lane_address(w, x, x->a, (int)i) & ((1ull << WINDOW_SHIFT) - 1);

		if (x->n)
			mbarrier_arrive(w, x, (int)i, at);
	}
}
