/* rows.c: reductions, and groups around them.
 *
 * In: a group with reductions over the same axes of one space.   Out: a kernel with a block for each kept index, or a
 * thread where a row is short, or, of many rows of moderate length, a warp: its lanes join by shuffles, no thread waits
 * for a block, and what the row is computed from stays in registers for all passes if that is little. A pass goes over
 * the row for every phase: what depends on no reduction of the group,
 * what depends on those of the first pass, ...; threads take every BLOCK-th element, their states join in a halving
 * tree, so the order is the same whatever the machine. moments takes two passes (sum, squares about the mean),
 * logsumexp too (largest, exponentials below it). Values of the row's whole space are stored in their phase, values of
 * the kept shape at the end. A reduction asked for at any other index is a loop of its own. A block's threads take four
 * neighbours at once where the row goes along memory. Where rows are few and long and one pass does, a row is cut into
 * pieces, a block to each: they leave their states in the workspace, and the block that comes last joins them, in the
 * tree of its threads. */
#include "../contract/gemm.h"
#include "red.h"
#include <string.h>

/* Bytes of a state; of a warp: elements of its row, at most, and of memory's values those that a lane keeps. */
enum { SLOT = 16, WARP_ROW = 1024, HELD = 96 };

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

int
cu_rows_threads(const Graph *g, const Op *op)
{
	const Type *t = val_type(g, op->in[0]);
	uint32_t axes = cu_red_axes(g, op);
	int64_t count = cu_full_product(t, axes), rows = cu_full_product(t, ~axes);

	if (count <= SHORT_ROW)
		return 1;
	return count <= WARP_ROW && rows >= cu_machine(g)->budget.blocks ? WARP : BLOCK;
}

Late
cu_late_find(const Graph *g, int group)
{
	Late l = {0};

	l.first = graph_group_ops(g, group, &l.last);
	l.late = arena_array(g->arena, bool, l.last - l.first);
	for (uint32_t i = l.first; i < l.last; i++) {
		const Op *op = &g->op.at[i];
		bool late = op_info[op->kind].red >= 0;

		for (int k = 0; k < op->nin; k++)
			late |= cu_late_is(g, &l, op->in[k]);
		l.late[i - l.first] = late && !op->dead && op->group == group;
	}
	return l;
}

bool
cu_late_is(const Graph *g, const Late *l, Val v)
{
	uint32_t by = val_info(g, v)->op;

	return by >= l->first && by < l->last && l->late[by - l->first];
}

/* States that a piece of a row leaves; 0: the group's rows cannot be cut. */
static int64_t
cut_states(const Graph *g, int group, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);
	Late late = cu_late_find(g, group);
	int64_t rows = cu_full_product(t, ~axes), states = 0;

	for (uint32_t i = late.first; i < late.last; i++) {
		const Op *o = &g->op.at[i];
		bool is_red = op_info[o->kind].red >= 0;

		if (o->dead || o->group != group)
			continue;
		if (op_has((OpKind)o->kind, T_CONTRACT | T_WINDOW))
			return 0;
		if (is_red && (cu_late_is(g, &late, o->in[0]) || cu_red_passes(o) > 1 || cu_red_axes(g, o) != axes ||
		               !type_same_shape(val_type(g, o->in[0]), t)))
			return 0;
		if (!is_red && late.late[i - late.first] && type_elements(val_type(g, o->out[0])) > rows)
			return 0;
		states += is_red;
	}
	return states;
}

int
cu_rows_pieces(const Graph *g, int group, const Op *red, int64_t *workspace)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);
	int64_t count = cu_full_product(t, axes), rows = cu_full_product(t, ~axes), states = cut_states(g, group, red);
	int64_t few = cu_machine(g)->budget.blocks, pieces = count / PIECE, most = (2 * few + rows - 1) / rows;

	pieces = pieces > most ? most : pieces;
	pieces = pieces > BLOCK ? BLOCK : pieces;
	if (rows >= few || pieces < 2 || !states)
		return 1;
	*workspace = rows * pieces * states * SLOT;
	return (int)pieces;
}

Facts
cu_rows_facts(const Graph *g, const Op *red, const SelectCx *cx)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);

	(void)cx;
	return (Facts){.M = cu_full_product(t, ~axes), .K = cu_full_product(t, axes)};
}

const char *
cu_rows_misfit(const Graph *g, const Op *red, const SelectCx *cx, const Params *p)
{
	Facts f = cu_rows_facts(g, red, cx);

	if (p->family != FAMILY_cuda_rows)
		return "such a reduction takes parameters such as rows{threads=32}";
	const char *why = space_misfit(g->arena, p, &f);

	return !why && p->cuda_rows.pieces > 1 && !cut_states(g, red->group, red)
	               ? "its rows cannot be cut: something of a row waits for all of it"
	               : why;
}

int64_t
cu_rows_workspace(const Graph *g, const Op *red, const Params *p)
{
	return p->cuda_rows.pieces > 1 ? cu_rows_facts(g, red, NULL).M * p->cuda_rows.pieces * SLOT *
	                                         cut_states(g, red->group, red)
	                               : 0;
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

/* ---------------------------------------------------------------- the kernel */
typedef struct Rows {
	const Op *red;                  /* one of them: all have its space and axes */
	const Type *space;
	uint32_t axes, kept;
	int threads, block, unroll; /* of a row, of a block; 0: as the compiler does */
	/* of a warp: what the row is computed from, if all of it stays in registers, and turns of the lanes over the
	 * row */
	Leaves held;
	int turns;
	/* of a row; neighbours that a thread takes at once, along the axis that is innermost in memory */
	int pieces, vec, inner;
	Ix ix[MAX_RANK], number, count, piece;
	int nphase;
	VEC(Atom) atom; VEC(int) at;    /* passes of reductions, and their phases */
	VEC(Out) whole, row;
} Rows;

/* The passes over the row that must have ended before v is known, each reduction's own counted. */
static int
phase_of(Cuda *c, Val v)
{
	if (!c->inside[v.id] || c->ready[v.id])
		return 0;
	if (c->phase[v.id] >= 0)
		return c->phase[v.id];
	const Op *op = val_op(c->g, v);
	int p = 0, q;

	for (int k = 0; k < op->nin; k++)
		p = (q = phase_of(c, op->in[k])) > p ? q : p;
	return c->phase[v.id] = p + (op_info[op->kind].red >= 0 ? cu_red_passes(op) : 0);
}

static bool
is_kept_shape(const Rows *r, const Type *t, bool *keep)
{
	int j = 0;

	*keep = t->rank == r->space->rank;
	for (int i = 0; i < r->space->rank; i++) {
		bool reduced = r->axes >> i & 1;

		if (reduced && !*keep)
			continue;
		if (j >= t->rank ||
		    (reduced ? t->axis[j].n != 1 || t->axis[j].mul : !axis_same(t->axis[j], r->space->axis[i])))
			return false;
		j++;
	}
	return j == t->rank;
}

/* Indices of a value of the kept shape. */
static void
row_index(const Rows *r, const Type *t, Ix *ix)
{
	bool keep = t->rank == r->space->rank;
	int j = 0;

	for (int i = 0; i < r->space->rank; i++)
		if (keep || !(r->axes >> i & 1))
			ix[j++] = r->axes >> i & 1 ? "0" : r->ix[i];
}

static bool
same_space(const Cuda *c, const Rows *r, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]);

	if (t->rank != r->space->rank || cu_red_axes(c->g, op) != r->axes)
		return false;
	for (int i = 0; i < t->rank; i++)
		if (!axis_same(t->axis[i], r->space->axis[i]))
			return false;
	return true;
}

static void
rows_plan(Cuda *c, Rows *r)
{
	bool keep;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];
		int last = 0;

		if (op->dead)
			continue;
		if (op_info[op->kind].red >= 0 && same_space(c, r, op))
			for (int p = 0; p < cu_red_passes(op); p++) {
				last = phase_of(c, op->in[0]) + p;
				vec_push(c->a, &r->atom, ((Atom){.op = op, .pass = p}));
				vec_push(c->a, &r->at, last);
			}
		for (int k = 0; k < op->nout; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);
			Out o = {op->out[k], &v->type, v->offset};

			if (!cu_value_is_out(c, op->out[k]) || c->ready[op->out[k].id])
				continue;
			if (is_kept_shape(r, &v->type, &keep)) {
				vec_push(c->a, &r->row, o);
			} else if (type_same_shape(&v->type, r->space)) {
				vec_push(c->a, &r->whole, o);
				last = phase_of(c, op->out[k]) > last ? phase_of(c, op->out[k]) : last;
			}
		}
		r->nphase = last + 1 > r->nphase ? last + 1 : r->nphase;
	}
}

/* Tells the memo what the reduction's results are at this row. */
static void
put_results(Cuda *c, const Rows *r, const Atom *a, Cell value)
{
	Ix ix[MAX_RANK];

	for (int k = 0; k < a->op->nout; k++) {
		const Type *t = val_type(c->g, a->op->out[k]);

		row_index(r, t, ix);
		for (int i = 0; i < t->rank; i++)
			ix[i] = t->axis[i].n == 1 && !t->axis[i].mul ? "0" : ix[i];
		if (a->op->nout > 1 && k != a->pass)
			continue;
		cu_memo_put(c, a->op->out[k], ix, cu_cell_cast(c, value, (DType)t->dtype));
	}
}

/* A state between this block's variables and its place in the workspace, `at` the text of the piece's first byte. */
static void
state_move(Cuda *c, const Atom *a, uint32_t k, const char *at, bool put)
{
	const char *type[2] = {cu_c_type(atom_dtype(c, a)), "long long"};

	for (int i = 0; i < 1 + red_indexes(a->op); i++) {
		const char *slot =
		        arena_printf(c->a, "*(volatile %s *)(%s + %u)", type[i], at, k * SLOT + 8 * (unsigned)i);

		cu_line(c, "%s = %s;", put ? slot : a->s[i], put ? a->s[i] : slot);
	}
}

static void
pieces_join(Cuda *c, Rows *r)
{
	const char *at = cu_fresh(c, 'p');
	Ix first = cu_ix_mul(c, r->number, cu_ix_k(c, r->pieces));
	Scope s;

	cu_line(c, "static unsigned row_tickets[%lld];", (long long)cu_full_product(r->space, r->kept));
	cu_line(c, "char *const %s = (char *)%s;", at,
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset));
	s = cu_scope_open(c, "if (threadIdx.x == 0)");
	for (uint32_t k = 0; k < r->atom.n; k++)
		state_move(c, &r->atom.at[k], k,
		           arena_printf(c->a, "%s + (%s + %s) * %uLL", at, first, r->piece, r->atom.n * SLOT), true);
	cu_scope_close(c, s);
	cu_line(c, "if (!last_here(&row_tickets[%s], %d)) continue;", r->number, r->pieces);
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_atom_open(c, &r->atom.at[k]);
	s = cu_scope_open(c, "if (threadIdx.x < %d)", r->pieces);
	for (uint32_t k = 0; k < r->atom.n; k++)
		state_move(c, &r->atom.at[k], k,
		           arena_printf(c->a, "%s + (%s + (int)threadIdx.x) * %uLL", at, first, r->atom.n * SLOT),
		           false);
	cu_scope_close(c, s);
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_atom_join(c, &r->atom.at[k]);
}

static bool
in_vectors(const Rows *r, const Out *o)
{
	return r->vec > 1 && cu_vector_place(o->type, o->offset, r->space);
}

/* Neighbours are taken at once where the row goes along memory, in whole vectors, and something of it lies there. */
static void
vectors_choose(Cuda *c, Rows *r)
{
	const Type *t = r->space;
	Leaves l = {0};
	bool any = false;

	r->vec = 1;
	r->inner = cu_inner_axis(t);
	if (r->threads == 1 || r->inner < 0 || !(r->axes >> r->inner & 1) || t->axis[r->inner].mul ||
	    t->axis[r->inner].n % 4)
		return;
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_leaves_find(c, r->atom.at[k].op->in[0], t, NOVAL, &l);
	r->vec = 4;
	for (uint32_t k = 0; k < r->whole.n; k++)
		any |= in_vectors(r, &r->whole.at[k]);
	if (!any && !l.at.n)
		r->vec = 1;
	for (uint32_t k = 0; k < r->whole.n; k++)
		cu_leaves_find(c, r->whole.at[k].v, t, NOVAL, &l);
	int64_t count = cu_full_product(t, r->axes), each = (int64_t)WARP * r->vec;
	bool whole = count % each == 0;

	for (int i = 0; i < t->rank; i++)
		whole &= !(r->axes >> i & 1) || !t->axis[i].mul;
	if (r->threads == WARP && r->vec > 1 && whole && l.at.n && (int64_t)l.at.n * count <= WARP * HELD) {
		r->held = l;
		r->turns = (int)(count / each);
	}
}

/* This thread's number among those of its row. */
static Ix
place(const Rows *r)
{
	return r->threads == WARP ? "lane" : "threadIdx.x";
}

/* The row's elements that a thread takes, vec at a time: element i is its first. */
static Scope
turns_open(Cuda *c, const Rows *r, Ix i, Ix first, Ix end)
{
	if (r->unroll && !r->turns)
		cu_line(c, "#pragma unroll %d", r->unroll);
	if (r->threads == 1)
		return cu_scope_open(c, "for (%s %s = 0; %s < %s; %s++)", c->it, i, i, end, i);
	Ix mine = cu_ix_mul(c, place(r), cu_ix_k(c, r->vec));

	if (!r->turns)
		return cu_scope_open(c, "for (%s %s = %s; %s < %s; %s += %d)", c->it, i, cu_ix_add(c, first, mine), i,
		                     end, i, r->threads * r->vec);
	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", r->turns);

	cu_line(c, "const %s %s = q * %d + %s;", c->it, i, WARP * r->vec, mine);
	return s;
}

/* All of the row that a lane will need, on its way at once. */
static void
held_load(Cuda *c, Rows *r)
{
	Ix i, in[MAX_RANK];

	if (!r->turns)
		return;
	i = cu_fresh(c, 'i');
	cu_leaves_open(c, &r->held, r->vec, r->turns + 1); /* more than one: arrays by turn, q */
	Scope s = turns_open(c, r, i, "0", r->count);

	memcpy(in, r->ix, sizeof in);
	cu_take_apart(c, r->space, r->axes, i, in);
	cu_leaves_load(c, &r->held, in);
	cu_scope_close(c, s);
}

/* Elements i .. i + vec of the row, at indices `in`: steps of this phase's reductions, values that are stored in it. */
static void
elements(Cuda *c, Rows *r, int phase, Ix i, const Ix *in)
{
	const char **to = arena_array(c->a, const char *, r->whole.n + 1);
	Ix ix[MAX_RANK], at = i;
	Leaves l = {0};
	Lanes lanes = {0};
	Scope loop = {0};

	memcpy(ix, in, sizeof ix);
	if (r->vec > 1) {
		for (uint32_t k = 0; k < r->atom.n; k++)
			if (r->at.at[k] == phase)
				cu_leaves_find(c, r->atom.at[k].op->in[0], r->space, NOVAL, &l);
		for (uint32_t k = 0; k < r->whole.n; k++)
			if (phase_of(c, r->whole.at[k].v) == phase) {
				cu_leaves_find(c, r->whole.at[k].v, r->space, NOVAL, &l);
				if (in_vectors(r, &r->whole.at[k]))
					to[k] = cu_stored_open(c, &r->whole.at[k], r->vec);
			}
		if (!r->turns) {
			cu_leaves_open(c, &l, r->vec, 1);
			cu_leaves_load(c, &l, in);
		}
		cu_lanes_begin(c, &lanes, r->space, r->inner, r->vec, in);
		loop = cu_each_open(c, r->vec);
		ix[r->inner] = lanes.lane = cu_ix_add(c, in[r->inner], "u");
		at = cu_ix_add(c, i, "u");
		cu_leaves_put(c, r->turns ? &r->held : &l, ix, "u");
	}
	for (uint32_t k = 0; k < r->atom.n; k++)
		if (r->at.at[k] == phase)
			cu_atom_step(c, &r->atom.at[k], cu_value_at(c, r->atom.at[k].op->in[0], ix), at);
	for (uint32_t k = 0; k < r->whole.n; k++) {
		const Out *o = &r->whole.at[k];

		if (phase_of(c, o->v) == phase)
			cu_stored_put(c, o, to[k], ix, cu_value_at(c, o->v, ix));
	}
	if (r->vec > 1)
		cu_lanes_end(c);
	cu_each_close(c, r->vec, loop);
	for (uint32_t k = 0; k < r->whole.n; k++)
		cu_stored_close(c, &r->whole.at[k], to[k], r->vec, in);
}

static void
rows_pass(Cuda *c, Rows *r, int phase)
{
	Ix i = cu_fresh(c, 'i'), in[MAX_RANK], first = "0", end = r->count;
	int64_t many = (int64_t)r->pieces * r->vec;

	if (r->pieces > 1) {
		Ix length = cu_ix_mul(c, cu_ix_parts(c, r->count, many), cu_ix_k(c, r->vec));

		first = cu_ix_mul(c, r->piece, length);
		end = cu_fresh(c, 'i');
		cu_line(c, "const %s %s = %s + %s < %s ? %s + %s : %s;", c->it, end, first, length, r->count, first,
		        length, r->count);
	}
	for (uint32_t k = 0; k < r->atom.n; k++)
		if (r->at.at[k] == phase)
			cu_atom_open(c, &r->atom.at[k]);
	Scope s = turns_open(c, r, i, first, end);

	memcpy(in, r->ix, sizeof in);
	cu_take_apart(c, r->space, r->axes, i, in);
	elements(c, r, phase, i, in);
	cu_scope_close(c, s);
	for (uint32_t k = 0; k < r->atom.n && r->threads > 1; k++)
		if (r->at.at[k] == phase)
			cu_atom_join(c, &r->atom.at[k]);
	if (r->pieces > 1)
		pieces_join(c, r);
	for (uint32_t k = 0; k < r->atom.n; k++) {
		Atom *a = &r->atom.at[k];

		if (r->at.at[k] != phase)
			continue;
		Cell value = cu_atom_value(c, a, r->count);

		if (a->pass + 1 < cu_red_passes(a->op))
			r->atom.at[k + 1].before = value;
		if (a->pass + 1 == cu_red_passes(a->op) || a->op->nout > 1)
			put_results(c, r, a, value);
	}
}

static void
rows_store(Cuda *c, const Rows *r)
{
	Scope s = {0};

	if (!r->row.n)
		return;
	if (r->threads > 1)
		s = cu_scope_open(c, "if (%s == 0)", place(r));
	for (uint32_t k = 0; k < r->row.n; k++) {
		const Out *o = &r->row.at[k];
		Ix ix[MAX_RANK];

		row_index(r, o->type, ix);
		cu_store_at(c, o->type, o->offset, ix, cu_value_at(c, o->v, ix));
	}
	if (r->threads > 1)
		cu_scope_close(c, s);
}

/* Over the rows, r->number, of this block, of its warps or of its threads; with pieces over those. */
static Scope
rows_open(Cuda *c, Rows *r, Ix rows)
{
	Ix ext[2] = {rows, cu_ix_k(c, r->pieces)}, at[2];
	const char *block = r->block == BLOCK ? "BLOCK" : arena_printf(c->a, "%d", r->block);
	const char *from = r->threads == BLOCK ? "blockIdx.x"
	                                       : arena_printf(c->a, "blockIdx.x * %s + threadIdx.x", block),
	           *step = r->threads == BLOCK ? "gridDim.x" : arena_printf(c->a, "gridDim.x * %s", block);

	if (r->threads == WARP) {
		cu_line(c, "const int lane = threadIdx.x %% %d;", WARP);
		from = arena_printf(c->a, "blockIdx.x * %d + threadIdx.x / %d", r->block / WARP, WARP);
		step = arena_printf(c->a, "gridDim.x * %d", r->block / WARP);
	}
	if (r->pieces == 1)
		return cu_scope_open(c, "for (%s %s = %s; %s < %s; %s += %s)", c->it, r->number, from, r->number, rows,
		                     r->number, step);
	Scope s = cu_scope_open(c, "for (%s unit = blockIdx.x; unit < %s; unit += gridDim.x)", c->it,
	                        cu_ix_mul(c, rows, ext[1]));

	cu_split_number(c, "unit", ext, 2, at);
	r->number = at[0];
	r->piece = at[1];
	return s;
}

void
cu_rows_emit(Cuda *c, const Params *kernel)
{
	int threads = kernel->cuda_rows.threads, pieces = kernel->cuda_rows.pieces;
	Rows r = {.threads = threads,
	          .pieces = pieces,
	          .block = kernel->cuda_rows.rows ? kernel->cuda_rows.rows * threads : BLOCK,
	          .unroll = kernel->cuda_rows.unroll};

	for (uint32_t i = c->first; i < c->last && !r.red; i++)
		if (!c->g->op.at[i].dead && op_info[c->g->op.at[i].kind].red >= 0)
			r.red = &c->g->op.at[i];
	r.space = val_type(c->g, r.red->in[0]);
	r.axes = cu_red_axes(c->g, r.red);
	r.kept = ((1u << r.space->rank) - 1) & ~r.axes;
	rows_plan(c, &r);
	if (!r.row.n && !r.whole.n)
		return;
	vectors_choose(c, &r);
	cu_kernel_open(c, "");
	c->threads = r.block;
	r.count = cu_product(c, r.space, r.axes);
	r.number = cu_fresh(c, 'i');
	Scope s = rows_open(c, &r, cu_product(c, r.space, r.kept));

	for (int i = 0; i < r.space->rank; i++)
		r.ix[i] = "0";
	cu_take_apart(c, r.space, r.kept, r.number, r.ix);
	for (uint32_t k = 0; k < r.atom.n; k++)
		r.atom.at[k].warp = threads == WARP;
	held_load(c, &r);
	for (int p = 0; p < r.nphase; p++)
		rows_pass(c, &r, p);
	rows_store(c, &r);
	cu_scope_close(c, s);
	int64_t all = cu_full_product(r.space, r.kept);

	cu_kernel_close(c,
	                pieces > 1         ? arena_printf(c->a, "a row to %d blocks", pieces)
	                : threads == BLOCK ? "a row to a block"
	                : threads == WARP ? "a row to a warp"
	                                   : "a row to a thread",
	                cu_tiles_along(all * pieces, r.block / threads));
	for (uint32_t k = 0; k < r.row.n; k++)
		c->ready[r.row.at[k].v.id] = true;
	for (uint32_t k = 0; k < r.whole.n; k++)
		c->ready[r.whole.at[k].v.id] = true;
}
