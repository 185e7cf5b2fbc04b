/* epilogue.c: elementwise ops and reductions of a contraction's group, applied to each tile while it lies in the
 * L1.
 *
 * In: a tile of raw sums that the microkernel has just written.   Out: the group's outputs for the tile, and the states
 * of its reductions over rows (moments of a batch normalisation, the sums of its gradient, a bias's gradient). The raw
 * sums go to the contraction's own buffer if something else reads them in f32; else they stay in a tile on the stack.
 * What the tile's ops will read and write is fetched into the cache before the microkernel runs, so that memory works
 * while it multiplies. Reductions: rows one after the other through a block of them, which the microkernel's tiles
 * share: what they have added up stands on the stack between them. A block's state is combined with the one that the
 * task keeps in the workspace, [piece][column], for finish.c to combine in the pieces' order. Blocks, pieces and tasks
 * are cut by shape, so the bits are the same for any size of tiles and any number of threads.
 * Refuses (epilogue_reduces): reductions over columns, of several passes, with an index, of other types than f32. */
#include "gemm.h"
#include "red.h"
#include <string.h>


enum { CARRIED = 3 }; /* values of a column that a tile leaves to the next: two sums, and what they are taken about */

/* Two sums, taken about an element of their own? */
static bool
of_squares(const Op *red)
{
	return red_of(red)->then == RED_SQUARES;
}

/* Do its states carry a second number, what rounding took from the first? */
static bool
epilogue_compensates(const Op *red)
{
	return red_of(red)->sums;
}

const char *
epilogue_reduces(const Graph *g, const Op *contract, const Op *red)
{
	const Type *o = val_type(g, contract->out[0]), *t = val_type(g, red->in[0]);
	int column = o->perm[o->rank - 1];
	uint32_t mask = red_mask(g, red);

	if (red_states(red) > 1 && !of_squares(red))
		return "the reduction needs several passes or an index: a kernel of its own";
	if (t->dtype != DT_f32)
		return "a contraction's epilogue is f32";
	if (is_one(o->axis[column]))
		return "the contraction has one column";
	for (int i = 0; i < t->rank; i++)
		if (!is_one(t->axis[i]) && (mask >> i & 1) == (i == column))
			return "a contraction's tiles are reduced over all rows, column by column";
	return NULL;
}

/* ---------------------------------------------------------------- what a group holds */
/* Needs v a reduction of the group to be complete? Ops come in order, so their operands are known. */
static bool
mark_late(GroupCx *gc, const Op *op)
{
	bool late = op_info[op->kind].red >= 0;

	for (int k = 0; k < op->nin; k++)
		late |= gc->inside[op->in[k].id] && gc->phase[op->in[k].id] == 1;
	for (int k = 0; k < op->nout; k++)
		gc->phase[op->out[k].id] = late;
	return late;
}

static void
add_output(GroupCx *gc, Epilogue *p, Val v, bool late)
{
	int *n = late ? &p->nlate : &p->nout;
	Out *at = late ? p->late : p->out;

	if (*n == EPILOGUE_OUTS)
		bug("a contraction with more than %d outputs", EPILOGUE_OUTS);
	at[(*n)++] = (Out){v, group_buffer(gc, v.id)};
}

static void
add_fetched(Epilogue *p, Val v, int buf)
{
	for (int k = 0; k < p->nfetch; k++)
		if (p->fetch[k].buf == buf)
			return;
	if (p->nfetch < EPILOGUE_OUTS)
		p->fetch[p->nfetch++] = (Out){v, buf};
}

/* Is it a state's new value, made in the place of the old one, which the tile has just read? */
static bool
in_state(const GroupCx *gc, Val v)
{
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (op->kind == OP_store && !op->dead && op->in[0].id == v.id)
			return val_info(gc->g, v)->offset == module_state(gc->c->m, attr_str(op, A_state))->offset;
	}
	return false;
}

/* Does it go past the caches? As the kernel's text has it (tune.def: sized never always). */
static bool
out_streams(const GroupCx *gc, Val v)
{
	if (!gc->stream && in_state(gc, v))
		return false;
	return gc->stream ? gc->stream == 2 && store_may_stream(gc->g, v) : store_streams(gc->g, v);
}

/* Full-size operands of the tile's ops, which come after the contraction, that stand in memory, and where its results
 * go. */
static void
find_fetched(GroupCx *gc, Epilogue *p)
{
	const Graph *g = gc->g;
	const Type *o = val_type(g, p->op->out[0]);

	for (uint32_t i = (uint32_t)(p->op - g->op.at) + 1; i < gc->last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin && !op->dead; k++) {
			const Type *t = val_type(g, op->in[k]);

			if (!gc->inside[op->in[k].id] && type_same_shape(t, o) && !memcmp(t->perm, o->perm, o->rank))
				add_fetched(p, op->in[k], group_buffer(gc, op->in[k].id));
		}
	}
	if (p->raw >= 0)
		add_fetched(p, p->op->out[0], p->raw);
	/* a state that is updated in its place is asked for twice, which takes a tenth less time than once (Zen 4) */
	for (int k = 0; k < p->nout; k++)
		if (!out_streams(gc, p->out[k].v) && !memcmp(val_type(g, p->out[k].v)->perm, o->perm, o->rank))
			add_fetched(p, p->out[k].v, p->out[k].buf);
}

void
epilogue_find(GroupCx *gc, const Op *op, int64_t npiece, int64_t workspace, Epilogue *p)
{
	const Graph *g = gc->g;
	int64_t at = g->group.at[gc->group].workspace_offset + align64(workspace);

	*p = (Epilogue){.gc = gc, .op = op, .raw = -1, .npiece = npiece};
	if (val_info(g, op->out[0])->offset >= 0 && val_type(g, op->out[0])->dtype == DT_f32)
		p->raw = group_buffer(gc, op->out[0].id);
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *o = &g->op.at[i];

		if ((o == op && (p->raw >= 0 || val_info(g, o->out[0])->offset < 0)) || o->dead || !o->nout ||
		    o->kind == OP_load)
			continue;
		bool late = mark_late(gc, o);

		if (op_info[o->kind].red >= 0) {
			if (p->nred == EPILOGUE_OUTS)
				bug("a contraction with more than %d reductions", EPILOGUE_OUTS);
			vec_push(gc->c->arena, &gc->buf, ((Buffer){0, at}));
			p->ws[p->nred] = (int)gc->buf.n - 1;
			p->red[p->nred++] = (Red){.op = o, .mask = red_mask(g, o), .t = val_type(g, o->in[0])};
			at += epilogue_workspace(g, o, npiece);
		} else if (val_info(g, o->out[0])->offset >= 0) {
			add_output(gc, p, o->out[0],
			           late || !type_same_shape(val_type(g, o->out[0]), val_type(g, op->out[0])));
		}
	}
	if (p->raw < 0 && !p->nred && !p->nout)
		bug("%s: nobody reads its result", op_info[op->kind].name);
	if (p->nlate && !p->nred)
		bug("%s: an output that waits for no reduction", op_info[op->kind].name);
	find_fetched(gc, p);
}

int64_t
epilogue_workspace(const Graph *g, const Op *red, int64_t npiece)
{
	return align64(npiece * (red_states(red) + epilogue_compensates(red)) *
	               kept_elements(val_type(g, red->in[0]), red_mask(g, red)) * 8);
}

V
epilogue_raw(Emit *e, Epilogue *p, int64_t rows, int64_t columns, bool *tile)
{
	if (p->nred) {
		p->carry = slot_new(e, LLVMArrayType2(e->l->f32, (uint64_t)(p->nred * CARRIED * columns)));
		LLVMSetAlignment(p->carry, 64);
	}
	*tile = p->raw < 0;
	if (!*tile)
		return buffer(e, p->raw);
	V at = slot_new(e, LLVMArrayType2(e->l->f32, (uint64_t)(rows * columns)));

	LLVMSetAlignment(at, 64);
	return at;
}

/* ---------------------------------------------------------------- a tile */
typedef struct TileCx { Epilogue *p; const EpilogueTile *t; RedAcc acc[EPILOGUE_OUTS][MAX_UNROLL]; } TileCx;

static void
tile_index(Emit *e, const TileCx *t, V row, Ix column, Ix *ix)
{
	const Type *type = val_type(e->g, t->p->op->out[0]);

	t->t->index(e, t->t->cx, row, ix);
	ix[type->perm[type->rank - 1]] = column;
	for (int i = 0; i < type->rank; i++)
		if (is_one(type->axis[i]))
			ix[i] = ix_k(e, 0);
}

/* The raw sum there. The microkernel has just written it: the load must not move out of these loops, so its base is
 * made here. */
static Cell
raw_at(Emit *e, const TileCx *t, V row, Ix column, const Ix *ix)
{
	LLVMBuilderRef h = here(e);

	if (t->p->raw >= 0)
		return load_at(e, LLVMBuildFreeze(h, buffer(e, t->p->raw), "raw"), DT_f32,
		               offset_of(e, val_type(e->g, t->p->op->out[0]), ix));
	const Type *type = val_type(e->g, t->p->op->out[0]);
	int64_t line = t->t->tile_line ? t->t->tile_line : t->t->tile_columns;
	Mem tile = mem_axes(e, t->t->tile, BY(line), BY(1)); /* [row][column], in elements */
	Off o = {.s = mem_offset(e, &tile, row, i_sub(e, column.s, t->t->column)),
	         .c = ix[type->perm[type->rank - 1]].c};

	/* whole vectors, as the microkernel stored them: a masked load would wait for the store to reach the cache */
	V mask = e->mask;

	e->mask = NULL;
	Cell c = load_at(e, LLVMBuildFreeze(h, t->t->tile, "raw"), DT_f32, o);

	e->mask = mask;
	return c;
}

static void
tile_row(Emit *e, TileCx *t, V row, const Ix *column, int n)
{
	Epilogue *p = t->p;
	const Type *type = val_type(e->g, p->op->out[0]);
	Cell c[EPILOGUE_OUTS];
	Ix ix[MAX_RANK];

	for (int u = 0; u < n; u++) {
		e->block_u = u;
		tile_index(e, t, row, column[u], ix);
		memo_put(e, p->op->out[0], ix, cell_cast(e, raw_at(e, t, row, column[u], ix), (DType)type->dtype),
		         e->depth);
		for (int k = 0; k < p->nout; k++)
			c[k] = lane_eval(e, p->out[k].v, ix);
		for (int k = 0; k < p->nred; k++)
			acc_step(e, &t->acc[k][u], 0, 0, lane_eval(e, p->red[k].op->in[0], ix), (Cell){0});
		for (int k = 0; k < p->nout; k++) {
			const Type *to = val_type(e->g, p->out[k].v);

			e->stream = out_streams(p->gc, p->out[k].v);
			store_at(e, buffer(e, p->out[k].buf), (DType)to->dtype, offset_of(e, to, ix), c[k]);
			e->stream = false;
		}
	}
}

static void
new_sums(Emit *e, TileCx *t, int n)
{
	for (int u = 0; u < n; u++)
		for (int k = 0; k < t->p->nred; k++)
			t->acc[k][u] = acc_new(e, t->p->red[k].op, true, false, 1, 0);
}

/* Moments are taken about the element of the first row. */
static void
first_row(Emit *e, TileCx *t, const Ix *column, int n)
{
	Epilogue *p = t->p;
	Ix ix[MAX_RANK];
	V row = k64(e, 0);

	for (int u = 0; u < n; u++)
		for (int k = 0; k < p->nred; k++) {
			if (!of_squares(p->red[k].op))
				continue;
			tile_index(e, t, row, column[u], ix);
			memo_put(e, p->op->out[0], ix,
			         cell_cast(e, raw_at(e, t, row, column[u], ix),
			                   (DType)val_type(e->g, p->op->out[0])->dtype),
			         e->depth);
			acc_first(e, &t->acc[k][u], 0, lane_eval(e, p->red[k].op->in[0], ix), NULL);
		}
}

/* Number j of reduction k and a vector of columns between the tiles of a block. */
static V
carried_at(Emit *e, const TileCx *t, int k, int j, Ix column)
{
	Mem carried = mem_dense(e, t->p->carry, DT_f32, t->p->nred * CARRIED, t->t->tile_columns);

	return mem_at(e, &carried, k64(e, k * CARRIED + j), i_sub(e, column.s, t->t->column));
}

static int
sums_of(const RedAcc *a)
{
	return of_squares(a->op) ? CARRIED - 1 : 1;
}

static void
sums_store(Emit *e, TileCx *t, int n, const Ix *column)
{
	for (int u = 0; u < n; u++)
		for (int k = 0; k < t->p->nred; k++) {
			RedAcc *a = &t->acc[k][u];

			for (int j = 0; j < sums_of(a); j++)
				vec_store(e, carried_at(e, t, k, j, column[u]),
				          slot_get(e, a->slot[0][j], vec_of(e, e->l->f32)), NULL);
		}
}

static void
sums_load(Emit *e, TileCx *t, int n, const Ix *column)
{
	for (int u = 0; u < n; u++)
		for (int k = 0; k < t->p->nred; k++) {
			RedAcc *a = &t->acc[k][u];

			for (int j = 0; j < sums_of(a); j++)
				slot_set(e, a->slot[0][j], vec_load(e, carried_at(e, t, k, j, column[u]), NULL));
			if (!of_squares(a->op))
				continue;
			V about = vec_load(e, carried_at(e, t, k, CARRIED - 1, column[u]), NULL);

			a->shift[0] = cell_of(about, true, DT_f32);
		}
}

/* Sums of nothing, for the first tile of a block. */
static void
sums_begin(Emit *e, TileCx *t, int n, const Ix *column)
{
	V first = LLVMBuildICmp(at1(e, t->t->carried), LLVMIntEQ, t->t->carried, k64(e, 0), "");

	EACH(e, once, LLVMBuildZExt(at1(e, first), first, e->l->i64, "")) {
		new_sums(e, t, n);
		first_row(e, t, column, n);
		sums_store(e, t, n, column);
		for (int u = 0; u < n; u++)
			for (int k = 0; k < t->p->nred; k++)
				if (of_squares(t->acc[k][u].op))
					vec_store(e, carried_at(e, t, k, CARRIED - 1, column[u]),
					          cell_vec(e, t->acc[k][u].shift[0]), NULL);
	}
}

/* Many blocks are added one after the other, so sums carry what rounding took from them (Knuth's two-sum, TAOCP
 * 4.2.2). */
static void
add_sum(Emit *e, TileCx *t, int k, Cell x, Cell first, const Ix *ix)
{
	Epilogue *p = t->p;
	const RedAcc *a = &t->acc[k][0];
	Cell s = state_load(e, &p->red[k], a, 0, p->npiece, p->ws[k], t->t->piece, ix),
	     c = state_load(e, &p->red[k], a, 1, p->npiece, p->ws[k], t->t->piece, ix);
	Cell sum = cell_bin(e, EX_ADD, s, x), part = cell_bin(e, EX_SUB, sum, s);
	Cell lost = cell_bin(e, EX_ADD, cell_bin(e, EX_SUB, s, cell_bin(e, EX_SUB, sum, part)),
	                     cell_bin(e, EX_SUB, x, part));

	state_store(e, &p->red[k], a, 0, p->npiece, p->ws[k], t->t->piece, ix, cell_select(e, first, x, sum));
	state_store(e, &p->red[k], a, 1, p->npiece, p->ws[k], t->t->piece, ix,
	            cell_select(e, first, cell_const(e, a->dt, 0), cell_bin(e, EX_ADD, c, lost)));
}

/* The block's state into the task's, which is empty if the task has seen no row yet. */
static void
add_state(Emit *e, TileCx *t, int k, int u, Ix column)
{
	Epilogue *p = t->p;
	RedAcc *a = &t->acc[k][u];
	Cell s[3], rows = cell_of(t->t->rows, false, DT_i64), done = cell_of(t->t->done, false, DT_i64);
	Cell first = cell_of(LLVMBuildICmp(at1(e, t->t->done), LLVMIntEQ, t->t->done, k64(e, 0), ""), false, DT_bool);
	Ix ix[MAX_RANK];

	tile_index(e, t, k64(e, 0), column, ix);
	acc_done(e, a, 0, rows);
	if (epilogue_compensates(a->op)) {
		add_sum(e, t, k, a->state[0], first, ix);
		return;
	}
	for (int j = 0; j < a->nstate; j++)
		s[j] = state_load(e, &p->red[k], a, j, p->npiece, p->ws[k], t->t->piece, ix);
	state_combine(e, a, s, a->state, done, rows);
	for (int j = 0; j < a->nstate; j++)
		state_store(e, &p->red[k], a, j, p->npiece, p->ws[k], t->t->piece, ix,
		            cell_select(e, first, a->state[j], s[j]));
}

static void
add_states(Emit *e, TileCx *t, int n, const Ix *column)
{
	bool was = e->load_here;

	/* they are written by the block before */
	e->load_here = true;
	for (int u = 0; u < n; u++)
		for (int k = 0; k < t->p->nred; k++)
			add_state(e, t, k, u, column[u]);
	e->load_here = was;
}

static void
tile_block(Emit *e, void *cx, const Ix *column, int n)
{
	TileCx *t = cx;
	bool carried = t->t->carried && t->p->nred;

	if (carried) {
		sums_begin(e, t, n, column);
		sums_load(e, t, n, column);
	} else {
		new_sums(e, t, n);
		first_row(e, t, column, n);
	}
	EACH(e, row, t->t->rows) tile_row(e, t, row, column, n);
	if (carried)
		sums_store(e, t, n, column);
	else
		add_states(e, t, n, column);
}

static void
whole_block(Emit *e, void *cx, const Ix *column, int n)
{
	new_sums(e, cx, n);
	sums_load(e, cx, n, column);
	add_states(e, cx, n, column);
}

void
epilogue_fetch(Emit *e, const Epilogue *p, const EpilogueTile *t, int64_t columns)
{
	static const int near[] = {2, 3, 1, 0}; /* of tune.def's words: l2 l1 l3 none; as LLVM counts, L1 is 3 */
	const Type *type = val_type(e->g, p->op->out[0]);
	TileCx cx = {.p = (Epilogue *)(uintptr_t)p, .t = t};
	Ix ix[MAX_RANK];

	if (!p->nfetch || !near[p->gc->fetch])
		return;
	EACH(e, row, t->rows) {
		tile_index(e, &cx, row, ix_s(t->column), ix);
		V at = offset_of(e, type, ix).s;

		for (int k = 0; k < p->nfetch; k++) {
			int bytes = dtype_info[val_type(e->g, p->fetch[k].v)->dtype].bytes;
			/* [number][byte behind it] */
			Mem m = mem_axes(e, buffer(e, p->fetch[k].buf), BY(bytes), BY(1));

			for (int64_t j = 0; j < columns * bytes; j += 64)
				prefetch(e, mem_at(e, &m, at, k64(e, j)), near[p->gc->fetch]);
		}
	}
}

void
epilogue_tile(Emit *e, Epilogue *p, const EpilogueTile *t)
{
	TileCx cx = {.p = p, .t = t};

	if (p->nout || p->nred)
		lane_blocks(e, t->column, i_add(e, t->column, t->columns), t->unroll, tile_block, &cx);
}

void
epilogue_block(Emit *e, Epilogue *p, const EpilogueTile *t)
{
	TileCx cx = {.p = p, .t = t};

	lane_blocks(e, t->column, i_add(e, t->column, t->columns), t->unroll, whole_block, &cx);
}

/* ---------------------------------------------------------------- after all tiles */
void
epilogue_finish(GroupCx *gc, GraphKernels *gk, Epilogue *p, PieceCount *count, void *cx)
{
	Red *red[EPILOGUE_OUTS];

	for (int k = 0; k < p->nred; k++)
		red[k] = &p->red[k];
	if (p->nred)
		finish_emit(gc, gk,
		            &(Finish){.red = red,
		                      .nred = p->nred,
		                      .out = p->late,
		                      .nout = p->nlate,
		                      .npiece = p->npiece,
		                      .ws = p->ws,
		                      .count = count,
		                      .cx = cx,
		                      .compensated = epilogue_compensates},
		            "finish");
}
