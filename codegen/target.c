/* target.c: the table of targets, and what their machines' words are made of. In: a name.   Out: its Target, NULL if
 * there is none. */
#include "codegen.h"
#include <string.h>

#define TARGET(name, var) extern const Target var;
#include "targets.def"
#undef TARGET

const Target *const targets[] = {
#define TARGET(name, var) &var,
#include "targets.def"
#undef TARGET
};
const int ntargets = (int)(sizeof targets / sizeof *targets);

const Target *
target_named(const char *name)
{
	for (int i = 0; i < ntargets; i++)
		if (!strcmp(targets[i]->name, name))
			return targets[i];
	return NULL;
}

const char *
bytes_word(Arena *a, int64_t bytes)
{
	static const struct { int shift; const char *letter; } units[] = {{30, "G"}, {20, "M"}, {10, "K"}, {0, ""}};
	size_t i = 0;

	while (units[i].shift && (bytes >> units[i].shift == 0 || bytes & (((int64_t)1 << units[i].shift) - 1)))
		i++;
	return arena_printf(a, "%lld%s", (long long)(bytes >> units[i].shift), units[i].letter);
}
