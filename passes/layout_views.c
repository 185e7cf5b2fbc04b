/* layout_views.c: transpositions around composite operators, as layouts of what these read and make.
 *
 * In: a lowered graph whose layouts are chosen otherwise.   Out: the result of a transposition that composite operators
 * alone read lies as its operand does, and what a composite operator makes and transpositions read lies as these want
 * it: nothing moves then, the transposition is a view (view_moves_nothing). So attention reads queries, keys and values
 * where the projections left them, heads side by side, and leaves its result where the next projection reads it; its
 * gradient likewise. The target says which layouts of which operands and results its kernels take
 * (Target.layout.strided), and a verdict what came of it.
 * Likewise reshapes that cut axes, or join them, before and behind transpositions, of what lies channels-innermost.
 * Declined: what others read too, or what is a result of the graph, which lies in rows. */
#include "layout_views.h"
#include <math.h>
#include <string.h>

typedef struct Views {
	Graph *g;
	PassCtx *cx;
	VEC(uint32_t) *users;    /* by Val.id: reading ops */
	bool *result;            /* by Val.id: of the graph */
} Views;

static bool
is_composite(const Op *op)
{
	return op_has((OpKind)op->kind, T_COMPOSITE);
}

static bool
takes(const Views *x, const Op *op, int k, const Type *t)
{
	return x->cx->target->layout.strided(x->cx->target, x->g, op, k, t);
}

/* The transposition's result, lying so that nothing moves; transposed: its operand, as the result lies. */
static Type
unmoved(const Graph *g, const Op *view, bool transposed)
{
	const int64_t *perm = attr_ints(view, A_perm, NULL);
	const Type *from = val_type(g, transposed ? view->out[0] : view->in[0]);
	Type to = *val_type(g, transposed ? view->in[0] : view->out[0]);

	for (int k = 0; k < to.rank; k++)
		for (int i = 0; i < to.rank; i++)
			if (transposed ? i == perm[from->perm[k]] : perm[i] == from->perm[k])
				to.perm[k] = (uint8_t)i;
	return to;
}

/* Why v cannot lie as t says: the first reader that reads it otherwise. NULL: all read it so, composite operators or,
 * if `views`, transpositions that then move nothing. */
static const char *
why_rows(const Views *x, Val v, const Type *t, bool views)
{
	const Graph *g = x->g;

	if (x->result[v.id])
		return "it is a result of the graph, which lies in rows";
	for (uint32_t u = 0; u < x->users[v.id].n; u++) {
		const Op *op = &g->op.at[x->users[v.id].at[u]];

		if (views && op->kind == OP_transpose) {
			if (memcmp(unmoved(g, op, true).perm, t->perm, t->rank))
				return "two transpositions read it that want it otherwise each";
			continue;
		}
		if (!is_composite(op))
			return arena_printf(x->cx->module->arena, "%s reads it too, in rows", op_info[op->kind].name);
		for (int k = 0; k < op->nin; k++)
			if (op->in[k].id == v.id && !takes(x, op, k, t))
				return arena_printf(x->cx->module->arena,
				                    "the kernel of %s reads rows that lie together",
				                    op_info[op->kind].name);
	}
	return NULL;
}

static bool
decide(const Views *x, const Op *view, const Op *composite, Val v, const Type *t, const char *why)
{
	if (!why && !pass_may(x->cx, "layout.fold"))
		why = "stopped by --pass-limit";
	verdict(x->cx,
	        (Verdict){.pass = "layout",
	                  .rule = "layout.fold",
	                  .graph = x->g->name,
	                  .a = view->path,
	                  .b = composite->path,
	                  .opa = op_info[view->kind].name,
	                  .opb = op_info[composite->kind].name,
	                  .fired = !why,
	                  .loc = view->loc,
	                  .value = NAN,
	                  .bytes_saved = 2 * type_bytes(t),
	                  .why = why ? why : "the kernel goes through memory in the other order: nothing moves"});
	if (!why)
		memcpy(val_info(x->g, v)->type.perm, t->perm, sizeof t->perm);
	return !why;
}

/* The first composite operator that reads v; NULL: none does. */
static const Op *
composite_reader(const Views *x, Val v)
{
	for (uint32_t u = 0; u < x->users[v.id].n; u++)
		if (is_composite(&x->g->op.at[x->users[v.id].at[u]]))
			return &x->g->op.at[x->users[v.id].at[u]];
	return NULL;
}

/* What a transposition makes for composite operators. */
static bool
fold_operand(const Views *x, const Op *view)
{
	const Op *reader = composite_reader(x, view->out[0]);
	Type t;

	if (!reader || view_moves_nothing(x->g, view))
		return false;
	t = unmoved(x->g, view, false);
	return decide(x, view, reader, view->out[0], &t, why_rows(x, view->out[0], &t, false));
}

/* What transpositions read of a composite operator. */
static bool
fold_result(const Views *x, const Op *op, int k)
{
	const Op *view = NULL;
	Val v = op->out[k];

	for (uint32_t u = 0; u < x->users[v.id].n && !view; u++)
		if (x->g->op.at[x->users[v.id].at[u]].kind == OP_transpose)
			view = &x->g->op.at[x->users[v.id].at[u]];
	if (!view || view_moves_nothing(x->g, view))
		return false;
	Type t = unmoved(x->g, view, true);

	return decide(x, view, op, v, &t,
	              takes(x, op, op->nin + k, &t)
	                      ? why_rows(x, v, &t, true)
	                      : arena_printf(x->cx->module->arena, "the kernel of %s writes rows that lie together",
	                                     op_info[op->kind].name));
}

/* ---------------------------------------------------------------- axes cut and joined around transpositions */
static bool
read_by_transpositions(const Views *x, Val v)
{
	for (uint32_t u = 0; u < x->users[v.id].n; u++)
		if (x->g->op.at[x->users[v.id].at[u]].kind != OP_transpose)
			return false;
	return x->users[v.id].n && !x->result[v.id];
}

/* What a reshape makes of a value that lies otherwise, for transpositions alone; what a transposition makes, for a
 * reshape alone whose result does: of the three copies of a channel's pixels laid out as a larger image (Shi et al.
 * 2016, arXiv:1609.05158) one is left, the transposition. */
static bool
fold_reshape(const Views *x, const Op *op)
{
	Graph *g = x->g;
	Val in = op->in[0], out = op->out[0];
	const Op *from = val_op(g, in);
	Type t;

	if (view_moves_nothing(g, op))
		return false;
	if (!type_is_plain(val_type(g, in)) && read_by_transpositions(x, out)) {
		t = *val_type(g, out);
		return reshape_lies(val_type(g, in), &t) &&
		       decide(x, op, &g->op.at[x->users[out.id].at[0]], out, &t, NULL);
	}
	if (type_is_plain(val_type(g, out)) || !from || from->kind != OP_transpose || x->result[in.id] ||
	    x->users[in.id].n != 1)
		return false;
	t = *val_type(g, in);
	return reshape_lies(val_type(g, out), &t) && decide(x, from, op, in, &t, NULL);
}

bool
layout_fold_views(Graph *g, PassCtx *cx)
{
	Views x = {.g = g, .cx = cx};
	bool changed = false, composites = cx->target->layout.strided != NULL;

	if (!composites && !cx->target->layout.images)
		return false;
	x.users = arena_alloc(cx->scratch, sizeof *x.users * g->val.n);
	x.result = arena_array(cx->scratch, bool, g->val.n);
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin; k++)
			vec_push(cx->scratch, &x.users[g->op.at[i].in[k].id], i);
	for (uint32_t i = 0; i < g->result.n; i++)
		x.result[g->result.at[i].v.id] = true;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == OP_transpose && composites)
			changed |= fold_operand(&x, op);
		else if (op->kind == OP_reshape)
			changed |= fold_reshape(&x, op);
		for (int k = 0; k < op->nout && composites && is_composite(op); k++)
			changed |= fold_result(&x, op, k);
	}
	return changed;
}
