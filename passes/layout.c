/* layout.c: physical layout of every tensor: which logical axis lies innermost in memory.
 *
 * In: lowered graphs, every value row-major.   Out: Type.perm of activations around convolutions and pooling as the
 * target wants them (HWNC on the CPU: a pixel is a slab of batch x channels, so borders are skipped and any stride is
 * free), of convolution weights HWIO (what packing and the weight gradient read and write in whole vectors), in all
 * graphs alike; and State.type, so that the optimizer runs over contiguous memory.
 * Method: values that elementwise ops and moves tie together share one layout (union-find), with what is broadcast if
 * its own elements would lie in another order. Sets that convolutions and poolings (column images of ops.def) join are
 * a region, which takes the target's layout if that is predicted to be faster, with the copies at its borders, than
 * staying row-major (Target.layout.time). Graph inputs stay row-major: the first elementwise op on them reads with
 * strides. Outputs that infer writes get a copy in row-major order. Reshapes of a permuted value move data: each is a
 * verdict. Last come transpositions around composite operators (layout_views.c). */
#include "layout_views.h"
#include <math.h>
#include <string.h>

typedef enum Want { W_NONE, W_ACT, W_WEIGHT } Want;
/* seconds of both ways; the first convolution or pooling, and all */
typedef struct Region { double wanted, plain; const Op *op; VEC(const Op *) all; } Region;
/* plain: by region, stays row-major */
typedef struct Sets { uint32_t *up; uint8_t *want; uint32_t *region; bool *plain; } Sets;
enum { TRANSPOSE_SLOWER = 3 }; /* than memory: a copy that transposes */

static const uint8_t hwio[4] = {2, 3, 1, 0}; /* of a weight O I H W */

static uint32_t
root_of(Sets *s, uint32_t v)
{
	while (s->up[v] != v)
		v = s->up[v] = s->up[s->up[v]];
	return v;
}

static void
join(Sets *s, uint32_t a, uint32_t b)
{
	a = root_of(s, a);
	b = root_of(s, b);
	if (a == b)
		return;
	s->up[b] = a;
	if (s->want[b] > s->want[a])
		s->want[a] = s->want[b];
}

static void
want(Sets *s, Val v, Want w)
{
	uint32_t r = root_of(s, v.id);

	if (s->want[r] < w)
		s->want[r] = w;
}

static bool
fixed_layout(const Graph *g, Val v)
{
	const ValInfo *i = val_info(g, v);

	/* their kernels read and write row-major tensors */
	return i->type.rank != 4 || i->op == UINT32_MAX || op_has((OpKind)g->op.at[i->op].kind, T_COMPOSITE | T_ALONE);
}

static bool
same_extents(const Type *a, const Type *b)
{
	return a->rank == b->rank && type_same_shape(a, b);
}

/* A value that elementwise ops broadcast along an axis, such as a maximum over it: would its elements lie in another
 * order in the target's layout? Each is read again for every one of that axis. */
static bool
ordered_otherwise(const Graph *g, Val v, const Target *target)
{
	Type t = *val_type(g, v);
	int last = -1;

	if (!target->layout.images || val_op(g, v)->kind == OP_load || !target->layout.images(target, &t, t.perm))
		return false;
	for (int i = 0; i < t.rank; i++) {
		if (is_one(t.axis[t.perm[i]]))
			continue;
		if (t.perm[i] < last)
			return true;
		last = t.perm[i];
	}
	return false;
}

static void
tie(Sets *s, const Graph *g, const Op *op, const Target *target)
{
	Val first = NOVAL;

	for (int k = 0; k < op->nin + op->nout; k++) {
		Val v = k < op->nout ? op->out[k] : op->in[k - op->nout];

		if (fixed_layout(g, v) ||
		    (op_has(op->kind, T_EW) && !same_extents(val_type(g, v), val_type(g, op->out[0])) &&
		     !ordered_otherwise(g, v, target)))
			continue;
		if (first.id)
			join(s, first.id, v.id);
		else
			first = v;
	}
}

static void
find_sets(Sets *s, Graph *g, const Target *target, Arena *a)
{
	s->up = arena_array(a, uint32_t, g->val.n);
	s->want = arena_array(a, uint8_t, g->val.n);
	for (uint32_t v = 0; v < g->val.n; v++)
		s->up[v] = v;
	for (uint32_t i = 0; i < g->op.n; i++)
		if (!op_info[g->op.at[i].kind].images && op_has(g->op.at[i].kind, T_EW | T_AXES))
			tie(s, g, &g->op.at[i], target);
}

/* ---------------------------------------------------------------- the choice */
static uint32_t
region_of(Sets *s, uint32_t v)
{
	uint32_t r = root_of(s, v);

	while (s->region[r] != r)
		r = s->region[r] = s->region[s->region[r]];
	return r;
}

/* The region of op's activations; all of them are joined. */
static uint32_t
join_region(Sets *s, const Op *op)
{
	const char *images = op_info[op->kind].images;
	uint32_t first = 0;

	for (int k = 0; k < op->nin + op->nout; k++) {
		uint32_t r = region_of(s, (k < op->nin ? op->in[k] : op->out[k - op->nin]).id);

		if (images[k < op->nin ? k : k + 1] != 'a')
			continue;
		if (first)
			s->region[r] = first;
		else
			first = r;
	}
	return first;
}

static double
copy_time(const Type *t, const Rates *rates)
{
	return 2 * (double)type_bytes(t) * TRANSPOSE_SLOWER / rates->bytes;
}

static void
add_copy(Sets *s, Region *r, const Graph *g, Val v, const Rates *rates)
{
	r[region_of(s, v.id)].wanted += copy_time(val_type(g, v), rates);
}

/* Copies where the target's layout would meet row-major values. */
static void
add_copies(Sets *s, Region *r, const Graph *g, const Op *op, const Rates *rates)
{
	bool reads_rows = op->kind == OP_reshape || op_has((OpKind)op->kind, T_COMPOSITE | T_ALONE);

	for (int k = 0; k < op->nin; k++) {
		const ValInfo *v = val_info(g, op->in[k]);

		if (v->type.rank == 4 && v->op == UINT32_MAX && op->nout) /* an input of the graph is row-major */
			r[region_of(s, op->out[0].id)].wanted += copy_time(&v->type, rates);
		else if (v->type.rank == 4 && reads_rows)
			add_copy(s, r, g, op->in[k], rates);
	}
	for (int k = 0; k < op->nout; k++)
		if (reads_rows && val_type(g, op->out[k])->rank == 4)
			add_copy(s, r, g, op->out[k], rates);
}

static void
tell_choice(const Graph *g, PassCtx *cx, const Region *r, bool wanted)
{
	double one = (wanted ? r->wanted : r->plain) * 1e3, other = (wanted ? r->plain : r->wanted) * 1e3;

	verdict(cx, (Verdict){.pass = "layout",
	                      .rule = "layout.choice",
	                      .graph = g->name,
	                      .a = r->op->path,
	                      .opa = op_info[r->op->kind].name,
	                      .fired = wanted,
	                      .loc = r->op->loc,
	                      .value = r->wanted / r->plain,
	                      .why = pass_chose(
	                              cx, arena_printf(cx->scratch,
	                                               wanted ? "activations from here on lie channels-innermost: %.3g "
	                                                        "ms predicted with the copies at the "
	                                                        "borders, %.3g ms row-major"
	                                                      : "activations from here on stay row-major: %.3g ms "
	                                                        "predicted, %.3g ms channels-innermost with the copies "
	                                                        "at the borders",
	                                               one, other))});
}

static void
choose(Sets *s, Graph *g, PassCtx *cx)
{
	Region *r = arena_array(cx->scratch, Region, g->val.n);
	Rates rates = pass_rates(cx);

	s->region = arena_array(cx->scratch, uint32_t, g->val.n);
	s->plain = arena_array(cx->scratch, bool, g->val.n);
	for (uint32_t v = 0; v < g->val.n; v++)
		s->region[v] = v;
	if (!cx->target->layout.time)
		return;
	for (uint32_t i = 0; i < g->op.n; i++)
		if (op_info[g->op.at[i].kind].images)
			join_region(s, &g->op.at[i]);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op_info[op->kind].images) {
			Region *own = &r[join_region(s, op)];

			own->op = own->op ? own->op : op;
			vec_push(cx->scratch, &own->all, op);
			own->wanted += cx->target->layout.time(cx->target, g, op, true);
			own->plain += cx->target->layout.time(cx->target, g, op, false);
		}
		add_copies(s, r, g, op, &rates);
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		add_copy(s, r, g, g->result.at[i].v, &rates);
	for (uint32_t v = 1; v < g->val.n; v++) {
		if (!r[v].op || s->region[v] != v)
			continue;
		bool wanted = pass_choose(cx, "layout.choice", &(ChoiceAt){.g = g, .op = r[v].op, .with = r[v].all.at,
			.nwith = (int)r[v].all.n,
			.ratio = r[v].plain > 0 ? r[v].wanted / r[v].plain : 0}, 2, r[v].wanted <= r[v].plain);

		s->plain[v] = !wanted;
		tell_choice(g, cx, &r[v], wanted);
	}
}

/* The layout of op's activations, as its image operands say; false: row-major. */
static bool
image_layout(Sets *s, const Op *op, const Target *target, Type *t)
{
	return !s->plain[join_region(s, op)] && target->layout.images(target, t, t->perm);
}

static void
find_wants(Sets *s, Graph *g, const Target *target)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const char *images = op_info[op->kind].images;
		Type x = images ? *val_type(g, op->in[0]) : (Type){0};

		/* where activations are left alone weights are row-major too */
		if (!images || !image_layout(s, op, target, &x))
			continue;
		for (int k = 0; k < op->nin; k++)
			want(s, op->in[k], images[k] == 'w' ? W_WEIGHT : W_ACT);
		for (int k = 0; k < op->nout; k++)
			want(s, op->out[k], images[op->nin + 1 + k] == 'w' ? W_WEIGHT : W_ACT);
	}
}

/* Weights first, from all graphs: a state has one layout everywhere. What is tied to one in a graph without
 * convolutions, the slots of an update that runs by itself, takes it too. */
static void
mark_states(Module *m, Sets *sets, Arena *a)
{
	bool *weight = arena_array(a, bool, m->state.n), more = true;

	while (more) {
		more = false;
		for (uint32_t i = 0; i < m->graph.n; i++) {
			Graph *g = m->graph.at[i];

			for (uint32_t k = 0; !g->is_loop && k < g->op.n; k++) {
				const Op *op = &g->op.at[k];

				if (op->kind != OP_load && op->kind != OP_store)
					continue;
				Val v = op->kind == OP_load ? op->out[0] : op->in[0];
				uint8_t *wanted = &sets[i].want[root_of(&sets[i], v.id)];
				bool *marked = &weight[module_state(m, attr_str(op, A_state)) - m->state.at];

				if (val_type(g, v)->rank != 4 || *marked == (*wanted == W_WEIGHT) ||
				    (*marked && *wanted != W_NONE))
					continue;
				*marked = more = true;
				*wanted = W_WEIGHT;
			}
		}
	}
	for (uint32_t i = 0; i < m->state.n; i++)
		if (weight[i])
			memcpy(m->state.at[i].type.perm, hwio, 4);
}

/* A copy that only changes the layout of v; op reads it, or makes what is copied. */
static void
tell_copy(const Graph *g, PassCtx *cx, const Op *op, const ValInfo *v, const char *why)
{
	verdict(cx, (Verdict){.pass = "layout",
	                      .rule = "layout.transpose",
	                      .graph = g->name,
	                      .a = op->path,
	                      .opa = op_info[op->kind].name,
	                      .fired = false,
	                      .loc = op->loc,
	                      .why = why,
	                      .value = NAN,
	                      .bytes_saved = 2 * type_bytes(&v->type)});
}

/* Operands of convolutions and pools that lie row-major (graph inputs, parameters used as images) get one copy in the
 * target's layout; operands of composite operators that do not, a row-major one. */
static void
copy_operands(Graph *g, Sets *s, PassCtx *cx)
{
	VEC(Op) out = {0};
	uint32_t nval = g->val.n;
	uint32_t *copy = arena_array(cx->scratch, uint32_t, nval);

	for (uint32_t i = 0; i < g->op.n; i++) {
		Op op = g->op.at[i];
		const char *images = op_info[op.kind].images;

		/* asked before operands are copies */
		bool composite = op_has((OpKind)op.kind, T_COMPOSITE | T_ALONE),
		     plain = images && s->plain[join_region(s, &op)];

		for (int k = 0; (images || composite) && k < op.nin; k++) {
			ValInfo v = *val_info(g, op.in[k]);
			Type t = composite ? type_of((DType)v.type.dtype, v.type.rank, v.type.axis) : v.type;

			if (images && (images[k] != 'a' || plain || !cx->target->layout.images(cx->target, &t, t.perm)))
				continue;
			if (op.in[k].id >= nval || !memcmp(t.perm, v.type.perm, t.rank))
				continue;
			if (!copy[op.in[k].id]) {
				Op move = {.kind = OP_reshape,
				           .nin = 1,
				           .nout = 1,
				           .group = -1,
				           .loc = op.loc,
				           .path = op.path};

				move.in = arena_array(g->arena, Val, 1);
				move.out = arena_array(g->arena, Val, 1);
				move.in[0] = op.in[k];
				move.out[0] = graph_add_val(g, t, v.name, out.n, 0);
				copy[op.in[k].id] = move.out[0].id;
				tell_copy(g, cx, &op, &v,
				          composite ? "the operand lies channels-innermost, this kernel reads rows: "
				                      "one copy"
				                    : "the operand lies row-major, this kernel reads another layout: "
				                      "one copy");
				vec_push(g->arena, &out, move);
			}
			Val *in = arena_array(g->arena, Val, op.nin);

			memcpy(in, op.in, sizeof *in * op.nin);
			in[k] = (Val){copy[op.in[k].id]};
			op.in = in;
		}
		for (int k = 0; k < op.nout; k++)
			val_info(g, op.out[k])->op = out.n;
		vec_push(g->arena, &out, op);
	}
	g->op.at = out.at;
	g->op.n = out.n;
	g->op.cap = out.cap;
}

static void
apply(Module *m, Graph *g, Sets *s, PassCtx *cx)
{
	uint32_t nval = g->val.n;

	for (uint32_t v = 1; v < nval; v++) {
		Type *t = &g->val.at[v].type;
		Want w = s->want[root_of(s, v)];

		if (fixed_layout(g, (Val){v}))
			continue;
		Op *def = val_op(g, (Val){v});

		if (def->kind == OP_load)
			memcpy(t->perm, module_state(m, attr_str(def, A_state))->type.perm, 4);
		else if (w == W_WEIGHT)
			memcpy(t->perm, hwio, 4);
		else if (w == W_ACT)
			cx->target->layout.images(cx->target, t, t->perm);
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		/* a stored value has its state's layout */
		if (op->kind == OP_store) {
			State *st = module_state(m, attr_str(op, A_state));
			ValInfo *v = val_info(g, op->in[0]);

			if (v->op != UINT32_MAX && g->op.at[v->op].kind != OP_load && st->type.rank == v->type.rank)
				memcpy(v->type.perm, st->type.perm, MAX_RANK);
		}
	}
	copy_operands(g, s, cx);
	Build b = {.g = g};

	for (uint32_t i = 0; i < g->result.n; i++) {
		Val v = g->result.at[i].v;

		if (type_is_plain(val_type(g, v)))
			continue;
		Type t = *val_type(g, v);

		b.loc = val_op(g, v)->loc;
		b.path = val_op(g, v)->path;
		tell_copy(g, cx, val_op(g, v), val_info(g, v),
		          "results are row-major, this lies channels-innermost: one copy");
		t = type_of((DType)t.dtype, t.rank, t.axis);
		g->result.at[i].v = build_op(&b, OP_reshape, &v, 1, NULL, &t);
	}
}

/* Copies that are not those of copy_operands, between shapes. */
static void
tell_reshapes(const Graph *g, PassCtx *cx)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == OP_reshape && !type_is_plain(val_type(g, op->in[0])) && !view_moves_nothing(g, op) &&
		    !type_same_shape(val_type(g, op->in[0]), val_type(g, op->out[0])))
			tell_copy(g, cx, op, val_info(g, op->in[0]),
			          "a reshape needs row-major elements, its operand lies channels-innermost: the copy "
			          "stays");
	}
}

static void
layout_images(Module *m, PassCtx *cx)
{
	Sets *sets = arena_array(cx->scratch, Sets, m->graph.n);

	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop) {
			find_sets(&sets[i], m->graph.at[i], cx->target, cx->scratch);
			choose(&sets[i], m->graph.at[i], cx);
			find_wants(&sets[i], m->graph.at[i], cx->target);
		}
	mark_states(m, sets, cx->scratch);
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			apply(m, m->graph.at[i], &sets[i], cx);
}

bool
pass_layout(Module *m, PassCtx *cx)
{
	bool changed = cx->target && cx->target->layout.images;

	if (changed)
		layout_images(m, cx);
	for (uint32_t i = 0; i < m->graph.n && cx->target; i++)
		changed |= !m->graph.at[i]->is_loop && layout_fold_views(m->graph.at[i], cx);
	for (uint32_t i = 0; i < m->graph.n && cx->target && cx->target->layout.images; i++)
		if (!m->graph.at[i]->is_loop)
			tell_reshapes(m->graph.at[i], cx);
	return changed;
}
