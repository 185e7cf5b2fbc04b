/* bulk.c: mbarrier objects; bulk and tensor copies, which no thread makes: they run beside the warps and report their
 * bytes to an mbarrier.
 *
 * In: addresses, tensor maps as cuTensorMapEncode* wrote them.   Out: bytes in shared or global memory, some time after
 * the copy was issued: at random between turns of the warps, or when nothing else can run. Until then the bytes are
 * marked, so that who reads without waiting is reported. An mbarrier carries a vector clock: arriving releases, a test
 * that succeeds acquires. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "tensor.h"
#include "tensormap.h"

struct Mbarrier {
	uint32_t at, count, pending, phase;
	int64_t tx;
	uint32_t clock[CLOCKS];
};

/* mbarrier */

static Mbarrier *
mbarrier_find(Warp *w, const Ins *x, int lane, uint64_t at)
{
	Block *b = w->block;
	uint32_t rank = (uint32_t)at >> RANK_SHIFT;

	if (rank && rank <= (uint32_t)b->group->nblock)
		b = b->group->block[rank - 1];
	at &= (1u << RANK_SHIFT) - 1;
	for (int i = 0; i < b->nmbarrier; i++)
		if (b->mbarrier[i].at == at)
			return &b->mbarrier[i];
	report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED, "uses an mbarrier at %llu, where none was made",
	       (unsigned long long)at);
}

/* Ends the phase if all have arrived and all bytes have come. */
static void
mbarrier_settle(Mbarrier *v)
{
	if (v->pending || v->tx)
		return;
	v->phase++;
	v->pending = v->count;
}

void
mbarrier_arrive(Warp *w, const Ins *x, int lane, uint64_t at)
{
	Mbarrier *v = mbarrier_find(w, x, lane, at);

	if (!v->pending)
		report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED,
		       "arrives at an mbarrier at %u more often than the %u times it was made for", v->at, v->count);
	clock_join(w, v->clock, w->clock);
	w->clock[w->block->rank * MAX_WARPS + w->index]++;
	v->pending--;
	mbarrier_settle(v);
}

static void
mbarrier_init(Warp *w, const Ins *x, int lane, uint64_t at, uint32_t count)
{
	Block *b = w->block;
	Mbarrier *v = NULL;
	uint64_t mark = 0x6d62617272696572u;

	memcpy(shared_at(w, x, lane, (uint32_t)at, 8, 8, ACCESS_WRITE), &mark, 8);
	for (int i = 0; i < b->nmbarrier; i++)
		if (b->mbarrier[i].at == (at & ((1u << RANK_SHIFT) - 1)))
			v = &b->mbarrier[i];
	if (!count || count >= 1u << 20)
		report(w, x, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "makes an mbarrier for %u arrivals", count);
	if (!v) {
		if (b->nmbarrier == b->capmbarrier) {
			b->capmbarrier = b->capmbarrier ? 2 * b->capmbarrier : 8;
			b->mbarrier = realloc(b->mbarrier, (size_t)b->capmbarrier * sizeof *b->mbarrier);
			if (!b->mbarrier)
				abort();
		}
		v = &b->mbarrier[b->nmbarrier++];
	}
	*v = (Mbarrier){ .at = (uint32_t)at & ((1u << RANK_SHIFT) - 1), .count = count, .pending = count };
}

static void
mbarrier_lane(Warp *w, const Ins *x, int lane)
{
	uint64_t at = lane_address(w, x, x->a, lane) & ((1ull << WINDOW_SHIFT) - 1);
	uint32_t operand = x->b ? REG(w, uint32_t, x->b)[lane] : 1;
	Mbarrier *v;
	bool past;

	if (x->type == MBAR_INIT) {
		mbarrier_init(w, x, lane, at, operand);
		return;
	}
	v = mbarrier_find(w, x, lane, at);
	switch (x->type) {
	case MBAR_INVAL: v->at = UINT32_MAX; break;
	case MBAR_EXPECT: v->tx += operand; break;
	case MBAR_COMPLETE: v->tx -= operand; mbarrier_settle(v); break;
	case MBAR_ARRIVE_DROP:
	case MBAR_ARRIVE:
		if (x->d)
			REG(w, uint64_t, x->d)[lane] = v->phase;
		if (x->bytes)
			v->tx += operand;
		v->count -= x->type == MBAR_ARRIVE_DROP;
		for (uint32_t n = x->bytes || !x->b ? 1 : operand; n; n--)
			mbarrier_arrive(w, x, lane, at);
		break;
	default: /* the phase of that parity, or of that state, has ended */
		past = x->n ? (v->phase & 1) != (operand & 1) : v->phase != REG(w, uint64_t, x->b)[lane];
		if (past)
			clock_join(w, w->clock, v->clock);
		lane_set(w, x->d, 1, lane, past);
	}
}

void
op_mbarrier(Warp *w, const Ins *x, uint32_t m)
{
	FOR_LANES(i, m) mbarrier_lane(w, x, (int)i);
}

/* copies under way */

typedef struct Bulk {
	uint8_t *data;           /* read when issued, of loads */
	uint32_t bytes, clock;
	Block *block;            /* whose shared memory is written */
	uint32_t *offset;        /* of each run of 16 bytes or less in it */
	uint32_t runs, run;
	uint32_t mbarrier;       /* address in that block */
} Bulk;

bool
group_bulk_pending(const Group *g)
{
	return g->nbulk > 0;
}

static void
bulk_finish(Bulk *k)
{
	Block *b = k->block;
	uint16_t who = (uint16_t)(BULK_CLOCK * LANES + 1);

	for (uint32_t r = 0; r < k->runs; r++) {
		uint32_t at = k->offset[r] - SHARED_BASE;

		memcpy(b->shared + at, k->data + (size_t)r * k->run, k->run);
		for (uint32_t i = 0; i < k->run; i++)
			b->shared_state[at + i] = MEM_WRITTEN;
		for (uint32_t i = at / 4; i <= (at + k->run - 1) / 4; i++) {
			b->word[i].write = who;
			b->word[i].write_clock = k->clock;
			b->word[i].write_bytes = 15;
			b->word[i].atomic = 0;
		}
	}
	for (int i = 0; i < b->nmbarrier; i++)
		if (b->mbarrier[i].at == k->mbarrier) {
			Mbarrier *v = &b->mbarrier[i];

			v->clock[BULK_CLOCK] = k->clock > v->clock[BULK_CLOCK] ? k->clock : v->clock[BULK_CLOCK];
			v->tx -= k->bytes;
			mbarrier_settle(v);
		}
	free(k->data);
	free(k->offset);
}

/* Some copies, or all of them, reach memory; in random order. */
void
bulk_land(Group *g, bool all)
{
	for (int i = g->nbulk; i-- > 0;) {
		int pick = (int)(random_next(&worker->random) % (uint64_t)g->nbulk);
		Bulk k = g->bulk[pick];

		if (!all && random_next(&worker->random) % 2)
			continue;
		g->bulk[pick] = g->bulk[--g->nbulk];
		bulk_finish(&k);
	}
}

static Bulk *
bulk_new(Group *g)
{
	if (g->nbulk == g->capbulk) {
		g->capbulk = g->capbulk ? 2 * g->capbulk : 16;
		g->bulk = realloc(g->bulk, (size_t)g->capbulk * sizeof *g->bulk);
		if (!g->bulk)
			abort();
	}
	g->bulk[g->nbulk] = (Bulk){ .clock = ++g->bulk_clock };
	return &g->bulk[g->nbulk++];
}

static uint64_t
listed_address(Warp *w, const uint32_t *e, int lane)
{
	uint64_t base = e[1] == 8 ? REG(w, uint64_t, e[0])[lane] : e[1] == 4 ? REG(w, uint32_t, e[0])[lane] : 0;

	return base + (e[2] | (uint64_t)e[3] << 32);
}

/* A load of runs of bytes into shared memory of this block and of others of its cluster; marks them. */
static void
bulk_issue(Warp *w, const Ins *x, int lane, const uint8_t *data, const uint32_t *offset, uint32_t runs, uint32_t run,
           uint32_t bar, uint32_t mask)
{
	Group *g = w->block->group;

	for (int r = 0; r < g->nblock; r++) {
		Block *b = g->block[r];
		uint32_t prefix = (uint32_t)(r + 1) << RANK_SHIFT;
		Bulk *k;

		if (!(mask >> r & 1))
			continue;
		for (uint32_t i = 0; i < runs; i++)
			shared_at(w, x, lane, prefix | offset[i], run, run, ACCESS_ASYNC);
		k = bulk_new(g);
		k->block = b;
		k->bytes = runs * run;
		k->runs = runs;
		k->run = run;
		k->mbarrier = bar & ((1u << RANK_SHIFT) - 1);
		k->data = malloc((size_t)runs * run + 1);
		k->offset = malloc(((size_t)runs + 1) * sizeof *offset);
		if (!k->data || !k->offset)
			abort();
		memcpy(k->data, data, (size_t)runs * run);
		memcpy(k->offset, offset, (size_t)runs * sizeof *offset);
	}
}

static uint32_t
block_mask(Warp *w, uint32_t to, uint32_t mask_reg, int lane)
{
	uint32_t rank = to >> RANK_SHIFT;

	return mask_reg ? (uint32_t)lane_get(w, mask_reg, 2, lane) : 1u << (rank ? rank - 1 : w->block->rank);
}

void
op_bulk(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *e = w->block->launch->module->extra + x->extra;

	FOR_LANES(i, m) {
		uint32_t bytes = REG(w, uint32_t, x->b)[i], runs = bytes / 16;
		uint64_t to = listed_address(w, e, (int)i) & (x->type ? (1ull << WINDOW_SHIFT) - 1 : ~0ull),
		         from = listed_address(w, e + 4, (int)i);
		uint8_t *data;
		uint32_t *offset;

		if (!bytes || bytes % 16 || to % 16 || from % 16)
			report(w, x, (int)i, CUDA_ERROR_MISALIGNED_ADDRESS,
			       "a bulk copy of %u bytes: size and addresses are multiples of 16", bytes);
		data = malloc(bytes);
		offset = malloc((size_t)runs * sizeof *offset);
		if (!data || !offset)
			abort();
		for (uint32_t k = 0; k < runs; k++) {
			memcpy(data + k * 16, access_at(w, x, (int)i, (Space)x->space, from + k * 16, 16, ACCESS_READ),
			       16);
			offset[k] = ((uint32_t)to & ((1u << RANK_SHIFT) - 1)) + k * 16;
			if (!x->type)
				memcpy(access_at(w, x, (int)i, SPACE_GLOBAL, to + k * 16, 16, ACCESS_WRITE),
				       data + k * 16, 16);
		}
		if (x->type)
			bulk_issue(w, x, (int)i, data, offset, runs, 16, (uint32_t)listed_address(w, e + 8, (int)i),
			           block_mask(w, (uint32_t)to, x->c, (int)i));
		free(data);
		free(offset);
	}
}

/* Stores are made when issued: what they read from shared memory is read at once, which the groups need not wait
 * for. */
void
op_bulk_commit(Warp *w, const Ins *x, uint32_t m)
{
	(void)w;
	(void)x;
	(void)m;
}

void
op_bulk_wait(Warp *w, const Ins *x, uint32_t m)
{
	(void)w;
	(void)x;
	(void)m;
}

/* tensors */

/* Bits of the address that a swizzle exchanges: 16-byte pieces within 32, 64 or 128 bytes, by the row. */
uint32_t
swizzle(uint32_t at, int mode)
{
	static const uint32_t mask[] = { 0, 1, 3, 7 };

	return at ^ ((at >> 7 & mask[mode]) << 4);
}

/* Where an element lies in global memory; false if it is outside of the tensor, or of the corners of im2col. */
static bool
element_at(const TensorMap *t, const int64_t *c, uint64_t *at)
{
	*at = t->address;
	for (int d = 0; d < t->rank; d++) {
		if (c[d] < 0 || c[d] >= (int64_t)t->dim[d])
			return false;
		*at += (uint64_t)c[d] * (d ? t->stride[d - 1] : t->bytes);
	}
	return true;
}

static TensorMap
map_read(Warp *w, const Ins *x, int lane, uint64_t at)
{
	TensorMap t;
	uint8_t bytes[128];

	if (at % 64)
		report_at(w, x, lane, CUDA_ERROR_MISALIGNED_ADDRESS, at,
		          "a tensor map at 0x%llx, which is not a multiple of 64", (unsigned long long)at);
	for (uint64_t k = 0; k < 128; k += 8)
		memcpy(bytes + k, access_at(w, x, lane, SPACE_GENERIC, at + k, 8, ACCESS_READ), 8);
	memcpy(&t, bytes, sizeof t);
	if (t.magic != TENSOR_MAP_MAGIC)
		report_at(w, x, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, at, "no tensor map is at 0x%llx",
		          (unsigned long long)at);
	return t;
}

/* Coordinates of element number k of the box: the first axis fastest. For im2col the pixels run over W, H, D, N within
 * the bounding box. */
static void
box_coordinates(const TensorMap *t, const int64_t *c, const int64_t *filter, uint64_t k, int64_t *to)
{
	if (!t->im2col) {
		for (int d = 0; d < t->rank; d++) {
			to[d] = c[d] + (int64_t)(k % t->box[d]) * t->step[d];
			k /= t->box[d];
		}
		return;
	}
	int spatial = t->rank - 2;
	int64_t pixel = (int64_t)(k / t->channels), at[3], low[3], size[3];

	to[0] = c[0] + (int64_t)(k % t->channels);
	for (int d = 0; d < spatial; d++) {
		low[d] = t->lower[d];
		size[d] = ((int64_t)t->dim[d + 1] + t->upper[d] - t->lower[d] - 1) / t->step[d + 1] + 1;
		at[d] = (c[d + 1] - low[d]) / t->step[d + 1];
	}
	for (int d = 0; d < spatial; d++) {
		at[d] += pixel;
		pixel = at[d] / size[d];
		at[d] %= size[d];
		to[d + 1] = low[d] + at[d] * t->step[d + 1] + filter[d];
	}
	to[t->rank - 1] = c[t->rank - 1] + pixel;
}

static uint64_t
box_elements(const TensorMap *t)
{
	uint64_t n = 1;

	if (t->im2col)
		return (uint64_t)t->channels * t->pixels;
	for (int d = 0; d < t->rank; d++)
		n *= t->box[d];
	return n;
}

static void
tensor_lane(Warp *w, const Ins *x, int lane)
{
	const uint32_t *e = w->block->launch->module->extra + x->extra;
	uint64_t memory = listed_address(w, e, lane) & ((1ull << WINDOW_SHIFT) - 1), n;
	TensorMap t = map_read(w, x, lane, listed_address(w, e + 4, lane));
	int64_t c[5] = { 0 }, filter[3] = { 0 };
	uint8_t *data;
	uint32_t *offset;

	for (int d = 0; d < x->n; d++)
		c[d] = (int32_t)REG(w, uint32_t, e[12 + d])[lane];
	for (int d = 0; d < 3; d++)
		filter[d] = e[17 + d] ? (int64_t)lane_get(w, e[17 + d], 2, lane) : 0;
	if (t.rank != x->n || (x->type && t.im2col != x->bytes))
		report(w, x, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "a tensor map of %d dimensions is used with %d",
		       t.rank, x->n);
	if (memory % (t.swizzle || !x->type ? 128 : 16) && x->type)
		report(w, x, lane, CUDA_ERROR_MISALIGNED_ADDRESS,
		       "a tensor copy to shared memory at %llu, which is not a multiple of %d",
		       (unsigned long long)memory, t.swizzle ? 128 : 16);
	n = box_elements(&t);
	data = calloc(n, t.bytes);
	offset = malloc((size_t)n * sizeof *offset);
	if (!data || !offset)
		abort();
	for (uint64_t k = 0; k < n; k++) {
		int64_t to[5];
		uint64_t at;
		bool in;

		box_coordinates(&t, c, filter, k, to);
		in = element_at(&t, to, &at);
		offset[k] = swizzle(((uint32_t)memory & ((1u << RANK_SHIFT) - 1)) + (uint32_t)k * t.bytes, t.swizzle);
		if (x->type && in)
			memcpy(data + k * t.bytes, access_at(w, x, lane, SPACE_GLOBAL, at, t.bytes, ACCESS_READ),
			       t.bytes);
		else if (x->type && t.fill_nan)
			memset(data + k * t.bytes, 0xff, t.bytes);
		else if (!x->type && in)
			memcpy(access_at(w, x, lane, SPACE_GLOBAL, at, t.bytes, ACCESS_WRITE),
			       access_at(w, x, lane, SPACE_SHARED, offset[k], t.bytes, ACCESS_READ), t.bytes);
	}
	if (x->type)
		bulk_issue(w, x, lane, data, offset, (uint32_t)n, t.bytes, (uint32_t)listed_address(w, e + 8, lane),
		           block_mask(w, (uint32_t)memory, x->c, lane));
	free(data);
	free(offset);
}

void
op_tensor(Warp *w, const Ins *x, uint32_t m)
{
	FOR_LANES(i, m) tensor_lane(w, x, (int)i);
}

/* The address in the shared memory of another block of the cluster. */
void
op_mapa(Warp *w, const Ins *x, uint32_t m)
{
	FOR_LANES(i, m) {
		uint64_t a = lane_get(w, x->a, x->bytes, (int)i), rank = REG(w, uint32_t, x->b)[i];

		lane_set(w, x->d, x->bytes, (int)i, (a & ~((uint64_t)0xff << RANK_SHIFT)) | (rank + 1) << RANK_SHIFT);
	}
}
