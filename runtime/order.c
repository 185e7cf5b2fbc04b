/* order.c: places of elements in order, and greedy suppression of boxes (non-maximum suppression).
 *
 * In: lines of numbers; boxes x1 y1 x2 y2 with scores.   Out: i32 places. An element becomes a key of 64 bits whose
 * order as an integer is the element's: -0 is 0, NaN above all; falling order takes the key's complement. Keys are
 * sorted by radix, a byte at a time from the lowest, which is stable; of a few wanted elements those are found first, a
 * byte at a time from the highest, in O(n). Suppression walks boxes by falling score and holds each against those kept
 * so far. */
#include "host.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct Item { uint64_t key; int64_t at; } Item;
static_assert(sizeof(Item) == RT_ITEM, "rt.h says how much scratch memory an item takes");

/* ---------------------------------------------------------------- keys */
static uint64_t
key_of_double(double x)
{
	uint64_t bits;

	if (x != x)
		return UINT64_MAX;
	x = x == 0 ? 0 : x;
	memcpy(&bits, &x, sizeof bits);
	return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

static uint64_t
key_at(int64_t dtype, const uint8_t *x, int64_t i)
{
	float f;
	int64_t k;
	int32_t j;

	switch (dtype) {
	case RT_F32: memcpy(&f, x + 4 * i, 4); return key_of_double((double)f);
	case RT_I32: memcpy(&j, x + 4 * i, 4); k = j; break;
	case RT_I64: memcpy(&k, x + 8 * i, 8); break;
	case RT_U8: k = x[i]; break;
	default: return key_of_double(rt_dtype_read((int)dtype, x + rt_dtype[dtype].bytes * i));
	}
	return (uint64_t)k ^ (uint64_t)1 << 63;
}

/* ---------------------------------------------------------------- sorting */
/* Rising, stable; the result stands in item. */
static void
sort_items(Item *item, Item *room, int64_t n)
{
	Item *from = item, *to = room;

	for (int shift = 0; shift < 64; shift += 8) {
		int64_t count[256] = {0}, at = 0;
		uint64_t some = 0, all = ~(uint64_t)0;

		for (int64_t i = 0; i < n; i++) {
			some |= from[i].key;
			all &= from[i].key;
		}
		if (!((some ^ all) >> shift & 255)) /* one byte for all */
			continue;
		for (int64_t i = 0; i < n; i++)
			count[from[i].key >> shift & 255]++;
		for (int b = 0; b < 256; b++) {
			int64_t c = count[b];

			count[b] = at;
			at += c;
		}
		for (int64_t i = 0; i < n; i++)
			to[count[from[i].key >> shift & 255]++] = from[i];
		Item *swap = from;

		from = to;
		to = swap;
	}
	if (from != item)
		memcpy(item, from, sizeof *item * (size_t)n);
}

/* The `want` least of n items into `to`, of equals the first; equal ones keep their order. Items are moved about. */
static void
select_items(Item *item, int64_t n, int64_t want, Item *to)
{
	int64_t got = 0;

	for (int shift = 56; shift >= 0 && n > want - got; shift -= 8) {
		int64_t count[256] = {0}, left = want - got, kept = 0;
		uint64_t edge = 0;

		for (int64_t i = 0; i < n; i++)
			count[item[i].key >> shift & 255]++;
		while (left >= count[edge])
			left -= count[edge++];
		for (int64_t i = 0; i < n; i++) {
			uint64_t b = item[i].key >> shift & 255;

			if (b < edge)
				to[got++] = item[i];
			else if (b == edge)
				item[kept++] = item[i];
		}
		n = kept;
	}
	for (int64_t i = 0; got < want; i++)
		to[got++] = item[i];
}

void
rt_order(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtOrder *p = spec;
	int32_t *out = (int32_t *)(void *)buf[1];
	Item *item = (Item *)(void *)scratch, *other = item + p->n;

	for (int64_t t = t0; out && t < t1; t++) {
		int64_t first = t / p->inner * p->n * p->inner + t % p->inner;

		for (int64_t i = 0; i < p->n; i++) {
			uint64_t key = key_at(p->dtype, buf[0], first + i * p->inner);

			item[i] = (Item){p->descending ? ~key : key, i};
		}
		if (p->count < p->n)
			select_items(item, p->n, p->count, other);
		Item *sorted = p->count < p->n ? other : item;

		sort_items(sorted, sorted == item ? other : item, p->count);
		for (int64_t i = 0; i < p->count; i++)
			out[(t / p->inner * p->count + i) * p->inner + t % p->inner] = (int32_t)sorted[i].at;
	}
}

/* ---------------------------------------------------------------- suppression */
typedef struct Kept { double x1, y1, x2, y2, area; int64_t group; } Kept;
static_assert(sizeof(Kept) == 48, "rt.h says how much scratch memory a kept box takes");

/* To the boxes' type. A sum, difference, product or quotient of two numbers of a narrower type, rounded to double and
 * then to that type, is that type's own. */
static double
rounded(int64_t dtype, double x)
{
	uint8_t half[8];

	if (dtype == RT_F32 || dtype == RT_F64)
		return dtype == RT_F32 ? (double)(float)x : x;
	rt_dtype_write((int)dtype, half, x);
	return rt_dtype_read((int)dtype, half);
}

/* A quotient that is NaN is not greater. */
static bool
suppresses(const Kept *a, const Kept *b, double iou, int64_t type)
{
	double w = rounded(type, (a->x2 < b->x2 ? a->x2 : b->x2) - (a->x1 > b->x1 ? a->x1 : b->x1));
	double h = rounded(type, (a->y2 < b->y2 ? a->y2 : b->y2) - (a->y1 > b->y1 ? a->y1 : b->y1));
	double inter = w > 0 && h > 0 ? rounded(type, w * h) : 0;
	double both = rounded(type, rounded(type, a->area + b->area) - inter);

	return a->group == b->group && rounded(type, inter / both) > iou;
}

static Kept
box_at(const RtNms *p, uint8_t *const *buf, int64_t at)
{
	const uint8_t *box = buf[0] + rt_dtype[p->box_dtype].bytes * 4 * at;
	int64_t type = p->box_dtype;
	double x[4];

	for (int k = 0; k < 4; k++)
		x[k] = rt_dtype_read((int)p->box_dtype, box + rt_dtype[p->box_dtype].bytes * k);
	Kept r = {x[0], x[1], x[2], x[3], rounded(type, rounded(type, x[2] - x[0]) * rounded(type, x[3] - x[1])), 0};

	if (x[0] != x[0] || x[1] != x[1] || x[2] != x[2] || x[3] != x[3])
		r.area = NAN; /* and so is every quotient */
	if (p->group_dtype == RT_I64)
		memcpy(&r.group, buf[2] + 8 * at, 8);
	else if (p->group_dtype)
		r.group = (int64_t)rt_dtype_read((int)p->group_dtype, buf[2] + rt_dtype[p->group_dtype].bytes * at);
	return r;
}

void
rt_nms(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtNms *p = spec;
	int32_t *index = (int32_t *)(void *)buf[3];
	uint8_t *keep = buf[4];
	Item *item = (Item *)(void *)scratch, *room = item + p->boxes;
	Kept *kept = (Kept *)(void *)(room + p->boxes);
	int64_t type = p->box_dtype;
	double iou = rounded(type, p->iou);

	for (int64_t t = t0; t < t1; t++) {
		int64_t n = 0, found = 0;

		for (int64_t i = 0; i < p->boxes; i++)
			if (rt_dtype_read((int)p->score_dtype,
			                  buf[1] + rt_dtype[p->score_dtype].bytes * (t * p->boxes + i)) > p->least)
				item[n++] = (Item){~key_at(p->score_dtype, buf[1], t * p->boxes + i), i};
		sort_items(item, room, n);
		for (int64_t i = 0; i < n && found < p->count; i++) {
			bool stays = true;

			kept[found] = box_at(p, buf, t * p->boxes + item[i].at);
			for (int64_t k = 0; k < found && stays; k++)
				stays = !suppresses(&kept[k], &kept[found], iou, type);
			if (!stays)
				continue;
			if (index)
				index[t * p->count + found] = (int32_t)item[i].at;
			if (keep)
				keep[t * p->count + found] = 1;
			found++;
		}
		for (; found < p->count; found++) {
			if (index)
				index[t * p->count + found] = 0;
			if (keep)
				keep[t * p->count + found] = 0;
		}
	}
}
