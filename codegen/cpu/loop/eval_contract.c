/* eval_contract.c: matmul, conv2d and its gradients without blocking: the fallback where no register-blocked kernel
 * applies.
 *
 * In: an op and indices of its result.   Out: a cell: the sum of products over the reduced axes, in loops. Lanes run
 * over the result's innermost axis; where no lanes are open (eval_contract_dot says when that is better) they run over
 * the reduced axis. */
#include "../cpu.h"
#include <string.h>

typedef struct Con {
	const Op *op;
	const Ix *ix;
	V ext[3]; int n;         /* reduced loops, outermost first */
	Ix at[3];
	DType dt;
	T t;
	V acc;
	bool vec;
} Con;

/* oh * stride + kh * dilation - pad */
static Ix
in_row(Emit *e, const Window *g, int d, Ix o, Ix k)
{
	return ix_add_k(e, ix_add(e, ix_mul_k(e, o, g->stride[d]), ix_mul_k(e, k, g->dilation[d])), -g->pad[d]);
}

static void
conv_factors(Emit *e, const Con *c, Cell *a, Cell *b)
{
	const Type *w = val_type(e->g, c->op->in[1]);
	Conv g = conv_of(e->g, c->op);
	Ix cin = c->at[0];

	if (g.groups > 1) {
		int64_t per = g.out;

		cin = ix_add(e, ix_mul_k(e, ix_div(e, c->ix[1], k64(e, per)), w->axis[1].n), c->at[0]);
	}
	Ix x[4] = {c->ix[0], cin, in_row(e, &g.at, 0, c->ix[2], c->at[1]), in_row(e, &g.at, 1, c->ix[3], c->at[2])};
	Ix k[4] = {c->ix[1], c->at[0], c->at[1], c->at[2]};

	*a = eval_plane(e, c->op->in[0], x, (Valid){NULL, NULL}, cell_const(e, c->dt, 0), NULL, NULL);
	*b = e->eval(e, c->op->in[1], k);
}

/* The output position whose tap k reads row i: (i + pad - k * dilation) / stride, where that is whole. */
static Ix
out_row(Emit *e, const Window *g, int d, Ix i, Ix k, Valid *valid)
{
	Ix t = ix_add_k(e, ix_add(e, i, ix_mul_k(e, k, -g->dilation[d])), g->pad[d]);

	if (g->stride[d] == 1)
		return t;
	/* below 0 the unsigned quotient is out of range, so that the plane's own test rejects it */
	Ix q = ix_lane(&t) ? (Ix){.s = k64(e, 0), .g = ix_vec(e, t)} : t;
	bool vec;
	V test = ix_in_range(e, q, k64(e, (int64_t)1 << 31), &vec);

	valid_and(e, valid, test, vec);
	test = ix_in_range(e, ix_rem(e, q, k64(e, g->stride[d])), k64(e, 1), &vec);
	valid_and(e, valid, test, vec);
	return ix_div(e, q, k64(e, g->stride[d]));
}

static void
conv_dx_factors(Emit *e, const Con *c, Cell *a, Cell *b)
{
	const Type *w = val_type(e->g, c->op->in[1]);
	Conv g = conv_of(e->g, c->op);
	Ix o = c->at[0], ci = c->ix[1];
	Valid valid = {NULL, NULL};

	if (g.groups > 1) {
		int64_t per = g.out;

		o = ix_add(e, ix_mul_k(e, ix_div(e, c->ix[1], k64(e, w->axis[1].n)), per), c->at[0]);
		ci = ix_rem(e, c->ix[1], k64(e, w->axis[1].n));
	}
	Ix at[4] = {c->ix[0], o, out_row(e, &g.at, 0, c->ix[2], c->at[1], &valid), ix_k(e, 0)};

	at[3] = out_row(e, &g.at, 1, c->ix[3], c->at[2], &valid);
	Ix k[4] = {o, ci, c->at[1], c->at[2]};

	*a = eval_plane(e, c->op->in[0], at, valid, cell_const(e, c->dt, 0), NULL, NULL);
	*b = e->eval(e, c->op->in[1], k);
}

static void
conv_dw_factors(Emit *e, const Con *c, Cell *a, Cell *b)
{
	const Type *w = val_type(e->g, c->op->out[0]);
	Conv g = conv_of(e->g, c->op);
	Ix ci = c->ix[1];

	if (g.groups > 1)
		ci = ix_add(e, ix_mul_k(e, ix_div(e, c->ix[0], k64(e, g.out)), w->axis[1].n),
		            c->ix[1]);
	Ix x[4] = {c->at[0], ci, in_row(e, &g.at, 0, c->at[1], c->ix[2]), in_row(e, &g.at, 1, c->at[2], c->ix[3])};
	Ix o[4] = {c->at[0], c->ix[0], c->at[1], c->at[2]};

	*a = eval_plane(e, c->op->in[0], x, (Valid){NULL, NULL}, cell_const(e, c->dt, 0), NULL, NULL);
	*b = e->eval(e, c->op->in[1], o);
}

static void
matmul_factors(Emit *e, const Con *c, Cell *a, Cell *b)
{
	int rank = val_type(e->g, c->op->out[0])->rank;

	for (int k = 0; k < 2; k++) {
		const Type *t = val_type(e->g, c->op->in[k]);
		bool swap = attr_bool(c->op, k ? A_tb : A_ta);
		Ix in[MAX_RANK], row = k ? c->at[0] : c->ix[rank - 2], col = k ? c->ix[rank - 1] : c->at[0];

		for (int j = 0; j < t->rank - 2; j++)
			in[j] = t->axis[j].n == 1 && !t->axis[j].mul ? ix_k(e, 0) : c->ix[j + rank - t->rank];
		in[t->rank - 2] = swap ? col : row;
		in[t->rank - 1] = swap ? row : col;
		*(k ? b : a) = e->eval(e, c->op->in[k], in);
	}
}

static void
term(Emit *e, Con *c)
{
	Cell a, b, s = cell_of(slot_get(e, c->acc, c->t), c->vec, c->dt), r;

	switch (c->op->kind) {
	case OP_matmul: matmul_factors(e, c, &a, &b); break;
	case OP_conv2d: conv_factors(e, c, &a, &b); break;
	case OP_conv2d_dx: conv_dx_factors(e, c, &a, &b); break;
	default: conv_dw_factors(e, c, &a, &b); break;
	}
	if (c->vec && e->mask && c->op->kind != OP_conv2d && c->op->kind != OP_conv2d_dx) {
		/* lanes that do not count may hold anything, and 0 * NaN is NaN: they must not reach a sum over
		 * lanes */
		a = cell_select(e, cell_of(e->mask, true, DT_bool), a, cell_const(e, c->dt, 0));
		b = cell_select(e, cell_of(e->mask, true, DT_bool), b, cell_const(e, c->dt, 0));
	}
	r = cell_fma(e, a, b, s);
	slot_set(e, c->acc, c->vec ? cell_vec(e, r) : r.v);
}

static void
dot_body(Emit *e, void *cx, Ix i, int u)
{
	Con *c = cx;

	(void)u;
	c->at[c->n - 1] = i;
	term(e, c);
}

/* The loops over the reduced axes from number i on; lanes go along the last one if they are parts of the sum. */
static void
terms(Emit *e, Con *c, int i, bool dot)
{
	if (i == c->n - dot) {
		if (dot)
			lane_loop(e, k64(e, 0), c->ext[i], 1, dot_body, c);
		else
			term(e, c);
		return;
	}
	EACH(e, at, c->ext[i]) {
		c->at[i] = ix_s(at);
		terms(e, c, i + 1, dot);
	}
}

Cell
eval_contract(Emit *e, const Op *op, const Ix *ix)
{
	const Type *t0 = val_type(e->g, op->in[0]), *t1 = val_type(e->g, op->in[1]), *to = val_type(e->g, op->out[0]);
	Con c = {.op = op, .ix = ix, .n = 3, .dt = (DType)to->dtype};
	bool dot = !e->lanes && (op->kind == OP_matmul || op->kind == OP_conv2d_dw);

	if (c.dt != DT_f64 && dtype_is_float(c.dt))
		c.dt = DT_f32;
	switch (op->kind) {
	case OP_matmul:
		c.ext[0] = extent(e, t0->axis[attr_bool(op, A_ta) ? t0->rank - 2 : t0->rank - 1]);
		c.n = 1;
		break;
	case OP_conv2d_dw:
		c.ext[0] = extent(e, t1->axis[0]);
		c.ext[1] = extent(e, t1->axis[2]);
		c.ext[2] = extent(e, t1->axis[3]);
		break;
	default:
		c.ext[0] = k64(e, op->kind == OP_conv2d ? t1->axis[1].n : t1->axis[0].n / attr_int(op, A_groups));
		c.ext[1] = k64(e, t1->axis[2].n);
		c.ext[2] = k64(e, t1->axis[3].n);
	}
	c.vec = e->lanes || dot;
	c.t = ctype_v(e, c.dt, c.vec);
	c.acc = slot_new(e, c.t);
	slot_set(e, c.acc, LLVMConstNull(c.t));
	terms(e, &c, 0, dot);
	Cell r = cell_of(slot_get(e, c.acc, c.t), c.vec, c.dt);

	return cell_cast(e, dot ? horizontal_sum(e, r) : r, (DType)to->dtype);
}

/* Lanes over the reduced axis serve better: the result's own axis is strided in an operand, or short. */
bool
eval_contract_dot(const Graph *g, const Op *op)
{
	if (op->kind == OP_conv2d_dw)
		return val_type(g, op->in[1])->axis[3].n >= val_type(g, op->out[0])->axis[3].n;
	if (op->kind != OP_matmul)
		return false;
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->in[1]);
	int ka = attr_bool(op, A_ta) ? a->rank - 2 : a->rank - 1, kb = attr_bool(op, A_tb) ? b->rank - 1 : b->rank - 2;

	return a->perm[a->rank - 1] == ka && b->perm[b->rank - 1] == kb && a->axis[ka].n >= 8;
}
