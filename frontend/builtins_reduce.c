/* builtins_reduce.c: reductions over axes, cumsum, and the softmaxes.
 *
 * A reduction is one row of ir/red.def. softmax takes the maximum off, then the log-sum-exp, so that it neither
 * overflows nor loses digits at large inputs, and backward needs its result alone. */
#include "builtins.h"

static bool
reduction(Call *c, OpKind k, bool floats_only, bool bools, Value *result)
{
	int64_t axes[MAX_RANK];
	bool keep;
	Val x;
	int n;

	if (floats_only ? !arg_float_tensor(c, "x", &x) : !arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (t.dtype == DT_bool && !bools)
		return call_fail(c, c->loc, "x is %s, needs numbers: cast(x, f32)", val_text(c, x));
	if (!arg_axes(c, "axes", t.rank, axes, &n) || !arg_bool(c, "keep", &keep))
		return false;
	if (!n) /* over nothing: each element by itself */
		return call_give(c,
		                 k != OP_sum ? x
		                             : to_dtype(c, x,
		                                        t.dtype == DT_bool      ? DT_i32
		                                        : dtype_is_int(t.dtype) ? DT_i64
		                                                                : t.dtype),
		                 result);
	return call_give(c, build_reduce(c->b, k, x, axes, n, keep), result);
}

bool
builtin_sum(Call *c, Value *result)
{
	return reduction(c, OP_sum, false, true, result);
}

bool
builtin_mean(Call *c, Value *result)
{
	return reduction(c, OP_mean, true, false, result);
}

bool
builtin_max(Call *c, Value *result)
{
	return reduction(c, OP_max, false, false, result);
}

bool
builtin_min(Call *c, Value *result)
{
	return reduction(c, OP_min, false, false, result);
}

bool
builtin_argmax(Call *c, Value *result)
{
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (t.dtype == DT_bool)
		return call_fail(c, c->loc, "x is %s, needs numbers: cast(x, i32)", val_text(c, x));
	return arg_axis(c, "axis", t.rank, &at) && call_give(c, reduce_over(c, OP_argmax, x, at, false), result);
}

bool
builtin_cumsum(Call *c, Value *result)
{
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (t.dtype == DT_bool)
		return call_fail(c, c->loc, "x is %s, needs numbers: cast(x, i32)", val_text(c, x));
	return arg_axis(c, "axis", t.rank, &at) && call_give(c, op_with(c, OP_cumsum, x, ATTRS(AI(axis, at))), result);
}

static bool
softmax(Call *c, bool logarithm, Value *result)
{
	Val x;
	int at;

	if (!arg_float_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at))
		return false;
	return call_give(c, to_dtype(c, safe_softmax(c, widen(c, x), at, logarithm), t.dtype), result);
}

bool
builtin_softmax(Call *c, Value *result)
{
	return softmax(c, false, result);
}

bool
builtin_log_softmax(Call *c, Value *result)
{
	return softmax(c, true, result);
}
