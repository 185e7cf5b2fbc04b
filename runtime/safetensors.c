/* safetensors.c: the container of checkpoints: 8 bytes of header length, a JSON header, then the elements.
 *
 * In: a file's bytes, not trusted.   Out: entries sorted by name, their bytes inside the data, and the metadata.
 * Refused: a header longer than the file or 64 MiB, entries that overlap, leave holes, end beyond the file, have a size
 * that disagrees with type and shape, or share a name. Where the metadata carries this project's check sum it is
 * verified: it covers header and elements, with the sum's own digits read as zeros, piece by piece: before them, they,
 * the header's rest, each entry in the order of the file. */
#define _GNU_SOURCE
#include "host.h"

#include <stdlib.h>
#include <string.h>

#define ST_HEADER_MAX ((uint64_t)64 << 20)

/* 64-bit FNV-1a over words, then over the bytes left: each step is a bijection of the state, so that any single changed
 * bit shows. */
uint64_t
rt_hash(uint64_t h, const void *p, size_t n)
{
	const uint8_t *at = p;

	for (; n >= 8; n -= 8, at += 8) {
		uint64_t w;

		memcpy(&w, at, 8);
		h = (h ^ w) * 0x100000001b3ull;
		h ^= h >> 29;
	}
	for (; n; n--)
		h = (h ^ *at++) * 0x100000001b3ull;
	return h;
}

static int
st_dtype_bytes(const char *name)
{
	static const struct { const char *name; int bytes; } others[] = {
		{"I16", 2}, {"U16", 2}, {"U32", 4}, {"U64", 8}, {"I8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
	};

	for (int t = 1; t < RT_DTYPE_COUNT; t++)
		if (strcmp(rt_dtype[t].safetensors, name) == 0)
			return rt_dtype[t].bytes;
	for (int i = 0; i < RT_COUNT(others); i++)
		if (strcmp(others[i].name, name) == 0)
			return others[i].bytes;
	return 0;
}

static bool
st_offset(const Json *x, uint64_t *out)
{
	if (!x || x->kind != JSON_NUMBER || !x->is_int || x->i < 0)
		return false;
	*out = (uint64_t)x->i;
	return true;
}

static bool
st_entry(RtSt *s, const Json *o, RtStEntry *t, RtError *e)
{
	const Json *shape = rt_json_get(o, "shape"), *offsets = rt_json_get(o, "data_offsets");
	uint64_t bytes, extent;

	t->name = o->key;
	t->dtype = rt_json_str(o, "dtype", "");
	bytes = (uint64_t)st_dtype_bytes(t->dtype);
	if (!bytes)
		return rt_fail(e, "%s: unknown element type '%s'", t->name, t->dtype);
	if (!shape || shape->kind != JSON_LIST || shape->n > RT_MAX_RANK)
		return rt_fail(e, "%s: no shape of at most %d axes", t->name, RT_MAX_RANK);
	for (const Json *x = shape->child; x; x = x->next) {
		if (!st_offset(x, &extent) || (extent && bytes > ((uint64_t)1 << 50) / extent))
			return rt_fail(e, "%s: bad shape", t->name);
		t->shape[t->rank++] = (int64_t)extent;
		bytes *= extent;
	}
	if (!offsets || offsets->kind != JSON_LIST || offsets->n != 2 || !st_offset(offsets->child, &t->begin) ||
	    !st_offset(offsets->child->next, &t->end))
		return rt_fail(e, "%s: no data_offsets of two numbers", t->name);
	if (t->begin > t->end || t->end > s->data_bytes)
		return rt_fail(e, "%s: bytes %llu to %llu lie outside the file's %zu (truncated?)", t->name,
		               (unsigned long long)t->begin, (unsigned long long)t->end, s->data_bytes);
	if (t->end - t->begin != bytes)
		return rt_fail(e, "%s: %llu bytes, its type and shape need %llu", t->name,
		               (unsigned long long)(t->end - t->begin), (unsigned long long)bytes);
	return true;
}

static int
st_by_name(const void *a, const void *b)
{
	return strcmp(((const RtStEntry *)a)->name, ((const RtStEntry *)b)->name);
}

static int
st_by_offset(const void *a, const void *b)
{
	const RtStEntry *x = a, *y = b;

	return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : x->end < y->end ? -1 : x->end > y->end;
}

/* Leaves the entries in the order of their bytes. */
static bool
st_layout(RtSt *s, RtError *e)
{
	uint64_t at = 0;

	qsort(s->entry, (size_t)s->nentry, sizeof *s->entry, st_by_offset);
	for (int i = 0; i < s->nentry; i++) {
		const RtStEntry *t = &s->entry[i];

		if (t->begin < at)
			return rt_fail(e, "%s overlaps %s", t->name, i ? s->entry[i - 1].name : "the header");
		if (t->begin > at)
			return rt_fail(e, "a hole of %llu bytes before %s", (unsigned long long)(t->begin - at),
			               t->name);
		at = t->end;
	}
	if (at != s->data_bytes)
		return rt_fail(e, "%llu bytes after the last tensor belong to none",
		               (unsigned long long)(s->data_bytes - at));
	return true;
}

static bool
st_names(RtSt *s, RtError *e)
{
	qsort(s->entry, (size_t)s->nentry, sizeof *s->entry, st_by_name);
	for (int i = 1; i < s->nentry; i++)
		if (strcmp(s->entry[i - 1].name, s->entry[i].name) == 0)
			return rt_fail(e, "%s stands there twice", s->entry[i].name);
	return true;
}

static bool
st_verify(const RtSt *s, const uint8_t *file, size_t header, RtError *e)
{
	static const char key[] = "\"checksum\":\"", zeros[] = "0000000000000000";
	const char *have = rt_json_str(s->meta, "checksum", NULL), *text = (const char *)file + 8, *at;
	uint64_t sum;
	char want[24];

	if (!have)
		return !rt_json_str(s->meta, "mantou", NULL) ||
		       rt_fail(e, "the check sum is missing: the file is damaged");
	at = memmem(text, header, key, sizeof key - 1);
	if (!at || (size_t)(text + header - at) < sizeof key - 1 + 16)
		return rt_fail(e, "the check sum is damaged");
	at += sizeof key - 1;
	sum = rt_hash(RT_HASH_START, file, (size_t)(at - (const char *)file));
	sum = rt_hash(sum, zeros, 16);
	sum = rt_hash(sum, at + 16, (size_t)(text + header - at - 16));
	for (int i = 0; i < s->nentry; i++)
		sum = rt_hash(sum, s->data + s->entry[i].begin, (size_t)(s->entry[i].end - s->entry[i].begin));
	snprintf(want, sizeof want, "%016llx", (unsigned long long)sum);
	return strcmp(want, have) == 0 ||
	       rt_fail(e, "the check sum is %s, the contents give %s: the file is damaged", have, want);
}

bool
rt_st_parse(RtSt *s, const uint8_t *file, size_t n, RtError *e)
{
	uint64_t header = 0;
	const Json *o;
	char why[128];

	memset(s, 0, sizeof *s);
	if (n < 8)
		return rt_fail(e, n ? "not a safetensors file: %zu bytes" : "is empty", n);
	memcpy(&header, file, 8);
	if (header > n - 8)
		return rt_fail(e,
		               "the header announces %llu bytes, the file has %zu (truncated, or no safetensors file)",
		               (unsigned long long)header, n - 8);
	if (header > ST_HEADER_MAX)
		return rt_fail(e, "a header of %llu bytes is over the limit of 64 MiB", (unsigned long long)header);
	o = rt_json_parse((const char *)file + 8, (size_t)header, &s->doc, why, sizeof why);
	if (!o)
		return rt_fail(e, "header, %s", why);
	if (o->kind != JSON_OBJECT)
		return rt_fail(e, "the header is no JSON object");
	s->data = file + 8 + header;
	s->data_bytes = n - 8 - (size_t)header;
	s->entry = rt_alloc(sizeof *s->entry * (size_t)o->n);
	for (const Json *x = o->child; x; x = x->next) {
		if (strcmp(x->key, "__metadata__") == 0) {
			s->meta = x;
			continue;
		}
		if (!st_entry(s, x, &s->entry[s->nentry++], e))
			return false;
	}
	return st_layout(s, e) && st_verify(s, file, (size_t)header, e) && st_names(s, e);
}

void
rt_st_free(RtSt *s)
{
	free(s->entry);
	rt_json_free(s->doc);
	memset(s, 0, sizeof *s);
}
