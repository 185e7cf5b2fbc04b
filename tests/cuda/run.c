/* run.c: every kernel of the CUDA target against the reference evaluator, on whatever device libcuda.so.1 offers: a
 * GPU, or the simulated device.
 *
 * In: case files and variants of tests/cpu/run.c, whose code this is but for what loads and calls kernels.   Out: as
 * there; exit 77 where there is no libcuda.so.1 (MANTOU_LIBCUDA may name it), no device or no NVRTC.
 * A module's kernels are compiled to PTX, loaded, and launched one after the other in an arena that is copied in whole,
 * with three blocks at most, so that threads must stride. CUDA_TEST_ARCH: another architecture than sm_80.
 * CUDA_TEST_CACHED: NVRTC is not there, only what it made. A device that has failed is of no use to the cases behind:
 * the last line then says `stopped in run N`, and CUDA_TEST_FROM=N goes on behind it. CUDA_TEST_TRACE: a line before
 * each run. */
#define TEST_TARGET "cuda"
#include "../../codegen/cuda/emit/emit.h"
#include "../../passes/pass.h"
#include "../../runtime/rt.h"

typedef struct Code { void *module; CuProgram p; } Code;
static bool code_begins(int run, const char *line, const char *what);
static const char *code_load(Code *c, Module *m, const char *arch);
static int64_t code_call(Code *c, RtRun *run, int64_t bytes);
static void code_free(Code *c);
/* What every program begins with takes NVRTC as long as a small kernel: those of several cases are a program. */
enum { TOGETHER = 4 };
static bool gathers;
static void code_gather(Module *m, const char *arch);
static const char *code_make(const char *arch);
static void code_drop(void);

#include "../cpu/run.c"
#include <dlfcn.h>

const char *spills_wrong(Arena *a, const char *arch); /* spills.c */
const char *sass_wrong(Arena *a, const char *arch); /* sass.c */
extern const char cuda_prelude[]; /* of prelude.cu */
bool cuda_device_version(int *major, int *minor); /* the target's native.c */

/* The driver's functions that are called: name, symbol, arguments. */
#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned flags)) \
	F(version, "cuDriverGetVersion", (int *version)) \
	F(device, "cuDeviceGet", (int *device, int number)) \
	F(context, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
	F(current, "cuCtxSetCurrent", (void *context)) \
	F(synchronize, "cuCtxSynchronize", (void)) \
	F(load, "cuModuleLoadDataEx", (void **module, const void *image, unsigned options, int *option, void **value)) \
	F(unload, "cuModuleUnload", (void *module)) \
	F(function, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
	F(attribute, "cuFuncSetAttribute", (void *function, int attribute, int value)) \
	F(launch, "cuLaunchKernel", \
	  (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
	   unsigned shared, void *stream, void **args, void **extra)) \
	F(map, "cuTensorMapEncodeTiled", \
	  (void *map, int type, unsigned rank, void *at, const uint64_t *extent, const uint64_t *stride, \
	   const unsigned *box, const unsigned *step, int interleave, int swizzle, int promotion, int fill)) \
	F(alloc, "cuMemAlloc_v2", (uint64_t * at, size_t bytes)) \
	F(release, "cuMemFree_v2", (uint64_t at)) \
	F(copy_in, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t bytes)) \
	F(copy_out, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t bytes))

static struct Driver {
#define MEMBER(name, symbol, args) int (*name) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

static struct { int run; char text[600]; } now; /* what is under way */

/* A device that has failed is of no use to the cases behind. */
static void
must(int status, const char *what)
{
	if (!status)
		return;
	printf("FAIL %s, %s: status %d\nstopped in run %d\n", now.run ? now.text : "the device", what, status, now.run);
	exit(3);
}

static bool
code_begins(int run, const char *line, const char *what)
{
	const char *from = getenv("CUDA_TEST_FROM");

	if (from && run <= atoi(from))
		return false;
	now.run = run;
	snprintf(now.text, sizeof now.text, "%s: %s", line, what);
	if (getenv("CUDA_TEST_TRACE"))
		printf("run %d: %s\n", now.run, now.text);
	return true;
}

/* What is loaded already: functions, each with another name than it has in its case; NULL: nothing. */
typedef struct Known { uint64_t hash; const char *text, *name; } Known;
static struct { Arena *a; VEC(Known) fn; const char *small; bool cubin; void *module; } ready;

/* The kernels of m's plan, as text. */
static const char *
code_emit(CuProgram *p, Module *m, const char *arch)
{
	PassCtx joins = {.module = m, .target = target_named("cuda"), .arch = arch, .opt = 2, .only = "launch"};

	*p = (CuProgram){.a = m->arena};
	for (uint32_t i = 0; i < m->graph.n; i++) /* of the kernels that it had before */
		for (uint32_t k = 0; k < m->graph.at[i]->group.n; k++)
			m->graph.at[i]->group.at[k].launch.n = 0;
	return passes_run(m, &joins) ? cu_module_emit(p, m, arch) : "pass launch fails";
}

/* NULL, or what NVRTC or the driver says. */
static const char *
code_compile(Arena *a, const char *source, bool cubin, const char *arch, void **module)
{
	NvrtcJob job = {.ptx = true, .lines = true, .strict = true, .cubin = cubin, .source = source};
	char log[500] = "";
	int option[] = {5, 6}, status; /* the linker's words, and room for them */
	void *value[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
	const char *error = nvrtc_compile(a, arch, &job, 1, 0);

	status = error ? 0 : cu.load(module, job.ptx_out.at, 2, option, value);
	must(status >= 700 ? status : 0, "cuModuleLoadDataEx"); /* of a kernel before */
	if (status) {
		*module = NULL;
		cu.version(&option[0]);
		error = arena_printf(a, "the driver (of CUDA %d.%d) refuses the PTX: status %d %s", option[0] / 1000,
		                     option[0] % 1000 / 10, status, log);
	}
	buf_free(&job.ptx_out);
	buf_free(&job.cubin_out);
	return error;
}

static const char *
function_text(Arena *a, const CuFunction *f)
{
	return arena_printf(a, "%s%s %s%s", f->before, cu_kernel_word(a, f), f->name, f->text);
}

static const Known *
function_known(const char *text)
{
	uint64_t hash = hash_bytes(HASH_START, text, strlen(text));

	for (uint32_t i = 0; i < ready.fn.n; i++)
		if (ready.fn.at[i].hash == hash && !strcmp(ready.fn.at[i].text, text))
			return &ready.fn.at[i];
	return NULL;
}

static bool
asks_ptxas(const CuProgram *p)
{
	return strstr(p->text.at, ": wgmma{") != NULL; /* what it says of them is an error */
}

/* Adds the kernels of a case to those that are compiled together; what is wrong with it is told when it runs. */
static void
code_gather(Module *m, const char *arch)
{
	CuProgram p;

	ready.a = ready.a ? ready.a : arena_new();
	if (!code_emit(&p, m, arch)) {
		ready.small = !ready.small || !*ready.small ? p.small : ready.small;
		ready.cubin |= asks_ptxas(&p);
		for (uint32_t i = 0; i < p.fn.n; i++) {
			const CuFunction *f = &p.fn.at[i];
			const char *text = function_text(ready.a, f);

			if (f->plan || function_known(text))
				continue;
			const char *name = arena_printf(ready.a, "%s_%u", f->name, (unsigned)ready.fn.n);

			vec_push(ready.a, &ready.fn, ((Known){hash_bytes(HASH_START, text, strlen(text)), text, name}));
		}
	}
	buf_free(&p.text);
}

/* One program of all, in which each kernel has a namespace of its own; if that fails, every case has its own program,
 * and says why. */
static const char *
code_make(const char *arch)
{
	Buf b = {0};
	const char *error = NULL;

	buf_printf(&b, "%s%s", cuda_prelude, ready.small ? ready.small : "");
	for (uint32_t i = 0; i < ready.fn.n; i++) {
		const Known *f = &ready.fn.at[i];
		int name = (int)(strrchr(f->name, '_') - f->name);

		buf_printf(&b, "#define %.*s %s\nnamespace at%u {\n%s\n}\n#undef %.*s\n", name, f->name, f->name,
		           (unsigned)i, f->text, name, f->name);
	}
	if (ready.fn.n)
		error = code_compile(ready.a, b.at, ready.cubin, arch, &ready.module);
	buf_free(&b);
	return error;
}

static void
code_drop(void)
{
	if (ready.module)
		must(cu.unload(ready.module), "cuModuleUnload");
	arena_free(ready.a);
	memset(&ready, 0, sizeof ready);
}

/* Are all its kernels loaded? Then they have their names there. */
static bool
is_ready(CuProgram *p)
{
	for (uint32_t i = 0; i < p->fn.n && ready.module; i++) {
		const Known *f = function_known(function_text(p->a, &p->fn.at[i]));

		if (!f)
			return false;
		p->fn.at[i].name = f->name;
	}
	return ready.module != NULL;
}

static const char *
code_load(Code *c, Module *m, const char *arch)
{
	const char *error = code_emit(&c->p, m, arch);

	if (error)
		return error;
	if (getenv("CPU_TEST_DUMP"))
		fputs(strstr(c->p.text.at, "\n/* graph ") ? strstr(c->p.text.at, "\n/* graph ") : "", stderr);
	c->module = NULL;
	return is_ready(&c->p) ? NULL : code_compile(m->arena, c->p.text.at, asks_ptxas(&c->p), arch, &c->module);
}

/* At most `most` blocks. */
static void
launch(Code *c, const KernelRec *k, uint64_t arena, long long n, int64_t most)
{
	const CuFunction *f = &c->p.fn.at[k->fn];
	void *function = NULL, **args = arena_array(c->p.a, void *, k->noff + k->nmap + 2);
	_Alignas(128) uint8_t map[2][128];
	int64_t blocks = (k->rows + k->grain - 1) / k->grain;

	most *= f->team > 1 ? f->team : 1;

	args[0] = &arena;
	args[1] = &n;
	for (int i = 0; i < k->noff; i++)
		args[i + 2] = (void *)(uintptr_t)&k->off[i];
	for (int i = 0; i < k->nmap; i++) {
		const KernelMap *m = &k->map[i];
		uint64_t extent[2] = {(uint64_t)m->inner, (uint64_t)(m->outer * (m->mul ? n * m->mul / m->div : 1))},
		         stride[1] = {2 * (uint64_t)m->inner};

		must(cu.map(map[i], 1, 2, (void *)(uintptr_t)(arena + (uint64_t)m->offset), extent, stride,
		            (unsigned[]){(unsigned)m->box[0], (unsigned)m->box[1]}, (unsigned[]){1, 1}, 0, 3, 2, 0),
		     k->name);
		args[k->noff + 2 + i] = map[i];
	}
	must(cu.function(&function, c->module ? c->module : ready.module, f->name), f->name);
	if (f->shared > 48 << 10)
		must(cu.attribute(function, 8, f->shared), f->name);
	must(cu.launch(function, (unsigned)(blocks > most ? most : blocks), 1, 1, (unsigned)f->block, 1, 1,
	               (unsigned)f->shared, NULL, args, NULL),
	     k->name);
	must(cu.synchronize(), k->name);
}

/* Inputs that hold addresses: examples as a data set has them, the last first and no two bytes aligned, in memory of
 * their own. Returns that memory, 0: there are none. */
static uint64_t
addresses(Code *c, RtRun *run, uint8_t *memory)
{
	uint64_t at = 0;
	int64_t bytes = 0;

	for (int pass = 0; pass < 2; pass++) {
		int64_t from = 0;

		for (uint32_t g = 0; g < c->p.ks.graph.n; g++)
			for (uint32_t k = 0; k < c->p.ks.graph.at[g]->g->input.n; k++) {
				const GraphKernels *gk = c->p.ks.graph.at[g];
				const ValInfo *v = val_info(gk->g, gk->g->input.at[k].v);
				Axis examples = v->type.axis[0];
				int64_t each = gk->addressed >> k & 1 ? type_bytes(&v->type) / examples.n : 0,
				        n = examples.mul ? run->n : examples.n;

				for (int64_t e = n; each && e-- > 0; from += each + 1)
					if (pass)
						must(cu.copy_in(at + (uint64_t)from, memory + v->offset + e * each,
						                (size_t)each),
						     "cuMemcpyHtoD");
				for (int64_t e = 0; each && pass && e < n; e++) {
					uint64_t here = at + (uint64_t)(from - (e + 1) * (each + 1));

					memcpy(memory + v->offset + e * 8, &here, sizeof here);
				}
			}
		bytes = from;
		if (!bytes)
			return 0;
		if (!pass)
			must(cu.alloc(&at, (size_t)bytes), "cuMemAlloc");
	}
	return at;
}

/* Every kernel, in order; in front of the arena lies the loop's status. */
static void
launches(Code *c, RtRun *run, uint8_t *memory, int64_t bytes, int64_t most)
{
	uint64_t at;
	uint8_t front[RT_LOOP_BYTES] = {0};

	must(cu.alloc(&at, (size_t)bytes + sizeof front), "cuMemAlloc");
	must(cu.copy_in(at, front, sizeof front), "cuMemcpyHtoD");
	must(cu.copy_in(at + sizeof front, memory, (size_t)bytes), "cuMemcpyHtoD");
	for (uint32_t g = 0; g < c->p.ks.graph.n; g++)
		for (uint32_t i = 0; i < c->p.ks.graph.at[g]->k.n; i++)
			launch(c, &c->p.ks.graph.at[g]->k.at[i], at + sizeof front, run->n, most);
	must(cu.copy_out(memory, at + sizeof front, (size_t)bytes), "cuMemcpyDtoH");
	must(cu.release(at), "cuMemFree");
}

/* Tiles of a contraction once more with another number of blocks: the bits must be the same. */
static int64_t
code_call(Code *c, RtRun *run, int64_t bytes)
{
	uint64_t beside = addresses(c, run, run->arena);
	uint8_t *again = strstr(c->p.text.at, "a tile to a block") || strstr(c->p.text.at, "a tensor to a number")
	                         ? malloc((size_t)bytes)
	                         : NULL;
	bool same = true;

	if (again) {
		memcpy(again, run->arena, (size_t)bytes);
		launches(c, run, again, bytes, 2);
	}
	launches(c, run, run->arena, bytes, 3);
	if (again)
		same = !memcmp(again, run->arena, (size_t)bytes);
	free(again);
	if (beside)
		must(cu.release(beside), "cuMemFree");
	if (!same)
		die("another number of blocks gives other bits");
	return ((RtFault *)run->arena)->set ? RT_FAULT : RT_OK;
}

static void
code_free(Code *c)
{
	if (c->module)
		must(cu.unload(c->module), "cuModuleUnload");
	buf_free(&c->p.text);
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
#define FIND(name, symbol, args) \
	if (!(*(void **)(&cu.name) = dlsym(library, symbol))) \
		return symbol " is not in libcuda.so.1";
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
	int major, minor;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	const Target *t = target_named(TEST_TARGET);
	const char *arch = t->resolve_arch(t, r.arena, given ? given : "sm_80", &error), *missing = device_open();

	if (!arch)
		die("%s", error);
	if (!missing && !strcmp(arch, "sm_90a") && cuda_device_version(&major, &minor) && (major != 9 || minor != 0))
		missing = "the device is none of sm_90a";
	if (!missing && !has_nvrtc(t, r.arena, arch))
		missing = "there is no NVRTC";
	if (missing) {
		printf("skip cuda: %s\n", missing);
		return 77;
	}
	for (int a = 1; a < argc; a++)
		read_word(argv[a], &filter);
	if (!*filter && space_most < 0 && !getenv("CUDA_TEST_CACHED")) {
		r.ncase++;
		if ((error = spills_wrong(r.arena, arch)))
			failed(&r, "spills", "%s", error);
		r.ncase++;
		if ((error = sass_wrong(r.arena, arch)))
			failed(&r, "sass", "%s", error);
	}
	run_all(&r, argc, argv, filter, arch);
	arena_free(r.arena);
	return r.nfailed != 0;
}
