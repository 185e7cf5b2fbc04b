/* costs.c: times of kernels from a file in place of a clock, and faults of kernels: for tests.
 *
 *   cost MICROSECONDS KERNEL   of each kernel with this text (100)
 *   rows MICROSECONDS          of each row of the table that has no other kernel (10)
 *   noise SIGMA                times are multiplied by exp(SIGMA * a number of the normal distribution), drawn by seed,
 *                              step and unit
 *   steps A..B LIMIT xFACTOR   in these steps what LIMIT says (products, tiles, memory, all) takes FACTOR times as long
 *   behind FACTOR KERNEL       what runs behind this kernel takes FACTOR times as long
 *   whole FACTOR KERNEL        where whole programs are compared (mantou tune), it takes FACTOR times as long
 *   fault KIND[@STEP] KERNEL   crash, hang; stray, far: a store beside its memory, or far from it; wrong, nan, ulp: of
 *                              its first result. From that step on; the checks are step 0, and see faults without @;
 *                              in steps only crash and hang have an effect. compiler: it dies of this kernel
 *
 * In: the file.   Out: costs. Lines that begin with # are comments; anything else is an error with its line. */
#include "race.h"
#include "../philox.h"

#include <stdlib.h>
#include <string.h>

typedef struct Cost { const char *kernel; double us; } Cost;
typedef struct Phase { int64_t from, to; int limit; double factor; } Phase; /* limit -1: all */
typedef struct Fault { const char *kernel; RaceFault kind; int64_t step; } Fault;
enum { COSTS_MOST = 512 };

struct RaceCosts {
	Cost cost[COSTS_MOST], behind[COSTS_MOST], whole[COSTS_MOST];
	Phase phase[COSTS_MOST];
	Fault fault[COSTS_MOST];
	int ncost, nbehind, nwhole, nphase, nfault;
	double rows, noise;
};

static bool
costs_phase(RaceCosts *c, const char *rest)
{
	Phase *p = &c->phase[c->nphase];
	char limit[16];
	long long from, to;

	if (c->nphase == COSTS_MOST || sscanf(rest, "%lld..%lld %15s x%lf", &from, &to, limit, &p->factor) != 4)
		return false;
	p->from = from;
	p->to = to;
	p->limit = strcmp(limit, "all") == 0 ? -1 : RACE_LIMITS;
	for (int i = 0; i < RACE_LIMITS; i++)
		if (strcmp(limit, race_limits[i]) == 0)
			p->limit = i;
	c->nphase++;
	return p->limit < RACE_LIMITS;
}

static bool
costs_fault(RaceCosts *c, const char *rest)
{
	static const char *const kinds[RACE_FAULTS] = {"", "crash", "hang", "stray", "far", "wrong", "nan", "ulp",
	                                                 "compiler"};
	char word[32], kernel[512];
	Fault *f = &c->fault[c->nfault];
	size_t n;

	if (c->nfault == COSTS_MOST || sscanf(rest, "%31s %511s", word, kernel) != 2)
		return false;
	n = strcspn(word, "@");
	*f = (Fault){.kernel = rt_printf("%s", kernel), .step = word[n] ? strtoll(word + n + 1, NULL, 10) : 0};
	for (int i = 1; i < RACE_FAULTS; i++)
		if (strlen(kinds[i]) == n && memcmp(kinds[i], word, n) == 0)
			f->kind = (RaceFault)i;
	c->nfault++;
	return f->kind != RACE_NO_FAULT;
}

static bool
costs_pair(Cost *list, int *n, const char *rest)
{
	char kernel[512];

	if (*n == COSTS_MOST || sscanf(rest, "%lf %511s", &list[*n].us, kernel) != 2 || list[*n].us <= 0)
		return false;
	list[(*n)++].kernel = rt_printf("%s", kernel);
	return true;
}

static bool
costs_line(RaceCosts *c, const char *line)
{
	size_t n = strcspn(line, " ");
	const char *rest = line + n;
	char *end;

	if (n == 4 && memcmp(line, "cost", n) == 0)
		return costs_pair(c->cost, &c->ncost, rest);
	if (n == 6 && memcmp(line, "behind", n) == 0)
		return costs_pair(c->behind, &c->nbehind, rest);
	if (n == 5 && memcmp(line, "whole", n) == 0)
		return costs_pair(c->whole, &c->nwhole, rest);
	if (n == 5 && memcmp(line, "steps", n) == 0)
		return costs_phase(c, rest);
	if (n == 5 && memcmp(line, "fault", n) == 0)
		return costs_fault(c, rest);
	if (n == 4 && memcmp(line, "rows", n) == 0)
		return (c->rows = strtod(rest, &end)) > 0 && !*end;
	if (n == 5 && memcmp(line, "noise", n) == 0)
		return (c->noise = strtod(rest, &end)) >= 0 && !*end;
	return false;
}

RaceCosts *
race_costs_read(const char *path, RtError *e)
{
	RaceCosts *c = rt_alloc(sizeof *c);
	FILE *f = fopen(path, "r");
	char line[1024];
	bool good = true;

	if (!f) {
		rt_fail(e, "--costs: cannot read '%s'", path);
		return NULL;
	}
	c->rows = 10;
	for (int at = 1; good && fgets(line, sizeof line, f); at++) {
		line[strcspn(line, "\n")] = 0;
		good = !*line || *line == '#' || costs_line(c, line) ||
		       rt_fail(e, "--costs: %s:%d: no line of a table of costs: %s", path, at, line);
	}
	fclose(f);
	return good ? c : NULL;
}

/* Box and Muller's method. */
static double
costs_normal(uint64_t seed, int64_t step, int unit)
{
	uint32_t w[4];

	philox_group(seed, philox_stream("race.noise"), (uint64_t)step, (uint64_t)unit, w);
	return sqrt(-2 * log(((double)w[0] + 1) * 0x1p-32)) * cos(6.283185307179586 * (double)w[1] * 0x1p-32);
}

static double
costs_of(const Cost *list, int n, const char *kernel, double none)
{
	for (int i = 0; kernel && i < n; i++)
		if (strcmp(list[i].kernel, kernel) == 0)
			return list[i].us;
	return none;
}

int64_t
race_costs_time(const RaceCosts *c, uint64_t seed, int64_t step, int unit, RaceLimit limit, const char *kernel,
                const char *before)
{
	double us = kernel ? costs_of(c->cost, c->ncost, kernel, 100) : c->rows;

	us *= costs_of(c->behind, c->nbehind, before, 1);
	for (int i = 0; i < c->nphase; i++)
		if (step >= c->phase[i].from && step <= c->phase[i].to &&
		    (c->phase[i].limit < 0 || c->phase[i].limit == (int)limit))
			us *= c->phase[i].factor;
	return (int64_t)(1e3 * us * exp(c->noise * costs_normal(seed, step, unit)) + 0.5);
}

double
race_costs_whole(const RaceCosts *c, const char *kernel)
{
	return costs_of(c->whole, c->nwhole, kernel, 1);
}

RaceFault
race_costs_fault(const RaceCosts *c, const char *kernel, int64_t step)
{
	for (int i = 0; c && i < c->nfault; i++)
		if (step >= c->fault[i].step && strcmp(c->fault[i].kernel, kernel) == 0)
			return c->fault[i].kind;
	return RACE_NO_FAULT;
}
