/* infer.c: the command infer: outputs of .npy inputs.
 *
 * In: any number of examples. They run in batches, the last one smaller; the outputs of the batches stand one after another
 * along the first axis. Inputs that no output depends on may be left out, and are checked and unused where they are given. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

typedef struct Output { const RtResult *r; const char *file; int dtype; uint8_t *at; size_t used, room; int64_t shape[RT_MAX_RANK]; int64_t rows; } Output;

static bool
infer_input(RtHost *h, const RtNamed *named, RtData *d, RtError *e)
{
	const RtProgram *p = &h->program;
	const char *names[RT_MAX_INPUTS], *near;
	RtFile f;
	RtNpy a;
	int64_t row = 1, n;
	bool good;
	int k = 0;

	while (k < p->ninput && strcmp(p->input[k].t.name, named->name) != 0)
		k++;
	if (k == p->ninput) {
		for (int i = 0; i < p->ninput; i++)
			names[i] = p->input[i].t.name;
		near = rt_suggest(named->name, names, p->ninput);
		return rt_fail(e, "the model has no input %s%s%s%s", named->name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	}
	if (d->at[k])
		return rt_fail(e, "input %s is given twice", named->name);
	if (!rt_file_read(&f, named->file, e))
		return rt_context(e, "input %s", named->name);
	good = rt_npy_header(&a, f.at, f.n, e) || rt_context(e, "%s", f.path);
	for (int i = 1; good && i < a.rank; i++)
		row *= a.shape[i];
	if (good && (a.rank < 1 || a.shape[0] % p->input[k].rows || row * p->input[k].rows != p->input[k].example))
		good = rt_fail(e, "%s: %lld elements a row do not make input %s, which has %lld an example", f.path, (long long)row, named->name,
		               (long long)p->input[k].example);
	n = good ? a.shape[0] / p->input[k].rows : 0;
	if (good && d->examples >= 0 && n != d->examples)
		good = rt_fail(e, "%s holds %lld examples, the inputs before it %lld", f.path, (long long)n, (long long)d->examples);
	good = good && rt_data_room(p, d, k, n, e) && rt_data_put(p, d, k, 0, a.dtype, f.at + a.data, a.swap, n, f.path, e);
	d->examples = n;
	rt_file_free(&f);
	return good;
}

static bool
infer_inputs(RtHost *h, RtData *d)
{
	const RtProgram *p = &h->program;

	d->what = "input";
	d->examples = -1;
	for (int i = 0; i < h->opt.ninput; i++)
		if (!infer_input(h, &h->opt.input[i], d, &h->error))
			return false;
	for (int k = 0; k < p->ninput; k++)
		if (p->input[k].infer && !d->at[k])
			return rt_fail(&h->error, "input %s is missing: give --input %s=FILE.npy", p->input[k].t.name, p->input[k].t.name);
	if (d->examples < 0)                     /* the outputs depend on parameters alone */
		d->examples = p->batch;
	if (d->examples == 0)
		return rt_fail(&h->error, "the inputs hold no examples");
	return rt_batches_fit(p, d->examples, "examples", &h->error);
}

static bool
infer_outputs(RtHost *h, Output *out)
{
	const RtGraph *g = &h->program.graph[RT_G_INFER];

	for (int i = 0; i < h->opt.noutput; i++) {
		const char **names = rt_alloc(sizeof *names * (size_t)(g->nresult + 1)), *near;
		int n = 0;

		for (int k = 0; k < g->nresult; k++) {
			if (g->result[k].kind != RT_OUTPUT)
				continue;
			names[n++] = g->result[k].t.name;
			if (strcmp(g->result[k].t.name, h->opt.output[i].name) == 0)
				out[i].r = &g->result[k];
		}
		near = rt_suggest(h->opt.output[i].name, names, n);
		free(names);
		if (!out[i].r)
			return rt_fail(&h->error, "the model has no output %s%s%s%s", h->opt.output[i].name, near ? "; did you mean " : n ? "" : ": it has none at all",
			               near ? near : "", near ? "?" : "");
		out[i].file = h->opt.output[i].file;
		out[i].dtype = out[i].r->t.dtype == RT_F16 || out[i].r->t.dtype == RT_BF16 ? RT_F32 : out[i].r->t.dtype;
	}
	return true;
}

static bool
infer_append(RtHost *h, Output *o)
{
	const RtTensor *t = &o->r->t;
	int64_t count = rt_tensor_at(t, h->run.n, o->shape), bad;
	size_t bytes = (size_t)count * (size_t)rt_dtype[o->dtype].bytes;

	if (o->room - o->used < bytes) {
		size_t room = o->room * 2 > o->used + bytes ? o->room * 2 : o->used + bytes;
		uint8_t *more = realloc(o->at, room);

		if (!more)
			return rt_fail(&h->error, "out of memory for output %s (%zu bytes)", t->name, room);
		o->at = more;
		o->room = room;
	}
	if (!rt_host_fetch(h, t->offset, count * rt_dtype[t->dtype].bytes))
		return false;
	if (bytes)
		rt_dtype_convert(o->dtype, o->at + o->used, t->dtype, h->run.arena + t->offset, count, false, &bad);
	o->used += bytes;
	o->rows += t->rank ? o->shape[0] : 1;
	return true;
}

static bool
infer_batch(RtHost *h, const RtData *d, int64_t first, Output *out)
{
	const RtProgram *p = &h->program;
	const RtGraph *g = &p->graph[RT_G_INFER];
	int64_t n = d->examples - first < p->batch ? d->examples - first : p->batch, status;

	h->run.n = n;
	h->run.step = first / p->batch;
	h->run.until = h->run.step + 1;
	for (int k = 0; k < p->ninput; k++)
		if (g->input[k] >= 0 && d->at[k])
			memcpy(h->run.arena + g->input[k], d->at[k] + first * d->stride[k], (size_t)(n * d->bytes[k]));
	h->fresh = true;
	status = rt_host_enter(h, h->image->infer, &p->infer, h->program.sink == 0);
	if (status == RT_FAULT) {
		rt_host_fault(h);
		return false;
	}
	if (status == RT_ERROR)
		return false;
	if (status != RT_OK && status != RT_STOPPED)
		return rt_fail(&h->error, "the program returned status %lld", (long long)status);
	for (int i = 0; i < h->opt.noutput; i++)
		if (!infer_append(h, &out[i]))
			return false;
	return true;
}

static bool
infer_write(RtHost *h, Output *o, int64_t batches)
{
	int rank = o->r->t.rank;

	if (rank == 0 && batches > 1)            /* a number a batch */
		rank = 1;
	o->shape[0] = o->rows;
	return rt_npy_write(o->file, o->dtype, rank, o->shape, o->at, o->used, &h->error);
}

int
rt_infer(RtHost *h)
{
	Output out[RT_MAX_FILES] = {0};
	RtData d = {0};
	int64_t batches = 0;
	bool good = h->program.graph[RT_G_INFER].present || rt_fail(&h->error, "the model has no output");

	good = good && infer_outputs(h, out) && infer_inputs(h, &d) && rt_host_memory(h, 0) && rt_host_init_state(h)
	       && rt_checkpoint_weights(h, h->opt.weights, false);
	h->run.examples = d.examples;
	h->graph = &h->program.graph[RT_G_INFER];
	for (int64_t first = 0; good && first < d.examples; first += h->program.batch, batches++)
		good = infer_batch(h, &d, first, out);
	for (int i = 0; good && i < h->opt.noutput; i++)
		good = infer_write(h, &out[i], batches);
	for (int i = 0; i < h->opt.noutput; i++)
		free(out[i].at);
	rt_data_free(&h->program, &d);
	return good ? 0 : rt_die(h);
}
