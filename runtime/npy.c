/* npy.c: NumPy's .npy files, read and written (numpy.lib.format, versions 1.0, 2.0 and 3.0).
 *
 * In: a file's bytes, or a stream of arrays, not trusted.   Out: element type, byte order, shape and where the elements
 * begin. The header is a Python dictionary of three known keys; a tiny scanner reads exactly that. Refused by name:
 * Fortran order, element types the language does not have, a shape that does not agree with the file's size, ranks
 * above 8. */
#include "host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NPY_HEAD_MAX ((size_t)1 << 20) /* bytes of a header in a stream */

typedef struct Scan { const char *at, *end; } Scan;

static void
scan_space(Scan *s)
{
	while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t'))
		s->at++;
}

static bool
scan_char(Scan *s, char c)
{
	scan_space(s);
	if (s->at == s->end || *s->at != c)
		return false;
	s->at++;
	return true;
}

/* 'text' or "text" into out. */
static bool
scan_string(Scan *s, char *out, size_t room)
{
	char quote;
	size_t n = 0;

	scan_space(s);
	if (s->at == s->end || (*s->at != '\'' && *s->at != '"'))
		return false;
	quote = *s->at++;
	while (s->at < s->end && *s->at != quote && n + 1 < room)
		out[n++] = *s->at++;
	out[n] = 0;
	return scan_char(s, quote);
}

static bool
scan_word(Scan *s, const char *word)
{
	size_t n = strlen(word);

	scan_space(s);
	if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
		return false;
	s->at += n;
	return true;
}

static bool
scan_shape(Scan *s, RtNpy *h, RtError *e)
{
	h->count = 1;
	if (!scan_char(s, '('))
		return rt_fail(e, "bad header: no shape");
	while (!scan_char(s, ')')) {
		int64_t x = 0;
		bool any = false;

		scan_space(s);
		for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, any = true) {
			if (x > ((int64_t)1 << 48))
				return rt_fail(e, "bad header: an extent is too large");
			x = x * 10 + (*s->at - '0');
		}
		if (!any)
			return rt_fail(e, "bad header: the shape is no list of numbers");
		if (h->rank == RT_MAX_RANK)
			return rt_fail(e, "more than %d axes", RT_MAX_RANK);
		if (x && h->count > ((int64_t)1 << 48) / x)
			return rt_fail(e, "bad header: too many elements");
		h->shape[h->rank++] = x;
		h->count *= x;
		if (!scan_char(s, ',')) {
			if (!scan_char(s, ')'))
				return rt_fail(e, "bad header: the shape has no end");
			break;
		}
	}
	return true;
}

static bool
npy_dtype(RtNpy *h, const char *descr, RtError *e)
{
	char little[16];

	snprintf(little, sizeof little, "%s", descr);
	h->swap = little[0] == '>';
	if (little[0] == '>' || little[0] == '=')
		little[0] = '<';
	if (strcmp(little, "<u1") == 0 || strcmp(little, "<b1") == 0)
		little[0] = '|';
	for (int t = 1; t < RT_DTYPE_COUNT; t++)
		if (*rt_dtype[t].npy && strcmp(rt_dtype[t].npy, little) == 0)
			h->dtype = t;
	if (h->dtype)
		return true;
	char list[80];
	int n = 0;
	for (int t = 1; t < RT_DTYPE_COUNT; t++)
		if (*rt_dtype[t].npy)
			n += snprintf(list + n, sizeof list - (size_t)n, " %s", rt_dtype[t].npy + 1);
	return rt_fail(e, "element type '%s' is not one of%s: numpy's astype makes it one", descr, list);
}

static bool
npy_dictionary(RtNpy *h, Scan s, RtError *e)
{
	char key[32], descr[16];
	bool have_descr = false, have_order = false, have_shape = false;

	if (!scan_char(&s, '{'))
		return rt_fail(e, "bad header: no dictionary");
	while (!scan_char(&s, '}')) {
		if (!scan_string(&s, key, sizeof key) || !scan_char(&s, ':'))
			return rt_fail(e, "bad header: expected a name and ':'");
		if (strcmp(key, "descr") == 0 && !have_descr) {
			have_descr = true;
			if (!scan_string(&s, descr, sizeof descr))
				return rt_fail(e, "elements of several parts are not supported");
			if (!npy_dtype(h, descr, e))
				return false;
		} else if (strcmp(key, "fortran_order") == 0 && !have_order) {
			have_order = true;
			if (scan_word(&s, "True"))
				return rt_fail(e,
				               "the array is in Fortran order; save it with numpy.ascontiguousarray");
			if (!scan_word(&s, "False"))
				return rt_fail(e, "bad header: fortran_order is neither True nor False");
		} else if (strcmp(key, "shape") == 0 && !have_shape) {
			have_shape = true;
			if (!scan_shape(&s, h, e))
				return false;
		} else {
			return rt_fail(e, "bad header: unexpected name '%s'", key);
		}
		if (!scan_char(&s, ',')) {
			if (!scan_char(&s, '}'))
				return rt_fail(e, "bad header: the dictionary has no end");
			break;
		}
	}
	return (have_descr && have_order && have_shape) ||
	       rt_fail(e, "bad header: descr, fortran_order or shape is missing");
}

/* All but whether the elements are there. */
static bool
npy_head(RtNpy *h, const uint8_t *file, size_t bytes, RtError *e)
{
	size_t length, start;

	memset(h, 0, sizeof *h);
	if (bytes < 10 || memcmp(file, "\x93NUMPY", 6) != 0)
		return rt_fail(e, "not a .npy file");
	if (file[6] < 1 || file[6] > 3)
		return rt_fail(e, "version %d.%d of the .npy format is unknown", file[6], file[7]);
	if (file[6] > 1 && bytes < 12)
		return rt_fail(e, "truncated header");
	length = file[8] | (size_t)file[9] << 8;
	if (file[6] > 1)
		length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
	start = file[6] == 1 ? 10 : 12;
	if (length > bytes - start)
		return rt_fail(e, "truncated header: %zu bytes announced, %zu there", length, bytes - start);
	if (!npy_dictionary(h, (Scan){(const char *)file + start, (const char *)file + start + length}, e))
		return false;
	h->data = start + length;
	return true;
}

bool
rt_npy_header(RtNpy *h, const uint8_t *file, size_t bytes, RtError *e)
{
	if (!npy_head(h, file, bytes, e))
		return false;
	if ((uint64_t)(bytes - h->data) != (uint64_t)h->count * (uint64_t)rt_dtype[h->dtype].bytes)
		return rt_fail(e, "%s: %lld elements of %s need %lld bytes, the file has %zu",
		               (uint64_t)(bytes - h->data) < (uint64_t)h->count * (uint64_t)rt_dtype[h->dtype].bytes
		                       ? "truncated"
		                       : "wrong size",
		               (long long)h->count, rt_dtype[h->dtype].name,
		               (long long)h->count * rt_dtype[h->dtype].bytes, bytes - h->data);
	return true;
}

/* Reads until there are `bytes` at *at, which grows. */
static bool
npy_fill(FILE *f, uint8_t **at, size_t *have, size_t bytes, RtError *e)
{
	uint8_t *more = realloc(*at, bytes + 1);

	if (!more)
		return rt_fail(e, "out of memory for %zu bytes", bytes);
	*at = more;
	*have += fread(*at + *have, 1, bytes - *have, f);
	if (ferror(f))
		return rt_fail(e, "cannot be read: %s", strerror(errno));
	return *have == bytes || rt_fail(e, "ends within an array: %zu bytes of %zu", *have, bytes);
}

bool
rt_npy_stream(FILE *f, uint8_t **at, size_t *n, bool *end, RtError *e)
{
	size_t have = 0, head;
	uint64_t bytes;
	RtNpy h;
	int c = getc(f);

	*at = NULL;
	*n = 0;
	*end = c == EOF && !ferror(f);
	if (*end)
		return true;
	ungetc(c, f);
	if (!npy_fill(f, at, &have, 12, e))
		return false;
	if (memcmp(*at, "\x93NUMPY", 6) != 0)
		return rt_fail(e, "is no .npy array");
	head = (*at)[6] == 1
	               ? 10 + ((*at)[8] | (size_t)(*at)[9] << 8)
	               : 12 + ((*at)[8] | (size_t)(*at)[9] << 8 | (size_t)(*at)[10] << 16 | (size_t)(*at)[11] << 24);
	if (head < 12 || head > NPY_HEAD_MAX)
		return rt_fail(e, "a header of %zu bytes", head);
	if (!npy_fill(f, at, &have, head, e) || !npy_head(&h, *at, have, e))
		return false;
	bytes = (uint64_t)h.count * (uint64_t)rt_dtype[h.dtype].bytes;
	if (!npy_fill(f, at, &have, head + (size_t)bytes, e))
		return false;
	*n = have;
	return true;
}

/* The header, padded so that the elements begin at a multiple of 64 bytes; returns its length. */
static size_t
npy_make_header(char *out, size_t room, int dtype, int rank, const int64_t *shape)
{
	char text[256];
	size_t n, total;

	n = (size_t)snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
	                     rt_dtype[dtype].npy);
	for (int i = 0; i < rank; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, i ? ", %lld" : "%lld", (long long)shape[i]);
	n += (size_t)snprintf(text + n, sizeof text - n, rank == 1 ? ",), }" : "), }");
	total = (10 + n + 1 + 63) & ~(size_t)63;
	if (total > room)
		return 0;
	memset(out, ' ', total);
	memcpy(out, "\x93NUMPY\x01\x00", 8);
	out[8] = (char)((total - 10) & 255);
	out[9] = (char)((total - 10) >> 8);
	memcpy(out + 10, text, n);
	out[total - 1] = '\n';
	return total;
}

bool
rt_npy_write(const char *path, int dtype, int rank, const int64_t *shape, const void *data, size_t bytes, RtError *e)
{
	char header[512];
	size_t n = npy_make_header(header, sizeof header, dtype, rank, shape);
	RtOut o;

	if (!rt_out_open(&o, path, e))
		return false;
	if (rt_out_write(&o, header, n, e) && rt_out_write(&o, data, bytes, e))
		return rt_out_end(&o, false, e);
	rt_out_drop(&o);
	return false;
}
