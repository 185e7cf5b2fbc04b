/* gemm.c: convolutions and their gradients in the image through the register-blocked microkernel.
 *
 * In: a group of one contraction that gemm_possible takes. An operand that ops of the group make comes as prologue.c
 * says. Out: a packing kernel where the second operand is not vectors already, the main kernel, and what finishes its
 * reductions. Matrix products, of the same row (algo_direct), are in matmul.c. A convolution is
 * data: per output row the first valid filter row, how many, and the input row they start at; per run of output columns
 * likewise. Borders are skipped, stride 2 of the gradient is a step of the filter index (columns a stride apart are a
 * run, where rows of a tile need not be neighbours in memory), dilation a step of the input; no case has code of its
 * own. Of a long row some columns are a piece, with the runs that these meet. Channels in
 * groups: a panel holds columns of one group, whose channels the first operand's rows begin at. Tasks are cut by
 * shape, so results have the same bits for any number of threads. */
#include "algo.h"
#include <string.h>

/* ---------------------------------------------------------------- convolution forward, and its gradient in x */
typedef struct ImageAt { V lo, n, row, ow; int64_t spread; } ImageAt; /* spread: as Walk has it */

static void
image_index(Emit *e, void *cx, V row, Ix *ix)
{
	const ImageAt *at = cx;
	V m = i_add(e, at->lo, row);

	ix[0] = ix_s(i_rem(e, m, at->n));
	ix[2] = ix_s(at->row);
	ix[3] = ix_s(i_add(e, at->ow, i_mul_k(e, i_div(e, m, at->n), at->spread)));
}

/* Pixels of a piece: a row of them, or some of its columns. */
typedef struct ImagePieces { const Type *o; int64_t cut; } ImagePieces;

/* Where a piece begins within its row, and where it ends. */
static V
image_columns(Emit *e, const ImagePieces *p, V piece, V *end)
{
	int64_t OW = p->o->axis[3].n, cuts = ceil_div(OW, p->cut);
	V first = cuts > 1 ? i_mul_k(e, i_rem_k(e, piece, cuts), p->cut) : k64(e, 0);

	*end = cuts > 1 ? i_min(e, k64(e, OW), i_add_k(e, first, p->cut)) : k64(e, OW);
	return first;
}

static V
image_pieces(Emit *e, void *cx, V piece)
{
	const ImagePieces *p = cx;
	V end, first = image_columns(e, p, piece, &end);

	return i_mul(e, i_sub(e, end, first), extent(e, p->o->axis[0]));
}

/* Which pixels and taps meet: what is data in the kernel. */
typedef struct Walk {
	int64_t *rows;           /* of each output row: its first input row, filter row, how many of these */
	/* output columns with the same taps: first, how many; their first input column, filter column, how many of
	 * these */
	int64_t *runs, nrun;
	int64_t *cuts; /* of each piece of a row: its first run, and the one behind its last */
	int64_t *before; /* where runs end with their piece: pixels of a run's piece in runs before it */
	/* from a run's pixel to the next, in input pixels: with one image they need not be neighbours */
	int64_t apart;
	/* the same in output pixels: of the gradient, pixels a stride apart meet the same taps; 1: runs are of
	 * neighbours */
	int64_t spread;
	int64_t rstep, rmove, sstep, smove; /* of the filter index, of the input index per tap */
} Walk;

/* Which runs each piece of a row meets. */
static void
walk_cut(Arena *a, Walk *w, int64_t OW, int64_t cut)
{
	int64_t n = ceil_div(OW, cut), run = 0;

	w->cuts = arena_array(a, int64_t, n * 2);
	for (int64_t i = 0; i < n && w->spread > 1; i++) {
		int64_t pixels = 0;

		for (w->cuts[i * 2] = run; run < w->nrun && w->runs[run * 5] < (i + 1) * cut; run++) {
			w->before[run] = pixels;
			pixels += w->runs[run * 5 + 1];
		}
		w->cuts[i * 2 + 1] = run;
	}
	for (int64_t i = 0; i < n && w->spread == 1; i++) {
		int64_t end = (i + 1) * cut < OW ? (i + 1) * cut : OW;

		while (w->runs[run * 5] + w->runs[run * 5 + 1] <= i * cut)
			run++;
		w->cuts[i * 2] = run;
		for (w->cuts[i * 2 + 1] = run; w->cuts[i * 2 + 1] < w->nrun && w->runs[w->cuts[i * 2 + 1] * 5] < end;)
			w->cuts[i * 2 + 1]++;
	}
}

/* Output column i, which meets taps t, goes on with the last run, of those from number `from` on, or begins one. */
static void
walk_add(Walk *w, int64_t from, int64_t i, const WindowTaps *t)
{
	int64_t *last = &w->runs[(w->nrun - 1) * 5];

	/* pixels with the same taps whose inputs are that far apart are one run of rows */
	if (w->nrun > from && t->first == last[3] && t->count == last[4] && t->at == last[2] + last[1] * w->apart)
		last[1]++;
	else
		memcpy(&w->runs[w->nrun++ * 5], (int64_t[]){i, 1, t->at, t->first, t->count}, 40);
}

/* spread: may pixels of a run be a stride apart, of a gradient? Its runs end with their piece. */
static Walk
walk_of(const Graph *g, Arena *a, const Op *op, const Type *x, const Type *o, int64_t cut, bool spread)
{
	bool dx = op->kind == OP_conv2d_dx;
	Window win = window_of(g, op);
	int64_t OH = o->axis[2].n, OW = o->axis[3].n;
	Walk w = {.rows = arena_array(a, int64_t, OH * 3),
	          .runs = arena_array(a, int64_t, OW * 5),
	          .before = arena_array(a, int64_t, OW),
	          .apart = o->axis[0].n == 1 && !dx ? win.stride[1] : 1,
	          .spread = spread && dx ? win.stride[1] : 1,
	          .rstep = 1,
	          .rmove = 1,
	          .sstep = 1,
	          .smove = 1};

	for (int64_t i = 0; i < OH; i++) {
		WindowTaps t = window_taps(&win, 0, dx, i, x->axis[2].n, &w.rstep, &w.rmove);

		memcpy(&w.rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
	}
	int64_t piece = w.spread > 1 ? cut : OW;

	for (int64_t lo = 0; lo < OW; lo += piece)
		for (int64_t first = lo; first < lo + w.spread; first++) {
			int64_t from = w.nrun, hi = lo + piece < OW ? lo + piece : OW;

			for (int64_t i = first; i < hi; i += w.spread) {
				WindowTaps t = window_taps(&win, 1, dx, i, x->axis[3].n, &w.sstep, &w.smove);

				walk_add(&w, from, i, &t);
			}
		}
	walk_cut(a, &w, OW, cut);
	return w;
}

/* What image_emit walks. */
typedef struct Image {
	int64_t W, C, OH, OW, K, R, S;
	int64_t groups, own, columns_own; /* groups of channels; of one: its input channels, its columns */
	int64_t nr, npanel;               /* columns of a panel, panels of a group */
	int64_t cut, cuts;                /* pixels of a piece, pieces of a row */
	bool columns;                     /* one channel: the filter's columns are the innermost sum */
	bool made, bands;                 /* the kernel makes its input; goes over bands of a row of pixels */
	V n;                              /* images */
	/* bytes of the images of a pixel: [row][column][group][pixel of the run], [panel of all][filter row][filter
	 * column], [row][column][group][panel][pixel of the run]; with a tile of its own, out is that */
	Mem in, weights, out;
	V trow, trun, tcut, tbefore;      /* walk's tables; tcut NULL: one piece is a row */
	Walk walk;
} Image;

static Image
image_of(const Graph *g, const Op *op, const GemmParams *p, const Epilogue *epi, bool made)
{
	const Type *x = val_type(g, op->in[0]), *wt = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	Image im = {.W = x->axis[3].n,
	            .C = ceil_div(x->axis[1].n, gemm_unit(p)),
	            .OH = o->axis[2].n,
	            .OW = o->axis[3].n,
	            .K = o->axis[1].n,
	            .R = wt->axis[2].n,
	            .S = wt->axis[3].n,
	            .groups = gemm_groups(op),
	            .nr = (int64_t)p->nv * p->lanes,
	            .made = made,
	            .bands = made || (epi->nred && prologue_bands(g, op, p)) ||
	                     epilogue_bands(g, op, p, epi->nred > 0)};

	im.own = im.C / im.groups;
	im.columns_own = im.K / im.groups;
	im.npanel = ceil_div(im.columns_own, im.nr);
	im.columns = x->axis[1].n == 1 && im.S > 1;
	im.cut = image_cut(g, op, p);
	im.cuts = ceil_div(im.OW, im.cut);
	return im;
}

/* Which numbers of rows its tiles have, as tiles_make wants it. */
static int64_t
image_rows(const Image *im, const Epilogue *epi, const GemmParams *p, Axis n, int64_t band)
{
	int64_t counts = n.mul ? ANY_ROWS : 0;

	for (int64_t i = 0; i < im->cuts && !n.mul; i++)
		for (int64_t k = im->walk.cuts[i * 2]; k < im->walk.cuts[i * 2 + 1]; k++) {
			const int64_t *run = &im->walk.runs[k * 5];
			int64_t lo = run[0] > i * im->cut ? run[0] : i * im->cut,
			        hi = run[0] + run[1] < (i + 1) * im->cut ? run[0] + run[1] : (i + 1) * im->cut;

			int64_t columns = im->walk.spread > 1 ? run[1] : hi - lo;

			counts |= row_tiles(epi, p, columns * n.n, (band < columns ? band : columns) * n.n);
		}
	return counts;
}

/* Where the operands and the result lie; an input that is made, a row of pixels at a time, is at `in`. */
static void
image_regions(Emit *e, Image *im, V in, V weights, V out)
{
	int64_t panel = F32(im->own * im->nr);

	im->in = mem_axes(e, in, OF(im->W), BY(0), BY(F32(im->own)), BY(F32(im->walk.apart * im->C)));
	im->in.axis[1].step = i_mul_k(e, im->n, F32(im->C));
	im->weights = mem_axes(e, weights, BY(im->R * im->S * panel), OF(im->S), BY(panel));
	im->out = mem_axes(e, out, OF(im->OW), BY(0), BY(F32(im->columns_own)), BY(F32(im->nr)),
	                   BY(F32(im->walk.spread * im->K)));
	im->out.axis[1].step = i_mul_k(e, im->n, F32(im->K));
	im->trow = table(e, im->walk.rows, im->OH * 3);
	im->trun = table(e, im->walk.runs, im->walk.nrun * 5);
	im->tbefore = im->walk.spread > 1 ? table(e, im->walk.before, im->walk.nrun) : NULL;
	im->tcut = im->cuts > 1 ? table(e, im->walk.cuts, im->cuts * 2) : NULL;
}

/* Strides of the microkernel; tile: sums go to a tile of their own. */
static void
image_strides(Emit *e, const Image *im, bool tile, V st[S_COUNT])
{
	const Walk *walk = &im->walk;
	V pixel = im->in.axis[1].step;

	st[S_AM] = k64(e, F32(walk->apart * im->C));
	st[S_AK] = k64(e, 4);
	st[S_AP] = i_mul_k(e, pixel, walk->rmove * im->W);
	st[S_AQ] = i_mul_k(e, pixel, walk->smove);
	st[S_BP] = k64(e, F32(walk->rstep * im->S * im->own * im->nr));
	st[S_BQ] = k64(e, F32(walk->sstep * im->own * im->nr));
	st[S_BK] = k64(e, F32(im->nr));
	st[S_CM] = k64(e, F32(tile ? im->nr : im->walk.spread * im->K));
	st[S_NK] = k64(e, im->own);
	if (im->columns) {
		st[S_AK] = st[S_AQ];
		st[S_BK] = st[S_BQ];
	}
}

/* Where a run of pixels and a panel of columns meet. */
typedef struct ImageRun {
	V piece, row, group, panel; /* piece, its row of pixels, group of channels, its panel */
	V first, end;        /* columns of the piece */
	V ow, len, before;   /* first pixel, pixels; those of the piece in runs before it */
	Mem in, out;         /* [pixel of the run] */
	V weights;           /* the address of the panel's first tap */
	V np, nq;            /* rows and columns of taps */
} ImageRun;

/* The part of the run that lies in the piece; its first pixel moves its input column `w0` along. */
static void
image_run_cut(Emit *e, const Image *im, ImageRun *r, V *w0)
{
	V lo = i_max(e, r->ow, r->first), hi = i_min(e, i_add(e, r->ow, r->len), r->end);

	*w0 = i_add(e, *w0, i_mul_k(e, i_sub(e, lo, r->ow), im->walk.apart));
	r->ow = lo;
	r->len = i_sub(e, hi, lo);
}

/* Runs of piece `piece`, numbers of im->trun. */
static V
image_runs(Emit *e, const Image *im, V piece, V *end)
{
	V cut2 = i_mul_k(e, i_rem_k(e, piece, im->cuts), 2);

	*end = im->tcut ? table_at(e, im->tcut, i_add_k(e, cut2, 1)) : k64(e, im->walk.nrun);
	return im->tcut ? table_at(e, im->tcut, cut2) : k64(e, 0);
}

/* Run number `which` of piece r.piece, whose columns are known. kb: panel of all groups. */
static ImageRun
image_run(Emit *e, const Image *im, ImageRun r, V which, V kb)
{
	V row3 = i_mul_k(e, r.row, 3), run5 = i_mul_k(e, which, 5);
	V h0 = table_at(e, im->trow, row3), r0 = table_at(e, im->trow, i_add_k(e, row3, 1));

	r.np = table_at(e, im->trow, i_add_k(e, row3, 2));
	r.ow = table_at(e, im->trun, run5);
	r.len = table_at(e, im->trun, i_add_k(e, run5, 1));
	V w0 = table_at(e, im->trun, i_add_k(e, run5, 2)), s0 = table_at(e, im->trun, i_add_k(e, run5, 3));

	if (im->cuts > 1 && !im->bands && im->walk.spread == 1)
		image_run_cut(e, im, &r, &w0);

	r.before = im->tbefore ? table_at(e, im->tbefore, which) : i_sub(e, r.ow, r.first);
	r.nq = table_at(e, im->trun, i_add_k(e, run5, 4));
	panel_find(e, im->groups, im->npanel, kb, &r.group, &r.panel);
	r.in = mem_fix(e, &im->in, im->made ? NULL : h0, im->made ? NULL : w0, r.group);
	r.out = mem_fix(e, &im->out, r.row, r.ow, r.group, r.panel);
	r.weights = mem_at(e, &im->weights, kb, r0, s0);
	return r;
}

/* The filter's columns are the innermost sum: as many as there are taps; the loop over taps runs once, or not. */
static V
columns_as_sum(Emit *e, V strides, V nq)
{
	V at = k64(e, S_NK), some = LLVMBuildICmp(here(e), LLVMIntSGT, nq, k64(e, 0), "");

	LLVMBuildStore(here(e), nq, LLVMBuildInBoundsGEP2(here(e), e->l->i64, strides, &at, 1, ""));
	return LLVMBuildZExt(here(e), some, e->l->i64, "");
}

/* Fetches what the ops behind the tile after this one will meet: a tile's own products are over before memory has
 * answered. The next rows of the panel; behind the last of `rows` rows, which begin with `begin`, the next panel's
 * first; behind the last panel those of the first panel that follow, as pixels lie in a row. */
static void
image_fetch(Emit *e, const Image *im, const GemmParams *p, const ImageRun *u, const RowLoops *r, V rows, V begin,
            const EpilogueTile *now, const Epilogue *epi)
{
	LLVMBuilderRef b = here(e);
	V after = i_add(e, r->lo, r->count), lo = i_add(e, begin, after), column = now->column;

	if (!p->panel_outer && im->npanel > 1 && im->walk.nrun == 1) {
		V more = LLVMBuildICmp(b, LLVMIntSLT, after, rows, "");
		V last = LLVMBuildICmp(b, LLVMIntEQ, u->panel, k64(e, im->npanel - 1), "");
		V then = LLVMBuildSelect(b, last, i_mul_k(e, u->group, im->columns_own),
		                         i_add_k(e, column, im->nr), "");

		lo = LLVMBuildSelect(b, LLVMBuildOr(b, more, last, ""), lo, begin, "");
		column = LLVMBuildSelect(b, more, column, then, "");
	}
	ImageAt at = {lo, im->n, u->row, u->ow, im->walk.spread};
	EpilogueTile next = *now;

	next.column = column;
	next.cx = &at;
	epilogue_fetch(e, epi, &next, im->nr < im->columns_own ? im->nr : im->columns_own);
}

/* Tiles of a run's rows, from band `made0` on, and the epilogue on them. */
static void
image_tiles(Emit *e, const Image *im, const GemmParams *p, const Tiles *tiles, const ImageRun *u, V made0, V made1,
            V strides, bool tile, Epilogue *epi)
{
	int64_t nr = im->nr;
	V n = im->n;
	V rows = i_mul(e, im->bands ? i_sub(e, made1, made0) : u->len, n);
	RowLoops r = rows_open(e, epi, p, rows);
	V band0 = i_mul(e, made0, n), lo = i_add(e, r.lo, band0), first = i_add(e, r.first, band0);
	V channel0 = i_mul_k(e, u->group, im->columns_own), column = i_add(e, channel0, i_mul_k(e, u->panel, nr));
	V columns_left = i_sub(e, i_add_k(e, channel0, im->columns_own), column);
	V from = mem_at(e, &u->in, im->made ? r.lo : lo);
	ImageAt at = {lo, n, u->row, u->ow, im->walk.spread}, at_block = {first, n, u->row, u->ow, im->walk.spread};
	EpilogueTile et = {.rows = r.count,
	                   .column = column,
	                   .columns = i_min(e, k64(e, nr), columns_left),
	                   .piece = u->piece,
	                   .done = i_add(e, i_mul(e, u->before, n), first),
	                   .carried = i_sub(e, r.lo, r.first),
	                   .tile = im->out.base,
	                   .tile_columns = nr,
	                   .unroll = p->nv,
	                   .index = image_index,
	                   .cx = &at};

	image_fetch(e, im, p, u, &r, rows, band0, &et, epi);
	tile_call(e, tiles, r.count, u->panel, im->npanel, from, u->weights,
	          tile ? im->out.base : mem_at(e, &u->out, lo), u->np, u->nq, strides, NULL);
	epilogue_tile(e, epi, &et);
	rows_close(e, &r, epi, &et, &at_block);
}

/* What the loops of image_emit go over, from the outermost in. */
typedef struct ImageLoops {
	const Image *im;
	const GemmParams *p;
	Tiles tiles;
	V strides;
	bool tile;               /* sums go to a tile on the stack */
	Epilogue *epi;
} ImageLoops;

/* A panel of all groups, and the pixels [made0, made1) of the piece's band: its runs, their tiles. */
static void
image_panel(Emit *e, const ImageLoops *l, ImageRun run, V made0, V made1, V panel)
{
	V end, first = image_runs(e, l->im, run.piece, &end);

	LOOP(e, which, first, end, 1) {
		ImageRun one = image_run(e, l->im, run, which, panel);

		if (l->im->columns)
			one.nq = columns_as_sum(e, l->strides, one.nq);
		image_tiles(e, l->im, l->p, &l->tiles, &one, made0, made1, l->strides, l->tile, l->epi);
	}
}

/* A band of a piece, its operand made first if it is: panels [panel, last), or `panel` alone (last: NULL). */
static void
image_band(Emit *e, const ImageLoops *l, ImageRun run, V made0, V made1, V panel, V last)
{
	if (l->im->made)
		prologue_row(e, l->epi->op->in[0], run.row, made0, made1, l->im->in.base);
	if (last)
		LOOP(e, one, panel, last, 1)
			image_panel(e, l, run, made0, made1, one);
	else
		image_panel(e, l, run, made0, made1, panel);
}

/* A piece's tiles, of the panels that image_band is to take. */
static void
image_piece(Emit *e, const ImageLoops *l, V piece, V panel, V last)
{
	const Image *im = l->im;
	const ImagePieces pieces = {val_type(e->g, l->epi->op->out[0]), im->cut};
	ImageRun run = {.piece = piece};

	run.first = image_columns(e, &pieces, piece, &run.end);
	run.row = im->cuts > 1 ? i_div_k(e, piece, im->cuts) : piece;
	if (!im->bands) {
		image_band(e, l, run, k64(e, 0), NULL, panel, last);
		return;
	}
	/* one tap, and a run of all columns: the input's pixels are the output's. Blocks of rows begin with a
	 * band, whether it is made here or stands in memory */
	int64_t band = prologue_pixels(e->g, l->epi->op, l->p);

	LOOP(e, made0, run.first, run.end, band)
		image_band(e, l, run, made0, i_min(e, i_add_k(e, made0, band), run.end), panel, last);
}

static void
image_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Type *o = val_type(g, op->out[0]);
	Image im = image_of(g, op, p, epi, abuf < 0);
	Emit e = {0};
	bool fresh, tile;
	int fn = kernel_begin(gc, &e, "main", &fresh);
	int64_t panels = im.groups * im.npanel, pieces = im.OH * im.cuts, slices = p->panel_outer ? pieces : panels;

	if (fresh) {
		/* where sums go to a tile each row finds its pixel, in memory rows are as far apart as each other */
		bool spread = !im.bands && (epi->raw < 0 || o->axis[0].n == 1);

		im.walk = walk_of(g, e.arena, op, val_type(g, op->in[0]), o, im.cut, spread);
		emit_lanes(&e, p->lanes);
		im.n = extent(&e, o->axis[0]);
		V in = im.made ? scratch_ptr(&e, 0) : buffer(&e, abuf), weights = buffer(&e, bbuf),
		  out = epilogue_raw(&e, epi, p->mr, im.nr, &tile);
		V st[S_COUNT];

		image_regions(&e, &im, in, weights, out);
		image_strides(&e, &im, tile, st);
		ImageLoops loops = {.im = &im, .p = p, .tile = tile, .epi = epi};

		loops.tiles = tiles_make(
		        &e, p, tile && p->pack ? ceil_div(im.columns_own, p->lanes) * p->lanes : im.columns_own,
		        image_rows(&im, epi, p, o->axis[0], im.bands ? prologue_pixels(g, op, p) : im.OW),
		        steps_known(st));
		loops.strides = strides_block(&e, st);
		/* all panels of a piece, or all pieces of a panel */
		SLICES(&e, t, slices, first, last) {
			if (!p->panel_outer)
				image_piece(&e, &loops, t, first, last);
			else
				LOOP(&e, piece, first, last, 1)
					image_piece(&e, &loops, piece, t, NULL);
		}
	}
	kernel_end(gc, &e, gk, fn, slices_rows(p->panel_outer ? panels : pieces, slices), fresh, false);
	ImagePieces ip = {o, im.cut};

	epilogue_finish(gc, gk, epi, image_pieces, &ip);
}

static void
direct_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk)
{
	Epilogue epi;
	int panels = gemm_pack(gc, op, p, b, &epi, gk);

	(op->kind == OP_matmul ? matmul_emit : image_emit)(gc, op, p, a, panels >= 0 ? panels : b, &epi, gk);
}

/* ---------------------------------------------------------------- the row */
static const char *
direct_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	if (op->kind == OP_conv2d_dw || !gemm_possible(g, op))
		return "its layouts, types or extents are not those of this kernel";
	return NULL;
}

static int64_t
direct_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t main, pack = pack_scratch(g, op, p), nr = (int64_t)p->nv * p->lanes;
	Mat m;

	if (op->kind == OP_matmul && matmul_mat(g, op, &m)) {
		int64_t block = matmul_block(&m, p);

		m.k = ceil_div(m.k, gemm_unit(p));
		main = p->copy ? matmul_copy_bytes(&m, p, gemm_copies_tiles(g, p)) : 0;
		if (p->own)
			main = matmul_panel_bytes(p) + F32(block * nr);
		else if (matmul_steps(&m, p) < m.k)
			main = align64(main) + F32((m.m.n < block ? m.m.n : block) * ceil_div(m.n, nr) * nr);
	} else {
		main = prologue_scratch(g, op, p);
	}
	return main > pack ? main : pack;
}

static void
direct_write(const GemmParams *p, Params *q)
{
	q->cpu_brgemm.outer = p->panel_outer;
	q->cpu_brgemm.pack = p->pack;
	q->cpu_brgemm.own = p->own;
	q->cpu_brgemm.copy = p->copy;
	q->cpu_brgemm.chains = p->chains;
	q->cpu_brgemm.pairs = (int)p->engine;
}

static void
direct_read(const Params *q, GemmParams *p)
{
	p->panel_outer = q->cpu_brgemm.outer;
	p->pack = q->cpu_brgemm.pack;
	p->own = q->cpu_brgemm.own;
	p->copy = q->cpu_brgemm.copy;
	p->chains = q->cpu_brgemm.chains;
	p->engine = (EngineId)q->cpu_brgemm.pairs;
}

const Algo algo_direct = {
	.family = FAMILY_cpu_brgemm,
	.doc = "products of the operands themselves: matrices, convolutions and their gradients in the image",
	.ops = {OP_matmul, OP_conv2d, OP_conv2d_dx},
	.engines = ENGINES_ALL,
	.write = direct_write,
	.read = direct_read,
	.offer = products_offer,
	.why_not = direct_why_not,
	.panels = pack_bytes,
	.keeps = true,
	.chains = true,
	.scratch = direct_scratch,
	.pieces = products_pieces,
	.rounds = pack_rounds,
	.emit = direct_emit,
};
