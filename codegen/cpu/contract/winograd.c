/* winograd.c: 3x3 convolutions of stride 1 in all three directions by Winograd F(4x4, 3x3): a quarter of the
 * multiplications.
 *
 * In: a group whose contraction is conv2d, conv2d.dx or conv2d.dw in HWNC layout, channels in whole vectors (why_not).
 * Operands of 16 bits are widened as they are loaded, all sums are f32.
 * Out: kernels for the transforms of weights and of input tiles (6x6 pixels, every 4), 36 matrix products, and the
 * transform back with the group's epilogue. A tile of pixels is a plane of n * C numbers for each of its pixels, so
 * transforms are loops over planes and the products' rows are (tile, image). An operand that the kernel makes
 * (prologue.c) is made as its tiles are cut. Workspace: [36][C][K] weights in panels, [36][rows][C] input,
 * [36][rows][K] products; the last two only where a block of a tile's images, of several tiles where images are few,
 * does not fit the L2 (block_images, block_tiles).
 * The gradient in the weights is the forward transform turned round: both operands are transformed, 36 products sum
 * over all rows, and the transform of the weights, transposed, gives the nine taps.
 * Source: Lavin and Gray 2016, arXiv:1509.09308. Points 0, +-3/4, +-3/2, infinity instead of their 0, +-1, +-2: every
 * constant of the data's transform is exact, and rounding errors are half as large (Barabasz et al. 2020,
 * arXiv:1803.10986 on the choice of points).
 * Error: held to the bounds of all kernels (tests/cpu): root mean square 16 * 2^-23 of the results', 64 * 2^-23 of the
 * largest at most. */
#include "algo.h"
#include <string.h>

enum {
	TILE = 4, SPAN = TILE + 2, POINTS = SPAN * SPAN, PLANE_CHUNK = 2048, IMAGES = 4, SUM_BLOCK = 256, SOURCES = 8,
	DEEPEST = 16, AHEAD = 4,
};
#define P1 0.75
#define P2 1.5
#define Q1 (P1 * P1)
#define Q2 (P2 * P2)
#define SCALE1 (1 / (2 * Q1 * (Q1 - Q2)))
#define SCALE2 (1 / (2 * Q2 * (Q2 - Q1)))

/* ---------------------------------------------------------------- one-dimensional transforms */
static V
times(Emit *e, V a, double k)
{
	return LLVMBuildFMul(here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), "");
}

/* a * k + c */
static V
fma_k(Emit *e, V a, double k, V c)
{
	return llvm_fma(e->l, here(e), a, splat(e, LLVMConstReal(e->l->f32, k)), c);
}

static V add(Emit *e, V a, V b) { return LLVMBuildFAdd(here(e), a, b, ""); }
static V sub(Emit *e, V a, V b) { return LLVMBuildFSub(here(e), a, b, ""); }

typedef void Transform(Emit *e, const V *in, V *out);

/* Six pixels to six points: B^T. */
static void
data_points(Emit *e, const V *d, V *r)
{
	V even1 = fma_k(e, d[2], -Q2, d[4]), odd1 = fma_k(e, d[1], -Q2, d[3]), even2 = fma_k(e, d[2], -Q1, d[4]),
	  odd2 = fma_k(e, d[1], -Q1, d[3]);

	r[0] = fma_k(e, d[0], Q1 * Q2, fma_k(e, d[2], -(Q1 + Q2), d[4]));
	r[1] = fma_k(e, odd1, P1, even1);
	r[2] = fma_k(e, odd1, -P1, even1);
	r[3] = fma_k(e, odd2, P2, even2);
	r[4] = fma_k(e, odd2, -P2, even2);
	r[5] = fma_k(e, d[1], Q1 * Q2, fma_k(e, d[3], -(Q1 + Q2), d[5]));
}

/* Three taps to six points: G. */
static void
weight_points(Emit *e, const V *g, V *r)
{
	V even1 = times(e, fma_k(e, g[2], Q1, g[0]), SCALE1), even2 = times(e, fma_k(e, g[2], Q2, g[0]), SCALE2);

	r[0] = times(e, g[0], 1 / (Q1 * Q2));
	r[1] = fma_k(e, g[1], SCALE1 * P1, even1);
	r[2] = fma_k(e, g[1], -SCALE1 * P1, even1);
	r[3] = fma_k(e, g[1], SCALE2 * P2, even2);
	r[4] = fma_k(e, g[1], -SCALE2 * P2, even2);
	r[5] = g[2];
}

/* Six points to four pixels: A^T. */
static void
pixels(Emit *e, const V *m, V *y)
{
	V s1 = add(e, m[1], m[2]), d1 = sub(e, m[1], m[2]), s2 = add(e, m[3], m[4]), d2 = sub(e, m[3], m[4]);

	y[0] = add(e, add(e, m[0], s1), s2);
	y[1] = fma_k(e, d1, P1, times(e, d2, P2));
	y[2] = fma_k(e, s1, Q1, times(e, s2, Q2));
	y[3] = fma_k(e, d1, P1 * Q1, fma_k(e, d2, P2 * Q2, m[5]));
}

/* Four pixels of a gradient to six points: A. */
static void
gradient_points(Emit *e, const V *y, V *r)
{
	V even1 = fma_k(e, y[2], Q1, y[0]), odd1 = times(e, fma_k(e, y[3], Q1, y[1]), P1),
	  even2 = fma_k(e, y[2], Q2, y[0]), odd2 = times(e, fma_k(e, y[3], Q2, y[1]), P2);

	r[0] = y[0];
	r[1] = add(e, even1, odd1);
	r[2] = sub(e, even1, odd1);
	r[3] = add(e, even2, odd2);
	r[4] = sub(e, even2, odd2);
	r[5] = y[3];
}

/* Six points to the gradients of three taps: G^T. */
static void
taps(Emit *e, const V *m, V *g)
{
	V s1 = add(e, m[1], m[2]), d1 = sub(e, m[1], m[2]), s2 = add(e, m[3], m[4]), d2 = sub(e, m[3], m[4]);

	g[0] = fma_k(e, m[0], 1 / (Q1 * Q2), fma_k(e, s1, SCALE1, times(e, s2, SCALE2)));
	g[1] = fma_k(e, d1, SCALE1 * P1, times(e, d2, SCALE2 * P2));
	g[2] = fma_k(e, s1, SCALE1 * Q1, fma_k(e, s2, SCALE2 * Q2, m[5]));
}

/* n x n numbers to m x m: f over columns, then over rows. */
static void
square(Emit *e, Transform *f, int n, int m, const V *in, V *out)
{
	V half[SPAN * SPAN], column[SPAN], r[SPAN];

	for (int j = 0; j < n; j++) {
		for (int i = 0; i < n; i++)
			column[i] = in[i * n + j];
		f(e, column, r);
		for (int i = 0; i < m; i++)
			half[i * n + j] = r[i];
	}
	for (int i = 0; i < m; i++)
		f(e, half + i * n, out + i * m);
}

/* ---------------------------------------------------------------- shapes */
typedef struct Shape {
	Axis n;                  /* images */
	/* what is cut into overlapping tiles, channels that are summed over (of the input, for the weights'
	 * gradient) */
	int64_t H, W, C;
	int64_t OH, OW, K;       /* what is made in tiles of 4x4 (the output's gradient, for the weights') */
	int64_t pad, th, tw;     /* of the overlapping tiles, rows and columns of tiles */
	int64_t rows;            /* of the products, of a full batch */
	bool turned;             /* taps in opposite order, weights transposed: gradient in x */
	bool dw;
	/* type of the numbers in the buffer of weights; what they are rounded to, DT_none: nothing */
	DType weights, rounded;
	/* bands_emit: images of a block, tasks of a tile, each a block (1: one task has all); tiles of a task */
	int64_t block, split, tiles;
	int w;                   /* lanes */
} Shape;

static Shape
shape_of(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	int64_t pad = attr_ints(op, A_pad, NULL)[0];
	Shape s = {.weights = prologue_made(g, op, 1) ? DT_f32 : (DType)val_type(g, op->in[1])->dtype,
	           .dw = op->kind == OP_conv2d_dw,
	           .turned = op->kind == OP_conv2d_dx};

	s.rounded = !s.dw && s.weights != (DType)val_type(g, op->in[1])->dtype ? (DType)val_type(g, op->in[1])->dtype
	                                                                       : DT_none;
	if (s.dw)
		o = val_type(g, op->in[1]);
	s.n = x->axis[0];
	s.C = x->axis[1].n, s.H = x->axis[2].n, s.W = x->axis[3].n;
	s.K = o->axis[1].n, s.OH = o->axis[2].n, s.OW = o->axis[3].n;
	s.pad = s.turned ? 2 - pad : pad;
	s.th = ceil_div(s.OH, TILE), s.tw = ceil_div(s.OW, TILE);
	s.rows = s.th * s.tw * s.n.n;
	return s;
}

/* Bytes from one point to the next of `numbers` each. Not their size: 36 streams at powers of two would meet in one set
 * of each cache. */
static int64_t
point_bytes(int64_t numbers)
{
	return numbers * 4 + 256;
}

/* Of the weights: in panels, or as the gradient lies in memory. */
static int64_t
weights_point(const Shape *s, const GemmParams *p)
{
	int64_t nr = (int64_t)p->nv * p->lanes;

	return point_bytes(s->C * (s->dw ? s->K : ceil_div(s->K, nr) * nr));
}

enum { FEWEST = 16 }; /* rows of a block that pay: each reads all weights */

/* Rows, images of tiles, whose numbers at the points and products of a usual panel fit L2. */
static int64_t
block_rows(const Graph *g, const Shape *s, const GemmParams *p)
{
	int64_t panel = machine_of(g)->vector_bytes == 64 ? 64 : 16, nr = s->K < panel ? s->K : panel;

	return machine_of(g)->budget.l2 / (POINTS * 4 * (s->C + nr));
}

/* Tiles of a block that has all images of each, where there are few images and L3 keeps the weights, which each block
 * reads; 1: no more. Of the shape and the machine alone; a tile's images are added up together, whatever stands beside
 * it. */
static int64_t
block_tiles(const Graph *g, const Shape *s, const GemmParams *p)
{
	enum { TASKS = 8 };
	int64_t n = s->n.n, all = s->th * s->tw, tiles = block_rows(g, s, p) / n;

	if (s->dw || n >= FEWEST || p->blocks)
		return 1;
	if (tiles > all / TASKS)
		tiles = all / TASKS;
	return tiles * n < FEWEST || POINTS * weights_point(s, p) > machine_of(g)->budget.l3 / 3 ? 1 : tiles;
}

/* Images of a block of block_tiles' tiles; 0: too few to pay. Of the shape and the machine alone: images of a block are
 * added up together. */
static int64_t
block_images(const Graph *g, const Shape *s, const GemmParams *p)
{
	int64_t most = block_rows(g, s, p);
	int64_t blocks = ceil_div(s->n.n, most < 1 ? 1 : most), images = ceil_div(s->n.n, blocks);

	if (p->blocks)
		return ceil_div(s->n.n, p->blocks);
	if (block_tiles(g, s, p) > 1)
		return s->n.n;
	return s->dw || images < FEWEST || images < s->n.n / 8 ? 0 : images;
}

static Shape
split_shape(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = shape_of(g, op);

	s.block = block_images(g, &s, p);
	s.split = s.block && !s.n.mul ? ceil_div(s.n.n, s.block) : 1;
	s.tiles = block_tiles(g, &s, p);
	s.w = p->lanes;
	return s;
}

static int64_t
pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = split_shape(g, op, p);

	return s.th * s.tw * s.split;
}

/* Bytes: weights or their gradient at the points, tiles, products (of the weights' gradient: its other operand). */
static int64_t
all_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = shape_of(g, op);
	int64_t tiles = block_images(g, &s, p) ? 0 : point_bytes(s.rows * s.C) + point_bytes(s.rows * s.K);

	return POINTS * (weights_point(&s, p) + tiles);
}

static int64_t
weights_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = shape_of(g, op);

	return s.dw ? 0 : POINTS * weights_point(&s, p);
}

static int64_t
workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	return all_bytes(g, op, p) - weights_bytes(g, op, p);
}

static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Shape s = shape_of(g, op);
	int64_t rows = block_images(g, &s, p) * block_tiles(g, &s, p);

	return rows ? POINTS * (point_bytes(rows * s.C) + point_bytes(rows * p->nv * p->lanes)) : 0;
}

static double
loads(const Op *op, int k)
{
	return op->kind == OP_conv2d_dw && k == 1 ? 1 : (double)POINTS / (TILE * TILE);
}

static double
work(const Graph *g, const Op *op)
{
	Shape s = shape_of(g, op);
	double products = 2.0 * POINTS * (double)s.rows * (double)(s.C * s.K);

	/* transforms, in multiply-adds that would take their time: some 300 for each number of a tile, 400 for each
	 * weight */
	return products + (double)s.rows * (double)(s.C + s.K) * 300 + (double)(s.C * s.K) * 400;
}

static double
direct_work(const Shape *s)
{
	return 2 * 9.0 * (double)(s->n.n * s->OH * s->OW) * (double)(s->C * s->K);
}

/* ---------------------------------------------------------------- the choice */
static bool
offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	const Type *w = val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);
	const Algo *row = p->algo;

	(void)best;
	*p = gemm_params(g, op, cx->arch->vector_bytes);
	p->algo = row;
	if (w->axis[2].n != 3 || w->axis[3].n != 3)
		return false;
	Shape s = shape_of(g, op);

	if (p->lanes == 16 && (s.C % 16 || s.K % 16) && s.C % 8 == 0 && s.K % 8 == 0 && gemm_halves(g))
		gemm_halve(p, s.K);
	return true;
}

static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	enum { LARGEST = 384 << 20 }; /* a share of the program's memory, far beyond any cache */

	if (op->kind == OP_matmul)
		return "Winograd is for convolutions";
	const Type *w = val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL);
	const int64_t *dil = attr_ints(op, A_dilation, NULL);

	if (w->axis[2].n != 3 || w->axis[3].n != 3)
		return "the filter is not 3x3";
	if (gemm_groups(op) > 1)
		return "the channels are in groups";
	if (stride[0] != 1 || stride[1] != 1 || dil[0] != 1 || dil[1] != 1)
		return "stride and dilation are not 1";
	if (pad[0] != pad[1] || pad[0] > 2)
		return "padding differs between the axes or is more than 2";
	Shape s = shape_of(g, op);
	int lanes = cx->arch->vector_bytes / 4;

	if (p->lanes != lanes && (lanes != 16 || p->lanes != 8))
		return arena_printf(g->arena, "its transforms work on vectors of %d, and not of %d", lanes, p->lanes);
	if (s.C % p->lanes || s.K % p->lanes)
		return arena_printf(g->arena, "%lld and %lld channels are no whole vectors of %d", (long long)s.C,
		                    (long long)s.K, p->lanes);
	if (p->blocks && scratch(g, op, p) > 8 * machine_of(g)->budget.l2)
		return "a block takes more than eight times the L2 of each thread";
	if (all_bytes(g, op, p) > LARGEST)
		return arena_printf(
		        g->arena, "its workspace would take %lld MiB, more than %d: its tiles would go through memory",
		        (long long)(all_bytes(g, op, p) >> 20), LARGEST >> 20);
	return NULL;
}

/* Beside 16-bit products, twice as fast as those of f32, which it takes: with its workspace's way through memory. */
static double
work_beside_pairs(const Graph *g, const Op *op, const GemmParams *p)
{
	const Rates *r = &machine_of(g)->budget.rates;
	double byte_costs = r->products / r->bytes; /* operations in the time that memory takes for a byte */

	return 2 * (work(g, op) + byte_costs * 2.0 * (double)all_bytes(g, op, p));
}

/* It must promise a fifth of the time. */
static double
time_of(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	Shape s = shape_of(g, op);

	return 1.25 * (engine_pairs(best) ? work_beside_pairs(g, op, p) : work(g, op)) / direct_work(&s);
}

static const char *
dear(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	Shape s = shape_of(g, op);
	double direct = direct_work(&s);

	if (!engine_pairs(best) || work(g, op) * 1.25 > direct)
		return arena_printf(g->arena, "transforms cost what the products save: %.2f of the direct work",
			work(g, op) / direct);
	return arena_printf(g->arena, "16-bit products are twice as fast as those of f32, which it takes: with its "
	                              "workspace's way through memory %.2f of the direct work",
		work_beside_pairs(g, op, p) / direct);
}

static const char *
chosen(const Graph *g, const Op *op, const GemmParams *p)
{
	return arena_printf(g->arena, "Winograd F(4x4, 3x3): %.2f of the direct work with its transforms, "
	                              "%.1f MiB of workspace",
		work(g, op) / op_flops(g, op), (double)all_bytes(g, op, p) / 1048576);
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

/* ---------------------------------------------------------------- weights */
/* Nine taps of row c (of the summed axis, or turned: of the columns), W neighbours along k, to 36 points; at: of the
 * first tap, in numbers. */
static void
weights_at(Emit *e, const Shape *s, V from, V at, V *u)
{
	V g[9];

	for (int i = 0; i < 9; i++) {
		g[i] = cell_vec(
		        e, load_at(e, from, s->weights,
		                   (Off){.s = i_add(e, at, k64(e, (s->turned ? 8 - i : i) * s->C * s->K)), .c = 1}));
		if (s->rounded != DT_none)
			g[i] = round_half(e, g[i], s->rounded, true);
	}
	square(e, weight_points, 3, SPAN, g, u);
}

/* Panels [point][panel][c][nr]. Task: W rows of a panel. */
static void
weights_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, int dst, GraphKernels *gk)
{
	int w = s->w;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(s->K, nr), point = weights_point(s, p);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "weights", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		V from = buffer(&e, src), to = buffer(&e, dst), tile = NULL, u[POINTS];

		if (s->turned) {
			tile = slot_new(&e, LLVMArrayType2(e.l->f32, (uint64_t)(POINTS * w * w)));
			LLVMSetAlignment(tile, 64);
		}
		V t = loop_open(&e, e.arg_t0, e.arg_t1, 1), panel = i_div(&e, t, k64(&e, s->C / w)),
		  c0 = i_mul(&e, i_rem(&e, t, k64(&e, s->C / w)), k64(&e, w));
		V out = ptr_at(&e, to,
		               i_add(&e, i_mul(&e, panel, k64(&e, s->C * nr * 4)), i_mul(&e, c0, k64(&e, nr * 4))));
		V k0 = i_mul(&e, panel, k64(&e, nr)), columns = i_min(&e, k64(&e, nr), i_sub(&e, k64(&e, s->K), k0));

		if (!s->turned) {
			V c = loop_open(&e, k64(&e, 0), k64(&e, w), 1), k = loop_open(&e, k64(&e, 0), columns, w);

			weights_at(&e, s, from, i_add(&e, i_mul(&e, i_add(&e, c0, c), k64(&e, s->K)), i_add(&e, k0, k)),
			           u);
			for (int i = 0; i < POINTS; i++)
				vec_store(
				        &e,
				        ptr_at(&e, out,
				               i_add(&e,
				                     i_add(&e, i_mul(&e, c, k64(&e, nr * 4)), i_mul(&e, k, k64(&e, 4))),
				                     k64(&e, i * point))),
				        u[i], NULL);
			loop_close(&e);
		} else {
			/* rows of memory are columns here */
			V turn = turn_block(e.l, w), k = loop_open(&e, k64(&e, 0), columns, w),
			  j = loop_open(&e, k64(&e, 0), k64(&e, w), 1);

			weights_at(&e, s, from, i_add(&e, i_mul(&e, i_add(&e, i_add(&e, k0, k), j), k64(&e, s->C)), c0),
			           u);
			for (int i = 0; i < POINTS; i++)
				vec_store(&e,
				          ptr_at(&e, tile,
				                 i_add(&e, i_mul(&e, j, k64(&e, w * 4)),
				                       k64(&e, (int64_t)i * w * w * 4))),
				          u[i], NULL);
			loop_close(&e);
			V i = loop_open(&e, k64(&e, 0), k64(&e, POINTS), 1);
			V args[5] = {ptr_at(&e, tile, i_mul(&e, i, k64(&e, (int64_t)w * w * 4))), k64(&e, w * 4),
			             k64(&e, w),
			             ptr_at(&e, out, i_add(&e, i_mul(&e, i, k64(&e, point)), i_mul(&e, k, k64(&e, 4)))),
			             k64(&e, nr * 4)};

			LLVMBuildCall2(here(&e), LLVMGlobalGetValueType(turn), turn, args, 5, "");
			loop_close(&e);
		}
		loop_close(&e);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = npanel * (s->C / w), .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* ---------------------------------------------------------------- tiles of an image */
typedef struct Cut {
	int64_t H, W, C, pad; int size; Transform *f;
	int src;                 /* buffer of f32; -1: the kernel makes `made`, or widens it */
	Val made;
	int dst; const char *part;
	int source[SOURCES], nsource; /* buffers that pixels are made of */
	int width[SOURCES];      /* bytes of their numbers */
} Cut;

/* Finds them: values of v's shape from outside the group. */
static void
sources_of(GroupCx *gc, Cut *c, Val v, int depth)
{
	const Graph *g = gc->g;
	const Op *def = val_op(g, v);
	int buf = -1;

	if (!def || def->group != gc->group || def->kind == OP_load)
		buf = group_buffer(gc, v.id);
	for (int k = 0; buf < 0 && k < def->nin && depth < DEEPEST; k++)
		if (type_same_shape(val_type(g, def->in[k]), val_type(g, v)))
			sources_of(gc, c, def->in[k], depth + 1);
	for (int i = 0; i < c->nsource; i++)
		if (c->source[i] == buf)
			return;
	if (buf >= 0 && c->nsource < SOURCES) {
		c->width[c->nsource] = dtype_info[val_type(g, v)->dtype].bytes;
		c->source[c->nsource++] = buf;
	}
}

/* Numbers of a plane that a task of tiles_emit takes: whole images. */
static int64_t
plane_chunk(const Cut *c)
{
	return c->C < PLANE_CHUNK ? PLANE_CHUNK / c->C * c->C : c->C;
}

/* Is index `first + 4 * tile` of a side inside for every tile? */
static bool
always_inside(int64_t first, int64_t tiles, int64_t side)
{
	return first >= 0 && first + (tiles - 1) * TILE < side;
}

/* Numbers [lo, hi) of the planes of tile (tile[0], tile[1]), to `out` + a point's distance for each point. */
static void
cut_tile(Emit *e, const Shape *s, const Cut *c, V from, const V tile[2], V lo, V hi, V out, int64_t point)
{
	V plane = i_mul(e, extent(e, s->n), k64(e, c->C)), in[POINTS], r[POINTS], off[POINTS], mask[POINTS],
	  ok[2][SPAN], pos[2][SPAN], image = NULL, x;
	bool lanes = e->lanes;

	for (int side = 0; side < 2; side++)
		for (int i = 0; i < c->size; i++) {
			int64_t length = side ? c->W : c->H;
			V want = i_add(e, i_mul(e, tile[side], k64(e, TILE)), k64(e, i - c->pad));

			pos[side][i] = i_min(e, i_max(e, want, k64(e, 0)), k64(e, length - 1));
			ok[side][i] = always_inside(i - c->pad, side ? s->tw : s->th, length)
			                      ? NULL
			                      : LLVMBuildICmp(here(e), LLVMIntEQ, want, pos[side][i], "");
		}
	for (int i = 0; i < c->size; i++)
		for (int j = 0; j < c->size; j++) {
			V a = ok[0][i], b = ok[1][j], both = a && b ? LLVMBuildAnd(here(e), a, b, "") : a ? a : b;

			off[i * c->size + j] = i_mul(e, i_add(e, i_mul(e, pos[0][i], k64(e, c->W)), pos[1][j]), plane);
			mask[i * c->size + j] = both ? splat(e, both) : NULL;
		}
	if (from) {
		x = loop_open(e, lo, hi, e->W);
		for (int i = 0; i < c->size * c->size; i++)
			in[i] = vec_load(e, ptr_at(e, from, i_mul(e, i_add(e, off[i], x), k64(e, 4))), mask[i]);
	} else {
		/* made where pixels are, and nothing in the padding; pos is inside for both */
		image = loop_open(e, i_div(e, lo, k64(e, c->C)), i_div(e, hi, k64(e, c->C)), 1);
		Ix channel = {.s = loop_open(e, k64(e, 0), k64(e, c->C), e->W), .c = 1};

		x = i_add(e, i_mul(e, image, k64(e, c->C)), channel.s);
		e->lanes = true;
		for (int i = 0; i < c->size * c->size; i++) {
			V v = cell_vec(
			        e, prologue_at(e, c->made, image, channel, pos[0][i / c->size], pos[1][i % c->size]));

			in[i] = mask[i] ? LLVMBuildSelect(here(e), mask[i], v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
		}
		e->lanes = lanes;
	}
	V to = i_mul(e, i_sub(e, x, lo), k64(e, 4)), next = i_add(e, x, k64(e, AHEAD * e->W));

	/* more streams than the CPU follows by itself */
	for (int k = 0; k < c->nsource; k++)
		for (int i = 0; i < c->size * c->size; i++)
			prefetch(e,
			         ptr_at(e, buffer(e, c->source[k]),
			                i_mul(e, i_add(e, off[i], next), k64(e, c->width[k]))),
			         2);
	square(e, c->f, c->size, SPAN, in, r);
	for (int i = 0; i < POINTS; i++)
		vec_store(e, ptr_at(e, out, i_add(e, to, k64(e, i * point))), r[i], NULL);
	for (int i = 0; i < (image ? 2 : 1); i++)
		loop_close(e);
}

/* [point][tile][image][channel], past the caches where they will not keep it. Task: a tile, and a piece of its
 * planes. */
static void
tiles_emit(GroupCx *gc, const Shape *s, const Cut *c, GraphKernels *gk)
{
	int64_t full = s->n.n * c->C, chunk = plane_chunk(c), chunks = ceil_div(full, chunk);
	int64_t point = point_bytes(s->th * s->tw * full);
	Cut with = *c;
	Emit e = {0};
	bool fresh;

	sources_of(gc, &with, c->made, 0);
	int fn = kernel_begin(gc, &e, c->part, &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		/* half lines of 36 streams would each go to memory by themselves */
		e.stream = POINTS * point >= machine_of(gc->g)->budget.l3 / 4 && !s->n.mul && s->w == 16;
		V from = c->src < 0 ? NULL : buffer(&e, c->src), to = buffer(&e, c->dst),
		  plane = i_mul(&e, extent(&e, s->n), k64(&e, c->C));
		V t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V tile = i_div(&e, t, k64(&e, chunks)),
		  lo = i_min(&e, i_mul(&e, i_rem(&e, t, k64(&e, chunks)), k64(&e, chunk)), plane);
		V hi = i_min(&e, i_add(&e, lo, k64(&e, chunk)), plane),
		  at[2] = {i_div(&e, tile, k64(&e, s->tw)), i_rem(&e, tile, k64(&e, s->tw))};

		cut_tile(&e, s, &with, from, at, lo, hi,
		         ptr_at(&e, to, i_mul(&e, i_add(&e, i_mul(&e, tile, plane), lo), k64(&e, 4))), point);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->th * s->tw * chunks, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}

/* ---------------------------------------------------------------- products */
/* Task: a point and a block of rows. */
static void
products_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), block = p->mr * 8,
	        blocks = ceil_div(s->rows, block);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, s->n.mul ? ANY_ROWS : tile_rows(s->rows, block, p->mr));
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = buffer(&e, cbuf),
		  rows = i_mul(&e, extent(&e, s->n), k64(&e, s->th * s->tw));
		V st[S_COUNT] = {[S_AM] = k64(&e, s->C * 4), [S_AK] = k64(&e, 4),        [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),        [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, nr * 4),   [S_CM] = k64(&e, s->K * 4), [S_NK] = k64(&e, s->C)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V point = i_div(&e, t, k64(&e, blocks)),
		  lo0 = i_min(&e, i_mul(&e, i_rem(&e, t, k64(&e, blocks)), k64(&e, block)), rows);
		V hi0 = i_min(&e, i_add(&e, lo0, k64(&e, block)), rows),
		  kb = loop_open(&e, k64(&e, 0), k64(&e, npanel), 1), lo, count;
		V b = ptr_at(&e, B,
		             i_add(&e, i_mul(&e, point, k64(&e, weights_point(s, p))),
		                   i_mul(&e, kb, k64(&e, s->C * nr * 4))));

		tiles_open(&e, i_sub(&e, hi0, lo0), p->mr, &lo, &count);
		lo = i_add(&e, lo0, lo);
		V a = ptr_at(&e, A,
		             i_add(&e, i_mul(&e, point, k64(&e, point_bytes(s->rows * s->C))),
		                   i_mul(&e, lo, k64(&e, s->C * 4))));
		V c = ptr_at(&e, C,
		             i_add(&e, i_mul(&e, point, k64(&e, point_bytes(s->rows * s->K))),
		                   i_add(&e, i_mul(&e, lo, k64(&e, s->K * 4)), i_mul(&e, kb, k64(&e, nr * 4)))));

		tile_call(&e, &tiles, count, kb, npanel, a, b, c, k64(&e, 1), k64(&e, 1), strides, k64(&e, 0));
		for (int i = 0; i < 3; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = POINTS * blocks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* Sums over all rows. Task: a point and a panel of columns. */
static void
sums_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, tile_rows(s->C, s->C, p->mr));
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = buffer(&e, cbuf),
		  rows = i_mul(&e, extent(&e, s->n), k64(&e, s->th * s->tw));
		V st[S_COUNT] = {[S_AM] = k64(&e, 4),        [S_AK] = k64(&e, s->C * 4), [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),        [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, s->K * 4), [S_CM] = k64(&e, s->K * 4), [S_NK] = k64(&e, 0)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		V point = i_div(&e, t, k64(&e, npanel)), kb = i_rem(&e, t, k64(&e, npanel)),
		  kcol = i_mul(&e, kb, k64(&e, nr * 4));
		V first = loop_open(&e, k64(&e, 0), rows, SUM_BLOCK), at = k64(&e, S_NK), lo, count;
		V acc = LLVMBuildZExt(here(&e), LLVMBuildICmp(here(&e), LLVMIntNE, first, k64(&e, 0), ""), e.l->i64,
		                      "");

		LLVMBuildStore(here(&e), i_min(&e, k64(&e, SUM_BLOCK), i_sub(&e, rows, first)),
		               LLVMBuildInBoundsGEP2(here(&e), e.l->i64, strides, &at, 1, ""));
		V b = ptr_at(&e, B,
		             i_add(&e, i_mul(&e, point, k64(&e, point_bytes(s->rows * s->K))),
		                   i_add(&e, i_mul(&e, first, k64(&e, s->K * 4)), kcol)));

		tiles_open(&e, k64(&e, s->C), p->mr, &lo, &count);
		V a = ptr_at(&e, A,
		             i_add(&e, i_mul(&e, point, k64(&e, point_bytes(s->rows * s->C))),
		                   i_add(&e, i_mul(&e, first, k64(&e, s->C * 4)), i_mul(&e, lo, k64(&e, 4)))));

		tile_call(&e, &tiles, count, kb, npanel, a, b,
		          ptr_at(&e, C,
		                 i_add(&e, i_mul(&e, point, k64(&e, weights_point(s, p))),
		                       i_add(&e, i_mul(&e, lo, k64(&e, s->K * 4)), kcol))),
		          k64(&e, 1), k64(&e, 1), strides, acc);
		for (int i = 0; i < 3; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = POINTS * npanel, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* ---------------------------------------------------------------- back to pixels */
typedef struct PixelAt { V h, w, width, images, first; } PixelAt;

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
valid(Emit *e, V tile, int64_t side)
{
	return side % TILE ? i_min(e, k64(e, TILE), i_sub(e, k64(e, side), i_mul(e, tile, k64(e, TILE))))
	                   : k64(e, TILE);
}

static V
piece_pixels(Emit *e, void *cx, V piece)
{
	const Shape *s = cx;
	V tile = i_div(e, piece, k64(e, s->split)), images = extent(e, s->n);

	if (s->split > 1)
		images = i_min(e, k64(e, s->block),
		               i_sub(e, images, i_mul(e, i_rem(e, piece, k64(e, s->split)), k64(e, s->block))));
	return i_mul(e,
	             i_mul(e, valid(e, i_div(e, tile, k64(e, s->tw)), s->OH),
	                   valid(e, i_rem(e, tile, k64(e, s->tw)), s->OW)),
	             images);
}

/* What a tile is turned back from and into. */
typedef struct Back {
	V tile[2], kb;           /* which tile, which panel of channels */
	V from; int64_t point, row; /* products of image `first`: bytes between points, between images */
	V first, last;           /* images */
	V piece, start;          /* of the epilogue's states, and its first image */
	V out; bool raw_tile;
} Back;

/* The tile's pixels, and the epilogue on them, some images at a time. */
static void
turn_back(Emit *e, const Shape *s, const GemmParams *p, Epilogue *epi, const Back *b)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	V column = i_mul(e, b->kb, k64(e, nr)), columns = i_min(e, k64(e, nr), i_sub(e, k64(e, s->K), column)),
	  n = extent(e, s->n), m[POINTS], y[TILE * TILE], mask[2][TILE];
	V height = valid(e, b->tile[0], s->OH), width = valid(e, b->tile[1], s->OW),
	  h = i_mul(e, b->tile[0], k64(e, TILE)), w = i_mul(e, b->tile[1], k64(e, TILE));

	for (int i = 0; i < TILE; i++)
		for (int side = 0; side < 2; side++)
			mask[side][i] = (side ? s->OW : s->OH) % TILE ? LLVMBuildICmp(here(e), LLVMIntSLT, k64(e, i),
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
	V image = loop_open(e, k64(e, 0), images, 1), c4 = i_mul(e, loop_open(e, k64(e, 0), columns, e->W), k64(e, 4));
	V in = ptr_at(e, b->from, i_add(e, i_mul(e, i_add(e, i_sub(e, first, b->first), image), k64(e, b->row)), c4)),
	  plane = i_mul(e, n, k64(e, s->K * 4));

	for (int i = 0; i < POINTS; i++)
		m[i] = vec_load(e, ptr_at(e, in, k64(e, i * b->point)), NULL);
	square(e, pixels, SPAN, TILE, m, y);
	for (int i = 0; i < TILE; i++)
		for (int j = 0; j < TILE; j++) {
			V a = mask[0][i], c = mask[1][j],
			  both = a && c ? LLVMBuildAnd(here(e), a, c, "")
			         : a    ? a
			                : c,
			  to;

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
			vec_store(e, LLVMBuildGEP2(here(e), e->l->i8, b->out, &to, 1, ""), y[i * TILE + j],
			          both ? splat(e, both) : NULL);
		}
	loop_close(e);
	loop_close(e);
	epilogue_tile(e, epi, &et);
	loop_close(e);
}

/* Task: a tile and a panel of channels. */
static void
pixels_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, Epilogue *epi, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "pixels", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		bool tile;
		V from = buffer(&e, src), out = epilogue_raw(&e, epi, TILE * TILE * IMAGES, nr, &tile),
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
		          .point = point_bytes(s->rows * s->K),
		          .row = s->K * 4};

		turn_back(&e, s, p, epi, &b);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->th * s->tw * npanel, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}

/* ---------------------------------------------------------------- all three in one kernel */
/* What a task of bands_emit works on: `count` tiles from number `place` on, and of each of them images [first, last)
 * out of those from `start` on that are its own. */
typedef struct Band { V place, count, start, first, last; } Band;

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
static void
bands_emit(GroupCx *gc, const Shape *s, const GemmParams *p, const Cut *c, int weights, Epilogue *epi,
           GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, npanel = ceil_div(s->K, nr), most = s->block * s->tiles,
	        vpoint = point_bytes(most * s->C), mpoint = point_bytes(most * nr),
	        whole = s->tiles > 1 ? s->rows : s->n.n;
	Emit e = {0};
	bool fresh, tile;
	Cut with = *c;

	sources_of(gc, &with, c->made, 0);
	int fn = kernel_begin(gc, &e, "main", &fresh);

	scratch_check(gc, POINTS * (vpoint + mpoint));
	if (fresh) {
		emit_lanes(&e, s->w);
		Tiles tiles = tiles_make(&e, p, s->K, s->n.mul ? ANY_ROWS : tile_rows(whole, most, p->mr));
		V from = c->src < 0 ? NULL : buffer(&e, c->src), B = buffer(&e, weights), v = scratch_ptr(&e, 0),
		  m = scratch_ptr(&e, POINTS * vpoint), out = epilogue_raw(&e, epi, TILE * TILE * IMAGES, nr, &tile);
		V st[S_COUNT] = {[S_AM] = k64(&e, s->C * 4), [S_AK] = k64(&e, 4),      [S_AP] = k64(&e, 0),
		                 [S_AQ] = k64(&e, 0),        [S_BP] = k64(&e, 0),      [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, nr * 4),   [S_CM] = k64(&e, nr * 4), [S_NK] = k64(&e, s->C)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1), at[2], piece, row, lo,
		  count;
		Band band = band_open(&e, s, t);

		band_tile(&e, s, &band, t, at, &piece, &row);
		cut_tile(&e, s, &with, from, at, i_mul(&e, band.first, k64(&e, s->C)),
		         i_mul(&e, band.last, k64(&e, s->C)), ptr_at(&e, v, i_mul(&e, row, k64(&e, s->C * 4))), vpoint);
		if (s->tiles > 1)
			loop_close(&e);
		V rows = i_mul(&e, band.count, i_sub(&e, band.last, band.first));
		V kb = loop_open(&e, k64(&e, 0), k64(&e, npanel), 1),
		  point = loop_open(&e, k64(&e, 0), k64(&e, POINTS), 1);
		V b = ptr_at(&e, B, i_add(&e, i_mul(&e, point, k64(&e, weights_point(s, p))),
		                          i_mul(&e, kb, k64(&e, s->C * nr * 4))));

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
	Rows tasks = {.rows = ceil_div(s->th * s->tw, s->tiles) * s->split, .mul = 0, .div = 1, .grain = 1};

	kernel_end(gc, &e, gk, fn, tasks, fresh, false);
}

/* The gradients of nine taps from those at 36 points. */
static void
taps_emit(GroupCx *gc, const Shape *s, int src, int dst, GraphKernels *gk)
{
	int64_t all = s->C * s->K, point = point_bytes(all);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "taps", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		V from = buffer(&e, src), to = buffer(&e, dst), m[POINTS], g[9];
		V t = loop_open(&e, i_mul(&e, e.arg_t0, k64(&e, PLANE_CHUNK)),
		                i_min(&e, i_mul(&e, e.arg_t1, k64(&e, PLANE_CHUNK)), k64(&e, all)), e.W),
		  x = i_mul(&e, t, k64(&e, 4));

		for (int i = 0; i < POINTS; i++) {
			m[i] = vec_load(&e, ptr_at(&e, from, i_add(&e, x, k64(&e, i * point))), NULL);
			prefetch(&e, ptr_at(&e, from, i_add(&e, x, k64(&e, i * point + AHEAD * e.W * 4))), 2);
		}
		square(&e, taps, SPAN, 3, m, g);
		for (int i = 0; i < 9; i++)
			vec_store(&e, ptr_at(&e, to, i_add(&e, x, k64(&e, i * all * 4))), g[i], NULL);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = all, .mul = 0, .div = 1, .grain = PLANE_CHUNK}, fresh, false);
}

static void
emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk)
{
	Shape s = split_shape(gc->g, op, p);
	bool half = gemm_half(gc->g, op) != DT_none;
	Cut cut = {.H = s.H,
	           .W = s.W,
	           .C = s.C,
	           .pad = s.pad,
	           .size = SPAN,
	           .f = data_points,
	           .src = half ? -1 : abuf,
	           .made = op->in[0],
	           .part = "tiles"};
	int64_t at = gc->g->group.at[gc->group].workspace_offset,
	        size[3] = {weights_point(&s, p), point_bytes(s.rows * s.C), point_bytes(s.rows * s.K)};
	int ws[3], nws = s.block ? 1 : 3;
	Epilogue epi;

	gemm_epilogue(gc, op, p, &epi);
	gc->flops_less = op_flops(gc->g, op) - 2.0 * POINTS * (double)s.rows * (double)(s.C * s.K);
	for (int i = 0; i < nws; i++) {
		if (i == 0 && !s.dw) {
			ws[0] = panels_at(gc);
			at += gc->g->group.at[gc->group].kept ? 0 : POINTS * size[0];
			continue;
		}
		vec_push(gc->c->arena, &gc->buf, ((Buffer){0, at}));
		ws[i] = (int)gc->buf.n - 1;
		at += POINTS * size[i];
	}
	if (!s.dw) {
		gc->once = gc->g->group.at[gc->group].kept > 0;
		weights_emit(gc, &s, p, bbuf, ws[0], gk);
		gc->once = false;
	}
	if (nws == 1) {
		bands_emit(gc, &s, p, &cut, ws[0], &epi, gk);
	} else {
		cut.dst = ws[1];
		tiles_emit(gc, &s, &cut, gk);
	}
	if (s.dw) {
		tiles_emit(gc, &s,
		           &(Cut){.H = s.OH,
		                  .W = s.OW,
		                  .C = s.K,
		                  .size = TILE,
		                  .f = gradient_points,
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
		pixels_emit(gc, &s, p, ws[2], &epi, gk);
	}
	epilogue_finish(gc, gk, &epi, piece_pixels, &s);
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
	q->cpu_winograd.blocks = p->blocks;
}

static void
read(const Params *q, GemmParams *p)
{
	p->blocks = q->cpu_winograd.blocks;
}

const Algo algo_winograd = {
	.family = FAMILY_cpu_winograd,
	.doc = "3x3 filters of stride 1 by F(4x4, 3x3)",
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
	.emit = emit,
};
