/* gemm.c: convolutions through the register-blocked microkernel, and what all contractions share.
 *
 * In: a group of one contraction that gemm_params.c takes. An operand that ops of the group make comes as prologue.c
 * says. Out: a packing kernel where the second operand is not vectors already, the main kernel, and what finishes its
 * reductions. Matrix products are in matmul.c; other algorithms have files of their own (algos.def). A convolution is
 * data: per output row the first valid filter row, how many, and the input row they start at; per run of output columns
 * likewise. Borders are skipped, stride 2 of the gradient is a step of the filter index, dilation a step of the input;
 * no case has code of its own. Channels in groups: a panel holds columns of one group, whose channels the first
 * operand's rows begin at. Tasks are cut by shape, so results have the same bits for any number of threads. */
#include "algo.h"
#include <string.h>

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

void
panel_find(Emit *e, int64_t groups, int64_t npanel, V kb, V *group, V *panel)
{
	*group = groups > 1 ? i_div(e, kb, k64(e, npanel)) : k64(e, 0);
	*panel = groups > 1 ? i_rem(e, kb, k64(e, npanel)) : kb;
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

Tiles
tiles_make(Emit *e, const GemmParams *p, int64_t columns, int64_t rows)
{
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, rest = columns % nr ? columns % nr : nr, npanel = ceil_div(columns, nr);
	int nv_last = (int)ceil_div(rest, w);
	bool masked = rest % w != 0;
	const Engine *engine = engine_of(p);
	V whole[64], last[64];
	Tiles t = {.rows = engine->counts};

	if (engine->open)
		engine->open(e);
	for (int r = 1; r <= p->mr; r++) {
		if (!(rows >> (r - 1) & 1)) {
			last[r - 1] = whole[r - 1] = LLVMConstNull(e->l->ptr);
			continue;
		}
		last[r - 1] = engine->micro(e->l, p, r, nv_last, masked);
		whole[r - 1] = npanel > 1 ? engine->micro(e->l, p, r, p->nv, false) : last[r - 1];
		t.fn = LLVMGlobalGetValueType(last[r - 1]);
	}
	V init[2] = {LLVMConstArray2(e->l->ptr, whole, (uint64_t)p->mr),
	             LLVMConstArray2(e->l->ptr, last, (uint64_t)p->mr)};

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

/* A block of rows is so many units at most: units that usual tiles fill (6, 12, or 14 rows of one vector; matrix tiles
 * have 32), so many of them that combining states costs little and a sum of a block needs no compensation. */
typedef struct BlockSize { int64_t unit, units; } BlockSize;

static BlockSize
block_size(const Epilogue *epi, const GemmParams *p)
{
	const Type *o = val_type(epi->gc->g, epi->op->out[0]);
	int64_t columns = o->axis[o->perm[o->rank - 1]].n / gemm_groups(epi->op);
	bool narrow = epi->gc->c->l.arch->vector_bytes == 64 && columns <= 16;

	if (engine_of(p)->block)
		return (BlockSize){engine_of(p)->block, engine_of(p)->units};
	return narrow ? (BlockSize){14, 4} : (BlockSize){12, 4};
}

/* A number that LLVM shall not compute anew: its strength reduction would take an address in a loop over a tile's rows
 * from the divisions that cut the tile, row by row. */
static V
settled(Emit *e, V x)
{
	return LLVMBuildFreeze(here(e), x, "");
}

RowLoops
rows_open(Emit *e, const Epilogue *epi, const GemmParams *p, V rows)
{
	BlockSize b = block_size(epi, p);
	RowLoops r = {.blocks = epi->nred > 0};

	r.first = k64(e, 0);
	r.rows = rows;
	if (!r.blocks) {
		tiles_open(e, rows, p->mr, &r.lo, &r.count);
		return r;
	}
	V units = i_div(e, i_add(e, rows, k64(e, b.unit - 1)), k64(e, b.unit));
	V n = i_div(e, i_add(e, units, k64(e, b.units - 1)), k64(e, b.units)), some = i_max(e, n, k64(e, 1));
	V each = i_div(e, i_add(e, units, i_sub(e, some, k64(e, 1))), some), step = i_mul(e, each, k64(e, b.unit));
	V i = loop_open(e, k64(e, 0), n, 1);

	r.first = settled(e, i_mul(e, i, step));
	r.rows = settled(e, i_min(e, step, i_sub(e, rows, r.first)));
	tiles_open(e, r.rows, p->mr, &r.lo, &r.count);
	r.lo = settled(e, i_add(e, r.first, r.lo));
	r.count = settled(e, r.count);
	return r;
}

void
rows_close(Emit *e, const RowLoops *r, Epilogue *epi, const EpilogueTile *t, void *block)
{
	EpilogueTile whole = *t;

	if (r->blocks) {
		loop_close(e);
		whole.rows = r->rows;
		whole.cx = block;
		epilogue_block(e, epi, &whole);
	}
	loop_close(e);
}

int64_t
row_tiles(const Epilogue *epi, const GemmParams *p, int64_t rows, int64_t part)
{
	BlockSize b = block_size(epi, p);
	int64_t size[2] = {rows < part ? 0 : part, rows % part}, set = 0;

	if (!epi->nred)
		return tile_rows(rows, part, p->mr);
	for (int k = 0; k < 2; k++) {
		int64_t units = ceil_div(size[k], b.unit), n = ceil_div(units, b.units);

		if (n)
			set |= tile_rows(size[k], ceil_div(units, n) * b.unit, p->mr);
	}
	return set;
}

/* ---------------------------------------------------------------- convolution forward, and its gradient in x */
Taps
taps_of(bool dx, int64_t o, int64_t in, int64_t size, int64_t stride, int64_t pad, int64_t dil, int64_t *step,
        int64_t *move)
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

/* A row of pixels each. */
static V
image_pieces(Emit *e, void *cx, V piece)
{
	const Type *o = cx;

	(void)piece;
	return i_mul(e, k64(e, o->axis[3].n), extent(e, o->axis[0]));
}

/* Which pixels and taps meet: what is data in the kernel. */
typedef struct Walk {
	int64_t *rows;           /* of each output row: its first input row, filter row, how many of these */
	/* output columns with the same taps: first, how many; their first input column, filter column, how many of
	 * these */
	int64_t *runs, nrun;
	/* from a run's pixel to the next, in input pixels: with one image they need not be neighbours */
	int64_t apart;
	int64_t rstep, rmove, sstep, smove; /* of the filter index, of the input index per tap */
} Walk;

static Walk
walk_of(Arena *a, const Op *op, const Type *x, const Type *wt, const Type *o)
{
	bool dx = op->kind == OP_conv2d_dx;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL),
	              *dil = attr_ints(op, A_dilation, NULL), OH = o->axis[2].n, OW = o->axis[3].n;
	Walk w = {.rows = arena_array(a, int64_t, OH * 3),
	          .runs = arena_array(a, int64_t, OW * 5),
	          .apart = o->axis[0].n == 1 && !dx ? stride[1] : 1,
	          .rstep = 1,
	          .rmove = 1,
	          .sstep = 1,
	          .smove = 1};

	for (int64_t i = 0; i < OH; i++) {
		Taps t = taps_of(dx, i, x->axis[2].n, wt->axis[2].n, stride[0], pad[0], dil[0], &w.rstep, &w.rmove);

		memcpy(&w.rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
	}
	for (int64_t i = 0; i < OW; i++) {
		Taps t = taps_of(dx, i, x->axis[3].n, wt->axis[3].n, stride[1], pad[1], dil[1], &w.sstep, &w.smove);
		int64_t *last = &w.runs[(w.nrun - 1) * 5];

		/* neighbours with the same taps whose inputs are that far apart are one run of rows */
		if (w.nrun && t.first == last[3] && t.count == last[4] && t.at == last[2] + last[1] * w.apart)
			last[1]++;
		else
			memcpy(&w.runs[w.nrun++ * 5], (int64_t[]){i, 1, t.at, t.first, t.count}, 40);
	}
	return w;
}

static void
image_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Type *x = val_type(g, op->in[0]), *wt = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	int64_t W = x->axis[3].n, C = x->axis[1].n / gemm_unit(p), OH = o->axis[2].n, OW = o->axis[3].n,
	        K = o->axis[1].n, R = wt->axis[2].n, S = wt->axis[3].n;
	int64_t groups = gemm_groups(op), own = C / groups, columns_own = K / groups; /* of a group */
	Emit e = {0};
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(columns_own, nr);
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		/* one channel: the filter's columns are the innermost sum */
		bool columns = x->axis[1].n == 1 && S > 1;
		Walk walk = walk_of(e.arena, op, x, wt, o);
		bool tile, made = abuf < 0, bands = made || (epi->nred && prologue_bands(g, op, p));

		emit_lanes(&e, w);
		V n = extent(&e, o->axis[0]), in = made ? scratch_ptr(&e, 0) : buffer(&e, abuf), wts = buffer(&e, bbuf),
		  out = epilogue_raw(&e, epi, p->mr, nr, &tile);
		int64_t counts = o->axis[0].mul ? ANY_ROWS : 0, band = bands ? prologue_pixels(g, op, p) : OW;

		for (int64_t i = 0; i < walk.nrun && !o->axis[0].mul; i++) {
			int64_t run = walk.runs[i * 5 + 1];

			counts |= row_tiles(epi, p, run * o->axis[0].n, (band < run ? band : run) * o->axis[0].n);
		}
		Tiles tiles = tiles_make(&e, p, tile && p->pack ? ceil_div(columns_own, w) * w : columns_own, counts);
		V pixel_a = i_mul(&e, n, k64(&e, C * 4)), pixel_c = i_mul(&e, n, k64(&e, K * 4));
		V st[S_COUNT] = {[S_AM] = k64(&e, walk.apart * C * 4),
		                 [S_AK] = k64(&e, 4),
		                 [S_AP] = i_mul(&e, pixel_a, k64(&e, walk.rmove * W)),
		                 [S_AQ] = i_mul(&e, pixel_a, k64(&e, walk.smove)),
		                 [S_BP] = k64(&e, walk.rstep * S * own * nr * 4),
		                 [S_BQ] = k64(&e, walk.sstep * own * nr * 4),
		                 [S_BK] = k64(&e, nr * 4),
		                 [S_CM] = k64(&e, (tile ? nr : K) * 4),
		                 [S_NK] = k64(&e, own)};
		if (columns) {
			st[S_AK] = st[S_AQ];
			st[S_BK] = st[S_BQ];
		}
		V strides = strides_block(&e, st), trow = table(&e, walk.rows, OH * 3),
		  trun = table(&e, walk.runs, walk.nrun * 5);
		V t = loop_open(&e, e.arg_t0, e.arg_t1, 1), made0 = k64(&e, 0), made1 = NULL;

		/* one tap, and a run of all columns: the input's pixels are the output's. Blocks of rows begin with a
		 * band, whether it is made here or stands in memory */
		if (bands) {
			made0 = loop_open(&e, k64(&e, 0), k64(&e, OW), band);
			made1 = i_min(&e, i_add(&e, made0, k64(&e, band)), k64(&e, OW));
		}
		if (made)
			prologue_row(&e, op->in[0], t, made0, made1, in);
		V inner = loop_open(&e, k64(&e, 0), k64(&e, p->panel_outer ? OH : groups * npanel), 1), group, panel;
		V kb = p->panel_outer ? t : inner, row = p->panel_outer ? inner : t, row3 = i_mul(&e, row, k64(&e, 3));
		V h0 = table_at(&e, trow, row3), r0 = table_at(&e, trow, i_add(&e, row3, k64(&e, 1))),
		  np = table_at(&e, trow, i_add(&e, row3, k64(&e, 2)));
		V run5 = i_mul(&e, loop_open(&e, k64(&e, 0), k64(&e, walk.nrun), 1), k64(&e, 5));
		V ow = table_at(&e, trun, run5), len = table_at(&e, trun, i_add(&e, run5, k64(&e, 1))),
		  w0 = table_at(&e, trun, i_add(&e, run5, k64(&e, 2)));
		V s0 = table_at(&e, trun, i_add(&e, run5, k64(&e, 3))),
		  nq = table_at(&e, trun, i_add(&e, run5, k64(&e, 4)));
		panel_find(&e, groups, npanel, kb, &group, &panel);
		V pixel = made ? k64(&e, 0) : i_mul(&e, i_add(&e, i_mul(&e, h0, k64(&e, W)), w0), pixel_a);
		V a0 = i_add(&e, pixel, i_mul(&e, group, k64(&e, own * 4)));
		V c0 = i_add(&e, i_mul(&e, i_add(&e, i_mul(&e, row, k64(&e, OW)), ow), pixel_c),
		    i_add(&e, i_mul(&e, group, k64(&e, columns_own * 4)), i_mul(&e, panel, k64(&e, nr * 4))));
		V tap = i_add(&e, i_mul(&e, r0, k64(&e, S)), s0);
		V b0 = i_add(&e, i_mul(&e, kb, k64(&e, R * S * own * nr * 4)), i_mul(&e, tap, k64(&e, own * nr * 4)));

		if (columns) {
			V at = k64(&e, S_NK), some = LLVMBuildICmp(here(&e), LLVMIntSGT, nq, k64(&e, 0), "");

			LLVMBuildStore(here(&e), nq, LLVMBuildInBoundsGEP2(here(&e), e.l->i64, strides, &at, 1, ""));
			nq = LLVMBuildZExt(here(&e), some, e.l->i64, "");
		}
		RowLoops r = rows_open(&e, epi, p, i_mul(&e, bands ? i_sub(&e, made1, made0) : len, n));
		V band0 = i_mul(&e, made0, n), lo = i_add(&e, r.lo, band0), first = i_add(&e, r.first, band0);
		V channel0 = i_mul(&e, group, k64(&e, columns_own)),
		  column = i_add(&e, channel0, i_mul(&e, panel, k64(&e, nr)));
		V columns_left = i_sub(&e, i_add(&e, channel0, k64(&e, columns_own)), column);
		V from = ptr_at(&e, in, i_add(&e, a0, i_mul(&e, made ? r.lo : lo, k64(&e, walk.apart * C * 4))));
		ImageAt at = {lo, n, row, ow}, at_block = {first, n, row, ow};
		EpilogueTile et = {.rows = r.count, .column = column, .columns = i_min(&e, k64(&e, nr), columns_left),
			.piece = row, .done = i_add(&e, i_mul(&e, ow, n), first), .carried = i_sub(&e, r.lo, r.first),
			.tile = out, .tile_columns = nr, .unroll = p->nv, .index = image_index, .cx = &at};

		epilogue_fetch(&e, epi, &et, nr < columns_own ? nr : columns_own);
		tile_call(&e, &tiles, r.count, panel, npanel, from, ptr_at(&e, wts, b0),
		          tile ? out : ptr_at(&e, out, i_add(&e, c0, i_mul(&e, lo, k64(&e, K * 4)))), np, nq, strides,
		          k64(&e, 0));
		epilogue_tile(&e, epi, &et);
		rows_close(&e, &r, epi, &et, &at_block);
		for (int i = 0; i < 3 + bands; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn,
	           (Rows){.rows = p->panel_outer ? groups * npanel : OH, .mul = 0, .div = 1, .grain = 1}, fresh, false);
	epilogue_finish(gc, gk, epi, image_pieces, (void *)(uintptr_t)o);
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
	int64_t used = align64(gemm_own_workspace(gc->g, op, p));

	for (int k = 0; k < 2; k++) {
		int64_t bytes = gemm_copy_bytes(gc->g, op, p, k), at = bytes ? workspace_start(gc) + used : 0;

		bool made = prologue_made(gc->g, op, k);

		if (!bytes) {
			Val rounded = k == 1 ? prologue_rounded(gc->g, op, p) : NOVAL;

			a[k] = rounded.id ? group_buffer(gc, rounded.id) : made ? -1 : group_buffer(gc, op->in[k].id);
		} else if (engine_pairs(p) && pairs_row(gc->g, op, k)) {
			vec_push(gc->tmp, &gc->buf, ((Buffer){0, at}));
			a[k] = (int)gc->buf.n - 1;
			if (engine_of(p)->side_by_side && k == 0)
				amx_turn(gc, op->in[k], made, a[k], gk);
			else if (made)
				pairs_make(gc, op->in[k], pairs_line(gc->g, op, k), a[k], gk);
			else
				pairs_emit(gc, op->in[k], pairs_row(gc->g, op, k), pairs_line(gc->g, op, k), a[k], gk);
		} else {
			Type *t = arena_new_of(gc->tmp, Type);

			*t = *val_type(gc->g, op->in[k]);
			if (!engine_pairs(p))
				t->dtype = DT_f32;
			store_copy(gc, op->in[k], t, at, gk);
			a[k] = (int)gc->buf.n - 1;
		}
		used += bytes;
	}
}

void
gemm_epilogue(GroupCx *gc, const Op *op, const GemmParams *p, Epilogue *epi)
{
	epilogue_find(gc, op, gemm_pieces(gc->g, op, p), gemm_workspace(gc->g, op, p), epi);
}

int
gemm_pack(GroupCx *gc, const Op *op, const GemmParams *p, int b, Epilogue *epi, GraphKernels *gk)
{
	int panels = gemm_panels(gc->g, op, p) ? panels_at(gc) : -1;

	gemm_epilogue(gc, op, p, epi);
	if (panels >= 0) {
		gc->once = gc->g->group.at[gc->group].kept > 0;
		pack_emit(gc, op, p, b, panels, gk);
		gc->once = false;
	}
	return panels;
}

void
direct_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk)
{
	Epilogue epi;
	int panels = gemm_pack(gc, op, p, b, &epi, gk);

	(op->kind == OP_matmul ? matmul_emit : image_emit)(gc, op, p, a, panels >= 0 ? panels : b, &epi, gk);
}

/* Is there room, and what is kept made of what never changes? */
static bool
memory_fits(GroupCx *gc, const Op *op, const GemmParams *p)
{
	const Group *group = &gc->g->group.at[gc->group];

	if (gemm_group_workspace(gc->g, gc->group, op, p) > group->workspace)
		return false;
	return !group->kept || (gemm_keepable(gc->g, op, p) && gemm_panels(gc->g, op, p) <= group->kept
	                        && steady_for(gc->g, gc->c->steady, op->in[1], gc->group));
}

void
gemm_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Group *group = &gc->g->group.at[gc->group];
	PlanCx cx = {.arch = gc->c->l.arch, .half = gemm_half(gc->g, op)};
	GemmParams p;
	int operand[2];

	if (!gemm_parse(group->kernel, &p))
		bug("kernel parameters `%s` of %s", group->kernel, group->name);
	/* text may be anybody's */
	if (strcmp(gemm_text(gc->tmp, &p), group->kernel) || gemm_why_not(gc->g, op, &cx, &p) ||
	    !memory_fits(gc, op, &p)) {
		gc->c->error = arena_printf(
		        gc->c->arena, "group %s: %s computes no %s of this shape in %lld bytes of workspace",
		        group->name, group->kernel, op_info[op->kind].name, (long long)group->workspace);
		return;
	}
	p.chains = gemm_chains(gc->g, op, &p, gc->c->l.arch->vector_bytes);
	scratch_check(gc, gemm_scratch(gc->g, op, &p));
	find_operands(gc, op, &p, operand, gk);
	p.algo->emit(gc, op, &p, operand[0], operand[1], gk);
}
