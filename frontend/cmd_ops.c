/* cmd_ops.c: `ops`: every name of the language, from words.def and the tables that the compiler works by.
 *
 * Without a name a line or two each, by section; with one all that is known: arguments with defaults and what they
 * may be, shapes, gradient, an example, source. A name may be several things (zeros: an operator and an initial
 * value): all are printed. Of another library's name it says what that is here. */
#include "cmd.h"

#include <ctype.h>
#include <string.h>
#include "words.h"

static void
put_field(Buf *b, const char *name, const char *text)
{
	if (text && *text)
		buf_printf(b, "  %-9s %s\n", name, text);
}

/* "example" and as many lines as it has. */
static void
put_example(Buf *b, const char *text)
{
	const char *name = "example";

	for (; *text; name = "") {
		int n = (int)strcspn(text, "\n");

		buf_printf(b, "  %-9s %.*s\n", name, n, text);
		text += n + (text[n] != 0);
	}
}

/* name(params), without the parentheses where nothing is called. */
static void
put_head(Buf *b, const Word *w)
{
	buf_printf(b, "%s", w->name);
	if (*w->params || !strcmp(w->kind, "operator"))
		buf_printf(b, "(%s)", w->params);
}

static void
put_arguments(Buf *b, const Word *w)
{
	const char *p = w->params;

	for (int i = 0; w->takes && *p; i++) {
		int n = word_param(p);

		buf_printf(b, "  %-20.*s %s\n", n, p, w->takes[i]);
		p += n + strspn(p + n, ", ");
	}
}

static bool
is_setting(const Word *w)
{
	return !strcmp(w->kind, "train") || !strcmp(w->kind, "data");
}

static void
put_word(Buf *b, const Word *w)
{
	put_head(b, w);
	buf_printf(b, "\n");
	put_field(b, "kind", word_kind(w->kind));
	put_field(b, "meaning", w->doc);
	if (is_setting(w))
		put_field(b, "default", w->def ? w->def : "none: it must be set");
	put_arguments(b, w);
	put_field(b, "shape", w->shape);
	put_field(b, "gradient", w->gradient);
	put_example(b, w->example);
	put_field(b, "source", w->source);
}

/* An object, without its closing brace: what else has the name may follow. */
static void
put_json(Buf *b, const Word *w)
{
	static const char *const names[] = {"name", "kind", "section", "arguments", "doc",
	                                    "shape", "gradient", "example", "source", "default"};
	const char *values[] = {w->name, w->kind, w->title, w->params, w->doc,
	                        w->shape, w->gradient, w->example, w->source, w->def};
	int n = is_setting(w) && w->def ? 10 : 9;

	for (int i = 0; i < n; i++) {
		buf_printf(b, "%s\"%s\": ", i ? ", " : "{", names[i]);
		buf_json(b, values[i] ? values[i] : "");
	}
}

/* Whether text holds part, without case and underscores. */
static bool
holds(const char *text, const char *part)
{
	const char *a, *b;

	for (; *text; text++) {
		for (a = text, b = part;; a++, b++) {
			a += strspn(a, "_");
			b += strspn(b, "_");
			if (!*b)
				return true;
			if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
				break;
		}
	}
	return false;
}

static bool
among(const char *const *list, int n, const char *name)
{
	while (n-- > 0)
		if (!strcmp(list[n], name))
			return true;
	return false;
}

static bool
is_word(const char *name)
{
	for (int i = 0; i < nwords; i++)
		if (isalpha((unsigned char)*name) && !strcmp(words[i].name, name))
			return true;
	return false;
}

/* Whether w takes an argument of this name, or of what another library calls so. */
static bool
takes_argument(const Word *w, const char *name)
{
	for (const char *p = w->params; *p;) {
		int n = word_param(p), length = (int)strcspn(p, "=, ");
		char param[64] = "";

		snprintf(param, sizeof param, "%.*s", length, p);
		if (names_alike(name, param))
			return true;
		for (int i = 0; i < naliases; i++)
			if (!*aliases[i].example && names_alike(name, aliases[i].name)
			    && !strcmp(aliases[i].here, param))
				return true;
		p += n + strspn(p + n, ", ");
	}
	return false;
}

/* "a, b, c", of the names that take this argument. */
static const char *
takers(Arena *a, const char *name)
{
	const char *text = NULL, *last = "";

	for (int i = 0; i < nwords; last = words[i++].name)
		if (strcmp(last, words[i].name) && takes_argument(&words[i], name))
			text = text ? arena_printf(a, "%s, %s", text, words[i].name) : words[i].name;
	return text;
}

/* Names that hold part, and what others are called here that hold it; or, in_sentences, those whose sentence does. As
 * "a, b, c"; NULL where there are none. */
static const char *
related(Arena *a, const char *part, bool in_sentences)
{
	enum { MOST = 8 };
	const char *found[MOST], *text;
	int n = 0;

	if (strlen(part) < 3)
		return NULL;
	for (int i = 0; i < nwords && n < MOST; i++)
		if (holds(in_sentences ? words[i].doc : words[i].name, part) && !among(found, n, words[i].name))
			found[n++] = words[i].name;
	for (int i = 0; !in_sentences && i < naliases && n < MOST; i++)
		if (holds(aliases[i].name, part) && is_word(aliases[i].here) && !among(found, n, aliases[i].here))
			found[n++] = aliases[i].here;
	text = n ? found[0] : NULL;
	for (int i = 1; i < n; i++)
		text = arena_printf(a, "%s, %s", text, found[i]);
	return text;
}

/* Whether name is near but for case and underscores, or what another library calls it. */
static bool
called_so(const char *near, const char *name)
{
	for (int i = 0; i < naliases; i++)
		if (names_alike(name, aliases[i].name) && !strcmp(aliases[i].here, near))
			return true;
	return names_alike(near, name);
}

static int
no_word(Arena *a, const char *name, const Alias *alias)
{
	const char *why = builtin_not_yet(name), *near, *look, *names[1024];
	int n = 0;

	if (alias)
		return failure("there is no '%s'; it is '%s' here: %s", name, alias->here, alias_line(a, alias));
	if (why)
		return failure("'%s' is not there yet: %s", name, why);
	for (int i = 0; i < nwords && n < 1024; i++)
		names[n++] = words[i].name;
	near = suggest_known(name, names, n);
	if (!(near && called_so(near, name)) && advice("", name))
		return failure("there is no '%s': %s", name, advice("", name));
	if (!(near && called_so(near, name)) && (look = takers(a, name)))
		return failure("'%s' is an argument of: %s", name, look);
	look = near && (called_so(near, name) || holds(near, name)) ? NULL : related(a, name, false);
	if (!near && !look)
		look = related(a, name, true);
	if (look)
		return failure("there is no '%s'; look at: %s", name, look);
	return near ? failure("there is no '%s'; did you mean '%s'?", name, near)
	            : failure("there is no '%s'; mantou ops lists all names", name);
}

static int
one_name(Arena *a, const Options *o, const char *name, Buf *b)
{
	const char *point = strrchr(name, '.'); /* nn.Linear, torch.cat */
	int found = 0;

	name = point && point[1] ? point + 1 : name;
	const Alias *alias = alias_written(name);

	for (int i = 0; i < nwords; i++) {
		if (strcmp(words[i].name, name))
			continue;
		if (!o->json) {
			put_word(b, &words[i]);
		} else {
			buf_printf(b, "%s", found ? ", \"also\": " : "");
			put_json(b, &words[i]);
		}
		found++;
	}
	if (!found)
		return no_word(a, name, alias);
	for (int k = 0; o->json && k < found; k++)
		buf_printf(b, k == found - 1 ? "}\n" : "}");
	if (!o->json && alias)
		buf_printf(b, "Other libraries call something else %s; it is %s here: %s\n", name, alias->here,
		           alias_line(a, alias));
	return EXIT_GOOD;
}

static void
all_names(const Options *o, Buf *b)
{
	const char *section = "";

	for (int i = 0; i < nwords; i++) {
		const Word *w = &words[i];

		if (o->json) {
			buf_printf(b, "%s", i ? ",\n " : "[");
			put_json(b, w);
			buf_printf(b, "}");
			continue;
		}
		if (strcmp(section, w->section))
			buf_printf(b, "%s---- %s\n", i ? "\n" : "", w->title);
		section = w->section;
		put_head(b, w);
		buf_printf(b, "\n    %s\n", w->doc);
	}
	if (o->json)
		buf_printf(b, "]\n");
}

int
cmd_ops(Arena *a, const Options *o)
{
	Buf b = {0};
	int status = EXIT_GOOD;

	builtins_init(a);
	words_init(a);
	if (o->noperand)
		status = one_name(a, o, o->operand[0], &b);
	else
		all_names(o, &b);
	if (b.n)
		fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return status;
}
