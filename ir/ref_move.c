/* ref_move.c: reference evaluation of views, moves and scans.
 *
 * In: one or two tensors.  Out: elements in other places. Most rules are one strided copy: an odometer over the
 * result's (or the input's) extents with the strides and the start of the other side. Out of range indices read 0 and
 * add nowhere. */
#include "ref.h"
#include <string.h>

/* dst[di + walk] = src[si + walk] over ext. */
static void
copy_strided(int rank, const int64_t *ext, const RefTensor *to, const int64_t *ds, const RefTensor *from,
             const int64_t *ss)
{
	RefWalk w = {.rank = rank};
	int64_t off[2] = {0}, stride[2][MAX_RANK];
	char *dst = ref_cells(to);
	const char *src = ref_cells(from);

	for (int i = 0; i < rank; i++) {
		if (ext[i] == 0)
			return;
		w.ext[i] = ext[i];
		stride[0][i] = ds[i];
		stride[1][i] = ss[i];
	}
	do
		memcpy(dst + off[0] * REF_CELL, src + off[1] * REF_CELL, REF_CELL);
	while (ref_next(&w, 2, off, stride));
}

/* Extents of t as outer x axis x inner. */
typedef struct Split { int64_t outer, n, inner; } Split;

static Split
split_at(const RefCtx *cx, const Type *t, int64_t ax)
{
	int64_t ext[MAX_RANK];
	Split s = {1, 1, 1};

	ref_extents(cx, t, ext);
	for (int i = 0; i < t->rank; i++)
		*(i < ax ? &s.outer : i == ax ? &s.n : &s.inner) *= ext[i];
	return s;
}

/* n elements of x from `from` on to r. */
static void
copy_run(const RefTensor *r, int64_t to, const RefTensor *x, int64_t from, int64_t n)
{
	memcpy((char *)ref_cells(r) + to * REF_CELL, (const char *)ref_cells(x) + from * REF_CELL,
	       (size_t)n * REF_CELL);
}

/* ---------------------------------------------------------------- views */
const char *
ref_transpose(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	const int64_t *perm = attr_ints(op, A_perm, NULL);
	int64_t ext[MAX_RANK], xe[MAX_RANK], xs[MAX_RANK], rs[MAX_RANK], ss[MAX_RANK];

	ref_extents(cx, &r->type, ext);
	ref_extents(cx, &x->type, xe);
	ref_strides(r->type.rank, ext, rs);
	ref_strides(x->type.rank, xe, xs);
	for (int i = 0; i < r->type.rank; i++)
		ss[i] = xs[perm[i]];
	copy_strided(r->type.rank, ext, r, rs, x, ss);
	return NULL;
}

const char *
ref_expand(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	int64_t ext[MAX_RANK], xe[MAX_RANK], xs[MAX_RANK], rs[MAX_RANK], ss[MAX_RANK];
	int lead = r->type.rank - x->type.rank;

	ref_extents(cx, &r->type, ext);
	ref_extents(cx, &x->type, xe);
	ref_strides(r->type.rank, ext, rs);
	ref_strides(x->type.rank, xe, xs);
	for (int i = 0; i < r->type.rank; i++) {
		ss[i] = i < lead || xe[i - lead] == 1 ? 0 : xs[i - lead];
		if (i >= lead && xe[i - lead] != 1 && xe[i - lead] != ext[i])
			return ref_fail(cx, "expand: axis %d has extent %lld for a batch of %lld, the result %lld",
			                i - lead, (long long)xe[i - lead], (long long)cx->n, (long long)ext[i]);
	}
	copy_strided(r->type.rank, ext, r, rs, x, ss);
	return NULL;
}

const char *
ref_slice(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	int64_t ax = attr_int(op, A_axis), start = attr_int(op, A_start), step = attr_int(op, A_step);
	Split from = split_at(cx, &x->type, ax), to = split_at(cx, &r->type, ax);

	if (to.n > 0 && start + (to.n - 1) * step >= from.n)
		return ref_fail(cx, "slice: axis %lld has extent %lld for a batch of %lld", (long long)ax,
		                (long long)from.n, (long long)cx->n);
	for (int64_t o = 0; o < to.outer; o++)
		for (int64_t i = 0; i < to.n; i++)
			copy_run(r, (o * to.n + i) * to.inner, x, (o * from.n + start + i * step) * to.inner, to.inner);
	return NULL;
}

const char *
ref_reverse(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	Split s = split_at(cx, &x->type, attr_int(op, A_axis));

	for (int64_t o = 0; o < s.outer; o++)
		for (int64_t i = 0; i < s.n; i++)
			copy_run(r, (o * s.n + i) * s.inner, x, (o * s.n + s.n - 1 - i) * s.inner, s.inner);
	return NULL;
}

const char *
ref_interleave(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	Split s = split_at(cx, &x->type, attr_int(op, A_axis));
	int64_t groups = attr_int(op, A_groups), each = s.n / groups;

	for (int64_t o = 0; o < s.outer; o++)
		for (int64_t q = 0; q < groups; q++)
			for (int64_t i = 0; i < each; i++)
				copy_run(r, (o * s.n + i * groups + q) * s.inner, x, (o * s.n + q * each + i) * s.inner,
				         s.inner);
	return NULL;
}

/* ---------------------------------------------------------------- moves */
const char *
ref_concat(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	int64_t ax = attr_int(op, A_axis), at = 0;
	Split to = split_at(cx, &r->type, ax);

	for (int k = 0; k < op->nin; k++) {
		const RefTensor *x = ref_in(cx, op, k);
		Split from = split_at(cx, &x->type, ax);

		if (at + from.n > to.n || from.outer != to.outer || from.inner != to.inner)
			return ref_fail(cx, "concat: tensor %d does not fit for a batch of %lld", k + 1,
			                (long long)cx->n);
		for (int64_t o = 0; o < from.outer; o++)
			copy_run(r, (o * to.n + at) * to.inner, x, o * from.n * from.inner, from.n * from.inner);
		at += from.n;
	}
	return NULL;
}

const char *
ref_pad(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	int64_t ax = attr_int(op, A_axis), before = attr_int(op, A_before), step = attr_int(op, A_step);
	Split from = split_at(cx, &x->type, ax), to = split_at(cx, &r->type, ax);

	ref_fill(r, op);
	for (int64_t o = 0; o < from.outer; o++)
		for (int64_t i = 0; i < from.n; i++) {
			int64_t at = before + i * step;

			if (at >= 0 && at < to.n)
				copy_run(r, (o * to.n + at) * to.inner, x, (o * from.n + i) * from.inner, to.inner);
		}
	return NULL;
}

/* Offset in x (of extents xe) that element `at` of index addresses; -1 if out of range. */
static int64_t
gather_offset(const RefWalk *w, int64_t ax, int64_t id, const int64_t *xe, const int64_t *xs)
{
	int64_t off = 0;

	if (!(id >= 0 && id < xe[ax]))
		return -1;
	for (int i = 0; i < w->rank; i++)
		off += (i == ax ? id : w->at[i]) * xs[i];
	return off;
}

/* Walks index; forward reads from the wide tensor, backward adds to it. */
static const char *
gather(RefCtx *cx, const Op *op, const RefTensor *index, const RefTensor *wide, const RefTensor *narrow, bool add)
{
	int64_t ext[MAX_RANK], xe[MAX_RANK], xs[MAX_RANK], ax = attr_int(op, A_axis), e = 0;
	RefWalk w = {.rank = index->type.rank};

	ref_extents(cx, &index->type, ext);
	memcpy(w.ext, ext, sizeof ext);
	ref_extents(cx, &wide->type, xe);
	ref_strides(wide->type.rank, xe, xs);
	for (int i = 0; i < w.rank; i++)
		if (i != ax && ext[i] > xe[i])
			return ref_fail(cx, "%s: axis %d of the index is longer than the input's for a batch of %lld",
			                op_info[op->kind].name, i, (long long)cx->n);
	if (index->n == 0)
		return NULL;
	do {
		int64_t off = gather_offset(&w, ax, index->i[e], xe, xs);

		if (add && off >= 0)
			wide->f[off] += narrow->f[e];
		else if (!add && off >= 0)
			copy_run(narrow, e, wide, off, 1);
		e++;
	} while (ref_next(&w, 0, NULL, NULL));
	return NULL;
}

const char *
ref_gather(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);

	return gather(cx, op, ref_in(cx, op, 1), x, ref_zeros(cx, op, 0), false);
}

const char *
ref_gather_dx(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_zeros(cx, op, 0);

	return gather(cx, op, ref_in(cx, op, 1), r, ref_in(cx, op, 0), true);
}

const char *
ref_take(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0), *ids = ref_in(cx, op, 1);
	RefTensor *r = ref_zeros(cx, op, 0);
	Split s = split_at(cx, &x->type, attr_int(op, A_axis));

	for (int64_t o = 0; o < s.outer; o++)
		for (int64_t i = 0; i < ids->n; i++)
			if (ids->i[i] >= 0 && ids->i[i] < s.n)
				copy_run(r, (o * ids->n + i) * s.inner, x, (o * s.n + ids->i[i]) * s.inner, s.inner);
	return NULL;
}

/* Slices of operand k go to r, where operand k + 1 says. */
static const char *
add_slices(RefCtx *cx, const Op *op, int k, RefTensor *r)
{
	const RefTensor *g = ref_in(cx, op, k), *ids = ref_in(cx, op, k + 1);
	Split s = split_at(cx, &r->type, attr_int(op, A_axis));

	for (int64_t o = 0; o < s.outer; o++)
		for (int64_t i = 0; i < ids->n; i++) {
			int64_t id = ids->i[i], from = (o * ids->n + i) * s.inner, to = (o * s.n + id) * s.inner;

			if (id < 0 || id >= s.n)
				continue;
			for (int64_t j = 0; j < s.inner && r->f; j++)
				r->f[to + j] += g->f[from + j];
			for (int64_t j = 0; j < s.inner && r->i; j++) /* of integers, which wrap */
				r->i[to + j] = (int64_t)((uint64_t)r->i[to + j] + (uint64_t)g->i[from + j]);
		}
	return NULL;
}

const char *
ref_take_dx(RefCtx *cx, const Op *op)
{
	return add_slices(cx, op, 0, ref_zeros(cx, op, 0));
}

const char *
ref_take_add(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);

	copy_run(r, 0, x, 0, x->n);
	return add_slices(cx, op, 1, r);
}

const char *
ref_crop(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0), *row = ref_in(cx, op, 1), *column = ref_in(cx, op, 2);
	RefTensor *r = ref_out(cx, op, 0);
	int64_t xe[MAX_RANK], re[MAX_RANK];
	int64_t at = 0;

	memset(ref_cells(r), 0, (size_t)r->n * REF_CELL);
	ref_extents(cx, &x->type, xe);
	ref_extents(cx, &r->type, re);
	for (int64_t nc = 0; nc < re[0] * re[1]; nc++) {
		int64_t top = row->i[nc / re[1]], left = column->i[nc / re[1]];

		for (int64_t i = 0; i < re[2]; i++)
			for (int64_t j = 0; j < re[3]; j++, at++) /* of any place: i + top might overflow */
				if (top >= -i && top < xe[2] - i && left >= -j && left < xe[3] - j)
					copy_run(r, at, x, (nc * xe[2] + i + top) * xe[3] + j + left, 1);
	}
	return NULL;
}

/* ---------------------------------------------------------------- scans */
const char *
ref_cumsum(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	Split s = split_at(cx, &x->type, attr_int(op, A_axis));
	bool back = attr_bool(op, A_reverse);

	for (int64_t o = 0; o < s.outer; o++)
		for (int64_t j = 0; j < s.inner; j++) {
			double sum = 0;
			uint64_t whole = 0;

			for (int64_t i = 0; i < s.n; i++) {
				int64_t at = (o * s.n + (back ? s.n - 1 - i : i)) * s.inner + j;

				if (x->i)
					r->i[at] = (int64_t)(whole += (uint64_t)x->i[at]);
				else
					r->f[at] = sum += x->f[at];
			}
		}
	return NULL;
}
