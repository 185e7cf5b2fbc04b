/* data_array.c: readers of whole arrays: idx (MNIST's format) and npy, one array per model input.
 *
 * In: a pattern per array; the files of one pattern are joined along the first axis, in name order.
 * Out: input k from pattern k (idx: a later input where the numbers of elements ask for it), reshaped where the number
 * of elements per example agrees. Refuses: arrays whose numbers of examples differ, other element counts, broken
 * headers. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

/* one file's header */
typedef struct Array { int dtype; bool swap; int rank; int64_t shape[RT_MAX_RANK]; size_t data; } Array;
typedef bool HeaderFn(Array *a, const RtFile *f, RtError *e);

bool
rt_idx_header(RtIdx *h, const uint8_t *file, size_t n, RtError *e)
{
	static const uint8_t types[256] = {[8] = RT_U8,   [9] = RT_I8,   [11] = RT_I16,
	                                   [12] = RT_I32, [13] = RT_F32, [14] = RT_F64};
	uint64_t need;

	memset(h, 0, sizeof *h);
	if (n < 4 || file[0] || file[1])
		return rt_fail(e, n == 0 ? "is empty" : "not an IDX file");
	h->dtype = types[file[2]];
	h->rank = file[3];
	if (!h->dtype)
		return rt_fail(e,
		               "IDX element type 0x%02x is not one of 08 (u8), 09 (i8), 0b (i16), 0c (i32), 0d (f32), "
		               "0e (f64)",
		               file[2]);
	if (h->rank < 1 || h->rank > RT_MAX_RANK)
		return rt_fail(e, "%d axes, 1 to %d are possible", h->rank, RT_MAX_RANK);
	h->data = 4 + 4 * (size_t)h->rank;
	if (n < h->data)
		return rt_fail(e, "truncated header");
	h->count = 1;
	for (int i = 0; i < h->rank; i++) {
		const uint8_t *b = file + 4 + 4 * i;

		h->shape[i] = (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
		if (h->shape[i] && h->count > ((int64_t)1 << 48) / h->shape[i])
			return rt_fail(e, "bad header: too many elements");
		h->count *= h->shape[i];
	}
	need = (uint64_t)h->count * (uint64_t)rt_dtype[h->dtype].bytes;
	if (need != n - h->data)
		return rt_fail(e, "%s: %lld elements of %s need %llu bytes, the file has %zu",
		               need > n - h->data ? "truncated" : "wrong size", (long long)h->count,
		               rt_dtype[h->dtype].name, (unsigned long long)need, n - h->data);
	return true;
}

static bool
array_idx(Array *a, const RtFile *f, RtError *e)
{
	RtIdx h;

	if (!rt_idx_header(&h, f->at, f->n, e))
		return rt_context(e, "%s", f->path);
	*a = (Array){.dtype = h.dtype, .swap = rt_dtype[h.dtype].bytes > 1, .rank = h.rank, .data = h.data};
	memcpy(a->shape, h.shape, sizeof a->shape);
	return true;
}

static bool
array_npy(Array *a, const RtFile *f, RtError *e)
{
	RtNpy h;

	if (!rt_npy_header(&h, f->at, f->n, e))
		return rt_context(e, "%s", f->path);
	if (h.rank == 0)
		return rt_fail(e, "%s: is a single number; the first axis must count examples", f->path);
	*a = (Array){.dtype = h.dtype, .swap = h.swap, .rank = h.rank, .data = h.data};
	memcpy(a->shape, h.shape, sizeof a->shape);
	return true;
}

static void
array_words(const Array *a, char *out, size_t room)
{
	size_t n = (size_t)snprintf(out, room, "%s[", rt_dtype[a->dtype].name);

	for (int i = 0; i < a->rank && n < room; i++)
		n += (size_t)snprintf(out + n, room - n, i ? ", %lld" : "%lld", (long long)a->shape[i]);
	if (n < room)
		snprintf(out + n, room - n, "]");
}

/* Examples of input k in this array, or -1 where it does not fit. */
static int64_t
array_examples(const Array *a, const RtInput *in)
{
	int64_t row = 1;

	for (int i = 1; i < a->rank; i++)
		row *= a->shape[i];
	if (a->shape[0] % in->rows || row * in->rows != in->example)
		return -1;
	return a->shape[0] / in->rows;
}

static bool
array_misfit(const RtProgram *p, const Array *a, int k, const char *path, RtError *e)
{
	const RtInput *in = &p->input[k];
	char have[160], want[160];
	Array wanted = {.dtype = in->t.dtype, .rank = in->t.rank};

	memcpy(wanted.shape, in->t.shape, sizeof wanted.shape);
	array_words(a, have, sizeof have);
	array_words(&wanted, want, sizeof want);
	return rt_fail(e, "%s: holds %s, which cannot be reshaped to input %s: %s has %lld elements an example", path,
	               have, in->t.name, want, (long long)in->example);
}

typedef struct Set { RtPaths path; Array *head; RtFile **file; int64_t examples; } Set; /* the files of one pattern */

static bool
set_open(Set *s, RtData *d, const char *folder, const char *pattern, HeaderFn *header, RtError *e)
{
	if (!rt_paths_find(&s->path, folder, pattern, e))
		return false;
	s->file = rt_alloc(sizeof *s->file * (size_t)s->path.n);
	s->head = rt_alloc(sizeof *s->head * (size_t)s->path.n);
	for (int j = 0; j < s->path.n; j++)
		if (!(s->file[j] = rt_data_file(d, s->path.at[j], e)) || !header(&s->head[j], s->file[j], e))
			return false;
	return true;
}

static void
set_close(Set *s)
{
	rt_paths_free(&s->path);
	free(s->file);
	free(s->head);
}

static bool
set_load(Set *s, RtData *d, int k, RtError *e)
{
	for (int j = 0; j < s->path.n; j++) {
		const Array *a = &s->head[j];
		int64_t n = array_examples(a, &d->p->input[k]);
		RtPart part = {.at = s->file[j]->at + a->data, .dtype = a->dtype, .swap = a->swap, .examples = n,
		               .stride = d->p->input[k].example * rt_dtype[a->dtype].bytes, .file = s->file[j]->path};

		if (n < 0)
			return array_misfit(d->p, a, k, s->path.at[j], e);
		if (!rt_data_add(d, k, &part, s->file[j], e))
			return false;
		s->examples += n;
	}
	return true;
}

/* The input that pattern i feeds: input i, or (idx: images before labels, whatever the model's order) the first free
 * one that fits, or the first free one, which then is refused. from: the file that feeds an input, NULL where it is
 * free. */
static int
set_input(const RtProgram *p, const Set *s, int i, bool any_order, const char *const *from)
{
	if (!any_order || (!from[i] && array_examples(&s->head[0], &p->input[i]) >= 0))
		return i;
	for (int k = 0; k < p->ninput; k++)
		if (!from[k] && array_examples(&s->head[0], &p->input[k]) >= 0)
			return k;
	for (int k = 0; k < p->ninput; k++)
		if (!from[k])
			return k;
	return i;
}

static bool
array_read(RtData *d, const char *folder, const char **pattern, int npattern, HeaderFn *header, bool any_order,
           RtError *e)
{
	const RtProgram *p = d->p;
	const char *from[RT_MAX_INPUTS] = {NULL}, *first = NULL;

	if (npattern != p->ninput)
		return rt_fail(e, "the reader %s names %d files, the model has %d inputs", p->reader.kind, npattern,
		               p->ninput);
	for (int i = 0; i < npattern; i++) {
		Set s = {0};
		bool good = set_open(&s, d, folder, pattern[i], header, e);
		int k = good ? set_input(p, &s, i, any_order, from) : 0;

		if (good && !set_load(&s, d, k, e))
			good = from[i] ? rt_context(e, "input %s is fed by %s", p->input[i].t.name, from[i]) : false;
		if (good)
			from[k] = s.file[0]->path;
		if (good && first && s.examples != d->examples)
			good = rt_fail(e, "%s holds %lld examples, %s %lld", first, (long long)d->examples, from[k],
			               (long long)s.examples);
		d->examples = s.examples;
		first = good ? from[k] : NULL;
		set_close(&s);
		if (!good)
			return false;
	}
	return true;
}

bool
rt_read_idx(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	return array_read(d, folder, pattern, npattern, array_idx, true, e);
}

bool
rt_read_npy(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	return array_read(d, folder, pattern, npattern, array_npy, false, e);
}
