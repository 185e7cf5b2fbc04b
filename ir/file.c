/* file.c: whole files in and out, and temporaries that no signal leaves behind.
 *
 * In: a path as the user gave it.   Out: its bytes; or a file there that is either what it was or whole. A regular file
 * is replaced: its bytes go to a temporary of a name of its own beside it (O_EXCL, so that two writers never meet in
 * one), are synced, and the temporary takes the name. A symbolic link stays one: what it points to, there or not, is
 * replaced. Devices, pipes and what stands in /proc are written as they are: a rename would put a file in their place.
 * /dev/stdout and the like are this process's descriptors: what is written goes on where they stand. Temporaries are
 * noted in a list, the one global here, whose files a handler of signals removes: it may call nothing but unlink and
 * rmdir. What no handler sees, a kill, leaves them: each is locked (flock) while it is in use, and whoever makes one in
 * the same folder first removes those that nobody holds. Where the file system has no locks they stay.
 * Who reads a file, works long and then replaces it holds it meanwhile, by a lock of a file beside it that says who
 * it is: the file itself is another after a rename. A lock goes with its process, so that what a kill leaves holds
 * nobody up. */
#define _GNU_SOURCE
#include "base.h"
#include "diag.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_BEFORE "mantou-"
#define TEMP_BEHIND ".tmp"
enum { LINKS = 40 /* as Linux follows */ };

/* One that is forgotten stays in the list: the handler may be at it on another thread. No name comes twice, so that it
 * does no harm there. */
typedef struct Temporary { struct Temporary *next; int lock; bool live; char path[]; } Temporary;

static Temporary *temporaries;

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

void
temp_end(int sig)
{
	/* Files stand before the folders that hold them in no fixed order: a second turn removes those. */
	for (int turn = 0; turn < 2; turn++)
		for (const Temporary *t = __atomic_load_n(&temporaries, __ATOMIC_ACQUIRE); t; t = t->next)
			if (__atomic_load_n(&t->live, __ATOMIC_RELAXED) && unlink(t->path))
				rmdir(t->path);
	signal(sig, SIG_DFL);
	raise(sig);
}

void
temp_signals(void)
{
	static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
	struct sigaction sa = {.sa_handler = temp_end}, old;

	sigfillset(&sa.sa_mask);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!sigaction(all[i], NULL, &old) && old.sa_handler != SIG_IGN) /* nohup, and jobs in the background */
			sigaction(all[i], &sa, NULL);
}

static Temporary *
note(const char *path)
{
	size_t n = strlen(path) + 1;
	Temporary *t = room(NULL, sizeof *t + n);

	*t = (Temporary){.lock = -1, .live = true};
	memcpy(t->path, path, n);
	t->next = __atomic_load_n(&temporaries, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&temporaries, &t->next, t, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	return t;
}

/* Its name is nobody's again, or that of a file to stay. */
static void
forget(Temporary *t)
{
	__atomic_store_n(&t->live, false, __ATOMIC_RELAXED);
	if (t->lock >= 0)
		close(t->lock);
	t->lock = -1;
}

void
temp_note(const char *path)
{
	note(path);
}

void
temp_free(char *path)
{
	if (!path)
		return;
	for (Temporary *t = __atomic_load_n(&temporaries, __ATOMIC_ACQUIRE); t; t = t->next)
		if (__atomic_load_n(&t->live, __ATOMIC_RELAXED) && !strcmp(t->path, path)) {
			forget(t);
			break;
		}
	free(path);
}

/* 1: locked; 0: somebody else holds it; -1: there are no locks here. */
static int
lock(int fd)
{
	while (flock(fd, LOCK_EX | LOCK_NB))
		if (errno != EINTR)
			return errno == EWOULDBLOCK ? 0 : -1;
	return 1;
}

/* Is this a name of temp_name's? */
static bool
is_temp_name(const char *s)
{
	if (strncmp(s, TEMP_BEFORE, sizeof TEMP_BEFORE - 1))
		return false;
	s += sizeof TEMP_BEFORE - 1;
	size_t process = strspn(s, "0123456789"), count = s[process] == '-' ? strspn(s + process + 1, "0123456789") : 0;

	return process && count && !strcmp(s + process + 1 + count, TEMP_BEHIND);
}

/* The files of a folder, and it. One of another kind in it is none of ours: then both stay. Closes fd. */
static void
remove_folder(int in, const char *name, int fd)
{
	DIR *d = fdopendir(fd);

	if (!d) {
		close(fd);
		return;
	}
	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	unlinkat(in, name, AT_REMOVEDIR);
	closedir(d); /* and with it the lock: nobody takes the folder for its own meanwhile */
}

/* Removes this user's temporaries in a folder that nobody holds: those of a process that was killed. */
static void
temp_clean(const char *beside)
{
	const char *slash = strrchr(beside, '/');
	Buf b = {0};

	buf_printf(&b, "%.*s.", slash ? (int)(slash + 1 - beside) : 0, beside);
	DIR *d = opendir(b.at);

	buf_free(&b);
	for (struct dirent *e; d && (e = readdir(d));) {
		struct stat st;

		if (!is_temp_name(e->d_name) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW)
		    || st.st_uid != geteuid())
			continue;
		bool plain = S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
		int fd = plain ? openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;

		if (fd < 0)
			continue;
		if (lock(fd) != 1) {
			close(fd);
		} else if (S_ISDIR(st.st_mode)) {
			remove_folder(dirfd(d), e->d_name, fd);
		} else {
			unlinkat(dirfd(d), e->d_name, 0);
			close(fd);
		}
	}
	if (d)
		closedir(d);
}

/* The name does not grow with that of the file, which may be as long as names may be. */
static char *
temp_name(const char *beside, unsigned n)
{
	const char *slash = strrchr(beside, '/');
	Buf b = {0};

	buf_printf(&b, "%.*s" TEMP_BEFORE "%ld-%u" TEMP_BEHIND, slash ? (int)(slash + 1 - beside) : 2,
	           slash ? beside : "./", (long)getpid(), n);
	return b.at;
}

/* Makes the file or, where fd is NULL, the folder, and locks it by a descriptor of its own, which stays open until it
 * is forgotten. errno EEXIST: under another name. */
static bool
temp_make(Temporary *t, int *fd)
{
	struct stat a, b;

	if (fd ? (*fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0 : mkdir(t->path, 0777))
		return false;
	t->lock = fd ? fcntl(*fd, F_DUPFD_CLOEXEC, 0) : open(t->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (t->lock >= 0 && lock(t->lock) && !fstat(t->lock, &a) && !lstat(t->path, &b) && a.st_dev == b.st_dev
	    && a.st_ino == b.st_ino)
		return true;
	/* who cleans was quicker, or nothing more can be opened */
	int why = t->lock >= 0 || errno == ENOENT ? EEXIST : errno;

	if (why != EEXIST && unlink(t->path))
		rmdir(t->path);
	if (fd) {
		close(*fd);
		*fd = -1;
	}
	errno = why;
	return false;
}

static char *
temp_new(const char *beside, int *fd)
{
	static unsigned count;

	temp_clean(beside);
	for (int tries = 0; tries < 1000; tries++) {
		char *path = temp_name(beside, __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));
		Temporary *t = note(path);

		if (temp_make(t, fd))
			return path;
		int why = errno;

		forget(t);
		free(path);
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

/* The number in /dev/stdout, /dev/fd/7 and the like, -1. */
static int
descriptor_of(const char *path)
{
	static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};

	if (!strcmp(path, "/dev/stdout") || !strcmp(path, "/dev/stderr"))
		return path[8] == 'o' ? 1 : 2;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		size_t n = strlen(folders[i]);
		char *end;

		if (!strncmp(path, folders[i], n) && path[n] >= '0' && path[n] <= '9') {
			long number = strtol(path + n, &end, 10);

			return *end || number > INT_MAX ? -1 : (int)number;
		}
	}
	return -1;
}

/* One that is open already is not opened again: that would begin at byte 0 of a file to which others write too. */
static int
open_direct(const char *path)
{
	int number = descriptor_of(path);
	struct stat st;

	if (number == 1)
		fflush(stdout); /* what was said before stands before */
	if (number >= 0)
		return fcntl(number, F_DUPFD_CLOEXEC, 0);
	return open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC | (!stat(path, &st) && S_ISREG(st.st_mode) ? O_TRUNC : 0));
}

static bool
write_direct(const char *path, const void *bytes, size_t n)
{
	int fd = open_direct(path);
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

/* ---------------------------------------------------------------- files held */

/* Is what was opened and locked what still has the name? Whoever let go has removed it. */
static bool
still_named(int fd, const char *path)
{
	struct stat a, b;

	return !fstat(fd, &a) && !lstat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static char *
holder_of(const char *path)
{
	size_t n;
	char *text = file_read(path, &n);

	if (text)
		text[strcspn(text, "\n")] = 0;
	if (text && *text)
		return text;
	free(text);
	return strdup("another process");
}

FileHold *
file_hold(const char *path, const char *who, char **holder)
{
	char *target = file_target(path), host[256] = "";
	Buf name = {0}, text = {0};

	*holder = NULL;
	if (!target)
		return NULL;
	buf_printf(&name, "%s.lock", target);
	free(target);
	gethostname(host, sizeof host - 1);
	buf_printf(&text, "process %ld on %s: %s\n", (long)getpid(), host, who);
	int fd, locked = 1;

	for (;;) {
		fd = open(name.at, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
		locked = fd < 0 ? -1 : lock(fd);
		if (fd < 0 || !locked || still_named(fd, name.at))
			break;
		close(fd);
	}
	if (fd >= 0 && !locked) {
		close(fd);
		*holder = holder_of(name.at);
		fd = -1;
	} else if (fd >= 0 && (ftruncate(fd, 0) || !write_all(fd, text.at, text.n))) {
		int why = errno;

		unlink(name.at);
		close(fd);
		fd = -1;
		errno = why;
	}
	int why = errno;
	FileHold *h = fd >= 0 ? note(name.at) : NULL;

	if (h)
		h->lock = fd;
	buf_free(&name);
	buf_free(&text);
	errno = why;
	return h;
}

/* The name goes while the lock is held: who opens it then finds that it is another's. */
void
file_release(FileHold *h)
{
	if (!h)
		return;
	unlink(h->path);
	forget(h);
}
