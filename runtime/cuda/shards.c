/* shards.c: the shards of a batch on the device, one after the other (train.shards > 1).
 *
 * In: the descriptor's graph train, and what exchange.c says is added behind each shard (rt_merge_adds).   Out: kernels
 * of a chain, for a graph or launched at once: of every shard the call, then loop_sum for the nodes that are complete
 * with it; the last sum stands in the states of kind grad. What shards exchange within a step (joins.c):
 *  - early: the kernels that depend on the data alone run first for every shard, then loop_tree; behind that loop_give
 *    stands in the join's place.
 *  - else shards run in step, from join to join, each in an arena of its own: the arena lies `copies` times in memory,
 *    each with its loop's state in front, and the states that graph train reads are copied at the step's beginning. */
#include "cuda.h"

#include <stdlib.h>

enum { SHARD_THREADS = 256, SHARD_BLOCKS = 1024 };

static const RtGraph *
shards_graph(const Cuda *c)
{
	return &c->h->program.graph[RT_G_TRAIN];
}

/* ---- kernels of the loop (loop.cu) */

static bool
put_kernel(Chain *h, CuFunction f, int64_t threads, void **parameter, const char *what)
{
	int64_t blocks = (threads + SHARD_THREADS - 1) / SHARD_THREADS;
	CuKernelNode node = {.function = f,
	                     .grid = {blocks < 1 ? 1 : blocks < SHARD_BLOCKS ? (unsigned)blocks : SHARD_BLOCKS, 1, 1},
	                     .block = {threads == 1 ? 1 : SHARD_THREADS, 1, 1},
	                     .parameter = parameter};

	return cuda_chain_add(h, &node) || rt_context(&h->c->h->error, "kernel %s", what);
}

static bool
put_sum(Chain *h, CuPtr out, CuPtr left, CuPtr right)
{
	CudaShards *s = &h->c->shards;
	long long parts = h->c->h->sums.npart;

	return put_kernel(h, s->sum, parts * SHARD_THREADS, (void *[]){&s->part, &parts, &out, &left, &right},
	                  "loop_sum");
}

/* Joins [a, b): of graph train in c->arena to value, or from the root to there. */
static bool
put_values(Chain *h, bool give, CuPtr value, int a, int b)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	CuPtr join = s->join + (CuPtr)a * sizeof(LoopJoin);
	long long n = b - a, most = 1;

	for (int k = a; k < b; k++)
		most = shards_graph(c)->join[k].count > most ? shards_graph(c)->join[k].count : most;
	return put_kernel(h, give ? s->give : s->take, most == 1 ? 2 : most, (void *[]){&c->arena, &value, &join, &n},
	                  give ? "loop_give" : "loop_take");
}

static bool
put_tree(Chain *h, int a, int b)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	CuPtr join = s->join + (CuPtr)a * sizeof(LoopJoin);
	long long room = c->h->joins.room, shards = c->h->sums.shards, n = b - a, most = 2;

	for (int k = a; k < b; k++)
		most = shards_graph(c)->join[k].count > most ? shards_graph(c)->join[k].count : most;
	return put_kernel(h, s->tree, most, (void *[]){&s->value, &room, &shards, &s->root, &join, &n}, "loop_tree");
}

static CuPtr
value_of(const Cuda *c, int64_t shard)
{
	return c->shards.value + (CuPtr)(shard * c->h->joins.room);
}

static CuPtr
sum_place(const Cuda *c, int room, CuPtr states)
{
	return room == RT_STATES ? states : c->shards.room[room];
}

/* The sums behind shard k, whose gradients stand at `states`; the last one's in the arena. */
static bool
put_merge(Chain *h, int64_t k, CuPtr states)
{
	Cuda *c = h->c;
	RtAdd add[RT_MAX_NODES];
	int n = rt_merge_adds(&c->h->sums, k, add);
	CuPtr own = c->arena + (CuPtr)c->h->sums.begin;
	bool good = true;

	for (int i = 0; i < n && good; i++)
		good = put_sum(h, sum_place(c, add[i].out, own),
		               add[i].left == RT_NOTHING ? 0 : sum_place(c, add[i].left, own),
		               sum_place(c, add[i].right, i == 0 ? states : own));
	return good;
}

/* Of kernels that are launched: has the shard met a fault? run->arena has it then. */
static bool
shard_fault(Chain *h, bool *fault)
{
	RtHost *host = h->c->h;

	if (h->graph)
		return true;
	if (!cuda_get(h->c, host->run.arena, h->c->arena, sizeof(RtFault)))
		return false;
	*fault = rt_fault(&host->run);
	return true;
}

/* ---- one after the other */

/* What the joins need, of every shard; and joined. */
static bool
early_add(Chain *h)
{
	Cuda *c = h->c;
	const RtGraph *g = shards_graph(c);
	bool good = true;

	for (int64_t k = 0; k < c->h->sums.shards && good; k++) {
		h->micro = k;
		h->batch = true;
		good = cuda_chain_begin(h, RT_G_TRAIN);
		for (int r = 0; r < g->nrow && good; r++)
			if (g->row[r].join >= 0) /* what it takes stands here, and need not any more behind it */
				good = put_values(h, false, value_of(c, k), g->row[r].join, g->row[r].join + 1);
			else if (g->row[r].early && !g->row[r].check)
				good = cuda_chain_row(h, g, r);
	}
	return good && put_tree(h, 0, g->njoin);
}

static bool
turns_add(Chain *h)
{
	Cuda *c = h->c;
	const RtGraph *g = shards_graph(c);
	CuPtr states = c->arena + (CuPtr)c->h->sums.begin;
	bool good = !g->njoin || early_add(h), fault = false;

	for (int64_t k = 0; k < c->h->sums.shards && good && !fault; k++) {
		h->micro = k;
		h->batch = true;
		good = cuda_chain_begin(h, RT_G_TRAIN);
		for (int r = 0; r < g->nrow && good; r++)
			good = g->row[r].join >= 0
			               ? put_values(h, true, c->shards.root, g->row[r].join, g->row[r].join + 1)
			               : cuda_chain_row(h, g, r);
		good = good && shard_fault(h, &fault) && (fault || put_merge(h, k, states));
	}
	return good;
}

/* ---- in step */

static bool
put_copy(Chain *h, CuPtr to, CuPtr from, long long bytes)
{
	return put_kernel(h, h->c->shards.copy, bytes / 16 + 2, (void *[]){&to, &from, &bytes}, "loop_copy");
}

/* The loop's state, and those of the model that graph train reads, to copy k of the arena. */
static bool
copy_states(Chain *h, int64_t k)
{
	const RtProgram *p = &h->c->h->program;
	CuPtr to = (CuPtr)k * h->c->shards.stride;
	int64_t begin = -1, end = -1;
	bool good = put_copy(h, h->c->base + to, h->c->base, RT_LOOP_BYTES + (long long)sizeof(RtFault));

	for (int i = 0; i <= p->nstate && good; i++) {
		const RtState *s = &p->state[i < p->nstate ? i : 0];
		bool reads = i < p->nstate && s->kind != RT_GRAD && s->kind != RT_SLOT && s->kind != RT_CARRY;

		if (reads && begin >= 0 && s->t.offset >= end && s->t.offset - end < 64) { /* next to the last one */
			end = s->t.offset + s->t.bytes;
			continue;
		}
		if (begin >= 0 && (reads || i == p->nstate)) {
			good = put_copy(h, h->c->arena + to + (CuPtr)begin, h->c->arena + (CuPtr)begin, end - begin);
			begin = -1;
		}
		if (reads) {
			begin = s->t.offset;
			end = begin + s->t.bytes;
		}
	}
	return good;
}

/* Shard k from behind join a - 1 up to join a; of all joins, up to the end. c->arena is the shard's. */
static bool
part_add(Chain *h, int64_t k, int a)
{
	Cuda *c = h->c;
	const RtGraph *g = shards_graph(c);
	bool good = true;

	h->micro = k;
	h->batch = a == 0;
	c->h->run.first = k * c->h->run.batch;
	if (a == 0)
		good = cuda_chain_begin(h, RT_G_TRAIN);
	for (int r = a ? g->join[a - 1].kernel + 1 : 0; good && r < (a < g->njoin ? g->join[a].kernel : g->nrow); r++)
		good = cuda_chain_row(h, g, r);
	return good;
}

static bool
step_add(Chain *h)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	const RtGraph *g = shards_graph(c);
	int64_t shards = c->h->sums.shards;
	CuPtr arena = c->arena;
	bool good = true, fault = false;

	for (int64_t k = 1; k < shards && good; k++)
		good = copy_states(h, k);
	for (int a = 0; good && a <= g->njoin; a = a < g->njoin ? rt_joins_unit(g, a) : g->njoin + 1) {
		int end = a < g->njoin ? rt_joins_unit(g, a) : a;

		for (int64_t k = 0; k < shards && good && !fault; k++) {
			c->arena = arena + (CuPtr)k * s->stride;
			good = part_add(h, k, a) && shard_fault(h, &fault) &&
			       (fault || end == a || put_values(h, false, value_of(c, k), a, end));
		}
		if (end > a && good && !fault) {
			c->arena = arena;
			good = put_tree(h, a, end);
			for (int64_t k = 0; k < shards && good; k++) {
				c->arena = arena + (CuPtr)k * s->stride;
				good = put_values(h, true, s->root, a, end);
			}
		}
		c->arena = arena;
		if (fault)
			return good;
	}
	for (int64_t k = 0; k < shards && good; k++) {
		CuPtr own = arena + (CuPtr)k * s->stride;
		long long words = (long long)(sizeof(RtFault) / 8), micro = k;

		good = k == 0 || put_kernel(h, s->fault, 1, (void *[]){&arena, &own, &words, &micro}, "loop_fault");
		good = good && put_merge(h, k, own + (CuPtr)c->h->sums.begin);
	}
	return good;
}

bool
cuda_shards_add(Chain *h)
{
	return rt_joins_in_step(h->c->h) ? step_add(h) : turns_add(h);
}

int64_t
cuda_shards(RtHost *h, RtTimeFn *time, void *cx)
{
	Cuda *c = h->device;
	Chain chain = {.c = c, .time = time, .cx = cx};

	c->top = (LoopHead){0};
	if (!cuda_here(c) || !cuda_put(c, c->base, &c->top, sizeof c->top) || !cuda_shards_add(&chain))
		return RT_ERROR;
	h->run.kept = CUDA_CURRENT;
	return rt_fault(&h->run) ? RT_FAULT : RT_OK;
}

bool
cuda_shards_merge(RtHost *h)
{
	Cuda *c = h->device;
	Chain chain = {.c = c};

	return cuda_here(c) && put_merge(&chain, h->run.micro, c->arena + (CuPtr)h->sums.begin);
}

/* ---- memory */

void
cuda_shards_room(Cuda *c)
{
	bool trains = c->h->sums.npart > 0;

	c->shards.copies = trains && rt_joins_in_step(c->h) ? (int)c->h->sums.shards : 1;
}

static int
loop_type(int dtype)
{
	return dtype == RT_F64 ? 1 : dtype == RT_BF16 ? 2 : dtype == RT_F16 ? 3 : 0;
}

static bool
parts_open(Cuda *c)
{
	const RtSums *s = &c->h->sums;
	LoopPart *part = rt_alloc(sizeof *part * (size_t)s->npart);
	bool good = cuda_alloc(c, &c->shards.part, (int64_t)sizeof *part * s->npart, "the tables of sums");

	for (int64_t i = 0; i < s->npart; i++)
		part[i] = (LoopPart){.at = s->part[i].at, .n = s->part[i].n, .type = loop_type(s->part[i].dtype)};
	good = good && cuda_put(c, c->shards.part, part, (int64_t)sizeof *part * s->npart);
	free(part);
	for (int i = 0; i < s->deepest && good; i++) {
		good = cuda_alloc(c, &c->shards.room[i], s->bytes, "the sums of shards");
		c->h->device_bytes += (size_t)s->bytes;
	}
	return good;
}

static bool
joins_open(Cuda *c)
{
	const RtGraph *g = shards_graph(c);
	RtHost *h = c->h;
	int64_t bytes = h->joins.room * h->sums.shards, at = 0;
	LoopJoin *join = rt_alloc(sizeof *join * (size_t)g->njoin);

	for (int k = 0, end = 0; k < g->njoin; k++) {
		const RtJoin *j = &g->join[k];

		if (k == end) {
			end = rt_joins_unit(g, k);
			at = 0;
		}
		join[k] = (LoopJoin){.from = j->in[0],
		                     .to = j->out[0],
		                     .from2 = j->in[1],
		                     .to2 = j->out[1],
		                     .count = j->count,
		                     .type = loop_type(j->dtype),
		                     .moments = j->moments,
		                     .at = at};
		at += rt_join_bytes(j);
	}
	bool good = cuda_alloc(c, &c->shards.join, (int64_t)sizeof *join * g->njoin, "the tables of joins") &&
	            cuda_alloc(c, &c->shards.value, bytes, "what shards exchange") &&
	            cuda_alloc(c, &c->shards.root, h->joins.room, "what shards exchange") &&
	            cuda_put(c, c->shards.join, join, (int64_t)sizeof *join * g->njoin);

	free(join);
	h->device_bytes += (size_t)(bytes + h->joins.room);
	return good;
}

bool
cuda_shards_open(Cuda *c)
{
	CudaShards *s = &c->shards;
	const struct { CuFunction *to; const char *name;
	} kernel[] = {{&s->sum, "loop_sum"},   {&s->copy, "loop_copy"}, {&s->fault, "loop_fault"},
	              {&s->take, "loop_take"}, {&s->tree, "loop_tree"}, {&s->give, "loop_give"}};

	if (c->h->sums.npart == 0)
		return true;
	for (int i = 0; i < RT_COUNT(kernel); i++)
		if (!CUDA(c, cuModuleGetFunction, kernel[i].to, c->module[0], kernel[i].name))
			return rt_context(&c->h->error, "kernel %s", kernel[i].name);
	return parts_open(c) && (!shards_graph(c)->njoin || joins_open(c));
}

void
cuda_shards_close(Cuda *c)
{
	CudaShards *s = &c->shards;
	CuPtr at[] = {s->part, s->join, s->value, s->root};

	for (int i = 0; i < RT_COUNT(at); i++)
		if (at[i])
			c->cu.cuMemFree(at[i]);
	for (int i = 0; i < RT_MAX_NODES; i++)
		if (s->room[i])
			c->cu.cuMemFree(s->room[i]);
}
