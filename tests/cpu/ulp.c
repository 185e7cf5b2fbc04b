/* ulp.c: exp, log, log1p, tanh, erf, sin, cos and pow of the CPU target against libm, in units in the last place.
 *
 * In: nothing.   Out: a line per function with the worst error and where, exit 1 if one is above its bound or a special
 * value differs. f32 against the double function of libm; f64 against long double. Arguments: random bit patterns (all
 * exponents), random numbers of usual size, the edges (zeros, infinities, NaN, subnormals). And each once more with
 * every other argument replaced by garbage, as masked lanes hold it: the bits of the rest must stay. */
#include "harness.h"
#include "../../runtime/rt.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT (1 << 18)

/* f of one argument, or two of two. floor: what is smaller may be anything as small, as exponentials overflow there */
typedef struct Row {
	OpKind kind;
	double low, high, bound;
	long double (*f)(long double), (*two)(long double, long double);
	bool both;
	double floor;
} Row;

static long double elu(long double x) { return x > 0 ? x : expm1l(x); }
static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static long double silu(long double x) { return x / (1 + expl(-x)); }
static long double softplus(long double x) { return fmaxl(x, 0) + log1pl(expl(-fabsl(x))) + (x != x ? x : 0); }
static long double gelu(long double x) { return 0.5L * x * erfcl(-x * 0.70710678118654752440L); }
static long double
gelu_tanh(long double x)
{
	return x / (1 + expl(-1.5957691216057307117L * (x + 0.044715L * x * x * x)));
}

static long double hardswish(long double x) { return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6; }
static long double rsqrt(long double x) { return 1 / sqrtl(x); }

static long double
mod(long double x, long double y)
{
	long double r = fmodl(x, y);

	return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

void
rt_parallel(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks)
{
	k(run->arena, off, run->n, 0, tasks, NULL);
}

static uint64_t
bits(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static double
number_f32(uint64_t *s, int64_t i, double low, double high)
{
	static const float edges[] = {0.0f,    -0.0f,  INFINITY, -INFINITY, NAN,    1.0f,   -1.0f,      1e-40f,
	                              -1e-40f, 1e-45f, 3.4e38f,  -3.4e38f,  88.72f, 88.73f, -87.4f,     -103.9f,
	                              -104.1f, 0.6f,   0.925f,   4.0f,      0.5f,   2.0f,   1048576.0f, 1e30f};
	uint32_t u = (uint32_t)bits(s);
	float f;

	if (i < (int64_t)(sizeof edges / sizeof *edges))
		return edges[i];
	if (i % 3 == 0) {
		memcpy(&f, &u, 4);
		return f;
	}
	return (float)(low + (high - low) * ((double)u * 0x1p-32));
}

static double
ulps(double got, long double want, double floor, bool dbl)
{
	int ex;

	if (isnan(want) || isnan(got))
		return isnan(want) && isnan(got) ? 0 : INFINITY;
	if (!dbl && fabsl(want) > 3.4028235677973366e38L)
		want = want > 0 ? INFINITY : -INFINITY;
	if (dbl && fabsl(want) > 1.7976931348623158e308L)
		want = want > 0 ? INFINITY : -INFINITY;
	if (isinf(want) || isinf(got))
		return got == want ? 0 : INFINITY;
	if (fabsl(want) < floor)
		return fabs(got) < floor ? 0 : INFINITY;
	frexpl(want, &ex);
	long double ulp = ldexpl(1, dbl ? (ex < -1021 ? -1074 : ex - 53) : (ex < -125 ? -149 : ex - 24));

	return (double)(fabsl(got - want) / ulp);
}

/* The function as compiled for n elements of type dt. */
static void
apply(Arena *a, Diags *d, const char *arch, OpKind kind, DType dt, double *x, double *y, double *r)
{
	const Target *t = target_named("cpu");
	Module *m = module_new(a, d, "ulp");
	Axis n = axis(COUNT);
	Graph *g = module_add_graph(m, "train");
	Build b = {.g = g, .path = ""};
	Val in[2];
	const char *error;
	Buf obj = {0};

	m->batch = 1;
	g->training = true;
	in[0] = graph_add_input(g, type_of(dt, 1, &n), "x", IN_DATA);
	if (y)
		in[1] = graph_add_input(g, type_of(dt, 1, &n), "y", IN_DATA);
	graph_add_result(g, build_op(&b, kind, in, y ? 2 : 1, NULL, NULL), "r", RES_OUTPUT);
	naive_plan(m, t, arch);
	EmitOptions o = {.emit = "obj", .arch = arch, .opt = 2};

	if ((error = t->emit(t, m, &o, &obj)))
		die("%s", error);
	Jit *j = jit_load(obj.at, obj.n, &error);

	if (!j)
		die("%s", error);
	int64_t (*call)(RtRun *) = (int64_t (*)(RtRun *))(uintptr_t)jit_symbol(j, "mantou_graph_train_0");
	RtRun run = {.arena = aligned_alloc(64, (size_t)(m->arena_bytes + 63) / 64 * 64), .n = 1, .batch = 1};

	for (int k = 0; k < (y ? 2 : 1); k++)
		for (int64_t i = 0; i < COUNT; i++) {
			uint8_t *at = run.arena + val_info(g, in[k])->offset;

			if (dt == DT_f64)
				((double *)at)[i] = (k ? y : x)[i];
			else
				((float *)at)[i] = (float)(k ? y : x)[i];
		}
	call(&run);
	for (int64_t i = 0; i < COUNT; i++) {
		uint8_t *at = run.arena + val_info(g, g->result.at[0].v)->offset;

		r[i] = dt == DT_f64 ? ((double *)at)[i] : (double)((float *)at)[i];
	}
	free(run.arena);
	jit_close(j);
	buf_free(&obj);
}

/* Elements of usual numbers whose bits change when every other one is garbage: even ones stay, then odd ones. */
static int64_t
disturbed(Arena *a, Diags *d, const char *arch, const Row *row, DType dt)
{
	static double x[COUNT], y[COUNT], plain[COUNT], beside[COUNT], r[COUNT], other[COUNT];
	uint64_t s = 1181783497276652981ull;
	int64_t n = 0;

	for (int64_t i = 0; i < COUNT; i++) {
		x[i] = number_f32(&s, COUNT, row->low, row->high);
		y[i] = number_f32(&s, COUNT, -8, 8);
		beside[i] = number_f32(&s, i % 3 ? i / 2 % 24 : COUNT + i % 2, -3.4e38, 3.4e38);
	}
	apply(a, d, arch, row->kind, dt, x, row->f ? NULL : y, plain);
	for (int odd = 0; odd < 2; odd++) {
		for (int64_t i = 0; i < COUNT; i++)
			other[i] = (i & 1) == odd ? x[i] : beside[i];
		apply(a, d, arch, row->kind, dt, other, row->f ? NULL : y, r);
		for (int64_t i = odd; i < COUNT; i += 2)
			n += memcmp(&r[i], &plain[i], sizeof r[i]) != 0;
	}
	return n;
}

int
main(void)
{
	static const Row rows[] = {
#define ONE(name, low, high, bound, f, ...) {OP_##name, low, high, bound, f, NULL, __VA_ARGS__}
#define TWO(name, low, high, bound, f, both) {OP_##name, low, high, bound, NULL, f, both, 0}
		ONE(exp, -100, 90, 1.5, expl, true, 0), ONE(log, 0, 10, 1.5, logl, true, 0),
		ONE(log1p, -0.9, 3, 2, log1pl, false, 0),
		ONE(tanh, -9, 9, 2, tanhl, false, 0), ONE(erf, -4, 4, 2, erfl, false, 0),
		ONE(sin, -100, 100, 2, sinl, false, 0),
		ONE(cos, -100, 100, 2, cosl, false, 0), TWO(pow, 0, 4, 1, powl, false), TWO(mod, -9, 9, 0.5, mod, true),
		ONE(elu, -4, 1, 2, elu, true, 0), ONE(rsqrt, 0, 4, 2, rsqrt, false, 0),
		ONE(softplus, -20, 20, 4, softplus, false, 0),
		ONE(hardswish, -4, 4, 4, hardswish, false, 0), ONE(sigmoid, -20, 20, 4, sigmoid, false, 1e-36),
		ONE(silu, -20, 20, 4, silu, false, 1e-36),
		/* the rounding of what an exponential is taken of is multiplied by its size */
		ONE(gelu, -4, 4, 110, gelu, false, 1e-20), ONE(gelu_tanh, -4, 4, 160, gelu_tanh, false, 1e-36),
	};
	static double x[COUNT], y[COUNT], r[COUNT];
	Diags d;
	Arena *a = arena_new();
	int failures = 0, n = 0;
	const char *error, *arch;

	ir_init();
	diags_init(&d, a, stderr);
	arch = target_named("cpu")->resolve_arch(target_named("cpu"), a, "native", &error);
	for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
		for (int dbl = 0; dbl <= (int)rows[k].both; dbl++) {
			const Row *row = &rows[k];
			uint64_t s = 88172645463325252ull + k;
			double worst = 0;
			int64_t at = 0;

			for (int64_t i = 0; i < COUNT; i++) {
				x[i] = number_f32(&s, i, dbl && row->kind == OP_exp ? -740 : row->low,
				                  dbl && row->kind == OP_exp ? 709 : row->high);
				y[i] = number_f32(&s, i % 2 ? COUNT : i / 2 % 30, -8, 8);
			}
			apply(a, &d, arch, row->kind, dbl ? DT_f64 : DT_f32, x, row->f ? NULL : y, r);
			for (int64_t i = 0; i < COUNT; i++) {
				long double want = row->f ? row->f(x[i]) : row->two(x[i], y[i]);
				double u = ulps(r[i], want, row->floor, dbl);

				if (u > worst) {
					worst = u;
					at = i;
				}
			}
			bool bad = worst > row->bound;

			int64_t moved = disturbed(a, &d, arch, row, dbl ? DT_f64 : DT_f32);

			n += 2;
			failures += bad + (moved > 0);
			if (moved)
				printf("FAIL %-6s %s: %lld numbers have other bits beside garbage\n",
				       op_info[row->kind].name, dbl ? "f64" : "f32", (long long)moved);
			printf("%s %-6s %s worst %.3f ulp at %.9g%s\n", bad ? "FAIL" : "    ", op_info[row->kind].name,
			       dbl ? "f64" : "f32", worst, x[at],
			       row->f ? "" : arena_printf(a, ", %.9g: %.9g", y[at], r[at]));
		}
	printf("%d passed, %d failed\n", n - failures, failures);
	arena_free(a);
	return failures != 0;
}
