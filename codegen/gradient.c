/* gradient.c: where the gradients of the parameters stand, for `train --watch`.
 *
 * In: a planned graph that stores parameters; autodiff has called their gradients NAME.grad.   Out: by state, the value
 * that memory holds of its gradient; none where the kernel that makes it also updates the parameter and keeps it in
 * registers, or where it is never made (an embedding's, added to the rows it is of).
 * A parameter's gradient is its own, or, where it shares one with another, what its new value is made of: the walk goes
 * from the stored value through elementwise ops and views of as many elements, and must meet one gradient only. */
#include "codegen.h"
#include <string.h>

typedef struct Walk { const Graph *g; const char *own; int64_t elements; bool *seen; Val found; bool many; } Walk;

static bool
is_gradient(const Graph *g, Val v, Arena *a)
{
	const char *name = val_info(g, v)->name;
	size_t n = name ? strlen(name) : 0;
	const State *s = n > 5 && !strcmp(name + n - 5, ".grad")
	                         ? module_state(g->module, arena_strndup(a, name, n - 5))
	                         : NULL;

	return s && s->kind == ST_PARAM;
}

static void
walk(Walk *w, Val v, Arena *a)
{
	const Op *op = val_op(w->g, v);

	if (w->seen[v.id] || type_elements(val_type(w->g, v)) != w->elements)
		return;
	w->seen[v.id] = true;
	if (is_gradient(w->g, v, a)) {
		if (!strcmp(val_info(w->g, v)->name, w->own)) {
			w->found = v;
			w->many = false;
			w->elements = -1;                /* no other counts */
		}
		w->many |= w->elements >= 0 && w->found.id;
		w->found = w->found.id ? w->found : v;
		return;
	}
	for (int k = 0; op && op_has((OpKind)op->kind, T_POINTWISE | T_VIEW) && k < op->nin; k++)
		walk(w, op->in[k], a);
}

/* What holds v in memory: itself, or what it is a view or another type of. */
static Val
in_memory(const Graph *g, Val v)
{
	int64_t elements = type_elements(val_type(g, v));

	while (!val_is_stored(g, v)) {
		const Op *op = val_op(g, v);

		if (!op || !op->nin || (op->kind != OP_cast && !op_has((OpKind)op->kind, T_VIEW)) ||
		    type_elements(val_type(g, op->in[0])) != elements)
			return NOVAL;
		v = op->in[0];
	}
	return val_op(g, v)->group >= 0 ? v : NOVAL;
}

Val *
graph_gradients(const Graph *g, Arena *a)
{
	const Module *m = g->module;
	Val *r = arena_array(a, Val, m->state.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const State *s = !op->dead && op->kind == OP_store ? module_state(g->module, attr_str(op, A_state))
		                                                   : NULL;
		Walk w = {.g = g};

		if (!s || s->kind != ST_PARAM)
			continue;
		w.own = arena_printf(a, "%s.grad", s->name);
		w.elements = type_elements(&s->type);
		w.seen = arena_array(a, bool, g->val.n);
		walk(&w, op->in[0], a);
		if (w.found.id && !w.many)
			r[s - m->state.at] = in_memory(g, w.found);
	}
	return r;
}
