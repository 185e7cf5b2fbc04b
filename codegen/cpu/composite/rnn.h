/* rnn.h: kernels of the composite operators that this target takes: recurrences (rnn.c), attention (attention.c).
 * Private to codegen/cpu. */
#ifndef CODEGEN_CPU_RNN_H
#define CODEGEN_CPU_RNN_H
#include "../cpu.h"

bool rnn_op(OpKind k);                                  /* lstm.cells, gru.cells and their gradients */
/* Why the kernel does not take op, NULL if it does; the text is in g's arena. */
const char *rnn_refuses(const Graph *g, const Op *op, const Arch *a);
/* Target.narrow.takes: may operand k be of `narrow`? */
bool rnn_takes(const Graph *g, const Op *op, int k, const Arch *a, DType narrow);
/* The operand that its weights are. */
int rnn_weights(const Op *op);
/* Kernel text, and the bytes that the group's workspace needs. keep: weights stay as they are from call to call, so do
 * the bytes of what they are packed into. */
const char *rnn_select(Graph *g, const Op *op, int vector_bytes, SelectCx *cx, bool prepack, int64_t *prepacked,
	int64_t *workspace);
/* Target.tuning.space, of the group's kernel. */
void rnn_space(const Graph *g, const Op *op, int vector_bytes, const SelectCx *cx, const char *kernel, SpaceEach *each,
	void *each_cx);
void rnn_emit(GroupCx *gc, const Op *op, GraphKernels *gk);
bool attention_op(OpKind k);                            /* attention and its gradient */
const char *attention_refuses(const Graph *g, const Op *op, const Arch *arch);
/* Target.narrow.takes, as rnn_takes. */
bool attention_takes(const Graph *g, const Op *op, int k, const Arch *a, DType narrow);
/* Does op round a result of `attention`, whose operands are of 16 bits, to their type? The kernel does it. */
bool attention_casts(const Graph *g, const Op *attention, const Op *op);
const char *attention_select(Graph *g, const Op *op, int vector_bytes, SelectCx *cx, int64_t *workspace);
void attention_space(const Graph *g, const Op *op, int vector_bytes, const SelectCx *cx, const char *kernel,
	SpaceEach *each, void *each_cx);
void attention_emit(GroupCx *gc, const Op *op, GraphKernels *gk);
#endif
