/* builtins_boxes.c: order of elements, boxes, regions and sizes of images: sort, top_k, nms, roi_align, resize.
 *
 * In: bound arguments.   Out: ops. sort and top_k are the places (op order) and a gather, through which the gradient
 * goes. resize is made of takes along rows, then along columns, whose ids and shares are computed in integers: exact
 * for any extents. */
#include "builtins.h"

/* ---------------------------------------------------------------- order */
static bool
order(Call *c, bool descending, bool has_k, Value *result)
{
	int64_t k = 0;
	Val x;
	int ax;

	if (!arg_tensor(c, "x", &x))
		return false;
	Type t = val_type_of(c, x);

	if (t.rank == 0 || t.dtype == DT_bool) {
		call_fail(c, c->loc, "x is %s, needs %s", val_text(c, x),
		          t.rank ? "a number type: use cast" : "an axis to go along");
		call_note_val(c, "x", x);
		return false;
	}
	if (!arg_axis(c, "axis", t.rank, &ax) || (has_k && !arg_int(c, "k", 1, INT32_MAX, &k)))
		return false;
	if (k > t.axis[ax].n) {
		call_fail(c, call_loc(c, "k"), "k is %lld, axis %d of x has extent %lld", (long long)k, ax,
		          (long long)t.axis[ax].n);
		call_note_val(c, "x", x);
		return false;
	}
	Val index = op_with(c, OP_order, x, ATTRS(AI(axis, ax), AI(count, k), AB(descending, descending)));
	Val v = op_with2(c, OP_gather, x, index, ATTRS(AI(axis, ax)));

	if (!v.id)
		return call_give(c, v, result);
	*result = value_tuple(c->sema, (Value[]){value_tensor(v, c->loc), value_tensor(index, c->loc)}, 2, c->loc);
	return true;
}

bool
builtin_sort(Call *c, Value *result)
{
	bool descending;

	return arg_bool(c, "descending", &descending) && order(c, descending, false, result);
}

bool
builtin_top_k(Call *c, Value *result)
{
	return order(c, true, true, result);
}

/* ---------------------------------------------------------------- boxes */
/* The last axis holds x1 y1 x2 y2. */
static bool
arg_boxes(Call *c, const char *name, int rank, const char *axes, Val *out)
{
	if (!arg_float_tensor(c, name, out))
		return false;
	Type t = val_type_of(c, *out);

	if ((rank ? t.rank == rank : t.rank >= 2) && t.axis[t.rank - 1].n == 4 && !t.axis[t.rank - 1].mul)
		return true;
	call_fail(c, call_loc(c, name), "%s is %s, needs %s", name, val_text(c, *out), axes);
	call_note_val(c, name, *out);
	return false;
}

/* An argument with a number for each box. */
static bool
for_each_box(Call *c, const char *name, Val v, Val boxes)
{
	Type t = val_type_of(c, v), b = val_type_of(c, boxes);
	bool same = t.rank == b.rank - 1;

	for (int i = 0; same && i < t.rank; i++)
		same = t.axis[i].n == b.axis[i].n;
	if (same)
		return true;
	call_fail(c, call_loc(c, name), "%s is %s, boxes are %s; needs a number for each box", name, val_text(c, v),
	          val_text(c, boxes));
	call_note_val(c, name, v);
	call_note_val(c, "boxes", boxes);
	return false;
}

bool
builtin_nms(Call *c, Value *result)
{
	bool group = call_arg(c, "group")->kind != V_NONE;
	int64_t count;
	double iou, least = -INFINITY;
	Val in[3];

	if (!arg_boxes(c, "boxes", 0, "[..., P, 4]", &in[0]) || !arg_float_tensor(c, "scores", &in[1]) ||
	    !for_each_box(c, "scores", in[1], in[0]))
		return false;
	Type t = val_type_of(c, in[1]);

	if (!arg_int(c, "count", 1, INT32_MAX, &count) || !arg_num(c, "iou", 0, 1, &iou))
		return false;
	if (count > t.axis[t.rank - 1].n)
		return call_fail(c, call_loc(c, "count"), "count is %lld, there are %lld boxes", (long long)count,
		                 (long long)t.axis[t.rank - 1].n);
	if (call_arg(c, "least")->kind != V_NONE && !arg_num(c, "least", -INFINITY, INFINITY, &least))
		return false;
	if (group && (!arg_int_tensor(c, "group", &in[2]) || !for_each_box(c, "group", in[2], in[0])))
		return false;
	Val index = build_op(c->b, OP_nms, in, 2 + group,
	                     ATTRS(AI(count, count), AF(iou, iou), AF(least, least), AB(has_group, group)), NULL);

	if (!index.id)
		return call_give(c, index, result);
	const Op *op = build_last(c->b);

	*result = value_tuple(c->sema, (Value[]){value_tensor(op->out[0], c->loc), value_tensor(op->out[1], c->loc)}, 2,
	                      c->loc);
	return true;
}

bool
builtin_roi_align(Call *c, Value *result)
{
	int64_t size[2], samples;
	double scale;
	bool aligned;
	Val x, boxes;

	if (!arg_float_tensor(c, "x", &x) || !arg_rank(c, "x", x, 4, "[N, C, H, W]") ||
	    !arg_boxes(c, "boxes", 3, "[N, R, 4]", &boxes))
		return false;
	if (val_type_of(c, x).axis[0].n != val_type_of(c, boxes).axis[0].n) {
		call_fail(c, call_loc(c, "boxes"), "x is %s, boxes are %s; both need the same number of images",
		          val_text(c, x), val_text(c, boxes));
		call_note_val(c, "x", x);
		call_note_val(c, "boxes", boxes);
		return false;
	}
	if (!arg_pair(c, "size", 1, size) || !arg_num(c, "scale", 0, INFINITY, &scale) ||
	    !arg_int(c, "samples", 1, 64, &samples) || !arg_bool(c, "aligned", &aligned))
		return false;
	return call_give(
	        c,
	        op_with2(c, OP_roi_align, x, boxes,
	                 ATTRS(AL(size, size, 2), AF(scale, scale), AI(samples, samples), AB(aligned, aligned))),
	        result);
}

/* ---------------------------------------------------------------- resize */
/* Row i reads floor(i n / rows), also where rows repeat: axes that were cut apart for that would lie in other places
 * than convolutions have them. */
static Val
nearest(Call *c, Val x, int ax, int64_t n, int64_t rows)
{
	Val at = counting(c, DT_i64, 1, 0, axis(rows));

	at = rows % n ? ewn(c, OP_idiv, ewn(c, OP_mul, at, (double)n), (double)rows)
	              : ewn(c, OP_idiv, at, (double)(rows / n));
	return op_with2(c, OP_take, x, at, ATTRS(AI(axis, ax)));
}

/* Row i lies at max(0, (i + 1/2) n / rows - 1/2) = place / (2 rows), between that row and the next. */
static Val
bilinear(Call *c, Val x, int ax, int64_t n, int64_t rows)
{
	DType t = (DType)val_type_of(c, x).dtype;
	Val place = ewn(c, OP_add, ewn(c, OP_mul, counting(c, DT_i64, 1, 0, axis(rows)), 2.0 * (double)n),
	                (double)(n - rows));

	place = ewn(c, OP_maximum, place, 0);
	Val low = ewn(c, OP_idiv, place, 2.0 * (double)rows),
	    high = ewn(c, OP_minimum, ewn(c, OP_add, low, 1), (double)(n - 1));
	Val far = ewn(c, OP_div, to_dtype(c, ewn(c, OP_imod, place, 2.0 * (double)rows), t == DT_f64 ? t : DT_f32),
	              2.0 * (double)rows);
	Val near = to_dtype(c, ew1(c, OP_neg, ewn(c, OP_sub, far, 1)), t);

	far = to_dtype(c, far, t);
	if (ax == 2) {
		far = add_axis(c, far, 1);
		near = add_axis(c, near, 1);
	}
	Val above = op_with2(c, OP_take, x, low, ATTRS(AI(axis, ax))),
	    below = op_with2(c, OP_take, x, high, ATTRS(AI(axis, ax)));

	above = ew2(c, OP_mul, above, near);
	below = ew2(c, OP_mul, below, far);
	return ew2(c, OP_add, above, below);
}

bool
builtin_resize(Call *c, Value *result)
{
	const Value *mode = call_arg(c, "mode");
	int64_t size[2], extent[2];
	bool between;
	Val x;

	if (!arg_tensor(c, "x", &x) || !arg_rank(c, "x", x, 4, "[N, C, H, W]") ||
	    !axis_fixed(c, "x", x, 2, &extent[0]) || !axis_fixed(c, "x", x, 3, &extent[1]) ||
	    !arg_pair(c, "size", 1, size))
		return false;
	if (mode->kind != V_STR || (strcmp(mode->s, "bilinear") != 0 && strcmp(mode->s, "nearest") != 0))
		return call_fail(c, call_loc(c, "mode"), "mode is %s, needs \"bilinear\" or \"nearest\"",
		                 mode->kind == V_STR ? mode->s : value_text(c, mode));
	between = mode->s[0] == 'b';
	if (between && !arg_float_tensor(c, "x", &x))
		return false;
	for (int i = 0; i < 2 && x.id; i++)
		if (size[i] != extent[i])
			x = (between ? bilinear : nearest)(c, x, 2 + i, extent[i], size[i]);
	return call_give(c, x, result);
}

/* ---------------------------------------------------------------- a metric of the whole set */
/* An argument of the shape of boxes without the 4, of integers or floats. */
static bool
set_arg(Call *c, const char *name, bool integer, Val boxes, Val *out)
{
	return (integer ? arg_int_tensor(c, name, out) : arg_float_tensor(c, name, out)) &&
	       for_each_box(c, name, *out, boxes);
}

/* The first axis is N. */
static bool
by_example(Call *c, const char *name, Val v)
{
	Axis a = val_type_of(c, v).axis[0];

	if (a.mul == 1 && a.div == 1)
		return true;
	call_fail(c, call_loc(c, name), "%s is %s, its first axis does not follow N", name, val_text(c, v));
	call_note_val(c, name, v);
	return false;
}

static bool
of_set(Call *c)
{
	return !c->training ||
	       call_fail(c, c->loc,
	                 "it is a metric of the whole test set and not there in training: write it below `if "
	                 "not training`");
}

bool
builtin_average_precision(Call *c, Value *result)
{
	static const char *const names[] = {"boxes", "scores", "classes", "truth", "labels", "iou"};
	const Value *iou = call_arg(c, "iou");
	Value *at = arena_array(sema_arena(c->sema), Value, 6);
	Val v[5];

	if (!of_set(c) || !arg_boxes(c, "boxes", 3, "[N, D, 4]", &v[0]) || !set_arg(c, "scores", false, v[0], &v[1]) ||
	    !set_arg(c, "classes", true, v[0], &v[2]) || !arg_boxes(c, "truth", 3, "[N, M, 4]", &v[3]) ||
	    !set_arg(c, "labels", true, v[3], &v[4]))
		return false;
	for (int k = 0; k < 5; k++) {
		if (!by_example(c, names[k], v[k]))
			return false;
		at[k] = value_tensor(v[k], c->loc);
	}
	if (iou->kind != V_LIST) {
		double x;

		if (!arg_num(c, "iou", 0, 1, &x))
			return false;
		Value *one = arena_array(sema_arena(c->sema), Value, 1);

		*one = (Value){.kind = V_FLOAT, .f = x};
		at[5] = (Value){.kind = V_LIST, .at = one, .n = 1};
	} else {
		for (int k = 0; k < iou->n; k++)
			if ((iou->at[k].kind != V_INT && iou->at[k].kind != V_FLOAT) ||
			    !(iou->at[k].f >= 0 && iou->at[k].f <= 1))
				return call_fail(c, call_loc(c, "iou"), "iou[%d] is %s, needs a number in 0..1", k,
				                 value_text(c, &iou->at[k]));
		if (!iou->n)
			return call_fail(c, call_loc(c, "iou"), "iou is an empty list, needs a number or several");
		at[5] = *iou;
	}
	*result = (Value){.kind = V_SPEC,
	                  .s = c->op->name,
	                  .at = at,
	                  .n = 6,
	                  .names = (const char **)(uintptr_t)names,
	                  .loc = c->loc,
	                  .i = 6};
	return true;
}

bool
builtin_auc(Call *c, Value *result)
{
	static const char *const names[] = {"scores", "truth"};
	Value *at = arena_array(sema_arena(c->sema), Value, 2);
	Val v[2];

	if (!of_set(c) || !arg_float_tensor(c, "scores", &v[0]) || !arg_tensor(c, "truth", &v[1]) ||
	    (!val_type_of(c, v[0]).rank && !arg_rank(c, "scores", v[0], 1, "[N, ...]")))
		return false;
	Type x = val_type_of(c, v[0]), y = val_type_of(c, v[1]);

	if (!type_same_shape(&x, &y)) {
		call_fail(c, call_loc(c, "truth"), "truth is %s, scores are %s; needs an answer for each score",
		          val_text(c, v[1]), val_text(c, v[0]));
		call_note_val(c, "scores", v[0]);
		return false;
	}
	for (int k = 0; k < 2; k++) {
		if (!by_example(c, names[k], v[k]))
			return false;
		at[k] = value_tensor(v[k], c->loc);
	}
	*result = (Value){.kind = V_SPEC,
	                  .s = c->op->name,
	                  .at = at,
	                  .n = 2,
	                  .names = (const char **)(uintptr_t)names,
	                  .loc = c->loc,
	                  .i = 2};
	return true;
}
