/* rnn.c: the recurrences lstm.cells, gru.cells and their gradients: all steps in one kernel.
 *
 * In: a group of that one op, in f32, row-major, W_hh in bf16 where the CPU multiplies pairs of that.
 * Out: a kernel that packs W_hh into the group's workspace, and the main one. A task is a block of examples: their
 * recurrences are independent, so nobody waits for anybody between steps. Per step one product with the packed weights
 * through the microkernel. Forward a panel holds the same vector of units of all gates, so that a tile of sums is all
 * that the gates' arithmetic needs: it is applied while the tile is in the L1. Backward a step first makes the gates'
 * gradients from the kept gates and the running gradients, then multiplies by W_hh. States and running gradients lie
 * in the workspace in rows of their own, which keeps the rows of a tile in different cache sets. Tasks are small, as a
 * thread's share of them runs as one: the more examples, the less often the weights are read. Every sum is one chain
 * over the columns of W_hh, so how examples are grouped into tiles, tasks and threads changes no bit. Long products go
 * by Strassen's algorithm (strassen.c), where the number of examples is fixed: examples 2i and 2i + 1 are the upper
 * and the lower half of the rows, whoever has them; the left and the right half of the columns are the first two gates
 * and the others (lstm), or the first half of all units and the other (gru, and backward). The seven sums of the
 * weights are made once, those of a step's rows before its products. Of bf16 weights a step multiplies a copy of the
 * states, or the gates' gradients, rounded to bf16, which the step before leaves there; all else is f32.
 * Plans of kernels, and what is refused: rnn_params.c. */
#include "rnn_parts.h"

/* ---------------------------------------------------------------- vectors of units */
typedef struct Unit {        /* W units of one example: what is the same for all their loads and stores */
	Emit *e;
	V j, mask;               /* first unit; lanes that exist, NULL: all */
	int64_t h;
} Unit;

static V
unit_at(const Unit *u, V row, int block)
{
	return ptr_at(u->e, row, i_mul_k(u->e, i_add_k(u->e, u->j, block * u->h), 4));
}

/* Block `block` of a row that consists of blocks of h elements. */
static Cell
unit_load(const Unit *u, V row, int block)
{
	return cell_of(vec_load(u->e, unit_at(u, row, block), u->mask), true, DT_f32);
}

static void
unit_store(const Unit *u, V row, int block, Cell c)
{
	vec_store(u->e, unit_at(u, row, block), cell_vec(u->e, c), u->mask);
}

/* The same rounded to bf16, to a row of that. */
static void
half_store(const Unit *u, V row, int block, Cell c)
{
	Emit *e = u->e;
	V v = vec_half(e, cell_vec(e, c), DT_bf16), at = ptr_at(e, row, i_mul_k(e, i_add_k(e, u->j, block * u->h), 2));
	V args[4] = {v, at, LLVMConstInt(e->l->i32, 2, 0), u->mask};

	if (u->mask)
		intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
	else
		LLVMSetAlignment(LLVMBuildStore(here(e), v, at), 2);
}

static Cell add(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_ADD, a, b); }
static Cell sub(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_SUB, a, b); }
static Cell mul(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_MUL, a, b); }
static Cell one_minus(Emit *e, Cell a) { return sub(e, cell_const(e, DT_f32, 1), a); }
static Cell zero(Emit *e) { return cell_of(LLVMConstNull(vec_of(e, e->l->f32)), true, DT_f32); }

static Cell
apply(Emit *e, OpKind k, Cell x)
{
	const Cell var[7] = {x};

	return expr_emit(e, op_info[k].expr, var, DT_f32);
}

/* live ? a : b; live NULL: a. */
static Cell
if_live(Emit *e, V live, Cell a, Cell b)
{
	return live ? cell_of(LLVMBuildSelect(here(e), live, cell_vec(e, a), cell_vec(e, b), ""), true, DT_f32) : a;
}

/* ---------------------------------------------------------------- one kernel being emitted */
/* Row `row` of an operand or result [N,T,blocks H] at step t, or of [N,H] for blocks 0. */
static V
row_of(const RnnMain *m, V base, V row, V t, int64_t blocks)
{
	Mem steps = mem_dense(m->e, base, DT_f32, m->s->n.n, m->s->t, blocks, m->s->h),
	    rows = mem_dense(m->e, base, DT_f32, m->s->n.n, m->s->h);

	return !base ? NULL : blocks ? mem_at(m->e, &steps, row, t) : mem_at(m->e, &rows, row);
}

/* Rows of a state in the workspace. */
static Mem
state_region(const RnnMain *m, int which)
{
	return mem_axes(m->e, ptr_at(m->e, m->ws, k64(m->e, m->s->state[which])), BY(m->s->state_row));
}

/* The same of states of bf16, before even steps or odd ones. */
static Mem
pair_region(const RnnMain *m, int which)
{
	return mem_axes(m->e, ptr_at(m->e, m->ws, k64(m->e, m->s->pair[which])), BY(m->s->pair_row));
}

static V
state_row(const RnnMain *m, int which, V row)
{
	Mem rows = state_region(m, which);

	return mem_at(m->e, &rows, row);
}

/* The row of a step's gradients of the gates, which begin at `grads`: the product reads it. */
static V
grad_row(const RnnMain *m, V grads, V row)
{
	Mem rows = mem_axes(m->e, grads, BY(m->s->grad_row));

	return mem_at(m->e, &rows, row);
}

static V
is_live(const RnnMain *m, V row, V t)
{
	Emit *e = m->e;

	if (!m->length)
		return NULL;
	V n = cell_cast(e, load_at(e, m->length, m->length_type, (Off){.s = row}), DT_i64).v;

	return LLVMBuildICmp(here(e), LLVMIntSLT, t, n, "live");
}

static Unit
unit_open(Emit *e, V j, int64_t h)
{
	return (Unit){e, j, h % e->W ? mask_below(e, i_sub(e, k64(e, h), j)) : NULL, h};
}

/* To block `block` of a row of a result, if anybody reads that. */
static void
result_store(const RnnMain *m, const Unit *u, V row, int block, Cell c)
{
	if (!row)
		return;
	u->e->stream = m->streams && !u->mask;
	unit_store(u, row, block, c);
	u->e->stream = false;
}

/* Copies [N,H] rows between the arena and a state of the workspace; either may be absent. */
static void
copy_state(const RnnMain *m, V arena, int which, bool in)
{
	Emit *e = m->e;

	if (!arena)
		return;
	LOOP(e, row, m->lo, m->hi, 1) LOOP(e, j, m->j, m->end, e->W) {
		Unit u = unit_open(e, j, m->s->h);
		V a = row_of(m, arena, row, NULL, 0), b = state_row(m, which, row);

		Cell x = unit_load(&u, in ? a : b, 0);

		unit_store(&u, in ? b : a, 0, x);
		if (in && !which && m->s->pair_row) {
			Mem rounded = pair_region(m, 0);

			half_store(&u, mem_at(e, &rounded, row), 0, x);
		}
	}
}

/* ---------------------------------------------------------------- forward */
/* c' = f c + i g, h = o tanh(c'). gx[k] and sum[k]: what the input and the step add to gate k. */
static Cell
lstm_unit(const RnnMain *m, const Unit *u, V row, V t, V live, const Cell *gx, const Cell *sum, Cell *state)
{
	Emit *e = m->e;
	V gates = row_of(m, m->out[2], row, t, 4), cells = row_of(m, m->out[1], row, t, 1),
	  c_row = state_row(m, 2, row);
	Cell g[4], c = unit_load(u, c_row, 0), next, h;

	for (int k = 0; k < 4; k++) {
		g[k] = apply(e, k == 2 ? OP_tanh : OP_sigmoid, add(e, gx[k], sum[k]));
		result_store(m, u, gates, k, if_live(e, live, g[k], zero(e)));
	}
	next = cell_fma(e, g[0], g[2], mul(e, g[1], c));
	h = mul(e, g[3], apply(e, OP_tanh, next));
	next = if_live(e, live, next, c);
	unit_store(u, c_row, 0, next);
	result_store(m, u, cells, 0, next);
	*state = if_live(e, live, h, *state);
	return if_live(e, live, h, zero(e));
}

/* h' = n + z (h - n), n = tanh(gx_n + r (U h + b)_n). */
static Cell
gru_unit(const RnnMain *m, const Unit *u, V row, V t, V live, const Cell *gx, const Cell *sum, Cell *state)
{
	Emit *e = m->e;
	V gates = row_of(m, m->out[1], row, t, 4);
	Cell s[3], g[4], h;

	for (int k = 0; k < 3; k++)
		s[k] = add(e, sum[k], unit_load(u, m->in[2], k));
	g[0] = apply(e, OP_sigmoid, add(e, gx[0], s[0]));
	g[1] = apply(e, OP_sigmoid, add(e, gx[1], s[1]));
	g[2] = apply(e, OP_tanh, cell_fma(e, g[0], s[2], gx[2]));
	g[3] = s[2];
	for (int k = 0; k < 4; k++)
		result_store(m, u, gates, k, if_live(e, live, g[k], zero(e)));
	h = cell_fma(e, g[1], sub(e, *state, g[2]), g[2]);
	*state = if_live(e, live, h, *state);
	return if_live(e, live, h, zero(e));
}

/* A step forward: when it is, rows of h before and after it, and the same of bf16, NULL where those are not needed. */
typedef struct Step { V t, from, to, pairs_from, pairs_to; } Step;

/* The gates of `count` examples from `first` on, whose sums lie in `tile` and what the input adds in `input`,
 * [example][gate][unit of the panel]. */
static void
gates_tile(const RnnMain *m, const Step *step, V tile, V input, V first, V count, V panel)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int w = s->p.lanes;
	Mem sums = mem_dense(e, tile, DT_f32, s->p.mr, s->gates, w), inputs = mem_dense(e, input, DT_f32, s->p.mr,
	                                                                                s->gates, w),
	    before = mem_axes(e, step->from, BY(s->state_row)), after = mem_axes(e, step->to, BY(s->state_row)),
	    rounded = mem_axes(e, step->pairs_to, BY(s->pair_row));

	EACH(e, i, count) {
		V row = i_add(e, first, i), live = is_live(m, row, step->t);
		Mem own = mem_part(e, &sums, i), added = mem_part(e, &inputs, i);
		Unit u = unit_open(e, i_mul_k(e, panel, w), s->h);
		Cell sum[4], gx[4], y, state = unit_load(&u, mem_at(e, &before, row), 0);

		for (int k = 0; k < s->gates; k++) {
			V gate = k64(e, k);

			sum[k] = cell_of(vec_load(e, mem_at(e, &own, gate), NULL), true, DT_f32);
			gx[k] = cell_of(vec_load(e, mem_at(e, &added, gate), NULL), true, DT_f32);
		}
		y = (s->lstm ? lstm_unit : gru_unit)(m, &u, row, step->t, live, gx, sum, &state);
		unit_store(&u, mem_at(e, &after, row), 0, state);
		if (step->pairs_to)
			half_store(&u, mem_at(e, &rounded, row), 0, state);
		result_store(m, &u, row_of(m, m->out[0], row, step->t, 1), 0, y);
	}
}

/* Copies what the input adds to a tile's gates. Its lines lie an example's steps apart, mostly in one set of each
 * cache: they would not wait there for the end of the products. */
static void
gates_copy(const RnnMain *m, V first, V count, V panel, V t, V to)
{
	Emit *e = m->e;
	int64_t w = m->s->p.lanes;
	Mem tile = mem_dense(e, to, DT_f32, m->s->p.mr, m->s->gates, w);

	EACH(e, i, count) {
		V row = row_of(m, m->in[0], i_add(e, first, i), t, m->s->gates);
		Mem out = mem_part(e, &tile, i);
		Unit u = unit_open(e, i_mul_k(e, panel, w), m->s->h);

		for (int k = 0; k < m->s->gates; k++)
			vec_store(e, mem_at(e, &out, k64(e, k)), cell_vec(e, unit_load(&u, row, k)), NULL);
	}
}

/* Fetches what a unit-wise part will read soon: `blocks` blocks of the row at step t. */
static void
units_fetch(const RnnMain *m, V base, V row, V t, int64_t blocks, V j)
{
	Unit u = {m->e, j, NULL, m->s->h};
	V at = row_of(m, base, row, t, blocks);

	for (int k = 0; k < blocks; k++)
		prefetch(m->e, unit_at(&u, at, k), 2);
}

/* What the input adds to the gates of these examples in the panel after this one, or in the next step's first: each
 * line is a line of memory by itself, and nobody else would ask for it in time. */
static void
gates_fetch(const RnnMain *m, V first, V count, V panel, V t)
{
	Emit *e = m->e;
	V next = i_add_k(e, panel, 1), last = LLVMBuildICmp(here(e), LLVMIntEQ, next, m->panels, "");
	V then = m->s->reverse ? i_max(e, i_sub_k(e, t, 1), k64(e, 0)) : i_min_k(e, i_add_k(e, t, 1), m->s->t - 1);
	V at = LLVMBuildSelect(here(e), last, m->panel, next, ""), step = LLVMBuildSelect(here(e), last, then, t, "");

	EACH(e, i, count)
		units_fetch(m, m->in[0], i_add(e, first, i), step, m->s->gates, i_mul_k(e, at, m->s->p.lanes));
}

/* Memory of the function's own on a cache line: `count` elements of f32. */
static V
own_floats(Emit *e, int64_t count)
{
	V v = slot_new(e, LLVMArrayType2(e->l->f32, (uint64_t)count));

	LLVMSetAlignment(v, 64);
	return v;
}

/* What a forward kernel has in memory beside the states: tiles of sums and of what the input adds, one for each side
 * (of the gru by halves, where a tile has both rows of its pairs); with halves the products; panels of weights. */
typedef struct Forward {
	int sides, together;     /* examples of a row of a tile: 2 with halves */
	Mem sums, input;         /* [side] */
	V products;
	Mem halves_weights;      /* [panel][product][k2][number] */
	Mem weights;             /* [panel][part] */
} Forward;

static Forward
forward_regions(const RnnMain *m)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, columns = (int64_t)s->gates * s->p.lanes;
	Forward f = {.sides = s->halves && !s->lstm ? 2 : 1, .together = s->halves ? 2 : 1};
	int64_t floats = f.together * f.sides * s->p.mr * columns;
	V weights = m->weights;

	f.sums = mem_axes(e, own_floats(e, floats), BY(F32(2 * s->p.mr * columns)));
	f.input = mem_axes(e, own_floats(e, floats), BY(F32(2 * s->p.mr * columns)));
	f.products = s->halves ? own_floats(e, PRODUCTS * s->p.mr * nr) : NULL;
	f.halves_weights = mem_dense(e, weights, DT_f32, s->npanel, PRODUCTS, s->k2, nr);
	f.weights = mem_axes(e, weights, BY(F32(s->h / s->unit * columns)), BY(F32(s->h / s->unit * nr)));
	return f;
}

/* The panel's units of all examples of these tasks, at a step: their sums, tile by tile, and the gates on each. */
static void
panel_forward(const RnnMain *m, const Forward *f, V panel, const Step *step)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes;
	V part[2] = {panel, i_add_k(e, panel, s->npanel)};
	Mem rows_from = s->pairs ? mem_axes(e, step->pairs_from, BY(s->pair_row))
	                         : mem_axes(e, step->from, BY(s->state_row)),
	    parts = mem_axes(e, f->sums.base, BY(F32(nr)));

	TILES(e, at, count, i_div_k(e, i_sub(e, m->hi, m->lo), f->together), s->p.mr) {
		V first = i_add(e, m->lo, i_mul_k(e, at, f->together)), rows = i_mul_k(e, count, f->together);

		for (int i = 0; i < f->sides; i++)
			gates_copy(m, first, rows, part[i], step->t, mem_at(e, &f->input, k64(e, i)));
		if (f->sides == 1)
			gates_fetch(m, first, rows, panel, step->t);
		if (s->halves)
			rnn_halves_tile(m, i_div_k(e, first, 2), count, mem_at(e, &f->halves_weights, panel),
			f->products,
			                f->sums.base);
		for (int i = 0; i < s->parts && !s->halves; i++)
			tile_call(e, &m->tiles, count, panel, s->npanel, mem_at(e, &rows_from, first),
			          mem_at(e, &f->weights, panel, k64(e, i)), mem_at(e, &parts, k64(e, i)), NULL, NULL,
			          m->strides, NULL);
		for (int i = 0; i < f->sides; i++)
			gates_tile(m, step, mem_at(e, &f->sums, k64(e, i)), mem_at(e, &f->input, k64(e, i)), first,
			           rows, part[i]);
	}
}

/* By units turn 0 makes the states ready, turn i does step i - 1, and the last one hands the states on; by examples all
 * of it is done at once. */
static V
steps_from(const RnnMain *m)
{
	return m->turn ? i_max(m->e, i_sub_k(m->e, m->turn, 1), k64(m->e, 0)) : k64(m->e, 0);
}

static V
steps_to(const RnnMain *m)
{
	return m->turn ? m->turn : k64(m->e, m->s->t);
}

#define BEFORE_STEPS(m) LOOP((m)->e, before, (m)->turn ? (m)->turn : k64((m)->e, 0), k64((m)->e, 1), 1)
#define BEHIND_STEPS(m) \
	LOOP((m)->e, behind, k64((m)->e, (m)->s->t), \
	     (m)->turn ? i_add_k((m)->e, (m)->turn, 1) : k64((m)->e, (m)->s->t + 1), 1)

static void
forward_emit(RnnMain *m)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, columns = (int64_t)s->gates * s->p.lanes;
	V start = m->in[s->lstm ? 2 : 3], state[2], pairs[2];
	Forward f = forward_regions(m);

	m->strides = strides_of_constants(e, (const int64_t[S_COUNT]){[S_AM] = s->halves  ? s->sums_row
	                                                                     : s->pairs ? s->pair_row
	                                                                                : s->state_row,
	                                                            [S_AK] = 4,
	                                                            [S_BK] = F32(nr),
	                                                            [S_CM] = F32(s->halves ? nr : columns),
	                                                            [S_NK] = s->halves ? s->k2 : s->h / s->unit});
	for (int i = 0; i < 2; i++) {
		state[i] = state_region(m, i).base;
		pairs[i] = s->pairs ? pair_region(m, i).base : NULL;
	}
	BEFORE_STEPS(m) {
		copy_state(m, start, 0, true);
		if (s->lstm)
			copy_state(m, m->in[3], 2, true);
	}
	LOOP(e, step, steps_from(m), steps_to(m), 1) {
		V is_odd = LLVMBuildICmp(here(e), LLVMIntNE, i_rem_k(e, step, 2), k64(e, 0), "");
		Step now = {.t = s->reverse ? i_sub(e, k64(e, s->t - 1), step) : step,
		            .from = LLVMBuildSelect(here(e), is_odd, state[1], state[0], ""),
		            .to = LLVMBuildSelect(here(e), is_odd, state[0], state[1], "")};

		if (s->pairs) {
			now.pairs_from = LLVMBuildSelect(here(e), is_odd, pairs[1], pairs[0], "");
			now.pairs_to = LLVMBuildSelect(here(e), is_odd, pairs[0], pairs[1], "");
		}
		if (s->halves)
			rnn_halves_sums(m, now.from, s->state_row);
		LOOP(e, panel, m->panel, m->panels, 1)
			panel_forward(m, &f, panel, &now);
	}
	BEHIND_STEPS(m) {
		copy_state(m, m->out[s->lstm ? 3 : 2], (int)(s->t % 2), false);
		if (s->lstm)
			copy_state(m, m->out[4], 2, false);
	}
}

/* ---------------------------------------------------------------- backward */
/* Stores one gate's gradient where the product reads it and, if anybody wants it, in the result. */
static void
grad_store(const RnnMain *m, const Unit *u, V row, V out, int gate, V live, Cell d)
{
	Emit *e = m->e;

	d = if_live(e, live, d, zero(e));
	if (row)
		(m->s->pairs ? half_store : unit_store)(u, row, gate, d);
	result_store(m, u, out, gate, d);
}

/* Operand `base` [N,T,H] at the step processed before step `step` (which is at t), or `start` [N,H] at the first or
 * where that was past the length. */
static V
row_before(const RnnMain *m, V base, V start, V row, V step, V t)
{
	Emit *e = m->e;
	V before = m->s->reverse ? i_min_k(e, i_add_k(e, t, 1), m->s->t - 1)
	                         : i_max(e, i_sub_k(e, t, 1), k64(e, 0)),
	  live = is_live(m, row, before);
	V first = LLVMBuildICmp(here(e), LLVMIntEQ, step, k64(e, 0), "");

	if (live)
		first = LLVMBuildOr(here(e), first, LLVMBuildNot(here(e), live, ""), "");
	return LLVMBuildSelect(here(e), first, row_of(m, start, row, NULL, 0), row_of(m, base, row, before, 1), "");
}

static void
lstm_unit_back(const RnnMain *m, const Unit *u, V d, V row, V step, V t, V live)
{
	Emit *e = m->e;
	V dh_row = state_row(m, 0, row), dc_row = state_row(m, 1, row), gates = row_of(m, m->in[3], row, t, 4),
	  out = row_of(m, m->out[0], row, t, 4);
	Cell g[4], dh = unit_load(u, dh_row, 0), dc = unit_load(u, dc_row, 0), h, c,
	           tc = apply(e, OP_tanh, unit_load(u, row_of(m, m->in[4], row, t, 1), 0));
	Cell before = unit_load(u, row_before(m, m->in[4], m->in[6], row, step, t), 0);

	for (int k = 0; k < 4; k++)
		g[k] = unit_load(u, gates, k);
	h = add(e, dh, unit_load(u, row_of(m, m->in[0], row, t, 1), 0));
	c = cell_fma(e, mul(e, h, g[3]), one_minus(e, mul(e, tc, tc)), dc);
	grad_store(m, u, d, out, 0, live, mul(e, mul(e, c, g[2]), mul(e, g[0], one_minus(e, g[0]))));
	grad_store(m, u, d, out, 1, live, mul(e, mul(e, c, before), mul(e, g[1], one_minus(e, g[1]))));
	grad_store(m, u, d, out, 2, live, mul(e, mul(e, c, g[0]), one_minus(e, mul(e, g[2], g[2]))));
	grad_store(m, u, d, out, 3, live, mul(e, mul(e, h, tc), mul(e, g[3], one_minus(e, g[3]))));
	unit_store(u, dc_row, 0, if_live(e, live, mul(e, c, g[1]), dc));
	unit_store(u, dh_row, 0, if_live(e, live, zero(e), dh));
}

static void
gru_unit_back(const RnnMain *m, const Unit *u, V d, V row, V step, V t, V live)
{
	Emit *e = m->e;
	V dh_row = state_row(m, 0, row), gates = row_of(m, m->in[2], row, t, 4), di = row_of(m, m->out[0], row, t, 3),
	  dhid = row_of(m, m->out[1], row, t, 3);
	Cell g[4], old = unit_load(u, dh_row, 0), h, dn, part,
	           before = unit_load(u, row_before(m, m->in[3], m->in[5], row, step, t), 0);

	for (int k = 0; k < 4; k++)
		g[k] = unit_load(u, gates, k);
	h = add(e, old, unit_load(u, row_of(m, m->in[0], row, t, 1), 0));
	dn = mul(e, mul(e, h, one_minus(e, g[1])), one_minus(e, mul(e, g[2], g[2])));
	part = mul(e, mul(e, dn, g[3]), mul(e, g[0], one_minus(e, g[0])));
	grad_store(m, u, d, di, 0, live, part);
	grad_store(m, u, NULL, dhid, 0, live, part);
	part = mul(e, mul(e, h, sub(e, before, g[2])), mul(e, g[1], one_minus(e, g[1])));
	grad_store(m, u, d, di, 1, live, part);
	grad_store(m, u, NULL, dhid, 1, live, part);
	grad_store(m, u, NULL, di, 2, live, dn);
	grad_store(m, u, d, dhid, 2, live, mul(e, dn, g[0]));
	unit_store(u, dh_row, 0, if_live(e, live, mul(e, h, g[1]), old));
}

/* Gradients of the gates at step t (`step` forward), of these tasks' examples and units, to `grads`. */
static void
gates_back(const RnnMain *m, V step, V t, V grads)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;

	LOOP(e, row, m->lo, m->hi, 1) {
		V live = is_live(m, row, t), to = grad_row(m, grads, row);
		V next = i_min(e, i_add_k(e, row, 1), i_sub_k(e, m->hi, 1));

		LOOP(e, j, m->j, m->end, e->W) {
			Unit u = unit_open(e, j, s->h);

			units_fetch(m, m->in[0], next, t, 1, j);
			units_fetch(m, m->in[s->lstm ? 3 : 2], next, t, 4, j);
			units_fetch(m, m->in[s->lstm ? 4 : 3], next, t, 1, j);
			(s->lstm ? lstm_unit_back : gru_unit_back)(m, &u, to, row, step, t, live);
		}
	}
}

/* A step's gradients of the gates times W_hh, added to the running gradients of these tasks' examples and panels. */
static void
products_back(const RnnMain *m, V grads)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes;
	V weights = m->weights, dh = state_region(m, 0).base;
	/* [example], [panel], [example][panel] */
	Mem left = mem_axes(e, grads, BY(s->grad_row)),
	    right = mem_dense(e, weights, DT_f32, s->npanel, s->gates * s->h / s->unit, nr),
	    sums = mem_axes(e, dh, BY(s->state_row), BY(F32(nr)));

	if (s->halves) {
		rnn_halves_back(m, grads, weights, dh);
		return;
	}
	LOOP(e, panel, m->panel, m->panels, 1) {
		TILES(e, at, count, i_sub(e, m->hi, m->lo), s->p.mr) {
			V first = i_add(e, m->lo, at);

			tile_call(e, &m->tiles, count, panel, s->npanel, mem_at(e, &left, first),
			          mem_at(e, &right, panel), mem_at(e, &sums, first, panel), NULL, NULL, m->strides,
			          k64(e, 1));
		}
	}
}

/* The gradients of the gates of the i-th step backward. By units others still read those before: two take turns. */
static V
grads_of(const RnnMain *m, V i)
{
	Emit *e = m->e;
	Mem grads = mem_axes(e, ptr_at(e, m->ws, k64(e, m->s->grad)), BY(m->s->grads));

	return m->turn ? mem_at(e, &grads, i_rem_k(e, i, 2)) : grads.base;
}

static void
backward_emit(RnnMain *m)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes;

	m->strides = strides_of_constants(
	        e, (const int64_t[S_COUNT]){[S_AM] = s->halves ? s->sums_row : s->grad_row,
	                                    [S_AK] = 4,
	                                    [S_BK] = F32(nr),
	                                    [S_CM] = s->halves ? s->products_row : s->state_row,
	                                    [S_NK] = s->halves ? s->k2 : s->gates * s->h / s->unit});
	BEFORE_STEPS(m) {
		copy_state(m, m->in[1], 0, true);
		if (s->lstm)
			copy_state(m, m->in[2], 1, true);
	}
	/* by units the product of the step before this turn's gates, which take its sums */
	if (m->turn)
		LOOP(e, i, steps_from(m), steps_to(m), 1)
			products_back(m, grads_of(m, i));
	V from = m->turn ? m->turn : k64(e, 0),
	  to = m->turn ? i_min_k(e, i_add_k(e, m->turn, 1), s->t) : k64(e, s->t);

	LOOP(e, i, from, to, 1) {
		V step = i_sub(e, k64(e, s->t - 1), i), t = s->reverse ? i : step;

		gates_back(m, step, t, grads_of(m, i));
		if (!m->turn)
			products_back(m, grads_of(m, i));
	}
	BEHIND_STEPS(m) {
		copy_state(m, m->out[s->lstm ? 1 : 2], 0, false);
		if (s->lstm)
			copy_state(m, m->out[2], 1, false);
	}
}

/* ---------------------------------------------------------------- the op */
/* What these tasks are. */
static void
rnn_tasks(RnnMain *m)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	V all = extent(e, s->n);

	if (!s->units) {
		m->lo = grains_lo(e, s->rows), m->hi = grains_hi(e, s->rows, all);
		m->panel = m->j = k64(e, 0), m->panels = k64(e, s->npanel), m->end = k64(e, s->h);
		return;
	}
	int64_t of_panel = s->back ? (int64_t)s->p.nv * s->p.lanes : s->p.lanes;

	m->turn = i_div_k(e, e->arg_t0, s->npanel);
	V first = i_mul_k(e, m->turn, s->npanel);

	m->lo = k64(e, 0), m->hi = all;
	m->panel = i_sub(e, e->arg_t0, first), m->panels = i_sub(e, e->arg_t1, first);
	m->j = i_mul_k(e, m->panel, of_panel), m->end = i_min_k(e, i_mul_k(e, m->panels, of_panel), s->h);
}

void
rnn_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Group *group = &g->group.at[gc->group];
	RnnSeq s = {0};
	const char *why = rnn_read(g, op, gc->c->l.arch->vector_bytes, group->kernel, &s);
	bool has_length = attr_bool(op, A_has_length), fresh;
	int in[8], out[5], ws, weights, nin = op->nin - has_length;
	Emit e = {0};

	/* text may be anybody's */
	if (group->prepacked)
		rnn_prepack(&s);
	if (!why && group->prepacked && (s.packed > group->prepacked ||
	    !steady_for(g, gc->c->steady, op->in[rnn_weights(op)], gc->group)))
		why = "weights that change cannot be kept";
	if (why || s.bytes > group->workspace) {
		gc->c->error = arena_printf(gc->c->arena,
		                            "group %s: %s computes no %s of this shape in %lld bytes of workspace%s%s",
		                            group->name, group->kernel, op_info[op->kind].name,
		                            (long long)group->workspace, why ? ": " : "", why ? why : "");
		return;
	}
	scratch_check(gc, s.scratch);
	if (s.halves)
		gc->flops_less = (double)(s.n.n * s.t * s.h) * (double)(s.gates * s.h) / 4;
	for (int k = 0; k < op->nin; k++)
		in[k] = group_buffer(gc, op->in[k].id);
	for (int k = 0; k < op->nout; k++)
		out[k] = val_info(g, op->out[k])->offset >= 0 ? group_buffer(gc, op->out[k].id) : -1;
	ws = workspace_at(gc);
	weights = panels_at(gc);
	gc->once = s.prepacked;
	rnn_pack(gc, &s, in[rnn_weights(op)], weights, gk);
	gc->once = false;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		RnnMain m = {.e = &e, .s = &s, .ws = buffer(&e, ws), .weights = buffer(&e, weights)};
		int64_t bytes = 0;

		e.load_here = true;
		for (int k = 0; k < nin; k++)
			m.in[k] = buffer(&e, in[k]);
		for (int k = 0; k < op->nout; k++) {
			m.out[k] = out[k] >= 0 ? buffer(&e, out[k]) : NULL;
			if (out[k] >= 0 && val_type(g, op->out[k])->rank == 3)
				bytes += type_bytes(val_type(g, op->out[k]));
		}
		/* nothing of so much is in a cache when it is read; rows of a step, all steps of an example apart,
		 * would drive each other and the weights out of their sets. A panel's vectors must be whole lines */
		m.streams = bytes >= machine_of(g)->budget.l3 / 4 && F32(s.h) % 64 == 0 && F32(s.p.lanes) >= 64;
		if (has_length) {
			m.length = buffer(&e, in[nin]);
			m.length_type = (DType)val_type(g, op->in[nin])->dtype;
		}
		rnn_tasks(&m);
		m.tiles = tiles_make(&e, &s.p, (s.halves ? 1 : s.npanel) * s.p.nv * s.p.lanes, ANY_ROWS,
		                     (Steps){4, (int64_t)s.p.nv * F32(s.p.lanes)});
		if (s.back)
			backward_emit(&m);
		else
			forward_emit(&m);
	}
	Rows examples = {.rows = s.n.mul ? 1 : s.n.n,
	                 .mul = s.n.mul,
	                 .div = s.n.mul ? s.n.div : 1,
	                 .grain = s.rows,
	                 .shares = true};
	Rows units = {.rows = s.npanel, .div = 1, .grain = 1, .shares = true, .turns = s.t + 1};

	kernel_end(gc, &e, gk, fn, s.units ? units : examples, fresh, false);
}
