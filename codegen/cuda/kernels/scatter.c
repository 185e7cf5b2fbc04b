/* scatter.c: elements added to places that indices name: gradients of take and gather, and tables updated in place.
 *
 * In: a group of take.dx, take.add or gather.dx, all it reads in memory.   Out: kernels whose sums have one order, that
 * of the indices. Where a place is a row of some length (an embedding's) a block has one index: if none before it names
 * the same row, the block adds what all those from there on bring, a list of places at a time, as many loads at once as
 * it has registers for. So each row has one block, and rows are made side by side. Elsewhere a thread has a line along
 * the axis and goes through all indices. */
#include "../cuda.h"
#include <string.h>

/* ROW: elements of a row from which a block has one; a block's threads, places of a list, loads at once. */
enum { ROW = 32, ROW_THREADS = 128, LIST = 1024, AT_ONCE = 16 };

/* ---------------------------------------------------------------- a line to a thread */
/* out[.., row, ..] += g[from] where row is in range; the axes before and behind are those of `to`. */
static void
add_at(Cuda *c, const Op *op, Val g, const Ix *from, Ix *to, Cell row)
{
	const Type *t = val_type(c->g, op->out[0]);
	int64_t axis = attr_int(op, A_axis), offset = val_info(c->g, op->out[0])->offset;
	Ix at = cu_fresh(c, 'i'), ext = cu_extent(c, t->axis[axis]);

	cu_line(c, "const long long %s_ = %s;", at, row.v);
	Scope s = cu_scope_open(c, "if (%s_ >= 0 && %s_ < %s)", at, at, ext);

	cu_line(c, "const %s %s = (%s)%s_;", c->it, at, c->it, at);
	to[axis] = at;
	Cell old = cu_load_at(c, t, offset, to), x = cu_value_at(c, g, from);

	cu_store_at(c, t, offset, to, cu_cell_bin(c, EX_ADD, old, x));
	cu_scope_close(c, s);
}

static void
zero_line(Cuda *c, const Op *op, Ix *ix)
{
	const Type *t = val_type(c->g, op->out[0]);
	int64_t axis = attr_int(op, A_axis);
	Scope l = cu_loop_open(c, cu_extent(c, t->axis[axis]), &ix[axis]);

	cu_store_at(c, t, val_info(c->g, op->out[0])->offset, ix, cu_cell_number(c, (DType)t->dtype, 0));
	cu_scope_close(c, l);
}

/* take.dx and take.add: slices of g by ids of any shape. */
static void
take_sum(Cuda *c, const Op *op, Ix *to)
{
	int first = op->kind == OP_take_add;
	const Type *t = val_type(c->g, op->out[0]), *ids = val_type(c->g, op->in[first + 1]);
	int axis = (int)attr_int(op, A_axis);
	Ix from[MAX_RANK], at[MAX_RANK];
	Scope loop[MAX_RANK];

	for (int j = 0; j < ids->rank; j++)
		loop[j] = cu_loop_open(c, cu_extent(c, ids->axis[j]), &at[j]);
	for (int j = 0; j < axis; j++)
		from[j] = to[j];
	for (int j = 0; j < ids->rank; j++)
		from[axis + j] = at[j];
	for (int j = axis + 1; j < t->rank; j++)
		from[j - 1 + ids->rank] = to[j];
	add_at(c, op, op->in[first], from, to, cu_value_at(c, op->in[first + 1], at));
	for (int j = ids->rank; j-- > 0;)
		cu_scope_close(c, loop[j]);
}

static void
gather_sum(Cuda *c, const Op *op, Ix *to)
{
	const Type *t = val_type(c->g, op->out[0]), *idx = val_type(c->g, op->in[1]);
	int64_t axis = attr_int(op, A_axis);
	const char *covered = "1";
	Ix from[MAX_RANK];

	memcpy(from, to, sizeof(Ix) * t->rank);
	for (int j = 0; j < t->rank; j++) /* the index may cover a part of an axis only */
		if (j != axis && !axis_same(t->axis[j], idx->axis[j]))
			covered = cu_both(c, covered, cu_in_range(c, to[j], cu_extent(c, idx->axis[j])));
	Scope s = cu_scope_open(c, "if (%s)", covered), l = cu_loop_open(c, cu_extent(c, idx->axis[axis]), &from[axis]);

	add_at(c, op, op->in[0], from, to, cu_value_at(c, op->in[1], from));
	cu_scope_close(c, l);
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- a row to a block */
/* Elements behind the axis. */
static int64_t
row_of(const Op *op, const Type *t)
{
	int64_t n = 1;

	for (int i = (int)attr_int(op, A_axis) + 1; i < t->rank; i++)
		n *= t->axis[i].n;
	return n;
}

static void
zeros_emit(Cuda *c, const Type *t, int64_t offset)
{
	uint32_t all = (1u << t->rank) - 1;
	int bytes = dtype_info[t->dtype].bytes;
	bool wide = !type_marked(t) && type_elements(t) * bytes % 16 == 0 && offset % 16 == 0;
	const char *to;
	Ix i;

	cu_kernel_open(c, "");
	to = cu_pointer(c, (DType)t->dtype, offset);
	Ix count = wide ? cu_ix_k(c, type_elements(t) * bytes / 16) : cu_product(c, t, all);

	i = cu_fresh(c, 'i');
	Scope s = cu_scope_open(c, "for (%s %s = blockIdx.x * BLOCK + threadIdx.x; %s < %s; %s += gridDim.x * BLOCK)",
	                        c->it, i, i, count, i);

	if (wide)
		cu_line(c, "((uint4 *)%s)[%s] = make_uint4(0, 0, 0, 0);", to, i);
	else
		cu_line(c, "%s[%s] = 0;", to, i);
	cu_scope_close(c, s);
	cu_kernel_ahead(c, "zeros", (cu_full_product(t, all) * (wide ? bytes : 16) / 16 + BLOCK - 1) / BLOCK,
	                (double)type_bytes(t), (double)type_bytes(t));
}

typedef struct Row {
	Cuda *c;
	const Op *op;
	const Type *t, *ids;         /* the table; indices, in row-major order */
	int first, axis;             /* operand that is added */
	Ix outer[MAX_RANK], count, row;
} Row;

/* Index number j of all; -1: out of range. */
static const char *
id_at(const Row *r, const char *j)
{
	Cuda *c = r->c;
	Type plain = type_of((DType)r->ids->dtype, r->ids->rank, r->ids->axis);
	Ix at[MAX_RANK];

	cu_take_apart(c, &plain, (1u << plain.rank) - 1, j, at);
	return cu_cell_let(c, cu_cell_cast(c, cu_value_at(c, r->op->in[r->first + 1], at), DT_i64).v, DT_i64).v;
}

/* The block's list of places from `from` on, at most LIST, that name the row: their number in `found`. All indices are
 * loaded first, and all warps' counts stand before the block meets. */
static void
list_emit(const Row *r)
{
	enum { WARPS = ROW_THREADS / WARP, EACH = LIST / ROW_THREADS };
	Cuda *c = r->c;

	cu_line(c, "int found = 0;");
	cu_line(c, "unsigned lanes[%d];", EACH);
	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", EACH);

	cu_line(c, "const %s place = from + q * %d + tid, there = place < %s ? place : 0;", c->it, ROW_THREADS,
	        r->count);
	cu_line(c, "lanes[q] = (unsigned)(%s == row) & (unsigned)(place == there);", id_at(r, "there"));
	cu_scope_close(c, s);
	cu_line(c, "#pragma unroll");
	s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", EACH);
	cu_line(c, "lanes[q] = __ballot_sync(0xffffffffu, lanes[q] != 0);");
	cu_line(c, "if (tid %% 32 == 0) warps[q * %d + tid / 32] = __popc(lanes[q]);", WARPS);
	cu_scope_close(c, s);
	cu_line(c, "__syncthreads();");
	cu_line(c, "#pragma unroll");
	s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", EACH);
	cu_line(c, "int before = found;");
	cu_line(c, "#pragma unroll");
	Scope in = cu_scope_open(c, "for (int w = 0; w < %d; w++)", WARPS);

	cu_line(c, "if (w < tid / 32) before += warps[q * %d + w];", WARPS);
	cu_line(c, "found += warps[q * %d + w];", WARPS);
	cu_scope_close(c, in);
	cu_line(c, "if (lanes[q] >> tid %% 32 & 1)");
	cu_line(c, "\tlist[before + __popc(lanes[q] & ((1u << tid %% 32) - 1))] = q * %d + tid;", ROW_THREADS);
	cu_scope_close(c, s);
	cu_line(c, "__syncthreads();");
}

/* to[rows..] += what each place of the list brings, a column to a thread. */
static void
add_list(const Row *r)
{
	Cuda *c = r->c;
	const Type *g = val_type(c->g, r->op->in[r->first]);
	int64_t offset = val_info(c->g, r->op->out[0])->offset;
	DType dt = (DType)r->t->dtype;
	uint32_t behind = ((1u << r->t->rank) - 1) & ~((2u << r->axis) - 1);
	Type plain = type_of((DType)r->ids->dtype, r->ids->rank, r->ids->axis);
	Ix to[MAX_RANK], from[MAX_RANK], at[MAX_RANK], e = cu_fresh(c, 'i');

	memcpy(to, r->outer, sizeof to);
	Scope s = cu_scope_open(c, "for (int %s = tid; %s < %s; %s += %d)", e, e, cu_product(c, r->t, behind), e,
	                        ROW_THREADS);

	cu_take_apart(c, r->t, behind, e, to);
	to[r->axis] = r->row;
	Cell sum = cu_load_at(c, r->t, offset, to);

	cu_line(c, "%s sum = %s;", cu_c_type(dt), sum.v);
	Scope l = cu_scope_open(c, "for (int q = 0; q < found; q += %d)", AT_ONCE);

	cu_line(c, "%s x[%d];", cu_c_type(dt), AT_ONCE);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AT_ONCE);
	Scope in = cu_scope_open(c, "if (q + u < found)");

	cu_line(c, "const %s place = from + list[q + u];", c->it);
	cu_take_apart(c, &plain, (1u << plain.rank) - 1, "place", at);
	for (int i = 0; i < r->axis; i++)
		from[i] = to[i];
	for (int i = 0; i < plain.rank; i++)
		from[r->axis + i] = at[i];
	for (int i = r->axis + 1; i < r->t->rank; i++)
		from[i - 1 + plain.rank] = to[i];
	Cell x = cu_load_at(c, g, val_info(c->g, r->op->in[r->first])->offset, from);

	cu_line(c, "x[u] = %s;", cu_cell_cast(c, x, dt).v);
	cu_scope_close(c, in);
	cu_scope_close(c, u);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int u = 0; u < %d; u++)", AT_ONCE);
	cu_line(c, "\tif (q + u < found) sum = %s;",
	        cu_cell_bin(c, EX_ADD, (Cell){"sum", (uint8_t)dt}, (Cell){"x[u]", (uint8_t)dt}).v);
	cu_scope_close(c, l);
	cu_store_at(c, r->t, offset, to, (Cell){"sum", (uint8_t)dt});
	cu_scope_close(c, s);
}

static void
rows_emit(Cuda *c, const Op *op)
{
	int first = op->kind == OP_take_add;
	Row r = {.c = c, .op = op, .t = val_type(c->g, op->out[0]), .ids = val_type(c->g, op->in[first + 1]),
	         .first = first, .axis = (int)attr_int(op, A_axis)};
	uint32_t before = (1u << r.axis) - 1, all = (1u << r.ids->rank) - 1;
	Ix item;

	if (op->kind == OP_take_dx)
		zeros_emit(c, r.t, val_info(c->g, op->out[0])->offset);
	cu_kernel_open(c, "");
	c->threads = ROW_THREADS;
	cu_line(c, "__shared__ int list[%d], warps[%d];", LIST, LIST / WARP);
	cu_line(c, "const int tid = threadIdx.x;");
	r.count = cu_product(c, r.ids, all);
	item = cu_fresh(c, 'i');
	Scope s = cu_scope_open(c, "for (%s %s = blockIdx.x; %s < %s; %s += gridDim.x)", c->it, item, item,
	                        cu_ix_mul(c, cu_product(c, r.t, before), r.count), item);
	Ix line = cu_ix_div(c, item, r.count), mine = cu_ix_rem(c, item, r.count);

	cu_take_apart(c, r.t, before, line, r.outer);
	cu_line(c, "const long long row = %s;", id_at(&r, mine));
	cu_line(c, "if (row < 0 || row >= %s) continue;", cu_extent(c, r.t->axis[r.axis]));
	cu_line(c, "bool known = false;");
	/* indices beyond are read at a place that there is, so that no load waits for a condition */
	Scope l = cu_scope_open(c, "for (%s first = tid; first < %s; first += %d)", c->it, mine, AT_ONCE * ROW_THREADS);

	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", AT_ONCE);

	cu_line(c, "const %s j = first + q * %d, there = j < %s ? j : 0;", c->it, ROW_THREADS, mine);
	cu_line(c, "known |= (%s == row) & (j == there);", id_at(&r, "there"));
	cu_scope_close(c, q);
	cu_scope_close(c, l);
	cu_line(c, "if (__syncthreads_or(known)) continue;");
	r.row = cu_fresh(c, 'i');
	cu_line(c, "const %s %s = (%s)row;", c->it, r.row, c->it);
	l = cu_scope_open(c, "for (%s from = %s; from < %s; from += %d)", c->it, mine, r.count, LIST);
	list_emit(&r);
	add_list(&r);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, l);
	cu_scope_close(c, s);
	cu_kernel_close(c, "a row to a block", cu_full_product(r.t, before) * cu_full_product(r.ids, all));
}

/* ---------------------------------------------------------------- the choice */
void
cu_scatter_emit(Cuda *c, const Op *op)
{
	const Type *t = val_type(c->g, op->out[0]);
	uint32_t axes = ((1u << t->rank) - 1) & ~(1u << attr_int(op, A_axis));
	Out copy = {op->in[0], t, val_info(c->g, op->out[0])->offset};
	Ix ix[MAX_RANK];

	if (op->kind != OP_take_dx && op->kind != OP_take_add && op->kind != OP_gather_dx)
		bug("target cuda has no code for %s: a T_SCATTER has a case in scatter_emit", op_info[op->kind].name);
	if (op->kind == OP_take_add && val_info(c->g, op->in[0])->offset != copy.offset)
		cu_map_emit(c, &copy, 1);
	if (op->kind != OP_gather_dx && row_of(op, t) >= ROW) {
		rows_emit(c, op);
		return;
	}
	cu_kernel_open(c, "");
	Scope s = cu_threads_open(c, t, axes, ix);

	if (op->kind != OP_take_add)
		zero_line(c, op, ix);
	(op->kind == OP_gather_dx ? gather_sum : take_sum)(c, op, ix);
	cu_scope_close(c, s);
	cu_kernel_close(c, "a line to a thread", cu_blocks_of(t, axes));
}
