/* shape_comm.c: shape rules of what shards of a batch exchange.
 *
 * In: numbers of which each shard has as many, whatever its batch.   Out: as many. An axis that follows the batch is an
 * error: that of a shard is no longer that of a batch. */
#include "shape.h"

static const char *
shared(Graph *g, Op *op, int *which, int k)
{
	const Type *x = in_type(g, op, k);
	const char *error = shape_float(g, op, which, k);

	for (int i = 0; !error && i < x->rank; i++)
		if (x->axis[i].mul)
			error = shape_fail(g, which, k, "axis %d of %s follows the batch: shards have their own", i,
			                   type_text(g, x));
	return error;
}

const char *
shape_all_reduce(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	Type t = type_of((DType)x->dtype, x->rank, x->axis);
	const char *error = shared(g, op, which, 0);

	return error ? error : shape_result(g, op, 0, &t);
}

const char *
shape_all_moments(Graph *g, Op *op, int *which)
{
	const Type *mean = in_type(g, op, 0), *var = in_type(g, op, 1);
	Type t = type_of((DType)mean->dtype, mean->rank, mean->axis);
	const char *error = shared(g, op, which, 0);

	if (error || (error = shared(g, op, which, 1)))
		return error;
	if (mean->dtype != var->dtype || !type_same_shape(mean, var))
		return shape_fail(g, which, 1, "variance is %s, mean %s: they must agree", type_text(g, var),
		                  type_text(g, mean));
	if (attr_int(op, A_shards) < 1)
		return shape_fail(g, which, -1, "shards is %lld, needs at least 1", (long long)attr_int(op, A_shards));
	return (error = shape_result(g, op, 0, &t)) ? error : shape_result(g, op, 1, &t);
}
