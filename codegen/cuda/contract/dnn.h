/* dnn.h: what cuDNN leaves in memory of a contraction that it has (cudnn.c); private to codegen/cuda. */
#ifndef CODEGEN_CUDA_DNN_H
#define CODEGEN_CUDA_DNN_H
#include "../cuda.h"

/* Behind the plan what is left of the group may ask for the contraction's elements. */
Cell cu_dnn_value(Cuda *c, const Op *op, const Ix *ix);
#endif
