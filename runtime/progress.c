/* progress.c: what a training says: epoch lines on stdout, a progress bar on a terminal, the log.
 *
 * The bar stands on stderr and is drawn by the monitor thread, so that it moves in every sink mode; whoever prints a
 * line clears it first. NO_COLOR and dumb terminals are honoured. Log lines are JSON, a line per step, then one per
 * epoch; a log is of one run. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRESS_CELLS 24
#define PROGRESS_NARROWEST 60 /* columns: the text without a bar */

/* ---- bar */

static bool
progress_wanted(const RtHost *h)
{
	const char *term = getenv("TERM");

	return !h->opt.quiet && isatty(2) && !(term && strcmp(term, "dumb") == 0);
}

static bool
progress_colour(void)
{
	const char *no = getenv("NO_COLOR");

	return !(no && *no);
}

void
rt_progress_clear(RtHost *h)
{
	pthread_mutex_lock(&h->lock);
	if (h->bar_shown) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
		h->bar_shown = false;
	}
	pthread_mutex_unlock(&h->lock);
}

/* Nothing is drawn from here on: what follows on the terminal is the run's last word. */
void
rt_progress_end(RtHost *h)
{
	pthread_mutex_lock(&h->lock);
	h->bar_over = true;
	pthread_mutex_unlock(&h->lock);
	rt_progress_clear(h);
}

/* `done` of `per` steps as `cells` characters, to an eighth of one. */
static void
progress_cells(char *bar, int cells, int64_t done, int64_t per)
{
	static const char *const blocks[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
	int64_t eighths = done * cells * 8 / per;

	*bar = 0;
	for (int i = 0; i < cells; i++) {
		int64_t part = eighths - i * 8;

		strcat(bar, part >= 8 ? "█" : part > 0 ? blocks[part] : " ");
	}
}

/* The line for a terminal of `columns`: the bar gives way first, then what no longer fits is left out. */
static void
progress_line(RtHost *h, char *out, size_t room, int columns)
{
	int64_t per = h->run.steps_per_epoch, done = h->last_step + 1, epoch = h->last_step / per,
	        in = done - epoch * per, left = h->total - done;
	double now = rt_now(),
	       speed = now > h->epoch_start ? (double)(done - h->epoch_from) / (now - h->epoch_start) : 0;
	int64_t seconds = speed > 0 ? (int64_t)((double)left / speed) : 0;
	const char *on = progress_colour() ? "\033[36m" : "", *off = *on ? "\033[0m" : "";
	char head[64], tail[160], bar[PROGRESS_CELLS * 4 + 8];
	int cells;

	snprintf(head, sizeof head, "epoch %lld/%lld ", (long long)epoch + 1, (long long)((h->total + per - 1) / per));
	snprintf(tail, sizeof tail, " %lld/%lld  loss %.4f  %.1f steps/s  %lld:%02lld left", (long long)in,
	         (long long)per, h->last_loss, speed, (long long)(seconds / 60), (long long)(seconds % 60));
	cells = columns - 1 - (int)(strlen(head) + strlen(tail));
	cells = cells > PROGRESS_CELLS ? PROGRESS_CELLS : cells < 0 ? 0 : cells;
	progress_cells(bar, cells, in, per);
	snprintf(out, room, "%s%s%s%s%.*s", head, on, bar, off, columns - 1 - (int)strlen(head), tail);
}

void
rt_progress_draw(RtHost *h)
{
	char line[400];
	struct winsize w = {0};

	if (!progress_wanted(h))
		return;
	if (ioctl(2, TIOCGWINSZ, &w) != 0 || !w.ws_col)
		w.ws_col = 80;
	if (w.ws_col < PROGRESS_NARROWEST)
		return;
	pthread_mutex_lock(&h->lock);
	if (!h->bar_over && h->mode == RT_M_TRAIN && h->last_step >= 0 && h->run.steps_per_epoch > 0 && h->weight > 0) {
		progress_line(h, line, sizeof line, w.ws_col);
		fprintf(stderr, "\r%s\033[K", line);
		fflush(stderr);
		h->bar_shown = true;
	}
	pthread_mutex_unlock(&h->lock);
}

/* ---- lines */

static const char *
progress_unit(const RtProgram *p)
{
	for (int k = 0; k < p->ninput; k++)
		if (p->input[k].t.rank >= 4 || strcmp(p->input[k].t.name, "image") == 0)
			return "images/s";
	return "examples/s";
}

/* "  loss 1.6021  accuracy 0.4127": losses and metrics of a graph. */
static void
progress_values(const RtGraph *g, const double *mean)
{
	for (int i = 0; i < g->nscalar; i++) {
		const RtResult *r = &g->result[g->scalar[i]];

		if (r->kind == RT_LOSS || rt_is_metric(r->kind))
			printf("  %s %.4f", r->kind == RT_LOSS ? "loss" : r->t.name, mean[i]);
	}
}

/* Who reads the lines is gone: the run ends as after Ctrl-C, and saves. */
void
rt_progress_flush(RtHost *h)
{
	int none = 0;

	if (fflush(stdout) == 0 || errno != EPIPE)
		return;
	__atomic_compare_exchange_n(&h->signal, &none, SIGPIPE, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	__atomic_store_n(&h->run.stop_at, 0, __ATOMIC_SEQ_CST);
}

void
rt_epoch_report(RtHost *h, int64_t epoch, const double *mean, double seconds, double speed)
{
	int64_t per = h->run.steps_per_epoch;

	if (h->opt.quiet)
		return;
	rt_progress_clear(h);
	printf("epoch %lld/%lld", (long long)epoch + 1, (long long)((h->total + per - 1) / per));
	progress_values(&h->program.graph[h->program.train.reports], mean);
	printf("  %.1f s  %.0f %s\n", seconds, speed, progress_unit(&h->program));
	rt_progress_flush(h);
}

void
rt_eval_report(RtHost *h, const double *mean, const char *word)
{
	if (h->opt.quiet)
		return;
	rt_progress_clear(h);
	printf("eval");
	progress_values(&h->program.graph[RT_G_EVAL], mean);
	printf("%s%s\n", *word ? "  " : "", word);
	rt_tables_print(&h->program.graph[RT_G_EVAL]);
	rt_progress_flush(h);
}

/* A gradient overflowed, and the step changed nothing but the loss scale. Called under the lock. */
void
rt_overflow_report(RtHost *h, const RtRecord *r)
{
	const RtGraph *g = h->graph;
	double scale = 0, state = -1;

	for (int i = 0; i < g->nscalar; i++) {
		if (g->result[g->scalar[i]].kind == RT_SCALE)
			scale = r->value[i];
		if (g->result[g->scalar[i]].kind == RT_OVERFLOW)
			state = r->value[i];
	}
	if (state < 0 || state >= h->program.nstate || h->opt.quiet)
		return;
	if (h->bar_shown)
		fputs("\r\033[K", stderr);
	h->bar_shown = false;
	fprintf(stderr,
	        "step %lld: the gradient of %s is not finite at loss scale %g; the step is left out, the scale is "
	        "halved\n",
	        (long long)r->step, h->program.state[(int)state].t.name, scale);
}

/* ---- log */

/* Keys of a step's object that are no metric's; in the means of an epoch the last is. */
static const char *const log_own[] = {"step", "epoch", "rate", "scale", "grad_norm"};
enum { LOG_OWN = sizeof log_own / sizeof *log_own };

/* Key of a scalar in JSON: the loss is "loss", the norm "grad_norm", the loss scale "scale", metrics have their own
 * names, behind "metric." where one of log_own from `own` on has that name: an object has no key twice. */
static void
log_scalar(FILE *f, const RtResult *r, double x, const char *before, int own)
{
	const char *key = r->kind == RT_LOSS    ? "loss"
	                  : r->kind == RT_NORM  ? "grad_norm"
	                  : r->kind == RT_SCALE ? "scale"
	                                        : NULL;
	bool taken = false;

	for (int i = own; !key && i < LOG_OWN; i++)
		taken |= !strcmp(r->t.name, log_own[i]);
	fputs(before, f);
	if (taken)
		fprintf(f, "\"metric.%s\"", r->t.name);
	else
		rt_json_text(f, key ? key : r->t.name);
	fputs(": ", f);
	rt_json_number(f, x, r->t.dtype == RT_F64 ? 17 : 9);
}

void
rt_log_record(RtHost *h, const RtRecord *r)
{
	const RtGraph *g = h->graph;

	if (!h->log)
		return;
	fprintf(h->log, "{\"step\": %lld, \"epoch\": %lld", (long long)r->step, (long long)r->epoch);
	for (int i = 0; i < g->nscalar; i++)
		if (i == g->loss)
			log_scalar(h->log, &g->result[g->scalar[i]], r->value[i], ", ", 0);
	fprintf(h->log, ", \"rate\": ");
	rt_json_number(h->log, r->rate, 9);
	for (int i = 0; i < g->nscalar; i++)
		if (i != g->loss && g->result[g->scalar[i]].kind != RT_OVERFLOW)
			log_scalar(h->log, &g->result[g->scalar[i]], r->value[i], ", ", 0);
	fprintf(h->log, "}\n");
}

void
rt_log_flush(RtHost *h)
{
	if (!h->log || h->log_error)
		return;
	errno = 0;
	if (fflush(h->log) != 0 || ferror(h->log))
		h->log_error = errno ? errno : EIO;
}

static void
log_means(FILE *f, const char *name, const RtGraph *g, const double *mean)
{
	const char *before = "";

	fprintf(f, ", \"%s\": {", name);
	for (int i = 0; i < g->nscalar; i++) {
		const RtResult *r = &g->result[g->scalar[i]];

		if (r->kind == RT_SCALE || r->kind == RT_OVERFLOW)
			continue;
		log_scalar(f, r, mean[i], before, LOG_OWN - 1);
		before = ", ";
	}
	rt_tables_json(g, f, before);
	fprintf(f, "}");
}

void
rt_epoch_log(RtHost *h, int64_t epoch, const double *train, const double *eval, bool best, double seconds,
             double speed)
{
	if (!h->log)
		return;
	pthread_mutex_lock(&h->lock);
	fprintf(h->log, "{\"epoch\": %lld", (long long)epoch);
	log_means(h->log, "train", &h->program.graph[h->program.train.reports], train);
	if (eval)
		log_means(h->log, "eval", &h->program.graph[RT_G_EVAL], eval);
	if (best)
		fprintf(h->log, ", \"best\": true");
	rt_exchange_log(h);
	fprintf(h->log, ", \"seconds\": %.3f, \"examples_per_s\": %.1f}\n", seconds, speed);
	rt_log_flush(h);
	pthread_mutex_unlock(&h->lock);
}

/* A line that a run resumed at step `from` will not write again. */
static bool
log_keeps(const char *line, int64_t from, int64_t per)
{
	long long n;

	if (sscanf(line, "{\"step\": %lld", &n) == 1)
		return n < from;
	if (sscanf(line, "{\"watch\": %lld", &n) == 1)
		return n < from;
	if (sscanf(line, "{\"epoch\": %lld", &n) == 1)
		return (n + 1) * per <= from;
	return true;
}

/* A resumed run goes on in the same log: lines of steps after the checkpoint, which a killed run may have left, are
 * dropped. */
static bool
log_trim(RtHost *h, FILE *old, FILE *out, int64_t from, int64_t per)
{
	char *line = NULL;
	size_t room = 0;
	bool good = true;

	while (good && getline(&line, &room, old) > 0)
		if (line[strlen(line) - 1] == '\n' && log_keeps(line, from, per))
			good = fputs(line, out) >= 0;
	free(line);
	return (fflush(out) == 0 && good) || rt_fail(&h->error, "%s", strerror(errno));
}

/* A file, which a run has for itself: it begins anew, or goes on where the checkpoint was. */
static bool
log_file(RtHost *h, int64_t from, int64_t per)
{
	int fd = open(h->opt.log, O_RDWR | O_CREAT | O_CLOEXEC, 0666), new;
	FILE *old = fd >= 0 ? fdopen(fd, "r+") : NULL;
	RtOut out;
	bool good;

	if (!old)
		return rt_fail(&h->error, "%s", strerror(errno));
	if (!rt_lock_file(fd)) {
		fclose(old);
		return rt_fail(&h->error, "another run writes there; give this one another file");
	}
	if (!h->resumed) {
		h->log = old;
		return ftruncate(fd, 0) == 0 || rt_fail(&h->error, "%s", strerror(errno));
	}
	good = rt_out_try(h->opt.log, NULL, &h->error) && rt_out_open(&out, h->opt.log, &h->error);
	new = good ? fcntl(out.fd, F_DUPFD_CLOEXEC, 0) : -1; /* the lock is of both */
	h->log = new >= 0 ? fdopen(new, "w") : NULL;
	if (good && !h->log) {
		rt_fail(&h->error, "%s", strerror(errno));
		good = rt_out_drop(&out) && false;
	} else if (good) {
		good = log_trim(h, old, h->log, from, per);
		if (good)
			good = rt_out_end(&out, false, &h->error);
		else
			rt_out_drop(&out);
	}
	fclose(old);
	return good;
}

static bool
log_open(RtHost *h, int64_t from, int64_t per)
{
	char *real = h->opt.log ? rt_file_real(h->opt.log) : NULL;
	bool same = real && h->save.path && strcmp(real, h->save.path) == 0;
	struct stat st;
	RtOut out;

	free(real);
	if (!h->opt.log)
		return true;
	if (same)
		return rt_fail(&h->error, "--log %s: the checkpoint is saved there", h->opt.log);
	if (rt_file_descriptor(h->opt.log) < 0 && (stat(h->opt.log, &st) != 0 || S_ISREG(st.st_mode)))
		return log_file(h, from, per) || rt_context(&h->error, "--log %s", h->opt.log);
	if (!rt_out_open(&out, h->opt.log, &h->error) || !rt_out_write(&out, "", 0, &h->error)) /* a device or a pipe */
		return rt_context(&h->error, "--log");
	h->log = fdopen(out.fd, "w");
	return h->log || rt_fail(&h->error, "--log %s: %s", h->opt.log, strerror(errno));
}

bool
rt_log_open(RtHost *h, int64_t from, int64_t per)
{
	if (!log_open(h, from, per))
		return false;
	if (h->log && rt_settings_any(h)) {
		fprintf(h->log, "{\"settings\": ");
		rt_settings_json(h, h->log);
		fprintf(h->log, ", \"from\": %lld}\n", (long long)from);
	}
	return true;
}
