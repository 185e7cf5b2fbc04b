/* warp.c: runs a warp: lanes that part and meet again, calls, barriers.
 *
 * In: a warp.   Out: its lanes further on, until it waits for others, ends, or has had its steps.
 * Lanes at the lowest place in the code run first, so that those that parted meet again at the first place that all
 * reach; a loop that waits for lanes elsewhere is left after a while. Instructions of lanes together park the lanes
 * that come first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"

#define PATIENCE 20000u /* steps of lanes that parted before others get a turn */

_Thread_local Worker *worker;

void
op_nothing(Warp *w, const Ins *x, uint32_t m)
{
	(void)w;
	(void)x;
	(void)m;
}

void
op_trap(Warp *w, const Ins *x, uint32_t m)
{
	report(w, x, __builtin_ctz(m), CUDA_ERROR_LAUNCH_FAILED, "the kernel executes a trap");
}

/* Clocks count instructions of this worker, the global timer nanoseconds; %envreg are 0. */
void
op_clock(Warp *w, const Ins *x, uint32_t m)
{
	uint64_t now = x->imm ? 0 : worker->warp_instructions;

	FOR_LANES(i, m) lane_set(w, x->d, x->bytes, (int)i, now);
}

/* builtins: vprintf, __assertfail, cudaGraphSetConditional */

static const char *
string_at(Warp *w, const Ins *x, int lane, uint64_t at)
{
	const Arena *a = device_arena(at, 1);

	if (!a)
		report_at(w, x, lane, CUDA_ERROR_ILLEGAL_ADDRESS, at, "passes text at 0x%llx, where nothing is",
		          (unsigned long long)at);
	return (const char *)a->host + (at - a->base);
}

/* Arguments of printf lie one after the other, each at a multiple of its size; floats have become doubles. */
static void
print_lane(Warp *w, const Ins *x, int lane, uint64_t format, uint64_t list)
{
	const char *s = string_at(w, x, lane, format);
	const uint8_t *arg = list >> WINDOW_SHIFT == WINDOW_LOCAL
	                             ? access_at(w, x, lane, SPACE_GENERIC, list, 1, ACCESS_WRITE)
	                             : NULL;
	size_t at = 0;

	while (*s) {
		char spec[32];
		size_t n = *s == '%' ? strcspn(s + 1, "diouxXeEfFgGaAcsp%") + 2 : strcspn(s, "%"), size;
		uint64_t v = 0;
		double d;

		if (*s != '%' || !arg || n >= sizeof spec || s[n - 1] == '%') {
			fwrite(s, 1, *s == '%' && s[n - 1] == '%' ? 1 : n, stdout);
			s += n;
			continue;
		}
		memcpy(spec, s, n);
		spec[n] = 0;
		size = strchr("eEfFgGaAsp", spec[n - 1]) || strchr(spec, 'l') ? 8 : 4;
		at = (at + size - 1) & ~(size - 1);
		memcpy(&v, arg + at, size);
		memcpy(&d, &v, 8);
		at += size;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		if (strchr("eEfFgGaA", spec[n - 1]))
			printf(spec, d);
		else if (spec[n - 1] == 's')
			printf(spec, string_at(w, x, lane, v));
		else if (size == 8)
			printf(spec, v);
		else
			printf(spec, (uint32_t)v);
#pragma GCC diagnostic pop
		s += n;
	}
}

void
op_builtin(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *arg = worker->launch->module->extra + x->extra;

	FOR_LANES(i, m) {
		uint8_t *f = w->frame + (uint64_t)i * w->block->frame_bytes;
		uint64_t v[4] = { 0 };

		for (uint32_t k = 0; k < x->n && k < 4; k++)
			memcpy(&v[k], f + arg[k], x->imm == BUILTIN_CONDITIONAL && k == 1 ? 4 : 8);
		if (x->imm == BUILTIN_PRINTF)
			print_lane(w, x, (int)i, v[0], v[1]);
		else if (x->imm == BUILTIN_ASSERT)
			report(w, x, (int)i, CUDA_ERROR_ASSERT, "assertion failed: %s", string_at(w, x, (int)i, v[0]));
		else if (!worker->launch->graph)
			report(w, x, (int)i, CUDA_ERROR_LAUNCH_FAILED, "sets a condition outside of a graph");
		else
			graph_set_conditional(worker->launch->graph, v[0], (unsigned)v[1]);
		if (x->d)
			memset(f + x->d - 1, 0, 4);
	}
}

/* meeting */

static uint32_t
expected(Warp *w, const Ins *x, uint32_t lane)
{
	return (x->target && x->kind == KIND_TOGETHER ? REG(w, uint32_t, x->target)[lane] : ALL_LANES) & w->live;
}

/* Lowest lanes that can run next; false if there are none. */
static bool
warp_pick(Warp *w)
{
	uint32_t ready = w->live & ~w->parked, low = UINT32_MAX, second = UINT32_MAX;

	FOR_LANES(i, w->mask) w->pcs[i] = w->pc;
	w->mask = 0;
	FOR_LANES(i, ready) low = w->pcs[i] < low ? w->pcs[i] : low;
	if (!ready)
		return false;
	if (w->fair > PATIENCE) { /* the others' turn, from the far end */
		uint32_t far = low;

		FOR_LANES(i, ready) far = w->pcs[i] > far ? w->pcs[i] : far;
		w->fair = 0;
		w->hold = far == low ? 0 : PATIENCE;
		low = far;
	}
	FOR_LANES(i, ready) {
		if (w->pcs[i] == low)
			w->mask |= 1u << i;
		else if (w->pcs[i] < second)
			second = w->pcs[i];
	}
	w->pc = low;
	w->next = w->hold ? UINT32_MAX : second;
	return true;
}

/* Of the parked, lanes whose company has become complete because others ended; false if all wait for each other. */
static bool
warp_unpark(Warp *w)
{
	const Ins *code = worker->launch->module->ins;

	FOR_LANES(i, w->parked) {
		uint32_t here = 0;

		FOR_LANES(j, w->parked) here |= (uint32_t)(w->pcs[j] == w->pcs[i]) << j;
		if (!(expected(w, &code[w->pcs[i]], i) & ~here)) {
			w->parked &= ~here;
			w->mask = here;
			w->pc = w->pcs[i];
			w->next = UINT32_MAX;
			return true;
		}
	}
	return false;
}

static _Noreturn void
warp_stuck(Warp *w)
{
	const Ins *code = worker->launch->module->ins, *x;
	uint32_t i = (uint32_t)__builtin_ctz(w->parked), missing;
	char there[300] = "have ended", line[256];

	x = &code[w->pcs[i]];
	missing = expected(w, x, i);
	FOR_LANES(j, w->parked) {
		if (w->pcs[j] == w->pcs[i])
			missing &= ~(1u << j);
		else
			snprintf(there, sizeof there, "wait at %s",
			         module_line(worker->launch->module, w->pcs[j], line, sizeof line));
	}
	report(w, x, (int)i, CUDA_ERROR_LAUNCH_FAILED, "%s is not reached by all its lanes: lanes 0x%08x %s",
	       x->kind == KIND_BARRIER ? "a barrier" : "an instruction of lanes together", missing, there);
}

/* Runs x for the lanes of m whose company is complete, parks the others. Returns the lanes that have done it. */
static uint32_t
warp_together(Warp *w, const Ins *x, uint32_t m, uint32_t pc)
{
	uint32_t here = m, done = 0, rest;

	FOR_LANES(j, w->parked) here |= (uint32_t)(w->pcs[j] == pc) << j;
	rest = m;
	while (rest) {
		uint32_t i = (uint32_t)__builtin_ctz(rest), e = expected(w, x, i);

		if (!(e >> i & 1))
			report(w, x, (int)i, CUDA_ERROR_ILLEGAL_INSTRUCTION,
			       "the lane is not in its own member mask 0x%08x", REG(w, uint32_t, x->target)[i]);
		if (e & ~here) {
			w->parked |= 1u << i;
			w->pcs[i] = pc;
			rest &= ~(1u << i);
			continue;
		}
		if (x->kind == KIND_TOGETHER)
			x->fn(w, x, e);
		w->parked &= ~e;
		done |= e;
		rest &= ~e;
	}
	return done;
}

/* barriers of the block */

static void
barrier_release(Block *b, Barrier *bar)
{
	for (int k = 0; k < b->nwarp; k++) {
		Warp *w = b->warp[k];

		if (!(bar->waiting >> k & 1))
			continue;
		w->barrier = -1;
		clock_join(w, w->clock, bar->clock);
	}
	memset(bar, 0, sizeof *bar);
}

static void
barrier_reduce(Warp *w, const Ins *x, Barrier *bar, uint32_t m)
{
	uint32_t p = *REG(w, uint32_t, x->c) & m;

	if (!bar->arrived)
		bar->result_and = 1;
	bar->result_count += lanes_count(p);
	bar->result_or |= p != 0;
	bar->result_and &= p == m;
}

/* The results are known when the last warp comes: then they are written for all that wait. */
static void
barrier_results(Block *b, const Ins *x, const Barrier *bar)
{
	for (int k = 0; k < b->nwarp; k++) {
		Warp *w = b->warp[k];

		if (!(bar->waiting >> k & 1))
			continue;
		for (int i = 0; i < LANES; i++)
			if (w->live >> i & 1)
				lane_set(w, x->d, x->sub == 2 ? 4 : 1, i,
				         x->sub == 2   ? bar->result_count
				         : x->sub == 3 ? bar->result_and
				                       : bar->result_or);
	}
}

static void
warp_barrier(Warp *w, const Ins *x, uint32_t m)
{
	Block *b = w->block;
	uint32_t lane = (uint32_t)__builtin_ctz(m), id = REG(w, uint32_t, x->a)[lane],
	         count = x->n ? REG(w, uint32_t, x->b)[lane] : 0;
	uint32_t mine = b->rank * MAX_WARPS + w->index;
	Barrier *bar;

	if (id > 15 || count % LANES || count > (uint32_t)b->nwarp * LANES)
		report(w, x, (int)lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "barrier %u for %u threads", id, count);
	bar = &b->barrier[id];
	if (bar->arrived && bar->expected != count)
		report(w, x, (int)lane, CUDA_ERROR_LAUNCH_FAILED,
		       "barrier %u is used with %u and with %u threads at once", id, bar->expected, count);
	if (x->sub >= 2 && x->sub <= 4)
		barrier_reduce(w, x, bar, m);
	bar->expected = count;
	bar->arrived += count ? LANES : lanes_count(m);
	clock_join(w, bar->clock, w->clock);
	w->clock[mine]++;
	if (x->sub != 1) {
		bar->waiting |= 1u << w->index;
		w->barrier = (int)id;
	}
	if (bar->arrived >= (count ? count : (uint32_t)b->nthread)) {
		if (x->sub >= 2 && x->sub <= 4)
			barrier_results(b, x, bar);
		barrier_release(b, bar);
	}
}

/* Named in the instruction so that the loop knows an arrival that does not wait. */
void
op_barrier_arrive(Warp *w, const Ins *x, uint32_t m)
{
	warp_barrier(w, x, m);
}

static uint32_t
cluster_warps(const Group *g)
{
	uint32_t n = 0;

	for (int k = 0; k < g->nblock; k++)
		for (int i = 0; i < g->block[k]->nwarp; i++)
			n += !g->block[k]->warp[i]->done;
	return n;
}

/* barrier.cluster.arrive: the warp counts once; a lane stands for it. */
void
op_cluster_arrive(Warp *w, const Ins *x, uint32_t m)
{
	Group *g = w->block->group;

	(void)x;
	(void)m;
	clock_join(w, g->cluster_clock, w->clock);
	w->clock[w->block->rank * MAX_WARPS + w->index]++;
	w->cluster_phase = (int)g->cluster_phase;
	if (++g->cluster_arrived >= cluster_warps(g)) {
		g->cluster_arrived = 0;
		g->cluster_phase++;
	}
}

/* barrier.cluster.wait: false if the phase that the warp arrived in has not ended. */
static bool
cluster_wait(Warp *w)
{
	Group *g = w->block->group;

	if (w->cluster_phase < 0 || g->cluster_phase == (uint32_t)w->cluster_phase)
		return w->cluster_phase < 0;
	clock_join(w, w->clock, g->cluster_clock);
	w->cluster_phase = -1;
	return true;
}

/* the loop */

static void
warp_end_lanes(Warp *w, uint32_t m)
{
	w->live &= ~m;
	w->mask &= ~m;
	if (!w->live)
		w->done = true;
}

/* Sends the lanes of m to a place each or all, and goes on with whoever is lowest. */
static void
warp_part(Warp *w, uint32_t m, uint32_t to)
{
	FOR_LANES(i, m) w->pcs[i] = to;
	w->mask &= ~m;
	if (!w->hold && to < w->next && m)
		w->next = to;
}

static void
warp_branch(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t stay = w->mask & ~m;

	if (!stay) {
		w->pc = x->target;
	} else if (m) {
		warp_part(w, m, x->target);
		w->pc++;
	} else {
		w->pc++;
	}
}

static void
warp_call(Warp *w, const Ins *x, uint32_t m)
{
	const Func *f = worker->launch->module->func[x->target];

	if (!m) {
		w->pc++;
		return;
	}
	if (!f->defined)
		report(w, x, __builtin_ctz(m), CUDA_ERROR_ILLEGAL_INSTRUCTION, "calls %s, which is nowhere", f->name);
	FOR_LANES(i, m) {
		if (w->depth[i] == MAX_CALLS)
			report(w, x, (int)i, CUDA_ERROR_HARDWARE_STACK_ERROR, "calls nest deeper than %d", MAX_CALLS);
		w->calls[i][w->depth[i]++] = w->pc + 1;
	}
	if (m == w->mask) {
		w->pc = f->first;
	} else {
		warp_part(w, m, f->first);
		w->pc++;
	}
}

static void
warp_return(Warp *w, uint32_t m)
{
	uint32_t stay = w->mask & ~m, lane = m ? (uint32_t)__builtin_ctz(m) : 0,
	         to = m ? w->calls[lane][w->depth[lane] - 1] : 0;
	bool one = !stay && m;

	FOR_LANES(i, m) {
		uint32_t back = w->calls[i][--w->depth[i]];

		one &= back == to;
		w->pcs[i] = back;
	}
	if (one) {
		w->pc = to;
		return;
	}
	w->mask = stay;
	w->pc++;
	w->next = 0; /* whoever is lowest */
	if (!stay)
		w->pc = UINT32_MAX;
}

/* A barrier, or lanes together: true if the warp now waits. */
static bool
warp_meet(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t pc = w->pc, done = m ? warp_together(w, x, m, pc) : 0, others = w->mask & ~m, all = done | others;

	FOR_LANES(i, all) w->pcs[i] = pc + 1;
	w->mask = all;
	w->pc = pc + 1;
	if (!all) {
		w->next = 0;
		w->pc = UINT32_MAX;
	}
	if (x->kind == KIND_BARRIER && done) {
		if (x->sub == 16) {
			if (!cluster_wait(w)) {
				w->pc = pc;
				return true;
			}
			return false;
		}
		warp_barrier(w, x, done);
		return w->barrier >= 0;
	}
	return false;
}

bool
warp_run(Warp *w, uint32_t steps)
{
	const Ins *code = worker->launch->module->ins;
	uint64_t count = 0, threads = 0;
	bool going = true;

	for (; going && steps; steps--) {
		const Ins *x;
		uint32_t m, p;

		if (w->pc >= w->next || !w->mask || (w->hold && !--w->hold)) {
			if (!warp_pick(w)) {
				if (w->done)
					break;
				if (!warp_unpark(w))
					warp_stuck(w);
			}
		}
		x = &code[w->pc];
		m = w->mask;
		if (x->guard) {
			p = *REG(w, uint32_t, x->guard & ~1u);
			m &= x->guard & 1 ? ~p : p;
		}
		count++;
		threads += m == ALL_LANES ? LANES : lanes_count(m);
		if (w->mask != w->live && ++w->fair > PATIENCE && !w->hold)
			w->next = 0;
		switch ((Kind)x->kind) {
		case KIND_PLAIN:
			if (m)
				x->fn(w, x, m);
			w->pc++;
			break;
		case KIND_BRANCH: warp_branch(w, x, m); break;
		case KIND_CALL: warp_call(w, x, m); break;
		case KIND_RETURN: warp_return(w, m); break;
		case KIND_EXIT:
			warp_end_lanes(w, m);
			w->pc++;
			break;
		case KIND_BARRIER:
		case KIND_TOGETHER: going = !warp_meet(w, x, m); break;
		case KIND_YIELD:
			if (m)
				x->fn(w, x, m);
			w->pc++;
			going = false;
			break;
		}
	}
	worker->warp_instructions += count;
	worker->thread_instructions += threads;
	return !w->done && w->barrier < 0;
}
