/* data_bin.c: CIFAR-10 and CIFAR-100 in their binary layout (Krizhevsky 2009).
 *
 * In: files of records: 1 label byte (CIFAR-100: coarse, then fine label) and 3072 bytes, three planes of 32 x 32.
 * Out: the input of 3072 elements an example gets the image, the input of one element the (fine) label.
 * Refuses: files that are empty or no whole number of records, labels out of range, inputs of other sizes. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

#define CIFAR_PIXELS 3072

bool
rt_cifar_check(const uint8_t *file, size_t n, int record, int label, int classes, const char *name, int64_t *records,
               RtError *e)
{
	if (n == 0)
		return rt_fail(e, "%s: is empty", name);
	if (n % (size_t)record)
		return rt_fail(e, "%s: %zu bytes are no whole number of records of %d bytes", name, n, record);
	*records = (int64_t)(n / (size_t)record);
	for (int64_t i = 0; i < *records; i++)
		if (file[i * record + label] >= classes)
			return rt_fail(e, "%s: label %d of record %lld is out of range 0..%d", name,
			               file[i * record + label], (long long)i, classes - 1);
	return true;
}

/* Input that takes images, and the one that takes labels; -1 where the model has none. */
static bool
cifar_inputs(const RtProgram *p, int *image, int *label, RtError *e)
{
	*image = *label = -1;
	for (int k = 0; k < p->ninput; k++) {
		int *which = p->input[k].example == CIFAR_PIXELS ? image : p->input[k].example == 1 ? label : NULL;

		if (!which || *which >= 0)
			return rt_fail(e,
			               "input %s has %lld elements an example; the reader %s gives an image of %d and "
			               "a label of 1",
			               p->input[k].t.name, (long long)p->input[k].example, p->reader.kind,
			               CIFAR_PIXELS);
		*which = k;
	}
	return true;
}

static bool
cifar_file(RtData *d, const char *path, int record, int classes, int image, int label, RtError *e)
{
	const int pixels = record - CIFAR_PIXELS;
	RtFile *f = rt_data_file(d, path, e);
	int64_t n = 0;

	if (!f || !rt_cifar_check(f->at, f->n, record, pixels - 1, classes, path, &n, e))
		return false;
	RtPart images = {.at = f->at + pixels, .dtype = RT_U8, .examples = n, .stride = record, .file = f->path},
	       labels = images;

	labels.at = f->at + pixels - 1;
	if ((image >= 0 && !rt_data_add(d, image, &images, f, e)) ||
	    (label >= 0 && !rt_data_add(d, label, &labels, f, e)))
		return false;
	d->examples += n;
	rt_file_forget(f, 0, f->n);
	return true;
}

static bool
cifar_read(RtData *d, const char *folder, const char **pattern, int npattern, int record, int classes, RtError *e)
{
	int image, label;
	bool good = cifar_inputs(d->p, &image, &label, e);

	for (int i = 0; good && i < npattern; i++) {
		RtPaths all = {0};

		good = rt_paths_find(&all, folder, pattern[i], e);
		for (int j = 0; good && j < all.n; j++)
			good = cifar_file(d, all.at[j], record, classes, image, label, e);
		rt_paths_free(&all);
	}
	return good;
}

bool
rt_read_cifar10(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	return cifar_read(d, folder, pattern, npattern, CIFAR_PIXELS + 1, 10, e);
}

bool
rt_read_cifar100(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	return cifar_read(d, folder, pattern, npattern, CIFAR_PIXELS + 2, 100, e);
}
