/* tf32.c: products of f32 by matrix instructions, mma.sync.m16n8k8 of operands rounded to 11 bits (tf32), for a tuning
 * file to choose.
 *
 * In: tiles of f32 in shared memory, in chunks of 16 bytes that lie as those of 16-bit operands do.   Out: the text
 * that makes them operands of the instructions; the products are gemm.c's. */
#include "gemm.h"

/* Fragments of an operand, 16 rows (two of 8 columns) by 8 of k to four words. Where memory follows k they are what
 * ldmatrix gives; else each word is read by itself. */
void
cu_tf32_fragments(Gemm *x, const Operand *o, int count)
{
	Cuda *c = x->c;

	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int i = 0; i < %d; i++)", count);

	if (o->along_k)
		cu_line(c, "%s", cu_ldsm_text(x, o, 'i'));
	cu_line(c, "#pragma unroll");
	Scope in = cu_scope_open(c, "for (int e = 0; e < 4; e++)");

	if (!o->along_k) {
		cu_line(c, "const int r = %s + i * 16 + %s * 8 + lane / 4, k = ks * 8 + %s * 4 + lane %% 4;",
		        o->which ? "warp_n" : "warp_m", o->which ? "e / 2" : "e % 2", o->which ? "e % 2" : "e / 2");
		cu_line(c, "f%c[i][e] = shared_word(at_%c + swizzled(k, r / 4, %d) + r %% 4 * 4);", o->name, o->name,
		        o->rows / 4);
	}
	cu_line(c, "f%c[i][e] = to_tf32(f%c[i][e]);", o->name, o->name);
	cu_scope_close(c, in);
	cu_scope_close(c, s);
}
