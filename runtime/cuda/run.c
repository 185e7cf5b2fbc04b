/* run.c: steps on the device, and the table by which the host calls it.
 *
 * A span is a run of steps without the host: to the end of the epoch, the next save or stop, or as many as there is
 * room for records. What it needs
 * goes up first: state, rates as the host computes them, the epoch's order. Then one launch runs it all (--sink epoch),
 * or graphs of N steps follow one another, some under way at any time. Meanwhile this thread sleeps, moves records into
 * the run's ring, and passes a wish to stop on as mail. A span that ends early leaves the launches behind it without
 * effect. Kernel by kernel (--sink off, profiles, the last batch of an evaluation) is cuda_call. */
#include "cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* steps of a launch; that wait while others run, where graphs have one */
enum { RUN_SPAN = 1 << 20, RUN_AHEAD = 4 };
/* a nap is this part of the wait so far, between the two */
enum { RUN_NAP_NS = 10000, RUN_LONG_NAP_NS = 2000000, RUN_NAPS = 64 };

/* ---- kernel by kernel */

static bool
run_launch(Cuda *c, const RtRow *r, int64_t n)
{
	CuKernelNode k;

	if (cuda_dnn_is(c, r))
		return cuda_dnn_run(c, r);
	if (!cuda_kernel(c, r, &n, &k))
		return false;
	return !k.grid[0] ||
	       CUDA(c, cuLaunchKernel, k.function, k.grid[0], 1, 1, k.block[0], 1, 1, k.shared, c->stream, k.parameter,
	            NULL) ||
	       cuda_row_context(c, r);
}

bool
cuda_scalars(Cuda *c, const RtGraph *g)
{
	const RtRun *r = &c->h->run;

	return (g->seed < 0 || cuda_put(c, c->arena + (CuPtr)g->seed, &r->seed, 8)) &&
	       (g->step < 0 || cuda_put(c, c->arena + (CuPtr)g->step, &r->step, 8)) &&
	       (g->rate < 0 || cuda_put(c, c->arena + (CuPtr)g->rate, &r->rate, 8)) &&
	       (g->first < 0 || cuda_put(c, c->arena + (CuPtr)g->first, &r->first, 8));
}

bool
cuda_events(Cuda *c, int n)
{
	if (n <= c->nevent)
		return true;
	c->event = realloc(c->event, sizeof *c->event * (size_t)n);
	if (!c->event)
		return rt_fail(&c->h->error, "out of memory for %d events", n);
	for (; c->nevent < n; c->nevent++)
		if (!CUDA(c, cuEventCreate, &c->event[c->nevent], 0))
			return false;
	return true;
}

static bool
call_times(Cuda *c, const RtGraph *g, const bool *ran, RtTimeFn *time, void *cx)
{
	double origin, begin = 0;
	float ms = 0;

	if (!CUDA(c, cuEventSynchronize, c->event[g->nrow]) ||
	    !CUDA(c, cuEventElapsedTime, &ms, c->event[0], c->event[g->nrow]))
		return false;
	origin = rt_now() - ms * 1e-3; /* the last event has only now been seen */
	for (int k = 1; k <= g->nrow; k++) {
		if (!ran[k - 1])
			continue;
		if (!CUDA(c, cuEventElapsedTime, &ms, c->event[0], c->event[k]))
			return false;
		time(cx, g, k - 1, origin + begin, origin + ms * 1e-3);
		begin = ms * 1e-3;
	}
	return true;
}

/* Is the loss, which its kernel has just made, one to end with? */
static bool
call_loss(Cuda *c, const RtGraph *g, bool *lost)
{
	RtRun *r = &c->h->run;
	int64_t at = g->scalar_offset[g->loss];
	int dtype = g->scalar_dtype[g->loss];

	if (r->allow_nan)
		return true;
	if (!cuda_get(c, r->arena + at, c->arena + (CuPtr)at, rt_dtype[dtype].bytes))
		return false;
	*lost = rt_loss(r, at, dtype) != RT_OK;
	return true;
}

/* Without a clock each kernel is waited for, so that a failure has its name. *lost: the loss is not finite, and what
 * comes after it has not run. */
static bool
call_rows(Chain *chain, const RtGraph *g, RtTimeFn *time, void *cx, bool *lost)
{
	Cuda *c = chain->c;
	bool kept = g->nrow && g->row[0].once && c->h->run.prepacked == RT_PREPACKED(g->name), good = true;
	bool *ran = rt_alloc(sizeof *ran * (size_t)(g->nrow + 1));

	if (time)
		good = cuda_events(c, g->nrow + 1) && CUDA(c, cuEventRecord, c->event[0], c->stream);
	for (int k = 0; k < g->nrow && good && !*lost; k++) {
		const RtRow *r = &g->row[k];

		if (!(r->once && kept)) {
			ran[k] = true;
			good = (!r->tell || cuda_cut_tell(chain)) && run_launch(c, r, c->h->run.n) &&
			       (time || CUDA(c, cuStreamSynchronize, c->stream) || cuda_row_context(c, r));
		}
		if (r->loss && !time && good)
			good = call_loss(c, g, lost);
		if (time && good)
			good = CUDA(c, cuEventRecord, c->event[k + 1], c->stream);
	}
	good = good && (!time || call_times(c, g, ran, time, cx));
	free(ran);
	return good;
}

/* The scalars of a call, and the fault, to the host. */
static bool
call_results(Cuda *c, const RtGraph *g)
{
	RtHost *h = c->h;

	for (int k = 0; k < g->nscalar; k++)
		if (!CUDA(c, cuMemcpyDtoHAsync, h->run.arena + g->scalar_offset[k],
		          c->arena + (CuPtr)g->scalar_offset[k], (size_t)rt_dtype[g->scalar_dtype[k]].bytes, c->stream))
			return false;
	return cuda_get(c, h->run.arena, c->arena, sizeof(RtFault));
}

int64_t
cuda_call(RtHost *h, int graph, RtTimeFn *time, void *cx)
{
	Cuda *c = h->device;
	const RtGraph *g = &h->program.graph[graph];
	Chain chain = {.c = c, .bad = -1};
	bool lost = false;

	c->top = (LoopHead){0};
	if (!cuda_here(c) || !cuda_put(c, c->base, &c->top, sizeof c->top) || !cuda_inputs(c, g, h->run.n) ||
	    !cuda_scalars(c, g) || !call_rows(&chain, g, time, cx, &lost) ||
	    (graph == RT_G_UPDATE && !lost && !cuda_cut_spread(&chain)) || !call_results(c, g))
		return RT_ERROR;
	if (!rt_graph_between(graph))
		h->run.prepacked = g->nrow && g->row[0].once && !lost ? RT_PREPACKED(g->name) : CUDA_CURRENT;
	return rt_fault(&h->run) ? RT_FAULT : lost ? RT_NOT_FINITE : RT_OK;
}

/* ---- the parts of a call (RtDevice) */

static bool
parts_begin(RtHost *h, int graph)
{
	Cuda *c = h->device;
	const RtGraph *g = &h->program.graph[graph];

	c->top = (LoopHead){0};
	return cuda_here(c) && cuda_put(c, c->base, &c->top, sizeof c->top) && cuda_inputs(c, g, h->run.n) &&
	       cuda_scalars(c, g);
}

static bool
parts_rows(RtHost *h, const RtRow *row, int n)
{
	Cuda *c = h->device;
	bool good = true;

	for (int i = 0; i < n && good; i++) {
		if (row[i].noff + 2 + RT_MAX_MAPS > c->parameters) { /* a row of no graph */
			free(c->parameter);
			c->parameters = row[i].noff + 2 + RT_MAX_MAPS;
			c->parameter = rt_alloc(sizeof *c->parameter * (size_t)c->parameters);
		}
		good = run_launch(c, &row[i], h->run.n);
	}
	return good;
}

static bool
parts_mark(RtHost *h, int k)
{
	Cuda *c = h->device;

	return cuda_events(c, k + 1) && CUDA(c, cuEventRecord, c->event[k], c->stream);
}

static bool
parts_wait(RtHost *h)
{
	Cuda *c = h->device;

	return CUDA(c, cuStreamSynchronize, c->stream);
}

static bool
parts_end(RtHost *h, int graph)
{
	return call_results(h->device, &h->program.graph[graph]);
}

static double
parts_between(RtHost *h, int a, int b)
{
	Cuda *c = h->device;
	float ms = 0;

	return CUDA(c, cuEventElapsedTime, &ms, c->event[a], c->event[b]) ? ms * 1e-3 : NAN;
}

static bool
parts_put(RtHost *h, int64_t offset, int64_t bytes)
{
	Cuda *c = h->device;

	return cuda_put(c, c->arena + (CuPtr)offset, h->run.arena + offset, bytes);
}

/* Graphs leave out what runs once: it runs here if it does not stand. */
static bool
run_once(Cuda *c, const RtGraph *g)
{
	int64_t *kept = &c->h->run.prepacked;

	for (int k = 0; k < g->nrow && g->row[k].once && *kept != RT_PREPACKED(g->name); k++)
		if (!run_launch(c, &g->row[k], c->h->run.batch))
			return false;
	*kept = g->nrow && g->row[0].once ? RT_PREPACKED(g->name) : CUDA_CURRENT;
	return true;
}

/* ---- a span of steps
 *
 * Of several processes all launch the same steps, whatever ends them: an exchange needs everybody. So a graph is
 * launched as long as what has been launched is no more than `ahead` beyond what is done, and how far that goes depends
 * on the step that ended the loop alone; a wish to stop goes to the device as mail, and becomes all devices' in the
 * next vote. */

typedef struct Span {
	Cuda *c;
	const RtLoop *loop;
	DeviceSet *set;
	int64_t from, to, first;                    /* first: its first record */
	bool mailed, shared;                        /* shared: with other processes */
} Span;

/* Before which step does the run stop? Of several processes what this one alone was told is no reason yet. */
static int64_t
span_stop(const RtHost *h, bool shared)
{
	if (!shared)
		return __atomic_load_n(&h->run.stop_at, __ATOMIC_SEQ_CST);
	return h->stop ? 0 : h->stop_step < h->next_save ? h->stop_step : h->next_save;
}

/* Where the host leaves a wish to stop: for the loop, or for this process's vote. */
static int64_t *
span_mail(const Span *s)
{
	return s->shared ? s->c->shards.marks + 1 : (int64_t *)(void *)(s->c->mapped + CUDA_MAIL);
}

static void
span_collect(Span *s)
{
	Cuda *c = s->c;
	RtHost *h = c->h;
	const RtGraph *g = h->graph;
	int64_t head = __atomic_load_n((int64_t *)(c->mapped + CUDA_HEAD), __ATOMIC_ACQUIRE);

	for (; c->seen < head; c->seen++) {
		const uint8_t *at = c->mapped + CUDA_RECORDS + (c->seen & (c->capacity - 1)) * c->words * 8;
		RtRecord r = {.epoch = h->run.epoch, .n = h->run.batch};

		memcpy(&r.step, at, 8);
		for (int k = 0; k < g->nscalar; k++)
			r.value[k] = rt_dtype_read(g->scalar_dtype[k], at + 8 + 8 * k);
		if (h->mode == RT_M_TRAIN)
			r.rate = rt_rate_at(h, r.step);
		rt_publish(&h->run, &r);
	}
}

/* Until no more than `ahead` of the steps launched so far are not done yet; 0: until all is. Naps grow with the wait,
 * so that a short span is not found late. */
static bool
span_wait(Span *s, int64_t launched, int64_t ahead)
{
	Cuda *c = s->c;
	struct timespec nap = {0};
	long most = ahead ? RUN_LONG_NAP_NS / 8 : RUN_LONG_NAP_NS;
	double begin = rt_now();

	for (;;) {
		int status = c->cu.cuStreamQuery(c->stream);

		span_collect(s);
		int signal = __atomic_load_n(&c->h->signal, __ATOMIC_SEQ_CST);

		if (!s->mailed && (s->shared ? signal != 0 : span_stop(c->h, false) < s->to)) {
			s->mailed = true;
			__atomic_store_n(span_mail(s), s->shared ? signal : 1, __ATOMIC_SEQ_CST);
		}
		if (s->shared && !cuda_nccl_well(c))
			return false;
		if (status == 0 || (status == CU_NOT_READY && ahead && launched - (c->seen - s->first) <= ahead))
			return true;
		if (status != CU_NOT_READY)
			return cuda_ok(c, status, "cuStreamQuery") ||
			       rt_context(&c->h->error, "the kernels of %s (--sink off names the one that fails)",
			                  c->h->mode == RT_M_EVAL ? "eval" : "train");
		nap.tv_nsec = (long)((rt_now() - begin) * (1e9 / RUN_NAPS));
		nap.tv_nsec = nap.tv_nsec < RUN_NAP_NS ? RUN_NAP_NS : nap.tv_nsec < most ? nap.tv_nsec : most;
		nanosleep(&nap, NULL);
	}
}

static bool
span_rates(Span *s)
{
	int64_t n = s->to - s->from;
	double *rate;
	bool good;

	if (s->c->h->mode != RT_M_TRAIN)
		return true;
	rate = rt_alloc(sizeof *rate * (size_t)n);
	for (int64_t i = 0; i < n; i++)
		rate[i] = rt_rate_at(s->c->h, s->from + i);
	good = cuda_put(s->c, s->c->rates, rate, (int64_t)sizeof *rate * n);
	free(rate);
	return good;
}

static bool
span_begin(Span *s)
{
	Cuda *c = s->c;
	RtHost *h = c->h;
	const RtRun *r = &h->run;
	bool train = h->mode == RT_M_TRAIN;

	if (!cuda_use(c, &s->set) || !cuda_room(c, s->to - s->from) || !span_rates(s))
		return false;
	if (s->set->staged)
		rt_shuffle(&h->run);
	else if (!cuda_order(c, r->epoch, true))
		return false;
	s->first = c->seen;
	__atomic_store_n(span_mail(s), 0, __ATOMIC_SEQ_CST);
	c->top = (LoopHead){
	        .state = {.step = s->from,
	                  .until = s->to,
	                  .base = s->from,
	                  .start = r->epoch * r->steps_per_epoch,
	                  .accumulate = h->accumulate,
	                  .batch = r->batch,
	                  .batches = r->examples / r->batch,
	                  .staged = s->set->staged,
	                  .seed = r->seed,
	                  .finite = train && !r->allow_nan,
	                  .rates = train ? (long long)c->rates : 0,
	                  .order = r->order && !s->set->staged ? (long long)c->order[r->epoch & 1] : 0,
	                  .ring = (long long)c->mapped_at + CUDA_RECORDS,
	                  .mask = c->capacity - 1,
	                  .words = c->words,
	                  .records = c->seen,
	                  .head = (long long)c->mapped_at + CUDA_HEAD,
	                  .mail = s->shared ? (long long)c->shards.agreed : (long long)c->mapped_at + CUDA_MAIL}};
	int64_t nothing = 0;

	if (s->shared && !cuda_put(c, c->shards.agreed, &nothing, sizeof nothing))
		return false;
	return cuda_put(c, c->base, &c->top, sizeof c->top) && (train || run_once(c, h->graph));
}

/* The graph of the whole epoch; NULL with no_while set where there can be none. */
static Plan *
span_loop(Span *s)
{
	Cuda *c = s->c;
	Plan *p = c->no_while ? NULL : cuda_plan(c, s->loop, 0);

	c->no_while = !p;
	if (p || c->said)
		return p;
	rt_progress_clear(c->h);
	fprintf(stderr, "note: no loop in a graph: %s; each step is a launch\n",
	        c->h->error.text[0] ? c->h->error.text : c->why_while);
	c->h->error.text[0] = 0;
	c->said = true;
	return NULL;
}

/* All `launched` steps are done with, and not each of them left a record: a NaN or a fault has ended the run. */
static bool
span_ended(Span *s, int64_t launched)
{
	if (s->c->cu.cuStreamQuery(s->c->stream))
		return false;
	span_collect(s);
	return s->c->seen - s->first < launched;
}

/* Graphs of so many steps, then of one, as far as they are not done with. */
static bool
span_steps(Span *s, int64_t steps)
{
	Cuda *c = s->c;
	bool good = true;

	for (int64_t at = s->from; good && at < s->to && (s->shared || !s->mailed);) {
		int64_t n = s->to - at >= steps ? steps : 1, ahead = n > RUN_AHEAD ? n : RUN_AHEAD;
		Plan *p = cuda_plan(c, s->loop, n);

		good = p && (!s->set->staged || cuda_stage(c, s->set, at)) &&
		       CUDA(c, cuGraphLaunch, p->exec, c->stream) && (!s->set->staged || cuda_staged(c, s->set, at));
		at += n;
		good = good && span_wait(s, at - s->from, ahead);
		if (good && (s->shared ? at - s->from - (c->seen - s->first) > ahead : span_ended(s, at - s->from)))
			break;
	}
	return good;
}

static bool
span_run(Span *s)
{
	Cuda *c = s->c;
	RtHost *h = c->h;
	int64_t sink = rt_sink(h), next = h->run.epoch + 1;
	Plan *p = NULL;

	if (s->set->staged)
		sink = 1;
	else if (sink < 0 && !s->shared && !(h->ranks > 1 && h->opt.no_exchange)) /* measured beside graphs of a step */
		p = span_loop(s);
	if (p ? !CUDA(c, cuGraphLaunch, p->exec, c->stream) : !span_steps(s, sink > 0 ? sink : 1))
		return false;
	if (h->mode == RT_M_TRAIN && !h->wrap && !s->set->staged && next * h->run.steps_per_epoch < h->total &&
	    !cuda_order(c, next, false))
		return false;
	return span_wait(s, 0, 0);
}

/* From run->step on; to the end if nothing comes between. */
static int64_t
run_span(Cuda *c, const RtLoop *loop, int64_t end)
{
	RtHost *h = c->h;
	RtRun *r = &h->run;
	Span s = {.c = c,
	          .loop = loop,
	          .from = r->step,
	          .to = end,
	          .shared = cuda_exchanges(c) && loop == &h->program.train};
	int64_t stop = span_stop(h, s.shared), status = RT_OK, agreed = 0;

	if (s.to > stop)
		s.to = stop > s.from ? stop : s.from + 1;
	if (s.to - s.from > RUN_SPAN)
		s.to = s.from + RUN_SPAN;
	if (!span_begin(&s) || !span_run(&s) || !cuda_get(c, &c->top, c->base, sizeof c->top) ||
	    (s.shared && !cuda_get(c, &agreed, c->shards.agreed, sizeof agreed)))
		return RT_ERROR;
	if (agreed > h->stop)
		h->stop = (int)agreed;
	if (s.shared) { /* all know how the steps ended */
		h->sums.joined = c->top.state.step;
		h->agreed = c->top.fault.set || c->top.state.status == RT_NOT_FINITE;
	}
	if (h->mode == RT_M_TRAIN)
		r->prepacked = CUDA_CURRENT;
	r->step = c->top.state.step;
	if (c->top.state.status == RT_NOT_FINITE) {
		r->micro = c->top.state.micro;
		return RT_NOT_FINITE;
	}
	if (c->top.state.status != RT_STOPPED) {
		memcpy(r->arena, &c->top.fault, sizeof c->top.fault);
		r->first = c->top.state.micro * r->batch;
		if (rt_fault(r))
			return RT_FAULT;
		/* else the wish to stop came when all that had been launched was done */
		if (!s.mailed) {
			rt_fail(&h->error, "the loop on the device ended at step %lld of %lld without a reason",
			        (long long)r->step, (long long)s.to);
			return RT_ERROR;
		}
	}
	if (r->step >= span_stop(h, s.shared)) {
		r->step--;                           /* rt_poll is asked at the end of a step */
		status = rt_poll(r);
		r->step++;
	}
	return status;
}

static int64_t
run_infer(Cuda *c)
{
	RtHost *h = c->h;
	const RtGraph *g = &h->program.graph[RT_G_INFER];
	bool check = false;
	Plan *p;

	c->top = (LoopHead){.state = {.seed = h->run.seed, .step = h->run.step}};
	for (int k = 0; k < g->nrow; k++)
		check |= g->row[k].check;
	if (!cuda_inputs(c, g, h->run.n) ||
	    ((g->seed >= 0 || g->step >= 0) && !cuda_put(c, c->base, &c->top, sizeof c->top)))
		return RT_ERROR;
	p = cuda_plan(c, &h->program.infer, 1);
	if (!p || !run_once(c, g) || !CUDA(c, cuGraphLaunch, p->exec, c->stream) ||
	    !CUDA(c, cuStreamSynchronize, c->stream) ||
	    (check && !cuda_get(c, h->run.arena, c->arena, sizeof(RtFault)))) {
		rt_context(&h->error, "the kernels of infer");
		return RT_ERROR;
	}
	return check && rt_fault(&h->run) ? RT_FAULT : RT_OK;
}

static bool
cuda_exchange(RtHost *h, int64_t n)
{
	Cuda *c = h->device;
	Plan *p;

	if (!cuda_here(c) || !(p = cuda_plan(c, NULL, 1)))
		return false;
	for (; n > 0; n--)
		if (!CUDA(c, cuGraphLaunch, p->exec, c->stream))
			return false;
	return cuda_nccl_wait(c, c->stream);
}

static void
cuda_forget(RtHost *h)
{
	cuda_plans_free(h->device);
}

int64_t
cuda_enter(RtHost *h, const RtLoop *loop)
{
	Cuda *c = h->device;
	RtRun *r = &h->run;
	int64_t end = r->until, status = RT_OK;

	if (h->mode == RT_M_TRAIN) /* rank 0 has saved */
		rt_cuts_over(h);
	if (loop == &h->program.infer && r->n != r->batch)
		return rt_loop_walk(h, loop);
	if (!cuda_here(c))
		return RT_ERROR;
	if (loop == &h->program.infer)
		return run_infer(c);
	if (h->mode == RT_M_EVAL && end > r->examples / r->batch)
		end = r->examples / r->batch;
	while (r->step < end && status == RT_OK)
		status = run_span(c, loop, end);
	return status == RT_OK && r->step < r->until ? rt_loop_walk(h, loop) : status; /* a last, smaller batch */
}

const RtDevice rt_cuda = {
        .ready = cuda_ready,
        .missing = cuda_missing,
        .open = cuda_open,
        .call = cuda_call,
        .enter = cuda_enter,
        .fetch = cuda_fetch,
        .close = cuda_close,
        .begin = parts_begin,
        .rows = parts_rows,
        .mark = parts_mark,
        .wait = parts_wait,
        .end = parts_end,
        .between = parts_between,
        .put = parts_put,
        .shards = cuda_shards,
        .merge = cuda_shards_merge,
        .exchange = cuda_exchange,
        .forget = cuda_forget,
        .link = cuda_link,
        .adds = cuda_adds,
        .resident = cuda_resident,
};
