/* dnn_region.h: what follows a convolution that cuDNN takes; private to cudnn.c and dnn_tail.c. */
#ifndef CODEGEN_CUDA_DNN_REGION_H
#define CODEGEN_CUDA_DNN_REGION_H
#include "../cuda.h"

enum { DNN_STEPS = 8 };
typedef struct DnnTail {
	/* add, sub, mul by a number of each channel, in their order */
	struct { OpKind op; Val x; } step[DNN_STEPS]; int nstep;
	bool scaled, relu;       /* a factor is among them; negative values become 0 at the end */
	Val add;                 /* NOVAL: no tensor is added */
	Val result;              /* of 16 bits, stored */
} DnnTail;

/* The tail of a convolution whose rounded result has type `result`. NULL, or why it has none. */
const char *cu_dnn_tail(const Graph *g, int group, const Op *op, const Type *result, DnnTail *t);
/* Kernels that make filters times factors, if there are any (as `filters`, at filters_at), and the bias. */
void cu_dnn_tail_emit(Cuda *c, const DnnTail *t, Val filter, const Type *filters, int64_t filters_at,
                      const Type *result, int64_t bias_at);
#endif
