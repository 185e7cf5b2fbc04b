/* signals.c: values of one spatial axis as images of one row, wherever convolutions made them so.
 *
 * In: lowered algebra, all layouts row-major. conv1d is conv2d of images of one row, so [N, C, T] becomes [N, C, 1, T]
 * before it and [N, C, T] again behind it. Out: what follows of elementwise ops, reductions and moves is done on
 * [N, C, 1, T] too; the reshapes in between meet each other and go. Otherwise pass layout, which leaves reshapes
 * row-major, would copy every activation into the target's layout before each convolution and back behind it, and no
 * kernel of a convolution could take a bias, an activation or statistics. Equal bit for bit but for the order of sums.
 * Method: a value of three axes has a form of four if it is the reshape of an image of one row, or if an op makes it of
 * a value of its own shape that has one; broadcast operands get the axis by a reshape, what is broadcast, constant or
 * random by being made in that shape. Ops that read the old form find it behind a reshape, which dce takes where none
 * does. Rule: signals.row.
 * Declined: gradients of weights (their optimizer's arithmetic stays with the parameter's shape), reductions that give
 * an index (along one axis), matrix products, composite ops, and targets that want no layout of their own. */
#include <string.h>
#include "passes.h"
#include "red.h"

enum { ROW = 2 }; /* where the axis of one row stands */

typedef struct Signals {
	Rewrite rw;
	PassCtx *cx;
	Val *up;     /* by old Val.id: its form of four axes, among the new values; NOVAL: none */
	bool *image; /* by old Val.id: an activation of a convolution or a pooling */
} Signals;

/* [a, b, 1, c] for [a, b, c]. */
static bool
is_row_of(const Type *four, const Type *three)
{
	if (four->rank != 4 || three->rank != 3 || four->axis[ROW].n != 1 || four->axis[ROW].mul)
		return false;
	for (int i = 0; i < 3; i++)
		if (!axis_same(four->axis[i < ROW ? i : i + 1], three->axis[i]))
			return false;
	return true;
}

/* The shape of v beside values of four axes: where it has the last axis and one more, the row's stands between. */
static Type
row_type(const Type *t)
{
	Axis axes[MAX_RANK];
	int n = 0;

	for (int i = 0; i < t->rank; i++) {
		if (i == t->rank - 1 && t->rank > 1)
			axes[n++] = axis(1);
		axes[n++] = t->axis[i];
	}
	return type_of((DType)t->dtype, n, axes);
}

/* A transposition of values of three axes, of four: the row's axis stays. */
static Val
transposed(Signals *s, const Op *op, Val x)
{
	static const int64_t four[3] = {0, 1, ROW + 1};
	const int64_t *perm = attr_ints(op, A_perm, NULL);

	return build_transpose(&s->rw.b, x, (int64_t[]){four[perm[0]], four[perm[1]], ROW, four[perm[2]]});
}

/* New value v, an operand of an op that is lifted, with the row's axis. */
static Val
with_row(Signals *s, Val v)
{
	Build *b = &s->rw.b;
	const Op *def = val_op(b->g, v);
	Type t = row_type(val_type(b->g, v));

	if (t.rank < 3)
		return v;
	if (def && def->kind == OP_expand && t.rank == 4)
		return build_expand(b, with_row(s, def->in[0]), t.rank, t.axis);
	if (def && def->kind == OP_transpose && t.rank == 4)
		return transposed(s, def, with_row(s, def->in[0]));
	if (def && def->nout == 1 && (def->kind == OP_full || def->kind == OP_random)) {
		const Val *out = build_again(b, def, def->in, &t);

		return out ? out[0] : NOVAL;
	}
	return build_reshape(b, v, t.rank, t.axis);
}

/* ---------------------------------------------------------------- which ops */
/* Does op do on four axes what it does on three? */
static bool
takes_rows(const Op *op)
{
	if (op->dead || (op_reduces(op) && red_indexes(op)))
		return false;
	return op_has((OpKind)op->kind, T_POINTWISE | T_REDUCE) || op->kind == OP_stop_gradient ||
	       op->kind == OP_slice || op->kind == OP_reverse || op->kind == OP_interleave || op->kind == OP_pad ||
	       op->kind == OP_concat;
}

/* Has an operand of three axes, of the size of its result where it is elementwise, a form of four? */
static bool
lifts(const Signals *s, const Op *op)
{
	const Graph *g = s->rw.g;

	if (!takes_rows(op) || (!op_has((OpKind)op->kind, T_REDUCE) && val_type(g, op->out[0])->rank != 3))
		return false;
	for (int k = 0; k < op->nin; k++)
		if (s->up[op->in[k].id].id && (!op_has((OpKind)op->kind, T_POINTWISE) ||
		                               type_same_shape(val_type(g, op->in[k]), val_type(g, op->out[0]))))
			return true;
	return false;
}

/* ---------------------------------------------------------------- the op on four axes */
/* axis: that of the last moves on; axes: likewise, and the row's is reduced too. */
static Attr
moved(Arena *a, Attr at)
{
	if (at.name == A_axis && (at.i == ROW || at.i == -1))
		at.i = ROW + 1;
	else if (at.name == A_axis && at.i < 0)
		at.i += 3;
	if (at.name != A_axes)
		return at;
	int64_t *axes = arena_array(a, int64_t, at.n + 1);
	uint16_t n = 0;

	for (int i = 0; i < at.n; i++)
		if (at.list[i] < ROW)
			axes[n++] = at.list[i];
	axes[n++] = ROW;
	for (int i = 0; i < at.n; i++)
		if (at.list[i] == ROW)
			axes[n++] = ROW + 1;
	at.list = axes;
	at.n = n;
	return at;
}

/* Op i in its new form; its old results are reshapes of the new ones. */
static void
lift(Signals *s, uint32_t i)
{
	Rewrite *rw = &s->rw;
	Arena *a = rw->g->arena;
	Op *op = &rw->old[i], four;
	Val *in = arena_array(a, Val, op->nin);
	Type results[4] = {{0}};

	for (int k = 0; k < op->nin; k++)
		in[k] = s->up[op->in[k].id];
	four = *(op = rewrite_inputs(rw, i));
	for (int k = 0; k < op->nin; k++)
		in[k] = in[k].id ? in[k] : with_row(s, op->in[k]);
	four.attr = memcpy(arena_array(a, Attr, op->nattr), op->attr, sizeof *op->attr * op->nattr);
	for (int k = 0; k < op->nattr; k++)
		four.attr[k] = moved(a, op->attr[k]);
	for (int k = 0; k < op->nout && op->kind == OP_cast; k++)
		results[k] = row_type(val_type(rw->g, op->out[k]));

	const Val *out = build_again(&rw->b, &four, in, results);

	for (int k = 0; out && k < op->nout; k++) {
		Type t = *val_type(rw->g, op->out[k]);

		if (t.rank == 3)
			s->up[op->out[k].id] = out[k];
		rewrite_to(rw, op->out[k], build_reshape(&rw->b, out[k], t.rank, t.axis));
	}
}

/* Op i, a reshape to an image's row or from it, or a transposition of what has a form of four axes. True: it is
 * gone. */
static bool
meets(Signals *s, uint32_t i)
{
	const Graph *g = s->rw.g;
	Op *op = &s->rw.old[i];
	Val up = s->up[op->in[0].id];
	bool image = s->image[op->in[0].id];

	op = rewrite_inputs(&s->rw, i);
	const Type *from = val_type(g, op->in[0]), *to = val_type(g, op->out[0]);
	const Op *def = val_op(g, op->in[0]);

	if (op->kind == OP_reshape && is_row_of(to, from) && up.id) {
		s->rw.map[op->out[0].id] = up;
		return true;
	}
	if (op->kind == OP_reshape && is_row_of(to, from) && def && def->kind == OP_transpose) {
		rewrite_to(&s->rw, op->out[0], with_row(s, op->in[0]));
		return true;
	}
	if (op->kind == OP_transpose && up.id) {
		Type t = *to;

		rewrite_to(&s->rw, op->out[0], build_reshape(&s->rw.b, transposed(s, op, up), t.rank, t.axis));
		return true;
	}
	if (op->kind == OP_reshape && image && is_row_of(from, to))
		s->up[op->out[0].id] = op->in[0];
	return false;
}

static void
mark_images(Signals *s, const Op *op)
{
	const char *images = op_info[op->kind].images;

	for (int k = 0; images && k < op->nout; k++)
		s->image[op->out[k].id] = images[op->nin + 1 + k] == 'a';
}

bool
pass_signals(Graph *g, PassCtx *cx)
{
	Signals s = {.cx = cx};
	bool changed = false;

	if (!cx->target || !cx->target->layout.images)
		return false;
	s.up = arena_array(cx->scratch, Val, g->val.n);
	s.image = arena_array(cx->scratch, bool, g->val.n);
	s.rw = rewrite_begin(g, cx->scratch);
	for (uint32_t i = 0; i < s.rw.nold; i++) {
		Op *op = &s.rw.old[i];

		mark_images(&s, op);
		if ((op->kind == OP_reshape || op->kind == OP_transpose) && !op->dead && meets(&s, i)) {
			changed = true;
		} else if (lifts(&s, op) && pass_may(cx, "signals.row")) {
			lift(&s, i);
			changed = true;
		} else {
			rewrite_keep(&s.rw, rewrite_inputs(&s.rw, i));
		}
	}
	rewrite_end(&s.rw);
	return changed;
}
