/* sema_expr.c: evaluates expressions: tensors become ops of the current graph, all else is computed at once.
 *
 * In: a node and the elaborator's state.   Out: a value; a broken one after an error.
 * Chains that hang on the left (operators, pipes, indices) are unrolled in a loop, so that the C stack is bounded by
 * nesting.
 * `and` and `or` of compile-time values do not evaluate their right side where the left one decides. */
#include <string.h>
#include "sema_local.h"

bool
sema_step(Sema *s, Loc at)
{
	if (s->stop)
		return false;
	if (s->diags->full) {
		s->stop = true;
	} else if (++s->steps > MAX_STEPS) {
		sema_error(s, at, "the model takes more than %d steps to elaborate", MAX_STEPS);
		s->stop = true;
	} else if (s->graph &&
	           s->graph->op.n >= MAX_OPS) { /* the next would be refused, again and again until MAX_STEPS */
		sema_error(s, at, "the graph has too many operators (limit %d)", MAX_OPS);
		s->stop = true;
	}
	return !s->stop;
}

bool
sema_enter(Sema *s, Loc at)
{
	if (!sema_step(s, at))
		return false;
	if (s->walk >= MAX_WALK_DEPTH) {
		sema_error(s, at, "blocks and expressions are nested more than %d deep", MAX_WALK_DEPTH);
		return false;
	}
	s->walk++;
	return true;
}

void
sema_leave(Sema *s)
{
	s->walk--;
}

bool
sema_follows_n(Sema *s, Loc at, const char *what, const Value *v)
{
	if (!value_follows_n(v))
		return false;
	sema_error(s, at, "%s depends on N: N may go into extents only", what);
	return true;
}

Value
sema_make_list(Sema *s, const Value *at, int64_t n, Loc loc)
{
	Value list;

	if (n > MAX_LIST || (s->list_work += n) > MAX_LIST_WORK) {
		if (n > MAX_LIST)
			sema_error(s, loc, "a list of %lld items: at most %d are allowed", (long long)n, MAX_LIST);
		else
			sema_error(s, loc, "the lists of the model have more than %d items together", MAX_LIST_WORK);
		return value_broken(loc);
	}
	list = value_list(at, (int)n, loc);
	if (list.div > MAX_LIST_DEPTH) {
		sema_error(s, loc, "lists are nested more than %d deep", MAX_LIST_DEPTH);
		return value_broken(loc);
	}
	return list;
}

/* A single value is needed where several came back. */
static bool
is_single(Sema *s, Loc at, Value *v)
{
	if (v->kind != V_TUPLE)
		return true;
	sema_error(s, at, "%d values where one is needed: give each a name, as in a, b = ...", v->n);
	*v = value_broken(at);
	return false;
}

static Value
eval_name(Sema *s, const Node *n)
{
	Value *v = frame_find(s->frame, n->s);
	const uint32_t *k;
	Value out;

	if (v) {
		out = *v;
		out.loc = n->loc;
		return out;
	}
	k = map_get(&s->const_of, n->s);
	if (k && s->constant.at[*k].ready) {
		out = s->constant.at[*k].now;
		out.loc = n->loc;
		return out;
	}
	if (!strcmp(n->s, "N")) {
		if (s->in_settings) {
			sema_error(s, n->loc, "N has no value here: it stands in the shapes of bodies");
			return value_broken(n->loc);
		}
		out = value_int(s->batch, n->loc);
		out.mul = out.div = 1;
		return out;
	}
	if (!strcmp(n->s, "training")) {
		if (s->in_settings) {
			sema_error(s, n->loc, "`training` has no value here: it is known in bodies");
			return value_broken(n->loc);
		}
		return value_bool(s->training, n->loc);
	}
	if (s->in_settings || sema_is_init(n->s))
		return (Value){.kind = V_SPEC, .s = n->s, .loc = n->loc};
	if (k && !s->lost) {
		sema_error(s, n->loc, "the constant `%s` is not computed yet: constants are computed in file order",
		           n->s);
		sema_note(s, s->constant.at[*k].loc, "it stands here");
		return value_broken(n->loc);
	}
	sema_unknown_value(s, n->loc, n->s);
	return value_broken(n->loc);
}

static Value
eval_list(Sema *s, const Node *n)
{
	Value *at = arena_array(s->arena, Value, n->args.n);
	int k = 0;

	for (const Arg *a = n->args.first; a; a = a->next) {
		at[k] = sema_eval(s, a->value);
		is_single(s, a->value->loc, &at[k]);
		k++;
	}
	return sema_make_list(s, at, k, n->loc);
}

static Value
eval_shape(Sema *s, const Node *n, Value v)
{
	const Type *t;
	Value *at;

	if (!is_single(s, n->a->loc, &v) || value_is_broken(&v))
		return value_broken(n->loc);
	if (v.kind != V_TENSOR) {
		sema_error(s, n->loc, ".shape needs a tensor, here %s", value_kind_name(&v));
		return value_broken(n->loc);
	}
	t = val_type(s->graph, v.tensor);
	at = arena_array(s->arena, Value, t->rank);
	for (int k = 0; k < t->rank; k++)
		at[k] = value_axis_extent(t->axis[k], n->loc);
	return sema_make_list(s, at, t->rank, n->loc);
}

static Value
eval_index(Sema *s, const Node *n, Value list)
{
	Value i = sema_eval(s, n->b);
	int64_t k;

	if (!is_single(s, n->a->loc, &list) || !is_single(s, n->b->loc, &i) || value_is_broken(&i) ||
	    (list.kind == V_TENSOR && !list.tensor.id))
		return value_broken(n->loc);
	if (list.kind != V_LIST) {
		sema_error(s, n->loc, "[ ] indexes lists, here %s%s", value_kind_name(&list),
		           list.kind == V_TENSOR ? ": slice(x, axis, start, end) takes a part of a tensor" : "");
		return value_broken(n->loc);
	}
	if (i.kind != V_INT) {
		sema_error(s, n->b->loc, "an index is an integer, here %s", value_kind_name(&i));
		return value_broken(n->loc);
	}
	if (sema_follows_n(s, n->b->loc, "this index", &i))
		return value_broken(n->loc);
	k = i.i < 0 ? i.i + list.n : i.i;
	if (k < 0 || k >= list.n) {
		sema_error(s, n->b->loc, "index %lld is outside the list of %d", (long long)i.i, list.n);
		return value_broken(n->loc);
	}
	Value v = list.at[k];

	v.loc = n->loc;
	return v;
}

/* An operator of which at least one operand is a tensor. */
static Value
eval_tensor_operator(Sema *s, const Node *n, const char *op, const Value *v, int count)
{
	Value out = value_broken(n->loc);
	int errors = s->errors;

	for (int k = 0; k < count; k++)
		if (sema_follows_n(s, n->loc, "this operand", &v[k]))
			return out;
	s->build.loc = n->loc;
	s->build.path = s->path = s->frame ? s->frame->path : "";
	s->build.error = NULL;
	if (!builtin_operator(s, n->loc, op, v, count, &out)) {
		if (s->errors == errors)
			sema_error(s, n->loc, "`%s`: %s", op,
			           s->build.error ? s->build.error : "not for these operands");
		out = value_broken(n->loc);
	} else if (out.kind == V_TENSOR && !out.tensor.id && s->errors == errors) {
		sema_error(s, n->loc, "`%s`: %s", op, s->build.error ? s->build.error : "not for these operands");
	}
	s->build.error = NULL;
	out.loc = n->loc;
	return out;
}

static Value
eval_unary(Sema *s, const Node *n)
{
	Value v = sema_eval(s, n->a), out;

	if (!is_single(s, n->loc, &v) || value_is_broken(&v))
		return value_broken(n->loc);
	if (v.kind == V_TENSOR)
		return eval_tensor_operator(s, n, n->s, &v, 1);
	if (n->kind == N_UNARY)
		return value_negate(s, n->loc, &v, &out) ? out : value_broken(n->loc);
	if (v.kind != V_BOOL) {
		sema_error(s, n->loc, "`not` needs true or false, here %s", value_kind_name(&v));
		return value_broken(n->loc);
	}
	return value_bool(!v.i, n->loc);
}

static bool
is_truth(Sema *s, const Node *n, const Value *v)
{
	if (v->kind == V_BOOL || v->kind == V_TENSOR)
		return true;
	sema_error(s, n->loc, "`%s` needs true or false, here %s", n->s, value_kind_name(v));
	return false;
}

static Value
eval_logic(Sema *s, const Node *n, Value a)
{
	Value b;

	if (!is_single(s, n->loc, &a) || value_is_broken(&a) || !is_truth(s, n, &a))
		return value_broken(n->loc);
	if (a.kind == V_BOOL && (n->kind == N_OR) == (a.i != 0))
		return value_bool(n->kind == N_OR, n->loc);
	b = sema_eval(s, n->b);
	if (!is_single(s, n->loc, &b) || value_is_broken(&b) || !is_truth(s, n, &b))
		return value_broken(n->loc);
	if (a.kind == V_TENSOR || b.kind == V_TENSOR)
		return eval_tensor_operator(s, n, n->s, (Value[]){a, b}, 2);
	return value_bool(b.i != 0, n->loc);
}

static Value
eval_binary(Sema *s, const Node *n, Value a)
{
	Value b = sema_eval(s, n->b), out;

	if (!is_single(s, n->a->loc, &a) || !is_single(s, n->b->loc, &b) || value_is_broken(&a) || value_is_broken(&b))
		return value_broken(n->loc);
	/* Whether an argument was left out is known at compile time, tensor or not. */
	if ((a.kind == V_NONE || b.kind == V_NONE) && (!strcmp(n->s, "==") || !strcmp(n->s, "!=")))
		return value_bool((a.kind == b.kind) == (*n->s == '='), n->loc);
	if (a.kind == V_TENSOR || b.kind == V_TENSOR)
		return eval_tensor_operator(s, n, n->s, (Value[]){a, b}, 2);
	return value_binary(s, n->loc, n->s, &a, &b, &out) ? out : value_broken(n->loc);
}

static Value
eval_leaf(Sema *s, const Node *n)
{
	switch (n->kind) {
	case N_INT:
		if (n->big) {
			sema_error(s, n->loc, "9223372036854775808 does not fit a 64-bit integer");
			return value_broken(n->loc);
		}
		return value_int(n->i, n->loc);
	case N_FLOAT: return value_float(n->f, n->loc);
	case N_STR: return (Value){.kind = V_STR, .s = n->s, .loc = n->loc};
	case N_BOOL: return value_bool(n->i != 0, n->loc);
	case N_NONE: return (Value){.kind = V_NONE, .loc = n->loc};
	case N_DTYPE: return (Value){.kind = V_DTYPE, .i = n->i, .loc = n->loc};
	case N_NAME: return eval_name(s, n);
	case N_LIST: return eval_list(s, n);
	case N_UNARY: case N_NOT: return eval_unary(s, n);
	case N_CALL: return sema_call(s, n, NULL);
	default:
		if (s->frame)
			s->frame->lost = true;
		return value_broken(n->loc);
	}
}

/* What n applies to on its left, where it is a link of a chain. */
static const Node *
left_of(const Node *n)
{
	switch (n->kind) {
	case N_BINARY: case N_AND: case N_OR: case N_SHAPE: case N_INDEX: return n->a;
	case N_CALL: return n->piped ? n->args.first->value : NULL;
	default: return NULL;
	}
}

static Value
eval_link(Sema *s, const Node *n, Value left)
{
	switch (n->kind) {
	case N_BINARY: return eval_binary(s, n, left);
	case N_AND: case N_OR: return eval_logic(s, n, left);
	case N_SHAPE: return eval_shape(s, n, left);
	case N_INDEX: return eval_index(s, n, left);
	default: return sema_call(s, n, &left);
	}
}

Value
sema_eval(Sema *s, const Node *n)
{
	VEC(const Node *) chain = {0};
	Value v;

	if (!sema_enter(s, n->loc))
		return value_broken(n->loc);
	for (; left_of(n); n = left_of(n))
		vec_push(s->arena, &chain, n);
	v = eval_leaf(s, n);
	while (chain.n && sema_step(s, n->loc)) {
		n = chain.at[--chain.n];
		v = eval_link(s, n, v);
	}
	sema_leave(s);
	return s->stop ? value_broken(n->loc) : v;
}

bool
sema_condition(Sema *s, const Node *n, bool *out)
{
	Value v = sema_eval(s, n);

	if (value_is_broken(&v))
		return false;
	if (v.kind == V_TENSOR)
		sema_error(
		        s, n->loc,
		        "a condition is known when compiling, here is a tensor: where(cond, x, y) chooses at run time");
	else if (v.kind != V_BOOL)
		sema_error(s, n->loc, "a condition is true or false, here %s", value_kind_name(&v));
	else {
		*out = v.i != 0;
		return true;
	}
	return false;
}
