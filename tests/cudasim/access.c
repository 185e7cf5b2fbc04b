/* access.c: what lanes read and write: state spaces, bounds, alignment, unwritten bytes, races in shared memory.
 *
 * In: a warp and an instruction with a base register and an offset.   Out: lanes' registers or memory; a report where
 * an access is wrong. Neighbouring lanes that touch neighbouring bytes of global memory, the common case, are checked
 * and copied as one range.
 * Races: every warp has a vector clock (Lamport, Mattern); a word of shared memory keeps who wrote and who read it last
 * and at which time of that warp (FastTrack, Flanagan and Freund 2009, with two readers kept). Barriers join clocks;
 * within a warp, bar.warp.sync begins a new time. */
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "atomic.h"
#include "device.h"
#include "half.h"

uint64_t
lane_address(Warp *w, const Ins *x, uint32_t reg, int lane)
{
	uint64_t base = x->sub == 8 ? REG(w, uint64_t, reg)[lane] : x->sub == 4 ? REG(w, uint32_t, reg)[lane] : 0;

	return base + (uint64_t)x->imm;
}

void
clock_join(Warp *w, uint32_t *clock, const uint32_t *other)
{
	(void)w;
	for (int i = 0; i < CLOCKS; i++)
		clock[i] = other[i] > clock[i] ? other[i] : clock[i];
}

/* shared memory */

static const char *const access_verb[] = { "reads", "writes", "changes", "copies to", "copies to" };

static _Noreturn void
race(Warp *w, const Ins *x, int lane, uint32_t at, uint32_t other, const char *what, Access how)
{
	const Launch *l = worker->launch;
	uint32_t t = (other - 1) % (MAX_WARPS * LANES), nx = l->block[0], ny = l->block[1];

	if ((other - 1) / LANES == BULK_CLOCK)
		report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED,
		       "race: %s shared memory at %u, which a bulk copy %s, without waiting for it", access_verb[how],
		       at, what);
	report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED,
	       "race: %s shared memory at %u, which thread (%u,%u,%u) %s, with no barrier between", access_verb[how],
	       at, t % nx, t / nx % ny, t / nx / ny, what);
}

/* Did what thread `other` did at `when` come before what this lane does now? */
static inline bool
ordered(const Warp *w, uint32_t self, uint32_t other, uint32_t when)
{
	uint32_t mine = (self - 1) / LANES, its = (other - 1) / LANES;

	return other == self || (mine == its ? when < w->clock[mine] : when <= w->clock[its]);
}

typedef struct Touch { Warp *w; const Ins *x; int lane; uint32_t self, at; Access how; const uint8_t *now; } Touch;

/* A read, of which the last two by different threads are kept. */
static inline void
word_read(SharedWord *v, uint32_t self, uint32_t clock, uint8_t bytes)
{
	if (v->read == self) {
		v->read_bytes = v->read_clock == clock ? v->read_bytes | bytes : bytes;
	} else {
		v->read2 = v->read;
		v->read2_clock = v->read_clock;
		v->read2_bytes = v->read_bytes;
		v->read_bytes = bytes;
	}
	v->read = (uint16_t)self;
	v->read_clock = clock;
}

static inline void
word_access(const Touch *t, SharedWord *v, uint32_t at, uint8_t bytes)
{
	Warp *w = t->w;
	uint32_t self = t->self, clock = w->clock[(self - 1) / LANES];

	if (v->write && v->write != self && v->write_bytes & bytes && !(t->how == ACCESS_ATOMIC && v->atomic) &&
	    !ordered(w, self, v->write, v->write_clock)) {
		bool same = t->how == ACCESS_WRITE && worker->storing && t->x->fn == op_store &&
		            !memcmp(t->now, worker->storing, (size_t)t->x->bytes * t->x->n);

		if (!same)
			race(w, t->x, t->lane, at, v->write, "wrote", t->how);
	}
	if (t->how == ACCESS_READ) {
		word_read(v, self, clock, bytes);
		return;
	}
	if (v->read && v->read_bytes & bytes && !ordered(w, self, v->read, v->read_clock))
		race(w, t->x, t->lane, at, v->read, "read", t->how);
	if (v->read2 && v->read2_bytes & bytes && !ordered(w, self, v->read2, v->read2_clock))
		race(w, t->x, t->lane, at, v->read2, "read", t->how);
	if (t->how == ACCESS_ASYNC)
		return;
	v->write_bytes = v->write == self && v->write_clock == clock ? v->write_bytes | bytes : bytes;
	v->write = (uint16_t)self;
	v->write_clock = clock;
	v->atomic = t->how == ACCESS_ATOMIC;
}

/* The words that a range touches, with the bytes of each. */
static void
shared_race(const Touch *t, Block *b, uint32_t at, uint32_t bytes)
{
	for (uint32_t k = at / 4; k <= (at + bytes - 1) / 4; k++) {
		uint32_t from = at > k * 4 ? at - k * 4 : 0, to = at + bytes < k * 4 + 4 ? at + bytes - k * 4 : 4;

		word_access(t, &b->word[k], SHARED_BASE + k * 4, (uint8_t)((1u << to) - (1u << from)));
	}
}

static void
shared_state(Warp *w, const Ins *x, int lane, Block *b, uint32_t at, uint32_t bytes, Access how)
{
	uint8_t *s = b->shared_state + at;

	for (uint32_t i = 0; i < bytes; i++) {
		if (s[i] & MEM_PENDING && how != ACCESS_ASYNC_END)
			report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED,
			       "%s shared memory at %u, which an asynchronous copy is still writing: its end was not "
			       "waited for",
			       access_verb[how], at + i);
		if ((how == ACCESS_READ || how == ACCESS_ATOMIC) && !(s[i] & MEM_WRITTEN))
			report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED, "%s shared memory at %u, which nobody has written",
			       access_verb[how], at + i);
		if (how == ACCESS_ASYNC)
			s[i] |= MEM_PENDING;
		else if (how != ACCESS_READ)
			s[i] = MEM_WRITTEN;
	}
}

uint8_t *
shared_at(Warp *w, const Ins *x, int lane, uint32_t at, uint32_t bytes, uint32_t align, Access how)
{
	Block *b = w->block;
	uint32_t rank = at >> RANK_SHIFT;

	if (rank) {
		at &= (1u << RANK_SHIFT) - 1;
		if (rank > (uint32_t)b->group->nblock)
			report(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
			       "%s shared memory of block %u of a cluster of %d", access_verb[how], rank - 1,
			       b->group->nblock);
		b = b->group->block[rank - 1];
	}
	if (at < SHARED_BASE || at - SHARED_BASE >= b->shared_bytes || bytes > b->shared_bytes - (at - SHARED_BASE))
		report(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
		       "%s %u bytes of shared memory at %u, out of bounds: the block has %u bytes from %u",
		       access_verb[how], bytes, at, b->shared_bytes, SHARED_BASE);
	if (at & (align - 1))
		report(w, x, lane, CUDA_ERROR_MISALIGNED_ADDRESS,
		       "%s %u bytes of shared memory at %u, which is not a multiple of %u", access_verb[how], bytes, at,
		       align);
	if (w->block->launch->checks) {
		Touch t = {w,
		           x,
		           lane,
		           w->block->rank * MAX_WARPS * LANES + w->base + (uint32_t)lane + 1,
		           at,
		           how,
		           b->shared + (at - SHARED_BASE)};

		shared_race(&t, b, at - SHARED_BASE, bytes);
		shared_state(w, x, lane, b, at - SHARED_BASE, bytes, how);
	}
	return b->shared + (at - SHARED_BASE);
}

/* global memory */

static _Noreturn void
global_fault(Warp *w, const Ins *x, int lane, uint64_t at, uint32_t bytes, const uint8_t *state, Access how)
{
	unsigned long long where = at;

	for (uint32_t i = 0; state && i < bytes; i++) {
		if (!(state[i] & MEM_ALLOCATED))
			break;
		if (how != ACCESS_READ && state[i] & MEM_READONLY)
			report_at(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS, at,
			          "%s %u bytes at 0x%llx, which is constant", access_verb[how], bytes, where);
		if (how != ACCESS_WRITE && !(state[i] & MEM_WRITTEN))
			report_at(w, x, lane, CUDA_ERROR_LAUNCH_FAILED, at,
			          "%s %u bytes at 0x%llx, of which byte %u was never written", access_verb[how], bytes,
			          where, i);
	}
	report_at(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS, at, "%s %u bytes at 0x%llx, out of bounds", access_verb[how],
	          bytes, where);
}

static inline bool
state_good(const uint8_t *s, uint64_t bytes, Access how)
{
	uint8_t bad = 0, want = how == ACCESS_WRITE ? MEM_ALLOCATED : MEM_ALLOCATED | MEM_WRITTEN,
	        never = how == ACCESS_READ ? 0 : MEM_READONLY;

	for (uint64_t i = 0; i < bytes; i++)
		bad |= (uint8_t)((s[i] & want) ^ want) | (s[i] & never);
	return !bad;
}

static uint8_t *
global_at(Warp *w, const Ins *x, int lane, uint64_t at, uint32_t bytes, Access how)
{
	Arena *a = device_arena(at, bytes);
	uint64_t k;

	if (!a)
		global_fault(w, x, lane, at, bytes, NULL, how);
	k = at - a->base;
	if (w->block->launch->checks) {
		if (!state_good(a->state + k, bytes, how))
			global_fault(w, x, lane, at, bytes, a->state + k, how);
		if (how != ACCESS_READ)
			for (uint32_t i = 0; i < bytes; i++)
				a->state[k + i] = MEM_ALLOCATED | MEM_WRITTEN;
	}
	return a->host + k;
}

static uint8_t *
local_at(Warp *w, const Ins *x, int lane, uint64_t at, uint32_t bytes, Access how)
{
	uint32_t size = w->block->frame_bytes;
	uint64_t k = (uint64_t)lane * size + at;

	if (at >= size || bytes > size - at)
		report(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
		       "%s %u bytes of local memory at %llu, out of bounds: the thread has %u bytes", access_verb[how],
		       bytes, (unsigned long long)at, size);
	if (!w->block->launch->checks)
		return w->frame + k;
	if (how != ACCESS_READ)
		memset(w->frame_state + k, 1, bytes);
	for (uint32_t i = 0; i < bytes; i++)
		if (!w->frame_state[k + i])
			report(w, x, lane, CUDA_ERROR_LAUNCH_FAILED,
			       "reads local memory at %llu, which was never written", (unsigned long long)(at + i));
	return w->frame + k;
}

uint8_t *
access_at(Warp *w, const Ins *x, int lane, Space space, uint64_t at, uint32_t bytes, Access how)
{
	if (space == SPACE_GENERIC) {
		uint64_t window = at >> WINDOW_SHIFT;

		space = window == WINDOW_SHARED  ? SPACE_SHARED
		        : window == WINDOW_LOCAL ? SPACE_LOCAL
		        : window == WINDOW_PARAM ? SPACE_PARAM
		                                 : SPACE_GLOBAL;
		at = space == SPACE_GLOBAL ? at : at & ((1ull << WINDOW_SHIFT) - 1);
	}
	if (space == SPACE_SHARED)
		return shared_at(w, x, lane, (uint32_t)at, bytes, bytes, how);
	if (at & (bytes - 1))
		report_at(w, x, lane, CUDA_ERROR_MISALIGNED_ADDRESS, at,
		          "%s %u bytes at 0x%llx, which is not a multiple of %u", access_verb[how], bytes,
		          (unsigned long long)at, bytes);
	if (space == SPACE_LOCAL)
		return local_at(w, x, lane, at, bytes, how);
	if (space == SPACE_FRAME)
		return w->frame + (uint64_t)lane * w->block->frame_bytes + at;
	if (space == SPACE_PARAM) {
		Launch *l = worker->launch;

		if (how != ACCESS_READ || at + bytes > l->func->param_bytes)
			report(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
			       "%s %u bytes of the parameters at %llu: they are %u bytes, to be read only",
			       access_verb[how], bytes, (unsigned long long)at, l->func->param_bytes);
		return l->param + at;
	}
	return global_at(w, x, lane, at, bytes, how);
}

/* loads and stores */

/* The common case of shared memory, whole words of this block: true if nothing is wrong with it, and then it is noted;
 * else the long way finds out. */
static inline bool
shared_quick(const Warp *w, Block *b, uint32_t self, uint32_t at, uint32_t bytes, bool write)
{
	uint32_t clock = w->clock[(self - 1) / LANES], offset = at - SHARED_BASE;

	if (at < SHARED_BASE || offset >= b->shared_bytes || bytes > b->shared_bytes - offset ||
	    (offset & (bytes - 1)) || bytes & 3)
		return false;
	for (uint32_t k = offset / 4; k < (offset + bytes) / 4; k++) {
		SharedWord *v = &b->word[k];
		uint32_t state;

		memcpy(&state, b->shared_state + k * 4, 4);
		if (v->write && !ordered(w, self, v->write, v->write_clock))
			return false;
		if (!write) {
			if (state != MEM_WRITTEN * 0x01010101u)
				return false;
			word_read(v, self, clock, 15);
			continue;
		}
		if (state & MEM_PENDING * 0x01010101u || (v->read && !ordered(w, self, v->read, v->read_clock)) ||
		    (v->read2 && !ordered(w, self, v->read2, v->read2_clock)))
			return false;
		v->write = (uint16_t)self;
		v->write_clock = clock;
		v->write_bytes = 15;
		v->atomic = 0;
		state = MEM_WRITTEN * 0x01010101u;
		memcpy(b->shared_state + k * 4, &state, 4);
	}
	return true;
}

/* Lanes that read the same words of this block: true if nothing is wrong with it, and then it is noted. Of readers the
 * last two are kept, which are the last two of the lanes. */
static inline bool
shared_quick_same(const Warp *w, Block *b, uint32_t self, uint32_t lanes, uint32_t at, uint32_t bytes)
{
	uint32_t offset = at - SHARED_BASE, mine = (self - 1) / LANES, clock = w->clock[mine],
	         last = 31 - (uint32_t)__builtin_clz(lanes),
	         before = 31 - (uint32_t)__builtin_clz(lanes & ~(1u << last));

	if (at < SHARED_BASE || offset >= b->shared_bytes || bytes > b->shared_bytes - offset || offset & (bytes - 1))
		return false;
	for (uint32_t k = offset / 4; k < (offset + bytes) / 4; k++) {
		const SharedWord *v = &b->word[k];
		uint32_t its = (v->write - 1u) / LANES, state;

		memcpy(&state, b->shared_state + k * 4, 4);
		if (state != MEM_WRITTEN * 0x01010101u ||
		    (v->write && !(mine == its ? v->write_clock < clock : v->write_clock <= w->clock[its])))
			return false;
	}
	for (uint32_t k = offset / 4; k < (offset + bytes) / 4; k++) {
		word_read(&b->word[k], self + before, clock, 15);
		word_read(&b->word[k], self + last, clock, 15);
	}
	return true;
}

static inline uint32_t
lanes_here(const uint32_t low[LANES], uint32_t here)
{
	uint32_t same = 0;

#ifdef __SSE2__
	for (int i = 0; i < LANES; i += 4) {
		__m128i four = _mm_loadu_si128((const __m128i *)(const void *)(low + i));

		four = _mm_cmpeq_epi32(four, _mm_set1_epi32((int)here));
		same |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(four)) << i;
	}
#else
	for (int i = 0; i < LANES; i++)
		same |= (uint32_t)(low[i] == here) << i;
#endif
	return same;
}

/* Reads of shared memory where lanes share words, as the operands of a product in tiles: looked at once for all of
 * them. Returns the lanes that are left; where the first two have words of their own, so have the others. */
static uint32_t
load_same(Warp *w, const Ins *x, Space space, uint32_t m, const uint64_t *at, uint32_t bytes, const uint32_t *reg)
{
	Block *b = w->block;
	uint32_t low[LANES], self = b->rank * MAX_WARPS * LANES + w->base + 1, left = m, alone = 0;

	if (space != SPACE_SHARED || !b->launch->checks || x->wide != 4 || x->bytes != 4)
		return m;
	for (int i = 0; i < LANES; i++)
		low[i] = (uint32_t)at[i];
	for (uint32_t todo = m, same; todo && alone < 2; todo &= ~same) {
		uint32_t here = low[__builtin_ctz(todo)];

		same = lanes_here(low, here) & m;
		if (!(same & (same - 1))) {
			alone++;
			continue;
		}
		if (!shared_quick_same(w, b, self, same, here, bytes))
			continue;
		left &= ~same;
		for (uint32_t k = 0; k < x->n; k++) {
			uint32_t v;

			memcpy(&v, b->shared + (here - SHARED_BASE) + k * 4, 4);
			FOR_LANES(i, same) REG(w, uint32_t, reg[k])[i] = v;
		}
	}
	return left;
}

static inline uint8_t *
lane_at(Warp *w, const Ins *x, Space space, uint32_t lane, uint64_t at, uint32_t bytes, bool write)
{
	Block *b = w->block;
	bool shared = space == SPACE_SHARED || (space == SPACE_GENERIC && at >> WINDOW_SHIFT == WINDOW_SHARED);

	if (shared && b->launch->checks &&
	    shared_quick(w, b, b->rank * MAX_WARPS * LANES + w->base + lane + 1, (uint32_t)at, bytes, write))
		return b->shared + ((uint32_t)at - SHARED_BASE);
	return access_at(w, x, (int)lane, space, at, bytes, write ? ACCESS_WRITE : ACCESS_READ);
}

/* Where the lanes of m all point: of generic addresses the window, if they share it. Then it is taken from them. */
static inline Space
lanes_space(const Ins *x, uint32_t m, uint64_t *at)
{
	static const uint8_t space[] = {[0] = SPACE_GLOBAL,
	                                [WINDOW_SHARED] = SPACE_SHARED,
	                                [WINDOW_LOCAL] = SPACE_LOCAL,
	                                [WINDOW_PARAM] = SPACE_PARAM};
	uint64_t first = at[__builtin_ctz(m)] >> WINDOW_SHIFT, other = 0;

	if (x->space != SPACE_GENERIC || first >= sizeof space || (first && !space[first]))
		return (Space)x->space;
	for (int i = 0; i < LANES; i++)
		other |= ((at[i] >> WINDOW_SHIFT) ^ first) & -(uint64_t)(m >> i & 1);
	if (other)
		return SPACE_GENERIC;
	for (int i = 0; i < LANES && first; i++)
		at[i] &= (1ull << WINDOW_SHIFT) - 1;
	return (Space)space[first];
}

#define ONES 0x0101010101010101u

/* Of the bytes at `at` of all lanes: true if each has the bits of `want`, and none has those of `never`. */
static inline bool
lanes_are(uint32_t m, const uint8_t *state, const uint64_t *at, uint32_t bytes, uint8_t want, uint8_t never)
{
	uint64_t all = ONES * want, no = ONES * never, bad = 0;

	FOR_LANES(i, m) {
		const uint8_t *s = state + at[i];
		uint32_t four;
		uint64_t eight;

		if (bytes == 4) {
			memcpy(&four, s, 4);
			bad |= ((four & (uint32_t)all) ^ (uint32_t)all) | (four & (uint32_t)no);
			continue;
		}
		if (bytes < 4) {
			for (uint32_t k = 0; k < bytes; k++)
				bad |= (uint8_t)((s[k] & want) ^ want) | (s[k] & never);
			continue;
		}
		for (uint32_t k = 0; k < bytes; k += 8) {
			memcpy(&eight, s + k, 8);
			bad |= ((eight & all) ^ all) | (eight & no);
		}
	}
	return !bad;
}

static inline void
lanes_mark(uint32_t m, uint8_t *state, const uint64_t *at, uint32_t bytes, uint8_t what)
{
	uint64_t all = ONES * what;

	if (bytes == 4)
		FOR_LANES(i, m) memcpy(state + at[i], &all, 4);
	else if (bytes == 8)
		FOR_LANES(i, m) memcpy(state + at[i], &all, 8);
	else
		FOR_LANES(i, m) memset(state + at[i], what, bytes);
}

/* Lanes at the same place of their own local memory, as it is in code that is not optimised: where addresses count
 * from, which become those of all lanes' memory; NULL if not all is well. */
static uint8_t *
lanes_local(Warp *w, Space space, uint32_t m, uint64_t *at, uint32_t bytes, bool write)
{
	uint64_t here = at[__builtin_ctz(m)], other = 0;
	uint32_t size = w->block->frame_bytes;

	for (int i = 0; i < LANES; i++)
		other |= (at[i] ^ here) & -(uint64_t)(m >> i & 1);
	if (other || here & (bytes - 1) || here >= size || bytes > size - here)
		return NULL;
	for (uint32_t i = 0; i < LANES; i++)
		at[i] = here + (uint64_t)i * size;
	if (space == SPACE_FRAME || !w->block->launch->checks)
		return w->frame;
	if (write)
		lanes_mark(m, w->frame_state, at, bytes, 1);
	else if (!lanes_are(m, w->frame_state, at, bytes, 1, 0)) {
		for (int i = 0; i < LANES; i++)
			at[i] = here;
		return NULL;
	}
	return w->frame;
}

static inline uint64_t
fetch(const uint8_t *p, uint32_t bytes, bool is_signed)
{
	uint64_t v = 0;

	memcpy(&v, p, bytes);
	if (is_signed && bytes < 8 && v >> (bytes * 8 - 1) & 1)
		v |= ~0ull << bytes * 8;
	return v;
}

/* All 32 lanes in a row, in one arena: where they begin, or NULL. */
static uint8_t *
row_at(Warp *w, Space space, uint32_t m, const uint64_t *at, uint32_t bytes, Access how)
{
	uint64_t first = at[0], wrong = 0, n = (uint64_t)bytes * LANES;
	Arena *a;

	if (m != ALL_LANES || first & (bytes - 1) || first >> WINDOW_SHIFT ||
	    (space != SPACE_GLOBAL && space != SPACE_CONST))
		return NULL;
	for (int i = 0; i < LANES; i++)
		wrong |= at[i] ^ (first + (uint64_t)i * bytes);
	if (wrong)
		return NULL;
	a = device_arena(first, n);
	if (!a)
		return NULL;
	if (w->block->launch->checks) {
		if (!state_good(a->state + (first - a->base), n, how))
			return NULL;
		if (how == ACCESS_WRITE)
			memset(a->state + (first - a->base), MEM_ALLOCATED | MEM_WRITTEN, n);
	}
	return a->host + (first - a->base);
}

/* Lanes anywhere in one arena: where addresses count from, or NULL if not all is well. */
static uint8_t *
lanes_global(Warp *w, uint32_t m, const uint64_t *at, uint32_t bytes, bool write)
{
	uint8_t want = write ? MEM_ALLOCATED : MEM_ALLOCATED | MEM_WRITTEN, never = write ? MEM_READONLY : 0, *state;
	uint64_t first = at[__builtin_ctz(m)], low = first, high = first, odd = 0;
	Arena *a;

	for (int i = 0; i < LANES; i++) {
		uint64_t v = m >> i & 1 ? at[i] : first;

		low = v < low ? v : low;
		high = v > high ? v : high;
		odd |= v;
	}
	if (odd & (bytes - 1) || low >> WINDOW_SHIFT || !(a = device_arena(low, high - low + bytes)))
		return NULL;
	if (!w->block->launch->checks)
		return (uint8_t *)((uintptr_t)a->host - a->base);
	state = (uint8_t *)((uintptr_t)a->state - a->base);
	if (!lanes_are(m, state, at, bytes, want, never))
		return NULL;
	if (write)
		lanes_mark(m, state, at, bytes, MEM_ALLOCATED | MEM_WRITTEN);
	return (uint8_t *)((uintptr_t)a->host - a->base);
}

/* The common ways to touch memory, looked at once for all lanes: where their addresses count from, or NULL. */
static uint8_t *
lanes_at(Warp *w, Space space, uint32_t m, uint64_t *at, uint32_t bytes, bool write)
{
	return space == SPACE_GLOBAL || space == SPACE_CONST  ? lanes_global(w, m, at, bytes, write)
	       : space == SPACE_LOCAL || space == SPACE_FRAME ? lanes_local(w, space, m, at, bytes, write)
	                                                      : NULL;
}

/* Elements of a register, one a lane. */
static inline void
lanes_read(uint32_t m, uint8_t *to, const uint8_t *from, const uint64_t *at, uint32_t bytes)
{
	if (bytes == 4)
		FOR_LANES(i, m) memcpy(to + i * 4, from + at[i], 4);
	else if (bytes == 8)
		FOR_LANES(i, m) memcpy(to + i * 8, from + at[i], 8);
	else
		FOR_LANES(i, m) memcpy(to + i * bytes, from + at[i], bytes);
}

static inline void
lanes_write(uint32_t m, uint8_t *to, const uint64_t *at, const uint8_t *from, uint32_t bytes)
{
	if (bytes == 4)
		FOR_LANES(i, m) memcpy(to + at[i], from + i * 4, 4);
	else if (bytes == 8)
		FOR_LANES(i, m) memcpy(to + at[i], from + i * 8, 8);
	else
		FOR_LANES(i, m) memcpy(to + at[i], from + i * bytes, bytes);
}

static void
addresses(Warp *w, const Ins *x, uint64_t *at)
{
	if (x->sub == 8) {
		const uint64_t *base = REG(w, uint64_t, x->a);

		for (int i = 0; i < LANES; i++)
			at[i] = base[i] + (uint64_t)x->imm;
	} else if (x->sub == 4) {
		const uint32_t *base = REG(w, uint32_t, x->a);

		for (int i = 0; i < LANES; i++)
			at[i] = (uint64_t)base[i] + (uint64_t)x->imm;
	} else {
		for (int i = 0; i < LANES; i++)
			at[i] = (uint64_t)x->imm;
	}
}

void
op_load(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;
	uint32_t size = (uint32_t)x->bytes * x->n;
	uint64_t at[LANES];
	const uint8_t *from;
	Space space;

	worker->looks += (x->flags & INS_LOOKS) != 0;
	addresses(w, x, at);
	space = lanes_space(x, m, at);
	if (x->n == 1 && x->wide == x->bytes && (from = row_at(w, space, m, at, size, ACCESS_READ))) {
		memcpy(w->rf + reg[0], from, (size_t)size * LANES);
		return;
	}
	from = lanes_at(w, space, m, at, size, false);
	if (from && x->wide == x->bytes) {
		for (uint32_t k = 0; k < x->n; k++)
			lanes_read(m, w->rf + reg[k], from + k * x->bytes, at, x->bytes);
		return;
	}
	m = from ? m : load_same(w, x, space, m, at, size, reg);
	FOR_LANES(i, m) {
		const uint8_t *p = from ? from + at[i] : lane_at(w, x, space, i, at[i], size, false);

		if (x->wide == 4 && x->bytes == 4) {
			for (uint32_t k = 0; k < x->n; k++)
				memcpy(&REG(w, uint32_t, reg[k])[i], p + k * 4, 4);
			continue;
		}
		for (uint32_t k = 0; k < x->n; k++)
			lane_set(w, reg[k], x->wide, (int)i, fetch(p + k * x->bytes, x->bytes, x->flags & INS_SIGNED));
	}
}

/* The bytes that a lane stores. */
static inline void
stored(const Warp *w, const Ins *x, const uint32_t *reg, uint32_t lane, uint8_t *value)
{
	if (x->wide == 4 && x->bytes == 4) {
		for (uint32_t k = 0; k < x->n; k++)
			memcpy(value + k * 4, &REG(w, uint32_t, reg[k])[lane], 4);
		return;
	}
	for (uint32_t k = 0; k < x->n; k++) {
		uint64_t v = lane_get(w, reg[k], x->wide, (int)lane);

		memcpy(value + k * x->bytes, &v, x->bytes);
	}
}

void
op_store(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;
	uint32_t size = (uint32_t)x->bytes * x->n;
	uint64_t at[LANES];
	uint8_t *to;
	Space space;

	worker->stores++;
	addresses(w, x, at);
	space = lanes_space(x, m, at);
	if (x->n == 1 && x->wide == x->bytes && (to = row_at(w, space, m, at, size, ACCESS_WRITE))) {
		memcpy(to, w->rf + reg[0], (size_t)size * LANES);
		return;
	}
	to = lanes_at(w, space, m, at, size, true);
	if (to && x->wide == x->bytes) {
		for (uint32_t k = 0; k < x->n; k++)
			lanes_write(m, to + k * x->bytes, at, w->rf + reg[k], x->bytes);
		return;
	}
	FOR_LANES(i, m) {
		uint8_t value[64];

		stored(w, x, reg, i, value);
		worker->storing = value;
		memcpy(to ? to + at[i] : lane_at(w, x, space, i, at[i], size, true), value, size);
	}
	worker->storing = NULL;
}

void
op_load_param(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;

	for (uint32_t k = 0; k < x->n; k++) {
		uint64_t v = fetch(worker->launch->param + x->imm + k * x->bytes, x->bytes, x->flags & INS_SIGNED);

		FOR_LANES(i, m) lane_set(w, reg[k], x->wide, (int)i, v);
	}
}

void
op_frame_copy(Warp *w, const Ins *x, uint32_t m)
{
	size_t size = w->block->frame_bytes;

	if (x->imm == 8)
		FOR_LANES(i, m) memcpy(w->frame + x->d + i * size, w->frame + x->a + i * size, 8);
	else if (x->imm == 4)
		FOR_LANES(i, m) memcpy(w->frame + x->d + i * size, w->frame + x->a + i * size, 4);
	else
		FOR_LANES(i, m) memmove(w->frame + x->d + i * size, w->frame + x->a + i * size, (size_t)x->imm);
}

void
op_isspace(Warp *w, const Ins *x, uint32_t m)
{
	static const uint8_t window[] = {[SPACE_SHARED] = WINDOW_SHARED,
	                                 [SPACE_LOCAL] = WINDOW_LOCAL,
	                                 [SPACE_PARAM] = WINDOW_PARAM,
	                                 [SPACE_FRAME] = 0};

	FOR_LANES(i, m) lane_set(w, x->d, 1, (int)i, REG(w, uint64_t, x->a)[i] >> WINDOW_SHIFT == window[x->space]);
}

/* atomics */

static double
as_double(uint64_t v, uint32_t bytes)
{
	double d;

	if (bytes == 4)
		return bits_float((uint32_t)v);
	memcpy(&d, &v, 8);
	return d;
}

enum { TYPE_F16 = 9, TYPE_BF16, TYPE_F32, TYPE_F64, TYPE_F16X2 = 18, TYPE_BF16X2 }; /* of type_code() */

static uint64_t
atomic_float(int op, int type, uint64_t old, uint64_t v)
{
	uint16_t r = 0;

	if (type == TYPE_F64) {
		double d = as_double(old, 8) + as_double(v, 8);
		uint64_t u;

		memcpy(&u, &d, 8);
		return u;
	}
	if (type == TYPE_F32)
		return float_bits((float)as_double(old, 4) + (float)as_double(v, 4));
	if (type == TYPE_F16X2)
		return pack_f16(lo_f16((uint32_t)old) + lo_f16((uint32_t)v),
		                hi_f16((uint32_t)old) + hi_f16((uint32_t)v));
	if (type == TYPE_BF16X2)
		return pack_bf16(lo_bf16((uint32_t)old) + lo_bf16((uint32_t)v),
		                 hi_bf16((uint32_t)old) + hi_bf16((uint32_t)v));
	r = type == TYPE_F16 ? float_f16(f16_float((uint16_t)old) + f16_float((uint16_t)v))
	                     : float_bf16(bf16_float((uint16_t)old) + bf16_float((uint16_t)v));
	(void)op;
	return r;
}

static uint64_t
atomic_int(int op, int type, uint32_t bytes, uint64_t old, uint64_t v, uint64_t other)
{
	bool is_signed = type == 6 || type == 8; /* s32, s64 */
	int64_t so = bytes == 4 ? (int32_t)old : (int64_t)old, sv = bytes == 4 ? (int32_t)v : (int64_t)v;

	switch (op) {
	case ATOMIC_ADD: return old + v;
	case ATOMIC_MIN: return is_signed ? so < sv ? old : v : old < v ? old : v;
	case ATOMIC_MAX: return is_signed ? so > sv ? old : v : old > v ? old : v;
	case ATOMIC_INC: return old >= v ? 0 : old + 1;
	case ATOMIC_DEC: return old == 0 || old > v ? v : old - 1;
	case ATOMIC_AND: return old & v;
	case ATOMIC_OR: return old | v;
	case ATOMIC_XOR: return old ^ v;
	case ATOMIC_CAS: return old == v ? other : old;
	default: return v;
	}
}

/* Other threads that interpret blocks may change the same word: the new value goes in by compare and exchange. */
static uint64_t
atomic_apply(uint8_t *p, const Ins *x, uint64_t v, uint64_t other)
{
	bool is_float = x->wide == ATOMIC_ADD && ((x->type >= TYPE_F16 && x->type <= TYPE_F64) ||
	                                          x->type == TYPE_F16X2 || x->type == TYPE_BF16X2);

	for (;;) {
		uint64_t old = 0, now;
		uint32_t old32;
		uint16_t old16;

		memcpy(&old, p, x->bytes);
		now = is_float ? atomic_float(x->wide, x->type, old, v)
		               : atomic_int(x->wide, x->type, x->bytes, old, v, other);
		old32 = (uint32_t)old;
		old16 = (uint16_t)old;
		if (x->bytes == 8   ? __atomic_compare_exchange_n((uint64_t *)(void *)p, &old, now, false,
		                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
		    : x->bytes == 4 ? __atomic_compare_exchange_n((uint32_t *)(void *)p, &old32, (uint32_t)now, false,
		                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
		                    : __atomic_compare_exchange_n((uint16_t *)(void *)p, &old16, (uint16_t)now, false,
		                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return old;
	}
}

void
op_atom(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;

	FOR_LANES(i, m) {
		uint8_t *p = access_at(w, x, (int)i, (Space)x->space, lane_address(w, x, x->a, (int)i),
		                       (uint32_t)x->bytes * x->n, ACCESS_ATOMIC);

		for (uint32_t k = 0; k < x->n; k++) {
			uint64_t v = lane_get(w, reg[k], x->bytes, (int)i),
			         other = reg[8 + k] ? lane_get(w, reg[8 + k], x->bytes, (int)i) : 0;
			uint64_t old = atomic_apply(p + k * x->bytes, x, v, other);

			if (reg[16 + k])
				lane_set(w, reg[16 + k], x->bytes, (int)i, old);
		}
	}
}
