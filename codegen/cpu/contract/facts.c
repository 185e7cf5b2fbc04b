/* facts.c: what a contraction is, as far as its kernels ask: types, layouts, extents; what tasks follow from these and
 * from a tile.
 *
 * In: a contraction; parameters where they count.   Out: numbers and yes or no; nothing is chosen here.
 * Refuses (gemm_possible): other types than f32, f16 and bf16, other layouts than HWNC activations, HWIO weights and
 * row-major matrices, batch-dependent inner extents; those take the plain kernel. */
#include "gemm.h"

static bool
perm_is(const Type *t, int a, int b, int c, int d)
{
	return t->rank == 4 && t->perm[0] == a && t->perm[1] == b && t->perm[2] == c && t->perm[3] == d;
}

static bool
half(DType t)
{
	return t == DT_f16 || t == DT_bf16;
}

DType
gemm_half(const Graph *g, const Op *op)
{
	DType t = (DType)val_type(g, op->in[0])->dtype;

	return half(t) ? t : DT_none;
}

static bool
dtype_ok(const Type *t)
{
	return t->dtype == DT_f32 || half((DType)t->dtype);
}

static bool
act_ok(const Type *t)
{
	return dtype_ok(t) && perm_is(t, 2, 3, 0, 1) && !t->axis[1].mul && !t->axis[2].mul && !t->axis[3].mul;
}

static bool
weight_ok(const Type *t)
{
	return dtype_ok(t) && perm_is(t, 2, 3, 1, 0);
}

bool
matmul_mat(const Graph *g, const Op *op, Mat *m)
{
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	bool ta = attr_bool(op, A_ta);

	if (!dtype_ok(a) || !type_is_plain(a) || !type_is_plain(b) || !type_is_plain(o) || a->rank < 2 || b->rank < 2)
		return false;
	Axis k = a->axis[a->rank - (ta ? 2 : 1)], n = o->axis[o->rank - 1];

	if (k.mul || n.mul || b->axis[b->rank - 1].mul || b->axis[b->rank - 2].mul)
		return false;
	*m = (Mat){.rank = o->rank, .m = o->axis[o->rank - 2], .n = n.n, .k = k.n, .batch = 1,
	           .budget = &machine_of(g)->budget};
	bool b_batch = false;

	for (int i = 0; i + 2 < o->rank; i++)
		m->batch *= o->axis[i].n;
	for (int i = 0; i + 2 < b->rank; i++)
		b_batch |= b->axis[i].n != 1;
	if (!b_batch && !ta && m->batch > 1 && a->rank == o->rank) {
		Axis r = axis(1);
		int64_t plain = 1;

		for (int i = 0; i + 1 < o->rank; i++) {
			if (o->axis[i].n != a->axis[i].n || (o->axis[i].mul && r.mul))
				return false;
			if (o->axis[i].mul)
				r = o->axis[i];
			else
				plain *= o->axis[i].n;
		}
		if (r.mul && plain > INT32_MAX / r.mul)
			return false;
		r.n *= plain;
		r.mul *= (int32_t)plain;
		m->m = r;
		m->merged = true;
		m->batch = 1;
	}
	return true;
}

int64_t
gemm_groups(const Op *op)
{
	return op->kind == OP_matmul ? 1 : attr_int(op, A_groups);
}

/* Layouts, types and extents that the microkernel takes. */
bool
gemm_possible(const Graph *g, const Op *op)
{
	Mat m;

	switch (op->kind) {
	case OP_matmul:
		return matmul_mat(g, op, &m);
	case OP_conv2d:
	case OP_conv2d_dx:
		return act_ok(val_type(g, op->in[0])) && weight_ok(val_type(g, op->in[1])) &&
		       act_ok(val_type(g, op->out[0]));
	case OP_conv2d_dw:
		return act_ok(val_type(g, op->in[0])) && act_ok(val_type(g, op->in[1])) &&
		       weight_ok(val_type(g, op->out[0])) && val_type(g, op->out[0])->dtype == DT_f32 &&
		       !val_type(g, op->in[0])->axis[0].mul;
	default:
		return false;
	}
}

/* Height of pieces of few rows: the one by which 2 and 8 threads, whose tasks are a piece's panels, have the least to
 * do at most. A piece reads its panels, which takes as long as so many rows: a last piece of few rows is dear. */
static int64_t
even_rows(int64_t rows, int64_t panels)
{
	enum { STEP = 6, LEAST = 12, MOST = 72, PANEL = 6, FEW = 2, MANY = 8 };
	int64_t best = MOST, least = INT64_MAX;

	for (int64_t h = MOST; h >= LEAST; h -= STEP) {
		int64_t tasks = ceil_div(rows, h) * panels, high = h < rows ? h : rows,
		        cost = (ceil_div(tasks, FEW) + ceil_div(tasks, MANY)) * (high + PANEL);

		if (cost < least)
			best = h, least = cost;
	}
	return best;
}

/* Some eight tiles of usual size; narrow products have higher ones. Each task reads all of the second operand, from
 * beyond L2 where it is large: on some machines tasks are higher (task_rows), and as many as some cores share alike. */
int64_t
matmul_block(const Mat *m, const GemmParams *p)
{
	enum { VECTOR = 16, PANEL = 4 * VECTOR, USUAL = 48, SHARED = 8, STEP = 6, FEW = 16 * USUAL };
	int64_t high = m->budget->task_rows, tasks = high ? ceil_div(m->m.n, high) : 0;

	if (engine_of(p)->task)
		return engine_of(p)->task;
	if (m->n > 2 * VECTOR && 2 * tasks >= SHARED) {
		tasks = ceil_div(tasks, SHARED) * SHARED;
		return ceil_div(ceil_div(m->m.n, tasks), STEP) * STEP;
	}
	if (m->n <= 2 * VECTOR)
		return m->n <= VECTOR ? 112 : 96;
	int64_t panels = m->batch * ceil_div(m->n, PANEL);
	bool one = m->m.n <= USUAL && panels > 2; /* a piece: tasks may make panels themselves, read lines whole */

	return one || m->m.n > FEW ? USUAL : even_rows(m->m.n, panels);
}

int64_t
matmul_panel_bytes(const GemmParams *p)
{
	return p->own ? F32(p->nv * p->lanes * (OWN_STEPS + (engine_pairs(p) ? ROUNDED_STEPS : 0))) : 0;
}

/* Few rows over a second operand that is read as it lies, in lines of a page or more: with few steps a pass reads these
 * whole, which the CPU asks memory for by itself. From 4 rows on no shape interleaves its sums (gemm_chains). */
static bool
reads_lines(const Mat *m, const GemmParams *p)
{
	enum { PAGE = 4096, ROWS = 4, SUMS = 512 << 10 };

	return !p->pack && !p->copy && p->chains <= 1 && m->batch == 1 && m->m.n >= ROWS
	       && m->m.n <= matmul_block(m, p) && F32(m->n) >= PAGE && m->m.n * m->n <= SUMS;
}

/* Steps of a pass that reads lines whole; 0: none does. */
int
matmul_lines(const Mat *m, const GemmParams *p)
{
	enum { LINES = 64 };

	return !p->own && p->engine == ENGINE_FMA && m->k > 4 * LINES && reads_lines(m, p) ? LINES : 0;
}

/* Partial sums of all columns stand in the thread's memory meanwhile, which has room for those of so many. */
int64_t
matmul_steps(const Mat *m, const GemmParams *p)
{
	enum { LONG = 4096, STEPS = 1024, SUMS = 256 << 10 };
	int64_t most = p->next ? LONG / 2 : LONG; /* L2 holds two panels then, beside a task's rows */
	bool fits = matmul_block(m, p) * m->n <= SUMS;
	int lines = matmul_lines(m, p);

	if (p->own)
		return m->k < OWN_STEPS ? m->k : OWN_STEPS;
	if (lines)
		return lines;
	return p->engine == ENGINE_FMA && m->k > most && fits ? STEPS : m->k;
}

int64_t
matmul_tile_bytes(const Mat *m, int64_t high)
{
	return align64(F32(m->k * high)) + PANEL_ROOM;
}

int64_t
matmul_copy_bytes(const Mat *m, const GemmParams *p, bool tiled)
{
	int64_t block = matmul_block(m, p), tiles = tiled ? ceil_div(block, p->mr) * matmul_tile_bytes(m, p->mr) : 0,
	        all = tiled ? matmul_tile_bytes(m, block) : F32(m->k * block);

	return tiles > all ? tiles : all;
}

bool
gemm_copies(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	if (op->kind == OP_conv2d_dw)
		return !engine_pairs(p) && !wgrad_columns(g, op, p);
	return op->kind == OP_matmul && attr_bool(op, A_ta) && !engine_of(p)->side_by_side && matmul_mat(g, op, &m)
	       && F32(m.k) <= 4 * machine_of(g)->budget.l2 / matmul_block(&m, p);
}

/* Vectors of half a line: with the rows of a piece side by side a tile's steps would be lines apart, each with a part
 * of it. Not where its rows fill a vector by half at most. */
bool
gemm_copies_tiles(const Graph *g, const GemmParams *p)
{
	const Machine *m = machine_of(g);

	return p->copy && m->vector_bytes < m->line && 2 * p->mr > p->lanes;
}

bool
wgrad_columns(const Graph *g, const Op *op, const GemmParams *p)
{
	return val_type(g, op->in[0])->axis[1].n == 1 && val_type(g, op->out[0])->axis[3].n > 1 && !engine_pairs(p);
}

/* Where a row of pixels is more than a pass should hold. The filter's columns as rows of the product need whole
 * rows. */
int64_t
wgrad_cut(const Graph *g, const Op *op, const GemmParams *p)
{
	enum { STEPS = 1024 }; /* of a sum: fewer would load and store their tiles too often */
	const Type *x = val_type(g, op->in[0]), *gr = val_type(g, op->in[1]);
	const Budget *b = &machine_of(g)->budget;
	int64_t width = gr->axis[3].n, n = p->images ? p->images : ceil_div(x->axis[0].n, gemm_unit(p));
	int64_t most = b->l2 / 2 / F32(n * (x->axis[1].n + gr->axis[1].n));

	if (b->pass && p->engine == ENGINE_FMA)
		most = b->pass / n;
	else if (most * n < STEPS)
		most = STEPS / n;
	if (p->band > 1 || wgrad_columns(g, op, p) || width <= 2 * most)
		return width;
	return ceil_div(width, ceil_div(width, most < 1 ? 1 : most));
}
