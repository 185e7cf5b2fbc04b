/* cells.h: what the ways to compute recurrences share: cells.c, where each block reads all weights in each step, and
 * cells_held.c and cells_mma.c, where several blocks keep them in registers. Private to this folder. */
#ifndef CODEGEN_CUDA_CELLS_H
#define CODEGEN_CUDA_CELLS_H
#include "composite.h"

typedef struct Cells {
	Cuda *c;
	const Graph *g;
	const Op *op;
	bool lstm, back, reverse, has_length;
	Axis n;
	DType dt;
	int64_t t, h;            /* steps, units */
	int gates, w;            /* blocks of rows of W_hh; which operand it is */
	int parts;               /* of a sum */
	int rows, threads;       /* examples of a block, its threads */
	int unroll;              /* fours of a part that are loaded at a time, where no block holds the weights */
	int blocks;              /* that hold the weights together; 1: none does */
	/* Text: of a unit's state and, backward, of its gradient; of a length; NULL: where cells.c has them. */
	const char *h_at, *c_at, *length;
} Cells;

/* ---- cells_unit.c */
Cells cu_cells_of(const Graph *g, const Op *op);
const char *cu_cells_pointer(const Cells *s, Val v);
const char *cu_cells_value(const Cells *s, const char *at);  /* a float of what lies there in the operands' type */
/* Where unit j of block `block` of the row's step t is in [N,T,blocks H]; blocks 0: in [N,H]. */
const char *cu_cells_place(const Cells *s, const char *step, int blocks, int block);
const char *cu_cells_alive(const Cells *s, const char *step); /* is the step within the example's length? */
bool cu_cells_wanted(const Cells *s, int k);
void cu_cells_put(const Cells *s, int k, const char *place, Cell x);
/* What the step before left of unit j in operand k, or the start, in operand `start`: text. */
const char *cu_cells_before(const Cells *s, int k, int start);
/* Operands of a step of one unit, in the order in which they are asked for: of how many blocks, and which. */
typedef struct CellInput { int operand, blocks, block; } CellInput;
int cu_cells_inputs(const Cells *s, CellInput *in);           /* at most 8 */
/* A step of one unit: h after it, its results stored; the gates' gradients of a step (gate_put), its state's. */
Cell cu_cells_unit(const Cells *s);
void cu_cells_back(const Cells *s);
Cell cu_cells_text(const char *t);                            /* of f32 */
Cell cu_cells_if_live(const Cells *s, Cell a, Cell b);        /* a where `live` is, if examples have lengths; else b */

/* ---- cells.c */
/* Bytes that the blocks of a kernel with these parameters read of each other's words; 0: each is for itself. */
double cu_cells_exchanged(const Cells *s, const Params *p);

/* ---- cells_team.c: lines of a thread that has an example and unit of a team of blocks; `mine` says whether it has. */
void cu_team_step(const Cells *s);  /* t: the step of the example that step `step` of the loop is */
Scope cu_team_rows(const Cells *s); /* the loop over the team's examples: `first` */
void cu_team_close(const Cells *s, Scope rows, const char *what);
/* What the thread reads of memory at step `step`, if `when` (" && .." or nothing): on its way while sums are made. */
const char *cu_team_first(const Cells *s, long long words);
void cu_team_inputs(const Cells *s, const char *step, const char *when);
void cu_team_biases(const Cells *s); /* bias0 .. of gru's new gate, forward */
void cu_team_states_load(const Cells *s);
int cu_team_states(const Cells *s);  /* the first result of the states that are left; -1: none is wanted */
void cu_team_states_put(const Cells *s);
/* The step itself, after the sums: h_own and results; backward gate0 .. and results. */
void cu_team_unit(const Cells *s);
void cu_team_back(const Cells *s);

/* ---- cells_held.c */
/* Sets rows, threads and blocks; the reason why not, or NULL. sms: multiprocessors. */
const char *cu_held_choose(Arena *a, Cells *s, const Machine *m);
double cu_held_cycles(const Cells *s, const Machine *m); /* estimated of a step, of blocks for themselves too */
/* Why these rows, threads and blocks are not possible. */
const char *cu_held_misfit(Arena *a, const Cells *s, int sms);
void cu_held_emit(Cells *s);

/* ---- cells_mma.c, for w_hh of 16 bits: the same, and the cycles that a step is estimated to take, to be compared with
 * those of the other ways. */
const char *cu_tiled_choose(Arena *a, Cells *s, const Machine *m);
const char *cu_tiled_misfit(Arena *a, const Cells *s, const Machine *m);
double cu_tiled_cycles(const Cells *s, const Machine *m);
void cu_tiled_emit(Cells *s);
#endif
