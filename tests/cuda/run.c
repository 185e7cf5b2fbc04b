/* run.c: every kernel of the CUDA target against the reference evaluator, on whatever device libcuda.so.1 offers: a GPU, or the stand-in.
 *
 * In: case files and variants of tests/cpu/run.c, whose code this is but for what loads and calls kernels.   Out: as there; exit 77 where there
 * is no libcuda.so.1 (MANTOU_LIBCUDA may name it), no device or no NVRTC.
 * A module's kernels are compiled to PTX, loaded, and launched one after the other in an arena that is copied in whole, with three blocks at
 * most, so that threads must stride. CUDA_TEST_ARCH: another architecture than sm_80. */
#define TEST_TARGET "cuda"
#include "../../ir/ir.h"
#include "../../runtime/rt.h"

typedef struct Code { void *module; const char *text; } Code;
static const char *code_load(Code *c, Module *m, const char *arch);
static int64_t code_call(Code *c, RtRun *run, int64_t bytes);
static void code_free(Code *c);

#include "../cpu/run.c"
#include <dlfcn.h>

const char *spills_wrong(Arena *a, const char *arch); /* spills.c */

/* The driver's functions that are called: name, symbol, arguments. */
#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned flags)) \
	F(device, "cuDeviceGet", (int *device, int number)) \
	F(context, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
	F(current, "cuCtxSetCurrent", (void *context)) \
	F(synchronize, "cuCtxSynchronize", (void)) \
	F(load, "cuModuleLoadData", (void **module, const void *image)) \
	F(unload, "cuModuleUnload", (void *module)) \
	F(function, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
	F(attribute, "cuFuncSetAttribute", (void *function, int attribute, int value)) \
	F(launch, "cuLaunchKernel", (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra)) \
	F(alloc, "cuMemAlloc_v2", (uint64_t *at, size_t bytes)) \
	F(release, "cuMemFree_v2", (uint64_t at)) \
	F(copy_in, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t bytes)) \
	F(copy_out, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t bytes))

static struct Driver {
#define MEMBER(name, symbol, args) int (*name) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

/* A device that has failed is of no use to the cases behind. */
static void
must(int status, const char *what)
{
	if (status)
		die("%s: status %d", what, status);
}

static const char *
code_load(Code *c, Module *m, const char *arch)
{
	const Target *t = target_named(TEST_TARGET);
	EmitOptions text = {.emit = "cuda", .arch = arch, .opt = 2}, ptx = {.emit = "ptx", .arch = arch, .opt = 2};
	Buf b = {0}, p = {0};
	const char *error = t->emit(t, m, &text, &b);

	if (!error) {
		c->text = arena_strdup(m->arena, b.at);
		error = t->emit(t, m, &ptx, &p);
	}
	if (getenv("CPU_TEST_DUMP") && c->text)
		fputs(strstr(c->text, "\n/* graph ") ? strstr(c->text, "\n/* graph ") : "", stderr);
	if (!error && cu.load(&c->module, p.at))
		error = "the device refuses the PTX";
	buf_free(&b);
	buf_free(&p);
	return error;
}

/* Every kernel, in the order of the text; at most `most` blocks of each. */
static void
launches(Code *c, RtRun *run, uint8_t *memory, int64_t bytes, long most)
{
	uint64_t arena;
	long long n = run->n;
	void *args[] = {&arena, &n};

	must(cu.alloc(&arena, (size_t)bytes), "cuMemAlloc");
	must(cu.copy_in(arena, memory, (size_t)bytes), "cuMemcpyHtoD");
	for (const char *p = c->text; (p = strstr(p, "blocks=")); p++) {
		const char *name = strstr(p, "\nKERNEL ");
		long blocks = strtol(p + 7, NULL, 10);
		int threads = 256, shared = 0;
		void *f = NULL;
		char symbol[512];

		if (!name || sscanf(name, "\nKERNEL %511[A-Za-z0-9_]", symbol) != 1)
			die("no kernel behind its comment");
		sscanf(p, "blocks=%*d, threads=%d, shared=%d", &threads, &shared);
		must(cu.function(&f, c->module, symbol), symbol);
		if (shared > 48 << 10)
			must(cu.attribute(f, 8, shared), symbol);
		must(cu.launch(f, (unsigned)(blocks > most ? most : blocks), 1, 1, (unsigned)threads, 1, 1, (unsigned)shared, NULL, args, NULL), symbol);
		must(cu.synchronize(), symbol);
	}
	must(cu.copy_out(memory, arena, (size_t)bytes), "cuMemcpyDtoH");
	must(cu.release(arena), "cuMemFree");
}

/* Tiles of a contraction once more with another number of blocks: the bits must be the same. */
static int64_t
code_call(Code *c, RtRun *run, int64_t bytes)
{
	uint8_t *again = strstr(c->text, "a tile to a block") ? malloc((size_t)bytes) : NULL;
	bool same = true;

	if (again) {
		memcpy(again, run->arena, (size_t)bytes);
		launches(c, run, again, bytes, 2);
	}
	launches(c, run, run->arena, bytes, 3);
	if (again)
		same = !memcmp(again, run->arena, (size_t)bytes);
	free(again);
	if (!same)
		die("another number of blocks gives other bits");
	return ((RtFault *)run->arena)->set ? RT_FAULT : RT_OK;
}

static void
code_free(Code *c)
{
	must(cu.unload(c->module), "cuModuleUnload");
}

/* NULL, or what is missing. */
static const char *
device_open(void)
{
	const char *path = getenv("MANTOU_LIBCUDA");
	void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW), *context;
	int device;

	if (!library)
		return "there is no libcuda.so.1 here";
#define FIND(name, symbol, args) if (!(*(void **)(&cu.name) = dlsym(library, symbol))) return symbol " is not in libcuda.so.1";
	FUNCTIONS(FIND)
#undef FIND
	if (cu.init(0) || cu.device(&device, 0) || cu.context(&context, device) || cu.current(context))
		return "there is no device";
	return NULL;
}

static bool
has_nvrtc(const Target *t, Arena *a, const char *arch)
{
	Module *m = module_new(a, NULL, "none");
	Buf b = {0};
	const char *error = t->emit(t, m, &(EmitOptions){.emit = "ptx", .arch = arch}, &b);

	buf_free(&b);
	return !error;
}

int
main(int argc, char **argv)
{
	Run r = {.arena = arena_new()};
	const char *filter = "", *error, *given = getenv("CUDA_TEST_ARCH");

	setvbuf(stdout, NULL, _IOLBF, 0);
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	const Target *t = target_named(TEST_TARGET);
	const char *arch = t->resolve_arch(t, r.arena, given ? given : "sm_80", &error), *missing = device_open();

	if (!arch)
		die("%s", error);
	if (!missing && !has_nvrtc(t, r.arena, arch))
		missing = "there is no NVRTC";
	if (missing) {
		printf("skip cuda: %s\n", missing);
		return 77;
	}
	for (int a = 1; a < argc; a++)
		if (!strstr(argv[a], ".txt") && !strstr(argv[a], ".ir"))
			filter = argv[a];
	r.ncase++;
	if ((error = spills_wrong(r.arena, arch)))
		failed(&r, "spills", "%s", error);
	run_all(&r, argc, argv, filter, arch);
	arena_free(r.arena);
	return r.nfailed != 0;
}
