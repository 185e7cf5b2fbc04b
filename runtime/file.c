/* file.c: files that a run writes: whole or not at all, and one run at a time.
 *
 * In: a path, as given.   Out: what was there before, or all that was written. A file is written under a name of its
 * own beside its place (FILE.tmp- and 12 random digits) and renamed when it is whole; a link stays a link: the file it
 * leads to is replaced. /dev/stdout and the like are this process's descriptors; devices and pipes are written as they
 * are, and opened only then, for that may wait for a reader. A temporary file is locked (flock) until it has its name:
 * whoever writes the same file next removes those that nobody holds, which a killed run left. FILE.lock, held by the
 * run that saves checkpoints to FILE, turns a second one away before it removes anything; the system lets go of it
 * however the run ends. Where the file system has no locks, none is held and nothing is removed. */
#define _GNU_SOURCE
#include "host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MARK ".tmp-"
#define FILE_DIGITS 12
#define FILE_NAME 200            /* bytes of FILE's name in names made of it: they are to fit too */

/* ---- where a path leads */

/* The number in /dev/stdout, /dev/fd/7 and the like, -1. */
int
rt_file_descriptor(const char *path)
{
	static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
	char *end;

	if (strcmp(path, "/dev/stdout") == 0 || strcmp(path, "/dev/stderr") == 0)
		return path[8] == 'o' ? 1 : 2;
	for (int i = 0; i < RT_COUNT(folders); i++) {
		size_t n = strlen(folders[i]);

		if (strncmp(path, folders[i], n) == 0 && path[n] >= '0' && path[n] <= '9') {
			long number = strtol(path + n, &end, 10);

			return *end || number > INT_MAX ? -1 : (int)number;
		}
	}
	return -1;
}

/* Splits at the last slash: the folder, which is real then, and the name in it. NULL: errno. */
static char *
file_in_folder(const char *path)
{
	const char *name = rt_basename(path);
	char *folder = name == path ? rt_printf(".") : rt_printf("%.*s", (int)(name - path), path),
		*real = realpath(folder, NULL), *all = NULL;

	if (real && *name)
		all = rt_printf("%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
	else if (real)
		errno = EISDIR;
	free(real);
	free(folder);
	return all;
}

/* The path of the file itself, through links, there or not; malloc'd. NULL: errno. */
char *
rt_file_real(const char *path)
{
	char *at = file_in_folder(path), target[PATH_MAX];

	for (int links = 0; at && links < 40; links++) {
		ssize_t n = readlink(at, target, sizeof target - 1);
		char *next;

		if (n < 0)
			return at;
		target[n] = 0;
		next = target[0] == '/' ? rt_printf("%s", target)
			: rt_printf("%.*s%s", (int)(rt_basename(at) - at), at, target);
		free(at);
		at = file_in_folder(next);
		free(next);
	}
	if (at)
		errno = ELOOP;
	free(at);
	return NULL;
}

/* May something be renamed to path? Finds what only the rename itself would tell: a folder, another user's file in a
 * folder such as /tmp, an immutable file, one on which another is mounted. Whether files can be made in the folder
 * shows when one is made. */
static bool
file_replaceable(const char *path)
{
	struct statx x = {0};
	struct stat st, folder;
	char *up;

	if (lstat(path, &st) != 0)
		return errno == ENOENT;
	if (S_ISDIR(st.st_mode)) {
		errno = EISDIR;
		return false;
	}
	if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_MODE, &x) != 0)
		x.stx_attributes = 0;                /* an old system: nothing more is known */
#ifdef STATX_ATTR_MOUNT_ROOT
	if (x.stx_attributes & STATX_ATTR_MOUNT_ROOT) {
		errno = EBUSY;
		return false;
	}
#endif
	up = rt_printf("%.*s.", (int)(rt_basename(path) - path), path);
	if (stat(up, &folder) != 0)
		folder.st_mode = 0;
	free(up);
	errno = EPERM;
	return !(x.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND))
	       && (!(folder.st_mode & S_ISVTX) || geteuid() == 0 || geteuid() == st.st_uid
	           || geteuid() == folder.st_uid);
}

/* ---- temporary files */

/* A name in path's folder: the beginning of path's own, then what. */
static char *
file_beside(const char *path, const char *what)
{
	const char *name = rt_basename(path);

	return rt_printf("%.*s%.*s%s", (int)(name - path), path, FILE_NAME, name, what);
}

/* Does fd hold the file that stands at path? */
static bool
file_same(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* 1: locked; 0: somebody else holds it; -1: there are no locks here. */
static int
file_lock(int fd)
{
	while (flock(fd, LOCK_EX | LOCK_NB) != 0)
		if (errno != EINTR)
			return errno == EWOULDBLOCK ? 0 : -1;
	return 1;
}

/* Removes temporary files of path that nobody writes any more. */
void
rt_out_clean(const char *path)
{
	char *prefix = file_beside(path, FILE_MARK),
		*folder = rt_printf("%.*s.", (int)(rt_basename(path) - path), path);
	const char *start = rt_basename(prefix);
	size_t n = strlen(start);
	DIR *d = opendir(folder);

	for (struct dirent *e; d && (e = readdir(d));) {
		int fd;

		if (strncmp(e->d_name, start, n) != 0 || strlen(e->d_name) != n + FILE_DIGITS
		    || strspn(e->d_name + n, "0123456789abcdef") != FILE_DIGITS)
			continue;
		fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0 && file_lock(fd) == 1)
			unlinkat(dirfd(d), e->d_name, 0);
		if (fd >= 0)
			close(fd);
	}
	if (d)
		closedir(d);
	free(folder);
	free(prefix);
}

static bool
file_temporary(RtOut *o)
{
	for (int i = 0; i < 100; i++) {
		char digits[FILE_DIGITS + 8];
		uint64_t number = 0;

		if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
			number = (uint64_t)getpid() << 32 ^ (uint64_t)(rt_now() * 1e9);
		snprintf(digits, sizeof digits, FILE_MARK "%012llx", (unsigned long long)(number & 0xffffffffffffull));
		o->temporary = file_beside(o->real, digits);
		o->fd = open(o->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (o->fd >= 0 && file_lock(o->fd) != 0 && file_same(o->fd, o->temporary))
			return true;
		if (o->fd >= 0)                      /* somebody who cleans was quicker */
			close(o->fd);
		free(o->temporary);
		o->temporary = NULL;
		if (o->fd < 0 && errno != EEXIST)
			return false;
		o->fd = -1;
	}
	errno = EEXIST;
	return false;
}

/* ---- one file */

bool
rt_out_open(RtOut *o, const char *path, RtError *e)
{
	struct stat st;
	int number = rt_file_descriptor(path);

	*o = (RtOut){.path = path, .fd = -1};
	if (number >= 0) {
		o->fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
		return o->fd >= 0 || rt_fail(e, "%s: %s", path, strerror(errno));
	}
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		if (S_ISDIR(st.st_mode))
			return rt_fail(e, "%s: is a folder", path);
		return access(path, W_OK) == 0 || rt_fail(e, "%s: %s", path, strerror(errno));
	}
	o->real = rt_file_real(path);
	if (o->real && file_replaceable(o->real) && file_temporary(o)) {
		if (stat(o->real, &st) == 0)     /* it keeps who may read it */
			fchmod(o->fd, st.st_mode & 0777);
		return true;
	}
	rt_fail(e, "%s: %s", path, strerror(errno));
	return rt_out_drop(o) && false;
}

bool
rt_out_write(RtOut *o, const void *bytes, size_t n, RtError *e)
{
	if (o->fd < 0)                           /* a device or a pipe */
		o->fd = open(o->path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
	return (o->fd >= 0 && rt_write_all(o->fd, bytes, n)) || rt_fail(e, "%s: %s", o->path, strerror(errno));
}

static void
file_sync_folder(const char *path)
{
	char *folder = rt_printf("%.*s.", (int)(rt_basename(path) - path), path);
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0) {
		fsync(fd);                       /* some file systems cannot: the rename stands all the same */
		close(fd);
	}
	free(folder);
}

bool
rt_out_sync(RtOut *o, RtError *e)
{
	return fsync(o->fd) == 0 || rt_fail(e, "%s: %s", o->path, strerror(errno));
}

bool
rt_out_end(RtOut *o, bool sync, RtError *e)
{
	int fd = o->fd;
	bool good = true;

	/* Closing tells of bytes that did not arrive, so it comes first; another descriptor keeps the lock, or whoever
	 * cleans takes the file. */
	o->fd = -1;
	if (fd >= 0 && o->temporary)
		good = (o->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0 || rt_fail(e, "%s: %s", o->path, strerror(errno));
	if (fd >= 0 && close(fd) != 0 && good)
		good = rt_fail(e, "%s: %s", o->path, strerror(errno));
	if (good && o->temporary && rename(o->temporary, o->real) != 0)
		good = rt_fail(e, "%s: %s", o->path, strerror(errno));
	if (good && sync && o->temporary)
		file_sync_folder(o->real);
	/* also of a name that rename() leaves, where both were links to one file */
	rt_out_drop(o);
	return good;
}

bool
rt_out_drop(RtOut *o)
{
	bool good = !o->temporary || unlink(o->temporary) == 0;

	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
	free(o->temporary);
	free(o->real);
	o->temporary = o->real = NULL;
	return good;
}

bool
rt_out_could(const char *path, char **real, RtError *e)
{
	RtOut o;

	if (!rt_out_open(&o, path, e))
		return false;
	*real = o.real;
	o.real = NULL;
	return rt_out_drop(&o) || rt_fail(e, "%s: no file can be renamed in its folder: %s", path, strerror(errno));
}

bool
rt_out_try(const char *path, char **real, RtError *e)
{
	char *at = NULL;
	bool good = rt_out_could(path, &at, e);

	if (good && at)
		rt_out_clean(at);
	if (real)
		*real = at;
	else
		free(at);
	return good;
}

/* ---- one run at a time */

/* The process that a lock's file names, for the message; 0. */
static long
lock_holder(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, text, sizeof text - 1) < 0)
			text[0] = 0;
		close(fd);
	}
	return strtol(text, NULL, 10);
}

bool
rt_lock_take(RtLock *l, const char *path, RtError *e)
{
	*l = (RtLock){.fd = -1, .path = file_beside(path, ".lock")};
	for (;;) {
		int got;

		l->fd = open(l->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
		if (l->fd < 0)                       /* another user's, in a folder such as /tmp */
			l->fd = open(l->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (l->fd < 0)
			return rt_fail(e, "%s: %s", l->path, strerror(errno));
		got = file_lock(l->fd);
		if (got == 0) {
			long holder = lock_holder(l->path);

			close(l->fd);
			l->fd = -1;
			return holder > 0 ? rt_fail(e, "another run, process %ld, saves there (it holds %s)",
			                            holder, l->path)
			                  : rt_fail(e, "another run saves there (it holds %s)", l->path);
		}
		if (file_same(l->fd, l->path)) {
			char *text = rt_printf("%ld\n", (long)getpid());

			if (ftruncate(l->fd, 0) == 0)    /* who holds it is for the message alone */
				rt_write_all(l->fd, text, strlen(text));
			free(text);
			return true;
		}
		close(l->fd);                        /* its last holder removed it meanwhile */
	}
}

bool
rt_lock_file(int fd)
{
	return file_lock(fd) != 0;
}

void
rt_lock_release(RtLock *l)
{
	if (!l->path)
		return;
	if (l->fd >= 0) {
		unlink(l->path);                     /* before it is let go: who waits for its name makes a new one */
		close(l->fd);
	}
	free(l->path);
	*l = (RtLock){.fd = -1};
}
