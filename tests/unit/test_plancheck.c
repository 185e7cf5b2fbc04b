/* test_plancheck.c: the checker of plans refuses every kind of wrong plan, and names the values. */
#include "unit.h"
#include "../../passes/pass.h"
#include <string.h>

#define HEAD "module m {stage=planned arena_bytes=4096}\n"

/* A plan, and a part of what is said of it; NULL: nothing. */
static const struct { const char *text, *error; } cases[] = {
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n %y = relu %x "
              "#0 at 192\n}\n",
         NULL},
        {HEAD "state @s : f32[4] at 32\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n %y = relu %x "
              "#0 at 192\n}\n",
         "state s at 32 overlaps"},
        /* %z takes %y's place while %w still needs %y */
        {HEAD "graph g(%x: f32[4] at 64) -> %w {\n group #0 a \"map\"\n group #1 b \"map\"\n group #2 c "
              "\"map\"\n %y = relu %x #0 at 128\n %z = exp %x #1 at 128\n"
              " %w = add %y, %z #2 at 256\n}\n",
         "%y at 128 is overwritten before add reads it"},
        /* a part of it is enough */
        {HEAD "graph g(%x: f32[4] at 64) -> %w {\n group #0 a \"map\"\n group #1 b \"map\"\n group #2 c "
              "\"map\"\n %y = relu %x #0 at 128\n %z = exp %x #1 at 140\n"
              " %w = add %y, %z #2 at 256\n}\n",
         "%y at 128 is overwritten before add reads it"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y, %z {\n group #0 a \"map\"\n group #1 b \"map\"\n %y = relu %x "
              "#0 at 128\n %z = exp %x #1 at 128\n}\n",
         "result %y does not live to the end"},
        {HEAD "graph g(%x: f32[4] at 64) -> %z {\n group #0 a \"map\"\n group #1 b \"map\"\n %y = relu %x #0\n "
              "%z = exp %y #1 at 128\n}\n",
         "%y is read by another group but has no place"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"map\"\n %y = relu %x #0 at 4088\n}\n",
         "%y ends beyond the arena"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" workspace 64 at 128\n %y = relu %x #0 "
              "at 144\n}\n",
         "the workspace of a overlaps %y"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" workspace 64 at 4064\n %y = relu %x #0 "
              "at 144\n}\n",
         "the workspace of a has no place"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %o {\n group #0 a \"map\"\n group #1 b "
              "\"map\"\n %y = relu %x #0 at 64\n %o = load {state=s} : f32[4] at 64\n"
              " %p = exp %o #1 at 256\n}\n",
         "load of s after its store"},
        /* %m is made once: its place may not be taken by %y, which no longer is when %z reads %m in the next
         * call */
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %w {\n group #0 a \"map\" once\n group "
              "#1 b \"map\"\n group #2 c \"map\"\n %o = load {state=s} : f32[4] at 64\n"
              " %m = exp %o #0 at 192\n %z = mul %x, %m #1 at 256\n %w = relu %z #2 at 192\n}\n",
         "%m is made once, and overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %w {\n group #0 a \"map\" once\n group "
              "#1 b \"map\"\n %o = load {state=s} : f32[4] at 64\n"
              " %m = exp %o #0 at 192\n %w = mul %x, %m #1 at 256\n}\n",
         NULL},
        /* what runs between the calls of graph step leaves what that makes once */
        {HEAD "state @s : f32[4] at 64\ngraph step(%x: f32[4] at 256) -> %y {\n group #0 a \"rows\" prepacked 64 "
              "prepacked_at 128\n group #1 b \"map\" once\n %o = load {state=s} : f32[4] at 64\n"
              " %m = exp %o #1 at 320\n %y = mul %x, %m #0 at 384\n}\n"
              "graph share(%x: f32[4] at 256) -> %y {\n group #0 c \"map\"\n %y = relu %x #0 at 128\n}\n",
         "graph share: what a of graph step keeps is overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph step(%x: f32[4] at 256) -> %y {\n group #0 a \"rows\" prepacked 64 "
              "prepacked_at 128\n group #1 b \"map\" once\n %o = load {state=s} : f32[4] at 64\n"
              " %m = exp %o #1 at 320\n %y = mul %x, %m #0 at 384\n}\n"
              "graph share(%x: f32[4] at 256) -> %y {\n group #0 c \"map\"\n %y = relu %x #0 at 320\n}\n",
         "graph share: what b of graph step keeps is overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph step(%x: f32[4] at 256) -> %y {\n group #0 a \"rows\" prepacked 64 "
              "prepacked_at 128\n group #1 b \"map\" once\n %o = load {state=s} : f32[4] at 64\n"
              " %m = exp %o #1 at 320\n %y = mul %x, %m #0 at 384\n}\n"
              "graph share(%x: f32[4] at 256) -> %y {\n group #0 c \"map\"\n %y = relu %x #0 at 192\n}\n",
         NULL},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" prepacked 64 prepacked_at 128\n %y = relu %x #0 "
              "at 144\n}\n",
         "what a keeps is overwritten"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" prepacked 64 prepacked_at 128\n %y = relu %x #0 "
              "at 256\n}\n",
         NULL},
        {HEAD
         "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" prepacked 64 prepacked_at 4080\n %y = relu %x #0 "
         "at 256\n}\n",
         "what a keeps has no place"},
        /* texts may hold any number */
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" prepacked 9223372036854775807 prepacked_at 128\n"
              " %y = relu %x #0 at 256\n}\n",
         "what a keeps has no place"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" prepacked 64 prepacked_at 136\n"
              " %y = relu %x #0 at 256\n}\n",
         "what a keeps has no place"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\" workspace 9223372036854775807 at 128\n"
              " %y = relu %x #0 at 256\n}\n",
         "the workspace of a has no place"},
        {HEAD "graph g(%x: f32[4] at 9223372036854775744) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 128\n}\n",
         "input %x ends beyond the arena"},
        {HEAD "state @s : f32[4] at 4096\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 192\n}\n",
         "state s ends beyond the arena"},
        {"module m {stage=planned arena_bytes=63}\n", "does not hold the record of faults"},
        /* what no call reads, the next one may, or another graph */
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"map\"\n %y = relu %x #0 at 0\n}\n",
         "overlaps the record of faults"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 64\n}\n",
         "state s is overwritten"},
        {HEAD "state @s : f32[64] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 512\n}\n",
         "state s is overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n"
              " group #0 a \"rows\" workspace 64 at 64\n %y = relu %x #0 at 192\n}\n",
         "state s is overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 64\n store %y {state=s}\n}\n",
         NULL},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %y = relu %x #0 at 192\n store %y {state=s}\n}\n",
         NULL},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %z {\n group #0 a \"map\"\n"
              " group #1 b \"map\"\n %y = relu %x #0 at 64\n store %y {state=s}\n %z = exp %x #1 at 64\n}\n",
         "state s is overwritten"},
        {HEAD "state @s : f32[4] at 64\ngraph g(%x: f32[4] at 128) -> %y {\n group #0 a \"map\"\n"
              " %o = load {state=s} : f32[4] at 192\n %y = relu %o #0 at 256\n}\n",
         "is loaded at 192, state s lies at 64"},
        /* a kernel that does not go element by element spoils what it reads; one that does must not write ahead
         * of what it reads either */
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"rows\"\n %y = relu %x #0 at 64\n}\n",
         "a writes over %x while it reads it"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y {\n group #0 a \"map\"\n %y = relu %x #0 at 64\n}\n", NULL},
        {HEAD "graph g(%x: f32[64] at 64) -> %y {\n group #0 a \"map\"\n %y = relu %x #0 at 128\n}\n",
         "a writes over %x while it reads it"},
        {HEAD "graph g(%x: f32[4] at 64) -> %y, %z {\n group #0 a \"map\"\n %y = relu %x #0 at 128\n"
              " %z = exp %x #0 at 128\n}\n",
         "%y overlaps something else that a makes"},
        {HEAD "graph g(%x: f32[4] at 64) -> %z {\n group #0 a \"map\"\n %y = reshape %x : f32[2,2] at 128\n"
              " %z = exp %y #0 at 256\n}\n",
         "does not lie where its operand does"},
};

static void
wrong_plans_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Arena *a = arena_new();
		Diags d;

		diags_init(&d, a, stderr);
		Module *m = module_parse(a, &d, "t.ir", cases[i].text, strlen(cases[i].text));

		assert_non_null(m);
		const char *error = plancheck(m, a);

		if (!cases[i].error)
			assert_null(error);
		else if (!error || !strstr(error, cases[i].error))
			fail_msg("case %zu: %s, not %s", i, error ? error : "no complaint", cases[i].error);
		arena_free(a);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_plans_are_refused)};

	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
