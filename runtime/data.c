/* data.c: data sets: where their examples stand, and how they come into the inputs' own types.
 *
 * In: the descriptor's reader, --data.   Out: RtData. Readers (data_*.c) open one kind of file each. Those whose
 * examples stand in files as they are name parts of these files, which are mapped: labels and numbers that might not
 * fit are checked before the first step, elements are converted when a batch is gathered, and no set is ever held in
 * memory. The others give a function that makes an example.
 * Pages of mapped files are given back when they are many, so that a set may be larger than the machine's memory. */
#define _GNU_SOURCE
#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	DATA_LIMIT = 256 << 20,      /* bytes of mapped pages that may stay */
	DATA_AROUND = 64 << 10,      /* bytes that the system maps around a page that is touched, or more */
	DATA_LOOK = DATA_LIMIT / 32, /* bytes by that count after which the system is asked what is mapped */
	DATA_CHECK = 64 << 20,       /* bytes that are checked at a time */
};

/* ---- memory of a thread */

void *
rt_scratch(RtScratch *s, int which, size_t bytes)
{
	if (bytes <= s->room[which] && s->at[which])
		return s->at[which];
	free(s->at[which]);
	s->room[which] = bytes + bytes / 4 + 64;
	s->at[which] = malloc(s->room[which]);
	if (!s->at[which])
		s->room[which] = 0;
	return s->at[which];
}

void
rt_scratch_free(RtScratch *s)
{
	for (int i = 0; i < RT_SCRATCH; i++)
		free(s->at[i]);
	memset(s, 0, sizeof *s);
}

/* ---- parts of files */

static RtFile *
data_keep(RtData *d, RtFile *f, const char *path, RtError *e)
{
	RtFile **more;

	more = realloc(d->file, sizeof *more * (size_t)(d->nfile + 1));
	if (!more) {
		rt_file_free(f);
		free(f);
		rt_fail(e, "%s: out of memory", path);
		return NULL;
	}
	d->file = more;
	d->file[d->nfile++] = f;
	d->mapped += f->mapped ? (int64_t)f->n : 0;
	return f;
}

RtFile *
rt_data_file(RtData *d, const char *path, RtError *e)
{
	RtFile *f = rt_alloc(sizeof *f);

	if (rt_file_map(f, path, e))
		return data_keep(d, f, path, e);
	free(f);
	return NULL;
}

RtFile *
rt_data_stream(RtData *d, FILE *from, const char *name, bool *end, RtError *e)
{
	RtFile *f = rt_alloc(sizeof *f);
	bool good = rt_npy_stream(from, &f->at, &f->n, end, e);

	if (good && !*end) {
		f->path = rt_printf("%s", name);
		return data_keep(d, f, name, e);
	}
	free(f->at);
	free(f);
	return NULL;
}

static double
data_element(const RtPart *p, const uint8_t *src)
{
	int bytes = rt_dtype[p->dtype].bytes;
	uint8_t element[8];

	for (int b = 0; b < bytes; b++)
		element[b] = src[p->swap ? bytes - 1 - b : b];
	return rt_dtype_read(p->dtype, element);
}

/* The first element of examples [from, to) that the input's limit forbids, that is no whole number where ids are wanted
 * or that its type cannot hold; -1. *x: the element. */
static int64_t
data_bad(const RtInput *in, const RtPart *p, int64_t from, int64_t to, double *x)
{
	bool integers = rt_dtype[p->dtype].kind != 'f' && rt_dtype[in->t.dtype].kind == 'i' && in->t.dtype != RT_I64;
	double low = integers ? rt_dtype[in->t.dtype].low : -HUGE_VAL,
	       high = integers ? rt_dtype[in->t.dtype].high : HUGE_VAL;
	int bytes = rt_dtype[p->dtype].bytes;

	for (int64_t i = from; i < to; i++) {
		const uint8_t *src = p->at + i * p->stride;

		for (int64_t j = 0; j < in->example; j++, src += bytes) {
			double v = *x = p->swap ? data_element(p, src) : rt_dtype_read(p->dtype, src);

			if (in->limit > 0 && !(v == floor(v) && ((v > -1 && v < (double)in->limit) ||
			                                         (in->has_ignore && v == (double)in->ignore))))
				return i * in->example + j;
			if (v < low || v > high)
				return i * in->example + j;
		}
	}
	return -1;
}

static bool
data_wrong(const RtInput *in, const RtPart *p, int64_t j, double x, RtError *e)
{
	long long example = (long long)(j / in->example);

	if (in->limit > 0 && x != floor(x))
		return rt_fail(
		        e,
		        "%s: %.17g is no whole number, and input %s is %s, a label or id (element %lld, example %lld)",
		        p->file, x, in->t.name, rt_dtype[in->t.dtype].name, (long long)j, example);
	if (in->limit > 0 && !(x > -1 && x < (double)in->limit) && !(in->has_ignore && x == (double)in->ignore))
		return rt_fail(e,
		               "%s: %s %.17g is out of range 0..%lld (element %lld, example %lld): the model has "
		               "%lld classes or rows for it",
		               p->file, in->t.name, x, (long long)in->limit - 1, (long long)j, example,
		               (long long)in->limit);
	return rt_fail(e, "%s: %.17g does not fit in %s, the type of input %s (element %lld)", p->file, x,
	               rt_dtype[in->t.dtype].name, in->t.name, (long long)j);
}

/* Can an element of the file's type be wrong at all? */
static bool
data_doubtful(const RtInput *in, int dtype)
{
	const RtDTypeInfo *from = &rt_dtype[dtype], *to = &rt_dtype[in->t.dtype];
	bool counts = from->kind != 'f' && from->low >= 0;

	if (in->limit > 0 && !(counts && (double)in->limit > from->high))
		return true;
	return from->kind != 'f' && to->kind == 'i' && (from->low < to->low || from->high > to->high);
}

static bool
data_check(const RtInput *in, const RtPart *p, const RtFile *f, RtError *e)
{
	int64_t step = p->stride > 0 && p->stride < DATA_CHECK ? DATA_CHECK / p->stride : 1;

	for (int64_t from = 0; from < p->examples; from += step) {
		double x = 0;
		int64_t to = from + step < p->examples ? from + step : p->examples, bad = data_bad(in, p, from, to, &x);

		if (bad >= 0)
			return data_wrong(in, p, bad, x, e);
		if (f)
			rt_file_forget(f, (size_t)(p->at + from * p->stride - f->at),
			               (size_t)(p->at + to * p->stride - f->at));
	}
	return true;
}

bool
rt_data_add(RtData *d, int k, const RtPart *part, const RtFile *f, RtError *e)
{
	const RtInput *in = &d->p->input[k];
	RtColumn *c = &d->column[k];
	RtPart *more;
	int64_t first = c->n ? c->part[c->n - 1].first + c->part[c->n - 1].examples : 0;

	if (part->examples <= 0)
		return true;
	d->bytes[k] = in->example * rt_dtype[in->t.dtype].bytes;
	if (d->bytes[k] > 0 && first + part->examples > ((int64_t)1 << 50) / d->bytes[k])
		return rt_fail(e, "input %s: %lld examples are too many", in->t.name,
		               (long long)(first + part->examples));
	if (data_doubtful(in, part->dtype) && !data_check(in, part, f, e))
		return false;
	if (c->n == c->room) {
		c->room = c->room ? 2 * c->room : 4;
		more = realloc(c->part, sizeof *more * (size_t)c->room);
		if (!more)
			return rt_fail(e, "out of memory for the parts of input %s", in->t.name);
		c->part = more;
	}
	c->part[c->n] = *part;
	c->part[c->n++].first = first;
	return true;
}

/* ---- examples */

/* The part that holds an example. */
static const RtPart *
data_part(const RtColumn *c, int64_t example)
{
	int low = 0, high = c->n;

	while (high - low > 1) {
		int mid = (low + high) / 2;

		*(c->part[mid].first <= example ? &low : &high) = mid;
	}
	return &c->part[low];
}

bool
rt_data_copy(const RtData *d, int k, int64_t example, int64_t n, uint8_t *out, RtError *e)
{
	const RtInput *in = &d->p->input[k];

	while (n > 0) {
		const RtPart *p = data_part(&d->column[k], example);
		int64_t from = example - p->first, run = p->examples - from < n ? p->examples - from : n, bad;
		bool joined = p->stride == in->example * rt_dtype[p->dtype].bytes;

		for (int64_t i = 0; i < run; i += joined ? run : 1)
			if (!rt_dtype_convert(in->t.dtype, out + i * d->bytes[k], p->dtype,
			                      p->at + (from + i) * p->stride, (joined ? run : 1) * in->example, p->swap,
			                      &bad))
				return rt_fail(e, "%s: changed while it was in use: an element does not fit in %s",
				               p->file, rt_dtype[in->t.dtype].name);
		out += run * d->bytes[k];
		example += run;
		n -= run;
	}
	return true;
}

bool
rt_data_example(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e)
{
	if (d->make)
		return d->make(d, s, epoch, example, out, e);
	for (int k = 0; k < d->p->ninput; k++)
		if (out[k] && d->bytes[k] && !rt_data_copy(d, k, example, 1, out[k], e))
			return false;
	return true;
}

/* Bytes of files that stand in this process's memory; -1: the system does not say. */
static int64_t
data_resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long long all, resident, shared = -1;

	if (f && fscanf(f, "%lld %lld %lld", &all, &resident, &shared) != 3)
		shared = -1;
	if (f)
		fclose(f);
	return shared < 0 ? -1 : (int64_t)shared * sysconf(_SC_PAGESIZE);
}

void
rt_data_touch(RtData *d, int64_t examples)
{
	int64_t bytes = 0, count, now;

	if (d->mapped <= DATA_LIMIT)
		return;
	for (int k = 0; k < d->p->ninput; k++)
		bytes += d->column[k].n ? d->column[k].part->stride + DATA_AROUND
		         : d->bytes[k]  ? d->bytes[k] + DATA_AROUND
		                        : 0;
	bytes *= examples;
	count = __atomic_add_fetch(&d->touched, bytes, __ATOMIC_RELAXED);
	if (count / DATA_LOOK == (count - bytes) / DATA_LOOK)
		return;
	/* newer kernels map up to 2 MiB around a page: the count is too low then */
	now = d->others < 0 ? -1 : data_resident();
	if (now < 0 ? count < DATA_LIMIT : now - d->others < DATA_LIMIT)
		return;
	__atomic_store_n(&d->touched, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < d->nfile; i++)
		rt_file_forget(d->file[i], 0, d->file[i]->n);
}

void
rt_data_free(RtData *d)
{
	if (d->ring)
		rt_ring_free(d->ring);
	for (int k = 0; k < RT_MAX_INPUTS; k++)
		free(d->column[k].part);
	for (int i = 0; i < d->nfile; i++) {
		rt_file_free(d->file[i]);
		free(d->file[i]);
	}
	free(d->file);
	if (d->maker_free)
		d->maker_free(d->maker);
	memset(d, 0, sizeof *d);
}

/* ---- sets */

static const struct { const char *kind; RtReadFn *read;
} data_readers[] = {
#define READER(name, params) {#name, rt_read_##name},
#define IMAGE_READER READER
#include "readers.def"
};

/* Files that memory will not keep are read by threads of their own, beside the steps; and whatever --readers says so
 * of. */
static int
data_threads(const RtData *d, const RtOptions *o)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	if (o->readers >= 0 && !(d->make && o->readers == 0))
		return (int)o->readers;
	return d->make || (pages > 0 && (double)d->mapped > (double)pages * (double)page / 2) ? rt_cpus() : 0;
}

static bool
data_read(RtData *d, const RtOptions *o, RtError *e)
{
	const RtReader *r = &d->p->reader;
	const char *folder = o->data ? o->data : ".";

	for (int i = 0; i < RT_COUNT(data_readers); i++) {
		if (strcmp(data_readers[i].kind, r->kind) != 0)
			continue;
		if (!data_readers[i].read)
			return rt_fail(e, "the reader %s is not linked into this program", r->kind);
		if (!(d->train ? r->ntrain : r->ntest))
			return rt_fail(e, "the reader %s names no %s files", r->kind, d->what);
		if (!data_readers[i].read(d, folder, d->train ? r->train : r->test, d->train ? r->ntrain : r->ntest, e))
			return rt_context(e, "%s data", d->what);
		return d->examples > 0 || rt_fail(e, "%s data: there are no examples in the files", d->what);
	}
	return rt_fail(e, "there is no reader %s", r->kind);
}

bool
rt_data_load(const RtProgram *p, const RtOptions *o, bool train, RtData *d, RtError *e)
{
	const RtReader *r = &p->reader;
	int64_t seed = o->has_seed ? o->seed : p->seed;
	bool good;

	if (o->synthetic || strcmp(r->kind, "synthetic") == 0) {
		good = rt_data_synthetic(p, seed + (train ? 0 : 1), r->examples, d, e);
	} else {
		*d = (RtData){.p = p, .what = train ? "training" : "test", .train = train, .seed = seed,
		               .others = data_resident()};
		good = strcmp(r->kind, "none") == 0
		               ? rt_fail(e, "the model has no data block; add one, or use --synthetic")
		               : data_read(d, o, e);
	}
	if (good && train && o->words)
		good = d->words ? d->words(d, o->words, e) || rt_context(e, "--words")
		       : rt_fail(e, "--words writes the vocabulary of the reader skipgram, and the set has another");
	if (good)
		d->readers = data_threads(d, o);
	else
		rt_data_free(d);
	return good;
}
