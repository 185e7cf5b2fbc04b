/* select.c: gives each group its kernel: family and parameters as one printable text, and the workspace it needs.
 *
 * In: a scheduled graph.   Out: Group.kernel, Group.workspace; stage selected. The target decides; the tuner will write the same
 * texts. Variants of kernels (Target.variants) can be switched off and limited like rules; each that was looked at leaves a verdict.
 * A group that the target cannot compile is a defect of fuse (it must have asked may_fuse), hence bug(). */
#include "passes.h"

static bool
may(void *cx, const char *variant)
{
	PassCtx *p = cx;
	char rule[64];

	snprintf(rule, sizeof rule, "select.%s", variant);
	return p->opt > 0 && !pass_disabled(p, variant) && pass_may(p, rule);
}

bool
pass_select(Graph *g, PassCtx *cx)
{
	for (uint32_t i = 0; i < g->group.n; i++) {
		SelectCx s = {.arch = cx->arch, .may = may, .cx = cx};
		const char *error = cx->target->select(cx->target, g, (int)i, &s);

		if (error)
			bug("select: group %s of graph %s: %s", g->group.at[i].name, g->name, error);
		if (s.variant)
			verdict(cx, (Verdict){.pass = "select", .rule = arena_printf(cx->scratch, "select.%s", s.variant), .graph = g->name, .a = s.op->path, .opa = op_info[s.op->kind].name,
				.fired = s.chosen, .why = s.why, .value = s.value, .loc = s.op->loc});
	}
	return g->group.n > 0;
}
