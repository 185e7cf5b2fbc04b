/* test_matrix.c: mma of every shape and type, ldmatrix and stmatrix, and a matrix product with cp.async in CUDA C,
 * against plain triple loops.
 *
 * Fragments are taken apart here by the tables of the PTX manual, element by element, and not by the formula that mma.c
 * uses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "test.h"

/* per: elements of a register of A */
typedef struct Shape { const char *name, *types; int k, per; bool half; const char *arch; } Shape;

static const Shape shapes[] = {{"m16n8k16", "f32.bf16.bf16.f32", 16, 2, false, "sm_80"},
                               {"m16n8k16", "f32.f16.f16.f32", 16, 2, false, "sm_80"},
                               {"m16n8k8", "f32.f16.f16.f32", 8, 2, false, "sm_75"},
                               {"m16n8k8", "f32.bf16.bf16.f32", 8, 2, false, "sm_80"},
                               {"m16n8k16", "f16.f16.f16.f16", 16, 2, true, "sm_80"},
                               {"m16n8k8", "f16.f16.f16.f16", 8, 2, true, "sm_75"},
                               {"m16n8k8", "f32.tf32.tf32.f32", 8, 1, false, "sm_80"},
                               {"m16n8k4", "f32.tf32.tf32.f32", 4, 1, false, "sm_80"},
                               {"m16n8k32", "s32.s8.s8.s32", 32, 4, false, "sm_80"},
                               {"m16n8k16", "s32.u8.s8.s32", 16, 4, false, "sm_80"}};

static char *
mma_text(const Shape *s)
{
	char *text = calloc(1, 4096), *t = text;
	int na = 16 * s->k / s->per / 32, nb = na / 2, nd = s->half ? 2 : 4, n[4] = { nd, na, nb, nd };
	size_t room = 4096;

	if (!text)
		abort();
#define PUT(...) (t += snprintf(t, room - (size_t)(t - text), __VA_ARGS__))
	PUT(".version 8.0\n.target %s\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n\t.reg .b32 "
	    "%%x<32>;\n\t.reg .b32 %%t;\n\t.reg .b64 %%a<3>;\n\tld.param.u64 %%a0, [p];\n\tmov.u32 %%t, "
	    "%%tid.x;\n\tmul.wide.u32 %%a1, %%t, 64;\n\tadd.u64 %%a2, %%a0, %%a1;\n",
	    s->arch);
	for (int i = nd; i < nd + na + nb + nd; i++)
		PUT("\tld.global.u32 %%x%d, [%%a2+%d];\n", i, (i - nd) * 4);
	PUT("\tmma.sync.aligned.%s.row.col.%s ", s->name, s->types);
	for (int o = 0, at = 0; o < 4; at += n[o++]) {
		PUT(o ? ", {" : "{");
		for (int i = 0; i < n[o]; i++)
			PUT(i ? ", %%x%d" : "%%x%d", at + i);
		PUT("}");
	}
	PUT(";\n");
	for (int i = 0; i < nd; i++)
		PUT("\tst.global.u32 [%%a2+%d], %%x%d;\n", 44 + i * 4, i);
	PUT("\tret;\n}\n");
	return text;
}

/* A small number of the type, and what it is. */
static uint32_t
element(const char *type, double *v)
{
	int r = (int)(random32() % 33) - 16;

	if (!strncmp(type, "u8", 2))
		r += 16;
	*v = r;
	if (*type == 's' || *type == 'u')
		return (uint32_t)r & 255;
	*v = r / 8.0;
	return !strncmp(type, "bf16", 4)  ? float_bf16((float)*v)
	       : !strncmp(type, "f16", 3) ? float_f16((float)*v)
	                                  : float_bits((float)*v);
}

static void
matrix_mma(const Shape *s)
{
	char *text = mma_text(s);
	const char *ta = strchr(s->types, '.') + 1, *tb = strchr(ta, '.') + 1;
	CUmodule m = test_module(text);
	uint32_t lane[32][16];
	double a[16][32], b[32][8], c[16][8];
	int na = 16 * s->k / s->per / 32, nb = na / 2, nd = s->half ? 2 : 4, bits = 32 / s->per, wrong = 0;
	bool integer = *s->types == 's';
	CUdeviceptr at;
	void *params[] = { &at };

	memset(lane, 0, sizeof lane);
	for (int l = 0; l < 32; l++) {
		int group = l >> 2, t = l & 3;

		for (int i = 0; i < na * s->per; i++) { /* a_i: row and column by the manual */
			int reg = i / s->per, row = reg % 2 ? group + 8 : group,
			    col = t * s->per + i % s->per + (reg >= 2 ? 4 * s->per : 0);

			lane[l][reg] |= element(ta, &a[row][col]) << bits * (i % s->per);
		}
		for (int i = 0; i < nb * s->per; i++) {
			int reg = i / s->per, row = t * s->per + i % s->per + (reg ? 4 * s->per : 0);

			lane[l][na + reg] |= element(tb, &b[row][group]) << bits * (i % s->per);
		}
		for (int i = 0; i < 4; i++) {
			double *v = &c[i < 2 ? group : group + 8][t * 2 + (i & 1)];

			*v = (int)(random32() % 65) - 32;
			if (s->half)
				lane[l][na + nb + i / 2] |= (uint32_t)float_f16((float)*v) << 16 * (i & 1);
			else
				lane[l][na + nb + i] = integer ? (uint32_t)(int)*v : float_bits((float)*v);
		}
	}
	at = test_upload(lane, sizeof lane);
	CUresult r = test_launch(test_function(m, "k"), 1, 32, 0, params);

	test_download(lane, at, sizeof lane);
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < 4; i++) {
			int row = i < 2 ? l >> 2 : (l >> 2) + 8, col = (l & 3) * 2 + (i & 1);
			double sum = c[row][col], got;

			for (int k = 0; k < s->k; k++)
				sum += a[row][k] * b[k][col];
			got = integer   ? (double)(int32_t)lane[l][11 + i]
			      : s->half ? (double)f16_float((uint16_t)(lane[l][11 + i / 2] >> 16 * (i & 1)))
			                : (double)bits_float(lane[l][11 + i]);
			wrong += s->half ? fabs(got - sum) > 0.5 : got != sum;
		}
	check(!r && !wrong, "mma %s.%s: status %d, %d elements wrong", s->name, s->types, (int)r, wrong);
	(void)nd;
	cu.cuMemFree_v2(at);
	cu.cuModuleUnload(m);
	free(text);
}

/* ldmatrix.x4 and its transpose, and back by stmatrix: element (r, c) of matrix i is 64 i + 8 r + c. */
static void
matrix_load(bool trans)
{
	static const char form[] =
	        ".version 8.0\n.target sm_90\n.address_size 64\n.shared .align 16 .b8 room[1024];\n.visible .entry "
	        "k(.param .u64 p)\n{\n\t.reg .b32 %%r<16>;\n\t.reg .b64 %%a<3>;\n\tld.param.u64 %%a0, [p];\n"
	        "\tmov.u32 %%r0, %%tid.x;\n\tmov.u32 %%r1, room;\n\tshl.b32 %%r2, %%r0, 4;\n\tadd.u32 %%r3, %%r1, "
	        "%%r2;\n\tmul.wide.u32 %%a1, %%r0, 16;\n\tadd.u64 %%a2, %%a0, %%a1;\n"
	        "\tld.global.v4.u32 {%%r4, %%r5, %%r6, %%r7}, [%%a2];\n\tst.shared.v4.u32 [%%r3], {%%r4, %%r5, %%r6, "
	        "%%r7};\n\tbar.sync 0;\n"
	        "\tldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%r8, %%r9, %%r10, %%r11}, [%%r3];\n\tst.global.v4.u32 "
	        "[%%a2+512], {%%r8, %%r9, %%r10, %%r11};\n\tbar.sync 0;\n"
	        "\tstmatrix.sync.aligned.m8n8.x4%s.shared.b16 [%%r3+512], {%%r8, %%r9, %%r10, %%r11};\n\tbar.sync "
	        "0;\n\tld.shared.v4.u32 {%%r4, %%r5, %%r6, %%r7}, [%%r3+512];\n\tst.global.v4.u32 [%%a2+1024], {%%r4, "
	        "%%r5, %%r6, %%r7};\n\tret;\n}\n";
	char text[2048];
	uint16_t in[256], out[768];
	CUmodule m;
	CUdeviceptr at;
	void *params[] = { &at };
	int wrong = 0;

	snprintf(text, sizeof text, form, trans ? ".trans" : "", trans ? ".trans" : "");
	m = test_module(text);
	for (int i = 0; i < 256; i++)
		in[i] = (uint16_t)i;
	at = test_room(sizeof out);
	cu.cuMemcpyHtoD_v2(at, in, sizeof in);
	check(!test_launch(test_function(m, "k"), 1, 32, 0, params), "ldmatrix runs");
	test_download(out, at, sizeof out);
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < 4; i++)
			for (int h = 0; h < 2; h++) {
				int row = l / 4, col = l % 4 * 2 + h;

				wrong += out[256 + (l * 4 + i) * 2 + h] !=
				         64 * i + (trans ? 8 * col + row : 8 * row + col);
			}
	check(!wrong, "ldmatrix%s: %d elements wrong", trans ? ".trans" : "", wrong);
	check(!memcmp(out + 512, in, sizeof in), "stmatrix%s brings it back", trans ? ".trans" : "");
	cu.cuMemFree_v2(at);
	cu.cuModuleUnload(m);
}

/* D = A B^T by cu/gemm.cu. */
static void
matrix_gemm(void)
{
	enum { M = 128, N = 192, K = 96 };
	static uint16_t a[M * K], b[N * K];
	static float d[M * N];
	char *source = test_source("gemm.cu"), *ptx = test_nvrtc(source, "compute_80");
	CUmodule m = ptx ? test_module(ptx) : NULL;
	CUdeviceptr pa, pb, pd = test_room(sizeof d);
	int sizes[3] = { M, N, K };
	void *params[] = { &pd, &pa, &pb, &sizes[0], &sizes[1], &sizes[2] };
	double worst = 0;

	free(source);
	free(ptx);
	if (!m)
		return;
	for (int i = 0; i < M * K; i++)
		a[i] = float_bf16((float)((int)(random32() % 2001) - 1000) / 500);
	for (int i = 0; i < N * K; i++)
		b[i] = float_bf16((float)((int)(random32() % 2001) - 1000) / 500);
	pa = test_upload(a, sizeof a);
	pb = test_upload(b, sizeof b);
	CUresult r = cu.cuLaunchKernel(test_function(m, "gemm"), N / 64, M / 64, 1, 128, 1, 1, 0, NULL, params, NULL);

	if (!r)
		r = cu.cuCtxSynchronize();
	test_download(d, pd, sizeof d);
	for (int i = 0; i < M; i++)
		for (int j = 0; j < N; j++) {
			double s = 0;

			for (int k = 0; k < K; k++)
				s += (double)bf16_float(a[i * K + k]) * (double)bf16_float(b[j * K + k]);
			worst = fabs((double)d[i * N + j] - s) > worst ? fabs((double)d[i * N + j] - s) : worst;
		}
	check(!r && worst < 1e-3, "a matrix product with cp.async, ldmatrix and mma: status %d, wrong by %g", (int)r,
	      worst);
	cu.cuModuleUnload(m);
}

void
test_matrix(void)
{
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		matrix_mma(&shapes[i]);
	matrix_load(false);
	matrix_load(true);
	if (test_has_nvrtc())
		matrix_gemm();
	else
		skip("matrix product: no NVRTC");
}
