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
	"prepack", NULL
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

const Algo algo_plain = {
	.family = FAMILY_cpu_plain,
	.doc = "element by element, a sum each (eval_contract.c)",
	.engines = ENGINES_F32,
	.offer = plain_offer,
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

static const char *
name_of(const Algo *row)
{
	return space_family[row->family].text;
}

/* ---------------------------------------------------------------- text */
static Params
params_of(const GemmParams *p)
{
	Params q = {.family = p->algo->family};

	if (space_family[q.family].nparam) { /* most begin with the register tile */
		q.cpu_brgemm.mr = p->mr;
		q.cpu_brgemm.nv = p->nv;
		q.cpu_brgemm.lanes = p->lanes;
	}
	if (p->algo->write)
		p->algo->write(p, &q);
	space_set(&q, "threads", p->threads);
	space_set(&q, "ahead", p->ahead);
	space_set(&q, "next", p->next);
	space_set(&q, "fetch", p->fetch);
	space_set(&q, "stream", p->stream);
	return q;
}

const char *
gemm_text(Arena *a, const GemmParams *p)
{
	Params q = params_of(p);

	return space_text(a, &q);
}

/* Of a row's kernel, which has parameters. */
static GemmParams
gemm_of(const Algo *row, const Params *q)
{
	GemmParams p = {.algo = row, .mr = q->cpu_brgemm.mr, .nv = q->cpu_brgemm.nv, .lanes = q->cpu_brgemm.lanes,
	                .parts = 1, .band = 1, .threads = space_number(q, "threads"),
	                .ahead = space_number(q, "ahead"), .next = space_number(q, "next"),
	                .fetch = space_number(q, "fetch"), .stream = space_number(q, "stream")};

	if (row->read)
		row->read(q, &p);
	return p;
}

bool
gemm_parse(const char *text, GemmParams *p)
{
	Params q;

	if (!space_parse("cpu", NULL, text, &q) || !space_family[q.family].nparam)
		return false;
	for (int i = 0; i < LINES; i++)
		if (line[i].row->family == q.family) {
			*p = gemm_of(line[i].row, &q);
			return true;
		}
	return false;
}

/* ---------------------------------------------------------------- what is possible */
/* p's own if it is possible and not that of f32, which stands for any; else the one that would be chosen. */
static EngineId
engine_wanted(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	bool own = p->engine != ENGINE_FMA && engine_can(g, op, cx->arch, cx->half, p->engine);
	EngineId e = own ? p->engine : engine_choose(g, op, cx->arch, cx->half);

	return p->algo->engines >> e & 1 ? e : ENGINE_FMA;
}

/* Does an op of its group reduce? */
static bool
reduces(const Graph *g, const Op *op)
{
	bool any = false;

	if (op->group < 0)
		return false;
	for (uint32_t last, i = graph_group_ops(g, op->group, &last); i < last; i++) {
		const Op *x = &g->op.at[i];

		any |= !x->dead && x->group == op->group && op_info[x->kind].red >= 0;
	}
	return any;
}

/* 1: what an op behind it stores may go past the caches; 2: some is so large that it does. Without a group both may
 * be. */
static int
streams(const Graph *g, const Op *op)
{
	int most = 0;

	if (op->group < 0)
		return 2;
	for (uint32_t last, i = graph_group_ops(g, op->group, &last); i < last; i++) {
		const Op *x = &g->op.at[i];

		if (x->dead || x->group != op->group || x <= op || !x->nout || op_info[x->kind].red >= 0)
			continue;
		if (most < 2 && store_may_stream(g, x->out[0]))
			most = store_streams(g, x->out[0]) ? 2 : 1;
	}
	return most;
}

/* What tune.def asks of op. */
static Facts
facts_of(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	Facts f = {.matmul = op->kind == OP_matmul, .transposed = op->kind == OP_matmul && attr_bool(op, A_tb),
	           .products = (int64_t)engine_wanted(g, op, cx, p), .lanes_max = cx->arch->vector_bytes / 4,
	           .regs = cx->arch->vector_bytes == 64 ? 32 : 16};

	f.tiles = f.products == ENGINE_AMX;
	if (op->kind == OP_conv2d_dw) {
		f.M = val_type(g, op->in[0])->axis[1].n;
		f.pixel_rows = val_type(g, op->in[1])->axis[2].n;
		f.n_images = ceil_div(val_type(g, op->in[0])->axis[0].n, engines[f.products].unit);
	}
	f.threads_max = cx->select ? cx->select->threads : 0;
	f.copies = p->mr > 0 && gemm_copies(g, op, p);
	f.owns = p->mr > 0 && gemm_owns(g, op, p, cx->arch->vector_bytes);
	f.reduces = reduces(g, op);
	f.streams = streams(g, op);
	if (p->algo->facts)
		p->algo->facts(g, op, cx, &f);
	return f;
}

const char *
gemm_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	const char *why = NULL;

	if (algo_takes(p->algo, (OpKind)op->kind)) {
		Params q = params_of(p);
		Facts f = facts_of(g, op, cx, p);

		why = space_misfit(g->arena, &q, &f);
	}
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

		if (!line[i].variant && algo_takes(line[i].row, (OpKind)op->kind) &&
		    line[i].row->offer(g, op, cx, NULL, &p))
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
		why = l->row->why_not(g, op, cx, &p); /* its numbers are its own */
	if (!why && l->row->time(g, op, &p, best) > 1)
		why = l->row->dear(g, op, &p, best);
	if (!why && switched_off(l, cx))
		why = "switched off";
	if (!why)
		*best = p;
	if (!cx->tell)
		return;
	Looked *looked = select_look(cx->tell, g, op, l->name);

	looked->chosen = !why;
	looked->why = why ? why : l->row->chosen(g, op, &p);
	looked->value = l->row->work(g, op, &p) / op_flops(g, op);
}

/* Why a tuning file's kernel is not possible here; NULL: it is, and in p. d: what stands in its place else. */
static const char *
misfit(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *d, GemmParams *p)
{
	const char *text = cx->select->tuned;

	if (!gemm_parse(text, p) || (p->algo != d->algo && !strcmp(name_of(p->algo), name_of(d->algo))))
		return arena_printf(g->arena, "%s takes parameters such as %s", op_info[op->kind].name,
		                    gemm_text(g->arena, d));
	if (switched_off(line_of(p->algo), cx))
		return arena_printf(g->arena, "%s is switched off", name_of(p->algo));
	return gemm_why_not(g, op, cx, p);
}

/* Is their number of chains what the shape and the machine ask for? Then it is no part of the text. */
static bool
default_chains(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	GemmParams d = {.algo = p->algo, .engine = p->engine};

	return p->chains == gemm_chains(g, op, &d, cx->arch->vector_bytes);
}

static void
tuned_choose(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *base, GemmParams *best)
{
	GemmParams p;
	const char *why = misfit(g, op, cx, base, &p);

	if (cx->tell)
		cx->tell->misfit = why;
	if (why)
		return;
	for (int i = 0; i < LINES; i++)
		if (line[i].variant && cx->tell)
			select_overrule(cx->tell, line[i].name, p.algo == line[i].row);
	if (default_chains(g, op, cx, &p))
		p.chains = 0;
	*best = p;
}

GemmParams
gemm_plan(const Graph *g, const Op *op, const PlanCx *cx)
{
	GemmParams base = base_of(g, op, cx), best = base;

	for (int i = 0; i < LINES; i++)
		if (line[i].variant && base.algo->emit)
			weigh(&line[i], g, op, cx, &best);
	if (cx->select && cx->select->tuned && base.algo->emit)
		tuned_choose(g, op, cx, &base, &best);
	return best;
}

bool
gemm_packs(const Graph *g, const Op *op, const PlanCx *cx)
{
	GemmParams p = gemm_plan(g, op, cx);

	return prologue_rounds(g, op, &p);
}

void
prologue_cost(const Graph *g, const Op *op, int k, const PlanCx *cx, Prologue *r)
{
	GemmParams p = gemm_plan(g, op, cx);

	prologue_price(g, op, k, &p, cx->half, r);
}

bool
gemm_plain(const Graph *g, const Op *op, const Arch *a)
{
	return !base_of(g, op, &(PlanCx){.arch = a}).algo->emit;
}

/* ---------------------------------------------------------------- what is worth trying */
typedef struct Trial {
	const Graph *g; const Op *op; const PlanCx *cx;
	const Algo *row;
	Params base; Facts facts;
	SpaceEach *each; void *each_cx;
	bool ended;
} Trial;

static bool
trial(void *cx, const Params *q)
{
	Trial *t = cx;
	GemmParams p = gemm_of(t->row, q);

	/* the default number of chains is left out of a kernel's text */
	if (p.chains && default_chains(t->g, t->op, t->cx, &p))
		return true;
	if (gemm_why_not(t->g, t->op, t->cx, &p))
		return true;
	Arena *a = arena_new();

	t->ended = !t->each(t->each_cx, space_text(a, q), space_class(&t->base, q, &t->facts));
	arena_free(a);
	return !t->ended;
}

void
gemm_space(const Graph *g, const Op *op, const PlanCx *cx, const char *kernel, SpaceEach *each, void *each_cx)
{
	enum { MOST_ROWS = 64 }; /* of a tile: what fits then fits with fewer */
	Trial t = {.g = g, .op = op, .cx = cx, .each = each, .each_cx = each_cx};

	GemmParams base;

	if (!gemm_parse(kernel, &base))
		return;
	t.base = params_of(&base);
	for (int i = 0; i < LINES && !t.ended; i++) {
		Params q = {.family = line[i].row->family};
		GemmParams own = {.algo = line[i].row};

		t.row = line[i].row;
		/* what is not searched stays as it is there, or as the row would have it */
		if (t.row == base.algo)
			q = t.base;
		else if (algo_takes(t.row, (OpKind)op->kind) &&
		         t.row->offer(g, op, cx, line[i].variant ? &base : NULL, &own))
			q = params_of(&own);
		if (!space_family[q.family].nparam || !algo_takes(t.row, (OpKind)op->kind) ||
		    switched_off(&line[i], cx))
			continue;
		t.facts = facts_of(g, op, cx, &(GemmParams){.algo = t.row, .mr = MOST_ROWS, .engine = base.engine});
		space_each(&q, &t.facts, cx->select->steps, trial, &t);
	}
}

/* ---------------------------------------------------------------- what it is predicted to take */
/* Rows of the product that are cut into tiles together: pixels of a row of pixels, of all images; a task's rows of a
 * matrix; input channels. */
static int64_t
rows_cut(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *o = val_type(g, op->out[0]), *x = val_type(g, op->in[0]);
	Mat m;

	if (op->kind == OP_matmul && matmul_mat(g, op, &m)) {
		int64_t block = matmul_block(&m, p);

		return m.m.n < block ? m.m.n : block;
	}
	if (op->kind == OP_conv2d_dw)
		return wgrad_columns(g, op, p) ? o->axis[3].n : x->axis[1].n / gemm_groups(op);
	return o->axis[3].n * o->axis[0].n;
}

static int64_t
columns_cut(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]);

	if (op->kind == OP_matmul)
		return o->axis[o->rank - 1].n;
	return op->kind == OP_conv2d_dw ? o->axis[0].n / gemm_groups(op) : o->axis[1].n / gemm_groups(op);
}

/* Cycles of a step along k of a tile of so many rows: as FMAs, loads (a vector each of the columns, an element
 * each of the rows) or the wait of sums for themselves bind. */
static double
tile_cycles(const Machine *m, double rows, const GemmParams *p)
{
	enum { LATENCY = 4 }; /* of an FMA */
	double fma = rows * p->nv / m->fmas, load = (rows + p->nv) / m->loads, wait = (double)LATENCY / p->chains;

	return fmax(fmax(fma, load), wait);
}

/* How many threads take part; 1 where their number is not known. */
static double
parted(const PlanCx *cx, const GemmParams *p)
{
	int all = cx->select && cx->select->threads > 1 ? cx->select->threads : 1;

	return p->threads && p->threads < all ? p->threads : all;
}

double
gemm_predict(const Graph *g, const Op *op, const PlanCx *cx, const char *kernel)
{
	const double START = 0.5e-6; /* seconds in which another thread begins and ends */
	const Machine *m = machine_of(g);
	GemmParams p;

	/* of small groups' kernels, which have no such tile, nothing is known */
	if (!gemm_parse(kernel, &p) || p.depth.cols || p.mr < 1 || p.nv < 1 || p.lanes < 1)
		return NAN;
	p.engine = engine_wanted(g, op, cx, &p);
	p.chains = p.chains ? p.chains : gemm_chains(g, op, &p, cx->arch->vector_bytes);
	int64_t rows = rows_cut(g, op, &p), columns = columns_cut(g, op), wide = (int64_t)p.nv * p.lanes;
	int64_t whole = rows / p.mr, rest = rows % p.mr;
	double cycles = (double)whole * tile_cycles(m, p.mr, &p) + (rest ? tile_cycles(m, (double)rest, &p) : 0);
	double products = op_flops(g, op) / 2;

	if (line_of(p.algo)->variant && p.algo->work)
		products *= p.algo->work(g, op, &p) / op_flops(g, op);
	if (rows < 1 || columns < 1)
		return NAN;
	double panels = (double)((columns + wide - 1) / wide), each = products / ((double)rows * (double)columns);

	return each * cycles * panels / m->hz / parted(cx, &p) + START * (parted(cx, &p) - 1);
}
