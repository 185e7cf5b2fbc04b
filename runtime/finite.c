/* finite.c: a loss that is not finite: the step ends before anything is updated, and is repeated to find out where that
 * began.
 *
 * In: the loss, as soon as its kernel has run (rt_loss).   Out: for the message of train: the first tensor of the step
 * that is not finite: an input (with the example's number in the data set), a state from before the step, or what a
 * kernel stored, in the kernels' order; with layer, place in the model and index.
 * The step is repeated kernel by kernel, as --sink off runs it, on the same states and examples, so with the same bits;
 * it is then run to its end, so that its record is what it would have been. The interpreter, which has no kernels,
 * looks by operation. Infinities do not count in tensors that are computed from an infinite constant, as masks are.
 * Several processes learn of a loss only together, when the states have changed, and shards that exchange values
 * within a step, or run on a device, have no order to repeat: of these the data are looked at, and the message says
 * that the rest is not. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t
rt_loss(RtRun *run, int64_t offset, int64_t dtype)
{
	const RtHost *h = rt_host(run);
	bool all = h->program.shards < 2 || (run->shard == 0 && run->shard_end == h->program.shards);

	/* processes that share a batch end a step together, at emit */
	if (run->allow_nan || h->mode != RT_M_TRAIN || !all)
		return RT_OK;
	return isfinite(rt_dtype_read((int)dtype, run->arena + offset)) ? RT_OK : RT_NOT_FINITE;
}

/* The first element that counts, in the order of memory; -1: none. */
static int64_t
finite_scan(const RtTensor *t, const uint8_t *at, bool infinities)
{
	int size = rt_dtype[t->dtype].bytes;

	if (rt_dtype[t->dtype].kind != 'f')
		return -1;
	for (int64_t e = 0; e < t->count; e++) {
		double x = rt_dtype_read(t->dtype, at + e * size);

		if (isnan(x) || (isinf(x) && !infinities))
			return e;
	}
	return -1;
}

static const char *
finite_word(double x)
{
	return isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

/* "element [3,0,2] of f32[64,16,10] is nan"; from: axes before it are left out. */
static char *
finite_words(const char *dtype, int from, int rank, const int64_t *extent, const int64_t *at, double value)
{
	char *shape = rt_printf("%s", ""), *index = rt_printf("%s", ""), *all;

	for (int i = from; i < rank; i++) {
		char *s = shape, *x = index;

		shape = rt_printf("%s%s%lld", s, i > from ? "," : "", (long long)extent[i]);
		index = rt_printf("%s%s%lld", x, i > from ? "," : "", (long long)at[i]);
		free(s);
		free(x);
	}
	all = rt_printf("element [%s] of %s[%s] is %s", index, dtype, shape, finite_word(value));
	free(shape);
	free(index);
	return all;
}

static char *
finite_element(const RtTensor *t, const uint8_t *at, int64_t e, int from)
{
	int64_t index[RT_MAX_RANK];

	for (int i = from; i < t->rank; i++)
		index[i] = e / t->stride[i] % t->shape[i];
	return finite_words(rt_dtype[t->dtype].name, from, t->rank, t->shape, index,
	                    rt_dtype_read(t->dtype, at + e * rt_dtype[t->dtype].bytes));
}

/* The batch stands in the arena. NULL: its data are finite. */
static char *
finite_data(RtHost *h)
{
	const RtRun *run = &h->run;
	const RtGraph *g = &h->program.graph[RT_G_TRAIN];
	int64_t index = (run->step - run->epoch * run->steps_per_epoch) * h->accumulate + run->micro;

	for (int k = 0; k < h->program.ninput; k++) {
		const RtInput *in = &h->program.input[k];
		int64_t e = g->input[k] < 0 ? -1 : finite_scan(&in->t, run->arena + g->input[k], false), example;
		char *element, *text;

		if (e < 0)
			continue;
		example = index * run->batch + e / in->example;
		if (h->shuffle && !run->order)           /* a ring keeps its own order */
			rt_shuffle_order(run->seed, run->epoch, run->examples, h->order);
		example = h->shuffle ? h->order[example] : example;
		element = finite_element(&in->t, run->arena + g->input[k], e,
		                         in->t.rank > 0 && in->t.shape[0] == run->batch);
		text = rt_printf("the data hold it: input %s, example %lld of the training data (from 0): %s",
		                 in->t.name, (long long)example, element);
		free(element);
		return text;
	}
	return NULL;
}

/* As they are before the step. Running statistics are left out: the forward half of the step has written them. */
static char *
finite_states(RtHost *h)
{
	for (int k = 0; k < h->program.nstate; k++) {
		const RtState *s = &h->program.state[k];
		int64_t e = -1;
		char *element, *text;

		if ((s->kind == RT_PARAM || s->kind == RT_SLOT) && rt_host_fetch(h, s->t.offset, s->t.bytes))
			e = finite_scan(&s->t, h->run.arena + s->t.offset, false);
		if (e < 0)
			continue;
		element = finite_element(&s->t, h->run.arena + s->t.offset, e, 0);
		text = rt_printf("an update before this step made it so: %s %s: %s; the batch's data are finite",
		                 s->kind == RT_PARAM ? "parameter" : "the optimizer's", s->t.name, element);
		free(element);
		return text;
	}
	return NULL;
}

typedef struct Finite { RtHost *h; char *text; } Finite;

/* After each kernel. */
static void
finite_row(void *cx, const RtGraph *g, int row, double begin, double end)
{
	Finite *f = cx;
	const RtRow *r = &g->row[row];

	(void)begin;
	(void)end;
	for (int k = 0; k < r->nmade && !f->text; k++) {
		const RtMade *m = &r->made[k];
		const uint8_t *at = f->h->run.arena + m->t.offset;
		int64_t e = finite_scan(&m->t, at, m->infinities);
		char *element;

		if (e < 0)
			continue;
		element = finite_element(&m->t, at, e, 0);
		f->text = rt_printf("the first tensor that is not finite is made by %s%s%s%s: %s; kernel %s, of %s; "
		                    "the batch's data and "
		                    "the parameters are finite",
		                    m->layer, *m->where ? " (" : "", m->where, *m->where ? ")" : "", element, r->name,
		                    *r->layers ? r->layers : "no layer");
		free(element);
	}
}

/* A graph of the repeated step; f: look at what its kernels make, NULL. */
static int64_t
finite_call(RtHost *h, int graph, Finite *f)
{
	const RtDevice *d = h->object->device;
	const RtGraph *g = &h->program.graph[graph];

	if (!d)
		return rt_loop_call(h, graph, f ? finite_row : NULL, f);
	if (!d->begin(h, graph))
		return RT_ERROR;
	for (int k = 0; k < g->nrow; k++) {
		if (!d->rows(h, &g->row[k], 1) || !d->wait(h))
			return RT_ERROR;
		for (int i = 0; f && !f->text && i < g->row[k].nmade; i++)
			if (!d->fetch(h, g->row[k].made[i].t.offset, g->row[k].made[i].t.bytes))
				return RT_ERROR;
		if (f)
			finite_row(f, g, k, 0, 0);
	}
	return d->end(h, graph) ? RT_OK : RT_ERROR;
}

/* What the interpreter has found, as the call has ended. */
static char *
finite_found(const RtFound *f)
{
	char *element, *text;

	if (!f)
		return NULL;
	element = finite_words(f->dtype, 0, f->rank, f->shape, f->index, f->value);
	text = rt_printf("the first tensor that is not finite is made by %s%s%s%s: %s; the batch's data and the "
	                 "parameters are finite",
	                 f->layer, *f->where ? " (" : "", f->where, *f->where ? ")" : "", element);
	free(element);
	return text;
}

/* The data of all batches of the step, where nothing else can be looked at. */
static char *
finite_batches(RtHost *h, const char *why)
{
	const RtGraph *g = &h->program.graph[RT_G_TRAIN];
	RtRun *run = &h->run;
	char *text = NULL;
	bool good = true;

	rt_shuffle(run);
	for (run->micro = 0; good && !text && run->micro < h->accumulate; run->micro++) {
		good = rt_gather(run, run->arena, g->input, h->program.ninput);
		text = good ? finite_data(h) : NULL;
	}
	run->micro = 0;
	return text || !good ? text : rt_printf("the batch's data are finite; %s", why);
}

char *
rt_not_finite(RtHost *h)
{
	const RtGraph *g = &h->program.graph[RT_G_TRAIN], *all = &h->program.graph[h->program.train.reports];
	Finite f = {.h = h};
	RtRun *run = &h->run;
	int64_t first = run->micro, allow = run->allow_nan;
	bool alone = !rt_joins_in_step(h) && !(h->object->device && h->program.shards > 1),
	     known = h->object->call && alone;

	/* the step has run to its end, and has changed the states */
	if (h->ranks > 1)
		return finite_batches(h, "what made it is not looked for where processes share a batch: one process "
		                         "with the same --resume or --seed says it");
	for (int k = 0; k < g->nrow && alone; k++)
		known = known || g->row[k].loss;
	if (!known)
		return finite_batches(h, h->program.shards > 1
		                                 ? "what made it is not looked for in these shards of a batch: a "
		                                   "program built with --shards 1 says it"
		                                 : "what made it is not looked for, as parameters change before the "
		                                   "loss is there: --watch all shows them");
	run->allow_nan = 1;
	rt_shuffle(run);
	rt_rate(run);
	for (; run->micro < h->accumulate; run->micro++) {
		if (!rt_gather(run, run->arena, g->input, h->program.ninput))
			break;
		h->fresh = true;
		if (run->micro == first) {
			f.text = finite_data(h);
			f.text = f.text ? f.text : finite_states(h);
			f.text = f.text || !h->object->call ? f.text : finite_found(run->found);
		}
		if (finite_call(h, RT_G_TRAIN, run->micro == first && !f.text ? &f : NULL) != RT_OK)
			break;
		if (h->program.shards > 1 && rt_merge(run) != RT_OK)
			break;
	}
	run->micro = h->accumulate - 1;
	if (h->accumulate > 1)
		finite_call(h, RT_G_UPDATE, NULL);
	rt_emit(run, all->scalar_offset, all->scalar_dtype, all->nscalar, all->loss);
	rt_drain(h);
	rt_log_flush(h);
	run->allow_nan = allow;
	return f.text;
}
