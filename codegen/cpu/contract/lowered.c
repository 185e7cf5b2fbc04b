/* lowered.c: convolutions of few pixels as one matrix product of all of them (im2col; Chellapilla, Puri and Simard,
 * "High performance convolutional neural networks for document processing", 2006).
 *
 * In: a group of one conv2d of f32 in one group of channels, of few pixels: one image, or the last maps of some.   Out:
 * a kernel that gathers what each output pixel meets in a row of its own, [pixel][tap][channel], unless these are the
 * image's pixels as they lie (one tap that meets each), and the main one: all pixels by the filter as one matrix.
 * Why: where a row of pixels has fewer rows of the product than a tile, the direct kernel's tiles are low, the lower at
 * the borders, and each row of pixels reads the whole filter again; what it takes is then the filter's way through the
 * caches. Here tiles are as high as registers allow, and a panel of the filter comes from memory once: some steps of it
 * stay in L1 while all tiles of a block of rows go over them, their sums in the thread's scratch memory meanwhile.
 * Bits: sums run over taps and channels in the direct kernel's order, and products with the border's zeros are added.
 * Refused (why_not): groups of channels, other types, operands made on their way. */
#include "winograd.h"
#include <math.h>

/* Rows of a block at most, steps of the sum that stay in L1: of the shape alone, as sums go on from block to block. A
 * line of memory between the rows that are gathered, so that a tile's do not meet in one set of L1. */
enum { ROWS = 256, STEPS = 128, APART = 64 };

typedef struct Lowered {
	Window at;
	int64_t H, W, C, OH, OW, columns; /* of the image: rows, columns, channels; of the result, and its channels */
	int64_t k, rows;                  /* taps by channels; of the product, of a full batch */
	int64_t line;                     /* bytes from one row of the first matrix to the next */
	int64_t nr, npanel;               /* columns of a panel, panels */
	int64_t blocks, block;            /* blocks of rows, and rows of one: nearly equal */
	bool point;                       /* the image is the first matrix as it lies */
} Lowered;

static Lowered
lowered_of(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *x = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	Lowered l = {.at = window_of(g, op), .H = x->axis[2].n, .W = x->axis[3].n, .C = x->axis[1].n,
	             .OH = o->axis[2].n, .OW = o->axis[3].n, .columns = o->axis[1].n, .nr = (int64_t)p->nv * p->lanes};

	l.k = l.at.k[0] * l.at.k[1] * l.C;
	l.rows = l.OH * l.OW * o->axis[0].n;
	l.npanel = l.nr ? ceil_div(l.columns, l.nr) : 0;
	l.blocks = ceil_div(l.rows, ROWS);
	l.block = ceil_div(l.rows, l.blocks);
	l.point = window_is_point(&l.at);
	l.line = l.point ? F32(l.k) : align64(F32(l.k)) + APART;
	return l;
}

/* Does a block's sum come in parts? Not where a tile has all its rows: it reads the panel once in any case. */
static bool
parted(const Lowered *l, const GemmParams *p)
{
	return l->k > STEPS && l->block > p->mr;
}

/* ---------------------------------------------------------------- the choice */
static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	if (!gemm_possible(g, op) || gemm_groups(op) != 1)
		return "its channels stand in groups";
	if (cx->half != DT_none)
		return "its operands are not of 32 bits";
	if (prologue_made(g, op, 0) && prologue_way(g, op, p, 0) != PROLOGUE_COPY)
		return "its first operand is made on its way";
	return NULL;
}

/* What the matrix that is gathered takes; 0: none is. */
static int64_t
gathered(const Graph *g, const Op *op, const GemmParams *p)
{
	Lowered l = lowered_of(g, op, p);

	return l.point ? 0 : l.rows * l.line;
}

/* Seconds: the products, the filter from beyond L2, a copy written and read. Measured beside each other on one image:
 * this reaches two thirds of the machine's rate, tiles of a row of few pixels half of it, those of a filter of several
 * columns, whose borders are tiles of their own, a third; Winograd's products of few tiles half, and its filter is that
 * of 36 points. Beside Winograd's of 16 points, which asks for its filter ahead too: of products and memory what takes
 * longer. */
static double
time_of(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	const Rates *r = &machine_of(g)->budget.rates;
	double filter = (double)type_bytes(val_type(g, op->in[1])), flops = op_flops(g, op), other;
	double own = flops / (0.65 * r->products) + (filter + 2 * (double)gathered(g, op, p)) / r->bytes;

	if (best->span == SHORT_SPAN)
		return (fmax(flops / r->products, filter / r->bytes) + 2 * (double)gathered(g, op, p) / r->bytes)
		       / fmax(best->algo->work(g, op, best) / r->products, (double)gemm_panels(g, op, best) / r->bytes);
	if (best->algo->work)
		other = 2 * best->algo->work(g, op, best) / r->products + (double)gemm_panels(g, op, best) / r->bytes;
	else
		other = (window_of(g, op).k[1] > 1 ? 3 : 2) * flops / r->products + filter / r->bytes;
	return own / other;
}

static const char *
dear(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	return arena_printf(g->arena, "its matrix of pixels and its filter are predicted to take %.1f times as long",
	                    time_of(g, op, p, best));
}

/* A row of pixels that makes no tiles of full height, and no more pixels than the filter has columns, so that what is
 * gathered is less than the filter. */
static bool
offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	enum { SHORT = 12, FEW = 6 };
	const Algo *row = p->algo;
	const Type *o = val_type(g, op->out[0]);

	if (best->engine != ENGINE_FMA || cx->half != DT_none || !gemm_possible(g, op) || gemm_groups(op) != 1)
		return false;
	*p = gemm_params(g, op, cx->arch->vector_bytes);
	gemm_few_rows(g, p, type_bytes(val_type(g, op->in[1])));
	p->algo = row;
	p->panel_outer = p->pack = true;
	Lowered l = lowered_of(g, op, p);

	return l.C > 1 && l.OW * o->axis[0].n < SHORT && l.rows >= FEW && l.rows <= l.columns;
}

static const char *
chosen(const Graph *g, const Op *op, const GemmParams *p)
{
	Lowered l = lowered_of(g, op, p);

	return l.point ? arena_printf(g->arena, "all %lld pixels as rows of one matrix product", (long long)l.rows)
	               : arena_printf(g->arena, "all %lld pixels as rows of one matrix product (im2col), "
	                                        "%.1f MiB of workspace",
	                              (long long)l.rows, (double)gathered(g, op, p) / 1048576);
}

static double
work(const Graph *g, const Op *op, const GemmParams *p)
{
	(void)p;
	return op_flops(g, op);
}

/* ---------------------------------------------------------------- memory */
static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t pack = pack_scratch(g, op, p), sums = F32(lowered_of(g, op, p).block * p->nv * p->lanes);

	return pack > sums ? pack : sums;
}

static int64_t
pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	return lowered_of(g, op, p).blocks;
}

/* ---------------------------------------------------------------- emission */
/* Channels of a pixel, or zeros where ok is false. */
static void
gather_tap(Emit *e, const Lowered *l, V ok, V from, V to)
{
	V all = k64(e, l->C), none = k64(e, 0);
	Mem in = mem_dense(e, from, DT_f32, l->C), out = mem_dense(e, to, DT_f32, l->C);

	for (int inside = 0; inside < 2; inside++) {
		V end = LLVMBuildSelect(here(e), ok, inside ? all : none, inside ? none : all, "");

		LOOP(e, c, none, end, e->W) {
			V mask = l->C % e->W ? row_mask(e, i_sub(e, all, c), 0) : NULL;
			V x = inside ? vec_load(e, mem_at(e, &in, c), mask) : LLVMConstNull(vec_of(e, e->l->f32));

			vec_store(e, mem_at(e, &out, c), x, mask);
		}
	}
}

/* A task is an output pixel of all images. */
static void
gather_emit(GroupCx *gc, const Op *op, const GemmParams *p, const Lowered *l, int src, int dst, GraphKernels *gk)
{
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "gather", &fresh);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		V n = extent(&e, val_type(gc->g, op->in[0])->axis[0]);
		/* [row][column][image], [output pixel][image][tap row][tap column] */
		Mem in = mem_axes(&e, buffer(&e, src), OF(l->W), BY(0), BY(F32(l->C)));
		Mem out = mem_axes(&e, buffer(&e, dst), BY(0), BY(l->line), OF(l->at.k[1]), BY(F32(l->C)));

		in.axis[1].step = i_mul_k(&e, n, F32(l->C));
		out.axis[0].step = i_mul_k(&e, n, l->line);
		TASKS(&e, t) {
			V h0 = i_sub_k(&e, i_mul_k(&e, i_div_k(&e, t, l->OW), l->at.stride[0]), l->at.pad[0]);
			V w0 = i_sub_k(&e, i_mul_k(&e, i_rem_k(&e, t, l->OW), l->at.stride[1]), l->at.pad[1]);

			EACH(&e, image, n) TIMES(&e, r, l->at.k[0]) TIMES(&e, s, l->at.k[1]) {
				V h = i_add(&e, h0, i_mul_k(&e, r, l->at.dilation[0]));
				V w = i_add(&e, w0, i_mul_k(&e, s, l->at.dilation[1]));
				/* unsigned, those before the first are beyond the last */
				V ok = LLVMBuildAnd(here(&e),
				                    LLVMBuildICmp(here(&e), LLVMIntULT, h, k64(&e, l->H), ""),
				                    LLVMBuildICmp(here(&e), LLVMIntULT, w, k64(&e, l->W), ""), "");

				gather_tap(&e, l, ok, mem_at(&e, &in, h, w, image), mem_at(&e, &out, t, image, r, s));
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = l->OH * l->OW, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

typedef struct PixelAt { const Lowered *l; V n, first; } PixelAt; /* images; flat number of the tile's first row */

static void
pixel_index(Emit *e, void *cx, V row, Ix *ix)
{
	const PixelAt *at = cx;
	V m = i_add(e, at->first, row), pixel = i_div(e, m, at->n);

	ix[0] = ix_s(i_rem(e, m, at->n));
	ix[2] = ix_s(i_div_k(e, pixel, at->l->OW));
	ix[3] = ix_s(i_rem_k(e, pixel, at->l->OW));
}

typedef struct Blocks { Axis n; int64_t pixels, block; } Blocks;

static V
block_rows(Emit *e, void *cx, V block)
{
	const Blocks *b = cx;
	V rows = i_mul_k(e, extent(e, b->n), b->pixels), left = i_sub(e, rows, i_mul_k(e, block, b->block));

	return i_max(e, k64(e, 0), i_min(e, k64(e, b->block), left));
}

/* The main kernel: a block of rows [lo, hi) and a panel. */
typedef struct Product {
	const GemmParams *p;
	const Lowered *l;
	Tiles tiles;
	Mem a, b, sums;          /* [row][step], [panel][step], [row] of a tile or [row][panel] of the result */
	bool tile;
	V n, lo, hi, block, panel;
} Product;

static V
product_strides(Emit *e, const Product *x, int64_t steps)
{
	const Lowered *l = x->l;
	int64_t line = F32(x->tile ? l->nr : l->columns);

	return strides_of_constants(e, (const int64_t[S_COUNT]){[S_AM] = l->line, [S_AK] = 4, [S_BK] = F32(l->nr),
	                                                      [S_CM] = line, [S_NK] = steps});
}

/* Where the sums of row `row` of the block stand. */
static V
sums_at(Emit *e, const Product *x, V row)
{
	return x->tile ? mem_at(e, &x->sums, row) : mem_at(e, &x->sums, i_add(e, x->lo, row), x->panel);
}

/* All steps of the sum but the last STEPS at most. */
static void
first_steps(Emit *e, const Product *x, V strides)
{

	TIMES(e, i, (x->l->k - 1) / STEPS) {
		V k = i_mul_k(e, i, STEPS), more = LLVMBuildICmp(here(e), LLVMIntSGT, i, k64(e, 0), "");

		more = LLVMBuildZExt(here(e), more, e->l->i64, "");
		TILES(e, lo, count, i_sub(e, x->hi, x->lo), x->p->mr)
			tile_call(e, &x->tiles, count, x->panel, x->l->npanel, mem_at(e, &x->a, i_add(e, x->lo, lo), k),
			          mem_at(e, &x->b, x->panel, k), sums_at(e, x, lo), NULL, NULL, strides, more);
	}
}

/* The steps from `last` on, and the epilogue. */
static void
last_steps(Emit *e, Epilogue *epi, const Product *x, int64_t last, V strides)
{
	const Lowered *l = x->l;
	V column = i_mul_k(e, x->panel, l->nr), k = k64(e, last);
	RowLoops r = rows_open(e, epi, x->p, i_sub(e, x->hi, x->lo));
	PixelAt at = {l, x->n, i_add(e, x->lo, r.lo)}, at_block = {l, x->n, i_add(e, x->lo, r.first)};
	V to = x->tile && !last ? x->sums.base : sums_at(e, x, r.lo);
	EpilogueTile et = {.rows = r.count,
	                   .column = column,
	                   .columns = i_min(e, k64(e, l->nr), i_sub(e, k64(e, l->columns), column)),
	                   .piece = x->block,
	                   .done = r.first,
	                   .carried = i_sub(e, r.lo, r.first),
	                   .tile = x->tile ? to : x->sums.base,
	                   .tile_columns = l->nr,
	                   .unroll = x->p->nv,
	                   .index = pixel_index,
	                   .cx = &at};

	epilogue_fetch(e, epi, &et, l->nr < l->columns ? l->nr : l->columns);
	tile_call(e, &x->tiles, r.count, x->panel, l->npanel, mem_at(e, &x->a, i_add(e, x->lo, r.lo), k),
	          mem_at(e, &x->b, x->panel, k), to, NULL, NULL, strides, k64(e, last > 0));
	epilogue_tile(e, epi, &et);
	rows_close(e, &r, epi, &et, &at_block);
}

/* Which numbers of rows its tiles have, as tiles_make wants it. */
static int64_t
rows_set(const Graph *g, const Op *op, const GemmParams *p, const Lowered *l, const Epilogue *epi)
{
	if (val_type(g, op->out[0])->axis[0].mul)
		return ANY_ROWS;
	return row_tiles(epi, p, l->rows, l->block) | (parted(l, p) ? tile_rows(l->rows, l->block, p->mr) : 0);
}

static void
main_emit(GroupCx *gc, const Op *op, const GemmParams *p, const Lowered *l, int abuf, int bbuf, Epilogue *epi,
          GraphKernels *gk)
{
	int64_t last = parted(l, p) ? (l->k - 1) / STEPS * STEPS : 0;
	Axis images = val_type(gc->g, op->out[0])->axis[0];
	Product x = {.p = p, .l = l};
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = epilogue_raw(&e, epi, p->mr, l->nr, &x.tile);

		x.n = extent(&e, images);
		x.tiles = tiles_make(&e, p, x.tile ? ceil_div(l->columns, p->lanes) * p->lanes : l->columns,
		                     rows_set(gc->g, op, p, l, epi), (Steps){4, F32(l->nr)});
		x.a = mem_axes(&e, A, BY(l->line), BY(4));
		x.b = mem_axes(&e, B, BY(F32(l->k * l->nr)), BY(F32(l->nr)));
		x.sums = x.tile ? mem_axes(&e, last ? scratch_ptr(&e, 0) : C, BY(F32(l->nr)))
		                : mem_axes(&e, C, BY(F32(l->columns)), BY(F32(l->nr)));
		V first = product_strides(&e, &x, STEPS), rest = product_strides(&e, &x, l->k - last);
		V rows = i_mul_k(&e, x.n, l->OH * l->OW);

		SLICES(&e, panel, l->blocks, from, to) LOOP(&e, block, from, to, 1) {
			x.panel = panel;
			x.block = block;
			x.lo = i_min(&e, i_mul_k(&e, block, l->block), rows);
			x.hi = i_min(&e, i_add_k(&e, x.lo, l->block), rows);
			if (last)
				first_steps(&e, &x, first);
			last_steps(&e, epi, &x, last, rest);
		}
	}
	kernel_end(gc, &e, gk, fn, slices_rows(l->npanel, l->blocks), fresh, false);
	Blocks blocks = {images, l->OH * l->OW, l->block};

	epilogue_finish(gc, gk, epi, block_rows, &blocks);
}

static void
emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk)
{
	Lowered l = lowered_of(gc->g, op, p);
	Epilogue epi;
	int panels = gemm_pack(gc, op, p, b, &epi, gk);

	if (!l.point) {
		int64_t behind = gc->g->group.at[gc->group].prepacked ? 0 : align64(pack_bytes(gc->g, op, p));

		vec_push(gc->tmp, &gc->buf, ((Buffer){0, workspace_start(gc) + behind}));
		gather_emit(gc, op, p, &l, a, (int)gc->buf.n - 1, gk);
		a = (int)gc->buf.n - 1;
	}
	main_emit(gc, op, p, &l, a, panels, &epi, gk);
}

/* Room for the gap in front of the matrix. */
static int64_t
workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t bytes = gathered(g, op, p);

	return bytes ? align64(bytes) + 64 : 0;
}

static void
params_read(const Params *q, GemmParams *p)
{
	(void)q;
	p->panel_outer = p->pack = true;
}

const Algo algo_lowered = {
	.family = FAMILY_cpu_lowered,
	.doc = "convolutions of few pixels as one matrix product (im2col)",
	.ops = {OP_conv2d},
	.engines = ENGINES_F32,
	.read = params_read,
	.offer = offer,
	.why_not = why_not,
	.time = time_of,
	.dear = dear,
	.chosen = chosen,
	.work = work,
	.panels = pack_bytes,
	.keeps = true,
	.workspace = workspace,
	.scratch = scratch,
	.pieces = pieces,
	.rounds = pack_rounds,
	.emit = emit,
};
