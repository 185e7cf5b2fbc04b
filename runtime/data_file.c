/* data_file.c: files that are read: whole into memory, or mapped; and the files that a pattern names.
 *
 * In: a path or a pattern.   Out: the file's bytes. What begins as gzip is unpacked into memory. A mapped file costs
 * the memory of the pages that were touched, until rt_file_forget gives them back.
 * Refuses: folders, files that cannot be read, patterns without a file. A mapped file that becomes shorter, or that its
 * disk cannot read, ends the program with a message (SIGBUS), as no access to a mapping can fail otherwise. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- mapped files that cannot be read any more */

enum { BUS_FILES = 4096 };
static struct { const uint8_t *at, *end; const char *path; } bus_file[BUS_FILES];
static int bus_files;

static void
bus_say(const char *text)
{
	if (write(2, text, strlen(text)) < 0)
		_exit(1);
}

static void
bus_handler(int number, siginfo_t *info, void *cx)
{
	const uint8_t *at = info->si_addr;

	(void)cx;
	for (int i = 0; i < bus_files; i++) {
		if (at < bus_file[i].at || at >= bus_file[i].end)
			continue;
		bus_say("error: ");
		bus_say(bus_file[i].path);
		bus_say(": became shorter, or its disk cannot read it, while it was in use; checkpoints are whole\n");
		_exit(1);
	}
	signal(number, SIG_DFL);
	raise(number);
}

static void
bus_enter(const RtFile *f)
{
	struct sigaction a = {.sa_sigaction = bus_handler, .sa_flags = SA_SIGINFO};

	if (bus_files == BUS_FILES)
		return;
	bus_file[bus_files].at = f->at;
	bus_file[bus_files].end = f->at + f->n;
	bus_file[bus_files++].path = rt_printf("%s", f->path);
	sigaction(SIGBUS, &a, NULL);
}

static void
bus_leave(const RtFile *f)
{
	for (int i = 0; f->mapped && i < bus_files; i++)
		if (bus_file[i].at == f->at)
			bus_file[i].end = f->at;
}

/* ---- files */

static bool
file_read_fd(RtFile *f, int fd, RtError *e)
{
	struct stat st;
	size_t room;

	if (fstat(fd, &st) != 0)
		return rt_fail(e, "%s: %s", f->path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return rt_fail(e, "%s: is a folder", f->path);
	room = (size_t)st.st_size + 1;           /* one more: the end shows without growing */
	f->at = rt_large(room);
	while (f->at) {
		ssize_t k;

		if (f->n == room) {
			uint8_t *more = realloc(f->at, room * 2);

			if (!more)
				break;
			f->at = more;
			room *= 2;
		}
		k = read(fd, f->at + f->n, room - f->n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return rt_fail(e, "%s: %s", f->path, strerror(errno));
		if (k == 0)
			return true;
		f->n += (size_t)k;
	}
	return rt_fail(e, "%s: out of memory (%zu bytes)", f->path, room);
}

static void
file_drop(RtFile *f)
{
	if (f->mapped && f->n)
		munmap(f->at, f->n);
	else if (!f->mapped)
		free(f->at);
	f->at = NULL;
}

static bool
file_gunzip(RtFile *f, RtError *e)
{
	uint8_t *out = NULL;
	size_t n = 0;
	char why[128];

	if (f->n < 2 || f->at[0] != 0x1f || f->at[1] != 0x8b)
		return true;
	if (!rt_gzip_read)
		return rt_fail(
		        e,
		        "%s: is compressed with gzip, which this executable was built without; unpack it with gunzip",
		        f->path);
	if (!rt_gzip_read(f->at, f->n, &out, &n, why, sizeof why))
		return rt_fail(e, "%s: gzip: %s", f->path, why);
	file_drop(f);
	f->mapped = false;
	f->at = out;
	f->n = n;
	return true;
}

/* Maps a plain file; leaves others to be read. */
static void
file_map_fd(RtFile *f, int fd)
{
	struct stat st;
	void *at;

	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0)
		return;
	at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return;
	*f = (RtFile){.path = f->path, .at = at, .n = (size_t)st.st_size, .mapped = true};
}

static bool
file_get(RtFile *f, const char *path, bool map, RtError *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool good;

	memset(f, 0, sizeof *f);
	if (fd < 0)
		return rt_fail(e, "%s: %s", path, strerror(errno));
	f->path = rt_printf("%s", path);
	if (map)
		file_map_fd(f, fd);
	good = (f->at || file_read_fd(f, fd, e)) && file_gunzip(f, e);
	close(fd);
	if (!good)
		rt_file_free(f);
	return good;
}

bool
rt_file_read(RtFile *f, const char *path, RtError *e)
{
	return file_get(f, path, false, e);
}

void
rt_file_free(RtFile *f)
{
	bus_leave(f);
	file_drop(f);
	free(f->path);
	memset(f, 0, sizeof *f);
}

void
rt_file_forget(const RtFile *f, size_t from, size_t to)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	from = from / page * page;
	to = to < f->n ? to : f->n;
	if (f->mapped && to > from)
		madvise(f->at + from, to - from, MADV_DONTNEED);
}

bool
rt_file_map(RtFile *f, const char *path, RtError *e)
{
	if (!file_get(f, path, true, e))
		return false;
	if (f->mapped)
		bus_enter(f);
	return true;
}

/* ---- names */

bool
rt_paths_find(RtPaths *p, const char *folder, const char *pattern, RtError *e)
{
	char *full = rt_alloc(2 * strlen(folder) + strlen(pattern) + 2), *out = full;
	glob_t g = {0};
	int bad;

	p->n = 0;
	for (const char *c = pattern[0] == '/' ? "" : folder; *c; c++) { /* the folder is a name, not a pattern */
		if (strchr("*?[]\\", *c))
			*out++ = '\\';
		*out++ = *c;
	}
	if (pattern[0] != '/')
		*out++ = '/';
	strcpy(out, pattern);
	bad = glob(full, 0, NULL, &g);
	free(full);
	if (bad == GLOB_NOMATCH || (!bad && g.gl_pathc == 0)) {
		struct stat st;

		globfree(&g);
		if (stat(folder, &st) != 0)
			return rt_fail(e, "--data %s: %s", folder, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			return rt_fail(e, "--data %s: is a file; --data names the folder that holds %s", folder,
			               pattern);
		return rt_fail(e, "no file matches %s in %s; --data names the folder", pattern, folder);
	}
	if (bad)
		return rt_fail(e, "%s in %s: %s", pattern, folder,
		               bad == GLOB_NOSPACE ? "out of memory" : strerror(errno));
	p->at = rt_alloc(sizeof *p->at * g.gl_pathc);
	for (size_t i = 0; i < g.gl_pathc; i++)
		p->at[p->n++] = rt_printf("%s", g.gl_pathv[i]);
	globfree(&g);
	return true;
}

void
rt_paths_free(RtPaths *p)
{
	for (int i = 0; i < p->n; i++)
		free(p->at[i]);
	free(p->at);
	*p = (RtPaths){0};
}
