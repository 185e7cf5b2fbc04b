/* shards.c: the shards of a batch on the device, one after the other (train.shards > 1): those of this process.
 *
 * In: the descriptor's graph train, and what exchange.c says is added behind each shard (rt_merge_adds).   Out: kernels
 * of a chain, for a graph or launched at once: of every shard the call, then loop_sum for the nodes that are complete
 * with it; the last sum stands in the states of kind grad. What shards exchange within a step (joins.c):
 *  - early: the kernels that depend on the data alone run first for every shard, then loop_tree; behind that loop_give
 *    stands in the join's place.
 *  - else shards run in step, from join to join, each in an arena of its own: the arena lies `copies` times in memory,
 *    each with its loop's state in front, and the states that graph train reads are copied at the step's beginning.
 * Of several processes the pieces of all are joined behind the last shard, as exchange.c says and on the same tree:
 * NCCL carries them (nccl.c), loop_sum adds. Buckets that are complete before go beside the kernels of the last shard,
 * the others beside the updates of those that have arrived. Between the two goes what all must know: faults, a wish to
 * stop. */
#include "cuda.h"
#include "../comm.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_THREADS = 256, SHARD_BLOCKS = 1024 };
enum { FAULT_WORDS = sizeof(RtFault) / 8, VOTE_BYTES = 8 * (2 + FAULT_WORDS) };

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

bool
cuda_shards_kernel(Chain *h, CuFunction f, int64_t blocks, void **parameter, const char *what)
{
	return put_kernel(h, f, blocks * SHARD_THREADS, parameter, what);
}

/* Over bytes [low, high) of the range; pointers are to its beginning. */
static bool
put_sum(Chain *h, CuPtr out, CuPtr left, CuPtr right, int64_t low, int64_t high)
{
	CudaShards *s = &h->c->shards;
	const RtSums *sums = &h->c->h->sums;
	int64_t first = 0;

	while (first < sums->npart &&
	       sums->part[first].at + sums->part[first].n * rt_dtype[sums->part[first].dtype].bytes <= low)
		first++;
	long long parts = 0, from = low, to = high;
	CuPtr table = s->part + (CuPtr)first * sizeof(LoopPart);

	while (first + parts < sums->npart && sums->part[first + parts].at < high)
		parts++;
	return !parts || put_kernel(h, s->sum, parts * SHARD_THREADS,
	                            (void *[]){&table, &parts, &out, &left, &right, &from, &to}, "loop_sum");
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

static CuPtr
value_of(const Cuda *c, int64_t shard)
{
	return c->shards.value + (CuPtr)(shard * c->h->joins.room);
}

static bool
put_tree(Chain *h, int a, int b)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	CuPtr join = s->join + (CuPtr)a * sizeof(LoopJoin);
	bool alone = c->h->ranks > 1 && c->h->opt.no_exchange; /* a measurement: what this process has */
	CuPtr value = value_of(c, alone ? c->h->sums.lo : 0);
	long long room = c->h->joins.room, n = b - a, most = 2,
	          shards = alone ? c->h->sums.hi - c->h->sums.lo : c->h->sums.shards;

	for (int k = a; k < b; k++)
		most = shards_graph(c)->join[k].count > most ? shards_graph(c)->join[k].count : most;
	return put_kernel(h, s->tree, most, (void *[]){&value, &room, &shards, &s->root, &join, &n}, "loop_tree");
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
		               sum_place(c, add[i].right, i == 0 ? states : own), 0, c->h->sums.bytes);
	return good;
}

/* Of kernels that are launched: has the shard met a fault? run->arena has it then. Of several processes all go on to
 * where they tell each other. */
static bool
shard_fault(Chain *h, int64_t shard, bool *fault)
{
	RtHost *host = h->c->h;

	if (h->graph || h->capture)
		return true;
	if (!cuda_get(h->c, host->run.arena, h->c->arena, sizeof(RtFault)))
		return false;
	if (rt_fault(&host->run) && h->bad < 0) {
		h->bad = shard;
		memcpy(&h->fault, host->run.arena, sizeof h->fault);
	}
	*fault = rt_fault(&host->run) && !cuda_exchanges(h->c);
	return true;
}

/* ---- other processes */

bool
cuda_exchanges(const Cuda *c)
{
	return c->h->ranks > 1 && !c->h->opt.no_exchange && c->h->sums.npart > 0;
}

bool
cuda_shards_mark(Chain *h)
{
	return put_kernel(h, h->c->shards.mark, 1, (void *[]){&h->c->shards.marks_at}, "loop_mark");
}

static bool
put_move(Chain *h, int n)
{
	CuStream s = cuda_chain_stream(h);

	return cuda_nccl_move(h->c, s, h->c->h->sums.msg, n) && (h->capture || cuda_nccl_wait(h->c, s));
}

static void *
device_bytes(CuPtr at)
{
	return (void *)(uintptr_t)at;
}

/* What all say to all: messages of sums.msg behind the first n; their number. */
static int
say_votes(Cuda *c, int n)
{
	RtHost *h = c->h;

	for (int r = 0; r < h->ranks; r++) {
		if (r == h->rank)
			continue;
		h->sums.msg[n++] =
		        (RtMsg){r, true, device_bytes(c->shards.votes + (CuPtr)(h->rank * VOTE_BYTES)), VOTE_BYTES};
		h->sums.msg[n++] =
		        (RtMsg){r, false, device_bytes(c->shards.votes + (CuPtr)(r * VOTE_BYTES)), VOTE_BYTES};
	}
	return n;
}

/* Piece i of rank r over this rank's part, as if the range began there. */
static CuPtr
piece_at(const Cuda *c, int r, int i, RtShare mine)
{
	const RtHost *h = c->h;
	const RtSums *s = &h->sums;

	if (r != h->rank)
		return c->shards.in + (CuPtr)((s->rank[r].slot + i) * s->width) - (CuPtr)mine.from;
	return i + 1 == s->rank[r].n ? c->arena + (CuPtr)s->begin : c->shards.room[i];
}

/* T(x) over this rank's part to *at: sums go to the left operand's place, the last one to the states. */
static bool
put_node(Chain *h, RtNode x, RtShare mine, bool root, CuPtr *at)
{
	const RtSums *s = &h->c->h->sums;
	CuPtr left, right;
	int64_t k = 1;

	for (int r = 0; r < h->c->h->ranks; r++)
		for (int i = 0; i < s->rank[r].n; i++)
			if (s->rank[r].node[i].a == x.a && s->rank[r].node[i].n == x.n) {
				*at = piece_at(h->c, r, i, mine);
				return true;
			}
	while (2 * k < x.n)
		k *= 2;
	if (!put_node(h, (RtNode){x.a, k}, mine, false, &left) ||
	    !put_node(h, (RtNode){x.a + k, x.n - k}, mine, false, &right))
		return false;
	*at = root ? h->c->arena + (CuPtr)s->begin : left;
	return put_sum(h, *at, left, right, mine.from, mine.to);
}

static bool
put_turn(Chain *h, const RtTurn *t)
{
	Cuda *c = h->c;
	RtHost *host = c->h;
	RtSums *s = &host->sums;
	RtShare mine = rt_turn_part(host, t, host->rank);
	CuPtr states = c->arena + (CuPtr)s->begin, at;
	int n = 0;

	for (int r = 0; r < host->ranks; r++) {
		RtShare his = rt_turn_part(host, t, r);

		if (r == host->rank)
			continue;
		for (int i = 0; i < s->rank[host->rank].n; i++)
			s->msg[n++] = (RtMsg){r, true, device_bytes(piece_at(c, host->rank, i, mine) + (CuPtr)his.from),
			                      (size_t)(his.to - his.from)};
		for (int i = 0; i < s->rank[r].n; i++)
			s->msg[n++] = (RtMsg){r, false, device_bytes(piece_at(c, r, i, mine) + (CuPtr)mine.from),
			                      (size_t)(mine.to - mine.from)};
	}
	if (!put_move(h, n) || (mine.to > mine.from && !put_node(h, (RtNode){0, s->shards}, mine, true, &at)))
		return false;
	n = 0;
	for (int r = 0; r < host->ranks && !t->whole; r++) {
		if (r == host->rank)
			continue;
		n = rt_turn_give(host, t, device_bytes(states), mine, r, true, n);
		n = rt_turn_give(host, t, device_bytes(states), rt_turn_part(host, t, r), r, false, n);
	}
	return !n || put_move(h, n);
}

/* --exchange library: a call for what stands together and is of one type. */
static bool
put_library(Chain *h, int64_t from, int64_t to)
{
	Cuda *c = h->c;
	RtSums *s = &c->h->sums;

	for (int64_t i = 0; i < s->npart;) {
		const RtSpan *first = &s->part[i], *last = first;

		for (i++; i < s->npart && s->part[i].dtype == first->dtype && s->part[i].at < to; i++)
			last = &s->part[i];
		if (first->at < from) {
			i = first - s->part + 1;
			continue;
		}
		if (first->at >= to)
			break;
		if (!cuda_nccl_sum(c, cuda_chain_stream(h), c->arena + (CuPtr)(s->begin + first->at),
		                   (last->at - first->at) / rt_dtype[first->dtype].bytes + last->n, first->dtype) ||
		    (!h->capture && !cuda_nccl_wait(c, cuda_chain_stream(h))))
			return false;
	}
	return true;
}

/* A bucket is complete: this process's own node over it, then the others'. */
static bool
put_bucket(Chain *h)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	RtSums *sums = &c->h->sums;
	const RtBucket *b = &sums->bucket[s->started++];
	int64_t from = b->offset - sums->begin, to = from + b->bytes;
	RtTurn t = rt_turn_first(c->h, b);
	CuPtr own = c->arena + (CuPtr)sums->begin;
	bool good = true;

	for (int i = 0; i < s->nadd && good; i++)
		good = put_sum(h, sum_place(c, s->add[i].out, own), sum_place(c, s->add[i].left, own),
		               sum_place(c, s->add[i].right, own), from, to);
	if (rt_exchange_library(c->h))
		good = good && put_library(h, from, to);
	else
		do
			good = good && put_turn(h, &t);
		while (good && rt_turn_next(&t));
	return good && (!h->beside || CUDA(c, cuEventRecord, s->arrived[b - sums->bucket], s->beside));
}

/* The last of this process's shards begins: what its end adds up. */
static void
bucket_begin(Chain *h)
{
	CudaShards *s = &h->c->shards;
	RtSums *sums = &h->c->h->sums;

	s->started = s->waited = 0;
	s->nadd = rt_merge_adds(sums, sums->hi - 1, s->add);
	for (int i = sums->nnode - 2; i >= 0 && rt_exchange_library(h->c->h);
	     i--) /* one sum a rank, whatever nodes it has */
		s->add[s->nadd++] = (RtAdd){.out = RT_STATES, .left = i, .right = RT_STATES};
}

bool
cuda_shards_fork(Chain *h)
{
	Cuda *c = h->c;

	h->beside = CUDA(c, cuEventRecord, c->shards.forked, c->stream) &&
	            CUDA(c, cuStreamWaitEvent, c->shards.beside, c->shards.forked, 0);
	return h->beside;
}

bool
cuda_shards_join(Chain *h)
{
	Cuda *c = h->c;

	h->beside = false;
	return CUDA(c, cuEventRecord, c->shards.joined, c->shards.beside) &&
	       CUDA(c, cuStreamWaitEvent, c->stream, c->shards.joined, 0);
}

/* Behind kernel `row` of the last shard: the buckets that are complete go their way while the others are made. The last
 * one lets go first what all must know, which waits for the shard's end. */
static bool
put_complete(Chain *h, int row)
{
	RtSums *s = &h->c->h->sums;
	int *started = &h->c->shards.started;
	bool good = true;

	if (!h->capture || !h->c->shards.beside)
		return true;
	while (good && *started + 1 < s->nbucket && s->bucket[*started].kernel <= row) {
		good = cuda_shards_fork(h) && cuda_shards_mark(h) && put_bucket(h) && cuda_shards_mark(h);
		h->beside = false;
	}
	return good;
}

/* Of kernels that are launched the hosts tell each other, before the buckets go. False after rt_fail; *fault:
 * somebody has met one, and run->arena has it. */
static bool
vote_now(Chain *h, bool *fault)
{
	typedef struct Vote {
		int64_t step, shard, signal;
		RtFault fault;
	} Vote;
	RtHost *host = h->c->h;
	Vote mine = {.step = host->run.step,
	             .shard = h->bad,
	             .signal = __atomic_load_n(&host->signal, __ATOMIC_SEQ_CST),
	             .fault = h->fault};
	size_t *at = rt_alloc(sizeof *at * (size_t)(host->ranks + 1));
	uint8_t *all = NULL;
	bool good = true;

	host->comm->gather(host, &mine, sizeof mine, &all, at);
	for (int r = 0; r < host->ranks && good; r++) {
		Vote v;

		memcpy(&v, all + at[r], sizeof v);
		if (v.step != mine.step)
			good = rt_fail(&host->error, "rank %d is in step %lld, rank %d in step %lld", r,
			               (long long)v.step, host->rank, (long long)mine.step);
		if (v.signal > host->stop)
			host->stop = (int)v.signal;
		if (v.shard < 0 || *fault)
			continue;
		*fault = host->agreed = true; /* ranks have their shards in order */
		memcpy(host->run.arena, &v.fault, sizeof v.fault);
		host->run.first = v.shard * host->run.batch;
	}
	if (host->stop)
		__atomic_store_n(&host->run.stop_at, 0, __ATOMIC_SEQ_CST);
	host->sums.joined = host->run.step;
	free(all);
	free(at);
	return good;
}

/* What all say to all: a fault of the first process that has one is everybody's then, before anything is stored, and a
 * wish to stop. Beside the steps it goes behind the buckets that are on their way. */
static bool
put_votes(Chain *h, bool beside)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	CuPtr mail = s->marks_at + 8, own = s->votes + (CuPtr)(c->h->rank * VOTE_BYTES);
	long long words = FAULT_WORDS, ranks = c->h->ranks;
	bool good = put_kernel(h, s->vote, 1, (void *[]){&c->arena, &own, &mail, &words}, "loop_vote") &&
	            (!beside || cuda_shards_fork(h)) && cuda_shards_mark(h) && put_move(h, say_votes(c, 0)) &&
	            cuda_shards_mark(h) && (!beside || cuda_shards_join(h));

	h->beside = false;
	return good &&
	       put_kernel(h, s->heed, 1, (void *[]){&c->arena, &s->votes, &ranks, &words, &s->agreed}, "loop_heed");
}

/* Behind the last shard: what all say, then the buckets that are left. Where buckets go beside the steps
 * cuda_shards_wait waits for them. */
static bool
put_rest(Chain *h)
{
	CudaShards *s = &h->c->shards;
	RtSums *sums = &h->c->h->sums;
	bool fault = false, good = true, beside = h->capture && s->beside;

	if (h->capture)
		good = put_votes(h, beside);
	else if (!vote_now(h, &fault) || fault)
		return fault;
	h->beside = beside;
	good = good && cuda_shards_mark(h);
	while (good && s->started < sums->nbucket)
		good = put_bucket(h);
	good = good && cuda_shards_mark(h);
	h->beside = false;
	s->waited = beside ? 0 : sums->nbucket;
	return good;
}

/* Before a row of graph update the buckets that are read from there on; behind its last one, all. */
bool
cuda_shards_wait(Chain *h, int row)
{
	Cuda *c = h->c;
	CudaShards *s = &c->shards;
	RtSums *sums = &c->h->sums;
	int last = -1;

	if (!h->capture || !s->beside)
		return true;
	if (row == c->h->program.graph[RT_G_UPDATE].nrow)
		return cuda_shards_join(h);
	for (int b = 0; b < sums->nbucket; b++)
		if (sums->bucket[b].wait == row)
			last = b;
	if (last < s->waited)
		return true;
	s->waited = last + 1; /* they go one after the other */
	return CUDA(c, cuStreamWaitEvent, c->stream, s->arrived[last], 0);
}

bool
cuda_shards_earlier(Chain *h)
{
	Cuda *c = h->c;
	bool good = true;

	for (int64_t k = c->h->sums.lo; k + 1 < c->h->sums.hi && good; k++)
		good = put_merge(h, k, c->arena + (CuPtr)c->h->sums.begin);
	return good;
}

bool
cuda_shards_exchange(Chain *h)
{
	bucket_begin(h);
	return put_rest(h) && cuda_shards_wait(h, h->c->h->program.graph[RT_G_UPDATE].nrow) && cuda_cut_spread(h);
}

/* What the shards of each process brought to joins, to all. */
static bool
put_brought(Chain *h)
{
	Cuda *c = h->c;
	RtHost *host = c->h;
	RtSums *s = &host->sums;
	int n = 0;

	if (!cuda_exchanges(c))
		return true;
	for (int r = 0; r < host->ranks; r++) {
		if (r == host->rank)
			continue;
		s->msg[n++] = (RtMsg){r, true, device_bytes(value_of(c, s->lo)),
		                      (size_t)((s->hi - s->lo) * host->joins.room)};
		s->msg[n++] = (RtMsg){r, false, device_bytes(value_of(c, s->rank[r].lo)),
		                      (size_t)((s->rank[r].hi - s->rank[r].lo) * host->joins.room)};
	}
	return cuda_shards_mark(h) && put_move(h, n) && cuda_shards_mark(h);
}

/* ---- one after the other */

/* What the joins need, of every shard; and joined. */
static bool
early_add(Chain *h)
{
	Cuda *c = h->c;
	const RtGraph *g = shards_graph(c);
	bool good = true;

	for (int64_t k = c->h->sums.lo; k < c->h->sums.hi && good; k++) {
		h->micro = k;
		h->batch = true;
		good = cuda_chain_begin(h, RT_G_TRAIN);
		for (int r = 0; r < g->nrow && good; r++)
			if (g->row[r].join >= 0) /* what it takes stands here, and need not any more behind it */
				good = put_values(h, false, value_of(c, k), g->row[r].join, g->row[r].join + 1);
			else if (g->row[r].early && !g->row[r].check)
				good = cuda_chain_row(h, g, r);
	}
	return good && put_brought(h) && put_tree(h, 0, g->njoin);
}

static bool
turns_add(Chain *h)
{
	Cuda *c = h->c;
	const RtGraph *g = shards_graph(c);
	CuPtr states = c->arena + (CuPtr)c->h->sums.begin;
	bool good = !g->njoin || early_add(h), fault = false;

	for (int64_t k = c->h->sums.lo; k < c->h->sums.hi && good && !fault; k++) {
		bool last = k + 1 == c->h->sums.hi && cuda_exchanges(c);

		h->micro = k;
		h->batch = true;
		if (last)
			bucket_begin(h);
		good = cuda_chain_begin(h, RT_G_TRAIN);
		for (int r = 0; r < g->nrow && good; r++)
			good = (g->row[r].join >= 0 ? put_values(h, true, c->shards.root, g->row[r].join,
			                                         g->row[r].join + 1)
			                            : cuda_chain_row(h, g, r)) &&
			       (!last || put_complete(h, r));
		good = good && shard_fault(h, k, &fault) && (fault || last || put_merge(h, k, states));
	}
	return good && (fault || !cuda_exchanges(c) || put_rest(h));
}

/* ---- in step */

static bool
put_copy(Chain *h, CuPtr to, CuPtr from, long long bytes)
{
	return put_kernel(h, h->c->shards.copy, bytes / 16 + 2, (void *[]){&to, &from, &bytes}, "loop_copy");
}

/* What graph train may read: no slots, but single numbers, which the loss scale is; not another process's, behind which
 * there may be no memory. */
static bool
shard_reads(const Cuda *c, const RtState *s)
{
	int64_t at = s->t.offset, n;

	return s->kind != RT_GRAD && s->kind != RT_CARRY && (s->kind != RT_SLOT || s->t.count == 1) &&
	       rt_cuts_own(c->h, &at, at + s->t.bytes, &n) && at == s->t.offset;
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
		bool reads = i < p->nstate && shard_reads(h->c, s);

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
	int64_t lo = c->h->sums.lo, hi = c->h->sums.hi;
	CuPtr arena = c->arena;
	bool good = true, fault = false;

	for (int64_t k = lo + 1; k < hi && good; k++)
		good = copy_states(h, k - lo);
	for (int a = 0; good && a <= g->njoin; a = a < g->njoin ? rt_joins_unit(g, a) : g->njoin + 1) {
		int end = a < g->njoin ? rt_joins_unit(g, a) : a;

		for (int64_t k = lo; k < hi && good && !fault; k++) {
			c->arena = arena + (CuPtr)(k - lo) * s->stride;
			good = part_add(h, k, a) && shard_fault(h, k, &fault) &&
			       (fault || end == a || put_values(h, false, value_of(c, k), a, end));
		}
		if (end > a && good && !fault) {
			c->arena = arena;
			good = put_brought(h) && put_tree(h, a, end);
			for (int64_t k = lo; k < hi && good; k++) {
				c->arena = arena + (CuPtr)(k - lo) * s->stride;
				good = put_values(h, true, s->root, a, end);
			}
		}
		c->arena = arena;
		if (fault)
			return good;
	}
	for (int64_t k = lo; k < hi && good; k++) {
		CuPtr own = arena + (CuPtr)(k - lo) * s->stride, begin = (CuPtr)c->h->sums.begin;
		long long words = FAULT_WORDS, micro = k;
		bool last = k + 1 == hi && cuda_exchanges(c);

		good = k == lo || put_kernel(h, s->fault, 1, (void *[]){&arena, &own, &words, &micro}, "loop_fault");
		if (good && last)
			bucket_begin(h);
		if (good && last && own != arena)
			good = put_sum(h, arena + begin, 0, own + begin, 0, c->h->sums.bytes);
		good = good && (last || put_merge(h, k, own + begin));
	}
	return good && (!cuda_exchanges(c) || put_rest(h));
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
	Chain chain = {.c = c, .time = time, .cx = cx, .bad = -1};

	c->top = (LoopHead){0};
	if (!cuda_here(c) || !cuda_put(c, c->base, &c->top, sizeof c->top) || !cuda_shards_add(&chain))
		return RT_ERROR;
	h->run.prepacked = CUDA_CURRENT;
	return rt_fault(&h->run) ? RT_FAULT : RT_OK;
}

bool
cuda_shards_merge(RtHost *h)
{
	Cuda *c = h->device;
	Chain chain = {.c = c, .bad = -1};

	if (!cuda_here(c))
		return false;
	if (!cuda_exchanges(c) || h->run.micro + 1 < h->sums.hi)
		return put_merge(&chain, h->run.micro, c->arena + (CuPtr)h->sums.begin);
	bucket_begin(&chain);
	return put_rest(&chain);
}

/* ---- memory */

void
cuda_shards_room(Cuda *c)
{
	bool trains = c->h->sums.npart > 0;

	c->shards.copies = trains && rt_joins_in_step(c->h) ? (int)(c->h->sums.hi - c->h->sums.lo) : 1;
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

/* Do blocks of one of the graph's kernels wait for each other? */
static bool
has_teams(const Cuda *c, const RtGraph *g)
{
	const RtCode *code = c->h->object->code;

	for (int k = 0; k < g->nrow; k++)
		if (code->team && g->row[k].fn >= 0 && code->team[g->row[k].fn] > 1)
			return true;
	return false;
}

/* Do buckets travel while the last shard runs? Not where a kernel's blocks wait for each other: they must find room at
 * one time, which a transfer that waits for other devices may hold. */
static bool
travels_beside(const Cuda *c)
{
	return c->h->sums.overlap && !rt_joins_in_step(c->h) && !has_teams(c, shards_graph(c)) &&
	       !has_teams(c, &c->h->program.graph[RT_G_UPDATE]);
}

static bool
beside_open(Cuda *c)
{
	CudaShards *s = &c->shards;
	int n = c->h->sums.nbucket;
	bool good = true;

	if (!travels_beside(c))
		return true;
	s->arrived = rt_alloc(sizeof *s->arrived * (size_t)n);
	for (int b = 0; b < n && good; b++)
		good = CUDA(c, cuEventCreate, &s->arrived[b], CU_NO_TIMING);
	return good && CUDA(c, cuStreamCreate, &s->beside, CU_NON_BLOCKING) &&
	       CUDA(c, cuEventCreate, &s->forked, CU_NO_TIMING) && CUDA(c, cuEventCreate, &s->joined, CU_NO_TIMING);
}

/* Room for what arrives, NCCL, and a first exchange, with which connections are made: none is in a capture. */
static bool
others_open(Cuda *c)
{
	CudaShards *s = &c->shards;
	RtHost *h = c->h;
	Chain chain = {.c = c, .bad = -1};
	int64_t votes = (int64_t)h->ranks * VOTE_BYTES;
	uint8_t *nothing = rt_alloc((size_t)votes);
	bool good = cuda_alloc(c, &s->in, h->sums.arrives, "the sums of other processes") &&
	            cuda_alloc(c, &s->votes, votes, "the votes of processes") &&
	            cuda_alloc(c, &s->agreed, 8, "a wish to stop") && cuda_put(c, s->votes, nothing, votes) &&
	            cuda_put(c, s->agreed, nothing, 8) &&
	            CUDA(c, cuMemHostAlloc, (void **)&s->marks, 64, CU_PORTABLE | CU_MAPPED) &&
	            CUDA(c, cuMemHostGetDevicePointer, &s->marks_at, s->marks, 0);

	free(nothing);
	if (!good || !beside_open(c) || !cuda_nccl_open(c))
		return false;
	memset(s->marks, 0, 64);
	h->mark = s->marks;
	c->h->device_bytes += (size_t)(h->sums.arrives + votes + 8);
	return cuda_cut_open(c) && put_move(&chain, say_votes(c, 0));
}

bool
cuda_shards_open(Cuda *c)
{
	CudaShards *s = &c->shards;
	const struct { CuFunction *to; const char *name;
	} kernel[] = {{&s->sum, "loop_sum"},   {&s->copy, "loop_copy"}, {&s->fault, "loop_fault"},
	              {&s->take, "loop_take"}, {&s->tree, "loop_tree"}, {&s->give, "loop_give"},
	              {&s->vote, "loop_vote"}, {&s->heed, "loop_heed"}, {&s->mark, "loop_mark"},
	              {&s->tell, "loop_told"}};

	if (c->h->sums.npart == 0)
		return true;
	for (int i = 0; i < RT_COUNT(kernel); i++)
		if (!CUDA(c, cuModuleGetFunction, kernel[i].to, c->module[0], kernel[i].name))
			return rt_context(&c->h->error, "kernel %s", kernel[i].name);
	return parts_open(c) && (!shards_graph(c)->njoin || joins_open(c)) && (!cuda_exchanges(c) || others_open(c));
}

void
cuda_shards_close(Cuda *c)
{
	CudaShards *s = &c->shards;
	CuPtr at[] = {s->part, s->join, s->value, s->root, s->in, s->votes, s->agreed};

	cuda_nccl_close(c);
	for (int b = 0; s->arrived && b < c->h->sums.nbucket; b++)
		if (s->arrived[b])
			c->cu.cuEventDestroy(s->arrived[b]);
	free(s->arrived);
	if (s->joined)
		c->cu.cuEventDestroy(s->joined);
	if (s->forked)
		c->cu.cuEventDestroy(s->forked);
	if (s->beside)
		c->cu.cuStreamDestroy(s->beside);
	if (s->marks)
		c->cu.cuMemFreeHost(s->marks);
	cuda_cut_close(c);
	for (int i = 0; i < RT_COUNT(at); i++)
		if (at[i])
			c->cu.cuMemFree(at[i]);
	for (int i = 0; i < RT_MAX_NODES; i++)
		if (s->room[i])
			c->cu.cuMemFree(s->room[i]);
}
