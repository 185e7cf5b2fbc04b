/* links.c: what a link between two devices takes, and adding on one of them (bench --links).
 *
 * In: the other process, bytes.   Out: seconds on the device's own clock, from the first of the two ways to the last;
 * of loop_sum over as many bytes of f32. What it moves and adds is room of its own, zeros. */
#include "cuda.h"
#include "../comm.h"

#include <stdlib.h>

enum { LINK_PART = 8192 };      /* elements that a block adds, as of gradients (exchange.c) */

static bool
links_timed(Cuda *c, double *seconds)
{
	float ms = 0;

	if (!CUDA(c, cuEventRecord, c->event[1], c->stream) || !cuda_nccl_wait(c, c->stream) ||
	    !CUDA(c, cuEventElapsedTime, &ms, c->event[0], c->event[1]))
		return false;
	*seconds = ms * 1e-3;
	return true;
}

bool
cuda_link(RtHost *h, int other, int64_t bytes, double *seconds)
{
	Cuda *c = h->device;
	CuPtr at = 0;
	bool good = cuda_here(c) && cuda_events(c, 2) && cuda_alloc(c, &at, 2 * bytes, "messages");
	RtMsg m[2] = {{other, true, (void *)(uintptr_t)at, (size_t)bytes},
	              {other, false, (void *)(uintptr_t)(at + (CuPtr)bytes), (size_t)bytes}};

	good = good && CUDA(c, cuEventRecord, c->event[0], c->stream) && cuda_nccl_move(c, c->stream, m, 2) &&
	       links_timed(c, seconds);
	if (at)
		c->cu.cuMemFree(at);
	return good;
}

/* The table of parts, of f32, behind the numbers. */
static bool
sum_fill(Cuda *c, CuPtr at, CuPtr table, int64_t bytes, long long parts)
{
	LoopPart *part = rt_alloc(sizeof *part * (size_t)parts);
	uint8_t *zeros = rt_alloc((size_t)(2 * bytes));
	bool good;

	for (long long i = 0; i < parts; i++)
		part[i] = (LoopPart){.at = i * LINK_PART * 4, .n = LINK_PART};
	good = cuda_put(c, at, zeros, 2 * bytes) && cuda_put(c, table, part, (int64_t)sizeof *part * parts);
	free(zeros);
	free(part);
	return good;
}

bool
cuda_adds(RtHost *h, int64_t bytes, double *seconds)
{
	Cuda *c = h->device;
	long long parts = bytes / (LINK_PART * 4), from = 0, to = parts * LINK_PART * 4;
	CuPtr left = 0, right, table;
	Chain chain = {.c = c, .capture = true}; /* launched, not waited for */
	bool good = cuda_here(c) && cuda_events(c, 2) &&
	            cuda_alloc(c, &left, 2 * bytes + (int64_t)sizeof(LoopPart) * parts, "sums");

	right = left + (CuPtr)bytes;
	table = right + (CuPtr)bytes;
	good = good && sum_fill(c, left, table, bytes, parts) && CUDA(c, cuEventRecord, c->event[0], c->stream) &&
	       cuda_shards_kernel(&chain, c->shards.sum, parts,
	                          (void *[]){&table, &parts, &left, &left, &right, &from, &to}, "loop_sum") &&
	       links_timed(c, seconds);
	if (left)
		c->cu.cuMemFree(left);
	return good;
}
