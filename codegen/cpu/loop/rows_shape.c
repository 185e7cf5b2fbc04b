/* rows_shape.c: what reductions need to know of shapes: kept and reduced axes, pieces, bytes of partial states.
 *
 * In: types and masks of reduced axes.   Out: numbers that select (workspace) and rows.c (kernels) must agree on, so
 * they come from full-batch shapes alone. */
#include "../cpu.h"
#include "red.h"
#include <string.h>

uint32_t
red_mask(const Graph *g, const Op *op)
{
	int n;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	uint32_t m = 0;

	for (int i = 0; i < n; i++)
		m |= 1u << axes[i];
	(void)g;
	return m;
}

/* Pieces make the order of sums, and fuse asks for them before there is a plan, so they follow from shapes alone:
 * elements of a piece at least, units of kept lanes that are tasks enough without, tasks at most. */
enum { PIECE = 32768, UNITS = 16, MOST = 64 };

int64_t
red_units(const Type *t, uint32_t reduced)
{
	int64_t kept = 1, lane = 1;

	for (int i = 0; i < t->rank; i++) {
		int a = t->perm[i];
		int64_t n = t->axis[a].n;
		bool red = reduced >> a & 1;

		if (n == 1)
			continue;
		kept *= red ? 1 : n;
		lane = red ? 1 : n;
	}
	return lane > 1 ? kept / lane * ((lane + 63) / 64) : kept;
}

int64_t
red_pieces(const Type *t, uint32_t reduced)
{
	int64_t total = type_elements(t), first = 1, units = red_units(t, reduced), want;
	bool leading = true;

	for (int i = 0; i < t->rank; i++) {
		int a = t->perm[i];
		int64_t n = t->axis[a].n;
		bool red = reduced >> a & 1;

		if (n == 1)
			continue;
		if (red && leading)
			first *= n;
		else if (red || first > 1)
			leading = false;
	}
	if (total < 2 * PIECE || units >= UNITS)
		return 1;
	want = total / PIECE;
	if (want > (MOST + units - 1) / units)
		want = (MOST + units - 1) / units;
	if (want > first)
		want = first;
	return want < 2 ? 1 : want;
}

int64_t
kept_elements(const Type *t, uint32_t reduced)
{
	int64_t n = 1;

	for (int j = 0; j < t->rank; j++)
		if (!(reduced >> j & 1))
			n *= t->axis[j].n;
	return n;
}

int
red_states(const Op *op)
{
	return red_indexes(op) || red_of(op)->then != RED_ONCE ? 2 : 1;
}

int64_t
states_bytes(const Type *t, uint32_t mask, const Op *op)
{
	int64_t n = red_pieces(t, mask);

	return n > 1 ? align64(n * red_states(op) * kept_elements(t, mask) * 8) : 0;
}

/* Partial states and, in case nobody planned a place for them, the results. */
int64_t
red_workspace(const Graph *g, const Op *op)
{
	const Type *t = val_type(g, op->in[0]);
	uint32_t mask = red_mask(g, op);

	return states_bytes(t, mask, op) + op->nout * align64(kept_elements(t, mask) * 8);
}

/* Does v have exactly the kept axes of t (ones aside)? map: axis of v -> axis of t. */
bool
kept_map(const Type *t, uint32_t mask, const Type *v, int8_t *map)
{
	int i = 0;

	memset(map, -1, MAX_RANK);
	for (int j = 0; j < v->rank; j++) {
		if (is_one(v->axis[j]))
			continue;
		while (i < t->rank && (mask >> i & 1 || is_one(t->axis[i])))
			i++;
		if (i == t->rank || !axis_same(t->axis[i], v->axis[j]))
			return false;
		map[j] = (int8_t)i++;
	}
	while (i < t->rank && (mask >> i & 1 || is_one(t->axis[i])))
		i++;
	return i == t->rank;
}

void
mapped_index(Emit *e, const Type *v, const int8_t *map, const Ix *ix, Ix *r)
{
	for (int j = 0; j < v->rank; j++)
		r[j] = map[j] < 0 ? ix_k(e, 0) : ix[map[j]];
}
