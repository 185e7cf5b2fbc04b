/* attention_params.c: which attentions the kernel takes, and the plan of one.
 *
 * In: the op; a tuning file's text, or none.   Out: its parameters, a thread's memory, its workspace. Refuses
 * (attention_refuses): other types, leading axes that differ, widths above 1024; pass decompose takes those apart. */
#include "attention_parts.h"
#include "../../space.h"
#include <string.h>

/* KEYS of a block: whole vectors, and enough for what is done once a block to pay. WIDTH: what a thread's scratch
 * memory is held to. */
enum { KEYS = 64, WIDTH = 1024 };

bool
attention_op(OpKind k)
{
	return k == OP_attention || k == OP_attention_dx;
}

/* Widths of keys and of values: even numbers of them make pairs. */
static bool
widths_pair(const Graph *g, const Op *op)
{
	int first = op->kind == OP_attention_dx, unit = engines[ENGINE_PAIRS].unit;
	const Type *q = val_type(g, op->in[first]), *v = val_type(g, op->in[first + 2]);

	return q->axis[q->rank - 1].n % unit == 0 && v->axis[v->rank - 1].n % unit == 0;
}

bool
attention_takes(const Graph *g, const Op *op, int k, const Arch *a, DType narrow)
{
	const Engine *pairs = &engines[ENGINE_PAIRS];

	return attention_op((OpKind)op->kind) && k < (op->kind == OP_attention ? 3 : 5) && narrow == pairs->type && a &&
	       pairs->has(a) && widths_pair(g, op) && !attention_refuses(g, op, a);
}

bool
attention_casts(const Graph *g, const Op *attention, const Op *op)
{
	const Type *q = val_type(g, attention->in[attention->kind == OP_attention_dx]);

	if (op->kind != OP_cast || q->dtype == DT_f32 || val_type(g, op->out[0])->dtype != q->dtype ||
	    memcmp(val_type(g, op->out[0])->perm, val_type(g, op->in[0])->perm, q->rank))
		return false;
	for (int k = 0; k < attention->nout; k++)
		if (attention->out[k].id == op->in[0].id)
			return attention->kind == OP_attention_dx || k == 0;
	return false;
}

const char *
attention_refuses(const Graph *g, const Op *op, const Arch *arch)
{
	int first = op->kind == OP_attention_dx;
	const Type *q = val_type(g, op->in[first]);
	const Engine *pairs = &engines[ENGINE_PAIRS];
	int marks = 0;

	if (arch && arch->vector_bytes < 16)
		return "the kernel needs vectors of 32 bytes";
	if (q->dtype != DT_f32 && !(q->dtype == pairs->type && attr_bool(op, A_wide) && arch && pairs->has(arch)
	                            && widths_pair(g, op)))
		return arena_printf(g->arena, "the operands are %s: the kernel is f32", dtype_info[q->dtype].name);
	for (int k = 0; k < 3; k++) {
		const Type *x = val_type(g, op->in[first + k]);

		if (x->rank != q->rank)
			return "q, k and v differ in their leading axes";
		for (int i = 0; i + 2 < q->rank; i++)
			if (!axis_same(x->axis[i], q->axis[i]))
				return "q, k and v differ in their leading axes";
		for (int i = x->rank - 2; i < x->rank; i++)
			if (x->axis[i].mul)
				return "queries, keys or widths follow the batch";
		if (x->axis[x->rank - 1].n > WIDTH)
			return arena_printf(g->arena, "a width of %lld: the kernel takes %d",
			                    (long long)x->axis[x->rank - 1].n, WIDTH);
	}
	for (int i = 0; i + 2 < q->rank; i++)
		marks += q->axis[i].mul != 0;
	if (marks > 1)
		return "two leading axes follow the batch";
	return attr_num(op, A_p) >= 1 ? "a dropout that drops everything" : NULL;
}

static Att
att_of(const Graph *g, const Op *op, int vector_bytes)
{
	Att a = {.op = op,
	         .back = op->kind == OP_attention_dx,
	         .causal = attr_bool(op, A_causal),
	         .scale = attr_num(op, A_scale),
	         .p = attr_num(op, A_p),
	         .w = vector_bytes / 4,
	         .entries = 1,
	         .nmask = -1,
	         .nseed = -1};
	int next = a.back ? 6 : 3;

	a.first = a.back;
	a.q = val_type(g, op->in[a.first]);
	a.lead = a.q->rank - 2;
	for (int i = 0; i < a.lead; i++)
		a.entries *= a.q->axis[i].n;
	a.t = a.q->axis[a.lead].n;
	a.d = a.q->axis[a.lead + 1].n;
	a.type = (DType)a.q->dtype;
	a.pairs = a.type != DT_f32;
	a.unit = a.pairs ? engines[ENGINE_PAIRS].unit : 1;
	a.s = val_type(g, op->in[a.first + 1])->axis[a.lead].n;
	a.e = val_type(g, op->in[a.first + 2])->axis[a.lead + 1].n;
	if (attr_bool(op, A_has_mask)) {
		a.nmask = next++;
		a.mask = val_type(g, op->in[a.nmask]);
	}
	if (a.p > 0)
		a.nseed = next;
	/* a tile of scores fills L1; causal, where blocks on the diagonal are half hidden, half of it */
	a.bq = (int)(machine_of(g)->budget.l1 / F32(KEYS)) / (a.causal ? 2 : 1);
	if (a.bq > a.t)
		a.bq = (int)a.t;
	a.keys = attention_columns(&a, a.s);
	a.bk = (int)att_round(a.s < KEYS ? a.s : KEYS, a.keys.nv * a.w);
	return a;
}

AttMemory
attention_memory(const Att *a)
{
	int sides = a->back ? 2 : 1;
	int64_t rows = att_round(a->bq, a->unit), tile = F32(rows * a->bk), all = att_round(a->t, a->unit);
	Layout l = {.unit = 4};
	AttMemory r = {0};

	for (int i = 0; i < sides; i++)
		r.transposed[i] = layout_take(&l, F32((i ? a->e : a->d) / a->unit * a->bk));
	for (int i = 0; i < sides; i++)
		r.tile[i] = layout_take(&l, tile);
	if (!a->back) {
		r.sums = layout_take(&l, F32(a->bq * a->e));
		r.top = layout_take(&l, F32(a->bq));
		r.total = layout_take(&l, F32(a->bq));
	}
	if (a->pairs)
		r.beside = layout_take(&l, a->bk * (a->back ? a->d : a->e) * 2);
	if (a->pairs && a->back) {
		r.queries = layout_take(&l, all * a->d * 2);
		r.grads = layout_take(&l, all * a->e * 2);
		r.rounded = layout_take(&l, rows * a->bk * 2);
		r.result[ATT_DQ] = layout_take(&l, F32(a->t * a->d));
		r.result[ATT_DK] = layout_take(&l, F32(a->bk * a->d));
		r.result[ATT_DV] = layout_take(&l, F32(a->bk * a->e));
	}
	r.bytes = l.bytes + 256; /* vectors may reach behind the last row */
	return r;
}

static Params
att_params(const Att *a)
{
	return (Params){FAMILY_cpu_attention, .cpu_attention = {a->bq, a->bk, a->w, a->threads}};
}

static Facts
att_facts(const Att *a)
{
	int64_t unit = (int64_t)a->keys.nv * a->w;

	return (Facts){.backward = a->back, .lanes_max = a->w, .queries_all = a->t, .keys_all = att_round(a->s, unit),
	               .unit = unit, .pair = a->unit};
}

const char *
attention_read(const Graph *g, const Op *op, int vector_bytes, const char *text, Att *a)
{
	const char *name = op_info[op->kind].name;
	Params q;

	*a = att_of(g, op, vector_bytes);
	Params own = att_params(a);
	Facts f = att_facts(a);

	if (!space_parse("cpu", name, text, &q))
		return arena_printf(g->arena, "%s takes parameters such as %s", name, space_text(g->arena, &own));
	a->bq = q.cpu_attention.queries;
	a->bk = q.cpu_attention.keys;
	a->threads = q.cpu_attention.threads;
	return space_misfit(g->arena, &q, &f);
}

const char *
attention_select(Graph *g, const Op *op, int vector_bytes, SelectCx *cx, int64_t *workspace)
{
	Att a = att_of(g, op, vector_bytes), t;

	cx->misfit = cx->tuned ? attention_read(g, op, vector_bytes, cx->tuned, &t) : NULL;
	if (cx->tuned && !cx->misfit)
		a = t;
	Params p = att_params(&a);

	/* backward: the rows' sums of g y */
	*workspace = a.back ? att_round(F32(a.entries * a.t), 64) : 0;
	scratch_plan(g, attention_memory(&a).bytes);
	return space_text(g->arena, &p);
}

typedef struct Trial { const Graph *g; Params base; Facts facts; SpaceEach *each; void *cx; } Trial;

static bool
trial(void *cx, const Params *q)
{
	const Trial *t = cx;

	return t->each(t->cx, space_text(t->g->arena, q), space_class(&t->base, q, &t->facts));
}

void
attention_space(const Graph *g, const Op *op, int vector_bytes, const SelectCx *cx, const char *kernel,
	SpaceEach *each, void *each_cx)
{
	Trial t = {.g = g, .each = each, .cx = each_cx};
	Att a;

	if (attention_read(g, op, vector_bytes, kernel, &a))
		return;
	t.base = att_params(&a);
	t.facts = att_facts(&a);
	t.facts.threads_max = cx->threads;
	space_each(&t.base, &t.facts, cx->steps, trial, &t);
}
