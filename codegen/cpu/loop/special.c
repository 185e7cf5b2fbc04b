/* special.c: kernels of a shape of their own, one op each: stores, checks, running sums, scattered additions.
 *
 * In: an op alone in its group.   Out: a kernel. No two tasks write one element: running sums and scatters run along
 * their axis in one task, tasks are cut over the other axes; so every sum has one order, whatever the number of
 * threads. */
#include "../cpu.h"
#include <string.h>

bool
special_op(const Graph *g, const Op *op)
{
	switch (op->kind) {
	case OP_store: case OP_check: case OP_cumsum: case OP_take_add: case OP_take_dx: return true;
	case OP_gather_dx: return !gather_dx_pulls(g, op);
	case OP_max_pool2d_dx: return pool_dx_special(g, op);
	default: return calls_op((OpKind)op->kind);
	}
}

/* ---------------------------------------------------------------- check */
typedef struct Check { const Op *op; V in, first, limit; const Type *plain; } Check;

/* The lowest number of an element out of range; elements are looked at in row-major order. */
static void
check_lane(Emit *e, void *cx, Ix i, int u)
{
	Check *c = cx;
	DType dt = (DType)c->plain->dtype;
	Cell x = cell_cast(e, load_at(e, c->in, dt, (Off){.s = i.s, .c = i.c}), DT_i64),
		limit = cell_of(c->limit, false, DT_i64);
	Cell bad = cell_bin(e, EX_OR, cell_bin(e, EX_LT, x, cell_const(e, DT_i64, 0)), cell_bin(e, EX_GE, x, limit));
	T t = vec_of(e, e->l->i64);

	(void)u;
	if (attr_bool(c->op, A_has_ignore))
		bad = cell_bin(e, EX_AND, bad,
		               cell_bin(e, EX_NE, x, cell_of(k64(e, attr_int(c->op, A_ignore)), false, DT_i64)));
	if (e->mask)
		bad = cell_bin(e, EX_AND, bad, cell_of(e->mask, true, DT_bool));
	Cell old = cell_of(slot_get(e, c->first, t), true, DT_i64),
	     now = cell_select(e, bad, ix_cell(e, i, DT_i64), old);

	slot_set(e, c->first, cell_vec(e, cell_bin(e, EX_FMIN, old, now)));
}

static void
emit_check(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	Emit *e = arena_new_of(gc->tmp, Emit);
	const Type *t = val_type(gc->g, op->in[0]);
	int in = group_buffer(gc, op->in[0].id);
	int64_t number = check_number(gc->c->m, op);
	bool fresh;

	vec_push(gc->tmp, &gc->buf, ((Buffer){.val = 0, .offset = 0})); /* the fault record */
	int fn = kernel_begin(gc, e, arena_printf(gc->tmp, "check%lld", (long long)number), &fresh);

	if (fresh) {
		Llvm *l = e->l;
		V count = k64(e, 1);

		for (int i = 0; i < t->rank; i++)
			count = i_mul(e, count, extent(e, t->axis[i]));
		Check c = {.op = op, .in = buffer(e, in), .first = slot_new(e, vec_of(e, l->i64)),
		           .limit = extent(e, check_limit(op)), .plain = t};

		slot_set(e, c.first, splat(e, k64(e, INT64_MAX)));
		lane_loop(e, k64(e, 0), count, 1, check_lane, &c);
		LLVMBuilderRef b = here(e);
		V v = slot_get(e, c.first, vec_of(e, l->i64)), rec = buffer(e, in + 1);
		V least = intrinsic(e, b, "llvm.vector.reduce.smin", (T[]){vec_of(e, l->i64)}, 1, (V[]){v}, 1);
		V found = LLVMBuildICmp(b, LLVMIntNE, least, k64(e, INT64_MAX), "");
		LLVMBasicBlockRef test = block_new(e, 0, "found"), write = block_new(e, 0, "write"),
		                  done = block_new(e, 0, "done");

		LLVMBuildCondBr(b, found, test, done);
		LLVMPositionBuilderAtEnd(b, test);
		/* RtFault: set, op, element, value; an earlier check's fault stays */
		V field[4];

		for (int k = 0; k < 4; k++)
			field[k] = LLVMBuildGEP2(b, l->i64, rec, (V[]){k64(e, k)}, 1, "");
		V set = LLVMBuildLoad2(b, l->i64, field[0], ""), other = LLVMBuildLoad2(b, l->i64, field[1], "");
		V first = LLVMBuildOr(b, LLVMBuildICmp(b, LLVMIntEQ, set, k64(e, 0), ""),
		                      LLVMBuildICmp(b, LLVMIntSGT, other, k64(e, number), ""), "");

		LLVMBuildCondBr(b, first, write, done);
		LLVMPositionBuilderAtEnd(b, write);
		e->load_here = true;
		Cell x = cell_cast(e, load_at(e, c.in, (DType)t->dtype, (Off){.s = least}), DT_i64);

		LLVMBuildStore(b, k64(e, number), field[1]);
		LLVMBuildStore(b, least, field[2]);
		LLVMBuildStore(b, x.v, field[3]);
		LLVMBuildStore(b, k64(e, 1), field[0]);
		LLVMBuildBr(b, done);
		LLVMPositionBuilderAtEnd(b, done);
	}
	kernel_end(gc, e, gk, fn, (Rows){.rows = 1, .mul = 0, .div = 1, .grain = 1}, fresh, true);
}

/* ---------------------------------------------------------------- along one axis */
typedef struct Along {
	GroupCx *gc;
	const Op *op;
	const Nest *n;
	const LoopAxis *last;
	int axis, first, in[2], out; /* in: operands first and first + 1 */
	Ix ix[MAX_RANK];
} Along;

typedef void AlongBody(Emit *e, Along *a, const Ix *ix);
typedef struct AlongCx { Along *a; AlongBody *body; } AlongCx;

static void
along_lane(Emit *e, void *cx, Ix i, int u)
{
	AlongCx *c = cx;

	(void)u;
	loop_set(e, c->a->last, i, c->a->ix);
	c->body(e, c->a, c->a->ix);
}

/* Loops over all axes of the result but one, lanes on the innermost of them if it is innermost in memory. */
static void
along_kernel(GroupCx *gc, const Op *op, int axis, int first, AlongBody *body, const Val *leaf, int nleaf,
             GraphKernels *gk, const char *part)
{
	Nest n = {.root = val_type(gc->g, op->out[0]), .atomic = 1u << axis};
	Along a = {.gc = gc, .op = op, .n = &n, .axis = axis, .first = first};
	const LoopAxis *outer[MAX_RANK];
	int nouter = 0;
	Emit *e = arena_new_of(gc->tmp, Emit);
	int8_t id[MAX_RANK];
	bool fresh;

	for (int i = 0; i < MAX_RANK; i++)
		id[i] = (int8_t)(i < n.root->rank ? i : -1);
	for (int k = 0; k < nleaf; k++)
		nest_leaf(gc, &n, val_type(gc->g, leaf[k]), id);
	if (!nleaf)
		n.atomic = ~0u;
	for (int k = 0; first + k < op->nin && k < 2; k++)
		a.in[k] = group_buffer(gc, op->in[first + k].id);
	a.out = group_buffer(gc, op->out[0].id);
	nest_build(gc, &n, 1u << axis);
	for (int i = 0; i < n.nloop; i++)
		if (!n.loop[i].reduced)
			outer[nouter++] = &n.loop[i];
	if (n.nloop && !n.loop[n.nloop - 1].reduced)
		a.last = outer[--nouter];
	int fn = kernel_begin(gc, e, part, &fresh);
	int64_t inner = (first ? 0 : n.root->axis[axis].n) +
	                (op->nin > 1 ? type_elements(val_type(gc->g, op->in[first + 1])) : 0);
	Tasks t = tasks_of(&n, outer, nouter, a.last, a.last ? 64 : 0, 1, inner);

	if (fresh) {
		TaskAt at = tasks_open(e, &n, &t, a.ix);
		AlongCx c = {&a, body};

		e->load_here = true;
		if (a.last)
			lane_loop(e, at.lo, at.hi, 1, along_lane, &c);
		else
			body(e, &a, a.ix);
		tasks_close(e);
	}
	kernel_end(gc, e, gk, fn, t.rows, fresh, false);
}

static void
cumsum_body(Emit *e, Along *a, const Ix *ix)
{
	const Type *t = val_type(e->g, a->op->out[0]), *from = val_type(e->g, a->op->in[0]);
	DType dt = (DType)t->dtype, acc = dt == DT_f16 || dt == DT_bf16 ? DT_f32 : dt;
	T lt = ctype_v(e, acc, e->lanes);
	V sum = slot_new(e, lt), ext = extent(e, t->axis[a->axis]);
	Ix at[MAX_RANK];

	slot_set(e, sum, LLVMConstNull(lt));
	memcpy(at, ix, sizeof at);
	EACH(e, i, ext) {
		at[a->axis] = ix_s(attr_bool(a->op, A_reverse) ? i_sub(e, i_sub_k(e, ext, 1), i) : i);
		Cell x = cell_cast(e, load_at(e, buffer(e, a->in[0]), dt, offset_of(e, from, at)), acc);
		Cell s = cell_bin(e, EX_ADD, cell_of(slot_get(e, sum, lt), e->lanes, acc), x);

		slot_set(e, sum, e->lanes ? cell_vec(e, s) : s.v);
		store_at(e, buffer(e, a->out), dt, offset_of(e, t, at), cell_cast(e, s, dt));
	}
}

static void
zero_along(Emit *e, Along *a, const Ix *ix)
{
	const Type *t = val_type(e->g, a->op->out[0]);
	Ix at[MAX_RANK];

	memcpy(at, ix, sizeof at);
	OVER(e, t, 1u << a->axis, at)
		store_at(e, buffer(e, a->out), (DType)t->dtype, offset_of(e, t, at), cell_const(e, (DType)t->dtype, 0));
}

/* out[to] += g[from] where 0 <= row < extent. */
static void
add_at(Emit *e, Along *a, const Ix *from, Ix *to, Ix row)
{
	const Type *t = val_type(e->g, a->op->out[0]), *gt = val_type(e->g, a->op->in[a->first]);
	DType dt = (DType)t->dtype;
	V mask = e->mask, pred = e->pred;
	bool vec, scalar = !e->lanes;
	V valid = ix_in_range(e, row, extent(e, t->axis[a->axis]), &vec);
	LLVMBasicBlockRef yes = NULL, no = NULL;

	to[a->axis] = row;
	if (vec) {
		e->mask = mask_and(e, mask, valid);
	} else {
		yes = block_new(e, e->depth, "add");
		no = block_new(e, e->depth, "skip");
		LLVMBuildCondBr(here(e), valid, yes, no);
		LLVMPositionBuilderAtEnd(here(e), yes);
	}
	(void)scalar;
	Off o = offset_of(e, t, to);
	Cell x = load_at(e, buffer(e, a->in[0]), dt, offset_of(e, gt, from)),
	     old = load_at(e, buffer(e, a->out), dt, o);

	store_at(e, buffer(e, a->out), dt, o, cell_bin(e, EX_ADD, old, x));
	if (yes) {
		LLVMBuildBr(here(e), no);
		LLVMPositionBuilderAtEnd(here(e), no);
	}
	e->mask = mask;
	e->pred = pred;
}

/* ---------------------------------------------------------------- slices added by ids */
typedef struct Slices {
	const Type *t, *gt;
	const LoopAxis *last;
	V to, from;
	Ix ix[MAX_RANK], at[MAX_RANK]; /* of an element of the result, of the id */
	int axis, nid;
	bool zero;
} Slices;

static void
slice_lane(Emit *e, void *cx, Ix i, int u)
{
	Slices *s = cx;
	DType dt = (DType)s->t->dtype;
	Ix from[MAX_RANK];

	(void)u;
	loop_set(e, s->last, i, s->ix);
	Off o = offset_of(e, s->t, s->ix);

	if (s->zero) {
		store_at(e, s->to, dt, o, cell_const(e, dt, 0));
		return;
	}
	for (int j = 0; j < s->gt->rank; j++)
		from[j] = j < s->axis            ? s->ix[j]
		          : j < s->axis + s->nid ? s->at[j - s->axis]
		                                 : s->ix[j + 1 - s->nid];
	Cell x = load_at(e, s->from, dt, offset_of(e, s->gt, from)), old = load_at(e, s->to, dt, o);

	store_at(e, s->to, dt, o, cell_bin(e, EX_ADD, old, x));
}

bool
fetches_rows(const Graph *g, const Type *ids, const Type *table)
{
	return type_is_plain(ids) && type_is_plain(table) && !type_marked(table) &&
	       type_bytes(table) > machine_of(g)->budget.l2;
}

/* Rows that ids name lie anywhere, and the CPU asks for none of them by itself: the row of the id that stands a few
 * places behind `at`, from element lo on. */
void
fetch_row(Emit *e, const Type *ids, V list, const Ix *at, const Type *table, V base, V lo)
{
	enum { AHEAD = 8, LINE = 64, MOST = 8 }; /* ids; bytes; lines of a row: those behind them the CPU does see */
	int64_t row = type_bytes(table) / table->axis[0].n, size = dtype_info[table->dtype].bytes;
	V ahead = i_min_k(e, i_add_k(e, offset_of(e, ids, at).s, AHEAD), type_elements(ids) - 1);
	Ix id = ix_of_cell(e, load_at(e, list, (DType)ids->dtype, (Off){.s = ahead}));
	V known = i_max(e, k64(e, 0), i_min_k(e, id.s, table->axis[0].n - 1));
	V from = ptr_at(e, base, i_add(e, i_mul_k(e, known, row), i_mul_k(e, lo, size)));

	for (int64_t i = 0; i < row && i < MOST * LINE; i += LINE)
		prefetch(e, ptr_at(e, from, k64(e, i)), 3);
}

/* out[.., id, ..] += g[.., place of the id, ..], id by id. A task has a piece of the innermost axes and all ids, whose
 * slices it goes over one after the other, as they lie in memory. False: the axis of the ids is itself innermost. */
static bool
take_kernel(GroupCx *gc, const Op *op, int first, bool zero, GraphKernels *gk)
{
	enum { LEAST = 64, MOST = 1024, PIECES = 64 };
	const Type *t = val_type(gc->g, op->out[0]), *gt = val_type(gc->g, op->in[first]),
	           *ids = val_type(gc->g, op->in[first + 1]);
	int axis = (int)attr_int(op, A_axis), nouter = 0;
	Nest n = {.root = t, .atomic = 1u << axis};
	const LoopAxis *outer[MAX_RANK];
	int8_t own[MAX_RANK], theirs[MAX_RANK];
	int64_t all = 1;
	Emit *e = arena_new_of(gc->tmp, Emit);
	bool fresh;

	memset(own, -1, sizeof own);
	memset(theirs, -1, sizeof theirs);
	for (int i = 0; i < t->rank; i++) {
		own[i] = (int8_t)i;
		if (i != axis)
			theirs[i < axis ? i : i - 1 + ids->rank] = (int8_t)i;
	}
	nest_leaf(gc, &n, t, own);
	nest_leaf(gc, &n, gt, theirs);
	nest_build(gc, &n, 1u << axis);
	if (!n.nloop || n.loop[n.nloop - 1].reduced)
		return false;
	for (int i = 0; i < n.nloop; i++)
		if (!n.loop[i].reduced) {
			outer[nouter++] = &n.loop[i];
			all *= loop_full(&n, &n.loop[i]);
		}
	Slices s = {.t = t, .gt = gt, .last = outer[--nouter], .axis = axis, .nid = ids->rank};
	int64_t piece = (all / PIECES + LEAST - 1) / LEAST * LEAST;

	piece = piece < LEAST ? LEAST : piece > MOST ? MOST : piece;
	Tasks tasks = tasks_of(&n, outer, nouter, s.last, piece, 1,
	                       (zero ? t->axis[axis].n : 0) + type_elements(ids));
	int from = group_buffer(gc, op->in[first].id), id = group_buffer(gc, op->in[first + 1].id),
	    to = group_buffer(gc, op->out[0].id), fn = kernel_begin(gc, e, "add", &fresh);

	if (fresh) {
		e->load_here = true;
		s.from = buffer(e, from);
		s.to = buffer(e, to);
		V list = buffer(e, id);
		TaskAt at = tasks_open(e, &n, &tasks, s.ix);

		if (zero) {
			s.zero = true;
			OVER(e, t, 1u << axis, s.ix) lane_loop(e, at.lo, at.hi, 1, slice_lane, &s);
			s.zero = false;
		}
		OVER(e, ids, ALL_AXES(ids), s.at) {
			bool vec;
			Ix row = ix_of_cell(e, load_at(e, list, (DType)ids->dtype, offset_of(e, ids, s.at)));
			V there = ix_in_range(e, row, extent(e, t->axis[axis]), &vec),
			  end = LLVMBuildSelect(at3(e, there, at.hi, at.lo), there, at.hi, at.lo, "");

			if (!axis && n.nloop == 2 && fetches_rows(gc->g, ids, t))
				fetch_row(e, ids, list, s.at, t, s.to, at.lo);
			s.ix[axis] = row;
			lane_loop(e, at.lo, end, 1, slice_lane, &s);
		}
		tasks_close(e);
	}
	kernel_end(gc, e, gk, fn, tasks.rows, fresh, false);
	return true;
}

static void
take_add_body(Emit *e, Along *a, const Ix *ix)
{
	const Type *t = val_type(e->g, a->op->out[0]), *ids = val_type(e->g, a->op->in[a->first + 1]);
	Ix to[MAX_RANK], from[MAX_RANK], at[MAX_RANK];

	memcpy(to, ix, sizeof to);
	for (int j = 0; j < a->axis; j++)
		from[j] = ix[j];
	for (int j = a->axis + 1; j < t->rank; j++)
		from[j - 1 + ids->rank] = ix[j];
	OVER(e, ids, ALL_AXES(ids), at) {
		Ix row = ix_of_cell(e, load_at(e, buffer(e, a->in[1]), (DType)ids->dtype, offset_of(e, ids, at)));

		memcpy(&from[a->axis], at, (size_t)ids->rank * sizeof *at);
		add_at(e, a, from, to, row);
	}
}

static void
take_dx_body(Emit *e, Along *a, const Ix *ix)
{
	zero_along(e, a, ix);
	take_add_body(e, a, ix);
}

static void
gather_dx_body(Emit *e, Along *a, const Ix *ix)
{
	const Type *t = val_type(e->g, a->op->out[0]), *idx = val_type(e->g, a->op->in[1]);
	Ix to[MAX_RANK], from[MAX_RANK];
	V n = extent(e, idx->axis[a->axis]), mask = e->mask;

	zero_along(e, a, ix);
	memcpy(to, ix, sizeof to);
	memcpy(from, ix, sizeof from);
	for (int j = 0; j < t->rank; j++) {
		bool vec;

		if (j == a->axis || axis_same(t->axis[j], idx->axis[j]))
			continue;
		/* the index covers a part of this axis only */
		V in = ix_in_range(e, ix[j], extent(e, idx->axis[j]), &vec);

		if (vec)
			e->mask = mask_and(e, e->mask, in);
		else
			n = LLVMBuildSelect(at2(e, in, n), in, n, k64(e, 0), "");
	}
	EACH(e, i, n) {
		from[a->axis] = ix_s(i);
		Ix row = ix_of_cell(e, load_at(e, buffer(e, a->in[1]), (DType)idx->dtype, offset_of(e, idx, from)));

		add_at(e, a, from, to, row);
	}
	e->mask = mask;
}

const char *
special_select(Graph *g, const Op *op)
{
	if (op->kind == OP_max_pool2d_dx)
		pool_dx_select(g, op);
	return calls_op((OpKind)op->kind) ? calls_select(g, op) : NULL;
}

void
special_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	switch (op->kind) {
	case OP_store: {
		State *s = module_state(gc->c->m, attr_str(op, A_state));

		if (val_info(gc->g, op->in[0])->offset == s->offset)
			return;
		if (gc->inside[op->in[0].id])
			gc->ready[op->in[0].id] = true;
		store_copy(gc, op->in[0], &s->type, s->offset, gk);
		return;
	}
	case OP_check:
		emit_check(gc, op, gk);
		return;
	case OP_max_pool2d_dx:
		pool_dx_emit(gc, op, gk);
		return;
	case OP_cumsum:
		along_kernel(gc, op, (int)attr_int(op, A_axis), 0, cumsum_body, (Val[]){op->in[0], op->out[0]}, 2, gk,
		             "scan");
		return;
	case OP_take_dx:
		if (!take_kernel(gc, op, 0, true, gk))
			along_kernel(gc, op, (int)attr_int(op, A_axis), 0, take_dx_body, NULL, 0, gk, "add");
		return;
	case OP_take_add:
		if (val_info(gc->g, op->in[0])->offset != val_info(gc->g, op->out[0])->offset)
			store_copy(gc, op->in[0], val_type(gc->g, op->out[0]), val_info(gc->g, op->out[0])->offset, gk);
		if (!take_kernel(gc, op, 1, false, gk))
			along_kernel(gc, op, (int)attr_int(op, A_axis), 1, take_add_body, NULL, 0, gk, "add");
		return;
	case OP_order: case OP_nms: case OP_roi_align: case OP_roi_align_dx: case OP_all_reduce:
	case OP_all_moments:
		calls_emit(gc, op, gk);
		return;
	default:
		along_kernel(gc, op, (int)attr_int(op, A_axis), 0, gather_dx_body, NULL, 0, gk, "add");
	}
}
