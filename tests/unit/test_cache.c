/* test_cache.c: what the cache of compiled code gives back, what it takes for nobody's, and how much it keeps. */
#include "unit.h"
#include "../../codegen/cache.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[PATH_MAX];

/* A cache in a new folder. */
static CodeCache
fresh(Arena *a)
{
	snprintf(base, sizeof base, "/tmp/mantou-cache-XXXXXX");
	assert_non_null(mkdtemp(base));
	setenv("MANTOU_CACHE", base, 1);
	return cache_open(a, "kind");
}

static void
done(Arena *a)
{
	char *command = arena_printf(a, "rm -rf '%s'", base);

	assert_int_equal(system(command), 0);
	arena_free(a);
}

static const char *
entry(Arena *a, const CodeCache *c, CodeKey k)
{
	return arena_printf(a, "%s/%02x/%016llx%016llx", c->folder, (unsigned)(k.half[0] >> 58),
	                    (unsigned long long)k.half[0], (unsigned long long)k.half[1]);
}

/* Files below path, their bytes. */
static int64_t
bytes_below(const char *path, int *files)
{
	DIR *d = opendir(path);
	int64_t bytes = 0;

	for (struct dirent *e; d && (e = readdir(d));) {
		char next[PATH_MAX];
		struct stat st;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(next, sizeof next, "%s/%s", path, e->d_name);
		assert_int_equal(lstat(next, &st), 0);
		bytes += S_ISDIR(st.st_mode) ? bytes_below(next, files) : st.st_size;
		*files += S_ISREG(st.st_mode);
	}
	if (d)
		closedir(d);
	return bytes;
}

static void
what_was_put_is_got(void **state)
{
	Arena *a = arena_new();
	CodeCache c = fresh(a);
	CodeKey k = cache_key("abc", 3, "x"), other[] = {cache_key("abd", 3, "x"), cache_key("abc", 3, "y"),
	                                                cache_key("ab", 2, "xc"), cache_key("bc", 2, "xa")};
	Buf b = {0};
	char bytes[1000];

	memset(bytes, '\n', sizeof bytes); /* the first line's end is not its only one */
	assert_false(cache_get(&c, k, &b));
	assert_int_not_equal(access(c.folder, F_OK), 0);
	cache_put(&c, k, bytes, sizeof bytes);
	assert_true(cache_get(&c, k, &b));
	assert_int_equal(b.n, sizeof bytes);
	assert_memory_equal(b.at, bytes, sizeof bytes);
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		assert_false(cache_get(&c, other[i], &b));
	buf_free(&b);
	done(a);
}

static void
damaged_and_foreign_files_are_none(void **state)
{
	Arena *a = arena_new();
	CodeCache c = fresh(a);
	CodeKey k = cache_key("abc", 3, "x"), other = k;
	const char *path = entry(a, &c, k);
	Buf b = {0};
	size_t n;

	cache_put(&c, k, "0123456789", 10);
	char *whole = file_read(path, &n);

	assert_non_null(whole);
	for (size_t cut = 0; cut < n; cut++) { /* every shorter file, and every one with a byte that is another */
		assert_true(file_write(path, whole, cut));
		assert_false(cache_get(&c, k, &b));
		whole[cut] ^= 1;
		assert_true(file_write(path, whole, n));
		assert_false(cache_get(&c, k, &b));
		whole[cut] ^= 1;
	}
	assert_true(file_write(path, whole, n));
	assert_true(cache_get(&c, k, &b));
	other.half[1] ^= 1;
	assert_true(file_write(entry(a, &c, other), whole, n)); /* whole, but of another key */
	assert_false(cache_get(&c, other, &b));
	if (!geteuid()) {
		assert_int_equal(chown(path, 12345, 12345), 0);
		assert_false(cache_get(&c, k, &b));
	}
	unlink(path);
	assert_int_equal(symlink(entry(a, &c, other), path), 0);
	assert_false(cache_get(&c, k, &b));
	cache_put(&c, k, "0123456789", 10); /* takes the link's place */
	assert_true(cache_get(&c, k, &b));
	assert_int_equal(b.n, 20);
	free(whole);
	buf_free(&b);
	done(a);
}

static void
its_size_is_bounded_and_the_oldest_go(void **state)
{
	Arena *a = arena_new();
	CodeCache c = fresh(a);
	enum { BYTES = 1000, COUNT = 6000, LIMIT = 2000 * BYTES };
	static char bytes[BYTES];
	Buf b = {0};
	int files = 0, old = 0, late = 0;

	c.most = LIMIT;
	for (int i = 0; i < COUNT; i++) {
		CodeKey k = cache_key(&i, sizeof i, "");
		const struct timespec then[2] = {{.tv_sec = 1000000000 + i}, {.tv_sec = 1000000000 + i}};

		cache_put(&c, k, bytes, BYTES);
		utimensat(AT_FDCWD, entry(a, &c, k), then, 0);
	}
	/* before each look a folder grows by eight on the average */
	assert_in_range(bytes_below(c.folder, &files), LIMIT / 2, LIMIT + 64 * 32 * BYTES);
	for (int i = 0; i < 1000; i++) {
		int last = COUNT - 1 - i;

		old += cache_get(&c, cache_key(&i, sizeof i, ""), &b);
		late += cache_get(&c, cache_key(&last, sizeof last, ""), &b);
	}
	assert_true(late > 900);
	assert_true(old < 100);
	buf_free(&b);
	done(a);
}

/* A write that fails leaves nothing, and no other is tried. */
static void
full_disks_and_folders_that_cannot_be_are_no_harm(void **state)
{
	Arena *a = arena_new();
	CodeCache c = fresh(a);
	CodeKey k = cache_key("abc", 3, "x");
	struct rlimit was, none;
	static char bytes[100000];
	Buf b = {0};
	int files = 0;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	none = (struct rlimit){50000, was.rlim_max};
	setrlimit(RLIMIT_FSIZE, &none);
	cache_put(&c, k, bytes, sizeof bytes);
	setrlimit(RLIMIT_FSIZE, &was);
	assert_true(c.full);
	bytes_below(base, &files);
	assert_int_equal(files, 0);
	assert_false(cache_get(&c, k, &b));
	setenv("MANTOU_CACHE", "/dev/null", 1);
	c = cache_open(a, "kind");
	cache_put(&c, k, bytes, 10);
	assert_false(cache_get(&c, k, &b));
	setenv("MANTOU_CACHE", "off", 1);
	assert_null(cache_open(a, "kind").folder);
	unsetenv("MANTOU_CACHE");
	setenv("XDG_CACHE_HOME", "/a", 1);
	assert_string_equal(cache_open(a, "kind").folder, "/a/mantou/kind");
	setenv("XDG_CACHE_HOME", "relative", 1);
	setenv("HOME", "/b", 1);
	assert_string_equal(cache_open(a, "kind").folder, "/b/.cache/mantou/kind");
	unsetenv("HOME");
	assert_null(cache_open(a, "kind").folder);
	done(a);
}

/* Whatever is read while others write is whole. */
static void
processes_may_write_at_once(void **state)
{
	Arena *a = arena_new();
	CodeCache c = fresh(a);
	enum { PROCESSES = 4, ROUNDS = 300, KEYS = 3 };

	for (int p = 0; p < PROCESSES; p++) {
		if (fork())
			continue;
		int bad = 0;

		for (int i = 0; i < ROUNDS; i++) {
			int which = i % KEYS;
			CodeKey k = cache_key(&which, sizeof which, "");
			char bytes[20000];
			Buf b = {0};

			memset(bytes, 'a' + p, sizeof bytes);
			cache_put(&c, k, bytes, sizeof bytes);
			if (cache_get(&c, k, &b)) {
				for (size_t n = 1; n < b.n; n++)
					bad += b.at[n] != b.at[0];
				bad += b.n != sizeof bytes;
			} else {
				bad++;
			}
			buf_free(&b);
		}
		_exit(bad || c.full);
	}
	for (int p = 0; p < PROCESSES; p++) {
		int status;

		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	int files = 0;

	bytes_below(base, &files);
	assert_int_equal(files, KEYS);
	done(a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_was_put_is_got),
	        cmocka_unit_test(damaged_and_foreign_files_are_none),
	        cmocka_unit_test(its_size_is_bounded_and_the_oldest_go),
	        cmocka_unit_test(full_disks_and_folders_that_cannot_be_are_no_harm),
	        cmocka_unit_test(processes_may_write_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
