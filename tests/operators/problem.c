/* problem.c: the graph of a case: the operator, its gradients, its decomposition; and runs of it in double.
 *
 * In: a case.   Out: a module with one graph; what does not fit is a failure of the case. */
#include "cases.h"
#include "../../ir/ref.h"
#include <string.h>

bool
problem_forward(Run *r, const Case *c, Batch batch, Problem *p, Build *b)
{
	Val in[MAX_IN];

	p->m = module_new(r->arena, &r->diags, "case");
	p->m->batch = batch.n;
	p->g = module_add_graph(p->m, batch.marked ? "eval" : "train");
	p->g->training = !batch.marked;
	for (int k = 0; k < c->nin; k++)
		in[k] = graph_add_input(p->g, c->in[k], "x", IN_DATA);
	*b = (Build){.g = p->g, .path = ""};
	if (op_info[c->kind].nin >= 0 && op_info[c->kind].nin != c->nin) {
		failed(r, c->line, "%d operands, the operator has %d", c->nin, op_info[c->kind].nin);
		return false;
	}
	build_op(b, c->kind, in, c->nin, c->attr, c->has_result ? &c->result : NULL);
	if (c->error && (!b->error || !strstr(b->error, c->error)))
		failed(r, c->line, "the message is \"%s\"", b->error ? b->error : "none");
	if (b->error && !c->error)
		failed(r, c->line, "%s", b->error);
	if (b->error)
		return false;
	p->op = *build_last(b);
	p->nresult = p->op.nout;
	for (int k = 0; k < p->nresult; k++)
		graph_add_result(p->g, p->op.out[k], "r", RES_OUTPUT);
	return true;
}

/* The gradients of L: weights of the used results as inputs, the rule, a result per operand that has a gradient. */
bool
problem_backward(Run *r, const Case *c, Problem *p, Build *b)
{
	Val dout[8] = {NOVAL}, din[MAX_IN] = {NOVAL};
	bool need[MAX_IN] = {false};

	for (int k = 0; k < p->nresult; k++) {
		Type t = *val_type(p->g, p->op.out[k]);

		p->weight[k] = -1;
		p->used[k] = p->used[k] && dtype_is_float((DType)t.dtype);
		if (!p->used[k])
			continue;
		p->weight[k] = (int)p->g->input.n;
		dout[k] = graph_add_input(p->g, t, "w", IN_DATA);
	}
	for (int k = 0; k < c->nin; k++)
		need[k] = dtype_is_float((DType)c->in[k].dtype) && k != c->fixed;
	op_info[c->kind].grad(b, &p->op, dout, need, din);
	if (b->error) {
		failed(r, c->line, "gradient: %s", b->error);
		return false;
	}
	for (int k = 0; k < c->nin; k++) {
		p->grad[k] = -1;
		if (!din[k].id)
			continue;
		if (!type_same(val_type(p->g, din[k]), &c->in[k])) {
			failed(r, c->line, "the gradient of operand %d has another type", k);
			return false;
		}
		p->grad[k] = (int)p->g->result.n;
		graph_add_result(p->g, din[k], "d", RES_OUTPUT);
	}
	return true;
}

Module *
decomposed(Run *r, const Module *from, bool (*keep)(const Graph *, const Op *))
{
	Module *m = module_new(r->arena, &r->diags, "decomposed");
	const Graph *old = from->graph.at[0];
	Graph *g = module_add_graph(m, "train");
	Val *map = arena_array(r->arena, Val, old->val.n);
	Build b = {.g = g, .path = ""};
	bool any = false;

	m->batch = 1;
	g->training = true;
	for (uint32_t i = 0; i < old->input.n; i++)
		map[old->input.at[i].v.id] = graph_add_input(g, *val_type(old, old->input.at[i].v), "x", IN_DATA);
	for (uint32_t i = 0; i < old->op.n; i++) {
		Op op = old->op.at[i];
		Val *in = arena_array(r->arena, Val, op.nin), parts[8] = {NOVAL};
		Type *types = arena_array(r->arena, Type, op.nout);
		const Val *out = parts;

		for (int k = 0; k < op.nin; k++)
			in[k] = map[op.in[k].id];
		op.in = in;
		for (int k = 0; k < op.nout; k++)
			types[k] = *val_type(old, op.out[k]);
		if (op_info[op.kind].decompose && !(keep && keep(old, &old->op.at[i]))) {
			op_info[op.kind].decompose(&b, &op, parts);
			any = true;
		} else {
			out = build_again(&b, &op, in, types);
		}
		if (b.error) {
			failed(r, op_info[op.kind].name, "expansion: %s", b.error);
			return NULL;
		}
		for (int k = 0; k < op.nout; k++)
			map[op.out[k].id] = out[k];
	}
	for (uint32_t i = 0; i < old->result.n; i++)
		graph_add_result(g, map[old->result.at[i].v.id], "r", RES_OUTPUT);
	return any ? m : NULL;
}

/* An input or a parameter for v, once. */
static Val
given(Build *b, const Problem *p, Val v, const bool *param, Val *map, Alone *a)
{
	Graph *g = b->g;
	Type t = *val_type(p->g, v);
	bool state = t.rank == 0;

	if (map[v.id].id)
		return map[v.id];
	for (uint32_t k = 0; k < p->g->input.n && k < MAX_IN; k++)
		state |= p->g->input.at[k].v.id == v.id && param[k];
	if (state) {
		const char *name = arena_printf(g->arena, "w%u", (unsigned)v.id);

		a->state[g->module->state.n] = v;
		module_add_state(g->module, name, t, dtype_is_float((DType)t.dtype) ? ST_PARAM : ST_STAT);
		return map[v.id] = build_load(b, name);
	}
	a->input[g->input.n] = v;
	return map[v.id] = graph_add_input(g, t, val_info(p->g, v)->name, IN_DATA);
}

/* Ops [begin, end) of p's graph. */
static bool
copy_ops(Run *r, Build *b, const Problem *p, uint32_t begin, uint32_t end, const bool *param, Val *map, Alone *a)
{
	for (uint32_t i = begin; i < end; i++) {
		const Op *op = &p->g->op.at[i];
		Val *in = arena_array(r->arena, Val, op->nin);
		Type *types = arena_array(r->arena, Type, op->nout);

		for (int k = 0; k < op->nin; k++)
			in[k] = given(b, p, op->in[k], param, map, a);
		for (int k = 0; k < op->nout; k++)
			types[k] = *val_type(p->g, op->out[k]);
		const Val *out = build_again(b, op, in, types);

		if (b->error) {
			failed(r, op_info[op->kind].name, "alone: %s", b->error);
			return false;
		}
		for (int k = 0; k < op->nout; k++)
			map[op->out[k].id] = out[k];
	}
	return true;
}

bool
problem_alone(Run *r, const Problem *p, bool gradient, const bool *param, Alone *a)
{
	Module *m = module_new(r->arena, &r->diags, gradient ? "gradient" : "forward");
	Graph *g = module_add_graph(m, "infer");
	Val *map = arena_array(r->arena, Val, p->g->val.n);
	Build b = {.g = g, .path = ""};

	*a = (Alone){.m = m};
	m->batch = 1;
	/* the operator is the first */
	if (!copy_ops(r, &b, p, gradient, gradient ? p->g->op.n : 1, param, map, a))
		return false;
	for (uint32_t k = 0; k < p->g->result.n; k++) {
		Val v = map[p->g->result.at[k].v.id];
		bool made = v.id && val_op(g, v) && val_op(g, v)->kind != OP_load;

		if (made && ((int)k >= p->nresult) == gradient)
			graph_add_result(g, v, arena_printf(r->arena, "y%u", (unsigned)k), RES_OUTPUT);
	}
	return g->result.n || !p->nresult;
}

double **
room(Run *r, const Graph *g)
{
	double **x = arena_array(r->arena, double *, g->input.n);

	for (uint32_t k = 0; k < g->input.n; k++) {
		int64_t n = type_elements(val_type(g, g->input.at[k].v));

		x[k] = arena_array(r->arena, double, n);
	}
	return x;
}

const char *
run_graph(Interp *in, const Graph *g, int64_t n, double **x)
{
	interp_begin(in, g, n);
	for (uint32_t k = 0; k < g->input.n; k++) {
		RefTensor *to = interp_input(in, (int)k);

		for (int64_t i = 0; i < to->n; i++)
			ref_set(to, i, x[k][i]);
	}
	return interp_run(in);
}
