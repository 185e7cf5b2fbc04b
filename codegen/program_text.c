/* program_text.c: what all of the descriptor is written with: pairs of an object, types, places in the model, settings
 * that are integers.
 *
 * In: a buffer and a value, or a module and a name.   Out: JSON, or the value. */
#include "program.h"

void
program_put_shape(Buf *b, const Type *t)
{
	buf_printf(b, "[");
	for (int i = 0; i < t->rank; i++)
		buf_printf(b, "%s%lld", i ? "," : "", (long long)t->axis[i].n);
	buf_printf(b, "]");
}

/* dtype, shape and layout of a tensor */
void
program_put_type(Buf *b, const Type *t)
{
	buf_printf(b, ", \"dtype\": \"%s\", \"shape\": ", dtype_info[t->dtype].name);
	program_put_shape(b, t);
	if (type_is_plain(t))
		return;
	buf_printf(b, ", \"perm\": [");
	for (int k = 0; k < t->rank; k++)
		buf_printf(b, "%s%d", k ? "," : "", t->perm[k]);
	buf_printf(b, "]");
}

const char *
program_where(const Module *m, Arena *a, Loc l)
{
	if (!l.file || l.file >= m->diags->source.n)
		return "";
	return arena_printf(a, "%s:%u:%u", m->diags->source.at[l.file].name, (unsigned)l.line, (unsigned)l.col);
}

void
program_put_number(Buf *b, const char *key, double x)
{
	buf_printf(b, ", \"%s\": ", key);
	buf_double(b, x);
}

void
program_put_text(Buf *b, const char *key, const char *text)
{
	buf_printf(b, ", \"%s\": ", key);
	buf_json(b, text ? text : "");
}

int64_t
program_setting(const Module *m, const char *name, int64_t none)
{
	const Setting *s = setting(m, name);

	return s && (s->kind == SET_INT || s->kind == SET_BOOL) ? s->i : none;
}

int64_t
program_calls(const Module *m, int64_t *shards)
{
	int64_t s = program_setting(m, "train.shards", 1);

	if (shards)
		*shards = s;
	return s > 1 ? s : program_setting(m, "train.accumulate", 1);
}
