/* file.c: whole files in and out, and temporaries that no signal leaves behind.
 *
 * In: a path as the user gave it.   Out: its bytes; or a file there that is either what it was or whole. A regular file
 * is replaced: its bytes go to a temporary of a name of its own beside it (O_EXCL, so that two writers never meet in
 * one), are synced, and the temporary takes the name. A symbolic link stays one: what it points to, there or not, is
 * replaced. Devices, pipes and what stands in /proc (/dev/stdout) are written as they are: a rename would put a file in
 * their place. Temporaries are noted in a table, the one global here, that a handler of signals empties: it may call
 * nothing but unlink and rmdir. */
#define _GNU_SOURCE
#include "base.h"
#include "diag.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMPORARIES = 64, LINKS = 40 /* as Linux follows */ };

static char *volatile temporary[TEMPORARIES];

static void *
room(void *old, size_t bytes)
{
	void *p = realloc(old, bytes);

	if (!p)
		die("out of memory (%zu bytes wanted)", bytes);
	return p;
}

/* ---------------------------------------------------------------- files in */

char *
file_read(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0, cap = 4096;
	struct stat st;
	char *text;
	ssize_t got;

	*bytes = 0;
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
		close(fd);
		errno = EISDIR;
		return NULL;
	}
	if (st.st_size > 0)
		cap = (size_t)st.st_size + 2; /* the size is a hint: pipes and /proc have none */
	text = room(NULL, cap);
	while ((got = read(fd, text + n, cap - n - 1)) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			int why = errno;

			free(text);
			close(fd);
			errno = why;
			return NULL;
		}
		n += (size_t)got;
		if (n + 1 >= cap) {
			cap *= 2;
			text = room(text, cap);
		}
	}
	close(fd);
	text[n] = 0;
	*bytes = n;
	return text;
}

/* ---------------------------------------------------------------- temporaries */

static void
temporaries_remove(int sig)
{
	/* Files stand before the folders that hold them in no fixed order: a second turn removes those. */
	for (int turn = 0; turn < 2; turn++)
		for (int i = 0; i < TEMPORARIES; i++) {
			char *path = temporary[i];

			if (path && unlink(path))
				rmdir(path);
		}
	signal(sig, SIG_DFL);
	raise(sig);
}

void
temp_signals(void)
{
	static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
	struct sigaction sa = {.sa_handler = temporaries_remove}, old;

	sigfillset(&sa.sa_mask);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!sigaction(all[i], NULL, &old) && old.sa_handler != SIG_IGN) /* nohup, and jobs in the background */
			sigaction(all[i], &sa, NULL);
}

/* A full table forgets: then a signal leaves that one. */
void
temp_note(char *path)
{
	for (int i = 0; i < TEMPORARIES; i++) {
		char *none = NULL;

		if (__atomic_compare_exchange_n(&temporary[i], &none, path, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return;
	}
}

void
temp_free(char *path)
{
	if (!path)
		return;
	for (int i = 0; i < TEMPORARIES; i++) {
		char *mine = path;

		if (__atomic_compare_exchange_n(&temporary[i], &mine, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			break;
	}
	free(path);
}

/* The name does not grow with that of the file, which may be as long as names may be. */
static char *
temp_name(const char *beside, unsigned n)
{
	const char *slash = strrchr(beside, '/');
	Buf b = {0};

	buf_printf(&b, "%.*smantou-%ld-%u.tmp", slash ? (int)(slash + 1 - beside) : 2, slash ? beside : "./",
	           (long)getpid(), n);
	return b.at;
}

static char *
temp_new(const char *beside, int *fd)
{
	static unsigned count;

	for (int tries = 0; tries < 1000; tries++) {
		char *path = temp_name(beside, __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));

		temp_note(path);
		if (fd ? (*fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0 : !mkdir(path, 0777))
			return path;
		int why = errno;

		temp_free(path);
		errno = why;
		if (why != EEXIST)
			break;
	}
	return NULL;
}

char *
temp_folder(const char *beside)
{
	return temp_new(beside, NULL);
}

/* ---------------------------------------------------------------- files out */

/* Links there, which /dev/stdout leads to, are not their text: what they stand for is open already, and others may be
 * writing to it. */
static bool
in_proc(const char *path)
{
	return !strncmp(path, "/proc/", 6) || !strncmp(path, "/dev/fd/", 8);
}

bool
file_special(const char *path)
{
	struct stat st;

	return in_proc(path) || (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

char *
file_target(const char *path)
{
	char *at = strdup(path), to[PATH_MAX];
	ssize_t n;

	for (int i = 0; at && !in_proc(at) && (n = readlink(at, to, sizeof to - 1)) >= 0; i++) {
		const char *slash = strrchr(at, '/');
		Buf b = {0};

		if (i == LINKS) {
			free(at);
			errno = ELOOP;
			return NULL;
		}
		to[n] = 0;
		if (*to != '/' && slash)
			buf_put(&b, at, (size_t)(slash + 1 - at));
		buf_printf(&b, "%s", to);
		free(at);
		at = b.at;
	}
	return at;
}

static bool
write_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t put = write(fd, p, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return false;
		p += put;
		n -= (size_t)put;
	}
	return true;
}

static bool
write_direct(const char *path, const void *bytes, size_t n)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	bool good = fd >= 0 && write_all(fd, bytes, n);
	int why = errno;

	if (fd >= 0 && close(fd) && good)
		return false;
	errno = why;
	return good;
}

/* What a linker would give: all that the umask, which open() has applied, leaves. An old file's mode stays. */
static void
set_mode(int fd, const char *path, bool executable)
{
	struct stat st, old;

	if (fstat(fd, &st))
		return;
	mode_t mode = !stat(path, &old) ? old.st_mode & 0777 : st.st_mode & 0777;

	/* not on every file system: the file is whole all the same */
	fchmod(fd, executable ? mode | (mode & 0444) >> 2 : mode);
}

static bool
write_whole(const char *path, const void *bytes, size_t n, bool executable)
{
	int fd = -1, why;
	char *temp = temp_new(path, &fd);

	if (!temp)
		return false;
	set_mode(fd, path, executable);
	bool good = write_all(fd, bytes, n) && (!fsync(fd) || errno == EINVAL || errno == ENOTSUP);

	why = errno;
	if (close(fd) && good) {
		good = false;
		why = errno;
	}
	if (good && rename(temp, path)) {
		good = false;
		why = errno;
	}
	if (!good)
		unlink(temp);
	temp_free(temp);
	errno = why;
	return good;
}

static bool
put_file(const char *path, const void *bytes, size_t n, bool executable)
{
	char *target = file_target(path);
	bool good = target && (file_special(target) ? write_direct(target, bytes, n)
	                       : write_whole(target, bytes, n, executable));
	int why = errno;

	free(target);
	errno = why;
	return good;
}

bool
file_write(const char *path, const void *bytes, size_t n)
{
	return put_file(path, bytes, n, false);
}

bool
file_write_executable(const char *path, const void *bytes, size_t n)
{
	return put_file(path, bytes, n, true);
}
