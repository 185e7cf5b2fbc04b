/* journal.c: the file that a race leaves: JSON lines, each one write, so that a kill loses at most the running step.
 *
 * In and out, in this order: what races, a line; then, as they happen, checks (`good`, `out`), deaths, steps with all
 * their times; at the end results and `end`. README.md has the form. --resume reads the lines into the same functions
 * that took the steps when they were made, which leads to the same race; a last line without its end is cut off.
 * Refuses the journal of another race, and, without --resume, one that is not at its end. */
#include "race.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Line { FILE *f; char *text; size_t n; } Line;

static bool
line_begin(Line *l)
{
	*l = (Line){0};
	l->f = open_memstream(&l->text, &l->n);
	return l->f != NULL;
}

/* Writes the line whole. */
static bool
line_end(Race *r, Line *l)
{
	bool good;

	fputc('\n', l->f);
	good = fclose(l->f) == 0 && rt_write_all(r->journal.fd, l->text, l->n);
	if (!good)
		rt_fail(&r->h->error, "cannot write '%s': %s", r->journal.path, strerror(errno));
	free(l->text);
	return good;
}

static bool
line_none(Race *r)
{
	return rt_fail(&r->h->error, "out of memory for a line of '%s'", r->journal.path);
}

/* ---- what races */
static char *
journal_head(const Race *r)
{
	const RaceTable *t = &r->table;
	const RtProgram *p = &r->h->program;
	Line l;

	if (!line_begin(&l))
		return NULL;
	fprintf(l.f, "{\"race\": 1, \"model\": ");
	rt_json_text(l.f, p->model);
	fprintf(l.f,
	        ", \"arch\": \"%s\", \"precision\": \"%s\", \"source_hash\": \"%s\", \"batch\": %lld, \"graph\": "
	        "\"%s\", \"threads\": %lld, \"seed\": %lld, \"rungs\": [",
	        p->arch, p->precision, p->source_hash, (long long)p->batch, t->graph->name,
	        (long long)r->h->opt.threads, (long long)r->h->opt.seed);
	for (int i = 0; i < r->nrung; i++)
		fprintf(l.f, "%s%d", i ? "," : "", r->rung[i]);
	fprintf(l.f, "]");
	if (r->device) {
		fprintf(l.f, ", \"device\": ");
		rt_json_text(l.f, r->device_name);
	}
	fprintf(l.f, ", \"clock\": \"%s\", \"units\": %d, \"groups\": [",
	        r->costs ? "costs" : r->checks ? "none" : "real", t->nunit);
	for (int g = 0; g < t->ngroup; g++) {
		fprintf(l.f, "%s{\"name\": ", g ? ", " : "");
		rt_json_text(l.f, t->group[g].name);
		fprintf(l.f, ", \"layers\": ");
		rt_json_text(l.f, t->group[g].layers);
		fprintf(l.f, ", \"record\": %d, \"unit\": %d, \"limit\": \"%s\"}", t->group[g].record, t->group[g].unit,
		        race_limits[t->unit[t->group[g].unit].limit]);
	}
	fprintf(l.f, "], \"records\": [");
	for (int i = 0; i < t->nrecord; i++) {
		fprintf(l.f, "%s{\"key\": ", i ? ", " : "");
		rt_json_text(l.f, t->record[i].key);
		fprintf(l.f, ", \"kernels\": [");
		for (int k = 0; k < t->record[i].ntext; k++) {
			fprintf(l.f, k ? ", " : "");
			rt_json_text(l.f, t->record[i].text[k].kernel);
		}
		fprintf(l.f, "]}");
	}
	fprintf(l.f, "]}");
	fclose(l.f);
	return l.text;
}

/* ---- reading */
/* The numbers of a list, n of them exactly. */
static bool
journal_numbers(const Json *list, int64_t *out, int n)
{
	if (!list || list->kind != JSON_LIST || list->n != n)
		return false;
	for (const Json *x = list->child; x; x = x->next)
		*out++ = x->i;
	return true;
}

static bool
journal_good(Race *r, const Json *list)
{
	for (const Json *x = list->child; x; x = x->next) {
		int64_t at[2];

		if (!journal_numbers(x, at, 2) || at[0] < 0 || at[0] >= r->table.ngroup || at[1] < 1 ||
		    at[1] >= r->table.record[r->table.group[at[0]].record].ntext)
			return false;
		race_shared_verdict(r, (int)at[0])[at[1]] = RACE_GOOD;
		r->known[(size_t)at[0] * (size_t)r->table.most + (size_t)at[1]] = RACE_GOOD;
	}
	return true;
}

static bool
journal_out(Race *r, const Json *o)
{
	int64_t record = rt_json_int(o, "record", -1), text = rt_json_int(o, "text", -1);
	int v = RACE_GOOD + 1;

	while (v < RACE_VERDICTS && strcmp(rt_json_str(o, "why", ""), race_verdicts[v]) != 0)
		v++;
	if (record < 0 || record >= r->table.nrecord || text < 1 || text >= r->table.record[record].ntext ||
	    v == RACE_VERDICTS)
		return false;
	race_drop(r, (int)record, (int)text, (RaceVerdict)v);
	return true;
}

static bool
journal_step(Race *r, const Json *o)
{
	const RaceTable *t = &r->table;
	int64_t *run = rt_alloc(sizeof *run * (size_t)t->ngroup), *ns = rt_alloc(sizeof *ns * (size_t)t->nunit);
	int32_t *order = rt_alloc(sizeof *order * (size_t)t->ngroup);
	bool good = rt_json_int(o, "step", -1) == r->next && journal_numbers(rt_json_get(o, "run"), run, t->ngroup) &&
	            journal_numbers(rt_json_get(o, "ns"), ns, t->nunit);

	for (int g = 0; good && g < t->ngroup; g++) {
		good = run[g] >= 0 && run[g] < t->record[t->group[g].record].ntext;
		order[g] = (int32_t)run[g];
	}
	if (good) {
		r->spent = rt_json_int(o, "spent", 0);
		race_take(r, r->next++,
		          strcmp(rt_json_str(o, "kind", ""), "reference") == 0 ? RACE_REFERENCE : RACE_RACE, order, ns);
	}
	free(run);
	free(ns);
	free(order);
	return good;
}

static bool
journal_line(Race *r, const char *text, size_t n)
{
	char why[128];
	JsonDoc *doc = NULL;
	const Json *o = rt_json_parse(text, n, &doc, why, sizeof why);
	bool good = o != NULL;

	r->done = false;
	if (good && rt_json_get(o, "step"))
		good = journal_step(r, o);
	else if (good && rt_json_get(o, "good"))
		good = journal_good(r, rt_json_get(o, "good"));
	else if (good && rt_json_get(o, "out"))
		good = journal_out(r, rt_json_get(o, "out"));
	else if (good && rt_json_get(o, "death"))
		r->deaths++;
	else if (good && rt_json_get(o, "end"))
		r->done = strcmp(rt_json_str(o, "end", ""), "done") == 0;
	else
		good = good && (rt_json_get(o, "result") || rt_json_get(o, "quiet"));
	rt_json_free(doc);
	return good;
}

/* Lines of the file into the race; cut is what of it is whole. */
static bool
journal_read(Race *r, const char *head, const RtFile *f, size_t *cut)
{
	const char *text = (const char *)f->at;
	RtError *e = &r->h->error;
	int line = 0;

	for (*cut = 0; *cut < f->n;) {
		const char *end = memchr(text + *cut, '\n', f->n - *cut);
		size_t n = end ? (size_t)(end - text) - *cut : 0;

		if (!end)
			break;                           /* what a kill has left of a line */
		if (line++ == 0 && (n != strlen(head) || memcmp(text, head, n) != 0))
			return rt_fail(e,
			               "'%s' is the journal of another race: of another program, --seed, --threads or "
			               "--rungs; -o names another file",
			               r->journal.path);
		if (line > 1 && !journal_line(r, text + *cut, n))
			return rt_fail(e, "'%s', line %d: this is no line of this race", r->journal.path, line);
		*cut += n + 1;
	}
	return true;
}

/* Does it end with an `end` line? An empty one does. */
static bool
journal_ended(const RtFile *f)
{
	size_t from = f->n;

	while (from > 0 && (from == f->n || f->at[from - 1] != '\n'))
		from--;
	return f->n == 0 || (f->n - from > 7 && memcmp(f->at + from, "{\"end\":", 7) == 0);
}

bool
race_journal_open(Race *r)
{
	RaceJournal *j = &r->journal;
	RtError *e = &r->h->error;
	RtFile f = {0};
	char *head = journal_head(r);
	size_t cut = 0;

	j->path = r->output;
	j->fd = -1;
	if (!head)
		return line_none(r);
	if (!rt_lock_take(&j->lock, j->path, e))
		return rt_context(e, "-o");
	if (access(j->path, F_OK) == 0 && !rt_file_read(&f, j->path, e))
		return false;
	if (!r->resume && f.n && !journal_ended(&f))
		return rt_fail(e,
		               "'%s' is the journal of a race that is not at its end: --resume goes on with it, -o "
		               "names another file",
		               j->path);
	if (r->resume && !journal_read(r, head, &f, &cut))
		return false;
	j->fd = open(j->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (j->fd < 0 || ftruncate(j->fd, (off_t)cut) != 0)
		return rt_fail(e, "cannot write '%s': %s", j->path, strerror(errno));
	if (!cut && (!rt_write_all(j->fd, head, strlen(head)) || !rt_write_all(j->fd, "\n", 1)))
		return rt_fail(e, "cannot write '%s': %s", j->path, strerror(errno));
	rt_file_free(&f);
	free(head);
	return true;
}

void
race_journal_close(Race *r)
{
	if (r->journal.fd >= 0)
		close(r->journal.fd);
	if (r->journal.lock.path)
		rt_lock_release(&r->journal.lock);
}

/* ---- writing */
bool
race_journal_good(Race *r)
{
	const RaceTable *t = &r->table;
	Line l;
	int n = 0;

	if (!line_begin(&l))
		return line_none(r);
	fprintf(l.f, "{\"good\": [");
	for (int g = 0; g < t->ngroup; g++)
		for (int k = 1; k < t->record[t->group[g].record].ntext; k++) {
			uint8_t *known = &r->known[(size_t)g * (size_t)t->most + (size_t)k];

			if (race_shared_verdict(r, g)[k] != RACE_GOOD || *known == RACE_GOOD)
				continue;
			*known = RACE_GOOD;
			fprintf(l.f, "%s[%d,%d]", n++ ? "," : "", g, k);
		}
	fprintf(l.f, "]}");
	if (n)
		return line_end(r, &l);
	fclose(l.f);
	free(l.text);
	return true;
}

bool
race_journal_out(Race *r, int group, int text, RaceVerdict verdict, const char *detail)
{
	const RaceGroup *g = &r->table.group[group];
	Line l;

	if (!line_begin(&l))
		return line_none(r);
	fprintf(l.f, "{\"out\": {\"record\": %d, \"text\": %d, \"kernel\": ", g->record, text);
	rt_json_text(l.f, r->table.record[g->record].text[text].kernel);
	fprintf(l.f, ", \"group\": ");
	rt_json_text(l.f, g->name);
	fprintf(l.f, ", \"why\": \"%s\", \"detail\": ", race_verdicts[verdict]);
	rt_json_text(l.f, detail);
	fprintf(l.f, "}}");
	return line_end(r, &l);
}

bool
race_journal_death(Race *r, int signal, int unit)
{
	Line l;

	if (!line_begin(&l))
		return line_none(r);
	fprintf(l.f, "{\"death\": {\"signal\": %d, \"unit\": %d}}", signal, unit);
	return line_end(r, &l);
}

bool
race_journal_step(Race *r, int64_t number, RaceKind kind, const int32_t *order, const int64_t *ns)
{
	Line l;

	if (!line_begin(&l))
		return line_none(r);
	fprintf(l.f, "{\"step\": %lld, \"kind\": \"%s\", \"spent\": %lld, \"run\": [", (long long)number,
	        kind == RACE_REFERENCE ? "reference" : "race", (long long)r->spent);
	for (int g = 0; g < r->table.ngroup; g++)
		fprintf(l.f, "%s%d", g ? "," : "", (int)order[g]);
	fprintf(l.f, "], \"ns\": [");
	for (int u = 0; u < r->table.nunit; u++)
		fprintf(l.f, "%s%lld", u ? "," : "", (long long)ns[u]);
	fprintf(l.f, "]}");
	return line_end(r, &l);
}

static void
put_number(FILE *f, const char *name, double x)
{
	fprintf(f, ", \"%s\": ", name);
	rt_json_number(f, x, 6);
}

static bool
journal_result(Race *r, int record)
{
	const RaceRecord *rec = &r->table.record[record];
	const RaceRun *run = &r->run[record];
	double here = 0, step = 0;
	Line l;

	if (!line_begin(&l))
		return line_none(r);
	for (int u = 0; u < r->table.nunit; u++)
		step += race_reference(r, u);
	for (int i = 0; i < rec->ngroup; i++)
		here += race_reference(r, r->table.group[rec->group[i]].unit);
	fprintf(l.f, "{\"result\": {\"record\": ");
	rt_json_text(l.f, rec->key);
	fprintf(l.f, ", \"kernel\": ");
	rt_json_text(l.f, rec->text[run->winner].kernel);
	fprintf(l.f, ", \"won\": %s, \"finished\": %s", run->winner ? "true" : "false",
	        race_over(r, record) ? "true" : "false");
	put_number(l.f, "gain", run->gain.middle);
	put_number(l.f, "low", run->gain.low);
	put_number(l.f, "high", run->gain.high);
	put_number(l.f, "charge", run->charge);
	put_number(l.f, "us", here / rec->ngroup * 1e-3);
	put_number(l.f, "share", step > 0 ? here / step : 0);
	fprintf(l.f, ", \"layers\": %d, \"threads\": %lld, \"kernels\": [", rec->ngroup, (long long)r->h->opt.threads);
	for (int t = 0; t < rec->ntext; t++) {
		const RaceScore *s = &run->score[t];
		RaceInterval i = race_interval(s->fresh.n ? &s->fresh : &s->all);

		fprintf(l.f, "%s{\"kernel\": ", t ? ", " : "");
		rt_json_text(l.f, rec->text[t].kernel);
		fprintf(l.f, ", \"n\": %d", s->all.n + s->fresh.n);
		put_number(l.f, "time", i.middle);
		put_number(l.f, "low", i.low);
		put_number(l.f, "high", i.high);
		fprintf(l.f, ", \"out\": ");
		rt_json_text(l.f, s->out ? s->why : "");
		fprintf(l.f, "}");
	}
	fprintf(l.f, "]}}");
	return line_end(r, &l);
}

bool
race_journal_results(Race *r, const char *end)
{
	Line l;

	for (int i = 0; i < r->table.nrecord; i++)
		if (!journal_result(r, i))
			return false;
	if (!line_begin(&l))
		return line_none(r);
	fprintf(l.f, "{\"end\": \"%s\"}", end);
	return line_end(r, &l);
}
