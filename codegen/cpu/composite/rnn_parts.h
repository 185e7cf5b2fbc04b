/* rnn_parts.h: what the files of the recurrences' kernel share: the plan of one, and the kernel that is being emitted.
 * Private to them: rnn.c (the kernels), rnn_params.c (plans), rnn_pack.c, rnn_halves.c. */
#ifndef CODEGEN_CPU_RNN_PARTS_H
#define CODEGEN_CPU_RNN_PARTS_H
#include "rnn.h"
#include "../contract/gemm.h"

/* A plan: shapes, parameters, and the layout of the workspace. */
typedef struct RnnSeq {
	bool lstm, back, reverse;
	const Type *x;           /* [N,T,*]: what follows the batch */
	Axis n;
	int64_t t, h;            /* steps, units */
	int gates;               /* blocks of rows of W_hh: 4 or 3 */
	GemmParams p;
	int parts;               /* forward: products of a step that a panel's gates are cut into */
	int64_t rows;            /* examples of a task */
	/* a task is a panel's units of all examples, a step a turn behind a barrier: each thread reads its panels
	 * alone, and finds them in its L2 again */
	bool units;
	/* workspace, bytes from its start; rows of it in bytes */
	int64_t npanel, weights, state[3], state_row, grad, grad_row, bytes;
	int64_t packed;          /* bytes of the packed weights, the first of the workspace unless they are prepacked */
	bool prepacked;          /* from call to call, in Group.prepacked */
	int64_t grads;           /* bytes of a step's gradients of the gates; by units there are those of two steps */
	/* W_hh, and what it is multiplied by, are bf16: pairs along the sum in elements of 32 bits, `unit` values
	 * each. Forward the states h before and after a step stand in the workspace so as well. */
	bool pairs;
	int unit;
	int64_t pair[2], pair_row;
	/* Strassen's algorithm: half of the sum's length; the products' first operands [product][pair of examples][k2],
	 * backward the products [product][pair][half of h] */
	bool halves;
	int64_t k2, sums, sums_row, products, products_row, scratch;
} RnnSeq;

enum { PRODUCTS = STRASSEN_PRODUCTS, QUARTERS = STRASSEN_QUARTERS };

/* One kernel that is being emitted. */
typedef struct RnnMain {
	Emit *e;
	const RnnSeq *s;
	V ws, weights, lo, hi;   /* the workspace; packed weights; examples of these tasks */
	V turn;                  /* by units: which it is; NULL: these tasks do all steps */
	V panel, panels, j, end; /* panels [panel, panels) and units [j, end) of these tasks */
	V in[8], out[5];         /* operands and results; NULL: nobody reads it */
	bool streams;            /* all results of steps past the caches */
	V length; DType length_type;
	Tiles tiles;
	V strides;
} RnnMain;

/* rnn_params.c: the kernel of this text; NULL, or why it is not possible. The family's name alone is that of the
 * parameters that follow. */
const char *rnn_read(const Graph *g, const Op *op, int vector_bytes, const char *text, RnnSeq *s);
/* Packed weights lie in Group.prepacked, no longer in the workspace. */
void rnn_prepack(RnnSeq *s);
/* rnn_pack.c: a kernel that packs W_hh, from buffer src to buffer dst. */
void rnn_pack(GroupCx *gc, const RnnSeq *s, int src, int dst, GraphKernels *gk);
/* rnn_halves.c, for plans with halves: the seven first operands of each pair of rows of the task, which lie `row` bytes
 * apart. */
void rnn_halves_sums(const RnnMain *m, V from, int64_t row);
/* Forward, one panel: the seven products of `count` pairs, and of them the sums of the pairs' 2 * count rows, for the
 * gates: of the gru one tile for each half of the units. */
void rnn_halves_tile(const RnnMain *m, V pair, V count, V weights, V products, V tile);
/* Backward: a step's gradients times W_hh, added to the running gradients dh. */
void rnn_halves_back(const RnnMain *m, V grads, V weights, V dh);
#endif
