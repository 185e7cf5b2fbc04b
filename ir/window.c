/* window.c: the geometry of windows over images, read off an op or its attributes.
 *
 * In: a convolution, a pooling, or a gradient of one.   Out: strides, padding, dilation, taps, groups; which taps meet
 * an index. Shapes are checked already (shape_contract.c). */
#include "window.h"
#include "shape.h"

const Type *
conv_filter(const Graph *g, const Op *op)
{
	return val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);
}

Window
window_of(const Graph *g, const Op *op)
{
	bool contract = op_has((OpKind)op->kind, T_CONTRACT);
	const int64_t *k = contract ? NULL : attr_ints(op, A_k, NULL), *stride = attr_ints(op, A_stride, NULL),
	              *pad = attr_ints(op, A_pad, NULL), *dilation = contract ? attr_ints(op, A_dilation, NULL) : NULL;
	Window w;

	for (int i = 0; i < 2; i++) {
		w.k[i] = contract ? conv_filter(g, op)->axis[2 + i].n : k[i];
		w.stride[i] = stride[i];
		w.pad[i] = pad[i];
		w.dilation[i] = contract ? dilation[i] : 1;
	}
	return w;
}

Conv
conv_of(const Graph *g, const Op *op)
{
	const Type *w = conv_filter(g, op);
	int64_t groups = attr_int(op, A_groups);

	return (Conv){window_of(g, op), groups, w->axis[1].n, w->axis[0].n / groups};
}

bool
window_is_point(const Window *w)
{
	return w->k[0] == 1 && w->k[1] == 1 && w->stride[0] == 1 && w->stride[1] == 1 && !w->pad[0] && !w->pad[1];
}

int64_t
window_extent(const Window *w, int i, int64_t in)
{
	int64_t reach, span = in + 2 * w->pad[i] - 1;

	if (!mul_i64(w->dilation[i], w->k[i] - 1, &reach))
		return 0;
	span -= reach;
	return span < 0 ? 0 : span / w->stride[i] + 1;
}

WindowTaps
window_taps(const Window *w, int i, bool back, int64_t o, int64_t in, int64_t *step, int64_t *move)
{
	WindowTaps t = {0, 0, 0};
	int64_t stride = w->stride[i], pad = w->pad[i], dil = w->dilation[i], g = gcd_i64(stride, dil);

	*step = back ? stride / g : 1;
	*move = back ? -dil / g : dil;
	for (int64_t r = 0; r < w->k[i]; r++) {
		int64_t x = back ? o + pad - r * dil : o * stride - pad + r * dil;

		if (back) {
			if (x < 0 || x % stride)
				continue;
			x /= stride;
		}
		if (x < 0 || x >= in)
			continue;
		if (!t.count++) {
			t.first = r;
			t.at = x;
		}
	}
	return t;
}
