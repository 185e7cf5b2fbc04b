/* naive.c: the plainest plan: every op a group of its own, every value a place of its own, nothing shared.
 *
 * In: a module whose ops the target has kernels for.   Out: groups, offsets, arena_bytes, stage planned. For tests, and
 * to see what the planner gains. Views are copies; stores are copies behind everything else. */
#include "harness.h"

#define ALIGN 64

static int64_t
take(int64_t *at, int64_t bytes)
{
	int64_t r = *at;

	*at += (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN; /* a gap between neighbours */
	return r;
}

void
naive_plan(Module *m, const Target *t, const char *arch)
{
	int64_t at = ALIGN; /* the fault record */

	for (uint32_t i = 0; i < m->state.n; i++)
		m->state.at[i].offset = take(&at, type_bytes(&m->state.at[i].type));
	for (uint32_t i = 0; i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		if (g->is_loop)
			continue;
		for (uint32_t v = 1; v < g->val.n; v++)
			g->val.at[v].offset = take(&at, type_bytes(&g->val.at[v].type));
		g->group.n = 0;
		for (uint32_t k = 0; k < g->op.n; k++) {
			Op *op = &g->op.at[k];

			if (op->dead)
				continue;
			if (op->kind == OP_load) {
				op->group = -1;
				val_info(g, op->out[0])->offset = module_state(m, attr_str(op, A_state))->offset;
				continue;
			}
			op->group = (int32_t)g->group.n;
			vec_push(g->arena, &g->group,
			         ((Group){.name = arena_printf(g->arena, "%s_%u_%s", g->name, (unsigned)k,
			                                       op_info[op->kind].name),
			                  .workspace_offset = -1,
			                  .prepacked_offset = -1}));
			const char *error = t->select(t, g, op->group, &(SelectCx){.arch = arch});
			Group *gr = &g->group.at[op->group];

			if (error)
				die("%s: %s", gr->name, error);
			if (gr->workspace)
				gr->workspace_offset = take(&at, gr->workspace);
		}
	}
	m->arena_bytes = at;
	m->stage = "planned";
}
