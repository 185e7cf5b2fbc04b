/* tensor.h: between the reader of matrix and barrier instructions and what runs them. */
#ifndef TENSOR_H
#define TENSOR_H
#include "sim.h"

enum { MBAR_INIT, MBAR_INVAL, MBAR_ARRIVE, MBAR_ARRIVE_DROP, MBAR_EXPECT, MBAR_COMPLETE, MBAR_TEST };
enum { ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_S8, ELEMENT_U8, ELEMENT_E4M3, ELEMENT_E5M2 };

/* mma.c, built twice like alu.c: d[m][n] += a[m][k] b[k][n], n in eights. */
typedef void MmaFn(float *d, const float *a, const float *b, int m, int n, int k, int ldd, int lda, int ldb);
MmaFn mma_product_v1, mma_product_v3;
float element_float(uint32_t bits, int code);
extern OpFn op_mma;

/* bulk.c: phases of mbarrier objects in shared memory */
void mbarrier_arrive(Warp *w, const Ins *x, int lane, uint64_t at);
#endif
