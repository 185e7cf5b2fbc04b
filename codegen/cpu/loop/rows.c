/* rows.c: groups with reductions: kept axes x reduced axes, one or several passes over the reduced range for each kept
 * index.
 *
 * In: a group whose reductions run over one space (softmax, layer_norm, batch statistics, a sum with its prologue), or
 * several.
 * Out: kernels. One space and enough kept indices: one kernel, tasks over kept indices; results of a phase are numbers
 * (or lanes) that the next phase and the outputs use. Few kept indices: the reduced range is cut into pieces by shape,
 * partial states go to the workspace, a finishing kernel combines them in order; then come the next reductions, and the
 * outputs as maps. The innermost axis in memory gives the lanes, whether it is reduced (lanes join at the end) or kept
 * (lanes are apart). */
#include "../cpu.h"
#include "red.h"
#include <string.h>

#define MAX_REDS 64

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
	V at; bool fetches;      /* kept lanes: where the innermost reduced loop is; rows to come are asked for */
	bool partial; V piece; int64_t npiece;
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
		for (int u = 0; u < r->nu; u++)
			step_all(r, r->set[u], u, 0);
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

/* Partial states of a reduction: [piece, kept axes in memory order], one such array after the other, 8 bytes an element
 * kept free. */
Type
state_type(const Red *d, int64_t npiece, DType dt, int8_t *map)
{
	Axis ax[MAX_RANK];
	int n = 1;

	memset(map, -1, MAX_RANK);
	ax[0] = axis(npiece);
	for (int i = 0; i < d->t->rank; i++) {
		int a = d->t->perm[i];

		if (!(d->mask >> a & 1) && !is_one(d->t->axis[a])) {
			map[n] = (int8_t)a;
			ax[n++] = d->t->axis[a];
		}
	}
	return type_of(dt, n, ax);
}

static V
state_base(Emit *e, const Red *d, int64_t npiece, int ws, int s)
{
	Mem states = mem_axes(e, buffer(e, ws), BY(npiece * kept_elements(d->t, d->mask) * 8));

	return mem_at(e, &states, k64(e, s));
}

Cell
state_load(Emit *e, const Red *d, const RedAcc *a, int s, int64_t npiece, int ws, V piece, const Ix *ix)
{
	int8_t map[MAX_RANK];
	Type *t = arena_new_of(e->arena, Type);
	Ix at[MAX_RANK];

	*t = state_type(d, npiece, state_dtype(a, s), map);
	mapped_index(e, t, map, ix, at);
	at[0] = ix_s(piece);
	return load_at(e, state_base(e, d, npiece, ws, s), (DType)t->dtype, offset_of(e, t, at));
}

void
state_store(Emit *e, const Red *d, const RedAcc *a, int s, int64_t npiece, int ws, V piece, const Ix *ix, Cell c)
{
	int8_t map[MAX_RANK];
	Type *t = arena_new_of(e->arena, Type);
	Ix at[MAX_RANK];

	*t = state_type(d, npiece, state_dtype(a, s), map);
	mapped_index(e, t, map, ix, at);
	at[0] = ix_s(piece);
	store_at(e, state_base(e, d, npiece, ws, s), (DType)t->dtype, offset_of(e, t, at), c);
}

static int
workspace_buffer(GroupCx *gc, const Op *op, int part) /* 0: states, 1..: results */
{
	int64_t at = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *o = &gc->g->op.at[i];

		if (o->dead || op_info[o->kind].red < 0)
			continue;
		if (o == op)
			break;
		at += red_workspace(gc->g, o);
	}
	const Type *t = val_type(gc->g, op->in[0]);
	uint32_t mask = red_mask(gc->g, op);

	if (part > 0)
		at += states_bytes(t, mask, op) + (part - 1) * align64(kept_elements(t, mask) * 8);
	int64_t offset = gc->g->group.at[gc->group].workspace_offset;

	if (offset < 0)
		bug("group %d has no workspace", gc->group);
	vec_push(gc->tmp, &gc->buf, ((Buffer){.val = 0, .offset = offset + at}));
	return (int)gc->buf.n - 1;
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

/* Elements of a reduction that one accumulator adds up, one after the other. */
static int64_t
chain_of(const Rk *r, const Red *d)
{
	int64_t n = 1;

	for (int j = 0; j < d->t->rank; j++)
		n *= d->mask >> j & 1 ? d->t->axis[j].n : 1;
	return n / (r->partial ? r->npiece : 1) / (r->kept_lanes ? 1 : (int64_t)r->e->W * r->unroll);
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
	if (full)
		over_reduced(r, 0, inner_outs);
}

typedef struct RowsBody { Rk *r; const int *ws; } RowsBody;
typedef struct Pieces { const Nest *space; int64_t npiece; } Pieces;

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
static void
make_nest(GroupCx *gc, Nest *n, Red **red, int nred, const Out *out, int nout)
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

		n += !op->dead && (op_reduces(op) || type_elements(val_type(r->gc->g, op->out[0])) ==
		                                             type_elements(r->n->root));
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
	return vectors > 1 && lanes * 4 > vectors * m->vector_bytes && type_elements(r->n->root) * 4 > m->l2.bytes;
}

/* A kernel that makes nothing but numbers of all elements: where each of its pieces leaves them. */
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

/* One kernel: the reductions red, then the outputs out (none of them if the range is cut into pieces). */
static void
rows_kernel(GroupCx *gc, GraphKernels *gk, Red **red, int nred, int nphase, const Out *out, int nout, int64_t npiece,
            const int *ws, const char *part)
{
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

	make_nest(gc, &n, red, nred, out, nout);
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
	int vectors = r.kept_lanes ? kept_vectors(&r) : 1;

	r.fetches = r.kept_lanes && fetches_pay(&r, vectors);
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

/* ---------------------------------------------------------------- pieces of the first reduced loop, all nearly
 * equal */
static V
even_pieces(Emit *e, void *cx, V piece)
{
	const Pieces *p = cx;
	V k = k64(e, p->npiece), first = k64(e, 1), inner = k64(e, 1);
	bool seen = false;

	for (int i = 0; i < p->space->nloop; i++)
		if (p->space->loop[i].reduced) {
			V ext = loop_extent(e, p->space, &p->space->loop[i]);

			if (seen)
				inner = i_mul(e, inner, ext);
			else
				first = ext;
			seen = true;
		}
	V lo = i_div(e, i_mul(e, piece, first), k), hi = i_div(e, i_mul(e, i_add_k(e, piece, 1), first), k);

	return i_mul(e, i_sub(e, hi, lo), inner);
}

static void
finish_pieces(GroupCx *gc, GraphKernels *gk, Red **red, int nred, const Out *out, int nout, int64_t npiece,
              const int *ws, const char *part)
{
	Nest space;
	Pieces p = {&space, npiece};

	make_nest(gc, &space, red, nred, NULL, 0); /* the same reduced loops as the partial kernel's */
	finish_emit(gc, gk,
	            &(Finish){.red = red,
	                      .nred = nred,
	                      .out = out,
	                      .nout = nout,
	                      .npiece = npiece,
	                      .ws = ws,
	                      .count = even_pieces,
	                      .cx = &p},
	            part);
}

/* ---------------------------------------------------------------- which kernels */
static int
phase_of(GroupCx *gc, Val v, int *memo)
{
	if (!gc->inside[v.id] || gc->ready[v.id])
		return 0;
	if (memo[v.id] >= 0)
		return memo[v.id];
	const Op *op = val_op(gc->g, v);
	int p = 0;

	for (int k = 0; k < op->nin; k++) {
		int q = phase_of(gc, op->in[k], memo);

		p = q > p ? q : p;
	}
	return memo[v.id] = p + (op_info[op->kind].red >= 0);
}

/* Operands in other layouts may be cut into other pieces, and have room for as many partial states. */
static bool
same_space(const Red *a, const Red *b)
{
	return a->mask == b->mask && type_same_shape(a->t, b->t) &&
	       red_pieces(a->t, a->mask) == red_pieces(b->t, b->mask);
}

/* Where a result that nobody planned a place for goes. */
static void
place_results(GroupCx *gc, const Op *op)
{
	for (int k = 0; k < op->nout; k++)
		if (gc->g->val.at[op->out[k].id].offset < 0 && gc->ws_of[op->out[k].id] < 0)
			gc->ws_of[op->out[k].id] = workspace_buffer(gc, op, 1 + k);
}

/* Outputs of the kept shape that need no reduction still to come. */
static int
ready_outs(GroupCx *gc, const Out *all, int nall, const Red *space, int *memo, int phase, Out *r, bool *taken)
{
	int n = 0;
	int8_t map[MAX_RANK];

	for (int k = 0; k < nall; k++) {
		const Op *op = val_op(gc->g, all[k].v);

		if (taken[k] || op_info[op->kind].red >= 0 ||
		    !kept_map(space->t, space->mask, val_type(gc->g, all[k].v), map))
			continue;
		if (type_same_shape(val_type(gc->g, all[k].v), space->t) || phase_of(gc, all[k].v, memo) > phase)
			continue;
		/* every reduction behind it must be of those done: a nested loop would be right, but slow */
		taken[k] = true;
		r[n++] = all[k];
	}
	return n;
}

static void
staged(GroupCx *gc, GraphKernels *gk, Red *red, int nred, int nphase, const Out *out, int nout, bool *taken, int *memo)
{
	int kernel = 0;

	for (int phase = 0; phase < nphase; phase++)
		for (int i = 0; i < nred; i++) {
			Red *set[MAX_REDS];
			int n = 0, ws[MAX_REDS], nready = 0;
			Out ready[MAX_REDS];
			char part[32];

			if (red[i].done || red[i].phase != phase)
				continue;
			for (int j = i; j < nred && n < MAX_REDS; j++)
				if (!red[j].done && red[j].phase == phase && same_space(&red[i], &red[j]))
					set[n++] = &red[j];
			int64_t npiece = red_pieces(red[i].t, red[i].mask);

			for (int j = 0; j < n; j++) {
				set[j]->done = true;
				set[j]->phase = 0;
				place_results(gc, set[j]->op);
				ws[j] = npiece > 1 ? workspace_buffer(gc, set[j]->op, 0) : -1;
			}
			snprintf(part, sizeof part, "r%d", kernel);
			if (npiece > 1) {
				rows_kernel(gc, gk, set, n, 1, NULL, 0, npiece, ws, part);
				if (nout <= MAX_REDS && n == nred)
					nready = ready_outs(gc, out, nout, &red[i], memo, phase + 1, ready, taken);
				snprintf(part, sizeof part, "f%d", kernel);
				finish_pieces(gc, gk, set, n, ready, nready, npiece, ws, part);
			} else {
				Out res[2 * MAX_REDS];
				int nres = 0;

				for (int j = 0; j < n; j++)
					for (int k = 0; k < set[j]->op->nout; k++)
						res[nres++] = (Out){set[j]->op->out[k],
						                    group_buffer(gc, set[j]->op->out[k].id)};
				rows_kernel(gc, gk, set, n, 1, res, nres, 1, ws, part);
			}
			for (int j = 0; j < n; j++)
				for (int k = 0; k < set[j]->op->nout; k++)
					gc->ready[set[j]->op->out[k].id] = true;
			kernel++;
		}
}

/* Emits the kernels of a group's reductions, and those outputs that belong to them; the rest is left for maps (ready
 * says). */
bool
rows_emit(GroupCx *gc, GraphKernels *gk)
{
	Red *red = arena_array(gc->tmp, Red, MAX_REDS);
	int nred = 0, nout = 0, nphase = 0, *memo = gc->phase;
	Out *out = arena_array(gc->tmp, Out, gc->last - gc->first + MAX_REDS), *mine;
	bool one = true;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (op->dead)
			continue;
		if (op_info[op->kind].red >= 0 && !gc->ready[op->out[0].id]) {
			if (nred == MAX_REDS)
				bug("group %d has more than %d reductions", gc->group, MAX_REDS);
			red[nred++] = (Red){.op = op,
			                    .mask = red_mask(gc->g, op),
			                    .t = val_type(gc->g, op->in[0]),
			                    .phase = phase_of(gc, op->out[0], memo) - 1};
			nphase = red[nred - 1].phase + 1 > nphase ? red[nred - 1].phase + 1 : nphase;
		}
		for (int k = 0; k < op->nout; k++)
			if (value_is_out(gc, op->out[k]) && !gc->ready[op->out[k].id])
				out[nout++] = (Out){op->out[k], group_buffer(gc, op->out[k].id)};
	}
	if (!nred)
		return false;
	for (int i = 1; i < nred; i++)
		one &= same_space(&red[0], &red[i]);
	bool *taken = arena_array(gc->tmp, bool, nout);
	int8_t map[MAX_RANK];

	if (one && red_pieces(red[0].t, red[0].mask) == 1) {
		Red *set[MAX_REDS];
		int n = 0, ws[MAX_REDS];

		mine = arena_array(gc->tmp, Out, nout);
		for (int i = 0; i < nred; i++) {
			set[i] = &red[i];
			ws[i] = -1;
		}
		for (int k = 0; k < nout; k++)
			if (type_same_shape(val_type(gc->g, out[k].v), red[0].t) ||
			    kept_map(red[0].t, red[0].mask, val_type(gc->g, out[k].v), map))
				mine[n++] = out[k];
		if (n == nout) {
			rows_kernel(gc, gk, set, nred, nphase, mine, n, 1, ws, "rows");
			for (int k = 0; k < n; k++)
				gc->ready[mine[k].v.id] = true;
			return true;
		}
	}
	staged(gc, gk, red, nred, nphase, out, nout, taken, memo);
	for (int k = 0; k < nout; k++)
		if (taken[k])
			gc->ready[out[k].v.id] = true;
	return true;
}
