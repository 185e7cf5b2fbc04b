/* tune_journal.c: FILE.log, what a search has seen, and what races say.
 *
 * In and out, JSON lines, each one write, so that a kill loses no more than the running one:
 *   {"tune": 1, ..}                       what is searched; --resume demands the same
 *   {"choices": [{"key", "kernel", ..}, ..]}   choices of passes that won
 *   {"round": 1, "race": TEXT}            a race begins, with this race file; its own journal is FILE.log.race
 *   {"done": 1, "spent": ns, "lines": [..]}   it is over: its lines `result` and `out`
 *   {"end": "done"}                       last; without it the search is not at its end
 * A last line without an end of its own is cut off. */
#define _GNU_SOURCE
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- results of a race */
static BitsClass
class_in(const char *race, const char *key, const char *kernel)
{
	char *line = NULL;
	int n = asprintf(&line, "%s : %s ; bits=", key, kernel);
	const char *at = n > 0 ? strstr(race, line) : NULL;
	BitsClass bits = at && !strncmp(at + n, "order", 5) ? BITS_order : at && at[n] == 'r' ? BITS_rounds : BITS_same;

	free(line);
	return bits;
}

static Won *
won_named(Tune *t, const char *key)
{
	for (uint32_t i = 0; i < t->won.n; i++)
		if (!strcmp(t->won.at[i].key, key))
			return &t->won.at[i];
	return NULL;
}

static void
drop_won(Tune *t, Won *w)
{
	memmove(w, w + 1, (size_t)(t->won.at + t->won.n - (w + 1)) * sizeof *w);
	t->won.n--;
}

/* A record's race is over. Of one that has won before, what it gains now is beside that. */
static void
take_result(Tune *t, const char *race, const Json *r)
{
	const char *key = arena_strdup(t->arena, rt_json_str(r, "record", "")),
	           *kernel = arena_strdup(t->arena, rt_json_str(r, "kernel", "")), *was = NULL;
	double us = rt_json_num(r, "us", 0), gain = rt_json_num(r, "gain", 0);
	const Json *list = rt_json_get(r, "kernels");
	Won *w = won_named(t, key);
	int64_t n = 0;

	for (const Json *k = list ? list->child : NULL; k; k = k->next) {
		const char *text = rt_json_str(k, "kernel", "");

		if (!was)
			was = arena_strdup(t->arena, text);
		else
			vec_push(t->arena, &t->tried, (const char *)arena_printf(t->arena, "%s : %s", key, text));
		if (!strcmp(text, kernel))
			n = rt_json_int(k, "n", 0);
	}
	if (!rt_json_bool(r, "won", false) || !was)
		return;
	if (!w) {
		vec_push(t->arena, &t->won, ((Won){.key = key, .was = was, .was_us = us}));
		w = &t->won.at[t->won.n - 1];
	} else if (!strcmp(w->was, kernel)) {
		drop_won(t, w);
		return;
	}
	w->kernel = kernel;
	w->bits = class_in(race, key, kernel);
	w->us = us * (1 - gain);
	w->gain = w->was_us > 0 ? 1 - w->us / w->was_us : gain;
	w->low = rt_json_num(r, "low", 0);
	w->high = rt_json_num(r, "high", 0);
	w->error = gain < 1 ? (w->high - w->low) / 2 / (1 - gain) : 0;
	w->share = rt_json_num(r, "share", 0);
	w->n = n;
	w->threads = (int)rt_json_int(r, "threads", t->threads);
	w->raced_last = true;
}

static void
take_out(Tune *t, const Json *o)
{
	const char *why = rt_json_str(o, "why", "");

	for (uint32_t i = 0; i < t->failure.n; i++)
		if (!strcmp(t->failure.at[i].why, why)) {
			t->failure.at[i].n++;
			return;
		}
	vec_push(t->arena, &t->failure, ((Failure){arena_strdup(t->arena, why), 1}));
}

/* A line `result` or `out`, kept as it is. False: it is neither. */
static bool
take_line(Tune *t, const char *race, const char *text, size_t n)
{
	char why[128];
	JsonDoc *doc = NULL;
	const Json *o = rt_json_parse(text, n, &doc, why, sizeof why), *r = rt_json_get(o, "result"),
	           *out = rt_json_get(o, "out");

	if (r)
		take_result(t, race, r);
	if (out)
		take_out(t, out);
	if (r || out)
		vec_push(t->arena, &t->line, (const char *)arena_strndup(t->arena, text, n));
	rt_json_free(doc);
	return r || out;
}

/* A race that was stopped and went on has results of both; the last ones count. Where these begin. */
static size_t
last_results(const char *text, size_t bytes)
{
	size_t last = 0, end = 0;

	for (const char *p = text; (p = memmem(p, bytes - (size_t)(p - text), "\n{\"end\":", 8)); p++) {
		last = end;
		end = (size_t)(p - text);
	}
	return last;
}

bool
journal_take(Tune *t, const char *race, const char *text, size_t bytes)
{
	size_t last = last_results(text, bytes);
	bool any = false;

	t->round_line = t->line.n;
	for (uint32_t i = 0; i < t->won.n; i++)
		t->won.at[i].raced_last = false;
	for (size_t at = 0; at < bytes;) {
		const char *end = memchr(text + at, '\n', bytes - at), *line = text + at;
		size_t n = end ? (size_t)(end - line) : bytes - at;
		bool result = n > 10 && !memcmp(line, "{\"result\"", 9), out = n > 10 && !memcmp(line, "{\"out\"", 6);

		if (end && ((result && at >= last) || out))
			any |= take_line(t, race, line, n) && result;
		at += n + 1;
	}
	return any;
}

/* ---------------------------------------------------------------- writing */
static bool
write_line(Tune *t, Buf *b)
{
	size_t at = 0;

	buf_put(b, "\n", 1);
	while (t->fd >= 0 && at < b->n) {
		ssize_t n = write(t->fd, b->at + at, b->n - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			failure("cannot write '%s': %s", t->journal, strerror(errno));
			return false;
		}
		at += (size_t)n;
	}
	return true;
}

bool
journal_put(Tune *t, const char *fmt, ...)
{
	Buf b = {0};
	va_list ap;

	va_start(ap, fmt);
	buf_vprintf(&b, fmt, ap);
	va_end(ap);
	bool good = write_line(t, &b);

	buf_free(&b);
	return good;
}

bool
journal_begin(Tune *t, const char *race)
{
	Buf b = {0};

	buf_printf(&b, "{\"round\": %d, \"race\": ", t->rounds);
	buf_json(&b, race);
	buf_printf(&b, "}");
	bool good = write_line(t, &b);

	buf_free(&b);
	t->race_text = race;
	return good;
}

bool
journal_done(Tune *t)
{
	Buf b = {0};

	buf_printf(&b, "{\"done\": %d, \"spent\": %" PRId64 ", \"lines\": [", t->rounds, tune_spent(t));
	for (uint32_t i = t->round_line; i < t->line.n; i++)
		buf_printf(&b, "%s%s", i > t->round_line ? ", " : "", t->line.at[i]);
	buf_printf(&b, "]}");
	bool good = write_line(t, &b);

	buf_free(&b);
	t->race_text = NULL;
	if (good && t->race)
		unlink(t->race);
	return good;
}

bool
journal_choices(Tune *t, uint32_t from)
{
	Buf b = {0};

	buf_printf(&b, "{\"choices\": [");
	for (uint32_t i = from; i < t->won.n; i++) {
		const Won *w = &t->won.at[i];

		buf_printf(&b, "%s{\"key\": ", i > from ? ", " : "");
		buf_json(&b, w->key);
		buf_printf(&b, ", \"kernel\": ");
		buf_json(&b, w->kernel);
		buf_printf(&b, ", \"was\": ");
		buf_json(&b, w->was);
		buf_printf(&b,
		           ", \"back\": %s, \"gain\": %.9g, \"us\": %.9g, \"was_us\": %.9g, \"error\": %.9g, "
		           "\"share\": %.9g"
		           ", \"n\": %" PRId64 "}",
		           w->back ? "true" : "false", w->gain, w->us, w->was_us, w->error, w->share, w->n);
	}
	buf_printf(&b, "]}");
	bool good = write_line(t, &b);

	buf_free(&b);
	t->chosen = true;
	return good;
}

/* ---------------------------------------------------------------- reading */
static void
read_done(Tune *t, const char *line, size_t n, const Json *o)
{
	const char *lists = memmem(line, n, "\"lines\": [", 10);
	Buf text = {0};

	/* the lines stand there as they were: one ends where the depth of braces is 0 again */
	for (const char *p = lists ? lists + 10 : line + n, *from = NULL; p < line + n; p++) {
		static const char quote = '"';
		int depth = 0;

		if (*p != '{')
			continue;
		for (from = p; p < line + n; p++) {
			if (*p == quote)
				for (p++; p < line + n && *p != quote; p++)
					p += *p == '\\';
			depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
			if (!depth)
				break;
		}
		buf_put(&text, from, (size_t)(p - from) + 1);
		buf_put(&text, "\n", 1);
	}
	journal_take(t, t->race_text ? t->race_text : "", text.at ? text.at : "", text.n);
	buf_free(&text);
	t->spent = rt_json_int(o, "spent", 0);
	t->rounds = (int)rt_json_int(o, "done", 0);
	t->race_text = NULL;
}

static void
read_choices(Tune *t, const Json *list)
{
	t->chosen = true;
	for (const Json *o = list->child; o; o = o->next)
		vec_push(t->arena, &t->won,
		         ((Won){.key = arena_strdup(t->arena, rt_json_str(o, "key", "")),
		                .kernel = arena_strdup(t->arena, rt_json_str(o, "kernel", "")),
		                .was = arena_strdup(t->arena, rt_json_str(o, "was", "")),
		                .choice = true,
		                .back = rt_json_bool(o, "back", false),
		                .gain = rt_json_num(o, "gain", 0),
		                .us = rt_json_num(o, "us", 0),
		                .was_us = rt_json_num(o, "was_us", 0),
		                .error = rt_json_num(o, "error", 0),
		                .share = rt_json_num(o, "share", 0),
		                .n = rt_json_int(o, "n", 0)}));
}

static bool
read_line(Tune *t, const char *line, size_t n)
{
	char why[128];
	JsonDoc *doc = NULL;
	const Json *o = rt_json_parse(line, n, &doc, why, sizeof why);
	bool good = o != NULL;

	if (rt_json_get(o, "round")) {
		t->race_text = arena_strdup(t->arena, rt_json_str(o, "race", ""));
		for (const char *p = t->race_text; (p = strchr(p, '\n')); p++)
			t->variants++;
		t->rounds = (int)rt_json_int(o, "round", 0);
	} else if (rt_json_get(o, "done")) {
		read_done(t, line, n, o);
	} else if (rt_json_get(o, "choices")) {
		read_choices(t, rt_json_get(o, "choices"));
	} else {
		good = good && rt_json_get(o, "end");
	}
	rt_json_free(doc);
	return good;
}

/* cut: bytes of the file that are whole lines. */
static bool
read_all(Tune *t, const char *head, const char *text, size_t bytes, size_t *cut)
{
	int line = 0;

	for (*cut = 0; *cut < bytes;) {
		const char *at = text + *cut, *end = memchr(at, '\n', bytes - *cut);
		size_t n = end ? (size_t)(end - at) : 0;

		if (!end)
			break;
		if (line++ == 0 ? n != strlen(head) || memcmp(at, head, n) : !read_line(t, at, n)) {
			failure(line == 1 ? "'%s' is the journal of another search: of another model or tuning file, "
			                    "or with "
			                    "other options; without --resume a new one begins once it is gone"
			                  : "'%s', line %d: this is no line of a search",
			        t->journal, line);
			return false;
		}
		*cut += n + 1;
	}
	return true;
}

static bool
has_ended(const char *text, size_t n)
{
	size_t from = n;

	while (from > 0 && (from == n || text[from - 1] != '\n'))
		from--;
	return n == 0 || (n - from > 7 && !memcmp(text + from, "{\"end\":", 7));
}

bool
journal_open(Tune *t, const char *what)
{
	size_t bytes = 0, cut = 0;
	char *text = NULL;
	bool good = true;

	t->fd = -1;
	if (!t->journal)
		return true;
	if (file_special(t->journal)) {
		failure("cannot write '%s': it is no file", t->journal);
		return false;
	}
	if (!access(t->journal, F_OK))
		text = file_read(t->journal, &bytes);
	if (!t->o->resume && text && !has_ended(text, bytes)) {
		failure("'%s' is the journal of a search that is not at its end: --resume goes on with it; to begin "
		        "anew "
		        "remove it",
		        t->journal);
		good = false;
	}
	bool old = t->o->resume && text && !has_ended(text, bytes);

	if (good && old) {
		const char *kept = arena_strndup(t->arena, text, bytes);

		good = read_all(t, what, kept, bytes, &cut);
	}
	free(text);
	if (!good)
		return false;
	if (!cut && t->race)
		unlink(t->race);
	t->fd = open(t->journal, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (t->fd < 0 || ftruncate(t->fd, (off_t)cut)) {
		failure("cannot write '%s': %s", t->journal, strerror(errno));
		return false;
	}
	return cut || journal_put(t, "%s", what);
}

void
journal_close(Tune *t, bool ended)
{
	if (t->fd < 0)
		return;
	if (ended)
		journal_put(t, "{\"end\": \"done\"}");
	close(t->fd);
	t->fd = -1;
	if (ended && t->race)
		unlink(t->race);
}
