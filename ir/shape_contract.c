/* shape_contract.c: shape rules of contractions and windows: matmul, conv2d and its gradients, pooling; and their
 * flops.
 *
 * In: logical shapes (NCHW, OIHW).  Out: result types. Marks stay on the batch axes, on matmul's free axes, and on the
 * axis that both operands of matmul sum over if both follow the batch; an image's rows, columns or channels that follow
 * it make the graph full_only. */
#include "shape.h"

/* Element type of the result: the operands' own, or f32 where a sum of 16-bit products is wanted as it is. */
static const char *
sum_dtype(Graph *g, const Op *op, int *which, DType *dt)
{
	*dt = (DType)in_type(g, op, 0)->dtype;
	if (!attr_bool(op, A_wide))
		return NULL;
	if (*dt != DT_f16 && *dt != DT_bf16)
		return shape_fail(g, which, 0, "wide sums are of f16 or bf16 products, the operands are %s",
		                  dtype_info[*dt].name);
	*dt = DT_f32;
	return NULL;
}

/* ---------------------------------------------------------------- matmul */
const char *
shape_matmul(Graph *g, Op *op, int *which)
{
	const Type *a = in_type(g, op, 0), *b = in_type(g, op, 1);
	bool ta = attr_bool(op, A_ta), tb = attr_bool(op, A_tb);
	Axis m, ka, kb, n, k;
	const char *error;
	Type la, lb, t;
	DType dt;

	if ((error = shape_float(g, op, which, 0)) || (error = shape_one_dtype(g, op, which, 0, 1, 2)) ||
	    (error = sum_dtype(g, op, which, &dt)))
		return error;
	for (int i = 0; i < 2; i++)
		if (in_type(g, op, i)->rank < 2)
			return shape_fail(g, which, i, "operand %d is %s, needs at least 2 axes", i + 1,
			                  type_text(g, in_type(g, op, i)));
	m = a->axis[a->rank - (ta ? 1 : 2)];
	ka = a->axis[a->rank - (ta ? 2 : 1)];
	kb = b->axis[b->rank - (tb ? 1 : 2)];
	n = b->axis[b->rank - (tb ? 2 : 1)];
	if (!shape_unify(g, op, ka, kb, &k))
		return shape_fail(g, which, 1, "left %s has %lld columns, right %s has %lld rows", shape_text(g, a),
		                  (long long)ka.n, shape_text(g, b), (long long)kb.n);
	la = type_of((DType)a->dtype, a->rank - 2, a->axis);
	lb = type_of((DType)b->dtype, b->rank - 2, b->axis);
	if ((error = broadcast_axes(g, 2, (const Type *[]){&la, &lb}, &t)))
		return shape_fail(g, which, 1, "leading axes of %s and %s: %s", shape_text(g, a), shape_text(g, b),
		                  error);
	t = type_of(dt, t.rank, t.axis);
	t.axis[t.rank] = m;
	t.axis[t.rank + 1] = n;
	t = type_of(dt, t.rank + 2, t.axis);
	return shape_result(g, op, 0, &t);
}

double
flops_matmul(const Graph *g, const Op *op)
{
	const Type *a = val_type(g, op->in[0]), *r = val_type(g, op->out[0]);
	Axis k = a->axis[a->rank - (attr_bool(op, A_ta) ? 2 : 1)];

	return 2.0 * (double)type_elements(r) * (double)k.n;
}

/* ---------------------------------------------------------------- convolution */
static const char *
conv_window(Graph *g, const Op *op, int *which, Window *w)
{
	const char *error;

	if ((error = shape_pair(g, op, which, A_stride, 1, w->stride)) ||
	    (error = shape_pair(g, op, which, A_pad, 0, w->pad)) ||
	    (error = shape_pair(g, op, which, A_dilation, 1, w->dilation)))
		return error;
	return NULL;
}

static const char *
need_rank4(Graph *g, int *which, int k, const Type *t, const char *what, const char *axes)
{
	return t->rank == 4 ? NULL
	                    : shape_fail(g, which, k, "%s has %d axes %s, needs 4 %s", what, t->rank, shape_text(g, t),
	                                 axes);
}

/* x, w and y of one convolution must agree; kx, kw, ky: the operand to blame for each, -1 for a result. y NULL: put it
 * in out. */
static const char *
conv_agree(Graph *g, Op *op, int *which, const Type *x, const Type *w, const Type *y, Type *out)
{
	int kw = op->kind == OP_conv2d_dw ? -1 : 1;
	int64_t groups = attr_int(op, A_groups);
	const char *error;
	Window win;
	Axis batch;

	if ((error = need_rank4(g, which, 0, x, "input", "[N, C, H, W]")) ||
	    (error = need_rank4(g, which, kw, w, "weight", "[O, C, kh, kw]")) ||
	    (y && (error = need_rank4(g, which, 0, y, "gradient", "[N, O, H, W]"))) ||
	    (error = conv_window(g, op, which, &win)))
		return error;
	if (groups < 1)
		return shape_fail(g, which, -1, "groups is %lld, needs at least 1", (long long)groups);
	if (x->axis[1].n % groups)
		return shape_fail(g, which, 0, "input has %lld channels, which %lld groups do not divide",
		                  (long long)x->axis[1].n, (long long)groups);
	if (w->axis[0].n % groups)
		return shape_fail(g, which, kw, "weight has %lld output channels, which %lld groups do not divide",
		                  (long long)w->axis[0].n, (long long)groups);
	if (x->axis[1].n != w->axis[1].n * groups)
		return shape_fail(g, which, kw, "input has %lld channels, weight expects %lld", (long long)x->axis[1].n,
		                  (long long)(w->axis[1].n * groups));
	*out = type_of((DType)x->dtype, 4, (Axis[]){x->axis[0], w->axis[0], axis(1), axis(1)});
	for (int i = 0; i < 2; i++) {
		int64_t n;

		win.k[i] = w->axis[2 + i].n;
		n = window_extent(&win, i, x->axis[2 + i].n);
		if (n < 1)
			return shape_fail(g, which, 0, "input has %lld %s (%lld with padding), the kernel spans %lld",
			                  (long long)x->axis[2 + i].n, i ? "columns" : "rows",
			                  (long long)(x->axis[2 + i].n + 2 * win.pad[i]),
			                  (long long)((uint64_t)win.dilation[i] * (uint64_t)(win.k[i] - 1) + 1));
		out->axis[2 + i] = axis(n);
	}
	for (int i = 0; i < 4; i++)
		if ((i && x->axis[i].mul) || w->axis[i].mul || (i && y && y->axis[i].mul))
			shape_full_only(g, op, "axis %d follows the batch", i);
	out->axis[1].mul = 0;
	out->axis[1].div = 1;
	if (!y)
		return NULL;
	if (!type_same_shape(y, out))
		return shape_fail(g, which, op->kind == OP_conv2d_dw ? 1 : 0,
		                  "gradient is %s, input %s and weight %s make %s", shape_text(g, y), shape_text(g, x),
		                  shape_text(g, w), shape_text(g, out));
	shape_unify(g, op, x->axis[0], y->axis[0], &batch);
	return NULL;
}

const char *
shape_conv2d(Graph *g, Op *op, int *which)
{
	const char *error;
	DType dt;
	Type t;

	if ((error = need_rank4(g, which, 0, in_type(g, op, 0), "input", "[N, C, H, W]")) ||
	    (error = shape_float(g, op, which, 0)) || (error = shape_one_dtype(g, op, which, 0, 1, 2)) ||
	    (error = sum_dtype(g, op, which, &dt)) ||
	    (error = conv_agree(g, op, which, in_type(g, op, 0), in_type(g, op, 1), NULL, &t)))
		return error;
	t.dtype = (uint8_t)dt;
	return shape_result(g, op, 0, &t);
}

const char *
shape_conv2d_dx(Graph *g, Op *op, int *which)
{
	const Type *y = in_type(g, op, 0), *r = val_type(g, op->out[0]);
	const char *error;
	DType dt;
	Type t, x = *r;

	if ((error = shape_declared(g, op, which)) || (error = sum_dtype(g, op, which, &dt)))
		return error;
	x = type_of(dt, r->rank, r->axis);
	if ((error = shape_float(g, op, which, 0)) || (error = shape_one_dtype(g, op, which, 0, 1, 2)) ||
	    (error = conv_agree(g, op, which, r, in_type(g, op, 1), y, &t)))
		return error;
	return shape_result(g, op, 0, &x);
}

const char *
shape_conv2d_dw(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *r = val_type(g, op->out[0]);
	const char *error;
	DType dt;
	Type t, w;

	if ((error = shape_declared(g, op, which)) || (error = sum_dtype(g, op, which, &dt)))
		return error;
	w = type_of(dt, r->rank, r->axis);
	if ((error = shape_float(g, op, which, 0)) || (error = shape_one_dtype(g, op, which, 0, 1, 2)) ||
	    (error = conv_agree(g, op, which, x, r, in_type(g, op, 1), &t)))
		return error;
	return shape_result(g, op, 0, &w);
}

/* The same count for all three: every pair of an output element and a weight that reaches it, padding included. */
double
flops_conv2d(const Graph *g, const Op *op)
{
	const Type *y = val_type(g, op->kind == OP_conv2d ? op->out[0] : op->in[op->kind == OP_conv2d_dw ? 1 : 0]);
	const Type *w = val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);

	return 2.0 * (double)type_elements(y) * (double)(w->axis[1].n * w->axis[2].n * w->axis[3].n);
}

/* ---------------------------------------------------------------- pooling */
static const char *
pool_extents(Graph *g, Op *op, int *which, int k, const Type *x, Type *out)
{
	Window w = {.dilation = {1, 1}};
	const char *error;

	if ((error = need_rank4(g, which, k, x, "input", "[N, C, H, W]")) ||
	    (error = shape_pair(g, op, which, A_k, 1, w.k)) ||
	    (error = shape_pair(g, op, which, A_stride, 1, w.stride)) ||
	    (error = shape_pair(g, op, which, A_pad, 0, w.pad)))
		return error;
	*out = type_of((DType)x->dtype, 4, x->axis);
	for (int i = 0; i < 2; i++) {
		int64_t n = window_extent(&w, i, x->axis[2 + i].n);

		if (2 * w.pad[i] > w.k[i])
			return shape_fail(g, which, -1, "pad %lld is more than half of the window's %lld",
			                  (long long)w.pad[i], (long long)w.k[i]);
		if (n < 1)
			return shape_fail(g, which, k, "input has %lld %s (%lld with padding), the window has %lld",
			                  (long long)x->axis[2 + i].n, i ? "columns" : "rows",
			                  (long long)(x->axis[2 + i].n + 2 * w.pad[i]), (long long)w.k[i]);
		if (x->axis[2 + i].mul)
			shape_full_only(g, op, "axis %d follows the batch", 2 + i);
		out->axis[2 + i] = axis(n);
	}
	return NULL;
}

const char *
shape_pool2d(Graph *g, Op *op, int *which)
{
	const char *error;
	Type t;

	if ((error = pool_extents(g, op, which, 0, in_type(g, op, 0), &t)))
		return error;
	if (op->kind == OP_avg_pool2d && (error = shape_float(g, op, which, 0)))
		return error;
	if (in_type(g, op, 0)->dtype == DT_bool)
		return shape_fail(g, which, 0, "input is %s, needs a number type: use cast",
		                  type_text(g, in_type(g, op, 0)));
	return shape_result(g, op, 0, &t);
}

/* (x, g) */
const char *
shape_pool2d_dx2(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0), *d = in_type(g, op, 1);
	const char *error;
	Type t, r = type_of((DType)x->dtype, x->rank, x->axis);
	Axis batch;

	if ((error = pool_extents(g, op, which, 0, x, &t)) || (error = shape_one_dtype(g, op, which, 0, 1, 2)))
		return error;
	if (d->rank != 4 || !type_same_shape(d, &t))
		return shape_fail(g, which, 1, "gradient is %s, input %s makes %s", shape_text(g, d), shape_text(g, x),
		                  shape_text(g, &t));
	shape_unify(g, op, x->axis[0], d->axis[0], &batch);
	return shape_result(g, op, 0, &r);
}

/* (g): the result's shape is given, and must pool to g's. */
const char *
shape_avg_pool2d_dx(Graph *g, Op *op, int *which)
{
	const Type *d = in_type(g, op, 0), *r = val_type(g, op->out[0]);
	const char *error;
	Type t;
	Axis batch;

	if ((error = shape_declared(g, op, which)) || (error = pool_extents(g, op, which, -1, r, &t)) ||
	    (error = shape_float(g, op, which, 0)))
		return error;
	if (d->dtype != r->dtype || d->rank != 4 || !type_same_shape(d, &t))
		return shape_fail(g, which, 0, "gradient is %s, result %s pools to %s", type_text(g, d),
		                  type_text(g, r), shape_text(g, &t));
	shape_unify(g, op, r->axis[0], d->axis[0], &batch);
	return NULL;
}
