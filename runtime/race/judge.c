/* judge.c: which kernel of a record is the fastest, by samples that are given.
 *
 * In: samples of each kernel, times by the layer's reference and the step's state.   Out: who is out after each rung,
 * and who has won. A score is the median; its interval is distribution-free: order statistics of the binomial
 * distribution. Rungs are successive halving (Jamieson and Talwalkar 2016) with intervals beside it: after the first
 * sample goes what takes twice the leader's time, after each rung what lies wholly above the leader, then the worse
 * half; two and the baseline stay. The last rung counts only samples of its own, as those that chose a kernel do not
 * prove it. The gain over the baseline is Hodges and Lehmann's shift of the logarithms with the interval of Mann and
 * Whitney's test (normal approximation). A kernel wins whose interval excludes zero and whose gain is 1 % or more,
 * after what the group behind it loses (interval of 99 %). Of winners that overlap the best: the smaller workspace,
 * then the text. */
#include "race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JUDGE_GAIN 0.01      /* less is no gain */
#define JUDGE_TWICE 2        /* the leader's first sample */
#define JUDGE_Z95 1.959964
#define JUDGE_Z99 2.575829

void
race_samples_add(RaceSamples *s, double x)
{
	if (s->n == s->room) {
		double *more;

		s->room = s->room ? 2 * s->room : 16;
		more = rt_alloc(sizeof *more * (size_t)s->room);
		if (s->n)
			memcpy(more, s->x, sizeof *more * (size_t)s->n);
		free(s->x);
		s->x = more;
	}
	s->x[s->n++] = x;
}

static double *
judge_copy(const RaceSamples *s)
{
	double *x = rt_alloc(sizeof *x * (size_t)s->n);

	if (s->n)
		memcpy(x, s->x, sizeof *x * (size_t)s->n);
	return x;
}

/* The largest k with P(fewer than k of n coins show heads) <= 2.5 %: the interval goes from the k-th smallest to the
 * k-th largest. */
static int
judge_rank(int n)
{
	double p = pow(0.5, n), sum = 0;
	int k = 0;

	for (; k < n / 2; k++) {
		sum += p;
		if (sum > 0.025)
			break;
		p *= (double)(n - k) / (k + 1);
	}
	return k;
}

RaceInterval
race_interval(const RaceSamples *s)
{
	RaceInterval r = {.middle = NAN, .low = -INFINITY, .high = INFINITY};
	int k = judge_rank(s->n);

	if (s->n) {
		double *x = judge_copy(s);

		r.middle = rt_timing(x, s->n).median;
		if (k > 0) {
			r.low = x[k - 1];
			r.high = x[s->n - k];
		}
		free(x);
	}
	return r;
}

RaceInterval
race_shift(const RaceSamples *b, const RaceSamples *v, double z)
{
	RaceInterval r = {.middle = 0, .low = -INFINITY, .high = INFINITY};
	int64_t n = b->n, m = v->n, k = 0, rank;
	double *d;

	if (!n || !m)
		return r;
	d = rt_alloc(sizeof *d * (size_t)(n * m));
	for (int i = 0; i < n; i++)
		for (int j = 0; j < m; j++)
			d[k++] = log(b->x[i] / v->x[j]);
	r.middle = rt_timing(d, k).median;
	rank = (int64_t)floor((double)(n * m) / 2 - z * sqrt((double)(n * m) * (double)(n + m + 1) / 12));
	if (rank > 0) {
		r.low = d[rank - 1];
		r.high = d[k - rank];
	}
	free(d);
	return r;
}

int
race_alive(const Race *r, int record)
{
	int n = 0;

	for (int t = 0; t < r->table.record[record].ntext; t++)
		n += !r->run[record].score[t].out;
	return n;
}

bool
race_over(const Race *r, int record)
{
	return r->run[record].rung > r->nrung;
}

/* ---- rungs */
/* Samples that each kernel must have at the end of this rung: the last one counts its own. */
static bool
judge_complete(const Race *r, int record)
{
	const RaceRun *run = &r->run[record];
	int want = run->rung ? r->rung[run->rung - 1] : 1;

	for (int t = 0; t < r->table.record[record].ntext; t++)
		if (!run->score[t].out && (run->rung == r->nrung ? run->score[t].fresh.n : run->score[t].all.n) < want)
			return false;
	return true;
}

typedef struct Rank { int text; double score; RaceInterval interval; } Rank;

static int
judge_compare(const void *a, const void *b)
{
	const Rank *x = a, *y = b;

	return x->score != y->score ? (x->score > y->score) - (x->score < y->score) : x->text - y->text;
}

/* Those that live, best first. Returns how many. */
static int
judge_rank_all(const Race *r, int record, Rank *rank)
{
	const RaceRun *run = &r->run[record];
	int n = 0;

	for (int t = 0; t < r->table.record[record].ntext; t++) {
		RaceInterval i = race_interval(&run->score[t].all);

		if (!run->score[t].out)
			rank[n++] = (Rank){.text = t, .interval = i, .score = isnan(i.middle) ? INFINITY : i.middle};
	}
	qsort(rank, (size_t)n, sizeof *rank, judge_compare);
	return n;
}

static void
judge_out(RaceRun *run, int text, const char *why)
{
	if (text == 0)                           /* the baseline stays */
		return;
	run->score[text].out = true;
	run->score[text].why = why;
}

static void
judge_rung(Race *r, int record)
{
	RaceRun *run = &r->run[record];
	Rank *rank = rt_alloc(sizeof *rank * (size_t)r->table.record[record].ntext);
	int n = judge_rank_all(r, record, rank), left = n;

	run->leader = rank[0].text;
	for (int i = 1; i < n && run->rung == 0; i++)
		if (rank[i].score > JUDGE_TWICE * rank[0].score)
			judge_out(run, rank[i].text, "twice the leader's time in its first sample");
	for (int i = 1; i < n && run->rung > 0; i++)
		if (rank[i].interval.low > rank[0].interval.high)
			judge_out(run, rank[i].text, "wholly above the leader");
	n = judge_rank_all(r, record, rank);
	left = (n + 1) / 2 > 2 ? (n + 1) / 2 : 2;
	for (int i = left; i < n && run->rung > 0; i++)
		judge_out(run, rank[i].text, "among the worse half");
	free(rank);
}

/* ---- the end */
/* What the group behind a kernel loses by it, as a share of the kernel's own time. */
static double
judge_charge(const Race *r, int record, int text)
{
	const RaceRecord *rec = &r->table.record[record];
	const RaceScore *own = &r->run[record].score[0], *v = &r->run[record].score[text];
	RaceInterval shift = race_shift(&v->behind, &own->behind, JUDGE_Z99); /* how much longer behind v */
	double here = 0, behind = 0;

	if (!(shift.low > 0))
		return 0;
	for (int i = 0; i < rec->ngroup; i++) {
		int u = r->table.group[rec->group[i]].unit;

		here += race_reference(r, u);
		behind += u + 1 < r->table.nunit ? race_reference(r, u + 1) : 0;
	}
	return here > 0 ? expm1(shift.middle) * behind / here : 0;
}

/* Shares of the baseline's time: of a shift of logarithms, and less the charge. */
static RaceInterval
judge_gain(RaceInterval shift, double charge)
{
	return (RaceInterval){.middle = -expm1(-shift.middle) - charge,
	                      .low = -expm1(-shift.low) - charge,
	                      .high = -expm1(-shift.high) - charge};
}

/* Is a better than b, both winners? Of equal ones, those whose intervals overlap, the smaller workspace, then the text
 * decides. */
static bool
judge_better(const RaceText *a, RaceInterval ga, const RaceText *b, RaceInterval gb)
{
	if (ga.low > gb.high || gb.low > ga.high)
		return ga.low > gb.high;
	if (a->workspace != b->workspace)
		return a->workspace < b->workspace;
	return strcmp(a->kernel, b->kernel) < 0;
}

void
race_settle(Race *r, int record)
{
	const RaceRecord *rec = &r->table.record[record];
	RaceRun *run = &r->run[record];
	RaceInterval none = {0}, best = none;

	run->winner = 0;
	run->gain = none;
	for (int t = 1; t < rec->ntext; t++) {
		const RaceScore *s = &run->score[t];

		if (s->out || !s->fresh.n)
			continue;
		double charge = judge_charge(r, record, t);
		RaceInterval g = judge_gain(race_shift(&run->score[0].fresh, &s->fresh, JUDGE_Z95), charge);
		bool wins = g.low > 0 && g.middle >= JUDGE_GAIN;

		if (wins && (!run->winner || judge_better(&rec->text[t], g, &rec->text[run->winner], best))) {
			run->winner = t;
			best = g;
			run->charge = charge;
		} else if (!run->winner && t == run->leader) {
			run->gain = g;
			run->charge = charge;
		}
	}
	if (run->winner)
		run->gain = best;
}

void
race_judge(Race *r, int record)
{
	RaceRun *run = &r->run[record];

	while (!race_over(r, record) && judge_complete(r, record)) {
		if (run->rung < r->nrung)
			judge_rung(r, record);
		else
			race_settle(r, record);
		run->rung++;
		if (race_alive(r, record) == 1)      /* only the baseline */
			run->rung = r->nrung + 1;
	}
	if (race_over(r, record))
		run->leader = run->winner;
}

void
race_hurry(Race *r, int record)
{
	RaceRun *run = &r->run[record];

	if (run->rung >= r->nrung)
		return;
	if (run->rung < 1)
		run->rung = 1;
	while (race_alive(r, record) > 3) {
		int before = race_alive(r, record);

		judge_rung(r, record);
		if (race_alive(r, record) == before)
			break;
	}
	run->rung = r->nrung;
}

void
race_drop(Race *r, int record, int text, RaceVerdict verdict)
{
	const RaceRecord *rec = &r->table.record[record];
	RaceRun *run = &r->run[record];

	run->score[text].out = true;
	run->score[text].verdict = verdict;
	run->score[text].why = race_verdicts[verdict];
	for (int i = 0; i < rec->ngroup; i++) {
		race_shared_verdict(r, rec->group[i])[text] = (uint8_t)verdict;
		r->known[(size_t)rec->group[i] * (size_t)r->table.most + (size_t)text] = (uint8_t)verdict;
	}
	if (run->leader == text)
		run->leader = 0;
	if (run->winner == text)
		run->winner = 0;
	if (race_alive(r, record) == 1)
		run->rung = r->nrung + 1;
}
