/* dce.c: remove ops whose results nobody needs.
 *
 * In: any stage up to lowered; definitions stand before uses.   Out: same stage; order and names of survivors kept.
 * One backward sweep is enough, because a use always comes later than its definition. Declines nothing: effects, and
 * what they and the graph's results reach, stay. */
#include "passes.h"

static bool
mark_dead(Graph *g, PassCtx *cx, Arena *scratch)
{
	bool *live = arena_array(scratch, bool, g->val.n), changed = false;

	for (uint32_t i = 0; i < g->result.n; i++)
		live[g->result.at[i].v.id] = true;
	for (uint32_t i = g->op.n; i-- > 0;) {
		Op *op = &g->op.at[i];
		bool used = op->dead || op_has(op->kind, T_EFFECT);

		for (int k = 0; k < op->nout; k++)
			used |= live[op->out[k].id];
		if (!used && (!cx || pass_may(cx, "dce"))) {
			op->dead = changed = true;
			continue;
		}
		for (int k = 0; !op->dead && k < op->nin; k++)
			live[op->in[k].id] = true;
	}
	return changed;
}

void
graph_sweep(Graph *g, Arena *scratch)
{
	mark_dead(g, NULL, scratch);
	graph_compact(g);
}

bool
pass_dce(Graph *g, PassCtx *cx)
{
	bool changed = mark_dead(g, cx, cx->scratch);

	if (changed)
		graph_compact(g);
	return changed;
}
