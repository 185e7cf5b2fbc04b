/* algos.c: the table of CUDA's algorithms of contractions, and the one choice among them. Needs no device.
 *
 * In: nothing.   Out: a line per failure, counts, exit 1 if any failed. That
 *  - a row says all that its kind of row must say, and a variant is one that --disable takes;
 *  - each architecture and type has its kernel, and of those in tiles no two offer themselves for the same numbers;
 *  - a tuning file's kernel is taken if it is possible, and else said why not, never wrong;
 *  - what is worth trying (Target.tuning.space) is possible. */
#include "../../codegen/codegen.h"
#include "../../codegen/cuda/contract/algo.h"
#include <stdio.h>
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
typedef struct Row { const char *name; const CuAlgo *row; bool variant; } Row;
#define ALGO(name) {#name, &cu_algo_##name, false},
#define VARIANT(name) {#name, &cu_algo_##name, true},
static const Row rows[] = {
#include "../../codegen/cuda/contract/algos.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool
listed(const char *variant)
{
	for (const char *const *v = cu_variants; *v; v++)
		if (!strcmp(*v, variant))
			return true;
	return false;
}

static void
test_rows(Arena *a)
{
	static const char *const archs[] = {"sm_75", "sm_80", "sm_89", "sm_90", "sm_90a"};
	static const DType types[] = {DT_f32, DT_f16, DT_bf16};

	for (int i = 0; i < ROWS; i++) {
		const CuAlgo *r = rows[i].row;

		check(!strcmp(space_family[r->family].text, rows[i].name), "its family is called so", rows[i].name);
		check(r->doc && (r->tiles || r->take || r->offer), "doc, and how it comes to be chosen", rows[i].name);
		check(cu_algo_of(r->family) == r, "is found by its family", rows[i].name);
		check(listed(rows[i].name) == rows[i].variant, "--disable", rows[i].name);
		check(!rows[i].variant || !r->offer || r->chosen, "a variant says why it was chosen", rows[i].name);
		check(!r->tiles || (r->why_not && r->emit && r->reduces), "kernels in tiles", rows[i].name);
		check(!r->take || (r->emit && !r->tiles), "a row that takes records itself", rows[i].name);
		check(!r->tiles || space_tunable(r->family), "a tuning file has parameters to choose", rows[i].name);
	}
	check(rows[ROWS - 1].row == &cu_algo_plain && !cu_algo_plain.why_not, "the last takes whatever comes", "plain");
	check(!cu_algo_of(FAMILY_cuda_columns) && !cu_algo_of(FAMILY_none), "no contraction", "columns");
	check(listed("prepack"), "--disable", "prepack");
	for (size_t k = 0; k < sizeof archs / sizeof *archs; k++)
		for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
			int n = 0;

			for (int i = 0; i < ROWS; i++)
				n += !rows[i].variant && rows[i].row->tiles && rows[i].row->offer
				     && !rows[i].row->why_not(a, types[t], archs[k]);
			check(n == 1, "one kernel in tiles for its numbers",
			      arena_printf(a, "%s on %s", dtype_info[types[t]].name, archs[k]));
		}
}

/* ---------------------------------------------------------------- the choice */
static Graph *
product(Arena *a, Diags *d, const char *type, int n)
{
	const char *text = arena_printf(a, "module algos {stage=planned arena_bytes=4096}\n"
		"graph g(%%x: %s[%d,%d] at 0, %%w: %s[%d,%d] at 0) -> %%y {\n group #0 a \"map\"\n"
		" %%y = matmul %%x, %%w #0 at 0\n}\n",
		type, n, n, type, n, n);
	Module *m = module_parse(a, d, "algos", text, strlen(text));

	if (!m) {
		printf("FAIL the text of a module does not parse:\n%s", text);
		return NULL;
	}
	return m->graph.at[0];
}

static bool
all(void *cx, const char *variant)
{
	(void)cx, (void)variant;
	return true;
}

static bool
none(void *cx, const char *variant)
{
	(void)cx, (void)variant;
	return false;
}

static void
test_defaults(Arena *a, Diags *d)
{
	static const struct { const char *arch, *type; int n; FamilyId family; } cases[] = {
		{"sm_75", "f16", 64, FAMILY_cuda_mma}, {"sm_75", "bf16", 64, FAMILY_cuda_ffma},
		{"sm_75", "f32", 64, FAMILY_cuda_ffma},
		{"sm_80", "bf16", 64, FAMILY_cuda_mma}, {"sm_80", "f32", 2048, FAMILY_cuda_ffma},
		{"sm_90", "bf16", 2048, FAMILY_cuda_mma}, {"sm_90a", "bf16", 2048, FAMILY_cuda_wgmma},
		{"sm_90a", "bf16", 32, FAMILY_cuda_mma}, {"sm_90a", "f32", 2048, FAMILY_cuda_ffma},
		{"sm_80", "f64", 64, FAMILY_cuda_plain},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *which = arena_printf(a, "%s of %d on %s", cases[i].type, cases[i].n, cases[i].arch);
		SelectCx cx = {.arch = cases[i].arch, .may = all};
		Graph *g = product(a, d, cases[i].type, cases[i].n);
		bool takes = g && cu_algo_select(g, 0, &g->op.at[0], &cx);

		check(takes == (cases[i].family != FAMILY_cuda_plain), "the plain kernel", which);
		check(!takes || space_family_of("cuda", "matmul", g->group.at[0].kernel) == cases[i].family,
		      "its kernel", which);
		cx = (SelectCx){.arch = cases[i].arch, .may = none};
		check(!takes || (cu_algo_select(g, 0, &g->op.at[0], &cx)
		                 && space_family_of("cuda", NULL, g->group.at[0].kernel) != FAMILY_cuda_wgmma),
		      "switched off", which);
	}
}

static void
test_records(Arena *a, Diags *d)
{
	static const struct { const char *arch, *type, *text, *why; bool off;
	} cases[] = {
	        {"sm_80", "bf16", "mma{m=64,n=64,k=64,stages=4,warps=2x2}", NULL, false},
	        {"sm_80", "bf16", "mma{m=64,n=64,k=64,stages=4,warps=2x2,split=4}", NULL, false},
	        {"sm_80", "bf16", "mma{m=64,n=64,k=64,stages=4,warps=2x2,split=513}", "split <= K", false},
	        {"sm_80", "bf16", "mma{m=64,n=64,k=64,stages=4,warps=2x2", "takes parameters such as mma{", false},
	        {"sm_80", "bf16", "columns{m=64,n=64}", "takes parameters such as mma{", false},
	        {"sm_80", "bf16", "ffma{m=64,n=64,k=16}", "of bf16 there are matrix instructions", false},
	        {"sm_75", "bf16", "ffma{m=64,n=64,k=16}", NULL, false},
	        {"sm_75", "bf16", "mma{m=64,n=64,k=64,stages=4,warps=2x2}", "bf16 from sm_80 on", false},
	        {"sm_75", "f16", "mma{m=128,n=128,k=64,stages=3,warps=4x2}", "stages=3 does not fit", false},
	        {"sm_80", "f32", "tf32{m=64,n=64,k=16,stages=2,warps=2x2}", NULL, false},
	        {"sm_75", "f32", "tf32{m=64,n=64,k=16,stages=2,warps=2x2}", "from sm_80 on", false},
	        {"sm_80", "bf16", "tf32{m=64,n=64,k=16,stages=2,warps=2x2}", "tf32 multiplies f32", false},
	        {"sm_90a", "bf16", "wgmma{m=64,n=64,k=64,stages=3,groups=1}", NULL, false},
	        {"sm_90a", "bf16", "wgmma{m=64,n=64,k=64,stages=3,groups=1}", "wgmma is switched off", true},
	        {"sm_90", "bf16", "wgmma{m=64,n=64,k=64,stages=3,groups=1}", "an instruction of sm_90a, not of sm_90",
	         false},
	        {"sm_90a", "f32", "wgmma{m=64,n=64,k=64,stages=3,groups=1}", "wgmma multiplies f16 and bf16", false},
	        {"sm_80", "bf16", "cudnn{engine=7,round=2}", "round=2 is not one of 0 1", false},
	        {"sm_80", "bf16", "cudnn{engine=7,round=1}", "it is switched off", true},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		SelectCx cx = {.arch = cases[i].arch, .tuned = cases[i].text, .may = cases[i].off ? none : all};
		Graph *g = product(a, d, cases[i].type, 512);
		const char *why = cases[i].why;
		const char *which = arena_printf(a, "%s of %s on %s", cases[i].text, cases[i].type, cases[i].arch);

		if (!g || !cu_algo_select(g, 0, &g->op.at[0], &cx)) {
			check(false, "is no kernel in tiles", which);
			continue;
		}
		check((why != NULL) == (cx.misfit != NULL) && (!why || strstr(cx.misfit, why)),
		      cx.misfit ? cx.misfit : "taken", which);
		check(!strcmp(g->group.at[0].kernel, cases[i].text) == !why, g->group.at[0].kernel, which);
		check(cx.off == cases[i].off, "whose fault it is", which);
		check(g->group.at[0].workspace == (strstr(cases[i].text, "split=4}") ? 4 * 512 * 512 * 4 : 0),
		      "workspace", which);
	}
}

/* ---------------------------------------------------------------- what is worth trying */
typedef struct Tried { Arena *a; Graph *g; const char *arch, *base; int n, bits[3]; bool met; } Tried;

/* Each is a record that is taken, and the kernel that stands there has its own bits. */
static bool
try_one(void *cx, const char *kernel, BitsClass bits)
{
	Tried *t = cx;
	SelectCx select = {.arch = t->arch, .tuned = kernel, .may = all};

	bool takes = cu_algo_select(t->g, 0, &t->g->op.at[0], &select);

	check(takes && !select.misfit, select.misfit ? select.misfit : "plain", kernel);
	check(!strcmp(t->g->group.at[0].kernel, kernel), "is not what was asked for", kernel);
	t->g->group.at[0].kernel = t->base;
	check(strcmp(kernel, t->base) || bits == BITS_same, "has other bits than itself", kernel);
	check((bits == BITS_rounds) == (space_family_of("cuda", NULL, kernel) == FAMILY_cuda_tf32), "rounds", kernel);
	t->met |= !strcmp(kernel, t->base);
	t->bits[bits]++;
	return ++t->n > 0;
}

static void
test_space(Arena *a, Diags *d)
{
	static const struct { const char *arch, *type; bool rounds; } cases[] = {
		{"sm_75", "f32", false}, {"sm_80", "f32", true}, {"sm_80", "bf16", false}, {"sm_90a", "bf16", false},
	};
	int before = 0;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *which = arena_printf(a, "%s on %s", cases[i].type, cases[i].arch);
		Graph *g = product(a, d, cases[i].type, 512);
		SelectCx cx = {.arch = cases[i].arch, .may = all};

		if (!g || !cu_algo_select(g, 0, &g->op.at[0], &cx))
			continue;
		Tried t = {.a = a, .g = g, .arch = cases[i].arch, .base = g->group.at[0].kernel};

		cu_algo_space(g, 0, &g->op.at[0], &cx, try_one, &t);
		check(t.n > 50 && t.met, "few kernels are tried", which);
		check(t.bits[BITS_same] > 0 && t.bits[BITS_order] > 0, "classes of bits", which);
		check((t.bits[BITS_rounds] > 0) == cases[i].rounds, "what rounds", which);
		if (i == 3)
			check(t.n > before, "wgmma is tried beside mma", which);
		before = t.n;
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
	test_defaults(a, &d);
	test_records(a, &d);
	test_space(a, &d);
	printf("%d checks, %d failures\n", checks, failures);
	arena_free(a);
	return failures != 0;
}
