/* test_machine.c: the machines of architectures. Every architecture has a row whose figures agree with each other;
 * words of machines say what the row says, or what the system here tells; what the system tells of caches is read from
 * files, here from a folder made for it. */
#include "unit.h"
#include "codegen.h"
#include "cpu/cpu.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const cpu_names[] = {
#define ARCH(id, ...) id,
#include "cpu/arch.def"
#undef ARCH
};
static const char *const cuda_names[] = {
#define ARCH(id, ...) #id,
#include "cuda/arch.def"
#undef ARCH
};
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static bool
power_of_two(int64_t n)
{
	return n > 0 && !(n & (n - 1));
}

static void
check_row(const Target *t, const char *name, const Machine *m)
{
	if (!m)
		fail_msg("%s has no row", name);
	assert_string_equal(m->arch, name);
	assert_true(*m->model);
	assert_true(power_of_two(m->line) && power_of_two(m->vector_bytes) && m->vector_bytes <= m->line);
	assert_true(m->fmas > 0 && m->loads > 0 && m->hz >= 1e9 && m->hz <= 6e9);
	assert_true(m->l1.bytes % 1024 == 0 && m->l1.bytes >= 16 << 10 && m->l1.cores == 1);
	assert_true(m->l2.bytes % 1024 == 0 && m->l2.bytes > m->l1.bytes && m->l2.cores >= 1);
}

static void
check_rates(const Rates *r)
{
	assert_true(r->bytes >= 1e9 && r->flops > r->bytes && r->products > r->flops && r->start >= 0 &&
	            r->start < 1e-3);
}

static void
cpu_rows(void **state)
{
	const Target *t = target_named("cpu");

	(void)state;
	for (int i = 0; i < COUNT(cpu_names); i++) {
		const Machine *m = t->machine(t, cpu_names[i]);

		check_row(t, cpu_names[i], m);
		assert_int_equal(m->vector_registers, m->vector_bytes == 64 ? 32 : 16);
		check_rates(&m->budget.rates);
		assert_true(power_of_two(m->budget.l1) && power_of_two(m->budget.l2) && power_of_two(m->budget.l3));
		assert_true(m->budget.dw_vectors >= 2 && m->budget.dw_vectors <= 4);
		assert_true(m->budget.l1 < m->budget.l2 && m->budget.l2 < m->budget.l3 && m->budget.task >= 1024);
		assert_true(m->l2.cores == 1 && !m->sms && !m->shared);
		assert_true(m->l3.bytes ? m->l3.bytes >= 2 * m->l2.bytes && m->l3.cores > 1 : !m->l3.cores);
	}
}

/* A CPU that LLVM names and the table does not has the code of a row, which has its own name. */
static void
other_processors(void **state)
{
	static const struct { const char *name, *row; } others[] = {
#define OTHER(id, of) {id, of},
#include "cpu/arch.def"
#undef OTHER
	};
	const Target *t = target_named("cpu");
	Arena *a = arena_new();

	(void)state;
	for (int i = 0; i < COUNT(others); i++) {
		const char *error = NULL, *row = t->resolve_arch(t, a, others[i].name, &error);

		if (!row)
			fail_msg("%s: %s", others[i].name, error);
		assert_string_equal(row, others[i].row);
		assert_string_equal(t->machine(t, others[i].name)->arch, row);
	}
	arena_free(a);
}

static void
cuda_rows(void **state)
{
	const Target *t = target_named("cuda");

	(void)state;
	for (int i = 0; i < COUNT(cuda_names); i++) {
		const Machine *m = t->machine(t, cuda_names[i]);
		const Rates *r = m ? &m->rates : NULL;

		check_row(t, cuda_names[i], m);
		assert_true(m->sms > 1 && m->l2.cores == m->sms && !m->l3.bytes);
		assert_true(m->shared >= 64 << 10 && m->shared < m->l1.bytes);
		assert_true(m->budget.shared >= 64 << 10 && m->budget.shared <= m->shared);
		assert_true(m->budget.l2 && m->budget.blocks > 0);
		assert_true(r->products > r->flops && (!r->group_products || r->group_products > r->products));
		/* 80 % of two operations for each FMA of every multiprocessor, as sheets round */
		assert_true(r->flops > 0.78 * 2 * m->sms * m->fmas * m->hz &&
		            r->flops < 0.82 * 2 * m->sms * m->fmas * m->hz);
		check_rates(r);
		check_rates(&m->budget.rates);
	}
	assert_null(t->machine(t, "sm_1"));
}

/* Figures that the choice of kernels will be tuned by: of two kinds of CPU that they were measured on. */
static void
known_processors(void **state)
{
	const Target *t = target_named("cpu");
	const Machine *zen = t->machine(t, "znver4"), *intel = t->machine(t, "sapphirerapids-noamx"),
	              *zen5 = t->machine(t, "znver5");

	(void)state;
	assert_true(zen->l1.bytes == 32 << 10 && zen->l2.bytes == 1 << 20 && zen->fmas == 1);
	assert_true(intel->l1.bytes == 48 << 10 && intel->l2.bytes == 2 << 20 && intel->fmas == 2);
	assert_true(zen5->l1.bytes == 48 << 10 && zen5->l2.bytes == 1 << 20 && zen5->fmas == 2 && zen5->loads == 2);
	/* how contractions are cut: as was measured on each */
	assert_true(!zen->budget.task_rows && !zen->budget.copy_steps && !zen->budget.pass &&
	            zen->budget.dw_vectors == 4);
	assert_true(intel->budget.task_rows == 96 && intel->budget.copy_steps == 128 && intel->budget.pass == 256);
	assert_true(!zen->budget.slow_l3 && t->machine(t, "znver3")->budget.slow_l3);
	assert_true(!zen5->budget.task_rows && !zen5->budget.pass && zen5->budget.dw_vectors == 4);
}

static int64_t
number(const char *word, const char *name)
{
	const char *at = strstr(word, name);
	char *end;

	if (!at || (at > word && at[-1] != ','))
		return -1;
	int64_t n = strtoll(at + strlen(name), &end, 10);
	int64_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1;

	end += unit > 1;
	return !*end || *end == ',' ? n * unit : -1;
}

static void
words(void **state)
{
	Arena *a = arena_new();
	const Target *cpu = target_named("cpu"), *cuda = target_named("cuda");
	Machine m;

	(void)state;
	for (int i = 0; i < COUNT(cpu_names); i++) {
		const char *word = cpu->here.word(cpu, cpu_names[i], a);
		const Machine *row = cpu->machine(cpu, cpu_names[i]);
		bool here = cpu->here.machine(cpu, cpu_names[i], &m);

		assert_false(strpbrk(word, " :;"));
		assert_true(number(word, "l1=") == m.l1.bytes && number(word, "l2=") == m.l2.bytes);
		assert_true(here || (m.l1.bytes == row->l1.bytes && m.l2.bytes == row->l2.bytes &&
		                     m.l3.bytes == row->l3.bytes));
	}
	/* without a driver */
	setenv("MANTOU_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
	for (int i = 0; i < COUNT(cuda_names); i++) {
		const char *word = cuda->here.word(cuda, cuda_names[i], a);

		assert_false(cuda->here.machine(cuda, cuda_names[i], &m));
		assert_true(number(word, "sm=") == m.sms);
		assert_true(number(word, "smem=") == m.shared && number(word, "l2=") == m.l2.bytes);
	}
	assert_string_equal(cuda->here.word(cuda, "sm_90a", a), "sm=132,smem=227K,l2=60M");
	/* cards by name and by word */
	const char *word = NULL;
	const Machine *h100 = cuda->here.card(cuda, "sm_90a", "h100", a, &word), *h200 = cuda->machine(cuda, "sm_90a");

	assert_non_null(h100);
	assert_string_equal(word, "sm=132,smem=227K,l2=50M");
	assert_ptr_equal(cuda->here.card(cuda, "sm_90a", word, a, &word), h100);
	assert_true(h100->rates.bytes < 0.8 * h200->rates.bytes && h100->rates.flops == h200->rates.flops);
	assert_ptr_equal(cuda->here.card(cuda, "sm_90a", "H200", a, &word), h200);
	assert_null(cuda->here.card(cuda, "sm_80", "H100", a, &word));
	assert_null(cuda->here.card(cuda, "sm_90a", "sm=114,smem=227K,l2=50M", a, &word));
	assert_string_equal(bytes_word(a, 48 << 10), "48K");
	assert_string_equal(bytes_word(a, 1280 << 10), "1280K");
	assert_string_equal(bytes_word(a, 2 << 20), "2M");
	assert_string_equal(bytes_word(a, 3ll << 30), "3G");
	assert_string_equal(bytes_word(a, 100), "100");
	assert_string_equal(bytes_word(a, 0), "0");
	arena_free(a);
}

static void
put(const char *root, int index, const char *file, const char *text)
{
	char path[512];

	snprintf(path, sizeof path, "%s/devices/system/cpu/cpu0/cache/index%d/%s", root, index, file);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = 0;
		mkdir(path, 0700);
		*p = '/';
	}
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fprintf(f, "%s\n", text);
	fclose(f);
}

static void
put_cache(const char *root, int index, const char *level, const char *type, const char *size)
{
	put(root, index, "level", level);
	put(root, index, "type", type);
	put(root, index, "size", size);
}

static void
caches_of_a_folder(void **state)
{
	char root[] = "/tmp/mantou-caches-XXXXXX", remove[64];
	int64_t bytes[3];

	(void)state;
	assert_non_null(mkdtemp(root));
	assert_false(host_caches(root, bytes));
	put_cache(root, 0, "1", "Data", "48K");
	put_cache(root, 1, "1", "Instruction", "32K");
	assert_false(host_caches(root, bytes));
	put_cache(root, 2, "2", "Unified", "2048K");
	assert_true(host_caches(root, bytes));
	assert_true(bytes[0] == 48 << 10 && bytes[1] == 2 << 20 && bytes[2] == 0);
	put_cache(root, 3, "3", "Unified", "260M");
	assert_true(host_caches(root, bytes) && bytes[2] == 260 << 20);
	put_cache(root, 2, "2", "Unified", "2048KB");
	assert_false(host_caches(root, bytes));
	put_cache(root, 2, "2", "Unified", "-1K");
	assert_false(host_caches(root, bytes));
	snprintf(remove, sizeof remove, "rm -rf %s", root);
	assert_int_equal(system(remove), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpu_rows), cmocka_unit_test(other_processors), cmocka_unit_test(cuda_rows),
		cmocka_unit_test(known_processors),
		cmocka_unit_test(words), cmocka_unit_test(caches_of_a_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
