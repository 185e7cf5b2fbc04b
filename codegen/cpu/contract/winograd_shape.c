/* winograd_shape.c: a convolution by Winograd's algorithm: its tiles, and what of them a thread's memory holds.
 *
 * In: the group's contraction, its parameters.   Out: Shape; bytes between points; images and tiles of a block. */
#include "winograd.h"

/* Taps of a part of a filter: those that cost the fewest products, of these the fewest parts. */
static int
part_of(int filter, int span)
{
	int best = 2;

	for (int taps = 3; taps < span; taps++)
		/* parts for each pixel of a tile */
		if (ceil_div(filter, taps) * (span + 1 - best) <= ceil_div(filter, best) * (span + 1 - taps))
			best = taps;
	return best;
}

int
winograd_taps_met(const Window *at, int i)
{
	return (int)ceil_div(at->k[i], at->stride[i]);
}

bool
winograd_phased(const Window *at, int i)
{
	return at->k[i] == 3 && at->stride[i] == 2 && at->dilation[i] == 1;
}

/* Filters that a stride makes of one. */
static int
strides(const Side *s)
{
	return s->stride < s->filter ? (int)s->stride : s->filter;
}

/* Filter i of those that a stride makes, those of more taps first: its taps are i, i + stride .., on as many pixels of
 * those that lie stride apart; in the gradient in the image it makes such pixels, of neighbours. */
Phase
winograd_phase(const Side *s, int i)
{
	if (s->phases == 1)
		return (Phase){s->taps, 0, 1, s->span, 0, 0, 1, 0, 1};

	int by = (int)s->by, tile = s->back ? s->tile / by : s->tile, point = 0;
	int taps = (int)ceil_div(s->filter - i, by), turn = (int)(((i - s->pad) % by + by) % by);

	for (int k = 0; k < i; k++)
		point += tile + (int)ceil_div(s->filter - k, by) - 1;
	if (!s->back)
		return (Phase){taps, i, by, tile + taps - 1, point, i, by, 0, 1};
	int first = (int)((turn + s->pad) / by) - (taps - 1);

	return (Phase){taps, i + by * (taps - 1), -by, tile + taps - 1, point, first + (int)s->before, 1, turn, by};
}

/* A tile of all phases. */
static void
phases_of(Side *s)
{
	enum { TILE = 4 };
	int by = (int)s->by;

	s->phases = by;
	s->turns = s->parts = 1;
	s->taps = s->filter;
	s->step = s->move = 1;
	s->tile = s->back ? by * TILE : TILE;
	s->before = s->back ? 0 : s->pad;
	s->taken = 0;
	for (int i = 0; i < by; i++) {
		Phase f = winograd_phase(s, i);

		if (f.pixel < 0) /* of those cut for the first pixels that are made */
			s->before -= f.pixel;
	}
	for (int i = 0; i < by; i++) {
		Phase f = winograd_phase(s, i);
		int past = f.pixel + (f.points - 1) * f.pixel_step + 1;

		s->span = f.point + f.points;
		s->kinds = f.point + (f.taps == 1 ? 1 : f.points);
		s->taken = past > s->taken ? past : s->taken;
	}
}

/* Tap i of a part, among all; outside of these: there is none. */
static int64_t
tap_along(const Side *s, int turn, int part, int i)
{
	if (s->phases > 1)
		return i;
	if (s->back)
		return (turn + s->pad) % s->turns + (int64_t)s->turns * (s->met - 1 - part * s->taps - i);
	return (part / strides(s) * s->taps + i) * s->stride + part % strides(s);
}

int64_t
winograd_shift(const Side *s, int part)
{
	return s->back ? part * s->taps * s->move : tap_along(s, 0, part, 0) * s->apart;
}

/* Counted by taps: of the larger image's pixel o * stride - pad + tap * apart, where o is one of the smaller. */
int64_t
winograd_inside(const Side *s)
{
	int64_t small = s->back ? s->in : s->out, large = s->back ? s->out : s->in, n = 0;

	for (int64_t tap = 0; tap < s->filter; tap++) {
		int64_t before = s->pad - tap * s->apart, end = large + before;
		int64_t first = before > 0 ? ceil_div(before, s->by) : 0, past = end > 0 ? ceil_div(end, s->by) : 0;

		past = past < small ? past : small;
		n += past > first ? past - first : 0;
	}
	return n;
}

static Side
side_of(int64_t in, int64_t out, const Window *at, int i, bool back, int span)
{
	int filter = (int)at->k[i], met = winograd_taps_met(at, i);
	int64_t apart = filter > 1 ? at->dilation[i] : 1;
	bool phased = span == STRIDED_SPAN && winograd_phased(at, i);
	Side s = {.in = in, .out = out, .pad = at->pad[i], .filter = filter, .met = met, .back = back};

	if (span == STRIDED_SPAN)
		span = SPAN;
	s.by = at->stride[i];
	s.apart = apart;
	s.turns = back ? (int)s.by : 1;
	s.phases = 1;
	s.stride = back ? 1 : s.by;
	s.step = s.turns > 1 ? s.turns : apart;
	s.move = apart * s.stride;
	s.span = s.taken = s.kinds = met == 1 ? 1 : span;
	s.taps = met == 1 ? 1 : part_of(met, span);
	s.tile = s.span + 1 - s.taps;
	s.parts = strides(&s) * (int)ceil_div(met, s.taps);
	s.before = back && s.turns == 1 ? apart * (filter - 1) - s.pad : s.pad;
	if (phased)
		phases_of(&s);
	/* whole runs of tiles that lie between each other, and of the last one those that have a pixel */
	int64_t run = s.tile * s.step, left = out % run;

	s.tiles = s.turns > 1 ? s.turns * ceil_div(out, run) : out / run * s.step + (left < s.step ? left : s.step);
	return s;
}

Shape
winograd_shape(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *x = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	Window at = window_of(g, op);
	Shape s = {.weights = prologue_made(g, op, 1) ? DT_f32 : (DType)val_type(g, op->in[1])->dtype,
	           .dw = op->kind == OP_conv2d_dw,
	           .transposed = op->kind == OP_conv2d_dx};

	s.rounded = !s.dw && s.weights != (DType)val_type(g, op->in[1])->dtype ? (DType)val_type(g, op->in[1])->dtype
	                                                                       : DT_none;
	if (s.dw)
		o = val_type(g, op->in[1]);
	s.n = x->axis[0];
	s.C = x->axis[1].n, s.K = o->axis[1].n;
	for (int i = 0; i < 2; i++)
		s.side[i] = side_of(x->axis[2 + i].n, o->axis[2 + i].n, &at, i, s.transposed, p->span ? p->span : SPAN);
	s.filter = s.side[0].filter * s.side[1].filter;
	s.parts = s.side[0].parts * s.side[1].parts;
	s.depth = s.parts * s.C;
	s.taps = s.side[0].taps * s.side[1].taps;
	s.tile = s.side[0].tile * s.side[1].tile;
	s.points = s.side[0].span * s.side[1].span;
	s.kinds = s.side[0].kinds * s.side[1].kinds;
	s.phased = s.kinds < s.points;
	s.turns = s.side[0].turns * s.side[1].turns;
	s.tiles = s.side[0].tiles * s.side[1].tiles;
	s.each = s.tiles / s.turns;
	s.rows = s.tiles * s.n.n;
	return s;
}

int
winograd_tap(const Shape *s, int turn, int part, int i)
{
	const Side *rows = &s->side[0], *columns = &s->side[1];
	int64_t row = tap_along(rows, turn / columns->turns, part / columns->parts, i / columns->taps),
	        column = tap_along(columns, turn % columns->turns, part % columns->parts, i % columns->taps);
	bool is = row >= 0 && column >= 0 && row < rows->filter && column < columns->filter;

	return is ? (int)(row * columns->filter + column) : -1;
}

/* Bytes from one point to the next of `count` elements each. Not their size: 36 streams at powers of two would meet in
 * one set of each cache. */
int64_t
winograd_point(int64_t count)
{
	return F32(count) + 256;
}

/* Of the weights: in panels, or as the gradient lies in memory. */
int64_t
winograd_weights_point(const Shape *s, const GemmParams *p)
{
	int64_t nr = (int64_t)p->nv * p->lanes;

	return winograd_point(s->dw ? s->depth * s->K : winograd_panel_rows(s, p->lanes) * ceil_div(s->K, nr) * nr);
}

int64_t
winograd_panel_rows(const Shape *s, int w)
{
	return ceil_div(s->depth, w) * w;
}

V
winograd_kind_at(Emit *e, const Shape *s, V point)
{
	const Side *rows = &s->side[0], *columns = &s->side[1];

	if (!s->phased)
		return point;
	V row = i_min_k(e, i_div_k(e, point, columns->span), rows->kinds - 1),
	  column = i_min_k(e, i_rem_k(e, point, columns->span), columns->kinds - 1);

	return i_add(e, i_mul_k(e, row, columns->kinds), column);
}

/* At all points, of all turns. */
static int64_t
weights_bytes(const Shape *s, const GemmParams *p)
{
	return s->turns * s->kinds * winograd_weights_point(s, p);
}

/* Rows, images of tiles, whose elements at the points and products of a usual panel fit L2. */
static int64_t
block_rows(const Graph *g, const Shape *s, const GemmParams *p)
{
	int64_t panel = machine_of(g)->vector_bytes == 64 ? 64 : 16, nr = s->K < panel ? s->K : panel;

	return machine_of(g)->budget.l2 / F32(s->points * (s->depth + nr));
}

/* Tiles of a block that has all images of each, where there are few images and L3 keeps the weights, which each block
 * reads; 1: no more. Of the shape and the machine alone; a tile's images are added up together, whatever stands beside
 * it. */
int64_t
winograd_block_tiles(const Graph *g, const Shape *s, const GemmParams *p)
{
	enum { TASKS = 8 };
	int64_t n = s->n.n, most = s->tiles / TASKS, tiles = block_rows(g, s, p) / n;

	if (s->dw || n >= FEWEST || p->blocks)
		return 1;
	if (most > s->each)
		most = s->each;
	if (tiles > most)
		tiles = most;
	bool few = tiles * n < FEWEST || weights_bytes(s, p) > machine_of(g)->budget.l3 / 3;

	return few ? 1 : tiles;
}

/* Images of a block of winograd_block_tiles' tiles; 0: too few to pay. Of the shape and the machine alone: images of a
 * block are added up together. */
int64_t
winograd_block(const Graph *g, const Shape *s, const GemmParams *p)
{
	int64_t most = block_rows(g, s, p);
	int64_t blocks = ceil_div(s->n.n, most < 1 ? 1 : most), images = ceil_div(s->n.n, blocks);

	if (p->blocks)
		return ceil_div(s->n.n, p->blocks);
	if (winograd_block_tiles(g, s, p) > 1)
		return s->n.n;
	return s->dw || images < FEWEST || images < s->n.n / 8 ? 0 : images;
}

Shape
winograd_split(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_shape(g, op, p);

	s.block = winograd_block(g, &s, p);
	s.split = s.block && !s.n.mul ? ceil_div(s.n.n, s.block) : 1;
	s.together = winograd_block_tiles(g, &s, p);
	s.w = p->lanes;
	return s;
}

WinogradRegions
winograd_workspace(const Shape *s, const GemmParams *p)
{
	Layout l = {.unit = 64}; /* lines: the tiles may be stored past the caches */
	WinogradRegions r = {.weights = layout_take(&l, weights_bytes(s, p))};

	r.tiles = layout_take(&l, s->block ? 0 : s->points * winograd_point(s->rows * s->depth));
	r.products = layout_take(&l, s->block ? 0 : s->points * winograd_point(s->rows * s->K));
	r.bytes = l.bytes;
	return r;
}

WinogradRegions
winograd_memory(const Shape *s, const GemmParams *p)
{
	Layout l = {.unit = 4};
	int64_t rows = s->block * s->together;
	WinogradRegions r = {0};

	if (!rows)
		return r;
	r.tiles = layout_take(&l, s->points * winograd_point(rows * s->depth));
	r.products = layout_take(&l, s->points * winograd_point(rows * p->nv * p->lanes));
	r.bytes = l.bytes;
	return r;
}
