/* loop.h: the text of loop.c, which needs nothing else of this folder. */
#ifndef CODEGEN_CUDA_LOOP_H
#define CODEGEN_CUDA_LOOP_H
extern const char *const cuda_loop_text[]; /* up to a NULL */
#endif
