/* finite.c: a loss that is not finite: the step ends before anything is updated, and is repeated to find out where that
 * began.
 *
 * In: the loss, as soon as its kernel has run (rt_loss).   Out: for the message of train: the first tensor of the step
 * that is not finite: an input (with the example's number in the data set), a state from before the step, or what a
 * kernel stored, in the kernels' order; with layer, place in the model and index.
 * The step is repeated kernel by kernel, as --sink off runs it, on the same states and examples, so with the same bits;
 * it is then run to its end, so that its record is what it would have been. Infinities do not count in tensors that are
 * computed from an infinite constant, as masks are. Devices and the interpreter, which have no rows to walk, are not
 * asked, nor are several processes, which learn of a loss only together, when the states have changed. */
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
finite_element(const RtTensor *t, const uint8_t *at, int64_t e, int from)
{
	char *shape = rt_printf("%s", ""), *index = rt_printf("%s", ""), *all;

	for (int i = from; i < t->rank; i++) {
		char *s = shape, *x = index;

		shape = rt_printf("%s%s%lld", s, i > from ? "," : "", (long long)t->shape[i]);
		index = rt_printf("%s%s%lld", x, i > from ? "," : "", (long long)(e / t->stride[i] % t->shape[i]));
		free(s);
		free(x);
	}
	all = rt_printf("element [%s] of %s[%s] is %s", index, rt_dtype[t->dtype].name, shape,
	                finite_word(rt_dtype_read(t->dtype, at + e * rt_dtype[t->dtype].bytes)));
	free(shape);
	free(index);
	return all;
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
		int64_t e = s->kind != RT_PARAM && s->kind != RT_SLOT
		                    ? -1
		                    : finite_scan(&s->t, h->run.arena + s->t.offset, false);
		char *element, *text;

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

char *
rt_not_finite(RtHost *h)
{
	const RtGraph *g = &h->program.graph[RT_G_TRAIN], *all = &h->program.graph[h->program.train.reports];
	Finite f = {.h = h};
	RtRun *run = &h->run;
	int64_t first = run->micro, allow = run->allow_nan;
	bool walks = !h->image->device && !h->image->call && h->ranks < 2 && !rt_joins_in_step(h), known = false;

	for (int k = 0; k < g->nrow; k++)
		known = known || g->row[k].loss;
	/* the step has run to its end, and has changed the states */
	if (!walks || !known || h->ranks > 1)
		return NULL;
	run->allow_nan = 1;
	rt_shuffle(run);
	rt_rate(run);
	for (; run->micro < h->accumulate; run->micro++) {
		if (!rt_gather(run, run->arena, g->input, h->program.ninput))
			break;
		if (run->micro == first) {
			f.text = finite_data(h);
			f.text = f.text ? f.text : finite_states(h);
		}
		if (rt_loop_call(h, RT_G_TRAIN, run->micro == first && !f.text ? finite_row : NULL, &f) != RT_OK)
			break;
		if (h->program.shards > 1 && rt_merge(run) != RT_OK)
			break;
	}
	run->micro = h->accumulate - 1;
	if (h->accumulate > 1)
		rt_loop_call(h, RT_G_UPDATE, NULL, NULL);
	rt_emit(run, all->scalar_offset, all->scalar_dtype, all->nscalar, all->loss);
	rt_drain(h);
	rt_log_flush(h);
	run->allow_nan = allow;
	return f.text;
}
