/* builtins_build.c: short spellings for building ops, the pieces that several operators share (softmax, random numbers,
 * range checks), and parameters that an operator owns.
 *
 * A shape error inside a chain leaves NOVAL and the message in Build.error; call_give turns it into the user's error at
 * the call. */
#include "builtins.h"

/* ---------------------------------------------------------------- one op each */

static bool
all_there(const Val *v, int n)
{
	for (int i = 0; i < n; i++)
		if (!v[i].id)
			return false;
	return true;
}

static Val
make(Call *c, OpKind k, const Val *in, int n, const AttrArg *attrs, const Type *result)
{
	return all_there(in, n) ? build_op(c->b, k, in, n, attrs, result) : NOVAL;
}

Val
ew1(Call *c, OpKind k, Val x)
{
	return make(c, k, VALS(x), NULL, NULL);
}

Val
ew2(Call *c, OpKind k, Val x, Val y)
{
	return make(c, k, VALS(x, y), NULL, NULL);
}

Val
ew3(Call *c, OpKind k, Val x, Val y, Val z)
{
	return make(c, k, VALS(x, y, z), NULL, NULL);
}

Val
num(Call *c, DType t, double x)
{
	return build_const(c->b, t, x);
}

Val
ewn(Call *c, OpKind k, Val x, double y)
{
	return x.id ? ew2(c, k, x, num(c, val_type(call_graph(c), x)->dtype, y)) : NOVAL;
}

Val
op_with(Call *c, OpKind k, Val x, const AttrArg *attrs)
{
	return make(c, k, VALS(x), attrs, NULL);
}

Val
op_with2(Call *c, OpKind k, Val x, Val y, const AttrArg *attrs)
{
	return make(c, k, VALS(x, y), attrs, NULL);
}

Val
to_shape(Call *c, Val x, int rank, const Axis *axes)
{
	return x.id ? build_reshape(c->b, x, rank, axes) : NOVAL;
}

Val
reduce_over(Call *c, OpKind k, Val x, int at, bool keep)
{
	return x.id ? build_reduce(c->b, k, x, (int64_t[]){at}, 1, keep) : NOVAL;
}

Val
reduce_all(Call *c, OpKind k, Val x)
{
	static const int64_t all[MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};

	int rank = x.id ? val_type(call_graph(c), x)->rank : 0;

	return rank ? build_reduce(c->b, k, x, all, rank, false) : x; /* of a scalar: itself */
}

Val
add_axis(Call *c, Val x, int at)
{
	Axis axes[MAX_RANK];

	if (!x.id)
		return NOVAL;
	Type t = val_type_of(c, x);
	if (t.rank == MAX_RANK) {
		c->b->error = "the result would have more than 8 axes";
		c->b->which = -1;
		return NOVAL;
	}
	for (int i = 0, k = 0; i <= t.rank; i++)
		axes[i] = i == at ? axis(1) : t.axis[k++];
	return to_shape(c, x, t.rank + 1, axes);
}

Val
counting(Call *c, DType t, int rank, int at, Axis extent)
{
	Axis axes[MAX_RANK];

	for (int i = 0; i < rank; i++)
		axes[i] = i == at ? extent : axis(1);
	Type type = type_of(t, rank, axes);
	return build_op(c->b, OP_iota, NULL, 0, ATTRS(AI(start, 0), AI(step, 1), AI(axis, at)), &type);
}

Val
to_dtype(Call *c, Val x, DType t)
{
	return x.id ? build_cast(c->b, x, t) : NOVAL;
}

Val
widen(Call *c, Val x)
{
	if (!x.id)
		return NOVAL;
	DType t = val_type(call_graph(c), x)->dtype;
	return t == DT_f16 || t == DT_bf16 ? to_dtype(c, x, DT_f32) : x;
}

/* ---------------------------------------------------------------- pieces */

Val
random_uniform(Call *c, int rank, const Axis *axes)
{
	Type t = type_of(DT_f32, rank, axes);
	Val seed = graph_need_input(call_graph(c), IN_SEED), step = graph_need_input(call_graph(c), IN_STEP);

	return build_op(c->b, OP_random, VALS(seed, step), ATTRS(AS(stream, c->path)), &t);
}

/* u is a multiple of 2^-24, so that comparing with p rounded up to such a multiple is comparing with p itself. */
Val
keep_mask(Call *c, Val u, double p)
{
	return ewn(c, OP_ge, u, ceil(p * 0x1p24) * 0x1p-24);
}

/* The largest element is taken off first: at 1000 a log-sum-exp in f32 has lost the digits that the result needs. */
Val
less_maximum(Call *c, Val x, int at)
{
	return ew2(c, OP_sub, x, op_with(c, OP_stop_gradient, reduce_over(c, OP_max, x, at, true), NULL));
}

Val
safe_softmax(Call *c, Val x, int at, bool logarithm)
{
	Val z = less_maximum(c, x, at);
	Val l = ew2(c, OP_sub, z, reduce_over(c, OP_logsumexp, z, at, true));

	return logarithm ? l : ew1(c, OP_exp, l);
}

void
build_check(Call *c, Val ids, Axis limit, const char *what, bool has_ignore, int64_t ignore)
{
	const char *text = *c->path ? arena_printf(sema_arena(c->sema), "%s: %s", c->path, what) : what;

	if (sema_training(c->sema))
		limit.mul = 0;
	if (ids.id)
		build_op(c->b, OP_check, &ids, 1,
		         ATTRS(AI(limit, limit.n), AS(what, text), AB(has_ignore, has_ignore), AI(ignore, ignore),
		               AI(mul, limit.mul), AI(div, limit.mul ? limit.div : 1)), NULL);
}

bool
call_give(Call *c, Val v, Value *result)
{
	const char *error = c->b->error;

	if (!v.id || error) {
		c->b->error = NULL;
		return call_fail(c, c->loc, "%s", error ? error : "an operand is missing");
	}
	*result = value_tensor(v, c->loc);
	return true;
}

/* ---------------------------------------------------------------- parameters of an operator's own */

static bool
spec_number(Call *c, const Value *spec, int i, double *out)
{
	const Value *v = &spec->at[i];

	if (!value_fixed(c, v))
		return false;
	if (v->kind != V_INT && v->kind != V_FLOAT)
		return call_fail(c, v->loc, "init: %s takes numbers, not %s", spec->s, value_text(c, v));
	*out = v->kind == V_INT ? (double)v->i : v->f;
	if (!isfinite(*out))
		return call_fail(c, v->loc, "init: %s takes finite numbers", spec->s);
	return true;
}

/* Arguments of normal(std), uniform(low, high), constant(v): by place or by name. */
static bool
spec_numbers(Call *c, const Value *spec, const char *const *names, int n, double *out)
{
	bool set[2] = {false};

	for (int i = 0; i < spec->n; i++) {
		int k = i;

		if (spec->names && spec->names[i]) {
			for (k = 0; k < n && strcmp(names[k], spec->names[i]); k++)
				;
			if (k == n)
				return call_fail(c, spec->at[i].loc, "init: %s has no argument %s, it takes %s%s%s",
				                 spec->s, spec->names[i], names[0], n > 1 ? ", " : "",
				                 n > 1 ? names[1] : "");
		}
		if (k >= n || set[k])
			return call_fail(c, spec->loc, "init: %s takes %d number%s, has %d", spec->s, n,
			                 n == 1 ? "" : "s", spec->n);
		set[k] = true;
		if (!spec_number(c, spec, i, &out[k]))
			return false;
	}
	for (int k = 0; k < n; k++)
		if (!set[k])
			return call_fail(c, spec->loc, "init: %s needs %s", spec->s, names[k]);
	return true;
}

static bool
init_spec(Call *c, const Value *v, Fans fans, Init *out)
{
	double x[2] = {0, 0};
	const char *s = v->s;

	if (!strcmp(s, "constant")) {
		if (!spec_numbers(c, v, (const char *const[]){"v"}, 1, x))
			return false;
		*out = (Init){INIT_CONSTANT, x[0], 0};
		return true;
	}
	if (!strcmp(s, "normal")) {
		if (!spec_numbers(c, v, (const char *const[]){"std"}, 1, x))
			return false;
		if (x[0] < 0)
			return call_fail(c, v->loc, "init: normal has standard deviation %g, needs at least 0", x[0]);
		*out = (Init){INIT_NORMAL, 0, x[0]};
		return true;
	}
	if (!strcmp(s, "uniform")) {
		if (!spec_numbers(c, v, (const char *const[]){"low", "high"}, 2, x))
			return false;
		if (x[0] > x[1])
			return call_fail(c, v->loc, "init: uniform has low %g above high %g", x[0], x[1]);
		*out = (Init){INIT_UNIFORM, x[0], x[1]};
		return true;
	}
	if (v->n)
		return call_fail(c, v->loc, "init: %s takes no arguments", s);
	if (!strcmp(s, "zeros") || !strcmp(s, "ones")) {
		*out = (Init){INIT_CONSTANT, s[0] == 'o', 0};
		return true;
	}
	bool he = !strcmp(s, "he_normal"), he_in = !strcmp(s, "he_normal_in");
	if (he || he_in || !strcmp(s, "xavier_uniform")) {
		if (fans.why)
			return call_fail(c, v->loc, "init: %s needs a fan, %s", s, fans.why);
		double edge = sqrt(6 / (fans.in + fans.out));

		*out = he || he_in ? (Init){INIT_NORMAL, 0, sqrt(2 / (he ? fans.out : fans.in))}
		                   : (Init){INIT_UNIFORM, -edge, edge};
		return true;
	}
	bug("init: %s is an initial value in sema_call.c and not here", s);
}

bool
init_value(Call *c, const char *name, Init standard, Fans fans, Init *out)
{
	const Value *v = call_arg(c, name);

	if (v->kind == V_NONE) {
		*out = standard;
		return true;
	}
	if (v->kind == V_SPEC)
		return init_spec(c, v, fans, out);
	return call_fail(c, call_loc(c, name), "%s is %s, needs an initial value such as normal(0.02) or zeros", name,
	                 value_text(c, v));
}

bool
own_param(Call *c, const char *suffix, const Value *given, DType t, int rank, const int64_t *dims, const char *meaning,
          Init init, Val *out)
{
	Axis axes[MAX_RANK];

	for (int i = 0; i < rank; i++)
		axes[i] = axis(dims[i]);
	const char *why = shape_too_large(rank, axes);
	if (why)
		return call_fail(c, c->loc, "%s %s would have %s", suffix, meaning, why);
	if (!given || given->kind == V_NONE || given->kind == V_BOOL) {
		/* master weights; narrow uses are casts */
		Type state = type_of(t == DT_f64 ? DT_f64 : DT_f32, rank, axes);

		if (!sema_param(c, suffix, &state, ST_PARAM, init.kind, init.a, init.b, out))
			return false;
		*out = to_dtype(c, *out, t);
		return out->id != 0;
	}
	if (given->kind != V_TENSOR)
		return call_fail(c, given->loc, "%s is %s, needs a tensor", suffix, value_text(c, given));
	Type has = val_type_of(c, given->tensor), want = type_of(t, rank, axes);
	if (has.dtype != want.dtype || !type_same_shape(&has, &want)) {
		Buf b = {0};

		type_print(&b, &want);
		call_fail(c, given->loc, "%s is %s, needs %s %s", suffix, val_text(c, given->tensor), b.at, meaning);
		call_note_val(c, suffix, given->tensor);
		buf_free(&b);
		return false;
	}
	*out = given->tensor;
	return true;
}

bool
own_bias(Call *c, DType t, int64_t n, Init init, bool *has, Val *out)
{
	const Value *v = call_arg(c, "bias");

	if (v->kind != V_BOOL && v->kind != V_TENSOR)
		return call_fail(c, call_loc(c, "bias"), "bias is %s, needs true, false or a tensor", value_text(c, v));
	*has = v->kind == V_TENSOR || v->i;
	return !*has || own_param(c, "bias", v, t, 1, &n, "[channels]", init, out);
}
