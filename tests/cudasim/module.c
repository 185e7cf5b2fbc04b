/* module.c: modules and the table of operations by name. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define SLOTS 2048

/* Filled once, on the first look-up: each name of each row. */
typedef struct AluIndex { const AluRow *row[SLOTS]; char name[SLOTS][32]; } AluIndex;

static uint32_t
name_slot(const char *s, size_t n)
{
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ (uint8_t)s[i]) * 16777619u;
	return h % SLOTS;
}

static void
alu_index(AluIndex *x)
{
#if defined(__x86_64__)
	const AluRow *row = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? alu_rows_v3 : alu_rows_v1;
#else
	const AluRow *row = alu_rows_v1;
#endif

	for (; row->names; row++)
		for (const char *s = row->names; *s;) {
			size_t n = strcspn(s, " ");
			uint32_t k = name_slot(s, n);

			while (x->row[k])
				k = (k + 1) % SLOTS;
			x->row[k] = row;
			memcpy(x->name[k], s, n < 31 ? n : 31);
			s += n + (s[n] == ' ');
		}
}

const AluRow *
alu_find(const char *name)
{
	static AluIndex *index; /* under the device's lock */
	size_t n = strlen(name);

	if (!index) {
		index = calloc(1, sizeof *index);
		if (!index)
			abort();
		alu_index(index);
	}
	for (uint32_t k = name_slot(name, n); index->row[k]; k = (k + 1) % SLOTS)
		if (!strcmp(index->name[k], name))
			return index->row[k];
	return NULL;
}

Func *
module_func(Module *m, const char *name)
{
	for (int i = 0; i < m->nfunc; i++)
		if (!strcmp(m->func[i]->name, name))
			return m->func[i];
	return NULL;
}

void
module_free(Module *m)
{
	for (int i = 0; i < m->nfunc; i++) {
		free(m->func[i]->name);
		free(m->func[i]->param);
		free(m->func[i]->result);
		free(m->func[i]->constant);
		free(m->func[i]->callee);
		free(m->func[i]->reach);
		free(m->func[i]);
	}
	for (int i = 0; i < m->nglobal; i++)
		free(m->global[i].name);
	for (int i = 0; i < m->nshared; i++)
		free(m->shared[i].name);
	for (int i = 0; i < 256; i++)
		free(m->file[i]);
	free(m->ins);
	free(m->extra);
	free(m->func);
	free(m->global);
	free(m->shared);
	free(m->fixup);
	free(m->loc);
	free(m);
}
