/* tune_final.c: what a search writes: whether the records that won make the whole program faster, with the same
 * states; the tuning file; its lock.
 *
 * Method: the program as `build` makes it with them, and that without, in fresh processes A B B A ..; ratios by pairs,
 * their median of Walsh averages and Wilcoxon's distribution-free interval of 95 % (Hollander and Wolfe,
 * Nonparametric Statistical Methods, 3.1 to 3.3), until the interval says something or there are twelve. What is no
 * gain, or less than half of what races promise, is halved by promised gain and tried again, three times. Before
 * anything is written both programs train three steps from one seed: of records of class `same` all states must be
 * equal, else losses must be near. */
#include "tune.h"
#include "../runtime/race/race.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAIRS = 12, PAIRS_LEAST = 6, HALVES = 3, STATES_STEPS = 3 };

/* ---------------------------------------------------------------- records as lines */
const char *
tune_value(const Tune *t, const Program *p, const char *kernel)
{
	if (p)
		return tuning_value(t->arena, p->cx.target, kernel);
	size_t n = strcspn(kernel, "{");

	return arena_printf(t->arena, "%.*s.%d%s", (int)n, kernel, TUNE_VERSION, kernel + n);
}

static const char *
line_of(const Tune *t, const Program *base, const Won *w)
{
	static const char *const bits[] = {"same", "order", "round"};

	return arena_printf(t->arena, "%s : %s ; us=%.4g +-%.1f%% was=%.4g n=%" PRId64 " step=%.1f%% bits=%s t=%d",
	                    w->key, tune_value(t, w->choice ? NULL : base, w->kernel), w->us, 100 * w->error, w->was_us,
	                    w->n, 100 * w->share, bits[w->bits], w->threads ? w->threads : t->threads);
}

/* Does a record of any machine stand behind this one? Then the kernel without a record is not the one of no file. */
static bool
has_general(const Program *base, const char *what)
{
	for (uint32_t i = 0; base->job.tuning && i < tuning_count(base->job.tuning); i++) {
		const TuneRecord *r = tuning_at(base->job.tuning, i);

		if (!strcmp(r->key + r->what, what) && r->key[r->machine] == '*')
			return true;
	}
	return false;
}

/* The change of the file that these make; its lists live in the search's arena. */
static TuneEdit
edit_of(Tune *t, const Program *base, const bool *in, TextList lock)
{
	VEC(const char *) line = {0}, drop = {0};

	for (uint32_t i = 0; i < t->won.n; i++) {
		const Won *w = &t->won.at[i];
		const Record *r = program_record(base, w->key);

		if (!in[i])
			continue;
		if (w->back || (r && r->own && !strcmp(r->own, w->kernel) && !has_general(base, r->what)))
			vec_push(t->arena, &drop, w->key);
		else
			vec_push(t->arena, &line, line_of(t, base, w));
	}
	for (int i = 0; i < lock.n; i++)
		vec_push(t->arena, &line, lock.at[i]);
	return (TuneEdit){.line = line.at, .nline = line.n, .drop = drop.at, .ndrop = drop.n};
}

bool
final_file(Tune *t, const Program *base, const bool *in, const char *path)
{
	TuneEdit e = edit_of(t, base, in, (TextList){0});
	Buf out = {0};

	tuning_edit(&out, t->arena, t->base.text, t->base.bytes, NULL, 0, &e);
	bool good = file_write(path, out.at, out.n);

	if (!good)
		failure("cannot write '%s': %s", path, strerror(errno));
	buf_free(&out);
	return good;
}

/* ---------------------------------------------------------------- a program's time */
/* Runs `bench` for so many seconds, as steps of `step` seconds fit: milliseconds a step; NAN, which was said. */
static double
bench(Tune *t, const char *program, double seconds, double step)
{
	int steps = step > 0 && step < seconds ? (int)(seconds / step) : 1;
	const char *argv[TUNE_ARGS];
	char why[128];
	JsonDoc *doc = NULL;
	Buf out = {0};
	int n;

	tune_bench(t, program, argv, &n);
	argv[n++] = steps > 2 ? "--warmup=2" : "--warmup=1";
	argv[n++] = arena_printf(t->arena, "--steps=%d", steps);
	argv[n++] = "--repeat=1";
	argv[n] = NULL;
	int status = tune_run(argv, false, &out, NULL, NULL);
	const Json *o = status ? NULL : rt_json_parse(out.at ? out.at : "", out.n, &doc, why, sizeof why);
	double ms = rt_json_num(rt_json_get(o, "ms_per_step"), "median", NAN);

	if (!(ms > 0) && !tune_interrupted())
		failure("a step cannot be timed: `%s bench` ended with status %d", program, status);
	rt_json_free(doc);
	buf_free(&out);
	return ms;
}

/* By the table of --costs: the sum of its kernels; what cannot be tuned counts as rows. */
static double
costs_of(Tune *t, const Program *p, int64_t step)
{
	double ns = 0;
	int unit = 0;

	for (uint32_t i = 0; i < p->record.n; i++)
		for (int k = 0; k < p->record.at[i].ngroup; k++)
			ns += race_costs_whole(t->costs, p->record.at[i].kernel) *
			      (double)race_costs_time(t->costs, (uint64_t)t->seed + 1000, step, unit++, RACE_PRODUCTS,
			                              p->record.at[i].kernel, NULL);
	while (unit < (int)p->graph->group.n)
		ns += (double)race_costs_time(t->costs, (uint64_t)t->seed + 1000, step, unit++, RACE_PRODUCTS, NULL,
		                              NULL);
	t->spent += (int64_t)ns;
	return ns * 1e-6;
}

static int
compare_doubles(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

/* Of the ratios' logarithms. */
void
tune_estimate(const double *ratio, int n, Final *f)
{
	/* of Walsh averages, at each end */
	static const int out[PAIRS + 1] = {0, 0, 0, 0, 0, 0, 0, 2, 3, 5, 8, 10, 13};
	double w[PAIRS * (PAIRS + 1) / 2];
	int m = 0;

	for (int i = 0; i < n; i++)
		for (int k = i; k < n; k++)
			w[m++] = (log(ratio[i]) + log(ratio[k])) / 2;
	qsort(w, (size_t)m, sizeof *w, compare_doubles);
	f->pairs = n;
	f->ratio = exp(m & 1 ? w[m / 2] : (w[m / 2 - 1] + w[m / 2]) / 2);
	f->low = n < PAIRS_LEAST ? 0 : exp(w[out[n]]);
	f->high = n < PAIRS_LEAST ? INFINITY : exp(w[m - 1 - out[n]]);
}

static double
median_of(double *x, int n)
{
	qsort(x, (size_t)n, sizeof *x, compare_doubles);
	return n & 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static double
run_seconds(double x)
{
	return x < 0.05 ? 0.05 : x > 2 ? 2 : x;
}

/* Programs or, with costs, their kernels. False: one of them does not run, or Ctrl-C. */
typedef struct Pair { const char *path[2]; const Program *program[2]; } Pair;

static bool
compare(Tune *t, const Pair *p, Final *f)
{
	double ratio[PAIRS], ms[2][PAIRS], left = (double)(t->budget - tune_spent(t)) * 1e-9, last = 0;
	int64_t since = tune_now();

	if (tune_interrupted())
		left = (double)(tune_deadline() - since) * 1e-9;
	double seconds = run_seconds(left / (2 * PAIRS + 4) - 0.5), step = t->step * 1e-9;

	for (int n = 0; n < PAIRS;) {
		double began = (double)tune_now() * 1e-9;

		for (int k = 0; k < 2; k++) {
			int which = (n + k) & 1;

			ms[which][n] = t->costs ? costs_of(t, p->program[which], n)
			                        : bench(t, p->path[which], seconds, step);
			if (!(ms[which][n] > 0))
				return false;
		}
		/* what a run takes beside its steps, and a step, is known now */
		step = fmax(t->step * 1e-9, 1e-3 * fmax(ms[0][n], ms[1][n]));
		left = fmin((double)(t->budget - tune_spent(t)), (double)(tune_deadline() - tune_now())) * 1e-9;
		double beside = ((double)tune_now() * 1e-9 - began) / 2 - seconds;

		seconds = run_seconds(left / (2 * (n + 1 < PAIRS_LEAST ? PAIRS_LEAST - n - 1 : 1)) - beside);
		ratio[n] = ms[0][n] / ms[1][n];
		tune_estimate(ratio, ++n, f);
		last = (double)tune_now() * 1e-9 - began;
		bool late = (double)tune_now() * 1e-9 + last > (double)tune_deadline() * 1e-9;
		bool spent = tune_spent(t) + (int64_t)(last * 1e9) > t->budget;

		if (n >= PAIRS_LEAST &&
		    (f->low > 1 || f->high < 1 || (f->low > 0.995 && f->high < 1.005) || late || spent))
			break;
		if (late)
			return false;
		if (!t->costs && (double)tune_spent(t) > 1.05 * (double)t->budget) {
			tune_line(t, "final", "%d pairs, %d are needed: the budget is spent", n, PAIRS_LEAST);
			break;
		}
	}
	f->base = median_of(ms[0], f->pairs);
	f->tuned = median_of(ms[1], f->pairs);
	t->phase[3] += tune_now() - since;
	return true;
}

/* ---------------------------------------------------------------- states */
/* hash: of all states; of evaluation and inference, of all results. loss: of each step; else each result's size. */
enum { STATES_RESULTS = 64 };
typedef struct States { uint64_t hash; double loss[STATES_RESULTS]; int n; bool good; } States;

/* The losses that `--log` has written. */
static void
read_losses(const char *path, States *s)
{
	size_t n;
	char *text = file_read(path, &n), *save = NULL;
	int k = 0;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
		char why[128];
		JsonDoc *doc = NULL;
		const Json *o = rt_json_parse(line, strlen(line), &doc, why, sizeof why);

		if (rt_json_get(o, "step") && rt_json_get(o, "loss") && k < STATES_STEPS)
			s->loss[k++] = rt_json_num(o, "loss", NAN);
		rt_json_free(doc);
	}
	s->n = k;
	free(text);
}

/* What evaluation or inference has as results after three steps, with the states of the model's seed. */
static States
results_of(Tune *t, const char *program)
{
	const char *argv[TUNE_ARGS];
	char why[128];
	JsonDoc *doc = NULL;
	States s = {.hash = HASH_START};
	Buf out = {0};
	int n;

	tune_bench(t, program, argv, &n);
	argv[n++] = "--warmup=1";
	argv[n++] = arena_printf(t->arena, "--steps=%d", STATES_STEPS - 1);
	argv[n++] = "--repeat=1";
	argv[n] = NULL;
	int status = tune_run(argv, false, &out, NULL, NULL);
	const Json *o = status ? NULL : rt_json_parse(out.at ? out.at : "", out.n, &doc, why, sizeof why),
	           *list = rt_json_get(o, "results");

	for (const Json *r = list ? list->child : NULL; r; r = r->next) {
		const char *hash = rt_json_str(r, "hash", "");

		s.hash = hash_bytes(s.hash, hash, strlen(hash));
		if (s.n < STATES_RESULTS)
			s.loss[s.n++] = rt_json_num(r, "rms", NAN);
	}
	s.good = s.n > 0;
	rt_json_free(doc);
	buf_free(&out);
	if (!s.good && !tune_interrupted())
		failure("'%s' does not run: status %d", program, status);
	return s;
}

/* Three steps from the model's seed. */
static States
states_of(Tune *t, const char *program, const char *name)
{
	const char *save = tune_file(t, arena_printf(t->arena, "%s.safetensors", name)),
	           *log = tune_file(t, arena_printf(t->arena, "%s.jsonl", name));
	const char *argv[] = {program,
	                      "train",
	                      "--steps",
	                      "3",
	                      "--no-eval",
	                      "--allow-nan",
	                      "--quiet",
	                      "--save",
	                      save,
	                      "--log",
	                      log,
	                      "--threads",
	                      arena_printf(t->arena, "%d", t->threads),
	                      t->o->data ? "--data" : "--synthetic",
	                      t->o->data,
	                      NULL};
	Buf out = {0};
	States s = {0};

	if (strcmp(t->graph, "train"))
		return results_of(t, program);
	int status = tune_run(argv, false, &out, NULL, NULL);
	size_t n = 0;
	char *bytes = status ? NULL : file_read(save, &n);
	uint64_t head = 0;

	buf_free(&out);
	if (bytes && n > 8) {
		memcpy(&head, bytes, 8);             /* of safetensors: the length of what describes it */
		s.good = head < n - 8;
		s.hash = s.good ? hash_bytes(HASH_START, bytes + 8 + head, n - 8 - head) : 0;
		read_losses(log, &s);
	}
	free(bytes);
	if (!s.good && !tune_interrupted())
		failure("'%s' does not train: status %d", program, status);
	return s;
}

static bool
is_narrow(const Program *p)
{
	return precision_of(p->module, p->cx.target, p->cx.arch).narrow != DT_none;
}

/* NULL, or how they differ. */
static const char *
compare_states(Tune *t, const Program *base, const bool *in, const States *a, const States *b)
{
	bool same = true, train = !strcmp(t->graph, "train");
	double bound = is_narrow(base) ? 2e-2 : 1e-4;

	for (uint32_t i = 0; i < t->won.n; i++)
		same &= !in[i] || t->won.at[i].bits == BITS_same;
	if (a->hash == b->hash)
		return NULL;
	if (same)
		return train ? "the states after three steps are others, though sums are associated alike"
		             : "the results are others, though sums are associated alike";
	for (int i = 0; i < a->n; i++)
		if (!(fabs(a->loss[i] - b->loss[i]) <= bound * (fabs(a->loss[i]) + 1e-3)))
			return arena_printf(t->arena, "the %s %d is %g in place of %g",
			                    train ? "loss of step" : "size of result", i + 1, b->loss[i], a->loss[i]);
	return NULL;
}

/* ---------------------------------------------------------------- which records */
static double
promised(const Tune *t, const bool *in)
{
	double saved = 0;

	for (uint32_t i = 0; i < t->won.n; i++)
		saved += in[i] ? t->won.at[i].gain * t->won.at[i].share : 0;
	return saved < 0.9 ? 1 / (1 - saved) : 10;
}

static int
count_in(const Tune *t, const bool *in)
{
	int n = 0;

	for (uint32_t i = 0; i < t->won.n; i++)
		n += in[i];
	return n;
}

/* The better half of them by promised gain. */
static void
halve(Tune *t, bool *in)
{
	int keep = count_in(t, in) / 2;

	while (count_in(t, in) > keep) {
		int worst = -1;
		double least = INFINITY;

		for (uint32_t i = 0; i < t->won.n; i++)
			if (in[i] && t->won.at[i].gain * t->won.at[i].share < least) {
				least = t->won.at[i].gain * t->won.at[i].share;
				worst = (int)i;
			}
		in[worst] = false;
	}
}

/* The record of a program that has made three steps. */
static const char *
lock_of(const Tune *t, const Program *p, const States *s)
{
	return tuning_lock(t->arena, p->module, &p->cx, t->graph, STATES_STEPS, s->hash);
}

/* Is one of these records a kernel of the graph, or a choice, which may be anywhere? */
static bool
touches(const Tune *t, const Program *p, const Graph *g, const bool *in)
{
	const TuneKeys *keys = tuning_keys(g, p->arena, select_keeps(&p->cx));
	bool any = false;

	for (uint32_t i = 0; i < t->won.n && !any; i++)
		any = in && in[i] && t->won.at[i].choice;
	for (uint32_t k = 0; k < g->group.n && !any; k++) {
		Buf what = {0};

		if (tuning_key(&what, keys, (int)k))
			for (uint32_t i = 0; in && i < t->won.n && !any; i++) {
				const char *key = t->won.at[i].key, *at = in[i] ? strstr(key, what.at) : NULL;

				any = at && !strcmp(at, what.at);
			}
		buf_free(&what);
	}
	return any;
}

/* The locks of a file that holds the program's records: this graph's, and those that the file has of the model's other
 * graphs, which name all kernels, too. Their states stay known where no record is of their graph. */
static TextList
locks_of(const Tune *t, const Program *base, const Program *p, const States *s, const bool *in)
{
	TextList l = {.at = arena_array(t->arena, const char *, p->module->graph.n + 1)};

	l.at[l.n++] = lock_of(t, p, s);
	for (uint32_t i = 0; base->job.tuning && i < p->module->graph.n; i++) {
		const Graph *g = p->module->graph.at[i];
		const char *line = tuning_lock(t->arena, p->module, &p->cx, g->name, 0, 0);
		const char *colon = strstr(line, " : ");
		const TuneRecord *r = tuning_named(base->job.tuning,
		                                   arena_strndup(t->arena, line, (size_t)(colon - line)));
		const char *at;
		bool known = r && r->kind == TUNE_LOCK && strcmp(g->name, t->graph);

		if (!known)
			continue;
		if (tuning_param(r->value, "states", &at) == 16 && !touches(t, p, g, in))
			line = tuning_lock(t->arena, p->module, &p->cx, g->name, STATES_STEPS,
			                   strtoull(arena_strndup(t->arena, at, 16), NULL, 16));
		l.at[l.n++] = line;
	}
	return l;
}

/* One try with these records: 1: kept; 0: no gain; -1: it cannot be told, which was said. */
static int
try_records(Tune *t, const Program *base, const bool *in, const States *own, Final *f)
{
	const char *file = tune_file(t, "trial.tune"), *path = tune_file(t, "tuned");
	Program tuned = {0};
	int killed = 0, status = -1;
	Pair pair = {{tune_file(t, "base"), path}, {base, &tuned}};

	*f = (Final){.predicted = promised(t, in)};
	if (!final_file(t, base, in, file) || !tune_build(t, file, NULL, path, &killed))
		return killed ? 0 : -1;
	if (tune_program(t, file, &tuned) == EXIT_GOOD) {
		States s = states_of(t, path, "tuned");
		const char *wrong = s.good ? compare_states(t, base, in, own, &s) : "it does not run";

		if (wrong)
			tune_line(t, "final", "%d records, not written: %s", count_in(t, in), wrong);
		status = wrong ? 0 : compare(t, &pair, f) ? f->low > 1 : -1;
		f->equal = own->hash == s.hash;
		if (status > 0)
			f->lock = locks_of(t, base, &tuned, &s, in);
	}
	program_free(&tuned);
	return status;
}

static void
say_try(const Tune *t, const bool *in, const Final *f)
{
	tune_line(t, "tried", "%.4g -> %.4g ms (%+.1f %%; 95 %%: %+.1f .. %+.1f), %d records, %d pairs", f->base,
	          f->tuned, 100 * (1 / f->ratio - 1), 100 * (1 / f->high - 1), 100 * (1 / f->low - 1), count_in(t, in),
	          f->pairs);
}

int
final_decide(Tune *t, const Program *base, Final *f)
{
	bool *in = arena_array(t->arena, bool, t->won.n), *best = arena_array(t->arena, bool, t->won.n);
	States own = states_of(t, tune_file(t, "base"), "base");
	int64_t took = 0;
	Final now;

	*f = (Final){0};
	if (!own.good)
		return EXIT_FAILED;
	for (uint32_t i = 0; i < t->won.n; i++)
		in[i] = true;
	for (int k = 0; k <= HALVES && count_in(t, in); k++) {
		int64_t left = t->budget - tune_spent(t), since = tune_now();

		if (k && took > left)                    /* another try is beyond the budget */
			break;
		int good = try_records(t, base, in, &own, &now);

		took = t->costs ? 0 : tune_now() - since;

		if (good < 0)
			break;
		bool enough = good && now.ratio - 1 >= (now.predicted - 1) / 2;

		if (now.pairs && !enough)
			say_try(t, in, &now);
		if (good && (!f->kept || now.ratio > f->ratio)) {
			*f = now;
			f->kept = true;
			memcpy(best, in, sizeof *in * t->won.n);
		}
		if (!f->pairs)
			*f = now;
		if (enough || tune_interrupted() || count_in(t, in) < 2)
			break;
		halve(t, in);
	}
	t->lock = f->kept ? f->lock : (TextList){0};
	for (uint32_t i = 0; i < t->won.n; i++)
		t->won.at[i].kept = f->kept && best[i];
	return EXIT_GOOD;
}

/* ---------------------------------------------------------------- writing */
int
final_write(Tune *t, const Program *base)
{
	bool *in = arena_array(t->arena, bool, t->won.n);

	for (uint32_t i = 0; i < t->won.n; i++)
		in[i] = t->won.at[i].kept;
	if (!count_in(t, in))
		return EXIT_GOOD;
	TuneEdit e = edit_of(t, base, in, t->lock);

	bool good = true;

	if (t->path && !file_special(t->path)) {
		good = tuning_write(t->arena, t->path, t->base.text, t->base.bytes, &e);
	} else {
		Buf out = {0};

		tuning_edit(&out, t->arena, t->base.text, t->base.bytes, NULL, 0, &e);
		if (t->path)
			good = file_write(t->path, out.at, out.n);
		else
			fwrite(out.at, 1, out.n, stdout);
		buf_free(&out);
	}
	return good ? EXIT_GOOD : failure("cannot write '%s': %s", t->path, strerror(errno));
}

/* ---------------------------------------------------------------- --verify */
static bool
has_lock(const Program *p)
{
	for (uint32_t i = 0; p->job.tuning && i < tuning_count(p->job.tuning); i++)
		if (tuning_at(p->job.tuning, i)->kind == TUNE_LOCK)
			return true;
	return false;
}

/* The states that the file's lock promises, if it says; kernels are held by tuning_lock_state. */
static const char *
lock_states(Tune *t, const Program *p, const States *s)
{
	const char *want = lock_of(t, p, s), *colon = strstr(want, " : ");
	const char *key = arena_strndup(t->arena, want, (size_t)(colon - want)), *at;
	const TuneRecord *r = tuning_named(p->job.tuning, key);
	int n = r ? tuning_param(r->value, "states", &at) : -1;

	if (n <= 0)
		return NULL;                         /* it says nothing of them */
	const char *now = arena_printf(t->arena, "%016" PRIx64, s->hash);

	return n == 16 && !memcmp(at, now, 16) ? NULL
		: arena_printf(t->arena, "the lock's states are %.*s, here they are %s", n, at, now);
}

int
final_verify(Tune *t)
{
	Program p = {0}, own = {0};
	const char *file = t->base.name, *tuned = tune_file(t, "tuned"), *base = tune_file(t, "base"), *wrong = NULL;
	Final f = {0};
	int status = tune_program(t, file, &p);

	if (status == EXIT_GOOD)
		status = tune_machine(t, &p);
	t->rounds++;
	if (status == EXIT_GOOD)
		status = tune_program(t, "/dev/null", &own);
	if (status == EXIT_GOOD && has_lock(&p) && tuning_lock_state(t->arena, p.module, &p.cx, true) != LOCK_HOLDS)
		status = EXIT_FAILED;
	if (status == EXIT_GOOD &&
	    (!tune_build(t, file, NULL, tuned, NULL) || !tune_build(t, "/dev/null", NULL, base, NULL)))
		status = EXIT_FAILED;
	if (status == EXIT_GOOD) {
		States s = states_of(t, tuned, "tuned");
		Pair pair = {{base, tuned}, {&own, &p}};

		wrong = !s.good ? "it does not run" : has_lock(&p) ? lock_states(t, &p, &s) : NULL;
		if (wrong)
			status = failure("%s: %s", file, wrong);
		else if (!compare(t, &pair, &f))
			status = EXIT_FAILED;
		if (status == EXIT_GOOD && !has_lock(&p)) {
			const char *lock = lock_of(t, &p, &s);
			TuneEdit e = {.line = &lock, .nline = 1};

			if (t->path && !tuning_write(t->arena, t->path, t->base.text, t->base.bytes, &e))
				status = failure("cannot write '%s': %s", t->path, strerror(errno));
			else
				tune_line(t, "lock", "made: the file had none");
		} else if (status == EXIT_GOOD) {
			tune_line(t, "lock", "holds: kernels, choices and the states after three steps");
		}
	}
	if (f.pairs)
		tune_line(t, "verify", "%.4g -> %.4g ms a step (%+.1f %%; 95 %%: %+.1f .. %+.1f), %d pairs%s", f.base,
		          f.tuned, 100 * (1 / f.ratio - 1), 100 * (1 / f.high - 1), 100 * (1 / f.low - 1), f.pairs,
		          f.high < 1 ? ": slower than without the file here" : "");
	program_free(&own);
	program_free(&p);
	return status == EXIT_GOOD && f.high < 1 ? EXIT_FAILED : status;
}
