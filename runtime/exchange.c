/* exchange.c: the sum over the shards of a batch.
 *
 * The sum of x_0 .. x_(S-1) is T(0, S), where T(a, 1) = x_a and T(a, n) = T(a, k) + T(a + k, n - k), k the largest
 * power of two below n: one addition an element in the element's own type, to nearest even, the left operand first.
 * Pairs (a, n) that occur are nodes. Nothing else enters, so that the bits depend on S alone, whoever adds and in
 * whatever order the shards come.
 * In: the states of kind grad, which stand together in the arena and which each run of graph train fills anew.   Out:
 * their sums, in the same place, behind the last shard. Between shards the nodes that are complete wait in rooms of
 * their own, each as large as the states: as many as there are bits in the number of shards. Additions are cut by place
 * and shared by the threads. */
#include "comm.h"

#include <stdlib.h>
#include <string.h>

enum { SUM_CHUNK = 8192 };       /* elements of a task */

/* ---- the tree */

static int64_t
tree_cut(int64_t n)
{
	int64_t k = 1;

	while (2 * k < n)
		k *= 2;
	return k;
}

bool
rt_tree_parent(int64_t shards, RtNode x, RtNode *parent, bool *right)
{
	RtNode at = {0, shards};

	if (x.n >= shards)
		return false;
	for (;;) {
		int64_t k = tree_cut(at.n);

		*right = x.a >= at.a + k;
		*parent = at;
		at = *right ? (RtNode){at.a + k, at.n - k} : (RtNode){at.a, k};
		if (at.a == x.a && at.n == x.n)
			return true;
		if (at.n <= 1)
			return false;
	}
}

/* ---- additions */

typedef union Number { float f; uint32_t u; } Number;

static float
bf16_value(uint16_t h)
{
	return (Number){.u = (uint32_t)h << 16}.f;
}

static uint16_t
bf16_round(float x)
{
	uint32_t u = (Number){.f = x}.u;

	if (x != x)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* out = left + right; out may be either. The sum of two 16-bit numbers rounded to f32 (f16: exact in f64) and again is
 * rounded as once. */
void
rt_sum(int dtype, uint8_t *out, const uint8_t *left, const uint8_t *right, int64_t n)
{
	switch (dtype) {
	case RT_F64:
		for (int64_t i = 0; i < n; i++)
			((double *)out)[i] = ((const double *)left)[i] + ((const double *)right)[i];
		break;
	case RT_F32:
		for (int64_t i = 0; i < n; i++)
			((float *)out)[i] = ((const float *)left)[i] + ((const float *)right)[i];
		break;
	case RT_BF16:
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = bf16_round(bf16_value(((const uint16_t *)left)[i]) +
			                                  bf16_value(((const uint16_t *)right)[i]));
		break;
	default:                         /* f16: verify.c lets no integer be a gradient */
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = rt_f64_to_f16((double)rt_f16_to_f32(((const uint16_t *)left)[i]) +
			                                     (double)rt_f16_to_f32(((const uint16_t *)right)[i]));
	}
}

typedef struct Adding { const RtSums *s; int64_t first; uint8_t *out; const uint8_t *left, *right; } Adding;

static void
sums_part(void *cx, int64_t t0, int64_t t1, int thread)
{
	const Adding *a = cx;

	(void)thread;
	for (int64_t t = t0; t < t1; t++) {
		const RtSpan *p = &a->s->part[a->first + t];

		rt_sum(p->dtype, a->out + p->at, a->left + p->at, a->right + p->at, p->n);
	}
}

/* Over spans [from, to). */
static void
sums_add(RtHost *h, int64_t from, int64_t to, uint8_t *out, const uint8_t *left, const uint8_t *right)
{
	Adding a = {.s = &h->sums, .first = from, .out = out, .left = left, .right = right};

	rt_threads_run(h->threads, sums_part, &a, to - from);
}

/* ---- the states, and the rooms */

static bool
sums_kind(const RtState *s)
{
	return s->kind == RT_GRAD;
}

/* Where the states are, and the tasks of an addition over them. False after rt_fail. */
static bool
sums_range(RtHost *h)
{
	const RtProgram *p = &h->program;
	RtSums *s = &h->sums;
	int64_t end = 0, parts = 0;

	s->begin = INT64_MAX;
	for (int k = 0; k < p->nstate; k++) {
		const RtTensor *t = &p->state[k].t;

		if (!sums_kind(&p->state[k]))
			continue;
		s->begin = t->offset < s->begin ? t->offset : s->begin;
		end = t->offset + t->bytes > end ? t->offset + t->bytes : end;
		parts += (t->count + SUM_CHUNK - 1) / SUM_CHUNK;
	}
	if (!parts)
		return rt_fail(&h->error, "the program's descriptor: %lld shards, and nothing to add",
		               (long long)p->shards);
	s->bytes = (end - s->begin + 63) & ~(int64_t)63;
	s->part = rt_alloc(sizeof *s->part * (size_t)parts);
	for (int k = 0; k < p->nstate; k++) {
		const RtTensor *t = &p->state[k].t;
		int bytes = rt_dtype[t->dtype].bytes;

		if (!sums_kind(&p->state[k]) && t->offset >= s->begin && t->offset < end)
			return rt_fail(&h->error, "the program's descriptor: state %s stands among the gradients",
			               t->name);
		for (int64_t i = 0; sums_kind(&p->state[k]) && i < t->count; i += SUM_CHUNK)
			s->part[s->npart++] = (RtSpan){.at = t->offset - s->begin + i * bytes,
			                               .n = t->count - i < SUM_CHUNK ? t->count - i : SUM_CHUNK,
			                               .dtype = t->dtype};
	}
	return true;
}

int
rt_merge_adds(RtSums *s, int64_t k, RtAdd *add)
{
	RtNode x = {k, 1}, parent;
	bool right, last = k + 1 == s->hi;
	int at = RT_STATES, n = 0;

	if (k == s->lo)
		s->nnode = 0;
	while (s->nnode && rt_tree_parent(s->shards, x, &parent, &right) && right
	       && s->node[s->nnode - 1].a == parent.a && parent.a + parent.n == x.a + x.n) {
		int left = s->nnode - 1, out = last ? RT_STATES : left;

		add[n++] = (RtAdd){.out = out, .left = left, .right = at};
		at = out;
		x = parent;
		s->nnode--;
	}
	if (!last && at == RT_STATES)
		add[n++] = (RtAdd){.out = s->nnode, .left = RT_NOTHING, .right = RT_STATES};
	s->node[s->nnode++] = x;
	s->deepest = s->nnode - last > s->deepest ? s->nnode - last : s->deepest;
	return n;
}

static uint8_t *
sums_place(const RtHost *h, int room)
{
	return room == RT_STATES ? h->run.arena + h->sums.begin : h->sums.room[room];
}

/* Joins what can be joined behind shard k, which has just run. */
static void
sums_join(RtHost *h, int64_t k)
{
	RtSums *s = &h->sums;
	RtAdd add[RT_MAX_NODES];
	int n = rt_merge_adds(s, k, add);

	for (int i = 0; i < n; i++) {
		uint8_t *out = sums_place(h, add[i].out), *right = sums_place(h, add[i].right);

		if (add[i].left == RT_NOTHING)
			memcpy(out, right, (size_t)s->bytes);
		else
			sums_add(h, 0, s->npart, out, sums_place(h, add[i].left), right);
	}
}

/* ---- several processes
 *
 * Rank r has shards floor(rS/P) .. floor((r+1)S/P)-1; the largest nodes inside are its pieces. The range is cut into
 * turns, a turn into as many parts as there are ranks: each rank gets all pieces of its part, adds them along the
 * tree, and all get the sums of all parts. So 2 (P-1)/P of the range go over the wire where each rank has one piece, as
 * with a ring, and nothing waits for a chain of ranks. A range of at most SUM_SMALL bytes goes whole to all, who add it
 * themselves: one turn in place of two. */

enum { SUM_SMALL = 32 << 10, SUM_PART = 1 << 20, SUM_ARRIVES = 32 << 20 };

int
rt_tree_pieces(int64_t shards, int64_t lo, int64_t hi, RtNode *out)
{
	int n = 0;

	for (int64_t k = lo; k < hi; k++) {
		RtNode x = {k, 1}, parent;
		bool right;

		while (n && rt_tree_parent(shards, x, &parent, &right) && right && out[n - 1].a == parent.a) {
			x = parent;
			n--;
		}
		out[n++] = x;
	}
	return n;
}

typedef struct Joining {
	RtHost *h;
	RtSums *s;
	RtShare mine;
} Joining;

RtTurn
rt_turn_first(const RtHost *h, const RtBucket *b)
{
	const RtSums *s = &h->sums;
	RtTurn t = {.at = b->offset - s->begin, .whole = b->bytes <= SUM_SMALL && !s->window};

	t.end = t.at + b->bytes;
	t.step = t.whole ? b->bytes : s->width * h->ranks;
	if (s->edge && !t.whole && s->edge[(b - s->bucket) * (h->ranks + 1)] >= 0) {
		t.edge = s->edge + (b - s->bucket) * (h->ranks + 1);
		t.at = t.end = 0;
		t.step = s->width;
		for (int r = 0; r < h->ranks; r++)
			t.end = t.edge[r + 1] - t.edge[r] > t.end ? t.edge[r + 1] - t.edge[r] : t.end;
	}
	t.to = t.at + t.step < t.end ? t.at + t.step : t.end;
	return t;
}

bool
rt_turn_next(RtTurn *t)
{
	t->at = t->to;
	t->to = t->at + t->step < t->end ? t->at + t->step : t->end;
	return t->at < t->end;
}

RtShare
rt_turn_part(const RtHost *h, const RtTurn *t, int q)
{
	int64_t w = ((t->to - t->at + h->ranks - 1) / h->ranks + 63) & ~(int64_t)63, from = t->at + q * w,
	        to = from + w, end = t->to;

	if (t->whole)
		return (RtShare){t->at, t->to};
	if (t->edge) {
		from = t->edge[q] + t->at;
		to = t->edge[q] + t->to;
		end = t->edge[q + 1];
	}
	return (RtShare){from < end ? from : end, to < end ? to : end};
}

/* Where piece i of this rank stands. */
static uint8_t *
join_own(const RtHost *h, int i)
{
	const RtSums *s = &h->sums;

	return i + 1 == s->rank[h->rank].n ? h->run.arena + s->begin : s->room[i];
}

static int64_t
span_end(const RtSpan *x)
{
	return x->at + x->n * rt_dtype[x->dtype].bytes;
}

int64_t
rt_sums_behind(const RtSums *s, int64_t from)
{
	int64_t low = 0, high = s->npart;

	while (low < high) {
		int64_t middle = (low + high) / 2;

		if (span_end(&s->part[middle]) > from)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* out = left + right over bytes [from, to) of the range; pointers are to `from`. */
static void
join_add(const RtSums *s, RtShare p, uint8_t *out, const uint8_t *left, const uint8_t *right)
{
	int64_t low = rt_sums_behind(s, p.from);

	for (; low < s->npart && s->part[low].at < p.to; low++) {
		const RtSpan *x = &s->part[low];
		int bytes = rt_dtype[x->dtype].bytes;
		int64_t from = x->at > p.from ? x->at : p.from,
		        to = x->at + x->n * bytes < p.to ? x->at + x->n * bytes : p.to;

		rt_sum(x->dtype, out + from - p.from, left + from - p.from, right + from - p.from, (to - from) / bytes);
	}
}

/* T(x) over this rank's part: where it stands. Sums go to the left operand's place, the last one's to the states. */
static uint8_t *
join_tree(const Joining *j, RtNode x, bool root)
{
	const RtSums *s = j->s;
	int64_t k = tree_cut(x.n);

	for (int r = 0; r < j->h->ranks; r++)
		for (int i = 0; x.a >= s->rank[r].lo && x.a < s->rank[r].hi && i < s->rank[r].n; i++)
			if (s->rank[r].node[i].a == x.a && s->rank[r].node[i].n == x.n)
				return r == j->h->rank ? join_own(j->h, i) + j->mine.from
				                       : s->in + (s->rank[r].slot + i) * s->width;
	uint8_t *left = join_tree(j, (RtNode){x.a, k}, false), *right = join_tree(j, (RtNode){x.a + k, x.n - k}, false);
	uint8_t *out = root ? j->h->run.arena + s->begin + j->mine.from : left;

	join_add(s, j->mine, out, left, right);
	return out;
}

int
rt_turn_give(RtHost *h, const RtTurn *t, uint8_t *grad, RtShare p, int rank, bool send, int n)
{
	RtSums *s = &h->sums;

	if (!t->edge) {
		s->msg[n++] = (RtMsg){rank, send, grad + p.from, (size_t)(p.to - p.from)};
		return n;
	}
	for (int i = 0; i < s->nextra; i++) {
		const RtExtra *x = &s->extra[i];
		int64_t from = x->from > p.from ? x->from : p.from, to = x->to < p.to ? x->to : p.to;

		if (x->rank == (send ? rank : h->rank) && from < to)
			s->msg[n++] = (RtMsg){rank, send, grad + from, (size_t)(to - from)};
	}
	for (int64_t i = rt_sums_behind(s, p.from); i < s->npart && s->part[i].at < p.to; i++) {
		int64_t from = s->part[i].at > p.from ? s->part[i].at : p.from, to;

		if (s->part[i].owned)
			continue;
		while (i + 1 < s->npart && s->part[i + 1].at < p.to && !s->part[i + 1].owned)
			i++;
		to = span_end(&s->part[i]) < p.to ? span_end(&s->part[i]) : p.to;
		s->msg[n++] = (RtMsg){rank, send, grad + from, (size_t)(to - from)};
	}
	return n;
}

static void
join_turn(RtHost *h, const RtTurn *t)
{
	RtSums *s = &h->sums;
	Joining j = {.h = h, .s = s, .mine = rt_turn_part(h, t, h->rank)};
	uint8_t *grad = h->run.arena + s->begin;
	int n = 0;

	for (int r = 0; r < h->ranks; r++) {
		RtShare his = rt_turn_part(h, t, r);

		if (r == h->rank)
			continue;
		for (int i = 0; i < s->rank[h->rank].n; i++)
			s->msg[n++] = (RtMsg){r, true, join_own(h, i) + his.from, (size_t)(his.to - his.from)};
		for (int i = 0; i < s->rank[r].n; i++)
			s->msg[n++] = (RtMsg){r, false, s->in + (s->rank[r].slot + i) * s->width,
			                      (size_t)(j.mine.to - j.mine.from)};
	}
	h->comm->move(h, s->msg, n);
	if (j.mine.to > j.mine.from)
		join_tree(&j, (RtNode){0, s->shards}, true);
	if (t->whole)
		return;
	n = 0;
	for (int r = 0; r < h->ranks; r++) {
		if (r == h->rank)
			continue;
		n = rt_turn_give(h, t, grad, j.mine, r, true, n);
		n = rt_turn_give(h, t, grad, rt_turn_part(h, t, r), r, false, n);
	}
	h->comm->move(h, s->msg, n);
}

/* The first span at or behind a byte of the range. */
static int64_t
sums_span(const RtSums *s, int64_t at)
{
	int64_t low = 0, high = s->npart;

	while (low < high) {
		int64_t middle = (low + high) / 2;

		if (s->part[middle].at >= at)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static bool
sums_by(const RtHost *h, const char *way)
{
	return h->opt.exchange && strcmp(h->opt.exchange, way) == 0;
}

bool
rt_exchange_library(const RtHost *h)
{
	return sums_by(h, "library");
}

/* --exchange library: bytes [from, end) of the range by the library's own sum, a call for what stands together and
 * is of one type; the bytes between two states are nobody's. */
static void
join_library(RtHost *h, int64_t from, int64_t end)
{
	RtSums *s = &h->sums;

	for (int64_t i = sums_span(s, from); i < s->npart && s->part[i].at < end;) {
		const RtSpan *first = &s->part[i], *last = first;
		int bytes = rt_dtype[first->dtype].bytes;

		for (i++; i < s->npart && s->part[i].dtype == first->dtype && s->part[i].at < end; i++)
			last = &s->part[i];
		h->comm->sum(h, h->run.arena + s->begin + first->at, (last->at - first->at) / bytes + last->n,
		             first->dtype == RT_F64);
	}
}

/* On the exchange thread: the bucket of that number. */
static void
join_bucket(RtHost *h, void *cx)
{
	RtSums *s = &h->sums;
	const RtBucket *b = cx;
	RtTurn t = rt_turn_first(h, b);
	double begin = rt_now();

	if (rt_exchange_library(h))
		join_library(h, b->offset - s->begin, b->offset - s->begin + b->bytes);
	else
		do
			join_turn(h, &t);
		while (rt_turn_next(&t));
	s->busy += rt_now() - begin;
}

/* The last of this rank's shards has filled a bucket: it joins the node that is complete with it, and goes its way. */
static void
sums_start(RtHost *h, int b)
{
	RtSums *s = &h->sums;
	int64_t from = s->bucket[b].offset - s->begin, p0 = sums_span(s, from),
	        p1 = sums_span(s, from + s->bucket[b].bytes);
	uint8_t *grad = h->run.arena + s->begin;
	RtNode x = {s->hi - 1, 1}, parent;
	int n = s->hi - 1 == s->lo ? 0 : s->nnode;
	bool right;

	for (; n && rt_tree_parent(s->shards, x, &parent, &right) && right && s->node[n - 1].a == parent.a; n--) {
		sums_add(h, p0, p1, grad, s->room[n - 1], grad);
		x = parent;
	}
	while (rt_exchange_library(h) && n > 0)  /* one sum a rank, whatever nodes it has */
		sums_add(h, p0, p1, grad, s->room[--n], grad);
	s->started = b + 1;
	if (!s->window) {
		s->number[b] = h->comm->start(h, join_bucket, &s->bucket[b]);
		return;
	}
	double begin = rt_now();

	rt_window_start(h);
	s->busy += rt_now() - begin;             /* the loop's own time */
	s->exposed += rt_now() - begin;
}

void
rt_start(RtRun *run, int64_t bucket)
{
	RtHost *h = rt_host(run);

	if (h->ranks > 1 && !h->opt.no_exchange && h->mode == RT_M_TRAIN && run->micro + 1 == h->sums.hi &&
	    bucket == h->sums.started && h->sums.overlap)
		sums_start(h, (int)bucket);
}

/* Buckets go one after the other: where one has arrived, all before it have. */
void
rt_wait(RtRun *run, int64_t bucket)
{
	RtHost *h = rt_host(run);
	RtSums *s = &h->sums;
	int64_t last = bucket < s->started ? bucket : s->started - 1;
	double begin;

	if (last >= s->waited) {
		begin = rt_now();
		if (s->window)
			rt_window_wait(h, (int)last);
		else
			h->comm->wait(h, s->number[last]);
		s->exposed += rt_now() - begin;
		s->busy += s->window ? rt_now() - begin : 0;
		s->waited = (int)last + 1;
	}
	if (bucket >= s->nbucket)
		s->started = s->waited = 0;
}

/* What all say to all, beside the buckets that are under way: it waits for none of them. */
static void
sums_vote(RtHost *h)
{
	RtSums *s = &h->sums;
	double begin = rt_now();
	int n = 0;

	for (int r = 0; r < h->ranks && !s->window; r++) {
		if (r == h->rank)
			continue;
		s->say[n++] = (RtMsg){r, true, &s->vote[h->rank], sizeof *s->vote};
		s->say[n++] = (RtMsg){r, false, &s->vote[r], sizeof *s->vote};
	}
	if (s->window)
		rt_window_say(h, s->vote, s->vote_at);
	else
		h->comm->beside(h, s->say, n);
	s->voting += rt_now() - begin;
}

/* Joins the pieces of all ranks: all know of faults and wishes to stop, and the sums stand in the states of kind grad
 * where rt_wait has waited for their bucket; where there is but one, at once. */
static int64_t
sums_exchange(RtHost *h, RtVote mine)
{
	RtSums *s = &h->sums;
	const RtVote *fault = NULL;

	mine.step = h->run.step;
	mine.signal = __atomic_load_n(&h->signal, __ATOMIC_SEQ_CST);
	s->vote[h->rank] = mine;
	while (s->started < s->nbucket)
		sums_start(h, s->started);
	sums_vote(h);
	if (!s->overlap)
		rt_wait(&h->run, s->nbucket);
	s->moved += s->bytes;
	s->joined = h->run.step;
	for (int r = 0; r < h->ranks; r++) {
		const RtVote *v = &s->vote[r];

		if (v->step != mine.step)
			return rt_fail(&h->error, "rank %d is in step %lld, rank %d in step %lld", r,
			               (long long)v->step, h->rank, (long long)mine.step),
			       RT_ERROR;
		if (v->shard >= 0 && !fault)     /* ranks have their shards in order */
			fault = v;
		if (v->signal > h->stop)
			h->stop = (int)v->signal;
	}
	if (h->stop)
		__atomic_store_n(&h->run.stop_at, 0, __ATOMIC_SEQ_CST);
	if (!fault)
		return RT_OK;
	rt_wait(&h->run, s->nbucket);
	memcpy(h->run.arena + h->program.fault_offset, &fault->fault, sizeof fault->fault);
	h->run.first = fault->shard * h->run.batch;
	h->run.n = fault->n;
	h->agreed = true;
	return RT_FAULT;
}

int64_t
rt_sums_fault(RtHost *h)
{
	RtVote v = {.shard = h->run.micro, .n = h->run.n};

	if (h->ranks == 1 || h->sums.joined == h->run.step || h->program.fault_offset < 0)
		return RT_FAULT;
	memcpy(&v.fault, h->run.arena + h->program.fault_offset, sizeof v.fault);
	return sums_exchange(h, v);
}

/* The program's buckets, which cover the range; else one. */
static bool
sums_buckets(RtHost *h)
{
	RtSums *s = &h->sums;
	int64_t covered = 0, bytes = 0;

	s->nbucket = h->program.nbucket ? h->program.nbucket : 1;
	s->bucket = rt_alloc(sizeof *s->bucket * (size_t)s->nbucket);
	s->number = rt_alloc(sizeof *s->number * (size_t)s->nbucket);
	s->bucket[0] = (RtBucket){.offset = s->begin, .bytes = s->bytes};
	s->overlap = h->program.nbucket > 1;
	for (int64_t i = 0; i < s->npart; i++)
		bytes += s->part[i].n;
	for (int i = 0; i < h->program.nbucket; i++) {
		const RtBucket *b = &h->program.bucket[i];

		s->bucket[i] = *b;
		if (b->offset < s->begin || b->bytes < 1 || b->offset + b->bytes > s->begin + s->bytes ||
		    (b->offset & 63))
			return rt_fail(&h->error, "the program's descriptor: bucket %d lies outside the gradients", i);
		for (int64_t k = sums_span(s, b->offset - s->begin);
		     k < s->npart && s->part[k].at < b->offset - s->begin + b->bytes; k++)
			covered += s->part[k].n;
	}
	return !h->program.nbucket || covered == bytes ||
	       rt_fail(&h->error, "the program's descriptor: the buckets do not cover the gradients");
}

static bool
sums_ranks(RtHost *h)
{
	RtSums *s = &h->sums;
	int64_t slots = 0, messages;

	s->rank = rt_alloc(sizeof *s->rank * (size_t)h->ranks);
	s->vote = rt_alloc(sizeof *s->vote * (size_t)h->ranks);
	s->vote_at = rt_alloc(sizeof *s->vote_at * (size_t)(h->ranks + 1));
	for (int r = 0; r <= h->ranks; r++)
		s->vote_at[r] = r * (int64_t)sizeof *s->vote;
	s->say = rt_alloc(sizeof *s->say * 2 * (size_t)h->ranks);
	for (int r = 0; r < h->ranks; r++) {
		RtPieces *p = &s->rank[r];
		RtNode node[RT_MAX_NODES];

		p->lo = s->shards * r / h->ranks;
		p->hi = s->shards * (r + 1) / h->ranks;
		p->n = rt_tree_pieces(s->shards, p->lo, p->hi, node);
		p->node = rt_alloc(sizeof *node * (size_t)p->n);
		memcpy(p->node, node, sizeof *node * (size_t)p->n);
		p->slot = slots;
		slots += r == h->rank ? 0 : p->n;
	}
	s->lo = s->rank[h->rank].lo;
	s->hi = s->rank[h->rank].hi;
	messages = 4 * (int64_t)h->ranks + slots + (int64_t)s->rank[h->rank].n * h->ranks;
	for (int k = 0; k < h->program.nstate; k++) /* gradients that are owned and others may take turns; both ends */
		messages += h->program.state[k].kind == RT_GRAD ? 6 * (int64_t)h->ranks : 0;
	s->msg = rt_alloc(sizeof *s->msg * (size_t)messages);
	s->width = SUM_ARRIVES / (slots ? slots : 1) & ~(int64_t)63;
	if (!h->object->device) /* whose links want longer messages */
		s->width = s->width > SUM_PART ? SUM_PART : s->width;
	if (s->width * h->ranks > s->bytes)
		s->width = ((s->bytes + h->ranks - 1) / h->ranks + 63) & ~(int64_t)63;
	if (s->width < SUM_SMALL)
		s->width = SUM_SMALL;
	if (!sums_buckets(h) || !rt_cuts_open(h))
		return false;
	s->arrives = s->width * slots;
	return h->object->device || (s->in = rt_large((size_t)s->arrives)) ||
	       rt_fail(&h->error, "out of memory for the sums of other processes");
}

bool
rt_sums_open(RtHost *h)
{
	RtSums *s = &h->sums;

	s->shards = h->program.shards;
	s->lo = 0;
	s->hi = s->shards;
	s->joined = -1;
	if (s->shards <= 1)
		return true;
	if (!sums_range(h) || (h->ranks > 1 && !sums_ranks(h)))
		return false;
	if (h->ranks > 1 && rt_exchange_library(h) && !h->comm->adds(h) && !h->object->device)
		return rt_fail(
		        &h->error,
		        "--exchange library: sockets add nothing up: mpirun starts processes with a library that does");
	for (int64_t i = 0; i < s->npart && h->ranks > 1 && rt_exchange_library(h) && !h->object->device; i++)
		if (s->part[i].dtype != RT_F32 && s->part[i].dtype != RT_F64)
			return rt_fail(&h->error,
			               "--exchange library: an MPI library adds f32 and f64, and gradients here are of "
			               "%s; --exchange tree adds them",
			               rt_dtype[s->part[i].dtype].name);
	for (int64_t k = s->lo; k < s->hi; k++)
		rt_merge_adds(s, k, (RtAdd[RT_MAX_NODES]){{0}});
	for (int i = 0; i < s->deepest && !h->object->device; i++)
		if (!(s->room[i] = rt_large((size_t)s->bytes)))
			return rt_fail(&h->error, "out of memory: the sums of %d shards need %.1f MiB", (int)s->shards,
			               (double)s->bytes * s->deepest / 0x1p20);
	return true;
}

bool
rt_sums_meet(RtHost *h)
{
	RtSums *s = &h->sums;

	if (h->ranks == 1 || s->shards <= 1 || h->object->device || h->opt.no_exchange || rt_exchange_library(h) ||
	    sums_by(h, "messages"))
		return true;
	return rt_window_open(h);
}

int64_t
rt_merge(RtRun *run)
{
	RtHost *h = rt_host(run);
	RtSums *s = &h->sums;
	int64_t k = run->micro;

	if (h->object->device)
		return h->object->device->merge(h) ? RT_OK : RT_ERROR;
	if (h->ranks == 1 || h->opt.no_exchange || k + 1 < s->hi) {
		sums_join(h, k);
		return RT_OK;
	}
	return sums_exchange(h, (RtVote){.shard = -1});
}
