/* shape.h: helpers of the shape rules (shape*.c). Private to ir/.
 *
 * A rule computes result types with identity layout and hands them to shape_result, which sets them on a new op and
 * compares on an op that has types already (read back, or given). */
#ifndef IR_SHAPE_H
#define IR_SHAPE_H
#include "rules.h"
#include "window.h"

/* The message, in the graph's arena; blames operand k (-1: none). */
const char *shape_fail(Graph *g, int *which, int k, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* "[64,1,28,28]": the extents, for messages. */
const char *shape_text(Graph *g, const Type *t);
const char *type_text(Graph *g, const Type *t);               /* with dtype: f32[64,10] */
/* The op came with a type for result 0, of a size that a tensor may have. */
const char *shape_declared(Graph *g, const Op *op, int *which);
/* Sets result k, or compares it with the type that stands there. */
const char *shape_result(Graph *g, Op *op, int k, const Type *t);
/* From here on only whole batches run: why names the reason; the first one is kept. */
void shape_full_only(Graph *g, const Op *op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Extents equal? Marks that differ make the graph full_only; the marked one of the two is the result. */
bool shape_unify(Graph *g, const Op *op, Axis a, Axis b, Axis *out);
/* Number of inputs is one of those the op may have. */
const char *shape_count(Graph *g, const Op *op, int *which, int want);
const char *shape_rank(Graph *g, const Op *op, int *which, int k, int rank, const char *axes);
const char *shape_float(Graph *g, const Op *op, int *which, int k);
const char *shape_integer(Graph *g, const Op *op, int *which, int k, const char *what);
/* Inputs from..to-1 (if any) have the dtype of input k. */
const char *shape_one_dtype(Graph *g, const Op *op, int *which, int k, int from, int to);
/* Attribute axis, within the rank of t. */
const char *shape_axis(Graph *g, const Op *op, int *which, const Type *t, int *out);
/* An attribute of exactly two numbers, each at least low. */
const char *shape_pair(Graph *g, const Op *op, int *which, AttrName name, int64_t low, int64_t out[2]);
static inline const Type *
in_type(const Graph *g, const Op *op, int k)
{
	return val_type(g, op->in[k]);
}
#endif
