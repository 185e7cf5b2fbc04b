/* link.c: objects and the runtime's archive into an executable, with the system's cc.
 *
 * In: objects that hold mantou_object_0, _1 ...; main is the archive's (runtime/entry.c).   Out: a stripped executable
 * that needs libc and libm only (and zlib, linked statically where the system has it so, if its reader may meet gzip;
 * libjpeg and libpng likewise, if it meets images). The archive is looked for beside the program: in a build folder
 * runtime/librt.a, installed ../LIBDIR/mantou/librt.a; librtcuda.a likewise, of which a code object for a CUDA device
 * takes its part, and librtrace.a, for racing programs alone. Errors tell what was tried: no cc, no archive, a full
 * disk. */
#define _GNU_SOURCE
#include "codegen.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *
beside(Arena *a, const char *argv0, const char *file)
{
	static const char *const places[] = {"../runtime/", MANTOU_LIBDIR, "../lib/mantou/", "runtime/", "./"};
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	const char *from[2] = {argv0, NULL};

	if (n > 0) {
		self[n] = 0;
		from[1] = self;
	}
	for (int f = 1; f >= 0; f--) {
		const char *slash = from[f] ? strrchr(from[f], '/') : NULL;

		for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
			const char *path =
			        arena_printf(a, "%.*s/%s%s", (int)(slash - from[f]), from[f], places[i], file);

			if (!access(path, R_OK))
				return path;
		}
	}
	return NULL;
}

/* What the other end writes, until it closes. */
static void
read_all(Buf *b, int fd)
{
	char part[4096];
	ssize_t n;

	while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
		if (n > 0)
			buf_put(b, part, (size_t)n);
}

/* Why the linker failed, where its message tells. */
static const char *
hint(const char *text)
{
	if (strstr(text, "No space left"))
		return " (the disk is full: free some of it, or name another with -o, or another for the compiler's "
		       "temporary files in TMPDIR)";
	if (strstr(text, "File too large") || strstr(text, "signal 25"))
		return " (the file may not grow that large: ulimit -f)";
	return "";
}

/* The messages come through a pipe: on a full disk no file would take them. */
static const char *
run(Arena *a, char *const *argv)
{
	posix_spawn_file_actions_t fa;
	Buf text = {0};
	const char *r = NULL;
	int status, error, end[2];
	pid_t pid;

	if (pipe2(end, O_CLOEXEC))
		return arena_printf(a, "cannot run '%s': %s", argv[0], strerror(errno));
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, end[1], 1);
	posix_spawn_file_actions_adddup2(&fa, end[1], 2);
	error = posix_spawnp(&pid, argv[0], &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	close(end[1]);
	if (!error)
		read_all(&text, end[0]);
	close(end[0]);
	while (!error && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (error == ENOENT || (!error && WIFEXITED(status) && WEXITSTATUS(status) == 127))
		r = arena_printf(a, "there is no C compiler '%s' to link with%s: "
			"install one (Debian: apt-get install gcc libc6-dev), or set CC", argv[0],
			getenv("CC") ? " (CC names it)" : "");
	else if (error)
		r = arena_printf(a, "cannot run '%s': %s; set CC to a C compiler, or unset it for cc", argv[0],
		                 strerror(error));
	else if (!WIFEXITED(status) || WEXITSTATUS(status))
		r = arena_printf(a, "linking with '%s' failed%s:\n%s", argv[0], hint(text.n ? text.at : ""),
		                 text.n ? text.at : "it left no message");
	buf_free(&text);
	return r;
}

/* CC as make and configure scripts read it, a program and options with blanks between: "ccache gcc", "gcc -m64". A
 * program whose path has blanks is one word. */
static const char **
compiler_words(Arena *a, int *n)
{
	const char *cc = getenv("CC");
	const char **word = arena_array(a, const char *, (cc ? strlen(cc) : 0) + 2);

	*n = 0;
	if (cc && strchr(cc, '/') && !access(cc, X_OK)) {
		word[(*n)++] = cc;
		return word;
	}
	for (const char *p = cc ? cc : ""; *(p += strspn(p, " \t\n")); p += strcspn(p, " \t\n"))
		word[(*n)++] = arena_strndup(a, p, strcspn(p, " \t\n"));
	if (!*n)
		word[(*n)++] = "cc";
	return word;
}

/* A name that no program takes for an option or, with @, for a file of options. */
static const char *
plain(Arena *a, const char *path)
{
	return *path == '/' ? path : arena_printf(a, "./%s", path);
}

const char *
link_program(Arena *a, const LinkOptions *o)
{
	const char *rt = beside(a, o->argv0, "librt.a"), *gz = o->gzip ? beside(a, o->argv0, "librtgz.a") : NULL,
	           *cuda = beside(a, o->argv0, "librtcuda.a");
	const char *race = o->race ? beside(a, o->argv0, "librtrace.a") : NULL;
	const char *images = o->images ? beside(a, o->argv0, "librtimages.a") : NULL;
	const char *comm = o->distribute ? beside(a, o->argv0, "librtcomm.a") : NULL;
	int ncc, n = 0, shared;
	const char **cc = compiler_words(a, &ncc), **argv = arena_array(a, const char *, o->nobject + ncc + 32), *error;

	if (!rt)
		return "the runtime's archive librt.a is neither in runtime/ (build folder) nor in " MANTOU_LIBDIR
		       " (installed) beside mantou";
	if (o->race && !race)
		return "the archive librtrace.a (the command race) is not beside librt.a";
	if (o->images && !images)
		return "the archive librtimages.a (reads JPEG and PNG) is not beside librt.a";
	if (o->distribute && !comm)
		return "the archive librtcomm.a (several processes) is not beside librt.a";
	if (o->gzip && !gz)
		return "the archive librtgz.a (reads gzip) is not beside librt.a: build mantou with zlib";
	for (int i = 0; i < ncc; i++)
		argv[n++] = cc[i];
	argv[n++] = "-o";
	argv[n++] = plain(a, o->output);
	for (int i = 0; i < o->nobject; i++)
		argv[n++] = plain(a, o->objects[i]);
	if (gz) {
		argv[n++] = "-Wl,-u,rt_gzip_read";
		argv[n++] = gz;
	}
	if (images) {
		argv[n++] = "-Wl"
#define IMAGE_READER(name, params) ",-u,rt_read_" #name
#include "../runtime/readers.def"
			;
		argv[n++] = images;
	}
	if (cuda)                                      /* what no code object refers to stays out */
		argv[n++] = cuda;
	if (comm) {
		argv[n++] = "-Wl,-u,rt_comm";
		argv[n++] = comm;
	}
	if (race)                                      /* before librt.a, which has another main */
		argv[n++] = race;
	argv[n++] = rt;
	shared = n;
	if (gz || images)
		argv[n++] = images ? "-Wl,-Bstatic,-ljpeg,-lpng16,-lz,-Bdynamic" : "-Wl,-Bstatic,-lz,-Bdynamic";
#ifdef __SANITIZE_ADDRESS__
	argv[n++] = "-fsanitize=address,undefined"; /* the archive was built with it as this program was */
#endif
	argv[n++] = "-lm";
	if (cuda || comm)
		argv[n++] = "-ldl";
	argv[n++] = "-pthread";
	argv[n++] = "-static-libgcc";
	argv[n++] = "-fno-use-linker-plugin"; /* looks for other kinds of code in all objects: a third of the time */
	argv[n++] = o->debug ? "-Wl,--gc-sections,--as-needed,-z,relro,-z,noexecstack"
	                     : "-Wl,--gc-sections,--as-needed,-s,-z,relro,-z,noexecstack";
	argv[n] = NULL;
	error = run(a, (char *const *)argv);
	/* no static libraries here: the shared ones */
	if (error && shared < n && (gz || images) &&
	    (strstr(error, "-lz") || strstr(error, "-ljpeg") || strstr(error, "-lpng"))) {
		argv[shared] = images ? "-Wl,-ljpeg,-lpng16,-lz" : "-lz";
		error = run(a, (char *const *)argv);
	}
	return error;
}
