/* gemm_params.c: parameters of register-blocked products of the operands themselves (rows algo_direct, algo_dw), and
 * the memory that any row needs.
 *
 * In: a contraction that these kernels take (gemm_possible), f32, or f16 or bf16 with f32 sums.   Out: default
 * parameters, bytes. */
#include "algo.h"
#include <string.h>

static int64_t
images_of(const Graph *g, const Op *op, const GemmParams *p)
{
	return ceil_div(val_type(g, op->in[0])->axis[0].n, gemm_unit(p));
}

/* What a pass reads of the first operand for one tile stays in L1 for the next, a line for each of its steps; images
 * are divided before rows of pixels are put together. Not fewer than 8, or than fill two lines of the first operand:
 * these follow each other (3 channels, 16 images, Zen 3: 16 at once take 12 ms, 8 and 8 take 19). */
static void
set_pass(const Graph *g, const Op *op, GemmParams *p)
{
	enum { FEWEST = 8, NUMBERS = 32 };
	const int64_t steps = machine_of(g)->budget.pass;
	const Type *gr = val_type(g, op->in[1]);
	int64_t n = images_of(g, op, p), row = gr->axis[3].n, rows = gr->axis[2].n, images = n, band;
	int64_t channels = val_type(g, op->in[0])->axis[1].n;

	while (images > FEWEST && row * images > steps && images % 2 == 0 && images / 2 * channels >= NUMBERS)
		images /= 2;
	band = steps / (row * images);
	p->images = images == n ? 0 : (int)images;
	p->band = (int)(band < 1 ? 1 : band < rows ? band : rows);
}

/* Large pixels: rows of many images drive each other out of the caches, as they are multiples of powers of two apart.
 * At multiples of a KiB, the least of large pixels, L1 keeps a line of as many as it has KiB. */
static void
set_images(const Graph *g, const Op *op, GemmParams *p)
{
	const Budget *fits = &machine_of(g)->budget;
	int64_t n = images_of(g, op, p), most = fits->l1 / 1024, k = most;

	p->images = 0;
	if (op->kind != OP_conv2d_dw)
		return;
	if (fits->pass && p->engine == ENGINE_FMA) {
		set_pass(g, op, p);
		p->copy = fits->dw_copy && gemm_copies(g, op, p);
		return;
	}
	if (n <= most)
		return;
	if (F32(n * (val_type(g, op->in[0])->axis[1].n + val_type(g, op->in[1])->axis[1].n)) < fits->l2 / 8)
		return;
	while (n % k)
		k--;
	if (k >= most / 4)
		p->images = (int)k;
}

/* Operands that lie in memory: a band of the first is read again for each panel, the second once. Short sums would load
 * and store their tiles too often. */
static void
set_band(const Graph *g, const Op *op, GemmParams *p)
{
	enum { SUMS = 512 }; /* of a tile between its load and its store */

	if (op->kind != OP_conv2d_dw || engine_of(p)->side_by_side || !(engine_pairs(p) || p->parts == 1))
		return;
	if (machine_of(g)->budget.pass && p->engine == ENGINE_FMA)
		return;
	int64_t sums = val_type(g, op->in[1])->axis[3].n * (p->images ? p->images : images_of(g, op, p)),
	        rows = val_type(g, op->in[1])->axis[2].n;
	int64_t fit = machine_of(g)->budget.l2 / F32(sums * val_type(g, op->in[0])->axis[1].n);
	int64_t band = fit * sums < SUMS ? fit : SUMS / sums;

	p->band = (int)(band < 1 ? 1 : band < rows ? band : rows);
}

/* A transposed operand: a tile takes some elements of each of its rows, a cache line each, and the next tile, which
 * would take the rest, finds the lines gone. Rows whose distance is a multiple of half a page meet in few sets of the
 * caches; on some machines the products wait for any line from beyond L1 (copy_steps). Few blocks of rows are parted
 * among threads, each of which would copy them. */
static bool
copy_pays(const Graph *g, const Op *op, const GemmParams *p)
{
	enum { LONG = 512, BLOCKS = 8 };
	Mat m;

	if (!gemm_copies(g, op, p) || !matmul_mat(g, op, &m) || m.m.mul)
		return false;
	if (m.budget->copy_steps)
		return m.m.n >= 2 * matmul_block(&m, p) && m.k >= m.budget->copy_steps && m.n >= p->nv * p->lanes;
	return m.m.n % LONG == 0 && m.k >= LONG && m.n >= 4 * p->nv * p->lanes &&
	       m.batch * ceil_div(m.m.n, matmul_block(&m, p)) >= BLOCKS;
}

GemmParams
gemm_tile(int lanes)
{
	return (GemmParams){.lanes = lanes, .mr = lanes == 4 ? 3 : 6, .nv = lanes == 8 ? 2 : 4};
}

void
gemm_tile_columns(GemmParams *p, int64_t n)
{
	int lanes = p->lanes;

	while (p->nv > 1 && (p->nv - 1) * p->lanes >= n)
		p->nv--;
	if (lanes == 16 && p->nv <= 2)
		p->mr = p->nv == 1 ? 14 : 12;
	if (lanes == 4)
		p->mr = 12 / p->nv;
}

/* The tile for n columns: no wider than they are, as many rows as the registers leave. */
static void
tile_for_columns(GemmParams *p, int64_t n)
{
	int lanes = p->lanes;

	gemm_tile_columns(p, n);
	if (n <= 8 && lanes > 8)
		p->lanes = 8;
}

/* The tile for n columns in vectors of half the width: panels as equal as they can be, as many rows as the registers
 * leave. */
void
gemm_halve(GemmParams *p, int64_t n)
{
	static const int rows[] = {14, 12, 8, 6};
	int64_t vectors;

	p->lanes /= 2;
	vectors = ceil_div(n, p->lanes);
	p->nv = (int)ceil_div(vectors, ceil_div(vectors, 4));
	p->mr = rows[p->nv - 1];
}

bool
gemm_halves(const Graph *g)
{
	return machine_of(g)->vector_bytes == 64 && machine_of(g)->fmas <= 1;
}

/* Few columns whose last vector would be half full at most. Of more than 80 it is less than a tenth of them, and what
 * tiles of whole vectors gain is more: measured on Zen 4, 88 to 728 columns, products and convolutions 1.0 to 1.15
 * times as fast, gradients in weights 1.0 to 1.3; of 24 to 72 0.74 to 0.97 times. */
static void
set_lanes(const Graph *g, const Op *op, GemmParams *p)
{
	const Type *o = val_type(g, op->out[0]);
	int64_t n = op->kind == OP_matmul      ? o->axis[o->rank - 1].n
	            : op->kind == OP_conv2d_dw ? o->axis[0].n / gemm_groups(op)
	                                       : o->axis[1].n / gemm_groups(op);

	if (p->engine == ENGINE_FMA && p->lanes == 16 && gemm_halves(g) && n <= 80 && ceil_div(n, p->lanes / 2) % 2)
		gemm_halve(p, n);
}

/* Rows that meet one second operand: leading axes are among them where all of these share it. */
static int64_t
product_rows(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]);
	Mat m;

	return matmul_mat(g, op, &m) ? m.m.n : o->axis[o->rank - 2].n;
}

/* Default parameters: tiles that fill the registers (32 vectors of 64 bytes, 16 of 32), blocks that fit L2. */
GemmParams
gemm_params(const Graph *g, const Op *op, int vector_bytes)
{
	bool wide = vector_bytes == 64;
	int64_t fits = machine_of(g)->budget.l2;
	GemmParams p = gemm_tile(vector_bytes / 4);
	const Type *a = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);

	p.parts = p.band = 1;
	p.pack = true;
	if (op->kind == OP_matmul) {
		int64_t n = o->axis[o->rank - 1].n;

		tile_for_columns(&p, n);
		/* a large second operand is read in strips of its rows, a page each, once for every block of the
		 * result's rows */
		p.pack = attr_bool(op, A_tb) || (n > p.nv * p.lanes && product_rows(g, op) >= 64
		         && type_bytes(val_type(g, op->in[1])) >= fits / 2);
		p.copy = copy_pays(g, op, &p);
	} else if (op->kind == OP_conv2d_dw) {
		const Type *gr = val_type(g, op->in[1]);
		int64_t bytes = type_bytes(o), rows = gr->axis[2].n, columns = o->axis[0].n / gemm_groups(op);
		int64_t row = F32(gr->axis[3].n * gr->axis[0].n * (gr->axis[1].n + a->axis[1].n));

		p.pack = false;
		p.mr = wide ? 12 : 6;
		p.nv = 2;
		if (machine_of(g)->budget.dw_vectors > 2 && columns > 2 * p.lanes) {
			p.nv = columns > 3 * p.lanes ? 4 : 3;
			p.mr = p.nv == 4 ? 6 : 8;
		}
		if (columns <= 8 && p.lanes > 8)
			p.lanes = 8;
		if (columns <= p.lanes) {
			p.nv = 1;
			p.mr = wide ? 14 : 8;
		}
		if (vector_bytes == 16) {
			p = (GemmParams){.mr = 3, .nv = 4, .lanes = 4, .parts = 1};
			gemm_tile_columns(&p, columns);
		}
		if (bytes <= fits)
			p.parts = rows < 4 ? (int)rows : 4;
		p.band = (int)(fits / 2 / (row ? row : 1));
		if (p.band < 1)
			p.band = 1;
		if (p.band > rows)
			p.band = (int)rows;
	} else {
		int64_t k = o->axis[1].n / gemm_groups(op), weights = type_bytes(val_type(g, op->in[1]));

		tile_for_columns(&p, k);
		p.panel_outer = weights > type_bytes(a) && k >= 4 * p.nv * p.lanes;
	}
	return p;
}

int
gemm_ahead(const Graph *g, const GemmParams *p, int64_t rows, int64_t bytes)
{
	enum { FEW = 256 };
	const Budget *b = &machine_of(g)->budget;

	return rows <= FEW && bytes >= b->l2 / 2 ? (int)(b->ahead / F32(p->nv * p->lanes)) : 0;
}

void
gemm_few_rows(const Graph *g, GemmParams *p, int64_t bytes)
{
	enum { FETCHED = 8 << 10 };

	if (p->lanes == 16 && p->nv == 4) { /* as many panels as threads want, too */
		p->mr = 12;
		p->nv = 2;
	}
	p->ahead = bytes >= machine_of(g)->budget.l2 / 2 ? FETCHED / (int)F32(p->nv * p->lanes) : 0;
}

/* A small tile waits for its own additions: rows of the product, vectors of the default tile. */
int
gemm_chains(const Graph *g, const Op *op, const GemmParams *p, int vector_bytes)
{
	enum { ENOUGH = 12 }; /* sums that hide the latency of two units */
	GemmParams d = gemm_params(g, op, vector_bytes);
	const Type *x = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	int64_t rows = 0;
	int chains = 1;
	Mat m;

	if (p->chains || !p->algo->chains || !engine_of(p)->chains)
		return p->chains ? p->chains : 1;
	if (op->kind == OP_matmul)
		rows = matmul_mat(g, op, &m) ? m.m.n : 0;
	else if (op->kind == OP_conv2d_dw)
		rows = wgrad_columns(g, op, p) ? o->axis[3].n : x->axis[1].n / gemm_groups(op);
	else
		rows = o->axis[3].n * o->axis[0].n;
	while (chains < 8 && 2 * chains * d.nv * (rows < d.mr ? rows : d.mr) <= ENOUGH)
		chains *= 2;
	return chains;
}

bool
gemm_owns(const Graph *g, const Op *op, const GemmParams *p, int vector_bytes)
{
	Mat m;

	if (op->kind != OP_matmul || p->copy || !(engine_pairs(p) ? !pack_of(g, op, true).odd : attr_bool(op, A_tb)))
		return false;
	return matmul_mat(g, op, &m) && m.batch == 1 && m.m.n <= matmul_block(&m, p)
	       && gemm_chains(g, op, p, vector_bytes) == 1;
}

/* ---------------------------------------------------------------- bytes, whatever the row */
int64_t
pack_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	if (!p->pack || p->own)
		return 0;
	Pack k = pack_of(g, op, engine_pairs(p));
	int64_t nr = (int64_t)p->nv * p->lanes;

	return F32(k.groups * k.taps * k.k * ceil_div(k.j, nr) * nr);
}

int64_t
gemm_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->algo->scratch ? p->algo->scratch(g, op, p) : 0;
}

int64_t
gemm_panels(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->algo->panels ? p->algo->panels(g, op, p) : 0;
}

/* Does op's group keep them from call to call? */
static bool
is_prepacked(const Graph *g, const Op *op)
{
	return op->group >= 0 && g->group.at[op->group].prepacked > 0;
}

int64_t
gemm_own_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	return (is_prepacked(g, op) ? 0 : gemm_panels(g, op, p)) +
	       (p->algo->workspace ? p->algo->workspace(g, op, p) : 0);
}

/* Bytes of operand k's copy, 0 if it is read as it lies: made by this kernel, in pairs, or in f32 where the CPU
 * does not multiply 16-bit elements. */
int64_t
gemm_copy_bytes(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	bool copy = prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_COPY;

	if (pads_rows(g, op, p, k)) {
		const Type *t = val_type(g, op->in[k]);

		return align64((type_elements(t) + type_elements(t) / t->axis[t->perm[t->rank - 1]].n) * 2);
	}
	if (!copy && (p->algo->widens || !gemm_half(g, op) || (engine_pairs(p) && !vnni_row(g, op, k))))
		return 0;
	int64_t n = type_elements(val_type(g, op->in[k]));

	return align64(!engine_pairs(p)      ? F32(n)
	               : vnni_row(g, op, k) ? F32(vnni_rows(val_type(g, op->in[k])) * vnni_line(g, op, k))
	                                     : n * 2);
}

bool
gemm_prepacks(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->algo->keeps && gemm_panels(g, op, p) > 0 && !gemm_copy_bytes(g, op, p, 1);
}

int64_t
gemm_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t bytes = gemm_own_workspace(g, op, p);

	for (int k = 0; k < 2; k++)
		if (gemm_copy_bytes(g, op, p, k))
			bytes = align64(bytes) + gemm_copy_bytes(g, op, p, k);
	return bytes;
}

int64_t
gemm_pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->algo->pieces(g, op, p);
}

int64_t
gemm_group_workspace(const Graph *g, int group, const Op *op, const GemmParams *p)
{
	int64_t n = gemm_workspace(g, op, p), states = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *x = &g->op.at[i];

		if (!x->dead && x->group == group && op_info[x->kind].red >= 0)
			states += epilogue_workspace(g, x, gemm_pieces(g, op, p));
	}
	return states ? align64(n) + states : n;
}

/* ---------------------------------------------------------------- products of the operands themselves */
bool
products_offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p)
{
	const Algo *row = p->algo;
	Mat m;

	(void)best;
	if (!gemm_possible(g, op))
		return false;
	*p = gemm_params(g, op, cx->arch->vector_bytes);
	p->algo = row;
	engine_set(g, op, engine_choose(g, op, cx->arch, cx->half), p);
	if (p->engine == ENGINE_FMA && op->kind == OP_matmul)
		p->ahead = gemm_ahead(g, p, product_rows(g, op), type_bytes(val_type(g, op->in[1])));
	set_lanes(g, op, p);
	if (!cx->prepacked && engine_of(p)->owns && gemm_owns(g, op, p, cx->arch->vector_bytes)) {
		p->own = true;
		p->ahead = 0;
	}
	if (op->kind == OP_matmul && matmul_mat(g, op, &m) && matmul_lines(&m, p))
		p->ahead = matmul_lines(&m, p); /* the next pass' lines, while tiles of rows go over this one's */
	p->next = op->kind == OP_matmul && p->engine != ENGINE_F16 && p->pack && !p->own && !p->ahead
	          && machine_of(g)->budget.next;
	set_images(g, op, p);
	set_band(g, op, p);
	return true;
}

int64_t
products_pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	if (op->kind != OP_matmul) {
		const Type *o = val_type(g, op->out[0]);
		int64_t cut = op->kind == OP_conv2d_dw ? o->axis[3].n : image_cut(g, op, p);

		return o->axis[2].n * ceil_div(o->axis[3].n, cut);
	}
	matmul_mat(g, op, &m);
	return m.batch * ceil_div(m.m.n, matmul_block(&m, p));
}

/* ---------------------------------------------------------------- the gradient in a convolution's weights */
