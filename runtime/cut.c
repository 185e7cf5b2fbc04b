/* cut.c: updates that ranks share (build --shard-optimizer): each makes a part of them, and has the slots of that part.
 *
 * In: rows of graph update with a cut, from the descriptor: a kernel that goes through a parameter's elements as they
 * lie in memory, some to a task; the buckets of gradients.   Out: for each row the tasks of each rank. The gradients of
 * a bucket are cut into as many equal runs of bytes as there are ranks, at the nearest task, so that a rank's part of a
 * bucket is one range: exchange.c adds up that range on its rank, and gives the sums to nobody else unless another
 * kernel reads them. Kernels that make numbers of a gradient (its norm) have tasks too, and edges near those of the
 * update: a rank has those of which it owns most, and is given the few sums that it lacks; then all tell each other
 * what their tasks have left (rt_tell), before it is joined. Behind the update parameters go from each rank to all.
 * Kernels give the same bits whoever runs which tasks, so the option enters no result.
 * What no step reads but the update that stores it (a parameter of which kernels read a copy in 16 bits, an average)
 * goes round only before somebody else reads it: an evaluation, a checkpoint.
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
	bool good = c->total || (c->each > 0 && (c->solo || (c->size != NULL) == (h->object->device != NULL)));

	good = good && c->grad >= 0 && c->grad < p->nstate && p->state[c->grad].kind == RT_GRAD && !r->mul;

	for (int i = 0; good && i < c->nstate; i++)
		good = c->state[i] >= 0 && c->state[i] < p->nstate &&
		       p->state[c->state[i]].t.count == p->state[c->grad].t.count;
	for (int i = 0; good && i < c->nleft; i++)
		good = c->left[i].at >= 0 && c->left[i].bytes > 0 &&
		       c->left[i].at + c->left[i].bytes * r->rows <= p->arena_bytes;
	if (c->total)
		return good && c->total == p->state[c->grad].t.count && r->rows > 0 && r->grain > 0 &&
		       (!c->each || c->each * r->rows >= c->total) && (!h->object->device || (c->each && r->noff > 3));
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
		if (r->cut->total) {
			h->cuts.norm[h->cuts.nnorm++] = r;
			continue;
		}
		if (r->cut->solo && !r->cut->nstate) {
			h->cuts.beside[h->cuts.nbeside++] = r;
			continue;
		}
		const RtTensor *t = &p->state[r->cut->grad].t;

		row[h->cuts.n++] = (CutRow){.row = r,
		                            .at = t->offset,
		                            .bytes = t->bytes,
		                            .tasks = r->cut->solo ? 1 : rt_row_tasks(r, p->batch),
		                            .task = r->cut->each * rt_dtype[t->dtype].bytes};
	}
	qsort(row, (size_t)h->cuts.n, sizeof *row, cut_order);
	return true;
}

/* ---- numbers of gradients */

/* The first row behind so many tasks, and the element with which it begins. */
static int64_t
norm_row(const RtRow *r, int64_t task)
{
	return task * r->grain < r->rows ? task * r->grain : r->rows;
}

static int64_t
norm_element(const RtRow *r, int64_t task)
{
	int64_t row = norm_row(r, task), total = r->cut->total;

	if (!r->cut->each)
		return total * row / r->rows;
	return row * r->cut->each < total ? row * r->cut->each : total;
}

/* Elements of a gradient up to an edge: where tasks that make numbers of it are nearest; as they are where none do. */
static int64_t
norm_near(const RtHost *h, int grad, int64_t elements)
{
	for (int i = 0; i < h->cuts.nnorm; i++) {
		const RtRow *r = h->cuts.norm[i];
		int64_t t = 0;

		if (r->cut->grad != grad)
			continue;
		while (norm_row(r, t) < r->rows && norm_element(r, t) + norm_element(r, t + 1) < 2 * elements)
			t++;
		return norm_element(r, t);
	}
	return elements;
}

/* Bytes of the range that the rank needs and others own. */
static void
norm_extra(RtHost *h, int rank, const RtTensor *t, int64_t from, int64_t to)
{
	RtSums *s = &h->sums;
	int64_t size = rt_dtype[t->dtype].bytes, at = t->offset - s->begin;
	RtExtra x = {rank, at + from * size, at + to * size};

	if (from >= to)
		return;
	for (int i = 0; i < s->nextra; i++)      /* for another number of the same gradient */
		if (s->extra[i].rank == rank && s->extra[i].from == x.from && s->extra[i].to == x.to)
			return;
	s->extra[s->nextra++] = x;
}

/* The tasks of each rank: those of which the middle lies in its part of the update; and the sums that it lacks. */
static void
norm_edges(RtHost *h, RtRow *r, const RtRow *update)
{
	const RtTensor *t = &h->program.state[r->cut->grad].t;
	int64_t tasks = rt_row_tasks(r, 0), k = 0;

	for (int q = 0; q <= h->ranks; q++) {
		int64_t end = update->cut->edge[q] * update->cut->each;

		while (k < tasks && (q == h->ranks || norm_element(r, k) + norm_element(r, k + 1) < 2 * end))
			k++;
		r->cut->edge[q] = k;
	}
	for (int q = 0; q < h->ranks; q++) {
		int64_t own = update->cut->edge[q] * update->cut->each,
		        end = update->cut->edge[q + 1] * update->cut->each,
		        from = norm_element(r, r->cut->edge[q]), to = norm_element(r, r->cut->edge[q + 1]);

		end = end < t->count ? end : t->count;
		norm_extra(h, q, t, from, to < own ? to : own);
		norm_extra(h, q, t, from > end ? from : end, to);
	}
}

/* What rank q's tasks of the row leave: rows [*from, *to). */
static void
norm_rows(const RtRow *r, int q, int64_t *from, int64_t *to)
{
	*from = norm_row(r, r->cut->edge[q]);
	*to = norm_row(r, r->cut->edge[q + 1]);
}

/* What each rank leaves, and where it goes. */
static void
norms_places(RtHost *h)
{
	RtCuts *c = &h->cuts;
	int64_t at = 0, from, to;
	int n = 0, room = 0;

	for (int i = 0; i < c->nnorm; i++)
		room += c->norm[i]->cut->nleft * h->ranks;
	c->place = rt_alloc(sizeof *c->place * (size_t)(room + 1));
	c->place_at = rt_alloc(sizeof *c->place_at * (size_t)(h->ranks + 1));
	c->told_at = rt_alloc(sizeof *c->told_at * (size_t)(h->ranks + 1));
	for (int q = 0; q <= h->ranks; q++) {
		c->told_at[q] = at;
		c->place_at[q] = n;
		for (int i = 0; i < c->nnorm && q < h->ranks; i++) {
			norm_rows(c->norm[i], q, &from, &to);
			for (int k = 0; k < c->norm[i]->cut->nleft && to > from; k++) {
				const RtLeft *l = &c->norm[i]->cut->left[k];

				c->place[n] = (RtTold){l->at + from * l->bytes, at, (to - from) * l->bytes};
				at += c->place[n++].n;
			}
		}
	}
}

/* Edges, and what goes round. False after rt_fail. */
static bool
norms_open(RtHost *h, const CutRow *row)
{
	RtCuts *c = &h->cuts;

	h->sums.extra = rt_alloc(sizeof *h->sums.extra * 2 * (size_t)(c->nnorm * h->ranks + 1));
	for (int i = 0; i < c->nnorm; i++) {
		const RtRow *update = NULL;

		for (int k = 0; k < c->n; k++)
			update = row[k].row->cut->grad == c->norm[i]->cut->grad ? row[k].row : update;
		if (!update)
			return rt_fail(&h->error,
			               "the program's descriptor: kernel %s: no update of its gradient is cut",
			               c->norm[i]->name);
		norm_edges(h, c->norm[i], update);
	}
	norms_places(h);
	c->told = rt_alloc((size_t)c->told_at[h->ranks] + 1);
	c->tell = rt_alloc(sizeof *c->tell * 2 * (size_t)h->ranks);
	for (int q = 0; q < h->ranks; q++) {
		if (q == h->rank)
			continue;
		c->tell[c->ntell++] = (RtMsg){q, true, c->told + c->told_at[h->rank],
		                              (size_t)(c->told_at[h->rank + 1] - c->told_at[h->rank])};
		c->tell[c->ntell++] =
		        (RtMsg){q, false, c->told + c->told_at[q], (size_t)(c->told_at[q + 1] - c->told_at[q])};
	}
	return true;
}

/* What rank q has left, from the arena or (give) to it. */
static void
norms_move(RtHost *h, int q, bool give)
{
	for (int i = h->cuts.place_at[q]; i < h->cuts.place_at[q + 1]; i++) {
		const RtTold *t = &h->cuts.place[i];
		uint8_t *place = h->run.arena + t->from, *at = h->cuts.told + t->at;

		memcpy(give ? place : at, give ? at : place, (size_t)t->n);
	}
}

/* The tasks of an update that come nearest to so many bytes of its gradient. */
static int64_t
cut_tasks(const RtHost *h, const CutRow *r, int64_t bytes)
{
	int64_t size = rt_dtype[h->program.state[r->row->cut->grad].t.dtype].bytes, t;

	if (bytes <= 0)
		return 0;
	bytes = bytes < r->bytes ? norm_near(h, r->row->cut->grad, bytes / size) * size : r->bytes;
	t = (bytes + r->task / 2) / r->task;
	return bytes >= r->bytes || t > r->tasks ? r->tasks : t;
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
			int64_t t = cut_tasks(h, r, q == h->ranks ? r->bytes : want - before);

			r->row->cut->edge[q] = r->row->cut->solo && t ? rt_row_tasks(r->row, h->program.batch) : t;
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

/* The other rows of one rank's updates are the same rank's. */
static bool
cut_beside(RtHost *h, const CutRow *row)
{
	for (int i = 0; i < h->cuts.nbeside; i++) {
		RtRow *r = h->cuts.beside[i];
		const RtRow *update = NULL;

		for (int k = 0; k < h->cuts.n; k++)
			update = row[k].row->cut->grad == r->cut->grad ? row[k].row : update;
		if (!update || !update->cut->solo)
			return rt_fail(&h->error,
			               "the program's descriptor: kernel %s: no update of its gradient is one rank's",
			               r->name);
		r->cut->edge = rt_alloc(sizeof(int64_t) * (size_t)(h->ranks + 1));
		for (int q = 0; q <= h->ranks; q++)
			r->cut->edge[q] = update->cut->edge[q] ? rt_row_tasks(r, h->program.batch) : 0;
	}
	return true;
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

/* Which of the states that an update stores: those that steps read, those that they do not, the slots. */
typedef enum Which { CUT_READ, CUT_LATE, CUT_SLOTS } Which;

static Which
cut_which(const RtHost *h, const RtCut *c, int i)
{
	if (h->program.state[c->state[i]].kind == RT_SLOT)
		return CUT_SLOTS;
	return c->late[i] && !h->object->device ? CUT_LATE : CUT_READ;
}

/* Their places of all ranks, those together that lie together. */
static int
cut_moves(const RtHost *h, const CutRow *row, Which which, Move **out)
{
	int n = 0, kept = 0, room = 0;
	Move *m;

	for (int i = 0; i < h->cuts.n; i++)
		room += row[i].row->cut->nstate * h->ranks;
	m = rt_alloc(sizeof *m * (size_t)(room + 1));
	for (int i = 0; i < h->cuts.n; i++)
		for (int k = 0; k < row[i].row->cut->nstate; k++)
			for (int r = 0; r < h->ranks; r++)
				if (cut_which(h, row[i].row->cut, k) == which) {
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
	int n = cut_moves(h, row, CUT_READ, &m);

	c->spread = cut_room(h, m, n);
	for (int i = 0; i < n; i++) {
		cut_messages(h, &m[i], -1, c->spread, &c->nspread);
		c->moved += m[i].n;
	}
	free(m);
	n = cut_moves(h, row, CUT_LATE, &m);
	c->late = cut_room(h, m, n);
	for (int i = 0; i < n; i++)
		cut_messages(h, &m[i], -1, c->late, &c->nlate);
	free(m);
	n = cut_moves(h, row, CUT_SLOTS, &m);
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
	h->cuts.norm = rt_alloc(sizeof(RtRow *) * (size_t)(h->program.graph[RT_G_UPDATE].nrow + 1));
	h->cuts.beside = rt_alloc(sizeof(RtRow *) * (size_t)(h->program.graph[RT_G_UPDATE].nrow + 1));
	if (!cut_rows(h, row))
		return false;
	if (!h->cuts.n) {
		free(row);
		return true;
	}
	for (int i = 0; i < h->cuts.n; i++)
		row[i].row->cut->edge = rt_alloc(sizeof(int64_t) * (size_t)(h->ranks + 1));
	for (int i = 0; i < h->cuts.nnorm; i++)
		h->cuts.norm[i]->cut->edge = rt_alloc(sizeof(int64_t) * (size_t)(h->ranks + 1));
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
	bool good = norms_open(h, row) && cut_beside(h, row);

	free(row);
	return good;
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
rt_tell(RtRun *run)
{
	RtHost *h = rt_host(run);
	Round r = {h->cuts.tell, h->cuts.ntell};
	double begin = rt_now();

	if (!rt_cuts_cut(h) || h->opt.no_exchange)
		return;
	norms_move(h, h->rank, false);
	if (h->sums.window)
		rt_window_say(h, h->cuts.told, h->cuts.told_at);
	else
		h->comm->run(h, cut_move, &r);
	for (int q = 0; q < h->ranks; q++)
		if (q != h->rank)
			norms_move(h, q, true);
	h->sums.busy += rt_now() - begin;        /* nothing hides it */
	h->sums.exposed += rt_now() - begin;
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
	h->cuts.behind = h->cuts.nlate > 0;
	rt_cuts_over(h);
}

void
rt_cuts_late(RtHost *h)
{
	Round r = {h->cuts.late, h->cuts.nlate};

	if (!rt_cuts_cut(h) || !h->cuts.behind)
		return;
	h->comm->run(h, cut_move, &r);
	h->cuts.behind = false;
}

bool
rt_cuts_collect(RtHost *h, int64_t step)
{
	Round r = {h->cuts.collect, h->cuts.ncollect};

	if (!rt_cuts_cut(h) || !h->cuts.saves || h->cuts.collected == step)
		return true;
	rt_cuts_late(h);
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
