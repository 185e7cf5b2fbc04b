/* parse_word.c: the smallest parts of IR text: words, strings, numbers, types, source locations.
 *
 * Every function takes what it reads or reports an error with its place and returns false. Nothing is read beyond the
 * text's end, whatever its bytes; numbers are checked against their range; a zero byte is an ordinary wrong
 * character. */
#include "parse.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBER_TEXT = 100 };

Loc
p_loc(const Parse *p)
{
	ptrdiff_t col = p->at - p->line_at + 1;

	return (Loc){.file = p->file, .line = p->line, .col = (uint16_t)(col > UINT16_MAX ? UINT16_MAX : col)};
}

bool
p_error(Parse *p, Loc at, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	diag_error(p->d, at, "%s", arena_vprintf(p->scratch, fmt, ap));
	va_end(ap);
	p->failed = true;
	return false;
}

const char *
p_hint(Parse *p, const char *name, const char *const *names, int n)
{
	const char *s = suggest(name, names, n);

	return s ? arena_printf(p->scratch, "; did you mean %s?", s) : "";
}

/* ---------------------------------------------------------------- characters and words */

char
p_peek(const Parse *p)
{
	return p->at < p->end ? *p->at : 0;
}

void
p_space(Parse *p)
{
	while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r'))
		p->at++;
	if (p_peek(p) == ';')
		while (p->at < p->end && *p->at != '\n')
			p->at++;
}

static void
next_line(Parse *p)
{
	p->at++;
	p->line++;
	p->line_at = p->at;
}

void
p_lines(Parse *p)
{
	for (p_space(p); p_peek(p) == '\n'; p_space(p))
		next_line(p);
}

void
p_skip_line(Parse *p)
{
	while (p->at < p->end && *p->at != '\n')
		p->at++;
	if (p->at < p->end)
		next_line(p);
}

bool
p_at_line_end(Parse *p)
{
	p_space(p);
	return p->at == p->end || *p->at == '\n';
}

bool
p_char(Parse *p, char c)
{
	p_space(p);
	if (p->at == p->end || *p->at != c)
		return false;
	p->at++;
	return true;
}

bool
p_need_char(Parse *p, char c, const char *where)
{
	return p_char(p, c) || p_error(p, p_loc(p), "'%c' expected %s", c, where);
}

static size_t
bare_length(const Parse *p)
{
	size_t n = 0;

	while (p->at + n < p->end && text_is_bare_char(p->at[n]))
		n++;
	return n;
}

bool
p_keyword(Parse *p, const char *word)
{
	size_t n;

	p_space(p);
	n = bare_length(p);
	if (n != strlen(word) || memcmp(p->at, word, n) != 0)
		return false;
	p->at += n;
	return true;
}

int
p_one_of(Parse *p, const char *const *words, int n)
{
	for (int i = 0; i < n; i++)
		if (p_keyword(p, words[i]))
			return i;
	return -1;
}

const char *
p_bare(Parse *p)
{
	const char *s;
	size_t n;

	p_space(p);
	n = bare_length(p);
	if (n == 0)
		return NULL;
	s = intern(p->m->arena, arena_strndup(p->scratch, p->at, n));
	p->at += n;
	return s;
}

static int
hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One character of a quoted string: itself, \" \\ or \xHH; -1 if malformed. */
static int
quoted_char(Parse *p)
{
	int c = (unsigned char)*p->at++, high, low;

	if (c != '\\')
		return c ? c : -1;
	if (p_peek(p) == '"' || p_peek(p) == '\\')
		return *p->at++;
	if (p->end - p->at < 3 || *p->at != 'x' || (high = hex_digit(p->at[1])) < 0 || (low = hex_digit(p->at[2])) < 0)
		return -1;
	p->at += 3;
	return high * 16 + low ? high * 16 + low : -1;
}

const char *
p_quoted(Parse *p)
{
	Loc start = p_loc(p);
	const char *stop = ++p->at;
	char *s;
	size_t n = 0;

	while (stop < p->end && *stop != '"' && *stop != '\n')
		stop += *stop == '\\' && stop + 1 < p->end && stop[1] != '\n' ? 2 : 1;
	if (stop >= p->end || *stop != '"') {
		p_error(p, start, "the string does not end");
		return NULL;
	}
	s = arena_alloc(p->scratch, (size_t)(stop - p->at) + 1);
	while (p->at < stop) {
		Loc here = p_loc(p);
		int c = quoted_char(p);

		if (c < 0) {
			p_error(p, here, "strings know \\\", \\\\ and \\xHH (not 00)");
			return NULL;
		}
		s[n++] = (char)c;
	}
	p->at = stop + 1;
	return intern(p->m->arena, s);
}

const char *
p_word(Parse *p, const char *what)
{
	const char *s;

	p_space(p);
	if (p_peek(p) == '"')
		return p_quoted(p);
	s = p_bare(p);
	if (!s)
		p_error(p, p_loc(p), "%s expected", what);
	return s;
}

/* ---------------------------------------------------------------- numbers */

bool
p_int(Parse *p, int64_t low, int64_t high, const char *what, int64_t *out)
{
	Loc start;
	bool minus, good = true, any = false;
	int64_t n = 0;

	p_space(p);
	start = p_loc(p);
	minus = p_peek(p) == '-';
	p->at += minus;
	for (; p_peek(p) >= '0' && p_peek(p) <= '9'; p->at++, any = true) {
		int64_t digit = *p->at - '0';

		good = good && mul_i64(n, 10, &n) && add_i64(n, minus ? -digit : digit, &n);
	}
	if (!any)
		return p_error(p, start, "%s: an integer is expected", what);
	if (!good || n < low || n > high)
		return p_error(p, start, "%s is out of its range, %lld to %lld", what, (long long)low, (long long)high);
	*out = n;
	return true;
}

bool
p_number(Parse *p, const char *what, bool *is_int, int64_t *i, double *f)
{
	char text[MAX_NUMBER_TEXT + 1], *end;
	Loc start;
	size_t n;

	p_space(p);
	start = p_loc(p);
	n = bare_length(p);
	if (n == 0 || n > MAX_NUMBER_TEXT)
		return p_error(p, start, "%s: a number is expected", what);
	memcpy(text, p->at, n);
	text[n] = 0;
	*i = 0;
	*is_int = strspn(text + (text[0] == '-'), "0123456789") == n - (text[0] == '-');
	if (*is_int) {
		if (!p_int(p, INT64_MIN, INT64_MAX, what, i))
			return false;
		*f = (double)*i;
		return true;
	}
	p->at += n;
	if (strcmp(text, "nan") == 0 || strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0) {
		*f = text[0] == 'n' ? (double)NAN : text[0] == '-' ? -(double)INFINITY : (double)INFINITY;
		return true;
	}
	*f = strtod(text, &end);
	if (*end || end == text || strspn(text, "0123456789.eE+-") != n)
		return p_error(p, start, "%s: \"%s\" is not a number", what, text);
	if (isinf(*f))
		return p_error(p, start, "%s: %s is too large for a double", what, text);
	return true;
}

/* ---------------------------------------------------------------- types */

static const char *
dtype_hint(Parse *p, const char *name)
{
	const char *names[DT_COUNT];

	for (int i = 1; i < DT_COUNT; i++)
		names[i - 1] = dtype_info[i].name;
	return p_hint(p, name, names, DT_COUNT - 1);
}

/* The first marked axis of a text without a module line says what the batch is. */
static bool
check_mark(Parse *p, Loc start, Axis a)
{
	int64_t scaled;

	if (p->m->batch == 0 && a.n * a.div % a.mul == 0)
		p->m->batch = a.n * a.div / a.mul;
	if (!mul_i64(p->m->batch, a.mul, &scaled) || scaled / a.div != a.n)
		return p_error(p, start, "the extent for a full batch is %lld, but a batch of %lld makes %lld",
		               (long long)a.n, (long long)p->m->batch, (long long)(scaled / a.div));
	return true;
}

/* 64 | N<=64 | 2N<=128 | N/2<=32 | 3N/2<=96 */
static bool
parse_axis(Parse *p, Axis *out)
{
	Loc start;
	int64_t n = 1, div = 1;

	p_space(p);
	start = p_loc(p);
	if (p_peek(p) != 'N' && !p_int(p, 1, MAX_ELEMENTS, "an extent", &n))
		return false;
	*out = axis(n);
	if (!p_char(p, 'N'))
		return true;
	if (n > INT32_MAX)
		return p_error(p, start, "the multiple of N is too large");
	if (p_char(p, '/') && !p_int(p, 1, INT32_MAX, "the divisor of N", &div))
		return false;
	*out = (Axis){.mul = (int32_t)n, .div = (int32_t)div};
	if (!p_char(p, '<') || !p_char(p, '='))
		return p_error(p, p_loc(p), "'<=' and the extent for a full batch expected after N");
	return p_int(p, 1, MAX_ELEMENTS, "an extent", &out->n) && check_mark(p, start, *out);
}

static bool
parse_perm(Parse *p, Type *t)
{
	Loc start = p_loc(p);
	unsigned seen = 0;

	for (int i = 0; i < t->rank; i++, p->at++) {
		int k = p_peek(p) - '0';

		if (k < 0 || k >= t->rank || seen & 1u << k)
			return p_error(p, start, "the layout must name each of the %d axes once", t->rank);
		seen |= 1u << k;
		t->perm[i] = (uint8_t)k;
	}
	if (p_peek(p) >= '0' && p_peek(p) <= '9')
		return p_error(p, start, "the layout names more than %d axes", t->rank);
	return true;
}

bool
p_type(Parse *p, Type *t)
{
	Axis axes[MAX_RANK];
	const char *name;
	Loc start;
	DType dtype;
	int rank = 0;

	p_space(p);
	start = p_loc(p);
	name = p_bare(p);
	dtype = name ? dtype_named(name, strlen(name)) : DT_none;
	if (dtype == DT_none)
		return p_error(p, start, name ? "there is no type \"%s\"%s" : "a type expected%s%s", name ? name : "",
		               name ? dtype_hint(p, name) : "");
	if (!p_need_char(p, '[', "after the element type"))
		return false;
	while (!p_char(p, ']')) {
		if (rank == MAX_RANK)
			return p_error(p, p_loc(p), "more than %d axes", MAX_RANK);
		if ((rank && !p_need_char(p, ',', "between extents")) || !parse_axis(p, &axes[rank++]))
			return false;
	}
	*t = type_of(dtype, rank, axes);
	if (p_peek(p) == '@') {
		p->at++;
		if (!parse_perm(p, t))
			return false;
	}
	if (type_elements(t) > MAX_ELEMENTS)
		return p_error(p, start, "the tensor has more than %lld elements", (long long)MAX_ELEMENTS);
	return true;
}

/* ---------------------------------------------------------------- source locations */

static uint16_t
source_named(Parse *p, const char *name)
{
	for (uint32_t i = 1; i < p->d->source.n; i++)
		if (strcmp(p->d->source.at[i].name, name) == 0)
			return (uint16_t)i;
	return diags_add_source(p->d, name, NULL, 0);
}

bool
p_source_loc(Parse *p, Loc *at)
{
	const char *name = NULL;
	int64_t line, col;

	if (p_peek(p) == '?')
		p->at++;
	else if (!(name = p_word(p, "a file name")))
		return false;
	if (!p_need_char(p, ':', "after the file name") || !p_int(p, 0, UINT32_MAX, "the line", &line) ||
	    !p_need_char(p, ':', "after the line") || !p_int(p, 0, UINT16_MAX, "the column", &col))
		return false;
	*at = (Loc){.file = name ? source_named(p, name) : 0, .line = (uint32_t)line, .col = (uint16_t)col};
	return true;
}
