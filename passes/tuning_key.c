/* tuning_key.c: what kernels and choices are called in tuning files.
 *
 * In: a graph, a group or an op of it.   Out: text. Names of layers, states and random streams are no part of it, so
 * alike layers share a record. Of a kernel: its contraction (or first op), types of operands and results, attributes
 * that are not the default; how many ops share the kernel and, where it is more than that op alone, a hash of their
 * canonical text: operators, attributes, types, who reads whom; which results stand in memory for others; which
 * operands are one and the same place; which of them are computed from states and constants alone, so that what the
 * kernel makes of them is kept. Of a choice: the rule, the op, how many others it is about (readers, for most), a hash
 * of their text. */
#include "passes.h"
#include "plan.h"
#include <inttypes.h>
#include <string.h>

struct TuneKeys {
	const Graph *g;
	uint32_t *place;             /* by Val.id: the value whose buffer it lies in */
	bool *read;                  /* by Val.id: others than its own group read it, or it is a result */
	bool *steady;                /* by Val.id; NULL: nothing is kept */
};

/* ---------------------------------------------------------------- of a graph */
static void
find_places(TuneKeys *k, Arena *a)
{
	const Graph *g = k->g;
	uint32_t *of_state = arena_array(a, uint32_t, g->module->state.n);

	for (uint32_t v = 0; v < g->val.n; v++)
		k->place[v] = v;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		uint32_t *first;

		if (op->dead || !op->nout)
			continue;
		if (op->kind == OP_load) {
			first = &of_state[module_state(g->module, attr_str(op, A_state)) - g->module->state.at];
			*first = *first ? *first : op->out[0].id;
			k->place[op->out[0].id] = *first;
		} else if (plan_is_alias(g, op)) {
			k->place[op->out[0].id] = k->place[op->in[0].id];
		}
	}
}

TuneKeys *
tuning_keys(const Graph *g, Arena *a, bool keeps)
{
	TuneKeys *k = arena_new_of(a, TuneKeys);

	*k = (TuneKeys){.g = g, .place = arena_array(a, uint32_t, g->val.n), .read = arena_array(a, bool, g->val.n),
	                .steady = keeps ? graph_steady(g, a) : NULL};
	find_places(k, a);
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int n = 0; !g->op.at[i].dead && n < g->op.at[i].nin; n++) {
			const Op *op = &g->op.at[i], *by = val_op(g, op->in[n]);

			k->read[op->in[n].id] |= !by || by->group < 0 || by->group != op->group;
		}
	for (uint32_t i = 0; i < g->result.n; i++)
		k->read[g->result.at[i].v.id] = true;
	return k;
}

/* ---------------------------------------------------------------- of a group */
static void
put_types(Buf *b, const Graph *g, const Val *v, int n)
{
	for (int i = 0; i < n; i++) {
		buf_printf(b, " ");
		type_print(b, val_type(g, v[i]));
	}
}

static const Op *
main_op(const Graph *g, int group)
{
	const Op *first = NULL;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		if (op_has((OpKind)op->kind, T_CONTRACT))
			return op;
		first = first ? first : op;
	}
	return first;
}

enum { MOST_PLACES = 64 };
typedef struct Places { uint32_t at[MOST_PLACES]; int n; } Places; /* that the group reads, in order */

/* An operand as others of the group see it: which op of the group makes it; else its type, and which earlier operand
 * it is one with. True if it is more than its type. */
static bool
put_operand(Buf *b, const TuneKeys *k, Val v, int group, uint32_t first, Places *p)
{
	uint32_t by = val_info(k->g, v)->op, place = k->place[v.id];
	bool kept = k->steady && steady_for(k->g, k->steady, v, group) && !k->g->group.at[group].once;
	bool again;
	int n = 0;

	if (by != UINT32_MAX && by < k->g->op.n && k->g->op.at[by].group == group) {
		buf_printf(b, " %" PRIu32 ".%d", by - first, val_info(k->g, v)->index);
		return true;
	}
	put_types(b, k->g, &v, 1);
	while (n < p->n && p->at[n] != place)
		n++;
	again = n < p->n;
	if (again)
		buf_printf(b, "=%d", n);
	else if (n < MOST_PLACES)
		p->at[p->n++] = place;
	if (kept)
		buf_printf(b, " kept");
	return again || kept;
}

/* All ops of the group but for names. *n: how many stand beside the main one; *plain: nothing is told beyond that
 * one's types and attributes. */
static uint64_t
structure(const TuneKeys *k, int group, int *n, bool *plain)
{
	const Graph *g = k->g;
	Buf b = {0};
	Places places = {.n = 0};
	uint32_t last, first = graph_group_ops(g, group, &last);

	*n = -1;
	*plain = true;
	for (uint32_t i = first; i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		++*n;
		buf_printf(&b, "%s", op_info[op->kind].name);
		op_print_attrs(&b, op, false);
		for (int j = 0; j < op->nin; j++)
			*plain &= !put_operand(&b, k, op->in[j], group, first, &places);
		put_types(&b, g, op->out, op->nout);
		for (int j = 0; j < op->nout; j++)
			buf_printf(&b, "%s", k->read[op->out[j].id] ? "!" : ".");
		buf_printf(&b, "\n");
	}
	*plain &= *n == 0;
	uint64_t h = hash_bytes(HASH_START, b.at, b.n);

	buf_free(&b);
	return h;
}

const Op *
tuning_key(Buf *b, const TuneKeys *k, int group)
{
	const Graph *g = k->g;
	const Op *op = main_op(g, group);
	bool plain;
	int others;

	if (!op)
		return NULL;
	uint64_t h = structure(k, group, &others, &plain);

	buf_printf(b, "%s", op_info[op->kind].name);
	put_types(b, g, op->in, op->nin);
	buf_printf(b, " ->");
	put_types(b, g, op->out, op->nout);
	op_print_attrs(b, op, false);
	buf_printf(b, " group=%d", others);
	if (!plain)
		buf_printf(b, ".%016" PRIx64, h);
	return op;
}

const char *
tuning_value(Arena *a, const Target *t, const char *kernel)
{
	size_t n = strcspn(kernel, "{");
	int version = kernel[n] && tuning_is_other(kernel, n) ? TUNE_VERSION : -1;

	if (version < 0 && kernel[n] && t->tuning.version)
		version = t->tuning.version(t, arena_strndup(a, kernel, n));
	return version < 0 ? kernel : arena_printf(a, "%.*s.%d%s", (int)n, kernel, version, kernel + n);
}

/* ---------------------------------------------------------------- of a choice */
static void
put_op(Buf *b, const Graph *g, const Op *op)
{
	buf_printf(b, "%s", op_info[op->kind].name);
	put_types(b, g, op->in, op->nin);
	buf_printf(b, " ->");
	put_types(b, g, op->out, op->nout);
	op_print_attrs(b, op, false);
}

void
tuning_choice_key(Buf *b, const char *rule, const Graph *g, const Op *op, const Op *const *with, int n, DType narrow,
	const char *more)
{
	Buf text = {0};

	buf_printf(b, "%s ", rule);
	put_op(b, g, op);
	for (int i = 0; i < n; i++) {
		put_op(&text, g, with[i]);
		for (int k = 0; k < with[i]->nin; k++)
			for (int j = 0; j < op->nout; j++)
				if (with[i]->in[k].id == op->out[j].id)
					buf_printf(&text, " %d=%d", k, j);
		buf_printf(&text, "\n");
	}
	if (more)
		buf_printf(b, " %s", more);
	if (narrow != DT_none)
		buf_printf(b, " narrow=%s", dtype_info[narrow].name);
	buf_printf(b, " with=%d.%016" PRIx64, n, hash_bytes(HASH_START, text.at ? text.at : "", text.n));
	buf_free(&text);
}
