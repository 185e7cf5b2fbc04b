/* epilogue.c: elementwise ops of a contraction's group, applied to each tile while it lies in the first-level cache.
 *
 * In: a tile of raw sums that the microkernel has just written.   Out: the group's outputs for the tile. The raw sums go to the contraction's
 * own buffer if something else reads them, else to the place of the first output, which then overwrites them in place.
 * Columns are the outer loop, so that what belongs to a channel (a bias) is loaded once per tile. */
#include "gemm.h"
#include <string.h>

void
epilogue_find(GroupCx *gc, const Op *op, Epilogue *p)
{
	const Graph *g = gc->g;

	*p = (Epilogue){.gc = gc, .op = op, .raw = -1};
	if (val_info(g, op->out[0])->offset >= 0)
		p->raw = group_buffer(gc, op->out[0].id);
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *o = &g->op.at[i];

		if (o == op || o->dead || !o->nout || val_info(g, o->out[0])->offset < 0 || o->kind == OP_load)
			continue;
		if (p->nout == EPILOGUE_OUTS)
			bug("a contraction with more than %d outputs", EPILOGUE_OUTS);
		p->out[p->nout] = o->out[0];
		p->buf[p->nout++] = group_buffer(gc, o->out[0].id);
	}
	if (p->raw < 0 && p->nout)
		p->raw = p->buf[0];
	if (p->raw < 0)
		bug("%s: nobody reads its result", op_info[op->kind].name);
}

typedef struct TileCx { Epilogue *p; V rows; EpilogueIndex *index; void *cx; } TileCx;

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
	V raw = LLVMBuildFreeze(here(e), buffer(e, p->raw), "raw");

	memo_put(e, p->op->out[0], ix, load_at(e, raw, DT_f32, offset_of(e, type, ix)), e->depth);
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
	TileCx t = {p, rows, index, cx};

	if (p->nout)
		lane_loop(e, column, i_add(e, column, columns), 1, tile_lane, &t);
}
