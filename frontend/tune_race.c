/* tune_race.c: races of kernels in programs made for that (runtime/race), round after round.
 *
 * In: a program and what is tried in it.   Out: what won, in Tune.won; the races' lines, in Tune.line. A round: the
 * candidates' race file, a program built with it, its command race in a process, the journal that it leaves. Ends when
 * a round has promised too little, or the time is the final's. */
#define _GNU_SOURCE
#include "tune.h"
#include "../runtime/race/race.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- a race's program */
const char *
race_file(Tune *t, const Program *p, int *variants, int *records)
{
	static const char *const bits[] = {"same", "order", "round"};
	Buf b = {0};

	*variants = *records = 0;
	for (uint32_t i = 0; i < p->record.n; i++) {
		const Record *r = &p->record.at[i];

		*records += r->variant.n > 0;
		for (uint32_t k = 0; k < r->variant.n; k++, ++*variants)
			buf_printf(&b, "%s : %s ; bits=%s\n", r->key, r->variant.at[k].kernel,
			           bits[r->variant.at[k].bits]);
	}
	const char *text = arena_strndup(t->arena, b.at ? b.at : "", b.n);

	buf_free(&b);
	return text;
}

static bool
write_text(const char *path, const char *text, size_t n)
{
	if (file_write(path, text, n))
		return true;
	failure("cannot write '%s': %s", path, strerror(errno));
	return false;
}

/* Where line n of text begins. */
static char *
line_at(char *text, int n)
{
	while (n-- > 0)
		text = strchr(text, '\n') + 1;
	return text;
}

static void
count_failure(Tune *t, const char *why)
{
	for (uint32_t i = 0; i < t->failure.n; i++)
		if (!strcmp(t->failure.at[i].why, why)) {
			t->failure.at[i].n++;
			return;
		}
	vec_push(t->arena, &t->failure, ((Failure){why, 1}));
}

/* Builds with the first n lines. *killed: the compiler was. */
static bool
build_lines(Tune *t, const char *tuning, char *text, int n, int *killed)
{
	const char *file = tune_file(t, "race.txt");

	return write_text(file, text, (size_t)(line_at(text, n) - text))
		&& tune_build(t, tuning, file, tune_file(t, "racing"), killed);
}

/* Builds the racing program. What kills the compiler is found by halving: the last of the fewest first lines that do;
 * it goes from text. False: it cannot be built, which was said. */
bool
race_build(Tune *t, const char *tuning, char *text)
{
	int lines = 0, killed = 0;

	for (const char *p = text; (p = strchr(p, '\n')); p++)
		lines++;
	while (!build_lines(t, tuning, text, lines, &killed)) {
		int good = 0, bad = lines;

		if (!killed || tune_interrupted())
			return false;
		while (bad - good > 1) {
			int half = (good + bad) / 2;

			build_lines(t, tuning, text, half, &killed);
			if (tune_interrupted())
				return false;
			*(killed ? &bad : &good) = half;
		}
		if (!lines)
			return failure("the compiler was ended by signal %d", killed) == EXIT_GOOD;
		char *from = line_at(text, bad - 1), *to = line_at(text, bad);

		tune_line(t, "out", "%.*s: it kills the compiler", (int)(to - 1 - from), from);
		count_failure(t, "kills the compiler");
		memmove(from, to, strlen(to) + 1);
		lines--;
	}
	return true;
}

/* Lines of the race: its rungs are told with the search's time, what is out as it is. */
static void
say_race(void *cx, const char *line)
{
	const Tune *t = cx;
	int rung, open, left, all;

	if (sscanf(line, "race %d %d kernels, %d of %d variants left", &rung, &open, &left, &all) == 4) {
		int64_t now = tune_spent(t) / 1000000000, of = t->budget / 1000000000;
		const char *predicted = strstr(line, ", predicted");

		tune_line(t, arena_printf(t->arena, "race %d", t->rounds),
		          "rung %d, %d kernels, %d of %d variants left, "
		          "%" PRId64 ":%02" PRId64 " of %" PRId64 ":%02" PRId64 "%s",
		          rung, open, left, all, now / 60, now % 60, of / 60, of % 60, predicted ? predicted : "");
		return;
	}
	if (!strncmp(line, "baseline", 8) || !strncmp(line, "checked ", 8) || strstr(line, "kernels have a faster one"))
		return;
	if (!t->o->quiet || !strncmp(line, "mantou", 6))
		fprintf(stderr, "%s\n", line);
}

/* Runs it until it is over: a race that something has killed goes on, three times. */
static int
run_race(Tune *t, double race_ns, bool goes_on)
{
	int64_t since = tune_now();
	int status = 0;

	for (int k = 0; k < 3; k++) {
		const char *argv[32] = {tune_file(t, "racing"),
		                        "race",
		                        "--budget",
		                        arena_printf(t->arena, "%.3fs", race_ns * 1e-9),
		                        "--seed",
		                        arena_printf(t->arena, "%" PRId64, t->seed),
		                        "--threads",
		                        arena_printf(t->arena, "%d", t->threads),
		                        "-o",
		                        t->race,
		                        "--graph",
		                        t->graph};
		int n = 12;

		if (k || goes_on)
			argv[n++] = "--resume";
		if (t->o->isolate)
			argv[n++] = "--isolate";
		if (t->o->data) {
			argv[n++] = "--data";
			argv[n++] = t->o->data;
		}
		if (t->o->costs) {
			argv[n++] = "--costs";
			argv[n++] = t->o->costs;
		}
		Buf out = {0};

		status = tune_run(argv, true, &out, say_race, t);
		buf_free(&out);
		if (status != 128 + 9 || tune_interrupted())
			break;
	}
	t->phase[2] += tune_now() - since;
	return status;
}

/* In the table's time what the race says it took. */
static void
count_costs(Tune *t, const char *text, size_t n)
{
	int64_t spent = 0;

	for (const char *p = text; t->costs && (p = memmem(p, n - (size_t)(p - text), "\"spent\": ", 9)); p++)
		spent = strtoll(p + 9, NULL, 10);
	t->spent += spent;
}

/* Nanoseconds that races may still take: a fifth of the budget is the final's, or what six pairs take at least: two
 * trainings of three steps, a program, twelve runs of a few steps. */
static double
left_to_race(const Tune *t)
{
	double least = t->costs ? 0 : 1.5e9 * t->build + 2 * (5 * t->step + 1e9) + 12 * (3 * t->step + 0.8e9);

	return (double)t->budget - fmax(0.2 * (double)t->budget, least) - (double)tune_spent(t);
}

/* p: the program that stands; text: the kernels that race in it. EXIT_STOPPED: after Ctrl-C, with what there is. */
static int
race_round(Tune *t, const char *tuning, const char *given, double race_ns)
{
	char *text = arena_strdup(t->arena, given);
	bool goes_on = t->race_text != NULL;

	if (!goes_on && !journal_begin(t, given))
		return EXIT_FAILED;
	if (!race_build(t, tuning, text))
		return tune_interrupted() ? EXIT_STOPPED : EXIT_FAILED;
	/* building was beyond what was thought, perhaps; the race checks its kernels all the same */
	race_ns = fmax(fmin(race_ns, left_to_race(t)), 1e9);
	int status = run_race(t, race_ns, goes_on);
	size_t n = 0;
	char *lines = file_read(t->race, &n);
	bool any = lines && journal_take(t, text, lines, n);

	if (lines)
		count_costs(t, lines, n);
	free(lines);
	if (status != 0 && status != EXIT_STOPPED && !tune_interrupted())
		return failure("the race ended with status %d", status);
	if (tune_interrupted())
		return EXIT_STOPPED;
	if (!any)
		return failure("the race has no results");
	return journal_done(t) ? EXIT_GOOD : EXIT_FAILED;
}

/* A kernel more takes that much of building, nanoseconds. */
static int
affordable_variants(const Tune *t, const Program *p, double ns)
{
	int groups = 0;

	for (uint32_t i = 0; i < p->module->graph.n; i++)
		groups += (int)p->module->graph.at[i]->group.n;
	double each = t->build * 1e9 / (groups ? groups : 1);

	double n = each > 0 ? ns * 0.25 / each : INFINITY;

	return t->costs || n > INT32_MAX ? INT32_MAX : n > 0 ? (int)n : 0;
}

void
race_cut(Program *p, int most)
{
	int all = 0;

	for (uint32_t i = 0; i < p->record.n; i++)
		all += (int)p->record.at[i].variant.n;
	while (all > most) {
		Record *longest = NULL;

		for (uint32_t i = 0; i < p->record.n; i++)
			if (!longest || p->record.at[i].variant.n > longest->variant.n ||
			    (p->record.at[i].variant.n == longest->variant.n && p->record.at[i].share < longest->share))
				longest = &p->record.at[i];
		longest->variant.n--;
		all--;
	}
}

static double
promised_gain(const Tune *t)
{
	double gain = 0;

	for (uint32_t i = 0; i < t->won.n; i++)
		gain += t->won.at[i].raced_last ? t->won.at[i].gain * t->won.at[i].share : 0;
	return gain;
}

/* Round after round; the first with the program at hand, later ones with what has won in it. */
int
race_rounds(Tune *t, Program *base)
{
	enum { FIRST = 16, LATER = 8 };
	const char *tuning = base->job.o->tuning;
	int status = EXIT_GOOD;

	while (status == EXIT_GOOD && t->rounds < TUNE_ROUNDS && !tune_interrupted()) {
		double left = left_to_race(t), race_ns = t->rounds || t->simulated ? left : 0.7 * left;
		const char *text = t->race_text;
		Program now = {0}, *p = base;
		int variants = 0, records = 0;

		if (left <= 0 || (t->rounds && !text && (promised_gain(t) < 0.003 || left < 0.1 * (double)t->budget)))
			break;
		if (t->won.n) {
			bool *in = arena_array(t->arena, bool, t->won.n);

			memset(in, 1, t->won.n);
			tuning = tune_file(t, "round.tune");
			if (!final_file(t, base, in, tuning))
				return EXIT_FAILED;
			status = tune_program(t, tuning, &now);
			p = &now;
			for (uint32_t i = 0; i < now.record.n; i++) {
				const Record *r = program_record(base, now.record.at[i].key);

				now.record.at[i].share = r ? r->share : 0;
				now.record.at[i].us = r ? r->us : 0;
				now.record.at[i].own = r ? r->own : NULL;
			}
		}
		t->rounds += !text;
		if (status == EXIT_GOOD && !text) {
			tune_candidates(t, p, t->rounds > 1 ? 1 : 2, race_ns, t->rounds > 1 ? LATER : FIRST);
			int most = affordable_variants(t, p, race_ns);

			if (t->o->trials && t->o->trials - t->variants < most)
				most = (int)(t->o->trials - t->variants);
			race_cut(p, most);
			text = race_file(t, p, &variants, &records);
			t->variants += variants;
		}
		if (status == EXIT_GOOD && *text) {
			if (variants)
				tune_line(t, arena_printf(t->arena, "race %d", t->rounds), "%d kernels, %d variants",
				          records, variants);
			status = race_round(t, tuning, text, race_ns);
		}
		bool none = status == EXIT_GOOD && !*text;

		program_free(&now);
		if (none || t->simulated)
			break;
	}
	return status == EXIT_STOPPED ? EXIT_GOOD : status;
}
