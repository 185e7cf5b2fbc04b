/* cut.c: which updates of parameters ranks may share by place (build --shard-optimizer).
 *
 * In: graph update's kernels, of a module with setting train.shard_optimizer.   Out: KernelRec.cut of each kernel that
 * is all of its group, goes through its values as they lie in memory, and stores one parameter with its slots (and
 * its average, its copy). Each element then needs its own place of the gradient and the slots alone, so that a rank may
 * run a part of the tasks, and has slots for that part.
 * A group is left whole, by every rank, where another one reads what it makes, or a slot of its own: lamb's norms of
 * an update. A gradient that another group reads too (a norm, a test of whether it is finite) is known to all ranks
 * whole, as without the option; others only to those who apply them. */
#include "codegen.h"
#include "program.h"

#include <string.h>

static Val
behind_views(const Graph *g, Val v)
{
	for (const Op *op = val_op(g, v); op && op_has((OpKind)op->kind, T_VIEW) && op->nin; op = val_op(g, v))
		v = op->in[0];
	return v;
}

/* Does an op outside the group use value v, or a view of it? Stores of the group's own values are its own. */
static bool
used_elsewhere(const Graph *g, int group, Val v)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool view = op_has((OpKind)op->kind, T_VIEW) && op->group < 0;

		for (int k = 0; !op->dead && !view && op->group != group && k < op->nin; k++)
			if (behind_views(g, op->in[k]).id == v.id)
				return true;
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		if (behind_views(g, g->result.at[i].v).id == v.id)
			return true;
	return false;
}

/* Does another group read the state? */
static bool
read_elsewhere(const Graph *g, int group, const char *state)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->kind == OP_load && !strcmp(attr_str(op, A_state), state) &&
		    used_elsewhere(g, group, op->out[0]))
			return true;
	}
	return false;
}

static bool
alone_in_group(const GraphKernels *gk, uint32_t k)
{
	for (uint32_t i = 0; i < gk->k.n; i++)
		if (i != k && gk->k.at[i].group == gk->k.at[k].group)
			return false;
	return true;
}

/* The states that the group stores. False: they are not one parameter with slots. */
static bool
stored_states(const Module *m, const Graph *g, int group, Arena *a, KernelCut *cut)
{
	const State *param = NULL, *slot = NULL;
	int64_t n = 0;
	uint32_t last;

	for (uint32_t i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		for (int k = 0; op->kind != OP_store && k < op->nout; k++)
			if (used_elsewhere(g, group, op->out[k]))
				return false;
		if (op->kind != OP_store)
			continue;
		const State *s = module_state((Module *)(uintptr_t)m, attr_str(op, A_state));

		if ((s->kind == ST_PARAM && param) || (n && type_elements(&s->type) != n) ||
		    (s->kind != ST_PARAM && s->kind != ST_SLOT && s->kind != ST_AVERAGE && s->kind != ST_COPY) ||
		    (s->kind == ST_SLOT && read_elsewhere(g, group, s->name)))
			return false;
		n = type_elements(&s->type);
		param = s->kind == ST_PARAM ? s : param;
		slot = s->kind == ST_SLOT ? s : slot;
		vec_push(a, &cut->state, (uint32_t)(s - m->state.at));
	}
	if (!param || !slot)
		return false;
	const State *grad = module_state((Module *)(uintptr_t)m, arena_printf(a, "%s.grad", param->name));

	if (!grad || grad->kind != ST_GRAD || type_elements(&grad->type) != n)
		return false;
	cut->grad = (uint32_t)(grad - m->state.at);
	cut->whole = read_elsewhere(g, group, grad->name);
	return true;
}

int
program_mark_cuts(const Module *m, ProgramKernels *ks, Arena *a)
{
	int n = 0;

	for (uint32_t i = 0; i < ks->graph.n && program_setting(m, CUT_SETTING, 0); i++) {
		GraphKernels *gk = ks->graph.at[i];

		for (uint32_t k = 0; k < gk->k.n && !strcmp(gk->g->name, "update"); k++) {
			KernelCut cut = {0};

			if (!gk->k.at[k].each || gk->k.at[k].group < 0 || !alone_in_group(gk, k) ||
			    !stored_states(m, gk->g, gk->k.at[k].group, a, &cut))
				continue;
			KernelCut *kept = arena_new_of(a, KernelCut);

			*kept = cut;
			gk->k.at[k].cut = kept;
			n++;
		}
	}
	return n;
}

const char *
program_lacks_cuts(const Module *m, int cuts)
{
	return cuts || !program_setting(m, CUT_SETTING, 0)
	               ? NULL
	               : arena_printf(m->arena,
	                              "--shard-optimizer: there is no parameter of %s whose optimizer slots could be "
	                              "shared out by place",
	                              m->name);
}
