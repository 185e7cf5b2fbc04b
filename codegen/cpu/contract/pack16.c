/* pack16.c: operands of 16 bits as VNNI pairs: two elements that are neighbours along k, side by side in four bytes, as
 * the microkernels of pairs read them.
 *
 * In: a contraction of bf16 or f16 operands that engine.c multiplies as pairs.   Out: kernels that lay them out. Where
 * k is the innermost axis (activations, rows of a matrix) elements are pairs as they lie, and nothing is copied. Where
 * k runs over rows (both operands of a weight gradient, whose sum is over images; a transposed first operand), rows 2i
 * and 2i + 1 become one row of pairs, the whole operand once into the workspace; a value that the kernel makes itself
 * is made on that way. Rows of an odd number are copied with a zero behind each. The second operand becomes pairs on
 * its way into its panels. */
#include "gemm.h"
#include <string.h>

int64_t
vnni_row(const Graph *g, const Op *op, int k)
{
	const Type *t = val_type(g, op->in[k]);

	if (op->kind == OP_conv2d_dw)
		return t->axis[1].n;
	return op->kind == OP_matmul && k == 0 && attr_bool(op, A_ta) ? t->axis[t->rank - 1].n : 0;
}

int64_t
vnni_line(const Graph *g, const Op *op, int k)
{
	/* pairs: rows at multiples of 512 bytes meet in few sets of the caches; a line of 64 bytes */
	enum { CONFLICT = 128, PAD = 16 };
	int64_t length = vnni_row(g, op, k);

	return op->kind == OP_conv2d_dw && length % CONFLICT == 0 ? length + PAD : length;
}

bool
pads_rows(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	const Type *t = val_type(g, op->in[k]);

	return engine_pairs(p) && k == 0 && !sums_over_rows(op) && t->axis[t->perm[t->rank - 1]].n % 2;
}

void
pad_emit(GroupCx *gc, const Type *padded, int dst, GraphKernels *gk)
{
	int64_t n = padded->axis[padded->perm[padded->rank - 1]].n, rows = type_elements(padded) / n;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "zeros%d", gc->nkernel), &fresh);

	if (fresh) {
		Mem out = mem_dense(&e, buffer(&e, dst), (DType)padded->dtype, rows, n);

		GRAINS(&e, r, rows, rows)
			LLVMBuildStore(here(&e), LLVMConstInt(e.l->i16, 0, 0), mem_at(&e, &out, r, k64(&e, n - 1)));
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = rows, .mul = 0, .div = 1, .grain = rows}, fresh, false);
}

/* Rows that become pairs: the innermost row axis, for each entry of those around it. */
static int64_t
rows_of(const Type *t)
{
	return t->axis[t->perm[t->rank - 2]].n;
}

int64_t
vnni_rows(const Type *t)
{
	return type_elements(t) / t->axis[t->perm[t->rank - 1]].n / rows_of(t) * ceil_div(rows_of(t), 2);
}

V
halves_beside(Emit *e, V first, V second)
{
	T wide = vec_of(e, e->l->i32);
	V high = LLVMBuildShl(here(e), LLVMBuildZExt(here(e), second, wide, ""),
	                      splat(e, LLVMConstInt(e->l->i32, 16, 0)), "");

	return LLVMBuildOr(here(e), LLVMBuildZExt(here(e), first, wide, ""), high, "");
}

/* Lanes `mask` of a row of 16-bit elements and `both` of a second one, as pairs. */
static V
paired(Emit *e, V first, V second, V mask, V both)
{
	T narrow = vec_of(e, e->l->i16);
	V half[2];

	for (int i = 0; i < 2; i++) {
		V args[4] = {i ? second : first, LLVMConstInt(e->l->i32, 2, 0), i ? both : mask,
		             LLVMConstNull(narrow)};

		half[i] = intrinsic(e, here(e), "llvm.masked.load", (T[]){narrow, e->l->ptr}, 2, args, 4);
	}
	return halves_beside(e, half[0], half[1]);
}

void
vnni_beside(Emit *e, V first, V second, V mask, V there, V to)
{
	V all = splat(e, LLVMConstInt(e->l->i1, 1, 0)), none = LLVMConstNull(LLVMTypeOf(all)),
	  lanes = mask ? mask : all;
	T narrow = vec_of(e, e->l->i16);
	V half[2];

	for (int i = 0; i < 2; i++) {
		V which = i && there ? LLVMBuildSelect(here(e), there, lanes, none, "") : lanes;
		V args[4] = {i ? second : first, LLVMConstInt(e->l->i32, 2, 0), which, LLVMConstNull(narrow)};

		half[i] = intrinsic(e, here(e), "llvm.masked.load", (T[]){narrow, e->l->ptr}, 2, args, 4);
	}
	V v = halves_beside(e, half[0], half[1]), args[4] = {v, to, LLVMConstInt(e->l->i32, 4, 0), lanes};

	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

void
vnni_copy_rows(Emit *e, const Pack *k, const GemmParams *p, DType half, V in, V out, V left)
{
	int64_t nr = (int64_t)p->nv * p->lanes, size = half != DT_none ? 4 : 2;
	/* [pair of rows][row of it][column], [pair of rows][column] */
	Mem rows = mem_axes(e, in, BY(k->k_stride / 2 * size), BY(k->second / 2 * size), BY(size)),
	    panel = mem_rows(e, out, DT_f32, k->k, nr);

	TIMES(e, r, k->k) {
		Mem to = mem_part(e, &panel, r), from = mem_part(e, &rows, r);
		V there = k->odd ? LLVMBuildICmp(at1(e, r), LLVMIntSLT, r, k64(e, k->k - 1), "") : NULL;

		for (int j = 0; j < p->nv; j++) {
			int64_t c = (int64_t)j * p->lanes;
			V column = k64(e, c), first = mem_at(e, &from, NULL, column),
			  second = mem_at(e, &from, k64(e, 1), column), mask = row_mask(e, left, c), both = mask;

			if (there)
				both = LLVMBuildSelect(here(e), there, mask, LLVMConstNull(LLVMTypeOf(mask)), "");
			V v = half == DT_none ? paired(e, first, second, mask, both)
			                      : halves_beside(e, vec_half(e, vec_load(e, first, mask), half),
			                               vec_half(e, vec_load(e, second, both), half));

			LLVMSetAlignment(LLVMBuildStore(here(e), v, mem_at(e, &to, column)), 4);
		}
	}
}

typedef struct Rows2 { Mem from, to; V there; } Rows2; /* [row][number] of 16 bits, [pair]; is there a second row? */

static void
pair_lane(Emit *e, void *cx, Ix i, int u)
{
	const Rows2 *r = cx;
	Mem first = r->from;

	(void)u;
	first.base = mem_at(e, &r->from, NULL, i.s);
	vnni_beside(e, first.base, mem_at(e, &first, k64(e, 1)), e->mask, r->there, mem_at(e, &r->to, i.s));
}

void
vnni_row_of(Emit *e, V from, int64_t length, V c0, V c1, V to)
{
	Rows2 two = {mem_rows(e, from, DT_f16, 2, length), mem_dense(e, to, DT_f32, length), NULL};

	lane_loop(e, c0, c1, 1, pair_lane, &two);
}

/* Row r of pairs, of entries that have an odd number of rows. */
static void
odd_row_of(Emit *e, V from, int64_t rows, int64_t length, V r, V to)
{
	V pairs = k64(e, ceil_div(rows, 2)), first = i_mul_k(e, i_rem(e, r, pairs), 2);
	V row = i_add(e, i_mul_k(e, i_div(e, r, pairs), rows), first);
	Mem in = mem_rows(e, from, DT_f16, 1, length);
	Rows2 two = {mem_rows(e, mem_at(e, &in, row), DT_f16, 2, length), mem_dense(e, to, DT_f32, length),
	             LLVMBuildICmp(here(e), LLVMIntSLT, i_add_k(e, first, 1), k64(e, rows), "")};

	lane_loop(e, k64(e, 0), k64(e, length), 1, pair_lane, &two);
}

void
vnni_emit(GroupCx *gc, Val val, int64_t length, int64_t line, int dst, GraphKernels *gk)
{
	int src = group_buffer(gc, val.id);
	int64_t rows = vnni_rows(val_type(gc->g, val)), each = rows_of(val_type(gc->g, val));
	int64_t grain = task_grain(machine_of(gc->g), rows, (double)length);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	if (fresh) {
		Mem in = mem_rows(&e, buffer(&e, src), DT_f32, rows, length),
		    out = mem_rows(&e, buffer(&e, dst), DT_f32, rows, line);

		GRAINS(&e, r, grain, rows) {
			V to = mem_at(&e, &out, r);

			if (each % 2)
				odd_row_of(&e, in.base, each, length, r, to);
			else
				vnni_row_of(&e, mem_at(&e, &in, r), length, k64(&e, 0), k64(&e, length), to);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = rows, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}

/* ---------------------------------------------------------------- made on the way */
/* there: is there a second row? NULL: always */
typedef struct Made { Val v; Ix ix[2][MAX_RANK]; int inner; Mem to; V there; } Made;

/* The 16 bits of values that are of type dt already, though computed in f32. */
static V
half_bits(Emit *e, Cell c, DType dt)
{
	T wide = vec_of(e, e->l->i32);

	if (dt == DT_bf16)
		return LLVMBuildLShr(here(e), LLVMBuildBitCast(here(e), cell_vec(e, c), wide, ""),
		                     splat(e, LLVMConstInt(e->l->i32, 16, 0)), "");
	V narrow = LLVMBuildFPTrunc(here(e), cell_vec(e, c), vec_of(e, e->l->half), "");

	return LLVMBuildZExt(here(e), LLVMBuildBitCast(here(e), narrow, vec_of(e, e->l->i16), ""), wide, "");
}

static void
made_lane(Emit *e, void *cx, Ix c, int u)
{
	Made *m = cx;
	V mask = e->mask ? e->mask : splat(e, LLVMConstInt(e->l->i1, 1, 0)), half[2];

	(void)u;
	for (int i = 0; i < 2; i++) {
		m->ix[i][m->inner] = c;
		half[i] = half_bits(e, lane_eval(e, m->v, m->ix[i]), (DType)val_type(e->g, m->v)->dtype);
	}
	if (m->there)
		half[1] = LLVMBuildSelect(here(e), m->there, half[1], LLVMConstNull(LLVMTypeOf(half[1])), "");
	V v = LLVMBuildOr(here(e), half[0],
	                  LLVMBuildShl(here(e), half[1], splat(e, LLVMConstInt(e->l->i32, 16, 0)), ""), "");
	V args[4] = {v, mem_at(e, &m->to, c.s), LLVMConstInt(e->l->i32, 4, 0), mask};

	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

void
vnni_made_row(Emit *e, Val v, V entry, V r, V c0, V c1, V to)
{
	const Type *t = val_type(e->g, v);
	int row = t->perm[t->rank - 2];
	Made m = {.v = v, .inner = t->perm[t->rank - 1], .to = mem_dense(e, to, DT_f32, 0)};

	for (int i = t->rank - 2; i-- > 0;) {
		V extent = k64(e, t->axis[t->perm[i]].n);

		m.ix[0][t->perm[i]] = m.ix[1][t->perm[i]] = ix_s(i ? i_rem(e, entry, extent) : entry);
		entry = i ? i_div(e, entry, extent) : entry;
	}
	for (int i = 0; i < 2; i++)
		m.ix[i][row] = ix_s(i_add_k(e, i_mul_k(e, r, 2), i));
	if (rows_of(t) % 2) {
		V last = k64(e, rows_of(t) - 1);

		m.there = LLVMBuildICmp(here(e), LLVMIntSLE, m.ix[1][row].s, last, "");
		m.ix[1][row].s = i_min(e, m.ix[1][row].s, last);
	}
	lane_loop(e, c0, c1, 1, made_lane, &m);
}

/* Task: two rows of the innermost row axis for each entry of the axes around it. */
void
vnni_make(GroupCx *gc, Val val, int64_t line, int dst, GraphKernels *gk)
{
	const Type *t = val_type(gc->g, val);
	int64_t length = t->axis[t->perm[t->rank - 1]].n, entries = 1;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	for (int i = 0; i + 2 < t->rank; i++)
		entries *= t->axis[t->perm[i]].n;
	if (fresh) {
		int64_t half = ceil_div(rows_of(t), 2);
		Mem out = mem_dense(&e, buffer(&e, dst), DT_f32, entries, half, line);

		TASKS(&e, entry) TIMES(&e, r, half)
			vnni_made_row(&e, val, entry, r, k64(&e, 0), k64(&e, length), mem_at(&e, &out, entry, r));
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = entries, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
