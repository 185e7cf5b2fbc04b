/* lang.c: runs the cases of the language: each .net file of a folder holds its expected output in comments at its end.
 *
 * In: folders or files.   A file may have lines
 * #: -D NAME=VALUE   #: --batch N   #: --shards S   #: --precision P   #: print states settings train eval loops names
 * and ends with lines `#= ` that give the diagnostics and then what was printed, to the letter. `--bless` writes them
 * anew.
 * Out: a line per failure with both texts; the last line counts. Exit 1 if any failed. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../frontend/sema.h"

typedef struct Options {
	Define define[16];
	int ndefine;
	int64_t batch, shards;
	const char *precision, *print;
} Options;

static Options
options_read(Arena *a, const char *text)
{
	Options o = {0};

	for (const char *p = text; p && (p = strstr(p, "#: ")); p++) {
		char *line = arena_strndup(a, p + 3, strcspn(p + 3, "\n")), *eq;

		if (!strncmp(line, "-D ", 3) && (eq = strchr(line, '=')) && o.ndefine < 16) {
			*eq = 0;
			o.define[o.ndefine++] = (Define){line + 3, eq + 1};
		} else if (!strncmp(line, "--batch ", 8)) {
			o.batch = atoll(line + 8);
		} else if (!strncmp(line, "--shards ", 9)) {
			o.shards = atoll(line + 9);
		} else if (!strncmp(line, "--precision ", 12)) {
			o.precision = line + 12;
		} else if (!strncmp(line, "print ", 6)) {
			o.print = line + 6;
		}
	}
	return o;
}

static void
print_states(Buf *b, const Module *m)
{
	static const char *const inits[] = {"constant", "normal", "uniform"};

	for (uint32_t k = 0; k < m->state.n; k++) {
		const State *s = &m->state.at[k];

		buf_printf(b, "%s ", s->name);
		type_print(b, &s->type);
		buf_printf(b, " %s(", inits[s->init]);
		buf_double(b, s->a);
		buf_printf(b, ", ");
		buf_double(b, s->b);
		buf_printf(b, ")%s%s%s\n", s->kind == ST_STAT ? " stat" : "", s->decay ? " decay" : "",
		           s->frozen ? " frozen" : "");
	}
}

/* Operators, types and paths of a graph, without locations. */
static void
print_graph(Buf *b, const Module *m, const char *name, bool loop)
{
	for (uint32_t k = 0; k < m->graph.n; k++) {
		const Graph *g = m->graph.at[k];
		Buf text = {0};

		if (strcmp(g->name, name) || g->is_loop != loop)
			continue;
		graph_print(&text, g);
		for (char *p = text.at; p && *p;) {
			size_t n = strcspn(p, "\n");
			char *where = strstr(p, " !");

			if (where && where < p + n) {
				size_t skip = strcspn(where + 2, " \n") + 2;

				buf_put(b, p, (size_t)(where - p));
				buf_put(b, where + skip, n - (size_t)(where - p) - skip);
			} else {
				buf_put(b, p, n);
			}
			buf_printf(b, "\n");
			p += n + (p[n] != 0);
		}
		buf_free(&text);
	}
}

static void
print_module(Buf *b, const Module *m, const char *what)
{
	if (!m || !what)
		return;
	if (strstr(what, "settings"))
		for (uint32_t k = 0; k < m->setting.n; k++) {
			buf_printf(b, "%s = ", m->setting.at[k].name);
			setting_print(b, &m->setting.at[k]);
			buf_printf(b, "\n");
		}
	if (strstr(what, "states"))
		print_states(b, m);
	if (strstr(what, "names"))
		for (uint32_t k = 0; k < m->state.n; k++)
			buf_printf(b, "%s\n", m->state.at[k].name);
	if (strstr(what, "train"))
		print_graph(b, m, "train", false);
	if (strstr(what, "eval"))
		print_graph(b, m, "eval", false);
	if (strstr(what, "loops")) {
		print_graph(b, m, "train", true);
		print_graph(b, m, "eval", true);
		print_graph(b, m, "infer", true);
	}
}

/* The output as it stands in the file: a `#= ` before each line. */
static void
comment(Buf *b, const char *text)
{
	while (text && *text) {
		size_t n = strcspn(text, "\n");

		buf_printf(b, n ? "#= %.*s\n" : "#=%.*s\n", (int)n, text);
		text += n + (text[n] != 0);
	}
}

static bool
run_case(const char *file, bool bless)
{
	Arena *a = arena_new();
	Diags d;
	size_t bytes, size = 0, keep;
	char *text = file_read(file, &bytes), *said = NULL, *old;
	FILE *out = open_memstream(&said, &size);
	Buf got = {0}, want = {0}, printed = {0};
	Options o;
	Module *m;
	bool good;

	if (!text || !out)
		die("cannot read %s", file);
	o = options_read(a, text);
	diags_init(&d, a, out);
	m = frontend_compile(a, &d, file, o.define, o.ndefine, o.batch, o.shards, o.precision);
	if (!m && !d.nerror)
		fprintf(out, "failed without an error\n");
	if (m && d.nerror)
		fprintf(out, "a module in spite of errors\n");
	fclose(out);
	print_module(&printed, m, o.print);
	comment(&got, said);
	comment(&got, printed.at);
	if (!got.n)
		buf_printf(&got, "#= good\n");
	old = !strncmp(text, "#=", 2) ? text : strstr(text, "\n#=");
	keep = old ? (size_t)(old - text) + (old != text) : bytes;
	buf_put(&want, text + keep, bytes - keep);
	good = old && want.n == got.n && !memcmp(want.at, got.at, got.n);
	if (!good && bless) {
		Buf whole = {0};

		buf_put(&whole, text, keep);
		buf_put(&whole, got.at, got.n);
		file_write(file, whole.at, whole.n);
		buf_free(&whole);
		good = true;
	} else if (!good) {
		printf("%s differs\n--- expected\n%s--- found\n%s", file, want.at ? want.at : "", got.at);
	}
	buf_free(&got);
	buf_free(&want);
	buf_free(&printed);
	free(said);
	free(text);
	arena_free(a);
	return good;
}

static int
is_case(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 4 && !strcmp(e->d_name + n - 4, ".net");
}

int
main(int argc, char **argv)
{
	int passed = 0, failed = 0;
	bool bless = false;
	Buf wrong = {0};

	ir_init();
	for (int k = 1; k < argc; k++) {
		struct dirent **list;
		int n;

		if (!strcmp(argv[k], "--bless")) {
			bless = true;
			continue;
		}
		/* Names in messages are those of the folder. */
		if (chdir(argv[k]) != 0 || (n = scandir(".", &list, is_case, alphasort)) < 0)
			die("%s is no folder", argv[k]);
		for (int i = 0; i < n; i++) {
			if (run_case(list[i]->d_name, bless))
				passed++;
			else {
				failed++;
				buf_printf(&wrong, "%s\n", list[i]->d_name);
			}
			free(list[i]);
		}
		free(list);
	}
	/* The last lines are what meson shows of a long log. */
	for (const char *p = wrong.at; p && *p; p += strcspn(p, "\n") + 1)
		printf("FAIL %.*s\n", (int)strcspn(p, "\n"), p);
	if (failed)
		printf("if the new text is right: sh tests/run.sh lang --bless, and read the difference\n");
	buf_free(&wrong);
	printf("lang: %d passed, %d failed\n", passed, failed);
	return failed != 0;
}
