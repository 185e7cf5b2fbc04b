/* infer.c: makes graph `infer` from `eval`.
 *
 * In: graph eval.  Out: a copy of it that keeps only the outputs among its results, without the ops and inputs' checks
 * that nothing else needs: infer asks for the inputs its outputs depend on and no others. Checks of kept ops stay: an
 * id out of range is an error there too. Stores go: an evaluation adds up its metrics, inference does not. What kept
 * the evaluation to some sizes of a batch (`multiple`, `one_batch`) counts no more if only losses and metrics needed
 * it; `full_only` stays, for nothing says which ops it is of. A model without outputs gets no graph infer. */
#include "passes.h"
#include <string.h>

/* A check is an effect and would keep labels alive: it goes when nothing but checks uses its input's sources. */
void
graph_idle_checks(Graph *g, Arena *scratch)
{
	bool *live = arena_array(scratch, bool, g->val.n);

	for (uint32_t i = 0; i < g->result.n; i++)
		live[g->result.at[i].v.id] = true;
	for (uint32_t i = g->op.n; i-- > 0;) {
		Op *op = &g->op.at[i];
		bool used = op->kind == OP_store && !op->dead;

		for (int k = 0; k < op->nout; k++)
			used |= live[op->out[k].id];
		for (int k = 0; used && k < op->nin; k++)
			live[op->in[k].id] = true;
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		if (op->kind == OP_check && !live[op->in[0].id])
			op->dead = true;
	}
}

bool
pass_infer(Module *m, PassCtx *cx)
{
	const Graph *eval = graph_named(m, "eval", false);
	bool outputs = false;
	uint32_t kept = 0;
	Graph *g;

	if (!eval || graph_named(m, "infer", false))
		return false;
	for (uint32_t i = 0; i < eval->result.n; i++)
		outputs |= eval->result.at[i].kind == RES_OUTPUT;
	if (!outputs)
		return false;
	g = graph_copy(m, eval, "infer");
	graph_place_after(m, g, eval);
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].kind == RES_OUTPUT)
			g->result.at[kept++] = g->result.at[i];
	g->result.n = kept;
	for (uint32_t i = 0; i < g->op.n; i++)
		g->op.at[i].dead |= g->op.at[i].kind == OP_store;
	graph_idle_checks(g, cx->scratch);
	graph_sweep(g, cx->scratch);
	graph_multiple(g);
	g->one_batch = NULL;
	g->one_batch_loc = (Loc){0};
	return true;
}
