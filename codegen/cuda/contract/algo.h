/* algo.h: how contractions are computed: what an algorithm is, and the choice among them; private to codegen/cuda. */
#ifndef CODEGEN_CUDA_ALGO_H
#define CODEGEN_CUDA_ALGO_H
#include "gemm.h"

/* Parameters worth trying; false: no more of them. */
typedef bool SpaceFound(void *cx, const Params *p);

/* A row of algos.def. op: the group's contraction. A function that is left out is said with each. */
typedef struct CuAlgo {
	FamilyId family;         /* of tune.def: its kernels' text and parameters */
	const char *doc;
	/* its parameters are Tiles, and the group must be one that gemm.c takes (cu_gemm_misfit) */
	bool tiles;
	bool reduces;            /* its kernel does the reductions behind the contraction too; else other kernels do */
	/* Why such elements cannot be multiplied so, whoever asks: the one place that says. NULL: they can. Left out:
	 * all can. */
	const char *(*why_not)(Arena *a, DType t, const char *arch);
	/* Sets the default parameters. NULL, or why another is as good; value: for explain. Left out: only a record
	 * comes. */
	const char *(*offer)(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, Tiles *p,
	                     double *value);
	const char *(*chosen)(Arena *a, double value); /* of a VARIANT that is offered: why it was */
	/* Takes a record, cx->tuned, whose kernel is not Tiles: sets the group's kernel and workspace. NULL, or why it
	 * cannot: the group is as it was. */
	const char *(*take)(Graph *g, int group, const Op *op, SelectCx *cx);
	/* Kernels worth trying of a row that takes records itself; false: no more. Left out: those in tiles. */
	bool (*space)(const Graph *g, int group, const Op *op, const SelectCx *cx, SpaceFound *each, void *each_cx);
	double (*rate)(const Rates *r); /* of its products. Left out: that of f32 FMAs */
	void (*emit)(Cuda *c, const Op *op); /* left out: whatever kernel needs an element computes it */
} CuAlgo;

#define ALGO(name) extern const CuAlgo cu_algo_##name;
#define VARIANT(name) extern const CuAlgo cu_algo_##name;
#include "algos.def"
/* What --disable takes: names of variants, `tma`, `keep` and `held`, up to a NULL. */
extern const char *const cu_variants[];

const CuAlgo *cu_algo_of(FamilyId f); /* NULL: no contraction is computed so */
/* The one choice: of a tuning file's kernel if it fits, else the first that offers itself; sets kernel and workspace.
 * False: the plain one, whose text and workspace are those of the kernel that the group has for other reasons. */
bool cu_algo_select(Graph *g, int group, const Op *op, SelectCx *cx);
/* Target.tuning.space of a group whose contraction is op. */
void cu_algo_space(const Graph *g, int group, const Op *op, const SelectCx *cx, SpaceEach *each, void *each_cx);
#endif
