/* builtins_norm.c: normalisations, written with primitive ops from the start so that fusion sees their parts.
 *
 * All have the form (x - mean) * scale + bias with mean and scale small: scale = rsqrt(variance + eps) * weight is
 * computed on the statistics' shape, so that x is touched once after the moments, forward and backward. Statistics of
 * f16 and bf16 inputs are taken in f32. batch_norm's running variance is the unbiased one (times n / (n - 1)), the
 * normalising one is biased. */
#include "builtins.h"

/* (x - mean) * (rsqrt(variance + eps) * weight) + bias; weight and bias already have shapes that broadcast. */
static Val
affine(Call *c, Val x, Val mean, Val variance, double eps, Val weight, Val bias, bool has_bias)
{
	Val scale = ew1(c, OP_rsqrt, ewn(c, OP_add, variance, eps));

	if (weight.id)
		scale = ew2(c, OP_mul, scale, weight);
	Val y = ew2(c, OP_mul, ew2(c, OP_sub, x, mean), scale);
	return has_bias ? ew2(c, OP_add, y, bias) : y;
}

/* eps is small. Libraries whose layers must be told the number of channels have it where eps stands here. */
static bool
arg_eps(Call *c, double *eps)
{
	if (!arg_num(c, "eps", 0, INFINITY, eps))
		return false;
	if (*eps >= 1)
		sema_warning(c->sema, call_loc(c, "eps"),
		             "%s: eps is %g: if that is the number of channels, leave it out; it is the input's own",
		             c->op->name, *eps);
	return true;
}

/* v [C] against axis 1 of a tensor of the given rank. */
static Val
per_channel(Call *c, Val v, int rank)
{
	Axis axes[MAX_RANK];

	if (!v.id)
		return NOVAL;
	Axis channels = val_type(call_graph(c), v)->axis[0];
	for (int i = 0; i < rank - 1; i++)
		axes[i] = i ? axis(1) : channels;
	return rank == 2 ? v : to_shape(c, v, rank - 1, axes);
}

static Val
moments(Call *c, Val x, const int64_t *axes, int n, Val *variance)
{
	Val mean = x.id ? build_reduce(c->b, OP_moments, x, axes, n, true) : NOVAL;

	*variance = mean.id ? build_last(c->b)->out[1] : NOVAL;
	return mean;
}

/* Weight [n] from init or given, and bias; both of the type that statistics have. */
static bool
scale_and_bias(Call *c, Val x, int64_t n, Val *w, bool *has_bias, Val *bias)
{
	const Value *given = call_arg(c, "weight"), *given_bias = call_arg(c, "bias");
	DType t = val_type(call_graph(c), x)->dtype;
	Init init;

	if (!init_value(c, "init", INIT_ONE, NO_FANS("the weight has 1 axis"), &init) ||
	    !own_param(c, "weight", given,
	               given->kind == V_TENSOR ? t
	               : t == DT_f64           ? DT_f64
	                                       : DT_f32,
	               1, &n, "[channels]", init, w) ||
	    !own_bias(c,
	              given_bias->kind == V_TENSOR ? t
	              : t == DT_f64                ? DT_f64
	                                           : DT_f32,
	              n, INIT_ZERO, has_bias, bias))
		return false;
	*w = widen(c, *w);
	if (*has_bias)
		*bias = widen(c, *bias);
	return true;
}

static bool
channels_of(Call *c, Val *x, Type *t, int64_t *channels)
{
	if (!arg_float_tensor(c, "x", x))
		return false;
	*t = val_type_of(c, *x);
	if (t->rank < 2) {
		call_fail(c, c->loc, "input has %d ax%s, needs at least 2 [N, C, ...]", t->rank,
		          t->rank == 1 ? "is" : "es");
		call_note_val(c, "input", *x);
		return false;
	}
	return axis_fixed(c, "input", *x, 1, channels);
}

/* a * p + b * q */
static Val
moved(Call *c, Val a, double p, Val b, double q)
{
	Val left = ewn(c, OP_mul, a, p), right = ewn(c, OP_mul, b, q);

	return ew2(c, OP_add, left, right);
}

/* A shard's mean and variance become those of the whole batch. */
static void
join_shards(Call *c, int64_t shards, Val *mean, Val *variance)
{
	Val in[2] = {*mean, *variance};

	if (shards < 2 || !in[0].id || !in[1].id)
		return;
	*mean = build_op(c->b, OP_all_moments, in, 2, ATTRS(AI(shards, shards)), NULL);
	*variance = mean->id ? build_last(c->b)->out[1] : NOVAL;
}

/* The batch's moments, and the running statistics moved towards them. */
static bool
batch_statistics(Call *c, Val x, const Type *t, double momentum, Val running_mean, Val running_var, Val *mean,
                 Val *variance)
{
	int64_t axes[MAX_RANK], count = 1, channels = t->axis[1].n;
	int n = 0;

	for (int i = 0; i < t->rank; i++)
		if (i != 1) {
			axes[n++] = i;
			count *= t->axis[i].n;
		}
	int64_t shards = sema_joined_stats(c);

	if (count * shards < 2)
		return call_fail(c, c->loc, "input is %s with one value per channel, statistics need at least two",
		                 val_text(c, x));
	Val wide = widen(c, x);
	*mean = moments(c, wide, axes, n, variance);
	Val m = to_shape(c, *mean, 1, (Axis[]){axis(channels)}),
	    v = to_shape(c, *variance, 1, (Axis[]){axis(channels)});
	if (shards > 1) {
		join_shards(c, shards, &m, &v);
		*mean = per_channel(c, m, t->rank);
		*variance = per_channel(c, v, t->rank);
		count *= shards;
	}
	double unbiased = (double)count / (double)(count - 1);
	Val new_mean = moved(c, running_mean, 1 - momentum, m, momentum);
	Val new_var = moved(c, running_var, 1 - momentum, v, momentum * unbiased);
	if (new_mean.id && new_var.id) {
		sema_stat_store(c, "running_mean", new_mean);
		sema_stat_store(c, "running_var", new_var);
	}
	return true;
}

bool
builtin_batch_norm(Call *c, Value *result)
{
	Val x, w, bias, running_mean, running_var, mean, variance;
	double eps, momentum;
	int64_t channels, examples;
	bool has_bias;
	Type t;

	if (!channels_of(c, &x, &t, &channels) || !arg_eps(c, &eps) ||
	    !arg_num(c, "momentum", 0, 1, &momentum) || !scale_and_bias(c, x, channels, &w, &has_bias, &bias))
		return false;
	Type stat = type_of(t.dtype == DT_f64 ? DT_f64 : DT_f32, 1, (Axis[]){axis(channels)});
	if (!sema_param(c, "running_mean", &stat, ST_STAT, INIT_CONSTANT, 0, 0, &running_mean)
	    || !sema_param(c, "running_var", &stat, ST_STAT, INIT_CONSTANT, 1, 0, &running_var))
		return false;
	if (c->training) {
		if (sema_shards(c->sema, &examples) > 1 && sema_joined_stats(c) == 1 && examples < 16)
			sema_warning(c->sema, c->loc,
			             "batch_norm sees one shard, %lld examples: its statistics are rough below 16; "
			             "train.batch_stats = batch takes those of the whole batch",
			             (long long)examples);
		if (!batch_statistics(c, x, &t, momentum, running_mean, running_var, &mean, &variance))
			return false;
	} else {
		mean = per_channel(c, running_mean, t.rank);
		variance = per_channel(c, running_var, t.rank);
	}
	w = per_channel(c, w, t.rank);
	if (has_bias)
		bias = per_channel(c, bias, t.rank);
	Val y = affine(c, widen(c, x), mean, variance, eps, w, bias, has_bias);
	return call_give(c, to_dtype(c, y, t.dtype), result);
}

bool
builtin_layer_norm(Call *c, Value *result)
{
	Val x, w, bias, variance;
	int64_t channels;
	bool has_bias;
	double eps;

	if (!arg_float_tensor(c, "x", &x) || !arg_eps(c, &eps))
		return false;
	Type t = val_type_of(c, x);
	if (!t.rank)
		return call_fail(c, c->loc, "input is a scalar, needs at least 1 axis [..., C]");
	if (!axis_fixed(c, "input", x, t.rank - 1, &channels) || !scale_and_bias(c, x, channels, &w, &has_bias, &bias))
		return false;
	Val wide = widen(c, x), mean = moments(c, wide, (int64_t[]){t.rank - 1}, 1, &variance);
	Val scale = ew1(c, OP_rsqrt, ewn(c, OP_add, variance, eps));
	/* Here statistics are per row and weight per column: scaling twice beats a table of their products. */
	Val y = ew2(c, OP_mul, ew2(c, OP_mul, ew2(c, OP_sub, wide, mean), scale), w);
	return call_give(c, to_dtype(c, has_bias ? ew2(c, OP_add, y, bias) : y, t.dtype), result);
}

bool
builtin_rms_norm(Call *c, Value *result)
{
	const Value *given = call_arg(c, "weight");
	int64_t channels;
	double eps;
	Val x, w;
	Init init;

	if (!arg_float_tensor(c, "x", &x) || !arg_eps(c, &eps))
		return false;
	Type t = val_type_of(c, x);
	if (!t.rank)
		return call_fail(c, c->loc, "input is a scalar, needs at least 1 axis [..., C]");
	if (!axis_fixed(c, "input", x, t.rank - 1, &channels) ||
	    !init_value(c, "init", INIT_ONE, NO_FANS("the weight has 1 axis"), &init) ||
	    !own_param(c, "weight", given, given->kind == V_TENSOR || t.dtype == DT_f64 ? t.dtype : DT_f32, 1,
	               &channels, "[channels]", init, &w))
		return false;
	Val wide = widen(c, x), mean = reduce_over(c, OP_mean, ew1(c, OP_square, wide), t.rank - 1, true);
	Val y = ew2(c, OP_mul, wide, ew1(c, OP_rsqrt, ewn(c, OP_add, mean, eps))), scale = widen(c, w);
	return call_give(c, to_dtype(c, ew2(c, OP_mul, y, scale), t.dtype), result);
}

/* Of signals and images: moments of each channel, put together group by group (equal counts: Chan et al. 1979), so that
 * no tensor of pixels changes its shape, wherever its channels lie in memory. As [N, C, 1, 1], or [N, C, 1]. */
static Val
image_moments(Call *c, Val x, const Type *t, int64_t groups, Val *variance)
{
	int64_t per = t->axis[1].n / groups;
	Axis split[3] = {t->axis[0], axis(groups), axis(per)}, all[4] = {t->axis[0], t->axis[1], axis(1), axis(1)};
	Val mean = moments(c, x, (int64_t[]){2, 3}, t->rank - 2, variance);

	if (per == 1)
		return mean;
	Val each = to_shape(c, mean, 3, split), v = to_shape(c, *variance, 3, split);
	Val of_group = reduce_over(c, OP_mean, each, 2, true), apart = ew2(c, OP_sub, each, of_group);

	v = reduce_over(c, OP_mean, ew2(c, OP_add, v, ew1(c, OP_square, apart)), 2, true);
	if (!v.id)
		return *variance = NOVAL;
	*variance = to_shape(c, build_expand(c->b, v, 3, split), t->rank, all);
	return to_shape(c, build_expand(c->b, of_group, 3, split), t->rank, all);
}

/* Other tensors as [N, groups, rest], where rest is one axis. */
bool
builtin_group_norm(Call *c, Value *result)
{
	int64_t channels, groups, rest = 1;
	Val x, w, bias, variance;
	bool has_bias;
	double eps;
	Type t;

	if (!channels_of(c, &x, &t, &channels) || !arg_int(c, "groups", 1, INT32_MAX, &groups) ||
	    !arg_eps(c, &eps))
		return false;
	if (channels % groups)
		return call_fail(c, call_loc(c, "groups"), "groups is %lld, must divide the input's %lld channels",
		                 (long long)groups, (long long)channels);
	for (int i = 2; i < t.rank; i++) {
		int64_t extent;

		if (!axis_fixed(c, "input", x, i, &extent))
			return false;
		rest *= extent;
	}
	if (!scale_and_bias(c, x, channels, &w, &has_bias, &bias))
		return false;
	Val y;
	if (t.rank == 3 || t.rank == 4) {
		Val wide = widen(c, x), mean = image_moments(c, wide, &t, groups, &variance);

		w = per_channel(c, w, t.rank);
		if (has_bias)
			bias = per_channel(c, bias, t.rank);
		y = affine(c, wide, mean, variance, eps, w, bias, has_bias);
		return call_give(c, to_dtype(c, y, t.dtype), result);
	}
	Val grouped = to_shape(c, widen(c, x), 3, (Axis[]){t.axis[0], axis(groups), axis(channels / groups * rest)});
	Val mean = moments(c, grouped, (int64_t[]){2}, 1, &variance);
	y = to_shape(c, affine(c, grouped, mean, variance, eps, NOVAL, NOVAL, false), t.rank, t.axis);
	y = ew2(c, OP_mul, y, per_channel(c, w, t.rank));
	if (has_bias)
		y = ew2(c, OP_add, y, per_channel(c, bias, t.rank));
	return call_give(c, to_dtype(c, y, t.dtype), result);
}

/* ---------------------------------------------------------------- normalize: constants per channel */

/* Numbers by their places, [n, 1, ...] with so many ones. */
static Val
chosen(Call *c, DType t, const double *numbers, int64_t n, int ones)
{
	Val index = counting(c, DT_i32, ones + 1, 0, axis(n)), v = num(c, t, numbers[n - 1]);

	for (int64_t i = n - 1; i-- > 0;) {
		Val here = ewn(c, OP_eq, index, (double)i), number = num(c, t, numbers[i]);

		v = ew3(c, OP_where, here, number, v);
	}
	return v;
}

/* Numbers as [n, 1, ...] against axis 1. Few are chosen by comparing the channel's number, which fuses into whatever
 * reads them; many are laid out once, and hundreds in pieces, each a kernel that chooses. */
static Val
table(Call *c, DType t, const double *numbers, int64_t n, int rank)
{
	enum { FEW = 4, MANY = 64, PIECE = 16 };
	int64_t each = n > MANY ? PIECE : 1, pieces = (n + each - 1) / each;
	bool same = true;

	for (int64_t i = 1; i < n; i++)
		same &= numbers[i] == numbers[0];
	if (same)
		return num(c, t, numbers[0]);
	if (n <= FEW)
		return chosen(c, t, numbers, n, rank - 2);
	Val *piece = arena_array(sema_arena(c->sema), Val, pieces);
	for (int64_t i = 0; i < pieces; i++) {
		int64_t from = i * each, count = n - from < each ? n - from : each;

		piece[i] = count > 1 ? chosen(c, t, numbers + from, count, 0)
		                     : build_full(c->b, type_of(t, 1, (Axis[]){axis(1)}), numbers[from]);
	}
	return per_channel(c, build_op(c->b, OP_concat, piece, (int)pieces, ATTRS(AI(axis, 0)), NULL), rank);
}

static bool
channel_numbers(Call *c, const char *name, int64_t n, double *out)
{
	const Value *v = call_arg(c, name);

	if (v->kind == V_LIST && v->n != n)
		return call_fail(c, call_loc(c, name), "%s is a list of %d, the input has %lld channels", name, v->n,
		                 (long long)n);
	for (int64_t i = 0; i < n; i++) {
		const Value *item = v->kind == V_LIST ? &v->at[i] : v;

		if (item->kind != V_INT && item->kind != V_FLOAT)
			return call_fail(c, call_loc(c, name), "%s is %s, needs a list of %lld numbers", name,
			                 value_text(c, item), (long long)n);
		if (!value_fixed(c, item))
			return false;
		out[i] = item->kind == V_INT ? (double)item->i : item->f;
	}
	return true;
}

bool
builtin_normalize(Call *c, Value *result)
{
	int64_t channels;
	Type t;
	Val x;

	if (!channels_of(c, &x, &t, &channels))
		return false;
	double *mean = arena_array(sema_arena(c->sema), double, channels),
	       *std = arena_array(sema_arena(c->sema), double, channels);
	if (!channel_numbers(c, "mean", channels, mean) || !channel_numbers(c, "std", channels, std))
		return false;
	for (int64_t i = 0; i < channels; i++) {
		if (!(std[i] > 0))
			return call_fail(c, call_loc(c, "std"), "std[%lld] is %g, needs a positive number",
			                 (long long)i, std[i]);
		std[i] = 1 / std[i];
	}
	Val shifted = ew2(c, OP_sub, x, table(c, t.dtype, mean, channels, t.rank));
	return call_give(c, ew2(c, OP_mul, shifted, table(c, t.dtype, std, channels, t.rank)), result);
}
