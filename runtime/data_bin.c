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
rt_cifar_check(const uint8_t *file, size_t n, int record, int label, int classes, const char *name, int64_t *records, RtError *e)
{
	if (n == 0)
		return rt_fail(e, "%s: is empty", name);
	if (n % (size_t)record)
		return rt_fail(e, "%s: %zu bytes are no whole number of records of %d bytes", name, n, record);
	*records = (int64_t)(n / (size_t)record);
	for (int64_t i = 0; i < *records; i++)
		if (file[i * record + label] >= classes)
			return rt_fail(e, "%s: label %d of record %lld is out of range 0..%d", name, file[i * record + label], (long long)i, classes - 1);
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
			return rt_fail(e, "input %s has %lld elements an example; the reader %s gives an image of %d and a label of 1", p->input[k].t.name,
			               (long long)p->input[k].example, p->reader.kind, CIFAR_PIXELS);
		*which = k;
	}
	return true;
}

static bool
cifar_append(const RtProgram *p, RtData *d, const RtFile *f, int record, int image, int label, RtError *e)
{
	int64_t n = (int64_t)(f->n / (size_t)record);

	for (int64_t i = 0; i < n; i++) {
		const uint8_t *at = f->at + i * record;

		if (image >= 0 && !rt_data_put(p, d, image, d->examples + i, RT_U8, at + record - CIFAR_PIXELS, false, 1, f->path, e))
			return false;
		if (label >= 0 && !rt_data_put(p, d, label, d->examples + i, RT_U8, at + record - CIFAR_PIXELS - 1, false, 1, f->path, e))
			return rt_context(e, "record %lld", (long long)i);
	}
	d->examples += n;
	return true;
}

static bool
cifar_read(const RtProgram *p, const char *folder, const char **pattern, int npattern, RtData *d, int record, int classes, RtError *e)
{
	RtPaths all[8] = {0};
	RtFile *file[8] = {0};
	int64_t total = 0, records;
	int image, label;
	bool good = cifar_inputs(p, &image, &label, e);

	if (npattern > RT_COUNT(all))
		return rt_fail(e, "%d file patterns, at most %d are possible", npattern, RT_COUNT(all));
	for (int i = 0; good && i < npattern; i++) {
		good = rt_paths_find(&all[i], folder, pattern[i], e);
		file[i] = rt_alloc(sizeof **file * (size_t)(good ? all[i].n : 1));
		for (int j = 0; good && j < all[i].n; j++) {
			good = rt_file_read(&file[i][j], all[i].at[j], e)
			       && rt_cifar_check(file[i][j].at, file[i][j].n, record, record - CIFAR_PIXELS - 1, classes, all[i].at[j], &records, e);
			total += good ? records : 0;
		}
	}
	for (int k = 0; good && k < p->ninput; k++)
		good = rt_data_room(p, d, k, total, e);
	for (int i = 0; i < npattern; i++) {
		for (int j = 0; file[i] && j < all[i].n; j++) {
			good = good && cifar_append(p, d, &file[i][j], record, image, label, e);
			rt_file_free(&file[i][j]);
		}
		free(file[i]);
	}
	return good;
}

bool
rt_read_cifar10(const RtProgram *p, const char *folder, const char **pattern, int npattern, RtData *d, RtError *e)
{
	return cifar_read(p, folder, pattern, npattern, d, CIFAR_PIXELS + 1, 10, e);
}

bool
rt_read_cifar100(const RtProgram *p, const char *folder, const char **pattern, int npattern, RtData *d, RtError *e)
{
	return cifar_read(p, folder, pattern, npattern, d, CIFAR_PIXELS + 2, 100, e);
}
