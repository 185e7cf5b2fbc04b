/* fold.c: constants, identities, views of views, casts of casts.
 *
 * In: up to stage lowered.  Out: the same values, bit for bit, NaN and the sign of zero included.
 *   fold.constant  an elementwise op, cast or view on `full` inputs becomes one `full`, computed by the reference
 * fold.identity  x * 1, x / 1, x - 0, x + -0 (integers: + 0), x ^ 1, -(-x), where on a constant; views that change
 * nothing;
 *                  a cast to the same type; stop_gradient, once gradients are made
 *   fold.view      reshape of reshape, transpose of transpose, expand of expand, reverse of reverse
 *   fold.shuffle   an axis that is split in two, these exchanged, and joined again: interleave, in any layout
 *   fold.matmul    matmul of what is transposed, transpose of a matmul that nobody else reads: ta and tb say it
 *   fold.cast      cast of cast, where the first holds every value of what it was computed from, and the second does
 *                  not saturate
 *   fold.expand    elementwise ops broadcast by themselves: the operand before an expand, if another operand has the
 *                  shape
 * Declines: x + 0 (turns -0 into 0), x * 0 (NaN, infinity), a sum over one element (turns -0 into 0), anything that
 * would change a result's type. */
#include <math.h>
#include <string.h>
#include "../ir/ref.h"
#include "passes.h"

typedef struct Fold { Rewrite rw; PassCtx *cx; bool diffed, changed; uint32_t *uses; /* by old Val.id */ } Fold;

static const Op *
def_of(const Fold *f, Val v)
{
	return val_op(f->rw.g, v);
}

/* The number if v is a full, else NULL. */
static const Attr *
full_value(const Fold *f, Val v)
{
	const Op *op = def_of(f, v);

	return op && op->kind == OP_full ? attr_get(op, A_value) : NULL;
}

static double
as_double(const Attr *a)
{
	return a->is_int ? (double)a->i : a->f;
}

static bool
is_number(const Fold *f, Val v, double want)
{
	const Attr *a = full_value(f, v);

	return a && as_double(a) == want && signbit(as_double(a)) == signbit(want);
}

static const Type *
type_in(const Fold *f, const Op *op, int k)
{
	return val_type(f->rw.g, op->in[k]);
}

static const Type *
type_out(const Fold *f, const Op *op)
{
	return val_type(f->rw.g, op->out[0]);
}

/* x, if it can stand for op's result: the type is the same. */
static Val
as_result(const Fold *f, const Op *op, Val x)
{
	return x.id && type_same(val_type(f->rw.g, x), type_out(f, op)) ? x : NOVAL;
}

/* ---------------------------------------------------------------- constants */
/* The value of an op whose inputs are all full: one element, by the reference; an integer stays one. */
static bool
evaluate(const Fold *f, const Op *op, AttrArg *result)
{
	Graph *g = f->rw.g;
	RefTensor *val = arena_array(f->cx->scratch, RefTensor, g->val.n);
	RefCtx rc = {.g = g,
	             .arena = f->cx->scratch,
	             .n = g->module->batch,
	             .full = g->module->batch,
	             .round = true,
	             .val = val};
	const RefTensor *out = &val[op->out[0].id];

	for (int k = 0; k < op->nin; k++)
		if (!full_value(f, op->in[k]) || ref_op(&rc, def_of(f, op->in[k])))
			return false;
	if (ref_op(&rc, op) || out->n < 1)
		return false;
	*result = out->i ? (AttrArg)AI(value, out->i[0]) : (AttrArg)AF(value, out->f[0]);
	return true;
}

enum { SMALL = 4096 };  /* elements: what is worth evaluating at compile time */

static bool
foldable(const Fold *f, const Op *op)
{
	if (op->nin < 1 || op->nout != 1 || type_elements(type_out(f, op)) > SMALL ||
	    type_elements(type_out(f, op)) < 1)
		return false;
	if (!op_has(op->kind, T_POINTWISE))
		return false;
	for (int k = 0; k < op->nin; k++)
		if (!full_value(f, op->in[k]) || type_elements(type_in(f, op, k)) > SMALL)
			return false;
	return true;
}

static Val
fold_constant(Fold *f, const Op *op)
{
	const Attr *a = op_has(op->kind, T_VIEW) && op->kind != OP_stop_gradient ? full_value(f, op->in[0]) : NULL;
	AttrArg x;
	Val v;

	if (a)
		x = a->is_int ? (AttrArg)AI(value, a->i) : (AttrArg)AF(value, a->f);
	else if (!foldable(f, op) || !evaluate(f, op, &x))
		return NOVAL;
	if (!pass_may(f->cx, "fold.constant"))
		return NOVAL;
	Type t = *type_out(f, op);

	t = type_of((DType)t.dtype, t.rank, t.axis);
	v = build_op(&f->rw.b, OP_full, NULL, 0, ATTRS(x), &t);
	return as_result(f, op, v);
}

/* ---------------------------------------------------------------- identities */
static Val
fold_where(const Fold *f, const Op *op)
{
	const Attr *c = full_value(f, op->in[0]);

	return c ? as_result(f, op, op->in[as_double(c) != 0 ? 1 : 2]) : NOVAL;
}

static Val
fold_identity(const Fold *f, const Op *op)
{
	const Op *inner;
	Val x = op->in[0];
	bool integer = op->nin && dtype_is_int((DType)type_in(f, op, 0)->dtype);

	switch (op->kind) {
	case OP_mul:
		if (is_number(f, op->in[1], 1) && as_result(f, op, x).id)
			return x;
		return is_number(f, x, 1) ? as_result(f, op, op->in[1]) : NOVAL;
	case OP_add:
		if (is_number(f, op->in[1], integer ? 0 : -0.0) && as_result(f, op, x).id)
			return x;
		return is_number(f, x, integer ? 0 : -0.0) ? as_result(f, op, op->in[1]) : NOVAL;
	case OP_sub:
		return is_number(f, op->in[1], 0) ? as_result(f, op, x) : NOVAL;
	case OP_div:
	case OP_idiv:
	case OP_pow:
		return is_number(f, op->in[1], 1) ? as_result(f, op, x) : NOVAL;
	case OP_neg:
	case OP_not:
		inner = def_of(f, x);
		return inner && inner->kind == op->kind ? as_result(f, op, inner->in[0]) : NOVAL;
	case OP_where:
		return fold_where(f, op);
	case OP_reshape:
	case OP_expand:
	case OP_cast:
	case OP_slice:       /* of the same type: all elements in order */
		return as_result(f, op, x);
	case OP_pad:
		return attr_int(op, A_before) == 0 && attr_int(op, A_step) == 1 ? as_result(f, op, x) : NOVAL;
	case OP_concat:
		return op->nin == 1 ? as_result(f, op, x) : NOVAL;
	case OP_transpose:
		for (int i = 0; i < type_in(f, op, 0)->rank; i++)
			if (attr_ints(op, A_perm, NULL)[i] != i)
				return NOVAL;
		return as_result(f, op, x);
	case OP_stop_gradient:
		return f->diffed ? as_result(f, op, x) : NOVAL;
	default:
		return NOVAL;
	}
}

/* ---------------------------------------------------------------- views of views, casts of casts */
/* Can dtype b hold every value of a? */
static bool
holds(DType b, DType a)
{
	static const uint8_t mantissa[DT_COUNT] = {[DT_f64] = 53, [DT_f32] = 24, [DT_f16] = 11, [DT_bf16] = 8};
	static const uint8_t exponent[DT_COUNT] = {[DT_f64] = 11, [DT_f32] = 8, [DT_f16] = 5, [DT_bf16] = 8};
	static const uint8_t bits[DT_COUNT] = {[DT_i64] = 63, [DT_i32] = 31, [DT_i16] = 15, [DT_u16] = 16,
	                                       [DT_i8] = 7,   [DT_u8] = 8,   [DT_bool] = 1};

	if (a == b)
		return true;
	if (b == DT_bool || (dtype_is_float(a) && !dtype_is_float(b)))
		return false;
	if (dtype_is_float(a))
		return mantissa[b] >= mantissa[a] && exponent[b] >= exponent[a];
	if (dtype_is_float(b))
		return mantissa[b] >= bits[a] && exponent[b] >= 8;
	return bits[b] >= bits[a] && (dtype_is_unsigned(a) || !dtype_is_unsigned(b));
}

/* Is a cast from a by way of b to c the cast from a to c? What is too large for an integer saturates if it comes from a
 * float and wraps if it comes from an integer. */
static bool
chain_is_one(DType a, DType b, DType c)
{
	bool saturates = dtype_is_float(b) && !dtype_is_float(a) && !dtype_is_float(c) && c != DT_bool;

	return holds(b, a) && (!saturates || holds(c, a));
}

static Val
merge_transposes(Fold *f, const Op *op, const Op *inner)
{
	int n;
	const int64_t *outer_perm = attr_ints(op, A_perm, &n), *inner_perm = attr_ints(inner, A_perm, NULL);
	int64_t perm[MAX_RANK];
	bool identity = true;

	for (int i = 0; i < n; i++) {
		perm[i] = inner_perm[outer_perm[i]];
		identity &= perm[i] == i;
	}
	return identity ? inner->in[0] : build_transpose(&f->rw.b, inner->in[0], perm);
}

static Val
fold_chain(Fold *f, const Op *op, const char **rule)
{
	const Op *inner = op->nin == 1 ? def_of(f, op->in[0]) : NULL;
	Build *b = &f->rw.b;
	Type t;
	Val x;

	if (!inner || inner->kind != op->kind || op->nout != 1)
		return NOVAL;
	x = inner->in[0];
	t = *type_out(f, op);
	if (!type_is_plain(&t) || !type_is_plain(val_type(f->rw.g, x)))
		return NOVAL;
	*rule = op->kind == OP_cast ? "fold.cast" : "fold.view";
	switch (op->kind) {
	case OP_reshape:
		return type_same(val_type(f->rw.g, x), &t) ? x
		       : !pass_may(f->cx, *rule)           ? NOVAL
		                                           : build_reshape(b, x, t.rank, t.axis);
	case OP_transpose:
		return pass_may(f->cx, *rule) ? merge_transposes(f, op, inner) : NOVAL;
	case OP_expand:
		return pass_may(f->cx, *rule) ? build_expand(b, x, t.rank, t.axis) : NOVAL;
	case OP_reverse:
		return attr_int(op, A_axis) == attr_int(inner, A_axis) ? x : NOVAL;
	case OP_cast:
		if (!chain_is_one((DType)val_type(f->rw.g, x)->dtype, (DType)type_out(f, inner)->dtype,
		                  (DType)t.dtype) ||
		    !pass_may(f->cx, *rule))
			return NOVAL;
		return build_cast(b, x, (DType)t.dtype);
	default:
		return NOVAL;
	}
}

/* A reshape that splits axis `at` of x in two and leaves the others, or, of the result of a reshape, joins two. */
static bool
splits_axis(const Type *whole, const Type *parts, int at)
{
	if (parts->rank != whole->rank + 1 || whole->axis[at].mul || parts->axis[at].mul || parts->axis[at + 1].mul)
		return false;
	for (int i = 0; i < whole->rank; i++)
		if (i != at && !axis_same(whole->axis[i], parts->axis[i + (i > at)]))
			return false;
	return parts->axis[at].n * parts->axis[at + 1].n == whole->axis[at].n;
}

/* Exchanges axes `at` and at + 1 alone? -1: it does something else. */
static int
swapped_axis(const Op *transpose)
{
	int n, at = -1;
	const int64_t *perm = attr_ints(transpose, A_perm, &n);

	for (int i = 0; i < n; i++) {
		if (perm[i] == i)
			continue;
		if (at >= 0 || i + 1 >= n || perm[i] != i + 1 || perm[i + 1] != i)
			return -1;
		at = i++;
	}
	return at;
}

/* Channels a shuffle deals out: three views that lie row-major become one that leaves every axis in its place. */
static Val
fold_shuffle(Fold *f, const Op *op)
{
	const Op *swap = op->kind == OP_reshape ? def_of(f, op->in[0]) : NULL,
	         *split = swap && swap->kind == OP_transpose ? def_of(f, swap->in[0]) : NULL;
	int at = split && split->kind == OP_reshape ? swapped_axis(swap) : -1;

	if (at < 0)
		return NOVAL;
	const Type *x = type_in(f, split, 0), *parts = type_out(f, split), *to = type_out(f, op);

	if (!type_is_plain(x) || !type_is_plain(parts) || !type_is_plain(to) || !type_same(x, to) ||
	    at >= x->rank || !splits_axis(x, parts, at) || !pass_may(f->cx, "fold.shuffle"))
		return NOVAL;
	return build_op(&f->rw.b, OP_interleave, &split->in[0], 1, ATTRS(AI(axis, at), AI(groups, parts->axis[at].n)),
	                NULL);
}

/* ---------------------------------------------------------------- transpositions around products */
/* Swaps the last two axes and no other? */
static bool
swaps_last(const Op *op)
{
	int n;
	const int64_t *perm = attr_ints(op, A_perm, &n);

	for (int i = 0; i < n; i++)
		if (perm[i] != (i < n - 2 ? i : 2 * n - 3 - i))
			return false;
	return n >= 2;
}

static void
fold_operands(Fold *f, Op *op)
{
	bool flag[2] = {attr_bool(op, A_ta), attr_bool(op, A_tb)}, any = false;

	for (int k = 0; k < 2; k++) {
		const Op *t = def_of(f, op->in[k]);

		if (!t || t->kind != OP_transpose || !swaps_last(t) || !type_is_plain(val_type(f->rw.g, t->in[0])) ||
		    !pass_may(f->cx, "fold.matmul"))
			continue;
		op->in[k] = t->in[0];
		flag[k] = !flag[k];
		any = true;
	}
	if (!any)
		return;
	Attr *attr = arena_array(f->rw.g->arena, Attr, op->nattr);

	memcpy(attr, op->attr, sizeof *attr * op->nattr);
	op->attr = attr;
	for (int i = 0; i < op->nattr; i++)
		if (attr[i].name == A_ta || attr[i].name == A_tb)
			attr[i].i = flag[attr[i].name == A_tb];
	f->changed = true;
}

/* (a b)^T = b^T a^T */
static Val
fold_product(Fold *f, const Op *op)
{
	const Op *m = op->kind == OP_transpose ? def_of(f, op->in[0]) : NULL;
	Val v = op->nin ? op->in[0] : NOVAL;

	if (!m || m->kind != OP_matmul || attr_bool(m, A_wide) || !swaps_last(op) || v.id >= f->rw.nval ||
	    f->uses[v.id] != 1 || !type_is_plain(type_out(f, op)) || !type_is_plain(val_type(f->rw.g, v)) ||
	    !pass_may(f->cx, "fold.matmul"))
		return NOVAL;
	return build_op(&f->rw.b, OP_matmul, VALS(m->in[1], m->in[0]),
	                ATTRS(AB(ta, !attr_bool(m, A_tb)), AB(tb, !attr_bool(m, A_ta))), NULL);
}

/* ---------------------------------------------------------------- expands that elementwise ops do not need */
/* Has another operand the whole extent of every axis that the expand of operand k widened? */
static bool
others_span(const Fold *f, const Op *op, int k, const Type *narrow)
{
	const Type *t = type_out(f, op);

	for (int i = 0; i < t->rank; i++) {
		int at = i - (t->rank - narrow->rank);
		bool spanned = at >= 0 && axis_same(narrow->axis[at], t->axis[i]);

		for (int j = 0; j < op->nin && !spanned; j++) {
			const Type *o = type_in(f, op, j);
			int oi = i - (t->rank - o->rank);

			spanned = j != k && oi >= 0 && axis_same(o->axis[oi], t->axis[i]);
		}
		if (!spanned)
			return false;
	}
	return true;
}

static void
fold_expands(Fold *f, Op *op)
{
	if (!op_has(op->kind, T_EW) || !type_is_plain(type_out(f, op)))
		return;
	for (int k = 0; k < op->nin; k++) {
		const Op *e = def_of(f, op->in[k]);
		Val x;

		if (!e || e->kind != OP_expand)
			continue;
		x = e->in[0];
		if (type_is_plain(val_type(f->rw.g, x)) && others_span(f, op, k, val_type(f->rw.g, x)) &&
		    pass_may(f->cx, "fold.expand")) {
			op->in[k] = x;
			f->changed = true;
		}
	}
}

static Val
fold_op(Fold *f, const Op *op)
{
	const char *rule = NULL;
	Val v = fold_constant(f, op);

	if (v.id)
		return v;
	v = fold_identity(f, op);
	if (v.id)
		return pass_may(f->cx, "fold.identity") ? v : NOVAL;
	v = fold_chain(f, op, &rule);
	if (!v.id)
		v = fold_shuffle(f, op);
	if (!v.id)
		v = fold_product(f, op);
	return v.id ? as_result(f, op, v) : NOVAL;
}

bool
pass_fold(Graph *g, PassCtx *cx)
{
	Fold f = {.cx = cx,
	          .diffed = stage_number(g->module->stage) >= STAGE_diffed,
	          .uses = graph_use_counts(g, cx->scratch)};

	f.rw = rewrite_begin(g, cx->scratch);
	for (uint32_t i = 0; i < f.rw.nold; i++) {
		Op *op = rewrite_inputs(&f.rw, i);
		Val v = NOVAL;

		if (op->dead)
			continue;
		if (!op_has(op->kind, T_EFFECT | T_CONST | T_STATE | T_RANDOM) && op->nout) {
			fold_expands(&f, op);
			if (op->kind == OP_matmul)
				fold_operands(&f, op);
			v = fold_op(&f, op);
		}
		if (!v.id) {
			rewrite_keep(&f.rw, op);
			continue;
		}
		rewrite_to(&f.rw, op->out[0], v);
		f.changed = true;
	}
	rewrite_end(&f.rw);
	return f.changed;
}
