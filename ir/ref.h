/* ref.h: helpers of the reference evaluator (ref*.c). Private to ir/, and for tests.
 *
 * Tensors are dense row-major arrays of double, or int64_t for integers, of the actual batch's extents. A rule asks
 * ref_out for its result's array, which the interpreter may have laid out already, and fills every element. */
#ifndef IR_REF_H
#define IR_REF_H
#include "rules.h"
#include <assert.h>

static inline const RefTensor *
ref_in(const RefCtx *cx, const Op *op, int k)
{
	return &cx->val[op->in[k].id];
}

/* result k: type, n and f or i are set; contents undefined */
RefTensor *ref_out(RefCtx *cx, const Op *op, int k);
RefTensor *ref_zeros(RefCtx *cx, const Op *op, int k);          /* the same, filled with 0 */
/* of the actual batch; returns their product */
int64_t ref_extents(const RefCtx *cx, const Type *t, int64_t ext[MAX_RANK]);
void ref_strides(int rank, const int64_t *ext, int64_t *stride);
const char *ref_fail(RefCtx *cx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ref_bytes_in(RefTensor *t, const void *bytes);             /* memory of its dtype to numbers */
void ref_bytes_out(const RefTensor *t, void *bytes);
void ref_point(RefTensor *t, void *cells);                      /* f or i, by its type: cells of REF_CELL bytes */
static inline void *ref_cells(const RefTensor *t) { return t->f ? (void *)t->f : (void *)t->i; }
static inline int64_t ref_int(const RefTensor *t, int64_t e) { return t->i ? t->i[e] : (int64_t)t->f[e]; }
/* to a floating type; f32 stays double unless to_float */
double ref_round(DType t, double x, bool to_float);
double ref_get(const RefTensor *t, int64_t e);                  /* an element as a double, the nearest one */
void ref_set(RefTensor *t, int64_t e, double x);                /* to integers: truncated, saturated */
void ref_fill(RefTensor *r, const Op *op);                      /* every element: attribute value of op */
/* a number for integers of type t: truncated, saturated */
int64_t ref_attr(DType t, const Attr *a);

/* bytes of an element: moves copy them, whatever they are */
enum { REF_CELL = 8 };
static_assert(sizeof(double) == REF_CELL && sizeof(int64_t) == REF_CELL, "one size of cells");

/* Odometer over ext[0..rank): adds step strides to n offsets. Starts with all index 0. */
typedef struct RefWalk { int rank; int64_t ext[MAX_RANK], at[MAX_RANK]; } RefWalk;
static inline bool
ref_next(RefWalk *w, int noff, int64_t *off, int64_t (*stride)[MAX_RANK])
{
	for (int i = w->rank - 1; i >= 0; i--) {
		for (int k = 0; k < noff; k++)
			off[k] += stride[k][i];
		if (++w->at[i] < w->ext[i])
			return true;
		for (int k = 0; k < noff; k++)
			off[k] -= stride[k][i] * w->ext[i];
		w->at[i] = 0;
	}
	return false;
}

RefRule ref_ew, ref_red;                                        /* every row of ew.def; of red.def */
#endif
