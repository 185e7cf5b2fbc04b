/* algos.c: the tables of algorithms and of engines, and the one choice among them.
 *
 * In: nothing.   Out: a line per failure, counts, exit 1 if any failed. That
 *  - a row says all that its kind of row must say, and a variant is one that --disable takes;
 *  - what a row prints it reads, and no other row does;
 *  - each CPU and type has its engine, and short or odd sums have f32's;
 *  - fuse and precision are told of the kernel that select would choose, with the same variants switched off;
 *  - what is possible is no matter of what pays: a tuning file may ask for a slow kernel, never for a wrong one;
 *  - what is worth trying (Target.tuning.space) is possible;
 *  - what is chosen without a tuning file follows from the row of the architecture. */
#include "harness.h"
#include "../../codegen/cpu/contract/algo.h"
#include <stdlib.h>
#include <string.h>

static int checks, failures;

static void
check(bool ok, const char *what, const char *which)
{
	checks++;
	failures += !ok;
	if (!ok)
		printf("FAIL %s: %s\n", which, what);
}

/* ---------------------------------------------------------------- rows */
typedef struct Row { const char *name; const Algo *row; bool variant; } Row;
#define ALGO(name) {#name, &algo_##name, false},
#define VARIANT(name) {#name, &algo_##name, true},
static const Row rows[] = {
#include "../../codegen/cpu/contract/algos.def"
};
#undef ALGO
#undef VARIANT
enum { ROWS = sizeof rows / sizeof *rows };

static bool
listed(const char *variant)
{
	for (const char *const *v = algo_variants; *v; v++)
		if (!strcmp(*v, variant))
			return true;
	return false;
}

static void
test_rows(Arena *a)
{
	int last = 0;

	for (int i = 0; i < ROWS; i++) {
		const Algo *r = rows[i].row;
		bool kernel = r->emit != NULL;

		last = rows[i].variant ? last : i;
		check(r->family != FAMILY_none && r->doc && r->offer, "family, doc, offer", rows[i].name);
		check(r->engines & ENGINES_F32, "an engine for whatever has none of its own", rows[i].name);
		check(kernel == (space_family[r->family].nparam && r->why_not && r->pieces && r->ops[0] != OP_none),
		      "a kernel of its own has operators, parameters, what forbids them, tasks", rows[i].name);
		check(rows[i].variant == (r->time && r->work && r->chosen), "a variant is weighed", rows[i].name);
		check(listed(rows[i].name) == rows[i].variant, "--disable", rows[i].name);
		check(!rows[i].variant || !strcmp(rows[i].name, space_family[r->family].text),
		      "a variant's name is its kernels'", rows[i].name);
		check(!r->write || r->read, "what is written is read", rows[i].name);
		check(!r->keeps || r->panels, "what is kept is panels", rows[i].name);
		check(!r->way == !(r->loads || r->cost), "operands that it makes as it loads them", rows[i].name);
		if (!kernel)
			continue;
		GemmParams p = {.algo = r,
		                .mr = 5,
		                .nv = 2,
		                .lanes = 8,
		                .parts = 3,
		                .band = 2,
		                .images = 4,
		                .pack = true,
		                .depth = {8, 4, 3, 24, 5, 6, 48, 1, 7}},
		           q;
		const char *text = gemm_text(a, &p);

		check(gemm_parse(text, &q) && q.algo == r && !strcmp(gemm_text(a, &q), text), "it reads what it prints",
		      text);
		for (int k = 0; k < ALGO_OPS && r->ops[k] != OP_none; k++)
			check(space_family_of("cpu", op_info[r->ops[k]].name, text) == r->family,
			      "tune.def names its operator", text);
	}
	check(!gemm_parse("plain", &(GemmParams){0}), "parameters", "plain");
	check(!strcmp(rows[last].name, "plain") && rows[last].row->ops[0] == OP_none, "the last takes what is left",
	      rows[last].name);
	check(listed("prepack") && !listed("brgemm"), "--disable", "prepack");
}

/* ---------------------------------------------------------------- engines */
static Module *
parsed(Arena *a, Diags *d, const char *arch, const char *graph)
{
	const char *text = arena_printf(a, "module algos {batch=1 stage=lowered hash=0000000000000000}\n%s", graph);
	Module *m = module_parse(a, d, "algos", text, strlen(text));

	if (!m)
		die("the text of a module does not parse:\n%s", text);
	m->arch = arch;
	return m;
}

static const Op *
contraction(const Graph *g)
{
	for (uint32_t i = 0; i < g->op.n; i++)
		if (op_has((OpKind)g->op.at[i].kind, T_CONTRACT))
			return &g->op.at[i];
	die("no contraction");
}

static const char *
matmul_text(Arena *a, const char *type, int k, const char *attrs)
{
	return arena_printf(a, "graph train(%%x: %s[64,%d], %%w: %s[%d,64]) -> output %%y {\n"
	                       "  %%y = matmul %%x, %%w {%s}%s\n}\n", type, k, type, k, attrs,
	                    strcmp(type, "f32") && *attrs ? " : f32[64,64]" : "");
}

static void
test_engines(Arena *a, Diags *d)
{
	/* slow: what is possible too, but takes longer; FMA: nothing else is */
	static const struct { const char *arch, *type; int k; const char *attrs; EngineId engine, slow; } cases[] = {
		{"sapphirerapids", "bf16", 64, "wide=true", ENGINE_AMX, ENGINE_FMA},
		{"sapphirerapids", "bf16", 16, "wide=true", ENGINE_AMX, ENGINE_FMA},
		{"sapphirerapids", "bf16", 14, "wide=true", ENGINE_FMA, ENGINE_AMX},
		{"sapphirerapids", "bf16", 63, "wide=true", ENGINE_FMA, ENGINE_FMA},
		{"sapphirerapids", "f16", 64, "wide=true", ENGINE_F16, ENGINE_FMA},
		{"sapphirerapids", "f16", 64, "", ENGINE_FMA, ENGINE_FMA},
		{"sapphirerapids-noamx", "f16", 64, "wide=true", ENGINE_F16, ENGINE_FMA},
		{"sapphirerapids-noamx", "bf16", 64, "wide=true", ENGINE_FMA, ENGINE_FMA},
		{"emulated-amx", "bf16", 14, "wide=true", ENGINE_AMX, ENGINE_FMA},
		{"znver4", "bf16", 64, "wide=true", ENGINE_PAIRS, ENGINE_FMA},
		{"znver4", "bf16", 63, "wide=true", ENGINE_PAIRS, ENGINE_FMA},
		{"znver4", "bf16", 7, "wide=true", ENGINE_FMA, ENGINE_FMA},
		{"znver4", "f16", 64, "wide=true", ENGINE_FMA, ENGINE_FMA},
		{"znver5", "bf16", 64, "wide=true", ENGINE_PAIRS, ENGINE_FMA},
		{"znver4", "f32", 64, "", ENGINE_FMA, ENGINE_FMA},
		{"x86-64-v3", "bf16", 64, "wide=true", ENGINE_FMA, ENGINE_FMA},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *text = matmul_text(a, cases[i].type, cases[i].k, cases[i].attrs);
		const Graph *g = parsed(a, d, cases[i].arch, text)->graph.at[0];
		const Op *op = contraction(g);
		PlanCx cx = {.arch = arch_named(cases[i].arch), .half = gemm_half(g, op)};
		GemmParams p = gemm_plan(g, op, &cx);

		check(p.engine == cases[i].engine, cases[i].arch,
		      arena_printf(a, "%s, %d steps: %s", cases[i].type, cases[i].k, gemm_text(a, &p)));
		check(!gemm_why_not(g, op, &cx, &p), "what is chosen is possible", gemm_text(a, &p));
		for (int e = 0; e < ENGINE_COUNT; e++) {
			GemmParams other = p;

			if (!(p.algo->engines >> e & 1))
				continue;
			engine_set(g, op, (EngineId)e, &other);
			check(!gemm_why_not(g, op, &cx, &other) ==
			              (e == (int)p.engine || (e && e == (int)cases[i].slow)),
			      "another engine", gemm_text(a, &other));
		}
	}
	/* of an odd number of channels the last stands in a pair with a zero, unless they are few */
	for (int n = 7; n <= 39; n += 32) {
		const char *text = arena_printf(a,
		                                "graph train(%%x: bf16[2,%d,8,8]@2301, %%w: bf16[16,%d,1,1]@2310) "
		                                "-> output %%y {\n"
		                                "  %%y = conv2d %%x, %%w {wide=true} : f32[2,16,8,8]@2301\n}\n", n, n);
		const Graph *g = parsed(a, d, "znver4", text)->graph.at[0];
		PlanCx cx = {.arch = arch_named("znver4"), .half = DT_bf16};
		GemmParams p = gemm_plan(g, contraction(g), &cx);

		check(p.engine == (n > 8 ? ENGINE_PAIRS : ENGINE_FMA), "channels", gemm_text(a, &p));
	}
}

/* ---------------------------------------------------------------- by machine */
static const char *
chosen_for(Arena *a, Diags *d, const char *arch, const char *graph)
{
	const Graph *g = parsed(a, d, arch, graph)->graph.at[0];
	GemmParams p = gemm_plan(g, contraction(g), &(PlanCx){.arch = arch_named(arch)});

	return gemm_text(a, &p);
}

/* One unit for products of 64 bytes, and two. Columns that fill no whole vector: half vectors, of which one unit
 * multiplies two at once, by Winograd's algorithm too; two units would be half idle. Weight gradients: wide tiles over
 * sums whose operands stay in L1, few images of a long row of pixels, several short rows; transposed operands are
 * copied; Strassen pays for longer sides. */
static void
test_machines(Arena *a, Diags *d)
{
	static const char dw[] = "graph train(%%x: f32[32,%d,%d,%d]@2301, %%g: f32[32,%d,%d,%d]@2301) -> output %%y {\n"
		"  %%y = conv2d.dw %%x, %%g : f32[%d,%d,1,1]@2310\n}\n";
	static const char product[] = "graph train(%%x: f32[%d,%d], %%w: f32[%d,%d]) -> output %%y {\n"
		"  %%y = matmul %%x, %%w {ta=true}\n}\n";
	static const char image[] = "graph train(%%x: f32[8,%d,96,96]@2301, %%w: f32[%d,%d,%d,%d]@2310) "
		"-> output %%y {\n"
		"  %%y = conv2d %%x, %%w {pad=[1,1]} : f32[8,%d,96,96]@2301\n}\n";
	/* of the CPUs with vectors of 32 bytes: a copied pass of 128 sums */
	const struct { const char *graph, *narrow; } narrow[] = {
		{arena_printf(a, dw, 256, 32, 32, 64, 32, 32, 64, 256),
		 "brgemm{mr=6,nv=2,lanes=8,parts=4,band=1,images=8,copy=1}"},
		{arena_printf(a, dw, 512, 4, 4, 2048, 4, 4, 2048, 512),
		 "brgemm{mr=6,nv=2,lanes=8,parts=1,band=1,copy=1}"},
		{arena_printf(a, product, 1024, 768, 1024, 768), "brgemm{mr=6,nv=2,lanes=8,outer=row,pack=1,copy=1}"},
		{arena_printf(a, image, 80, 40, 80, 3, 3, 40), "winograd{mr=6,nv=2,lanes=8}"},
	};
	const struct { const char *graph, *one, *two; } cases[] = {
		{arena_printf(a, image, 80, 40, 80, 3, 3, 40), "winograd{mr=8,nv=3,lanes=8}",
		 "winograd{mr=6,nv=3,lanes=16}"},
		{arena_printf(a, image, 20, 50, 20, 3, 3, 50), "winograd{mr=6,nv=4,lanes=8}",
		 "winograd{mr=6,nv=4,lanes=16}"},
		{arena_printf(a, image, 12, 50, 12, 3, 3, 50), "brgemm{mr=6,nv=4,lanes=8,outer=row,pack=1}",
		 "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1}"},
		{arena_printf(a, image, 12, 60, 12, 3, 3, 60), "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1}",
		 "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1}"},
		{arena_printf(a, dw, 256, 32, 32, 64, 32, 32, 64, 256), "brgemm{mr=6,nv=4,lanes=16,parts=4,band=1}",
		 "brgemm{mr=6,nv=4,lanes=16,parts=4,band=1,images=8,copy=1}"},
		{arena_printf(a, dw, 512, 4, 4, 2048, 4, 4, 2048, 512), "brgemm{mr=6,nv=4,lanes=16,parts=1,band=4}",
		 "brgemm{mr=6,nv=4,lanes=16,parts=1,band=2,copy=1}"},
		{arena_printf(a, dw, 64, 8, 8, 32, 8, 8, 32, 64), "brgemm{mr=12,nv=2,lanes=16,parts=4,band=5}",
		 "brgemm{mr=12,nv=2,lanes=16,parts=4,band=1,copy=1}"},
		{arena_printf(a, product, 1024, 256, 1024, 768), "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1}",
		 "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1,copy=1,ahead=32}"},
		{arena_printf(a, product, 1024, 512, 1024, 512), "strassen{mr=6,nv=4,lanes=16}",
		 "brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1,copy=1,next=1}"},
		{arena_printf(a, product, 1024, 3072, 1024, 768), "strassen{mr=6,nv=4,lanes=16}",
		 "strassen{mr=6,nv=4,lanes=16,next=1}"},
		{arena_printf(a, product, 4096, 4096, 4096, 2048), "strassen{mr=6,nv=4,lanes=16}",
		 "strassen{mr=6,nv=4,lanes=16,next=1}"},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *one = chosen_for(a, d, "znver4", cases[i].graph);
		const char *two = chosen_for(a, d, "sapphirerapids-noamx", cases[i].graph);

		check(!strcmp(one, cases[i].one), "chosen for znver4", one);
		check(!strcmp(two, cases[i].two), "chosen for sapphirerapids-noamx", two);
	}
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
		static const char *const arches[] = {"x86-64-v3", "haswell", "skylake",
		                                     "znver2", "znver3", "alderlake"};

		for (size_t k = 0; k < sizeof arches / sizeof *arches; k++) {
			const char *text = chosen_for(a, d, arches[k], narrow[i].graph);

			check(!strcmp(text, narrow[i].narrow), arena_printf(a, "chosen for %s", arches[k]), text);
		}
	}
}

/* ---------------------------------------------------------------- what is possible, and what pays */
static const char filter[] = "graph train(%%x: f32[%d,%d,%d,%d]@2301, %%w: f32[16,%d,3,3]@2310) -> output %%y {\n"
	"  %%y = conv2d %%x, %%w {pad=[1,1]%s} : f32[%d,16,%d,%d]@2301\n}\n";

static const char *
asked(Arena *a, const Graph *g, const Op *op, const char *arch, const char *text)
{
	SelectCx select = {.arch = arch, .tuned = text};
	GemmParams p = gemm_plan(g, op, &(PlanCx){arch_named(arch), gemm_half(g, op), &select, &select, false});

	check(!select.misfit == !strcmp(gemm_text(a, &p), text), "a kernel that fits is taken", text);
	return select.misfit;
}

static void
test_possible(Arena *a, Diags *d)
{
	const char *arch = "x86-64-v3", *winograd = "winograd{mr=6,nv=2,lanes=8}";
	const Graph *small = parsed(a, d, arch, arena_printf(a, filter, 2, 8, 3, 3, 8, "", 2, 3, 3))->graph.at[0];
	const char *two = arena_printf(a, filter, 2, 8, 8, 8, 8, " stride=[2,2]", 2, 4, 4);
	const Graph *strided = parsed(a, d, arch, two)->graph.at[0];
	const Graph *odd = parsed(a, d, arch, arena_printf(a, filter, 2, 7, 8, 8, 7, "", 2, 8, 8))->graph.at[0];
	const Graph *product = parsed(a, d, arch, matmul_text(a, "f32", 64, ""))->graph.at[0];
	const Graph *grouped = parsed(a, d, arch,
	                              "graph train(%x: f32[2,16,8,8]@2301, %w: f32[16,1,3,3]@2310) -> output %y {\n"
	                              "  %y = conv2d %x, %w {pad=[1,1] groups=16} : f32[2,16,8,8]@2301\n}\n")
	                               ->graph.at[0];
	const char *depthwise = "depthwise{cols=3,images=1,block=%d,rows=5,strip=2,chunk=16,band=1,lanes=8}";
	PlanCx cx = {.arch = arch_named(arch)};
	const char *why;

	check(gemm_plan(small, contraction(small), &cx).algo->family == FAMILY_cpu_brgemm, "does not pay", winograd);
	check(!asked(a, small, contraction(small), arch, winograd), "slow, but possible", winograd);
	check(!asked(a, strided, contraction(strided), arch, winograd), "of stride 2", winograd);
	why = asked(a, strided, contraction(strided), arch, "winograd{mr=6,nv=2,lanes=8,span=8}");
	check(why && strstr(why, "one row or column"), "of both sides", "span=8");
	why = asked(a, odd, contraction(odd), arch, winograd);
	check(why && strstr(why, "fill no vector"), "of seven channels", winograd);
	why = asked(a, product, contraction(product), arch, winograd);
	check(why && strstr(why, "for convolutions"), "of a product", winograd);
	why = asked(a, product, contraction(product), arch, "strassen{mr=6,nv=2,lanes=8}");
	check(!why, "short, but possible", "strassen");
	why = asked(a, small, contraction(small), arch, "strassen{mr=6,nv=2,lanes=8}");
	check(why && strstr(why, "halve"), "of a convolution", "strassen");
	why = asked(a, product, contraction(product), arch, "brgemm{mr=6,nv=2,lanes=8,parts=1,band=1}");
	check(why && strstr(why, "takes parameters such as"), "parameters of another operator", "brgemm");
	why = asked(a, product, contraction(product), arch, "brgemm{mr=65,nv=1,lanes=8,outer=row,pack=1}");
	check(why && strstr(why, "mr <= 64"), "a tile beyond the tables of microkernels", "brgemm");
	why = asked(a, product, contraction(product), arch, "brgemm{mr=6,nv=2,lanes=16,outer=row,pack=1}");
	check(why && strstr(why, "lanes <= lanes_max"), "wider vectors", "brgemm");
	why = asked(a, grouped, contraction(grouped), arch, "brgemm{mr=6,nv=2,lanes=8,outer=row,pack=1}");
	check(!why, "groups of one channel, slow, but possible", "brgemm");
	why = asked(a, grouped, contraction(grouped), arch, winograd);
	check(why && strstr(why, "groups"), "of groups", winograd);
	why = asked(a, grouped, contraction(grouped), arch, arena_printf(a, depthwise, 8));
	check(!why, "parameters that a file chooses", "depthwise");
	why = asked(a, grouped, contraction(grouped), arch, arena_printf(a, depthwise, 12));
	check(why && strstr(why, "whole"), "half a vector of channels", "depthwise");
	why = asked(a, small, contraction(small), arch, arena_printf(a, depthwise, 8));
	check(why != NULL, "of no groups", "depthwise");
}

/* ---------------------------------------------------------------- what is worth trying */
typedef struct Tried {
	Arena *a;
	const Graph *g; const Op *op; const char *arch, *base;
	int n, most, bits[3];
	bool met;                /* the kernel that is there */
} Tried;

/* Each is a record that is taken, and the kernel that stands there has its own bits. */
static bool
try_one(void *cx, const char *kernel, BitsClass bits)
{
	Tried *t = cx;

	check(!asked(t->a, t->g, t->op, t->arch, kernel), "is tried, and does not fit", kernel);
	check(strcmp(kernel, t->base) || bits == BITS_same, "has other bits than itself", kernel);
	t->met |= !strcmp(kernel, t->base);
	t->bits[bits]++;
	return ++t->n < t->most;
}

static bool
no_variant(void *cx, const char *variant)
{
	(void)cx, (void)variant;
	return false;
}

static void
test_space(Arena *a, Diags *d)
{
	static const char dw[] = "graph train(%x: f32[6,8,8,8]@2301, %g: f32[6,16,8,8]@2301) -> output %y {\n"
		"  %y = conv2d.dw %x, %g {pad=[1,1]} : f32[16,8,3,3]@2310\n}\n";
	static const char each[] = "graph train(%x: f32[6,64,7,10]@2301, %w: f32[64,1,3,3]@2310) -> output %c {\n"
		"  %c = conv2d %x, %w {pad=[1,1] groups=64} : f32[6,64,7,10]@2301\n}\n";
	static const char each_dw[] = "graph train(%x: f32[6,64,8,8]@2301, %g: f32[6,64,8,8]@2301) -> output %y {\n"
		"  %y = conv2d.dw %x, %g {pad=[1,1] groups=64} : f32[64,1,3,3]@2310\n}\n";
	const struct { const char *name, *arch, *graph; bool variant; } cases[] = {
		{"a product", "x86-64-v3", matmul_text(a, "f32", 64, ""), true},
		{"a transposed product", "x86-64-v4", matmul_text(a, "f32", 64, "ta=true"), true},
		{"a product of pairs", "znver4", matmul_text(a, "bf16", 64, "wide=true"), false},
		{"a product by tiles", "sapphirerapids", matmul_text(a, "bf16", 64, "wide=true"), false},
		{"3x3 filters", "x86-64-v3", arena_printf(a, filter, 2, 8, 8, 8, 8, "", 2, 8, 8), true},
		{"their gradient", "x86-64-v3", dw, true},
		{"a filter for each channel", "x86-64-v3", each, false},
		{"its gradient", "x86-64-v3", each_dw, false},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const Graph *g = parsed(a, d, cases[i].arch, cases[i].graph)->graph.at[0];
		const Op *op = contraction(g);
		SelectCx select = {.arch = cases[i].arch, .steps = 3, .threads = 2};
		PlanCx cx = {.arch = arch_named(cases[i].arch), .half = gemm_half(g, op), .select = &select};
		GemmParams p = gemm_plan(g, op, &cx);
		Tried t = {.a = a, .g = g, .op = op, .arch = cases[i].arch, .base = gemm_text(a, &p), .most = 1 << 20};
		Tried u = t, v = t;

		gemm_space(g, op, &cx, t.base, try_one, &t);
		check(t.n > 20 && t.met, "few kernels are tried", cases[i].name);
		check(t.bits[BITS_same] > 0 && !t.bits[BITS_rounds], "classes of bits", cases[i].name);
		u.most = 7;
		gemm_space(g, op, &cx, u.base, try_one, &u);
		check(u.n == 7, "it ends when it is told to", cases[i].name);
		select.may = no_variant;
		gemm_space(g, op, &cx, v.base, try_one, &v);
		check(v.n > 0 && (v.n < t.n) == cases[i].variant, "variants that are switched off", cases[i].name);
		gemm_space(g, op, &cx, "plain", try_one, &u);
		check(u.n == 7, "a kernel without parameters has no others", cases[i].name);
	}
}

/* ---------------------------------------------------------------- who asks before select */
static bool
no_winograd(void *cx, const char *variant)
{
	(void)cx;
	return strcmp(variant, "winograd") != 0;
}

/* What fuse and precision are told is of the kernel that select chooses under the same switches. */
static void
test_before(Arena *a, Diags *d)
{
	static const struct { const char *arch; DType narrow; } cases[] = {
		{"x86-64-v3", DT_none}, {"znver4", DT_none}, {"znver4", DT_bf16},
	};
	const Target *t = target_named("cpu");

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int off = 0; off < 2; off++) {
			const char *arch = cases[i].arch,
			           *text = arena_printf(a, filter, 32, 64, 16, 16, 64, "", 32, 16, 16);
			Graph *g = parsed(a, d, arch, text)->graph.at[0];
			const Op *op = contraction(g);
			SelectCx before = {.arch = arch, .narrow = cases[i].narrow, .may = off ? no_winograd : NULL},
			         cx = before;
			Prologue p = {0};

			vec_push(a, &g->group, ((Group){.name = "g", .workspace_offset = -1, .prepacked_offset = -1}));
			t->prologue(t, g, op, 0, &before, &p);
			check(!p.why && (p.times > 1) == !off && p.copied == off, "what fuse is told", arch);
			check(before.looked.n == 0, "fuse leaves no verdict of kernels", arch);
			check(t->narrow.packs(t, g, op, &before) == (!off || cases[i].narrow != DT_none),
			      "what precision is told", arch);
			g->op.at[op - g->op.at].group = 0;
			cx.narrow = DT_none;
			check(!t->select(t, g, 0, &cx) && cx.looked.n == 1 && cx.looked.at[0].chosen == !off,
			      "what select says", arch);
		}
}

int
main(void)
{
	Arena *a = arena_new();
	Diags d;

	ir_init();
	diags_init(&d, a, stdout);
	test_rows(a);
	test_engines(a, &d);
	test_machines(a, &d);
	test_possible(a, &d);
	test_space(a, &d);
	test_before(a, &d);
	printf("%d checks, %d failures\n", checks, failures);
	arena_free(a);
	return failures != 0;
}
