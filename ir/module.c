/* module.c: a module: its stages, graphs, states and settings by name, the patterns that name layers.
 *
 * In: a module, names.   Out: a module with one graph or state more, or what has a name. States are found by an index
 * that is brought up to date when it is asked. */
#include "ir.h"
#include <string.h>

const char *const stage_names[STAGE_COUNT] = {
#define X(name) #name,
	STAGES(X)
#undef X
};

int
stage_number(const char *name)
{
	for (int i = 0; name && i < STAGE_COUNT; i++)
		if (!strcmp(name, stage_names[i]))
			return i;
	return -1;
}

Module *
module_new(Arena *a, Diags *d, const char *name)
{
	Module *m = arena_new_of(a, Module);

	*m = (Module){.arena = a, .diags = d, .name = intern(a, name), .stage = "typed"};
	return m;
}

Graph *
module_add_graph(Module *m, const char *name)
{
	Graph *g = arena_new_of(m->arena, Graph);
	ValInfo none = {.name = NULL, .op = UINT32_MAX, .offset = -1};

	*g = (Graph){.module = m, .arena = m->arena, .name = intern(m->arena, name), .multiple = 1};
	vec_push(g->arena, &g->val, none);
	vec_push(m->arena, &m->graph, g);
	return g;
}

Graph *
module_graph(const Module *m, const char *name)
{
	Graph *loop = NULL;

	for (uint32_t i = 0; i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		if (strcmp(g->name, name) != 0)
			continue;
		if (!g->is_loop)
			return g;
		loop = loop ? loop : g;
	}
	return loop; /* a loop may be called like the graph it runs, which comes first here */
}

/* States by name: open addressing over indices of Module.state, since models have thousands. States that were pushed by
 * hand are entered on the next look-up; a shorter list than was entered means another list, and a new index. */
typedef struct StateIndex { uint32_t *at /* index + 1, 0 = empty */, cap, n /* entered so far */; } StateIndex;

static uint32_t *
state_slot(const Module *m, const StateIndex *x, const char *name)
{
	uint64_t h = hash_bytes(HASH_START, name, strlen(name));

	for (uint32_t i = (uint32_t)(h ^ h >> 32) & (x->cap - 1);; i = (i + 1) & (x->cap - 1))
		if (!x->at[i] || strcmp(m->state.at[x->at[i] - 1].name, name) == 0)
			return &x->at[i];
}

static void
state_index_refresh(Module *m)
{
	StateIndex *x = m->states;

	if (!x || x->n > m->state.n)
		x = m->states = arena_new_of(m->arena, StateIndex);
	if (2 * m->state.n >= x->cap) {
		x->n = 0;
		for (x->cap = x->cap ? x->cap : 64; x->cap <= 2 * m->state.n; x->cap *= 2)
			;
		x->at = arena_array(m->arena, uint32_t, x->cap);
	}
	for (; x->n < m->state.n; x->n++) {
		uint32_t *slot = state_slot(m, x, m->state.at[x->n].name);

		if (!*slot)
			*slot = x->n + 1;
	}
}

State *
module_state(Module *m, const char *name)
{
	state_index_refresh(m);

	uint32_t i = *state_slot(m, m->states, name);

	return i ? &m->state.at[i - 1] : NULL;
}

State *
module_add_state(Module *m, const char *name, Type t, StateKind kind)
{
	State s = {.name = intern(m->arena, name), .type = t, .kind = kind, .offset = -1};

	vec_push(m->arena, &m->state, s);
	return &m->state.at[m->state.n - 1];
}

bool
label_matches(const char *pattern, const char *name)
{
	const char *star = NULL, *from = NULL;

	/* the last * takes one character more wherever what follows it does not fit */
	for (;;) {
		if (*pattern == '*') {
			star = ++pattern;
			from = name;
		} else if (!*pattern && (!*name || *name == '.')) {
			return true;
		} else if (*pattern && *pattern == *name) {
			pattern++;
			name++;
		} else if (star && *from) {
			pattern = star;
			name = ++from;
		} else {
			return false;
		}
	}
}

const Setting *
setting(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->setting.n; i++)
		if (strcmp(m->setting.at[i].name, name) == 0)
			return &m->setting.at[i];
	return NULL;
}

const Setting *
setting_arg(const Setting *s, const char *name)
{
	for (int i = 0; s && i < s->nargs; i++)
		if (s->arg[i].name && strcmp(s->arg[i].name, name) == 0)
			return &s->arg[i];
	return NULL;
}

double
setting_number(const Setting *s, const char *name, double fallback)
{
	const Setting *arg = s && s->kind == SET_CALL ? setting_arg(s, name) : NULL;

	return arg && arg->f > 0 ? arg->f : fallback;
}
