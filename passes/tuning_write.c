/* tuning_write.c: tuning files changed: records put in, taken out, two files merged.
 *
 * In: a file's text, lines to put in.   Out: text in the order of bytes, in which only these lines are others: the
 * rest, of whatever target, machine or model, stays byte for byte. A line whose value stands there already stays
 * with its facts, so that a second search changes nothing. Comments go with the line that they stand before; what a
 * first empty line ends stays at the top. A second record of one key, which readers pass over, goes. Of two records
 * of one key with the same value the one of more samples stays; with different values the one of the larger gain
 * (was / us), if machine and threads are the same, else the first, which is told. So two files are merged, and so a
 * file that has changed since it was read. Locks hold for what they were made of alone: a merge drops them. Files are
 * replaced as a whole (file.c): what cannot be written leaves the old one. */
#include "passes.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Row {
	const char *at; size_t n, full; /* without and with what stands behind it up to the end of the line */
	const char *lead; size_t nlead; /* comments and empty lines before it */
	const TuneRecord *record;       /* NULL: none, but kept */
	bool gone;
} Row;

typedef struct Sheet {
	Arena *a;
	Tuning *t;
	VEC(Row) row;
	uint32_t *row_of, nline;        /* by line: 1 + row of the record there */
	const char *head, *tail; size_t nhead, ntail;
} Sheet;

/* ---------------------------------------------------------------- a file in rows */
/* What an empty line ends, before the first record. */
static size_t
head_of(const char *text, size_t n)
{
	size_t head = 0;

	for (size_t i = 0, line = 0; i < n; i++)
		if (text[i] == '\n') {
			head = i == line ? i + 1 : head;
			line = i + 1;
		}
	return head;
}

static void
add_row(Sheet *s, const char *at, size_t n, uint32_t line, const char *lead)
{
	Row r = {.at = at, .n = n, .full = n, .lead = lead, .nlead = (size_t)(at - lead)};

	while (r.n && (at[r.n - 1] == ' ' || at[r.n - 1] == '\r'))
		r.n--;
	if (!s->row.n) {
		s->head = lead;
		s->nhead = head_of(lead, r.nlead);
		r.lead += s->nhead;
		r.nlead -= s->nhead;
	}
	vec_push(s->a, &s->row, r);
	s->row_of[line] = s->row.n;
}

static bool
is_comment(const char *at, size_t n)
{
	while (n && (at[n - 1] == ' ' || at[n - 1] == '\r'))
		n--;
	return !n || *at == '#';
}

/* Rows that readers pass over, as an earlier one has their key, go at once. */
static void
mark_records(Sheet *s)
{
	const TuneRecord *r;

	for (uint32_t i = 0; (r = tuning_at(s->t, i)); i++)
		s->row.at[s->row_of[r->at.line] - 1].record = r;
	for (uint32_t i = 0; i < s->row.n; i++) {
		Row *row = &s->row.at[i];
		const char *text = row->record ? NULL : arena_strndup(s->a, row->at, row->n);
		const char *colon = text ? strstr(text, " : ") : NULL;

		row->gone = colon && tuning_named(s->t, arena_strndup(s->a, text, (size_t)(colon - text)));
	}
}

static Sheet
sheet_of(Arena *a, const char *text, size_t bytes)
{
	Sheet s = {.a = a};
	Diags d;
	const char *lead = text;

	diags_init(&d, a, NULL);
	s.t = tuning_read(a, &d, "", text, bytes);
	for (size_t i = 0; i < bytes; i++)
		s.nline += text[i] == '\n';
	s.row_of = arena_array(a, uint32_t, s.nline + 2);
	uint32_t line = 1;

	for (const char *at = text; at < text + bytes; line++) {
		const char *end = memchr(at, '\n', bytes - (size_t)(at - text));
		size_t n = end ? (size_t)(end - at) : bytes - (size_t)(at - text);

		if (!is_comment(at, n)) {
			add_row(&s, at, n, line, lead);
			lead = at + n + (end != NULL);
		}
		at += n + 1;
	}
	if (s.row.n) {
		s.tail = lead;
		s.ntail = (size_t)(text + bytes - lead);
	} else {
		s.head = text;
		s.nhead = bytes;
	}
	mark_records(&s);
	return s;
}

static Row *
row_named(const Sheet *s, const char *key)
{
	const TuneRecord *r = tuning_named(s->t, key);

	return r ? &s->row.at[s->row_of[r->at.line] - 1] : NULL;
}

static int
compare_rows(const void *x, const void *y)
{
	const Row *a = x, *b = y;
	int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);

	return c ? c : (a->n > b->n) - (a->n < b->n);
}

static void
put_whole(Buf *b, const char *at, size_t n)
{
	buf_put(b, at, n);
	if (n && at[n - 1] != '\n')
		buf_put(b, "\n", 1);
}

static void
put_sheet(Buf *out, Sheet *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->row.n; i++)
		if (!s->row.at[i].gone)
			s->row.at[n++] = s->row.at[i];
	if (n)
		qsort(s->row.at, n, sizeof *s->row.at, compare_rows);
	buf_put(out, "", 0);
	put_whole(out, s->head, s->nhead);
	for (uint32_t i = 0; i < n; i++) {
		put_whole(out, s->row.at[i].lead, s->row.at[i].nlead);
		buf_put(out, s->row.at[i].at, s->row.at[i].full);
		buf_put(out, "\n", 1);
	}
	put_whole(out, s->tail, s->ntail);
}

/* ---------------------------------------------------------------- which of two */
static bool
same_value(const TuneRecord *a, const TuneRecord *b)
{
	return a->kind == b->kind && a->kind != TUNE_OLD && a->version == b->version && !strcmp(a->value, b->value);
}

static double
gain(const TuneFacts *f)
{
	return f->us > 0 ? f->was / f->us : NAN;
}

/* 1: b is better; 0: a stays; -1: it stays because they cannot be compared. */
static int
better(const TuneRecord *a, const TuneRecord *b)
{
	TuneFacts fa = tuning_facts(a->facts ? a->facts : ""), fb = tuning_facts(b->facts ? b->facts : "");

	if (same_value(a, b))
		return fb.samples > fa.samples;
	if (a->kind == TUNE_OLD || b->kind == TUNE_OLD || a->key[a->machine] == '*' || !fa.threads
		|| fa.threads != fb.threads)
		return -1;
	if (isnan(gain(&fa)) || isnan(gain(&fb)))
		return -1;
	return gain(&fb) > gain(&fa);
}

/* ---------------------------------------------------------------- changes */
/* Is the record of this key another than it was? */
static bool
has_changed(const Sheet *now, const Sheet *base, const char *key)
{
	const Row *a = row_named(now, key), *b = row_named(base, key);

	return !a != !b || (a && (a->n != b->n || memcmp(a->at, b->at, a->n)));
}

static void
put_line(Sheet *s, const Sheet *base, bool changed, const char *line)
{
	Sheet own = sheet_of(s->a, line, strlen(line));
	const TuneRecord *r = own.row.n == 1 ? own.row.at[0].record : NULL;

	if (!r)
		bug("tuning: this is no record to be written: %s", line);
	Row *old = row_named(s, r->key);

	if (changed && r->kind == TUNE_LOCK) {
		if (old)
			old->gone = true;
		return;
	}
	if (!old) {
		Row new = own.row.at[0];

		new.lead = "";
		new.nlead = 0;
		vec_push(s->a, &s->row, new);
		return;
	}
	if (same_value(old->record, r) || (changed && has_changed(s, base, r->key) && better(old->record, r) != 1))
		return;
	old->at = own.row.at[0].at;
	old->n = old->full = own.row.at[0].n;
}

void
tuning_edit(Buf *out, Arena *a, const char *text, size_t bytes, const char *base, size_t base_bytes, const TuneEdit *e)
{
	bool changed = base && (bytes != base_bytes || memcmp(text, base, bytes));
	Sheet s = sheet_of(a, text, bytes), was = changed ? sheet_of(a, base, base_bytes) : (Sheet){0};

	for (uint32_t i = 0; i < e->ndrop; i++) {
		Row *old = row_named(&s, e->drop[i]);

		if (old && !(changed && has_changed(&s, &was, e->drop[i])))
			old->gone = true;
	}
	for (uint32_t i = 0; i < e->nline; i++)
		put_line(&s, &was, changed, e->line[i]);
	put_sheet(out, &s);
}

static bool
same_stat(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size
		&& a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Reads and changes again, should anybody have replaced the file meanwhile; of the moment between that look and the
 * rename the lock keeps all but editors out. */
bool
tuning_write(Arena *a, const char *path, const char *base, size_t base_bytes, const TuneEdit *e)
{
	enum { TRIES = 10 };
	bool good = false;

	for (int i = 0; i < TRIES; i++) {
		struct stat before = {0}, after = {0};
		bool there = !stat(path, &before);
		size_t bytes = 0;
		char *text = there ? file_read(path, &bytes) : calloc(1, 1);
		Buf out = {0};

		if (!text)
			return false;
		const char *kept = arena_strndup(a, text, bytes);

		free(text);
		tuning_edit(&out, a, kept, bytes, base, base_bytes, e);
		bool again = i + 1 < TRIES && (there != !stat(path, &after) || (there && !same_stat(&before, &after)));

		good = !again && ((out.n == bytes && !memcmp(out.at, kept, bytes)) || file_write(path, out.at, out.n));
		int why = errno;

		buf_free(&out);
		errno = why;
		if (!again)
			break;
	}
	return good;
}

/* ---------------------------------------------------------------- merging */
void
tuning_merge(Buf *out, Arena *a, const TuneText *x, const TuneText *y, TuneMerge *m)
{
	Sheet s = sheet_of(a, x->text, x->bytes), t = sheet_of(a, y->text, y->bytes);

	*m = (TuneMerge){0};
	for (uint32_t i = 0; i < s.row.n; i++)
		if (s.row.at[i].record && s.row.at[i].record->kind == TUNE_LOCK) {
			s.row.at[i].gone = true;
			m->locks++;
		}
	for (uint32_t i = 0; i < t.row.n; i++) {
		Row row = t.row.at[i];
		const TuneRecord *r = row.record;
		Row *old = r ? row_named(&s, r->key) : NULL;

		if (!r || r->kind == TUNE_LOCK) {
			m->locks += r != NULL;
			continue;
		}
		if (!old) {
			row.nlead = 0;
			vec_push(a, &s.row, row);
			m->added++;
			continue;
		}
		int which = better(old->record, r);

		if (which < 0 && (old->n != row.n || memcmp(old->at, row.at, row.n)))
			vec_push(a, &m->warning,
			         (const char *)arena_printf(a,
			                                    "%s:%u and %s:%u: %s: machine, threads or gain cannot be "
			                                    "compared: the first stays",
			                                    x->name, (unsigned)old->record->at.line, y->name,
			                                    (unsigned)r->at.line, r->key));
		if (which == 1) {
			old->at = row.at;
			old->n = row.n;
			old->full = row.full;
			m->replaced++;
		}
	}
	put_sheet(out, &s);
}
