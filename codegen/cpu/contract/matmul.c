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
	V M = extent(e, p->m), blk = i_mul_k(e, i_rem_k(e, piece, p->blocks), p->block), entries = k64(e, 1);
	V rows = i_max(e, k64(e, 0), i_min(e, k64(e, p->block), i_sub(e, M, blk)));
	bool marked = false;

	for (int i = 0; !p->merged && i + 2 < p->o->rank; i++) {
		entries = i_mul(e, entries, extent(e, p->o->axis[i]));
		marked |= p->o->axis[i].mul != 0;
	}
	if (!marked)
		return rows;
	V in = LLVMBuildICmp(at2(e, piece, entries), LLVMIntSLT, i_div_k(e, piece, p->blocks), entries, "");

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
	V own;                   /* where a task makes them itself; else NULL */
	Pack pairs;              /* of pairs that it makes; half: and rounds (DT_none: they stand in 16 bits) */
	DType half;
	Mem b_panels;            /* [panel][batch entry][step], not packed [batch entry][panel][step] */
} Product;

static Product
product_of(const Graph *g, const Op *op, const GemmParams *p)
{
	Product x = {.p = p, .a = val_type(g, op->in[0]), .b = val_type(g, op->in[1]), .o = val_type(g, op->out[0]),
	             .half = DT_none};

	matmul_mat(g, op, &x.m);
	x.m.k = ceil_div(x.m.k, gemm_unit(p));
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
	x->aoff = i_mul(e, x->aoff, i_mul_k(e, x->am_rows, F32(x->m.k)));
	if (marked) {
		V in = LLVMBuildICmp(here(e), LLVMIntSLT, x->ent, entries, "");

		x->hi = LLVMBuildSelect(here(e), in, x->hi, x->lo, "");
	}
}

/* Opens the loop over pieces: (batch entry, block of rows); with fewer examples the blocks beyond the end are empty.
 * */
static int
piece_open(Emit *e, Product *x, V *piece)
{
	*piece = slices_open(e, x->npanel, &x->kb0, &x->kb1);
	V block = i_rem_k(e, *piece, x->blocks);

	x->ent = i_div_k(e, *piece, x->blocks);
	x->lo = i_min(e, i_mul_k(e, block, x->block), x->M),
	x->hi = i_min(e, i_mul_k(e, i_add_k(e, block, 1), x->block), x->M);
	entry_find(e, x);
	return 1;
}

/* Where panels of b lie; `entries` of a full batch. */
static void
panels_region(Emit *e, Product *x, V b, int64_t entries)
{
	int64_t row = F32(x->p->pack ? x->nr : x->m.n);

	x->b_panels = x->p->pack ? mem_axes(e, b, OF(entries), BY(x->m.k * row), BY(row))
	                         : mem_axes(e, b, BY(x->m.k * row), BY(F32(x->nr)), BY(row));
}

/* Rows of a block that a task makes a panel of, or steps of columns, at a time. */
enum { MADE = ROUNDED_STEPS };

/* Pairs are of two rows: `steps` of them from `in` on. Asks for the rows of as many behind them. */
static void
rows_make(Emit *e, const Product *x, V in, int64_t steps, V left)
{
	enum { LINE = 64 };
	int64_t wide = x->half != DT_none ? 2 : 1, row = x->pairs.second * wide, bytes = x->nr * 2 * wide;
	Pack block = x->pairs;

	for (int part = 0; part < 2; part++) { /* whole blocks, what is left */
		int64_t whole = steps / MADE * MADE, first = part ? whole : 0, end = part ? steps : whole;

		block.k = part ? end - first : MADE;
		if (first == end)
			continue;
		LOOP(e, i, k64(e, first), k64(e, end), block.k) {
			V from = ptr_at(e, in, i_mul_k(e, i, 2 * row));
			V ahead = ptr_at(e, from, k64(e, 2 * steps * row));

			TIMES(e, r, 2 * block.k)
				for (int64_t b = 0; b < bytes; b += LINE)
					prefetch(e, ptr_at(e, ahead, i_add_k(e, i_mul_k(e, r, row), b)), 2);
			V to = ptr_at(e, x->own, i_mul_k(e, i, F32(x->nr)));

			vnni_copy_rows(e, &block, x->p, x->half, from, to, left);
		}
	}
}

/* Columns are rows in memory: `steps` steps from `in` on, a vector of columns after the other. Asks for the next
 * vector's, behind the last for those of as many steps behind: few lines at a time, which may be in few sets of L2. */
static void
columns_make(Emit *e, const Product *x, V in, int64_t steps, V left)
{
	enum { LINE = 64 };
	bool rounds = x->half != DT_none;
	int64_t step = rounds ? 8 : 4, line = x->m.k * step; /* bytes */
	int64_t w = x->p->lanes, whole = steps / MADE * MADE;
	Pack few = {.k = w, .j_stride = line / 2};
	GemmParams one = *x->p;
	V rounded = rounds ? ptr_at(e, x->own, k64(e, F32(x->nr * OWN_STEPS))) : NULL;
	V fn = transpose_block(e->l, (int)w, false);

	one.nv = 1;
	LOOP(e, j, k64(e, 0), k64(e, x->nr), w) {
		V after = i_add_k(e, j, w), is_last = LLVMBuildICmp(here(e), LLVMIntEQ, after, k64(e, x->nr), "");
		V next = LLVMBuildSelect(here(e), is_last, k64(e, steps * step), i_mul_k(e, after, line), "");
		V from = ptr_at(e, in, i_mul_k(e, j, line)), to = ptr_at(e, x->own, i_mul_k(e, j, 4)),
		  columns = i_sub(e, left, j);

		LOOP(e, i, k64(e, 0), k64(e, whole), w) {
			V at = i_mul_k(e, i, step), block = ptr_at(e, from, at);
			V ahead = ptr_at(e, in, i_add(e, next, at));

			for (int64_t c = 0; c < w; c++)
				for (int64_t b = 0; b < w * step; b += LINE)
					prefetch(e, ptr_at(e, ahead, k64(e, c * line + b)), 2);
			if (rounds)
				round_columns(e, &few, &one, x->half, block, columns, rounded);
			V args[5] = {rounds ? rounded : block, k64(e, rounds ? F32(w) : line), columns,
			             ptr_at(e, to, i_mul_k(e, i, F32(x->nr))), k64(e, F32(x->nr))};

			LLVMBuildCall2(here(e), LLVMGlobalGetValueType(fn), fn, args, 5, "");
		}
	}
	if (whole == steps)
		return;
	Pack rest = {.k = steps - whole, .j_stride = rounds ? F32(steps - whole) : line, .k_stride = 4};
	V from = ptr_at(e, in, k64(e, whole * step));

	few.k = rest.k;
	if (rounds)
		round_columns(e, &few, x->p, x->half, from, left, rounded);
	transpose_rows(e, &rest, x->p, rounds ? rounded : from, ptr_at(e, x->own, k64(e, F32(whole * x->nr))), left);
}

/* Makes `steps` steps of panel kb from step k on. */
static V
panel_make(Emit *e, const Product *x, V kb, V k, int64_t steps)
{
	V left = i_sub(e, k64(e, x->m.n), i_mul_k(e, kb, x->nr));
	bool rows = x->pairs.second != 0;
	int64_t wide = x->half != DT_none ? 2 : 1, step = rows ? x->pairs.k_stride * wide : 4 * wide,
	        panel = rows ? x->nr * 2 * wide : x->nr * x->m.k * step;
	Mem from = mem_axes(e, x->b_panels.base, BY(panel), BY(step)); /* [panel][step], of the first column */

	(rows ? rows_make : columns_make)(e, x, mem_at(e, &from, kb, k), steps, left);
	return x->own;
}

/* `steps` steps of panel kb of b's entry, from step k on. */
static V
panel_at(Emit *e, const Product *x, V kb, V k, int64_t steps)
{
	if (x->own)
		return panel_make(e, x, kb, k, steps);
	Mem panel = x->p->pack ? mem_fix(e, &x->b_panels, kb, x->bent) : mem_fix(e, &x->b_panels, x->bent, kb);

	return mem_at(e, &panel, k);
}

/* panel_next for `steps` steps of panel kb of [kb0, kb1) from step k on: the panel that follows; behind the last the
 * first one, from step `then`. */
static void
panel_after(Emit *e, const Product *x, V strides, V kb, V kb0, V kb1, V k, V then, int64_t steps, V lo)
{
	if (!x->p->share)
		return;
	V after = i_add_k(e, kb, 1), is_last = LLVMBuildICmp(here(e), LLVMIntEQ, after, kb1, "");
	V panel = LLVMBuildSelect(here(e), is_last, kb0, after, ""),
	  at = LLVMBuildSelect(here(e), is_last, then, k, "");

	panel_next(e, x->p, strides, panel_at(e, x, panel, at, steps), lo, steps);
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

/* Bytes to row `lo` of the piece in the copy. */
static V
row_copy_at(Emit *e, const Product *x, const RowCopy *t, V lo)
{
	if (t->high == x->block)
		return i_mul_k(e, lo, 4);
	V tile = i_div_k(e, lo, t->high), row = i_sub(e, lo, i_mul_k(e, tile, t->high));

	return i_add(e, i_mul_k(e, tile, t->tile), i_mul_k(e, row, 4));
}

/* The first `steps` steps of rows [x->lo, x->hi) of a transposed operand that starts at `from`. whole: all vectors may
 * be read whole. */
static void
copy_steps(Emit *e, const Product *x, const RowCopy *t, V steps, V from, V line, V to, bool whole)
{
	enum { AHEAD = 16, LINE = 64 };
	int w = x->p->lanes;
	V rows = i_sub(e, x->hi, x->lo);
	Mem steps_in = mem_axes(e, from, BY(0), BY(4)); /* [step][row] */

	steps_in.axis[0].step = line;
	EACH(e, i, steps) {
		V in = mem_at(e, &steps_in, i, x->lo), out = ptr_at(e, to, i_mul_k(e, i, F32(t->high)));

		/* steps are pages apart: the CPU asks for none of these lines by itself */
		for (int64_t j = 0; j < F32(x->block) && x->tiled; j += LINE)
			prefetch(e, ptr_at(e, in, i_add_k(e, i_mul_k(e, line, AHEAD), j)), 3);
		for (int64_t tile = 0; tile * t->high < x->block; tile++)
			for (int64_t j = 0; j < t->high; j += w) {
				int64_t row = tile * t->high + j;
				V ok = whole ? NULL : row_mask(e, rows, row);

				vec_store(e, ptr_at(e, out, k64(e, tile * t->tile + F32(j))),
				          vec_load(e, ptr_at(e, in, k64(e, F32(row))), ok),
				          t->high == x->block ? ok : NULL);
			}
	}
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
	V room = i_min(e, i_sub_k(e, i_sub(e, x->hi, x->lo), x->block),
	               i_sub(e, x->am_rows, i_add_k(e, x->lo, x->block + x->p->lanes)));
	V whole = LLVMBuildICmp(here(e), LLVMIntSGE, room, none, "");

	copy_steps(e, x, t, LLVMBuildSelect(here(e), whole, all, none, ""), from, line, to, true);
	copy_steps(e, x, t, LLVMBuildSelect(here(e), whole, none, all, ""), from, line, to, false);
	return to;
}

/* All steps of a long sum but the last block's, of panels [kb0, kb1): sums go to `sums`, [row][panel]. */
static void
first_steps(Emit *e, const Product *x, const Tiles *tiles, const RowCopy *t, V st[S_COUNT], int64_t steps, V a,
            const Mem *sums, V kb0, V kb1)
{
	V own[S_COUNT];

	memcpy(own, st, sizeof own);
	own[S_NK] = k64(e, steps);
	V strides = strides_block(e, own);

	TIMES(e, i, (x->m.k - 1) / steps) {
		V k0 = i_mul_k(e, i, steps);

		LOOP(e, kb, kb0, kb1, 1) {
			V panel = panel_at(e, x, kb, k0, steps);
			V more = LLVMBuildICmp(at1(e, i), LLVMIntSGT, i, k64(e, 0), "");

			more = LLVMBuildZExt(at1(e, i), more, e->l->i64, "");
			TILES_CUT(e, lo, count, x->tiled, i_sub(e, x->hi, x->lo), x->p->mr) {
				V row = x->p->copy ? row_copy_at(e, x, t, lo) : i_mul(e, lo, st[S_AM]),
				  from = ptr_at(e, a, i_add(e, row, i_mul(e, k0, st[S_AK])));

				panel_after(e, x, strides, kb, kb0, kb1, k0, i_add_k(e, k0, steps), steps, lo);
				tile_call(e, tiles, count, kb, x->npanel, from, panel, mem_at(e, sums, lo, kb), NULL,
				          NULL, strides, more);
			}
		}
	}
}

/* blocks: the sum has several; tile: sums go to a tile of their own. */
static Tiles
matmul_tiles(Emit *e, const Product *x, const Epilogue *epi, bool blocks, bool tile, const V st[S_COUNT])
{
	const GemmParams *p = x->p;
	int64_t n = x->m.n, rows = x->m.m.mul ? ANY_ROWS : row_tiles(epi, p, x->m.m.n, x->block);

	if (blocks && !x->m.m.mul)
		rows |= tile_rows_cut(x->tiled, x->m.m.n, x->block, p->mr);
	return tiles_make(e, p, tile && p->pack ? ceil_div(n, p->lanes) * p->lanes : n, rows, steps_known(st));
}

/* Strides of the microkernel: out_line: elements of a row of sums, `last` the first k of its last step. */
static void
matmul_strides(Emit *e, const Product *x, const RowCopy *t, bool ta, V line, int64_t out_line, int64_t last, V *st)
{
	const GemmParams *p = x->p;

	st[S_AM] = ta ? k64(e, 4) : k64(e, F32(x->m.k));
	st[S_AK] = p->copy ? k64(e, F32(t->high)) : ta ? line : k64(e, 4);
	st[S_AP] = st[S_AQ] = st[S_BP] = st[S_BQ] = k64(e, 0);
	st[S_BK] = k64(e, p->pack ? F32(x->nr) : F32(x->m.n));
	st[S_CM] = k64(e, F32(out_line));
	st[S_NK] = k64(e, x->m.k - last);
}

/* Tiles of so few steps end before memory answers: they ask for what the next panel's tiles will touch. */
enum { SHORT = 64 };

/* Tiles of the piece's rows and panel kb: the last steps of their sums, from `last` on, and the epilogue. from: the
 * first operand, or its copy; out: the result, or a tile of its own, [row][panel] where several blocks add to it. */
static void
panel_tiles(Emit *e, Epilogue *epi, Product *x, const Tiles *tiles, const RowCopy *copy, const Mem *out, V from, V kb,
            V piece, V st[S_COUNT], V strides, int64_t last, bool tile)
{
	const GemmParams *p = x->p;
	int64_t nr = x->nr, n = x->m.n, line;
	V column = i_mul_k(e, kb, nr), panel = panel_at(e, x, kb, k64(e, last), x->m.k - last);
	RowLoops r = rows_open(e, epi, p, i_sub(e, x->hi, x->lo));
	V lo = i_add(e, x->lo, r.lo), entry = i_mul(e, x->ent, x->M), row = i_add(e, entry, lo);
	MatAt at = {x->o, row}, at_block = {x->o, i_add(e, entry, i_add(e, x->lo, r.first))};
	V in_a = p->copy ? row_copy_at(e, x, copy, r.lo) : i_mul(e, lo, st[S_AM]),
	  a = ptr_at(e, from, i_add(e, in_a, i_mul(e, k64(e, last), st[S_AK])));
	V to = !tile ? mem_at(e, out, row, kb) : last ? mem_at(e, out, r.lo, kb) : out->base;
	EpilogueTile et = {.rows = r.count,
	                   .column = column,
	                   .columns = i_min(e, k64(e, nr), i_sub(e, k64(e, n), column)),
	                   .piece = piece,
	                   .done = r.first,
	                   .carried = i_sub(e, r.lo, r.first),
	                   .tile = tile ? to : out->base,
	                   .tile_columns = nr,
	                   .tile_line = tile && is_const(st[S_CM], &line) ? line / 4 : 0,
	                   .unroll = p->nv,
	                   .index = mat_index,
	                   .cx = &at};

	EpilogueTile fetched = et;

	if (x->m.k <= SHORT)
		fetched.column = i_add_k(e, column, nr);
	epilogue_fetch(e, epi, &fetched, nr < n ? nr : n);
	panel_after(e, x, strides, kb, x->kb0, x->kb1, k64(e, last), k64(e, 0), x->m.k - last, r.lo);
	tile_call(e, tiles, r.count, kb, x->npanel, a, panel, to, NULL, NULL, strides, k64(e, last > 0));
	epilogue_tile(e, epi, &et);
	rows_close(e, &r, epi, &et, &at_block);
}

void
matmul_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk)
{
	Product x = product_of(gc->g, op, p);
	/* amx_transpose has transposed it for tiles */
	bool transposed = attr_bool(op, A_ta), ta = transposed && !engine_of(p)->side_by_side, fresh, tile;
	int64_t nr = x.nr, n = x.m.n, steps = matmul_steps(&x.m, p), last = (x.m.k - 1) / steps * steps;
	bool blocks = last > 0; /* of the sum */
	GemmParams shared = panel_shared(p, x.block);
	Emit e = {0};
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (engine_pairs(p)) {
		x.pairs = pack_of(gc->g, op, true);
		x.half = prologue_rounded(gc->g, op, p).id ? (DType)val_type(gc->g, op->in[1])->dtype : DT_none;
	}
	x.p = p = &shared;
	if (fresh) {
		emit_lanes(&e, p->lanes);
		x.M = extent(&e, x.m.m);
		V A = buffer(&e, abuf), B = buffer(&e, bbuf), C = epilogue_raw(&e, epi, p->mr, nr, &tile);

		x.am_rows = extent(&e, x.a->axis[x.a->rank - (transposed ? 1 : 2)]);
		if (blocks && tile) /* sums of all panels, or of a task's own, behind the copy or that panel */
			C = scratch_ptr(&e, p->copy ? matmul_copy_bytes(&x.m, p, x.tiled) : matmul_panel_bytes(p));
		x.own = p->own ? scratch_ptr(&e, 0) : NULL;
		int64_t out_line = !tile ? n : blocks && !x.own ? x.npanel * nr : nr;
		V line = i_mul_k(&e, x.am_rows, 4), st[S_COUNT];
		RowCopy copy = row_copy_of(&x, epi);

		matmul_strides(&e, &x, &copy, ta, line, out_line, last, st);
		Tiles tiles = matmul_tiles(&e, &x, epi, blocks, tile, st);
		panels_region(&e, &x, B, pack_of(gc->g, op, engine_pairs(p)).taps);
		V strides = strides_block(&e, st), piece;

		LOOPS(&e, piece_open(&e, &x, &piece)) {
			V from = ptr_at(&e, A, x.aoff), skip = k64(&e, 0);
			Mem out =
			        mem_axes(&e, C, BY(F32(out_line)), BY(tile && x.own ? 0 : F32(nr))); /* [row][panel] */

			if (p->copy) {
				from = copy_transposed(&e, &x, &copy, from, line);
				skip = x.lo;
			}
			Mem sums = out;
			V first = ptr_at(&e, from, i_mul(&e, i_sub(&e, x.lo, skip), st[S_AM]));

			if (!tile)
				sums.base = mem_at(&e, &out, i_add(&e, i_mul(&e, x.ent, x.M), x.lo));
			if (blocks && !x.own)
				first_steps(&e, &x, &tiles, &copy, st, steps, first, &sums, x.kb0, x.kb1);
			LOOP(&e, kb, x.kb0, x.kb1, 1) {
				if (blocks && x.own)
					first_steps(&e, &x, &tiles, &copy, st, steps, first, &sums, kb,
					            i_add_k(&e, kb, 1));
				panel_tiles(&e, epi, &x, &tiles, &copy, &out, from, kb, piece, st, strides, last, tile);
			}
		}
	}
	kernel_end(gc, &e, gk, fn, slices_rows(x.m.batch * x.blocks, x.npanel), fresh, false);
	MatPieces pieces = {x.m.m, x.o, x.block, x.blocks, x.m.merged};

	epilogue_finish(gc, gk, epi, mat_pieces, &pieces);
}
