/* builtins_shape.c: reshape, transpose and their kin, joining and cutting.
 *
 * Extents may follow N: reshape finds its -1 as an extent times N where the input's elements follow N and the named
 * ones do not. Cutting or padding the batch axis itself is allowed by fixed numbers; such a model runs whole batches
 * only, which the shape rules of the IR record with the reason. */
#include "builtins.h"

/* Product of extents and of marks; false if two axes follow N (then only a whole batch has a meaning). */
static bool
product_of(const Axis *axes, int rank, int skip, Axis *out)
{
	*out = axis(1);
	for (int i = 0; i < rank; i++)
		if (i != skip && !axis_times(*out, axes[i], out))
			return false;
	return true;
}

/* The extent at the -1: elements of x over those named. It follows N as far as what is left does. */
static Axis
hole_extent(Call *c, const Type *x, const Axis *axes, int rank, int hole, int64_t extent)
{
	Axis all, named, left = axis(extent);
	int64_t batch = call_graph(c)->module->batch;

	if (!product_of(x->axis, x->rank, -1, &all) || !product_of(axes, rank, hole, &named) || !all.mul || named.mul)
		return left;
	/* n * all.mul / (all.div * named.n) in lowest terms. */
	if (!axis_times((Axis){.n = 1, .mul = all.mul, .div = all.div}, axis(1), &left) ||
	    (int64_t)left.div * named.n > INT32_MAX)
		return axis(extent);
	left.div *= (int32_t)named.n;
	if (!axis_times((Axis){.n = 1, .mul = left.mul, .div = left.div}, axis(1), &left))
		return axis(extent);
	if (left.div > 1) /* the batch written as a number: reshape([64, -1]) */
		for (int i = 0; i < rank; i++)
			if (i != hole && axes[i].n == batch)
				return axis(extent);
	left.n = extent;
	return left;
}

bool
builtin_reshape(Call *c, Value *result)
{
	Axis axes[MAX_RANK];
	int64_t named = 1;
	int rank, hole;
	Val x;

	if (!arg_tensor(c, "x", &x) || !arg_shape(c, "shape", axes, &rank, &hole))
		return false;
	Type t = val_type_of(c, x);
	int64_t all = type_elements(&t);
	for (int i = 0; i < rank; i++)
		named *= axes[i].n;
	if (hole >= 0 ? all % named != 0 : all != named) {
		call_fail(c, call_loc(c, "shape"), "input %s has %lld elements, the shape %s%lld", val_text(c, x),
		          (long long)all, hole >= 0 ? "a multiple of " : "", (long long)named);
		call_note_val(c, "input", x);
		return false;
	}
	if (hole >= 0)
		axes[hole] = hole_extent(c, &t, axes, rank, hole, all / named);
	return call_give(c, to_shape(c, x, rank, axes), result);
}

bool
builtin_flatten(Call *c, Value *result)
{
	Val x;
	int from;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "from", t.rank, &from))
		return false;
	Axis axes[MAX_RANK], rest;
	if (!product_of(t.axis + from, t.rank - from, -1, &rest)) {
		rest = axis(1);
		for (int i = from; i < t.rank; i++)
			rest.n *= t.axis[i].n;
	}
	memcpy(axes, t.axis, (size_t)from * sizeof *axes);
	axes[from] = rest;
	return call_give(c, to_shape(c, x, from + 1, axes), result);
}

bool
builtin_transpose(Call *c, Value *result)
{
	const Value *v = call_arg(c, "axes");
	int64_t perm[MAX_RANK];
	bool used[MAX_RANK] = {false};
	Val x;

	if (!arg_tensor(c, "x", &x))
		return false;
	int rank = val_type(call_graph(c), x)->rank;
	if (v->kind != V_LIST)
		return call_fail(c, call_loc(c, "axes"), "axes is %s, needs a list of %d axes", value_text(c, v), rank);
	if (v->n != rank) {
		call_fail(c, call_loc(c, "axes"), "axes has %d axes, the input %d", v->n, rank);
		call_note_val(c, "input", x);
		return false;
	}
	for (int i = 0; i < rank; i++) {
		if (v->at[i].kind != V_INT || v->at[i].mul || v->at[i].i < -rank || v->at[i].i >= rank)
			return call_fail(c, v->at[i].loc, "axes[%d] is %s, needs an axis of the input: %d..%d", i,
			                 value_text(c, &v->at[i]), -rank, rank - 1);
		perm[i] = v->at[i].i < 0 ? v->at[i].i + rank : v->at[i].i;
		if (used[perm[i]])
			return call_fail(c, v->at[i].loc, "axes names axis %lld twice", (long long)perm[i]);
		used[perm[i]] = true;
	}
	return call_give(c, build_transpose(c->b, x, perm), result);
}

bool
builtin_squeeze(Call *c, Value *result)
{
	Axis axes[MAX_RANK];
	int at, n = 0;
	Val x;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at))
		return false;
	if (t.axis[at].n != 1) {
		call_fail(c, c->loc, "input is %s, its axis %d has extent %lld, needs 1", val_text(c, x), at,
		          (long long)t.axis[at].n);
		call_note_val(c, "input", x);
		return false;
	}
	for (int i = 0; i < t.rank; i++)
		if (i != at)
			axes[n++] = t.axis[i];
	return call_give(c, to_shape(c, x, n, axes), result);
}

bool
builtin_unsqueeze(Call *c, Value *result)
{
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	int rank = val_type(call_graph(c), x)->rank;
	return arg_axis(c, "axis", rank + 1, &at) && call_give(c, add_axis(c, x, at), result);
}

bool
builtin_expand(Call *c, Value *result)
{
	const Value *v = call_arg(c, "shape");
	Axis axes[MAX_RANK];
	Val x;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (v->kind != V_LIST || v->n > MAX_RANK || v->n < t.rank)
		return call_fail(c, call_loc(c, "shape"), "shape is %s, needs a list of %d to %d extents",
		                 value_text(c, v), t.rank, MAX_RANK);
	for (int i = 0; i < v->n; i++) {
		int k = i - (v->n - t.rank);

		if (k >= 0 && v->at[i].kind == V_INT && v->at[i].i == -1)
			axes[i] = t.axis[k];
		else if (!value_axis(c, &v->at[i], &axes[i]))
			return false;
		if (k >= 0 && t.axis[k].n != 1 && t.axis[k].n != axes[i].n) {
			call_fail(c, v->at[i].loc,
			          "input is %s, its axis %d has extent %lld and cannot become %lld: only 1 expands",
			          val_text(c, x), k, (long long)t.axis[k].n, (long long)axes[i].n);
			call_note_val(c, "input", x);
			return false;
		}
	}
	const char *why = shape_too_large(v->n, axes);
	if (why)
		return call_fail(c, call_loc(c, "shape"), "shape has %s", why);
	return call_give(c, build_expand(c->b, x, v->n, axes), result);
}

/* ---------------------------------------------------------------- joining and cutting */

bool
builtin_concat(Call *c, Value *result)
{
	const Value *list = call_arg(c, "list");
	int at;

	if (list->kind != V_LIST || !list->n)
		return call_fail(c, call_loc(c, "list"), "list is %s, needs a list of at least 1 tensor",
		                 value_text(c, list));
	Val *in = arena_array(sema_arena(c->sema), Val, list->n);
	for (int i = 0; i < list->n; i++) {
		if (list->at[i].kind != V_TENSOR)
			return call_fail(c, list->at[i].loc, "list[%d] is %s, needs a tensor", i,
			                 value_text(c, &list->at[i]));
		in[i] = list->at[i].tensor;
	}
	Type first = val_type_of(c, in[0]);
	if (!arg_axis(c, "axis", first.rank, &at))
		return false;
	for (int i = 1; i < list->n; i++) {
		const char *name = arena_printf(sema_arena(c->sema), "list[%d]", i);
		Type t = val_type_of(c, in[i]);
		bool agree = t.rank == first.rank;

		if (!same_dtype(c, "list[0]", in[0], name, in[i]))
			return false;
		for (int k = 0; agree && k < t.rank; k++)
			agree = k == at || t.axis[k].n == first.axis[k].n;
		if (!agree) {
			call_fail(c, c->loc, "list[0] is %s, %s is %s; they may differ along axis %d only",
			          val_text(c, in[0]), name, val_text(c, in[i]), at);
			call_note_val(c, "list[0]", in[0]);
			call_note_val(c, name, in[i]);
			return false;
		}
	}
	return call_give(c, build_op(c->b, OP_concat, in, list->n, ATTRS(AI(axis, at)), NULL), result);
}

static Val
cut(Call *c, Val x, int at, int64_t start, int64_t end, int64_t step)
{
	return op_with(c, OP_slice, x, ATTRS(AI(axis, at), AI(start, start), AI(end, end), AI(step, step)));
}

bool
builtin_split(Call *c, Value *result)
{
	const Value *sizes = call_arg(c, "sizes");
	int64_t sum = 0;
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at))
		return false;
	if (sizes->kind != V_LIST || !sizes->n)
		return call_fail(c, call_loc(c, "sizes"), "sizes is %s, needs a list of extents", value_text(c, sizes));
	for (int i = 0; i < sizes->n; i++) {
		Axis a;

		if (!value_axis(c, &sizes->at[i], &a))
			return false;
		if (!add_i64(sum, a.n, &sum))
			return call_fail(c, call_loc(c, "sizes"), "sizes add up to more than fits");
	}
	if (sum != t.axis[at].n) {
		call_fail(c, call_loc(c, "sizes"), "sizes add up to %lld, axis %d of the input has extent %lld",
		          (long long)sum, at, (long long)t.axis[at].n);
		call_note_val(c, "input", x);
		return false;
	}
	Value *part = arena_array(sema_arena(c->sema), Value, sizes->n);
	sum = 0;
	for (int i = 0; i < sizes->n; i++) {
		Val v = sizes->n == 1 ? x : cut(c, x, at, sum, sum + sizes->at[i].i, 1);

		if (!call_give(c, v, &part[i]))
			return false;
		sum += sizes->at[i].i;
	}
	*result = sizes->n == 1 ? part[0] : value_tuple(c->sema, part, sizes->n, c->loc);
	return true;
}

/* start and end, negative from the end, end none = the extent. They may be numbers that follow N as the axis does. */
static bool
bound(Call *c, const char *name, int64_t extent, int64_t *out)
{
	const Value *v = call_arg(c, name);

	if (v->kind == V_NONE && !strcmp(name, "end")) {
		*out = extent;
		return true;
	}
	if (v->kind != V_INT)
		return call_fail(c, call_loc(c, name), "%s is %s, needs an integer", name, value_text(c, v));
	*out = v->i < 0 ? v->i + extent : v->i;
	if (*out < 0 || *out > extent)
		return call_fail(c, call_loc(c, name), "%s is %lld, the axis has extent %lld", name, (long long)v->i,
		                 (long long)extent);
	return true;
}

bool
builtin_slice(Call *c, Value *result)
{
	int64_t start, end, step;
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at) || !arg_int(c, "step", 1, INT32_MAX, &step)
	    || !bound(c, "start", t.axis[at].n, &start) || !bound(c, "end", t.axis[at].n, &end))
		return false;
	if (start >= end)
		return call_fail(c, call_loc(c, "end"), "start %lld is not below end %lld: nothing is left",
		                 (long long)start, (long long)end);
	return call_give(c, cut(c, x, at, start, end, step), result);
}

bool
builtin_pad(Call *c, Value *result)
{
	const Value *value = call_arg(c, "value");
	int64_t before, after;
	double v = 0;
	Val x;
	int at;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at) || !arg_int(c, "before", 0, MAX_ELEMENTS, &before) ||
	    !arg_int(c, "after", 0, MAX_ELEMENTS, &after))
		return false;
	if (value->kind == V_BOOL && t.dtype == DT_bool)
		v = (double)value->i;
	else if (!arg_num(c, "value", -INFINITY, INFINITY, &v))
		return false;
	if (value->kind == V_FLOAT && !dtype_is_float(t.dtype))
		return call_fail(c, call_loc(c, "value"), "value is the float %s, the input is %s",
		                 value_text(c, value), val_text(c, x));
	if (!before && !after)
		return call_give(c, x, result);
	AttrArg fill = {
	        .name = A_value, .kind = value->kind == V_FLOAT ? AK_NUM : AK_INT, .i = (int64_t)value->i, .f = v};
	return call_give(c, op_with(c, OP_pad, x, ATTRS(AI(axis, at), AI(before, before), AI(after, after), fill)),
	                 result);
}

bool
builtin_reverse(Call *c, Value *result)
{
	Val x;
	int at;

	return arg_tensor(c, "x", &x) && arg_axis(c, "axis", val_type(call_graph(c), x)->rank, &at)
	       && call_give(c, op_with(c, OP_reverse, x, ATTRS(AI(axis, at))), result);
}
