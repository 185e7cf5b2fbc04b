/* schedule.c: which kernels run in a step, and what its times say of them.
 *
 * In: the race as it stands, a step's number.   Out: a kernel for each group; then, of the times, samples. The first
 * steps, and those after a time of unrest, run baselines: their medians are the references, one a unit. In others a
 * third of the groups of each limit (products, tiles, memory), drawn anew, are controls: they run what leads. So do
 * the groups of records whose race is over. All others run the kernels of their record that have the fewest samples,
 * in random order. The state of a step is the median over controls of time by expected time, one for each limit;
 * samples are times by reference and state, so that phases in which the machine is slow cancel. A step whose state is
 * above 1.5, or half of whose controls lie more than 20 % apart, gives no samples; if a third of the steps are such,
 * the machine is not quiet, and new references are taken. Everything is a function of seed, step and the samples so
 * far: a journal that is read again leads to the same race. */
#include "race.h"
#include "../philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STATE_MOST 1.5
#define STATE_SPREAD 0.2
#define QUIET_WINDOW 12      /* steps before unrest is looked for */
#define HURRY 1.3            /* times what the last rung should take, as steps are thrown away */
#define LEADS_FROM 8         /* samples before a control runs another kernel than the baseline */

double
race_reference(const Race *r, int unit)
{
	return r->expect[unit];
}

static double
draw(const Race *r, int64_t step, const char *what, int i)
{
	uint32_t w[4];

	philox_group((uint64_t)r->h->opt.seed, philox_stream(what), (uint64_t)step, (uint64_t)i, w);
	return (double)w[0] * 0x1p-32;
}

typedef struct Key { double key; int which; } Key;

static int
key_compare(const void *a, const void *b)
{
	const Key *x = a, *y = b;

	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->which - y->which;
}

/* Groups in random order; of each limit the first third are controls. */
static void
draw_controls(const Race *r, int64_t step, bool *control)
{
	const RaceTable *t = &r->table;
	Key *key = rt_alloc(sizeof *key * (size_t)t->ngroup);

	for (int limit = 0; limit < RACE_LIMITS; limit++) {
		int n = 0;

		for (int g = 0; g < t->ngroup; g++)
			if ((int)t->unit[t->group[g].unit].limit == limit)
				key[n++] = (Key){draw(r, step, "race.control", g), g};
		qsort(key, (size_t)n, sizeof *key, key_compare);
		for (int i = 0; i < n; i++)
			control[key[i].which] = i < (n + 1) / 3;
	}
	for (int g = 0; g < t->ngroup; g++)
		control[g] = control[g] || race_over(r, t->group[g].record);
	free(key);
}

/* What a control of this record runs, and its time by that of the baseline. */
static int
lead(const Race *r, int record, double *by)
{
	const RaceRun *run = &r->run[record];
	const RaceScore *s = &run->score[run->leader];
	bool leads = !r->isolate && run->leader && !s->out && s->all.n + s->fresh.n >= LEADS_FROM;

	*by = leads ? rt_median(s->all.n ? s->all.x : s->fresh.x, s->all.n ? s->all.n : s->fresh.n) : 1;
	return leads ? run->leader : 0;
}

/* Samples of the rung under way. */
static int
had(const Race *r, int record, int text)
{
	const RaceScore *s = &r->run[record].score[text];

	return r->run[record].rung == r->nrung ? s->fresh.n : s->all.n;
}

/* The kernels with the fewest samples, to the record's groups in random order; what is left over runs the baseline. */
static void
assign(const Race *r, int64_t step, int record, const bool *control, int32_t *order)
{
	const RaceRecord *rec = &r->table.record[record];
	Key *group = rt_alloc(sizeof *group * (size_t)rec->ngroup), *text = rt_alloc(sizeof *text * (size_t)rec->ntext);
	int want = race_want(r, record), n = 0, m = 0;

	for (int i = 0; i < rec->ngroup; i++)
		if (!control[rec->group[i]])
			group[n++] = (Key){draw(r, step, "race.group", rec->group[i]), rec->group[i]};
	qsort(group, (size_t)n, sizeof *group, key_compare);
	for (int t = 0; t < rec->ntext; t++)
		if (!r->run[record].score[t].out && had(r, record, t) < want)
			text[m++] =
			        (Key){had(r, record, t) + draw(r, step, "race.text", record * r->table.most + t), t};
	for (int i = 0; i < n && m; i++) {
		int t, last = m - 1;

		qsort(text, (size_t)m, sizeof *text, key_compare);
		t = text[0].which;
		order[group[i].which] = r->table.group[group[i].which].rows[t].n ? t : 0;
		text[0].key += 1;
		if (text[0].key >= want) {           /* it has all it needs with this step */
			text[0] = text[last];
			m--;
		}
	}
	free(group);
	free(text);
}

/* --isolate: the kernel that runs in this step, one of those that lack samples: one that has some of this rung, so that
 * a worker's steps follow each other, else the first. False: only own kernels lack any. */
static bool
one_kernel(const Race *r, int *record, int *text)
{
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < r->table.nrecord; i++)
			for (int t = 1; t < r->table.record[i].ntext && !race_over(r, i); t++) {
				int n = had(r, i, t);
				bool begun = i == r->worker_record && t == r->worker_text;

				if (r->run[i].score[t].out || n >= race_want(r, i) || (!pass && !begun))
					continue;
				*record = i;
				*text = t;
				return true;
			}
	return false;
}

static void
assign_one(const Race *r, const bool *control, int32_t *order)
{
	const RaceRecord *rec;
	int record, text;

	if (!one_kernel(r, &record, &text))
		return;
	rec = &r->table.record[record];
	for (int i = 0; i < rec->ngroup; i++)
		if (!control[rec->group[i]] && r->table.group[rec->group[i]].rows[text].n)
			order[rec->group[i]] = text;
}

RaceKind
race_plan(Race *r, int64_t number, int32_t *order)
{
	const RaceTable *t = &r->table;
	bool *control;

	memset(order, 0, sizeof *order * (size_t)t->ngroup);
	if (r->references > 0)
		return RACE_REFERENCE;
	control = rt_alloc(sizeof *control * (size_t)t->ngroup);
	draw_controls(r, number, control);
	if (r->isolate)
		assign_one(r, control, order);
	for (int i = 0; i < t->nrecord && !r->isolate; i++)
		if (!race_over(r, i))
			assign(r, number, i, control, order);
	for (int g = 0; g < t->ngroup; g++) {
		double by;

		if (control[g])
			order[g] = lead(r, t->group[g].record, &by);
	}
	free(control);
	return RACE_RACE;
}

/* ---- what a step's times say */
static void
take_references(Race *r, const int64_t *ns)
{
	for (int u = 0; u < r->table.nunit; u++)
		race_samples_add(&r->reference[u], (double)(ns[u] > 0 ? ns[u] : 1));
	if (--r->references > 0)
		return;
	for (int u = 0; u < r->table.nunit; u++) {
		r->expect[u] = rt_median(r->reference[u].x, r->reference[u].n);
		r->reference[u].n = 0;
	}
	r->steps = r->thrown = 0;
}

/* Between the quartiles, by the median. */
static double
spread(RaceSamples *s)
{
	double at[2], q[2];

	rt_timing(s->x, s->n);                   /* sorts */
	for (int i = 0; i < 2; i++) {
		int k;

		at[i] = (i ? 0.75 : 0.25) * (s->n - 1);
		k = (int)at[i];
		q[i] = s->x[k] + (k + 1 < s->n ? (at[i] - k) * (s->x[k + 1] - s->x[k]) : 0);
	}
	return (q[1] - q[0]) / rt_median(s->x, s->n);
}

/* The states of this step, one a limit; where a limit has no control, that of all. False: the step gives no samples. */
static bool
find_states(const Race *r, const bool *control, const int64_t *ns, double state[RACE_LIMITS])
{
	const RaceTable *t = &r->table;
	RaceSamples by[RACE_LIMITS + 1] = {{0}};
	bool good = true;

	for (int g = 0; g < t->ngroup; g++) {
		const RaceUnit *u = &t->unit[t->group[g].unit];
		double expect, ratio;

		if (!control[g])
			continue;
		lead(r, t->group[g].record, &expect);
		ratio = (double)(ns[t->group[g].unit] > 0 ? ns[t->group[g].unit] : 1) /
		        (expect * r->expect[t->group[g].unit]);
		race_samples_add(&by[u->limit], ratio);
		race_samples_add(&by[RACE_LIMITS], ratio);
	}
	for (int i = 0; i < RACE_LIMITS; i++) {
		RaceSamples *s = by[i].n ? &by[i] : &by[RACE_LIMITS];

		state[i] = s->n ? rt_median(s->x, s->n) : 1;
		good = good && state[i] <= STATE_MOST && (by[i].n < 2 || spread(&by[i]) <= STATE_SPREAD);
	}
	for (int i = 0; i <= RACE_LIMITS; i++)
		free(by[i].x);
	return good;
}

/* How much longer than usual the unit behind took, for what ran before it; only where it ran what its time is known
 * of. */
static void
take_behind(Race *r, RaceScore *s, int unit, const bool *control, const int32_t *order, const int64_t *ns,
            const double *state)
{
	const RaceTable *t = &r->table;
	double by = 1;

	if (unit + 1 >= t->nunit)
		return;
	const RaceUnit *next = &t->unit[unit + 1];

	if (next->group >= 0 && control[next->group])
		lead(r, t->group[next->group].record, &by);
	else if (next->group >= 0 && order[next->group] != 0)
		return;
	race_samples_add(&s->behind, (double)(ns[unit + 1] > 0 ? ns[unit + 1] : 1) /
	                                     (by * r->expect[unit + 1] * state[next->limit]));
}

static void
take_samples(Race *r, const bool *control, const int32_t *order, const int64_t *ns, const double *state)
{
	const RaceTable *t = &r->table;

	for (int g = 0; g < t->ngroup; g++) {
		const RaceGroup *group = &t->group[g];
		RaceRun *run = &r->run[group->record];
		RaceScore *s = &run->score[order[g]];
		double x = (double)(ns[group->unit] > 0 ? ns[group->unit] : 1) /
		           (r->expect[group->unit] * state[t->unit[group->unit].limit]);

		if (control[g] || s->out)
			continue;
		if (run->rung < r->nrung) {
			race_samples_add(&s->all, x);
		} else {
			race_samples_add(&s->fresh, x);
			take_behind(r, s, group->unit, control, order, ns, state);
		}
	}
	for (int i = 0; i < t->nrecord; i++)
		race_judge(r, i);
}

/* When what is left of the budget is what the last rung takes, it begins. */
static void
watch_time(Race *r, int64_t number)
{
	double most = 0, step = number > 0 ? (double)(r->spent - r->first) / (double)number : 0;

	for (int i = 0; i < r->table.nrecord; i++) {
		int alive = race_alive(r, i);
		double steps = 1.5 * r->rung[r->nrung - 1] * (alive < 3 ? alive : 3) / r->table.record[i].ngroup;

		if (!race_over(r, i) && steps > most)
			most = steps;
	}
	if (r->hurried || (double)(r->budget - r->spent) > HURRY * most * step)
		return;
	r->hurried = true;
	for (int i = 0; i < r->table.nrecord; i++)
		race_hurry(r, i);
}

void
race_take(Race *r, int64_t number, RaceKind kind, const int32_t *order, const int64_t *ns)
{
	bool *control;
	double state[RACE_LIMITS];

	if (number == 0)
		r->first = r->spent;
	if (kind == RACE_REFERENCE) {
		take_references(r, ns);
		return;
	}
	control = rt_alloc(sizeof *control * (size_t)r->table.ngroup);
	draw_controls(r, number, control);
	r->steps++;
	if (find_states(r, control, ns, state))
		take_samples(r, control, order, ns, state);
	else
		r->thrown++;
	if (r->steps >= QUIET_WINDOW && 3 * r->thrown >= r->steps) {
		r->unquiet++;
		r->references = RACE_REFERENCES;
	}
	if (r->steps >= QUIET_WINDOW)
		r->steps = r->thrown = 0;
	free(control);
	watch_time(r, number);
}
