/* rows.c: groups with reductions: which kernels they are.
 *
 * In: a group whose reductions run over one space (softmax, layer_norm, batch statistics, a sum with its prologue), or
 * several.
 * Out: kernels (rows_kernel.c). One space and enough kept indices: one kernel, tasks over kept indices. Few kept
 * indices: the reduced range is cut into pieces by shape, partial states go to the workspace, a finishing kernel
 * combines them in order; then come the next reductions, and the outputs as maps. */
#include "../cpu.h"
#include "red.h"
#include <string.h>

#define MAX_REDS 64

/* ---------------------------------------------------------------- states in memory */
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

/* ---------------------------------------------------------------- pieces of the first reduced loop, all nearly
 * equal */
typedef struct Pieces {
	const Nest *space;
	int64_t npiece;
} Pieces;

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

	rows_nest(gc, &space, red, nred, NULL, 0); /* the same reduced loops as the partial kernel's */
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
