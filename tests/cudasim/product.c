/* product.c: the inner loops of matrix products. Built twice, like alu.c. */
#include "tensor.h"

#ifndef MMA_PRODUCT
#define MMA_PRODUCT mma_product_v1
#endif

/* Eight columns at a time; sums in the order of k, in float. */
void
MMA_PRODUCT(float *d, const float *a, const float *b, int m, int n, int k, int ldd, int lda, int ldb)
{
	for (int j = 0; j < n; j += 8)
		for (int i = 0; i < m; i++) {
			float s[8] = { 0 };

			for (int l = 0; l < k; l++)
				for (int c = 0; c < 8; c++)
					s[c] += a[i * lda + l] * b[l * ldb + j + c];
			for (int c = 0; c < 8; c++)
				d[i * ldd + j + c] += s[c];
		}
}
