/* builtins_index.c: operators that read by index: embedding, take, gather, one_hot.
 *
 * Ids may have any integer type. Those that address memory are checked at run time by a check op, which names the
 * operator's path and the number and stops the step before any store. */
#include "builtins.h"

bool
builtin_embedding(Call *c, Value *result)
{
	const Value *given = call_arg(c, "weight");
	int64_t vocab, width;
	Val ids, w;
	Init init;

	if (!arg_int_tensor(c, "ids", &ids) || !arg_int(c, "vocab", 1, INT32_MAX, &vocab) ||
	    !arg_int(c, "width", 1, INT32_MAX, &width) ||
	    !init_value(c, "init", (Init){INIT_NORMAL, 0, 1}, (Fans){(double)width, (double)vocab, NULL}, &init))
		return false;
	DType t = given->kind == V_TENSOR ? val_type(call_graph(c), given->tensor)->dtype : DT_f32;
	if (!own_param(c, "weight", given, t, 2, (int64_t[]){vocab, width}, "[vocab, width]", init, &w))
		return false;
	build_check(c, ids, axis(vocab), "id", false, 0);
	return call_give(c, op_with2(c, OP_take, w, ids, ATTRS(AI(axis, 0))), result);
}

bool
builtin_take(Call *c, Value *result)
{
	Val x, ids;
	int at;

	if (!arg_tensor(c, "x", &x) || !arg_int_tensor(c, "ids", &ids))
		return false;
	Type t = val_type_of(c, x);
	if (!arg_axis(c, "axis", t.rank, &at))
		return false;
	build_check(c, ids, t.axis[at], "id", false, 0);
	return call_give(c, op_with2(c, OP_take, x, ids, ATTRS(AI(axis, at))), result);
}

bool
builtin_gather(Call *c, Value *result)
{
	Val x, index;
	int at;

	if (!arg_tensor(c, "x", &x) || !arg_int_tensor(c, "index", &index))
		return false;
	Type t = val_type_of(c, x);
	if (t.rank != val_type(call_graph(c), index)->rank) {
		call_fail(c, c->loc, "input is %s, index is %s; both need the same number of axes", val_text(c, x),
		          val_text(c, index));
		call_note_val(c, "input", x);
		call_note_val(c, "index", index);
		return false;
	}
	if (!arg_axis(c, "axis", t.rank, &at))
		return false;
	build_check(c, index, t.axis[at], "index", false, 0);
	return call_give(c, op_with2(c, OP_gather, x, index, ATTRS(AI(axis, at))), result);
}

bool
builtin_one_hot(Call *c, Value *result)
{
	int64_t depth;
	Val ids;

	if (!arg_int_tensor(c, "ids", &ids) || !arg_int(c, "depth", 1, INT32_MAX, &depth))
		return false;
	if (dtype_info[val_type(call_graph(c), ids)->dtype].bytes < 4) /* classes may count beyond it */
		ids = to_dtype(c, ids, DT_i32);
	Type t = val_type_of(c, ids);
	Val numbers = counting(c, t.dtype, 1, 0, axis(depth)), hit = ew2(c, OP_eq, add_axis(c, ids, t.rank), numbers);
	return call_give(c, to_dtype(c, hit, DT_f32), result);
}
