/* pack16.c: operands of 16 bits for the microkernels of pairs: two numbers that are neighbours along k, side by side in
 * four bytes.
 *
 * In: a contraction of bf16 or f16 operands that engine.c multiplies as pairs.   Out: kernels that lay them out. Where
 * k is the innermost axis (activations, rows of a matrix) numbers are pairs as they lie, and nothing is copied. Where k
 * runs over rows (both operands of a weight gradient, whose sum is over images; a transposed first operand), rows 2i
 * and 2i + 1 become one row of pairs, the whole operand once into the workspace; a value that the kernel makes itself
 * is made on that way. The second operand becomes pairs on its way into its panels. */
#include "gemm.h"
#include <string.h>

int64_t
pairs_row(const Graph *g, const Op *op, int k)
{
	const Type *t = val_type(g, op->in[k]);

	if (op->kind == OP_conv2d_dw)
		return t->axis[1].n;
	return op->kind == OP_matmul && k == 0 && attr_bool(op, A_ta) ? t->axis[t->rank - 1].n : 0;
}

int64_t
pairs_line(const Graph *g, const Op *op, int k)
{
	/* pairs: rows at multiples of 512 bytes meet in few sets of the caches; a line of 64 bytes */
	enum { CONFLICT = 128, PAD = 16 };
	int64_t length = pairs_row(g, op, k);

	return op->kind == OP_conv2d_dw && length % CONFLICT == 0 ? length + PAD : length;
}

/* Two vectors of 16-bit numbers, as pairs. */
static V
beside(Emit *e, V first, V second)
{
	T wide = vec_of(e, e->l->i32);
	V high = LLVMBuildShl(here(e), LLVMBuildZExt(here(e), second, wide, ""),
	                      splat(e, LLVMConstInt(e->l->i32, 16, 0)), "");

	return LLVMBuildOr(here(e), LLVMBuildZExt(here(e), first, wide, ""), high, "");
}

/* Lanes `mask` of two rows of 16-bit numbers, as pairs. */
static V
paired(Emit *e, V first, V second, V mask)
{
	T narrow = vec_of(e, e->l->i16);
	V half[2];

	for (int i = 0; i < 2; i++) {
		V args[4] = {i ? second : first, LLVMConstInt(e->l->i32, 2, 0), mask, LLVMConstNull(narrow)};

		half[i] = intrinsic(e, here(e), "llvm.masked.load", (T[]){narrow, e->l->ptr}, 2, args, 4);
	}
	return beside(e, half[0], half[1]);
}

void
pairs_copy_rows(Emit *e, const Pack *k, const GemmParams *p, DType half, V in, V out, V left)
{
	int64_t nr = (int64_t)p->nv * p->lanes, size = half != DT_none ? 4 : 2;
	V r = loop_open(e, k64(e, 0), k64(e, k->k), 1);
	V to = ptr_at(e, out, i_mul_k(e, r, nr * 4)),
	  from = ptr_at(e, in, i_mul_k(e, r, k->k_stride / 2 * size));

	for (int j = 0; j < p->nv; j++) {
		int64_t column = (int64_t)j * p->lanes;
		V first = ptr_at(e, from, k64(e, column * size)),
		  second = ptr_at(e, from, k64(e, column * size + k->second / 2 * size)),
		  mask = row_mask(e, left, column);
		V v = half == DT_none ? paired(e, first, second, mask)
		                      : beside(e, vec_half(e, vec_load(e, first, mask), half),
		                               vec_half(e, vec_load(e, second, mask), half));

		LLVMSetAlignment(LLVMBuildStore(here(e), v, ptr_at(e, to, k64(e, column * 4))), 4);
	}
	loop_close(e);
}

typedef struct Rows2 { V from, to; int64_t length; } Rows2;

static void
pair_lane(Emit *e, void *cx, Ix i, int u)
{
	const Rows2 *r = cx;
	V mask = e->mask ? e->mask : splat(e, LLVMConstInt(e->l->i1, 1, 0)),
	  at = ptr_at(e, r->from, i_mul_k(e, i.s, 2));
	V v = paired(e, at, ptr_at(e, at, k64(e, r->length * 2)), mask);
	V args[4] = {v, ptr_at(e, r->to, i_mul_k(e, i.s, 4)), LLVMConstInt(e->l->i32, 4, 0), mask};

	(void)u;
	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

void
pairs_row_of(Emit *e, V from, int64_t length, V c0, V c1, V to)
{
	Rows2 two = {from, to, length};

	lane_loop(e, c0, c1, 1, pair_lane, &two);
}

void
pairs_emit(GroupCx *gc, Val val, int64_t length, int64_t line, int dst, GraphKernels *gk)
{
	int src = group_buffer(gc, val.id);
	int64_t rows = type_elements(val_type(gc->g, val)) / length / 2;
	int64_t grain = task_grain(machine_of(gc->g), rows, (double)length);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	if (fresh) {
		V in = buffer(&e, src), out = buffer(&e, dst);
		V r = loop_open(&e, i_mul_k(&e, e.arg_t0, grain),
		                i_min_k(&e, i_mul_k(&e, e.arg_t1, grain), rows), 1);

		pairs_row_of(&e, ptr_at(&e, in, i_mul_k(&e, r, length * 4)), length, k64(&e, 0), k64(&e, length),
		             ptr_at(&e, out, i_mul_k(&e, r, line * 4)));
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = rows, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}

/* ---------------------------------------------------------------- made on the way */
typedef struct Made { Val v; Ix ix[2][MAX_RANK]; int inner; V to; } Made;

/* The 16 bits of numbers that are of type dt already, though computed in f32. */
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
	V v = LLVMBuildOr(here(e), half[0],
	                  LLVMBuildShl(here(e), half[1], splat(e, LLVMConstInt(e->l->i32, 16, 0)), ""), "");
	V args[4] = {v, ptr_at(e, m->to, i_mul_k(e, c.s, 4)), LLVMConstInt(e->l->i32, 4, 0), mask};

	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

void
pairs_made_row(Emit *e, Val v, V entry, V r, V c0, V c1, V to)
{
	const Type *t = val_type(e->g, v);
	int row = t->perm[t->rank - 2];
	Made m = {.v = v, .inner = t->perm[t->rank - 1], .to = to};

	for (int i = t->rank - 2; i-- > 0;) {
		V extent = k64(e, t->axis[t->perm[i]].n);

		m.ix[0][t->perm[i]] = m.ix[1][t->perm[i]] = ix_s(i ? i_rem(e, entry, extent) : entry);
		entry = i ? i_div(e, entry, extent) : entry;
	}
	for (int i = 0; i < 2; i++)
		m.ix[i][row] = ix_s(i_add_k(e, i_mul_k(e, r, 2), i));
	lane_loop(e, c0, c1, 1, made_lane, &m);
}

/* Task: two rows of the innermost row axis for each entry of the axes around it. */
void
pairs_make(GroupCx *gc, Val val, int64_t line, int dst, GraphKernels *gk)
{
	const Type *t = val_type(gc->g, val);
	int64_t length = t->axis[t->perm[t->rank - 1]].n, entries = 1;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	for (int i = 0; i + 2 < t->rank; i++)
		entries *= t->axis[t->perm[i]].n;
	if (fresh) {
		V out = buffer(&e, dst), entry = loop_open(&e, e.arg_t0, e.arg_t1, 1),
		  half = k64(&e, t->axis[t->perm[t->rank - 2]].n / 2);
		V r = loop_open(&e, k64(&e, 0), half, 1);

		pairs_made_row(&e, val, entry, r, k64(&e, 0), k64(&e, length),
		               ptr_at(&e, out, i_mul_k(&e, i_add(&e, i_mul(&e, entry, half), r), line * 4)));
		loop_close(&e);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = entries, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
