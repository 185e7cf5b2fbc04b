/* cases.h: cases of operators, a line each: what reads them, fills their inputs and builds their graphs, for the tests
 * of the rules (numeric) and of the targets' kernels (cpu, cuda). */
#ifndef TESTS_OPERATORS_CASES_H
#define TESTS_OPERATORS_CASES_H
#include "../../ir/interp.h"

enum { MAX_IN = 16 };

typedef struct Case {
	char *line;
	const char *error; /* text that the shape rule's message must hold, NULL: none */
	OpKind kind;
	Type in[MAX_IN], result;
	int nin, fixed;
	bool has_result, flat, full, kernel, reference;
	int64_t time; /* N of the sizes that are timed; 0: it is not timed */
	AttrArg attr[12];
	int64_t list[12][8];
	char text[12][32];
	double low[4], high[4];
	int nrange;
	int64_t id_low, id_high;
} Case;

/* How N in an extent is read: as an axis of batch that follows it, or as a plain n. */
typedef struct Batch {
	int64_t n;
	bool marked;
} Batch;
/* quiet: what fails is not said, nor counted; told: where it is said, NULL: stdout */
typedef struct Run {
	Arena *arena;
	Diags diags;
	FILE *told;
	int ncase, nfailed;
	bool quiet, seen[OP_COUNT];
} Run;

/* A module with one graph: operands as inputs, the operator, its results; if wanted its gradients (results behind
 * them). */
typedef struct Problem {
	Module *m;
	Graph *g;
	Op op;
	int nresult;      /* of the operator */
	bool used[8];     /* results that take part in L */
	int weight[8];    /* input that holds the weights of result k, -1 */
	int grad[MAX_IN]; /* result that holds the gradient of operand k, -1 */
} Problem;

typedef struct Lines {
	Arena *a;
	VEC(const char *) at;
} Lines;

/* ---- cases.c */
void failed(Run *r, const char *line, const char *fmt, ...); /* prints and counts it */
bool is_folder(const char *path);
/* The lines of a file, or of each .txt of a folder, that hold the word and are no comments. */
void read_lines(Lines *l, const char *path, const char *word);
bool line_says(const char *line, const char *directive);        /* without any number behind it */
bool read_case(Run *r, const char *line, Batch batch, Case *c); /* false: it has not that form */
/* Random numbers in x[k], input k of g; those behind the operands are weights. */
void fill_inputs(const Case *c, const Graph *g, double **x);

/* ---- problem.c */
/* false: the shape rule refuses it, which has failed unless the case says so */
bool problem_forward(Run *r, const Case *c, Batch batch, Problem *p, Build *b);
bool problem_backward(Run *r, const Case *c, Problem *p, Build *b);
/* The same module with every composite op decomposed, but for those that keep (if it is given) wants to stay. NULL if
 * there is nothing to decompose. */
Module *decomposed(Run *r, const Module *from, bool (*keep)(const Graph *, const Op *));
/* A case's operator alone, or its gradients alone, which read its results: a module with graph infer, whose inputs are
 * what is read; states those operands that param says, and single numbers. input, state: the values of p's graph that
 * they stand for. False: there is nothing to compute, or it has failed. */
typedef struct Alone {
	Module *m;
	Val input[4 * MAX_IN], state[4 * MAX_IN];
} Alone;
bool problem_alone(Run *r, const Problem *p, bool gradient, const bool *param, Alone *a);
double **room(Run *r, const Graph *g); /* for the inputs of g */
/* NULL, or what went wrong. */
const char *run_graph(Interp *in, const Graph *g, int64_t n, double **x);
#endif
