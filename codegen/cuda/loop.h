/* loop.h: the text of the loop's kernels, types first; needs nothing else of this folder. */
#ifndef CODEGEN_CUDA_LOOP_H
#define CODEGEN_CUDA_LOOP_H
extern const char cuda_loop_types[], cuda_loop[];
#endif
