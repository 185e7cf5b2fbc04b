/* narrow.c: contractions of 16 bits on CPUs that this machine may not be.
 *
 * In: nothing.   Out: a line per failure, counts, exit 1 if any failed. That
 * - code for each CPU with matrix tiles or f16 FMAs holds those instructions, and none of the other
 * kind;
 *  - a kernel's text is refused for CPUs that lack its instructions;
 * - kernels for emulated tiles are, line for line of LLVM's text, those for real ones but for the name of the
 * instruction;
 *  - sums of f16 whose partial sums overflow are those of f32, forward and in both gradients, and infinite or NaN only
 *    where these are;
 *  - products of f16 that the model writes itself, whose results are f16, have sums in f32;
 * - sums of f16 keep the bound that micro_fp16.c states, and the usual error that it reports, on the emulated CPU
 * or a real one;
 *  - emulate.c computes what the manual says where that is not obvious;
 *  - CPUs without conversions of f16 convert every one of its numbers, and what lies between them, to the same bits. */
#include "harness.h"
#include "memory.h"
#include "../../codegen/cpu/cpu.h"
#include "../../ir/interp.h"
#include "../../runtime/rt.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int checks, failures;

void
rt_parallel(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	static _Alignas(64) uint8_t scratch[1 << 20];

	k(run->arena, off, run->n, 0, tasks, scratch);
}

void
rt_parallel_whole(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole)
{
	(void)whole;
	rt_parallel(run, k, off, tasks);
}

static void
check(bool ok, const char *what, const char *which)
{
	checks++;
	failures += !ok;
	if (!ok)
		printf("FAIL %s: %s\n", which, what);
}

/* ---------------------------------------------------------------- what is emitted */
static const char product[] = "module narrow {batch=1 stage=lowered hash=0000000000000000}\n"
	"graph train(%%a: %s[%d,%d], %%b: %s[%d,%d]) -> output %%y {\n"
	"  %%y = matmul %%a, %%b {wide=true} : f32[%d,%d]\n"
	"}\n";

static const char weights[] = "module narrow {batch=1 stage=lowered hash=0000000000000000}\n"
	"graph train(%%x: %s[36,20,5,5]@2301, %%d: %s[36,33,5,5]@2301) -> output %%y {\n"
	"  %%y = conv2d.dw %%x, %%d {pad=[1,1] wide=true} : f32[33,20,3,3]@2310\n"
	"}\n";

static Module *
planned(Arena *a, Diags *d, const char *arch, const char *text)
{
	Module *m = module_parse(a, d, "narrow", text, strlen(text));

	if (!m)
		die("the text of a module does not parse:\n%s", text);
	m->arch = arch;
	naive_plan(m, target_named("cpu"), arch);
	return m;
}

static const char *
emitted(Arena *a, Diags *d, const char *arch, const char *kind, const char *text)
{
	Buf out = {0};
	EmitOptions o = {.emit = kind, .arch = arch, .opt = 2};
	const char *error = target_named("cpu")->emit(target_named("cpu"), planned(a, d, arch, text), &o, &out);

	if (error)
		die("%s: %s", arch, error);
	buf_put(&out, "", 1);
	const char *s = arena_strdup(a, out.at);

	buf_free(&out);
	return s;
}

static void
test_instructions(Arena *a, Diags *d)
{
	static const char *const names[] = {"sapphirerapids", "emeraldrapids", "graniterapids", "sapphirerapids-noamx"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const Arch *arch = arch_named(names[i]);
		const char *bf16 = emitted(a, d, names[i], "asm",
		                           arena_printf(a, product, "bf16", 70, 66, "bf16", 66, 50, 70, 50));
		const char *f16 =
		        emitted(a, d, names[i], "asm", arena_printf(a, product, "f16", 70, 66, "f16", 66, 50, 70, 50));

		check(!strstr(bf16, "tdpbf16ps") == !arch->tiles, "matrix tiles for bf16", names[i]);
		check(!strstr(bf16, "ldtilecfg") == !arch->tiles && !strstr(bf16, "tilerelease") == !arch->tiles,
		      "their configuration", names[i]);
		check(strstr(f16, "vfmadd231ph") != NULL, "f16 FMAs", names[i]);
		check(!strstr(f16, "tileload"), "no tiles for f16", names[i]);
		check(!strstr(bf16, "emulate_") && !strstr(f16, "emulate_"), "nothing emulated", names[i]);
	}
}

/* Text for one CPU, which another shall compile: an error, not code that it cannot run. */
static void
test_foreign_text(Arena *a, Diags *d)
{
	static const struct {
		const char *from, *to, *half;
	} cases[] = {{"sapphirerapids", "sapphirerapids-noamx", "bf16"},
	             {"sapphirerapids", "znver4", "f16"},
	             {"znver4", "sapphirerapids", "bf16"}};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Module *m = planned(a, d, cases[i].from,
		                    arena_printf(a, product, cases[i].half, 70, 66, cases[i].half, 66, 50, 70, 50));
		EmitOptions o = {.emit = "obj", .arch = cases[i].to, .opt = 2};
		Buf out = {0};
		const char *error = target_named("cpu")->emit(target_named("cpu"), m, &o, &out);

		check(error && strstr(error, "computes no matmul"), "a kernel's text for another CPU",
		      cases[i].to);
		buf_free(&out);
	}
}

/* Bodies of functions, with one name for an instruction and its emulation. */
static const char *
bodies(Arena *a, const char *text)
{
	Buf b = {0};
	bool in = false;
	const char *next;

	for (const char *p = text; *p; p = next) {
		size_t n = strcspn(p, "\n");

		next = p + n + (p[n] == '\n');
		in |= !strncmp(p, "define", 6);
		if (in) {
			const char *line = arena_printf(a, "%.*s", (int)n, p), *call = strstr(line, "@llvm.x86."),
			           *other = strstr(line, "@emulate_");
			size_t keep = strcspn(line, "#");

			if (call || other) {
				buf_put(&b, line, (size_t)((call ? call : other) - line));
				for (const char *q = call ? call + 10 : other + 9; *q && *q != '#'; q++)
					if ((q[-1] == '(' || q[-1] == ' ') &&
					    (!strncmp(q, "i8 ", 3) || !strncmp(q, "i32 ", 4))) {
						buf_printf(&b, "number ");
						q += *(q + 1) == '8' ? 2 : 3;
					} else {
						buf_put(&b, q, 1);
					}
			} else {
				buf_put(&b, line, keep);
			}
			buf_printf(&b, "\n");
		}
		in &= *p != '}';
	}
	buf_put(&b, "", 1);
	const char *s = arena_strdup(a, b.at);

	buf_free(&b);
	return s;
}

static void
test_same_code(Arena *a, Diags *d)
{
	const char *text[] = {arena_printf(a, product, "bf16", 70, 66, "bf16", 66, 50, 70, 50),
	                      arena_printf(a, weights, "bf16", "bf16")};

	for (int i = 0; i < 2; i++) {
		const char *real = bodies(a, emitted(a, d, "sapphirerapids", "llvm", text[i])),
		           *emulated = bodies(a, emitted(a, d, "emulated-amx", "llvm", text[i]));

		check(strstr(real, "tdpbf16ps") != NULL, "a kernel of matrix tiles", i ? "conv2d.dw" : "matmul");
		check(!strcmp(real, emulated), "emulated and real code differ in more than the instruction",
		      i ? "conv2d.dw" : "matmul");
	}
}

/* ---------------------------------------------------------------- the error of f16 sums */
static double
normal(uint64_t *s)
{
	double sum = -6;

	for (int i = 0; i < 12; i++) {
		*s ^= *s << 13;
		*s ^= *s >> 7;
		*s ^= *s << 17;
		sum += (double)(*s >> 11) * 0x1p-53;
	}
	return sum;
}

typedef int64_t Call(RtRun *);

/* The code of m's graph. */
static Call *
loaded(Module *m, const char *arch, Jit **j)
{
	EmitOptions o = {.emit = "obj", .arch = arch, .opt = 2};
	const char *error;
	Buf obj = {0};

	if ((error = target_named("cpu")->emit(target_named("cpu"), m, &o, &obj)))
		die("%s", error);
	*j = jit_load(obj.at, obj.n, &error);
	if (!*j)
		die("%s", error);
	buf_free(&obj);
	return (Call *)(uintptr_t)jit_symbol(*j, "mantou_graph_train_0");
}

static void
test_bound(Arena *a, Diags *d, const char *arch, int k, double scale, bool signs, double usual)
{
	enum { M = 30, N = 40 };
	Module *m = planned(a, d, arch, arena_printf(a, product, "f16", M, k, "f16", k, N, M, N));
	const Graph *g = m->graph.at[0];
	const char *which = arena_printf(a, "%s, sums of %d numbers of size %g%s", arch, k, scale,
	                                         signs ? ", both operands of both signs" : "");
	uint64_t seed = 88172645463325252ull;
	double *x[2], err2 = 0, sum2 = 0, worst = 0;

	check(strstr(g->group.at[0].kernel, ",f16}") != NULL, "a kernel of f16 sums", which);
	Jit *j;
	Call *call = loaded(m, arch, &j);
	RtRun run = {.arena = aligned_alloc(64, (size_t)(m->arena_bytes + 63) / 64 * 64), .n = 1, .batch = 1};

	for (int i = 0; i < 2; i++) {
		const ValInfo *v = val_info(g, g->input.at[i].v);
		HalfNumber *at = (HalfNumber *)(void *)(run.arena + v->offset);

		x[i] = arena_array(a, double, type_elements(&v->type));
		for (int64_t e = 0; e < type_elements(&v->type); e++) {
			double n = normal(&seed);

			/* half-normal times normal, as activations and weights are; gradients have both signs */
			at[e] = (HalfNumber)(i ? n * scale : signs ? n : fabs(n));
			x[i][e] = (double)at[e];
		}
	}
	call(&run);
	const float *y = (const float *)(void *)(run.arena + val_info(g, g->result.at[0].v)->offset);

	for (int r = 0; r < M; r++)
		for (int c = 0; c < N; c++) {
			double want = 0, size = 0, u = 0x1p-11;

			for (int e = 0; e < k; e++) {
				want += x[0][r * k + e] * x[1][e * N + c];
				size += fabs(x[0][r * k + e] * x[1][e * N + c]);
			}
			double flushes = k / 64 + 1,
			       bound = 33 * u / (1 - 33 * u) * size + (k + flushes) * 0x1p-25 +
			               flushes * 0x1p-24 * size,
			       e = fabs(y[r * N + c] - want);

			worst = e / bound > worst ? e / bound : worst;
			err2 += e * e;
			sum2 += want * want;
		}
	printf("%s: %.2g of the bound at most, %.2g of the result (root mean square)\n", which, worst,
	       sqrt(err2 / sum2));
	check(worst <= 1, "the bound of the sums' error", which);
	check(sqrt(err2 / sum2) <= usual, "the usual error", which);
	free(run.arena);
	jit_close(j);
}

/* ---------------------------------------------------------------- partial sums that f16 does not hold */
/* Numbers of an operand: small ones, and runs of 2 that are 200 or -200, two of whose products (40000) make f16
 * overflow. */
static void
fill_edges(double *x, int64_t n, uint64_t *seed)
{
	for (int64_t i = 0; i < n; i++) {
		int64_t r = (int64_t)floor(normal(seed) * 3);

		x[i] = i / 2 % 3 == 1 ? (r & 1 ? 200 : -200) : (double)(r % 4);
	}
}

/* The graph's result in double. */
static const double *
in_double(Interp *in, const Graph *g, double *const *x)
{
	const char *error;

	interp_begin(in, g, 1);
	for (int i = 0; i < 2; i++)
		memcpy(interp_input(in, i)->f, x[i], (size_t)interp_input(in, i)->n * sizeof(double));
	if ((error = interp_run(in)))
		die("%s", error);
	return interp_result(in, 0)->f;
}

/* Runs text's graph on such numbers. */
static void
test_overflow(Arena *a, Diags *d, const char *arch, const char *what, const char *text, bool special)
{
	Module *m = planned(a, d, arch, text);
	const Graph *g = m->graph.at[0];
	const char *which = arena_printf(a, "%s, %s%s", arch, what, special ? " with an infinity" : "");
	uint64_t seed = 88172645463325252ull;
	double *x[2], *size[2];

	check(strstr(g->group.at[0].kernel, ",f16}") != NULL, "a kernel of f16 sums", which);
	Jit *j;
	Call *call = loaded(m, arch, &j);
	RtRun run = {.arena = aligned_alloc(64, (size_t)(m->arena_bytes + 63) / 64 * 64), .n = 1, .batch = 1};
	Interp *in = interp_new(m, true);

	for (int i = 0; i < 2; i++) {
		const ValInfo *v = val_info(g, g->input.at[i].v);
		int64_t n = type_elements(&v->type);

		x[i] = arena_array(a, double, n);
		size[i] = arena_array(a, double, n);
		fill_edges(x[i], n, &seed);
		if (special && i == 0)
			x[i][n / 2] = INFINITY;
		tensor_move(&v->type, 1, 1, run.arena + v->offset, x[i], true);
		for (int64_t e = 0; e < n; e++)
			size[i][e] = fabs(x[i][e]);
	}
	call(&run);
	const ValInfo *y = val_info(g, g->result.at[0].v);
	int64_t n = type_elements(&y->type), wrong = 0, infinite = 0;
	double top = 0, u = 0x1p-11, *got = arena_array(a, double, n), *want = arena_array(a, double, n);

	tensor_move(&y->type, 1, 1, run.arena + y->offset, got, false);
	memcpy(want, in_double(in, g, x), (size_t)n * sizeof *want);
	const double *sizes = in_double(in, g, size);

	for (int64_t e = 0; e < n; e++) {
		wrong += isfinite(want[e]) ? !(fabs(got[e] - want[e]) <= 34 * u * sizes[e])
			: !(got[e] == want[e] || (got[e] != got[e] && want[e] != want[e]));
		infinite += !isfinite(want[e]);
		top = isfinite(want[e]) && fabs(want[e]) > top ? fabs(want[e]) : top;
	}
	check(top > 2 * 65504 && (infinite > 0) == special && infinite < n, "numbers that test it", which);
	check(wrong == 0, arena_printf(a, "%lld of %lld sums are not near those of f32", (long long)wrong,
	                               (long long)n), which);
	free(run.arena);
	interp_free(in);
	jit_close(j);
}

static void
test_overflows(Arena *a, Diags *d, const char *arch)
{
	static const struct { const char *what, *text; } cases[] = {
		{"matmul", "graph train(%a: f16[37,70], %b: f16[70,50]) -> output %y {\n"
		 "  %y = matmul %a, %b {wide=true} : f32[37,50]\n}\n"},
		{"matmul of a transposed operand", "graph train(%a: f16[70,37], %b: f16[70,50]) -> output %y {\n"
		 "  %y = matmul %a, %b {ta=true wide=true} : f32[37,50]\n}\n"},
		{"conv2d", "graph train(%x: f16[3,34,5,6]@2301, %w: f16[20,34,3,3]@2310) -> output %y {\n"
		 "  %y = conv2d %x, %w {pad=[1,1] wide=true} : f32[3,20,5,6]@2301\n}\n"},
		{"conv2d.dx", "graph train(%g: f16[3,20,5,6]@2301, %w: f16[20,34,3,3]@2310) -> output %y {\n"
		 "  %y = conv2d.dx %g, %w {pad=[1,1] wide=true} : f32[3,34,5,6]@2301\n}\n"},
		{"conv2d.dw", "graph train(%x: f16[8,20,4,6]@2301, %g: f16[8,33,4,6]@2301) -> output %y {\n"
		 "  %y = conv2d.dw %x, %g {pad=[1,1] wide=true} : f32[33,20,3,3]@2310\n}\n"},
	};

	for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++)
		test_overflow(a, d, arch, cases[i / 2].what,
		              arena_printf(a, "module narrow {batch=1 stage=lowered hash=0000000000000000}\n%s",
		                           cases[i / 2].text), i % 2);
}

/* f16 in, f16 out. */
static void
test_own(Arena *a, Diags *d, const char *arch)
{
	Module *m = planned(a, d, arch, "module narrow {batch=1 stage=lowered hash=0000000000000000}\n"
		"graph train(%a: f16[70,66], %b: f16[66,50]) -> output %y {\n  %y = matmul %a, %b : f16[70,50]\n}\n");

	check(!strstr(m->graph.at[0]->group.at[0].kernel, ",f16}"),
	      "f32 sums of a product that the model writes in f16", arch);
}

/* ---------------------------------------------------------------- the emulation */
static float
dot_of(const uint16_t even_odd[2][2], const uint16_t other[2][2], float c)
{
	_Alignas(64) uint8_t config[64] = {[0] = 1, [16] = 4, [18] = 8, [20] = 4, [48] = 1, [49] = 1, [50] = 2};
	float r;

	/* one row, two pairs of k, one column */
	emulate_ldtilecfg(config);
	emulate_tileloadd64(0, (const uint8_t *)&c, 64);
	emulate_tileloadd64(1, (const uint8_t *)even_odd, 64);
	emulate_tileloadd64(2, (const uint8_t *)other, 4);
	emulate_tdpbf16ps(0, 1, 2);
	emulate_tilestored64(0, (uint8_t *)&r, 64);
	emulate_tilerelease();
	return r;
}

static double
fma_half(double a, double b, double c)
{
	HalfNumber x[8] = {(HalfNumber)a}, y[8] = {(HalfNumber)b}, sum[8] = {(HalfNumber)c};

	emulate_fma_f16(sum, x, y, 8);
	return (double)sum[0];
}

static void
test_emulation(void)
{
	enum {
		ONE = 0x3f80,
		BIG = 0x4c80 /* 2^26 */,
		MINUS_BIG = 0xcc80,
		TINY = 0x0040 /* subnormal */,
		SMALL = 0x0080 /* 2^-126 */,
		HALF = 0x3f00
	};
	const uint16_t ones[2][2] = {{ONE, ONE}, {ONE, ONE}};

	check(dot_of((const uint16_t[2][2]){{ONE, ONE}, {ONE, ONE}}, ones, 0.5f) == 4.5f, "a sum", "tdpbf16ps");
	/* even: 2^26 + 1 is 2^26; odd: -2^26 + 1 is -2^26 (rounded to even); the sum in order of k would be 2 */
	check(dot_of((const uint16_t[2][2]){{BIG, MINUS_BIG}, {ONE, ONE}}, ones, 0) == 0, "even and odd apart",
	      "tdpbf16ps");
	check(dot_of((const uint16_t[2][2]){{TINY, 0}, {0, 0}}, (const uint16_t[2][2]){{BIG, 0}, {0, 0}}, 0) == 0,
	      "subnormal operands are zero", "tdpbf16ps");
	check(dot_of((const uint16_t[2][2]){{SMALL, 0}, {0, 0}}, (const uint16_t[2][2]){{HALF, 0}, {0, 0}}, 0) == 0,
	      "no subnormal result", "tdpbf16ps");
	/* the square of 1 + 2^-10, less 1 + 2^-9, is 2^-20 exactly */
	check(fma_half(0x1.004p0, 0x1.004p0, -0x1.008p0) == 0x1p-20, "the product is not rounded", "fma_f16");
	check(fma_half(0x1.004p0, 1, 2048) == 2050, "2^-10 above the middle of two numbers", "fma_f16");
	check(fma_half(1, 1, 2048) == 2048, "to even in the middle", "fma_f16");
	check(fma_half(0x1p-12, 0x1p-12, 2048 + 2) == 2050, "a product too small to count", "fma_f16");
	check(fma_half(0x1p-12, 0x1p-12, 0x1p-14) == 0x1.004p-14, "a subnormal product counts", "fma_f16");
	check(fma_half(0x1p-12, -0x1p-13, 0x1p-23) == 0x1p-23 && fma_half(0x1p-12, 0x1.8p-13, 0x1p-23) == 0x1.8p-23,
	      "half of the least number", "fma_f16");
	check(isinf(fma_half(65504, 1, 65504)) && fma_half(65504, 1, 15) == 65504, "what is too large", "fma_f16");
}

/* ---------------------------------------------------------------- conversions */
/* Every number of f16 to f32; f32 to f16: each of these, its two neighbours, the middle to the next and its two. */
static void
test_conversions(Arena *a, Diags *d, const char *arch)
{
	enum { HALVES = 1 << 16, KINDS = 6 };
	Module *m = planned(a, d, arch,
	                    "module narrow {batch=1 stage=lowered hash=0000000000000000}\n"
	                    "graph train(%h: f16[65536], %f: f32[65536,6]) -> output %w, output %n {\n"
	                    "  %w = cast %h : f32[65536]\n"
	                    "  %n = cast %f : f16[65536,6]\n"
	                    "}\n");
	const Graph *g = m->graph.at[0];

	Jit *j;
	Call *call = loaded(m, arch, &j);
	RtRun run = {.arena = aligned_alloc(64, (size_t)(m->arena_bytes + 63) / 64 * 64), .n = 1, .batch = 1};
	HalfNumber *h = (HalfNumber *)(void *)(run.arena + val_info(g, g->input.at[0].v)->offset);
	uint32_t *f = (uint32_t *)(void *)(run.arena + val_info(g, g->input.at[1].v)->offset);
	int wrong = 0, narrowed = 0;

	for (int i = 0; i < HALVES; i++) {
		uint16_t bits = (uint16_t)i;

		memcpy(&h[i], &bits, 2);
		float x = (float)h[i], next;
		HalfNumber after = h[i];

		bits++;
		memcpy(&after, &bits, 2);
		next = (float)after;
		float middle = isfinite(x) && isfinite(next) ? x / 2 + next / 2 : 65520;
		uint32_t u[2];

		memcpy(&u[0], &x, 4);
		memcpy(&u[1], &middle, 4);
		for (int k = 0; k < KINDS; k++)
			f[i * KINDS + k] = u[k / 3] + (uint32_t)(k % 3) - 1;
	}
	call(&run);
	const uint32_t *w = (const uint32_t *)(const void *)(run.arena + val_info(g, g->result.at[0].v)->offset);
	const uint16_t *n = (const uint16_t *)(const void *)(run.arena + val_info(g, g->result.at[1].v)->offset);

	for (int i = 0; i < HALVES; i++) {
		float x = (float)h[i], got;

		memcpy(&got, &w[i], 4);
		wrong += isnan(x) ? !isnan(got) || signbit(x) != signbit(got) : memcmp(&x, &got, 4) != 0;
		for (int k = i * KINDS; k < (i + 1) * KINDS; k++) {
			uint16_t want;

			memcpy(&x, &f[k], 4);
			HalfNumber narrow = (HalfNumber)x;

			memcpy(&want, &narrow, 2);
			narrowed += isnan(x) ? (n[k] & 0x7c00) != 0x7c00 || !(n[k] & 0x200) || n[k] >> 15 != want >> 15
			                     : n[k] != want;
		}
	}
	check(!wrong, arena_printf(a, "%d numbers of f16 became other numbers", wrong), arch);
	check(!narrowed, arena_printf(a, "%d numbers of f32 became other numbers of f16", narrowed), arch);
	free(run.arena);
	jit_close(j);
}

int
main(void)
{
	Diags d;
	Arena *a = arena_new();
	const char *arch = "emulated-fp16";

	setvbuf(stdout, NULL, _IOLBF, 0);
	ir_init();
	diags_init(&d, a, stderr);
	test_instructions(a, &d);
	test_foreign_text(a, &d);
	test_same_code(a, &d);
	test_conversions(a, &d, "x86-64");
	test_conversions(a, &d, "x86-64-v2");
	if (arch_runs(arch_named("sapphirerapids-noamx")))
		arch = "sapphirerapids-noamx";
	if (arch_runs(arch_named(arch))) {
		test_bound(a, &d, arch, 2304, sqrt(2. / 2304), false, 1e-3);
		test_bound(a, &d, arch, 2304, sqrt(2. / 2304), true, 1e-3);
		test_bound(a, &d, arch, 100, 1, false, 1e-3);
		test_bound(a, &d, arch, 2304, 0x1p-18, false, 2e-2); /* products below 2^-14 */
		test_overflows(a, &d, arch);
		test_own(a, &d, arch);
		if (strcmp(arch, "emulated-fp16"))
			test_overflows(a, &d, "emulated-fp16");
		test_emulation();
	} else {
		printf("this CPU has no vectors of 64 bytes with bf16: nothing was run\n");
	}
	printf("%d passed, %d failed\n", checks - failures, failures);
	arena_free(a);
	return failures != 0;
}
