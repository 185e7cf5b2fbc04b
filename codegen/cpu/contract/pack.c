/* pack.c: the second operand of a contraction into panels: rows of k whose nv vectors of columns lie side by side.
 *
 * In: a matrix, or convolution weights HWIO, in either order of its two inner axes.   Out: a kernel, a task per panel
 * and tap. Rows that are vectors already are copied; others are transposed in blocks of registers (log2 stages of
 * shuffles), the rest of k element by element. Columns beyond the last are zeros. Numbers that are cast to 16 bits on
 * this way are read in f32 where they stand: pairs of rows as they are copied, others of a panel first into the
 * thread's scratch memory. */
#include "gemm.h"

static Pack
pack_of_elements(const Graph *g, const Op *op, int64_t size)
{
	const Type *w = val_type(g, op->in[1]);

	if (op->kind == OP_matmul) {
		Pack p = {.taps = 1, .groups = 1};

		for (int i = 0; i + 2 < w->rank; i++)
			p.taps *= w->axis[i].n;
		bool tb = attr_bool(op, A_tb);
		int64_t rows = w->axis[w->rank - 2].n, cols = w->axis[w->rank - 1].n;

		p.k = tb ? cols : rows;
		p.j = tb ? rows : cols;
		p.k_stride = tb ? size : cols * size;
		p.j_stride = tb ? cols * size : size;
		p.tap_stride = rows * cols * size;
		return p;
	}
	int64_t o = w->axis[0].n, i = w->axis[1].n, groups = gemm_groups(op), own = o / groups;
	bool dx = op->kind == OP_conv2d_dx;

	return (Pack){.taps = w->axis[2].n * w->axis[3].n, .k = dx ? own : i, .j = dx ? i : own,
	    .tap_stride = o * i * size, .k_stride = dx ? size : o * size, .j_stride = dx ? o * size : size,
	    .groups = groups, .group_stride = own * size};
}

Pack
pack_of(const Graph *g, const Op *op, bool pair)
{
	Pack p = pack_of_elements(g, op, pair ? 2 : 4);

	if (!pair)
		return p;
	p.odd = p.k % 2 != 0;
	p.k = ceil_div(p.k, 2);
	if (p.k_stride == 2) {       /* pairs as they lie: elements of four bytes */
		p.k_stride = 4;
	} else {
		p.second = p.k_stride;
		p.k_stride *= 2;
	}
	return p;
}

V
row_mask(Emit *e, V left, int64_t from)
{
	V rest = i_sub_k(e, left, from), none = LLVMConstNull(vec_of(e, e->l->i1));

	return LLVMBuildSelect(here(e), LLVMBuildICmp(here(e), LLVMIntSGT, rest, k64(e, 0), ""), mask_below(e, rest),
	                       none, "");
}

/* A panel: [row of k][column]. */
static Mem
panel_of(const Emit *e, const Pack *k, const GemmParams *p, V out)
{
	return mem_rows(e, out, DT_f32, k->k, (int64_t)p->nv * p->lanes);
}

/* Columns are contiguous: row by row. */
static void
copy_rows(Emit *e, const Pack *k, const GemmParams *p, V in, V out, V left)
{
	Mem panel = panel_of(e, k, p, out), matrix = mem_axes(e, in, BY(k->k_stride), BY(4));

	TIMES(e, r, k->k) {
		Mem to = mem_part(e, &panel, r), from = mem_part(e, &matrix, r);

		for (int j = 0; j < p->nv; j++) {
			V c = k64(e, (int64_t)j * p->lanes);

			vec_store(e, mem_at(e, &to, c),
			          vec_load(e, mem_at(e, &from, c), row_mask(e, left, (int64_t)j * p->lanes)), NULL);
		}
	}
}

bool
pack_streams(const Graph *g, const GemmParams *p, int64_t bytes)
{
	const Machine *m = machine_of(g);

	return F32(p->lanes) == m->line && bytes >= m->budget.l2;
}

/* void transpose_W(in, column stride, columns left, out, row stride): one square block, bytes; columns that are not
 * there give zeros. past: its lines go past the caches. A function of its own, once in a module: hundreds of shuffles,
 * which every packing kernel would compile again. */
V
transpose_block(Llvm *l, int w, bool past)
{
	char name[32];
	T args[5] = {l->ptr, l->i64, l->i64, l->ptr, l->i64}, vt = LLVMVectorType(l->f32, (unsigned)w);

	snprintf(name, sizeof name, past ? "transpose_past_%d" : "transpose_%d", w);
	V fn = unit_find(l, name), v[64];

	if (fn)
		return fn;
	LLVMBuilderRef b = LLVMCreateBuilderInContext(l->cx);

	fn = unit_begin(l, name, LLVMFunctionType(l->voidt, args, 5, 0), true);
	fn_machine(l, fn);
	LLVMPositionBuilderAtEnd(b, LLVMAppendBasicBlockInContext(l->cx, fn, "entry"));
	V in = LLVMGetParam(fn, 0), stride = LLVMGetParam(fn, 1), left = LLVMGetParam(fn, 2), out = LLVMGetParam(fn, 3),
	  row = LLVMGetParam(fn, 4);
	V last = LLVMBuildSub(b, left, LLVMConstInt(l->i64, 1, 0), "");

	for (int i = 0; i < w; i++) {
		V col = LLVMConstInt(l->i64, (unsigned)i, 0), ok = LLVMBuildICmp(b, LLVMIntSLT, col, left, "");
		V off = LLVMBuildMul(b, LLVMBuildSelect(b, ok, col, last, ""), stride, "");
		V x = LLVMBuildLoad2(b, vt, LLVMBuildInBoundsGEP2(b, l->i8, in, &off, 1, ""), "");

		LLVMSetAlignment(x, 2);
		v[i] = LLVMBuildSelect(b, ok, x, LLVMConstNull(vt), "");
	}
	lanes_transpose(l, b, v, w);
	for (int i = 0; i < w; i++) {
		V off = LLVMBuildMul(b, row, LLVMConstInt(l->i64, (unsigned)i, 0), "");
		V store = LLVMBuildStore(b, v[i], LLVMBuildInBoundsGEP2(b, l->i8, out, &off, 1, ""));

		LLVMSetAlignment(store, past ? 4 * (unsigned)w : 4);
		if (past)
			store_past(l, store);
	}
	LLVMBuildRetVoid(b);
	LLVMDisposeBuilder(b);
	return unit_end(l, fn);
}

/* Element r of column j; half: a number of 16 bits, beside zeros. */
static void
transpose_one(Emit *e, const Mem *matrix, const Mem *panel, V left, V r, V j, bool half)
{
	V ok = LLVMBuildICmp(here(e), LLVMIntSLT, j, left, ""),
	  column = LLVMBuildSelect(here(e), ok, j, k64(e, 0), "");
	V x = LLVMBuildLoad2(here(e), half ? e->l->i16 : e->l->i32, mem_at(e, matrix, column, r), "");

	LLVMSetAlignment(x, 2);
	if (half)
		x = LLVMBuildZExt(here(e), x, e->l->i32, "");
	LLVMBuildStore(here(e), LLVMBuildSelect(here(e), ok, x, LLVMConstInt(e->l->i32, 0, 0), ""),
	               mem_at(e, panel, r, j));
}

void
transpose_rows(Emit *e, const Pack *k, const GemmParams *p, V in, V out, V left)
{
	int w = p->lanes;
	int64_t nr = (int64_t)p->nv * w, whole = (k->k - k->odd) / w * w;
	Mem panel = panel_of(e, k, p, out), matrix = mem_axes(e, in, BY(k->j_stride), BY(k->k_stride));

	if (whole)
		LOOP(e, r, k64(e, 0), k64(e, whole), w) {
			V fn = transpose_block(e->l, w, k->past);

			e->streamed |= k->past;
			for (int64_t j = 0; j < nr; j += w) {
				V from = mem_at(e, &matrix, k64(e, j), r), to = mem_at(e, &panel, r, k64(e, j));
				V args[5] = {from, k64(e, k->j_stride), i_sub_k(e, left, j), to, k64(e, F32(nr))};

				LLVMBuildCall2(here(e), LLVMGlobalGetValueType(fn), fn, args, 5, "");
			}
		}
	LOOP(e, r, k64(e, whole), k64(e, k->k - k->odd), 1) TIMES(e, j, nr)
		transpose_one(e, &matrix, &panel, left, r, j, false);
	if (k->odd)
		TIMES(e, j, nr) transpose_one(e, &matrix, &panel, left, k64(e, k->k - 1), j, true);
}

int64_t
pack_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	if (!prologue_rounded(g, op, p).id || p->own)
		return 0;
	Pack k = pack_of(g, op, engine_pairs(p));

	return k.second ? 0 : F32(p->nv * p->lanes * k.k);
}

void
round_columns(Emit *e, const Pack *k, const GemmParams *p, DType half, V in, V left, V to)
{
	int64_t n = k->k * 2, own = n - k->odd, w = p->lanes;
	/* [column][number] */
	Mem columns = mem_axes(e, in, BY(k->j_stride * 2), BY(4)), rounded = mem_dense(e, to, half, p->nv * w, n);

	EACH(e, j, i_min_k(e, left, p->nv * w)) LOOP(e, i, k64(e, 0), k64(e, n), w) {
		V mask = n % w ? row_mask(e, i_sub(e, k64(e, n), i), 0) : NULL;
		V there = own % w ? row_mask(e, i_sub(e, k64(e, own), i), 0) : NULL;
		V from = mem_at(e, &columns, j, i), dst = mem_at(e, &rounded, j, i);
		V v = vec_half(e, vec_load(e, from, there), half);

		if (mask)
			intrinsic(e, here(e), "llvm.masked.store", (T[]){LLVMTypeOf(v), e->l->ptr}, 2,
			          (V[]){v, dst, LLVMConstInt(e->l->i32, 2, 0), mask}, 4);
		else
			LLVMSetAlignment(LLVMBuildStore(here(e), v, dst), 2);
	}
}

void
pack_emit(GroupCx *gc, const Op *op, const GemmParams *p, int src, int dst, GraphKernels *gk)
{
	Pack k = pack_of(gc->g, op, engine_pairs(p));
	DType half = prologue_rounded(gc->g, op, p).id ? (DType)val_type(gc->g, op->in[1])->dtype : DT_none;
	/* bytes of the elements where they stand, over those of panels */
	int w = p->lanes, wide = half != DT_none ? 2 : 1;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(k.j, nr);
	Emit e = {0};

	int64_t bytes = F32(k.groups * npanel * k.taps * k.k * nr);

	k.past = half == DT_none && !engine_pairs(p) && pack_streams(gc->g, p, bytes);
	bool fresh;
	int fn = kernel_begin(gc, &e, "pack", &fresh);

	scratch_check(gc, pack_scratch(gc->g, op, p));
	if (fresh) {
		/* the operand's first elements, [tap][panel], then [group]; panels */
		Mem from = mem_axes(&e, buffer(&e, src), BY(k.tap_stride * wide), BY(nr * k.j_stride * wide)),
		    to = mem_rows(&e, buffer(&e, dst), DT_f32, 0, k.k * nr);

		TASKS(&e, t) { /* panel x tap */
			V group, kb, tap = i_rem_k(&e, t, k.taps);

			panel_find(&e, k.groups, npanel, i_div_k(&e, t, k.taps), &group, &kb);
			V out = mem_at(&e, &to, t);
			Mem of_group = mem_axes(&e, mem_at(&e, &from, tap, kb), BY(k.group_stride * wide));
			V in = mem_at(&e, &of_group, group), left = i_sub(&e, k64(&e, k.j), i_mul_k(&e, kb, nr));

			emit_lanes(&e, w);
			e.stream = k.past;
			if (half != DT_none && !k.second) {
				round_columns(&e, &k, p, half, in, left, scratch_ptr(&e, 0));
				in = scratch_ptr(&e, 0);
				k.j_stride = F32(k.k);
				k.odd = false;
			}
			if (k.second)
				vnni_copy_rows(&e, &k, p, half, in, out, left);
			else if (k.j_stride == 4)
				copy_rows(&e, &k, p, in, out, left);
			else
				transpose_rows(&e, &k, p, in, out, left);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = k.groups * npanel * k.taps, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}
