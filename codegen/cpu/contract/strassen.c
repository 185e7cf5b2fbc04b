/* strassen.c: large matrix products by Strassen's algorithm, once over: seven products of halves for eight.
 *
 * In: a group of one matmul of f32.   Out: a kernel that adds up halves of its second operand (seven operands of half
 * the rows and half the columns each, in panels), and the main one. A piece has some rows of the upper half and the
 * same of the lower, its slices are panels: it adds up its own seven first operands in the thread's scratch memory,
 * multiplies panel by panel, and makes of seven products a tile of each quarter of the result, on which the group's
 * epilogue runs as on any tile.
 * Source: Strassen 1969, "Gaussian elimination is not optimal". Error: some half as large again as that of the plain
 * product (root mean square), as sums of two elements are multiplied; held to the bounds of all kernels (tests/cpu).
 * Refused (why_not): sides that do not halve into whole vectors and panels, rows that follow the batch's size, batches
 * of matrices, other types. */
#include "algo.h"
#include <string.h>

enum { PRODUCTS = STRASSEN_PRODUCTS, QUARTERS = STRASSEN_QUARTERS, SUM_LINES = 16, AHEAD = 16, PARTS = 4 };
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
	int64_t sums_at, products_at, scratch; /* of the thread's memory: where those begin, and the products; all */
} Halves;

/* Rows of a task, a multiple of `step`, `most` at most: fewer where that leaves two threads more alike by a 24th. */
static int64_t
even_block(int64_t rows, int64_t most, int64_t step)
{
	int64_t best = most, least = INT64_MAX / 24;

	for (int64_t b = most; b >= step; b -= step) {
		int64_t half = ceil_div(ceil_div(rows, b), 2) * b; /* of one of two threads, at most */

		if (half * 24 < least * 23)
			best = b, least = half;
	}
	return best;
}

static bool
halves_of(const Graph *g, const Op *op, const GemmParams *p, Halves *h)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	Layout memory = {0};
	Mat m;

	if (op->kind != OP_matmul || !matmul_mat(g, op, &m) || m.m.mul || m.batch != 1 || m.m.n % 2 || m.n % (2 * nr) ||
	    m.k % (2 * p->lanes) || m.k % (2 * SUM_LINES))
		return false;
	*h = (Halves){.m = m.m.n / 2, .n = m.n / 2, .k = m.k / 2, .panels = m.n / 2 / nr, .ta = attr_bool(op, A_ta)};
	/* the sums of a task's rows: measured to be best at 1500 KiB where L2 has 1024; of the shape alone, as rows of
	 * a task are added up together */
	int64_t sums = machine_of(g)->budget.l2 / 1024 * 1500;
	int64_t step = h->ta ? 16 : 6, fit = sums / F32(PRODUCTS * h->k) / step * step;

	h->block = fit > ROWS ? ROWS : fit;
	if (h->block < step)
		h->block = step;
	if (h->ta)
		h->block = even_block(h->m, h->block, step);
	/* rows that lie together: whole vectors; else an even number of tasks of as many rows, give or take one */
	h->tasks = ceil_div(h->m, h->block);
	if (!h->ta) {
		h->tasks += h->tasks > 1 && h->tasks % 2 && h->tasks < h->m;
		h->block = ceil_div(h->m, h->tasks);
	}
	GemmParams copied = {.copy = h->ta, .mr = p->mr, .lanes = p->lanes};

	/* room behind each for what a vector holds beyond its rows */
	h->high = gemm_copies_tiles(g, &copied) ? p->mr : h->block;
	h->tile = align64(F32(h->k * h->high)) + (h->high < h->block ? PANEL_ROOM : 0);
	h->sums = ceil_div(h->block, h->high) * h->tile;
	h->sums_at = layout_take(&memory, PRODUCTS * h->sums);
	h->products_at = layout_take(&memory, F32(PRODUCTS * h->block * nr));
	h->scratch = memory.bytes;
	return true;
}

static const char *
why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	Halves h;

	if (cx->half != DT_none)
		return "its operands are not of 32 bits";
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
	 * in the time of a byte; measured, 100 times that number, 180 of vectors that are less than a cache line. */
	if (!halves_of(g, op, p, &h))
		return INFINITY;
	double side = (F32(p->lanes) < machine_of(g)->line ? 180 : 100) * (b->rates.products / b->rates.bytes);

	return (7 + side / (6 / (1.0 / (double)h.m + 1.0 / (double)h.n + 1.0 / (double)h.k))) / 8;
}

/* Where it would pay; a result beyond the caches waits for memory in any case, and so do tasks that the length of the
 * sum leaves few rows: each reads all of the second operand's sums. */
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
	p->next = machine_of(g)->budget.next;
	return time_of(g, op, p, best) <= 1 && halves_of(g, op, p, &h) && 16 * h.m * h.n <= machine_of(g)->budget.l3 &&
	       h.block >= ROWS / 3;
}

static double
work(const Graph *g, const Op *op, const GemmParams *p)
{
	(void)p;
	return 7 * op_flops(g, op) / 8;
}

static int64_t
sums_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Halves h;

	return halves_of(g, op, p, &h) ? F32(PRODUCTS * h.k * h.n) : 0;
}

static const char *
chosen(const Graph *g, const Op *op, const GemmParams *p)
{
	return arena_printf(g->arena, "Strassen's algorithm: seven products of halves for eight, %.1f MiB of workspace",
		(double)gemm_own_workspace(g, op, p) / 1048576);
}

/* The lines of a task of the second operand's sums, of each quarter of a transposed one: [quarter][line][number]. */
static int64_t
transposed_bytes(const Op *op, int64_t nr)
{
	return attr_bool(op, A_tb) ? F32(QUARTERS * SUM_LINES * nr) : 0;
}

static int64_t
scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Halves h;

	if (!halves_of(g, op, p, &h))
		return 0;
	int64_t transposed = transposed_bytes(op, (int64_t)p->nv * p->lanes);

	return h.scratch > transposed ? h.scratch : transposed;
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

/* Lines from `line` on of panel `panel` of each quarter of b, whose columns are rows in memory. */
static void
transpose_quarters(Emit *e, const GemmParams *p, const Halves *h, V b, V panel, V line, V to)
{
	int64_t nr = (int64_t)p->nv * p->lanes, row = F32(2 * h->k);
	/* [aside][below][panel][column][line] */
	Mem from = mem_axes(e, b, BY(h->n * row), BY(F32(h->k)), BY(nr * row), BY(row), BY(4));
	Mem transposed = mem_dense(e, to, DT_f32, QUARTERS, SUM_LINES * nr);
	Pack lines = {.k = SUM_LINES, .k_stride = 4, .j_stride = row};

	for (int q = 0; q < QUARTERS; q++)
		transpose_rows(e, &lines, p, mem_at(e, &from, k64(e, q & 1), k64(e, q >> 1), panel, k64(e, 0), line),
		               mem_at(e, &transposed, k64(e, q)), k64(e, nr));
}

/* The second operand to [panel of a half][product][half of k][nr]. Task: some lines of a panel of a half. */
static void
second_emit(GroupCx *gc, const Op *op, const GemmParams *p, const Halves *h, int src, int dst, GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes, pieces = h->k / SUM_LINES;
	bool transposed = attr_bool(op, A_tb), fresh;
	Emit e = {0};
	int fn = kernel_begin(gc, &e, "sums", &fresh);

	scratch_check(gc, transposed_bytes(op, nr));
	if (fresh) {
		emit_lanes(&e, p->lanes);
		int64_t line = machine_of(gc->g)->line;

		/* past the caches lines are written whole */
		e.stream = sums_bytes(gc->g, op, p) >= machine_of(gc->g)->budget.l2 && F32(nr) % line == 0 &&
		           line <= F32(PARTS * p->lanes);
		int parts = e.stream ? (int)(line / F32(p->lanes)) : 1;
		V b = buffer(&e, src);
		/* [below][aside][panel][line][byte], [panel][product][line][byte] */
		Mem from =
		        mem_axes(&e, b, BY(F32(2 * h->k * h->n)), BY(F32(h->n)), BY(F32(nr)), BY(F32(2 * h->n)), BY(1));
		Mem to = mem_axes(&e, buffer(&e, dst), BY(F32(PRODUCTS * h->k * nr)), BY(F32(h->k * nr)), BY(F32(nr)),
		                  BY(1));

		if (transposed)
			from = mem_axes(&e, scratch_ptr(&e, 0), BY(F32(2 * SUM_LINES * nr)), BY(F32(SUM_LINES * nr)),
			                BY(0), BY(F32(nr)), BY(1));
		TASKS(&e, t) {
			V panel = i_div_k(&e, t, pieces), first_line = i_mul_k(&e, i_rem_k(&e, t, pieces), SUM_LINES);

			if (transposed)
				transpose_quarters(&e, p, h, b, panel, first_line, from.base);
			TIMES(&e, i, SUM_LINES) {
				V at = i_add(&e, first_line, i), x[QUARTERS], r[PARTS][PRODUCTS];

				LOOP(&e, byte, k64(&e, 0), k64(&e, F32(nr)), parts * F32(p->lanes))
				{
					for (int j = 0; j < parts; j++) {
						V part = i_add_k(&e, byte, j * F32(p->lanes));

						for (int q = 0; q < QUARTERS; q++)
							x[q] = vec_load(&e,
							                mem_at(&e, &from, k64(&e, q >> 1),
							                       k64(&e, q & 1), panel,
							                       transposed ? i : at, part),
							                NULL);
						strassen_second(&e, x, r[j]);
					}
					for (int q = 0; q < PRODUCTS; q++)
						for (int j = 0; j < parts; j++)
							vec_store(&e,
							          mem_at(&e, &to, panel, k64(&e, q), at,
							                 i_add_k(&e, byte, j * F32(p->lanes))),
							          r[j][q], NULL);
				}
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = h->panels * pieces, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* A task's first operands, rows [lo, lo + rows) of both halves: [product][row][k], or, of a transposed one, whose rows
 * lie together in memory, [product][tile][k][row]. */
static void
first_sums(Emit *e, const GemmParams *p, const Halves *h, V from, V lo, V rows, V to)
{
	int64_t line = h->ta ? F32(2 * h->m) : F32(2 * h->k), down = h->ta ? F32(h->m) : h->m * line,
	        right = h->ta ? h->k * line : F32(h->k), width = h->ta ? h->high : h->k,
	        tiles = h->ta ? ceil_div(h->block, h->high) : 1;
	/* [below][aside], then [row][k] or [k][row]; the same some lines on; [product][tile], then those */
	Mem quarters = mem_axes(e, from, BY(down), BY(right), BY(line), BY(4)), ahead = quarters;
	Mem out = mem_axes(e, to, BY(h->sums), BY(h->tile), OF(width), BY(4));

	ahead.start = k64(e, AHEAD * line);
	LOOP(e, i, k64(e, 0), h->ta ? k64(e, h->k) : rows, 1) TIMES(e, tile, tiles)
	LOOP(e, j, k64(e, 0), k64(e, width), p->lanes) {
		V row = i_add(e, i_mul_k(e, tile, h->high), j), mask = NULL, x[QUARTERS], r[PRODUCTS];
		V outer = h->ta ? i : i_add(e, lo, i), inner = h->ta ? i_add(e, lo, row) : j;

		if (h->ta)
			mask = row_mask(e, i_sub(e, rows, row), 0);
		for (int q = 0; q < QUARTERS; q++) {
			V below = k64(e, q >> 1), aside = k64(e, q & 1);

			x[q] = vec_load(e, mem_at(e, &quarters, below, aside, outer, inner), mask);
			/* the CPU's own prefetching does not see lines that are pages apart; of the L1 they would share
			 * a set */
			if (h->ta)
				prefetch(e, mem_at(e, &ahead, below, aside, outer, inner), 2);
		}
		strassen_first(e, x, r);
		for (int q = 0; q < PRODUCTS; q++)
			vec_store(e, mem_at(e, &out, k64(e, q), tile, i, j), r[q], h->high < h->block ? NULL : mask);
	}
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
	return h->ta ? i_min(e, k64(e, h->m), i_mul_k(e, task, h->block))
	             : i_div_k(e, i_mul_k(e, task, h->m), h->tasks);
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

	return i_mul(e, k64(e, 2), i_sub(e, row_of_task(e, h, i_add_k(e, piece, 1)), row_of_task(e, h, piece)));
}

/* A tile of each quarter of the result C, of the seven products of `count` rows from r0 on, [row][product][number]; lo:
 * the first row. tile: C is a tile, not the result. */
static void
quarters_emit(Emit *e, const GemmParams *p, const Halves *h, const Mem *products, V C, bool tile, V kb, V lo, V r0,
              V count)
{
	int64_t nr = (int64_t)p->nv * p->lanes, N = 2 * h->n, quarter = F32(TILE_ROWS * nr);
	/* [below][aside][row][panel][number] */
	Mem to = tile ? mem_axes(e, C, BY(2 * quarter), BY(quarter), BY(F32(nr)), BY(0), BY(4))
	              : mem_axes(e, C, BY(F32(h->m * N)), BY(F32(h->n)), BY(F32(N)), BY(F32(nr)), BY(4));

	EACH(e, i, count) {
		V row = i_add(e, lo, i_add(e, r0, i));
		Mem from = mem_part(e, products, i_add(e, r0, i));

		for (int j = 0; j < p->nv; j++) {
			V x[PRODUCTS], y[QUARTERS], at = k64(e, j * p->lanes);

			for (int k = 0; k < PRODUCTS; k++)
				x[k] = vec_load(e, mem_at(e, &from, k64(e, k), at), NULL);
			strassen_quarters(e, x, y);
			for (int k = 0; k < QUARTERS; k++)
				vec_store(e, mem_at(e, &to, k64(e, k >> 1), k64(e, k & 1), tile ? i : row,
				                    tile ? NULL : kb, at), y[k], NULL);
		}
	}
}

/* The epilogue on a tile of each quarter: `count` rows from r0 on of task t's, panel kb. */
static void
quarters_epilogue(Emit *e, Epilogue *epi, const GemmParams *p, const Halves *h, V C, bool tile, V t, V kb, V lo, V r0,
                  V count)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	Mem tiles = mem_dense(e, C, DT_f32, QUARTERS, TILE_ROWS, nr);

	TIMES(e, quarter, QUARTERS) {
		V below = i_div_k(e, quarter, 2), aside = i_rem_k(e, quarter, 2);
		MatAt place = {val_type(epi->gc->g, epi->op->out[0]),
		               i_add(e, i_add(e, lo, r0), i_mul_k(e, below, h->m))};
		EpilogueTile et = {.rows = count,
		                   .column = i_add(e, i_mul_k(e, kb, nr), i_mul_k(e, aside, h->n)),
		                   .columns = k64(e, nr),
		                   .piece = t,
		                   .done = i_add(e, i_mul_k(e, r0, 2), i_mul(e, below, count)),
		                   .tile = tile ? mem_at(e, &tiles, quarter) : C,
		                   .tile_columns = nr,
		                   .unroll = p->nv,
		                   .index = mat_index,
		                   .cx = &place};

		epilogue_tile(e, epi, &et);
	}
}

/* Rows of piece t: its sums, products of panels [kb0, kb1), and of each panel's the quarters of the result. C: the
 * result, or a tile of each quarter. */
static void
task_emit(Emit *e, Epilogue *epi, const GemmParams *p, const Halves *h, const Tiles *tiles, V A, V B, V C, bool tile,
          V strides, V t, V kb0, V kb1)
{
	bool tiled = h->high < h->block;
	int64_t nr = (int64_t)p->nv * p->lanes;
	V sums = scratch_ptr(e, h->sums_at), products = scratch_ptr(e, h->products_at);
	/* [product][tile or row]; [panel][product][k][number]; [product][row][number], the same row by row */
	Mem a = mem_axes(e, sums, BY(h->sums), BY(tiled ? h->tile : h->ta ? 4 : F32(h->k)));
	Mem b = mem_dense(e, B, DT_f32, h->panels, PRODUCTS, h->k, nr);
	Mem m = mem_dense(e, products, DT_f32, PRODUCTS, h->block, nr);
	Mem by_row = mem_axes(e, products, BY(F32(nr)), BY(F32(h->block * nr)), BY(4));
	V lo = row_of_task(e, h, t), rows = i_sub(e, row_of_task(e, h, i_add_k(e, t, 1)), lo);

	first_sums(e, p, h, A, lo, rows, sums);
	LOOP(e, kb, kb0, kb1, 1) {
		TIMES(e, q, PRODUCTS) {
			V panel = mem_at(e, &b, kb, q), after = ptr_at(e, panel, k64(e, F32(h->k * nr)));

			TILES_CUT(e, r0, count, tiled, rows, p->mr) {
				V row = tiled ? i_div_k(e, r0, p->mr) : r0;

				panel_next(e, p, strides, after, r0, h->k);
				tile_call(e, tiles, count, k64(e, 0), 1, mem_at(e, &a, q, row),
				          panel, mem_at(e, &m, q, r0), NULL, NULL, strides, NULL);
			}
		}
		TILES(e, r0, count, rows, TILE_ROWS) {
			quarters_emit(e, p, h, &by_row, C, tile, kb, lo, r0, count);
			quarters_epilogue(e, epi, p, h, C, tile, t, kb, lo, r0, count);
		}
	}
}

static void
main_emit(GroupCx *gc, const Op *op, const GemmParams *p, const Halves *h, int abuf, int sums_at, Epilogue *epi,
          GraphKernels *gk)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	GemmParams shared = panel_shared(p, h->block);
	Emit e = {0};
	bool fresh, tile;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	p = &shared;
	scratch_check(gc, scratch(gc->g, op, p));
	if (fresh) {
		emit_lanes(&e, p->lanes);
		V A = buffer(&e, abuf), B = buffer(&e, sums_at),
		  C = epilogue_raw(&e, epi, QUARTERS * TILE_ROWS, nr, &tile);
		Tiles tiles = tiles_make(&e, p, nr, rows_set(p, h), (Steps){h->ta ? F32(h->high) : 4, F32(nr)});
		V strides = strides_of_constants(&e, (const int64_t[S_COUNT]){[S_AM] = h->ta ? 4 : F32(h->k),
		                                                            [S_AK] = h->ta ? F32(h->high) : 4,
		                                                            [S_BK] = F32(nr),
		                                                            [S_CM] = F32(nr),
		                                                            [S_NK] = h->k});

		SLICES(&e, t, h->panels, kb0, kb1)
			task_emit(&e, epi, p, h, &tiles, A, B, C, tile, strides, t, kb0, kb1);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(h->tasks, h->panels), fresh, false);
	epilogue_finish(gc, gk, epi, rows_of_piece, (void *)(uintptr_t)h);
}

static void
emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk)
{
	Epilogue epi;
	Halves h;

	if (!halves_of(gc->g, op, p, &h))
		bug("%s does not halve", op_info[op->kind].name);
	gemm_epilogue(gc, op, p, &epi);
	gc->flops_less = op_flops(gc->g, op) / 8;
	int64_t at = gc->g->group.at[gc->group].workspace_offset;

	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, at}));
	int to = (int)gc->buf.n - 1;

	second_emit(gc, op, p, &h, bbuf, to, gk);
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
	.workspace = sums_bytes,
	.scratch = scratch,
	.pieces = pieces,
	.emit = emit,
};
