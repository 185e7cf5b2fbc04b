/* test_kernels.c: kernels in CUDA C, compiled by NVRTC for three architectures, against the same computation in C.
 *
 * In: NVRTC, if there is one.   Out: checks; one skip a group where it is missing. Text in BOTH(...) is compiled for
 * the device and by the C compiler. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define STRING(...) #__VA_ARGS__
#define BOTH(name, ...) __VA_ARGS__ static const char name[] = "__device__ " STRING(__VA_ARGS__);

/* Loops whose lanes part: counts, breaks, a switch that becomes a table, integer division. */
BOTH(text_walk, static __attribute__((noinline)) unsigned walk(unsigned x, unsigned steps)
{
	unsigned h = 17;
	for (unsigned i = 0; i < steps && x != 1; i++) {
		switch (x % 7) {
		case 0: h = h * 31 + x; break;
		case 1: h ^= x << 3; break;
		case 2: h += x / (i + 1); break;
		case 3: h -= x % (i + 3); break;
		case 4: h = (h << 5) | (h >> 27); break;
		case 5: if (h & 1) continue; h ^= 0x9e3779b9u; break;
		default: h = ~h;
		}
		x = x & 1 ? 3 * x + 1 : x / 2;
	}
	return h ^ x;
})

BOTH(text_wide, static long long wide(long long a, long long b, unsigned n)
{
	unsigned long long r = 0;
	for (unsigned i = 0; i < n; i++) {
		r += (unsigned long long)(a / (b | 3)) + (unsigned long long)(a % ((b >> 7) | 2)) +
		     ((unsigned long long)a * (unsigned long long)b >> 11);
		a = (long long)((unsigned long long)a << 13) ^ (a >> 7) ^ b;
		b = (long long)((unsigned long long)b * 6364136223846793005ull + 1442695040888963407ull);
	}
	return (long long)r;
})


static CUmodule module;
static const char *arch;

static CUresult
go(const char *kernel, unsigned grid, unsigned block, unsigned dynamic, void **params)
{
	return test_launch(test_function(module, kernel), grid, block, dynamic, params);
}

static void
kernels_integer(void)
{
	enum { N = 1000 };
	static unsigned w[N];
	static long long l[N];
	CUdeviceptr a = test_room(sizeof w), b = test_room(sizeof l);
	unsigned n = N;
	void *pa[] = { &a, &n }, *pb[] = { &b, &n };
	int wrong = 0;

	check(!go("k_walk", 8, 128, 0, pa) && !go("k_wide", 8, 128, 0, pb), "%s: integer kernels run", arch);
	test_download(w, a, sizeof w);
	test_download(l, b, sizeof l);
	for (unsigned i = 0; i < N; i++)
		wrong += w[i] != walk(i * 2654435761u >> 12, i % 97);
	check(!wrong, "%s: parting lanes: %d of %d wrong", arch, wrong, N);
	wrong = 0;
	for (unsigned i = 0; i < N; i++)
		wrong += l[i] != wide((long long)(0x123456789abcdefull * (i + 1)),
		                      (long long)(i * 0x9e3779b97f4a7c15ull), i % 13);
	check(!wrong, "%s: 64-bit integers: %d of %d wrong", arch, wrong, N);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

static double
math_want(int k, double v)
{
	switch (k) {
	case 0: case 10: return exp(v);
	case 1: return log(fabs(v));
	case 2: return tanh(v);
	case 3: return pow(fabs(v), (double)1.7f);
	case 4: return sin((double)((float)v * 1000.0f));
	case 5: return erf(v);
	case 6: return 1 / sqrt(fabs(v));
	case 7: return 1 / v;
	case 8: return fmod(v, (double)0.37f);
	case 9: return cbrt(v);
	default: return log1p(fabs(v));
	}
}

static void
kernels_math(void)
{
	enum { N = 512, K = 12 };
	static float x[N], y[N * K];
	CUdeviceptr a, b = test_room(sizeof y);
	unsigned n = N;
	void *p[] = { &b, &a, &n };
	double worst[K] = { 0 };

	for (int i = 0; i < N; i++)
		x[i] = (float)((int)random32() * 0x1p-28);
	a = test_upload(x, sizeof x);
	check(!go("k_math", 4, 128, 0, p), "%s: math kernel runs", arch);
	test_download(y, b, sizeof y);
	for (int k = 0; k < K; k++)
		for (int i = 0; i < N; i++) {
			double w = math_want(k, (double)x[i]), e = fabs((double)y[k * N + i] - w) / (fabs(w) + 1e-30);

			worst[k] = e > worst[k] ? e : worst[k];
		}
	for (int k = 0; k < K; k++)
		check(worst[k] < (k == 4 ? 1e-4 : 1e-6), "%s: function %d is wrong by %.1e", arch, k, worst[k]);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

static void
kernels_reduce(void)
{
	enum { N = 5000 };
	static float x[N];
	struct { float v[4]; int k; int pad[3]; } pack = { { 1, 2, 3, 4 }, 2, { 0 } };
	float to[2] = { 0 };
	CUdeviceptr a, b = test_upload(to, sizeof to), visits = 0;
	unsigned n = N;
	void *p[] = { &b, &a, &n, &pack };
	double want = 0;
	size_t bytes = 0;
	int count = 0;

	for (int i = 0; i < N; i++)
		want += (double)(x[i] = (float)(random32() % 64));
	a = test_upload(x, sizeof x);
	check(!go("k_reduce", 7, 256, 0, p), "%s: reduction runs", arch);
	test_download(to, b, sizeof to);
	check((double)to[0] == want, "%s: sum %g, not %g", arch, (double)to[0], want);
	check(to[1] == 0.5f + 3 + 7.5f + 14, "%s: function with constants gives %g", arch, (double)to[1]);
	check(!cu.cuModuleGetGlobal_v2(&visits, &bytes, module, "visits") && bytes == 4, "%s: a variable is found",
	      arch);
	test_download(&count, visits, 4);
	check(count == 5 + 7 * 2, "%s: variable counts %d", arch, count);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

static void
kernels_shared(void)
{
	enum { N = 3001, M = 96 };
	static unsigned char x[N];
	static unsigned bin[256], want[256];
	static float in[M * M], out[M * M];
	CUdeviceptr a, b, c, e = test_room(sizeof out);
	unsigned n = N;
	int m = M, wrong = 0;
	void *ph[] = { &b, &a, &n }, *pt[] = { &e, &c, &m };

	for (int i = 0; i < N; i++)
		want[x[i] = (unsigned char)(random32() % 50)]++;
	for (int i = 0; i < M * M; i++)
		in[i] = (float)i;
	a = test_upload(x, sizeof x);
	b = test_upload(bin, sizeof bin);
	c = test_upload(in, sizeof in);
	check(!go("k_histogram", 3, 128, 1024, ph), "%s: histogram runs", arch);
	test_download(bin, b, sizeof bin);
	check(!memcmp(bin, want, sizeof bin), "%s: histogram", arch);
	CUresult r =
	        cu.cuLaunchKernel(test_function(module, "k_transpose"), M / 32, M / 32, 1, 32, 8, 1, 0, NULL, pt, NULL);

	check(!r && !cu.cuCtxSynchronize(), "%s: transpose runs", arch);
	test_download(out, e, sizeof out);
	for (int i = 0; i < M * M; i++)
		wrong += out[i] != in[i % M * M + i / M];
	check(!wrong, "%s: transpose: %d wrong", arch, wrong);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
	cu.cuMemFree_v2(c);
	cu.cuMemFree_v2(e);
}

static void
kernels_votes(void)
{
	unsigned v[256], wrong = 0;
	int met[6] = { 0 }, local[32], zero = 0, k = 5, n = 0;
	double sum = 0;
	uint64_t bits = 0;
	CUdeviceptr a = test_room(sizeof v), count = test_upload(&zero, 4), to = test_room(sizeof met),
	            s = test_upload(&sum, 8), b = test_upload(&bits, 8), l = test_room(sizeof local);
	void *pv[] = { &a }, *pm[] = { &count, &to }, *pd[] = { &s, &b, &n }, *pl[] = { &l, &k };

	check(!go("k_votes", 1, 32, 0, pv), "%s: votes run", arch);
	test_download(v, a, sizeof v);
	for (unsigned t = 0; t < 32; t++) {
		unsigned group = 0, r = 0;

		for (unsigned j = 0; j < 32; j++) {
			group |= (unsigned)(j / 5 == t / 5) << j;
			r |= (t >> j & 1) << (31 - j);
		}
		wrong += v[t] != 0x49249249 || v[32 + t] || !v[64 + t] || v[96 + t] != group ||
		         v[128 + t] != (t % 2 ? 0xaaaaaaaa : 6) || v[160 + t] != (t % 8 < 3 ? t : t - 3) ||
		         v[192 + t] != 9 ||
		         v[224 + t] != (unsigned)__builtin_popcount(t) + (t ? (unsigned)__builtin_clz(t) : 32) +
		                               (unsigned)__builtin_ffs((int)t) + r;
	}
	check(!wrong, "%s: votes: %u lanes wrong", arch, wrong);
	check(!go("k_meet", 6, 32, 0, pm), "%s: blocks that wait for later ones", arch);
	test_download(met, to, sizeof met);
	check(met[0] == 6 && met[5] == 6, "%s: blocks meet: %d %d", arch, met[0], met[5]);
	check(!go("k_double", 2, 64, 0, pd), "%s: atomics run", arch);
	test_download(&sum, s, 8);
	test_download(&bits, b, 8);
	check(sum == 2 * 0.25 * 63 * 32 && bits == 63ull << 33, "%s: atomics: %g, %llx", arch, sum,
	      (unsigned long long)bits);
	check(!go("k_local", 1, 32, 0, pl), "%s: local arrays run", arch);
	test_download(local, l, sizeof local);
	for (int t = 0; t < 32; t++) {
		int x[24], r = 0;

		for (int i = 0; i < 24; i++)
			x[i] = i * i;
		for (int i = 0; i < 24; i++)
			x[(i * 7 + k) % 24] += x[(i + t) % 24];
		for (int i = 0; i < 24; i++)
			r = (int)((unsigned)r * 3u + (unsigned)x[i]);
		wrong += local[t] != r;
	}
	check(!wrong, "%s: local arrays: %u wrong", arch, wrong);
}

void
test_kernels(void)
{
	static const char *const archs[] = { "compute_75", "compute_80", "compute_90a" };
	static char source[32768];
	char *rest;

	if (!test_has_nvrtc()) {
		skip("kernels: no NVRTC");
		return;
	}
	rest = test_source("kernels.cu");
	snprintf(source, sizeof source, "%s\n%s\n%s", text_walk, text_wide, rest);
	free(rest);
	for (int k = 0; k < 3; k++) {
		char *ptx;

		arch = archs[k];
		ptx = test_nvrtc(source, arch);
		module = ptx ? test_module(ptx) : NULL;
		free(ptx);
		if (!module)
			continue;
		kernels_integer();
		kernels_math();
		kernels_reduce();
		kernels_shared();
		kernels_votes();
		cu.cuModuleUnload(module);
	}
}
