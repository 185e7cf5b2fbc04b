/* bounds.c: how far rounding may take each element of a graph's values from the reference's; a part of run.c.
 *
 * In: a graph with values of 16 bits, its inputs.   Out: of each value the standard deviation of every element's error,
 * and the largest single jump in it, where a sum that is a little off is rounded to the other neighbour. They follow
 * from what is computed: rounding errors count as independent and evenly spread (Wilkinson 1963; Higham and Mary 2019,
 * SIAM J. Sci. Comput. 41), so one rounding has the variance ulp^2 / 12, and what is computed from operands with errors
 * takes their variances times the squares of its slopes. For a contraction the reference's own rule gives the sums that
 * are needed: over the operands' squares, and over ones where they are not zero, which counts the products.
 *
 * A sum of f16 FMAs (micro_fp16.c) is rounded with each product: two chains of every second one, which are
 * added after FLUSH products. After j of n products a chain holds about j/n of the sum, and the square root of j/n of
 * the sum of squares beside. All other sums are of f32, in whatever order: a chain of n, with room for what Winograd's
 * and Strassen's algorithms lose.
 *
 * Where it does not know it says so (no array), and the bounds of compare.c stand alone: values behind maxima, scans,
 * statistics. Casts of a model always round; any other value of 16 bits may go on unrounded inside of a kernel. */
#include "../../ir/ref.h"

enum { F16_FLUSH = 64 };         /* products; FLUSH of micro_fp16.c */

typedef struct Bounds {
	RefCtx cx;
	double **sd;             /* by Val.id: of each element; NULL: not known */
	double *jump;            /* by Val.id */
	const Graph *g;
} Bounds;

/* In a format with p bits of significand that rounds with ulp <= 2^(1-p) |x|: the mean of ulp^2 / x^2, in units of
 * 2^(2-2p), over a binade, x spread evenly by its logarithm. */
static const double binade = 0.541;

static double
ulp_of(DType dt, double x)
{
	int low = dt == DT_f16 ? -14 : -126, e = x != 0 && isfinite(x) ? ilogb(x) : low;

	return epsilon(dt) * ldexp(1, e < low ? low : e);
}

static bool
is_half(const Graph *g, Val v)
{
	return val_type(g, v)->dtype == DT_f16 || val_type(g, v)->dtype == DT_bf16;
}

/* The first result of op by the reference's rule, unrounded, of other numbers in place of its floating operands (in[k]
 * NULL: its own). */
static double *
applied(Bounds *b, const Op *op, double *const *in)
{
	const OpInfo *info = &op_info[op->kind];
	RefCtx cx = b->cx;
	RefRule *rule = info->ew >= 0 ? ref_ew : info->red >= 0 ? ref_red : info->ref;

	cx.val = arena_array(cx.arena, RefTensor, b->g->val.n);
	memcpy(cx.val, b->cx.val, b->g->val.n * sizeof *cx.val);
	for (int k = 0; in && k < op->nin; k++)
		if (in[k])
			cx.val[op->in[k].id].f = in[k];
	cx.val[op->out[0].id].f = NULL;
	cx.val[op->out[0].id].i = NULL;
	return rule(&cx, op) ? NULL : cx.val[op->out[0].id].f;
}

/* The same, of the operands' elements through f. */
static double *
applied_to(Bounds *b, const Op *op, double (*f)(double))
{
	double *in[2];

	for (int k = 0; k < 2; k++) {
		const RefTensor *t = &b->cx.val[op->in[k].id];

		in[k] = arena_array(b->cx.arena, double, t->n);
		for (int64_t e = 0; e < t->n; e++)
			in[k][e] = f(t->f[e]);
	}
	return applied(b, op, in);
}

static double square(double x) { return x * x; }
static double not_zero(double x) { return x != 0; }

static double
largest(const double *x, int64_t n)
{
	double top = 0;

	for (int64_t e = 0; x && e < n; e++)
		top = isfinite(x[e]) && fabs(x[e]) > top ? fabs(x[e]) : top;
	return top;
}

/* ---------------------------------------------------------------- sums of products */
/* Of a sum, of the sum of the squares, of n products: the variance of f16 chains. */
static double
f16_variance(double sum, double squares, double n)
{
	double v = 0;

	for (double from = 0; from < n; from += F16_FLUSH) {
		double m = n - from < F16_FLUSH ? n - from : F16_FLUSH, h = ceil(m / 2), line = square(sum / n);

		v += h * (h + 1) / n * squares + h * (h + 1) * (2 * h + 1) / 3 * line;  /* both chains */
		v += m / n * squares + m * m * line;                                    /* their sum */
	}
	return binade * 0x1p-20 / 12 * v + n * 0x1p-48 / 12;
}

static double
f32_variance(double sum, double squares, double n)
{
	return 16 * binade * 0x1p-46 / 12 * (n * squares / 2 + (n / 3 + 1) * sum * sum + squares) + n * 0x1p-250;
}

static bool
contraction(Bounds *b, const Op *op, const double *base, double *var, int64_t n)
{
	const char *kernel = op->group >= 0 ? b->g->group.at[op->group].kernel : NULL;
	double *squares = applied_to(b, op, square), *count = applied_to(b, op, not_zero), jump = 0;
	bool half = kernel && strstr(kernel, ",f16}"), far = kernel && !strncmp(kernel, "winograd", 8);

	if (op->in[0].id == op->in[1].id || (kernel && !strncmp(kernel, "tf32{", 5)))
		return false;
	for (int64_t e = 0; e < n; e++) {
		double products = count[e] > 0 ? count[e] : 1;

		var[e] = (half ? f16_variance : f32_variance)(base[e], squares[e], products) * (far ? 16 : 1);
	}
	for (int k = 0; k < 2; k++) {
		const RefTensor *x = &b->cx.val[op->in[k].id], *y = &b->cx.val[op->in[1 - k].id];
		double *in[2] = {NULL, NULL}, *more;

		if (largest(b->sd[op->in[k].id], x->n) == 0)
			continue;
		in[k] = arena_array(b->cx.arena, double, x->n);
		in[1 - k] = arena_array(b->cx.arena, double, y->n);
		for (int64_t e = 0; e < x->n; e++)
			in[k][e] = square(b->sd[op->in[k].id][e]);
		for (int64_t e = 0; e < y->n; e++)
			in[1 - k][e] = square(y->f[e]);
		more = applied(b, op, in);
		for (int64_t e = 0; e < n; e++)
			var[e] += more[e];
		jump += b->jump[op->in[k].id] * largest(y->f, y->n);
	}
	b->jump[op->out[0].id] = jump;
	return true;
}

/* ---------------------------------------------------------------- everything else */
/* The largest change of the result at each element if operand k moves by `by` of its elements, either way. */
static double *
moved(Bounds *b, const Op *op, int k, const double *base, int64_t n, const double *sd, double times, double jump)
{
	const RefTensor *x = &b->cx.val[op->in[k].id];
	double *change = arena_array(b->cx.arena, double, n);

	for (int sign = -1; sign < 2; sign += 2) {
		double **in = arena_array(b->cx.arena, double *, op->nin), *to;

		in[k] = arena_array(b->cx.arena, double, x->n);
		for (int64_t e = 0; e < x->n; e++)
			in[k][e] = x->f[e] + sign * (times * sd[e] + jump);
		to = applied(b, op, in);
		for (int64_t e = 0; e < n; e++) {
			double d = fabs(to[e] - base[e]);

			change[e] = d > change[e] ? d : change[e];
		}
	}
	return change;
}

static bool
elementwise(Bounds *b, const Op *op, const double *base, double *var, int64_t n, double u)
{
	double top = largest(base, n), in_top = 0, jump = 0;

	for (int k = 0; k < op->nin; k++) {
		const RefTensor *x = &b->cx.val[op->in[k].id];
		bool again = false;

		for (int j = 0; j < k; j++)
			again |= op->in[j].id == op->in[k].id;
		if (!x->f || again)
			continue;
		in_top = fmax(in_top, largest(x->f, x->n));
		if (largest(b->sd[op->in[k].id], x->n) == 0)
			continue;
		double *by = moved(b, op, k, base, n, b->sd[op->in[k].id], 8, 0);

		for (int64_t e = 0; e < n; e++)
			var[e] += square(by[e] / 8);
		jump += largest(moved(b, op, k, base, n, b->sd[op->in[k].id], 0, b->jump[op->in[k].id]), n);
	}
	/* a cast is exact, but that from f64 may go by way of f32 */
	for (int64_t e = 0; (op->kind != OP_cast || val_type(b->g, op->in[0])->dtype == DT_f64) && e < n; e++)
		var[e] += square(4 * u * fabs(base[e]) + u * fmin(top, in_top));
	b->jump[op->out[0].id] = jump;
	return true;
}

static bool
movement(Bounds *b, const Op *op, double *var, int64_t n)
{
	double **sd = arena_array(b->cx.arena, double *, op->nin), **none = arena_array(b->cx.arena, double *, op->nin);

	for (int k = 0; k < op->nin; k++)
		if (b->cx.val[op->in[k].id].f) {
			sd[k] = b->sd[op->in[k].id];
			none[k] = arena_array(b->cx.arena, double, b->cx.val[op->in[k].id].n);
			b->jump[op->out[0].id] = fmax(b->jump[op->out[0].id], b->jump[op->in[k].id]);
		}
	double *to = applied(b, op, sd), *from = applied(b, op, none); /* what pad writes is no error */

	for (int64_t e = 0; e < n; e++)
		var[e] = isfinite(to[e]) ? square(to[e] - from[e]) : 0;
	return true;
}

static bool
addition(Bounds *b, const Op *op, double *var, int64_t n, double u)
{
	const RefTensor *x = &b->cx.val[op->in[0].id];
	double *size = arena_array(b->cx.arena, double, x->n), *s2 = arena_array(b->cx.arena, double, x->n);
	double per = op->kind == OP_mean ? (double)x->n / (double)n : 1;

	for (int64_t e = 0; e < x->n; e++) {
		size[e] = fabs(x->f[e]);
		s2[e] = square(b->sd[op->in[0].id][e]);
	}
	double *sizes = applied(b, op, &size), *sums = applied(b, op, &s2);

	for (int64_t e = 0; e < n; e++)
		var[e] = sums[e] / per + square(u * sizes[e]);
	b->jump[op->out[0].id] = b->jump[op->in[0].id];
	return true;
}

/* An op by itself whose operands are exact: computed in f32 throughout. */
static bool
alone(Bounds *b, const Op *op, const double *base, double *var, int64_t n, double u)
{
	double top = largest(base, n);

	/* scattered numbers are added to what stands there, in its type */
	if (b->g->op.n != 1 || op_has((OpKind)op->kind, T_SCATTER))
		return false;
	for (int64_t e = 0; e < n; e++)
		var[e] = square(8 * u * top);
	return true;
}

/* The errors of op's result, from those of its operands. base: the result before it is rounded. */
static bool
spread(Bounds *b, const Op *op, const double *base, double *var, int64_t n)
{
	double u = val_type(b->g, op->out[0])->dtype == DT_f64 ? 0x1p-52 : 0x1p-23;
	bool pointwise = op_info[op->kind].ew >= 0 || op->kind == OP_cast;

	for (int k = 0; k < op->nin; k++)
		if (b->cx.val[op->in[k].id].f && !b->sd[op->in[k].id])
			return false;
	if (op_has((OpKind)op->kind, T_CONST | T_RANDOM))
		return true;
	if (op_has((OpKind)op->kind, T_CONTRACT))
		return contraction(b, op, base, var, n);
	if (pointwise)
		return elementwise(b, op, base, var, n, u);
	if (op_has((OpKind)op->kind, T_VIEW | T_MOVE))
		return movement(b, op, var, n);
	if (op->kind == OP_sum || op->kind == OP_mean)
		return addition(b, op, var, n, u);
	return alone(b, op, base, var, n, u);
}

/* One op: its result as the reference has it, and the errors. */
static void
bounds_op(Bounds *b, const Op *op)
{
	bool one = op->nout == 1 && dtype_is_float((DType)val_type(b->g, op->out[0])->dtype);
	double *base = one ? applied(b, op, NULL) : NULL;

	if (ref_op(&b->cx, op) || !base)
		return;
	const RefTensor *r = &b->cx.val[op->out[0].id];
	double *sd = arena_array(b->cx.arena, double, r->n);

	if (!spread(b, op, base, sd, r->n))
		return;
	for (int64_t e = 0; e < r->n; e++) {
		double ulp = is_half(b->g, op->out[0]) ? ulp_of((DType)r->type.dtype, base[e]) : 0, s = sqrt(sd[e]);

		if (ulp > 0 && s > 0) {  /* to the other neighbour, now and then */
			sd[e] += 0.8 * ulp * s;
			b->jump[op->out[0].id] = fmax(b->jump[op->out[0].id], ulp);
		}
		sd[e] = isfinite(sd[e]) ? sqrt(sd[e]) : isfinite(base[e]) ? INFINITY : 0;
	}
	b->sd[op->out[0].id] = sd;
}

/* Readers of op's result may find it unrounded. */
static void
bounds_carried(Bounds *b, const Op *op)
{
	double *sd = b->sd[op->out[0].id];

	if (!sd || op->kind == OP_cast || !is_half(b->g, op->out[0]) || op_has((OpKind)op->kind, T_VIEW | T_MOVE))
		return;
	double *more = arena_array(b->cx.arena, double, b->cx.val[op->out[0].id].n);

	for (int64_t e = 0; e < b->cx.val[op->out[0].id].n; e++)
		more[e] = sqrt(square(sd[e]) + square(ulp_of((DType)b->cx.val[op->out[0].id].type.dtype,
		                                             b->cx.val[op->out[0].id].f[e])) / 12);
	b->sd[op->out[0].id] = more;
}

static void
inputs_of(Bounds *b, double **x)
{
	for (uint32_t k = 0; k < b->g->input.n; k++) {
		RefTensor *t = &b->cx.val[b->g->input.at[k].v.id];
		int64_t ext[MAX_RANK];

		t->type = *val_type(b->g, b->g->input.at[k].v);
		t->n = ref_extents(&b->cx, &t->type, ext);
		ref_point(t, arena_array(b->cx.arena, double, t->n));
		for (int64_t e = 0; e < t->n; e++)
			ref_set(t, e, x[k][e]);
	}
}

/* sd and jump by result: sd[k] NULL where nothing is known of result k. */
static void
bounds_of(const Graph *g, Arena *a, int64_t n, double **x, double **sd, double *jump)
{
	Bounds b = {.g = g, .cx = {.g = g, .arena = a, .n = n, .full = g->module->batch, .round = true}};
	bool half = false;

	b.cx.val = arena_array(a, RefTensor, g->val.n);
	b.sd = arena_array(a, double *, g->val.n);
	b.jump = arena_array(a, double, g->val.n);
	for (uint32_t v = 1; v < g->val.n; v++)
		half |= is_half(g, (Val){v});
	if (!half)
		return;
	inputs_of(&b, x);
	for (uint32_t k = 0; k < g->input.n; k++)
		b.sd[g->input.at[k].v.id] = arena_array(a, double, b.cx.val[g->input.at[k].v.id].n);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		bounds_op(&b, op);
		for (uint32_t k = 0; op->nout == 1 && k < g->result.n; k++)
			if (g->result.at[k].v.id == op->out[0].id) {
				sd[k] = b.sd[op->out[0].id];
				jump[k] = b.jump[op->out[0].id];
			}
		if (op->nout == 1)
			bounds_carried(&b, op);
	}
}

/* Against such errors: no element beyond 8 deviations and two jumps (*at: the farthest of those), the sum of the
 * squares no more than half again what is to be expected. */
static bool
agrees(const double *sd, double jump, const double *want, const double *got, int64_t n, double rms[2], int64_t *at)
{
	double sum = 0, expected = 0, most = 0, beyond = 0;

	*at = -1;
	for (int64_t e = 0; e < n; e++) {
		double d = isfinite(want[e]) ? fabs(want[e] - got[e]) : 0, limit = 8 * sd[e] + 2 * jump;

		if (d - limit > beyond) {
			beyond = d - limit;
			*at = e;
		}
		most = fmax(most, square(4 * sd[e] + jump));
		sum += d * d;
		expected += square(sd[e]);
	}
	rms[0] = sqrt(sum / (double)n);
	rms[1] = sqrt(expected / (double)n);
	return *at < 0 && sum <= 1.5 * expected + 6 * most;
}

/* false: a message was given. */
static bool
within(Run *r, const char *what, const char *line, int k, const double *sd, double jump, const double *want,
       const double *got, int64_t n)
{
	double rms[2];
	int64_t at;

	if (agrees(sd, jump, want, got, n, rms, &at))
		return true;
	if (at >= 0)
		failed(r, line, "%s, result %d, element %lld: %.9g, want %.9g, of whose error the deviation is %.3g",
		       what, k, (long long)at, got[at], want[at], sd[at]);
	else
		failed(r, line, "%s, result %d: errors of %.3g (root mean square), %.3g are to be expected", what, k,
		       rms[0], rms[1]);
	return false;
}

/* ---------------------------------------------------------------- would a wrong kernel be seen? */
/* A contraction alone each of whose sums leaves out one product, of usual size, and one that rounds its results first
 * to two bits more than they have: bounds that let these through are too wide. */
static void
check_bounds(Run *r, const char *what, const char *line, const Graph *g, int64_t n, double **x, const double *sd,
             double jump, const double *want, int64_t nwant)
{
	const Op *op = &g->op.at[0];
	Bounds b = {.g = g, .cx = {.g = g, .arena = g->module->arena, .n = n, .full = g->module->batch, .round = true}};
	double *twice = arena_array(b.cx.arena, double, nwant), *less = arena_array(b.cx.arena, double, nwant), rms[2];
	DType dt = (DType)val_type(g, op->out[0])->dtype;
	bool some = false;
	int64_t at;

	if (g->op.n != 1 || !op_has((OpKind)op->kind, T_CONTRACT) || op->in[0].id == op->in[1].id)
		return;
	b.cx.val = arena_array(b.cx.arena, RefTensor, g->val.n);
	inputs_of(&b, x);
	double *base = applied(&b, op, NULL), *squares = applied_to(&b, op, square),
	       *count = applied_to(&b, op, not_zero);

	for (int64_t e = 0; e < nwant; e++) {
		double fine = ulp_of(dt, base[e]) / 4;

		some |= count[e] > 0;
		less[e] = base[e] + (e % 2 ? 1 : -1) * (count[e] > 0 ? sqrt(squares[e] / count[e]) : 0);
		twice[e] = ref_round(dt, rint(base[e] / fine) * fine, true);
	}
	if (some && agrees(sd, jump, want, less, nwant, rms, &at))
		failed(r, line, "%s: a missing product would not be seen", what);
	if (is_half(g, op->out[0]) && nwant >= 2000 && !f16_sums(g) && agrees(sd, jump, want, twice, nwant, rms, &at))
		failed(r, line, "%s: a result that is rounded twice would not be seen", what);
}
