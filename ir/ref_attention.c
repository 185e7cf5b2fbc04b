/* ref_attention.c: reference evaluation of attention and its gradient, row by row in plain loops.
 *
 * In: q [..., T, D], k [..., S, D], v [..., S, E], leading axes broadcast; a mask that broadcasts to the scores.
 * Out: y and the rows' log-sum-exp. For a row: s = scale q k^T (+ mask), p = exp(s - lse), w = dropout(p), y = w v.
 * Backward, with dp = dropout(g v^T) and D = g . y: ds = p (dp - D), dq = scale ds k, dk = scale ds^T q, dv = w^T g.
 * Nothing of size T x S is kept. */
#include "ref.h"
#include "../runtime/philox.h"
#include <math.h>
#include <string.h>

enum { Q, K, V, MASK, SCORES, NOPERAND };

typedef struct Attention {
	const RefTensor *q, *k, *v, *mask;
	int64_t t, s, d, e;                    /* queries, keys, width of q and k, width of v */
	RefWalk lead;                          /* of y */
	int64_t off[NOPERAND], stride[NOPERAND][MAX_RANK];
	int64_t mask_row, mask_column;         /* strides of the mask's last two axes */
	double scale, p;
	bool causal;
	uint64_t seed, step, first;       /* first: number of the first score's random number */
	uint32_t stream;
	double *score, *weight, *kept;         /* of one row: s, p; what dropout multiplies by */
} Attention;

/* Strides of t's leading axes within y's (rank axes), by its shape without the last `tail` axes. */
static void
lead_strides(const int64_t *ext, int own, int tail, int rank, int64_t *stride)
{
	int64_t s[MAX_RANK];
	int lead = rank - (own - tail);

	ref_strides(own, ext, s);
	for (int i = 0; i < rank; i++)
		stride[i] = i < lead || ext[i - lead] == 1 ? 0 : s[i - lead];
}

static void
mask_strides(Attention *a, const int64_t *ext)
{
	int r = a->mask->type.rank;
	int64_t full[MAX_RANK], s[MAX_RANK];

	/* A mask of fewer than two axes gets leading ones, so that all masks have rows and columns. */
	for (int i = 0; i < 2 - r; i++)
		full[i] = 1;
	for (int i = 0; i < r; i++)
		full[(r < 2 ? 2 - r : 0) + i] = ext[i];
	r = r < 2 ? 2 : r;
	ref_strides(r, full, s);
	lead_strides(full, r, 2, a->lead.rank, a->stride[MASK]);
	a->mask_row = full[r - 2] == 1 ? 0 : s[r - 2];
	a->mask_column = full[r - 1] == 1 ? 0 : s[r - 1];
}

static Attention
attention_of(RefCtx *cx, const Op *op, int first, int fixed, const Type *y, const Type *lse)
{
	Attention a = {.q = ref_in(cx, op, first), .k = ref_in(cx, op, first + 1), .v = ref_in(cx, op, first + 2)};
	int64_t ext[MAX_RANK], ye[MAX_RANK], le[MAX_RANK];
	int next = fixed;

	a.scale = attr_num(op, A_scale);
	a.p = attr_num(op, A_p);
	a.causal = attr_bool(op, A_causal);
	ref_extents(cx, y, ye);
	a.lead.rank = y->rank - 2;
	memcpy(a.lead.ext, ye, sizeof ye);
	ref_extents(cx, &a.q->type, ext);
	a.t = ext[a.q->type.rank - 2], a.d = ext[a.q->type.rank - 1];
	lead_strides(ext, a.q->type.rank, 2, a.lead.rank, a.stride[Q]);
	ref_extents(cx, &a.k->type, ext);
	a.s = ext[a.k->type.rank - 2];
	lead_strides(ext, a.k->type.rank, 2, a.lead.rank, a.stride[K]);
	ref_extents(cx, &a.v->type, ext);
	a.e = ext[a.v->type.rank - 1];
	lead_strides(ext, a.v->type.rank, 2, a.lead.rank, a.stride[V]);
	ref_extents(cx, lse, le);
	lead_strides(le, lse->rank, 1, a.lead.rank, a.stride[SCORES]); /* in rows: lse's own offsets */
	if (attr_bool(op, A_has_mask)) {
		a.mask = ref_in(cx, op, next++);
		ref_extents(cx, &a.mask->type, ext);
		mask_strides(&a, ext);
	}
	if (a.p > 0) {
		a.seed = (uint64_t)ref_in(cx, op, next)->i[0];
		a.step = (uint64_t)ref_in(cx, op, next + 1)->i[0];
		a.first = (a.step >> 32) * (uint64_t)attr_int(op, A_per);
		a.stream = philox_stream(attr_str(op, A_stream));
	}
	a.score = arena_array(cx->arena, double, a.s);
	a.weight = arena_array(cx->arena, double, a.s);
	a.kept = arena_array(cx->arena, double, a.s);
	return a;
}

/* Scores of query i of the current lead. */
static void
row_scores(const Attention *a, int64_t i)
{
	const double *q = a->q->f + a->off[Q] + i * a->d;

	for (int64_t j = 0; j < a->s; j++) {
		const double *k = a->k->f + a->off[K] + j * a->d;
		double dot = 0;

		for (int64_t x = 0; x < a->d; x++)
			dot += q[x] * k[x];
		dot *= a->scale;
		if (a->mask) {
			double m = a->mask->f[a->off[MASK] + i * a->mask_row + j * a->mask_column];

			dot = a->mask->type.dtype != DT_bool ? dot + m : m != 0 ? dot : -INFINITY;
		}
		a->score[j] = a->causal && j > i ? -INFINITY : dot;
	}
}

static double
row_log_sum(const Attention *a)
{
	double m = -INFINITY, sum = 0;

	for (int64_t j = 0; j < a->s; j++)
		m = a->score[j] > m || a->score[j] != a->score[j] ? a->score[j] : m;
	if (isinf(m)) /* of a row that sees no key +infinity: its weights are 0 then */
		return a->mask ? INFINITY : m;
	for (int64_t j = 0; j < a->s; j++)
		sum += exp(a->score[j] - m);
	return m + log(sum);
}

/* weight = exp(s - lse); kept = 0 or 1 / (1 - p) of the element's own random number. */
static void
row_weights(const Attention *a, int64_t i, double lse)
{
	for (int64_t j = 0; j < a->s; j++) {
		uint64_t number = a->first + (uint64_t)((a->off[SCORES] + i) * a->s + j);

		a->weight[j] = exp(a->score[j] - lse);
		a->kept[j] = a->p <= 0                                                     ? 1
		             : philox_uniform(a->seed, a->stream, a->step, number) >= a->p ? 1 / (1 - a->p)
		                                                                           : 0;
	}
}

/* What dropout makes of w: a dropped NaN is 0, as where() has it. */
static double
dropped(const Attention *a, int64_t j, double w)
{
	return a->kept[j] == 0 ? 0 : a->kept[j] * w;
}

const char *
ref_attention(RefCtx *cx, const Op *op)
{
	RefTensor *y = ref_zeros(cx, op, 0), *lse = ref_out(cx, op, 1);
	Attention a = attention_of(cx, op, 0, 3, &y->type, &lse->type);
	double *out = y->f;

	do
		for (int64_t i = 0; i < a.t; i++, out += a.e) {
			double sum;

			row_scores(&a, i);
			sum = lse->f[a.off[SCORES] + i] = row_log_sum(&a);
			row_weights(&a, i, sum);
			for (int64_t j = 0; j < a.s; j++) {
				const double *v = a.v->f + a.off[V] + j * a.e;
				double w = dropped(&a, j, a.weight[j]);

				for (int64_t x = 0; x < a.e; x++)
					out[x] += w * v[x];
			}
		}
	while (ref_next(&a.lead, NOPERAND, a.off, a.stride));
	return NULL;
}

/* Query i's share of the three gradients; g and y are its rows. */
static void
row_back(const Attention *a, int64_t i, const double *g, const double *y, double *dq, double *dk, double *dv)
{
	double rows = 0;

	for (int64_t x = 0; x < a->e; x++)
		rows += g[x] * y[x];
	for (int64_t j = 0; j < a->s; j++) {
		const double *v = a->v->f + a->off[V] + j * a->e, *k = a->k->f + a->off[K] + j * a->d,
		             *q = a->q->f + a->off[Q] + i * a->d;
		double dp = 0, ds, w = dropped(a, j, a->weight[j]);

		for (int64_t x = 0; x < a->e; x++) {
			dp += g[x] * v[x];
			dv[a->off[V] + j * a->e + x] += w * g[x];
		}
		ds = a->weight[j] * (dropped(a, j, dp) - rows) * a->scale;
		for (int64_t x = 0; x < a->d; x++) {
			dq[a->off[Q] + i * a->d + x] += ds * k[x];
			dk[a->off[K] + j * a->d + x] += ds * q[x];
		}
	}
}

const char *
ref_attention_dx(RefCtx *cx, const Op *op)
{
	const RefTensor *g = ref_in(cx, op, 0), *y = ref_in(cx, op, 4), *lse = ref_in(cx, op, 5);
	RefTensor *dq = ref_zeros(cx, op, 0), *dk = ref_zeros(cx, op, 1), *dv = ref_zeros(cx, op, 2);
	Attention a = attention_of(cx, op, 1, 6, &y->type, &lse->type);
	int64_t row = 0;

	do
		for (int64_t i = 0; i < a.t; i++, row++) {
			row_scores(&a, i);
			row_weights(&a, i, lse->f[a.off[SCORES] + i]);
			row_back(&a, i, g->f + row * a.e, y->f + row * a.e, dq->f, dk->f, dv->f);
		}
	while (ref_next(&a.lead, NOPERAND, a.off, a.stride));
	return NULL;
}
