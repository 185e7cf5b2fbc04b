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
