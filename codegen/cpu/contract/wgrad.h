/* wgrad.h: what the two kernels of a gradient in a convolution's weights share; private to codegen/cpu. wgrad.c reads
 * the operands where they lie, wgrad_copied.c copies them into panels first. */
#ifndef CODEGEN_CPU_WGRAD_H
#define CODEGEN_CPU_WGRAD_H
#include "algo.h"

enum { WGRAD_SLICES = 256 }; /* that give many threads work */

typedef struct Wgrad {
	const GemmParams *p;
	int64_t H, W, C, N, OH, OW, K, R, S; /* C: of a group, K: of all */
	int64_t groups, npanel;  /* panels of a group */
	Window at;
	/* per filter row: output rows [lo, hi) that it meets; per filter column: first output column, how many, its
	 * input column */
	int64_t *rr, *ss;
	int64_t channel;         /* bytes from one input channel to the next */
	/* elements, or pairs, from one image of a pixel to the next: C and K, or more in a copy */
	int64_t line[2];
	/* the filter's columns are rows, over the output columns [first, last) that all of them meet */
	bool columns;
	int64_t first, last;
	Tiles tiles;
	V strides, tr, ts, part, band, end, acc; /* band, end: rows of this pass */
	V group, kb, column;     /* group, panel of it, its first column of all */
	int64_t blocks;          /* of a group's input channels */
	V c0, c1;                /* this slice's: [c0, c1) */
	Mem in, gradient, sums;  /* wgrad.c: [row][column][group][channel], [row][column][group][panel],
	                          * [part][filter row][group][panel] */
	V in_row, gradient_row;  /* rows that `in` and `gradient` begin with */
	int64_t images;          /* of a pass, or pairs of them */
	int64_t cut;             /* output columns of a pass: OW, or a part of a row */
	V q0, q1;                /* of this pass, where rows are cut */
} Wgrad;

Wgrad wgrad_of(const Graph *g, const Op *op, const GemmParams *p);
void wgrad_taps(Emit *e, Wgrad *w); /* rr, ss, columns, first, last */
/* Opens the loop over pieces of rows where these are cut, sets q0, q1 and acc; returns the number of loops. */
int wgrad_cut_open(Emit *e, Wgrad *w);
/* What of nq output columns from ow on, which meet input columns from `column` on, lies in the piece. */
void wgrad_clip(Emit *e, const Wgrad *w, V *ow, V *nq, V *column);

/* The row (axis 0) or column of the input that the filter's first meets at that one of the gradient. */
V input_index(Emit *e, const Wgrad *w, int axis, V at);

/* ---- wgrad_copied.c */
int64_t wgrad_copied_bytes(const Graph *g, const Op *op, const GemmParams *p); /* of a thread's memory */
void wgrad_copied_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk);
#endif
