/* code.h: a function of plain instructions in the making: variables, loops, conditions; private to codegen/cpu. */
#ifndef CODEGEN_CPU_CODE_H
#define CODEGEN_CPU_CODE_H
#include "../contract/gemm.h"

enum { LINE = 64 }; /* bytes of a cache line */

typedef struct Code {
	Llvm *l;
	V fn;
	LLVMBuilderRef b, top;   /* where code goes; the entry block, which holds the variables */
	LLVMBasicBlockRef start; /* the block behind it */
	V slot;                  /* memory for operands of emulated instructions, made on first use */
} Code;
typedef struct CodeLoop { LLVMBasicBlockRef body; V left; } CodeLoop;
typedef struct CodeIf { LLVMBasicBlockRef other, after; } CodeIf;

/* The internal function of that name: NULL if it is begun here, else the one that exists. */
V code_begin(Code *c, Llvm *l, const char *name, T *args, int nargs);
V code_end(Code *c);
V code_arg(const Code *c, int i);
V code_k(const Code *c, int64_t x);
V code_var(Code *c, T t);                              /* becomes registers (mem2reg), unless it is an array */
V code_get(Code *c, V var);
void code_set(Code *c, V var, V v);
V code_at(Code *c, V p, V bytes);
V code_load(Code *c, T t, V p, V mask);                 /* four-byte elements; mask NULL: all lanes; others are 0 */
void code_store(Code *c, V v, V p, V mask);
V code_mask(Code *c, V bits, int lanes);                /* from the low bits of a number */
V code_stride(Code *c, V strides, int which);           /* of S_AM .. S_NK */
CodeLoop code_loop(Code *c, V n);                       /* n times, at least once */
void code_loop_end(Code *c, CodeLoop loop);
CodeIf code_if(Code *c, V cond);
void code_else(Code *c, CodeIf *i);
void code_fi(Code *c, CodeIf *i);

/* isa.c: instructions that not every machine has. */
/* A tile instruction by the name of its intrinsic; tile numbers are constants of 8 bits. */
void isa_tile(Llvm *l, LLVMBuilderRef b, const char *name, V *args, int n);
/* f16 lanes, each rounded once: a * x + sum, all of them 32-bit elements that hold two. */
V isa_fma_f16(Code *c, V a, V x, V sum);
#endif
