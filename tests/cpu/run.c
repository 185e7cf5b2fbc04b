/* run.c: every kernel of the CPU target against the reference evaluator, in process.
 *
 * In: files of cases (../operators) or that folder, and a word that lines must contain (optional); --small or --kernel:
 * of their lines those for kernels alone are left out, or are all.   Out: a line per failure, the number of runs, exit
 * 1 if any failed. Each case runs forward, and backward where it has a gradient,
 * composites decomposed all the way but in the first of the variants:
 * composites   those that the target has kernels for, what it refuses decomposed; in f32, bf16 and f16; their operands
 * and results in layouts that the kernels take
 *   plain        every op alone, every value in memory, row-major
 *   permuted     every value in a random physical layout
 *   fused        all ops of the graph in one kernel group as far as the target allows, values between them in registers
 * dtypes       f64, bf16 and f16 in place of f32; contractions also of bf16 and f16 operands with sums in f32, held to
 * the bounds of f32
 *   batch        3 examples of a graph for 4, where the case follows N
 * Modules in text (.ir) run op by op and as one group, which has the kernel that a line "; tiles " names, on numbers
 * between those of a line "; range " (-2 2), held to f32's bounds by a line "; bounds f32" (else to those of the
 * narrowest type that is computed); `half` in them is bf16, and once more f16.
 * Where values have 16 bits bounds follow from the roundings of each element (bounds.c), else from a type's eps and the
 * size of what is computed (compare.c).
 * With --space (--space=N: N of them) such a group has each kernel in turn that Target.tuning.space names.
 * With --emulated the contractions of 16 bits run on the CPUs whose instructions emulate.c computes (matrix
 * tiles: bf16; f16 FMAs: f16), and the same modules are compiled for the CPUs that have them.
 * Code is the object that `build` would write, loaded with LLVM's ORC. Outputs are poisoned, the gaps between values
 * are guard bytes, the arena ends at a page that faults, tasks run one by one in a shuffled order. */
#include "red.h"
#include "../operators/cases.h"
#include "../../ir/ref.h"
#include "harness.h"
#include "memory.h"
#include "../../codegen/cpu/cpu.h"
#include "../../runtime/rt.h"
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define POISON 0xA5


/* of the lines of cases those that it says; NULL: all */
static const char *lines_wanted;

typedef struct Variant { const char *name; bool permute, fuse, composites; int64_t n; uint64_t seed; } Variant;

/* Does what runs now show that an operator has a case large enough for kernels? */
static bool counts_as_seen = true;

/* Of the run that is going on: type of its operands where the CPU is emulated, the CPU that it stands for;
 * what has run. */
static struct { DType half; const char *real; int kernels[OP_COUNT]; } emulated;

static uint64_t
next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

#ifndef TEST_TARGET
#define TEST_TARGET "cpu"
#define TEST_CPU
static uint64_t shuffle_state = 88172645463325252ull;

/* What the emitted code calls: tasks one by one, in another order each time. */
void
rt_parallel(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	int64_t stride = tasks > 1 ? 1 + (int64_t)(next_random(&shuffle_state) % (uint64_t)(tasks - 1)) : 1, at = 0;
	static _Alignas(64) uint8_t scratch[2 << 20];

	while (tasks > 1) { /* a stride that meets every task */
		int64_t a = tasks, b = stride;

		while (b) {
			int64_t t = a % b;

			a = b;
			b = t;
		}
		if (a == 1)
			break;
		stride++;
	}
	for (int64_t i = 0; i < tasks; i++, at = (at + stride) % tasks)
		k(run->arena, off, run->n, at, at + 1, scratch);
}

/* As many calls, cut anywhere. */
void
rt_parallel_shares(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	static _Alignas(64) uint8_t scratch[2 << 20];

	for (int64_t n, at = 0; at < tasks; at += n) {
		n = 1 + (int64_t)(next_random(&shuffle_state) % (uint64_t)(tasks - at));
		k(run->arena, off, run->n, at, at + n, scratch);
	}
}

/* Turns, in each of which calls are cut anywhere. */
void
rt_parallel_turns(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t turns, int64_t threads)
{
	static _Alignas(64) uint8_t scratch[2 << 20];

	(void)threads;
	for (int64_t first = 0; first < tasks * turns; first += tasks)
		for (int64_t n, at = 0; at < tasks; at += n) {
			n = 1 + (int64_t)(next_random(&shuffle_state) % (uint64_t)(tasks - at));
			k(run->arena, off, run->n, first + at, first + at + n, scratch);
		}
}

/* Tasks that have work in common, in calls of some of them. */
void
rt_parallel_whole(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole)
{
	(void)whole;
	rt_parallel_shares(run, k, off, tasks);
}

/* Who takes part is nothing to a kernel. */
void
rt_parallel_few(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole, int64_t threads)
{
	(void)threads;
	(whole ? rt_parallel_shares : rt_parallel)(run, k, off, tasks);
}

int64_t
rt_fault(RtRun *run)
{
	return ((RtFault *)run->arena)->set != 0;
}

/* ---------------------------------------------------------------- code; another target's test has its own
 * (TEST_TARGET) */
typedef struct Code { Jit *jit; int64_t (*call)(RtRun *); } Code;

/* Before each run; false: it is left out. */
static bool
code_begins(int run, const char *line, const char *what)
{
	(void)run, (void)line, (void)what;
	return true;
}

/* NULL, or why there is no code. */
static const char *
code_load(Code *c, Module *m, const char *arch)
{
	EmitOptions o = {.emit = "obj", .arch = arch, .opt = 2};
	const Target *t = target_named(TEST_TARGET);
	const char *error;
	Buf obj = {0};

	if (getenv("CPU_TEST_DUMP")) {
		Buf text = {0};

		o.emit = "llvm";
		if (!t->emit(t, m, &o, &text))
			fputs(text.at, stderr);
		o.emit = "obj";
	}
	if ((error = t->emit(t, m, &o, &obj)))
		return error;
	c->jit = jit_load(obj.at, obj.n, &error);
	if (!c->jit)
		die("%s", error);
	c->call = (int64_t(*)(RtRun *))(uintptr_t)jit_symbol(
	        c->jit, arena_printf(m->arena, "mantou_graph_%s_0", m->graph.at[0]->name));
	if (!c->call)
		die("the object has no function for graph %s", m->graph.at[0]->name);
	buf_free(&obj);
	return NULL;
}

static int64_t
code_call(Code *c, RtRun *run, int64_t bytes)
{
	(void)bytes;
	return c->call(run);
}

static void
code_free(Code *c)
{
	jit_close(c->jit);
}

/* Each case is compiled for itself. */
enum { TOGETHER = 1 };
static bool gathers;

static void
code_gather(Module *m, const char *arch)
{
	(void)m, (void)arch;
}

/* NULL, or why what was gathered does not compile. */
static const char *
code_make(const char *arch)
{
	(void)arch;
	return NULL;
}

static void
code_drop(void)
{
}
#endif

#include "plans.c"
#include "compare.c"
#include "chosen.c"

/* ---------------------------------------------------------------- one run */
static uint8_t *
guarded_arena(int64_t bytes, size_t *mapped)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room_bytes = ((size_t)bytes + page - 1) / page * page;
	uint8_t *p = mmap(NULL, room_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (bytes % 64)
		die("an arena of %lld bytes would not begin with a cache line", (long long)bytes);
	if (p == MAP_FAILED)
		die("no memory for an arena of %lld bytes", (long long)bytes);
	mprotect(p + room_bytes, page, PROT_NONE);
	*mapped = room_bytes + page;
	return p + room_bytes - (size_t)bytes;
}

static bool
f16_sums(const Graph *g)
{
	for (uint32_t i = 0; i < g->group.n; i++)
		if (g->group.at[i].kernel && strstr(g->group.at[i].kernel, ",f16}"))
			return true;
	return false;
}

#include "bounds.c"

/* Counts contractions that go through the emulated instructions, false if there are none; the real ones must
 * compile. */
static bool
emulated_module(Module *m, const char *what)
{
	const Graph *g = m->graph.at[0];
	const Target *t = target_named("cpu");
	int n = 0;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const char *kernel = op->group >= 0 ? g->group.at[op->group].kernel : NULL;

		if (kernel && op_has((OpKind)op->kind, T_CONTRACT) &&
		    strstr(kernel, emulated.half == DT_f16 ? ",f16}" : ",amx}")) {
			emulated.kernels[op->kind]++;
			n++;
		}
		/* a recurrence whose weights are pairs, too: their tiles alone have so many rows */
		n += kernel && emulated.half == DT_bf16 && strstr(kernel, "rnn{mr=32,") != NULL;
	}
	if (!n)
		return false;
	const char *error, *keep = m->arch;
	EmitOptions o = {.emit = "obj", .arch = emulated.real, .opt = 2};
	Buf obj = {0};

	m->arch = emulated.real;
	if ((error = t->emit(t, m, &o, &obj)))
		die("%s: %s: %s", m->name, what, error);
	m->arch = keep;
	buf_free(&obj);
	return true;
}

/* One thread, best of several: microseconds, and GB/s of inputs and results. */
static void
print_time(Code *code, RtRun *run, const Module *m, const char *what, const char *line)
{
	const Graph *g = m->graph.at[0];
	double best = INFINITY, bytes = 0;

	for (int i = 0; i < 9; i++) {
		struct timespec a, z;

		clock_gettime(CLOCK_MONOTONIC, &a);
		code_call(code, run, m->arena_bytes);
		clock_gettime(CLOCK_MONOTONIC, &z);
		double seconds = (double)(z.tv_sec - a.tv_sec) + 1e-9 * (double)(z.tv_nsec - a.tv_nsec);

		best = seconds < best ? seconds : best;
	}
	for (uint32_t k = 0; k < g->input.n; k++)
		bytes += (double)type_bytes(val_type(g, g->input.at[k].v));
	for (uint32_t k = 0; k < g->result.n; k++)
		bytes += (double)type_bytes(val_type(g, g->result.at[k].v));
	printf("%9.1f us %7.2f GB/s  %s: %s\n", best * 1e6, bytes / best * 1e-9, what, line);
}

/* Holds the results to the reference's, up to the first that is wrong. lowest, scale: the bounds (compare). */
static void
check_results(Run *r, const Graph *g, Interp *in, const char *line, const char *what, const RtRun *run, DType lowest,
              double scale, double **x)
{
	uint8_t *arena = run->arena;
	Arena *a = g->module->arena;
	double **sd = arena_array(a, double *, g->result.n), *jump = arena_array(a, double, g->result.n);

	bounds_of(g, a, run->n, x, sd, jump);
	for (uint32_t k = 0; k < g->result.n; k++) {
		const ValInfo *i = val_info(g, g->result.at[k].v);
		const RefTensor *want = interp_result(in, (int)k);
		double *got = arena_array(g->module->arena, double, want->n);

		if (want->i) {
			if (!compare_integers(r, what, line, (int)k, want, &i->type, run->n, run->batch,
			                      arena + i->offset))
				break;
			continue;
		}
		tensor_move(&i->type, run->n, run->batch, arena + i->offset, got, false);
		/* INFINITY: for what is finite, bounds.c has bounds of its own */
		if (!compare(r, what, line, (int)k, (DType)i->type.dtype, lowest,
		             is_exact(g) ? 0 : sd[k] ? INFINITY : scale * error_scale(g, want, x), want->f, got,
		             want->n))
			break;
		if (sd[k] && !within(r, what, line, (int)k, sd[k], jump[k], want->f, got, want->n))
			break;
		if (sd[k])
			check_bounds(r, what, line, g, run->n, x, sd[k], jump[k], want->f, want->n);
	}
}

/* What lies behind each value must be as it was. */
static void
check_gaps(Run *r, const Graph *g, const char *line, const char *what, const RtRun *run)
{
	const uint8_t *arena = run->arena;

	for (uint32_t q = 1; q < g->val.n; q++) {
		const ValInfo *i = &g->val.at[q];
		int64_t bytes = elements_at(&i->type, run->n, run->batch) * dtype_info[i->type.dtype].bytes;
		int64_t end = ((type_bytes(&i->type) + 63) / 64 + 1) * 64;

		if (i->offset < 0 || (i->op != UINT32_MAX && g->op.at[i->op].kind == OP_load))
			continue;
		for (int64_t b = bytes; b < end; b++)
			if (arena[i->offset + b] != POISON) {
				failed(r, line, "%s: byte %lld behind %%%s was written", what, (long long)(b - bytes),
				       i->name);
				b = end;
			}
	}
}

/* known: what the reference makes of x for v->n examples; NULL: it is asked here. */
static void
run_module(Run *r, const char *line, Module *m, const char *arch, const Variant *v, DType lowest, double **x,
           Interp *known)
{
	Graph *g = m->graph.at[0];
	const Target *t = target_named(TEST_TARGET);
	uint64_t seed = v->seed;
	const char *error;
	int64_t full = m->batch, n = v->n;
	char what[96];

	snprintf(what, sizeof what, "%s, %s", arch, v->name);
	for (uint32_t i = 0; i < g->op.n; i++)
		r->seen[g->op.at[i].kind] |= counts_as_seen;
	if (v->permute)
		permute_types(g, &seed);
	naive_plan(m, t, arch);
	if (v->fuse && !(v->composites ? composite_given(m, arch) : fuse_all(m, arch, &seed)))
		return;
	Code code = {0};
	double scale = 1;

	if (f16_sums(g)) { /* where bounds.c knows no better; narrow.c holds them to what micro_fp16.c says */
		lowest = DT_f16;
		scale = 0.25;
	}
	if (g->group.n && g->group.at[0].kernel && !strncmp(g->group.at[0].kernel, "tf32{", 5))
		lowest = DT_f16; /* operands of 11 bits */
	if (emulated.real && !emulated_module(m, what))
		return;
	chosen_ran = true;
	if (gathers) {
		code_gather(m, arch);
		return;
	}
	if (getenv("CPU_TEST_DUMP")) {
		Buf text = {0};

		module_print(&text, m);
		fputs(text.at, stderr);
	}
	r->ncase++;
	if (!code_begins(r->ncase, line, what))
		return;
	if ((error = code_load(&code, m, arch))) {
		failed(r, line, "%s: %s", what, error);
		return;
	}
	size_t mapped;
	uint8_t *arena = guarded_arena(m->arena_bytes, &mapped);
	RtRun run = {.arena = arena, .n = n, .batch = full};
	Interp *in = known ? known : interp_new(m, true);

	memset(arena, POISON, (size_t)m->arena_bytes);
	memset(arena, 0, 64);
	error = known ? NULL : run_graph(in, g, n, x);
	if (error) {
		failed(r, line, "%s: the reference says %s", what, error);
		return;
	}
	for (uint32_t k = 0; k < g->input.n; k++) {
		const ValInfo *i = val_info(g, g->input.at[k].v);

		if (g->input.at[k].kind == IN_SEED)
			run.seed = (int64_t)x[k][0];
		if (g->input.at[k].kind == IN_STEP)
			run.step = (int64_t)x[k][0];
		tensor_move(&i->type, n, full, arena + i->offset, x[k], true);
	}
	int64_t status = code_call(&code, &run, m->arena_bytes);

	if (getenv("CPU_TEST_TIME"))
		print_time(&code, &run, m, what, line);
	if (status)
		failed(r, line, "%s: status %lld", what, (long long)status);
	else
		check_results(r, g, in, line, what, &run, lowest, scale, x);
	check_gaps(r, g, line, what, &run);
	if (!known)
		interp_free(in);
	code_free(&code);
	munmap(arena + m->arena_bytes - (mapped - (size_t)sysconf(_SC_PAGESIZE)), mapped);
}

/* ---------------------------------------------------------------- cases */
static const char *
with_dtype(Run *r, const char *line, const char *dt)
{
	Buf b = {0};
	const char *p = line, *q;

	for (; (q = strstr(p, "f32[")); p = q + 3) {
		buf_put(&b, p, (size_t)(q - p));
		buf_printf(&b, "%s", dt);
	}
	buf_printf(&b, "%s", p);
	const char *s = arena_strdup(r->arena, b.at);

	buf_free(&b);
	return s;
}

static const char *tested_arch;

/* A composite op that the target takes as it is on that architecture. */
static bool
has_kernel(const Graph *g, const Op *op)
{
	const Target *t = target_named(TEST_TARGET);
	const char *keep = g->module->arch;

	g->module->arch = tested_arch;
	bool has = op_has((OpKind)op->kind, T_COMPOSITE) && t->has_kernel(t, (OpKind)op->kind) &&
	           !(t->refuses && t->refuses(t, g, op));

	g->module->arch = keep;
	return has;
}

/* The type whose bounds hold for what g computes. Inputs are numbers of their type on both sides, but what composite
 * ops multiply by an operand is rounded to its type. */
static DType
lowest_of(const Graph *g)
{
	DType lowest = DT_f64;

	for (uint32_t k = 1; k < g->val.n; k++) {
		DType dt = (DType)g->val.at[k].type.dtype;
		bool rounded = g->val.at[k].op != UINT32_MAX;

		for (uint32_t i = 0; i < g->op.n && !rounded; i++)
			for (int j = 0; j < g->op.at[i].nin; j++)
				rounded |= op_has((OpKind)g->op.at[i].kind, T_COMPOSITE) && g->op.at[i].in[j].id == k;
		if (rounded && dtype_is_float(dt) && epsilon(dt) > epsilon(lowest))
			lowest = dt;
	}
	return lowest;
}

/* Where MANTOU_LLVM_FAST is asked for, the suite does so without --long, a line's plain run and a text's as one group
 * have the code of an executable all the same: what else there is varies indices and types, which LLVM does not see. */
static void
compile_as_shipped(bool yes)
{
	static char *asked;

	if (!asked)
		asked = strdup(getenv("MANTOU_LLVM_FAST") ? getenv("MANTOU_LLVM_FAST") : "");
	setenv("MANTOU_LLVM_FAST", yes ? "" : asked, 1);
}

static void run_chosen(Run *r, const char *line, const char *arch, const Variant *v, bool backward);

static void
run_variant(Run *r, const char *line, const char *arch, const Variant *v, bool backward)
{
	uint32_t *lines = getenv("TEST_SOME") && v->seed != 1 ? chosen_lines(line, v->name) : NULL;

	chosen_ran = false;
	if (!lines || *lines % 3 == 0)
		run_chosen(r, line, arch, v, backward);
	else
		chosen_ran = true;
	if (lines)
		*lines += chosen_ran;
}

static void
run_chosen(Run *r, const char *line, const char *arch, const Variant *v, bool backward)
{
	Batch batch = {.n = strpbrk(line, "N") ? 4 : 1, .marked = strpbrk(line, "N") != NULL};
	Case c;
	Problem p = {0};
	Build b;
	Arena *keep = r->arena;
	Variant one = *v;

	r->arena = arena_new();
	tested_arch = arch;
	if (!batch.marked)
		one.n = 1;
	if (read_case(r, line, batch, &c) && !c.error && (c.full ? one.n == 4 : true)) {
		bool good = problem_forward(r, &c, batch, &p, &b);

		if (good && p.g->full_only)
			one.n = batch.n;
		for (int k = 0; k < p.nresult; k++)
			p.used[k] = !(c.kind == OP_lstm && k == 1);
		if (good && backward && op_info[c.kind].grad && !batch.marked)
			good = problem_backward(r, &c, &p, &b);
		if (good) {
			Module *m = p.m, *x = p.m;
			double **in = room(r, p.g);
			bool kept = false;

			while (!batch.marked && (x = decomposed(r, m, v->composites ? has_kernel : NULL)))
				m = x;
			DType lowest = lowest_of(m->graph.at[0]);

			fill_inputs(&c, p.g, in);
			hold_inputs(p.g, in);
			bool composite = false;

			for (uint32_t i = 0; i < m->graph.at[0]->op.n; i++)
				if (v->composites && has_kernel(m->graph.at[0], &m->graph.at[0]->op.at[i]))
					kept = true;
				else
					composite |=
					        op_has((OpKind)m->graph.at[0]->op.at[i].kind, T_COMPOSITE | T_STATE);
			if (!composite && kept == v->composites)
				run_module(r, line, m, arch, &one, lowest, in, NULL);
		}
	}
	arena_free(r->arena);
	r->arena = keep;
}

/* The contraction with attribute wide. */
static const char *
with_wide(Run *r, const char *line)
{
	const char *brace = strchr(line, '}'), *end = strchr(line, ';');
	size_t n = brace ? (size_t)(brace - line) : end ? (size_t)(end - line) : strlen(line);

	return arena_printf(r->arena, "%.*s%s%s", (int)n, line, brace ? " wide=true" : " {wide=true} ", line + n);
}

/* A contraction of f32 with operands of 16 bits, or one that has them. */
static void
run_emulated_line(Run *r, const char *line, const char *arch)
{
	static const Variant variants[] = {{"plain", false, false, false, 4, 1},
	                                   {"fused", false, true, false, 4, 0x2545f4914f6cdd1d}};
	const char *half = dtype_info[emulated.half].name;

	if (strncmp(line, "matmul ", 7) && strncmp(line, "conv2d ", 7) && !strstr(line, "wide=true"))
		return;
	if (strstr(line, "wide=true") ? !strstr(line, arena_printf(r->arena, " %s[", half)) : !strstr(line, "f32["))
		return;
	for (int k = 0; k < 2; k++)
		run_variant(r, strstr(line, "wide=true") ? line : with_wide(r, with_dtype(r, line, half)), arch,
		            &variants[k], true);
}

static void
run_line(Run *r, const char *line, size_t bytes, const char *arch)
{
	static const Variant variants[] = {
	        {"plain", false, false, false, 4, 1},
	        {"permuted", true, false, false, 4, 0x9e3779b97f4a7c15},
	        {"fused", false, true, false, 4, 0x2545f4914f6cdd1d},
	        {"fused permuted", true, true, false, 4, 0x1234567812345678},
	};
	Variant batch = {"batch of 3", false, false, false, 3, 5},
	        permuted = {"permuted batch of 3", true, false, false, 3, 0xdeadbeefcafe1234};
	Variant composites = {"composites", false, false, true, 4, 3},
	        permuted_composites = {"permuted composites", true, false, true, 4, 11},
	        part = {"composites, batch of 3", false, false, true, 3, 4};

	(void)bytes;
	counts_as_seen = line_says(line, "kernel");
	if (emulated.real) {
		run_emulated_line(r, line, arch);
		return;
	}
	/* of f32 alone */
	bool others = strstr(line, "f32[") && !strstr(line, "wide=true") && !strstr(line, "f16[");

	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
		compile_as_shipped(i == 0);
		run_variant(r, line, arch, &variants[i], true);
	}
	run_variant(r, line, arch, &composites, true);
	run_variant(r, line, arch, &permuted_composites, true);
	if (strpbrk(line, "N")) {
		run_variant(r, line, arch, &part, false);
		run_variant(r, line, arch, &batch, false);
		run_variant(r, line, arch, &permuted, false);
	}
	if (others)
		for (int k = 0; k < 3; k++)
			run_variant(r, with_dtype(r, line, (const char *[]){"f64", "bf16", "f16"}[k]), arch,
			            &variants[k % 2], false);
	for (int k = 0; k < 2 && others; k++)
		run_variant(r, with_dtype(r, line, k ? "f16" : "bf16"), arch, strpbrk(line, "N") ? &part : &composites,
		            !strpbrk(line, "N"));
	if (!strncmp(line, "matmul ", 7) || !strncmp(line, "conv2d ", 7))
		for (size_t k = 0; k < 8; k++)
			run_variant(r, with_wide(r, with_dtype(r, line, k % 2 ? "bf16" : "f16")), arch,
			            &variants[k / 2], k / 2 == 0);
}

#include "texts.c"

/* Texts or lines of a file. Where several are compiled together, each is gone through twice. */
typedef void RunOne(Run *r, const char *text, size_t bytes, const char *arch);

static void
run_each(Run *r, RunOne *one, const Lines *t, const char *arch)
{
	for (uint32_t end, i = 0; i < t->at.n; i = end) {
		end = i + TOGETHER < t->at.n ? i + TOGETHER : t->at.n;
		gathers = r->quiet = TOGETHER > 1;
		chosen_before = chosen;
		for (uint32_t k = i; k < end && gathers; k++)
			one(r, t->at.at[k], strlen(t->at.at[k]), arch);
		gathers = r->quiet = false;
		chosen = chosen_before;
		const char *error = code_make(arch);

		if (error)
			failed(r, "code of several cases", "%s", error);
		for (uint32_t k = i; k < end; k++) {
			one(r, t->at.at[k], strlen(t->at.at[k]), arch);
			if (one == run_line && getenv("CPU_TEST_VERBOSE"))
				printf("%s\n", t->at.at[k]);
		}
		code_drop();
	}
	arena_free(t->a);
}

static void
run_file(Run *r, const char *path, const char *filter, const char *arch)
{
	size_t n;
	char *text = file_read(path, &n);
	Lines some = {.a = arena_new()};

	for (char *p = text ? strstr(text, "\nmodule ") : NULL; p;) {
		char *next = strstr(p + 1, "\nmodule ");
		size_t bytes = next ? (size_t)(next - p) : strlen(p);

		for (int k = 0; k < 2 && (!*filter || strstr(p, filter)); k++) {
			DType half = k ? DT_f16 : DT_bf16;
			const char *one = with_half(r, p + 1, bytes - 1, dtype_info[half].name);
			bool has = strstr(one, arena_printf(r->arena, " %s[", dtype_info[half].name)) != NULL;

			bool narrow = strstr(one, "wide=true") || strstr(one, ".cells");

			if (emulated.real ? has && half == emulated.half && narrow
			                  : !k || strlen(one) != bytes - 1)
				vec_push(some.a, &some.at, arena_strdup(some.a, one));
		}
		p = next;
	}
	run_each(r, space_most < 0 ? run_text : run_space, &some, arch);
	known_drop();
	free(text);
}

/* Every operator that the target has code for must have run from a line with `kernel` or from groups.ir: others are too
 * small to reach whole vectors, tails and pieces. conv2d.dx and its like run in the backward of a case. Left out:
 * derivatives of ew.def, some of which autodiff writes as other operators; loads and stores, which need a module with
 * states (tests/train). */
static void
check_kernels(Run *r, const Target *t)
{
	for (int k = OP_none + 1; k < OP_COUNT; k++)
		if (t->has_kernel(t, (OpKind)k) && !op_has((OpKind)k, T_STATE) &&
		    !(op_info[k].ew >= 0 && op_info[k].part) && !r->seen[k])
			failed(r, op_info[k].name, "no line with `kernel` in tests/operators");
}

static bool
is_wanted(const char *line)
{
	bool kernel = line_says(line, "kernel");

	return !strstr(line, "=>") && !line_says(line, "reference") && !line_says(line, "time") &&
	       (!lines_wanted || kernel == !strcmp(lines_wanted, "--kernel"));
}

static void
run_cases(Run *r, const char *path, const char *filter, const char *arch)
{
	Lines all = {.a = arena_new()}, some = {.a = all.a};

	read_lines(&all, path, filter);
	for (uint32_t i = 0; i < all.at.n; i++)
		if (is_wanted(all.at.at[i]))
			vec_push(some.a, &some.at, all.at.at[i]);
	run_each(r, run_line, &some, arch);
}

/* a file of cases, or the folder of all */
static bool
is_cases(const char *word)
{
	return strstr(word, ".txt") || is_folder(word);
}

/* What a word of the command line is. */
static void
read_word(const char *word, const char **filter)
{
	if (!strncmp(word, "--space", 7))
		space_most = word[7] == '=' ? atoi(word + 8) : 0;
	else if (!strcmp(word, "--small") || !strcmp(word, "--kernel"))
		lines_wanted = word;
	else if (!is_cases(word) && !strstr(word, ".ir"))
		*filter = word;
}

static void
run_all(Run *r, int argc, char **argv, const char *filter, const char *arch)
{
	const Target *t = target_named(TEST_TARGET);
	bool all = false;

	mallopt(M_TRIM_THRESHOLD, 256 << 20); /* a run takes and frees as much as the one before */
	for (int a = 1; a < argc; a++) {
		counts_as_seen = true;
		if (strstr(argv[a], ".ir"))
			run_file(r, argv[a], filter, arch);
		else if (is_cases(argv[a]))
			run_cases(r, argv[a], filter, arch);
		all |= is_folder(argv[a]) && !(lines_wanted && !strcmp(lines_wanted, "--small"));
	}
	if (all && !*filter && !emulated.real)
		check_kernels(r, t);
	printf("%s: %d runs, %d failures\n", arch, r->ncase, r->nfailed);
}

#if defined TEST_CPU && !defined TEST_LIBRARY
/* Every kind of contraction must have gone through the instructions. */
static void
run_emulated(Run *r, int argc, char **argv, const char *filter)
{
	static const struct {
		const char *arch, *real;
		DType half;
	} machines[] = {{"emulated-amx", "sapphirerapids", DT_bf16}, {"emulated-fp16", "sapphirerapids-noamx", DT_f16}};
	static const OpKind kinds[] = {OP_matmul, OP_conv2d, OP_conv2d_dx, OP_conv2d_dw};

	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		if (!arch_runs(arch_named(machines[i].arch))) {
			printf("%s: this CPU has no vectors of 64 bytes with bf16: nothing was run\n",
			       machines[i].arch);
			continue;
		}
		memset(&emulated, 0, sizeof emulated);
		r->ncase = 0;
		emulated.half = machines[i].half;
		emulated.real = machines[i].real;
		run_all(r, argc, argv, filter, machines[i].arch);
		for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
			printf("%s: %d kernels of %s\n", machines[i].arch, emulated.kernels[kinds[k]],
			       op_info[kinds[k]].name);
			if (!*filter && !emulated.kernels[kinds[k]])
				failed(r, op_info[kinds[k]].name, "no kernel of it on %s", machines[i].arch);
		}
	}
}

int
main(int argc, char **argv)
{
	Run r = {.arena = arena_new()};
	const char *filter = "", *error;
	bool emulate = false;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	const Target *t = target_named(TEST_TARGET);
	const char *arch =
	        t->resolve_arch(t, r.arena, getenv("CPU_TEST_ARCH") ? getenv("CPU_TEST_ARCH") : "native", &error);

	for (int a = 1; a < argc; a++)
		if (!strcmp(argv[a], "--emulated"))
			emulate = true;
		else
			read_word(argv[a], &filter);
	if (emulate)
		run_emulated(&r, argc, argv, filter);
	else
		run_all(&r, argc, argv, filter, arch);
	arena_free(r.arena);
	return r.nfailed != 0;
}
#endif
