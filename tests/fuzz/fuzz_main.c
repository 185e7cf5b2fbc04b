/* fuzz_main.c: a mutation run of fixed seed over a target's valid files: fuzz_NAME [ROUNDS [SEED]], ten times the
 * rounds with LONG in the environment; or those files written into a folder, where libFuzzer starts from them:
 * fuzz_NAME --seeds FOLDER.
 *
 * Every input ends at a page that cannot be read, so that reading one byte too many is a crash also without a
 * sanitizer; a round of ten seconds is a crash too. In a debugger, `round` says which input it was. Mutations: bits,
 * bytes, interesting numbers, cuts, copies, insertions. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUZZ_ROOM 65536

static uint64_t
fuzz_next(uint64_t *s)
{
	*s += 0x9e3779b97f4a7c15ull;             /* splitmix64 (Steele, Lea, Flood 2014) */
	uint64_t z = *s;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static size_t
fuzz_mutate(uint8_t *b, size_t n, uint64_t *s)
{
	static const uint64_t numbers[] = {0,
	                                   1,
	                                   0x7f,
	                                   0x80,
	                                   0xff,
	                                   0x7fff,
	                                   0xffff,
	                                   0x7fffffff,
	                                   0x80000000,
	                                   0xffffffff,
	                                   0x7fffffffffffffff,
	                                   0xffffffffffffffff};
	uint64_t r = fuzz_next(s);
	size_t at = n ? fuzz_next(s) % n : 0, len = fuzz_next(s) % 9, from = n ? fuzz_next(s) % n : 0;

	if (n == 0)
		return 0;
	switch (r % 8) {
	case 0: b[at] ^= (uint8_t)(1 << (r >> 8) % 8); break;
	case 1: b[at] = (uint8_t)(r >> 8); break;
	case 2:
		len = (size_t)1 << len % 4;
		if (at + len <= n)
			memcpy(b + at, &numbers[(r >> 8) % 12], len);
		break;
	case 3: return r & 256 ? at : n;          /* cut */
	case 4:
		if (at + len <= n && from + len <= n)
			memmove(b + at, b + from, len);
		break;
	case 5:                                      /* insert */
		if (n + len > FUZZ_ROOM)
			break;
		memmove(b + at + len, b + at, n - at);
		return n + len;
	case 6:                                      /* delete */
		if (at + len > n)
			break;
		memmove(b + at, b + at + len, n - at - len);
		return n - len;
	default: b[at] = (uint8_t)"0123456789{}[]()',:\"\\-.eE<>|"[(r >> 8) % 28]; break;
	}
	return n;
}

static int
fuzz_write_seeds(const char *folder, uint8_t *work)
{
	size_t n;

	for (int k = 0; (n = fuzz_seed(k, work, FUZZ_ROOM)) > 0; k++) {
		char path[4096];
		FILE *f;

		snprintf(path, sizeof path, "%s/seed%d", folder, k);
		f = fopen(path, "wb");
		if (!f || fwrite(work, 1, n, f) != n || fclose(f) != 0) {
			perror(path);
			return 1;
		}
	}
	return 0;
}

int
main(int argc, char **argv)
{
	const char *more = getenv("LONG");
	long rounds = (argc > 1 ? atol(argv[1]) : 20000) * (more && *more ? 10 : 1);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	long page = sysconf(_SC_PAGESIZE);
	size_t span = ((FUZZ_ROOM + (size_t)page - 1) / (size_t)page) * (size_t)page;
	uint8_t *map = mmap(NULL, span + (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	        *work = malloc(FUZZ_ROOM);
	uint64_t s = seed;
	int seeds = 0;

	if (map == MAP_FAILED || !work || mprotect(map + span, (size_t)page, PROT_NONE) != 0)
		return 1;
	if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
		int status = fuzz_write_seeds(argv[2], work);

		free(work);
		return status;
	}
	while (fuzz_seed(seeds, work, FUZZ_ROOM))
		seeds++;
	for (long round = 0; round < rounds; round++) {
		size_t n = fuzz_seed((int)(round % seeds), work, FUZZ_ROOM);
		int changes = round < seeds ? 0 : 1 + (int)(fuzz_next(&s) % 6);

		while (changes-- > 0)
			n = fuzz_mutate(work, n, &s);
		memcpy(map + span - n, work, n);
		alarm(10);
		LLVMFuzzerTestOneInput(map + span - n, n);
	}
	free(work);
	printf("1 passed, 0 failed, 0 skipped\n");
	return 0;
}
