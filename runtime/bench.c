/* bench.c: the command bench, after the AIIA protocol: warm-up batches, then several measurements of a fixed number of
 * batches.
 *
 * The same loop as in training or evaluation runs over the data round and round (synthetic data unless --data is
 * given); inference has one batch, put into the arena before each call. Of these two the results of the last step are
 * told by their bits (--json).
 * The machine's peak is measured before and between the measurements, and a rate above it is marked suspect, as nothing
 * can be that fast. --profile walks the kernels one by one with a clock after the measurements; its trace has the last
 * three steps, a lane for each thread. --profile=top sorts the kernels by time and holds each against the roofline: the
 * time that its operations take at the measured peak, or its bytes at the memory's measured speed.
 * --latency times every call of an inference by itself, from its start until its results are there. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Bench {
	RtHost *h;
	bool reader;                 /* --reader: no step is taken */
	RtUsage *usage;              /* --usage; NULL */
	bool infer, forward;         /* forward: infer or eval, which update nothing */
	int graph;
	double *seconds;             /* by repeat */
	double *call; int64_t ncall; /* --latency: seconds of each measured call; else NULL */
	double hidden;               /* of several processes: the part of the exchange's time */
	double first, peak, gflop;   /* peak: FLOP/s; gflop: of one step */
	int kernels, used;           /* used: threads, in the last step */
	char *trace;                 /* the file of --profile */
	double *plain;               /* seconds by row, of a program with plain kernels; NULL: it has none */
} Bench;

enum { TRACE_STEPS = 3, TOP = 20 };
typedef struct Event { int row, thread; double begin, end; } Event;
typedef struct Trace {
	RtHost *h;
	double *seconds;             /* by row, summed; rows of the update graph after those of train */
	double origin;
	int base;
	bool quiet, records;         /* quiet: times alone are wanted; records: the last TRACE_STEPS steps */
	double step[TRACE_STEPS][2]; /* beginning and end of these */
	int nstep;
	Event *event; size_t nevent, room;
} Trace;

/* ---- running */

static bool
bench_status(RtHost *h, int64_t status)
{
	if (status == RT_FAULT)
		rt_host_fault(h);
	else if (status != RT_OK && status != RT_ERROR)
		rt_fail(&h->error, "the program returned status %lld", (long long)status);
	return status == RT_OK;
}

/* n batches of the reader, as steps would ask for them. */
static bool
bench_batches(Bench *b, int64_t n)
{
	RtHost *h = b->h;
	const RtGraph *g = &h->program.graph[b->graph];

	for (; n > 0; n--, h->run.step++) {
		rt_shuffle(&h->run);
		for (h->run.micro = 0; h->run.micro < h->accumulate; h->run.micro++)
			if (!rt_gather(&h->run, h->run.arena, g->input, h->program.ninput))
				return false;
	}
	return true;
}

/* An inference finds its batch in the arena, where kernels may have written since: it is put there anew, which counts
 * as it does for whoever brings new examples. */
static bool
bench_batch_again(Bench *b)
{
	RtHost *h = b->h;
	int64_t step = h->run.step, examples = h->run.examples;
	bool good;

	h->run.step = 0;
	h->run.examples = h->train.examples;
	h->fresh = true;
	good = rt_gather(&h->run, h->run.arena, h->graph->input, h->program.ninput);
	h->run.step = step;
	h->run.examples = examples;
	return good;
}

static bool
bench_steps(Bench *b, int64_t n)
{
	RtHost *h = b->h;
	int64_t sink = rt_sink(h), end = h->run.step + n;

	if (b->reader)
		return bench_batches(b, n);

	while (h->run.step < end) {
		if (b->infer && !bench_batch_again(b))
			return false;
		double begin = b->call ? rt_now() : 0;
		int64_t status;

		h->run.until = b->infer                                                    ? h->run.step + 1
		               : sink > 0 && !h->object->device && h->run.step + sink < end ? h->run.step + sink
		                                                                           : end;
		status = rt_host_enter(h,
		                       b->infer     ? h->object->infer
		                       : b->forward ? h->object->eval
		                                    : h->object->train,
		                       b->infer     ? &h->program.infer
		                       : b->forward ? &h->program.eval
		                                    : &h->program.train,
		                       sink == 0);
		if (!bench_status(h, status))
			return false;
		if (b->infer)                        /* an inference may leave step alone */
			h->run.step = h->run.until;
		if (b->call && b->ncall < h->opt.repeat * h->opt.bench_steps) /* --usage may add steps */
			b->call[b->ncall++] = rt_now() - begin;
	}
	if (!b->infer)
		rt_drain(h);
	return true;
}

static bool
bench_data(Bench *b)
{
	RtHost *h = b->h;
	int64_t examples = h->program.batch * h->program.accumulate * 8;

	if (h->opt.data || b->reader)
		return rt_data_load(&h->program, &h->opt, true, &h->train, &h->error);
	return rt_data_synthetic(&h->program, h->run.seed, examples, &h->train, &h->error);
}

static bool
bench_prepare(Bench *b)
{
	RtHost *h = b->h;
	const RtGraph *g;

	b->reader = h->opt.reader;
	b->infer = h->opt.mode && strcmp(h->opt.mode, "infer") == 0;
	b->forward = b->infer || (h->opt.mode && strcmp(h->opt.mode, "eval") == 0);
	b->graph = b->infer ? RT_G_INFER : b->forward ? RT_G_EVAL : RT_G_TRAIN;
	g = &h->program.graph[b->graph];
	if (!g->present)
		return rt_fail(&h->error, b->infer     ? "the model has no output: --mode infer has nothing to time"
		                          : b->forward ? "the model has no loss and no metric: use --mode infer"
		                                       : "the model has no loss: use --mode infer");
	if (!bench_data(b))
		return false;
	if (h->train.examples < h->program.batch)
		return rt_fail(&h->error, "%lld training examples are fewer than one batch of %lld",
		               (long long)h->train.examples, (long long)h->program.batch);
	if (!rt_host_memory(h, h->train.examples) || !rt_host_init_state(h) || !rt_sums_meet(h))
		return false;
	h->run.allow_nan = 1;                    /* random labels may well diverge */
	h->wrap = true;
	h->total = h->opt.warmup + h->opt.repeat * h->opt.bench_steps + 1;
	h->next_save = h->stop_step = INT64_MAX;
	if (b->infer) {
		h->graph = g;
		h->data = &h->train;
		h->run.examples = h->program.batch;
	} else {
		rt_host_use(h, b->forward ? RT_M_EVAL : RT_M_TRAIN, &h->train, !b->forward && h->program.shuffle);
		h->run.steps_per_epoch = INT64_MAX / 4; /* batches wrap: one long epoch */
	}
	b->gflop = 0;
	for (int k = 0; k < g->nrow; k++)
		b->gflop += g->row[k].flops * 1e-9 * (b->forward ? 1 : (double)h->program.accumulate);
	for (int k = 0; !b->forward && k < h->program.graph[RT_G_UPDATE].nrow; k++)
		b->gflop += h->program.graph[RT_G_UPDATE].row[k].flops * 1e-9;
	if (b->reader)
		b->gflop = 0;
	else if (b->gflop <= 0)
		b->gflop = b->forward ? h->program.gflop_per_step / 3 : h->program.gflop_per_step;
	b->kernels = g->nrow + (b->forward ? 0 : h->program.graph[RT_G_UPDATE].nrow);
	return true;
}

/* Of the CPU; of a device none is measured. */
static double
bench_peak(const RtHost *h)
{
	return h->object->device || h->opt.reader
	               ? 0
	               : rt_peak_flops(h->threads, h->program.narrow, h->object->needs ? h->object->needs : "");
}

static bool
bench_measure(Bench *b)
{
	RtHost *h = b->h;
	double peak, *call = NULL;

	if (h->opt.latency)
		call = rt_alloc(sizeof *call * (size_t)(h->opt.repeat * h->opt.bench_steps));
	if (!bench_steps(b, 1))
		return false;
	b->first = rt_now() - h->start;
	b->peak = bench_peak(h);
	if (h->opt.warmup > 1 && !bench_steps(b, h->opt.warmup - 1))
		return false;
	b->call = call;
	if (h->opt.usage)
		b->usage = rt_usage_begin(h, NULL);
	for (int64_t i = 0; i < h->opt.repeat; i++) {
		rt_together(h);
		double begin = rt_now();

		if (!bench_steps(b, h->opt.bench_steps))
			return false;
		b->seconds[i] = (rt_now() - begin) / (double)h->opt.bench_steps;
		b->used = rt_threads_used(h->threads);
		peak = bench_peak(h);
		b->peak = peak > b->peak ? peak : b->peak;
	}
	while (b->usage && rt_usage_samples(b->usage) < 3)
		if (!bench_steps(b, 1))
			return false;
	if (b->usage)
		rt_usage_end(b->usage);
	return true;
}

/* Microseconds of a call. p99: the least that 99 of 100 calls do not exceed (nearest rank). */
typedef struct Latency { double median, p99, least, most; } Latency;

static Latency
bench_latency(const Bench *b)
{
	RtTiming t = rt_timing(b->call, b->ncall);

	return (Latency){t.median * 1e6, b->call[(99 * b->ncall + 99) / 100 - 1] * 1e6, t.least * 1e6, t.most * 1e6};
}

/* ---- profile */

static void
bench_time(void *cx, const RtGraph *g, int row, double begin, double end)
{
	Trace *t = cx;

	(void)g;
	t->seconds[t->base + row] += end - begin;
	for (int i = 0, n = rt_threads_count(t->h->threads); t->records && i < n; i++) {
		RtLane *l = &t->h->lane[i];
		bool took = t->h->object->device ? i == 0 : l->end > 0;

		if (t->nevent == t->room) {
			t->room = 2 * t->room + 256;
			t->event = realloc(t->event, t->room * sizeof *t->event);
			if (!t->event)
				abort();                     /* as rt_alloc */
		}
		if (took)
			t->event[t->nevent++] = (Event){t->base + row, i, (l->end > 0 ? l->begin : begin) - t->origin,
			                                (l->end > 0 ? l->end : end) - t->origin};
		*l = (RtLane){0};
	}
}

static bool
bench_profile_run(Bench *b, Trace *t, int64_t steps)
{
	RtHost *h = b->h;
	const RtGraph *g = &h->program.graph[b->graph];
	/* as long as the program, like all of rt_alloc */
	RtLane *lane = rt_alloc(sizeof *lane * (size_t)rt_threads_count(h->threads));

	t->origin = rt_now();
	for (int64_t i = 0; i < steps; i++, h->run.step++) {
		t->base = 0;
		double begin = rt_now();

		t->records = !t->quiet && i + TRACE_STEPS >= steps;
		h->lane = t->records ? lane : NULL;
		if (!b->forward) {
			rt_shuffle(&h->run);
			rt_rate(&h->run);
		}
		bool device = !b->forward && h->program.shards > 1 && h->object->device,
		     in_step = device || (!b->forward && rt_joins_in_step(h));

		if (in_step && !bench_status(h, device ? h->object->device->shards(h, bench_time, t)
		                                       : rt_joined_step(h, bench_time, t)))
			return false;
		if (!b->forward && h->joins.data && !bench_status(h, rt_count(&h->run)))
			return false;
		h->run.micro = b->forward ? 0 : h->run.shard;
		for (; !in_step && h->run.micro < (b->forward ? 1 : h->run.shard_end); h->run.micro++) {
			if (b->infer && !bench_batch_again(b))
				return false;
			if (!b->infer)
				rt_batch(&h->run, g->input, h->program.ninput);
			if (!bench_status(h, rt_loop_call(h, b->graph, bench_time, t)))
				return false;
			if (!b->forward && h->program.shards > 1 && !bench_status(h, rt_merge(&h->run)))
				return false;
		}
		t->base = g->nrow;
		if (!b->forward && h->program.accumulate > 1 &&
		    !bench_status(h, rt_loop_call(h, RT_G_UPDATE, bench_time, t)))
			return false;
		if (t->records) {
			t->step[t->nstep][0] = begin - t->origin;
			t->step[t->nstep++][1] = rt_now() - t->origin;
		}
	}
	h->lane = NULL;
	return true;
}

/* Does a contraction go a number at a time? */
static bool
bench_plain(const Bench *b)
{
	const RtGraph *g = &b->h->program.graph[b->graph];
	bool any = false;

	for (int k = 0; k < g->nrow; k++)
		any |= g->row[k].plain;
	return any;
}

static const RtRow *
bench_row(const Bench *b, int k)
{
	const RtGraph *g = &b->h->program.graph[b->graph];

	return k < g->nrow ? &g->row[k] : &b->h->program.graph[RT_G_UPDATE].row[k - g->nrow];
}

static void
bench_names_text(void)
{
	printf("a kernel's name: graph, costliest operation, its layer, number of the group (as in explain and dump), "
	       "step within it:\n"
	       "  .main or .m0 .m1 ..: its work; .pack .taps .weights: operands made ready; .r0 .rows .finish .f0: "
	       "sums put together\n");
}

/* Blocks of the kernel that a multiprocessor holds; 0: there is no device, or it does not say. */
static int
bench_resident(const Bench *b, const RtRow *r)
{
	const RtDevice *device = b->h->object->device;

	return device && device->resident ? device->resident(b->h, r) : 0;
}

static void
bench_profile_text(const Bench *b, const Trace *t, int64_t steps)
{
	double all = 0;

	for (int k = 0; k < b->kernels; k++)
		all += t->seconds[k];
	printf("\n  %-40s %10s %7s %9s %8s  %s%s\n", "kernel", "us/step", "share", "GFLOP/s", "GB/s",
	       b->h->object->device ? "blocks/SM  " : "", "layers");
	for (int k = 0; k < b->kernels; k++) {
		const RtRow *r = bench_row(b, k);
		double s = t->seconds[k] / (double)steps;

		printf("  %-40s %10.1f %6.1f%% %9.1f %8.1f  ", r->name, s * 1e6,
		       all > 0 ? 100 * t->seconds[k] / all : 0, s > 0 ? r->flops / s * 1e-9 : 0,
		       s > 0 ? r->bytes / s * 1e-9 : 0);
		if (b->h->object->device)
			printf("%9d  ", bench_resident(b, r));
		printf("%s%s%s%s\n", r->layers, *r->where ? " (" : "", r->where, *r->where ? ")" : "");
	}
	bench_names_text();
}

/* ---- the kernels that take longest, against the roofline */

typedef struct Ranked { int row; double seconds; } Ranked;

static int
bench_slower(const void *x, const void *y)
{
	const Ranked *a = x, *b = y;

	return a->seconds != b->seconds ? (a->seconds < b->seconds ? 1 : -1) : a->row - b->row;
}

/* What binds a kernel of s seconds, whose operations take f of them at the peak and whose bytes m at the memory's
 * speed. */
static const char *
bench_binds(double s, double f, double m)
{
	enum { SHORT = 10 }; /* microseconds in which a kernel starts and its threads meet */

	if (f >= m && f > 0.5 * s)
		return "arithmetic";
	if (m > f && m > 0.5 * s)
		return m > s ? "caches: the data stay near" : "memory";
	if (s < SHORT * 1e-6)
		return "its start: too short to fill the threads";
	return f >= m ? "instructions that are no FMAs, or short loops"
	              : "access by small pieces, or instructions";
}

static void
bench_top_text(const Bench *b, const Trace *t, int64_t steps)
{
	Ranked *r = rt_alloc(sizeof *r * (size_t)(b->kernels + 1));
	double memory = b->h->object->device ? 0 : rt_peak_memory(b->h->threads), all = 0, shown = 0;
	int n = b->kernels < TOP ? b->kernels : TOP, train = b->h->program.graph[b->graph].nrow;

	for (int k = 0; k < b->kernels; k++) {
		r[k] = (Ranked){k, t->seconds[k] / (double)steps};
		all += r[k].seconds;
	}
	qsort(r, (size_t)b->kernels, sizeof *r, bench_slower);
	printf("\n%9s %6s %8s  %s\n", "us/step", "share", "roofline", "layers, kernel: what binds it");
	for (int k = 0; k < n; k++) {
		const RtRow *row = bench_row(b, r[k].row);
		double calls = !b->forward && r[k].row < train ? (double)b->h->program.accumulate : 1, s = r[k].seconds;
		double f = b->peak > 0 ? calls * row->flops / b->peak : 0,
		       m = memory > 0 ? calls * row->bytes / memory : 0;
		double most = f > m ? f : m;

		shown += s;
		printf("%9.1f %5.1f%%", s * 1e6, all > 0 ? 100 * s / all : 0);
		if (most > 0 && s > 0)
			printf(" %7.0f%%", 100 * (most < s ? most / s : 1));
		else
			printf(" %8s", "-");
		printf("  %s%s%s%s\n%27s%s%s%s\n", *row->layers ? row->layers : "no layer", *row->where ? " (" : "",
		       row->where, *row->where ? ")" : "", "", row->name, most > 0 ? ": " : "",
		       most > 0 ? bench_binds(s / calls, f / calls, m / calls) : "");
	}
	printf("%9.1f %5.1f%%  the other %d kernels\n", (all - shown) * 1e6, all > 0 ? 100 * (all - shown) / all : 0,
	       b->kernels - n);
	if (b->peak > 0 && memory > 0)
		printf("roofline: the time of its operations at %.1f GFLOP/s or of its bytes at %.1f GB/s, both "
		       "measured here, over its own\n",
		       b->peak * 1e-9, memory * 1e-9);
	bench_names_text();
}

/* Kernels that memory limits: fewer operations than bytes, and more bytes than caches near the CPU hold. */
typedef struct Streaming { double seconds, bytes, peak; } Streaming;

static Streaming
bench_streaming(const Bench *b, const Trace *t, int64_t steps)
{
	enum { LARGE = 4 << 20 };
	Streaming s = {.peak = b->h->object->device ? 0 : rt_peak_memory(b->h->threads)};

	for (int k = 0; k < b->kernels; k++) {
		const RtRow *r = bench_row(b, k);

		if (r->bytes < LARGE || r->flops > r->bytes)
			continue;
		s.seconds += t->seconds[k] / (double)steps;
		s.bytes += r->bytes;
	}
	return s;
}

static void
bench_streaming_text(const Streaming *s)
{
	if (s->seconds <= 0 || s->peak <= 0)
		return;
	printf("  %-40s %10.1f %7s %9s %8.1f  %.0f %% of the memory's %.1f GB/s, measured (sum of two vectors)\n",
	       "kernels that memory limits", s->seconds * 1e6, "", "", s->bytes / s->seconds * 1e-9,
	       100 * s->bytes / s->seconds / s->peak, s->peak * 1e-9);
}

static void
bench_profile_json(const Bench *b, const Trace *t, int64_t steps)
{
	printf(", \"kernels\": [");
	for (int k = 0; k < b->kernels; k++) {
		const RtRow *r = bench_row(b, k);

		printf("%s{\"name\": ", k ? ", " : "");
		rt_json_text(stdout, r->name);
		printf(", \"seconds\": %.9g, \"gflop\": %.9g, \"bytes\": %.9g, \"tasks\": %lld, \"whole\": %lld, "
		       "\"turns\": %lld, \"shares\": %s, \"layers\": ",
		       t->seconds[k] / (double)steps, r->flops * 1e-9, r->bytes,
		       (long long)rt_row_tasks(r, b->h->program.batch), (long long)(r->whole ? r->whole : 1),
		       (long long)(r->turns ? r->turns : 1), r->shares ? "true" : "false");
		rt_json_text(stdout, r->layers);
		printf(", \"where\": ");
		rt_json_text(stdout, r->where);
		if (b->h->object->device)
			printf(", \"blocks_per_sm\": %d", bench_resident(b, r));
		printf("}");
	}
	printf("]");
}

/* Chrome's trace event format: complete events of the last profiled steps, in microseconds, by thread. */
static void
bench_trace_text(const Bench *b, const Trace *t, FILE *f)
{
	fprintf(f, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
	for (size_t k = 0; k < t->nevent; k++) {
		const Event *e = &t->event[k];
		const RtRow *r = bench_row(b, e->row);

		fprintf(f, "%s\n{\"name\": ", k ? "," : "");
		rt_json_text(f, r->name);
		fprintf(f,
		        ", \"cat\": \"kernel\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
		        "\"args\": {\"layers\": ",
		        e->thread + 1, e->begin * 1e6, (e->end - e->begin) * 1e6);
		rt_json_text(f, r->layers);
		fprintf(f, ", \"where\": ");
		rt_json_text(f, r->where);
		fprintf(f, ", \"flops\": %.9g, \"bytes\": %.9g}}", r->flops, r->bytes);
	}
	bool device = b->h->object->device;

	for (int i = 0; i < t->nstep; i++)
		fprintf(f,
		        "%s\n{\"name\": \"step %d\", \"cat\": \"step\", \"ph\": \"X\", \"pid\": 1, \"tid\": 0, "
		        "\"ts\": %.3f, \"dur\": %.3f, \"args\": {}}", i || t->nevent ? "," : "", i + 1,
		        t->step[i][0] * 1e6, (t->step[i][1] - t->step[i][0]) * 1e6);
	fprintf(f, ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": 0, \"args\": {\"name\": "
	           "\"steps\"}}");
	for (int i = 0; i < (device ? 1 : rt_threads_count(b->h->threads)); i++)
		fprintf(f,
		        ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"args\": {\"name\": "
		        "\"%s %d\"}}",
		        i + 1, device ? "device" : "thread", i + 1);
	fprintf(f, "\n]}\n");
}

static bool
bench_trace_write(const Bench *b, const Trace *t)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);
	RtError *e = &b->h->error;
	RtOut out;
	bool good;

	if (f)
		bench_trace_text(b, t, f);
	if (!f || fclose(f) != 0)
		return rt_fail(e, "out of memory for the trace");
	good = rt_out_open(&out, b->trace, e);
	if (good && !rt_out_write(&out, text, bytes, e))
		good = rt_out_drop(&out) && false;
	else if (good)
		good = rt_out_end(&out, false, e);
	free(text);
	return good || rt_context(e, "--profile");
}

static bool
bench_profile(Bench *b, Trace *t, int64_t steps)
{
	size_t n = sizeof(double) * (size_t)(b->kernels + 1);

	t->seconds = rt_alloc(n);
	t->h = b->h;
	b->h->profiles = true;
	if (!bench_profile_run(b, t, steps))
		return false;
	if (b->h->opt.top)
		return true;
	if (!bench_trace_write(b, t))
		return false;
	if (!b->h->opt.quiet)
		fprintf(stderr, "trace: %s (open in a Chrome trace viewer)\n", b->trace);
	return true;
}

/* Of a program with plain kernels, the time of each kernel, in a few steps where no profile asks for more. */
static bool
bench_plain_run(Bench *b, const Trace *t)
{
	enum { FEW = 5 };
	Trace own = {.h = b->h, .quiet = true};

	if (!bench_plain(b) || b->h->ranks > 1)
		return true;
	b->plain = t->seconds;
	if (b->plain)
		return true;
	own.seconds = b->plain = rt_alloc(sizeof(double) * (size_t)(b->kernels + 1));
	b->h->profiles = true;
	return bench_profile_run(b, &own, b->h->opt.bench_steps < FEW ? b->h->opt.bench_steps : FEW);
}

/* Before the measurements: the trace can be written. */
static bool
bench_trace_try(Bench *b)
{
	const RtOptions *o = &b->h->opt;

	b->trace = o->profile ? rt_printf("%s", o->profile) : rt_printf("%s.trace.json", o->program);
	return !o->profiling || o->top || rt_out_try(b->trace, NULL, &b->h->error) ||
	       rt_context(&b->h->error, "--profile");
}

/* ---- what an exchange costs
 *
 * Of the time that exchanges take, the part that the loop does not wait for. A CPU's exchange thread tells both; a
 * device tells no times of its streams, so it is what steps without an exchange are shorter by, beside the exchange
 * alone. */

/* Seconds of one of n, the median of as many turns as the benchmark has. */
static bool
bench_apart(Bench *b, bool exchange, double *each)
{
	RtHost *h = b->h;
	int64_t n = h->opt.bench_steps;
	double *seconds = rt_alloc(sizeof *seconds * (size_t)h->opt.repeat);
	bool good;

	h->opt.no_exchange = !exchange;
	h->object->device->forget(h);
	good = exchange ? rt_exchanges(h, 1) : bench_steps(b, 1); /* made, and run once */
	for (int64_t i = 0; i < h->opt.repeat && good; i++) {
		double begin = rt_now();

		good = exchange ? rt_exchanges(h, n) : bench_steps(b, n);
		seconds[i] = (rt_now() - begin) / (double)n;
	}
	*each = rt_median(seconds, h->opt.repeat);
	free(seconds);
	return good;
}

static bool
bench_exchange(Bench *b)
{
	const RtSums *s = &b->h->sums;
	double without, alone;

	if (b->h->ranks == 1 || b->forward || b->reader || b->h->opt.no_exchange)
		return true;
	b->hidden = s->busy > 0 ? 1 - (s->exposed + s->voting) / (s->busy + s->voting) : 0;
	if (b->h->object->device) {
		if (!bench_apart(b, false, &without) || !bench_apart(b, true, &alone))
			return false;
		b->hidden = 1 - (rt_median(b->seconds, b->h->opt.repeat) - without) / alone;
	}
	b->hidden = b->hidden > 0 ? b->hidden < 1 ? b->hidden : 1 : 0;
	return true;
}

/* ---- reports */

/* What the last step has left, a result each: its bits, and the root of the mean of its squares. */
static void
bench_results_json(const Bench *b)
{
	RtHost *h = b->h;
	const RtGraph *g = &h->program.graph[b->graph];
	const char *before = "";

	printf(", \"results\": [");
	for (int i = 0; i < g->nresult; i++) {
		const RtTensor *t = &g->result[i].t;
		const uint8_t *at = h->run.arena + t->offset;
		double sum = 0, n = (double)(t->bytes / rt_dtype[t->dtype].bytes);

		if (t->offset < 0 || !rt_host_fetch(h, t->offset, t->bytes))
			continue;
		for (int64_t k = 0; k < t->bytes / rt_dtype[t->dtype].bytes; k++) {
			double x = rt_dtype_read(t->dtype, at + k * rt_dtype[t->dtype].bytes);

			sum += x * x;
		}
		printf("%s{\"name\": ", before);
		rt_json_text(stdout, t->name);
		printf(", \"hash\": \"%016llx\", \"rms\": ",
		       (unsigned long long)rt_hash(RT_HASH_START, at, (size_t)t->bytes));
		rt_json_number(stdout, n > 0 ? sqrt(sum / n) : 0, 9);
		printf("}");
		before = ", ";
	}
	printf("]");
}

/* Of the kernels' time, what plain kernels take. */
static double
bench_plain_share(const Bench *b, const double *seconds)
{
	double all = 0, plain = 0;

	for (int k = 0; k < b->kernels; k++) {
		all += seconds[k];
		plain += bench_row(b, k)->plain ? seconds[k] : 0;
	}
	return all > 0 ? plain / all : 0;
}

static void
bench_plain_text(const Bench *b)
{
	enum { SHOWN = 4 };
	int n = 0;

	if (!b->plain)
		return;
	printf("%-12s %.1f %% of the time: ", "plain kernel", 100 * bench_plain_share(b, b->plain));
	for (int k = 0; k < b->kernels; k++) {
		const RtRow *r = bench_row(b, k);

		if (r->plain && n++ < SHOWN)
			printf("%s%s%s%s%s", n > 1 ? ", " : "", *r->layers ? r->layers : "no layer",
			       *r->where ? " (" : "", r->where, *r->where ? ")" : "");
	}
	if (n > SHOWN)
		printf(" and %d more", n - SHOWN);
	printf("\n");
}

static void
bench_print_json(const Bench *b, RtTiming s, bool suspect, const Trace *t, int64_t profiled)
{
	const RtHost *h = b->h;
	double n = (double)(h->program.batch * (b->forward ? 1 : h->program.accumulate)), gflops = b->gflop / s.median;

	printf("{\"model\": ");
	rt_json_text(stdout, h->program.model);
	printf(", \"target\": ");
	rt_json_text(stdout, h->program.target);
	printf(", \"arch\": ");
	rt_json_text(stdout, h->program.arch);
	printf(", \"precision\": ");
	rt_json_text(stdout, h->program.precision);
	printf(", \"mode\": \"%s\", \"batch\": %lld, \"threads\": %d, \"threads_used\": %d, \"steps\": %lld, "
	       "\"repeats\": %lld",
	       b->reader ? "reader" : b->infer ? "infer" : b->forward ? "eval" : "train",
	       (long long)(h->program.batch * (b->forward ? 1 : h->program.shards)),
	       rt_threads_count(h->threads), b->used, (long long)h->opt.bench_steps, (long long)h->opt.repeat);
	printf(", \"data\": ");
	rt_json_text(stdout, h->opt.data ? h->opt.data : b->reader ? "." : "synthetic");
	if (b->reader)
		printf(", \"readers\": %d", b->h->train.readers);
	printf(", \"examples_per_s\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}", n / s.median, n / s.most,
	       n / s.least);
	printf(", \"ms_per_step\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}", s.median * 1e3, s.least * 1e3,
	       s.most * 1e3);
	if (b->call) {
		Latency l = bench_latency(b);

		printf(", \"latency_us\": {\"median\": %.9g, \"p99\": %.9g, \"min\": %.9g, \"max\": %.9g, "
		       "\"calls\": %lld}",
		       l.median, l.p99, l.least, l.most, (long long)b->ncall);
	}
	printf(", \"gflop_per_step\": %.9g, \"gflops\": %.9g, \"peak_gflops\": %.9g, \"peak_share\": %.9g", b->gflop,
	       gflops, b->peak * 1e-9, b->peak > 0 ? gflops * 1e9 / b->peak : 0);
	printf(", \"peak_rss_bytes\": %lld, \"kernels_per_step\": %d, \"first_step_s\": %.9g", (long long)rt_peak_rss(),
	       b->kernels, b->first);
	if (h->object->device) {
		printf(", \"device\": ");
		rt_json_text(stdout, h->device_name);
		printf(", \"device_bytes\": %zu", h->device_bytes);
	}
	if (h->program.shards > 1 && !b->forward)
		printf(", \"processes\": %d, \"shards\": %lld, \"exchange_bytes\": %lld", h->ranks,
		       (long long)h->program.shards,
		       (long long)(h->ranks > 1 && !h->opt.no_exchange ? h->sums.bytes : 0));
	if (h->program.shards > 1 && !b->forward)
		printf(", \"hidden_share\": %.3g", b->hidden);
	if (b->plain)
		printf(", \"plain_share\": %.6g", bench_plain_share(b, b->plain));
	if (suspect)
		printf(", \"suspect\": true");
	if (b->usage)
		rt_usage_json(b->usage);
	if (b->forward)
		bench_results_json(b);
	if (t->seconds) {
		Streaming streaming = bench_streaming(b, t, profiled);

		printf(", \"streaming\": {\"seconds\": %.9g, \"bytes\": %.9g, \"memory_gbytes_s\": %.9g}",
		       streaming.seconds, streaming.bytes, streaming.peak * 1e-9);
		bench_profile_json(b, t, profiled);
	}
	printf("}\n");
}

static void
bench_print_text(const Bench *b, RtTiming s, bool suspect, const Trace *t, int64_t profiled)
{
	const RtHost *h = b->h;
	double n = (double)(h->program.batch * (b->forward ? 1 : h->program.accumulate)), gflops = b->gflop / s.median;

	const int all = rt_threads_count(h->threads), used = b->used;
	char threads[48];

	if (used < all)
		snprintf(threads, sizeof threads, "%d of %d threads", used, all);
	else
		snprintf(threads, sizeof threads, "%d thread%s", all, all == 1 ? "" : "s");
	printf("%s, %s, %s: batch %lld, %s, %lld x %lld steps after %lld\n", h->program.model,
	       b->reader    ? "the reader"
	       : b->infer   ? "inference"
	       : b->forward ? "evaluation"
	                    : "training",
	       h->program.precision, (long long)(h->program.batch * (b->forward ? 1 : h->program.shards)), threads,
	       (long long)h->opt.repeat, (long long)h->opt.bench_steps, (long long)h->opt.warmup);
	printf("%-12s %.1f median, %.1f min, %.1f max\n", "examples/s", n / s.median, n / s.most, n / s.least);
	printf("%-12s %.4g median, %.4g min, %.4g max\n", "ms/step", s.median * 1e3, s.least * 1e3, s.most * 1e3);
	if (b->call) {
		Latency l = bench_latency(b);

		printf("%-12s %.1f median, %.1f 99th percentile, %.1f min, %.1f max\n", "latency us", l.median, l.p99,
		       l.least, l.most);
	}
	if (b->usage)
		rt_usage_text(b->usage);
	if (b->reader) {
		printf("%-12s %d\n", "readers", b->h->train.readers);
		return;
	}
	printf("%-12s %.1f", "GFLOP/s", gflops);
	if (b->peak > 0)
		printf(" (%.1f %% of the measured peak of %.1f)%s\n", 100 * gflops * 1e9 / b->peak, b->peak * 1e-9,
		       suspect ? "  suspect: above the peak" : "");
	else
		printf(" (the peak of this program's arithmetic is not measured)\n");
	if (h->ranks > 1 && h->opt.no_exchange)
		printf("%-12s %d, which exchange nothing\n", "processes", h->ranks);
	else if (h->ranks > 1)
		printf("%-12s %d, %.3f MB a step each, %.0f %% of the exchange's time hidden\n", "processes", h->ranks,
		       (double)h->sums.bytes * 1e-6, 100 * b->hidden);
	if (h->object->device)
		printf("%-12s %s, %.1f MiB for arena and data\n", "device", h->device_name,
		       (double)h->device_bytes / 0x1p20);
	printf("%-12s %.1f MiB\n%-12s %d a step\n%-12s %.3f s after the start\n", "memory",
	       (double)rt_peak_rss() / 0x1p20, "kernels", b->kernels, "first step", b->first);
	bench_plain_text(b);
	if (t->seconds) {
		Streaming streaming = bench_streaming(b, t, profiled);

		if (h->opt.top)
			bench_top_text(b, t, profiled);
		else
			bench_profile_text(b, t, profiled);
		bench_streaming_text(&streaming);
	}
}

int
rt_bench(RtHost *h)
{
	Bench b = {.h = h, .seconds = rt_alloc(sizeof(double) * (size_t)h->opt.repeat)};
	int64_t profiled = h->opt.bench_steps < 20 ? h->opt.bench_steps : 20;
	Trace t = {0};
	RtTiming s;
	bool suspect;

	if (h->opt.mode && strcmp(h->opt.mode, "generate") == 0)
		return rt_generate_bench(h);
	if (h->ranks > 1 && h->opt.profiling) {
		rt_fail(&h->error, "--profile is for one process: --alone");
		h->agreed = true;
		return rt_die(h);
	}
	if (h->opt.latency && (h->opt.reader || !h->opt.mode || strcmp(h->opt.mode, "infer") != 0)) {
		rt_fail(&h->error, "--latency times calls of an inference: use it with --mode infer");
		h->agreed = true;
		return rt_die(h);
	}
	if ((h->opt.links || h->opt.only_exchange) && h->ranks < 2) {
		rt_fail(&h->error, "--%s: one process exchanges nothing: start several, as in mpirun -np 2 %s bench",
		        h->opt.links ? "links" : "only-exchange", h->opt.program);
		return rt_die(h);
	}
	if (!bench_trace_try(&b) || !bench_prepare(&b))
		return rt_die(h);
	if (h->opt.links || h->opt.only_exchange)
		return (h->opt.links ? rt_links(h) : rt_only_exchange(h)) ? 0 : rt_die(h);
	if (!bench_measure(&b) || !bench_exchange(&b)
	    || (h->opt.profiling && !bench_profile(&b, &t, profiled)) || !bench_plain_run(&b, &t))
		return rt_die(h);
	s = rt_timing(b.seconds, h->opt.repeat);
	suspect = b.peak > 0 && b.gflop / s.least * 1e9 > b.peak;
	if (h->opt.json)
		bench_print_json(&b, s, suspect, &t, profiled);
	else if (!h->opt.quiet)
		bench_print_text(&b, s, suspect, &t, profiled);
	return 0;
}
