/* order.c: places of elements in order, and greedy suppression of boxes (non-maximum suppression).
 *
 * In: lines of numbers; boxes x1 y1 x2 y2 with scores.   Out: i32 places. An element becomes a key of 64 bits whose
 * order as an integer is the element's: -0 is 0, NaN above all; falling order takes the key's complement. Keys are
 * sorted by radix, a byte at a time from the lowest, which is stable. Of at most 16 wanted elements a sorted list is
 * kept into which each element goes that is less than its last; of more, those are found first, a byte at a time from
 * the highest, in O(n). Suppression walks boxes by falling score and holds each against those kept so far. */
#include "host.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct Item { uint64_t key; int64_t at; } Item;
enum { FEW = 16 }; /* wanted of a line: most elements are no more than compared with the last of the list */
enum { BLOCK = 8 }; /* elements of f32 compared at once */
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
/* Rising, stable, by insertion. */
static void
sort_few(Item *item, int64_t n)
{
	for (int64_t i = 1; i < n; i++) {
		Item x = item[i];
		int64_t k = i;

		for (; k > 0 && item[k - 1].key > x.key; k--)
			item[k] = item[k - 1];
		item[k] = x;
	}
}

/* Rising, stable; the result stands in item. One pass over the keys counts all eight bytes. */
static void
sort_items(Item *item, Item *room, int64_t n)
{
	Item *from = item, *to = room;
	uint32_t count[8][256] = {0};

	if (n <= 2 * FEW) {
		sort_few(item, n);
		return;
	}
	for (int64_t i = 0; i < n; i++)
		for (int b = 0; b < 8; b++)
			count[b][item[i].key >> 8 * b & 255]++;
	for (int b = 0; b < 8; b++) {
		uint32_t *at = count[b], sum = 0;

		if (at[item[0].key >> 8 * b & 255] == n) /* one byte for all */
			continue;
		for (int v = 0; v < 256; v++) {
			uint32_t c = at[v];

			at[v] = sum;
			sum += c;
		}
		for (int64_t i = 0; i < n; i++)
			to[at[from[i].key >> 8 * b & 255]++] = from[i];
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

/* Whether one of BLOCK elements may go before `last`; NaN may. Two loops without a choice in them become vectors. */
static bool
some_above(const float *x, float last)
{
	int some = 0;

	for (int k = 0; k < BLOCK; k++)
		some |= !(x[k] <= last);
	return some;
}

static bool
some_below(const float *x, float last)
{
	int some = 0;

	for (int k = 0; k < BLOCK; k++)
		some |= !(x[k] >= last);
	return some;
}

/* From element i of a line on, the first of a block with an element that may go before `last`, or of the rest. */
static int64_t
skip_blocks(const float *x, int64_t i, int64_t n, float last, bool descending)
{
	while (i + BLOCK <= n && !(descending ? some_above(x + i, last) : some_below(x + i, last)))
		i += BLOCK;
	return i;
}

/* The `want` least of a line into `to`, rising, of equals the first. */
static void
least_few(const RtOrder *p, const uint8_t *x, int64_t first, Item *to)
{
	uint64_t flip = p->descending ? ~(uint64_t)0 : 0;
	const float *line = p->dtype == RT_F32 && p->inner == 1 ? (const float *)(const void *)x + first : NULL;
	int64_t got = 0, seen = 0; /* seen: the end of the block that some element let in */

	for (int64_t i = 0; i < p->n; i++) {
		if (line && got == p->count) {
			float last = line[to[got - 1].at];

			if (i >= seen) {
				i = skip_blocks(line, i, p->n, last, p->descending);
				seen = i + BLOCK;
				if (i == p->n)
					break;
			}
			if (p->descending ? line[i] <= last : line[i] >= last)
				continue;
		}
		uint64_t key = key_at(p->dtype, x, first + i * p->inner) ^ flip;
		int64_t k = got;

		if (got == p->count && key >= to[got - 1].key)
			continue;
		if (got < p->count)
			got++;
		else
			k--;
		for (; k > 0 && to[k - 1].key > key; k--)
			to[k] = to[k - 1];
		to[k] = (Item){key, i};
	}
}

/* The `count` least of a line in order; item has room for two lines. */
static const Item *
line_order(const RtOrder *p, const uint8_t *x, int64_t first, Item *item)
{
	Item *other = item + p->n;
	uint64_t flip = p->descending ? ~(uint64_t)0 : 0;

	if (p->count < p->n && p->count <= FEW) {
		if (p->count)
			least_few(p, x, first, item);
		return item;
	}
	for (int64_t i = 0; i < p->n; i++)
		item[i] = (Item){key_at(p->dtype, x, first + i * p->inner) ^ flip, i};
	if (p->count == p->n) {
		sort_items(item, other, p->n);
		return item;
	}
	select_items(item, p->n, p->count, other);
	sort_items(other, item, p->count);
	return other;
}

void
rt_order(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch)
{
	const RtOrder *p = spec;
	int32_t *out = (int32_t *)(void *)buf[1];

	for (int64_t t = t0; out && t < t1; t++) {
		const Item *sorted = line_order(p, buf[0], t / p->inner * p->n * p->inner + t % p->inner,
		                                (Item *)(void *)scratch);

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
