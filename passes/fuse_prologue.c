/* fuse_prologue.c: elementwise values that the contractions which read them make as they load them (prologues).
 *
 * Contractions stand for poolings too, where the target fuses these.
 * In: the tables of pass fuse in progress, the target's word on each contraction.   Out: Fuse.lead, and, once no kernel
 * before it could take the op, the decision.
 * A candidate is cheap (CHEAP_OPS operations at most, nothing random), read by contractions that can, and made of one
 * value of its size, or of two if nothing else reads it: the normalised activation before a convolution, the gradient
 * behind a batch normalisation. Elementwise readers of a value of one leaf have it computed again as well. What remains
 * is a matter of cost: a kernel of its own reads the leaves, computes, and stores what each contraction reads; a
 * prologue reads the leaves and computes in each contraction, as often as that one's way of loading asks. Operations
 * that a contraction can do while it waits for memory cost nothing. Times are bytes and operations at the rates of a
 * typical machine of the target, so that the same file gives the same program everywhere. */
#include "fuse.h"
#include "passes.h"
#include <math.h>

/* Is anything that op computes from drawn at random, through what would be computed again? */
static bool
draws(const Fuse *f, const Op *op)
{
	if (op_has((OpKind)op->kind, T_RANDOM))
		return true;
	for (int k = 0; k < op->nin; k++)
		if (fuse_clonable(f, op->in[k]) && draws(f, val_op(f->g, op->in[k])))
			return true;
	return false;
}

/* One more of the values that something is computed from; `most` + 1 of them are too many, and are not told apart. */
static void
leaf_add(const Fuse *f, Lead *l, uint32_t *leaf, uint32_t most, uint32_t v)
{
	uint32_t n = 0;

	while (n < l->nleaf && leaf[n] != v)
		n++;
	if (n < l->nleaf || l->nleaf > most)
		return;
	leaf[l->nleaf++] = v;
	l->nbyte += dtype_info[f->g->val.at[v].type.dtype].bytes == 1;
}

/* Values of t's size that stand in memory and that op is computed from, and operations that make it, each of them
 * once. */
static void
leaves_of(const Fuse *f, const Op *op, const Type *t, Lead *l, uint32_t leaf[LEAD_LEAVES + 1])
{
	for (uint32_t i = 0; i < l->ops && i <= CHEAP_OPS; i++)
		if (l->op[i] == op->out[0].id)
			return;
	if (l->ops <= CHEAP_OPS)
		l->op[l->ops] = op->out[0].id;
	l->ops++;
	for (int k = 0; k < op->nin; k++) {
		if (fuse_clonable(f, op->in[k]))
			leaves_of(f, val_op(f->g, op->in[k]), t, l, leaf);
		else if (type_elements(val_type(f->g, op->in[k])) >= type_elements(t))
			leaf_add(f, l, leaf, LEAD_LEAVES, op->in[k].id);
	}
}

static const char *
why_not(Fuse *f, const Op *op, Lead *l)
{
	const Type *t = val_type(f->g, op->out[0]);
	uint32_t leaf[LEAD_LEAVES + 1], maps = 0;

	if (f->pinned[op->out[0].id])
		return "it stands in memory anyway: a result, or read by a kernel that takes no prologue";
	if (expr_costly(op_info[op->kind].expr))
		return "it needs a division or a transcendental function, too dear to be computed by each kernel that "
		       "reads it";
	leaves_of(f, op, t, l, leaf);
	if (l->ops > CHEAP_OPS)
		return arena_printf(f->g->module->arena,
		                    "%u operations, more than %d, to be computed by each kernel that reads it", l->ops,
		                    CHEAP_OPS);
	if (draws(f, op))
		return "random numbers would be drawn again by each kernel that reads it";
	for (uint32_t u = 0; u < f->users[op->out[0].id].n; u++) {
		uint32_t r = f->users[op->out[0].id].at[u];
		const Op *reader = &f->g->op.at[r];

		if (fuse_makes(f->kind[r]))
			continue;
		if (f->kind[r] != K_RED && (f->kind[r] != K_MAP || !fuse_same_space(val_type(f->g, reader->out[0]), t)))
			return arena_printf(f->g->module->arena, "%s reads it too, from memory",
			                    op_info[reader->kind].name);
		maps++;
	}
	if (l->nleaf == 0)
		return "it is computed from nothing of its size";
	if (l->nleaf > LEAD_LEAVES)
		return "it is computed from three tensors of its size: reading them again costs more than reading it";
	if (l->nleaf > 1 && maps)
		return "it is computed from two tensors of its size, and elementwise kernels read it too: it is stored "
		       "for "
		       "these";
	return NULL;
}

void
fuse_find_prologues(Fuse *f)
{
	for (uint32_t i = 0; i < f->nop; i++) {
		const Op *op = &f->g->op.at[i];
		bool read = false;

		for (uint32_t u = 0; f->kind[i] == K_MAP && u < f->users[op->out[0].id].n; u++)
			read |= fuse_makes(f->kind[f->users[op->out[0].id].at[u]]);
		if (!read)
			continue;
		f->lead[i].read = true;
		f->lead[i].ratio = NAN;
		f->lead[i].never = why_not(f, op, &f->lead[i]);
	}
}

typedef struct Cost { double bytes, ops; int kernels; } Cost;
/* of the operand: in memory, and to make it with its conversions from 16 bits and to them */
typedef struct Element { double bytes, ops; } Element;

/* The type that operands of contractions will have; DT_none: their own. */
static DType
narrow_of(const Fuse *f)
{
	return pass_enabled(f->cx, "precision") ? precision_of(f->g->module, f->cx->target, f->cx->arch).narrow
	                                        : DT_none;
}

static Element
element_of(const Lead *l, const Type *t, DType narrow)
{
	if (narrow == DT_none || t->dtype != DT_f32)
		return (Element){dtype_info[t->dtype].bytes, l->ops};
	return (Element){dtype_info[narrow].bytes, l->ops + 2 * l->nleaf + 1};
}

/* Bytes read for an element where it is made. */
static double
leaf_bytes(const Lead *l, Element one)
{
	return one.bytes * (l->nleaf - l->nbyte) + l->nbyte;
}

static double
seconds(const Fuse *f, const Cost *c)
{
	Rates r = pass_rates(f->cx);

	return c->bytes / r.bytes + c->ops / r.flops + c->kernels * r.start;
}

static const char *
cost_text(const Fuse *f, const Cost *c)
{
	return arena_printf(f->g->module->arena, "%.3g MiB and %.3g Mflop, %.3g ms", c->bytes / 1048576, c->ops / 1e6,
	                    1e3 * seconds(f, c));
}

/* Adds what contraction `reader` costs if it makes operand k itself, and what it costs to read it. NULL, or why it
 * cannot. */
static const char *
add_reader(Fuse *f, const Op *reader, int k, const Lead *l, DType narrow, Cost *make, Cost *store)
{
	const Type *t = val_type(f->g, reader->in[k]);
	Element one = element_of(l, t, narrow);
	double elements = (double)type_elements(t), bytes = elements * one.bytes;
	SelectCx kernels = pass_kernels(f->cx, narrow);
	Prologue p = {0};

	if (!f->cx->target || !f->cx->target->prologue)
		return "kernels of this target read their operands from memory";
	f->cx->target->prologue(f->cx->target, f->g, reader, k, &kernels, &p);
	if (p.why)
		return arena_printf(f->g->module->arena, "%s: %s", op_info[reader->kind].name, p.why);
	make->bytes += elements * leaf_bytes(l, one) + bytes * (p.copied ? 2 : 0);
	make->ops += fmax(0, elements * p.times * one.ops - p.spare);
	store->bytes += bytes;
	return NULL;
}

bool
fuse_prologue(Fuse *f, uint32_t index)
{
	const Op *op = &f->g->op.at[index];
	Lead *l = &f->lead[index];
	const Type *t = val_type(f->g, op->out[0]);
	DType narrow = narrow_of(f);
	Element one = element_of(l, t, narrow);
	Cost make = {0}, store = {(double)type_elements(t) * (leaf_bytes(l, one) + one.bytes),
	                          (double)type_elements(t) * one.ops, 1};
	uint32_t n = 0;
	bool pools = false;

	if (!l->read || l->never) {
		l->why = l->never;
		return false;
	}
	for (uint32_t u = 0; u < f->users[op->out[0].id].n; u++) {
		uint32_t r = f->users[op->out[0].id].at[u];
		const Op *reader = &f->g->op.at[r];

		if (!fuse_makes(f->kind[r]) || (u && f->users[op->out[0].id].at[u - 1] == r))
			continue;
		for (int k = 0; k < reader->nin; k++) {
			const char *why = reader->in[k].id == op->out[0].id
			                          ? add_reader(f, reader, k, l, narrow, &make, &store)
			                          : NULL;

			if (why) {
				l->why = why;
				return false;
			}
		}
		n++;
		pools |= f->kind[r] == K_WINDOW;
	}
	l->ratio = seconds(f, &make) / seconds(f, &store);
	bool chosen = fuse_choose(f, "fuse.prologue", op, l, l->ratio < 1);

	l->taken = chosen && pass_may(f->cx, "fuse.prologue");
	l->why = chosen && !l->taken
	                 ? "stopped by --pass-limit"
	                 : pass_chose(f->cx,
	                              arena_printf(f->g->module->arena,
	                                           "made in %u %s%s: %s predicted; stored by a kernel of its own: %s",
	                                           n, pools ? "kernel" : "contraction", n > 1 ? "s" : "",
	                                           cost_text(f, &make), cost_text(f, &store)));
	if (l->taken) {
		f->stored[op->out[0].id] = false;
		f->cone[index] = (uint8_t)l->ops;
	}
	return l->taken;
}

/* Of a group of elementwise ops: operations for an element, tensors of t's size that it reads; false if anything but v
 * is read outside it. */
static bool
group_leaves(const Fuse *f, int32_t gid, Val v, const Type *t, Lead *l)
{
	uint32_t leaf[2 * LEAD_LEAVES + 1], left = f->info.at[gid].nop;

	for (uint32_t i = f->out.n; i-- > 0 && left;) {
		const Op *o = &f->out.at[i];

		if (o->group != gid)
			continue;
		left--;
		if (!op_has((OpKind)o->kind, T_POINTWISE | T_CONST | T_VIEW) || expr_costly(op_info[o->kind].expr))
			return false;
		l->ops += op_has((OpKind)o->kind, T_POINTWISE);
		for (int k = 0; k < o->nin; k++) {
			uint32_t in = o->in[k].id;

			if (type_elements(val_type(f->g, o->in[k])) >= type_elements(t) && in < f->nval &&
			    f->group_of[in] != gid)
				leaf_add(f, l, leaf, 2 * LEAD_LEAVES, in);
		}
		for (int k = 0; k < o->nout; k++)
			for (uint32_t u = 0;
			     o->out[k].id < f->nval && o->out[k].id != v.id && u < f->users[o->out[k].id].n; u++) {
				const Op *reader = &f->g->op.at[f->users[o->out[k].id].at[u]];

				if (f->pinned[o->out[k].id] || !reader->nout || f->group_of[reader->out[0].id] != gid)
					return false;
			}
	}
	return l->nleaf > 0 && l->nleaf <= 2 * LEAD_LEAVES;
}

int32_t
fuse_carries(Fuse *f, const Op *op, int32_t latest)
{
	Val v = op->in[0];
	const Type *t = val_type(f->g, v);
	uint32_t d = val_info(f->g, v)->op;
	int32_t gid = v.id < f->nval ? f->group_of[v.id] : -1;
	Prologue p = {0};
	Lead l = {0};

	if (gid < 0 || gid != latest || d == UINT32_MAX || d >= f->nop || f->kind[d] != K_MAP ||
	    f->info.at[gid].kind != K_MAP || f->info.at[gid].reduces || op->in[1].id == v.id)
		return -1;
	if (!f->cx->target || !f->cx->target->prologue)
		return -1;
	DType narrow = narrow_of(f);
	SelectCx kernels = pass_kernels(f->cx, narrow);

	f->cx->target->prologue(f->cx->target, f->g, op, 0, &kernels, &p);
	if (p.why || !p.stores || !group_leaves(f, gid, v, t, &l))
		return -1;
	Element one = element_of(&l, t, narrow);
	double elements = (double)type_elements(t), bytes = elements * one.bytes;
	Cost make = {elements * leaf_bytes(&l, one) + bytes, fmax(0, elements * p.times * one.ops - p.spare), 0},
	     store = {elements * leaf_bytes(&l, one) + 2 * bytes, elements * one.ops, 1};
	double ratio = seconds(f, &make) / seconds(f, &store);

	l.ratio = ratio;
	bool chosen = fuse_choose(f, "fuse.carry", &f->g->op.at[d], &l, ratio < 1);
	bool taken = chosen && pass_may(f->cx, "fuse.carry");

	verdict(f->cx,
	        (Verdict){.pass = "fuse",
	                  .rule = "fuse.carry",
	                  .graph = f->g->name,
	                  .a = f->g->op.at[d].path,
	                  .b = op->path,
	                  .opa = op_info[f->g->op.at[d].kind].name,
	                  .opb = op_info[op->kind].name,
	                  .fired = taken,
	                  .value = ratio,
	                  .bytes_saved = (int64_t)bytes,
	                  .loc = op->loc,
	                  .why = chosen && !taken
	                                 ? "stopped by --pass-limit"
	                                 : pass_chose(f->cx, arena_printf(f->g->module->arena,
	                                                                  "made and stored by the contraction: %s "
	                                                                  "predicted; by a kernel of its own: %s",
	                                                                  cost_text(f, &make), cost_text(f, &store)))});
	return taken ? gid : -1;
}
