/* arena.c: the arena's memory on the device, and which bytes of it are this process's.
 *
 * In: bytes; of processes that share updates (cut.c) which slots are others'.   Out: one allocation; or addresses for
 * all of it with memory behind whatever is not wholly others' slots, in pieces of the device's granularity (2 MiB),
 * where the device takes addresses apart from memory. Copies to and from the host leave others' slots out. */
#include "cuda.h"

#include <stdlib.h>

static CuPtr
pages(CuPtr bytes, CuPtr grain)
{
	return (bytes + grain - 1) / grain * grain;
}

/* Are bytes [from, to) of the allocation others' slots? */
static bool
arena_hole(const Cuda *c, CuPtr from, CuPtr to)
{
	int64_t at = (int64_t)from - RT_LOOP_BYTES, n = 0;

	return at >= 0 && !rt_cuts_own(c->h, &at, (int64_t)to - RT_LOOP_BYTES, &n);
}

/* Memory behind [at, at + bytes); the driver's status. */
static int
arena_piece(Cuda *c, const CuMemProp *prop, CuPtr at, size_t bytes)
{
	CuMemAccess access = {.location = prop->location, .flags = CU_READ_WRITE};
	unsigned long long memory;
	int status = c->cu.cuMemCreate(&memory, bytes, prop, 0);

	if (status)
		return status;
	status = c->cu.cuMemMap(at, bytes, 0, memory, 0);
	c->cu.cuMemRelease(memory); /* it goes when it is unmapped */
	if (status)
		return status;
	c->piece = realloc(c->piece, sizeof *c->piece * (size_t)(c->npiece + 1));
	if (!c->piece)
		return CU_OUT_OF_MEMORY;
	c->piece[c->npiece++] = (CuPiece){at, bytes};
	return c->cu.cuMemSetAccess(at, bytes, &access, 1);
}

static int
arena_map(Cuda *c, size_t bytes)
{
	CuMemProp prop = {.type = CU_PINNED, .location = {CU_ON_DEVICE, c->device}};
	size_t grain = 0, room, held = 0;
	int able = 0, status = c->cu.cuMemGetAllocationGranularity(&grain, &prop, 0);

	if (status)
		return status;
	if (c->cu.cuDeviceGetAttribute(&able, CU_RDMA_WITH_MAPPED, c->device) == 0 && able)
		prop.rdma = 1; /* networks may take gradients from where they are */
	room = (size_t)pages(bytes, grain);
	status = c->cu.cuMemAddressReserve(&c->base, room, 0, 0, 0);
	c->reserved = status ? 0 : room;
	for (CuPtr at = 0, end; at < room && !status; at = end) {
		bool hole = arena_hole(c, at, at + grain);

		for (end = at + grain; end < room && arena_hole(c, end, end + grain) == hole;)
			end += grain;
		if (!hole)
			status = arena_piece(c, &prop, c->base + at, (size_t)(end - at));
		held += hole ? 0 : (size_t)(end - at);
	}
	c->h->device_bytes = held;
	if (status)
		cuda_arena_free(c);
	return status;
}

int
cuda_arena_alloc(Cuda *c, size_t bytes)
{
	int able = 0;

	c->h->device_bytes = bytes;
	if (rt_cuts_cut(c->h) && c->cu.cuDeviceGetAttribute(&able, CU_MAPPED_MEMORY, c->device) == 0 && able)
		return arena_map(c, bytes);
	return c->cu.cuMemAlloc(&c->base, bytes);
}

void
cuda_arena_free(Cuda *c)
{
	for (int i = 0; i < c->npiece; i++)
		c->cu.cuMemUnmap(c->piece[i].at, c->piece[i].bytes);
	free(c->piece);
	c->piece = NULL;
	c->npiece = 0;
	if (c->reserved)
		c->cu.cuMemAddressFree(c->base, c->reserved);
	else if (c->base)
		c->cu.cuMemFree(c->base);
	c->base = 0;
	c->reserved = 0;
}

bool
cuda_arena_put(Cuda *c, int64_t begin, int64_t end)
{
	bool good = true;

	for (int64_t at = begin, n; good && rt_cuts_own(c->h, &at, end, &n); at += n)
		good = cuda_put(c, c->arena + (CuPtr)at, c->h->run.arena + at, n);
	return good;
}

bool
cuda_arena_get(Cuda *c, int64_t begin, int64_t end)
{
	bool good = true;

	for (int64_t at = begin, n; good && rt_cuts_own(c->h, &at, end, &n); at += n)
		good = cuda_get(c, c->h->run.arena + at, c->arena + (CuPtr)at, n);
	return good;
}
