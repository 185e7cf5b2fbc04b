/* test_speed.c: how fast the interpreter is: instructions of threads in a second. Not part of the suite: `simtest
 * speed` prints it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test.h"


static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
speed(const char *name, CUmodule m, const unsigned *grid, const unsigned *block, void **params, double work,
      const char *unit)
{
	CUfunction f = test_function(m, name);
	double best = 1e9;

	for (int k = 0; k < 3; k++) {
		double start = now();

		cu.cuLaunchKernel(f, grid[0], grid[1], 1, block[0], block[1], 1, 0, NULL, params, NULL);
		cu.cuCtxSynchronize();
		best = now() - start < best ? now() - start : best;
	}
	printf("%-12s %8.2f ms  %8.1f M %s/s\n", name, best * 1e3, work / best * 1e-6, unit);
}

void
test_speed(void)
{
	enum { N = 1 << 18, M = 128 };
	char *source = test_source("speed.cu"), *ptx = test_nvrtc(source, "compute_80");
	CUmodule m = ptx ? test_module(ptx) : NULL;
	float *zero = calloc(N, 4);
	int loops = 100, n = N, side = M, mmas = 2000;

	free(source);
	free(ptx);
	if (!m || !zero) {
		skip("speed: no NVRTC");
		return;
	}
	CUdeviceptr x = test_upload(zero, N * 4), y = test_upload(zero, N * 4);
	void *pa[] = { &x, &loops }, *ps[] = { &y, &x, &n }, *pt[] = { &y, &x, &x, &side }, *pm[] = { &y, &mmas };

	speed("arithmetic", m, (unsigned[]){ 256, 1 }, (unsigned[]){ 256, 1 }, pa, 65536.0 * loops * 4, "fma");
	speed("stream", m, (unsigned[]){ 64, 1 }, (unsigned[]){ 256, 1 }, ps, N, "elements");
	speed("tile", m, (unsigned[]){ M / 16, M / 16 }, (unsigned[]){ 16, 16 }, pt, (double)M * M * M, "products");
	speed("tensor", m, (unsigned[]){ 8, 1 }, (unsigned[]){ 32, 1 }, pm, 8.0 * mmas * 16 * 8 * 16, "products");
	free(zero);
}
