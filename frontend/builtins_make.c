/* builtins_make.c: tensors from nothing: explicit parameters, constants, ranges.
 *
 * Shapes of constants may follow N; a parameter's may not, as it outlives a batch. range gives a compile-time list, or
 * with a dtype a tensor. */
#include "builtins.h"

enum { MAX_RANGE = 1 << 20 }; /* items of a compile-time list */

bool
builtin_param(Call *c, Value *result)
{
	Axis axes[MAX_RANK];
	int64_t dims[MAX_RANK];
	double rest = 1;
	Init init;
	int rank;
	Val v;

	if (!arg_shape(c, "shape", axes, &rank, NULL))
		return false;
	const Value *shape = call_arg(c, "shape");
	for (int i = 0; i < rank; i++) {
		if (shape->at[i].mul)
			return call_fail(c, shape->at[i].loc,
			                 "shape[%d] depends on N, a parameter has the same shape for every batch", i);
		dims[i] = axes[i].n;
		rest *= i >= 2 ? (double)dims[i] : 1;
	}
	Fans fans = rank < 2 ? NO_FANS("a parameter of 2 axes or more")
	                     : (Fans){(double)dims[1] * rest, (double)dims[0] * rest, NULL};
	if (!init_value(c, "init", INIT_ZERO, fans, &init))
		return false;
	Type t = type_of(DT_f32, rank, axes);
	return sema_param(c, NULL, &t, ST_PARAM, init.kind, init.a, init.b, &v) && call_give(c, v, result);
}

static bool
constant(Call *c, const Value *v, double x, Value *result)
{
	Axis axes[MAX_RANK];
	int rank;
	DType t;

	if (!arg_shape(c, "shape", axes, &rank, NULL) || !arg_dtype(c, "dtype", &t))
		return false;
	if (!v)
		return call_give(c, build_full(c->b, type_of(t, rank, axes), x), result);
	if (v->kind == V_TENSOR)
		return call_fail(c, call_loc(c, "v"), "v is %s, needs a number", value_text(c, v));
	return operand_fits(c, v, t, arena_printf(sema_arena(c->sema), "dtype %s", dtype_info[t].name))
	       && call_give(c, full_of(c, type_of(t, rank, axes), v), result);
}

bool
builtin_zeros(Call *c, Value *result)
{
	return constant(c, NULL, 0, result);
}

bool
builtin_ones(Call *c, Value *result)
{
	return constant(c, NULL, 1, result);
}

bool
builtin_full(Call *c, Value *result)
{
	return constant(c, call_arg(c, "v"), 0, result);
}

/* range(n, dtype = ...) as a tensor; n may follow N. */
static bool
range_tensor(Call *c, int64_t start, int64_t step, Axis extent, Value *result)
{
	DType t;

	if (!arg_dtype(c, "dtype", &t))
		return false;
	if (t == DT_bool)
		return call_fail(c, call_loc(c, "dtype"), "dtype is bool, needs a number type");
	int64_t last = start + (extent.n - 1) * step, low = start < last ? start : last,
	        high = start < last ? last : start;
	if (dtype_is_int(t) && (low < dtype_lowest(t) || high > dtype_highest(t)))
		return call_fail(c, c->loc, "%lld..%lld does not fit %s", (long long)low, (long long)high,
		                 dtype_info[t].name);
	Type type = type_of(t, 1, &extent);
	return call_give(c,
	                 build_op(c->b, OP_iota, NULL, 0, ATTRS(AI(start, start), AI(step, step), AI(axis, 0)), &type),
	                 result);
}

bool
builtin_range(Call *c, Value *result)
{
	const Value *a = call_arg(c, "a"), *b = call_arg(c, "b");
	int64_t limit = (int64_t)1 << 40, start = 0, end, step;
	bool tensor = call_arg(c, "dtype")->kind != V_NONE;
	Axis extent;

	if (tensor && a->kind == V_INT && a->mul && b->kind == V_NONE && !call_given(c, "step"))
		return value_axis(c, a, &extent) && range_tensor(c, 0, 1, extent, result);
	if (!arg_int(c, b->kind == V_NONE ? "a" : "b", -limit, limit, &end) ||
	    (b->kind != V_NONE && !arg_int(c, "a", -limit, limit, &start)) || !arg_int(c, "step", -limit, limit, &step))
		return false;
	if (step == 0)
		return call_fail(c, call_loc(c, "step"), "step is 0");
	int64_t n = step > 0 ? (end > start ? (end - start + step - 1) / step : 0)
	                     : (start > end ? (start - end - step - 1) / -step : 0);
	if (tensor) {
		if (n < 1)
			return call_fail(c, c->loc, "%lld..%lld is empty, a tensor needs an element", (long long)start,
			                 (long long)end);
		extent = axis(n);
		return range_tensor(c, start, step, extent, result);
	}
	if (n > MAX_RANGE)
		return call_fail(c, c->loc, "a list of %lld items, at most %d are possible", (long long)n, MAX_RANGE);
	Value *item = arena_array(sema_arena(c->sema), Value, n);
	for (int64_t i = 0; i < n; i++)
		item[i] = value_int(start + i * step, c->loc);
	*result = (Value){.kind = V_LIST, .loc = c->loc, .at = item, .n = (int)n, .div = 1};
	return true;
}
