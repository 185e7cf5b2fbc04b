/* philox.h: the random numbers of the `.net` language. Like rt.h it includes nothing of the project and may be included
 * from anywhere: initial values, shuffling, the interpreter and the code generators all draw from here.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with key
 * (seed mod 2^32, FNV-1a of a stream's name) and counter (group mod 2^32, group / 2^32, step, 0). Number j of a stream
 * is word j mod 4 of group j / 4, so any element can be had alone, in any order, on any number of threads. */
#ifndef RUNTIME_PHILOX_H
#define RUNTIME_PHILOX_H
#include <math.h>
#include <stdint.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

static inline void
philox_block(const uint32_t counter[4], uint32_t k0, uint32_t k1, uint32_t out[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

	for (int i = 0; i < PHILOX_ROUNDS; i++) {
		uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;

		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += PHILOX_W0;
		k1 += PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* 32-bit FNV-1a of a name's bytes: the number of its stream. */
static inline uint32_t
philox_stream(const char *name)
{
	uint32_t h = 0x811C9DC5u;

	while (*name)
		h = (h ^ (uint8_t)*name++) * 0x01000193u;
	return h;
}

/* The four numbers 4 * group .. 4 * group + 3 of a stream. */
static inline void
philox_group(uint64_t seed, uint32_t stream, uint64_t step, uint64_t group, uint32_t out[4])
{
	uint32_t counter[4] = {(uint32_t)group, (uint32_t)(group >> 32), (uint32_t)step, 0};

	philox_block(counter, (uint32_t)seed, stream, out);
}

/* Number j of a stream. Whoever wants many in order should take them by groups. */
static inline uint32_t
philox_number(uint64_t seed, uint32_t stream, uint64_t step, uint64_t j)
{
	uint32_t w[4];

	philox_group(seed, stream, step, j >> 2, w);
	return w[j & 3];
}

/* In [0, 1), a multiple of 2^-24. */
static inline double
philox_unit(uint32_t number)
{
	return (double)(number >> 8) * 0x1p-24;
}

static inline double
philox_uniform(uint64_t seed, uint32_t stream, uint64_t step, uint64_t j)
{
	return philox_unit(philox_number(seed, stream, step, j));
}

/* Box-Muller on two numbers: cosine for the even element, sine for the odd one. */
static inline double
philox_normal_of(uint32_t n1, uint32_t n2, int odd)
{
	double radius = sqrt(-2.0 * log(1.0 - philox_unit(n1)));
	double angle = 6.283185307179586476925286766559 * philox_unit(n2);

	return radius * (odd ? sin(angle) : cos(angle));
}

/* The even and the odd element of a pair at once, the same bits. */
static inline void
philox_normal_pair(uint32_t n1, uint32_t n2, double x[2])
{
	double radius = sqrt(-2.0 * log(1.0 - philox_unit(n1)));
	double angle = 6.283185307179586476925286766559 * philox_unit(n2);

	x[0] = radius * cos(angle);
	x[1] = radius * sin(angle);
}

/* Element j of the standard normal of a stream; both numbers of a pair lie in one group. */
static inline double
philox_normal(uint64_t seed, uint32_t stream, uint64_t step, uint64_t j)
{
	uint32_t w[4];
	int pair = (int)(j & 2);

	philox_group(seed, stream, step, j >> 2, w);
	return philox_normal_of(w[pair], w[pair + 1], (int)(j & 1));
}
#endif
