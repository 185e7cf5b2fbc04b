/* type.c: element types, axes, types: their rows, what they say of themselves, their text.
 *
 * In: a type, or two.   Out: an answer, or the text that parse.c reads. Counts of elements and bytes saturate at
 * INT64_MAX, so that a limit is exceeded and nothing wraps. */
#include "ir.h"
#include <string.h>

const DTypeInfo dtype_info[DT_COUNT] = {
	[DT_none] = {"none", 0, '?', "", ""},
#define DT(name, bytes, kind, st, npy) [DT_##name] = {#name, bytes, kind, st, npy},
#include "dtypes.def"
#undef DT
};

int64_t
dtype_lowest(DType t)
{
	return dtype_is_unsigned(t) ? 0 : -dtype_highest(t) - 1;
}

int64_t
dtype_highest(DType t)
{
	int bits = t == DT_bool ? 1 : 8 * dtype_info[t].bytes - !dtype_is_unsigned(t);

	return (int64_t)(UINT64_MAX >> (64 - bits));
}

int64_t
dtype_saturate(DType t, int64_t x)
{
	int64_t low = dtype_lowest(t), high = dtype_highest(t);

	return x < low ? low : x > high ? high : x;
}

DType
dtype_named(const char *name, size_t n)
{
	for (int t = DT_none + 1; t < DT_COUNT; t++)
		if (strlen(dtype_info[t].name) == n && memcmp(dtype_info[t].name, name, n) == 0)
			return (DType)t;
	return DT_none;
}

Type
type_of(DType t, int rank, const Axis *axes)
{
	Type r = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};

	if (rank < 0 || rank > MAX_RANK)
		bug("type of rank %d", rank);
	for (int i = 0; i < MAX_RANK; i++)
		r.perm[i] = (uint8_t)i;
	for (int i = 0; i < rank; i++)
		r.axis[i] = axes[i];
	return r;
}

Type
type_scalar(DType t)
{
	return type_of(t, 0, NULL);
}

/* Saturates: a product beyond 64 bits is above every limit, whatever its exact value. */
int64_t
type_elements(const Type *t)
{
	int64_t n = 1;
	bool zero = false, huge = false;

	for (int i = 0; i < t->rank; i++) {
		zero |= t->axis[i].n == 0;
		huge |= !mul_i64(n, t->axis[i].n, &n);
	}
	return zero ? 0 : huge ? INT64_MAX : n;
}

int64_t
type_bytes(const Type *t)
{
	int64_t n;

	return mul_i64(type_elements(t), dtype_info[t->dtype].bytes, &n) ? n : INT64_MAX;
}

bool
type_same_shape(const Type *a, const Type *b)
{
	if (a->rank != b->rank)
		return false;
	for (int i = 0; i < a->rank; i++)
		if (a->axis[i].n != b->axis[i].n)
			return false;
	return true;
}

bool
type_same(const Type *a, const Type *b)
{
	if (a->dtype != b->dtype || a->rank != b->rank)
		return false;
	for (int i = 0; i < a->rank; i++)
		if (!axis_same(a->axis[i], b->axis[i]) || a->perm[i] != b->perm[i])
			return false;
	return true;
}

bool
type_is_plain(const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->perm[i] != i)
			return false;
	return true;
}

bool
type_marked(const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->axis[i].mul > 0)
			return true;
	return false;
}

int64_t
axis_at(Axis a, int64_t n, int64_t full)
{
	if (a.mul <= 0 || n == full)
		return a.n;
	return n * a.mul / a.div;
}

void
type_block(const Type *from, const Type *to, int *j, int *i)
{
	int mi = 0, mj = 0;
	int64_t a = 1, b = 1;

	do {
		if (*i < to->rank && (a < b || (a == b && mi <= mj) || *j >= from->rank)) {
			mi += to->axis[*i].mul != 0;
			a *= to->axis[(*i)++].n;
		} else if (*j < from->rank) {
			mj += from->axis[*j].mul != 0;
			b *= from->axis[(*j)++].n;
		} else {
			break;
		}
	} while (a != b || mi != mj);
}

bool
type_same_place(const Type *a, const Type *b)
{
	bool same = a->rank == b->rank && !memcmp(a->perm, b->perm, a->rank);

	for (int i = 0; i < a->rank && same; i++)
		same = axis_same(a->axis[i], b->axis[i]);
	return same;
}

void
type_print(Buf *b, const Type *t)
{
	buf_printf(b, "%s[", dtype_info[t->dtype].name);
	for (int i = 0; i < t->rank; i++) {
		Axis a = t->axis[i];

		buf_printf(b, "%s", i ? "," : "");
		if (a.mul > 0) {
			if (a.mul != 1)
				buf_printf(b, "%d", (int)a.mul);
			buf_printf(b, "N");
			if (a.div != 1)
				buf_printf(b, "/%d", (int)a.div);
			buf_printf(b, "<=");
		}
		buf_printf(b, "%lld", (long long)a.n);
	}
	buf_printf(b, "]");
	if (!type_is_plain(t)) {
		buf_printf(b, "@");
		for (int i = 0; i < t->rank; i++)
			buf_printf(b, "%d", t->perm[i]);
	}
}
