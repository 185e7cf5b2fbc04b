/* eval.c: the value of an element, wherever it comes from.
 *
 * In: a value and its logical indices.   Out: a cell. A value that stands in memory is loaded; one that the group keeps
 * to itself is computed from its operands at the indices that the operator maps to, recursively. Equal questions in one
 * scope are answered once. An operand outside whose range an index falls is not read: the question stands inside an
 * if. */
#include "contract/dnn.h"
#include "contract/gemm.h"
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
static bool
is_one(Axis a)
{
	return a.n == 1 && !a.mul;
}

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

/* Operand axes align at the right; extent 1 reads index 0. */
static void
broadcast_index(const Type *in, int out_rank, const Ix *ix, Ix *r)
{
	for (int j = 0; j < in->rank; j++)
		r[j] = is_one(in->axis[j]) ? "0" : ix[j + out_rank - in->rank];
}

/* Which element of its operand is element ix of a view that is no reshape. */
static void
view_index(Cuda *c, const Op *op, const Ix *ix, Ix *in)
{
	const Type *from = val_type(c->g, op->in[0]), *to = val_type(c->g, op->out[0]);

	memcpy(in, ix, sizeof(Ix) * to->rank);
	switch (op->kind) {
	case OP_stop_gradient:
	case OP_after:
		break;
	case OP_transpose: {
		const int64_t *perm = attr_ints(op, A_perm, NULL);

		for (int i = 0; i < to->rank; i++)
			in[perm[i]] = ix[i];
		break;
	}
	case OP_expand:
		broadcast_index(from, to->rank, ix, in);
		break;
	case OP_slice: {
		int64_t a = attr_int(op, A_axis), start = attr_int(op, A_start);

		if (start < 0)
			start += from->axis[a].n;
		in[a] = cu_ix_add(c, cu_ix_mul(c, ix[a], cu_ix_k(c, attr_int(op, A_step))), cu_ix_k(c, start));
		break;
	}
	case OP_reverse: {
		int64_t a = attr_int(op, A_axis);

		in[a] = cu_ix_sub(c, cu_ix_sub(c, cu_extent(c, from->axis[a]), "1"), ix[a]);
		break;
	}
	default:
		bug("target cuda has no code for %s: a T_VIEW has a case in view_index", op_info[op->kind].name);
	}
}

static Cell
eval_view(Cuda *c, const Op *op, const Ix *ix)
{
	Ix in[MAX_RANK];

	if (op->kind == OP_reshape)
		return eval_reshape(c, op->in[0], val_type(c->g, op->in[0]), val_type(c->g, op->out[0]), ix);
	view_index(c, op, ix, in);
	return cu_value_at(c, op->in[0], in);
}

/* ---------------------------------------------------------------- moves */
static Cell
eval_concat(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *to = val_type(c->g, op->out[0]);
	DType dt = (DType)to->dtype;
	int64_t a = attr_int(op, A_axis);
	const char *name = cu_fresh(c, 'v');
	Ix start = "0", in[MAX_RANK];

	cu_line(c, "%s %s = %s;", cu_c_type(dt), name, cu_cell_number(c, dt, 0).v);
	memcpy(in, ix, sizeof(Ix) * to->rank);
	for (int k = 0; k < op->nin; k++) {
		Ix ext = cu_extent(c, val_type(c->g, op->in[k])->axis[a]);

		in[a] = cu_ix_sub(c, ix[a], start);
		Scope s = cu_scope_open(c, "if (%s)", cu_in_range(c, in[a], ext));

		cu_line(c, "%s = %s;", name, cu_value_at(c, op->in[k], in).v);
		cu_scope_close(c, s);
		start = cu_ix_add(c, start, ext);
	}
	return (Cell){name, (uint8_t)dt};
}

static Cell
eval_pad(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *from = val_type(c->g, op->in[0]);
	int64_t a = attr_int(op, A_axis), step = attr_int(op, A_step);
	Cell fill = cu_cell_attr(c, (DType)from->dtype, attr_get(op, A_value));
	Ix ext = cu_extent(c, from->axis[a]), in[MAX_RANK],
	   t = cu_ix_add(c, ix[a], cu_ix_k(c, -attr_int(op, A_before)));
	const char *valid = cu_in_range(c, t, step == 1 ? ext : cu_ix_mul(c, ext, cu_ix_k(c, step)));

	memcpy(in, ix, sizeof(Ix) * from->rank);
	in[a] = t;
	if (step > 1) {
		valid = cu_both(c, valid, arena_printf(c->a, "%s == 0", cu_ix_rem(c, t, cu_ix_k(c, step))));
		in[a] = cu_ix_div(c, t, cu_ix_k(c, step));
	}
	return cu_guarded(c, op->in[0], in, valid, fill);
}

static Ix
index_cell(Cuda *c, Val ids, const Ix *ix)
{
	const char *name = cu_fresh(c, 'i');
	Cell x = cu_value_at(c, ids, ix);

	/* what an index of this kernel cannot hold is outside any tensor */
	cu_line(c, "const %s %s = %s;", c->it, name,
	        x.dt == DT_i64 && strcmp(c->it, "int") == 0 ? arena_printf(c->a, "index_i64(%s)", x.v) : x.v);
	return name;
}

static Cell
eval_take(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *from = val_type(c->g, op->in[0]), *ids = val_type(c->g, op->in[1]);
	int a = (int)attr_int(op, A_axis);
	Ix in[MAX_RANK];

	for (int i = 0; i < a; i++)
		in[i] = ix[i];
	in[a] = index_cell(c, op->in[1], ix + a);
	for (int i = a + 1; i < from->rank; i++)
		in[i] = ix[i - 1 + ids->rank];
	return cu_guarded(c, op->in[0], in, cu_in_range(c, in[a], cu_extent(c, from->axis[a])),
	                  cu_cell_number(c, (DType)from->dtype, 0));
}

static Cell
eval_move(Cuda *c, const Op *op, const Ix *ix)
{
	const Type *from = val_type(c->g, op->in[0]);
	Cell zero = cu_cell_number(c, (DType)from->dtype, 0);
	Ix in[MAX_RANK];

	switch (op->kind) {
	case OP_concat: return eval_concat(c, op, ix);
	case OP_pad: return eval_pad(c, op, ix);
	case OP_take: return eval_take(c, op, ix);
	case OP_gather: {
		int64_t a = attr_int(op, A_axis);

		memcpy(in, ix, sizeof(Ix) * from->rank);
		in[a] = index_cell(c, op->in[1], ix);
		return cu_guarded(c, op->in[0], in, cu_in_range(c, in[a], cu_extent(c, from->axis[a])), zero);
	}
	case OP_crop: {
		const char *ok = "1";

		memcpy(in, ix, sizeof(Ix) * 4);
		for (int d = 2; d < 4; d++) {
			in[d] = cu_ix_add(c, ix[d], index_cell(c, op->in[d - 1], ix));
			ok = cu_both(c, ok, cu_in_range(c, in[d], cu_extent(c, from->axis[d])));
		}
		return cu_guarded(c, op->in[0], in, ok, zero);
	}
	default: bug("target cuda has no code for %s: a T_MOVE has a case in eval_move", op_info[op->kind].name);
	}
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
		broadcast_index(val_type(c->g, op->in[0]), to->rank, ix, at);
		Cell chosen = cu_value_at(c, op->in[0], at);

		view_index(c, view, ix, in);
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

		broadcast_index(val_type(c->g, op->in[k]), to->rank, ix, at);
		in[k] = cu_value_at(c, op->in[k], at);
		/* comparisons take numbers as their type has them */
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
