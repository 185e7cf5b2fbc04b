/* cluster_file.c: the description of a cluster, a fact a line.
 *
 *   node 4 of 8                              machines, processes on each
 *   rate 393.6 batch 256                     examples/s of one process; examples of its step
 *   link inside 5us 60GB/s                   from process to process: start, bytes/s each way
 *   link between 8us 11.47GB/s shared        from node to node; shared: by all processes of a node
 *   sum 400GB/s                              adding what arrives
 *   spread 1.5%                              standard deviation of a process's step
 *   busy 3%                                  longer step when all processes of a node work
 *   drag 0.1ms/MB                            longer step for what is exchanged with other nodes, hidden or not
 *   work 0.8ms/MB                            for what is exchanged at all while kernels run, where CPUs do both
 *   exchange direct                          as mantou's programs do; levels: inside a node first, as NCCL does
 *   measured 8 3019.4                        examples/s of 8 processes together; any number of such lines
 * # begins a comment. Refuses whatever is none of these, naming file and line. */
#include "cluster.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const origin_names[] = {"assumed", "given", "fitted"};

typedef struct Unit {
	const char *name;
	double factor;
} Unit;
static const Unit of_time[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};
static const Unit of_speed[] = {{"KB/s", 1e3},   {"MB/s", 1e6},   {"GB/s", 1e9}, {"TB/s", 1e12},
                                {"Mb/s", 125e3}, {"Gb/s", 125e6}, {NULL, 0}};
static const Unit of_share[] = {{"%", 0.01}, {NULL, 0}};
static const Unit of_drag[] = {{"us/MB", 1e-12}, {"ms/MB", 1e-9}, {NULL, 0}};
static const Unit of_count[] = {{"", 1}, {NULL, 0}};

/* Where reading is: the words of a line, and what was wrong first. */
typedef struct Line {
	Arena *a;
	const char *file;
	int number;
	char *word[8];
	int n;
	const char *why;
} Line;

static bool
line_wrong(Line *l, const char *what)
{
	if (!l->why)
		l->why = arena_printf(l->a, "%s:%d: %s", l->file, l->number, what);
	return false;
}

/* Word k as a number of one of the units, not less than `least`. */
static bool
line_number(Line *l, int k, const Unit *unit, double least, double *x)
{
	char *end = NULL;
	Buf all = {0};

	for (const Unit *u = unit; u->name; u++)
		buf_printf(&all, "%s%s", u == unit ? "" : u[1].name ? ", " : " or ", u->name);
	const char *units = arena_printf(l->a, "%s", all.n ? all.at : "");

	buf_free(&all);
	if (k >= l->n)
		return line_wrong(
		        l, arena_printf(l->a, "'%s' lacks a number%s%s", l->word[0], *units ? " of " : "", units));
	*x = strtod(l->word[k], &end);
	for (const Unit *u = unit; end > l->word[k] && u->name; u++)
		if (!strcmp(end, u->name) && isfinite(*x) && *x * u->factor >= least) {
			*x *= u->factor;
			return true;
		}
	return line_wrong(l, arena_printf(l->a, "'%s' is no number%s%s that '%s' can have", l->word[k],
	                                  *units ? " of " : "", units, l->word[0]));
}

static bool
line_count(Line *l, int k, int64_t *n)
{
	double x;

	if (!line_number(l, k, of_count, 1, &x))
		return false;
	*n = (int64_t)x;
	return (x == (double)*n && x < 1e7) ||
	       line_wrong(l, arena_printf(l->a, "'%s' is no whole number up to 9999999", l->word[k]));
}

static bool
line_figure(Line *l, const Unit *unit, double least, Figure *f)
{
	f->by = GIVEN;
	return line_number(l, 1, unit, least, &f->at);
}

static bool
line_words(Line *l, int least, int most, const char *form)
{
	return (l->n >= least && l->n <= most) || line_wrong(l, arena_printf(l->a, "this line reads: %s", form));
}

static bool
read_node(Line *l, Cluster *c)
{
	return line_words(l, 4, 4, "node MACHINES of PROCESSES") && line_count(l, 1, &c->nodes) &&
	       (!strcmp(l->word[2], "of") || line_wrong(l, "this line reads: node MACHINES of PROCESSES")) &&
	       line_count(l, 3, &c->per);
}

static bool
read_rate(Line *l, Cluster *c)
{
	const char *form = "rate EXAMPLES_A_SECOND [batch EXAMPLES]";

	if (!line_words(l, 2, 4, form) || !line_figure(l, of_count, 1e-9, &c->rate))
		return false;
	if (l->n == 2)
		return true;
	return (l->n == 4 && !strcmp(l->word[2], "batch"))
	               ? line_count(l, 3, &c->batch)
	               : line_wrong(l, arena_printf(l->a, "this line reads: %s", form));
}

static bool
read_link(Line *l, Cluster *c)
{
	const char *form = "link inside|between START BYTES_A_SECOND [shared]";
	Link *k = l->n > 1 && !strcmp(l->word[1], "inside")    ? &c->inside
	          : l->n > 1 && !strcmp(l->word[1], "between") ? &c->between
	                                                       : NULL;

	if (!k || l->n < 4 || l->n > 5 || (l->n == 5 && strcmp(l->word[4], "shared")))
		return line_wrong(l, arena_printf(l->a, "this line reads: %s", form));
	k->shared = l->n == 5;
	k->start.by = k->rate.by = GIVEN;
	return line_number(l, 2, of_time, 0, &k->start.at) && line_number(l, 3, of_speed, 1, &k->rate.at);
}

static bool
read_exchange(Line *l, Cluster *c)
{
	bool levels = l->n == 2 && !strcmp(l->word[1], "levels");

	c->levels = levels;
	return levels || (l->n == 2 && !strcmp(l->word[1], "direct")) ||
	       line_wrong(l, "this line reads: exchange direct|levels");
}

static bool
read_measured(Line *l, Cluster *c)
{
	Measured m = {.line = l->number};

	if (!line_words(l, 3, 3, "measured PROCESSES EXAMPLES_A_SECOND") || !line_count(l, 1, &m.processes) ||
	    !line_number(l, 2, of_count, 1e-9, &m.rate))
		return false;
	vec_push(l->a, &c->measured, m);
	return true;
}

static bool
read_line(Line *l, Cluster *c)
{
	static const char *const names[] = {"node", "rate", "link", "sum",      "spread",
	                                    "busy", "drag", "work", "exchange", "measured"};
	const char *w = l->word[0], *near;

	if (!strcmp(w, "node"))
		return read_node(l, c);
	if (!strcmp(w, "rate"))
		return read_rate(l, c);
	if (!strcmp(w, "link"))
		return read_link(l, c);
	if (!strcmp(w, "exchange"))
		return read_exchange(l, c);
	if (!strcmp(w, "measured"))
		return read_measured(l, c);
	if (!strcmp(w, "sum"))
		return line_words(l, 2, 2, "sum BYTES_A_SECOND") && line_figure(l, of_speed, 1, &c->sum);
	if (!strcmp(w, "spread"))
		return line_words(l, 2, 2, "spread SHARE%") && line_figure(l, of_share, 0, &c->spread);
	if (!strcmp(w, "busy"))
		return line_words(l, 2, 2, "busy SHARE%") && line_figure(l, of_share, 0, &c->busy);
	if (!strcmp(w, "drag"))
		return line_words(l, 2, 2, "drag TIME/MB") && line_figure(l, of_drag, 0, &c->drag);
	if (!strcmp(w, "work"))
		return line_words(l, 2, 2, "work TIME/MB") && line_figure(l, of_drag, 0, &c->work);
	near = suggest(w, names, (int)(sizeof names / sizeof *names));
	return line_wrong(l, near ? arena_printf(l->a, "'%s' begins no line; did you mean '%s'?", w, near)
	                          : arena_printf(l->a,
	                                         "'%s' begins no line: node, rate, link, sum, spread, busy, drag, "
	                                         "work, exchange and measured do",
	                                         w));
}

/* A network that nobody described is taken to be slow, one of memory as it is on servers; work is what four networks
 * showed (frontend/scale.md), the others are the middle of what published tables show (tests/scale/tables.txt, rows
 * c). */
Cluster
cluster_assumed(void)
{
	return (Cluster){.inside = {.start = {5e-6, ASSUMED}, .rate = {5e9, ASSUMED}},
	                 .between = {.start = {50e-6, ASSUMED}, .rate = {1e9, ASSUMED}},
	                 .sum = {10e9, ASSUMED},
	                 .spread = {0.01, ASSUMED},
	                 .busy = {0.03, ASSUMED},
	                 .drag = {0.1e-9, ASSUMED},
	                 .work = {0.85e-9, ASSUMED}};
}

static const char *
check_whole(Arena *a, const char *file, const Cluster *c)
{
	if (!c->nodes)
		return arena_printf(a, "%s: no line says 'node MACHINES of PROCESSES'", file);
	if (c->levels && c->work.by == GIVEN)
		return arena_printf(a,
		                    "%s: 'work' is of 'exchange direct', where the kernels' CPUs exchange; 'levels' "
		                    "has none",
		                    file);
	for (uint32_t i = 0; i < c->measured.n; i++)
		if (c->measured.at[i].processes > c->nodes * c->per)
			return arena_printf(a, "%s:%d: %lld processes were measured, %lld nodes have %lld", file,
			                    c->measured.at[i].line, (long long)c->measured.at[i].processes,
			                    (long long)c->nodes, (long long)(c->nodes * c->per));
	if (c->measured.n && c->rate.by != GIVEN)
		return arena_printf(a,
		                    "%s:%d: what was measured is fitted beside the speed of one process: 'rate "
		                    "EXAMPLES_A_SECOND' is missing",
		                    file, c->measured.at[0].line);
	return NULL;
}

const char *
cluster_read(Arena *a, const char *file, Cluster *c)
{
	FILE *f = fopen(file, "r");
	Line l = {.a = a, .file = file};
	char text[1024];

	if (!f)
		return arena_printf(a, "%s: %s", file, strerror(errno));
	while (!l.why && fgets(text, sizeof text, f)) {
		char *save = NULL;

		l.number++;
		l.n = 0;
		if (!strchr(text, '\n') && !feof(f)) {
			line_wrong(&l, "the line is too long");
			break;
		}
		text[strcspn(text, "#\n")] = 0;
		for (char *w = strtok_r(text, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
			if (l.n == 8) {
				line_wrong(&l, "too many words");
				break;
			}
			l.word[l.n++] = w;
		}
		if (l.n && !l.why)
			read_line(&l, c);
	}
	if (ferror(f) && !l.why)
		l.why = arena_printf(a, "%s: %s", file, strerror(errno));
	fclose(f);
	return l.why ? l.why : check_whole(a, file, c);
}
