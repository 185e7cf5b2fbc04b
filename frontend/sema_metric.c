/* sema_metric.c: metrics of a whole data set, put together from its batches.
 *
 * In: graph eval with its metrics, each computed from one batch.   Out: a metric that is an average over examples (a
 * mean over them, what is linear in such means, or a loss or accuracy of the language) stays as it is, and the
 * runtime averages it, weighted by examples. Any other, and a loss over the labels that count, is rewritten: sums over
 * examples are added up in states from
 * batch to batch (kind `sum`, in f64), and the rest is computed from them, so that the result, of kind `whole`, is
 * the value on all examples so far; that of the last batch counts. sqrt(mean(square(y - p))) becomes the root of a
 * sum over a number; sum(x) the sum over the set; max(x) its maximum. What keeps an axis of examples is computed
 * within its batch, also where examples meet each other there (attention over N, a running sum along N).
 *
 * A value is a sum of terms each x whole: `each` belongs to examples, `whole` to the set. A product, a square or a
 * difference of such sums is one again, and a sum over examples takes `whole` out: sum((y - m)^2), m the mean, is
 * sum(y^2) - 2 m sum(y) + n m^2. Its terms would nearly cancel, so that y - m is first written (y - c) - (m - c), c
 * the first batch's mean of y, in a state. What is no such sum (an exponential of both, a softmax over examples)
 * cannot be put together: the result is of kind `batch`, and the graph says why (Graph.one_batch); it is right for a
 * data set of one batch and has no value for more. In a graph that takes whole batches only (full_only) an axis of
 * examples may have been lost; there such a metric stays an average. A vector or matrix (kind `table`) is always made
 * from sums. */
#include "sema_local.h"

#include <string.h>

typedef struct Term { Val each, whole; } Term;   /* a product; NOVAL: 1 */
enum { MAX_TERMS = 32 };
typedef enum Knows {
	FIXED = 1,    /* the same in every batch */
	PURE = 2,     /* it has an axis of examples, and nothing in it was summed over all of them */
	MEAN = 4,     /* an average over examples, or linear in such */
	NEEDED = 8,   /* a metric that is no average is made of it */
	FAILED = 16,
	COUNTED = 32, /* made of an average over what counts in each batch */
} Knows;
typedef struct Form { Term *term; int n; } Form;
typedef struct Metrics {
	Sema *s;
	Graph *g;
	Build *b;
	uint8_t *knows;          /* by Val.id, of the graph as it was */
	Form *form;              /* likewise */
	uint32_t nval, nop;
	Val first, count;        /* is this the first batch? examples so far, f64 */
	Val *anchor;             /* by Val.id: its mean over the first batch's examples, f64, the axis kept */
	VEC(Val) sum; VEC(const char *) sum_name;
	const Op **failed;       /* by Val.id: what in it cannot be put together */
} Metrics;

/* ---------------------------------------------------------------- what is known of the values as they stand */
static bool
every(const Metrics *m, const Op *op, uint8_t what)
{
	bool all = true;

	for (int k = 0; k < op->nin; k++)
		all &= (m->knows[op->in[k].id] & what) != 0;
	return all;
}

static bool
marked(const Metrics *m, Val v)
{
	return type_marked(val_type(m->g, v));
}

static bool
is_mean(const Metrics *m, const Op *op)
{
	uint8_t a = op->nin > 0 ? m->knows[op->in[0].id] : 0, b = op->nin > 1 ? m->knows[op->in[1].id] : 0;

	switch (op->kind) {
	case OP_mean:
		return (a & PURE) || ((a & MEAN) && !marked(m, op->in[0]));
	case OP_sum: case OP_neg: case OP_reshape: case OP_transpose: case OP_expand: case OP_slice: case OP_reverse:
	case OP_stop_gradient:
		return (a & MEAN) && !marked(m, op->in[0]);
	case OP_cast:
		return (a & MEAN) && dtype_is_float((DType)val_type(m->g, op->in[0])->dtype)
			&& dtype_is_float((DType)val_type(m->g, op->out[0])->dtype);
	case OP_add: case OP_sub:
		return (a & MEAN) && (b & MEAN);
	case OP_mul:
		return ((a & MEAN) && (b & FIXED)) || ((a & FIXED) && (b & MEAN));
	case OP_div:
		return (a & MEAN) && (b & FIXED);
	default:
		return false;
	}
}

/* What a loss or an accuracy of the language gave; NULL: v is none. */
static const Average *
average_of(const Metrics *m, Val v)
{
	for (uint32_t i = 0; i < m->s->average.n; i++)
		if (m->s->average.at[i].v.id == v.id)
			return &m->s->average.at[i];
	return NULL;
}

/* A loss or an accuracy of values that belong to examples, and counts by them. */
static bool
is_average(const Metrics *m, Val v)
{
	const Average *a = average_of(m, v);
	bool all = true, any = false;

	for (int k = 0; a && !a->counted && k < a->narg; k++) {
		all &= (m->knows[a->arg[k].id] & (FIXED | PURE)) != 0;
		any |= (m->knows[a->arg[k].id] & PURE) != 0;
	}
	return all && any;
}

static void
learn(Metrics *m)
{
	for (uint32_t k = 0; k < m->g->input.n; k++)
		if (marked(m, m->g->input.at[k].v))
			m->knows[m->g->input.at[k].v.id] = PURE;
	for (uint32_t i = 0; i < m->nop; i++) {
		const Op *op = &m->g->op.at[i];
		bool random = op_has((OpKind)op->kind, T_RANDOM);
		bool fixed = (op->kind == OP_load || op->nin || op_has((OpKind)op->kind, T_CONST))
			&& !random && !op_has((OpKind)op->kind, T_EFFECT) && every(m, op, FIXED);
		bool pure = random || every(m, op, FIXED | PURE), mean = random || is_mean(m, op), counted = false;

		for (int k = 0; k < op->nin; k++)
			counted |= (m->knows[op->in[k].id] & COUNTED) != 0;

		for (int k = 0; k < op->nout; k++) {
			Val v = op->out[k];

			if (marked(m, v))
				m->knows[v.id] |= pure ? PURE : 0;
			else
				m->knows[v.id] |= fixed ? FIXED | MEAN : mean || is_average(m, v) ? MEAN : 0;
			if (counted || (average_of(m, v) && average_of(m, v)->counted))
				m->knows[v.id] |= COUNTED;
		}
	}
}

/* ---------------------------------------------------------------- values of the set */
static bool
is_float(const Metrics *m, Val v)
{
	return dtype_is_float((DType)val_type(m->g, v)->dtype);
}

static Val
wide(Metrics *m, Val v)
{
	return v.id && is_float(m, v) ? build_cast(m->b, v, DT_f64) : v;
}

static Val
times(Metrics *m, Val a, Val b)
{
	return !a.id ? b : !b.id ? a : build(m->b, OP_mul, wide(m, a), wide(m, b));
}

/* part of this batch and what the batches before it made, by `how`: OP_add, OP_maximum, OP_minimum; OP_none: the
 * first batch's stays. */
static Val
carried(Metrics *m, Val part, OpKind how)
{
	const char *name;
	Type t;
	Val old, all;
	int k = (int)m->sum.n;

	part = wide(m, part);
	t = *val_type(m->g, part);
	do
		name = arena_printf(m->s->module->arena, "metrics.sum%d", k++);
	while (module_state(m->s->module, name));
	State *s = module_add_state(m->s->module, name, type_of((DType)t.dtype, t.rank, t.axis), ST_SUM);
	s->init = INIT_CONSTANT;
	s->loc = m->b->loc;
	vec_push(m->s->arena, &m->s->state, (StateExtra){.loc = m->b->loc});
	old = build_load(m->b, name);
	if (!m->first.id) {
		Val step = graph_need_input(m->g, IN_STEP);

		m->first = build(m->b, OP_eq, step, build_const(m->b, (DType)val_type(m->g, step)->dtype, 0));
	}
	all = build(m->b, OP_where, m->first, part, how == OP_none ? old : build(m->b, how, old, part));
	vec_push(m->s->arena, &m->sum, all);
	vec_push(m->s->arena, &m->sum_name, name);
	return all;
}

/* The sum of v over its axis of examples, which stays with extent 1, if it has one such axis; NOVAL otherwise. */
static Val
over_examples(Metrics *m, Val v)
{
	const Type *t = val_type(m->g, v);
	int64_t axis = -1;

	for (int i = 0; i < t->rank; i++) {
		if (t->axis[i].mul && axis >= 0)
			return NOVAL;
		if (t->axis[i].mul)
			axis = i;
	}
	return axis < 0 ? NOVAL : build_reduce(m->b, OP_sum, wide(m, v), &axis, 1, true);
}

static Val
examples(Metrics *m)
{
	if (!m->count.id) {
		Axis n = {.n = m->s->module->batch, .mul = 1, .div = 1};
		int64_t zero = 0;

		Val ones = build_full(m->b, type_of(DT_f64, 1, &n), 1);

		m->count = carried(m, build_reduce(m->b, OP_sum, ones, &zero, 1, false), OP_add);
	}
	return m->count;
}

/* A value that stands for all batches near v's examples: their mean over the first batch. */
static Val
anchor(Metrics *m, Val v)
{
	const Type *t = val_type(m->g, v);
	int64_t axis = -1;
	Val mean;

	for (int i = 0; i < t->rank; i++)
		if (t->axis[i].mul)
			axis = axis < 0 ? i : MAX_RANK;
	if (v.id >= m->nval || axis < 0 || axis == MAX_RANK || !is_float(m, v))
		return NOVAL;
	if (!m->anchor[v.id].id) {
		mean = build_reduce(m->b, OP_mean, wide(m, v), &axis, 1, true);
		m->anchor[v.id] = carried(m, mean, OP_none);
	}
	return m->anchor[v.id];
}

/* The number of elements along an axis that follows the batch, in the set. */
static Val
extent_of(Metrics *m, Axis a)
{
	Val n = examples(m);

	return a.mul == 1 && a.div == 1 ? n : build(m->b, OP_mul, n, build_const(m->b, DT_f64, (double)a.mul / a.div));
}

/* ---------------------------------------------------------------- sums of products */
static Form
form_one(Metrics *m, Val each, Val whole)
{
	Form f = {.term = arena_array(m->s->arena, Term, 1), .n = 1};

	f.term[0] = (Term){each, whole};
	return f;
}

static bool
form_whole(const Form *f)
{
	return f->n == 1 && !f->term[0].each.id;
}

static bool
form_add(Metrics *m, const Form *x, const Form *y, bool less, Form *out)
{
	if (x->n + y->n > MAX_TERMS)
		return false;
	*out = (Form){.term = arena_array(m->s->arena, Term, (size_t)(x->n + y->n)), .n = x->n + y->n};
	memcpy(out->term, x->term, sizeof(Term) * (size_t)x->n);
	for (int i = 0; i < y->n; i++) {
		Term t = y->term[i];

		if (less)
			t.whole = t.whole.id ? build(m->b, OP_neg, wide(m, t.whole)) : build_const(m->b, DT_f64, -1);
		out->term[x->n + i] = t;
	}
	return true;
}

/* x - y, one of them of examples, the other of the set: both are taken less what is near the examples. */
static bool
form_less(Metrics *m, const Form *x, const Form *y, Form *out)
{
	const Form *each = form_whole(y) ? x : y, *whole = form_whole(y) ? y : x;
	bool plain = each->n == 1 && each->term[0].each.id && !each->term[0].whole.id && form_whole(whole)
		&& whole->term[0].whole.id;
	Val c = plain ? anchor(m, each->term[0].each) : NOVAL;
	Form a, b;

	if (!c.id)
		return form_add(m, x, y, true, out);
	a = form_one(m, build(m->b, OP_sub, wide(m, each->term[0].each), c), NOVAL);
	b = form_one(m, NOVAL, build(m->b, OP_sub, wide(m, whole->term[0].whole), c));
	return form_add(m, each == x ? &a : &b, each == x ? &b : &a, true, out);
}

static bool
form_mul(Metrics *m, const Form *x, const Form *y, Form *out)
{
	if (x->n * y->n > MAX_TERMS)
		return false;
	*out = (Form){.term = arena_array(m->s->arena, Term, (size_t)(x->n * y->n)), .n = x->n * y->n};
	for (int i = 0; i < x->n; i++)
		for (int k = 0; k < y->n; k++)
			out->term[i * y->n + k] = (Term){times(m, x->term[i].each, y->term[k].each),
			                                 times(m, x->term[i].whole, y->term[k].whole)};
	return true;
}

static Val
reciprocal(Metrics *m, Val v)
{
	return v.id ? build(m->b, OP_div, build_const(m->b, DT_f64, 1), wide(m, v)) : v;
}

/* ---------------------------------------------------------------- operators */
/* The same operator on values of the set: floats are f64 there. */
static Val
again(Metrics *m, const Op *op, const Val *in)
{
	AttrArg *args = arena_array(m->s->arena, AttrArg, op->nattr + 1u);
	Type t = *val_type(m->g, op->out[0]);
	Val *wides = arena_array(m->s->arena, Val, op->nin);

	for (int k = 0; k < op->nattr; k++) {
		const Attr *a = &op->attr[k];
		AttrKind kind = attr_names[a->name].kind;

		args[k] = (AttrArg){.name = (AttrName)a->name, .kind = kind};
		switch (kind) {
		case AK_NUM:
			args[k].kind = a->is_int ? AK_INT : AK_NUM;
			if (a->is_int)
				args[k].i = a->i;
			else
				args[k].f = a->f;
			break;
		case AK_STR: args[k].s = a->s; break;
		case AK_INTS: args[k].list = a->list; args[k].n = a->n; break;
		default: args[k].i = a->i; break;
		}
	}
	args[op->nattr] = (AttrArg){.name = A_COUNT};
	for (int k = 0; k < op->nin; k++)
		wides[k] = wide(m, in[k]);
	if (dtype_is_float((DType)t.dtype))
		t.dtype = DT_f64;
	bool given = op->kind == OP_reshape || op->kind == OP_expand || op->kind == OP_cast;

	return build_op(m->b, (OpKind)op->kind, wides, op->nin, args, given ? &t : NULL);
}

/* An average over the examples of each batch, of whatever is computed there. */
static Form
weighted(Metrics *m, Val v)
{
	Axis n = {.n = m->s->module->batch, .mul = 1, .div = 1};
	int64_t zero = 0;
	Val here = build_reduce(m->b, OP_sum, build_full(m->b, type_of(DT_f64, 1, &n), 1), &zero, 1, false);

	return form_one(m, NOVAL, build(m->b, OP_div, carried(m, times(m, v, here), OP_add), examples(m)));
}

/* Is it a square of one value? Then no sum of it is below 0, whatever cancels. */
static bool
is_square(const Metrics *m, Val v)
{
	const Op *op = v.id < m->nval ? val_op(m->g, v) : NULL;

	return op && (op->kind == OP_square || (op->kind == OP_mul && op->in[0].id == op->in[1].id));
}

/* One term of a sum over examples, and whatever other axes: `whole` stands outside the sum. NOVAL: it cannot be told
 * apart. */
static Val
reduce_term(Metrics *m, const Op *op, const Term *x, const Type *t, Axis follows)
{
	Axis full[MAX_RANK];
	int n;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	bool keep = attr_bool(op, A_keep);
	Val sum;

	if (x->each.id && type_same_shape(val_type(m->g, x->each), t)
	    && (!x->whole.id || val_type(m->g, x->whole)->rank == 0)) {
		sum = build_reduce(m->b, OP_sum, wide(m, x->each), axes, n, keep);
		return times(m, carried(m, sum, OP_add), x->whole);
	}
	for (int i = 0; i < t->rank; i++)
		full[i] = t->axis[i].mul ? axis(1) : t->axis[i];
	sum = x->each.id ? over_examples(m, x->each) : extent_of(m, follows);
	if (!sum.id)
		return NOVAL;
	sum = times(m, x->each.id ? carried(m, sum, OP_add) : sum, x->whole);
	sum = build_expand(m->b, wide(m, sum), t->rank, full);
	return build_reduce(m->b, OP_sum, sum, axes, n, keep);
}

/* A reduction over examples, and whatever other axes, of a value of one or more terms. */
static bool
reduce(Metrics *m, const Op *op, const Form *x, Form *out)
{
	const Type type = *val_type(m->g, op->in[0]), *t = &type;
	bool one = x->n == 1 && !x->term[0].whole.id && x->term[0].each.id == op->in[0].id, mean = op->kind == OP_mean;
	Axis follows = axis(1);
	int64_t others = 1;
	int n, marks = 0;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	Val total = NOVAL;

	for (int i = 0; i < t->rank; i++)
		if (t->axis[i].mul) {
			follows = t->axis[i];
			marks++;
		}
	for (int i = 0; i < n; i++)
		others *= t->axis[axes[i]].mul ? 1 : t->axis[axes[i]].n;
	if (one && (op->kind == OP_max || op->kind == OP_min)) {
		*out = form_one(m, NOVAL, carried(m, op->out[0], op->kind == OP_max ? OP_maximum : OP_minimum));
		return true;
	}
	if (one && op->kind == OP_sum && (marks != 1 || !is_float(m, op->out[0]))) {
		*out = form_one(m, NOVAL, carried(m, op->out[0], OP_add));
		return true;
	}
	if (one && mean && marks != 1) { /* of pairs of a batch's examples */
		*out = weighted(m, op->out[0]);
		return true;
	}
	if (marks != 1 || x->n < 1 || (op->kind != OP_sum && !mean))
		return false;
	for (int k = 0; k < x->n; k++) {
		bool plain = one || !x->term[k].each.id || is_float(m, x->term[k].each);
		Val sum = plain ? reduce_term(m, op, &x->term[k], t, follows) : NOVAL;

		if (!sum.id)
			return false;
		total = total.id ? build(m->b, OP_add, total, sum) : sum;
	}
	if (is_square(m, op->in[0]))
		total = build(m->b, OP_maximum, total, build_const(m->b, DT_f64, 0));
	if (mean)
		total = build(m->b, OP_div, total,
			build(m->b, OP_mul, extent_of(m, follows), build_const(m->b, DT_f64, (double)others)));
	*out = form_one(m, NOVAL, total);
	return true;
}

/* A value of examples made of sums over them too. */
static bool
spread(Metrics *m, const Op *op, Form *out)
{
	const Form *x = op->nin > 0 ? &m->form[op->in[0].id] : NULL, *y = op->nin > 1 ? &m->form[op->in[1].id] : NULL;

	if (op->nout != 1 || !is_float(m, op->out[0]))
		return false;
	for (int k = 0; k < op->nin; k++)
		if (!is_float(m, op->in[k]))
			return false;
	switch (op->kind) {
	case OP_add: return form_add(m, x, y, false, out);
	case OP_sub: return form_less(m, x, y, out);
	case OP_mul: return form_mul(m, x, y, out);
	case OP_square: return form_mul(m, x, x, out);
	case OP_neg: return form_add(m, &(Form){0}, x, true, out);
	case OP_cast: case OP_stop_gradient:
		*out = *x;
		return true;
	case OP_expand: /* broadcasting does it where it is used */
		*out = *x;
		return form_whole(x);
	case OP_div: {
		Form r;

		if (y->n != 1)
			return false;
		r = form_one(m, reciprocal(m, y->term[0].each), reciprocal(m, y->term[0].whole));
		return form_mul(m, x, &r, out);
	}
	default: return false;
	}
}

static bool
put_together(Metrics *m, const Op *op, Val v, Form *out)
{
	Val *in = arena_array(m->s->arena, Val, op->nin);
	bool whole = op->nout == 1 && !op_has((OpKind)op->kind, T_EFFECT | T_COMPOSITE | T_RANDOM | T_STATE);

	if (m->knows[v.id] & FIXED) {
		*out = form_one(m, NOVAL, wide(m, v));
		return true;
	}
	if (m->knows[v.id] & PURE) {
		*out = form_one(m, v, NOVAL);
		return true;
	}
	if (op_has((OpKind)op->kind, T_RANDOM)) {
		*out = weighted(m, v);
		return true;
	}
	for (int k = 0; k < op->nin; k++) {
		const Form *f = &m->form[op->in[k].id];

		if ((m->knows[op->in[k].id] & FAILED) || !f->n || op->nout != 1)
			return false;
		whole &= form_whole(f);
		in[k] = f->n ? f->term[0].whole : NOVAL;
	}
	if (whole && !marked(m, v)) {
		*out = form_one(m, NOVAL, again(m, op, in));
		return true;
	}
	if (marked(m, v))
		return spread(m, op, out);
	if (op_info[op->kind].red >= 0 && op->nout == 1)
		return reduce(m, op, &m->form[op->in[0].id], out);
	if (op_has((OpKind)op->kind, T_CONTRACT) && every(m, op, FIXED | PURE) && is_float(m, v)) {
		*out = form_one(m, NOVAL, carried(m, v, OP_add)); /* a sum of products over examples */
		return true;
	}
	return false;
}

/* The form of a result that is needed, or that it has none. */
static void
put_result(Metrics *m, const Op *op, int k)
{
	Val v = op->out[k];
	bool good = !is_average(m, v) && put_together(m, op, v, &m->form[v.id]) && !m->b->error;

	m->b->error = NULL;
	if (good)
		return;
	if (average_of(m, v)) {
		m->form[v.id] = weighted(m, v);
		return;
	}
	m->knows[v.id] |= FAILED;
	for (int i = 0; i < op->nin && !m->failed[v.id]; i++)
		m->failed[v.id] = m->failed[op->in[i].id];
	if (!m->failed[v.id])
		m->failed[v.id] = memcpy(arena_array(m->s->arena, Op, 1), op, sizeof *op);
}

/* Forms of all that the metrics need, in the order of the ops. */
static void
put_all(Metrics *m)
{
	for (uint32_t i = m->nop; i-- > 0;) {
		const Op *op = &m->g->op.at[i];
		bool needed = false, ends = false;

		for (int k = 0; k < op->nout; k++) {
			needed |= (m->knows[op->out[k].id] & NEEDED) != 0;
			ends |= (m->knows[op->out[k].id] & (PURE | FIXED)) != 0 || is_average(m, op->out[k]);
		}
		for (int k = 0; needed && !ends && k < op->nin; k++)
			m->knows[op->in[k].id] |= NEEDED;
	}
	for (uint32_t k = 0; k < m->g->input.n; k++)
		if (m->knows[m->g->input.at[k].v.id] & PURE)
			m->form[m->g->input.at[k].v.id] = form_one(m, m->g->input.at[k].v, NOVAL);
	for (uint32_t i = 0; i < m->nop; i++) {
		Op op = m->g->op.at[i];              /* the list grows */

		m->b->loc = op.loc;
		m->b->path = op.path;
		for (int k = 0; k < op.nout; k++)
			if (m->knows[op.out[k].id] & NEEDED)
				put_result(m, &op, k);
	}
}

static Loc
metric_loc(const Sema *s, const char *name)
{
	for (uint32_t k = 0; k < s->metric.n; k++)
		if (!strcmp(s->metric.at[k].name, name))
			return s->metric.at[k].loc;
	return s->model_loc;
}

/* What cannot be put together from batches. */
static void
refuse(Metrics *m, Result *r)
{
	const Op *op = m->failed[r->v.id];

	if (r->kind == RES_TABLE) {
		sema_error(m->s, metric_loc(m->s, r->name),
		           "metric %s needs all examples at once: %s%s%s cannot be put together from sums over batches",
		           r->name, op ? op_info[op->kind].name : "it", op && *op->path ? " of " : "",
		           op ? op->path : "");
		return;
	}
	r->kind = RES_BATCH;
	if (m->g->one_batch)
		return;
	m->g->one_batch = arena_printf(m->g->arena,
		"metric %s needs all examples at once: %s%s%s cannot be put together from sums over batches", r->name,
		op ? op_info[op->kind].name : "it", op && *op->path ? " of " : "", op ? op->path : "");
	m->g->one_batch_loc = op ? op->loc : (Loc){0};
}

void
sema_average(Sema *s, Val v, const Val *arg, int narg, bool counted)
{
	Average a = {.v = v, .narg = narg, .counted = counted};

	memcpy(a.arg, arg, sizeof *arg * (size_t)narg);
	vec_push(s->arena, &s->average, a);
}

/* Is it computed from sums over the batches? Averages that are scalars are the runtime's, and so is any other loss: it
 * is of a batch. */
static bool
is_needed(const Metrics *m, const Result *r)
{
	return r->kind == RES_TABLE || (r->kind == RES_METRIC && !(m->knows[r->v.id] & MEAN))
		|| (r->kind == RES_LOSS && (m->knows[r->v.id] & COUNTED));
}

static void
put_metric(Metrics *m, Result *r)
{
	Val v = r->v;
	bool failed = (m->knows[v.id] & FAILED) || !form_whole(&m->form[v.id]);

	if (failed && !m->g->full_only && r->kind != RES_LOSS) {
		refuse(m, r);
		return;
	}
	if (failed && r->kind != RES_TABLE) /* stays an average */
		return;
	r->v = failed ? weighted(m, v).term[0].whole : m->form[v.id].term[0].whole;
	r->v = build_cast(m->b, r->v, (DType)val_type(m->g, v)->dtype);
	r->kind = r->kind == RES_TABLE ? RES_TABLE : RES_WHOLE;
}

void
sema_metrics(Sema *s)
{
	Graph *g = s->graph;
	Metrics m = {.s = s, .g = g, .b = &s->build, .nval = g->val.n, .nop = g->op.n};
	bool any = false;

	m.anchor = arena_array(s->arena, Val, m.nval);
	m.failed = arena_array(s->arena, const Op *, m.nval);
	m.knows = arena_array(s->arena, uint8_t, m.nval);
	m.form = arena_array(s->arena, Form, m.nval);
	learn(&m);
	for (uint32_t i = 0; i < g->result.n; i++)
		if (is_needed(&m, &g->result.at[i])) {
			m.knows[g->result.at[i].v.id] |= NEEDED;
			any = true;
		}
	if (!any)
		return;
	put_all(&m);
	for (uint32_t i = 0; i < g->result.n; i++)
		if (is_needed(&m, &g->result.at[i]))
			put_metric(&m, &g->result.at[i]);
	for (uint32_t i = 0; i < m.sum.n; i++)
		build_op(m.b, OP_store, &m.sum.at[i], 1, ATTRS(AS(state, m.sum_name.at[i])), NULL);
	if (m.b->error)
		bug("metrics do not build: %s", m.b->error);
}
