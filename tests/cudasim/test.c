/* test.c: tests of the simulated device: `simtest GROUP...` runs the groups and counts; `simtest run FILE.ptx` launches
 * a kernel as the file's comments say.
 *
 * In: libcuda.so.1 by the loader's path, a device's own too (SIM_HARDWARE=1: approximations are held to what PTX
 * promises of one); NVRTC by MANTOU_NVRTC (none: go without), the loader, or the toolkit's usual place.   Out: a line
 * for each check that fails, and the counts. */
#define _GNU_SOURCE
#include "test.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

Api cu;
Tally tally = { .random = 7 };

void
check(bool good, const char *format, ...)
{
	va_list ap;

	if (good) {
		tally.passed++;
		return;
	}
	tally.failed++;
	fputs("FAIL ", stdout);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

void
skip(const char *format, ...)
{
	va_list ap;

	tally.skipped++;
	fputs("skip ", stdout);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

uint32_t
random32(void)
{
	uint64_t z = tally.random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)(z >> 32 ^ z);
}

static void
find(void *library, const char *name, void *to)
{
	void *p = dlsym(library, name);

	memcpy(to, &p, sizeof p);
}

bool
test_open(void)
{
	void *l = dlopen("libcuda.so.1", RTLD_NOW);

	if (!l) {
		printf("FAIL %s\n", dlerror());
		return false;
	}
#define F(base, symbol, params) \
	find(l, #symbol, &cu.symbol); \
	if (!cu.symbol) { \
		printf("missing %s\n", #symbol); \
		return false; \
	}
#include "api.def"
#undef F
	return true;
}

void
test_context(void)
{
	static CUcontext c;
	CUdevice d;

	if (c)
		return;
	if (cu.cuInit(0) || cu.cuDeviceGet(&d, 0) || cu.cuDevicePrimaryCtxRetain(&c, d) || cu.cuCtxSetCurrent(c)) {
		printf("FAIL no context\n");
		exit(1);
	}
}

char *
test_file(const char *name)
{
	FILE *f = fopen(name, "rb");
	char *text;
	size_t n;

	if (!f)
		return NULL;
	text = calloc(1, 1 << 20);
	n = text ? fread(text, 1, (1 << 20) - 1, f) : 0;
	(void)n;
	fclose(f);
	return text;
}

char *
test_source(const char *name)
{
	const char *dir = getenv("SIM_TESTS");
	char path[512], *text;

	snprintf(path, sizeof path, "%s/cu/%s", dir && *dir ? dir : "tests/cudasim", name);
	text = test_file(path);
	check(text != NULL, "no file %s", path);
	return text ? text : calloc(1, 1);
}

/* NVRTC */

typedef struct Nvrtc {
	bool tried;
	int (*create)(void **, const char *, const char *, int, void *, void *);
	int (*compile)(void *, int, const char *const *);
	int (*log_size)(void *, size_t *);
	int (*log)(void *, char *);
	int (*size)(void *, size_t *);
	int (*ptx)(void *, char *);
	int (*destroy)(void **);
} Nvrtc;

static Nvrtc *
nvrtc(void)
{
	static Nvrtc n;
	const char *names[] = {getenv("MANTOU_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
	                       "/usr/local/cuda/lib64/libnvrtc.so"};
	void *l = NULL;

	if (n.tried)
		return n.create ? &n : NULL;
	n.tried = true;
	if (names[0] && !strcmp(names[0], "none"))
		return NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names && !l; i++) {
		if (names[i] && *names[i] == '/') /* its second half, which it asks the loader for by name */
			dlopen("/usr/local/cuda/lib64/libnvrtc-builtins.so", RTLD_NOW);
		l = names[i] && *names[i] ? dlopen(names[i], RTLD_NOW) : NULL;
	}
	if (!l)
		return NULL;
	find(l, "nvrtcCreateProgram", &n.create);
	find(l, "nvrtcCompileProgram", &n.compile);
	find(l, "nvrtcGetProgramLogSize", &n.log_size);
	find(l, "nvrtcGetProgramLog", &n.log);
	find(l, "nvrtcGetPTXSize", &n.size);
	find(l, "nvrtcGetPTX", &n.ptx);
	find(l, "nvrtcDestroyProgram", &n.destroy);
	return n.create ? &n : NULL;
}

bool
test_has_nvrtc(void)
{
	return nvrtc() != NULL;
}

char *
test_nvrtc(const char *source, const char *arch)
{
	Nvrtc *n = nvrtc();
	char option[64], *text = NULL;
	const char *options[] = { option, "-lineinfo", "-rdc=true" };
	void *program = NULL;
	size_t size = 0;

	if (!n || n->create(&program, source, "test.cu", 0, NULL, NULL))
		return NULL;
	snprintf(option, sizeof option, "-arch=%s", arch);
	if (n->compile(program, 3, options)) {
		n->log_size(program, &size);
		text = calloc(1, size + 1);
		if (text && !n->log(program, text))
			printf("%s\n", text);
		check(false, "the test's own kernel does not compile for %s", arch);
		free(text);
		n->destroy(&program);
		return NULL;
	}
	n->size(program, &size);
	text = calloc(1, size + 1);
	if (text)
		n->ptx(program, text);
	n->destroy(&program);
	return text;
}

/* launching */

/* Where SIM_KEEP names a folder, the texts are left there, for an assembler to read. */
static void
keep(const char *ptx)
{
	static int count;
	const char *dir = getenv("SIM_KEEP");
	char path[512];
	FILE *f;

	if (!dir || !*dir)
		return;
	snprintf(path, sizeof path, "%s/%04d.ptx", dir, count++);
	f = fopen(path, "w");
	if (!f || fputs(ptx, f) < 0 || fclose(f))
		check(false, "cannot write %s", path);
}

CUmodule
test_module(const char *ptx)
{
	CUmodule m = NULL;
	CUresult r = cu.cuModuleLoadData(&m, ptx);

	keep(ptx);
	if (r)
		check(false, "a module does not load: %d", (int)r);
	return m;
}

CUfunction
test_function(CUmodule m, const char *name)
{
	CUfunction f = NULL;
	CUresult r = m ? cu.cuModuleGetFunction(&f, m, name) : CUDA_ERROR_INVALID_HANDLE;

	if (r)
		check(false, "no kernel %s: %d", name, (int)r);
	return f;
}

CUdeviceptr
test_room(size_t bytes)
{
	CUdeviceptr at = 0;
	CUresult r = cu.cuMemAlloc_v2(&at, bytes);

	if (r)
		check(false, "no memory: %d", (int)r);
	return at;
}

CUdeviceptr
test_upload(const void *from, size_t bytes)
{
	CUdeviceptr at = test_room(bytes);
	CUresult r = cu.cuMemcpyHtoD_v2(at, from, bytes);

	if (r)
		check(false, "copy to the device: %d", (int)r);
	return at;
}

void
test_download(void *to, CUdeviceptr from, size_t bytes)
{
	CUresult r = cu.cuMemcpyDtoH_v2(to, from, bytes);

	if (r)
		check(false, "copy from the device: %d", (int)r);
}

CUresult
test_launch(CUfunction f, unsigned grid, unsigned block, unsigned dynamic, void **params)
{
	CUresult r = f ? cu.cuLaunchKernel(f, grid, 1, 1, block, 1, 1, dynamic, NULL, params, NULL)
	               : CUDA_ERROR_INVALID_HANDLE;

	return r ? r : cu.cuCtxSynchronize();
}

/* A file of PTX whose comments say how to launch it: `// launch NAME grid block dynamic`, `// buffer BYTES [filled]`,
 * `// number N`. What comes of it is the status. */
static int
run_file(const char *name)
{
	char *text = test_file(name), *save = NULL, *lines, kernel[128] = "";
	unsigned grid = 1, block = 32, dynamic = 0;
	uint64_t value[16];
	void *params[16];
	int n = 0;
	CUmodule m = NULL;
	CUfunction f = NULL;
	CUresult r;

	if (!text)
		return 1;
	test_context();
	lines = strdup(text);
	for (char *l = strtok_r(lines, "\n", &save); l && n < 16; l = strtok_r(NULL, "\n", &save)) {
		unsigned long long v;

		sscanf(l, "// launch %127s %u %u %u", kernel, &grid, &block, &dynamic);
		if (sscanf(l, "// buffer %llu", &v) == 1) {
			value[n] = test_room(v);
			if (strstr(l, "filled"))
				cu.cuMemsetD8_v2(value[n], 0, v);
			params[n] = &value[n];
			n++;
		} else if (sscanf(l, "// number %llu", &v) == 1) {
			value[n] = v;
			params[n] = &value[n];
			n++;
		}
	}
	r = cu.cuModuleLoadData(&m, text);
	if (!r)
		r = cu.cuModuleGetFunction(&f, m, kernel);
	if (!r)
		r = test_launch(f, grid, block, dynamic, params);
	printf("status %d\n", (int)r);
	free(lines);
	free(text);
	return 0;
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} groups[] = {{"ops", test_ops},       {"convert", test_convert}, {"kernels", test_kernels},
	              {"matrix", test_matrix}, {"streams", test_streams}, {"graphs", test_graphs},
	              {"memory", test_memory}, {"bulk", test_bulk},       {"speed", test_speed}};

	if (!test_open())
		return 1;
	if (argc == 3 && !strcmp(argv[1], "run"))
		return run_file(argv[2]);
	for (int i = 1; i < argc; i++)
		for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
			if (!strcmp(argv[i], groups[k].name)) {
				test_context();
				groups[k].run();
			}
	printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
	return tally.failed != 0;
}
