/* loop.c: the helpers that generated loops call, each the run-time half of one loop op, and the walker of --sink off.
 *
 * The walker runs the descriptor's loop ops one by one and dispatches kernel by kernel; compiled entry points do the
 * same work through the same helpers, so that all sink modes give the same bits.
 * Conventions: `step` counts updates and is raised after its last op; batch b of an epoch is
 * (step - epoch * steps_per_epoch) * accumulate + micro. `call` writes seed, step and rate into the arena where the
 * graph reads them, runs the kernels in order, and after a kernel with a check asks rt_fault. `emit` comes once per
 * update: with accumulate > 1 graph `update` has averaged what it reports. */
#include "host.h"
#include "philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- shuffle */

void
rt_shuffle_order(int64_t seed, int64_t epoch, int64_t n, int64_t *order)
{
	uint32_t stream = philox_stream("shuffle"), w[4] = {0};

	for (int64_t i = 0; i < n; i++)
		order[i] = i;
	for (int64_t i = n - 1, k = 0; i > 0; i--, k++) {
		int64_t j, old = order[i];

		if ((k & 3) == 0)
			philox_group((uint64_t)seed, stream, (uint64_t)epoch, (uint64_t)k >> 2, w);
		j = (int64_t)(w[k & 3] % (uint64_t)(i + 1));
		order[i] = order[j];
		order[j] = old;
	}
}

void
rt_shuffle(RtRun *run)
{
	RtHost *h = rt_host(run);

	if (!run->order || h->order_epoch == run->epoch)
		return;
	rt_shuffle_order(run->seed, run->epoch, run->examples, h->order);
	h->order_epoch = run->epoch;
}

/* ---- batch */

typedef struct Gather {
	const RtRun *run; const RtData *d; uint8_t *base; const int64_t *offset; int64_t ninput, first;
	uint8_t *const *at;          /* the whole batch, as a ring has it; NULL */
	pthread_mutex_t lock; bool bad; RtError error;
} Gather;

static void
gather_failed(Gather *g, const RtError *e)
{
	pthread_mutex_lock(&g->lock);
	if (!g->bad)
		g->error = *e;
	g->bad = true;
	pthread_mutex_unlock(&g->lock);
}

static void
loop_gather(void *cx, int64_t t0, int64_t t1, int thread)
{
	Gather *g = cx;
	const RtRun *run = g->run;
	RtError e = {""};
	bool good = true;

	(void)thread;
	for (int64_t k = 0; good && k < g->ninput; k++) {
		int64_t bytes = g->d->bytes[k];
		uint8_t *out = g->base + g->offset[k] + t0 * bytes;

		if (g->offset[k] < 0 || !bytes)
			continue;
		if (g->at)
			memcpy(out, g->at[k] + t0 * bytes, (size_t)((t1 - t0) * bytes));
		else if (!run->order)
			good = rt_data_copy(g->d, (int)k, g->first + t0, t1 - t0, out, &e);
		for (int64_t i = t0; good && !g->at && run->order && i < t1; i++, out += bytes)
			good = rt_data_copy(g->d, (int)k, run->order[g->first + i], 1, out, &e);
	}
	if (!good)
		gather_failed(g, &e);
}

/* The batch from the ring, which is made where there is none yet. */
static bool
gather_ring(RtHost *h, Gather *g, int64_t index)
{
	const RtRun *run = &h->run;
	RtData *d = h->data;
	bool eval = h->mode != RT_M_TRAIN;
	int64_t whole = run->examples / run->batch;
	RtCourse c = {.seed = run->seed,
	              .batch = run->batch,
	              .shuffle = h->shuffle,
	              .batches = h->wrap ? whole
	                         : eval  ? (run->examples + run->batch - 1) / run->batch
	                                 : whole / h->accumulate * h->accumulate,
	              .after = h->wrap ? RT_AFTER_WRAP
	                       : eval  ? RT_AFTER_NOTHING
	                               : RT_AFTER_EPOCH};

	if (h->ranks > 1 && !eval) {
		c.per = h->accumulate;
		c.lo = run->shard;
		c.hi = run->shard_end;
	}
	if (!d->ring && !(d->ring = rt_ring_new(d, &c, &h->error)))
		return false;
	return rt_ring_take(d->ring, run->epoch, index, run->n, &g->at, &h->waited, &h->error);
}

bool
rt_gather(RtRun *run, uint8_t *base, const int64_t *input_offset, int64_t ninput)
{
	RtHost *h = rt_host(run);
	int64_t index = (run->step - run->epoch * run->steps_per_epoch) * h->accumulate + run->micro, bytes = 0;
	Gather g = {.run = run, .d = h->data, .base = base, .offset = input_offset, .ninput = ninput};

	run->first = run->micro * run->batch;
	if (h->wrap)
		index %= run->examples / run->batch;
	g.first = index * run->batch;
	run->n = run->examples - g.first < run->batch ? run->examples - g.first : run->batch;
	if (g.d->readers && !gather_ring(h, &g, index))
		return false;
	for (int64_t k = 0; k < ninput; k++)
		bytes += g.d->bytes[k] * run->n;
	pthread_mutex_init(&g.lock, NULL);
	if (bytes < 65536)
		loop_gather(&g, 0, run->n, 0);
	else
		rt_threads_run(h->threads, loop_gather, &g, run->n);
	pthread_mutex_destroy(&g.lock);
	if (!g.d->readers)
		rt_data_touch(h->data, run->n);
	return !g.bad || rt_fail(&h->error, "%s", g.error.text);
}

/* A batch that cannot be read ends the entry point: nothing of the step is stored. */
void
rt_batch(RtRun *run, const int64_t *input_offset, int64_t ninput)
{
	RtHost *h = rt_host(run);

	h->fresh = true;
	rt_host_pace(h);
	if (rt_joins_batch(h, input_offset, ninput))
		return;
	if (rt_gather(run, run->arena, input_offset, ninput))
		return;
	if (h->escape)
		longjmp(*h->escape, 1);
	exit(rt_die(h));
}

/* ---- rate */

/* PyTorch's OneCycleLR at step t of T: phases of [end, from, to], each walked from the end of the one before. */
static double
rate_one_cycle(const RtRate *r, double t, double total)
{
	double low = r->peak / r->div_factor, least = low / r->final_div_factor, start = 0, f;
	const double phases[3][3] = {{r->pct_start * total - 1, low, r->peak},
		{r->three_phase ? 2 * r->pct_start * total - 2 : total - 1, r->peak, r->three_phase ? low : least},
		{total - 1, low, least}};
	int n = r->three_phase ? 3 : 2, i = 0;

	for (; i < n - 1 && t > phases[i][0]; i++)
		start = phases[i][0];
	f = phases[i][0] > start ? (t - start) / (phases[i][0] - start) : 1;
	if (r->straight)
		return phases[i][1] + (phases[i][2] - phases[i][1]) * f;
	return phases[i][2] + (phases[i][1] - phases[i][2]) / 2 * (cos(3.14159265358979323846 * f) + 1);
}

double
rt_rate_at(const RtHost *h, int64_t step)
{
	const RtRate *r = &h->program.rate;
	double w = (double)h->warmup, t = (double)step, f;
	double peak = r->kind == RT_RATE_STEP || r->kind == RT_RATE_CONSTANT ? r->rate : r->peak;

	if (step < h->warmup)
		return r->from + (peak - r->from) * t / w;
	f = h->total > h->warmup ? (t - w) / (double)(h->total - h->warmup) : 0;
	switch (r->kind) {
	case RT_RATE_POLY:
	case RT_RATE_LINEAR:
		return r->to + (r->peak - r->to) * pow(1 - f, r->power);
	case RT_RATE_COSINE:
		return r->to + (r->peak - r->to) * (1 + cos(3.14159265358979323846 * f)) / 2;
	case RT_RATE_ONE_CYCLE:
		return rate_one_cycle(r, t, (double)h->total);
	case RT_RATE_STEP:
		f = r->rate;
		for (int i = 0; i < r->nat; i++)
			if (h->run.steps_per_epoch > 0 && (double)(step / h->run.steps_per_epoch) >= r->at[i])
				f *= r->factor;
		return f;
	default:
		return r->rate;
	}
}

double
rt_rate(RtRun *run)
{
	run->rate = rt_rate_at(rt_host(run), run->step);
	return run->rate;
}

/* ---- call */

/* first: the task that counts as 0 */
typedef struct Launch { RtRun *run; RtKernel *kernel; const int64_t *off; int64_t first; } Launch;

static void
loop_launch(void *cx, int64_t t0, int64_t t1, int thread)
{
	const Launch *l = cx;
	RtHost *h = rt_host(l->run);
	RtLane *lane = h->lane ? &h->lane[thread] : NULL;

	if (lane && lane->end <= 0)
		lane->begin = rt_now();
	l->kernel(l->run->arena, l->off, l->run->n, l->first + t0, l->first + t1, h->scratch[thread]);
	if (lane)
		lane->end = rt_now();
}

void
rt_parallel(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	Launch l = {.run = run, .kernel = k, .off = off};

	rt_threads_run(rt_host(run)->threads, loop_launch, &l, tasks);
}

void
rt_parallel_shares(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	Launch l = {.run = run, .kernel = k, .off = off};

	rt_threads_run_shares(rt_host(run)->threads, loop_launch, &l, tasks);
}

void
rt_parallel_whole(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole)
{
	Launch l = {.run = run, .kernel = k, .off = off};

	rt_threads_run_whole(rt_host(run)->threads, loop_launch, &l, tasks, whole);
}

void
rt_parallel_few(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole, int64_t threads)
{
	RtThreads *pool = rt_host(run)->threads;
	int used = rt_threads_used(pool);

	if (threads < used)
		rt_threads_use(pool, (int)threads);
	if (whole == RT_SHARES)
		rt_parallel_shares(run, k, off, tasks);
	else if (whole)
		rt_parallel_whole(run, k, off, tasks, whole);
	else
		rt_parallel(run, k, off, tasks);
	rt_threads_use(pool, used);
}

void
rt_parallel_turns(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t turns, int64_t threads)
{
	RtThreads *pool = rt_host(run)->threads;
	int used = rt_threads_used(pool);
	Launch l = {.run = run, .kernel = k, .off = off};

	if (threads && threads < used)
		rt_threads_use(pool, (int)threads);
	for (int64_t turn = 0; turn < turns; turn++, l.first += tasks)
		rt_threads_run_shares(pool, loop_launch, &l, tasks);
	rt_threads_use(pool, used);
}

void
rt_parallel_own(RtRun *run, RtKernel *k, const int64_t *off, int64_t row)
{
	RtHost *h = rt_host(run);
	const RtRow *r = &h->program.graph[RT_G_UPDATE].row[row];
	const int64_t *edge = r->cut ? r->cut->edge : NULL;
	Launch l = {.run = run, .kernel = k, .off = off, .first = edge ? edge[h->rank] : 0};

	rt_threads_run(h->threads, loop_launch, &l, (edge ? edge[h->rank + 1] : rt_row_tasks(r, run->n)) - l.first);
}

void
rt_row_run(RtHost *h, const RtRow *r, const int64_t *off)
{
	RtKernel *k = h->object->kernel[r->fn];
	int64_t tasks = rt_row_tasks(r, h->run.n);

	if (r->cut)
		rt_parallel_own(&h->run, k, off, r - h->program.graph[RT_G_UPDATE].row);
	else if (r->turns)
		rt_parallel_turns(&h->run, k, off, tasks, r->turns, r->threads);
	else if (r->threads)
		rt_parallel_few(&h->run, k, off, tasks, r->shares ? RT_SHARES : r->whole, r->threads);
	else if (r->shares)
		rt_parallel_shares(&h->run, k, off, tasks);
	else if (r->whole)
		rt_parallel_whole(&h->run, k, off, tasks, r->whole);
	else
		rt_parallel(&h->run, k, off, tasks);
}

int64_t
rt_fault(RtRun *run)
{
	int64_t offset = rt_host(run)->program.fault_offset, set = 0;

	if (offset >= 0)
		memcpy(&set, run->arena + offset, sizeof set);
	return set != 0;
}

int64_t
rt_loop_call(RtHost *h, int graph, RtTimeFn *time, void *cx)
{
	const RtGraph *g = &h->program.graph[graph];
	RtRun *run = &h->run;

	if (h->object->device)
		return h->object->device->call(h, graph, time, cx);
	if (g->seed >= 0)
		memcpy(run->arena + g->seed, &run->seed, 8);
	if (g->step >= 0)
		memcpy(run->arena + g->step, &run->step, 8);
	if (g->rate >= 0)
		memcpy(run->arena + g->rate, &run->rate, 8);
	if (g->first >= 0)
		memcpy(run->arena + g->first, &run->first, 8);
	if (h->object->call) {
		if (graph == RT_G_UPDATE)
			rt_wait(run, h->sums.nbucket);
		int64_t status = h->object->call(run, g->name);

		return status == RT_OK && rt_fault(run) ? RT_FAULT : status;
	}
	bool kept = g->nrow && g->row[0].once && run->prepacked == RT_PREPACKED(g->name);

	for (int k = 0; k < g->nrow; k++) {
		const RtRow *r = &g->row[k];
		double begin = time ? rt_now() : 0;

		if (r->once && kept)
			continue;
		if (r->join >= 0 && h->joins.data) {
			rt_give(run, r->join);
			continue;
		}
		for (int b = 0; graph == RT_G_UPDATE && b < h->program.nbucket; b++)
			if (h->program.bucket[b].wait == k)
				rt_wait(run, b);
		if (r->tell)
			rt_tell(run);
		rt_row_run(h, r, r->off);
		if (time)
			time(cx, g, k, begin, rt_now());
		if (r->check && rt_fault(run))
			return RT_FAULT;
		if (r->loss && rt_loss(run, g->scalar_offset[g->loss], g->scalar_dtype[g->loss]) != RT_OK)
			return RT_NOT_FINITE;
		for (int b = 0; graph == RT_G_TRAIN && b < h->program.nbucket; b++)
			if (h->program.bucket[b].kernel == k)
				rt_start(run, b);
	}
	if (graph == RT_G_UPDATE) {
		rt_wait(run, h->sums.nbucket);
		rt_spread(run);
	}
	if (!rt_graph_between(graph))
		run->prepacked = g->nrow && g->row[0].once ? RT_PREPACKED(g->name) : 0;
	return RT_OK;
}

/* ---- emit */

void
rt_publish(RtRun *run, const RtRecord *r)
{
	int64_t head = run->ring_head;

	if (head - __atomic_load_n(&run->ring_tail, __ATOMIC_ACQUIRE) > run->ring_mask)
		rt_drain(rt_host(run));
	run->ring[head & run->ring_mask] = *r;
	__atomic_store_n(&run->ring_head, head + 1, __ATOMIC_RELEASE);
}

int64_t
rt_emit(RtRun *run, const int64_t *result_offset, const int32_t *result_dtype, int64_t nresult, int64_t loss)
{
	RtHost *h = rt_host(run);
	RtRecord r = {.step = run->step, .epoch = run->epoch, .n = run->n};
	bool bad;

	for (int64_t i = 0; i < nresult && i < RT_MAX_RESULTS; i++)
		r.value[i] = rt_dtype_read(result_dtype[i], run->arena + result_offset[i]);
	bad = h->mode == RT_M_TRAIN && loss >= 0 && loss < RT_MAX_RESULTS && !isfinite(r.value[loss]) &&
	      !run->allow_nan;
	if (h->mode == RT_M_TRAIN)
		r.rate = rt_rate_at(h, run->step);
	rt_publish(run, &r);
	return bad ? RT_NOT_FINITE : RT_OK;
}

/* Takes all records; called by the loop's own thread and by the monitor. */
void
rt_drain(RtHost *h)
{
	RtRun *run = &h->run;

	pthread_mutex_lock(&h->lock);
	for (int64_t tail = run->ring_tail; tail < __atomic_load_n(&run->ring_head, __ATOMIC_ACQUIRE);) {
		const RtRecord *r = &run->ring[tail & run->ring_mask];
		double weight = h->mode == RT_M_EVAL ? (double)r->n : 1;

		if (h->kept && h->mode == RT_M_EVAL) {   /* of several processes: rank order comes first */
			h->kept[h->nkept++] = *r;
			__atomic_store_n(&run->ring_tail, ++tail, __ATOMIC_RELEASE);
			continue;
		}
		for (int i = 0; i < h->graph->nscalar; i++)
			h->sum[i] = h->graph->result[h->graph->scalar[i]].kind == RT_WHOLE ? r->value[i]
				: h->sum[i] + weight * r->value[i];
		h->weight += weight;
		if (h->mode == RT_M_TRAIN) {
			h->last_step = r->step;
			h->last_loss = h->graph->loss >= 0 ? r->value[h->graph->loss] : 0;
			rt_log_record(h, r);
			rt_overflow_report(h, r);
		}
		h->drained++;
		__atomic_store_n(&run->ring_tail, ++tail, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&h->lock);
}

/* ---- poll */

/* Of several processes all stop after the same step: that whose exchange told them. */
int
rt_stops(const RtHost *h)
{
	return h->ranks > 1 ? h->stop : __atomic_load_n(&h->signal, __ATOMIC_SEQ_CST);
}

void
rt_set_stop(RtHost *h)
{
	__atomic_store_n(&h->run.stop_at, h->stop_step < h->next_save ? h->stop_step : h->next_save, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&h->signal, __ATOMIC_SEQ_CST)) /* it came while stop_at was being set */
		__atomic_store_n(&h->run.stop_at, 0, __ATOMIC_SEQ_CST);
}

/* The thread that prints may be emptying it (rt_drain). */
static bool
ring_half_full(const RtRun *run)
{
	return run->ring_head - __atomic_load_n(&run->ring_tail, __ATOMIC_ACQUIRE) > run->ring_mask / 2;
}

int64_t
rt_poll(RtRun *run)
{
	RtHost *h = rt_host(run);
	int64_t done = run->step + 1;

	h->completed = done;
	if (ring_half_full(run))
		rt_drain(h);
	if (h->mode == RT_M_IDLE)
		return RT_OK;
	if (rt_stops(h))
		return RT_STOPPED;
	if (h->mode != RT_M_TRAIN)
		return RT_OK;
	if (done >= h->stop_step) {
		h->stopped_by_stop = true;
		return RT_STOPPED;
	}
	if (done >= h->next_save) {
		h->next_save = done + h->opt.every - done % h->opt.every;
		rt_drain(h);
		if (!rt_checkpoint_save(h, done)) {
			rt_progress_clear(h);
			fprintf(stderr, "warning: %s; training goes on\n", h->error.text);
		}
	}
	rt_set_stop(h);
	return RT_OK;
}

/* ---- the walker */

int64_t
rt_sink(const RtHost *h)
{
	return h->opt.sink == -2 ? h->program.sink : h->opt.sink;
}

static int64_t
loop_op(RtHost *h, const RtLoopOp *op)
{
	RtRun *run = &h->run;
	const RtGraph *g = &h->program.graph[op->graph];

	switch (op->kind) {
	case RT_L_SHUFFLE: rt_shuffle(run); return RT_OK;
	case RT_L_BATCH: rt_batch(run, g->input, h->program.ninput); return RT_OK;
	case RT_L_RATE: rt_rate(run); return RT_OK;
	case RT_L_CALL: return h->watching ? rt_watch_call(h, op->graph) : rt_loop_call(h, op->graph, NULL, NULL);
	case RT_L_EMIT: return rt_emit(run, g->scalar_offset, g->scalar_dtype, g->nscalar, g->loss);
	case RT_L_MERGE: return rt_merge(run);
	case RT_L_POLL:
		if (run->step + 1 >= __atomic_load_n(&run->stop_at, __ATOMIC_ACQUIRE) || ring_half_full(run))
			return rt_poll(run);
		return RT_OK;
	default: return RT_OK;
	}
}

/* Ops [at, end). */
static int64_t
loop_range(RtHost *h, const RtLoop *l, int at, int end)
{
	RtRun *run = &h->run;
	int64_t status = RT_OK;

	for (; at < end && status == RT_OK; at++) {
		const RtLoopOp *op = &l->op[at];

		if (op->kind != RT_L_REPEAT) {
			status = loop_op(h, op);
			continue;
		}
		if (op->shards && h->object->device) {
			if ((status = h->object->device->shards(h, NULL, NULL)) != RT_OK)
				return status;               /* micro stays that of the shard */
			run->micro = op->count - 1;
		} else if (op->shards && rt_joins_in_step(h)) {
			status = h->watching ? rt_watch_call(h, RT_G_TRAIN) : rt_joined_step(h, NULL, NULL);
		} else if (op->shards) {
			if (h->joins.data && (status = rt_count(run)) != RT_OK)
				return status;
			for (run->micro = run->shard; run->micro < run->shard_end; run->micro++)
				if ((status = loop_range(h, l, at + 1, op->end)) != RT_OK)
					return status;           /* micro stays that of the shard */
			run->micro = op->count - 1;
		} else if (op->counted) {
			for (int64_t i = 0; i < op->count && status == RT_OK; i++) {
				run->micro = i;
				status = loop_range(h, l, at + 1, op->end);
			}
		} else {
			for (; run->step < run->until; run->step++)
				if ((status = loop_range(h, l, at + 1, op->end)) != RT_OK)
					return status;
		}
		at = op->end;
	}
	return status;
}

int64_t
rt_loop_walk(RtHost *h, const RtLoop *loop)
{
	return loop_range(h, loop, 0, loop->n);
}
