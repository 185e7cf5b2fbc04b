/* tf32.c: products of f32 by matrix instructions, mma.sync.m16n8k8 of operands rounded to 11 bits (tf32), for a tuning file to choose.
 *
 * In: tiles of f32 in shared memory, in chunks of 16 bytes that lie as those of 16-bit operands do.   Out: the text of a tile's products. */
#include "gemm.h"

/* Fragments of an operand, 16 rows (two of 8 columns) by 8 of k to four words. Where memory follows k they are what ldmatrix gives; else each word is read by itself. */
static void
fragments(Gemm *x, const Operand *o, int count)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	const char *first = o->which ? "warp_n" : "warp_m";

	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int i = 0; i < %d; i++)", count);

	if (o->along_k && o->which)
		cu_line(c, "ldsm(fb[i], at_b + swizzled(%s + i * 16 + lane / 16 * 8 + lane %% 8, ks * 2 + lane / 8 %% 2, %d));", first, p->k / 4);
	else if (o->along_k)
		cu_line(c, "ldsm(fa[i], at_a + swizzled(%s + i * 16 + lane %% 16, ks * 2 + lane / 16, %d));", first, p->k / 4);
	cu_line(c, "#pragma unroll");
	Scope in = cu_scope_open(c, "for (int e = 0; e < 4; e++)");

	if (!o->along_k) {
		cu_line(c, "const int r = %s + i * 16 + %s * 8 + lane / 4, k = ks * 8 + %s * 4 + lane %% 4;", first, o->which ? "e / 2" : "e % 2", o->which ? "e % 2" : "e / 2");
		cu_line(c, "f%c[i][e] = shared_word(at_%c + swizzled(k, r / 4, %d) + r %% 4 * 4);", o->name, o->name, o->rows / 4);
	}
	cu_line(c, "f%c[i][e] = to_tf32(f%c[i][e]);", o->name, o->name);
	cu_scope_close(c, in);
	cu_scope_close(c, s);
}

void
cu_tf32_step(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int mi = p->m / p->wm / 16, ni = p->n / p->wn / 8;

	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int ks = 0; ks < %d; ks++)", p->k / 8);

	cu_line(c, "unsigned fa[%d][4], fb[%d][4];", mi, ni / 2);
	fragments(x, &x->x[0], mi);
	fragments(x, &x->x[1], ni / 2);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", mi);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int j = 0; j < %d; j++)", ni);
	cu_line(c, "\t\tmma_tf32(acc[i][j], fa[i], &fb[j / 2][j %% 2 * 2]);");
	cu_scope_close(c, s);
}
