/* harness.h: what the tests of the CPU target share: a plan that shares nothing, and loading of what emit wrote. */
#ifndef TESTS_CPU_HARNESS_H
#define TESTS_CPU_HARNESS_H
#include "../../codegen/codegen.h"

/* Every op its own group, every value its own place. */
void naive_plan(Module *m, const Target *t, const char *arch);

typedef struct Jit Jit;
Jit *jit_load(const void *object, size_t bytes, const char **error); /* NULL and a message */
void *jit_symbol(Jit *j, const char *name);                          /* NULL after a message */
void jit_close(Jit *j);

/* The instructions of emulate.c, under the names that code for emulated CPUs calls. */
__extension__ typedef _Float16 HalfNumber;
void emulate_ldtilecfg(const uint8_t *config);
void emulate_tilerelease(void);
void emulate_tilezero(int t);
void emulate_tileloadd64(int t, const uint8_t *p, int64_t stride);
void emulate_tilestored64(int t, uint8_t *p, int64_t stride);
void emulate_tdpbf16ps(int c, int a, int b);
void emulate_fma_f16(HalfNumber *sum, const HalfNumber *a, const HalfNumber *b, int64_t n);
#endif
