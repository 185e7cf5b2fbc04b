/* judge.c: which kernel of a record is the fastest, by samples that are given.
 *
 * In: samples of each kernel, times by the layer's reference and the step's state.   Out: who is out after each rung,
 * and who has won. A score is the median; its interval is distribution-free: order statistics of the binomial
 * distribution. Rungs are successive halving (Jamieson and Talwalkar 2016) with intervals beside it: after the first
 * sample goes what takes twice the leader's time, after each rung what lies wholly above the leader, then the worse
 * half, but for what is within two standard errors of the leader; two and the baseline stay. (Without that exception
 * one of 20 kernels that are 1.2 times as fast was lost in noise of 10 %, mostly after two samples.)
 * The last rung counts only samples of its own, as those that chose a kernel do not prove it. The gain over the
 * baseline is Hodges and Lehmann's shift of the logarithms with the interval of Mann and Whitney's test (normal
 * approximation). A kernel wins whose interval excludes zero and whose gain is 1 % or more, after what the group behind
 * it loses (interval of 99 %). Where none does, but one seems to gain, or one seems better by 2 % than who does, the
 * last rung is doubled, twice at most; the intervals are those of three looks, so that all together err in 5 %. Of
 * winners whose difference may be none: the smaller workspace, then the text. */
#include "race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JUDGE_GAIN 0.01      /* less is no gain */
#define JUDGE_TWICE 2        /* the leader's first sample */
#define JUDGE_ERRORS 2       /* of the difference to the leader */
#define JUDGE_LOOKS 3        /* at the last rung: 16, 32 and 64 samples */
#define JUDGE_Z95 2.289      /* of three looks, each of which may say yes: 95 % for all together (Pocock 1977) */
#define JUDGE_MORE 0.02      /* what the gain must seem to be for another look */
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
int
race_want(const Race *r, int record)
{
	const RaceRun *run = &r->run[record];

	return !run->rung ? 1 : r->rung[run->rung - 1] << (run->rung == r->nrung ? run->look : 0);
}

static bool
judge_complete(const Race *r, int record)
{
	const RaceRun *run = &r->run[record];
	int want = race_want(r, record);

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

/* The relative noise of one sample: of two samples of a kernel, one behind the other, half differ by 0.954 of it or
 * more, if it is normal. */
static double
judge_noise(const Race *r, int record)
{
	RaceSamples differ = {0};
	double noise;

	for (int t = 0; t < r->table.record[record].ntext; t++) {
		const RaceScore *s = &r->run[record].score[t];

		for (int i = 0; i + 1 < s->all.n && !s->out; i++)
			race_samples_add(&differ, fabs(log(s->all.x[i] / s->all.x[i + 1])));
	}
	noise = differ.n ? rt_median(differ.x, differ.n) / 0.954 : 0;
	free(differ.x);
	return noise;
}

static void
judge_rung(Race *r, int record)
{
	RaceRun *run = &r->run[record];
	Rank *rank = rt_alloc(sizeof *rank * (size_t)r->table.record[record].ntext);
	int n = judge_rank_all(r, record, rank), left;
	double noise = judge_noise(r, record);

	run->leader = rank[0].text;
	for (int i = 1; i < n && run->rung == 0; i++)
		if (rank[i].score > JUDGE_TWICE * rank[0].score)
			judge_out(run, rank[i].text, "twice the leader's time in its first sample");
	for (int i = 1; i < n && run->rung > 0; i++)
		if (rank[i].interval.low > rank[0].interval.high)
			judge_out(run, rank[i].text, "wholly above the leader");
	n = judge_rank_all(r, record, rank);
	left = (n + 1) / 2 > 2 ? (n + 1) / 2 : 2;
	for (int i = left; i < n && run->rung > 0; i++) {
		const RaceScore *best = &run->score[rank[0].text], *s = &run->score[rank[i].text];
		double error = s->all.n ? JUDGE_ERRORS * noise * sqrt(1.0 / best->all.n + 1.0 / s->all.n) : 0;

		if (log(rank[i].score / rank[0].score) >= error)
			judge_out(run, rank[i].text, "among the worse half");
	}
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

/* Is kernel a better than b, both winners? Of equal ones, whose difference has an interval with zero in it, the smaller
 * workspace, then the text decides. charge: of a, less that of b. */
static bool
judge_better(const Race *r, int record, int a, int b, double charge)
{
	const RaceText *text = r->table.record[record].text;
	const RaceScore *s = r->run[record].score;
	RaceInterval d = judge_gain(race_shift(&s[b].fresh, &s[a].fresh, JUDGE_Z95), charge);

	if (d.low > 0 || d.high < 0)
		return d.low > 0;
	if (text[a].workspace != text[b].workspace)
		return text[a].workspace < text[b].workspace;
	return strcmp(text[a].kernel, text[b].kernel) < 0;
}

static RaceInterval
judge_of(const Race *r, int record, int text, double *charge)
{
	const RaceRun *run = &r->run[record];

	*charge = judge_charge(r, record, text);
	return judge_gain(race_shift(&run->score[0].fresh, &run->score[text].fresh, JUDGE_Z95), *charge);
}

/* Nobody has won yet, but somebody may with more samples? Or does another seem to be better than who has? Those that
 * look slower than the baseline leave then. */
static bool
judge_doubts(Race *r, int record)
{
	const RaceRecord *rec = &r->table.record[record];
	RaceRun *run = &r->run[record];
	double most = 0, charge;

	race_settle(r, record);
	if (run->look + 1 == JUDGE_LOOKS)
		return false;
	for (int t = 1; t < rec->ntext; t++)
		if (!run->score[t].out) {
			double middle = judge_of(r, record, t, &charge).middle;

			most = middle > most ? middle : most;
		}
	if (most < JUDGE_MORE + (run->winner ? run->gain.middle : 0))
		return false;
	for (int t = 1; t < rec->ntext; t++)
		if (!run->score[t].out && judge_of(r, record, t, &charge).middle < 0)
			judge_out(run, t, "slower than the baseline in the last rung");
	run->look++;
	return true;
}

void
race_settle(Race *r, int record)
{
	const RaceRecord *rec = &r->table.record[record];
	RaceRun *run = &r->run[record];
	RaceInterval none = {0}, best = none;
	double best_charge = 0;

	run->winner = 0;
	run->gain = none;
	for (int t = 1; t < rec->ntext; t++) {
		const RaceScore *s = &run->score[t];

		if (s->out || !s->fresh.n)
			continue;
		double charge;
		RaceInterval g = judge_of(r, record, t, &charge);
		bool wins = g.low > 0 && g.middle >= JUDGE_GAIN;

		if (wins && (!run->winner || judge_better(r, record, t, run->winner, charge - best_charge))) {
			run->winner = t;
			best = g;
			run->charge = best_charge = charge;
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
		else if (judge_doubts(r, record))
			continue;
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

	Rank *rank = rt_alloc(sizeof *rank * (size_t)r->table.record[record].ntext);
	int n = judge_rank_all(r, record, rank);

	for (int i = 2; i < n && run->rung < r->nrung; i++)
		judge_out(run, rank[i].text, "not among the best two when time was short");
	if (run->rung < r->nrung) {
		run->leader = rank[0].text;
		run->rung = r->nrung;
	}
	free(rank);
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
