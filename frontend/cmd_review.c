/* cmd_review.c: `review`: a table of models, built and measured one after the other.
 *
 * In: a list, a row a line, tab-separated: model file, mode, precisions, batches, folder of data or -. Each precision
 * with each batch is a measurement.   Out: a table, one JSON object, a page of HTML. Every measurement is a `mantou run
 * MODEL -- bench --usage` of its own, so that what ends one ends no other. One of three steps comes first: it says
 * whether the whole one would take longer than --seconds, and is then cut. A row that fails is a line that says why. */
#define _GNU_SOURCE
#include "cmd.h"

#include "../runtime/json.h"
#include "review.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM_UP = 20, STEPS = 100, REPEATS = 3, CUT_STEPS = 3, MOST_ARGS = 48, MOST_SET = 7, MOST_BATCH = 1 << 14 };

/* ---------------------------------------------------------------- children */
/* A mantou of the same kind with these arguments: its exit status; what it printed and said. */
static int
run_child(const char *const *argv, Buf *out, Buf *err)
{
	int pipes[2][2];
	pid_t pid;
	int status = 0;

	if (pipe2(pipes[0], O_CLOEXEC))
		return -1;
	if (pipe2(pipes[1], O_CLOEXEC)) {
		close(pipes[0][0]);
		close(pipes[0][1]);
		return -1;
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		dup2(pipes[0][1], 1);
		dup2(pipes[1][1], 2);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(pipes[0][1]);
	close(pipes[1][1]);
	struct pollfd p[2] = {{.fd = pipes[0][0], .events = POLLIN}, {.fd = pipes[1][0], .events = POLLIN}};
	char part[65536];

	while (pid > 0 && (p[0].fd >= 0 || p[1].fd >= 0)) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			break;
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[i].fd >= 0 && p[i].revents ? read(p[i].fd, part, sizeof part) : -2;

			if (n > 0)
				buf_put(i ? err : out, part, (size_t)n);
			else if (n == 0 || (n == -1 && errno != EINTR))
				p[i].fd = -1;
		}
	}
	close(pipes[0][0]);
	close(pipes[1][0]);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return pid < 0 ? -1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The last line of what a child said. */
static const char *
last_line(Arena *a, const Buf *err, int status)
{
	size_t end = err->n, begin;

	while (end && err->at[end - 1] == '\n')
		end--;
	for (begin = end; begin && err->at[begin - 1] != '\n';)
		begin--;
	return end ? arena_strndup(a, err->at + begin, end - begin) : arena_printf(a, "ended with status %d", status);
}

/* ---------------------------------------------------------------- one measurement */
typedef struct Run {
	const char *program, *target, *base;
	bool quick;
	double seconds;
} Run;

static int
program_args(const Run *run, const Measurement *m, const char *what, const char **argv)
{
	int n = 0;

	argv[n++] = run->program;
	argv[n++] = what;
	argv[n++] = m->file;
	for (int i = 0; m->set[i]; i++) {
		argv[n++] = "-D";
		argv[n++] = m->set[i];
	}
	if (run->target) {
		argv[n++] = "--target";
		argv[n++] = run->target;
	}
	argv[n++] = "--batch";
	argv[n++] = m->batch;
	argv[n++] = "--precision";
	argv[n++] = m->precision;
	return n;
}

/* bench of so many steps; NULL after m->error. */
static const Json *
bench(Arena *a, const Run *run, Measurement *m, int warm, int steps, int repeats)
{
	const char *argv[MOST_ARGS];
	int n = program_args(run, m, "run", argv), status;
	bool writes = !strcmp(m->mode, "generate");
	Buf out = {0}, err = {0};
	char why[128];
	JsonDoc *doc;
	const Json *o = NULL;

	argv[n++] = "--";
	argv[n++] = "bench";
	argv[n++] = "--json";
	argv[n++] = "--mode";
	argv[n++] = m->mode;
	argv[n++] = arena_printf(a, "--repeat=%d", repeats);
	if (!writes) {
		argv[n++] = arena_printf(a, "--warmup=%d", warm);
		argv[n++] = arena_printf(a, "--steps=%d", steps);
		argv[n++] = strcmp(m->data, "-") ? "--data" : "--synthetic";
		if (strcmp(m->data, "-"))
			argv[n++] = m->data[0] == '/' || !run->base ? m->data
			                                            : arena_printf(a, "%s/%s", run->base, m->data);
	}
	argv[n++] = "--usage";
	if (run->quick || repeats == 1)
		argv[n++] = "--interval=0.1";
	argv[n] = NULL;
	status = run_child(argv, &out, &err);
	if (status == 0 && out.n)
		o = rt_json_parse(out.at, out.n, &doc, why, sizeof why);
	if (!o)
		m->error = status ? last_line(a, &err, status) : "bench printed no JSON";
	else
		m->text = arena_strndup(a, out.at, out.n);
	buf_free(&out);
	buf_free(&err);
	return o;
}

static double
median_of(const Json *o, const char *key)
{
	return rt_json_num(rt_json_get(o, key), "median", NAN);
}

/* The largest power of two, MOST_BATCH at most, whose planned memory fits in 0.9 of what is free. */
static bool
find_batch(Arena *a, const Run *run, Measurement *m)
{
	double room = 0.9 * review_free(), need = 0;
	long best = 0;

	for (long b = 1; b <= MOST_BATCH && need <= room; b *= 2) {
		const char *argv[MOST_ARGS];
		Buf out = {0}, err = {0};
		char why[128];
		JsonDoc *doc;
		int n, status;

		m->batch = arena_printf(a, "%ld", b);
		n = program_args(run, m, "info", argv);
		argv[n++] = "--json";
		argv[n] = NULL;
		status = run_child(argv, &out, &err);
		const Json *o = status == 0 ? rt_json_parse(out.at, out.n, &doc, why, sizeof why) : NULL;

		need = rt_json_num(o, "arena_bytes", INFINITY) +
		       (double)sysconf(_SC_NPROCESSORS_ONLN) * rt_json_num(o, "scratch_bytes", 0);
		if (!o)
			m->error = last_line(a, &err, status);
		else if (need <= room)
			best = b;
		buf_free(&out);
		buf_free(&err);
		if (m->error)
			return false;
	}
	m->batch = arena_printf(a, "%ld", best);
	if (!best)
		m->error = "no batch fits in the memory that is free";
	return best > 0;
}

static void
measure(Arena *a, const Run *run, Measurement *m)
{
	int warm = run->quick ? 2 : WARM_UP, steps = run->quick ? 5 : STEPS;
	const Json *o;
	double each;

	if (!strcmp(m->batch, "max") && !find_batch(a, run, m))
		return;
	if (!strcmp(m->mode, "generate")) {
		m->o = bench(a, run, m, 0, 0, REPEATS);
		return;
	}
	o = bench(a, run, m, 1, CUT_STEPS, 1);
	if (!o)
		return;
	each = median_of(o, "ms_per_step") * 1e-3;
	if (each * (warm + REPEATS * steps) > run->seconds) {
		double fit = run->seconds / each;

		m->cut = true;
		warm = fit > 10 * REPEATS && warm > 2 ? 2 : 0;
		steps = (int)((fit - warm) / REPEATS);
		if (steps < CUT_STEPS) { /* what has run is all that may */
			m->o = o;
			return;
		}
	}
	m->o = bench(a, run, m, warm, steps, REPEATS);
}

/* ---------------------------------------------------------------- the list */
typedef struct Fields {
	char *at[5];
} Fields;

static bool
cut_line(char *line, Fields *f)
{
	for (int i = 0; i < 5; i++) {
		f->at[i] = line;
		line += strcspn(line, "\t");
		if (!*f->at[i] || f->at[i] == line || (i < 4 && !*line))
			return false;
		if (*line)
			*line++ = 0;
	}
	return !*line;
}

/* All precisions with all batches of a line. */
static void
expand_line(Arena *a, const char *folder, const Fields *f, const regex_t *rows, Review *r)
{
	char *batches = f->at[3], *b, *more_b = NULL, *p, *more_p, *word;
	const char *set[MOST_SET + 1] = {NULL};
	int nset = 0;

	/* FILE NAME=VALUE ..: what stands behind the file are constants of the model */
	strtok_r(f->at[0], " ", &more_p);
	while ((word = strtok_r(NULL, " ", &more_p)) && nset < MOST_SET)
		set[nset++] = word;

	for (b = strtok_r(batches, ",", &more_b); b; b = strtok_r(NULL, ",", &more_b)) {
		char *precisions = arena_strdup(a, f->at[2]);

		more_p = NULL;
		for (p = strtok_r(precisions, ",", &more_p); p; p = strtok_r(NULL, ",", &more_p)) {
			Measurement m = {.mode = f->at[1], .precision = p, .batch = b, .data = f->at[4]};

			memcpy(m.set, set, sizeof set);
			const char *name = strrchr(f->at[0], '/') ? strrchr(f->at[0], '/') + 1 : f->at[0];

			m.file = f->at[0][0] == '/' || !*folder ? f->at[0] : arena_printf(a, "%s/%s", folder, f->at[0]);
			m.model = arena_strndup(a, name, strcspn(name, "."));
			const char *text = arena_printf(a, "%s %s %s %s %s", m.model, m.mode, p, b, m.data);

			if (!rows || regexec(rows, text, 0, NULL, 0) == 0)
				vec_push(a, &r->row, m);
		}
	}
}

static int
read_list(Arena *a, const char *path, const regex_t *rows, Review *r)
{
	size_t bytes;
	char *text = file_read(path, &bytes), *at = text, *slash;
	int number = 0, status = EXIT_GOOD;

	if (!text)
		return failure("cannot read '%s': %s", path, strerror(errno));
	char *all = arena_strndup(a, text, bytes), *folder = arena_strdup(a, path);

	free(text);
	slash = strrchr(folder, '/');
	*(slash ? slash : folder) = 0;
	for (at = all; at && *at && status == EXIT_GOOD;) {
		char *line = at, *end = strchr(at, '\n');
		Fields f;

		at = end ? end + 1 : NULL;
		if (end)
			*end = 0;
		number++;
		if (!*line || *line == '#')
			continue;
		if (!cut_line(line, &f))
			status = failure("%s:%d: a row is MODEL (constants NAME=VALUE may follow), MODE, PRECISIONS, "
			                 "BATCHES and DATA (- is synthetic), with tabs between them",
			                 path, number);
		else
			expand_line(a, folder, &f, rows, r);
	}
	if (status == EXIT_GOOD && !r->row.n)
		status = failure("%s has no row%s", path, rows ? " that --rows matches" : "");
	return status;
}

int
cmd_review(Arena *a, const Options *o)
{
	Run run = {.target = o->target,
	           .base = o->data,
	           .quick = o->quick,
	           .seconds = o->seconds ? (double)o->seconds : 30};
	Review r = {0};
	regex_t rows;
	int status;
	bool failed = false;
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	if (n <= 0)
		return failure("cannot find this program: %s", strerror(errno));
	self[n] = 0;
	run.program = self;
	if (o->rows && regcomp(&rows, o->rows, REG_EXTENDED | REG_NOSUB))
		return usage_error("review", "--rows is no regular expression: '%s'", o->rows);
	status = read_list(a, o->list ? o->list : "models/review.tsv", o->rows ? &rows : NULL, &r);
	if (o->rows)
		regfree(&rows);
	if (status != EXIT_GOOD)
		return status;
	FILE *page = o->html ? fopen(o->html, "w") : NULL;

	if (o->html && !page)
		return failure("cannot write '%s': %s", o->html, strerror(errno));
	if (!o->json)
		review_head();
	for (uint32_t i = 0; i < r.row.n; i++) {
		measure(a, &run, &r.row.at[i]);
		failed |= r.row.at[i].error != NULL;
		if (!o->json)
			review_row(&r.row.at[i]);
		fflush(stdout);
	}
	review_machine(a, &r);
	if (o->json)
		review_json(&r);
	else
		review_end(&r);
	if (page) {
		review_html(page, &r);
		if (fclose(page))
			return failure("cannot write '%s': %s", o->html, strerror(errno));
	}
	return failed ? EXIT_FAILED : EXIT_GOOD;
}
