/* clone.c: deep copies of modules.
 *
 * In: a module of any stage.   Out: one that shares nothing with it but diagnostics: every text, list and attribute
 * lies in the new arena, so that the original's can be freed, and passes that run on the copy leave the original
 * alone. */
#include "ir.h"
#include <string.h>

static const char *
copy_text(Arena *a, const char *s)
{
	return s ? intern(a, s) : NULL;
}

static Setting
setting_clone(Arena *a, const Setting *s)
{
	Setting r = *s;

	r.name = copy_text(a, s->name);
	r.s = copy_text(a, s->s);
	r.arg = s->nargs ? arena_array(a, Setting, s->nargs) : NULL;
	for (int i = 0; i < s->nargs; i++)
		r.arg[i] = setting_clone(a, &s->arg[i]);
	return r;
}

static Op
op_clone(Arena *a, const Op *op)
{
	Op r = *op;

	r.in = memcpy(arena_array(a, Val, op->nin), op->in, sizeof(Val) * op->nin);
	r.out = memcpy(arena_array(a, Val, op->nout), op->out, sizeof(Val) * op->nout);
	r.attr = memcpy(arena_array(a, Attr, op->nattr), op->attr, sizeof(Attr) * op->nattr);
	r.path = copy_text(a, op->path);
	for (int i = 0; i < op->nattr; i++) {
		Attr *at = &r.attr[i];

		if (attr_names[at->name].kind == AK_STR)
			at->s = copy_text(a, at->s);
		else if (attr_names[at->name].kind == AK_INTS)
			at->list = memcpy(arena_array(a, int64_t, at->n), at->list, sizeof(int64_t) * at->n);
	}
	return r;
}

static void
graph_clone_into(Module *m, const Graph *g)
{
	Arena *a = m->arena;
	Graph *r = module_add_graph(m, g->name);

	r->is_loop = g->is_loop;
	r->training = g->training;
	r->full_only = g->full_only;
	r->full_loc = g->full_loc;
	r->full_why = copy_text(a, g->full_why);
	r->one_batch = copy_text(a, g->one_batch);
	r->one_batch_loc = g->one_batch_loc;
	r->multiple = g->multiple;
	r->multiple_loc = g->multiple_loc;
	for (uint32_t i = 1; i < g->val.n; i++) {
		ValInfo v = g->val.at[i];

		v.name = copy_text(a, v.name);
		vec_push(a, &r->val, v);
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		vec_push(a, &r->op, op_clone(a, &g->op.at[i]));
	for (uint32_t i = 0; i < g->input.n; i++) {
		Input in = g->input.at[i];

		in.name = copy_text(a, in.name);
		vec_push(a, &r->input, in);
	}
	for (uint32_t i = 0; i < g->result.n; i++) {
		Result res = g->result.at[i];

		res.name = copy_text(a, res.name);
		vec_push(a, &r->result, res);
	}
	for (uint32_t i = 0; i < g->group.n; i++) {
		Group gr = g->group.at[i];

		gr.name = copy_text(a, gr.name);
		gr.kernel = copy_text(a, gr.kernel);
		gr.record = copy_text(a, gr.record);
		memset(&gr.variant, 0, sizeof gr.variant);
		for (uint32_t k = 0; k < g->group.at[i].variant.n; k++) {
			GroupVariant v = g->group.at[i].variant.at[k];

			v.kernel = copy_text(a, v.kernel);
			vec_push(a, &gr.variant, v);
		}
		memset(&gr.launch, 0, sizeof gr.launch);
		for (uint32_t k = 0; k < g->group.at[i].launch.n; k++)
			vec_push(a, &gr.launch, g->group.at[i].launch.at[k]);
		vec_push(a, &r->group, gr);
	}
}

Module *
module_clone(const Module *m, Arena *a)
{
	Module *r = module_new(a, m->diags, m->name);

	r->batch = m->batch;
	r->arena_bytes = m->arena_bytes;
	r->scratch_bytes = m->scratch_bytes;
	r->stage = copy_text(a, m->stage);
	r->target = copy_text(a, m->target);
	r->arch = copy_text(a, m->arch);
	r->source_hash = m->source_hash;
	for (uint32_t i = 0; i < m->setting.n; i++)
		vec_push(a, &r->setting, setting_clone(a, &m->setting.at[i]));
	for (uint32_t i = 0; i < m->state.n; i++) {
		State s = m->state.at[i];

		s.name = copy_text(a, s.name);
		vec_push(a, &r->state, s);
	}
	for (uint32_t i = 0; i < m->graph.n; i++)
		graph_clone_into(r, m->graph.at[i]);
	return r;
}
