/* kernelcheck.c: are the kernels that a text names those that these groups can have, and is there memory enough for
 * them?
 *
 * In: a module of stage selected or later, whose text may be anybody's; a target.   Out: NULL, or a sentence that names
 * the group. Method: the target selects again, on a copy, and is told to take the parameters that stand there; what it
 * then says must be what stands there, and the text must plan no less workspace, bytes kept and memory of threads.
 * Which variants were allowed is not known: it is asked with all of them and with none. */
#include "pass.h"
#include <string.h>

typedef struct Asked { bool all, prepack; } Asked;

static bool
may(void *cx, const char *variant)
{
	const Asked *a = cx;

	return strcmp(variant, "prepack") ? a->all : a->prepack;
}

/* What is selected for this text, into the copy's group; *error: why there is nothing. */
static bool
same_again(const Target *t, const char *arch, Graph *copy, int group, const Group *text, SelectCx *s,
           const char **error)
{
	Group *gr = &copy->group.at[group];
	const bool *steady = s->steady;
	const uint32_t *uses = s->uses;
	int64_t scratch = copy->module->scratch_bytes;

	for (int all = 0; all < 2; all++) { /* the last has the better reason */
		Asked asked = {all, text->prepacked > 0};

		*s = (SelectCx){.arch = arch, .tuned = text->kernel, .steady = steady, .uses = uses, .may = may,
		                .cx = &asked};
		gr->prepacked = 0;
		copy->module->scratch_bytes = scratch;
		*error = t->select(t, copy, group, s);
		if (!*error && !strcmp(gr->kernel, text->kernel))
			return true;
	}
	copy->module->scratch_bytes = scratch;
	return false;
}

static const char *
check_group(const Target *t, const char *arch, Graph *copy, int group, const Group *text, SelectCx *s, Arena *a)
{
	const char *error, *name = copy->name;
	Group *gr = &copy->group.at[group];

	if (!same_again(t, arch, copy, group, text, s, &error)) {
		if (s->absent)
			return NULL;
		if (!error && t->tuning.tunable && t->tuning.tunable(t, text->kernel))
			error = s->misfit;
		return arena_printf(a, "graph %s: group %s '%s': %s%s%s", name, text->name, text->kernel,
		                    error ? error : "its kernel is '", error ? "" : gr->kernel, error ? "" : "'");
	}
	if (text->workspace < gr->workspace)
		return arena_printf(a, "graph %s: group %s '%s': it needs a workspace of %lld bytes, not of %lld", name,
		                    text->name, text->kernel, (long long)gr->workspace, (long long)text->workspace);
	if (text->prepacked && text->prepacked < gr->prepacked)
		return arena_printf(a, "graph %s: group %s '%s': it keeps %lld bytes, not %lld", name, text->name,
		                    text->kernel, (long long)gr->prepacked, (long long)text->prepacked);
	if (text->prepacked && !gr->prepacked)
		return arena_printf(a, "graph %s: group %s '%s': it keeps nothing here", name, text->name,
		                    text->kernel);
	return NULL;
}

const char *
kernelcheck(const Module *m, const Target *t, const char *arch, Arena *a)
{
	Module *copy;

	if (!t->select)
		return NULL;
	copy = module_clone(m, a);
	copy->scratch_bytes = 0;
	for (uint32_t k = 0; k < m->graph.n; k++) {
		const Graph *g = m->graph.at[k];
		Graph *c = copy->graph.at[k];
		SelectCx s = {.steady = graph_steady(c, a), .uses = graph_use_counts(c, a)};

		for (uint32_t i = 0; i < g->group.n; i++) {
			const char *error = check_group(t, arch, c, (int)i, &g->group.at[i], &s, a);

			for (uint32_t v = 0; !error && v < g->group.at[i].variant.n; v++) {
				Group one = g->group.at[i];

				one.kernel = one.variant.at[v].kernel;
				one.workspace = one.variant.at[v].workspace;
				one.prepacked = one.variant.at[v].prepacked;
				error = check_group(t, arch, c, (int)i, &one, &s, a);
			}
			if (error)
				return error;
			c->group.at[i] = g->group.at[i]; /* others ask whether it keeps */
		}
	}
	if (m->scratch_bytes < copy->scratch_bytes)
		return arena_printf(a, "kernels need %lld bytes of memory for each thread, the module plans %lld",
		                    (long long)copy->scratch_bytes, (long long)m->scratch_bytes);
	return NULL;
}
