/* group.c: a group into kernels: rows, maps, and kernels of a shape of their own.
 *
 * In: the ops with one group id, values with arena offsets (or -1: they stay inside).   Out: text of one kernel or
 * more, the first by the group's name. Reductions are emitted first (rows.c), then what is left as maps, one for each
 * shape, a thread to an element. Running sums and scatters have a thread to each line along their axis, so every sum
 * has one order. A kernel is right for any number of blocks of BLOCK threads: it strides over its work. */
#include "contract/algo.h"
#include "composite/composite.h"
#include <string.h>

bool
cu_special_op(const Op *op)
{
	return op->kind == OP_store || op->kind == OP_check || op->kind == OP_cumsum ||
	       op_has((OpKind)op->kind, T_SCATTER | T_COMPOSITE | T_ALONE);
}

/* ---------------------------------------------------------------- threads over indices */
/* The value of a store whose state lies elsewhere. */
static bool
store_out(const Cuda *c, const Op *op, Out *o)
{
	const State *s = module_state((Module *)(uintptr_t)c->m, attr_str(op, A_state));

	*o = (Out){op->in[0], &s->type, s->offset};
	return val_info(c->g, op->in[0])->offset != s->offset;
}

static void
maps_emit(Cuda *c, bool stores)
{
	Out *out = arena_array(c->a, Out, 3 * (c->last - c->first) + 8),
	    *set = arena_array(c->a, Out, 3 * (c->last - c->first) + 8);
	int n = 0;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];
		Out o;

		if (op->dead)
			continue;
		if (stores && op->kind == OP_store && store_out(c, op, &o))
			out[n++] = o;
		for (int k = 0; k < op->nout; k++)
			if (cu_value_is_out(c, op->out[k]) && !c->ready[op->out[k].id])
				out[n++] = (Out){op->out[k], val_type(c->g, op->out[k]),
				                 val_info(c->g, op->out[k])->offset};
	}
	while (n) {
		int m = 0, left = 0;
		Type first = *out[0].type;

		for (int k = 0; k < n; k++) {
			if (type_same_shape(&first, out[k].type))
				set[m++] = out[k];
			else
				out[left++] = out[k];
		}
		cu_map_emit(c, set, m);
		for (int k = 0; k < m; k++)
			c->ready[set[k].v.id] =
			        c->ready[set[k].v.id] || val_info(c->g, set[k].v)->offset == set[k].offset;
		n = left;
	}
}

/* ---------------------------------------------------------------- checks */
/* Each block looks for the lowest number, in row-major order, of an element out of range, and records it, one block at
 * a time: the record of an earlier check stays, and of one check the lowest. */
static void
check_emit(Cuda *c, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]);
	Type plain = type_of((DType)t->dtype, t->rank, t->axis);
	uint32_t all = (1u << t->rank) - 1;
	Ix i, ix[MAX_RANK];
	const char *ignored = "", *limit;

	cu_kernel_open(c, "check");
	c->check = true;
	i = cu_fresh(c, 'i');
	limit = cu_extent(c, check_limit(op));
	cu_line(c, "long long first = NO_INDEX;");
	Scope s = cu_scope_open(c, "for (%s %s = blockIdx.x * BLOCK + threadIdx.x; %s < %s; %s += gridDim.x * BLOCK)",
	                        c->it, i, i, cu_product(c, t, all), i);

	cu_take_apart(c, &plain, all, i, ix);
	Cell x = cu_cell_let(c, cu_cell_cast(c, cu_value_at(c, op->in[0], ix), DT_i64).v, DT_i64);

	if (attr_bool(op, A_has_ignore))
		ignored = arena_printf(c->a, " && %s != %lldll", x.v, (long long)attr_int(op, A_ignore));
	cu_line(c, "if ((%s < 0 || %s >= %s)%s && %s < first) first = %s;", x.v, x.v, limit, ignored, i, i);
	cu_scope_close(c, s);
	s = cu_scope_open(c, "if (__syncthreads_or(first != NO_INDEX))");
	cu_line(c, "static unsigned lock;");
	cu_line(c, "first = block_low_i64(first);");
	Scope one = cu_scope_open(c, "if (threadIdx.x == 0)");
	const char *e = cu_fresh(c, 'i');

	cu_line(c, "const %s %s = (%s)first;", c->it, e, c->it);
	cu_take_apart(c, &plain, all, e, ix);
	x = cu_cell_cast(c, cu_value_at(c, op->in[0], ix), DT_i64);
	cu_line(c, "fault_record(arena, &lock, %lld, first, %s);", (long long)check_number(c->m, op), x.v);
	cu_scope_close(c, one);
	cu_scope_close(c, s);
	int64_t blocks = cu_blocks_of(t, all), most = 2 * cu_machine(c->g)->budget.blocks;

	cu_kernel_close(c, "an element to a thread", blocks < most ? blocks : most);
}

/* ---------------------------------------------------------------- along one axis */
static uint32_t
others(const Type *t, int64_t axis)
{
	return ((1u << t->rank) - 1) & ~(1u << axis);
}

/* Elements of a line are loaded some at a time, and added in their order. */
static void
cumsum_emit(Cuda *c, const Op *op)
{
	enum { AHEAD = 8 };
	const Type *t = val_type(c->g, op->out[0]);
	DType dt = (DType)t->dtype, acc = dt == DT_f16 || dt == DT_bf16 ? DT_f32 : dt;
	int64_t axis = attr_int(op, A_axis);
	Ix ix[MAX_RANK], i;

	cu_kernel_open(c, "");
	Scope s = cu_threads_open(c, t, others(t, axis), ix);
	const char *sum = cu_fresh(c, 'v'), *x = cu_fresh(c, 'v'), *first = cu_fresh(c, 'i');
	Ix ext = cu_extent(c, t->axis[axis]);

	cu_line(c, "%s %s = 0, %s[%d];", cu_c_type(acc), sum, x, AHEAD);
	Scope l = cu_scope_open(c, "for (%s %s = 0; %s < %s; %s += %d)", c->it, first, first, ext, first, AHEAD);

	for (int adds = 0; adds < 2; adds++) {
		cu_line(c, "#pragma unroll");
		Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);

		i = cu_let(c, c->it, 'i', cu_ix_add(c, first, "u"));
		Scope in = cu_scope_open(c, "if (%s < %s)", i, ext);

		ix[axis] = attr_bool(op, A_reverse) ? cu_ix_sub(c, cu_ix_sub(c, ext, "1"), i) : i;
		if (adds) {
			cu_line(c, "%s = %s;", sum,
			        cu_cell_bin(c, EX_ADD, (Cell){sum, (uint8_t)acc},
			                    (Cell){arena_printf(c->a, "%s[u]", x), (uint8_t)acc}).v);
			cu_store_at(c, t, val_info(c->g, op->out[0])->offset, ix, (Cell){sum, (uint8_t)acc});
		} else {
			cu_line(c, "%s[u] = %s;", x, cu_cell_cast(c, cu_value_at(c, op->in[0], ix), acc).v);
		}
		cu_scope_close(c, in);
		cu_scope_close(c, u);
	}
	cu_scope_close(c, l);
	cu_scope_close(c, s);
	cu_kernel_close(c, "a line to a thread", cu_blocks_of(t, others(t, axis)));
}

static void
special_emit(Cuda *c, const Op *op)
{
	Out o;

	switch (op->kind) {
	case OP_store:
		if (!store_out(c, op, &o))
			return;
		if (c->inside[op->in[0].id])
			c->ready[op->in[0].id] = true;
		cu_map_emit(c, &o, 1);
		return;
	case OP_check:
		check_emit(c, op);
		return;
	case OP_cumsum:
		cumsum_emit(c, op);
		return;
	default:
		if (cu_attention_op((OpKind)op->kind))
			cu_attention_emit(c, op);
		else if (cu_cells_op((OpKind)op->kind))
			cu_cells_emit(c, op);
		else if (op_has((OpKind)op->kind, T_ALONE))
			cu_boxes_emit(c, op);
		else
			cu_scatter_emit(c, op);
	}
}

/* ---------------------------------------------------------------- a group */
/* Offsets and indices of all that the group touches fit 30 bits? */
static bool
is_small(const Cuda *c)
{
	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		for (int k = 0; k < op->nin + op->nout; k++)
			if (type_elements(val_type(c->g, k < op->nin ? op->in[k] : op->out[k - op->nin])) >=
			    (int64_t)1 << 30)
				return false;
	}
	return true;
}

static void
group_kernels(Cuda *c)
{
	bool stores = c->group >= 0 && group_is_map(c->g, c->group);
	const Op *special = NULL, *contract = NULL, *red = NULL;
	const Params *p = &c->kernel;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		if (op->dead)
			continue;
		red = !red && op_info[op->kind].red >= 0 ? op : red;
		if (cu_special_op(op) && op->kind != OP_store)
			special = op;
		contract = op_has((OpKind)op->kind, T_CONTRACT) ? op : contract;
		if (op->kind == OP_max_pool2d_dx)
			cu_windows_emit(c, op);
		if (op->kind == OP_conv2d_dw)
			cu_depthwise_emit(c, op);
	}
	if (special) {
		special_emit(c, special);
		return;
	}
	const CuAlgo *algo = contract ? cu_algo_of(p->family) : NULL;

	if (algo && algo->emit) {
		algo->emit(c, contract);
		if (red && !algo->reduces)
			cu_rows_emit(c, &(Params){FAMILY_cuda_rows,
			                          .cuda_rows = {cu_rows_threads(c->g, red), 1, 0, 0}});
	} else if (red && p->family == FAMILY_cuda_columns) {
		cu_columns_emit(c);
	} else if (red && p->family == FAMILY_cuda_total) {
		cu_totals_emit(c, p->cuda_total.pieces);
	} else if (red) {
		cu_rows_emit(c, p->family == FAMILY_cuda_rows
		                        ? p
		                        : &(Params){FAMILY_cuda_rows, .cuda_rows = {BLOCK, 1, 0, 0}});
	}
	maps_emit(c, stores);
	/* other stores copy what stands in memory */
	for (uint32_t i = c->first; i < c->last && !stores; i++)
		if (!c->g->op.at[i].dead && c->g->op.at[i].kind == OP_store)
			special_emit(c, &c->g->op.at[i]);
}

/* The group's ops begin at `first` and stand together; group -1: one op. */
void
cu_group_emit(CuProgram *p, const Module *m, GraphKernels *gk, int group, uint32_t first)
{
	Arena *a = arena_new();
	const Graph *g = gk->g;
	Cuda c = {.a = a, .p = p, .gk = gk, .m = m, .g = g, .group = group, .first = first, .last = first + 1,
	          .value = cu_eval_value, .neighbours = cu_window_neighbours, .windows = cu_window_values};

	c.inside = arena_array(a, bool, g->val.n);
	c.ready = arena_array(a, bool, g->val.n);
	c.phase = arena_array(a, int, g->val.n);
	for (uint32_t i = 0; i < g->val.n; i++)
		c.phase[i] = -1;
	for (uint32_t i = first; group >= 0 && i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		if (op->group != group)
			break;
		c.last = i + 1;
		if (op->kind != OP_load)
			for (int k = 0; k < op->nout; k++)
				c.inside[op->out[k].id] = true;
	}
	space_parse("cuda", NULL, group >= 0 ? g->group.at[group].kernel : NULL, &c.kernel);
	c.it = is_small(&c) ? "int" : "long long";
	group_kernels(&c);
	buf_free(&c.head);
	buf_free(&c.body);
	arena_free(a);
}
