/* figures.c: figures for people: bytes, counts, places in a file; the machine's memory.
 *
 * In: a number.   Out: its text behind a Buf. */
#include "cmd.h"

#include <stdio.h>

int64_t
machine_memory(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	char line[256];
	long long kib = 0;

	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "MemTotal: %lld", &kib) == 1)
			break;
	fclose(f);
	return kib * 1024;
}

void
print_bytes(Buf *b, int64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double x = (double)bytes;
	int u = 0;

	for (; x >= 1024 && u < 4; u++)
		x /= 1024;
	buf_printf(b, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
}

/* 61.7 k */
void
print_count(Buf *b, double n)
{
	static const char *const unit[] = {"", " k", " M", " G", " T", " P"};
	int u = 0;

	for (; n >= 1000 && u < 5; u++)
		n /= 1000;
	buf_printf(b, u ? "%.3g%s" : "%.0f%s", n, unit[u]);
}

void
print_where(Buf *b, const Module *m, Loc at)
{
	if (at.file && m->diags && at.file < m->diags->source.n)
		buf_printf(b, "%s:%u:%u", m->diags->source.at[at.file].name, at.line, (unsigned)at.col);
}
