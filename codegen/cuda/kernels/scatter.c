/* scatter.c: elements added to places that indices name: gradients of take and gather, and tables updated in place.
 *
 * In: a group of take.dx, take.add or gather.dx, all it reads in memory.   Out: kernels whose sums have one order, that
 * of the indices. Of take, whose indices name rows, there are few (then a thread has an index and some neighbours along
 * the row: it adds up what the row gets if no index before its own names it), or they are put in order (sorted.c). Of
 * gather a thread has a line along the axis and goes through all its indices. */
#include "../contract/gemm.h"
#include "scatter.h"
#include <string.h>

/* Indices that are few; slices of a thread on their way. */
enum { FEW = 32, AHEAD = 8 };

/* ---------------------------------------------------------------- gather: a line to a thread */
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

/* ---------------------------------------------------------------- slices of take */
/* Neighbours along a row that a thread may load and store at once. */
static int
vector_of(const Slices *s)
{
	int inner = cu_inner_axis(s->t), from = cu_inner_axis(s->g);

	return inner > s->axis && from == inner - 1 + s->ids->rank && cu_vector_type(s->dt) && !s->t->axis[inner].mul &&
	                       s->t->axis[inner].n % 4 == 0 && s->offset % 16 == 0 && s->from % 16 == 0
	               ? 4
	               : 1;
}

Slices
cu_slices_of(const Graph *g, const Op *op)
{
	int first = op->kind == OP_take_add;
	Slices s = {.op = op,
	            .t = val_type(g, op->out[0]),
	            .ids = val_type(g, op->in[first + 1]),
	            .g = val_type(g, op->in[first]),
	            .ids_val = op->in[first + 1],
	            .axis = (int)attr_int(op, A_axis),
	            .offset = val_info(g, op->out[0])->offset,
	            .from = val_info(g, op->in[first])->offset};

	s.dt = (DType)s.t->dtype;
	s.sum = s.dt == DT_f16 || s.dt == DT_bf16 ? DT_f32 : s.dt;
	s.before = (1u << s.axis) - 1;
	s.behind = ((1u << s.t->rank) - 1) & ~((2u << s.axis) - 1);
	s.vec = vector_of(&s);
	return s;
}

const char *
cu_slices_id(Cuda *c, const Slices *s, const char *place)
{
	Type plain = type_of((DType)s->ids->dtype, s->ids->rank, s->ids->axis);
	Ix at[MAX_RANK];

	cu_take_apart(c, &plain, (1u << plain.rank) - 1, place, at);
	return cu_cell_cast(c, cu_value_at(c, s->ids_val, at), DT_i64).v;
}

const char *
cu_slices_at(Cuda *c, const Slices *s, const Ix *to, const char *place)
{
	Type plain = type_of((DType)s->ids->dtype, s->ids->rank, s->ids->axis);
	Ix from[MAX_RANK], at[MAX_RANK];

	cu_take_apart(c, &plain, (1u << plain.rank) - 1, place, at);
	for (int i = 0; i < s->axis; i++)
		from[i] = to[i];
	for (int i = 0; i < plain.rank; i++)
		from[s->axis + i] = at[i];
	for (int i = s->axis + 1; i < s->t->rank; i++)
		from[i - 1 + plain.rank] = to[i];
	return cu_address(c, s->g, s->from, from);
}

void
cu_slices_load(Cuda *c, const Slices *s, DType dt, const char *to, const char *from)
{
	if (s->vec == 1) {
		cu_line(c, "%s[0] = %s;", to, cu_from_memory(c, dt, arena_printf(c->a, "*(%s)", from)));
	} else if (dt == DT_f32) {
		cu_line(c, "take%d_32(%s, %s);", s->vec, to, from);
	} else {
		cu_line(c, "{ unsigned short half[%d]; take%d_16(half, %s); for (int v = 0; v < %d; v++) %s[v] = %s; }",
		        s->vec, s->vec, from, s->vec, to, cu_from_memory(c, dt, "half[v]"));
	}
}

void
cu_slices_store(Cuda *c, const Slices *s, DType dt, const char *to, const char *x)
{
	if (s->vec == 1)
		cu_line(c, "*(%s) = %s;", to, cu_to_memory(c, dt, arena_printf(c->a, "%s[0]", x)));
	else
		cu_line(c, "put%d_%s(%s, %s);", s->vec, dt == DT_f32 ? "32" : dtype_info[dt].name, to, x);
}

void
cu_slices_add(Cuda *c, const Slices *s, const char *to, const char *a, const char *b)
{
	Cell x = {arena_printf(c->a, "%s[v]", a), (uint8_t)s->dt}, y = {arena_printf(c->a, "%s[v]", b), (uint8_t)s->dt};

	cu_line(c, "for (int v = 0; v < %d; v++) %s[v] = %s;", s->vec, to, cu_cell_bin(c, EX_ADD, x, y).v);
}

void
cu_slices_put(Cuda *c, const Slices *s, const Ix *to, const char *sum)
{
	cu_stores_at(c, s->offset);
	cu_line(c, "%s *const place = %s;", cu_memory_type(s->dt), cu_address(c, s->t, s->offset, to));
	if (s->op->kind == OP_take_add) {
		cu_line(c, "%s old[%d];", cu_c_type(s->dt), s->vec);
		cu_slices_load(c, s, s->dt, "old", "place");
		cu_slices_add(c, s, "old", "old", sum);
		sum = "old";
	}
	cu_slices_store(c, s, s->dt, "place", sum);
}

int64_t
cu_slices_zero(Cuda *c, const Slices *s)
{
	uint32_t all = (1u << s->t->rank) - 1;
	int bytes = dtype_info[s->dt].bytes;
	bool wide = !type_marked(s->t) && type_elements(s->t) * bytes % 16 == 0 && s->offset % 16 == 0;
	const char *to = cu_pointer(c, s->dt, s->offset);
	Ix count = wide ? cu_ix_k(c, type_elements(s->t) * bytes / 16) : cu_product(c, s->t, all), i = cu_fresh(c, 'i');
	Scope l = cu_scope_open(c, "for (%s %s = blockIdx.x * BLOCK + threadIdx.x; %s < %s; %s += gridDim.x * BLOCK)",
	                        c->it, i, i, count, i);

	cu_stores_at(c, s->offset);
	if (wide)
		cu_line(c, "((uint4 *)%s)[%s] = make_uint4(0, 0, 0, 0);", to, i);
	else
		cu_line(c, "%s[%s] = 0;", to, i);
	cu_scope_close(c, l);
	return (cu_full_product(s->t, all) * (wide ? bytes : 16) / 16 + BLOCK - 1) / BLOCK;
}

/* ---------------------------------------------------------------- few indices of take */
/* Adds to `sum` what indices behind number `mine` bring that name the same row. */
static void
later_add(Cuda *c, const Slices *s, const Ix *to, Ix mine, Ix count)
{
	Scope l = cu_scope_open(c, "for (%s first = %s + 1; first < %s; first += %d)", c->it, mine, count, AHEAD);

	cu_line(c, "unsigned same = 0;");
	cu_line(c, "%s x[%d][%d];", cu_c_type(s->dt), AHEAD, s->vec);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);

	/* indices beyond are read at a place that there is, so that no load waits for a condition */
	cu_line(c, "const %s there = first + u < %s ? first + u : %s;", c->it, count, mine);
	cu_line(c, "same |= (unsigned)(there != %s && %s == row) << u;", mine, cu_slices_id(c, s, "there"));
	cu_scope_close(c, u);
	cu_line(c, "if (!same) continue;");
	cu_line(c, "#pragma unroll");
	u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);
	cu_line(c, "const %s there = same >> u & 1 ? first + u : %s;", c->it, mine);
	cu_slices_load(c, s, s->dt, "x[u]", cu_slices_at(c, s, to, "there"));
	cu_scope_close(c, u);
	cu_line(c, "#pragma unroll");
	u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);
	cu_line(c, "if (same >> u & 1)");
	cu_slices_add(c, s, "sum", "sum", "x[u]");
	cu_scope_close(c, u);
	cu_scope_close(c, l);
}

static void
few_emit(Cuda *c, const Slices *s)
{
	uint32_t all = (1u << s->ids->rank) - 1;
	int64_t row = cu_full_product(s->t, s->behind) / s->vec, lines = cu_full_product(s->t, s->before),
	        many = cu_full_product(s->ids, all), zeros;
	Ix count, columns, ext[3], at[3], to[MAX_RANK], i;

	if (s->op->kind == OP_take_dx) {
		cu_kernel_open(c, "");
		zeros = cu_slices_zero(c, s);
		cu_kernel_ahead(c, "zeros", zeros, (double)type_bytes(s->t), (double)type_bytes(s->t));
	}
	cu_kernel_open(c, "");
	count = cu_product(c, s->ids, all);
	columns = cu_ix_div(c, cu_product(c, s->t, s->behind), cu_ix_k(c, s->vec));
	ext[0] = cu_product(c, s->t, s->before);
	ext[1] = count;
	ext[2] = columns;
	i = cu_fresh(c, 'i');
	Scope l = cu_scope_open(c, "for (%s %s = blockIdx.x * BLOCK + threadIdx.x; %s < %s; %s += gridDim.x * BLOCK)",
	                        c->it, i, i, cu_ix_mul(c, cu_ix_mul(c, ext[0], count), columns), i);

	cu_split_number(c, i, ext, 3, at);
	cu_take_apart(c, s->t, s->before, at[0], to);
	cu_take_apart(c, s->t, s->behind, cu_ix_mul(c, at[2], cu_ix_k(c, s->vec)), to);
	cu_line(c, "const long long row = %s;", cu_slices_id(c, s, at[1]));
	cu_line(c, "if (row < 0 || row >= %s) continue;", cu_extent(c, s->t->axis[s->axis]));
	cu_line(c, "bool known = false;");
	cu_line(c, "#pragma unroll %d", AHEAD);
	Scope q = cu_scope_open(c, "for (%s before = 0; before < %s; before++)", c->it, at[1]);

	cu_line(c, "known |= %s == row;", cu_slices_id(c, s, "before"));
	cu_scope_close(c, q);
	cu_line(c, "if (known) continue;");
	cu_line(c, "%s sum[%d];", cu_c_type(s->dt), s->vec);
	to[s->axis] = cu_let(c, c->it, 'i', arena_printf(c->a, "(%s)row", c->it));
	cu_slices_load(c, s, s->dt, "sum", cu_slices_at(c, s, to, at[1]));
	later_add(c, s, to, at[1], count);
	cu_slices_put(c, s, to, "sum");
	cu_scope_close(c, l);
	cu_kernel_close(c, "an index and neighbours along its row to a thread",
	                (lines * many * row + BLOCK - 1) / BLOCK);
}

/* ---------------------------------------------------------------- the choice */
static bool
is_few(const Op *op, const Type *ids)
{
	return op->kind == OP_gather_dx || cu_full_product(ids, (1u << ids->rank) - 1) <= FEW;
}

int64_t
cu_scatter_workspace(const Graph *g, const Op *op)
{
	return is_few(op, val_type(g, op->in[op->nin - 1])) ? 0 : cu_sorted_workspace(g, op);
}

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
	if (op->kind != OP_gather_dx) {
		Slices s = cu_slices_of(c->g, op);

		(is_few(op, s.ids) ? few_emit : cu_sorted_emit)(c, &s);
		return;
	}
	cu_kernel_open(c, "");
	Scope s = cu_threads_open(c, t, axes, ix);

	zero_line(c, op, ix);
	gather_sum(c, op, ix);
	cu_scope_close(c, s);
	cu_kernel_close(c, "a line to a thread", cu_blocks_of(t, axes));
}
