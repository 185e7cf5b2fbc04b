/* tune_report.c: what `mantou tune` says: its lines on stderr, the table of --explain, the object of --json. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* `WORD      text`, a phase each; nothing with --quiet. */
void
tune_line(const Tune *t, const char *what, const char *fmt, ...)
{
	va_list ap;

	if (t->o->quiet)
		return;
	fprintf(stderr, isatty(2) ? "\r\033[K%-9s " : "%-9s ", what);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---------------------------------------------------------------- --explain */
static void
put_kernel(Buf *b, const Json *k, const char *winner, bool own)
{
	const char *text = rt_json_str(k, "kernel", ""), *out = rt_json_str(k, "out", "");
	double time = rt_json_num(k, "time", NAN), low = rt_json_num(k, "low", NAN), high = rt_json_num(k, "high", NAN);

	buf_printf(b, "  %s %-58s %4" PRId64, !strcmp(text, winner) ? "*" : " ", text, rt_json_int(k, "n", 0));
	if (isnan(time))
		buf_printf(b, " %8s %17s", "", "");
	else if (isnan(low))
		buf_printf(b, " %7.1f%% %17s", 100 * time, "");
	else
		buf_printf(b, " %7.1f%% %7.1f ..%7.1f", 100 * time, 100 * low, 100 * high);
	buf_printf(b, "  %s\n", own ? "the program's own" : out);
}

static void
explain_result(Buf *b, const Json *r)
{
	const Json *list = rt_json_get(r, "kernels");
	const char *winner = rt_json_str(r, "kernel", "");
	double gain = rt_json_num(r, "gain", NAN);

	buf_printf(b, "%s\n  %.4g us, %.2f %% of the step, %" PRId64 " layer%s", rt_json_str(r, "record", ""),
		rt_json_num(r, "us", 0), 100 * rt_json_num(r, "share", 0), rt_json_int(r, "layers", 1),
		rt_json_int(r, "layers", 1) == 1 ? "" : "s");
	if (rt_json_bool(r, "won", false))
		buf_printf(b, "; gains %.1f %% (%.1f .. %.1f)\n", 100 * gain, 100 * rt_json_num(r, "low", NAN),
			100 * rt_json_num(r, "high", NAN));
	else
		buf_printf(b, "; its kernel stays%s\n",
		           rt_json_bool(r, "finished", true) ? "" : ": the budget ended first");
	buf_printf(b, "    %-58s %4s %8s %17s  why it left\n", "kernel", "n", "median", "interval of 95 %");
	for (const Json *k = list ? list->child : NULL; k; k = k->next)
		put_kernel(b, k, winner, list->child == k);
}

void
report_explain(const Tune *t, Buf *out)
{
	for (uint32_t i = 0; i < t->line.n; i++) {
		char why[128];
		JsonDoc *doc = NULL;
		const Json *o = rt_json_parse(t->line.at[i], strlen(t->line.at[i]), &doc, why, sizeof why);

		if (rt_json_get(o, "result"))
			explain_result(out, rt_json_get(o, "result"));
		rt_json_free(doc);
	}
}

/* The key of a result as one of these lines, KEY : VALUE, has it. */
static bool
in_lines(const char *key, const char *const *line, int n)
{
	size_t m = strlen(key);

	for (int i = 0; i < n; i++)
		if (!strncmp(line[i], key, m) && !strncmp(line[i] + m, " : ", 3))
			return true;
	return false;
}

static void
explain_line(Buf *out, const char *text, size_t bytes, const char *const *line, int n)
{
	char why[128];
	JsonDoc *doc = NULL;
	const Json *o = rt_json_parse(text, bytes, &doc, why, sizeof why), *list = rt_json_get(o, "lines");

	for (const Json *x = list ? list->child : NULL; x; x = x->next) {
		const Json *r = rt_json_get(x, "result");

		if (r && in_lines(rt_json_str(r, "record", ""), line, n))
			explain_result(out, r);
	}
	rt_json_free(doc);
}

void
explain_tried(Buf *out, const char *tuning, const char *const *line, int n)
{
	Buf path = {0};
	size_t bytes = 0;

	buf_printf(&path, "%s.log", tuning);
	char *text = access(path.at, R_OK) || file_special(path.at) ? NULL : file_read(path.at, &bytes);

	for (size_t at = 0; text && at < bytes;) {
		const char *end = memchr(text + at, '\n', bytes - at);
		size_t m = end ? (size_t)(end - text) - at : bytes - at;

		if (m > 8 && !memcmp(text + at, "{\"done\":", 8))
			explain_line(out, text + at, m, line, n);
		at += m + 1;
	}
	free(text);
	buf_free(&path);
}

/* ---------------------------------------------------------------- --json */
static void
put_number(Buf *b, const char *name, double x)
{
	if (isfinite(x))
		buf_printf(b, ", \"%s\": %.6g", name, x);
	else
		buf_printf(b, ", \"%s\": null", name);
}

static void
put_won(Buf *b, const Won *w)
{
	static const char *const bits[] = {"same", "order", "round"};

	buf_printf(b, "{\"record\": ");
	buf_json(b, w->key);
	buf_printf(b, ", \"kernel\": ");
	buf_json(b, w->kernel);
	buf_printf(b, ", \"was\": ");
	buf_json(b, w->was);
	put_number(b, "gain", w->gain);
	put_number(b, "us", w->us);
	put_number(b, "was_us", w->was_us);
	put_number(b, "share", w->share);
	buf_printf(b, ", \"samples\": %" PRId64 ", \"bits\": \"%s\"}", w->n, bits[w->bits]);
}

static void
put_list(Buf *b, const Tune *t, const char *name, bool kept)
{
	const char *comma = "";

	buf_printf(b, ", \"%s\": [", name);
	for (uint32_t i = 0; i < t->won.n; i++) {
		if (t->won.at[i].kept != kept)
			continue;
		buf_printf(b, "%s\n ", comma);
		put_won(b, &t->won.at[i]);
		comma = ",";
	}
	buf_printf(b, "]");
}

void
report_json(const Tune *t, const Final *f, Buf *out)
{
	static const char *const phase[] = {"baseline", "compiling", "racing", "final"};

	buf_printf(out, "{\"model\": ");
	buf_json(out, t->o->operand[0]);
	buf_printf(out, ", \"file\": ");
	buf_json(out, t->path ? t->path : "-");
	buf_printf(out, ", \"written\": %s, \"stopped\": %s, \"threads\": %d, \"rounds\": %d, \"variants\": %d",
		f->kept ? "true" : "false", t->stopped ? "true" : "false", t->threads, t->rounds, t->variants);
	buf_printf(out, ", \"simulated\": %s", t->simulated ? "true" : "false");
	put_number(out, "baseline_ms", t->step * 1e-6);
	buf_printf(out, ", \"final\": ");
	if (f->pairs) {
		buf_printf(out, "{\"pairs\": %d", f->pairs);
		put_number(out, "base_ms", f->base);
		put_number(out, "tuned_ms", f->tuned);
		put_number(out, "gain", f->ratio - 1);
		put_number(out, "low", f->low - 1);
		put_number(out, "high", f->high - 1);
		put_number(out, "predicted", f->predicted - 1);
		buf_printf(out, ", \"states\": \"%s\"}", !f->kept ? "unknown" : f->equal ? "equal" : "near");
	} else {
		buf_printf(out, "null");
	}
	put_list(out, t, "records", true);
	put_list(out, t, "dropped", false);
	buf_printf(out, ", \"failures\": {");
	for (uint32_t i = 0; i < t->failure.n; i++)
		buf_printf(out, "%s\"%s\": %d", i ? ", " : "", t->failure.at[i].why, t->failure.at[i].n);
	buf_printf(out, "}, \"seconds\": {");
	for (int i = 0; i < 4; i++)
		buf_printf(out, "%s\"%s\": %.3f", i ? ", " : "", phase[i], (double)t->phase[i] * 1e-9);
	buf_printf(out, "}}\n");
}
