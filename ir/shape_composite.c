/* shape_composite.c: shape rules of attention, lstm and gru, of their recurrences and of their gradient ops.
 *
 * In: operands in the order of ops.def's doc lines.  Out: result types; the batch axis keeps its mark, leading axes of
 * attention broadcast. Optional operands (mask, length, seed and step) are counted from the attributes. */
#include "shape.h"

/* ---------------------------------------------------------------- attention */
/* Operands from q on: their number, and the messages of what does not agree. lead: of the result y. */
static const char *
attention_agree(Graph *g, Op *op, int *which, int first, int fixed, Type *y, Type *scores)
{
	bool has_mask = attr_bool(op, A_has_mask), random = attr_num(op, A_p) > 0, wide = attr_bool(op, A_wide);
	int at = fixed, mask = has_mask ? at++ : -1, want = at + (random ? 2 : 0);
	double p = attr_num(op, A_p);
	const Type *q, *k, *v;
	Type lead[3], t;
	const char *error;
	Axis width;

	if (!(p >= 0 && p <= 1))
		return shape_fail(g, which, -1, "dropout is %g, needs 0..1", p);
	if ((error = shape_count(g, op, which, want)))
		return error;
	for (int i = first; i < first + 3; i++)
		if (in_type(g, op, i)->rank < 2)
			return shape_fail(g, which, i, "%c is %s, needs at least 2 axes", "qkv"[i - first],
			                  type_text(g, in_type(g, op, i)));
	if ((error = shape_float(g, op, which, first)) ||
	    (error = shape_one_dtype(g, op, which, first, first + 1, first + 3)))
		return error;
	q = in_type(g, op, first), k = in_type(g, op, first + 1), v = in_type(g, op, first + 2);
	if (wide && q->dtype != DT_f16 && q->dtype != DT_bf16)
		return shape_fail(g, which, first, "wide sums are of f16 or bf16 products, the operands are %s",
		                  dtype_info[q->dtype].name);
	DType sums = wide ? DT_f32 : (DType)q->dtype;

	if (!shape_unify(g, op, q->axis[q->rank - 1], k->axis[k->rank - 1], &width))
		return shape_fail(g, which, first + 1, "q %s has width %lld, k %s has %lld", shape_text(g, q),
		                  (long long)q->axis[q->rank - 1].n, shape_text(g, k),
		                  (long long)k->axis[k->rank - 1].n);
	if (!shape_unify(g, op, k->axis[k->rank - 2], v->axis[v->rank - 2], &width))
		return shape_fail(g, which, first + 2, "k %s has %lld keys, v %s has %lld", shape_text(g, k),
		                  (long long)k->axis[k->rank - 2].n, shape_text(g, v),
		                  (long long)v->axis[v->rank - 2].n);
	for (int i = 0; i < 3; i++) {
		const Type *x = in_type(g, op, first + i);

		lead[i] = type_of((DType)x->dtype, x->rank - 2, x->axis);
	}
	if ((error = broadcast_axes(g, 2, (const Type *[]){&lead[0], &lead[1]}, &t)))
		return shape_fail(g, which, first + 1, "leading axes of q %s and k %s: %s", shape_text(g, q),
		                  shape_text(g, k), error);
	*scores = t;
	scores->axis[t.rank] = q->axis[q->rank - 2];
	scores->axis[t.rank + 1] = k->axis[k->rank - 2];
	*scores = type_of(sums, t.rank + 2, scores->axis);
	if ((error = broadcast_axes(g, 2, (const Type *[]){&t, &lead[2]}, y)))
		return shape_fail(g, which, first + 2, "leading axes of q %s and v %s: %s", shape_text(g, q),
		                  shape_text(g, v), error);
	y->axis[y->rank] = q->axis[q->rank - 2];
	y->axis[y->rank + 1] = v->axis[v->rank - 1];
	*y = type_of(sums, y->rank + 2, y->axis);
	if (has_mask) {
		const Type *m = in_type(g, op, mask);

		if (m->dtype != DT_bool && m->dtype != sums)
			return shape_fail(g, which, mask, "mask is %s, needs bool or %s", type_text(g, m),
			                  dtype_info[sums].name);
		if ((error = broadcast_axes(g, 2, (const Type *[]){scores, m}, &t)) || t.rank != scores->rank ||
		    !type_same_shape(&t, scores))
			return shape_fail(g, which, mask, "mask %s does not broadcast to the scores %s",
			                  shape_text(g, m), shape_text(g, scores));
	}
	return NULL;
}

const char *
shape_attention(Graph *g, Op *op, int *which)
{
	Type y, scores, lse;
	const char *error = attention_agree(g, op, which, 0, 3, &y, &scores);

	if (error)
		return error;
	lse = type_of((DType)scores.dtype, scores.rank - 1, scores.axis);
	error = shape_result(g, op, 0, &y);
	return error ? error : shape_result(g, op, 1, &lse);
}

const char *
shape_attention_dx(Graph *g, Op *op, int *which)
{
	Type y, scores, lse;
	const char *error = attention_agree(g, op, which, 1, 6, &y, &scores);

	if (error)
		return error;
	lse = type_of((DType)scores.dtype, scores.rank - 1, scores.axis);
	y.dtype = in_type(g, op, 1)->dtype; /* as the forward's reader takes it */
	for (int i = 0; i < 3; i++) {
		int k = (int[]){0, 4, 5}[i];
		const Type *t = in_type(g, op, k), *want = k == 5 ? &lse : &y;

		if (t->dtype != want->dtype || t->rank != want->rank || !type_same_shape(t, want))
			return shape_fail(g, which, k, "%s is %s, needs %s",
			                  k == 0   ? "gradient"
			                  : k == 4 ? "y"
			                           : "lse",
			                  type_text(g, t), type_text(g, want));
	}
	for (int i = 0; i < 3; i++) {
		const Type *x = in_type(g, op, 1 + i);
		Type t = type_of((DType)lse.dtype, x->rank, x->axis);

		if ((error = shape_result(g, op, i, &t)))
			return error;
	}
	return NULL;
}

/* ---------------------------------------------------------------- recurrent layers */

static const char *
want_type(Graph *g, const Op *op, int *which, int k, const char *name, const Type *want)
{
	const Type *t = in_type(g, op, k);

	if (t->dtype != want->dtype || t->rank != want->rank || !type_same_shape(t, want))
		return shape_fail(g, which, k, "%s is %s, needs %s", name, type_text(g, t), type_text(g, want));
	for (int i = 0; i < t->rank; i++)
		if (!axis_same(t->axis[i], want->axis[i]))
			shape_full_only(g, op, "%s %s follows the batch in another way than the input", name,
			                shape_text(g, t));
	return NULL;
}

/* Checks operands x .. b_hh, h0 [, c0] from `first` on and gives N, T, C, H. */
static const char *
rnn_agree(Graph *g, Op *op, int *which, int first, int gates, Type *x, int64_t *hidden)
{
	static const char *const name[] = {"x", "w_ih", "w_hh", "b_ih", "b_hh", "h0", "c0"};
	const char *error;
	DType dt;
	int64_t rows;
	Axis n;
	Type want[7];

	*x = *in_type(g, op, first);
	dt = (DType)x->dtype;
	if (x->rank != 3)
		return shape_fail(g, which, first, "input has %d axes %s, needs 3 [N, T, C]", x->rank,
		                  shape_text(g, x));
	if ((error = shape_float(g, op, which, first)))
		return error;
	if (x->axis[1].mul || x->axis[2].mul)
		shape_full_only(g, op, "the steps or the width of %s follow the batch", shape_text(g, x));
	rows = in_type(g, op, first + 1)->axis[0].n;
	if (in_type(g, op, first + 1)->rank != 2 || rows % gates)
		return shape_fail(g, which, first + 1, "w_ih is %s, needs %d rows per unit",
		                  type_text(g, in_type(g, op, first + 1)), gates);
	*hidden = rows / gates;
	n = x->axis[0];
	want[0] = *x;
	want[1] = type_of(dt, 2, (Axis[]){axis(rows), axis(x->axis[2].n)});
	want[2] = type_of(dt, 2, (Axis[]){axis(rows), axis(*hidden)});
	want[3] = want[4] = type_of(dt, 1, (Axis[]){axis(rows)});
	want[5] = want[6] = type_of(dt, 2, (Axis[]){n, axis(*hidden)});
	for (int i = 1; i < (gates == 4 ? 7 : 6); i++)
		if ((error = want_type(g, op, which, first + i, name[i], &want[i])))
			return error;
	return NULL;
}

static const char *
rnn_length(Graph *g, Op *op, int *which, int k, Axis n)
{
	Type want = type_of(DT_i32, 1, &n);

	if (!attr_bool(op, A_has_length))
		return NULL;
	if (dtype_is_int((DType)in_type(g, op, k)->dtype))
		want.dtype = in_type(g, op, k)->dtype;  /* any integer type will do */
	return want_type(g, op, which, k, "length", &want);
}

static const char *
rnn_forward(Graph *g, Op *op, int *which, int gates)
{
	int fixed = gates == 4 ? 7 : 6, lstm = gates == 4;
	const char *error = shape_count(g, op, which, fixed + attr_bool(op, A_has_length));
	Type x, y, h;
	int64_t hidden;

	if (error || (error = rnn_agree(g, op, which, 0, gates, &x, &hidden)) ||
	    (error = rnn_length(g, op, which, fixed, x.axis[0])))
		return error;
	y = type_of((DType)x.dtype, 3, (Axis[]){x.axis[0], x.axis[1], axis(hidden)});
	h = type_of((DType)x.dtype, 2, (Axis[]){x.axis[0], axis(hidden)});
	if ((error = shape_result(g, op, 0, &y)) || (error = shape_result(g, op, 1, lstm ? &y : &h)))
		return error;
	return lstm && ((error = shape_result(g, op, 2, &h)) || (error = shape_result(g, op, 3, &h))) ? error : NULL;
}

static const char *
rnn_backward(Graph *g, Op *op, int *which, int gates)
{
	bool lstm = gates == 4;
	int ng = lstm ? 3 : 2, nx = lstm ? 7 : 6, ny = lstm ? 2 : 1, fixed = ng + nx + ny;
	const char *error = shape_count(g, op, which, fixed + attr_bool(op, A_has_length));
	Type x, y, h;
	int64_t hidden;

	if (error || (error = rnn_agree(g, op, which, ng, gates, &x, &hidden)) ||
	    (error = rnn_length(g, op, which, fixed, x.axis[0])))
		return error;
	y = type_of((DType)x.dtype, 3, (Axis[]){x.axis[0], x.axis[1], axis(hidden)});
	h = type_of((DType)x.dtype, 2, (Axis[]){x.axis[0], axis(hidden)});
	for (int i = 0; i < ng; i++)
		if ((error = want_type(g, op, which, i, "gradient", i ? &h : &y)))
			return error;
	for (int i = 0; i < ny; i++)
		if ((error = want_type(g, op, which, ng + nx + i, i ? "c" : "y", &y)))
			return error;
	for (int i = 0; i < nx; i++) {
		const Type *s = in_type(g, op, ng + i);
		Type t = type_of((DType)s->dtype, s->rank, s->axis);

		if ((error = shape_result(g, op, i, &t)))
			return error;
	}
	return NULL;
}

const char *
shape_lstm(Graph *g, Op *op, int *which)
{
	return rnn_forward(g, op, which, 4);
}

const char *
shape_lstm_dx(Graph *g, Op *op, int *which)
{
	return rnn_backward(g, op, which, 4);
}

const char *
shape_gru(Graph *g, Op *op, int *which)
{
	return rnn_forward(g, op, which, 3);
}

const char *
shape_gru_dx(Graph *g, Op *op, int *which)
{
	return rnn_backward(g, op, which, 3);
}

/* ---------------------------------------------------------------- their recurrences */
/* The extents that all operands share, read from w_hh (operand w, `rows` rows per unit) and the first result's pattern
 * x. Of f32, w_hh may be of 16 bits. */
typedef struct Cells { DType dt, w; Axis n, t; int64_t h; } Cells;

static const char *
cells_of(Graph *g, Op *op, int *which, int x, int blocks, int w, int rows, Cells *c)
{
	const Type *xt = in_type(g, op, x), *wt = in_type(g, op, w);
	const char *error;

	if ((error = shape_float(g, op, which, x)))
		return error;
	if (xt->rank != 3)
		return shape_fail(g, which, x, "it has %d axes %s, needs 3 [N, T, %d H]", xt->rank, shape_text(g, xt),
		                  blocks);
	if (wt->rank != 2 || wt->axis[0].n != rows * wt->axis[1].n)
		return shape_fail(g, which, w, "w_hh is %s, needs %d rows per column", type_text(g, wt), rows);
	if (xt->axis[1].mul || xt->axis[2].mul)
		shape_full_only(g, op, "the steps or the width of %s follow the batch", shape_text(g, xt));
	*c = (Cells){.dt = (DType)xt->dtype, .n = xt->axis[0], .t = xt->axis[1], .h = wt->axis[1].n};
	c->w = c->dt == DT_f32 && (wt->dtype == DT_bf16 || wt->dtype == DT_f16) ? (DType)wt->dtype : c->dt;
	return NULL;
}

/* [N,T,blocks H], or [N,H] for blocks 0. */
static Type
cells_type(const Cells *c, int blocks)
{
	if (blocks)
		return type_of(c->dt, 3, (Axis[]){c->n, c->t, axis(blocks * c->h)});
	return type_of(c->dt, 2, (Axis[]){c->n, axis(c->h)});
}

/* An operand: its name, and blocks as above; W, B: the weights and their bias, of `rows` rows per unit. */
enum { CELLS_W = -1, CELLS_B = -2 };
typedef struct CellsOperand { const char *name; int blocks; } CellsOperand;

static const char *
cells_shape(Graph *g, Op *op, int *which, const CellsOperand *in, int nin, int rows, const int *out)
{
	const char *error = shape_count(g, op, which, nin + attr_bool(op, A_has_length));
	int x = 0, w = 0;
	Cells c = {0};

	if (error)
		return error;
	for (int k = 0; k < nin; k++) {
		x = in[k].blocks > in[x].blocks ? k : x;
		w = in[k].blocks == CELLS_W ? k : w;
	}
	if ((error = cells_of(g, op, which, x, in[x].blocks, w, rows, &c)))
		return error;
	for (int k = 0; k < nin; k++) {
		Type want = in[k].blocks >= 0         ? cells_type(&c, in[k].blocks)
		            : in[k].blocks == CELLS_W ? type_of(c.w, 2, (Axis[]){axis(rows * c.h), axis(c.h)})
		                                      : type_of(c.dt, 1, (Axis[]){axis(rows * c.h)});

		if ((error = want_type(g, op, which, k, in[k].name, &want)))
			return error;
	}
	if ((error = rnn_length(g, op, which, nin, c.n)))
		return error;
	for (int k = 0; k < op->nout; k++) {
		Type t = cells_type(&c, out[k]);

		if ((error = shape_result(g, op, k, &t)))
			return error;
	}
	return NULL;
}

const char *
shape_lstm_cells(Graph *g, Op *op, int *which)
{
	static const CellsOperand in[] = {{"gx", 4}, {"w_hh", CELLS_W}, {"h0", 0}, {"c0", 0}};

	return cells_shape(g, op, which, in, 4, 4, (const int[]){1, 1, 4, 0, 0});
}

const char *
shape_lstm_cells_dx(Graph *g, Op *op, int *which)
{
	static const CellsOperand in[] = {{"gradient", 1}, {"gradient", 0},   {"gradient", 0}, {"gates", 4},
	                                  {"c", 1},        {"w_hh", CELLS_W}, {"c0", 0}};

	return cells_shape(g, op, which, in, 7, 4, (const int[]){4, 0, 0});
}

const char *
shape_gru_cells(Graph *g, Op *op, int *which)
{
	static const CellsOperand in[] = {{"gx", 3}, {"w_hh", CELLS_W}, {"b_hh", CELLS_B}, {"h0", 0}};

	return cells_shape(g, op, which, in, 4, 3, (const int[]){1, 4, 0});
}

const char *
shape_gru_cells_dx(Graph *g, Op *op, int *which)
{
	static const CellsOperand in[] = {{"gradient", 1}, {"gradient", 0},   {"gates", 4},
	                                  {"y", 1},        {"w_hh", CELLS_W}, {"h0", 0}};

	return cells_shape(g, op, which, in, 6, 3, (const int[]){3, 3, 0});
}

/* ---------------------------------------------------------------- flops: of the matrix products, as for
 * contractions */
double
flops_attention(const Graph *g, const Op *op)
{
	bool backward = op->kind == OP_attention_dx;
	const Type *q = val_type(g, op->in[backward]), *k = val_type(g, op->in[backward + 1]),
	           *v = val_type(g, op->in[backward + 2]);
	double d = (double)q->axis[q->rank - 1].n, e = (double)v->axis[v->rank - 1].n,
	       s = (double)k->axis[k->rank - 2].n;
	double rows = d > 0 ? (double)type_elements(q) / d : 0;

	/* forward q k^T and p v; backward the scores again, g v^T, p^T g, and the products for q and k */
	return 2 * rows * s * (backward ? 3 * d + 2 * e : d + e);
}

double
flops_rnn(const Graph *g, const Op *op)
{
	int x = op->kind == OP_lstm_dx ? 3 : op->kind == OP_gru_dx ? 2 : 0;
	const Type *t = val_type(g, op->in[x]);
	double weights =
	        (double)(type_elements(val_type(g, op->in[x + 1])) + type_elements(val_type(g, op->in[x + 2])));

	/* backward the gates again, the products for x and h, and those for the weights */
	return 2 * (double)t->axis[0].n * (double)t->axis[1].n * weights * (x ? 3 : 1);
}

double
flops_cells(const Graph *g, const Op *op)
{
	int w = op->kind == OP_lstm_cells_dx ? 5 : op->kind == OP_gru_cells_dx ? 4 : 1;
	const Type *x = val_type(g, op->in[op->kind == OP_lstm_cells || op->kind == OP_gru_cells ? 0 : w - 2]);

	/* one product with W_hh a step */
	return 2 * (double)x->axis[0].n * (double)x->axis[1].n * (double)type_elements(val_type(g, op->in[w]));
}
