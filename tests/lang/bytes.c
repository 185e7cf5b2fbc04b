/* bytes.c: texts that cannot stand in a file of tests/lang: any bytes, any size, any nesting.
 *
 * Each case is compiled from memory; it must end, and say what it is expected to say: a part of the first message, ""
 * for none (a module comes out). Out: a line per failure; exit 1 if any failed. */
#include <stdlib.h>
#include <string.h>
#include "../../frontend/sema.h"

static int passed, failed;

/* count times the text between before and after. */
static void
many(Buf *b, const char *before, int count, const char *text, const char *after)
{
	buf_printf(b, "%s", before);
	for (int k = 0; k < count; k++)
		buf_printf(b, "%s", text);
	buf_printf(b, "%s", after);
}

static void
check(const char *name, const char *text, size_t n, const char *want)
{
	Arena *a = arena_new();
	Diags d;
	char *said = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&said, &size);
	Module *m;

	if (!out)
		die("no memory stream");
	diags_init(&d, a, out);
	m = frontend_compile_text(a, &d, "text.net", text, n, NULL, 0, 0, 0, NULL);
	fclose(out);
	if ((m != NULL) == (d.nerror == 0) && (*want ? strstr(said, want) != NULL : m != NULL)) {
		passed++;
	} else {
		failed++;
		printf("FAIL bytes %s\n--- expected %s\n--- found\n%.2000s", name, *want ? want : "a module", said);
	}
	free(said);
	arena_free(a);
}

static void
check_text(const char *name, const char *text, const char *want)
{
	check(name, text, strlen(text), want);
}

static void
check_buf(const char *name, Buf *b, const char *want)
{
	check(name, b->at ? b->at : "", b->n, want);
	buf_free(b);
	*b = (Buf){0};
}

#define HEAD "model m(x: f32[N, 3]) {\n"
#define TAIL "\n    loss mean(x)\n}\ntrain { batch = 2 }\n"

static void
check_nesting(void)
{
	Buf b = {0};
	static const struct {
		const char *open, *close;
	} pairs[] = {{"(", ")"}, {"[", "]"}, {"relu(", ")"}, {"-", ""}, {"not ", ""}, {"[1][", "]"}};

	for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
		for (int n = 300; n <= 100000; n *= 300) {
			many(&b, HEAD "y = ", n, pairs[k].open, "1");
			many(&b, "", n, pairs[k].close, TAIL);
			/* Parentheses alone leave no node. */
			check_buf(pairs[k].open, &b, k == 0 && n == 300 ? "" : "nested");
		}
	many(&b, HEAD, 300, "if true {", "y = 1");
	many(&b, "", 300, "}", TAIL);
	check_buf("bodies", &b, "bodies are nested more than 200 deep");
	many(&b, HEAD, 100000, "if true {", "y = 1");
	check_buf("many bodies", &b, "nested too deeply");
	many(&b, HEAD "if false { y = 1 }", 900, " else if false { y = 2 }", TAIL);
	check_buf("else-if chain", &b, "");
	many(&b, HEAD "if false { y = 1 }", 100000, " else if false { y = 2 }", TAIL);
	check_buf("long else-if chain", &b, "nested too deeply");
	many(&b, HEAD "y = 1", 100000, " + 1", TAIL);
	check_buf("sum", &b, "");
	many(&b, HEAD "y = x", 20000, " |> relu", TAIL);
	check_buf("pipes", &b, "");
	many(&b, HEAD "y = x", 50000, ".shape", TAIL);
	check_buf("shapes", &b, ".shape needs a tensor");
	many(&b, HEAD "y = [", 100000, "1, ", "1]" TAIL);
	check_buf("list", &b, "");
	many(&b, HEAD "y = relu(", 100000, "1, ", "1)" TAIL);
	check_buf("arguments", &b, "takes at most 1");
}

/* Blocks that call each other in a chain, and ones that double at each level. */
static void
check_blocks(void)
{
	Buf b = {0};

	buf_printf(&b, "block b0(x) { return x }\n");
	for (int k = 1; k <= 300; k++)
		buf_printf(&b, "block b%d(x) { return b%d(x) }\n", k, k - 1);
	buf_printf(&b, HEAD "y = b190(x)" TAIL);
	check_buf("chain of blocks", &b, "");
	buf_printf(&b, "block b0(x) { return x }\n");
	for (int k = 1; k <= 300; k++)
		buf_printf(&b, "block b%d(x) { return b%d(x) }\n", k, k - 1);
	buf_printf(&b, HEAD "y = b300(x)" TAIL);
	check_buf("long chain of blocks", &b, "blocks call blocks more than 200 deep");
	buf_printf(&b, "block b0(x) { return 1 }\n");
	for (int k = 1; k <= 60; k++)
		buf_printf(&b, "block b%d(x) { return b%d(x) + b%d(x) }\n", k, k - 1, k - 1);
	buf_printf(&b, HEAD "y = b60(x)" TAIL);
	check_buf("doubling blocks", &b, "steps to elaborate");
	for (int k = 0; k < 3000; k++)
		buf_printf(&b, "const c%d = %d\nblock b%d(x) { return x }\n", k, k, k);
	buf_printf(&b, HEAD);
	for (int k = 0; k < 30000; k++)
		buf_printf(&b, "y%d = 1\n", k);
	buf_printf(&b, TAIL);
	check_buf("many names", &b, "");
}

int
main(void)
{
	static const char zero[] = HEAD "y = x\0x" TAIL, in_string[] = HEAD "y = \"a\0b\"" TAIL,
	                  utf16[] = "m\0o\0d\0e\0l\0 \0", in_comment[] = "# a\0b\xff\n" HEAD TAIL;
	Buf b = {0};

	ir_init();
	check_text("empty", "", "the program has no model");
	check_text("blank", " \n\t\r\n", "the program has no model");
	check_text("comment only", "# nothing", "the program has no model");
	check("zero byte", zero, sizeof zero - 1, "byte 0x00 has no meaning");
	check("UTF-16", utf16, sizeof utf16 - 1,
	      "byte 0x00 has no meaning: a model is text in UTF-8, which this file is not");
	check("zero byte in a string", in_string, sizeof in_string - 1, "byte 0x00 in the string");
	check("any byte in a comment", in_comment, sizeof in_comment - 1, "");
	check_text("byte order mark", "\xef\xbb\xbf" HEAD TAIL, "");
	check_text("half a byte order mark", "\xef\xbb" HEAD TAIL, "byte 0xef");
	check_text("carriage returns", "model m(x: f32[N, 3]) {\r\n    loss mean(x)\r\n}\r\ntrain { batch = 2 }\r\n",
	           "");
	check_text("high bytes", HEAD "y = \x80\xff\xfe" TAIL, "byte 0x80");
	check_text("UTF-8 in a string", HEAD "y = \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"" TAIL, "");
	check_text("overlong UTF-8", HEAD "y = \"\xc0\x80\"" TAIL, "byte 0xc0 in the string");
	check_text("surrogate", HEAD "y = \"\xed\xa0\x80\"" TAIL, "byte 0xed in the string");
	check_text("cut UTF-8", HEAD "y = \"\xe2\x82\"" TAIL, "byte 0xe2 in the string");
	check_text("control character", HEAD "y = \"\x1b[31m\"" TAIL, "byte 0x1b in the string");
	check_text("end in a string", HEAD "y = \"abc", "the string does not end on its line");
	check_text("end in a body", HEAD "y = x\n", "the text ends too early");
	check_text("end in an expression", HEAD "y = x +", "the text ends too early");
	check_text("end in a list of settings", HEAD TAIL "data { reader =", "the text ends too early");
	check_text("end in brackets", HEAD "y = dense(x, [1, (2",
	           ":2:20: error: the text ends too early: a ), a ], a ) and more are missing\n");
	check_text("end in brackets, where", HEAD "y = dense(x, [1, (2", ":2:18: note: this ( is open\n");
	check_text("end in a section", HEAD TAIL "train { batch = 4\n",
	           ":7:1: error: the text ends too early: a } is missing\n");
	check_text("end in a section, where", HEAD TAIL "train { batch = 4\n", ":6:7: note: this { is open\n");
	check_text("end in a condition", HEAD "if x ==",
	           ":2:8: error: the text ends too early, needs a value: a } is missing\n");
	check_text("end behind =", "const a =", ":1:10: error: the text ends too early, needs a value\n");
	check_text("end in an item", "block", "the text ends too early, needs a name");
	check_text("only braces", "}}}}{{{{", "unexpected `}`");
	check_text("keywords", "model model model", "is a keyword and no name");
	check_text("repeated items", "use use const const block block", "unexpected `use`");
	many(&b, HEAD "y = ", 100000, "9", TAIL);
	check_buf("digits", &b, "does not fit a 64-bit integer");
	many(&b, HEAD "y = 0.", 100000, "1", "" TAIL);
	check_buf("decimals", &b, "");
	many(&b, HEAD "y = \"", 1000000, "a", "\"" TAIL);
	check_buf("string", &b, "");
	many(&b, HEAD "y = ", 100000, " ", "nothing" TAIL);
	check_buf("far column", &b, "there is no `nothing` here");
	many(&b, HEAD, 100000, "y = nothing\n", TAIL);
	check_buf("many errors", &b, "more than 20 errors");
	many(&b, HEAD, 100000, "$", TAIL);
	check_buf("many bad characters", &b, "more than 20 errors");
	many(&b, "", 100000, "{", "");
	check_buf("open braces", &b, "unexpected `{`");
	many(&b, "", 17 << 10,
	     "################################################################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "#########################################################################################################"
	     "#######################"
	     "################################################################\n",
	     HEAD TAIL);
	check_buf("too large", &b, "at most 16777216 are read");
	check_nesting();
	check_blocks();
	printf("lang-bytes: %d passed, %d failed\n", passed, failed);
	return failed != 0;
}
