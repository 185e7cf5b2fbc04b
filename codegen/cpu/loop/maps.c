/* maps.c: values of a group that no reduction and no contraction is behind: one loop nest for each shape.
 *
 * In: a group whose other outputs stand in memory (GroupCx.ready).   Out: a kernel for each shape of what is left,
 * before them one for each operand of a concatenation, which stores it at its place; or a copy of a value in another
 * layout (store_copy). The last loop runs in lanes, the others are tasks. */
#include "../cpu.h"
#include <string.h>

typedef struct Map {
	GroupCx *gc;
	const LoopAxis *side;    /* of a transposition: elements that results have side by side, within lanes' rows */
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

/* Which loop's elements lie side by side in memory; -1: none of the nest's. */
static int
dense_loop(const Nest *n, const LeafAccess *l)
{
	int at = -1;

	for (int i = 0; i < l->type->rank; i++) {
		int j = l->type->perm[i];

		if (!is_one(l->type->axis[j]))
			at = l->map[j] < 0 ? -1 : loop_of(n, l->map[j]);
	}
	return at;
}

static bool
walks(const Nest *n, const LeafAccess *l, int loop)
{
	for (int j = 0; j < l->type->rank; j++)
		if (l->map[j] >= 0 && loop_of(n, l->map[j]) == loop)
			return true;
	return false;
}

/* Does the operand's index follow the loop? An axis with no loop of its own may be computed from any. */
static bool
follows(const Nest *n, const LeafAccess *l, int loop)
{
	for (int j = 0; j < l->type->rank; j++)
		if (!is_one(l->type->axis[j]) && l->map[j] < 0)
			return true;
	return walks(n, l, loop);
}

static const Type *
stored_type(const Map *m, int k)
{
	return m->store ? m->store : val_type(m->gc->g, m->out[k].v);
}

static bool
is_stored(const Map *m, const LeafAccess *l)
{
	for (int k = 0; k < m->nout; k++)
		if (l->type == stored_type(m, k))
			return true;
	return false;
}

/* A transposition: results lie side by side along one loop, `side`, and operands that follow it along another, `lanes`.
 * Others may lie as they like if they do not walk `lanes`: one scalar serves all of its lanes. */
static bool
map_transposes(const Map *m, const Nest *n, int *lanes, int *side)
{
	enum { FEW = 8, SMALL = 4096 };

	*lanes = *side = -1;
	for (uint32_t k = 0; k < n->leaf.n; k++) {
		int dense = dense_loop(n, &n->leaf.at[k]);

		if (!is_stored(m, &n->leaf.at[k]))
			continue;
		if (*side >= 0 && *side != dense)
			return false;
		*side = dense;
	}
	if (*side < 0 || loop_full(n, &n->loop[*side]) < 2 || loop_marked(n, &n->loop[*side]) ||
	    group_random(m->gc))
		return false;
	for (uint32_t k = 0; k < n->leaf.n; k++) {
		const LeafAccess *l = &n->leaf.at[k];

		if (!is_stored(m, l) && type_bytes(l->type) > SMALL && follows(n, l, *side) &&
		    dense_loop(n, l) != *side)
			*lanes = dense_loop(n, l);
	}
	if (*lanes < 0 || loop_full(n, &n->loop[*lanes]) < FEW)
		return false;
	for (uint32_t k = 0; k < n->leaf.n; k++) {
		const LeafAccess *l = &n->leaf.at[k];

		if (!is_stored(m, l) && walks(n, l, *lanes) && dense_loop(n, l) != *lanes)
			return false;
	}
	return true;
}

/* Lanes are rows of the results: `count` elements of each from `first` on. */
static void
transpose_block(Emit *e, Map *m, V first, int count)
{
	Cell *c = arena_array(e->arena, Cell, m->nout * count);

	for (int i = 0; i < count; i++) {
		loop_set(e, m->side, ix_s(i_add_k(e, first, i)), m->ix);
		for (int k = 0; k < m->nout; k++)
			c[k * count + i] = lane_eval(e, m->out[k].v, m->ix);
	}
	loop_set(e, m->side, ix_s(first), m->ix);
	for (int k = 0; k < m->nout; k++) {
		const Type *t = stored_type(m, k);

		store_columns(e, buffer(e, m->out[k].buf), (DType)t->dtype, offset_of(e, t, m->ix), &c[k * count],
		              count);
	}
}

static void
transpose_lane(Emit *e, void *cx, Ix i, int u)
{
	Map *m = cx;
	int64_t n = 1, rest;

	(void)u;
	for (int k = 0; k < m->side->naxis; k++)
		n *= val_type(m->gc->g, m->out[0].v)->axis[m->side->axis[k]].n;
	rest = n % e->W;
	loop_set(e, m->last, i, m->ix);
	if (n > rest)
		LOOP(e, at, k64(e, 0), k64(e, n - rest), e->W)
			transpose_block(e, m, at, e->W);
	if (rest)
		transpose_block(e, m, k64(e, n - rest), (int)rest);
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

/* Rows that a kernel takes from a table, whose id stands at ix: those of ids to come are asked for. */
static void
map_fetch(Emit *e, const Map *m, const TaskAt *at)
{
	const Op *op = m->nout == 1 && !m->store && m->last ? val_op(e->g, m->out[0].v) : NULL;

	if (!op || op->kind != OP_take || attr_int(op, A_axis) || m->gc->inside[op->in[0].id] ||
	    m->gc->inside[op->in[1].id])
		return;
	const Type *table = val_type(e->g, op->in[0]), *ids = val_type(e->g, op->in[1]);

	if (m->last->naxis == table->rank - 1 && m->last->axis[0] >= ids->rank && fetches_rows(e->g, ids, table))
		fetch_row(e, ids, buffer(e, group_buffer(m->gc, op->in[1].id)), m->ix, table,
		          buffer(e, group_buffer(m->gc, op->in[0].id)), at->lo);
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
	int lanes, side;
	bool transposes = !dot && !shift && map_transposes(m, &n, &lanes, &side);

	if (!dot && !transposes)
		nest_lanes(&n, nest_crossed(&n));
	const LeafAccess *crossed = dot || transposes ? NULL : nest_crossed(&n);
	int nouter = transposes ? 0 : nest_order(&n, crossed, outer);

	for (int i = 0; transposes && i < n.nloop; i++)
		if (i != lanes && i != side)
			outer[nouter++] = &n.loop[i];
	m->side = transposes ? &n.loop[side] : NULL;
	m->last = transposes ? &n.loop[lanes] : n.nloop ? &n.loop[n.nloop - 1] : NULL;
	int fn = kernel_begin(gc, e, part, &fresh);
	int64_t full = loop_full(&n, m->last), rows = 1, cost = group_cost(gc), piece = 0,
	        task = n.machine->budget.task;

	for (int i = 0; i < nouter; i++)
		rows *= loop_full(&n, outer[i]);
	if (transposes) { /* a task reads lines along lanes, and writes whole ones */
		cost *= loop_full(&n, m->side);
		piece = (task / cost + 63) / 64 * 64;
	} else if (rows < FEW_ROWS && full * rows * cost > 4 * task) { /* in whole vectors */
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
	if (!m->store && !crossed && !transposes && !nouter && m->last && !t.rows.mul) /* in memory order */
		t.rows.each = t.rows.grain * (t.npiece > 1 ? t.piece : full);
	if (fresh) {
		TaskAt at = tasks_open(e, &n, &t, m->ix);

		m->shift_axis = shift_axis;
		if (shift)
			m->shift_v = shift(e, shift_cx);
		if (transposes) {
			lane_loop(e, at.lo, at.hi, 1, transpose_lane, m);
		} else if (!m->last) {
			map_at(e, m, m->ix);
		} else if (dot || full < 2) {
			LOOP(e, i, at.lo, at.hi, 1) {
				loop_set(e, m->last, ix_s(i), m->ix);
				map_at(e, m, m->ix);
			}
		} else {
			map_fetch(e, m, &at);
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

/* ---------------------------------------------------------------- what is left of a group */
void
maps_emit(GroupCx *gc, GraphKernels *gk)
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
