/* cmd_info.c: `info`: what an executable's info would print, from the plan, without building it.
 *
 * In: the planned module and the descriptor that the target makes of it.   Out: parameters, memory, and per kernel of
 * the training step its flops, bytes and a predicted time: the larger of flops over the assumed rate and bytes over the
 * assumed bandwidth, and the start of a kernel. The assumptions are
 * printed: they are no measurements. With --json also the records of all kernels with parameters, as a tuning file
 * holds them. */
#include "cmd.h"

#include "../codegen/codegen.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOW_SHARE 0.1           /* of the roofline: kernels below it are told */

/* What a forecast counts with; device NULL: threads of a CPU. */
typedef struct Assumed { const Target *target; const char *device; int threads; Rates r; } Assumed;

/* MHz of the CPU here, as it happens to run; 0: the system does not tell. */
static double
clock_here(void)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[512];
	double mhz = 0;

	while (f && mhz <= 0 && fgets(line, sizeof line, f)) {
		const char *colon = strchr(line, ':');

		if (!strncmp(line, "cpu MHz", 7) && colon)
			mhz = strtod(colon + 1, NULL);
	}
	if (f)
		fclose(f);
	return mhz;
}

/* What a core of the architecture begins in a cycle, at the clock that the CPU here tells if it runs that code,
 * else at the nominal one; what one core of a server draws from memory; as many threads as there are here. Of a GPU the
 * card whose word is given, if it has a row. */
static Assumed
assume_machine(Arena *a, const Target *t, const char *arch, const char *word)
{
	const Machine *card = t->here.card && word ? t->here.card(t, arch, word, a, &word) : NULL,
	              *m = card ? card : t->machine ? t->machine(t, arch) : NULL;
	long threads = sysconf(_SC_NPROCESSORS_ONLN);
	Machine here;

	if (!m)
		return (Assumed){.target = t, .threads = 1};
	if (m->sms)
		return (Assumed){.target = t, .device = m->model, .r = m->rates};
	double hz = m->hz, mhz = t->here.machine(t, arch, &here) ? clock_here() : 0;

	if (mhz > 100)
		hz = mhz * 1e6;
	if (threads < 1)
		threads = 1;
	return (Assumed){.target = t, .threads = (int)threads,
	                 .r = {.flops = (double)threads * hz * 2 * m->fmas * (m->vector_bytes / 4),
	                       .bytes = (double)threads * m->rates.bytes}};
}

/* forecast: seconds by the machine code, 0 where there is none; why: what binds it then. */
typedef struct Kernel {
	const char *name, *kernel, *layer, *where, *why;
	double flops, bytes, predicted, forecast;
} Kernel;
typedef VEC(Kernel) Kernels;
/* kernels with parameters of the tuning file, choices that it made, kernels that they do not fit */
typedef struct Tuned { int kernels, choices, misfits; TuneCount of; TuneLock lock; } Tuned;
static const char *const lock_words[] = {[LOCK_NONE] = "not locked", [LOCK_HOLDS] = "locked",
	[LOCK_BROKEN] = "the lock does not hold"};
typedef struct Totals {
	int64_t parameters, parameter_bytes, arena, scratch;
	const char *budget;
	uint32_t trained;        /* kernels of graph train; those of update follow */
	Tuned tuned;
	double flops, bytes, seconds, examples;
	double times;            /* graph train runs in a step */
	double forecast;         /* seconds by the machine code; 0: unknown, because of why */
	const char *why;
} Totals;

/* What chose the kernel of a row: the text that select left on the group, whose name the row's begins with. */
static const char *
family(const Graph *g, const char *row)
{
	const char *best = "";
	size_t length = 0;

	for (uint32_t k = 0; k < g->group.n; k++) {
		const char *name = g->group.at[k].name;
		size_t n = name ? strlen(name) : 0;

		if (n > length && !strncmp(row, name, n) && (!row[n] || row[n] == '.')) {
			best = g->group.at[k].kernel ? g->group.at[k].kernel : "";
			length = n;
		}
	}
	return best;
}

/* The kernels of a graph, from the descriptor's table. */
static void
collect(Arena *a, const Module *m, const Json *root, const char *graph, Kernels *ks)
{
	const Json *list = rt_json_get(rt_json_get(rt_json_get(root, "graphs"), graph), "kernels");
	const Graph *g = module_graph(m, graph);

	for (const Json *o = list ? list->child : NULL; g && o; o = o->next) {
		const Json *layers = rt_json_get(o, "layers");
		Kernel k = {.name = rt_json_str(o, "name", ""),
		            .layer = layers && layers->child ? layers->child->s : "",
		            .where = rt_json_str(o, "where", ""),
		            .flops = rt_json_num(o, "flops", 0),
		            .bytes = rt_json_num(o, "bytes", 0)};

		k.kernel = family(g, k.name);
		vec_push(a, ks, k);
	}
}

static double
predicted(const Kernel *k, Assumed mc)
{
	double rate = mc.target->product_rate ? mc.target->product_rate(mc.target, &mc.r, k->kernel) : mc.r.flops,
	       compute = k->flops / rate, memory = k->bytes / mc.r.bytes;

	return (compute > memory ? compute : memory) + mc.r.start;
}

/* Times by the machine code, of a target that makes some (codegen/cuda/forecast/forecast.c). Why there are none stands
 * in t->why. */
static void
read_forecast(Job *j, Module *m, Kernels *ks, Totals *t, double times, uint32_t trained)
{
	JsonDoc *doc;
	Buf text = {0};
	const Json *root = job_json(j, m, "forecast", &text, &doc, &t->why);
	const Json *list = root ? rt_json_get(root, "kernels") : NULL, *o = list ? list->child : NULL;

	for (uint32_t i = 0; i < ks->n && root; i++) { /* in the order of the descriptor; plans of cuDNN have none */
		Kernel *k = &ks->at[i];

		if (o && !strcmp(rt_json_str(o, "name", ""), k->name)) {
			k->forecast = 1e-6 * rt_json_num(o, "us", 0);
			k->why = rt_json_str(o, "why", "");
			o = o->next;
		}
		t->forecast += (i < trained ? times : 1) * (k->forecast > 0 ? k->forecast : k->predicted);
	}
	buf_free(&text);
}

static const char *
precision_name(const Module *m)
{
	const Setting *p = setting(m, "train.precision");

	return p && p->s ? p->s : "f32";
}

/* How products are computed on the first CPU: "f32", "bf16 dot products of pairs, f32 sums". */
static const char *
arithmetic(const Job *j, const Module *m)
{
	Precision p = precision_of(m, j->target, j->arch[0]);

	if (p.narrow == DT_none)
		return p.mixed ? "f32: nothing of 16 bits is faster on this CPU" : "f32";
	return j->target->narrow.arithmetic ? j->target->narrow.arithmetic(j->target, j->arch[0], p.narrow)
	                             : arena_printf(j->arena, "%s operands, exact sums", dtype_info[p.narrow].name);
}

static const char *
precision_text(const Job *j, const Module *m)
{
	const char *name = precision_name(m);

	return strcmp(name, "f32") ? arena_printf(j->arena, "%s: %s", name, arithmetic(j, m)) : name;
}

static void
put_tensor_json(Buf *b, const char *name, const Type *t)
{
	buf_printf(b, "{\"name\": ");
	buf_json(b, name);
	buf_printf(b, ", \"dtype\": \"%s\", \"shape\": [", dtype_info[t->dtype].name);
	for (int i = 0; i < t->rank; i++)
		buf_printf(b, "%s%" PRId64, i ? ", " : "", t->axis[i].n);
	buf_printf(b, "]}");
}

static void
put_tuned_json(Buf *b, const Job *j, const Tuned *t)
{
	buf_printf(b, ", \"tuned\": {\"file\": ");
	buf_json(b, tuning_file(j->tuning));
	buf_printf(b, ", \"machine\": ");
	buf_json(b, j->machine[0] ? j->machine[0] : "*");
	buf_printf(b,
	           ", \"records\": %u, \"kernels\": %d, \"choices\": %d, \"misfits\": %d, \"stale\": %d, "
	           "\"other_machines\": %d, \"lock\": \"%s\"}",
	           (unsigned)tuning_count(j->tuning), t->kernels, t->choices, t->misfits, t->of.stale, t->of.elsewhere,
	           lock_words[t->lock]);
}

/* Of the graph what it is fed, of graph infer (NULL: none) what it gives. */
static void
put_inputs_json(Buf *b, const Graph *g, const Graph *infer)
{
	const char *comma = "";

	for (uint32_t i = 0; i < g->input.n; i++) {
		if (g->input.at[i].kind != IN_DATA)
			continue;
		buf_printf(b, "%s", comma);
		put_tensor_json(b, g->input.at[i].name, val_type(g, g->input.at[i].v));
		comma = ", ";
	}
	buf_printf(b, "], \"outputs\": [");
	comma = "";
	for (uint32_t i = 0; infer && i < infer->result.n; i++) {
		if (infer->result.at[i].kind != RES_OUTPUT)
			continue;
		buf_printf(b, "%s", comma);
		put_tensor_json(b, infer->result.at[i].name, val_type(infer, infer->result.at[i].v));
		comma = ", ";
	}
}

static void
put_kernels_json(Buf *b, const Kernels *ks, Assumed mc)
{
	for (uint32_t i = 0; i < ks->n; i++) {
		const Kernel *k = &ks->at[i];

		buf_printf(b, "%s\n {\"name\": ", i ? "," : "");
		buf_json(b, k->name ? k->name : "");
		buf_printf(b, ", \"kernel\": ");
		buf_json(b, k->kernel ? k->kernel : "");
		buf_printf(b, ", \"flops\": %.17g, \"bytes\": %.17g, \"predicted_us\": %.6g", k->flops, k->bytes,
		           predicted(k, mc) * 1e6);
		if (k->forecast > 0) {
			buf_printf(b, ", \"forecast_us\": %.6g, \"why\": ", k->forecast * 1e6);
			buf_json(b, k->why);
		}
		buf_printf(b, ", \"layer\": ");
		buf_json(b, k->layer ? k->layer : "");
		buf_printf(b, ", \"where\": ");
		buf_json(b, k->where);
		buf_printf(b, "}");
	}
}

static void
put_json(Buf *b, const Job *j, const Module *m, const PassCtx *cx, const Graph *g, const Kernels *ks, const Totals *t,
         Assumed mc)
{
	const Graph *infer = module_graph(m, "infer");
	int64_t shards;

	program_calls(m, &shards);
	buf_printf(b, "{\"model\": ");
	buf_json(b, m->name);
	buf_printf(b, ", \"target\": \"%s\", \"arch\": [", j->target->name);
	for (int k = 0; k < j->narch; k++)
		buf_printf(b, "%s\"%s\"", k ? ", " : "", j->arch[k]);
	buf_printf(b,
	           "], \"precision\": \"%s\", \"batch\": %" PRId64 ", \"shards\": %" PRId64 ", \"parameters\": %" PRId64
	           ", \"parameter_bytes\": %" PRId64 ", \"arena_bytes\": %" PRId64 ", \"scratch_bytes\": %" PRId64,
	           precision_name(m), m->batch * shards, shards, t->parameters, t->parameter_bytes, t->arena,
	           t->scratch);
	if (t->budget) {
		buf_printf(b, ", \"budget\": ");
		buf_json(b, t->budget);
	}
	if (j->tuning)
		put_tuned_json(b, j, &t->tuned);
	buf_printf(b, ", \"gflop_per_step\": %.17g, \"bytes_per_step\": %.17g, \"kernels_per_step\": %u, \"inputs\": [",
	           t->flops / 1e9, t->bytes, ks->n);
	put_inputs_json(b, g, infer);
	buf_printf(b, "], \"arithmetic\": ");
	buf_json(b, arithmetic(j, m));
	buf_printf(b,
	           ", \"source_hash\": \"%016" PRIx64 "\", \"predicted_ms_per_step\": %.6g, \"forecast_ms_per_step\": "
	                                              "%.6g, \"assumed\": {\"threads\": %d, \"device\": ",
	           m->source_hash, t->seconds * 1e3, t->forecast * 1e3, mc.threads);
	buf_json(b, mc.device ? mc.device : "");
	buf_printf(b,
	           ", \"gflops\": %.6g, \"gflops_of_products\": %.6g, \"gflops_of_group_products\": %.6g, "
	           "\"gbytes_per_s\": %.6g, \"start_us\": %.6g}, \"kernels\": [",
	           mc.r.flops / 1e9, (mc.r.products > 0 ? mc.r.products : mc.r.flops) / 1e9, mc.r.group_products / 1e9,
	           mc.r.bytes / 1e9, mc.r.start * 1e6);
	put_kernels_json(b, ks, mc);
	const char **record;
	int n = tuning_records(j->arena, m, cx, NULL, NULL, &record);

	buf_printf(b, "], \"records\": [");
	for (int i = 0; i < n; i++) {
		buf_printf(b, "%s\n ", i ? "," : "");
		buf_json(b, record[i]);
	}
	n = tuning_choices(j->arena, cx, NULL, NULL, &record);
	buf_printf(b, "], \"choices\": [");
	for (int i = 0; i < n; i++) {
		buf_printf(b, "%s\n ", i ? "," : "");
		buf_json(b, record[i]);
	}
	buf_printf(b, "], \"lock\": ");
	buf_json(b, tuning_lock(j->arena, m, cx, "train", 0, 0));
	buf_printf(b, "}\n");
}

static void
put_row(Buf *b, const char *name, const char *fmt, ...)
{
	va_list ap;

	buf_printf(b, "%-18s ", name);
	va_start(ap, fmt);
	buf_vprintf(b, fmt, ap);
	va_end(ap);
	buf_printf(b, "\n");
}

static void
put_size_row(Buf *b, const char *name, int64_t bytes)
{
	buf_printf(b, "%-18s ", name);
	print_bytes(b, bytes);
	buf_printf(b, "\n");
}

/* Both times, and what makes the forecast the longer one: from 1.15 times on. */
static void
put_device_kernels(Buf *b, const Kernels *ks, Assumed mc)
{
	buf_printf(b, "\n%-40s %10s %10s %10s %10s  %-24s %-24s %s\n", "kernel", "MFLOP", "KB", "us", "forecast",
	           "layer", "where", "reason");
	for (uint32_t i = 0; i < ks->n; i++) {
		const Kernel *k = &ks->at[i];
		double us = predicted(k, mc) * 1e6;

		buf_printf(b, "%-40s %10.3f %10.1f %10.2f ", k->name ? k->name : "", k->flops / 1e6, k->bytes / 1e3,
		           us);
		if (k->forecast > 0)
			buf_printf(b, "%10.2f", k->forecast * 1e6);
		else
			buf_printf(b, "%10s", "-");
		buf_printf(b, "  %-24s %-24s %s\n", *k->layer ? k->layer : "-", *k->where ? k->where : "-",
		           k->forecast * 1e6 > 1.15 * us ? k->why : "-");
	}
}

/* What several processes exchange is cut into. */
static unsigned
buckets(const Module *m)
{
	char name[32];
	unsigned n = 0;

	do
		snprintf(name, sizeof name, "bucket.%u", n);
	while (setting(m, name) && ++n);
	return n;
}

static const char *
link_text(Arena *a, const Module *m)
{
	double p = setting_number(setting(m, LINK_SETTING), "processes", 0);

	return p > 0 ? arena_printf(a, "%.0f processes", p) : "any number of processes";
}

static void
put_text(Buf *b, const Job *j, const Module *m, const Kernels *ks, const Totals *t, Assumed mc)
{
	put_row(b, "model", "%s", m->name);
	buf_printf(b, "%-18s %s", "target", j->target->name);
	for (int k = 0; k < j->narch; k++)
		buf_printf(b, "%s%s", k ? ", " : " ", j->arch[k]);
	buf_printf(b, "\n");
	put_row(b, "precision", "%s", precision_text(j, m));
	int64_t shards;

	program_calls(m, &shards);
	put_row(b, "batch", shards > 1 ? "%" PRId64 ", in %" PRId64 " shards of %" PRId64 : "%" PRId64,
	        m->batch * shards, shards, m->batch);
	if (buckets(m))
		put_row(b, "exchange", "%u bucket%s, for %s, %.3g us and %.3g GB/s a bucket", buckets(m),
		        buckets(m) == 1 ? "" : "s", link_text(j->arena, m),
		        setting_number(setting(m, LINK_SETTING), "start", LINK_START) * 1e6,
		        setting_number(setting(m, LINK_SETTING), "rate", LINK_RATE) * 1e-9);
	put_row(b, "parameters", "%" PRId64, t->parameters);
	if (t->arena)
		put_size_row(b, "memory", t->arena);
	if (t->scratch)
		put_size_row(b, "a thread", t->scratch);
	if (t->budget)
		put_row(b, "budget", "%s", t->budget);
	if (j->tuning)
		put_row(b, "tuned",
		        "%d kernels, %d choices, %d misfits, %d stale, %d of other machines, %s; %u records in %s",
		        t->tuned.kernels, t->tuned.choices, t->tuned.misfits, t->tuned.of.stale, t->tuned.of.elsewhere,
		        lock_words[t->tuned.lock], (unsigned)tuning_count(j->tuning), tuning_file(j->tuning));
	if (!ks->n) {
		put_row(b, "a step", "no kernels: the IR is interpreted op by op, and nothing is predicted of that");
		return;
	}
	put_row(b, "a step", "%.4g GFLOP, %.4g MB moved (%.4g an example), %u kernels", t->flops / 1e9, t->bytes / 1e6,
	        t->bytes / 1e6 / t->examples, ks->n);
	const char *of =
	        mc.device
	                ? arena_printf(j->arena,
	                               "%s, %.3g TFLOP/s, %.3g by tensor cores%s, %.3g GB/s, %.3g us to start a kernel",
	                               mc.device, mc.r.flops / 1e12, mc.r.products / 1e12,
	                               mc.r.group_products > 0
	                                       ? arena_printf(j->arena, ", %.3g by wgmma", mc.r.group_products / 1e12)
	                                       : "",
	                               mc.r.bytes / 1e9, mc.r.start * 1e6)
	                : arena_printf(j->arena, "%d threads, %.4g GFLOP/s, %.3g GB/s", mc.threads, mc.r.flops / 1e9,
	                               mc.r.bytes / 1e9);

	put_row(b, "predicted", "%.3g ms a step, %.4g examples/s (assumed: %s)", t->seconds * 1e3,
	        t->seconds > 0 ? t->examples / t->seconds : 0.0, of);
	if (mc.device && t->why)
		put_row(b, "forecast", "none: %s", t->why);
	else if (mc.device)
		put_row(b, "forecast",
		        "%.3g ms a step, %.4g examples/s (by the machine code: registers, waves, instructions, loads "
		        "waited for; not measured)",
		        t->forecast * 1e3, t->forecast > 0 ? t->examples / t->forecast : 0.0);
	if (mc.device) {
		put_device_kernels(b, ks, mc);
		return;
	}
	buf_printf(b, "\n%-40s %10s %10s %10s  %-24s %s\n", "kernel", "MFLOP", "KB", "us", "layer", "where");
	for (uint32_t i = 0; i < ks->n; i++) {
		const Kernel *k = &ks->at[i];

		buf_printf(b, "%-40s %10.3f %10.1f %10.2f  %-24s %s\n", k->name ? k->name : "", k->flops / 1e6,
		           k->bytes / 1e3, predicted(k, mc) * 1e6, *k->layer ? k->layer : "-", k->where);
	}
}

static Tuned
count_tuned(const Job *j, const PassCtx *cx)
{
	Tuned t = {0};

	if (!j->tuning)
		return t;
	t.of = tuning_count_of(j->tuning, j->target->name, cx->arch, cx->machine);
	for (uint32_t i = 0; i < cx->verdict.n; i++) {
		const Verdict *v = &cx->verdict.at[i];

		if (v->rule && !strcmp(v->rule, "select.tuned"))
			*(v->fired ? &t.kernels : &t.misfits) += 1;
	}
	for (uint32_t i = 0; i < cx->choice.n; i++) {
		t.choices += cx->choice.at[i].by != NULL;
		t.misfits += cx->choice.at[i].misfit;
	}
	t.lock = tuning_lock_state(j->arena, cx->module, cx, false);
	return t;
}

/* Everything that the executable's descriptor says of a training step. */
static int
read_plan(Job *j, Module *m, Kernels *ks, Totals *t, Assumed mc)
{
	double times = t->times = (double)program_calls(m, NULL);
	Buf text = {0};
	JsonDoc *doc; /* not freed: the kernels' names lie in it */
	const char *error;
	const Json *root = job_json(j, m, "json", &text, &doc, &error);

	if (!root)
		return failure("%s: %s", j->file, error);
	collect(j->arena, m, root, "train", ks);
	t->examples = times * (double)m->batch;
	for (uint32_t i = 0; i < ks->n; i++)
		t->seconds += times * predicted(&ks->at[i], mc);
	uint32_t n = t->trained = ks->n;

	collect(j->arena, m, root, "update", ks);
	for (uint32_t i = n; i < ks->n; i++)
		t->seconds += predicted(&ks->at[i], mc);
	for (uint32_t i = 0; i < ks->n; i++)
		ks->at[i].predicted = predicted(&ks->at[i], mc);
	if (mc.device)
		read_forecast(j, m, ks, t, times, n);
	t->flops = rt_json_num(root, "gflop_per_step", 0) * 1e9;
	t->bytes = rt_json_num(root, "bytes_per_step", 0);
	buf_free(&text);
	return EXIT_GOOD;
}

int
info_seconds(Job *j, Module *m, double *train, double *update)
{
	Assumed mc = assume_machine(j->arena, j->target, j->arch[0], j->machine[0]);
	Kernels ks = {0};
	Totals t = {0};
	int status = read_plan(j, m, &ks, &t, mc);

	*train = *update = 0;
	for (uint32_t i = 0; i < ks.n; i++)
		*(i < t.trained ? train : update) += ks.at[i].predicted;
	return status;
}

/* The plan's text alone: is there anything to look at? Most models have no such kernel, and are not emitted for it. */
static bool
any_slow(const Module *m)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->group.n; k++) {
			const char *kernel = m->graph.at[i]->group.at[k].kernel;

			if (kernel && !strcmp(kernel, PLAIN_KERNEL))
				return true;
		}
	return false;
}

Slow *
info_slow(Job *j, Module *m, int arch, int *n)
{
	Assumed mc = assume_machine(j->arena, j->target, j->arch[arch], j->machine[arch]);
	const char *first = j->arch[0];
	VEC(Slow) r = {0};
	Kernels ks = {0};
	Totals t = {0};

	*n = 0;
	if (!any_slow(m) || mc.r.flops <= 0)
		return NULL;
	j->arch[0] = j->arch[arch];
	int status = read_plan(j, m, &ks, &t, mc);

	j->arch[0] = first;
	for (uint32_t i = 0; i < ks.n && status == EXIT_GOOD; i++) {
		const Kernel *k = &ks.at[i];
		double compute = k->flops / mc.r.flops, memory = k->bytes / mc.r.bytes,
		       least = compute > memory ? compute : memory, times = i < t.trained ? t.times : 1;
		bool plain = !strcmp(k->kernel, PLAIN_KERNEL);

		if (k->flops > 0 && (plain || least < SLOW_SHARE * (k->predicted - mc.r.start)))
			vec_push(j->arena, &r, ((Slow){k->name, *k->layer ? k->layer : "no layer", k->where, plain,
			                               least / k->predicted, times * k->predicted / t.seconds}));
	}
	*n = (int)r.n;
	return r.at;
}

void
put_slow(Buf *b, const Slow *s)
{
	buf_printf(b, "%s: kernel %s %s: predicted at %.0f %% of the roofline, %.0f %% of a step", s->layer, s->name,
	           s->plain ? "is the plain one, a number at a time" : "is slow", 100 * s->roofline, 100 * s->share);
}

static int
info_sass(Job *j, Module *m, Assumed mc)
{
	Buf text = {0};

	if (!mc.device)
		return usage_error("info", "--sass needs --target cuda");
	const char *error = job_emit(j, m, "sass", &text);

	if (error)
		return failure("%s: %s", j->file, error);
	fwrite(text.at, 1, text.n, stdout);
	buf_free(&text);
	return EXIT_GOOD;
}

int
cmd_info(Arena *a, const Options *o)
{
	Job j;
	Module *m;
	PassCtx cx;
	Kernels ks = {0};
	Totals t = {0};
	Buf b = {0};

	bool machine = o->machine && !*o->machine;

	if (machine != !o->noperand)
		return machine ? usage_error("info", "--machine tells of --arch, not of '%s'", o->operand[0])
		               : usage_error("info",
		                             "a file is missing: mantou info MODEL.net, or mantou info --machine");
	if (machine)
		return info_machine(a, o);
	int status = job_open(&j, a, o, "info", o->operand[0]);

	if (status == EXIT_GOOD && job_emits(&j))
		return job_build(&j, o->emit, "-");
	if (status == EXIT_GOOD)
		status = job_load(&j);
	bool code = status == EXIT_GOOD && j.target->emit; /* ref has no kernels to tell of */

	if (status == EXIT_GOOD)
		status = job_compile(&j, 0, code ? NULL : "diffed", &m, &cx);
	if (status != EXIT_GOOD)
		return status;
	const Graph *g = module_graph(m, "train");

	if (!g)
		return failure("'%s' has no graph 'train'", j.file);
	Assumed mc = assume_machine(a, j.target, j.arch[0], j.machine[0]);

	if (o->sass)
		return info_sass(&j, m, mc);
	if (code && (status = read_plan(&j, m, &ks, &t, mc)) != EXIT_GOOD)
		return status;
	for (uint32_t i = 0; i < m->state.n; i++) {
		if (m->state.at[i].kind != ST_PARAM)
			continue;
		t.parameters += type_elements(&m->state.at[i].type);
		t.parameter_bytes += type_bytes(&m->state.at[i].type);
	}
	t.arena = m->arena_bytes;
	t.scratch = m->scratch_bytes;
	t.budget = budget_text(a, &cx);
	t.tuned = count_tuned(&j, &cx);
	if (o->json)
		put_json(&b, &j, m, &cx, g, &ks, &t, mc);
	else
		put_text(&b, &j, m, &ks, &t, mc);
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
