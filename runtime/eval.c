/* eval.c: evaluation: one pass over the test data in file order; the last, smaller batch counts by its examples. */
#include "host.h"

#include <math.h>
#include <string.h>

/* All batches at once; one by one where a metric keeps what each has made. */
static int64_t
eval_batches(RtHost *h)
{
	RtGraph *g = &h->program.graph[RT_G_EVAL];
	int64_t steps = h->run.steps_per_epoch, status = RT_OK;

	rt_sets_begin(g);
	for (int64_t at = 0; at < steps && status == RT_OK; at = h->run.until) {
		h->run.step = at;
		h->run.until = g->nset ? at + 1 : steps;
		status = rt_host_enter(h, h->image->eval, &h->program.eval, rt_sink(h) == 0);
		if (status == RT_OK && !rt_sets_take(h, g))
			return RT_ERROR;
	}
	return status;
}

bool
rt_evaluate(RtHost *h, double mean[RT_MAX_RESULTS], int64_t *examples)
{
	const RtGraph *g = &h->program.graph[RT_G_EVAL];
	RtRun *run = &h->run;
	int64_t status;

	if (!rt_batches_fit(&h->program, &h->program.graph[RT_G_EVAL], h->test.examples, "test examples", &h->error))
		return false;
	rt_host_use(h, RT_M_EVAL, &h->test, false);
	pthread_mutex_lock(&h->lock);
	memset(h->sum, 0, sizeof h->sum);
	h->weight = 0;
	pthread_mutex_unlock(&h->lock);
	run->step = run->epoch = 0;
	status = eval_batches(h);
	rt_drain(h);
	if (status == RT_FAULT) {
		rt_host_fault(h);
		return false;
	}
	if (status != RT_OK)
		return false;
	*examples = (int64_t)h->weight;
	for (int i = 0; i < RT_MAX_RESULTS; i++) {
		RtResultKind kind = i < g->nscalar ? g->result[g->scalar[i]].kind : RT_METRIC;

		mean[i] = kind == RT_WHOLE ? h->sum[i] : h->weight > 0 ? h->sum[i] / h->weight : 0;
		if (kind == RT_SET && !rt_sets_value(g, g->scalar[i], &mean[i], &h->error))
			return false;
		if (kind == RT_BATCH && h->test.examples > h->program.batch)
			mean[i] = NAN;
	}
	return true;
}

static void
eval_json(const RtHost *h, const double *mean, int64_t examples)
{
	const RtGraph *g = &h->program.graph[RT_G_EVAL];
	const char *before = "";

	printf("{\"examples\": %lld", (long long)examples);
	for (int i = 0; i < g->nscalar; i++)
		if (i == g->loss) {
			printf(", \"loss\": ");
			rt_json_number(stdout, mean[i], 17);
		}
	printf(", \"metrics\": {");
	for (int i = 0; i < g->nscalar; i++) {
		const RtResult *r = &g->result[g->scalar[i]];

		if (!rt_is_metric(r->kind))
			continue;
		fputs(before, stdout);
		rt_json_text(stdout, r->t.name);
		printf(": ");
		rt_json_number(stdout, mean[i], 17);
		before = ", ";
	}
	printf("}}\n");
}

int
rt_eval(RtHost *h)
{
	double mean[RT_MAX_RESULTS];
	int64_t examples = 0;

	if (!h->program.graph[RT_G_EVAL].present || !h->program.graph[RT_G_EVAL].nscalar) {
		rt_fail(&h->error, "the model has no loss and no metric: there is nothing to evaluate");
		return rt_die(h);
	}
	if (!rt_data_load(&h->program, &h->opt, false, &h->test, &h->error) || !rt_host_memory(h, 0) || !rt_host_init_state(h)
	    || !rt_checkpoint_weights(h, h->opt.weights, false)
	    || !rt_evaluation_fits(&h->program, h->test.examples, &h->error)
	    || !rt_evaluate(h, mean, &examples))
		return rt_die(h);
	if (h->opt.json) {
		eval_json(h, mean, examples);
	} else if (!h->opt.quiet) {
		rt_eval_report(h, mean, "");
	}
	return 0;
}
