/* rnn_pack.c: W_hh of a recurrence packed for the microkernel: the kernel before the main one.
 *
 * In: a plan, W_hh.   Out: panels in the workspace: forward the same vector of units of all gates, backward vectors of
 * columns; with halves seven sums of each panel's quarters (Strassen's algorithm, strassen.c). */
#include "rnn_parts.h"

/* Column j of a forward panel's gate is row gate * H + j of W_hh: blocks are transposed. out: [k][gate][w] of some
 * gates, of the next ones behind that. */
static void
pack_gates(Emit *e, const RnnSeq *s, int together, V from, V out, V panel)
{
	int w = s->p.lanes;
	int64_t nr = (int64_t)together * w, whole = s->h / w * w;
	V first = i_mul(e, panel, k64(e, w)), left = i_sub(e, k64(e, s->h), first);

	for (int g = 0; g < s->gates; g++) {
		V in = ptr_at(e, from, i_mul(e, i_add(e, first, k64(e, g * s->h)), k64(e, s->h * 4)));
		V dst = ptr_at(e, out, k64(e, (g / together * s->h * nr + g % together * w) * 4));

		if (whole) {
			V k = loop_open(e, k64(e, 0), k64(e, whole), w), fn = turn_block(e->l, w);
			V args[5] = {ptr_at(e, in, i_mul(e, k, k64(e, 4))), k64(e, s->h * 4), left,
			             ptr_at(e, dst, i_mul(e, k, k64(e, nr * 4))), k64(e, nr * 4)};

			LLVMBuildCall2(here(e), LLVMGlobalGetValueType(fn), fn, args, 5, "");
			loop_close(e);
		}
		V k = loop_open(e, k64(e, whole), k64(e, s->h), 1), j = loop_open(e, k64(e, 0), k64(e, w), 1);
		V ok = LLVMBuildICmp(here(e), LLVMIntSLT, j, left, ""),
		  col = LLVMBuildSelect(here(e), ok, j, k64(e, 0), "");
		V off = LLVMBuildAdd(here(e), LLVMBuildMul(here(e), col, k64(e, s->h * 4), ""), i_mul(e, k, k64(e, 4)),
		                     "");
		V x = LLVMBuildLoad2(here(e), e->l->f32, LLVMBuildInBoundsGEP2(here(e), e->l->i8, in, &off, 1, ""), "");

		LLVMBuildStore(here(e), LLVMBuildSelect(here(e), ok, x, LLVMConstReal(e->l->f32, 0), ""),
		    ptr_at(e, dst, i_add(e, i_mul(e, k, k64(e, nr * 4)), i_mul(e, j, k64(e, 4)))));
		loop_close(e);
		loop_close(e);
	}
}

/* A backward panel is nv vectors of columns of W_hh: rows are copied. */
static void
pack_columns(Emit *e, const RnnSeq *s, V from, V to, V panel)
{
	int w = s->p.lanes;
	int64_t nr = (int64_t)s->p.nv * w, rows = s->gates * s->h;
	V first = i_mul(e, panel, k64(e, nr)), out = ptr_at(e, to, i_mul(e, panel, k64(e, rows * nr * 4)));
	V k = loop_open(e, k64(e, 0), k64(e, rows), 1);
	V in = ptr_at(e, from, i_add(e, i_mul(e, k, k64(e, s->h * 4)), i_mul(e, first, k64(e, 4)))),
	  dst = ptr_at(e, out, i_mul(e, k, k64(e, nr * 4)));

	for (int j = 0; j < s->p.nv; j++) {
		V left = i_max(e, i_sub(e, k64(e, s->h), i_add(e, first, k64(e, (int64_t)j * w))), k64(e, 0)),
		  off = k64(e, (int64_t)j * w * 4);

		vec_store(e, ptr_at(e, dst, off),
		          vec_load(e, ptr_at(e, in, off), s->h % nr ? mask_below(e, left) : NULL), NULL);
	}
	loop_close(e);
}

/* Seven sums of the four quarters of a panel, whose right half lies `right` bytes behind the left and whose lower half
 * `down`: lines `line` bytes apart, to `out` + q * apart. */
static void
pack_sums(Emit *e, const RnnSeq *s, V from, int64_t right, int64_t down, int64_t line, V out, int64_t apart)
{
	int64_t nr = (int64_t)s->p.nv * s->p.lanes;
	V k = loop_open(e, k64(e, 0), k64(e, s->k2), 1), x[QUARTERS], r[PRODUCTS];

	for (int64_t j = 0; j < nr * 4; j += s->p.lanes * 4) {
		for (int q = 0; q < QUARTERS; q++)
			x[q] = vec_load(e,
			                ptr_at(e, from,
			                       i_add(e, i_mul(e, k, k64(e, line)),
			                             k64(e, (q & 1) * right + (q >> 1) * down + j))),
			                NULL);
		strassen_second(e, x, r);
		for (int q = 0; q < PRODUCTS; q++)
			vec_store(e, ptr_at(e, out, i_add(e, i_mul(e, k, k64(e, nr * 4)), k64(e, q * apart + j))), r[q],
			          NULL);
	}
	loop_close(e);
}

/* Forward [panel][product][k2][nr], backward [product][panel][k2][nr]. */
static void
pack_halves(Emit *e, const RnnSeq *s, V from, V to, V panel)
{
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, bytes = s->k2 * nr * 4, all = (int64_t)s->gates * s->p.lanes * 4;

	if (s->back) {
		pack_sums(e, s, ptr_at(e, from, i_mul(e, panel, k64(e, nr * 4))), s->h / 2 * 4, s->k2 * s->h * 4,
		          s->h * 4, ptr_at(e, to, i_mul(e, panel, k64(e, bytes))), s->npanel * bytes);
		return;
	}
	V out = ptr_at(e, to, i_mul(e, panel, k64(e, PRODUCTS * bytes))), transposed = scratch_ptr(e, 0);

	pack_gates(e, s, s->gates, from, transposed, panel);
	if (!s->lstm)
		pack_gates(e, s, s->gates, from, ptr_at(e, transposed, k64(e, s->h * all)),
		           i_add(e, panel, k64(e, s->npanel)));
	pack_sums(e, s, transposed, s->lstm ? nr * 4 : s->h * all, s->k2 * all, all, out, bytes);
}

void
rnn_pack(GroupCx *gc, const RnnSeq *s, int src, int dst, GraphKernels *gk)
{
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "pack", &fresh);

	if (fresh) {
		V from = buffer(&e, src), to = ptr_at(&e, buffer(&e, dst), k64(&e, s->weights)),
		  panel = loop_open(&e, e.arg_t0, e.arg_t1, 1);

		if (s->halves)
			pack_halves(&e, s, from, to, panel);
		else if (s->back)
			pack_columns(&e, s, from, to, panel);
		else
			pack_gates(&e, s, s->p.nv, from,
			           ptr_at(&e, to, i_mul(&e, panel, k64(&e, s->h * s->gates * s->p.lanes * 4))), panel);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->npanel, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
