/* reference.c: holds the language's reference, and whatever else shows .net text, to the compiler: reference
 * [--bless] FOLDER FILE.md...
 *
 * In: FOLDER, where `use` finds files, and documents, of which the first is language.md.   Out: a line per
 * failure; the last line counts; exit 1 if any failed. What is held:
 *   - text between `<!-- words: SECTION -->` or `<!-- options: PROGRAM -->` and `<!-- end -->` is what the tables
 *     make (--bless writes it);
 *   - every name of the compiler's tables has a sentence, an example and a section in the first document, and no
 *     other name has;
 *   - every example of aliases.def compiles and uses what it says the name is here; an alias without example names
 *     an argument or a setting;
 *   - every block compiles that is fenced as `net` (a whole file; items without a model are put before the frame
 *     `body`) or `net NAME` (a fragment, put at the line `...` of a document's block `net frame NAME`), with a
 *     batch of 32 where it sets none. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../frontend/ast.h"
#include "../../frontend/sema.h"
#include "../../frontend/words.h"

typedef struct Frame { char *name, *before, *after; } Frame;
typedef struct Check {
	Arena *arena;
	Frame frame[16];
	int nframe, passed, failed;
} Check;

static const struct { const char *name, *argument, *commands, *help; } mantou_options[] = {
#define OPT(field, spelling, kind, argument, commands, help) {spelling, argument, #commands, help},
#include "../../frontend/options.def"
#undef OPT
}, program_options[] = {
#define OPT(name, argument, commands, kind, field, help) {name, argument, commands, help},
#include "../../runtime/options.def"
#undef OPT
};

__attribute__((format(printf, 3, 4))) static void
result(Check *c, bool good, const char *fmt, ...)
{
	va_list ap;

	if (good) {
		c->passed++;
		return;
	}
	c->failed++;
	va_start(ap, fmt);
	printf("FAIL ");
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

/* ---------------------------------------------------------------- fragments and their frames */

static const Frame *
frame_named(const Check *c, const char *name)
{
	for (int i = 0; i < c->nframe; i++)
		if (!strcmp(c->frame[i].name, name))
			return &c->frame[i];
	return NULL;
}

/* The block's text is split at its line `...`, whatever that is indented by. */
static void
frame_add(Check *c, const char *name, const char *text)
{
	const char *dots = strstr(text, "...\n"), *line = dots;

	if (!dots || c->nframe == 16) {
		result(c, false, "frame %s has no line `...`, or there are too many frames", name);
		return;
	}
	while (line > text && line[-1] != '\n')
		line--;
	c->frame[c->nframe++] =
	        (Frame){arena_strdup(c->arena, name), arena_strndup(c->arena, text, (size_t)(line - text)),
	                arena_strdup(c->arena, dots + 4)};
}

static bool
has_model(const char *text)
{
	return !strncmp(text, "model ", 6) || strstr(text, "\nmodel ");
}

/* kind: the words behind `net`, "" for none. */
static void
compile_block(Check *c, const char *where, const char *kind, const char *text)
{
	bool whole = !*kind && has_model(text);
	const Frame *f = frame_named(c, *kind ? kind : "body");
	Arena *a = arena_new();
	char *said = NULL, *all;
	size_t size = 0;
	Diags d;

	if (!whole && !f) {
		result(c, false, "%s: there is no frame `%s`", where, kind);
		arena_free(a);
		return;
	}
	all = whole ? arena_strdup(a, text)
	            : arena_printf(a, "%s%s%s%s", *kind ? "" : text, f->before, *kind ? text : "", f->after);
	FILE *out = open_memstream(&said, &size);

	diags_init(&d, a, out);
	bool good =
	        frontend_compile_text(a, &d, "example.net", all, strlen(all), NULL, 0, whole ? 0 : 32, 0, NULL) != NULL;

	fclose(out);
	result(c, good && !d.nerror, "%s:\n%s%s", where, text, said);
	free(said);
	arena_free(a);
}

/* The fence that a word's example stands in. */
static const char *
word_fence(const Word *w)
{
	static const char *const framed[] = {"tokens", "csv", "coco",
	                                     "skipgram"}; /* readers with inputs of their own */

	if (!strcmp(w->kind, "train") || !strcmp(w->kind, "optimizer") || !strcmp(w->kind, "rate") ||
	    !strcmp(w->kind, "precision") || !strcmp(w->kind, "average"))
		return "train";
	for (size_t i = 0; i < sizeof framed / sizeof *framed; i++)
		if (!strcmp(w->kind, "reader") && !strcmp(w->name, framed[i]))
			return framed[i];
	if (!strcmp(w->kind, "data") || !strcmp(w->kind, "reader"))
		return "data";
	return !strcmp(w->section, "items") || !strcmp(w->name, "return") ? "" : "body";
}

/* ---------------------------------------------------------------- text that tables make */

static void
put_spaced(Buf *b, const char *params)
{
	for (; *params; params++)
		if (*params == '=')
			buf_printf(b, " = ");
		else
			buf_put(b, params, 1);
}

static void
put_word(Buf *b, const Word *w)
{
	const char *p = w->params, *fence = word_fence(w);

	const char *tick = strcmp(w->kind, "sign") ? "" : "`";

	buf_printf(b, "\n#### %s%s%s\n\n`%s", tick, w->name, tick, w->name);
	if (*p || !strcmp(w->kind, "operator")) {
		buf_printf(b, "(");
		put_spaced(b, p);
		buf_printf(b, ")");
	}
	buf_printf(b, "`: %s.", w->doc);
	if (!strcmp(w->kind, "train") || !strcmp(w->kind, "data"))
		buf_printf(b, " %s%s%s", w->def ? "Default: `" : "It has no default", w->def ? w->def : "",
		           w->def ? "`." : ".");
	buf_printf(b, "\n");
	for (int i = 0; w->takes && *p; i++) {
		int n = word_param(p), name = (int)strcspn(p, "=,");

		buf_printf(b, "- `%.*s", name, p);
		if (name < n)
			buf_printf(b, " = %.*s", n - name - 1, p + name + 1);
		buf_printf(b, "`: %s\n", w->takes[i]);
		p += n + strspn(p + n, ", ");
	}
	if (*w->shape)
		buf_printf(b, "Shape: %s. Gradient: %s.%s%s%s\n", w->shape, w->gradient, *w->source ? " Source: " : "",
		           w->source, *w->source ? "." : "");
	buf_printf(b, "\n```net%s%s\n%s\n```\n", *fence ? " " : "", fence, w->example);
}

static bool
put_section(Buf *b, const char *id)
{
	bool any = false;

	for (int i = 0; i < nwords; i++)
		if (!strcmp(words[i].section, id)) {
			put_word(b, &words[i]);
			any = true;
		}
	buf_printf(b, "\n");
	return any;
}

/* In a table's cell. */
static void
put_cell(Buf *b, const char *text)
{
	for (; text && *text; text++) {
		if (*text == '|')
			buf_put(b, "\\", 1);
		buf_put(b, text, 1);
	}
}

/* Words of cmd.h that stand for several commands. */
static const struct { const char *word, *commands; } several[] = {
        {"ALL", "all"},
        {"COMMON", "build, run, check, dump, opt, info, explain"},
        {"SHAPING", "build, run, check, dump, opt, info, explain, tune, scale"},
};

/* `SHAPING | C_review` or letters of commands, as people say it. */
static void
put_commands(Buf *b, const char *text)
{
	static const char *const letters[] = {"t train", "e eval", "i infer", "b bench", "n info", "g generate"};
	int n = 0;

	if (isupper((unsigned char)*text))
		for (const char *p = text; *p; p += strcspn(p, "|"), p += strspn(p, "| ")) {
			int length = (int)strcspn(p, " |");
			const char *commands = NULL;

			for (size_t k = 0; k < sizeof several / sizeof *several; k++)
				if ((int)strlen(several[k].word) == length &&
				    !strncmp(p, several[k].word, (size_t)length))
					commands = several[k].commands;
			if (commands)
				buf_printf(b, "%s%s", n++ ? ", " : "", commands);
			else if (!strncmp(p, "C_", 2))
				buf_printf(b, "%s%.*s", n++ ? ", " : "", length - 2, p + 2);
		}
	else
		for (size_t k = 0; k < sizeof letters / sizeof *letters; k++)
			if (strchr(text, letters[k][0]))
				buf_printf(b, "%s%s", n++ ? ", " : "", letters[k] + 2);
}

static bool
put_options(Buf *b, const char *program)
{
	bool ours = !strcmp(program, "mantou"), good = true;
	size_t n = ours ? sizeof mantou_options / sizeof *mantou_options
	                : sizeof program_options / sizeof *program_options;

	buf_printf(b, "\n| option | of | meaning |\n|---|---|---|\n");
	for (size_t i = 0; i < n; i++) {
		const char *name = ours ? mantou_options[i].name : program_options[i].name;
		const char *argument = ours ? mantou_options[i].argument : program_options[i].argument;

		buf_printf(b, "| `%s%s%s", name[1] ? "--" : "-", name, argument && *argument ? " " : "");
		put_cell(b, argument);
		buf_printf(b, "` | ");
		size_t before = b->n;

		put_commands(b, ours ? mantou_options[i].commands : program_options[i].commands);
		good &= b->n > before; /* an option is of some command */
		buf_printf(b, " | ");
		put_cell(b, ours ? mantou_options[i].help : program_options[i].help);
		buf_printf(b, " |\n");
	}
	buf_printf(b, "\n");
	return good && (ours || !strcmp(program, "program"));
}

/* The document with what stands between its marks made anew. */
static void
remake(Check *c, const char *file, const char *text, Buf *out)
{
	static const struct { const char *mark; bool (*put)(Buf *b, const char *id); } made[] = {
		{"<!-- words: ", put_section}, {"<!-- options: ", put_options}};

	while (*text) {
		size_t line = strcspn(text, "\n") + 1;
		const char *end = strstr(text, "\n<!-- end -->");

		buf_put(out, text, line);
		for (int k = 0; k < 2; k++) {
			size_t n = strlen(made[k].mark);

			if (strncmp(text, made[k].mark, n))
				continue;
			char *id = arena_strndup(c->arena, text + n, strcspn(text + n, " "));

			result(c, made[k].put(out, id) && end, "%s: %s%s: no such thing, or no `<!-- end -->`", file,
			       made[k].mark, id);
			if (end)
				line = (size_t)(end - text) + 1;
		}
		text += line;
	}
}

/* ---------------------------------------------------------------- documents */

/* Every fenced block of the text: a frame is kept, others compile. */
static void
check_blocks(Check *c, const char *file, const char *text, bool frames)
{
	int line = 1;

	for (const char *p = text, *next; *p; p = next) {
		size_t n = strcspn(p, "\n");
		const char *end = strstr(p, "\n```");

		next = p + n + (p[n] != 0);
		line++;
		if (strncmp(p, "```", 3))
			continue;
		if (!end) {
			result(c, false, "%s:%d: the block has no end", file, line - 1);
			return;
		}
		char *tag = arena_strndup(c->arena, p + 3, n - 3),
		     *body = arena_strndup(c->arena, next, (size_t)(end + 1 - next));
		char *where = arena_printf(c->arena, "%s:%d", file, line - 1);

		for (const char *q = next; q < end + 1; q++)
			line += *q == '\n';
		next = end + 1 + strcspn(end + 1, "\n");
		if (!strncmp(tag, "net frame ", 10)) {
			if (frames)
				frame_add(c, tag + 10, body);
		} else if (!frames && (!strcmp(tag, "net") || !strncmp(tag, "net ", 4))) {
			compile_block(c, where, tag[3] ? tag + 4 : "", body);
		}
	}
}

static void
check_document(Check *c, const char *file, const char *text, bool bless)
{
	Buf made = {0};

	remake(c, file, text, &made);
	bool same = !strcmp(made.at, text);

	if (!same && bless)
		same = file_write(file, made.at, made.n);
	result(c, same, "%s is not what the tables make: sh tests/run.sh lang --bless, and read the difference", file);
	check_blocks(c, file, made.at, false);
	buf_free(&made);
}

/* ---------------------------------------------------------------- tables */

static void
check_words(Check *c, const char *reference)
{
	for (int i = 0; i < nwords; i++) {
		const Word *w = &words[i];
		const char *mark = arena_printf(c->arena, "<!-- words: %s -->", w->section);
		/* these stand in no table: the grammar takes them as names, or spells them */
		bool grammar = !strcmp(w->kind, "sign") || !strcmp(w->kind, "name") || !strcmp(w->name, "data") ||
			!strcmp(w->name, "train") || !strcmp(w->name, "generate");

		result(c, w->known || grammar, "words.def: %s `%s` is in no table of the compiler", w->kind, w->name);
		result(c, *w->doc && *w->example, "%s `%s` has no row in words.def, or no sentence or example", w->kind,
		       w->name);
		result(c, strstr(reference, mark) != NULL, "%s `%s`: its section %s is not in the reference", w->kind,
		       w->name, w->section);
		result(c, word_kind(w->kind) != NULL, "`%s`: there is no kind %s", w->name, w->kind);
	}
}

static bool
is_argument(const char *name)
{
	for (int i = 0; i < nwords; i++)
		for (const char *p = words[i].params; *p; p += word_param(p), p += strspn(p, ", "))
			if (strlen(name) == strcspn(p, "=,") && !memcmp(p, name, strlen(name)))
				return true;
	return false;
}

static bool
is_word(const char *name)
{
	for (int i = 0; i < nwords; i++)
		if (!strcmp(words[i].name, name))
			return true;
	return !strcmp(name, "|>") || !strcmp(name, "=") || !strcmp(name, ".shape");
}

static void
check_aliases(Check *c)
{
	for (int i = 0; i < naliases; i++) {
		const Alias *a = &aliases[i];
		bool operator = *a->example != 0;

		result(c, is_word(a->here) || (!operator&& is_argument(a->here)),
		       "aliases.def: %s: there is no `%s` here", a->name, a->here);
		result(c, strcmp(a->name, a->here) != 0, "aliases.def: %s is its own alias", a->name);
		if (!operator)
			continue;
		for (int k = 0; k < nbuiltins; k++)
			if (names_alike(a->name, builtins[k].name))
				result(c, false, "aliases.def: %s needs no row: it is the operator %s", a->name,
				       builtins[k].name);
		result(c, alias_written(a->name) == a, "aliases.def: %s has two examples", a->name);
		result(c, !builtin_not_yet(a->name), "aliases.def: %s is among what is not there yet", a->name);
		result(c, strstr(a->example, a->here) != NULL, "aliases.def: %s: its example has no `%s`", a->name,
		       a->here);
		compile_block(c, arena_printf(c->arena, "aliases.def: %s", a->name), "body",
		              arena_printf(c->arena, "%s\n", a->example));
	}
}

int
main(int argc, char **argv)
{
	Check c = {.arena = arena_new()};
	bool bless = argc > 1 && !strcmp(argv[1], "--bless");
	int first = 1 + bless;

	ir_init();
	if (argc < first + 2)
		die("usage: reference [--bless] FOLDER FILE.md...");
	builtins_init(c.arena);
	words_init(c.arena);
	for (int k = first + 1; k < argc; k++) {
		size_t bytes;
		char *path = realpath(argv[k], NULL), *text = path ? file_read(path, &bytes) : NULL;

		if (!text)
			die("cannot read %s", argv[k]);
		argv[k] = path;
		check_blocks(&c, argv[k], text, true);
		if (k == first + 1)
			check_words(&c, text);
		free(text);
	}
	if (chdir(argv[first]) != 0)
		die("%s is no folder", argv[first]);
	for (int k = first + 1; k < argc; k++) {
		size_t bytes;
		char *text = file_read(argv[k], &bytes);

		check_document(&c, argv[k], text, bless);
		free(text);
		free(argv[k]);
	}
	check_aliases(&c);
	printf("reference: %d passed, %d failed\n", c.passed, c.failed);
	return c.failed != 0;
}
