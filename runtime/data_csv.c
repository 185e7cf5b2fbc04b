/* data_csv.c: text tables (RFC 4180, and what spreadsheets and NumPy make of it): csv(train, test, header, columns,
 * delimiter).
 *
 * In: files of rows of numbers; fields may stand in quotes, with "" for one; lines end with LF or CRLF; empty lines
 * count for nothing. columns names the columns of each input by the heading or by number from 0; without it the columns
 * fill the inputs in the model's order.   Out: a row an example, parsed when its batch is made: only where rows begin
 * is held, three bytes a row. Every row is parsed once before the first step. Refuses, by line and column: what is no
 * number, an empty field, another number of fields, ids outside of the model's limit, numbers that their type cannot
 * hold. Numbers of up to 19 digits whose power of ten is exact are made of integer and power (Clinger 1990, the fast
 * path); strtod does the others. Both round as strtod does. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CSV_EVERY = 8, CSV_FAR = UINT16_MAX, CSV_COLUMNS = 1 << 20, CSV_CHECK = 64 << 20 };

/* Where a column's field goes: element `at` of input k; k -1: nowhere. */
typedef struct CsvColumn { int k; int64_t at; char *name; } CsvColumn;
typedef struct CsvFile {
	const RtFile *f;
	CsvColumn *column; int ncolumn;
	int64_t first, rows;         /* numbers of its examples in the set */
	uint64_t *offset; int64_t room; /* of rows 0, 8, ... */
	uint16_t *behind;            /* of every row: bytes behind that one, CSV_FAR where more */
	bool lines;                  /* a row may have several lines */
} CsvFile;
typedef struct Csv {
	const RtProgram *p;
	const Json *columns;
	char delimiter;
	bool header;
	CsvFile *file;
	int nfile;
} Csv;

/* A place in the text. */
typedef struct Text { const char *at, *end; char delimiter; int64_t line; bool lines; /* in quotes */ } Text;

/* ---- fields */

static bool
csv_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* strtod of [at, end), which has no 0 behind it. */
static bool
csv_slow(const char *at, const char *end, double *x)
{
	char text[128], *stop;
	size_t n = (size_t)(end - at);

	if (n == 0 || n >= sizeof text)
		return false;
	memcpy(text, at, n);
	text[n] = 0;
	*x = strtod(text, &stop);
	return *stop == 0 && !memchr(text, 'x', n) && !memchr(text, 'X', n); /* no hexadecimal numbers */
}

static bool
csv_number(const char *at, const char *end, double *x)
{
	static const double power[] = {1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
	                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
	const char *c = at;
	bool minus = c < end && *c == '-', any = false;
	uint64_t m = 0;
	int digits = 0, scale = 0, exponent = 0;

	c += c < end && (*c == '-' || *c == '+');
	for (; c < end && csv_digit(*c); c++, any = true, digits += m != 0)
		m = m * 10 + (uint64_t)(*c - '0');
	if (c < end && *c == '.')
		for (c++; c < end && csv_digit(*c); c++, any = true, scale++, digits += m != 0)
			m = m * 10 + (uint64_t)(*c - '0');
	if (any && c < end && (*c == 'e' || *c == 'E')) {
		const char *d = c + 1;
		bool down = d < end && *d == '-';

		d += d < end && (*d == '-' || *d == '+');
		if (d == end || end - d > 4)
			return csv_slow(at, end, x);
		for (; d < end && csv_digit(*d); d++)
			exponent = exponent * 10 + (*d - '0');
		exponent = down ? -exponent : exponent;
		c = d;
	}
	exponent -= scale;
	if (!any || c != end || digits > 19 || m > (uint64_t)1 << 53 || exponent < -22 || exponent > 22)
		return csv_slow(at, end, x);
	*x = exponent < 0 ? (double)m / power[-exponent] : (double)m * power[exponent];
	*x = minus ? -*x : *x;
	return true;
}

/* The next field where it is a plain number of few digits, as most are; where it is not false, and nothing is taken. */
static bool
csv_plain(Text *t, double *x)
{
	static const double power[] = {1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
	                               1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
	const char *c = t->at, *first, *point = NULL;
	bool minus = c < t->end && *c == '-';
	uint64_t m = 0;

	first = c += minus;
	for (; c < t->end && csv_digit(*c); c++)
		m = m * 10 + (uint64_t)(*c - '0');
	if (c < t->end && *c == '.')
		for (point = ++c; c < t->end && csv_digit(*c); c++)
			m = m * 10 + (uint64_t)(*c - '0');
	/* 15 digits and a power of ten up to 15: both exact, one rounding */
	if (c - first == (point != NULL) || c - first > 15)
		return false;
	if (c < t->end && *c != t->delimiter && *c != '\n')
		return false;
	*x = point ? (double)m / power[c - point] : (double)m;
	*x = minus ? -*x : *x;
	t->at = c;
	return true;
}

/* The next field without blanks and quotes around it: [*from, *to). False where a quote is not closed. What ends it,
 * the delimiter or the line's end, stays. */
static bool
csv_field(Text *t, const char **from, const char **to)
{
	const char *c = t->at;

	while (c < t->end && *c == ' ')
		c++;
	if (c < t->end && *c == '"') {
		*from = ++c;
		for (; c < t->end && !(*c == '"' && !(c + 1 < t->end && c[1] == '"')); c++) {
			t->line += *c == '\n';
			t->lines |= *c == '\n';
			c += *c == '"';
		}
		if (c == t->end)
			return false;
		*to = c++;
		while (c < t->end && *c != t->delimiter && *c != '\n')
			if (*c++ > ' ')
				return false;
	} else {
		*from = c;
		while (c < t->end && *c != t->delimiter && *c != '\n')
			c++;
		*to = c;
	}
	while (*to > *from && ((*to)[-1] == ' ' || (*to)[-1] == '\r' || ((*to)[-1] == '\t' && t->delimiter != '\t')))
		(*to)--;
	t->at = c;
	return true;
}

/* Over empty lines; false at the end of the text. */
static bool
csv_begin(Text *t)
{
	for (; t->at < t->end; t->at++, t->line++) {
		const char *c = t->at;

		while (c < t->end && (*c == ' ' || *c == '\r'))
			c++;
		if (c < t->end && *c != '\n')
			return true;
		t->at = c;
		if (c == t->end)
			return false;
	}
	return false;
}

static bool
csv_fail(const CsvFile *f, int64_t line, int column, const char *from, const char *to, const char *what, RtError *e)
{
	const char *name = column < f->ncolumn && f->column[column].name ? f->column[column].name : "";

	rt_fail(e, "column %d%s%.64s%s: \"%.*s\" %s%s", column, *name ? " (" : "", name, *name ? ")" : "",
	        (int)(to - from < 40 ? to - from : 40), from, what,
	        line == 1 ? ": a first line of headings is skipped with header = true" : "");
	return line > 0 ? rt_context(e, "%s:%lld", f->f->path, (long long)line)
	                : rt_context(e, "%s: changed while it was in use", f->f->path);
}

/* A number into its place; NULL or what is wrong with it. */
static const char *
csv_put(const RtInput *in, double x, uint8_t *out)
{
	const RtDTypeInfo *t = &rt_dtype[in->t.dtype];

	if (in->limit > 0 && x != floor(x))
		return "is no whole number, which a label or id is";
	if (in->limit > 0 && !(x >= 0 && x < (double)in->limit) && !(in->has_ignore && x == (double)in->ignore))
		return "is no id or label that the model has";
	if (t->kind != 'f' && in->t.dtype != RT_BOOL && x != floor(x))
		return "is no whole number, and the input's type holds such alone";
	if (t->kind == 'i' && (x < t->low || x > t->high))
		return "does not fit in the input's type";
	if (in->t.dtype == RT_F32) {
		float f = (float)x;

		memcpy(out, &f, sizeof f);
	} else {
		rt_dtype_write(in->t.dtype, out, x);
	}
	return NULL;
}

/* One row; out[k] may be NULL. line 0: the line is not known. */
static bool
csv_row(const Csv *v, const CsvFile *f, Text *t, uint8_t *const *out, RtError *e)
{
	int64_t line = t->line;

	for (int c = 0;; c++) {
		const char *from, *to, *bad = NULL;
		double x = 0;

		from = t->at;
		bool wanted = c < f->ncolumn && f->column[c].k >= 0, plain = wanted && csv_plain(t, &x);
		to = t->at;
		if (!plain && !csv_field(t, &from, &to))
			return csv_fail(f, line, c, t->at, t->end,
			                "begins a quote that is not closed, or has text behind it", e);
		if (wanted) {
			const RtInput *in = &v->p->input[f->column[c].k];
			uint8_t room[8], *at = out[f->column[c].k];

			at = at ? at + f->column[c].at * rt_dtype[in->t.dtype].bytes : room;
			bad = !plain && from == to                  ? "is empty: a number is needed"
			      : !plain && !csv_number(from, to, &x) ? "is no number"
			                                            : csv_put(in, x, at);
			if (bad)
				return csv_fail(f, line, c, from, to, bad, e);
		}
		if (t->at < t->end && *t->at == t->delimiter) {
			t->at++;
			continue;
		}
		t->line += t->at < t->end;
		t->at += t->at < t->end;
		if (c + 1 == f->ncolumn)
			return true;
		rt_fail(e, "%d fields, the first row has %d", c + 1, f->ncolumn);
		return line > 0 ? rt_context(e, "%s:%lld", f->f->path, (long long)line)
		                : rt_context(e, "%s: changed while it was in use", f->f->path);
	}
}

/* Over the rest of a row. */
static void
csv_skip(Text *t, bool lines)
{
	if (!lines) {
		const char *end = memchr(t->at, '\n', (size_t)(t->end - t->at));

		t->at = end ? end + 1 : t->end;
		return;
	}
	for (const char *from, *to; csv_field(t, &from, &to) && t->at < t->end && *t->at == t->delimiter;)
		t->at++;
	t->at += t->at < t->end;
}

static bool
csv_make(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e)
{
	const Csv *v = d->maker;
	const CsvFile *f = v->file;
	Text t;
	int64_t row;

	(void)s;
	(void)epoch;
	while (example >= f->first + f->rows)
		f++;
	row = example - f->first;
	bool far = f->behind[row] == CSV_FAR;
	t = (Text){.at = (const char *)f->f->at + f->offset[row / CSV_EVERY] + (far ? 0 : f->behind[row]),
	           .end = (const char *)f->f->at + f->f->n,
	           .delimiter = v->delimiter,
	           .line = INT64_MIN / 2};
	for (int64_t skip = far ? row % CSV_EVERY : 0; skip >= 0; skip--) {
		if (!csv_begin(&t))
			return rt_fail(e, "%s: changed while it was in use", f->f->path);
		if (skip == 0)
			return csv_row(v, f, &t, out, e);
		csv_skip(&t, f->lines);
	}
	return false;
}

/* ---- columns */

/* The column that an item of `columns` names, -1 after rt_fail. */
static int
csv_find(const Csv *v, const CsvFile *f, const Json *item, RtError *e)
{
	const char *names[64], *near;
	int n = 0;

	if (item->kind != JSON_STRING) {
		if (item->i < f->ncolumn)
			return (int)item->i;
		rt_fail(e, "%s: there is no column %lld, the first row has %d", f->f->path, (long long)item->i,
		        f->ncolumn);
		return -1;
	}
	for (int c = 0; c < f->ncolumn; c++) {
		if (v->header && strcmp(f->column[c].name, item->s) == 0)
			return c;
		if (v->header && n < RT_COUNT(names))
			names[n++] = f->column[c].name;
	}
	near = rt_suggest(item->s, names, n);
	rt_fail(e, "%s: there is no column \"%s\"%s%s%s%s", f->f->path, item->s, near ? "; did you mean \"" : "",
	        near ? near : "", near ? "\"?" : "",
	        v->header ? "" : ": with header = false columns are given by number, from 0");
	return -1;
}

static bool
csv_named(const Csv *v, CsvFile *f, RtError *e)
{
	for (int k = 0; k < v->p->ninput; k++) {
		const Json *list = rt_json_get(v->columns, v->p->input[k].t.name);
		int64_t at = 0;

		for (const Json *x = list ? list->child : NULL; x; x = x->next, at++) {
			int c = csv_find(v, f, x, e);

			if (c < 0)
				return false;
			if (f->column[c].k >= 0)
				return rt_fail(e, "%s: column %d feeds two inputs, %s and %s", f->f->path, c,
				               v->p->input[f->column[c].k].t.name, v->p->input[k].t.name);
			f->column[c].k = k;
			f->column[c].at = at;
		}
		if (at != v->p->input[k].example)
			return rt_fail(e, "columns names %lld columns for input %s, which has %lld elements an example",
			               (long long)at, v->p->input[k].t.name, (long long)v->p->input[k].example);
	}
	return true;
}

/* Without `columns`: all of them, in order. */
static bool
csv_in_order(const Csv *v, CsvFile *f, RtError *e)
{
	int64_t need = 0, c = 0;

	for (int k = 0; k < v->p->ninput; k++)
		need += v->p->input[k].example;
	if (need != f->ncolumn)
		return rt_fail(e,
		               "%s: has %d column%s, the inputs hold %lld elements an example: %s",
		               f->f->path, f->ncolumn, f->ncolumn == 1 ? "" : "s", (long long)need,
		               f->ncolumn == 1 ? "delimiter = \";\" or another parts columns"
		                               : "columns = {...} says which feed which");
	for (int k = 0; k < v->p->ninput; k++)
		for (int64_t at = 0; at < v->p->input[k].example; at++, c++)
			f->column[c].k = k, f->column[c].at = at;
	return true;
}

/* The first row: how many columns there are, and their names. */
static bool
csv_head(const Csv *v, CsvFile *f, Text *t, RtError *e)
{
	Text back;
	int room = 0;

	if (t->end - t->at >= 6 && memcmp(t->at, "\x93NUMPY", 6) == 0)
		return rt_fail(e, "%s: is a .npy file: reader = npy(...) reads it", f->f->path);
	if (t->end - t->at >= 3 && memcmp(t->at, "\xef\xbb\xbf", 3) == 0)
		t->at += 3;                      /* the mark that some programs put before UTF-8 */
	if (!csv_begin(t))
		return rt_fail(e, "%s: is empty", f->f->path);
	back = *t;
	for (;;) {
		const char *from, *to;

		if (!csv_field(t, &from, &to))
			return rt_fail(e, "%s:%lld: a quote is not closed, or has text behind it", f->f->path,
			               (long long)back.line);
		if (f->ncolumn == room) {
			room = room ? 2 * room : 16;
			f->column = realloc(f->column, sizeof *f->column * (size_t)room);
			if (!f->column || room > CSV_COLUMNS)
				return rt_fail(e, "%s: too many columns", f->f->path);
		}
		f->column[f->ncolumn++] =
		        (CsvColumn){.k = -1, .name = v->header ? rt_printf("%.*s", (int)(to - from), from) : NULL};
		if (t->at == t->end || *t->at != t->delimiter)
			break;
		t->at++;
	}
	if (v->header) {
		t->line += t->at < t->end;
		t->at += t->at < t->end;
	} else {
		*t = back;
	}
	return v->columns ? csv_named(v, f, e) : csv_in_order(v, f, e);
}

/* ---- files */

static bool
csv_note(CsvFile *f, uint64_t offset, RtError *e)
{
	int64_t n = f->rows / CSV_EVERY;

	if (n == f->room) {
		size_t room = (size_t)(f->room = f->room ? 2 * f->room : 1024);
		uint64_t *more = realloc(f->offset, sizeof *more * room);
		uint16_t *behind = realloc(f->behind, sizeof *behind * CSV_EVERY * room);

		f->offset = more ? more : f->offset;
		f->behind = behind ? behind : f->behind;
		if (!more || !behind)
			return rt_fail(e, "%s: out of memory for where rows begin", f->f->path);
	}
	if (f->rows % CSV_EVERY == 0)
		f->offset[n] = offset;
	offset -= f->offset[n];
	f->behind[f->rows++] = offset < CSV_FAR ? (uint16_t)offset : CSV_FAR;
	return true;
}

static bool
csv_file(RtData *d, Csv *v, const char *path, RtError *e)
{
	RtFile *rf = rt_data_file(d, path, e);
	CsvFile *f, *more = rf ? realloc(v->file, sizeof *more * (size_t)(v->nfile + 1)) : NULL;
	uint8_t *const nowhere[RT_MAX_INPUTS] = {NULL};
	Text t;
	size_t forgotten = 0;

	if (!more)
		return rf ? rt_fail(e, "%s: out of memory", path) : false;
	v->file = more;
	f = &v->file[v->nfile++];
	*f = (CsvFile){.f = rf, .first = d->examples};
	t = (Text){
	        .at = (const char *)rf->at, .end = (const char *)rf->at + rf->n, .delimiter = v->delimiter, .line = 1};
	if (!csv_head(v, f, &t, e))
		return false;
	while (csv_begin(&t)) {
		size_t at = (size_t)((const uint8_t *)t.at - rf->at);

		if (!csv_note(f, at, e) || !csv_row(v, f, &t, nowhere, e))
			return false;
		if (at - forgotten > CSV_CHECK) {
			rt_file_forget(rf, forgotten, at);
			forgotten = at;
		}
	}
	f->lines = t.lines;
	d->examples += f->rows;
	return true;
}

static void
csv_free(void *maker)
{
	Csv *v = maker;

	for (int i = 0; i < v->nfile; i++) {
		for (int c = 0; c < v->file[i].ncolumn; c++)
			free(v->file[i].column[c].name);
		free(v->file[i].column);
		free(v->file[i].offset);
		free(v->file[i].behind);
	}
	free(v->file);
	free(v);
}

bool
rt_read_csv(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	const Json *json = d->p->reader.json, *columns = rt_json_get(json, "columns");
	const char *delimiter = rt_json_str(json, "delimiter", ",");
	Csv *v = rt_alloc(sizeof *v);
	bool good = true;

	*v = (Csv){.p = d->p,
	           .columns = columns && columns->kind == JSON_OBJECT ? columns : NULL,
	           .header = rt_json_bool(json, "header", true),
	           .delimiter = strcmp(delimiter, "tab") == 0 ? '\t' : *delimiter};
	d->maker = v;
	d->maker_free = csv_free;
	d->make = csv_make;
	for (int k = 0; k < d->p->ninput; k++)
		d->bytes[k] = d->p->input[k].example * rt_dtype[d->p->input[k].t.dtype].bytes;
	for (int i = 0; good && i < npattern; i++) {
		RtPaths paths = {0};

		good = rt_paths_find(&paths, folder, pattern[i], e);
		for (int j = 0; good && j < paths.n; j++)
			good = csv_file(d, v, paths.at[j], e);
		rt_paths_free(&paths);
	}
	return good;
}
