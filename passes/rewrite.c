/* rewrite.c: editing a graph in place: replacing ops in the middle, and stores behind all else.
 *
 * In: a graph, definitions before uses.  Out: the same order with ops replaced; names of surviving values are kept, and
 * a value that stands for an old one takes its name. Old ops are taken out first and put back one by one, so that ops
 * built in between land where the op they replace stood. */
#include <string.h>
#include "passes.h"

Rewrite
rewrite_begin(Graph *g, Arena *scratch)
{
	Rewrite rw = {.g = g, .b = {.g = g}, .old = g->op.at, .nold = g->op.n, .nval = g->val.n};

	rw.map = arena_array(scratch, Val, rw.nval);
	for (uint32_t i = 0; i < rw.nval; i++)
		rw.map[i] = (Val){i};
	g->op.at = NULL;
	g->op.n = g->op.cap = 0;
	return rw;
}

/* What stands for v now. */
static Val
rewrite_val(const Rewrite *rw, Val v)
{
	while (v.id < rw->nval && rw->map[v.id].id != v.id)
		v = rw->map[v.id];
	return v;
}

Op *
rewrite_inputs(Rewrite *rw, uint32_t i)
{
	Op *op = &rw->old[i];

	for (int k = 0; k < op->nin; k++)
		op->in[k] = rewrite_val(rw, op->in[k]);
	rw->b.loc = op->loc;
	rw->b.path = op->path;
	return op;
}

void
rewrite_keep(Rewrite *rw, const Op *op)
{
	for (int k = 0; k < op->nout; k++)
		val_info(rw->g, op->out[k])->op = rw->g->op.n;
	vec_push(rw->g->arena, &rw->g->op, *op);
}

void
rewrite_to(Rewrite *rw, Val old, Val with)
{
	ValInfo *a = val_info(rw->g, old), *b = val_info(rw->g, with);

	if (rw->b.error)
		bug("graph %s, rewriting %%%s: %s", rw->g->name, a->name, rw->b.error);
	if (with.id >= rw->nval) {
		const char *name = a->name;

		a->name = b->name;
		b->name = name;
	}
	rw->map[old.id] = with;
}

void
rewrite_end(Rewrite *rw)
{
	Graph *g = rw->g;

	if (rw->b.error)
		bug("graph %s, rewriting: %s", g->name, rw->b.error);
	for (uint32_t i = 0; i < g->result.n; i++)
		g->result.at[i].v = rewrite_val(rw, g->result.at[i].v);
	graph_compact(g);
}

void
graph_stores_last(Graph *g)
{
	Op *old = g->op.at;
	uint32_t n = g->op.n;

	g->op.at = NULL;
	g->op.n = g->op.cap = 0;
	for (int stores = 0; stores < 2; stores++)
		for (uint32_t i = 0; i < n; i++)
			if ((old[i].kind == OP_store) == stores && !old[i].dead) {
				for (int k = 0; k < old[i].nout; k++)
					val_info(g, old[i].out[k])->op = g->op.n;
				vec_push(g->arena, &g->op, old[i]);
			}
}

static Val *
copy_vals(Arena *a, const Val *v, int n)
{
	Val *r = arena_array(a, Val, n);

	for (int i = 0; i < n; i++)
		r[i] = v[i];
	return r;
}

/* Only the lists of operands are the copy's own: attributes are never written in place. */
Graph *
graph_copy(Module *m, const Graph *from, const char *name)
{
	Graph *g = module_add_graph(m, name);

	g->is_loop = from->is_loop;
	g->training = from->training;
	g->full_only = from->full_only;
	g->full_loc = from->full_loc;
	g->full_why = from->full_why;
	g->one_batch = from->one_batch;
	g->one_batch_loc = from->one_batch_loc;
	g->multiple = from->multiple;
	g->multiple_loc = from->multiple_loc;
	g->val.n = 0;
	for (uint32_t i = 0; i < from->val.n; i++)
		vec_push(g->arena, &g->val, from->val.at[i]);
	for (uint32_t i = 0; i < from->op.n; i++) {
		Op op = from->op.at[i];

		op.in = copy_vals(g->arena, op.in, op.nin);
		op.out = copy_vals(g->arena, op.out, op.nout);
		vec_push(g->arena, &g->op, op);
	}
	for (uint32_t i = 0; i < from->input.n; i++)
		vec_push(g->arena, &g->input, from->input.at[i]);
	for (uint32_t i = 0; i < from->result.n; i++)
		vec_push(g->arena, &g->result, from->result.at[i]);
	return g;
}

/* g is the module's last graph; train, update, eval, infer stand before the loops. */
void
graph_place_after(Module *m, Graph *g, const Graph *before)
{
	uint32_t n = m->graph.n - 1, to = 0;

	while (to < n && m->graph.at[to] != before)
		to++;
	for (uint32_t i = n; i > to + 1; i--)
		m->graph.at[i] = m->graph.at[i - 1];
	m->graph.at[to + 1] = g;
}

/* A loop may bear a graph's name. */
Graph *
graph_named(const Module *m, const char *name, bool loop)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (m->graph.at[i]->is_loop == loop && !strcmp(m->graph.at[i]->name, name))
			return m->graph.at[i];
	return NULL;
}
