/* winograd_emit.c: the kernels of a group that goes by Winograd's algorithm: order and buffers.
 *
 * In: the group, buffers of its operands.   Out: kernels in order; here those that multiply, and taps. */
#include "winograd.h"

enum { SUM_BLOCK = 128 }; /* rows of tiles, each block's sum added to what stands in memory */

/* ---------------------------------------------------------------- products */
/* Task: a point and a block of rows. */
static void
products_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), block = p->mr * 8,
	        blocks = ceil_div(s->rows, block);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, s->n.mul ? ANY_ROWS : tile_rows(s->rows, block, p->mr));
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = buffer(&e, cbuf),
		  rows = i_mul(&e, extent(&e, s->n), k64(&e, s->th * s->tw));
		V st[S_COUNT] = {[S_AM] = k64(&e, s->C * 4), [S_AK] = k64(&e, 4),        [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),        [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, nr * 4),   [S_CM] = k64(&e, s->K * 4), [S_NK] = k64(&e, s->C)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V point = i_div(&e, t, k64(&e, blocks)),
		  lo0 = i_min(&e, i_mul(&e, i_rem(&e, t, k64(&e, blocks)), k64(&e, block)), rows);
		V hi0 = i_min(&e, i_add(&e, lo0, k64(&e, block)), rows),
		  kb = loop_open(&e, k64(&e, 0), k64(&e, npanel), 1), lo, count;
		V b = ptr_at(&e, B,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_weights_point(s, p))),
		                   i_mul(&e, kb, k64(&e, winograd_panel_rows(s, p->lanes) * nr * 4))));

		tiles_open(&e, i_sub(&e, hi0, lo0), p->mr, &lo, &count);
		lo = i_add(&e, lo0, lo);
		V a = ptr_at(&e, A,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_point(s->rows * s->C))),
		                   i_mul(&e, lo, k64(&e, s->C * 4))));
		V c = ptr_at(&e, C,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_point(s->rows * s->K))),
		                   i_add(&e, i_mul(&e, lo, k64(&e, s->K * 4)), i_mul(&e, kb, k64(&e, nr * 4)))));

		tile_call(&e, &tiles, count, kb, npanel, a, b, c, k64(&e, 1), k64(&e, 1), strides, k64(&e, 0));
		for (int i = 0; i < 3; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = POINTS * blocks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* Sums over all rows. Task: a point and a panel of columns. */
static void
sums_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, tile_rows(s->C, s->C, p->mr));
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = buffer(&e, cbuf),
		  rows = i_mul(&e, extent(&e, s->n), k64(&e, s->th * s->tw));
		V st[S_COUNT] = {[S_AM] = k64(&e, 4),        [S_AK] = k64(&e, s->C * 4), [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),        [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, s->K * 4), [S_CM] = k64(&e, s->K * 4), [S_NK] = k64(&e, 0)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V point = i_div(&e, t, k64(&e, npanel)), kb = i_rem(&e, t, k64(&e, npanel)),
		  kcol = i_mul(&e, kb, k64(&e, nr * 4));
		V first = loop_open(&e, k64(&e, 0), rows, SUM_BLOCK), at = k64(&e, S_NK), lo, count;
		V acc = LLVMBuildSelect(here(&e), LLVMBuildICmp(here(&e), LLVMIntNE, first, k64(&e, 0), ""),
		                        k64(&e, ADDED), k64(&e, 0), "");

		LLVMBuildStore(here(&e), i_min(&e, k64(&e, SUM_BLOCK), i_sub(&e, rows, first)),
		               LLVMBuildInBoundsGEP2(here(&e), e.l->i64, strides, &at, 1, ""));
		V b = ptr_at(&e, B,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_point(s->rows * s->K))),
		                   i_add(&e, i_mul(&e, first, k64(&e, s->K * 4)), kcol)));

		tiles_open(&e, k64(&e, s->C), p->mr, &lo, &count);
		V a = ptr_at(&e, A,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_point(s->rows * s->C))),
		                   i_add(&e, i_mul(&e, first, k64(&e, s->C * 4)), i_mul(&e, lo, k64(&e, 4)))));

		tile_call(&e, &tiles, count, kb, npanel, a, b,
		          ptr_at(&e, C,
		                 i_add(&e, i_mul(&e, point, k64(&e, winograd_weights_point(s, p))),
		                       i_add(&e, i_mul(&e, lo, k64(&e, s->K * 4)), kcol))),
		          k64(&e, 1), k64(&e, 1), strides, acc);
		for (int i = 0; i < 3; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = POINTS * npanel, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* The gradients of the taps from those at 36 points. */
static void
taps_emit(GroupCx *gc, const Shape *s, int src, int dst, GraphKernels *gk)
{
	int64_t all = s->C * s->K, point = winograd_point(all);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "taps", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		V from = buffer(&e, src), to = buffer(&e, dst), m[POINTS], g[SIDE_MOST * SIDE_MOST];
		V t = loop_open(&e, i_mul(&e, e.arg_t0, k64(&e, PLANE_CHUNK)),
		                i_min(&e, i_mul(&e, e.arg_t1, k64(&e, PLANE_CHUNK)), k64(&e, all)), e.W),
		  x = i_mul(&e, t, k64(&e, 4));

		for (int i = 0; i < POINTS; i++) {
			m[i] = vec_load(&e, ptr_at(&e, from, i_add(&e, x, k64(&e, i * point))), NULL);
			prefetch(&e, ptr_at(&e, from, i_add(&e, x, k64(&e, i * point + AHEAD * e.W * 4))), 2);
		}
		V tail = all % e.W ? mask_below(&e, i_sub(&e, k64(&e, all), t)) : NULL;

		winograd_square(&e, s->side == 3 ? winograd_taps : winograd_taps5, SPAN, s->side, m, g);
		for (int i = 0; i < s->side * s->side; i++)
			vec_store(&e, ptr_at(&e, to, i_add(&e, x, k64(&e, i * all * 4))), g[i], tail);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = all, .mul = 0, .div = 1, .grain = PLANE_CHUNK}, fresh, false);
}

void
winograd_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk)
{
	Shape s = winograd_split(gc->g, op, p);
	bool half = gemm_half(gc->g, op) != DT_none;
	Cut cut = {.H = s.H,
	           .W = s.W,
	           .C = s.C,
	           .pad = s.pad,
	           .size = SPAN,
	           .f = winograd_data,
	           .src = half ? -1 : abuf,
	           .made = op->in[0],
	           .part = "tiles"};
	int64_t at = gc->g->group.at[gc->group].workspace_offset,
	        size[3] = {winograd_weights_point(&s, p), winograd_point(s.rows * s.C), winograd_point(s.rows * s.K)};
	int ws[3], nws = s.block ? 1 : 3;
	Epilogue epi;

	gemm_epilogue(gc, op, p, &epi);
	gc->flops_less = op_flops(gc->g, op) - 2.0 * POINTS * (double)s.rows * (double)(s.C * s.K);
	for (int i = 0; i < nws; i++) {
		if (i == 0 && !s.dw) {
			ws[0] = panels_at(gc);
			at += gc->g->group.at[gc->group].kept ? 0 : POINTS * size[0];
			continue;
		}
		vec_push(gc->c->arena, &gc->buf, ((Buffer){0, at}));
		ws[i] = (int)gc->buf.n - 1;
		at += POINTS * size[i];
	}
	if (!s.dw) {
		gc->once = gc->g->group.at[gc->group].kept > 0;
		winograd_weights_emit(gc, &s, p, bbuf, ws[0], gk);
		gc->once = false;
	}
	if (nws == 1) {
		winograd_bands_emit(gc, &s, p, &cut, ws[0], &epi, gk);
	} else {
		cut.dst = ws[1];
		winograd_tiles_emit(gc, &s, &cut, gk);
	}
	if (s.dw) {
		winograd_tiles_emit(gc, &s,
		                    &(Cut){.H = s.OH,
		                           .W = s.OW,
		                           .C = s.K,
		                           .size = s.tile,
		                           .f = s.side == 3 ? winograd_gradient : winograd_gradient2,
		                           .src = half ? -1 : bbuf,
		                           .made = op->in[1],
		                           .dst = ws[2],
		                           .part = "gradient"},
		                    gk);
		sums_emit(gc, &s, p, ws[1], ws[2], ws[0], gk);
		taps_emit(gc, &s, ws[0], epi.raw, gk);
		return;
	}
	if (nws == 3) {
		products_emit(gc, &s, p, ws[1], ws[0], ws[2], gk);
		winograd_pixels_emit(gc, &s, p, ws[2], &epi, gk);
	}
	epilogue_finish(gc, gk, &epi, winograd_piece_pixels, &s);
}
