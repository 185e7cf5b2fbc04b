/* cmd_build.c: `build`, `run` and `ref-run`: a model to an executable, and its execution.
 *
 * `run` keeps executables in XDG_CACHE_HOME/mantou (else ~/.cache/mantou), in a folder named by a hash of the typed
 * IR's text (which holds the sources' hash, constants and settings), the options that shape code, and the bytes of this
 * program; where no folder can be made there, in TMPDIR/mantou-UID, which must be this user's alone. Two runs at once
 * may both build; each renames a whole file into place, and either is right. A program there ends in its length and
 * hash: one that a full disk or a crash has damaged is built again. `ref-run` interprets the IR that stands in a
 * launcher script, or in a file. */
#include "cmd.h"

#include "../codegen/codegen.h"
#include "../codegen/ref/ref.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *
default_output(const Job *j, const char *emit)
{
	static const struct {
		const char *emit, *suffix;
	} names[] = {{"ir", ".ir"},   {"llvm", ".ll"}, {"asm", ".s"},      {"obj", ".o"},
	             {"cuda", ".cu"}, {"ptx", ".ptx"}, {"cubin", ".cubin"}};

	for (size_t i = 0; emit && i < sizeof names / sizeof *names; i++)
		if (!strcmp(emit, names[i].emit))
			return arena_printf(j->arena, "%s%s", job_stem(j), names[i].suffix);
	return job_stem(j);
}

int
cmd_build(Arena *a, const Options *o)
{
	Job j;
	int status = job_open(&j, a, o, "build", o->operand[0]);

	if (status != EXIT_GOOD)
		return status;
	return job_build(&j, o->emit, o->output ? o->output : default_output(&j, o->emit));
}

/* ---------------------------------------------------------------- the cache */
static bool
make_folders(char *path)
{
	for (char *p = path + 1;; p++) {
		if (*p && *p != '/')
			continue;
		char c = *p;

		*p = 0;
		bool good = !mkdir(path, 0777) || errno == EEXIST;

		*p = c;
		if (!good)
			return false;
		if (!c)
			return true;
	}
}

static uint64_t
hash_text(uint64_t h, const char *s)
{
	return hash_bytes(h, s ? s : "", s ? strlen(s) + 1 : 1);
}

static uint64_t
hash_file(uint64_t h, const char *path)
{
	size_t n;
	char *bytes = file_read(path, &n);

	if (bytes)
		h = hash_bytes(h, bytes, n);
	free(bytes);
	return h;
}

/* Everything that shapes the executable. */
static uint64_t
cache_key(const Job *j)
{
	const Options *o = j->o;
	Buf b = {0};
	uint64_t h = HASH_START;

	module_print(&b, j->module);
	h = hash_bytes(h, b.at, b.n);
	buf_free(&b);
	h = hash_text(h, j->target->name);
	h = hash_text(h, o->distribute);
	for (int k = 0; k < j->narch; k++)
		h = hash_text(h, j->arch[k]);
	for (int k = 0; k < o->disable.n; k++)
		h = hash_text(h, o->disable.at[k]);
	h = hash_text(h, o->pass_limit);
	h = hash_bytes(h, &o->level, sizeof o->level);
	h = hash_bytes(h, &o->memory, sizeof o->memory);
	for (int k = 0; k < j->narch; k++)
		h = hash_text(h, j->machine[k]);
	h = hash_bytes(h, &o->locked, sizeof o->locked);
	h = hash_bytes(h, &o->debug, sizeof o->debug);
	h = hash_bytes(h, &j->tuning_hash, sizeof j->tuning_hash);
	h = hash_text(hash_text(h, getenv("MANTOU_LLVM_FAST")), getenv("MANTOU_NVRTC_FAST"));
	return hash_file(h, "/proc/self/exe");
}

/* TMPDIR/mantou-UID, made if it is not there. Others may write to where temporary files go, and what lies in the folder
 * is executed: NULL unless it is a folder that belongs to this user and that nobody else may write to. */
static const char *
private_folder(Arena *a)
{
	const char *tmp = getenv("TMPDIR");
	const char *folder = arena_printf(a, "%s/mantou-%u", tmp && *tmp ? tmp : "/tmp", (unsigned)geteuid());
	struct stat st;

	if (mkdir(folder, 0700) && errno != EEXIST)
		return NULL;
	if (lstat(folder, &st))
		return NULL;
	errno = EPERM;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) ? folder : NULL;
}

/* The folder of this key, which can be written to; NULL after a message. */
static char *
cache_place(Job *j)
{
	Arena *a = j->arena;
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *folder = NULL, *why = "";
	uint64_t key = cache_key(j);

	if (xdg && xdg[0] == '/')
		folder = arena_printf(a, "%s/mantou", xdg);
	else if (home && *home)
		folder = arena_printf(a, "%s/.cache/mantou", home);
	if (folder) {
		char *place = arena_printf(a, "%s/%016" PRIx64, folder, key);

		if (make_folders(place) && !access(place, W_OK | X_OK))
			return place;
		why = arena_printf(a, "'%s': %s", place, strerror(errno));
	}
	const char *other = private_folder(a);
	char *place = arena_printf(a, "%s/%016" PRIx64, other ? other : "", key);

	if (other && make_folders(place))
		return place;
	failure("no place for the cache: %s%swhere temporary files go: %s; set XDG_CACHE_HOME to a folder that can be "
	        "written",
	        why, folder ? "; " : "", strerror(errno));
	return NULL;
}

/* The executable's path in the cache, built if it is not there. */
static int
cached_program(Job *j, const char **program)
{
	char *place = cache_place(j);

	if (!place)
		return EXIT_FAILED;
	*program = arena_printf(j->arena, "%s/%s", place, job_stem(j));
	/* Whoever asks for a pass's dump or times wants to see it run. */
	if (!access(*program, X_OK) && !j->o->print_after && !j->o->time_passes && job_sealed(j, *program))
		return EXIT_GOOD;
	j->seal = true;
	return job_build(j, NULL, *program);
}

int
cmd_run(Arena *a, const Options *o)
{
	Job j;
	const char *program = NULL;
	int status = job_open(&j, a, o, "run", o->operand[0]);

	if (status != EXIT_GOOD)
		return status;
	status = job_load(&j);
	if (status == EXIT_GOOD)
		status = cached_program(&j, &program);
	if (status != EXIT_GOOD)
		return status;
	char **argv = arena_array(a, char *, o->nrest + 2);

	argv[0] = arena_strdup(a, program);
	for (int i = 0; i < o->nrest; i++)
		argv[i + 1] = o->rest[i];
	fflush(NULL);
	execv(program, argv);
	return failure("cannot execute '%s': %s", program, strerror(errno));
}

/* ---------------------------------------------------------------- ref-run */
/* Where the IR begins: after the exec line of a launcher, at once in a plain file. */
static const char *
skip_launcher(const char *text)
{
	if (strncmp(text, "#!", 2))
		return text;
	const char *exec = strstr(text, "\nexec ");
	const char *end = exec ? strchr(exec + 1, '\n') : NULL;

	return end ? end + 1 : text;
}

int
cmd_ref_run(Arena *a, const Options *o)
{
	const char *file = o->operand[0];
	Diags d;
	size_t bytes;
	char *text = file_read(file, &bytes);

	if (!text)
		return failure("cannot read '%s': %s", file, strerror(errno));
	diags_init(&d, a, stderr);
	d.colour = colour_on(stderr);
	const char *ir = skip_launcher(text);
	Module *m = module_parse(a, &d, file, ir, bytes - (size_t)(ir - text));

	if (!m || d.nerror)
		return EXIT_FAILED;
	char **argv = arena_array(a, char *, o->nrest + 2);

	argv[0] = arena_strdup(a, file);
	for (int i = 0; i < o->nrest; i++)
		argv[i + 1] = o->rest[i];
	return ref_main(m, o->nrest + 1, argv);
}
