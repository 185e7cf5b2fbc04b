/* algo.h: how contractions are computed: what an algorithm is, and the choice among them; private to codegen/cpu. */
#ifndef CODEGEN_CPU_ALGO_H
#define CODEGEN_CPU_ALGO_H
#include "gemm.h"
#include "../../space.h"

enum { ALGO_OPS = 4, ENGINES_F32 = 1 << ENGINE_FMA, ENGINES_ALL = (1 << ENGINE_COUNT) - 1 };

/* A row of algos.def. Sizes are bytes; g, op, p: the group's contraction and its parameters, p->algo this row. A
 * function that is left out says 0 or no. */
struct Algo {
	FamilyId family;         /* of tune.def: its kernels' text and parameters */
	const char *doc;
	OpKind ops[ALGO_OPS];    /* that it is for, up to OP_none; none: all */
	/* bits of EngineId that its products may use: that of the operands' type, else f32's */
	unsigned engines;

	/* ---- the choice */
	/* Fills p with its parameters for op, f32 or not as cx says. best: those that it would take the place of, NULL
	 * for an ALGO. False: it is out of the question, and not worth a word. */
	bool (*offer)(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p);
	/* Why op cannot be computed so, whoever chose these parameters: the one place that says. NULL: it can. What is
	 * true of all rows is held before (gemm_why_not). */
	const char *(*why_not)(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p);
	/* Of a VARIANT: predicted time, of the time that best takes; above 1 it is not chosen. */
	double (*time)(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best);
	/* Why it takes longer (left out where it offers itself only if it does not); why it was chosen. */
	const char *(*dear)(const Graph *g, const Op *op, const GemmParams *p, const GemmParams *best);
	const char *(*chosen)(const Graph *g, const Op *op, const GemmParams *p);
	double (*work)(const Graph *g, const Op *op, const GemmParams *p); /* floating-point operations, for explain */
	const char *beaten_by[ENGINE_COUNT]; /* engines of best that are faster whatever the shape: why */

	/* ---- its kernel's parameters */
	/* Those of its family behind mr, nv and lanes, or in their place, to the text's form and from it; what no text
	 * says is set by read. */
	void (*write)(const GemmParams *p, Params *q);
	void (*read)(const Params *q, GemmParams *p);
	/* Facts that its family alone asks for; op need not be one that it takes. */
	void (*facts)(const Graph *g, const Op *op, const PlanCx *cx, Facts *f);

	/* ---- memory */
	/* What it makes of the second operand before all else, first in the workspace; behind it partial sums,
	 * tiles. */
	int64_t (*panels)(const Graph *g, const Op *op, const GemmParams *p);
	int64_t (*workspace)(const Graph *g, const Op *op, const GemmParams *p);
	bool chains;             /* sums of few results are interleaved (gemm_chains) */
	bool keeps;              /* the panels may be kept from call to call */
	int64_t (*scratch)(const Graph *g, const Op *op, const GemmParams *p); /* a thread's own */
	/* Tasks, each of which keeps states of the epilogue's reductions. */
	int64_t (*pieces)(const Graph *g, const Op *op, const GemmParams *p);

	/* ---- operands that its kernel makes (prologue.c) */
	/* it loads operands of 16 bits itself; else they are copied in f32 for an engine of f32 */
	bool widens;
	/* Can a second operand of f32 be rounded on its way into the panels? */
	bool (*rounds)(const Graph *g, const Op *op, const GemmParams *p);
	PrologueWay (*way)(const Op *op, int k); /* NULL: prologue.c's */
	/* how often each element of operand k is loaded, PROLOGUE_TILES */
	double (*loads)(const Graph *g, const Op *op, const GemmParams *p, int k);
	/* In place of loads, and of what follows from the way: all that fuse is told. */
	void (*cost)(const Graph *g, const Op *op, const GemmParams *p, int k, Prologue *r);

	/* a, b: buffers of the operands or of copies, -1: made as they are loaded. NULL: like any other op
	 * (group.c). */
	void (*emit)(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk);
};

#define ALGO(name) extern const Algo algo_##name;
#define VARIANT(name) extern const Algo algo_##name;
#include "algos.def"
#undef ALGO
#undef VARIANT
extern const char *const algo_variants[]; /* what --disable takes: names of variants and `prepack`, up to a NULL */

/* Why op cannot be computed so, whoever chose it; NULL: it can. */
const char *gemm_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p);
/* The one choice: of a tuning file's kernel if there is one that fits, else of what is predicted to take least. */
GemmParams gemm_plan(const Graph *g, const Op *op, const PlanCx *cx);
/* Target.tuning.space of a group whose contraction is op and whose kernel has this text. */
void gemm_space(const Graph *g, const Op *op, const PlanCx *cx, const char *kernel, SpaceEach *each, void *each_cx);
/* Target.tuning.predict: seconds of one core whose operands all lie in L1. */
double gemm_predict(const Graph *g, const Op *op, const PlanCx *cx, const char *kernel);
/* Does nothing but the plain kernel take op? As gemm_plan would say, for less. */
bool gemm_plain(const Graph *g, const Op *op, const Arch *a);
#endif
