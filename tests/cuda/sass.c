/* sass.c: what codegen/cuda/forecast/sass.c reads of machine code, of a kernel whose loads, products and loop are
 * known; files that are cut off are refused.
 *
 * In: an architecture.   Out: NULL, or what was read wrongly. */
#include "../../codegen/cuda/emit/emit.h"
#include "../../codegen/cuda/forecast/sass.h"
#include <stdlib.h>
#include <string.h>

const char *sass_wrong(Arena *a, const char *arch);

static const char source[] =
        "extern \"C\" __global__ void __launch_bounds__(128, 1) turning(const float4 *p, float *to, const unsigned *q, "
        "int n)\n"
        "{\n"
        "\t__shared__ float s[256];\n"
        "\tfloat acc[4] = {}; float4 x = p[threadIdx.x];\n"
        "\tunsigned f[4] = {q[0], q[1], q[2], q[3]};\n"
        "#pragma unroll 1\n"
        "\tfor (int i = 0; i < n; i++)\n"
        "\t\tasm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, "
        "%5}, \"\n"
        "\t\t\t\"{%0, %1, %2, %3};\" : \"+f\"(acc[0]), \"+f\"(acc[1]), \"+f\"(acc[2]), \"+f\"(acc[3])\n"
        "\t\t\t: \"r\"(f[0]), \"r\"(f[1]), \"r\"(f[2]), \"r\"(f[3]));\n"
        "\ts[threadIdx.x] = acc[0] + x.x;\n"
        "\t__syncthreads();\n"
        "\t__threadfence();\n"
        "\tto[threadIdx.x] = s[127 - threadIdx.x] + acc[1] + acc[2] + acc[3] + x.y + x.z + x.w;\n"
        "}\n";

static int
count(const Code *c, SassKind kind, int from, int to)
{
	int n = 0;

	for (int i = from; i <= to; i++)
		n += c->at[i].kind == kind;
	return n;
}

static const char *
read_wrong(Arena *a, const Code *c)
{
	int last = c->n - 1, wide = 0, fences = 0;

	if (c->regs < 8 || c->regs > 255 || c->shared < 1024)
		return arena_printf(a, "%d registers, %d bytes of shared memory", c->regs, c->shared);
	if (c->loop.n != 1 || count(c, SASS_HMMA, c->loop.at[0].first, c->loop.at[0].last) != 1)
		return arena_printf(a, "%u loops, not one with a product in it", (unsigned)c->loop.n);
	for (int i = 0; i < c->n; i++) {
		wide += (c->at[i].kind == SASS_LDG || c->at[i].kind == SASS_LDGR) && c->at[i].width == 16;
		fences += c->at[i].kind == SASS_MEMBAR && c->at[i].strong;
	}
	if (count(c, SASS_HMMA, 0, last) != 1 || wide < 1 || fences != 1 || count(c, SASS_BAR, 0, last) < 1)
		return arena_printf(a, "%d products, %d loads of 16 bytes, %d fences, %d barriers",
		                    count(c, SASS_HMMA, 0, last), wide, fences, count(c, SASS_BAR, 0, last));
	if (count(c, SASS_STS, 0, last) + count(c, SASS_STSI, 0, last) != 1 || count(c, SASS_LDS, 0, last) != 1)
		return "shared memory is written or read more than once";
	return cu_code_spills_in_loop(c) ? "nothing is kept in memory, but that is said" : NULL;
}

const char *
sass_wrong(Arena *a, const char *arch)
{
	NvrtcJob job = {.source = source, .cubin = true};
	const char *error = nvrtc_compile(a, arch, &job, 1, 0);
	bool hopper = atoi(arch + 3) >= 90;
	Code c;

	if (!error && !cu_code_read(a, &job.cubin_out, "turning", hopper, &c))
		error = "the function is not found";
	error = error ? error : read_wrong(a, &c);
	if (!error && cu_code_read(a, &job.cubin_out, "turnin", hopper, &c))
		error = "a function is found that is not there";
	/* cut off before its sections are told of */
	for (size_t n = 0; !error && n < job.cubin_out.n / 2; n += job.cubin_out.n / 37 + 1) {
		Buf part = {.at = job.cubin_out.at, .n = n};

		if (cu_code_read(a, &part, "turning", hopper, &c))
			error = arena_printf(a, "%zu of %zu bytes are taken for a whole file", n, job.cubin_out.n);
	}
	buf_free(&job.cubin_out);
	return error;
}
