/* rnn_params.c: kernels of the recurrences: which there is for an op, its parameters, workspace, search space.
 *
 * In: an op of lstm.cells, gru.cells or their gradients, the bytes of a vector, a kernel's text or what select asks.
 * Out: a plan (RnnSeq), its text, others in its place. Refuses (rnn_refuses): other types than f32, but for W_hh of
 * bf16 where the CPU multiplies pairs of that, by dot products or matrix tiles, machines with vectors below 16 bytes;
 * those are unrolled by pass decompose. */
#include "rnn_parts.h"
#include "../../space.h"
#include <string.h>

bool
rnn_op(OpKind k)
{
	return k == OP_lstm_cells || k == OP_lstm_cells_dx || k == OP_gru_cells || k == OP_gru_cells_dx;
}

/* How `h` weights of each unit are multiplied where they are bf16; ENGINE_FMA: the CPU does not multiply them. */
static EngineId
pairs_engine(const Arch *a, int64_t h)
{
	for (int i = 0; i < 2 && a; i++) {
		EngineId id = i ? ENGINE_PAIRS : ENGINE_AMX;
		const Engine *e = &engines[id];

		/* tests want short sums too */
		if (e->has(a) && h % e->unit == 0 && (h / e->unit >= e->least || a->emulated))
			return id;
	}
	return ENGINE_FMA;
}

bool
rnn_takes(const Graph *g, const Op *op, int k, const Arch *a, DType narrow)
{
	return rnn_op((OpKind)op->kind) && k == rnn_weights(op) && narrow == DT_bf16
	       && pairs_engine(a, val_type(g, op->in[k])->axis[1].n) != ENGINE_FMA;
}

const char *
rnn_refuses(const Graph *g, const Op *op, const Arch *a)
{
	for (int k = 0; k < op->nin; k++) {
		DType t = (DType)val_type(g, op->in[k])->dtype;

		if (dtype_is_float(t) && t != DT_f32 && !rnn_takes(g, op, k, a, t))
			return arena_printf(g->arena, "operand %d is %s: the kernel is f32", k, dtype_info[t].name);
	}
	return a && a->vector_bytes < 16 ? "the kernel needs vectors of 16 bytes" : NULL;
}

static int64_t
take(int64_t *at, int64_t bytes)
{
	int64_t r = *at;

	*at += (bytes + 63) / 64 * 64;
	return r;
}

static int
states_of(const RnnSeq *s)
{
	return s->back ? s->lstm ? 2 : 1 : s->lstm ? 3 : 2;
}

int
rnn_weights(const Op *op)
{
	return op->kind == OP_lstm_cells_dx ? 5 : op->kind == OP_gru_cells_dx ? 4 : 1;
}

void
rnn_prepack(RnnSeq *s)
{
	for (int i = 0; i < states_of(s); i++)
		s->state[i] -= s->packed;
	s->grad -= s->packed;
	s->sums -= s->packed;
	s->products -= s->packed;
	s->pair[0] -= s->packed;
	s->pair[1] -= s->packed;
	s->bytes -= s->packed;
	s->prepacked = true;
}

static RnnSeq
seq_of(const Graph *g, const Op *op, int vector_bytes, bool halves, bool by_units)
{
	RnnSeq s = {.lstm = op->kind == OP_lstm_cells || op->kind == OP_lstm_cells_dx,
	         .back = op->kind == OP_lstm_cells_dx || op->kind == OP_gru_cells_dx,
	         .reverse = attr_bool(op, A_reverse),
	         .halves = halves,
	         .units = by_units,
	         .x = val_type(g, op->in[0])};
	int w = vector_bytes / 4;
	bool wide = vector_bytes == 64;

	s.n = s.x->axis[0];
	s.t = s.x->axis[1].n;
	s.gates = s.lstm ? 4 : 3;
	s.h = val_type(g, op->in[rnn_weights(op)])->axis[1].n;
	s.pairs = val_type(g, op->in[rnn_weights(op)])->dtype == DT_bf16;
	EngineId engine = s.pairs ? pairs_engine(arch_for(g), s.h) : ENGINE_FMA;
	bool tiles = engine == ENGINE_AMX;

	s.unit = engines[engine].unit;
	s.rows = s.n.n < 16 && !halves ? ceil_div(s.n.n, 4) : 4;
	s.p = (GemmParams){.lanes = w, .parts = 1, .band = 1, .pack = true,
	                   .engine = engine};
	if (s.back) {
		s.p.nv = s.h <= w ? 1 : 2;
		s.p.mr = wide ? s.p.nv == 1 ? 14 : 12 : 6;
	} else {
		/* four gates of 16 registers' vectors would leave two rows to a tile: two products of two gates each;
		 * matrix tiles are one or two vectors wide */
		s.parts = tiles ? s.lstm ? 2 : 3 : s.lstm && !halves && w == 8 ? 2 : 1;
		s.p.nv = s.lstm && halves ? 2 : s.gates / s.parts;
		s.p.mr = wide ? s.lstm ? halves ? 12 : 6 : 8 : s.lstm ? 6 : 4;
	}
	if (tiles)
		s.p.mr = 2 * AMX_EDGE;
	if (w == 4)              /* the second operand's vectors stand in no register (micro.c) */
		s.p.mr = 12 / s.p.nv;
	/* forward a panel has w units of every gate; backward nv * w columns of W_hh */
	int64_t units = s.back ? (int64_t)s.p.nv * w : w, pairs = ceil_div(s.n.n, 2);

	s.npanel = ceil_div(s.h, units);
	s.state_row = F32(s.npanel * units + w);
	if (halves) {
		s.k2 = (s.back ? s.gates : 1) * s.h / 2;
		s.npanel /= s.back || !s.lstm ? 2 : 1;
		s.packed = align64(F32(PRODUCTS * s.npanel * s.k2 * s.p.nv * w));
		s.bytes = s.packed;
		s.sums_row = F32(s.k2 + w);
		s.sums = take(&s.bytes, PRODUCTS * pairs * s.sums_row);
		s.products_row = F32(s.h / 2 + w);
		s.products = s.back ? take(&s.bytes, PRODUCTS * pairs * s.products_row) : 0;
		s.scratch = s.back ? 0 : 4 * s.h * (s.lstm ? 1 : 2) * s.gates * w;
	} else {
		s.packed = align64(F32(s.npanel * (s.back ? s.gates : s.parts) * s.h / s.unit * s.p.nv * w));
		s.bytes = s.packed;
	}
	for (int i = 0; i < states_of(&s); i++)
		s.state[i] = take(&s.bytes, s.n.n * s.state_row);
	if (s.back) {
		s.grad_row = F32(s.gates * s.h / s.unit + w);
		s.grads = s.n.n * s.grad_row;
		s.grad = take(&s.bytes, s.units ? 2 * s.grads : s.grads);
	} else if (s.pairs) {
		s.pair_row = F32(s.h / s.unit + w);
		for (int i = 0; i < 2; i++)
			s.pair[i] = take(&s.bytes, s.n.n * s.pair_row);
	}
	return s;
}

static Params
seq_params(const RnnSeq *s)
{
	Params p = {.family = s->halves ? FAMILY_cpu_rnn_strassen : FAMILY_cpu_rnn}; /* of the same parameters */

	p.cpu_rnn.mr = s->p.mr;
	p.cpu_rnn.nv = s->p.nv;
	p.cpu_rnn.lanes = s->p.lanes;
	p.cpu_rnn.rows = (int)s->rows;
	p.cpu_rnn.threads = s->p.threads;
	if (!s->halves)
		p.cpu_rnn.by = s->units;
	return p;
}

static const char *
seq_text(Arena *a, const RnnSeq *s)
{
	Params p = seq_params(s);

	return space_text(a, &p);
}

static Facts
seq_facts(const RnnSeq *s, int vector_bytes)
{
	return (Facts){.panel = s->p.nv, .batch = s->n.n, .lanes_max = vector_bytes / 4,
	               .regs = vector_bytes == 64 ? 32 : 16, .backward = s->back,
	               .tiles = s->p.engine == ENGINE_AMX};
}

/* Why the products of s, a plan without halves, cannot be taken by halves; NULL: they can. */
static const char *
halves_why_not(const RnnSeq *s)
{
	if (s->pairs)
		return "its operands are pairs of bf16, whose sums would be rounded";
	if (s->n.mul || s->n.n % 2)
		return "pairs of examples are the halves of its rows, and their number is not known, or odd";
	return s->h % (4 * s->p.lanes) ? "its sides do not halve into whole vectors and panels" : NULL;
}

/* Do fewer products pay for the sums, of the weights once, of rows and results in each step? Sums of the weights are
 * 7/4 of them, and must come from the caches all the same. */
static bool
halves_pay(const Graph *g, const RnnSeq *s)
{
	enum { EXAMPLES = 32, ROWS = 1024, UNITS = 256 }; /* that share the sums: how often, whatever the machine */

	return !machine_of(g)->budget.slow_l3 && s->n.n >= EXAMPLES && s->n.n * s->t >= ROWS && s->h >= UNITS
	       && PRODUCTS * s->h * s->gates * s->h <= machine_of(g)->budget.l3 / 2;
}

/* Tasks by units: a step's weights are read once by all threads together, and a thread's part of them, the same in
 * every step, may stay in its L2; what a step hands to all of them is small beside that. For few examples, whose tasks
 * by examples would leave threads without work, where a step is long beside a barrier. */
static bool
units_pay(const Graph *g, const RnnSeq *s)
{
	enum { FEW = 4, LONG = 256 << 10 };
	const Budget *b = &machine_of(g)->budget;
	int64_t weights = F32(s->gates * s->h * s->h) / s->unit, handed = F32(s->n.n * s->h * (s->back ? s->gates : 1));

	if (s->n.n < FEW)
		return weights >= LONG;
	return b->slow_l3 && weights > b->l2 / 2 && handed <= weights / 2;
}

/* The kernel of this text; NULL, or why it is not possible. The family's name alone is that of the parameters that
 * follow. */
const char *
rnn_read(const Graph *g, const Op *op, int vector_bytes, const char *text, RnnSeq *s)
{
	const char *name = op_info[op->kind].name, *halves = space_family[FAMILY_cpu_rnn_strassen].text;
	RnnSeq plain = seq_of(g, op, vector_bytes, false, false);
	Params q;
	bool bare = !strcmp(text, halves);

	if (!bare && !space_parse("cpu", name, text, &q))
		return arena_printf(g->arena, "%s takes parameters such as %s", name, seq_text(g->arena, &plain));
	bool strassen = bare || q.family == FAMILY_cpu_rnn_strassen;

	*s = seq_of(g, op, vector_bytes, strassen, !strassen && q.cpu_rnn.by);
	const char *why = s->halves ? halves_why_not(&plain) : NULL;
	Facts f = seq_facts(s, vector_bytes);

	if (why || bare)
		return why;
	s->p.mr = q.cpu_rnn.mr;
	s->rows = q.cpu_rnn.rows;
	s->p.threads = q.cpu_rnn.threads;
	return space_misfit(g->arena, &q, &f);
}

const char *
rnn_select(Graph *g, const Op *op, int vector_bytes, SelectCx *cx, bool prepack, int64_t *prepacked, int64_t *workspace)
{
	RnnSeq s = seq_of(g, op, vector_bytes, false, false), h = seq_of(g, op, vector_bytes, true, false), t;
	const char *why = halves_why_not(&s), *misfit = cx->tuned ? rnn_read(g, op, vector_bytes, cx->tuned, &t) : NULL;
	bool asked = cx->tuned && !misfit && t.halves;

	if ((halves_pay(g, &s) && !s.pairs) || asked) {
		Looked *l = select_look(cx, g, op, "strassen");

		if (!why && cx->may && !cx->may(cx->cx, "strassen"))
			why = "switched off";
		l->chosen = !why;
		l->value = 7.0 / 8;
		l->why = why ? why
		             : arena_printf(g->arena,
		                            "Strassen's algorithm in each step: seven products of halves for eight, "
		                            "%.1f MiB of workspace",
		                            (double)h.bytes / 1048576);
		if (!why)
			s = h;
	}
	if (!s.halves && units_pay(g, &s))
		s = seq_of(g, op, vector_bytes, false, true);
	cx->misfit = misfit ? misfit : asked ? why : NULL;
	if (cx->tuned && !cx->misfit) {
		select_overrule(cx, "strassen", t.halves);
		s = t;
	}
	*prepacked = prepack ? s.packed : 0;
	if (prepack)
		rnn_prepack(&s);
	*workspace = s.bytes;
	scratch_plan(g, s.scratch);
	return seq_text(g->arena, &s);
}

typedef struct Trial {
	const Graph *g; const Op *op;
	Params base; Facts facts;
	SpaceEach *each; void *cx;
	bool ended;
} Trial;

static bool
trial(void *cx, const Params *q)
{
	Trial *t = cx;

	t->ended = !t->each(t->cx, space_text(t->g->arena, q), space_class(&t->base, q, &t->facts));
	return !t->ended;
}

void
rnn_space(const Graph *g, const Op *op, int vector_bytes, const SelectCx *cx, const char *kernel, SpaceEach *each,
	void *each_cx)
{
	RnnSeq own, plain = seq_of(g, op, vector_bytes, false, false);
	bool may = !halves_why_not(&plain) && !(cx->may && !cx->may(cx->cx, "strassen"));
	Trial t = {.g = g, .op = op, .each = each, .cx = each_cx};

	if (rnn_read(g, op, vector_bytes, kernel, &own))
		return;
	t.base = seq_params(&own);
	for (int halves = 0; halves < (may ? 2 : 1) && !t.ended; halves++) {
		RnnSeq s = own.halves == (halves != 0) ? own : seq_of(g, op, vector_bytes, halves != 0, false);
		Params from = seq_params(&s);

		t.facts = seq_facts(&s, vector_bytes);
		t.facts.threads_max = cx->threads;
		space_each(&from, &t.facts, cx->steps, trial, &t);
	}
}
