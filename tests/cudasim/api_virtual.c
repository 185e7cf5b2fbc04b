/* api_virtual.c: calls that give addresses and memory apart: a reserved range has memory where some is mapped, and
 * access where that was set. In whole multiples of 2 MiB, as devices have it, or of MANTOU_SIM_GRAIN; a copy or a
 * kernel elsewhere in the range fails as it does behind an allocation. */
#include <stdlib.h>
#include <string.h>

#include "work.h"

#define GRAIN device.set.grain

typedef struct Piece { uint64_t bytes; int maps; bool released, gone; } Piece;
typedef struct Mapping { uint64_t at, bytes; int block; bool gone; } Mapping;
static Piece *blocks;
static Mapping *maps;
static int nblocks, nmaps;

static void *
grown(void *list, int n, size_t size)
{
	list = realloc(list, size * (size_t)(n + 1));
	if (!list)
		abort();
	return list;
}

int
virtual_leaks(void)
{
	int n = 0;

	for (int i = 0; i < nblocks; i++)
		n += !blocks[i].gone;
	return n;
}

static void
block_drop(Piece *b)
{
	if (b->gone || b->maps || !b->released)
		return;
	b->gone = true;
	device.memory.used -= b->bytes;
}

static bool
prop_good(const CUmemAllocationProp *p)
{
	return p && p->type == 1 && p->location.type == 1 && p->location.id == 0;
}

CUresult
cuMemGetAllocationGranularity(size_t *to, const CUmemAllocationProp *p, int option)
{
	ENTER(true);
	if (!to || !prop_good(p) || option < 0 || option > 1)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = GRAIN;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemAddressReserve(CUdeviceptr *to, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
	ENTER(true);
	if (!to || !bytes || bytes % GRAIN || alignment || at || flags)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = arena_reserve(&device.memory, bytes);
	device.count.allocations += *to != 0;
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult
cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	const Allocation *v;

	ENTER(true);
	v = arena_has(&device.memory, at, 1) ? arena_find(&device.memory, at) : NULL;
	for (int i = 0; i < nmaps; i++)
		if (v && !maps[i].gone && maps[i].at >= at && maps[i].at < at + bytes)
			v = NULL;
	if (!v || !v->reserved || v->at != at || v->bytes != bytes)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	arena_free(&device.memory, at);
	device.count.frees++;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemCreate(CUmemGenericAllocationHandle *to, size_t bytes, const CUmemAllocationProp *p, unsigned long long flags)
{
	Arena *a = &device.memory;

	ENTER(true);
	if (!to || !bytes || bytes % GRAIN || !prop_good(p) || flags)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	if (a->used + bytes > device.set.memory)
		return api_leave(CUDA_ERROR_OUT_OF_MEMORY);
	blocks = grown(blocks, nblocks, sizeof *blocks);
	blocks[nblocks++] = (Piece){ .bytes = bytes };
	a->used += bytes;
	a->peak = a->used > a->peak ? a->used : a->peak;
	*to = (CUmemGenericAllocationHandle)nblocks;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemRelease(CUmemGenericAllocationHandle h)
{
	ENTER(true);
	if (!h || h > (unsigned)nblocks || blocks[h - 1].released)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	blocks[h - 1].released = true;
	block_drop(&blocks[h - 1]);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	const Allocation *v;
	bool good;

	ENTER(true);
	v = arena_has(&device.memory, at, 1) ? arena_find(&device.memory, at) : NULL;
	good = v && v->reserved && !((at - v->at) % GRAIN) && bytes && bytes <= v->bytes - (at - v->at) && !offset &&
	       !flags && h && h <= (unsigned)nblocks && !blocks[h - 1].released && blocks[h - 1].bytes == bytes;
	for (int i = 0; i < nmaps && good; i++)
		good = maps[i].gone || at + bytes <= maps[i].at || maps[i].at + maps[i].bytes <= at;
	if (!good)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	maps = grown(maps, nmaps, sizeof *maps);
	maps[nmaps++] = (Mapping){ .at = at, .bytes = bytes, .block = (int)h - 1 };
	blocks[h - 1].maps++;
	return api_leave(CUDA_SUCCESS);
}

static Mapping *
map_of(CUdeviceptr at, size_t bytes)
{
	for (int i = 0; i < nmaps; i++)
		if (!maps[i].gone && maps[i].at == at && maps[i].bytes == bytes)
			return &maps[i];
	return NULL;
}

CUresult
cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
	ENTER(true);
	if (!map_of(at, bytes) || !desc || n != 1 || desc->location.type != 1 || desc->location.id || desc->flags != 3)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	arena_state(&device.memory, at, bytes, MEM_ALLOCATED, 0);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	Mapping *m;

	ENTER(true);
	stream_wait_all();
	m = map_of(at, bytes);
	if (!m)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	m->gone = true;
	arena_state(&device.memory, at, bytes, 0, 0xff);
	blocks[m->block].maps--;
	block_drop(&blocks[m->block]);
	return api_leave(CUDA_SUCCESS);
}
