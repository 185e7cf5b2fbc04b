/* access.h: which element of an operand an element of a result comes from: one rule an operator (column access of
 * ops.def), read by the evaluators and the loop nests of all targets. The reference (ref_*.c) does not read it: it is
 * what they are held against. */
#ifndef IR_ACCESS_H
#define IR_ACCESS_H
#include "ir.h"

/* The index along an axis of the operand, of the result's index i along `axis`, the operand's extent n. Behind the
 * first five it may fall outside 0 .. n - 1: the operand is then not read. */
typedef enum AccessForm {
	ACCESS_zero,    /* 0: n is 1 */
	ACCESS_same,    /* i */
	ACCESS_affine,  /* i * scale + offset */
	ACCESS_back,    /* n - 1 - i */
	ACCESS_dealt,   /* i % scale * (n / scale) + i / scale */
	ACCESS_spread,  /* (i + offset) / scale, and only where scale divides that */
	ACCESS_behind,  /* i - the extents of the operands before this one, along the same axis */
	/* the element of operand `by` at its own access; axis: what stands in its place, -1: several axes */
	ACCESS_lookup,
	ACCESS_moved,   /* i + the element of operand `by` at its own access */
} AccessForm;
typedef struct AxisAccess { AccessForm form; int8_t axis, by; int64_t scale, offset; } AxisAccess;
typedef struct Access {
	AxisAccess at[MAX_RANK]; /* by the operand's axes */
	/* at is not set: blocks of axes hold the same elements in row-major order (type_block) */
	bool blocks;
	bool index;              /* its elements are indices that another operand's access looks up */
	const Attr *fill;        /* of the result where no operand is read; NULL: 0 */
} Access;
/* Of operand k, by the operator's rule; false: this operand is not read. bug() without a rule. */
bool op_access(const Graph *g, const Op *op, int k, Access *a);
#endif
