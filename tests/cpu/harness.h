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
#endif
