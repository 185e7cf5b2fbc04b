/* strassen.c: large matrix products by Strassen's algorithm, once over: seven products of halves for eight.
 *
 * In: a group of one matmul of f32, its second operand as it lies, or in panels if transposed.   Out: a kernel that
 * adds up its halves (seven operands of half the rows and half the columns each, in panels), and the main one. A task
 * has some rows of the upper half and the same of the lower: it adds up its own seven first operands in the thread's
 * scratch memory, multiplies panel by panel, and makes of seven products a tile of each quarter of the result, on which
 * the group's epilogue runs as on any tile.
 * Source: Strassen 1969, "Gaussian elimination is not optimal". Error: some half as large again as that of the plain
 * product (root mean square), as sums of two numbers are multiplied; held to the bounds of all kernels (tests/cpu).
 * Refused (why_not): sides that do not halve into whole vectors and panels, rows that follow the batch's size, batches
 * of matrices, other types. */
#include "algo.h"
#include <string.h>

enum { PRODUCTS = STRASSEN_PRODUCTS, QUARTERS = STRASSEN_QUARTERS, SUM_LINES = 16, AHEAD = 16 };
enum { ROWS = 48, TILE_ROWS = 8 }; /* of a task in each half, of a tile of the epilogue */

/* Operand of product q: quarter `a`, plus or minus quarter b if sign is not 0. Quarters: 0 upper left, 1 upper right,
 * 2, 3 below. */
typedef struct Sum { int8_t a, b, sign; } Sum;
static const Sum first[PRODUCTS] = {{0, 3, 1}, {2, 3, 1}, {0, 0, 0}, {3, 3, 0}, {0, 1, 1}, {2, 0, -1}, {1, 3, -1}};
static const Sum second[PRODUCTS] = {{0, 3, 1}, {0, 0, 0}, {1, 3, -1}, {2, 0, -1}, {3, 3, 0}, {0, 1, 1}, {2, 3, 1}};
/* What each product is of each quarter of the result. */
static const int8_t share[QUARTERS][PRODUCTS] = {
        {1, 0, 0, 1, -1, 0, 1}, {0, 0, 1, 0, 1, 0, 0}, {0, 1, 0, 1, 0, 0, 0}, {1, -1, 1, 0, 0, 1, 0}};

/* of half the sides; rows of a task in each half, at most */
typedef struct Halves {
	int64_t m, n, k, panels, tasks, block;
	bool ta;
	/* A task's sums of the transposed operand: rows that lie together, of a register tile or all; bytes of these,
	 * of all. */
	int64_t high, tile, sums;
} Halves;

static bool
halves_of(const Graph *g, const Op *op, const GemmParams *p, Halves *h)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	Mat m;

	if (op->kind != OP_matmul || !matmul_mat(g, op, &m) || m.m.mul || m.batch != 1 || m.m.n % 2 || m.n % (2 * nr) ||
	    m.k % (2 * p->lanes) || m.k % (2 * SUM_LINES))
		return false;
	*h = (Halves){.m = m.m.n / 2, .n = m.n / 2, .k = m.k / 2, .panels = m.n / 2 / nr, .ta = attr_bool(op, A_ta)};
	/* the sums of a task's rows: measured to be best at 1500 KiB where L2 has 1024; of the shape alone, as rows of
	 * a task are added up together */
	int64_t sums = machine_of(g)->budget.l2 / 1024 * 1500;
	int64_t step = h->ta ? 16 : 6, fit = sums / (PRODUCTS * h->k * 4) / step * step;

	h->block = fit > ROWS ? ROWS : fit;
	if (h->block < step)
		h->block = step;
	/* rows that lie together: whole vectors; else an even number of tasks of as many rows, give or take one */
	h->tasks = ceil_div(h->m, h->block);
	if (!h->ta) {
		h->tasks += h->tasks > 1 && h->tasks % 2 && h->tasks < h->m;
		h->block = ceil_div(h->m, h->tasks);
	}
	GemmParams copied = {.copy = h->ta, .mr = p->mr, .lanes = p->lanes};

	/* room behind each for what a vector holds beyond its rows */
	h->high = gemm_copies_tiles(g, &copied) ? p->mr : h->block;
	h->tile = align64(h->k * h->high * 4) + (h->high < h->block ? 64 : 0);
	h->sums = ceil_div(h->block, h->high) * h->tile;
	return true;
}

static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	Halves h;

	if (cx->half != DT_none)
		return "its operands are no numbers of 32 bits";
	if (prologue_made(g, op, 0) && prologue_way(g, op, p, 0) != PROLOGUE_COPY)
		return "its first operand is made on its way";
	return halves_of(g, op, p, &h) ? NULL : "its sides do not halve into whole vectors and panels";
}

/* The sums cost what products with a short side would: seven for eight pays for them where the harmonic mean of the
 * sides is long. */
static double
time_of(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best)
{
	const Budget *b = &machine_of(g)->budget;
	Halves h;

	/* The sums move bytes for each element of the three matrices, the product that is saved has operations by all
	 * three sides: it pays for them where the harmonic mean of the sides is long, the longer the more operations go
	 * in the time of a byte; measured, 180 times that number. */
	if (!halves_of(g, op, p, &h))
		return INFINITY;
	double side = 180 * (b->rates.products / b->rates.bytes);

	return (7 + side / (6 / (1.0 / (double)h.m + 1.0 / (double)h.n + 1.0 / (double)h.k))) / 8;
}

/* Where it would pay; a result beyond the caches waits for memory in any case. */
static bool
offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	const Algo *row = p->algo;
	Halves h;

	(void)cx;
	*p = *best;
	p->algo = row;
	p->engine = ENGINE_FMA;
	p->pack = true;
	p->copy = false;
	return time_of(g, op, p, best) <= 1 && halves_of(g, op, p, &h) && 16 * h.m * h.n <= machine_of(g)->budget.l3;
}

static double
work(const Graph *g, const Op *op)
{
	return 7 * op_flops(g, op) / 8;
}

/* The panels of a transposed second operand. */
static int64_t
panels(const Graph *g, const Op *op, const GemmParams *p)
{
	return attr_bool(op, A_tb) ? pack_bytes(g, op, p) : 0;
}

static int64_t
sums_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Halves h;

	return halves_of(g, op, p, &h) ? PRODUCTS * h.k * h.n * 4 : 0;
}

static const char *
chosen(const Graph *g, const Op *op, const GemmParams *p)
{
	return arena_printf(g->arena, "Strassen's algorithm: seven products of halves for eight, %.1f MiB of workspace",
		(double)gemm_own_workspace(g, op, p) / 1048576);
}

static int64_t
products_bytes(const GemmParams *p, const Halves *h)
{
	return PRODUCTS * h->block * p->nv * p->lanes * 4;
}

static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Halves h;

	return halves_of(g, op, p, &h) ? PRODUCTS * h.sums + products_bytes(p, &h) : 0;
}

static int64_t
pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	Halves h;

	return halves_of(g, op, p, &h) ? h.tasks : 0;
}

/* The seven sums of the four vectors x. */
static void
sums(Emit *e, const Sum s[PRODUCTS], const V x[QUARTERS], V r[PRODUCTS])
{
	for (int q = 0; q < PRODUCTS; q++)
		r[q] = !s[q].sign ? x[s[q].a]
		                  : (s[q].sign > 0 ? LLVMBuildFAdd : LLVMBuildFSub)(here(e), x[s[q].a], x[s[q].b], "");
}

/* Rows, or panels [panel][k][nr], to [panel of a half][product][half of k][nr]. Task: some lines of a panel of a
 * half. */
static void
second_emit(GroupCx *gc, const GemmParams *p, const Halves *h, bool panels, int src, int dst, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, pieces = h->k / SUM_LINES;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "sums", &fresh);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		/* bytes from a line to the next, from a panel to the next */
		int64_t line = panels ? nr * 4 : 2 * h->n * 4, apart = panels ? 2 * h->k * nr * 4 : nr * 4;
		V from = buffer(&e, src), to = buffer(&e, dst), t = loop_open(&e, e.arg_t0, e.arg_t1, 1),
		  panel = i_div(&e, t, k64(&e, pieces)),
		  first_line = i_mul(&e, i_rem(&e, t, k64(&e, pieces)), k64(&e, SUM_LINES));
		V i = i_add(&e, first_line, loop_open(&e, k64(&e, 0), k64(&e, SUM_LINES), 1)),
		  j = loop_open(&e, k64(&e, 0), k64(&e, nr * 4), p->lanes * 4), x[QUARTERS], r[PRODUCTS];
		V at = i_add(&e, i_mul(&e, panel, k64(&e, apart)), i_add(&e, i_mul(&e, i, k64(&e, line)), j)),
		  out = i_add(&e, i_mul(&e, panel, k64(&e, PRODUCTS * h->k * nr * 4)),
		              i_add(&e, i_mul(&e, i, k64(&e, nr * 4)), j));

		for (int q = 0; q < QUARTERS; q++)
			x[q] = vec_load(
			        &e,
			        ptr_at(&e, from,
			               i_add(&e, at, k64(&e, (q & 1) * h->panels * apart + (q >> 1) * h->k * line))),
			        NULL);
		strassen_second(&e, x, r);
		for (int q = 0; q < PRODUCTS; q++)
			vec_store(&e, ptr_at(&e, to, i_add(&e, out, k64(&e, q * h->k * nr * 4))), r[q], NULL);
		for (int k = 0; k < 3; k++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = h->panels * pieces, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* A task's first operands, rows [lo, lo + rows) of both halves: [product][row][k], or, of a transposed one, whose rows
 * lie together in memory, [product][tile][k][row]. */
static void
first_sums(Emit *e, const GemmParams *p, const Halves *h, V from, V lo, V rows, V to)
{
	int64_t line = h->ta ? 2 * h->m * 4 : 2 * h->k * 4, down = h->ta ? h->m * 4 : h->m * line,
	        right = h->ta ? h->k * line : h->k * 4, width = h->ta ? h->high : h->k,
	        tiles = h->ta ? ceil_div(h->block, h->high) : 1;
	V i = loop_open(e, k64(e, 0), h->ta ? k64(e, h->k) : rows, 1),
	  tile = tiles > 1 ? loop_open(e, k64(e, 0), k64(e, tiles), 1) : k64(e, 0),
	  j = loop_open(e, k64(e, 0), k64(e, width), p->lanes), mask = NULL, x[QUARTERS], r[PRODUCTS];
	V row = i_add(e, i_mul(e, tile, k64(e, h->high)), j);
	V at = h->ta ? i_add(e, i_mul(e, i, k64(e, line)), i_mul(e, i_add(e, lo, row), k64(e, 4)))
	             : i_add(e, i_mul(e, i_add(e, lo, i), k64(e, line)), i_mul(e, j, k64(e, 4)));

	if (h->ta)
		mask = row_mask(e, i_sub(e, rows, row), 0);
	for (int q = 0; q < QUARTERS; q++) {
		V quarter = i_add(e, at, k64(e, (q >> 1) * down + (q & 1) * right));

		x[q] = vec_load(e, ptr_at(e, from, quarter), mask);
		/* the CPU's own prefetching does not see lines that are pages apart; of the L1
		 * they would share a set */
		if (h->ta)
			prefetch(e, ptr_at(e, from, i_add(e, quarter, k64(e, AHEAD * line))), 2);
	}
	strassen_first(e, x, r);
	V out = i_add(e, i_mul(e, tile, k64(e, h->tile)), i_mul(e, i_add(e, i_mul(e, i, k64(e, width)), j), k64(e, 4)));

	for (int q = 0; q < PRODUCTS; q++)
		vec_store(e, ptr_at(e, to, i_add(e, out, k64(e, q * h->sums))), r[q], h->high < h->block ? NULL : mask);
	for (int k = 0; k < (tiles > 1 ? 3 : 2); k++)
		loop_close(e);
}

void
strassen_first(Emit *e, const V x[QUARTERS], V r[PRODUCTS])
{
	sums(e, first, x, r);
}

void
strassen_second(Emit *e, const V x[QUARTERS], V r[PRODUCTS])
{
	sums(e, second, x, r);
}

void
strassen_quarters(Emit *e, const V m[PRODUCTS], V r[QUARTERS])
{
	for (int q = 0; q < QUARTERS; q++) {
		r[q] = NULL;
		for (int k = 0; k < PRODUCTS; k++)
			if (share[q][k])
				r[q] = !r[q] ? m[k]
				             : (share[q][k] > 0 ? LLVMBuildFAdd : LLVMBuildFSub)(here(e), r[q], m[k],
				                                                                 "");
	}
}

/* The first row of a task. */
static V
row_of_task(Emit *e, const Halves *h, V task)
{
	return h->ta ? i_min(e, k64(e, h->m), i_mul(e, task, k64(e, h->block)))
	             : i_div(e, i_mul(e, task, k64(e, h->m)), k64(e, h->tasks));
}

/* Which numbers of rows its tiles have, as tiles_make wants it. */
static int64_t
rows_set(const GemmParams *p, const Halves *h)
{
	return h->ta ? tile_rows_cut(h->high < h->block, h->m, h->block, p->mr)
	             : tile_rows(h->block, h->block, p->mr) | tile_rows(h->m / h->tasks, h->m / h->tasks, p->mr);
}

static V
rows_of_piece(Emit *e, void *cx, V piece)
{
	const Halves *h = cx;

	return i_mul(e, k64(e, 2), i_sub(e, row_of_task(e, h, i_add(e, piece, k64(e, 1))), row_of_task(e, h, piece)));
}

/* A tile of each quarter of the result, of the seven products of `count` rows from r0 on; lo: the first row. tile:
 * C is a tile, not the result. */
static void
quarters_emit(Emit *e, const GemmParams *p, const Halves *h, V m, V C, bool tile, V kb, V lo, V r0, V count)
{
	int64_t nr = (int64_t)p->nv * p->lanes, N = 2 * h->n;
	int lanes = p->lanes, nv = p->nv;
	V i = loop_open(e, k64(e, 0), count, 1), from = ptr_at(e, m, i_mul(e, i_add(e, r0, i), k64(e, nr * 4))),
	  row = i_add(e, lo, i_add(e, r0, i));

	for (int j = 0; j < nv; j++) {
		V x[PRODUCTS], y[QUARTERS];

		for (int k = 0; k < PRODUCTS; k++)
			x[k] = vec_load(e, ptr_at(e, from, k64(e, (k * h->block * nr + j * lanes) * 4)), NULL);
		strassen_quarters(e, x, y);
		for (int k = 0; k < QUARTERS; k++) {
			V at = tile ? i_mul(e, i, k64(e, nr * 4))
			            : i_add(e, i_mul(e, row, k64(e, N * 4)), i_mul(e, kb, k64(e, nr * 4)));

			vec_store(
			        e,
			        ptr_at(e, C,
			               i_add(e, at,
			                     k64(e, (tile ? k * TILE_ROWS * nr : (k >> 1) * h->m * N + (k & 1) * h->n) *
			                                            4 +
			                                    j * lanes * 4))),
			        y[k], NULL);
		}
	}
	loop_close(e);
}

static void
main_emit(GroupCx *gc, const Op *op, const GemmParams *p, const Halves *h, int abuf, int sums_at, Epilogue *epi,
          GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, row_bytes = h->ta ? 4 : h->k * 4;
	Emit e = {0};
	bool fresh, tile, tiled = h->high < h->block;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	scratch_check(gc, scratch(gc->g, op, p));
	if (fresh) {
		emit_lanes(&e, p->lanes);
		V A = buffer(&e, abuf), B = buffer(&e, sums_at),
		  C = epilogue_raw(&e, epi, QUARTERS * TILE_ROWS, nr, &tile), a = scratch_ptr(&e, 0),
		  m = scratch_ptr(&e, PRODUCTS * h->sums);
		Tiles tiles = tiles_make(&e, p, nr, rows_set(p, h));
		V st[S_COUNT] = {[S_AM] = k64(&e, row_bytes), [S_AK] = k64(&e, h->ta ? h->high * 4 : 4),
		                 [S_AP] = k64(&e, 0),         [S_AQ] = k64(&e, 0),
		                 [S_BP] = k64(&e, 0),         [S_BQ] = k64(&e, 0),
		                 [S_BK] = k64(&e, nr * 4),    [S_CM] = k64(&e, nr * 4),
		                 [S_NK] = k64(&e, h->k)};
		V strides = strides_block(&e, st), t = loop_open(&e, e.arg_t0, e.arg_t1, 1), lo = row_of_task(&e, h, t),
		  rows = i_sub(&e, row_of_task(&e, h, i_add(&e, t, k64(&e, 1))), lo), r0, count;

		first_sums(&e, p, h, A, lo, rows, a);
		V kb = loop_open(&e, k64(&e, 0), k64(&e, h->panels), 1),
		  q = loop_open(&e, k64(&e, 0), k64(&e, PRODUCTS), 1);

		tiles_open_cut(&e, tiled, rows, p->mr, &r0, &count);
		V of_a = tiled ? i_mul(&e, i_div(&e, r0, k64(&e, p->mr)), k64(&e, h->tile))
		               : i_mul(&e, r0, k64(&e, row_bytes));

		tile_call(&e, &tiles, count, k64(&e, 0), 1,
		          ptr_at(&e, a, i_add(&e, i_mul(&e, q, k64(&e, h->sums)), of_a)),
		          ptr_at(&e, B,
		                 i_mul(&e, i_add(&e, i_mul(&e, kb, k64(&e, PRODUCTS)), q), k64(&e, h->k * nr * 4))),
		          ptr_at(&e, m, i_mul(&e, i_add(&e, i_mul(&e, q, k64(&e, h->block)), r0), k64(&e, nr * 4))),
		          k64(&e, 1), k64(&e, 1), strides, k64(&e, 0));
		loop_close(&e);
		loop_close(&e);
		tiles_open(&e, rows, TILE_ROWS, &r0, &count);
		quarters_emit(&e, p, h, m, C, tile, kb, lo, r0, count);
		V quarter = loop_open(&e, k64(&e, 0), k64(&e, QUARTERS), 1), below = i_div(&e, quarter, k64(&e, 2)),
		  aside = i_rem(&e, quarter, k64(&e, 2));
		MatAt place = {val_type(gc->g, op->out[0]),
		               i_add(&e, i_add(&e, lo, r0), i_mul(&e, below, k64(&e, h->m)))};
		EpilogueTile et = {.rows = count,
		                   .column = i_add(&e, i_mul(&e, kb, k64(&e, nr)), i_mul(&e, aside, k64(&e, h->n))),
		                   .columns = k64(&e, nr),
		                   .piece = t,
		                   .done = i_add(&e, i_mul(&e, r0, k64(&e, 2)), i_mul(&e, below, count)),
		                   .tile = tile ? ptr_at(&e, C, i_mul(&e, quarter, k64(&e, TILE_ROWS * nr * 4))) : C,
		                   .tile_columns = nr,
		                   .unroll = p->nv,
		                   .index = mat_index,
		                   .cx = &place};

		epilogue_tile(&e, epi, &et);
		for (int k = 0; k < 4; k++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = h->tasks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
	epilogue_finish(gc, gk, epi, rows_of_piece, (void *)(uintptr_t)h);
}

static void
emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk)
{
	Epilogue epi;
	int panels_of = gemm_pack(gc, op, p, bbuf, &epi, gk);
	Halves h;

	if (!halves_of(gc->g, op, p, &h))
		bug("%s does not halve", op_info[op->kind].name);
	gc->flops_less = op_flops(gc->g, op) / 8;
	int64_t at = gc->g->group.at[gc->group].workspace_offset + align64(panels(gc->g, op, p));

	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, at}));
	int to = (int)gc->buf.n - 1;

	second_emit(gc, p, &h, panels_of >= 0, panels_of >= 0 ? panels_of : bbuf, to, gk);
	main_emit(gc, op, p, &h, abuf, to, &epi, gk);
}

static void
params_read(const Params *q, GemmParams *p)
{
	(void)q;
	p->pack = true;
}

const Algo algo_strassen = {
	.family = FAMILY_cpu_strassen,
	.doc = "large matrix products of f32 by Strassen's algorithm, once over",
	.ops = {OP_matmul},
	.engines = ENGINES_F32,
	.read = params_read,
	.offer = offer,
	.why_not = why_not,
	.time = time_of,
	.chosen = chosen,
	.work = work,
	.panels = panels,
	.workspace = sums_bytes,
	.scratch = scratch,
	.pieces = pieces,
	.emit = emit,
};
