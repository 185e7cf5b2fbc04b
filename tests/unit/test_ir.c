/* test_ir.c: types and marks; building ops, broadcasting and its gradient; names, compaction, clones; what a target
 * looked at. */
#include "unit.h"
#include "ir.h"
#include "target.h"
#include <stdlib.h>
#include <string.h>

typedef struct World { Arena *a; Diags d; Module *m; Graph *g; Build b; } World;

static World
world(void)
{
	World w = {.a = arena_new()};

	diags_init(&w.d, w.a, stderr);
	w.m = module_new(w.a, NULL, "m");
	w.m->batch = 8;
	w.g = module_add_graph(w.m, "g");
	w.b = (Build){.g = w.g, .which = -1};
	return w;
}

static Type
type2(DType t, int64_t rows, int64_t columns)
{
	return type_of(t, 2, (Axis[]){axis(rows), axis(columns)});
}

static void
expect_type(const Type *t, const char *text)
{
	Buf b = {0};

	type_print(&b, t);
	assert_string_equal(b.at, text);
	buf_free(&b);
}

static void
types_print_and_measure(void **state)
{
	Type t = type_of(DT_f32, 4, (Axis[]){{64, 1, 1}, axis(6), axis(28), axis(28)}), half, s = type_scalar(DT_bool);

	expect_type(&t, "f32[N<=64,6,28,28]");
	expect_type(&s, "bool[]");
	half = type_of(DT_i32, 3, (Axis[]){{32, 1, 2}, {128, 2, 1}, {96, 3, 2}});
	expect_type(&half, "i32[N/2<=32,2N<=128,3N/2<=96]");
	assert_int_equal(type_elements(&t), 64 * 6 * 28 * 28);
	assert_int_equal(type_bytes(&t), 4 * 64 * 6 * 28 * 28);
	assert_true(type_marked(&t));
	assert_true(type_is_plain(&t));
	t.perm[0] = 2, t.perm[1] = 3, t.perm[2] = 0, t.perm[3] = 1;
	expect_type(&t, "f32[N<=64,6,28,28]@2301");
	assert_false(type_is_plain(&t));
	t.axis[1].n = (int64_t)1 << 50;
	t.axis[2].n = (int64_t)1 << 50;
	assert_int_equal(type_elements(&t), INT64_MAX);
}

static void
extents_follow_the_batch(void **state)
{
	assert_int_equal(axis_at((Axis){32, 1, 2}, 10, 64), 5);
	assert_int_equal(axis_at((Axis){128, 2, 1}, 10, 64), 20);
	assert_int_equal(axis_at(axis(7), 10, 64), 7);
}

static void
broadcasting_is_numpys(void **state)
{
	const struct { Type x, y; const char *result; } cases[] = {
		{type2(DT_f32, 3, 4), type_scalar(DT_f32), "f32[3,4]"},
		{type2(DT_f32, 3, 1), type2(DT_f32, 1, 4), "f32[3,4]"},
		{type_of(DT_f32, 1, (Axis[]){axis(4)}), type2(DT_f32, 3, 4), "f32[3,4]"},
		{type2(DT_f32, 3, 4), type2(DT_f32, 3, 5), NULL},
		{type2(DT_f32, 3, 4), type2(DT_i32, 3, 4), NULL},
		{type2(DT_bool, 3, 4), type2(DT_bool, 3, 4), NULL},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		World w = world();
		Val x = graph_add_input(w.g, cases[i].x, "x", IN_DATA),
		    y = graph_add_input(w.g, cases[i].y, "y", IN_DATA);
		Val r = build(&w.b, OP_add, x, y);

		assert_int_equal(r.id != 0, cases[i].result != NULL);
		assert_int_equal(w.b.error == NULL, cases[i].result != NULL);
		if (r.id)
			expect_type(val_type(w.g, r), cases[i].result);
		assert_int_equal(w.g->op.n, r.id ? 1 : 0);
		assert_int_equal(w.g->val.n, r.id ? 4 : 3);
		arena_free(w.a);
	}
}

static void
comparisons_and_where(void **state)
{
	World w = world();
	Val x = graph_add_input(w.g, type2(DT_i32, 3, 4), "x", IN_DATA),
	    f = graph_add_input(w.g, type2(DT_f32, 3, 4), "f", IN_DATA);
	Val c = build(&w.b, OP_lt, x, x);

	expect_type(val_type(w.g, c), "bool[3,4]");
	expect_type(val_type(w.g, build(&w.b, OP_where, c, f, f)), "f32[3,4]");
	expect_type(val_type(w.g, build(&w.b, OP_where_dy, c, f)), "f32[3,4]");
	expect_type(val_type(w.g, build(&w.b, OP_not, c)), "bool[3,4]");
	assert_null(w.b.error);
	assert_int_equal(build(&w.b, OP_where, f, f, f).id, 0);
	assert_non_null(strstr(w.b.error, "needs bool"));
	assert_int_equal(w.b.which, 0);
	assert_int_equal(build(&w.b, OP_relu, NOVAL).id, 0); /* silent after an error */
	w.b.error = NULL;
	assert_int_equal(build(&w.b, OP_relu, x).id, 0);
	assert_non_null(strstr(w.b.error, "a floating type"));
	arena_free(w.a);
}

static void
marks_unify_or_bind_the_batch(void **state)
{
	World w = world();
	Axis n = {8, 1, 1};
	Val x = graph_add_input(w.g, type_of(DT_f32, 2, (Axis[]){n, axis(4)}), "x", IN_DATA);
	Val c = graph_add_input(w.g, type2(DT_f32, 1, 4), "c", IN_DATA),
	    full = graph_add_input(w.g, type2(DT_f32, 8, 4), "full", IN_DATA);

	expect_type(val_type(w.g, build(&w.b, OP_add, x, c)), "f32[N<=8,4]");
	assert_false(w.g->full_only);
	expect_type(val_type(w.g, build(&w.b, OP_add, x, full)), "f32[N<=8,4]");
	assert_true(w.g->full_only);
	assert_non_null(w.g->full_why);
	arena_free(w.a);
}

static void
reductions_have_their_types(void **state)
{
	World w = world();
	const int64_t axes[] = {2, 0};
	Axis a[] = {{8, 1, 1}, axis(3), axis(5)};
	Val f = graph_add_input(w.g, type_of(DT_f32, 3, a), "f", IN_DATA),
	    i = graph_add_input(w.g, type_of(DT_u8, 3, a), "i", IN_DATA);
	Val c = graph_add_input(w.g, type_of(DT_bool, 3, a), "c", IN_DATA);

	expect_type(val_type(w.g, build_reduce(&w.b, OP_sum, f, axes, 2, false)), "f32[3]");
	assert_int_equal(build_last(&w.b)->attr[0].list[0], 0); /* sorted */
	expect_type(val_type(w.g, build_reduce(&w.b, OP_sum, f, axes, 2, true)), "f32[1,3,1]");
	expect_type(val_type(w.g, build_reduce(&w.b, OP_sum, i, axes, 1, false)), "i64[N<=8,3]");
	expect_type(val_type(w.g, build_reduce(&w.b, OP_sum, c, axes, 1, false)), "i32[N<=8,3]");
	expect_type(val_type(w.g, build_reduce(&w.b, OP_argmax, f, axes, 1, false)), "i32[N<=8,3]");
	expect_type(val_type(w.g, build_reduce(&w.b, OP_max, i, axes, 1, false)), "u8[N<=8,3]");
	build_reduce(&w.b, OP_moments, f, axes, 2, false);
	assert_int_equal(build_last(&w.b)->nout, 2);
	expect_type(val_type(w.g, build_last(&w.b)->out[1]), "f32[3]");
	assert_null(w.b.error);
	assert_int_equal(build_reduce(&w.b, OP_mean, i, axes, 1, false).id, 0);
	assert_int_equal(build_reduce(&w.b, OP_sum, f, (int64_t[]){1, 1}, 2, false).id, 0);
	assert_int_equal(build_reduce(&w.b, OP_sum, f, (int64_t[]){3}, 1, false).id, 0);
	arena_free(w.a);
}

static void
sum_to_undoes_broadcasting(void **state)
{
	const Type to[] = {type_scalar(DT_f32), type2(DT_f32, 3, 4), type2(DT_f32, 1, 4), type2(DT_f32, 3, 1),
	                   type2(DT_f32, 1, 1)};
	const int ops[] = {1, 0, 2, 2, 2};

	for (int i = 0; i < 5; i++) {
		World w = world();
		Val g = graph_add_input(w.g, type2(DT_f32, 3, 4), "g", IN_DATA);
		Val r = build_sum_to(&w.b, g, &to[i]);

		assert_true(type_same(val_type(w.g, r), &to[i]));
		assert_int_equal(w.g->op.n, ops[i]);
		arena_free(w.a);
	}
}

static void
no_op_is_made_for_nothing(void **state)
{
	World w = world();
	Type t = type2(DT_f32, 3, 4);
	Val x = graph_add_input(w.g, t, "x", IN_DATA);

	assert_int_equal(build_cast(&w.b, x, DT_f32).id, x.id);
	assert_int_equal(build_reshape(&w.b, x, 2, t.axis).id, x.id);
	assert_int_equal(build_expand(&w.b, x, 2, t.axis).id, x.id);
	assert_int_equal(build_transpose(&w.b, x, (int64_t[]){0, 1}).id, x.id);
	assert_int_equal(w.g->op.n, 0);
	expect_type(val_type(w.g, build_transpose(&w.b, x, (int64_t[]){1, 0})), "f32[4,3]");
	expect_type(val_type(w.g, build_cast(&w.b, x, DT_bool)), "bool[3,4]");
	arena_free(w.a);
}

static void
numbers_are_kept_in_one_way(void **state)
{
	World w = world();

	build_const(&w.b, DT_f32, 2.0);
	assert_int_equal(build_last(&w.b)->attr[0].is_int, 1);
	assert_int_equal(attr_int(build_last(&w.b), A_value), 2);
	assert_true(attr_num(build_last(&w.b), A_value) == 2.0);
	build_const(&w.b, DT_f32, -0.0);
	assert_int_equal(build_last(&w.b)->attr[0].is_int, 0);
	build_const(&w.b, DT_f32, 0.5);
	assert_true(attr_num(build_last(&w.b), A_value) == 0.5);
	arena_free(w.a);
}

static void
names_come_from_layers(void **state)
{
	World w = world();
	Val x = graph_add_input(w.g, type2(DT_f32, 3, 4), "x", IN_DATA), r;

	r = build(&w.b, OP_relu, x);
	assert_string_equal(val_info(w.g, r)->name, "relu");
	assert_string_equal(val_info(w.g, build(&w.b, OP_relu, r))->name, "relu.1");
	w.b.path = "stage0.relu3";
	assert_string_equal(val_info(w.g, build(&w.b, OP_relu, r))->name, "stage0.relu3");
	assert_string_equal(val_info(w.g, build(&w.b, OP_relu_dx, r, r))->name, "stage0.relu3.dx");
	assert_string_equal(val_info(w.g, build(&w.b, OP_exp, r))->name, "stage0.relu3.exp");
	assert_string_equal(val_info(w.g, build(&w.b, OP_relu, r))->name, "stage0.relu3.1");
	assert_string_equal(val_info(w.g, graph_add_val(w.g, type_scalar(DT_f32), "a b", UINT32_MAX, 0))->name, "a_b");
	assert_string_equal(val_info(w.g, graph_add_val(w.g, type_scalar(DT_f32), "relu.1", UINT32_MAX, 0))->name,
	                    "relu.2");
	arena_free(w.a);
}

static void
compaction_keeps_names_and_meaning(void **state)
{
	World w = world();
	Val x = graph_add_input(w.g, type2(DT_f32, 3, 4), "x", IN_DATA);
	Val a = build(&w.b, OP_relu, x), b = build(&w.b, OP_exp, x), c = build(&w.b, OP_add, a, b),
	    unused = build(&w.b, OP_neg, c);
	Buf errors = {0};

	graph_add_result(w.g, c, "c", RES_OUTPUT);
	val_op(w.g, unused)->dead = true;
	val_op(w.g, c)->in[1] = a;
	val_op(w.g, b)->dead = true;
	graph_compact(w.g);
	assert_int_equal(w.g->op.n, 2);
	assert_int_equal(w.g->val.n, 4);
	assert_string_equal(val_info(w.g, w.g->result.at[0].v)->name, "add");
	assert_true(module_verify(w.m, &errors));
	arena_free(w.a);
}

static void
clones_stand_alone(void **state)
{
	World w = world();
	Val x = graph_add_input(w.g, type2(DT_f32, 3, 4), "x", IN_DATA);
	Arena *other = arena_new();
	Buf before = {0}, after = {0};
	Module *copy;

	w.b.path = "layer0";
	graph_add_result(w.g, build_reduce(&w.b, OP_sum, x, (int64_t[]){1}, 1, false), "y", RES_OUTPUT);
	module_add_state(w.m, "s", type2(DT_f32, 3, 4), ST_PARAM);
	build_op(&w.b, OP_store, &x, 1, ATTRS(AS(state, "s")), NULL);
	module_print(&before, w.m);
	copy = module_clone(w.m, other);
	arena_free(w.a);
	module_print(&after, copy);
	assert_string_equal(before.at, after.at);
	buf_free(&before);
	buf_free(&after);
	arena_free(other);
}

/* A target may look at any number of variants for one op. */
static void
variants_are_counted_by_nobody(void **state)
{
	enum { MANY = 40 };
	World w = world();
	SelectCx cx = {0};
	Op op = {0};

	(void)state;
	for (int i = 0; i < MANY; i++)
		select_look(&cx, w.g, &op, arena_printf(w.a, "v%d", i))->value = i;
	assert_int_equal(cx.looked.n, MANY);
	for (int i = 0; i < MANY; i++)
		assert_true(select_looked(&cx, arena_printf(w.a, "v%d", i))->value == i);
	assert_null(select_looked(&cx, "v40"));
	select_overrule(&cx, "v39", true);
	assert_true(select_looked(&cx, "v39")->chosen);
	arena_free(w.a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(types_print_and_measure), cmocka_unit_test(extents_follow_the_batch),
		cmocka_unit_test(broadcasting_is_numpys), cmocka_unit_test(comparisons_and_where),
		cmocka_unit_test(marks_unify_or_bind_the_batch), cmocka_unit_test(reductions_have_their_types),
		cmocka_unit_test(sum_to_undoes_broadcasting), cmocka_unit_test(no_op_is_made_for_nothing),
		cmocka_unit_test(numbers_are_kept_in_one_way), cmocka_unit_test(names_come_from_layers),
		cmocka_unit_test(compaction_keeps_names_and_meaning), cmocka_unit_test(clones_stand_alone),
		cmocka_unit_test(variants_are_counted_by_nobody),
	};

	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
