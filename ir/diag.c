/* diag.c: user errors with source line and caret, environment errors, bugs.
 *
 * In: locations whose columns count bytes from 1, as scanners find them. Out: text whose columns count characters, as a
 * reader sees them; the caret line repeats the tabs of the source line and leaves two columns for wide characters.
 * Long lines are cut around the caret; control bytes print as '?', so that a hostile file cannot steer a terminal.
 * After 20 errors one line says so, and then nothing more is printed (the count goes on). */
#include "diag.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ERRORS = 20, SHOWN_BEFORE = 100, SHOWN_BYTES = 160 };

_Thread_local const char *bug_context;

void
diags_init(Diags *d, Arena *a, FILE *out)
{
	*d = (Diags){.arena = a, .out = out};
	diags_add_source(d, "", NULL, 0);
}

uint16_t
diags_add_source(Diags *d, const char *name, const char *text, size_t bytes)
{
	Source s = {.name = intern(d->arena, name), .text = text, .bytes = bytes};

	if (d->source.n >= UINT16_MAX)
		return 0;
	vec_push(d->arena, &d->source, s);
	return (uint16_t)(d->source.n - 1);
}

/* The line of a location, without its end; NULL if the text is not at hand. */
static const char *
source_line(const Source *s, uint32_t line, size_t *bytes)
{
	const char *p = s->text, *end = p ? p + s->bytes : NULL, *stop;

	if (!p || line == 0)
		return NULL;
	for (uint32_t i = 1; i < line; i++) {
		p = memchr(p, '\n', (size_t)(end - p));
		if (!p)
			return NULL;
		p++;
	}
	stop = memchr(p, '\n', (size_t)(end - p));
	if (!stop)
		stop = end;
	if (stop > p && stop[-1] == '\r')
		stop--;
	*bytes = (size_t)(stop - p);
	return p;
}

static bool
continues(char c)
{
	return ((unsigned char)c & 0xc0) == 0x80;
}

/* Terminal columns of the character at p: 0 for combining marks, 2 for East Asian wide ones and images. */
static int
char_width(const char *p, size_t n)
{
	const unsigned char *u = (const unsigned char *)p;
	uint32_t c = u[0];

	if (c >= 0xe0 && c < 0xf0 && n >= 3)
		c = (c & 15) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u);
	else if (c >= 0xf0 && n >= 4)
		c = (c & 7) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
	else if (c >= 0xc0 && n >= 2)
		c = (c & 31) << 6 | (u[1] & 63u);
	if (c >= 0x300 && c < 0x370)
		return 0;
	return (c >= 0x1100 && c < 0x1160) || (c >= 0x2e80 && c < 0xa4d0) || (c >= 0xac00 && c < 0xd7a4) ||
	                       (c >= 0xf900 && c < 0xfb00) || (c >= 0xfe30 && c < 0xfe70) ||
	                       (c >= 0xff00 && c < 0xff61) || (c >= 0x1f300 && c < 0x1fb00) ||
	                       (c >= 0x20000 && c < 0x40000)
	               ? 2
	               : 1;
}

static void
print_excerpt(Diags *d, const char *line, size_t bytes, size_t at)
{
	size_t from = at > SHOWN_BEFORE ? at - SHOWN_BEFORE : 0, to;

	while (from > 0 && continues(line[from]))
		from--;
	to = from + SHOWN_BYTES < bytes ? from + SHOWN_BYTES : bytes;
	while (to < bytes && continues(line[to]))
		to++;
	fprintf(d->out, "    %s", from ? "..." : "");
	for (size_t i = from; i < to; i++)
		fputc((unsigned char)line[i] < 0x20 && line[i] != '\t' ? '?' : line[i] == 0x7f ? '?' : line[i], d->out);
	fprintf(d->out, "%s\n    %s", to < bytes ? "..." : "", from ? "   " : "");
	for (size_t i = from; i < at && i < to; i++) {
		if (line[i] == '\t')
			fputc('\t', d->out);
		else if (!continues(line[i]))
			fprintf(d->out, "%*s", char_width(line + i, to - i), "");
	}
	fputs(d->colour ? "\033[1;32m^\033[0m\n" : "^\n", d->out);
}

static void
say(Diags *d, Loc at, const char *kind, const char *colour, const char *fmt, va_list ap)
{
	const Source *s = at.file && at.file < d->source.n ? &d->source.at[at.file] : NULL;
	size_t bytes = 0, byte = at.col ? at.col - 1u : 0;
	const char *line = s ? source_line(s, at.line, &bytes) : NULL;
	unsigned column = at.col;

	if (!d->out)
		return;
	if (line) {
		if (byte > bytes)
			byte = bytes;
		column = 1;
		for (size_t i = 0; i < byte; i++)
			column += !continues(line[i]);
	}
	if (d->colour)
		fputs("\033[1m", d->out);
	if (s && at.line)
		fprintf(d->out, "%s:%u:%u: ", s->name, (unsigned)at.line, column);
	else if (s)
		fprintf(d->out, "%s: ", s->name);
	else
		fputs("mantou: ", d->out);
	fprintf(d->out, "%s%s: %s", d->colour ? colour : "", kind, d->colour ? "\033[0m" : "");
	vfprintf(d->out, fmt, ap);
	fputc('\n', d->out);
	if (line && at.col)
		print_excerpt(d, line, bytes, byte);
}

void
diag_error(Diags *d, Loc at, const char *fmt, ...)
{
	va_list ap;

	if (d->nerror++ >= MAX_ERRORS) {
		if (!d->full && d->out)
			fprintf(d->out, "mantou: more than %d errors; the others are not shown\n", MAX_ERRORS);
		d->full = true;
		return;
	}
	va_start(ap, fmt);
	say(d, at, "error", "\033[31m", fmt, ap);
	va_end(ap);
}

void
diag_warning(Diags *d, Loc at, const char *fmt, ...)
{
	va_list ap;

	d->nwarning++;
	if (d->full)
		return;
	va_start(ap, fmt);
	say(d, at, "warning", "\033[35m", fmt, ap);
	va_end(ap);
}

void
diag_note(Diags *d, Loc at, const char *fmt, ...)
{
	va_list ap;

	if (d->full)
		return;
	va_start(ap, fmt);
	say(d, at, "note", "\033[36m", fmt, ap);
	va_end(ap);
}

void
die(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("mantou: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

void
bug_at(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("mantou: this is a defect of mantou, not of the model: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n  found at %s:%d%s%s\n", file, line, bug_context ? ", in " : "",
	        bug_context ? bug_context : "");
	fputs("  please report it with the command line and the .net file; the same command with --print-after all "
	      "shows the last good text\n",
	      stderr);
	abort();
}
