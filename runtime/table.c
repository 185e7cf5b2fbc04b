/* table.c: metrics of several values, such as the accuracy of each class or a confusion matrix: in the terminal a table
 * below the evaluation's line, in JSON the whole of it.
 *
 * In: behind an evaluation's last batch the results of kind table, in the arena.   Out: numbers in columns of one
 * width, with the indices above, and for a matrix before, each row. What is wider than a terminal is cut, a vector into
 * several rows, a matrix behind the last column that fits; of many rows the first are printed. A line says what is not
 * there; --log and eval --json leave nothing out. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ROWS = 40, INDENT = 2, GAP = 2, CELL = 32 };

bool
rt_evaluates(const RtProgram *p)
{
	const RtGraph *g = &p->graph[RT_G_EVAL];

	return g->present && (g->nscalar || g->ntable);
}

static int64_t
table_count(const RtTensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++)
		n *= t->shape[i];
	return n;
}

bool
rt_tables_take(RtHost *h, const RtGraph *g)
{
	for (int k = 0; k < g->nresult; k++) {
		RtResult *r = &g->result[k];
		int64_t n = table_count(&r->t);

		if (r->kind != RT_TABLE)
			continue;
		if (!r->value)
			r->value = rt_alloc(sizeof *r->value * (size_t)n);
		if (!rt_host_fetch(h, r->t.offset, r->t.bytes))
			return false;
		for (int64_t i = 0; i < n; i++)
			r->value[i] = rt_dtype_read(r->t.dtype, h->run.arena + r->t.offset
			                            + rt_tensor_place(&r->t, i) * rt_dtype[r->t.dtype].bytes);
	}
	return true;
}

/* ---------------------------------------------------------------- text */
/* Are all of them numbers that count? */
static bool
table_counts(const RtResult *r)
{
	for (int64_t i = 0; i < table_count(&r->t); i++)
		if (r->value[i] != floor(r->value[i]) || fabs(r->value[i]) >= 1e9)
			return false;
	return true;
}

static int
table_cell(char *out, double x, bool counts)
{
	return snprintf(out, CELL, counts ? "%.0f" : fabs(x) < 1e6 ? "%.4f" : "%.4e", x);
}

static int
table_width(const RtResult *r, bool counts)
{
	char cell[CELL];
	int64_t columns = r->t.shape[r->t.rank - 1];
	int width = snprintf(cell, sizeof cell, "%lld", (long long)columns - 1);

	for (int64_t i = 0; i < table_count(&r->t); i++) {
		int n = table_cell(cell, r->value[i], counts);

		width = n > width ? n : width;
	}
	return width + GAP;
}

static void
table_heads(int64_t from, int64_t to, int width, int lead)
{
	printf("%*s", lead, "");
	for (int64_t i = from; i < to; i++)
		printf("%*lld", width, (long long)i);
	printf("\n");
}

static void
table_row(const double *value, int64_t n, int width, bool counts)
{
	char cell[CELL];

	for (int64_t i = 0; i < n; i++) {
		table_cell(cell, value[i], counts);
		printf("%*s", width, cell);
	}
	printf("\n");
}

static void
table_print(const RtResult *r, int columns)
{
	bool counts = table_counts(r), matrix = r->t.rank == 2;
	int64_t rows = matrix ? r->t.shape[0] : 1, n = r->t.shape[r->t.rank - 1], fit, shown = 0;
	int width = table_width(r, counts), lead = INDENT;

	if (matrix)
		lead += snprintf(NULL, 0, "%lld", (long long)rows - 1);
	fit = (columns - 1 - lead) / width;
	fit = fit < 1 ? 1 : fit > n ? n : fit;
	printf("%*s%s%s\n", INDENT, "", r->t.name, matrix ? " (rows: the first axis)" : "");
	if (matrix) {
		table_heads(0, fit, width, lead);
		for (; shown < rows && shown < ROWS; shown++) {
			printf("%*lld", lead, (long long)shown);
			table_row(r->value + shown * n, fit, width, counts);
		}
	} else {
		for (; shown < n && shown < ROWS / 2 * fit; shown += fit) {
			int64_t here = n - shown < fit ? n - shown : fit;

			table_heads(shown, shown + here, width, lead);
			printf("%*s", lead, "");
			table_row(r->value + shown, here, width, counts);
		}
	}
	if (matrix && (shown < rows || fit < n))
		printf("%*s(%lld x %lld of %lld x %lld; --log and eval --json have all)\n", INDENT, "",
		       (long long)shown, (long long)fit, (long long)rows, (long long)n);
	else if (!matrix && shown < n)
		printf("%*s(%lld of %lld; --log and eval --json have all)\n", INDENT, "", (long long)shown,
		       (long long)n);
}

void
rt_tables_print(const RtGraph *g)
{
	struct winsize w = {0};

	if (ioctl(1, TIOCGWINSZ, &w) != 0 || !w.ws_col)
		w.ws_col = 80;
	for (int k = 0; k < g->nresult; k++)
		if (g->result[k].kind == RT_TABLE && g->result[k].value)
			table_print(&g->result[k], w.ws_col);
}

/* ---------------------------------------------------------------- JSON */
void
rt_tables_json(const RtGraph *g, FILE *f, const char *before)
{
	for (int k = 0; k < g->nresult; k++) {
		const RtResult *r = &g->result[k];
		int64_t n = r->t.rank ? r->t.shape[r->t.rank - 1] : 1, rows = n ? table_count(&r->t) / n : 0;
		int digits = r->t.dtype == RT_F64 || r->t.dtype == RT_I64 || r->t.dtype == RT_I32 ? 17 : 9;

		if (r->kind != RT_TABLE || !r->value)
			continue;
		fputs(before, f);
		before = ", ";
		rt_json_text(f, r->t.name);
		fputs(r->t.rank == 2 ? ": [" : ": ", f);
		for (int64_t i = 0; i < rows; i++) {
			fputs(i ? ", [" : "[", f);
			for (int64_t j = 0; j < n; j++) {
				fputs(j ? ", " : "", f);
				rt_json_number(f, r->value[i * n + j], digits);
			}
			fputs("]", f);
		}
		fputs(r->t.rank == 2 ? "]" : "", f);
	}
}
