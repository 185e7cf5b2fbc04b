/* main.c: main() of a racing program: the command race; every other goes to the program as it is without.
 *
 * In: the command line, a code object with "races".   Out: a journal (journal.c), a line for each kernel that won, exit
 * status: 0 the race is over or its time is, 1 it cannot go on, 2 wrong usage, 128 and a signal's number after one.
 * README.md says what is measured. Here: options, the two processes' common life, and which death is whose. */
#define _GNU_SOURCE
#include "race.h"
#include "../entry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int rt_race_main(int argc, char **argv, const RtCodeObject *const *objects, int nobjects);

/* ---- options */
typedef enum RaceOpt { OPT_TEXT, OPT_SPAN, OPT_NUMBER, OPT_RUNGS, OPT_FLAG, OPT_GRAPH } RaceOpt;
typedef struct RaceOption { const char *name, *arg; RaceOpt kind; const char *help; } RaceOption;
static const RaceOption race_options[] = {
	{"budget", "TIME", OPT_SPAN, "wall time: 90s, 8m (default), 1h; what was spent before --resume counts"},
	{"data", "DIR", OPT_TEXT, "folder of the data files"},
	{"synthetic", NULL, OPT_FLAG, "random data of the right shapes (the default)"},
	{"graph", "NAME", OPT_GRAPH, "what is timed: train (default), eval or infer"},
	{"threads", "N", OPT_NUMBER, "threads of every kernel (default: the CPUs this process may use)"},
	{"seed", "N", OPT_NUMBER, "seed of the order in which kernels run (default 1)"},
	{"rungs", "N,N,..", OPT_RUNGS, "samples of a kernel at which some leave; the last: fresh ones (2,4,8,16)"},
	{"output", "FILE", OPT_TEXT, "the journal, also -o (default PROGRAM.race)"},
	{"resume", NULL, OPT_FLAG, "go on with the journal"},
	{"isolate", NULL, OPT_FLAG, "a process for each kernel: its checks, and steps in which no other than it runs"},
	{"checks", NULL, OPT_FLAG, "compare results, and time nothing (so it is on a simulated device)"},
	{"costs", "FILE", OPT_TEXT, "times from a table in place of the clock: for tests"},
	{"quiet", NULL, OPT_FLAG, "print errors only"},
};

static int
race_usage(const Race *r, const char *fmt, const char *a)
{
	fprintf(stderr, "%s race: ", r->h->opt.program);
	fprintf(stderr, fmt, a);
	fprintf(stderr, "\n`%s race --help` lists the options\n", r->h->opt.program);
	return 2;
}

static int
race_help(const Race *r)
{
	printf("usage: %s race [options]\nrun kernels against each other within training steps; the last result lines "
	       "of the journal say who won\n\n",
	       r->h->opt.program);
	for (int i = 0; i < RT_COUNT(race_options); i++) {
		char left[64];

		snprintf(left, sizeof left, race_options[i].arg ? "--%s %s" : "--%s", race_options[i].name,
		         race_options[i].arg);
		printf("  %-22s %s\n", left, race_options[i].help);
	}
	printf("\nexample: %s race --budget 8m -o results.race\n", r->h->opt.program);
	return 0;
}

/* "8m", "90s", "1h": nanoseconds. */
static bool
race_span(const char *text, int64_t *ns)
{
	char *end;
	double x = strtod(text, &end), unit = strcmp(end, "s") == 0   ? 1
	                                      : strcmp(end, "m") == 0 ? 60
	                                      : strcmp(end, "h") == 0 ? 3600
	                                                              : 0;

	*ns = (int64_t)(x * unit * 1e9);
	return end != text && unit > 0 && x >= 0 && x <= 1e6;
}

static bool
race_number(const char *text, int64_t low, int64_t high, int64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoll(text, &end, 10);
	return end != text && !*end && !errno && *out >= low && *out <= high;
}

/* "2,4,8,16": growing but for the last, which stands for itself. */
static bool
race_rungs(Race *r, const char *text)
{
	char *end;

	for (r->nrung = 0; r->nrung < RACE_RUNGS; text = end + 1) {
		long n = strtol(text, &end, 10);

		if (end == text || n < 1 || n > 100000)
			return false;
		r->rung[r->nrung++] = (int)n;
		if (!*end)
			return true;
		if (*end != ',')
			return false;
	}
	return false;
}

static int
race_set(Race *r, int which, const char *value)
{
	RtOptions *o = &r->h->opt;
	const char *name = race_options[which].name;
	bool good = true;

	switch (race_options[which].kind) {
	case OPT_SPAN: good = race_span(value, &r->budget); break;
	case OPT_RUNGS: good = race_rungs(r, value); break;
	case OPT_GRAPH:
		r->which = strcmp(value, "eval") == 0    ? RT_G_EVAL
		           : strcmp(value, "infer") == 0 ? RT_G_INFER
		                                         : RT_G_TRAIN;
		good = r->which != RT_G_TRAIN || strcmp(value, "train") == 0;
		break;
	case OPT_NUMBER:
		good = *name == 't' ? race_number(value, 1, RT_MAX_THREADS, &o->threads)
		                    : race_number(value, INT64_MIN, INT64_MAX, &o->seed);
		break;
	case OPT_FLAG:
		*(*name == 's'   ? &o->synthetic
		  : *name == 'r' ? &r->resume
		  : *name == 'c' ? &r->checks
		  : *name == 'i' ? &r->isolate
		                 : &o->quiet) = true;
		break;
	case OPT_TEXT: *(*name == 'd' ? &o->data : *name == 'o' ? &r->output : &r->costs_path) = value; break;
	}
	return good ? -1 : race_usage(r, rt_printf("--%s wants %s, not '%%s'", name, race_options[which].arg), value);
}

/* -1, or an exit status. */
static int
race_read_options(Race *r, int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		const char *arg = strcmp(argv[i], "-o") == 0 ? "--output" : argv[i], *equals = strchr(arg, '=');
		size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
		int k = 0, status;

		if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
			return race_help(r);
		while (k < RT_COUNT(race_options) &&
		       (n < 3 || strncmp(arg, "--", 2) != 0 || strlen(race_options[k].name) != n - 2 ||
		        memcmp(race_options[k].name, arg + 2, n - 2) != 0))
			k++;
		if (k == RT_COUNT(race_options))
			return race_usage(r, "unknown option %s", arg);
		if (!race_options[k].arg && equals)
			return race_usage(r, "%s takes no value", race_options[k].name);
		if (race_options[k].arg && !equals && i + 1 == argc)
			return race_usage(r, "%s wants a value", arg);
		status = race_set(r, k, !race_options[k].arg ? "" : equals ? equals + 1 : argv[++i]);
		if (status >= 0)
			return status;
	}
	if (r->h->opt.data && r->h->opt.synthetic)
		return race_usage(r, "--data and --synthetic%s", " exclude each other");
	if (r->checks && r->costs_path)
		return race_usage(r, "--checks and --costs%s", " exclude each other");
	return -1;
}

/* ---- signals: the first ends the race with its step, the second at once */
static volatile sig_atomic_t race_signal;

static void
race_interrupt(int number)
{
	if (race_signal)
		_exit(128 + number);
	race_signal = number;
}

static void
race_catch(void)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction a = {.sa_handler = race_interrupt};

	for (int i = 0; i < RT_COUNT(numbers); i++)
		sigaction(numbers[i], &a, NULL);
	signal(SIGPIPE, SIG_IGN);                /* a worker that is gone is found by its pipe */
	signal(SIGXFSZ, SIG_IGN);                /* a full quota is an error of write(), not a death */
}

/* ---- what is said */
/* The rung that all records have reached. */
static int
race_rung(const Race *r)
{
	int rung = r->nrung + 1;

	for (int i = 0; i < r->table.nrecord; i++)
		rung = r->run[i].rung < rung ? r->run[i].rung : rung;
	return rung;
}

/* Of the step, what is saved if all records run what leads them now; a share. */
static double
race_promise(const Race *r)
{
	double step = 0, saved = 0;

	for (int u = 0; u < r->table.nunit; u++)
		step += race_reference(r, u);
	for (int i = 0; i < r->table.nrecord; i++) {
		const RaceScore *s = &r->run[i].score[r->run[i].leader];
		RaceInterval t = race_interval(s->fresh.n ? &s->fresh : &s->all);

		for (int g = 0; g < r->table.record[i].ngroup && r->run[i].leader && t.middle < 1; g++)
			saved += (1 - t.middle) * race_reference(r, r->table.group[r->table.record[i].group[g]].unit);
	}
	return step > 0 ? saved / step : 0;
}

static void
race_say(const Race *r, int rung)
{
	int left = 0, all = 0, open = 0;
	double step = 0;

	for (int u = 0; u < r->table.nunit; u++)
		step += race_reference(r, u);
	for (int i = 0; i < r->table.nrecord; i++) {
		left += race_over(r, i) ? 0 : race_alive(r, i);
		all += r->table.record[i].ntext;
		open += !race_over(r, i);
	}
	if (!r->h->opt.quiet)
		fprintf(stderr,
		        "race %-4d %d kernels, %d of %d variants left, %.0f s of %.0f s, predicted %.4g ms (%+.1f "
		        "%%)\n",
		        rung, open, left, all, (double)r->spent * 1e-9, (double)r->budget * 1e-9,
		        1e-6 * step * (1 - race_promise(r)), -100 * race_promise(r));
}

static void
race_say_baseline(const Race *r)
{
	double step = 0, race = 0;

	for (int u = 0; u < r->table.nunit; u++) {
		step += race_reference(r, u);
		race += r->table.unit[u].group >= 0 ? race_reference(r, u) : 0;
	}
	if (!r->h->opt.quiet && step > 0)
		fprintf(stderr,
		        "baseline  %.4g ms a step, %d kernels that race, %d of them different, %.0f %% of the step, "
		        "seed %lld\n",
		        step * 1e-6, r->table.ngroup, r->table.nrecord, 100 * race / step, (long long)r->h->opt.seed);
}

/* Of a race that only checks. */
static void
race_say_checked(const Race *r)
{
	int all = 0, good = 0;

	for (int i = 0; i < r->table.nrecord; i++) {
		all += r->table.record[i].ntext - 1;
		good += race_alive(r, i) - 1;
	}
	if (!r->h->opt.quiet)
		fprintf(stderr,
		        "checked   %d of %d variants of %d kernels compute what the program's own do; nothing was "
		        "timed%s\n",
		        good, all, r->table.nrecord, r->simulated ? ": the device is simulated" : "");
}

static void
race_say_winners(const Race *r)
{
	int won = 0;

	for (int i = 0; i < r->table.nrecord; i++) {
		const RaceRecord *rec = &r->table.record[i];
		const RaceRun *run = &r->run[i];

		if (!run->winner)
			continue;
		won++;
		if (!r->h->opt.quiet)
			printf("%s : %s ; gain=%.1f%% %.1f..%.1f n=%d\n", rec->key, rec->text[run->winner].kernel,
			       100 * run->gain.middle, 100 * run->gain.low, 100 * run->gain.high,
			       run->score[run->winner].all.n + run->score[run->winner].fresh.n);
	}
	if (!r->h->opt.quiet)
		fprintf(stderr,
		        "%d of %d kernels have a faster one, after %lld steps; references were taken anew %lld times\n",
		        won, r->table.nrecord, (long long)r->next, (long long)r->unquiet);
}

/* ---- deaths */
static void
race_say_out(const Race *r, int group, int text, RaceVerdict verdict, const char *detail)
{
	const RaceGroup *g = &r->table.group[group];

	if (!r->h->opt.quiet)
		fprintf(stderr, "out       %s of %s: %s%s%s\n", r->table.record[g->record].text[text].kernel, g->name,
		        race_verdicts[verdict], *detail ? ": " : "", detail);
}

static bool
race_put_out(Race *r, int group, int text, RaceVerdict verdict, const char *detail)
{
	race_drop(r, r->table.group[group].record, text, verdict);
	race_say_out(r, group, text, verdict, detail);
	return race_journal_out(r, group, text, verdict, detail);
}

/* The worker is gone: whose fault was it? False: nobody's, and it is the third time. */
static bool
race_death(Race *r, RaceEnd end, int number)
{
	const RaceShared *s = r->shared;
	int unit = s->unit, group = unit >= 0 && unit < r->table.nunit ? r->table.unit[unit].group : -1,
	    text = group >= 0 ? s->text : 0;

	if (!race_journal_good(r))
		return false;
	if (r->device && !s->careful && s->what == RACE_STEP && number != SIGKILL) {
		r->careful = true;
		return true;
	}
	if (text > 0 && !(end == RACE_DIED && number == SIGKILL))
		return race_put_out(r, group, text,
		                    end == RACE_HUNG ? RACE_BAD_HANG
		                    : s->stray       ? RACE_BAD_STRAY
		                                     : RACE_BAD_CRASH,
		                    s->error.text);
	if (!race_journal_death(r, number, unit))
		return false;
	if (++r->deaths >= 3)
		return rt_fail(&r->h->error,
		               "the racing process has died three times for which no kernel is to blame, the last time "
		               "by signal %d%s%s",
		               number, *s->error.text ? ": " : "", s->error.text);
	return true;
}

/* Runs a step or a check; a new worker where there is none. *end: what came of it. */
static bool
race_do(Race *r, RaceWhat what, RaceEnd *end)
{
	int number = 0;

	if (!r->worker && !race_worker_start(r))
		return false;
	r->checked = r->checked || what == RACE_CHECK;
	*end = race_worker_run(r, what, r->next, &number);
	if (*end == RACE_FAILED) {
		r->h->error = r->shared->error;
		return false;
	}
	return *end == RACE_DONE || race_death(r, *end, number);
}

static void
race_clock(Race *r, const int64_t *ns)
{
	if (!r->costs)
		r->spent = (int64_t)(rt_now() * 1e9) - r->begun;
	for (int u = 0; r->costs && ns && u < r->table.nunit; u++)
		r->spent += ns[u];
}

/* Steps of baselines alone, so that no state is as it began. */
static bool
race_warm(Race *r, RaceEnd *end)
{
	int64_t next = r->next;

	memset(race_shared_order(r), 0, sizeof(int32_t) * (size_t)r->table.ngroup);
	*end = RACE_DONE;
	for (int i = 0; i < RACE_WARMUP && *end == RACE_DONE; i++)
		if (!race_do(r, RACE_STEP, end))
			return false;
	r->next = next;
	r->ready = *end == RACE_DONE;
	return true;
}

/* ---- checks */
static bool
race_unchecked(const Race *r)
{
	for (int g = 0; g < r->table.ngroup; g++) {
		const RaceGroup *group = &r->table.group[g];

		for (int t = 1; t < r->table.record[group->record].ntext; t++)
			if (group->rows[t].n && race_shared_verdict(r, g)[t] == RACE_UNKNOWN)
				return true;
	}
	return false;
}

static bool
race_verdicts_in(Race *r)
{
	if (!race_journal_good(r))
		return false;
	for (int g = 0; g < r->table.ngroup; g++) {
		const RaceGroup *group = &r->table.group[g];

		for (int t = 1; t < r->table.record[group->record].ntext; t++) {
			RaceVerdict v = (RaceVerdict)race_shared_verdict(r, g)[t];

			if (v > RACE_GOOD && r->known[(size_t)g * (size_t)r->table.most + (size_t)t] != v &&
			    !race_put_out(r, g, t, v, race_shared_detail(r, g)))
				return false;
		}
	}
	return true;
}

/* ---- --isolate */
/* The first kernel that is not checked; false: all are. */
static bool
race_next_check(const Race *r, int *record, int *text)
{
	for (int g = 0; g < r->table.ngroup; g++) {
		const RaceGroup *group = &r->table.group[g];

		for (int t = 1; t < r->table.record[group->record].ntext; t++)
			if (group->rows[t].n && race_shared_verdict(r, g)[t] == RACE_UNKNOWN) {
				*record = group->record;
				*text = t;
				return true;
			}
	}
	return false;
}

/* The worker is this kernel's alone: another's ends. Text 0 is nobody's. */
static void
race_isolate(Race *r, int record, int text)
{
	if (r->worker && text > 0 && r->worker_text > 0 && (r->worker_record != record || r->worker_text != text))
		race_worker_stop(r);
	if (!r->worker)
		r->worker_text = 0;
	if (text > 0) {
		r->worker_record = record;
		r->worker_text = text;
	}
}

static void
race_isolate_check(Race *r)
{
	RaceShared *s = r->shared;

	s->only_record = -1;
	if (r->isolate && race_next_check(r, &s->only_record, &s->only_text))
		race_isolate(r, s->only_record, s->only_text);
}

/* The one kernel beside the groups' own that runs in a step. */
static void
race_isolate_step(Race *r, const int32_t *order)
{
	for (int g = 0; g < r->table.ngroup && r->isolate; g++)
		if (order[g] > 0)
			race_isolate(r, r->table.group[g].record, order[g]);
}

/* ---- steps */
static bool
race_step(Race *r)
{
	const RaceTable *t = &r->table;
	int32_t *order = race_shared_order(r);
	int64_t *ns = race_shared_time(r);
	RaceKind kind = race_plan(r, r->next, order);
	int64_t unquiet = r->unquiet;
	RaceEnd end;
	int rung = race_rung(r);

	race_isolate_step(r, order);
	if (!r->worker) {                        /* another's has ended: the step comes behind the new one's first */
		r->ready = false;
		return true;
	}
	if (!race_do(r, RACE_STEP, &end))
		return false;
	if (end != RACE_DONE)
		return true;                         /* the step is made again */
	r->careful = false;
	for (int u = 0; r->costs && u < t->nunit; u++) {
		const RaceUnit *unit = &t->unit[u], *last = u ? unit - 1 : NULL;
		const char *kernel = unit->group < 0
		                             ? NULL
		                             : t->record[t->group[unit->group].record].text[order[unit->group]].kernel;
		const char *before = !last || last->group < 0
		                             ? NULL
		                             : t->record[t->group[last->group].record].text[order[last->group]].kernel;

		ns[u] = race_costs_time(r->costs, (uint64_t)r->h->opt.seed, r->next, u, unit->limit, kernel, before);
	}
	race_clock(r, ns);
	if (!race_journal_step(r, r->next, kind, order, ns))
		return false;
	race_take(r, r->next++, kind, order, ns);
	if (kind == RACE_REFERENCE && !r->references && !r->unquiet)
		race_say_baseline(r);
	if (race_rung(r) != rung)
		race_say(r, race_rung(r));
	if (r->unquiet != unquiet && unquiet == 0 && !r->h->opt.quiet)
		fprintf(stderr, "note: a third of the last steps were thrown away: the machine is not quiet; new "
		                "references are taken\n");
	return true;
}

static bool
race_check(Race *r, RaceEnd *end)
{
	race_isolate_check(r);
	return !r->worker || (race_do(r, RACE_CHECK, end) && race_verdicts_in(r));
}

static bool
race_all_over(const Race *r)
{
	for (int i = 0; i < r->table.nrecord; i++)
		if (!race_over(r, i))
			return false;
	return true;
}

/* To the end, to the end of the budget, or to a signal. */
static bool
race_run(Race *r)
{
	RaceEnd end = RACE_DONE;

	while (!race_signal && !race_all_over(r) && r->spent < r->budget) {
		bool good;

		if (r->checks && r->ready && !race_unchecked(r))
			break;
		/* read-only pages have split the large ones: times are another worker's */
		if (r->worker && r->checked && !race_unchecked(r))
			race_worker_stop(r);
		if (!r->worker || !r->ready)
			good = race_warm(r, &end);
		else if (race_unchecked(r))
			good = race_check(r, &end);
		else
			good = race_step(r);
		if (!good)
			return false;
		if (r->next == 0)
			race_clock(r, NULL);
	}
	return true;
}

/* ---- before and behind it */
static bool
race_prepare(Race *r, const RtCodeObject *const *objects, int nobjects)
{
	RtHost *h = r->h;
	RtError *e = &h->error;
	const RaceTable *t = &r->table;

	if (nobjects && objects[0]->device ? !race_device_open(r, objects, nobjects)
	                                   : !rt_host_open(h, objects, nobjects))
		return false;
	if (h->object->call)
		return rt_fail(e, "an interpreter has no kernels that race");
	r->checks = r->checks || (r->simulated && !r->costs_path);
	if (!race_table_read(&r->table, r->which, &h->program, h->object, e))
		return false;
	if (r->costs_path && !(r->costs = race_costs_read(r->costs_path, e)))
		return false;
	if (h->opt.threads < 1)
		h->opt.threads = rt_cpus() < RT_MAX_THREADS ? rt_cpus() : RT_MAX_THREADS;
	if (h->opt.data ? !rt_data_load(&h->program, &h->opt, true, &r->data, e)
	                : !rt_data_synthetic(&h->program, h->program.seed, h->program.batch * h->program.accumulate * 8,
	                                     &r->data, e))
		return false;
	if (r->data.examples < h->program.batch)
		return rt_fail(e, "%lld training examples are fewer than one batch of %lld",
		               (long long)r->data.examples, (long long)h->program.batch);
	r->shared_bytes = race_shared_bytes(t);
	r->shared = mmap(NULL, r->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (r->shared == MAP_FAILED)
		return rt_fail(e, "out of memory for what two processes share: %s", strerror(errno));
	r->run = rt_alloc(sizeof *r->run * (size_t)t->nrecord);
	for (int i = 0; i < t->nrecord; i++)
		r->run[i].score = rt_alloc(sizeof *r->run[i].score * (size_t)t->record[i].ntext);
	r->reference = rt_alloc(sizeof *r->reference * (size_t)t->nunit);
	r->expect = rt_alloc(sizeof *r->expect * (size_t)t->nunit);
	r->known = rt_alloc((size_t)t->ngroup * (size_t)t->most);
	r->references = RACE_REFERENCES;
	if (!r->output)
		r->output = rt_printf("%s.race", h->opt.program);
	return race_journal_open(r);
}

static int
race_all(Race *r, const RtCodeObject *const *objects, int nobjects)
{
	const char *end;

	race_catch();
	if (!race_prepare(r, objects, nobjects))
		return rt_die(r->h);
	r->begun = r->costs ? 0 : (int64_t)(rt_now() * 1e9) - r->spent;
	bool good = r->done || race_run(r);

	race_worker_stop(r);
	if (!good)
		return rt_die(r->h);
	end = r->checks && !race_signal && !race_unchecked(r) ? "checked"
	      : race_all_over(r)                              ? "done"
	      : race_signal                                   ? "stopped"
	                                                      : "budget";
	for (int i = 0; i < r->table.nrecord; i++)
		if (!race_over(r, i))
			race_settle(r, i);
	if (!r->done && !race_journal_results(r, end))
		return rt_die(r->h);
	(r->checks ? race_say_checked : race_say_winners)(r);
	return race_signal && strcmp(end, "stopped") == 0 ? 128 + (int)race_signal : 0;
}

int
rt_race_main(int argc, char **argv, const RtCodeObject *const *objects, int nobjects)
{
	Race *r;
	int status;

	if (argc < 2 || strcmp(argv[1], "race") != 0)
		return rt_main(argc, argv, objects, nobjects);
	r = rt_alloc(sizeof *r);
	r->h = rt_alloc(sizeof *r->h);
	r->h->opt = (RtOptions){.command = RT_C_BENCH,
	                        .program = rt_basename(argv[0]),
	                        .epochs = -1,
	                        .steps = -1,
	                        .stop = -1,
	                        .sink = 0,
	                        .seed = 1};
	r->budget = (int64_t)480 * 1000000000;
	r->which = RT_G_TRAIN;
	r->journal.fd = r->journal.lock.fd = -1;
	r->nrung = 4;
	memcpy(r->rung, (int[]){2, 4, 8, 16}, 4 * sizeof *r->rung);
	r->h->start = rt_now();
	status = race_read_options(r, argc, argv);
	if (status < 0)
		status = race_all(r, objects, nobjects);
	race_journal_close(r);
	return status;
}

int
main(int argc, char **argv)
{
	return rt_entry(argc, argv, rt_race_main);
}
