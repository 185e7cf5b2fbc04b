/* test_bulk.c: mbarrier, tensor copies with and without swizzle, im2col, clusters, wgmma, against indices and sums
 * written out in C. Needs NVRTC.
 *
 * Where a byte of a swizzled tile lies is taken from the manual's images: 16-byte piece j of row r moves to j ^ (r %
 * 8) for 128 bytes, j ^ (r / 2 % 4) for 64 and j ^ (r / 4 % 2) for 32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "test.h"

typedef unsigned short u16;


static CUmodule module;

enum { TYPE_BF16 = 9 };

static CUtensorMap
map2(CUdeviceptr at, uint64_t cols, uint64_t rows, unsigned box_cols, unsigned box_rows, int mode)
{
	CUtensorMap m;
	uint64_t dim[2] = { cols, rows }, stride[1] = { cols * 2 };
	unsigned box[2] = { box_cols, box_rows }, step[2] = { 1, 1 };
	CUresult r = cu.cuTensorMapEncodeTiled(&m, TYPE_BF16, 2, (void *)(uintptr_t)at, dim, stride, box, step, 0, mode,
	                                       0, 0);

	check(!r, "a tensor map: %d", (int)r);
	return m;
}

static u16
moved(const u16 *tile, int row, int col, int width, int mode)
{
	int piece = col / 8, turn = mode == 3 ? row % 8 : mode == 2 ? row / 2 % 4 : mode == 1 ? row / 4 % 2 : 0;

	return tile[row * width + (piece ^ turn) * 8 + col % 8];
}

static void
bulk_tile(void)
{
	enum { COLS = 72, ROWS = 40 };
	static u16 in[COLS * ROWS], out[4096];
	CUdeviceptr a, b = test_room(sizeof out);

	for (int i = 0; i < COLS * ROWS; i++)
		in[i] = (u16)(i + 1);
	a = test_upload(in, sizeof in);
	for (int mode = 0; mode < 4; mode++) {
		int width = mode ? 8 << mode : 24, height = 16, n = width * height, wrong = 0;
		CUtensorMap m = map2(a, COLS, ROWS, (unsigned)width, (unsigned)height, mode);
		static const int at[][2] = { { 0, 0 }, { 8, 3 }, { -8, -5 }, { 64, 30 }, { 200, 0 } };

		for (int k = 0; k < 5; k++) {
			int c = at[k][0], r = at[k][1];
			void *params[] = { &b, &m, &c, &r, &n };
			CUresult s = test_launch(test_function(module, "tile"), 1, 64, 0, params);

			test_download(out, b, (size_t)n * 2);
			for (int y = 0; y < height; y++)
				for (int x = 0; x < width; x++) {
					bool inside = r + y >= 0 && r + y < ROWS && c + x >= 0 && c + x < COLS;

					wrong += moved(out, y, x, width, mode) !=
					         (inside ? in[(r + y) * COLS + c + x] : 0);
				}
			check(!s && !wrong, "tensor copy with swizzle %d at %d %d: status %d, %d elements wrong", mode,
			      c, r, (int)s, wrong);
		}
	}
	CUtensorMap m = map2(a, COLS, ROWS, 16, 8, 0), two[2];
	uint64_t dim[2] = { COLS, ROWS }, stride[1] = { COLS * 2 };
	unsigned box[2] = { 16, 8 }, step[2] = { 1, 1 };
	int c = 64, r = 36, n = 128;
	void *params[] = { &m, &c, &r, &n };

	check(cu.cuTensorMapEncodeTiled((void *)((char *)two + 32), TYPE_BF16, 2, (void *)(uintptr_t)a, dim, stride,
	                                box, step, 0, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE,
	      "a tensor map begins at a multiple of 64");
	check(!test_launch(test_function(module, "put"), 1, 64, 0, params), "a tensor is stored");
	test_download(out, a, sizeof in);
	check(out[36 * COLS + 64] == 1 && out[39 * COLS + 71] == 56 && out[35 * COLS + 64] == in[35 * COLS + 64] &&
	              out[37 * COLS + 63] == in[37 * COLS + 63],
	      "a stored tile is clipped");
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

/* The 3x3 window of pixels of two 8-channel images with padding 1: rows of the matrix that a convolution multiplies. */
static void
bulk_im2col(void)
{
	enum { C = 8, W = 5, H = 4, IMAGES = 2, PIXELS = 24 };
	static u16 in[C * W * H * IMAGES], out[8192];
	uint64_t dim[4] = { C, W, H, IMAGES }, stride[3] = { C * 2, C * W * 2, C * W * H * 2 };
	int lower[2] = { -1, -1 }, upper[2] = { -1, -1 }, n = C * PIXELS, wrong = 0, zero = 0, w = -1, h = -1;
	unsigned step[4] = { 1, 1, 1, 1 };
	CUtensorMap m;
	CUdeviceptr a, b = test_room(sizeof out);

	for (size_t i = 0; i < sizeof in / sizeof *in; i++)
		in[i] = (u16)(i + 1);
	a = test_upload(in, sizeof in);
	check(!cu.cuTensorMapEncodeIm2col(&m, TYPE_BF16, 4, (void *)(uintptr_t)a, dim, stride, lower, upper, C, PIXELS,
	                                  step, 0, 0, 0, 0),
	      "a map of windows");
	for (int fh = 0; fh < 3; fh++)
		for (int fw = 0; fw < 3; fw++) {
			void *params[] = { &b, &m, &zero, &w, &h, &zero, &fw, &fh, &n };
			CUresult r = test_launch(test_function(module, "im2col"), 1, 64, 0, params);

			check(!r, "windows are copied: %d", (int)r);
			test_download(out, b, (size_t)n * 2);
			for (int p = 0; p < PIXELS; p++)
				for (int c = 0; c < C; c++) {
					int x = p % W + fw - 1, y = p / W % H + fh - 1, i = p / (W * H);
					bool inside = x >= 0 && x < W && y >= 0 && y < H;

					wrong += out[p * C + c] != (inside ? in[((i * H + y) * W + x) * C + c] : 0);
				}
		}
	check(!wrong, "windows: %d elements wrong", wrong);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

static void
bulk_cluster(void)
{
	static u16 in[64 * 8];
	uint32_t got[256], data[64 * 9], sums[64];
	int wrong = 0, n = 9;
	CUdeviceptr a, b = test_room(sizeof got), d, s = test_room(sizeof sums);

	for (int i = 0; i < 64 * 8; i++)
		in[i] = (u16)(i * 3);
	a = test_upload(in, sizeof in);
	CUtensorMap m = map2(a, 64, 8, 64, 4, 0);
	void *params[] = { &b, &m };
	CUresult r = test_launch(test_function(module, "pair"), 4, 32, 0, params);

	test_download(got, b, sizeof got);
	for (int k = 0; k < 4; k++)
		for (int t = 0; t < 32; t++)
			wrong += got[k * 64 + t] != (uint32_t)((k ^ 1) * 100 + 31 - t) ||
			         got[k * 64 + 32 + t] != (uint32_t)(u16)(t * 16 * 3);
	check(!r && !wrong, "a cluster exchanges values and copies for both: status %d, %d wrong", (int)r, wrong);
	for (int i = 0; i < 64 * 9; i++)
		data[i] = random32();
	d = test_upload(data, sizeof data);
	void *ring[] = { &s, &d, &n };

	r = test_launch(test_function(module, "ring"), 1, 96, 0, ring);
	test_download(sums, s, sizeof sums);
	wrong = 0;
	for (int t = 0; t < 64; t++) {
		uint32_t v = 0;

		for (int i = 0; i < n; i++)
			v = v * 3 + data[i * 64 + t];
		wrong += v != sums[t];
	}
	check(!r && !wrong, "a ring of two buffers between a warp that fetches and two that add: status %d, %d wrong",
	      (int)r, wrong);
	cu.cuMemFree_v2(a);
	cu.cuMemFree_v2(b);
}

/* D (64 x 32) = A (64 x 64) B, B as 32 x 64 in memory, or as 64 x 32. */
static void
bulk_wgmma(int kind)
{
	static u16 a[64 * 64], b[64 * 32];
	static float d[64 * 32];
	CUdeviceptr pa, pb, pd = test_room(sizeof d);
	int wrong = 0;

	for (int i = 0; i < 64 * 64; i++)
		a[i] = float_bf16((float)((int)(random32() % 33) - 16) / 4);
	for (int i = 0; i < 64 * 32; i++)
		b[i] = float_bf16((float)((int)(random32() % 33) - 16) / 4);
	pa = test_upload(a, sizeof a);
	pb = test_upload(b, sizeof b);
	CUtensorMap ma = map2(pa, 64, 64, 64, 64, 3),
	            mb = kind == 1 ? map2(pb, 32, 64, 32, 64, 2) : map2(pb, 64, 32, 64, 32, 3);
	void *params[] = { &pd, &ma, &mb, &kind };
	CUresult r = test_launch(test_function(module, "group"), 1, 128, 0, params);

	test_download(d, pd, sizeof d);
	for (int i = 0; i < 64; i++)
		for (int j = 0; j < 32; j++) {
			float s = 0;

			for (int k = 0; k < 64; k++)
				s += bf16_float(a[i * 64 + k]) * bf16_float(kind == 1 ? b[k * 32 + j] : b[j * 64 + k]);
			wrong += s != d[i * 32 + j];
		}
	check(!r && !wrong, "wgmma, %s: status %d, %d elements wrong",
	      kind == 0   ? "both from shared memory"
	      : kind == 1 ? "B with its rows along K"
	                  : "A from registers",
	      (int)r, wrong);
	cu.cuMemFree_v2(pa);
	cu.cuMemFree_v2(pb);
	cu.cuMemFree_v2(pd);
}

void
test_bulk(void)
{
	char *source, *ptx;

	if (!test_has_nvrtc()) {
		skip("bulk: no NVRTC");
		return;
	}
	source = test_source("bulk.cu");
	ptx = test_nvrtc(source, "compute_90a");
	free(source);
	module = ptx ? test_module(ptx) : NULL;
	free(ptx);
	if (!module)
		return;
	bulk_tile();
	bulk_im2col();
	bulk_cluster();
	for (int k = 0; k < 3; k++)
		bulk_wgmma(k);
	cu.cuModuleUnload(module);
}
