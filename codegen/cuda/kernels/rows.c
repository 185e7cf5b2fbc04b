/* rows.c: reductions, and groups around them.
 *
 * In: a group with reductions over the same axes of one space.   Out: a kernel with a block for each kept index, or a
 * thread where a row is short, or, of many rows of moderate length, a warp: its lanes join by shuffles, no thread waits
 * for a block. What the row is computed from stays in registers for all passes, if these hold it: of a long row with
 * 512 or 1,024 threads. A pass goes over the row for every phase: what depends on no reduction of the group, what
 * depends on those of the first pass, ...; threads take every so manieth element, their states join by warps, so the
 * order is the same whatever the machine. moments takes two passes (sum, squares about the mean), logsumexp too
 * (largest, exponentials below it; of numbers off which their own largest was taken, one). Values of the row's whole
 * space are stored in their phase, values of the kept shape at the end. A reduction asked for at any other index is a
 * loop of its own (atoms.c). Threads take four or two neighbours at once where the row goes along memory. Where rows
 * are few and long and one pass does, a row is cut into pieces, a block to each: they leave their states in the
 * workspace, and the block that comes last joins them. */
#include "../contract/gemm.h"
#include "red.h"
#include <string.h>

/* Bytes of a state; elements of a warp's row, at most; what a thread keeps of memory's values: of a warp's elements,
 * of a block's words of 32 bits; threads of a multiprocessor, with which those of a block leave it registers; elements
 * of a thread from which on a pass computes anew what another did. */
enum { SLOT = 16, WARP_ROW = 1024, HELD = 96, HELD_WORDS = 36, BESIDE = 1024, ANEW = 32 };

int
cu_rows_threads(const Graph *g, const Op *op)
{
	const Type *t = val_type(g, op->in[0]);
	uint32_t axes = cu_red_axes(g, op);
	int64_t count = cu_full_product(t, axes), rows = cu_full_product(t, ~axes);

	if (count <= SHORT_ROW)
		return 1;
	return count <= WARP_ROW && rows >= cu_machine(g)->budget.blocks ? WARP : BLOCK;
}

/* Neighbours along axis `inner` of t that are taken at once. */
static int
neighbours(const Type *t, int inner)
{
	return inner < 0 || t->axis[inner].mul ? 1 : t->axis[inner].n % 4 == 0 ? 4 : t->axis[inner].n % 2 == 0 ? 2 : 1;
}

/* Turns that threads take over a row, vec elements each. */
static int64_t
turns_of(int64_t count, int threads, int vec)
{
	return (count + (int64_t)threads * vec - 1) / ((int64_t)threads * vec);
}

int
cu_rows_block(const Graph *g, int group, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red), last;
	int inner = cu_inner_axis(t), vec = neighbours(t, inner), bytes = 0;
	bool *seen = arena_array(g->arena, bool, g->val.n);

	for (uint32_t i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < op->nin; k++) {
			const Type *in = val_type(g, op->in[k]);
			const Op *by = val_op(g, op->in[k]);

			if (seen[op->in[k].id] || (by && by->group == group) || !type_same_place(in, t))
				continue;
			seen[op->in[k].id] = true;
			bytes += dtype_info[in->dtype].bytes;
		}
	}
	for (int threads = BLOCK; vec > 1 && bytes && axes >> inner & 1 && threads <= 4 * BLOCK; threads *= 2)
		if (turns_of(cu_full_product(t, axes), threads, vec) * vec * bytes <= 4 * HELD_WORDS)
			return threads;
	return BLOCK;
}

Late
cu_late_find(const Graph *g, int group)
{
	Late l = {0};

	l.first = graph_group_ops(g, group, &l.last);
	l.late = arena_array(g->arena, bool, l.last - l.first);
	for (uint32_t i = l.first; i < l.last; i++) {
		const Op *op = &g->op.at[i];
		bool late = op_info[op->kind].red >= 0;

		for (int k = 0; k < op->nin; k++)
			late |= cu_late_is(g, &l, op->in[k]);
		l.late[i - l.first] = late && !op->dead && op->group == group;
	}
	return l;
}

bool
cu_late_is(const Graph *g, const Late *l, Val v)
{
	uint32_t by = val_info(g, v)->op;

	return by >= l->first && by < l->last && l->late[by - l->first];
}

/* States that a piece of a row leaves; 0: the group's rows cannot be cut. */
static int64_t
cut_states(const Graph *g, int group, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);
	Late late = cu_late_find(g, group);
	int64_t rows = cu_full_product(t, ~axes), states = 0;

	for (uint32_t i = late.first; i < late.last; i++) {
		const Op *o = &g->op.at[i];
		bool is_red = op_info[o->kind].red >= 0;

		if (o->dead || o->group != group)
			continue;
		if (op_has((OpKind)o->kind, T_CONTRACT | T_WINDOW))
			return 0;
		if (is_red && (cu_late_is(g, &late, o->in[0]) || cu_red_passes(o) > 1 || cu_red_axes(g, o) != axes ||
		               !type_same_shape(val_type(g, o->in[0]), t)))
			return 0;
		if (!is_red && late.late[i - late.first] && type_elements(val_type(g, o->out[0])) > rows)
			return 0;
		states += is_red;
	}
	return states;
}

int
cu_rows_pieces(const Graph *g, int group, const Op *red, int64_t *workspace)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);
	int64_t count = cu_full_product(t, axes), rows = cu_full_product(t, ~axes), states = cut_states(g, group, red);
	int64_t few = cu_machine(g)->budget.blocks, pieces = count / PIECE, most = (2 * few + rows - 1) / rows;

	pieces = pieces > most ? most : pieces;
	pieces = pieces > BLOCK ? BLOCK : pieces;
	if (rows >= few || pieces < 2 || !states)
		return 1;
	*workspace = rows * pieces * states * SLOT;
	return (int)pieces;
}

Facts
cu_rows_facts(const Graph *g, const Op *red, const SelectCx *cx)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);

	(void)cx;
	return (Facts){.M = cu_full_product(t, ~axes), .K = cu_full_product(t, axes)};
}

const char *
cu_rows_misfit(const Graph *g, const Op *red, const SelectCx *cx, const Params *p)
{
	Facts f = cu_rows_facts(g, red, cx);

	if (p->family != FAMILY_cuda_rows)
		return "such a reduction takes parameters such as rows{threads=32}";
	const char *why = space_misfit(g->arena, p, &f);

	return !why && p->cuda_rows.pieces > 1 && !cut_states(g, red->group, red)
	               ? "its rows cannot be cut: something of a row waits for all of it"
	               : why;
}

int64_t
cu_rows_workspace(const Graph *g, const Op *red, const Params *p)
{
	return p->cuda_rows.pieces > 1
	               ? cu_rows_facts(g, red, NULL).M * p->cuda_rows.pieces * SLOT * cut_states(g, red->group, red)
	               : 0;
}

/* ---------------------------------------------------------------- the kernel */
typedef struct Rows {
	const Op *red; /* one of them: all have its space and axes */
	const Type *space;
	uint32_t axes, kept;
	int threads, block, unroll; /* of a row, of a block; 0: as the compiler does */
	/* what the row is computed from, if all of it stays in registers, and turns of the threads over the row, the
	 * last not all of them */
	Leaves held;
	int turns;
	bool partly;
	/* of a row; neighbours that a thread takes at once, along the axis that is innermost in memory */
	int pieces, vec, inner;
	Ix ix[MAX_RANK], number, count, piece;
	int nphase;
	VEC(Atom) atom;
	VEC(int) at; /* passes of reductions, and their phases */
	VEC(Out) whole, row;
} Rows;

/* Is its result the largest of what it goes over? */
static bool
red_is_largest(const Op *op)
{
	const RedInfo *r = op_info[op->kind].red >= 0 ? red_of(op) : NULL;

	return r && r->join == RED_HIGH && r->then == RED_ONCE && expr_is(r->element, 0) && expr_is(r->value, RED_S);
}

/* The largest that is taken off what a logsumexp goes over: the largest of that is 0 then, or NaN, and no pass looks
 * for it. NOVAL: it is another's. */
static Val
taken_off(const Cuda *c, const Op *op)
{
	const Op *sub = red_of(op)->then == RED_EXPONENTIALS ? val_op(c->g, op->in[0]) : NULL;
	const Op *top = sub && sub->kind == OP_sub ? val_op(c->g, sub->in[1]) : NULL;
	const Type *t = val_type(c->g, op->in[0]);
	bool keep = false;

	if (!top || !red_is_largest(top) || top->in[0].id != sub->in[0].id || !c->inside[sub->in[1].id] ||
	    c->ready[sub->in[1].id] || (t->dtype != DT_f32 && t->dtype != DT_f64) ||
	    !type_same_shape(t, val_type(c->g, top->in[0])) || cu_red_axes(c->g, top) != cu_red_axes(c->g, op))
		return NOVAL;
	keep = attr_bool(top, A_keep) && top->out[0].id == sub->in[1].id;
	return keep ? sub->in[1] : NOVAL;
}

/* Its passes, and the first of them. */
static int
first_pass(const Cuda *c, const Op *op)
{
	return taken_off(c, op).id != NOVAL.id;
}

/* The passes over the row that must have ended before v is known, each reduction's own counted. */
static int
phase_of(Cuda *c, Val v)
{
	if (!c->inside[v.id] || c->ready[v.id])
		return 0;
	if (c->phase[v.id] >= 0)
		return c->phase[v.id];
	const Op *op = val_op(c->g, v);
	int p = 0, q;

	for (int k = 0; k < op->nin; k++)
		p = (q = phase_of(c, op->in[k])) > p ? q : p;
	return c->phase[v.id] = p + (op_info[op->kind].red >= 0 ? cu_red_passes(op) - first_pass(c, op) : 0);
}

static bool
is_kept_shape(const Rows *r, const Type *t, bool *keep)
{
	int j = 0;

	*keep = t->rank == r->space->rank;
	for (int i = 0; i < r->space->rank; i++) {
		bool reduced = r->axes >> i & 1;

		if (reduced && !*keep)
			continue;
		if (j >= t->rank ||
		    (reduced ? t->axis[j].n != 1 || t->axis[j].mul : !axis_same(t->axis[j], r->space->axis[i])))
			return false;
		j++;
	}
	return j == t->rank;
}

/* Indices of a value of the kept shape. */
static void
row_index(const Rows *r, const Type *t, Ix *ix)
{
	bool keep = t->rank == r->space->rank;
	int j = 0;

	for (int i = 0; i < r->space->rank; i++)
		if (keep || !(r->axes >> i & 1))
			ix[j++] = r->axes >> i & 1 ? "0" : r->ix[i];
}

static bool
same_space(const Cuda *c, const Rows *r, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]);

	if (t->rank != r->space->rank || cu_red_axes(c->g, op) != r->axes)
		return false;
	for (int i = 0; i < t->rank; i++)
		if (!axis_same(t->axis[i], r->space->axis[i]))
			return false;
	return true;
}

static void
rows_plan(Cuda *c, Rows *r)
{
	bool keep;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];
		int last = 0;

		if (op->dead)
			continue;
		if (op_info[op->kind].red >= 0 && same_space(c, r, op))
			for (int p = first_pass(c, op); p < cu_red_passes(op); p++) {
				last = phase_of(c, op->in[0]) + p - first_pass(c, op);
				vec_push(c->a, &r->atom, ((Atom){.op = op, .pass = p}));
				vec_push(c->a, &r->at, last);
			}
		for (int k = 0; k < op->nout; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);
			Out o = {op->out[k], &v->type, v->offset};

			if (!cu_value_is_out(c, op->out[k]) || c->ready[op->out[k].id])
				continue;
			if (is_kept_shape(r, &v->type, &keep)) {
				vec_push(c->a, &r->row, o);
			} else if (type_same_shape(&v->type, r->space)) {
				vec_push(c->a, &r->whole, o);
				last = phase_of(c, op->out[k]) > last ? phase_of(c, op->out[k]) : last;
			}
		}
		r->nphase = last + 1 > r->nphase ? last + 1 : r->nphase;
	}
}

/* Tells the memo what the reduction's results are at this row. */
static void
put_results(Cuda *c, const Rows *r, const Atom *a, Cell value)
{
	Ix ix[MAX_RANK];

	for (int k = 0; k < a->op->nout; k++) {
		const Type *t = val_type(c->g, a->op->out[k]);

		row_index(r, t, ix);
		for (int i = 0; i < t->rank; i++)
			ix[i] = t->axis[i].n == 1 && !t->axis[i].mul ? "0" : ix[i];
		if (a->op->nout > 1 && k != a->pass)
			continue;
		cu_memo_put(c, a->op->out[k], ix, cu_cell_cast(c, value, (DType)t->dtype));
	}
}

/* A state between this block's variables and its place in the workspace, `at` the text of the piece's first byte. */
static void
state_move(Cuda *c, const Atom *a, uint32_t k, const char *at, bool put)
{
	const char *type[2] = {cu_atom_type(c, a), "long long"};

	for (int i = 0; i < 1 + red_indexes(a->op); i++) {
		const char *slot =
		        arena_printf(c->a, "*(volatile %s *)(%s + %u)", type[i], at, k * SLOT + 8 * (unsigned)i);

		cu_line(c, "%s = %s;", put ? slot : a->s[i], put ? a->s[i] : slot);
	}
}

static void
pieces_join(Cuda *c, Rows *r)
{
	const char *at = cu_fresh(c, 'p');
	Ix first = cu_ix_mul(c, r->number, cu_ix_k(c, r->pieces));
	Scope s;

	cu_line(c, "static unsigned row_tickets[%lld];", (long long)cu_full_product(r->space, r->kept));
	cu_line(c, "char *const %s = (char *)%s;", at,
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset));
	s = cu_scope_open(c, "if (threadIdx.x == 0)");
	for (uint32_t k = 0; k < r->atom.n; k++)
		state_move(c, &r->atom.at[k], k,
		           arena_printf(c->a, "%s + (%s + %s) * %uLL", at, first, r->piece, r->atom.n * SLOT), true);
	cu_scope_close(c, s);
	cu_line(c, "if (!last_here(&row_tickets[%s], %d)) continue;", r->number, r->pieces);
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_atom_open(c, &r->atom.at[k]);
	s = cu_scope_open(c, "if (threadIdx.x < %d)", r->pieces);
	for (uint32_t k = 0; k < r->atom.n; k++)
		state_move(c, &r->atom.at[k], k,
		           arena_printf(c->a, "%s + (%s + (int)threadIdx.x) * %uLL", at, first, r->atom.n * SLOT),
		           false);
	cu_scope_close(c, s);
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_atom_join(c, &r->atom.at[k]);
}

static bool
in_vectors(const Rows *r, const Out *o)
{
	return r->vec > 1 && cu_vector_place(o->type, o->offset, r->space);
}

/* Does a thread keep what `l` says of a row of so many elements? */
static bool
holds(const Cuda *c, const Rows *r, const Leaves *l, int64_t count)
{
	int64_t turns = turns_of(count, r->threads, r->vec), words = 0;

	if (r->threads == WARP)
		return (int64_t)l->at.n * turns * r->vec <= HELD;
	for (uint32_t k = 0; k < l->at.n; k++)
		words += turns * r->vec * dtype_info[val_type(c->g, l->at.at[k].v)->dtype].bytes / 4;
	return r->pieces == 1 && words <= HELD_WORDS;
}

/* Neighbours are taken at once where the row goes along memory, in whole vectors, and something of it lies there. */
static void
vectors_choose(Cuda *c, Rows *r)
{
	const Type *t = r->space;
	Leaves l = {0};
	bool any = false, marked = false;

	r->vec = 1;
	r->inner = cu_inner_axis(t);
	if (r->threads == 1 || r->inner < 0 || !(r->axes >> r->inner & 1) || neighbours(t, r->inner) == 1)
		return;
	for (uint32_t k = 0; k < r->atom.n; k++)
		cu_leaves_find(c, r->atom.at[k].op->in[0], t, NOVAL, &l);
	r->vec = neighbours(t, r->inner);
	for (uint32_t k = 0; k < r->whole.n; k++)
		any |= in_vectors(r, &r->whole.at[k]);
	if (!any && !l.at.n)
		r->vec = 1;
	for (uint32_t k = 0; k < r->whole.n; k++)
		cu_leaves_find(c, r->whole.at[k].v, t, NOVAL, &l);
	int64_t count = cu_full_product(t, r->axes);

	for (int i = 0; i < t->rank; i++)
		marked |= r->axes >> i & 1 && t->axis[i].mul;
	if (r->vec > 1 && !marked && l.at.n && holds(c, r, &l, count)) {
		r->held = l;
		r->turns = (int)turns_of(count, r->threads, r->vec);
		r->partly = count % ((int64_t)r->threads * r->vec) != 0;
	}
}

/* Has a thread that holds a row so many elements that each pass computes them anew? */
static bool
anew(const Rows *r)
{
	return r->threads >= BLOCK && r->turns * r->vec >= ANEW;
}

/* This thread's number among those of its row. */
static Ix
place(const Rows *r)
{
	return r->threads == WARP ? "lane" : "threadIdx.x";
}

/* The row's elements that a thread takes, vec at a time: element i is its first. */
static Scope
turns_open(Cuda *c, const Rows *r, Ix i, Ix first, Ix end)
{
	if (r->unroll && !r->turns)
		cu_line(c, "#pragma unroll %d", r->unroll);
	if (r->threads == 1)
		return cu_scope_open(c, "for (%s %s = 0; %s < %s; %s++)", c->it, i, i, end, i);
	Ix mine = cu_ix_mul(c, place(r), cu_ix_k(c, r->vec));

	if (!r->turns)
		return cu_scope_open(c, "for (%s %s = %s; %s < %s; %s += %d)", c->it, i, cu_ix_add(c, first, mine), i,
		                     end, i, r->threads * r->vec);
	if (anew(r)) {
		Ix again = cu_fresh(c, 'i');

		cu_line(c, "const %s %s = kept_index((%s)%s);", c->it, again, c->it, mine);
		mine = again;
	}
	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", r->turns);

	cu_line(c, "const %s %s = q * %d + %s;", c->it, i, r->threads * r->vec, mine);
	if (r->partly) /* what is written out behind it knows the turn: a condition of the last alone */
		cu_line(c, "if (q < %d || %s < %s) {", r->turns - 1, i, end);
	return s;
}

static void
turns_close(Cuda *c, const Rows *r, Scope s)
{
	if (r->turns && r->partly)
		cu_line(c, "}");
	cu_scope_close(c, s);
}

/* Values of the row that lie in memory, once for all of its elements. */
static void
row_values(Cuda *c, const Rows *r)
{
	Ix ix[MAX_RANK];
	bool keep;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		for (int k = 0; !op->dead && k < op->nin; k++) {
			const Type *t = val_type(c->g, op->in[k]);

			if ((c->inside[op->in[k].id] && !c->ready[op->in[k].id]) ||
			    cu_input_is_addressed(c, op->in[k]) || !is_kept_shape(r, t, &keep))
				continue;
			row_index(r, t, ix);
			cu_value_at(c, op->in[k], ix);
		}
	}
}

/* All of the row that a thread will need, on its way at once. */
static void
held_load(Cuda *c, Rows *r)
{
	Ix i, in[MAX_RANK];

	if (!r->turns)
		return;
	i = cu_fresh(c, 'i');
	cu_leaves_open(c, &r->held, r->vec, r->turns + 1); /* more than one: arrays by turn, q */
	Scope s = turns_open(c, r, i, "0", r->count);

	memcpy(in, r->ix, sizeof in);
	cu_take_apart(c, r->space, r->axes, i, in);
	cu_leaves_load(c, &r->held, in);
	turns_close(c, r, s);
}

/* Between two passes: of what a block's thread holds nothing that was computed in the one stays for the other. */
static void
held_keep(Cuda *c, const Rows *r)
{
	if (!anew(r))
		return;
	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", r->turns);

	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", r->vec);

	for (uint32_t k = 0; k < r->held.at.n; k++) {
		bool pairs = dtype_info[val_type(c->g, r->held.at.at[k].v)->dtype].bytes == 2;

		cu_line(c, pairs ? "if (u %% 2 == 0) kept_16(&%s[q][u / 2]);" : "kept_32(&%s[q][u]);",
		        r->held.at.at[k].name);
	}
	cu_scope_close(c, u);
	cu_scope_close(c, s);
}

/* Elements i .. i + vec of the row, at indices `in`: steps of this phase's reductions, values that are stored in it. */
static void
elements(Cuda *c, Rows *r, int phase, Ix i, const Ix *in)
{
	const char **to = arena_array(c->a, const char *, r->whole.n + 1);
	Ix ix[MAX_RANK], at = i;
	Leaves l = {0};
	Lanes lanes = {0};
	Scope loop = {0};

	memcpy(ix, in, sizeof ix);
	if (r->vec > 1) {
		for (uint32_t k = 0; k < r->atom.n; k++)
			if (r->at.at[k] == phase)
				cu_leaves_find(c, r->atom.at[k].op->in[0], r->space, NOVAL, &l);
		for (uint32_t k = 0; k < r->whole.n; k++)
			if (phase_of(c, r->whole.at[k].v) == phase) {
				cu_leaves_find(c, r->whole.at[k].v, r->space, NOVAL, &l);
				if (in_vectors(r, &r->whole.at[k]))
					to[k] = cu_stored_open(c, &r->whole.at[k], r->vec);
			}
		if (!r->turns) {
			cu_leaves_open(c, &l, r->vec, 1);
			cu_leaves_load(c, &l, in);
		}
		cu_lanes_begin(c, &lanes, r->space, r->inner, r->vec, in);
		loop = cu_each_open(c, r->vec);
		ix[r->inner] = lanes.lane = cu_ix_add(c, in[r->inner], "u");
		at = cu_ix_add(c, i, "u");
		cu_leaves_put(c, r->turns ? &r->held : &l, ix, "u");
	}
	for (uint32_t k = 0; k < r->atom.n; k++)
		if (r->at.at[k] == phase)
			cu_atom_step(c, &r->atom.at[k], cu_value_at(c, r->atom.at[k].op->in[0], ix), at);
	for (uint32_t k = 0; k < r->whole.n; k++) {
		const Out *o = &r->whole.at[k];

		if (phase_of(c, o->v) == phase)
			cu_stored_put(c, o, to[k], ix, cu_value_at(c, o->v, ix));
	}
	if (r->vec > 1)
		cu_lanes_end(c);
	cu_each_close(c, r->vec, loop);
	for (uint32_t k = 0; k < r->whole.n; k++)
		cu_stored_close(c, &r->whole.at[k], to[k], r->vec, in);
}

/* Of a logsumexp below its own largest: less than 0 all, or not finite. */
static void
largest_known(Cuda *c, const Rows *r, Atom *a)
{
	Val v = a->pass == 1 ? taken_off(c, a->op) : NOVAL;
	Ix ix[MAX_RANK];

	if (v.id == NOVAL.id)
		return;
	row_index(r, val_type(c->g, v), ix);
	Cell m = cu_value_at(c, v, ix);

	a->before = cu_cell_let(c, cu_cell_bin(c, EX_SUB, m, m).v, (DType)m.dt);
	a->below_zero = true;
}

static void
rows_pass(Cuda *c, Rows *r, int phase)
{
	Ix i = cu_fresh(c, 'i'), in[MAX_RANK], first = "0", end = r->count;
	int64_t many = (int64_t)r->pieces * r->vec;

	if (r->pieces > 1) {
		Ix length = cu_ix_mul(c, cu_ix_parts(c, r->count, many), cu_ix_k(c, r->vec));

		first = cu_ix_mul(c, r->piece, length);
		end = cu_fresh(c, 'i');
		cu_line(c, "const %s %s = %s + %s < %s ? %s + %s : %s;", c->it, end, first, length, r->count, first,
		        length, r->count);
	}
	for (uint32_t k = 0; k < r->atom.n; k++)
		if (r->at.at[k] == phase) {
			largest_known(c, r, &r->atom.at[k]);
			cu_atom_open(c, &r->atom.at[k]);
		}
	Scope s = turns_open(c, r, i, first, end);

	memcpy(in, r->ix, sizeof in);
	cu_take_apart(c, r->space, r->axes, i, in);
	elements(c, r, phase, i, in);
	turns_close(c, r, s);
	for (uint32_t k = 0; k < r->atom.n && r->threads > 1; k++)
		if (r->at.at[k] == phase)
			cu_atom_join(c, &r->atom.at[k]);
	if (r->pieces > 1)
		pieces_join(c, r);
	for (uint32_t k = 0; k < r->atom.n; k++) {
		Atom *a = &r->atom.at[k];

		if (r->at.at[k] != phase)
			continue;
		Cell value = cu_atom_value(c, a, r->count);

		if (a->pass + 1 < cu_red_passes(a->op))
			r->atom.at[k + 1].before = value;
		if (a->pass + 1 == cu_red_passes(a->op) || a->op->nout > 1)
			put_results(c, r, a, value);
	}
}

static void
rows_store(Cuda *c, const Rows *r)
{
	Scope s = {0};

	if (!r->row.n)
		return;
	if (r->threads > 1)
		s = cu_scope_open(c, "if (%s == 0)", place(r));
	for (uint32_t k = 0; k < r->row.n; k++) {
		const Out *o = &r->row.at[k];
		Ix ix[MAX_RANK];

		row_index(r, o->type, ix);
		cu_store_at(c, o->type, o->offset, ix, cu_value_at(c, o->v, ix));
	}
	if (r->threads > 1)
		cu_scope_close(c, s);
}

/* Over the rows, r->number, of this block, of its warps or of its threads; with pieces over those. */
static Scope
rows_open(Cuda *c, Rows *r, Ix rows)
{
	Ix ext[2] = {rows, cu_ix_k(c, r->pieces)}, at[2];
	const char *block = r->block == BLOCK ? "BLOCK" : arena_printf(c->a, "%d", r->block);
	const char *from = r->threads >= BLOCK ? "blockIdx.x"
	                                       : arena_printf(c->a, "blockIdx.x * %s + threadIdx.x", block),
	           *step = r->threads >= BLOCK ? "gridDim.x" : arena_printf(c->a, "gridDim.x * %s", block);

	if (r->threads == WARP) {
		cu_line(c, "const int lane = threadIdx.x %% %d;", WARP);
		from = arena_printf(c->a, "blockIdx.x * %d + threadIdx.x / %d", r->block / WARP, WARP);
		step = arena_printf(c->a, "gridDim.x * %d", r->block / WARP);
	}
	if (r->pieces == 1)
		return cu_scope_open(c, "for (%s %s = %s; %s < %s; %s += %s)", c->it, r->number, from, r->number, rows,
		                     r->number, step);
	Scope s = cu_scope_open(c, "for (%s unit = blockIdx.x; unit < %s; unit += gridDim.x)", c->it,
	                        cu_ix_mul(c, rows, ext[1]));

	cu_split_number(c, "unit", ext, 2, at);
	r->number = at[0];
	r->piece = at[1];
	return s;
}

void
cu_rows_emit(Cuda *c, const Params *kernel)
{
	int threads = kernel->cuda_rows.threads, pieces = kernel->cuda_rows.pieces;
	Rows r = {.threads = threads,
	          .pieces = pieces,
	          .block = kernel->cuda_rows.rows ? kernel->cuda_rows.rows * threads
	                   : threads > BLOCK      ? threads
	                                          : BLOCK,
	          .unroll = kernel->cuda_rows.unroll};

	for (uint32_t i = c->first; i < c->last && !r.red; i++)
		if (!c->g->op.at[i].dead && op_info[c->g->op.at[i].kind].red >= 0)
			r.red = &c->g->op.at[i];
	r.space = val_type(c->g, r.red->in[0]);
	r.axes = cu_red_axes(c->g, r.red);
	r.kept = ((1u << r.space->rank) - 1) & ~r.axes;
	rows_plan(c, &r);
	if (!r.row.n && !r.whole.n)
		return;
	vectors_choose(c, &r);
	cu_kernel_open(c, "");
	c->threads = r.block;
	c->beside = r.turns && threads >= BLOCK ? BESIDE / threads : r.block > BLOCK ? 1 : 0;
	r.count = cu_product(c, r.space, r.axes);
	r.number = cu_fresh(c, 'i');
	Scope s = rows_open(c, &r, cu_product(c, r.space, r.kept));

	for (int i = 0; i < r.space->rank; i++)
		r.ix[i] = "0";
	cu_take_apart(c, r.space, r.kept, r.number, r.ix);
	for (uint32_t k = 0; k < r.atom.n; k++)
		r.atom.at[k].warp = threads == WARP;
	if (threads > 1)
		row_values(c, &r);
	held_load(c, &r);
	for (int p = 0; p < r.nphase; p++) {
		if (p)
			held_keep(c, &r);
		rows_pass(c, &r, p);
	}
	rows_store(c, &r);
	cu_scope_close(c, s);
	int64_t all = cu_full_product(r.space, r.kept);

	cu_kernel_close(c,
	                pieces > 1         ? arena_printf(c->a, "a row to %d blocks", pieces)
	                : threads > BLOCK  ? arena_printf(c->a, "a row to %d threads", threads)
	                : threads == BLOCK ? "a row to a block"
	                : threads == WARP  ? "a row to a warp"
	                                   : "a row to a thread",
	                cu_tiles_along(all * pieces, r.block / threads));
	for (uint32_t k = 0; k < r.row.n; k++)
		c->ready[r.row.at[k].v.id] = true;
	for (uint32_t k = 0; k < r.whole.n; k++)
		c->ready[r.whole.at[k].v.id] = true;
}
