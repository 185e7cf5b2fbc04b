/* data.c: data sets, resident in memory in the inputs' own types before training starts.
 *
 * In: the descriptor's reader, --data.   Out: RtData: every example of every input, checked and converted.
 * Readers (data_*.c) parse one kind of file each and hand elements to rt_data_put, which checks labels against the model's
 * limit, converts, and names file and element in its errors. Everything is read and checked before the first step. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files */

static bool
data_read_fd(RtFile *f, int fd, RtError *e)
{
	struct stat st;
	size_t room;

	if (fstat(fd, &st) != 0)
		return rt_fail(e, "%s: %s", f->path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return rt_fail(e, "%s: is a folder", f->path);
	room = (size_t)st.st_size + 1;           /* one more: the end shows without growing */
	f->at = rt_large(room);
	while (f->at) {
		ssize_t k;

		if (f->n == room) {
			uint8_t *more = realloc(f->at, room * 2);

			if (!more)
				break;
			f->at = more;
			room *= 2;
		}
		k = read(fd, f->at + f->n, room - f->n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return rt_fail(e, "%s: %s", f->path, strerror(errno));
		if (k == 0)
			return true;
		f->n += (size_t)k;
	}
	return rt_fail(e, "%s: out of memory (%zu bytes)", f->path, room);
}

static bool
data_gunzip(RtFile *f, RtError *e)
{
	uint8_t *out = NULL;
	size_t n = 0;
	char why[128];

	if (f->n < 2 || f->at[0] != 0x1f || f->at[1] != 0x8b)
		return true;
	if (!rt_gzip_read)
		return rt_fail(e, "%s: is compressed with gzip, which this executable was built without; unpack it with gunzip", f->path);
	if (!rt_gzip_read(f->at, f->n, &out, &n, why, sizeof why))
		return rt_fail(e, "%s: gzip: %s", f->path, why);
	free(f->at);
	f->at = out;
	f->n = n;
	return true;
}

bool
rt_file_read(RtFile *f, const char *path, RtError *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool good;

	memset(f, 0, sizeof *f);
	if (fd < 0)
		return rt_fail(e, "%s: %s", path, strerror(errno));
	f->path = rt_printf("%s", path);
	good = data_read_fd(f, fd, e) && data_gunzip(f, e);
	close(fd);
	if (!good)
		rt_file_free(f);
	return good;
}

void
rt_file_free(RtFile *f)
{
	free(f->path);
	free(f->at);
	memset(f, 0, sizeof *f);
}

bool
rt_paths_find(RtPaths *p, const char *folder, const char *pattern, RtError *e)
{
	char *full = rt_alloc(2 * strlen(folder) + strlen(pattern) + 2), *out = full;
	glob_t g = {0};
	int bad;

	p->n = 0;
	for (const char *c = pattern[0] == '/' ? "" : folder; *c; c++) { /* the folder is a name, not a pattern */
		if (strchr("*?[]\\", *c))
			*out++ = '\\';
		*out++ = *c;
	}
	if (pattern[0] != '/')
		*out++ = '/';
	strcpy(out, pattern);
	bad = glob(full, 0, NULL, &g);
	free(full);
	if (bad == GLOB_NOMATCH || (!bad && g.gl_pathc == 0)) {
		struct stat st;

		globfree(&g);
		if (stat(folder, &st) != 0)
			return rt_fail(e, "--data %s: %s", folder, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			return rt_fail(e, "--data %s: is a file; --data names the folder that holds %s", folder, pattern);
		return rt_fail(e, "no file matches %s in %s; --data names the folder", pattern, folder);
	}
	if (bad)
		return rt_fail(e, "%s in %s: %s", pattern, folder, bad == GLOB_NOSPACE ? "out of memory" : strerror(errno));
	p->at = rt_alloc(sizeof *p->at * g.gl_pathc);
	for (size_t i = 0; i < g.gl_pathc; i++)
		p->at[p->n++] = rt_printf("%s", g.gl_pathv[i]);
	globfree(&g);
	return true;
}

/* ---- sets */

bool
rt_data_room(const RtProgram *p, RtData *d, int k, int64_t examples, RtError *e)
{
	const RtInput *in = &p->input[k];
	int64_t bytes;

	d->bytes[k] = d->stride[k] = in->example * rt_dtype[in->t.dtype].bytes;
	if (__builtin_mul_overflow(d->bytes[k], examples, &bytes) || bytes > ((int64_t)1 << 50))
		return rt_fail(e, "input %s: %lld examples are too many", in->t.name, (long long)examples);
	d->at[k] = rt_large((size_t)bytes);
	return d->at[k] || rt_fail(e, "out of memory for %lld %s examples of input %s (%lld bytes)", (long long)examples, d->what, in->t.name, (long long)bytes);
}

/* The first element outside 0..limit-1 that is not the one to ignore, or -1. */
static int64_t
data_outside(const RtInput *in, int dtype, const uint8_t *src, bool swap, int64_t n)
{
	int bytes = rt_dtype[dtype].bytes;

	for (int64_t j = 0; j < n; j++, src += bytes) {
		uint8_t element[8];
		double x;

		for (int b = 0; b < bytes; b++)
			element[b] = src[swap ? bytes - 1 - b : b];
		x = rt_dtype_read(dtype, element);
		if (!(x > -1 && x < (double)in->limit) && !(in->has_ignore && x == (double)in->ignore))
			return j;
	}
	return -1;
}

static double
data_element(int dtype, const uint8_t *src, bool swap, int64_t j)
{
	int bytes = rt_dtype[dtype].bytes;
	uint8_t element[8];

	for (int b = 0; b < bytes; b++)
		element[b] = src[j * bytes + (swap ? bytes - 1 - b : b)];
	return rt_dtype_read(dtype, element);
}

/* The first element that is no whole number, or -1. */
static int64_t
data_fraction(int dtype, const uint8_t *src, bool swap, int64_t n)
{
	for (int64_t j = 0; j < n; j++) {
		double x = data_element(dtype, src, swap, j);

		if (!(x == floor(x)))
			return j;
	}
	return -1;
}

bool
rt_data_put(const RtProgram *p, RtData *d, int k, int64_t example, int dtype, const uint8_t *src, bool swap, int64_t examples, const char *file, RtError *e)
{
	const RtInput *in = &p->input[k];
	int64_t n = examples * in->example, bad;

	if (in->limit > 0 && rt_dtype[dtype].kind == 'f' && (bad = data_fraction(dtype, src, swap, n)) >= 0)
		return rt_fail(e, "%s: %.17g is no whole number, and input %s is %s, a label or id (element %lld, example %lld)", file, data_element(dtype, src, swap, bad),
		               in->t.name, rt_dtype[in->t.dtype].name, (long long)bad, (long long)(bad / in->example));
	if (in->limit > 0 && (bad = data_outside(in, dtype, src, swap, n)) >= 0)
		return rt_fail(e, "%s: %s %.17g is out of range 0..%lld (element %lld, example %lld)", file, in->t.name, data_element(dtype, src, swap, bad),
		               (long long)in->limit - 1, (long long)bad, (long long)(bad / in->example));
	if (!rt_dtype_convert(in->t.dtype, d->at[k] + example * d->stride[k], dtype, src, n, swap, &bad))
		return rt_fail(e, "%s: %.17g does not fit in %s, the type of input %s (element %lld)", file, data_element(dtype, src, swap, bad),
		               rt_dtype[in->t.dtype].name, in->t.name, (long long)bad);
	return true;
}

void
rt_data_free(const RtProgram *p, RtData *d)
{
	for (int k = 0; k < p->ninput; k++) {
		free(d->at[k]);
		d->at[k] = NULL;
	}
}

static const struct { const char *kind; RtReadFn *read; } data_readers[] = {
	{"cifar10", rt_read_cifar10}, {"cifar100", rt_read_cifar100}, {"idx", rt_read_idx}, {"npy", rt_read_npy}, {"tokens", rt_read_tokens},
};

bool
rt_data_load(const RtProgram *p, const RtOptions *o, bool train, RtData *d, RtError *e)
{
	const RtReader *r = &p->reader;
	const char *folder = o->data ? o->data : ".";

	memset(d, 0, sizeof *d);
	d->what = train ? "training" : "test";
	if (o->synthetic || strcmp(r->kind, "synthetic") == 0)
		return rt_data_synthetic(p, (o->has_seed ? o->seed : p->seed) + (train ? 0 : 1), r->examples, d, e);
	if (strcmp(r->kind, "none") == 0)
		return rt_fail(e, "the model has no data block; add one, or use --synthetic");
	for (int i = 0; i < RT_COUNT(data_readers); i++) {
		if (strcmp(data_readers[i].kind, r->kind) != 0)
			continue;
		if (!(train ? r->ntrain : r->ntest))
			return rt_fail(e, "the reader %s names no %s files", r->kind, d->what);
		if (!data_readers[i].read(p, folder, train ? r->train : r->test, train ? r->ntrain : r->ntest, d, e))
			return rt_context(e, "%s data", d->what);
		return d->examples > 0 || rt_fail(e, "%s data: there are no examples in the files", d->what);
	}
	return rt_fail(e, "the reader %s (folders of JPEG and PNG files) is not in this version; convert the images to .npy and use the reader npy", r->kind);
}
