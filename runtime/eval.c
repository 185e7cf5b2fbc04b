/* eval.c: evaluation: one pass over the test data in file order; the last, smaller batch counts by its examples. */
#include "comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- several processes: each has a run of the batches; all add all records, in the order of the batches */

typedef struct Told { int64_t status, first, n; RtFault fault; } Told;

/* A metric that is put together from batch to batch, or from all examples, has no parts: then each does all. */
static bool
eval_splits(const RtHost *h, const RtGraph *g)
{
	if (g->ntable)
		return false;
	for (int i = 0; i < g->nscalar; i++)
		if (g->result[g->scalar[i]].kind == RT_WHOLE || g->result[g->scalar[i]].kind == RT_SET)
			return false;
	return h->ranks > 1;
}

static void
eval_record(RtHost *h, const RtRecord *r)
{
	for (int i = 0; i < h->graph->nscalar; i++)
		h->sum[i] += (double)r->n * r->value[i];
	h->weight += (double)r->n;
}

/* What the lowest rank that failed ended with, at all of them. */
static int64_t
eval_join(RtHost *h, int64_t status)
{
	size_t bytes = sizeof(Told) + sizeof(RtRecord) * (size_t)h->nkept,
	       *at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
	uint8_t *mine = rt_alloc(bytes), *all = NULL;
	Told told = {.status = status, .first = h->run.step, .n = h->run.n}, his;

	if (h->program.fault_offset >= 0)
		memcpy(&told.fault, h->run.arena + h->program.fault_offset, sizeof told.fault);
	memcpy(mine, &told, sizeof told);
	memcpy(mine + sizeof told, h->kept, sizeof(RtRecord) * (size_t)h->nkept);
	h->comm->gather(h, mine, bytes, &all, at);
	for (int r = 0; r < h->ranks; r++) {
		memcpy(&his, all + at[r], sizeof his);
		if (his.status != RT_OK && status == RT_OK)
			status = his.status;
		if (his.status == RT_FAULT) {
			status = RT_FAULT;
			memcpy(h->run.arena + h->program.fault_offset, &his.fault, sizeof his.fault);
			h->run.step = his.first;
			h->run.n = his.n;
			h->agreed = true;
			break;
		}
		for (size_t i = at[r] + sizeof his; i < at[r + 1]; i += sizeof(RtRecord)) {
			RtRecord record;

			memcpy(&record, all + i, sizeof record);
			eval_record(h, &record);
		}
	}
	free(all);
	free(mine);
	free(at);
	return status;
}

/* Batch by batch, where a metric keeps what each has made. */
static int64_t
eval_kept(RtHost *h)
{
	RtGraph *g = &h->program.graph[RT_G_EVAL];
	int64_t batches = h->run.until, status = RT_OK;

	rt_sets_begin(g);
	for (int64_t at = 0; at < batches && status == RT_OK; at++) {
		h->run.step = at;
		h->run.until = at + 1;
		status = rt_host_enter(h, h->object->eval, &h->program.eval, rt_sink(h) == 0);
		if (status == RT_OK && !rt_sets_take(h, g))
			return RT_ERROR;
	}
	return status;
}

/* This rank's batches, with their records kept. */
static int64_t
eval_run(RtHost *h, bool splits)
{
	RtRun *run = &h->run;
	int64_t batches = run->steps_per_epoch, status;

	run->until = batches;
	if (splits) {
		run->step = batches * h->rank / h->ranks;
		run->until = batches * (h->rank + 1) / h->ranks;
		h->kept = rt_alloc(sizeof *h->kept * (size_t)(run->until - run->step + 1));
		h->nkept = 0;
	}
	status = h->program.graph[RT_G_EVAL].nset
	                 ? eval_kept(h)
	                 : rt_host_enter(h, h->object->eval, &h->program.eval, rt_sink(h) == 0);
	rt_drain(h);
	if (!splits)
		return status;
	status = eval_join(h, status);
	free(h->kept);
	h->kept = NULL;
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
	status = eval_run(h, eval_splits(h, g));
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
		if (kind == RT_SET && !rt_sets_value(g, h->program.batch, g->scalar[i], &mean[i], &h->error))
			return false;
		if (kind == RT_BATCH && h->test.examples > h->program.batch)
			mean[i] = NAN;
	}
	return rt_tables_take(h, g);
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

		if (!rt_is_metric(r->kind) || i == g->loss)
			continue;
		fputs(before, stdout);
		rt_json_text(stdout, r->t.name);
		printf(": ");
		rt_json_number(stdout, mean[i], 17);
		before = ", ";
	}
	rt_tables_json(g, stdout, before);
	printf("}}\n");
}

int
rt_eval(RtHost *h)
{
	double mean[RT_MAX_RESULTS];
	int64_t examples = 0;
	bool good;

	if (!rt_evaluates(&h->program)) {
		rt_fail(&h->error, "the model has no loss and no metric: there is nothing to evaluate");
		return rt_die(h);
	}
	good = rt_data_load(&h->program, &h->opt, false, &h->test, &h->error) && rt_host_memory(h, 0) &&
	       rt_host_init_state(h);
	if (h->ranks > 1)
		good = h->comm->agree(h, good, "");
	if (!good || !rt_checkpoint_weights(h, h->opt.weights, false) ||
	    !rt_evaluation_fits(&h->program, h->test.examples, &h->error) || !rt_evaluate(h, mean, &examples))
		return rt_die(h);
	if (h->opt.json) {
		eval_json(h, mean, examples);
	} else if (!h->opt.quiet) {
		rt_eval_report(h, mean, "");
	}
	return 0;
}
