/* review_show.c: the table of `review`: text, JSON, one page of HTML with bars.
 *
 * In: measurements.   Out: a line each; the machine; where a model was measured in f32 and in mixed, their ratios. The
 * page holds everything it needs: no script, no file beside it. Bars of one model and mode have one scale. */
#include "cmd.h"

#include "review.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Figures {
	double speed, ms, cpu, memory, rss, gpu, gpu_memory, gpu_bytes; /* NAN: not there */
} Figures;

static double
median_or(const Json *o, const char *key, const char *other)
{
	const Json *x = rt_json_get(o, key);

	return rt_json_num(x ? x : rt_json_get(o, other), "median", NAN);
}

static Figures
figures(const Measurement *m)
{
	const Json *u = rt_json_get(m->o, "usage");
	Figures f = {.speed = median_or(m->o, "examples_per_s", "tokens_per_s"),
	             .ms = median_or(m->o, "ms_per_step", "ms_per_token"),
	             .cpu = rt_json_num(u, "cpu", NAN),
	             .memory = rt_json_num(u, "memory", NAN),
	             .rss = rt_json_num(u, "rss_bytes", rt_json_num(m->o, "peak_rss_bytes", NAN)),
	             .gpu = rt_json_num(u, "gpu", NAN),
	             .gpu_memory = rt_json_num(u, "gpu_memory_busy", NAN),
	             .gpu_bytes = rt_json_num(u, "gpu_memory_bytes", NAN)};

	return f;
}

/* ---------------------------------------------------------------- the machine */
/* What follows the colon of the first line that begins so; NULL. */
static const char *
file_word(Arena *a, const char *path, const char *key)
{
	FILE *f = fopen(path, "r");
	char line[512];
	const char *found = NULL;

	while (f && !found && fgets(line, sizeof line, f)) {
		char *colon = strchr(line, ':');

		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, key, strlen(key)) && colon)
			found = arena_strdup(a, colon + 1 + strspn(colon + 1, " \t"));
	}
	if (f)
		fclose(f);
	return found;
}

double
review_free(void)
{
	Arena *a = arena_new();
	const char *kb = file_word(a, "/proc/meminfo", "MemAvailable");
	double bytes = kb ? 1024 * strtod(kb, NULL) : (double)machine_memory();

	arena_free(a);
	return bytes;
}

void
review_machine(Arena *a, Review *r)
{
	r->cpu = file_word(a, "/proc/cpuinfo", "model name");
	r->driver = file_word(a, "/proc/driver/nvidia/version", "NVRM version");
	r->threads = sysconf(_SC_NPROCESSORS_ONLN);
	r->memory = (double)machine_memory();
	for (uint32_t i = 0; i < r->row.n; i++) {
		const Json *o = r->row.at[i].o;
		double peak = 1e9 * rt_json_num(o, "peak_gflops", 0);

		if (!strcmp(r->row.at[i].precision, "f32") && peak > r->peak)
			r->peak = peak;
		r->device = rt_json_str(o, "device", r->device);
	}
}

/* ---------------------------------------------------------------- text */
static void
put_figure(int width, int digits, double x, double times)
{
	if (isfinite(x))
		printf("  %*.*f", width, digits, x * times);
	else
		printf("  %*s", width, "-");
}

/* Of milliseconds: short steps have microseconds. */
static int
time_digits(double ms)
{
	return ms < 10 ? 3 : 1;
}

void
review_head(void)
{
	printf("%-18s %-8s %-9s %5s  %-10s  %10s  %9s  %5s  %8s  %9s  %5s  %9s  %6s\n", "model", "mode", "precision",
	       "batch", "data", "examples/s", "ms/step", "CPU %", "memory %", "memory MB", "GPU %", "GPU mem %",
	       "GPU MB");
}

void
review_row(const Measurement *m)
{
	Figures f = figures(m);

	printf("%-18s %-8s %-9s %5s  %-10s", m->model, m->mode, m->precision, m->batch,
	       strcmp(m->data, "-") ? m->data : "synthetic");
	if (m->error) {
		printf("  %s\n", m->error);
		return;
	}
	put_figure(10, 1, f.speed, 1);
	put_figure(9, time_digits(f.ms), f.ms, 1);
	put_figure(5, 1, f.cpu, 100);
	put_figure(8, 1, f.memory, 100);
	put_figure(9, 0, f.rss, 1e-6);
	put_figure(5, 1, f.gpu, 100);
	put_figure(9, 1, f.gpu_memory, 100);
	put_figure(6, 0, f.gpu_bytes, 1e-6);
	printf("%s\n", m->cut ? " *" : "");
}

/* The same in mixed of a measurement in f32; NULL. */
static const Measurement *
in_mixed(const Review *r, const Measurement *m)
{
	for (uint32_t i = 0; i < r->row.n; i++) {
		const Measurement *x = &r->row.at[i];

		if (!strcmp(x->precision, "mixed") && !strcmp(x->file, m->file) && !strcmp(x->mode, m->mode) &&
		    !strcmp(x->batch, m->batch) && !strcmp(x->data, m->data))
			return x;
	}
	return NULL;
}

/* Calls put for each pair of one model in f32 and mixed. */
static void
ratios(FILE *out, const Review *r, const char *form)
{
	for (uint32_t i = 0; i < r->row.n; i++) {
		const Measurement *m = &r->row.at[i], *x = strcmp(m->precision, "f32") ? NULL : in_mixed(r, m);
		Figures a, b;

		if (!x || m->error || x->error)
			continue;
		a = figures(m);
		b = figures(x);
		fprintf(out, form, m->model, m->mode, m->batch, b.speed / a.speed, b.rss / a.rss);
	}
}

void
review_end(const Review *r)
{
	bool cut = false;

	for (uint32_t i = 0; i < r->row.n; i++)
		cut |= r->row.at[i].cut;
	printf("\n%s, %ld threads, %.1f GFLOP/s measured, %.1f GB of memory, %s%s%s\n", r->cpu ? r->cpu : "CPU unknown",
	       r->threads, r->peak * 1e-9, r->memory * 1e-9, r->device ? r->device : "no GPU",
	       r->driver ? ", driver " : "", r->driver ? r->driver : "");
	ratios(stdout, r, "%s, %s, batch %s: mixed / f32: speed %.2f, memory %.2f\n");
	if (cut)
		printf("* fewer steps than the protocol's: more would have taken longer than --seconds\n");
}

/* ---------------------------------------------------------------- JSON */
static void
put_text(Buf *b, const char *key, const char *s)
{
	buf_printf(b, "\"%s\": ", key);
	if (s)
		buf_json(b, s);
	else
		buf_printf(b, "null");
}

void
review_json(const Review *r)
{
	Buf b = {0};

	buf_printf(&b, "{\"machine\": {");
	put_text(&b, "cpu", r->cpu);
	buf_printf(&b, ", \"threads\": %ld, \"peak_gflops\": %.9g, \"memory_bytes\": %.15g, ", r->threads,
	           r->peak * 1e-9, r->memory);
	put_text(&b, "device", r->device);
	buf_printf(&b, ", ");
	put_text(&b, "driver", r->driver);
	buf_printf(&b, "}, \"rows\": [");
	for (uint32_t i = 0; i < r->row.n; i++) {
		const Measurement *m = &r->row.at[i];
		const char *end = m->text ? strrchr(m->text, '}') : NULL;

		buf_printf(&b, "%s\n", i ? "," : "");
		if (end && !m->error) {
			buf_put(&b, m->text, (size_t)(end - m->text));
			buf_printf(&b, "%s}", m->cut ? ", \"cut\": true" : "");
			continue;
		}
		buf_printf(&b, "{");
		put_text(&b, "model", m->model);
		buf_printf(&b, ", ");
		put_text(&b, "mode", m->mode);
		buf_printf(&b, ", ");
		put_text(&b, "precision", m->precision);
		buf_printf(&b, ", ");
		put_text(&b, "batch", m->batch);
		buf_printf(&b, ", ");
		put_text(&b, "error", m->error);
		buf_printf(&b, "}");
	}
	buf_printf(&b, "]}\n");
	fputs(b.at, stdout);
	buf_free(&b);
}

/* ---------------------------------------------------------------- HTML */
static void
put_html(FILE *f, const char *s)
{
	for (; *s; s++)
		switch (*s) {
		case '&':
			fputs("&amp;", f);
			break;
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		case '"':
			fputs("&quot;", f);
			break;
		default:
			fputc(*s, f);
		}
}

static void
put_cell(FILE *f, const char *s)
{
	fputs("<td>", f);
	put_html(f, s);
	fputs("</td>", f);
}

static void
put_number(FILE *f, int digits, double x, double times)
{
	if (isfinite(x))
		fprintf(f, "<td class=n>%.*f</td>", digits, x * times);
	else
		fputs("<td class=n>&ndash;</td>", f);
}

/* The fastest of a model in a mode: what its bars are measured by. */
static double
fastest(const Review *r, const Measurement *m)
{
	double most = 0;

	for (uint32_t i = 0; i < r->row.n; i++) {
		const Measurement *x = &r->row.at[i];
		double speed = figures(x).speed;

		if (!x->error && !strcmp(x->file, m->file) && !strcmp(x->mode, m->mode) && speed > most)
			most = speed;
	}
	return most;
}

static void
html_row(FILE *f, const Review *r, const Measurement *m)
{
	Figures x = figures(m);

	fputs("<tr>", f);
	put_cell(f, m->model);
	put_cell(f, m->mode);
	put_cell(f, m->precision);
	put_cell(f, m->batch);
	put_cell(f, strcmp(m->data, "-") ? m->data : "synthetic");
	if (m->error) {
		fputs("<td colspan=9 class=e>", f);
		put_html(f, m->error);
		fputs("</td></tr>\n", f);
		return;
	}
	fprintf(f, "<td class=n>%.1f%s</td><td class=b><i class=%s style=\"width:%.1f%%\"></i></td>", x.speed,
	        m->cut ? " *" : "", strcmp(m->precision, "f32") ? "m" : "s", 100 * x.speed / fastest(r, m));
	put_number(f, time_digits(x.ms), x.ms, 1);
	put_number(f, 1, x.cpu, 100);
	put_number(f, 1, x.memory, 100);
	put_number(f, 0, x.rss, 1e-6);
	put_number(f, 1, x.gpu, 100);
	put_number(f, 1, x.gpu_memory, 100);
	put_number(f, 0, x.gpu_bytes, 1e-6);
	fputs("</tr>\n", f);
}

void
review_html(FILE *f, const Review *r)
{
	fputs("<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>mantou review</title>\n<style>\n"
	      "body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}\n"
	      "th,td{padding:.25em .45em;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap}\n"
	      "th{border-bottom:2px solid #888}.n{text-align:right;font-variant-numeric:tabular-nums}\n"
	      ".b{width:14em}.b "
	      "i{display:block;height:.9em;border-radius:2px}.s{background:#4878a8}.m{background:#d08030}\n"
	      ".e{color:#b00020;white-space:normal}\n</style>\n<h1>mantou review</h1>\n<p>",
	      f);
	put_html(f, r->cpu ? r->cpu : "CPU unknown");
	fprintf(f, ", %ld threads, %.1f GFLOP/s measured, %.1f GB of memory, ", r->threads, r->peak * 1e-9,
	        r->memory * 1e-9);
	put_html(f, r->device ? r->device : "no GPU");
	if (r->driver) {
		fputs(", driver ", f);
		put_html(f, r->driver);
	}
	fputs("</p>\n<table>\n<tr><th>model<th>mode<th>precision<th>batch<th>data<th class=n>examples/s<th>beside the "
	      "fastest<th class=n>ms/step<th class=n>CPU %<th class=n>memory %<th class=n>memory MB<th class=n>GPU "
	      "%<th "
	      "class=n>GPU mem %<th class=n>GPU MB</tr>\n",
	      f);
	for (uint32_t i = 0; i < r->row.n; i++)
		html_row(f, r, &r->row.at[i]);
	fputs("</table>\n<p>Bars: examples a second beside the fastest measurement of the same model and mode; blue is "
	      "f32. "
	      "MB are 10<sup>6</sup> bytes. * fewer steps than the protocol's.</p>\n<ul>\n",
	      f);
	ratios(f, r, "<li>%s, %s, batch %s: mixed / f32: speed %.2f, memory %.2f</li>\n");
	fputs("</ul>\n</html>\n", f);
}
