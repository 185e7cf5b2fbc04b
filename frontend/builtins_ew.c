/* builtins_ew.c: elementwise operators: those that ir/ew.def lists, the spelt ones (+ - * / % == and ...), and the few
 * with more arguments than tensors.
 *
 * Both tensors of an operator have one dtype; a number beside a tensor takes its dtype, a float only beside floats.
 * Operators on compile-time values alone are computed at once with the row's own expression. What is refused says what
 * cast would help. */
#include "builtins.h"

/* ---------------------------------------------------------------- operands */

static bool
integer_fits(DType t, int64_t i)
{
	return !dtype_is_int(t) || dtype_saturate(t, i) == i;
}

/* The integer as type t holds it. */
static int64_t
wrapped(DType t, int64_t i)
{
	int bits = 8 * dtype_info[t].bytes;
	uint64_t u = (uint64_t)i & UINT64_MAX >> (64 - bits);

	return !dtype_is_unsigned(t) && u >> (bits - 1) ? (int64_t)(u | ~(UINT64_MAX >> (64 - bits))) : (int64_t)u;
}

Val
full_of(Call *c, Type t, const Value *v)
{
	AttrArg value = {.name = A_value, .kind = v->kind == V_FLOAT ? AK_NUM : AK_INT, .i = v->i, .f = v->f};

	return build_op(c->b, OP_full, NULL, 0, ATTRS(value), &t);
}

bool
operand_fits(Call *c, const Value *v, DType t, const char *beside)
{
	switch (v->kind) {
	case V_TENSOR:
		return true;
	case V_INT:
		if (!value_fixed(c, v))
			return false;
		if (t == DT_bool)
			return call_fail(c, v->loc, "%s beside %s: a bool tensor goes with true and false",
			                 value_text(c, v), beside);
		if (dtype_is_int(t) && !integer_fits(t, v->i))
			return call_fail(c, v->loc, "%lld does not fit %s", (long long)v->i, beside);
		return true;
	case V_FLOAT:
		if (dtype_is_float(t))
			return true;
		return call_fail(
		        c, v->loc,
		        "the float %s beside %s: a float goes with a floating type only, as cast(x, f32) makes",
		        value_text(c, v), beside);
	case V_BOOL:
		if (t == DT_bool)
			return true;
		return call_fail(c, v->loc, "%s beside %s: needs a number", v->i ? "true" : "false", beside);
	default:
		return call_fail(c, v->loc, "%s beside %s: needs a tensor or a number", value_text(c, v), beside);
	}
}

bool
operand(Call *c, const Value *v, DType t, const char *beside, Val *out)
{
	if (!operand_fits(c, v, t, beside))
		return false;
	*out = v->kind == V_TENSOR ? v->tensor : full_of(c, type_scalar(t), v);
	return out->id != 0;
}

bool
same_dtype(Call *c, const char *na, Val a, const char *nb, Val b)
{
	const Type *ta = val_type(call_graph(c), a), *tb = val_type(call_graph(c), b);

	if (ta->dtype == tb->dtype)
		return true;
	call_fail(c, c->loc, "%s is %s, %s is %s; both need one type: cast(%s, %s)", na, val_text(c, a), nb,
	          val_text(c, b), nb, dtype_info[ta->dtype].name);
	call_note_val(c, na, a);
	call_note_val(c, nb, b);
	return false;
}

/* Which kinds of dtype a row takes, said to a person. */
static bool
kind_allowed(Call *c, OpKind k, const char *name, Val x)
{
	DType t = val_type(call_graph(c), x)->dtype;
	char kind = dtype_is_float(t) ? 'F' : dtype_is_int(t) ? 'I' : 'B';
	const char *types = op_info[k].types;

	if (strchr(types, kind))
		return true;
	call_fail(c, c->loc, "%s is %s, needs %s: cast(%s, %s)", name, val_text(c, x),
	          strchr(types, 'F') && strchr(types, 'I') ? "a number type"
	          : strchr(types, 'F')                     ? "a floating type"
	          : strchr(types, 'I')                     ? "an integer type"
	                                                   : "bool",
	          name,
	          strchr(types, 'F')   ? "f32"
	          : strchr(types, 'I') ? "i32"
	                               : "bool");
	call_note_val(c, name, x);
	return false;
}

bool
elementwise(Call *c, OpKind k, const Value *const *args, const char *const *names, int n, const AttrArg *attrs,
            Value *result)
{
	int first = -1;
	Val in[3];

	for (int i = 0; i < n; i++) {
		if (args[i]->kind != V_TENSOR)
			continue;
		if (first < 0)
			first = i;
		else if (!same_dtype(c, names[first], args[first]->tensor, names[i], args[i]->tensor))
			return false;
	}
	Val x = args[first]->tensor;
	if (!kind_allowed(c, k, names[first], x))
		return false;
	DType t = val_type(call_graph(c), x)->dtype;
	const char *beside = val_text(c, x);
	for (int i = 0; i < n; i++)
		if (!operand(c, args[i], t, beside, &in[i]))
			return false;
	if (call_give(c, build_op(c->b, k, in, n, attrs, NULL), result))
		return true;
	for (int i = 0; i < n; i++)
		if (args[i]->kind == V_TENSOR)
			call_note_val(c, names[i], args[i]->tensor);
	return false;
}

/* ---------------------------------------------------------------- on compile-time values */

/* The row's expression on numbers: an integer if the row takes integers and all of them are. */
static bool
compute(Call *c, OpKind k, const Value *const *args, int n, const double *attr, bool attr_ints, Value *result)
{
	double var[7] = {0};
	bool ints = strchr(op_info[k].types, 'I') && attr_ints;

	for (int i = 0; i < n; i++) {
		if (args[i]->kind != V_INT && args[i]->kind != V_FLOAT)
			return call_fail(c, args[i]->loc, "needs a tensor or a number, has %s", value_text(c, args[i]));
		if (!value_fixed(c, args[i]))
			return false;
		ints &= args[i]->kind == V_INT;
		var[i] = args[i]->kind == V_INT ? (double)args[i]->i : args[i]->f;
		if (args[i]->kind == V_INT && (args[i]->i > (int64_t)1 << 53 || args[i]->i < -((int64_t)1 << 53)))
			return call_fail(c, args[i]->loc, "%lld is too large to compute with here",
			                 (long long)args[i]->i);
	}
	for (int i = 0; i < 2; i++)
		var[5 + i] = attr[i];
	double r = expr_eval(op_info[k].expr, var);
	if (!isfinite(r))
		return call_fail(c, c->loc, "the result is not finite");
	if (ints && !(fabs(r) <= 0x1p53))
		return call_fail(c, c->loc, "integer overflow");
	if (ints)
		*result = value_int((int64_t)r, c->loc);
	else
		*result = (Value){.kind = V_FLOAT, .f = r, .loc = c->loc};
	return true;
}

/* Attributes of an elementwise row, from the arguments of the same names. */
static bool
attributes(Call *c, const OpInfo *info, DType t, AttrArg *attrs, double *numbers, bool *ints)
{
	int n = info->nattr;

	*ints = true;
	for (int i = 0; i < n; i++) {
		const char *name = attr_names[info->attr_name[i]].name;
		const Value *v = call_arg(c, name);

		if (!arg_num(c, name, -INFINITY, INFINITY, &numbers[i]))
			return false;
		*ints &= v->kind == V_INT;
		if (t && !dtype_is_float(t) && v->kind == V_FLOAT && call_given(c, name))
			return call_fail(c, call_loc(c, name),
			                 "%s is the float %s, the tensor has integers: cast(x, f32)", name,
			                 value_text(c, v));
		attrs[i] = (AttrArg){.name = info->attr_name[i],
		                     .kind = v->kind == V_INT ? AK_INT : AK_NUM,
		                     .i = v->i,
		                     .f = numbers[i]};
	}
	attrs[n] = (AttrArg){.name = A_COUNT};
	return true;
}

bool
builtin_elementwise(Call *c, Value *result)
{
	OpKind k = c->op->ew;
	const OpInfo *info = &op_info[k];
	const Value *args[3];
	double numbers[2] = {0, 0};
	AttrArg attrs[3];
	bool any = false, ints;
	DType t = DT_none;

	for (int i = 0; i < info->nin; i++) {
		args[i] = &c->arg[i];
		any |= args[i]->kind == V_TENSOR;
		if (args[i]->kind == V_TENSOR)
			t = val_type(call_graph(c), args[i]->tensor)->dtype;
	}
	if (!attributes(c, info, t, attrs, numbers, &ints))
		return false;
	if (!any)
		return compute(c, k, args, info->nin, numbers, ints, result);
	return elementwise(c, k, args, c->op->param, info->nin, attrs, result);
}

/* ---------------------------------------------------------------- spelt operators */

static const struct { const char *spelling; OpKind kind, integers;
} spelt[] = {
        {"+", OP_add, OP_add},  {"-", OP_sub, OP_sub},   {"*", OP_mul, OP_mul}, {"/", OP_div, OP_idiv},
        {"%", OP_mod, OP_imod}, {"==", OP_eq, OP_eq},    {"!=", OP_ne, OP_ne},  {"<", OP_lt, OP_lt},
        {"<=", OP_le, OP_le},   {">", OP_gt, OP_gt},     {">=", OP_ge, OP_ge},  {"and", OP_and, OP_and},
        {"or", OP_or, OP_or},   {"not", OP_not, OP_not},
};

bool
builtin_operator(struct Sema *s, Loc at, const char *op, const Value *a, int nargs, Value *result)
{
	static const char *const one[] = {"x"}, *const two[] = {"left", "right"};
	Build *b = sema_build(s);
	Builtin row = {.name = arena_printf(sema_arena(s), "`%s`", op)};
	Call c = {.sema = s, .op = &row, .loc = at, .path = sema_path(s), .b = b, .training = sema_training(s)};
	Loc outer = b->loc;
	OpKind kind = OP_none;
	DType t = DT_none;

	for (int i = 0; i < nargs; i++)
		if (a[i].kind == V_TENSOR)
			t = val_type(b->g, a[i].tensor)->dtype;
	for (size_t i = 0; i < sizeof spelt / sizeof *spelt; i++)
		if (!strcmp(spelt[i].spelling, op))
			kind = t == DT_none || !dtype_is_int(t) ? spelt[i].kind : spelt[i].integers;
	if (nargs == 1 && kind == OP_sub)
		kind = OP_neg;
	if (!kind || !t || nargs > 2)
		bug("operator %s with %d operands", op, nargs);
	b->loc = at;
	bool good = elementwise(&c, kind, (const Value *const[]){&a[0], &a[nargs - 1]}, nargs == 1 ? one : two, nargs,
	                        NULL, result);
	if (good && kind == OP_idiv)
		sema_warning(s, at,
		             "`/`: floor division of integers (%s); for a quotient cast first, as in cast(x, f32) / y",
		             val_text(&c, result->tensor));
	b->loc = outer;
	return good;
}

/* ---------------------------------------------------------------- operators with a row of their own */

/* Two numbers beside a bool condition have no tensor to take a type from: floats are f32, integers i32. */
bool
builtin_where(Call *c, Value *result)
{
	const Value *cond = call_arg(c, "cond"), *x = call_arg(c, "x"), *y = call_arg(c, "y");
	Val vc, vx, vy;

	if (cond->kind == V_BOOL && x->kind != V_TENSOR && y->kind != V_TENSOR) {
		*result = cond->i ? *x : *y;
		return true;
	}
	if (cond->kind == V_BOOL)
		vc = full_of(c, type_scalar(DT_bool), cond);
	else if (!arg_tensor(c, "cond", &vc))
		return false;
	if (val_type(call_graph(c), vc)->dtype != DT_bool) {
		call_fail(c, c->loc, "cond is %s, needs bool: a comparison, or cast(cond, bool)", val_text(c, vc));
		call_note_val(c, "cond", vc);
		return false;
	}
	if (x->kind == V_TENSOR && y->kind == V_TENSOR && !same_dtype(c, "x", x->tensor, "y", y->tensor))
		return false;
	const Value *typed = x->kind == V_TENSOR ? x : y;
	DType t = x->kind == V_FLOAT || y->kind == V_FLOAT ? DT_f32 : x->kind == V_BOOL ? DT_bool : DT_i32;
	const char *beside = "the other value of where";
	if (typed->kind == V_TENSOR) {
		t = val_type(call_graph(c), typed->tensor)->dtype;
		beside = val_text(c, typed->tensor);
	}
	if (!operand(c, x, t, beside, &vx) || !operand(c, y, t, beside, &vy))
		return false;
	return call_give(c, ew3(c, OP_where, vc, vx, vy), result);
}

/* Integers to an integer power stay integers. */
static bool
power_of_integers(Call *c, int64_t x, int64_t y, Value *result)
{
	int64_t r = 1;

	for (; y > 0 && !(x == 1 || (x == 0 && r == 0)); y--) {
		if (x == -1 && y > 2)
			y -= 2 * ((y - 1) / 2);
		if (!mul_i64(r, x, &r))
			return call_fail(c, c->loc, "integer overflow");
	}
	*result = value_int(r, c->loc);
	return true;
}

bool
builtin_pow(Call *c, Value *result)
{
	const Value *x = call_arg(c, "x"), *y = call_arg(c, "y");
	const Value *args[] = {x, y};

	if (x->kind != V_TENSOR && y->kind != V_TENSOR) {
		if (x->kind == V_INT && y->kind == V_INT && y->i >= 0 && !x->mul && !y->mul)
			return power_of_integers(c, x->i, y->i, result);
		return compute(c, OP_pow, args, 2, (double[]){0, 0}, true, result);
	}
	/* exact, and no logarithm */
	if (x->kind == V_TENSOR && y->kind == V_INT && !y->mul && (y->i == 2 || y->i == 3)) {
		if (!kind_allowed(c, OP_pow, "x", x->tensor))
			return false;
		Val square = ew1(c, OP_square, x->tensor);

		return call_give(c, y->i == 2 ? square : ew2(c, OP_mul, square, x->tensor), result);
	}
	return elementwise(c, OP_pow, args, c->op->param, 2, NULL, result);
}

bool
builtin_gelu(Call *c, Value *result)
{
	const Value *x = call_arg(c, "x"), *how = call_arg(c, "approximate");

	if (how->kind != V_STR || (strcmp(how->s, "none") && strcmp(how->s, "tanh")))
		return call_fail(c, call_loc(c, "approximate"), "approximate is %s, needs \"none\" or \"tanh\"",
		                 how->kind == V_STR ? how->s : value_text(c, how));
	OpKind k = how->s[0] == 't' ? OP_gelu_tanh : OP_gelu;
	if (x->kind != V_TENSOR)
		return compute(c, k, &x, 1, (double[]){0, 0}, true, result);
	return elementwise(c, k, &x, c->op->param, 1, NULL, result);
}

bool
builtin_clamp(Call *c, Value *result)
{
	const Value *x = call_arg(c, "x");
	double numbers[2];
	AttrArg attrs[3];
	bool ints;
	DType t = x->kind == V_TENSOR ? val_type(call_graph(c), x->tensor)->dtype : DT_none;

	if (!attributes(c, &op_info[OP_clamp], t, attrs, numbers, &ints))
		return false;
	if (!(numbers[0] <= numbers[1]))
		return call_fail(c, call_loc(c, "low"), "low %g is above high %g", numbers[0], numbers[1]);
	if (x->kind != V_TENSOR)
		return compute(c, OP_clamp, &x, 1, numbers, ints, result);
	return elementwise(c, OP_clamp, &x, c->op->param, 1, attrs, result);
}

/* A compile-time number is converted as an element would be. */
static bool
cast_number(Call *c, const Value *x, DType t, Value *result)
{
	double f = x->kind == V_FLOAT ? x->f : (double)x->i;

	if (x->kind != V_INT && x->kind != V_FLOAT && x->kind != V_BOOL)
		return call_fail(c, call_loc(c, "x"), "x is %s, needs a tensor or a number", value_text(c, x));
	if (!value_fixed(c, x))
		return false;
	if (t == DT_bool) {
		*result = (Value){.kind = V_BOOL, .i = f != 0, .loc = c->loc};
	} else if (dtype_is_float(t)) {
		*result = (Value){.kind = V_FLOAT, .f = f, .loc = c->loc};
	} else {
		int64_t i = x->kind != V_FLOAT ? x->i
		            : f != f           ? 0
		            : f >= 0x1p63      ? INT64_MAX
		            : f <= -0x1p63     ? INT64_MIN
		                               : (int64_t)f;

		i = x->kind == V_FLOAT ? dtype_saturate(t, i) : wrapped(t, i);
		*result = value_int(i, c->loc);
	}
	return true;
}

bool
builtin_cast(Call *c, Value *result)
{
	const Value *x = call_arg(c, "x");
	DType t;

	if (!arg_dtype(c, "dtype", &t))
		return false;
	if (x->kind != V_TENSOR)
		return cast_number(c, x, t, result);
	return call_give(c, build_cast(c->b, x->tensor, t), result);
}

bool
builtin_stop_gradient(Call *c, Value *result)
{
	Val x;

	return arg_tensor(c, "x", &x) && call_give(c, op_with(c, OP_stop_gradient, x, NULL), result);
}
