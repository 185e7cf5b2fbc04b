/* eval_sum.c: contractions, one result element at a time.
 *
 * In: an op and indices of its result.   Out: a cell: a variable that loops over the summed axes have filled.
 * Gradients are gathered: an element asks every tap of a filter that holds it, so no two threads write one element.
 * Sums are one chain of FMAs in f32 (f64 of f64), in the order of the loops. */
#include "cuda.h"
#include <string.h>

typedef struct Sum { const Op *op; const Ix *ix; Ix at[3]; const char *acc; DType dt; } Sum;

static void
add_product(Cuda *c, const Sum *s, Val x, const Ix *xi, Val y, const Ix *yi)
{
	Cell a = cu_value_at(c, x, xi), b = cu_value_at(c, y, yi);

	cu_line(c, "%s = %s;", s->acc,
	        cu_cell_fma(c, cu_cell_cast(c, a, s->dt), cu_cell_cast(c, b, s->dt), (Cell){s->acc, (uint8_t)s->dt}).v);
}

/* The same where the plane of operand 0 holds rows xi[2] and xi[3]. */
static void
add_inside(Cuda *c, const Sum *s, const char *valid, const Ix *xi, const Ix *yi)
{
	Scope in = cu_scope_open(c, "if (%s)", cu_in_plane(c, val_type(c->g, s->op->in[0]), xi, valid));

	add_product(c, s, s->op->in[0], xi, s->op->in[1], yi);
	cu_scope_close(c, in);
}

static Ix
in_row(Cuda *c, const Window *g, int d, Ix o, Ix k)
{
	return cu_row_in(c, o, g->stride[d], k, g->dilation[d], g->pad[d]);
}

/* Channel `local` of its group among `each` of a group, in the group of output channel o. */
static Ix
in_group(Cuda *c, const Conv *g, Ix o, Ix local, int64_t each)
{
	return g->groups > 1 ? cu_ix_add(c, cu_ix_mul(c, cu_ix_div(c, o, cu_ix_k(c, g->out)), cu_ix_k(c, each)), local)
	                     : local;
}

static void
conv_term(Cuda *c, const Sum *s)
{
	const Type *w = val_type(c->g, s->op->in[1]);
	Conv g = conv_of(c->g, s->op);
	Ix cin = in_group(c, &g, s->ix[1], s->at[0], w->axis[1].n);
	Ix x[4] = {s->ix[0], cin, in_row(c, &g.at, 0, s->ix[2], s->at[1]), in_row(c, &g.at, 1, s->ix[3], s->at[2])};
	Ix k[4] = {s->ix[1], s->at[0], s->at[1], s->at[2]};

	add_inside(c, s, "1", x, k);
}

static Ix
out_row(Cuda *c, const Window *g, int d, Ix i, Ix k, const char **valid)
{
	return cu_row_out(c, i, g->stride[d], k, g->dilation[d], g->pad[d], valid);
}

static void
conv_dx_term(Cuda *c, const Sum *s)
{
	const Type *w = val_type(c->g, s->op->in[1]);
	Conv g = conv_of(c->g, s->op);
	Ix o = s->at[0], ci = s->ix[1];
	const char *valid = "1";

	if (g.groups > 1) {
		o = cu_ix_add(c,
		              cu_ix_mul(c, cu_ix_div(c, s->ix[1], cu_ix_k(c, w->axis[1].n)),
		                        cu_ix_k(c, g.out)),
		              s->at[0]);
		ci = cu_ix_rem(c, s->ix[1], cu_ix_k(c, w->axis[1].n));
	}
	Ix h = out_row(c, &g.at, 0, s->ix[2], s->at[1], &valid), v = out_row(c, &g.at, 1, s->ix[3], s->at[2], &valid);
	Ix at[4] = {s->ix[0], o, h, v}, k[4] = {o, ci, s->at[1], s->at[2]};

	add_inside(c, s, valid, at, k);
}

static void
conv_dw_term(Cuda *c, const Sum *s)
{
	const Type *w = val_type(c->g, s->op->out[0]);
	Conv g = conv_of(c->g, s->op);
	Ix ci = in_group(c, &g, s->ix[0], s->ix[1], w->axis[1].n);
	Ix x[4] = {s->at[0], ci, in_row(c, &g.at, 0, s->at[1], s->ix[2]), in_row(c, &g.at, 1, s->at[2], s->ix[3])};
	Ix o[4] = {s->at[0], s->ix[0], s->at[1], s->at[2]};

	add_inside(c, s, "1", x, o);
}

static void
matmul_term(Cuda *c, const Sum *s)
{
	int rank = val_type(c->g, s->op->out[0])->rank;
	Ix at[2][MAX_RANK];

	for (int k = 0; k < 2; k++) {
		const Type *t = val_type(c->g, s->op->in[k]);
		bool swap = attr_bool(s->op, k ? A_tb : A_ta);
		Ix row = k ? s->at[0] : s->ix[rank - 2], col = k ? s->ix[rank - 1] : s->at[0];

		for (int j = 0; j < t->rank - 2; j++)
			at[k][j] = s->ix[j + rank - t->rank]; /* an extent of 1 is read at 0 */
		at[k][t->rank - 2] = swap ? col : row;
		at[k][t->rank - 1] = swap ? row : col;
	}
	add_product(c, s, s->op->in[0], at[0], s->op->in[1], at[1]);
}

/* Extents of the summed axes, outermost first. */
static int
summed(Cuda *c, const Op *op, Ix ext[3])
{
	const Type *a = val_type(c->g, op->in[0]), *b = val_type(c->g, op->in[1]);

	if (op->kind == OP_matmul) {
		ext[0] = cu_extent(c, a->axis[attr_bool(op, A_ta) ? a->rank - 2 : a->rank - 1]);
		return 1;
	}
	bool dw = op->kind == OP_conv2d_dw;

	ext[0] = dw ? cu_extent(c, b->axis[0])
	            : cu_ix_k(c, op->kind == OP_conv2d ? b->axis[1].n : b->axis[0].n / attr_int(op, A_groups));
	ext[1] = cu_extent(c, b->axis[2]);
	ext[2] = cu_extent(c, b->axis[3]);
	return 3;
}

Cell
cu_eval_contract(Cuda *c, const Op *op, const Ix *ix)
{
	DType to = (DType)val_type(c->g, op->out[0])->dtype;
	Sum s = {.op = op, .ix = ix, .acc = cu_fresh(c, 'v'), .dt = to != DT_f64 && dtype_is_float(to) ? DT_f32 : to};
	Ix ext[3];
	Scope scope[3];
	Cell pieces;

	if (cu_depthwise_pieces(c, op, ix, &pieces))
		return pieces;
	int n = summed(c, op, ext);

	cu_line(c, "%s %s = 0;", cu_c_type(s.dt), s.acc);
	for (int i = 0; i < n; i++)
		scope[i] = cu_loop_open(c, ext[i], &s.at[i]);
	switch (op->kind) {
	case OP_matmul: matmul_term(c, &s); break;
	case OP_conv2d: conv_term(c, &s); break;
	case OP_conv2d_dx: conv_dx_term(c, &s); break;
	case OP_conv2d_dw: conv_dw_term(c, &s); break;
	default:
		bug("target cuda has no code for %s: a T_CONTRACT has a case in eval_contract", op_info[op->kind].name);
	}
	while (n-- > 0)
		cu_scope_close(c, scope[n]);
	return cu_cell_cast(c, (Cell){s.acc, (uint8_t)s.dt}, to);
}
