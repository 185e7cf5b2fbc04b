/* text.c: errors with context, small texts, suggestions, JSON output, time. */
#include "host.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool
rt_fail(RtError *e, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	return false;
}

bool
rt_context(RtError *e, const char *fmt, ...)
{
	char old[sizeof e->text];
	va_list ap;
	int n;

	memcpy(old, e->text, sizeof old);
	va_start(ap, fmt);
	n = vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n + 3 < sizeof e->text)
		snprintf(e->text + n, sizeof e->text - (size_t)n, ": %.*s", (int)(sizeof e->text - (size_t)n - 3), old);
	return false;
}

bool
rt_hint(RtError *e, const char *what)
{
	size_t n = strlen(e->text);

	snprintf(e->text + n, sizeof e->text - n, "; %s", what);
	return false;
}

void *
rt_alloc(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p) {
		fprintf(stderr, "error: out of memory (%zu bytes)\n", bytes);
		exit(1);
	}
	return p;
}

char *
rt_printf(const char *fmt, ...)
{
	va_list ap;
	char *s;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	s = rt_alloc((size_t)(n < 0 ? 0 : n) + 1);
	va_start(ap, fmt);
	vsnprintf(s, (size_t)(n < 0 ? 0 : n) + 1, fmt, ap);
	va_end(ap);
	return s;
}

/* Levenshtein distance of names up to 63 letters; longer ones are as far as can be. */
static int
text_distance(const char *a, const char *b)
{
	int row[64];
	size_t na = strlen(a), nb = strlen(b);

	if (na > 63 || nb > 63)
		return 99;
	for (size_t j = 0; j <= nb; j++)
		row[j] = (int)j;
	for (size_t i = 1; i <= na; i++) {
		int corner = row[0];

		row[0] = (int)i;
		for (size_t j = 1; j <= nb; j++) {
			int best = corner + (a[i - 1] != b[j - 1]);

			corner = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[nb];
}

const char *
rt_suggest(const char *name, const char *const *names, int n)
{
	int limit = strlen(name) <= 3 ? 1 : 2;
	const char *best = NULL;

	for (int i = 0; i < n; i++) {
		int d = text_distance(name, names[i]);

		if (d <= limit) {
			limit = d - 1;
			best = names[i];
		}
	}
	return best;
}

void
rt_json_text(FILE *f, const char *s)
{
	putc('"', f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20)
			fprintf(f, "\\u%04x", c);
		else
			putc(c, f);
	}
	putc('"', f);
}

void
rt_json_number(FILE *f, double x, int digits)
{
	if (isfinite(x))
		fprintf(f, "%.*g", digits, x);
	else
		fputs("null", f);
}

const char *
rt_basename(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

double
rt_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool
rt_write_all(int fd, const void *bytes, size_t n)
{
	const char *p = bytes;

	while (n) {
		ssize_t k = write(fd, p, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return false;
		p += k;
		n -= (size_t)k;
	}
	return true;
}
