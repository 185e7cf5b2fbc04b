/* rnn_pack.c: W_hh of a recurrence packed for the microkernel: the kernel before the main one.
 *
 * In: a plan, W_hh.   Out: panels in the workspace: forward the same vector of units of all gates, backward vectors of
 * columns; with halves seven sums of each panel's quarters (Strassen's algorithm, strassen.c); of bf16 elements are
 * pairs along the sum. */
#include "rnn_parts.h"

/* Column j of a forward panel's gate is row gate * H + j of W_hh: blocks are transposed. out: [k][gate][w] of some
 * gates, of the next ones behind that. Pairs lie side by side in a row already. */
static void
pack_gates(Emit *e, const RnnSeq *s, int together, V from, V out, V panel)
{
	int w = s->p.lanes;
	int64_t nr = (int64_t)together * w, ks = s->h / s->unit, whole = ks / w * w;
	V first = i_mul_k(e, panel, w), left = i_sub(e, k64(e, s->h), first);
	Mem rows = mem_dense(e, from, DT_f32, s->gates * s->h, ks);

	for (int g = 0; g < s->gates; g++) {
		Mem in = mem_axes(e, mem_at(e, &rows, i_add_k(e, first, g * s->h)), BY(4)); /* [k], of the first row */
		V of_gate = ptr_at(e, out, k64(e, F32(g / together * ks * nr + g % together * w)));
		Mem to = mem_rows(e, of_gate, DT_f32, ks, nr);

		if (whole)
			LOOP(e, k, k64(e, 0), k64(e, whole), w) {
				V fn = transpose_block(e->l, w, false);
				V args[5] = {mem_at(e, &in, k), k64(e, F32(ks)), left, mem_at(e, &to, k),
				             k64(e, F32(nr))};

				LLVMBuildCall2(here(e), LLVMGlobalGetValueType(fn), fn, args, 5, "");
			}
		LOOP(e, k, k64(e, whole), k64(e, ks), 1) TIMES(e, j, w) {
			V ok = LLVMBuildICmp(here(e), LLVMIntSLT, j, left, ""),
			  col = LLVMBuildSelect(here(e), ok, j, k64(e, 0), "");
			V off = LLVMBuildMul(here(e), col, k64(e, F32(ks)), "");

			off = LLVMBuildAdd(here(e), off, i_mul_k(e, k, 4), "");
			V at = LLVMBuildInBoundsGEP2(here(e), e->l->i8, in.base, &off, 1, ""),
			  x = LLVMBuildLoad2(here(e), e->l->f32, at, "");

			LLVMBuildStore(here(e), LLVMBuildSelect(here(e), ok, x, LLVMConstReal(e->l->f32, 0), ""),
			               mem_at(e, &to, k, j));
		}
	}
}

/* A backward panel is nv vectors of columns of W_hh: rows are copied. */
static void
pack_columns(Emit *e, const RnnSeq *s, V from, V to, V panel)
{
	int w = s->p.lanes;
	int64_t nr = (int64_t)s->p.nv * w, rows = s->gates * s->h;
	Mem in = mem_rows(e, from, DT_f32, rows, s->h), panels = mem_dense(e, to, DT_f32, s->npanel, rows, nr),
	    out = mem_dense(e, mem_at(e, &panels, panel), DT_f32, rows, nr);
	V first = i_mul_k(e, panel, nr);

	TIMES(e, k, rows) {
		V row = mem_at(e, &in, k, first), dst = mem_at(e, &out, k);

		for (int j = 0; j < s->p.nv; j++) {
			V left = i_max(e, i_sub(e, k64(e, s->h), i_add_k(e, first, (int64_t)j * w)), k64(e, 0)),
			  off = k64(e, F32(j * w));

			vec_store(e, ptr_at(e, dst, off),
			          vec_load(e, ptr_at(e, row, off), s->h % nr ? mask_below(e, left) : NULL), NULL);
		}
	}
}

/* The same of bf16: rows 2i and 2i + 1 of W_hh become row i of pairs. */
static void
pack_pairs(Emit *e, const RnnSeq *s, V from, V to, V panel)
{
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, rows = s->gates * s->h / s->unit;
	Mem in = mem_axes(e, from, BY(2)), panels = mem_dense(e, to, DT_f32, s->npanel, rows, nr);
	Pack k = {.k = rows, .k_stride = 4 * s->h, .second = 2 * s->h};
	V first = i_mul_k(e, panel, nr);

	vnni_copy_rows(e, &k, &s->p, DT_none, mem_at(e, &in, first), mem_at(e, &panels, panel),
	                i_sub(e, k64(e, s->h), first));
}

/* Seven sums of the four quarters of a panel, whose right half lies `right` bytes behind the left and whose lower half
 * `down`: lines `line` bytes apart, to `out` + q * apart. */
static void
pack_sums(Emit *e, const RnnSeq *s, V from, int64_t right, int64_t down, int64_t line, V out, int64_t apart)
{
	int64_t nr = (int64_t)s->p.nv * s->p.lanes;
	/* [below][aside][k][number], [product][k][number] */
	Mem quarters = mem_axes(e, from, BY(down), BY(right), BY(line), BY(4)),
	    sums = mem_axes(e, out, BY(apart), BY(F32(nr)), BY(4));
	V x[QUARTERS], r[PRODUCTS];

	TIMES(e, k, s->k2)
		for (int64_t j = 0; j < nr; j += s->p.lanes) {
			V at = k64(e, j);

			for (int q = 0; q < QUARTERS; q++)
				x[q] = vec_load(e, mem_at(e, &quarters, k64(e, q >> 1), k64(e, q & 1), k, at), NULL);
			strassen_second(e, x, r);
			for (int q = 0; q < PRODUCTS; q++)
				vec_store(e, mem_at(e, &sums, k64(e, q), k, at), r[q], NULL);
		}
}

/* Forward [panel][product][k2][nr], backward [product][panel][k2][nr]. */
static void
pack_halves(Emit *e, const RnnSeq *s, V from, V to, V panel)
{
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, bytes = F32(s->k2 * nr), all = F32(s->gates * s->p.lanes);

	if (s->back) {
		pack_sums(e, s, ptr_at(e, from, i_mul_k(e, panel, F32(nr))), F32(s->h / 2), F32(s->k2 * s->h),
		          F32(s->h), ptr_at(e, to, i_mul_k(e, panel, bytes)), s->npanel * bytes);
		return;
	}
	V out = ptr_at(e, to, i_mul_k(e, panel, PRODUCTS * bytes)), transposed = scratch_ptr(e, 0);

	pack_gates(e, s, s->gates, from, transposed, panel);
	if (!s->lstm)
		pack_gates(e, s, s->gates, from, ptr_at(e, transposed, k64(e, s->h * all)),
		           i_add_k(e, panel, s->npanel));
	pack_sums(e, s, transposed, s->lstm ? F32(nr) : s->h * all, s->k2 * all, all, out, bytes);
}

void
rnn_pack(GroupCx *gc, const RnnSeq *s, int src, int dst, GraphKernels *gk)
{
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "pack", &fresh);

	if (fresh) {
		V from = buffer(&e, src), to = buffer(&e, dst);
		Mem panels = mem_dense(&e, to, DT_f32, s->npanel, s->h / s->unit, s->gates, s->p.lanes);

		TASKS(&e, panel) {
			if (s->halves)
				pack_halves(&e, s, from, to, panel);
			else if (s->back && s->pairs)
				pack_pairs(&e, s, from, to, panel);
			else if (s->back)
				pack_columns(&e, s, from, to, panel);
			else
				pack_gates(&e, s, s->p.nv, from, mem_at(&e, &panels, panel), panel);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->npanel, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
