/* epilogue.c: elementwise ops of a contraction's group, applied to each tile while it lies in the first-level cache.
 *
 * In: a tile of raw sums that the microkernel has just written.   Out: the group's outputs for the tile. The raw sums go to the contraction's
 * own buffer if something else reads them, else to the place of the first f32 output, which then overwrites them in place, else, where all
 * outputs are 16 bits wide, to a tile on the stack.
 * Columns are the outer loop, so that what belongs to a channel (a bias) is loaded once per tile. */
#include "gemm.h"
#include <string.h>

void
epilogue_find(GroupCx *gc, const Op *op, Epilogue *p)
{
	const Graph *g = gc->g;

	*p = (Epilogue){.gc = gc, .op = op, .raw = -1};
	if (val_info(g, op->out[0])->offset >= 0 && val_type(g, op->out[0])->dtype == DT_f32)
		p->raw = group_buffer(gc, op->out[0].id);
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *o = &g->op.at[i];

		if ((o == op && p->raw >= 0) || o->dead || !o->nout || val_info(g, o->out[0])->offset < 0 || o->kind == OP_load)
			continue;
		if (p->nout == EPILOGUE_OUTS)
			bug("a contraction with more than %d outputs", EPILOGUE_OUTS);
		p->out[p->nout] = o->out[0];
		p->buf[p->nout++] = group_buffer(gc, o->out[0].id);
	}
	for (int k = 0; k < p->nout && p->raw < 0; k++)
		if (val_type(g, p->out[k])->dtype == DT_f32)
			p->raw = p->buf[k];
	if (p->raw < 0 && !p->nout)
		bug("%s: nobody reads its result", op_info[op->kind].name);
}

void
epilogue_begin(Emit *e, Epilogue *p, int mr, int64_t row)
{
	p->row = row;
	if (p->raw >= 0)
		return;
	p->tile = slot_new(e, LLVMArrayType2(e->l->f32, (uint64_t)(mr * row)));
	LLVMSetAlignment(p->tile, 64);
}

V
epilogue_stride(Emit *e, const Epilogue *p, int64_t stride)
{
	return k64(e, p->raw >= 0 ? stride : p->row * 4);
}

V
epilogue_at(Emit *e, const Epilogue *p, V raw, V at)
{
	return p->raw >= 0 ? ptr_at(e, raw, at) : p->tile;
}

typedef struct TileCx { Epilogue *p; V rows, column; EpilogueIndex *index; void *cx; } TileCx;

static void
tile_lane(Emit *e, void *cx, Ix column, int u)
{
	TileCx *t = cx;
	Epilogue *p = t->p;
	const Type *type = val_type(e->g, p->op->out[0]);
	int axis_of_columns = type->perm[type->rank - 1];
	Ix ix[MAX_RANK];
	Cell c[EPILOGUE_OUTS];

	(void)u;
	V row = loop_open(e, k64(e, 0), t->rows, 1);

	t->index(e, t->cx, row, ix);
	ix[axis_of_columns] = column;
	for (int i = 0; i < type->rank; i++)
		if (type->axis[i].n == 1 && !type->axis[i].mul)
			ix[i] = ix_k(e, 0);
	/* the microkernel has just written there: the load must not move out of these loops, so its base is made here */
	V raw = LLVMBuildFreeze(here(e), p->raw >= 0 ? buffer(e, p->raw) : p->tile, "raw");
	Off at = {.s = i_add(e, i_mul(e, row, k64(e, p->row)), i_sub(e, column.s, t->column)), .c = ix[axis_of_columns].c};
	Cell sum = load_at(e, raw, DT_f32, p->raw >= 0 ? offset_of(e, type, ix) : at);

	memo_put(e, p->op->out[0], ix, cell_cast(e, sum, (DType)type->dtype), e->depth);
	for (int k = 0; k < p->nout; k++)
		c[k] = lane_eval(e, p->out[k], ix);
	for (int k = 0; k < p->nout; k++) {
		const Type *to = val_type(e->g, p->out[k]);

		store_at(e, buffer(e, p->buf[k]), (DType)to->dtype, offset_of(e, to, ix), c[k]);
	}
	loop_close(e);
}

void
epilogue_tile(Emit *e, Epilogue *p, V rows, V column, V columns, EpilogueIndex *index, void *cx)
{
	TileCx t = {p, rows, column, index, cx};

	if (p->nout)
		lane_loop(e, column, i_add(e, column, columns), 1, tile_lane, &t);
}
