/* shape_move.c: shape rules of views and moves: reshape, transpose, expand, slice, concat, pad, gather, take, crop,
 * cumsum.
 *
 * Marks: a view that cuts or joins along an axis that follows the batch would need offsets that follow it too, so
 * slice, concat and pad along such an axis make the graph full_only. A reshape keeps any marks whose count of elements
 * follows the batch as the input's does: row-major order then means the same for every batch. */
#include "shape.h"

/* How the number of elements follows the batch: n to the power of the number of marked axes. */
static int
marked_axes(const Type *t)
{
	int n = 0;

	for (int i = 0; i < t->rank; i++)
		n += t->axis[i].mul != 0;
	return n;
}

const char *
shape_reshape(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *r = val_type(g, op->out[0]);
	Type t = type_of((DType)x->dtype, r->rank, r->axis);
	const char *error = shape_declared(g, op, which);

	if (error)
		return error;
	if (type_elements(x) != type_elements(r))
		return shape_fail(g, which, 0, "input %s has %lld elements, shape %s has %lld", shape_text(g, x),
		                  (long long)type_elements(x), shape_text(g, r), (long long)type_elements(r));
	/* As many marks on each side and equal totals: both totals are the same multiple of n to that power. */
	if (marked_axes(x) != marked_axes(r))
		shape_full_only(g, op, "%s becomes %s, which follows the batch in another way", shape_text(g, x),
		                shape_text(g, r));
	return shape_result(g, op, 0, &t);
}

const char *
shape_transpose(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	Axis axes[MAX_RANK];
	bool seen[MAX_RANK] = {false};
	Type t;
	int n;
	const int64_t *perm = attr_ints(op, A_perm, &n);

	if (n != x->rank)
		return shape_fail(g, which, 0, "input has %d axes %s, the order names %d", x->rank, shape_text(g, x),
		                  n);
	for (int i = 0; i < n; i++) {
		if (perm[i] < 0 || perm[i] >= n)
			return shape_fail(g, which, 0, "axis %lld is out of range for %d axes", (long long)perm[i], n);
		if (seen[perm[i]])
			return shape_fail(g, which, -1, "the order names axis %lld twice", (long long)perm[i]);
		seen[perm[i]] = true;
		axes[i] = x->axis[perm[i]];
	}
	t = type_of((DType)x->dtype, n, axes);
	return shape_result(g, op, 0, &t);
}

const char *
shape_expand(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *r = val_type(g, op->out[0]);
	Type t = type_of((DType)x->dtype, r->rank, r->axis);
	int lead = r->rank - x->rank;
	const char *error = shape_declared(g, op, which);

	if (error)
		return error;
	if (lead < 0)
		return shape_fail(g, which, 0, "input %s has more axes than shape %s", shape_text(g, x),
		                  shape_text(g, r));
	for (int i = 0; i < x->rank; i++) {
		Axis a = x->axis[i], b = r->axis[lead + i], joined;

		if (a.n == 1 && !a.mul)
			continue;
		if (a.n != b.n && a.n != 1)
			return shape_fail(
			        g, which, 0,
			        "axis %d of the input has extent %lld, the shape wants %lld (only 1 broadcasts)", i,
			        (long long)a.n, (long long)b.n);
		if (a.n == b.n)
			shape_unify(g, op, a, b, &joined);
	}
	return shape_result(g, op, 0, &t);
}

const char *
shape_slice(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	int64_t start = attr_int(op, A_start), end = attr_int(op, A_end), step = attr_int(op, A_step), n;
	const char *error;
	Type t;
	int ax;

	if ((error = shape_axis(g, op, which, x, &ax)))
		return error;
	n = x->axis[ax].n;
	if (step < 1)
		return shape_fail(g, which, -1, "step is %lld, needs at least 1", (long long)step);
	if (start < 0 || end > n || start >= end)
		return shape_fail(g, which, 0, "%lld..%lld is no range of axis %d, whose extent is %lld",
		                  (long long)start, (long long)end, ax, (long long)n);
	t = type_of((DType)x->dtype, x->rank, x->axis);
	if (start != 0 || end != n || step != 1) {
		if (x->axis[ax].mul)
			shape_full_only(g, op, "axis %d follows the batch and is cut at %lld..%lld", ax,
			                (long long)start, (long long)end);
		t.axis[ax] = axis((end - start - 1) / step + 1);
	}
	return shape_result(g, op, 0, &t);
}

const char *
shape_concat(Graph *g, Op *op, int *which)
{
	const Type *x;
	const char *error;
	Type t;
	int ax;

	if (op->nin < 1)
		return shape_fail(g, which, -1, "needs at least one tensor");
	x = in_type(g, op, 0);
	if ((error = shape_axis(g, op, which, x, &ax)) || (error = shape_one_dtype(g, op, which, 0, 1, op->nin)))
		return error;
	t = type_of((DType)x->dtype, x->rank, x->axis);
	if (op->nin > 1 && t.axis[ax].mul)
		shape_full_only(g, op, "axis %d follows the batch and is joined with another", ax);
	for (int k = 1; k < op->nin; k++) {
		const Type *y = in_type(g, op, k);

		if (y->rank != x->rank)
			return shape_fail(g, which, k, "tensor 1 has %d axes %s, tensor %d has %d %s", x->rank,
			                  shape_text(g, x), k + 1, y->rank, shape_text(g, y));
		for (int i = 0; i < x->rank; i++) {
			if (i == ax) {
				if (y->axis[i].mul)
					shape_full_only(g, op, "axis %d follows the batch and is joined with another",
					                ax);
				t.axis[i] = axis(t.axis[i].n + y->axis[i].n);
			} else if (!shape_unify(g, op, t.axis[i], y->axis[i], &t.axis[i])) {
				return shape_fail(g, which, k,
				                  "axis %d has extent %lld in tensor 1 and %lld in tensor %d", i,
				                  (long long)x->axis[i].n, (long long)y->axis[i].n, k + 1);
			}
		}
	}
	return shape_result(g, op, 0, &t);
}

const char *
shape_pad(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	int64_t before = attr_int(op, A_before), after = attr_int(op, A_after), step = attr_int(op, A_step), n;
	const char *error;
	Type t;
	int ax;

	if ((error = shape_axis(g, op, which, x, &ax)))
		return error;
	if (step < 1)
		return shape_fail(g, which, -1, "step is %lld, needs at least 1", (long long)step);
	t = type_of((DType)x->dtype, x->rank, x->axis);
	if (before != 0 || after != 0 || step != 1) {
		if (!mul_i64(x->axis[ax].n - 1, step, &n) || !add_i64(n, 1, &n) || !add_i64(n, before, &n) ||
		    !add_i64(n, after, &n))
			return shape_fail(g, which, -1, "before %lld and after %lld are too large", (long long)before,
			                  (long long)after);
		if (n < 1)
			return shape_fail(g, which, 0,
			                  "axis %d has extent %lld, nothing is left after %lld and %lld are cut", ax,
			                  (long long)x->axis[ax].n, (long long)-before, (long long)-after);
		if (x->axis[ax].mul)
			shape_full_only(g, op, "axis %d follows the batch and is padded", ax);
		t.axis[ax] = axis(n);
	}
	return shape_result(g, op, 0, &t);
}

/* Index may be smaller than x beside the axis (torch.gather), so an index that follows the batch over an x that does
 * not is good for any batch; the other way round an incomplete batch would read what is not there. */
const char *
shape_gather(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *index = in_type(g, op, 1);
	const char *error;
	Type t;
	int ax;

	if ((error = shape_integer(g, op, which, 1, "index")) || (error = shape_axis(g, op, which, x, &ax)))
		return error;
	if (x->rank != index->rank)
		return shape_fail(g, which, 1, "input has %d axes %s, index has %d %s", x->rank, shape_text(g, x),
		                  index->rank, shape_text(g, index));
	for (int i = 0; i < x->rank; i++) {
		Axis a = x->axis[i], b = index->axis[i];

		if (i == ax)
			continue;
		if (b.n > a.n)
			return shape_fail(g, which, 1, "axis %d of index has extent %lld, the input's has %lld", i,
			                  (long long)b.n, (long long)a.n);
		if (a.mul && !axis_same(a, b))
			shape_full_only(g, op,
			                "axis %d of the input follows the batch, the index's does not in the same way",
			                i);
	}
	t = type_of((DType)x->dtype, index->rank, index->axis);
	return shape_result(g, op, 0, &t);
}

const char *
shape_take(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *ids = in_type(g, op, 1);
	Axis axes[2 * MAX_RANK];
	const char *error;
	Type t;
	int ax, n = 0;

	if ((error = shape_integer(g, op, which, 1, "ids")) || (error = shape_axis(g, op, which, x, &ax)))
		return error;
	for (int i = 0; i < ax; i++)
		axes[n++] = x->axis[i];
	for (int i = 0; i < ids->rank; i++)
		axes[n++] = ids->axis[i];
	for (int i = ax + 1; i < x->rank; i++)
		axes[n++] = x->axis[i];
	if (n > MAX_RANK)
		return shape_fail(g, which, 1, "result has %d axes (input %s, ids %s), the most is %d", n,
		                  shape_text(g, x), shape_text(g, ids), MAX_RANK);
	t = type_of((DType)x->dtype, n, axes);
	return shape_result(g, op, 0, &t);
}

const char *
shape_crop(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	int64_t size[2];
	const char *error;
	Type t;

	if ((error = shape_rank(g, op, which, 0, 4, "[N, C, H, W]")) ||
	    (error = shape_pair(g, op, which, A_size, 1, size)))
		return error;
	t = type_of((DType)x->dtype, 4, x->axis);
	for (int k = 1; k < 3; k++) {
		const Type *r = in_type(g, op, k);

		if (r->dtype != DT_i64 || r->rank != 1 || !shape_unify(g, op, t.axis[0], r->axis[0], &t.axis[0]))
			return shape_fail(g, which, k, "%s offsets are %s, need i64[%lld]", k == 1 ? "row" : "column",
			                  type_text(g, r), (long long)x->axis[0].n);
	}
	for (int i = 0; i < 2; i++) {
		if (x->axis[2 + i].mul)
			shape_full_only(g, op, "axis %d follows the batch and is cut", 2 + i);
		t.axis[2 + i] = axis(size[i]);
	}
	return shape_result(g, op, 0, &t);
}

const char *
shape_cumsum(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	Type t = type_of((DType)x->dtype, x->rank, x->axis);
	const char *error;
	int ax;

	if (x->dtype == DT_bool)
		return shape_fail(g, which, 0, "input is %s, needs a number type: use cast", type_text(g, x));
	if ((error = shape_axis(g, op, which, x, &ax)))
		return error;
	return shape_result(g, op, 0, &t);
}
