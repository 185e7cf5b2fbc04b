/* cut.c: what processes tell each other of updates that they share (build --shard-optimizer), on devices.
 *
 * In: the parts and messages of ../cut.c, whose addresses are of the host's arena.   Out: within graph update the
 * numbers that each process has made of its part of the gradients, packed and put in their places by loop_told; behind
 * it the parameters that each has updated. NCCL carries both. Which elements a kernel takes says graph.c. */
#include "cuda.h"
#include "../comm.h"

#include <stdlib.h>

/* Messages as the host has them, on the device: `here` is where `at` of the host lies. */
static struct RtMsg *
messages_here(const RtMsg *m, int n, const uint8_t *at, CuPtr here)
{
	RtMsg *r = rt_alloc(sizeof *r * (size_t)(n + 1));

	for (int i = 0; i < n; i++) {
		r[i] = m[i];
		r[i].at = (void *)(uintptr_t)(here + (CuPtr)((const uint8_t *)m[i].at - at));
	}
	return r;
}

/* Parts of parameters, and of numbers of gradients. */
bool
cuda_cut_open(Cuda *c)
{
	CudaShards *s = &c->shards;
	const RtCuts *k = &c->h->cuts;
	int n = k->ntell ? k->place_at[c->h->ranks] : 0;
	LoopTold *place = rt_alloc(sizeof *place * (size_t)(n + 1));
	bool good = true;

	s->spread = messages_here(k->spread, k->nspread, c->h->run.arena, c->arena);
	for (int i = 0; i < n; i++)
		place[i] = (LoopTold){.from = k->place[i].from, .at = k->place[i].at, .n = k->place[i].n};
	if (n) {
		good = cuda_alloc(c, &s->told, k->told_at[c->h->ranks], "numbers of parts of gradients") &&
		       cuda_alloc(c, &s->place, (int64_t)sizeof *place * n, "numbers of parts of gradients") &&
		       cuda_put(c, s->place, place, (int64_t)sizeof *place * n);
		s->telling = messages_here(k->tell, k->ntell, k->told, s->told);
		c->h->device_bytes += (size_t)(k->told_at[c->h->ranks] + (int64_t)sizeof *place * n);
	}
	free(place);
	return good;
}

void
cuda_cut_close(Cuda *c)
{
	CudaShards *s = &c->shards;

	free(s->spread);
	free(s->telling);
	if (s->told)
		c->cu.cuMemFree(s->told);
	if (s->place)
		c->cu.cuMemFree(s->place);
}

/* Numbers of gradients are made in parts: all get all, before they are joined. Behind whatever else is under way. */
bool
cuda_cut_tell(Chain *h)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	const RtCuts *k = &c->h->cuts;
	bool beside = h->capture && s->beside, good;

	if (!s->told || !cuda_exchanges(c))
		return true;
	CuPtr own = s->place + (CuPtr)k->place_at[c->h->rank] * sizeof(LoopTold), all = s->place;
	long long mine = k->place_at[c->h->rank + 1] - k->place_at[c->h->rank], n = k->place_at[c->h->ranks], no = 0,
	          yes = 1;

	good = (!mine ||
	        cuda_shards_kernel(h, s->tell, mine, (void *[]){&c->arena, &s->told, &own, &mine, &no}, "loop_told")) &&
	       (!beside || cuda_shards_fork(h)) && cuda_shards_mark(h) &&
	       cuda_nccl_move(c, cuda_chain_stream(h), s->telling, k->ntell) &&
	       (h->capture || cuda_nccl_wait(c, cuda_chain_stream(h))) && cuda_shards_mark(h) &&
	       (!beside || cuda_shards_join(h));
	h->beside = false;
	return good && cuda_shards_kernel(h, s->tell, n, (void *[]){&c->arena, &s->told, &all, &n, &yes}, "loop_told");
}

/* Each process has made a part of the parameters: all get it. */
bool
cuda_cut_spread(Chain *h)
{
	Cuda *c = h->c;
	CuStream s = cuda_chain_stream(h);

	if (!rt_cuts_cut(c->h) || !cuda_exchanges(c))
		return true;
	return cuda_shards_mark(h) && cuda_nccl_move(c, s, c->shards.spread, c->h->cuts.nspread) &&
	       (h->capture || cuda_nccl_wait(c, s)) && cuda_shards_mark(h);
}
