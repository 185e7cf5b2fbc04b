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

/* Axes of a reshape's two sides, cut where both are: an axis of one side may be several of the other. Those of one
 * element are nowhere. */
typedef struct Cut { int first[2][MAX_RANK], count[2][MAX_RANK]; } Cut;

static bool
is_nowhere(Axis a)
{
	return a.n == 1 && !a.mul;
}

/* How many axes of [from, to) are more than one element. */
static int
axes_of(const Type *t, int from, int to)
{
	int n = 0;

	for (int i = from; i < to; i++)
		n += !is_nowhere(t->axis[i]);
	return n;
}

/* False: several axes of one side are several of the other. */
static bool
cut_axes(const Type *a, const Type *b, Cut *c)
{
	int n = 0;

	memset(c, 0, sizeof *c);
	for (int j = 0, i = 0; j < a->rank || i < b->rank;) {
		int at[2] = {j, i};

		type_block(a, b, &j, &i);
		int end[2] = {j, i}, has[2] = {axes_of(a, at[0], j), axes_of(b, at[1], i)};
		int all = has[0] > has[1] ? has[0] : has[1];

		if (has[0] > 1 && has[1] > 1)
			return false;
		for (int s = 0; s < 2; s++) {
			const Type *t = s ? b : a;
			int next = n;

			for (int k = at[s]; k < end[s]; k++)
				if (!is_nowhere(t->axis[k])) {
					c->first[s][k] = next;
					c->count[s][k] = has[s] == 1 ? all : 1;
					next += c->count[s][k];
				}
		}
		n += all;
	}
	return true;
}

/* The cut axes as they lie in memory; returns how many. */
static int
cut_order(const Type *t, const int *first, const int *count, int *order)
{
	int n = 0;

	for (int k = 0; k < t->rank; k++)
		for (int i = 0; i < count[t->perm[k]]; i++)
			order[n++] = first[t->perm[k]] + i;
	return n;
}

bool
reshape_lies(const Type *from, Type *to)
{
	int order[2 * MAX_RANK], place[2 * MAX_RANK], n, done = 0;
	Cut c;

	if (!cut_axes(from, to, &c))
		return false;
	n = cut_order(from, c.first[0], c.count[0], order);
	for (int i = 0; i < n; i++)
		place[order[i]] = i;
	/* an axis's parts lie behind each other */
	for (int j = 0; j < to->rank; j++)
		for (int i = 1; i < c.count[1][j]; i++)
			if (place[c.first[1][j] + i] != place[c.first[1][j]] + i)
				return false;
	for (int j = 0; j < to->rank; j++)
		if (!c.count[1][j])
			to->perm[done++] = (uint8_t)j;
	for (int i = 0; i < n; i++)
		for (int j = 0; j < to->rank; j++)
			if (c.count[1][j] && c.first[1][j] == order[i])
				to->perm[done++] = (uint8_t)j;
	return done == to->rank;
}

/* Do the elements of a reshape lie in one order on both sides? */
static bool
reshape_moves_nothing(const Type *a, const Type *b)
{
	int order[2][2 * MAX_RANK], n;
	Cut c;

	if (!cut_axes(a, b, &c))
		return false;
	n = cut_order(a, c.first[0], c.count[0], order[0]);
	return n == cut_order(b, c.first[1], c.count[1], order[1]) &&
	       !memcmp(order[0], order[1], (size_t)n * sizeof **order);
}

bool
view_moves_nothing(const Graph *g, const Op *op)
{
	if (!op_has((OpKind)op->kind, T_VIEW) || !op->nin)
		return false;
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->out[0]);

	if (op_has((OpKind)op->kind, T_ALIAS))
		return (type_is_plain(a) && type_is_plain(b)) || type_same(a, b) ||
		       (op->kind == OP_reshape && reshape_moves_nothing(a, b));
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
		gr->prepacked = i && gr->prepacked > v->prepacked ? gr->prepacked : v->prepacked;
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
