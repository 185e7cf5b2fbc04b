/* simulate.c: how often races are judged wrongly, by 1,000 of them whose kernels are numbers: no process, no clock.
 *
 * In: nothing.   Out: a line for each kind of race, exit 1 if more than its share of records went wrong. A race has
 * 24 groups in 8 records, of 6 kernels each; times are multiplied by noise and by slow phases of the machine, drawn
 * by the race's number. Plans and samples are those of schedule.c, judgement that of judge.c.
 * Wrong is a record whose chosen kernel truly takes 2 % longer than the best, where a kernel 1.2 times as fast as
 * the baseline or more was planted; or, where all are equal or slower, one where a kernel other than the baseline has
 * won that takes 2 % longer than it. */
#include "../../runtime/race/race.h"
#include "../../runtime/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 8, LAYERS = 3, GROUPS = RECORDS * LAYERS, TEXTS = 6, RACES = 125 };
typedef struct Kind { const char *name; double noise, phase; bool planted; double gain; } Kind;
/* gain: the planted kernel's; those without are as fast as the baseline, or slower by up to a half */
static const Kind kinds[] = {
	{"planted, 1.2 times as fast, noise of 10 %", 0.1, 1, true, 1.2},
	{"planted, 2 times as fast, noise of 10 %, phases of x1.4", 0.1, 1.4, true, 2},
	{"planted, 1.2 times as fast, noise of 5 %, phases of x3", 0.05, 3, true, 1.2},
	{"nothing to find, noise of 10 %", 0.1, 1, false, 1},
	{"nothing to find, noise of 20 %, phases of x1.4", 0.2, 1.4, false, 1},
};

static double
uniform(uint64_t race, const char *what, int64_t a, int b)
{
	uint32_t w[4];

	philox_group(race, philox_stream(what), (uint64_t)a, (uint64_t)b, w);
	return (w[0] + 0.5) * 0x1p-32;
}

static double
normal(uint64_t race, int64_t step, int unit)
{
	return sqrt(-2 * log(uniform(race, "noise.a", step, unit))) * cos(6.283185307179586 * uniform(race, "noise.b",
		step, unit));
}

/* What a kernel truly takes, by the baseline's time. */
static double
truth(const Kind *k, uint64_t race, int record, int text)
{
	double u = uniform(race, "truth", record, text);

	if (text == 0)
		return 1;
	if (k->planted && text == 1 + (int)(uniform(race, "planted", record, 0) * (TEXTS - 1)))
		return 1 / k->gain;
	return text % 2 ? 1 : 1 + 0.5 * u;
}

/* A table of groups that share records, one behind the other. */
static void
make(Race *r, uint64_t race)
{
	static RaceGroup group[GROUPS];
	static RaceUnit unit[GROUPS];
	static RaceRecord record[RECORDS];
	static RaceText text[RECORDS][TEXTS];
	static RaceRows rows[TEXTS];
	static RtRow row;
	static int members[RECORDS][LAYERS];

	for (int t = 0; t < TEXTS; t++)
		rows[t] = (RaceRows){.row = &row, .n = 1};
	for (int i = 0; i < RECORDS; i++) {
		record[i] = (RaceRecord){.key = "", .text = text[i], .ntext = TEXTS, .group = members[i]};
		record[i].ngroup = LAYERS;
		for (int t = 0; t < TEXTS; t++)
			text[i][t] = (RaceText){.kernel = "abcdef" + t};
	}
	for (int g = 0; g < GROUPS; g++) {
		members[g % RECORDS][g / RECORDS] = g;
		group[g] = (RaceGroup){.record = g % RECORDS, .unit = g, .rows = rows};
		unit[g] = (RaceUnit){.group = g, .limit = g % 3 ? RACE_PRODUCTS : RACE_MEMORY};
	}
	r->table = (RaceTable){.record = record, .nrecord = RECORDS, .group = group, .ngroup = GROUPS, .unit = unit,
		.nunit = GROUPS, .most = TEXTS};
	r->h = rt_alloc(sizeof *r->h);
	r->h->opt.seed = (int64_t)race;
	r->run = rt_alloc(sizeof *r->run * RECORDS);
	for (int i = 0; i < RECORDS; i++)
		r->run[i].score = rt_alloc(sizeof *r->run[i].score * TEXTS);
	r->reference = rt_alloc(sizeof *r->reference * GROUPS);
	r->expect = rt_alloc(sizeof *r->expect * GROUPS);
	r->references = RACE_REFERENCES;
	r->budget = INT64_MAX;
	r->nrung = 4;
	memcpy(r->rung, (int[]){2, 4, 8, 16}, 4 * sizeof *r->rung);
}

static void
unmake(Race *r)
{
	for (int i = 0; i < RECORDS; i++) {
		for (int t = 0; t < TEXTS; t++) {
			free(r->run[i].score[t].all.x);
			free(r->run[i].score[t].fresh.x);
			free(r->run[i].score[t].behind.x);
		}
		free(r->run[i].score);
	}
	for (int u = 0; u < GROUPS; u++)
		free(r->reference[u].x);
	free(r->run);
	free(r->reference);
	free(r->expect);
	free(r->h);
}

/* Slow phases of 30 steps, every other one, for one limit or for both. */
static double
phase(const Kind *k, uint64_t race, int64_t step, RaceLimit limit)
{
	int which = (int)(3 * uniform(race, "phase", step / 30, 0));

	return step / 30 % 2 && (which == 2 || which == (limit == RACE_MEMORY)) ? k->phase : 1;
}

static int64_t
steps_of(Race *r, const Kind *k, uint64_t race)
{
	int32_t order[GROUPS];
	int64_t ns[GROUPS];

	for (; r->next < 100000; r->next++) {
		bool over = true;
		RaceKind kind = race_plan(r, r->next, order);

		for (int g = 0; g < GROUPS; g++)
			ns[g] = (int64_t)(1e6 * (1 + g) * truth(k, race, g % RECORDS, order[g]) *
			                  exp(k->noise * normal(race, r->next, g)) *
			                  phase(k, race, r->next, r->table.unit[g].limit));
		race_take(r, r->next, kind, order, ns);
		for (int i = 0; i < RECORDS; i++)
			over = over && race_over(r, i);
		if (over)
			break;
	}
	return r->next;
}

static bool
wrong(const Race *r, const Kind *k, uint64_t race, int record)
{
	double best = 1, chosen = truth(k, race, record, r->run[record].winner);

	for (int t = 0; t < TEXTS; t++)
		best = truth(k, race, record, t) < best ? truth(k, race, record, t) : best;
	return chosen > 1.02 * best;
}

int
main(void)
{
	int failed = 0;

	for (int i = 0; i < RT_COUNT(kinds); i++) {
		int bad = 0, other = 0;
		int64_t steps = 0;

		for (uint64_t race = 1; race <= RACES; race++) {
			Race r = {0};

			make(&r, race);
			steps += steps_of(&r, &kinds[i], race);
			for (int k = 0; k < RECORDS; k++) {
				bad += wrong(&r, &kinds[i], race, k);
				other += r.run[k].winner != 0;
			}
			unmake(&r);
		}
		failed += bad > RACES * RECORDS / 100;
		printf("%s: %d of %d records wrong, %d with a winner, %lld steps a race\n", kinds[i].name, bad,
			RACES * RECORDS, other, (long long)(steps / RACES));
	}
	return failed > 0;
}
