/* ask.c: questions about planned graphs that more than one target asks.
 *
 * In: a module, read only.   Out: answers; nothing is kept. */
#include "ir.h"
#include <string.h>

bool
val_is_stored(const Graph *g, Val v)
{
	const ValInfo *i = val_info(g, v);
	const Op *op = val_op(g, v);

	if (i->offset < 0 || !op)
		return false;
	/* a view in the place of its operand is there already */
	return !(op_has((OpKind)op->kind, T_VIEW) && op->nin && val_info(g, op->in[0])->offset == i->offset);
}

bool
view_moves_nothing(const Graph *g, const Op *op)
{
	if (!op_has((OpKind)op->kind, T_VIEW) || !op->nin)
		return false;
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->out[0]);

	if (op_has((OpKind)op->kind, T_ALIAS))
		return (type_is_plain(a) && type_is_plain(b)) || type_same(a, b);
	if (op->kind != OP_transpose)
		return false;
	const int64_t *perm = attr_ints(op, A_perm, NULL);

	for (int k = 0; k < a->rank; k++)
		if (a->perm[k] != perm[b->perm[k]])
			return false;
	return true;
}

void
group_room(Group *gr)
{
	for (uint32_t i = 0; i < gr->variant.n; i++) {
		const GroupVariant *v = &gr->variant.at[i];

		gr->workspace = i && gr->workspace > v->workspace ? gr->workspace : v->workspace;
		gr->kept = i && gr->kept > v->kept ? gr->kept : v->kept;
	}
}

bool
group_is_map(const Graph *g, int group)
{
	const Type *shape = NULL;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];
		OpKind k = (OpKind)op->kind;

		if (op->dead || op->group != group)
			continue;
		if (!op_has(k, T_POINTWISE | T_CONST | T_RANDOM) && k != OP_store && k != OP_load &&
		    k != OP_stop_gradient && k != OP_expand)
			return false;
		if (!op->nout || k == OP_load)
			continue;
		const Type *t = val_type(g, op->out[0]);

		if (type_elements(t) == 1 && !type_marked(t))
			continue;
		if (shape && !type_same_shape(shape, t))
			return false;
		shape = t;
	}
	return true;
}

Axis
check_limit(const Op *check)
{
	return (Axis){.n = attr_int(check, A_limit), .mul = (int32_t)attr_int(check, A_mul),
	              .div = (int32_t)attr_int(check, A_div)};
}

int64_t
check_number(const Module *m, const Op *which)
{
	int64_t n = 0;

	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->op.n; k++) {
			const Op *op = &m->graph.at[i]->op.at[k];

			if (op == which)
				return n;
			n += op->kind == OP_check && !op->dead;
		}
	return n;
}
