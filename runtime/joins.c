/* joins.c: what the shards of a batch exchange before their step is over.
 *
 * In: graph train with joins (train.batch_stats = batch, labels that are ignored): values of which all shards' together
 * are wanted, along the tree of exchange.c, by `+` or by the means' own combination. Each process tells all
 * others its pieces, a few KB, with a fault if there is one: nobody waits for a rank that has stopped.
 * Two ways. Joins that depend on the data alone are early: rt_count gathers every shard's batch, runs the kernels that
 * they need, and joins; then shards run one after the other as ever. Else shards run in step (rt_joined): from one join
 * to the next the kernels of every shard, whose gradients and values lie a stride apart; loops that are compiled call
 * this too. The bits depend on neither, nor on who has which shards. */
#include "comm.h"

#include <stdlib.h>
#include <string.h>

/* What goes before a piece. shard: of its rank's first fault, -1. */
typedef struct Head { int64_t step, shard, n; RtFault fault; int64_t pad; } Head;

static const RtGraph *
joins_graph(const RtHost *h)
{
	return &h->program.graph[RT_G_TRAIN];
}

bool
rt_joins_in_step(const RtHost *h)
{
	const RtGraph *g = joins_graph(h);

	return g->njoin && !g->early;
}

int64_t
rt_join_bytes(const RtJoin *j)
{
	return (j->count * rt_dtype[j->dtype].bytes * j->pairs + 63) & ~(int64_t)63;
}

/* Joins [a, b) that are exchanged together: all early ones; else neighbours of which none reads another. */
int
rt_joins_unit(const RtGraph *g, int a)
{
	int b = a + 1;

	if (g->early)
		return g->njoin;
	for (; b < g->njoin && g->join[b].kernel >= 0 && g->join[b].kernel == g->join[b - 1].kernel + 1; b++)
		for (int i = a; i < b; i++)
			for (int k = 0; k < g->join[i].pairs; k++)
				for (int q = 0; q < g->join[b].pairs; q++)
					if (g->join[i].out[k] == g->join[b].in[q])
						return b;
	return b;
}

/* ---- along the tree */

static void
join_moments(const RtJoin *j, double nl, uint8_t *left, double nr, const uint8_t *right)
{
	int size = rt_dtype[j->dtype].bytes;

	for (int64_t i = 0; i < j->count; i++) {
		double share = nr / (nl + nr), d, v;
		uint8_t *m = left + i * size, *s = left + (j->count + i) * size;

		d = rt_dtype_read(j->dtype, right + i * size) - rt_dtype_read(j->dtype, m);
		v = rt_dtype_read(j->dtype, s) * (1 - share) +
		    rt_dtype_read(j->dtype, right + (j->count + i) * size) * share;
		rt_dtype_write(j->dtype, m, rt_dtype_read(j->dtype, m) + d * share);
		rt_dtype_write(j->dtype, s, v + d * d * share * (1 - share));
	}
}

/* right is added to left. */
static void
unit_add(const RtGraph *g, int a, int b, double nl, uint8_t *left, double nr, const uint8_t *right)
{
	for (int i = a; i < b; i++) {
		const RtJoin *j = &g->join[i];

		if (j->moments)
			join_moments(j, nl, left, nr, right);
		else
			rt_sum(j->dtype, left, left, right, j->count);
		left += rt_join_bytes(j);
		right += rt_join_bytes(j);
	}
}

typedef struct Unit { RtHost *h; int a, b; bool pieces; Head mine; const Head *fault; } Unit;

/* Where node x stands already: this process's shards, or all ranks' pieces. */
static uint8_t *
unit_leaf(const Unit *u, RtNode x)
{
	const RtHost *h = u->h;
	const RtJoins *j = &h->joins;

	if (!u->pieces)
		return x.n == 1 ? j->value + (x.a - h->sums.lo) * j->room : NULL;
	for (int r = 0; r < h->ranks; r++)
		for (int i = 0; i < h->sums.rank[r].n; i++)
			if (h->sums.rank[r].node[i].a == x.a && h->sums.rank[r].node[i].n == x.n)
				return j->slot + (j->first[r] + i) * (j->room + (int64_t)sizeof(Head)) + sizeof(Head);
	return NULL;
}

/* T(x): in the place of its first leaf. */
static uint8_t *
unit_tree(const Unit *u, RtNode x)
{
	uint8_t *at = unit_leaf(u, x), *right;
	int64_t k = 1;

	if (at)
		return at;
	while (2 * k < x.n)
		k *= 2;
	at = unit_tree(u, (RtNode){x.a, k});
	right = unit_tree(u, (RtNode){x.a + k, x.n - k});
	unit_add(joins_graph(u->h), u->a, u->b, (double)k, at, (double)(x.n - k), right);
	return at;
}

static int64_t
unit_step(const RtHost *h)
{
	return h->joins.room + (int64_t)sizeof(Head);
}

int64_t
rt_joins_said(const RtHost *h, int rank)
{
	return h->joins.slot ? h->sums.rank[rank].n * unit_step(h) : 0;
}

/* `bytes` of this rank's pieces to all, theirs to this one, by messages. On the exchange thread. */
typedef struct Pieces { int64_t bytes; } Pieces;

static void
unit_messages(RtHost *h, void *cx)
{
	const Pieces *p = cx;
	RtJoins *j = &h->joins;
	int64_t step = unit_step(h), bytes = p->bytes;
	int n = 0;
	RtMsg *m = rt_alloc(sizeof *m * (size_t)(2 * j->slots * h->ranks));

	for (int r = 0; r < h->ranks; r++) {
		for (int i = 0; r != h->rank && i < h->sums.rank[h->rank].n; i++)
			m[n++] = (RtMsg){r, true, j->slot + (j->first[h->rank] + i) * step,
			                 sizeof(Head) + (size_t)bytes};
		for (int i = 0; r != h->rank && i < h->sums.rank[r].n; i++)
			m[n++] = (RtMsg){r, false, j->slot + (j->first[r] + i) * step, sizeof(Head) + (size_t)bytes};
	}
	h->comm->move(h, m, n);
	free(m);
}

/* The same, on a machine where ranks see each other's. */
static void
unit_say(RtHost *h)
{
	RtJoins *j = &h->joins;
	int64_t *at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));

	for (int r = 0; r < h->ranks; r++)
		at[r + 1] = at[r] + h->sums.rank[r].n * unit_step(h);
	rt_window_say(h, j->slot, at);
	free(at);
}

/* This rank's pieces to all, theirs to this one. */
static void
unit_exchange(Unit *u)
{
	RtHost *h = u->h;
	RtJoins *j = &h->joins;
	int64_t step = unit_step(h);
	Pieces p = {0};

	for (int i = u->a; i < u->b; i++)
		p.bytes += rt_join_bytes(&joins_graph(h)->join[i]);
	for (int i = 0; i < h->sums.rank[h->rank].n; i++) {
		uint8_t *at = j->slot + (j->first[h->rank] + i) * step;

		memcpy(at, &u->mine, sizeof u->mine);
		if (u->mine.shard < 0)
			memcpy(at + sizeof(Head), unit_tree(u, h->sums.rank[h->rank].node[i]), (size_t)p.bytes);
	}
	if (h->sums.window)
		unit_say(h);
	else
		h->comm->run(h, unit_messages, &p);
	u->pieces = true;
	for (int r = 0; r < h->ranks && !u->fault; r++) {        /* ranks have their shards in order */
		const Head *his = (const Head *)(const void *)(j->slot + j->first[r] * step);

		u->fault = his->shard >= 0 || his->step != u->mine.step ? his : NULL;
	}
}

/* Joins [a, b): the values of this process's shards become joined ones at j->root. shard: of the first fault, -1. */
static int64_t
unit_join(RtHost *h, int a, int b, int64_t shard)
{
	RtJoins *j = &h->joins;
	Unit u = {.h = h, .a = a, .b = b, .mine = {.step = h->run.step, .shard = shard, .n = h->run.n}};
	double begin = rt_now();

	if (shard >= 0 && h->ranks == 1)
		return RT_FAULT;
	if (h->ranks > 1 && !h->opt.no_exchange) {
		if (shard >= 0)
			memcpy(&u.mine.fault, h->run.arena + h->program.fault_offset, sizeof u.mine.fault);
		unit_exchange(&u);
		h->sums.busy += rt_now() - begin;        /* nothing hides it */
		h->sums.exposed += rt_now() - begin;
	} else if (shard >= 0) {
		return RT_FAULT;
	}
	if (u.fault && u.fault->shard < 0)
		return rt_fail(&h->error, "the ranks are in steps %lld and %lld", (long long)u.fault->step,
		               (long long)h->run.step),
		       RT_ERROR;
	if (u.fault) {
		memcpy(h->run.arena + h->program.fault_offset, &u.fault->fault, sizeof u.fault->fault);
		h->run.first = u.fault->shard * h->run.batch;
		h->run.n = u.fault->n;
		h->sums.joined = h->run.step;            /* all know of it */
		h->agreed = true;
		return RT_FAULT;
	}
	if (h->ranks > 1 && h->opt.no_exchange)      /* a measurement: whatever stands there */
		memcpy(j->root, j->value, (size_t)j->room);
	else
		memcpy(j->root, unit_tree(&u, (RtNode){0, h->sums.shards}), (size_t)j->room);
	return RT_OK;
}

/* ---- values of a shard */

/* Of shard j of this process: where offset stands, from the offset. */
static int64_t
shift(const RtHost *h, int64_t j, int64_t offset)
{
	const RtSums *s = &h->sums;
	bool own = offset >= h->joins.work || (offset >= s->begin && offset < s->begin + s->bytes);

	return h->joins.copies > 1 && own ? j * (int64_t)h->joins.stride : 0;
}

/* Join i of the unit that begins with join a: what shard j brings, or (give) what is joined to its place. */
static void
value_move(RtHost *h, int64_t j, int a, int i, bool give)
{
	uint8_t *at = give ? h->joins.root : h->joins.value + j * h->joins.room;
	const RtJoin *x = &joins_graph(h)->join[i];
	size_t n = (size_t)(x->count * rt_dtype[x->dtype].bytes);

	for (; a < i; a++)
		at += rt_join_bytes(&joins_graph(h)->join[a]);
	for (int k = 0; k < x->pairs; k++) {
		int64_t offset = give ? x->out[k] : x->in[k];
		uint8_t *place = h->run.arena + offset + shift(h, j, offset);

		if (give)
			memcpy(place, at + (size_t)k * n, n);
		else
			memcpy(at + (size_t)k * n, place, n);
	}
}

static void
values_move(RtHost *h, int64_t j, int a, int b, bool give)
{
	for (int i = a; i < b; i++)
		value_move(h, j, a, i, give);
}

static void
put_scalars(RtHost *h, int64_t j)
{
	const RtGraph *g = joins_graph(h);
	RtRun *run = &h->run;
	const struct { int64_t at; const void *from;
	} put[] = {{g->seed, &run->seed}, {g->step, &run->step}, {g->rate, &run->rate}, {g->first, &run->first}};

	for (int i = 0; i < RT_COUNT(put); i++)
		if (put[i].at >= 0)
			memcpy(run->arena + put[i].at + shift(h, j, put[i].at), put[i].from, 8);
}

/* ---- shards in step */

/* Rows [from, to) of graph train for shard j of this process. */
static int64_t
part_rows(RtHost *h, int64_t j, int from, int to, RtTimeFn *time, void *cx)
{
	const RtGraph *g = joins_graph(h);
	RtRun *run = &h->run;
	int64_t away = h->joins.copies > 1 ? j * (int64_t)h->joins.stride : 0;

	for (int k = from; k < to; k++) {
		const RtRow *r = &g->row[k];
		double begin = time ? rt_now() : 0;

		rt_row_run(h, r, h->joins.off[j * g->nrow + k]);
		if (time) {                      /* who looks at values finds those of this shard */
			run->arena += away;
			time(cx, g, k, begin, rt_now());
			run->arena -= away;
		}
		if (r->check && rt_fault(run))
			return RT_FAULT;
		/* every rank has one shard: all start a bucket behind the same join */
		for (int b = 0; h->ranks > 1 && h->ranks == h->sums.shards && b < h->program.nbucket; b++)
			if (h->program.bucket[b].kernel == k)
				rt_start(run, b);
	}
	return RT_OK;
}

/* The part up to join a; of all joins, up to the end. */
static int64_t
part_run(RtHost *h, int64_t j, int a, RtTimeFn *time, void *cx)
{
	const RtGraph *g = joins_graph(h);
	RtRun *run = &h->run;

	run->micro = h->sums.lo + j;
	if (a == 0)
		rt_batch(run, h->joins.input[j], h->program.ninput);
	run->first = run->micro * run->batch;
	if (a == 0)
		put_scalars(h, j);
	if (h->object->call) {
		run->part = a;
		return h->object->call(run, g->name) != RT_OK || rt_fault(run) ? RT_FAULT : RT_OK;
	}
	return part_rows(h, j, a ? g->join[a - 1].kernel + 1 : 0, a < g->njoin ? g->join[a].kernel : g->nrow, time,
	                 cx);
}

int64_t
rt_joined_step(RtHost *h, RtTimeFn *time, void *cx)
{
	const RtGraph *g = joins_graph(h);
	RtRun *run = &h->run;
	int64_t mine = h->sums.hi - h->sums.lo, status = RT_OK;

	run->prepacked = 0;
	for (int a = 0;;) {
		bool last = a == g->njoin;
		int64_t bad = -1;

		for (int64_t j = 0; j < mine && bad < 0; j++) {
			if ((status = part_run(h, j, a, time, cx)) != RT_OK && last)
				return status;           /* micro stays that of the shard */
			bad = status != RT_OK ? h->sums.lo + j : -1;
			if (!last && bad < 0)
				values_move(h, j, a, rt_joins_unit(g, a), false);
			if (!last)
				continue;
			if (shift(h, j, h->sums.begin))
				memcpy(run->arena + h->sums.begin,
				       run->arena + h->sums.begin + shift(h, j, h->sums.begin),
				       (size_t)h->sums.bytes);
			if ((status = rt_merge(run)) != RT_OK)
				return status;
		}
		if (last)
			break;
		if ((status = unit_join(h, a, rt_joins_unit(g, a), bad)) != RT_OK)
			return status;
		for (int64_t j = 0; j < mine; j++)
			values_move(h, j, a, rt_joins_unit(g, a), true);
		a = rt_joins_unit(g, a);
	}
	run->micro = h->program.shards - 1;
	return RT_OK;
}

int64_t
rt_joined(RtRun *run)
{
	return rt_joined_step(rt_host(run), NULL, NULL);
}

/* ---- early joins */

/* Where input k of shard j of this process is kept. */
static uint8_t *
kept_input(const RtHost *h, int64_t j, int64_t k)
{
	uint8_t *at = h->joins.data + j * h->joins.data_bytes;

	for (int64_t i = 0; i < k; i++)
		at += (h->program.input[i].t.bytes + 63) & ~(int64_t)63;
	return at;
}

static void
inputs_move(RtHost *h, int64_t j, const int64_t *offset, int64_t n, bool keep)
{
	for (int64_t k = 0; k < n; k++) {
		uint8_t *kept = kept_input(h, j, k), *at = h->run.arena + offset[k];

		if (offset[k] >= 0)
			memcpy(keep ? kept : at, keep ? at : kept, (size_t)h->program.input[k].t.bytes);
	}
}

bool
rt_joins_batch(RtHost *h, const int64_t *input_offset, int64_t ninput)
{
	RtRun *run = &h->run;

	if (h->mode == RT_M_EVAL || h->joins.counted != run->step || !h->joins.data)
		return false;
	inputs_move(h, run->micro - h->sums.lo, input_offset, ninput, false);
	run->first = run->micro * run->batch;
	run->n = run->batch;
	return true;
}

int64_t
rt_count(RtRun *run)
{
	RtHost *h = rt_host(run);
	const RtGraph *g = joins_graph(h);
	int64_t status;

	h->joins.counted = -1;
	for (run->micro = h->sums.lo; run->micro < h->sums.hi; run->micro++) {
		rt_batch(run, g->input, h->program.ninput);
		inputs_move(h, run->micro - h->sums.lo, g->input, h->program.ninput, true);
		put_scalars(h, 0);
		for (int k = 0; k < g->nrow; k++) {
			const RtRow *r = &g->row[k];

			if (r->join >= 0)        /* what it takes stands here, and need not any more behind it */
				value_move(h, run->micro - h->sums.lo, 0, r->join, false);
			else if (r->early && !r->check)
				rt_row_run(h, r, r->off);
		}
	}
	run->micro = h->sums.lo;
	run->prepacked = 0;
	if ((status = unit_join(h, 0, g->njoin, -1)) == RT_OK)
		h->joins.counted = run->step;
	return status;
}

void
rt_give(RtRun *run, int64_t join)
{
	value_move(rt_host(run), 0, 0, (int)join, true);
}

/* ---- memory */

size_t
rt_joins_room(RtHost *h)
{
	const RtProgram *p = &h->program;
	RtJoins *j = &h->joins;
	size_t one = ((size_t)p->arena_bytes + 64 + 4095) & ~(size_t)4095;

	j->copies = 1;
	if (!rt_joins_in_step(h) || h->object->call || h->object->device)
		return (size_t)p->arena_bytes + 64;
	j->copies = (int)(p->shards * (h->rank + 1) / h->ranks - p->shards * h->rank / h->ranks);
	j->stride = one;
	return one * (size_t)j->copies;
}

static void
joins_offsets(RtHost *h)
{
	const RtGraph *g = joins_graph(h);
	RtJoins *j = &h->joins;
	int64_t mine = h->sums.hi - h->sums.lo;

	for (int k = 0; k < h->program.nstate; k++) {
		const RtState *s = &h->program.state[k];

		if (s->kind != RT_CARRY && s->t.offset + s->t.bytes > j->work)
			j->work = s->t.offset + s->t.bytes;
	}
	j->off = rt_alloc(sizeof *j->off * (size_t)(mine * g->nrow));
	j->input = rt_alloc(sizeof *j->input * (size_t)mine);
	for (int64_t m = 0; m < mine; m++) {
		for (int k = 0; k < h->program.ninput; k++)
			j->input[m][k] = g->input[k] < 0 ? -1 : g->input[k] + shift(h, m, g->input[k]);
		for (int k = 0; k < g->nrow; k++) {
			int64_t *off = rt_alloc(sizeof *off * (size_t)g->row[k].noff);

			for (int i = 0; i < g->row[k].noff; i++)
				off[i] = g->row[k].off[i] + shift(h, m, g->row[k].off[i]);
			j->off[m * g->nrow + k] = off;
		}
	}
}

bool
rt_joins_open(RtHost *h)
{
	const RtGraph *g = joins_graph(h);
	RtJoins *j = &h->joins;
	int64_t mine = h->sums.hi - h->sums.lo, bytes;

	j->counted = -1;
	if (!g->njoin)
		return true;
	for (int a = 0; a < g->njoin; a = rt_joins_unit(g, a)) {
		bytes = 0;
		for (int i = a; i < rt_joins_unit(g, a); i++)
			bytes += rt_join_bytes(&g->join[i]);
		j->room = bytes > j->room ? bytes : j->room;
	}
	if (h->object->device)                    /* it joins by itself */
		return true;
	j->first = rt_alloc(sizeof *j->first * (size_t)h->ranks);
	for (int r = 0; r < h->ranks && h->ranks > 1; r++) {
		j->first[r] = j->slots;
		j->slots += h->sums.rank[r].n;
	}
	j->value = rt_large((size_t)(j->room * mine));
	j->root = rt_large((size_t)j->room);
	j->slot = rt_large((size_t)((j->room + (int64_t)sizeof(Head)) * j->slots + 1));
	for (int k = 0; k < h->program.ninput && g->early; k++)
		j->data_bytes += (h->program.input[k].t.bytes + 63) & ~(int64_t)63;
	j->data = g->early ? rt_large((size_t)(j->data_bytes * mine + 1)) : NULL;
	j->bytes = j->room * (mine + 1) + (j->room + (int64_t)sizeof(Head)) * j->slots + j->data_bytes * mine;
	if (!j->value || !j->root || !j->slot || (g->early && !j->data))
		return rt_fail(&h->error, "out of memory for what %lld shards exchange", (long long)h->program.shards);
	joins_offsets(h);
	return true;
}
