/* composite.h: kernels of single operators: of the composite ones that this target takes, attention (attention.c) and
 * recurrences (cells.c); order, boxes and regions (boxes.c). Private to codegen/cuda. */
#ifndef CODEGEN_CUDA_COMPOSITE_H
#define CODEGEN_CUDA_COMPOSITE_H
#include "../cuda.h"

/* Bytes of shared memory that every architecture gives to a block: what is decomposed is the same on all. */
enum { COMPOSITE_SHARED = 64 << 10 };

bool cu_attention_op(OpKind k);                         /* attention and its gradient */
/* Why the kernel does not take op, NULL if it does; the text is in g's arena. */
const char *cu_attention_refuses(const Graph *g, const Op *op);
bool cu_attention_strided(const Op *op, int k, const Type *x); /* may its value k lie so? */
/* Kernel text, and the bytes that the group's workspace needs. */
const char *cu_attention_select(const Graph *g, const Op *op, SelectCx *cx, int64_t *workspace);
/* What tune.def asks of the op; why these parameters are not possible, NULL: they are. */
Facts cu_attention_facts(const Graph *g, const Op *op, const SelectCx *cx);
const char *cu_attention_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p);
/* What its kernel `what` (CuFunction.what) does: turns of the loop over columns, operations with those of padding,
 * bytes. */
typedef struct AttentionWork { double turns, flops, bytes; } AttentionWork;
AttentionWork cu_attention_work(const Graph *g, const Op *op, const Params *p, const char *what);
void cu_attention_emit(Cuda *c, const Op *op);
bool cu_cells_op(OpKind k);                             /* lstm.cells, gru.cells and their gradients */
const char *cu_cells_refuses(const Graph *g, const Op *op);
bool cu_cells_takes(const Graph *g, const Op *op, int k, const SelectCx *cx); /* Target.narrow.takes */
const char *cu_cells_select(const Graph *g, const Op *op, SelectCx *cx, int64_t *workspace);
Facts cu_cells_facts(const Graph *g, const Op *op, const SelectCx *cx);
const char *cu_cells_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p);
void cu_cells_emit(Cuda *c, const Op *op);
int64_t cu_boxes_workspace(const Graph *g, const Op *op); /* of an op with T_ALONE */
void cu_boxes_emit(Cuda *c, const Op *op);
#endif
