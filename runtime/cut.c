/* cut.c: updates that ranks share (build --shard-optimizer): each makes a part of them, and has the slots of that part.
 *
 * In: rows of graph update with a cut, from the descriptor: a kernel that goes through a parameter's elements as they
 * lie in memory, some to a task; the buckets of gradients.   Out: for each row the tasks of each rank. The gradients of
 * a bucket are cut into as many equal runs of bytes as there are ranks, at the nearest task, so that a rank's part of a
 * bucket is one range: exchange.c adds up that range on its rank, and gives the sums to nobody else unless another
 * kernel reads them. Behind the update parameters go from each rank to all. Kernels give the same bits whoever runs
 * which tasks, so the option enters no result.
 * Slots of others are never written, and the arena has no memory behind pages that nobody wrote. Before a checkpoint
 * rank 0 collects them, and gives their memory back behind the next update. */
#define _GNU_SOURCE
#include "comm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CUT_MESSAGE = 64 << 20 }; /* bytes of a message at most */

/* at, bytes: of the gradient in the arena; task: bytes of one */
typedef struct CutRow { RtRow *row; int64_t at, bytes, tasks, task; } CutRow;

static int
cut_order(const void *a, const void *b)
{
	const CutRow *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

static bool
cut_good(const RtHost *h, const RtRow *r)
{
	const RtProgram *p = &h->program;
	const RtCut *c = r->cut;
	bool good = c->each > 0 && (c->size != NULL) == (h->image->device != NULL);

	good = good && c->grad >= 0 && c->grad < p->nstate && p->state[c->grad].kind == RT_GRAD && !r->mul;

	for (int i = 0; good && i < c->nstate; i++)
		good = c->state[i] >= 0 && c->state[i] < p->nstate &&
		       p->state[c->state[i]].t.count == p->state[c->grad].t.count;
	return good && c->each * rt_row_tasks(r, p->batch) >= p->state[c->grad].t.count;
}

/* The rows with a cut, by the places of their gradients. */
static bool
cut_rows(RtHost *h, CutRow *row)
{
	const RtProgram *p = &h->program;
	const RtGraph *g = &p->graph[RT_G_UPDATE];

	for (int k = 0; k < g->nrow; k++) {
		RtRow *r = &g->row[k];

		if (!r->cut)
			continue;
		if (!cut_good(h, r))
			return rt_fail(&h->error, "the program's descriptor: kernel %s: a bad cut", r->name);
		const RtTensor *t = &p->state[r->cut->grad].t;

		row[h->cuts.n++] = (CutRow){.row = r,
		                            .at = t->offset,
		                            .bytes = t->bytes,
		                            .tasks = rt_row_tasks(r, p->batch),
		                            .task = r->cut->each * rt_dtype[t->dtype].bytes};
	}
	qsort(row, (size_t)h->cuts.n, sizeof *row, cut_order);
	return true;
}

/* Rows [a, b) have their gradients in the bucket: edges of their tasks, and of the bucket's bytes. */
static void
cut_bucket(RtHost *h, CutRow *row, int a, int b, const RtBucket *bucket, int64_t *edge)
{
	int64_t all = 0;

	for (int i = a; i < b; i++)
		all += row[i].bytes;
	for (int q = 0; q <= h->ranks; q++) {
		int64_t before = 0, want = all / h->ranks * q;

		edge[q] = bucket->offset - h->sums.begin;
		for (int i = a; i < b; i++) {
			CutRow *r = &row[i];
			int64_t t = q == h->ranks ? r->tasks : (want - before + r->task / 2) / r->task;

			t = want <= before && q < h->ranks ? 0 : t > r->tasks ? r->tasks : t;
			r->row->cut->edge[q] = t;
			if (t == r->tasks)
				edge[q] = r->at + ((r->bytes + 63) & ~(int64_t)63) - h->sums.begin;
			else if (t)
				edge[q] = r->at + t * r->task - h->sums.begin;
			before += r->bytes;
		}
	}
	edge[0] = bucket->offset - h->sums.begin;
	edge[h->ranks] = edge[0] + bucket->bytes;
}

/* ---- what goes round */

typedef struct Move { int rank; int64_t at, n; } Move;

static int
place_order(const void *a, const void *b)
{
	const RtOther *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

static int
move_order(const void *a, const void *b)
{
	const Move *x = a, *y = b;

	return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : x->at < y->at ? -1 : x->at > y->at;
}

/* Where state k's elements of rank r lie that row's tasks write. */
static Move
cut_place(const RtHost *h, const RtRow *row, int k, int r)
{
	const RtTensor *t = &h->program.state[k].t;
	int64_t size = rt_dtype[t->dtype].bytes, from = row->cut->edge[r] * row->cut->each,
	        to = row->cut->edge[r + 1] * row->cut->each;

	from = from < t->count ? from : t->count;
	to = to < t->count ? to : t->count;
	return (Move){r, t->offset + from * size, (to - from) * size};
}

/* The places of slots (or of what else updates store) of all ranks, those together that lie together. */
static int
cut_moves(const RtHost *h, const CutRow *row, bool slots, Move **out)
{
	int n = 0, kept = 0, room = 0;
	Move *m;

	for (int i = 0; i < h->cuts.n; i++)
		room += row[i].row->cut->nstate * h->ranks;
	m = rt_alloc(sizeof *m * (size_t)(room + 1));
	for (int i = 0; i < h->cuts.n; i++)
		for (int k = 0; k < row[i].row->cut->nstate; k++)
			for (int r = 0; r < h->ranks; r++)
				if ((h->program.state[row[i].row->cut->state[k]].kind == RT_SLOT) == slots) {
					m[n] = cut_place(h, row[i].row, row[i].row->cut->state[k], r);
					n += m[n].n > 0;
				}
	qsort(m, (size_t)n, sizeof *m, move_order);
	for (int i = 0; i < n; i++) {
		Move *last = kept ? &m[kept - 1] : NULL;

		if (last && last->rank == m[i].rank && ((last->at + last->n + 63) & ~(int64_t)63) == m[i].at)
			last->n = m[i].at + m[i].n - last->at; /* bytes between two states are nobody's */
		else
			m[kept++] = m[i];
	}
	*out = m;
	return kept;
}

/* Move m as messages from its rank to one other (to < 0: to all others), as this process sees them. */
static void
cut_messages(RtHost *h, const Move *m, int to, RtMsg *list, int *n)
{
	bool mine = m->rank == h->rank, hears = !mine && (to < 0 || to == h->rank);

	for (int64_t at = 0; h->run.arena && at < m->n; at += CUT_MESSAGE)
		for (int r = 0; r < h->ranks; r++) {
			if ((!mine || r == h->rank || (to >= 0 && r != to)) && !(hears && r == m->rank))
				continue;
			list[(*n)++] = (RtMsg){r, mine, h->run.arena + m->at + at,
			                          (size_t)(m->n - at < CUT_MESSAGE ? m->n - at : CUT_MESSAGE)};
		}
}

static RtMsg *
cut_room(const RtHost *h, const Move *m, int n)
{
	int64_t room = 1;

	for (int i = 0; i < n; i++)
		room += (m[i].n + CUT_MESSAGE - 1) / CUT_MESSAGE * h->ranks;
	return rt_alloc(sizeof(RtMsg) * (size_t)room);
}

/* The slots of all other ranks, by place; what lies between two states is theirs. */
static void
cut_others(RtHost *h, const Move *m, int n)
{
	RtCuts *c = &h->cuts;
	int kept = 0;

	c->other = rt_alloc(sizeof *c->other * (size_t)(n + 1));
	for (int i = 0; i < n; i++)
		if (m[i].rank != h->rank)
			c->other[c->nother++] = (RtOther){m[i].at, m[i].n};
	qsort(c->other, (size_t)c->nother, sizeof *c->other, place_order);
	for (int i = 0; i < c->nother; i++) {
		RtOther *last = kept ? &c->other[kept - 1] : NULL;

		if (last && ((last->at + last->n + 63) & ~(int64_t)63) == c->other[i].at)
			last->n = c->other[i].at + c->other[i].n - last->at;
		else
			c->other[kept++] = c->other[i];
	}
	c->nother = kept;
}

static void
cut_lists(RtHost *h, const CutRow *row)
{
	RtCuts *c = &h->cuts;
	Move *m;
	int n = cut_moves(h, row, false, &m);

	c->spread = cut_room(h, m, n);
	for (int i = 0; i < n; i++) {
		cut_messages(h, &m[i], -1, c->spread, &c->nspread);
		c->moved += m[i].n;
	}
	free(m);
	n = cut_moves(h, row, true, &m);
	c->collect = cut_room(h, m, n);
	c->begin = n ? INT64_MAX : 0;
	for (int i = 0; i < n; i++) {
		cut_messages(h, &m[i], 0, c->collect, &c->ncollect);
		c->spared += m[i].rank == h->rank ? 0 : m[i].n;
		c->begin = m[i].at < c->begin ? m[i].at : c->begin;
		c->end = m[i].at + m[i].n > c->end ? m[i].at + m[i].n : c->end;
	}
	cut_others(h, m, n);
	free(m);
}

/* Small pages for the slots: one that is written shall not bring a neighbour's along. */
static void
cut_pages(RtHost *h)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from, to;

	if (!h->run.arena || h->cuts.end <= h->cuts.begin)
		return;
	from = ((uintptr_t)(h->run.arena + h->cuts.begin) + page - 1) / page * page;
	to = (uintptr_t)(h->run.arena + h->cuts.end) / page * page;
	if (to > from)
		madvise((void *)from, to - from, MADV_NOHUGEPAGE);
}

bool
rt_cuts_open(RtHost *h)
{
	RtSums *s = &h->sums;
	CutRow *row = rt_alloc(sizeof *row * (size_t)(h->program.graph[RT_G_UPDATE].nrow + 1));
	int at = 0;

	h->cuts = (RtCuts){.saves = h->cuts.saves, .named = h->cuts.named, .collected = -1};
	if (!cut_rows(h, row))
		return false;
	if (!h->cuts.n) {
		free(row);
		return true;
	}
	for (int i = 0; i < h->cuts.n; i++)
		row[i].row->cut->edge = rt_alloc(sizeof(int64_t) * (size_t)(h->ranks + 1));
	s->edge = rt_alloc(sizeof *s->edge * (size_t)(s->nbucket * (h->ranks + 1)));
	for (int b = 0; b < s->nbucket; b++) {
		int64_t *edge = s->edge + b * (h->ranks + 1), end = s->bucket[b].offset + s->bucket[b].bytes;
		int from = 0;

		while (from < h->cuts.n && row[from].at < s->bucket[b].offset)
			from++;
		for (at = from; at < h->cuts.n && row[at].at < end; at++)
			;
		edge[0] = -1;
		if (at > from)
			cut_bucket(h, row, from, at, &s->bucket[b], edge);
	}
	for (int i = 0; i < h->cuts.n; i++)
		for (int64_t k = 0; !row[i].row->cut->whole && k < s->npart; k++)
			s->part[k].owned |= s->part[k].at + s->begin >= row[i].at &&
			                    s->part[k].at + s->begin < row[i].at + row[i].bytes;
	cut_lists(h, row);
	cut_pages(h);
	free(row);
	return true;
}

bool
rt_cuts_cut(const RtHost *h)
{
	return h->cuts.n && h->ranks > 1;
}

int64_t
rt_cuts_part(const RtHost *h, const RtRow *r, int64_t *from, int64_t *to)
{
	const RtCut *c = r->cut;
	int64_t count = h->program.state[c->grad].t.count, first = c->edge[h->rank], end = c->edge[h->rank + 1];

	*from = first * c->each < count ? first * c->each : count;
	*to = end * c->each < count ? end * c->each : count;
	return end - first;
}

bool
rt_cuts_own(const RtHost *h, int64_t *at, int64_t end, int64_t *n)
{
	const RtCuts *c = &h->cuts;
	int64_t to = end;

	for (int i = 0; i < c->nother; i++) {
		if (c->other[i].at <= *at && *at < c->other[i].at + c->other[i].n)
			*at = c->other[i].at + c->other[i].n;
		else if (c->other[i].at > *at && c->other[i].at < to)
			to = c->other[i].at;
	}
	*n = to - *at;
	return *at < end;
}

/* ---- while it runs */

typedef struct Round { const RtMsg *m; int n; } Round;

static void
cut_move(RtHost *h, void *cx)
{
	const Round *r = cx;

	h->comm->move(h, r->m, r->n);
}

void
rt_cuts_over(RtHost *h)
{
	if (h->cuts.held)
		rt_cuts_release(h, -1);
	h->cuts.held = false;
}

void
rt_spread(RtRun *run)
{
	RtHost *h = rt_host(run);
	Round r = {h->cuts.spread, h->cuts.nspread};
	double begin = rt_now();

	if (!rt_cuts_cut(h) || h->opt.no_exchange)
		return;
	h->comm->run(h, cut_move, &r);
	h->sums.busy += rt_now() - begin;        /* nothing hides it */
	h->sums.exposed += rt_now() - begin;
	h->sums.moved += h->cuts.moved;
	rt_cuts_over(h);
}

bool
rt_cuts_collect(RtHost *h, int64_t step)
{
	Round r = {h->cuts.collect, h->cuts.ncollect};

	if (!rt_cuts_cut(h) || !h->cuts.saves || h->cuts.collected == step)
		return true;
	for (int i = 0; i < r.n; i++)            /* of a device: hosts tell each other */
		if (r.m[i].send && !rt_host_fetch(h, (uint8_t *)r.m[i].at - h->run.arena, (int64_t)r.m[i].n))
			return rt_context(&h->error, "cannot save");
	h->comm->run(h, cut_move, &r);
	h->cuts.collected = step;
	h->cuts.held = h->rank == 0;
	return true;
}

void
rt_cuts_release(RtHost *h, int state)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const RtGraph *g = &h->program.graph[RT_G_UPDATE];

	for (int k = 0; rt_cuts_cut(h) && k < g->nrow; k++)
		for (int i = 0; g->row[k].cut && i < g->row[k].cut->nstate; i++) {
			int s = g->row[k].cut->state[i];

			if ((state >= 0 && s != state) || h->program.state[s].kind != RT_SLOT)
				continue;
			for (int r = 0; r < h->ranks; r++) {
				Move m = cut_place(h, &g->row[k], s, r);
				uintptr_t from = ((uintptr_t)(h->run.arena + m.at) + page - 1) / page * page,
				          to = (uintptr_t)(h->run.arena + m.at + m.n) / page * page;

				if (r != h->rank && to > from)
					madvise((void *)from, to - from, MADV_DONTNEED);
			}
		}
}
