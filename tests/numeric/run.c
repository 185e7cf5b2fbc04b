/* run.c: runs the cases of ../operators: every operator forward and backward on the reference evaluator, in double.
 *
 * In: that folder or a file of it, and a word that lines must contain (optional).  Out: a line per failure, the number
 * of cases, exit 1 if any failed. Lines for kernels alone, or that are timed, are read, nothing more.
 * Gradient: the operator's rule against central differences of L = sum w r, with w random; a case whose gradients are
 * all zero fails unless it says `flat`. An operator with an expansion is run both ways, forward and backward: the
 * values must agree.
 * Rows of ew.def: the tokens pasted into C against the parsed expression, values and derivatives, at random points.
 * Lines with N: an incomplete batch gives what a graph of that size gives. Lines with =>: the shape rule's message.
 * At the end: rows of the tables without a case fail. Steps and bounds are for values of order 1. */
#include "../operators/cases.h"
#include "../../ir/ref.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP 1e-4
#define BOUND 2e-5           /* of the largest gradient: truncation STEP^2 f''' / 6, with f''' up to some thousands */
#define SAME 1e-9
#define TRIES 40             /* elements per operand whose difference is taken */

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
			failed(r, info->name, "no line in tests/operators, but for kernels alone");
	}
}

static void
run_line(Run *r, const char *line)
{
	Case c;

	if (!read_case(r, line, (Batch){.n = 4, .marked = true}, &c)) {
		failed(r, line, "cannot be read");
		return;
	}
	if (c.kernel || c.time)
		return;
	r->ncase++;
	r->seen[c.kind] = true;
	if (strpbrk(line, "N") && !c.error) {
		run_batches(r, line);
		return;
	}
	run_case(r, &c, false);
	if (op_info[c.kind].nout > 1 && !c.error)
		run_case(r, &c, true);
}

int
main(int argc, char **argv)
{
	Run r = {.arena = arena_new()};
	Lines lines = {.a = r.arena};

	if (argc < 2) {
		fprintf(stderr, "usage: %s FOLDER|FILE [WORD]\n", argv[0]);
		return 2;
	}
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	read_lines(&lines, argv[1], argc > 2 ? argv[2] : "");
	for (uint32_t i = 0; i < lines.at.n; i++)
		run_line(&r, lines.at.at[i]);
	if (argc < 3 && is_folder(argv[1]))
		check_tables(&r);
	printf("%d cases, %d failures\n", r.ncase, r.nfailed);
	return r.nfailed != 0;
}
