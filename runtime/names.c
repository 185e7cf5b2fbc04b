/* names.c: weights of other programs: a table says what they call each parameter.
 *
 * In: a file of rows, and the entries of a safetensors file.   Out: the entries under the model's names. A row is
 *   stem.conv2d0.weight        conv1.weight             the model's name, the file's
 *   stage0.bottleneck*.conv*.x layer1.*.conv*.x         the k-th * of both sides stands for the same digits
 *   query.weight               in_proj_weight[0:768]    rows 0 to 768 of the first axis
 *   -                          *.num_batches_tracked    left out; here * stands for anything
 * and # begins a comment. A row must fit a parameter or running statistic of the model, no parameter may have two, and
 * the file must have what a row names (with --partial: the parameter keeps its initial value). A parameter without a
 * row keeps its name. What no row takes is left over. */
#include "host.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STARS = 8 };
typedef struct Row {
	char *ours, *theirs;
	int64_t from, to;
	int line;
	bool fits;
} Row; /* to: -1: no rows were named */
typedef struct Digits {
	const char *at[MAX_STARS];
	int n[MAX_STARS], count;
} Digits;
typedef struct Names {
	RtHost *h;
	const char *path;
	RtSt *st;
	Row *row;
	int nrow, *given; /* by state: 1 + its row */
	bool *taken;      /* by entry */
	RtStEntry *entry;
	int nentry;
} Names;

static bool
names_fail(Names *n, const Row *r, const char *what, const char *which, const char *near)
{
	return rt_fail(&n->h->error, "%s:%d: %s %s%s%s%s", n->path, r->line, what, which, near ? "; did you mean " : "",
	               near ? near : "", near ? "?" : "");
}

/* Does the pattern fit the name, each * for one digit or more? */
static bool
names_fit(const char *pattern, const char *name, Digits *d)
{
	for (d->count = 0; *pattern; pattern++) {
		if (*pattern != '*') {
			if (*pattern != *name++)
				return false;
			continue;
		}
		int digits = 0;

		while (isdigit((unsigned char)name[digits]))
			digits++;
		if (!digits || d->count == MAX_STARS)
			return false;
		d->at[d->count] = name;
		d->n[d->count++] = digits;
		name += digits;
	}
	return !*name;
}

static bool
names_fit_any(const char *pattern, const char *name)
{
	for (; *pattern && *pattern != '*'; pattern++)
		if (*pattern != *name++)
			return false;
	if (!*pattern)
		return !*name;
	do
		if (names_fit_any(pattern + 1, name))
			return true;
	while (*name++);
	return false;
}

static char *
names_fill(const char *pattern, const Digits *d)
{
	char *out = rt_alloc(strlen(pattern) + 32 * MAX_STARS), *at = out;
	int k = 0;

	for (; *pattern; pattern++) {
		int digits = *pattern == '*' ? d->n[k] : 1;

		memcpy(at, *pattern == '*' ? d->at[k++] : pattern, (size_t)(digits < 30 ? digits : 30));
		at += digits < 30 ? digits : 30;
	}
	*at = 0;
	return out;
}

/* ---------------------------------------------------------------- the table */
static int
names_stars(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += *s == '*';
	return n;
}

static bool
names_row(Names *n, char *line, int number)
{
	Row *r = &n->row[n->nrow];
	char *more, *rows, *end, *rest = NULL;

	line[strcspn(line, "#\r")] = 0;
	r->ours = strtok_r(line, " \t", &rest);
	r->theirs = strtok_r(NULL, " \t", &rest);
	more = strtok_r(NULL, " \t", &rest);
	r->line = number;
	r->to = -1;
	if (!r->ours)
		return true;
	n->nrow++;
	if (!r->theirs || more)
		return names_fail(n, r, "a row is two names, the model's and the file's, here", more ? more : r->ours,
		                  NULL);
	rows = strchr(r->theirs, '[');
	if (rows) {
		*rows = 0;
		r->from = strtoll(rows + 1, &end, 10);
		r->to = *end == ':' ? strtoll(end + 1, &end, 10) : -1;
		if (r->from < 0 || r->to <= r->from || strcmp(end, "]") != 0)
			return names_fail(n, r, "rows are written as [0:768], not behind", r->theirs, NULL);
	}
	if (strcmp(r->ours, "-") != 0 && names_stars(r->ours) != names_stars(r->theirs))
		return names_fail(n, r, "both names need as many *, unlike", r->ours, NULL);
	return names_stars(r->theirs) <= MAX_STARS || names_fail(n, r, "more than 8 * in", r->theirs, NULL);
}

/* ---------------------------------------------------------------- entries */
static int
names_find(const RtSt *st, const char *name)
{
	for (int i = 0; i < st->nentry; i++)
		if (strcmp(st->entry[i].name, name) == 0)
			return i;
	return -1;
}

static const char *
names_near_entry(const Names *n, const char *name)
{
	const char **all = rt_alloc(sizeof *all * (size_t)(n->st->nentry + 1)), *near;

	for (int i = 0; i < n->st->nentry; i++)
		all[i] = n->st->entry[i].name;
	near = rt_suggest(name, all, n->st->nentry);
	free(all);
	return near;
}

static const char *
names_near_state(const Names *n, const char *name)
{
	const RtProgram *p = &n->h->program;
	const char **all = rt_alloc(sizeof *all * (size_t)(p->nstate + 1)), *near;
	int count = 0;

	for (int k = 0; k < p->nstate; k++)
		if (p->state[k].kind == RT_PARAM || p->state[k].kind == RT_STAT)
			all[count++] = p->state[k].t.name;
	near = rt_suggest(name, all, count);
	free(all);
	return near;
}

/* The rows of the first axis that the table names. */
static bool
names_cut(Names *n, const Row *r, RtStEntry *t)
{
	uint64_t each;

	if (r->to < 0)
		return true;
	if (t->rank < 1 || r->to > t->shape[0])
		return rt_fail(&n->h->error, "%s:%d: %s has %lld rows, fewer than %lld", n->path, r->line, t->from,
		               (long long)(t->rank ? t->shape[0] : 0), (long long)r->to);
	each = (t->end - t->begin) / (uint64_t)t->shape[0];
	t->end = t->begin + each * (uint64_t)r->to;
	t->begin += each * (uint64_t)r->from;
	t->shape[0] = r->to - r->from;
	return true;
}

static bool
names_take(Names *n, Row *r, int state, const char *theirs, bool partial)
{
	const char *ours = n->h->program.state[state].t.name;
	int at = names_find(n->st, theirs);

	r->fits = true;
	if (n->given[state])
		return rt_fail(&n->h->error, "%s:%d: %s has a row already, in line %d", n->path, r->line, ours,
		               n->row[n->given[state] - 1].line);
	n->given[state] = 1 + (int)(r - n->row);
	if (at < 0 && partial)
		return true; /* what is missing is said by its own name */
	if (at < 0)
		return names_fail(n, r, "the weights have no", theirs, names_near_entry(n, theirs));
	n->taken[at] = true;
	RtStEntry *t = &n->entry[n->nentry++];

	*t = n->st->entry[at];
	t->name = ours;
	t->from = n->st->entry[at].name;
	return names_cut(n, r, t);
}

static bool
names_apply_row(Names *n, Row *r, bool partial)
{
	const RtProgram *p = &n->h->program;
	bool good = true;
	Digits d;

	if (strcmp(r->ours, "-") == 0) {
		for (int i = 0; i < n->st->nentry; i++)
			n->taken[i] |= names_fit_any(r->theirs, n->st->entry[i].name);
		return true;
	}
	for (int k = 0; good && k < p->nstate; k++)
		if ((p->state[k].kind == RT_PARAM || p->state[k].kind == RT_STAT) &&
		    names_fit(r->ours, p->state[k].t.name, &d)) {
			char *theirs = names_fill(r->theirs, &d);

			good = names_take(n, r, k, theirs, partial);
			free(theirs);
		}
	return !good || r->fits ? good
	                        : names_fail(n, r, "the model has no parameter", r->ours, names_near_state(n, r->ours));
}

static int
by_name(const void *x, const void *y)
{
	return strcmp(((const RtStEntry *)x)->name, ((const RtStEntry *)y)->name);
}

/* The entries that rows have named, and those that nobody has taken. */
static void
names_finish(Names *n)
{
	for (int i = 0; i < n->st->nentry; i++)
		if (!n->taken[i])
			n->entry[n->nentry++] = n->st->entry[i];
	qsort(n->entry, (size_t)n->nentry, sizeof *n->entry, by_name);
	free(n->st->entry);
	n->st->entry = n->entry;
	n->st->nentry = n->nentry;
}

bool
rt_names_apply(RtHost *h, RtSt *st, bool partial)
{
	Names n = {.h = h, .path = h->opt.names, .st = st};
	RtFile f;
	int lines = 1, number = 0;

	if (!rt_file_read(&f, n.path, &h->error))
		return rt_context(&h->error, "--names");
	char *text = rt_printf("%.*s", (int)f.n, (const char *)f.at); /* states keep pointing into it */

	rt_file_free(&f);
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	n.row = rt_alloc(sizeof *n.row * (size_t)lines);
	n.given = rt_alloc(sizeof *n.given * (size_t)(h->program.nstate + 1));
	n.taken = rt_alloc(sizeof *n.taken * (size_t)(st->nentry + 1));
	n.entry = rt_alloc(sizeof *n.entry * (size_t)(st->nentry + h->program.nstate + 1));
	bool good = true;

	for (char *line = text, *next; good && line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		good = names_row(&n, line, ++number);
	}
	for (int k = 0; good && k < n.nrow; k++)
		good = names_apply_row(&n, &n.row[k], partial);
	if (good)
		names_finish(&n);
	else
		free(n.entry);
	free(n.row);
	free(n.given);
	free(n.taken);
	free(text);
	return good;
}
