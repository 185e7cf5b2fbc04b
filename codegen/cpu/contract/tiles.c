/* tiles.c: what kernels of several contractions share: tables of numbers, loops over rows in tiles, calls of the
 * microkernel.
 *
 * In: a kernel in the making, parameters, extents.   Out: code; for each number of rows that a tile may have, a
 * microkernel of the engine's (engine.c). Where the epilogue reduces, rows are cut into blocks first, by their number
 * alone: what it adds up, it adds up within a block, whatever the tiles. */
#include "gemm.h"
#include <string.h>

/* ---------------------------------------------------------------- numbers */
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

	for (int i = 0; i < S_NEXT; i++) { /* that one tile by tile (panel_next) */
		V k = k64(e, i);

		LLVMBuildStore(b, st[i], LLVMBuildInBoundsGEP2(b, e->l->i64, slot, &k, 1, ""));
	}
	return slot;
}

Steps
steps_known(const V st[S_COUNT])
{
	Steps k;

	return is_const(st[S_AK], &k.a) && is_const(st[S_BK], &k.b) ? k : (Steps){0};
}

V
strides_of_constants(Emit *e, const int64_t st[S_COUNT])
{
	V v[S_COUNT];

	for (int i = 0; i < S_NEXT; i++)
		v[i] = k64(e, st[i]);
	return strides_block(e, v);
}

GemmParams
panel_shared(const GemmParams *p, int64_t rows)
{
	GemmParams r = *p;

	r.share = p->next ? (int)ceil_div(F32((int64_t)p->nv * p->lanes), ceil_div(rows, p->mr)) : 0;
	return r;
}

void
panel_next(Emit *e, const GemmParams *p, V strides, V next, V lo, int64_t steps)
{
	if (!p->share)
		return;
	V which = k64(e, S_NEXT), at = ptr_at(e, next, i_mul_k(e, i_div_k(e, lo, p->mr), steps * p->share));

	LLVMBuildStore(here(e), at, LLVMBuildInBoundsGEP2(here(e), e->l->i64, strides, &which, 1, ""));
}

void
panel_find(Emit *e, int64_t groups, int64_t npanel, V kb, V *group, V *panel)
{
	*group = groups > 1 ? i_div_k(e, kb, npanel) : k64(e, 0);
	*panel = groups > 1 ? i_rem_k(e, kb, npanel) : kb;
}

/* ---------------------------------------------------------------- tiles of rows */
int64_t
tile_rows_cut(bool whole, int64_t rows, int64_t block, int mr)
{
	int64_t part[2] = {rows < block ? 0 : block, rows % block}, set = 0;

	for (int i = 0; i < 2; i++) {
		int64_t n = ceil_div(part[i], mr);

		if (n)
			set |= (int64_t)1 << ((whole ? part[i] - (n - 1) * mr : part[i] / n) - 1) |
			       (int64_t)1 << ((whole && n > 1 ? mr : ceil_div(part[i], n)) - 1);
	}
	return set;
}

int64_t
tile_rows(int64_t rows, int64_t block, int mr)
{
	return tile_rows_cut(false, rows, block, mr);
}

Tiles
tiles_make(Emit *e, const GemmParams *p, int64_t columns, int64_t rows, Steps steps)
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
		last[r - 1] = engine->micro(e->l, p, r, nv_last, masked, steps);
		whole[r - 1] = npanel > 1 ? engine->micro(e->l, p, r, p->nv, false, steps) : last[r - 1];
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
	V one = k64(e, 1), is_last = LLVMBuildICmp(h, LLVMIntEQ, kb, k64(e, npanel - 1), "");
	V tab = LLVMBuildSelect(h, is_last, t->last, t->whole, ""), at = LLVMBuildSub(h, rows, one, "");
	V fn = LLVMBuildLoad2(h, e->l->ptr, LLVMBuildInBoundsGEP2(h, e->l->ptr, tab, &at, 1, ""), "");
	V args[9] = {a, b, c, np ? np : one, nq ? nq : one, strides, acc ? acc : k64(e, 0), k64(e, t->last_mask), rows};

	LLVMBuildCall2(h, t->fn, fn, args, t->rows ? 9 : 8, "");
}

V
tiles_open(Emit *e, bool whole, V rows, int mr, V *lo)
{
	V n = whole ? i_div(e, i_add_k(e, rows, mr - 1), k64(e, mr)) : i_div_up_k(e, rows, mr);
	V i = loop_open(e, k64(e, 0), n, 1), hi;

	if (whole) {
		*lo = i_mul_k(e, i, mr);
		return i_min(e, k64(e, mr), i_sub(e, rows, *lo));
	}
	*lo = i_div(e, i_mul(e, i, rows), i_max(e, n, k64(e, 1)));
	hi = i_div(e, i_mul(e, i_add_k(e, i, 1), rows), i_max(e, n, k64(e, 1)));
	return i_sub(e, hi, *lo);
}

V
slices_open(Emit *e, int64_t slices, V *lo, V *hi)
{
	if (slices == 1) {
		*lo = k64(e, 0), *hi = k64(e, 1);
		return loop_open(e, e->arg_t0, e->arg_t1, 1);
	}
	V all = k64(e, slices), last = i_div(e, i_add_k(e, e->arg_t1, slices - 1), all);
	V whole = loop_open(e, i_div(e, e->arg_t0, all), last, 1), at = i_mul(e, whole, all);

	*lo = i_max(e, k64(e, 0), i_sub(e, e->arg_t0, at));
	*hi = i_min(e, all, i_sub(e, e->arg_t1, at));
	return whole;
}

Rows
slices_rows(int64_t wholes, int64_t slices)
{
	return (Rows){.rows = wholes * slices, .mul = 0, .div = 1, .grain = 1, .whole = slices};
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

bool
rows_meet_tiles(const Epilogue *epi, const GemmParams *p)
{
	return !epi->nred || block_size(epi, p).unit % p->mr == 0;
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
	bool whole = gemm_copies_tiles(epi->gc->g, p);

	r.first = k64(e, 0);
	r.rows = rows;
	if (!r.blocks) {
		r.count = tiles_open(e, whole, rows, p->mr, &r.lo);
		return r;
	}
	V units = i_div_up_k(e, rows, b.unit);
	V n = i_div_up_k(e, units, b.units), some = i_max(e, n, k64(e, 1));
	V each = i_div(e, i_add(e, units, i_sub_k(e, some, 1)), some), step = i_mul_k(e, each, b.unit);
	V i = loop_open(e, k64(e, 0), n, 1);

	r.first = settled(e, i_mul(e, i, step));
	r.rows = settled(e, i_min(e, step, i_sub(e, rows, r.first)));
	r.count = tiles_open(e, whole, r.rows, p->mr, &r.lo);
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
	bool whole = gemm_copies_tiles(epi->gc->g, p);

	if (!epi->nred)
		return tile_rows_cut(whole, rows, part, p->mr);
	for (int k = 0; k < 2; k++) {
		int64_t units = ceil_div(size[k], b.unit), n = ceil_div(units, b.units);

		if (n)
			set |= tile_rows_cut(whole, size[k], ceil_div(units, n) * b.unit, p->mr);
	}
	return set;
}
