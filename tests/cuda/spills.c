/* spills.c: a contraction whose registers do not suffice is an error that names its group, but first it is compiled
 * without another block beside it; any other kernel may keep some in memory. So are products of wgmma that ptxas makes
 * wait for each other, and shared memory that no block has.
 *
 * In: an architecture.   Out: NULL, or what nvrtc_compile says wrongly of a kernel that is given too few registers. */
#include "../../codegen/cuda/emit/emit.h"
#include <string.h>

const char *spills_wrong(Arena *a, const char *arch);

static const char *
compiled(Arena *a, const char *arch, const char *what, const char *kernel, int threads, bool strict)
{
	NvrtcJob job = {.cubin = true, .strict = strict};
	const char *text =
	        arena_printf(a,
	                     "#define KERNEL extern \"C\" __global__ void __launch_bounds__(%d, 1)\n#define KERNEL2 "
	                     "extern \"C\" __global__ void __launch_bounds__(%d, 1)\n"
	                     "\n/* graph train, group head_3: %s; blocks=1 */\n%s spilling(volatile float *p)\n{\n"
	                     "\tfloat x[96];\n\tfor (int i = 0; i < 96; i++) x[i] = p[i * 1024 + "
	                     "threadIdx.x];\n\t__syncthreads();\n\tfor (int i = 0; i < 96; i++) p[i * 1024 + "
	                     "threadIdx.x] = sqrtf(x[95 - i]) * x[i * 7 %% 96];\n}\n",
	                     threads, 1024, what, kernel);

	job.source = text;
	const char *error = nvrtc_compile(a, arch, &job, 1, 0);

	buf_free(&job.cubin_out);
	return error ? error : job.note;
}

/* NULL, or what is said of a kernel of group head_4 with this body. */
static const char *
compiled_body(Arena *a, const char *arch, const char *body)
{
	NvrtcJob job = {.cubin = true, .strict = true};

	job.source =
	        arena_printf(a,
	                     "#define KERNEL extern \"C\" __global__ void __launch_bounds__(128, 1)\n\n/* graph train, "
	                     "group head_4: wgmma{m=64,n=8}; blocks=1 */\nKERNEL waiting(float *p)\n{\n%s}\n",
	                     body);
	const char *error = nvrtc_compile(a, arch, &job, 1, 0);

	buf_free(&job.cubin_out);
	return error;
}

/* A sum is changed between the start of products and the wait for them. */
static const char *
wait_wrong(Arena *a, const char *arch)
{
	static const char *const body =
	        "\tfloat d[4] = {};\n\tasm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n\tfor (int i = 0; "
	        "i < 4; i++) {\n"
	        "\t\tasm volatile(\"{ .reg .pred q; setp.ne.b32 q, 1, 0; "
	        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%%0, %%1, %%2, %%3}, %%4, %%4, q, 1, 1, 0, 0; "
	        "}\" "
	        ": \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"l\"(1ull << 62 | i));\n%s\t}\n"
	        "\tasm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n\tasm "
	        "volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
	        "\tfor (int i = 0; i < 4; i++) p[threadIdx.x * 4 + i] = d[i];\n";
	const char *good = compiled_body(a, arch, arena_printf(a, body, "")),
	           *bad = compiled_body(a, arch, arena_printf(a, body, "\t\td[0] *= p[0];\n"));

	if (good)
		return arena_printf(a, "of products that do not wait: %s", good);
	return bad && strstr(bad, "(graph train, group head_4") && strstr(bad, "(C75")
	               ? NULL
	               : arena_printf(a, "of products that wait: %s", bad ? bad : "nothing");
}

const char *
spills_wrong(Arena *a, const char *arch)
{
	static const char *const contraction = "mma{m=128,n=128,k=32,stages=3,warps=2x2}, a tile to a block";
	const char *tiles = compiled(a, arch, contraction, "KERNEL", 1024, true),
	           *map = compiled(a, arch, "an element to a thread", "KERNEL", 1024, true);
	const char *alone = compiled(a, arch, contraction, "KERNEL2", 256, true),
	           *neither = compiled(a, arch, contraction, "KERNEL2", 1024, true);

	if (alone) /* compiled anew as KERNEL */
		return arena_printf(a, "of a contraction that has room alone: %s", alone);
	if (!neither || !strstr(neither, "group head_3: mma{"))
		return arena_printf(a, "of a contraction that has no room alone either: %s",
		                    neither ? neither : "nothing");
	if (!tiles || !strstr(tiles, "group head_3: mma{"))
		return arena_printf(a, "of a contraction: %s", tiles ? tiles : "nothing");
	if (map)
		return arena_printf(a, "of another kernel: %s", map);
	for (int turn = 0; turn < 3; turn++) { /* what is kept is said as often, and still an error where it was one */
		const char *said = compiled(a, arch, contraction, "KERNEL", 1024, turn == 2);

		if (!said || !strstr(said, "group head_3: mma{"))
			return arena_printf(a, "of a contraction that is kept, time %d: %s", turn + 1,
			                    said ? said : "nothing");
	}
	const char *shared =
	        compiled_body(a, arch,
	                      "\t__shared__ float s[60000];\n\ts[threadIdx.x * 7 % 60000] = "
	                      "p[threadIdx.x];\n\t__syncthreads();\n\tp[threadIdx.x] = s[59999 - threadIdx.x];\n");

	if (!shared || !strstr(shared, "group head_4") || !strstr(shared, "too much shared data"))
		return arena_printf(a, "of shared memory that no block has: %s", shared ? shared : "nothing");
	return strcmp(arch, "sm_90a") ? NULL : wait_wrong(a, arch);
}
