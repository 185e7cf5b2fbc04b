/* gemm_params.c: which contractions the register-blocked microkernel takes, with which parameters, and the workspace that they need.
 *
 * In: a contraction of f32, or of f16 or bf16 with f32 sums, whose layouts fit: HWNC activations and HWIO weights, or row-major matrices. Out: default
 * parameters, their text in the IR, bytes. What a tuning file says of them is tuned.c's.
 * Refuses (gemm_can): other types, batch-dependent inner extents; those take the plain kernel. */
#include "gemm.h"
#include <string.h>

enum { COPY_BYTES = 4 << 20 }; /* of a thread's memory, for GemmParams.copy */

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
	*m = (Mat){.rank = o->rank, .m = o->axis[o->rank - 2], .n = n.n, .k = k.n, .batch = 1};
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

bool
gemm_can(const Graph *g, const Op *op, int vector_bytes)
{
	Mat m;

	if (vector_bytes < 32)
		return false;
	switch (op->kind) {
	case OP_matmul:
		return matmul_mat(g, op, &m);
	case OP_conv2d:
	case OP_conv2d_dx:
		return act_ok(val_type(g, op->in[0])) && weight_ok(val_type(g, op->in[1])) && act_ok(val_type(g, op->out[0]));
	case OP_conv2d_dw:
		return act_ok(val_type(g, op->in[0])) && act_ok(val_type(g, op->in[1])) && weight_ok(val_type(g, op->out[0])) && val_type(g, op->out[0])->dtype == DT_f32 &&
		       !val_type(g, op->in[0])->axis[0].mul;
	default:
		return false;
	}
}

/* Rows of a task of a matrix product. */
int64_t
matmul_block(const GemmParams *p)
{
	return p->mr * 8;
}

static int64_t
images_of(const Graph *g, const Op *op, const GemmParams *p)
{
	return val_type(g, op->in[0])->axis[0].n / gemm_unit(p);
}

bool
gemm_images_fit(const Graph *g, const Op *op, const GemmParams *p)
{
	return !p->images || (op->kind == OP_conv2d_dw && p->images < images_of(g, op, p) && images_of(g, op, p) % p->images == 0);
}

/* Large pixels: rows of many images drive each other out of the caches, as they are multiples of powers of two apart; more than some 32 do. */
void
gemm_images(const Graph *g, const Op *op, GemmParams *p)
{
	enum { MOST = 32, PIXEL = 128 << 10 };
	int64_t n = images_of(g, op, p), k = MOST;

	p->images = 0;
	if (op->kind != OP_conv2d_dw || n <= MOST || n * 4 * (val_type(g, op->in[0])->axis[1].n + val_type(g, op->in[1])->axis[1].n) < PIXEL)
		return;
	while (n % k)
		k--;
	if (k >= MOST / 4)
		p->images = (int)k;
}

/* Operands that lie in memory: a band of the first is read again for each panel, the second once. Short sums would load and store their tiles too often. */
void
gemm_band(const Graph *g, const Op *op, GemmParams *p)
{
	enum { SUMS = 512, BYTES = 1 << 20 };

	if (op->kind != OP_conv2d_dw || p->tiles || !(p->pair || p->parts == 1))
		return;
	int64_t sums = val_type(g, op->in[1])->axis[3].n * (p->images ? p->images : images_of(g, op, p)), rows = val_type(g, op->in[1])->axis[2].n;
	int64_t fit = BYTES / (sums * val_type(g, op->in[0])->axis[1].n * 4), band = fit * sums < SUMS ? fit : SUMS / sums;

	p->band = (int)(band < 1 ? 1 : band < rows ? band : rows);
}

/* Few tasks of whole rows: a task is a panel of them then. */
bool
matmul_split(const Mat *m, const GemmParams *p)
{
	return m->batch * ceil_div(m->m.n, matmul_block(p)) < 8;
}

bool
gemm_copies(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	return op->kind == OP_matmul && attr_bool(op, A_ta) && !p->tiles && matmul_mat(g, op, &m) && m.k <= COPY_BYTES / 4 / matmul_block(p);
}

/* Rows of a turned operand whose distance is a multiple of half a page meet in few sets of the caches. */
static bool
copy_pays(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	return gemm_copies(g, op, p) && matmul_mat(g, op, &m) && !m.m.mul && m.m.n % 512 == 0 && m.k >= 512 && m.n >= 4 * p->nv * p->lanes && !matmul_split(&m, p);
}

/* The tile for n columns: no wider than they are, as many rows as the registers leave. */
static void
tile_for_columns(GemmParams *p, int64_t n, bool wide)
{
	if (n <= 8)
		p->lanes = 8;
	while (p->nv > 1 && (p->nv - 1) * p->lanes >= n)
		p->nv--;
	if (wide && p->nv <= 2)
		p->mr = p->nv == 1 ? 14 : 12;
}

/* Default parameters: tiles that fill the registers (32 vectors of 64 bytes, 16 of 32), blocks that fit the second-level cache. */
GemmParams
gemm_params(const Graph *g, const Op *op, int vector_bytes)
{
	bool wide = vector_bytes == 64;
	GemmParams p = {.mr = 6, .nv = wide ? 4 : 2, .lanes = vector_bytes / 4, .parts = 1, .band = 1, .pack = true};
	const Type *a = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);

	if (op->kind == OP_matmul) {
		int64_t n = o->axis[o->rank - 1].n;

		tile_for_columns(&p, n, wide);
		/* a large second operand is read in strips of its rows, a page each, once for every block of the result's rows */
		p.pack = attr_bool(op, A_tb) || (n > p.nv * p.lanes && o->axis[o->rank - 2].n >= 64 && type_bytes(val_type(g, op->in[1])) >= 512 << 10);
		p.copy = copy_pays(g, op, &p);
	} else if (op->kind == OP_conv2d_dw) {
		const Type *gr = val_type(g, op->in[1]);
		int64_t bytes = type_bytes(o), rows = gr->axis[2].n, row = gr->axis[3].n * gr->axis[0].n * 4 * (gr->axis[1].n + a->axis[1].n);

		p.pack = false;
		p.mr = wide ? 12 : 6;
		p.nv = 2;
		if (o->axis[0].n / gemm_groups(op) <= 8)
			p.lanes = 8;
		if (o->axis[0].n / gemm_groups(op) <= p.lanes) {
			p.nv = 1;
			p.mr = wide ? 14 : 8;
		}
		if (bytes <= 1 << 20)
			p.parts = rows < 4 ? (int)rows : 4;
		p.band = (int)((512 << 10) / (row ? row : 1));
		if (p.band < 1)
			p.band = 1;
		if (p.band > rows)
			p.band = (int)rows;
	} else {
		int64_t k = o->axis[1].n / gemm_groups(op), weights = type_bytes(val_type(g, op->in[1]));

		tile_for_columns(&p, k, wide);
		p.panel_outer = weights > type_bytes(a) && k >= 4 * p.nv * p.lanes;
	}
	return p;
}

const char *
gemm_text(Arena *a, const Op *op, const GemmParams *p)
{
	if (p->winograd || p->strassen)
		return arena_printf(a, "%s{mr=%d,nv=%d,lanes=%d}", p->winograd ? "winograd" : "strassen", p->mr, p->nv, p->lanes);
	if (op->kind == OP_conv2d_dw)
		return arena_printf(a, "brgemm{mr=%d,nv=%d,lanes=%d,parts=%d,band=%d%s%s}", p->mr, p->nv, p->lanes, p->parts, p->band,
		    p->images ? arena_printf(a, ",images=%d", p->images) : "", pairs_text(p));
	return arena_printf(a, "brgemm{mr=%d,nv=%d,lanes=%d,outer=%s,pack=%d%s%s}", p->mr, p->nv, p->lanes, p->panel_outer ? "panel" : "row", p->pack, p->copy ? ",copy=1" : "",
	    pairs_text(p));
}

/* What tables of microkernels hold. */
static bool
tile_possible(const GemmParams *p)
{
	return p->mr > 0 && p->mr <= 64 && p->nv > 0 && p->nv <= 8 && p->mr * p->nv <= 64 && (p->lanes == 8 || p->lanes == 16);
}

bool
gemm_parse(const char *text, GemmParams *p)
{
	char outer[8] = "";
	int pack = 0;

	*p = (GemmParams){.parts = 1, .band = 1, .winograd = true};
	if (sscanf(text, "winograd{mr=%d,nv=%d,lanes=%d", &p->mr, &p->nv, &p->lanes) == 3)
		return tile_possible(p);
	*p = (GemmParams){.parts = 1, .band = 1, .strassen = true, .pack = true};
	if (sscanf(text, "strassen{mr=%d,nv=%d,lanes=%d", &p->mr, &p->nv, &p->lanes) == 3)
		return tile_possible(p);
	*p = (GemmParams){.parts = 1, .band = 1};
	pairs_parse(text, p);
	if (sscanf(text, "brgemm{mr=%d,nv=%d,lanes=%d,parts=%d,band=%d,images=%d", &p->mr, &p->nv, &p->lanes, &p->parts, &p->band, &p->images) >= 5)
		return tile_possible(p) && p->parts > 0 && p->band > 0 && p->images >= 0;
	*p = (GemmParams){.parts = 1, .band = 1};
	pairs_parse(text, p);
	if (sscanf(text, "brgemm{mr=%d,nv=%d,lanes=%d,outer=%7[a-z],pack=%d", &p->mr, &p->nv, &p->lanes, outer, &pack) != 5)
		return false;
	p->panel_outer = !strcmp(outer, "panel");
	p->pack = pack != 0;
	p->copy = strstr(text, ",copy=1") != NULL;
	return tile_possible(p);
}

static int64_t
main_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	if (p->winograd)
		return winograd_scratch(g, op, p);
	if (p->strassen)
		return strassen_scratch(g, op, p);
	if (p->copy && matmul_mat(g, op, &m))
		return m.k / gemm_unit(p) * matmul_block(p) * 4;
	return prologue_scratch(g, op, p);
}

int64_t
gemm_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t a = main_scratch(g, op, p), b = pack_scratch(g, op, p);

	return a > b ? a : b;
}

/* What the kernel makes of its second operand: panels, or the weights at the points of minimal filtering. */
int64_t
gemm_panels(const Graph *g, const Op *op, const GemmParams *p)
{
	if (p->winograd)
		return winograd_weights(g, op, p);
	if (op->kind == OP_conv2d_dw || !p->pack || (p->strassen && !attr_bool(op, A_tb)))
		return 0;
	Pack k = pack_of(g, op, p->pair);
	int64_t nr = (int64_t)p->nv * p->lanes;

	return k.groups * k.taps * k.k * ceil_div(k.j, nr) * nr * 4;
}

/* Does op's group keep them from call to call? */
static bool
keeps_panels(const Graph *g, const Op *op)
{
	return op->group >= 0 && g->group.at[op->group].kept > 0;
}

/* Partial sums, tiles, and panels that are not kept. */
int64_t
gemm_own_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t panels = keeps_panels(g, op) ? 0 : gemm_panels(g, op, p);

	if (p->winograd)
		return panels + winograd_workspace(g, op, p) - winograd_weights(g, op, p);
	if (op->kind == OP_conv2d_dw)
		return p->parts > 1 ? p->parts * type_bytes(val_type(g, op->out[0])) : 0;
	return panels + (p->strassen ? strassen_sums(g, op, p) : 0);
}

/* Bytes of operand k's copy, 0 if it is read as it lies: made by this kernel, in pairs, or in f32 where the processor does not multiply 16-bit numbers. */
int64_t
gemm_copy_bytes(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	bool copy = prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_COPY;

	if (!copy && (p->winograd || !gemm_half(g, op) || (p->pair && !pairs_row(g, op, k))))
		return 0;
	int64_t n = type_elements(val_type(g, op->in[k]));

	return align64(!p->pair ? n * 4 : pairs_row(g, op, k) ? n / pairs_row(g, op, k) * pairs_line(g, op, k) * 2 : n * 2);
}

bool
gemm_keepable(const Graph *g, const Op *op, const GemmParams *p)
{
	return gemm_panels(g, op, p) > 0 && !p->strassen && !gemm_copy_bytes(g, op, p, 1);
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
	Mat m;

	if (p->winograd)
		return winograd_pieces(g, op, p);
	if (p->strassen)
		return strassen_pieces(g, op, p);
	if (op->kind != OP_matmul)
		return p->panel_outer ? 1 : val_type(g, op->out[0])->axis[2].n;
	matmul_mat(g, op, &m);
	return m.batch * ceil_div(m.m.n, matmul_block(p));
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
