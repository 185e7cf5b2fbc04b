/* builtins_random.c: dropout, random_crop, random_flip, random.
 *
 * Each draws from the stream that its call's path names (language.md, "Randomness"); the random op is a pure function
 * of seed and step, so backward draws the same numbers again. In evaluation the first three are identity, centre crop
 * and identity. */
#include "builtins.h"

bool
builtin_dropout(Call *c, Value *result)
{
	double p;
	Val x;

	if (!arg_float_tensor(c, "x", &x) || !arg_num(c, "p", 0, 1, &p))
		return false;
	if (!c->training || p == 0)
		return call_give(c, x, result);
	if (p == 1)
		return call_give(c, ewn(c, OP_mul, x, 0), result);
	Type t = val_type_of(c, x);
	Val keep = keep_mask(c, random_uniform(c, t.rank, t.axis), p);
	Val scaled = ewn(c, OP_mul, x, 1 / (1 - p)), zero = num(c, t.dtype, 0);
	return call_give(c, ew3(c, OP_where, keep, scaled, zero), result);
}

/* The centre in evaluation; a crop larger than the image keeps a border of zeros. */
static Val
centre(Call *c, Val x, int at, int64_t has, int64_t size)
{
	int64_t start = has >= size ? (has - size) / 2 : -((size - has + 1) / 2); /* floor */

	if (has == size)
		return x;
	if (has > size)
		return op_with(c, OP_slice, x, ATTRS(AI(axis, at), AI(start, start), AI(end, start + size)));
	return op_with(c, OP_pad, x, ATTRS(AI(axis, at), AI(before, -start), AI(after, size - has + start)));
}

/* One of the two starts of every example, number 2n for rows and 2n + 1 for columns, in coordinates of the unpadded
 * image. */
static Val
starts(Call *c, Val numbers, int which, Axis batch, int64_t places, int64_t pad)
{
	Val one = op_with(c, OP_slice, numbers, ATTRS(AI(axis, 1), AI(start, which), AI(end, which + 1)));
	Val start = ewn(c, OP_imod, one, (double)places);

	return to_shape(c, pad ? ewn(c, OP_sub, start, (double)pad) : start, 1, &batch);
}

bool
builtin_random_crop(Call *c, Value *result)
{
	static const char *const sides[] = {"rows", "columns"};
	int64_t size[2], pad, has[2];
	Val x;

	if (!arg_tensor(c, "x", &x) || !arg_rank(c, "x", x, 4, "[N, C, H, W]") || !arg_pair(c, "size", 1, size) ||
	    !arg_int(c, "pad", 0, INT32_MAX, &pad) || !axis_fixed(c, "input", x, 2, &has[0]) ||
	    !axis_fixed(c, "input", x, 3, &has[1]))
		return false;
	Type t = val_type_of(c, x);
	for (int i = 0; i < 2; i++)
		if (size[i] > has[i] + 2 * pad)
			return call_fail(c, call_loc(c, "size"), "size is %lld %s, the input with its padding has %lld",
			                 (long long)size[i], sides[i], (long long)(has[i] + 2 * pad));
	if (!c->training) {
		Val rows = centre(c, x, 2, has[0], size[0]);

		return call_give(c, rows.id ? centre(c, rows, 3, has[1], size[1]) : NOVAL, result);
	}
	Type tn = type_of(DT_i64, 2, (Axis[]){t.axis[0], axis(2)});
	Val seed = graph_need_input(call_graph(c), IN_SEED), step = graph_need_input(call_graph(c), IN_STEP);
	Val numbers = build_op(c->b, OP_random, VALS(seed, step), ATTRS(AS(stream, c->path)), &tn);
	Val row = starts(c, numbers, 0, t.axis[0], has[0] + 2 * pad - size[0] + 1, pad);
	Val column = starts(c, numbers, 1, t.axis[0], has[1] + 2 * pad - size[1] + 1, pad);
	return call_give(c,
	                 row.id && column.id
	                         ? build_op(c->b, OP_crop, VALS(x, row, column), ATTRS(AL(size, size, 2)), NULL)
	                         : NOVAL,
	                 result);
}

bool
builtin_random_flip(Call *c, Value *result)
{
	Val x;

	if (!arg_tensor(c, "x", &x) || !arg_rank(c, "x", x, 4, "[N, C, H, W]"))
		return false;
	if (!c->training)
		return call_give(c, x, result);
	Type t = val_type_of(c, x);
	Val flip = ewn(c, OP_lt, random_uniform(c, 1, t.axis), 0.5);
	flip = to_shape(c, flip, 4, (Axis[]){t.axis[0], axis(1), axis(1), axis(1)});
	return call_give(c, ew3(c, OP_where, flip, op_with(c, OP_reverse, x, ATTRS(AI(axis, 3))), x), result);
}

/* Integers are computed in f64, where rounding cannot reach `high`. */
bool
builtin_random(Call *c, Value *result)
{
	Axis axes[MAX_RANK];
	double low, high;
	DType t;
	int rank;

	if (!arg_shape(c, "shape", axes, &rank, NULL) || !arg_dtype(c, "dtype", &t)
	    || !arg_num(c, "low", -0x1p53, 0x1p53, &low) || !arg_num(c, "high", -0x1p53, 0x1p53, &high))
		return false;
	if (!(low < high))
		return call_fail(c, call_loc(c, "high"), "high is %g, needs to be above low %g", high, low);
	if (t == DT_bool)
		return call_fail(c, call_loc(c, "dtype"),
		                 "dtype is bool: compare with a number, as in random(shape) < 0.5");
	if (dtype_is_int(t) && t != DT_i64
	    && (low < (double)dtype_lowest(t) || high > (double)dtype_highest(t) + 1))
		return call_fail(c, call_loc(c, "low"), "%g..%g does not fit %s", low, high, dtype_info[t].name);
	DType in = dtype_is_int(t) || t == DT_f64 ? DT_f64 : DT_f32;
	Val u = to_dtype(c, random_uniform(c, rank, axes), in);
	if (high - low != 1)
		u = ewn(c, OP_mul, u, high - low);
	if (low != 0)
		u = ewn(c, OP_add, u, low);
	if (dtype_is_int(t))
		u = ew1(c, OP_floor, u);
	return call_give(c, to_dtype(c, u, t), result);
}
