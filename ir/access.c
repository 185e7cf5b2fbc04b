/* access.c: the rules of access.h, an operator or a family each.
 *
 * In: an op and one of its operands.   Out: how the operand's indices follow from the result's. */
#include "access.h"
#include "rules.h"

static AxisAccess
same(int axis)
{
	return (AxisAccess){.form = ACCESS_same, .axis = (int8_t)axis};
}

/* Every axis of operand k is the result's `by` axes further. */
static bool
shifted(const Graph *g, const Op *op, int k, int by, Access *a)
{
	for (int j = 0; j < val_type(g, op->in[k])->rank; j++)
		a->at[j] = same(j + by);
	return true;
}

/* Operands after the first are not read. */
bool
access_first(const Graph *g, const Op *op, int k, Access *a)
{
	return k == 0 && shifted(g, op, k, 0, a);
}

/* NumPy broadcasting: operand axes align at the right; extent 1 reads index 0. */
bool
access_broadcast(const Graph *g, const Op *op, int k, Access *a)
{
	const Type *from = val_type(g, op->in[k]);

	shifted(g, op, k, val_type(g, op->out[0])->rank - from->rank, a);
	for (int j = 0; j < from->rank; j++)
		if (is_one(from->axis[j]))
			a->at[j].form = ACCESS_zero;
	return true;
}

bool
access_reshape(const Graph *g, const Op *op, int k, Access *a)
{
	(void)g, (void)op, (void)k;
	a->blocks = true;
	return true;
}

bool
access_transpose(const Graph *g, const Op *op, int k, Access *a)
{
	const int64_t *perm = attr_ints(op, A_perm, NULL);

	for (int i = 0; i < val_type(g, op->in[k])->rank; i++)
		a->at[perm[i]] = same(i);
	return true;
}

bool
access_slice(const Graph *g, const Op *op, int k, Access *a)
{
	int64_t axis = attr_int(op, A_axis), start = attr_int(op, A_start);

	shifted(g, op, k, 0, a);
	a->at[axis].form = ACCESS_affine;
	a->at[axis].scale = attr_int(op, A_step);
	a->at[axis].offset = start < 0 ? start + val_type(g, op->in[k])->axis[axis].n : start;
	return true;
}

bool
access_reverse(const Graph *g, const Op *op, int k, Access *a)
{
	shifted(g, op, k, 0, a);
	a->at[attr_int(op, A_axis)].form = ACCESS_back;
	return true;
}

bool
access_interleave(const Graph *g, const Op *op, int k, Access *a)
{
	AxisAccess *at = &a->at[attr_int(op, A_axis)];

	shifted(g, op, k, 0, a);
	at->form = ACCESS_dealt;
	at->scale = attr_int(op, A_groups);
	return true;
}

bool
access_concat(const Graph *g, const Op *op, int k, Access *a)
{
	shifted(g, op, k, 0, a);
	a->at[attr_int(op, A_axis)].form = ACCESS_behind;
	return true;
}

bool
access_pad(const Graph *g, const Op *op, int k, Access *a)
{
	AxisAccess *at = &a->at[attr_int(op, A_axis)];

	shifted(g, op, k, 0, a);
	at->form = ACCESS_spread;
	at->scale = attr_int(op, A_step);
	at->offset = -attr_int(op, A_before);
	a->fill = attr_get(op, A_value);
	return true;
}

bool
access_gather(const Graph *g, const Op *op, int k, Access *a)
{
	AxisAccess *at = &a->at[attr_int(op, A_axis)];

	shifted(g, op, k, 0, a);
	a->index = k == 1;
	if (k == 0)
		*at = (AxisAccess){.form = ACCESS_lookup, .axis = at->axis, .by = 1};
	return true;
}

bool
access_take(const Graph *g, const Op *op, int k, Access *a)
{
	int axis = (int)attr_int(op, A_axis), ids = val_type(g, op->in[1])->rank;

	a->index = k == 1;
	if (k == 1)
		return shifted(g, op, k, axis, a);
	for (int j = 0; j < val_type(g, op->in[0])->rank; j++)
		a->at[j] = same(j < axis ? j : j - 1 + ids);
	a->at[axis] = (AxisAccess){.form = ACCESS_lookup, .axis = -1, .by = 1};
	return true;
}

bool
access_crop(const Graph *g, const Op *op, int k, Access *a)
{
	shifted(g, op, k, 0, a);
	a->index = k > 0;
	for (int d = 2; k == 0 && d < 4; d++)
		a->at[d] = (AxisAccess){.form = ACCESS_moved, .axis = (int8_t)d, .by = (int8_t)(d - 1)};
	return true;
}

bool
op_access(const Graph *g, const Op *op, int k, Access *a)
{
	AccessRule *rule = op_info[op->kind].access;

	*a = (Access){.fill = NULL};
	if (!rule)
		bug("%s has no access rule: a T_VIEW, T_MOVE or T_POINTWISE names one in ops.def",
		    op_info[op->kind].name);
	return rule(g, op, k, a);
}
