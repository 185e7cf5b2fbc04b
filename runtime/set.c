/* set.c: metrics of a whole data set: what they are computed from is kept for all examples, in file order, and read
 * once at the end.
 *
 * In: after each batch of an evaluation the kept values, in the arena.   Out: average_precision, as COCO computes it
 * (Lin et al. 2014, arXiv:1405.0312; pycocotools): for each class and image the results, by falling score and stable,
 * take the free true box that overlaps most, at least by the threshold (of equals the last); over the set, by falling
 * score, precision is made falling and read at 101 recalls. The mean over classes that have a true box and over
 * thresholds; NaN if there is no true box. auc: the area under the ROC curve as the Mann-Whitney statistic (Hanley and
 * McNeil 1982), ties counting half; NaN where a score is, or where all are of one class. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- keeping */
void
rt_sets_begin(RtGraph *g)
{
	for (int k = 0; k < g->nset; k++)
		g->set[k].examples = 0;
}

static bool
set_room(RtSet *s, const RtGraph *g, int64_t examples, int64_t batch, RtError *e)
{
	if (examples <= s->room)
		return true;
	int64_t room = examples > 2 * s->room ? examples : 2 * s->room;

	for (int i = 0; i < s->nkept; i++) {
		uint8_t *at = realloc(s->at[i], (size_t)(g->result[s->kept[i]].t.bytes / batch * room));

		if (!at)
			return rt_fail(e, "out of memory for metric %s of %lld examples", s->name, (long long)examples);
		s->at[i] = at;
	}
	s->room = room;
	return true;
}

bool
rt_sets_take(RtHost *h, RtGraph *g)
{
	int64_t n = h->run.n, batch = h->program.batch;

	for (int k = 0; k < g->nset; k++) {
		RtSet *s = &g->set[k];

		if (!set_room(s, g, s->examples + n, batch, &h->error))
			return false;
		for (int i = 0; i < s->nkept; i++) {
			const RtTensor *t = &g->result[s->kept[i]].t;
			int64_t each = t->bytes / batch;

			if (!rt_host_fetch(h, t->offset, each * n))
				return false;
			memcpy(s->at[i] + s->examples * each, h->run.arena + t->offset, (size_t)(each * n));
		}
		s->examples += n;
	}
	return true;
}

/* ---------------------------------------------------------------- average precision */
/* place: among the example's results */
typedef struct Found { double score; int64_t example, place; bool right; } Found;
typedef struct Ap {
	const RtSet *s;
	const RtTensor *t[RT_SET_ARGS];
	int64_t results, boxes;  /* of an example */
	Found *found, *mine;     /* of a class; of an example */
	bool *taken;             /* its true boxes */
} Ap;
enum { BOXES, SCORES, CLASSES, TRUTH, LABELS };

static double
ap_read(const Ap *a, int what, int64_t i)
{
	int dtype = a->t[what]->dtype;

	return rt_dtype_read(dtype, a->s->at[what] + i * rt_dtype[dtype].bytes);
}

/* By falling score, NaN last; of equals in their order. */
static int
by_score(const void *x, const void *y)
{
	const Found *a = x, *b = y;

	if (isnan(a->score) != isnan(b->score))
		return isnan(a->score) - isnan(b->score);
	if (a->score != b->score && !isnan(a->score))
		return a->score > b->score ? -1 : 1;
	if (a->example != b->example)
		return a->example < b->example ? -1 : 1;
	return (a->place > b->place) - (a->place < b->place);
}

static double
overlap(const Ap *a, int64_t result, int64_t truth)
{
	double p[4], q[4];

	for (int k = 0; k < 4; k++) {
		p[k] = ap_read(a, BOXES, 4 * result + k);
		q[k] = ap_read(a, TRUTH, 4 * truth + k);
	}
	double w = fmin(p[2], q[2]) - fmax(p[0], q[0]), h = fmin(p[3], q[3]) - fmax(p[1], q[1]),
	       inter = w > 0 && h > 0 ? w * h : 0;

	return inter / ((p[2] - p[0]) * (p[3] - p[1]) + (q[2] - q[0]) * (q[3] - q[1]) - inter);
}

/* Is a free true box of the class found by this result? */
static bool
take_box(const Ap *a, int64_t example, int64_t class, int64_t result, double iou)
{
	int64_t best = -1;
	double least = fmin(iou, 1 - 1e-10);

	for (int64_t m = 0; m < a->boxes; m++) {
		int64_t truth = example * a->boxes + m;

		if (a->taken[m] || (int64_t)ap_read(a, LABELS, truth) != class)
			continue;
		double o = overlap(a, result, truth);

		if (o >= least) {
			least = o;
			best = m;
		}
	}
	if (best >= 0)
		a->taken[best] = true;
	return best >= 0;
}

/* The results of a class in one example, those that find a box marked; returns how many there are. */
static int64_t
ap_example(const Ap *a, int64_t example, int64_t class, double iou, Found *to)
{
	int64_t n = 0;

	memset(a->taken, 0, sizeof *a->taken * (size_t)a->boxes);
	for (int64_t d = 0; d < a->results; d++)
		if ((int64_t)ap_read(a, CLASSES, example * a->results + d) == class)
			to[n++] = (Found){ap_read(a, SCORES, example * a->results + d), example, d, false};
	qsort(to, (size_t)n, sizeof *to, by_score);
	for (int64_t i = 0; i < n; i++) {
		to[i].right = take_box(a, example, class, example * a->results + to[i].place, iou);
		to[i].place = i;
	}
	return n;
}

/* Precision at 101 recalls, of n results by falling score where there are `truth` boxes. */
static double
read_precision(const Found *found, int64_t n, int64_t truth, double *precision, double *recall)
{
	int64_t right = 0, at = 0;
	double sum = 0;

	for (int64_t i = 0; i < n; i++) {
		right += found[i].right;
		precision[i] = (double)right / ((double)(i + 1) + 0x1p-52);
		recall[i] = (double)right / (double)truth;
	}
	for (int64_t i = n; i-- > 1;)
		if (precision[i] > precision[i - 1])
			precision[i - 1] = precision[i];
	for (int r = 0; r <= 100; r++) {
		while (at < n && recall[at] < (r == 100 ? 1.0 : r * 0.01))
			at++;
		sum += at < n ? precision[at] : 0;
	}
	return sum / 101;
}

/* Of one class and threshold; -1: it has no true box. */
static double
ap_class(const Ap *a, int64_t class, double iou, double *room)
{
	int64_t n = 0, truth = 0;

	for (int64_t i = 0; i < a->s->examples * a->boxes; i++)
		truth += (int64_t)ap_read(a, LABELS, i) == class;
	if (!truth)
		return -1;
	for (int64_t e = 0; e < a->s->examples; e++)
		n += ap_example(a, e, class, iou, a->found + n);
	qsort(a->found, (size_t)n, sizeof *a->found, by_score);
	return read_precision(a->found, n, truth, room, room + n);
}

static bool
average_precision(const RtSet *s, const RtGraph *g, double *value, RtError *e)
{
	Ap a = {.s = s};
	int64_t most = -1, count = 0;
	double sum = 0;

	for (int i = 0; i < RT_SET_ARGS; i++)
		a.t[i] = &g->result[s->kept[i]].t;
	a.results = a.t[SCORES]->shape[1];
	a.boxes = a.t[LABELS]->shape[1];
	int64_t all = s->examples * a.results;
	double *room = malloc(sizeof *room * (size_t)(2 * all + 1));

	a.found = malloc(sizeof *a.found * (size_t)(all + 1));
	a.taken = malloc(sizeof *a.taken * (size_t)(a.boxes + 1));
	bool good = (room && a.found && a.taken) || rt_fail(e, "out of memory for metric %s", s->name);

	for (int64_t i = 0; good && i < s->examples * a.boxes; i++)
		most = (int64_t)ap_read(&a, LABELS, i) > most ? (int64_t)ap_read(&a, LABELS, i) : most;
	for (int64_t class = 0; good && class <= most; class++)
		for (int k = 0; k < s->niou; k++) {
			double ap = ap_class(&a, class, s->iou[k], room);

			if (ap < 0)
				break;
			sum += ap;
			count++;
		}
	*value = count ? sum / (double)count : (double)NAN;
	free(room);
	free(a.found);
	free(a.taken);
	return good;
}

/* ---------------------------------------------------------------- area under the ROC curve */
typedef struct Scored { double score; bool right; } Scored;

static int
by_rising_score(const void *x, const void *y)
{
	const Scored *a = x, *b = y;

	return (a->score > b->score) - (a->score < b->score);
}

static bool
auc(const RtSet *s, const RtGraph *g, int64_t batch, double *value, RtError *e)
{
	const RtTensor *t[2] = {&g->result[s->kept[0]].t, &g->result[s->kept[1]].t};
	int64_t each = t[0]->bytes / rt_dtype[t[0]->dtype].bytes / batch, n = each * s->examples;
	Scored *all = malloc(sizeof *all * (size_t)(n + 1));
	double rights = 0, wrongs = 0, pairs = 0;
	bool nan = false;

	if (!all)
		return rt_fail(e, "out of memory for metric %s", s->name);
	for (int64_t i = 0; i < n; i++) {
		all[i].score = rt_dtype_read(t[0]->dtype, s->at[0] + i * rt_dtype[t[0]->dtype].bytes);
		all[i].right = rt_dtype_read(t[1]->dtype, s->at[1] + i * rt_dtype[t[1]->dtype].bytes) != 0;
		nan |= isnan(all[i].score);
	}
	qsort(all, (size_t)n, sizeof *all, by_rising_score);
	for (int64_t i = 0, next; i < n && !nan; i = next) { /* a run of equal scores */
		double right = 0;

		for (next = i; next < n && all[next].score == all[i].score; next++)
			right += all[next].right;
		pairs += right * (wrongs + 0.5 * ((double)(next - i) - right));
		rights += right;
		wrongs += (double)(next - i) - right;
	}
	*value = nan || rights * wrongs <= 0 ? (double)NAN : pairs / (rights * wrongs);
	free(all);
	return true;
}

bool
rt_sets_value(const RtGraph *g, int64_t batch, int result, double *value, RtError *e)
{
	for (int k = 0; k < g->nset; k++)
		if (g->set[k].result == result)
			return g->set[k].nkept == 2 ? auc(&g->set[k], g, batch, value, e)
			                            : average_precision(&g->set[k], g, value, e);
	return rt_fail(e, "a metric of the whole set is not there");
}
