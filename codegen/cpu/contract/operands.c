/* operands.c: what stands before and behind a contraction's main kernel.
 *
 * In: a group, its contraction, parameters.   Out: the operands' buffers, with kernels that copy them where the engine
 * wants them in another form; panels of the second one; the epilogue, with its place in the workspace. */
#include "algo.h"

/* The operands' buffers: their own, or copies behind the workspace's own part; -1: made as they are loaded. */
void
gemm_operands(GroupCx *gc, const Op *op, const GemmParams *p, int a[2], GraphKernels *gk)
{
	int64_t used = align64(gemm_own_workspace(gc->g, op, p));

	for (int k = 0; k < 2; k++) {
		int64_t bytes = gemm_copy_bytes(gc->g, op, p, k), at = bytes ? workspace_start(gc) + used : 0;

		bool made = prologue_made(gc->g, op, k);

		if (!bytes) {
			Val rounded = k == 1 ? prologue_rounded(gc->g, op, p) : NOVAL;

			a[k] = rounded.id ? group_buffer(gc, rounded.id) : made ? -1 : group_buffer(gc, op->in[k].id);
		} else if (engine_pairs(p) && vnni_row(gc->g, op, k)) {
			vec_push(gc->tmp, &gc->buf, ((Buffer){0, at}));
			a[k] = (int)gc->buf.n - 1;
			if (engine_of(p)->side_by_side && k == 0)
				amx_transpose(gc, op->in[k], made, a[k], gk);
			else if (made)
				vnni_make(gc, op->in[k], vnni_line(gc->g, op, k), a[k], gk);
			else
				vnni_emit(gc, op->in[k], vnni_row(gc->g, op, k), vnni_line(gc->g, op, k), a[k], gk);
		} else {
			bool pads = pads_rows(gc->g, op, p, k);
			Type *t = arena_new_of(gc->tmp, Type);

			*t = *val_type(gc->g, op->in[k]);
			if (!engine_pairs(p))
				t->dtype = DT_f32;
			if (pads)
				t->axis[t->perm[t->rank - 1]].n++;
			store_copy(gc, op->in[k], t, at, gk);
			a[k] = (int)gc->buf.n - 1;
			if (pads)
				pad_emit(gc, t, a[k], gk);
		}
		used += bytes;
	}
}

void
gemm_epilogue(GroupCx *gc, const Op *op, const GemmParams *p, Epilogue *epi)
{
	epilogue_find(gc, op, gemm_pieces(gc->g, op, p), gemm_workspace(gc->g, op, p), epi);
}

int
gemm_pack(GroupCx *gc, const Op *op, const GemmParams *p, int b, Epilogue *epi, GraphKernels *gk)
{
	int panels = gemm_panels(gc->g, op, p) ? panels_at(gc) : -1;

	gemm_epilogue(gc, op, p, epi);
	if (panels >= 0) {
		gc->once = gc->g->group.at[gc->group].prepacked > 0;
		pack_emit(gc, op, p, b, panels, gk);
		gc->once = false;
	}
	return panels;
}
