/* sema_call.c: calls: of operators (arguments bound to the row's parameter list), of blocks, and names with arguments
 * that stand for themselves (normal(0.02), momentum(...)).
 *
 * Arguments are evaluated left to right, then the call takes its label: the one given with `as`, else the call's name
 * with a counter of this scope. The label is taken also where the call fails, so that one mistake does not rename what
 * follows. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "sema_local.h"
#include "words.h"

typedef struct Given { Value v; const char *name; Loc loc; } Given; /* an argument as written */

static const struct { const char *name, *params; } inits[] = {
	{"zeros", ""}, {"ones", ""}, {"constant", "v"}, {"normal", "std"}, {"uniform", "low, high"},
	{"he_normal", ""}, {"he_normal_in", ""}, {"xavier_uniform", ""},
};
enum { NINITS = sizeof inits / sizeof *inits };

bool
sema_is_init(const char *name)
{
	for (int k = 0; k < NINITS; k++)
		if (!strcmp(name, inits[k].name))
			return true;
	return false;
}

bool
init_word(int k, Word *w)
{
	if (k < NINITS)
		*w = (Word){.kind = "init", .name = inits[k].name, .params = inits[k].params};
	return k < NINITS;
}

/* ---------------------------------------------------------------- names that are none */

typedef struct Candidates { const char **at; int n, cap; } Candidates;

static void
candidate(Candidates *c, const char *name)
{
	if (c->n < c->cap)
		c->at[c->n++] = name;
}

static Candidates
candidates_new(Sema *s, uint32_t n)
{
	return (Candidates){.at = arena_array(s->arena, const char *, n), .cap = (int)n};
}

static bool
seen_by_caller(const Frame *f, const char *name)
{
	for (f = f->up; f; f = f->up)
		for (uint32_t k = 0; k < f->var.n; k++)
			if (!strcmp(f->var.at[k].name, name))
				return true;
	return false;
}

void
sema_unknown_value(Sema *s, Loc at, const char *name)
{
	Frame *f = s->frame;
	Candidates c;
	const char *near;

	if (s->lost || (f && f->lost)) {
		s->errors++;
		return;
	}
	c = candidates_new(s, (f ? f->var.n : 0) + s->constant.n + DT_COUNT + NINITS + 4);
	for (uint32_t k = 0; f && k < f->var.n; k++)
		candidate(&c, f->var.at[k].name);
	for (uint32_t k = 0; k < s->constant.n; k++)
		candidate(&c, s->constant.at[k].name);
	candidate(&c, "training");
	near = suggest_known(name, c.at, c.n);
	if (!near) { /* float32, True, kaiming_normal */
		c.n = 0;
		for (int t = DT_none + 1; t < DT_COUNT; t++)
			candidate(&c, dtype_info[t].name);
		candidate(&c, "true");
		candidate(&c, "false");
		candidate(&c, "none");
		for (int k = 0; k < NINITS; k++)
			candidate(&c, inits[k].name);
		near = suggest_known(name, c.at, c.n);
	}
	if (near)
		sema_error(s, at, "there is no `%s`; did you mean `%s`?", name, near);
	else if (builtin_named(name) || map_get(&s->block_of, name))
		sema_error(s, at, "`%s` is %s: a call needs ( )", name,
		           builtin_named(name) ? "an operator" : "a block");
	else if (!strcmp(name, "pi"))
		sema_error(s, at, "there is no `pi` here: %s", advice("", name));
	else if (f && seen_by_caller(f, name))
		sema_error(s, at, "there is no `%s` in block `%s`, which sees its parameters and constants alone: give "
		           "it as an argument", name, f->item->name);
	else
		sema_error(s, at, "there is no `%s` here", name);
}

static void
unknown_call(Sema *s, const Node *n)
{
	Candidates c = candidates_new(s, (uint32_t)nbuiltins + s->block.n + NINITS);
	const char *near, *why = builtin_not_yet(n->s);
	const Alias *alias = alias_written(n->s);

	if (why) {
		sema_error(s, n->loc, "`%s` is not there yet: %s", n->s, why);
		return;
	}
	if (s->lost) {
		s->errors++;
		return;
	}
	for (uint32_t k = 0; k < s->block.n; k++)
		candidate(&c, s->block.at[k].name);
	for (int k = 0; k < nbuiltins; k++)
		candidate(&c, builtins[k].name);
	for (int k = 0; k < NINITS; k++)
		candidate(&c, inits[k].name);
	near = suggest_known(n->s, c.at, c.n);
	if (alias)
		sema_error(s, n->loc, "there is no operator or block `%s`; it is `%s` here: %s", n->s, alias->here,
		           alias_line(s->arena, alias));
	else if (near)
		sema_error(s, n->loc, "there is no operator or block `%s`; did you mean `%s`?", n->s, near);
	else if (advice("", n->s))
		sema_error(s, n->loc, "there is no operator or block `%s`: %s", n->s, advice("", n->s));
	else
		sema_error(s, n->loc, "there is no operator or block `%s`", n->s);
}

/* ---------------------------------------------------------------- labels */

static bool
take_label(Sema *s, const Node *n, const char **label, const char **path, uint64_t *site)
{
	Frame *f = s->frame;
	Loc at = n->label ? n->label_loc : n->loc;
	uint32_t *used;

	*label = *path = n->s;
	*site = 0;
	if (!f)
		return true;
	if (n->label) {
		*label = n->label;
	} else {
		uint32_t *count = map_get(&f->label_count, n->s);
		uint32_t k = count ? *count : 0;

		*label = intern(s->arena, arena_printf(s->arena, "%s%u", n->s, k));
		map_put(s->arena, &f->label_count, n->s, k + 1);
	}
	*path = *f->path ? arena_printf(s->arena, "%s.%s", f->path, *label) : *label;
	*site = n->label ? hash_bytes(f->site, *label, strlen(*label)) : hash_bytes(f->site, &n->loc, sizeof n->loc);
	if (strlen(*path) > MAX_PATH_BYTES) {
		sema_error(s, at, "the path of this call is longer than %d bytes", MAX_PATH_BYTES);
		return false;
	}
	used = map_get(&f->label_of, *label);
	if (used) {
		Loc before = f->label.at[*used];
		bool again = before.file == at.file && before.line == at.line && before.col == at.col;

		sema_error(s, at, "two calls with the label `%s` in one scope%s", *label,
		           again ? ": this one is made in every turn of a loop, so leave out `as`"
		           : n->label ? "" : ": without `as` this one takes it by its number");
		if (!again)
			sema_note(s, before, "the other one");
		return false;
	}
	map_put(s->arena, &f->label_of, *label, f->label.n);
	vec_push(s->arena, &f->label, at);
	return true;
}

/* ---------------------------------------------------------------- arguments */

/* Where that stands which is no argument of the operator, if it is known. */
static const char *
elsewhere(const char *op, const char *name)
{
	const Builtin *b = builtin_named(op);

	for (int i = 0; b && i < b->nparam; i++)
		if (!strcmp(b->param[i], name))
			return NULL;
	return b ? advice(op, name) : NULL;
}

/* Evaluates the arguments in the order written. False if one is broken or several values. */
static bool
eval_arguments(Sema *s, const Node *n, const Value *piped, Given *out)
{
	bool good = true;
	int k = 0;

	for (const Arg *a = n->args.first; a; a = a->next, k++) {
		const char *why = a->name ? elsewhere(n->s, a->name) : NULL;
		Value v = value_broken(a->value->loc);

		if (why) /* activation = relu: its value would be the wrong mistake */
			sema_error(s, a->loc, "%s: there is no argument `%s`: %s", n->s, a->name, why);
		else
			v = k == 0 && piped ? *piped : sema_eval(s, a->value);

		if (v.kind == V_TUPLE) {
			sema_error(s, a->value->loc, "%d values as one argument of `%s`: give each a name first", v.n,
			           n->s);
			v = value_broken(a->value->loc);
		}
		good &= !value_is_broken(&v);
		out[k] = (Given){.v = v, .name = a->name, .loc = a->name ? a->loc : a->value->loc};
	}
	return good;
}

const char *
sema_no_argument(Sema *s, Loc at, const char *of, const char *name, const char *const *names, int n, const char *why)
{
	const char *near = suggest_known(name, names, n);

	sema_error(s, at, "%s: there is no argument `%s`%s%s%s", of, name,
	           why    ? ": "
	           : near ? "; did you mean `"
	                  : "; it takes ",
	           why    ? why
	           : near ? near
	                  : names_joined(s->arena, names, n),
	           near && !why ? "`?" : "");
	return near;
}

/* Which parameter each argument belongs to; -1 in slot[i] where parameter i got none. */
static bool
bind_arguments(Sema *s, const Node *n, const Given *given, int count, const char *const *param, int nparam, int *slot)
{
	bool good = true;

	for (int i = 0; i < nparam; i++)
		slot[i] = -1;
	for (int k = 0; k < count; k++) {
		int i = k;

		if (given[k].name)
			for (i = 0; i < nparam && strcmp(param[i], given[k].name);)
				i++;
		if (i < nparam && slot[i] < 0) {
			slot[i] = k;
			continue;
		}
		good = false;
		if (i < nparam) {
			sema_error(s, given[k].loc, "%s: argument `%s` is given twice", n->s, param[i]);
		} else if (given[k].name) {
			sema_no_argument(s, given[k].loc, n->s, given[k].name, param, nparam, NULL);
		} else {
			sema_error(s, given[k].loc, "%s: %d arguments, takes at most %d", n->s, count, nparam);
			return false;
		}
	}
	return good;
}

/* ---------------------------------------------------------------- operators */

/* An elementwise operator of numbers is computed at once. False: not such a call. */
static bool
compute_numbers(Sema *s, const Node *n, const Builtin *op, const Value *arg, Value *out)
{
	OpKind k = op_named(op->name);
	double var[7] = {0}, r;
	int64_t ints[7] = {0}, i64;
	bool whole = true;

	if (!op->ew || !k || !op_has(k, T_EW) || !op_info[k].expr || op_info[k].nin + op_info[k].nattr != op->nparam)
		return false;
	for (int i = 0; i < op->nparam; i++) {
		if (!value_is_number(&arg[i]))
			return false;
		whole &= arg[i].kind == V_INT;
		int at = i < op_info[k].nin ? i : 5 + i - op_info[k].nin;

		var[at] = arg[i].kind == V_INT ? (double)arg[i].i : arg[i].f;
		ints[at] = arg[i].i;
	}
	whole &= strchr(op_info[k].types, 'I') != NULL;
	*out = value_broken(n->loc);
	for (int i = 0; i < op->nparam; i++)
		if (sema_follows_n(s, n->loc, "the result", &arg[i]))
			return true;
	r = expr_eval(op_info[k].expr, var);
	if (!isfinite(r))
		sema_error(s, n->loc, "%s: the result is not finite", n->s);
	else if (!whole)
		*out = value_float(r, n->loc);
	else if (i64 = expr_eval_int(op_info[k].expr, ints), fabs((double)i64 - r) > 1e-9 * fabs(r)) /* it wrapped */
		sema_error(s, n->loc, "%s: the result does not fit a 64-bit integer", n->s);
	else
		*out = value_int(i64, n->loc);
	return true;
}

/* A number that stands where the operator takes a tensor: "" or what to write. */
static const char *
misplaced(Sema *s, const Node *n, const Builtin *op, const Given *given, const int *slot)
{
	const Value *v = slot[0] >= 0 ? &given[slot[0]].v : NULL;

	if (!v || v->kind != V_INT || v->mul)
		return "";
	return arena_printf(s->arena, ": %" PRId64 " stands for `%s`; write x |> %s(%" PRId64 ")", v->i, op->param[0],
	                    n->s, v->i);
}

static bool
fill_operator(Sema *s, const Node *n, const Builtin *op, const Given *given, int count, Value *arg, bool *has)
{
	int slot[64];
	bool good;

	if (op->nparam > 64)
		bug("operator %s has more than 64 parameters", op->name);
	good = bind_arguments(s, n, given, count, op->param, op->nparam, slot);
	for (int i = 0; good && i < op->nparam; i++) {
		has[i] = slot[i] >= 0;
		if (has[i]) {
			arg[i] = given[slot[i]].v;
		} else if (op->has_def[i]) {
			arg[i] = op->def[i];
			arg[i].loc = n->loc;
		} else {
			sema_error(s, n->loc, "%s: argument `%s` is missing%s", n->s, op->param[i],
			           misplaced(s, n, op, given, slot));
			return false;
		}
	}
	return good;
}

static Value
call_operator(Sema *s, const Node *n, const Builtin *op, const Given *given, int count, bool good)
{
	Value out = value_broken(n->loc), *arg = arena_array(s->arena, Value, op->nparam);
	bool *has = arena_array(s->arena, bool, op->nparam);
	Call c = {.sema = s,
	          .op = op,
	          .loc = n->loc,
	          .arg = arg,
	          .given = has,
	          .narg = op->nparam,
	          .b = &s->build,
	          .training = s->training};
	uint64_t site;
	int errors;

	good &= take_label(s, n, &c.label, &c.path, &site);
	if (!good || !fill_operator(s, n, op, given, count, arg, has) || compute_numbers(s, n, op, arg, &out))
		return out;
	s->path = c.path;
	s->call_site = site;
	s->build.loc = n->loc;
	s->build.path = c.path;
	s->build.error = NULL;
	errors = s->errors;
	if (!op->fn(&c, &out) || value_is_broken(&out)) {
		if (s->errors == errors)
			sema_error(s, n->loc, "%s: %s", op->name,
			           s->build.error ? s->build.error : "not for these arguments");
		out = value_broken(n->loc);
	} else if (!s->frame && value_holds_tensor(&out)) {
		sema_error(s, n->loc, "%s makes a tensor: here a value known when compiling is needed", op->name);
		out = value_broken(n->loc);
	}
	s->build.error = NULL;
	if (out.kind == V_LIST && (s->list_work += out.n) > MAX_LIST_WORK)
		return sema_make_list(s, out.at, out.n, n->loc);
	out.loc = n->loc;
	return out;
}

/* ---------------------------------------------------------------- blocks */

static Value
run_block(Sema *s, const Node *n, Block *b, const Given *given, const int *slot)
{
	const Item *item = b->item;
	Frame *f = s->frame;
	Value out;
	int i = 0;

	for (const Param *p = item->params.first; p; p = p->next, i++)
		frame_set(s, p->name, p->loc, slot[i] >= 0 ? given[slot[i]].v : sema_eval(s, p->value));
	sema_body(s, &item->body);
	out = f->result;
	if (!f->returned)
		out = value_broken(n->loc);
	out.loc = n->loc;
	return out;
}

static bool
block_may_run(Sema *s, const Node *n, const Block *b)
{
	if (!s->frame) {
		sema_error(s, n->loc, "a block cannot be called here: a value known when compiling is needed");
		return false;
	}
	if (b->active) {
		sema_error(s, n->loc, "block `%s` calls itself: recursion is not allowed", n->s);
		return false;
	}
	if (s->frame->depth >= MAX_CALL_DEPTH) {
		sema_error(s, n->loc, "blocks call blocks more than %d deep", MAX_CALL_DEPTH);
		return false;
	}
	return true;
}

static Value
call_block(Sema *s, const Node *n, Block *b, const Given *given, int count)
{
	int nparam = b->item->params.n, i = 0;
	const char **name = arena_array(s->arena, const char *, nparam), *label, *path;
	int *slot = arena_array(s->arena, int, nparam);
	Value out = value_broken(n->loc);
	uint64_t site;
	bool good;

	for (const Param *p = b->item->params.first; p; p = p->next)
		name[i++] = p->name;
	if (!block_may_run(s, n, b))
		return out;
	good = take_label(s, n, &label, &path, &site);
	good &= bind_arguments(s, n, given, count, name, nparam, slot);
	i = 0;
	for (const Param *p = b->item->params.first; good && p; p = p->next, i++)
		if (slot[i] < 0 && !p->value) {
			sema_error(s, n->loc, "%s: argument `%s` is missing", n->s, p->name);
			sema_note(s, p->loc, "the block's parameter");
			good = false;
		}
	if (!good || !sema_enter(s, n->loc))
		return out;
	frame_push(s, b->item, n->loc, path, site);
	b->active = true;
	out = run_block(s, n, b, given, slot);
	b->active = false;
	i = s->frame->returned || s->frame->lost || s->stop;
	frame_pop(s);
	sema_leave(s);
	if (!i) {
		sema_error(s, n->loc, "block `%s` ends without a return", n->s);
		sema_note(s, b->item->body.end, "its end");
	}
	return out;
}

/* ---------------------------------------------------------------- names that stand for themselves */

static Value
make_spec(Sema *s, const Node *n, const Given *given, int count)
{
	Value *at = arena_array(s->arena, Value, count), out;
	const char **names = arena_array(s->arena, const char *, count);

	for (int k = 0; k < count; k++) {
		at[k] = given[k].v;
		names[k] = given[k].name;
	}
	out = (Value){.kind = V_SPEC, .s = n->s, .at = at, .n = count, .names = names, .loc = n->loc};
	value_seal(&out);
	return out;
}

Value
sema_call(Sema *s, const Node *n, const Value *piped)
{
	Given *given = arena_array(s->arena, Given, n->args.n);
	bool good = eval_arguments(s, n, piped, given);
	uint32_t *k = map_get(&s->block_of, n->s);
	const Builtin *op;

	s->steps += CALL_STEPS;
	if (!sema_step(s, n->loc))
		return value_broken(n->loc);
	if (!strcmp(n->s, NODE_TABLE) && !s->in_settings) {
		sema_error(s, n->loc,
		           "values in braces are an argument of a reader only, as in columns = {x = [\"age\", "
		           "\"rooms\"]}");
		return value_broken(n->loc);
	}
	if (k && !s->in_settings)
		return call_block(s, n, &s->block.at[*k], given, n->args.n);
	op = builtin_named(n->s);
	if (op)
		return call_operator(s, n, op, given, n->args.n, good);
	if (s->in_settings || sema_is_init(n->s)) {
		if (!n->label)
			return good ? make_spec(s, n, given, n->args.n) : value_broken(n->loc);
		sema_error(s, n->label_loc, "`%s` makes no layer and takes no label", n->s);
		return value_broken(n->loc);
	}
	unknown_call(s, n);
	return value_broken(n->loc);
}
