/* progress.c: what a training says: epoch lines on stdout, a progress bar on a terminal, the log.
 *
 * The bar stands on stderr and is drawn by the monitor thread, so that it moves in every sink mode; whoever prints a line
 * clears it first. NO_COLOR and dumb terminals are honoured. Log lines are JSON, a line per step, then one per epoch. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
	int64_t per = h->run.steps_per_epoch, done = h->last_step + 1, epoch = h->last_step / per, in = done - epoch * per, left = h->total - done;
	double now = rt_now(), speed = now > h->epoch_start ? (double)(done - h->epoch_from) / (now - h->epoch_start) : 0;
	int64_t seconds = speed > 0 ? (int64_t)((double)left / speed) : 0;
	const char *on = progress_colour() ? "\033[36m" : "", *off = *on ? "\033[0m" : "";
	char head[64], tail[160], bar[PROGRESS_CELLS * 4 + 8];
	int cells;

	snprintf(head, sizeof head, "epoch %lld/%lld ", (long long)epoch + 1, (long long)((h->total + per - 1) / per));
	snprintf(tail, sizeof tail, " %lld/%lld  loss %.4f  %.1f steps/s  %lld:%02lld left", (long long)in, (long long)per, h->last_loss, speed,
	         (long long)(seconds / 60), (long long)(seconds % 60));
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

		if (r->kind == RT_LOSS || r->kind == RT_METRIC || r->kind == RT_WHOLE)
			printf("  %s %.4f", r->kind == RT_LOSS ? "loss" : r->t.name, mean[i]);
	}
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
	fflush(stdout);
}

void
rt_eval_report(RtHost *h, const double *mean)
{
	if (h->opt.quiet)
		return;
	rt_progress_clear(h);
	printf("eval");
	progress_values(&h->program.graph[RT_G_EVAL], mean);
	printf("\n");
	fflush(stdout);
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
	fprintf(stderr, "step %lld: the gradient of %s is not finite at loss scale %g; the step is left out, the scale is halved\n", (long long)r->step,
	        h->program.state[(int)state].t.name, scale);
}

/* ---- log */

/* Key of a scalar in JSON: the loss is "loss", the norm "grad_norm", the loss scale "scale", metrics have their own names. */
static void
log_scalar(FILE *f, const RtResult *r, double x, const char *before)
{
	fputs(before, f);
	rt_json_text(f, r->kind == RT_LOSS ? "loss" : r->kind == RT_NORM ? "grad_norm" : r->kind == RT_SCALE ? "scale" : r->t.name);
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
			log_scalar(h->log, &g->result[g->scalar[i]], r->value[i], ", ");
	fprintf(h->log, ", \"rate\": ");
	rt_json_number(h->log, r->rate, 9);
	for (int i = 0; i < g->nscalar; i++)
		if (i != g->loss && g->result[g->scalar[i]].kind != RT_OVERFLOW)
			log_scalar(h->log, &g->result[g->scalar[i]], r->value[i], ", ");
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
		log_scalar(f, r, mean[i], before);
		before = ", ";
	}
	fprintf(f, "}");
}

void
rt_epoch_log(RtHost *h, int64_t epoch, const double *train, const double *eval, double seconds, double speed)
{
	if (!h->log)
		return;
	pthread_mutex_lock(&h->lock);
	fprintf(h->log, "{\"epoch\": %lld", (long long)epoch);
	log_means(h->log, "train", &h->program.graph[h->program.train.reports], train);
	if (eval)
		log_means(h->log, "eval", &h->program.graph[RT_G_EVAL], eval);
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
	if (sscanf(line, "{\"epoch\": %lld", &n) == 1)
		return (n + 1) * per <= from;
	return true;
}

/* A resumed run goes on in the same log: lines of steps after the checkpoint, which a killed run may have left, are dropped. */
static bool
log_trim(RtHost *h, int64_t from, int64_t per)
{
	FILE *old = fopen(h->opt.log, "re"), *out;
	char *line = NULL, *temporary;
	size_t room = 0;
	bool good;

	if (!old)
		return errno == ENOENT || rt_fail(&h->error, "--log %s: %s", h->opt.log, strerror(errno));
	temporary = rt_printf("%s.tmp", h->opt.log);
	out = fopen(temporary, "we");
	good = out != NULL;
	while (good && getline(&line, &room, old) > 0)
		if (line[strlen(line) - 1] == '\n' && log_keeps(line, from, per))
			good = fputs(line, out) >= 0;
	if (out && fclose(out) != 0)
		good = false;
	good = good && rename(temporary, h->opt.log) == 0;
	if (!good)
		rt_fail(&h->error, "--log %s: %s", h->opt.log, strerror(errno));
	free(line);
	free(temporary);
	fclose(old);
	return good;
}

bool
rt_log_open(RtHost *h, int64_t from, int64_t per)
{
	if (!h->opt.log)
		return true;
	if (h->resumed && !log_trim(h, from, per))
		return false;
	h->log = fopen(h->opt.log, h->resumed ? "ae" : "we");
	return h->log || rt_fail(&h->error, "--log %s: %s", h->opt.log, strerror(errno));
}
