/* scatter.h: slices that are added to rows of a table: what scatter.c and sorted.c share. */
#ifndef CODEGEN_CUDA_SCATTER_H
#define CODEGEN_CUDA_SCATTER_H
#include "../cuda.h"

/* take.dx or take.add. */
typedef struct Slices {
	const Op *op;
	const Type *t, *ids, *g; /* the table; indices, in row-major order; what is added */
	Val ids_val;
	int axis, vec;           /* of the table; neighbours along a row that a thread has */
	int64_t offset, from;    /* of the table, of what is added */
	DType dt, sum;           /* elements; sums, in registers and in the workspace */
	uint32_t before, behind; /* axes of the table before and behind `axis` */
} Slices;

Slices cu_slices_of(const Graph *g, const Op *op);
/* Index number `place` of all, a text. */
const char *cu_slices_id(Cuda *c, const Slices *s, const char *place);
/* Where the slice of index number `place` has what belongs to the table's element `to`: its address. */
const char *cu_slices_at(Cuda *c, const Slices *s, const Ix *to, const char *place);
/* Arrays of s->vec numbers of type dt: from an address, to one, added up. */
void cu_slices_load(Cuda *c, const Slices *s, DType dt, const char *to, const char *from);
void cu_slices_store(Cuda *c, const Slices *s, DType dt, const char *to, const char *x);
void cu_slices_add(Cuda *c, const Slices *s, const char *to, const char *a, const char *b);
/* The sum of a row, the table's element `to` its first: with what take.add finds there. */
void cu_slices_put(Cuda *c, const Slices *s, const Ix *to, const char *sum);
/* The loop of all threads that zeroes the table; returns the blocks that it is worth. */
int64_t cu_slices_zero(Cuda *c, const Slices *s);

/* sorted.c */
int64_t cu_sorted_workspace(const Graph *g, const Op *op);
void cu_sorted_emit(Cuda *c, const Slices *s);

#endif
