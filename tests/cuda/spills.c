/* spills.c: a contraction whose registers do not suffice is an error that names its group; any other kernel may keep some in memory.
 *
 * In: an architecture.   Out: NULL, or what nvrtc_compile says wrongly of a kernel that is given too few registers. */
#include "../../codegen/cuda/cuda.h"
#include <string.h>

const char *spills_wrong(Arena *a, const char *arch);

static const char *
compiled(Arena *a, const char *arch, const char *what)
{
	Buf out = {0};
	const char *text = arena_printf(a, "#define KERNEL extern \"C\" __global__ void __launch_bounds__(1024, 1)\n\n/* graph train, group head_3: %s; blocks=1 */\nKERNEL spilling(volatile float *p)\n{\n"
		"\tfloat x[96];\n\tfor (int i = 0; i < 96; i++) x[i] = p[i * 1024 + threadIdx.x];\n\t__syncthreads();\n\tfor (int i = 0; i < 96; i++) p[i * 1024 + threadIdx.x] = sqrtf(x[95 - i]) * x[i * 7 %% 96];\n}\n", what);
	const char *error = nvrtc_compile(a, text, arch, true, &out);

	buf_free(&out);
	return error;
}

const char *
spills_wrong(Arena *a, const char *arch)
{
	const char *tiles = compiled(a, arch, "mma{m=128,n=128,k=32,stages=3,warps=2x2}, a tile to a block"), *map = compiled(a, arch, "an element to a thread");

	if (!tiles || !strstr(tiles, "group head_3: mma{"))
		return arena_printf(a, "of a contraction: %s", tiles ? tiles : "nothing");
	return map ? arena_printf(a, "of another kernel: %s", map) : NULL;
}
