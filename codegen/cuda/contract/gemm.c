/* gemm.c: contractions in tiles: rows mma, tf32 and ffma, default parameters, the kernel's frame and products.
 *
 * In: a group with a contraction.   Out: Group.kernel and its workspace; then the kernel's text. A block makes a tile
 * of the result: tiles of both operands along k pass through shared memory, `stages` at once (gemm_load.c), and are
 * multiplied
 * - by matrix instructions, mma.sync.m16n8k16 of f16 or bf16 with sums in f32, whose operands ldmatrix takes from lines
 * of 16-byte chunks; a chunk's place in its line is changed by
 * the line's number, so that eight lines meet all banks (as in CUTLASS, github.com/NVIDIA/cutlass), or by wgmma
 * (wgmma.c);
 *  - by matrix instructions of f32, mma.m16n8k8 of operands rounded to 11 bits (tf32), where a tuning file says so; or
 *  - by FMAs of f32, m/16 x n/16 sums for each of 16 x 16 threads.
 * The sums then go through shared memory to the group's epilogue (epilogue.c). With split > 1 (split-K) a part of k
 * each goes to the workspace first, and the block that comes last with one adds them all in their order (finish.c): the
 * bits are the same for any number of blocks. Everything is cut by shape and n alone. */
#include "algo.h"
#include <string.h>

/* WHOLE: bytes of a tile's sums in shared memory at once, where two blocks have as many */
enum { BAND = 8, WHOLE = 80 << 10 };

/* What an operation on an element costs where the element is made on its way into shared memory, in operations of an
 * elementwise kernel: loads, unpacking, conditions and stores are eight elements' there too, registers leave few warps,
 * which issue an instruction in two cycles (ResNet-50's kernels by their machine code: some 11 instructions for 4 of a
 * batch normalisation and relu). The places of a window's pixels come on top. */
enum { MADE = 2, MADE_OF_WINDOW = 3 };

/* Does an operand come an element at a time, as its neighbours in memory are too few for a chunk of 8? */
static bool
takes_singles(const Graph *g, const Form *f, int which)
{
	bool along_k;

	return cu_operand_run(g, f, which, &along_k) % 8 != 0;
}

/* Of the tiles that fill the machine the largest; small results and short sums in smaller ones. 64 sums of a thread
 * leave room for other ops, 128 do not. An operand that is made on its way is made for each tile across: the tile is
 * wide there. */
static Tiles
tiles_choose(const Graph *g, const Op *op, bool use_mma, Load load)
{
	static const Tiles mma[] = {{true, 128, 128, 32, 3, 2, 2, 1, 0, false, false},
	                            {true, 128, 64, 32, 3, 2, 2, 1, 0, false, false},
	                            {true, 64, 64, 32, 3, 2, 2, 1, 0, false, false},
	                            {true, 64, 32, 32, 3, 4, 1, 1, 0, false, false}};
	static const Tiles ffma[] = {{false, 128, 128, 8, 2, 0, 0, 1, 0, false, false},
	                             {false, 128, 64, 8, 2, 0, 0, 1, 0, false, false},
	                             {false, 64, 64, 16, 2, 0, 0, 1, 0, false, false},
	                             {false, 64, 32, 16, 2, 0, 0, 1, 0, false, false}};
	const Tiles *all = use_mma ? mma : ffma;
	Form f = cu_form(g, op);
	int64_t m = cu_form_count(f.m, f.nm), n = cu_form_count(f.n, f.nn);
	bool parts = cu_gemm_has_parts(op, &f, NULL);
	int i = 0, many = cu_machine(g)->budget.blocks;

	while (i < 3 && (n <= all[i].n / 2 || (m <= all[i].m / 2 && i < 2)
	       || (i < 2 && !parts && cu_gemm_tiles(&f, &all[i]) < many)))
		i++;
	Tiles p = all[i];

	/* in parts: more warps for a tile, and fewer parts to be written; single elements take a register and an
	 * address each */
	bool single = takes_singles(g, &f, 0) || takes_singles(g, &f, 1);

	if (p.mma && i == 1 && single)
		p = (Tiles){true, 128, 64, 32, 3, 4, 2, 1, 0, false, false};
	if (p.mma && i == 0 && (load.heavy || load.reduces || parts || single))
		p = (Tiles){true, 128, 128, 32, 3, 2, 4, 1, 0, false, false};
	if (p.mma && i == 0 && load.made[0] && !load.made[1] && n % 256 == 0)
		p = (Tiles){true, 64, 256, 32, 3, 1, 8, 1, 0, false, false};
	if (p.mma && i == 0 && load.made[1] && !load.made[0] && m % 256 == 0)
		p = (Tiles){true, 256, 64, 32, 3, 4, 2, 1, 0, false, false};
	cu_gemm_parts(g, op, &f, NULL, &p);
	return p;
}

/* ---------------------------------------------------------------- rows of algos.def */
static const char *
mma_why_not(Arena *a, DType t, const char *arch)
{
	(void)a;
	return cu_has_mma(t, arch) ? NULL : "mma multiplies f16, and bf16 from sm_80 on";
}

static const char *
tf32_why_not(Arena *a, DType t, const char *arch)
{
	(void)a;
	return t == DT_f32 && !cu_is_turing(arch) ? NULL : "tf32 multiplies f32, from sm_80 on";
}

static const char *
ffma_why_not(Arena *a, DType t, const char *arch)
{
	if (!cu_has_mma(t, arch))
		return NULL;
	return arena_printf(a, "ffma multiplies f32; of %s there are matrix instructions", dtype_info[t].name);
}

static const char *
mma_offer(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, Tiles *p, double *value)
{
	(void)group, (void)cx, (void)value;
	*p = tiles_choose(g, op, true, *l);
	return NULL;
}

static const char *
ffma_offer(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, Tiles *p, double *value)
{
	(void)group, (void)cx, (void)value;
	*p = tiles_choose(g, op, false, *l);
	return NULL;
}

static double mma_rate(const Rates *r) { return r->products; }
static double tf32_rate(const Rates *r) { return r->products / 2; }

const CuAlgo cu_algo_mma = {
	.family = FAMILY_cuda_mma,
	.doc = "tiles multiplied by the matrix instructions of a warp, mma.sync.m16n8k16 of f16 or bf16",
	.tiles = true,
	.reduces = true,
	.why_not = mma_why_not,
	.offer = mma_offer,
	.rate = mma_rate,
	.emit = cu_gemm_emit,
};
const CuAlgo cu_algo_tf32 = {
	.family = FAMILY_cuda_tf32,
	.doc = "tiles of f32 rounded to 11 bits, mma.sync.m16n8k8",
	.tiles = true,
	.reduces = true,
	.why_not = tf32_why_not,
	.rate = tf32_rate,
	.emit = cu_gemm_emit,
};
const CuAlgo cu_algo_ffma = {
	.family = FAMILY_cuda_ffma,
	.doc = "tiles of f32 by the FMAs of 16 x 16 threads",
	.tiles = true,
	.reduces = true,
	.why_not = ffma_why_not,
	.offer = ffma_offer,
	.emit = cu_gemm_emit,
};

void
cu_gemm_prologue(const Graph *g, const Op *op, int k, DType narrow, Prologue *r)
{
	const char *why = cu_gemm_why_not(g, op);
	Form f = cu_form(g, op);

	if (why) {
		r->why = "the contraction takes the plain kernel, which would compute it for every multiplication";
		return;
	}
	bool wide = narrow == DT_none && val_type(g, op->in[0])->dtype == DT_f32;
	Tiles p = tiles_choose(g, op, !wide, (Load){.heavy = true, .made = {k == 0, k == 1}});
	bool taps = op->kind != OP_matmul && k == 0;
	double across = (double)(k == 0 ? cu_tiles_along(cu_form_count(f.n, f.nn), p.n)
	                                : cu_tiles_along(cu_form_count(f.m, f.nm), p.m));

	/* the memory's time beyond that of the products */
	double elements = (double)(type_elements(val_type(g, op->in[0])) + type_elements(val_type(g, op->in[1])) +
	                           type_elements(val_type(g, op->out[0])));
	const Rates *rates = &cu_machine(g)->budget.rates;
	double wait =
	        elements * (wide ? 4 : 2) / rates->bytes - op_flops(g, op) / (wide ? rates->flops : rates->products);

	r->spare = wait > 0 ? wait * rates->flops : 0;
	r->stores = k == 0 && (op->kind == OP_matmul || (op->kind == OP_conv2d && window_is_point(&f.at)));
	/* an element of the image comes once for each tap that meets it */
	r->times = (taps && !window_is_point(&f.at) ? MADE_OF_WINDOW : MADE) * across;
	double stride = (double)(f.at.stride[0] * f.at.stride[1]);

	if (taps && op->kind == OP_conv2d)
		r->times *= (double)(f.k[0].n * f.k[1].n) / stride;
	else if (taps && op->kind == OP_conv2d_dx)
		r->times *= (double)(f.k[0].n * f.k[1].n) * (f.classes ? stride : 1) / (f.classes ? 1 : stride);
}

/* ---------------------------------------------------------------- products */
const char *
cu_ldsm_text(const Gemm *x, const Operand *o, char i)
{
	return arena_printf(
	        x->c->a,
	        o->which ? "ldsm(fb[%c], at_b + swizzled(warp_n + %c * 16 + lane / 16 * 8 + lane %% 8, ks * 2 + lane / "
	                   "8 %% 2, %d));"
	                 : "ldsm(fa[%c], at_a + swizzled(warp_m + %c * 16 + lane %% 16, ks * 2 + lane / 16, %d));",
	        i, i, x->p.k * tile_bytes(&x->p) / 16);
}

/* Fragments of an operand, 16 rows (two of 8 columns) by 16 of k to four words. */
static void
fragments(Gemm *x, const Operand *o, int count)
{
	Cuda *c = x->c;
	char i = o->which ? 'j' : 'i';

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int %c = 0; %c < %d; %c++)", i, i, count, i);
	if (o->along_k)
		cu_line(c, "\t%s", cu_ldsm_text(x, o, i));
	else if (o->which)
		cu_line(c,
		        "\tldsm_turned(fb[j], at_b + swizzled(ks * 16 + lane / 8 %% 2 * 8 + lane %% 8, warp_n / 8 + j "
		        "* 2 + lane / 16, %d));",
		        o->rows / 8);
	else
		cu_line(c,
		        "\tldsm_turned(fa[i], at_a + swizzled(ks * 16 + lane / 16 * 8 + lane %% 8, warp_m / 8 + i * 2 "
		        "+ lane / 8 %% 2, %d));",
		        o->rows / 8);
}

/* An instruction takes 32 bytes of k. */
static void
mma_step(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	const char *type = p->tf32 ? "tf32" : val_type(c->g, x->op->in[0])->dtype == DT_f16 ? "f16" : "bf16";
	int mi = p->m / p->wm / 16, ni = p->n / p->wn / 8;

	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int ks = 0; ks < %d; ks++)", p->k * tile_bytes(p) / 32);

	cu_line(c, "unsigned fa[%d][4], fb[%d][4];", mi, ni / 2);
	for (int i = 0; i < 2; i++)
		(p->tf32 ? cu_tf32_fragments : fragments)(x, &x->x[i], i ? ni / 2 : mi);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", mi);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int j = 0; j < %d; j++)", ni);
	cu_line(c, "\t\tmma_%s(acc[i][j], fa[i], &fb[j / 2][j %% 2 * 2]);", type);
	cu_scope_close(c, s);
}

/* Neighbouring sums of a thread: as many as one load of shared memory brings. */
static int
ffma_run(int side)
{
	return side / 16 < 4 ? side / 16 : 4;
}

static void
ffma_step(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int tm = p->m / 16, tn = p->n / 16, am = ffma_run(p->m), an = ffma_run(p->n);

	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k++)", p->k);

	cu_line(c, "float fa[%d], fb[%d];", tm, tn);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i += %d)", tm, am);
	cu_line(c, "\tread%d(&fa[i], &at_a[k * %d + i * 16 + tid / 16 * %d]);", am, p->m + 4, am);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j += %d)", tn, an);
	cu_line(c, "\tread%d(&fb[j], &at_b[k * %d + j * 16 + tid %% 16 * %d]);", an, p->n + 4, an);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", tm);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int j = 0; j < %d; j++)", tn);
	cu_line(c, "\t\tacc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);");
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- the loop over k */
static void
sums_open(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;

	if (p->mma)
		cu_line(c, "float acc[%d][%d][4] = {};", p->m / p->wm / 16, p->n / p->wn / 8);
	else
		cu_line(c, "float acc[%d][%d] = {};", p->m / 16, p->n / 16);
}

static void
steps(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	const char *it = c->it;
	Ix all = cu_ix_parts(c, x->K, p->k), first = "0", count = all;
	bool async = x->x[0].async || x->x[1].async, kept = false;

	if (p->split > 1) {
		Ix each = cu_ix_parts(c, all, p->split);

		first = cu_ix_mul(c, x->part, each);
		count = cu_fresh(c, 'i');
		cu_line(c, "const %s %s = %s < %s - %s ? %s : %s - %s;", it, count, each, all, first, each, all, first);
	}
	for (int i = 0; i < 2; i++) {
		if (!x->x[i].mapped)
			cu_load_rows(x, &x->x[i]);
		kept |= in_registers(&x->x[i]);
	}
	if (p->groups) {
		cu_wgmma_steps(x, first, count);
		return;
	}
	cu_line(c, "#pragma unroll 1");
	Scope s = cu_scope_open(c, "for (%s at = 0; at < %s + %d; at++)", it, count, p->stages - 1);

	/* tile `at` is on its way in while tile `at - stages + 1` is multiplied */
	if (async)
		cu_line(c, "COPIES_WAIT(%d);", p->stages - 2);
	cu_line(c, "__syncthreads();");
	for (int i = 0; i < 2; i++)
		cu_load_open(x, &x->x[i]);
	cu_line(c, "const int slot = (int)(at %% %d);", p->stages);
	Scope in = cu_scope_open(c, "if (at < %s)", count);

	cu_line(c, "const %s next = %s + at;", it, first);
	for (int i = 0; i < 2; i++)
		cu_load_tile(x, &x->x[i]);
	cu_scope_close(c, in);
	if (async)
		cu_line(c, "copies_end();");
	in = cu_scope_open(c, "if (at >= %d)", p->stages - 1);
	for (int i = 0; i < 2; i++) {
		const char *slot = cu_slot_text(x, &x->x[i], arena_printf(c->a, "(int)((at + 1) %% %d)", p->stages));

		if (p->mma)
			cu_line(c, "const unsigned at_%c = shared + %s;", x->x[i].name, slot);
		else
			cu_line(c, "const float *at_%c = (const float *)((const char *)memory + %s);", x->x[i].name,
			        slot);
	}
	(p->mma ? mma_step : ffma_step)(x);
	cu_scope_close(c, in);
	if (kept) {
		in = cu_scope_open(c, "if (at < %s)", count);
		cu_line(c, "const %s next = %s + at;", it, first);
		for (int i = 0; i < 2; i++)
			cu_load_keep(x, &x->x[i]);
		cu_scope_close(c, in);
	}
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- tiles */
/* What a class of pixels has: pixels in each direction, taps, the first tap, and the output row that it meets. */
static void
class_open(Gemm *x)
{
	Cuda *c = x->c;
	const Form *f = &x->f;
	const Type *o = val_type(c->g, x->op->out[0]), *w = val_type(c->g, x->op->in[1]);

	for (int d = 0; d < 2; d++) {
		Ix s = cu_ix_k(c, f->at.stride[d]);

		x->place[d] = f->at.stride[1 - d] == 1 ? x->b[0]
		              : d                      ? cu_ix_rem(c, x->b[0], cu_ix_k(c, f->at.stride[1]))
		                                       : cu_ix_div(c, x->b[0], cu_ix_k(c, f->at.stride[1]));
		if (f->at.stride[d] == 1)
			x->place[d] = "0";
		Ix shifted = cu_ix_add(c, x->place[d], cu_ix_k(c, f->at.pad[d]));

		x->tap[d] = cu_ix_rem(c, shifted, s);
		x->back[d] = cu_ix_div(c, shifted, s);
		Ix left = cu_ix_sub(c, cu_ix_k(c, o->axis[2 + d].n), x->place[d]);

		x->ext_m[1 + d] = cu_ix_parts(c, left, f->at.stride[d]);
		left = cu_ix_sub(c, cu_ix_k(c, w->axis[2 + d].n), x->tap[d]);
		x->ext_k[d] = cu_ix_parts(c, left, f->at.stride[d]);
		/* a filter narrower than the stride misses pixels */
		const char *taps = cu_fresh(c, 'i');

		cu_line(c, "const %s %s = %s > 0 ? %s : 0;", c->it, taps, x->ext_k[d], x->ext_k[d]);
		x->ext_k[d] = taps;
	}
}

static Ix
product(Cuda *c, const Ix *ext, int n)
{
	Ix r = "1";

	for (int i = 0; i < n; i++)
		r = cu_ix_mul(c, r, ext[i]);
	return r;
}

static void
extents(Cuda *c, const Axis *a, int n, Ix *ext)
{
	for (int i = 0; i < n; i++)
		ext[i] = cu_extent(c, a[i]);
}

/* Blocks that run at one time should read the same rows and columns: where there are many tiles both ways, BAND rows of
 * tiles are gone through column by column. */
static bool
in_bands(const Form *f, const Tiles *p)
{
	return cu_form_count(f->m, f->nm) >= BAND * p->m && cu_form_count(f->n, f->nn) >= BAND * p->n;
}

static Scope
tile_open(Gemm *x)
{
	Cuda *c = x->c;
	Form *f = &x->f;
	Ix ext_b[MAX_RANK], full_m[MAX_RANK], rest[5], ext[5];
	bool bands = in_bands(f, &x->p);

	extents(c, f->b, f->nb, ext_b);
	extents(c, f->m, f->nm, x->ext_m);
	extents(c, f->n, f->nn, x->ext_n);
	extents(c, f->k, f->nk, x->ext_k);
	memcpy(full_m, x->ext_m, sizeof full_m);
	x->N = product(c, x->ext_n, f->nn);
	x->row_tiles = cu_ix_parts(c, product(c, full_m, f->nm), x->p.m);
	x->blocks_b = product(c, ext_b, f->nb);
	ext[0] = cu_ix_k(c, x->p.split);
	ext[1] = x->blocks_b;
	ext[2] = bands ? cu_ix_parts(c, x->row_tiles, BAND) : x->row_tiles;
	ext[3] = cu_ix_parts(c, x->N, x->p.n);
	ext[4] = bands ? cu_ix_k(c, BAND) : "1";
	Ix tiles = product(c, ext, 5);
	Scope s = cu_scope_open(c, "for (%s tile = blockIdx.x; tile < %s; tile += gridDim.x)", c->it, tiles);

	cu_split_number(c, "tile", ext, 5, rest);
	x->part = rest[0];
	x->number_b = rest[1];
	x->tile_m = bands ? cu_ix_add(c, cu_ix_mul(c, rest[2], cu_ix_k(c, BAND)), rest[4]) : rest[2];
	if (bands)
		cu_line(c, "if (%s >= %s) continue;", x->tile_m, x->row_tiles);
	cu_split_number(c, rest[1], ext_b, f->nb, x->b);
	if (f->classes)
		class_open(x);
	x->tile_n = rest[3];
	x->col_tiles = ext[3];
	x->m0 = cu_ix_mul(c, x->tile_m, cu_ix_k(c, x->p.m));
	x->n0 = cu_ix_mul(c, rest[3], cu_ix_k(c, x->p.n));
	x->M = product(c, x->ext_m, f->nm);
	x->K = product(c, x->ext_k, f->nk);
	return s;
}

/* Do 128 registers do for a thread, so that two blocks of 256 share a multiprocessor, and one stores or loads while the
 * other multiplies? Half of them are the sums; where it is wrong, ptxas keeps registers in memory within the loop of
 * products and the kernel is compiled anew (nvrtc.c). By what ptxas made of the kernels of ResNet-50, VGG-16 and BERT
 * these are too many: units of an operand that are made of three tensors and more, an epilogue that reads much ahead.
 * Two parts of k are joined unrolled. */
static bool
two_fit(const Gemm *x)
{
	int waiting = 0; /* registers of what is loaded before the products */

	for (int k = 0; k < 2; k++) {
		if (x->x[k].vec == 1)
			return false;
		waiting += in_registers(&x->x[k]) ? (cu_leaves_read(&x->x[k].leaves) + 1) / 2 * x->x[k].each : 0;
	}
	return cu_gemm_shares(x) && waiting <= 32 && x->read <= (x->states ? 32 : 16);
}

static void
tiles_kernel(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;

	cu_kernel_open(c, "");
	cu_operands(x);
	c->threads = x->threads;
	c->shared = x->shared + (c->map.n ? WGMMA_BARRIERS : 0);
	if (p->groups) {
		/* the pattern of the swizzle is that of addresses */
		cu_line(c, "extern __shared__ __align__(1024) uint4 patterns[];");
		cu_line(c, "uint4 *const memory = patterns;");
	} else {
		cu_line(c, "extern __shared__ uint4 memory[];");
	}
	cu_line(c, "const int tid = threadIdx.x;");
	if (p->mma)
		cu_line(c, "const unsigned shared = shared_address(memory);");
	if (p->groups) {
		cu_line(c, "const int lane = tid %% 32, warp_m = tid / 128 * %d + tid / 32 %% 4 * 16, warp_n = 0;",
		        p->m / p->groups);
	} else if (p->mma) {
		cu_line(c, "const int lane = tid %% 32, warp_m = tid / 32 / %d * %d, warp_n = tid / 32 %% %d * %d;",
		        p->wn, p->m / p->wm, p->wn, p->n / p->wn);
	}
	if (p->groups)
		cu_wgmma_open(x);
	Scope s = tile_open(x);

	sums_open(x);
	steps(x);
	if (p->split > 1)
		cu_parts_join(x);
	cu_epilogue_emit(x);
	if (c->map.n)
		cu_line(c, "written_for_wgmma();");
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, s);
	c->two = two_fit(x);
	cu_kernel_close(c, arena_printf(c->a, "%s, a tile to a block", cu_gemm_text(c->a, p)),
	                cu_gemm_tiles(&x->f, p) * p->split);
}

void
cu_gemm_emit(Cuda *c, const Op *op)
{
	Gemm x = {.c = c,
	          .op = op,
	          .space = val_type(c->g, op->out[0]),
	          .column = cu_result_column(c->g, op),
	          .f = cu_form(c->g, op)};

	if (!cu_gemm_parse(c->g->group.at[c->group].kernel, &x.p))
		bug("target cuda: '%s' is no kernel of a contraction", c->g->group.at[c->group].kernel);
	x.threads = cu_gemm_threads(&x.p);
	x.shared = cu_gemm_shared(&x.p);
	int64_t whole = (int64_t)x.p.m * cu_slab_line(&x.p) * 4;

	/* no sums wait in registers: rows may be read ahead */
	if (whole > x.shared && whole <= WHOLE && cu_machine(c->g)->l1.bytes >= 2 * (WHOLE + SHARED_KEPT))
		x.shared = whole;
	x.slab = cu_slab_rows(&x.p, x.shared);
	tiles_kernel(&x);
	for (int k = 0; k < 2; k++)
		/* what was made on the way was stored there too (gemm_load.c) */
		c->ready[op->in[k].id] |= cu_value_is_out(c, op->in[k]);
}
