/* nvrtc.c: CUDA C to PTX and cubins by NVRTC, which is looked for when it is needed, and a cache of what it made.
 *
 * In: text and an architecture.   Out: PTX (text) or a cubin. mantou is built and works without CUDA; the few types of
 * NVRTC's C API that are needed are declared here. What it made is kept (cache.h, folder nvrtc) by text, architecture
 * and NVRTC's version. An error in generated code is a defect of mantou: NVRTC's log is printed with the group that it
 * names; so are products by wgmma that ptxas makes wait. A contraction whose registers do not suffice is a warning. */
#define _GNU_SOURCE /* dladdr */
#include "cuda.h"
#include "../cache.h"
#include "forecast/sass.h"
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct NvrtcProgram *Program;

/* NVRTC's functions that are called: name, result, arguments. */
#define FUNCTIONS(F) \
	F(Version, (int *major, int *minor)) \
	F(CreateProgram, (Program * p, const char *source, const char *name, int headers, const char *const *header, \
	                  const char *const *header_name)) \
	F(CompileProgram, (Program p, int options, const char *const *option)) \
	F(DestroyProgram, (Program * p)) \
	F(GetPTXSize, (Program p, size_t * bytes)) \
	F(GetPTX, (Program p, char *bytes)) \
	F(GetCUBINSize, (Program p, size_t * bytes)) \
	F(GetCUBIN, (Program p, char *bytes)) \
	F(GetProgramLogSize, (Program p, size_t * bytes)) \
	F(GetProgramLog, (Program p, char *text))

typedef struct Nvrtc {
	void *library;
#define MEMBER(name, args) int (*name) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
	int major, minor;
	const char *fast; /* min, mid or max: how little PTX alone is optimised; NULL: as much as NVRTC does */
} Nvrtc;

/* NVRTC asks the loader for its second half by name alone: one that lies beside it, and not in the loader's path, must
 * be there already. It stays for good, as NVRTC's own memory does. */
static void
builtins_open(Arena *a, const Nvrtc *n)
{
	Dl_info where;
	const char *slash =
	        dladdr((void *)(uintptr_t)n->Version, &where) && where.dli_fname ? strrchr(where.dli_fname, '/') : NULL;

	if (slash)
		dlopen(arena_printf(a, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - where.dli_fname),
		                    where.dli_fname, n->major, n->minor),
		       RTLD_NOW | RTLD_LOCAL);
}

static const char *
nvrtc_open(Arena *a, Nvrtc *n)
{
	static const char *const places[] = {"libnvrtc.so.13",
	                                     "libnvrtc.so.12",
	                                     "libnvrtc.so",
	                                     "/usr/local/cuda/lib64/libnvrtc.so.13",
	                                     "/usr/local/cuda/lib64/libnvrtc.so.12",
	                                     "/usr/local/cuda/lib64/libnvrtc.so"};
	const char *given = getenv("MANTOU_LIBNVRTC"), *missing = NULL;

	if (given && *given)
		n->library = dlopen(given, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; !(given && *given) && !n->library && i < sizeof places / sizeof *places; i++)
		n->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!n->library)
		return arena_printf(a,
		                    "PTX and cubins need NVRTC, and %s was not found: it comes with the CUDA toolkit "
		                    "(package cuda-nvrtc, or nvidia-cuda-nvrtc of Python), in the loader's path, in "
		                    "/usr/local/cuda/lib64 or where MANTOU_LIBNVRTC says; --emit cuda works without",
		                    given && *given ? given : "libnvrtc.so.13 or .12");
#define FIND(f, args) if (!(*(void **)(&n->f) = dlsym(n->library, "nvrtc" #f))) missing = "nvrtc" #f;
	FUNCTIONS(FIND)
#undef FIND
	if (missing || n->Version(&n->major, &n->minor)) {
		dlclose(n->library);
		n->library = NULL;
		return arena_printf(a, "libnvrtc is too old: it has no %s", missing ? missing : "version");
	}
	builtins_open(a, n);
	return NULL;
}

/* Asked for by MANTOU_NVRTC_FAST; what NVRTC before 13 cannot do is not done. */
static const char *
nvrtc_hurry(Arena *a, Nvrtc *n)
{
	const char *word = getenv("MANTOU_NVRTC_FAST");

	if (!word || !*word)
		return NULL;
	if (strcmp(word, "min") != 0 && strcmp(word, "mid") != 0 && strcmp(word, "max") != 0)
		return arena_printf(a, "MANTOU_NVRTC_FAST is min, mid or max, not %s", word);
	n->fast = n->major >= 13 ? word : NULL;
	return NULL;
}

/* ---------------------------------------------------------------- drivers */
/* The first releases of the driver for each version of CUDA (NVIDIA, "CUDA Toolkit Release Notes", table of drivers),
 * versions as 10 major + minor. Within a major version cubins run on an older driver, PTX does not. */
static const struct { int release, cuda; } drivers[] = {{525, 120}, {530, 121}, {535, 122}, {545, 123},
                                                        {550, 124}, {555, 125}, {560, 126}, {565, 127},
                                                        {570, 128}, {575, 129}, {580, 130}, {590, 131}};
enum { DRIVERS = sizeof drivers / sizeof *drivers, LOOPS_IN_GRAPHS = 124 };

const char *
nvrtc_driver_lacks(Arena *a, long release, bool *none)
{
	Nvrtc n = {0};
	const char *error = nvrtc_open(a, &n), *graphs = "";
	int i = 0;

	*none = false;
	if (error)
		return error;
	dlclose(n.library);
	while (i < DRIVERS && drivers[i].release <= release)
		i++;
	int cuda = i ? drivers[i - 1].cuda : 0, made = 10 * n.major + n.minor;

	if (i == DRIVERS) /* or newer than what is known here */
		return NULL;
	*none = cuda / 10 < n.major;
	if (!cuda)
		return arena_printf(a, "a driver R%ld is older than CUDA 12.0, which programs take: R%d", release,
		                    drivers[0].release);
	if (*none)
		return arena_printf(a,
		                    "a driver R%ld is for CUDA %d.%d and takes nothing that NVRTC %d.%d compiles: the "
		                    "program takes one for CUDA %d, or an NVRTC %d.x (MANTOU_LIBNVRTC)",
		                    release, cuda / 10, cuda % 10, n.major, n.minor, n.major, cuda / 10);
	if (cuda < LOOPS_IN_GRAPHS)
		graphs = "; an epoch is no loop in a graph, each step is a launch";
	if (cuda >= made)
		return !*graphs ? NULL
		                : arena_printf(a, "a driver R%ld is for CUDA %d.%d%s", release, cuda / 10, cuda % 10,
		                               graphs);
	return arena_printf(a,
	                    "a driver R%ld is for CUDA %d.%d, and the PTX beside the kernels is of %d.%d: the program "
	                    "runs on GPUs of --arch alone%s",
	                    release, cuda / 10, cuda % 10, n.major, n.minor, graphs);
}

/* ---------------------------------------------------------------- errors */
/* The group whose kernel stands at a line of the source. */
static const char *
group_at(Arena *a, const char *source, long number)
{
	const char *group = NULL, *at = source;

	for (long l = 1; at && *at && l <= number; l++) {
		if (!strncmp(at, "/* graph ", 9))
			group = at + 3;
		at = strchr(at, '\n');
		at = at ? at + 1 : NULL;
	}
	return group ? arena_strndup(a, group, strcspn(group, ":")) : "the prelude";
}

static char *
program_log(Arena *a, const Nvrtc *n, Program p)
{
	size_t bytes = 0;
	char *log = NULL;

	if (!n->GetProgramLogSize(p, &bytes) && bytes) {
		log = arena_array(a, char, bytes + 1);
		n->GetProgramLog(p, log);
	}
	return log;
}

/* The line of comment before a kernel. */
static const char *
comment_of(Arena *a, const char *source, const char *kernel)
{
	const char *at = strstr(source, arena_printf(a, "KERNEL %s(", kernel)), *from;

	if (!at)
		at = strstr(source, arena_printf(a, "KERNEL2 %s(", kernel));
	if (!at)
		at = strstr(source, arena_printf(a, ") %s(char *arena", kernel));
	from = at;
	while (from && from > source && strncmp(from, "/* graph ", 9))
		from--;
	return from && from > source ? arena_strndup(a, from + 3, strcspn(from, "\n") - 6) : NULL;
}

/* That of the function that a message of ptxas names: "function 'NAME'" in this line of its log. */
static const char *
comment_of_line(Arena *a, const char *source, const char *line)
{
	const char *name = strstr(line, "unction '"), *end = line + strcspn(line, "\n"), *comment = NULL;

	if (name && name < end)
		comment = comment_of(a, source, arena_strndup(a, name + 9, strcspn(name + 9, "'\n")));
	return comment ? comment : "no kernel is named";
}

static const char *
compile_error(Arena *a, const Nvrtc *n, Program p, const char *source, int status)
{
	char *log = program_log(a, n, p);
	const char *open = log ? strstr(log, ".cu(") : NULL, *ptxas = log ? strstr(log, "ptxas error") : NULL;
	const char *group = open    ? group_at(a, source, strtol(open + 4, NULL, 10))
	                    : ptxas ? comment_of_line(a, source, ptxas)
	                            : "no line is named";

	if (log && strstr(log, "libnvrtc-builtins"))
		return arena_printf(a,
		                    "NVRTC %d.%d is not whole: libnvrtc-builtins.so.%d.%d must lie beside libnvrtc.so "
		                    "or in the loader's path: %s",
		                    n->major, n->minor, n->major, n->minor, log);
	return arena_printf(a, "this is a defect of mantou: NVRTC refuses generated code (status %d; %s):\n%s", status,
	                    group, log ? log : "");
}

/* ptxas -v says for each kernel what it takes: the next one, from *at on, that keeps registers in memory, and how many
 * bytes of them. */
static bool
next_spill(const char **at, char name[512], int *bytes)
{
	for (const char *p = *at; p && (p = strstr(p, "Compiling entry function '")); p++) {
		const char *frame = strstr(p, "bytes stack frame, ");

		*at = p + 1;
		*bytes = 0;
		if (sscanf(p, "Compiling entry function '%511[^']", name) == 1 && frame &&
		    sscanf(frame, "bytes stack frame, %d", bytes) == 1 && *bytes)
			return true;
	}
	return false;
}

/* What ptxas may keep in memory of a contraction's registers, bytes of a thread, outside the loop of its products:
 * another block on the multiprocessor is worth more. */
enum { SPILT_MOST = 96 };

static bool
costly(Arena *a, const Buf *cubin, const char *arch, const char *name, int bytes)
{
	Code c;

	return bytes > SPILT_MOST || !cu_code_read(a, cubin, name, atoi(arch + 3) >= 90, &c) ||
	       cu_code_spills_in_loop(&c);
}

/* The source with KERNEL in place of KERNEL2 for those that do not fit beside another block after all; NULL: all do. */
static const char *
with_room(Arena *a, const char *source, const char *log, const Buf *cubin, const char *arch)
{
	const char *at = log;
	char name[512], *text = NULL;
	int bytes;

	while (next_spill(&at, name, &bytes)) {
		const char *kernel = strstr(text ? text : source, arena_printf(a, "KERNEL2 %s(", name));

		if (!kernel || !costly(a, cubin, arch, name, bytes))
			continue;
		size_t place = (size_t)(kernel - (text ? text : source));

		text = text ? text : arena_strdup(a, source);
		memcpy(text + place, " KERNEL", strlen("KERNEL2"));
	}
	return text;
}

/* Is it the comment of a contraction in tiles? */
static bool
has_sums(const char *comment)
{
	const char *kernel = comment ? strstr(comment, ": ") : NULL;
	FamilyId f = space_family_of("cuda", NULL, kernel ? kernel + 2 : NULL);

	return f == FAMILY_cuda_mma || f == FAMILY_cuda_wgmma || f == FAMILY_cuda_ffma;
}

/* Sums of a contraction that leave the registers in its innermost loop cost more than any other choice of tiles would:
 * such a kernel is a defect. NULL: there is none. */
static const char *
spills(Arena *a, const char *source, const char *log, const Buf *cubin, const char *arch)
{
	const char *at = log, *comment;
	char name[512];
	int stores;

	while (next_spill(&at, name, &stores)) {
		comment = comment_of(a, source, name);
		if (has_sums(comment) && costly(a, cubin, arch, name, stores))
			return arena_printf(
			        a,
			        "a contraction keeps %d bytes of its registers in memory, which is slow: this is a "
			        "defect of mantou (%s)",
			        stores, comment);
	}
	return NULL;
}

/* ptxas says, and goes on, where it makes products of wgmma wait for each other (C7510 and its neighbours): then they
 * are no faster than mma.sync. */
static const char *
waits(Arena *a, const char *source, const char *log)
{
	const char *message = log ? strstr(log, "(C75") : NULL;

	if (!message)
		return NULL;
	return arena_printf(a, "ptxas makes products of wgmma wait, which is slow: this is a defect of mantou (%s): %s",
	                    comment_of_line(a, source, message), arena_strndup(a, message, strcspn(message, "\n")));
}

/* What is wrong with code that was made all the same; NULL: nothing. */
static const char *
complaint(Arena *a, const char *source, const char *log, const Buf *cubin, const char *arch)
{
	const char *why = spills(a, source, log, cubin, arch);

	return why ? why : waits(a, source, log);
}

/* ---------------------------------------------------------------- the cache */
static CodeKey
key_of(Arena *a, const Nvrtc *n, const NvrtcJob *j, const char *arch, bool cubin)
{
	return cache_key(j->source, strlen(j->source),
	                 arena_printf(a, "nvrtc 2 %s %d %d%s%s %d.%d", arch, cubin, j->lines,
	                              n->fast && !j->cubin ? " fast " : "", n->fast && !j->cubin ? n->fast : "",
	                              n->major, n->minor));
}

/* A cubin is kept with what was said of it, so that it is said each time: code, words, their length in 4 bytes. */
static void
keep_cubin(CodeCache *c, CodeKey key, const Buf *cubin, const char *note)
{
	uint32_t n = note ? (uint32_t)strlen(note) : 0;
	Buf b = {0};

	buf_put(&b, cubin->at, cubin->n);
	buf_put(&b, note ? note : "", n);
	buf_put(&b, &n, sizeof n);
	cache_put(c, key, b.at, b.n);
	buf_free(&b);
}

static bool
kept_cubin(const CodeCache *c, CodeKey key, NvrtcJob *j)
{
	Buf *b = &j->cubin_out;
	uint32_t n;

	if (!cache_get(c, key, b) || b->n < sizeof n)
		return false;
	memcpy(&n, b->at + b->n - sizeof n, sizeof n);
	if (n > b->n - sizeof n)
		return false;
	b->n -= n + sizeof n;
	*(j->strict ? &j->error : &j->note) = n ? strndup(b->at + b->n, n) : NULL;
	return true;
}

/* ---------------------------------------------------------------- compiling */
static const char *
fetch(Arena *a, const Nvrtc *n, Program p, const char *arch, bool cubin, Buf *out)
{
	size_t bytes = 0;

	if ((cubin ? n->GetCUBINSize : n->GetPTXSize)(p, &bytes) || !bytes)
		return arena_printf(a, "NVRTC %d.%d makes no %s for %s", n->major, n->minor, cubin ? "cubin" : "PTX",
		                    arch);
	char *code = arena_array(a, char, bytes);

	(cubin ? n->GetCUBIN : n->GetPTX)(p, code);
	buf_put(out, code, cubin ? bytes : strlen(code));
	return NULL;
}

/* *again: NULL, or what to compile in its place. */
static const char *
compile_source(Arena *a, const Nvrtc *n, const char *arch, NvrtcJob *j, const char *source, const char **again)
{
	const char *option[8] = {arena_printf(a, "--gpu-architecture=%s%s", j->cubin ? "sm_" : "compute_", arch + 3),
	                         "--fmad=false", "--std=c++17", "--diag-suppress=177,550"};
	Program p = NULL;
	int count = 4, status = n->CreateProgram(&p, source, "mantou.cu", 0, NULL, NULL);

	*again = NULL;
	if (status)
		return arena_printf(a, "NVRTC makes no program (status %d)", status);
	if (j->lines)
		option[count++] = "-lineinfo";
	if (n->fast && !j->cubin) {
		option[count++] = arena_printf(a, "--Ofast-compile=%s", n->fast);
		option[count++] = "--minimal";       /* none of what the text never names: textures and the like */
	}
	if (j->cubin)
		option[count++] = "--ptxas-options=-v";
	status = n->CompileProgram(p, count, option);
	if (status && j->cubin) /* beside what -v says, ptxas leaves its errors out */
		status = n->CompileProgram(p, count - 1, option);
	const char *log = !status && j->cubin ? program_log(a, n, p) : NULL, *error = NULL;

	j->cubin_out.n = 0;
	if (log)
		error = fetch(a, n, p, arch, true, &j->cubin_out);
	*again = log && !error ? with_room(a, source, log, &j->cubin_out, arch) : NULL;
	if (!*again && !error)
		error = status ? compile_error(a, n, p, source, status) : NULL;
	if (!*again && !error && log)
		*(j->strict ? &error : &j->note) = complaint(a, source, log, &j->cubin_out, arch);
	if (!error && !*again && j->ptx)
		error = fetch(a, n, p, arch, false, &j->ptx_out);
	n->DestroyProgram(&p);
	return error;
}

static const char *
compile(Arena *a, const Nvrtc *n, const char *arch, NvrtcJob *j)
{
	const char *source = j->source, *again, *error;

	while (!(error = compile_source(a, n, arch, j, source, &again)) && again)
		source = again;
	return error;
}

/* Jobs in the making: threads take the next one. NVRTC may be called by several at once. */
typedef struct Work { const Nvrtc *n; const char *arch; NvrtcJob *job; int count; int next; CodeCache cache; } Work;

static void *
work(void *arg)
{
	Work *w = arg;
	int k;

	while ((k = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->count) {
		NvrtcJob *j = &w->job[k];
		Arena *a = arena_new();
		CodeKey cubin = key_of(a, w->n, j, w->arch, true), ptx = key_of(a, w->n, j, w->arch, false);

		if ((j->ptx && !cache_get(&w->cache, ptx, &j->ptx_out)) ||
		    (j->cubin && !kept_cubin(&w->cache, cubin, j))) {
			j->cubin_out.n = j->ptx_out.n = 0;
			const char *error = compile(a, w->n, w->arch, j);

			j->error = error ? strdup(error) : NULL;
			j->note = !error && j->note ? strdup(j->note) : NULL;
			if (!error && j->cubin)
				keep_cubin(&w->cache, cubin, &j->cubin_out, j->note);
			if (!error && j->ptx)
				cache_put(&w->cache, ptx, j->ptx_out.at, j->ptx_out.n);
		}
		arena_free(a);
	}
	return NULL;
}

const char *
nvrtc_compile(Arena *a, const char *arch, NvrtcJob *job, int n, int jobs)
{
	Nvrtc lib = {0};
	const char *error = nvrtc_open(a, &lib);

	error = error ? error : nvrtc_hurry(a, &lib);
	Work w = {.n = &lib, .arch = arch, .job = job, .count = n, .cache = cache_open(a, "nvrtc")};
	pthread_t thread[16];
	long most = jobs > 0 ? jobs : sysconf(_SC_NPROCESSORS_ONLN);
	int threads = 0;

	if (error)
		return error;
	while (threads < n - 1 && threads < most - 1 && threads < (int)(sizeof thread / sizeof *thread) &&
	       !pthread_create(&thread[threads], NULL, work, &w))
		threads++;
	work(&w);
	while (threads > 0)
		pthread_join(thread[--threads], NULL);
	dlclose(lib.library);
	for (int i = 0; i < n; i++) {
		if (job[i].error && !error)
			error = arena_strdup(a, job[i].error);
		free((char *)(uintptr_t)job[i].error);
		job[i].error = NULL;
		const char *note = job[i].note;

		job[i].note = note ? arena_strdup(a, note) : NULL;
		free((char *)(uintptr_t)note);
	}
	return error;
}
