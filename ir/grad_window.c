/* grad_window.c: gradients of pooling. In: the pool.  Out: max_pool2d.dx (needs x: the first maximum of a window takes
 * the gradient) or avg_pool2d.dx (needs the gradient alone), in the input's shape. */
#include "grad.h"
#include "rules.h"

void
grad_max_pool2d(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Type x = *val_type(b->g, op->in[0]);

	rule_attrs(op, attrs);
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_max_pool2d_dx, VALS(op->in[0], dout[0]), attrs, &x);
}

void
grad_avg_pool2d(Build *b, const Op *op, const Val *dout, const bool *need, Val *din)
{
	AttrArg attrs[RULE_ATTRS];
	Type x = *val_type(b->g, op->in[0]);

	rule_attrs(op, attrs);
	if (need[0] && dout[0].id)
		din[0] = build_op(b, OP_avg_pool2d_dx, dout, 1, attrs, &x);
}
