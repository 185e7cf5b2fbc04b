/* reduce.c: the rows of red.def as accumulators in registers.
 *
 * In: cells of the elements, in loops of others' making.   Out: the reduction's results. Lanes are either parts of one
 * reduction (lanes_reduced: joined by a halving tree at the end) or reductions of their own. sum and mean add; moments
 * adds x - K and (x - K)^2 with K the mean of the first vector (or the first element of a lane), so that a large common
 * mean cancels before rounding does, and combines by Chan, Golub, LeVeque 1979; logsumexp takes two passes, maximum
 * then sum; max, min and argmax let NaN win. Where one accumulator adds up more than CHAIN elements, sum, mean and
 * moments carry what rounding took from them (Knuth's two-sum, TAOCP 4.2.2): the error of a sum of equal signs would
 * grow with their number, most where many elements are equal, as behind a rectifier. Integers sum in i64, bool in i32.
 * Order is fixed by the shape: the same bits for any number of threads. */
#include "../cpu.h"
#include "red.h"
#include <string.h>

/* What the state of a join of extremes begins as. */
static Cell
lowest(Emit *e, DType dt, bool highest)
{
	if (dtype_is_float(dt))
		return cell_const(e, dt, highest ? __builtin_inf() : -__builtin_inf());
	int64_t edge = highest ? dtype_highest(dt) : dtype_lowest(dt);

	return cell_of(LLVMConstInt(ctype(e, dt), (unsigned long long)edge, 1), false, dt);
}

DType
state_dtype(const RedAcc *a, int s)
{
	return red_indexes(a->op) && s == 1 ? DT_i64 : a->dt;
}

static void
put(Emit *e, V slot, Cell c, bool vec)
{
	slot_set(e, slot, vec && !c.vec ? cell_vec(e, c) : c.v);
}

static Cell
get(Emit *e, const RedAcc *a, int u, int k)
{
	DType dt = state_dtype(a, k);

	return cell_of(slot_get(e, a->slot[u][k], ctype_v(e, dt, a->vec)), a->vec, dt);
}

RedAcc
acc_new(Emit *e, const Op *op, bool vec, bool lanes_reduced, int unroll, int64_t chain)
{
	enum { CHAIN = 1024 };
	const RedInfo *red = red_of(op);
	RedAcc a = {.op = op, .dt = red_dtype(op, (DType)val_type(e->g, op->in[0])->dtype), .nstate = red_states(op),
	            .npass = red->then == RED_EXPONENTIALS ? 2 : 1, .vec = vec, .lanes_reduced = lanes_reduced};
	Cell zero = cell_const(e, a.dt, 0), init[4] = {zero, zero, zero, zero};
	int nslot;

	if (red->join != RED_ADD)
		init[0] = lowest(e, a.dt, red->join == RED_LOW);
	if (red->join == RED_FIRST)
		init[1] = cell_of(k64(e, INT64_MAX), false, DT_i64);
	a.compensated = (red->sums || red->then == RED_SQUARES) && chain > CHAIN && a.dt == DT_f32;
	nslot = a.compensated ? 2 * a.nstate : a.nstate; /* what rounding took of state k: slot nstate + k */
	for (int u = 0; u < unroll; u++)
		for (int k = 0; k < nslot; k++) {
			a.slot[u][k] = slot_new(e, ctype_v(e, (DType)init[k].dt, vec));
			put(e, a.slot[u][k], init[k], vec);
		}
	return a;
}

/* In the lanes that do not count the neutral element stands. */
static Cell
neutral(Emit *e, const RedAcc *a, Cell x, Cell zero)
{
	if (!a->lanes_reduced || !e->mask)
		return x;
	return cell_select(e, cell_of(e->mask, true, DT_bool), x, zero);
}

static Cell
shuffle_down(Emit *e, Cell c, int by)
{
	V m[64];

	for (int i = 0; i < e->W; i++)
		m[i] = LLVMConstInt(e->l->i32, (unsigned)(i < by ? i + by : i), 0);
	return cell_of(LLVMBuildShuffleVector(here(e), c.v, LLVMGetPoison(LLVMTypeOf(c.v)),
	                                      LLVMConstVector(m, (unsigned)e->W), ""),
	               true, (DType)c.dt);
}

static Cell
lane0(Emit *e, Cell c)
{
	return c.vec ? cell_of(LLVMBuildExtractElement(here(e), c.v, k64(e, 0), ""), false, (DType)c.dt) : c;
}

Cell
horizontal_sum(Emit *e, Cell c)
{
	if (!c.vec)
		return c;
	for (int by = e->W / 2; by >= 1; by /= 2)
		c = cell_bin(e, EX_ADD, c, shuffle_down(e, c, by));
	return lane0(e, c);
}

/* moments: K is the mean of the first vector, or each lane's first element. */
void
acc_first(Emit *e, RedAcc *a, int u, Cell x, V lanes)
{
	if (red_of(a->op)->then != RED_SQUARES)
		return;
	x = cell_cast(e, x, a->dt);
	if (a->lanes_reduced && x.vec) {
		Cell n = cell_cast(e, cell_of(lanes, false, DT_i64), a->dt);

		x = cell_bin(e, EX_DIV, horizontal_sum(e, neutral(e, a, x, cell_const(e, a->dt, 0))), n);
	}
	/* an infinite or NaN K would hide where the first one stands; about 0 the sums find it themselves */
	Cell fin = cell_bin(e, EX_EQ, cell_bin(e, EX_SUB, x, x), cell_const(e, a->dt, 0));

	a->shift[u] = cell_select(e, fin, x, cell_const(e, a->dt, 0));
}

static Cell
beats(Emit *e, Cell x, Cell m, bool min)
{
	Cell c = cell_bin(e, min ? EX_LT : EX_GT, x, m);

	if (!dtype_is_float((DType)x.dt))
		return c;
	c = cell_bin(e, EX_OR, c, cell_bin(e, EX_NE, x, x));
	return cell_bin(e, EX_AND, c, cell_bin(e, EX_EQ, m, m));
}

static void
put_extremum(Emit *e, RedAcc *a, int u, Cell s, Cell x, bool min)
{
	x = neutral(e, a, x, lowest(e, a->dt, min));
	put(e, a->slot[u][0], cell_select(e, beats(e, x, s, min), x, s), a->vec);
}

/* State k, s, and x. */
static void
add_to(Emit *e, RedAcc *a, int u, int k, Cell s, Cell x)
{
	Cell d = cell_bin(e, EX_ADD, s, x);
	int rest = a->nstate + k;

	put(e, a->slot[u][k], d, a->vec);
	if (!a->compensated)
		return;
	Cell part = cell_bin(e, EX_SUB, d, s);
	Cell lost = cell_bin(e, EX_SUB, s, cell_bin(e, EX_SUB, d, part));

	lost = cell_bin(e, EX_ADD, lost, cell_bin(e, EX_SUB, x, part));
	put(e, a->slot[u][rest], cell_bin(e, EX_ADD, get(e, a, u, rest), lost), a->vec);
}

static void
step_add(Emit *e, RedAcc *a, int u, Cell s, Cell x)
{
	add_to(e, a, u, 0, s, neutral(e, a, x, cell_const(e, a->dt, 0)));
}

/* Of equals the lowest index: lanes take their elements in ascending order, so only larger ones replace; the first
 * element replaces the start, whatever it is. */
static void
step_first(Emit *e, RedAcc *a, int u, Cell s, Cell x, Cell index)
{
	Cell i = get(e, a, u, 1), none = cell_bin(e, EX_EQ, i, cell_of(k64(e, INT64_MAX), false, DT_i64));
	Cell c = cell_bin(e, EX_OR, beats(e, x, s, false), none);

	if (a->lanes_reduced && e->mask)
		c = cell_bin(e, EX_AND, c, cell_of(e->mask, true, DT_bool));
	put(e, a->slot[u][0], cell_select(e, c, x, s), a->vec);
	put(e, a->slot[u][1], cell_select(e, c, index, i), a->vec);
}

/* Both sums of one pass, about a->shift. */
static void
step_squares(Emit *e, RedAcc *a, int u, Cell s, Cell x)
{
	Cell d = neutral(e, a, cell_bin(e, EX_SUB, x, a->shift[u]), cell_const(e, a->dt, 0));

	add_to(e, a, u, 0, s, d);
	if (a->compensated)
		add_to(e, a, u, 1, get(e, a, u, 1), cell_bin(e, EX_MUL, d, d));
	else
		put(e, a->slot[u][1], cell_fma(e, d, d, get(e, a, u, 1)), a->vec);
}

static void
step_exponentials(Emit *e, RedAcc *a, int u, Cell s, Cell x)
{
	Cell zero = cell_const(e, a->dt, 0);

	x = math_call(e, MF_EXP, cell_bin(e, EX_SUB, x, a->shift[0]), x);
	put(e, a->slot[u][1], cell_bin(e, EX_ADD, s, neutral(e, a, x, zero)), a->vec);
}

void
acc_step(Emit *e, RedAcc *a, int u, int pass, Cell x, Cell index)
{
	const RedInfo *red = red_of(a->op);
	Cell s = get(e, a, u, pass == 1 ? 1 : 0);

	x = cell_cast(e, x, a->dt);
	if (!expr_is(red->element, 0))
		x = expr_emit(e, red->element, &x, a->dt);
	if (red->join != RED_ADD && red->then == RED_ONCE)
		x = cell_rounded(e, x); /* whoever looks for it finds it, in memory too */
	if (pass == 1)
		step_exponentials(e, a, u, s, x);
	else if (red->then == RED_SQUARES)
		step_squares(e, a, u, s, x);
	else if (red->join == RED_ADD)
		step_add(e, a, u, s, x);
	else if (red->join == RED_FIRST)
		step_first(e, a, u, s, x, index);
	else
		put_extremum(e, a, u, s, x, red->join == RED_LOW);
}

/* The shift of logsumexp: the maximum, or 0 where that is infinite (inf - inf is NaN). */
static Cell
safe_max(Emit *e, Cell m)
{
	Cell fin = cell_bin(e, EX_EQ, cell_bin(e, EX_SUB, m, m), cell_const(e, (DType)m.dt, 0));

	return cell_select(e, fin, m, cell_const(e, (DType)m.dt, 0));
}

static void
halve_max(Emit *e, Cell *m, bool min)
{
	for (int by = e->W / 2; by >= 1; by /= 2) {
		Cell o = shuffle_down(e, *m, by);

		*m = cell_select(e, beats(e, o, *m, min), o, *m);
	}
	*m = lane0(e, *m);
}

void
acc_pass_end(Emit *e, RedAcc *a, int unroll, int pass)
{
	if (red_of(a->op)->then != RED_EXPONENTIALS || pass != 0)
		return;
	Cell m = get(e, a, 0, 0);

	if (!a->lanes_reduced && unroll > 1)
		bug("logsumexp of unrolled lanes");
	for (int u = 1; u < unroll; u++) {
		Cell o = get(e, a, u, 0);

		m = cell_select(e, beats(e, o, m, false), o, m);
	}
	if (a->lanes_reduced && m.vec)
		halve_max(e, &m, false);
	a->state[0] = m;
	a->shift[0] = safe_max(e, m);
}

static void
argmax_join(Emit *e, Cell *v, Cell *i, Cell ov, Cell oi)
{
	Cell better = beats(e, ov, *v, false);
	Cell same = cell_bin(e, EX_OR, cell_bin(e, EX_EQ, ov, *v),
	    cell_bin(e, EX_AND, cell_bin(e, EX_NE, ov, ov), cell_bin(e, EX_NE, *v, *v)));
	Cell tie = cell_bin(e, EX_AND, same, cell_bin(e, EX_LT, oi, *i));
	/* lanes that saw nothing hold the largest index and never win a tie; one that saw only the start value wins
	 * over them */
	Cell c = cell_bin(e, EX_OR, better, tie);

	*v = cell_select(e, c, ov, *v);
	*i = cell_select(e, c, oi, *i);
}

/* What rounding took goes back to its sum; it is NaN where that is infinite. */
static void
acc_settle(Emit *e, RedAcc *a, int u)
{
	Cell zero = cell_const(e, a->dt, 0);

	for (int k = 0; k < a->nstate && a->compensated; k++) {
		Cell lost = get(e, a, u, a->nstate + k);

		lost = cell_select(e, cell_bin(e, EX_EQ, cell_bin(e, EX_SUB, lost, lost), zero), lost, zero);
		put(e, a->slot[u][k], cell_bin(e, EX_ADD, get(e, a, u, k), lost), a->vec);
		put(e, a->slot[u][a->nstate + k], zero, a->vec);
	}
}

/* Accumulator u into the first. */
static void
unrolled_join(Emit *e, RedAcc *a, int u)
{
	const RedInfo *red = red_of(a->op);
	Cell v, i;

	if (red->join == RED_FIRST) {
		v = get(e, a, 0, 0);
		i = get(e, a, 0, 1);
		argmax_join(e, &v, &i, get(e, a, u, 0), get(e, a, u, 1));
		put(e, a->slot[0][0], v, a->vec);
		put(e, a->slot[0][1], i, a->vec);
		return;
	}
	if (red->join != RED_ADD && red->then == RED_ONCE) {
		v = get(e, a, 0, 0);
		i = get(e, a, u, 0);
		put(e, a->slot[0][0], cell_select(e, beats(e, i, v, red->join == RED_LOW), i, v), a->vec);
		return;
	}
	/* sums; the largest of all stands since acc_pass_end */
	for (int k = red->join != RED_ADD; k < a->nstate; k++)
		put(e, a->slot[0][k], cell_bin(e, EX_ADD, get(e, a, 0, k), get(e, a, u, k)), a->vec);
}

void
acc_merge(Emit *e, RedAcc *a, int unroll)
{
	for (int u = 0; u < unroll; u++)
		acc_settle(e, a, u);
	for (int u = 1; u < unroll; u++)
		unrolled_join(e, a, u);
}

/* mean = K + s1 / n, M2 = s2 - s1^2 / n; nothing counted: weight 0, any mean. */
static void
moments_done(Emit *e, Cell s1, Cell s2, Cell k, Cell count, Cell state[3])
{
	Cell n = cell_bin(e, EX_FMAX, count, cell_const(e, (DType)count.dt, 1)), q = cell_bin(e, EX_DIV, s1, n);
	Cell m2 = cell_bin(e, EX_SUB, s2, cell_bin(e, EX_MUL, s1, q)), zero = cell_const(e, (DType)s1.dt, 0);

	state[0] = cell_bin(e, EX_ADD, k, q);
	state[1] = cell_select(e, cell_bin(e, EX_LT, m2, zero), zero, m2);
}

void
acc_done(Emit *e, RedAcc *a, int u, Cell count)
{
	const RedInfo *red = red_of(a->op);
	bool join = a->lanes_reduced && a->vec;
	Cell s0, s1 = {0};

	acc_settle(e, a, u);
	s0 = get(e, a, u, 0);
	count = cell_cast(e, count, red->then == RED_SQUARES ? a->dt : DT_i64);
	if (a->nstate > 1)
		s1 = get(e, a, u, 1);
	if (red->then == RED_EXPONENTIALS) { /* state[0] stands since pass 0 */
		a->state[1] = join ? horizontal_sum(e, s1) : s1;
	} else if (red->then == RED_SQUARES) {
		if (join) {
			s0 = horizontal_sum(e, s0);
			s1 = horizontal_sum(e, s1);
		}
		moments_done(e, s0, s1, a->shift[u], count, a->state);
	} else if (red->join == RED_ADD) {
		a->state[0] = join ? horizontal_sum(e, s0) : s0;
	} else if (red->join == RED_FIRST) {
		for (int by = e->W / 2; join && by >= 1; by /= 2)
			argmax_join(e, &s0, &s1, shuffle_down(e, s0, by), shuffle_down(e, s1, by));
		a->state[0] = join ? lane0(e, s0) : s0;
		a->state[1] = join ? lane0(e, s1) : s1;
	} else {
		if (join)
			halve_max(e, &s0, red->join == RED_LOW);
		a->state[0] = s0;
	}
}

/* Chan, Golub, LeVeque 1979. */
static void
squares_combine(Emit *e, const RedAcc *a, Cell s[3], const Cell t[3], Cell ns, Cell nt)
{
	Cell na = cell_cast(e, ns, a->dt), nb = cell_cast(e, nt, a->dt);
	Cell n = cell_bin(e, EX_FMAX, cell_bin(e, EX_ADD, na, nb), cell_const(e, a->dt, 1));
	Cell d = cell_bin(e, EX_SUB, t[0], s[0]), w = cell_bin(e, EX_DIV, nb, n);

	s[1] = cell_bin(e, EX_ADD, cell_bin(e, EX_ADD, s[1], t[1]),
	                cell_bin(e, EX_MUL, cell_bin(e, EX_MUL, d, d), cell_bin(e, EX_MUL, na, w)));
	s[0] = cell_fma(e, d, w, s[0]);
}

/* Each sum was taken about its own safe maximum. */
static void
exponentials_combine(Emit *e, Cell s[3], const Cell t[3])
{
	Cell m = cell_select(e, beats(e, t[0], s[0], false), t[0], s[0]), k = safe_max(e, m);
	Cell fa = math_call(e, MF_EXP, cell_bin(e, EX_SUB, safe_max(e, s[0]), k), m);
	Cell fb = math_call(e, MF_EXP, cell_bin(e, EX_SUB, safe_max(e, t[0]), k), m);

	s[1] = cell_bin(e, EX_ADD, cell_bin(e, EX_MUL, s[1], fa), cell_bin(e, EX_MUL, t[1], fb));
	s[0] = m;
}

void
state_combine(Emit *e, const RedAcc *a, Cell s[3], const Cell t[3], Cell ns, Cell nt)
{
	const RedInfo *red = red_of(a->op);

	if (red->then == RED_SQUARES)
		squares_combine(e, a, s, t, ns, nt);
	else if (red->then == RED_EXPONENTIALS)
		exponentials_combine(e, s, t);
	else if (red->join == RED_ADD)
		s[0] = cell_bin(e, EX_ADD, s[0], t[0]);
	else if (red->join == RED_FIRST)
		argmax_join(e, &s[0], &s[1], t[0], t[1]);
	else
		s[0] = cell_select(e, beats(e, t[0], s[0], red->join == RED_LOW), t[0], s[0]);
}

/* The row's value, of the state and the number of elements. */
static Cell
red_value(Emit *e, const RedAcc *a, const Cell s[3], Cell count)
{
	const Expr *v = red_of(a->op)->value;
	DType dt = dtype_is_float(a->dt) ? a->dt : DT_f64;
	Cell var[RED_VARS] = {[RED_S] = s[0], [RED_I] = s[1]};

	if (expr_is(v, RED_S) || expr_is(v, RED_I))
		return var[v->index];
	var[RED_S] = cell_cast(e, s[0], dt);
	if (expr_reads(v, RED_N))
		var[RED_N] = cell_cast(e, count, dt);
	return expr_emit(e, v, var, dt);
}

Cell
state_finish(Emit *e, const RedAcc *a, const Cell s[3], Cell count, int result)
{
	DType out = (DType)val_type(e->g, a->op->out[result])->dtype;
	RedThen then = red_of(a->op)->then;
	Cell r;

	if (then == RED_EXPONENTIALS)
		r = cell_bin(e, EX_ADD, safe_max(e, s[0]), math_call(e, MF_LOG, s[1], s[1]));
	else if (then == RED_SQUARES)
		r = result == 0 ? s[0] : cell_bin(e, EX_DIV, s[1], cell_cast(e, count, a->dt));
	else
		r = red_value(e, a, s, count);
	return cell_cast(e, r, out);
}

/* ---------------------------------------------------------------- lanes over a range */
void
lane_blocks(Emit *e, V lo, V hi, int unroll, BlockBody *body, void *cx)
{
	bool was = e->lanes;
	V mask = e->mask, start = lo;
	int64_t k = 0;
	bool known = is_const(i_sub(e, hi, lo), &k);
	Ix at[MAX_UNROLL];

	e->lanes = true;
	for (int u = unroll; u >= 1; u = u > 1 ? 1 : 0) {
		int64_t step = (int64_t)e->W * u;
		V end;

		if (known && k < step)
			continue;
		if (known)
			end = i_add_k(e, start, k / step * step);
		else
			end = i_add(e, start,
			            i_mul_k(e, i_div_k(e, i_max(e, i_sub(e, hi, start), k64(e, 0)), step), step));
		LOOP(e, i, start, end, step) {
			for (int j = 0; j < u; j++)
				at[j] = (Ix){.s = i_add_k(e, i, (int64_t)j * e->W), .c = 1};
			e->block_n = u;
			e->random.n = 0;
			body(e, cx, at, u);
			e->block_n = e->block_u = 0;
			e->random.n = 0;
		}
		start = end;
		k = known ? k % step : k;
	}
	if (!known || k)
		LOOP(e, i, start, hi, e->W) {
			at[0] = (Ix){.s = i, .c = 1};
			e->mask = mask_and(e, mask, mask_below(e, i_sub(e, hi, i)));
			body(e, cx, at, 1);
		}
	e->mask = mask;
	e->lanes = was;
}

typedef struct Single { LaneBody *body; void *cx; } Single;

static void
single_block(Emit *e, void *cx, const Ix *i, int n)
{
	Single *s = cx;

	for (int j = 0; j < n; j++) {
		e->block_u = j;
		s->body(e, s->cx, i[j], j);
	}
}

void
lane_loop(Emit *e, V lo, V hi, int unroll, LaneBody *body, void *cx)
{
	Single s = {body, cx};

	lane_blocks(e, lo, hi, unroll, single_block, &s);
}

/* ---------------------------------------------------------------- as part of an expression */
/* Loops over the reduced axes inside whatever is being computed: right anywhere, fast only for small axes. */
Cell
eval_reduce(Emit *e, const Op *op, int index, const Ix *ix)
{
	const Type *t = val_type(e->g, op->in[0]), *to = val_type(e->g, op->out[0]);
	int na;
	const int64_t *axes = attr_ints(op, A_axes, &na);
	uint32_t red = 0;
	Ix in[MAX_RANK], first[MAX_RANK];
	V count = k64(e, 1);
	int64_t elements = 1;
	bool keep = to->rank == t->rank;

	for (int i = 0; i < na; i++)
		red |= 1u << axes[i];
	for (int j = 0, o = 0; j < t->rank; j++) {
		first[j] = red >> j & 1 ? ix_k(e, 0) : ix[keep ? j : o];
		o += !(red >> j & 1);
		if (red >> j & 1) {
			count = i_mul(e, count, extent(e, t->axis[j]));
			elements *= t->axis[j].n;
		}
	}
	RedAcc a = acc_new(e, op, e->lanes, false, 1, elements);

	memcpy(in, first, sizeof in);
	if (red_of(op)->then == RED_SQUARES)
		acc_first(e, &a, 0, e->eval(e, op->in[0], first), NULL);
	for (int pass = 0; pass < a.npass; pass++) {
		OVER(e, t, red, in) {
			V number = k64(e, 0);

			for (int j = 0; j < t->rank; j++)
				if (red >> j & 1)
					number = i_add(e, i_mul(e, number, extent(e, t->axis[j])), in[j].s);
			acc_step(e, &a, 0, pass, e->eval(e, op->in[0], in), cell_of(number, false, DT_i64));
		}
		acc_pass_end(e, &a, 1, pass);
	}
	Cell n = cell_of(count, false, DT_i64);

	acc_done(e, &a, 0, n);
	return state_finish(e, &a, a.state, n, index);
}
