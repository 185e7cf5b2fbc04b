/* autodiff.c: reverse-mode differentiation of graph train.
 *
 * In: stage typed, graph train with one loss.  Out: gradients behind the forward ops and one `update {state}` op per
 * trained parameter, in the order of state lines; with clip_norm the global norm as a result; with accumulate = a > 1
 * or shards the gradients are averaged in states NAME.grad and graph `update` applies them, the loop calls it once in a
 * batches. The rules are grad*.c of ir/. A forward sweep marks the values that depend on a trained parameter through
 * something differentiable; the backward sweep visits those alone, so gradients that nobody needs are never built.
 * Backward ops carry the location and the layer of the forward op they belong to. Gradients of slices that lie beside
 * each other along one axis are put together by one concat, zeros between them, where each alone would be a pad to the
 * whole tensor and all of them a chain of sums.
 * Where gradients are f16, they are those of the loss times a scale, a state; in f32 they are divided by it again
 * before anything looks at them. A gradient that is not finite is a result of the graph, and the optimizer leaves the
 * step out. A parameter is left alone, weight decay included, if it is frozen or the loss does not reach it. */
#include <stdlib.h>
#include <string.h>
#include "passes.h"

/* What one slice of a value gives its gradient. */
typedef struct Piece { struct Piece *next; Val grad; int64_t axis, start, end; Loc loc; const char *path; } Piece;
typedef struct Trained { State *state; Val grad; Loc loc; const char *path; } Trained;
typedef struct Diff {
	Module *m;
	Graph *g;
	Build b;
	Arena *scratch;
	bool *active;            /* by Val.id of the forward graph */
	bool *named;             /* by Val.id behind the backward half: it bears a parameter's name */
	Val *grad;               /* likewise */
	Piece **piece;           /* likewise: to be added to grad before anything reads it */
	Trained *trained; uint32_t ntrained;
	bool scaled;             /* the loss is scaled: see passes.h, LOSS_SCALE */
} Diff;

/* train.freeze = ["stem", "layer0.bottleneck1"]: a prefix ends at a point or with the name. */
static void
freeze_states(Module *m)
{
	const Setting *s = setting(m, "train.freeze");

	for (int k = 0; s && k < s->nargs; k++)
		for (uint32_t i = 0; i < m->state.n && s->arg[k].s; i++) {
			State *st = &m->state.at[i];
			size_t n = strlen(s->arg[k].s);

			if (!strncmp(st->name, s->arg[k].s, n) && (!st->name[n] || st->name[n] == '.'))
				st->frozen = true;
		}
}

static bool
is_trained(const State *s)
{
	return s && s->kind == ST_PARAM && !s->frozen && dtype_is_float(s->type.dtype);
}

static void
mark_active(Diff *d)
{
	for (uint32_t i = 0; i < d->g->op.n; i++) {
		const Op *op = &d->g->op.at[i];
		bool active = op->kind == OP_load && is_trained(module_state(d->m, attr_str(op, A_state)));

		for (int k = 0; k < op->nin && !active; k++)
			active = d->active[op->in[k].id] && grad_passes(d->g, op, k);
		for (int k = 0; k < op->nout; k++)
			d->active[op->out[k].id] = active && dtype_is_float(val_type(d->g, op->out[k])->dtype);
	}
}

/* ---------------------------------------------------------------- gradients of slices */
static int
by_place(const void *x, const void *y)
{
	const Piece *a = *(Piece *const *)x, *b = *(Piece *const *)y;

	if (a->axis != b->axis)
		return a->axis < b->axis ? -1 : 1;
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->grad.id < b->grad.id ? -1 : a->grad.id > b->grad.id;
}

/* The pieces of one axis, which do not overlap and are in order, as a tensor like v. */
static Val
join_pieces(Diff *d, Val v, Piece *const *p, int n)
{
	Type gap = *val_type(d->g, v);
	int64_t ax = p[0]->axis, whole = gap.axis[ax].n, at = 0;
	Val *part = arena_array(d->scratch, Val, 2 * n + 1);
	int k = 0;

	if (n == 1)
		return build_op(&d->b, OP_pad, &p[0]->grad, 1, ATTRS(AI(axis, ax), AI(before, p[0]->start),
		                AI(after, whole - p[0]->end), AI(step, 1)), NULL);
	for (int i = 0; i <= n; i++) {
		int64_t next = i < n ? p[i]->start : whole;

		gap.axis[ax].n = next - at;
		if (next > at)
			part[k++] = build_full(&d->b, gap, 0);
		if (i < n) {
			part[k++] = p[i]->grad;
			at = p[i]->end;
		}
	}
	return build_op(&d->b, OP_concat, part, k, ATTRS(AI(axis, ax)), NULL);
}

/* The gradient of v, of which every user has been seen. Pieces that overlap make several tensors. */
static Val
gradient_of(Diff *d, Val v)
{
	Val *sum = &d->grad[v.id];
	int n = 0, left = 0;

	for (const Piece *p = d->piece[v.id]; p; p = p->next)
		n++;
	Piece **all = arena_array(d->scratch, Piece *, n), **run = arena_array(d->scratch, Piece *, n);

	for (Piece *p = d->piece[v.id]; p; p = p->next)
		all[left++] = p;
	d->piece[v.id] = NULL;
	qsort(all, (size_t)n, sizeof *all, by_place);
	while (left) {
		int taken = 0, kept = 0;

		for (int k = 0; k < left; k++)
			if (!taken || (run[taken - 1]->axis == all[k]->axis && run[taken - 1]->end <= all[k]->start))
				run[taken++] = all[k];
			else
				all[kept++] = all[k];
		left = kept;

		d->b.loc = run[0]->loc;
		d->b.path = run[0]->path;
		Val joined = join_pieces(d, v, run, taken);

		*sum = sum->id ? build(&d->b, OP_add, *sum, joined) : joined;
	}
	return *sum;
}

/* Of a slice: keeps the gradient until those of the others are there. One with steps is added by itself. */
static bool
keep_piece(Diff *d, const Op *op, Val dout)
{
	if (op->kind != OP_slice || attr_int(op, A_step) != 1)
		return false;
	int64_t ax = attr_int(op, A_axis), start = attr_int(op, A_start);
	Piece *p = arena_new_of(d->scratch, Piece);

	*p = (Piece){d->piece[op->in[0].id], dout, ax, start, start + val_type(d->g, op->out[0])->axis[ax].n,
	             op->loc, op->path};
	d->piece[op->in[0].id] = p;
	return true;
}

static void
backward_op(Diff *d, Op op)
{
	Val *dout = arena_array(d->scratch, Val, op.nout), *din = arena_array(d->scratch, Val, op.nin);
	bool *need = arena_array(d->scratch, bool, op.nin), any = false, reached = false;

	for (int k = 0; k < op.nout; k++) {
		dout[k] = gradient_of(d, op.out[k]);
		reached |= dout[k].id != 0;
	}
	for (int k = 0; reached && k < op.nin; k++)
		any |= need[k] = d->active[op.in[k].id] && grad_passes(d->g, &op, k);
	if (!any || keep_piece(d, &op, dout[0]))
		return;
	d->b.loc = op.loc;
	d->b.path = op.path;
	grad_op(&d->b, &op, dout, need, din);
	if (d->b.error)
		bug("the gradient of %s does not build: %s", op_info[op.kind].name, d->b.error);
	for (int k = 0; k < op.nin; k++) {
		Val *sum = &d->grad[op.in[k].id];

		if (!need[k] || !din[k].id)
			continue;
		if (!type_same_shape(val_type(d->g, din[k]), val_type(d->g, op.in[k])))
			bug("the gradient of %s in its input %d has another shape than the input",
			    op_info[op.kind].name, k);
		*sum = sum->id ? build(&d->b, OP_add, *sum, din[k]) : din[k];
	}
}

/* The loads of each state among the forward ops, in order: *next[i] is the index + 1 of the load behind op i, 0 =
 * none. */
static uint32_t *
list_loads(Diff *d, uint32_t nforward, uint32_t **next)
{
	uint32_t *first = arena_array(d->scratch, uint32_t, d->m->state.n);

	*next = arena_array(d->scratch, uint32_t, nforward);
	for (uint32_t i = nforward; i-- > 0;) {
		const Op *op = &d->g->op.at[i];

		if (op->kind != OP_load)
			continue;
		uint32_t *head = &first[module_state(d->m, attr_str(op, A_state)) - d->m->state.at];

		(*next)[i] = *head;
		*head = i + 1;
	}
	return first;
}

/* A parameter's gradient is called after it, so that it is known as such at all stages: the value below reshapes, which
 * other passes take out. One that two parameters share bears one name; one that the forward half computes keeps its
 * own. */
static void
name_gradient(Diff *d, const Trained *t, uint32_t nforward)
{
	Val v = t->grad;
	const Op *op = val_op(d->g, v);

	while (op && op->kind == OP_reshape && val_info(d->g, op->in[0])->op != UINT32_MAX &&
	       val_info(d->g, op->in[0])->op >= nforward) {
		v = op->in[0];
		op = val_op(d->g, v);
	}
	if (!op || val_info(d->g, v)->op < nforward || d->named[v.id])
		return;
	d->named[v.id] = true;
	graph_name_val(d->g, v, arena_printf(d->scratch, "%s.grad", t->state->name));
}

/* Gradients of the trained parameters, in the order of state lines. A state may be loaded more than once. */
static void
collect(Diff *d, uint32_t nforward)
{
	uint32_t *next, *first = list_loads(d, nforward, &next);

	d->trained = arena_array(d->scratch, Trained, d->m->state.n);
	d->named = arena_array(d->scratch, bool, d->g->val.n + d->g->op.n); /* sums of uses are added here */
	for (uint32_t s = 0; s < d->m->state.n; s++) {
		State *state = &d->m->state.at[s];
		Trained t = {.state = state, .loc = state->loc};

		for (uint32_t i = is_trained(state) ? first[s] : 0; i; i = next[i - 1]) {
			const Op *op = &d->g->op.at[i - 1];
			Val g = d->grad[op->out[0].id];

			d->b.loc = t.loc = op->loc;
			d->b.path = t.path = op->path;
			t.grad = !t.grad.id ? g : !g.id ? t.grad : build(&d->b, OP_add, t.grad, g);
		}
		if (!t.grad.id)
			continue;
		name_gradient(d, &t, nforward);
		d->trained[d->ntrained++] = t;
	}
}

/* ---------------------------------------------------------------- loss scaling */
static void
loss_scale_states(Diff *d)
{
	static const struct { const char *name; DType dtype; double init; } states[] = {
		{LOSS_SCALE, DT_f32, 32}, {LOSS_SCALE_GOOD, DT_f32, 0}, {LOSS_SCALE_SKIPPED, DT_f64, 0}};

	for (int i = 0; i < 3; i++) {
		State *s = module_state(d->m, states[i].name);

		if (s)
			continue;
		s = module_add_state(d->m, states[i].name, type_scalar(states[i].dtype), ST_SLOT);
		s->init = INIT_CONSTANT;
		s->a = states[i].init;
	}
}

static int64_t
state_index(const Module *m, const State *s)
{
	return s - m->state.at;
}

/* ---------------------------------------------------------------- backward */
static Val
differentiate(Diff *d)
{
	Val loss = NOVAL;
	uint32_t nforward = d->g->op.n;
	const Op *def;

	for (uint32_t i = 0; i < d->g->result.n; i++)
		if (d->g->result.at[i].kind == RES_LOSS)
			loss = d->g->result.at[i].v;
	if (!loss.id)
		return NOVAL;
	d->active = arena_array(d->scratch, bool, d->g->val.n);
	d->grad = arena_array(d->scratch, Val, d->g->val.n);
	d->piece = arena_array(d->scratch, Piece *, d->g->val.n);
	mark_active(d);
	if (!d->active[loss.id])
		return loss;
	def = val_op(d->g, loss);
	d->b.loc = def->loc;
	d->b.path = def->path;
	if (d->scaled)
		loss_scale_states(d);
	d->grad[loss.id] =
	        d->scaled ? build_cast(&d->b, build_load(&d->b, LOSS_SCALE), (DType)val_type(d->g, loss)->dtype)
	                  : build_full(&d->b, *val_type(d->g, loss), 1);
	for (uint32_t i = nforward; i-- > 0;)
		backward_op(d, d->g->op.at[i]);
	collect(d, nforward);
	return loss;
}

/* ---------------------------------------------------------------- loss scaling, clipping and updates */
static void
of_no_layer(Build *b)
{
	b->loc = (Loc){0};
	b->path = "";
}

static Val
over_all_axes(Build *b, OpKind red, Val x)
{
	int64_t axes[MAX_RANK];
	int rank = val_type(b->g, x)->rank;

	for (int k = 0; k < rank; k++)
		axes[k] = k;
	return rank ? build_reduce(b, red, x, axes, rank, false) : x;
}

/* Result overflow: which gradient is not finite. Backward comes to the last parameter first: the last of these that is
 * not finite overflowed first. */
static void
overflow(Diff *d, const Val *finite)
{
	Build *b = &d->b;
	Val first = build_const(b, DT_f32, -1);

	for (uint32_t i = 0; i < d->ntrained; i++)
		first = build(b, OP_where, finite[i], first,
		              build_const(b, DT_f32, (double)state_index(d->m, d->trained[i].state)));
	graph_add_result(b->g, first, "overflow", RES_OVERFLOW);
}

/* All gradients times min(1, c / (norm + 1e-6)); the norm is a result, c a number that a run may set. */
static void
clip(Diff *d, const Val *square, double c)
{
	Build *b = &d->b;
	Val sum = square[0], norm, scale, most = build_setting(b, DT_f32, "clip_norm", c);

	for (uint32_t i = 1; i < d->ntrained; i++)
		sum = build(b, OP_add, sum, square[i]);
	norm = build(b, OP_sqrt, sum);
	scale = build(b, OP_add, norm, build_const(b, DT_f32, 1e-6));
	scale = build(b, OP_div, most, scale);
	scale = build(b, OP_minimum, scale, build_const(b, DT_f32, 1));
	for (uint32_t i = 0; i < d->ntrained; i++) {
		Val *g = &d->trained[i].grad;

		*g = build(b, OP_mul, *g, build_cast(b, scale, val_type(b->g, *g)->dtype));
	}
	graph_add_result(b->g, norm, "norm", RES_NORM);
}

/* Scaling divides all gradients by the scale, which is a power of two; the largest magnitude in one, a NaN if there is
 * one, tells whether it is finite. What is asked of each gradient stands together, before what is computed from all of
 * them: no reduction waits for another. */
static void
scale_and_clip(Diff *d, const Setting *c)
{
	Build *b = &d->b;
	Val scale = NOVAL, inverse = NOVAL, *finite = arena_array(d->scratch, Val, d->ntrained),
	    *square = arena_array(d->scratch, Val, d->ntrained);

	of_no_layer(b);
	if (d->scaled) {
		scale = build_load(b, LOSS_SCALE);
		inverse = build(b, OP_reciprocal, scale);
		graph_add_result(b->g, scale, "scale", RES_SCALE);
	}
	for (uint32_t i = 0; i < d->ntrained; i++) {
		Trained *t = &d->trained[i];

		if (d->scaled) {
			b->loc = t->loc;
			b->path = t->path;
			finite[i] = build(b, OP_le,
			                  over_all_axes(b, OP_max, build(b, OP_abs, build_cast(b, t->grad, DT_f32))),
			                  build_const(b, DT_f32, 0x1.fffffep127));
			t->grad = build(b, OP_mul, t->grad,
			                build_cast(b, inverse, (DType)val_type(b->g, t->grad)->dtype));
			of_no_layer(b);
		}
		if (c)
			square[i] = over_all_axes(b, OP_sum, build(b, OP_square, build_cast(b, t->grad, DT_f32)));
	}
	if (d->scaled)
		overflow(d, finite);
	if (c)
		clip(d, square, c->f);
}

static void
updates(Diff *d)
{
	const Setting *c = setting(d->m, "train.clip_norm");

	if (d->ntrained)
		scale_and_clip(d, c && c->kind != SET_NONE && c->kind != SET_NAME ? c : NULL);
	for (uint32_t i = 0; i < d->ntrained; i++) {
		const Trained *t = &d->trained[i];

		d->b.loc = t->loc;
		d->b.path = t->path;
		build_op(&d->b, OP_update, &t->grad, 1, ATTRS(AS(state, t->state->name)), NULL);
	}
	if (d->b.error)
		bug("updates do not build: %s", d->b.error);
	graph_stores_last(d->g);
}

/* ---------------------------------------------------------------- accumulation and shards */
/* How graph train's values reach graph update. n: batches or shards of a step. */
typedef struct Split { int64_t n; bool shards; } Split;

static bool
is_gradient(const char *name)
{
	size_t n = strlen(name);

	return n > 5 && !strcmp(name + n - 5, ".grad");
}

/* Keeps v in a state made for it, in graph train; returns the state's name. Of a batch, v / n is added to what stands
 * there; a shard's is stored as it is, what a record reports in f64: the loop's merge adds. */
static const char *
keep_for_update(Diff *d, Val v, const char *name, Split how)
{
	Build *b = &d->b;
	Type t;
	State *s;

	if (how.shards && !is_gradient(name))
		v = build_cast(b, v, DT_f64);
	else if (!dtype_is_float((DType)val_type(d->g, v)->dtype))   /* a metric that counts */
		v = build_cast(b, v, DT_f32);
	t = *val_type(d->g, v);
	s = module_add_state(d->m, name, type_of((DType)t.dtype, t.rank, t.axis), ST_GRAD);

	s->init = INIT_CONSTANT;
	s->loc = b->loc;
	name = s->name;
	if (!how.shards) {
		v = build(b, OP_div, v, build_const(b, (DType)t.dtype, (double)how.n));
		v = build(b, OP_add, build_load(b, name), v);
	}
	build_op(b, OP_store, &v, 1, ATTRS(AS(state, name)), NULL);
	return name;
}

/* In graph update: the mean over batches, and a store that empties it; or over the shards, whose sum stands there. */
static Val
drain(Diff *d, const char *name, Split how)
{
	Val v = build_load(&d->b, name), zero;
	Type t = *val_type(d->b.g, v);

	if (how.shards)
		return build(&d->b, OP_div, v, build_const(&d->b, (DType)t.dtype, (double)how.n));
	zero = build_full(&d->b, t, 0);
	build_op(&d->b, OP_store, &zero, 1, ATTRS(AS(state, name)), NULL);
	return v;
}

/* Loss and metrics are averaged beside the gradients, so that a record of an update speaks of all its batches. */
static void
split_update(Diff *d, Split how)
{
	const char **sum = arena_array(d->scratch, const char *, d->ntrained + d->g->result.n);
	Graph *train = d->g, *update;
	uint32_t n = 0;

	/* module_add_state may move the state lines: names stay, pointers do not */
	const char **names = arena_array(d->scratch, const char *, d->ntrained);
	for (uint32_t i = 0; i < d->ntrained; i++)
		names[i] = d->trained[i].state->name;
	for (uint32_t i = 0; i < d->ntrained; i++) {
		d->b.loc = d->trained[i].loc;
		d->b.path = d->trained[i].path;
		sum[n++] = keep_for_update(d, d->trained[i].grad, arena_printf(d->m->arena, "%s.grad", names[i]), how);
	}
	for (uint32_t i = 0; i < train->result.n; i++) {
		Result r = train->result.at[i];
		const Op *def = val_op(train, r.v);

		if (r.kind == RES_OUTPUT)
			continue;
		d->b.loc = def ? def->loc : (Loc){0};
		d->b.path = def ? def->path : "";
		sum[n++] = keep_for_update(d, r.v, arena_printf(d->m->arena, "%s.accumulated", r.name), how);
	}
	if (how.shards)
		shards_redirect(d->m, train);
	graph_stores_last(train);
	update = module_add_graph(d->m, "update");
	update->training = true;
	graph_place_after(d->m, update, train);
	d->g = d->b.g = update;
	for (uint32_t i = 0; i < d->ntrained; i++) {
		d->b.loc = d->trained[i].loc;
		d->b.path = d->trained[i].path;
		d->trained[i].state = module_state(d->m, names[i]);
		d->trained[i].grad = drain(d, sum[i], how);
	}
	n = d->ntrained;
	for (uint32_t i = 0; i < train->result.n; i++) {
		const Result *r = &train->result.at[i];

		if (r->kind == RES_OUTPUT)
			continue;
		d->b.loc = val_op(train, r->v) ? val_op(train, r->v)->loc : (Loc){0};
		d->b.path = "";
		graph_add_result(update, drain(d, sum[n++], how), r->name, r->kind);
	}
	if (how.shards)
		shards_join(&d->b, d->m, update, how.n);
	updates(d);
}

static Split
split_of(const Module *m)
{
	const Setting *acc = setting(m, "train.accumulate"), *shards = setting(m, "train.shards");

	if (shards && shards->i > 1)
		return (Split){shards->i, true};
	return (Split){acc && acc->i > 1 ? acc->i : 1, false};
}

bool
pass_autodiff(Module *m, PassCtx *cx)
{
	Diff d = {.m = m, .g = graph_named(m, "train", false), .scratch = cx->scratch};
	Split how = split_of(m);

	if (!d.g)
		return false;
	for (uint32_t i = 0; i < d.g->op.n; i++)
		if (d.g->op.at[i].kind == OP_update)
			return false;
	if (graph_named(m, "update", false))
		return false;
	d.b.g = d.g;
	d.scaled = pass_enabled(cx, "precision") && precision_of(m, cx->target, cx->arch).scaled;
	freeze_states(m);
	if (how.shards && !shards_number(m, d.g, how.n)) {
		cx->failed = true;
		return false;
	}
	if (!differentiate(&d).id)
		return false;
	if (how.n > 1)
		split_update(&d, how);
	else
		updates(&d);
	loop_follow(m, how.n, how.shards);
	return true;
}
