/* matmul.c: matrix products by the register-blocked microkernel.
 *
 * In: a group of one matmul, its operands where operands.c found or put them.   Out: the main kernel. A piece of
 * work is a block of rows of one matrix of the batch and goes over all panels of columns, of a long sum block by block;
 * its slices are the panels. Rows of a transposed first operand may be copied first
 * (GemmParams.copy). */
#include "gemm.h"
#include <string.h>

void
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
	V M = extent(e, p->m), blk = i_mul(e, i_rem(e, piece, k64(e, p->blocks)), k64(e, p->block)),
	  entries = k64(e, 1);
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

typedef struct Product {
	const GemmParams *p;
	const Type *a, *b, *o;
	Mat m;                   /* k in elements of the microkernel */
	int64_t nr, npanel;      /* columns of a panel, panels */
	int64_t block, blocks;   /* rows of a piece, pieces of a full batch entry */
	V M, am_rows;            /* rows of out and of a; here */
	V ent, lo, hi, aoff, bent; /* the piece: its batch entry, rows [lo, hi), a's offset in bytes, b's entry */
	V kb0, kb1;              /* its panels that this call computes */
	bool tiled;              /* a copy keeps the rows of a tile together */
} Product;

static Product
product_of(const Graph *g, const Op *op, const GemmParams *p)
{
	Product x = {.p = p, .a = val_type(g, op->in[0]), .b = val_type(g, op->in[1]), .o = val_type(g, op->out[0])};

	matmul_mat(g, op, &x.m);
	x.m.k /= gemm_unit(p);
	x.nr = (int64_t)p->nv * p->lanes;
	x.npanel = ceil_div(x.m.n, x.nr);
	x.block = matmul_block(&x.m, p);
	x.blocks = ceil_div(x.m.m.n, x.block);
	x.tiled = gemm_copies_tiles(g, p);
	return x;
}

/* What of the operands batch entry x->ent multiplies, broadcast axes left out; entries beyond this batch have no
 * rows. */
static void
entry_find(Emit *e, Product *x)
{
	V entries = k64(e, 1), as = k64(e, 1), bs = k64(e, 1), left = x->ent;
	bool marked = false;

	x->aoff = x->bent = k64(e, 0);
	if (x->m.merged)
		return;
	for (int i = x->o->rank - 3; i >= 0; i--) {
		V n = extent(e, x->o->axis[i]), ix = i_rem(e, left, n);
		int ai = i - (x->o->rank - x->a->rank), bi = i - (x->o->rank - x->b->rank);

		marked |= x->o->axis[i].mul != 0;
		left = i_div(e, left, n);
		entries = i_mul(e, entries, n);
		if (ai >= 0 && x->a->axis[ai].n != 1) {
			x->aoff = i_add(e, x->aoff, i_mul(e, ix, as));
			as = i_mul(e, as, extent(e, x->a->axis[ai]));
		}
		if (bi >= 0 && x->b->axis[bi].n != 1) {
			x->bent = i_add(e, x->bent, i_mul(e, ix, bs));
			bs = i_mul(e, bs, extent(e, x->b->axis[bi]));
		}
	}
	x->aoff = i_mul(e, x->aoff, i_mul(e, x->am_rows, k64(e, x->m.k * 4)));
	if (marked) {
		V in = LLVMBuildICmp(here(e), LLVMIntSLT, x->ent, entries, "");

		x->hi = LLVMBuildSelect(here(e), in, x->hi, x->lo, "");
	}
}

/* Opens the loop over pieces: (batch entry, block of rows); with fewer examples the blocks beyond the end are empty.
 * Returns the piece. */
static V
piece_open(Emit *e, Product *x)
{
	V piece = slices_open(e, x->npanel, &x->kb0, &x->kb1), block = i_rem(e, piece, k64(e, x->blocks));

	x->ent = i_div(e, piece, k64(e, x->blocks));
	x->lo = i_min(e, i_mul(e, block, k64(e, x->block)), x->M),
	x->hi = i_min(e, i_mul(e, i_add(e, block, k64(e, 1)), k64(e, x->block)), x->M);
	entry_find(e, x);
	return piece;
}

/* Offset of panel kb of b's entry, bytes. */
static V
panel_at(Emit *e, const Product *x, V kb, int64_t entries)
{
	if (x->p->pack) /* [panel][entry][k][nr] */
		return i_mul(e, i_add(e, i_mul(e, kb, k64(e, entries)), x->bent), k64(e, x->m.k * x->nr * 4));
	return i_add(e, i_mul(e, x->bent, k64(e, x->m.k * x->m.n * 4)), i_mul(e, kb, k64(e, x->nr * 4)));
}

/* A copied operand's rows that lie together, number beside number: those of a register tile, so that its steps follow
 * each other in memory; all of the piece where what the epilogue reduces cuts tiles elsewhere. */
typedef struct RowCopy { int64_t high, tile; } RowCopy; /* rows; bytes from one tile to the next */

static RowCopy
row_copy_of(const Product *x, const Epilogue *epi)
{
	int64_t high = x->tiled && rows_meet_tiles(epi, x->p) ? x->p->mr : x->block;

	return (RowCopy){high, matmul_tile_bytes(&x->m, high)};
}

/* Where row `lo` of the piece begins in the copy. */
static V
row_copy_at(Emit *e, const Product *x, const RowCopy *t, V lo)
{
	if (t->high == x->block)
		return i_mul(e, lo, k64(e, 4));
	V tile = i_div(e, lo, k64(e, t->high)), row = i_sub(e, lo, i_mul(e, tile, k64(e, t->high)));

	return i_add(e, i_mul(e, tile, k64(e, t->tile)), i_mul(e, row, k64(e, 4)));
}

/* The first `steps` steps of rows [x->lo, x->hi) of a transposed operand that starts at `from`. whole: all vectors may
 * be read whole. */
static void
copy_steps(Emit *e, const Product *x, const RowCopy *t, V steps, V from, V line, V to, bool whole)
{
	enum { AHEAD = 16, LINE = 64 };
	int w = x->p->lanes;
	V i = loop_open(e, k64(e, 0), steps, 1), rows = i_sub(e, x->hi, x->lo);
	V in = ptr_at(e, from, i_add(e, i_mul(e, i, line), i_mul(e, x->lo, k64(e, 4)))),
	  out = ptr_at(e, to, i_mul(e, i, k64(e, t->high * 4)));

	/* steps are pages apart: the CPU asks for none of these lines by itself */
	for (int64_t j = 0; j < x->block * 4 && x->tiled; j += LINE)
		prefetch(e, ptr_at(e, in, i_add(e, i_mul(e, line, k64(e, AHEAD)), k64(e, j))), 3);
	for (int64_t tile = 0; tile * t->high < x->block; tile++)
		for (int64_t j = 0; j < t->high; j += w) {
			int64_t row = tile * t->high + j;
			V ok = whole ? NULL : row_mask(e, rows, row);

			vec_store(e, ptr_at(e, out, k64(e, tile * t->tile + j * 4)),
			          vec_load(e, ptr_at(e, in, k64(e, row * 4)), ok), t->high == x->block ? ok : NULL);
		}
	loop_close(e);
}

/* Copies rows [x->lo, x->hi) of an entry of a transposed operand, which starts at `from`, to scratch memory. What a
 * vector holds beyond a tile's rows the next step overwrites, or the room behind the tile takes. */
static V
copy_transposed(Emit *e, const Product *x, const RowCopy *t, V from, V line)
{
	V to = scratch_ptr(e, 0), all = k64(e, x->m.k), none = k64(e, 0);

	if (!x->tiled) {
		copy_steps(e, x, t, all, from, line, to, false);
		return to;
	}
	/* a mask costs more than its load: none in a whole piece with a vector or more behind it */
	V room = i_min(e, i_sub(e, i_sub(e, x->hi, x->lo), k64(e, x->block)),
	               i_sub(e, x->am_rows, i_add(e, x->lo, k64(e, x->block + x->p->lanes))));
	V whole = LLVMBuildICmp(here(e), LLVMIntSGE, room, none, "");

	copy_steps(e, x, t, LLVMBuildSelect(here(e), whole, all, none, ""), from, line, to, true);
	copy_steps(e, x, t, LLVMBuildSelect(here(e), whole, none, all, ""), from, line, to, false);
	return to;
}

/* All steps of a long sum but the last block's: sums go to `c`, rows as S_CM of st says. */
static void
first_steps(Emit *e, const Product *x, const Tiles *tiles, const RowCopy *t, V st[S_COUNT], int64_t steps, V a, V b,
            int64_t entries, V c)
{
	V line = st[S_CM], own[S_COUNT];

	memcpy(own, st, sizeof own);
	own[S_NK] = k64(e, steps);
	V strides = strides_block(e, own);
	V i = loop_open(e, k64(e, 0), k64(e, (x->m.k - 1) / steps), 1), k0 = i_mul(e, i, k64(e, steps)), lo, count;
	V kb = loop_open(e, x->kb0, x->kb1, 1);
	V panel = ptr_at(e, b, i_add(e, panel_at(e, x, kb, entries), i_mul(e, k0, st[S_BK])));
	V more = LLVMBuildZExt(at1(e, i), LLVMBuildICmp(at1(e, i), LLVMIntSGT, i, k64(e, 0), ""), e->l->i64, "");

	tiles_open_cut(e, x->tiled, i_sub(e, x->hi, x->lo), x->p->mr, &lo, &count);
	V row = x->p->copy ? row_copy_at(e, x, t, lo) : i_mul(e, lo, st[S_AM]),
	  from = ptr_at(e, a, i_add(e, row, i_mul(e, k0, st[S_AK])));
	V to = ptr_at(e, c, i_add(e, i_mul(e, lo, line), i_mul(e, kb, k64(e, x->nr * 4))));

	tile_call(e, tiles, count, kb, x->npanel, from, panel, to, k64(e, 1), k64(e, 1), strides, more);
	for (int k = 0; k < 3; k++)
		loop_close(e);
}

/* blocks: the sum has several; tile: sums go to a tile of their own. */
static Tiles
matmul_tiles(Emit *e, const Product *x, const Epilogue *epi, bool blocks, bool tile)
{
	const GemmParams *p = x->p;
	int64_t n = x->m.n, rows = x->m.m.mul ? ANY_ROWS : row_tiles(epi, p, x->m.m.n, x->block);

	if (blocks && !x->m.m.mul)
		rows |= tile_rows_cut(x->tiled, x->m.m.n, x->block, p->mr);
	return tiles_make(e, p, tile && p->pack ? ceil_div(n, p->lanes) * p->lanes : n, rows);
}

/* Strides of the microkernel: out_line: elements of a row of sums, `last` the first k of its last step. */
static void
matmul_strides(Emit *e, const Product *x, const RowCopy *t, bool ta, V line, int64_t out_line, int64_t last, V *st)
{
	const GemmParams *p = x->p;

	st[S_AM] = ta ? k64(e, 4) : k64(e, x->m.k * 4);
	st[S_AK] = p->copy ? k64(e, t->high * 4) : ta ? line : k64(e, 4);
	st[S_AP] = st[S_AQ] = st[S_BP] = st[S_BQ] = k64(e, 0);
	st[S_BK] = k64(e, p->pack ? x->nr * 4 : x->m.n * 4);
	st[S_CM] = k64(e, out_line * 4);
	st[S_NK] = k64(e, x->m.k - last);
}

void
matmul_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	Product x = product_of(gc->g, op, p);
	/* amx_turn has transposed it for tiles */
	bool transposed = attr_bool(op, A_ta), ta = transposed && !engine_of(p)->side_by_side, fresh, tile;
	int64_t nr = x.nr, n = x.m.n, steps = matmul_steps(&x.m, p), last = (x.m.k - 1) / steps * steps;
	bool blocks = last > 0; /* of the sum */
	Emit e = {0};
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		x.M = extent(&e, x.m.m);
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = epilogue_raw(&e, epi, p->mr, nr, &tile);

		x.am_rows = extent(&e, x.a->axis[x.a->rank - (transposed ? 1 : 2)]);
		if (blocks && tile) /* sums of all panels, behind the copy */
			C = scratch_ptr(&e, p->copy ? matmul_copy_bytes(&x.m, p, x.tiled) : 0);
		int64_t out_line = !tile ? n : blocks ? x.npanel * nr : nr;
		Tiles tiles = matmul_tiles(&e, &x, epi, blocks, tile);
		V line = i_mul(&e, x.am_rows, k64(&e, 4));
		V st[S_COUNT];

		RowCopy copy = row_copy_of(&x, epi);

		matmul_strides(&e, &x, &copy, ta, line, out_line, last, st);
		int64_t entries = pack_of(gc->g, op, engine_pairs(p)).taps;
		V strides = strides_block(&e, st), piece = piece_open(&e, &x);
		V from = ptr_at(&e, A, x.aoff), skip = k64(&e, 0);

		if (p->copy) {
			from = copy_transposed(&e, &x, &copy, from, line);
			skip = x.lo;
		}
		if (blocks) {
			V first = i_add(&e, i_mul(&e, x.ent, x.M), x.lo);

			first_steps(&e, &x, &tiles, &copy, st, steps,
			            ptr_at(&e, from, i_mul(&e, i_sub(&e, x.lo, skip), st[S_AM])), B, entries,
			            tile ? C : ptr_at(&e, C, i_mul(&e, first, k64(&e, n * 4))));
		}
		V kb = loop_open(&e, x.kb0, x.kb1, 1), column = i_mul(&e, kb, k64(&e, nr));
		V panel = ptr_at(&e, B, i_add(&e, panel_at(&e, &x, kb, entries), i_mul(&e, k64(&e, last), st[S_BK])));
		RowLoops r = rows_open(&e, epi, p, i_sub(&e, x.hi, x.lo));
		V lo = i_add(&e, x.lo, r.lo), entry = i_mul(&e, x.ent, x.M), row = i_add(&e, entry, lo);
		V c0 = i_add(&e, i_mul(&e, row, k64(&e, n * 4)), i_mul(&e, kb, k64(&e, nr * 4)));
		MatAt at = {x.o, row}, at_block = {x.o, i_add(&e, entry, i_add(&e, x.lo, r.first))};
		EpilogueTile et = {.rows = r.count,
		                   .column = column,
		                   .columns = i_min(&e, k64(&e, nr), i_sub(&e, k64(&e, n), column)),
		                   .piece = piece,
		                   .done = r.first,
		                   .carried = i_sub(&e, r.lo, r.first),
		                   .tile = C,
		                   .tile_columns = nr,
		                   .tile_line = tile ? out_line : 0,
		                   .unroll = p->nv,
		                   .index = mat_index,
		                   .cx = &at};
		V in_a = p->copy ? row_copy_at(&e, &x, &copy, r.lo) : i_mul(&e, lo, st[S_AM]),
		  a = ptr_at(&e, from, i_add(&e, in_a, i_mul(&e, k64(&e, last), st[S_AK])));
		V out = tile ? C : ptr_at(&e, C, c0);

		if (blocks && tile)
			out = ptr_at(&e, C,
			             i_add(&e, i_mul(&e, r.lo, k64(&e, out_line * 4)), i_mul(&e, kb, k64(&e, nr * 4))));
		et.tile = tile ? out : C;
		epilogue_fetch(&e, epi, &et, nr < n ? nr : n);
		tile_call(&e, &tiles, r.count, kb, x.npanel, a, panel, out, k64(&e, 1), k64(&e, 1), strides,
		          k64(&e, blocks));
		epilogue_tile(&e, epi, &et);
		rows_close(&e, &r, epi, &et, &at_block);
		for (int i = 0; i < 2; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(x.m.batch * x.blocks, x.npanel), fresh, false);
	MatPieces pieces = {x.m.m, x.o, x.block, x.blocks, x.m.merged};

	epilogue_finish(gc, gk, epi, mat_pieces, &pieces);
}
