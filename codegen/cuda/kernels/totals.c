/* totals.c: whole tensors reduced to a number: the largest of a gradient, its norm.
 *
 * In: a group that reduces one tensor over all axes, with elementwise ops before and scalars behind.   Out: one kernel
 * in pieces by shape, a block to each: elements are told apart by their number in memory alone, so all tensors share a
 * function whose parameters are the number of elements and that of pieces, and pass launch makes one launch for the
 * tensors that stand together. The block that comes last joins the pieces in the tree of its threads. Tickets and
 * pieces are the launch's own memory, not the plan's, as kernels of one launch run at one time: ENTRY, ENTRIES, PART0
 * and PARTS say which of them are this kernel's (prelude.cu: of a launch by itself). With --shard-optimizer processes
 * make the pieces of a gradient in parts (codegen/cut.c): then the first piece and the end are parameters too, what
 * pieces leave lies in the group's workspace, and a second kernel of one block joins it, in the same tree.
 * Left to rows.c: batches of any size, reductions of two passes or with an index, views, operands that lie in another
 * order, values of the tensor's size that others read. */
#include "../contract/gemm.h"
#include "red.h"
#include <string.h>

enum { STATE = 8 };              /* bytes of a state in the workspace */

static bool
is_number(const Type *t)
{
	return type_elements(t) == 1 && !type_marked(t);
}

/* Is v, of the tensor's size, read by none but ops [first, last)? */
static bool
stays(const Graph *g, Val v, uint32_t last)
{
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].v.id == v.id)
			return false;
	for (uint32_t i = last; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin && !g->op.at[i].dead; k++)
			if (g->op.at[i].in[k].id == v.id)
				return false;
	return true;
}

static bool
op_fits(const Graph *g, const Op *o, const Type *t, uint32_t last)
{
	bool red = op_info[o->kind].red >= 0;

	if (red && (cu_red_passes(o) > 1 || red_indexes(o) || !is_number(val_type(g, o->out[0])) ||
	            !type_same_place(val_type(g, o->in[0]), t)))
		return false;
	for (int k = 0; k < o->nin; k++)
		if (!is_number(val_type(g, o->in[k])) && !type_same_place(val_type(g, o->in[k]), t))
			return false;
	for (int k = 0; k < o->nout && !red; k++) {
		const Type *r = val_type(g, o->out[k]);

		if (!op_has((OpKind)o->kind, is_number(r) ? T_POINTWISE | T_CONST | T_VIEW : T_POINTWISE) &&
		    o->kind != OP_full)
			return false;
		if (!is_number(r) && (!type_same_place(r, t) || !stays(g, o->out[k], last)))
			return false;
	}
	return true;
}

/* Is it a gradient that processes may share, of which the group computes scalars? */
static bool
in_parts(const Graph *g, int group)
{
	if (!setting(g->module, CUT_SETTING) || strcmp(g->name, "update") != 0)
		return false;
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *o = &g->op.at[i];

		for (int k = 0; !o->dead && o->group == group && k < o->nin; k++) {
			const Op *by = val_op(g, o->in[k]);

			if (by && by->kind == OP_load &&
			    module_state(g->module, attr_str(by, A_state))->kind == ST_GRAD)
				return true;
		}
	}
	return false;
}

bool
cu_totals_select(Graph *g, int group, const Op *red)
{
	int64_t states = 0;
	const Type *t = val_type(g, red->in[0]);

	if (type_marked(t) || type_elements(t) < 2)
		return false;
	Late late = cu_late_find(g, group);

	for (uint32_t i = late.first; i < late.last; i++) {
		const Op *o = &g->op.at[i];
		/* all of it is made while the tensor is read */
		bool made_before = op_info[o->kind].red >= 0 || (o->nout && !is_number(val_type(g, o->out[0])));

		if (o->dead || o->group != group)
			continue;
		if (!op_fits(g, o, t, late.last))
			return false;
		states += op_info[o->kind].red >= 0;
		for (int k = 0; k < o->nin && made_before; k++)
			if (cu_late_is(g, &late, o->in[k]))
				return false;
	}
	int64_t pieces = type_elements(t) / PIECE;
	Params p = {FAMILY_cuda_total, .cuda_total = {pieces > BLOCK ? BLOCK : pieces < 1 ? 1 : (int)pieces}};

	g->group.at[group].kernel = space_text(g->arena, &p);
	g->group.at[group].workspace = in_parts(g, group) ? states * p.cuda_total.pieces * STATE : 0;
	return true;
}

/* ---------------------------------------------------------------- the kernel */
typedef struct Totals {
	const Type *t;
	VEC(Atom) atom;
	Leaves leaves;
	int vec, inner, pieces;
	bool parts;              /* made by processes */
	Ix ix[MAX_RANK], none[MAX_RANK];
} Totals;

/* Where the pieces' states of atom k are. */
static const char *
states_at(Cuda *c, const Totals *x, uint32_t k)
{
	int64_t from = c->g->group.at[c->group].workspace_offset + (int64_t)k * x->pieces * STATE;

	return x->parts ? arena_printf(c->a, "((volatile %s *)%s)", cu_atom_type(c, &x->atom.at[k]),
	                               cu_pointer(c, DT_f32, from))
	                : arena_printf(c->a, "total_%u", (unsigned)k);
}

/* The element of number e: a step of every reduction. Its indices have no meaning but to be those of the tensor. */
static void
step(Cuda *c, Totals *x, Ix e, Ix lane)
{
	Ix ix[MAX_RANK];

	memcpy(ix, x->ix, sizeof ix);
	c->root = x->t;
	c->root_i = e;
	if (lane) {
		ix[x->inner] = "q_";
		c->root_i = cu_ix_add(c, e, lane);
	}
	memcpy(c->root_ix, ix, sizeof ix);
	if (lane)
		cu_leaves_put(c, &x->leaves, ix, lane);
	for (uint32_t k = 0; k < x->atom.n; k++)
		cu_atom_step(c, &x->atom.at[k], cu_value_at(c, x->atom.at[k].op->in[0], ix), c->root_i);
}

/* This block's piece: elements [first, end). */
static void
piece(Cuda *c, Totals *x)
{
	Ix length = cu_fresh(c, 'i'), first, end = cu_fresh(c, 'i'), i = cu_fresh(c, 'i'), e = cu_fresh(c, 'i');
	Scope s;

	cu_line(c, "const %s %s = (%s)((o0 + o1 * %d - 1) / (o1 * %d) * %d);", c->it, length, c->it, x->vec, x->vec,
	        x->vec);
	first = cu_ix_mul(c, "piece", length);
	cu_line(c, "const %s %s = %s + %s < o0 ? %s + %s : o0;", c->it, end, first, length, first, length);
	for (uint32_t k = 0; k < x->atom.n; k++)
		cu_atom_open(c, &x->atom.at[k]);
	s = cu_scope_open(c, "for (%s %s = %s + threadIdx.x * %d; %s < %s; %s += BLOCK * %d)", c->it, i, first, x->vec,
	                  i, end, i, x->vec);
	if (x->vec == 1) {
		step(c, x, i, NULL);
	} else {
		Scope rest = cu_scope_open(c, "if (%s + %d > %s)", i, x->vec, end),
		      each = cu_scope_open(c, "for (%s %s = %s; %s < %s; %s++)", c->it, e, i, e, end, e);

		step(c, x, e, NULL);
		cu_scope_close(c, each);
		cu_line(c, "break;");
		cu_scope_close(c, rest);
		c->root_i = i;
		memcpy(c->root_ix, x->ix, sizeof x->ix);
		cu_leaves_open(c, &x->leaves, x->vec, 1);
		cu_leaves_load(c, &x->leaves, x->ix);
		cu_line(c, "#pragma unroll");
		each = cu_scope_open(c, "for (int u = 0; u < %d; u++)", x->vec);
		step(c, x, i, "u");
		cu_scope_close(c, each);
	}
	cu_scope_close(c, s);
	c->root = NULL;
	for (uint32_t k = 0; k < x->atom.n; k++)
		cu_atom_join(c, &x->atom.at[k]);
}

/* What this block's piece leaves. */
static void
piece_leaves(Cuda *c, Totals *x)
{
	Scope s = cu_scope_open(c, "if (threadIdx.x == 0)");

	for (uint32_t k = 0; k < x->atom.n; k++)
		cu_line(c, "%s[%spiece] = %s;", states_at(c, x, k), x->parts ? "" : "PART0 + ", x->atom.at[k].s[0]);
	cu_scope_close(c, s);
}

/* A block goes on with the states of all pieces. */
static void
pieces_join(Cuda *c, Totals *x)
{
	for (uint32_t k = 0; k < x->atom.n; k++) {
		cu_atom_open(c, &x->atom.at[k]);
		cu_line(c, "if (threadIdx.x < o1) %s = %s[%sthreadIdx.x];", x->atom.at[k].s[0], states_at(c, x, k),
		        x->parts ? "" : "PART0 + ");
		cu_atom_join(c, &x->atom.at[k]);
	}
}

/* What others read: scalars. */
static void
numbers_store(Cuda *c, Totals *x)
{
	Scope s = cu_scope_open(c, "if (threadIdx.x == 0)");

	for (uint32_t k = 0; k < x->atom.n; k++) {
		Atom *a = &x->atom.at[k];

		cu_memo_put(c, a->op->out[0], x->none,
		            cu_cell_cast(c, cu_atom_value(c, a, "o0"), (DType)val_type(c->g, a->op->out[0])->dtype));
	}
	for (uint32_t i = c->first; i < c->last; i++)
		for (int k = 0; k < c->g->op.at[i].nout && !c->g->op.at[i].dead; k++) {
			Val v = c->g->op.at[i].out[k];

			if (is_number(val_type(c->g, v)) && cu_value_is_out(c, v) && !c->ready[v.id])
				cu_store_at(c, val_type(c->g, v), val_info(c->g, v)->offset, x->none,
				            cu_value_at(c, v, x->none));
		}
	cu_scope_close(c, s);
	for (uint32_t i = c->first; i < c->last; i++)
		for (int k = 0; k < c->g->op.at[i].nout; k++) {
			Val v = c->g->op.at[i].out[k];

			c->ready[v.id] |= is_number(val_type(c->g, v)) && cu_value_is_out(c, v);
		}
}

static const char *
total_says(Cuda *c, const Totals *x, const char *how)
{
	return x->vec > 1 ? arena_printf(c->a, "a tensor to a number, %d neighbours to a thread%s", x->vec, how)
	                  : arena_printf(c->a, "a tensor to a number%s", how);
}

/* A kernel that begins with the numbers of elements and of pieces. */
static void
total_open(Cuda *c, const Totals *x)
{
	cu_kernel_open(c, "");
	c->flat = true;
	cu_count(c, type_elements(x->t));
	cu_count(c, x->pieces);
}

static void
total_close(Cuda *c, const char *what, int64_t blocks)
{
	if (cu_asks_index(c))
		bug("%s is reduced by elements' numbers, and asks for an index", c->name);
	cu_kernel_close(c, what, blocks);
}

/* Two kernels: what a process's pieces leave; the scalars. */
static void
parts_emit(Cuda *c, Totals *x)
{
	int64_t n = type_elements(x->t), whole = (int64_t)x->pieces * x->vec;
	KernelSum *sum = arena_array(c->p->a, KernelSum, x->atom.n);

	total_open(c, x);
	cu_count(c, 0);
	cu_count(c, x->pieces);
	Scope s = cu_scope_open(c, "for (unsigned piece = (unsigned)o2 + blockIdx.x; piece < o3; piece += gridDim.x)");

	piece(c, x);
	piece_leaves(c, x);
	cu_scope_close(c, s);
	total_close(c, total_says(c, x, ", a process's pieces"), x->pieces);
	KernelRec *k = &c->gk->k.at[c->gk->k.n - 1];

	for (uint32_t i = 0; i < x->atom.n; i++) {
		DType dt = red_dtype(x->atom.at[i].op, (DType)val_type(c->g, x->atom.at[i].op->in[0])->dtype);

		/* floats of 16 bits are computed in 32 */
		sum[i] = (KernelSum){c->g->group.at[c->group].workspace_offset + (int64_t)i * x->pieces * STATE,
		                     dt == DT_f16 || dt == DT_bf16 ? 4 : dtype_info[dt].bytes};
	}
	k->total = n;
	k->each = (n + whole - 1) / whole * x->vec;
	k->sum = sum;
	k->nsum = (int)x->atom.n;
	total_open(c, x);
	pieces_join(c, x);
	numbers_store(c, x);
	total_close(c, "the pieces of all processes to a number", 1);
	c->gk->k.at[c->gk->k.n - 1].finish = true;
}

void
cu_totals_emit(Cuda *c, int pieces)
{
	Totals x = {.vec = 4, .pieces = pieces, .parts = c->g->group.at[c->group].workspace > 0};
	bool narrow = false;

	for (uint32_t i = c->first; i < c->last; i++)
		if (!c->g->op.at[i].dead && op_info[c->g->op.at[i].kind].red >= 0)
			vec_push(c->a, &x.atom, ((Atom){.op = &c->g->op.at[i]}));
	x.t = val_type(c->g, x.atom.at[0].op->in[0]);
	for (uint32_t k = 0; k < x.atom.n; k++)
		cu_leaves_find(c, x.atom.at[k].op->in[0], x.t, NOVAL, &x.leaves);
	for (uint32_t k = 0; k < x.leaves.at.n; k++)
		narrow |= dtype_info[val_type(c->g, x.leaves.at.at[k].v)->dtype].bytes == 2;
	x.vec = !x.leaves.at.n ? 1 : narrow ? 8 : 4;
	for (int k = 0; k < x.t->rank; k++) {
		bool one = x.t->axis[x.t->perm[k]].n == 1;

		x.ix[x.t->perm[k]] = one ? "0" : arena_printf(c->a, "q%d", x.t->perm[k]);
		x.inner = one ? x.inner : x.t->perm[k];
	}
	for (int k = 0; k < MAX_RANK; k++)
		x.none[k] = "0";
	if (x.parts) {
		parts_emit(c, &x);
		return;
	}
	total_open(c, &x);
	cu_line(c, "static unsigned total_tickets[ENTRIES];");
	for (uint32_t k = 0; k < x.atom.n; k++)
		cu_line(c, "static volatile %s total_%u[PARTS];", cu_atom_type(c, &x.atom.at[k]), (unsigned)k);
	Scope s = cu_scope_open(c, "for (unsigned piece = blockIdx.x; piece < o1; piece += gridDim.x)");

	piece(c, &x);
	piece_leaves(c, &x);
	cu_line(c, "if (!last_here(&total_tickets[ENTRY], (unsigned)o1)) continue;");
	pieces_join(c, &x);
	numbers_store(c, &x);
	cu_scope_close(c, s);
	total_close(c, total_says(c, &x, ""), pieces);
}
