/* test_speed.c: how fast the interpreter is: instructions of threads in a second. Not part of the suite: `simtest speed` prints it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test.h"

static const char text[] =
	"extern \"C\" __global__ void arithmetic(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; float a = x[i], b = a * 0.5f, c = a + 1, d = b - 2;\n"
	"  for (int k = 0; k < n; k++) { a = a * 1.0001f + b; b = b * 0.9999f + c; c = c * 0.5f + d; d = d * 0.25f + a; } x[i] = a + b + c + d; }\n"
	"extern \"C\" __global__ void stream(float *y, const float *x, int n) { for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] > 0 ? x[i] * 2.0f + y[i] : 0; }\n"
	"extern \"C\" __global__ void tile(float *c, const float *a, const float *b, int n) { __shared__ float s[16][16], t[16][16]; int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, q = blockIdx.x * 16 + x; float v = 0;\n"
	"  for (int k = 0; k < n; k += 16) { s[y][x] = a[r * n + k + x]; t[y][x] = b[(k + y) * n + q]; __syncthreads(); for (int i = 0; i < 16; i++) v += s[y][i] * t[i][x]; __syncthreads(); } c[r * n + q] = v; }\n"
	"extern \"C\" __global__ void tensor(float *d, int n) { unsigned a = threadIdx.x, b = 0x3f803f80; float c0 = 0, c1 = 0, c2 = 0, c3 = 0; for (int i = 0; i < n; i++)\n"
	"  asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};\" : \"+f\"(c0), \"+f\"(c1), \"+f\"(c2), \"+f\"(c3) : \"r\"(b), \"r\"(a & 0 | b)); d[threadIdx.x] = c0 + c1 + c2 + c3; }\n";

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
speed(const char *name, CUmodule m, const unsigned *grid, const unsigned *block, void **params, double work, const char *unit)
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
	char *ptx = test_nvrtc(text, "compute_80");
	CUmodule m = ptx ? test_module(ptx) : NULL;
	float *zero = calloc(N, 4);
	int loops = 100, n = N, side = M, mmas = 2000;

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
