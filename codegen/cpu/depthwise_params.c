/* depthwise_params.c: which convolutions the kernels of small groups take, with which parameters, and the memory that
 * they need (depthwise.c, depthwise_dw.c).
 *
 * In: a convolution or a gradient of one, its layouts.   Out: parameters of shape and processor alone, their text in
 * the IR, bytes, what a prologue costs. Refuses (depthwise_can): groups of more than half a vector, filters of hundreds
 * of weights a row, dilations of many steps; those take the microkernel (gemm_params.c) or the plain kernel. */
#include "depthwise.h"
#include <string.h>

enum {
	MOST_STRIDE = 8,
	MOST_REACH =
	    32, /* input columns from a filter's first to its last: each few of them are pixels with their own code */
	LARGE_FILTER = 5,        /* rows: arithmetic takes longer than memory */
	TILE_BYTES = 16 << 10,   /* of sums that wait for the epilogue */
	TILE_ROWS = 28,          /* pixels of a tile at least: each tile joins the states of reductions once */
	CORE_BYTES = 28 << 10,   /* of the L1 cache */
	STRIP_BYTES = 512 << 10, /* of the L2 cache: input rows for the next task */
	BAND_BYTES = 512 << 10,  /* of the L2 cache: a task's copy */
	CACHE_BYTES = 2 << 20,   /* of a tensor that caches hold */
	TASKS = 16               /* at least, where rows and channels are enough */
};

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

static const Type *
weights_of(const Graph *g, const Op *op)
{
	return val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);
}

/* Pixels of a step: their sums are a quarter of the registers. */
static int
most_cols(int vector_bytes)
{
	return vector_bytes == 64 ? 8 : 4;
}

/* The row in equal parts; of the gradient in x whole strides, so that every step has the same taps. */
static int
cols_of(const Op *op, int64_t row, int vector_bytes)
{
	int64_t most = most_cols(vector_bytes), cols = ceil_div(row, ceil_div(row, most)),
	        stride = attr_ints(op, A_stride, NULL)[1];

	if (op->kind != OP_conv2d_dx)
		return (int)cols;
	cols = ceil_div(cols, stride) * stride;
	return (int)(cols > DEPTH_COLS ? DEPTH_COLS / stride * stride : cols);
}

bool
depthwise_can(const Graph *g, const Op *op, int vector_bytes)
{
	if (op->kind != OP_conv2d && op->kind != OP_conv2d_dx && op->kind != OP_conv2d_dw)
		return false;
	const Type *w = weights_of(g, op), *x = val_type(g, op->in[0]),
	           *other = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	int64_t groups = attr_int(op, A_groups), in = w->axis[1].n, out = w->axis[0].n / groups,
	        most = vector_bytes < 32 ? vector_bytes / 4 : vector_bytes / 8;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *dil = attr_ints(op, A_dilation, NULL);
	int64_t reach = (w->axis[3].n - 1) * dil[1], per = op->kind == OP_conv2d_dx ? out : in;

	if (groups == 1 || in > most || out > most || !activation_ok(x) || !activation_ok(other) || !weights_ok(w))
		return false;
	if (op->kind == OP_conv2d_dw && (w->dtype != DT_f32 || x->axis[0].mul))
		return false;
	return w->axis[3].n * per <= DEPTH_WEIGHTS && stride[1] <= MOST_STRIDE && reach <= MOST_REACH;
}

DepthLanes
depthwise_lanes(const Graph *g, const Op *op, const DepthParams *p)
{
	const Type *w = weights_of(g, op);
	int64_t groups = attr_int(op, A_groups), in = w->axis[1].n, out = w->axis[0].n / groups;
	DepthLanes l = {.in = op->kind == OP_conv2d_dx ? out : in, .out = op->kind == OP_conv2d_dx ? in : out};

	l.groups = p->lanes / (in > out ? in : out);
	l.whole = l.groups * l.out;
	l.vectors = ceil_div(groups, l.groups);
	l.rest = groups % l.groups * l.out;
	return l;
}

/* ---------------------------------------------------------------- parameters */
/* Input rows [lo, hi) that rows [first, last) of the result meet. */
void
depthwise_band_range(const Op *op, const Type *x, const Type *w, int64_t first, int64_t last, int64_t *lo, int64_t *hi)
{
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL),
	              *dil = attr_ints(op, A_dilation, NULL);

	*lo = *hi = 0;
	for (int64_t i = first, any = 0; i < last; i++) {
		int64_t step, move;
		Taps t = taps_of(
		    op->kind == OP_conv2d_dx, i, x->axis[2].n, w->axis[2].n, stride[0], pad[0], dil[0], &step, &move);
		int64_t end = t.at + (t.count - 1) * move, from = t.at < end ? t.at : end, to = t.at < end ? end : t.at;

		if (!t.count)
			continue;
		*lo = any && *lo < from ? *lo : from;
		*hi = any && *hi > to + 1 ? *hi : to + 1;
		any = 1;
	}
}

/* An odd number of lines: a pixel's vectors of channels stand in different sets of the L1 cache. */
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

/* Images whose input rows, as many as the filter has, take STRIP_BYTES at most. */
static int
strip_of(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]), *w = weights_of(g, op);
	int64_t reach = (w->axis[2].n - 1) * attr_ints(op, A_dilation, NULL)[0] + 1,
	        rows = reach < x->axis[2].n ? reach : x->axis[2].n;
	int64_t fit = STRIP_BYTES / (rows * x->axis[3].n * x->axis[1].n * dtype_info[x->dtype].bytes), n = x->axis[0].n;

	if (fit < 1)
		fit = 1;
	return (int)(fit < n ? ceil_div(n, ceil_div(n, fit)) : n);
}

/* Input rows that `rows` rows of the result meet, beginning at a multiple of that: the most. */
int64_t
depthwise_band_rows(const Graph *g, const Op *op, int64_t rows)
{
	const Type *x = val_type(g, op->in[0]), *w = weights_of(g, op), *o = val_type(g, op->out[0]);
	int64_t most = 1, lo, hi;

	for (int64_t first = 0; first < o->axis[2].n; first += rows) {
		depthwise_band_range(
		    op, x, w, first, first + rows < o->axis[2].n ? first + rows : o->axis[2].n, &lo, &hi);
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
 * caches: a large tensor and a small filter wait for memory, which is read best in the order in which it lies. */
static bool
band_pays(const Graph *g, const Op *op)
{
	int64_t taps = weights_of(g, op)->axis[2].n;

	return taps >= 2 * attr_ints(op, A_stride, NULL)[0] &&
	    (taps >= LARGE_FILTER || type_bytes(val_type(g, op->in[0])) <= CACHE_BYTES);
}

/* Rows, images and channels of a task. */
static void
choose_task(const Graph *g, const Op *op, const DepthLanes *l, DepthParams *p)
{
	const Type *o = val_type(g, op->out[0]);
	int64_t taps = weights_of(g, op)->axis[2].n;

	p->band = band_pays(g, op);
	p->strip = 1;
	p->rows = (int)o->axis[2].n;
	while (p->band && band_bytes(g, op, l, p) > BAND_BYTES) {
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
		if (band_bytes(g, op, l, &more) > BAND_BYTES || tasks_of_params(g, op, &more) < 2 * TASKS)
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

	if (p.lanes == 16 && weights_of(g, op)->axis[0].n <= 8 && val_type(g, op->in[0])->axis[1].n <= 8)
		p.lanes = 8;
	DepthLanes l = depthwise_lanes(g, op, &p);

	p.strip = strip_of(g, op);
	if (op->kind == OP_conv2d_dw) {
		p.cols = cols_of(op, val_type(g, op->in[1])->axis[3].n, a->vector_bytes);
		depthwise_dw_params(g, op, &l, &p);
		return p;
	}
	p.cols = cols_of(op, o->axis[3].n, a->vector_bytes);
	p.chunk = (int)round_up(groups * l.out, l.whole);
	choose_task(g, op, &l, &p);
	int64_t pixels = tile_pixels(g, op, &p),
	        window = p.band ? depthwise_band_rows(g, op, 1) * val_type(g, op->in[0])->axis[3].n : 0;

	p.images = (int)(pixels >= TILE_ROWS ? 1 : ceil_div(TILE_ROWS, pixels));
	p.images = p.images < p.strip ? p.images : p.strip;
	int64_t block = (p.band ? CORE_BYTES : TILE_BYTES) / (p.images * (pixels + window) * p.lanes * 4) * l.whole;

	p.block = (int)(block < l.whole ? l.whole : block < p.chunk ? block : p.chunk);
	return p;
}

const char *
depthwise_text(Arena *a, const Op *op, const DepthParams *p)
{
	if (op->kind == OP_conv2d_dw)
		return arena_printf(a, "depthwise{cols=%d,parts=%d,strip=%d,chunk=%d,lanes=%d}", p->cols, p->parts,
		    p->strip, p->chunk, p->lanes);
	return arena_printf(a, "depthwise{cols=%d,images=%d,block=%d,rows=%d,strip=%d,chunk=%d,band=%d,lanes=%d}",
	    p->cols, p->images, p->block, p->rows, p->strip, p->chunk, p->band, p->lanes);
}

bool
depthwise_parse(const char *text, DepthParams *p)
{
	*p = (DepthParams){0};
	if (sscanf(text, "depthwise{cols=%d,parts=%d,strip=%d,chunk=%d,lanes=%d", &p->cols, &p->parts, &p->strip,
	        &p->chunk, &p->lanes) == 5)
		return true;
	*p = (DepthParams){0};
	return sscanf(text, "depthwise{cols=%d,images=%d,block=%d,rows=%d,strip=%d,chunk=%d,band=%d,lanes=%d", &p->cols,
	           &p->images, &p->block, &p->rows, &p->strip, &p->chunk, &p->band, &p->lanes) == 8;
}

/* Text may be anybody's. */
bool
depthwise_fits(const Graph *g, const Op *op, const DepthParams *p, const Arch *a, Arena *tmp, const char *text)
{
	DepthParams d = depthwise_params(g, op, a);
	int64_t whole = depthwise_lanes(g, op, &d).whole, stride = attr_ints(op, A_stride, NULL)[1];
	bool dw = op->kind == OP_conv2d_dw;

	if (strcmp(depthwise_text(tmp, op, p), text) || p->lanes != d.lanes || p->cols < 1 || p->cols > DEPTH_COLS ||
	    p->strip < 1 || p->chunk < whole || p->chunk % whole)
		return false;
	if (dw)
		return p->parts > 0 && p->parts <= val_type(g, op->in[1])->axis[2].n;
	return p->block >= whole && p->block % whole == 0 && p->images > 0 && p->rows > 0 &&
	    (p->band == 0 || p->band == 1) && (op->kind != OP_conv2d_dx || p->cols % stride == 0);
}

/* Weights by lanes, [r][s][j][channel], where they do not lie so. */
int64_t
depthwise_packed(const Graph *g, const Op *op)
{
	const Type *w = weights_of(g, op);

	if (op->kind != OP_conv2d_dx || (w->axis[1].n == 1 && w->axis[0].n == attr_int(op, A_groups)))
		return 0;
	return w->axis[0].n * w->axis[1].n * w->axis[2].n * w->axis[3].n * 4;
}

/* Tasks that keep a state of the epilogue's reductions. */
int64_t
depthwise_pieces(const Graph *g, const Op *op, const DepthParams *p)
{
	const Type *o = val_type(g, op->out[0]);

	return ceil_div(o->axis[0].n, p->strip) * ceil_div(o->axis[2].n, p->rows);
}

int64_t
depthwise_group_workspace(const Graph *g, int group, const Op *op, const DepthParams *p)
{
	int64_t n = op->kind == OP_conv2d_dw ? depthwise_dw_workspace(g, op, p) : depthwise_packed(g, op), states = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *x = &g->op.at[i];

		if (!x->dead && x->group == group && op_info[x->kind].red >= 0)
			states += epilogue_workspace(g, x, depthwise_pieces(g, op, p));
	}
	return states ? align64(n) + states : n;
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
	return align64(tile_pixels(g, op, p) * p->images * depthwise_tile_line(l, p) * 4 + p->lanes * 4);
}

int64_t
depthwise_scratch(const Graph *g, const Op *op, const DepthParams *p)
{
	DepthLanes l = depthwise_lanes(g, op, p);

	return op->kind == OP_conv2d_dw ? 0
	                                : depthwise_tile_bytes(g, op, &l, p) + (p->band ? band_bytes(g, op, &l, p) : 0);
}

void
depthwise_prologue(const Graph *g, const Op *op, int k, const Arch *a, Prologue *r)
{
	const Type *x = val_type(g, op->in[0]), *w = weights_of(g, op),
	           *gr = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	const int64_t *stride = attr_ints(op, A_stride, NULL);
	double cols = cols_of(op, gr->axis[3].n, a->vector_bytes);
	double span = (double)((w->axis[3].n - 1) * attr_ints(op, A_dilation, NULL)[1]);
	double machine = 150.0 / 45; /* operations in the time of a byte: Target.map_rate, memory_rate */
	double bytes =
	    (double)(type_elements(x) * dtype_info[x->dtype].bytes + type_elements(gr) * dtype_info[gr->dtype].bytes);
	DepthParams p = depthwise_params(g, op, a);

	if (op->kind != OP_conv2d_dw && k == 1) {
		r->why = "the kernel reads the weights again for every pixel";
		return;
	}
	if (p.band)
		r->times = (double)(depthwise_band_rows(g, op, p.rows) * ceil_div(gr->axis[2].n, p.rows)) /
		    (double)x->axis[2].n;
	else if (op->kind == OP_conv2d_dw && k == 1)
		r->times = 1;
	else if (op->kind == OP_conv2d_dx)
		r->times = (double)w->axis[2].n * (cols + span) / cols;
	else
		r->times =
		    (double)w->axis[2].n * (cols * (double)stride[1] + span) / (cols * (double)(stride[0] * stride[1]));
	r->spare = bytes * machine - op_flops(g, op) / 2;
	if (r->spare < 0)
		r->spare = 0;
}
