/* grad_ew.c: the gradient of every elementwise operator, read from its line in ew.def.
 *
 * In: an op NAME of ew.def.  Out: NAME.dx, .dy, .dz on the operands their expressions use (op_info[].operands), summed
 * to the input's shape where the input was broadcast. `g` alone gives the incoming gradient itself and `-g` a neg; a
 * product `g * y` becomes a mul, so that common operators meet the folder and the other operators' rules in their plain
 * form. NONE and ZERO columns give no gradient. */
#include "grad.h"
#include <string.h>

static bool
is_var(const Expr *e, char v)
{
	return e->kind == EX_VAR && e->var == v;
}

static Val
operand_named(const Op *op, char letter, Val g)
{
	switch (letter) {
	case 'g': return g;
	case 'r': return op->out[0];
	default: return op->in[letter - 'x'];
	}
}

static Val
derivative(Build *b, const Op *op, const OpInfo *d, OpKind kind, Val g)
{
	Val in[5];
	AttrArg attrs[RULE_ATTRS];
	const Expr *e = d->expr;
	int n = 0;

	if (is_var(e, 'g'))
		return g;
	if (e->kind == EX_NEG && is_var(e->a, 'g'))
		return build(b, OP_neg, g);
	if ((e->kind == EX_MUL || e->kind == EX_DIV) && is_var(e->a, 'g') && e->b->kind == EX_VAR &&
	    strchr("xyzr", e->b->var))
		return build(b, e->kind == EX_MUL ? OP_mul : OP_div, g, operand_named(op, e->b->var, g));
	for (const char *l = d->operands; *l; l++)
		in[n++] = operand_named(op, *l, g);
	rule_attrs(op, attrs);
	return build_op(b, kind, in, n, attrs, NULL);
}

void
grad_ew(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	for (int k = 0; k < op->nin; k++) {
		OpKind kind = (OpKind)(op->kind + 1 + k);
		const OpInfo *d = &op_info[kind];
		Type in = *val_type(b->g, op->in[k]);

		if (!need[k] || !dout[0].id || !d->expr || !dtype_is_float(in.dtype))
			continue;
		if (d->expr->kind == EX_NUM && d->expr->num == 0)
			continue;
		din[k] = build_sum_to(b, derivative(b, op, d, kind, dout[0]), &in);
	}
}
