/* vectors.c: neighbours in memory, four or eight at a time: loaded before the elements are computed one by one, stored
 * behind that.
 *
 * In: what is stored, or what elementwise ops are made of, and the type whose elements the kernel goes over.   Out:
 * arrays x.. of what was loaded, y.. of what will be stored. What has as many elements as the kernel goes over is found
 * before (leaves); what repeats, as the values of a batch normalisation do for each pixel, when an element asks for it
 * (lanes): its load is put before the loop. */
#include "../contract/gemm.h"
#include <string.h>

bool
cu_vector_type(DType t)
{
	return t == DT_f32 || t == DT_f16 || t == DT_bf16;
}

bool
cu_vector_place(const Type *t, int64_t offset, const Type *like)
{
	return type_same_place(t, like) && cu_vector_type((DType)t->dtype) && offset % 16 == 0;
}

int
cu_inner_axis(const Type *t)
{
	int inner = -1;

	for (int i = 0; i < t->rank; i++)
		if (t->axis[t->perm[i]].n != 1 || t->axis[t->perm[i]].mul)
			inner = t->perm[i];
	return inner;
}

/* ---------------------------------------------------------------- what is read */
/* Is a value of type t the same for neighbours of `like`, and another from row to row? */
static bool
repeats(const Type *t, const Type *like)
{
	int inner = cu_inner_axis(like);
	bool rows = false;

	if (t->rank != like->rank || inner < 0 || !cu_vector_type((DType)t->dtype))
		return false;
	for (int i = 0; i < t->rank; i++) {
		bool one = t->axis[i].n == 1 && !t->axis[i].mul;

		if (i == inner ? !one : !one && !axis_same(t->axis[i], like->axis[i]))
			return false;
		rows |= !one;
	}
	return rows;
}

/* Values in memory of which elementwise ops make v, with elements where those of `like` are. */
void
cu_leaves_find(Cuda *c, Val v, const Type *like, Val stop, Leaves *l)
{
	const ValInfo *i = val_info(c->g, v);
	bool known = v.id == stop.id;

	for (uint32_t k = 0; k < l->at.n; k++)
		known |= l->at.at[k].v.id == v.id;
	if (known)
		return;
	if (!c->inside[v.id] || c->ready[v.id]) {
		if (cu_vector_place(&i->type, i->offset, like))
			vec_push(c->a, &l->at, ((Leaf){.v = v}));
		else if (l->repeats && !cu_input_is_addressed(c, v) && repeats(&i->type, like))
			vec_push(c->a, &l->at, ((Leaf){.v = v, .repeats = true}));
		return;
	}
	const Op *op = val_op(c->g, v);

	if (l->windows && c->neighbours(c->g, op) && type_same_place(&i->type, like)) {
		vec_push(c->a, &l->at, ((Leaf){.v = v, .window = op}));
		return;
	}
	if (!op_has((OpKind)op->kind, T_POINTWISE) && op->kind != OP_stop_gradient)
		return;
	for (int k = 0; k < op->nin; k++)
		cu_leaves_find(c, op->in[k], like, stop, l);
}

void
cu_leaves_open(Cuda *c, Leaves *l, int vec, int rows)
{
	l->vec = vec;
	l->rows = rows;
	for (uint32_t k = 0; k < l->at.n; k++) {
		Leaf *f = &l->at.at[k];

		if (f->window)
			continue;
		DType dt = (DType)val_type(c->g, f->v)->dtype;
		bool pairs = dtype_info[dt].bytes == 2;

		f->name = cu_fresh(c, 'x');
		if (f->repeats) {
			cu_line(c, "%s %s%s;", cu_memory_type(dt), f->name,
			        rows > 1 ? arena_printf(c->a, "[%d]", rows) : "");
			continue;
		}
		cu_line(c, "%s %s%s[%d];", pairs ? "unsigned" : cu_memory_type(dt), f->name,
		        rows > 1 ? arena_printf(c->a, "[%d]", rows) : "", pairs ? vec / 2 : vec);
	}
}

int
cu_leaves_read(const Leaves *l)
{
	int n = 0;

	for (uint32_t k = 0; k < l->at.n; k++)
		n += l->at.at[k].repeats ? 1 : l->vec;
	return n;
}

/* The indices of a value that repeats, beside those of the kernel's space. */
static void
repeated_at(const Type *t, const Ix *ix, Ix *at)
{
	for (int i = 0; i < t->rank; i++)
		at[i] = t->axis[i].n == 1 && !t->axis[i].mul ? "0" : ix[i];
}

static const char *
leaf_at(Cuda *c, const Leaves *l, const Leaf *f)
{
	return l->rows > 1 ? arena_printf(c->a, "%s[q]", f->name) : f->name;
}

void
cu_leaves_load(Cuda *c, Leaves *l, const Ix *ix)
{
	for (uint32_t k = 0; k < l->at.n; k++) {
		const ValInfo *i = val_info(c->g, l->at.at[k].v);

		if (l->at.at[k].made)
			continue;
		if (l->at.at[k].repeats) {
			Ix at[MAX_RANK];

			repeated_at(&i->type, ix, at);
			cu_line(c, "%s = *%s;", leaf_at(c, l, &l->at.at[k]), cu_address(c, &i->type, i->offset, at));
			continue;
		}
		if (l->at.at[k].window)
			l->at.at[k].name = c->windows(c, l->at.at[k].window, ix, l->vec);
		else
			cu_line(c, dtype_info[i->type.dtype].bytes == 2 ? "pairs%d(%s, %s);" : "take%d_32(%s, %s);",
			        l->vec, leaf_at(c, l, &l->at.at[k]), cu_address(c, &i->type, i->offset, ix));
	}
}

void
cu_leaves_put(Cuda *c, const Leaves *l, const Ix *ix, Ix lane)
{
	for (uint32_t k = 0; k < l->at.n; k++) {
		const Leaf *f = &l->at.at[k];
		DType dt = (DType)val_type(c->g, f->v)->dtype;

		if (f->repeats) {
			Ix at[MAX_RANK];

			repeated_at(val_type(c->g, f->v), ix, at);
			cu_memo_put(c, f->v, at, cu_cell_let(c, cu_from_memory(c, dt, leaf_at(c, l, f)), dt));
			continue;
		}
		bool pairs = !f->window && dtype_info[dt].bytes == 2;
		const char *x = arena_printf(c->a, pairs ? "half_at(%s, %s)" : "%s[%s]", leaf_at(c, l, f), lane);

		cu_memo_put(c, f->v, ix, cu_cell_let(c, f->window ? x : cu_from_memory(c, dt, x), dt));
	}
}

/* ---------------------------------------------------------------- what lies along neighbours */
void
cu_lanes_early(const Cuda *c, Lanes *l, const char *valid)
{
	*l = (Lanes){.place[0] = {c->body.n, c->depth}, .early = true, .valid = valid};
}

void
cu_lanes_begin(Cuda *c, Lanes *l, const Type *type, int axis, int vec, const Ix *first)
{
	l->place[1].at = c->body.n;
	l->place[1].depth = c->depth;
	l->type = type;
	l->axis = axis;
	l->vec = vec;
	memcpy(l->first, first, sizeof(Ix) * type->rank);
	l->lane = "";
	c->lanes = l;
}

void
cu_lanes_end(Cuda *c)
{
	c->lanes = NULL;
}

/* The indices of t's element beside the first neighbour, if ix is that beside element u: along t's innermost axis the
 * lane, along others one of the first neighbour's, in an axis of that extent.
 * *many: there are such others. */
static bool
lanes_first(const Lanes *l, const Type *t, const Ix *ix, Ix *first, bool *many)
{
	int inner = cu_inner_axis(t);

	if (inner < 0 || strcmp(ix[inner], l->lane) || !axis_same(t->axis[inner], l->type->axis[l->axis]) ||
	    t->axis[inner].mul || t->axis[inner].n % l->vec)
		return false;
	*many = false;
	for (int i = 0; i < t->rank; i++) {
		int k = 0;

		first[i] = i == inner ? l->first[l->axis] : ix[i];
		if (i == inner || (t->axis[i].n == 1 && !t->axis[i].mul))
			continue;
		*many = true;
		while (k < l->type->rank &&
		       (k == l->axis || strcmp(l->first[k], ix[i]) || !axis_same(l->type->axis[k], t->axis[i])))
			k++;
		if (k == l->type->rank)
			return false;
	}
	return true;
}

/* The array of the elements from that address on, loaded at a place of the lanes. */
static const char *
lanes_array(Cuda *c, Lanes *l, int place, DType dt, const char *address)
{
	const char *name, *valid = place == 0 && l->valid ? arena_printf(c->a, "if (%s) ", l->valid) : "";
	Buf text = {0}, behind = {0};
	size_t at = l->place[place].at;

	for (uint32_t k = 0; k < l->taken[place].n; k++)
		if (!strcmp(l->taken[place].at[k].text, address))
			return l->taken[place].at[k].name;
	name = cu_fresh(c, 'x');
	for (int i = 0; i <= l->place[place].depth; i++)
		buf_put(&text, "\t", 1);
	buf_printf(&text, "%s %s[%d]; %stake%d_%d(%s, %s);\n", cu_memory_type(dt), name, l->vec, valid, l->vec,
	           8 * dtype_info[dt].bytes, name, address);
	buf_put(&behind, c->body.at + at, c->body.n - at);
	c->body.n = at;
	buf_put(&c->body, text.at, text.n);
	buf_put(&c->body, behind.at, behind.n);
	for (int k = place; k < 2; k++)
		l->place[k].at += text.n;
	buf_free(&text);
	buf_free(&behind);
	vec_push(c->a, &l->taken[place], ((Cse){address, name}));
	return name;
}

bool
cu_lanes_take(Cuda *c, const Type *t, int64_t offset, const Ix *ix, Cell *x)
{
	Lanes *l = c->lanes;
	DType dt = (DType)t->dtype;
	Ix first[MAX_RANK];
	bool many;

	if (!l || !cu_vector_type(dt) || offset % 16 || !lanes_first(l, t, ix, first, &many))
		return false;
	const char *address = cu_address(c, t, offset, first);

	*x = cu_cell_let(
	        c,
	        cu_from_memory(c, dt, arena_printf(c->a, "%s[u]", lanes_array(c, l, many || !l->early, dt, address))),
	        dt);
	return true;
}

/* ---------------------------------------------------------------- a value and its neighbours */
Scope
cu_each_open(Cuda *c, int vec)
{
	if (vec == 1)
		return (Scope){0};
	cu_line(c, "#pragma unroll");
	return cu_scope_open(c, "for (int u = 0; u < %d; u++)", vec);
}

void
cu_each_close(Cuda *c, int vec, Scope s)
{
	if (vec > 1)
		cu_scope_close(c, s);
}

Cell
cu_near_open(Cuda *c, Near *n, Val v, int axis, const Ix *first, int vec)
{
	const Type *t = val_type(c->g, v);
	Ix ix[MAX_RANK];

	n->vec = vec;
	if (vec == 1)
		return cu_value_at(c, v, first);
	memcpy(ix, first, sizeof(Ix) * t->rank);
	cu_leaves_find(c, v, t, NOVAL, &n->leaves);
	cu_leaves_open(c, &n->leaves, vec, 1);
	cu_leaves_load(c, &n->leaves, first);
	cu_lanes_begin(c, &n->lanes, t, axis, vec, first);
	n->loop = cu_each_open(c, vec);
	ix[axis] = n->lanes.lane = cu_ix_add(c, first[axis], "u");
	cu_leaves_put(c, &n->leaves, ix, "u");
	return cu_value_at(c, v, ix);
}

void
cu_near_close(Cuda *c, const Near *n)
{
	cu_each_close(c, n->vec, n->loop);
	if (n->vec > 1)
		cu_lanes_end(c);
}

/* ---------------------------------------------------------------- what is stored */
const char *
cu_stored_open(Cuda *c, const Out *o, int vec)
{
	const char *name = cu_fresh(c, 'y');

	cu_line(c, "float %s[%d];", name, vec);
	return name;
}

void
cu_stored_put(Cuda *c, const Out *o, const char *name, const Ix *ix, Cell x)
{
	if (name)
		cu_line(c, "%s[u] = %s;", name, cu_unrounded(c, (DType)o->type->dtype, x.v));
	else
		cu_store_at(c, o->type, o->offset, ix, x);
}

void
cu_stored_close(Cuda *c, const Out *o, const char *name, int vec, const Ix *first)
{
	if (!name)
		return;
	cu_stores_at(c, o->offset);
	cu_line(c, "put%d_%s(%s, %s);", vec, o->type->dtype == DT_f32 ? "32" : dtype_info[o->type->dtype].name,
	        cu_address(c, o->type, o->offset, first), name);
}
