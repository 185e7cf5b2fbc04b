/* group.c: one group of a planned graph into kernels; functions shared by groups of equal structure.
 *
 * In: the ops with one group id, values with arena offsets (or -1: they stay inside).   Out: functions in the LLVM
 * module and KernelRecs. Two groups are equal when their ops, attributes, types, connections and coinciding addresses
 * are: the text that says so is the key. Buffers are listed in the order of first appearance, the same for all kernels
 * of a group. Reductions are emitted first (rows.c), then concatenations operand by operand, then what is left as maps,
 * one for each shape. */
#include "cpu.h"
#include "contract/gemm.h"
#include "../space.h"
#include "composite/rnn.h"
#include <ctype.h>
#include <string.h>

/* ---------------------------------------------------------------- structure */
bool
value_is_out(const GroupCx *gc, Val v)
{
	return gc->inside[v.id] && val_is_stored(gc->g, v);
}

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

/* ---------------------------------------------------------------- kernels */
static const char *
symbol(GroupCx *gc, const char *part)
{
	const char *name = gc->group >= 0 ? gc->g->group.at[gc->group].name : NULL;
	char *s = arena_printf(gc->c->arena, "%s.%s", name ? name : gc->g->name, part);

	for (char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '.')
			*p = '_';
	return s;
}

static uint32_t *
function_slot(Compile *c, const char *key, uint64_t hash)
{
	for (uint64_t i = (hash ^ hash >> 32) & (c->fn_cap - 1);; i = (i + 1) & (c->fn_cap - 1)) {
		const FnRec *f = c->fn_slot[i] ? &c->fns.at[c->fn_slot[i] - 1] : NULL;

		if (!f || (f->hash == hash && !strcmp(f->key, key)))
			return &c->fn_slot[i];
	}
}

static void
function_table_grow(Compile *c)
{
	c->fn_cap = c->fn_cap ? 2 * c->fn_cap : 256;
	c->fn_slot = arena_array(c->arena, uint32_t, c->fn_cap);
	for (uint32_t i = 0; i < c->fns.n; i++)
		*function_slot(c, c->fns.at[i].key, c->fns.at[i].hash) = i + 1;
}

/* Do the group's kernels leave the work to microkernels? */
static bool
calls_micro(const GroupCx *gc)
{
	switch (space_family_of("cpu", NULL, gc->group >= 0 ? gc->g->group.at[gc->group].kernel : NULL)) {
	case FAMILY_cpu_brgemm:
	case FAMILY_cpu_brgemm_dw:
	case FAMILY_cpu_winograd:
	case FAMILY_cpu_strassen:
	case FAMILY_cpu_rnn:
	case FAMILY_cpu_rnn_strassen:
	case FAMILY_cpu_attention: return true;
	default: return false;
	}
}

int
kernel_begin(GroupCx *gc, Emit *e, const char *part, bool *fresh)
{
	Compile *c = gc->c;
	const char *key = arena_printf(gc->tmp, "%s|%s|%s", gc->key, part, gc->g->training ? "t" : "e");
	uint64_t hash = hash_bytes(HASH_START, key, strlen(key));

	gc->part = part;
	*e = (Emit){.arena = gc->tmp, .m = c->m, .g = gc->g};
	if (2 * c->fns.n >= c->fn_cap)
		function_table_grow(c);
	uint32_t *slot = function_slot(c, key, hash);

	*fresh = !*slot;
	if (*slot) {
		e->uses_scratch = c->fns.at[*slot - 1].scratch;
		return c->fns.at[*slot - 1].fn;
	}
	emit_begin(e, &c->l, gc, symbol(gc, part));
	e->opaque = !strcmp(part, "main") && calls_micro(gc);
	vec_push(c->arena, &c->fns,
	         ((FnRec){.key = arena_strdup(c->arena, key),
	                  .hash = hash,
	                  .fn = (int)c->fn.n,
	                  .name = symbol(gc, part)}));
	vec_push(c->arena, &c->fn, e->fn);
	*slot = c->fns.n;
	return (int)c->fn.n - 1;
}

static double
kernel_flops(const GroupCx *gc)
{
	double f = -gc->flops_less;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (!op->dead)
			f += op_flops(gc->g, op);
	}
	return f;
}

/* Bytes of v that the group's kernels touch: of a table whose rows are taken or added to, as many as there are ids. */
static double
touched(const GroupCx *gc, uint32_t v)
{
	const Graph *g = gc->g;
	int64_t all = type_bytes(&g->val.at[v].type), rows = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];
		bool table = !op->dead &&
		             ((op->kind == OP_take && op->in[0].id == v) ||
		              (op_has((OpKind)op->kind, T_INPLACE) && (op->in[0].id == v || op->out[0].id == v)));

		if (table)
			rows += type_bytes(val_type(g, op->kind == OP_take ? op->out[0] : op->in[1]));
		for (int k = 0; !op->dead && !table && k < op->nin; k++)
			if (op->in[k].id == v)
				return (double)all;
	}
	return (double)(rows && rows < all ? rows : all);
}

void
kernel_end(GroupCx *gc, Emit *e, GraphKernels *gk, int fn, Rows r, bool fresh, bool check)
{
	Compile *c = gc->c;
	int64_t *off = arena_array(c->arena, int64_t, gc->buf.n);
	/* what a workspace holds is written once and read once */
	double bytes = gc->group >= 0 ? 2.0 * (double)gc->g->group.at[gc->group].workspace : 0;

	if (fresh) {
		c->fn.at[fn] = emit_end(e);
		c->fns.at[fn].scratch = e->uses_scratch;
	}
	for (uint32_t i = 0; i < gc->buf.n; i++) {
		off[i] = gc->buf.at[i].offset;
		if (gc->buf.at[i].val)
			bytes += touched(gc, gc->buf.at[i].val);
	}
	vec_push(c->arena, &gk->k,
	         ((KernelRec){.name = symbol(gc, gc->part),
	                      .fn = fn,
	                      .off = off,
	                      .noff = (int)gc->buf.n,
	                      .group = gc->group,
	                      .rows = r.rows,
	                      .mul = r.mul,
	                      .div = r.div,
	                      .grain = r.grain,
	                      .shares = r.shares,
	                      .check = check,
	                      .scratch = e->uses_scratch,
	                      .once = gc->once || (gc->group >= 0 && gc->g->group.at[gc->group].once),
	                      .flops = 0,
	                      .bytes = 0}));
	/* the group's figures stand with one of its kernels: the first, or the one that says it does the work */
	uint32_t at = gk->k.n - 1;

	if (gc->nkernel++ && strcmp(gc->part, "main") != 0) {
		gk->k.at[gc->main_kernel].bytes =
		        bytes > gk->k.at[gc->main_kernel].bytes ? bytes : gk->k.at[gc->main_kernel].bytes;
		return;
	}
	if (gc->nkernel > 1)
		gk->k.at[gc->main_kernel].flops = gk->k.at[gc->main_kernel].bytes = 0;
	gc->main_kernel = at;
	gk->k.at[at].flops = kernel_flops(gc);
	gk->k.at[at].bytes = bytes;
}

/* ---------------------------------------------------------------- maps */
typedef struct Map {
	GroupCx *gc;
	const Out *out;
	int nout;
	const LoopAxis *last;
	Ix ix[MAX_RANK];
	int64_t shift_axis;
	int64_t shift;
	V shift_v;
	const Type *store;
} Map;

static void
map_at(Emit *e, Map *m, const Ix *ix)
{
	Cell *c = arena_array(e->arena, Cell, m->nout);

	/* everything is computed before anything is stored: an output may take the place of an input */
	for (int k = 0; k < m->nout; k++)
		c[k] = lane_eval(e, m->out[k].v, ix);
	for (int k = 0; k < m->nout; k++) {
		const Type *t = m->store ? m->store : val_type(e->g, m->out[k].v);
		Ix at[MAX_RANK];

		memcpy(at, ix, sizeof at);
		if (m->store && m->shift_v)
			at[m->shift_axis] = ix_add(e, at[m->shift_axis], ix_s(m->shift_v));
		e->stream = !m->store && store_streams(e->g, m->out[k].v);
		store_at(e, buffer(e, m->out[k].buf), (DType)t->dtype, offset_of(e, t, at), c[k]);
		e->stream = false;
	}
}

static void
map_lane(Emit *e, void *cx, Ix i, int u)
{
	Map *m = cx;

	(void)u;
	if (m->last)
		loop_set(e, m->last, i, m->ix);
	map_at(e, m, m->ix);
}

/* Lanes along the reduced axis instead (see eval_contract_dot)? */
static bool
wants_dot(const GroupCx *gc)
{
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (!op->dead && op_has((OpKind)op->kind, T_CONTRACT))
			return eval_contract_dot(gc->g, op);
	}
	return false;
}

/* Outputs of one shape; store != NULL: into a larger tensor, shifted along an axis. Where there are fewer rows than
 * FEW_ROWS the last loop is cut as well, into MOST elements or fewer. */
static void
map_kernel(GroupCx *gc, Map *m, GraphKernels *gk, const char *part, int64_t shift_axis, V (*shift)(Emit *, void *),
           void *shift_cx)
{
	enum { FEW_ROWS = 16, MOST = 131072 };
	Nest n = {.root = val_type(gc->g, m->out[0].v)};
	const LoopAxis *outer[MAX_RANK];
	int8_t id[MAX_RANK];
	Emit *e = arena_new_of(gc->tmp, Emit);
	bool fresh, dot = wants_dot(gc);

	for (int i = 0; i < MAX_RANK; i++)
		id[i] = (int8_t)(i < n.root->rank ? i : -1);
	for (int k = 0; k < m->nout; k++) {
		nest_walk(gc, &n, m->out[k].v, id);
		nest_leaf(gc, &n, m->store ? m->store : val_type(gc->g, m->out[k].v), id);
	}
	/* the shift of a concatenation adds to one index: a merged loop's other axes are dense in both */
	nest_build(gc, &n, 0);
	const LeafAccess *crossed = dot ? NULL : nest_crossed(&n);
	int nouter = nest_order(&n, crossed, outer);

	m->last = n.nloop ? &n.loop[n.nloop - 1] : NULL;
	int fn = kernel_begin(gc, e, part, &fresh);
	int64_t full = loop_full(&n, m->last), rows = 1, cost = group_cost(gc), piece = 0,
	        task = n.machine->budget.task;

	for (int i = 0; i < nouter; i++)
		rows *= loop_full(&n, outer[i]);
	if (rows < FEW_ROWS && full * rows * cost > 4 * task) { /* in whole vectors */
		piece = (full * rows / (2 * FEW_ROWS) + 63) / 64 * 64;
		if (piece > MOST)
			piece = MOST;
		if (piece * cost < 2 * task)
			piece = (2 * task / cost + 63) / 64 * 64;
	}
	if (crossed) /* a transposition: the operand's lines are used up while the L1 holds them */
		piece = 16;
	Tasks t = tasks_of(&n, outer, nouter, m->last, piece, 1, cost);

	t.crossed = crossed != NULL;
	if (fresh) {
		TaskAt at = tasks_open(e, &n, &t, m->ix);

		m->shift_axis = shift_axis;
		if (shift)
			m->shift_v = shift(e, shift_cx);
		if (!m->last) {
			map_at(e, m, m->ix);
		} else if (dot || full < 2) {
			V iv = loop_open(e, at.lo, at.hi, 1);

			loop_set(e, m->last, ix_s(iv), m->ix);
			map_at(e, m, m->ix);
			loop_close(e);
		} else {
			lane_loop(e, at.lo, at.hi, group_random(gc) ? 4 : cost <= 6 ? 2 : 1, map_lane, m);
		}
		tasks_close(e);
	}
	kernel_end(gc, e, gk, fn, t.rows, fresh, false);
}

/* v as it stands in memory, copied to `offset` in the layout of `to`. */
void
store_copy(GroupCx *gc, Val v, const Type *to, int64_t offset, GraphKernels *gk)
{
	vec_push(gc->tmp, &gc->buf, ((Buffer){.val = 0, .offset = offset}));
	Out o = {v, (int)gc->buf.n - 1};
	Map m = {.gc = gc, .out = &o, .nout = 1, .store = to};
	char part[24];

	snprintf(part, sizeof part, "s%d", gc->nkernel);
	map_kernel(gc, &m, gk, part, 0, NULL, NULL);
}

static void
map_emit(GroupCx *gc, const Out *out, int nout, GraphKernels *gk)
{
	Map m = {.gc = gc, .out = out, .nout = nout};
	char part[24];

	snprintf(part, sizeof part, "m%d", gc->nkernel);
	map_kernel(gc, &m, gk, part, 0, NULL, NULL);
}

/* ---------------------------------------------------------------- concat: one map for each operand */
typedef struct Shift { const Op *op; int k; } Shift;

static V
concat_shift(Emit *e, void *cx)
{
	const Shift *s = cx;
	int64_t a = attr_int(s->op, A_axis);
	V r = k64(e, 0);

	for (int k = 0; k < s->k; k++)
		r = i_add(e, r, extent(e, val_type(e->g, s->op->in[k])->axis[a]));
	return r;
}

static void
concat_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	for (int k = 0; k < op->nin; k++) {
		Out o = {op->in[k], group_buffer(gc, op->out[0].id)};
		Map m = {.gc = gc, .out = &o, .nout = 1, .store = val_type(gc->g, op->out[0])};
		Shift s = {op, k};
		char part[24];

		if (!type_elements(val_type(gc->g, op->in[k])))
			continue;
		snprintf(part, sizeof part, "c%d", gc->nkernel);
		map_kernel(gc, &m, gk, part, attr_int(op, A_axis), concat_shift, &s);
	}
	gc->ready[op->out[0].id] = true;
}

/* ---------------------------------------------------------------- a group */
static void
emit_maps(GroupCx *gc, GraphKernels *gk)
{
	Arena *a = gc->tmp;
	Out *out = arena_array(a, Out, 2 * (gc->last - gc->first) + 8),
	    *set = arena_array(a, Out, 2 * (gc->last - gc->first) + 8);
	int n = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		if (op->dead)
			continue;
		if (op->kind == OP_concat && value_is_out(gc, op->out[0]) && !gc->ready[op->out[0].id])
			concat_emit(gc, op, gk);
		for (int k = 0; k < op->nout; k++)
			if (value_is_out(gc, op->out[k]) && !gc->ready[op->out[k].id])
				out[n++] = (Out){op->out[k], group_buffer(gc, op->out[k].id)};
	}
	while (n) {
		int m = 0, left = 0;
		Type first = *val_type(gc->g, out[0].v);

		for (int k = 0; k < n; k++) {
			if (type_same_shape(&first, val_type(gc->g, out[k].v)) && m < 64)
				set[m++] = out[k];
			else
				out[left++] = out[k];
		}
		map_emit(gc, set, m, gk);
		for (int k = 0; k < m; k++)
			gc->ready[set[k].v.id] = true;
		n = left;
	}
}

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

static void
group_kernels(GroupCx *gc, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const Op *special = NULL, *contract = NULL;
	int nspecial = 0, live = 0;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
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

	gc->key = arena_printf(gc->tmp, "%s %s", text ? text : "", group_key(gc));
	if (contract && text && gemm_parse(text, &params)) {
		gemm_emit(gc, contract, gk);
		return;
	}
	const Op *first = &g->op.at[gc->first];

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
	emit_maps(gc, gk);
	/* stores of values that stand in the state's place already need no kernel; others are copies after the rest */
	for (uint32_t i = gc->first; i < gc->last && nspecial; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->kind == OP_store)
			special_emit(gc, op, gk);
	}
}

void
scratch_plan(Graph *g, int64_t bytes)
{
	if (g->module->scratch_bytes < bytes)
		g->module->scratch_bytes = bytes;
}

void
scratch_check(GroupCx *gc, int64_t bytes)
{
	if (gc->c->m->scratch_bytes < bytes)
		gc->c->error = arena_printf(
		        gc->c->arena, "group %s needs %lld bytes of memory for each thread, the module plans %lld",
		        gc->g->group.at[gc->group].name, (long long)bytes, (long long)gc->c->m->scratch_bytes);
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
		gr->kept = v->kept;
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
