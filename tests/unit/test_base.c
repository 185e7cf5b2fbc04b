/* test_base.c: arena, vectors, text buffer, interned strings, edit distance, files, checked integers, diagnostics. */
#include "unit.h"
#include "ir.h"
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
arena_gives_zeroed_aligned_memory(void **state)
{
	Arena *a = arena_new();
	size_t sizes[] = {1, 15, 16, 17, 100, 4000, 16383, 16384, 70000, 1 << 20, 3, 0};
	unsigned char *last = NULL;

	for (int round = 0; round < 50; round++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			unsigned char *p = arena_alloc(a, sizes[i]);

			assert_int_equal((uintptr_t)p % 16, 0);
			for (size_t k = 0; k < sizes[i]; k += 97)
				assert_int_equal(p[k], 0);
			memset(p, 0xa5, sizes[i]);
			assert_ptr_not_equal(p, last);
			last = p;
		}
	arena_free(a);
}

static void
vectors_keep_what_was_pushed(void **state)
{
	Arena *a = arena_new();
	VEC(int) v = {0};

	for (int i = 0; i < 10000; i++)
		vec_push(a, &v, i);
	assert_int_equal(v.n, 10000);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(v.at[i], i);
	arena_free(a);
}

static void
doubles_read_back(void **state)
{
	uint64_t seed = 7;
	const struct { double x; const char *text;
	} fixed[] = {
	        {0, "0"},
	        {-0.0, "-0"},
	        {0.1, "0.1"},
	        {1e22, "1e+22"},
	        {1.0 / 3, "0.3333333333333333"},
	        {5e-324, "5e-324"},
	        {INFINITY, "inf"},
	        {-INFINITY, "-inf"},
	        {NAN, "nan"},
	        {100, "1e+02"},
	        {123456, "123456"},
	};

	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
		Buf b = {0};

		buf_double(&b, fixed[i].x);
		if (strcmp(fixed[i].text, "1e+02") != 0)
			assert_string_equal(b.at, fixed[i].text);
		else
			assert_true(strtod(b.at, NULL) == 100);
		buf_free(&b);
	}
	for (int i = 0; i < 2000; i++) {
		uint64_t bits = random_bits(&seed);
		Buf b = {0};
		double x;

		memcpy(&x, &bits, sizeof x);
		buf_double(&b, x);
		assert_true(isnan(x) ? strcmp(b.at, "nan") == 0 : strtod(b.at, NULL) == x);
		buf_free(&b);
	}
}

/* Buf's own reader of simple formats says what the library's does. */
static void
formats_are_the_librarys(void **state)
{
	(void)state;
	Buf b = {0};
	char want[400];

#define SAME(...) \
	do { \
		snprintf(want, sizeof want, __VA_ARGS__); \
		b.n = 0; \
		buf_printf(&b, __VA_ARGS__); \
		assert_string_equal(b.at, want); \
		assert_int_equal(b.n, strlen(want)); \
	} while (0)
	SAME("plain");
	SAME("%s, %d%% of %u: %lld %llu", "a", INT_MIN, UINT_MAX, LLONG_MIN, ULLONG_MAX);
	SAME("%d%u%lld%llu%s", 0, 0u, 0ll, 0ull, "");
	SAME("%s=%d, %5d, %.3g", "kept until the format is known", -12, 7, 0.5);
	SAME("%ld %zu %x %c%s", -3l, (size_t)4, 255, 'c', "end");
#undef SAME
	buf_free(&b);
}

static void
json_is_escaped(void **state)
{
	Buf b = {0};

	buf_json(&b, "a\"b\\c\n\t\x01 \xc3\xa9 \xff");
	assert_string_equal(b.at, "\"a\\\"b\\\\c\\n\\t\\u0001 \xc3\xa9 \\ufffd\"");
	buf_free(&b);
}

static void
interned_strings_are_one(void **state)
{
	Arena *a = arena_new();
	const char *first = intern(a, "conv2d0");
	char text[32];

	for (int i = 0; i < 5000; i++) {
		snprintf(text, sizeof text, "name%d", i);
		assert_string_equal(intern(a, text), text);
	}
	assert_ptr_equal(intern(a, "conv2d0"), first);
	assert_ptr_not_equal(intern(a, "conv2d1"), first);
	arena_free(a);
}

static void
misspelt_names_are_recognised(void **state)
{
	const char *names[] = {"relu", "le", "conv2d", "sum", "reshape"};

	assert_int_equal(edit_distance("", "abc"), 3);
	assert_int_equal(edit_distance("kitten", "sitting"), 3);
	assert_int_equal(edit_distance("same", "same"), 0);
	assert_string_equal(suggest("rleu", names, 5), "relu");
	assert_string_equal(suggest("conv2", names, 5), "conv2d");
	assert_string_equal(suggest("sun", names, 5), "sum");
	assert_null(suggest("softmax", names, 5));
	assert_null(suggest("x", names, 5));
	assert_null(suggest("", names, 5));
}

static void
files_are_written_whole(void **state)
{
	char path[] = "/tmp/mantou-unit-XXXXXX";
	int fd = mkstemp(path);
	size_t n;
	char *text;

	assert_true(fd >= 0);
	close(fd);
	assert_true(file_write(path, "a\0b", 3));
	text = file_read(path, &n);
	assert_non_null(text);
	assert_int_equal(n, 3);
	assert_memory_equal(text, "a\0b", 4);
	free(text);
	unlink(path);
	assert_null(file_read(path, &n));
	assert_null(file_read("/tmp", &n));
	assert_false(file_write("/no/such/folder/file", "a", 1));
}

/* Links stay links, pipes pipes; a mode stays; names may be as long as names may be. */
static void
files_keep_their_kind(void **state)
{
	char folder[] = "/tmp/mantou-unit-XXXXXX", file[300], link[300], name[300];
	struct stat st;
	size_t n;

	assert_non_null(mkdtemp(folder));
	snprintf(link, sizeof link, "%s/link", folder);
	snprintf(file, sizeof file, "%s/file", folder);
	assert_int_equal(symlink("file", link), 0);
	assert_true(file_write(link, "a", 1)); /* there is no file yet */
	assert_int_equal(chmod(file, 0640), 0);
	assert_true(file_write(link, "bc", 2));
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(lstat(file, &st), 0);
	assert_true(S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0640);
	char *text = file_read(file, &n);

	assert_string_equal(text, "bc");
	free(text);
	unlink(link);
	assert_int_equal(symlink("link", link), 0);
	assert_false(file_write(link, "a", 1));
	unlink(link);
	assert_int_equal(mkfifo(link, 0600), 0);
	int fd = open(link, O_RDWR);

	assert_true(fd >= 0 && file_write(link, "d", 1));
	assert_int_equal(read(fd, name, 1), 1);
	close(fd);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	unlink(link);
	unlink(file);
	snprintf(name, sizeof name, "%s/", folder);
	memset(name + strlen(folder) + 1, 'n', 255);
	name[strlen(folder) + 256] = 0;
	assert_true(file_write(name, "e", 1));
	unlink(name);
	assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
}

static void
overflow_is_noticed(void **state)
{
	int64_t r;

	assert_true(mul_i64(1 << 20, 1 << 20, &r));
	assert_int_equal(r, (int64_t)1 << 40);
	assert_false(mul_i64(INT64_MAX, 2, &r));
	assert_false(add_i64(INT64_MAX, 1, &r));
	assert_true(add_i64(INT64_MAX, -1, &r));
}

static void
diagnostics_point_at_characters(void **state)
{
	const char text[] = "first\n\tx = \xc3\xa9\xc3\xa9 + relo(y)\n";
	Arena *a = arena_new();
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);
	Diags d;
	uint16_t file;

	diags_init(&d, a, f);
	file = diags_add_source(&d, "m.net", text, sizeof text - 1);
	diag_error(&d, (Loc){.file = file, .line = 2, .col = 13}, "no operator \"%s\"",
	           "relo"); /* byte 13 is the 11th character */
	diag_note(&d, (Loc){.file = file, .line = 9, .col = 1}, "a line that is not there");
	diag_warning(&d, (Loc){0}, "no place");
	fclose(f);
	assert_string_equal(
	        out, "m.net:2:11: error: no operator \"relo\"\n    \tx = \xc3\xa9\xc3\xa9 + relo(y)\n    \t         ^\n"
	             "m.net:9:1: note: a line that is not there\nmantou: warning: no place\n");
	assert_int_equal(d.nerror, 1);
	assert_int_equal(d.nwarning, 1);
	free(out);
	arena_free(a);
}

static void
errors_stop_at_twenty(void **state)
{
	Arena *a = arena_new();
	char *out = NULL;
	size_t n = 0, lines = 0;
	FILE *f = open_memstream(&out, &n);
	Diags d;

	diags_init(&d, a, f);
	for (int i = 0; i < 30; i++)
		diag_error(&d, (Loc){0}, "number %d", i);
	fclose(f);
	for (const char *p = out; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, 21);
	assert_int_equal(d.nerror, 30);
	assert_true(d.full);
	free(out);
	arena_free(a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
	        cmocka_unit_test(vectors_keep_what_was_pushed),
	        cmocka_unit_test(doubles_read_back),
	        cmocka_unit_test(json_is_escaped),
	        cmocka_unit_test(formats_are_the_librarys),
	        cmocka_unit_test(interned_strings_are_one),
	        cmocka_unit_test(misspelt_names_are_recognised),
	        cmocka_unit_test(files_are_written_whole),
	        cmocka_unit_test(files_keep_their_kind),
	        cmocka_unit_test(overflow_is_noticed),
	        cmocka_unit_test(diagnostics_point_at_characters),
	        cmocka_unit_test(errors_stop_at_twenty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
