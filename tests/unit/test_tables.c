/* test_tables.c: the operator tables. Every column of ew.def: pasted into C = parsed = (for derivatives) central
 * difference; every operator has documentation and can be found by name; the expression parser's refusals. */
#include "unit.h"
#include "ir.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the lines of ew.def as C functions */

static double
imod(double x, double y)
{
	double r;

	if (y == 0)
		return 0;
	r = fmod(x, y);
	return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static double
idiv(double x, double y)
{
	return y == 0 ? 0 : floor(x / y);
}

#define NONE 0.0
#define ZERO 0.0
#define ARGS double x, double y, double z, double r, double g, double a, double b
#define EW(id, arity, attrs, types, value, dx, dy, dz) \
	static double id##_0(ARGS) { return (value); } \
	static double id##_1(ARGS) { return (dx); } \
	static double id##_2(ARGS) { return (dy); } \
	static double id##_3(ARGS) { return (dz); }
#include "ew.def"
#undef EW

typedef double Pasted(ARGS);
static const struct Row { OpKind kind; int arity; Pasted *part[4]; } rows[] = {
#define EW(id, arity, attrs, types, value, dx, dy, dz) {OP_##id, arity, {id##_0, id##_1, id##_2, id##_3}},
#include "ew.def"
#undef EW
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static bool
same(double p, double q)
{
	return (isnan(p) && isnan(q)) || p == q;
}

static bool
near(double p, double q, double tolerance)
{
	return same(p, q) || fabs(p - q) <= tolerance * (1 + fabs(p) + fabs(q));
}

static double
call(Pasted *f, const double v[7])
{
	return f(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
}

static void
pasted_is_parsed(void **state)
{
	const double odd[] = {0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 6, 3, -3, 1e300, 5e-324};
	uint64_t seed = 11;

	for (int i = 0; i < ROWS; i++)
		for (int part = 0; part < 4; part++) {
			const Expr *e = op_info[rows[i].kind + part].expr;
			bool integers = strcmp(op_info[rows[i].kind].types, "I") == 0;

			for (int k = 0; e && k < 400; k++) {
				double v[7], p, q;

				for (int j = 0; j < 7; j++)
					v[j] = integers                      ? floor(random_between(&seed, -9, 9))
					       : random_bits(&seed) % 4 == 0 ? odd[random_bits(&seed) % 12]
					                                     : random_between(&seed, -4, 4);
				p = call(rows[i].part[part], v);
				q = expr_eval(e, v);
				if (!same(p, q) && !near(p, q, 1e-13))
					fail_msg("%s at x=%g y=%g z=%g r=%g g=%g: pasted %.17g, parsed %.17g",
					         op_info[rows[i].kind + part].name, v[0], v[1], v[2], v[3], v[4], p, q);
			}
		}
}

/* Points where the two one-sided differences disagree are kinks and do not count. */
static void
derivatives_are_differences(void **state)
{
	const double h = 1e-6;
	uint64_t seed = 23;

	for (int i = 0; i < ROWS; i++)
		for (int part = 1; part <= rows[i].arity; part++) {
			const OpInfo *info = &op_info[rows[i].kind + part];
			bool is_where = rows[i].kind == OP_where;
			int counted = 0;

			for (int k = 0; info->expr && k < 400; k++) {
				double v[7] = {0}, up[7], down[7], f0, left, right, got;

				for (int j = 0; j < 3; j++)
					v[j] = random_between(&seed, k % 2 ? 0.1 : -3.5, 3.5);
				if (is_where)
					v[0] = k % 2;
				v[4] = random_between(&seed, -2, 2);
				v[5] = -0.5;
				v[6] = 0.7;
				f0 = v[3] = call(rows[i].part[0], v);
				memcpy(up, v, sizeof v);
				memcpy(down, v, sizeof v);
				up[part - 1] += h;
				down[part - 1] -= h;
				right = v[4] * (call(rows[i].part[0], up) - f0) / h;
				left = v[4] * (f0 - call(rows[i].part[0], down)) / h;
				if (!isfinite(left) || !isfinite(right) || !near(left, right, 1e-3))
					continue;
				got = expr_eval(info->expr, v);
				if (!near(got, (left + right) / 2, 1e-5))
					fail_msg("%s at x=%g y=%g z=%g: %g, difference %g", info->name, v[0], v[1],
					         v[2], got, (left + right) / 2);
				counted++;
			}
			if (info->expr && counted < 100)
				fail_msg("%s: only %d points counted", info->name, counted);
		}
}

static void
operators_are_complete(void **state)
{
	for (int k = OP_none + 1; k < OP_COUNT; k++) {
		const OpInfo *info = &op_info[k];

		if (info->ew >= 0 && !info->expr)
			continue;
		assert_int_equal(op_named(info->name), k);
		assert_true(info->doc[0]);
		assert_non_null(info->shape);
		if (info->ew >= 0)
			assert_int_equal(strlen(info->operands), info->nin);
	}
	assert_int_equal(op_named("relu.dy"), OP_none);
	assert_int_equal(op_named("nothing"), OP_none);
	assert_int_equal(op_named("conv2d.dx"), OP_conv2d_dx);
	assert_string_equal(op_info[OP_add].operands, "xy");
	assert_string_equal(op_info[OP_relu_dx].operands, "rg");
	assert_string_equal(op_info[OP_mul_dx].operands, "yg");
	assert_int_equal(op_info[OP_moments].nout, 2);
	assert_int_equal(op_info[OP_conv2d].nattr, 5);
	assert_int_equal(op_info[OP_conv2d].attr_default[3].i, 1);
	assert_int_equal(op_info[OP_conv2d].attr_default[0].n, 2);
	assert_true(op_info[OP_leaky_relu].attr_default[0].f == 0.01);
	assert_true(op_info[OP_clamp].attr_required[0]);
}

static double
value_of(const char *text)
{
	const double v[7] = {2, 3, 5, 7, 11, 13, 17};
	Arena *a = arena_new();
	const char *error = NULL;
	const Expr *e = expr_parse(a, text, &error);
	double r;

	if (!e)
		fail_msg("%s: %s", text, error);
	r = expr_eval(e, v);
	arena_free(a);
	return r;
}

static void
expressions_bind_as_in_c(void **state)
{
	assert_true(value_of("x + y * z") == 17);
	assert_true(value_of("x - y - z") == -6);
	assert_true(value_of("z / x / x") == 1.25);
	assert_true(value_of("-x * y") == -6);
	assert_true(value_of("!x + 1") == 1);
	assert_true(value_of("x < y == 1") == 1);
	assert_true(value_of("x > y || y < z && 0") == 0);
	assert_true(value_of("x ? y ? 1 : 2 : 3") == 1);
	assert_true(value_of("0 ? 1 : 0 ? 2 : 3") == 3);
	assert_true(value_of("idiv(-7, 2) + imod(-7, 2)") == -3);
	assert_true(value_of("idiv(x, 0) + imod(x, 0)") == 0);
	assert_true(value_of("fmax(x, y) * 1e2") == 300);
	assert_true(value_of("r + g + a + b") == 48);
	assert_true(value_of("(1.5e-1 + .5)") == 0.65);
}

/* Variables of the caller's own: whole names, in place of functions; more of them than `uses` has bits. */
static void
expressions_have_names(void **state)
{
	const char *names[40] = {"mr", "mr2", "m", "floor", "x_1"};
	int64_t v[40] = {3, 5, 7, 11, 13};
	Arena *a = arena_new();
	const char *error = NULL;

	for (int i = 5; i < 40; i++) {
		names[i] = arena_printf(a, "n%d", i);
		v[i] = i;
	}
	const Expr *e = expr_parse_names(a, "mr * mr2 + m - floor * x_1 + n39", names, 40, &error);

	assert_non_null(e);
	assert_int_equal(expr_eval_int(e, v), 3 * 5 + 7 - 11 * 13 + 39);
	for (int i = 0; i < 40; i++)
		assert_int_equal(expr_reads(e, i), i < 5 || i == 39);
	assert_null(expr_parse_names(a, "mr * x", names, 40, &error));
	assert_non_null(strstr(error, "no such function or variable at \"x\""));
	error = NULL;
	assert_null(expr_parse_names(a, "n39", names, 39, &error));
	assert_non_null(error);
	arena_free(a);
}

/* As NumPy: the divisor's sign, of zeros too; exact however large the quotient. */
static void
remainders_are_exact(void **state)
{
	static const struct { double x, y, want; } known[] = {
		{7, 3, 1}, {-7, 3, 2}, {7, -3, -2}, {-7, -3, -1}, {1e9, 3, 1}, {1e300, 7, 1}, {1000.5, 0.25, 0},
		{1, 0.1, 0.09999999999999995},
		{-9.01, 0x1p-126, 0}, {6, -3, -0.0}, {-6, 3, 0}, {-0.0, 5, 0}, {5, INFINITY, 5},
		{-5, INFINITY, INFINITY}, {5, -INFINITY, -INFINITY},
		{-5, -INFINITY, -5}, {1, 0, NAN}, {INFINITY, 2, NAN}, {NAN, 2, NAN}, {2, NAN, NAN}, {-5e-324, 1, 1},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		double v[7] = {known[i].x, known[i].y}, got = expr_eval(op_info[OP_mod].expr, v);

		if (!same(got, known[i].want) || (!isnan(got) && signbit(got) != signbit(known[i].want)))
			fail_msg("%g %% %g: %.17g, want %.17g", known[i].x, known[i].y, got, known[i].want);
	}
}

/* Where a function has a corner, its derivative is PyTorch's (2.15). */
static void
corners_are_pytorchs(void **state)
{
	static const struct { OpKind dx; double x, a, b, want; } known[] = {
		{OP_clamp_dx, -1, -1, 3, 0}, {OP_clamp_dx, 3, -1, 3, 0}, {OP_clamp_dx, 2, -1, 3, 1},
		{OP_clamp_dx, 4, -1, 3, 0}, {OP_relu_dx, 0, 0, 0, 0}, {OP_relu6_dx, 0, 0, 0, 0},
		{OP_relu6_dx, 6, 0, 0, 0}, {OP_leaky_relu_dx, 0, 0.2, 0, 0.2}, {OP_elu_dx, 0, 1.5, 0, 1.5},
		{OP_hardswish_dx, -3, 0, 0, 0}, {OP_hardswish_dx, 3, 0, 0, 1}, {OP_hardsigmoid_dx, -3, 0, 0, 0},
		{OP_hardsigmoid_dx, 3, 0, 0, 0}, {OP_abs_dx, 0, 0, 0, 0},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		/* x stands for the result too, which is at its corner there */
		const double v[7] = {known[i].x, 0, 0, known[i].x, 1, known[i].a, known[i].b};
		double got = expr_eval(op_info[known[i].dx].expr, v);

		if (got != known[i].want)
			fail_msg("%s at %g: %g, want %g", op_info[known[i].dx].name, known[i].x, got, known[i].want);
	}
}

static int64_t
whole(const char *text, int64_t x, int64_t y)
{
	const int64_t v[7] = {x, y};
	Arena *a = arena_new();
	const char *error = NULL;
	int64_t r = expr_eval_int(expr_parse(a, text, &error), v);

	arena_free(a);
	return r;
}

static void
integers_wrap(void **state)
{
	assert_int_equal(whole("x + y", INT64_MAX, 1), INT64_MIN);
	assert_int_equal(whole("x - y", INT64_MIN, 1), INT64_MAX);
	assert_int_equal(whole("x * y", 3037000500, 3037000500), -9223372036709301616);
	assert_int_equal(whole("-x", INT64_MIN, 0), INT64_MIN);
	assert_int_equal(whole("fabs(x)", INT64_MIN, 0), INT64_MIN);
	assert_int_equal(whole("idiv(x, y)", -7, 2), -4);
	assert_int_equal(whole("idiv(x, y)", INT64_MAX, -2), -4611686018427387904);
	assert_int_equal(whole("idiv(x, y)", INT64_MIN, -1), INT64_MIN);
	assert_int_equal(whole("imod(x, y)", INT64_MIN, -1), 0);
	assert_int_equal(whole("imod(x, y)", -7, 2), 1);
	assert_int_equal(whole("imod(x, y)", 9007199254740993, 2), 1);
	assert_int_equal(whole("idiv(x, y) + imod(x, y)", 9, 0), 0);
	assert_int_equal(whole("fmax(x, y) - fmin(x, y)", 9007199254740993, 9007199254740992), 1);
	assert_int_equal(whole("x == y || x < y ? 5 : 6", 9007199254740993, 9007199254740992), 6);
	assert_int_equal(dtype_saturate(DT_u8, 300), 255);
	assert_int_equal(dtype_saturate(DT_i32, INT64_MIN), INT32_MIN);
}

static void
expressions_refuse_nonsense(void **state)
{
	const char *bad[] = {"",   "x +", "1 / 2", "x ? y", "foo(x)", "w",  "exp x", "exp()",     "pow(x)", "exp(x, y)",
	                     "(x", "x)",  "1..2",  "x y",   "0x10",   "1e", "x = y", "1 / 2 * x", "inf"};
	char deep[4000];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		Arena *a = arena_new();
		const char *error = NULL;

		if (expr_parse(a, bad[i], &error))
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_non_null(error);
		arena_free(a);
	}
	for (int kind = 0; kind < 2; kind++) {
		Arena *a = arena_new();
		const char *error = NULL;

		memset(deep, kind ? '(' : '-', sizeof deep - 1);
		deep[sizeof deep - 1] = 0;
		assert_null(expr_parse(a, deep, &error));
		arena_free(a);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(operators_are_complete),
	        cmocka_unit_test(expressions_bind_as_in_c),
	        cmocka_unit_test(expressions_refuse_nonsense),
	        cmocka_unit_test(expressions_have_names),
	        cmocka_unit_test(remainders_are_exact),
	        cmocka_unit_test(corners_are_pytorchs),
	        cmocka_unit_test(integers_wrap),
	        cmocka_unit_test(pasted_is_parsed),
	        cmocka_unit_test(derivatives_are_differences),
	};

	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
