/* eval.c: the value of an element, or of W elements, wherever it comes from.
 *
 * In: a value and its logical indices (numbers or lanes).   Out: a cell. A value that stands in memory is loaded; one
 * that the group keeps to itself is computed from its operands at the indices that the operator maps to, recursively.
 * Equal questions at one loop level are answered once (Memo). Masks travel with the question: lanes outside Emit.mask,
 * and everything while Emit.pred is false, may hold any number, but no load leaves its buffer. */
#include "../cpu.h"
#include <string.h>

/* ---------------------------------------------------------------- memo */
void
memo_put(Emit *e, Val v, const Ix *ix, Cell c, int level)
{
	Memo m = {.val = v.id, .mask = e->mask, .pred = e->pred, .rank = val_type(e->g, v)->rank, .cell = c};

	for (int i = 0; i < m.rank; i++)
		m.ix[i] = ix[i];
	vec_push(e->arena, &e->lv[level].memo, m);
}

static bool
memo_find(Emit *e, Val v, const Ix *ix, int rank, Cell *c)
{
	for (int l = e->depth; l >= 0; l--)
		for (uint32_t i = e->lv[l].memo.n; i-- > 0;) {
			const Memo *m = &e->lv[l].memo.at[i];
			int k = 0;

			if (m->val != v.id)
				continue;
			/* what was computed for all lanes serves some of them as well */
			if ((m->mask && m->mask != e->mask) || (m->pred && m->pred != e->pred))
				continue;
			while (k < rank && m->ix[k].s == ix[k].s && m->ix[k].c == ix[k].c && m->ix[k].g == ix[k].g)
				k++;
			if (k == rank) {
				*c = m->cell;
				return true;
			}
		}
	return false;
}

/* ---------------------------------------------------------------- memory */
static Cell
load_value(Emit *e, Val v, const Type *as, const Ix *ix)
{
	V base = buffer(e, group_buffer(e->gc, v.id));

	return load_at(e, base, (DType)as->dtype, offset_of(e, as, ix));
}

/* Is the index a constant, of elements that lie side by side in each lane's row? Then all of them are loaded: those of
 * the innermost axis, and of the axes outside it of which the first is asked for (merged loops number all of them along
 * the last). */
static bool
load_row(Emit *e, Val v, const Type *t, const Ix *ix, Cell *c)
{
	int j = -1;
	int64_t k = 0, n = 1;
	Ix at[MAX_RANK];

	for (int i = t->rank; i-- > 0;) {
		int a = t->perm[i];

		if (is_one(t->axis[a]))
			continue;
		if (t->axis[a].mul || ix[a].c || ix[a].g || (j < 0 ? !is_const(ix[a].s, &k) : !ix_is(&ix[a], 0)))
			break;
		j = j < 0 ? a : j;
		n *= t->axis[a].n;
	}
	if (j < 0 || k < 0 || k >= n || n > 2 * e->W)
		return false;
	memcpy(at, ix, sizeof at);
	at[j] = ix_k(e, 0);
	Cell *row = arena_array(e->arena, Cell, n);
	V base = buffer(e, group_buffer(e->gc, v.id));

	if (!load_columns(e, base, (DType)t->dtype, offset_of(e, t, at), row, (int)n))
		return false;
	for (int64_t i = 0; i < n; i++) {
		at[j] = ix_k(e, i);
		if (i != k)
			memo_put(e, v, at, row[i], e->depth);
	}
	*c = row[k];
	return true;
}

static bool
in_memory(const Emit *e, Val v)
{
	return !e->gc->inside[v.id] || e->gc->ready[v.id];
}

/* ---------------------------------------------------------------- views */
/* Axes of `to` and `from` are matched block by block where their products (and marks) agree; within a block the
 * row-major number is taken apart again. */
static Cell
eval_reshape(Emit *e, Val x, const Type *from, const Type *to, const Ix *ix)
{
	Ix in[MAX_RANK];
	int i = 0, j = 0;

	if (in_memory(e, x) && type_is_plain(from) && type_is_plain(to))
		return load_value(e, x, to, ix);
	while (i < to->rank || j < from->rank) {
		int i0 = i, j0 = j;
		Ix lin = ix_k(e, 0);

		type_block(from, to, &j, &i);
		if (i - i0 == 1 && j - j0 == 1) {
			in[j0] = ix[i0];
			continue;
		}
		for (int k = i0; k < i; k++)
			lin = ix_add(e, ix_mul(e, lin, extent(e, to->axis[k])), ix[k]);
		for (int k = j; k-- > j0;) {
			Axis ax = from->axis[k];
			bool outer = true;

			for (int q = j0; q < k; q++)
				outer &= from->axis[q].n == 1 && !from->axis[q].mul;
			if (ax.n == 1 && !ax.mul) {
				in[k] = ix_k(e, 0);
			} else if (outer) {
				in[k] = lin;
				lin = ix_k(e, 0);
			} else {
				in[k] = ix_rem(e, lin, extent(e, ax));
				lin = ix_div(e, lin, extent(e, ax));
			}
		}
	}
	return lane_eval(e, x, in);
}

static Cell
eval_view(Emit *e, const Op *op, const Ix *ix)
{
	Access a;
	Ix in[MAX_RANK];

	op_access(e->g, op, 0, &a);
	if (a.blocks)
		return eval_reshape(e, op->in[0], val_type(e->g, op->in[0]), val_type(e->g, op->out[0]), ix);
	access_index(e, op, 0, &a, ix, in, NULL);
	return lane_eval(e, op->in[0], in);
}

/* ---------------------------------------------------------------- ops */
static Cell
eval_const(Emit *e, const Op *op, const Ix *ix)
{
	const Type *t = val_type(e->g, op->out[0]);
	DType dt = (DType)t->dtype;

	if (op->kind == OP_full)
		return cell_attr(e, dt, attr_get(op, A_value));
	return ix_cell(
	        e, ix_add_k(e, ix_mul_k(e, ix[attr_int(op, A_axis)], attr_int(op, A_step)), attr_int(op, A_start)), dt);
}

static Cell
eval_random(Emit *e, const Op *op, const Ix *ix)
{
	Type t = *val_type(e->g, op->out[0]);
	Ix none[1];

	for (int i = 0; i < t.rank; i++)
		t.perm[i] = (uint8_t)i;
	Off o = offset_of(e, &t, ix);
	Cell seed = lane_eval(e, op->in[0], none), step = lane_eval(e, op->in[1], none);

	return random_emit(e, op, (Ix){.s = o.s, .c = o.c, .g = o.g}, seed, step, (DType)t.dtype);
}

/* Comparisons take values as their type has them: one that its kernel keeps in f32 would not equal the same number
 * read from memory, say the largest of a row. */
static Cell
eval_ew(Emit *e, const Op *op, const Ix *ix)
{
	const Type *to = val_type(e->g, op->out[0]);
	bool compares = to->dtype == DT_bool;
	Cell in[8]; /* x y z r g at most */

	for (int k = 0; k < op->nin; k++) {
		Access a;
		Ix at[MAX_RANK];

		op_access(e->g, op, k, &a);
		access_index(e, op, k, &a, ix, at, NULL);
		in[k] = lane_eval(e, op->in[k], at);
		if (compares && !in_memory(e, op->in[k]))
			in[k] = cell_rounded(e, in[k]);
	}
	return ew_emit(e, op, in);
}

static Cell
eval_op(Emit *e, const Op *op, int index, const Ix *ix)
{
	OpKind k = (OpKind)op->kind;

	if (op_info[k].red >= 0)
		return eval_reduce(e, op, index, ix);
	if (op_info[k].ew >= 0)
		return eval_ew(e, op, ix);
	if (op_has(k, T_VIEW))
		return eval_view(e, op, ix);
	if (op_has(k, T_CONST))
		return eval_const(e, op, ix);
	if (op_has(k, T_RANDOM))
		return eval_random(e, op, ix);
	if (op_has(k, T_MOVE))
		return eval_move(e, op, ix);
	if (op_has(k, T_CONTRACT))
		return eval_contract(e, op, ix);
	if (op_has(k, T_WINDOW))
		return eval_window(e, op, ix);
	if (k == OP_gather_dx)
		return eval_gather_dx(e, op, ix);
	if (k == OP_cast)
		return cell_cast(e, lane_eval(e, op->in[0], ix), (DType)val_type(e->g, op->out[0])->dtype);
	bug("group %d: %s cannot stay inside a kernel", e->gc->group, op_info[k].name);
}

Cell
lane_eval(Emit *e, Val v, const Ix *given)
{
	const Type *t = val_type(e->g, v);
	Ix ix[MAX_RANK];
	Cell c;

	for (int i = 0; i < t->rank; i++)
		ix[i] = t->axis[i].n == 1 && !t->axis[i].mul ? ix_k(e, 0) : given[i];
	if (memo_find(e, v, ix, t->rank, &c))
		return c;
	if (!in_memory(e, v))
		c = eval_op(e, val_op(e->g, v), val_info(e->g, v)->index, ix);
	else if (!e->rows_in_lanes || !load_row(e, v, t, ix, &c))
		c = load_value(e, v, t, ix);
	if (c.dt != t->dtype)
		bug("%s evaluated as %s", val_info(e->g, v)->name, dtype_info[c.dt].name);
	int level = level_of(e, c.v), q;

	if (e->mask && (q = level_of(e, e->mask)) > level)
		level = q;
	if (e->pred && (q = level_of(e, e->pred)) > level)
		level = q;
	for (int i = 0; i < t->rank; i++)
		if ((q = level_of(e, ix[i].s)) > level || (ix[i].g && (q = level_of(e, ix[i].g)) > level))
			level = q;
	memo_put(e, v, ix, c, level);
	return c;
}
