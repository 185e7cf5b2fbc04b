/* value.c: compile-time values: making, naming, comparing, arithmetic.
 *
 * Integers are 64 bits; overflow is an error, `/` floors, `%` has the divisor's sign, a division by zero is an error,
 * of floats too. An integer that follows N is N times mul / div in lowest terms: only times and divided by a constant
 * keep it an extent; anything else is an error that names N. */
#include <math.h>
#include <string.h>
#include "sema_local.h"

/* A list may hold itself many times over, as in x = [x, x]: what is asked of whole lists is kept in them, in i. */
enum { HOLDS_BROKEN = 1, HOLDS_N = 2, HOLDS_TENSOR = 4 };

static int64_t
value_flags(const Value *v)
{
	if (v->kind == V_TENSOR)
		return v->tensor.id ? HOLDS_TENSOR : HOLDS_BROKEN;
	if (v->kind == V_INT)
		return v->mul ? HOLDS_N : 0;
	return v->kind == V_LIST || v->kind == V_TUPLE || v->kind == V_SPEC ? v->i : 0;
}

bool
value_is_broken(const Value *v)
{
	return (value_flags(v) & HOLDS_BROKEN) != 0;
}

bool
value_holds_tensor(const Value *v)
{
	return (value_flags(v) & HOLDS_TENSOR) != 0;
}

/* v holds the items in v->at: fills in flags, and the depth of nesting in div. */
void
value_seal(Value *v)
{
	v->i = 0;
	v->div = 1;
	for (int k = 0; k < v->n; k++) {
		const Value *x = &v->at[k];

		v->i |= value_flags(x);
		if ((x->kind == V_LIST || x->kind == V_TUPLE || x->kind == V_SPEC) && x->div >= v->div)
			v->div = x->div + 1;
	}
}

Value
value_tensor(Val v, Loc loc)
{
	return (Value){.kind = V_TENSOR, .tensor = v, .loc = loc};
}

Value
value_int(int64_t i, Loc loc)
{
	return (Value){.kind = V_INT, .i = i, .f = (double)i, .loc = loc};
}

Value
value_float(double f, Loc loc)
{
	return (Value){.kind = V_FLOAT, .f = f, .loc = loc};
}

Value
value_bool(bool b, Loc loc)
{
	return (Value){.kind = V_BOOL, .i = b, .loc = loc};
}

Value
value_list(const Value *at, int n, Loc loc)
{
	Value list = {.kind = V_LIST, .at = at, .n = n, .loc = loc};

	value_seal(&list);
	return list;
}

Value
value_tuple(Sema *s, const Value *v, int n, Loc loc)
{
	Value *copy = arena_array(s->arena, Value, n);

	if (n)
		memcpy(copy, v, sizeof *v * (size_t)n);
	Value tuple = {.kind = V_TUPLE, .at = copy, .n = n, .loc = loc};
	value_seal(&tuple);
	return tuple;
}

Value
value_axis_extent(Axis a, Loc loc)
{
	Value v = value_int(a.n, loc);

	v.mul = a.mul;
	v.div = a.mul ? a.div : 0;
	return v;
}

/* A few texts may be named in one message, so the buffers rotate. */
static char *
text_buffer(void)
{
	static _Thread_local char ring[8][96];
	static _Thread_local unsigned next;

	return ring[next++ % 8];
}

/* Values of a .net file that are written `name(...)` have names of settings. */
bool
value_is_set_metric(const Value *v)
{
	return v->kind == V_SPEC
		&& ((v->n == 6 && !strcmp(v->s, "average_precision")) || (v->n == 2 && !strcmp(v->s, "auc")));
}

const char *
value_kind_name(const Value *v)
{
	char *t = text_buffer();
	const size_t n = 96;

	switch (v->kind) {
	case V_NONE: return "none";
	case V_TENSOR: return "a tensor";
	case V_INT:
		if (v->mul)
			snprintf(t, n, "an extent that follows N");
		else
			snprintf(t, n, "the integer %lld", (long long)v->i);
		return t;
	case V_FLOAT: snprintf(t, n, "the number %g", v->f); return t;
	case V_BOOL: return v->i ? "true" : "false";
	case V_STR: snprintf(t, n, "the string \"%.60s\"%s", v->s, strlen(v->s) > 60 ? "..." : ""); return t;
	case V_DTYPE: snprintf(t, n, "the dtype %s", dtype_info[v->i].name); return t;
	case V_LIST: snprintf(t, n, v->n ? "a list of %d" : "an empty list", v->n); return t;
	case V_TUPLE: snprintf(t, n, "%d values", v->n); return t;
	case V_SPEC:
		if (*v->s == '{')
			return v->n ? "values in braces" : "empty braces";
		snprintf(t, n, "`%.60s%s`", v->s, v->n ? "(...)" : "");
		return t;
	}
	return "a value";
}

static bool
value_equal(Sema *s, const Value *a, const Value *b)
{
	if (value_is_number(a) && value_is_number(b))
		return a->kind == V_INT && b->kind == V_INT ? a->i == b->i : a->f == b->f;
	if (a->kind != b->kind)
		return false;
	switch (a->kind) {
	case V_NONE: return true;
	case V_BOOL: case V_DTYPE: return a->i == b->i;
	case V_STR: return !strcmp(a->s, b->s);
	case V_LIST: case V_TUPLE: case V_SPEC:
		if (a->n != b->n || (a->kind == V_SPEC && strcmp(a->s, b->s)))
			return false;
		for (int i = 0; i < a->n && sema_step(s, a->loc); i++)
			if (!value_equal(s, &a->at[i], &b->at[i]))
				return false;
		return true;
	default: return false;
	}
}

/* N times mul / div, in lowest terms; i is the extent of a full batch. */
static bool
follow(Sema *s, Loc at, const Value *v, int64_t times, int64_t over, Value *out)
{
	int64_t mul, div, g;

	*out = value_int(0, at);
	if (times < 1 || over < 1) {
		sema_error(s, at, "%s makes no extent of N: only a positive constant does",
		           times < 1 ? "this factor" : "this divisor");
		return false;
	}
	if (!mul_i64(v->mul, times, &mul) || !mul_i64(v->div, over, &div))
		mul = div = INT64_MAX;
	g = gcd_i64(mul, div);
	mul /= g;
	div /= g;
	if (mul > INT32_MAX || div > INT32_MAX || !mul_i64(v->i, times, &out->i)) {
		sema_error(s, at, "an extent of N times %lld / %lld is too large", (long long)mul, (long long)div);
		return false;
	}
	if (s->batch && out->i % over) {
		sema_error(s, at, "N * %lld / %lld is no whole number for a batch of %lld", (long long)mul,
		           (long long)div, (long long)s->batch);
		return false;
	}
	out->i /= over;
	out->f = (double)out->i;
	out->mul = (int32_t)mul;
	out->div = (int32_t)div;
	return true;
}

static bool
follow_binary(Sema *s, Loc at, const char *op, const Value *a, const Value *b, Value *out)
{
	if (a->kind == V_INT && b->kind == V_INT) {
		if (*op == '*' && !(a->mul && b->mul))
			return a->mul ? follow(s, at, a, b->i, 1, out) : follow(s, at, b, a->i, 1, out);
		if (*op == '/' && !b->mul && b->i)
			return follow(s, at, a, 1, b->i, out);
	}
	sema_error(s, at,
	           "the result of `%s` depends on N: N may go into extents only, as it is or times or divided by a "
	           "constant",
	           op);
	return false;
}

static bool
integer_binary(Sema *s, Loc at, char op, int64_t a, int64_t b, Value *out)
{
	int64_t r = 0;
	bool over = false;

	if ((op == '/' || op == '%') && !b) {
		sema_error(s, at, "division of %lld by zero", (long long)a);
		return false;
	}
	switch (op) {
	case '+': over = __builtin_add_overflow(a, b, &r); break;
	case '-': over = __builtin_sub_overflow(a, b, &r); break;
	case '*': over = __builtin_mul_overflow(a, b, &r); break;
	case '/':
		over = a == INT64_MIN && b == -1;
		r = over ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
		break;
	case '%':
		r = b == -1 ? 0 : a % b;
		r += r != 0 && (r < 0) != (b < 0) ? b : 0;
		break;
	}
	if (over) {
		sema_error(s, at, "%lld %c %lld does not fit a 64-bit integer", (long long)a, op, (long long)b);
		return false;
	}
	*out = value_int(r, at);
	return true;
}

static bool
float_binary(Sema *s, Loc at, char op, double a, double b, Value *out)
{
	double r = 0;

	if ((op == '/' || op == '%') && b == 0) {
		sema_error(s, at, "division of %g by zero", a);
		return false;
	}
	switch (op) {
	case '+': r = a + b; break;
	case '-': r = a - b; break;
	case '*': r = a * b; break;
	case '/': r = a / b; break;
	case '%': r = floormod(a, b); break;
	}
	if (!isfinite(r)) {
		sema_error(s, at, "%g %c %g is too large for a double", a, op, b);
		return false;
	}
	*out = value_float(r, at);
	return true;
}

static bool
compare(Sema *s, Loc at, const char *op, const Value *a, const Value *b, Value *out)
{
	if (!strcmp(op, "==") || !strcmp(op, "!=")) {
		*out = value_bool(value_equal(s, a, b) == (*op == '='), at);
		return true;
	}
	if (!value_is_number(a) || !value_is_number(b)) {
		sema_error(s, at, "`%s` compares numbers, here %s and %s", op, value_kind_name(a), value_kind_name(b));
		return false;
	}
	bool whole = a->kind == V_INT && b->kind == V_INT;
	int less = whole ? a->i < b->i : a->f < b->f, same = whole ? a->i == b->i : a->f == b->f;

	*out = value_bool(*op == '<' ? less || (op[1] && same) : (!less && !same) || (op[1] && same), at);
	return true;
}

bool
value_binary(Sema *s, Loc at, const char *op, const Value *a, const Value *b, Value *out)
{
	bool ordering = strchr("<>!=", *op) != NULL;

	/* x == none asks whether there is something, whatever it is. */
	if (ordering && ((value_flags(a) | value_flags(b)) & HOLDS_N) && a->kind != V_NONE && b->kind != V_NONE) {
		sema_error(s, at, "this comparison depends on N: N may go into extents only");
		return false;
	}
	if (ordering)
		return compare(s, at, op, a, b, out);
	if (*op == '+' && a->kind == V_LIST && b->kind == V_LIST) {
		Value *items = arena_array(s->arena, Value, (int64_t)a->n + b->n <= MAX_LIST ? a->n + b->n : 1);
		int64_t n = (int64_t)a->n + b->n;

		if (n <= MAX_LIST) {
			if (a->n)
				memcpy(items, a->at, sizeof *items * (size_t)a->n);
			if (b->n)
				memcpy(items + a->n, b->at, sizeof *items * (size_t)b->n);
		}
		*out = sema_make_list(s, items, n, at);
		return out->kind == V_LIST;
	}
	if (!value_is_number(a) || !value_is_number(b)) {
		if (a->kind == V_LIST || b->kind == V_LIST)
			sema_error(s, at, "`%s` on %s and %s: lists join with +, and with lists only", op,
			           value_kind_name(a), value_kind_name(b));
		else
			sema_error(s, at, "`%s` needs numbers, here %s and %s", op, value_kind_name(a),
			           value_kind_name(b));
		return false;
	}
	if (value_follows_n(a) || value_follows_n(b))
		return follow_binary(s, at, op, a, b, out);
	if (a->kind == V_INT && b->kind == V_INT)
		return integer_binary(s, at, *op, a->i, b->i, out);
	return float_binary(s, at, *op, a->f, b->f, out);
}

bool
value_negate(Sema *s, Loc at, const Value *a, Value *out)
{
	if (!value_is_number(a)) {
		sema_error(s, at, "`-` needs a number, here %s", value_kind_name(a));
		return false;
	}
	if (value_follows_n(a)) {
		sema_error(s, at, "the result of `-` depends on N: N may go into extents only");
		return false;
	}
	if (a->kind == V_INT && a->i == INT64_MIN) {
		sema_error(s, at, "-(%lld) does not fit a 64-bit integer", (long long)a->i);
		return false;
	}
	*out = a->kind == V_FLOAT ? value_float(-a->f, at) : value_int(-a->i, at);
	return true;
}
