/* channels.c: convolutions of images get as many channels as a kernel loads at once.
 *
 * In: typed graphs.   Out: where the target's kernels load a pixel's channels in chunks (Target.layout.chunk) and a
 * convolution's operand has no whole chunks of them, the same convolution of an operand and a filter that have:
 * neighbouring columns become channels, as many as divide the stride (space to depth along a row), and zeros are put
 * behind them. The padding of the borders is put in as well, so no kernel asks whether a pixel is there. Autodiff,
 * which comes later, cuts the filter's gradient to size by itself. Of q columns that are a pixel w' of the result,
 * column j of the padded image is column q w' + j - pad of x: a slice of each remainder, moved by pads. Rule:
 * channels.whole. Equal as numbers are: sums have products with zeros among them.
 * Declines, each with a verdict: operands that depend on parameters (another pass over activations and their
 * gradients), groups, extents that follow the batch, and what loads fewer than half as many chunks as numbers
 * otherwise. */
#include <math.h>
#include "passes.h"
#include "../ir/window.h"

enum { COLUMNS = 8 }; /* that become channels of one pixel, at most */

/* columns: of x that are one; channels, rows, width: of the operand; taps: columns of the filter. */
typedef struct Fold { int64_t columns, channels, rows, width, taps; } Fold;

static int64_t
whole(int64_t n, int64_t chunk)
{
	return (n + chunk - 1) / chunk;
}

/* The fold that multiplies with fewest zeros. */
static Fold
fold_of(const Graph *g, const Op *op, int64_t chunk)
{
	const Type *w = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	Window at = window_of(g, op);
	Fold best = {0};

	for (int64_t q = 1; q <= at.stride[1] && q <= COLUMNS; q++) {
		Fold f = {q, chunk * whole(q * w->axis[1].n, chunk), 0, 0, whole(w->axis[3].n, q)};

		if (at.stride[1] % q || (q > 1 && at.dilation[1] != 1) ||
		    (best.columns && best.channels * best.taps <= f.channels * f.taps))
			continue;
		f.rows = (o->axis[2].n - 1) * at.stride[0] + (at.k[0] - 1) * at.dilation[0] + 1;
		f.width = (o->axis[3].n - 1) * (at.stride[1] / q) + (f.taps - 1) * at.dilation[1] + 1;
		best = f;
	}
	return best;
}

/* NULL, or why op stays as it is; *f is set where numbers were asked for. */
static const char *
why_not(PassCtx *cx, const Graph *g, const Op *op, const bool *trained, int64_t chunk, Fold *f)
{
	const Type *x = val_type(g, op->in[0]), *w = val_type(g, op->in[1]);

	if (trained[op->in[0].id])
		return "its operand depends on parameters: activations and their gradients would be copied";
	if (attr_int(op, A_groups) > 1)
		return "it has groups of channels";
	if (x->axis[2].mul || x->axis[3].mul)
		return "the image's size follows the batch";
	*f = fold_of(g, op, chunk);
	if (2 * f->taps * f->channels > chunk * w->axis[3].n * w->axis[1].n)
		return arena_printf(cx->scratch, "%lld chunks for every row of the filter, of %lld numbers one by one",
		                    (long long)(f->taps * f->channels / chunk),
		                    (long long)(w->axis[3].n * w->axis[1].n));
	return pass_may(cx, "channels.whole") ? NULL : "stopped by --pass-limit";
}

static Val
padded(Build *b, Val v, int axis, int64_t before, int64_t size)
{
	int64_t after = size - before - val_type(b->g, v)->axis[axis].n;

	if (!before && !after)
		return v;
	return build_op(b, OP_pad, &v, 1, ATTRS(AI(axis, axis), AI(before, before), AI(after, after)), NULL);
}

/* Every q-th column of v from `first` on, which exists. */
static Val
columns(Build *b, Val v, int64_t first, int64_t q)
{
	return q == 1 ? v
	              : build_op(b, OP_slice, &v, 1,
	                         ATTRS(AI(axis, 3), AI(start, first), AI(end, val_type(b->g, v)->axis[3].n),
	                               AI(step, q)),
	                         NULL);
}

static Val
sum_of(Build *b, Val sum, Val v)
{
	return sum.id ? build(b, OP_add, sum, v) : v;
}

static Val
image(Build *b, const Op *op, const Fold *f, const int64_t *pad)
{
	int64_t q = f->columns, c = val_type(b->g, op->in[0])->axis[1].n;
	Val sum = NOVAL;

	for (int64_t j = 0; j < q; j++) {
		int64_t first = ((j - pad[1]) % q + q) % q;

		if (first >= val_type(b->g, op->in[0])->axis[3].n || j >= val_type(b->g, op->in[1])->axis[3].n)
			continue;
		Val v = columns(b, op->in[0], first, q);

		v = padded(b, v, 3, (first + pad[1] - j) / q, f->width);
		v = padded(b, v, 2, pad[0], f->rows);
		sum = sum_of(b, sum, padded(b, v, 1, j * c, f->channels));
	}
	return sum;
}

static Val
filter(Build *b, const Op *op, const Fold *f)
{
	const Type w = *val_type(b->g, op->in[1]);
	Val sum = NOVAL;

	for (int64_t j = 0; j < f->columns && j < w.axis[3].n; j++) {
		Val v = padded(b, columns(b, op->in[1], j, f->columns), 3, 0, f->taps);

		sum = sum_of(b, sum, padded(b, v, 1, j * w.axis[1].n, f->channels));
	}
	return sum;
}

static void
tell(PassCtx *cx, const Graph *g, const Op *op, const Fold *f, const char *why)
{
	const Type *w = val_type(g, op->in[1]);
	double ratio = f->columns ? (double)(f->channels * f->taps) / (double)(w->axis[1].n * w->axis[3].n) : NAN;

	verdict(cx, (Verdict){.pass = "channels",
	                      .rule = "channels.whole",
	                      .graph = g->name,
	                      .a = op->path,
	                      .opa = op_info[op->kind].name,
	                      .fired = !why,
	                      .why = why ? why
	                                 : arena_printf(cx->scratch,
	                                                "%lld channels made of %lld of %lld column%s, for whole "
	                                                "chunks: products with zeros included %.2f times as many",
	                                                (long long)f->channels, (long long)w->axis[1].n,
	                                                (long long)f->columns, f->columns > 1 ? "s" : "", ratio),
	                      .value = ratio,
	                      .loc = op->loc});
}

static void
put(Rewrite *rw, const Op *op, const Fold *f)
{
	Window at = window_of(rw->g, op);
	const int64_t now[2] = {at.stride[0], at.stride[1] / f->columns}, none[2] = {0, 0};
	Val x = image(&rw->b, op, f, at.pad), w = filter(&rw->b, op, f);

	rewrite_to(rw, op->out[0],
	           build_op(&rw->b, OP_conv2d, VALS(x, w),
	                    ATTRS(AL(stride, now, 2), AL(pad, none, 2), AL(dilation, at.dilation, 2)), NULL));
}

bool
pass_channels(Graph *g, PassCtx *cx)
{
	bool *trained = arena_array(cx->scratch, bool, g->val.n),
	     changed = false; /* by Val.id: computed from states too */
	Fold *of = arena_array(cx->scratch, Fold, g->op.n);

	if (!cx->target || !cx->target->layout.chunk)
		return false;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool made = op->kind == OP_load;

		for (int k = 0; k < op->nin; k++)
			made |= trained[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			trained[op->out[k].id] = made;
		if (op->kind != OP_conv2d || op->dead)
			continue;
		SelectCx kernels = pass_kernels(cx, precision_of(g->module, cx->target, cx->arch).narrow);
		int64_t chunk = cx->target->layout.chunk(cx->target, g, op, &kernels);
		Fold f = {0};

		if (chunk <= 1 || val_type(g, op->in[1])->axis[1].n % chunk == 0)
			continue;
		const char *why = why_not(cx, g, op, trained, chunk, &f);

		tell(cx, g, op, &f, why);
		if (!why)
			of[i] = f;
		changed |= !why;
	}
	if (!changed)
		return false;
	Rewrite rw = rewrite_begin(g, cx->scratch);

	for (uint32_t i = 0; i < rw.nold; i++) {
		Op *op = rewrite_inputs(&rw, i);

		if (of[i].columns)
			put(&rw, op, &of[i]);
		else
			rewrite_keep(&rw, op);
	}
	rewrite_end(&rw);
	return true;
}
