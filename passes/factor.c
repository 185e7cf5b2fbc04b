/* factor.c: factors that are the same for all elements of a sum come out of it, and transpositions.
 *
 * In: lowered algebra up to stage lowered.   Out: sum(x * k) = sum(x) * k, sum(x / k) = sum(x) / k, sum(-x) = -sum(x)
 * over axes on which k has one element, for sum and mean of f32 and f64; a chain of them in one step. A sum over axes
 * of one element each is a reshape. Gradients of broadcast operands are full of such sums: taken out, many become the
 * same sum, which cse then finds, and none needs a product of full size. Rule: factor.sum. A sum of what is transposed
 * is one of the operand, over the axes that these were, where what is kept stays in order: it then reads memory as it
 * lies. Rule: factor.transpose.
 * Equal as numbers are, not bit for bit: the products are rounded elsewhere, and 0 * infinity may arise on one side
 * only.
 * Declines: integers (their sums are exact, and wrap), narrow floats (the sum would be rounded before the factor). */
#include "passes.h"
#include "red.h"

typedef struct Factor { OpKind kind; Val k; } Factor;

enum { FACTORS = 8 };

/* Has v one element along every axis of `axes` of a tensor of that rank? */
static bool
is_even(const Graph *g, Val v, int rank, const int64_t *axes, int n)
{
	const Type *t = val_type(g, v);

	for (int i = 0; i < n; i++) {
		int at = (int)axes[i] - (rank - t->rank);

		if (at >= 0 && (t->axis[at].n != 1 || t->axis[at].mul))
			return false;
	}
	return true;
}

/* Takes the outermost factor off x; false if there is none. */
static bool
take(const Graph *g, const Type *full, const int64_t *axes, int n, Val *x, Factor *f)
{
	const Op *op = val_op(g, *x);

	if (!op || (op->kind != OP_mul && op->kind != OP_div && op->kind != OP_neg))
		return false;
	*f = (Factor){op->kind, NOVAL};
	if (op->kind == OP_neg) {
		*x = op->in[0];
		return true;
	}
	for (int k = op->nin - 1; k >= (op->kind == OP_div); k--)
		if (type_same_shape(val_type(g, op->in[1 - k]), full) && is_even(g, op->in[k], full->rank, axes, n)) {
			f->k = op->in[k];
			*x = op->in[1 - k];
			return true;
		}
	return false;
}

static bool
ones_only(const Type *t, const int64_t *axes, int n)
{
	for (int i = 0; i < n; i++)
		if (t->axis[axes[i]].n != 1 || t->axis[axes[i]].mul)
			return false;
	return true;
}

/* The transposition that makes x, if the axes that remain of it are in one order before and behind; else NULL. */
static const Op *
transposed(const Graph *g, Val x, const int64_t *axes, int n)
{
	const Op *op = val_op(g, x);
	int rank, last = -1;
	uint32_t gone = 0;

	if (!op || op->kind != OP_transpose || !type_is_plain(val_type(g, x)) || !type_is_plain(val_type(g, op->in[0])))
		return NULL;
	const int64_t *perm = attr_ints(op, A_perm, &rank);

	for (int i = 0; i < n; i++)
		gone |= 1u << axes[i];
	for (int i = 0; i < rank; i++) {
		if (gone >> i & 1)
			continue;
		if (perm[i] < last)
			return NULL;
		last = (int)perm[i];
	}
	return op;
}

/* The sum or mean of x over these axes, which go; of what x is transposed from where that is t's operand. */
static Val
sum_of(Rewrite *rw, OpKind kind, Val x, const Op *t, const int64_t *axes, int n)
{
	int64_t before[MAX_RANK];
	uint32_t gone = 0;

	if (!t)
		return build_reduce(&rw->b, kind, x, axes, n, false);
	const int64_t *perm = attr_ints(t, A_perm, NULL);

	for (int i = 0; i < n; i++)
		gone |= 1u << perm[axes[i]];
	for (int i = n = 0; i < MAX_RANK; i++)
		if (gone >> i & 1)
			before[n++] = i;
	return build_reduce(&rw->b, kind, t->in[0], before, n, false);
}

static Val
factor_op(Rewrite *rw, PassCtx *cx, const Op *op)
{
	const Graph *g = rw->g;
	const Type full = *val_type(g, op->in[0]), out = *val_type(g, op->out[0]);
	Factor f[FACTORS];
	Type kept = full;
	Val x = op->in[0];
	int n, nf = 0;
	const int64_t *axes = attr_ints(op, A_axes, &n);

	if ((full.dtype != DT_f32 && full.dtype != DT_f64) || !type_is_plain(&full) || !n)
		return NOVAL;
	bool one = ones_only(&full, axes, n);

	if (!one)
		while (nf < FACTORS && take(g, &full, axes, n, &x, &f[nf]))
			nf++;
	const Op *t = one ? NULL : transposed(g, x, axes, n);

	if (t && !pass_may(cx, "factor.transpose"))
		t = NULL;
	if ((!one && !nf && !t) || ((one || nf) && !pass_may(cx, "factor.sum")))
		return NOVAL;
	if (one)
		return build_reshape(&rw->b, x, out.rank, out.axis);
	for (int i = 0; i < n; i++)
		kept.axis[axes[i]] = axis(1);
	/* the sum without its factors in the form that gradients of a bias have, so that they are one */
	x = build_reshape(&rw->b, sum_of(rw, (OpKind)op->kind, x, t, axes, n), kept.rank, kept.axis);
	while (nf-- > 0)
		x = f[nf].kind == OP_neg ? build(&rw->b, OP_neg, x) : build(&rw->b, f[nf].kind, x, f[nf].k);
	return build_reshape(&rw->b, x, out.rank, out.axis);
}

bool
pass_factor(Graph *g, PassCtx *cx)
{
	Rewrite rw = rewrite_begin(g, cx->scratch);
	bool changed = false;

	for (uint32_t i = 0; i < rw.nold; i++) {
		Op *op = rewrite_inputs(&rw, i);
		Val v = !op->dead && op_reduces(op) && red_of(op)->linear ? factor_op(&rw, cx, op) : NOVAL;

		if (!v.id) {
			rewrite_keep(&rw, op);
			continue;
		}
		rewrite_to(&rw, op->out[0], v);
		changed = true;
	}
	rewrite_end(&rw);
	return changed;
}
