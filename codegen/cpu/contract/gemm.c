/* gemm.c: convolutions and their gradients in the image through the register-blocked microkernel.
 *
 * In: a group of one contraction that gemm_possible takes. An operand that ops of the group make comes as prologue.c
 * says. Out: a packing kernel where the second operand is not vectors already, the main kernel, and what finishes its
 * reductions. Matrix products, of the same row (algo_direct), are in matmul.c. A convolution is
 * data: per output row the first valid filter row, how many, and the input row they start at; per run of output columns
 * likewise. Borders are skipped, stride 2 of the gradient is a step of the filter index, dilation a step of the input;
 * no case has code of its own. Channels in groups: a panel holds columns of one group, whose channels the first
 * operand's rows begin at. Tasks are cut by shape, so results have the same bits for any number of threads. */
#include "algo.h"
#include <string.h>

/* ---------------------------------------------------------------- convolution forward, and its gradient in x */
typedef struct ImageAt { V lo, n, row, ow; } ImageAt;

static void
image_index(Emit *e, void *cx, V row, Ix *ix)
{
	const ImageAt *at = cx;
	V m = i_add(e, at->lo, row);

	ix[0] = ix_s(i_rem(e, m, at->n));
	ix[2] = ix_s(at->row);
	ix[3] = ix_s(i_add(e, at->ow, i_div(e, m, at->n)));
}

/* A row of pixels each. */
static V
image_pieces(Emit *e, void *cx, V piece)
{
	const Type *o = cx;

	(void)piece;
	return i_mul(e, k64(e, o->axis[3].n), extent(e, o->axis[0]));
}

/* Which pixels and taps meet: what is data in the kernel. */
typedef struct Walk {
	int64_t *rows;           /* of each output row: its first input row, filter row, how many of these */
	/* output columns with the same taps: first, how many; their first input column, filter column, how many of
	 * these */
	int64_t *runs, nrun;
	/* from a run's pixel to the next, in input pixels: with one image they need not be neighbours */
	int64_t apart;
	int64_t rstep, rmove, sstep, smove; /* of the filter index, of the input index per tap */
} Walk;

static Walk
walk_of(Arena *a, const Op *op, const Type *x, const Type *wt, const Type *o)
{
	bool dx = op->kind == OP_conv2d_dx;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL),
	              *dil = attr_ints(op, A_dilation, NULL), OH = o->axis[2].n, OW = o->axis[3].n;
	Walk w = {.rows = arena_array(a, int64_t, OH * 3),
	          .runs = arena_array(a, int64_t, OW * 5),
	          .apart = o->axis[0].n == 1 && !dx ? stride[1] : 1,
	          .rstep = 1,
	          .rmove = 1,
	          .sstep = 1,
	          .smove = 1};

	for (int64_t i = 0; i < OH; i++) {
		Taps t = taps_of(dx, i, x->axis[2].n, wt->axis[2].n, stride[0], pad[0], dil[0], &w.rstep, &w.rmove);

		memcpy(&w.rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
	}
	for (int64_t i = 0; i < OW; i++) {
		Taps t = taps_of(dx, i, x->axis[3].n, wt->axis[3].n, stride[1], pad[1], dil[1], &w.sstep, &w.smove);
		int64_t *last = &w.runs[(w.nrun - 1) * 5];

		/* neighbours with the same taps whose inputs are that far apart are one run of rows */
		if (w.nrun && t.first == last[3] && t.count == last[4] && t.at == last[2] + last[1] * w.apart)
			last[1]++;
		else
			memcpy(&w.runs[w.nrun++ * 5], (int64_t[]){i, 1, t.at, t.first, t.count}, 40);
	}
	return w;
}

/* What image_emit walks. */
typedef struct Image {
	int64_t W, C, OH, OW, K, R, S;
	int64_t groups, own, columns_own; /* groups of channels; of one: its input channels, its columns */
	int64_t nr, npanel;               /* columns of a panel, panels of a group */
	bool columns;                     /* one channel: the filter's columns are the innermost sum */
	bool made, bands;                 /* the kernel makes its input; goes over bands of a row of pixels */
	V n;                              /* images */
	Walk walk;
} Image;

static Image
image_of(const Graph *g, const Op *op, const GemmParams *p, const Epilogue *epi, bool made)
{
	const Type *x = val_type(g, op->in[0]), *wt = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	Image im = {.W = x->axis[3].n,
	            .C = x->axis[1].n / gemm_unit(p),
	            .OH = o->axis[2].n,
	            .OW = o->axis[3].n,
	            .K = o->axis[1].n,
	            .R = wt->axis[2].n,
	            .S = wt->axis[3].n,
	            .groups = gemm_groups(op),
	            .nr = (int64_t)p->nv * p->lanes,
	            .made = made,
	            .bands = made || (epi->nred && prologue_bands(g, op, p))};

	im.own = im.C / im.groups;
	im.columns_own = im.K / im.groups;
	im.npanel = ceil_div(im.columns_own, im.nr);
	im.columns = x->axis[1].n == 1 && im.S > 1;
	return im;
}

/* Which numbers of rows its tiles have, as tiles_make wants it. */
static int64_t
image_rows(const Image *im, const Epilogue *epi, const GemmParams *p, Axis n, int64_t band)
{
	int64_t counts = n.mul ? ANY_ROWS : 0;

	for (int64_t i = 0; i < im->walk.nrun && !n.mul; i++) {
		int64_t run = im->walk.runs[i * 5 + 1];

		counts |= row_tiles(epi, p, run * n.n, (band < run ? band : run) * n.n);
	}
	return counts;
}

/* Strides of the microkernel; tile: sums go to a tile of their own. */
static void
image_strides(Emit *e, const Image *im, bool tile, V pixel_a, V *st)
{
	const Walk *walk = &im->walk;

	st[S_AM] = k64(e, walk->apart * im->C * 4);
	st[S_AK] = k64(e, 4);
	st[S_AP] = i_mul(e, pixel_a, k64(e, walk->rmove * im->W));
	st[S_AQ] = i_mul(e, pixel_a, k64(e, walk->smove));
	st[S_BP] = k64(e, walk->rstep * im->S * im->own * im->nr * 4);
	st[S_BQ] = k64(e, walk->sstep * im->own * im->nr * 4);
	st[S_BK] = k64(e, im->nr * 4);
	st[S_CM] = k64(e, (tile ? im->nr : im->K) * 4);
	st[S_NK] = k64(e, im->own);
	if (im->columns) {
		st[S_AK] = st[S_AQ];
		st[S_BK] = st[S_BQ];
	}
}

/* Where a run of pixels and a panel of columns meet: offsets of input, filter and output in bytes. */
typedef struct ImageRun {
	V row, group, panel; /* row of pixels, group of channels, its panel */
	V ow, len;           /* first pixel, pixels */
	V a0, b0, c0;
	V np, nq; /* rows and columns of taps */
} ImageRun;

/* Opens the loop over runs of row `row`. trow, trun: walk's tables; kb: panel of all groups. */
static ImageRun
image_run_open(Emit *e, const Image *im, V trow, V trun, V row, V kb, V pixel_a, V pixel_c)
{
	ImageRun r = {.row = row};
	V row3 = i_mul(e, row, k64(e, 3));
	V h0 = table_at(e, trow, row3), r0 = table_at(e, trow, i_add(e, row3, k64(e, 1)));

	r.np = table_at(e, trow, i_add(e, row3, k64(e, 2)));
	V run5 = i_mul(e, loop_open(e, k64(e, 0), k64(e, im->walk.nrun), 1), k64(e, 5));

	r.ow = table_at(e, trun, run5);
	r.len = table_at(e, trun, i_add(e, run5, k64(e, 1)));
	V w0 = table_at(e, trun, i_add(e, run5, k64(e, 2)));
	V s0 = table_at(e, trun, i_add(e, run5, k64(e, 3)));

	r.nq = table_at(e, trun, i_add(e, run5, k64(e, 4)));
	panel_find(e, im->groups, im->npanel, kb, &r.group, &r.panel);
	V pixel = im->made ? k64(e, 0) : i_mul(e, i_add(e, i_mul(e, h0, k64(e, im->W)), w0), pixel_a);

	r.a0 = i_add(e, pixel, i_mul(e, r.group, k64(e, im->own * 4)));
	r.c0 = i_add(e, i_mul(e, i_add(e, i_mul(e, row, k64(e, im->OW)), r.ow), pixel_c),
	             i_add(e, i_mul(e, r.group, k64(e, im->columns_own * 4)), i_mul(e, r.panel, k64(e, im->nr * 4))));
	V tap = i_add(e, i_mul(e, r0, k64(e, im->S)), s0);

	r.b0 = i_add(e, i_mul(e, kb, k64(e, im->R * im->S * im->own * im->nr * 4)),
	             i_mul(e, tap, k64(e, im->own * im->nr * 4)));
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

/* Tiles of a run's rows, from band `made0` on, and the epilogue on them. */
static void
image_tiles(Emit *e, const Image *im, const GemmParams *p, const Tiles *tiles, const ImageRun *u, V made0, V made1,
            const V buffers[3], V strides, bool tile, Epilogue *epi)
{
	int64_t nr = im->nr;
	V n = im->n, out = buffers[2];
	RowLoops r = rows_open(e, epi, p, i_mul(e, im->bands ? i_sub(e, made1, made0) : u->len, n));
	V band0 = i_mul(e, made0, n), lo = i_add(e, r.lo, band0), first = i_add(e, r.first, band0);
	V channel0 = i_mul(e, u->group, k64(e, im->columns_own)),
	  column = i_add(e, channel0, i_mul(e, u->panel, k64(e, nr)));
	V columns_left = i_sub(e, i_add(e, channel0, k64(e, im->columns_own)), column);
	V from = ptr_at(e, buffers[0],
	                i_add(e, u->a0, i_mul(e, im->made ? r.lo : lo, k64(e, im->walk.apart * im->C * 4))));
	ImageAt at = {lo, n, u->row, u->ow}, at_block = {first, n, u->row, u->ow};
	EpilogueTile et = {.rows = r.count,
	                   .column = column,
	                   .columns = i_min(e, k64(e, nr), columns_left),
	                   .piece = u->row,
	                   .done = i_add(e, i_mul(e, u->ow, n), first),
	                   .carried = i_sub(e, r.lo, r.first),
	                   .tile = out,
	                   .tile_columns = nr,
	                   .unroll = p->nv,
	                   .index = image_index,
	                   .cx = &at};

	epilogue_fetch(e, epi, &et, nr < im->columns_own ? nr : im->columns_own);
	tile_call(e, tiles, r.count, u->panel, im->npanel, from, ptr_at(e, buffers[1], u->b0),
	          tile ? out : ptr_at(e, out, i_add(e, u->c0, i_mul(e, lo, k64(e, im->K * 4)))), u->np, u->nq, strides,
	          k64(e, 0));
	epilogue_tile(e, epi, &et);
	rows_close(e, &r, epi, &et, &at_block);
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
	int64_t panels = im.groups * im.npanel, slices = p->panel_outer ? im.OH : panels;

	if (fresh) {
		im.walk = walk_of(e.arena, op, val_type(g, op->in[0]), val_type(g, op->in[1]), o);
		emit_lanes(&e, p->lanes);
		im.n = extent(&e, o->axis[0]);
		V in = im.made ? scratch_ptr(&e, 0) : buffer(&e, abuf), weights = buffer(&e, bbuf),
		  out = epilogue_raw(&e, epi, p->mr, im.nr, &tile);
		int64_t band = im.bands ? prologue_pixels(g, op, p) : im.OW;
		Tiles tiles = tiles_make(
		        &e, p, tile && p->pack ? ceil_div(im.columns_own, p->lanes) * p->lanes : im.columns_own,
		        image_rows(&im, epi, p, o->axis[0], band));
		V pixel_a = i_mul(&e, im.n, k64(&e, im.C * 4)), pixel_c = i_mul(&e, im.n, k64(&e, im.K * 4)),
		  st[S_COUNT];

		image_strides(&e, &im, tile, pixel_a, st);
		V strides = strides_block(&e, st), trow = table(&e, im.walk.rows, im.OH * 3),
		  trun = table(&e, im.walk.runs, im.walk.nrun * 5);
		V first, last, t = slices_open(&e, slices, &first, &last), made0 = k64(&e, 0), made1 = NULL;

		/* one tap, and a run of all columns: the input's pixels are the output's. Blocks of rows begin with a
		 * band, whether it is made here or stands in memory */
		if (im.bands) {
			made0 = loop_open(&e, k64(&e, 0), k64(&e, im.OW), band);
			made1 = i_min(&e, i_add(&e, made0, k64(&e, band)), k64(&e, im.OW));
		}
		if (im.made)
			prologue_row(&e, op->in[0], t, made0, made1, in);
		V inner = loop_open(&e, first, last, 1);
		ImageRun run = image_run_open(&e, &im, trow, trun, p->panel_outer ? inner : t,
		                              p->panel_outer ? t : inner, pixel_a, pixel_c);

		if (im.columns)
			run.nq = columns_as_sum(&e, strides, run.nq);
		image_tiles(&e, &im, p, &tiles, &run, made0, made1, (V[]){in, weights, out}, strides, tile, epi);
		for (int i = 0; i < 3 + im.bands; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(p->panel_outer ? panels : im.OH, slices), fresh, false);
	epilogue_finish(gc, gk, epi, image_pieces, (void *)(uintptr_t)o);
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
		m.k /= gemm_unit(p);
		main = p->copy ? matmul_copy_bytes(&m, p, gemm_copies_tiles(g, p)) : 0;
		if (matmul_steps(&m, p) < m.k)
			main = align64(main) + matmul_block(&m, p) * ceil_div(m.n, nr) * nr * 4;
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
	q->cpu_brgemm.copy = p->copy;
	q->cpu_brgemm.chains = p->chains;
	q->cpu_brgemm.pairs = (int)p->engine;
}

static void
direct_read(const Params *q, GemmParams *p)
{
	p->panel_outer = q->cpu_brgemm.outer;
	p->pack = q->cpu_brgemm.pack;
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
