/* fuse_rules.c: may this op join that group? The predicates of pass fuse, each with the sentence that explain prints
 * when it fails.
 *
 * In: the tables of a pass in progress (fuse.h).   Out: NULL, or why not.
 * A group walks one space. Its values are of that space; or, once its reductions are complete, of what they keep of it
 * ("late"), or of the whole space again, if the target holds a row of it (softmax, layer normalisation). Spaces are
 * compared as walks: the extents in memory order without those of one element. */
#include "fuse.h"
#include <math.h>
#include <string.h>

enum { GROUP_OPS = 96, NUMBER_OPS = 4096 };
static const char askew[] =
        "it reads the producer through a view that puts the elements elsewhere, or what must wait for all of it";
static const char crossed[] = "it reads what the reduction makes of a row beside elements of another row";

bool
fuse_same_space(const Type *a, const Type *b)
{
	if (a->rank != b->rank || memcmp(a->perm, b->perm, a->rank))
		return false;
	for (int i = 0; i < a->rank; i++)
		if (!axis_same(a->axis[i], b->axis[i]))
			return false;
	return true;
}

bool
fuse_choose(Fuse *f, const char *rule, const Op *op, const Lead *l, bool predicted)
{
	uint32_t v = op->out[0].id, n = f->users[v].n;
	const Op **with = arena_array(f->a, const Op *, n);
	int nwith = 0;

	for (uint32_t u = 0; u < n; u++)
		if (!u || f->users[v].at[u] != f->users[v].at[u - 1])
			with[nwith++] = &f->g->op.at[f->users[v].at[u]];
	const char *more = l ? arena_printf(f->a, "ops=%u of=%u.%u", l->ops, l->nleaf, l->nbyte) : NULL;

	return pass_choose(f->cx, rule, &(ChoiceAt){.g = f->g, .op = op, .with = with, .nwith = nwith, .more = more,
		.ratio = l ? l->ratio : 0}, 2, predicted);
}

bool
fuse_is_crop(const Fuse *f, const Op *op)
{
	return op_has((OpKind)op->kind, T_CROP) && target_does(f->cx->target, TARGET_crops_fuse);
}

bool
fuse_makes(Kind k)
{
	return k == K_CONTRACT || k == K_WINDOW;
}

static int
walk_of(const Type *t, uint64_t without, Axis *r)
{
	int n = 0;

	for (int i = 0; i < t->rank; i++) {
		Axis a = t->axis[t->perm[i]];

		if (!(without >> t->perm[i] & 1) && (a.n != 1 || a.mul))
			r[n++] = a;
	}
	return n;
}

bool
fuse_same_walk(const Type *a, uint64_t without, const Type *b)
{
	Axis x[MAX_RANK], y[MAX_RANK];
	int n = walk_of(a, without, x);

	if (n != walk_of(b, 0, y))
		return false;
	for (int i = 0; i < n; i++)
		if (!axis_same(x[i], y[i]))
			return false;
	return true;
}

const char *
fuse_space_text(Fuse *f, const Type *t)
{
	Buf b = {0};

	type_print(&b, t);
	const char *s = arena_strdup(f->a, b.at);

	buf_free(&b);
	return s;
}

bool
fuse_clonable(const Fuse *f, Val v)
{
	uint32_t d = v.id < f->nval ? f->g->val.at[v.id].op : UINT32_MAX;

	return d != UINT32_MAX && d < f->nop && !f->stored[v.id] &&
	       (f->kind[d] == K_FREE || (f->kind[d] == K_MAP && f->cone[d]));
}

/* The view outside groups that makes v of something in group gid; NULL if v is none. */
static const Op *
view_from(const Fuse *f, Val v, int32_t gid)
{
	uint32_t d = v.id < f->nval ? f->g->val.at[v.id].op : UINT32_MAX;

	if (d == UINT32_MAX || d >= f->nop || f->kind[d] != K_NONE || f->g->op.at[d].kind == OP_load ||
	    f->group_of[v.id] != gid)
		return NULL;
	if (op_has((OpKind)f->g->op.at[d].kind, T_ORDER))
		return NULL;
	return &f->g->op.at[d];
}

/* Is v a value that must not be read before group gid is complete? */
static bool
waits_for(const Fuse *f, Val v, int32_t gid)
{
	uint32_t d = v.id < f->nval ? f->g->val.at[v.id].op : UINT32_MAX;

	if (d == UINT32_MAX || d >= f->nop || f->group_of[v.id] != gid)
		return false;
	const Op *op = &f->g->op.at[d];

	return op_has((OpKind)op->kind, T_ORDER) || (view_from(f, v, gid) && waits_for(f, op->in[0], gid));
}

bool
fuse_view_of(const Fuse *f, Val v, int32_t gid)
{
	const Op *view = view_from(f, v, gid);

	return view && !waits_for(f, view->in[0], gid) &&
	       fuse_same_walk(val_type(f->g, view->in[0]), 0, val_type(f->g, v)) &&
	       (!view_from(f, view->in[0], gid) || fuse_view_of(f, view->in[0], gid));
}

static bool
late_val(const Fuse *f, Val v, int32_t gid)
{
	const Op *view = view_from(f, v, gid);

	if (view)
		return late_val(f, view->in[0], gid);
	if (fuse_clonable(f, v))
		return fuse_is_late(f, val_op(f->g, v), gid);
	return v.id < f->nval && f->group_of[v.id] == gid && f->late[v.id];
}

bool
fuse_is_late(const Fuse *f, const Op *op, int32_t gid)
{
	for (int k = 0; k < op->nin; k++)
		if (late_val(f, op->in[k], gid))
			return true;
	return false;
}

/* Does op read group gid's own value at another place than its own? A kernel of elementwise ops computes what is asked
 * for; a contraction has each element once, at its time, and what a reduction makes of a row is there for that row
 * alone. */
static bool
moves_own(const Fuse *f, const Op *op, int32_t gid)
{
	bool view = op_has((OpKind)op->kind, T_VIEW) && !op_has((OpKind)op->kind, T_ALIAS) && op->kind != OP_expand;

	if (!view && !fuse_is_crop(f, op))
		return false;
	if (late_val(f, op->in[0], gid))
		return true;
	if (view && !fuse_makes(f->info.at[gid].kind))
		return false;
	return op->in[0].id < f->nval && !fuse_clonable(f, op->in[0]) && f->group_of[op->in[0].id] == gid;
}

/* The axes of t that have elements, but those in `without`, in memory order, counted from the last, as broadcasting
 * does. */
static int
places_of(const Type *t, uint64_t without, int *r)
{
	int n = 0;

	for (int i = 0; i < t->rank; i++)
		if (!(without >> t->perm[i] & 1) && (t->axis[t->perm[i]].n != 1 || t->axis[t->perm[i]].mul))
			r[n++] = t->rank - t->perm[i];
	return n;
}

/* Does op, which walks the space of group gid, take what the reductions keep of it for other rows than they made it of?
 * x - sum(x, axes = 1) of as many rows as columns has the right extents, and the sums lie along the columns. */
static bool
crosses_rows(const Fuse *f, const Op *op, int32_t gid)
{
	const GroupInfo *gi = &f->info.at[gid];
	int kept[MAX_RANK], own[MAX_RANK];

	if (!gi->reduces || !(op_has((OpKind)op->kind, T_EW) || op->kind == OP_expand) ||
	    !fuse_same_space(&gi->space, val_type(f->g, op->out[0])))
		return false;
	int n = places_of(&gi->space, gi->axes, kept);

	for (int k = 0; k < op->nin; k++) {
		const Type *t = val_type(f->g, op->in[k]);

		if (!late_val(f, op->in[k], gid) || fuse_same_space(&gi->space, t))
			continue;
		if (places_of(t, 0, own) != n || memcmp(own, kept, (size_t)n * sizeof *own))
			return true;
	}
	return false;
}

/* Does op read group gid through a view or a crop that puts the elements elsewhere, or what must wait for all of it, or
 * what is made of other rows? Why it must not; NULL. */
static const char *
reads_askew(const Fuse *f, const Op *op, int32_t gid)
{
	if (moves_own(f, op, gid))
		return askew;
	if (crosses_rows(f, op, gid))
		return crossed;
	for (int k = 0; k < op->nin; k++) {
		if (waits_for(f, op->in[k], gid) || (view_from(f, op->in[k], gid) && !fuse_view_of(f, op->in[k], gid)))
			return askew;
		const char *why = fuse_clonable(f, op->in[k]) ? reads_askew(f, val_op(f->g, op->in[k]), gid) : NULL;
		if (why)
			return why;
	}
	return NULL;
}

/* Does op, with what will be cloned for it, read a whole state of n elements? */
static bool
reads_state(const Fuse *f, const Op *op, int64_t n)
{
	for (int k = 0; k < op->nin; k++) {
		const Op *def = op->in[k].id < f->nval ? val_op(f->g, op->in[k]) : NULL;

		if (!def || n <= 1)
			continue;
		if (def->kind == OP_load ? type_elements(val_type(f->g, op->in[k])) == n
		                         : fuse_clonable(f, op->in[k]) && reads_state(f, def, n))
			return true;
	}
	return false;
}

/* Only stores come of it: part of an update. */
static bool
is_update(const Fuse *f, const Op *op, const Type *t)
{
	return f->sink[val_info(f->g, op->out[0])->op] && reads_state(f, op, type_elements(t));
}

/* A group that walks one element computes with numbers alone: those of all gradients may go into one. */
static uint32_t
most_ops(const GroupInfo *gi)
{
	return gi->kind == K_MAP && type_elements(&gi->space) == 1 ? NUMBER_OPS : GROUP_OPS;
}

static const char *
ask_target(const Fuse *f, const Op *member, const Op *op)
{
	return f->cx->target && f->cx->target->may_fuse ? f->cx->target->may_fuse(f->cx->target, f->g, member, op)
	                                                : "the target takes nothing of the kind";
}

static const Op *
op_at(const Fuse *f, uint32_t i)
{
	return &f->g->op.at[i];
}

bool
fuse_is_total(const Fuse *f, const Op *reduction, uint64_t axes)
{
	const Type *t = val_type(f->g, reduction->in[0]);
	Axis left[MAX_RANK];

	const Setting *shards = setting(f->g->module, "train.shards");
	/* with --shard-optimizer; and without, as groups enter the order of sums and the option no result */
	bool in_parts = shards && shards->i > 1 && !strcmp(f->g->name, "update");

	return (target_does(f->cx->target, TARGET_joins_launches) || in_parts) && walk_of(t, axes, left) == 0 &&
	       walk_of(t, 0, left) > 0;
}

/* Does op, with what will be cloned for it, need what a reduction of another group than gid makes? */
static bool
reads_other_total(const Fuse *f, const Op *op, int32_t gid)
{
	for (int k = 0; k < op->nin; k++) {
		Val v = op->in[k];

		if (fuse_clonable(f, v) ? reads_other_total(f, val_op(f->g, v), gid)
		                        : v.id < f->nval && f->late[v.id] && f->group_of[v.id] != gid)
			return true;
	}
	return false;
}

/* An elementwise op that needs the group's reductions. */
static const char *
why_not_after(Fuse *f, const GroupInfo *gi, const Op *op, const Type *t, const char **rule)
{
	const Type *space = val_type(f->g, op_at(f, gi->red_op)->in[0]);

	*rule = "fuse.finish";
	if (fuse_is_total(f, op_at(f, gi->red_op), gi->axes) && reads_other_total(f, op, (int32_t)(gi - f->info.at)))
		return "it needs the totals of several tensors: their kernels do not wait for each other, and launches "
		       "are joined, or processes make them in parts";
	if (fuse_same_walk(space, gi->axes, t))
		return is_update(f, op, t) ? "it updates a state, in a kernel of its own that may write in place"
		                           : ask_target(f, op_at(f, gi->red_op), op);
	*rule = "fuse.rows";
	if (!fuse_same_space(&gi->space, t))
		return arena_printf(f->a, "what the reduction keeps of %s is another space than %s",
		                    fuse_space_text(f, space), fuse_space_text(f, t));
	if (fuse_makes(gi->kind))
		return "a reduction must be complete before its first use, and what the kernel has computed is gone by "
		       "then";
	return ask_target(f, op_at(f, gi->red_op), op);
}

/* Does anybody behind op `last` but updates read the old value of a state that op reads, with what will be cloned for
 * it? */
static bool
read_behind(const Fuse *f, const Op *op, uint32_t last)
{
	for (int k = 0; k < op->nin; k++) {
		Val v = op->in[k];

		if (fuse_clonable(f, v) && val_op(f->g, v)->kind != OP_load && read_behind(f, val_op(f->g, v), last))
			return true;
		for (uint32_t i = 0; v.id < f->nval && f->state_of[v.id] >= 0 && i < f->users[v.id].n; i++) {
			uint32_t u = f->users[v.id].at[i];

			if (u > last && !f->sink[u] && f->g->op.at[u].kind != OP_store)
				return true;
		}
	}
	return false;
}

/* Part of an update, with results of type t, behind the contraction of group gi. */
static const char *
why_not_update(const Fuse *f, const GroupInfo *gi, const Op *op, const Type *t)
{
	const Target *target = f->cx->target;

	if (!target_does(target, TARGET_updates_fuse) || !target->machine)
		return "it updates a state, in a kernel of its own that may write in place";
	if (type_bytes(t) <= target->machine(target, f->cx->arch)->budget.l2)
		return "it updates a state that L2 holds, in a kernel of its own beside the others of its layer";
	if (read_behind(f, op, gi->main_op))
		return "it updates a state that is read after the contraction, in a kernel of its own";
	return NULL;
}

static const char *
why_not_beside(Fuse *f, const GroupInfo *gi, const Op *op, const Type *t, const char **rule)
{
	*rule = fuse_makes(gi->kind) ? "fuse.epilogue" : "fuse.map";
	if (!fuse_same_space(&gi->space, t))
		return arena_printf(f->a, "the producer's kernel walks %s, this %s", fuse_space_text(f, &gi->space),
		                    fuse_space_text(f, t));
	if (fuse_makes(gi->kind)) {
		if (op_has((OpKind)op_at(f, gi->main_op)->kind, T_PARTS))
			return "a weight gradient is summed in parts: it is complete only after its kernel";
		const char *why = is_update(f, op, t) ? why_not_update(f, gi, op, t) : NULL;

		return why ? why : ask_target(f, op_at(f, gi->main_op), op);
	}
	if (gi->moves && is_update(f, op, t))
		return "it updates a state, in a kernel of its own that may write in place";
	return gi->reduces ? ask_target(f, op_at(f, gi->red_op), op) : NULL;
}

const char *
fuse_why_apart(Fuse *f, int32_t gid, const Op *op, const Type *t, const char **rule, double *value)
{
	const GroupInfo *gi = &f->info.at[gid];

	*rule = "fuse.epilogue";
	*value = NAN;
	if (gi->kind == K_ALONE)
		return "the producer's kernel takes no elementwise epilogue on this target";
	const char *why = gi->reduces && fuse_is_late(f, op, gid) ? why_not_after(f, gi, op, t, rule)
	                                                          : why_not_beside(f, gi, op, t, rule);

	if (why || (why = reads_askew(f, op, gid)))
		return why;
	if (gi->nop >= most_ops(gi)) {
		*value = gi->nop;
		return arena_printf(f->a, "the kernel holds %u ops, at most %u", gi->nop, most_ops(gi));
	}
	return pass_may(f->cx, *rule) ? NULL : "stopped by --pass-limit";
}

const char *
fuse_why_unreduced(Fuse *f, int32_t gid, const Op *op, const Type *t, uint64_t axes)
{
	const GroupInfo *gi = &f->info.at[gid];
	bool late = gi->reduces && fuse_is_late(f, op, gid);

	if (gi->kind == K_ALONE)
		return "the producer's kernel takes no reduction as its epilogue on this target";
	if (gi->kind == K_CONTRACT && op_has((OpKind)op_at(f, gi->main_op)->kind, T_PARTS))
		return "a weight gradient is summed in parts: it is complete only after its kernel";
	if (!fuse_same_space(&gi->space, t))
		return arena_printf(f->a, "the producer's kernel walks %s, this %s", fuse_space_text(f, &gi->space),
		                    fuse_space_text(f, t));
	if (gi->reduces && gi->axes != axes)
		return "the producer's kernel reduces over other axes";
	if (late && fuse_makes(gi->kind))
		return "a reduction must be complete before its first use, and what the kernel has computed is gone by "
		       "then";
	const char *why = ask_target(f,
	                             op_at(f, fuse_makes(gi->kind) ? gi->main_op
	                                      : gi->reduces        ? gi->red_op
	                                                           : gi->main_op),
	                             op);

	if (why || (why = reads_askew(f, op, gid)))
		return why;
	if (gi->nop >= GROUP_OPS)
		return arena_printf(f->a, "the kernel holds %u ops, at most %d", gi->nop, GROUP_OPS);
	if (!fuse_choose(f, "fuse.reduce", op, NULL, true))
		return pass_chose(f->cx, "it is reduced in a kernel of its own");
	return pass_may(f->cx, "fuse.reduce") ? NULL : "stopped by --pass-limit";
}

/* Nothing but data and constants is behind v. */
static bool
of_data(const Fuse *f, Val v, bool *seen)
{
	const Op *op = val_op(f->g, v);
	bool good = !op || (op->kind != OP_load && op->kind != OP_all_reduce && op->kind != OP_all_moments);

	for (int k = 0; good && op && k < op->nin; k++) {
		bool old = seen[op->in[k].id];

		seen[op->in[k].id] = true;
		good = old || of_data(f, op->in[k], seen);
	}
	return good;
}

bool
fuse_is_counted(const Fuse *f, const Op *op)
{
	uint32_t n = f->users[op->out[0].id].n;
	bool *seen;

	for (uint32_t i = 0; i < n; i++)
		if (f->g->op.at[f->users[op->out[0].id].at[i]].kind != OP_all_reduce)
			return false;
	if (!n)
		return false;
	seen = arena_array(f->a, bool, f->nval);
	return of_data(f, op->in[0], seen);
}
