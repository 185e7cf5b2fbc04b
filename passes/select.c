/* select.c: gives each group its kernel: family and parameters as one printable text, and the workspace it needs.
 *
 * In: a scheduled graph.   Out: Group.kernel, Group.workspace; stage selected. The target decides, by its default parameters or by those of a tuning
 * file's record of this kernel (tuning.c), if they fit; a record that does not is said once and left out, each leaves a verdict, `select.tuned`. Variants of
 * kernels (Target.variants) can be switched off and limited like rules; each that was looked at leaves a verdict.
 * A group that the target cannot compile is a defect of fuse (it must have asked may_fuse), hence bug(). */
#include "passes.h"
#include <math.h>

static bool
may(void *cx, const char *variant)
{
	PassCtx *p = cx;
	char rule[64];

	snprintf(rule, sizeof rule, "select.%s", variant);
	return p->opt > 0 && !pass_disabled(p, variant) && pass_may(p, rule);
}

/* The tuning file's record of a group; *op: the op that it is named by. */
static TunedKernel *
record_of(const Graph *g, int group, PassCtx *cx, const Op **op)
{
	Buf key = {0};
	TunedKernel *r = NULL;

	if (!cx->tuning || cx->opt == 0)
		return NULL;
	*op = tuning_key(&key, g, group, cx->target->name, cx->arch);
	if (*op)
		r = tuning_find(cx->tuning, key.at);
	buf_free(&key);
	return r && pass_may(cx, "select.tuned") ? r : NULL;
}

static void
tell_record(const Graph *g, TunedKernel *r, const Op *op, const char *misfit, PassCtx *cx)
{
	const char *why = arena_printf(cx->scratch, "%s, from %s:%u%s%s", r->kernel, tuning_file(cx->tuning), (unsigned)r->at.line, misfit ? ": " : "", misfit ? misfit : "");

	if (misfit && !r->told && g->module->diags)
		diag_warning(g->module->diags, r->at, "these parameters do not fit the kernel, and are ignored: %s", misfit);
	r->told |= misfit != NULL;
	verdict(cx, (Verdict){.pass = "select", .rule = "select.tuned", .graph = g->name, .a = op->path, .opa = op_info[op->kind].name, .fired = !misfit, .why = why, .value = NAN,
		.loc = op->loc});
}

bool
pass_select(Graph *g, PassCtx *cx)
{
	for (uint32_t i = 0; i < g->group.n; i++) {
		const Op *op = NULL;
		TunedKernel *r = record_of(g, (int)i, cx, &op);
		SelectCx s = {.arch = cx->arch, .tuned = r ? r->kernel : NULL, .may = may, .cx = cx};
		const char *error = cx->target->select(cx->target, g, (int)i, &s);

		if (error)
			bug("select: group %s of graph %s: %s", g->group.at[i].name, g->name, error);
		if (s.variant)
			verdict(cx, (Verdict){.pass = "select", .rule = arena_printf(cx->scratch, "select.%s", s.variant), .graph = g->name, .a = s.op->path, .opa = op_info[s.op->kind].name,
				.fired = s.chosen, .why = s.why, .value = s.value, .loc = s.op->loc});
		if (r)
			tell_record(g, r, op, s.misfit, cx);
	}
	return g->group.n > 0;
}
