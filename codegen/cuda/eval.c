/* eval.c: the value of an element, wherever it comes from.
 *
 * In: a value and its logical indices.   Out: a cell. A value that stands in memory is loaded; one that the group keeps
 * to itself is computed from its operands at the indices that the operator maps to, recursively. Equal questions in one
 * scope are answered once. An operand outside whose range an index falls is not read: the question stands inside an
 * if. */
#include "contract/dnn.h"
#include "contract/gemm.h"
#include "../../ir/access.h"
#include <string.h>

static bool
in_memory(const Cuda *c, Val v)
{
	return !c->inside[v.id] || c->ready[v.id];
}

/* x at ix where valid, else fill. */
Cell
cu_guarded(Cuda *c, Val x, const Ix *ix, const char *valid, Cell fill)
{
	if (!strcmp(valid, "1"))
		return cu_value_at(c, x, ix);
	if (!strcmp(valid, "0"))
		return fill;
	const char *name = cu_fresh(c, 'v');

	cu_line(c, "%s %s = %s;", cu_c_type((DType)fill.dt), name, fill.v);
	Scope s = cu_scope_open(c, "if (%s)", valid);

	cu_line(c, "%s = %s;", name, cu_value_at(c, x, ix).v);
	cu_scope_close(c, s);
	return (Cell){name, fill.dt};
}

/* ---------------------------------------------------------------- views */
/* The row-major number within a block is taken apart again. */
static void
reshape_index(Cuda *c, const Type *from, int j0, int j, const Type *to, int i0, int i, const Ix *ix, Ix *in)
{
	Ix number = "0";

	for (int k = i0; k < i; k++)
		if (!is_one(to->axis[k]))
			number = cu_ix_join(c, number, cu_extent(c, to->axis[k]), ix[k]);
	for (int k = j; k-- > j0;) {
		bool outer = true;

		for (int q = j0; q < k; q++)
			outer &= is_one(from->axis[q]);
		if (is_one(from->axis[k])) {
			in[k] = "0";
			continue;
		}
		Ix e = cu_extent(c, from->axis[k]);

		in[k] = outer ? number : cu_ix_rem(c, number, e);
		number = outer ? "0" : cu_ix_div(c, number, e);
	}
}

static Cell
eval_reshape(Cuda *c, Val x, const Type *from, const Type *to, const Ix *ix)
{
	Ix in[MAX_RANK];
	int i = 0, j = 0;

	if (in_memory(c, x) && type_is_plain(from) && type_is_plain(to) && !cu_input_is_addressed(c, x))
		return cu_load_at(c, to, val_info(c->g, x)->offset, ix);
	while (i < to->rank || j < from->rank) {
		int i0 = i, j0 = j;

		type_block(from, to, &j, &i);
		if (i - i0 == 1 && j - j0 == 1)
			in[j0] = ix[i0];
		else
			reshape_index(c, from, j0, j, to, i0, i, ix, in);
	}
	return cu_value_at(c, x, in);
}

/* ---------------------------------------------------------------- indices by access rules */
static const char *operand_index(Cuda *c, const Op *op, int k, const Access *a, const Ix *ix, Ix *in);

/* The element of an index operand that stands at ix of the result. */
static Ix
looked_up(Cuda *c, const Op *op, int k, const Ix *ix)
{
	Access a;
	Ix in[MAX_RANK];

	op_access(c->g, op, k, &a);
	operand_index(c, op, k, &a, ix, in);
	const char *name = cu_fresh(c, 'i');
	Cell x = cu_value_at(c, op->in[k], in);

	/* what an index of this kernel cannot hold is outside any tensor */
	cu_line(c, "const %s %s = %s;", c->it, name,
	        x.dt == DT_i64 && strcmp(c->it, "int") == 0 ? arena_printf(c->a, "index_i64(%s)", x.v) : x.v);
	return name;
}

/* The sum of the extents of the operands before k. */
static Ix
extents_before(Cuda *c, const Op *op, int k, int axis)
{
	Ix start = "0";

	for (int q = 0; q < k; q++)
		start = cu_ix_add(c, start, cu_extent(c, val_type(c->g, op->in[q])->axis[axis]));
	return start;
}

/* Of ACCESS_spread: the place before it is divided; *valid: whether there is an element. */
static Ix
spread_index(Cuda *c, const AxisAccess *at, Axis axis, Ix i, const char **valid)
{
	Ix ext = cu_extent(c, axis), t = cu_ix_add(c, i, cu_ix_k(c, at->offset)), step = cu_ix_k(c, at->scale);

	*valid = cu_in_range(c, t, at->scale == 1 ? ext : cu_ix_mul(c, ext, step));
	if (at->scale == 1)
		return t;
	*valid = cu_both(c, *valid, arena_printf(c->a, "%s == 0", cu_ix_rem(c, t, step)));
	return cu_ix_div(c, t, step);
}

/* The indices in operand k of what stands at ix of the result (no blocks), and a condition: they are the operand's. */
static const char *
operand_index(Cuda *c, const Op *op, int k, const Access *a, const Ix *ix, Ix *in)
{
	const Type *from = val_type(c->g, op->in[k]);
	const char *all = "1", *valid;
	Ix before;

	for (int j = 0; j < from->rank; j++) {
		const AxisAccess *at = &a->at[j];

		switch (at->form) {
		case ACCESS_zero: in[j] = "0"; continue;
		case ACCESS_same: in[j] = ix[at->axis]; continue;
		case ACCESS_affine:
			in[j] = cu_ix_add(c, cu_ix_mul(c, ix[at->axis], cu_ix_k(c, at->scale)), cu_ix_k(c, at->offset));
			continue;
		case ACCESS_back:
			in[j] = cu_ix_sub(c, cu_ix_sub(c, cu_extent(c, from->axis[j]), "1"), ix[at->axis]);
			continue;
		case ACCESS_dealt:
			in[j] = cu_ix_add(c, cu_ix_mul(c, cu_ix_rem(c, ix[at->axis], cu_ix_k(c, at->scale)),
			                               cu_ix_k(c, from->axis[j].n / at->scale)),
			                  cu_ix_div(c, ix[at->axis], cu_ix_k(c, at->scale)));
			continue;
		case ACCESS_spread:
			in[j] = spread_index(c, at, from->axis[j], ix[at->axis], &valid);
			all = cu_both(c, all, valid);
			continue;
		case ACCESS_behind:
			before = extents_before(c, op, k, j);
			in[j] = cu_ix_sub(c, ix[at->axis], before);
			break;
		case ACCESS_lookup: in[j] = looked_up(c, op, at->by, ix); break;
		case ACCESS_moved: in[j] = cu_ix_add(c, ix[at->axis], looked_up(c, op, at->by, ix)); break;
		}
		all = cu_both(c, all, cu_in_range(c, in[j], cu_extent(c, from->axis[j])));
	}
	return all;
}

/* The same of an operand that is read wherever the result is. */
static void
operand_at(Cuda *c, const Op *op, int k, const Ix *ix, Ix *in)
{
	Access a;

	op_access(c->g, op, k, &a);
	operand_index(c, op, k, &a, ix, in);
}

static Cell
eval_view(Cuda *c, const Op *op, const Ix *ix)
{
	Access a;
	Ix in[MAX_RANK];

	op_access(c->g, op, 0, &a);
	if (a.blocks)
		return eval_reshape(c, op->in[0], val_type(c->g, op->in[0]), val_type(c->g, op->out[0]), ix);
	operand_index(c, op, 0, &a, ix, in);
	return cu_value_at(c, op->in[0], in);
}

/* One operand of several, whichever the index falls into. */
static Cell
eval_one_of(Cuda *c, const Op *op, const Ix *ix)
{
	DType dt = (DType)val_type(c->g, op->out[0])->dtype;
	const char *name = cu_fresh(c, 'v');

	cu_line(c, "%s %s = %s;", cu_c_type(dt), name, cu_cell_number(c, dt, 0).v);
	for (int k = 0; k < op->nin; k++) {
		Access a;
		Ix in[MAX_RANK];

		op_access(c->g, op, k, &a);
		Scope s = cu_scope_open(c, "if (%s)", operand_index(c, op, k, &a, ix, in));

		cu_line(c, "%s = %s;", name, cu_value_at(c, op->in[k], in).v);
		cu_scope_close(c, s);
	}
	return (Cell){name, (uint8_t)dt};
}

static Cell
eval_move(Cuda *c, const Op *op, const Ix *ix)
{
	DType dt = (DType)val_type(c->g, op->in[0])->dtype;
	Access a;
	Ix in[MAX_RANK];

	if (op_info[op->kind].nin < 0)
		return eval_one_of(c, op, ix);
	op_access(c->g, op, 0, &a);
	const char *valid = operand_index(c, op, 0, &a, ix, in);

	return cu_guarded(c, op->in[0], in, valid, a.fill ? cu_cell_attr(c, dt, a.fill) : cu_cell_number(c, dt, 0));
}

/* ---------------------------------------------------------------- ops */
static Cell
eval_const(Cuda *c, const Op *op, const Ix *ix)
{
	DType dt = (DType)val_type(c->g, op->out[0])->dtype;

	if (op->kind == OP_full)
		return cu_cell_attr(c, dt, attr_get(op, A_value));
	Ix i = ix[attr_int(op, A_axis)];
	Cell x = {arena_printf(c->a, "((long long)%s * %lldll + %lldll)", i, (long long)attr_int(op, A_step),
	                       (long long)attr_int(op, A_start)),
	          DT_i64};

	return cu_cell_let(c, cu_cell_cast(c, x, dt).v, dt);
}

static Cell
eval_random(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *t = val_type(c->g, op->out[0]);
	Ix number = "0", none[1];

	for (int i = 0; i < t->rank; i++)
		number = cu_ix_add(c, cu_ix_mul(c, number, cu_extent(c, t->axis[i])), ix[i]);
	Cell seed = cu_value_at(c, op->in[0], none), step = cu_value_at(c, op->in[1], none);

	/* of a shard: see `random` in ir/ops.def */
	if (attr_int(op, A_per))
		number = arena_printf(c->a, "((long long)%s + ((long long)%s >> 32) * %lldll)", number, step.v,
		                      (long long)attr_int(op, A_per));
	return cu_cell_random(c, op, number, seed, step);
}

/* A choice between a value and the same value reversed: chosen is where it is read, so that it is read, or made, once.
 * False: it is none. */
static bool
eval_place(Cuda *c, const Op *op, const Ix *ix, Cell *r)
{
	const Type *to = val_type(c->g, op->out[0]);

	for (int k = 1; op->kind == OP_where && k < 3; k++) {
		const Op *view = in_memory(c, op->in[k]) ? NULL : val_op(c->g, op->in[k]);
		Val v = op->in[3 - k];
		Ix at[MAX_RANK], in[MAX_RANK];

		if (!view || view->kind != OP_reverse || view->in[0].id != v.id ||
		    !type_same_shape(val_type(c->g, v), to))
			continue;
		operand_at(c, op, 0, ix, at);
		Cell chosen = cu_value_at(c, op->in[0], at);

		operand_at(c, view, 0, ix, in);
		for (int i = 0; i < to->rank; i++)
			if (strcmp(in[i], ix[i])) {
				Ix other = in[i];

				in[i] = cu_fresh(c, 'i');
				cu_line(c, "const %s %s = %s ? %s : %s;", c->it, in[i], chosen.v,
				        k == 1 ? other : ix[i], k == 1 ? ix[i] : other);
			}
		*r = cu_value_at(c, v, in);
		return true;
	}
	return false;
}

static Cell
eval_ew(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *to = val_type(c->g, op->out[0]);
	Cell in[8]; /* x y z r g at most */

	if (eval_place(c, op, ix, &in[0]))
		return in[0];
	for (int k = 0; k < op->nin; k++) {
		Ix at[MAX_RANK];

		operand_at(c, op, k, ix, at);
		in[k] = cu_value_at(c, op->in[k], at);
		/* comparisons take values as their type has them */
		if (to->dtype == DT_bool && !in_memory(c, op->in[k]))
			in[k] = cu_cell_rounded(c, in[k]);
	}
	return cu_cell_ew(c, op, in);
}

static Cell
eval_op(Cuda *c, const Op *op, int index, const Ix *ix)
{
	OpKind k = (OpKind)op->kind;

	if (op_info[k].red >= 0)
		return cu_eval_reduce(c, op, index, ix);
	if (op_info[k].ew >= 0)
		return eval_ew(c, op, ix);
	if (op_has(k, T_VIEW))
		return eval_view(c, op, ix);
	if (op_has(k, T_CONST))
		return eval_const(c, op, ix);
	if (op_has(k, T_RANDOM))
		return eval_random(c, op, ix);
	if (op_has(k, T_MOVE))
		return eval_move(c, op, ix);
	if (op_has(k, T_CONTRACT))
		return (c->parts == op ? cu_dnn_value : cu_eval_contract)(c, op, ix);
	if (op_has(k, T_WINDOW))
		return (Cell){cu_window_values(c, op, ix, 1), val_type(c->g, op->out[0])->dtype};
	if (k == OP_cast) {
		Cell x = cu_value_at(c, op->in[0], ix);
		DType to = (DType)val_type(c->g, op->out[0])->dtype;

		return cu_cell_let(c, cu_cell_cast(c, x, to).v, to);
	}
	bug("target cuda, group %d: %s cannot stay inside a kernel", c->group, op_info[k].name);
}

Cell
cu_eval_value(Cuda *c, Val v, const Ix *given)
{
	const Type *t = val_type(c->g, v);
	Ix ix[MAX_RANK];
	Cell x;

	for (int i = 0; i < t->rank; i++)
		ix[i] = is_one(t->axis[i]) ? "0" : given[i];
	if (cu_memo_find(c, v, ix, t->rank, &x))
		return x;
	if (in_memory(c, v) && cu_input_is_addressed(c, v))
		x = cu_input_at(c, v, ix);
	else if (in_memory(c, v))
		x = cu_load_at(c, t, val_info(c->g, v)->offset, ix);
	else
		x = eval_op(c, val_op(c->g, v), val_info(c->g, v)->index, ix);
	if (x.dt != t->dtype)
		bug("%s evaluated as %s", val_info(c->g, v)->name, dtype_info[x.dt].name);
	cu_memo_put(c, v, ix, x);
	return x;
}
