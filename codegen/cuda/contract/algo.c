/* algo.c: the choice of how a contraction is computed.
 *
 * In: a group with a contraction, which variants may be chosen, a tuning file's kernel.   Out: the group's kernel and
 * workspace, and a verdict of each variant that was looked at.
 * Method: a row that takes records itself (cuDNN) is asked first. Then the lines of algos.def in their order: the first
 * whose instruction multiplies such elements, whose kernel takes the group, and which offers itself. A record of a
 * kernel in tiles takes its place, if its row can multiply these elements and what tune.def says holds. */
#include "algo.h"
#include <string.h>

typedef struct Line { const CuAlgo *row; bool variant; } Line;
#define ALGO(name) {&cu_algo_##name, false},
#define VARIANT(name) {&cu_algo_##name, true},
static const Line line[] = {
#include "algos.def"
};
enum { LINES = sizeof line / sizeof *line };

#define ALGO(name)
#define VARIANT(name) #name,
const char *const cu_variants[] = {
#include "algos.def"
	"tma", "prepack", "held", NULL
};

/* ---------------------------------------------------------------- the plain kernel */
static const char *
plain_offer(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, Tiles *p, double *value)
{
	(void)g, (void)group, (void)op, (void)cx, (void)l, (void)p, (void)value;
	return NULL;
}

const CuAlgo cu_algo_plain = {
	.family = FAMILY_cuda_plain,
	.doc = "element by element, a sum each (eval_sum.c)",
	.offer = plain_offer,
};

/* ---------------------------------------------------------------- rows */
const CuAlgo *
cu_algo_of(FamilyId f)
{
	for (int i = 0; i < LINES; i++)
		if (line[i].row->family == f)
			return line[i].row;
	return NULL;
}

static const char *
name_of(const CuAlgo *row)
{
	return space_family[row->family].text;
}

static bool
switched_off(const Line *l, const SelectCx *cx)
{
	return l->variant && cx->may && !cx->may(cx->cx, name_of(l->row));
}

static const char *
why_not(const Graph *g, const Op *op, const CuAlgo *row, const char *arch)
{
	return row->why_not ? row->why_not(g->arena, (DType)val_type(g, op->in[0])->dtype, arch) : NULL;
}

/* ---------------------------------------------------------------- records that a row takes itself */
/* True: it took it. Else the record, if it asked for this row, has been dealt with. */
static bool
taken(const Line *l, Graph *g, int group, const Op *op, SelectCx *cx)
{
	bool asked = cx->tuned && space_family_of("cuda", NULL, cx->tuned) == l->row->family;
	const char *why = "no record of a tuning file asks for it";
	const Group *gr = &g->group.at[group];
	Looked *looked = select_look(cx, g, op, name_of(l->row));

	cx->off = asked && switched_off(l, cx);
	if (asked)
		why = cx->off ? "it is switched off" : l->row->take(g, group, op, cx);
	looked->chosen = !why;
	looked->why = why;
	if (!why)
		looked->why =
		        arena_printf(g->arena, "%s, %lld bytes of workspace", gr->kernel, (long long)gr->workspace);
	if (asked) {
		cx->tuned = NULL;
		cx->misfit = why;
	}
	return looked->chosen;
}

/* ---------------------------------------------------------------- kernels in tiles */
/* Does this line take the contraction? Then *p is set. */
static bool
offers(const Line *l, const Graph *g, int group, const Op *op, SelectCx *cx, const Load *load, Tiles *p)
{
	double value = NAN;
	Tiles t = {0};

	if (!l->row->offer || why_not(g, op, l->row, cx->arch))
		return false;
	const char *why = l->row->offer(g, group, op, cx, load, &t, &value);

	if (!why && switched_off(l, cx))
		why = "switched off";
	if (l->variant) {
		Looked *looked = select_look(cx, g, op, name_of(l->row));

		looked->chosen = !why;
		looked->value = value;
		looked->why = why ? why : l->row->chosen(g->arena, value);
	}
	if (!why)
		*p = t;
	return !why;
}

/* Why a record's kernel is not possible here; NULL: it is, and in p. d: what stands in its place else. */
static const char *
misfit(const Graph *g, int group, const Op *op, SelectCx *cx, const Tiles *d, Tiles *p)
{
	const Line *l = line;
	Facts facts = cu_gemm_facts(g, group, op, cx->arch);
	Params q;

	space_parse("cuda", op_info[op->kind].name, cx->tuned, &q);
	while (l < line + LINES && l->row->family != q.family)
		l++;
	if (l == line + LINES || !l->row->tiles)
		return arena_printf(g->arena, "%s takes parameters such as %s", op_info[op->kind].name,
		                    cu_gemm_text(g->arena, d));
	const char *why = why_not(g, op, l->row, cx->arch);

	cx->off = !why && switched_off(l, cx);
	if (cx->off)
		why = arena_printf(g->arena, "%s is switched off", name_of(l->row));
	why = why ? why : space_misfit(g->arena, &q, &facts);
	if (!why && !cu_tiles_of(&q, p))
		bug("target cuda: %s fits, and is no kernel in tiles", cx->tuned);
	return why;
}

bool
cu_algo_select(Graph *g, int group, const Op *op, SelectCx *cx)
{
	Group *gr = &g->group.at[group];
	const Line *l = line;
	Tiles p = {0}, t;

	for (int i = 0; i < LINES; i++)
		if (line[i].row->take && taken(&line[i], g, group, op, cx))
			return true;
	if (cu_gemm_misfit(g, group, op))
		return false;
	Load load = cu_gemm_load(g, group, op);

	while (!offers(l, g, group, op, cx, &load, &p)) /* the last takes whatever comes */
		l++;
	if (!l->row->tiles)
		return false;
	if (cx->tuned && !(cx->misfit = misfit(g, group, op, cx, &p, &t)))
		p = t;
	p.copied |= cx->may && !cx->may(cx->cx, "tma");
	for (int i = 0; i < LINES; i++)
		if (line[i].variant && line[i].row->tiles)
			select_overrule(cx, name_of(line[i].row), cu_tiles_family(&p) == line[i].row->family);
	gr->kernel = cu_gemm_text(g->arena, &p);
	gr->workspace = cu_gemm_workspace(g, group, op, &p);
	return true;
}

/* ---------------------------------------------------------------- what is worth trying */
typedef struct Trial { Params base; Facts facts; SpaceEach *each; void *each_cx; bool ended; } Trial;

static bool
trial(void *cx, const Params *q)
{
	Trial *t = cx;
	Arena *a = arena_new();

	t->ended = !t->each(t->each_cx, space_text(a, q), space_class(&t->base, q, &t->facts));
	arena_free(a);
	return !t->ended;
}

/* Kernels in tiles, and the plans of a library that is here. */
void
cu_algo_space(const Graph *g, int group, const Op *op, const SelectCx *cx, SpaceEach *each, void *each_cx)
{
	Trial t = {.facts = cu_gemm_facts(g, group, op, cx->arch), .each = each, .each_cx = each_cx};
	const CuAlgo *now;

	space_parse("cuda", op_info[op->kind].name, g->group.at[group].kernel, &t.base);
	for (int i = 0; i < LINES && !t.ended; i++)
		if (line[i].row->space && !switched_off(&line[i], cx))
			line[i].row->space(g, group, op, cx, trial, &t);
	now = cu_algo_of(t.base.family);
	if (!now || !now->tiles)
		return;
	for (int i = 0; i < LINES && !t.ended; i++)
		if (line[i].row->tiles && !switched_off(&line[i], cx) && !why_not(g, op, line[i].row, cx->arch))
			space_each(&(Params){.family = line[i].row->family}, &t.facts, 0, trial, &t);
}

double
cuda_product_rate(const Target *t, const Rates *r, const char *kernel)
{
	Params p;

	(void)t;
	/* two loads for an FMA, of which a multiprocessor begins one for four of those */
	if (!strcmp(kernel, PLAIN_KERNEL))
		return r->flops / 8;
	space_parse("cuda", NULL, kernel, &p);
	const CuAlgo *algo = cu_algo_of(p.family);

	if ((p.family == FAMILY_cuda_attention && p.cuda_attention.by) || p.family == FAMILY_cuda_cells_mma)
		return r->products;
	return algo && algo->rate ? algo->rate(r) : r->flops;
}
