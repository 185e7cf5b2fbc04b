/* decompose.c: composite ops become simpler ops where the target has no kernel for them.
 *
 * In: stage diffed.  Out: every composite op left is one that the target implements. `--disable attention` (lstm, gru)
 * decomposes that operator, its gradient and its recurrence on any target; without a target everything is decomposed.
 * The decompositions themselves are functions named by ops.def; what they build may be composite again (lstm leaves
 * lstm.cells), so the pass goes on until nothing is left to do. Every decomposition leaves a verdict: what the target
 * said. */
#include <math.h>
#include <string.h>
#include "passes.h"

/* attention.dx belongs to attention, lstm.cells to lstm. */
static bool
switched_off(const PassCtx *cx, const char *name)
{
	char base[32];
	size_t n = strcspn(name, ".");

	if (n >= sizeof base)
		return false;
	memcpy(base, name, n);
	base[n] = 0;
	return pass_disabled(cx, base);
}

/* Why op has to go; NULL if it may stay. */
static const char *
why_decompose(const PassCtx *cx, const Graph *g, const Op *op)
{
	const OpInfo *info = &op_info[op->kind];

	if (!op_has(op->kind, T_COMPOSITE) || !info->decompose)
		return NULL;
	if (switched_off(cx, info->name))
		return "switched off by --disable";
	if (!cx->target)
		return "no target";
	if (cx->target->has_kernel && !cx->target->has_kernel(cx->target, op->kind))
		return arena_printf(cx->scratch, "target %s has no kernel for it", cx->target->name);
	return cx->target->refuses ? cx->target->refuses(cx->target, g, op) : NULL;
}

/* One sweep over the graph. */
static void
decompose_ops(Graph *g, PassCtx *cx)
{
	Rewrite rw = rewrite_begin(g, cx->scratch);

	for (uint32_t i = 0; i < rw.nold; i++) {
		const Op *op = rewrite_inputs(&rw, i);
		const char *why = why_decompose(cx, g, op);
		Val out[8] = {{0}};

		if (!why) {
			rewrite_keep(&rw, op);
			continue;
		}
		op_info[op->kind].decompose(&rw.b, op, out);
		for (int k = 0; k < op->nout; k++)
			rewrite_to(&rw, op->out[k], out[k]);
		verdict(cx, (Verdict){.pass = "decompose",
		                      .rule = "decompose",
		                      .graph = g->name,
		                      .a = op->path,
		                      .opa = op_info[op->kind].name,
		                      .fired = true,
		                      .why = why,
		                      .value = NAN,
		                      .loc = op->loc});
	}
	rewrite_end(&rw);
}

bool
pass_decompose(Graph *g, PassCtx *cx)
{
	bool changed = false;

	for (;;) {
		bool any = false;

		for (uint32_t i = 0; i < g->op.n && !any; i++)
			any = why_decompose(cx, g, &g->op.at[i]) != NULL;
		if (!any)
			return changed;
		decompose_ops(g, cx);
		changed = true;
	}
}
