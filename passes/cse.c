/* cse.c: one op for equal ops on equal inputs (value numbering by hashing).
 *
 * In: up to stage lowered.  Out: of ops with the same operator, attributes, inputs and result types the first stays,
 * under its name, location and layer; later ones' uses are renamed. Random ops are functions of seed, step and stream
 * and merge; loads merge, because stores of a step are seen by the next one.  Declines: effects. */
#include <string.h>
#include "passes.h"

static bool
same_attr(const Attr *x, const Attr *y)
{
	if (x->name != y->name || x->is_int != y->is_int || x->n != y->n)
		return false;
	switch (attr_names[x->name].kind) {
	case AK_STR: return !strcmp(x->s, y->s);
	case AK_INTS:
	case AK_NUMS: return !x->n || !memcmp(x->list, y->list, sizeof *x->list * x->n);
	default: return x->i == y->i;  /* f shares the bits: -0 and 0 differ, as they should */
	}
}

static bool
same_op(const Graph *g, const Op *x, const Op *y)
{
	if (x->kind != y->kind || x->nin != y->nin || x->nout != y->nout || x->nattr != y->nattr ||
	    x->group != y->group)
		return false;
	for (int i = 0; i < x->nin; i++)
		if (x->in[i].id != y->in[i].id)
			return false;
	for (int i = 0; i < x->nattr; i++)
		if (!same_attr(&x->attr[i], &y->attr[i]))
			return false;
	for (int i = 0; i < x->nout; i++)
		if (!type_same(val_type(g, x->out[i]), val_type(g, y->out[i])))
			return false;
	return true;
}

static uint64_t
hash_op(const Graph *g, const Op *op)
{
	uint64_t h = hash_bytes(HASH_START, &op->kind, sizeof op->kind);

	for (int i = 0; i < op->nin; i++)
		h = hash_bytes(h, &op->in[i].id, sizeof op->in[i].id);
	for (int i = 0; i < op->nattr; i++) {
		const Attr *a = &op->attr[i];

		if (attr_names[a->name].kind == AK_STR)
			h = hash_bytes(h, a->s, strlen(a->s));
		else if (attr_names[a->name].kind == AK_INTS)
			h = hash_bytes(h, a->list, sizeof *a->list * a->n);
		else
			h = hash_bytes(h, &a->i, sizeof a->i);
	}
	for (int i = 0; i < op->nout; i++) {
		const Type *t = val_type(g, op->out[i]);

		h = hash_bytes(h, &t->dtype, 1);
		for (int k = 0; k < t->rank; k++)
			h = hash_bytes(h, &t->axis[k].n, sizeof t->axis[k].n);
	}
	return h ^ h >> 32;
}

bool
pass_cse(Graph *g, PassCtx *cx)
{
	Rewrite rw = rewrite_begin(g, cx->scratch);
	uint32_t size = 16;
	uint32_t *table;
	bool changed = false;

	while (size < 2 * rw.nold)
		size *= 2;
	table = arena_array(cx->scratch, uint32_t, size);   /* index of an op + 1; linear probing */
	for (uint32_t i = 0; i < rw.nold; i++) {
		const Op *op = rewrite_inputs(&rw, i);
		uint32_t at = (uint32_t)hash_op(g, op) & (size - 1);

		if (op->dead)
			continue;
		if (op_has(op->kind, T_EFFECT) || !op->nout) {
			rewrite_keep(&rw, op);
			continue;
		}
		while (table[at] && !same_op(g, &rw.old[table[at] - 1], op))
			at = (at + 1) & (size - 1);
		if (table[at] && pass_may(cx, "cse")) {
			for (int k = 0; k < op->nout; k++)
				rewrite_to(&rw, op->out[k], rw.old[table[at] - 1].out[k]);
			changed = true;
			continue;
		}
		if (!table[at])
			table[at] = i + 1;
		rewrite_keep(&rw, op);
	}
	rewrite_end(&rw);
	return changed;
}
