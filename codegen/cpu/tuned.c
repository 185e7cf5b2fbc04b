/* tuned.c: parameters of contraction kernels that come from a tuning file: are they possible here?
 *
 * In: a group's contraction, a kernel's text.   Out: the parameters, or why they do not fit; then the default ones stay. What gemm_emit and the emitters behind it
 * rely on is held here, so that a text may be anybody's: the form is this operator's, vectors are the processor's, an operand
 * that is read in panels is packed, no part of a weight gradient is without rows, and minimal filtering is possible and not switched off. */
#include "gemm.h"
#include <string.h>

static const char *
misfit_shape(const Graph *g, const Op *op, const GemmParams *d, const GemmParams *p, Arena *a)
{
	if (op->kind == OP_conv2d_dw) {
		int64_t rows = val_type(g, op->in[1])->axis[2].n;

		if (!gemm_images_fit(g, op, p))
			return arena_printf(a, "%d images a pass do not divide all of them, pairs where they are multiplied as pairs", p->images);
		if (p->parts > rows)
			return arena_printf(a, "%d parts of %lld rows of pixels", p->parts, (long long)rows);
		return p->band > rows ? arena_printf(a, "a band of %d rows of pixels, there are %lld", p->band, (long long)rows) : NULL;
	}
	if (p->copy && !gemm_copies(g, op, p))
		return "copy=1 is for a matrix product of a turned first operand";
	if (!p->pack && op->kind != OP_matmul)
		return "a convolution's weights must be packed: pack=1";
	if (!p->pack && (attr_bool(op, A_tb) || d->pair))
		return "this second operand must be packed: pack=1";
	return p->panel_outer && op->kind == OP_matmul ? "a matrix product has no outer=panel" : NULL;
}

/* The default parameters d say what the operands allow. */
static const char *
misfit(const Graph *g, const Op *op, const SelectCx *cx, const GemmParams *d, GemmParams *p)
{
	const char *text = cx->tuned;
	int bytes = arch_named(cx->arch ? cx->arch : arch_native())->vector_bytes;
	Arena *a = g->arena;

	if (!gemm_parse(text, p) || strcmp(gemm_text(a, op, p), text))
		return arena_printf(a, "%s takes parameters such as %s", op_info[op->kind].name, gemm_text(a, op, d));
	if (p->lanes * 4 > bytes)
		return arena_printf(a, "vectors of %d numbers, the processor's hold %d", p->lanes, bytes / 4);
	if (p->winograd) {
		if (op->kind == OP_matmul)
			return "minimal filtering is for convolutions";
		if (cx->may && !cx->may(cx->cx, "winograd"))
			return "winograd is switched off";
		return winograd_why_not(g, op, p, bytes);
	}
	if (p->strassen) {
		if (cx->may && !cx->may(cx->cx, "strassen"))
			return "strassen is switched off";
		return strassen_why_not(g, op, p);
	}
	if (p->chains && (p->tiles || p->f16))
		return "chains are of products without instructions for 16 bits";
	if (p->pair != d->pair)
		return d->pair ? "these operands are multiplied as pairs" : "these operands cannot be multiplied as pairs";
	if (p->tiles != d->tiles || p->f16 != d->f16 || !pairs_fit(g, op, arch_named(cx->arch ? cx->arch : arch_native()), p))
		return arena_printf(a, "pairs are multiplied by other instructions here, or not in tiles of this size: %s", gemm_text(a, op, d));
	return misfit_shape(g, op, d, p, a);
}

void
tuned_choose(const Graph *g, const Op *op, SelectCx *cx, GemmParams *p)
{
	GemmParams d = *p, t;
	int bytes = arch_named(cx->arch ? cx->arch : arch_native())->vector_bytes;

	if (!cx->tuned)
		return;
	d.winograd = d.strassen = false;
	cx->misfit = misfit(g, op, cx, &d, &t);
	if (cx->misfit)
		return;
	select_overrule(cx, "winograd", t.winograd);
	select_overrule(cx, "strassen", t.strassen);
	*p = t;
	/* the default is no part of the text */
	if (t.chains == gemm_chains(g, op, &(GemmParams){.pair = t.pair}, bytes))
		p->chains = 0;
}
