/* rows_kernel.c: a kernel of reductions over one space: kept axes x reduced axes, one or several passes over the
 * reduced range for each kept index.
 *
 * In: reductions of one space, their phases, the outputs that hang on them.   Out: the kernel. Results of a phase are
 * scalars (or lanes) that the next phase and the outputs use. The innermost axis in memory gives the lanes, whether it
 * is reduced (lanes join at the end) or kept (lanes are apart). */
#include "../cpu.h"
#include "red.h"
#include <string.h>

typedef struct Rk {              /* one kernel over kept x reduced */
	Emit *e;
	GroupCx *gc;
	const Nest *n;
	Red **red; int nred, nphase;
	const Out *out; int nout;
	const LoopAxis *kl[MAX_RANK], *rl[MAX_RANK]; int nk, nr;
	V rlo, rhi;              /* of the first reduced loop */
	V count;                 /* elements of [rlo, rhi) x the other reduced loops */
	Ix ix[MAX_RANK];
	bool kept_lanes;
	bool unrolled;           /* reduced loops of few steps are written out: a phase knows what others computed */
	V at; bool fetches;      /* kept lanes: where the innermost reduced loop is; rows to come are asked for */
	bool partial; V piece; int64_t npiece;
	Cell *column; int64_t row, ncolumn; /* [output][row]: a row's elements, where lanes go along rows */
	/* while a phase runs */
	int phase, pass, unroll, nu;
	Ix set[MAX_UNROLL][MAX_RANK];
	RedAcc *acc;             /* [nred][MAX_UNROLL], kept lanes use the second index */
} Rk;

/* ---------------------------------------------------------------- the body of a kernel */
static void
set_reduced(Rk *r, int i, Ix iv)
{
	int n = r->kept_lanes ? r->nu : 1;

	loop_set(r->e, r->rl[i], iv, r->ix);
	for (int u = 0; u < n; u++)
		loop_set(r->e, r->rl[i], iv, r->set[u]);
}

static V
reduced_hi(Rk *r, int i)
{
	return i == 0 ? r->rhi : loop_extent(r->e, r->n, r->rl[i]);
}

static V
reduced_lo(Rk *r, int i)
{
	return i == 0 ? r->rlo : k64(r->e, 0);
}

static Cell
element_index(Rk *r, const Ix *ix, const Red *d)
{
	for (int j = 0; j < d->t->rank; j++)
		if (d->mask >> j & 1)
			return ix_cell(r->e, ix[j], DT_i64);
	return cell_of(k64(r->e, 0), false, DT_i64);
}

static void
step_all(Rk *r, const Ix *ix, int acc_set, int u)
{
	for (int i = 0; i < r->nred; i++) {
		RedAcc *a = &r->acc[i * MAX_UNROLL + acc_set];

		if (r->red[i]->phase != r->phase || r->pass >= a->npass)
			continue;
		Cell x = lane_eval(r->e, a->op->in[0], ix);

		acc_step(r->e, a, u, r->pass, x, red_indexes(a->op) ? element_index(r, ix, r->red[i]) : x);
	}
}

static void
reduced_lane(Emit *e, void *cx, Ix i, int u)
{
	Rk *r = cx;

	loop_set(e, r->rl[r->nr - 1], i, r->ix);
	step_all(r, r->ix, 0, u);
}

/* Scalar loops over the reduced axes from number i on, but for the one that lanes go along; a step in the innermost
 * one. */
static void
over_reduced(Rk *r, int i, void (*inner)(Rk *))
{
	if (i >= r->nr - !r->kept_lanes) {
		inner(r);
		return;
	}
	if (r->unrolled) {
		for (int64_t k = 0; k < loop_full(r->n, r->rl[i]); k++) {
			set_reduced(r, i, ix_k(r->e, k));
			over_reduced(r, i + 1, inner);
		}
		return;
	}
	LOOP(r->e, at, reduced_lo(r, i), reduced_hi(r, i), 1) {
		set_reduced(r, i, ix_s(at));
		r->at = at;
		over_reduced(r, i + 1, inner);
	}
}

/* Asks for what the block's lanes read of a row to come: a row's lines lie one row apart, so nobody else would. The
 * values are 0 and mean nothing: what is remembered of them is forgotten. */
static void
fetch_ahead(Rk *r)
{
	enum { AHEAD = 32 }; /* rows; on a Zen 4 8 and 16 were slower, 64 no faster */
	Emit *e = r->e;
	int last = r->nr - 1;
	V ahead = i_min(e, i_add_k(e, r->at, AHEAD), i_sub_k(e, reduced_hi(r, last), 1));
	uint32_t known[MAX_LEVEL];

	for (int l = 0; l <= e->depth; l++)
		known[l] = e->lv[l].memo.n;
	e->fetches = true;
	for (int u = 0; u < r->nu; u++) {
		Ix ix[MAX_RANK];

		memcpy(ix, r->set[u], sizeof ix);
		loop_set(e, r->rl[last], ix_s(ahead), ix);
		for (int i = 0; i < r->nred; i++)
			if (r->red[i]->phase == r->phase)
				lane_eval(e, r->red[i]->op->in[0], ix);
	}
	e->fetches = false;
	for (int l = 0; l <= e->depth; l++)
		e->lv[l].memo.n = known[l];
}

static void
inner_steps(Rk *r)
{
	if (r->kept_lanes) {
		if (r->fetches)
			fetch_ahead(r);
		for (int u = 0; u < r->nu; u++) {
			r->e->block_u = u;
			step_all(r, r->set[u], u, 0);
		}
		r->e->block_u = 0;
		return;
	}
	lane_loop(r->e, reduced_lo(r, r->nr - 1), reduced_hi(r, r->nr - 1), r->unroll, reduced_lane, r);
}

static void
first_elements(Rk *r)
{
	Emit *e = r->e;
	V lanes = NULL, mask = e->mask;
	bool was = e->lanes;

	for (int i = 0; i < r->nr; i++) {
		Ix at = ix_s(reduced_lo(r, i));

		if (!r->kept_lanes && i == r->nr - 1) {
			V n = i_sub(e, reduced_hi(r, i), at.s);
			int64_t k;

			lanes = i_min_k(e, n, e->W);
			if (!is_const(lanes, &k) || k < e->W)
				e->mask = mask_below(e, lanes);
			e->lanes = true;
			at.c = 1;
		}
		set_reduced(r, i, at);
	}
	for (int i = 0; i < r->nred; i++)
		for (int u = 0; u < (r->kept_lanes ? r->nu : 1); u++) {
			RedAcc *a = &r->acc[i * MAX_UNROLL + u];

			if (r->red[i]->phase != r->phase || red_of(a->op)->then != RED_SQUARES)
				continue;
			acc_first(e, a, 0, lane_eval(e, a->op->in[0], r->kept_lanes ? r->set[u] : r->ix), lanes);
			for (int j = 1; j < MAX_UNROLL; j++)
				a->shift[j] = a->shift[0];
		}
	e->mask = mask;
	e->lanes = was;
}

/* Ends a phase for accumulator set u whose kept index is ix: results become known at this level, or states go to
 * memory. */
static void
phase_end(Rk *r, int u, const Ix *ix, const int *ws)
{
	Emit *e = r->e;
	Cell count = cell_of(r->count, false, DT_i64);

	for (int i = 0; i < r->nred; i++) {
		Red *d = r->red[i];
		RedAcc *a = &r->acc[i * MAX_UNROLL + u];

		if (d->phase != r->phase)
			continue;
		if (!r->kept_lanes)
			acc_merge(e, a, r->unroll);
		acc_done(e, a, 0, count);
		if (r->partial) {
			for (int s = 0; s < a->nstate; s++)
				state_store(e, d, a, s, r->npiece, ws[i], r->piece, ix, a->state[s]);
			continue;
		}
		for (int k = 0; k < d->op->nout; k++) {
			const Type *to = val_type(e->g, d->op->out[k]);
			int8_t map[MAX_RANK];
			Ix at[MAX_RANK];

			if (!kept_map(d->t, d->mask, to, map))
				bug("%s has another shape than its operand leaves",
				    val_info(e->g, d->op->out[k])->name);
			mapped_index(e, to, map, ix, at);
			memo_put(e, d->op->out[k], at, state_finish(e, a, a->state, count, k), e->depth);
		}
	}
}

/* Elements of a reduction that one accumulator adds up, one after the other: of a short loop not all lanes do. */
static int64_t
chain_of(const Rk *r, const Red *d)
{
	int64_t n = 1, lanes = (int64_t)r->e->W * r->unroll, last = loop_full(r->n, r->rl[r->nr - 1]);

	for (int j = 0; j < d->t->rank; j++)
		n *= d->mask >> j & 1 ? d->t->axis[j].n : 1;
	return n / (r->partial ? r->npiece : 1) / (r->kept_lanes ? 1 : last < lanes ? last : lanes);
}

static void
run_phases(Rk *r, const int *ws)
{
	Emit *e = r->e;
	int sets = r->kept_lanes ? r->nu : 1;

	for (r->phase = 0; r->phase < r->nphase; r->phase++) {
		int npass = 0;

		for (int i = 0; i < r->nred; i++)
			for (int u = 0; u < sets && r->red[i]->phase == r->phase; u++) {
				RedAcc *a = &r->acc[i * MAX_UNROLL + u];

				*a = acc_new(e, r->red[i]->op, true, !r->kept_lanes, r->kept_lanes ? 1 : r->unroll,
				             chain_of(r, r->red[i]));
				npass = a->npass > npass ? a->npass : npass;
			}
		if (!npass)
			continue;
		first_elements(r);
		for (r->pass = 0; r->pass < npass; r->pass++) {
			e->random.n = 0;
			over_reduced(r, 0, inner_steps);
			for (int i = 0; i < r->nred; i++)
				for (int u = 0; u < sets && r->red[i]->phase == r->phase; u++)
					if (r->pass < r->acc[i * MAX_UNROLL + u].npass)
						acc_pass_end(e, &r->acc[i * MAX_UNROLL + u],
						             r->kept_lanes ? 1 : r->unroll, r->pass);
		}
		for (int u = 0; u < sets; u++)
			phase_end(r, u, r->kept_lanes ? r->set[u] : r->ix, ws);
	}
}

/* ---------------------------------------------------------------- outputs */
static bool
full_out(const Rk *r, const Out *o)
{
	return type_same_shape(val_type(r->gc->g, o->v), r->n->root);
}

/* All results at an index are computed before the first is stored: an output may take the place of an input. */
static void
store_full(Rk *r, const Ix *ix)
{
	Cell *c = arena_array(r->e->arena, Cell, r->nout);
	int n = 0;

	for (int k = 0; k < r->nout; k++)
		if (full_out(r, &r->out[k]))
			c[n++] = lane_eval(r->e, r->out[k].v, ix);
	n = 0;
	for (int k = 0; k < r->nout; k++)
		if (full_out(r, &r->out[k])) {
			const Type *t = val_type(r->gc->g, r->out[k].v);

			store_at(r->e, buffer(r->e, r->out[k].buf), (DType)t->dtype, offset_of(r->e, t, ix), c[n++]);
		}
}

static void
out_lane(Emit *e, void *cx, Ix i, int u)
{
	Rk *r = cx;

	(void)u;
	loop_set(e, r->rl[r->nr - 1], i, r->ix);
	store_full(r, r->ix);
}

static void
inner_outs(Rk *r)
{
	if (r->kept_lanes) {
		for (int u = 0; u < r->nu; u++)
			store_full(r, r->set[u]);
		return;
	}
	lane_loop(r->e, reduced_lo(r, r->nr - 1), reduced_hi(r, r->nr - 1), group_random(r->gc) ? 4 : 1, out_lane, r);
}

/* Do the outputs lie in memory as the operand of the reductions does, whose rows' elements are side by side? */
static bool
rows_touch(const Rk *r)
{
	for (int k = 0; k < r->nout; k++)
		if (full_out(r, &r->out[k]) && !type_same_place(val_type(r->gc->g, r->out[k].v), r->red[0]->t))
			return false;
	return true;
}

/* The outputs' values at another element of a row, beside those before it. */
static void
inner_columns(Rk *r)
{
	int n = 0;

	for (int k = 0; k < r->nout; k++)
		if (full_out(r, &r->out[k]))
			r->column[n++ * r->row + r->ncolumn] = lane_eval(r->e, r->out[k].v, r->set[0]);
	r->ncolumn++;
}

/* Outputs of rows that stand in lanes: all of a row's elements, then they are stored side by side. */
static void
store_rows(Rk *r)
{
	Emit *e = r->e;
	int n = 0;

	r->column = arena_array(e->arena, Cell, r->nout * r->row);
	r->ncolumn = 0;
	over_reduced(r, 0, inner_columns);
	for (int i = 0; i < r->nr; i++)
		set_reduced(r, i, ix_k(e, 0));
	for (int k = 0; k < r->nout; k++) {
		const Type *t = val_type(r->gc->g, r->out[k].v);

		if (full_out(r, &r->out[k]))
			store_columns(e, buffer(e, r->out[k].buf), (DType)t->dtype, offset_of(e, t, r->set[0]),
			              &r->column[n++ * r->row], (int)r->row);
	}
}

static void
store_outs(Rk *r)
{
	Emit *e = r->e;
	bool full = false;

	for (int k = 0; k < r->nout; k++) {
		const Type *t = val_type(r->gc->g, r->out[k].v);
		int8_t map[MAX_RANK];

		if (full_out(r, &r->out[k])) {
			full = true;
			continue;
		}
		kept_map(r->n->root, r->red[0]->mask, t, map);
		for (int u = 0; u < (r->kept_lanes ? r->nu : 1); u++) {
			Ix at[MAX_RANK];

			mapped_index(e, t, map, r->kept_lanes ? r->set[u] : r->ix, at);
			Cell c = lane_eval(e, r->out[k].v, at);

			store_at(e, buffer(e, r->out[k].buf), (DType)t->dtype, offset_of(e, t, at), c);
		}
	}
	if (full && r->unrolled && rows_touch(r))
		store_rows(r);
	else if (full)
		over_reduced(r, 0, inner_outs);
}

typedef struct RowsBody { Rk *r; const int *ws; } RowsBody;

static void
kept_block(Emit *e, void *cx, const Ix *i, int n)
{
	RowsBody *b = cx;
	Rk *r = b->r;

	r->nu = n;
	for (int u = 0; u < n; u++) {
		memcpy(r->set[u], r->ix, sizeof r->ix);
		loop_set(e, r->kl[r->nk - 1], i[u], r->set[u]);
	}
	run_phases(r, b->ws);
	if (!r->partial)
		store_outs(r);
}

/* ---------------------------------------------------------------- kernels */
void
rows_nest(GroupCx *gc, Nest *n, Red **red, int nred, const Out *out, int nout)
{
	int8_t id[MAX_RANK], map[MAX_RANK];

	*n = (Nest){.root = red[0]->t};
	for (int i = 0; i < MAX_RANK; i++)
		id[i] = (int8_t)(i < n->root->rank ? i : -1);
	for (int i = 0; i < nred; i++) {
		nest_walk(gc, n, red[i]->op->in[0], id);
		for (int k = 0; k < red[i]->op->nout; k++)
			if (kept_map(red[i]->t, red[i]->mask, val_type(gc->g, red[i]->op->out[k]), map))
				nest_leaf(gc, n, val_type(gc->g, red[i]->op->out[k]), map);
	}
	for (int k = 0; k < nout; k++) {
		const Type *t = val_type(gc->g, out[k].v);

		memcpy(map, id, sizeof map);
		if (!type_same_shape(t, n->root))
			kept_map(n->root, red[0]->mask, t, map);
		nest_leaf(gc, n, t, map);
		nest_walk(gc, n, out[k].v, map);
	}
	nest_build(gc, n, red[0]->mask);
	/* the range of an argmax is one axis, whose index counts: it is alone among the reduced ones already */
}

static int
phase_ops(const GroupCx *gc)
{
	return (int)(gc->last - gc->first);
}

/* Operators that are computed for each element. */
static int
element_ops(const Rk *r)
{
	int n = 0;

	for (uint32_t i = r->gc->first; i < r->gc->last; i++) {
		const Op *op = &r->gc->g->op.at[i];

		n += !op->dead &&
		     (op_reduces(op) || type_elements(val_type(r->gc->g, op->out[0])) == type_elements(r->n->root));
	}
	return n;
}

/* Vectors of kept lanes that a block takes side by side: the wider, the longer the runs of memory that a row has for
 * it, as long as accumulators and what rounding took from them stay in half of the registers, and tasks are many. */
static int
kept_vectors(const Rk *r)
{
	enum { STATES = 2, TASKS = 16 };
	const Machine *m = machine_of(r->gc->g);
	int64_t lanes = loop_full(r->n, r->kl[r->nk - 1]), wide = MAX_UNROLL * (int64_t)m->vector_bytes / 4;

	if (element_ops(r) > 12 || r->nred > 2)
		return 1;
	bool fit = r->nred * STATES * MAX_UNROLL <= m->vector_registers / 2;

	return fit && lanes / wide * r->npiece >= TASKS ? MAX_UNROLL : 4;
}

/* Are rows so far apart, and so many, that what comes is to be asked for? Of elementwise operators alone. */
static bool
fetches_pay(const Rk *r, int vectors)
{
	const Machine *m = machine_of(r->gc->g);
	int64_t lanes = loop_full(r->n, r->kl[r->nk - 1]);

	for (uint32_t i = r->gc->first; i < r->gc->last; i++) {
		const Op *op = &r->gc->g->op.at[i];

		if (!op->dead && !op_has((OpKind)op->kind, T_POINTWISE | T_VIEW | T_CONST) && !op_reduces(op))
			return false;
	}
	return vectors > 1 && F32(lanes) > vectors * m->vector_bytes && F32(type_elements(r->n->root)) > m->l2.bytes;
}

/* A kernel that computes nothing but scalars from all elements: where each of its pieces leaves them. */
static void
mark_total(const Rk *r, const int *ws, KernelRec *k)
{
	GroupCx *gc = r->gc;
	KernelSum *sum = arena_array(gc->c->arena, KernelSum, 2 * r->nred + r->nout);
	int n = 0;

	if (r->nk || type_marked(r->n->root) || (r->partial && r->n->nloop != 1))
		return;
	for (int i = 0; i < r->nout; i++) {
		const Type *t = val_type(gc->g, r->out[i].v);

		if (type_elements(t) != 1)
			return;
		sum[n++] = (KernelSum){gc->buf.at[r->out[i].buf].offset, dtype_info[t->dtype].bytes};
	}
	for (int i = 0; i < r->nred && r->partial; i++) {
		const Op *op = r->red[i]->op;
		RedAcc a = {.op = op, .dt = red_dtype(op, (DType)val_type(gc->g, op->in[0])->dtype)};

		for (int s = 0; s < red_states(op); s++)
			sum[n++] = (KernelSum){gc->buf.at[ws[i]].offset + s * r->npiece * 8,
			                       dtype_info[state_dtype(&a, s)].bytes};
	}
	k->total = type_elements(r->n->root);
	k->sum = sum;
	k->nsum = n;
}

/* Few elements that lie side by side are reduced, of many rows: lanes go along the rows, or they would be empty in part
 * and joined for each row. By shape alone, as sums follow from it. */
static bool
lanes_across(Nest *n, const Red *d)
{
	int64_t lanes = n->machine->vector_bytes / 4, elements = 1;
	bool inner = true;
	int kept = n->nloop;

	for (int i = d->t->rank; i-- > 0;) {
		int a = d->t->perm[i];
		bool red = d->mask >> a & 1;

		if (is_one(d->t->axis[a]))
			continue;
		elements *= red ? d->t->axis[a].n : 1;
		if (red && (!inner || d->t->axis[a].mul))
			return false;
		inner &= red;
	}
	while (kept && n->loop[kept - 1].reduced)
		kept--;
	if (!kept || kept == n->nloop || elements > 2 * lanes || loop_full(n, &n->loop[kept - 1]) < lanes)
		return false;
	LoopAxis moved = n->loop[kept - 1];

	memmove(&n->loop[kept - 1], &n->loop[kept], sizeof moved * (size_t)(n->nloop - kept));
	n->loop[n->nloop - 1] = moved;
	return true;
}

/* One kernel: the reductions red, then the outputs out (none of them if the range is cut into pieces). */
void
rows_kernel(GroupCx *gc, GraphKernels *gk, Red **red, int nred, int nphase, const Out *out, int nout, int64_t npiece,
            const int *ws, const char *part)
{
	enum { MOST_OPS = 1000 }; /* that are written out for the elements of a row */
	Nest n;
	Rk r = {.gc = gc,
	        .n = &n,
	        .red = red,
	        .nred = nred,
	        .nphase = nphase,
	        .out = out,
	        .nout = nout,
	        .partial = npiece > 1,
	        .npiece = npiece};
	Emit *e = arena_new_of(gc->tmp, Emit);
	RowsBody body = {&r, ws};
	bool fresh;

	rows_nest(gc, &n, red, nred, out, nout);
	bool across = npiece == 1 && lanes_across(&n, red[0]);

	for (int i = 0; i < n.nloop; i++) {
		if (n.loop[i].reduced)
			r.rl[r.nr++] = &n.loop[i];
		else
			r.kl[r.nk++] = &n.loop[i];
	}
	static const LoopAxis none = {.naxis = 0, .reduced = true};

	if (!r.nr)
		r.rl[r.nr++] = &none;
	r.kept_lanes = r.nk && n.nloop && !n.loop[n.nloop - 1].reduced;
	int fn = kernel_begin(gc, e, part, &fresh);
	int64_t inner = 1, piece = 0, cost = group_cost(gc);

	for (int i = 0; i < r.nr; i++)
		inner *= loop_full(&n, r.rl[i]);
	r.row = inner;
	r.unrolled = across && inner * element_ops(&r) <= MOST_OPS;
	int vectors = r.unrolled ? 1 : r.kept_lanes ? kept_vectors(&r) : 1;

	r.fetches = r.kept_lanes && !across && fetches_pay(&r, vectors);
	if (r.kept_lanes) {
		int64_t w = (vectors > 4 ? vectors : 4) * (int64_t)machine_of(gc->g)->vector_bytes / 4;
		int64_t want = 8 * machine_of(gc->g)->budget.task / (inner * cost);

		piece = want > w ? want / w * w : w;
	}
	Tasks t = tasks_of(&n, r.kl, r.nk - (r.kept_lanes ? 1 : 0), r.kept_lanes ? r.kl[r.nk - 1] : NULL, piece, npiece,
	                   cost * inner / npiece);

	if (fresh) {
		TaskAt at = tasks_open(e, &n, &t, r.ix);
		V ext = loop_extent(e, &n, r.rl[0]);

		r.e = e;
		r.rlo = k64(e, 0);
		r.rhi = ext;
		r.piece = at.red;
		if (npiece > 1) {
			r.rlo = i_div_k(e, i_mul(e, at.red, ext), npiece);
			r.rhi = i_div_k(e, i_mul(e, i_add_k(e, at.red, 1), ext), npiece);
		}
		r.count = i_sub(e, r.rhi, r.rlo);
		for (int i = 1; i < r.nr; i++)
			r.count = i_mul(e, r.count, loop_extent(e, &n, r.rl[i]));
		r.acc = arena_alloc(gc->tmp, sizeof(RedAcc) * (size_t)nred * MAX_UNROLL);
		r.unroll =
		        (phase_ops(gc) <= 12 || group_random(gc)) && loop_full(&n, r.rl[r.nr - 1]) >= 8 * e->W ? 4 : 1;
		e->rows_in_lanes = r.unrolled && r.nr == 1;
		if (r.kept_lanes) {
			lane_blocks(e, at.lo, at.hi, vectors, kept_block, &body);
		} else {
			run_phases(&r, ws);
			if (!r.partial)
				store_outs(&r);
		}
		tasks_close(e);
	}
	kernel_end(gc, e, gk, fn, t.rows, fresh, false);
	mark_total(&r, ws, &gk->k.at[gk->k.n - 1]);
}
