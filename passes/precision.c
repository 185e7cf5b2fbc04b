/* precision.c: which tensors stand in memory in 16 bits, which contractions multiply 16-bit operands, and the casts
 * between.
 *
 * In: fused graphs in f32, and train.precision: bf16, f16, or mixed with the target's choice of one.
 * Out: contractions of 16-bit operands whose sums are f32 (attribute wide), tensors between kernels in 16 bits, casts.
 * After fuse, because a cast belongs where a value goes through memory, and only the groups tell that: within a kernel
 * everything is computed in f32 registers. So a value is cast once, behind the op that makes it and in that op's group,
 * where it costs no kernel; each group that reads it widens it as it loads; a contraction takes it as it is; views in
 * its place take its type. What stands in f32 (parameters above all, which are the master copy) and is an operand of a
 * contraction is cast by a kernel of its own, once for all readers; where the target rounds a parameter as it packs it
 * (hook packs), in the group of each contraction, so that no copy of it waits for the backward half. What the target
 * multiplies in 16 bits within a composite op (attention's products) is treated as a contraction. Stays in f32, each
 * with a verdict: results of reductions and what is computed from them and parameters alone (statistics, the finish of
 * a normalisation, losses), whatever flows into a state (gradients of parameters, the optimizer), results of the graph,
 * what is read or made by a kernel that works in f32 only, and under mixed tensors too small to matter and layers of
 * keep_f32. */
#include "passes.h"
#include "red.h"
#include <math.h>
#include <string.h>

enum { SMALL_BYTES = 16384 };   /* mixed: a tensor of less stays in the L1 anyway */

typedef struct Cast { Val v, narrow, wide; int32_t group; struct Cast *next; } Cast;

typedef struct Narrow {
	Graph *g;
	PassCtx *cx;
	Precision p;
	SelectCx kernels;        /* of operands of 16 bits */
	/* by Val.id */
	uint32_t *root;          /* the value whose memory it shares */
	bool *act;               /* depends on the batch other than through a reduction */
	bool *to_state;          /* flows into a state without a reduction or contraction between */
	bool *crosses;           /* of roots: read outside the group that makes it */
	const char **keep;       /* of roots: why memory holds f32, NULL = it need not */
	bool *narrow;            /* of roots: memory holds 16 bits */
	bool *exact;             /* of roots: comparisons read it, so that everybody reads what memory holds */
	Cast **cast;             /* of roots and values: copies that exist */
	bool *contract;          /* by op: multiplies 16-bit operands */
	uint32_t *factors;       /* by op: which of its operands those may be, a bit each */
	VEC(Op) out;
} Narrow;

/* ---------------------------------------------------------------- settings */
Precision
precision_of(const Module *m, const Target *t, const char *arch)
{
	const Setting *s = setting(m, "train.precision");
	const char *name = s && s->s ? s->s : "f32";
	Precision p = {.narrow = DT_none};

	if (!strcmp(name, "bf16"))
		p.narrow = DT_bf16;
	if (!strcmp(name, "f16"))
		p.narrow = DT_f16;
	if (!strcmp(name, "mixed")) {
		p.mixed = true;
		p.narrow = DT_bf16;
		if (t && t->narrow.mixed)
			p.narrow = t->narrow.mixed(t, arch);
		p.keep = setting_arg(s, "keep_f32");
		p.force = setting_arg(s, "narrow");
	}
	p.scaled = p.narrow == DT_f16;
	return p;
}

/* Length of the longest prefix in the list that path lies under; 0 = none. */
static size_t
listed(const Setting *list, const char *path)
{
	size_t best = 0;

	for (int i = 0; list && path && i < list->nargs; i++) {
		const char *s = list->arg[i].s;
		size_t n = s ? strlen(s) : 0;

		if (n > best && !strncmp(path, s, n) && (!path[n] || path[n] == '.'))
			best = n;
	}
	return best;
}

static bool
kept(const Narrow *n, const Op *op)
{
	return listed(n->p.keep, op->path) > listed(n->p.force, op->path);
}

static bool
forced(const Narrow *n, const Op *op)
{
	return listed(n->p.force, op->path) > listed(n->p.keep, op->path);
}

/* ---------------------------------------------------------------- what the graph says */
static bool
is_alias(const Op *op)
{
	return op->group < 0 && (op->nin == 1 || op_has(op->kind, T_ORDER)) && op->nout == 1 &&
	       op_has(op->kind, T_VIEW);
}

/* Kernels that load and store the types that stand in memory: no cast goes into their group. */
static bool
is_rigid(const Op *op)
{
	return op_has(op->kind, T_SCAN | T_SCATTER | T_EFFECT | T_COMPOSITE | T_ALONE);
}

static bool
is_f32(const Narrow *n, Val v)
{
	return val_type(n->g, v)->dtype == DT_f32;
}

/* Operands that may be of 16 bits where an op multiplies 16-bit operands; asked while all stand in their own types. */
static void
find_factors(Narrow *n)
{
	const Target *t = n->cx->target;

	for (uint32_t i = 0; i < n->g->op.n; i++) {
		const Op *op = &n->g->op.at[i];
		bool asks = op_has(op->kind, T_COMPOSITE) && t && t->narrow.takes;

		for (int k = 0; k < op->nin && k < 32; k++)
			if (op_has(op->kind, T_CONTRACT) || (asks && t->narrow.takes(t, n->g, op, k, &n->kernels)))
				n->factors[i] |= 1u << k;
	}
}

static bool
is_factor(const Narrow *n, uint32_t op, int k)
{
	return k < 32 && n->factors[op] >> k & 1;
}

/* Does op have such operands, all of them in f32? */
static bool
has_factors(const Narrow *n, uint32_t index)
{
	const Op *op = &n->g->op.at[index];

	for (int k = 0; k < op->nin; k++)
		if (is_factor(n, index, k) && !is_f32(n, op->in[k]))
			return false;
	return n->factors[index] != 0;
}

/* Does the value change from example to example, element by element? Reductions end that. */
static void
find_activations(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t i = 0; i < g->input.n; i++)
		n->act[g->input.at[i].v.id] = g->input.at[i].kind == IN_DATA;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool act = op_has(op->kind, T_CONTRACT | T_COMPOSITE);

		for (int k = 0; k < op->nin && !op_has(op->kind, T_REDUCE); k++)
			act |= n->act[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			n->act[op->out[k].id] = act;
	}
}

static void
find_state_flow(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];
		bool flows = op->kind == OP_store;

		if (op_has(op->kind, T_POINTWISE | T_VIEW | T_MOVE))
			for (int k = 0; k < op->nout; k++)
				flows |= n->to_state[op->out[k].id];
		for (int k = 0; k < op->nin && flows; k++)
			n->to_state[op->in[k].id] |= is_f32(n, op->in[k]);
	}
}

static void
find_crossings(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t v = 0; v < g->val.n; v++)
		n->root[v] = v;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (is_alias(op)) {
			n->root[op->out[0].id] = n->root[op->in[0].id];
			continue;
		}
		for (int k = 0; k < op->nin; k++) {
			uint32_t r = n->root[op->in[k].id], def = g->val.at[r].op;

			if (def == UINT32_MAX || g->op.at[def].group != op->group || r != op->in[k].id)
				n->crosses[r] = true;
		}
	}
}

/* ---------------------------------------------------------------- decisions */
static void
tell(Narrow *n, const Op *op, bool fired, const char *rule, const char *why, int64_t bytes)
{
	verdict(n->cx, (Verdict){.pass = "precision",
	                         .rule = rule,
	                         .graph = n->g->name,
	                         .a = op->path,
	                         .opa = op_info[op->kind].name,
	                         .fired = fired,
	                         .why = why,
	                         .value = NAN,
	                         .bytes_saved = bytes,
	                         .loc = op->loc});
}

/* NULL: the contraction multiplies 16-bit operands. */
static const char *
why_wide(Narrow *n, const Op *op)
{
	if (kept(n, op))
		return "keep_f32 names the layer";
	return pass_may(n->cx, "precision.contract") ? NULL : "stopped by --pass-limit";
}

static void
choose_contractions(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (!has_factors(n, i))
			continue;
		const char *why = why_wide(n, op);

		n->contract[i] = !why;
		tell(n, op, !why, "precision.contract",
		     why ? why
		         : arena_printf(g->arena, is_factor(n, i, 0) ? "%s operands, f32 sums"
		                                                      : "%s weights, and states where they meet; "
		                                                        "f32 sums",
		                        dtype_info[n->p.narrow].name),
		     0);
	}
}

/* Does op ask which numbers are equal, or which is the largest? */
static bool
compares(const Narrow *n, const Op *op)
{
	if (op_reduces(op))
		return red_of(op)->join != RED_ADD && red_of(op)->then == RED_ONCE;
	return op_info[op->kind].ew >= 0 && val_type(n->g, op->out[0])->dtype == DT_bool;
}

/* What is added up to be compared (the label's logit, picked from the others) stays f32. */
static void
find_compared(Narrow *n)
{
	Graph *g = n->g;
	bool *asked = arena_array(n->cx->scratch, bool, g->val.n);

	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];
		bool sums = op_reduces(op) && red_of(op)->linear && asked[n->root[op->out[0].id]];

		for (int k = 0; k < op->nin; k++) {
			uint32_t root = n->root[op->in[k].id];

			asked[root] |= sums || compares(n, op);
			if (sums)
				n->keep[root] = "it is added up, and the sum is compared with what is stored as well";
		}
	}
}

/* Comparisons must see what memory holds: an element that is rounded there, or made again of what is, would not equal
 * the largest of elements that are not, and the gradient of max would find none. So whatever narrow value a compared
 * one is made of by elementwise operators is read rounded, in the kernel that makes it too. */
static void
find_exact(Narrow *n)
{
	Graph *g = n->g;
	bool *asked = arena_array(n->cx->scratch, bool, g->val.n);

	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];
		bool through = compares(n, op);

		for (int k = 0; k < op->nout; k++) {
			uint32_t root = n->root[op->out[k].id];

			if (!asked[op->out[k].id] && !asked[root])
				continue;
			if (n->narrow[root])
				n->exact[root] = true;
			else
				through |= op_has(op->kind, T_POINTWISE | T_VIEW);
		}
		for (int k = 0; through && k < op->nin; k++)
			asked[op->in[k].id] = asked[n->root[op->in[k].id]] = true;
	}
}

/* Readers and places that hold a root's memory to f32. */
static void
find_keepers(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++) {
			const char **keep = &n->keep[n->root[op->in[k].id]];

			if (n->contract[i] && is_factor(n, i, k))
				continue;
			if (is_rigid(op) &&
			    !(op->kind == OP_store && val_op(g, op->in[k]) && val_op(g, op->in[k])->group == op->group))
				*keep = arena_printf(g->arena, "%s reads it, whose kernel works in f32",
				                     op_info[op->kind].name);
			else if (op_has(op->kind, T_CONTRACT))
				*keep = arena_printf(g->arena, "%s reads it, which multiplies in f32",
				                     op_info[op->kind].name);
		}
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		n->keep[n->root[g->result.at[i].v.id]] = "it is a result of the graph";
}

/* NULL: the value, made by op and read by other kernels, is stored in 16 bits. */
static const char *
why_stored_wide(Narrow *n, const Op *op, Val v)
{
	const char *keep = n->keep[v.id];
	int64_t bytes = type_bytes(val_type(n->g, v));
	uint32_t index = (uint32_t)(op - n->g->op.at);

	if (op_has(op->kind, T_REDUCE))
		return "the result of a reduction";
	if (op->kind == OP_attention && val_info(n->g, v)->index > 0)
		return "log-sums, from which exponents are subtracted";
	if (!n->act[v.id])
		return "computed from statistics and parameters alone";
	if (n->to_state[v.id])
		return "it flows into a state";
	if ((is_rigid(op) && !(n->contract[index] && is_factor(n, index, 0))) || op_has(op->kind, T_CONST))
		return arena_printf(n->g->arena, "%s makes it, whose kernel works in f32", op_info[op->kind].name);
	if (keep)
		return keep;
	if (kept(n, op))
		return "keep_f32 names the layer";
	if (n->p.mixed && !forced(n, op) && bytes < SMALL_BYTES)
		return arena_printf(n->g->arena, "%lld bytes are too few to matter", (long long)bytes);
	return pass_may(n->cx, "precision.store") ? NULL : "stopped by --pass-limit";
}

static void
choose_values(Narrow *n)
{
	Graph *g = n->g;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nout && op->group >= 0; k++) {
			Val v = op->out[k];

			if (!is_f32(n, v) || !n->crosses[v.id])
				continue;
			const char *why = why_stored_wide(n, op, v);
			int64_t bytes = type_bytes(val_type(g, v)) / 2;

			n->narrow[v.id] = !why;
			tell(n, op, !why, "precision.store",
			     why ? why
			         : arena_printf(g->arena,
			                        "stored as %s: rounded once, behind the last op of its kernel",
			                        dtype_info[n->p.narrow].name),
			     bytes);
		}
	}
}

/* ---------------------------------------------------------------- the graph with casts */
static void
put(Narrow *n, const Op *op)
{
	vec_push(n->g->arena, &n->out, *op);
}

static Val
put_cast(Narrow *n, const Op *near, int32_t group, Val v, DType to)
{
	Graph *g = n->g;
	Op op = {.kind = OP_cast, .nin = 1, .nout = 1, .group = group, .loc = near->loc, .path = near->path};
	Type t = *val_type(g, v);

	t.dtype = (uint8_t)to;
	op.in = arena_array(g->arena, Val, 1);
	op.out = arena_array(g->arena, Val, 1);
	op.in[0] = v;
	op.out[0] = graph_add_val(g, t, g->val.at[v.id].name, 0, 0);
	put(n, &op);
	return op.out[0];
}

/* The copy of v that group `group` has (-1: that any may read); made where it is missing. */
static Cast *
cast_of(Narrow *n, uint32_t key, int32_t group)
{
	for (Cast *c = n->cast[key]; c; c = c->next)
		if (c->group == group)
			return c;
	Cast *c = arena_new_of(n->cx->scratch, Cast);

	c->group = group;
	c->next = n->cast[key];
	n->cast[key] = c;
	return c;
}

static int32_t
cast_group(Narrow *n, const Op *near)
{
	Graph *g = n->g;
	char *s = arena_printf(g->arena, "%s_cast_%s_%u", g->name, near->path ? near->path : "", g->group.n);

	for (char *p = s; *p; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9')))
			*p = '_';
	vec_push(g->arena, &g->group, ((Group){.name = s, .workspace_offset = -1, .prepacked_offset = -1}));
	return (int32_t)g->group.n - 1;
}

/* Is v made in op's own group? */
static bool
inside(const Narrow *n, const Op *op, Val v)
{
	const Op *def = val_op(n->g, v);

	return def && op->group >= 0 && def->group == op->group && def->kind != OP_load;
}

/* Does op's kernel round its operand v, of a training step, as it packs it? Whatever else reads v takes the parameter
 * itself. */
static bool
packed(const Narrow *n, const Op *op, int k, Val v)
{
	const Op *def = val_op(n->g, v);
	const Target *t = n->cx->target;

	return k == 1 && op_has(op->kind, T_CONTRACT) && def && def->kind == OP_load && op->group >= 0 && is_f32(n, v)
	       && t && t->narrow.packs && !strcmp(n->g->name, "train") && t->narrow.packs(t, n->g, op, &n->kernels);
}

/* Operand k, v, in 16 bits, of a contraction or a concatenation. */
static Val
narrow_operand(Narrow *n, const Op *op, int k, Val v)
{
	bool packs = !inside(n, op, v) && packed(n, op, k, v);
	Cast *c;

	if (packs || inside(n, op, v)) {
		c = cast_of(n, v.id, op->group);
		if (c->narrow.id)
			return c->narrow;
		c->narrow = put_cast(n, op, op->group, v, n->p.narrow);
		if (packs)
			tell(n, op, true, "precision.pack",
			     arena_printf(n->g->arena,
			                  "weights are read in f32 and rounded to %s as the kernel packs them: no copy "
			                  "in 16 bits",
			                  dtype_info[n->p.narrow].name),
			     c->next ? 0 : type_bytes(val_type(n->g, v)) / 2); /* all readers would share one */
		return c->narrow;
	}
	c = cast_of(n, v.id, -1);
	if (!c->narrow.id) {
		const Op *def = val_op(n->g, v);

		c->narrow = put_cast(n, def ? def : op, cast_group(n, def ? def : op), v, n->p.narrow);
	}
	return c->narrow;
}

static Val
wide_operand(Narrow *n, const Op *op, Val v)
{
	Cast *own;
	Val narrow;

	if (!n->narrow[n->root[v.id]] || (inside(n, op, v) && is_f32(n, v) && !n->exact[n->root[v.id]]))
		return v;
	narrow = cast_of(n, v.id, -1)->narrow;
	own = cast_of(n, v.id, op->group);
	if (!own->wide.id)
		own->wide = put_cast(n, op, op->group, narrow, DT_f32);
	return own->wide;
}

/* A view outside groups of what stands in 16 bits is one itself. */
static void
rewrite_alias(Narrow *n, const Op *op)
{
	Op copy = *op;
	Val v = op->out[0];

	if (!n->narrow[n->root[v.id]]) {
		put(n, op);
		return;
	}
	copy.in = arena_array(n->g->arena, Val, op->nin);
	for (int k = 1; k < op->nin; k++)
		copy.in[k] = op->in[k];
	copy.in[0] = cast_of(n, op->in[0].id, -1)->narrow;
	val_info(n->g, v)->type.dtype = (uint8_t)n->p.narrow;
	cast_of(n, v.id, -1)->narrow = v;
	put(n, &copy);
}

/* A concatenation moves numbers as they are: its pieces and its result are in 16 bits together. */
static bool
moves_narrow(const Narrow *n, const Op *op)
{
	return op->kind == OP_concat && op->nout == 1 && n->narrow[op->out[0].id];
}

static void
rewrite_op(Narrow *n, uint32_t index, Op op)
{
	Graph *g = n->g;
	Val *in = arena_array(g->arena, Val, op.nin), *out = op.out;
	bool move = moves_narrow(n, &op), contract = n->contract[index];

	for (int k = 0; k < op.nin; k++) {
		Val v = op.in[k];

		if (!is_f32(n, v) && !n->narrow[n->root[v.id]])
			in[k] = v;
		else if ((contract && is_factor(n, index, k)) || move)
			in[k] = narrow_operand(n, &op, k, v);
		else
			in[k] = wide_operand(n, &op, v);
	}
	op.in = in;
	if (contract) {
		Attr *attr = arena_array(g->arena, Attr, op.nattr);

		memcpy(attr, op.attr, sizeof *attr * op.nattr);
		op.attr = attr;
		for (int k = 0; k < op.nattr; k++)
			if (attr[k].name == A_wide)
				attr[k].i = true;
	}
	if (move) {
		val_info(g, out[0])->type.dtype = (uint8_t)n->p.narrow;
		cast_of(n, out[0].id, -1)->narrow = cast_of(n, out[0].id, op.group)->narrow = out[0];
		put(n, &op);
		return;
	}
	put(n, &op);
	for (int k = 0; k < op.nout; k++)
		if (n->narrow[out[k].id]) {
			Val narrow = put_cast(n, &op, op.group, out[k], n->p.narrow);

			cast_of(n, out[k].id, -1)->narrow = narrow;
			cast_of(n, out[k].id, op.group)->narrow = narrow;
		}
}

static void
take_over(Narrow *n)
{
	Graph *g = n->g;

	g->op.at = n->out.at;
	g->op.n = n->out.n;
	g->op.cap = n->out.cap;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout; k++) {
			ValInfo *v = val_info(g, g->op.at[i].out[k]);

			v->op = i;
			v->index = (uint16_t)k;
		}
	graph_compact(g);
}

bool
pass_precision(Graph *g, PassCtx *cx)
{
	Narrow n = {.g = g, .cx = cx, .p = precision_of(g->module, cx->target, cx->arch)};
	Arena *a = cx->scratch;
	uint32_t nval = g->val.n, nop = g->op.n;

	if (n.p.narrow == DT_none)
		return false;
	n.kernels = pass_kernels(cx, n.p.narrow);
	n.root = arena_array(a, uint32_t, nval);
	n.act = arena_array(a, bool, nval);
	n.to_state = arena_array(a, bool, nval);
	n.crosses = arena_array(a, bool, nval);
	n.keep = arena_array(a, const char *, nval);
	n.narrow = arena_array(a, bool, nval);
	n.exact = arena_array(a, bool, nval);
	n.cast = arena_array(a, Cast *, nval);
	n.contract = arena_array(a, bool, nop);
	n.factors = arena_array(a, uint32_t, nop);
	find_factors(&n);
	find_activations(&n);
	find_state_flow(&n);
	find_crossings(&n);
	choose_contractions(&n);
	find_compared(&n);
	find_keepers(&n);
	choose_values(&n);
	find_exact(&n);
	for (uint32_t i = 0; i < nop; i++) {
		Op op = g->op.at[i];

		if (is_alias(&op))
			rewrite_alias(&n, &op);
		else
			rewrite_op(&n, i, op);
	}
	take_over(&n);
	return true;
}
