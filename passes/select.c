/* select.c: gives each group its kernel: family and parameters as one printable text, and the workspace it needs.
 *
 * In: a scheduled graph.   Out: Group.kernel, Group.workspace; stage selected. The target decides, by its default
 * parameters or by those of a tuning file's record of this kernel (tuning.c), if they fit; a record that does not is
 * said once and left out, each leaves a verdict, `select.tuned`. Variants of kernels (Target.variants) can be switched
 * off and limited like rules; each that was looked at leaves a verdict. In graphs that store nothing (eval, infer) what
 * is computed from states and constants alone is made in the first call and kept: whole groups (Group.once), and what a
 * kernel makes of such an operand, packed weights above all (Group.prepacked). Variant `prepack`. In a racing program
 * the other kernels that a race file (race.c) has for a group are selected beside the group's own, each as if a tuning
 * file asked for it; the group then has the largest workspace, bytes kept and memory of threads of them all. One that
 * does not fit is said once and left out. A group that the target cannot compile is a defect of fuse (it must have
 * asked may_fuse), hence bug(). */
#include "passes.h"
#include <math.h>
#include <string.h>

static bool
may(void *cx, const char *variant)
{
	PassCtx *p = cx;
	char rule[64];

	snprintf(rule, sizeof rule, "select.%s", variant);
	return pass_variant(p, variant) && pass_may(p, rule);
}

/* The tuning file's record of a group; *op: the op that it is named by. keys: NULL without a file. */
static TuneRecord *
record_of(const TuneKeys *keys, int group, PassCtx *cx, const Op **op)
{
	Buf key = {0};
	TuneRecord *r = NULL;

	if (!keys)
		return NULL;
	*op = tuning_key(&key, keys, group);
	if (*op)
		r = tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, key.at);
	buf_free(&key);
	return r && pass_may(cx, "select.tuned") ? r : NULL;
}

static void
tell_record(const Graph *g, TuneRecord *r, const Op *op, const char *misfit, bool off, PassCtx *cx)
{
	const char *why = arena_printf(cx->scratch, "%s, from %s:%u%s%s", r->value, tuning_file(cx->tuning),
		(unsigned)r->at.line, misfit ? ": " : "", misfit ? misfit : "");

	if (misfit && cx->locked && !r->told)
		diag_error(g->module->diags, r->at,
			"these parameters do not fit the kernel, and --locked takes no such record: %s", misfit);
	else if (misfit && !off && !r->told && g->module->diags)
		diag_warning(g->module->diags, r->at, "these parameters do not fit the kernel, and are ignored: %s",
		             misfit);
	r->told |= misfit && (cx->locked || !off);
	verdict(cx, (Verdict){.pass = "select",
	                      .rule = "select.tuned",
	                      .graph = g->name,
	                      .a = op->path,
	                      .opa = op_info[op->kind].name,
	                      .fired = !misfit,
	                      .why = why,
	                      .value = NAN,
	                      .loc = op->loc});
}

/* Clears `once` of groups that make anything that is not steady, again and again until nothing changes, as what reads
 * such a group's values is then not steady either. Returns graph_steady. */
static bool *
settle_once(Graph *g, PassCtx *cx)
{
	for (;;) {
		bool changed = false, *steady = graph_steady(g, cx->scratch);

		for (uint32_t i = 0; i < g->op.n; i++) {
			const Op *op = &g->op.at[i];
			Group *gr = op->group >= 0 && !op->dead ? &g->group.at[op->group] : NULL;

			if (gr && gr->once && !(op->nout && steady[op->out[0].id])) {
				gr->once = false;
				changed = true;
			}
		}
		if (!changed)
			return steady;
	}
}

/* Marks groups that are computed from states and constants alone, and of what others of them make. Returns
 * graph_steady. */
static bool *
find_once(Graph *g, PassCtx *cx)
{
	for (uint32_t i = 0; i < g->group.n; i++)
		g->group.at[i].once = true;
	settle_once(g, cx);
	for (uint32_t i = 0; i < g->group.n; i++)
		g->group.at[i].once = g->group.at[i].once && may(cx, "prepack");
	return settle_once(g, cx);
}

/* ---------------------------------------------------------------- racing programs */
/* Of a kernel that a race file names: limits and counts are for choices. */
static bool
may_race(void *cx, const char *variant)
{
	PassCtx *p = cx;

	return p->opt > 0 && !pass_disabled(p, variant);
}

/* How far from the group's own kernel another one may be that adds up in another order: as far as the kernel tests let
 * (64) where a sum is of 1,024 products or fewer. Longer ones are sums over examples and pixels: gradients, which
 * nearly cancel, so that errors are large beside what is left of them. */
static int64_t
default_bound(const Graph *g, const Op *op)
{
	double products = op->nout ? op_flops(g, op) / 2 / (double)type_elements(val_type(g, op->out[0])) : 0;

	return (int64_t)(64 * sqrt(products > 1024 ? products / 1024 : 1));
}

/* The kernel of this line in the group's place, NULL if the group cannot have it. The group itself stays as it is. */
static const GroupVariant *
select_variant(Graph *g, int group, const Op *op, RaceLine *l, const SelectCx *own, PassCtx *cx)
{
	Group *gr = &g->group.at[group], was = *gr;
	int64_t scratch = g->module->scratch_bytes;
	/* what the group's own kernel does not keep, no other does */
	SelectCx s = {.arch = cx->arch,
	              .tuned = l->kernel,
	              .steady = was.prepacked ? own->steady : NULL,
	              .uses = own->uses,
	              .may = may_race,
	              .cx = cx};
	GroupVariant *v = NULL;

	gr->prepacked = 0;
	const char *error = cx->target->select(cx->target, g, group, &s);

	if (!error && !s.misfit && !strcmp(gr->kernel, l->kernel)) {
		v = arena_new_of(cx->scratch, GroupVariant);
		*v = (GroupVariant){.kernel = gr->kernel,
		                    .bits = l->bits,
		                    .bound = l->bound,
		                    .workspace = gr->workspace,
		                    .prepacked = gr->prepacked};
		if (v->bits != CLASS_same && !v->bound)
			v->bound = default_bound(g, op);
	} else {
		g->module->scratch_bytes = scratch;
		if (!l->told)
			diag_warning(g->module->diags, l->at, "this kernel does not fit, and does not race: %s",
			             error      ? error
			             : s.misfit ? s.misfit
			                        : "it has no parameters to choose");
		l->told = true;
	}
	gr->kernel = was.kernel;
	gr->workspace = was.workspace;
	gr->prepacked = was.prepacked;
	return v;
}

/* The race file's kernels for the group beside its own, and room for each of them. */
static void
add_variants(Graph *g, int group, const TuneKeys *keys, const SelectCx *own, PassCtx *cx)
{
	Group *gr = &g->group.at[group];
	Buf key = {0};

	buf_printf(&key, "%s %s %s ", cx->target->name, cx->arch && *cx->arch ? cx->arch : "-",
	           cx->machine && *cx->machine ? cx->machine : "*");
	const Op *op = tuning_key(&key, keys, group);

	for (RaceLine *l = op ? race_first(cx->race, key.at) : NULL; l; l = race_next(cx->race, l)) {
		bool known = !strcmp(l->kernel, gr->kernel);

		l->used = true;
		for (uint32_t i = 0; i < gr->variant.n; i++)
			known |= !strcmp(l->kernel, gr->variant.at[i].kernel);
		const GroupVariant *v = known ? NULL : select_variant(g, group, op, l, own, cx);

		if (!v)
			continue;
		if (!gr->variant.n) {
			gr->record = arena_strdup(g->arena, key.at);
			vec_push(g->arena, &gr->variant,
			         ((GroupVariant){.kernel = gr->kernel,
			                         .workspace = gr->workspace,
			                         .prepacked = gr->prepacked}));
		}
		vec_push(g->arena, &gr->variant, *v);
	}
	group_room(gr);
	buf_free(&key);
}

static bool
has_variant(const Target *t, const char *name)
{
	for (const char *const *v = t->variants; v && *v; v++)
		if (!strcmp(*v, name))
			return true;
	return false;
}

bool
select_keeps(const PassCtx *cx)
{
	return has_variant(cx->target, "prepack") && cx->opt > 0 && !pass_disabled(cx, "prepack");
}

/* What kernels keep from call to call, in one line. */
static void
tell_kept(const Graph *g, PassCtx *cx)
{
	int64_t bytes = 0, kernels = 0;

	for (uint32_t i = 0; i < g->group.n; i++) {
		bytes += g->group.at[i].prepacked;
		kernels += g->group.at[i].prepacked > 0;
	}
	if (kernels)
		verdict(cx, (Verdict){.pass = "select",
		                      .rule = "select.prepack",
		                      .graph = g->name,
		                      .a = "",
		                      .fired = true,
		                      .value = (double)kernels,
		                      .bytes_saved = 2 * bytes,
		                      .why = arena_printf(cx->module->arena,
		                                          "%lld kernels make of their weights in the first call what "
		                                          "they read in every one",
		                                          (long long)kernels)});
}

bool
pass_select(Graph *g, PassCtx *cx)
{
	bool *steady = has_variant(cx->target, "prepack") ? find_once(g, cx) : NULL;
	bool asked = cx->race || (cx->tuning && cx->opt > 0);
	const TuneKeys *keys = asked ? tuning_keys(g, cx->scratch, select_keeps(cx)) : NULL;
	const uint32_t *uses = graph_use_counts(g, cx->scratch);

	for (uint32_t i = 0; i < g->group.n; i++) {
		const Op *op = NULL;
		TuneRecord *r = record_of(cx->tuning && cx->opt > 0 ? keys : NULL, (int)i, cx, &op);
		SelectCx s = {.arch = cx->arch,
		              .tuned = r ? r->value : NULL,
		              .steady = steady,
		              .uses = uses,
		              .may = may,
		              .cx = cx};
		const char *error = cx->target->select(cx->target, g, (int)i, &s);

		if (error)
			bug("select: group %s of graph %s: %s", g->group.at[i].name, g->name, error);
		for (uint32_t k = 0; k < s.looked.n; k++) {
			const Looked *l = &s.looked.at[k];

			verdict(cx, (Verdict){.pass = "select",
			                      .rule = arena_printf(cx->scratch, "select.%s", l->variant),
			                      .graph = g->name,
			                      .a = l->op->path,
			                      .opa = op_info[l->op->kind].name,
			                      .fired = l->chosen,
			                      .why = l->why,
			                      .value = l->value,
			                      .loc = l->op->loc});
		}
		if (r)
			tell_record(g, r, op, s.misfit, s.off, cx);
		/* what runs once is nobody's time */
		if (cx->race && !g->group.at[i].once && cx->target->tuning.tunable
		    && cx->target->tuning.tunable(cx->target, g->group.at[i].kernel))
			add_variants(g, (int)i, keys, &s, cx);
	}
	tell_kept(g, cx);
	return g->group.n > 0;
}
