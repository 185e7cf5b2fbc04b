/* best.c: which evaluation of a training was the best: --keep best, --stop-after-worse, --by.
 *
 * In: the means of the evaluation after each epoch.   Out: whether this one is better than all before, and how many in
 * a row were not. A value that is not a number is never better. The best so far stands in the metadata of each
 * checkpoint, as "best": "NAME min|max VALUE EPOCH WORSE JUDGED", so that a resumed run judges as one not stopped;
 * JUDGED is the step of the last evaluation, and a run resumed at the end of an epoch that was not judged begins with
 * that evaluation. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether more is better, as a metric's name says: 1, 0, or -1 where it says nothing. */
static int
best_direction(const char *name)
{
	static const char *const more[] = {"accuracy", "auc", "f1", "precision", "recall", "r2"},
		*const less[] = {"loss", "error", "mse", "mae", "perplexity"};

	for (int i = 0; i < RT_COUNT(less); i++)
		if (strstr(name, less[i]))
			return 0;
	for (int i = 0; i < RT_COUNT(more); i++)
		if (strstr(name, more[i]))
			return 1;
	return -1;
}

static const char *
best_name(const RtResult *r)
{
	return r->kind == RT_LOSS ? "loss" : r->t.name;
}

static bool
best_find(RtHost *h)
{
	const RtGraph *g = &h->program.graph[RT_G_EVAL];
	const char *names[RT_MAX_RESULTS], *near;
	int n = 0;

	for (int i = 0; g->present && i < g->nscalar; i++) {
		const RtResult *r = &g->result[g->scalar[i]];

		if (r->kind != RT_LOSS && !rt_is_metric(r->kind))
			continue;
		names[n++] = best_name(r);
		if (strcmp(names[n - 1], h->best.name) == 0) {
			h->best.result = i;
			return true;
		}
	}
	for (int i = 0; g->present && i < g->nresult; i++)
		if (g->result[i].kind == RT_TABLE && strcmp(g->result[i].t.name, h->best.name) == 0)
			return rt_fail(&h->error, "--by %s: that metric is a table, which is not better or worse; "
			               "give its mean, or one of its values, as a metric of its own", h->best.name);
	near = rt_suggest(h->best.name, names, n);
	return rt_fail(&h->error, "--by %s: the evaluation has no such metric%s%s%s", h->best.name,
	               near ? "; did you mean " : n ? "" : ", it has none at all", near ? near : "", near ? "?" : "");
}

bool
rt_best_prepare(RtHost *h)
{
	RtBest *b = &h->best;
	const char *by = h->opt.by ? h->opt.by : "loss", *colon = strchr(by, ':');
	int direction;

	b->keeps = h->opt.keep != NULL;
	b->on = b->keeps || h->opt.patience > 0;
	if (!b->on)
		return true;
	b->name = colon ? rt_printf("%.*s", (int)(colon - by), by) : rt_printf("%s", by);
	if (colon && strcmp(colon, ":min") != 0 && strcmp(colon, ":max") != 0)
		return rt_fail(&h->error, "--by %s: after the metric comes :min or :max", by);
	if (!best_find(h))
		return false;
	direction = colon ? colon[2] == 'a' : best_direction(b->name);
	if (direction < 0)
		return rt_fail(&h->error, "--by %s: is less of it better, or more? --by %s:min or --by %s:max says so",
		               by, by, by);
	b->largest = direction == 1;
	return true;
}

bool
rt_best_begin(RtHost *h)
{
	const RtBest *b = &h->best;
	const RtGraph *g = &h->program.graph[RT_G_EVAL];
	const char *option = b->keeps ? "--keep best" : "--stop-after-worse";

	if (!b->on || h->opt.steps == 0)
		return true;
	if (!h->have_test)
		return rt_fail(&h->error, "%s: there is no evaluation after the epochs, which it judges by", option);
	if (g->result[g->scalar[b->result]].kind == RT_BATCH && h->test.examples > h->program.batch)
		return rt_fail(&h->error, "%s: %s has a value only where one batch holds all test examples", option,
		               b->name);
	return true;
}

bool
rt_best_judge(RtHost *h, const double *mean, int64_t epoch)
{
	RtBest *b = &h->best;
	double x = mean[b->result];
	bool better = b->any ? b->largest ? x > b->value : x < b->value : !isnan(x);

	b->judged = h->run.step;
	if (!better) {
		b->worse++;
		return false;
	}
	b->any = true;
	b->value = x;
	b->epoch = epoch;
	b->worse = 0;
	return true;
}

bool
rt_best_over(const RtHost *h)
{
	return h->opt.patience > 0 && h->best.worse >= h->opt.patience;
}

void
rt_best_write(const RtHost *h, FILE *f)
{
	const RtBest *b = &h->best;

	if (b->on && b->judged >= 0)
		fprintf(f, ",\"best\":\"%s %s %a %lld %lld %lld\"", b->name, b->largest ? "max" : "min",
		        b->any ? b->value : (double)NAN, (long long)b->epoch, (long long)b->worse,
		        (long long)b->judged);
}

void
rt_best_read(RtHost *h, const Json *meta)
{
	const char *text = rt_json_str(meta, "best", NULL);
	char name[256], direction[8];
	long long epoch, worse, judged;
	RtBest *b = &h->best;
	double value;

	if (!b->on || !text)
		return;
	if (sscanf(text, "%255s %7s %la %lld %lld %lld", name, direction, &value, &epoch, &worse, &judged) != 6)
		return;
	if (strcmp(name, b->name) != 0 || (strcmp(direction, "max") == 0) != b->largest) {
		if (!h->opt.quiet)
			fprintf(stderr, "note: %s judged by %s:%s: what is best begins anew\n", h->opt.resume, name,
			        direction);
		return;
	}
	b->any = !isnan(value);
	b->value = value;
	b->epoch = epoch;
	b->worse = worse;
	b->judged = judged;
	b->save.wrote = b->any;                  /* what stands there as the best is this run's */
}
