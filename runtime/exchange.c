/* exchange.c: the sum over the shards of a batch.
 *
 * The sum of x_0 .. x_(S-1) is T(0, S), where T(a, 1) = x_a and T(a, n) = T(a, k) + T(a + k, n - k), k the largest power of two below n:
 * one addition an element in the element's own type, to nearest even, the left operand first. Pairs (a, n) that occur are nodes. Nothing
 * else enters, so that the bits depend on S alone, whoever adds and in whatever order the shards come.
 * In: the states of kind grad, which stand together in the arena and which each run of graph train fills anew.   Out: their sums, in the
 * same place, behind the last shard. Between shards the nodes that are complete wait in rooms of their own, each as large as the states: as
 * many as there are bits in the number of shards. Additions are cut by place and shared by the threads. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

enum { SUM_CHUNK = 8192 };       /* elements of a task */

/* ---- the tree */

static int64_t
tree_cut(int64_t n)
{
	int64_t k = 1;

	while (2 * k < n)
		k *= 2;
	return k;
}

bool
rt_tree_parent(int64_t shards, RtNode x, RtNode *parent, bool *right)
{
	RtNode at = {0, shards};

	if (x.n >= shards)
		return false;
	for (;;) {
		int64_t k = tree_cut(at.n);

		*right = x.a >= at.a + k;
		*parent = at;
		at = *right ? (RtNode){at.a + k, at.n - k} : (RtNode){at.a, k};
		if (at.a == x.a && at.n == x.n)
			return true;
		if (at.n <= 1)
			return false;
	}
}

/* ---- additions */

typedef union Number { float f; uint32_t u; } Number;

static float
bf16_value(uint16_t h)
{
	return (Number){.u = (uint32_t)h << 16}.f;
}

static uint16_t
bf16_round(float x)
{
	uint32_t u = (Number){.f = x}.u;

	if (x != x)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* out = left + right; out may be either. The sum of two 16-bit numbers rounded to f32 (f16: exact in f64) and again is rounded as once. */
void
rt_sum(int dtype, uint8_t *out, const uint8_t *left, const uint8_t *right, int64_t n)
{
	switch (dtype) {
	case RT_F64:
		for (int64_t i = 0; i < n; i++)
			((double *)out)[i] = ((const double *)left)[i] + ((const double *)right)[i];
		break;
	case RT_F32:
		for (int64_t i = 0; i < n; i++)
			((float *)out)[i] = ((const float *)left)[i] + ((const float *)right)[i];
		break;
	case RT_BF16:
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = bf16_round(bf16_value(((const uint16_t *)left)[i]) + bf16_value(((const uint16_t *)right)[i]));
		break;
	default:                         /* f16: verify.c lets no integer be a gradient */
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)out)[i] = rt_f64_to_f16((double)rt_f16_to_f32(((const uint16_t *)left)[i]) + (double)rt_f16_to_f32(((const uint16_t *)right)[i]));
	}
}

typedef struct Adding { const RtSums *s; uint8_t *out; const uint8_t *left, *right; } Adding;

static void
sums_part(void *cx, int64_t t0, int64_t t1, int thread)
{
	const Adding *a = cx;

	(void)thread;
	for (int64_t t = t0; t < t1; t++) {
		const RtSpan *p = &a->s->part[t];

		rt_sum(p->dtype, a->out + p->at, a->left + p->at, a->right + p->at, p->n);
	}
}

static void
sums_add(RtHost *h, uint8_t *out, const uint8_t *left, const uint8_t *right)
{
	Adding a = {.s = &h->sums, .out = out, .left = left, .right = right};

	rt_threads_run(h->threads, sums_part, &a, h->sums.npart);
}

/* ---- the states, and the rooms */

static bool
sums_kind(const RtState *s)
{
	return s->kind == RT_GRAD;
}

/* Where the states are, and the tasks of an addition over them. False after rt_fail. */
static bool
sums_range(RtHost *h)
{
	const RtProgram *p = &h->program;
	RtSums *s = &h->sums;
	int64_t end = 0, parts = 0;

	s->begin = INT64_MAX;
	for (int k = 0; k < p->nstate; k++) {
		const RtTensor *t = &p->state[k].t;

		if (!sums_kind(&p->state[k]))
			continue;
		s->begin = t->offset < s->begin ? t->offset : s->begin;
		end = t->offset + t->bytes > end ? t->offset + t->bytes : end;
		parts += (t->count + SUM_CHUNK - 1) / SUM_CHUNK;
	}
	if (!parts)
		return rt_fail(&h->error, "the program's descriptor: %lld shards, and nothing to add", (long long)p->shards);
	s->bytes = (end - s->begin + 63) & ~(int64_t)63;
	s->part = rt_alloc(sizeof *s->part * (size_t)parts);
	for (int k = 0; k < p->nstate; k++) {
		const RtTensor *t = &p->state[k].t;
		int bytes = rt_dtype[t->dtype].bytes;

		if (!sums_kind(&p->state[k]) && t->offset >= s->begin && t->offset < end)
			return rt_fail(&h->error, "the program's descriptor: state %s stands among the gradients", t->name);
		for (int64_t i = 0; sums_kind(&p->state[k]) && i < t->count; i += SUM_CHUNK)
			s->part[s->npart++] = (RtSpan){.at = t->offset - s->begin + i * bytes, .n = t->count - i < SUM_CHUNK ? t->count - i : SUM_CHUNK,
			                               .dtype = t->dtype};
	}
	return true;
}

/* Joins what can be joined behind the shard just pushed; adds: do it too. */
static void
sums_join(RtHost *h, RtNode x, uint8_t *at, bool last, bool adds)
{
	RtSums *s = &h->sums;
	uint8_t *grad = adds ? h->run.arena + s->begin : NULL;
	RtNode parent;
	bool right;

	while (s->nnode && rt_tree_parent(s->shards, x, &parent, &right) && right
	       && s->node[s->nnode - 1].a == parent.a && parent.a + parent.n == x.a + x.n) {
		uint8_t *left = s->room[s->nnode - 1], *out = last ? grad : left;

		if (adds)
			sums_add(h, out, left, at);
		at = out;
		x = parent;
		s->nnode--;
	}
	if (adds && !last && at == grad)
		memcpy(s->room[s->nnode], grad, (size_t)s->bytes);
	s->node[s->nnode++] = x;
	s->deepest = s->nnode - last > s->deepest ? s->nnode - last : s->deepest;
}

bool
rt_sums_open(RtHost *h)
{
	RtSums *s = &h->sums;

	s->shards = h->program.shards;
	s->lo = 0;
	s->hi = s->shards;
	if (s->shards <= 1)
		return true;
	if (!sums_range(h))
		return false;
	for (int64_t k = s->lo; k < s->hi; k++)
		sums_join(h, (RtNode){k, 1}, NULL, k + 1 == s->hi, false);
	s->nnode = 0;
	for (int i = 0; i < s->deepest; i++)
		if (!(s->room[i] = rt_large((size_t)s->bytes)))
			return rt_fail(&h->error, "out of memory: the sums of %d shards need %.1f MiB", (int)s->shards,
			               (double)s->bytes * s->deepest / 0x1p20);
	return true;
}

int64_t
rt_merge(RtRun *run)
{
	RtHost *h = rt_host(run);
	RtSums *s = &h->sums;
	int64_t k = run->micro;

	if (k == s->lo)
		s->nnode = 0;
	sums_join(h, (RtNode){k, 1}, run->arena + s->begin, k + 1 == s->hi, true);
	return RT_OK;
}
