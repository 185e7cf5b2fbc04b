/* build.c: from a model to files: emit the code of each --arch, link, write.
 *
 * In: a Job.   Out: files. Each is written under a temporary name and renamed, so that an error leaves what was there
 * before. Refuses, before any work: output that cannot be written or that is the input. */
#include "cmd.h"

#include "../codegen/codegen.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- output */
static bool
same_file(const char *file, const struct stat *st)
{
	struct stat other;

	return file && !stat(file, &other) && S_ISREG(other.st_mode) && other.st_dev == st->st_dev
	       && other.st_ino == st->st_ino;
}

/* NULL, or which of the files that were read it is. */
static const char *
is_input(const Job *j, const struct stat *st)
{
	if (same_file(j->file, st))
		return "the input";
	if (same_file(j->o->tuning, st))
		return "the tuning file";
	if (same_file(j->o->race, st))
		return "the race file";
	for (uint32_t i = 0; i < j->diags.source.n; i++)
		if (same_file(j->diags.source.at[i].name, st))
			return "a file that the model uses";
	return NULL;
}

int
job_check_output(const Job *j, const char *path)
{
	struct stat out, in;

	if (!path || !strcmp(path, "-"))
		return EXIT_GOOD;
	if (!stat(j->file, &in) && S_ISDIR(in.st_mode)) /* the output is named after it */
		return failure("'%s' is a folder; a .net or .ir file is needed", j->file);
	if (!stat(path, &out)) {
		const char *what = S_ISREG(out.st_mode) ? is_input(j, &out) : NULL;

		if (S_ISDIR(out.st_mode))
			return failure("cannot write '%s': it is a folder; name the output with -o", path);
		if (what)
			return failure("'%s' is %s: it would be overwritten; name the output with -o", path, what);
	}
	char *target = file_target(path);

	if (!target)
		return failure("cannot write '%s': %s", path, strerror(errno));
	const char *slash = strrchr(target, '/');
	const char *folder = slash == target ? "/"
		: slash ? arena_strndup(j->arena, target, (size_t)(slash - target)) : ".";
	bool special = file_special(target), may = !access(special ? target : folder, special ? W_OK : W_OK | X_OK);
	int why = errno;

	free(target);
	if (may)
		return EXIT_GOOD;
	if (special)
		return failure("cannot write '%s': %s", path, strerror(why));
	return failure("cannot write '%s': folder '%s': %s", path, folder, strerror(why));
}

/* What tells a whole program in the cache from a part of one: a last line that neither a loader nor sh reads, nor a
 * reader of IR. */
enum { SEAL_BYTES = 48 };

static const char *
seal_of(Arena *a, const void *bytes, size_t n)
{
	return arena_printf(a, "\n; mantou %020zu %016" PRIx64 "\n", n, hash_bytes(HASH_START, bytes, n));
}

bool
job_sealed(const Job *j, const char *path)
{
	size_t n;
	char *bytes = file_read(path, &n);
	bool whole = bytes && n > SEAL_BYTES
		&& !memcmp(bytes + n - SEAL_BYTES, seal_of(j->arena, bytes, n - SEAL_BYTES), SEAL_BYTES);

	free(bytes);
	return whole;
}

int
job_output(const Job *j, const char *path, const Buf *b)
{
	const char *bytes = b->at ? b->at : "";

	if (!path || !strcmp(path, "-")) {
		fwrite(bytes, 1, b->n, stdout);
		return EXIT_GOOD;
	}
	int status = job_check_output(j, path); /* by now it is known which files the model uses */

	if (status == EXIT_GOOD && !file_write(path, bytes, b->n))
		status = failure("cannot write '%s': %s", path, strerror(errno));
	return status;
}

/* A program, with its seal if it goes to the cache. */
static int
output_program(const Job *j, const char *path, Buf *b)
{
	int status = job_check_output(j, path);

	if (j->seal)
		buf_put(b, seal_of(j->arena, b->at, b->n), SEAL_BYTES);
	if (status == EXIT_GOOD && !file_write_executable(path, b->at, b->n))
		status = failure("cannot write '%s': %s", path, strerror(errno));
	return status;
}

/* ---------------------------------------------------------------- build */
static const char *
self_path(const Job *j)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	if (n <= 0)
		return j->o->program;
	return arena_strndup(j->arena, path, (size_t)n);
}

/* 'it'\''s': a word that sh reads as it is. */
static void
put_quoted(Buf *b, const char *s)
{
	buf_put(b, "'", 1);
	for (; *s; s++)
		buf_printf(b, *s == '\'' ? "'\\''" : "%c", *s);
	buf_put(b, "'", 1);
}

/* A script that hands its own text to this mantou; sh reads no further than exec. */
static int
build_launcher(Job *j, const char *path)
{
	Module *m;
	PassCtx cx;
	int status =
	        j->o->locked ? usage_error(j->command, "--locked: target ref has no kernels to select") : job_load(j);

	if (status != EXIT_GOOD)
		return status;
	status =
	        job_compile(j, 0, stage_number(j->module->stage) > STAGE_diffed ? j->module->stage : "diffed", &m, &cx);
	if (status != EXIT_GOOD)
		return status;
	Buf b = {0};

	buf_printf(&b, "#!/bin/sh\n# %s, interpreted in double: what stands below is its IR.\nmantou=", m->name);
	put_quoted(&b, self_path(j));
	buf_printf(&b,
	           "\n[ -x \"$mantou\" ] || { echo \"$0: the compiler $mantou is gone; build again\" >&2; exit 1; }\n"
	           "exec \"$mantou\" ref-run -- \"$0\" -- \"$@\"\n");
	module_print(&b, m);
	status = output_program(j, path, &b);
	buf_free(&b);
	return status;
}

static double
milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* What comes after the passes, in the form of their table. */
static void
print_time(const Job *j, const char *what, double since)
{
	if (j->o->time_passes)
		fprintf(stderr, "%-12s %10.3f\n", what, milliseconds() - since);
}

/* sm_90a and its like: code, as text too, that runs on that machine and on no newer one. */
static bool
runs_there_alone(const char *arch)
{
	size_t n = strlen(arch);

	return n > 3 && !strncmp(arch, "sm_", 3) && arch[n - 1] == 'a';
}

/* The last architecture's code stands in the executable as text too, for newer machines: where that is of no use, this
 * is said. */
static void
note_exact(const Job *j, const char *emit)
{
	const char *last = j->arch[j->narch - 1];

	if (runs_there_alone(last) && !strcmp(emit, "obj"))
		fprintf(stderr,
		        "mantou: note: code for %s runs on no other GPU, and it stands last: --arch %s,sm_80 adds code "
		        "for newer ones\n",
		        last, last);
}

/* --driver: what it lacks is said; false: it runs nothing. */
static bool
driver_fits(const Job *j)
{
	bool none = false;
	const char *lacks = NULL;

	if (!j->o->driver)
		return true;
	if (!target_does(j->target, TARGET_has_ptx))
		return !failure("--driver is of target cuda");
	lacks = j->target->here.driver_lacks(j->arena, j->o->driver, &none);
	if (none)
		return !failure("--driver: %s", lacks);
	if (lacks)
		fprintf(stderr, "mantou: note: %s\n", lacks);
	return true;
}

/* Kernels that will be far slower than the machine. */
static void
warn_slow(Job *j, Module *m, int arch)
{
	enum { SHOWN = 8 };
	int n;
	const Slow *s = info_slow(j, m, arch, &n);

	for (int i = 0; i < n && i < SHOWN; i++) {
		Buf b = {0};

		put_slow(&b, &s[i]);
		fprintf(stderr, "%s%swarning: %s; `mantou explain %s %s` says more\n", s[i].where,
		        *s[i].where ? ": " : "", b.at, j->file, s[i].layer);
		buf_free(&b);
	}
	if (n > SHOWN)
		fprintf(stderr, "warning: and %d more such kernels\n", n - SHOWN);
}

/* --ptx-only: false: there is none, or which of several. */
static bool
ptx_fits(const Job *j, const char *emit)
{
	if (!j->o->ptx_only)
		return true;
	if (!target_does(j->target, TARGET_has_ptx))
		return !failure("--ptx-only is of target cuda");
	if (strcmp(emit, "obj") != 0)
		return !failure("--ptx-only is of executables; --emit ptx writes the PTX itself");
	return j->narch == 1 || !failure("--ptx-only takes one --arch, the oldest that is to run it");
}

/* The code of every architecture, in order. */
static int
emit_all(Job *j, const char *emit, Buf *out)
{
	if (!j->target->emit)
		return failure("--emit %s: target %s emits no code", emit, j->target->name);
	note_exact(j, emit);
	if (!driver_fits(j) || !ptx_fits(j, emit))
		return EXIT_FAILED;
	for (int k = 0; k < j->narch; k++) {
		EmitCounts counts = {0};
		EmitOptions e = {.emit = emit,
		                 .arch = j->arch[k],
		                 .machine = j->machine[k],
		                 .opt = j->o->level < 0 ? 2 : (int)j->o->level,
		                 .index = k,
		                 .jobs = j->o->jobs < 1024 ? (int)j->o->jobs : 1024,
		                 .ptx_only = j->o->ptx_only,
		                 .debug = j->o->debug,
		                 .counts = &counts,
		                 .last = k == j->narch - 1};
		Module *m;
		PassCtx cx;
		int status = job_compile(j, k, NULL, &m, &cx);

		if (status != EXIT_GOOD)
			return status;
		double start = milliseconds();
		const char *error = j->target->emit(j->target, m, &e, &out[k]);

		print_time(j, "code", start);
		if (j->o->time_passes && counts.functions)
			fprintf(stderr, "%-12s %10u of %u functions from the cache\n", "", counts.cached,
			        counts.functions);
		if (error)
			return failure("%s: code for %s: %s", j->file, j->arch[k], error);
		if (!strcmp(emit, "obj"))
			warn_slow(j, m, k);
	}
	return EXIT_GOOD;
}

static bool
may_meet_gzip(const Module *m)
{
	const Setting *r = setting(m, "data.reader");

	return r && r->s && strcmp(r->s, "none") && strcmp(r->s, "synthetic");
}

static bool
meets_images(const Module *m)
{
	const Setting *r = setting(m, "data.reader");

	static const char *const reader[] = {
#define IMAGE_READER(name, params) #name,
#include "../runtime/readers.def"
	};
	bool is = false;

	for (size_t i = 0; r && r->s && i < sizeof reader / sizeof *reader; i++)
		is |= strcmp(r->s, reader[i]) == 0;
	return is;
}

/* Objects and what the linker makes of them lie in a folder of their own, beside the output or, for a device
 * or a pipe, where temporary files go: the folder is removed as a whole, also when a signal ends this program. */
static char *
link_folder(const Job *j, const char *path)
{
	const char *tmp = getenv("TMPDIR");
	char *target = file_target(path), *folder = NULL;

	if (target && file_special(target))
		folder = temp_folder(arena_printf(j->arena, "%s/x",
		                                  tmp && *tmp && !access(tmp, W_OK | X_OK) ? tmp : "/tmp"));
	else if (target)
		folder = temp_folder(target);
	int why = errno;

	free(target);
	errno = why;
	return folder;
}

static char *
link_file(const Job *j, const char *folder, const char *name)
{
	char *path = strdup(arena_printf(j->arena, "%s/%s", folder, name));

	if (!path)
		die("out of memory");
	temp_note(path);
	return path;
}

/* The linked program, whole, to its place. */
static int
take_program(const Job *j, const char *linked, const char *path)
{
	Buf b = {0};

	b.at = file_read(linked, &b.n);
	if (!b.at)
		return failure("cannot read '%s': %s", linked, strerror(errno));
	b.cap = b.n + 1;
	unlink(linked); /* the disk need not hold it twice */
	int status = output_program(j, path, &b);

	buf_free(&b);
	return status;
}

static int
link_all(Job *j, const char *path, const Buf *code)
{
	char *folder = link_folder(j, path), *file[16 + 1];
	int status = EXIT_GOOD, n = 0;

	if (!folder)
		return failure("cannot write '%s': a folder for temporary files: %s", path, strerror(errno));
	for (; n < j->narch && status == EXIT_GOOD; n++) {
		file[n] = link_file(j, folder, arena_printf(j->arena, "%d.o", n));
		if (!file_write(file[n], code[n].at, code[n].n))
			status = failure("cannot write '%s': %s", file[n], strerror(errno));
	}
	int nobject = n;
	char *linked = file[n++] = link_file(j, folder, "program");

	if (status == EXIT_GOOD) {
		LinkOptions l = {.objects = (const char *const *)file,
		                 .nobject = nobject,
		                 .output = linked,
		                 .argv0 = self_path(j),
		                 .race = j->race != NULL,
		                 .debug = j->o->debug,
		                 .distribute = j->o->distribute != NULL,
		                 .images = meets_images(j->module),
		                 .gzip = may_meet_gzip(j->module) || !strcmp(j->target->name, "cuda")};
		const char *error = link_program(j->arena, &l);

		status = error ? failure("%s: %s", path, error) : take_program(j, linked, path);
	}
	while (n-- > 0) {
		unlink(file[n]);
		temp_free(file[n]);
	}
	rmdir(folder);
	temp_free(folder);
	return status;
}

static int
build_ir(Job *j, const char *path)
{
	Module *m;
	PassCtx cx;
	int status = job_compile(j, 0, NULL, &m, &cx);
	Buf b = {0};

	if (status != EXIT_GOOD)
		return status;
	module_print(&b, m);
	status = job_output(j, path, &b);
	buf_free(&b);
	return status;
}

bool
job_emits(const Job *j)
{
	const char *e = j->o->emit;
	bool prints_ir = !strcmp(j->command, "dump") || !strcmp(j->command, "opt");

	return e && strcmp(e, "exe") && !(prints_ir && !strcmp(e, "ir"));
}

const char *
job_emit(const Job *j, const Module *m, const char *form, Buf *text)
{
	EmitOptions e = {.emit = form,
	                 .arch = j->arch[0],
	                 .machine = j->machine[0],
	                 .opt = j->o->level < 0 ? 2 : (int)j->o->level};

	return j->target->emit(j->target, m, &e, text);
}

const Json *
job_json(const Job *j, const Module *m, const char *form, Buf *text, JsonDoc **doc, const char **error)
{
	char why[128];

	*error = job_emit(j, m, form, text);
	const Json *root = *error ? NULL : rt_json_parse(text->at, text->n, doc, why, sizeof why);

	if (!*error && !root)
		bug("%s: what the target says in the form %s does not parse: %s", j->command, form, why);
	return root;
}

int
job_build(Job *j, const char *emit, const char *path)
{
	bool exe = !emit || !strcmp(emit, "exe");
	Buf code[16] = {{0}};
	int status = job_check_output(j, path);

	if (status != EXIT_GOOD)
		return status;
	if (exe && !strcmp(path, "-"))
		return usage_error(j->command, "an executable cannot be written to stdout");
	if (!exe && j->narch > 1)
		return usage_error(j->command, "--emit %s writes the code of one --arch", emit);
	if (!exe && !strcmp(emit, "ir"))
		return build_ir(j, path);
	status = j->module ? EXIT_GOOD : job_load(j);
	if (status != EXIT_GOOD)
		return status;
	if (exe && !strcmp(j->target->name, "ref"))
		return build_launcher(j, path);
	status = emit_all(j, exe ? "obj" : emit, code);
	double start = milliseconds();

	if (status == EXIT_GOOD)
		status = exe ? link_all(j, path, code) : job_output(j, path, &code[0]);
	print_time(j, exe ? "link" : "write", start);
	for (int k = 0; k < j->narch; k++)
		buf_free(&code[k]);
	return status;
}
