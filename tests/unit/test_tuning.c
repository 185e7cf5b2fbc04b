/* test_tuning.c: tuning files changed: which lines become others and which do not, also if somebody was quicker;
 * facts; what keys of groups hold. */
#include "unit.h"
#include "pass.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY "cpu znver4 l1=32K tanh f32[4] -> f32[4] group=0"
#define OTHER "cpu znver5 * tanh f32[4] -> f32[4] group=0 : brgemm.1{mr=7} ; n=1"
#define LOCK "cpu znver4 l1=32K lock lenet train batch=32 f32"

static void
edits(const char *text, const char *base, const char *line, const char *drop, const char *want)
{
	Arena *a = arena_new();
	TuneEdit e = {.line = &line, .nline = line != NULL, .drop = &drop, .ndrop = drop != NULL};
	Buf out = {0};

	tuning_edit(&out, a, text, strlen(text), base, base ? strlen(base) : 0, &e);
	assert_string_equal(out.at, want);
	buf_free(&out);
	arena_free(a);
}

static void
lines(void **state)
{
	(void)state;
	edits("", NULL, KEY " : brgemm.1{mr=1}", NULL, KEY " : brgemm.1{mr=1}\n");
	edits("# head\n\n# of it\r\n" OTHER "  \r\n# tail", NULL, KEY " : brgemm.1{mr=1}", NULL,
		"# head\n\n" KEY " : brgemm.1{mr=1}\n# of it\r\n" OTHER "  \r\n# tail\n");
	edits("# only\n", NULL, KEY " : brgemm.1{mr=1}", NULL, "# only\n" KEY " : brgemm.1{mr=1}\n");
	/* what stands there already keeps its facts */
	edits(KEY " : brgemm.1{mr=1} ; n=3\n", NULL, KEY " : brgemm.1{mr=1} ; n=9", NULL,
	      KEY " : brgemm.1{mr=1} ; n=3\n");
	edits(KEY " : brgemm.1{mr=1} ; n=3\n", NULL, KEY " : brgemm.2{mr=1}", NULL, KEY " : brgemm.2{mr=1}\n");
	edits("# why\n" KEY " : brgemm.1{mr=1}\n" OTHER "\n", NULL, NULL, KEY, OTHER "\n");
	/* a second one of a key, lines out of order, lines that are none */
	edits(OTHER "\n" KEY " : brgemm.1{mr=2}\n" KEY " : brgemm.1{mr=1}\nodd\n", NULL, NULL, NULL,
		KEY " : brgemm.1{mr=2}\n" OTHER "\nodd\n");
}

static void
others_were_quicker(void **state)
{
	const char *base = KEY " : brgemm.1{mr=1} ; us=9 was=10 t=2\n";

	(void)state;
	/* another record is no reason */
	edits(OTHER "\n", "", KEY " : brgemm.1{mr=3}", NULL, KEY " : brgemm.1{mr=3}\n" OTHER "\n");
	/* the better one of this key stays */
	edits(KEY " : brgemm.1{mr=2} ; us=5 was=10 t=2\n", base, KEY " : brgemm.1{mr=3} ; us=8 was=10 t=2", NULL,
		KEY " : brgemm.1{mr=2} ; us=5 was=10 t=2\n");
	edits(KEY " : brgemm.1{mr=2} ; us=9 was=10 t=2\n", base, KEY " : brgemm.1{mr=3} ; us=8 was=10 t=2", NULL,
		KEY " : brgemm.1{mr=3} ; us=8 was=10 t=2\n");
	edits(KEY " : brgemm.1{mr=2}\n", base, NULL, KEY, KEY " : brgemm.1{mr=2}\n");
	/* this key is as it was */
	edits(KEY " : brgemm.1{mr=1} ; us=9 was=10 t=2\n" OTHER "\n", base, KEY " : brgemm.1{mr=3}", NULL,
		KEY " : brgemm.1{mr=3}\n" OTHER "\n");
	/* a lock was made for a file that is no more */
	edits(OTHER "\n", "", LOCK " : lock.1{kernels=0123456789abcdef}", NULL, OTHER "\n");
	edits(LOCK " : lock.1{kernels=0000000000000000}\n", LOCK " : lock.1{kernels=0000000000000000}\n",
		LOCK " : lock.1{kernels=0123456789abcdef}", NULL,
		LOCK " : lock.1{kernels=0123456789abcdef}\n");
}

static void
files(void **state)
{
	Arena *a = arena_new();
	char folder[] = "/tmp/test-tuning-XXXXXX", *text;
	const char *line = KEY " : brgemm.1{mr=1}";
	struct stat before, after;
	size_t n;

	(void)state;
	assert_non_null(mkdtemp(folder));
	const char *path = arena_printf(a, "%s/t.tune", folder);

	assert_true(tuning_write(a, path, "", 0, &(TuneEdit){.line = &line, .nline = 1}));
	text = file_read(path, &n);
	assert_string_equal(text, KEY " : brgemm.1{mr=1}\n");
	free(text);
	/* nothing to change: the file is the same one */
	assert_int_equal(stat(path, &before), 0);
	assert_true(tuning_write(a, path, NULL, 0, &(TuneEdit){.line = &line, .nline = 1}));
	assert_int_equal(stat(path, &after), 0);
	assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
	unlink(path);
	/* two that hold it */
	char *holder = NULL, *nobody = NULL;
	FileHold *h = file_hold(path, "the first", &nobody), *second = file_hold(path, "the second", &holder);

	assert_non_null(h);
	assert_null(second);
	assert_non_null(strstr(holder, "the first"));
	file_release(h);
	h = file_hold(path, "again", &nobody);
	assert_non_null(h);
	file_release(h);
	free(holder);
	assert_int_equal(rmdir(folder), 0);
	arena_free(a);
}

static void
facts(void **state)
{
	TuneFacts f = tuning_facts(" us=72.1 +-0.7% was=80.4 n=26 step=2.1% bits=same t=2"),
		odd = tuning_facts("us= us=x  n=-1 t=1e9 +- bits=much.too.long.for.it =");

	(void)state;
	assert_true(fabs(f.us - 72.1) < 1e-9 && fabs(f.was - 80.4) < 1e-9 && fabs(f.error - 0.007) < 1e-9
		&& fabs(f.step - 0.021) < 1e-9);
	assert_true(f.samples == 26 && f.threads == 2);
	assert_string_equal(f.bits, "same");
	assert_true(isnan(odd.us) && isnan(odd.was) && isnan(odd.error) && !odd.samples && !odd.threads && !*odd.bits);
}

/* Groups 0 and 1 are the same kernel but for what the lines say. */
static bool
same_keys(const char *ops)
{
	Arena *a = arena_new();
	Diags d;
	const char *text = arena_printf(a,
		"module m {batch=4 stage=scheduled hash=0000000000000000}\n"
		"state @w : f32[4] = constant(0) {kind=param}\nstate @u : f32[4] = constant(0) {kind=param}\n"
		"graph infer(%%x: f32[4], %%v: f32[4]) -> %s\n  group #0 one\n  group #1 two\n%s}\n",
		"output y %b, output z %d {", strchr(ops, '\n') + 1);
	Module *m;
	Buf one = {0}, two = {0};

	diags_init(&d, a, stderr);
	m = module_parse(a, &d, "t.ir", text, strlen(text));
	assert_non_null(m);
	const TuneKeys *k = tuning_keys(m->graph.at[0], a, true);

	assert_non_null(tuning_key(&one, k, 0));
	assert_non_null(tuning_key(&two, k, 1));
	bool same = !strcmp(one.at, two.at);

	buf_free(&one);
	buf_free(&two);
	arena_free(a);
	return same;
}

static void
keys(void **state)
{
	(void)state;
	assert_true(same_keys("alike\n"
		"  %a = add %x, %v : f32[4] #0\n"
		"  %b = tanh %a : f32[4] #0\n"
		"  %c = add %v, %x : f32[4] #1\n"
		"  %d = tanh %c : f32[4] #1\n"));
	assert_false(same_keys("one place\n"
		"  %b = add %x, %v : f32[4] #0\n"
		"  %d = add %x, %x : f32[4] #1\n"));
	assert_false(same_keys("one state\n"
		"  %w = load {state=w} : f32[4]\n"
		"  %q = load {state=w} : f32[4]\n"
		"  %u = load {state=u} : f32[4]\n"
		"  %b = add %w, %q : f32[4] #0\n"
		"  %d = add %w, %u : f32[4] #1\n"));
	assert_false(same_keys("read by others\n"
		"  %a = add %x, %v : f32[4] #0\n"
		"  %b = tanh %a : f32[4] #0\n"
		"  %c = add %v, %x : f32[4] #1\n"
		"  %e = tanh %c : f32[4] #1\n"
		"  %d = mul %c, %e : f32[4]\n"));
	assert_false(same_keys("kept\n"
		"  %w = load {state=w} : f32[4]\n"
		"  %b = add %x, %w : f32[4] #0\n"
		"  %d = add %x, %v : f32[4] #1\n"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(lines), cmocka_unit_test(others_were_quicker),
		cmocka_unit_test(files), cmocka_unit_test(facts), cmocka_unit_test(keys)};

	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
