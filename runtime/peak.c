/* peak.c: the machine's peaks, measured with all threads at once: FMAs in independent chains in registers;
 * bytes of memory in a sum of two
 * vectors (STREAM's add: two read, one written past the caches; McCalpin 1995), which no elementwise kernel can pass
 * for long.
 *
 * Vector float32 with the widest set there is (AVX-512, AVX2, else plain C); for programs that multiply bf16 or f16
 * also the bf16 dot products and the f16 FMAs of AVX-512 and the products of tiles (AMX) where their code
 * object asks for them and the CPU has them: the largest result counts. The best of several short samples, because
 * machines are shared. Two operations per FMA. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

#define PEAK_CHAINS 12           /* latency 4 to 5 cycles times 2 units */
#define PEAK_LOOPS 20000
#define PEAK_SAMPLES 12

typedef double PeakLoop(int64_t loops, double *flops); /* sets the operations done; returns something of the values */

#if defined(__x86_64__)
#include <immintrin.h>

/* A variable per chain: an array would live in memory, and its loads and stores would be what is measured. */
#define EACH_CHAIN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)

__attribute__((target("avx512f"))) static double
peak_avx512(int64_t loops, double *flops)
{
	__m512 a = _mm512_set1_ps(0.999f), sum = _mm512_setzero_ps(), b = _mm512_set1_ps(0.001f);

#define CHAIN(k) __m512 c##k = _mm512_set1_ps(k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
#define CHAIN(k) c##k = _mm512_fmadd_ps(c##k, a, b); __asm__ volatile("" : "+v"(c##k));
	for (int64_t i = 0; i < loops; i++) {
		EACH_CHAIN(CHAIN)
	}
#undef CHAIN
#define CHAIN(k) sum = _mm512_add_ps(sum, c##k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
	*flops = (double)loops * PEAK_CHAINS * 32;
	return _mm512_reduce_add_ps(sum);
}

__attribute__((target("avx2,fma"))) static double
peak_avx2(int64_t loops, double *flops)
{
	__m256 a = _mm256_set1_ps(0.999f), sum = _mm256_setzero_ps(), b = _mm256_set1_ps(0.001f);
	float out[8];

#define CHAIN(k) __m256 c##k = _mm256_set1_ps(k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
#define CHAIN(k) c##k = _mm256_fmadd_ps(c##k, a, b); __asm__ volatile("" : "+x"(c##k));
	for (int64_t i = 0; i < loops; i++) {
		EACH_CHAIN(CHAIN)
	}
#undef CHAIN
#define CHAIN(k) sum = _mm256_add_ps(sum, c##k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
	_mm256_storeu_ps(out, sum);
	*flops = (double)loops * PEAK_CHAINS * 16;
	return out[0];
}

__attribute__((target("avx512f,avx512bf16"))) static double
peak_bf16(int64_t loops, double *flops)
{

	__m512 sum = _mm512_setzero_ps();
	__m512i ones = _mm512_set1_epi16(0x3c00);
	__m512bh a;

	memcpy(&a, &ones, sizeof a);
#define CHAIN(k) __m512 c##k = _mm512_set1_ps(k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
#define CHAIN(k) c##k = _mm512_dpbf16_ps(c##k, a, a); __asm__ volatile("" : "+v"(c##k));
	for (int64_t i = 0; i < loops; i++) {
		EACH_CHAIN(CHAIN)
	}
#undef CHAIN
#define CHAIN(k) sum = _mm512_add_ps(sum, c##k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
	*flops = (double)loops * PEAK_CHAINS * 64;
	return _mm512_reduce_add_ps(sum);
}

__attribute__((target("avx512f,avx512fp16"))) static double
peak_f16(int64_t loops, double *flops)
{
	__m512h a = _mm512_set1_ph(0.999f), b = _mm512_set1_ph(0.001f), sum = _mm512_setzero_ph();

#define CHAIN(k) __m512h c##k = _mm512_set1_ph(k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
#define CHAIN(k) c##k = _mm512_fmadd_ph(c##k, a, b); __asm__ volatile("" : "+v"(c##k));
	for (int64_t i = 0; i < loops; i++) {
		EACH_CHAIN(CHAIN)
	}
#undef CHAIN
#define CHAIN(k) sum = _mm512_add_ph(sum, c##k);
	EACH_CHAIN(CHAIN)
#undef CHAIN
	*flops = (double)loops * PEAK_CHAINS * 64;
	return (double)_mm512_reduce_add_ph(sum);
}
/* What LDTILECFG reads: palette 1, eight tiles of 16 rows of 64 bytes. */
typedef struct TileShapes { uint8_t palette, row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } TileShapes;

/* Sums in six tiles hide the latency of a product, 52 cycles of which it takes 16. Elements differ: zeros draw less
 * power, and the clock is higher. */
__attribute__((target("amx-tile,amx-bf16"))) static double
peak_tiles(int64_t loops, double *flops)
{
	TileShapes shapes = {.palette = 1};
	float sums[16][16];
	uint16_t elements[16][32];
	uint32_t seed = 1;

	for (int i = 0; i < 8; i++) {
		shapes.bytes[i] = 64;
		shapes.rows[i] = 16;
	}
	for (int i = 0; i < 512; i++) {
		seed = seed * 1664525u + 1013904223u;
		/* 0.03 to 0.12, of either sign */
		elements[i / 32][i % 32] = (uint16_t)(0x3d00 | (seed >> 16 & 0x80ff));
	}
	_tile_loadconfig(&shapes);
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	_tile_zero(4);
	_tile_zero(5);
	_tile_loadd(6, elements, 64);
	_tile_loadd(7, elements, 64);
	for (int64_t i = 0; i < loops; i++) {
		_tile_dpbf16ps(0, 6, 7);
		_tile_dpbf16ps(1, 6, 7);
		_tile_dpbf16ps(2, 6, 7);
		_tile_dpbf16ps(3, 6, 7);
		_tile_dpbf16ps(4, 6, 7);
		_tile_dpbf16ps(5, 6, 7);
	}
	_tile_stored(0, sums, 64);
	_tile_release();
	*flops = (double)loops * 6 * 16 * 16 * 32 * 2;
	return sums[0][0];
}
#endif

static double
peak_plain(int64_t loops, double *flops)
{
	float c[32];
	double sum = 0;

	for (int k = 0; k < 32; k++)
		c[k] = (float)k;
	for (int64_t i = 0; i < loops; i++) {
		for (int k = 0; k < 32; k++)
			c[k] = c[k] * 0.999f + 0.001f;
		__asm__ volatile("" : : "r"(c) : "memory");
	}
	for (int k = 0; k < 32; k++)
		sum += c[k];
	*flops = (double)loops * 64;
	return sum;
}

typedef struct PeakWork { PeakLoop *loop; double done[1024]; double value; } PeakWork;

static void
peak_task(void *cx, int64_t t0, int64_t t1, int thread)
{
	PeakWork *w = cx;

	(void)thread;
	for (int64_t t = t0; t < t1; t++) { /* a thread may have another's task too */
		volatile double value = w->loop(PEAK_LOOPS, &w->done[t & 1023]);

		(void)value;
	}
}

static double
peak_measure(RtThreads *p, PeakLoop *loop)
{
	int n = rt_threads_count(p), used = rt_threads_used(p);
	double best = 0;

	rt_threads_use(p, n);
	for (int sample = 0; sample < PEAK_SAMPLES; sample++) {
		PeakWork w = {.loop = loop};
		double begin = rt_now(), seconds, all = 0;

		rt_threads_run(p, peak_task, &w, n);
		seconds = rt_now() - begin;
		for (int i = 0; i < n && i < 1024; i++)
			all += w.done[i];
		if (seconds > 0 && all / seconds > best)
			best = all / seconds;
	}
	rt_threads_use(p, used);
	return best;
}

double
rt_peak_flops(RtThreads *p, bool narrow, const char *needs)
{
	PeakLoop *loop = peak_plain;
	double best, more = 0;

#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f"))
		loop = peak_avx512;
	else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		loop = peak_avx2;
	if (narrow && strstr(needs, "avx512bf16") && __builtin_cpu_supports("avx512bf16"))
		more = peak_measure(p, peak_bf16);
	if (narrow && strstr(needs, "avx512fp16")) {
		double half = peak_measure(p, peak_f16);

		more = half > more ? half : more;
	}
	if (narrow && strstr(needs, "amx")) {
		double tiles = peak_measure(p, peak_tiles);

		more = tiles > more ? tiles : more;
	}
#endif
	best = peak_measure(p, loop);
	return more > best ? more : best;
}

/* ---- memory */

enum { STREAM_BYTES = 64 << 20, STREAM_SAMPLES = 6, STREAM_TASKS = 64 };

typedef struct Stream { const float *a, *b; float *sum; int64_t n; } Stream;

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
stream_avx2(const Stream *s, int64_t lo, int64_t hi)
{
	for (int64_t i = lo; i < hi; i += 8)
		_mm256_stream_ps(s->sum + i, _mm256_add_ps(_mm256_load_ps(s->a + i), _mm256_load_ps(s->b + i)));
	_mm_sfence();
}
#endif

static void
stream_plain(const Stream *s, int64_t lo, int64_t hi)
{
	for (int64_t i = lo; i < hi; i++)
		s->sum[i] = s->a[i] + s->b[i];
}

static void
stream_task(void *cx, int64_t t0, int64_t t1, int thread)
{
	const Stream *s = cx;
	int64_t lo = t0 * (s->n / STREAM_TASKS), hi = t1 * (s->n / STREAM_TASKS);

	(void)thread;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		stream_avx2(s, lo, hi);
		return;
	}
#endif
	stream_plain(s, lo, hi);
}

double
rt_peak_memory(RtThreads *p)
{
	int64_t n = STREAM_BYTES / (int64_t)sizeof(float);
	float *room = aligned_alloc(64, 3 * (size_t)STREAM_BYTES);
	double best = 0;
	int used = rt_threads_used(p);

	if (!room)
		return 0;
	memset(room, 0, 3 * (size_t)STREAM_BYTES);
	rt_threads_use(p, rt_threads_count(p));
	for (int sample = 0; sample < STREAM_SAMPLES; sample++) {
		Stream s = {room, room + n, room + 2 * n, n};
		double begin = rt_now(), seconds;

		rt_threads_run(p, stream_task, &s, STREAM_TASKS);
		seconds = rt_now() - begin;
		if (seconds > 0 && 3.0 * STREAM_BYTES / seconds > best)
			best = 3.0 * STREAM_BYTES / seconds;
	}
	rt_threads_use(p, used);
	free(room);
	return best;
}
