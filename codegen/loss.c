/* loss.c: the loss of graph train, and the kernel behind which it stands while no parameter has changed.
 *
 * In: a planned Module and its kernels.   Out: KernelRec.loss. */
#include "codegen.h"
#include <string.h>

Val
graph_loss(const Graph *g)
{
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].kind == RES_LOSS)
			return g->result.at[i].v;
	return NOVAL;
}

void
program_mark_loss(const Module *m, ProgramKernels *ks, Arena *a)
{
	for (uint32_t i = 0; i < ks->graph.n; i++) {
		GraphKernels *gk = ks->graph.at[i];
		const Graph *g = gk->g;
		Val v = strcmp(g->name, "train") ? NOVAL : graph_loss(g);
		const Op *by = v.id ? val_op(g, v) : NULL;
		KernelRec *last = NULL;
		bool *stores = arena_array(a, bool, g->group.n);

		while (by && by->group < 0 && by->nin)   /* through views */
			by = val_op(g, by->in[0]);
		for (uint32_t k = 0; k < g->op.n; k++) {
			const Op *op = &g->op.at[k];
			const State *s = !op->dead && op->kind == OP_store
			                         ? module_state((Module *)(uintptr_t)m, attr_str(op, A_state))
			                         : NULL;
			const Op *made = s ? val_op(g, op->in[0]) : NULL;
			int group = op->group >= 0 ? op->group : made ? made->group : -1;

			/* with accumulate the loss's own kernel adds it to a sum, which a second time does no harm */
			if (s && s->kind != ST_STAT && group >= 0 &&
			    !(by && group == by->group && type_elements(&s->type) == 1))
				stores[group] = true;
		}
		for (uint32_t k = 0; by && by->group >= 0 && k < gk->k.n; k++) {
			if (gk->k.at[k].group >= 0 && stores[gk->k.at[k].group])
				break;
			if (gk->k.at[k].group == by->group)
				last = &gk->k.at[k];
		}
		if (last && !last->once)
			last->loss = true;
	}
}
