/* nest.c: the loops of a kernel: which axes of the root's type run as one, and how the loops become tasks.
 *
 * In: a root type and the values to be evaluated over it.   Out: loops in memory order, neighbours merged where every
 * access of the kernel walks both as one (dense in memory, or broadcast along both); axes whose index an operator looks
 * at (slice, pad, gather, windows ...) stay alone. A merged loop runs on its innermost axis, whose index then exceeds
 * the extent: every access multiplies it by that axis's stride, so it reaches the others' elements. Tasks are cut by
 * shape only. */
#include "../cpu.h"
#include <string.h>

void
nest_leaf(GroupCx *gc, Nest *n, const Type *t, const int8_t *map)
{
	LeafAccess l = {.type = t};

	memcpy(l.map, map, sizeof l.map);
	for (int j = 0; j < MAX_RANK; j++)
		if (j < t->rank && t->axis[j].n == 1 && !t->axis[j].mul)
			l.map[j] = -1;
	vec_push(gc->tmp, &n->leaf, l);
}

static void
atom(Nest *n, int8_t root)
{
	if (root >= 0)
		n->atomic |= 1u << root;
}

static void
atom_all(Nest *n, const int8_t *map, int rank)
{
	for (int i = 0; i < rank; i++)
		atom(n, map[i]);
}

static void
walk_reshape(GroupCx *gc, Nest *n, Val x, const Type *from, const Type *to, const int8_t *map)
{
	int8_t in[MAX_RANK];
	int i = 0, j = 0;

	memset(in, -1, sizeof in);
	if ((!gc->inside[x.id] || gc->ready[x.id]) && type_is_plain(from) && type_is_plain(to)) {
		nest_leaf(gc, n, to, map);
		return;
	}
	while (i < to->rank || j < from->rank) {
		int i0 = i, j0 = j;

		type_block(from, to, &j, &i);
		if (i - i0 == 1 && j - j0 == 1) {
			in[j0] = map[i0];
			continue;
		}
		for (int k = i0; k < i; k++)
			if (!is_one(to->axis[k])) {
				atom(n, map[k]);
				if (j - j0 == 1) /* an axis in parts: elements of the last lie as its own do */
					in[j0] = map[k];
			}
	}
	nest_walk(gc, n, x, in);
}

/* Does another axis of the operand take its index from the same axis of the result as j does? */
static bool
shares_axis(const Access *a, int rank, int j)
{
	for (int i = 0; i < rank; i++)
		if (i != j && a->at[i].form == ACCESS_same && a->at[i].axis == a->at[j].axis)
			return true;
	return false;
}

/* Operands by their access rules. An axis whose index is looked at, or that two axes of the operand follow (a
 * diagonal), stays alone; those that others' indices are looked up in are walked before these. */
static void
walk_access(GroupCx *gc, Nest *n, const Op *op, int k, const int8_t *map)
{
	const Type *from = val_type(gc->g, op->in[k]);
	int8_t in[MAX_RANK];
	Access a;

	if (!op_access(gc->g, op, k, &a))
		return;
	if (a.blocks) {
		walk_reshape(gc, n, op->in[k], from, val_type(gc->g, op->out[0]), map);
		return;
	}
	memset(in, -1, sizeof in);
	for (int j = 0; j < from->rank; j++) {
		const AxisAccess *at = &a.at[j];

		if (at->form >= ACCESS_lookup)
			walk_access(gc, n, op, at->by, map);
		if (at->form == ACCESS_same && !shares_axis(&a, from->rank, j))
			in[j] = map[at->axis];
		else if (at->form != ACCESS_zero && at->axis >= 0)
			atom(n, map[at->axis]);
	}
	nest_walk(gc, n, op->in[k], in);
}

/* Indices are walked with the operand in which they look up. */
static void
walk_operands(GroupCx *gc, Nest *n, const Op *op, const int8_t *map)
{
	Access a;

	for (int k = 0; k < op->nin; k++)
		if (op_access(gc->g, op, k, &a) && !a.index)
			walk_access(gc, n, op, k, map);
}

static void
walk_reduce(GroupCx *gc, Nest *n, const Op *op, const int8_t *map)
{
	const Type *t = val_type(gc->g, op->in[0]), *to = val_type(gc->g, op->out[0]);
	int na, o = 0;
	const int64_t *axes = attr_ints(op, A_axes, &na);
	int8_t in[MAX_RANK];

	for (int j = 0; j < t->rank; j++) {
		bool red = false;

		for (int i = 0; i < na; i++)
			red |= axes[i] == j;
		in[j] = red ? -1 : map[to->rank == t->rank ? j : o];
		o += !red;
	}
	nest_walk(gc, n, op->in[0], in);
}

/* map: the root's axis behind each axis of v, -1 for none (broadcast, or an index of its own). */
void
nest_walk(GroupCx *gc, Nest *n, Val v, const int8_t *map)
{
	const Type *t = val_type(gc->g, v);

	if (!gc->inside[v.id] || gc->ready[v.id]) {
		nest_leaf(gc, n, t, map);
		return;
	}
	const Op *op = val_op(gc->g, v);
	OpKind k = (OpKind)op->kind;

	if (op_info[k].red >= 0) {
		walk_reduce(gc, n, op, map);
	} else if (op_info[k].access) {
		walk_operands(gc, n, op, map);
	} else if (k == OP_iota) {
		atom(n, map[attr_int(op, A_axis)]);
	} else if (op_has(k, T_RANDOM)) {
		Type *plain = arena_new_of(gc->tmp, Type);

		*plain = *t;
		for (int i = 0; i < t->rank; i++)
			plain->perm[i] = (uint8_t)i;
		nest_leaf(gc, n, plain, map);
	} else if (op_has(k, T_WINDOW)) { /* rows and columns are looked at; examples and channels pass */
		for (int i = 0; i < op->nin; i++) {
			const int8_t in[MAX_RANK] = {map[0], map[1], -1, -1, -1, -1, -1, -1};

			nest_walk(gc, n, op->in[i], in);
		}
		atom(n, map[2]);
		atom(n, map[3]);
	} else if (k == OP_gather_dx) {
		int8_t in[MAX_RANK];

		memcpy(in, map, sizeof in);
		atom(n, map[attr_int(op, A_axis)]);
		in[attr_int(op, A_axis)] = -1;
		nest_walk(gc, n, op->in[0], in);
		nest_walk(gc, n, op->in[1], in);
	} else if (k != OP_full) {
		atom_all(n, map, t->rank);
	}
}

/* ---------------------------------------------------------------- merging */

static bool
leaf_agrees(const Nest *n, const LeafAccess *l, int a, int b)
{
	int ja = -1, jb = -1;

	for (int j = 0; j < l->type->rank; j++) {
		if (l->map[j] == a)
			ja = j;
		if (l->map[j] == b)
			jb = j;
	}
	if (ja < 0 || jb < 0)
		return ja == jb;
	if (!axis_same(l->type->axis[jb], n->root->axis[b])) /* a part of a longer axis */
		return false;
	for (int i = 0; i < l->type->rank; i++)
		if (l->type->perm[i] == ja) {
			for (i++; i < l->type->rank && is_one(l->type->axis[l->type->perm[i]]); i++)
				;
			return i < l->type->rank && l->type->perm[i] == jb;
		}
	return false;
}

void
nest_build(GroupCx *gc, Nest *n, uint32_t reduced)
{
	const Type *t = n->root;

	n->machine = machine_of(gc->g);
	n->nloop = 0;
	for (int i = 0; i < t->rank; i++) {
		int a = t->perm[i];
		bool red = reduced >> a & 1, merge = n->nloop > 0 && !(n->atomic >> a & 1);

		if (is_one(t->axis[a]))
			continue;
		if (merge) {
			LoopAxis *l = &n->loop[n->nloop - 1];
			int p = l->axis[l->naxis - 1];

			merge = l->reduced == red && !(n->atomic >> p & 1);
			for (uint32_t k = 0; merge && k < n->leaf.n; k++)
				merge = leaf_agrees(n, &n->leaf.at[k], p, a);
			if (merge) {
				l->axis[l->naxis++] = (uint8_t)a;
				continue;
			}
		}
		n->loop[n->nloop++] = (LoopAxis){.axis = {(uint8_t)a}, .naxis = 1, .reduced = red};
	}
	(void)gc;
}

int
loop_of(const Nest *n, int axis)
{
	for (int i = 0; i < n->nloop; i++)
		for (int k = 0; k < n->loop[i].naxis; k++)
			if (n->loop[i].axis[k] == axis)
				return i;
	return -1;
}

const LeafAccess *
nest_crossed(const Nest *n)
{
	for (uint32_t k = 0; k < n->leaf.n; k++) {
		const LeafAccess *l = &n->leaf.at[k];
		int dense = -1;
		bool strides = false;

		if (type_bytes(l->type) <= n->machine->budget.l2 / 8) /* L2 holds it beside the result */
			continue;
		for (int i = 0; i < l->type->rank; i++) {
			int j = l->type->perm[i];

			if (is_one(l->type->axis[j]))
				continue;
			dense = l->map[j] < 0 ? -1 : loop_of(n, l->map[j]);
			strides |= dense >= 0 && dense == n->nloop - 1;
		}
		if (strides && dense >= 0 && dense != n->nloop - 1)
			return l;
	}
	return NULL;
}

void
nest_lanes(Nest *n, const LeafAccess *l)
{
	enum { FEW = 8 }; /* lanes: less than half of a vector of the largest */
	int dense = -1, last = n->nloop - 1;

	for (int i = 0; l && i < l->type->rank; i++)
		if (!is_one(l->type->axis[l->type->perm[i]]))
			dense = l->map[l->type->perm[i]] < 0 ? -1 : loop_of(n, l->map[l->type->perm[i]]);
	if (dense < 0 || dense == last || loop_full(n, &n->loop[last]) >= FEW || loop_full(n, &n->loop[dense]) < FEW)
		return;
	LoopAxis moved = n->loop[dense];

	memmove(&n->loop[dense], &n->loop[dense + 1], sizeof moved * (size_t)(last - dense));
	n->loop[last] = moved;
}

int
nest_order(const Nest *n, const LeafAccess *l, const LoopAxis **outer)
{
	uint32_t taken = 0;
	int nouter = 0;

	for (int i = 0; l && i < l->type->rank; i++) {
		int j = l->type->perm[i], at = l->map[j] < 0 ? -1 : loop_of(n, l->map[j]);

		if (at >= 0)
			taken |= 1u << at;
	}
	for (int i = 0; i + 1 < n->nloop; i++)
		if (!(taken >> i & 1))
			outer[nouter++] = &n->loop[i];
	for (int i = 0; l && i < l->type->rank; i++) {
		int j = l->type->perm[i], at = l->map[j] < 0 ? -1 : loop_of(n, l->map[j]);

		if (at < 0 || at == n->nloop - 1 || !(taken >> at & 1))
			continue;
		taken &= ~(1u << at);
		outer[nouter++] = &n->loop[at];
	}
	return nouter;
}

V
loop_extent(Emit *e, const Nest *n, const LoopAxis *l)
{
	V r = k64(e, 1);

	for (int i = 0; l && i < l->naxis; i++)
		r = i_mul(e, r, extent(e, n->root->axis[l->axis[i]]));
	return r;
}

int64_t
loop_full(const Nest *n, const LoopAxis *l)
{
	int64_t r = 1;

	for (int i = 0; l && i < l->naxis; i++)
		r *= n->root->axis[l->axis[i]].n;
	return r;
}

bool
loop_marked(const Nest *n, const LoopAxis *l)
{
	for (int i = 0; i < l->naxis; i++)
		if (n->root->axis[l->axis[i]].mul)
			return true;
	return false;
}

void
loop_set(Emit *e, const LoopAxis *l, Ix iv, Ix *ix)
{
	for (int i = 0; i < l->naxis; i++)
		ix[l->axis[i]] = i == l->naxis - 1 ? iv : ix_k(e, 0);
}

/* ---------------------------------------------------------------- tasks */
/* rows(n) of the outer loops: exact if at most one axis follows n, else those of a full batch (kernels stop at the real
 * number). */
static Rows
rows_of(const Nest *n, const LoopAxis *const *outer, int nouter)
{
	Rows r = {.rows = 1, .mul = 0, .div = 1, .grain = 1};
	Axis mark = {0};
	int marks = 0;
	int64_t full = 1;

	for (int i = 0; i < nouter; i++)
		for (int k = 0; k < outer[i]->naxis; k++) {
			Axis a = n->root->axis[outer[i]->axis[k]];

			full *= a.n;
			if (a.mul) {
				marks++;
				mark = a;
			} else {
				r.rows *= a.n;
			}
		}
	if (marks == 1) {
		r.mul = mark.mul;
		r.div = mark.div;
	} else {
		r.rows = full;
	}
	return r;
}

/* Few operations are one task: another thread takes as long to begin and to end. Else tasks are small enough for any
 * number of threads to share them evenly: the pool calls a kernel for ranges of tasks, so a small one costs nothing.
 * */
int64_t
task_grain(const Machine *m, int64_t rows, double work)
{
	enum { MOST = 64 }; /* tasks, where rows could be cut further: more than threads, so that they share evenly */
	int64_t grain = work * (double)rows < (double)m->budget.task ? rows : rows / MOST;

	return grain < 1 ? 1 : grain;
}

Tasks
tasks_of(const Nest *n, const LoopAxis *const *outer, int nouter, const LoopAxis *last, int64_t piece, int64_t nred,
         int64_t cost)
{
	Tasks t = {.nouter = nouter, .last = last, .nred = nred, .npiece = 1};
	int64_t full_last = loop_full(n, last), nrow = 1;

	memcpy(t.outer, outer, sizeof *outer * (size_t)nouter);
	for (int i = 0; i < nouter; i++)
		nrow *= loop_full(n, outer[i]);
	if (piece && piece < full_last)
		t.npiece = (full_last + piece - 1) / piece;
	t.piece = piece;
	t.rows = rows_of(n, outer, nouter);
	t.rows.rows *= t.npiece * nred;
	t.rows.grain = task_grain(n->machine, nrow * t.npiece * nred,
	                          (double)(t.npiece > 1 ? piece : full_last) * (double)(cost > 1 ? cost : 1));
	return t;
}

TaskAt
tasks_open(Emit *e, const Nest *n, const Tasks *t, Ix *ix)
{
	TaskAt at = {.lo = k64(e, 0), .red = k64(e, 0)};
	V rows = k64(e, t->npiece * t->nred), r;

	for (int i = 0; i < n->root->rank; i++)
		ix[i] = ix_k(e, 0);
	for (int i = 0; i < t->nouter; i++)
		rows = i_mul(e, rows, loop_extent(e, n, t->outer[i]));
	V lo = grains_lo(e, t->rows.grain);

	r = loop_open(e, lo, grains_hi(e, t->rows.grain, rows), 1);
	int nouter = t->nouter;

	if (t->crossed) {
		V ext = loop_extent(e, n, t->outer[--nouter]);

		loop_set(e, t->outer[nouter], ix_s(i_rem(e, r, ext)), ix);
		r = i_div(e, r, ext);
	}
	/* pieces of the last loop run faster: they lie side by side in what one piece of the others reads */
	at.hi = loop_extent(e, n, t->last);
	if (t->npiece > 1) {
		at.lo = i_mul_k(e, i_rem_k(e, r, t->npiece), t->piece);
		at.hi = i_min(e, i_add_k(e, at.lo, t->piece), at.hi);
		r = i_div_k(e, r, t->npiece);
	}
	if (t->nred > 1) {
		at.red = i_rem_k(e, r, t->nred);
		r = i_div_k(e, r, t->nred);
	}
	for (int i = nouter; i-- > 0;) {
		V ext = loop_extent(e, n, t->outer[i]);

		loop_set(e, t->outer[i], ix_s(i ? i_rem(e, r, ext) : r), ix);
		if (i)
			r = i_div(e, r, ext);
	}
	return at;
}

void
tasks_close(Emit *e)
{
	loop_close(e);
}

bool
group_random(const GroupCx *gc)
{
	for (uint32_t i = gc->first; i < gc->last; i++)
		if (!gc->g->op.at[i].dead && op_has((OpKind)gc->g->op.at[i].kind, T_RANDOM))
			return true;
	return false;
}

/* Exponentials and divisions weigh more; contractions and windows count their inner loops. */
int64_t
group_cost(const GroupCx *gc)
{
	int64_t c = 1;

	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];
		OpKind k = (OpKind)op->kind;
		int64_t out = op->nout ? type_elements(val_type(gc->g, op->out[0])) : 1;

		if (op->dead)
			continue;
		if (op_has(k, T_CONTRACT))
			c += (int64_t)(op_flops(gc->g, op) / (double)(out ? out : 1));
		else if (op_has(k, T_WINDOW))
			c += 4 * attr_ints(op, A_k, NULL)[0] * attr_ints(op, A_k, NULL)[1];
		else
			c += op_has(k, T_RANDOM)                                                          ? 40
			     : op_info[k].ew >= 0 && op_info[k].expr && op_info[k].expr->kind > EX_SELECT ? 8
			                                                                                  : 1;
	}
	return c;
}
