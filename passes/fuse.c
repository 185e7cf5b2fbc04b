/* fuse.c: kernels are groups of ops: elementwise ops with what they read, ending in stores, reductions, or a
 * contraction's operands.
 *
 * In: lowered graphs with layouts.   Out: Op.group for every op that needs a kernel; stage fused. Loads, and reshapes
 * that move nothing, stay outside groups.
 * The rule is about iteration spaces and kinds, never about operators' names:
 * - an elementwise op joins the group of its latest operand if that group walks the same space (extents and layout), so
 * that
 *    group numbers stay a topological order and no cycle can arise;
 *  - constants, random numbers, broadcasts and transpositions cost no memory: each reader has its own copy (clone);
 * - a cheap elementwise value that only same-sized elementwise ops and reductions read, and that needs at most one
 * tensor of its
 * own size, is recomputed in each reader rather than stored (the normalised activation of a batch norm, its mask); if
 * that tensor has half the bytes (pixels of 8 bits) and the target makes crops on its way, the readers may be crops and
 * reversed views as well;
 * - a value that broadcasting makes 8 times as large as all it is computed from is made anew by whatever reads it,
 * whatever that costs (fuse_broadcast.c);
 *  - reductions over the same axes of the same space share a group with the elementwise ops that feed only them;
 * - a cheap value that contractions (or poolings, if the target fuses them) read, and that no kernel before them could
 * make on its way, is made by them as they load it, if that
 * costs less than a kernel that stores it (fuse_prologue.c); one that others read too is stored by the first
 * contraction that reads it. Declines leave a verdict with the predicate and the bytes that a fusion would save. */
#include "fuse.h"
#include "red.h"
#include <math.h>
#include <string.h>

enum { SIBLING_ELEMENTS = 16384, BESIDE_OPS = 64 };

static Kind
kind_of(const Fuse *f, const Op *op)
{
	const Graph *g = f->g;

	if (op->kind == OP_load || plan_is_alias(g, op))
		return K_NONE;
	if (op_has(op->kind, T_CONST | T_RANDOM) || (op_has(op->kind, T_VIEW) && !op_has(op->kind, T_ALIAS)))
		return K_FREE;
	if (op_has(op->kind, T_POINTWISE) || fuse_is_crop(f, op))
		return K_MAP;
	if (op_has(op->kind, T_REDUCE))
		return K_RED;
	if (op_has(op->kind, T_WINDOW) && target_does(f->cx->target, TARGET_windows_fuse))
		return K_WINDOW;
	return op_has(op->kind, T_CONTRACT) ? K_CONTRACT : K_ALONE;
}

static uint64_t
reduced_axes(const Graph *g, const Op *op)
{
	int rank = val_type(g, op->in[0])->rank, n;
	const int64_t *axes = attr_ints(op, A_axes, &n);
	/* an index too, not the element alone: only with its like */
	uint64_t bits = red_indexes(op) ? 1ull << MAX_RANK : 0;

	for (int i = 0; i < n; i++)
		bits |= 1ull << (axes[i] < 0 ? axes[i] + rank : axes[i]);
	return bits;
}

/* Do the readers of value v, which has type t, compute no more of it than there is, if they make it themselves? Where
 * it costs less to read what it is computed from (narrow), the place where they read it may be another. */
static bool
readers_recompute(const Fuse *f, Val v, const Type *t, bool narrow, bool moves)
{
	for (uint32_t u = 0; u < f->users[v.id].n; u++) {
		uint32_t r = f->users[v.id].at[u];
		const Op *reader = &f->g->op.at[r];
		const Type *to = reader->nout ? val_type(f->g, reader->out[0]) : NULL;

		if (moves && f->sink[r]) /* an update, which writes in place */
			return false;
		if (f->kind[r] == K_RED || (f->kind[r] == K_MAP && fuse_same_space(to, t)))
			continue;
		/* a crop takes each element once, however large what it makes of them is */
		bool moved = narrow && to && (fuse_is_crop(f, reader) || type_elements(to) <= type_elements(t));

		if (!moved || !(fuse_is_crop(f, reader) ||
		                (f->kind[r] == K_FREE && readers_recompute(f, reader->out[0], to, true, moves))))
			return false;
	}
	return true;
}

/* Is op a gradient that another graph has left in a state? */
static bool
gradient_left(const Graph *g, const Op *op)
{
	return op->kind == OP_load && module_state(g->module, attr_str(op, A_state))->kind == ST_GRAD;
}

/* A gradient's mean over the shards: its sum comes from memory, which takes longer than to divide it by their
 * number. */
static bool
is_mean_of_sums(const Graph *g, const Op *op)
{
	const Op *sum = op->kind == OP_div ? val_op(g, op->in[0]) : NULL;

	return sum && gradient_left(g, sum) && type_elements(val_type(g, op->in[1])) == 1;
}

/* Which elementwise values are cheap to recompute: see the head of the file. */
static void
find_cheap(Fuse *f)
{
	Graph *g = f->g;

	for (uint32_t i = 0; i < f->nop; i++) {
		const Op *op = &g->op.at[i];
		const Type *t = op->nout ? val_type(g, op->out[0]) : NULL;
		uint32_t leaf = 0, ops = 1;

		if (f->kind[i] == K_FREE)
			f->cone[i] = 1;
		if (f->kind[i] != K_MAP || f->broadcast[i] ||
		    (expr_costly(op_info[op->kind].expr) && !is_mean_of_sums(g, op)))
			continue;
		bool ok = true;

		f->moves[i] = fuse_is_crop(f, op);
		for (int k = 0; k < op->nin && ok; k++) {
			const ValInfo *v = val_info(g, op->in[k]);
			uint32_t l = op->in[k].id;

			f->moves[i] |= v->op != UINT32_MAX && !f->stored[l] && f->cone[v->op] && f->moves[v->op];
			if (v->op != UINT32_MAX && !f->stored[l] && f->cone[v->op]) {
				ops += f->cone[v->op];
				l = f->leaf[v->op];
			} else if (type_elements(&v->type) < type_elements(t)) {
				l = 0;
			}
			if (l && leaf && l != leaf)
				ok = false;
			if (l)
				leaf = l;
		}
		if (!ok || ops > CHEAP_OPS)
			continue;
		/* what is moved and no more can be read there as well; pixels of 8 bits are read for less */
		ok = readers_recompute(f, op->out[0], t,
		                       target_does(f->cx->target, TARGET_crops_fuse) &&
		                               (fuse_is_crop(f, op) ||
		                                (leaf && 2 * dtype_info[g->val.at[leaf].type.dtype].bytes <=
		                                                 dtype_info[t->dtype].bytes)),
		                       f->moves[i] && !fuse_is_crop(f, op));
		f->cone[i] = (uint8_t)ops;
		f->leaf[i] = leaf;
		bool asked = ok && !f->stored[op->out[0].id],
		     chosen = asked && fuse_choose(f, "fuse.recompute", op, NULL, true);

		if (asked && (!chosen || pass_may(f->cx, "fuse.recompute")))
			verdict(f->cx,
			        (Verdict){.pass = "fuse",
			                  .rule = "fuse.recompute",
			                  .graph = g->name,
			                  .a = op->path,
			                  .opa = op_info[op->kind].name,
			                  .fired = chosen,
			                  .loc = op->loc,
			                  .why = pass_chose(
			                          f->cx, arena_printf(f->cx->module->arena, "%u cheap operation%s: %s",
			                                              ops, ops > 1 ? "s" : "",
			                                              chosen ? "recomputed by the elementwise ops and "
			                                                       "reductions that read it, never stored"
			                                                     : "stored all the same")),
			                  .value = ops,
			                  .bytes_saved = type_bytes(t)});
		else
			chosen = false;
		if (!chosen) {
			f->stored[op->out[0].id] = true;
			f->cone[i] = 0;
		}
	}
}

static int32_t
new_group(Fuse *f, Kind kind, const Type *space, uint32_t main_op)
{
	vec_push(f->a, &f->info, ((GroupInfo){.kind = kind, .main_op = main_op}));
	if (space)
		f->info.at[f->info.n - 1].space = *space;
	return (int32_t)f->info.n - 1;
}

static Val clone_into(Fuse *f, int32_t gid, Val v);

static void
put(Fuse *f, Op op, int32_t gid)
{
	bool late = gid >= 0 && (op_has((OpKind)op.kind, T_REDUCE) || fuse_is_late(f, &op, gid));

	op.group = gid;
	if (gid >= 0) {
		Val *in = arena_array(f->g->arena, Val, op.nin);

		for (int k = 0; k < op.nin; k++)
			in[k] = fuse_clonable(f, op.in[k]) || fuse_view_of(f, op.in[k], gid)
			                ? clone_into(f, gid, op.in[k])
			                : op.in[k];
		op.in = in;
		f->info.at[gid].nop++;
		f->info.at[gid].moves |= fuse_is_crop(f, &op);
		for (int k = 0; k < op.nin; k++)
			if (in[k].id < f->nval && f->state_of[in[k].id] >= 0 &&
			    f->last_reader[f->state_of[in[k].id]] < gid)
				f->last_reader[f->state_of[in[k].id]] = gid;
	}
	vec_push(f->g->arena, &f->out, op);
	/* a view outside groups stands where its operand does; one that waits, where the later of its operands does */
	int32_t stands = gid < 0 && op.nin ? f->group_of[op.in[0].id] : gid;

	if (op_has((OpKind)op.kind, T_ORDER) && f->group_of[op.in[1].id] > stands)
		stands = f->group_of[op.in[1].id];
	for (int k = 0; k < op.nout; k++)
		if (op.out[k].id < f->nval) {
			f->group_of[op.out[k].id] = stands;
			f->late[op.out[k].id] = late;
		}
}

/* The group's own copy of a free or cheap value. */
static Val
clone_into(Fuse *f, int32_t gid, Val v)
{
	GroupInfo *gi = &f->info.at[gid];

	for (uint32_t i = 0; i < gi->clone_of.n; i++)
		if (gi->clone_of.at[i].id == v.id)
			return gi->clone.at[i];
	Graph *g = f->g;
	Op copy = g->op.at[g->val.at[v.id].op];
	Val *out = arena_array(g->arena, Val, copy.nout);

	out[0] = graph_add_val(g, g->val.at[v.id].type, g->val.at[v.id].name, 0, 0);
	copy.out = out;
	vec_push(f->a, &gi->clone_of, v);
	vec_push(f->a, &gi->clone, out[0]);
	put(f, copy, gid);
	return out[0];
}

/* Latest group among the operands (through the clones they will bring); -1 if none. */
static int32_t
latest_group(const Fuse *f, const Op *op)
{
	int32_t last = -1;

	for (int k = 0; k < op->nin; k++) {
		uint32_t d = f->g->val.at[op->in[k].id].op;
		int32_t gid = -1;

		if (fuse_clonable(f, op->in[k]))
			gid = latest_group(f, &f->g->op.at[d]);
		else if (op->in[k].id < f->nval)
			gid = f->group_of[op->in[k].id];
		if (gid > last)
			last = gid;
	}
	return last;
}

/* The op of group gid that op reads, through views and the clones op brings; UINT32_MAX if none. */
static uint32_t
producer(const Fuse *f, const Op *op, int32_t gid)
{
	for (int k = 0; k < op->nin; k++) {
		uint32_t v = op->in[k].id, d = f->g->val.at[v].op, found = UINT32_MAX;

		if (d == UINT32_MAX || d >= f->nop)
			continue;
		if (fuse_clonable(f, op->in[k]) || (f->kind[d] == K_NONE && f->group_of[v] == gid))
			found = producer(f, &f->g->op.at[d], gid);
		else if (f->group_of[v] == gid)
			found = d;
		if (found != UINT32_MAX)
			return found;
	}
	return UINT32_MAX;
}

/* Bytes written and read again where op reads group gid through memory. */
static int64_t
traffic(const Fuse *f, const Op *op, int32_t gid)
{
	uint32_t from = producer(f, op, gid);

	return from == UINT32_MAX ? 0 : 2 * type_bytes(val_type(f->g, f->g->op.at[from].out[0]));
}

/* Op and what it reads of group gid (or what the group is named after): fused, or why not. */
static void
tell(Fuse *f, const Op *op, int32_t gid, bool fired, const char *rule, const char *why, double value, int64_t bytes)
{
	uint32_t from = producer(f, op, gid);
	const Op *b = &f->g->op.at[from != UINT32_MAX ? from : f->info.at[gid].main_op];

	verdict(f->cx, (Verdict){.pass = "fuse",
	                         .rule = rule,
	                         .graph = f->g->name,
	                         .a = b->path,
	                         .b = op->path,
	                         .opa = op_info[b->kind].name,
	                         .opb = op_info[op->kind].name,
	                         .fired = fired,
	                         .why = why,
	                         .value = value,
	                         .bytes_saved = bytes,
	                         .loc = op->loc});
}

/* Does op, with what will be cloned for it, read v? */
static bool
reads(const Fuse *f, const Op *op, Val v)
{
	for (int k = 0; k < op->nin; k++)
		if (op->in[k].id == v.id || (fuse_clonable(f, op->in[k]) && reads(f, val_op(f->g, op->in[k]), v)))
			return true;
	return false;
}

/* Do both, with what will be cloned for them, read the same tensor of n elements that is no parameter's or slot's old
 * value: a gradient? */
static bool
same_gradient(const Fuse *f, const Op *a, const Op *b, int64_t n)
{
	for (int k = 0; k < a->nin; k++) {
		const Op *def = val_op(f->g, a->in[k]);

		if (fuse_clonable(f, a->in[k])
		            ? same_gradient(f, def, b, n)
		            : def && (def->kind != OP_load || gradient_left(f->g, def)) &&
		                      type_elements(val_type(f->g, a->in[k])) == n &&
		                      reads(f, b, a->in[k]))
			return true;
	}
	return false;
}

/* An update may run beside another of its layer and shape, if both are small or read the same gradient (Adam's two
 * moments): one kernel for both. It reads nothing of groups from there on. Of other layers: no, one would wait for the
 * other's gradient. */
static int32_t
find_update(Fuse *f, const Op *op, uint32_t index, const Type *t)
{
	int32_t last = latest_group(f, op);

	if (!f->sink[index] || !op->path || !*op->path)
		return -1;
	for (int32_t i = (int32_t)f->info.n - 1; i > last && i >= (int32_t)f->info.n - 8; i--) {
		const GroupInfo *gi = &f->info.at[i];

		const Op *main_op = &f->g->op.at[gi->main_op];

		if (gi->kind == K_MAP && !gi->reduces && f->sink[gi->main_op] && main_op->path &&
		    !strcmp(main_op->path, op->path) && gi->nop < BESIDE_OPS && fuse_same_space(&gi->space, t) &&
		    (type_elements(t) <= SIBLING_ELEMENTS || same_gradient(f, op, main_op, type_elements(t))) &&
		    fuse_choose(f, "fuse.beside", op, NULL, true) && pass_may(f->cx, "fuse.beside"))
			return i;
	}
	return -1;
}

static void
place_map(Fuse *f, const Op *op, uint32_t index)
{
	const Type *t = val_type(f->g, op->out[0]);
	int32_t gid = f->enabled ? latest_group(f, op) : -1;

	if (gid < 0 && f->enabled && fuse_prologue(f, index))
		return;
	if (gid >= 0) {
		double value;
		const char *rule, *why = fuse_why_apart(f, gid, op, t, &rule, &value);

		if (why) {
			if (fuse_prologue(f, index))
				return;
			tell(f, op, gid, false, rule, why, value, traffic(f, op, gid));
			gid = -1;
		} else {
			tell(f, op, gid, true, rule, arena_printf(f->a, "both walk %s", fuse_space_text(f, t)), NAN,
			     traffic(f, op, gid));
		}
	}
	if (gid < 0 && f->enabled) {
		gid = find_update(f, op, index, t);
		if (gid >= 0)
			tell(f, op, gid, true, "fuse.beside",
			     "an update beside another of its layer, small or of the same gradient: one kernel for "
			     "both",
			     NAN, 0);
	}
	if (gid < 0)
		gid = new_group(f, K_MAP, t, index);
	put(f, *op, gid);
}

/* A group of reductions over the same axes and space into which op may go: all its operands come from earlier groups.
 * Where launches are joined, or processes make them in parts, totals of different tensors have a group each. */
static int32_t
find_reduction(Fuse *f, const Op *op, const Type *space, uint64_t axes)
{
	int32_t last = latest_group(f, op);
	bool apart = fuse_is_total(f, op, axes);

	for (int32_t i = (int32_t)f->info.n - 1; i > last && i >= (int32_t)f->info.n - 8; i--) {
		GroupInfo *gi = &f->info.at[i];

		if (gi->kind == K_RED && !gi->alone && gi->axes == axes && gi->nop < 24 &&
		    fuse_same_space(&gi->space, space) &&
		    (!apart || same_gradient(f, op, &f->g->op.at[gi->red_op], type_elements(space)))
		    && fuse_choose(f, "fuse.reduce", op, NULL, true) && pass_may(f->cx, "fuse.reduce"))
			return i;
	}
	return -1;
}

static void
place_reduction(Fuse *f, const Op *op, uint32_t index)
{
	const Type *t = val_type(f->g, op->in[0]);
	uint64_t axes = reduced_axes(f->g, op);
	bool alone = f->enabled && fuse_is_counted(f, op);
	int32_t gid = f->enabled && !alone ? find_reduction(f, op, t, axes) : -1,
	        from = f->enabled && gid < 0 && !alone ? latest_group(f, op) : -1;

	if (gid >= 0) {
		tell(f, op, gid, true, "fuse.reduce", "the same axes of the same space: one pass over the operands",
		     NAN, type_bytes(t));
	} else if (from >= 0) {
		const char *why = fuse_why_unreduced(f, from, op, t, axes);

		tell(f, op, from, !why, "fuse.reduce", why ? why : "reduced where it is made", NAN, type_bytes(t));
		gid = why ? -1 : from;
	}
	if (gid < 0)
		gid = new_group(f, K_RED, t, index);
	f->info.at[gid].reduces = true;
	f->info.at[gid].alone = alone;
	f->info.at[gid].axes = axes;
	f->info.at[gid].red_op = index;
	put(f, *op, gid);
}

/* How an operand of a kernel that is no elementwise one comes to it. */
static void
tell_operand(Fuse *f, const Op *op, int k, Kind kind)
{
	uint32_t d = f->g->val.at[op->in[k].id].op;
	int32_t from = f->group_of[op->in[k].id];
	int64_t bytes = 2 * type_bytes(val_type(f->g, op->in[k]));
	const Lead *lead = fuse_makes(kind) && d != UINT32_MAX ? &f->lead[d] : NULL;

	if (lead && lead->why) {
		verdict(f->cx, (Verdict){.pass = "fuse",
		                         .rule = "fuse.prologue",
		                         .graph = f->g->name,
		                         .a = f->g->op.at[d].path,
		                         .b = op->path,
		                         .opa = op_info[f->g->op.at[d].kind].name,
		                         .opb = op_info[op->kind].name,
		                         .fired = lead->taken,
		                         .why = lead->why,
		                         .value = lead->ratio,
		                         .bytes_saved = bytes,
		                         .loc = op->loc});
		return;
	}
	if (from < 0 || (f->info.at[from].kind != K_MAP && !fuse_makes(f->info.at[from].kind)))
		return;
	tell(f, op, from, false, "fuse.prologue",
	     fuse_makes(kind) ? "the kernel before makes it on its way and stores it: reading it costs no more than "
	                        "reading what it is computed from"
	                      : "a kernel of this kind reads its operand from memory",
	     NAN, bytes);
}

/* Contractions, windows, moves: kernels of one op, but for what contractions make of an operand as they load it. */
static void
place_alone(Fuse *f, const Op *op, uint32_t index, Kind kind)
{
	int32_t gid = f->enabled && kind == K_CONTRACT ? fuse_carries(f, op, latest_group(f, op)) : -1;

	for (int k = gid < 0 ? 0 : 1; k < op->nin && f->enabled && op->nout; k++)
		tell_operand(f, op, k, kind);
	if (gid >= 0) {
		f->info.at[gid].kind = kind;
		f->info.at[gid].space = *val_type(f->g, op->out[0]);
		f->info.at[gid].main_op = index;
	} else {
		gid = new_group(f, kind, op->nout ? val_type(f->g, op->out[0]) : NULL, index);
	}
	put(f, *op, gid);
}

/* Is v a view of a contraction's result in another shape? Its kernel writes each element where its own shape has it. */
static bool
in_another_shape(const Fuse *f, Val v, int32_t gid)
{
	uint32_t d = v.id < f->nval ? f->g->val.at[v.id].op : UINT32_MAX;

	return d != UINT32_MAX && f->kind[d] == K_NONE && f->info.at[gid].kind == K_CONTRACT && !f->late[v.id] &&
	       !type_same_shape(val_type(f->g, v), &f->info.at[gid].space);
}

static void
place_store(Fuse *f, const Op *op, uint32_t index)
{
	int32_t gid = !f->enabled ? -1 : op->in[0].id < f->nval ? f->group_of[op->in[0].id] : op->group;

	/* stores stand behind all else: every reader of the old value has its group. A later one would have to run
	 * before this. */
	if (gid >= 0 &&
	    ((f->info.at[gid].kind != K_MAP && f->info.at[gid].kind != K_CONTRACT) ||
	     in_another_shape(f, op->in[0], gid) ||
	     f->last_reader[module_state(f->g->module, attr_str(op, A_state)) - f->g->module->state.at] > gid))
		gid = -1;
	put(f, *op, gid >= 0 ? gid : new_group(f, K_ALONE, NULL, index));
}

/* Stores whose value is another state's old value would wait for each other's readers (a and b swapped): such a value
 * is copied first, as all stores come behind all copies. A cast to its own type is the copy. */
static void
copy_old_value(Fuse *f, Op *op, uint32_t index)
{
	Graph *g = f->g;
	int32_t from = op->in[0].id < f->nval ? f->state_of[op->in[0].id] : -1;
	Op copy = {.kind = OP_cast, .nin = 1, .nout = 1, .group = -1, .loc = op->loc, .path = op->path};

	if (from < 0 || !strcmp(g->module->state.at[from].name, attr_str(op, A_state)))
		return;
	copy.in = op->in;
	copy.out = arena_array(g->arena, Val, 1);
	copy.out[0] = graph_add_val(g, *val_type(g, op->in[0]), g->val.at[op->in[0].id].name, 0, 0);
	put(f, copy, new_group(f, K_MAP, val_type(g, copy.out[0]), index));
	op->in = copy.out;
	op->group = (int32_t)f->info.n - 1;
}

static void
place_stores(Fuse *f)
{
	uint32_t n = 0, *at = arena_array(f->a, uint32_t, f->nop);
	Op *store = arena_array(f->a, Op, f->nop);

	for (uint32_t i = 0; i < f->nop; i++)
		if (f->g->op.at[i].kind == OP_store) {
			store[n] = f->g->op.at[i];
			at[n] = i;
			copy_old_value(f, &store[n], i);
			n++;
		}
	for (uint32_t i = 0; i < n; i++)
		place_store(f, &store[i], at[i]);
}

/* "conv2d_stem_conv2d0": operator and layer, letters a C compiler takes; numbers make it unique. */
static const char *
group_name(Fuse *f, const GroupInfo *gi, uint32_t number)
{
	const Op *op = &f->g->op.at[gi->main_op];
	char *s = arena_printf(f->g->arena, "%s_%s_%s_%u", f->g->name, op_info[op->kind].name, op->path ? op->path : "",
	                       number);

	for (char *p = s; *p; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9')))
			*p = '_';
	return s;
}

/* Users come after what they use, so one pass from the end does. */
static void
find_sinks(Fuse *f)
{
	for (uint32_t i = f->nop; i-- > 0;) {
		const Op *op = &f->g->op.at[i];
		bool sink = op->nout > 0, used = false;

		for (int k = 0; k < op->nout; k++) {
			sink &= !f->stored[op->out[k].id];
			for (uint32_t u = 0; u < f->users[op->out[k].id].n; u++) {
				uint32_t r = f->users[op->out[k].id].at[u];

				sink &= f->g->op.at[r].kind == OP_store || f->sink[r];
				used = true;
			}
		}
		f->sink[i] = sink && used;
	}
}

static void
fuse_tables(Fuse *f)
{
	Graph *g = f->g;

	f->kind = arena_array(f->a, Kind, f->nop);
	f->cone = arena_array(f->a, uint8_t, f->nop);
	f->broadcast = arena_array(f->a, bool, f->nop);
	f->moves = arena_array(f->a, bool, f->nop);
	f->leaf = arena_array(f->a, uint32_t, f->nop);
	f->stored = arena_array(f->a, bool, f->nval);
	f->group_of = arena_array(f->a, int32_t, f->nval);
	f->late = arena_array(f->a, bool, f->nval);
	f->sink = arena_array(f->a, bool, f->nop);
	f->lead = arena_alloc(f->a, sizeof *f->lead * f->nop);
	f->pinned = arena_array(f->a, bool, f->nval);
	f->users = arena_alloc(f->a, sizeof *f->users * f->nval);
	f->state_of = arena_array(f->a, int32_t, f->nval);
	f->last_reader = arena_array(f->a, int32_t, g->module->state.n);
	for (uint32_t v = 0; v < f->nval; v++)
		f->group_of[v] = f->state_of[v] = -1;
	for (uint32_t i = 0; i < g->module->state.n; i++)
		f->last_reader[i] = -1;
	for (uint32_t i = 0; i < f->nop; i++) {
		const Op *op = &g->op.at[i];

		f->kind[i] = kind_of(f, op);
		if (op->kind == OP_load)
			f->state_of[op->out[0].id] =
			        (int32_t)(module_state(g->module, attr_str(op, A_state)) - g->module->state.at);
		else if (f->kind[i] == K_NONE)
			f->state_of[op->out[0].id] = f->state_of[op->in[0].id];
		for (int k = 0; k < op->nin; k++)
			vec_push(f->a, &f->users[op->in[k].id], i);
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		f->pinned[g->result.at[i].v.id] = f->stored[g->result.at[i].v.id] = true;
	find_sinks(f);
	/* kernels of their own, views outside groups and stores read memory */
	for (uint32_t i = 0; i < f->nop; i++)
		if (!f->enabled || f->kind[i] == K_ALONE || fuse_makes(f->kind[i]) || f->kind[i] == K_NONE)
			for (int k = 0; k < g->op.at[i].nin; k++) {
				f->stored[g->op.at[i].in[k].id] = true;
				f->pinned[g->op.at[i].in[k].id] |= !fuse_makes(f->kind[i]);
			}
}

static void
place_op(Fuse *f, const Op *op, uint32_t index)
{
	switch (f->kind[index]) {
	case K_NONE: put(f, *op, -1); break;
	case K_FREE:
		if (f->stored[op->out[0].id])
			put(f, *op, new_group(f, K_MAP, val_type(f->g, op->out[0]), index));
		break;
	case K_MAP:
		if (!fuse_clonable(f, op->out[0]))
			place_map(f, op, index);
		break;
	case K_RED: place_reduction(f, op, index); break;
	case K_CONTRACT: case K_WINDOW: place_alone(f, op, index, f->kind[index]); break;
	case K_ALONE:
		if (op->kind != OP_store)
			place_alone(f, op, index, K_ALONE);
		break;
	}
}

/* Views outside groups that nobody reads, as every reader has its own copy. */
static void
drop_views(Fuse *f)
{
	Graph *g = f->g;
	uint32_t *uses = arena_array(f->a, uint32_t, g->val.n), n = 0;

	for (uint32_t i = 0; i < g->result.n; i++)
		uses[g->result.at[i].v.id]++;
	for (uint32_t i = 0; i < f->out.n; i++)
		for (int k = 0; k < f->out.at[i].nin; k++)
			uses[f->out.at[i].in[k].id]++;
	for (uint32_t i = f->out.n; i-- > 0;) {
		Op *op = &f->out.at[i];

		op->dead = op->nout == 1 && plan_is_alias(g, op) && !uses[op->out[0].id];
		for (int k = 0; op->dead && k < op->nin; k++)
			uses[op->in[k].id]--;
	}
	for (uint32_t i = 0; i < f->out.n; i++)
		if (!f->out.at[i].dead)
			f->out.at[n++] = f->out.at[i];
	f->out.n = n;
}

/* The graph made of what was put, and its groups. */
static void
take_over(Fuse *f)
{
	Graph *g = f->g;

	for (uint32_t i = 0; i < f->info.n; i++)
		vec_push(g->arena, &g->group,
		         ((Group){.name = group_name(f, &f->info.at[i], i),
		                  .workspace_offset = -1,
		                  .prepacked_offset = -1}));
	g->op.at = f->out.at;
	g->op.n = f->out.n;
	g->op.cap = f->out.cap;
	for (uint32_t v = 0; v < g->val.n; v++)
		g->val.at[v].op = UINT32_MAX;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout; k++) {
			ValInfo *v = val_info(g, g->op.at[i].out[k]);

			v->op = i;
			v->index = (uint16_t)k;
			v->offset = -1;
		}
	graph_compact(g);
}

/* Small values computed from states but gradients, constants and the step's numbers alone (the factor and offset of a
 * normalisation that does not train, Adam's corrections, the rate) come first: an op joins the group of its latest
 * operand, and that should be the one that makes its activation or gradient. */
static void
hoist_parameters(Fuse *f)
{
	enum { SMALL = 1 << 14 };
	Graph *g = f->g;
	bool *early = arena_array(f->a, bool, g->val.n), *first = arena_array(f->a, bool, g->op.n);
	Op *op = arena_array(f->a, Op, g->op.n);
	uint32_t n = 0;

	memcpy(op, g->op.at, g->op.n * sizeof *op);
	for (uint32_t i = 0; i < g->input.n; i++)
		early[g->input.at[i].v.id] = g->input.at[i].kind != IN_DATA;
	for (uint32_t i = 0; i < g->op.n; i++) {
		first[i] = op[i].nout &&
		           (op_has((OpKind)op[i].kind, T_POINTWISE | T_VIEW | T_CONST) || op[i].kind == OP_load);
		for (int k = 0; k < op[i].nin; k++)
			first[i] &= early[op[i].in[k].id];
		for (int k = 0; k < op[i].nout; k++)
			first[i] &= type_elements(val_type(g, op[i].out[k])) <= SMALL &&
			            !type_marked(val_type(g, op[i].out[k]));
		first[i] = first[i] && !gradient_left(g, &op[i]) && pass_may(f->cx, "fuse.hoist");
		for (int k = 0; k < op[i].nout; k++)
			early[op[i].out[k].id] = first[i];
	}
	for (int late = 0; late < 2; late++)
		for (uint32_t i = 0; i < g->op.n; i++) {
			if (first[i] == late)
				continue;
			for (int k = 0; k < op[i].nout; k++)
				g->val.at[op[i].out[k].id].op = n;
			g->op.at[n++] = op[i];
		}
}

bool
pass_fuse(Graph *g, PassCtx *cx)
{
	Fuse f = {.g = g,
	          .cx = cx,
	          .a = cx->scratch,
	          .nval = g->val.n,
	          .nop = g->op.n,
	          .enabled = pass_enabled(cx, "fuse")};

	if (f.enabled)
		hoist_parameters(&f);
	fuse_tables(&f);
	if (f.enabled) {
		fuse_find_broadcast(&f);
		find_cheap(&f);
		fuse_find_prologues(&f);
	}
	for (uint32_t i = 0; i < f.nop; i++) {
		Op op = g->op.at[i];

		place_op(&f, &op, i);
	}
	place_stores(&f);
	drop_views(&f);
	take_over(&f);
	return true;
}
