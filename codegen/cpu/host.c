/* host.c: the data caches of the CPU here.
 *
 * In: the folder where Linux lists what it knows of CPU 0 (devices/system/cpu/cpu0/cache/indexN: level, type,
 * size).   Out: bytes by level. Nothing is measured, and no choice of a kernel asks: what is read names the machine of
 * tuning records, and is shown to people. */
#include "cpu.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The first word of a small file; false: there is none. */
static bool
word_of(const char *root, int index, const char *file, char word[32])
{
	char path[512];

	snprintf(path, sizeof path, "%s/devices/system/cpu/cpu0/cache/index%d/%s", root, index, file);
	FILE *f = fopen(path, "r");
	bool good = f && fscanf(f, "%31s", word) == 1;

	if (f)
		fclose(f);
	return good;
}

/* "48K", "2M", "32768"; 0: no such number. */
static int64_t
size_of(const char *word)
{
	char *end;
	long long n = strtoll(word, &end, 10);
	int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;

	return isdigit((unsigned char)*word) && !end[shift > 0] && n < 1 << 30 ? (int64_t)n << shift : 0;
}

bool
host_caches(const char *root, int64_t bytes[3])
{
	char level[32], type[32], size[32];

	memset(bytes, 0, 3 * sizeof *bytes);
	for (int i = 0; word_of(root, i, "level", level); i++) {
		if (!word_of(root, i, "type", type) || !word_of(root, i, "size", size))
			return false;
		if (level[0] >= '1' && level[0] <= '3' && !level[1] && strcmp(type, "Instruction"))
			bytes[level[0] - '1'] = size_of(size);
	}
	return bytes[0] > 0 && bytes[1] > bytes[0];
}
