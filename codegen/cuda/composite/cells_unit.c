/* cells_unit.c: a step of one unit of a recurrence, forward and backward, whichever kernel of cells.c, cells_held.c or
 * cells_mma.c makes the sums: what it reads, its gates, what it stores.
 *
 * In: one of the ops of cells.c; text of the unit's sums and state, of its row (`row`), unit (`j`) and step (`t`).
 * Out: lines of the kernel that is being written. */
#include "cells.h"

Cells
cu_cells_of(const Graph *g, const Op *op)
{
	Cells s = {.g = g,
	           .op = op,
	           .lstm = op->kind == OP_lstm_cells || op->kind == OP_lstm_cells_dx,
	           .back = op->kind == OP_lstm_cells_dx || op->kind == OP_gru_cells_dx,
	           .reverse = attr_bool(op, A_reverse),
	           .has_length = attr_bool(op, A_has_length)};
	const Type *x = val_type(g, op->in[0]);

	s.dt = (DType)x->dtype;
	s.n = x->axis[0];
	s.t = x->axis[1].n;
	s.gates = s.lstm ? 4 : 3;
	s.w = s.back ? s.lstm ? 5 : 4 : 1;
	s.h = val_type(g, op->in[s.w])->axis[1].n;
	s.parts = s.back || s.h > 512 ? 32 : s.h > 256 ? 16 : 8;
	s.blocks = 1;
	return s;
}

/* ---------------------------------------------------------------- values */
static Cell
add(const Cells *s, Cell a, Cell b)
{
	return cu_cell_bin(s->c, EX_ADD, a, b);
}
static Cell
sub(const Cells *s, Cell a, Cell b)
{
	return cu_cell_bin(s->c, EX_SUB, a, b);
}
static Cell
mul(const Cells *s, Cell a, Cell b)
{
	return cu_cell_bin(s->c, EX_MUL, a, b);
}
static Cell
number(const Cells *s, double x)
{
	return cu_cell_number(s->c, DT_f32, x);
}
static Cell
one_minus(const Cells *s, Cell a)
{
	return sub(s, number(s, 1), a);
}
static Cell
let(const Cells *s, Cell a)
{
	return cu_cell_let(s->c, a.v, DT_f32);
}
static Cell
apply(const Cells *s, OpKind k, Cell a)
{
	return cu_cell_apply(s->c, k, a);
}
Cell
cu_cells_text(const char *t)
{
	return (Cell){t, DT_f32};
}

const char *
cu_cells_pointer(const Cells *s, Val v)
{
	return cu_pointer(s->c, (DType)val_type(s->g, v)->dtype, val_info(s->g, v)->offset);
}

/* A float of what lies in memory in the operands' type. */
const char *
cu_cells_value(const Cells *s, const char *at)
{
	return cu_from_memory(s->c, s->dt, at);
}

/* Where unit j of block `block` of the row's step is in [N,T,blocks H]; blocks 0: in [N,H]. */
const char *
cu_cells_place(const Cells *s, const char *step, int blocks, int block)
{
	Arena *a = s->c->a;
	long long t = s->t, h = s->h;

	if (!blocks)
		return arena_printf(a, "row * %lld + j", h);
	return arena_printf(a, "(row * %lld + %s) * %lld + %lld + j", t, step, blocks * h, block * h);
}

/* Of a step of one unit: block `block` of operand k; where the weights are held it was loaded a step before. */
static Cell
load(const Cells *s, int k, int blocks, int block)
{
	if (s->blocks > 1)
		return cu_cells_text(arena_printf(s->c->a, "in%d_%d", k, block));
	return let(s, cu_cells_text(cu_cells_value(s, arena_printf(s->c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[k]),
	                                                           cu_cells_place(s, "t", blocks, block)))));
}

int
cu_cells_inputs(const Cells *s, CellInput *in)
{
	int n = 0, k = s->back ? s->lstm ? 3 : 2 : 0, blocks = s->back ? 4 : s->gates;

	for (int block = 0; block < blocks; block++)
		in[n++] = (CellInput){k, blocks, block};
	if (s->back)
		in[n++] = (CellInput){0, 1, 0};
	if (s->back && s->lstm)
		in[n++] = (CellInput){4, 1, 0};
	return n;
}

bool
cu_cells_wanted(const Cells *s, int k)
{
	return cu_value_is_out(s->c, s->op->out[k]);
}

void
cu_cells_put(const Cells *s, int k, const char *place, Cell x)
{
	Val v = s->op->out[k];

	if (!cu_cells_wanted(s, k))
		return;
	cu_line(s->c, "%s[%s] = %s;", cu_cells_pointer(s, v), place, cu_to_memory(s->c, s->dt, x.v));
	s->c->ready[v.id] = true;
	cu_stores_at(s->c, val_info(s->g, v)->offset);
}

/* Is the step within the example's length? */
const char *
cu_cells_alive(const Cells *s, const char *step)
{
	Val v = s->op->in[s->op->nin - 1];

	return s->length ? arena_printf(s->c->a, "%s < %s", step, s->length)
	                 : arena_printf(s->c->a, "%s < (long long)%s[row]", step, cu_cells_pointer(s, v));
}

Cell
cu_cells_if_live(const Cells *s, Cell a, Cell b)
{
	return s->has_length ? let(s, cu_cells_text(arena_printf(s->c->a, "live ? %s : %s", a.v, b.v))) : a;
}

/* ---------------------------------------------------------------- forward */
static Cell
sum_of(const Cells *s, int gate)
{
	return cu_cells_text(arena_printf(s->c->a, s->blocks > 1 ? "total%d" : "sum[%d][r]", gate));
}

/* c' = f c + i g, h = o tanh(c'). */
static Cell
lstm_unit(const Cells *s)
{
	Cell g[4], zero = number(s, 0), c = let(s, cu_cells_text(s->c_at)), next, h;

	for (int k = 0; k < 4; k++) {
		g[k] = apply(s, k == 2 ? OP_tanh : OP_sigmoid, let(s, add(s, load(s, 0, 4, k), sum_of(s, k))));
		if (cu_cells_wanted(s, 2))
			cu_cells_put(s, 2, cu_cells_place(s, "t", 4, k), cu_cells_if_live(s, g[k], zero));
	}
	next = let(s, cu_cell_fma(s->c, g[0], g[2], mul(s, g[1], c)));
	h = let(s, mul(s, g[3], apply(s, OP_tanh, next)));
	next = cu_cells_if_live(s, next, c);
	cu_line(s->c, "%s = %s;", s->c_at, next.v);
	cu_cells_put(s, 1, cu_cells_place(s, "t", 1, 0), next);
	return h;
}

/* h' = n + z (h - n), n = tanh(gx_n + r (U h + b)_n). */
static Cell
gru_unit(const Cells *s)
{
	Cell sum[3], g[4], zero = number(s, 0), old = cu_cells_text(s->h_at);

	for (int k = 0; k < 3; k++)
		sum[k] = let(s, add(s, sum_of(s, k),
		                    s->blocks > 1 ? cu_cells_text(arena_printf(s->c->a, "bias%d", k))
		                                  : cu_cells_text(cu_cells_value(
		                                            s, arena_printf(s->c->a, "%s[%lld + j]",
		                                                            cu_cells_pointer(s, s->op->in[2]),
		                                                            (long long)(k * s->h))))));
	for (int k = 0; k < 2; k++)
		g[k] = apply(s, OP_sigmoid, let(s, add(s, load(s, 0, 3, k), sum[k])));
	g[2] = apply(s, OP_tanh, let(s, cu_cell_fma(s->c, g[0], sum[2], load(s, 0, 3, 2))));
	g[3] = sum[2];
	for (int k = 0; k < 4 && cu_cells_wanted(s, 1); k++)
		cu_cells_put(s, 1, cu_cells_place(s, "t", 4, k), cu_cells_if_live(s, g[k], zero));
	return let(s, cu_cell_fma(s->c, g[1], sub(s, old, g[2]), g[2]));
}

Cell
cu_cells_unit(const Cells *s)
{
	return s->lstm ? lstm_unit(s) : gru_unit(s);
}

/* ---------------------------------------------------------------- backward */
/* One gate's gradient: where the product reads it, and the results that have it. */
static void
gate_put(const Cells *s, int gate, Cell d, bool multiplied, const char *results)
{
	d = let(s, d);
	if (multiplied && s->blocks > 1)
		cu_line(s->c, "gate%d = %s;", gate, d.v);
	else if (multiplied)
		cu_line(s->c, "d[(%lld + j) * %d + r] = %s;", (long long)(gate * s->h), s->rows, d.v);
	for (; *results; results++)
		cu_cells_put(s, *results - '0', cu_cells_place(s, "t", s->gates, gate), d);
}

/* Operand k at the step that was processed before, [N,T,H], or its start at the first step or where that was past the
 * length. */
const char *
cu_cells_before(const Cells *s, int k, int start)
{
	const char *first = "step == 0", *earlier = s->reverse ? "(t + 1)" : "(t - 1)";
	const char *from = arena_printf(s->c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[start]),
	                                cu_cells_place(s, NULL, 0, 0)),
	           *at = arena_printf(s->c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[k]),
	                              cu_cells_place(s, earlier, 1, 0));

	if (s->has_length)
		first = arena_printf(s->c->a, "(step == 0 || !(%s))", cu_cells_alive(s, earlier));
	return arena_printf(s->c->a, "%s ? %s : %s", first, cu_cells_value(s, from), cu_cells_value(s, at));
}

static Cell
before(const Cells *s, int k, int start)
{
	return s->blocks > 1 ? cu_cells_text("earlier") : let(s, cu_cells_text(cu_cells_before(s, k, start)));
}

static void
lstm_back(const Cells *s)
{
	Cell g[4], dh = cu_cells_text(s->h_at), dc = cu_cells_text(s->c_at), h, c, tc, old = before(s, 4, 6);

	for (int k = 0; k < 4; k++)
		g[k] = load(s, 3, 4, k);
	tc = apply(s, OP_tanh, load(s, 4, 1, 0));
	h = let(s, add(s, dh, load(s, 0, 1, 0)));
	c = let(s, cu_cell_fma(s->c, mul(s, h, g[3]), one_minus(s, mul(s, tc, tc)), dc));
	gate_put(s, 0, mul(s, mul(s, c, g[2]), mul(s, g[0], one_minus(s, g[0]))), true, "0");
	gate_put(s, 1, mul(s, mul(s, c, old), mul(s, g[1], one_minus(s, g[1]))), true, "0");
	gate_put(s, 2, mul(s, mul(s, c, g[0]), one_minus(s, mul(s, g[2], g[2]))), true, "0");
	gate_put(s, 3, mul(s, mul(s, h, tc), mul(s, g[3], one_minus(s, g[3]))), true, "0");
	cu_line(s->c, "%s = %s;", s->c_at, mul(s, c, g[1]).v);
	cu_line(s->c, "%s = 0.0f;", s->h_at);
}

static void
gru_back(const Cells *s)
{
	Cell g[4], h, dn, old = before(s, 3, 5);

	for (int k = 0; k < 4; k++)
		g[k] = load(s, 2, 4, k);
	h = let(s, add(s, cu_cells_text(s->h_at), load(s, 0, 1, 0)));
	dn = let(s, mul(s, mul(s, h, one_minus(s, g[1])), one_minus(s, mul(s, g[2], g[2]))));
	gate_put(s, 0, mul(s, mul(s, dn, g[3]), mul(s, g[0], one_minus(s, g[0]))), true, "01");
	gate_put(s, 1, mul(s, mul(s, h, sub(s, old, g[2])), mul(s, g[1], one_minus(s, g[1]))), true, "01");
	gate_put(s, 2, dn, false, "0");
	gate_put(s, 2, mul(s, dn, g[0]), true, "1");
	cu_line(s->c, "%s = %s;", s->h_at, mul(s, h, g[1]).v);
}

void
cu_cells_back(const Cells *s)
{
	if (s->lstm)
		lstm_back(s);
	else
		gru_back(s);
}
