/* cmd_tune.c: `tune`: a search for the kernels that make a model's program fastest, measured in its own steps; and two
 * tuning files put together (--merge).
 *
 * In: a model, its tuning file if there is one.   Out: the file with the records that won, whole or not at all; its
 * journal FILE.log beside it. It is held (FILE.lock) from the first look at it to its end, so that of two who write it
 * the second is told who does, and ends with status 1. Phases: the baseline is built and timed; rounds, in each of
 * which kernels race in a program made for that (runtime/race); the final. Status: 0 done, also if nothing was won; 1
 * the baseline does not run or the file cannot be written; 2 wrong usage; 130 after Ctrl-C. */
#define _GNU_SOURCE
#include "tune.h"
#include "../runtime/race/race.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- --merge */
/* A file whose bytes live in a. What is wrong with its records is said, as build says it. */
static bool
read_tuning(Arena *a, const char *path, TuneText *t)
{
	size_t bytes;
	char *text = file_read(path, &bytes);
	Diags d;

	if (!text) {
		failure("cannot read the tuning file '%s': %s", path, strerror(errno));
		return false;
	}
	*t = (TuneText){path, arena_strndup(a, text, bytes), bytes};
	free(text);
	diags_init(&d, a, stderr);
	d.colour = colour_on(stderr);
	tuning_read(a, &d, path, t->text, t->bytes);
	return true;
}

static int
merge(Arena *a, const Options *o, Buf *out)
{
	TuneText x, y;
	TuneMerge m;

	if (!read_tuning(a, o->operand[0], &x) || !read_tuning(a, o->operand[1], &y))
		return EXIT_FAILED;
	tuning_merge(out, a, &x, &y, &m);
	for (uint32_t i = 0; i < m.warning.n; i++)
		fprintf(stderr, "mantou: warning: %s\n", m.warning.at[i]);
	message("%d records of %s are new, %d are better; %d lock%s left out", m.added, y.name, m.replaced, m.locks,
		m.locks == 1 ? "" : "s");
	return EXIT_GOOD;
}

/* Has the process ended that this text of file_hold names, on this machine? */
static bool
holder_ended(const char *holder)
{
	char host[256] = "", *name;
	long pid;

	if (sscanf(holder, "process %ld on ", &pid) != 1 || gethostname(host, sizeof host - 1))
		return false;
	name = strstr(holder, " on ");
	return !strncmp(name + 4, host, strlen(host)) && kill((pid_t)pid, 0) && errno == ESRCH;
}

/* The right to write path; NULL: a message was given. What a killed search has started holds it until that ends too,
 * which is soon. */
static FileHold *
hold(const char *path, const char *who)
{
	enum { PATIENCE = 200 }; /* twentieths of a second */
	char *holder = NULL;
	FileHold *h = file_hold(path, who, &holder);

	for (int i = 0; !h && holder && holder_ended(holder) && i < PATIENCE; i++) {
		free(holder);
		nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
		h = file_hold(path, who, &holder);
	}
	if (!h && holder)
		failure("'%s' is being written by %s", path, holder);
	else if (!h)
		failure("cannot write '%s': %s", path, strerror(errno));
	free(holder);
	return h;
}

static int
merge_files(Arena *a, const Options *o)
{
	Buf out = {0};
	int status;

	if (!o->output)
		return usage_error("tune", "--merge needs the name of the result: -o FILE");
	if (o->noperand != 2)
		return usage_error("tune", "a file is missing: --merge takes two tuning files");
	bool to_stdout = !strcmp(o->output, "-"), plain = to_stdout || file_special(o->output);
	FileHold *h = plain ? NULL
		: hold(o->output, arena_printf(a, "mantou tune --merge %s %s", o->operand[0], o->operand[1]));

	status = plain || h ? merge(a, o, &out) : EXIT_FAILED;
	if (status == EXIT_GOOD && to_stdout)
		fwrite(out.at, 1, out.n, stdout);
	else if (status == EXIT_GOOD && !file_write(o->output, out.at, out.n))
		status = failure("cannot write '%s': %s", o->output, strerror(errno));
	file_release(h);
	buf_free(&out);
	return status;
}

/* ---------------------------------------------------------------- what is searched */
static int
cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static int
check_options(const Options *o)
{
	static const char *const graphs[] = {"train", "eval", "infer"};
	bool known = !o->graph;

	if (o->noperand != 1)
		return usage_error("tune", "needs a model");
	if (o->search_level && strcmp(o->search_level, "graph") && strcmp(o->search_level, "kernels")
	    && strcmp(o->search_level, "all"))
		return usage_error("tune", "'%s' is no value for '--level': needs graph, kernels or all",
		                   o->search_level);
	if (o->data && o->synthetic)
		return usage_error("tune", "--data and --synthetic exclude each other");
	if (!!o->prepare + !!o->results + o->verify + o->dry_run > 1)
		return usage_error("tune", "--prepare, --results, --verify and --dry-run exclude each other");
	for (size_t i = 0; o->graph && i < sizeof graphs / sizeof *graphs; i++)
		known |= !strcmp(o->graph, graphs[i]);
	if (!known)
		return usage_error("tune", "'%s' is no value for '--graph': needs train, eval or infer", o->graph);
	if (o->target && target_named(o->target) && !target_named(o->target)->tuning.space)
		return usage_error("tune", "--target %s: it has no kernels with parameters", o->target);
	if (o->locked || o->race || o->emit)
		return usage_error("tune", "--locked, --race and --emit are options of build");
	return EXIT_GOOD;
}

static const char *
default_path(Arena *a, const char *model)
{
	size_t n = strlen(model);

	n -= n > 4 && !strcmp(model + n - 4, ".net") ? 4 : n > 3 && !strcmp(model + n - 3, ".ir") ? 3 : 0;
	return arena_printf(a, "%.*s.tune", (int)n, model);
}

/* The file as it is: --tuning's, else that which is written, if it is there. */
static bool
read_base(Tune *t)
{
	const char *path = t->o->tuning ? t->o->tuning
		: t->path && !file_special(t->path) ? t->path : default_path(t->arena, t->o->operand[0]);
	size_t n = 0;
	char *text;

	t->base = (TuneText){path, "", 0};
	if (!t->o->tuning && access(path, F_OK))
		return true;
	text = file_read(path, &n);
	if (!text) {
		failure("cannot read the tuning file '%s': %s", path, strerror(errno));
		return false;
	}
	t->base = (TuneText){path, arena_strndup(t->arena, text, n), n};
	free(text);
	return true;
}

/* What a journal belongs to. */
static const char *
search_text(const Tune *t, const Program *p)
{
	const Options *o = t->o;
	Buf b = {0}, all = {0};
	uint64_t h;

	module_print(&all, p->module);
	h = hash_bytes(HASH_START, all.at, all.n);
	h = hash_bytes(h, t->base.text, t->base.bytes);
	for (int i = 0; i < o->group.n; i++)
		h = hash_bytes(h, o->group.at[i], strlen(o->group.at[i]) + 1);
	buf_printf(&b, "{\"tune\": 1, \"model\": ");
	buf_json(&b, p->module->name);
	buf_printf(&b, ", \"graph\": \"%s\", \"arch\": \"%s\", \"search\": \"%016" PRIx64 "\", \"seed\": %" PRId64
		", \"threads\": %d, \"bits\": %d, \"clock\": \"%s\"}", t->graph, p->cx.arch, h, t->seed, t->threads,
		(int)t->most, t->costs ? "costs" : "real");
	const char *text = arena_strdup(t->arena, b.at);

	buf_free(&b);
	buf_free(&all);
	return text;
}

static const char *
base_file(Tune *t)
{
	const char *path = tune_file(t, "base.tune");

	return file_write(path, t->base.text, t->base.bytes) ? path : NULL;
}

/* ---------------------------------------------------------------- the baseline */
/* Is this a row of the group: NAME.PART, or, of languages whose names have no dots, NAME, NAME_partN? */
static bool
is_of_group(const char *row, const char *group)
{
	size_t n = strlen(group), i = 0;

	if (!strncmp(row, group, n) && row[n] == '.')
		return true;
	while (i < n && row[i] == (isalnum((unsigned char)group[i]) ? group[i] : '_'))
		i++;
	return i == n && (!row[n] || !strncmp(row + n, "_part", 5));
}

/* Microseconds of each group of the program, from `bench --profile`. */
static void
take_profile(Program *p, const Json *kernels, double step_us)
{
	const Graph *g = p->graph;
	const TuneKeys *keys = tuning_keys(g, p->arena, select_keeps(&p->cx));

	for (uint32_t i = 0; i < g->group.n; i++) {
		Buf what = {0};
		double us = 0;

		for (const Json *k = kernels ? kernels->child : NULL; k; k = k->next) {
			const char *name = rt_json_str(k, "name", "");

			if (is_of_group(name, g->group.at[i].name))
				us += 1e6 * rt_json_num(k, "seconds", 0);
		}
		const Op *op = us > 0 && g->group.at[i].kernel ? tuning_key(&what, keys, (int)i) : NULL;

		for (uint32_t r = 0; op && r < p->record.n; r++)
			if (!strcmp(p->record.at[r].what, what.at)) {
				p->record.at[r].us += us / p->record.at[r].ngroup;
				p->record.at[r].share += us / step_us;
			}
		buf_free(&what);
	}
}

/* By the table of --costs: 100 us for whatever it does not name. */
static void
take_costs(Tune *t, Program *p)
{
	double all = 0;

	for (uint32_t i = 0; i < p->record.n; i++) {
		Record *r = &p->record.at[i];

		r->us = 1e-3 * (double)race_costs_time(t->costs, 1, 0, (int)i, RACE_PRODUCTS, r->kernel, NULL);
		all += r->us * r->ngroup;
	}
	for (uint32_t i = 0; i < p->record.n; i++)
		p->record.at[i].share = p->record.at[i].us * p->record.at[i].ngroup / all;
	t->step = 1e3 * all;
}

static int
profile(Tune *t, Program *p)
{
	const char *program = tune_file(t, "base");
	const char *argv[TUNE_ARGS];
	char why[128];
	int n;
	JsonDoc *doc = NULL;
	Buf out = {0};

	tune_bench(t, program, argv, &n);
	argv[n++] = "--warmup=2";
	argv[n++] = "--steps=2";
	argv[n++] = "--repeat=3";
	argv[n++] = arena_printf(t->arena, "--profile=%s", tune_file(t, "trace.json"));
	argv[n] = NULL;
	int status = tune_run(argv, false, &out, NULL, NULL);
	const Json *o = status ? NULL : rt_json_parse(out.at ? out.at : "", out.n, &doc, why, sizeof why);
	const Json *ms = rt_json_get(o, "ms_per_step");
	double step = 0;

	for (const Json *k = rt_json_get(o, "kernels") ? rt_json_get(o, "kernels")->child : NULL; k; k = k->next)
		step += 1e6 * rt_json_num(k, "seconds", 0);
	if (ms && step > 0) {
		t->step = 1e6 * rt_json_num(ms, "median", 0);
		t->peak = 1e9 * rt_json_num(o, "peak_gflops", 0);
		t->memory = 1e9 * rt_json_num(rt_json_get(o, "streaming"), "memory_gbytes_s", 0);
		take_profile(p, rt_json_get(o, "kernels"), step);
		tune_line(t, "baseline", "%.4g ms a step (%.4g .. %.4g)", t->step * 1e-6, rt_json_num(ms, "min", 0),
			rt_json_num(ms, "max", 0));
	}
	rt_json_free(doc);
	buf_free(&out);
	if (status || !(t->step > 0))
		return tune_interrupted() ? EXIT_STOPPED
		                          : failure("the program of %s does not run: `bench` ended with status %d",
		                                    t->o->operand[0], status);
	return EXIT_GOOD;
}

static int
baseline(Tune *t, Program *p)
{
	int64_t since = tune_now();
	int status = EXIT_GOOD, groups = 0, n = 0;
	double share = 0;

	if (!tune_build(t, p->job.o->tuning, NULL, tune_file(t, "base"), NULL))
		return tune_interrupted() ? EXIT_STOPPED : EXIT_FAILED;
	if (t->costs)
		take_costs(t, p);
	else
		status = profile(t, p);
	for (uint32_t i = 0; i < p->record.n; i++) {
		groups += p->record.at[i].ngroup;
		share += p->record.at[i].share;
		n++;
	}
	t->phase[0] += tune_now() - since;
	if (status == EXIT_GOOD)
		tune_line(t, "", "%d kernels that can be tuned, %d of them different, %.0f %% of the step", groups, n,
			100 * share);
	return status;
}

/* ---------------------------------------------------------------- the whole */
/* A kernel, its predicted time of that of the record's own, and in microseconds where that one's is known. */
static void
dry_line(const Record *r, const char *kernel, double predicted)
{
	printf("  %-62s ", kernel);
	if (!(predicted > 0))
		printf("%6s\n", "-");
	else if (r->forecast > 0)
		printf("%6.3f %9.2f us\n", predicted, 1e6 * predicted * r->forecast);
	else
		printf("%6.3f\n", predicted);
}

static int
dry_run(Tune *t, Program *p)
{
	int variants, records;

	t->rounds = 1;
	tune_candidates(t, p, 2, 1e18, 16);
	if (t->o->trials)
		race_cut(p, (int)t->o->trials);
	for (uint32_t i = 0; i < p->record.n; i++) {
		const Record *r = &p->record.at[i];

		printf("%s  (%d layer%s, %s)\n", r->key, r->ngroup, r->ngroup == 1 ? "" : "s",
			*r->layer ? r->layer : "the model's body");
		dry_line(r, r->kernel, p->cx.target->tuning.predict || r->forecast > 0 ? 1 : NAN);
		for (uint32_t k = 0; k < r->variant.n; k++)
			dry_line(r, r->variant.at[k].kernel, r->variant.at[k].predicted);
	}
	race_file(t, p, &variants, &records);
	tune_line(t, "dry run", "%d variants of %d kernels; figures are predicted times, of the kernel's own", variants,
		records);
	return EXIT_GOOD;
}

/* Does --level say so? */
static bool
searches(const Tune *t, const char *what)
{
	const char *level = t->o->search_level;

	return !level || !strcmp(level, "all") || !strcmp(level, what);
}

static int
search(Tune *t, Program *base, Final *f)
{
	int status = program_own(t, base);

	if (status != EXIT_GOOD || !journal_open(t, search_text(t, base)))
		return EXIT_FAILED;
	if (t->simulated)
		return race_rounds(t, base);
	status = baseline(t, base);
	if (status == EXIT_GOOD && !t->chosen && searches(t, "graph") && !tune_choices(t, base))
		status = tune_interrupted() ? EXIT_GOOD : EXIT_FAILED;
	if (status == EXIT_GOOD && searches(t, "kernels"))
		status = race_rounds(t, base);
	if (status == EXIT_GOOD && t->won.n)
		status = final_decide(t, base, f);
	return status;
}

static int
count_failures(const Tune *t)
{
	int n = 0;

	for (uint32_t i = 0; i < t->failure.n; i++)
		n += t->failure.at[i].n;
	return n;
}

static void
say_end(const Tune *t, const Final *f)
{
	int kept = 0;

	for (uint32_t i = 0; i < t->won.n; i++)
		kept += t->won.at[i].kept;
	if (t->simulated)
		tune_line(t, "final",
		          "%d of %d variants compute what the program's own kernels do; nothing is written: the "
		          "device is simulated, its times mean nothing",
		          t->variants - count_failures(t), t->variants);
	else if (f->kept && f->pairs)
		tune_line(t, "final", "%.4g -> %.4g ms (%+.1f %%; 95 %%: %+.1f .. %+.1f), %d record%s, %s", f->base,
		          f->tuned, 100 * (1 / f->ratio - 1), 100 * (1 / f->high - 1), 100 * (1 / f->low - 1), kept,
		          kept == 1 ? "" : "s", t->path ? t->path : "stdout");
	else if (f->kept)
		tune_line(t, "final", "%d record%s, not verified: mantou tune --verify does, where the machine is",
		          kept, kept == 1 ? "" : "s");
	else
		tune_line(t, "final", "nothing was won: %s",
		          t->path && !access(t->path, F_OK) ? "the file stays as it is" : "no file is written");
}

int
tune_machine(Tune *t, const Program *base)
{
	const Options *o = t->o;
	const Target *target = base->cx.target;

	if (o->prepare || o->results)
		return EXIT_GOOD;
	if (base->job.narch > 1)
		return usage_error("tune", "a search is of one --arch, this machine's; --prepare takes several");
	if (o->dry_run || !target->here.device)
		return EXIT_GOOD;
	const char *device = target->here.device(target, t->arena);

	t->simulated = device && !strncmp(device, "simulated", 9) && !t->costs;
	return device ? EXIT_GOOD
	              : failure("there is no device of target %s here; --prepare FILE writes a program that races "
	                        "where there is one", target->name);
}

static int
tune_with(Tune *t)
{
	const Options *o = t->o;
	Program base = {0};
	Final f = {0};
	Buf out = {0};
	const char *tuning = base_file(t);

	if (!tuning)
		return failure("cannot write in '%s': %s", t->folder, strerror(errno));
	if (o->verify)
		return final_verify(t);
	int status = tune_program(t, tuning, &base);

	if (status == EXIT_GOOD)
		status = tune_machine(t, &base);

	if (status == EXIT_GOOD && o->dry_run)
		status = dry_run(t, &base);
	else if (status == EXIT_GOOD && o->prepare)
		status = tune_prepare(t, &base);
	else if (status == EXIT_GOOD && o->results)
		status = tune_results(t, &base, &f);
	else if (status == EXIT_GOOD)
		status = search(t, &base, &f);
	t->stopped = tune_interrupted();
	if (status == EXIT_GOOD && !o->dry_run && !o->prepare) {
		status = final_write(t, &base);
		if (status == EXIT_GOOD)
			say_end(t, &f);
	}
	journal_close(t, status == EXIT_GOOD && (f.kept || !t->stopped));
	if (status == EXIT_GOOD && o->explain)
		report_explain(t, &out);
	if (status == EXIT_GOOD && o->json)
		report_json(t, &f, &out);
	if (out.n)
		fwrite(out.at, 1, out.n, stdout);
	buf_free(&out);
	program_free(&base);
	return t->stopped ? EXIT_STOPPED : status;
}

static void
remove_folder(Tune *t)
{
	static const char *const names[] = {"base",
	                                    "base.tune",
	                                    "base.safetensors",
	                                    "base.jsonl",
	                                    "tuned",
	                                    "trial.tune",
	                                    "tuned.safetensors",
	                                    "tuned.jsonl",
	                                    "locked.safetensors",
	                                    "locked.jsonl",
	                                    "racing",
	                                    "race.txt",
	                                    "round.tune",
	                                    "said",
	                                    "trace.json"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		unlink(tune_file(t, names[i]));
	rmdir(t->folder);
	temp_free(t->folder);
}

int
cmd_tune(Arena *a, const Options *o)
{
	if (o->merge)
		return merge_files(a, o);
	Tune t = {.arena = a, .o = o, .fd = -1, .seed = o->seed ? o->seed : 1};
	int status = check_options(o);
	RtError e = {0};

	if (status != EXIT_GOOD)
		return status;
	t.begun = tune_now();
	t.graph = o->graph;
	t.budget = o->budget ? o->budget : (int64_t)300 * 1000000000;
	t.threads = o->threads ? (int)o->threads : cpus();
	t.most = o->allow_rounding ? BITS_rounds : o->allow_reassociation ? BITS_order : BITS_same;
	t.path = !o->output ? default_path(a, o->operand[0]) : strcmp(o->output, "-") ? o->output : NULL;
	if (o->costs && !(t.costs = race_costs_read(o->costs, &e)))
		return failure("%s", e.text);
	bool writes = t.path && !file_special(t.path) && !o->dry_run && !o->prepare;

	t.hold = writes ? hold(t.path, arena_printf(a, "mantou tune %s", o->operand[0])) : NULL;
	if (writes && !t.hold)
		return EXIT_FAILED;
	const char *beside = writes ? t.path : arena_printf(a, "%s/x", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");

	t.folder = temp_folder(beside);
	if (!t.folder) {
		status = failure("cannot write '%s': a folder for temporary files: %s", beside, strerror(errno));
	} else {
		if (writes && !o->verify && !o->results)
			t.journal = arena_printf(a, "%s.log", t.path);
		t.race = t.journal ? arena_printf(a, "%s.race", t.journal) : tune_file(&t, "race.log");
		tune_catch();
		status = read_base(&t) ? tune_with(&t) : EXIT_FAILED;
		remove_folder(&t);
	}
	file_release(t.hold);
	return status;
}
