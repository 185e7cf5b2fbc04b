/* build.c: making ops. One call fills attributes in, infers and checks result types, names the results.
 *
 * Out: the op at the graph's end, or NOVAL with Build.error; nothing is left behind then, and calls that are handed
 * NOVAL after an error stay silent, so that a chain of calls needs one check at its end. Wrong counts or attributes are
 * bugs. A result is named after its layer's path and operator, so that a line added to a model renames nothing else.
 * Also here: the shape rules of elementwise operators (NumPy broadcasting) and of reductions, one for each table. */
#include "red.h"
#include "shape.h"
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- attributes */

/* A number that is a whole one is kept as an integer, so that 1, 1.0 and 1e0 print and compare alike. */
static void
set_number(Attr *a, double x)
{
	a->is_int = x == floor(x) && fabs(x) <= 9007199254740992.0 && !(x == 0 && signbit(x));
	if (a->is_int)
		a->i = (int64_t)x;
	else
		a->f = x;
}

static void
set_attr(Graph *g, Op *op, Attr *a, const AttrArg *arg)
{
	AttrKind want = attr_names[arg->name].kind;

	if (arg->kind != want && !(want == AK_NUM && arg->kind == AK_INT))
		bug("operator %s: attribute %s given as the wrong kind", op_info[op->kind].name,
		    attr_names[arg->name].name);
	switch (arg->kind) {
	case AK_INT:
	case AK_BOOL:
		a->is_int = want == AK_NUM;
		a->i = arg->kind == AK_BOOL ? arg->i != 0 : arg->i;
		break;
	case AK_NUM: set_number(a, arg->f); break;
	case AK_STR: a->s = intern(g->arena, arg->s); break;
	case AK_INTS:
		a->n = (uint16_t)arg->n;
		a->list = memcpy(arena_array(g->arena, int64_t, arg->n), arg->n ? arg->list : &(int64_t){0},
		                 sizeof(int64_t) * (size_t)arg->n);
		break;
	case AK_NUMS: bug("attribute %s of a kind not in use", attr_names[arg->name].name);
	}
}

static void
sort_numbers(int64_t *at, int n)
{
	for (int i = 1; i < n; i++)
		for (int k = i; k > 0 && at[k] < at[k - 1]; k--) {
			int64_t swap = at[k];

			at[k] = at[k - 1];
			at[k - 1] = swap;
		}
}

static void
fill_attrs(Graph *g, Op *op, const AttrArg *args)
{
	const OpInfo *info = &op_info[op->kind];
	uint32_t given = 0;

	op->nattr = info->nattr;
	op->attr = memcpy(arena_array(g->arena, Attr, info->nattr), info->attr_default, sizeof(Attr) * info->nattr);
	for (; args && args->name != A_COUNT; args++) {
		int i = 0;

		while (i < info->nattr && info->attr_name[i] != args->name)
			i++;
		if (i == info->nattr)
			bug("operator %s has no attribute %s", info->name, attr_names[args->name].name);
		set_attr(g, op, &op->attr[i], args);
		given |= 1u << i;
	}
	if (info->traits & T_REDUCE) /* in one order, so that equal reductions look equal */
		sort_numbers((int64_t *)op->attr[0].list, op->attr[0].n);
	for (int i = 0; i < info->nattr; i++)
		if (info->attr_required[i] && !(given & 1u << i))
			bug("operator %s: attribute %s is missing", info->name, attr_names[info->attr_name[i]].name);
}

/* ---------------------------------------------------------------- ops */

/* "stage0.conv2d0" for its conv2d, "stage0.conv2d0.dx" for conv2d.dx, "stage0.bn0.moments" for another op of the
 * layer. */
static const char *
result_name(const Build *b, OpKind k)
{
	const char *path = b->path ? b->path : "", *op = op_info[k].name;
	const char *label = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
	size_t n = strlen(label);

	if (!*path)
		return op;
	while (n && label[n - 1] >= '0' && label[n - 1] <= '9')
		n--;
	if (n && strncmp(op, label, n) == 0 && (op[n] == 0 || op[n] == '.'))
		return arena_printf(b->g->arena, "%s%s", path, op + n);
	if (n < strlen(label) && strncmp(op, label, strlen(label)) == 0 &&
	    (op[strlen(label)] == 0 || op[strlen(label)] == '.'))
		return arena_printf(b->g->arena, "%s%s", path, op + strlen(label));
	return arena_printf(b->g->arena, "%s.%s", path, op);
}

static void
set_error(Build *b, const char *error, int which)
{
	if (!b->error) {
		b->error = error;
		b->which = which;
	}
}

/* The values are made without names first: a refused op must not use any up. */
static void
push_results(Graph *g, Op *op, const Type *results)
{
	for (int i = 0; i < op->nout; i++) {
		ValInfo v = {.op = g->op.n, .index = (uint16_t)i, .offset = -1};

		if (results)
			v.type = results[i];
		op->out[i] = (Val){g->val.n};
		vec_push(g->arena, &g->val, v);
	}
}

static const char *
check_types(Graph *g, Op *op, int *which)
{
	const char *error = op_info[op->kind].shape(g, op, which);

	for (int i = 0; !error && i < op->nout; i++)
		if (val_type(g, op->out[i])->dtype == DT_none)
			error = "needs a result type";
	return error;
}

/* An op whose attributes stand: its operands are taken over, its results made. */
static const Val *
put_op(Build *b, Op op, const Val *in, const Type *results)
{
	Graph *g = b->g;
	uint32_t nval = g->val.n;
	const char *error, *name;
	int which = -1;

	op.in = memcpy(arena_array(g->arena, Val, op.nin), op.nin ? in : &NOVAL, sizeof(Val) * (size_t)op.nin);
	op.out = arena_array(g->arena, Val, op.nout);
	op.path = intern(g->arena, b->path ? b->path : "");
	push_results(g, &op, results);
	error = check_types(g, &op, &which);
	g->val.n = nval;
	if (error) {
		set_error(b, error, which);
		return NULL;
	}
	name = op.nout ? result_name(b, op.kind) : NULL;
	for (int i = 0; i < op.nout; i++)
		op.out[i] = graph_add_val(g, g->val.at[nval + (uint32_t)i].type, name, g->op.n, i);
	vec_push(g->arena, &g->op, op);
	return op.out;
}

/* False: an operand is missing as an error came before, or the graph is full. */
static bool
may_build(Build *b, const OpInfo *info, const Val *in, int nin)
{
	for (int i = 0; i < nin; i++)
		if (!in[i].id && b->error)
			return false;
		else if (!in[i].id || in[i].id >= b->g->val.n)
			bug("operator %s: operand %d is no value", info->name, i);
	if (b->g->op.n < MAX_OPS)
		return true;
	set_error(b, arena_printf(b->g->arena, "the graph has too many operators (limit %d)", MAX_OPS), -1);
	return false;
}

/* ---------------------------------------------------------------- a batch of 1 that broadcasts */

/* Where operands broadcast, an axis that follows the batch, of one element, meets longer ones only in a batch of 1.
 * Such an axis is made a plain 1 first: everything behind takes an axis that follows the batch for one that is
 * walked. */
typedef struct Ones { Build *b; int64_t widest[MAX_RANK]; } Ones; /* extents, from the last axis on */

static bool
one_of_batch(Axis a)
{
	return a.n == 1 && a.mul > 0;
}

static void
ones_meet(Ones *o, const Type *t, int behind)
{
	for (int k = 0; k < t->rank - behind; k++) {
		int64_t n = t->axis[t->rank - 1 - behind - k].n;

		o->widest[k] = n > o->widest[k] ? n : o->widest[k];
	}
}

static Val
ones_plain(const Ones *o, Val x, int behind)
{
	Type t = *val_type(o->b->g, x);

	for (int k = 0; k < t.rank - behind; k++) {
		Axis *a = &t.axis[t.rank - 1 - behind - k];

		if (one_of_batch(*a) && o->widest[k] > 1)
			*a = axis(1);
	}
	return build_reshape(o->b, x, t.rank, t.axis);
}

static void
ones_of_attention(Ones *o, Val *x, int nin, const AttrArg *attrs)
{
	const Graph *g = o->b->g;
	bool mask = false;

	for (int i = 0; i < 3; i++)
		ones_meet(o, val_type(g, x[i]), 2);
	for (int i = 0; i < 3; i++)
		x[i] = ones_plain(o, x[i], 2);
	for (const AttrArg *a = attrs; a && a->name != A_COUNT; a++)
		mask |= a->name == A_has_mask && a->i;
	if (!mask || nin < 4)
		return;
	Ones scores = {.b = o->b};

	memcpy(&scores.widest[2], o->widest, sizeof o->widest - 2 * sizeof *o->widest);
	for (int i = 0; i < 2; i++) {
		const Type *t = val_type(g, x[i]);

		scores.widest[1 - i] = t->axis[t->rank - 2].n;
	}
	x[3] = ones_plain(&scores, x[3], 0);
}

/* The operands, in `own` where one had such an axis. */
static const Val *
without_ones(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *results, Val own[8])
{
	Ones o = {.b = b};
	bool any = false;
	int behind = k == OP_matmul ? 2 : 0;

	if (nin > 8 || !(op_has(k, T_EW) || k == OP_matmul || k == OP_attention || k == OP_expand))
		return in;
	for (int i = 0; i < nin; i++)
		for (int j = 0; j < val_type(b->g, in[i])->rank; j++)
			any |= one_of_batch(val_type(b->g, in[i])->axis[j]);
	if (!any)
		return in;
	memcpy(own, in, sizeof *in * (size_t)nin);
	if (k == OP_attention) {
		if (val_type(b->g, in[0])->rank >= 2 && val_type(b->g, in[1])->rank >= 2 &&
		    val_type(b->g, in[2])->rank >= 2)
			ones_of_attention(&o, own, nin, attrs);
		return own;
	}
	for (int i = 0; i < nin; i++)
		ones_meet(&o, val_type(b->g, in[i]), behind);
	if (k == OP_expand)
		ones_meet(&o, &results[0], 0);
	for (int i = 0; i < nin; i++)
		own[i] = ones_plain(&o, own[i], behind);
	return own;
}

Val
build_op_n(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *results, int nout)
{
	const OpInfo *info = &op_info[k];
	Val own[8];
	Op op = {.kind = (uint16_t)k, .nin = (uint16_t)nin, .nout = (uint16_t)nout, .group = -1, .loc = b->loc};
	const Val *out;

	if (k == OP_none || (info->ew >= 0 && !info->expr))
		bug("operator %s has no expression", info->name ? info->name : "none");
	if ((info->nin >= 0 && nin != info->nin) || (info->nout >= 0 && nout != info->nout) || nin > UINT16_MAX ||
	    nout > UINT16_MAX)
		bug("operator %s with %d operands and %d results", info->name, nin, nout);
	if (!may_build(b, info, in, nin))
		return NOVAL;
	in = without_ones(b, k, in, nin, attrs, results, own);
	fill_attrs(b->g, &op, attrs);
	out = put_op(b, op, in, results);
	return out && nout ? out[0] : NOVAL;
}

const Val *
build_again(Build *b, const Op *op, const Val *in, const Type *results)
{
	Op copy = {.kind = op->kind, .nin = op->nin, .nout = op->nout, .group = -1, .loc = b->loc, .attr = op->attr,
	           .nattr = op->nattr};

	return may_build(b, &op_info[op->kind], in, op->nin) ? put_op(b, copy, in, results) : NULL;
}

Val
build_op(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *result)
{
	Type types[8] = {{0}};
	int nout = op_info[k].nout;

	if (nout < 0 || nout > 8)
		bug("operator %s needs build_op_n: its number of results is open", op_info[k].name);
	if (result)
		types[0] = *result;
	return build_op_n(b, k, in, nin, attrs, types, nout);
}

Op *
build_last(Build *b)
{
	return b->g->op.n ? &b->g->op.at[b->g->op.n - 1] : NULL;
}

/* ---------------------------------------------------------------- frequent ops */

Val
build_full(Build *b, Type t, double x)
{
	return build_op(b, OP_full, NULL, 0, ATTRS(AF(value, x)), &t);
}

Val
build_const(Build *b, DType t, double x)
{
	return build_full(b, type_scalar(t), x);
}

Val
build_cast(Build *b, Val x, DType t)
{
	Type want;

	if (!x.id || val_type(b->g, x)->dtype == t)
		return x;
	want = type_of(t, val_type(b->g, x)->rank, val_type(b->g, x)->axis);
	return build_op(b, OP_cast, &x, 1, NULL, &want);
}

static bool
same_axes(const Type *t, int rank, const Axis *axes)
{
	if (t->rank != rank)
		return false;
	for (int i = 0; i < rank; i++)
		if (!axis_same(t->axis[i], axes[i]))
			return false;
	return true;
}

static Val
build_view(Build *b, OpKind k, Val x, int rank, const Axis *axes)
{
	Type t;

	if (!x.id || same_axes(val_type(b->g, x), rank, axes))
		return x;
	t = type_of((DType)val_type(b->g, x)->dtype, rank, axes);
	return build_op(b, k, &x, 1, NULL, &t);
}

Val
build_reshape(Build *b, Val x, int rank, const Axis *axes)
{
	return build_view(b, OP_reshape, x, rank, axes);
}

Val
build_expand(Build *b, Val x, int rank, const Axis *axes)
{
	return build_view(b, OP_expand, x, rank, axes);
}

Val
build_transpose(Build *b, Val x, const int64_t *perm)
{
	int rank = x.id ? val_type(b->g, x)->rank : 0, i = 0;

	while (i < rank && perm[i] == i)
		i++;
	return i == rank ? x : build_op(b, OP_transpose, &x, 1, ATTRS(AL(perm, perm, rank)), NULL);
}

Val
build_reduce(Build *b, OpKind red, Val x, const int64_t *axes, int n, bool keep)
{
	return build_op(b, red, &x, 1, ATTRS(AL(axes, axes, n), AB(keep, keep)), NULL);
}

Val
build_load(Build *b, const char *state)
{
	return build_op(b, OP_load, NULL, 0, ATTRS(AS(state, state)), NULL);
}

Val
build_setting(Build *b, DType dt, const char *name, double value)
{
	Module *m = b->g->module;

	if (!module_state(m, name)) {
		State *s = module_add_state(m, name, type_scalar(dt), ST_SETTING);

		s->init = INIT_CONSTANT;
		s->a = value;
	}
	return build_load(b, name);
}

Val
build_sum_to(Build *b, Val g, const Type *shape)
{
	const Type *t;
	int64_t axes[MAX_RANK];
	int n = 0, lead;

	if (!g.id)
		return g;
	t = val_type(b->g, g);
	lead = t->rank - shape->rank;
	if (lead < 0)
		bug("sum of rank %d to rank %d", t->rank, shape->rank);
	for (int i = 0; i < t->rank; i++)
		if (i < lead || (shape->axis[i - lead].n == 1 && t->axis[i].n != 1))
			axes[n++] = i;
	if (n)
		g = build_reduce(b, OP_sum, g, axes, n, false);
	return build_reshape(b, g, shape->rank, shape->axis);
}

/* ---------------------------------------------------------------- shapes of elementwise operators */

/* One axis of the result; false if the two do not broadcast. An unmarked 1 gives way; a marked one, of a batch of 1,
 * does not (without_ones). */
static bool
broadcast_axis(Graph *g, Axis a, Axis b, Axis *out)
{
	*out = a.n == 1 && !a.mul ? b : b.n == 1 && !b.mul ? a : a.mul > 0 ? a : b;
	if (a.n != b.n)
		return (a.n == 1 && !a.mul) || (b.n == 1 && !b.mul);
	if (a.n != 1 && !axis_same(a, b) && !g->full_only) {
		g->full_only = true;
		g->full_why =
		        arena_printf(g->arena, "an axis of extent %lld that follows the batch meets one that does not",
		                     (long long)a.n);
	}
	return true;
}

const char *
broadcast_axes(Graph *g, int n, const Type *const *t, Type *out)
{
	int rank = 0;

	for (int i = 0; i < n; i++)
		rank = t[i]->rank > rank ? t[i]->rank : rank;
	*out = type_scalar(n ? (DType)t[0]->dtype : DT_none);
	out->rank = (uint8_t)rank;
	for (int k = 0; k < rank; k++)
		out->axis[k] = axis(1);
	for (int i = 0; i < n; i++) {
		int lead = rank - t[i]->rank;

		for (int k = 0; k < t[i]->rank; k++) {
			Axis had = out->axis[lead + k];

			if (!broadcast_axis(g, had, t[i]->axis[k], &out->axis[lead + k]))
				return arena_printf(g->arena,
				                    "shapes %s and %s do not broadcast: %lld against %lld along axis "
				                    "%d from the end",
				                    shape_text(g, t[0]), shape_text(g, t[i]), (long long)had.n,
				                    (long long)t[i]->axis[k].n, t[i]->rank - k);
		}
	}
	return NULL;
}

/* An operand that is a bare condition of ?: (where) is bool, whatever the others are. */
static char
condition_letter(const Expr *e)
{
	return e->kind == EX_SELECT && e->a->kind == EX_VAR ? e->a->var : 0;
}

static const char *
ew_dtype(Graph *g, const Op *op, int *which, DType *out)
{
	const OpInfo *info = &op_info[op->kind];
	char condition = condition_letter(info->expr);
	int first = -1;

	for (int i = 0; i < op->nin; i++) {
		const Type *t = in_type(g, op, i);
		char kind = dtype_info[t->dtype].kind;

		if (info->operands[i] == condition) {
			if (t->dtype != DT_bool)
				return shape_fail(g, which, i, "the condition is %s, needs bool", type_text(g, t));
			continue;
		}
		if (!strchr(info->part ? "F" : info->types, kind - 'a' + 'A'))
			return shape_fail(g, which, i, "input is %s, needs %s: use cast", type_text(g, t),
			                  !strchr(info->types, 'F')
			                          ? (strchr(info->types, 'B') ? "bool" : "an integer type")
			                  : info->part || !strchr(info->types, 'I') ? "a floating type"
			                                                            : "a number type");
		if (first >= 0 && t->dtype != in_type(g, op, first)->dtype)
			return shape_fail(g, which, i, "operand %d is %s, operand %d is %s: use cast", first + 1,
			                  type_text(g, in_type(g, op, first)), i + 1, type_text(g, t));
		first = first < 0 ? i : first;
	}
	if (first < 0)
		return shape_fail(g, which, -1, "has no operand to take its type from");
	*out = info->expr->kind >= EX_EQ && info->expr->kind <= EX_GE ? DT_bool : (DType)in_type(g, op, first)->dtype;
	return NULL;
}

const char *
shape_ew(Graph *g, Op *op, int *which)
{
	const Type *in[8];
	bool had = g->full_only;
	const char *error;
	DType dtype = DT_none;
	Type t;

	if ((error = ew_dtype(g, op, which, &dtype)))
		return error;
	for (int i = 0; i < op->nin; i++)
		in[i] = in_type(g, op, i);
	error = broadcast_axes(g, op->nin, in, &t);
	if (error) {
		*which = op->nin > 1 ? 1 : 0;
		return error;
	}
	if (g->full_only && !had) {
		g->full_loc = op->loc;
		g->full_why = arena_printf(g->arena, "%s: %s", op_info[op->kind].name, g->full_why);
	}
	t.dtype = (uint8_t)dtype;
	return shape_result(g, op, 0, &t);
}

/* ---------------------------------------------------------------- shapes of reductions */

static const char *
red_result(Graph *g, const Op *op, int *which, DType *out)
{
	const Type *x = in_type(g, op, 0);
	const RedInfo *r = red_of(op);

	*out = red_indexes(op) ? DT_i32 : dtype_is_float(x->dtype) ? (DType)x->dtype : red_dtype(op, (DType)x->dtype);
	if (!strchr(r->types, 'I'))
		return shape_float(g, op, which, 0);
	if (x->dtype == DT_bool && !strchr(r->types, 'B'))
		return shape_fail(g, which, 0, "input is %s, needs a number type: use cast", type_text(g, x));
	return NULL;
}

const char *
shape_red(Graph *g, Op *op, int *which)
{
	const Type *x = in_type(g, op, 0);
	bool keep = attr_bool(op, A_keep);
	const char *error;
	DType dtype;
	uint32_t reduced = 0;
	int n;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	Type t;

	if ((error = red_result(g, op, which, &dtype)))
		return error;
	for (int i = 0; i < n; i++) {
		if (axes[i] < 0 || axes[i] >= x->rank)
			return shape_fail(g, which, 0, "axis %lld is out of range for %s", (long long)axes[i],
			                  shape_text(g, x));
		if (i && axes[i] <= axes[i - 1])
			return shape_fail(g, which, -1, "axes must ascend: %lld after %lld", (long long)axes[i],
			                  (long long)axes[i - 1]);
		reduced |= 1u << axes[i];
	}
	if (red_indexes(op) && n != 1)
		return shape_fail(g, which, -1, "takes one axis, has %d", n);
	t = type_scalar(dtype);
	for (int i = 0; i < x->rank; i++)
		if (!(reduced & 1u << i))
			t.axis[t.rank++] = x->axis[i];
		else if (keep)
			t.axis[t.rank++] = axis(1);
	for (int k = 0; k < op->nout; k++)
		if ((error = shape_result(g, op, k, &t)))
			return error;
	return NULL;
}
