/* block.c: runs a launch: blocks on worker threads, the warps of a block in turns.
 *
 * In: a kernel, its grid, its parameters.   Out: its effects, its status, counts of instructions.
 * A group is a block, or the blocks of a cluster. A worker takes groups by number; a group that runs long without
 * storing anything is set aside and another is started beside it, so that blocks that wait for later blocks come to an
 * end. Warps run in random order, a few thousand steps each. Shared memory and registers come from the worker's own
 * room, poisoned for each block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define STEPS 4000u           /* of a warp at a time */
#define SPIN 500000ull         /* instructions of a group without a store, after which another runs beside it */
#define LOOKS 512u             /* loads of its that see what other blocks store now, without a store: the same */
#define PATIENCE 1000000000ull /* instructions with stores */
#define MAX_GROUPS 256        /* set aside by one worker */

static size_t
align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

static uint32_t
regs_bytes(const Launch *l)
{
	return (uint32_t)align64(l->func->regs_to);
}

static void
fill(Warp *w, uint32_t reg, uint32_t bytes, uint64_t v)
{
	if (bytes == 4)
		for (int i = 0; i < LANES; i++)
			REG(w, uint32_t, reg)[i] = (uint32_t)v;
	else if (bytes == 8)
		for (int i = 0; i < LANES; i++)
			REG(w, uint64_t, reg)[i] = v;
	else
		for (int i = 0; i < LANES; i++)
			lane_set(w, reg, bytes, i, v);
}

static void
fill_constants(Warp *w, const Func *f)
{
	for (int k = 0; k < f->nconstant; k++)
		fill(w, f->constant[k].reg, f->constant[k].bytes, f->constant[k].value);
}

static void
fill_special(Warp *w, enum Special s, uint32_t v)
{
	fill(w, (uint32_t)s * LANES * 4, 4, v);
}

/* What stays the same for all blocks of a launch. */
static void
warp_prepare(Warp *w, const Launch *l)
{
	uint32_t nx = l->block[0], ny = l->block[1];

	memset(w->rf, 0, (size_t)SR_COUNT * LANES * 4);
	fill_constants(w, l->func);
	for (int i = 0; i < l->func->nreach; i++)
		fill_constants(w, l->func->reach[i]);
	for (uint32_t i = 0; i < LANES; i++) {
		uint32_t t = w->base + i;

		REG(w, uint32_t, SR_TID_X * 128u)[i] = t % nx;
		REG(w, uint32_t, SR_TID_Y * 128u)[i] = t / nx % ny;
		REG(w, uint32_t, SR_TID_Z * 128u)[i] = t / nx / ny;
		REG(w, uint32_t, SR_LANEID * 128u)[i] = i;
		REG(w, uint32_t, SR_LANEMASK_EQ * 128u)[i] = 1u << i;
		REG(w, uint32_t, SR_LANEMASK_LT * 128u)[i] = (1u << i) - 1;
		REG(w, uint32_t, SR_LANEMASK_LE * 128u)[i] = (1u << i) * 2 - 1;
		REG(w, uint32_t, SR_LANEMASK_GT * 128u)[i] = ~((1u << i) * 2 - 1);
		REG(w, uint32_t, SR_LANEMASK_GE * 128u)[i] = ~((1u << i) - 1);
	}
	for (uint32_t k = 0; k < 3; k++) {
		fill_special(w, (enum Special)(SR_NTID_X + k), l->block[k]);
		fill_special(w, (enum Special)(SR_NCTAID_X + k), l->grid[k]);
		fill_special(w, (enum Special)(SR_CLUSTER_NCTAID_X + k), l->cluster[k]);
		fill_special(w, (enum Special)(SR_NCLUSTERID_X + k), l->grid[k] / l->cluster[k]);
	}
	fill_special(w, SR_WARPID, w->index);
	fill_special(w, SR_NWARPID, (uint32_t)w->block->nwarp);
	fill_special(w, SR_NSMID, 1);
	fill_special(w, SR_DYNAMIC_SMEM, l->dynamic);
	fill_special(w, SR_TOTAL_SMEM, w->block->shared_bytes);
	fill_special(w, SR_CLUSTER_NCTARANK, l->cluster[0] * l->cluster[1] * l->cluster[2]);
	*REG(w, uint32_t, SR_IS_EXPLICIT_CLUSTER * 128u) =
	        l->cluster[0] * l->cluster[1] * l->cluster[2] > 1 ? ALL_LANES : 0;
}

static void
warp_start(Warp *w, const Launch *l)
{
	const Block *b = w->block;
	int threads = b->nthread - (int)w->base;

	w->lanes = threads >= LANES ? ALL_LANES : (1u << threads) - 1;
	w->mask = w->live = w->lanes;
	w->parked = 0;
	w->pc = l->func->first;
	w->next = UINT32_MAX;
	w->barrier = w->cluster_phase = -1;
	w->done = false;
	w->hold = w->fair = 0;
	w->ncopy = w->nproduct = 0;
	w->products = w->fenced = 0;
	memset(w->depth, 0, sizeof w->depth);
	memset(w->group, 0, sizeof w->group);
	memset(w->clock, 0, sizeof w->clock);
	w->clock[b->rank * MAX_WARPS + w->index] = 1;
	if (b->frame_bytes) {
		memset(w->frame, 0xff, (size_t)b->frame_bytes * LANES);
		memset(w->frame_state, 0, (size_t)b->frame_bytes * LANES);
	}
	for (uint32_t k = 0; k < 3; k++) {
		fill_special(w, (enum Special)(SR_CTAID_X + k), b->id[k]);
		fill_special(w, (enum Special)(SR_CLUSTER_CTAID_X + k), b->id[k] % l->cluster[k]);
		fill_special(w, (enum Special)(SR_CLUSTERID_X + k), b->id[k] / l->cluster[k]);
	}
	fill_special(w, SR_CLUSTER_CTARANK, b->rank);
}

static uint32_t
block_shared(const Launch *l)
{
	uint32_t n = l->func->shared_static;

	return l->dynamic ? ((n + 15) & ~15u) + l->dynamic : n;
}

static size_t
block_room(const Launch *l, int nwarp)
{
	uint32_t shared = (block_shared(l) + 15) & ~15u;
	size_t warp = align64(sizeof(Warp)) + regs_bytes(l) + 2 * align64((size_t)l->func->frame_to * LANES);

	return align64(sizeof(Block)) + 2 * align64(shared) + align64((shared / 4 + 1) * sizeof(SharedWord)) +
	       (size_t)nwarp * warp;
}

static void *
carve(uint8_t **at, size_t bytes)
{
	void *p = *at;

	*at += align64(bytes);
	return p;
}

static Block *
block_new(Group *g, Launch *l, uint8_t **at, uint32_t rank)
{
	Block *b = carve(at, sizeof *b);
	uint32_t shared = (block_shared(l) + 15) & ~15u;

	memset(b, 0, sizeof *b);
	b->launch = l;
	b->group = g;
	b->rank = rank;
	b->nthread = (int)(l->block[0] * l->block[1] * l->block[2]);
	b->nwarp = (b->nthread + LANES - 1) / LANES;
	b->shared_bytes = block_shared(l);
	b->frame_bytes = l->func->frame_to;
	b->shared = carve(at, shared);
	b->shared_state = carve(at, shared);
	b->word = carve(at, (shared / 4 + 1) * sizeof(SharedWord));
	for (int k = 0; k < b->nwarp; k++) {
		Warp *w = b->warp[k] = carve(at, sizeof *w);

		memset(w, 0, sizeof *w);
		w->block = b;
		w->index = (uint32_t)k;
		w->base = (uint32_t)k * LANES;
		w->rf = carve(at, regs_bytes(l));
		w->frame = carve(at, (size_t)b->frame_bytes * LANES);
		w->frame_state = carve(at, (size_t)b->frame_bytes * LANES);
		warp_prepare(w, l);
	}
	return b;
}

/* Rooms of groups that have ended, for those of later launches: fresh memory of the system costs more than a small
 * kernel does. */
enum { ROOMS = 8 };
typedef struct Room { uint8_t *at; size_t bytes; } Room;
static _Thread_local Room rooms[ROOMS];

/* The smallest that will do, else a new one. */
static Room
room_take(size_t bytes)
{
	Room *best = NULL, r;

	for (Room *k = rooms; k < rooms + ROOMS; k++)
		if (k->at && k->bytes >= bytes && (!best || k->bytes < best->bytes))
			best = k;
	if (!best)
		return (Room){aligned_alloc(64, align64(bytes)), align64(bytes)};
	r = *best;
	best->at = NULL;
	return r;
}

/* The smallest of all goes where there is no place. */
static void
room_give(Room r)
{
	Room *least = rooms;

	for (Room *k = rooms; k < rooms + ROOMS && least->at; k++)
		if (!k->at || k->bytes < least->bytes)
			least = k;
	if (least->at && least->bytes > r.bytes) {
		free(r.at);
		return;
	}
	free(least->at);
	*least = r;
}

static Group *
group_new(Launch *l)
{
	int nblock = (int)(l->cluster[0] * l->cluster[1] * l->cluster[2]),
	    nthread = (int)(l->block[0] * l->block[1] * l->block[2]);
	size_t room = block_room(l, (nthread + LANES - 1) / LANES) * (size_t)nblock + 64;
	Group *g = calloc(1, sizeof *g);
	Room r = room_take(room);
	uint8_t *at = r.at;

	if (!g || !at)
		abort();
	g->launch = l;
	g->room = at;
	g->room_bytes = r.bytes;
	g->nblock = nblock;
	for (int k = 0; k < nblock; k++)
		g->block[k] = block_new(g, l, &at, (uint32_t)k);
	return g;
}

static void
group_free(Group *g)
{
	for (int k = 0; k < g->nblock; k++) {
		for (int i = 0; i < g->block[k]->nwarp; i++) {
			free(g->block[k]->warp[i]->copy);
			free(g->block[k]->warp[i]->product);
		}
		free(g->block[k]->mbarrier);
	}
	free(g->bulk);
	room_give((Room){g->room, g->room_bytes});
	free(g);
}

/* Puts cluster number n of the grid into the group. */
static void
group_start(Group *g, uint64_t n)
{
	const Launch *l = g->launch;
	uint32_t across[3], at[3];

	for (int k = 0; k < 3; k++)
		across[k] = l->grid[k] / l->cluster[k];
	at[0] = (uint32_t)(n % across[0]) * l->cluster[0];
	at[1] = (uint32_t)(n / across[0] % across[1]) * l->cluster[1];
	at[2] = (uint32_t)(n / across[0] / across[1]) * l->cluster[2];
	g->number = n;
	g->ran = 0;
	g->cluster_arrived = g->cluster_phase = 0;
	g->nbulk = 0;
	g->bulk_clock = 0;
	memset(g->cluster_clock, 0, sizeof g->cluster_clock);
	for (int k = 0; k < g->nblock; k++) {
		Block *b = g->block[k];
		uint32_t r = (uint32_t)k;

		b->id[0] = at[0] + r % l->cluster[0];
		b->id[1] = at[1] + r / l->cluster[0] % l->cluster[1];
		b->id[2] = at[2] + r / l->cluster[0] / l->cluster[1];
		memset(b->shared, 0xff, b->shared_bytes);
		memset(b->shared_state, 0, b->shared_bytes);
		memset(b->word, 0, (b->shared_bytes / 4 + 1) * sizeof *b->word);
		memset(b->barrier, 0, sizeof b->barrier);
		b->nmbarrier = 0;
		for (int i = 0; i < b->nwarp; i++)
			warp_start(b->warp[i], l);
	}
}

static _Noreturn void
group_stuck(Group *g)
{
	for (int k = 0; k < g->nblock; k++)
		for (int i = 0; i < g->block[k]->nwarp; i++) {
			Warp *w = g->block[k]->warp[i];
			int ended = 0, elsewhere = 0;

			if (w->done)
				continue;
			for (int j = 0; j < g->block[k]->nwarp; j++) {
				const Warp *o = g->block[k]->warp[j];

				ended += o->done;
				elsewhere += !o->done && (o->barrier != w->barrier || o->pc != w->pc);
			}
			report(w, &g->launch->module->ins[w->pc ? w->pc - 1 : 0], -1, CUDA_ERROR_LAUNCH_FAILED,
			       "a barrier is not reached by all threads: of %d warps %d have ended and %d wait "
			       "elsewhere",
			       g->block[k]->nwarp, ended, elsewhere);
		}
	abort();
}

/* A round over the warps, in random order. True while some are not done. */
static bool
group_round(Group *g)
{
	Warp *list[MAX_WARPS * MAX_CLUSTER];
	int n = 0, ran = 0;

	for (int k = 0; k < g->nblock; k++)
		for (int i = 0; i < g->block[k]->nwarp; i++)
			if (!g->block[k]->warp[i]->done)
				list[n++] = g->block[k]->warp[i];
	if (!n)
		return false;
	for (int i = n - 1; i > 0; i--) {
		int j = (int)(random_next(&worker->random) % (uint64_t)(i + 1));
		Warp *t = list[i];

		list[i] = list[j];
		list[j] = t;
	}
	for (int i = 0; i < n; i++) {
		uint64_t before = worker->warp_instructions;

		if (list[i]->barrier >= 0)
			continue;
		warp_run(list[i], STEPS);
		/* Waiting for the cluster is one instruction that did nothing. */
		ran += worker->warp_instructions - before > 1 || list[i]->cluster_phase < 0 || list[i]->done;
	}
	if (group_bulk_pending(g)) {
		bulk_land(g, !ran);
		return true;
	}
	for (int i = 0; i < n && !ran; i++)
		ran += list[i]->barrier < 0 &&
		       (list[i]->cluster_phase < 0 || g->cluster_phase != (uint32_t)list[i]->cluster_phase);
	if (!ran)
		group_stuck(g);
	return true;
}

/* Runs the group to its end, or until it has had its share; true if it ended. */
static bool
group_run(Group *g)
{
	Launch *l = g->launch;
	uint64_t start = worker->warp_instructions, quiet = start, stores = worker->stores,
	         looks = worker->looks;

	while (group_round(g)) {
		uint64_t ran = worker->warp_instructions - start;

		if (__atomic_load_n(&l->status, __ATOMIC_RELAXED))
			return true;
		if (g->ran + ran > l->limit) {
			Warp *w = g->block[0]->warp[0];

			for (int k = 0; k < g->nblock; k++)
				for (int i = 0; i < g->block[k]->nwarp; i++)
					w = g->block[k]->warp[i]->done ? w : g->block[k]->warp[i];
			report(w, &l->module->ins[w->pc == UINT32_MAX ? 0 : w->pc], -1, CUDA_ERROR_LAUNCH_TIMEOUT,
			       "the block has run %llu instructions: given up", (unsigned long long)(g->ran + ran));
		}
		if (stores != worker->stores) {
			stores = worker->stores;
			quiet = worker->warp_instructions;
			looks = worker->looks;
		}
		if (ran > PATIENCE || worker->looks - looks > LOOKS || worker->warp_instructions - quiet > SPIN) {
			g->ran += ran;
			return false;
		}
	}
	return true;
}

typedef struct Line { Group *aside[MAX_GROUPS], *spare; int n; } Line; /* groups of a worker that have begun */

static void
line_remove(Line *a, Group *g)
{
	int k = 0;

	for (int i = 0; i < a->n; i++)
		if (a->aside[i] != g)
			a->aside[k++] = a->aside[i];
	a->n = k;
	if (a->spare)
		group_free(a->spare);
	a->spare = g;
}

/* Takes groups until none is left; leaves by longjmp where a kernel is at fault. */
static __attribute__((noinline)) void
line_work(Launch *l, Line *a)
{
	for (;;) {
		uint64_t number = a->n < MAX_GROUPS ? __atomic_fetch_add(&l->taken, 1, __ATOMIC_RELAXED) : l->blocks;
		bool fresh = number < l->blocks;
		Group *g;

		if (__atomic_load_n(&l->status, __ATOMIC_RELAXED) || (!fresh && !a->n))
			return;
		if (fresh) {
			g = a->spare ? a->spare : group_new(l);
			a->spare = NULL;
			worker->random = l->seed + number * 0x9e3779b97f4a7c15u;
			a->aside[a->n++] = g;
			group_start(g, number);
		}
		g = a->aside[fresh ? a->n - 1 : 0];
		if (group_run(g)) {
			line_remove(a, g);
		} else if (!fresh) { /* its turn is over: to the end of the line */
			memmove(a->aside, a->aside + 1, (size_t)(a->n - 1) * sizeof *a->aside);
			a->aside[a->n - 1] = g;
		}
	}
}

static void
launch_work(Launch *l)
{
	Line *a = calloc(1, sizeof *a);
	Worker me = { .launch = l };

	if (!a)
		abort();
	worker = &me;
	if (!setjmp(me.fail))
		line_work(l, a);
	worker = NULL;
	for (int i = 0; i < a->n; i++)
		group_free(a->aside[i]);
	if (a->spare)
		group_free(a->spare);
	free(a);
	__atomic_fetch_add(&l->warp_instructions, me.warp_instructions, __ATOMIC_RELAXED);
	__atomic_fetch_add(&l->thread_instructions, me.thread_instructions, __ATOMIC_RELAXED);
}

/* worker threads */

typedef struct Pool {
	pthread_mutex_t lock;
	pthread_cond_t wake, rest;
	Launch *launch;
	uint64_t generation;
	int threads, busy;
} Pool;

static Pool pool = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .rest = PTHREAD_COND_INITIALIZER};

static void *
pool_thread(void *unused)
{
	uint64_t seen = 0;

	(void)unused;
	pthread_mutex_lock(&pool.lock);
	for (;;) {
		Launch *l;

		while (pool.generation == seen)
			pthread_cond_wait(&pool.wake, &pool.lock);
		seen = pool.generation;
		l = pool.launch;
		if (!l)
			continue;
		pool.busy++;
		pthread_mutex_unlock(&pool.lock);
		launch_work(l);
		pthread_mutex_lock(&pool.lock);
		pool.busy--;
		pthread_cond_broadcast(&pool.rest);
	}
	return NULL;
}

static void
pool_announce(Launch *l)
{
	pthread_mutex_lock(&pool.lock);
	while (pool.threads < device.set.threads - 1) {
		pthread_t id;

		if (pthread_create(&id, NULL, pool_thread, NULL))
			break;
		pthread_detach(id);
		pool.threads++;
	}
	pool.launch = l;
	pool.generation++;
	pthread_cond_broadcast(&pool.wake);
	pthread_mutex_unlock(&pool.lock);
}

static void
pool_finish(void)
{
	pthread_mutex_lock(&pool.lock);
	pool.launch = NULL;
	while (pool.busy)
		pthread_cond_wait(&pool.rest, &pool.lock);
	pthread_mutex_unlock(&pool.lock);
}

CUresult
launch_run(Launch *l)
{
	l->blocks =
	        (uint64_t)(l->grid[0] / l->cluster[0]) * (l->grid[1] / l->cluster[1]) * (l->grid[2] / l->cluster[2]);
	l->taken = 0;
	l->status = CUDA_SUCCESS;
	pthread_mutex_init(&l->lock, NULL);
	if (l->blocks > 1 && device.set.threads > 1) {
		pool_announce(l);
		launch_work(l);
		pool_finish();
	} else {
		launch_work(l);
	}
	pthread_mutex_destroy(&l->lock);
	return l->status;
}
