/* taps.c: convolutions with fewer outputs than a vector has lanes: columns of the filter become outputs.
 *
 * In: typed graphs.   Out: where the target's kernels compute several outputs at once (Target.layout.outputs) and a
 * convolution has fewer, as one to three channels of an image or a mask, the same convolution as one whose filter is
 * one column wide: output s K + k is what column s of filter k gives, and the result is the sum of these, each moved by
 * its column. K lanes of a vector become S K. Autodiff, which comes later, gives the gradient in the filter the same
 * columns. Rule: taps.outputs. Equal as numbers are: sums run by columns.
 * Declines, each with a verdict: groups, columns a stride apart, extents that follow the batch, 16-bit results (partial
 * sums would be rounded), and what multiplies too little for the sums of moved columns to pay.
 * Source: the idea of accumulating shifted products is Vasudevan, Anderson and Gregg 2017 (kn2row). */
#include <math.h>
#include "../ir/window.h"
#include "passes.h"

/* Vectors that op multiplies for each pixel of the result, as it is and with its columns as outputs. */
typedef struct Cost { int64_t now, then; } Cost;

static Cost
cost_of(const Graph *g, const Op *op, int64_t lanes)
{
	const Type *w = val_type(g, op->in[1]);
	int64_t rows = w->axis[1].n * w->axis[2].n, outs = w->axis[0].n, taps = w->axis[3].n;

	return (Cost){rows * taps * ((outs + lanes - 1) / lanes), rows * ((outs * taps + lanes - 1) / lanes)};
}

/* NULL, or why op stays as it is. */
static const char *
why_not(PassCtx *cx, const Graph *g, const Op *op, Cost cost)
{
	enum { SUM = 32 }; /* vectors' products that take as long as a moved column's sum, with its gradient's */
	const Type *x = val_type(g, op->in[0]), *w = val_type(g, op->in[1]);

	if (attr_int(op, A_groups) > 1)
		return "it has groups of channels";
	if (window_of(g, op).stride[1] != 1)
		return "its columns are a stride apart";
	if (x->axis[2].mul || x->axis[3].mul)
		return "the image's size follows the batch";
	if (precision_of(g->module, cx->target, cx->arch).narrow != DT_none)
		return "results are rounded to 16 bits, and sums of columns would be";
	if (3 * cost.now < 4 * cost.then || cost.now - cost.then < SUM * w->axis[3].n)
		return arena_printf(cx->scratch,
		                    "%lld vectors a pixel in place of %lld do not pay for the sums of %lld columns",
		                    (long long)cost.then, (long long)cost.now, (long long)w->axis[3].n);
	return pass_may(cx, "taps.outputs") ? NULL : "stopped by --pass-limit";
}

static Val
part(Build *b, Val v, int axis, int64_t start, int64_t n)
{
	return build_op(b, OP_slice, &v, 1, ATTRS(AI(axis, axis), AI(start, start), AI(end, start + n), AI(step, 1)),
	                NULL);
}

static void
put(Rewrite *rw, const Op *op)
{
	Build *b = &rw->b;
	Window at = window_of(rw->g, op);
	const Type w = *val_type(rw->g, op->in[1]);
	int64_t outs = w.axis[0].n, taps = w.axis[3].n, wide = val_type(rw->g, op->out[0])->axis[3].n;
	const int64_t stride[2] = {at.stride[0], 1}, pad[2] = {at.pad[0], 0}, apart[2] = {at.dilation[0], 1},
	              perm[4] = {3, 0, 1, 2};
	Type column = type_of((DType)w.dtype, 4, (Axis[]){axis(taps * outs), w.axis[1], w.axis[2], axis(1)});
	Val transposed = build_op(b, OP_transpose, &op->in[1], 1, ATTRS(AL(perm, perm, 4)), NULL);
	Val filter = build_op(b, OP_reshape, &transposed, 1, NULL, &column), sum = NOVAL;
	Val all = build_op(b, OP_conv2d, VALS(op->in[0], filter),
	                   ATTRS(AL(stride, stride, 2), AL(pad, pad, 2), AL(dilation, apart, 2)), NULL);

	if (at.pad[1])
		all = build_op(b, OP_pad, &all, 1, ATTRS(AI(axis, 3), AI(before, at.pad[1]), AI(after, at.pad[1])),
		               NULL);
	for (int64_t s = 0; s < taps; s++) {
		Val v = part(b, part(b, all, 1, s * outs, outs), 3, s * at.dilation[1], wide);

		sum = sum.id ? build(b, OP_add, sum, v) : v;
	}
	rewrite_to(rw, op->out[0], sum);
}

bool
pass_taps(Graph *g, PassCtx *cx)
{
	bool *of = arena_array(cx->scratch, bool, g->op.n), changed = false;

	if (!cx->target || !cx->target->layout.outputs)
		return false;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind != OP_conv2d || op->dead || val_type(g, op->out[0])->dtype != DT_f32)
			continue;
		int64_t lanes = cx->target->layout.outputs(cx->target, g), outs = val_type(g, op->in[1])->axis[0].n,
		        taps = val_type(g, op->in[1])->axis[3].n;

		if (2 * outs > lanes || taps < 2)
			continue;
		Cost cost = cost_of(g, op, lanes);
		const char *why = why_not(cx, g, op, cost);

		verdict(cx, (Verdict){.pass = "taps",
		                      .rule = "taps.outputs",
		                      .graph = g->name,
		                      .a = op->path,
		                      .opa = op_info[op->kind].name,
		                      .fired = !why,
		                      .why = why ? why
		                                 : arena_printf(cx->scratch,
		                                                "%lld outputs of %lld columns are %lld outputs of one: "
		                                                "%lld vectors a pixel in place of %lld",
		                                                (long long)outs, (long long)taps,
		                                                (long long)(outs * taps), (long long)cost.then,
		                                                (long long)cost.now),
		                      .value = (double)cost.then / (double)cost.now,
		                      .loc = op->loc});
		of[i] = !why;
		changed |= !why;
	}
	if (!changed)
		return false;
	Rewrite rw = rewrite_begin(g, cx->scratch);

	for (uint32_t i = 0; i < rw.nold; i++) {
		Op *op = rewrite_inputs(&rw, i);

		if (of[i])
			put(&rw, op);
		else
			rewrite_keep(&rw, op);
	}
	rewrite_end(&rw);
	return true;
}
