/* ref_comm.c: reference evaluation of what shards of a batch exchange, of one shard alone. With several, whoever runs
 * them puts the joined values in the results' place (codegen/ref/ref.c). */
#include "ref.h"
#include <string.h>

const char *
ref_all_moments(RefCtx *cx, const Op *op)
{
	for (int k = 0; k < 2; k++) {
		const RefTensor *x = ref_in(cx, op, k);

		memcpy(ref_cells(ref_out(cx, op, k)), ref_cells(x), (size_t)x->n * REF_CELL);
	}
	return NULL;
}
