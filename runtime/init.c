/* init.c: initial values of all states, by all threads, the same bits for any number of them.
 *
 * In: the descriptor's states (kind of value, a, b), the seed.   Out: their elements in the arena.
 * Element j of a state is a function of (seed, name, j) alone (philox.h), so tasks of INIT_GRAIN elements need nothing
 * of each other. What the language pins is the double that philox_normal gives, rounded to f32. Sines and logarithms of
 * the C library take a second for 20 million elements; here blocks of them are computed in vectors by short series with
 * a known bound of error, and an element is drawn again by philox_normal where both ends of the error's interval do not
 * round to one f32 (the rounding test of Ziv, "Fast evaluation of elementary mathematical functions with correctly
 * rounded last bit", 1991). That happens about once in 100,000 elements. Other element types take philox_normal
 * always. */
#include "host.h"
#include "philox.h"

#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* for its vectorizer, whatever the build type; clang's is on at -O2 */
#endif

#define INIT_GRAIN 4096          /* elements of a task, a multiple of BLOCK */
#define GROUPS 64
#define BLOCK (4 * GROUPS)       /* elements drawn at once */
#define PAIRS (BLOCK / 2)

typedef struct InitWork { RtHost *h; const RtState *s; uint32_t stream; } InitWork;

/* ---- one element after the other */

/* The four elements that one group of random numbers gives. */
static void
init_group(const InitWork *w, int64_t group, double x[4])
{
	const RtState *s = w->s;
	uint32_t n[4];

	philox_group((uint64_t)w->h->run.seed, w->stream, 0, (uint64_t)group, n);
	for (int k = 0; k < 4 && s->init == 'u'; k++)
		x[k] = s->a + (s->b - s->a) * philox_unit(n[k]);
	for (int k = 0; k < 4 && s->init == 'n'; k += 2) {
		philox_normal_pair(n[k], n[k + 1], x + k);
		x[k] = s->b * x[k] + s->a;
		x[k + 1] = s->b * x[k + 1] + s->a;
	}
}

/* ---- a block, in vectors: loops over arrays of fixed length, which compilers turn into vector code */

typedef struct Block {
	uint32_t n[4][GROUPS];
	double x[4][GROUPS];
	double radius[2][GROUPS];
	float low[4][GROUPS];
	int32_t doubtful[4][GROUPS];
} Block;

#define INLINE static inline __attribute__((always_inline)) void

INLINE
block_numbers(Block *b, uint32_t k0, uint32_t k1, uint64_t group)
{
	for (int i = 0; i < GROUPS; i++) {
		b->n[0][i] = (uint32_t)(group + (uint64_t)i);
		b->n[1][i] = (uint32_t)((group + (uint64_t)i) >> 32);
		b->n[2][i] = b->n[3][i] = 0;
	}
	for (int round = 0; round < PHILOX_ROUNDS; round++, k0 += PHILOX_W0, k1 += PHILOX_W1)
		for (int i = 0; i < GROUPS; i++) {
			uint64_t p0 = (uint64_t)PHILOX_M0 * b->n[0][i], p1 = (uint64_t)PHILOX_M1 * b->n[2][i];

			b->n[0][i] = (uint32_t)(p1 >> 32) ^ b->n[1][i] ^ k0;
			b->n[1][i] = (uint32_t)p1;
			b->n[2][i] = (uint32_t)(p0 >> 32) ^ b->n[3][i] ^ k1;
			b->n[3][i] = (uint32_t)p0;
		}
}

/* radius = sqrt(-2 ln t), t = 1 - u a multiple of 2^-24 in (0, 1]. With t = 2^k z and z in [sqrt(1/2), sqrt(2)): ln z =
 * 2 artanh(s), s = (z - 1) / (z + 1), by its series to s^17; what is left out is below 2^-49 of it. */
INLINE
block_radius(double *radius, const uint32_t *n)
{
	for (int i = 0; i < GROUPS; i++) {
		double d = (double)(int32_t)((1 << 24) - (n[i] >> 8)), z, k, s, s2, p;
		uint64_t bits, above;

		memcpy(&bits, &d, 8);
		above = (bits - 0x3FE6A09E667F3BCDull) >> 52;          /* bits of sqrt(1/2) */
		bits -= above << 52;
		memcpy(&z, &bits, 8);
		bits = above | 0x4330000000000000ull;                  /* 2^52 + above */
		memcpy(&k, &bits, 8);
		k -= 0x1p52 + 24;
		s = (z - 1) / (z + 1);
		s2 = s * s;
		p = 1.0 / 17;
		p = p * s2 + 1.0 / 15;
		p = p * s2 + 1.0 / 13;
		p = p * s2 + 1.0 / 11;
		p = p * s2 + 1.0 / 9;
		p = p * s2 + 1.0 / 7;
		p = p * s2 + 1.0 / 5;
		p = p * s2 + 1.0 / 3;
		p = p * s2 + 1;
		radius[i] = __builtin_sqrt(-2 * (k * 0.693147180559945309417 + 2 * s * p));
	}
}

/* Cosine and sine of 2 pi v: the nearest quarter turn taken off as an integer, Taylor's series to a^16 and a^17 within
 * an eighth of a turn: wrong by less than 2^-50. */
INLINE
block_turn(double *cosine, double *sine, const uint32_t *n)
{
	for (int i = 0; i < GROUPS; i++) {
		int32_t v = (int32_t)(n[i] >> 8), quarter = (v + (1 << 21)) >> 22;
		double a = (double)(v - (quarter << 22)) * (6.283185307179586476925286766559 * 0x1p-24), a2 = a * a, s,
		       c;
		double swap = (double)(quarter & 1), minus_c = 1 - (double)((quarter + 1) & 2),
		       minus_s = 1 - (double)(quarter & 2);

		s = 1.0 / 355687428096000;
		s = s * a2 - 1.0 / 1307674368000;
		s = s * a2 + 1.0 / 6227020800;
		s = s * a2 - 1.0 / 39916800;
		s = s * a2 + 1.0 / 362880;
		s = s * a2 - 1.0 / 5040;
		s = s * a2 + 1.0 / 120;
		s = s * a2 - 1.0 / 6;
		s = s * a2 * a + a;
		c = 1.0 / 20922789888000;
		c = c * a2 - 1.0 / 87178291200;
		c = c * a2 + 1.0 / 479001600;
		c = c * a2 - 1.0 / 3628800;
		c = c * a2 + 1.0 / 40320;
		c = c * a2 - 1.0 / 720;
		c = c * a2 + 1.0 / 24;
		c = c * a2 - 1.0 / 2;
		c = c * a2 + 1;
		cosine[i] = minus_c * (swap != 0 ? s : c);
		sine[i] = minus_s * (swap != 0 ? c : s);
	}
}

/* The error bound: 2^-46 of the radius covers both series, the roundings here, and those that philox_normal makes of
 * its own (its angle's error is up to 2^-50); 2^-44 leaves room. 2^-120 keeps zeros, whose sign must be right, in
 * doubt. */
INLINE
block_round(Block *b, double mean, double deviation)
{
	double wide = __builtin_fabs(deviation) * 0x1p-44, floor = __builtin_fabs(mean) * 0x1p-50 + 0x1p-120;

	for (int k = 0; k < 4; k++)
		for (int i = 0; i < GROUPS; i++) {
			double r = b->radius[k >> 1][i], y = deviation * (r * b->x[k][i]) + mean,
			       error = r * wide + floor;
			float low = (float)(y - error), high = (float)(y + error);

			b->low[k][i] = low;
			b->doubtful[k][i] = !(low == high);
		}
}

INLINE
block_normal(Block *b, uint32_t k0, uint32_t k1, uint64_t group, double mean, double deviation)
{
	block_numbers(b, k0, k1, group);
	for (int pair = 0; pair < 2; pair++) {
		block_radius(b->radius[pair], b->n[2 * pair]);
		block_turn(b->x[2 * pair], b->x[2 * pair + 1], b->n[2 * pair + 1]);
	}
	block_round(b, mean, deviation);
}

/* The same operations as init_group's, so nothing is in doubt. */
INLINE
block_uniform(Block *b, uint32_t k0, uint32_t k1, uint64_t group, double from, double to)
{
	block_numbers(b, k0, k1, group);
	for (int k = 0; k < 4; k++)
		for (int i = 0; i < GROUPS; i++) {
			b->low[k][i] = (float)(from + (to - from) * ((double)(int32_t)(b->n[k][i] >> 8) * 0x1p-24));
			b->doubtful[k][i] = 0;
		}
}

typedef void BlockFn(Block *b, char init, uint32_t k0, uint32_t k1, uint64_t group, double a, double c);
#define BLOCK_FN(name, attribute) \
attribute static void \
name(Block *b, char init, uint32_t k0, uint32_t k1, uint64_t group, double a, double c) \
{ \
	if (init == 'n') \
		block_normal(b, k0, k1, group, a, c); \
	else \
		block_uniform(b, k0, k1, group, a, c); \
}
BLOCK_FN(block_any, )
#if defined(__x86_64__)
BLOCK_FN(block_avx2, __attribute__((target("avx2"))))
BLOCK_FN(block_avx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static BlockFn *
block_choose(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl"))
		return block_avx512;
	if (__builtin_cpu_supports("avx2"))
		return block_avx2;
#endif
	return block_any;
}

/* Elements j .. j + BLOCK - 1 of a state. */
static void
init_block(const InitWork *w, BlockFn *draw, int64_t j, float out[BLOCK])
{
	Block b;
	double x[4];
	int32_t doubtful = 0;

	draw(&b, w->s->init, (uint32_t)w->h->run.seed, w->stream, (uint64_t)j >> 2, w->s->a, w->s->b);
	for (int i = 0; i < GROUPS; i++)
		for (int k = 0; k < 4; k++) {
			out[4 * i + k] = b.low[k][i];
			doubtful |= b.doubtful[k][i];
		}
	for (int i = 0; doubtful && i < GROUPS; i++)
		if (b.doubtful[0][i] | b.doubtful[1][i] | b.doubtful[2][i] | b.doubtful[3][i]) {
			init_group(w, (j >> 2) + i, x);
			for (int k = 0; k < 4; k++)
				out[4 * i + k] = (float)x[k];
		}
}

/* ---- places */

/* Places in memory of a tensor's elements in logical row-major order, one after the other: a division per axis and
 * element would cost more than the random numbers. */
typedef struct InitWalk { const RtTensor *t; int64_t i[RT_MAX_RANK], at; } InitWalk;

static InitWalk
walk_from(const RtTensor *t, int64_t j)
{
	InitWalk w = {.t = t, .at = t->permuted ? rt_tensor_place(t, j) : j};

	for (int k = t->rank; k-- > 0; j /= t->shape[k])
		w.i[k] = j % t->shape[k];
	return w;
}

static inline int64_t
walk_next(InitWalk *w)
{
	int64_t at = w->at;

	if (!w->t->permuted) {
		w->at++;
		return at;
	}
	for (int k = w->t->rank; k-- > 0;) {
		w->at += w->t->stride[k];
		if (++w->i[k] < w->t->shape[k])
			break;
		w->at -= w->t->stride[k] * w->t->shape[k];
		w->i[k] = 0;
	}
	return at;
}

static void
init_slowly(const InitWork *w, int64_t from, int64_t to)
{
	const RtState *s = w->s;
	uint8_t *out = w->h->run.arena + s->t.offset;
	int64_t bytes = rt_dtype[s->t.dtype].bytes;
	InitWalk at = walk_from(&s->t, from);
	double x[4] = {s->a, s->a, s->a, s->a};

	for (int64_t j = from; j < to; j++) {
		if (s->init != 'c' && (j & 3) == 0)
			init_group(w, j >> 2, x);
		rt_dtype_write(s->t.dtype, out + walk_next(&at) * bytes, x[j & 3]);
	}
}

static void
init_part(void *cx, int64_t t0, int64_t t1, int thread)
{
	const InitWork *w = cx;
	const RtState *s = w->s;
	float *out = (float *)(void *)(w->h->run.arena + s->t.offset), block[BLOCK];
	int64_t from = t0 * INIT_GRAIN, to = t1 * INIT_GRAIN < s->t.count ? t1 * INIT_GRAIN : s->t.count;
	BlockFn *draw = block_choose();
	InitWalk at;

	(void)thread;
	if (s->t.dtype != RT_F32 || s->init == 'c') {
		init_slowly(w, from, to);
		return;
	}
	at = walk_from(&s->t, from);
	for (int64_t j = from; j < to; j += BLOCK) {
		int n = to - j < BLOCK ? (int)(to - j) : BLOCK;

		init_block(w, draw, j, block);
		if (!s->t.permuted)
			memcpy(out + j, block, sizeof *block * (size_t)n);
		for (int i = 0; i < n && s->t.permuted; i++)
			out[walk_next(&at)] = block[i];
	}
}

/* Of a state NAME.suffix the state NAME; -1: there is none. */
static int
state_behind(const RtProgram *p, int state, const char *suffix)
{
	const char *name = p->state[state].t.name;
	size_t n = strlen(name), end = strlen(suffix);

	for (int k = 0; k < p->nstate && n > end; k++)
		if (strncmp(p->state[k].t.name, name, n - end) == 0 && !p->state[k].t.name[n - end])
			return k;
	return -1;
}

int
rt_state_averaged(const RtProgram *p, int state)
{
	return state_behind(p, state, ".average");
}

void
rt_host_init_average(RtHost *h, int state)
{
	int of = rt_state_averaged(&h->program, state);
	const RtTensor *to = &h->program.state[state].t;

	if (of >= 0 && h->program.state[of].t.bytes == to->bytes)
		memcpy(h->run.arena + to->offset, h->run.arena + h->program.state[of].t.offset, (size_t)to->bytes);
}

/* ---- copies of parameters */

typedef struct CopyWork { uint8_t *arena; const RtTensor *from, *to; } CopyWork;

static void
copy_part(void *cx, int64_t t0, int64_t t1, int thread)
{
	const CopyWork *w = cx;
	int64_t first = t0 * INIT_GRAIN, end = t1 * INIT_GRAIN < w->to->count ? t1 * INIT_GRAIN : w->to->count, bad;

	(void)thread;
	rt_dtype_convert(w->to->dtype, w->arena + w->to->offset + first * rt_dtype[w->to->dtype].bytes,
	                 w->from->dtype, w->arena + w->from->offset + first * rt_dtype[w->from->dtype].bytes,
	                 end - first, false, &bad);
}

/* A copy lies as its parameter does. */
void
rt_host_copies(RtHost *h)
{
	for (int k = 0; k < h->program.nstate && h->rewritten; k++) {
		const RtState *s = &h->program.state[k];
		int of = s->kind == RT_COPY ? state_behind(&h->program, k, ".copy") : -1;

		if (of < 0 || h->program.state[of].t.count != s->t.count)
			continue;
		rt_threads_run(h->threads, copy_part,
		               &(CopyWork){h->run.arena, &h->program.state[of].t, &s->t},
		               (s->t.count + INIT_GRAIN - 1) / INIT_GRAIN);
	}
	h->rewritten = false;
}

bool
rt_host_init_state(RtHost *h)
{
	h->run.prepacked = 0;
	h->rewritten = true;
	for (int k = 0; k < h->program.nstate; k++) {
		InitWork w = {.h = h, .s = &h->program.state[k], .stream = philox_stream(h->program.state[k].t.name)};

		/* the arena is new: zeros, which no memory stands behind yet */
		if (!w.s->t.count || (w.s->init == 'c' && w.s->a == 0))
			continue;
		rt_threads_run(h->threads, init_part, &w, (w.s->t.count + INIT_GRAIN - 1) / INIT_GRAIN);
	}
	for (int k = 0; k < h->program.nstate; k++)
		if (h->program.state[k].kind == RT_AVERAGE)
			rt_host_init_average(h, k);
	rt_cuts_release(h, -1);
	return true;
}
