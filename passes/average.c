/* average.c: the end of pass optimizer: a running mean of every trained parameter, which evaluation and inference read.
 *
 * In: stores of parameters in graphs train or update; train.average = ema(decay).   Out: states NAME.average
 * of kind average, and stores of them: after update t, from 0, average = d average + (1 - d) w, d = 0 for t = 0 and
 * else decay (PyTorch's AveragedModel with get_ema_multi_avg_fn: the first update is copied). Graphs eval and infer
 * load NAME.average in place of NAME. Parameters that nothing updates have no average, nor have running statistics,
 * which are means already. The decay is a setting of the run; a step that loss scaling leaves out moves no average. */
#include <string.h>
#include "passes.h"

typedef struct Average { Module *m; Build b; double decay; Val keep[DT_COUNT], take[DT_COUNT]; } Average;

/* d and 1 - d of this step, in a parameter's dtype. */
static void
average_scalars(Average *a, DType dt)
{
	Build *b = &a->b;
	Val keep, first, zero = build_const(b, DT_f64, 0);

	if (a->keep[dt].id)
		return;
	b->loc = (Loc){0};
	b->path = "";
	keep = build_cast(b, build_setting(b, DT_f64, "average.decay", a->decay), DT_f64);
	first = build(b, OP_eq, graph_need_input(b->g, IN_STEP), build_const(b, DT_i64, 0));
	keep = build(b, OP_where, first, zero, keep);
	a->keep[dt] = build_cast(b, keep, dt);
	a->take[dt] = build_cast(b, build(b, OP_sub, build_const(b, DT_f64, 1), keep), dt);
}

static void
average_param(Average *a, const State *param, const Op *store, Val good)
{
	Build *b = &a->b;
	const char *name = arena_printf(a->m->arena, "%s.average", param->name);
	DType dt = (DType)param->type.dtype;
	Type type = type_of(dt, param->type.rank, param->type.axis);
	Loc loc = param->loc;
	bool decay = param->decay;
	Val old, v;
	State *s;

	if (!module_state(a->m, name)) {
		s = module_add_state(a->m, name, type, ST_AVERAGE);
		s->init = INIT_CONSTANT;
		s->loc = loc;
		s->decay = decay;
	}
	average_scalars(a, dt);
	b->loc = store->loc;
	b->path = store->path;
	old = build_load(b, name);
	v = build(b, OP_mul, old, a->keep[dt]);
	v = build(b, OP_add, v, build(b, OP_mul, store->in[0], a->take[dt]));
	if (good.id)
		v = build(b, OP_where, good, v, old);
	build_op(b, OP_store, &v, 1, ATTRS(AS(state, name)), NULL);
}

static bool
average_graph(Average *a, Graph *g)
{
	uint32_t n = g->op.n;
	bool changed = false;
	Val good;

	a->b = (Build){.g = g};
	memset(a->keep, 0, sizeof a->keep);
	memset(a->take, 0, sizeof a->take);
	good = loss_scale_good(&a->b);
	for (uint32_t i = 0; i < n; i++) {
		Op op = g->op.at[i];
		const State *s = op.kind == OP_store && !op.dead ? module_state(a->m, attr_str(&op, A_state)) : NULL;

		if (!s || s->kind != ST_PARAM)
			continue;
		average_param(a, s, &op, good);
		changed = true;
	}
	if (a->b.error)
		bug("graph %s, averages do not build: %s", g->name, a->b.error);
	if (changed)
		graph_stores_last(g);
	return changed;
}

/* eval and infer: what has an average is read from it. */
static bool
read_averages(Module *m, Graph *g)
{
	bool changed = false;

	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];
		const char *name =
		        op->kind == OP_load ? arena_printf(m->arena, "%s.average", attr_str(op, A_state)) : NULL;
		State *s = name ? module_state(m, name) : NULL;
		Attr *attr;

		if (!s || s->kind != ST_AVERAGE)
			continue;
		attr = arena_array(g->arena, Attr, op->nattr);
		memcpy(attr, op->attr, sizeof *attr * op->nattr);
		for (int k = 0; k < op->nattr; k++)
			if (attr[k].name == A_state)
				attr[k].s = s->name;
		op->attr = attr;
		changed = true;
	}
	return changed;
}

bool
optimizer_averages(Module *m)
{
	const Setting *s = setting(m, "train.average"), *d = s && s->kind == SET_CALL ? setting_arg(s, "decay") : NULL;
	Average a = {.m = m, .decay = d ? d->f : 0.999};
	bool changed = false;

	if (!s || s->kind != SET_CALL)
		return false;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && m->graph.at[i]->training)
			changed |= average_graph(&a, m->graph.at[i]);
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && !m->graph.at[i]->training)
			changed |= read_averages(m, m->graph.at[i]);
	return changed;
}
