/* gemm.c: convolutions and matrix products through the register-blocked microkernel.
 *
 * In: a group of one contraction of f32, or of f16 or bf16 with f32 sums, whose layouts fit: HWNC activations and HWIO weights, or row-major matrices.
 * An operand that ops of the group make comes as prologue.c says. Out: a packing kernel where the second operand is not vectors already, the main kernel, and what finishes its reductions. Gradients in weights are
 * in wgrad.c, 3x3 filters of stride 1 in winograd.c.
 * A convolution is data: per output row the first valid filter row, how many, and the input row they start at; per run
 * of output columns likewise. Borders are skipped, stride 2 of the gradient is a step of the filter index, dilation a step of the input;
 * no case has code of its own. Tasks are cut by shape, so results have the same bits for any number of threads.
 * Refuses (gemm_can): other types, groups > 1, batch-dependent inner extents; those take the plain kernel. */
#include "gemm.h"
#include <string.h>

enum { COPY_BYTES = 4 << 20 }; /* of a thread's memory, for GemmParams.copy */

typedef struct Mat {         /* a matrix product: out[batch][m][n] */
	int rank;                /* of out */
	bool merged;             /* leading axes of A and out are rows */
	Axis m; int64_t n, k;    /* m: rows of one batch entry (all rows if merged) */
	int64_t batch;           /* full-batch entries */
} Mat;

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

static bool
mat_of(const Graph *g, const Op *op, Mat *m)
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

bool
gemm_can(const Graph *g, const Op *op, int vector_bytes)
{
	Mat m;

	if (vector_bytes < 32)
		return false;
	switch (op->kind) {
	case OP_matmul:
		return mat_of(g, op, &m);
	case OP_conv2d:
	case OP_conv2d_dx:
		return attr_int(op, A_groups) == 1 && act_ok(val_type(g, op->in[0])) && weight_ok(val_type(g, op->in[1])) && act_ok(val_type(g, op->out[0]));
	case OP_conv2d_dw:
		return attr_int(op, A_groups) == 1 && act_ok(val_type(g, op->in[0])) && act_ok(val_type(g, op->in[1])) && weight_ok(val_type(g, op->out[0])) && val_type(g, op->out[0])->dtype == DT_f32 &&
		       !val_type(g, op->in[0])->axis[0].mul;
	default:
		return false;
	}
}

/* Rows of a task of a matrix product. */
static int64_t
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

/* Rows of many images are multiples of many powers of two apart: more than some 32 of them drive each other out of the caches. */
void
gemm_images(const Graph *g, const Op *op, GemmParams *p)
{
	enum { MOST = 32 };
	int64_t n = images_of(g, op, p), k = MOST;

	while (n % k)
		k--;
	p->images = op->kind == OP_conv2d_dw && n > MOST && k >= MOST / 4 ? (int)k : 0;
}

/* Few tasks of whole rows: a task is a panel of them then. */
static bool
matmul_split(const Mat *m, const GemmParams *p)
{
	return m->batch * ceil_div(m->m.n, matmul_block(p)) < 8;
}

bool
gemm_copies(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	return op->kind == OP_matmul && attr_bool(op, A_ta) && !p->tiles && mat_of(g, op, &m) && m.k <= COPY_BYTES / 4 / matmul_block(p);
}

/* Rows of a turned operand whose distance is a multiple of half a page meet in few sets of the caches. */
static bool
copy_pays(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	return gemm_copies(g, op, p) && mat_of(g, op, &m) && !m.m.mul && m.m.n % 512 == 0 && m.k >= 512 && m.n >= 4 * p->nv * p->lanes && !matmul_split(&m, p);
}

/* Default parameters: tiles that fill the registers (32 vectors of 64 bytes, 16 of 32), blocks that fit the second-level cache. */
GemmParams
gemm_params(const Graph *g, const Op *op, int vector_bytes)
{
	bool wide = vector_bytes == 64;
	GemmParams p = {.mr = 6, .nv = wide ? 4 : 2, .lanes = vector_bytes / 4, .parts = 1, .band = 1, .pack = true};
	const Type *a = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	int w = vector_bytes / 4;

	if (op->kind == OP_matmul) {
		int64_t n = o->axis[o->rank - 1].n;

		if (n <= 8)
			p.lanes = w = 8;
		while (p.nv > 1 && (p.nv - 1) * w >= n)
			p.nv--;
		if (wide && p.nv <= 2)
			p.mr = p.nv == 1 ? 14 : 12;
		/* a large second operand is read in strips of its rows, a page each, once for every block of the result's rows */
		p.pack = attr_bool(op, A_tb) || (n > p.nv * w && o->axis[o->rank - 2].n >= 64 && type_bytes(val_type(g, op->in[1])) >= 512 << 10);
		p.copy = copy_pays(g, op, &p);
	} else if (op->kind == OP_conv2d_dw) {
		const Type *gr = val_type(g, op->in[1]);
		int64_t bytes = type_bytes(o), rows = gr->axis[2].n, row = gr->axis[3].n * gr->axis[0].n * 4 * (gr->axis[1].n + a->axis[1].n);

		p.pack = false;
		p.mr = wide ? 12 : 6;
		p.nv = 2;
		if (o->axis[0].n <= 8)
			p.lanes = w = 8;
		if (o->axis[0].n <= w) {
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
		int64_t k = o->axis[1].n, weights = type_bytes(val_type(g, op->in[1]));

		if (k <= 8)
			p.lanes = w = 8;
		while (p.nv > 1 && (p.nv - 1) * w >= k)
			p.nv--;
		if (wide && p.nv <= 2)
			p.mr = p.nv == 1 ? 14 : 12;
		p.panel_outer = weights > type_bytes(a) && k >= 4 * p.nv * w;
	}
	return p;
}

const char *
gemm_text(Arena *a, const Op *op, const GemmParams *p)
{
	if (p->winograd)
		return arena_printf(a, "winograd{mr=%d,nv=%d,lanes=%d}", p->mr, p->nv, p->lanes);
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

int64_t
gemm_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	if (p->winograd)
		return winograd_scratch(g, op, p);
	if (p->copy && mat_of(g, op, &m))
		return m.k / gemm_unit(p) * matmul_block(p) * 4;
	return prologue_scratch(g, op, p);
}

/* What the kernel makes of its second operand: panels, or the weights at the points of minimal filtering. */
int64_t
gemm_panels(const Graph *g, const Op *op, const GemmParams *p)
{
	if (p->winograd)
		return winograd_weights(g, op, p);
	if (op->kind == OP_conv2d_dw || !p->pack)
		return 0;
	Pack k = pack_of(g, op, p->pair);
	int64_t nr = (int64_t)p->nv * p->lanes;

	return k.taps * k.k * ceil_div(k.j, nr) * nr * 4;
}

/* Does op's group keep them from call to call? */
static bool
keeps_panels(const Graph *g, const Op *op)
{
	return op->group >= 0 && g->group.at[op->group].kept > 0;
}

/* Partial sums, tiles, and panels that are not kept. */
static int64_t
own_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t panels = keeps_panels(g, op) ? 0 : gemm_panels(g, op, p);

	if (p->winograd)
		return panels + winograd_workspace(g, op, p) - winograd_weights(g, op, p);
	if (op->kind == OP_conv2d_dw)
		return p->parts > 1 ? p->parts * type_bytes(val_type(g, op->out[0])) : 0;
	return panels;
}

/* Bytes of operand k's copy, 0 if it is read as it lies: made by this kernel, in pairs, or in f32 where the processor does not multiply 16-bit numbers. */
static int64_t
copy_bytes(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	bool copy = prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_COPY;

	if (!copy && (!gemm_half(g, op) || (p->pair && !pairs_row(g, op, k))))
		return 0;
	int64_t n = type_elements(val_type(g, op->in[k]));

	return align64(!p->pair ? n * 4 : pairs_row(g, op, k) ? n / pairs_row(g, op, k) * pairs_line(g, op, k) * 2 : n * 2);
}

bool
gemm_keepable(const Graph *g, const Op *op, const GemmParams *p)
{
	return gemm_panels(g, op, p) > 0 && !copy_bytes(g, op, p, 1);
}

static int64_t
gemm_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t bytes = own_workspace(g, op, p);

	for (int k = 0; k < 2; k++)
		if (copy_bytes(g, op, p, k))
			bytes = align64(bytes) + copy_bytes(g, op, p, k);
	return bytes;
}

int64_t
gemm_pieces(const Graph *g, const Op *op, const GemmParams *p)
{
	Mat m;

	if (p->winograd)
		return winograd_pieces(g, op);
	if (op->kind != OP_matmul)
		return p->panel_outer ? 1 : val_type(g, op->out[0])->axis[2].n;
	mat_of(g, op, &m);
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

/* ---------------------------------------------------------------- emission helpers */
V
table(Emit *e, const int64_t *v, int64_t n)
{
	V *k = arena_array(e->arena, V, n);

	for (int64_t i = 0; i < n; i++)
		k[i] = k64(e, v[i]);
	V init = LLVMConstArray2(e->l->i64, k, (uint64_t)n), gv = LLVMAddGlobal(e->l->mod, LLVMTypeOf(init), "table");

	LLVMSetInitializer(gv, init);
	LLVMSetGlobalConstant(gv, 1);
	LLVMSetLinkage(gv, LLVMPrivateLinkage);
	return gv;
}

V
table_at(Emit *e, V t, V index)
{
	LLVMBuilderRef b = at1(e, index);

	return LLVMBuildLoad2(b, e->l->i64, LLVMBuildInBoundsGEP2(b, e->l->i64, t, &index, 1, ""), "");
}

V
strides_block(Emit *e, V st[S_COUNT])
{
	T at = LLVMArrayType2(e->l->i64, S_COUNT);
	V slot = slot_new(e, at);
	LLVMBuilderRef b = e->lv[0].b;

	for (int i = 0; i < S_COUNT; i++) {
		V k = k64(e, i);

		LLVMBuildStore(b, st[i], LLVMBuildInBoundsGEP2(b, e->l->i64, slot, &k, 1, ""));
	}
	return slot;
}

int64_t
tile_rows(int64_t rows, int64_t block, int mr)
{
	int64_t part[2] = {rows < block ? 0 : block, rows % block}, set = 0;

	for (int i = 0; i < 2; i++) {
		int64_t n = ceil_div(part[i], mr);

		if (n)
			set |= (int64_t)1 << (part[i] / n - 1) | (int64_t)1 << (ceil_div(part[i], n) - 1);
	}
	return set;
}

static V
microkernel(Llvm *l, const GemmParams *p, int mr, int nv, bool masked)
{
	if (p->tiles)
		return gemm_micro_amx(l, mr, nv, masked, !p->pack);
	return (p->f16 ? gemm_micro_f16 : p->pair ? gemm_micro_pairs : p->one_chain ? gemm_micro_chain : gemm_micro)(l, mr, nv, p->lanes, masked);
}

Tiles
tiles_make(Emit *e, const GemmParams *p, int64_t columns, int64_t rows)
{
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, rest = columns % nr ? columns % nr : nr, npanel = ceil_div(columns, nr);
	int nv_last = (int)ceil_div(rest, w);
	bool masked = rest % w != 0;
	V whole[64], last[64];
	Tiles t = {0};

	t.rows = p->tiles;
	if (p->tiles)
		amx_open(e);
	for (int r = 1; r <= p->mr; r++) {
		if (!(rows >> (r - 1) & 1)) {
			last[r - 1] = whole[r - 1] = LLVMConstNull(e->l->ptr);
			continue;
		}
		last[r - 1] = microkernel(e->l, p, r, nv_last, masked);
		whole[r - 1] = npanel > 1 ? microkernel(e->l, p, r, p->nv, false) : last[r - 1];
		t.fn = LLVMGlobalGetValueType(last[r - 1]);
	}
	V init[2] = {LLVMConstArray2(e->l->ptr, whole, (uint64_t)p->mr), LLVMConstArray2(e->l->ptr, last, (uint64_t)p->mr)};

	for (int i = 0; i < 2; i++) {
		V gv = LLVMAddGlobal(e->l->mod, LLVMTypeOf(init[i]), "tiles");

		LLVMSetInitializer(gv, init[i]);
		LLVMSetGlobalConstant(gv, 1);
		LLVMSetLinkage(gv, LLVMPrivateLinkage);
		*(i ? &t.last : &t.whole) = gv;
	}
	t.last_mask = masked ? ((int64_t)1 << (rest % w)) - 1 : -1;
	return t;
}

void
tile_call(Emit *e, const Tiles *t, V rows, V kb, int64_t npanel, V a, V b, V c, V np, V nq, V strides, V acc)
{
	LLVMBuilderRef h = here(e);
	V is_last = LLVMBuildICmp(h, LLVMIntEQ, kb, k64(e, npanel - 1), "");
	V tab = LLVMBuildSelect(h, is_last, t->last, t->whole, ""), at = LLVMBuildSub(h, rows, k64(e, 1), "");
	V fn = LLVMBuildLoad2(h, e->l->ptr, LLVMBuildInBoundsGEP2(h, e->l->ptr, tab, &at, 1, ""), "");
	V args[9] = {a, b, c, np, nq, strides, acc, k64(e, t->last_mask), rows};

	LLVMBuildCall2(h, t->fn, fn, args, t->rows ? 9 : 8, "");
}

void
tiles_open(Emit *e, V rows, int mr, V *lo, V *count)
{
	V n = i_div(e, i_add(e, rows, k64(e, mr - 1)), k64(e, mr));
	V i = loop_open(e, k64(e, 0), n, 1);
	V hi;

	*lo = i_div(e, i_mul(e, i, rows), i_max(e, n, k64(e, 1)));
	hi = i_div(e, i_mul(e, i_add(e, i, k64(e, 1)), rows), i_max(e, n, k64(e, 1)));
	*count = i_sub(e, hi, *lo);
}

/* ---------------------------------------------------------------- convolution forward, and its gradient in x */
typedef struct Taps { int64_t first, count, at; } Taps; /* filter index, how many, input index of the first */

/* The taps of output index o along one axis. *step: of the filter index; *move: of the input index per tap. */
static Taps
taps_of(bool dx, int64_t o, int64_t in, int64_t size, int64_t stride, int64_t pad, int64_t dil, int64_t *step, int64_t *move)
{
	Taps t = {0, 0, 0};
	int64_t g = stride, d = dil;

	while (d) {
		int64_t r = g % d;

		g = d;
		d = r;
	}
	*step = dx ? stride / g : 1;
	*move = dx ? -dil / g : dil;
	for (int64_t r = 0; r < size; r++) {
		int64_t x = dx ? o + pad - r * dil : o * stride - pad + r * dil;

		if (dx) {
			if (x < 0 || x % stride)
				continue;
			x /= stride;
		}
		if (x < 0 || x >= in)
			continue;
		if (!t.count++) {
			t.first = r;
			t.at = x;
		}
	}
	return t;
}

typedef struct ImageAt { V lo, n, row, ow; } ImageAt;

static void
image_index(Emit *e, void *cx, V row, Ix *ix)
{
	const ImageAt *at = cx;
	V m = i_add(e, at->lo, row);

	ix[0] = ix_s(i_rem(e, m, at->n));
	ix[2] = ix_s(at->row);
	ix[3] = ix_s(i_add(e, at->ow, i_div(e, m, at->n)));
}

typedef struct ImagePieces { const Type *o; bool all; } ImagePieces;

/* A row of pixels each, or all of them. */
static V
image_pieces(Emit *e, void *cx, V piece)
{
	const ImagePieces *p = cx;

	(void)piece;
	return i_mul(e, k64(e, p->o->axis[3].n * (p->all ? p->o->axis[2].n : 1)), extent(e, p->o->axis[0]));
}

static void
image_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Type *x = val_type(g, op->in[0]), *wt = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	bool dx = op->kind == OP_conv2d_dx;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL), *dil = attr_ints(op, A_dilation, NULL);
	int64_t H = x->axis[2].n, W = x->axis[3].n, C = x->axis[1].n / gemm_unit(p), OH = o->axis[2].n, OW = o->axis[3].n, K = o->axis[1].n, R = wt->axis[2].n, S = wt->axis[3].n;
	Emit e = {0};
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(K, nr);
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		/* one channel: the filter's columns are the innermost sum */
		bool columns = x->axis[1].n == 1 && S > 1;
		int64_t *rows = arena_array(e.arena, int64_t, OH * 3), *runs = arena_array(e.arena, int64_t, OW * 5), nrun = 0, rstep = 1, rmove = 1, sstep = 1, smove = 1;
		/* from a run's pixel to the next, in input pixels: with one image they need not be neighbours */
		int64_t apart = o->axis[0].n == 1 && !dx ? stride[1] : 1;

		for (int64_t i = 0; i < OH; i++) {
			Taps t = taps_of(dx, i, H, R, stride[0], pad[0], dil[0], &rstep, &rmove);

			memcpy(&rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
		}
		for (int64_t i = 0; i < OW; i++) {
			Taps t = taps_of(dx, i, W, S, stride[1], pad[1], dil[1], &sstep, &smove);
			int64_t *last = &runs[(nrun - 1) * 5];

			/* neighbours with the same taps whose inputs are that far apart are one run of rows */
			if (nrun && t.first == last[3] && t.count == last[4] && t.at == last[2] + last[1] * apart)
				last[1]++;
			else
				memcpy(&runs[nrun++ * 5], (int64_t[]){i, 1, t.at, t.first, t.count}, 40);
		}
		bool tile, made = abuf < 0;

		emit_lanes(&e, w);
		V n = extent(&e, o->axis[0]), in = made ? scratch_ptr(&e, 0) : buffer(&e, abuf), wts = buffer(&e, bbuf), out = epilogue_raw(&e, epi, p->mr, nr, &tile);
		int64_t counts = o->axis[0].mul ? ANY_ROWS : 0, band = made ? prologue_pixels(g, op, p) : OW;

		for (int64_t i = 0; i < nrun && !o->axis[0].mul; i++)
			counts |= tile_rows(runs[i * 5 + 1] * o->axis[0].n, (band < runs[i * 5 + 1] ? band : runs[i * 5 + 1]) * o->axis[0].n, p->mr);
		Tiles tiles = tiles_make(&e, p, tile && p->pack ? ceil_div(K, w) * w : K, counts);
		V pixel_a = i_mul(&e, n, k64(&e, C * 4)), pixel_c = i_mul(&e, n, k64(&e, K * 4));
		V st[S_COUNT] = {[S_AM] = k64(&e, apart * C * 4), [S_AK] = k64(&e, 4), [S_AP] = i_mul(&e, pixel_a, k64(&e, rmove * W)), [S_AQ] = i_mul(&e, pixel_a, k64(&e, smove)),
			[S_BP] = k64(&e, rstep * S * C * nr * 4), [S_BQ] = k64(&e, sstep * C * nr * 4), [S_BK] = k64(&e, nr * 4), [S_CM] = k64(&e, (tile ? nr : K) * 4), [S_NK] = k64(&e, C)};
		if (columns) {
			st[S_AK] = st[S_AQ];
			st[S_BK] = st[S_BQ];
		}
		V strides = strides_block(&e, st), trow = table(&e, rows, OH * 3), trun = table(&e, runs, nrun * 5);
		V t = loop_open(&e, e.arg_t0, e.arg_t1, 1), made0 = k64(&e, 0), made1 = NULL;

		/* one tap, and a run of all columns: the input's pixels are the output's */
		if (made) {
			made0 = loop_open(&e, k64(&e, 0), k64(&e, OW), band);
			made1 = i_min(&e, i_add(&e, made0, k64(&e, band)), k64(&e, OW));
			prologue_row(&e, op->in[0], t, made0, made1, in);
		}
		V inner = loop_open(&e, k64(&e, 0), k64(&e, p->panel_outer ? OH : npanel), 1);
		V kb = p->panel_outer ? t : inner, row = p->panel_outer ? inner : t, row3 = i_mul(&e, row, k64(&e, 3));
		V h0 = table_at(&e, trow, row3), r0 = table_at(&e, trow, i_add(&e, row3, k64(&e, 1))), np = table_at(&e, trow, i_add(&e, row3, k64(&e, 2)));
		V run5 = i_mul(&e, loop_open(&e, k64(&e, 0), k64(&e, nrun), 1), k64(&e, 5));
		V ow = table_at(&e, trun, run5), len = table_at(&e, trun, i_add(&e, run5, k64(&e, 1))), w0 = table_at(&e, trun, i_add(&e, run5, k64(&e, 2)));
		V s0 = table_at(&e, trun, i_add(&e, run5, k64(&e, 3))), nq = table_at(&e, trun, i_add(&e, run5, k64(&e, 4)));
		V a0 = made ? k64(&e, 0) : i_mul(&e, i_add(&e, i_mul(&e, h0, k64(&e, W)), w0), pixel_a);
		V c0 = i_add(&e, i_mul(&e, i_add(&e, i_mul(&e, row, k64(&e, OW)), ow), pixel_c), i_mul(&e, kb, k64(&e, nr * 4)));
		V b0 = i_add(&e, i_mul(&e, kb, k64(&e, R * S * C * nr * 4)), i_mul(&e, i_add(&e, i_mul(&e, r0, k64(&e, S)), s0), k64(&e, C * nr * 4)));
		V lo, count;

		if (columns) {
			V at = k64(&e, S_NK), some = LLVMBuildICmp(here(&e), LLVMIntSGT, nq, k64(&e, 0), "");

			LLVMBuildStore(here(&e), nq, LLVMBuildInBoundsGEP2(here(&e), e.l->i64, strides, &at, 1, ""));
			nq = LLVMBuildZExt(here(&e), some, e.l->i64, "");
		}
		tiles_open(&e, i_mul(&e, made ? i_sub(&e, made1, made0) : len, n), p->mr, &lo, &count);
		V in_band = i_mul(&e, lo, k64(&e, apart * C * 4));

		lo = i_add(&e, lo, i_mul(&e, made0, n));
		ImageAt at = {lo, n, row, ow};
		V column = i_mul(&e, kb, k64(&e, nr)), before = i_add(&e, i_mul(&e, ow, n), lo);

		if (p->panel_outer)
			before = i_add(&e, i_mul(&e, row, i_mul(&e, k64(&e, OW), n)), before);
		EpilogueTile et = {.rows = count, .column = column, .columns = i_min(&e, k64(&e, nr), i_sub(&e, k64(&e, K), column)), .piece = p->panel_outer ? k64(&e, 0) : row,
			.done = before, .tile = out, .tile_columns = nr, .unroll = p->nv, .index = image_index, .cx = &at};

		epilogue_fetch(&e, epi, &et, nr < K ? nr : K);
		tile_call(&e, &tiles, count, kb, npanel, ptr_at(&e, in, i_add(&e, a0, in_band)), ptr_at(&e, wts, b0),
		    tile ? out : ptr_at(&e, out, i_add(&e, c0, i_mul(&e, lo, k64(&e, K * 4)))), np, nq, strides, k64(&e, 0));
		epilogue_tile(&e, epi, &et);
		for (int i = 0; i < 4 + made; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = p->panel_outer ? npanel : OH, .mul = 0, .div = 1, .grain = 1}, fresh, false);
	ImagePieces pieces = {o, p->panel_outer};

	epilogue_finish(gc, gk, epi, image_pieces, &pieces);
}

/* ---------------------------------------------------------------- matrix products */
typedef struct MatAt { const Type *t; V first; } MatAt; /* first: flat number of the tile's first row */

static void
mat_index(Emit *e, void *cx, V row, Ix *ix)
{
	const MatAt *at = cx;
	V left = i_add(e, at->first, row);

	for (int i = at->t->rank - 2; i >= 0; i--) {
		V x = extent(e, at->t->axis[i]);

		ix[i] = ix_s(i ? i_rem(e, left, x) : left);
		if (i)
			left = i_div(e, left, x);
	}
}

typedef struct MatPieces { Axis m; const Type *o; int64_t block, blocks; bool merged; } MatPieces;

/* Rows of a block of a batch entry: none beyond a short batch. */
static V
mat_pieces(Emit *e, void *cx, V piece)
{
	const MatPieces *p = cx;
	V M = extent(e, p->m), blk = i_mul(e, i_rem(e, piece, k64(e, p->blocks)), k64(e, p->block)), entries = k64(e, 1);
	V rows = i_max(e, k64(e, 0), i_min(e, k64(e, p->block), i_sub(e, M, blk)));
	bool marked = false;

	for (int i = 0; !p->merged && i + 2 < p->o->rank; i++) {
		entries = i_mul(e, entries, extent(e, p->o->axis[i]));
		marked |= p->o->axis[i].mul != 0;
	}
	if (!marked)
		return rows;
	V in = LLVMBuildICmp(at2(e, piece, entries), LLVMIntSLT, i_div(e, piece, k64(e, p->blocks)), entries, "");

	return LLVMBuildSelect(at2(e, in, rows), in, rows, k64(e, 0), "");
}

/* Copies rows [lo, hi) of an entry of a turned operand, which starts at `from`, to the scratch memory: k pieces of a task's rows. */
static V
copy_turned(Emit *e, const GemmParams *p, int64_t k, V from, V line, V lo, V hi)
{
	int64_t block = matmul_block(p);
	V to = scratch_ptr(e, 0), i = loop_open(e, k64(e, 0), k64(e, k), 1), rows = i_sub(e, hi, lo);
	V in = ptr_at(e, from, i_add(e, i_mul(e, i, line), i_mul(e, lo, k64(e, 4)))), out = ptr_at(e, to, i_mul(e, i, k64(e, block * 4)));

	for (int64_t j = 0; j < block; j += p->lanes) {
		V ok = row_mask(e, rows, j);

		vec_store(e, ptr_at(e, out, k64(e, j * 4)), vec_load(e, ptr_at(e, in, k64(e, j * 4)), ok), ok);
	}
	loop_close(e);
	return to;
}

static void
matmul_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	Mat m;

	mat_of(g, op, &m);
	m.k /= gemm_unit(p);
	bool ta = attr_bool(op, A_ta) && !p->tiles; /* amx_turn has turned it */
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(m.n, nr), block = matmul_block(p);
	Axis rows_of_a = a->axis[a->rank - (attr_bool(op, A_ta) ? 1 : 2)];
	int64_t blocks_full = ceil_div(m.m.n, block);
	bool split = matmul_split(&m, p);
	Emit e = {0};
	bool fresh, marked_batch = false;
	int fn = kernel_begin(gc, &e, "main", &fresh);
	Rows tasks = {.rows = m.batch * (split ? npanel : 1) * blocks_full, .mul = 0, .div = 1, .grain = 1};

	for (int i = 0; !m.merged && i + 2 < o->rank; i++)
		marked_batch |= o->axis[i].mul != 0;
	if (fresh) {
		bool tile;

		emit_lanes(&e, w);
		V M = extent(&e, m.m), A = buffer(&e, abuf), B = buffer(&e, bbuf), C = epilogue_raw(&e, epi, p->mr, nr, &tile);
		V am_rows = extent(&e, rows_of_a);
		Tiles tiles = tiles_make(&e, p, tile && p->pack ? ceil_div(m.n, w) * w : m.n, m.m.mul ? ANY_ROWS : tile_rows(m.m.n, block, p->mr));
		V line = i_mul(&e, am_rows, k64(&e, 4));
		V st[S_COUNT] = {[S_AM] = ta ? k64(&e, 4) : k64(&e, m.k * 4), [S_AK] = p->copy ? k64(&e, block * 4) : ta ? line : k64(&e, 4), [S_AP] = k64(&e, 0), [S_AQ] = k64(&e, 0),
			[S_BP] = k64(&e, 0), [S_BQ] = k64(&e, 0), [S_BK] = k64(&e, p->pack ? nr * 4 : m.n * 4), [S_CM] = k64(&e, (tile ? nr : m.n) * 4), [S_NK] = k64(&e, m.k)};
		V strides = strides_block(&e, st);
		V t = loop_open(&e, e.arg_t0, e.arg_t1, 1);
		/* task = (batch entry, block of rows [, panel]); with fewer examples the blocks beyond the end are empty */
		V kb0 = k64(&e, 0), rest = t;

		if (split) {
			kb0 = i_rem(&e, t, k64(&e, npanel));
			rest = i_div(&e, t, k64(&e, npanel));
		}
		V blk = i_rem(&e, rest, k64(&e, blocks_full)), ent = i_div(&e, rest, k64(&e, blocks_full));
		V lo0 = i_min(&e, i_mul(&e, blk, k64(&e, block)), M), hi0 = i_min(&e, i_mul(&e, i_add(&e, blk, k64(&e, 1)), k64(&e, block)), M);
		V entries = k64(&e, 1), aoff = k64(&e, 0), boff = k64(&e, 0), bent = k64(&e, 0), left = ent;

		if (!m.merged) {
			V as = k64(&e, 1), bs = k64(&e, 1);

			for (int i = o->rank - 3; i >= 0; i--) {
				V x = extent(&e, o->axis[i]), ix = i_rem(&e, left, x);
				int ai = i - (o->rank - a->rank), bi = i - (o->rank - b->rank);

				left = i_div(&e, left, x);
				entries = i_mul(&e, entries, x);
				if (ai >= 0 && a->axis[ai].n != 1) {
					aoff = i_add(&e, aoff, i_mul(&e, ix, as));
					as = i_mul(&e, as, extent(&e, a->axis[ai]));
				}
				if (bi >= 0 && b->axis[bi].n != 1) {
					bent = i_add(&e, bent, i_mul(&e, ix, bs));
					bs = i_mul(&e, bs, extent(&e, b->axis[bi]));
				}
			}
			aoff = i_mul(&e, aoff, i_mul(&e, am_rows, k64(&e, m.k * 4)));
		}
		if (marked_batch) {
			/* entries beyond this batch have no rows */
			V in = LLVMBuildICmp(here(&e), LLVMIntSLT, ent, entries, "");

			hi0 = LLVMBuildSelect(here(&e), in, hi0, lo0, "");
		}
		V from = ptr_at(&e, A, aoff), skip = k64(&e, 0);

		if (p->copy) {
			from = copy_turned(&e, p, m.k, from, line, lo0, hi0);
			skip = lo0;
		}
		V kb = loop_open(&e, kb0, split ? i_add(&e, kb0, k64(&e, 1)) : k64(&e, npanel), 1), lo, count;

		if (p->pack) /* panels: [panel][entry][k][nr] */
			boff = i_mul(&e, i_add(&e, i_mul(&e, kb, k64(&e, pack_of(g, op, p->pair).taps)), bent), k64(&e, m.k * nr * 4));
		else
			boff = i_add(&e, i_mul(&e, bent, k64(&e, m.k * m.n * 4)), i_mul(&e, kb, k64(&e, nr * 4)));
		tiles_open(&e, i_sub(&e, hi0, lo0), p->mr, &lo, &count);
		lo = i_add(&e, lo0, lo);
		V c0 = i_add(&e, i_mul(&e, i_add(&e, i_mul(&e, ent, M), lo), k64(&e, m.n * 4)), i_mul(&e, kb, k64(&e, nr * 4)));

		MatAt at = {o, i_add(&e, i_mul(&e, ent, M), lo)};
		V column = i_mul(&e, kb, k64(&e, nr));
		EpilogueTile et = {.rows = count, .column = column, .columns = i_min(&e, k64(&e, nr), i_sub(&e, k64(&e, m.n), column)), .piece = rest,
			.done = i_sub(&e, lo, lo0), .tile = C, .tile_columns = nr, .unroll = p->nv, .index = mat_index, .cx = &at};

		epilogue_fetch(&e, epi, &et, nr < m.n ? nr : m.n);
		tile_call(&e, &tiles, count, kb, npanel, ptr_at(&e, from, i_mul(&e, i_sub(&e, lo, skip), st[S_AM])), ptr_at(&e, B, boff), tile ? C : ptr_at(&e, C, c0), k64(&e, 1), k64(&e, 1), strides, k64(&e, 0));
		epilogue_tile(&e, epi, &et);
		loop_close(&e);
		loop_close(&e);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, tasks, fresh, false);
	MatPieces pieces = {m.m, o, block, blocks_full, m.merged};

	epilogue_finish(gc, gk, epi, mat_pieces, &pieces);
}

static int64_t
workspace_start(GroupCx *gc)
{
	int64_t at = gc->g->group.at[gc->group].workspace_offset;

	if (at < 0)
		bug("group %d has no workspace", gc->group);
	return at;
}

int
workspace_at(GroupCx *gc)
{
	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, workspace_start(gc)}));
	return (int)gc->buf.n - 1;
}

int
panels_at(GroupCx *gc)
{
	const Group *gr = &gc->g->group.at[gc->group];

	if (!gr->kept)
		return workspace_at(gc);
	vec_push(gc->c->arena, &gc->buf, ((Buffer){0, gr->kept_offset}));
	return (int)gc->buf.n - 1;
}

/* The operands' buffers: their own, or copies behind the workspace's own part; -1: made as they are loaded. */
static void
find_operands(GroupCx *gc, const Op *op, const GemmParams *p, int a[2], GraphKernels *gk)
{
	int64_t used = align64(own_workspace(gc->g, op, p));

	for (int k = 0; k < 2; k++) {
		int64_t bytes = copy_bytes(gc->g, op, p, k), at = bytes ? workspace_start(gc) + used : 0;

		bool made = prologue_made(gc->g, op, k);

		if (!bytes) {
			a[k] = made ? -1 : group_buffer(gc, op->in[k].id);
		} else if (p->pair && pairs_row(gc->g, op, k)) {
			vec_push(gc->tmp, &gc->buf, ((Buffer){0, at}));
			a[k] = (int)gc->buf.n - 1;
			if (p->tiles && k == 0)
				amx_turn(gc, op->in[k], made, a[k], gk);
			else if (made)
				pairs_make(gc, op->in[k], pairs_line(gc->g, op, k), a[k], gk);
			else
				pairs_emit(gc, op->in[k], pairs_row(gc->g, op, k), pairs_line(gc->g, op, k), a[k], gk);
		} else {
			Type *t = arena_new_of(gc->tmp, Type);

			*t = *val_type(gc->g, op->in[k]);
			if (!p->pair)
				t->dtype = DT_f32;
			store_copy(gc, op->in[k], t, at, gk);
			a[k] = (int)gc->buf.n - 1;
		}
		used += bytes;
	}
}

void
gemm_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Group *group = &gc->g->group.at[gc->group];
	GemmParams p;

	if (!gemm_parse(group->kernel, &p))
		bug("kernel parameters `%s` of %s", group->kernel, group->name);
	int operand[2], ws = -1;
	Epilogue epi;
	bool conv = op->kind == OP_conv2d || op->kind == OP_conv2d_dx;
	int bytes = gc->c->l.arch->vector_bytes;

	/* text may be anybody's */
	bool fits = !strcmp(gemm_text(gc->tmp, op, &p), group->kernel) && p.lanes * 4 <= bytes && pairs_fit(gc->g, op, gc->c->l.arch, &p) && (!conv || p.pack || p.winograd) && (!p.copy || gemm_copies(gc->g, op, &p)) && gemm_images_fit(gc->g, op, &p) &&
		(!p.winograd || !winograd_why_not(gc->g, op, &p, bytes)) && gemm_group_workspace(gc->g, gc->group, op, &p) <= group->workspace &&
		(!group->kept || (gemm_keepable(gc->g, op, &p) && gemm_panels(gc->g, op, &p) <= group->kept && gc->c->steady[op->in[1].id]));

	if (!fits) {
		gc->c->error = arena_printf(gc->c->arena, "group %s: %s computes no %s of this shape in %lld bytes of workspace", group->name, group->kernel, op_info[op->kind].name,
			(long long)group->workspace);
		return;
	}
	scratch_check(gc, gemm_scratch(gc->g, op, &p));
	find_operands(gc, op, &p, operand, gk);
	int a = operand[0], b = operand[1];

	if (op->kind == OP_conv2d_dw ? own_workspace(gc->g, op, &p) > 0 : gemm_panels(gc->g, op, &p) && !p.winograd)
		ws = panels_at(gc);
	epilogue_find(gc, op, gemm_pieces(gc->g, op, &p), gemm_workspace(gc->g, op, &p), &epi);
	if (p.winograd) {
		winograd_emit(gc, op, &p, a, b, &epi, gk);
		return;
	}
	if (op->kind == OP_conv2d_dw) {
		wgrad_emit(gc, op, &p, a, b, ws, epi.raw, gk);
		return;
	}
	if (ws >= 0) {
		gc->once = gc->g->group.at[gc->group].kept > 0;
		pack_emit(gc, op, &p, b, ws, gk);
		gc->once = false;
	}
	if (op->kind == OP_matmul)
		matmul_emit(gc, op, &p, a, ws >= 0 ? ws : b, &epi, gk);
	else
		image_emit(gc, op, &p, a, ws >= 0 ? ws : b, &epi, gk);
}
