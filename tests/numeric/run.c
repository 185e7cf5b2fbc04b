/* run.c: runs numeric/cases.txt: every operator forward and backward on the reference evaluator, in double.
 *
 * In: the case file, and a word that names must contain (optional).  Out: a line per failure, the number of cases, exit
 * 1 if any failed.
 * Gradient: the operator's rule against central differences of L = sum w r, with w random; a case whose gradients are
 * all zero fails unless it says `flat`. An operator with an expansion is run both ways, forward and backward: the
 * values must agree.
 * Rows of ew.def: the tokens pasted into C against the parsed expression, values and derivatives, at random points.
 * Lines with N: an incomplete batch gives what a graph of that size gives. Lines with =>: the shape rule's message.
 * At the end: rows of the tables without a case fail. Inputs come from Philox, stream = the case's line, so that any
 * case runs alone; steps and bounds are for values of order 1. */
#include "../../ir/interp.h"
#include "../../ir/ref.h"
#include "../../runtime/philox.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IN 16
#define STEP 1e-4
#define BOUND 2e-5           /* of the largest gradient: truncation STEP^2 f''' / 6, with f''' up to some thousands */
#define SAME 1e-9
#define TRIES 40             /* elements per operand whose difference is taken */

typedef struct Case {
	char *line;
	const char *error;       /* text that the shape rule's message must hold, NULL: none */
	OpKind kind;
	Type in[MAX_IN], result;
	int nin, fixed;
	bool has_result, flat, full;
	AttrArg attr[12];
	int64_t list[12][8];
	char text[12][32];
	double low[4], high[4];
	int nrange;
	int64_t id_low, id_high;
} Case;

/* How N in an extent is read: as an axis of batch that follows it, or as a plain n. */
typedef struct Batch { int64_t n; bool marked; } Batch;
/* quiet: what fails is not said, nor counted */
typedef struct Run { Arena *arena; Diags diags; int ncase, nfailed; bool quiet, seen[OP_COUNT]; } Run;

static void
failed(Run *r, const char *line, const char *fmt, ...)
{
	va_list ap;

	if (r->quiet)
		return;
	va_start(ap, fmt);
	printf("FAIL %s: ", line);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	r->nfailed++;
}

/* ---------------------------------------------------------------- reading a case */
static void
skip(const char **p)
{
	while (**p == ' ' || **p == ',' || **p == '\t')
		++*p;
}

/* 5, N, 2N */
static bool
read_extent(const char **p, Batch batch, Axis *a)
{
	char *end;
	int64_t n = strtoll(*p, &end, 10);

	if (end == *p && *end != 'N')
		return false;
	n = end == *p ? 1 : n;
	*a = axis(*end == 'N' ? n * batch.n : n);
	if (*end == 'N' && batch.marked)
		a->mul = (int32_t)n;
	*p = end + (*end == 'N');
	return true;
}

static bool
read_type(const char **p, Batch batch, Type *t)
{
	const char *open = strchr(*p, '[');
	Axis axes[MAX_RANK];
	DType dt;
	int n = 0;

	if (!open || (dt = dtype_named(*p, (size_t)(open - *p))) == DT_none)
		return false;
	for (*p = open + 1; **p != ']' && n < MAX_RANK; n++) {
		if (!read_extent(p, batch, &axes[n]))
			return false;
		*p += **p == ',';
	}
	if (**p != ']')
		return false;
	++*p;
	*t = type_of(dt, n, axes);
	return true;
}

static AttrName
attr_of(const char *p, size_t n)
{
	for (int i = 0; i < A_COUNT; i++)
		if (strlen(attr_names[i].name) == n && strncmp(attr_names[i].name, p, n) == 0)
			return (AttrName)i;
	return A_COUNT;
}

/* name=value, the value a number, true, false, [numbers] or "text". */
static bool
read_attr(const char **p, Case *c, int at)
{
	size_t n = strcspn(*p, "=");
	AttrArg *a = &c->attr[at];
	char *end;

	*a = (AttrArg){.name = attr_of(*p, n)};
	if (a->name == A_COUNT)
		return false;
	a->kind = attr_names[a->name].kind;
	*p += n + 1;
	switch (a->kind) {
	case AK_BOOL:
		a->i = **p == 't';
		*p += strcspn(*p, " }");
		return true;
	case AK_STR:
		n = strcspn(++*p, "\"");
		snprintf(c->text[at], sizeof c->text[at], "%.*s", (int)n, *p);
		a->s = c->text[at];
		*p += n + 1;
		return true;
	case AK_INTS:
		for (++*p; **p != ']' && a->n < 8; *p = end + (*end == ','))
			c->list[at][a->n++] = strtoll(*p, &end, 10);
		a->list = c->list[at];
		++*p;
		return true;
	case AK_INT:
		a->i = strtoll(*p, &end, 10);
		*p = end;
		return true;
	default:
		a->f = strtod(*p, &end);
		n = strspn(*p + (**p == '-'), "0123456789") + (**p == '-');
		if (*p + n == end) { /* whole, and no double may hold it */
			a->kind = AK_INT;
			a->i = strtoll(*p, NULL, 10);
		}
		*p = end;
		return true;
	}
}

static bool
read_directives(const char *p, Case *c)
{
	char word[16];
	int n;

	for (skip(&p); sscanf(p, "%15s%n", word, &n) == 1; skip(&p)) {
		p += n;
		if (strcmp(word, "flat") == 0)
			c->flat = true;
		else if (strcmp(word, "full") == 0)
			c->full = true;
		else if (strcmp(word, "ids") == 0 &&
		         sscanf(p, "%lld %lld%n", (long long *)&c->id_low, (long long *)&c->id_high, &n) == 2)
			p += n;
		else if (strcmp(word, "fixed") == 0 && sscanf(p, "%d%n", &c->fixed, &n) == 1)
			p += n;
		else if (strcmp(word, "range") == 0) {
			c->nrange = 0;
			while (c->nrange < 4 &&
			       sscanf(p, "%lf %lf%n", &c->low[c->nrange], &c->high[c->nrange], &n) == 2) {
				c->nrange++;
				p += n;
			}
		} else
			return false;
	}
	return true;
}

static bool
read_case(Run *r, const char *line, Batch batch, Case *c)
{
	char name[32];
	const char *p = line;
	int n, nattr = 0;

	*c = (Case){
	        .line = arena_strdup(r->arena, line), .fixed = -1, .low = {-2}, .high = {2}, .nrange = 1, .id_high = 3};
	if (sscanf(p, "%31s%n", name, &n) != 1 || (c->kind = op_named(name)) == OP_none)
		return false;
	p += n;
	for (skip(&p); *p && !strchr("{-;=", *p); skip(&p))
		if (c->nin == MAX_IN || !read_type(&p, batch, &c->in[c->nin++]))
			return false;
	if (*p == '{')
		for (++p; *p && *p != '}'; skip(&p))
			if (nattr == 11 || !read_attr(&p, c, nattr++))
				return false;
	c->attr[nattr].name = A_COUNT;
	p += *p == '}';
	skip(&p);
	if (strncmp(p, "->", 2) == 0) {
		p += 2;
		skip(&p);
		if (!read_type(&p, batch, &c->result))
			return false;
		c->has_result = true;
		skip(&p);
	}
	if (strncmp(p, "=>", 2) == 0) {
		for (p += 2; *p == ' '; p++)
			;
		c->error = arena_strdup(r->arena, p);
		return true;
	}
	return *p == ';' ? read_directives(p + 1, c) : *p == 0;
}

/* ---------------------------------------------------------------- graphs */
/* A module with one graph: operands as inputs, the operator, its results; if wanted its gradients (results behind
 * them). */
typedef struct Problem {
	Module *m;
	Graph *g;
	Op op;
	int nresult;             /* of the operator */
	bool used[8];            /* results that take part in L */
	int weight[8];           /* input that holds the weights of result k, -1 */
	int grad[MAX_IN];        /* result that holds the gradient of operand k, -1 */
} Problem;

static bool
problem_forward(Run *r, const Case *c, Batch batch, Problem *p, Build *b)
{
	Val in[MAX_IN];

	p->m = module_new(r->arena, &r->diags, "case");
	p->m->batch = batch.n;
	p->g = module_add_graph(p->m, batch.marked ? "eval" : "train");
	p->g->training = !batch.marked;
	for (int k = 0; k < c->nin; k++)
		in[k] = graph_add_input(p->g, c->in[k], "x", IN_DATA);
	*b = (Build){.g = p->g, .path = ""};
	if (op_info[c->kind].nin >= 0 && op_info[c->kind].nin != c->nin) {
		failed(r, c->line, "%d operands, the operator has %d", c->nin, op_info[c->kind].nin);
		return false;
	}
	build_op(b, c->kind, in, c->nin, c->attr, c->has_result ? &c->result : NULL);
	if (c->error && (!b->error || !strstr(b->error, c->error)))
		failed(r, c->line, "the message is \"%s\"", b->error ? b->error : "none");
	if (b->error && !c->error)
		failed(r, c->line, "%s", b->error);
	if (b->error)
		return false;
	p->op = *build_last(b);
	p->nresult = p->op.nout;
	for (int k = 0; k < p->nresult; k++)
		graph_add_result(p->g, p->op.out[k], "r", RES_OUTPUT);
	return true;
}

/* The gradients of L: weights of the used results as inputs, the rule, a result per operand that has a gradient. */
static bool
problem_backward(Run *r, const Case *c, Problem *p, Build *b)
{
	Val dout[8] = {NOVAL}, din[MAX_IN] = {NOVAL};
	bool need[MAX_IN] = {false};

	for (int k = 0; k < p->nresult; k++) {
		Type t = *val_type(p->g, p->op.out[k]);

		p->weight[k] = -1;
		p->used[k] = p->used[k] && dtype_is_float((DType)t.dtype);
		if (!p->used[k])
			continue;
		p->weight[k] = (int)p->g->input.n;
		dout[k] = graph_add_input(p->g, t, "w", IN_DATA);
	}
	for (int k = 0; k < c->nin; k++)
		need[k] = dtype_is_float((DType)c->in[k].dtype) && k != c->fixed;
	op_info[c->kind].grad(b, &p->op, dout, need, din);
	if (b->error) {
		failed(r, c->line, "gradient: %s", b->error);
		return false;
	}
	for (int k = 0; k < c->nin; k++) {
		p->grad[k] = -1;
		if (!din[k].id)
			continue;
		if (!type_same(val_type(p->g, din[k]), &c->in[k])) {
			failed(r, c->line, "the gradient of operand %d has another type", k);
			return false;
		}
		p->grad[k] = (int)p->g->result.n;
		graph_add_result(p->g, din[k], "d", RES_OUTPUT);
	}
	return true;
}

/* The same module with every composite op decomposed, but for those that keep (if it is given) wants to stay. NULL if
 * there is nothing to decompose. */
static Module *
decomposed(Run *r, const Module *from, bool (*keep)(const Graph *, const Op *))
{
	Module *m = module_new(r->arena, &r->diags, "decomposed");
	const Graph *old = from->graph.at[0];
	Graph *g = module_add_graph(m, "train");
	Val *map = arena_array(r->arena, Val, old->val.n);
	Build b = {.g = g, .path = ""};
	bool any = false;

	m->batch = 1;
	g->training = true;
	for (uint32_t i = 0; i < old->input.n; i++)
		map[old->input.at[i].v.id] = graph_add_input(g, *val_type(old, old->input.at[i].v), "x", IN_DATA);
	for (uint32_t i = 0; i < old->op.n; i++) {
		Op op = old->op.at[i];
		Val *in = arena_array(r->arena, Val, op.nin), out[8] = {NOVAL};
		AttrArg attrs[12] = {{.name = A_COUNT}};

		for (int k = 0; k < op.nin; k++)
			in[k] = map[op.in[k].id];
		op.in = in;
		if (op_info[op.kind].decompose && !(keep && keep(old, &old->op.at[i]))) {
			op_info[op.kind].decompose(&b, &op, out);
			any = true;
		} else {
			Type *types = arena_array(r->arena, Type, op.nout);

			for (int k = 0; k < op.nout; k++)
				types[k] = *val_type(old, op.out[k]);
			for (int k = 0; k < op.nattr; k++) {
				const Attr *a = &op.attr[k];
				AttrKind kind = attr_names[a->name].kind;

				attrs[k] = (AttrArg){.name = (AttrName)a->name,
				                     .kind = kind == AK_NUM && a->is_int ? AK_INT : kind,
				                     .n = a->n};
				if (kind == AK_STR)
					attrs[k].s = a->s;
				else if (kind == AK_INTS)
					attrs[k].list = a->list;
				else if (kind == AK_NUM && !a->is_int)
					attrs[k].f = a->f;
				else
					attrs[k].i = a->i;
				attrs[k + 1].name = A_COUNT;
			}
			build_op_n(&b, (OpKind)op.kind, in, op.nin, attrs, types, op.nout);
			for (int k = 0; !b.error && k < op.nout; k++)
				out[k] = build_last(&b)->out[k];
		}
		if (b.error) {
			failed(r, op_info[op.kind].name, "expansion: %s", b.error);
			return NULL;
		}
		for (int k = 0; k < op.nout; k++)
			map[op.out[k].id] = out[k];
	}
	for (uint32_t i = 0; i < old->result.n; i++)
		graph_add_result(g, map[old->result.at[i].v.id], "r", RES_OUTPUT);
	return any ? m : NULL;
}

/* ---------------------------------------------------------------- numbers */
/* u has 24 bits; of wide ranges 24 more say where between. */
static double
whole_between(int64_t low, int64_t high, double u, uint32_t stream, uint64_t *j)
{
	double span = (double)high - (double)low + 1;

	if (span > 0x1p24)
		u += 0x1p-24 * philox_uniform(7, stream, 0, (*j)++);
	return fmin((double)low + floor(u * span), (double)high);
}

static void
fill_inputs(const Case *c, const Graph *g, double **x)
{
	uint32_t stream = philox_stream(c->line);
	int nfloat = 0;
	uint64_t j = 0;

	for (uint32_t k = 0; k < g->input.n; k++) {
		const Type *t = val_type(g, g->input.at[k].v);
		int range = nfloat < c->nrange ? nfloat : c->nrange - 1;
		bool weight = (int)k >= c->nin;
		double low = weight ? -1 : c->low[range], high = weight ? 1 : c->high[range];
		int64_t n = type_elements(t);

		nfloat += dtype_is_float((DType)t->dtype);
		for (int64_t i = 0; i < n; i++) {
			double u = philox_uniform(7, stream, 0, j++);

			x[k][i] = dtype_is_float((DType)t->dtype) ? low + (high - low) * u
			          : t->dtype == DT_bool ? u < 0.6 : whole_between(c->id_low, c->id_high, u, stream, &j);
		}
	}
}

static const char *
run_graph(Interp *in, const Graph *g, int64_t n, double **x)
{
	interp_begin(in, g, n);
	for (uint32_t k = 0; k < g->input.n; k++) {
		RefTensor *to = interp_input(in, (int)k);

		for (int64_t i = 0; i < to->n; i++)
			ref_set(to, i, x[k][i]);
	}
	return interp_run(in);
}

static double
weighted(const Interp *in, const Problem *p, double **x)
{
	double sum = 0;

	for (int k = 0; k < p->nresult; k++)
		if (p->used[k]) {
			const RefTensor *t = interp_result(in, k);

			for (int64_t i = 0; i < t->n; i++)
				sum += x[p->weight[k]][i] * t->f[i];
		}
	return sum;
}

/* The same place for NaN and infinity; elsewhere within a relative bound. */
static bool
agree(double a, double b, double bound)
{
	return (a != a && b != b) || a == b || fabs(a - b) <= bound * (1 + fabs(a));
}

/* Every result of the decomposed module against the module's own. */
static void
compare_decomposed(Run *r, const Case *c, Interp *in, const Graph *g, double **x)
{
	Module *m = decomposed(r, in->module, NULL);
	Interp *other;

	if (!m)
		return;
	other = interp_new(m, false);
	if (run_graph(other, m->graph.at[0], 1, x)) {
		failed(r, c->line, "the expansion does not run");
		return;
	}
	for (uint32_t k = 0; k < g->result.n; k++) {
		const RefTensor *a = interp_result(in, (int)k), *b = interp_result(other, (int)k);

		for (int64_t i = 0; i < a->n; i++)
			if (!agree(ref_get(a, i), ref_get(b, i), SAME)) {
				failed(r, c->line, "result %u, element %lld: %.12g, decomposed %.12g", k, (long long)i,
				       ref_get(a, i), ref_get(b, i));
				break;
			}
	}
	interp_free(other);
}

/* Central differences of L in operand k against g. Returns the largest gradient seen. */
static double
check_operand(Run *r, const Case *c, const Problem *p, int k, const double *g, double **x)
{
	Interp *in = interp_new(p->m, false);
	int64_t n = type_elements(&c->in[k]), every = n > TRIES ? n / TRIES : 1;
	double largest = 0;

	for (int64_t i = 0; i < n; i++)
		largest = fabs(g[i]) > largest ? fabs(g[i]) : largest;
	for (int64_t i = 0; i < n; i += every) {
		double at = x[k][i], high, low;

		x[k][i] = at + STEP;
		run_graph(in, p->g, 1, x);
		high = weighted(in, p, x);
		x[k][i] = at - STEP;
		run_graph(in, p->g, 1, x);
		low = weighted(in, p, x);
		x[k][i] = at;
		if (!(fabs((high - low) / (2 * STEP) - g[i]) <= BOUND * (largest + 0.01))) {
			failed(r, c->line, "operand %d, element %lld: gradient %.9g, difference %.9g", k, (long long)i,
			       g[i], (high - low) / (2 * STEP));
			break;
		}
	}
	interp_free(in);
	return largest;
}

static double **
room(Run *r, const Graph *g)
{
	double **x = arena_array(r->arena, double *, g->input.n);

	for (uint32_t k = 0; k < g->input.n; k++) {
		int64_t n = type_elements(val_type(g, g->input.at[k].v));

		x[k] = arena_array(r->arena, double, n);
	}
	return x;
}

/* All results take part in L, or only the first: gradient rules may go another way then. */
static void
run_case(Run *r, const Case *c, bool first_only)
{
	Problem p = {0};
	Build b;
	bool differentiable = op_info[c->kind].grad != NULL;
	double largest = 0, **x;
	const char *error;
	Interp *in;
	int wanted = 0;

	if (!problem_forward(r, c, (Batch){.n = 1}, &p, &b))
		return;
	for (int k = 0; k < p.nresult; k++) /* nothing reads lstm's cell states of every step but lstm.dx */
		p.used[k] = !(first_only && k > 0) && !(c->kind == OP_lstm && k == 1);
	for (int k = 0; k < MAX_IN; k++)
		p.grad[k] = -1;
	if (differentiable && !problem_backward(r, c, &p, &b))
		return;
	x = room(r, p.g);
	fill_inputs(c, p.g, x);
	in = interp_new(p.m, false);
	if ((error = run_graph(in, p.g, 1, x))) {
		failed(r, c->line, "%s", error);
		return;
	}
	compare_decomposed(r, c, in, p.g, x);
	for (int k = 0; k < c->nin; k++)
		if (p.grad[k] >= 0) {
			double g = check_operand(r, c, &p, k, interp_result(in, p.grad[k])->f, x);

			largest = g > largest ? g : largest;
			wanted++;
		}
	if (wanted && largest == 0 && !c->flat)
		failed(r, c->line, "all gradients are zero");
	if (wanted && largest > 0 && c->flat)
		failed(r, c->line, "gradients are not zero");
	interp_free(in);
}

/* ---------------------------------------------------------------- batches */
/* A batch of 3 of a graph for 4 (marked) against a graph for 3: the same values of the same extents. */
static void
run_batches(Run *r, const char *line)
{
	Batch of4 = {.n = 4, .marked = true}, of3 = {.n = 3};
	Case c4, c3;
	Problem p4 = {0}, p3 = {0};
	Build b;
	Interp *in4, *in3;
	double **x;
	const char *error;

	if (!read_case(r, line, of4, &c4) || !read_case(r, line, of3, &c3) || !problem_forward(r, &c4, of4, &p4, &b))
		return;
	if (p4.g->full_only != c4.full)
		failed(r, line, "only whole batches run: %s", p4.g->full_only ? p4.g->full_why : "expected");
	if (c4.full || !problem_forward(r, &c3, of3, &p3, &b))
		return;
	x = room(r, p3.g);
	fill_inputs(&c3, p3.g, x);
	in4 = interp_new(p4.m, false);
	in3 = interp_new(p3.m, false);
	if ((error = run_graph(in4, p4.g, 3, x)) || (error = run_graph(in3, p3.g, 3, x))) {
		failed(r, line, "%s", error);
		return;
	}
	for (int k = 0; k < p3.nresult; k++) {
		const RefTensor *a = interp_result(in4, k), *want = interp_result(in3, k);

		for (int i = 0; i < want->type.rank; i++)
			if (a->type.rank != want->type.rank ||
			    ref_extent(&in4->cx, a->type.axis[i]) != want->type.axis[i].n) {
				failed(r, line, "result %d, axis %d: another extent for a batch of 3", k, i);
				return;
			}
		for (int64_t i = 0; i < want->n; i++)
			if (!agree(ref_get(a, i), ref_get(want, i), 0)) {
				failed(r, line, "result %d, element %lld: %.9g in a batch of 3, want %.9g", k,
				       (long long)i, ref_get(a, i), ref_get(want, i));
				return;
			}
	}
	interp_free(in4);
	interp_free(in3);
}

/* ---------------------------------------------------------------- the tables */
/* Pasted against parsed, at random points. */
static void
check_expression(Run *r, OpKind k)
{
	const OpInfo *info = &op_info[k];
	Case c = {.line = (char *)info->name,
	          .kind = k,
	          .low = {-3},
	          .high = {3},
	          .nrange = 1,
	          .id_low = -5,
	          .id_high = 5,
	          .fixed = -1};
	DType dt = strchr(info->types, 'F') ? DT_f64 : strchr(info->types, 'I') ? DT_i32 : DT_bool;
	Axis n = axis(200);
	Problem p = {0};
	Build b;
	double **x;
	Interp *in;

	for (const char *l = info->operands; *l; l++)
		c.in[c.nin++] = type_of(*l == 'x' && info->ew == op_info[OP_where].ew ? DT_bool : dt, 1, &n);
	if (c.nin == 0)
		return;
	for (int i = 0; i < info->nattr; i++)
		c.attr[i] = (AttrArg){.name = (AttrName)info->attr_name[i], .kind = AK_NUM, .f = i ? 1.25 : -0.5};
	c.attr[info->nattr].name = A_COUNT;
	if (!problem_forward(r, &c, (Batch){.n = 1}, &p, &b))
		return;
	x = room(r, p.g);
	fill_inputs(&c, p.g, x);
	in = interp_new(p.m, false);
	if (run_graph(in, p.g, 1, x)) {
		failed(r, info->name, "does not run");
		return;
	}
	for (int64_t i = 0; i < 200; i++) {
		double var[7] = {0, 0, 0, 0, 0, -0.5, 1.25}, want, got = ref_get(interp_result(in, 0), i);

		for (int j = 0; j < c.nin; j++)
			var[strchr("xyzrg", info->operands[j]) - "xyzrg"] = x[j][i];
		want = expr_eval(info->expr, var);
		if (!agree(want, got, 1e-12)) {
			failed(r, info->name, "pasted %.17g, parsed %.17g", got, want);
			break;
		}
	}
	interp_free(in);
}

static void
check_tables(Run *r)
{
	for (int k = OP_none + 1; k < OP_COUNT; k++) {
		const OpInfo *info = &op_info[k];

		if (info->ew >= 0 && info->expr)
			check_expression(r, (OpKind)k);
		if ((info->ew >= 0 && info->part > 0) || op_has((OpKind)k, T_LOOP | T_STATE) || k == OP_update ||
		    r->seen[k])
			continue;
		if (!(info->decompose && strstr(info->name, ".dx")))  /* these run inside their operator's cases */
			failed(r, info->name, "no line in tests/numeric/cases.txt");
	}
}

int
main(int argc, char **argv)
{
	FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
	const char *filter = argc > 2 ? argv[2] : "";
	char line[512];
	Run r = {.arena = arena_new()};

	if (!f) {
		fprintf(stderr, "usage: %s cases.txt [WORD]\n", argv[0]);
		return 2;
	}
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	while (fgets(line, sizeof line, f)) {
		Case c;

		line[strcspn(line, "\r\n")] = 0;
		if (line[0] == '#' || line[strspn(line, " \t")] == 0 || !strstr(line, filter))
			continue;
		r.ncase++;
		if (!read_case(&r, line, (Batch){.n = 4, .marked = true}, &c)) {
			failed(&r, line, "cannot be read");
			continue;
		}
		r.seen[c.kind] = true;
		if (strpbrk(line, "N") && !c.error) {
			run_batches(&r, line);
			continue;
		}
		run_case(&r, &c, false);
		if (op_info[c.kind].nout > 1 && !c.error)
			run_case(&r, &c, true);
	}
	fclose(f);
	if (!*filter)
		check_tables(&r);
	printf("%d cases, %d failures\n", r.ncase, r.nfailed);
	return r.nfailed != 0;
}
