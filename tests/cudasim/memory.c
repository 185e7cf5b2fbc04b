/* memory.c: memory of the device and page-locked memory of the host, guarded and poisoned.
 *
 * In: sizes.   Out: addresses in an arena, with a byte of state for each byte: allocated, written, read-only.
 * The device's arena lies at addresses where nothing is mapped, so that the host cannot read it by mistake; its bytes
 * are kept elsewhere. Between allocations stay at least 256 bytes that belong to nobody; freed memory is used again
 * only when nothing else is left, lowest first. New memory holds 0xff
 * bytes: NaN in every float format. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GUARD 256u

static void *
map(uint64_t bytes, int protection)
{
	void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

bool
arena_open(Arena *a, uint64_t size, bool hidden)
{
	uint64_t bytes = size + size / 8 + (1u << 20); /* guards and fragments are not the user's loss */

	*a = (Arena){ .size = bytes };
	a->host = map(bytes, PROT_READ | PROT_WRITE);
	a->state = map(bytes, PROT_READ | PROT_WRITE);
	a->base = hidden ? (uint64_t)(uintptr_t)map(bytes, PROT_NONE) : (uint64_t)(uintptr_t)a->host;
	return a->host && a->state && a->base;
}

static void
arena_insert(Arena *a, int k, Allocation v)
{
	if (a->n == a->cap) {
		a->cap = a->cap ? a->cap * 2 : 64;
		a->allocation = realloc(a->allocation, (size_t)a->cap * sizeof *a->allocation);
		if (!a->allocation)
			abort();
	}
	memmove(a->allocation + k + 1, a->allocation + k, (size_t)(a->n - k) * sizeof *a->allocation);
	a->allocation[k] = v;
	a->n++;
}

/* After the last allocation, or, if that is too far, in the first gap between living ones; entries of freed ones in it
 * are forgotten. */
static int
arena_gap(Arena *a, uint64_t room, uint64_t *at)
{
	uint64_t end = a->base + GUARD,
	         last = a->n ? a->allocation[a->n - 1].at + a->allocation[a->n - 1].bytes + GUARD : end;

	*at = (last + GUARD - 1) / GUARD * GUARD;
	if (*at + room <= a->base + a->size)
		return a->n;
	for (int i = 0, first = 0; i <= a->n; i++) {
		uint64_t limit = i < a->n ? a->allocation[i].at : a->base + a->size;

		if (i < a->n && a->allocation[i].freed)
			continue;
		*at = (end + GUARD - 1) / GUARD * GUARD;
		if (*at + room <= limit) {
			memmove(a->allocation + first, a->allocation + i, (size_t)(a->n - i) * sizeof *a->allocation);
			a->n -= i - first;
			return first;
		}
		if (i < a->n)
			end = a->allocation[i].at + a->allocation[i].bytes + GUARD;
		first = i + 1;
	}
	return -1;
}

static uint64_t
arena_place(Arena *a, Allocation v)
{
	int k;

	if (v.bytes > a->size || (k = arena_gap(a, (v.bytes ? v.bytes : 1) + GUARD, &v.at)) < 0)
		return 0;
	arena_insert(a, k, v);
	memset(a->host + (v.at - a->base), 0xff, v.bytes);
	return v.at;
}

uint64_t
arena_reserve(Arena *a, uint64_t bytes)
{
	return arena_place(a, (Allocation){ .bytes = bytes, .reserved = true });
}

uint64_t
arena_alloc(Arena *a, uint64_t bytes, int owner)
{
	uint64_t at = arena_place(a, (Allocation){ .bytes = bytes, .owner = owner });

	if (!at)
		return 0;
	memset(a->state + (at - a->base), MEM_ALLOCATED, bytes);
	a->used += bytes;
	a->peak = a->used > a->peak ? a->used : a->peak;
	return at;
}

static int
arena_index(const Arena *a, uint64_t at)
{
	int low = 0, high = a->n;

	while (low < high) {
		int mid = (low + high) / 2;

		if (a->allocation[mid].at <= at)
			low = mid + 1;
		else
			high = mid;
	}
	return low - 1;
}

bool
arena_free(Arena *a, uint64_t at)
{
	int k = arena_index(a, at);
	Allocation *v = k < 0 ? NULL : &a->allocation[k];

	if (!v || v->at != at || v->freed)
		return false;
	v->freed = true;
	a->used -= v->reserved ? 0 : v->bytes;
	memset(a->state + (at - a->base), 0, v->bytes);
	if (v->bytes > 1u << 20) /* large ones give their pages back */
		madvise(a->host + ((at - a->base + 4095) & ~4095ull), (v->bytes - 4096) & ~4095ull, MADV_DONTNEED);
	return true;
}

const Allocation *
arena_find(const Arena *a, uint64_t at)
{
	int k = arena_index(a, at);

	return k >= 0 && !a->allocation[k].freed &&
	                       (at - a->allocation[k].at < a->allocation[k].bytes || at == a->allocation[k].at)
	               ? &a->allocation[k]
	               : NULL;
}

bool
arena_backed(const Arena *a, const Allocation *v, uint64_t at, uint64_t bytes)
{
	const uint8_t *s = a->state + (at - a->base);
	bool good = bytes <= v->bytes - (at - v->at);

	for (uint64_t i = 0; v->reserved && good && i < bytes; i++)
		good = s[i] & MEM_ALLOCATED;
	return good;
}

const Allocation *
arena_near(const Arena *a, uint64_t at)
{
	int k = arena_index(a, at);

	return a->n ? &a->allocation[k < 0 ? 0 : k] : NULL;
}

void
arena_state(Arena *a, uint64_t at, uint64_t bytes, uint8_t set, uint8_t clear)
{
	uint8_t *s = a->state + (at - a->base);

	for (uint64_t i = 0; i < bytes; i++)
		s[i] = (uint8_t)((s[i] & ~clear) | set);
}
