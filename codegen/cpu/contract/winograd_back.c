/* winograd_back.c: products at the points back to pixels, and the kernel that has all three steps in a thread's memory.
 *
 * In: products, or what they are computed from.   Out: tiles of pixels, on which the group's epilogue runs. */
#include "winograd.h"

/* ---------------------------------------------------------------- back to pixels */
typedef struct PixelAt {
	V h, w, width, images, first;
	const Side *side;
} PixelAt;

/* Rows of a tile of the epilogue: pixel by pixel, some images of each. */
static void
pixel_index(Emit *e, void *cx, V row, Ix *ix)
{
	const PixelAt *at = cx;
	V pixel = i_div(e, row, at->images);

	ix[0] = ix_s(i_add(e, at->first, i_rem(e, row, at->images)));
	ix[2] = ix_s(i_add(e, at->h, i_mul_k(e, i_div(e, pixel, at->width), at->side[0].step)));
	ix[3] = ix_s(i_add(e, at->w, i_mul_k(e, i_rem(e, pixel, at->width), at->side[1].step)));
}

static bool
whole_tiles(const Side *s)
{
	return s->out % (s->tile * s->step) == 0; /* of each turn alike */
}

/* Rows or columns of a tile that are pixels. */
static V
valid(Emit *e, const Side *s, V tile)
{
	V whole = k64(e, s->tile), left = i_sub(e, k64(e, s->out), winograd_first_at(e, s, tile));

	if (whole_tiles(s))
		return whole;
	return i_min(e, whole, s->step > 1 ? i_div_k(e, i_add_k(e, left, s->step - 1), s->step) : left);
}

V
winograd_piece_pixels(Emit *e, void *cx, V piece)
{
	const Shape *s = cx;
	V tile = i_div_k(e, piece, s->split), images = extent(e, s->n), at[2];

	if (s->split > 1)
		images = i_min(e, k64(e, s->block),
		               i_sub(e, images, i_mul_k(e, i_rem_k(e, piece, s->split), s->block)));
	winograd_tile(e, s, tile, at);
	return i_mul(e, i_mul(e, valid(e, &s->side[0], at[0]), valid(e, &s->side[1], at[1])), images);
}

/* What a tile is transformed back from, and into. */
typedef struct Back {
	V tile[2], kb; /* which tile, which panel of channels */
	Mem from;           /* products of image `first`: [image][channel][point] */
	V first, last;      /* images */
	V piece, start;     /* of the epilogue's states, and its first image */
	V out;
	bool raw_tile;
} Back;

/* The pixels of a tile: y rows from h on and x columns from w on. */
typedef struct Pixels { V h, w, height, width, first, images, column; } Pixels;

/* Images that the epilogue takes at a time: a tile of many pixels fills the L1 with one. */
static int64_t
images_of(const Shape *s)
{
	enum { PIXELS_MOST_AT_ONCE = 100, MOST = 4 };
	int64_t images = PIXELS_MOST_AT_ONCE / s->tile;

	return images < MOST ? images : MOST;
}

/* Where pixel (y, x) of an image and a channel go: to the result [row][column][image][channel], or to a tile of its
 * own, [row][column][image][channel of the panel]. */
static V
pixel_at(Emit *e, const Shape *s, const Back *b, int64_t nr, const Pixels *t, int64_t y, int64_t x, V image, V c)
{
	Mem to;

	if (b->raw_tile) {
		to = mem_axes(e, b->out, OF(0), OF(0), BY(F32(nr)), BY(4));
		to.axis[0].step = t->width;
		to.axis[1].step = t->images;
		return mem_at(e, &to, k64(e, y), k64(e, x), image, c);
	}
	to = mem_axes(e, b->out, OF(s->side[1].out), BY(0), BY(F32(s->K)), BY(4), BY(4));
	to.axis[1].step = i_mul_k(e, extent(e, s->n), F32(s->K));
	to = mem_fix(e, &to, i_add_k(e, t->h, y * s->side[0].step), i_add_k(e, t->w, x * s->side[1].step));
	to = mem_fix(e, &to, i_add(e, t->first, image));
	to = mem_fix(e, &to, t->column);
	return mem_at(e, &to, c);
}

/* One image of the tile, channels [0, columns) of the panel: its products to pixels. mask: of rows and columns that
 * are pixels, NULL: all. */
static void
image_back(Emit *e, const Shape *s, const Back *b, int64_t nr, const Pixels *t, V mask[2][TILE_MOST], V image,
           V columns)
{
	LOOP(e, c, k64(e, 0), columns, e->W) {
		V m[POINTS_MOST], y[PIXELS_MOST],
		  tail = s->K % e->W && !b->raw_tile ? mask_below(e, i_sub(e, columns, c)) : NULL;
		Mem from = mem_part(e, &b->from, i_add(e, i_sub(e, t->first, b->first), image), c);

		for (int i = 0; i < s->points; i++)
			m[i] = vec_load(e, mem_at(e, &from, k64(e, i)), NULL);
		winograd_both(e, s, PIXELS, m, y);
		for (int i = 0; i < s->side[0].tile; i++)
			for (int j = 0; j < s->side[1].tile; j++) {
				V a = mask[0][i], f = mask[1][j],
				  both = a && f ? LLVMBuildAnd(here(e), a, f, "")
				         : a    ? a
				                : f,
				  some = both ? splat(e, both) : NULL;

				some = some && tail ? mask_and(e, some, tail) : tail ? tail : some;
				vec_store(e, pixel_at(e, s, b, nr, t, i, j, image, c), y[i * s->side[1].tile + j],
				          some);
			}
	}
}

/* The tile's pixels, and the epilogue on them, some images at a time. */
static void
turn_back(Emit *e, const Shape *s, const GemmParams *p, Epilogue *epi, const Back *b)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	V column = i_mul_k(e, b->kb, nr), columns = i_min(e, k64(e, nr), i_sub(e, k64(e, s->K), column)),
	  mask[2][TILE_MOST];
	Pixels t = {.column = column,
	            .height = valid(e, &s->side[0], b->tile[0]),
	            .width = valid(e, &s->side[1], b->tile[1]),
	            .h = winograd_first_at(e, &s->side[0], b->tile[0]),
	            .w = winograd_first_at(e, &s->side[1], b->tile[1])};

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < s->side[k].tile; i++)
			mask[k][i] = whole_tiles(&s->side[k])
			             ? NULL
			             : LLVMBuildICmp(here(e), LLVMIntSLT, k64(e, i), k ? t.width : t.height, "");
	LOOP(e, first, b->first, b->last, images_of(s)) {
		V images = i_min(e, k64(e, images_of(s)), i_sub(e, b->last, first));

		t.first = first, t.images = images;
		PixelAt at = {t.h, t.w, t.width, images, first, s->side};
		V pixels_of_tile = i_mul(e, t.height, t.width);
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

		EACH(e, image, images)
			image_back(e, s, b, nr, &t, mask, image, columns);
		epilogue_tile(e, epi, &et);
	}
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
		/* [row][panel] of the first point */
		Mem products = mem_axes(&e, buffer(&e, src), BY(F32(s->K)), BY(F32(nr)));
		V out = epilogue_raw(&e, epi, s->tile * images_of(s), nr, &tile), n = extent(&e, s->n);

		TASKS(&e, t) {
			V at = i_div_k(&e, t, npanel), kb = i_rem_k(&e, t, npanel);
			V from = mem_at(&e, &products, i_mul(&e, at, n), kb);
			Back b = {.kb = kb,
			          .piece = at,
			          .start = k64(&e, 0),
			          .first = k64(&e, 0),
			          .last = n,
			          .out = out,
			          .raw_tile = tile,
			          .from = mem_axes(&e, from, BY(F32(s->K)), BY(4), BY(winograd_point(s->rows * s->K)))};

			winograd_tile(&e, s, at, b.tile);
			turn_back(&e, s, p, epi, &b);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->tiles * npanel, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}

/* ---------------------------------------------------------------- all three in one kernel */
/* What a task of winograd_bands_emit works on: `count` tiles from number `place` on, and of each of them images
 * [first, last) out of those from `start` on that are its own. */
typedef struct Band {
	V place, count, start, first, last;
} Band;

/* Opens the loop over a task's blocks of images. */
static int
band_open(Emit *e, const Shape *s, V t, Band *r)
{
	V n = extent(e, s->n), most = k64(e, s->block);

	*r = (Band){.place = i_div_k(e, t, s->split), .count = k64(e, 1)};
	if (s->together > 1) {
		int64_t runs = ceil_div(s->each, s->together);
		V turn = s->turns > 1 ? i_div_k(e, t, runs) : NULL;

		r->place = i_mul_k(e, turn ? i_rem_k(e, t, runs) : t, s->together);
		r->count = i_min(e, k64(e, s->together), i_sub(e, k64(e, s->each), r->place));
		if (turn)
			r->place = i_add(e, r->place, i_mul_k(e, turn, s->each));
	}
	r->start = i_mul(e, i_rem_k(e, t, s->split), most);
	r->first = loop_open(e, r->start, s->split > 1 ? i_min(e, n, i_add(e, r->start, most)) : n, s->block);
	r->last = i_min(e, i_add(e, r->first, most), n);
	return 1;
}

/* Opens the loop over a band's tiles, if there are several: at[] and *piece of each, *row: its first in the band. */
static int
band_tile(Emit *e, const Shape *s, const Band *b, V t, V at[2], V *piece, V *row)
{
	V j = s->together > 1 ? loop_open(e, k64(e, 0), b->count, 1) : k64(e, 0), place = i_add(e, b->place, j);

	winograd_tile(e, s, place, at);
	*piece = s->together > 1 ? place : t;
	*row = i_mul(e, j, i_sub(e, b->last, b->first));
	return s->together > 1;
}

/* Tiles, products and pixels of a task in the thread's scratch memory. Task: a tile of pixels, of a block of images
 * where their number is known; or several tiles, of all images. */
void
winograd_bands_emit(GroupCx *gc, const Shape *s, const GemmParams *p, const Cut *c, int weights, Epilogue *epi,
                    GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), most = s->block * s->together,
	        vpoint = winograd_point(most * s->depth), mpoint = winograd_point(most * nr),
	        wpoint = winograd_weights_point(s, p), whole = s->together > 1 ? s->rows / s->turns : s->n.n;
	WinogradRegions memory = winograd_memory(s, p);
	Emit e = {0};
	bool fresh, tile;
	Cut with = *c;

	winograd_sources(gc, &with, c->made, 0);
	int fn = kernel_begin(gc, &e, "main", &fresh);

	scratch_check(gc, memory.bytes);
	if (fresh) {
		emit_lanes(&e, s->w);
		Multiply mul = {.shared = panel_shared(p, most), .nr = nr, .npanel = npanel};

		mul.tiles = tiles_make(&e, &mul.shared, s->K, s->n.mul ? ANY_ROWS : tile_rows(whole, most, p->mr),
		                       (Steps){4, F32(nr)});
		V from = c->src < 0 ? NULL : buffer(&e, c->src);
		/* [turn][kind][panel]; tiles and products: [point][row] */
		Mem B = mem_axes(&e, buffer(&e, weights), BY(s->kinds * wpoint), BY(wpoint),
		                 BY(F32(winograd_panel_rows(s, p->lanes) * nr)));
		Mem v = mem_axes(&e, scratch_ptr(&e, memory.tiles), BY(vpoint), BY(F32(s->depth)));
		Mem m = mem_axes(&e, scratch_ptr(&e, memory.products), BY(mpoint), BY(F32(nr)));
		V out = epilogue_raw(&e, epi, s->tile * images_of(s), nr, &tile);
		mul.strides = strides_of_constants(&e, (const int64_t[S_COUNT]){[S_AM] = F32(s->depth),
		                                                                [S_AK] = 4,
		                                                                [S_BK] = F32(nr),
		                                                                [S_CM] = F32(nr),
		                                                                [S_NK] = s->depth});
		V at[2], piece, row;
		Band band;

		SLICES(&e, t, npanel, kb0, kb1) LOOPS(&e, band_open(&e, s, t, &band)) {
			LOOPS(&e, band_tile(&e, s, &band, t, at, &piece, &row))
				winograd_cut(&e, s, &with, from, at, i_mul_k(&e, band.first, s->C),
				             i_mul_k(&e, band.last, s->C), mem_at(&e, &v, NULL, row), vpoint);
			V rows = i_mul(&e, band.count, i_sub(&e, band.last, band.first));

			LOOP(&e, kb, kb0, kb1, 1) {
				TIMES(&e, point, s->points) {
					V turn = s->turns > 1 ? i_div_k(&e, band.place, s->each) : k64(&e, 0),
					  after = i_rem_k(&e, i_add_k(&e, point, 1), s->points),
					  panel = mem_at(&e, &B, turn, winograd_kind_at(&e, s, point), kb),
					  next = mem_at(&e, &B, turn, winograd_kind_at(&e, s, after), kb);

					TILES(&e, lo, count, rows, p->mr)
						winograd_multiply(&e, s, &mul, lo, count, kb,
						                  mem_at(&e, &v, point, lo), panel,
						                  mem_at(&e, &m, point, lo), next);
				}
				LOOPS(&e, band_tile(&e, s, &band, t, at, &piece, &row))
					turn_back(&e, s, p, epi,
					          &(Back){.tile = {at[0], at[1]},
					                  .kb = kb,
					                  .piece = piece,
					                  .start = band.start,
					                  .first = band.first,
					                  .last = band.last,
					                  .out = out,
					                  .raw_tile = tile,
					                  .from = mem_axes(&e, mem_at(&e, &m, NULL, row), BY(F32(nr)),
					                                   BY(4), BY(mpoint))});
			}
		}
	}
	int64_t pieces = s->turns * ceil_div(s->each, s->together) * s->split;

	kernel_end(gc, &e, gk, fn, slices_rows(pieces, npanel), fresh, false);
}
