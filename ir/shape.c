/* shape.c: shape rules of state, constants, casts and checks, and the helpers that all shape rules share.
 *
 * In: an op with its inputs' types and attributes.  Out: result types, or a message that names the numbers and axes of
 * both sides. Extents are those of the full batch; a mark (Axis.mul / div) says how an axis follows the run-time batch
 * and is carried through; where it cannot be, the graph becomes full_only with a reason instead of an error.
 * Refuses: tensors without elements, above MAX_ELEMENTS, above MAX_RANK. */
#include "shape.h"

const char *
shape_fail(Graph *g, int *which, int k, const char *fmt, ...)
{
	va_list ap;
	char *s;

	va_start(ap, fmt);
	s = arena_vprintf(g->arena, fmt, ap);
	va_end(ap);
	if (which)
		*which = k;
	return s;
}

const char *
shape_text(Graph *g, const Type *t)
{
	char *s = arena_strdup(g->arena, "[");

	for (int i = 0; i < t->rank; i++)
		s = arena_printf(g->arena, "%s%s%lld", s, i ? "," : "", (long long)t->axis[i].n);
	return arena_printf(g->arena, "%s]", s);
}

const char *
type_text(Graph *g, const Type *t)
{
	return arena_printf(g->arena, "%s%s", dtype_info[t->dtype].name, shape_text(g, t));
}

static const char *
size_error(Graph *g, const Type *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++) {
		if (t->axis[i].n < 1)
			return shape_fail(g, NULL, -1, "result %s would have no elements: axis %d has extent %lld",
			                  shape_text(g, t), i, (long long)t->axis[i].n);
		if (!mul_i64(n, t->axis[i].n, &n) || n > MAX_ELEMENTS)
			return shape_fail(g, NULL, -1, "result %s has more than %lld elements", shape_text(g, t),
			                  (long long)MAX_ELEMENTS);
	}
	return NULL;
}

/* An extent of N/2 is a whole number only where n is a multiple of 2. */
static void
need_multiple(Graph *g, const Op *op, const Type *t)
{
	for (int i = 0; i < t->rank; i++) {
		Axis a = t->axis[i];
		int64_t div = a.mul > 0 ? a.div / gcd_i64(a.mul, a.div) : 1,
			common = g->multiple / gcd_i64(g->multiple, div);

		if (g->multiple % div == 0)
			continue;
		if (!mul_i64(common, div, &g->multiple))
			shape_full_only(g, op, "its shape %s is whole for no smaller batch", shape_text(g, t));
		g->multiple_loc = op->loc;
	}
}

void
graph_multiple(Graph *g)
{
	g->multiple = 1;
	g->multiple_loc = (Loc){0};
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && k < op->nout; k++)
			need_multiple(g, op, val_type(g, op->out[k]));
	}
}

const char *
shape_declared(Graph *g, const Op *op, int *which)
{
	const Type *r = val_type(g, op->out[0]);

	need_multiple(g, op, r);
	return r->dtype == DT_none ? shape_fail(g, which, -1, "needs a result type") : size_error(g, r);
}

static bool
same_marks(const Type *a, const Type *b)
{
	for (int i = 0; i < a->rank; i++)
		if (!axis_same(a->axis[i], b->axis[i]))
			return false;
	return true;
}

const char *
shape_result(Graph *g, Op *op, int k, const Type *t)
{
	const char *error = size_error(g, t);
	Type *r;

	if (error)
		return error;
	if (k >= op->nout)
		return shape_fail(g, NULL, -1, "has %d results, needs more than %d", op->nout, k);
	r = &val_info(g, op->out[k])->type;
	need_multiple(g, op, r->dtype == DT_none ? t : r);
	if (r->dtype == DT_none) {
		*r = *t;
		return NULL;
	}
	if (r->dtype != t->dtype || r->rank != t->rank || !type_same_shape(r, t))
		return shape_fail(g, NULL, -1, "result %d is declared %s, its inputs make %s", k, type_text(g, r),
		                  type_text(g, t));
	if (!same_marks(r, t) && !g->full_only)
		return shape_fail(g, NULL, -1,
		                  "result %d is declared %s, but its inputs follow the batch in another way", k,
		                  type_text(g, r));
	return NULL;
}

void
shape_full_only(Graph *g, const Op *op, const char *fmt, ...)
{
	va_list ap;

	if (g->full_only)
		return;
	va_start(ap, fmt);
	g->full_only = true;
	g->full_loc = op->loc;
	g->full_why = arena_printf(g->arena, "%s: %s", op_info[op->kind].name, arena_vprintf(g->arena, fmt, ap));
	va_end(ap);
}

bool
shape_unify(Graph *g, const Op *op, Axis a, Axis b, Axis *out)
{
	*out = a.mul ? a : b;
	if (a.n != b.n)
		return false;
	if (!axis_same(a, b))
		shape_full_only(g, op, "an axis of extent %lld that follows the batch meets one that does not",
		                (long long)a.n);
	return true;
}

const char *
shape_count(Graph *g, const Op *op, int *which, int want)
{
	return op->nin == want ? NULL : shape_fail(g, which, -1, "has %d inputs, needs %d", op->nin, want);
}

const char *
shape_rank(Graph *g, const Op *op, int *which, int k, int rank, const char *axes)
{
	const Type *t = in_type(g, op, k);

	if (t->rank == rank)
		return NULL;
	return shape_fail(g, which, k, "%s has %d %s %s, needs %d %s",
	                  k == 0 ? "input" : arena_printf(g->arena, "operand %d", k + 1), t->rank,
	                  t->rank == 1 ? "axis" : "axes", shape_text(g, t), rank, axes);
}

const char *
shape_float(Graph *g, const Op *op, int *which, int k)
{
	const Type *t = in_type(g, op, k);

	return dtype_is_float(t->dtype) ? NULL
	       : shape_fail(g, which, k, "input is %s, needs a floating type: use cast", type_text(g, t));
}

const char *
shape_integer(Graph *g, const Op *op, int *which, int k, const char *what)
{
	const Type *t = in_type(g, op, k);

	return dtype_is_int(t->dtype) ? NULL
	       : shape_fail(g, which, k, "%s is %s, needs an integer type: use cast", what, type_text(g, t));
}

const char *
shape_one_dtype(Graph *g, const Op *op, int *which, int k, int from, int to)
{
	const Type *t = in_type(g, op, k);

	for (int i = from; i < to; i++)
		if (in_type(g, op, i)->dtype != t->dtype)
			return shape_fail(g, which, i, "operand %d is %s, operand %d is %s: use cast", k + 1,
			                  type_text(g, t), i + 1, type_text(g, in_type(g, op, i)));
	return NULL;
}

const char *
shape_axis(Graph *g, const Op *op, int *which, const Type *t, int *out)
{
	int64_t ax = attr_int(op, A_axis);

	*out = (int)ax;
	return ax >= 0 && ax < t->rank
	               ? NULL
	               : shape_fail(g, which, 0, "axis %lld is out of range for %d %s %s", (long long)ax, t->rank,
	                            t->rank == 1 ? "axis" : "axes", shape_text(g, t));
}

const char *
shape_pair(Graph *g, const Op *op, int *which, AttrName name, int64_t low, int64_t out[2])
{
	int n;
	const int64_t *list = attr_ints(op, name, &n);

	if (n != 2)
		return shape_fail(g, which, -1, "%s has %d numbers, needs 2", attr_names[name].name, n);
	for (int i = 0; i < 2; i++) {
		if (list[i] < low || list[i] > MAX_ELEMENTS)
			return shape_fail(g, which, -1, "%s is %lld, needs at least %lld", attr_names[name].name,
			                  (long long)list[i], (long long)low);
		out[i] = list[i];
	}
	return NULL;
}

/* ---------------------------------------------------------------- state */
static State *
state_of(Graph *g, const Op *op)
{
	return module_state(g->module, attr_str(op, A_state));
}

const char *
shape_load(Graph *g, Op *op, int *which)
{
	const State *s = state_of(g, op);
	Type t;

	if (!s)
		return shape_fail(g, which, -1, "there is no state line \"%s\"", attr_str(op, A_state));
	t = type_of((DType)s->type.dtype, s->type.rank, s->type.axis);
	return shape_result(g, op, 0, &t);
}

const char *
shape_store(Graph *g, Op *op, int *which)
{
	const State *s = state_of(g, op);
	const Type *t = in_type(g, op, 0);

	if (!s)
		return shape_fail(g, which, -1, "there is no state line \"%s\"", attr_str(op, A_state));
	if (op->kind == OP_store ? s->type.dtype != t->dtype : !dtype_is_float(t->dtype))
		return shape_fail(g, which, 0, "input is %s, state \"%s\" is %s", type_text(g, t), s->name,
		                  type_text(g, &s->type));
	if (t->rank != s->type.rank || !type_same_shape(t, &s->type))
		return shape_fail(g, which, 0, "input is %s, state \"%s\" is %s", type_text(g, t), s->name,
		                  type_text(g, &s->type));
	return NULL;
}

/* ---------------------------------------------------------------- the same type */
const char *
shape_same(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	Type t = type_of((DType)x->dtype, x->rank, x->axis);

	(void)which;
	return shape_result(g, op, 0, &t);
}

/* The same type; attribute axis is one of its axes. */
const char *
shape_same_axis(Graph *g, Op *op, int *which)
{
	const char *error;
	int ax;

	if ((error = shape_axis(g, op, which, in_type(g, op, 0), &ax)))
		return error;
	return shape_same(g, op, which);
}

const char *
shape_interleave(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	const char *error;
	int ax;

	if ((error = shape_axis(g, op, which, x, &ax)))
		return error;
	if (x->axis[ax].mul)
		return "axis is the batch: its extent must be known";
	if (attr_int(op, A_groups) < 1 || x->axis[ax].n % attr_int(op, A_groups))
		return "groups do not divide the axis";
	return shape_same(g, op, which);
}

const char *
shape_cast(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	const Type *r = val_type(g, op->out[0]);
	Type t = type_of((DType)r->dtype, x->rank, x->axis);
	const char *error = shape_declared(g, op, which);

	if (error)
		return error;
	return shape_result(g, op, 0, &t);
}

const char *
shape_check(Graph *g, Op *op, int *which)
{
	if (attr_int(op, A_limit) < 1)
		return shape_fail(g, which, -1, "limit is %lld, needs at least 1", (long long)attr_int(op, A_limit));
	if (attr_int(op, A_mul) < 0 || attr_int(op, A_mul) > INT32_MAX || attr_int(op, A_div) < 1
	    || attr_int(op, A_div) > INT32_MAX)
		return shape_fail(g, which, -1, "the limit cannot follow the batch as N * %lld / %lld",
		                  (long long)attr_int(op, A_mul), (long long)attr_int(op, A_div));
	return shape_integer(g, op, which, 0, "input");
}

/* ---------------------------------------------------------------- result types that the builder gives */
const char *
shape_given(Graph *g, Op *op, int *which)
{
	return shape_declared(g, op, which);
}

const char *
shape_iota(Graph *g, Op *op, int *which)
{
	const Type *r = val_type(g, op->out[0]);
	const char *error = shape_declared(g, op, which);
	int ax;

	if (error)
		return error;
	if (!dtype_is_float((DType)r->dtype) && !dtype_is_int((DType)r->dtype))
		return shape_fail(g, which, -1, "result is %s, needs a number type", type_text(g, r));
	return shape_axis(g, op, which, r, &ax);
}

const char *
shape_random(Graph *g, Op *op, int *which)
{
	const Type *r = val_type(g, op->out[0]);
	const char *error = shape_declared(g, op, which);

	if (error)
		return error;
	for (int k = 0; k < 2; k++) {
		const Type *t = in_type(g, op, k);

		if (t->dtype != DT_i64 || t->rank != 0)
			return shape_fail(g, which, k, "%s is %s, needs i64[]", k ? "step" : "seed", type_text(g, t));
	}
	return dtype_is_float((DType)r->dtype) || r->dtype == DT_i64 ? NULL
	       : shape_fail(g, which, -1, "result is %s, needs a floating type or i64", type_text(g, r));
}

/* (g, index): the result has the shape of what was gathered from, so index must be able to gather from it. */
const char *
shape_gather_dx(Graph *g, Op *op, int *which)
{
	const Type *d = in_type(g, op, 0), *index = in_type(g, op, 1), *r = val_type(g, op->out[0]);
	const char *error;
	int ax;

	if ((error = shape_declared(g, op, which)) || (error = shape_integer(g, op, which, 1, "index")) ||
	    (error = shape_axis(g, op, which, r, &ax)))
		return error;
	if (d->rank != index->rank || !type_same_shape(d, index) || d->rank != r->rank || d->dtype != r->dtype)
		return shape_fail(g, which, 1, "gradient is %s, index %s, result %s", type_text(g, d),
		                  type_text(g, index), type_text(g, r));
	for (int i = 0; i < r->rank; i++)
		if (i != ax && index->axis[i].n > r->axis[i].n)
			return shape_fail(g, which, 1, "axis %d of index has extent %lld, the result's has %lld", i,
			                  (long long)index->axis[i].n, (long long)r->axis[i].n);
	return NULL;
}

/* Operand k: slices of something like r, as many as operand k + 1 has ids. */
static const char *
shape_slices(Graph *g, Op *op, int *which, int k, const Type *r)
{
	const Type *d = in_type(g, op, k), *ids = in_type(g, op, k + 1);
	const char *error;
	int ax;
	bool good;

	if ((error = shape_integer(g, op, which, k + 1, "ids")) || (error = shape_axis(g, op, which, r, &ax)))
		return error;
	good = d->dtype == r->dtype && d->rank == r->rank - 1 + ids->rank;
	for (int i = 0; good && i < d->rank; i++) {
		int64_t want = i < ax               ? r->axis[i].n
		               : i < ax + ids->rank ? ids->axis[i - ax].n
		                                    : r->axis[i - ids->rank + 1].n;

		good = d->axis[i].n == want;
	}
	return good ? NULL
	            : shape_fail(g, which, k, "gradient is %s, ids %s, result %s along axis %d", type_text(g, d),
	                         type_text(g, ids), type_text(g, r), ax);
}

const char *
shape_take_dx(Graph *g, Op *op, int *which)
{
	const char *error = shape_declared(g, op, which);

	return error ? error : shape_slices(g, op, which, 0, val_type(g, op->out[0]));
}

const char *
shape_take_add(Graph *g, Op *op, int *which)
{
	const char *error = shape_same(g, op, which);

	return error ? error : shape_slices(g, op, which, 1, in_type(g, op, 0));
}

/* Loops hold run-time machinery; their values' types come with them. */
const char *
shape_loop(Graph *g, Op *op, int *which)
{
	(void)g, (void)op, (void)which;
	return NULL;
}

/* ---------------------------------------------------------------- flops */
double
flops_made(const Graph *g, const Op *op)
{
	double n = 0;

	for (int k = 0; k < op->nout; k++)
		n += (double)type_elements(val_type(g, op->out[k]));
	return n;
}

double
flops_read(const Graph *g, const Op *op)
{
	return (double)type_elements(val_type(g, op->in[0]));
}

double
op_flops(const Graph *g, const Op *op)
{
	FlopsRule *rule = op_info[op->kind].flops;

	return rule ? rule(g, op) : 0;
}
