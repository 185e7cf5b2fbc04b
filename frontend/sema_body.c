/* sema_body.c: runs the statements of bodies: scopes, assignment, control flow, what a model gives.
 *
 * In: a body and the frame of the call it belongs to.   Out: ops in the graph, names in the frame, the block's result.
 * if, for and repeat open no scope. Where a condition or a count is unknown because of an error, the names that the
 * body would have set become broken, so that their users keep silent. */
#include <string.h>
#include "sema_local.h"

/* ---------------------------------------------------------------- maps */

static uint32_t
map_slot(const Map *m, const void *key)
{
	uint64_t h = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15ull;
	uint32_t i = (uint32_t)(h >> 32) & (m->cap - 1);

	while (m->key[i] && m->key[i] != key)
		i = (i + 1) & (m->cap - 1);
	return i;
}

uint32_t *
map_get(const Map *m, const void *key)
{
	uint32_t i;

	if (!m->n)
		return NULL;
	i = map_slot(m, key);
	return m->key[i] ? &m->val[i] : NULL;
}

void
map_put(Arena *a, Map *m, const void *key, uint32_t val)
{
	uint32_t i;

	if (2 * m->n >= m->cap) {
		Map old = *m;

		m->cap = old.cap ? 2 * old.cap : 16;
		m->key = arena_array(a, const void *, m->cap);
		m->val = arena_array(a, uint32_t, m->cap);
		for (uint32_t k = 0; k < old.cap; k++)
			if (old.key[k]) {
				i = map_slot(m, old.key[k]);
				m->key[i] = old.key[k];
				m->val[i] = old.val[k];
			}
	}
	i = map_slot(m, key);
	if (!m->key[i]) {
		m->key[i] = key;
		m->n++;
	}
	m->val[i] = val;
}

/* ---------------------------------------------------------------- frames */

Frame *
frame_push(Sema *s, const Item *item, Loc call, const char *path, uint64_t site)
{
	Frame *f = arena_new_of(s->arena, Frame);

	*f = (Frame){.up = s->frame, .item = item, .call = call, .path = path, .site = site, .lost = s->lost};
	f->depth = s->frame ? s->frame->depth + 1 : 0;
	f->result = (Value){.kind = V_NONE, .loc = call};
	s->frame = f;
	return f;
}

void
frame_pop(Sema *s)
{
	s->frame = s->frame->up;
}

Value *
frame_find(Frame *f, const char *name)
{
	uint32_t *k = f ? map_get(&f->var_of, name) : NULL;

	return k ? &f->var.at[*k].v : NULL;
}

void
frame_set(Sema *s, const char *name, Loc loc, Value v)
{
	Frame *f = s->frame;
	uint32_t *k = map_get(&f->var_of, name);
	Var var = {.name = name, .v = v, .loc = loc};

	if (k) {
		f->var.at[*k] = var;
		return;
	}
	map_put(s->arena, &f->var_of, name, f->var.n);
	vec_push(s->arena, &f->var, var);
}

bool
sema_name_is_free(Sema *s, const char *name, Loc at)
{
	if (strcmp(name, "N") && strcmp(name, "training"))
		return true;
	sema_error(s, at, "`%s` is %s and cannot be set", name, *name == 'N' ? "the batch" : "true or false by itself");
	return false;
}

/* ---------------------------------------------------------------- assignment */

/* Everything that a body might have set is unknown. */
static void
break_names(Sema *s, const Body *b)
{
	for (const Stmt *st = b->first; st && sema_step(s, st->loc); st = st->next) {
		if (st->kind == S_ASSIGN || st->kind == S_FOR)
			for (const Name *n = st->names.first; n; n = n->next)
				frame_set(s, n->name, n->loc, value_broken(n->loc));
		break_names(s, &st->body);
		for (const Body *other = &st->other; other->n; other = &other->first->other) {
			if (other->n != 1 || other->first->kind != S_IF) {
				break_names(s, other);
				break;
			}
			break_names(s, &other->first->body);
		}
	}
}

static void
assign(Sema *s, const Name *n, Value v)
{
	if (sema_name_is_free(s, n->name, n->loc))
		frame_set(s, n->name, n->loc, v);
}

/* One name takes the value, several take the items of a tuple or list. */
static bool
assign_names(Sema *s, const Names *names, Loc at, const Value *v, const char *what)
{
	int k = 0;

	if (names->n == 1) {
		Value one = *v;

		if (v->kind == V_TUPLE) {
			sema_error(s, at, "%d values for one name: write %d names before the =", v->n, v->n);
			one = value_broken(at);
		}
		assign(s, names->first, one);
		return true;
	}
	bool broken = v->kind == V_TENSOR && !v->tensor.id;
	bool items = v->kind == V_TUPLE || v->kind == V_LIST;

	if (!broken && !items)
		sema_error(s, at, "%d names for %s: %s", names->n, value_kind_name(v), what);
	else if (items && v->n != names->n)
		sema_error(s, names->first->loc, "%d names for %s", names->n, value_kind_name(v));
	for (const Name *n = names->first; n; n = n->next, k++)
		assign(s, n, items && v->n == names->n ? v->at[k] : value_broken(at));
	return broken || (items && v->n == names->n);
}

static void
run_assign(Sema *s, const Stmt *st)
{
	Value v = sema_eval(s, st->exprs.first->value);

	assign_names(s, &st->names, st->exprs.first->value->loc, &v,
	             "a block or operator that returns as many is needed");
}

static void
run_return(Sema *s, const Stmt *st)
{
	Value *at = arena_array(s->arena, Value, st->exprs.n);
	int n = 0;

	if (!s->frame->item || s->frame->item->kind != I_BLOCK) {
		sema_error(s, st->loc, "return stands in blocks only: a model gives loss, metric and output");
		return;
	}
	for (const Arg *a = st->exprs.first; a; a = a->next) {
		at[n] = sema_eval(s, a->value);
		if (at[n].kind == V_TUPLE && st->exprs.n > 1) {
			sema_error(s, a->value->loc, "%d values where one is returned", at[n].n);
			at[n] = value_broken(a->value->loc);
		}
		n++;
	}
	s->frame->result = n == 1 ? at[0] : value_tuple(s, at, n, st->loc);
	s->frame->returned = true;
}

/* ---------------------------------------------------------------- control flow */

/* A chain of else-ifs is followed in a loop. */
static void
run_if(Sema *s, const Stmt *st)
{
	for (;;) {
		bool yes;

		if (!sema_condition(s, st->exprs.first->value, &yes)) {
			break_names(s, &st->body);
			break_names(s, &st->other);
			return;
		}
		if (yes) {
			sema_body(s, &st->body);
			return;
		}
		if (st->other.n != 1 || st->other.first->kind != S_IF) {
			sema_body(s, &st->other);
			return;
		}
		st = st->other.first;
	}
}

static void
run_for(Sema *s, const Stmt *st)
{
	Node *n = st->exprs.first->value;
	Value v = sema_eval(s, n);

	if (v.kind != V_LIST) {
		if (!value_is_broken(&v))
			sema_error(s, n->loc, "for needs a list, here %s%s", value_kind_name(&v),
			           v.kind == V_INT ? ": range(n) lists 0 to n-1" : "");
		break_names(s, &st->body);
		for (const Name *m = st->names.first; m; m = m->next)
			frame_set(s, m->name, m->loc, value_broken(m->loc));
		return;
	}
	for (int k = 0; k < v.n && !s->frame->returned && sema_step(s, st->loc); k++) {
		if (!assign_names(s, &st->names, n->loc, &v.at[k], "each item of the list must be a list"))
			k = v.n; /* the other items are not likely to be better */
		sema_body(s, &st->body);
	}
}

static void
run_repeat(Sema *s, const Stmt *st)
{
	Node *n = st->exprs.first->value;
	Value v = sema_eval(s, n);
	bool good = false;

	if (value_is_broken(&v))
		;
	else if (v.kind != V_INT)
		sema_error(s, n->loc, "repeat needs an integer, here %s", value_kind_name(&v));
	else if (sema_follows_n(s, n->loc, "the number of turns", &v))
		;
	else if (v.i < 0 || v.i > MAX_REPEAT)
		sema_error(s, n->loc, "repeat %lld: needs a number in 0..%d", (long long)v.i, MAX_REPEAT);
	else
		good = true;
	if (!good) {
		break_names(s, &st->body);
		return;
	}
	for (int64_t k = 0; k < v.i && !s->frame->returned && sema_step(s, st->loc); k++)
		sema_body(s, &st->body);
}

/* ---------------------------------------------------------------- what a model gives */

static const char *
type_text(Sema *s, Val v)
{
	Buf b = {0};
	const char *text;

	type_print(&b, val_type(s->graph, v));
	text = arena_strdup(s->arena, b.at);
	buf_free(&b);
	return text;
}

/* A scalar of a floating type. */
static bool
is_score(Sema *s, const char *what, Loc at, const Value *v)
{
	const Type *t;

	if (value_is_broken(v))
		return false;
	if (v->kind != V_TENSOR) {
		sema_error(s, at, "a %s is a tensor, here %s", what, value_kind_name(v));
		return false;
	}
	t = val_type(s->graph, v->tensor);
	if (t->rank) {
		sema_error(s, at, "a %s is a scalar, here %s: take a sum or mean", what, type_text(s, v->tensor));
		return false;
	}
	if (!dtype_is_float(t->dtype)) {
		sema_error(s, at, "a %s has a floating type, here %s: cast(x, f32)", what, dtype_info[t->dtype].name);
		return false;
	}
	return true;
}

/* A scalar of a floating type; or a vector or matrix of numbers, of which evaluation prints a table. */
static bool
is_metric(Sema *s, Loc at, const Value *v)
{
	const Type *t = v->kind == V_TENSOR ? val_type(s->graph, v->tensor) : NULL;

	if (!t || !t->rank)
		return is_score(s, "metric", at, v);
	if (type_marked(t) || t->rank > 2) {
		sema_error(s, at,
		           "a metric is a scalar, or a vector or matrix of fixed extents, here %s: take a sum or "
		           "mean", type_text(s, v->tensor));
		return false;
	}
	if (t->dtype == DT_bool) {
		sema_error(s, at, "a metric of several values has numbers, here bool: cast(x, f32)");
		return false;
	}
	if (type_elements(t) > MAX_TABLE) {
		sema_error(s, at, "a metric has at most %d values, here %s", MAX_TABLE, type_text(s, v->tensor));
		return false;
	}
	return true;
}

static void
run_loss(Sema *s, const Stmt *st)
{
	Node *n = st->exprs.first->value;
	Value v = sema_eval(s, n);

	s->loss_broken |= value_is_broken(&v);
	if (!is_score(s, "loss", n->loc, &v)) {
		s->training_failed |= s->training;
		return;
	}
	if (s->loss.n && val_type(s->graph, s->loss.at[0])->dtype != val_type(s->graph, v.tensor)->dtype) {
		sema_error(s, n->loc, "losses add up and need one type: this is %s, the first is %s",
		           type_text(s, v.tensor), type_text(s, s->loss.at[0]));
		sema_note(s, s->loss_loc.at[0], "the first loss");
		return;
	}
	vec_push(s->arena, &s->loss, v.tensor);
	vec_push(s->arena, &s->loss_loc, n->loc);
}

static bool
is_new(Sema *s, const char *what, const Name *n, const Var *at, uint32_t count)
{
	if (count >= MAX_GIVEN) {
		sema_error(s, n->loc, "a model gives at most %d %ss", MAX_GIVEN, what);
		return false;
	}
	for (uint32_t k = 0; k < count; k++)
		if (at[k].name == n->name) {
			sema_error(s, n->loc, "the %s `%s` is given twice", what, n->name);
			sema_note(s, at[k].loc, "it was given here");
			return false;
		}
	return true;
}

/* The name of a metric or output: NAME, or NAME[value] with the number or word behind it, so that turns of a loop and
 * calls of a block give results of their own. False after an error. */
static bool
given_name(Sema *s, const char *what, const Stmt *st, Name *out)
{
	const char *text = "";
	Value v;

	*out = *st->names.first;
	if (!st->index)
		return true;
	v = sema_eval(s, st->index);
	if (value_is_broken(&v) || (v.kind == V_INT && sema_follows_n(s, st->index->loc, what, &v)))
		return false;
	if (v.kind == V_INT && v.i >= 0)
		text = arena_printf(s->arena, "%lld", (long long)v.i);
	else if (v.kind == V_STR)
		text = v.s;
	if (!*text || text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")]) {
		sema_error(s, st->index->loc,
		           "behind the name of a %s comes an integer, 0 or more, or a word of letters, digits and _, "
		           "here %s",
		           what, value_kind_name(&v));
		return false;
	}
	out->name = intern(s->arena, arena_printf(s->arena, "%s%s", out->name, text));
	return true;
}

static void
run_metric(Sema *s, const Stmt *st)
{
	Node *n = st->exprs.first->value;
	Value v = sema_eval(s, n);
	Name name;
	bool set = value_is_set_metric(&v); /* of the whole set: add_results takes it apart */

	if ((!set && !is_metric(s, n->loc, &v)) || !given_name(s, "metric", st, &name)
	    || !is_new(s, "metric", &name, s->metric.at, s->metric.n))
		return;
	vec_push(s->arena, &s->metric, ((Var){.name = name.name, .v = v, .loc = st->loc}));
}

static void
run_output(Sema *s, const Stmt *st)
{
	const Name *name = st->names.first;
	Name given;
	Node alone = {.kind = N_NAME, .s = name->name, .loc = name->loc};
	const Node *n = st->exprs.first ? st->exprs.first->value : &alone;
	Value v = sema_eval(s, n);

	if (value_is_broken(&v))
		return;
	if (v.kind != V_TENSOR) {
		sema_error(s, n->loc, "an output is a tensor, here %s", value_kind_name(&v));
		return;
	}
	if (given_name(s, "output", st, &given) && is_new(s, "output", &given, s->output.at, s->output.n))
		vec_push(s->arena, &s->output, ((Var){.name = given.name, .v = v, .loc = st->loc}));
}

void
sema_body(Sema *s, const Body *b)
{
	if (!b->n || !sema_enter(s, b->first->loc))
		return;
	for (const Stmt *st = b->first; st && !s->frame->returned && sema_step(s, st->loc); st = st->next) {
		switch (st->kind) {
		case S_ASSIGN: run_assign(s, st); break;
		case S_RETURN: run_return(s, st); break;
		case S_IF: run_if(s, st); break;
		case S_FOR: run_for(s, st); break;
		case S_REPEAT: run_repeat(s, st); break;
		case S_LOSS: run_loss(s, st); break;
		case S_METRIC: run_metric(s, st); break;
		case S_OUTPUT: run_output(s, st); break;
		case S_REQUIRE: sema_require(s, st->exprs.first->value); break;
		case S_ERROR: s->frame->lost = true; s->training_failed |= s->training; break;
		}
	}
	sema_leave(s);
}
