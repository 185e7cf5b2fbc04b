/* program.h: what the files that write the descriptor share. Private to them: program.c (the object, settings,
 * figures), program_text.c, program_inputs.c (inputs, states, checks), program_graphs.c (graphs, kernels, loops). */
#ifndef CODEGEN_PROGRAM_H
#define CODEGEN_PROGRAM_H
#include "codegen.h"

/* ---- program_text.c: pairs of the object, each behind a comma */
void program_put_shape(Buf *b, const Type *t);                      /* [..], without a key */
void program_put_type(Buf *b, const Type *t);                       /* dtype, shape and layout of a tensor */
void program_put_number(Buf *b, const char *key, double x);
void program_put_text(Buf *b, const char *key, const char *text);
const char *program_where(const Module *m, Arena *a, Loc l); /* file:line:column; "" where there is none */
/* an integer or a truth value of the settings; `none` without one */
int64_t program_setting(const Module *m, const char *name, int64_t none);

/* ---- program_inputs.c */
/* The model's inputs: those of train, then what only the other graphs have. */
typedef struct ProgramInputs { const char *at[64]; const Type *type[64]; int n; } ProgramInputs;
ProgramInputs program_inputs(const Module *m);
const Graph *program_graph(const Module *m, const char *name); /* no loop; NULL */
const Input *program_input(const Graph *g, const char *name); /* of the data; g may be NULL; NULL */
void program_put_inputs(Buf *b, const Module *m, const ProgramInputs *in);
void program_put_states(Buf *b, const Module *m);
void program_put_checks(Buf *b, const Module *m, Arena *a);

/* ---- program_graphs.c */
void program_put_graphs(Buf *b, const Module *m, Arena *a, const ProgramInputs *in, const ProgramKernels *ks);
void program_put_loops(Buf *b, const Module *m);
#endif
