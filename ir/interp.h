/* interp.h: runs whole graphs of a module with the reference evaluator; memory between ops is its own. */
#ifndef IR_INTERP_H
#define IR_INTERP_H
#include "ir.h"

typedef struct InterpFound {
	const Op *op;            /* NULL: nothing */
	Val v;
	int rank; int64_t shape[MAX_RANK], index[MAX_RANK];
	double x;
} InterpFound;
typedef struct Interp {
	Module *module;
	RefTensor *state;        /* by index in Module.state; f or i is owned */
	bool round;              /* f32 results become floats */
	const Op *failed;        /* the op that reported an error; its operands stand until the next begin */
	/* not NULL: while this graph runs, found is set to the first element that is not finite; by value: infinities
	 * do not count */
	const bool *search;
	InterpFound found;
	/* private */
	uint32_t at;             /* of a run that has stopped: the op that is next */
	RefCtx cx;
	Arena *arena;            /* of the run */
	struct InterpPlan *plan;
	VEC(struct InterpBlock *) block;
} Interp;

Interp *interp_new(Module *m, bool round);  /* states are zero */
void interp_free(Interp *in);
/* Starts a run of g for n examples: input k's array is f or i of interp_input(in, k), to be filled before
 * interp_run. */
void interp_begin(Interp *in, const Graph *g, int64_t n);
RefTensor *interp_input(Interp *in, int k);
/* NULL, or the message of what went wrong; no state has changed then. */
const char *interp_run(Interp *in);
/* In place of interp_run: runs up to the next all_reduce or all_reduce.moments and returns it, its results being what
 * this shard brings, to be replaced by what all have; NULL at the end, or after an error. First call: *error is
 * NULL. */
const Op *interp_resume(Interp *in, const char **error);
const RefTensor *interp_result(const Interp *in, int k);
#endif
