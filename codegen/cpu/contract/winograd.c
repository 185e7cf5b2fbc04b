/* winograd.c: convolutions in all three directions by Winograd's algorithm. A side has 6 points, F(4x4, 3x3), F(2x2,
 * 5x5): a quarter of the multiplications, 9 of 25. Filters of one row or column have 8, F(1x4, 1x5): 2 of 5; of few
 * pixels and a filter of 3x3 that is kept, 4, F(2x2, 3x3). Those of 3x3 with a stride of 2 have 9, F(4x4, 3x3) too:
 * 9 of 16. Dilations, other strides and longer filters: struct Side.
 *
 * In: a group whose contraction is conv2d, conv2d.dx or conv2d.dw in HWNC layout, a vector of channels at least
 * (why_not).
 * Operands of 16 bits are widened as they are loaded, all sums are f32.
 * Out: kernels for the transforms of weights and of input tiles (6x6 pixels, every 4 or 2), 36 matrix products, and
 * the transform back with the group's epilogue. A tile of pixels is a plane of n * C elements for each of its pixels,
 * so transforms are loops over planes and the products' rows are (tile, image). An operand that the kernel makes
 * (prologue.c) is made as its tiles are cut. Workspace: [36][C][K] weights in panels, [36][rows][C] input,
 * [36][rows][K] products; the last two only where a block of a tile's images, of several tiles where images are few,
 * does not fit the L2 (winograd_shape.c). Weights at the points and sums of one block of rows, written once, go past
 * the caches from L2's size on (pack_streams).
 * The gradient in the weights is the forward transform transposed: both operands are transformed, 36 products sum
 * over all rows, and the transform of the weights, transposed, gives the taps.
 * Source: Lavin and Gray 2016, arXiv:1509.09308. Points 0, +-3/4, +-3/2, infinity instead of their 0, +-1, +-2: every
 * constant of the data's transform is exact, and rounding errors are half as large (Barabasz et al. 2020,
 * arXiv:1803.10986 on the choice of points). The 8 points are 0, +-1/2, +-1, +-2, infinity: of fourteen such sets
 * tried, sums over 128 channels had the smallest errors, 8 to 10 units of 2^-23 for 3 to 7 taps (root mean square; the
 * 6 points along one side 5.5, direct sums 3 to 4.5). The 5 points of two taps, those of a stride, are +-1/2, +-5/4,
 * infinity: 4.5 units with both sides, the fewest of fourteen sets.
 * Error: held to the bounds of all kernels (tests/cpu): root mean square 16 * 2^-23 of the results', 64 * 2^-23 of the
 * largest at most. Sums over rows of tiles are made of blocks of SUM_BLOCK rows, or the transform back, which takes
 * differences of large sums, would show their rounding; those over channels of CHANNEL_BLOCK. */
#include "winograd.h"
#include <math.h>

/* ---------------------------------------------------------------- memory */
static int64_t
pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_split(g, op, p);

	return s.tiles * s.split;
}

/* Of the workspace, with the weights that may be kept. */
static int64_t
all_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_split(g, op, p);

	return winograd_workspace(&s, p).bytes;
}

static int64_t
weights_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_split(g, op, p);

	return s.dw ? 0 : winograd_workspace(&s, p).tiles;
}

static int64_t
workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	return all_bytes(g, op, p) - weights_bytes(g, op, p);
}

static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_split(g, op, p);

	return winograd_memory(&s, p).bytes;
}

static double
loads(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	Shape s = winograd_shape(g, op, p);
	double times = s.parts * s.turns; /* each part cuts every stride-th pixel, each turn all */

	for (int i = 0; i < 2; i++) {
		const Side *b = &s.side[i];
		int64_t next = b->phases > 1 && b->back ? b->tile / b->phases : b->tile * b->stride;

		times *= (double)b->taken / (double)next; /* pixels of a tile, and from it to the next */
	}
	return op->kind == OP_conv2d_dw && k == 1 ? 1 : times;
}

/* Parts, turns or phases. */
static bool
several(const Shape *s)
{
	return s->parts * s->turns > 1 || s->phased;
}

/* What weights take to be made, in FMAs: some 400 each of 36 points. */
static double
taps_work(const Shape *s)
{
	return (double)(s->turns * s->depth * s->K) * 400 * s->kinds / (SPAN * SPAN);
}

static double
work(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_shape(g, op, p);
	double products = 2.0 * s.points * (double)s.rows * (double)(s.depth * ceil_div(s.K, 8) * 8);

	/* transforms, in FMAs that would take their time: some 300 for each element of a tile of 36 points; of few
	 * points, whose weights are kept, 100 for each element */
	if (p->span == SHORT_SPAN)
		return products + (double)s.rows * (double)(s.C + s.K) * 100;
	const Budget *b = &machine_of(g)->budget;
	double of_36 = 1.0 / (SPAN * SPAN), weights = (double)(s.turns * s.depth * s.K), other = 0;
	double pixels = (double)s.rows * (double)(s.depth + s.K) * 300 * s.points * of_36,
	       taps = taps_work(&s);

	/* Of several parts or phases (measured on Zen 4, 16 to 512 channels): the products' few rows reach nine tenths
	 * of the rate, pixels are cut several times, for weight gradients by way of memory, weights that L2 does not
	 * hold are written and read; of both sides, sums over rows of a vector's width reach 0.4 of the rate, those of
	 * the direct kernel all of it. Of phases, whose tiles have 81 points, transforms wait for memory, and for more
	 * registers in vectors of 8; tiles that L3 does not hold are written and read; sums over rows in vectors of 8
	 * reach half of the rate. */
	if (several(&s)) {
		bool narrow = s.dw && s.K <= p->lanes && p->span != LONG_SPAN;

		products *= narrow ? 2.5 : !s.dw || !s.phased ? 1.1 : p->lanes < 16 ? 2 : 1.3;
		pixels *= (s.dw ? 3 : 2) * (!s.phased ? 1 : p->lanes < 16 && s.transposed ? 3 : 1.5);
		taps *= s.dw ? 3 : 2;
		if (4 * s.kinds * weights > (double)b->l2)
			other = 2 * 4 * s.kinds * weights * b->rates.products / b->rates.bytes;
		double tiles = 4.0 * s.points * (double)s.rows * (double)(s.depth + s.K);

		if (s.phased && !s.dw && tiles > (double)b->l3 && !winograd_block(g, &s, p))
			other += 2 * tiles * b->rates.products / b->rates.bytes;
	}
	return products + pixels + taps + other;
}

/* The direct kernel's products; all: those of the border's zeros, which it leaves out, too. */
static double
direct_products(const Shape *s, bool all)
{
	double made = (double)(s->side[0].out * s->side[1].out);

	if (s->transposed)
		made /= (double)(s->side[0].by * s->side[1].by);
	double taps = all ? s->filter * made
	                  : (double)(winograd_inside(&s->side[0]) * winograd_inside(&s->side[1]));

	return 2.0 * taps * (double)s->n.n * (double)(s->C * s->K);
}

/* What Winograd is compared with: the border's zeros left out, half of what would be multiplied of images
 * of 3x3 pixels, a quarter of 5x5. Of few images borders, as wide as taps are apart, are tiles of their own that are
 * not full, and save nothing; what tiles of 2x2 and pairs of 16 bits cost was measured beside all taps. */
static double
direct_work(const Shape *s, bool pairs)
{
	enum { FULL = 8 };
	bool small = false;
	int64_t apart = s->side[0].step > s->side[1].step ? s->side[0].step : s->side[1].step;

	for (int i = 0; i < 2; i++)
		small |= s->side[i].taps > 1 && s->side[i].tile < 3;
	return direct_products(s, pairs || small || s->n.n * apart < FULL);
}

/* ---------------------------------------------------------------- the choice */
/* More points save more products and cost more bits, of both sides together; of one alone 8 cost no more than 36 do. */
static int
usual_span(const Window *at)
{
	if (winograd_taps_met(at, 0) == 1 || winograd_taps_met(at, 1) == 1)
		return LONG_SPAN;
	return winograd_phased(at, 0) || winograd_phased(at, 1) ? STRIDED_SPAN : SPAN;
}

/* Of so many points a row: the products, while weights that are kept come from memory. */
static double
seconds_of(const Graph *g, const Op *op, GemmParams p, int span)
{
	const Rates *r = &machine_of(g)->budget.rates;

	p.span = span;
	Shape s = winograd_shape(g, op, &p);
	double weights = (double)s.kinds * (double)(s.depth * s.K);

	return fmax(2 * weights * (double)s.rows / r->products, 4 * weights / r->bytes);
}

/* Of few pixels the weights of 36 points take longer to come than the products at 16 points, of more tiles. Not
 * where weights stay in L2 and its three kernels are what costs, nor where they take longer than direct products. */
static bool
short_span_pays(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p, int64_t bytes)
{
	const Budget *b = &machine_of(g)->budget;
	Window at = window_of(g, op);

	return cx->prepacked && op->kind != OP_conv2d_dw && usual_span(&at) == SPAN && at.k[0] < SHORT_SPAN
	       && at.k[1] < SHORT_SPAN && at.stride[0] * at.stride[1] == 1 && bytes >= b->l2
	       && seconds_of(g, op, *p, SHORT_SPAN) < seconds_of(g, op, *p, SPAN)
	       && (double)bytes / b->rates.bytes < op_flops(g, op) / b->rates.products;
}

static bool
offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	Window at = window_of(g, op);
	const Algo *row = p->algo;

	(void)best;
	*p = gemm_params(g, op, cx->arch->vector_bytes);
	p->algo = row;
	p->kept = cx->prepacked;
	if (winograd_taps_met(&at, 0) * winograd_taps_met(&at, 1) == 1)
		return false;
	p->span = usual_span(&at) == SPAN ? 0 : usual_span(&at);
	Shape s = winograd_shape(g, op, p);
	int64_t fewer = F32(SHORT_SPAN * SHORT_SPAN * s.depth * s.K);

	if (short_span_pays(g, op, cx, p, fewer)) {
		p->span = SHORT_SPAN;
		gemm_few_rows(g, p, fewer);
	}
	bool whole = s.C % 8 == 0 && s.K % 8 == 0;

	if (!whole && (s.C < FEWEST || s.K < FEWEST))
		return false;
	/* measured on Zen 4, 24 to 328 channels: from these numbers on whole vectors are 1.0 to 1.3 times as fast */
	bool few = s.K < (s.dw ? 48 : 128);

	if (p->lanes == 16 && (whole ? s.C % 16 || s.K % 16 : ceil_div(s.K, 8) % 2) && gemm_halves(g) && few)
		gemm_halve(p, s.K);
	if (p->span != SHORT_SPAN && op->kind != OP_conv2d_dw)
		p->ahead = gemm_ahead(g, p, s.rows, F32(s.kinds * s.depth * s.K));
	p->next = op->kind != OP_conv2d_dw && !p->ahead && machine_of(g)->budget.next
	          && F32(s.kinds * s.depth * s.K) >= machine_of(g)->budget.l2;
	return true;
}

static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	/* of the workspace, a share of the program's memory, far beyond any cache; of parts and turns, each with code
	 * of its own */
	enum { LARGEST = 384 << 20, PARTS_MOST = 64 };

	if (op->kind == OP_matmul)
		return "Winograd is for convolutions";
	Conv c = conv_of(g, op);

	if (winograd_taps_met(&c.at, 0) * winograd_taps_met(&c.at, 1) == 1)
		return "no pixel meets two taps of its own";
	if (p->span == STRIDED_SPAN && usual_span(&c.at) != STRIDED_SPAN)
		return arena_printf(g->arena, "%d points a side are for filters of 3 taps with a stride of 2", p->span);
	if (p->span == LONG_SPAN && usual_span(&c.at) != LONG_SPAN)
		return arena_printf(g->arena, "%d points a side are for filters of one row or column", p->span);
	if (c.groups > 1)
		return "the channels are in groups";
	if (c.at.stride[0] * c.at.stride[1] > 1 && c.at.dilation[0] * c.at.dilation[1] > 1)
		return "it has both a stride and a dilation";
	for (int i = 0; i < 2; i++)
		if (c.at.pad[i] > c.at.dilation[i] * (c.at.k[i] - 1))
			return "the padding is as wide as the filter";
	int lanes = cx->arch->vector_bytes / 4;

	if (p->span == SHORT_SPAN && op->kind == OP_conv2d_dw)
		return "4 points of a row are for sums forward and in the image";
	Shape s = winograd_shape(g, op, p);

	if (s.parts * s.turns > PARTS_MOST)
		return arena_printf(g->arena, "the filter would be cut into %d parts, more than %d", s.parts * s.turns,
		                    PARTS_MOST);
	for (int i = 0; i < 2; i++)
		if (s.side[i].out % s.side[i].turns && s.side[i].out / s.side[i].turns % s.side[i].tile == 0)
			return "tiles of some turns would have no pixels";
	if (p->lanes != lanes && (lanes != 16 || p->lanes != 8))
		return arena_printf(g->arena, "its transforms work on vectors of %d, and not of %d", lanes, p->lanes);
	if (s.C < p->lanes || s.K < p->lanes)
		return arena_printf(g->arena, "%lld and %lld channels fill no vector of %d", (long long)s.C,
		                    (long long)s.K, p->lanes);
	if (p->blocks && scratch(g, op, p) > 8 * machine_of(g)->budget.l2)
		return "a block takes more than eight times the L2 of each thread";
	if (all_bytes(g, op, p) > LARGEST)
		return arena_printf(
		        g->arena, "its workspace would take %lld MiB, more than %d: its tiles would go through memory",
		        (long long)(all_bytes(g, op, p) >> 20), LARGEST >> 20);
	return NULL;
}

/* With its workspace's way through memory. */
static double
work_and_memory(const Graph *g, const Op *op, const GemmParams *p)
{
	const Rates *r = &machine_of(g)->budget.rates;
	double byte_costs = r->products / r->bytes; /* operations in the time that memory takes for a byte */

	return work(g, op, p) + byte_costs * 2.0 * (double)all_bytes(g, op, p);
}

/* In operations of the products that best has: those of 16 bits are twice as fast as those of f32, which it takes.
 * Tiles of 2x2 pixels are nine times what they are cut of, those of 4x4 hardly more than twice. */
static double
work_beside(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	if (engine_pairs(best))
		return 2 * work_and_memory(g, op, p);
	Shape s = winograd_shape(g, op, p);

	return s.points > 4 * s.tile && !s.phased ? work_and_memory(g, op, p) : work(g, op, p);
}

/* It must promise a fifth of the time, a tenth of several parts, whose work says more, as that of phases says all. */
static double
margin(const Shape *s)
{
	return s->phased ? 1 : several(s) ? 1.1 : 1.25;
}

/* Beside pairs of bf16, measured on Zen 4 with 3x3 filters, 32 to 512 channels of 2x2 to 56x56 pixels; of several
 * parts, other filters and other engines as before. */
static bool
measured_beside_pairs(const Shape *s, const GemmParams *p, const GemmParams *best)
{
	return best->engine == ENGINE_PAIRS && !several(s) && p->span != SHORT_SPAN && s->side[0].taps == 3
	       && s->side[1].taps == 3;
}

/* Weights that are kept are read once, from a cache for the most part, and not made; the workspace of few images stays
 * in the caches. Measured with 1, 4 and 16. */
static double
kept_work(const Graph *g, const Op *op, const GemmParams *p)
{
	const double READ = 0.2; /* of the time of a byte of memory */
	const Rates *r = &machine_of(g)->budget.rates;
	Shape s = winograd_shape(g, op, p);
	double bytes = (double)workspace(g, op, p) + READ * (double)weights_bytes(g, op, p);

	return work(g, op, p) - taps_work(&s) + bytes * r->products / r->bytes;
}

/* Of the direct kernel's work. */
static double
share_of(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	Shape s = winograd_shape(g, op, p);

	if (p->kept && measured_beside_pairs(&s, p, best))
		return 2 * kept_work(g, op, p) / direct_products(&s, false);
	return work_beside(g, op, p, best) / direct_work(&s, engine_pairs(best));
}

static double
time_of(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	/* up to these shares of the products without the border's zeros it was as fast as directly, or faster */
	const double OF_GRADIENT = 1.05, OF_KEPT = 1.22;
	Shape s = winograd_shape(g, op, p);
	double share = share_of(g, op, p, best), time = margin(&s) * share;

	if (!measured_beside_pairs(&s, p, best) || (!s.dw && !p->kept))
		return time;
	if (s.dw)
		return fmin(time, work_beside(g, op, p, best) / OF_GRADIENT / direct_products(&s, false));
	return share / OF_KEPT;
}

static const char *
dear(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	Shape s = winograd_shape(g, op, p);
	double direct = direct_work(&s, engine_pairs(best));

	if (!engine_pairs(best) || work(g, op, p) * margin(&s) > direct)
		return arena_printf(g->arena, "transforms cost what the products save: %.2f of the direct work",
			(engine_pairs(best) ? work(g, op, p) : work_beside(g, op, p, best)) / direct);
	return arena_printf(g->arena, "16-bit products are twice as fast as those of f32, which it takes: with its "
	                              "workspace's way through memory %.2f of the direct work",
		share_of(g, op, p, best));
}

static const char *
chosen(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = winograd_shape(g, op, p);

	int tile[2];

	for (int i = 0; i < 2; i++)
		tile[i] = s.side[i].back ? s.side[i].tile / s.side[i].phases : s.side[i].tile;
	return arena_printf(g->arena, "Winograd F(%dx%d, %dx%d)%s%s: %.2f of the direct work with its transforms, "
	                              "%.1f MiB of workspace",
		tile[0], tile[1], s.side[0].taps, s.side[1].taps,
		s.parts > 1 ? arena_printf(g->arena, " of %d parts", s.parts) : "",
		s.phased ? " of stride 2" : "",
		work(g, op, p) / direct_work(&s, false), (double)all_bytes(g, op, p) / 1048576);
}

/* Where a second operand of f32 is rounded: as the weights' tiles are cut (weights_at). */
static bool
rounds(const Graph *g, const Op *op, const GemmParams *p)
{
	(void)g, (void)p;
	return op->kind != OP_conv2d_dw;
}

static PrologueWay
way(const Op *op, int k)
{
	return k == 0 || op->kind == OP_conv2d_dw ? PROLOGUE_TILES : PROLOGUE_COPY;
}

/* A gradient in weights goes through memory. */
static void
facts(const Graph *g, const Op *op, const PlanCx *cx, Facts *f)
{
	(void)cx;
	f->n_images = op->kind == OP_matmul || op->kind == OP_conv2d_dw ? 0 : val_type(g, op->out[0])->axis[0].n;
}

static void
write(const GemmParams *p, Params *q)
{
	q->cpu_winograd.span = p->span ? p->span : SPAN;
	q->cpu_winograd.blocks = p->blocks;
}

static void
read(const Params *q, GemmParams *p)
{
	p->span = q->cpu_winograd.span == SPAN ? 0 : (int)q->cpu_winograd.span;
	p->blocks = q->cpu_winograd.blocks;
}

const Algo algo_winograd = {
	.family = FAMILY_cpu_winograd,
	.doc = "convolutions of several taps by Winograd's algorithm, F(4x4, 3x3), F(2x2, 5x5), F(1x4, 1x5)",
	.ops = {OP_conv2d, OP_conv2d_dx, OP_conv2d_dw},
	.engines = ENGINES_F32,
	.facts = facts,
	.write = write,
	.read = read,
	.offer = offer,
	.why_not = why_not,
	.time = time_of,
	.dear = dear,
	.chosen = chosen,
	.work = work,
	.beaten_by = {[ENGINE_AMX] = "matrix tiles multiply operands of 16 bits many times as fast"},
	.panels = weights_bytes,
	.keeps = true,
	.workspace = workspace,
	.scratch = scratch,
	.pieces = pieces,
	.widens = true,
	.rounds = rounds,
	.way = way,
	.loads = loads,
	.emit = winograd_emit,
};
