/* recompute_edit.c: puts the clones that pass recompute decided on into a graph.
 *
 * In: the tables of the two halves, a choice of values that are not kept.   Out: each backward op that reads one, or
 * what is computed from one and never stored, reads a clone instead. Clones stand behind the anchor of their first
 * reader, or behind what they read, if that is later; those of a segment, and those of one value alone, share their
 * operands. Forward ops are left as they are. Kept values are read through op `after`: not before the anchor stands. */
#include "recompute.h"

typedef struct Memo { Val of, is; int32_t scope; uint32_t behind; } Memo; /* behind: the old op that it stands behind */

typedef struct Edit {
	const Half *h;
	const Choice *c;
	Graph *g;
	Arena *a;
	uint32_t nval, nop;
	bool *stale;             /* by Val.id: not kept, or never stored and computed from something that is not kept */
	int32_t *scope;          /* by Val.id, of those: whose clones it shares */
	struct { VEC(Op) op; } *behind;  /* by op: what comes behind it */
	VEC(Memo) memo; uint32_t *slot, nslot;
	Cost cost;
} Edit;

static uint32_t
memo_slot(const Edit *e, Val v, int32_t scope)
{
	uint32_t i = (v.id * 0x9e3779b1u ^ (uint32_t)scope * 0x85ebca6bu) & (e->nslot - 1);

	while (e->slot[i] && (e->memo.at[e->slot[i] - 1].of.id != v.id || e->memo.at[e->slot[i] - 1].scope != scope))
		i = (i + 1) & (e->nslot - 1);
	return i;
}

static void
memo_put(Edit *e, Val v, int32_t scope, Val is, uint32_t behind)
{
	vec_push(e->a, &e->memo, ((Memo){v, is, scope, behind}));
	if (2 * e->memo.n > e->nslot) {
		e->nslot *= 2;
		e->slot = arena_array(e->a, uint32_t, e->nslot);
		for (uint32_t i = 0; i + 1 < e->memo.n; i++)
			e->slot[memo_slot(e, e->memo.at[i].of, e->memo.at[i].scope)] = i + 1;
	}
	e->slot[memo_slot(e, v, scope)] = e->memo.n;
}

/* A value that is kept, for clones that wait for the anchor. */
static Val
later(Edit *e, Val v, Val anchor, int32_t scope)
{
	const Op *def = val_op(e->g, v);
	Op op = {.kind = OP_after, .nin = 2, .nout = 1, .group = -1, .path = ""};

	if (def) {
		op.loc = def->loc;
		op.path = def->path;
	}
	op.in = arena_array(e->g->arena, Val, 2);
	op.in[0] = v;
	op.in[1] = anchor;
	op.out = arena_array(e->g->arena, Val, 1);
	op.out[0] = graph_add_val(e->g, *val_type(e->g, v), val_info(e->g, v)->name, 0, 0);
	vec_push(e->a, &e->behind[val_info(e->g, anchor)->op].op, op);
	memo_put(e, v, scope, op.out[0], val_info(e->g, anchor)->op);
	return op.out[0];
}

/* What stands for forward value v behind the anchor, if no op has to be cloned for it. *scope becomes that of its
 * clone. */
static bool
ready(Edit *e, Val v, Val anchor, int32_t *scope, Val *is)
{
	const Half *h = e->h;
	uint32_t def = val_info(e->g, v)->op;
	uint8_t drop = e->c->drop[v.id];

	*is = v;
	if (def < e->nop && (e->g->op.at[def].kind == OP_load || is_free(&e->g->op.at[def]) || !h->forward[def]))
		return true;
	if (drop == SEGMENT || (*scope == NO_SCOPE && e->stale[v.id]))
		*scope = e->scope[v.id];
	uint32_t found = e->slot[memo_slot(e, v, *scope)];

	if (found) {
		*is = e->memo.at[found - 1].is;
		return true;
	}
	if (def < e->nop && (h->stored[v.id] ? drop != KEPT : e->stale[v.id] || !recompute_at_hand(h, v)))
		return false;
	if ((h->stored[v.id] ? h->bytes[v.id] : type_bytes(val_type(e->g, v))) >= h->small)
		*is = later(e, v, anchor, *scope);
	return true;
}

static void
clone(Edit *e, uint32_t i, Val anchor, int32_t scope)
{
	const Op *op = &e->g->op.at[i];
	Op copy = *op;
	uint32_t behind = val_info(e->g, anchor)->op;

	copy.in = arena_array(e->g->arena, Val, op->nin);
	copy.out = arena_array(e->g->arena, Val, op->nout);
	for (int k = 0; k < op->nin; k++) {
		int32_t s = scope;

		ready(e, op->in[k], anchor, &s, &copy.in[k]);
		uint32_t found = copy.in[k].id == op->in[k].id ? 0 : e->slot[memo_slot(e, op->in[k], s)];

		if (found && e->memo.at[found - 1].behind > behind)
			behind = e->memo.at[found - 1].behind;
	}
	for (int k = 0; k < op->nout; k++) {
		const ValInfo *v = val_info(e->g, op->out[k]);

		copy.out[k] = graph_add_val(e->g, v->type, v->name, 0, k);
		memo_put(e, op->out[k], scope, copy.out[k], behind);
	}
	e->cost.flops += op_flops(e->g, op);
	e->cost.clones++;
	vec_push(e->a, &e->behind[behind].op, copy);
}

/* The same with whatever has to be cloned; a stack of its own, since a segment may be long. */
static Val
again(Edit *e, Val v, Val anchor)
{
	struct Item { Val v; int32_t scope; };
	VEC(struct Item) stack = {0};
	Val is;

	vec_push(e->a, &stack, ((struct Item){v, NO_SCOPE}));
	while (stack.n) {
		struct Item top = stack.at[stack.n - 1];
		uint32_t def = val_info(e->g, top.v)->op, n = stack.n;
		int32_t scope = top.scope;

		if (ready(e, top.v, anchor, &scope, &is)) {
			stack.n--;
			continue;
		}
		for (int k = 0; k < e->g->op.at[def].nin; k++) {
			Val in = e->g->op.at[def].in[k];
			int32_t s = scope;

			if (!ready(e, in, anchor, &s, &is))
				vec_push(e->a, &stack, ((struct Item){in, scope}));
		}
		if (stack.n == n)
			clone(e, def, anchor, scope);
	}
	return is;
}

static void
find_stale(Edit *e)
{
	for (uint32_t i = 0; i < e->nop; i++) {
		const Op *op = &e->g->op.at[i];
		bool made = false;
		int32_t scope = NO_SCOPE;

		for (int k = 0; e->h->able[i] && k < op->nin; k++) {
			made |= e->stale[op->in[k].id];
			if (e->scope[op->in[k].id] < NO_SCOPE)
				scope = e->scope[op->in[k].id];
		}
		for (int k = 0; k < op->nout; k++) {
			uint32_t v = op->out[k].id;

			e->stale[v] = e->c->drop[v] || (made && !e->h->stored[v]);
			e->scope[v] = e->c->drop[v] ? e->c->scope[v] : e->stale[v] ? scope : NO_SCOPE;
		}
	}
}

static void
put_op(Graph *g, const Op *op)
{
	for (int k = 0; k < op->nout; k++)
		val_info(g, op->out[k])->op = g->op.n;
	vec_push(g->arena, &g->op, *op);
}

Cost
recompute_edit(const Half *h, const Choice *c, Graph *g, Arena *a)
{
	Edit e = {.h = h, .c = c, .g = g, .a = a, .nval = g->val.n, .nop = g->op.n, .nslot = 1024};
	const Op *old = g->op.at;

	e.stale = arena_array(a, bool, e.nval);
	e.scope = arena_array(a, int32_t, e.nval);
	e.behind = arena_alloc(a, sizeof *e.behind * (e.nop + 1));
	e.slot = arena_array(a, uint32_t, e.nslot);
	find_stale(&e);
	for (uint32_t i = 0; i < e.nop; i++)
		for (int k = 0; !h->forward[i] && h->anchor[i].id && k < old[i].nin; k++)
			if (e.stale[old[i].in[k].id])
				old[i].in[k] = again(&e, old[i].in[k], h->anchor[i]);
	g->op.at = NULL;
	g->op.n = g->op.cap = 0;
	for (uint32_t i = 0; i < e.nop; i++) {
		put_op(g, &old[i]);
		for (uint32_t k = 0; k < e.behind[i].op.n; k++)
			put_op(g, &e.behind[i].op.at[k]);
	}
	return e.cost;
}
