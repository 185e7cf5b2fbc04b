/* builtins_nn.c: convolutions, dense, matmul and pooling.
 *
 * Each becomes one contraction or window op of the IR, a bias being an addition after it that fusion folds into the
 * kernel. Ranks, channels, groups, windows and given weights are checked here, where the message can speak of the
 * model's text. */
#include "builtins.h"

/* x as [N, C, H, W] with floating elements; only N may follow the batch. */
static bool
image(Call *c, Val *x, int64_t *channels, int64_t size[2])
{
	return arg_float_tensor(c, "x", x) && arg_rank(c, "x", *x, 4, "[N, C, H, W]") &&
	       axis_fixed(c, "input", *x, 1, channels) && axis_fixed(c, "input", *x, 2, &size[0]) &&
	       axis_fixed(c, "input", *x, 3, &size[1]);
}

static Val
add_bias(Call *c, Val y, Val bias, int64_t n, int trailing)
{
	Axis axes[3] = {axis(n), axis(1), axis(1)};

	return ew2(c, OP_add, y, trailing ? to_shape(c, bias, 1 + trailing, axes) : bias);
}

/* conv2d(16, 32, 3) of 16 channels: PyTorch's in, out, k, where the input is not counted here. Who pads for a window of
 * that size, or lists its sides, means it. */
static bool
counts_input(Call *c, int64_t in, int64_t out, int64_t k, int64_t stride, int64_t pad)
{
	return out == in && call_given(c, "stride") && k >= 8 && k > 2 * stride && pad < k / 2 &&
	       call_arg(c, "k")->kind != V_LIST;
}

static void
warn_counts_input(Call *c, int64_t in, int64_t out, int64_t k, int64_t stride, int64_t pad)
{
	if (counts_input(c, in, out, k, stride, pad))
		sema_warning(c->sema, call_loc(c, "k"),
		             "%s: channels is %lld, as the input has, and k is %lld: if these are the input's channels "
		             "and the result's, write %s(%lld, %lld)",
		             c->op->name, (long long)out, (long long)k, c->op->name, (long long)k, (long long)stride);
}

/* A window that reaches over the padded input has no position at all. */
static bool
window_fits(Call *c, const int64_t size[2], const int64_t k[2], const int64_t pad[2], const int64_t dilation[2])
{
	static const char *const sides[] = {"rows", "columns"};

	for (int i = 0; i < 2; i++) {
		int64_t reach = dilation[i] * (k[i] - 1) + 1, padded = size[i] + 2 * pad[i];

		if (reach > padded)
			return call_fail(c, c->loc, "the window spans %lld %s, the input with its padding has %lld",
			                 (long long)reach, sides[i], (long long)padded);
	}
	return true;
}

bool
builtin_conv2d(Call *c, Value *result)
{
	int64_t in, out, groups, size[2], k[2], stride[2], pad[2], dilation[2];
	Val x, w, bias;
	bool has_bias;
	Init init;

	if (!image(c, &x, &in, size) || !arg_int(c, "channels", 1, INT32_MAX, &out) || !arg_pair(c, "k", 1, k)
	    || !arg_pair(c, "stride", 1, stride) || !arg_pair(c, "pad", 0, pad) || !arg_pair(c, "dilation", 1, dilation)
	    || !arg_int(c, "groups", 1, INT32_MAX, &groups))
		return false;
	if (in % groups || out % groups)
		return call_fail(c, call_loc(c, "groups"),
		                 "groups is %lld, must divide both the input's %lld channels and the output's %lld",
		                 (long long)groups, (long long)in, (long long)out);
	warn_counts_input(c, in, out, k[0], stride[0], pad[0]);
	if (!window_fits(c, size, k, pad, dilation))
		return false;
	DType t = val_type(call_graph(c), x)->dtype;
	int64_t dims[] = {out, in / groups, k[0], k[1]};
	double area = (double)k[0] * (double)k[1], fan_in = (double)(in / groups) * area, fan_out = (double)out * area;
	if (!init_value(c, "init", (Init){INIT_NORMAL, 0, sqrt(2 / fan_out)}, (Fans){fan_in, fan_out, NULL}, &init) ||
	    !own_param(c, "weight", call_arg(c, "weight"), t, 4, dims, "[channels, C / groups, rows, columns]", init,
	               &w) ||
	    !own_bias(c, t, out, INIT_ZERO, &has_bias, &bias))
		return false;
	Val y = op_with2(c, OP_conv2d, x, w,
	                 ATTRS(AL(stride, stride, 2), AL(pad, pad, 2), AL(dilation, dilation, 2), AI(groups, groups)));
	return call_give(c, has_bias ? add_bias(c, y, bias, out, 2) : y, result);
}

/* The transposed convolution is conv2d's gradient in its input: weight [C, channels, kh, kw] is that of a conv2d from
 * `channels` to C, and the result's shape is stated because several sizes lead to the same x. */
bool
builtin_conv_transpose2d(Call *c, Value *result)
{
	int64_t in, out, size[2], k[2], stride[2], pad[2], extra[2];
	Val x, w, bias;
	bool has_bias;
	Init init;

	if (!image(c, &x, &in, size) || !arg_int(c, "channels", 1, INT32_MAX, &out) || !arg_pair(c, "k", 1, k)
	    || !arg_pair(c, "stride", 1, stride) || !arg_pair(c, "pad", 0, pad) || !arg_pair(c, "output_pad", 0, extra))
		return false;
	warn_counts_input(c, in, out, k[0], stride[0], pad[0]);
	Type tx = val_type_of(c, x);
	Axis axes[4] = {tx.axis[0], axis(out)};
	for (int i = 0; i < 2; i++) {
		int64_t n = (size[i] - 1) * stride[i] - 2 * pad[i] + k[i] + extra[i];

		if (extra[i] >= stride[i])
			return call_fail(c, call_loc(c, "output_pad"),
			                 "output_pad is %lld, needs less than the stride %lld", (long long)extra[i],
			                 (long long)stride[i]);
		if (n < 1)
			return call_fail(c, call_loc(c, "pad"),
			                 "the result would have %lld %s: pad %lld cuts all of it", (long long)n,
			                 i ? "columns" : "rows", (long long)pad[i]);
		axes[2 + i] = axis(n);
	}
	const char *why = shape_too_large(4, axes);
	if (why)
		return call_fail(c, c->loc, "the result would have %s", why);
	int64_t dims[] = {in, out, k[0], k[1]}, one[] = {1, 1};
	double area = (double)k[0] * (double)k[1], fan_in = (double)in * area, fan_out = (double)out * area;
	if (!init_value(c, "init", (Init){INIT_NORMAL, 0, sqrt(2 / fan_out)}, (Fans){fan_in, fan_out, NULL}, &init) ||
	    !own_param(c, "weight", call_arg(c, "weight"), tx.dtype, 4, dims, "[C, channels, rows, columns]", init,
	               &w) ||
	    !own_bias(c, tx.dtype, out, INIT_ZERO, &has_bias, &bias))
		return false;
	Type ty = type_of(tx.dtype, 4, axes);
	Val y = build_op(c->b, OP_conv2d_dx, VALS(x, w),
	                 ATTRS(AL(stride, stride, 2), AL(pad, pad, 2), AL(dilation, one, 2), AI(groups, 1)), &ty);
	return call_give(c, has_bias ? add_bias(c, y, bias, out, 2) : y, result);
}

/* ---------------------------------------------------------------- one spatial axis
 * conv1d is conv2d of images of one row: weights keep PyTorch's shape, without the row. */
typedef struct Window1 { int64_t in, n, k, stride, pad, dilation, groups, out; } Window1;

static bool
signal(Call *c, Val *x, Window1 *w)
{
	*w = (Window1){.dilation = 1, .groups = 1};
	return arg_float_tensor(c, "x", x) && arg_rank(c, "x", *x, 3, "[N, C, T]") &&
	       axis_fixed(c, "input", *x, 1, &w->in) && axis_fixed(c, "input", *x, 2, &w->n) &&
	       arg_int(c, "channels", 1, INT32_MAX, &w->out) && arg_int(c, "k", 1, INT32_MAX, &w->k) &&
	       arg_int(c, "stride", 1, INT32_MAX, &w->stride) && arg_int(c, "pad", 0, INT32_MAX, &w->pad) &&
	       (warn_counts_input(c, w->in, w->out, w->k, w->stride, w->pad), true);
}

/* The weight and x as of one row; the bias. */
static bool
one_row(Call *c, const Window1 *w, int64_t first, int64_t second, const char *meaning, double fan_in, double fan_out,
        Val *x, Val *weight, bool *has_bias, Val *bias)
{
	Type t = val_type_of(c, *x);
	int64_t dims[] = {first, second, w->k};
	Axis axes[4] = {axis(first), axis(second), axis(1), axis(w->k)};
	Init init;

	if (!init_value(c, "init", (Init){INIT_NORMAL, 0, sqrt(2 / fan_out)}, (Fans){fan_in, fan_out, NULL}, &init) ||
	    !own_param(c, "weight", call_arg(c, "weight"), t.dtype, 3, dims, meaning, init, weight) ||
	    !own_bias(c, t.dtype, w->out, INIT_ZERO, has_bias, bias))
		return false;
	*weight = to_shape(c, *weight, 4, axes);
	*x = add_axis(c, *x, 2);
	return true;
}

/* y without its row, and with the bias. */
static bool
from_row(Call *c, Val y, const Window1 *w, bool has_bias, Val bias, Value *result)
{
	if (y.id) {
		Type t = val_type_of(c, y);
		Axis axes[3] = {t.axis[0], t.axis[1], t.axis[3]};

		y = to_shape(c, y, 3, axes);
	}
	return call_give(c, has_bias ? add_bias(c, y, bias, w->out, 1) : y, result);
}

bool
builtin_conv1d(Call *c, Value *result)
{
	Window1 w;
	Val x, weight, bias;
	bool has_bias;

	if (!signal(c, &x, &w) || !arg_int(c, "dilation", 1, INT32_MAX, &w.dilation) ||
	    !arg_int(c, "groups", 1, INT32_MAX, &w.groups))
		return false;
	if (w.in % w.groups || w.out % w.groups)
		return call_fail(c, call_loc(c, "groups"),
		                 "groups is %lld, must divide both the input's %lld channels and the output's %lld",
		                 (long long)w.groups, (long long)w.in, (long long)w.out);
	if (w.dilation * (w.k - 1) + 1 > w.n + 2 * w.pad)
		return call_fail(c, c->loc, "the window spans %lld places, the input with its padding has %lld",
		                 (long long)(w.dilation * (w.k - 1) + 1), (long long)(w.n + 2 * w.pad));
	if (!one_row(c, &w, w.out, w.in / w.groups, "[channels, C / groups, k]",
	             (double)(w.in / w.groups) * (double)w.k, (double)w.out * (double)w.k, &x, &weight, &has_bias,
	             &bias))
		return false;
	int64_t stride[] = {1, w.stride}, pad[] = {0, w.pad}, dilation[] = {1, w.dilation};

	return from_row(c, op_with2(c, OP_conv2d, x, weight, ATTRS(AL(stride, stride, 2), AL(pad, pad, 2),
	                            AL(dilation, dilation, 2), AI(groups, w.groups))), &w, has_bias, bias, result);
}

bool
builtin_conv_transpose1d(Call *c, Value *result)
{
	int64_t extra;
	Window1 w;
	Val x, weight, bias;
	bool has_bias;

	if (!signal(c, &x, &w) || !arg_int(c, "output_pad", 0, INT32_MAX, &extra))
		return false;
	Type t = val_type_of(c, x);
	int64_t n = (w.n - 1) * w.stride - 2 * w.pad + w.k + extra;
	Axis axes[4] = {t.axis[0], axis(w.out), axis(1), axis(n)};
	const char *why = n < 1 ? NULL : shape_too_large(4, axes);

	if (extra >= w.stride)
		return call_fail(c, call_loc(c, "output_pad"), "output_pad is %lld, needs less than the stride %lld",
		                 (long long)extra, (long long)w.stride);
	if (n < 1)
		return call_fail(c, call_loc(c, "pad"), "the result would have %lld places: pad %lld cuts all of it",
		                 (long long)n, (long long)w.pad);
	if (why)
		return call_fail(c, c->loc, "the result would have %s", why);
	if (!one_row(c, &w, w.in, w.out, "[C, channels, k]", (double)w.in * (double)w.k,
	             (double)w.out * (double)w.k, &x, &weight, &has_bias, &bias))
		return false;
	int64_t stride[] = {1, w.stride}, pad[] = {0, w.pad}, one[] = {1, 1};
	Type ty = type_of(t.dtype, 4, axes);

	return from_row(c, build_op(c->b, OP_conv2d_dx, VALS(x, weight), ATTRS(AL(stride, stride, 2), AL(pad, pad, 2),
	                            AL(dilation, one, 2), AI(groups, 1)), &ty), &w, has_bias, bias, result);
}

/* ---------------------------------------------------------------- products */
/* matmul with a row vector for a and a column vector for b where they have one axis. */
static Val
product(Call *c, Val a, Val b, bool tb)
{
	Type ta = val_type_of(c, a), tbt = val_type_of(c, b);
	Axis axes[MAX_RANK];
	int n = 0;

	if (ta.rank == 1)
		a = add_axis(c, a, 0);
	if (tbt.rank == 1)
		b = add_axis(c, b, 1);
	Val y = op_with2(c, OP_matmul, a, b, tb ? ATTRS(AB(tb, true)) : NULL);
	if (!y.id || (ta.rank > 1 && tbt.rank > 1))
		return y;
	Type ty = val_type_of(c, y);
	for (int i = 0; i < ty.rank; i++)
		if (!(ta.rank == 1 && i == ty.rank - 2) && !(tbt.rank == 1 && i == ty.rank - 1))
			axes[n++] = ty.axis[i];
	return to_shape(c, y, n, axes);
}

bool
builtin_dense(Call *c, Value *result)
{
	int64_t in, out;
	Val x, w, bias;
	bool has_bias;
	Init init;

	if (!arg_float_tensor(c, "x", &x) || !arg_int(c, "features", 1, INT32_MAX, &out))
		return false;
	Type t = val_type_of(c, x);
	if (t.rank < 1)
		return call_fail(c, c->loc, "input is a scalar, needs at least 1 axis [..., in]");
	if (!axis_fixed(c, "input", x, t.rank - 1, &in))
		return false;
	if (call_arg(c, "bias")->kind == V_INT)
		return call_fail(c, call_loc(c, "bias"),
		                 "bias is the integer %lld, needs true, false or a tensor; the input's features are "
		                 "not counted: dense(x, %lld)",
		                 (long long)call_arg(c, "bias")->i, (long long)call_arg(c, "bias")->i);
	int64_t dims[] = {out, in};
	double edge = 1 / sqrt((double)in);
	Init even = {INIT_UNIFORM, -edge, edge};
	if (!init_value(c, "init", even, (Fans){(double)in, (double)out, NULL}, &init)
	    || !own_param(c, "weight", call_arg(c, "weight"), t.dtype, 2, dims, "[features, in]", init, &w)
	    || !own_bias(c, t.dtype, out, even, &has_bias, &bias))
		return false;
	Val y = product(c, x, w, true);
	return call_give(c, has_bias ? add_bias(c, y, bias, out, 0) : y, result);
}

bool
builtin_matmul(Call *c, Value *result)
{
	Val a, b;

	if (!arg_float_tensor(c, "a", &a) || !arg_float_tensor(c, "b", &b) || !same_dtype(c, "a", a, "b", b))
		return false;
	Type ta = val_type_of(c, a), tb = val_type_of(c, b);
	if (!ta.rank || !tb.rank)
		return call_fail(c, c->loc, "a is %s, b is %s; both need at least 1 axis", val_text(c, a),
		                 val_text(c, b));
	int64_t ka = ta.axis[ta.rank - 1].n, kb = tb.axis[tb.rank > 1 ? tb.rank - 2 : 0].n;
	if (ka != kb) {
		call_fail(c, c->loc, "a is %s with %lld columns, b is %s with %lld rows; they must agree",
		          val_text(c, a), (long long)ka, val_text(c, b), (long long)kb);
		call_note_val(c, "a", a);
		call_note_val(c, "b", b);
		return false;
	}
	if (call_give(c, product(c, a, b, false), result))
		return true;
	call_note_val(c, "a", a);
	call_note_val(c, "b", b);
	return false;
}

/* ---------------------------------------------------------------- pooling */

static bool
pool_arguments(Call *c, Val *x, int64_t k[2], int64_t stride[2], int64_t pad[2])
{
	int64_t size[2];

	if (!arg_rank(c, "x", *x, 4, "[N, C, H, W]") || !axis_fixed(c, "input", *x, 2, &size[0]) ||
	    !axis_fixed(c, "input", *x, 3, &size[1]) || !arg_pair(c, "k", 1, k) || !arg_pair(c, "pad", 0, pad))
		return false;
	if (!call_given(c, "stride"))
		memcpy(stride, k, 2 * sizeof *k);
	else if (!arg_pair(c, "stride", 1, stride))
		return false;
	for (int i = 0; i < 2; i++)
		if (2 * pad[i] > k[i])
			return call_fail(c, call_loc(c, "pad"),
			                 "pad is %lld, at most half of the window's %lld is possible: a window must "
			                 "see the input",
			                 (long long)pad[i], (long long)k[i]);
	return window_fits(c, size, k, pad, (int64_t[]){1, 1});
}

bool
builtin_max_pool2d(Call *c, Value *result)
{
	int64_t k[2], stride[2], pad[2];
	Val x;

	if (!arg_tensor(c, "x", &x))
		return false;
	if (val_type(call_graph(c), x)->dtype == DT_bool)
		return call_fail(c, c->loc, "input is %s, needs numbers: cast(x, f32)", val_text(c, x));
	if (!pool_arguments(c, &x, k, stride, pad))
		return false;
	return call_give(c, op_with(c, OP_max_pool2d, x, ATTRS(AL(k, k, 2), AL(stride, stride, 2), AL(pad, pad, 2))),
	                 result);
}

bool
builtin_avg_pool2d(Call *c, Value *result)
{
	int64_t k[2], stride[2], pad[2];
	bool count_pad;
	Val x;

	if (!arg_float_tensor(c, "x", &x) || !pool_arguments(c, &x, k, stride, pad) ||
	    !arg_bool(c, "count_pad", &count_pad))
		return false;
	return call_give(c,
	                 op_with(c, OP_avg_pool2d, x,
	                         ATTRS(AL(k, k, 2), AL(stride, stride, 2), AL(pad, pad, 2), AB(count_pad, count_pad))),
	                 result);
}
