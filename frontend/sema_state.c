/* sema_state.c: parameters and running statistics: made by the training graph, found again by the evaluation graph.
 *
 * A parameter's name is its call's path and a suffix. Evaluation must reach the same name through the same calls of the
 * file, in the same shape; otherwise a layer under `if training` has shifted the numbers, and the error asks for
 * `as`. */
#include <string.h>
#include "sema_local.h"

static const char *
type_text(Sema *s, const Type *t)
{
	Buf b = {0};
	const char *text;

	type_print(&b, t);
	text = arena_strdup(s->arena, b.at);
	buf_free(&b);
	return text;
}

static const char *
state_name(Sema *s, const Call *c, const char *suffix)
{
	return intern(s->arena, suffix ? arena_printf(s->arena, "%s.%s", c->path, suffix) : c->path);
}

/* Training makes it. */
static bool
make_state(Call *c, const char *name, const Type *t, StateKind kind, InitKind init, double a, double b)
{
	Sema *s = c->sema;
	const Setting *all = setting(s->module, "train.decay_all");
	State *st;

	if (map_get(&s->state_of, name)) {
		sema_error(s, c->loc, "%s: there is a parameter `%s` already", c->op->name, name);
		sema_note(s, s->state.at[*map_get(&s->state_of, name)].loc, "made here");
		return false;
	}
	if (s->state.n >= MAX_STATES) {
		sema_error(s, c->loc, "the model has more than %d parameters and running statistics", MAX_STATES);
		s->stop = true;
		return false;
	}
	map_put(s->arena, &s->state_of, name, s->state.n);
	vec_push(s->arena, &s->state, ((StateExtra){.site = s->call_site, .loc = c->loc}));
	st = module_add_state(s->module, name, *t, kind);
	st->init = init;
	st->a = a;
	st->b = b;
	st->decay = kind == ST_PARAM && (t->rank >= 2 || (all && all->i));
	st->loc = c->loc;
	return true;
}

/* Evaluation finds it. */
static bool
find_state(Call *c, const char *name, const Type *t)
{
	Sema *s = c->sema;
	uint32_t *k = map_get(&s->state_of, name);
	const StateExtra *x = k ? &s->state.at[*k] : NULL;
	const State *st = k ? &s->module->state.at[*k] : NULL;

	if (!k) {
		if (!s->training_failed)
			sema_error(s, c->loc,
			           "%s: evaluation uses the parameter `%s`, which training does not make: a layer that "
			           "both use needs a label, as in %s(...) as NAME",
			           c->op->name, name, c->op->name);
		s->errors++;
		return false;
	}
	if (x->loaded[0]) {
		sema_error(s, c->loc, "%s: there is a parameter `%s` already", c->op->name, name);
		return false;
	}
	if (x->site != s->call_site && !s->training_failed) {
		sema_error(s, c->loc,
		           "%s: evaluation takes the parameter `%s` that another call made in training: give both "
		           "calls labels, as in %s(...) as NAME",
		           c->op->name, name, c->op->name);
		sema_note(s, x->loc, "in training it was made here");
		return false;
	}
	if (!type_same(t, &st->type)) {
		sema_error(s, c->loc, "%s: the parameter `%s` is %s in evaluation and %s in training", c->op->name,
		           name, type_text(s, t), type_text(s, &st->type));
		sema_note(s, x->loc, "in training it was made here");
		return false;
	}
	return true;
}

bool
sema_param(Call *c, const char *suffix, const Type *t, StateKind kind, InitKind init, double a, double b, Val *loaded)
{
	Sema *s = c->sema;
	const char *name = state_name(s, c, suffix);
	StateExtra *x;

	*loaded = NOVAL;
	if (!s->frame) {
		sema_error(s, c->loc, "%s makes a parameter: that is for bodies", c->op->name);
		return false;
	}
	if (type_marked(t)) {
		sema_error(s, c->loc, "%s: the shape %s of its parameter `%s` depends on N", c->op->name,
		           type_text(s, t), name);
		return false;
	}
	if (s->training ? !make_state(c, name, t, kind, init, a, b) : !find_state(c, name, t))
		return false;
	x = &s->state.at[*map_get(&s->state_of, name)];
	*loaded = build_load(&s->build, name);
	x->loaded[s->training] = loaded->id;
	return loaded->id != 0;
}

void
sema_stat_store(Call *c, const char *suffix, Val v)
{
	Sema *s = c->sema;

	/* A store ends a step: they are all put at the graph's end. */
	if (s->training && v.id)
		vec_push(s->arena, &s->store,
		         ((StatStore){.state = state_name(s, c, suffix), .v = v, .loc = c->loc, .path = c->path}));
}

void
sema_stores(Sema *s)
{
	for (uint32_t k = 0; k < s->store.n; k++) {
		const StatStore *st = &s->store.at[k];

		s->build.loc = st->loc;
		s->build.path = st->path;
		build_op(&s->build, OP_store, &st->v, 1, ATTRS(AS(state, st->state)), NULL);
	}
	s->store.n = 0;
}

/* ---------------------------------------------------------------- layers named by strings */

/* Is prefix the path itself, or does a whole part of the path end there? */
static bool
is_layer_prefix(const char *prefix, const char *path)
{
	size_t n = strlen(prefix);

	return !strncmp(prefix, path, n) && (!path[n] || path[n] == '.');
}

/* The first parts of path, as many as name has. */
static const char *
cut_like(Sema *s, const char *path, const char *name)
{
	int parts = 1;
	const char *p = path;

	for (; *name; name++)
		parts += *name == '.';
	for (; *p && (*p != '.' || --parts); p++)
		;
	return arena_strndup(s->arena, path, (size_t)(p - path));
}

static void
unknown_layer(Sema *s, Loc at, const char *what, const char *name, const char *const *paths, uint32_t n)
{
	const char **cut = arena_array(s->arena, const char *, n), *near;

	for (uint32_t k = 0; k < n; k++)
		cut[k] = cut_like(s, paths[k], name);
	near = suggest(name, cut, (int)n);
	sema_error(s, at, "%s: no %s begins with \"%s\"%s%s%s", what,
	           strcmp(what, "freeze") && strcmp(what, "rates") && strcmp(what, "decays") ? "layer" : "parameter",
	           name, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* A layer name in `what` must begin a path of the training or evaluation graph. */
void
sema_check_layer(Sema *s, Loc at, const char *what, const char *name)
{
	static const char *const graphs[] = {"train", "eval"};
	const char **paths;
	uint32_t n = 0, total = 0;

	for (int g = 0; g < 2; g++)
		total += module_graph(s->module, graphs[g])->op.n;
	paths = arena_array(s->arena, const char *, total);
	for (int g = 0; g < 2; g++) {
		const Graph *gr = module_graph(s->module, graphs[g]);

		for (uint32_t k = 0; k < gr->op.n; k++) {
			const char *path = gr->op.at[k].path;

			if (!path || !*path || (n && paths[n - 1] == path))
				continue;
			if (is_layer_prefix(name, path))
				return;
			paths[n++] = path;
		}
	}
	unknown_layer(s, at, what, name, paths, n);
}

void
sema_match_freeze(Sema *s)
{
	const Setting *f = setting(s->module, "train.freeze");
	Module *m = s->module;

	for (int k = 0; f && k < f->nargs; k++) {
		const char **names = arena_array(s->arena, const char *, m->state.n);
		bool hit = false;

		for (uint32_t i = 0; i < m->state.n; i++) {
			names[i] = m->state.at[i].name;
			if (m->state.at[i].kind == ST_PARAM && is_layer_prefix(f->arg[k].s, names[i]))
				m->state.at[i].frozen = hit = true;
		}
		if (!hit)
			unknown_layer(s, s->freeze_loc, "freeze", f->arg[k].s, names, m->state.n);
	}
}

/* Patterns of train.rates and train.decays fit some parameter. */
void
sema_match_factors(Sema *s)
{
	static const char *const lists[] = {"rates", "decays"};
	Module *m = s->module;

	for (int l = 0; l < 2; l++) {
		const Setting *f = setting(m, arena_printf(s->arena, "train.%s", lists[l]));

		for (int k = 0; f && k < f->nargs; k++) {
			const char **names = arena_array(s->arena, const char *, m->state.n);
			bool hit = false;
			uint32_t n = 0;

			for (uint32_t i = 0; i < m->state.n; i++) {
				if (m->state.at[i].kind != ST_PARAM)
					continue;
				names[n++] = m->state.at[i].name;
				hit |= label_matches(f->arg[k].arg[0].s, names[n - 1]);
			}
			if (!hit)
				unknown_layer(s, s->factors_loc[l], lists[l], f->arg[k].arg[0].s, names, n);
		}
	}
}
