/* winograd_back.c: products at 36 points back to pixels, and the kernel that has all three steps in a thread's memory.
 *
 * In: products, or what they are computed from.   Out: tiles of pixels, on which the group's epilogue runs. */
#include "winograd.h"

/* ---------------------------------------------------------------- back to pixels */
typedef struct PixelAt {
	V h, w, width, images, first;
} PixelAt;

/* Rows of a tile of the epilogue: pixel by pixel, some images of each. */
static void
pixel_index(Emit *e, void *cx, V row, Ix *ix)
{
	const PixelAt *at = cx;
	V pixel = i_div(e, row, at->images);

	ix[0] = ix_s(i_add(e, at->first, i_rem(e, row, at->images)));
	ix[2] = ix_s(i_add(e, at->h, i_div(e, pixel, at->width)));
	ix[3] = ix_s(i_add(e, at->w, i_rem(e, pixel, at->width)));
}

/* Rows or columns of a tile that are pixels. */
static V
valid(Emit *e, const Shape *s, V tile, int64_t side)
{
	V whole = k64(e, s->tile);

	return side % s->tile ? i_min(e, whole, i_sub(e, k64(e, side), i_mul(e, tile, whole))) : whole;
}

V
winograd_piece_pixels(Emit *e, void *cx, V piece)
{
	const Shape *s = cx;
	V tile = i_div(e, piece, k64(e, s->split)), images = extent(e, s->n);

	if (s->split > 1)
		images = i_min(e, k64(e, s->block),
		               i_sub(e, images, i_mul(e, i_rem(e, piece, k64(e, s->split)), k64(e, s->block))));
	return i_mul(e,
	             i_mul(e, valid(e, s, i_div(e, tile, k64(e, s->tw)), s->OH),
	                   valid(e, s, i_rem(e, tile, k64(e, s->tw)), s->OW)),
	             images);
}

/* What a tile is transformed back from, and into. */
typedef struct Back {
	V tile[2], kb; /* which tile, which panel of channels */
	V from;
	int64_t point, row; /* products of image `first`: bytes between points, between images */
	V first, last;      /* images */
	V piece, start;     /* of the epilogue's states, and its first image */
	V out;
	bool raw_tile;
} Back;

/* The tile's pixels, and the epilogue on them, some images at a time. */
static void
turn_back(Emit *e, const Shape *s, const GemmParams *p, Epilogue *epi, const Back *b)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	V column = i_mul(e, b->kb, k64(e, nr)), columns = i_min(e, k64(e, nr), i_sub(e, k64(e, s->K), column)),
	  n = extent(e, s->n), m[POINTS], y[TILE_MOST * TILE_MOST], mask[2][TILE_MOST];
	V height = valid(e, s, b->tile[0], s->OH), width = valid(e, s, b->tile[1], s->OW),
	  h = i_mul(e, b->tile[0], k64(e, s->tile)), w = i_mul(e, b->tile[1], k64(e, s->tile));

	for (int i = 0; i < s->tile; i++)
		for (int side = 0; side < 2; side++)
			mask[side][i] = (side ? s->OW : s->OH) % s->tile ? LLVMBuildICmp(here(e), LLVMIntSLT, k64(e, i),
			                                                              side ? width : height, "")
			                                              : NULL;
	V first = loop_open(e, b->first, b->last, IMAGES), images = i_min(e, k64(e, IMAGES), i_sub(e, b->last, first));
	PixelAt at = {h, w, width, images, first};
	V pixels_of_tile = i_mul(e, height, width);
	EpilogueTile et = {.rows = i_mul(e, pixels_of_tile, images),
	                   .column = column,
	                   .columns = columns,
	                   .piece = b->piece,
	                   .done = i_mul(e, pixels_of_tile, i_sub(e, first, b->start)),
	                   .tile = b->out,
	                   .tile_columns = nr,
	                   .unroll = p->nv,
	                   .index = pixel_index,
	                   .cx = &at};
	V image = loop_open(e, k64(e, 0), images, 1), c = loop_open(e, k64(e, 0), columns, e->W),
	  c4 = i_mul(e, c, k64(e, 4)),
	  tail = s->K % e->W && !b->raw_tile ? mask_below(e, i_sub(e, columns, c)) : NULL;
	V in = ptr_at(e, b->from, i_add(e, i_mul(e, i_add(e, i_sub(e, first, b->first), image), k64(e, b->row)), c4)),
	  plane = i_mul(e, n, k64(e, s->K * 4));

	for (int i = 0; i < POINTS; i++)
		m[i] = vec_load(e, ptr_at(e, in, k64(e, i * b->point)), NULL);
	winograd_square(e, s->side == 3 ? winograd_pixels : winograd_pixels2, SPAN, s->tile, m, y);
	for (int i = 0; i < s->tile; i++)
		for (int j = 0; j < s->tile; j++) {
			V a = mask[0][i], f = mask[1][j],
			  both = a && f ? LLVMBuildAnd(here(e), a, f, "")
			         : a    ? a
			                : f,
			  some = both ? splat(e, both) : NULL, to;

			some = some && tail ? mask_and(e, some, tail) : tail ? tail : some;

			if (b->raw_tile)
				to = i_mul(e,
				           i_add(e, i_mul(e, i_add(e, i_mul(e, k64(e, i), width), k64(e, j)), images),
				                 image),
				           k64(e, nr * 4));
			else
				to = i_add(e,
				           i_add(e,
				                 i_mul(e,
				                       i_add(e, i_mul(e, i_add(e, h, k64(e, i)), k64(e, s->OW)),
				                             i_add(e, w, k64(e, j))),
				                       plane),
				                 i_mul(e, i_add(e, first, image), k64(e, s->K * 4))),
				           i_mul(e, column, k64(e, 4)));
			to = i_add(e, to, c4);
			vec_store(e, LLVMBuildGEP2(here(e), e->l->i8, b->out, &to, 1, ""), y[i * s->tile + j], some);
		}
	loop_close(e);
	loop_close(e);
	epilogue_tile(e, epi, &et);
	loop_close(e);
}

/* Task: a tile and a panel of channels. */
void
winograd_pixels_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, Epilogue *epi, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "pixels", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		bool tile;
		V from = buffer(&e, src), out = epilogue_raw(&e, epi, s->tile * s->tile * IMAGES, nr, &tile),
		  n = extent(&e, s->n), t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V at = i_div(&e, t, k64(&e, npanel)), kb = i_rem(&e, t, k64(&e, npanel));
		Back b = {.tile = {i_div(&e, at, k64(&e, s->tw)), i_rem(&e, at, k64(&e, s->tw))},
		          .kb = kb,
		          .piece = at,
		          .start = k64(&e, 0),
		          .first = k64(&e, 0),
		          .last = n,
		          .out = out,
		          .raw_tile = tile,
		          .from = ptr_at(&e, from,
		                         i_add(&e, i_mul(&e, i_mul(&e, at, n), k64(&e, s->K * 4)),
		                               i_mul(&e, kb, k64(&e, nr * 4)))),
		          .point = winograd_point(s->rows * s->K),
		          .row = s->K * 4};

		turn_back(&e, s, p, epi, &b);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->th * s->tw * npanel, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}

/* ---------------------------------------------------------------- all three in one kernel */
/* What a task of winograd_bands_emit works on: `count` tiles from number `place` on, and of each of them images
 * [first, last) out of those from `start` on that are its own. */
typedef struct Band {
	V place, count, start, first, last;
} Band;

/* Opens the loop over a task's blocks of images. */
static Band
band_open(Emit *e, const Shape *s, V t)
{
	V n = extent(e, s->n), most = k64(e, s->block);
	Band r = {.place = i_div(e, t, k64(e, s->split)), .count = k64(e, 1)};

	if (s->tiles > 1) {
		r.place = i_mul(e, t, k64(e, s->tiles));
		r.count = i_min(e, k64(e, s->tiles), i_sub(e, k64(e, s->th * s->tw), r.place));
	}
	r.start = i_mul(e, i_rem(e, t, k64(e, s->split)), most);
	r.first = loop_open(e, r.start, s->split > 1 ? i_min(e, n, i_add(e, r.start, most)) : n, s->block);
	r.last = i_min(e, i_add(e, r.first, most), n);
	return r;
}

/* Opens the loop over a band's tiles, if there are several: at[] and *piece of each, *row: its first in the band. */
static void
band_tile(Emit *e, const Shape *s, const Band *b, V t, V at[2], V *piece, V *row)
{
	V j = s->tiles > 1 ? loop_open(e, k64(e, 0), b->count, 1) : k64(e, 0), place = i_add(e, b->place, j);

	at[0] = i_div(e, place, k64(e, s->tw));
	at[1] = i_rem(e, place, k64(e, s->tw));
	*piece = s->tiles > 1 ? place : t;
	*row = i_mul(e, j, i_sub(e, b->last, b->first));
}

/* Tiles, products and pixels of a task in the thread's scratch memory. Task: a tile of pixels, of a block of images
 * where their number is known; or several tiles, of all images. */
void
winograd_bands_emit(GroupCx *gc, const Shape *s, const GemmParams *p, const Cut *c, int weights, Epilogue *epi,
                    GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), most = s->block * s->tiles,
	        vpoint = winograd_point(most * s->C), mpoint = winograd_point(most * nr),
	        whole = s->tiles > 1 ? s->rows : s->n.n;
	Emit e = {0};
	bool fresh, tile;
	Cut with = *c;

	winograd_sources(gc, &with, c->made, 0);
	int fn = kernel_begin(gc, &e, "main", &fresh);

	scratch_check(gc, POINTS * (vpoint + mpoint));
	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, s->n.mul ? ANY_ROWS : tile_rows(whole, most, p->mr));
		V from = c->src < 0 ? NULL : buffer(&e, c->src), B = buffer(&e, weights), v = scratch_ptr(&e, 0),
		  m = scratch_ptr(&e, POINTS * vpoint),
		  out = epilogue_raw(&e, epi, s->tile * s->tile * IMAGES, nr, &tile);
		V st[S_COUNT] = {[S_AM] = k64(&e, s->C * 4), [S_AK] = k64(&e, 4),      [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),      [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, nr * 4),   [S_CM] = k64(&e, nr * 4), [S_NK] = k64(&e, s->C)};
		V strides = strides_block(&e, st), kb0, kb1, t = slices_open(&e, npanel, &kb0, &kb1), at[2], piece, row,
		  lo, count;
		Band band = band_open(&e, s, t);

		band_tile(&e, s, &band, t, at, &piece, &row);
		winograd_cut(&e, s, &with, from, at, i_mul(&e, band.first, k64(&e, s->C)),
		             i_mul(&e, band.last, k64(&e, s->C)), ptr_at(&e, v, i_mul(&e, row, k64(&e, s->C * 4))),
		             vpoint);
		if (s->tiles > 1)
			loop_close(&e);
		V rows = i_mul(&e, band.count, i_sub(&e, band.last, band.first));
		V kb = loop_open(&e, kb0, kb1, 1), point = loop_open(&e, k64(&e, 0), k64(&e, POINTS), 1);
		V b = ptr_at(&e, B,
		             i_add(&e, i_mul(&e, point, k64(&e, winograd_weights_point(s, p))),
		                   i_mul(&e, kb, k64(&e, winograd_panel_rows(s, p->lanes) * nr * 4))));

		tiles_open(&e, rows, p->mr, &lo, &count);
		V a = ptr_at(&e, v, i_add(&e, i_mul(&e, point, k64(&e, vpoint)), i_mul(&e, lo, k64(&e, s->C * 4))));
		V sums = ptr_at(&e, m, i_add(&e, i_mul(&e, point, k64(&e, mpoint)), i_mul(&e, lo, k64(&e, nr * 4))));

		tile_call(&e, &tiles, count, kb, npanel, a, b, sums, k64(&e, 1), k64(&e, 1), strides, k64(&e, 0));
		loop_close(&e);
		loop_close(&e);
		band_tile(&e, s, &band, t, at, &piece, &row);
		turn_back(&e, s, p, epi,
		          &(Back){.tile = {at[0], at[1]},
		                  .kb = kb,
		                  .piece = piece,
		                  .start = band.start,
		                  .first = band.first,
		                  .last = band.last,
		                  .out = out,
		                  .raw_tile = tile,
		                  .point = mpoint,
		                  .row = nr * 4,
		                  .from = ptr_at(&e, m, i_mul(&e, row, k64(&e, nr * 4)))});
		for (int i = 0; i < (s->tiles > 1 ? 4 : 3); i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(ceil_div(s->th * s->tw, s->tiles) * s->split, npanel), fresh, false);
}
