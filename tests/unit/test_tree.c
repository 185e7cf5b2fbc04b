/* test_tree.c: the tree of shards: for every S up to 64 and every number of ranks, pieces joined in any order give the
 * sum that one process makes.
 *
 * Numbers are such that another order of additions shows: each leaf has bits that a wrong sum would round away. */
#include "unit.h"
#include "../../runtime/host.h"
#include <string.h>

static int64_t
cut(int64_t n)
{
	int64_t k = 1;

	while (2 * k < n)
		k *= 2;
	return k;
}

static float
leaf(int64_t k)
{
	uint32_t x = (uint32_t)k * 2654435761u + 12345;

	return (float)(int32_t)x * 0x1p-31f * (float)(1 << k % 7);
}

static float
tree(int64_t a, int64_t n)
{
	float left, right, sum;

	if (n == 1)
		return leaf(a);
	left = tree(a, cut(n));
	right = tree(a + cut(n), n - cut(n));
	rt_sum(RT_F32, (uint8_t *)&sum, (uint8_t *)&left, (uint8_t *)&right, 1);
	return sum;
}

/* The stack of one process, as rt_merge keeps it: every pair that is complete is added at once. */
static float
stack(int64_t shards)
{
	RtNode node[RT_MAX_NODES], parent;
	float sum[RT_MAX_NODES];
	int n = 0;
	bool right;

	for (int64_t k = 0; k < shards; k++) {
		node[n] = (RtNode){k, 1};
		sum[n++] = leaf(k);
		while (n > 1 && rt_tree_parent(shards, node[n - 1], &parent, &right) && right &&
		       node[n - 2].a == parent.a) {
			rt_sum(RT_F32, (uint8_t *)&sum[n - 2], (uint8_t *)&sum[n - 2], (uint8_t *)&sum[n - 1], 1);
			node[--n - 1] = parent;
		}
	}
	assert_int_equal(n, 1);
	assert_int_equal(node[0].n, shards);
	return sum[0];
}

static void
one_process(void **state)
{
	(void)state;
	for (int64_t s = 1; s <= 64; s++) {
		float want = tree(0, s), got = stack(s);

		assert_memory_equal(&want, &got, 4);
	}
}

/* Every piece is a node, they follow each other, no two of them make one together, and one does where P divides S into
 * powers of two. */
static void
pieces(void **state)
{
	(void)state;
	for (int64_t s = 1; s <= 64; s++)
		for (int64_t p = 1; p <= s; p++)
			for (int64_t r = 0; r < p; r++) {
				int64_t lo = r * s / p, hi = (r + 1) * s / p, at = lo, each = hi - lo;
				RtNode x[RT_MAX_NODES], a, b;
				int n = rt_tree_pieces(s, lo, hi, x);
				bool right, other;

				for (int i = 0; i < n; i++) {
					assert_int_equal(x[i].a, at);
					at += x[i].n;
					if (x[i].n < s)
						assert_true(rt_tree_parent(s, x[i], &a, &right));
					if (i && rt_tree_parent(s, x[i - 1], &a, &right) &&
					    rt_tree_parent(s, x[i], &b, &other))
						assert_false(a.a == b.a && a.n == b.n);
				}
				assert_int_equal(at, hi);
				if (s % p == 0 && (each & (each - 1)) == 0)
					assert_int_equal(n, 1);
			}
}

static void
no_node(void **state)
{
	RtNode parent;
	bool right;

	(void)state;
	assert_false(rt_tree_parent(8, (RtNode){0, 8}, &parent, &right));
	assert_false(rt_tree_parent(8, (RtNode){1, 2}, &parent, &right));
	assert_true(rt_tree_parent(7, (RtNode){4, 3}, &parent, &right));
	assert_true(right && parent.a == 0 && parent.n == 7);
	assert_true(rt_tree_parent(7, (RtNode){4, 2}, &parent, &right));
	assert_true(!right && parent.a == 4 && parent.n == 3);
}

/* One rounding of the exact sum, to nearest even; denormals stay. */
static void
narrow(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 65536; i += 37)
		for (uint32_t k = 0; k < 65536; k += 1021) {
			uint16_t a = (uint16_t)i, b = (uint16_t)k, got;
			double exact = (double)rt_f16_to_f32(a) + (double)rt_f16_to_f32(b);
			uint8_t want[2];

			rt_sum(RT_F16, (uint8_t *)&got, (uint8_t *)&a, (uint8_t *)&b, 1);
			if (exact == exact)
				assert_int_equal(got, rt_f64_to_f16(exact));
			exact = (double)rt_bf16_to_f32(a) + (double)rt_bf16_to_f32(b);
			rt_sum(RT_BF16, (uint8_t *)&got, (uint8_t *)&a, (uint8_t *)&b, 1);
			rt_dtype_write(RT_BF16, want, exact);
			if (exact == exact)
				assert_memory_equal(&got, want, 2);
		}
	float tiny = 0x1p-149f, sum;

	rt_sum(RT_F32, (uint8_t *)&sum, (uint8_t *)&tiny, (uint8_t *)&tiny, 1);
	assert_true(sum == 0x1p-148f);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(one_process),
	        cmocka_unit_test(pieces),
	        cmocka_unit_test(no_node),
	        cmocka_unit_test(narrow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
