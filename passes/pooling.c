/* pooling.c: what is done to the gradient of a max pooling is done before it, where there are fewer elements.
 *
 * In: graphs with gradients, up to stage lowered.   Out:
 *   pooling.factor  f.dx(y, max_pool2d.dx(y, g)) is max_pool2d.dx(y, f.dx(max_pool2d(y), g)): the derivative of an
 *                   activation depends on its result y, which at a window's maximum is the pooled one. The pooled value
 *                   is there from the forward half; elsewhere both are 0.
 *   pooling.sum     a sum of max_pool2d.dx(y, g) over rows and columns is one of g: each window hands its gradient to
 *                   one pixel.
 * Both leave the pooling's own kernel to write what contractions read; what stands before it can join the kernel that
 * makes g. Equal as numbers are: factors bit for bit where they are finite, sums in another order.
 * Declines: derivatives that depend on more than y; gradients that something else reads too; sums beside which
 * elementwise ops or other reductions read the gradient, as their kernel adds up on its way. */
#include <string.h>
#include "passes.h"
#include "red.h"

typedef struct Pooling {
	PassCtx *cx;
	const uint32_t *uses;   /* by Val.id before the pass */
	const bool *kept;       /* likewise: something that is no contraction and no sum of images reads it */
	Rewrite rw;
	bool changed;
} Pooling;

static bool
same_windows(const Op *a, const Op *b)
{
	static const AttrName name[] = {A_k, A_stride, A_pad};
	bool same = true;

	for (int i = 0; i < 3; i++) {
		const int64_t *x = attr_ints(a, name[i], NULL), *y = attr_ints(b, name[i], NULL);

		same &= x[0] == y[0] && x[1] == y[1];
	}
	return same;
}

/* What dx is the gradient of, pooled, where that stands already; NOVAL: it does not. */
static Val
pooled(const Graph *g, const Op *dx)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == OP_max_pool2d && !op->dead && op->in[0].id == dx->in[0].id && same_windows(op, dx))
			return op->out[0];
	}
	return NOVAL;
}

/* Does op add up all rows and columns of images? */
static bool
sums_images(const Graph *g, const Op *op)
{
	uint64_t axes = 0;
	int n;

	if (!op_reduces(op) || !red_of(op)->linear || !expr_is(red_of(op)->value, RED_S)
	    || val_type(g, op->in[0])->rank != 4)
		return false;
	const int64_t *axis = attr_ints(op, A_axes, &n);

	for (int i = 0; i < n; i++)
		axes |= (uint64_t)1 << axis[i];
	return (axes & 3 << 2) == 3 << 2;
}

/* The op that makes operand k, the gradient of a max pooling; NULL: something else makes it. */
static Op *
pool_dx_of(const Pooling *p, const Op *op, int k)
{
	Op *dx = k < op->nin ? val_op(p->rw.g, op->in[k]) : NULL;

	return dx && dx->kind == OP_max_pool2d_dx ? dx : NULL;
}

/* single: nothing else reads what the pooling's gradient makes. NOVAL: op stays. */
static Val
factor_before(Pooling *p, const Op *op, bool single)
{
	const OpInfo *info = &op_info[op->kind];
	Op *dx = pool_dx_of(p, op, 1);
	Build *b = &p->rw.b;

	if (!dx || !single || info->part != 1 || strcmp(info->operands, "rg") != 0 || op->in[0].id != dx->in[0].id)
		return NOVAL;
	const Op was = *dx;
	const Type whole = *val_type(b->g, was.out[0]), part = *val_type(b->g, was.in[1]);
	Val y = pooled(b->g, &was);

	if (!y.id || !pass_may(p->cx, "pooling.factor"))
		return NOVAL;
	dx->dead = true;
	Val factored = build_again(b, op, (Val[]){y, was.in[1]}, &part)[0];

	b->path = was.path;
	return build_again(b, &was, (Val[]){was.in[0], factored}, &whole)[0];
}

/* alone: nothing that stays reads what is summed. NOVAL: op stays. */
static Val
sum_before(Pooling *p, const Op *op, bool alone)
{
	const Op *dx = pool_dx_of(p, op, 0);

	if (!dx || !alone || !sums_images(p->rw.g, op) || !pass_may(p->cx, "pooling.sum"))
		return NOVAL;
	const Type sum = *val_type(p->rw.g, op->out[0]);

	return build_again(&p->rw.b, op, &dx->in[1], &sum)[0];
}

static const bool *
find_kept(const Graph *g, Arena *scratch)
{
	bool *kept = arena_array(scratch, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool passes = op_has((OpKind)op->kind, T_CONTRACT) || sums_images(g, op);

		for (int k = 0; k < op->nin && !op->dead; k++)
			kept[op->in[k].id] |= !passes;
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		kept[g->result.at[i].v.id] = true;
	return kept;
}

bool
pass_pooling(Graph *g, PassCtx *cx)
{
	Pooling p = {.cx = cx, .uses = graph_use_counts(g, cx->scratch), .kept = find_kept(g, cx->scratch)};

	p.rw = rewrite_begin(g, cx->scratch);
	for (uint32_t i = 0; i < p.rw.nold; i++) {
		const Op old = p.rw.old[i];
		Val was[2] = {old.nin > 0 ? old.in[0] : NOVAL, old.nin > 1 ? old.in[1] : NOVAL};
		Op *op = rewrite_inputs(&p.rw, i);
		Val v = op->dead ? NOVAL : factor_before(&p, op, was[1].id && p.uses[was[1].id] == 1);

		if (!v.id && !op->dead)
			v = sum_before(&p, op, was[0].id && !p.kept[was[0].id]);
		if (!v.id) {
			rewrite_keep(&p.rw, op);
			continue;
		}
		rewrite_to(&p.rw, op->out[0], v);
		p.changed = true;
	}
	rewrite_end(&p.rw);
	return p.changed;
}
