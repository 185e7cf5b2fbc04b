/* dnn.h: contractions by cuDNN in place of an own kernel, where a tuning file's record says so; private to codegen/cuda. */
#ifndef CODEGEN_CUDA_DNN_H
#define CODEGEN_CUDA_DNN_H
#include "cuda.h"

#define DNN_FAMILY "cudnn"                               /* the name of the variant for --disable */
static inline bool cu_dnn_is(const char *kernel) { return space_family_of("cuda", NULL, kernel) == FAMILY_cuda_cudnn; }

/* Kernel and workspace of a group by the record in cx->tuned. NULL, or why it cannot be: the group is as it was. */
const char *cu_dnn_select(Graph *g, int group, const Op *op, SelectCx *cx);
/* The plan and the kernels before it; afterwards what is left of the group may ask for the contraction's elements. */
void cu_dnn_emit(Cuda *c, const Op *op);
Cell cu_dnn_value(Cuda *c, const Op *op, const Ix *ix);
#endif
