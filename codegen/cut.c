/* cut.c: which updates of parameters ranks may share by place (build --shard-optimizer).
 *
 * In: graph update's kernels, of a module with setting train.shard_optimizer.   Out: KernelRec.cut of each kernel that
 * is all of its group, goes through its values as they lie in memory, and stores one parameter with its slots (and
 * its average, its copy). Each element then needs its own place of the gradient and the slots alone, so that a rank may
 * run a part of the tasks, and has slots for that part.
 * An update whose elements need scalars of the whole tensor (lamb's, its norms) is one rank's alone: all groups that
 * store the parameter and its slots, with those that are read by these only. What neither is true of is left whole, by
 * every rank. A gradient that another group reads too is known to all ranks whole, as without the option; others only
 * to those who apply them. Not by what computes nothing but scalars from it in parts (a norm, a test of whether it is
 * finite): each rank runs those of its own part, and what joins the results is moved behind the last of such kernels,
 * where ranks have told each other theirs once. That is declined where a kernel between them wants a result before, or
 * its memory. */
#include "codegen.h"
#include "program.h"

#include <string.h>

static Val
behind_views(const Graph *g, Val v)
{
	for (const Op *op = val_op(g, v); op && op_has((OpKind)op->kind, T_VIEW) && op->nin; op = val_op(g, v))
		v = op->in[0];
	return v;
}

/* Does an op outside the group use value v, or a view of it? Stores of the group's own values are its own. */
static bool
used_elsewhere(const Graph *g, int group, Val v, const bool *but)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool view = op_has((OpKind)op->kind, T_VIEW) && op->group < 0;

		if (op->dead || view || op->group == group || (but && op->group >= 0 && but[op->group]))
			continue;
		for (int k = 0; k < op->nin; k++)
			if (behind_views(g, op->in[k]).id == v.id)
				return true;
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		if (behind_views(g, g->result.at[i].v).id == v.id)
			return true;
	return false;
}

/* Does another group read the state? but: by group, those that do not count; NULL. */
static bool
read_elsewhere(const Graph *g, int group, const char *state, const bool *but)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->kind == OP_load && !strcmp(attr_str(op, A_state), state) &&
		    used_elsewhere(g, group, op->out[0], but))
			return true;
	}
	return false;
}

static bool
alone_in_group(const GraphKernels *gk, uint32_t k)
{
	for (uint32_t i = 0; i < gk->k.n; i++)
		if (i != k && gk->k.at[i].group == gk->k.at[k].group)
			return false;
	return true;
}

/* The states that the group stores. False: they are not one parameter with slots. */
static bool
stored_states(const Module *m, const Graph *g, int group, Arena *a, KernelCut *cut)
{
	const State *param = NULL, *slot = NULL;
	int64_t n = 0;
	uint32_t last;

	for (uint32_t i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		for (int k = 0; op->kind != OP_store && k < op->nout; k++)
			if (used_elsewhere(g, group, op->out[k], NULL))
				return false;
		if (op->kind != OP_store)
			continue;
		const State *s = module_state((Module *)(uintptr_t)m, attr_str(op, A_state));

		if ((s->kind == ST_PARAM && param) || (n && type_elements(&s->type) != n) ||
		    (s->kind != ST_PARAM && s->kind != ST_SLOT && s->kind != ST_AVERAGE && s->kind != ST_COPY) ||
		    (s->kind == ST_SLOT && read_elsewhere(g, group, s->name, NULL)))
			return false;
		n = type_elements(&s->type);
		param = s->kind == ST_PARAM ? s : param;
		slot = s->kind == ST_SLOT ? s : slot;
		vec_push(a, &cut->state, (uint32_t)(s - m->state.at));
	}
	if (!param || !slot)
		return false;
	const State *grad = module_state((Module *)(uintptr_t)m, arena_printf(a, "%s.grad", param->name));

	if (!grad || grad->kind != ST_GRAD || type_elements(&grad->type) != n)
		return false;
	cut->grad = (uint32_t)(grad - m->state.at);
	return true;
}

/* ---------------------------------------------------------------- updates of one rank */
/* Is s the parameter, or one of its slots, its average, its copy? */
static bool
is_of(const State *s, const State *param)
{
	size_t n = strlen(param->name);

	return s == param || (type_elements(&s->type) == type_elements(&param->type) &&
	                      (s->kind == ST_SLOT || s->kind == ST_AVERAGE || s->kind == ST_COPY) &&
	                      !strncmp(s->name, param->name, n) && s->name[n] == '.' && !strchr(s->name + n + 1, '.'));
}

/* Does nobody but the groups `in` read what the group makes? */
static bool
only_for(const Graph *g, int group, const bool *in)
{
	bool any = false;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		any = true;
		if (op_has((OpKind)op->kind, T_EFFECT))
			return false;
		for (int k = 0; k < op->nout; k++)
			if (used_elsewhere(g, group, op->out[k], in))
				return false;
	}
	return any && !g->group.at[group].once;
}

/* The groups that update the parameter, by group. False: others read what they make, or store. */
static bool
solo_groups(const Module *m, const Graph *g, const State *param, bool *in)
{
	bool more = true, any = false;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->kind != OP_store ||
		    !is_of(module_state((Module *)(uintptr_t)m, attr_str(op, A_state)), param))
			continue;
		if (op->group < 0)
			return false;
		in[op->group] = any = true;
	}
	while (more) {
		more = false;
		for (uint32_t k = 0; k < g->group.n; k++)
			if (!in[k] && only_for(g, (int)k, in))
				in[k] = more = true;
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group < 0 || !in[op->group])
			continue;
		if (op->kind == OP_store &&
		    !is_of(module_state((Module *)(uintptr_t)m, attr_str(op, A_state)), param))
			return false;
		for (int k = 0; op->kind != OP_store && k < op->nout; k++)
			if (used_elsewhere(g, op->group, op->out[k], in))
				return false;
	}
	for (uint32_t i = 0; i < m->state.n; i++)
		if (m->state.at[i].kind == ST_SLOT && is_of(&m->state.at[i], param) &&
		    read_elsewhere(g, -1, m->state.at[i].name, in))
			return false;
	return any;
}

/* Kernels that some thread, or every one, has to run at one time are not left out. */
static bool
solo_kernels(const GraphKernels *gk, const bool *in)
{
	for (uint32_t k = 0; k < gk->k.n; k++) {
		const KernelRec *r = &gk->k.at[k];

		if (r->group >= 0 && in[r->group] &&
		    (r->cut || r->once || r->check || r->loss || r->turns || r->shares || r->whole || r->join))
			return false;
	}
	return true;
}

/* The update of the parameter is one rank's, if it may be. */
static bool
mark_solo(const Module *m, GraphKernels *gk, const State *param, int *solo, Arena *a)
{
	const State *grad = module_state((Module *)(uintptr_t)m, arena_printf(a, "%s.grad", param->name));
	bool *in = arena_array(a, bool, gk->g->group.n + 1), slots = false, first = true;

	for (uint32_t i = 0; i < m->state.n; i++)
		slots |= m->state.at[i].kind == ST_SLOT && is_of(&m->state.at[i], param);
	if (!grad || grad->kind != ST_GRAD || !slots || !solo_groups(m, gk->g, param, in) || !solo_kernels(gk, in))
		return false;
	for (uint32_t k = 0; k < gk->k.n; k++) {
		KernelRec *r = &gk->k.at[k];

		if (r->group < 0 || !in[r->group])
			continue;
		KernelCut *cut = arena_new_of(a, KernelCut);

		*cut = (KernelCut){.grad = (uint32_t)(grad - m->state.at), .solo = true};
		for (uint32_t i = 0; i < m->state.n && first; i++)
			if (is_of(&m->state.at[i], param))
				vec_push(a, &cut->state, i);
		first = false;
		r->cut = cut;
		r->each = type_elements(&param->type);
		solo[r->group] = (int)(param - m->state.at) + 1;
	}
	return !first;
}

/* ---------------------------------------------------------------- scalars of gradients */
typedef struct Norms {
	const Module *m;
	GraphKernels *gk;
	Arena *a;
	const int *solo;         /* by group: 1 + the parameter that it updates as one of several, 0 */
	bool *shared;            /* by group: its kernel that reads a gradient is every rank's for its part */
	int64_t *grad;           /* by group: that gradient's place among the states */
	uint32_t first, last;    /* kernels: the first one and the last one of these */
} Norms;

/* The one gradient that the group reads, where it stores nothing: its place among the states; -1. */
static int64_t
gradient_read(const Norms *x, int group)
{
	const Graph *g = x->gk->g;
	int64_t grad = -1;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		if (op->kind == OP_store)
			return -1;
		for (int k = 0; k < op->nin; k++) {
			const Op *by = val_op(g, behind_views(g, op->in[k]));
			const State *s = by && by->kind == OP_load
			                         ? module_state((Module *)(uintptr_t)x->m, attr_str(by, A_state))
			                         : NULL;

			if (!s || s->kind != ST_GRAD)
				continue;
			if (grad >= 0 && grad != s - x->m->state.at)
				return -1;
			grad = s - x->m->state.at;
		}
	}
	return grad;
}

static const KernelCut *
update_of(const GraphKernels *gk, int64_t grad)
{
	for (uint32_t k = 0; k < gk->k.n; k++)
		if (gk->k.at[k].cut && gk->k.at[k].cut->state.n && gk->k.at[k].cut->grad == grad)
			return gk->k.at[k].cut;
	return NULL;
}

/* Kernel k computes scalars of a gradient, and what follows in its group joins them. */
static bool
is_norm(Norms *x, uint32_t k)
{
	const KernelRec *at = x->gk->k.at;
	int group = at[k].group;

	if (!at[k].total || at[k].once || group < 0 || x->solo[group] || (k && at[k - 1].group == group))
		return false;
	for (uint32_t i = k + 1; i < x->gk->k.n && at[i].group == group; i++)
		if (!at[i].finish)
			return false;
	x->grad[group] = gradient_read(x, group);
	return x->grad[group] >= 0 && type_elements(&x->m->state.at[x->grad[group]].type) == at[k].total &&
	       update_of(x->gk, x->grad[group]);
}

/* May what joins the results of kernels [first, last] run behind the last of them? */
static bool
may_wait(const Norms *x)
{
	const KernelRec *at = x->gk->k.at;

	for (uint32_t i = x->first; i <= x->last; i++) {
		Touched one = {.read = {0}}, all = {.read = {0}};

		if (at[i].group < 0)
			return false;
		group_touches(x->gk->g, at[i].group, &one, x->a);
		for (uint32_t k = x->first; k < i; k++) {
			Touched t = {.read = {0}};

			if (at[k].group == at[i].group || !x->shared[at[k].group])
				continue;
			group_touches(x->gk->g, at[k].group, &t, x->a);
			touched_add(&all, &t, x->a);
		}
		if (touched_meet(&one, &all))
			return false;
	}
	return true;
}

/* Which gradients are known whole to all ranks, and which are only to those who apply them. */
static void
mark_whole(const Norms *x, const bool *but)
{
	const GraphKernels *gk = x->gk;
	bool *own = arena_array(x->a, bool, gk->g->group.n + 1);

	for (uint32_t k = 0; k < gk->k.n; k++) {
		KernelCut *c = (KernelCut *)(uintptr_t)gk->k.at[k].cut;
		int group = gk->k.at[k].group;

		for (uint32_t i = 0; c && i < gk->g->group.n; i++)
			own[i] = (but && but[i]) || (c->solo && x->solo[i] == x->solo[group]);
		if (c)
			c->whole = read_elsewhere(gk->g, group, x->m->state.at[c->grad].name, own);
	}
}

/* Kernels [first, last] again, what joins their results behind them all; ranks tell each other between the two. */
static void
joins_last(Norms *x)
{
	KernelRec *at = x->gk->k.at, *later = arena_array(x->a, KernelRec, x->gk->k.n);
	uint32_t n = 0, to = x->first;
	int group = at[x->last].group;

	for (uint32_t k = x->first; k <= x->last; k++)
		if (at[k].finish && x->shared[at[k].group]) {
			at[k].told = true;
			later[n++] = at[k];
		} else {
			at[to++] = at[k];
		}
	memcpy(at + to, later, sizeof *later * n);
	for (uint32_t k = x->last + 1; k < x->gk->k.n && at[k].group == group; k++) /* what stands there already */
		at[k].told = at[k].finish;
	if (to == x->gk->k.n)
		bug("graph %s: nobody reads what kernel %s leaves", x->gk->g->name, at[to - 1].name);
	at[to].tell = true;
}

static void
mark_norms(const Module *m, GraphKernels *gk, const int *solo, Arena *a)
{
	Norms x = {.m = m,
	           .gk = gk,
	           .a = a,
	           .solo = solo,
	           .shared = arena_array(a, bool, gk->g->group.n + 1),
	           .grad = arena_array(a, int64_t, gk->g->group.n + 1)};
	bool any = false;

	for (uint32_t k = 0; k < gk->k.n; k++)
		if (gk->k.at[k].group >= 0 && is_norm(&x, k))
			x.shared[gk->k.at[k].group] = true;
	mark_whole(&x, x.shared);
	for (uint32_t k = 0; k < gk->k.n; k++) {
		int group = gk->k.at[k].group;

		if (group < 0 || !x.shared[group])
			continue;
		if (update_of(gk, x.grad[group])->whole) { /* whoever else needs all of it */
			x.shared[group] = false;
			continue;
		}
		if (gk->k.at[k].total) {
			x.first = any ? x.first : k;
			x.last = k;
			any = true;
		}
	}
	if (!any || !may_wait(&x)) {
		mark_whole(&x, NULL);
		return;
	}
	for (uint32_t k = x.first; k <= x.last; k++)
		if (gk->k.at[k].total && x.shared[gk->k.at[k].group]) {
			KernelCut *cut = arena_new_of(a, KernelCut);

			cut->grad = (uint32_t)x.grad[gk->k.at[k].group];
			gk->k.at[k].cut = cut;
		}
	joins_last(&x);
}

/* States that a step reads nowhere but in the update that stores them: parameters of which graph train reads a copy in
 * 16 bits, averages. */
static void
mark_late(const Module *m, const ProgramKernels *ks, GraphKernels *gk, const int *solo, Arena *a)
{
	const Graph *train = NULL;

	for (uint32_t i = 0; i < ks->graph.n; i++)
		train = strcmp(ks->graph.at[i]->g->name, "train") ? train : ks->graph.at[i]->g;
	for (uint32_t k = 0; k < gk->k.n; k++) {
		KernelCut *c = (KernelCut *)(uintptr_t)gk->k.at[k].cut;
		bool *own = arena_array(a, bool, gk->g->group.n + 1);

		for (uint32_t i = 0; c && i < gk->g->group.n; i++)
			own[i] = (int)i == gk->k.at[k].group || (c->solo && solo[i] == solo[gk->k.at[k].group]);
		for (uint32_t i = 0; c && train && i < c->state.n; i++) {
			const State *s = &m->state.at[c->state.at[i]];

			if (s->kind != ST_SLOT && !read_elsewhere(train, -1, s->name, NULL) &&
			    !read_elsewhere(gk->g, -1, s->name, own))
				vec_push(a, &c->late, c->state.at[i]);
		}
	}
}

int
program_mark_cuts(const Module *m, ProgramKernels *ks, Arena *a)
{
	int n = 0;

	for (uint32_t i = 0; i < ks->graph.n && program_setting(m, CUT_SETTING, 0); i++) {
		GraphKernels *gk = ks->graph.at[i];

		for (uint32_t k = 0; k < gk->k.n && !strcmp(gk->g->name, "update"); k++) {
			KernelCut cut = {0};

			if (!gk->k.at[k].each || gk->k.at[k].group < 0 || !alone_in_group(gk, k) ||
			    !stored_states(m, gk->g, gk->k.at[k].group, a, &cut))
				continue;
			KernelCut *kept = arena_new_of(a, KernelCut);

			*kept = cut;
			gk->k.at[k].cut = kept;
			n++;
		}
		if (strcmp(gk->g->name, "update") != 0)
			continue;
		int *solo = arena_array(a, int, gk->g->group.n + 1);

		for (uint32_t k = 0; k < m->state.n; k++)
			n += m->state.at[k].kind == ST_PARAM && mark_solo(m, gk, &m->state.at[k], solo, a);
		mark_norms(m, gk, solo, a);
		mark_late(m, ks, gk, solo, a);
	}
	return n;
}

const char *
program_lacks_cuts(const Module *m, int cuts)
{
	return cuts || !program_setting(m, CUT_SETTING, 0)
	               ? NULL
	               : arena_printf(m->arena,
	                              "--shard-optimizer: there is no parameter of %s whose optimizer slots could be "
	                              "shared out by place",
	                              m->name);
}
