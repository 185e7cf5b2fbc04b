/* gradient.c: every gradient rule and every decomposition through the passes, against central differences of the
 * reference evaluator, in double.
 *
 * In: files or the folder of operators' cases (../operators), whose small lines run that have a gradient; graphs.txt,
 * for what is no single operator; a word that lines or names must contain (optional).
 * A graph is a name, parameters and inputs, and a body in the IR's text:
 * case NAME [zero]            zero: all gradients are zero, whatever differences say (a case without it fails if they
 * are)
 *   a : f32[3,4] [low high]     a parameter, uniform in low..high (default -1.5 1.5)
 *   ids : i32[4] 5              an input of integers in 0..4; bool inputs take 2
 * %y = relu %a : f32[3,4]     the loss is sum(v * w) over all values v whose name begins with y; w fixed, uneven
 * weights. Of an operator's line floating operands are parameters, all results are in the loss, and once more each of
 * them alone.
 * Each case runs three times: composite ops kept, composite ops decomposed, and decomposed with fold, cse and dce,
 * convolutions once more behind pass channels; every run's loss must agree with the forward graph's and its gradients
 * with central differences. A last line counts; exit 1 on a failure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../operators/cases.h"
#include "../../ir/ref.h"
#include "../../passes/pass.h"

/* elements of a parameter whose difference is taken: the first; of an operator's line all of SMALL, SPREAD of more */
enum { MAX_VARS = MAX_IN, MAX_CHECKED = 400, SMALL = 150, SPREAD = 40 };
#define STEP 1e-4
#define BOUND 2e-6   /* central differences: h^2 f''' / 6 and rounding / h, for values of about 1 */

/* x: its numbers; NULL: random ones of low..high */
typedef struct Var { char name[32], type[64]; double low, high, *x; bool param; } Var;
typedef struct Text {
	const char *name;
	bool zero;
	Var var[MAX_VARS]; int nvar;
	Buf body;
} Text;

typedef struct Trial {
	Arena *arena;
	Diags diags;
	Module *m;
	Interp *in;
} Trial;

/* ---------------------------------------------------------------- the module of a case */
static void
module_text(const Text *c, Buf *b)
{
	buf_printf(b, "module gradient {batch=1 stage=typed hash=0000000000000000}\nsetting train.optimizer = sgd(rate "
	              "= 1, weight_decay = 0)\n");
	for (int i = 0; i < c->nvar; i++)
		if (c->var[i].param)
			buf_printf(b, "state @%s : %s = constant(0) {kind=param}\n", c->var[i].name, c->var[i].type);
	buf_printf(b, "graph train(%%seed: i64[] = seed, %%step: i64[] = step");
	for (int i = 0; i < c->nvar; i++)
		if (!c->var[i].param)
			buf_printf(b, ", %%%s: %s", c->var[i].name, c->var[i].type);
	buf_printf(b, ") {\n");
	for (int i = 0; i < c->nvar; i++)
		if (c->var[i].param)
			buf_printf(b, "  %%%s = load {state=%s} : %s\n", c->var[i].name, c->var[i].name,
			           c->var[i].type);
	buf_printf(b, "%s}\n", c->body.at ? c->body.at : "");
}

/* sum(v * cos(0.7 i + k)): no two elements weigh the same. */
static Val
weighed(Build *b, Val v, int k)
{
	Axis n = axis(type_elements(val_type(b->g, v)));
	DType dt = (DType)val_type(b->g, v)->dtype;
	Type t = type_of(dt, 1, &n);
	Val w = build_op(b, OP_iota, NULL, 0, ATTRS(AI(start, k)), &t);

	w = build(b, OP_cos, build(b, OP_mul, w, build_const(b, dt, 0.7)));
	return build_reduce(b, OP_sum, build(b, OP_mul, build_reshape(b, v, 1, &n), w), &(int64_t){0}, 1, false);
}

static bool
add_loss(Module *m)
{
	Graph *g = module_graph(m, "train");
	Build b = {.g = g};
	uint32_t n = g->val.n;
	Val loss = NOVAL;

	for (uint32_t i = 1; i < n; i++) {
		Val v = {i}, part;

		if (val_info(g, v)->name[0] != 'y')
			continue;
		part = weighed(&b, v, (int)i);
		loss = loss.id ? build(&b, OP_add, loss, part) : part;
	}
	if (b.error || !loss.id) {
		fprintf(stderr, "the loss does not build: %s\n", b.error ? b.error : "no value y");
		return false;
	}
	graph_add_result(g, loss, "loss", RES_LOSS);
	return true;
}

static bool
keeps_all(const Target *t, OpKind k)
{
	(void)t, (void)k;
	return true;
}

/* Cases whose names begin with `channels` are there for that pass. */
static int
loads_eight(const Target *t, const Graph *g, const Op *op, const SelectCx *cx)
{
	(void)t, (void)g, (void)op, (void)cx;
	return 8;
}

static bool
holds_pads(const Module *m)
{
	const Graph *g = module_graph((Module *)(uintptr_t)m, "train");

	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == OP_pad)
			return true;
	return false;
}

/* passes NULL: the forward graph alone. */
static bool
open_run(Trial *r, const Text *c, const char *passes, bool keep)
{
	Buf text = {0};
	Target target = {.name = "stand-in", .has_kernel = keeps_all, .layout.chunk = loads_eight};
	bool good;

	r->arena = arena_new();
	diags_init(&r->diags, r->arena, stderr);
	module_text(c, &text);
	r->m = module_parse(r->arena, &r->diags, c->name, text.at, text.n);
	good = r->m && add_loss(r->m);
	if (good && passes) {
		PassCtx cx = {.module = r->m, .target = keep ? &target : NULL, .opt = 2, .check = true, .only = passes};

		good = passes_run(r->m, &cx);
		if (good && !strncmp(passes, "channels", 8) && !strncmp(c->name, "channels", 8) && !holds_pads(r->m)) {
			fprintf(stderr, "FAIL %s: pass channels changed nothing\n", c->name);
			good = false;
		}
	}
	if (!good)
		fprintf(stderr, "%s", text.at);
	buf_free(&text);
	r->in = good ? interp_new(r->m, false) : NULL;
	return good;
}

static void
close_run(Trial *r)
{
	if (r->in)
		interp_free(r->in);
	arena_free(r->arena);
}

/* ---------------------------------------------------------------- numbers */
static double
random01(uint64_t *s)
{
	*s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
	return (double)(*s >> 11) * 0x1p-53;
}

static const Var *
var_named(const Text *c, const char *name)
{
	for (int i = 0; i < c->nvar; i++)
		if (!strcmp(c->var[i].name, name))
			return &c->var[i];
	return NULL;
}

static void
fill_states(const Text *c, Trial *r)
{
	for (uint32_t i = 0; i < r->m->state.n; i++) {
		const Var *v = var_named(c, r->m->state.at[i].name);
		uint64_t seed = hash_bytes(HASH_START, r->m->state.at[i].name, strlen(r->m->state.at[i].name));

		for (int64_t k = 0; v && k < type_elements(&r->m->state.at[i].type); k++)
			r->in->state[i].f[k] = v->x ? v->x[k] : v->low + (v->high - v->low) * random01(&seed);
	}
}

/* One run of graph train; NAN after an error. */
static double
evaluate(const Text *c, Trial *r)
{
	const Graph *g = module_graph(r->m, "train");
	const char *error;

	interp_begin(r->in, g, 1);
	for (uint32_t i = 0; i < g->input.n; i++) {
		RefTensor *x = interp_input(r->in, (int)i);
		const Var *v = var_named(c, g->input.at[i].name);
		uint64_t seed = 77 + i;

		if (v)
			for (int64_t k = 0; k < type_elements(val_type(g, g->input.at[i].v)); k++)
				ref_set(x, k, v->x ? v->x[k] : floor(random01(&seed) * v->high));
		else
			ref_set(x, 0, g->input.at[i].kind == IN_RATE ? 1 : 3);
	}
	error = interp_run(r->in);
	if (error) {
		fprintf(stderr, "%s: %s\n", c->name, error);
		return NAN;
	}
	return interp_result(r->in, 0)->f[0];
}

typedef struct Outcome { double worst, largest; char where[96]; } Outcome;

/* Differences of the forward graph against what a step of sgd(1) took away in the other. */
static void
compare_state(const Text *c, Trial *forward, const Trial *step, uint32_t i, const double *before, Outcome *o)
{
	int64_t n = type_elements(&forward->m->state.at[i].type);
	const char *name = forward->m->state.at[i].name;
	int64_t j = module_state(step->m, name) - step->m->state.at;

	int64_t every = var_named(c, name)->x && n > SMALL ? n / SPREAD : 1;

	for (int64_t k = 0; k < n && k < every * MAX_CHECKED; k += every) {
		double *x = &forward->in->state[i].f[k], up, down, wanted, is;

		*x = before[k] + STEP;
		up = evaluate(c, forward);
		*x = before[k] - STEP;
		down = evaluate(c, forward);
		*x = before[k];
		wanted = c->zero ? 0 : (up - down) / (2 * STEP);
		is = before[k] - step->in->state[j].f[k];
		o->largest = fmax(o->largest, fabs(wanted));
		if (!(fabs(wanted - is) <= o->worst)) {
			o->worst = fabs(wanted - is) == fabs(wanted - is) ? fabs(wanted - is) : INFINITY;
			snprintf(o->where, sizeof o->where, "%s[%lld]: %.9g, differences say %.9g", name, (long long)k,
			         is, wanted);
		}
	}
}

static bool
run_variant(const Text *c, const char *passes, bool keep)
{
	Trial forward = {0}, step = {0};
	Outcome o = {0};
	bool good = open_run(&forward, c, NULL, true) && open_run(&step, c, passes, keep);
	double a, b;

	if (good) {
		fill_states(c, &forward);
		fill_states(c, &step);
		a = evaluate(c, &forward);
		b = evaluate(c, &step);
		good = fabs(a - b) <= 1e-9 * (1 + fabs(a));
		if (!good)
			fprintf(stderr, "FAIL %s (%s): loss %.12g, forward alone %.12g\n", c->name, passes, b, a);
		for (uint32_t i = 0; i < forward.m->state.n; i++) {
			size_t bytes = sizeof(double) * (size_t)type_elements(&forward.m->state.at[i].type);
			double *before = memcpy(malloc(bytes), forward.in->state[i].f, bytes);

			compare_state(c, &forward, &step, i, before, &o);
			free(before);
		}
		if (o.worst > BOUND * (1 + o.largest) || (o.largest == 0) != c->zero) {
			fprintf(stderr, "FAIL %s (%s): off by %.3g of %.3g: %s\n", c->name, passes, o.worst, o.largest,
			        o.where);
			good = false;
		}
	} else {
		fprintf(stderr, "FAIL %s (%s): does not build\n", c->name, passes);
	}
	if (forward.arena)
		close_run(&forward);
	if (step.arena)
		close_run(&step);
	return good;
}

/* ---------------------------------------------------------------- cases */
typedef struct Counts { const char *filter; int passed, failed; bool seen[OP_COUNT]; } Counts;

static void
run_text(const Text *c, Counts *n)
{
	static const char *const passes[] = {"autodiff,optimizer", "autodiff,optimizer,decompose",
	                                     "autodiff,optimizer,decompose,fold,cse,dce",
	                                     "channels,autodiff,optimizer,fold,cse,dce"};
	bool good = true;

	for (int i = 0; i < (strstr(c->body.at, "conv2d") ? 4 : 3); i++)
		good = run_variant(c, passes[i], i % 3 == 0) && good;
	n->passed += good;
	n->failed += !good;
}

static bool
has_gradient(OpKind k)
{
	const OpInfo *info = &op_info[k];

	if (info->ew < 0)
		return info->grad && !op_has(k, T_LOOP);
	for (int part = 1; info->part == 0 && part < 4; part++) /* NONE has no expression */
		if (op_info[(int)k + part].expr)
			return true;
	return false;
}

/* ---------------------------------------------------------------- lines of ../operators */
static void
line_vars(const Case *c, double **x, Text *t)
{
	for (int k = 0; k < c->nin; k++) {
		Var *v = &t->var[t->nvar++];
		Buf type = {0};

		type_print(&type, &c->in[k]);
		snprintf(v->type, sizeof v->type, "%s", type.at);
		buf_free(&type);
		snprintf(v->name, sizeof v->name, "x%d", k);
		v->param = dtype_is_float((DType)c->in[k].dtype) && k != c->fixed;
		v->x = x[k];
	}
}

/* The operator as a line of the IR's text; in the loss are all results, or only that one. False: it has none there. */
static bool
line_body(const Case *c, const Problem *p, int only, Buf *b)
{
	const char *brace = strchr(c->line, '{');
	bool used = false;

	for (int k = 0; k < p->nresult; k++) {
		/* nothing reads lstm's cell states of every step but lstm.dx */
		bool in_loss = dtype_is_float((DType)val_type(p->g, p->op.out[k])->dtype) && (only < 0 || k == only) &&
		               !(c->kind == OP_lstm && k == 1);

		buf_printf(b, "%s%%%s%d", k ? ", " : "  ", in_loss ? "y" : "n", k);
		used |= in_loss;
	}
	buf_printf(b, " = %s", op_info[c->kind].name);
	for (int k = 0; k < c->nin; k++)
		buf_printf(b, "%s %%x%d", k ? "," : "", k);
	if (brace)
		buf_printf(b, " %.*s", (int)(strchr(brace, '}') + 1 - brace), brace);
	for (int k = 0; k < p->nresult; k++) {
		buf_printf(b, k ? ", " : " : ");
		type_print(b, val_type(p->g, p->op.out[k]));
	}
	buf_printf(b, "\n");
	return used;
}

static void
run_line(Run *r, const char *line, Counts *n)
{
	Case c;
	Problem p = {0};
	Build b;
	double **x;
	bool params = false;

	if (!read_case(r, line, (Batch){.n = 1}, &c) || c.error || c.kernel || c.time || strchr(line, 'N') ||
	    !has_gradient(c.kind) || !problem_forward(r, &c, (Batch){.n = 1}, &p, &b))
		return; /* what cannot be read, numeric tells */
	x = room(r, p.g);
	fill_inputs(&c, p.g, x);
	for (int only = -1; only < (p.nresult > 1 ? p.nresult : 0); only++) {
		Text t = {.name = c.line, .zero = c.flat};

		line_vars(&c, x, &t);
		for (int k = 0; k < t.nvar; k++)
			params |= t.var[k].param;
		if (line_body(&c, &p, only, &t.body) && params) {
			run_text(&t, n);
			n->seen[c.kind] = true;
		}
		buf_free(&t.body);
	}
}

static void
run_lines(const char *path, Counts *n)
{
	Run r = {.arena = arena_new()};
	Lines lines = {.a = r.arena};

	diags_init(&r.diags, r.arena, stderr);
	read_lines(&lines, path, n->filter);
	for (uint32_t i = 0; i < lines.at.n; i++)
		run_line(&r, lines.at.at[i], n);
	n->failed += r.nfailed;
	arena_free(r.arena);
}

/* ---------------------------------------------------------------- graphs.txt */
static void
read_var(Text *c, const char *line)
{
	Var *v = &c->var[c->nvar++];

	*v = (Var){.low = -1.5, .high = 1.5};
	if (c->nvar == MAX_VARS || sscanf(line, "%31s : %63s", v->name, v->type) != 2)
		die("graphs.txt: not a parameter: %s", line);
	v->param = v->type[0] == 'f' || v->type[1] == 'f';
	line = strchr(line, ']') + 1;
	sscanf(line, v->param ? "%lf %lf" : "%*[ ]%lf", v->param ? &v->low : &v->high, &v->high);
}

/* Of a line `%y = relu %a ...`: the operator. */
static OpKind
line_op(const char *line)
{
	char name[64];

	return sscanf(line, "%*[^=]= %63s", name) == 1 ? op_named(name) : OP_none;
}

static void
run_graphs(const char *path, Counts *n)
{
	size_t bytes;
	char *text = file_read(path, &bytes), name[64] = "";
	Text c = {.name = name};

	if (!text)
		die("cannot read %s", path);
	for (char *l = text, *next; l; l = next) {
		next = strchr(l, '\n');
		if (next)
			*next++ = 0;
		if (!next || !strncmp(l, "case ", 5)) {
			if (*name && strstr(name, n->filter))
				run_text(&c, n);
			buf_free(&c.body);
			c = (Text){.name = name, .zero = strstr(l, " zero") != NULL};
			sscanf(l, "case %63s", name);
		} else if (*l == '%') {
			buf_printf(&c.body, "  %s\n", l);
			n->seen[line_op(l)] = true;
		} else if (*l && *l != '#') {
			read_var(&c, l);
		}
	}
	free(text);
}

/* Every row of the tables that has a gradient needs a case; rows without one are told by the tables themselves. */
static int
check_tables(const bool *seen)
{
	int missing = 0;

	for (int k = OP_none + 1; k < OP_COUNT; k++)
		if (has_gradient((OpKind)k) && !seen[k]) {
			fprintf(stderr, "FAIL %s: no small line in tests/operators that has a gradient\n",
			        op_info[k].name);
			missing++;
		}
	return missing;
}

int
main(int argc, char **argv)
{
	Counts n = {.filter = ""};
	bool all = false;

	ir_init();
	if (argc < 2)
		die("gradient FOLDER|FILE.. [WORD]");
	for (int k = 1; k < argc; k++)
		if (!is_folder(argv[k]) && !strstr(argv[k], ".txt"))
			n.filter = argv[k];
	for (int k = 1; k < argc; k++) {
		if (strstr(argv[k], "graphs.txt"))
			run_graphs(argv[k], &n);
		else if (is_folder(argv[k]) || strstr(argv[k], ".txt"))
			run_lines(argv[k], &n);
		all |= is_folder(argv[k]);
	}
	if (all && !*n.filter)
		n.failed += check_tables(n.seen);
	printf("%d passed, %d failed, 0 skipped\n", n.passed, n.failed);
	return n.failed != 0;
}
