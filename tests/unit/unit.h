/* unit.h: what every unit test starts with: cmocka and its headers, and a fixed-seed random number. */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static inline uint64_t
random_bits(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static inline double
random_between(uint64_t *state, double low, double high)
{
	return low + (high - low) * ((double)(random_bits(state) >> 11) * 0x1p-53);
}
#endif
