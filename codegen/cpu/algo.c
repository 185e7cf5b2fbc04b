/* algo.c: the choice of how a contraction is computed.
 *
 * In: a contraction, who may be chosen, a tuning file's kernel.   Out: an algorithm (a row of algos.def) and its
 * parameters. Method: the first line that offers itself is taken; each variant behind it is weighed against what was
 * taken so far, by the time that its row predicts, and takes its place or leaves a verdict. A tuning file's kernel
 * comes before all of that, if it is possible: by what the row says of it (why_not) and what all rows have in common
 * (gemm_why_not). The same two are asked again before code is emitted, as text may be anybody's. Whoever wants to know
 * what a contraction's kernel will be (passes fuse and precision, through the target) asks here. */
#include "algo.h"
#include <string.h>

typedef struct Line { const char *name; const Algo *row; bool variant; } Line;

#define ALGO(name) {#name, &algo_##name, false},
#define VARIANT(name) {#name, &algo_##name, true},
static const Line line[] = {
#include "algos.def"
};
#undef ALGO
#undef VARIANT
enum { LINES = sizeof line / sizeof *line };

#define ALGO(name)
#define VARIANT(name) #name,
const char *const algo_variants[] = {
#include "algos.def"
	"keep", NULL
};
#undef ALGO
#undef VARIANT

/* ---------------------------------------------------------------- the plain kernel */
static bool
plain_offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	(void)g, (void)op, (void)cx, (void)best, (void)p;
	return true;
}

static const char *
plain_text(Arena *a, const GemmParams *p)
{
	(void)a, (void)p;
	return "plain";
}

const Algo algo_plain = {
	.name = "plain",
	.doc = "element by element, a sum each (eval_contract.c)",
	.engines = ENGINES_F32,
	.offer = plain_offer,
	.text = plain_text,
};

/* ---------------------------------------------------------------- rows by operator, by text */
static bool
algo_takes(const Algo *row, OpKind k)
{
	for (int i = 0; i < ALGO_OPS && row->ops[i] != OP_none; i++)
		if (row->ops[i] == k)
			return true;
	return row->ops[0] == OP_none;
}

static const Line *
line_of(const Algo *row)
{
	for (int i = 0; i < LINES; i++)
		if (line[i].row == row)
			return &line[i];
	bug("an algorithm of no line");
}

const char *
gemm_text(Arena *a, const GemmParams *p)
{
	return p->algo->text(a, p);
}

bool
gemm_parse(const char *text, GemmParams *p)
{
	for (int i = 0; i < LINES; i++) {
		*p = (GemmParams){0};
		if (line[i].row->parse && line[i].row->parse(text, p)) {
			p->algo = line[i].row;
			return true;
		}
	}
	return false;
}

/* ---------------------------------------------------------------- what is possible */
static EngineId
engine_wanted(const Graph *g, const Op *op, const PlanCx *cx, const Algo *row)
{
	EngineId e = engine_choose(g, op, cx->arch, cx->half);

	return row->engines >> e & 1 ? e : ENGINE_FMA;
}

static const char *
engine_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	const Engine *e = engine_of(p), *want = &engines[engine_wanted(g, op, cx, p->algo)];

	if (e->unit != want->unit)
		return want->unit > 1 ? "these operands are multiplied as pairs" : "these operands cannot be multiplied as pairs";
	if (e == want && (!e->most_rows || p->mr <= e->most_rows) && (!e->most_vectors || p->nv <= e->most_vectors)
	    && (!e->lanes || p->lanes == e->lanes))
		return NULL;
	return arena_printf(g->arena, "pairs are multiplied by other instructions here, or not in tiles of this size: %s",
	                    want->text + 1);
}

const char *
gemm_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	const char *why = NULL;

	if (p->lanes * 4 > cx->arch->vector_bytes)
		return arena_printf(g->arena, "vectors of %d numbers, the processor's hold %d", p->lanes, cx->arch->vector_bytes / 4);
	if (algo_takes(p->algo, (OpKind)op->kind))
		why = engine_why_not(g, op, cx, p);
	return why ? why : p->algo->why_not(g, op, cx, p);
}

static bool
switched_off(const Line *l, const PlanCx *cx)
{
	const SelectCx *s = cx->select;

	return l->variant && s && s->may && !s->may(s->cx, l->name);
}

/* ---------------------------------------------------------------- the choice */
/* The first line that offers itself. */
static GemmParams
base_of(const Graph *g, const Op *op, const PlanCx *cx)
{
	for (int i = 0; i < LINES; i++) {
		GemmParams p = {.algo = line[i].row};

		if (!line[i].variant && algo_takes(line[i].row, (OpKind)op->kind) && line[i].row->offer(g, op, cx, NULL, &p))
			return p;
	}
	bug("no kernel for %s", op_info[op->kind].name);
}

/* Is this variant better than *best? Then it takes its place. */
static void
weigh(const Line *l, const Graph *g, const Op *op, const PlanCx *cx, GemmParams *best)
{
	GemmParams p = {.algo = l->row};
	const char *why;

	if (!algo_takes(l->row, (OpKind)op->kind) || !l->row->offer(g, op, cx, best, &p))
		return;
	why = l->row->beaten_by[best->engine];
	if (!why)
		why = gemm_why_not(g, op, cx, &p);
	if (!why && l->row->time(g, op, &p, best) > 1)
		why = l->row->dear(g, op, &p, best);
	if (!why && switched_off(l, cx))
		why = "switched off";
	if (!why)
		*best = p;
	if (!cx->select)
		return;
	Looked *looked = select_look(cx->select, g, op, l->name);

	looked->chosen = !why;
	looked->why = why ? why : l->row->chosen(g, op, &p);
	looked->value = l->row->work(g, op) / op_flops(g, op);
}

/* Why a tuning file's kernel is not possible here; NULL: it is, and in p. d: what stands in its place else. */
static const char *
misfit(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *d, GemmParams *p)
{
	const char *text = cx->select->tuned;

	if (!gemm_parse(text, p) || strcmp(gemm_text(g->arena, p), text)
	    || (p->algo != d->algo && !strcmp(p->algo->name, d->algo->name)))
		return arena_printf(g->arena, "%s takes parameters such as %s", op_info[op->kind].name,
		                    gemm_text(g->arena, d));
	if (switched_off(line_of(p->algo), cx))
		return arena_printf(g->arena, "%s is switched off", p->algo->name);
	return gemm_why_not(g, op, cx, p);
}

static void
tuned_choose(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *base, GemmParams *best)
{
	SelectCx *s = cx->select;
	GemmParams p;

	s->misfit = misfit(g, op, cx, base, &p);
	if (s->misfit)
		return;
	for (int i = 0; i < LINES; i++)
		if (line[i].variant)
			select_overrule(s, line[i].name, p.algo == line[i].row);
	*best = p;
}

GemmParams
gemm_plan(const Graph *g, const Op *op, const PlanCx *cx)
{
	GemmParams base = base_of(g, op, cx), best = base;

	for (int i = 0; i < LINES; i++)
		if (line[i].variant && base.algo->emit)
			weigh(&line[i], g, op, cx, &best);
	if (cx->select && cx->select->tuned && base.algo->fields)
		tuned_choose(g, op, cx, &base, &best);
	return best;
}

bool
gemm_plain(const Graph *g, const Op *op, const Arch *a)
{
	return !base_of(g, op, &(PlanCx){.arch = a}).algo->emit;
}
