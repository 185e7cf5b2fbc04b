/* grad.c: helpers of the gradient rules, and the rules of operators that only convert or stop.
 *
 * In: the forward op and the gradients of its results.  Out: ops appended to the builder, one gradient per wanted
 * input. Every rule is the vector-Jacobian product written with operators of the tables, so that gradients of
 * gradients, folding and fusion need nothing of their own. A rule runs only in graphs whose shapes are known; where a
 * count follows the batch it is computed by a reduction instead of being a constant. */
#include "grad.h"
#include "rules.h"

void
rule_attrs(const Op *op, AttrArg out[RULE_ATTRS])
{
	int n = 0;

	if (op->nattr >= RULE_ATTRS)
		bug("%s has %d attributes, rules copy %d", op_info[op->kind].name, op->nattr, RULE_ATTRS - 1);
	for (int i = 0; i < op->nattr; i++) {
		const Attr *a = &op->attr[i];
		AttrArg *o = &out[n++];

		*o = (AttrArg){.name = a->name, .kind = attr_names[a->name].kind};
		switch (attr_names[a->name].kind) {
		case AK_INT:
		case AK_BOOL:
			o->i = a->i;
			break;
		case AK_NUM:
			if (a->is_int)
				o->kind = AK_INT, o->i = a->i;
			else
				o->f = a->f;
			break;
		case AK_STR:
			o->s = a->s;
			break;
		case AK_INTS:
		case AK_NUMS:
			o->list = a->list, o->n = a->n;
			break;
		}
	}
	out[n] = (AttrArg){.name = A_COUNT};
}

Val
rule_keep(Build *b, Val r, const Type *x, const int64_t *axes, int n)
{
	Axis kept[MAX_RANK];
	Type t;

	for (int i = 0; i < x->rank; i++)
		kept[i] = x->axis[i];
	for (int i = 0; i < n; i++)
		kept[axes[i]] = axis(1);
	t = type_of(x->dtype, x->rank, kept);
	return type_same_shape(val_type(b->g, r), &t) && val_type(b->g, r)->rank == x->rank
	               ? r
	               : build_reshape(b, r, x->rank, kept);
}

Val
rule_like(Build *b, Val x, const Type *like)
{
	const Type *t = val_type(b->g, x);

	return t->rank == like->rank && type_same_shape(t, like) ? x : build_expand(b, x, like->rank, like->axis);
}

Val
rule_count(Build *b, const Type *x, const int64_t *axes, int n, DType dt)
{
	Axis taken[MAX_RANK];
	int64_t all[MAX_RANK], count = 1;
	bool marked = false;

	for (int i = 0; i < n; i++) {
		taken[i] = x->axis[axes[i]];
		marked |= taken[i].mul != 0;
		count *= taken[i].n;
		all[i] = i;
	}
	if (!marked)
		return build_const(b, dt, (double)count);
	return build_reduce(b, OP_sum, build_full(b, type_of(dt, n, taken), 1), all, n, false);
}

Axis
rule_merge(const Type *x, int from, int to)
{
	Axis r = axis(1);

	for (int i = from; i < to; i++) {
		Axis a = x->axis[i];

		r.n *= a.n;
		if (a.mul)
			r = (Axis){.n = r.n, .mul = (int32_t)(a.mul * (r.n / a.n)), .div = a.div};
		else if (r.mul)
			r.mul = (int32_t)(r.mul * a.n);
	}
	return r;
}

Val
rule_slice(Build *b, Val x, int ax, int64_t start, int64_t end, int64_t step)
{
	const Type *t = val_type(b->g, x);

	if (start == 0 && end == t->axis[ax].n && step == 1)
		return x;
	return build_op(b, OP_slice, &x, 1, ATTRS(AI(axis, ax), AI(start, start), AI(end, end), AI(step, step)), NULL);
}

Val
rule_concat(Build *b, const Val *v, int n, int ax)
{
	return n == 1 ? v[0] : build_op(b, OP_concat, v, n, ATTRS(AI(axis, ax)), NULL);
}

Val
rule_matmul(Build *b, Val x, Val y, bool ta, bool tb)
{
	return build_op(b, OP_matmul, VALS(x, y), ATTRS(AB(ta, ta), AB(tb, tb)), NULL);
}

Val
rule_zeros(Build *b, const Type *x)
{
	return build_full(b, type_of(x->dtype, x->rank, x->axis), 0);
}

/* ---------------------------------------------------------------- which rule */
static GradRule *
rule_of(OpKind k)
{
	return op_has(k, T_EW) ? grad_ew : op_info[k].grad;
}

bool
grad_passes(const Graph *g, const Op *op, int k)
{
	if (!dtype_is_float(val_type(g, op->in[k])->dtype) || !op->nout ||
	    !dtype_is_float(val_type(g, op->out[0])->dtype))
		return false;
	if (op_has(op->kind, T_EW)) {
		const Expr *e = op_info[op->kind].part ? NULL : op_info[op->kind + 1 + k].expr;

		return e && !(e->kind == EX_NUM && e->num == 0);
	}
	return rule_of(op->kind) && rule_of(op->kind) != grad_none;
}

void
grad_op(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	GradRule *rule = rule_of(op->kind);

	if (!rule)
		bug("%s has no gradient rule", op_info[op->kind].name);
	rule(b, op, dout, need, din);
}

/* ---------------------------------------------------------------- conversion and stop */
void
grad_cast(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	DType t = val_type(b->g, op->in[0])->dtype;

	if (need[0] && dout[0].id && dtype_is_float(t))
		din[0] = build_cast(b, dout[0], t);
}

void
grad_none(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	(void)b, (void)op, (void)dout, (void)need, (void)din;
}
