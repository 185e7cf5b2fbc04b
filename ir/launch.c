/* launch.c: which kernels share a launch: what a planned graph says of it (Group.launch), and whether it may.
 *
 * Kernels come in the order of their groups, those of groups that run once first. A run of kernels with numbers is
 * launched in the order of its numbers, equal numbers together; a kernel without one is launched where it stands, and
 * numbers go up past it. So a kernel may be launched beside, or ahead of, one that stands before it: only if neither
 * writes what the other reads or writes. */
#include "ir.h"
#include <string.h>

void
group_touches(const Graph *g, int group, Touched *t, Arena *a)
{
	const Group *gr = &g->group.at[group];

	t->read.n = t->written.n = 0;
	if (gr->workspace > 0) {
		MemSpan own = {gr->workspace_offset, gr->workspace_offset + gr->workspace};

		vec_push(a, &t->read, own);
		vec_push(a, &t->written, own);
	}
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		if (op->kind == OP_store) {
			const State *s = module_state(g->module, attr_str(op, A_state));

			vec_push(a, &t->written, ((MemSpan){s->offset, s->offset + type_bytes(&s->type)}));
		}
		for (int j = 0; j < op->nin + op->nout; j++) {
			const ValInfo *v = val_info(g, j < op->nin ? op->in[j] : op->out[j - op->nin]);
			MemSpan r = {v->offset, v->offset + type_bytes(&v->type)};

			if (v->offset >= 0 && j < op->nin)
				vec_push(a, &t->read, r);
			else if (v->offset >= 0 && op->kind != OP_load)
				vec_push(a, &t->written, r);
		}
	}
}

void
touched_add(Touched *all, const Touched *one, Arena *a)
{
	for (uint32_t i = 0; i < one->read.n; i++)
		vec_push(a, &all->read, one->read.at[i]);
	for (uint32_t i = 0; i < one->written.n; i++)
		vec_push(a, &all->written, one->written.at[i]);
}

static bool
spans_meet(const MemSpan *a, uint32_t na, const MemSpan *b, uint32_t nb)
{
	for (uint32_t i = 0; i < na; i++)
		for (uint32_t k = 0; k < nb; k++)
			if (a[i].from < b[k].to && b[k].from < a[i].to)
				return true;
	return false;
}

const char *
touched_meet(const Touched *b, const Touched *a)
{
	return spans_meet(b->read.at, b->read.n, a->written.at, a->written.n)       ? "reads what %s writes"
	       : spans_meet(b->written.at, b->written.n, a->read.at, a->read.n)     ? "writes what %s reads"
	       : spans_meet(b->written.at, b->written.n, a->written.at, a->written.n) ? "writes what %s writes"
	                                                                              : NULL;
}

/* A kernel of a group that has numbers. */
typedef struct Entry { int group, launch; } Entry;
typedef struct Entries { VEC(Entry) at; } Entries;

/* The graph's numbers in the order of its kernels. */
static void
entries_of(const Graph *g, Entries *e, Arena *a)
{
	for (int once = 1; once >= 0; once--)
		for (uint32_t i = 0, last = UINT32_MAX; i < g->op.n; i++) {
			const Op *op = &g->op.at[i];

			if (op->dead || op->group < 0 || (uint32_t)op->group == last ||
			    g->group.at[op->group].once != (once == 1))
				continue;
			last = (uint32_t)op->group;
			for (uint32_t k = 0; k < g->group.at[last].launch.n; k++)
				vec_push(a, &e->at, ((Entry){(int)last, g->group.at[last].launch.at[k]}));
		}
}

/* Kernel k, launched no later than entry i that stands before it. */
static const char *
pair_wrong(const Graph *g, const Entry *i, const Entry *k, Touched **t, Arena *a)
{
	const Entry *both[2] = {i, k};

	if (i->group == k->group)
		return arena_printf(a, "kernels of group #%d (%s) are launched together, or not in their order",
		                    i->group, g->group.at[i->group].name);
	for (int j = 0; j < 2; j++)
		if (!t[both[j]->group]) {
			t[both[j]->group] = arena_new_of(a, Touched);
			group_touches(g, both[j]->group, t[both[j]->group], a);
		}
	const char *how = touched_meet(t[k->group], t[i->group]);

	if (!how)
		return NULL;
	how = arena_printf(a, "group #%d (%s) is in launch %d, and %s", k->group, g->group.at[k->group].name, k->launch,
	                   how);
	return arena_printf(a, how, arena_printf(a, "group #%d (%s) of launch %d", i->group,
	                                         g->group.at[i->group].name, i->launch));
}

bool
op_joins_shards(const Op *op)
{
	return !op->dead && (op->kind == OP_all_reduce || op->kind == OP_all_moments);
}

const char *
launches_wrong(const Graph *g, Arena *a)
{
	Entries e = {.at = {0}};
	Touched **t = arena_array(a, Touched *, g->group.n + 1);
	int most = -1, before = -1; /* numbers so far; those that all behind must be above */

	for (uint32_t i = 0; i < g->op.n; i++)
		if (op_joins_shards(&g->op.at[i]) && g->op.at[i].group >= 0 && g->group.at[g->op.at[i].group].launch.n)
			return arena_printf(a, "group #%d (%s) waits for other shards: it shares no launch",
			                    (int)g->op.at[i].group, g->group.at[g->op.at[i].group].name);
	entries_of(g, &e, a);
	for (uint32_t k = 0; k < e.at.n; k++) {
		const Entry *x = &e.at.at[k];
		const Group *gr = &g->group.at[x->group];

		if (gr->variant.n)
			return arena_printf(a, "group #%d (%s) races: it shares no launch", x->group, gr->name);
		if (x->launch < 0 || (k && gr->once != g->group.at[e.at.at[k - 1].group].once))
			before = most;
		if (x->launch < 0)
			continue;
		if (x->launch <= before)
			return arena_printf(a, "group #%d (%s) is in launch %d, ahead of a kernel that stands before "
			                    "it and has no number, or runs once", x->group, gr->name, x->launch);
		for (uint32_t i = k; x->launch <= most && i-- > 0 && e.at.at[i].launch > before;)
			if (e.at.at[i].launch >= x->launch) {
				const char *wrong = pair_wrong(g, &e.at.at[i], x, t, a);

				if (wrong)
					return wrong;
			}
		most = x->launch > most ? x->launch : most;
	}
	return NULL;
}
