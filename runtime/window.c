/* window.c: processes of one machine add each other's gradients where they stand.
 *
 * In: the states of kind grad and the rooms of each process's sums, in memory that all of them see.   Out: the sums in
 * the states of all, the same bits as by messages: each rank adds its part along the tree (exchange.c), block by block,
 * and writes a block to all while it is near. Nothing is copied before it is added, and no library and no other thread
 * is asked: the loop's own threads add, at the start of a bucket those that all have filled by then, and while the loop
 * waits. Where all CPUs compute, a thread beside the loop would have to be given one first.
 * Each rank has a file without a name (memfd), which the others open by its number among its descriptors: a page that
 * all write to (Face), the range of gradients, mapped into the arena in place of its own memory, and the rooms. Who
 * waits looks for a while, where there is a CPU for each, and sleeps until another rings its bell. Where one rank
 * cannot see another, because it is on another machine or may not, all send messages. */
#define _GNU_SOURCE
#include "comm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_NAME "mantou-sums"
enum { WINDOW_BLOCK = 8192, WINDOW_HUGE = 2 << 20, WINDOW_LOOKS = 2000 };

/* Counts go up for ever. stands: buckets that it has filled; added: whose part it has added up, and written to all;
 * said: what it has said to all, in one of two boxes in turn: nobody is two ahead. bell: rung at each change; sleeps:
 * somebody waits for it. */
typedef struct Face {
	uint64_t token;
	_Alignas(64) uint64_t stands;
	_Alignas(64) uint64_t added;
	_Alignas(64) uint64_t said;
	_Alignas(64) uint32_t bell;
	uint32_t sleeps;
} Face;

/* How a rank's file is found, and where things are in it. */
typedef struct Card {
	int64_t pid, file, bytes, rooms, boxes, box; /* box: bytes of one */
	uint64_t token, cpus;
	char host[64];
} Card;

typedef struct View {
	Face *face;
	uint8_t *range, *rooms, *box[2]; /* the first byte of sums; of rooms, one behind the other */
	uint8_t *map;
	size_t bytes;
} View;

struct RtWindow {
	View *view;             /* by rank */
	uint64_t stands, added; /* of this rank, all steps together */
	uint64_t said;
	int64_t box;
	int looks, depth;
	uint8_t *scratch; /* by thread: two blocks a level of the tree */
};

/* ---- opening */

static int64_t
window_up(int64_t bytes, int64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static int64_t
window_page(void)
{
	return sysconf(_SC_PAGESIZE);
}

/* Where the range's first page lies in the file: as in the arena, so that large pages may be shared. */
static int64_t
window_range(const RtHost *h)
{
	return WINDOW_HUGE + h->sums.begin / window_page() * window_page() % WINDOW_HUGE;
}

static int64_t
window_range_bytes(const RtHost *h)
{
	int64_t page = window_page(), from = h->sums.begin / page * page;

	return window_up(h->sums.begin + h->sums.bytes, page) - from;
}

/* The most that this rank says at once: its vote, what its shards exchange within a step, numbers of its part. */
static int64_t
window_box(const RtHost *h)
{
	const RtCuts *c = &h->cuts;
	int64_t joins = rt_joins_said(h, h->rank), told = c->told ? c->told_at[h->rank + 1] - c->told_at[h->rank] : 0,
	        most = (int64_t)sizeof(RtVote);

	most = joins > most ? joins : most;
	return window_up(told > most ? told : most, window_page());
}

static View
window_view(const RtHost *h, const Card *c, uint8_t *map)
{
	return (View){.face = (Face *)(void *)map,
	              .range = map + window_range(h) + h->sums.begin % window_page(),
	              .rooms = map + c->rooms,
	              .box = {map + c->boxes, map + c->boxes + c->box},
	              .map = map,
	              .bytes = (size_t)c->bytes};
}

/* This rank's file, and its memory in place of the arena's. False: there is none. */
static bool
window_make(RtHost *h, Card *c, View *v)
{
	RtSums *s = &h->sums;
	int64_t page = window_page(), room = window_up(s->bytes, page);
	int file = (int)syscall(SYS_memfd_create, WINDOW_NAME, 1U /* MFD_CLOEXEC */);
	uint8_t *map;
	cpu_set_t set;

	c->pid = getpid();
	c->file = file;
	c->rooms = window_up(window_range(h) + window_range_bytes(h), page);
	c->boxes = c->rooms + room * s->deepest;
	c->box = window_box(h);
	c->bytes = c->boxes + 2 * c->box;
	gethostname(c->host, sizeof c->host - 1);
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		c->cpus = rt_hash(RT_HASH_START, &set, sizeof set);
	if (file < 0 || ftruncate(file, c->bytes) != 0 ||
	    getrandom(&c->token, sizeof c->token, 0) != (ssize_t)sizeof c->token)
		return false;
	map = mmap(NULL, (size_t)c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED)
		return false;
	*v = window_view(h, c, map);
	v->face->token = c->token;
	return true;
}

/* The file of another rank. */
static bool
window_look(const RtHost *h, const Card *c, View *v)
{
	static const char is[] = "/memfd:" WINDOW_NAME; /* another process may have that number here */
	char path[64], name[sizeof is] = "";
	int file;
	uint8_t *map;

	snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)c->pid, (long long)c->file);
	if (readlink(path, name, sizeof name - 1) < 0 || strcmp(name, is) != 0 ||
	    (file = open(path, O_RDWR | O_CLOEXEC)) < 0)
		return false;
	map = lseek(file, 0, SEEK_END) < c->bytes
	              ? MAP_FAILED
	              : mmap(NULL, (size_t)c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (map == MAP_FAILED)
		return false;
	*v = window_view(h, c, map);
	return v->face->token == c->token;
}

static bool
window_views(RtHost *h, const Card *card, View *view)
{
	for (int r = 0; r < h->ranks; r++)
		if (strcmp(card[r].host, card[h->rank].host) != 0 || card[r].token == 0 ||
		    (r != h->rank && !window_look(h, &card[r], &view[r])))
			return false;
	return true;
}

/* All of them, or none. */
static bool
window_all(RtHost *h, bool mine)
{
	size_t *at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
	uint8_t *all = NULL, good = mine;

	h->comm->gather(h, &good, 1, &all, at);
	for (int r = 0; r < h->ranks; r++)
		good = good && all[at[r]];
	free(all);
	free(at);
	return good;
}

static void
window_close(const RtHost *h, View *view)
{
	for (int r = 0; r < h->ranks; r++)
		if (view[r].map)
			munmap(view[r].map, view[r].bytes);
	free(view);
}

/* Ranks whose CPUs are this one's. */
static int
window_beside(const RtHost *h, const Card *card)
{
	int n = 0;

	for (int r = 0; r < h->ranks; r++)
		n += card[r].cpus == card[h->rank].cpus;
	return n;
}

/* The range and the rooms are the file's from now on, with what stands in them: other states share their first and
 * last page. */
static bool
window_move_in(RtHost *h, const Card *c, View *own)
{
	RtSums *s = &h->sums;
	int64_t page = window_page(), room = window_up(s->bytes, page), bytes = window_range_bytes(h);
	uint8_t *from = h->run.arena + s->begin / page * page;

	memcpy(own->map + window_range(h), from, (size_t)bytes);
	if (mmap(from, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)c->file, window_range(h)) ==
	    MAP_FAILED)
		return rt_fail(&h->error, "out of memory for the gradients that processes share: %s", strerror(errno));
	madvise(from, (size_t)bytes, MADV_HUGEPAGE);
	own->range = h->run.arena + s->begin;
	for (int i = 0; i < s->deepest; i++) {
		free(s->room[i]);
		s->room[i] = own->rooms + i * room;
	}
	free(s->in);
	s->in = NULL;
	s->width = (s->bytes + 63) & ~(int64_t)63; /* a bucket is one turn */
	return true;
}

bool
rt_window_open(RtHost *h)
{
	RtSums *s = &h->sums;
	View *view = rt_alloc(sizeof *view * (size_t)h->ranks);
	size_t *at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
	Card mine = {0}, *card;
	uint8_t *all = NULL;
	int threads = rt_threads_count(h->threads), depth = 2;
	bool seen, good = true;

	if (!window_make(h, &mine, &view[h->rank]))
		mine.token = 0;
	h->comm->gather(h, &mine, sizeof mine, &all, at);
	card = (Card *)(void *)all;
	seen = window_all(h, window_views(h, card, view));
	if (seen && (good = window_move_in(h, &mine, &view[h->rank]))) {
		while (s->shards >> (depth - 2))
			depth++;
		s->window = rt_alloc(sizeof *s->window);
		*s->window = (struct RtWindow){.view = view, .depth = depth, .box = mine.box};
		s->window->looks = threads * window_beside(h, card) <= rt_cpus() ? WINDOW_LOOKS : 0;
		s->window->scratch = rt_alloc((size_t)(threads * 2 * depth) * WINDOW_BLOCK);
	} else {
		window_close(h, view);
	}
	if (mine.file >= 0)
		close((int)mine.file);
	free(all);
	free(at);
	return good;
}

/* ---- additions */

/* Of one part of a bucket. give: the sums go to all. */
typedef struct Block {
	RtHost *h;
	RtShare part;
	int64_t first; /* span */
	bool give;
} Block;

/* Where T(x) stands as a piece, NULL. */
static const uint8_t *
block_piece(const RtHost *h, RtNode x, int64_t at)
{
	const RtSums *s = &h->sums;

	for (int r = 0; r < h->ranks; r++)
		for (int i = 0; x.a >= s->rank[r].lo && x.a < s->rank[r].hi && i < s->rank[r].n; i++)
			if (s->rank[r].node[i].a == x.a && s->rank[r].node[i].n == x.n) {
				const View *v = &s->window->view[r];

				return at + (i + 1 == s->rank[r].n ? v->range
				                                   : v->rooms + i * window_up(s->bytes, window_page()));
			}
	return NULL;
}

/* T(x) over n elements at a place of the range: where it stands, `out` unless it is a piece. scratch: of two blocks a
 * level. */
static const uint8_t *
block_tree(const RtHost *h, RtNode x, int dtype, int64_t at, int64_t n, uint8_t *out, uint8_t *scratch)
{
	const uint8_t *piece = block_piece(h, x, at), *left, *right;
	int64_t k = 1;

	if (piece)
		return piece;
	while (2 * k < x.n)
		k *= 2;
	left = block_tree(h, (RtNode){x.a, k}, dtype, at, n, scratch, scratch + 2 * WINDOW_BLOCK);
	right = block_tree(h, (RtNode){x.a + k, x.n - k}, dtype, at, n, scratch + WINDOW_BLOCK,
	                   scratch + 2 * WINDOW_BLOCK);
	rt_sum(dtype, out, left, right, n);
	return out;
}

static void
block_work(void *cx, int64_t t0, int64_t t1, int thread)
{
	const Block *b = cx;
	RtHost *h = b->h;
	const RtSums *s = &h->sums;
	struct RtWindow *w = s->window;
	uint8_t *scratch = w->scratch + (int64_t)thread * 2 * w->depth * WINDOW_BLOCK;

	for (int64_t t = t0; t < t1; t++) {
		const RtSpan *x = &s->part[b->first + t];
		int64_t size = rt_dtype[x->dtype].bytes, from = x->at > b->part.from ? x->at : b->part.from,
		        end = x->at + x->n * size < b->part.to ? x->at + x->n * size : b->part.to;

		for (int64_t at = from; at < end; at += WINDOW_BLOCK) {
			int64_t bytes = end - at < WINDOW_BLOCK ? end - at : WINDOW_BLOCK;
			uint8_t *own = w->view[h->rank].range + at;

			block_tree(h, (RtNode){0, s->shards}, x->dtype, at, bytes / size, own, scratch);
			for (int r = 0; b->give && r < h->ranks; r++)
				if (r != h->rank)
					memcpy(w->view[r].range + at, own, (size_t)bytes);
		}
	}
}

/* This rank's part of a bucket. */
static void
window_add(RtHost *h, const RtBucket *bucket)
{
	RtSums *s = &h->sums;
	RtTurn t = rt_turn_first(h, bucket);

	do {
		Block b = {.h = h, .part = rt_turn_part(h, &t, h->rank), .give = !t.edge};
		int64_t end;

		b.first = end = rt_sums_behind(s, b.part.from);
		while (end < s->npart && s->part[end].at < b.part.to)
			end++;
		rt_threads_run(h->threads, block_work, &b, end - b.first);
		for (int r = 0; t.edge && r < h->ranks; r++) {
			uint8_t *grad = s->window->view[h->rank].range;
			int n = r == h->rank ? 0 : rt_turn_give(h, &t, grad, b.part, r, true, 0);

			for (int i = 0; i < n; i++)
				memcpy(s->window->view[r].range + ((uint8_t *)s->msg[i].at - grad), s->msg[i].at,
				       s->msg[i].n);
		}
	} while (rt_turn_next(&t));
}

/* ---- meeting */

static void
window_ring(RtHost *h)
{
	for (int r = 0; r < h->ranks; r++) {
		Face *f = h->sums.window->view[r].face;

		if (r == h->rank)
			continue;
		__atomic_add_fetch(&f->bell, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&f->sleeps, __ATOMIC_SEQ_CST))
			syscall(SYS_futex, &f->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

/* Has every rank come so far? which: of the face. */
static bool
window_come(const RtHost *h, size_t which, uint64_t n)
{
	for (int r = 0; r < h->ranks; r++) {
		const uint8_t *face = (const uint8_t *)h->sums.window->view[r].face;

		if (__atomic_load_n((const uint64_t *)(const void *)(face + which), __ATOMIC_ACQUIRE) < n)
			return false;
	}
	return true;
}

/* Adds what all have filled. */
static void
window_take(RtHost *h)
{
	struct RtWindow *w = h->sums.window;

	while (w->added < w->stands && window_come(h, offsetof(Face, stands), w->added + 1)) {
		window_add(h, &h->sums.bucket[w->added % (uint64_t)h->sums.nbucket]);
		__atomic_store_n(&w->view[h->rank].face->added, ++w->added, __ATOMIC_RELEASE);
		window_ring(h);
	}
}

/* Until every rank has come so far; a rank that ends meanwhile, or falls silent, ends the process (comm.c). */
static void
window_until(RtHost *h, size_t which, uint64_t n)
{
	const struct timespec while_ = {.tv_nsec = 100000000};
	Face *f = h->sums.window->view[h->rank].face;

	for (int look = 0;; look++) {
		uint32_t bell = __atomic_load_n(&f->bell, __ATOMIC_SEQ_CST);

		window_take(h);
		if (window_come(h, which, n))
			return;
		if (look < h->sums.window->looks) {
			rt_pause();
			continue;
		}
		__atomic_store_n(&f->sleeps, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, &f->bell, FUTEX_WAIT, bell, &while_, NULL, 0);
		__atomic_store_n(&f->sleeps, 0, __ATOMIC_SEQ_CST);
	}
}

void
rt_window_start(RtHost *h)
{
	struct RtWindow *w = h->sums.window;

	__atomic_store_n(&w->view[h->rank].face->stands, ++w->stands, __ATOMIC_RELEASE);
	window_ring(h);
	window_take(h);
}

void
rt_window_wait(RtHost *h, int bucket)
{
	struct RtWindow *w = h->sums.window;

	window_until(h, offsetof(Face, added), w->stands - (uint64_t)h->sums.started + (uint64_t)bucket + 1);
}

void
rt_window_say(RtHost *h, void *all, const int64_t *at)
{
	struct RtWindow *w = h->sums.window;
	const View *mine = &w->view[h->rank];
	uint64_t n = w->said++ & 1;
	int64_t bytes = at[h->rank + 1] - at[h->rank];

	if (bytes > w->box)
		abort(); /* window_box */
	memcpy(mine->box[n], (uint8_t *)all + at[h->rank], (size_t)bytes);
	__atomic_store_n(&mine->face->said, w->said, __ATOMIC_RELEASE);
	window_ring(h);
	window_until(h, offsetof(Face, said), w->said);
	for (int r = 0; r < h->ranks; r++)
		if (r != h->rank)
			memcpy((uint8_t *)all + at[r], w->view[r].box[n], (size_t)(at[r + 1] - at[r]));
}
