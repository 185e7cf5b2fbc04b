/* graph.c: a graph: values and their names, inputs, results, the ops of a group, compaction, what is the same in every
 * call.
 *
 * In: a graph.   Out: the graph with more, or an answer about all of it. Value names are kept in a hash set, so that
 * making a name unique stays cheap in graphs of a million values. */
#include "ir.h"
#include <string.h>

const char *const variant_classes[CLASS_COUNT] = {"same", "order", "round"};

/* ---------------------------------------------------------------- names of values */

typedef struct NameSlot { const char *name; uint32_t next; /* suffix to try next */ } NameSlot;
typedef struct NameSet { NameSlot *at; uint32_t n, cap; uint32_t vals; /* values entered so far */ } NameSet;

static NameSlot *
name_slot(const NameSet *s, const char *name)
{
	uint64_t h = hash_bytes(HASH_START, name, strlen(name));

	for (uint32_t i = (uint32_t)(h ^ h >> 32) & (s->cap - 1);; i = (i + 1) & (s->cap - 1))
		if (!s->at[i].name || strcmp(s->at[i].name, name) == 0)
			return &s->at[i];
}

static void
name_enter(Graph *g, const char *name)
{
	NameSet *s = g->names;
	NameSlot *slot;

	if (2 * s->n >= s->cap) {
		NameSet old = *s;

		s->cap = old.cap ? 2 * old.cap : 64;
		s->at = arena_array(g->arena, NameSlot, s->cap);
		for (uint32_t i = 0; i < old.cap; i++)
			if (old.at[i].name)
				*name_slot(s, old.at[i].name) = old.at[i];
	}
	slot = name_slot(s, name);
	if (!slot->name) {
		*slot = (NameSlot){name, 1};
		s->n++;
	}
}

/* Brings the set up to date with values that were pushed by hand or compacted away. */
static void
name_set_refresh(Graph *g)
{
	if (!g->names || g->names->vals > g->val.n) {
		g->names = arena_new_of(g->arena, NameSet);
		name_enter(g, "");
	}
	for (; g->names->vals < g->val.n; g->names->vals++)
		if (g->val.at[g->names->vals].name)
			name_enter(g, g->val.at[g->names->vals].name);
}

/* x, x.1, x.2: a numeric suffix of the wish is dropped first, so that names do not grow with every pass. */
static const char *
unique_name(Graph *g, const char *wish)
{
	char *base = arena_strdup(g->arena, wish && *wish ? wish : "v");
	size_t n = strlen(base), digits = 0;
	NameSlot *slot;

	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", base[i]))
			base[i] = '_';
	name_set_refresh(g);
	if (!name_slot(g->names, base)->name)
		return base;
	while (digits < n && base[n - 1 - digits] >= '0' && base[n - 1 - digits] <= '9')
		digits++;
	if (digits && digits + 1 < n && base[n - 1 - digits] == '.')
		base[n - 1 - digits] = 0;
	name_enter(g, base);
	slot = name_slot(g->names, base);
	for (uint32_t k = slot->next;; k++) {
		const char *name = arena_printf(g->arena, "%s.%u", base, (unsigned)k);

		if (!name_slot(g->names, name)->name) {
			slot->next = k + 1;
			return name;
		}
	}
}

void
graph_name_val(Graph *g, Val v, const char *name)
{
	const char *unique = unique_name(g, name);

	val_info(g, v)->name = unique;
	name_enter(g, unique);
}

/* ---------------------------------------------------------------- values, inputs, results, groups */

Val
graph_add_val(Graph *g, Type t, const char *name, uint32_t op, int index)
{
	ValInfo v = {.type = t, .name = unique_name(g, name), .op = op, .index = (uint16_t)index, .offset = -1};

	vec_push(g->arena, &g->val, v);
	return (Val){g->val.n - 1};
}

Val
graph_add_input(Graph *g, Type t, const char *name, InputKind kind)
{
	Input in = {.v = graph_add_val(g, t, name, UINT32_MAX, 0), .name = intern(g->arena, name), .kind = kind};

	vec_push(g->arena, &g->input, in);
	return in.v;
}

Val
graph_input(const Graph *g, InputKind kind)
{
	for (uint32_t i = 0; i < g->input.n; i++)
		if (g->input.at[i].kind == kind)
			return g->input.at[i].v;
	return NOVAL;
}

Val
graph_need_input(Graph *g, InputKind kind)
{
	static const char *const names[] = {
	        [IN_DATA] = "data", [IN_SEED] = "seed", [IN_STEP] = "step", [IN_RATE] = "rate", [IN_FIRST] = "first"};
	Val v = graph_input(g, kind);

	return v.id ? v : graph_add_input(g, type_scalar(kind == IN_RATE ? DT_f64 : DT_i64), names[kind], kind);
}

void
graph_add_result(Graph *g, Val v, const char *name, ResultKind kind)
{
	Result r = {.v = v, .name = intern(g->arena, name), .kind = kind};

	vec_push(g->arena, &g->result, r);
}

Op *
val_op(const Graph *g, Val v)
{
	uint32_t i = g->val.at[v.id].op;

	return i < g->op.n ? &g->op.at[i] : NULL;
}

/* Does the range stand where a run of ops with this group begins and ends? */
static bool
range_holds(const Graph *g, const Group *gr, int32_t id)
{
	uint32_t a = gr->first, b = gr->last;

	return a < b && b <= g->op.n && g->op.at[a].group == id && g->op.at[b - 1].group == id &&
	       (a == 0 || g->op.at[a - 1].group != id) && (b == g->op.n || g->op.at[b].group != id);
}

uint32_t
graph_group_ops(const Graph *g, int group, uint32_t *last)
{
	Group *at = g->group.at;

	if (!range_holds(g, &at[group], group)) {
		for (uint32_t k = 0; k < g->group.n; k++)
			at[k].first = at[k].last = 0;
		for (uint32_t i = 0; i < g->op.n; i++) {
			int32_t id = g->op.at[i].group;

			if (id < 0 || id >= (int64_t)g->group.n)
				continue;
			if (!at[id].last)
				at[id].first = i;
			at[id].last = i + 1;
		}
	}
	*last = at[group].last;
	return at[group].first;
}

const Op *
graph_group_contraction(const Graph *g, int group)
{
	const Op *found = NULL;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && op_has((OpKind)g->op.at[i].kind, T_CONTRACT))
			found = &g->op.at[i];
	return found;
}

static void
mark_named(const Graph *g, bool *named)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++)
			named[op->in[k].id] = true;
		for (int k = 0; k < op->nout; k++)
			named[op->out[k].id] = true;
	}
	for (uint32_t i = 0; i < g->input.n; i++)
		named[g->input.at[i].v.id] = true;
	for (uint32_t i = 0; i < g->result.n; i++)
		named[g->result.at[i].v.id] = true;
}

void
graph_compact(Graph *g)
{
	Arena *scratch = arena_new();
	bool *named = arena_array(scratch, bool, g->val.n);
	uint32_t *to = arena_array(scratch, uint32_t, g->val.n);
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->op.n; i++)
		if (!g->op.at[i].dead)
			g->op.at[n++] = g->op.at[i];
	g->op.n = n;
	mark_named(g, named);
	n = 1;
	for (uint32_t i = 1; i < g->val.n; i++) {
		if (!named[i])
			continue;
		to[i] = n;
		g->val.at[n] = g->val.at[i];
		/* set again below; stays so for inputs and for what lost its definition */
		g->val.at[n++].op = UINT32_MAX;
	}
	g->val.n = n;
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++)
			op->in[k].id = to[op->in[k].id];
		for (int k = 0; k < op->nout; k++) {
			op->out[k].id = to[op->out[k].id];
			g->val.at[op->out[k].id].op = i;
			g->val.at[op->out[k].id].index = (uint16_t)k;
		}
	}
	for (uint32_t i = 0; i < g->input.n; i++)
		g->input.at[i].v.id = to[g->input.at[i].v.id];
	for (uint32_t i = 0; i < g->result.n; i++)
		g->result.at[i].v.id = to[g->result.at[i].v.id];
	g->names = NULL;
	arena_free(scratch);
}

uint32_t *
graph_use_counts(const Graph *g, Arena *a)
{
	uint32_t *uses = arena_array(a, uint32_t, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; !g->op.at[i].dead && k < g->op.at[i].nin; k++)
			uses[g->op.at[i].in[k].id]++;
	for (uint32_t i = 0; i < g->result.n; i++)
		uses[g->result.at[i].v.id]++;
	return uses;
}

/* Of a load or a store: does its state hold a sum over an evaluation's batches, or what is carried to the next call? */
static bool
is_sum(const Graph *g, const Op *op)
{
	const State *s = module_state(g->module, attr_str(op, A_state));

	return s && (s->kind == ST_SUM || s->kind == ST_CARRY);
}

bool
graph_carries(const Graph *g)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const State *s = op->kind == OP_load || op->kind == OP_store
			? module_state(g->module, attr_str(op, A_state)) : NULL;

		if (s && s->kind == ST_CARRY)
			return true;
	}
	return false;
}

bool
graph_between(const Graph *g)
{
	return !strcmp(g->name, "hop") || !strcmp(g->name, "share");
}

/* A marked value differs with n. What a group makes that runs in each call is not steady for others either, whatever it
 * is made of: groups that run in the first call alone come before it. */
bool *
graph_steady(const Graph *g, Arena *a)
{
	bool *steady = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == OP_store && !g->op.at[i].dead && !is_sum(g, &g->op.at[i]))
			return steady;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool all = (op->kind == OP_load && !is_sum(g, op))
			|| (!op_has((OpKind)op->kind, T_RANDOM | T_EFFECT | T_LOOP)
			    && (op->nin || op_has((OpKind)op->kind, T_CONST)));

		for (int k = 0; k < op->nin; k++)
			all &= steady_for(g, steady, op->in[k], op->group);
		for (int k = 0; k < op->nout; k++)
			all &= !type_marked(val_type(g, op->out[k]));
		for (int k = 0; k < op->nout; k++)
			steady[op->out[k].id] = all;
	}
	return steady;
}

bool
steady_for(const Graph *g, const bool *steady, Val v, int32_t group)
{
	uint32_t def = g->val.at[v.id].op;
	int32_t made = def < g->op.n ? g->op.at[def].group : -1;

	return steady[v.id] && (made < 0 || made == group || made >= (int64_t)g->group.n || g->group.at[made].once);
}
