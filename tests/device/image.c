/* image.c: the executable of ../runtime/image.c for a CUDA device: the same model, its kernels written by hand and
 * compiled when it starts.
 *
 * In: NVRTC in the loader's path, in /usr/local/cuda/lib64 or where MANTOU_LIBNVRTC says. RTI_ARCH: what its images say
 * that they are made for (compute_80), RTI_COMPILE: what they are.
 * RTI_PTX: a file that keeps the code for the next start.
 * Exit status 77: there is no NVRTC. Sums are in the order of the C text, so checkpoints have the bits of the
 * CPU's. */
#define IMAGE_OF_A_DEVICE
#include "../runtime/image.c"

#include "../../codegen/cuda/loop.h"
#include <dlfcn.h>

extern const struct RtDevice rt_cuda;

static const char kernel_text[] =
        "static __device__ double uniform(unsigned long long seed, unsigned stream, unsigned long long step, unsigned "
        "long long j)\n{\n"
        "\tunsigned c0 = (unsigned)(j >> 2), c1 = (unsigned)(j >> 34), c2 = (unsigned)step, c3 = 0, k0 = "
        "(unsigned)seed, k1 = stream;\n"
        "\tfor (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {\n"
        "\t\tunsigned h0 = __umulhi(c0, 0xD2511F53u), l0 = c0 * 0xD2511F53u, h1 = __umulhi(c2, 0xCD9E8D57u), l1 = c2 * "
        "0xCD9E8D57u;\n"
        "\t\tc0 = h1 ^ c1 ^ k0;\n\t\tc1 = l1;\n\t\tc2 = h0 ^ c3 ^ k1;\n\t\tc3 = l0;\n\t}\n"
        "\treturn (double)((j & 2 ? (j & 1 ? c3 : c2) : (j & 1 ? c1 : c0)) >> 8) * (1.0 / 16777216);\n}\n"
        "#define F32(at) ((float *)(arena + (at)))\n"
        "#define I64(at) (*(long long *)(arena + (at)))\n"
        "#define KERNEL(name) extern \"C\" __global__ void name(char *arena, long long n, long long off)\n"
        "#define ONE if (blockIdx.x || threadIdx.x) return\n"
        "#define STOPPED (*(long long *)(arena - 256) | *(long long *)arena)\n"
        "KERNEL(check)\n{\n\tONE;\n\tconst int *label = (const int *)(arena + LABEL);\n"
        "\tfor (long long i = 0; i < n; i++)\n\t\tif (label[i] < 0 || label[i] >= 3) {\n"
        "\t\t\tI64(FAULT + 8) = 0; I64(FAULT + 16) = i; I64(FAULT + 24) = label[i]; I64(FAULT) = "
        "1;\n\t\t\treturn;\n\t\t}\n}\n"
        "KERNEL(pack)\n{\n\tif (threadIdx.x < C + 1) F32(PACKED)[threadIdx.x] = threadIdx.x < C ? F32(W)[threadIdx.x] "
        ": *F32(B);\n}\n"
        "KERNEL(pred)\n{\n\tconst float *x = F32(X), *w = F32(off ? W : PACKED), *b = off ? F32(B) : w + C;\n"
        "\tfor (long long t = blockIdx.x * blockDim.x + threadIdx.x; t < n; t += gridDim.x * blockDim.x) {\n"
        "\t\tfloat sum = *b;\n\t\tfor (int k = 0; k < C; k++) sum += x[t * C + k] * w[k];\n"
        "\t\tif (off) sum += (float)(0.01 * uniform(I64(SEED), STREAM, I64(STEP), t));\n\t\tF32(PRED)[t] = "
        "sum;\n\t}\n}\n"
        "KERNEL(loss)\n{\n\tONE;\n\tconst float *p = F32(PRED), *y = F32(Y);\n\tfloat loss = 0, mae = 0;\n"
        "\tfor (long long i = 0; i < n; i++) {\n\t\tloss += (p[i] - y[i]) * (p[i] - y[i]);\n\t\tmae += p[i] > y[i] ? "
        "p[i] - y[i] : y[i] - p[i];\n\t}\n"
        "\t*F32(LOSS) = loss / (float)n;\n\t*F32(MAE) = mae / (float)n;\n}\n"
        "KERNEL(grad)\n{\n\tONE;\n\tif (off && STOPPED) return;\n\tconst float *p = F32(PRED), *y = F32(Y), *x = "
        "F32(X);\n\tfloat *gw = F32(GW), *gb = F32(GB);\n"
        "\tfor (int k = 0; k < C; k++) gw[k] = 0;\n\t*gb = 0;\n"
        "\tfor (long long i = 0; i < n; i++) {\n\t\tfloat g = 2 * (p[i] - y[i]) / (float)n;\n\t\tfor (int k = 0; k < "
        "C; k++) gw[k] += g * x[i * C + k];\n\t\t*gb += g;\n\t}\n"
        "\tif (off) {\n\t\tfor (int k = 0; k < C; k++) F32(AW)[k] += gw[k];\n\t\t*F32(AB) += *gb;\n\t\tF32(SUMS)[0] += "
        "*F32(LOSS);\n\t\tF32(SUMS)[1] += *F32(MAE);\n\t}\n}\n"
        "KERNEL(update)\n{\n\tONE;\n\tif (STOPPED) return;\n\tfloat rate = (float)*(double *)(arena + RATE), *w = "
        "F32(W), *b = F32(B), *wm = F32(WM), *bm = F32(BM);\n"
        "\tfloat *gw = F32(off ? AW : GW), *gb = F32(off ? AB : GB), a = off ? 1 / (float)off : 1, norm = 0;\n"
        "\tfor (int k = 0; k < C; k++) {\n\t\tnorm += a * gw[k] * a * gw[k];\n\t\twm[k] = 0.9f * wm[k] + a * "
        "gw[k];\n\t\tw[k] -= rate * wm[k];\n\t}\n"
        "\tbm[0] = 0.9f * bm[0] + a * gb[0];\n\tb[0] -= rate * bm[0];\n\t*F32(NORM) = sqrtf(norm);\n"
        "\tif (off) {\n\t\tfor (int k = 0; k < C; k++) gw[k] = 0;\n\t\t*gb = 0;\n\t\t*F32(LOSS) = a * "
        "F32(SUMS)[0];\n\t\t*F32(MAE) = a * F32(SUMS)[1];\n\t\tF32(SUMS)[0] = F32(SUMS)[1] = 0;\n\t}\n"
        "\tfor (int i = 0; i < DELAY; i++) (void)((volatile float *)gw)[0];\n}\n";

#define FUNCTIONS(F) \
	F(CreateProgram, (void **p, const char *source, const char *name, int headers, const char *const *header, \
	                  const char *const *header_name)) \
	F(CompileProgram, (void *p, int options, const char *const *option)) \
	F(GetPTXSize, (void *p, size_t *bytes)) \
	F(GetPTX, (void *p, char *bytes)) \
	F(GetProgramLogSize, (void *p, size_t *bytes)) \
	F(GetProgramLog, (void *p, char *text))
typedef struct Nvrtc {
#define MEMBER(name, args) int (*name) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
} Nvrtc;

static void
nvrtc_open(Nvrtc *n)
{
	const char *places[] = {getenv("MANTOU_LIBNVRTC"), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
	                        "/usr/local/cuda/lib64/libnvrtc.so"};
	void *l = NULL;

	for (size_t i = 0; i < sizeof places / sizeof *places && !l; i++) {
		if (i == 4) /* its second half, which it asks the loader for by name */
			dlopen("/usr/local/cuda/lib64/libnvrtc-builtins.so", RTLD_NOW);
		l = places[i] && *places[i] ? dlopen(places[i], RTLD_NOW) : NULL;
	}
	if (!l)
		exit(77);
#define FIND(f, args) if (!(*(void **)&n->f = dlsym(l, "nvrtc" #f))) exit(77);
	FUNCTIONS(FIND)
#undef FIND
}

static char *
source_make(void)
{
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	fprintf(f,
	        "enum { C = %d, FAULT = %d, W = %d, B = %d, WM = %d, BM = %d, AW = %d, AB = %d, SUMS = %d, X = %d, Y = "
	        "%d, LABEL = %d, SEED = %d, STEP = %d, RATE = %d,\n"
	        "PRED = %d, LOSS = %d, MAE = %d, NORM = %d, GW = %d, GB = %d, PACKED = %d, DELAY = %d };\n#define "
	        "STREAM %uu\n",
	        C, FAULT, W, B, WM, BM, AW, AB, SUMS, X, Y, LABEL, SEED, STEP, RATE, PRED, LOSS, MAE, NORM, GW, GB,
	        PACKED, 60 * atoi(env("RTI_SLEEP_US", "0")), (unsigned)philox_stream("noise"));
	fputs(cuda_loop_types, f);
	fputs(cuda_loop, f);
	fputs(kernel_text, f);
	fclose(f);
	return text;
}

static char *
compile(const char *arch)
{
	char *gpu, *source = source_make(), *ptx = NULL;
	size_t bytes = 0;
	void *p = NULL;
	Nvrtc n;

	nvrtc_open(&n);
	if (asprintf(&gpu, "--gpu-architecture=%s", arch) < 0)
		exit(1);
	const char *option[] = {gpu, "--fmad=false"};

	if (n.CreateProgram(&p, source, "image.cu", 0, NULL, NULL) || n.CompileProgram(p, 2, option)) {
		char *log = p && !n.GetProgramLogSize(p, &bytes) ? calloc(bytes + 1, 1) : NULL;

		if (log)
			n.GetProgramLog(p, log);
		fprintf(stderr, "NVRTC: %s\n", log ? log : "no program");
		exit(1);
	}
	if (n.GetPTXSize(p, &bytes) || !(ptx = calloc(bytes + 1, 1)) || n.GetPTX(p, ptx))
		exit(1);
	free(gpu);
	free(source);
	return ptx;
}

/* The file's content, or what is compiled and written there. */
static char *
kept(const char *path, const char *arch)
{
	FILE *f = path ? fopen(path, "r") : NULL;
	char *text = NULL;
	size_t room = 0;

	if (f && getdelim(&text, &room, 0, f) > 0) {
		fclose(f);
		return text;
	}
	text = compile(arch);
	f = path ? fopen(path, "w") : NULL;
	if (f && (fputs(text, f) < 0 || fclose(f)))
		exit(1);
	return text;
}

static char *
code_make(const char *arch)
{
	char *path = NULL, *text;

	if (getenv("RTI_PTX") && asprintf(&path, "%s.%s.%s", getenv("RTI_PTX"), arch, env("RTI_SLEEP_US", "0")) < 0)
		exit(1);
	text = kept(path, arch);
	free(path);
	return text;
}

/* Of text; tests ask for a driver that is too old for it. */
static int64_t
ptx_version(const uint8_t *code)
{
	const char *at = strstr((const char *)code, ".version ");
	int major = 0, minor = 0;

	return at && sscanf(at, ".version %d.%d", &major, &minor) == 2 ? 10 * major + minor : 0;
}

int
main(int argc, char **argv)
{
	static const char *const name[] = {"check", "pred", "loss", "grad", "update", "pack"};
	static const int32_t block[] = {1, 32, 1, 1, 1, 32}, shared[6] = {0};
	char *archs = strdup(env("RTI_ARCH", "compute_80")), *arch, *rest = NULL;
	const char *program = describe(atoi(env("RTI_ACCUMULATE", "1")));
	static RtCode code[8];
	static RtModule module[8];
	static const int32_t from[6];
	static RtCodeObject image[8];
	const RtCodeObject *images[8];
	int n = 0;

	for (arch = strtok_r(archs, " ", &rest); arch && n < 8; arch = strtok_r(NULL, " ", &rest), n++) {
		module[n] = (RtModule){.code = (const uint8_t *)code_make(env("RTI_COMPILE", arch))};
		code[n] = (RtCode){.arch = arch,
		                   .ptx_version = ptx_version(module[n].code),
		                   .module = &module[n],
		                   .nmodule = 1,
		                   .name = name,
		                   .block = block,
		                   .shared = shared,
		                   .from = from};
		image[n] = (RtCodeObject){.version = RT_VERSION,
		                     .nkernel = 6,
		                     .program = program,
		                     .needs = "",
		                     .code = &code[n],
		                     .device = &rt_cuda};
		images[n] = &image[n];
	}
	return rt_main(argc, argv, images, n);
}
