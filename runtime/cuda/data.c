/* data.c: data sets and orders on the device, and the memory that it shares with the host.
 *
 * A data set that stands in files and fits into free memory is copied once, in the inputs' own types. Any other is
 * staged: the host gathers the batches of a step into pinned memory, a stream of copies brings them up beside the steps
 * before, even and odd steps in turn. Either way the kernel loop_call puts a batch into the arena, or the addresses of
 * its examples. Orders are the host's shuffles, kept for the epoch and the next one. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

enum { DATA_PART = 32 << 20, DATA_ALIGN = 256, DATA_THREADS = 256, DATA_BLOCKS = 2048 };

static int64_t
align(int64_t bytes)
{
	return (bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
}

/* ---- sets */

static int
data_unit(int64_t a, int64_t b, int64_t c)
{
	int unit = 16;

	while ((a | b | c) % unit)
		unit /= 2;
	return unit;
}

/* Where loop_call finds the inputs of a graph that this set feeds. */
static bool
data_table(Cuda *c, DeviceSet *s, int graph)
{
	const RtRun *r = &c->h->run;
	const RtData *d = c->h->data;
	const RtGraph *g = &c->h->program.graph[graph];
	LoopInput in[RT_MAX_INPUTS] = {0};
	int64_t most = 1;

	for (int k = 0; k < c->h->program.ninput; k++) {
		if (g->input[k] < 0 || !d->bytes[k])
			continue;
		in[k] = (LoopInput){.data = (long long)(s->at + (CuPtr)s->offset[k]),
		                    .stride = d->bytes[k],
		                    .bytes = d->bytes[k],
		                    .offset = g->input[k]};
		in[k].unit = g->addressed >> k & 1 ? 0 : data_unit(in[k].stride, in[k].bytes, in[k].offset);
		int64_t threads = r->batch * (in[k].unit ? in[k].bytes / in[k].unit : 1);

		/* a last, smaller batch is the host's: an epoch must not pass before its memory is found missing */
		if (!in[k].unit && graph == RT_G_EVAL && r->examples % r->batch && !cuda_beside(c, k))
			return false;
		most = threads > most ? threads : most;
	}
	most = (most + DATA_THREADS - 1) / DATA_THREADS;
	s->blocks[graph] = most < DATA_BLOCKS ? (int)most : DATA_BLOCKS;
	return cuda_put(c, cuda_input_table(c, graph), in, (int64_t)sizeof *in * c->h->program.ninput);
}

static void
data_set_free(Cuda *c, DeviceSet *s)
{
	for (int i = 0; i < 2; i++) {
		if (s->copied[i])
			c->cu.cuEventDestroy(s->copied[i]);
		if (s->used[i])
			c->cu.cuEventDestroy(s->used[i]);
	}
	if (s->at)
		c->cu.cuMemFree(s->at);
	if (s->pinned)
		c->cu.cuMemFreeHost(s->pinned);
	memset(s, 0, sizeof *s);
}

static bool
data_resident(Cuda *c, DeviceSet *s)
{
	RtData *d = c->h->data;
	RtError *e = &c->h->error;
	uint8_t *part = rt_large(DATA_PART);
	bool good = part || rt_fail(e, "out of memory");

	for (int k = 0; k < c->h->program.ninput; k++) {
		int64_t step = d->bytes[k] && d->bytes[k] < DATA_PART ? DATA_PART / d->bytes[k] : 1;

		if (d->bytes[k] > DATA_PART)         /* an example larger than that */
			free(part), part = rt_large((size_t)d->bytes[k]),
			            good = good && (part || rt_fail(e, "out of memory"));
		for (int64_t i = 0; good && d->bytes[k] && i < d->examples; i += step) {
			int64_t n = d->examples - i < step ? d->examples - i : step;

			good = rt_data_copy(d, k, i, n, part, e) &&
			       cuda_put(c, s->at + (CuPtr)(s->offset[k] + i * d->bytes[k]), part, n * d->bytes[k]);
			rt_data_touch(d, n);
		}
	}
	free(part);
	return good || rt_context(e, "the data set to the device");
}

static bool
data_stages(Cuda *c, DeviceSet *s)
{
	RtHost *h = c->h;
	int64_t bytes = 0, batches = 2 * h->accumulate;

	for (int k = 0; k < h->program.ninput; k++) {
		s->offset[k] = bytes;
		bytes += align(batches * h->run.batch * h->data->bytes[k]);
	}
	s->staged = true;
	if (!c->told && !h->data->make)
		rt_progress_clear(h);
	if (!c->told && !h->data->make)
		fprintf(stderr, "note: the data set does not fit on the device beside the arena: batches are copied as "
		                "they are needed, a graph a step\n");
	c->told = true;
	if (!cuda_alloc(c, &s->at, bytes, "the batches of two steps"))
		return false;
	h->device_bytes += (size_t)bytes;
	if (!CUDA(c, cuMemHostAlloc, (void **)&s->pinned, (size_t)bytes, CU_PORTABLE))
		return rt_context(&h->error, "%.1f MiB of pinned memory for the batches of two steps",
		                  (double)bytes / 0x1p20);
	for (int i = 0; i < 2; i++)
		if (!CUDA(c, cuEventCreate, &s->copied[i], CU_NO_TIMING) ||
		    !CUDA(c, cuEventCreate, &s->used[i], CU_NO_TIMING))
			return false;
	return true;
}

/* Leaves room for the driver's own: graphs, another set's stages. */
static bool
data_new(Cuda *c, DeviceSet *s)
{
	const RtRun *r = &c->h->run;
	const RtData *d = c->h->data;
	size_t available = 0, total = 0, spare;
	int64_t bytes = 0;

	data_set_free(c, s);
	s->host = d;
	s->examples = r->examples;
	for (int k = 0; k < c->h->program.ninput; k++) {
		s->offset[k] = bytes;
		bytes += align(d->bytes[k] * r->examples);
	}
	if (!CUDA(c, cuMemGetInfo, &available, &total))
		return false;
	spare = available / 8 < (size_t)512 << 20 ? available / 8 : (size_t)512 << 20;
	if (d->make || d->readers || (size_t)bytes > available - spare)
		return data_stages(c, s);
	c->h->device_bytes += (size_t)bytes;
	return cuda_alloc(c, &s->at, bytes, "the data set") && data_resident(c, s);
}

bool
cuda_use(Cuda *c, DeviceSet **set)
{
	bool eval = c->h->mode == RT_M_EVAL;
	const RtRun *r = &c->h->run;
	DeviceSet *s = *set = &c->set[eval];

	if (s->host == c->h->data && s->examples == r->examples && s->at)
		return true;
	return data_new(c, s) && data_table(c, s, eval ? RT_G_EVAL : RT_G_TRAIN);
}

/* ---- staged batches */

/* Gathers the batches of a step as soon as the step before the last has used its half, and sends them up. */
bool
cuda_stage(Cuda *c, DeviceSet *s, int64_t step)
{
	RtHost *h = c->h;
	RtRun *r = &h->run;
	int half = (int)(step & 1);
	int64_t back = r->step, micro = r->micro, offset[RT_MAX_INPUTS];
	bool good =
	        CUDA(c, cuEventSynchronize, s->copied[half]) && CUDA(c, cuStreamWaitEvent, c->copy, s->used[half], 0);

	r->step = step;
	/* of several processes each has its own shards of a training batch */
	int64_t lo = h->mode == RT_M_TRAIN && h->ranks > 1 ? r->shard : 0,
	        hi = h->mode == RT_M_TRAIN && h->ranks > 1 ? r->shard_end : h->accumulate;

	for (r->micro = lo; good && r->micro < hi; r->micro++) {
		int64_t batch = (half * h->accumulate + r->micro) * r->batch;

		for (int k = 0; k < h->program.ninput; k++)
			offset[k] = s->offset[k] + batch * h->data->bytes[k];
		good = rt_gather(r, s->pinned, offset, h->program.ninput);
		for (int k = 0; good && k < h->program.ninput; k++)
			if (h->data->bytes[k])
				good = CUDA(c, cuMemcpyHtoDAsync, s->at + (CuPtr)offset[k], s->pinned + offset[k],
				            (size_t)(r->n * h->data->bytes[k]), c->copy);
	}
	r->step = back;
	r->micro = micro;
	return good && CUDA(c, cuEventRecord, s->copied[half], c->copy) &&
	       CUDA(c, cuStreamWaitEvent, c->stream, s->copied[half], 0);
}

bool
cuda_staged(Cuda *c, DeviceSet *s, int64_t step)
{
	return CUDA(c, cuEventRecord, s->used[step & 1], c->stream);
}

/* ---- orders */

/* The order of an epoch on its way up; with wait: there. The shuffle's memory is used again for the epoch after it,
 * when this one has been waited for. */
bool
cuda_order(Cuda *c, int64_t epoch, bool wait)
{
	RtHost *h = c->h;
	RtRun *r = &h->run;
	int64_t back = r->epoch, bytes = (int64_t)sizeof *h->order * r->examples;
	int half = (int)(epoch & 1);

	if (!r->order)
		return true;
	if (c->order_epoch[half] == epoch)
		return !wait || CUDA(c, cuStreamSynchronize, c->copy);
	for (int i = 0; i < 2; i++) {
		if (c->order_room >= bytes && c->order[i])
			continue;
		if (c->order[i])
			c->cu.cuMemFree(c->order[i]);
		c->order[i] = 0;
		c->order_epoch[i] = -1;
		if (!cuda_alloc(c, &c->order[i], bytes, "the order of an epoch"))
			return false;
	}
	c->order_room = c->order_room > bytes ? c->order_room : bytes;
	r->epoch = epoch;
	rt_shuffle(r);
	r->epoch = back;
	if (!CUDA(c, cuMemcpyHtoDAsync, c->order[half], h->order, (size_t)bytes, c->copy) ||
	    (wait && !CUDA(c, cuStreamSynchronize, c->copy)))
		return rt_context(&h->error, "the order of epoch %lld to the device", (long long)epoch + 1);
	c->order_epoch[half] = epoch;
	return true;
}

/* ---- what both sides see: head, mail and records; and the rates of a launch */

bool
cuda_room(Cuda *c, int64_t steps)
{
	int64_t capacity = 1024;

	while (capacity < steps)
		capacity *= 2;
	if (capacity <= c->capacity)
		return true;
	if (c->mapped)
		c->cu.cuMemFreeHost(c->mapped);
	if (c->rates)
		c->cu.cuMemFree(c->rates);
	c->mapped = NULL;
	c->rates = 0;
	c->capacity = c->seen = 0;
	if (!CUDA(c, cuMemHostAlloc, (void **)&c->mapped, (size_t)(CUDA_RECORDS + 8 * capacity * c->words),
	          CU_PORTABLE | CU_MAPPED) ||
	    !CUDA(c, cuMemHostGetDevicePointer, &c->mapped_at, c->mapped, 0) ||
	    !cuda_alloc(c, &c->rates, 8 * capacity, "the rates of a launch"))
		return rt_context(&c->h->error, "records of %lld steps", (long long)steps);
	memset(c->mapped, 0, (size_t)(CUDA_RECORDS + 8 * capacity * c->words));
	c->capacity = capacity;
	return true;
}

void
cuda_data_free(Cuda *c)
{
	for (int i = 0; i < 2; i++) {
		data_set_free(c, &c->set[i]);
		if (c->order[i])
			c->cu.cuMemFree(c->order[i]);
	}
	if (c->mapped)
		c->cu.cuMemFreeHost(c->mapped);
	if (c->rates)
		c->cu.cuMemFree(c->rates);
}
