/* depthwise.h: convolutions whose groups are smaller than a vector; private to codegen/cpu. */
#ifndef CODEGEN_CPU_DEPTHWISE_H
#define CODEGEN_CPU_DEPTHWISE_H
#include "algo.h"

/* Vectors of a group's kernel hold the channels of `groups` groups: `out` channels of each on the side that lanes are,
 * `in` on the other. */
typedef struct DepthLanes {
	int64_t groups, in, out, whole, vectors, rest;
} DepthLanes; /* whole: lanes in use; vectors: how many; rest: lanes of the last, 0: all */

/* Is op a convolution, or a gradient of one, that these kernels compute? */
bool depthwise_can(const Graph *g, const Op *op, int vector_bytes);
DepthParams depthwise_params(const Graph *g, const Op *op, const Arch *a);
/* Algo.emit of both rows (depthwise.c, depthwise_dw.c). */
void depthwise_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk);
void depthwise_dw_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk);

/* depthwise_params.c, for depthwise.c. */
enum { DEPTH_COLS = 16, DEPTH_WEIGHTS = 64 }; /* pixels of a step, weights of a filter row for one output: at most */
/* Input rows [lo, hi) that rows [first, last) of the result meet; the most that any `rows` of them do. */
void depthwise_band_range(
    const Op *op, const Type *x, const Window *w, int64_t first, int64_t last, int64_t *lo, int64_t *hi);
int64_t depthwise_band_rows(const Graph *g, const Op *op, int64_t rows);
int64_t depthwise_band_line(int64_t pixels); /* vectors from one vector of a band's channels to the next */
int64_t depthwise_tile_line(const DepthLanes *l,
                            const DepthParams *p); /* elements from a row of the tile to the next */
int64_t depthwise_tile_bytes(const Graph *g, const Op *op, const DepthLanes *l, const DepthParams *p);
/* What both files share. */
DepthLanes depthwise_lanes(const Graph *g, const Op *op, const DepthParams *p);
/* Number j of each group in the other side's W channels `from`, beside the lanes that belong to it. */
Cell depthwise_spread(Emit *e, const DepthLanes *l, Cell from, int64_t j);
V depthwise_fma(Emit *e, V x, V y, V sum);      /* in two steps where the CPU has no instruction for it */
V depthwise_mask(const Emit *e, int64_t lanes); /* the first lanes; NULL: all of them */
/* Where elements of v stand from pixel (h, w) of image n, channel c, on. */
V depthwise_at(Emit *e, Val v, V n, V c, V h, V w);
/* W channels from `c` on of operand k at `pixels` pixels behind (h, w), whose address is `at` (NULL: the kernel makes
 * the operand). */
Cell depthwise_load(Emit *e, const Op *op, int k, V at, V n, V c, V h, V w, int64_t pixels);

/* Which pixels of a row meet which taps, for steps of a few pixels. */
enum { DEPTH_RUNS = 24 };
typedef struct DepthMeet {
	int i;
	int64_t at, tap;
} DepthMeet; /* pixel of the step, input column from the step's first on, filter column */
typedef struct DepthRun {
	int64_t lo, hi;
	int cols, n;
	DepthMeet *meet;
} DepthRun; /* steps [lo, hi) that are alike, their pixels; in the order of input columns */
/* Of a long filter: what a step meets of `block` filter columns, counted from the block's first tap and from the input
 * column that the step's first pixel would meet it at, were that step 0 of block 0. */
enum { DEPTH_KINDS = 64 };
typedef struct DepthKind {
	int n;
	DepthMeet *meet;
} DepthKind;
typedef struct DepthSteps {
	const Type *x, *w, *o; /* convolved image, weights, result (or its gradient): set before depthwise_steps */
	Window at;             /* the same */
	int64_t n, first;      /* steps of a row; input columns from one's first to the next's */
	DepthRun run[DEPTH_RUNS];
	int nrun;
	int64_t block, shift;  /* filter columns that code is made for at a time, 0: all; input columns a block on */
	DepthKind kind[DEPTH_KINDS];
	int nkind;
	int64_t *blocks;       /* [step][kind]: the first block of the kind, and behind the last */
	int64_t *rows, rstep, rmove; /* of each row of o: its first input row, filter row, how many of these; of the
	                                filter index, of the input index per tap */
} DepthSteps;
void depthwise_steps(Arena *a, const Op *op, int cols, DepthSteps *d);
/* Filter columns of a block where the filter is long, 0: it is not. */
int64_t depthwise_block(const Graph *g, const Op *op, int cols);
/* What a step of the run does with its taps: f once; of a long filter for each kind of block, in a loop over those
 * of the kind, with the block's number. */
void depthwise_blocks(Emit *e, const DepthSteps *d, const DepthRun *run, V table, V step, void *cx,
                      void (*f)(Emit *e, void *cx, const DepthKind *k, V block));
V depthwise_row(Emit *e, V table, V row, int column); /* of DepthSteps.rows */
/* Opens what happens if `step` is one of the run's; its number there. */
V depthwise_run_open(Emit *e, const DepthSteps *d, const DepthRun *run, V step);
void depthwise_run_close(Emit *e, const DepthSteps *d);

/* depthwise_dw.c: parts and chunk of the gradient in the weights. */
void depthwise_dw_params(const Graph *g, const Op *op, const DepthLanes *l, DepthParams *p);
#endif
