/* finish.c: the last kernel of reductions whose range was cut into pieces.
 *
 * In: partial states of each piece, in memory.   Out: the pieces combined in their order, so that the bits are the same
 * for any number of threads; the reductions' results, and the elementwise ops of the group that hang on these alone (a
 * batch normalisation's factor and offset), stored. Tasks walk what the reductions keep. A piece that saw nothing (rows
 * beyond a short batch) is passed over. */
#include "../cpu.h"
#include <string.h>

typedef struct Fin {
	GroupCx *gc;
	const Finish *p;
	const Type *space;
	uint32_t mask;
	Ix ix[MAX_RANK];
	const LoopAxis *last;
} Fin;

static void
load_states(Emit *e, const Fin *f, int i, const RedAcc *a, V piece, Cell s[3])
{
	for (int k = 0; k < a->nstate; k++)
		s[k] = state_load(e, f->p->red[i], a, k, f->p->npiece, f->p->ws[i], piece, f->ix);
	if (f->p->compensated && f->p->compensated(a->op))
		s[0] = cell_bin(e, EX_ADD, s[0],
		                state_load(e, f->p->red[i], a, a->nstate, f->p->npiece, f->p->ws[i], piece, f->ix));
}

static V
total_count(Emit *e, const Fin *f)
{
	V n = k64(e, 1);

	for (int j = 0; j < f->space->rank; j++)
		if (f->mask >> j & 1)
			n = i_mul(e, n, extent(e, f->space->axis[j]));
	return n;
}

/* Adds the state of piece c to s, unless the piece saw nothing. */
static void
add_piece(Emit *e, Fin *f, int i, const RedAcc *a, Cell s[3], V n0, V n1, V c)
{
	Cell t[3], old[3];
	int64_t k;

	memcpy(old, s, sizeof old);
	load_states(e, f, i, a, c, t);
	state_combine(e, a, s, t, cell_of(n0, false, DT_i64), cell_of(n1, false, DT_i64));
	if (is_const(n1, &k) && k > 0)
		return;
	Cell some = cell_of(LLVMBuildICmp(at1(e, n1), LLVMIntSGT, n1, k64(e, 0), ""), false, DT_bool);

	for (int j = 0; j < a->nstate; j++)
		s[j] = cell_select(e, some, s[j], old[j]);
}

static void
finish_one(Emit *e, Fin *f, int i)
{
	Red *d = f->p->red[i];
	RedAcc a = acc_new(e, d->op, e->lanes, false, 1, 0);
	Cell s[3];
	V slot[3], nslot = slot_new(e, e->l->i64);
	bool vec = e->lanes;

	load_states(e, f, i, &a, k64(e, 0), s);
	for (int k = 0; k < a.nstate; k++) {
		vec = s[k].vec;
		slot[k] = slot_new(e, LLVMTypeOf(s[k].v));
		slot_set(e, slot[k], s[k].v);
	}
	slot_set(e, nslot, f->p->count(e, f->p->cx, k64(e, 0)));
	LOOP(e, c, k64(e, 1), k64(e, f->p->npiece), 1) {
		V n0 = slot_get(e, nslot, e->l->i64), n1 = f->p->count(e, f->p->cx, c);

		for (int k = 0; k < a.nstate; k++) {
			DType dt = state_dtype(&a, k);

			s[k] = cell_of(slot_get(e, slot[k], ctype_v(e, dt, vec)), vec, dt);
		}
		add_piece(e, f, i, &a, s, n0, n1, c);
		for (int k = 0; k < a.nstate; k++)
			slot_set(e, slot[k], s[k].v);
		slot_set(e, nslot, i_add(e, n0, n1));
	}
	for (int k = 0; k < a.nstate; k++) {
		DType dt = state_dtype(&a, k);

		s[k] = cell_of(slot_get(e, slot[k], ctype_v(e, dt, vec)), vec, dt);
	}
	Cell count = cell_of(total_count(e, f), false, DT_i64);

	for (int k = 0; k < d->op->nout; k++) {
		Val v = d->op->out[k];
		const Type *to = val_type(e->g, v);
		int8_t map[MAX_RANK];
		Ix at[MAX_RANK];
		Cell r = state_finish(e, &a, s, count, k);

		kept_map(d->t, d->mask, to, map);
		mapped_index(e, to, map, f->ix, at);
		memo_put(e, v, at, r, e->depth);
		if (val_info(e->g, v)->offset >= 0 || f->gc->ws_of[v.id] >= 0)
			store_at(e, buffer(e, group_buffer(f->gc, v.id)), (DType)to->dtype, offset_of(e, to, at), r);
	}
}

static void
finish_lane(Emit *e, void *cx, Ix i, int u)
{
	Fin *f = cx;

	(void)u;
	if (f->last)
		loop_set(e, f->last, i, f->ix);
	for (int k = 0; k < f->p->nred; k++)
		finish_one(e, f, k);
	for (int k = 0; k < f->p->nout; k++) {
		const Out *o = &f->p->out[k];
		const Type *t = val_type(e->g, o->v);
		int8_t map[MAX_RANK];
		Ix at[MAX_RANK];

		kept_map(f->space, f->mask, t, map);
		mapped_index(e, t, map, f->ix, at);
		Cell c = lane_eval(e, o->v, at);

		store_at(e, buffer(e, o->buf), (DType)t->dtype, offset_of(e, t, at), c);
	}
}

static void
set_ready(GroupCx *gc, const Finish *p, bool ready)
{
	for (int i = 0; i < p->nred; i++)
		for (int k = 0; k < p->red[i]->op->nout; k++)
			gc->ready[p->red[i]->op->out[k].id] = ready;
}

/* Loops over the kept axes, as all that is read and written allows them to be merged. */
static void
kept_nest(GroupCx *gc, Nest *n, const Finish *p)
{
	int8_t map[MAX_RANK];

	*n = (Nest){.root = p->red[0]->t};
	for (int i = 0; i < p->nred; i++) {
		const Op *op = p->red[i]->op;
		Type *t = arena_new_of(gc->tmp, Type);

		for (int k = 0; k < op->nout; k++) {
			kept_map(p->red[i]->t, p->red[i]->mask, val_type(gc->g, op->out[k]), map);
			nest_leaf(gc, n, val_type(gc->g, op->out[k]), map);
		}
		*t = state_type(p->red[i], p->npiece, DT_f32, map);
		nest_leaf(gc, n, t, map);
	}
	for (int k = 0; k < p->nout; k++) {
		kept_map(n->root, p->red[0]->mask, val_type(gc->g, p->out[k].v), map);
		nest_leaf(gc, n, val_type(gc->g, p->out[k].v), map);
		nest_walk(gc, n, p->out[k].v, map);
	}
	for (int j = 0; j < n->root->rank; j++)
		if (p->red[0]->mask >> j & 1)
			n->atomic |= 1u << j;
	nest_build(gc, n, p->red[0]->mask);
}

void
finish_emit(GroupCx *gc, GraphKernels *gk, const Finish *p, const char *part)
{
	Nest n;
	Fin f = {.gc = gc, .p = p, .space = p->red[0]->t, .mask = p->red[0]->mask};
	Emit *e = arena_new_of(gc->tmp, Emit);
	const LoopAxis *kl[MAX_RANK];
	int nk = 0;
	bool fresh;

	set_ready(gc, p, true);
	kept_nest(gc, &n, p);
	for (int i = 0; i < n.nloop; i++)
		if (!n.loop[i].reduced)
			kl[nk++] = &n.loop[i];
	f.last = nk ? kl[nk - 1] : NULL;
	int fn = kernel_begin(gc, e, part, &fresh);
	Tasks t = tasks_of(&n, kl, nk ? nk - 1 : 0, f.last, nk ? 1024 : 0, 1, p->npiece * 4);

	/* within this kernel the results are known as numbers, not yet in memory */
	set_ready(gc, p, false);
	if (fresh) {
		TaskAt at = tasks_open(e, &n, &t, f.ix);

		if (f.last)
			lane_loop(e, at.lo, at.hi, 1, finish_lane, &f);
		else
			finish_lane(e, &f, ix_k(e, 0), 0);
		tasks_close(e);
	}
	kernel_end(gc, e, gk, fn, t.rows, fresh, false);
	gk->k.at[gk->k.n - 1].finish = true;
}
