/* atoms.c: reductions: the state of one pass, its steps and joins; a reduction at any index.
 *
 * In: an op with a row of red.def, an element; or the index of a result.   Out: text: variables of the state, what an
 * element does to it, how threads join theirs, the value; or a loop over all that the result is of. */
#include "../cuda.h"
#include "red.h"
#include <string.h>

int
cu_red_passes(const Op *op)
{
	return red_of(op)->then == RED_ONCE ? 1 : 2;
}

uint32_t
cu_red_axes(const Graph *g, const Op *op)
{
	int rank = val_type(g, op->in[0])->rank, n;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	uint32_t bits = 0;

	for (int i = 0; i < n; i++)
		bits |= 1u << (axes[i] < 0 ? axes[i] + rank : axes[i]);
	return bits;
}

/* ---------------------------------------------------------------- states */
static DType
atom_dtype(const Cuda *c, const Atom *a)
{
	return red_dtype(a->op, (DType)val_type(c->g, a->op->in[0])->dtype);
}

const char *
cu_atom_type(const Cuda *c, const Atom *a)
{
	return cu_c_type(atom_dtype(c, a));
}

/* Is its state the larger or the smaller, without an index? */
static bool
is_extremum(const Atom *a)
{
	RedJoin join = red_of(a->op)->join;

	return (join == RED_HIGH || join == RED_LOW) && a->pass == 0;
}

/* What joins two such states in the prelude. */
static const char *
extremum(const Atom *a)
{
	return red_of(a->op)->join == RED_LOW ? "low" : "top";
}

void
cu_atom_open(Cuda *c, Atom *a)
{
	DType dt = atom_dtype(c, a);
	bool top = is_extremum(a) || red_indexes(a->op);

	a->s[0] = cu_fresh(c, 'v');
	cu_line(c, "%s %s = %s;", cu_c_type(dt), a->s[0],
	        top ? cu_cell_lowest(dt, red_of(a->op)->join == RED_LOW).v : "0");
	if (red_indexes(a->op)) {
		a->s[1] = cu_fresh(c, 'i');
		cu_line(c, "long long %s = NO_INDEX;", a->s[1]);
	}
}

Cell
cu_red_element(Cuda *c, const Op *op, Cell x)
{
	const Expr *e = red_of(op)->element;

	if (expr_is(e, 0))
		return x;
	x = cu_cell_let(c, x.v, (DType)x.dt);
	return cu_cell_let(c, cu_cell_expr(c, e, &x, (DType)x.dt).v, (DType)x.dt);
}

void
cu_atom_step(Cuda *c, Atom *a, Cell x, Ix index)
{
	const RedInfo *red = red_of(a->op);
	DType dt = atom_dtype(c, a);
	const char *s = a->s[0], *sx = cu_suffix(dt);
	Cell state = {s, (uint8_t)dt};

	x = cu_red_element(c, a->op, cu_cell_cast(c, x, dt));
	if (red->join != RED_ADD && red->then == RED_ONCE)
		x = cu_cell_rounded(c, x); /* whoever looks for it finds it, in memory too */
	if (is_extremum(a)) {
		cu_line(c, "%s = %s_%s(%s, %s);", s, extremum(a), sx, x.v, s);
	} else if (red->join == RED_FIRST) {
		cu_line(c, "if (%s == NO_INDEX || beats_%s(%s, %s)) { %s = %s; %s = %s; }", a->s[1], sx, x.v, s, s, x.v,
		        a->s[1], index);
	} else if (red->then == RED_SQUARES && a->pass == 1) {
		Cell d = cu_cell_let(c, cu_cell_bin(c, EX_SUB, x, a->before).v, dt);

		cu_line(c, "%s = %s;", s, cu_cell_fma(c, d, d, state).v);
	} else if (red->then == RED_EXPONENTIALS && a->below_zero) {
		cu_line(c, "%s = %s + exp_low_%s(%s);", s, s, sx, x.v);
	} else if (red->then == RED_EXPONENTIALS) {
		cu_line(c, "%s = %s + exp_below_%s(%s, %s);", s, s, sx, x.v, a->before.v);
	} else {
		cu_line(c, "%s = %s;", s, cu_cell_bin(c, EX_ADD, state, x).v);
	}
}

void
cu_atom_join(Cuda *c, Atom *a)
{
	const char *sx = cu_suffix(atom_dtype(c, a)), *who = a->warp ? "warp" : "block";

	if (red_indexes(a->op))
		cu_line(c, "%s_argmax_%s(&%s, &%s);", who, sx, a->s[0], a->s[1]);
	else
		cu_line(c, "%s = %s_%s_%s(%s);", a->s[0], who, is_extremum(a) ? extremum(a) : "sum", sx, a->s[0]);
}

Cell
cu_red_value(Cuda *c, const Op *op, Cell s, const char *index, Ix count)
{
	const Expr *v = red_of(op)->value;
	DType to = (DType)val_type(c->g, op->out[0])->dtype, dt = dtype_is_float(to) && to != DT_f64 ? DT_f32 : to;
	Cell var[RED_VARS] = {[RED_S] = s, [RED_I] = {index, DT_i64}};

	if (expr_is(v, RED_S) || expr_is(v, RED_I))
		return var[v->index];
	var[RED_S] = cu_cell_cast(c, s, dt);
	var[RED_N] = (Cell){arena_printf(c->a, "(%s)%s", cu_c_type((DType)dt), count), (uint8_t)dt};
	return cu_cell_expr(c, v, var, dt);
}

Cell
cu_atom_value(Cuda *c, Atom *a, Ix count)
{
	RedThen then = red_of(a->op)->then;
	DType dt = atom_dtype(c, a), to = (DType)val_type(c->g, a->op->out[0])->dtype;
	Cell s = {a->s[0], (uint8_t)dt};

	if (then == RED_SQUARES) {
		s = cu_cell_bin(c, EX_DIV, s, (Cell){arena_printf(c->a, "(%s)%s", cu_c_type(dt), count), s.dt});
		if (a->pass == 0)
			return cu_cell_let(c, s.v, dt);
	} else if (then == RED_EXPONENTIALS) {
		if (a->pass == 0)
			return s;
		s = (Cell){arena_printf(c->a, "log_above_%s(%s, %s)", cu_suffix(dt), s.v, a->before.v), (uint8_t)dt};
	} else {
		s = cu_red_value(c, a->op, s, a->s[1], count);
	}
	return cu_cell_let(c, cu_cell_cast(c, s, to).v, to);
}

/* ---------------------------------------------------------------- at any index: a loop */
/* Where axis i of the operand is an axis of the result, its index there. */
static void
operand_index(const Graph *g, const Op *op, const Ix *ix, Ix *in)
{
	uint32_t axes = cu_red_axes(g, op);
	const Type *t = val_type(g, op->in[0]);
	bool keep = attr_bool(op, A_keep);
	int j = 0;

	for (int i = 0; i < t->rank; i++) {
		bool reduced = axes >> i & 1;

		in[i] = reduced ? "0" : ix[j];
		j += keep || !reduced;
	}
}

Cell
cu_eval_reduce(Cuda *c, const Op *op, int index, const Ix *ix)
{
	const Type *t = val_type(c->g, op->in[0]);
	uint32_t axes = cu_red_axes(c->g, op);
	Ix in[MAX_RANK], i, count = cu_product(c, t, axes);
	Cell value[2] = {{0}};

	operand_index(c->g, op, ix, in);
	for (int pass = 0; pass < cu_red_passes(op); pass++) {
		Atom a = {.op = op, .pass = pass, .before = value[0]};

		cu_atom_open(c, &a);
		Scope s = cu_loop_open(c, count, &i);

		cu_take_apart(c, t, axes, i, in);
		cu_atom_step(c, &a, cu_value_at(c, op->in[0], in), i);
		cu_scope_close(c, s);
		value[pass] = cu_atom_value(c, &a, count);
	}
	if (op->nout > 1) {
		DType to = (DType)val_type(c->g, op->out[0])->dtype;

		value[0] = cu_cell_cast(c, value[0], to);
		return value[index];
	}
	return value[cu_red_passes(op) - 1];
}
