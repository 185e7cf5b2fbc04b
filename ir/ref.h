/* ref.h: helpers of the reference evaluator (ref*.c). Private to ir/, and for tests.
 *
 * Tensors are dense row-major arrays of double of the actual batch's extents. A rule asks ref_out for its result's array, which
 * the interpreter may have laid out already, and fills every element. */
#ifndef IR_REF_H
#define IR_REF_H
#include "rules.h"

static inline const RefTensor *
ref_in(const RefCtx *cx, const Op *op, int k)
{
	return &cx->val[op->in[k].id];
}

RefTensor *ref_out(RefCtx *cx, const Op *op, int k);            /* result k: type, n and f are set; contents undefined */
RefTensor *ref_zeros(RefCtx *cx, const Op *op, int k);          /* the same, filled with 0 */
int64_t ref_extents(const RefCtx *cx, const Type *t, int64_t ext[MAX_RANK]); /* of the actual batch; returns their product */
void ref_strides(int rank, const int64_t *ext, int64_t *stride);
const char *ref_fail(RefCtx *cx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ref_bytes_in(DType t, const void *bytes, int64_t n, double *f);   /* memory of dtype t to double */
void ref_bytes_out(DType t, const double *f, int64_t n, void *bytes);

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
