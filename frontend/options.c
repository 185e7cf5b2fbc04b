/* options.c: reads a subcommand's arguments by the rows of options.def, and prints its help.
 *
 * In: argv after the subcommand.   Out: Options.   GNU conventions: --name=value and --name value, -oFILE and -o FILE,
 * options and operands in any order, -- ends the options. Refuses, with exit status 2: an unknown option (with the
 * nearest name), one that belongs to another subcommand, a missing or ill-formed value, too few or too many
 * operands. */
#include "cmd.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum OptKind { FLAG, TEXT, COUNT, LEVEL, SIZE, TIME, LIST, DEFINE, FEATURES } OptKind;
typedef struct Opt {
	const char *spelling;
	OptKind kind;
	const char *argument;
	unsigned commands;
	const char *help;
	size_t at;
} Opt;

static const Opt opts[] = {
#define OPT(field, spelling, kind, argument, commands, help) \
	{spelling, kind, argument, commands, help, offsetof(Options, field)},
#include "options.def"
#undef OPT
};
enum { NOPTS = sizeof opts / sizeof *opts };
#define COUNT_MOST ((int64_t)1 << 40) /* as many elements as a tensor may have: 1099511627776 */

static bool
is_short(const Opt *p)
{
	return !p->spelling[1];
}

int
usage_error(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "mantou %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nmantou %s --help shows the options\n", command);
	return EXIT_USAGE;
}

int
failure(const char *fmt, ...)
{
	va_list ap;

	fputs("mantou: error: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return EXIT_FAILED;
}

void
message(const char *fmt, ...)
{
	va_list ap;

	fputs("mantou: note: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

bool
colour_on(FILE *f)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(fileno(f)) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

/* ---------------------------------------------------------------- help, in 80 columns */
enum { HELP_COLUMNS = 80, HELP_LEFT = 24 };

void
put_wrapped(FILE *f, int indent, const char *text, const char *broken)
{
	int column = indent, room = HELP_COLUMNS - (int)strlen(broken);

	while (*text) {
		int word = (int)strcspn(text, " ");

		if (column > indent && column + 1 + word > room) {
			fprintf(f, "%s\n%*s", broken, indent, "");
			column = indent;
		}
		column += fprintf(f, "%s%.*s", column > indent ? " " : "", word, text);
		text += word;
		text += strspn(text, " ");
	}
	fputc('\n', f);
}

void
put_help_row(FILE *f, int left, const char *name, const char *text)
{
	int n = fprintf(f, "  %s", name);

	if (n + 2 > left)
		n = fprintf(f, "\n") - 1;
	fprintf(f, "%*s", left - n, "");
	put_wrapped(f, left, text, "");
}

void
options_help(FILE *f, const Command *c)
{
	char usage[128];

	snprintf(usage, sizeof usage, "usage: mantou %s [OPTIONS] %s", c->name, c->usage);
	put_wrapped(f, 0, usage, "");
	fputc('\n', f);
	put_wrapped(f, 0, c->doc, "");
	fputs("\noptions:\n", f);
	for (int i = 0; i < NOPTS; i++) {
		const Opt *p = &opts[i];
		char left[64];

		if (!(p->commands & c->bit))
			continue;
		snprintf(left, sizeof left, "%s%s%s%s", is_short(p) ? "-" : "--", p->spelling,
		         p->kind == FLAG ? "" : " ", p->argument);
		put_help_row(f, HELP_LEFT, left, p->help);
	}
	put_help_row(f, HELP_LEFT, "--",
	             c->takes_rest ? "ends the options; what follows goes to the executable" : "ends the options");
	fputs("\nexample:\n  ", f);
	put_wrapped(f, 2, c->example, " \\");
}

/* "2GiB", "512 MiB", "1000000": bytes. */
static bool
read_size(const char *text, int64_t *bytes)
{
	static const struct {
		const char *name;
		int shift;
	} unit[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"", 0}};
	char *end;

	errno = 0;
	double x = strtod(text, &end);

	if (!(isdigit((unsigned char)*text) || *text == '.') || memchr(text, 'x', (size_t)(end - text))
	    || memchr(text, 'X', (size_t)(end - text)))
		return false;                        /* no space, no sign, no hexadecimal digits */
	if (end == text || errno || !(x > 0) || x > 1e15)
		return false;
	while (*end == ' ')
		end++;
	for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
		if (strcmp(end, unit[i].name))
			continue;
		double n = x * (double)(1ull << unit[i].shift);

		if (n > 9e18)
			return false;
		*bytes = (int64_t)n;
		return *bytes > 0;
	}
	return false;
}

static bool
read_count(const char *text, int64_t *n)
{
	char *end;

	errno = 0;
	*n = strtoll(text, &end, 10);
	return isdigit((unsigned char)*text) && !*end && !errno && *n > 0 && *n <= COUNT_MOST;
}

/* "90s", "10m", "1h", 0.5s at least: nanoseconds. */
static bool
read_time(const char *text, int64_t *ns)
{
	char *end;
	double x = strtod(text, &end), unit = !strcmp(end, "s")   ? 1
	                                      : !strcmp(end, "m") ? 60
	                                      : !strcmp(end, "h") ? 3600
	                                                          : 0;

	if (!isdigit((unsigned char)*text) || !(x * unit >= 0.5) || x * unit > 1e6)
		return false;
	*ns = (int64_t)(x * unit * 1e9);
	return true;
}

static bool
read_list(Arena *a, const char *text, TextList *list)
{
	for (const char *p = text;; p++) {
		size_t n = strcspn(p, ",");

		if (!n)
			return false;
		list->at = arena_grow(a, list->at, sizeof *list->at * (size_t)list->n,
		                      sizeof *list->at * (size_t)(list->n + 1));
		list->at[list->n++] = arena_strndup(a, p, n);
		p += n;
		if (!*p)
			return true;
	}
}

static bool
read_define(Arena *a, const char *text, DefineList *list)
{
	const char *eq = strchr(text, '=');

	if (!eq || eq == text || !eq[1])
		return false;
	list->at =
	        arena_grow(a, list->at, sizeof *list->at * (size_t)list->n, sizeof *list->at * (size_t)(list->n + 1));
	list->at[list->n++] = (Define){.name = arena_strndup(a, text, (size_t)(eq - text)), .value = eq + 1};
	return true;
}

/* Puts a value into its field. */
static bool
set_value(Arena *a, const Opt *p, const char *text, Options *o)
{
	void *field = (char *)o + p->at;

	switch (p->kind) {
	case FLAG: *(bool *)field = true; return true;
	case TEXT: *(const char **)field = text; return *text != 0;
	case FEATURES: *(const char **)field = text; return true;
	case COUNT: return read_count(text, field);
	case SIZE: return read_size(text, field);
	case TIME: return read_time(text, field);
	case LIST: return read_list(a, text, field);
	case DEFINE: return read_define(a, text, field);
	case LEVEL:
		*(int64_t *)field = text[0] - '0';
		return text[0] >= '0' && text[0] <= '2' && !text[1];
	}
	return false;
}

static const Opt *
find_opt(const char *name, size_t n)
{
	for (int i = 0; i < NOPTS; i++)
		if (strlen(opts[i].spelling) == n && !memcmp(opts[i].spelling, name, n))
			return &opts[i];
	return NULL;
}

static int
unknown_option(const Command *c, const char *shown, const char *name)
{
	const char *names[NOPTS];
	int n = 0;

	for (int i = 0; i < NOPTS; i++)
		if ((opts[i].commands & c->bit) && !is_short(&opts[i]))
			names[n++] = opts[i].spelling;
	const char *near = suggest(name, names, n);

	if (near)
		return usage_error(c->name, "there is no option '%s'; did you mean '--%s'?", shown, near);
	return usage_error(c->name, "there is no option '%s'", shown);
}

/* Reads the option argv[*i], stepping over a value of its own. -1 = read. */
static int
read_option(Arena *a, const Command *c, int argc, char **argv, int *i, Options *o)
{
	const char *word = argv[*i];
	bool is_long = word[1] == '-';
	const char *name = word + 1 + is_long;
	size_t n = is_long ? strcspn(name, "=") : 1;
	const char *value = is_long ? (name[n] ? name + n + 1 : NULL) : (name[1] ? name + 1 : NULL);
	const char *text = arena_strndup(a, name, n);
	const char *shown = arena_printf(a, "%s%s", is_long ? "--" : "-", text);

	if (!is_long && *text == 'h' && !value) {
		o->help = true;
		return -1;
	}
	const Opt *p = find_opt(name, n);

	if (!p || is_short(p) == is_long)
		return unknown_option(c, shown, text);
	if (!(p->commands & c->bit)) {
		for (int k = 0; k < ncommands; k++)
			if (p->commands & commands[k].bit)
				return usage_error(c->name, "'%s' is an option of '%s', not of '%s'", shown,
				                   commands[k].name, c->name);
	}
	if (p->kind == FLAG) {
		if (value)
			return usage_error(c->name, "'%s' takes no value", shown);
		value = "";
	} else if (!value && p->kind == FEATURES && c->bit == C_info) {
		const char *next = *i + 1 < argc ? argv[*i + 1] : "-"; /* a file's name has a dot or a slash */
		bool given = strchr(next, '=') || (*next != '-' && !strpbrk(next, "./"));

		value = given ? argv[++*i] : "";
	} else if (!value) {
		if (*i + 1 >= argc || !strcmp(argv[*i + 1], "--"))
			return usage_error(c->name, "'%s' needs a value: %s", shown, p->argument);
		value = argv[++*i];
	}
	if (!set_value(a, p, value, o))
		return usage_error(c->name, "'%s' is no value for '%s': needs %s", value, shown,
		                   p->kind == COUNT ? "a number from 1 to 1099511627776"
		                   : p->kind == SIZE ? "a size such as 512MiB"
		                   : p->kind == TIME ? "a time such as 90s, 10m or 1h" : p->argument);
	return -1;
}

int
options_read(Arena *a, const Command *c, int argc, char **argv, Options *o)
{
	bool ended = false;

	*o = (Options){.level = -1};
	for (int i = 0; i < argc; i++) {
		/* `run -- -odd.net -- ARGS`: of a second one only the executable's arguments can come behind */
		if (!strcmp(argv[i], "--") && (!ended || (c->takes_rest && o->noperand))) {
			ended = true;
			if (!c->takes_rest || !o->noperand)
				continue;
			o->rest = argv + i + 1;
			o->nrest = argc - i - 1;
			break;
		}
		if (!ended && argv[i][0] == '-' && argv[i][1]) {
			int status = read_option(a, c, argc, argv, &i, o);

			if (status >= 0)
				return status;
			continue;
		}
		if (o->noperand == c->most)
			return c->takes_rest ? usage_error(c->name, "'%s': arguments of the executable stand after --",
			                                   argv[i])
			                     : usage_error(c->name, "'%s' is one argument too many: mantou %s %s",
			                                   argv[i], c->name, c->usage);
		o->operand[o->noperand++] = argv[i];
	}
	if (o->help) {
		options_help(stdout, c);
		return EXIT_GOOD;
	}
	if (o->noperand < c->least)
		return usage_error(c->name, "a file is missing: mantou %s %s", c->name, c->usage);
	return -1;
}
