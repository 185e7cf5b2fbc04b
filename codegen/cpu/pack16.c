/* pack16.c: operands of bf16 for the microkernel of pairs: two numbers that are neighbours along k, side by side in four bytes.
 *
 * In: a contraction of bf16 operands.   Out: whether it can run on pairs, and kernels that lay them out. Where k is the innermost axis (activations,
 * rows of a matrix) numbers are pairs as they lie, and nothing is copied. Where k runs over rows (both operands of a weight gradient, whose
 * sum is over images; a transposed first operand), rows 2i and 2i + 1 become one row of pairs, the whole operand once into the
 * workspace; a value that the kernel makes itself is made on that way. The second operand becomes pairs on its way into its panels.
 * Refuses an odd k, k along the columns of a filter (one channel), batch-dependent rows; those are widened to f32 (gemm.c). */
#include "gemm.h"

int64_t
pairs_row(const Graph *g, const Op *op, int k)
{
	const Type *t = val_type(g, op->in[k]);

	if (op->kind == OP_conv2d_dw)
		return t->axis[1].n;
	return op->kind == OP_matmul && k == 0 && attr_bool(op, A_ta) ? t->axis[t->rank - 1].n : 0;
}

/* What is summed over; 0: it cannot be paired. */
static int64_t
paired_extent(const Graph *g, const Op *op)
{
	const Type *a = val_type(g, op->in[0]);

	switch (op->kind) {
	case OP_matmul:
		if (attr_bool(op, A_ta))
			return type_marked(a) ? 0 : a->axis[a->rank - 2].n;
		return a->axis[a->rank - 1].n;
	case OP_conv2d_dw:
		return type_marked(a) ? 0 : a->axis[0].n;
	default:
		return a->axis[1].n;
	}
}

void
pairs_choose(const Graph *g, const Op *op, const Arch *a, GemmParams *p)
{
	pairs_allow(g, op, a, gemm_half(g, op), p);
}

void
pairs_allow(const Graph *g, const Op *op, const Arch *a, DType half, GemmParams *p)
{
	int64_t k = paired_extent(g, op);

	p->pair = a->dot_bf16 && half == DT_bf16 && k > 0 && k % 2 == 0;
	if (p->pair && op->kind == OP_matmul)
		p->pack = true;
}

/* Lanes `mask` of two rows of 16-bit numbers, as pairs. */
static V
paired(Emit *e, V first, V second, V mask)
{
	T narrow = vec_of(e, e->l->i16), wide = vec_of(e, e->l->i32);
	V half[2];

	for (int i = 0; i < 2; i++) {
		V args[4] = {i ? second : first, LLVMConstInt(e->l->i32, 2, 0), mask, LLVMConstNull(narrow)};

		half[i] = LLVMBuildZExt(here(e), intrinsic(e, here(e), "llvm.masked.load", (T[]){narrow, e->l->ptr}, 2, args, 4), wide, "");
	}
	return LLVMBuildOr(here(e), half[0], LLVMBuildShl(here(e), half[1], splat(e, LLVMConstInt(e->l->i32, 16, 0)), ""), "");
}

void
pairs_copy_rows(Emit *e, const Pack *k, const GemmParams *p, V in, V out, V left)
{
	int64_t nr = (int64_t)p->nv * p->lanes;
	V r = loop_open(e, k64(e, 0), k64(e, k->k), 1);
	V to = ptr_at(e, out, i_mul(e, r, k64(e, nr * 4))), from = ptr_at(e, in, i_mul(e, r, k64(e, k->k_stride)));

	for (int j = 0; j < p->nv; j++) {
		int64_t column = (int64_t)j * p->lanes;
		V first = ptr_at(e, from, k64(e, column * 2)), second = ptr_at(e, from, k64(e, column * 2 + k->second));

		LLVMSetAlignment(LLVMBuildStore(here(e), paired(e, first, second, row_mask(e, left, column)), ptr_at(e, to, k64(e, column * 4))), 4);
	}
	loop_close(e);
}

typedef struct Rows2 { V from, to; int64_t length; } Rows2;

static void
pair_lane(Emit *e, void *cx, Ix i, int u)
{
	const Rows2 *r = cx;
	V mask = e->mask ? e->mask : splat(e, LLVMConstInt(e->l->i1, 1, 0)), at = ptr_at(e, r->from, i_mul(e, i.s, k64(e, 2)));
	V v = paired(e, at, ptr_at(e, at, k64(e, r->length * 2)), mask);
	V args[4] = {v, ptr_at(e, r->to, i_mul(e, i.s, k64(e, 4))), LLVMConstInt(e->l->i32, 4, 0), mask};

	(void)u;
	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

void
pairs_emit(GroupCx *gc, Val val, int64_t length, int dst, GraphKernels *gk)
{
	enum { GRAIN_BYTES = 1 << 16 };
	int src = group_buffer(gc, val.id);
	int64_t rows = type_elements(val_type(gc->g, val)) / length / 2, grain = GRAIN_BYTES / (length * 4) + 1;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	if (fresh) {
		V in = buffer(&e, src), out = buffer(&e, dst);
		V r = loop_open(&e, i_mul(&e, e.arg_t0, k64(&e, grain)), i_min(&e, i_mul(&e, e.arg_t1, k64(&e, grain)), k64(&e, rows)), 1);
		V at = i_mul(&e, r, k64(&e, length * 4));
		Rows2 two = {ptr_at(&e, in, at), ptr_at(&e, out, at), length};

		lane_loop(&e, k64(&e, 0), k64(&e, length), 1, pair_lane, &two);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = rows, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}

/* ---------------------------------------------------------------- made on the way */
typedef struct Made { Val v; Ix ix[2][MAX_RANK]; int inner; V to; } Made;

static void
made_lane(Emit *e, void *cx, Ix c, int u)
{
	Made *m = cx;
	T wide = vec_of(e, e->l->i32);
	V mask = e->mask ? e->mask : splat(e, LLVMConstInt(e->l->i1, 1, 0)), half[2];

	(void)u;
	for (int i = 0; i < 2; i++) {
		m->ix[i][m->inner] = c;
		half[i] = LLVMBuildBitCast(here(e), cell_vec(e, lane_eval(e, m->v, m->ix[i])), wide, "");
	}
	/* both are numbers of bf16 in f32: the upper halves of their bits */
	V v = LLVMBuildOr(here(e), LLVMBuildLShr(here(e), half[0], splat(e, LLVMConstInt(e->l->i32, 16, 0)), ""), half[1], "");
	V args[4] = {v, ptr_at(e, m->to, i_mul(e, c.s, k64(e, 4))), LLVMConstInt(e->l->i32, 4, 0), mask};

	intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2, args, 4);
}

/* Task: two rows of the innermost row axis for each entry of the axes around it. */
void
pairs_make(GroupCx *gc, Val val, int dst, GraphKernels *gk)
{
	const Type *t = val_type(gc->g, val);
	int64_t length = t->axis[t->perm[t->rank - 1]].n, entries = 1;
	int row = t->perm[t->rank - 2];
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	for (int i = 0; i + 2 < t->rank; i++)
		entries *= t->axis[t->perm[i]].n;
	if (fresh) {
		Made m = {.v = val, .inner = t->perm[t->rank - 1]};
		V out = buffer(&e, dst), entry = loop_open(&e, e.arg_t0, e.arg_t1, 1), left = entry, half = k64(&e, t->axis[row].n / 2);

		for (int i = t->rank - 2; i-- > 0;) {
			Axis a = t->axis[t->perm[i]];

			m.ix[0][t->perm[i]] = m.ix[1][t->perm[i]] = ix_s(i ? i_rem(&e, left, k64(&e, a.n)) : left);
			left = i ? i_div(&e, left, k64(&e, a.n)) : left;
		}
		V r = loop_open(&e, k64(&e, 0), half, 1);

		for (int i = 0; i < 2; i++)
			m.ix[i][row] = ix_s(i_add(&e, i_mul(&e, r, k64(&e, 2)), k64(&e, i)));
		m.to = ptr_at(&e, out, i_mul(&e, i_add(&e, i_mul(&e, entry, half), r), k64(&e, length * 4)));
		lane_loop(&e, k64(&e, 0), k64(&e, length), 1, made_lane, &m);
		loop_close(&e);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = entries, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
