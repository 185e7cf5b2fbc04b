/* group.c: one group of a planned graph into kernels; functions shared by groups of equal structure.
 *
 * In: the ops with one group id, values with arena offsets (or -1: they stay inside).   Out: functions in the LLVM
 * module and KernelRecs. Two groups are equal when their ops, attributes, types, connections and coinciding addresses
 * are: the text that says so is the key. Contractions, composite and special operators have emitters of their own;
 * elsewhere reductions are emitted first (rows.c), then what is left as maps (maps.c). */
#include "cpu.h"
#include "contract/gemm.h"
#include "composite/rnn.h"
#include "../space.h"
#include <string.h>

/* ---------------------------------------------------------------- structure */
static void
key_type(Buf *b, const Type *t)
{
	type_print(b, t);
	buf_put(b, " ", 1);
}

static void
key_attrs(Buf *b, const Op *op)
{
	for (int i = 0; i < op->nattr; i++) {
		const Attr *a = &op->attr[i];

		if (a->name == A_state || a->name == A_what)
			continue;
		buf_printf(b, "%s=", attr_names[a->name].name);
		switch (attr_names[a->name].kind) {
		case AK_STR: buf_printf(b, "%s;", a->s ? a->s : ""); break;
		case AK_INTS:
			for (int k = 0; k < a->n; k++)
				buf_printf(b, "%lld,", (long long)a->list[k]);
			break;
		case AK_NUM:
			if (a->is_int)
				buf_printf(b, "%lld;", (long long)a->i);
			else
				buf_printf(b, "%a;", a->f);
			break;
		default: buf_printf(b, "%lld;", (long long)a->i);
		}
	}
}

/* Where the model says what the group's kernels do: its most costly op. */
static void
place_lines(GroupCx *gc)
{
	const Module *m = gc->c->m;
	const Op *op = NULL;
	Llvm *l = &gc->c->l;

	for (uint32_t i = gc->first; i < gc->last; i++)
		if (!gc->g->op.at[i].dead && (!op || op_has((OpKind)gc->g->op.at[i].kind, T_CONTRACT)))
			op = &gc->g->op.at[i];
	l->at.file = NULL;
	if (!op || !op->loc.file || op->loc.file >= m->diags->source.n)
		return;
	l->at.file = m->diags->source.at[op->loc.file].name;
	l->at.line = op->loc.line;
	l->at.column = op->loc.col;
}

/* Lists the buffers and writes the key. */
static const char *
group_key(GroupCx *gc)
{
	const Graph *g = gc->g;
	Buf b = {0};
	int *num = gc->c->table.number, next = 1;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		buf_printf(&b, "%s ", op_info[op->kind].name);
		key_attrs(&b, op);
		for (int k = 0; k < op->nin; k++) {
			Val v = op->in[k];

			if (!num[v.id]) {
				num[v.id] = next++;
				key_type(&b, val_type(g, v));
			}
			buf_printf(&b, "%d ", num[v.id]);
			if (!gc->inside[v.id] || gc->ready[v.id])
				buf_printf(&b, "b%d ", group_buffer(gc, v.id));
		}
		for (int k = 0; k < op->nout; k++) {
			Val v = op->out[k];

			num[v.id] = next++;
			buf_printf(&b, "> %d ", num[v.id]);
			key_type(&b, val_type(g, v));
			if (value_is_out(gc, v))
				buf_printf(&b, "b%d ", group_buffer(gc, v.id));
		}
		buf_put(&b, "\n", 1);
	}
	/* which buffers are the same place */
	for (uint32_t i = 0; i < gc->buf.n; i++)
		for (uint32_t j = 0; j < i; j++)
			if (gc->buf.at[i].offset == gc->buf.at[j].offset)
				buf_printf(&b, "%u=%u ", i, j);
	place_lines(gc);
	if (gc->c->l.debug && gc->c->l.at.file)
		buf_printf(&b, "of %s:%u:%u ", gc->c->l.at.file, gc->c->l.at.line, gc->c->l.at.column);
	const char *r = arena_strndup(gc->tmp, b.at ? b.at : "", b.n);

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++)
			num[op->in[k].id] = 0;
		for (int k = 0; k < op->nout; k++)
			num[op->out[k].id] = 0;
	}
	buf_free(&b);
	return r;
}

/* ---------------------------------------------------------------- a group */
void
group_tables(Compile *c, const Graph *g)
{
	ValTables *t = &c->table;
	size_t bytes = sizeof(int) * g->val.n;

	t->inside = arena_array(c->arena, bool, g->val.n);
	t->ready = arena_array(c->arena, bool, g->val.n);
	t->number = arena_array(c->arena, int, g->val.n);
	t->buf_of = memset(arena_array(c->arena, int, g->val.n), -1, bytes);
	t->ws_of = memset(arena_array(c->arena, int, g->val.n), -1, bytes);
	t->phase = memset(arena_array(c->arena, int, g->val.n), -1, bytes);
}

static GroupCx *
context_new(Compile *c, Graph *g, int group)
{
	Arena *tmp = arena_new();
	GroupCx *gc = arena_new_of(tmp, GroupCx);
	const ValTables *t = &c->table;

	*gc = (GroupCx){.c = c,
	                .tmp = tmp,
	                .g = g,
	                .eval = lane_eval,
	                .group = group,
	                .first = UINT32_MAX,
	                .inside = t->inside,
	                .ready = t->ready,
	                .buf_of = t->buf_of,
	                .ws_of = t->ws_of,
	                .phase = t->phase};
	return gc;
}

/* A group touches no other values than those its ops name. */
static void
context_free(GroupCx *gc)
{
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		for (int k = 0; k < op->nin + op->nout; k++) {
			uint32_t v = k < op->nin ? op->in[k].id : op->out[k - op->nin].id;

			gc->inside[v] = gc->ready[v] = false;
			gc->buf_of[v] = gc->ws_of[v] = gc->phase[v] = -1;
		}
	}
	gc->c->l.at.file = NULL;
	arena_free(gc->tmp);
}

void
loose_op(Compile *c, Graph *g, uint32_t at, GraphKernels *gk)
{
	const Op *op = &g->op.at[at];

	if (op->kind == OP_load)
		return;
	if (op_has((OpKind)op->kind, T_VIEW) && val_info(g, op->out[0])->offset == val_info(g, op->in[0])->offset)
		return;
	if (op->kind != OP_store)
		bug("graph %s: %s is in no group", g->name, op_info[op->kind].name);
	GroupCx *gc = context_new(c, g, -1);

	gc->first = at;
	gc->last = at + 1;
	gc->key = group_key(gc);
	special_emit(gc, op, gk);
	context_free(gc);
}

/* What its kernel's text says of all its kernels, or of what follows the contraction. */
static void
tuned_set(GroupCx *gc, const Params *p)
{
	gc->threads = space_number(p, "threads");
	gc->fetch = space_number(p, "fetch");
	gc->stream = space_number(p, "stream");
}

/* Stores of values that stand in the state's place already need no kernel; others are copies after the rest. */
static void
stores_emit(GroupCx *gc, GraphKernels *gk)
{
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (!op->dead && op->kind == OP_store)
			special_emit(gc, op, gk);
	}
}

static void
group_kernels(GroupCx *gc, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Op *special = NULL, *contract = NULL, *first = &g->op.at[gc->first];
	int nspecial = 0, live = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || (attention_op((OpKind)first->kind) && attention_casts(g, first, op)) ||
		    pool_dx_cast(g, op))
			continue;
		live++;
		if (op_has((OpKind)op->kind, T_CONTRACT))
			contract = op;
		if (special_op(g, op)) {
			special = op;
			nspecial++;
		}
	}
	const char *text = g->group.at[gc->group].kernel;
	GemmParams params;

	Params p;

	gc->key = arena_printf(gc->tmp, "%s %s", text ? text : "", group_key(gc));
	if (text && space_parse("cpu", NULL, text, &p))
		tuned_set(gc, &p);
	if (contract && text && gemm_parse(text, &params)) {
		gemm_emit(gc, contract, gk);
		stores_emit(gc, gk);
		return;
	}
	if (live == 1 && op_has((OpKind)first->kind, T_COMPOSITE)) {
		(attention_op((OpKind)first->kind) ? attention_emit : rnn_emit)(gc, first, gk);
		return;
	}
	if (nspecial && live == 1) {
		special_emit(gc, special, gk);
		return;
	}
	for (uint32_t i = gc->first; i < gc->last && nspecial; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && special_op(g, op) && op->kind != OP_store)
			bug("group %d of %s: %s shares a kernel", gc->group, g->name, op_info[op->kind].name);
	}
	rows_emit(gc, gk);
	maps_emit(gc, gk);
	stores_emit(gc, gk);
}

/* The group's ops begin at `first` and stand together. */
void
group_compile(Compile *c, Graph *g, int group, uint32_t first, GraphKernels *gk)
{
	GroupCx *gc = context_new(c, g, group);

	gc->first = first;
	for (uint32_t i = first; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		if (op->group != group)
			break;
		gc->last = i + 1;
		if (op->kind != OP_load)
			for (int k = 0; k < op->nout; k++)
				gc->inside[op->out[k].id] = true;
	}
	group_kernels(gc, gk);
	context_free(gc);
}

/* Each variant is compiled as if it were the only one: its text is part of the key that functions are shared by
 * (group_kernels). */
void
group_race(Compile *c, Graph *g, int group, uint32_t first, GraphKernels *gk)
{
	Group *gr = &g->group.at[group], was = *gr;

	for (uint32_t i = 0; i < was.variant.n; i++) {
		GraphKernels one = {.g = g};
		const GroupVariant *v = &was.variant.at[i];

		gr->kernel = v->kernel;
		gr->workspace = v->workspace;
		gr->prepacked = v->prepacked;
		group_compile(c, g, group, first, i ? &one : gk);
		if (i) {
			VariantKernels r = {.group = group, .variant = i};

			memcpy(&r.k, &one.k, sizeof r.k);
			vec_push(c->arena, &gk->variant, r);
		}
	}
	*gr = was;
}

int64_t
group_workspace(const Graph *g, int group)
{
	int64_t n = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->group == group && op_info[op->kind].red >= 0)
			n += red_workspace(g, op);
	}
	return n;
}
