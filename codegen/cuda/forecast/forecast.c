/* forecast.c: how long a program's kernels take, from their machine code.
 *
 * In: the kernels of the training step, and the cubins of their functions.   Out: JSON, a record for each: blocks that
 * a multiprocessor holds and why no more, waves, instructions, the time, and what binds it. The model. One warp is
 * followed through its code (sass.c): an instruction begins when the scoreboards that it waits for are free and the
 * stall count of the one before is over; loops are followed twice, the second time stands for all later ones. That
 * gives a warp's time alone, its issue slots and its cycles of shared memory. k blocks of W warps on a multiprocessor
 * take the longest of: that time; k W times the slots by 4 schedulers; k W times the cycles of shared memory; k blocks'
 * products at the machine's rate. Blocks come in waves; the device's memory takes the plan's bytes at the machine's
 * rate whatever happens. Behind the last block comes the tail: sums over blocks, whose loads are each waited for. How
 * often a loop turns follows from the plan: rounds of k, attention's tiles of columns, pixels, the tile's elements
 * by those that a turn takes, the kernel's bytes by those of a turn. A branch ahead that has a condition is not taken:
 * both sides of an `if` cost. Blocks of one wave run in step. Copies into shared memory, by cp.async and by the device,
 * are taken to have come when they are waited for. Latencies are those of an idle device (sass.c). Held against an
 * H100: tests/gpu/measured.md. */
#include "forecast.h"
#include "../composite/cells.h"
#include "../contract/gemm.h"
#include "sass.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a multiprocessor. */
enum { SCHEDULERS = 4, SM_WARPS = 64, SM_BLOCKS = 32, SM_REGISTERS = 65536 };

typedef struct Work {
	const Machine *m;
	const KernelRec *k;
	const CuFunction *f;
	const Code *c;
	bool hopper, gemm;
	bool attention;          /* rounds: of columns */
	/* of a loop over pixels: its turns, 0: none; what comes from memory, not from L2, of what it loads, a share */
	double pixels, fresh;
	Tiles p;
	int warps;
	double rounds, elements, bytes, flops; /* of a block: rounds of k; of a thread: of its result; of the kernel */
	/* values that a thread of the last block adds up one after the other: of columns, of parts of k by level */
	double finished, parts[2];
	double steps;            /* of a recurrence, 0: it is none */
	bool from_l2;            /* its weights are more than an L1 keeps, and no block holds them */
	double exchanged;        /* bytes that blocks which hold them read of each other, through the L2 */
	/* of rows: elements of a row, 0: it has none, and of one for a thread; bytes of one that are read, that are
	 * read of what repeats from row to row, that are stored */
	double row, row_each, row_read, row_beside, row_stored;
} Work;
/* Of a warp. */
typedef struct Walk {
	double t, ready[6], slots, shared, cache,
	    waited; /* cycles; instructions; cycles of shared memory; bytes from L2; cycles of waiting for memory */
	int wait_kind[6];
	double round_slots, round_time, round_loads; /* of the loop over k, a turn: its waits for global memory */
	double ticket, ticket_slots,
	    ticket_shared; /* t, slots and shared where the block asks whether it is the last; 0: it does not */
	double port;       /* when the multiprocessor has what was asked of the L2, of a recurrence */
	double *spent;     /* NULL, or cycles that passed before each instruction began, by its number */
} Walk;

/* ---------------------------------------------------------------- loops */
static bool
is_load(int kind)
{
	return kind == SASS_LDG || kind == SASS_LDGR || kind == SASS_LD;
}

static bool
is_store(int kind)
{
	return kind == SASS_STG || kind == SASS_STGR || kind == SASS_ST;
}

static bool
is_product(int kind, const Work *w)
{
	return kind == SASS_HMMA || kind == SASS_HGMMA ||
	       (w->gemm && !w->p.mma && (kind == SASS_FFMA || kind == SASS_FFMA2 || kind == SASS_FFMA3));
}

typedef struct Inside {
	int products, fma, loads, strong, stores, shared, barriers;
	double bytes, shared_bytes, strong_bytes, stored;
	bool nested, nested_products, nested_barriers;
} Inside;

static Inside
inside_of(const Work *w, SassLoop l)
{
	const Code *c = w->c;
	Inside r = {0};

	for (int i = l.first; i <= l.last; i++) {
		const Insn *x = &c->at[i];

		r.products += is_product(x->kind, w);
		r.fma += x->kind == SASS_FFMA || x->kind == SASS_FFMA2 || x->kind == SASS_FFMA3;
		r.loads += is_load(x->kind);
		r.strong += x->strong;
		r.strong_bytes += x->strong && is_load(x->kind) ? x->width : 0;
		r.stores += is_store(x->kind);
		r.shared += x->kind == SASS_LDS;
		r.barriers += x->kind == SASS_BAR;
		r.shared_bytes += x->kind == SASS_LDS ? x->width : 0;
		r.bytes += is_load(x->kind) || is_store(x->kind) ? x->width : 0;
		r.stored += is_store(x->kind) ? x->width : 0;
	}
	for (uint32_t k = 0; k < c->loop.n; k++) {
		SassLoop n = c->loop.at[k];

		if (n.first < l.first || n.last > l.last || (n.first == l.first && n.last == l.last))
			continue;
		r.nested = true;
		for (int i = n.first; i <= n.last; i++) {
			r.nested_products |= is_product(c->at[i].kind, w);
			r.nested_barriers |= c->at[i].kind == SASS_BAR;
		}
	}
	return r;
}

static double
at_least_one(double x)
{
	return x < 1 ? 1 : x;
}

/* Turns of the epilogue's loop over rows of a tile that lie in shared memory at a time. */
static double
slabs(const Work *w)
{
	return w->p.m / cu_slab_rows(&w->p, w->f->shared);
}

/* The bytes of all innermost loops, a turn of each. */
static double
turn_bytes(const Work *w)
{
	double bytes = 0;

	for (uint32_t k = 0; k < w->c->loop.n && w->c->loop.at[k].last < w->c->body; k++) {
		Inside i = inside_of(w, w->c->loop.at[k]);

		bytes += i.nested ? 0 : i.bytes;
	}
	return bytes;
}

/* Of a recurrence: the loop over steps is the innermost with a barrier; within it FMAs turn as often as all of
 * them ask for, and what takes words of other blocks as these are many (the loop in it, which looks again, once); what
 * else turns is short. */
static double
turns_of_steps(const Work *w, const Inside *i, double threads)
{
	if (i->barriers)
		return i->nested_barriers ? 1 : w->steps;
	if (i->nested && i->strong_bytes > 0)
		return at_least_one(ceil(w->exchanged / (w->steps * threads * i->strong_bytes)));
	return !i->nested && i->fma > 3 ? at_least_one(w->flops / (w->steps * threads * 2.0 * i->fma)) : 1;
}

/* Elements of a row that a turn takes. */
static double
row_taken(const Work *w, const Inside *i)
{
	return at_least_one(i->stored > 0 && w->row_stored > 0
	                            ? i->stored / w->row_stored
	                            : (i->bytes - i->stored) / (w->row_read + w->row_beside));
}

/* Is it what an unrolled loop over the row leaves: another, of longer turns, with no barrier between them? */
static bool
row_left(const Work *w, SassLoop l, const Inside *mine)
{
	for (uint32_t k = 0; k < w->c->loop.n; k++) {
		SassLoop o = w->c->loop.at[k];
		Inside i = inside_of(w, o);
		int from = o.last < l.first ? o.last : l.last, to = o.last < l.first ? l.first : o.first, at = from;

		while (at < to && w->c->at[at].kind != SASS_BAR)
			at++;
		if (!i.nested && from < to && at == to && row_taken(w, &i) > row_taken(w, mine))
			return true;
	}
	return false;
}

/* Does it go over a row that is read from memory? */
static bool
is_row_pass(const Work *w, SassLoop l, const Inside *i)
{
	return l.last < w->c->body && !i->nested && i->bytes - i->stored >= w->row_read && !row_left(w, l, i);
}

static double
turns(const Work *w, SassLoop l)
{
	Inside i = inside_of(w, l);
	double threads = (double)WARP * w->warps * (double)w->k->rows;

	if (w->steps > 0)
		return turns_of_steps(w, &i, threads);
	if (w->attention && i.products)
		return i.nested_products ? 1 : w->rounds;
	if (l.first >= w->c->body) /* a function of sums over blocks: its loads are in a row or unrolled */
		return at_least_one(w->finished / (i.loads > 2 ? i.loads / (i.loads % 3 ? 1 : 3) : 1));
	if (w->gemm && i.products)
		return i.nested_products ? 1 : w->rounds;
	if (w->gemm && i.strong) /* parts of k: the tail's, but for what comes before each level */
		return i.nested && !i.products && w->parts[1] > 0 ? 2 : 1;
	if (w->gemm && i.shared && (i.stores || i.loads))
		return at_least_one(i.nested ? slabs(w) : w->elements / (i.shared_bytes / 4) / slabs(w));
	if (w->gemm && i.shared && !i.nested) /* sums of a column, over the threads that have it */
		return at_least_one(w->finished / i.shared);
	if (i.products && !i.nested_products)
		return at_least_one(w->flops / (threads / WARP * 4096.0 * i.products));
	if (w->pixels > 0 && i.loads && !i.nested)
		return w->pixels;
	if (i.nested || w->gemm)
		return 1;
	if (w->row > 0)
		return is_row_pass(w, l, &i) ? at_least_one(w->row_each / row_taken(w, &i)) : 1;
	double bytes = turn_bytes(w);

	return i.bytes > 0 && bytes > 0 ? at_least_one(w->bytes / (threads * bytes)) : 1;
}

/* ---------------------------------------------------------------- a warp's way */
static void
step(const Work *w, Walk *x, const Insn *i, double times, double *loads)
{
	double latency = cu_sass_latency((SassKind)i->kind, w->hopper);

	for (int b = 0; b < 6; b++) {
		if (!(i->waits >> b & 1) || x->ready[b] <= x->t)
			continue;
		if (is_load(x->wait_kind[b]) && x->ready[b] - x->t > 100) {
			x->waited += times * (x->ready[b] - x->t);
			*loads += 1;
		}
		if (x->spent)
			x->spent[i - w->c->at] += times * (x->ready[b] - x->t);
		x->t = x->ready[b];
	}
	if (i->kind == SASS_MEMBAR && !i->strong)
		latency = cu_sass_latency(SASS_BAR, w->hopper);
	if (x->spent)
		x->spent[i - w->c->at] +=
		        times * (i->stall + (i->kind == SASS_BAR || i->kind == SASS_MEMBAR ? latency : 0));
	x->slots += times;
	if (i->kind == SASS_LDS || i->kind == SASS_STS || i->kind == SASS_STSI || i->kind == SASS_LDSM ||
	    i->kind == SASS_LDGSTS || is_load(i->kind) || is_store(i->kind))
		x->shared += times * at_least_one(i->width * WARP / 128.0);
	if (i->paired && w->gemm) /* values of channels, which stay in the L1 */
		latency = w->hopper ? 41 : 38;
	if (w->pixels > 0 && is_load(i->kind))
		latency = w->fresh * latency + (1 - w->fresh) * cu_sass_latency(SASS_ATOMG, w->hopper);
	if (i->strong && is_load(i->kind))
		latency = cu_sass_latency(SASS_ATOMG, w->hopper); /* from L2 */
	if (i->strong && is_load(i->kind) && w->steps > 0) {
		/* what another block writes now: a store's way, then a look half a look late; behind what the block's
		 * warps have asked for before */
		x->port = fmax(x->port, x->t) + (double)(i->width * WARP * w->warps) / L2_READ;
		latency = 1.5 * latency + x->port - x->t;
	}
	if (w->from_l2 && is_load(i->kind))
		x->cache += times * i->width * WARP;
	if (i->kind == SASS_BAR || i->kind == SASS_MEMBAR)
		x->t += latency;
	x->t += i->stall ? i->stall : 1;
	if (i->kind == SASS_ATOMG && x->ticket <= 0) { /* what follows is for the last block */
		x->ticket = x->t + latency;
		x->ticket_slots = x->slots;
		x->ticket_shared = x->shared;
	}
	if (i->sets < 6) {
		double ready = x->t + (latency > 0 ? latency : 15);

		if (ready > x->ready[i->sets]) {
			x->ready[i->sets] = ready;
			x->wait_kind[i->sets] = i->paired ? SASS_OTHER : i->kind;
		}
	}
	if (i->reads < 6 && x->t + 15 > x->ready[i->reads]) {
		x->ready[i->reads] = x->t + 15;
		x->wait_kind[i->reads] = SASS_OTHER;
	}
}

/* Follows instructions [from, to), which happen `times` times; inside: they are a loop's, whose end is to - 1. */
static void walk(const Work *w, Walk *x, int from, int to, double times, double *loads, bool inside);

/* The widest loop that begins here and ends before `to`. */
static const SassLoop *
loop_at(const Code *c, int at, int to)
{
	const SassLoop *best = NULL;

	for (uint32_t k = 0; k < c->loop.n; k++)
		if (c->loop.at[k].first == at && c->loop.at[k].last < to && (!best || c->loop.at[k].last > best->last))
			best = &c->loop.at[k];
	return best;
}

static void
loop_walk(const Work *w, Walk *x, SassLoop l, double times, double *loads)
{
	Inside in = inside_of(w, l);
	double n = turns(w, l), first = x->t, slots, inner = 0;
	bool round = w->gemm && in.products && !in.nested_products;

	walk(w, x, l.first, l.last + 1, times, loads, true);
	if (n < 2)
		return;
	first = x->t;
	slots = x->slots;
	walk(w, x, l.first, l.last + 1, times * (n - 1), &inner, true);
	if (round) {
		x->round_time = x->t - first;
		x->round_slots = (x->slots - slots) / (times * (n - 1));
		x->round_loads = inner;
	}
	double turn = x->t - first, more = turn * (n - 2);

	x->t += more;
	for (int b = 0; b < 6; b++)
		x->ready[b] += more;
	*loads += inner;
}

static void
walk(const Work *w, Walk *x, int from, int to, double times, double *loads, bool inside)
{
	const Code *c = w->c;

	for (int i = from; i < to; i++) {
		const SassLoop *l = loop_at(c, i, i == from && inside ? to - 1 : to);

		if (l) {
			loop_walk(w, x, *l, times, loads);
			i = l->last;
			continue;
		}
		step(w, x, &c->at[i], times, loads);
		if (c->at[i].kind == SASS_EXIT && c->at[i].always)
			return;
		if (c->at[i].kind == SASS_BRA && c->at[i].always && c->at[i].target > i) {
			if (c->at[i].target >= to)
				return;
			i = c->at[i].target - 1;
		}
	}
}

/* Parts of k are added in loops, some slots a turn: how often these turn. */
static bool
adds_parts(const Work *w, SassLoop l, const Inside *i)
{
	return l.first < w->c->body && i->strong && !i->nested && !i->products;
}

/* A thread's loads of such loops, a turn of each. */
static double
loads_of_parts(const Work *w)
{
	double loads = 0;

	for (uint32_t k = 0; k < w->c->loop.n; k++) {
		Inside i = inside_of(w, w->c->loop.at[k]);

		loads += adds_parts(w, w->c->loop.at[k], &i) ? i.loads : 0;
	}
	return loads;
}

static double
turns_of_parts(const Work *w, double loads)
{
	double each = (double)w->p.m * w->p.n / (4.0 * WARP * w->warps), turns = 0;

	for (int l = 0; l < 2 && loads > 0 && w->parts[l] > 0; l++)
		turns += at_least_one(ceil(w->parts[l] * each / loads));
	return turns > 0 ? turns : 1;
}

/* Cycles that a multiprocessor takes to read what all threads of a block load of L2, 16 bytes each: alone it has twice
 * what it has beside all others. */
static double
read_of_l2(const Work *w, double loads)
{
	return loads * 16 * WARP * w->warps / (2 * w->m->rates.cache / w->m->sms / w->m->hz);
}

/* Functions that are called, to add up what blocks left: once for each call. */
static double
tail_of(const Work *w)
{
	const Code *c = w->c;
	double tail = 0, loads = 0;

	for (int i = 0; i < c->body; i++) {
		int from = c->at[i].kind == SASS_CALL ? c->at[i].target : -1, to = from;
		bool sums = false;

		while (to >= 0 && to < c->n && c->at[to].kind != SASS_RET)
			sums |= c->at[to++].strong;
		if (!sums)
			continue;
		Walk x = {0};

		walk(w, &x, from, to, 1, &loads, false);
		tail += x.t;
	}
	double all = w->gemm && w->p.split > 1 ? loads_of_parts(w) : 0;

	for (uint32_t k = 0; k < c->loop.n && all > 0; k++) { /* parts of k, one after the other */
		Inside i = inside_of(w, c->loop.at[k]);
		Walk x = {0};

		if (!adds_parts(w, c->loop.at[k], &i))
			continue;
		walk(w, &x, c->loop.at[k].first, c->loop.at[k].last + 1, 1, &loads, true);
		tail += fmax(x.t + cu_sass_latency(SASS_ATOMG, w->hopper), read_of_l2(w, i.loads)) *
		        turns_of_parts(w, all);
	}
	return tail;
}

/* ---------------------------------------------------------------- a kernel */
static void
limit(CuForecast *r, int blocks, const char *why)
{
	if (blocks < r->blocks_sm) {
		r->blocks_sm = blocks;
		r->why_blocks = why;
	}
}

/* Blocks on a multiprocessor: registers are given to a warp in 256s. */
static void
residence(Arena *a, const Work *w, CuForecast *r)
{
	int regs = (w->c->regs + 7) / 8 * 8, shared = (int)w->f->shared + w->c->shared;
	int64_t room = w->m->shared + SHARED_KEPT;

	r->regs = w->c->regs;
	r->shared = shared;
	r->blocks_sm = SM_BLOCKS;
	r->why_blocks = "blocks";
	limit(r, SM_WARPS / w->warps, "threads");
	limit(r, regs ? SM_REGISTERS / (regs * WARP * w->warps) : SM_BLOCKS,
	      arena_printf(a, "%d registers", w->c->regs));
	limit(r, shared ? (int)(room / (shared + SHARED_KEPT)) : SM_BLOCKS,
	      arena_printf(a, "%d KiB of shared memory", shared >> 10));
	if (r->blocks_sm < 1)
		r->blocks_sm = 1;
}

/* Bytes that later passes over rows read again of memory: more rows are under way than the L2 keeps. */
static double
read_again(const Work *w, int blocks)
{
	double under_way = (double)blocks * w->m->sms * w->row * (w->row_read + w->row_stored), rows, passes = 0;

	if (w->row <= 0 || under_way < (double)w->m->l2.bytes)
		return 0;
	for (uint32_t k = 0; k < w->c->loop.n; k++) {
		Inside i = inside_of(w, w->c->loop.at[k]);

		passes += is_row_pass(w, w->c->loop.at[k], &i);
	}
	rows = (double)w->k->rows * (double)WARP * w->warps * w->row_each / w->row;
	return passes > 1 ? (passes - 1) * rows * w->row * w->row_read : 0;
}

typedef struct Bound {
	double seconds;
	const char *why;
} Bound;

static void
longest(Bound *b, double seconds, const char *why)
{
	if (seconds > b->seconds)
		*b = (Bound){seconds, why};
}

/* Seconds that `blocks` of one wave on each multiprocessor take. */
static Bound
wave(Arena *a, const Work *w, const Walk *x, const CuForecast *r, int blocks, double product_rate)
{
	double warps = (double)blocks * w->warps, hz = w->m->hz;
	double products = product_rate > 0 ? blocks * w->flops / (double)w->k->rows / (product_rate / w->m->sms) : 0;
	Bound b = {0};

	longest(&b, products, "products");
	longest(&b, warps * x->cache / (w->m->rates.cache / w->m->sms), "weights read from L2 in each step");
	longest(&b, warps * x->shared / hz, "shared memory's and the L1 cache's cycles");
	longest(&b, warps / SCHEDULERS * x->slots / hz,
	        x->round_slots > 0 ? arena_printf(a, "issue: %.0f instructions a warp and round", x->round_slots)
	                           : arena_printf(a, "issue: %.0f instructions a warp", x->slots));
	if (x->t / hz > b.seconds)
		longest(&b, x->t / hz,
		        x->round_loads >= 2
		                ? arena_printf(a,
		                               "%d block%s an SM (%s), %.0f loads in a row each round, each waited for",
		                               r->blocks_sm, r->blocks_sm > 1 ? "s" : "", r->why_blocks, x->round_loads)
		                : arena_printf(
		                          a, "%d block%s an SM (%s): a warp's own time, %.0f %% of it waits for memory",
		                          r->blocks_sm, r->blocks_sm > 1 ? "s" : "", r->why_blocks,
		                          100 * x->waited / x->t));
	return b;
}

static void
time_kernel(Arena *a, const Work *w, double rate, CuForecast *r)
{
	Walk x = {0};
	double loads = 0, memory = w->bytes / w->m->rates.bytes, tail;

	walk(w, &x, 0, w->c->body, 1, &loads, false);
	residence(a, w, r);
	double again = read_again(w, r->blocks_sm) / w->m->rates.bytes;

	memory += again;
	tail = tail_of(w);
	if (x.ticket > 0) {
		tail += x.t > x.ticket ? x.t - x.ticket : 0;
		x.t = x.ticket;
		x.slots = x.ticket_slots;
		x.shared = x.ticket_shared;
	}
	tail = w->k->check ? 0 : tail / w->m->hz; /* a check's is what it does with a fault */
	int64_t blocks = w->k->rows, at_once = (int64_t)r->blocks_sm * w->m->sms, whole = blocks / at_once,
	        rest = blocks % at_once;
	Bound full = wave(a, w, &x, r, r->blocks_sm, rate),
	      last = rest ? wave(a, w, &x, r, (int)((rest + w->m->sms - 1) / w->m->sms), rate) : (Bound){0, NULL};
	double busy = (double)whole * full.seconds + last.seconds, cache = w->exchanged / w->m->rates.cache;
	const char *slow = cache > memory ? "what blocks exchange, through the L2"
	                   : again > 0    ? "memory, which each pass over a row reads"
	                                  : "memory";

	memory = cache > memory ? cache : memory;

	r->waves = (double)blocks / (double)at_once;
	r->slots = x.slots;
	r->round_slots = x.round_slots;
	r->tail = tail;
	r->seconds = (busy > memory ? busy : memory) + tail + w->m->rates.start;
	const char *why = busy <= memory ? slow : whole ? full.why : last.why;

	if (busy > memory && whole > 0 && whole < 4 && rest && last.seconds > 0.2 * busy &&
	    last.seconds > 1.3 * full.seconds * (double)rest / (double)at_once)
		why = arena_printf(a, "%s; %.2f waves", why, r->waves);
	if (tail > 0.25 * r->seconds)
		why = arena_printf(a, "%s; sums over blocks: %.1f us", why, 1e6 * tail);
	r->why = why;
}

/* The same of sums of columns without a contraction (columns.c). */
static double
columns_finished(const Work *w, const Graph *g, const char *kernel, int group)
{
	Params p;
	double finished = 0;

	if (!kernel || !space_parse("cuda", NULL, kernel, &p) || p.family != FAMILY_cuda_columns)
		return 0;
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group || op_info[op->kind].red < 0)
			continue;
		int64_t tiles = cu_tiles_along(cu_columns_facts(g, op, NULL).M, p.cuda_columns.m);

		finished = (double)(cu_parts_at_once(tiles) * p.cuda_columns.n) / ((double)WARP * w->warps);
	}
	return finished;
}

/* Of a group of several kernels each has its own. */
static void
attention_work(Work *w, const Graph *g, const Op *op, const char *kernel, int group)
{
	Params p;

	if (op->dead || op->group != group || !cu_attention_op((OpKind)op->kind) ||
	    !space_parse("cuda", op_info[op->kind].name, kernel, &p))
		return;
	AttentionWork work = cu_attention_work(g, op, &p, w->f->what);

	w->attention = true;
	w->rounds = work.turns;
	w->flops = work.flops;
	w->bytes = work.bytes;
}

/* What the group says of its rows, where the kernel goes over these. */
static void
rows_work(Work *w, const Graph *g, const KernelRec *k)
{
	const Op *red = NULL;
	uint32_t last, first = k->group >= 0 ? graph_group_ops(g, k->group, &last) : (last = 0);
	const char *kernel = k->group >= 0 ? g->group.at[k->group].kernel : NULL;
	Params p;

	if (!kernel || strncmp(w->f->what, "a row to", 8) || !space_parse("cuda", NULL, kernel, &p) ||
	    p.family != FAMILY_cuda_rows || p.cuda_rows.threads == 1)
		return;
	for (uint32_t i = first; i < last && !red; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == k->group && op_info[g->op.at[i].kind].red >= 0)
			red = &g->op.at[i];
	const Type *t = red ? val_type(g, red->in[0]) : NULL;
	int inner = t ? cu_inner_axis(t) : -1;
	Arena *a = arena_new();
	bool *seen = arena_array(a, bool, g->val.n);

	for (uint32_t i = first; inner >= 0 && i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int j = 0; !op->dead && op->group == k->group && j < op->nin + op->nout; j++) {
			Val v = j < op->nin ? op->in[j] : op->out[j - op->nin];
			const Type *of = val_type(g, v);
			const Op *by = val_op(g, v);
			bool own = by && by->group == k->group, whole = type_same_place(of, t);
			int bytes = dtype_info[of->dtype].bytes, along = cu_inner_axis(of);

			if (seen[v.id] || (own && !val_is_stored(g, v)))
				continue;
			seen[v.id] = true;
			w->row_read += !own && whole ? bytes : 0;
			w->row_stored += own && whole ? bytes : 0;
			w->row_beside +=
			        !own && !whole && along >= 0 && axis_same(of->axis[along], t->axis[inner]) ? bytes : 0;
		}
	}
	arena_free(a);
	if (w->row_read <= 0)
		return;
	w->row = (double)cu_rows_facts(g, red, NULL).K;
	w->row_each = w->row / (p.cuda_rows.threads * p.cuda_rows.pieces);
}

/* What the plan says of the kernel's work. */
static void
work_of(Work *w, const Graph *g, const KernelRec *k)
{
	const Op *op = k->group >= 0 ? graph_group_contraction(g, k->group) : NULL;
	const char *kernel = k->group >= 0 ? g->group.at[k->group].kernel : NULL;

	w->warps = (w->f->block + WARP - 1) / WARP;
	w->flops = k->flops;
	w->bytes = k->bytes;
	w->rounds = w->elements = 1;
	for (uint32_t last, i = k->group >= 0 ? graph_group_ops(g, k->group, &last) : (last = 0); i < last; i++) {
		attention_work(w, g, &g->op.at[i], kernel, k->group);
		if (!g->op.at[i].dead && g->op.at[i].group == k->group && cu_cells_op((OpKind)g->op.at[i].kind) &&
		    k->flops > 0) {
			Cells s = cu_cells_of(g, &g->op.at[i]);
			Params p;

			space_parse("cuda", NULL, kernel, &p);
			w->steps = (double)s.t;
			w->exchanged = cu_cells_exchanged(&s, &p);
			w->from_l2 = p.family == FAMILY_cuda_cells && p.cuda_cells.blocks == 1 &&
			             s.gates * s.h * s.h * dtype_info[s.dt].bytes > w->m->l1.bytes / 2;
		}
	}
	w->pixels = w->f->turns;
	if (w->pixels > 0)
		w->fresh = fmin(1, w->bytes / (turn_bytes(w) * w->pixels * WARP * w->warps * (double)k->rows));
	w->gemm = op && kernel && !strncmp(w->f->what, kernel, strlen(kernel)) && cu_gemm_parse(kernel, &w->p);
	if (w->gemm) {
		Form f = cu_form(g, op);
		int64_t depth = cu_form_count(f.k, f.nk);

		if (f.classes) /* each class has its share of the taps */
			depth = (depth + f.at.stride[0] * f.at.stride[1] - 1) / (f.at.stride[0] * f.at.stride[1]);
		w->rounds = (double)((cu_tiles_along(depth, w->p.k) + w->p.split - 1) / w->p.split + w->p.stages -
		                     (w->p.groups ? 2 : 1));
		w->elements = (double)(w->p.m * w->p.n) / ((double)WARP * w->warps);
		int64_t rows = cu_parts_at_once(cu_tiles_along(cu_form_count(f.m, f.nm), w->p.m));

		w->finished = (double)(rows * w->p.n) / ((double)WARP * w->warps);
		int64_t members = cu_parts_members(w->p.split, (int64_t)w->p.m * w->p.n);

		w->parts[0] = (double)members;
		w->parts[1] = members < w->p.split ? (double)((w->p.split + members - 1) / members) : 0;
	}
	w->finished += columns_finished(w, g, kernel, k->group);
	rows_work(w, g, k);
}

static const Code *
code_of(Arena *a, const CuProgram *p, const NvrtcJob *job, int fn, bool hopper, Code *known)
{
	const CuFunction *f = &p->fn.at[fn];

	if (f->plan)
		return NULL;
	if (!known[fn].name && !cu_code_read(a, &job[f->part].cubin_out, f->name, hopper, &known[fn]))
		return NULL;
	return &known[fn];
}

static void
put_forecast(Buf *b, const char *name, const CuForecast *r, const char *comma)
{
	buf_printf(b, "%s\n {\"name\": ", comma);
	buf_json(b, name);
	buf_printf(b,
	           ", \"us\": %.6g, \"tail_us\": %.4g, \"registers\": %d, \"shared\": %d, \"blocks\": %lld, "
	           "\"blocks_sm\": "
	           "%d, \"blocks_why\": ",
	           1e6 * r->seconds, 1e6 * r->tail, r->regs, r->shared, (long long)r->blocks, r->blocks_sm);
	buf_json(b, r->why_blocks);
	buf_printf(b, ", \"waves\": %.4g, \"instructions\": %.0f, \"round\": %.0f, \"why\": ", r->waves, r->slots,
	           r->round_slots);
	buf_json(b, r->why);
	buf_printf(b, "}");
}

/* ---------------------------------------------------------------- listings */
/* What nvdisasm says of a cubin: $MANTOU_NVDISASM, else that of the toolkit or in the path; NULL: it is not there. A
 * developer's tool: the package cuda-nvdisasm, or nvidia-cuda-nvdisasm of Python. */
static const char *
disassembled(Arena *a, const Buf *cubin)
{
	const char *given = getenv("MANTOU_NVDISASM"), *text = NULL;
	char path[] = "/tmp/mantou-XXXXXX", line[4096];
	int file = mkstemp(path);
	Buf b = {0};

	if (file < 0)
		return NULL;
	close(file);
	file_write(path, cubin->at, cubin->n);
	FILE *f = popen(arena_printf(a, "PATH=\"$PATH:/usr/local/cuda/bin\" '%s' -c -plr %s 2>/dev/null",
	                             given && *given ? given : "nvdisasm", path),
	                "r");

	while (f && fgets(line, sizeof line, f))
		buf_put(&b, line, strlen(line));
	if (f && !pclose(f) && b.n)
		text = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	unlink(path);
	return text;
}

/* The line of a listing that stands at an address of a function. */
static const char *
listed(Arena *a, const char *listing, const char *function, int number)
{
	const char *at = listing ? strstr(listing, arena_printf(a, ".text.%s:", function)) : NULL;

	at = at ? strstr(at, arena_printf(a, "/*%04x*/", 16 * number)) : NULL;
	if (!at)
		return "";
	at = strstr(at, "*/") + 2;
	at += strspn(at, " \t");
	return arena_strndup(a, at, strcspn(at, ";\n"));
}

/* Where a warp's time goes: the instructions before which most of it passes. */
static void
put_where(Arena *a, Buf *b, const Work *w, const char *listing)
{
	enum { SHOWN = 16 };
	const Code *c = w->c;
	double loads = 0;
	Walk x = {.spent = arena_array(a, double, c->n)};
	int count[NSASS] = {0};

	walk(w, &x, 0, c->body, 1, &loads, false);
	for (int i = 0; i < c->n; i++)
		count[c->at[i].kind]++;
	buf_printf(b, "  %d instructions, %d of them the kernel itself:", c->n, c->body);
	for (int k = 1; k < NSASS; k++)
		if (count[k])
			buf_printf(b, " %d %s", count[k], cu_sass_name((SassKind)k));
	buf_printf(b, "\n");
	for (uint32_t k = 0; k < c->loop.n; k++)
		if (c->loop.at[k].last < c->body)
			buf_printf(b, "  loop %04x to %04x: %.0f turns\n", 16 * c->loop.at[k].first,
			           16 * c->loop.at[k].last, turns(w, c->loop.at[k]));
	buf_printf(
	        b,
	        "  a warp's time: %.0f cycles, %.0f to issue, %.0f of shared memory and the L1; most of "
	        "it passes at\n",
	        x.t, x.slots, x.shared);
	for (int n = 0; n < SHOWN; n++) {
		int best = 0;

		for (int i = 1; i < c->n; i++)
			best = x.spent[i] > x.spent[best] ? i : best;
		if (x.spent[best] < x.t / 200)
			break;
		buf_printf(b, "    %04x %8.0f  %-8s %s\n", 16 * best, x.spent[best],
		           cu_sass_name((SassKind)c->at[best].kind), listed(a, listing, w->f->name, best));
		x.spent[best] = 0;
	}
}

void
cu_forecast_sass(CuProgram *p, const Machine *m, const NvrtcJob *job, Buf *out)
{
	bool hopper = atoi(m->arch + 3) >= 90;
	Code *known = arena_array(p->a, Code, p->fn.n + 1);
	const char **listing = arena_array(p->a, const char *, p->fn.n + 1);
	bool *told = arena_array(p->a, bool, p->fn.n + 1);

	for (uint32_t i = 0; i < p->ks.graph.n; i++) {
		const GraphKernels *gk = p->ks.graph.at[i];

		for (uint32_t j = 0; j < gk->k.n && (!strcmp(gk->g->name, "train") || !strcmp(gk->g->name, "update"));
		     j++) {
			const KernelRec *k = &gk->k.at[j];
			Work w = {.m = m, .k = k, .f = &p->fn.at[k->fn], .hopper = hopper};
			CuForecast r = {.blocks = k->rows};

			w.c = told[k->fn] ? NULL : code_of(p->a, p, job, k->fn, hopper, known);
			if (!w.c)
				continue;
			told[k->fn] = true;
			work_of(&w, gk->g, k);
			const char *kernel =
			    k->group >= 0 && gk->g->group.at[k->group].kernel ? gk->g->group.at[k->group].kernel : "";

			time_kernel(p->a, &w, cuda_product_rate(NULL, &w.m->rates, kernel), &r);
			buf_printf(out,
			           "%s: %s\n  %lld blocks of %d threads, %d registers, %d bytes of stack, %d of shared "
			           "memory; %d "
			           "blocks an SM (%s), %.2f waves; %.2f us, %.2f of them the tail: %s\n",
			           k->name, w.f->what, (long long)k->rows, w.f->block, r.regs, w.c->frame, r.shared,
			           r.blocks_sm, r.why_blocks, r.waves, 1e6 * r.seconds, 1e6 * r.tail, r.why);
			int part = p->fn.at[k->fn].part;

			if (!listing[part]) {
				listing[part] = disassembled(p->a, &job[part].cubin_out);
				listing[part] = listing[part] ? listing[part] : "";
			}
			put_where(p->a, out, &w, listing[part]);
		}
	}
}

/* False: there is no code to read. */
static bool
forecast_of(CuProgram *p, const Machine *m, const NvrtcJob *job, const Graph *g, const KernelRec *k, Code *known,
            CuForecast *r)
{
	bool hopper = atoi(m->arch + 3) >= 90;
	Work w = {.m = m, .k = k, .f = &p->fn.at[k->fn], .hopper = hopper};
	const char *kernel = k->group >= 0 && g->group.at[k->group].kernel ? g->group.at[k->group].kernel : "";

	*r = (CuForecast){.blocks = k->rows};
	w.c = code_of(p->a, p, job, k->fn, hopper, known);
	if (!w.c)
		return false;
	work_of(&w, g, k);
	time_kernel(p->a, &w, cuda_product_rate(NULL, &w.m->rates, kernel), r);
	return true;
}

double
cu_forecast_seconds(CuProgram *p, const Machine *m, const NvrtcJob *job, const Graph *g, const KernelRec *k, uint32_t n)
{
	Code *known = arena_array(p->a, Code, p->fn.n + 1);
	double seconds = 0;
	CuForecast r;

	for (uint32_t i = 0; i < n; i++)
		seconds += forecast_of(p, m, job, g, &k[i], known, &r) ? r.seconds : NAN;
	return seconds;
}

void
cu_forecast_json(CuProgram *p, const Machine *m, const NvrtcJob *job, Buf *out)
{
	Code *known = arena_array(p->a, Code, p->fn.n + 1);
	const char *comma = "";
	CuForecast r;

	buf_printf(out, "{\"kernels\": [");
	for (uint32_t i = 0; i < p->ks.graph.n; i++) {
		const GraphKernels *gk = p->ks.graph.at[i];

		for (uint32_t j = 0; j < gk->k.n && (!strcmp(gk->g->name, "train") || !strcmp(gk->g->name, "update"));
		     j++) {
			if (!forecast_of(p, m, job, gk->g, &gk->k.at[j], known, &r))
				continue;
			put_forecast(out, gk->k.at[j].name, &r, comma);
			comma = ",";
		}
	}
	buf_printf(out, "\n]}\n");
}
