/* data_tokens.c: text as byte ids, and synthetic data.
 *
 * tokens: each file is cut into disjoint windows of length + 1 bytes, a shorter rest dropped; the first input gets a window's
 * first `length` bytes, the second its last `length`. synthetic: reproducible numbers of the inputs' shapes from Philox
 * streams "synthetic.NAME": floats uniform in [0, 1), bytes 0..255, ids and labels below the model's limit. */
#include "host.h"
#include "philox.h"

#include <stdlib.h>
#include <string.h>

static bool
tokens_append(const RtProgram *p, RtData *d, const RtFile *f, RtError *e)
{
	int64_t length = p->reader.length, n = (int64_t)f->n / (length + 1);

	for (int64_t i = 0; i < n; i++)
		for (int k = 0; k < p->ninput; k++)
			if (!rt_data_put(p, d, k, d->examples + i, RT_U8, f->at + i * (length + 1) + k, false, 1, f->path, e))
				return rt_context(e, "window %lld", (long long)i);
	d->examples += n;
	return true;
}

bool
rt_read_tokens(const RtProgram *p, const char *folder, const char **pattern, int npattern, RtData *d, RtError *e)
{
	int64_t length = p->reader.length, total = 0;
	bool good = true;

	if (length < 1 || p->ninput > 2)
		return rt_fail(e, "the reader tokens gives two inputs, ids and targets of at least 1 byte; the model has %d", p->ninput);
	for (int k = 0; k < p->ninput; k++)
		if (p->input[k].example != length)
			return rt_fail(e, "input %s has %lld elements an example, the reader tokens has length = %lld", p->input[k].t.name,
			               (long long)p->input[k].example, (long long)length);
	for (int pass = 0; good && pass < 2; pass++) {  /* sizes first, then the bytes */
		for (int k = 0; good && pass && k < p->ninput; k++)
			good = rt_data_room(p, d, k, total, e);
		for (int i = 0; good && i < npattern; i++) {
			RtPaths paths = {0};

			good = rt_paths_find(&paths, folder, pattern[i], e);
			for (int j = 0; good && j < paths.n; j++) {
				RtFile f;

				good = rt_file_read(&f, paths.at[j], e);
				if (good && (int64_t)f.n <= length)
					good = rt_fail(e, "%s: %zu bytes are shorter than one window of %lld", paths.at[j], f.n, (long long)length + 1);
				total += good && !pass ? (int64_t)f.n / (length + 1) : 0;
				good = good && (!pass || tokens_append(p, d, &f, e));
				if (f.path)
					rt_file_free(&f);
			}
		}
	}
	return good;
}

bool
rt_data_synthetic(const RtProgram *p, int64_t seed, int64_t examples, RtData *d, RtError *e)
{
	d->examples = examples < p->batch * p->accumulate ? p->batch * p->accumulate : examples;
	for (int k = 0; k < p->ninput; k++) {
		const RtInput *in = &p->input[k];
		int bytes = rt_dtype[in->t.dtype].bytes;
		uint32_t stream, w[4] = {0};
		char name[256];

		if (!rt_data_room(p, d, k, d->examples, e))
			return false;
		snprintf(name, sizeof name, "synthetic.%s", in->t.name);
		stream = philox_stream(name);
		for (int64_t j = 0; j < d->examples * in->example; j++) {
			uint32_t number;

			if ((j & 3) == 0)
				philox_group((uint64_t)seed, stream, 0, (uint64_t)j >> 2, w);
			number = w[j & 3];
			rt_dtype_write(in->t.dtype, d->at[k] + j * bytes,
			               in->limit > 0 ? (double)(number % (uint64_t)in->limit) : rt_dtype[in->t.dtype].kind == 'f' ? philox_unit(number)
			               : in->t.dtype == RT_U8 ? (double)(number & 255) : (double)(number & 1));
		}
	}
	return true;
}
