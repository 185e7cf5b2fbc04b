/* cache.c: a folder of compiled code, a file each, by the hash of what it was made of.
 *
 * In: a key (128 bits, FNV-1a) over source and options, and bytes.   Out: the same bytes in a later build. An entry is
 * written to a temporary of its own name beside it and renamed, so that nobody reads half of one; it is not synced,
 * because its first line has key, length and hash of the rest, and what does not fit them is as if it were not there.
 * So are files of other users: who may write to the folder does not thereby write into this user's programs. Entries
 * lie in 64 folders by their key's first bits. Every eighth write to one looks at it: where its files are longer than
 * a 64th of the limit, those that were not asked for longest go, to three quarters; temporaries of an hour ago go
 * too. */
#define _GNU_SOURCE
#include "cache.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FOLDERS = 64, HOUR = 3600, HEAD = 96 /* bytes of the first line at most */ };
#define MOST_BYTES ((int64_t)512 << 20)

CodeCache
cache_open(Arena *a, const char *kind)
{
	const char *own = getenv("MANTOU_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	CodeCache c = {.most = MOST_BYTES};

	if (own && !strcmp(own, "off"))
		return c;
	if (own && *own)
		c.folder = arena_printf(a, "%s/%s", own, kind);
	else if (xdg && xdg[0] == '/')
		c.folder = arena_printf(a, "%s/mantou/%s", xdg, kind);
	else if (home && *home)
		c.folder = arena_printf(a, "%s/.cache/mantou/%s", home, kind);
	if (c.folder && strlen(c.folder) > PATH_MAX - 128)
		c.folder = NULL;
	return c;
}

/* FNV-1a of 128 bits: offset basis and prime are the published ones. */
__extension__ typedef unsigned __int128 Wide;

static Wide
hash_wide(Wide h, const unsigned char *p, size_t n)
{
	const Wide prime = ((Wide)1 << 88) + 0x13b;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * prime;
	return h;
}

/* One to one, and every bit of the result depends on all (the finalizer of Murmur3). */
static uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
	return x ^ x >> 33;
}

CodeKey
cache_key(const void *at, size_t n, const char *rest)
{
	Wide h = (Wide)0x6c62272e07bb0142 << 64 | 0x62b821756295c58d;

	h = hash_wide(h, (const void *)rest, strlen(rest) + 1);
	h = hash_wide(h, at, n);
	uint64_t low = mix((uint64_t)h);

	return (CodeKey){{mix((uint64_t)(h >> 64) ^ low), low}};
}

static void
entry_folder(const CodeCache *c, CodeKey key, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%02x", c->folder, (unsigned)(key.half[0] >> 58) % FOLDERS);
}

static void
entry_name(CodeKey key, char name[40])
{
	snprintf(name, 40, "%016" PRIx64 "%016" PRIx64, key.half[0], key.half[1]);
}

static int
head_print(char head[HEAD], CodeKey key, const void *at, size_t n)
{
	char name[40];

	entry_name(key, name);
	return snprintf(head, HEAD, "mantou cache 1 %s %zu %016" PRIx64 "\n", name, n, hash_bytes(HASH_START, at, n));
}

/* ---------------------------------------------------------------- reading */
/* The whole file, if it is this user's. */
static char *
own_file(const char *path, size_t *n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;
	char *text = NULL;
	size_t got = 0;
	ssize_t part = 1;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_size > 0)
		text = malloc((size_t)st.st_size);
	while (text && got < (size_t)st.st_size && part > 0)
		if ((part = read(fd, text + got, (size_t)st.st_size - got)) > 0)
			got += (size_t)part;
		else if (part < 0 && errno == EINTR)
			part = 1;
	if (text && st.st_mtime < time(NULL) - HOUR)
		futimens(fd, NULL); /* asked for: not among the oldest */
	close(fd);
	*n = got;
	return text;
}

bool
cache_get(const CodeCache *c, CodeKey key, Buf *out)
{
	char path[PATH_MAX], head[HEAD];
	size_t n = 0;

	if (!c->folder)
		return false;
	entry_folder(c, key, path);
	size_t end = strlen(path);

	path[end] = '/';
	entry_name(key, path + end + 1);
	char *text = own_file(path, &n), *line = text ? memchr(text, '\n', n) : NULL;
	size_t from = line ? (size_t)(line + 1 - text) : 0;
	bool good = line && (size_t)head_print(head, key, line + 1, n - from) == from && !memcmp(head, text, from);

	if (good)
		buf_put(out, line + 1, n - from);
	free(text);
	return good;
}

/* ---------------------------------------------------------------- writing */
static bool
folders_make(char *path)
{
	for (char *p = path + 1;; p++) {
		char was = *p;

		if (was && was != '/')
			continue;
		*p = 0;
		bool good = !mkdir(path, 0700) || errno == EEXIST;

		*p = was;
		if (!good || !was)
			return good;
	}
}

typedef struct Old { time_t used; off_t bytes; char name[40]; } Old;

static int
old_compare(const void *x, const void *y)
{
	const Old *a = x, *b = y;

	return a->used != b->used ? (a->used > b->used) - (a->used < b->used) : strcmp(a->name, b->name);
}

/* Makes room in one folder. */
static void
sweep(const char *path, int64_t most)
{
	DIR *d = opendir(path);
	Arena *a = arena_new();
	VEC(Old) old = {0};
	int64_t bytes = 0;
	time_t now = time(NULL);

	for (struct dirent *e; d && (e = readdir(d));) {
		struct stat st;

		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		if (e->d_name[0] == '.') {
			if (st.st_mtime < now - HOUR)
				unlinkat(dirfd(d), e->d_name, 0);
			continue;
		}
		Old o = {.used = st.st_mtime, .bytes = st.st_size};

		snprintf(o.name, sizeof o.name, "%.39s", e->d_name);
		vec_push(a, &old, o);
		bytes += o.bytes;
	}
	if (bytes > most) {
		qsort(old.at, old.n, sizeof *old.at, old_compare);
		for (uint32_t i = 0; i < old.n && bytes > most / 4 * 3; i++)
			if (!unlinkat(dirfd(d), old.at[i].name, 0))
				bytes -= old.at[i].bytes;
	}
	if (d)
		closedir(d);
	arena_free(a);
}

static bool
write_all(int fd, const char *at, size_t n)
{
	while (n) {
		ssize_t part = write(fd, at, n);

		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0)
			return false;
		at += part;
		n -= (size_t)part;
	}
	return true;
}

/* A new temporary in the folder, which path becomes; the folder is made if it is not there. */
static int
temporary_open(char *path)
{
	static unsigned count;
	size_t end = strlen(path);

	for (int turn = 0; turn < 2; turn++) {
		unsigned k = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);

		snprintf(path + end, PATH_MAX - end, "/.%ld-%u", (long)getpid(), k);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		if (fd >= 0 || turn || (errno != ENOENT && errno != EEXIST))
			return fd;
		bool missing = errno == ENOENT;

		path[end] = 0;
		if (missing && !folders_make(path))
			return -1;
	}
	return -1;
}

void
cache_put(CodeCache *c, CodeKey key, const void *at, size_t n)
{
	char folder[PATH_MAX], path[PATH_MAX], temporary[PATH_MAX], head[HEAD];

	if (!c->folder || __atomic_load_n(&c->full, __ATOMIC_RELAXED))
		return;
	entry_folder(c, key, folder);
	memcpy(path, folder, sizeof path);
	memcpy(temporary, folder, sizeof temporary);
	size_t end = strlen(path);

	path[end] = '/';
	entry_name(key, path + end + 1);
	int fd = temporary_open(temporary), n_head = head_print(head, key, at, n);
	bool good = fd >= 0 && write_all(fd, head, (size_t)n_head) && write_all(fd, at, n);

	if (fd >= 0 && (close(fd) || !good || rename(temporary, path))) {
		unlink(temporary);
		good = false;
	}
	if (!good)
		__atomic_store_n(&c->full, true, __ATOMIC_RELAXED);
	else if (key.half[1] % 8 == 0)
		sweep(folder, c->most / FOLDERS);
}
