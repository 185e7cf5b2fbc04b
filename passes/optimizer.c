/* optimizer.c: update ops become the arithmetic of train.optimizer.
 *
 * In: `update {state} (g)` ops in graphs train or update.  Out: stage diffed: elementwise ops, slot states
 * (NAME.momentum, NAME.adam_m, NAME.adam_v, NAME.rms_v, NAME.rms_m, zero at first) and stores at the graph's end. The
 * formulas are pinned by the language ("Arithmetic
 * of training"): sgd w -= rate g; momentum v = mu v + g, w -= rate v, or rate (g + mu v) with nesterov; adam (Kingma
 * and Ba 2015) with bias correction and eps outside the square root; adamw (Loshchilov and Hutter 2019) w -= rate decay
 * w first.
 * rmsprop is PyTorch's: v = alpha v + (1 - alpha) g^2, m likewise of g where centered, s = g / (sqrt(v - m^2) + eps),
 * w -= rate s, or with momentum b = mu b + s, w -= rate b. lamb (You et al. 2019): Adam's corrected step plus decay w
 * is r; w -= rate |w| / |r| r, norms by parameter, their ratio 1 where one is 0 and for parameters without decay.
 * With loss scaling a step whose result `overflow` names a state changes no parameter and no slot, is not counted by
 * Adam, and halves the scale; it doubles after GROWTH good steps, as in PyTorch, but begins low, where no gradient of
 * common size overflows, and climbs each RAMP steps until the first overflow.
 * Otherwise decay adds decay w to g, for states whose line says decay. The rate comes in f64; scalars of a step are
 * computed in f64 and cast to the parameter's dtype once. Decay and momentum are settings, states that a run may set;
 * where the file gives 0 there is nothing to set. */
#include <stdlib.h>
#include <string.h>
#include "passes.h"

struct Optimizer; struct Param;
/* The new weight. */
typedef Val StepRule(struct Optimizer *o, const struct Param *p);
#define OPTIMIZER(name, step, decay, params) static StepRule step;
#include "optimizers.def"
#undef OPTIMIZER
typedef enum Decay { DECAY_GRADIENT, DECAY_WEIGHT, DECAY_STEP } Decay;
typedef struct Rule { const char *name, *params; StepRule *step; Decay decay; } Rule;
static const Rule rules[] = {
#define OPTIMIZER(name, step, decay, params) {#name, params, step, DECAY_##decay},
#include "optimizers.def"
#undef OPTIMIZER
};
enum { RULE_COUNT = sizeof rules / sizeof *rules };
/* Scalars that all parameters of a graph share, made on first use. */
typedef enum Scalar { SC_RATE, SC_STEP_SIZE, SC_ROOT, SC_KEEP, SC_DECAY, SC_MOMENTUM, SC_FIRST, SC_COUNT } Scalar;
/* One of them, for parameters of these factors. */
typedef struct Shared { Scalar s; DType dt; double rate_times, decay_times; Val v; } Shared;
typedef struct Optimizer {
	Module *m;
	Build b;
	const Rule *rule;
	double momentum, decay, beta1, beta2, eps, alpha;
	DType widest;            /* of the parameters' dtypes */
	bool nesterov, centered;
	double rate_times, decay_times; /* of the parameter at work: train.rates, train.decays */
	VEC(Shared) scalar;      /* made so far, in this graph */
	Val corrected[2];        /* f64: 1 - beta^t */
	Val good;                /* loss scaling: bool, no gradient overflowed; NOVAL: no scaling */
} Optimizer;

/* The default that the rule's line names; 0: it has no such parameter, or no default. */
static double
rule_default(const Rule *r, const char *arg)
{
	size_t n = strlen(arg);

	for (const char *p = r->params; *p; p += strcspn(p, " "), p += *p == ' ')
		if (strncmp(p, arg, n) == 0 && p[n] == ':' && p[n + 2] == '=')
			return p[n + 3] == 't' ? 1 : p[n + 3] == 'f' ? 0 : strtod(p + n + 3, NULL);
	return 0;
}

/* Argument of train.optimizer. */
static double
optimizer_number(const Optimizer *o, const char *arg)
{
	const Setting *s = setting(o->m, "train.optimizer"), *a = s ? setting_arg(s, arg) : NULL;

	return !a ? rule_default(o->rule, arg) : a->kind == SET_BOOL ? (double)a->i : a->f;
}

static bool
read_settings(Optimizer *o)
{
	const Setting *s = setting(o->m, "train.optimizer");
	const char *name = s && s->s ? s->s : "sgd";
	const char *names[RULE_COUNT];
	int rule = 0;

	while (rule < RULE_COUNT && strcmp(name, rules[rule].name))
		rule++;
	if (rule == RULE_COUNT) {
		for (int i = 0; i < RULE_COUNT; i++)
			names[i] = rules[i].name;
		const char *best = suggest(name, names, RULE_COUNT);

		diag_error(o->m->diags, (Loc){0}, "train.optimizer: there is no optimizer `%s`%s%s%s", name,
		           best ? "; did you mean `" : "", best ? best : "", best ? "`?" : "");
		return false;
	}
	o->rule = &rules[rule];
	o->momentum = optimizer_number(o, "momentum");
	o->nesterov = optimizer_number(o, "nesterov") != 0;
	o->decay = optimizer_number(o, "weight_decay");
	o->beta1 = optimizer_number(o, "beta1");
	o->beta2 = optimizer_number(o, "beta2");
	o->eps = optimizer_number(o, "eps");
	o->alpha = optimizer_number(o, "alpha");
	o->centered = optimizer_number(o, "centered") != 0;
	o->widest = DT_f32;
	for (uint32_t i = 0; i < o->m->state.n; i++)
		if (o->m->state.at[i].kind == ST_PARAM && o->m->state.at[i].type.dtype == DT_f64)
			o->widest = DT_f64;
	return true;
}

/* ---------------------------------------------------------------- scalars of a step */
static Val
number(Optimizer *o, double x)
{
	return build_const(&o->b, DT_f64, x);
}

/* 1 - beta^t, t from 1. */
static Val
correction(Optimizer *o, int which)
{
	Build *b = &o->b;
	Val t;

	if (o->corrected[which].id)
		return o->corrected[which];
	t = build_cast(b, graph_need_input(b->g, IN_STEP), DT_f64);
	if (o->good.id)
		t = build(b, OP_sub, t, build_load(b, LOSS_SCALE_SKIPPED));
	t = build(b, OP_add, t, number(o, 1));
	t = build(b, OP_pow, number(o, which ? o->beta2 : o->beta1), t);
	return o->corrected[which] = build(b, OP_sub, number(o, 1), t);
}

static Val
times(Optimizer *o, Val x, double c)
{
	return build(&o->b, OP_mul, x, build_const(&o->b, val_type(o->b.g, x)->dtype, c));
}

/* A number that a run may set. AdamW computes with it in f64, others cast it to the parameter's dtype. */
static Val
scalar_setting(Optimizer *o, const char *name, double value)
{
	DType dt = o->rule->decay == DECAY_WEIGHT ? DT_f64 : o->widest;

	name = arena_printf(o->m->arena, "optimizer.%s", name);
	return value == 0 ? build_const(&o->b, dt, 0) : build_setting(&o->b, dt, name, value);
}

static Val
scalar_decay(Optimizer *o)
{
	Val decay = scalar_setting(o, "weight_decay", o->decay);

	return o->decay_times == 1 ? decay : times(o, decay, o->decay_times);
}

static Val
scalar_f64(Optimizer *o, Scalar s)
{
	Build *b = &o->b;
	Val rate = s == SC_DECAY || s == SC_MOMENTUM ? NOVAL : graph_need_input(b->g, IN_RATE);

	if (rate.id && o->rate_times != 1 && s != SC_ROOT && s != SC_FIRST)
		rate = build(b, OP_mul, rate, number(o, o->rate_times));
	switch (s) {
	case SC_STEP_SIZE: return build(b, OP_div, rate, correction(o, 0));
	case SC_ROOT: return build(b, OP_sqrt, correction(o, 1));
	case SC_KEEP:
		rate = build(b, OP_mul, rate, scalar_decay(o));
		return build(b, OP_sub, number(o, 1), rate);
	case SC_FIRST: return correction(o, 0);
	case SC_DECAY: return scalar_decay(o);
	case SC_MOMENTUM: return scalar_setting(o, "momentum", o->momentum);
	default: return rate;
	}
}

static Val
scalar(Optimizer *o, Scalar s, DType dt)
{
	Shared made = {s, dt, s == SC_ROOT || s == SC_FIRST || s == SC_MOMENTUM || s == SC_DECAY ? 1 : o->rate_times,
	               s == SC_KEEP || s == SC_DECAY ? o->decay_times : 1, NOVAL};
	Loc loc = o->b.loc;
	const char *path = o->b.path;

	for (uint32_t i = 0; i < o->scalar.n; i++) {
		const Shared *k = &o->scalar.at[i];

		if (k->s == s && k->dt == dt && k->rate_times == made.rate_times && k->decay_times == made.decay_times)
			return k->v;
	}
	o->b.loc = (Loc){0};   /* it belongs to no layer */
	o->b.path = "";
	made.v = build_cast(&o->b, scalar_f64(o, s), dt);
	vec_push(o->m->arena, &o->scalar, made);
	o->b.loc = loc;
	o->b.path = path;
	return made.v;
}

/* ---------------------------------------------------------------- one parameter */
/* adapts: lamb's step has its length */
typedef struct Param { const char *name; Type type; bool decay, adapts; Val w, g; } Param;

static Val
scaled(Optimizer *o, Val x, Scalar s)
{
	return build(&o->b, OP_mul, x, scalar(o, s, val_type(o->b.g, x)->dtype));
}

static Val
sum(Optimizer *o, Val x, Val y)
{
	return build(&o->b, OP_add, x, y);
}

static const char *
slot(Optimizer *o, const Param *p, const char *suffix)
{
	const char *name = arena_printf(o->m->arena, "%s.%s", p->name, suffix);
	State *s = module_state(o->m, name), *param;

	if (s)
		return s->name;
	s = module_add_state(o->m, name, type_of(p->type.dtype, p->type.rank, p->type.axis), ST_SLOT);
	param = module_state(o->m, p->name);
	s->init = INIT_CONSTANT;
	s->loc = param->loc;
	s->decay = param->decay;
	return s->name;
}

static void
put_always(Optimizer *o, const char *state, Val v)
{
	build_op(&o->b, OP_store, &v, 1, ATTRS(AS(state, state)), NULL);
}

/* A new value for a step that is not left out. */
static void
put(Optimizer *o, const char *state, Val v)
{
	if (o->good.id)
		v = build(&o->b, OP_where, o->good, v, build_load(&o->b, state));
	put_always(o, state, v);
}

/* w - rate * v */
static Val
descend(Optimizer *o, const Param *p, Scalar rate, Val v)
{
	return build(&o->b, OP_sub, p->w, build(&o->b, OP_mul, scalar(o, rate, (DType)p->type.dtype), v));
}

static Val
step_sgd(Optimizer *o, const Param *p)
{
	return descend(o, p, SC_RATE, p->g);
}

static Val
step_momentum(Optimizer *o, const Param *p)
{
	const char *name = slot(o, p, "momentum");
	Val v = sum(o, scaled(o, build_load(&o->b, name), SC_MOMENTUM), p->g);

	put(o, name, v);
	return descend(o, p, SC_RATE, o->nesterov ? sum(o, p->g, scaled(o, v, SC_MOMENTUM)) : v);
}

/* A slot's running mean: keep * slot + (1 - keep) * x. */
static Val
running(Optimizer *o, const char *name, double keep, Val x)
{
	Val old = times(o, build_load(&o->b, name), keep);

	return sum(o, old, times(o, x, 1 - keep));
}

/* m, and the root of v, corrected, plus eps */
static Val
adam_parts(Optimizer *o, const Param *p, Val *m)
{
	const char *mname = slot(o, p, "adam_m"), *vname = slot(o, p, "adam_v");
	Build *b = &o->b;
	DType dt = (DType)p->type.dtype;
	Val v, root;

	*m = running(o, mname, o->beta1, p->g);
	v = times(o, build_load(b, vname), o->beta2);
	v = sum(o, v, times(o, build(b, OP_square, p->g), 1 - o->beta2));
	root = scalar(o, SC_ROOT, dt);
	root = build(b, OP_div, build(b, OP_sqrt, v), root);

	put(o, mname, *m);
	put(o, vname, v);
	return sum(o, root, build_const(b, dt, o->eps));
}

static Val
step_adam(Optimizer *o, const Param *p)
{
	Val m, root = adam_parts(o, p, &m);

	return descend(o, p, SC_STEP_SIZE, build(&o->b, OP_div, m, root));
}

static Val
norm(Optimizer *o, Val x)
{
	Build *b = &o->b;
	Val all = build(b, OP_square, x);
	int64_t axes[MAX_RANK];
	int rank = val_type(b->g, x)->rank;

	for (int k = 0; k < rank; k++)
		axes[k] = k;
	return build(b, OP_sqrt, rank ? build_reduce(b, OP_sum, all, axes, rank, false) : all);
}

static Val
step_lamb(Optimizer *o, const Param *p)
{
	Build *b = &o->b;
	DType dt = (DType)p->type.dtype;
	Val m, root = adam_parts(o, p, &m), r, size, length, both, zero;

	r = build(b, OP_div, build(b, OP_div, m, scalar(o, SC_FIRST, dt)), root);
	if (p->decay)
		r = sum(o, r, scaled(o, p->w, SC_DECAY));
	if (!p->adapts)
		return descend(o, p, SC_RATE, r);
	zero = build_const(b, dt, 0);
	size = norm(o, p->w);
	length = norm(o, r);
	both = build(b, OP_and, build(b, OP_gt, size, zero), build(b, OP_gt, length, zero));
	size = build(b, OP_where, both, build(b, OP_div, size, length), build_const(b, dt, 1));
	size = build(b, OP_mul, size, scalar(o, SC_RATE, dt));
	return build(b, OP_sub, p->w, build(b, OP_mul, r, size));
}

static Val
step_rmsprop(Optimizer *o, const Param *p)
{
	Build *b = &o->b;
	DType dt = (DType)p->type.dtype;
	const char *vname = slot(o, p, "rms_v"), *name;
	Val v = running(o, vname, o->alpha, build(b, OP_square, p->g)), step = v;

	put(o, vname, v);
	if (o->centered) {
		name = slot(o, p, "rms_m");
		step = running(o, name, o->alpha, p->g);
		put(o, name, step);
		/* rounding may leave less than nothing */
		step = build(b, OP_sub, v, build(b, OP_square, step));
		step = build(b, OP_maximum, step, build_const(b, dt, 0));
	}
	step = sum(o, build(b, OP_sqrt, step), build_const(b, dt, o->eps));
	step = build(b, OP_div, p->g, step);
	if (o->momentum == 0)
		return descend(o, p, SC_RATE, step);
	name = slot(o, p, "momentum");
	step = sum(o, scaled(o, build_load(b, name), SC_MOMENTUM), step);
	put(o, name, step);
	return descend(o, p, SC_RATE, step);
}

/* The factor of the first pattern in a list of [pattern, factor] that fits the parameter; 1 if none does. */
static double
factor_of(const Module *m, const char *list, const char *name)
{
	const Setting *s = setting(m, list);

	for (int k = 0; s && s->kind == SET_LIST && k < s->nargs; k++)
		if (s->arg[k].nargs == 2 && s->arg[k].arg[0].s && label_matches(s->arg[k].arg[0].s, name))
			return s->arg[k].arg[1].f;
	return 1;
}

static void
update_param(Optimizer *o, const Op *op)
{
	const State *s = module_state(o->m, attr_str(op, A_state));
	Param p;

	if (!s)
		bug("update of @%s, which is no state", attr_str(op, A_state));
	o->rate_times = factor_of(o->m, "train.rates", s->name);
	o->decay_times = factor_of(o->m, "train.decays", s->name);
	p = (Param){.name = s->name,
	            .type = s->type,
	            .decay = s->decay && o->decay != 0 && o->decay_times != 0,
	            .adapts = s->decay,
	            .g = op->in[0]};
	o->b.loc = op->loc;
	o->b.path = op->path;
	p.w = build_load(&o->b, p.name);
	if (p.decay && o->rule->decay == DECAY_WEIGHT)
		p.w = build(&o->b, OP_mul, p.w, scalar(o, SC_KEEP, (DType)p.type.dtype));
	else if (p.decay && o->rule->decay == DECAY_GRADIENT)
		p.g = sum(o, p.g, scaled(o, p.w, SC_DECAY));
	put(o, p.name, o->rule->step(o, &p));
}

/* ---------------------------------------------------------------- loss scaling */
enum { RAMP = 16, GROWTH = 2000 };
static const double largest_scale = 0x1p24, least_scale = 0x1p-24; /* beyond these no number of f16 is helped */

Val
loss_scale_good(Build *b)
{
	Graph *g = b->g;

	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].kind == RES_OVERFLOW)
			return build(b, OP_lt, g->result.at[i].v, build_const(b, DT_f32, 0));
	return NOVAL;
}

static void
update_scale(Optimizer *o)
{
	Build *b = &o->b;

	b->loc = (Loc){0};
	b->path = "";
	Val scale = build_load(b, LOSS_SCALE), count = build_load(b, LOSS_SCALE_GOOD),
	    skipped = build_load(b, LOSS_SCALE_SKIPPED);
	Val zero = build_const(b, DT_f32, 0), one = build_const(b, DT_f32, 1), two = build_const(b, DT_f32, 2),
	    half = build_const(b, DT_f32, 0.5), bad;
	Val most = build_const(b, DT_f32, largest_scale), least = build_const(b, DT_f32, least_scale), due, grown,
	    shrunk;

	count = build(b, OP_where, o->good, build(b, OP_add, count, one), zero);
	due = build(b, OP_gt, skipped, build_const(b, DT_f64, 0));
	due = build(b, OP_where, due, build_const(b, DT_f32, GROWTH), build_const(b, DT_f32, RAMP));
	due = build(b, OP_ge, count, due);
	grown = build(b, OP_minimum, build(b, OP_mul, scale, two), most);
	shrunk = build(b, OP_maximum, build(b, OP_mul, scale, half), least);
	grown = build(b, OP_where, due, grown, scale);
	put_always(o, LOSS_SCALE, build(b, OP_where, o->good, grown, shrunk));
	put_always(o, LOSS_SCALE_GOOD, build(b, OP_where, due, zero, count));
	bad = build_cast(b, build(b, OP_not, o->good), DT_f64);
	put_always(o, LOSS_SCALE_SKIPPED, build(b, OP_add, skipped, bad));
}

/* The state that v is a view of, NULL if v is computed. */
static const char *
state_of(const Graph *g, Val v)
{
	const Op *op = val_op(g, v);

	while (op && op_has(op->kind, T_VIEW))
		op = val_op(g, op->in[0]);
	return op && op->kind == OP_load ? attr_str(op, A_state) : NULL;
}

static bool
is_stored(const Graph *g, const char *state)
{
	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == OP_store && !g->op.at[i].dead &&
		    strcmp(attr_str(&g->op.at[i], A_state), state) == 0)
			return true;
	return false;
}

/* A result is read when the graph has run, and a state is updated in its own place: a result that is nothing but a
 * stored state's old value must be a value of its own. The maximum of a number and itself is the number, NaN too. */
static bool
keep_results(Optimizer *o, Graph *g)
{
	bool changed = false;

	for (uint32_t i = 0; i < g->result.n; i++) {
		Val v = g->result.at[i].v;
		const char *state = state_of(g, v);

		if (!state || !is_stored(g, state))
			continue;
		o->b.loc = val_op(g, v)->loc;
		o->b.path = val_op(g, v)->path;
		g->result.at[i].v = build(&o->b, OP_maximum, v, v);
		changed = true;
	}
	return changed;
}

static bool
run_graph(Optimizer *o, Graph *g)
{
	uint32_t n = g->op.n;
	bool changed = false;

	o->b = (Build){.g = g};
	o->scalar.n = 0;
	memset(o->corrected, 0, sizeof o->corrected);
	o->good = loss_scale_good(&o->b);
	for (uint32_t i = 0; i < n; i++) {
		Op op = g->op.at[i];

		if (op.kind != OP_update)
			continue;
		g->op.at[i].dead = changed = true;
		update_param(o, &op);
	}
	if (changed && o->good.id)
		update_scale(o);
	changed |= keep_results(o, g); /* graph update of a model that trains nothing empties its sums too */
	if (o->b.error)
		bug("graph %s, the optimizer's ops do not build: %s", g->name, o->b.error);
	if (changed) {
		graph_stores_last(g);
		graph_compact(g);
	}
	return changed;
}

bool
pass_optimizer(Module *m, PassCtx *cx)
{
	Optimizer o = {.m = m};
	bool changed = false;

	(void)cx;
	if (!read_settings(&o))
		return false;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			changed |= run_graph(&o, m->graph.at[i]);
	return optimizer_averages(m) || changed;
}
