/* shape_boxes.c: shape rules of order, nms and roi_align.
 *
 * In: tensors of numbers; boxes [.., 4] as x1 y1 x2 y2.   Out: places (i32), a mask, regions cut out of a map. Marks: a
 * fixed count along an axis that follows the batch would not be there in a smaller one, so it makes the graph
 * full_only. */
#include "shape.h"

const char *
shape_order(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	int64_t count = attr_int(op, A_count);
	Type t = type_of(DT_i32, x->rank, x->axis);
	const char *error;
	int ax;

	if (x->dtype == DT_bool)
		return shape_fail(g, which, 0, "input is %s, needs a number type: use cast", type_text(g, x));
	if ((error = shape_axis(g, op, which, x, &ax)))
		return error;
	if (count < 0 || count > x->axis[ax].n)
		return shape_fail(g, which, 0, "k is %lld, axis %d has extent %lld", (long long)count, ax,
		                  (long long)x->axis[ax].n);
	if (x->axis[ax].n > INT32_MAX)
		return shape_fail(g, which, 0, "axis %d has extent %lld, places are i32", ax, (long long)x->axis[ax].n);
	if (count && x->axis[ax].mul)
		shape_full_only(g, op, "axis %d follows the batch, %lld of its elements are asked for", ax,
		                (long long)count);
	if (count)
		t.axis[ax] = axis(count);
	return shape_result(g, op, 0, &t);
}

/* Axes [.., P] of t, and what follows them, are those of boxes [.., P, 4]; *t's marks join those of `axes`. */
static const char *
same_rows(Graph *g, const Op *op, int *which, int k, const char *what, int rank, Axis *axes)
{
	const Type *t = in_type(g, op, k), *boxes = in_type(g, op, 0);
	bool same = t->rank == rank;

	for (int i = 0; same && i < rank; i++)
		same = shape_unify(g, op, axes[i], t->axis[i], &axes[i]);
	return same ? NULL
	            : shape_fail(g, which, k, "%s are %s, boxes %s: needs a number for each box", what, type_text(g, t),
	                         type_text(g, boxes));
}

const char *
shape_nms(Graph *g, Op *op, int *which)
{
	bool group = attr_bool(op, A_has_group);
	int64_t count = attr_int(op, A_count);
	Axis axes[MAX_RANK];
	const char *error;

	if ((error = shape_count(g, op, which, group ? 3 : 2)) || (error = shape_float(g, op, which, 0)) ||
	    (error = shape_float(g, op, which, 1)))
		return error;
	const Type *boxes = in_type(g, op, 0);
	int rank = boxes->rank - 1;

	if (rank < 1 || boxes->axis[rank].n != 4 || boxes->axis[rank].mul)
		return shape_fail(g, which, 0, "boxes are %s, needs [.., P, 4]", type_text(g, boxes));
	for (int i = 0; i < rank; i++)
		axes[i] = boxes->axis[i];
	if ((error = same_rows(g, op, which, 1, "scores", rank, axes)))
		return error;
	if (group && ((error = shape_integer(g, op, which, 2, "group")) ||
	              (error = same_rows(g, op, which, 2, "groups", rank, axes))))
		return error;
	if (count < 1 || count > axes[rank - 1].n)
		return shape_fail(g, which, 0, "count is %lld, there are %lld boxes", (long long)count,
		                  (long long)axes[rank - 1].n);
	if (axes[rank - 1].mul)
		shape_full_only(g, op, "axis %d follows the batch, %lld of its boxes are asked for", rank - 1,
		                (long long)count);
	axes[rank - 1] = axis(count);
	Type index = type_of(DT_i32, rank, axes), keep = type_of(DT_bool, rank, axes);

	error = shape_result(g, op, 0, &index);
	return error ? error : shape_result(g, op, 1, &keep);
}

/* x (or its gradient) and the boxes belong together: the type of the regions. */
static const char *
regions(Graph *g, const Op *op, int *which, const Type *x, Type *out)
{
	const Type *boxes = in_type(g, op, 1);
	const char *error;
	int64_t size[2];
	Axis n;

	if ((error = shape_float(g, op, which, 1)) || (error = shape_pair(g, op, which, A_size, 1, size)))
		return error;
	if (attr_int(op, A_samples) < 1)
		return shape_fail(g, which, -1, "samples is %lld, needs at least 1",
		                  (long long)attr_int(op, A_samples));
	if (x->rank != 4)
		return shape_fail(g, which, 0, "map is %s, needs [N, C, H, W]", type_text(g, x));
	if (boxes->rank != 3 || boxes->axis[2].n != 4 || boxes->axis[2].mul ||
	    !shape_unify(g, op, x->axis[0], boxes->axis[0], &n))
		return shape_fail(g, which, 1, "map is %s, boxes are %s, need [%lld, R, 4]", type_text(g, x),
		                  type_text(g, boxes), (long long)x->axis[0].n);
	Axis axes[5] = {n, boxes->axis[1], x->axis[1], axis(size[0]), axis(size[1])};

	*out = type_of((DType)x->dtype, 5, axes);
	return NULL;
}

const char *
shape_roi_align(Graph *g, Op *op, int *which)
{
	const char *error = shape_float(g, op, which, 0);
	Type t;

	if (error || (error = regions(g, op, which, in_type(g, op, 0), &t)))
		return error;
	return shape_result(g, op, 0, &t);
}

const char *
shape_roi_align_dx(Graph *g, Op *op, int *which)
{
	const char *error = shape_declared(g, op, which);
	Type t;

	if (error || (error = regions(g, op, which, val_type(g, op->out[0]), &t)))
		return error;
	if (!type_same_shape(&t, in_type(g, op, 0)) || t.dtype != in_type(g, op, 0)->dtype)
		return shape_fail(g, which, 0, "gradient is %s, result %s with these boxes has regions %s",
		                  type_text(g, in_type(g, op, 0)), type_text(g, val_type(g, op->out[0])),
		                  type_text(g, &t));
	return NULL;
}

/* Four FMAs a sample. */
double
flops_roi_align(const Graph *g, const Op *op)
{
	const Type *regions = val_type(g, op->kind == OP_roi_align ? op->out[0] : op->in[0]);
	int64_t samples = attr_int(op, A_samples);

	return 8.0 * (double)type_elements(regions) * (double)(samples * samples);
}
