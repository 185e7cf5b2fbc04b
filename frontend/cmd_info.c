/* cmd_info.c: `info`: what an executable's info would print, from the plan, without building it.
 *
 * In: the planned module.   Out: parameters, memory, and per kernel of the training step its flops, bytes and a predicted time: the larger of
 * flops over the assumed peak and bytes over the assumed bandwidth. The assumptions are printed: they are no measurements.
 * Bytes count every operand and result that is a buffer, once per kernel. */
#include "cmd.h"

#include "../passes/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Machine { int threads; double flops, bytes; } Machine; /* per second, all threads */

/* Two fused multiply-adds a cycle of the widest vectors, and what one core of a server draws from memory. */
static Machine
assume_machine(const Target *t, const char *arch)
{
	double hz = 2.5e9, mhz;
	int vector = t->vector_bytes ? t->vector_bytes(t, arch) : 32;
	long threads = sysconf(_SC_NPROCESSORS_ONLN);
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[512];

	while (f && fgets(line, sizeof line, f)) {
		const char *colon = strchr(line, ':');

		if (!strncmp(line, "cpu MHz", 7) && colon && (mhz = strtod(colon + 1, NULL)) > 100) {
			hz = mhz * 1e6;
			break;
		}
	}
	if (f)
		fclose(f);
	if (threads < 1)
		threads = 1;
	return (Machine){.threads = (int)threads, .flops = (double)threads * hz * 4 * (vector / 4), .bytes = (double)threads * 12e9};
}

typedef struct Kernel { const char *name, *kernel, *layer; Loc loc; double flops, bytes; } Kernel;
typedef VEC(Kernel) Kernels;

static bool
in_group(const Graph *g, Val v, int32_t group)
{
	const Op *op = val_op(g, v);

	return op && op->group == group;
}

/* Operands that come from outside, each once, and results that get a buffer. */
static double
group_bytes(Arena *a, const Graph *g, int32_t group)
{
	bool *seen = arena_array(a, bool, g->val.n);
	double n = 0;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		for (int k = 0; k < op->nin; k++) {
			Val v = op->in[k];

			if (!v.id || seen[v.id] || in_group(g, v, group))
				continue;
			seen[v.id] = true;
			n += (double)type_bytes(val_type(g, v));
		}
		for (int k = 0; k < op->nout; k++)
			if (val_info(g, op->out[k])->offset >= 0)
				n += (double)type_bytes(val_type(g, op->out[k]));
	}
	return n;
}

static void
collect(Arena *a, const Graph *g, Kernels *ks)
{
	Arena *scratch = arena_new();

	for (uint32_t k = 0; k < g->group.n; k++) {
		Kernel r = {.name = g->group.at[k].name, .kernel = g->group.at[k].kernel};
		bool any = false;

		for (uint32_t i = 0; i < g->op.n; i++) {
			const Op *op = &g->op.at[i];

			if (op->dead || op->group != (int32_t)k)
				continue;
			if (!any || op_has(op->kind, T_CONTRACT)) {
				r.layer = op->path;
				r.loc = op->loc;
			}
			any = true;
			r.flops += op_flops(g, op);
		}
		if (!any)
			continue;
		r.bytes = group_bytes(scratch, g, (int32_t)k);
		vec_push(a, ks, r);
	}
	arena_free(scratch);
}

static double
predicted(const Kernel *k, Machine mc)
{
	double compute = k->flops / mc.flops, memory = k->bytes / mc.bytes;

	return compute > memory ? compute : memory;
}

static const char *
precision_of(const Module *m)
{
	const Setting *p = setting(m, "train.precision");

	return p && p->s ? p->s : "f32";
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

typedef struct Totals { int64_t parameters, parameter_bytes, arena; double flops, bytes, seconds; } Totals;

static void
put_json(Buf *b, const Job *j, const Module *m, const Graph *g, const Kernels *ks, const Totals *t, Machine mc)
{
	const Graph *infer = module_graph(m, "infer");
	const char *comma = "";

	buf_printf(b, "{\"model\": ");
	buf_json(b, m->name);
	buf_printf(b, ", \"target\": \"%s\", \"arch\": [", j->target->name);
	for (int k = 0; k < j->narch; k++)
		buf_printf(b, "%s\"%s\"", k ? ", " : "", j->arch[k]);
	buf_printf(b, "], \"precision\": \"%s\", \"batch\": %" PRId64 ", \"parameters\": %" PRId64 ", \"parameter_bytes\": %" PRId64 ", \"arena_bytes\": %" PRId64,
	           precision_of(m), m->batch, t->parameters, t->parameter_bytes, t->arena);
	buf_printf(b, ", \"gflop_per_step\": %.9g, \"bytes_per_step\": %.17g, \"kernels_per_step\": %u, \"inputs\": [", t->flops / 1e9, t->bytes, ks->n);
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
	buf_printf(b, "], \"source_hash\": \"%016" PRIx64 "\", \"predicted_ms_per_step\": %.6g, \"assumed\": {\"threads\": %d, \"gflops\": %.6g, \"gbytes_per_s\": %.6g}, \"kernels\": [",
	           m->source_hash, t->seconds * 1e3, mc.threads, mc.flops / 1e9, mc.bytes / 1e9);
	for (uint32_t i = 0; i < ks->n; i++) {
		const Kernel *k = &ks->at[i];
		Buf where = {0};

		print_where(&where, m, k->loc);
		buf_printf(b, "%s\n {\"name\": ", i ? "," : "");
		buf_json(b, k->name ? k->name : "");
		buf_printf(b, ", \"kernel\": ");
		buf_json(b, k->kernel ? k->kernel : "");
		buf_printf(b, ", \"flops\": %.17g, \"bytes\": %.17g, \"predicted_us\": %.6g, \"layer\": ", k->flops, k->bytes, predicted(k, mc) * 1e6);
		buf_json(b, k->layer ? k->layer : "");
		buf_printf(b, ", \"where\": ");
		buf_json(b, where.at ? where.at : "");
		buf_printf(b, "}");
		buf_free(&where);
	}
	buf_printf(b, "]}\n");
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

static void
put_text(Buf *b, const Job *j, const Module *m, const Kernels *ks, const Totals *t, Machine mc)
{
	put_row(b, "model", "%s", m->name);
	buf_printf(b, "%-18s %s", "target", j->target->name);
	for (int k = 0; k < j->narch; k++)
		buf_printf(b, "%s%s", k ? ", " : " ", j->arch[k]);
	buf_printf(b, "\n");
	put_row(b, "precision", "%s", precision_of(m));
	put_row(b, "batch", "%" PRId64, m->batch);
	put_row(b, "parameters", "%" PRId64, t->parameters);
	put_size_row(b, "memory", t->arena);
	put_row(b, "a step", "%.4g GFLOP, %.4g MB moved, %u kernels", t->flops / 1e9, t->bytes / 1e6, ks->n);
	put_row(b, "predicted", "%.3g ms a step, %.4g examples/s (assumed: %d threads, %.4g GFLOP/s, %.3g GB/s)", t->seconds * 1e3,
	        t->seconds > 0 ? (double)m->batch / t->seconds : 0.0, mc.threads, mc.flops / 1e9, mc.bytes / 1e9);
	if (!ks->n)
		return;
	buf_printf(b, "\n%-40s %10s %10s %10s  %-24s %s\n", "kernel", "MFLOP", "KB", "us", "layer", "where");
	for (uint32_t i = 0; i < ks->n; i++) {
		const Kernel *k = &ks->at[i];
		Buf where = {0};

		print_where(&where, m, k->loc);
		buf_printf(b, "%-40s %10.3f %10.1f %10.2f  %-24s %s\n", k->name ? k->name : "", k->flops / 1e6, k->bytes / 1e3, predicted(k, mc) * 1e6,
		           k->layer && *k->layer ? k->layer : "-", where.at ? where.at : "");
		buf_free(&where);
	}
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
	int status = job_open(&j, a, o, "info", o->operand[0]);

	if (status == EXIT_GOOD)
		status = job_load(&j);
	if (status == EXIT_GOOD)
		status = job_compile(&j, 0, !strcmp(j.target->name, "ref") ? "diffed" : NULL, &m, &cx);
	if (status != EXIT_GOOD)
		return status;
	const Graph *g = module_graph(m, "train");

	if (!g)
		return failure("'%s' has no graph 'train'", j.file);
	Machine mc = assume_machine(j.target, j.arch[0]);

	collect(a, g, &ks);
	if (module_graph(m, "update"))
		collect(a, module_graph(m, "update"), &ks);
	for (uint32_t i = 0; i < ks.n; i++) {
		t.flops += ks.at[i].flops;
		t.bytes += ks.at[i].bytes;
		t.seconds += predicted(&ks.at[i], mc);
	}
	for (uint32_t i = 0; i < m->state.n; i++) {
		if (m->state.at[i].kind != ST_PARAM)
			continue;
		t.parameters += type_elements(&m->state.at[i].type);
		t.parameter_bytes += type_bytes(&m->state.at[i].type);
	}
	t.arena = m->arena_bytes;
	if (o->json)
		put_json(&b, &j, m, g, &ks, &t, mc);
	else
		put_text(&b, &j, m, &ks, &t, mc);
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
