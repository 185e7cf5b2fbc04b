/* builtins_args.c: arguments of operators, by name, checked.
 *
 * In: a Call whose arguments the elaborator has bound. Out: tensors, numbers, axes and shapes within their ranges, or
 * an error "operator: what it has, what it needs" at the argument, with a note where the tensor on the other side was
 * made. An extent that follows N keeps its mark in the evaluation graph; the training graph binds N, so there it is a
 * plain number. Anything else that depends on N is refused: it would make two different networks of one text. */
#include "builtins.h"

/* ---------------------------------------------------------------- errors */

bool
call_fail(Call *c, Loc at, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	char *text = arena_vprintf(sema_arena(c->sema), fmt, ap);
	va_end(ap);
	sema_error(c->sema, at.line ? at : c->loc, "%s: %s", c->op->name, text);
	return false;
}

const char *
val_text(Call *c, Val v)
{
	Buf b = {0};

	type_print(&b, val_type(call_graph(c), v));
	const char *text = arena_strdup(sema_arena(c->sema), b.at);
	buf_free(&b);
	return text;
}

void
call_note_val(Call *c, const char *what, Val v)
{
	const Op *op = v.id ? val_op(call_graph(c), v) : NULL;

	if (op && op->loc.line && memcmp(&op->loc, &c->loc, sizeof(Loc)))
		sema_note(c->sema, op->loc, "%s is %s, made here", what, val_text(c, v));
}

const char *
value_text(Call *c, const Value *v)
{
	if (v->kind == V_FLOAT) {
		Buf b = {0};

		buf_double(&b, v->f);
		if (strspn(b.at, "-0123456789") == b.n) /* an integer would do for what asks for one */
			buf_put(&b, ".0", 2);
		const char *text = arena_strdup(sema_arena(c->sema), b.at);
		buf_free(&b);
		return text;
	}
	if (v->kind == V_TENSOR && v->tensor.id)
		return arena_printf(sema_arena(c->sema), "the tensor %s", val_text(c, v->tensor));
	return value_kind_name(v);
}

/* ---------------------------------------------------------------- arguments */

static int
arg_index(const Call *c, const char *name)
{
	for (int i = 0; i < c->op->nparam; i++)
		if (!strcmp(c->op->param[i], name))
			return i;
	bug("operator %s has no parameter %s", c->op->name, name);
}

const Value *
call_arg(const Call *c, const char *name)
{
	return &c->arg[arg_index(c, name)];
}

bool
call_given(const Call *c, const char *name)
{
	return c->given[arg_index(c, name)];
}

Loc
call_loc(const Call *c, const char *name)
{
	int i = arg_index(c, name);

	return c->given[i] && c->arg[i].loc.line ? c->arg[i].loc : c->loc;
}

bool
arg_tensor(Call *c, const char *name, Val *v)
{
	const Value *a = call_arg(c, name);

	if (a->kind != V_TENSOR)
		return call_fail(c, call_loc(c, name), "%s is %s, needs a tensor", name, value_text(c, a));
	*v = a->tensor;
	return true;
}

bool
arg_float_tensor(Call *c, const char *name, Val *v)
{
	if (!arg_tensor(c, name, v))
		return false;
	if (dtype_is_float(val_type(call_graph(c), *v)->dtype))
		return true;
	call_fail(c, c->loc, "%s is %s, needs a floating type: cast(%s, f32)", name, val_text(c, *v), name);
	call_note_val(c, name, *v);
	return false;
}

bool
arg_int_tensor(Call *c, const char *name, Val *v)
{
	if (!arg_tensor(c, name, v))
		return false;
	if (dtype_is_int(val_type(call_graph(c), *v)->dtype))
		return true;
	call_fail(c, c->loc, "%s is %s, needs an integer type: cast(%s, i32)", name, val_text(c, *v), name);
	call_note_val(c, name, *v);
	return false;
}

bool
arg_rank(Call *c, const char *name, Val v, int rank, const char *axes)
{
	int has = val_type(call_graph(c), v)->rank;

	if (has == rank)
		return true;
	call_fail(c, c->loc, "%s has %d ax%s, needs %d %s", strcmp(name, "x") ? name : "input", has,
	          has == 1 ? "is" : "es", rank, axes);
	call_note_val(c, strcmp(name, "x") ? name : "input", v);
	return false;
}

bool
value_fixed(Call *c, const Value *v)
{
	if (v->kind != V_INT || !v->mul)
		return true;
	return call_fail(c, v->loc, "a number that depends on N may stand in extents only");
}

bool
arg_int(Call *c, const char *name, int64_t low, int64_t high, int64_t *out)
{
	const Value *a = call_arg(c, name);

	if (a->kind != V_INT)
		return call_fail(c, call_loc(c, name), "%s is %s, needs an integer", name, value_text(c, a));
	if (!value_fixed(c, a))
		return false;
	if (a->i > high && a->i > low)
		return call_fail(c, call_loc(c, name), "%s is %lld, needs at most %lld", name, (long long)a->i,
		                 (long long)high);
	if (a->i < low) {
		if (high >= (int64_t)1 << 28)
			return call_fail(c, call_loc(c, name), "%s is %lld, needs at least %lld", name, (long long)a->i,
			                 (long long)low);
		return call_fail(c, call_loc(c, name), "%s is %lld, needs a number in %lld..%lld", name,
		                 (long long)a->i, (long long)low, (long long)high);
	}
	*out = a->i;
	return true;
}

bool
arg_num(Call *c, const char *name, double low, double high, double *out)
{
	const Value *a = call_arg(c, name);

	if (a->kind != V_INT && a->kind != V_FLOAT)
		return call_fail(c, call_loc(c, name), "%s is %s, needs a number", name, value_text(c, a));
	if (!value_fixed(c, a))
		return false;
	double x = a->kind == V_INT ? (double)a->i : a->f;
	if (!(x >= low && x <= high)) {
		if (isinf(high))
			return call_fail(c, call_loc(c, name), "%s is %g, needs at least %g", name, x, low);
		return call_fail(c, call_loc(c, name), "%s is %g, needs a number in %g..%g", name, x, low, high);
	}
	*out = x;
	return true;
}

bool
arg_bool(Call *c, const char *name, bool *out)
{
	const Value *a = call_arg(c, name);

	if (a->kind != V_BOOL)
		return call_fail(c, call_loc(c, name), "%s is %s, needs true or false", name, value_text(c, a));
	*out = a->i != 0;
	return true;
}

bool
arg_dtype(Call *c, const char *name, DType *out)
{
	const Value *a = call_arg(c, name);
	Buf list = {0};

	*out = (DType)a->i;
	if (a->kind == V_DTYPE)
		return true;
	for (int t = DT_none + 1; t < DT_COUNT; t++)
		buf_printf(&list, " %s", dtype_info[t].name);
	call_fail(c, call_loc(c, name), "%s is %s, needs one of%s", name, value_text(c, a), list.at);
	buf_free(&list);
	return false;
}

bool
arg_pair(Call *c, const char *name, int64_t low, int64_t out[2])
{
	const Value *a = call_arg(c, name);

	if (a->kind != V_LIST) {
		if (a->kind != V_INT)
			return call_fail(c, call_loc(c, name),
			                 "%s is %s, needs an integer or a list of 2 [rows, columns]", name,
			                 value_text(c, a));
		if (!arg_int(c, name, low, (int64_t)1 << 30, &out[0]))
			return false;
		out[1] = out[0];
		return true;
	}
	if (a->n != 2)
		return call_fail(c, call_loc(c, name),
		                 "%s is a list of %d, needs an integer or a list of 2 [rows, columns]", name, a->n);
	for (int i = 0; i < 2; i++) {
		if (a->at[i].kind != V_INT)
			return call_fail(c, call_loc(c, name), "%s[%d] is %s, needs an integer", name, i,
			                 value_text(c, &a->at[i]));
		if (!value_fixed(c, &a->at[i]))
			return false;
		if (a->at[i].i < low || a->at[i].i > (int64_t)1 << 30)
			return call_fail(c, call_loc(c, name), "%s[%d] is %lld, needs at least %lld", name, i,
			                 (long long)a->at[i].i, (long long)low);
		out[i] = a->at[i].i;
	}
	return true;
}

/* ---------------------------------------------------------------- axes */

static bool
axis_number(Call *c, const char *name, const Value *v, int rank, int *out)
{
	Loc at = v->loc.line ? v->loc : call_loc(c, name);

	if (v->kind != V_INT)
		return call_fail(c, at, "%s is %s, needs an axis: an integer", name, value_text(c, v));
	if (!value_fixed(c, v))
		return false;
	if (rank == 0)
		return call_fail(c, at, "%s is %lld, but the tensor is a scalar without axes", name, (long long)v->i);
	if (v->i < -rank || v->i >= rank)
		return call_fail(c, at, "%s is %lld, the tensor has %d ax%s: %d..%d", name, (long long)v->i, rank,
		                 rank == 1 ? "is" : "es", -rank, rank - 1);
	*out = (int)(v->i < 0 ? v->i + rank : v->i);
	return true;
}

bool
arg_axis(Call *c, const char *name, int rank, int *out)
{
	return axis_number(c, name, call_arg(c, name), rank, out);
}

bool
arg_axes(Call *c, const char *name, int rank, int64_t *out, int *n)
{
	const Value *a = call_arg(c, name);
	bool named[MAX_RANK] = {false};
	int count = a->kind == V_LIST ? a->n : 1;

	*n = 0;
	if (a->kind == V_NONE) {
		for (int i = 0; i < rank; i++)
			out[(*n)++] = i;
		return true;
	}
	for (int i = 0; i < count; i++) {
		int at = 0;

		if (!axis_number(c, name, a->kind == V_LIST ? &a->at[i] : a, rank, &at))
			return false;
		if (named[at])
			return call_fail(c, call_loc(c, name), "%s names axis %d twice", name, at);
		named[at] = true;
	}
	for (int i = 0; i < rank; i++)
		if (named[i])
			out[(*n)++] = i;
	return true;
}

/* ---------------------------------------------------------------- extents and shapes */

bool
axis_times(Axis a, Axis b, Axis *out)
{
	int64_t mul, div;

	if (!mul_i64(a.n, b.n, &out->n) || (a.mul && b.mul))
		return false;
	out->mul = 0;
	out->div = 1;
	if (!a.mul && !b.mul)
		return true;
	Axis m = a.mul ? a : b;
	if (!mul_i64(m.mul, a.mul ? b.n : a.n, &mul))
		return false;
	div = m.div ? m.div : 1;
	int64_t g = gcd_i64(mul, div);
	mul /= g;
	div /= g;
	if (mul > INT32_MAX || div > INT32_MAX)
		return false;
	out->mul = (int32_t)mul;
	out->div = (int32_t)div;
	return true;
}

const char *
shape_too_large(int rank, const Axis *axes)
{
	int64_t n = 1;

	for (int i = 0; i < rank; i++)
		if (!mul_i64(n, axes[i].n, &n) || n > MAX_ELEMENTS)
			return "more than 2^40 elements";
	return NULL;
}

bool
value_axis(Call *c, const Value *v, Axis *out)
{
	if (v->kind != V_INT)
		return call_fail(c, v->loc, "an extent is %s, needs an integer", value_text(c, v));
	if (v->i < 1)
		return call_fail(c, v->loc, "an extent is %lld, needs at least 1", (long long)v->i);
	*out = axis(v->i);
	if (v->mul && !sema_training(c->sema)) {
		out->mul = v->mul;
		out->div = v->div ? v->div : 1;
	}
	return true;
}

bool
arg_shape(Call *c, const char *name, Axis *out, int *rank, int *hole)
{
	const Value *a = call_arg(c, name);

	if (hole)
		*hole = -1;
	if (a->kind != V_LIST)
		return call_fail(c, call_loc(c, name), "%s is %s, needs a list of extents", name, value_text(c, a));
	if (a->n > MAX_RANK)
		return call_fail(c, call_loc(c, name), "%s has %d axes, at most %d are possible", name, a->n, MAX_RANK);
	for (int i = 0; i < a->n; i++) {
		if (hole && a->at[i].kind == V_INT && a->at[i].i == -1 && !a->at[i].mul) {
			if (*hole >= 0)
				return call_fail(c, call_loc(c, name), "%s has two -1, one at most can be found", name);
			*hole = i;
			out[i] = axis(1);
		} else if (!value_axis(c, &a->at[i], &out[i])) {
			return false;
		}
	}
	*rank = a->n;
	const char *why = shape_too_large(*rank, out);
	return !why || call_fail(c, call_loc(c, name), "%s has %s", name, why);
}

bool
axis_fixed(Call *c, const char *what, Val v, int at, int64_t *extent)
{
	Axis a = val_type(call_graph(c), v)->axis[at];

	if (a.mul) {
		call_fail(c, c->loc, "%s is %s, its axis %d follows N and must have a fixed extent here", what,
		          val_text(c, v), at);
		call_note_val(c, what, v);
		return false;
	}
	*extent = a.n;
	return true;
}
