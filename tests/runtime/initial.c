/* initial.c: initial values are those of philox.h, bit by bit: in every vector form that this CPU runs, for any
 * number of threads, in every order of memory and element type. It takes init.c in, whose vector forms nobody else can
 * name. */
#include "../../runtime/init.c"

#include <stdio.h>
#include <stdlib.h>

static int passed, failed;
#define CHECK(x, ...) \
	((x) ? (void)passed++ \
	     : (failed++, (void)printf("FAIL %d: %s: ", __LINE__, #x), (void)printf(__VA_ARGS__), (void)printf("\n")))

static double
truth(uint64_t seed, uint32_t stream, char init, double a, double b, int64_t j)
{
	if (init == 'n')
		return b * philox_normal(seed, stream, 0, (uint64_t)j) + a;
	return a + (b - a) * philox_uniform(seed, stream, 0, (uint64_t)j);
}

static void
check_form(const char *name, BlockFn *draw)
{
	static const struct { char init; double a, b;
	} kind[] = {
	        {'n', 0, 1}, {'n', 0, 0.0294627825}, {'n', 3, 0.25}, {'n', -1e-3, 1e-30}, {'n', 0, 1e30},
	        {'n', 0, 0}, {'u', -0.1, 0.1},       {'u', 0, 3},
	};
	int64_t doubtful = 0, wrong = 0, all = 0;

	for (int k = 0; k < RT_COUNT(kind); k++) {
		int64_t from = k & 1 ? ((int64_t)1 << 34) - 128 * BLOCK : 0; /* across 2^32 groups */

		for (int64_t j = from; j < from + 256 * BLOCK; j += BLOCK) {
			Block b;

			draw(&b, kind[k].init, 7, 0xfedcba98u, (uint64_t)j >> 2, kind[k].a, kind[k].b);
			for (int i = 0; i < BLOCK; i++) {
				float x = (float)truth(7, 0xfedcba98u, kind[k].init, kind[k].a, kind[k].b, j + i);
				bool doubt = b.doubtful[i & 3][i >> 2];

				wrong += !doubt && memcmp(&x, &b.low[i & 3][i >> 2], 4) != 0;
				doubtful += doubt && kind[k].b == 1;
				all += kind[k].b == 1;
			}
		}
	}
	CHECK(wrong == 0, "%s: %lld", name, (long long)wrong);
	CHECK(doubtful * 1000 < all, "%s: %lld of %lld drawn twice", name, (long long)doubtful, (long long)all);
}

/* All 2^24 radii and all 2^24 angles stay far within the bound of block_round. */
static void
check_bounds(void)
{
	double radius = 0, turn = 0;

	for (int64_t from = 0; from < 1 << 24; from += GROUPS) {
		uint32_t n[GROUPS];
		double r[GROUPS], c[GROUPS], s[GROUPS];

		for (int i = 0; i < GROUPS; i++)
			n[i] = (uint32_t)(from + i) << 8;
		block_radius(r, n);
		block_turn(c, s, n);
		for (int i = 0; i < GROUPS; i++) {
			double angle = 6.283185307179586476925286766559 * philox_unit(n[i]),
			       is = sqrt(-2.0 * log(1.0 - philox_unit(n[i])));

			radius = fmax(radius, is > 0 ? fabs(r[i] - is) / is : fabs(r[i]));
			turn = fmax(turn, fmax(fabs(c[i] - cos(angle)), fabs(s[i] - sin(angle))));
		}
	}
	CHECK(radius < 0x1p-47 && turn < 0x1p-47, "%g %g", radius, turn);
}

static void
check_states(int threads)
{
	RtState state[] = {
	        {.t = {.name = "a.weight", .dtype = RT_F32, .rank = 2, .shape = {300, 101}, .count = 30300},
	         .init = 'n',
	         .b = 0.05},
	        {.t = {.name = "b.weight",
	               .dtype = RT_F32,
	               .rank = 4,
	               .shape = {24, 5, 3, 3},
	               .count = 1080,
	               .permuted = true,
	               .stride = {1, 24, 360, 120}},
	         .init = 'n',
	         .a = 1,
	         .b = 2},
	        {.t = {.name = "c.weight", .dtype = RT_F64, .rank = 1, .shape = {5001}, .count = 5001},
	         .init = 'n',
	         .b = 1},
	        {.t = {.name = "d.weight", .dtype = RT_F32, .rank = 1, .shape = {3}, .count = 3},
	         .init = 'u',
	         .a = -1,
	         .b = 1},
	        {.t = {.name = "e.bias", .dtype = RT_F32, .rank = 1, .shape = {9}, .count = 9}, .init = 'c', .a = 0.5},
	        {.t = {.name = "f.weight", .dtype = RT_BF16, .rank = 1, .shape = {77}, .count = 77},
	         .init = 'u',
	         .a = 0,
	         .b = 4},
	};
	static RtHost h;
	int64_t room = 0, wrong = 0;

	memset(&h, 0, sizeof h);
	for (int k = 0; k < RT_COUNT(state); k++) {
		state[k].t.offset = room;
		room += (state[k].t.count * rt_dtype[state[k].t.dtype].bytes + 63) / 64 * 64;
	}
	h.run.seed = 11;
	h.run.arena = rt_alloc((size_t)room);
	h.program.state = state;
	h.program.nstate = RT_COUNT(state);
	h.threads = rt_threads_new(threads, &h.error);
	CHECK(h.threads && rt_host_init_state(&h), "%s", h.error.text);
	for (int k = 0; k < RT_COUNT(state); k++) {
		const RtTensor *t = &state[k].t;

		for (int64_t j = 0; j < t->count; j++) {
			int64_t at = t->permuted ? rt_tensor_place(t, j) : j, bytes = rt_dtype[t->dtype].bytes;
			uint8_t x[8];

			rt_dtype_write(t->dtype, x,
			               state[k].init == 'c' ? state[k].a
			                                    : truth(11, philox_stream(t->name), state[k].init,
			                                            state[k].a, state[k].b, j));
			wrong += memcmp(x, h.run.arena + t->offset + at * bytes, (size_t)bytes) != 0;
		}
	}
	CHECK(wrong == 0, "%lld with %d threads", (long long)wrong, threads);
	rt_threads_free(h.threads);
	free(h.run.arena);
}

int
main(void)
{
	check_form("plain", block_any);
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2"))
		check_form("avx2", block_avx2);
	if (block_choose() == block_avx512)
		check_form("avx512", block_avx512);
#endif
	check_bounds();
	check_states(1);
	check_states(3);
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed > 0;
}
