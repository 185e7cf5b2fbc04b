/* operators.c: how fast each operator is on target cpu, alone: forward, and its gradient.
 *
 * In: files or the folder of operators' cases (../operators), whose lines with `time N` are timed with that N; a word
 * that lines must contain; --quick: N is 1, one round; --check: values are held to the reference's (--quick does);
 * --threads N, --json.   Out: a row for each: the least time of several rounds, GFLOP/s, GB/s, and the share of the
 * roofline, which is the longer of its operations at the measured peak and its bytes at the memory's measured rate,
 * over its time. Bytes: operands and results once, whatever its kernels move. Exit 1 if values are wrong, or if an
 * operator that the target has a kernel for is timed by no line.
 * An operator is compiled as in a model, by the whole pipeline. Its kernels are timed one by one, and their least times
 * added: copies between layouts, which its neighbours would spare it, are told apart. The gradient reads the forward's
 * results. Inputs are put in place anew before each round, as kernels may reuse their memory: what fits the caches is
 * there. */
#include "../cpu/harness.h"
#include "../cpu/memory.h"
#include "../operators/cases.h"
#include "../../ir/ref.h"
#include "../../passes/pass.h"
#include "../../runtime/host.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_ROUNDS = 5, MOST_ROUNDS = 200 };
#define SECONDS 0.25 /* of rounds of a row */
#define CLOSE 3e-4   /* of the largest number: sums of f32, functions within some units in the last place */

typedef struct Options {
	bool quick, check, json;
	int threads;
	const char *filter, *arch;
} Options;
/* An operator's forward or gradient. */
typedef struct Part {
	const char *name, *line;
	Module *m;
	double **x, **w, **y, flops, bytes; /* of inputs, parameters, results */
	double seconds, copies;             /* of its kernels; of copies between layouts beside them */
	bool own_copies;                    /* views are what is timed */
	int nrow, kernels;
	double *least;
} Part;
typedef struct Bench {
	Run run;
	Options o;
	RtHost h;
	double peak, memory;
	bool timed[OP_COUNT];
	int rows;
} Bench;

/* ---------------------------------------------------------------- numbers in memory */
static void
put_values(const Type *t, uint8_t *at, const double *x)
{
	int64_t n = type_elements(t), bytes = dtype_info[t->dtype].bytes;

	for (int64_t i = 0; i < n; i++)
		element_write((DType)t->dtype, at + i * bytes, x[i]);
}

/* Inputs become numbers that their types hold. */
static void
hold_values(const Graph *g, double **x)
{
	for (uint32_t k = 0; k < g->input.n; k++) {
		const Type *t = val_type(g, g->input.at[k].v);
		uint8_t bytes[8];

		for (int64_t i = 0, n = type_elements(t); i < n; i++) {
			element_write((DType)t->dtype, bytes, x[k][i]);
			x[k][i] = element_read((DType)t->dtype, bytes);
		}
	}
}

static double *
get_values(Arena *a, const Type *t, const uint8_t *at)
{
	int64_t n = type_elements(t), bytes = dtype_info[t->dtype].bytes;
	double *x = arena_array(a, double, n);

	for (int64_t i = 0; i < n; i++)
		x[i] = element_read((DType)t->dtype, at + i * bytes);
	return x;
}

/* ---------------------------------------------------------------- one part */
/* NULL, or why it does not compile. */
static const char *
compile(Bench *b, Part *p, Jit **jit)
{
	const Target *t = target_named("cpu");
	EmitOptions o = {.emit = "obj", .arch = b->o.arch, .opt = 2};
	PassCtx cx = {.module = p->m, .target = t, .arch = b->o.arch, .opt = 2};
	const char *error;
	Buf object = {0};

	p->m->stage = "diffed";
	p->m->target = "cpu";
	p->m->arch = b->o.arch;
	if (!passes_run(p->m, &cx))
		return "a pass fails";
	for (uint32_t i = 0; i < p->m->graph.at[0]->op.n; i++) /* what composite operators are made of */
		b->timed[p->m->graph.at[0]->op.at[i].kind] |=
		        op_has((OpKind)p->m->graph.at[0]->op.at[i].kind, T_COMPOSITE);
	if ((error = t->emit(t, p->m, &o, &object)))
		return error;
	*jit = jit_load(object.at, object.n, &error);
	buf_free(&object);
	if (!*jit)
		return error;
	RtHost *h = &b->h;

	h->object = jit_symbol(*jit, "mantou_object_0");
	if (!h->object)
		return "the object has no program";
	memset(&h->program, 0, sizeof h->program);
	return rt_program_read(&h->program, h->object->program, &h->error) ? NULL : h->error.text;
}

/* Does this row's group hold nothing but views? */
static bool
copies_only(const Module *m, const char *row)
{
	const Graph *g = m->graph.at[0];
	bool any = false, views = true;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const char *name = op->group >= 0 ? g->group.at[op->group].name : NULL;
		size_t n = name ? strlen(name) : 0;

		if (op->dead || !n || strncmp(row, name, n) || (row[n] && row[n] != '.'))
			continue;
		any = true;
		views &= op_has((OpKind)op->kind, T_VIEW);
	}
	return any && views;
}

static void
take_time(void *cx, const RtGraph *g, int row, double begin, double end)
{
	double *least = cx;

	(void)g;
	least[row] = fmin(least[row], end - begin);
}

static uint8_t *
memory_of(int64_t bytes)
{
	uint8_t *p = aligned_alloc(4096, ((size_t)bytes + 8191) / 4096 * 4096);

	if (!p)
		die("no memory for %lld bytes", (long long)bytes);
	memset(p, 0, (size_t)bytes);
	return p;
}

/* Rounds of all kernels; the results of the first are read. */
static const char *
rounds(Bench *b, Part *p)
{
	RtHost *h = &b->h;
	const Graph *g = p->m->graph.at[0];
	const RtGraph *rows = &h->program.graph[RT_G_INFER];
	Arena *a = b->run.arena;
	double begin = rt_now();
	bool fault = false;
	uint8_t **in = arena_array(a, uint8_t *, g->input.n);

	for (uint32_t i = 0; i < g->input.n; i++) {
		const Type *t = val_type(g, g->input.at[i].v);

		in[i] = memory_of(type_bytes(t));
		put_values(t, in[i], p->x[i]);
	}
	h->run = (RtRun){.arena = memory_of(h->program.arena_bytes), .n = p->m->batch, .batch = p->m->batch, .host = h};
	for (int i = 0; i < b->o.threads; i++)
		h->scratch[i] = memory_of(h->program.scratch_bytes);
	p->nrow = rows->nrow;
	p->least = arena_array(a, double, rows->nrow);
	for (int i = 0; i < rows->nrow; i++)
		p->least[i] = INFINITY;
	for (int k = 0; k < (b->o.quick ? 1 : MOST_ROUNDS) && (k < LEAST_ROUNDS || rt_now() - begin < SECONDS); k++) {
		for (uint32_t i = 0; i < g->input.n; i++)
			memcpy(h->run.arena + val_info(g, g->input.at[i].v)->offset, in[i],
			       (size_t)type_bytes(val_type(g, g->input.at[i].v)));
		for (uint32_t i = 0; k == 0 && p->w[i]; i++)
			tensor_move(&p->m->state.at[i].type, 1, 1, h->run.arena + p->m->state.at[i].offset, p->w[i],
			            true);
		if (k == 0)
			begin = rt_now();
		fault |= rt_loop_call(h, RT_G_INFER, take_time, p->least) != RT_OK;
		for (uint32_t i = 0; k == 0 && i < g->result.n; i++)
			p->y[i] = get_values(a, val_type(g, g->result.at[i].v),
			                     h->run.arena + val_info(g, g->result.at[i].v)->offset);
	}
	for (int i = 0; i < rows->nrow; i++) {
		bool copy = !p->own_copies && copies_only(p->m, rows->row[i].name);

		*(copy ? &p->copies : &p->seconds) += p->least[i];
		p->kernels += !copy;
	}
	for (int i = 0; i < b->o.threads; i++)
		free(h->scratch[i]);
	for (uint32_t i = 0; i < g->input.n; i++)
		free(in[i]);
	free(h->run.arena);
	return fault ? "its kernels report a fault" : NULL;
}

/* ---------------------------------------------------------------- values */
static bool
near(const RefTensor *want, const double *got, int64_t *bad)
{
	double top = 0, worst = -1;

	for (int64_t i = 0; i < want->n; i++)
		if (isfinite(ref_get(want, i)))
			top = fmax(top, fabs(ref_get(want, i)));
	for (int64_t i = 0; i < want->n; i++) {
		double w = ref_get(want, i), d = w == got[i] || (w != w && got[i] != got[i]) ? 0 : fabs(w - got[i]);

		if (!(d <= worst)) {
			worst = d;
			*bad = i;
		}
	}
	double close = want->type.dtype == DT_bf16 ? 0x1p-8 : want->type.dtype == DT_f16 ? 0x1p-11 : CLOSE;

	return worst <= (dtype_is_float((DType)want->type.dtype) ? close * (top + 1e-3) : 0);
}

/* from: the module as it was before its passes */
static void
check_values(Bench *b, const Part *p, Module *from)
{
	Interp *in = interp_new(from, true);
	const Graph *g = from->graph.at[0];
	for (uint32_t k = 0; p->w[k]; k++)
		for (int64_t i = 0; i < in->state[k].n; i++)
			ref_set(&in->state[k], i, p->w[k][i]);
	const char *error = run_graph(in, g, from->batch, p->x);

	if (error)
		failed(&b->run, p->line, "%s: the reference says %s", p->name, error);
	for (uint32_t k = 0; !error && k < g->result.n; k++) {
		const RefTensor *want = interp_result(in, (int)k);
		int64_t bad = 0;

		if (!near(want, p->y[k], &bad)) {
			failed(&b->run, p->line, "%s, result %u, element %lld: %.9g, want %.9g", p->name, k,
			       (long long)bad, p->y[k][bad], ref_get(want, bad));
			break;
		}
	}
	interp_free(in);
}

/* ---------------------------------------------------------------- what it must do at least */
/* Operands and results once; of what is looked up or cut out as much as the result has. */
static void
least_work(Bench *b, Part *p)
{
	const Graph *g = p->m->graph.at[0];

	for (uint32_t i = 0; i < g->op.n; i++) {
		p->flops += op_flops(g, &g->op.at[i]);
		p->own_copies |= op_has((OpKind)g->op.at[i].kind, T_VIEW | T_COMPOSITE);
		b->timed[g->op.at[i].kind] = true;
	}
	for (uint32_t k = 0; k < g->result.n; k++)
		p->bytes += (double)type_bytes(val_type(g, g->result.at[k].v));
	double results = p->bytes;

	for (uint32_t k = 0; k < p->m->state.n; k++)
		p->bytes += (double)type_bytes(&p->m->state.at[k].type);
	for (uint32_t k = 0; k < g->input.n; k++) {
		double bytes = (double)type_bytes(val_type(g, g->input.at[k].v));

		p->bytes += g->op.n == 1 && op_has((OpKind)g->op.at[0].kind, T_VIEW | T_MOVE) ? fmin(bytes, results)
		                                                                              : bytes;
	}
}

static void
print_part(Bench *b, const Part *p)
{
	double s = p->kernels ? p->seconds : INFINITY, /* of views alone */
	        share = fmax(p->flops / b->peak, p->bytes / b->memory) / s;
	char name[32];

	snprintf(name, sizeof name, "%.*s", (int)strcspn(p->line, " "), p->line);
	if (b->o.json) {
		printf("%s\n {\"operator\": \"%s\", \"part\": \"%s\", \"us\": %.3f, \"gflops\": %.4g, "
		       "\"gbytes_per_s\": "
		       "%.4g, \"roofline_share\": %.4g, \"kernels\": %d, \"copies_us\": %.3f, \"case\": ",
		       b->rows++ ? "," : "", name, p->name, p->seconds * 1e6, p->flops / s * 1e-9, p->bytes / s * 1e-9,
		       share, p->kernels, p->copies * 1e6);
		Buf text = {0};

		buf_json(&text, p->line);
		printf("%s}", text.at);
		buf_free(&text);
		return;
	}
	if (!b->rows++)
		printf("%10s %8s %7s %8s %9s  %s\n", "us", "GFLOP/s", "GB/s", "roofline", "copies us", "operator");
	printf("%10.1f %8.1f %7.1f %7.0f%% %9.1f  %s: %s\n", p->seconds * 1e6, p->flops / s * 1e-9, p->bytes / s * 1e-9,
	       100 * share, p->copies * 1e6, p->name, p->line);
}

/* ---------------------------------------------------------------- a line */
/* So that nothing stays from call to call, as if parameters were trained. */
static void
add_store(Module *m)
{
	Axis one = axis(1);
	Build b = {.g = m->graph.at[0], .path = ""};

	module_add_state(m, "step", type_of(DT_f32, 1, &one), ST_STAT);
	Val v = build_load(&b, "step");

	build_op(&b, OP_store, &v, 1, ATTRS(AS(state, "step")), NULL);
}

static bool
time_part(Bench *b, Part *p)
{
	Jit *jit = NULL;
	Module *from = NULL;

	p->y = arena_array(b->run.arena, double *, p->m->graph.at[0]->result.n);
	least_work(b, p);
	add_store(p->m);
	if (b->o.check || b->o.quick)
		from = module_clone(p->m, b->run.arena);
	const char *error = compile(b, p, &jit);

	if (!error)
		error = rounds(b, p);
	if (error)
		failed(&b->run, p->line, "%s: %s", p->name, error);
	if (!error && from)
		check_values(b, p, from);
	if (!error)
		print_part(b, p);
	if (jit)
		jit_close(jit);
	fflush(stdout);
	return !error;
}

/* The numbers of v: of the case's operands, of weights, or of what the forward made. */
static double *
numbers_of(const Problem *p, const Part *forward, double **x, Val v)
{
	for (uint32_t i = 0; i < p->g->input.n; i++)
		if (p->g->input.at[i].v.id == v.id)
			return x[i];
	for (int i = 0; i < p->nresult; i++)
		if (p->op.out[i].id == v.id)
			return forward->y[i];
	bug("a value that nobody gives");
}

static bool
time_alone(Bench *b, const Problem *p, bool gradient, const bool *param, double **x, const Part *forward, Part *out)
{
	Alone a;
	Arena *arena = b->run.arena;

	if (!problem_alone(&b->run, p, gradient, param, &a))
		return false;
	uint32_t ni = a.m->graph.at[0]->input.n, ns = a.m->state.n;

	out->m = a.m;
	out->x = arena_array(arena, double *, ni);
	out->w = arena_array(arena, double *, ns + 1);
	for (uint32_t k = 0; k < ni; k++)
		out->x[k] = numbers_of(p, forward, x, a.input[k]);
	for (uint32_t k = 0; k < ns; k++)
		out->w[k] = numbers_of(p, forward, x, a.state[k]);
	return time_part(b, out);
}

static void
time_line(Bench *b, const char *line)
{
	Run *r = &b->run;
	Case c;
	Problem p = {0};
	Build build;
	bool param[MAX_IN];

	if (!read_case(r, line, (Batch){.n = 1, .marked = true}, &c) || !c.time)
		return; /* what cannot be read, numeric tells */
	Batch batch = {.n = b->o.quick ? 1 : c.time};

	for (int k = 0; k < c.nin; k++) /* what does not follow the batch */
		param[k] = !type_marked(&c.in[k]);
	if (!read_case(r, line, batch, &c) || !problem_forward(r, &c, batch, &p, &build))
		return;
	for (int k = 0; k < p.nresult; k++)
		p.used[k] = k == 0 || !op_has(c.kind, T_COMPOSITE); /* what is behind it networks hardly read */
	if (op_info[c.kind].grad && !problem_backward(r, &c, &p, &build))
		return;
	double **x = room(r, p.g);
	Part forward = {.name = "forward", .line = c.line}, gradient = {.name = "gradient", .line = c.line};

	fill_inputs(&c, p.g, x);
	hold_values(p.g, x);
	if (time_alone(b, &p, false, param, x, NULL, &forward) && p.g->op.n > 1)
		time_alone(b, &p, true, param, x, &forward, &gradient);
}

/* Every operator that the target has a kernel for is timed, itself or as a part of another's gradient. Left out:
 * derivatives of ew.def, which autodiff writes as other operators; what needs a module with states. */
static void
check_kernels(Bench *b)
{
	const Target *t = target_named("cpu");

	for (int k = OP_none + 1; k < OP_COUNT; k++)
		if (t->has_kernel(t, (OpKind)k) && !op_has((OpKind)k, T_STATE) &&
		    !(op_info[k].ew >= 0 && op_info[k].part) && !b->timed[k])
			failed(&b->run, op_info[k].name, "no line with `time` in tests/operators");
}

static void
read_options(Bench *b, int argc, char **argv)
{
	b->o.filter = "";
	b->o.threads = rt_cpus();
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--quick"))
			b->o.quick = true;
		else if (!strcmp(argv[i], "--check"))
			b->o.check = true;
		else if (!strcmp(argv[i], "--json"))
			b->o.json = true;
		else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
			b->o.threads = atoi(argv[++i]);
		else if (argv[i][0] == '-')
			die("operators FOLDER|FILE.. [WORD] [--quick] [--check] [--threads N] [--json]");
		else if (!is_folder(argv[i]) && !strstr(argv[i], ".txt"))
			b->o.filter = argv[i];
	if (b->o.threads < 1)
		die("--threads needs a positive number");
}

static void
begin(Bench *b)
{
	const Target *t = target_named("cpu");
	const char *error;
	RtHost *h = &b->h;

	b->o.arch = t->resolve_arch(t, b->run.arena, "native", &error);
	if (!b->o.arch)
		die("%s", error);
	h->threads = rt_threads_new(b->o.threads, &h->error);
	if (!h->threads)
		die("%s", h->error.text);
	h->scratch = arena_array(b->run.arena, uint8_t *, b->o.threads);
	b->peak = rt_peak_flops(h->threads, false, "");
	b->memory = rt_peak_memory(h->threads);
	if (b->o.json)
		printf("{\"arch\": \"%s\", \"threads\": %d, \"peak_gflops\": %.5g, \"memory_gbytes_per_s\": %.4g, "
		       "\"rows\": [",
		       b->o.arch, b->o.threads, b->peak * 1e-9, b->memory * 1e-9);
	else
		printf("%s, %d threads, measured peaks: %.1f GFLOP/s of f32, %.1f GB/s of memory\n", b->o.arch,
		       b->o.threads, b->peak * 1e-9, b->memory * 1e-9);
}

int
main(int argc, char **argv)
{
	static Bench b;
	Arena *all = arena_new();
	Lines lines = {.a = all};
	bool folder = false;

	b.run.arena = all;
	ir_init();
	read_options(&b, argc, argv);
	begin(&b);
	for (int i = 1; i < argc; i++)
		if (is_folder(argv[i]) || strstr(argv[i], ".txt")) {
			read_lines(&lines, argv[i], b.o.filter);
			folder |= is_folder(argv[i]);
		}
	for (uint32_t i = 0; i < lines.at.n; i++) {
		b.run.arena = arena_new();
		diags_init(&b.run.diags, b.run.arena, stderr);
		b.run.told = b.o.json ? stderr : NULL;
		if (line_says(lines.at.at[i], "time"))
			time_line(&b, lines.at.at[i]);
		arena_free(b.run.arena);
	}
	if (folder && !*b.o.filter)
		check_kernels(&b);
	if (b.o.json)
		printf("\n], \"failures\": %d}\n", b.run.nfailed);
	rt_threads_free(b.h.threads);
	arena_free(all);
	return b.run.nfailed != 0;
}
