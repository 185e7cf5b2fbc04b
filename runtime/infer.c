/* infer.c: the command infer: outputs of .npy inputs.
 *
 * In: any number of examples. They run in batches, the last one smaller. The outputs of the batches are joined along
 * the axis that follows N, whichever it is; an output that has none, or several, is one thing of a batch and cannot be
 * joined: several batches are an error then, before the first of them runs, unless it depends on no input. Inputs that
 * no output depends on may be left out, and are checked and unused where they are given. All outputs stand in memory
 * until the last batch is done. Inputs of several files make a round of each, in one process (rounds.c). Inputs and
 * outputs called - are streams of .npy arrays on standard input and output: for each round one array of every such
 * input, in the order of the options, then the outputs likewise, until the input ends. Files beside them are read in
 * each round. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

/* All of an output: `outer` blocks of `whole` elements, of which `done` are there; a batch has a part of each block. */
typedef struct Output {
	const RtResult *r; const RtGiven *to; int dtype, axis; uint8_t *at;
	int64_t shape[RT_MAX_RANK], outer, inner, whole, done;
} Output;

/* Its file of this round. */
static const char *
given_file(const RtGiven *g, int64_t round)
{
	return g->file[g->n == 1 ? 0 : round];
}

static bool
infer_input(RtHost *h, const char *name, const char *file, RtData *d, bool *end, RtError *e)
{
	const RtProgram *p = &h->program;
	const char *names[RT_MAX_INPUTS], *near;
	RtFile *f;
	RtNpy a;
	int64_t row = 1, n;
	bool good;
	int k = 0;

	while (k < p->ninput && strcmp(p->input[k].t.name, name) != 0)
		k++;
	if (k == p->ninput) {
		for (int i = 0; i < p->ninput; i++)
			names[i] = p->input[i].t.name;
		near = rt_suggest(name, names, p->ninput);
		return rt_fail(e, "the model has no input %s%s%s%s", name, near ? "; did you mean " : "",
		               near ? near : "", near ? "?" : "");
	}
	f = rt_is_stream(file) ? rt_data_stream(d, stdin, "standard input", end, e)
	                       : rt_data_file(d, file, e);
	if (!f && *end)
		return false;
	if (!f)
		return rt_context(e, "input %s", name);
	good = rt_npy_header(&a, f->at, f->n, e) || rt_context(e, "%s", f->path);
	for (int i = 1; good && i < a.rank; i++)
		row *= a.shape[i];
	if (good && (a.rank < 1 || a.shape[0] % p->input[k].rows || row * p->input[k].rows != p->input[k].example))
		good = rt_fail(e, "%s: %lld element%s a row do not make input %s, which has %lld an example", f->path,
		               (long long)row, row == 1 ? "" : "s", name, (long long)p->input[k].example);
	n = good ? a.shape[0] / p->input[k].rows : 0;
	if (good && d->examples >= 0 && n != d->examples)
		good = rt_fail(e, "%s holds %lld examples, the inputs before it %lld", f->path, (long long)n,
		               (long long)d->examples);
	RtPart part = {.at = f->at + a.data, .dtype = a.dtype, .swap = a.swap, .examples = n,
	               .stride = p->input[k].example * rt_dtype[a.dtype].bytes, .file = f->path};

	d->examples = n;
	return good && rt_data_add(d, k, &part, f, e);
}

/* *end: the stream is at its end, where a round would begin. False then, and after rt_fail. */
static bool
infer_inputs(RtHost *h, const RtRounds *r, int64_t round, RtData *d, bool *end)
{
	const RtProgram *p = &h->program;

	if (h->opt.data)
		return rt_data_load(p, &h->opt, false, d, &h->error)
		       && rt_batches_fit(p, &p->graph[RT_G_INFER], d->examples, "examples", &h->error);
	d->p = p;
	d->what = "input";
	d->examples = -1;
	for (int i = 0, streams = 0; i < r->ninput; i++) {
		const char *file = given_file(&r->input[i], round);

		if (!infer_input(h, r->input[i].name, file, d, end, &h->error)) {
			if (*end && streams) {
				*end = false;
				return rt_fail(&h->error, "standard input ends before an array for input %s",
				               r->input[i].name);
			}
			return false;
		}
		streams += rt_is_stream(file);
	}
	for (int k = 0; k < p->ninput; k++)
		if (p->input[k].infer && !d->bytes[k])
			return d->examples == 0 ? rt_fail(&h->error, "the inputs hold no examples")
			                        : rt_fail(&h->error, "input %s is missing: give --input %s=FILE.npy",
			                                  p->input[k].t.name, p->input[k].t.name);
	if (d->examples < 0)                     /* the outputs depend on parameters alone */
		d->examples = p->batch;
	if (d->examples == 0)
		return rt_fail(&h->error, "the inputs hold no examples");
	return rt_batches_fit(p, &p->graph[RT_G_INFER], d->examples, "examples", &h->error);
}

/* out: one for each of r->output */
static bool
infer_outputs(RtHost *h, const RtRounds *r, Output *out)
{
	const RtGraph *g = &h->program.graph[RT_G_INFER];

	for (int i = 0; i < r->noutput; i++) {
		const char **names = rt_alloc(sizeof *names * (size_t)(g->nresult + 1)), *near;
		int n = 0;

		for (int k = 0; k < g->nresult; k++) {
			if (g->result[k].kind != RT_OUTPUT)
				continue;
			names[n++] = g->result[k].t.name;
			if (strcmp(g->result[k].t.name, r->output[i].name) == 0)
				out[i].r = &g->result[k];
		}
		near = rt_suggest(r->output[i].name, names, n);
		free(names);
		if (!out[i].r)
			return rt_fail(&h->error, "the model has no output %s%s%s%s", r->output[i].name,
			               near ? "; did you mean "
			               : n  ? ""
			                    : ": it has none at all",
			               near ? near : "", near ? "?" : "");
		out[i].to = &r->output[i];
		out[i].dtype = out[i].r->t.dtype == RT_F16 || out[i].r->t.dtype == RT_BF16 ? RT_F32 : out[i].r->t.dtype;
	}
	return true;
}

static void
infer_words(char *out, size_t room, const RtTensor *t)
{
	size_t n = (size_t)snprintf(out, room, "%s[", rt_dtype[t->dtype].name);

	for (int i = 0; i < t->rank && n < room; i++)
		n += (size_t)snprintf(out + n, room - n, i ? ", %lld" : "%lld", (long long)t->shape[i]);
	if (n < room)
		snprintf(out + n, room - n, "]");
}

/* The axis along which batches are joined, -1 if there is only one batch or all are the same. */
static bool
infer_axis(RtHost *h, Output *o, int64_t examples)
{
	const RtTensor *t = &o->r->t;
	int marked = 0;
	char words[256];

	o->axis = -1;
	infer_words(words, sizeof words, t);
	for (int i = 0; i < t->rank; i++) {
		if (t->mul[i] <= 0)
			continue;
		o->axis = i;
		marked++;
	}
	if (marked == 1 || examples <= h->program.batch || (!marked && o->r->constant))
		return true;
	return rt_fail(&h->error,
	               "output %s, %s, %s: it is of one batch, and %lld examples make several batches of %lld; "
	               "give %lld examples at most, or build with --batch %lld",
	               t->name, words,
	               marked ? "has several axes that follow the batch" : "has no axis that follows the batch",
	               (long long)examples, (long long)h->program.batch, (long long)h->program.batch,
	               (long long)examples);
}

/* Shape and memory of all of the output. */
static bool
infer_room(RtHost *h, Output *o, int64_t examples)
{
	const RtTensor *t = &o->r->t;
	int64_t batch = h->program.batch, rest[RT_MAX_RANK], count, bytes;
	bool good;

	if (!infer_axis(h, o, examples))
		return false;
	rt_tensor_at(t, examples < batch ? examples : batch, o->shape);
	o->outer = o->inner = 1;
	for (int i = 0; i < t->rank; i++)
		*(i < o->axis ? &o->outer : &o->inner) *= i == o->axis ? 1 : o->shape[i];
	if (examples > batch && o->axis >= 0) {
		rt_tensor_at(t, examples % batch, rest);
		o->shape[o->axis] = examples / batch * o->shape[o->axis] + (examples % batch ? rest[o->axis] : 0);
	}
	good = !__builtin_mul_overflow(o->axis < 0 ? 1 : o->shape[o->axis], o->inner, &o->whole)
	       && !__builtin_mul_overflow(o->whole, o->outer, &count)
	       && !__builtin_mul_overflow(count, rt_dtype[o->dtype].bytes, &bytes);
	if (good)
		o->at = rt_large((size_t)bytes);
	return o->at || rt_fail(&h->error, "out of memory for output %s of %lld examples", t->name,
	                        (long long)examples);
}

/* Of the batch that has run. */
static bool
infer_append(RtHost *h, Output *o)
{
	const RtTensor *t = &o->r->t;
	int64_t shape[RT_MAX_RANK], count = rt_tensor_at(t, h->run.n, shape),
		part = o->outer ? count / o->outer : 0, bad;
	int from = rt_dtype[t->dtype].bytes, to = rt_dtype[o->dtype].bytes;

	if (o->done == o->whole)                 /* the same as of the first */
		return true;
	if (!rt_host_fetch(h, t->offset, count * from))
		return false;
	for (int64_t i = 0; i < o->outer; i++)
		rt_dtype_convert(o->dtype, o->at + (i * o->whole + o->done) * to, t->dtype,
		                 h->run.arena + t->offset + i * part * from, part, false, &bad);
	o->done += part;
	return true;
}

static bool
infer_batch(RtHost *h, RtData *d, int64_t first, Output *out, int nout)
{
	const RtProgram *p = &h->program;
	const RtGraph *g = &p->graph[RT_G_INFER];
	int64_t status;

	h->run.step = first / p->batch;
	h->run.until = h->run.step + 1;
	h->fresh = true;
	if (!rt_gather(&h->run, h->run.arena, g->input, p->ninput))
		return false;
	status = rt_host_enter(h, h->object->infer, &p->infer, h->program.sink == 0);
	if (status == RT_FAULT) {
		rt_host_fault(h);
		return false;
	}
	if (status == RT_ERROR)
		return false;
	if (status != RT_OK && status != RT_STOPPED)
		return rt_fail(&h->error, "the program returned status %lld", (long long)status);
	for (int i = 0; i < nout; i++)
		if (!infer_append(h, &out[i]))
			return false;
	return true;
}

static bool
infer_write(RtHost *h, const Output *o, int64_t round)
{
	const char *file = given_file(o->to, round);

	return rt_npy_write(rt_is_stream(file) ? "/dev/stdout" : file, o->dtype, o->r->t.rank, o->shape, o->at,
	                    (size_t)(o->outer * o->whole * rt_dtype[o->dtype].bytes), &h->error);
}

/* Once, before the first round runs. */
static bool
infer_prepare(RtHost *h)
{
	h->graph = &h->program.graph[RT_G_INFER];
	return rt_host_memory(h, 0) && rt_host_init_state(h) && rt_checkpoint_weights(h, h->opt.weights, false);
}

/* All examples of d, and what becomes of them. */
static bool
infer_round(RtHost *h, const RtRounds *r, RtData *d, Output *out, int64_t round)
{
	bool good = true;

	for (int i = 0; i < r->noutput && r->streams && round > 0; i++)
		if (!rt_is_stream(r->output[i].file[0]))
			return rt_fail(&h->error,
			               "standard input holds more than one array, and output %s goes to a file; "
			               "--output %s=- takes all",
			               r->output[i].name, r->output[i].name);
	for (int i = 0; good && i < r->noutput; i++) {
		out[i].done = 0;
		good = infer_room(h, &out[i], d->examples);
	}
	good = good && (round > 0 || infer_prepare(h));
	h->run.examples = d->examples;
	h->data = d;
	d->seed = h->run.seed;
	for (int64_t first = 0; good && first < d->examples; first += h->program.batch)
		good = infer_batch(h, d, first, out, r->noutput);
	for (int i = 0; good && i < r->noutput; i++)
		good = infer_write(h, &out[i], round);
	for (int i = 0; i < r->noutput; i++) {
		free(out[i].at);
		out[i].at = NULL;
	}
	return good;
}

int
rt_infer(RtHost *h)
{
	RtRounds r = {0};
	Output *out;
	bool good = (h->program.graph[RT_G_INFER].present || rt_fail(&h->error, "the model has no output"))
	            && rt_rounds(&r, &h->opt, &h->error),
	     ended = false;

	out = rt_alloc(sizeof *out * (size_t)(r.noutput + 1));
	good = good && infer_outputs(h, &r, out);
	for (int64_t round = 0; good && !ended && (round < r.rounds || r.streams); round++) {
		RtData d = {0};
		bool end = false;

		good = infer_inputs(h, &r, round, &d, &end);
		ended = end && round > 0;
		if (end && round == 0)
			rt_fail(&h->error, "standard input is empty");
		good = ended || (good && infer_round(h, &r, &d, out, round));
		rt_data_free(&d);
	}
	free(out);
	rt_rounds_free(&r);
	return good ? 0 : rt_die(h);
}
