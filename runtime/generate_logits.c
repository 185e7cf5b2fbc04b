/* generate_logits.c: loops over the logits of a vocabulary, for the command generate: the largest, the logarithm of the
 * sum of exponentials, those above a bound.
 *
 * SIDE results side by side do not wait for each other, and are the same bits however wide vectors are. */
#include "generate.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
enum { LANES = 4, VECTORS = 4, SIDE = LANES * VECTORS };
typedef double Lanes __attribute__((vector_size(8 * LANES)));
typedef int64_t Bits __attribute__((vector_size(8 * LANES)));

/* sum[i] += e^(x[i] - top), of SIDE numbers none of which is above top: x - top = k ln 2 + r, and the polynomial of
 * degree 9 that is nearest to e^r where |r| <= ln 2 / 2, within 1.4e-14 of it. What is below e^-700 counts as that. */
static inline __attribute__((always_inline)) void
add_exponentials(Lanes *sum, const double *x, double top)
{
	static const double coefficient[] = {
		0x1.70dc05d61497bp-19, 0x1.a17c1467fd380p-16, 0x1.a01bc29f0b47fp-13, 0x1.6c162d836bf41p-10,
		0x1.1111105b41b12p-7,  0x1.55555587a3518p-5,  0x1.55555555bb79dp-3,  0x1.ffffffffe8248p-2,
		0x1.ffffffffffc39p-1,  0x1.000000000003ap+0,
	};
	const double round = 0x1.8p52;           /* added to a small number: its integer is in the low bits */
	Lanes t[VECTORS], r[VECTORS], p[VECTORS];
	Bits none[VECTORS];

	for (int v = 0; v < VECTORS; v++) {
		Lanes d;

		memcpy(&d, x + v * LANES, sizeof d);
		d -= top;
		Bits low = d < -700;
		Lanes a = (Lanes)(((Bits)d & ~low) | ((Bits)(Lanes){-700, -700, -700, -700} & low)), k;

		none[v] = (Bits)d & (d != d);
		t[v] = a * 0x1.71547652b82fep0 + round;
		k = t[v] - round;
		r[v] = a - k * 0x1.62e42fee00000p-1 - k * 0x1.a39ef35793c76p-33;
		p[v] = r[v] * coefficient[0] + coefficient[1];
	}
	for (int c = 2; c < 10; c++)
		for (int v = 0; v < VECTORS; v++)
			p[v] = p[v] * r[v] + coefficient[c];
	for (int v = 0; v < VECTORS; v++) /* times 2^k */
		sum[v] += (Lanes)(((Bits)p[v] + ((Bits)t[v] << 52)) | none[v]);
}

WIDE double
logits_log_sum(const double *x, int64_t n)
{
	double most[SIDE], rest[SIDE], top = -INFINITY, all = 0;
	Lanes sum[VECTORS] = {0};
	int64_t v = 0;

	for (int k = 0; k < SIDE; k++)
		most[k] = rest[k] = -INFINITY;
	for (; v + SIDE <= n; v += SIDE)
		for (int k = 0; k < SIDE; k++)
			most[k] = x[v + k] > most[k] ? x[v + k] : most[k];
	for (int64_t k = v; k < n; k++) {
		rest[k - v] = x[k];
		top = x[k] > top ? x[k] : top;
	}
	for (int k = 0; k < SIDE; k++)
		top = most[k] > top ? most[k] : top;
	for (int64_t i = 0; i < v; i += SIDE)
		add_exponentials(sum, x + i, top);
	add_exponentials(sum, rest, top); /* those beyond n are e^-700 */
	for (int k = 0; k < SIDE; k++)
		all += sum[k / LANES][k % LANES];
	return top + log(all);
}

WIDE int32_t
logits_largest(const double *x, int64_t n)
{
	double top[SIDE], most;
	int64_t v = 0;

	for (int k = 0; k < SIDE; k++)
		top[k] = x[0];
	for (; v + SIDE <= n; v += SIDE)
		for (int k = 0; k < SIDE; k++)
			top[k] = x[v + k] > top[k] ? x[v + k] : top[k];
	for (; v < n; v++)
		top[0] = x[v] > top[0] ? x[v] : top[0];
	most = top[0];
	for (int k = 1; k < SIDE; k++)
		most = top[k] > most ? top[k] : most;
	for (v = 0; v < n; v++)
		if (x[v] == most)
			return (int32_t)v;
	return 0;                /* the first one is no number */
}

WIDE int64_t
logits_above(const double *x, int64_t from, int64_t n, double score, double sum, double least)
{
	int64_t v = from;

	for (; v + SIDE <= n; v += SIDE) {
		Bits any = {0};

		for (int k = 0; k < SIDE; k += LANES) {
			Lanes a;

			memcpy(&a, x + v + k, sizeof a);
			any |= score + (a - sum) > least;
		}
		if (any[0] | any[1] | any[2] | any[3])
			break;
	}
	while (v < n && !(score + (x[v] - sum) > least))
		v++;
	return v;
}
