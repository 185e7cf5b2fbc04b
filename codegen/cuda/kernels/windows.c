/* windows.c: poolings and their gradients, an element or some neighbouring channels of a pixel at a time.
 *
 * In: an op and indices of its result.   Out: variables, or arrays of `vec` elements, that loops over a window's taps,
 * or over the windows that hold an element, have filled.
 * Gradients are gathered: an element asks every window that holds it, so no two threads write one element. Which tap of
 * a window is its first maximum is found once, by a kernel before: a byte for each window in the group's workspace (an
 * op without a group looks for it anew each time). */
#include "../contract/gemm.h"
#include <string.h>

typedef struct Taps { Scope loop[2], inside; Ix tap[2], in[4]; } Taps;

/* ---------------------------------------------------------------- neighbours */
/* The number of neighbour u. */
static const char *
one(Cuda *c, int vec, const char *name)
{
	return vec > 1 ? arena_printf(c->a, "%s[u]", name) : name;
}

const char *
cu_numbers_open(Cuda *c, int vec, char letter, const char *type, const char *start)
{
	const char *name = cu_fresh(c, letter);

	if (vec == 1) {
		cu_line(c, start ? "%s %s = %s;" : "%s %s;", type, name, start);
		return name;
	}
	cu_line(c, "%s %s[%d];", type, name, vec);
	if (!start)
		return name;
	Scope s = cu_each_open(c, vec);

	cu_line(c, "%s[u] = %s;", name, start);
	cu_each_close(c, vec, s);
	return name;
}

/* ---------------------------------------------------------------- windows */
/* Opens loops over the taps of the window at (oh, ow) and an if of those inside x; in: indices of the tap's element. */
static Taps
taps_open(Cuda *c, const Window *w, const Type *x, const Ix *ix, Ix oh, Ix ow)
{
	Taps t = {.in = {ix[0], ix[1]}};
	Ix o[2] = {oh, ow};
	const char *valid = "1";

	for (int d = 0; d < 2; d++)
		t.loop[d] = cu_loop_open(c, cu_ix_k(c, w->k[d]), &t.tap[d]);
	for (int d = 0; d < 2; d++) {
		Ix start = cu_ix_add(c, cu_ix_mul(c, o[d], cu_ix_k(c, w->stride[d])), cu_ix_k(c, -w->pad[d]));

		t.in[2 + d] = cu_ix_add(c, start, t.tap[d]);
		valid = cu_both(c, valid, cu_in_range(c, t.in[2 + d], cu_extent(c, x->axis[2 + d])));
	}
	t.inside = cu_scope_open(c, "if (%s)", valid);
	return t;
}

static void
taps_close(Cuda *c, const Taps *t)
{
	cu_scope_close(c, t->inside);
	cu_scope_close(c, t->loop[1]);
	cu_scope_close(c, t->loop[0]);
}

static Cell
divided(Cuda *c, Cell x, const char *count)
{
	return cu_cell_bin(c, EX_DIV, x, (Cell){arena_printf(c->a, "(%s)%s", cu_c_type((DType)x.dt), count), x.dt});
}

static const char *
pool(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	Window w = window_of(c->g, op);
	DType dt = (DType)val_type(c->g, op->out[0])->dtype;
	bool max = op->kind == OP_max_pool2d;
	const char *r = cu_numbers_open(c, vec, 'v', cu_c_type(dt), max ? cu_cell_lowest(dt, false).v : "0"),
	           *count = cu_fresh(c, 'i'), *mine = one(c, vec, r);
	Near n = {0};

	cu_line(c, "int %s = 0;", count);
	cu_lanes_early(c, &n.lanes, NULL);
	Taps t = taps_open(c, &w, val_type(c->g, op->in[0]), ix, ix[2], ix[3]);

	cu_line(c, "%s++;", count);
	Cell x = cu_near_open(c, &n, op->in[0], 1, t.in, vec);

	if (max)
		cu_line(c, "%s = top_%s(%s, %s);", mine, cu_suffix(dt), x.v, mine);
	else
		cu_line(c, "%s = %s;", mine, cu_cell_bin(c, EX_ADD, (Cell){mine, (uint8_t)dt}, x).v);
	cu_near_close(c, &n);
	taps_close(c, &t);
	if (!max) {
		Scope s = cu_each_open(c, vec);

		cu_line(c, "%s = %s;", mine,
		        divided(c, (Cell){mine, (uint8_t)dt},
		                attr_bool(op, A_count_pad) ? cu_ix_k(c, w.k[0] * w.k[1]) : count)
		                .v);
		cu_each_close(c, vec, s);
	}
	return r;
}

/* ---------------------------------------------------------------- first maxima */
/* The number of the tap of the window at o that is its first maximum, -1 of one with no elements: a variable, an
 * array. */
static const char *
first_maximum(Cuda *c, const Op *op, const Window *w, const Ix *o, int vec)
{
	const Type *xt = val_type(c->g, op->in[0]);
	DType dt = (DType)xt->dtype;
	const char *best = cu_numbers_open(c, vec, 'v', cu_c_type(dt), cu_cell_lowest(dt, false).v),
	           *at = cu_numbers_open(c, vec, 'i', "int", "-1");
	Near n = {0};

	cu_lanes_early(c, &n.lanes, NULL);
	Taps t = taps_open(c, w, xt, o, o[2], o[3]);
	Cell x = cu_near_open(c, &n, op->in[0], 1, t.in, vec);
	Scope s = cu_scope_open(c, "if (%s < 0 || beats_%s(%s, %s))", one(c, vec, at), cu_suffix(dt), x.v,
	                        one(c, vec, best));

	cu_line(c, "%s = %s;", one(c, vec, best), x.v);
	cu_line(c, "%s = %s * %lld + %s;", one(c, vec, at), t.tap[0], (long long)w->k[1], t.tap[1]);
	cu_scope_close(c, s);
	cu_near_close(c, &n);
	taps_close(c, &t);
	return at;
}

/* The values of a gradient's windows, as they stand in the workspace: as its operand g does. */
static Type
numbers_type(const Graph *g, const Op *op)
{
	Type t = *val_type(g, op->in[1]);

	t.dtype = attr_ints(op, A_k, NULL)[0] * attr_ints(op, A_k, NULL)[1] < 256 ? DT_u8 : DT_i32;
	return t;
}

/* Bytes of the values of all gradients of max pooling in the group that come before `until`. */
static int64_t
numbers_before(const Graph *g, int group, const Op *until)
{
	int64_t bytes = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last && &g->op.at[i] != until; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group || op->kind != OP_max_pool2d_dx)
			continue;
		Type t = numbers_type(g, op);

		bytes += (type_bytes(&t) + 63) / 64 * 64;
	}
	return bytes;
}

int64_t
cu_windows_workspace(const Graph *g, int group)
{
	return numbers_before(g, group, NULL);
}

static bool
has_numbers(const Cuda *c)
{
	FamilyId f = space_family_of("cuda", NULL, c->group >= 0 ? c->g->group.at[c->group].kernel : NULL);

	return f == FAMILY_cuda_window || f == FAMILY_cuda_columns;
}

static int64_t
numbers_offset(const Cuda *c, const Op *op)
{
	const Group *gr = &c->g->group.at[c->group];

	/* last in the workspace */
	return gr->workspace_offset + gr->workspace - cu_windows_workspace(c->g, c->group) +
	       numbers_before(c->g, c->group, op);
}

/* The number of the window at o: a variable, an array. */
static const char *
number_of(Cuda *c, const Op *op, const Window *w, const Ix *o, int vec)
{
	if (!has_numbers(c))
		return first_maximum(c, op, w, o, vec);
	Type t = numbers_type(c->g, op);
	const char *name = cu_fresh(c, 'x'), *from = cu_address(c, &t, numbers_offset(c, op), o);

	if (vec > 1) {
		cu_line(c, "%s %s[%d];", cu_memory_type((DType)t.dtype), name, vec);
		cu_line(c, "take%d_8(%s, %s);", vec, name, from);
	} else {
		cu_line(c, "const int %s = *(%s);", name, from);
	}
	return name;
}

/* Adds g of the window at o to the values acc of the elements at ix of which it is the first maximum. */
static void
add_if_first(Cuda *c, const Op *op, const Window *w, const char *acc, const Ix *ix, const Ix *o, int vec)
{
	DType dt = (DType)val_type(c->g, op->in[1])->dtype;
	const char *at = number_of(c, op, w, o, vec), *here = cu_fresh(c, 'i');
	Ix mine[2];
	Near n = {0};

	for (int d = 0; d < 2; d++)
		mine[d] = cu_ix_sub(c, cu_ix_add(c, ix[2 + d], cu_ix_k(c, w->pad[d])),
		                    cu_ix_mul(c, o[2 + d], cu_ix_k(c, w->stride[d])));
	cu_line(c, "const int %s = %s * %lld + %s;", here, mine[0], (long long)w->k[1], mine[1]);
	Cell x = cu_near_open(c, &n, op->in[1], 1, o, vec);
	Scope s = cu_scope_open(c, "if (%s == %s)", one(c, vec, at), here);

	cu_line(c, "%s = %s;", one(c, vec, acc), cu_cell_bin(c, EX_ADD, (Cell){one(c, vec, acc), (uint8_t)dt}, x).v);
	cu_scope_close(c, s);
	cu_near_close(c, &n);
}

static void
add_share(Cuda *c, const Op *op, const Window *w, const char *acc, const Ix *o, int vec)
{
	const Type *to = val_type(c->g, op->out[0]);
	const char *count = cu_ix_k(c, w->k[0] * w->k[1]);
	Near n = {0};

	if (!attr_bool(op, A_count_pad)) {
		const char *held[2];

		for (int d = 0; d < 2; d++) {
			Ix first = cu_ix_mul(c, o[2 + d], cu_ix_k(c, w->stride[d])),
			   start = cu_ix_add(c, first, cu_ix_k(c, -w->pad[d]));

			held[d] = arena_printf(c->a, "held(%s, %lld, %s)", start, (long long)w->k[d],
			                       cu_extent(c, to->axis[2 + d]));
		}
		count = arena_printf(c->a, "(%s * %s)", held[0], held[1]);
	}
	Cell x = cu_near_open(c, &n, op->in[0], 1, o, vec);

	cu_line(c, "%s = %s;", one(c, vec, acc),
	        cu_cell_bin(c, EX_ADD, (Cell){one(c, vec, acc), x.dt}, divided(c, x, count)).v);
	cu_near_close(c, &n);
}

static const char *
pool_dx(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	Window w = window_of(c->g, op);
	bool max = op->kind == OP_max_pool2d_dx;
	const Type *gt = val_type(c->g, op->in[max]);
	const char *acc = cu_numbers_open(c, vec, 'v', cu_c_type((DType)gt->dtype), "0"), *valid = "1";
	Scope loop[2];
	Ix back[2], o[4] = {ix[0], ix[1]};

	for (int d = 0; d < 2; d++)
		loop[d] = cu_loop_open(c, cu_ix_k(c, (w.k[d] + w.stride[d] - 1) / w.stride[d]), &back[d]);
	/* the windows, counted back from the last one that can hold it */
	for (int d = 0; d < 2; d++) {
		Ix t = cu_ix_add(c, ix[2 + d], cu_ix_k(c, w.pad[d]));

		o[2 + d] = cu_ix_sub(c, cu_ix_div(c, t, cu_ix_k(c, w.stride[d])), back[d]);
		Ix rest = cu_ix_sub(c, t, cu_ix_mul(c, o[2 + d], cu_ix_k(c, w.stride[d])));

		valid = cu_both(c, valid,
		                cu_both(c, cu_in_range(c, rest, cu_ix_k(c, w.k[d])),
		                        cu_in_range(c, o[2 + d], cu_extent(c, gt->axis[2 + d]))));
	}
	Scope s = cu_scope_open(c, "if (%s)", valid);

	if (max)
		add_if_first(c, op, &w, acc, ix, o, vec);
	else
		add_share(c, op, &w, acc, o, vec);
	cu_scope_close(c, s);
	cu_scope_close(c, loop[1]);
	cu_scope_close(c, loop[0]);
	return acc;
}

/* ---------------------------------------------------------------- the interface */
bool
cu_window_neighbours(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]);

	if (op_has((OpKind)op->kind, T_CONTRACT))
		return cu_depthwise_neighbours(g, op);
	if (!op_has((OpKind)op->kind, T_WINDOW) || cu_inner_axis(o) != 1 || o->axis[1].mul ||
	    (op->kind == OP_max_pool2d_dx && numbers_type(g, op).dtype != DT_u8))
		return false;
	for (int k = 0; k < op->nin; k++) {
		const Type *t = val_type(g, op->in[k]);

		if (cu_inner_axis(t) != 1 || !axis_same(t->axis[1], o->axis[1]))
			return false;
	}
	return true;
}

/* An element is looked at by each window that holds it; a gradient's by each tap of its window. */
void
cu_windows_prologue(const Graph *g, const Op *op, int k, DType narrow, Prologue *p)
{
	Window w = window_of(g, op);
	const Type *t = val_type(g, op->in[k]);
	bool image = op->kind == OP_max_pool2d || op->kind == OP_avg_pool2d || (op->kind == OP_max_pool2d_dx && k == 0);
	double taps = (double)(w.k[0] * w.k[1]),
	       bytes = (double)type_elements(t) *
	               (narrow != DT_none ? dtype_info[narrow].bytes : dtype_info[t->dtype].bytes);

	p->times = image ? taps / (double)(w.stride[0] * w.stride[1]) : taps;
	const Rates *r = &cu_machine(g)->budget.rates;

	p->spare = bytes / r->bytes * r->flops;
}

const char *
cu_window_values(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	switch (op->kind) {
	case OP_max_pool2d: case OP_avg_pool2d: return pool(c, op, ix, vec);
	case OP_max_pool2d_dx: case OP_avg_pool2d_dx: return pool_dx(c, op, ix, vec);
	case OP_conv2d: case OP_conv2d_dx: case OP_conv2d_dw: return cu_depthwise_values(c, op, ix, vec);
	default:
		bug("target cuda has no code for %s: a T_WINDOW has a case in cu_window_values",
		    op_info[op->kind].name);
	}
}

/* Marks what is read to make v; but for first maxima, which a kernel before has found. */
static void
reads_mark(const Cuda *c, Val v, bool *seen)
{
	if (seen[v.id])
		return;
	seen[v.id] = true;
	const Op *op = c->inside[v.id] ? val_op(c->g, v) : NULL;

	for (int k = op && op->kind == OP_max_pool2d_dx; op && k < op->nin; k++)
		reads_mark(c, op->in[k], seen);
}

/* Bytes in memory thatv is computed from; *alone: those that nothing else of the group reads. */
static double
read_for(const Cuda *c, Val v, double *alone)
{
	bool *mine = arena_array(c->a, bool, c->g->val.n), *others = arena_array(c->a, bool, c->g->val.n);
	double bytes = 0;

	reads_mark(c, v, mine);
	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];
		bool root = !op->nout || op_info[op->kind].red >= 0;

		for (int k = 0; k < op->nout; k++)
			root |= cu_value_is_out(c, op->out[k]);
		for (int k = op->kind == OP_max_pool2d_dx; root && !op->dead && k < op->nin; k++)
			reads_mark(c, op->in[k], others);
	}
	*alone = 0;
	for (uint32_t k = 1; k < c->g->val.n; k++)
		if (mine[k] && !c->inside[k]) {
			bytes += (double)type_bytes(&c->g->val.at[k].type);
			*alone += others[k] ? 0 : (double)type_bytes(&c->g->val.at[k].type);
		}
	return bytes;
}

void
cu_windows_emit(Cuda *c, const Op *op)
{
	Window w = window_of(c->g, op);
	Type t = numbers_type(c->g, op);
	uint32_t all = (1u << t.rank) - 1;
	int vec = cu_window_neighbours(c->g, op) && t.axis[1].n % 8 == 0 ? 8 : 1;
	Ix i, ix[MAX_RANK];

	if (!has_numbers(c))
		return;
	cu_kernel_open(c, "");
	c->loose = true;
	i = cu_fresh(c, 'i');
	Scope s = cu_vectors_open(c, vec, i, cu_product(c, &t, all));

	cu_take_apart(c, &t, all, i, ix);
	const char *at = first_maximum(c, op, &w, ix, vec), *to = cu_address(c, &t, numbers_offset(c, op), ix),
	           *y = cu_fresh(c, 'y');

	if (vec > 1) {
		cu_line(c, "unsigned char %s[%d];", y, vec);
		Scope each = cu_each_open(c, vec);

		cu_line(c, "%s[u] = (unsigned char)%s[u];", y, at);
		cu_each_close(c, vec, each);
		cu_line(c, "put%d_8(%s, %s);", vec, to, y);
	} else {
		cu_line(c, "*(%s) = (%s)%s;", to, cu_memory_type((DType)t.dtype), at);
	}
	cu_scope_close(c, s);
	/* the workspace counts as written and read: it is written here */
	double alone, stored = (double)type_bytes(&t), read = read_for(c, op->in[0], &alone);

	cu_kernel_ahead(c, arena_printf(c->a, "first maxima, %s to a thread", vec > 1 ? "8 windows" : "a window"),
	                (cu_blocks_of(&t, all) + vec - 1) / vec, read + stored, alone + stored);
}
