/* winograd_emit.c: the kernels of a group that goes by Winograd's algorithm: order and buffers.
 *
 * In: the group, buffers of its operands.   Out: kernels in order; here those that multiply, and taps. */
#include "winograd.h"

/* Rows of tiles, channels: each block's sum is added to what stands in memory. */
enum { SUM_BLOCK = 128, CHANNEL_BLOCK = 256 };

/* ---------------------------------------------------------------- products */
void
winograd_multiply(Emit *e, const Shape *s, const Multiply *m, V lo, V count, V kb, V a, V b, V c, V next)
{
	int64_t blocks = ceil_div(s->depth, CHANNEL_BLOCK), most = ceil_div(s->depth, blocks);
	V which = k64(e, S_NK);

	for (int64_t at = 0; at < s->depth; at += most) {
		V size = k64(e, at + most < s->depth ? most : s->depth - at), acc = at ? k64(e, ADDED) : NULL,
		  from = at ? ptr_at(e, a, k64(e, F32(at))) : a, panel = at ? ptr_at(e, b, k64(e, F32(at * m->nr))) : b;

		if (blocks > 1)
			LLVMBuildStore(here(e), size,
			               LLVMBuildInBoundsGEP2(here(e), e->l->i64, m->strides, &which, 1, ""));
		panel_next(e, &m->shared, m->strides, at ? ptr_at(e, next, k64(e, at * m->shared.share)) : next, lo,
		           s->depth);
		tile_call(e, &m->tiles, count, kb, m->npanel, from, panel, c, NULL, NULL, m->strides, acc);
	}
}

/* Task: a point of a turn and a block of its rows. */
static void
products_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), block = p->mr * 8,
	        blocks = ceil_div(s->rows / s->turns, block);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		int64_t each = s->rows / s->turns;
		Multiply m = {.shared = panel_shared(p, each < block ? each : block), .nr = nr, .npanel = npanel};

		m.tiles = tiles_make(&e, &m.shared, s->K, s->n.mul ? ANY_ROWS : tile_rows(each, block, p->mr),
		                     (Steps){4, F32(nr)});
		/* [point][row][channel], [turn and kind][panel], [point][row][panel] */
		int64_t line = F32(s->depth), size = winograd_point(s->rows * s->depth);
		Mem A = mem_axes(&e, buffer(&e, abuf), BY(size), BY(line), BY(4));
		Mem B = mem_axes(&e, buffer(&e, bbuf), BY(winograd_weights_point(s, p)),
		                 BY(F32(winograd_panel_rows(s, p->lanes) * nr)));
		Mem C = mem_axes(&e, buffer(&e, cbuf), BY(winograd_point(s->rows * s->K)), BY(F32(s->K)), BY(F32(nr)));
		V rows = i_mul_k(&e, extent(&e, s->n), s->each);
		m.strides = strides_of_constants(&e, (const int64_t[S_COUNT]){[S_AM] = line,
		                                                              [S_AK] = 4,
		                                                              [S_BK] = F32(nr),
		                                                              [S_CM] = F32(s->K),
		                                                              [S_NK] = s->depth});

		TASKS(&e, t) {
			V plane = i_div_k(&e, t, blocks), point = plane, kind = NULL;
			V lo0 = i_min(&e, i_mul_k(&e, i_rem_k(&e, t, blocks), block), rows),
			  hi0 = i_min(&e, i_add_k(&e, lo0, block), rows), before = NULL;

			if (s->turns > 1) {
				V turn = i_div_k(&e, plane, s->points);

				point = i_rem_k(&e, plane, s->points);
				before = i_mul(&e, turn, rows);
				kind = i_mul_k(&e, turn, s->kinds);
			}
			kind = kind ? i_add(&e, kind, winograd_kind_at(&e, s, point)) : winograd_kind_at(&e, s, point);
			TIMES(&e, kb, npanel) {
				V panel = mem_at(&e, &B, kind, kb), next = mem_at(&e, &B, kind, i_add_k(&e, kb, 1));

				TILES(&e, lo, count, i_sub(&e, hi0, lo0), p->mr) {
					V row = i_add(&e, lo0, lo);

					if (before)
						row = i_add(&e, before, row);
					winograd_multiply(&e, s, &m, lo, count, kb, mem_at(&e, &A, point, row), panel,
					                  mem_at(&e, &C, point, row, kb), next);
				}
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->turns * s->points * blocks, .mul = 0, .div = 1, .grain = 1},
	           fresh, false);
}

/* What a task of sums_emit adds up: for channels [lo, hi), rows of the sum, all points of a kind. Each point has a
 * task; those of one kind have equal shares of its channels. */
typedef struct Sum { V kind, lo, hi, point, again; } Sum;

/* Opens loops over the points, if there are several; again: this is not the first. */
static int
sum_open(Emit *e, const Shape *s, V task, int mr, Sum *r)
{
	*r = (Sum){.kind = task, .lo = k64(e, 0), .hi = k64(e, s->depth), .point = task};
	if (!s->phased)
		return 0;
	V at[2] = {i_div_k(e, task, s->side[1].span), i_rem_k(e, task, s->side[1].span)}, first[2], count[2];

	for (int i = 0; i < 2; i++) {
		const Side *b = &s->side[i];

		first[i] = i_min_k(e, at[i], b->kinds - 1);
		V last = LLVMBuildICmp(here(e), LLVMIntEQ, first[i], k64(e, b->kinds - 1), "");

		count[i] = LLVMBuildSelect(here(e), last, k64(e, b->span - b->kinds + 1), k64(e, 1), "");
	}
	V number = i_add(e, i_mul(e, i_sub(e, at[0], first[0]), count[1]), i_sub(e, at[1], first[1])),
	  tasks = i_mul(e, count[0], count[1]), tiles = k64(e, ceil_div(s->depth, mr)),
	  share = i_mul_k(e, i_div(e, i_add(e, tiles, i_add_k(e, tasks, -1)), tasks), mr);

	r->kind = winograd_kind_at(e, s, task);
	r->lo = i_min_k(e, i_mul(e, number, share), s->depth);
	r->hi = i_min_k(e, i_add(e, r->lo, share), s->depth);
	for (int i = 0; i < 2; i++)
		at[i] = loop_open(e, first[i], i_add(e, first[i], count[i]), 1);
	r->point = i_add(e, i_mul_k(e, at[0], s->side[1].span), at[1]);
	r->again = LLVMBuildOr(here(e), LLVMBuildICmp(here(e), LLVMIntNE, at[0], first[0], ""),
	                       LLVMBuildICmp(here(e), LLVMIntNE, at[1], first[1], ""), "");
	return 2;
}

/* Sums over all rows of all points of a kind. Task: a point and a panel of columns. */
static void
sums_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr);
	GemmParams past = *p;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	/* sums of one block are written once, and are all of the transform's operand */
	past.past = s->rows <= SUM_BLOCK && !s->phased && s->K % p->lanes == 0 &&
	            pack_streams(gc->g, p, s->kinds * winograd_weights_point(s, p));
	if (fresh) {
		emit_lanes(&e, s->w);
		e.streamed |= past.past;
		int64_t line = F32(s->depth), size = winograd_point(s->rows * s->depth);
		Tiles tiles = tiles_make(&e, &past, s->K,
		                         s->phased ? ANY_ROWS : tile_rows(s->depth, s->depth, p->mr),
		                         (Steps){line, F32(s->K)});
		/* [point][row][channel], [point][row][panel], [kind][input channel][panel] */
		Mem A = mem_axes(&e, buffer(&e, abuf), BY(size), BY(line), BY(4));
		Mem B = mem_axes(&e, buffer(&e, bbuf), BY(winograd_point(s->rows * s->K)), BY(F32(s->K)), BY(F32(nr)));
		Mem C = mem_axes(&e, buffer(&e, cbuf), BY(winograd_weights_point(s, p)), BY(F32(s->K)), BY(F32(nr)));
		V rows = i_mul_k(&e, extent(&e, s->n), s->tiles);
		V strides = strides_of_constants(&e, (const int64_t[S_COUNT]){[S_AM] = 4,
		                                                            [S_AK] = line,
		                                                            [S_BK] = F32(s->K),
		                                                            [S_CM] = F32(s->K)});

		TASKS(&e, t) {
			V kb = i_rem_k(&e, t, npanel);
			Sum sum;

			LOOPS(&e, sum_open(&e, s, i_div_k(&e, t, npanel), p->mr, &sum))
			LOOP(&e, first, k64(&e, 0), rows, SUM_BLOCK) {
				V more = LLVMBuildICmp(here(&e), LLVMIntNE, first, k64(&e, 0), "");

				if (sum.again)
					more = LLVMBuildOr(here(&e), more, sum.again, "");
				V acc = LLVMBuildSelect(here(&e), more, k64(&e, ADDED), k64(&e, 0), ""),
				  at = k64(&e, S_NK);

				LLVMBuildStore(here(&e), i_min(&e, k64(&e, SUM_BLOCK), i_sub(&e, rows, first)),
				               LLVMBuildInBoundsGEP2(here(&e), e.l->i64, strides, &at, 1, ""));
				TILES(&e, number, count, i_sub(&e, sum.hi, sum.lo), p->mr) {
					V lo = i_add(&e, sum.lo, number);

					tile_call(&e, &tiles, count, kb, npanel, mem_at(&e, &A, sum.point, first, lo),
					          mem_at(&e, &B, sum.point, first, kb),
					          mem_at(&e, &C, sum.kind, lo, kb), NULL, NULL, strides, acc);
				}
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->points * npanel, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* The gradients of the taps from those at the points. */
static void
taps_emit(GroupCx *gc, const Shape *s, int src, int dst, GraphKernels *gk)
{
	int64_t all = s->C * s->K, point = winograd_point(s->depth * s->K);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "taps", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		/* [part][kind][element], the same some elements on, [tap][element] */
		Mem from = mem_axes(&e, buffer(&e, src), BY(F32(all)), BY(point), BY(4)), ahead = from;
		Mem to = mem_axes(&e, buffer(&e, dst), BY(F32(all)), BY(4));
		V lo = grains_lo(&e, PLANE_CHUNK), hi = grains_hi(&e, PLANE_CHUNK, k64(&e, all));

		ahead.start = k64(&e, F32(AHEAD * e.W));
		LOOP(&e, t, lo, hi, e.W) for (int part = 0; part < s->parts; part++) {
			V m[POINTS_MOST], g[TAPS_MOST];

			for (int i = 0; i < s->kinds; i++) {
				m[i] = vec_load(&e, mem_at(&e, &from, k64(&e, part), k64(&e, i), t), NULL);
				prefetch(&e, mem_at(&e, &ahead, k64(&e, part), k64(&e, i), t), 2);
			}
			V tail = all % e.W ? mask_below(&e, i_sub(&e, k64(&e, all), t)) : NULL;

			winograd_both(&e, s, TAPS, m, g);
			for (int i = 0; i < s->taps; i++) {
				int tap = winograd_tap(s, 0, part, i);

				if (tap >= 0)
					vec_store(&e, mem_at(&e, &to, k64(&e, tap), t), g[i], tail);
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = all, .mul = 0, .div = 1, .grain = PLANE_CHUNK}, fresh, false);
}

void
winograd_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk)
{
	Shape s = winograd_split(gc->g, op, p);
	bool half = gemm_half(gc->g, op) != DT_none;
	Cut cut = {.in = {s.side[0].in, s.side[1].in},
	           .C = s.C,
	           .way = DATA,
	           .parts = s.parts,
	           .src = half ? -1 : abuf,
	           .made = op->in[0],
	           .part = "tiles"};
	const Group *group = &gc->g->group.at[gc->group];
	WinogradRegions at = winograd_workspace(&s, p);
	/* what kernels of the group keep stands elsewhere, and the workspace begins behind it */
	int64_t prepacked = group->prepacked ? at.tiles : 0, region[3] = {at.weights, at.tiles, at.products};
	int ws[3], nws = s.block ? 1 : 3;
	Epilogue epi;

	gemm_epilogue(gc, op, p, &epi);
	gc->flops_less = op_flops(gc->g, op) - 2.0 * s.points * (double)s.rows * (double)(s.depth * s.K);
	for (int i = 0; i < nws; i++) {
		if (i == 0 && !s.dw) {
			ws[0] = panels_at(gc);
			continue;
		}
		vec_push(gc->c->arena, &gc->buf, ((Buffer){0, group->workspace_offset + region[i] - prepacked}));
		ws[i] = (int)gc->buf.n - 1;
	}
	if (!s.dw) {
		gc->once = group->prepacked > 0;
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
		                    &(Cut){.in = {s.side[0].out, s.side[1].out},
		                           .C = s.K,
		                           .way = GRADIENT,
		                           .parts = 1,
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
