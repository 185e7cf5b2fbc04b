/* data_tokens.c: text as byte ids, and synthetic data.
 *
 * tokens: each file is cut into disjoint windows of length + 1 bytes, a shorter rest dropped; the first input gets a
 * window's first `length` bytes, the second its last `length`. synthetic: reproducible numbers of the inputs' shapes
 * from Philox streams "synthetic.NAME": floats uniform in [0, 1), bytes 0..255, ids and labels below the model's
 * limit. */
#include "host.h"
#include "philox.h"

#include <stdlib.h>
#include <string.h>

static bool
tokens_file(RtData *d, const char *path, RtError *e)
{
	int64_t length = d->p->reader.length;
	RtFile *f = rt_data_file(d, path, e);

	if (!f)
		return false;
	if ((int64_t)f->n <= length)
		return rt_fail(e, "%s: %zu bytes are shorter than one window of %lld", path, f->n,
		               (long long)length + 1);
	for (int k = 0; k < d->p->ninput; k++) {
		RtPart part = {.at = f->at + k,
		               .dtype = RT_U8,
		               .examples = (int64_t)f->n / (length + 1),
		               .stride = length + 1,
		               .file = f->path};

		if (!rt_data_add(d, k, &part, f, e))
			return false;
	}
	d->examples += (int64_t)f->n / (length + 1);
	return true;
}

bool
rt_read_tokens(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	const RtProgram *p = d->p;
	int64_t length = p->reader.length;
	bool good = true;

	if (length < 1 || p->ninput > 2)
		return rt_fail(
		        e, "the reader tokens gives two inputs, ids and targets of at least 1 byte; the model has %d",
		        p->ninput);
	for (int k = 0; k < p->ninput; k++)
		if (p->input[k].example != length)
			return rt_fail(e, "input %s has %lld elements an example, the reader tokens has length = %lld",
			               p->input[k].t.name, (long long)p->input[k].example, (long long)length);
	for (int i = 0; good && i < npattern; i++) {
		RtPaths paths = {0};

		good = rt_paths_find(&paths, folder, pattern[i], e);
		for (int j = 0; good && j < paths.n; j++)
			good = tokens_file(d, paths.at[j], e);
		rt_paths_free(&paths);
	}
	return good;
}

/* Elements of one input, as they stand in every run. */
static void
synthetic_fill(const RtInput *in, int64_t seed, int64_t n, uint8_t *out)
{
	int bytes = rt_dtype[in->t.dtype].bytes;
	uint32_t stream, w[4] = {0};
	char name[256];

	snprintf(name, sizeof name, "synthetic.%s", in->t.name);
	stream = philox_stream(name);
	for (int64_t j = 0; j < n; j++) {
		uint32_t number;

		if ((j & 3) == 0)
			philox_group((uint64_t)seed, stream, 0, (uint64_t)j >> 2, w);
		number = w[j & 3];
		rt_dtype_write(in->t.dtype, out + j * bytes,
		               in->limit > 0                       ? (double)(number % (uint64_t)in->limit)
		               : rt_dtype[in->t.dtype].kind == 'f' ? philox_unit(number)
		               : in->t.dtype == RT_U8              ? (double)(number & 255)
		                                                   : (double)(number & 1));
	}
}

bool
rt_data_synthetic(const RtProgram *p, int64_t seed, int64_t examples, RtData *d, RtError *e)
{
	*d = (RtData){.p = p, .what = "synthetic", .train = true};
	d->examples = examples < p->batch * p->accumulate ? p->batch * p->accumulate : examples;
	d->file = rt_alloc(sizeof *d->file * (size_t)(p->ninput + 1));
	for (int k = 0; k < p->ninput; k++) {
		const RtInput *in = &p->input[k];
		RtFile *f = rt_alloc(sizeof *f);
		RtPart part = {.dtype = in->t.dtype,
		               .examples = d->examples,
		               .stride = in->example * rt_dtype[in->t.dtype].bytes,
		               .file = "synthetic"};
		int64_t bytes;

		d->file[d->nfile++] = f;
		if (__builtin_mul_overflow(part.stride, d->examples, &bytes) || !(f->at = rt_large((size_t)bytes)))
			return rt_fail(e, "out of memory for %lld synthetic examples of input %s",
			               (long long)d->examples, in->t.name);
		f->n = (size_t)bytes;
		part.at = f->at;
		synthetic_fill(in, seed, d->examples * in->example, f->at);
		if (!rt_data_add(d, k, &part, NULL, e))
			return false;
	}
	return true;
}
