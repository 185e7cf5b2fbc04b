/* emulate.c: matrix tiles (AMX with bf16) and f16 FMAs in C, for kernels of the emulated CPUs of
 * codegen/cpu/emit/llvm.c.
 *
 * In: the operands of the instruction.   Out: what the instruction leaves, after Intel's manual (Software Developer's
 * Manual, volume 2: LDTILECFG, TILELOADD, TILEZERO, TDPBF16PS, TILESTORED, TILERELEASE; VFMADD231PH):
 * - a tile has the rows and bytes of a row that the configuration says; loads and products clear what lies behind them;
 * - TDPBF16PS sums products of even and of odd k of a row each in f32 by FMA, adds the two, then adds
 * that to the tile,
 *    rounds to nearest, takes subnormal numbers for zero and gives none;
 *  - an f16 FMA is rounded once, subnormal numbers as they are.
 * Stops the program where the CPU would fault: no configuration, one that is not valid, shapes that do not
 * fit. */
#include "harness.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <immintrin.h>

enum { NTILE = 8, MAX_ROWS = 16, MAX_BYTES = 64 };

typedef struct Tile { int rows, bytes; uint8_t at[MAX_ROWS][MAX_BYTES]; } Tile;

static _Thread_local Tile tile[NTILE]; /* of this thread, as registers are */
static _Thread_local bool configured;
static void
fault(const char *what)
{
	fprintf(stderr, "emulated tiles: %s\n", what);
	abort();
}

static Tile *
tile_of(int i)
{
	if (!configured)
		fault("used without a configuration");
	if (i < 0 || i >= NTILE || !tile[i].rows || !tile[i].bytes)
		fault("a tile of no rows");
	return &tile[i];
}

void
emulate_ldtilecfg(const uint8_t *config)
{
	if (config[0] != 1 || config[1])
		fault("palette or first row");
	for (int i = 2; i < 16; i++)
		if (config[i])
			fault("reserved bytes");
	for (int i = 0; i < 16; i++) {
		int bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8, rows = config[48 + i];

		if (rows > MAX_ROWS || bytes > MAX_BYTES || !rows != !bytes || (i >= NTILE && rows))
			fault("rows or bytes of a row");
		if (i < NTILE)
			tile[i] = (Tile){.rows = rows, .bytes = bytes};
	}
	configured = true;
}

void
emulate_tilerelease(void)
{
	memset(tile, 0, sizeof tile);
	configured = false;
}

void
emulate_tilezero(int t)
{
	memset(tile_of(t)->at, 0, sizeof tile->at);
}

void
emulate_tileloadd64(int t, const uint8_t *p, int64_t stride)
{
	Tile *x = tile_of(t);

	memset(x->at, 0, sizeof x->at);
	for (int i = 0; i < x->rows; i++)
		memcpy(x->at[i], p + i * stride, (size_t)x->bytes);
}

void
emulate_tilestored64(int t, uint8_t *p, int64_t stride)
{
	const Tile *x = tile_of(t);

	for (int i = 0; i < x->rows; i++)
		memcpy(p + i * stride, x->at[i], (size_t)x->bytes);
}

/* One row of sums; the CPU's own mode does what the instruction does with subnormal numbers. */
__attribute__((target("avx512f,fma"), noinline)) static void
dot_row(float *c, const uint32_t *a, const Tile *b, int pairs, int columns)
{
	float even[16] = {0}, odd[16] = {0};

	for (int k = 0; k < pairs; k++) {
		const uint32_t *row = (const uint32_t *)(const void *)b->at[k];
		uint32_t bits[2] = {a[k] << 16, a[k] & 0xffff0000u};
		float x[2];

		memcpy(x, bits, sizeof x);
		for (int n = 0; n < columns; n++) {
			uint32_t other[2] = {row[n] << 16, row[n] & 0xffff0000u};
			float y[2];

			memcpy(y, other, sizeof y);
			even[n] = __builtin_fmaf(x[0], y[0], even[n]);
			odd[n] = __builtin_fmaf(x[1], y[1], odd[n]);
		}
	}
	for (int n = 0; n < columns; n++) {
		float both = even[n] + odd[n];

		c[n] += both;
	}
}

void
emulate_tdpbf16ps(int c, int a, int b)
{
	enum { FLUSH_AND_ZERO = 0x8040, NEAREST_MASKED = 0x1f80 };
	Tile *x = tile_of(c), *y = tile_of(a), *z = tile_of(b);
	unsigned mode = _mm_getcsr();

	if (c == a || c == b || a == b || x->rows != y->rows || x->bytes != z->bytes || y->bytes != 4 * z->rows)
		fault("operands that do not fit");
	_mm_setcsr(NEAREST_MASKED | FLUSH_AND_ZERO);
	for (int m = 0; m < x->rows; m++)
		dot_row((float *)(void *)x->at[m], (const uint32_t *)(const void *)y->at[m], z, y->bytes / 4,
		        x->bytes / 4);
	_mm_setcsr(mode);
}

/* a * b + c with one rounding: the product is exact in double, and its sum with c is rounded to odd, first to double
 * and then to float: what rounds to f16 behind that cannot tell it from the exact number. */
static inline float
fma_to_odd(float a, float b, float c)
{
	double p = (double)a * (double)b, z = (double)c, s = p + z, t = s - p, error = (p - (s - t)) + (z - t);
	uint64_t bits;

	memcpy(&bits, &s, 8);
	if (error != 0 && isfinite(s) && !(bits & 1))
		bits += (error > 0) == (s > 0) ? 1 : (uint64_t)-1;
	if (bits & 0x1fffffff && isfinite(s))
		bits = (bits & ~(uint64_t)0x1fffffff) | 0x20000000;
	memcpy(&s, &bits, 8);
	return (float)s;
}

__attribute__((target("avx2,f16c"))) void
emulate_fma_f16(HalfNumber *sum, const HalfNumber *a, const HalfNumber *b, int64_t n)
{
	for (int64_t i = 0; i < n; i += 8) {
		float x[3][8];

		for (int k = 0; k < 3; k++)
			_mm256_storeu_ps(
			        x[k], _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((k == 0   ? a
			                                                                               : k == 1 ? b
			                                                                                        : sum) +
			                                                                              i))));
		for (int k = 0; k < 8; k++)
			x[2][k] = fma_to_odd(x[0][k], x[1][k], x[2][k]);
		_mm_storeu_si128((__m128i *)(void *)(sum + i),
		                 _mm256_cvtps_ph(_mm256_loadu_ps(x[2]), _MM_FROUND_TO_NEAREST_INT));
	}
}
