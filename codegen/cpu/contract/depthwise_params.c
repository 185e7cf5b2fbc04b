/* depthwise_params.c: which convolutions the kernels of small groups take, with which parameters, and the memory that
 * they need (depthwise.c, depthwise_dw.c).
 *
 * In: a convolution or a gradient of one, its layouts.   Out: parameters of shape and CPU alone, their text in
 * the IR, bytes, what a prologue costs. Refuses (depthwise_can): groups of more than half a vector, long filters
 * with dilations of many steps, strides or several weights a tap; those take the microkernel (gemm_params.c) or the
 * plain kernel. */
#include "depthwise.h"
#include <string.h>

enum {
	MOST_STRIDE = 8,
	/* input columns from a filter's first to its last, each few of them pixels with their own code; of filters of
	 * few columns any number, as few steps lie across an edge for one of them */
	MOST_REACH = 32, FEW_COLUMNS = (DEPTH_RUNS - 2) / 4,
	/* long filters, whose code is made for a few columns at a time: so many; more dilation, stride and pixels of a
	 * row would be more kinds of blocks, or longer tables of them */
	BLOCK = 8, BLOCK_DILATION = 4, BLOCK_STRIDE = 2, BLOCK_ROW = 16384,
	LARGE_FILTER = 5,        /* rows: arithmetic takes longer than memory */
	TILE_ROWS = 28,          /* pixels of a tile at least: each tile joins the states of reductions once */
	TASKS = 16               /* at least, where rows and channels are enough */
};

/* Bytes: input rows that wait in the L2 for the next task, or a task's copy; sums that wait for the epilogue, in
 * the L1; all of it that kernels may fill; a tensor that caches hold. */
static int64_t strip_most(const Graph *g) { return machine_of(g)->budget.l2 / 2; }
static int64_t tile_most(const Graph *g) { return machine_of(g)->budget.l1 / 2; }
static int64_t core_most(const Graph *g) { return machine_of(g)->budget.l1 / 8 * 7; }
static int64_t cached_most(const Graph *g) { return 2 * machine_of(g)->budget.l2; }

/* ---------------------------------------------------------------- what it takes */
static bool
activation_ok(const Type *t)
{
	static const uint8_t hwnc[4] = {2, 3, 0, 1};

	return (t->dtype == DT_f32 || t->dtype == DT_f16 || t->dtype == DT_bf16) && t->rank == 4 &&
	    !memcmp(t->perm, hwnc, 4) && !t->axis[1].mul && !t->axis[2].mul && !t->axis[3].mul;
}

static bool
weights_ok(const Type *t)
{
	static const uint8_t hwio[4] = {2, 3, 1, 0};

	return (t->dtype == DT_f32 || t->dtype == DT_f16 || t->dtype == DT_bf16) && t->rank == 4 &&
	    !memcmp(t->perm, hwio, 4);
}

/* Pixels of a step: their sums are a quarter of the registers, or half of 16 where the step makes nothing but sums, as
 * what it loads stands in a band. */
static int
most_cols(int vector_bytes, bool band)
{
	return vector_bytes == 64 || (vector_bytes == 32 && band) ? 8 : 4;
}

/* The row in equal parts; of the gradient in x whole strides, so that every step has the same taps. */
static int
cols_of(const Graph *g, const Op *op, int64_t row, int vector_bytes, bool band)
{
	int64_t most = most_cols(vector_bytes, band), cols = ceil_div(row, ceil_div(row, most)),
	        stride = window_of(g, op).stride[1];

	if (op->kind != OP_conv2d_dx)
		return (int)cols;
	cols = ceil_div(cols, stride) * stride;
	return (int)(cols > DEPTH_COLS ? DEPTH_COLS / stride * stride : cols);
}

/* Is all of a filter's row in the code of each step? Else it is long. */
static bool
row_in_code(const Conv *c, int64_t per)
{
	int64_t reach = (c->at.k[1] - 1) * c->at.dilation[1];

	return c->at.k[1] * per <= DEPTH_WEIGHTS && (reach <= MOST_REACH || c->at.k[1] <= FEW_COLUMNS);
}

/* The least multiple of a step's input columns that is not below BLOCK: edges cut blocks in few ways then. */
int64_t
depthwise_block(const Graph *g, const Op *op, int cols)
{
	Conv c = conv_of(g, op);
	int64_t step = cols * (op->kind == OP_conv2d_dx ? 1 : c.at.stride[1]);

	return row_in_code(&c, op->kind == OP_conv2d_dx ? c.out : c.in) ? 0 : ceil_div(BLOCK, step) * step;
}

/* Are steps of so many columns and blocks of so many taps code of a usual size? */
static bool
blocks_ok(const Conv *c, const Op *op, int64_t per, int64_t row)
{
	int64_t most = DEPTH_COLS * BLOCK_STRIDE;

	return (op->kind == OP_conv2d_dx ? c->at.stride[1] == 1 : c->at.stride[1] <= BLOCK_STRIDE) &&
	    c->at.dilation[1] <= BLOCK_DILATION && most * per <= DEPTH_WEIGHTS && row <= BLOCK_ROW;
}

bool
depthwise_can(const Graph *g, const Op *op, int vector_bytes)
{
	if (op->kind != OP_conv2d && op->kind != OP_conv2d_dx && op->kind != OP_conv2d_dw)
		return false;
	const Type *w = conv_filter(g, op), *x = val_type(g, op->in[0]),
	           *other = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	Conv c = conv_of(g, op);
	int64_t most = vector_bytes < 32 ? vector_bytes / 4 : vector_bytes / 8,
	        per = op->kind == OP_conv2d_dx ? c.out : c.in;

	if (c.groups == 1 || c.in > most || c.out > most || !activation_ok(x) || !activation_ok(other) ||
	    !weights_ok(w))
		return false;
	if (op->kind == OP_conv2d_dw && (w->dtype != DT_f32 || x->axis[0].mul))
		return false;
	return c.at.stride[1] <= MOST_STRIDE && (row_in_code(&c, per) || blocks_ok(&c, op, per, other->axis[3].n));
}

DepthLanes
depthwise_lanes(const Graph *g, const Op *op, const DepthParams *p)
{
	Conv c = conv_of(g, op);
	bool dx = op->kind == OP_conv2d_dx;
	DepthLanes l = {.in = dx ? c.out : c.in, .out = dx ? c.in : c.out};

	l.groups = p->lanes / (c.in > c.out ? c.in : c.out);
	l.whole = l.groups * l.out;
	l.vectors = ceil_div(c.groups, l.groups);
	l.rest = c.groups % l.groups * l.out;
	return l;
}

/* ---------------------------------------------------------------- parameters */
/* Input rows [lo, hi) that rows [first, last) of the result meet. */
void
depthwise_band_range(const Op *op, const Type *x, const Window *w, int64_t first, int64_t last, int64_t *lo,
                     int64_t *hi)
{
	*lo = *hi = 0;
	for (int64_t i = first, any = 0; i < last; i++) {
		int64_t step, move;
		WindowTaps t = window_taps(w, 0, op->kind == OP_conv2d_dx, i, x->axis[2].n, &step, &move);
		int64_t end = t.at + (t.count - 1) * move, from = t.at < end ? t.at : end, to = t.at < end ? end : t.at;

		if (!t.count)
			continue;
		*lo = any && *lo < from ? *lo : from;
		*hi = any && *hi > to + 1 ? *hi : to + 1;
		any = 1;
	}
}

/* An odd number of lines: a pixel's vectors of channels stand in different sets of the L1. */
int64_t
depthwise_band_line(int64_t pixels)
{
	return pixels | 1;
}

static int64_t
round_up(int64_t x, int64_t to)
{
	return ceil_div(x, to) * to;
}

/* Images whose input rows, as many as the filter has, take strip_most at most. */
static int
strip_of(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]);
	Window w = window_of(g, op);
	int64_t reach = (w.k[0] - 1) * w.dilation[0] + 1,
	        rows = reach < x->axis[2].n ? reach : x->axis[2].n;
	int64_t fit = strip_most(g) / (rows * x->axis[3].n * x->axis[1].n * dtype_info[x->dtype].bytes),
	        n = x->axis[0].n;

	if (fit < 1)
		fit = 1;
	return (int)(fit < n ? ceil_div(n, ceil_div(n, fit)) : n);
}

/* Input rows that `rows` rows of the result meet, beginning at a multiple of that: the most. */
int64_t
depthwise_band_rows(const Graph *g, const Op *op, int64_t rows)
{
	const Type *x = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	Window w = window_of(g, op);
	int64_t most = 1, lo, hi;

	for (int64_t first = 0; first < o->axis[2].n; first += rows) {
		depthwise_band_range(
		    op, x, &w, first, first + rows < o->axis[2].n ? first + rows : o->axis[2].n, &lo, &hi);
		if (hi - lo > most)
			most = hi - lo;
	}
	return most;
}

static int64_t
tasks_of_params(const Graph *g, const Op *op, const DepthParams *p)
{
	const Type *o = val_type(g, op->out[0]);

	return ceil_div(o->axis[0].n, p->strip) * ceil_div(o->axis[2].n, p->rows) * ceil_div(o->axis[1].n, p->chunk);
}

static int64_t
band_bytes(const Graph *g, const Op *op, const DepthLanes *l, const DepthParams *p)
{
	return p->strip * (p->chunk / l->whole) *
	    depthwise_band_line(depthwise_band_rows(g, op, p->rows) * val_type(g, op->in[0])->axis[3].n) * p->lanes * 4;
}

/* Half as many channels, or rows where these are few. False: nothing is left to cut. */
static bool
cut_task(DepthParams *p, const DepthLanes *l)
{
	if (p->chunk > 4 * l->whole)
		p->chunk = (int)round_up(ceil_div(p->chunk, 2), l->whole);
	else if (p->rows > 1)
		p->rows = (p->rows + 1) / 2;
	else
		return false;
	return true;
}

/* Does a task copy its input? Where most rows are read twice or more, and what limits the kernel is arithmetic or the
 * caches: a large tensor and a small filter wait for memory, which is read best in the order in which it lies. Not so
 * in the gradient with vectors of 32 bytes, whose steps have 4 pixels: its operand is mostly made by ops, four times
 * and more each element if it is made as it is loaded (Zen 3, MobileNetV2: these kernels take 40 ms, and 34 with a band
 * and steps of 8). */
static bool
band_pays(const Graph *g, const Op *op, const Arch *a)
{
	Window w = window_of(g, op);
	int64_t taps = w.k[0];

	bool made = op->kind == OP_conv2d_dx && a->vector_bytes == 32;

	return taps >= 2 * w.stride[0] &&
	    (made || taps >= LARGE_FILTER || type_bytes(val_type(g, op->in[0])) <= cached_most(g));
}

/* Rows, images and channels of a task. */
static void
choose_task(const Graph *g, const Op *op, const Arch *a, const DepthLanes *l, DepthParams *p)
{
	const Type *o = val_type(g, op->out[0]);
	int64_t taps = conv_filter(g, op)->axis[2].n;

	p->band = band_pays(g, op, a);
	p->strip = 1;
	p->rows = (int)o->axis[2].n;
	while (p->band && band_bytes(g, op, l, p) > strip_most(g)) {
		if (p->rows > 2 * taps)
			p->rows = (p->rows + 1) / 2;
		else
			p->band = cut_task(p, l);
	}
	if (!p->band) {
		p->rows = 1;
		p->strip = strip_of(g, op);
		p->chunk = (int)(l->vectors * l->whole);
	}
	while (tasks_of_params(g, op, p) < TASKS && cut_task(p, l))
		;
	while (p->band && p->strip < o->axis[0].n) {
		DepthParams more = *p;

		more.strip = p->strip * 2 < o->axis[0].n ? p->strip * 2 : (int)o->axis[0].n;
		if (band_bytes(g, op, l, &more) > strip_most(g) || tasks_of_params(g, op, &more) < 2 * TASKS)
			break;
		*p = more;
	}
}

/* Pixels of a row in a tile: all of them, or a step's. */
static int64_t
tile_pixels(const Graph *g, const Op *op, const DepthParams *p)
{
	return p->band ? val_type(g, op->out[0])->axis[3].n : p->cols;
}

DepthParams
depthwise_params(const Graph *g, const Op *op, const Arch *a)
{
	const Type *o = val_type(g, op->out[0]);
	int64_t groups = attr_int(op, A_groups);
	DepthParams p = {.lanes = a->vector_bytes / 4};

	if (p.lanes == 16 && conv_filter(g, op)->axis[0].n <= 8 && val_type(g, op->in[0])->axis[1].n <= 8)
		p.lanes = 8;
	DepthLanes l = depthwise_lanes(g, op, &p);

	p.strip = strip_of(g, op);
	if (op->kind == OP_conv2d_dw) {
		p.cols = cols_of(g, op, val_type(g, op->in[1])->axis[3].n, a->vector_bytes, false);
		depthwise_dw_params(g, op, &l, &p);
		return p;
	}
	p.cols = cols_of(g, op, o->axis[3].n, a->vector_bytes, false);
	p.chunk = (int)round_up(groups * l.out, l.whole);
	choose_task(g, op, a, &l, &p);
	p.cols = cols_of(g, op, o->axis[3].n, a->vector_bytes, p.band);
	int64_t pixels = tile_pixels(g, op, &p),
	        window = p.band ? depthwise_band_rows(g, op, 1) * val_type(g, op->in[0])->axis[3].n : 0;

	p.images = (int)(pixels >= TILE_ROWS ? 1 : ceil_div(TILE_ROWS, pixels));
	p.images = p.images < p.strip ? p.images : p.strip;
	int64_t block = (p.band ? core_most(g) : tile_most(g)) / F32(p.images * (pixels + window) * p.lanes) * l.whole;

	p.block = (int)(block < l.whole ? l.whole : block < p.chunk ? block : p.chunk);
	return p;
}

/* Weights by lanes, [r][s][j][channel], where they do not lie so. */
static int64_t
packed(const Graph *g, const Op *op, const GemmParams *p)
{
	(void)p;
	const Type *w = conv_filter(g, op);

	if (op->kind != OP_conv2d_dx || (w->axis[1].n == 1 && w->axis[0].n == attr_int(op, A_groups)))
		return 0;
	return F32(w->axis[0].n * w->axis[1].n * w->axis[2].n * w->axis[3].n);
}

/* Tasks that keep a state of the epilogue's reductions. */
static int64_t
pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *o = val_type(g, op->out[0]);

	return ceil_div(o->axis[0].n, p->depth.strip) * ceil_div(o->axis[2].n, p->depth.rows);
}

/* Numbers from a row of the tile to the next: vectors of which not all lanes are in use write behind their block. */
int64_t
depthwise_tile_line(const DepthLanes *l, const DepthParams *p)
{
	return round_up(p->block, p->lanes) + (l->whole < p->lanes ? p->lanes : 0);
}

/* Bytes of a tile. */
int64_t
depthwise_tile_bytes(const Graph *g, const Op *op, const DepthLanes *l, const DepthParams *p)
{
	return align64(F32(tile_pixels(g, op, p) * p->images * depthwise_tile_line(l, p)) + F32(p->lanes));
}

static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	const DepthParams *d = &p->depth;
	DepthLanes l = depthwise_lanes(g, op, d);

	return depthwise_tile_bytes(g, op, &l, d) + (d->band ? band_bytes(g, op, &l, d) : 0);
}

/* ---------------------------------------------------------------- operands that it makes */
static PrologueWay
way(const Op *op, int k)
{
	(void)op, (void)k;
	return PROLOGUE_TILES;
}

/* How often each element of operand k is loaded, and what the kernel can do beside while it waits for memory. */
static void
cost(const Graph *g, const Op *op, const GemmParams *p, int k, Prologue *r)
{
	const Type *x = val_type(g, op->in[0]),
	           *gr = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	Window at = window_of(g, op);
	const Rates *rates = &machine_of(g)->budget.rates;
	double cols = p->depth.cols, span = (double)((at.k[1] - 1) * at.dilation[1]);
	int64_t block = depthwise_block(g, op, p->depth.cols);

	if (block) /* every block of a step loads what it meets */
		span = (double)(ceil_div(at.k[1], block) * (block - 1) * at.dilation[1]) +
		       (double)(ceil_div(at.k[1], block) - 1) * cols * (double)at.stride[1];
	double bytes =
	    (double)(type_elements(x) * dtype_info[x->dtype].bytes + type_elements(gr) * dtype_info[gr->dtype].bytes);
	int64_t rows = p->depth.rows;

	if (op->kind != OP_conv2d_dw && k == 1) {
		r->why = "the kernel reads the weights again for every pixel";
		return;
	}
	if (p->depth.band)
		r->times = (double)(depthwise_band_rows(g, op, rows) * ceil_div(gr->axis[2].n, rows)) /
		           (double)x->axis[2].n;
	else if (op->kind == OP_conv2d_dw && k == 1)
		r->times = 1;
	else if (op->kind == OP_conv2d_dx)
		r->times = (double)at.k[0] * (cols + span) / cols;
	else
		r->times = (double)at.k[0] * (cols * (double)at.stride[1] + span) /
		           (cols * (double)(at.stride[0] * at.stride[1]));
	r->spare = bytes * (rates->flops / rates->bytes) - op_flops(g, op) / 2;
	if (r->spare < 0)
		r->spare = 0;
}

/* ---------------------------------------------------------------- rows */
static bool
offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	(void)best;
	if (!depthwise_can(g, op, cx->arch->vector_bytes))
		return false;
	p->depth = depthwise_params(g, op, cx->arch);
	p->lanes = p->depth.lanes;
	return true;
}

static void
facts(const Graph *g, const Op *op, const PlanCx *cx, Facts *f)
{
	const Type *o = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);

	if (!depthwise_can(g, op, cx->arch->vector_bytes))
		return;
	DepthParams p = depthwise_params(g, op, cx->arch);
	DepthLanes l = depthwise_lanes(g, op, &p);

	f->N = l.vectors * l.whole;
	f->pixel_rows = o->axis[2].n;
	f->n_images = o->axis[0].n;
	f->whole = l.whole;
	f->vector = p.lanes;
	f->stride = op->kind == OP_conv2d_dx ? window_of(g, op).stride[1] : 1;
}

static const char *
not_small(const Graph *g, const Op *op, const PlanCx *cx, bool dw)
{
	if ((op->kind == OP_conv2d_dw) != dw || !depthwise_can(g, op, cx->arch->vector_bytes))
		return "it is for convolutions whose groups are smaller than a vector, their layouts and filters";
	return NULL;
}

static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	const char *why = not_small(g, op, cx, false);

	if (!why && scratch(g, op, p) > 4 * machine_of(g)->budget.l2)
		why = "a thread's tile and copy take more than four times the L2";
	return why;
}

static const char *
dw_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	(void)p;
	return not_small(g, op, cx, true);
}

static void
write(const GemmParams *p, Params *q)
{
	const DepthParams *d = &p->depth;

	q->cpu_depthwise.cols = d->cols;
	q->cpu_depthwise.images = d->images;
	q->cpu_depthwise.block = d->block;
	q->cpu_depthwise.rows = d->rows;
	q->cpu_depthwise.strip = d->strip;
	q->cpu_depthwise.chunk = d->chunk;
	q->cpu_depthwise.band = d->band;
	q->cpu_depthwise.lanes = d->lanes;
}

static void
read(const Params *q, GemmParams *p)
{
	p->depth = (DepthParams){.cols = q->cpu_depthwise.cols, .images = q->cpu_depthwise.images,
	    .block = q->cpu_depthwise.block, .rows = q->cpu_depthwise.rows, .strip = q->cpu_depthwise.strip,
	    .chunk = q->cpu_depthwise.chunk, .band = q->cpu_depthwise.band, .lanes = q->cpu_depthwise.lanes};
	p->lanes = p->depth.lanes;
}

static void
dw_write(const GemmParams *p, Params *q)
{
	const DepthParams *d = &p->depth;

	q->cpu_depthwise_dw.cols = d->cols;
	q->cpu_depthwise_dw.parts = d->parts;
	q->cpu_depthwise_dw.strip = d->strip;
	q->cpu_depthwise_dw.chunk = d->chunk;
	q->cpu_depthwise_dw.lanes = d->lanes;
}

static void
dw_read(const Params *q, GemmParams *p)
{
	p->depth = (DepthParams){.cols = q->cpu_depthwise_dw.cols, .parts = q->cpu_depthwise_dw.parts,
	    .strip = q->cpu_depthwise_dw.strip, .chunk = q->cpu_depthwise_dw.chunk, .lanes = q->cpu_depthwise_dw.lanes};
	p->lanes = p->depth.lanes;
}

/* Partial sums. */
static int64_t
dw_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->depth.parts > 1 ? p->depth.parts * type_bytes(val_type(g, op->out[0])) : 0;
}

static int64_t
dw_pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	(void)g, (void)op;
	return p->depth.parts;
}

const Algo algo_depthwise = {
	.family = FAMILY_cpu_depthwise,
	.doc = "groups smaller than a vector, lanes of many groups: convolutions and their gradients in the image",
	.ops = {OP_conv2d, OP_conv2d_dx},
	.engines = ENGINES_F32,
	.offer = offer,
	.facts = facts,
	.why_not = why_not,
	.write = write,
	.read = read,
	.panels = packed,
	.scratch = scratch,
	.pieces = pieces,
	.widens = true,
	.way = way,
	.cost = cost,
	.emit = depthwise_emit,
};

const Algo algo_depthwise_dw = {
	.family = FAMILY_cpu_depthwise_dw,
	.doc = "groups smaller than a vector: the gradient in a convolution's weights",
	.ops = {OP_conv2d_dw},
	.engines = ENGINES_F32,
	.offer = offer,
	.facts = facts,
	.why_not = dw_why_not,
	.write = dw_write,
	.read = dw_read,
	.workspace = dw_workspace,
	.pieces = dw_pieces,
	.widens = true,
	.way = way,
	.cost = cost,
	.emit = depthwise_dw_emit,
};
