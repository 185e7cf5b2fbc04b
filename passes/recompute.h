/* recompute.h: tables of pass recompute; private to recompute.c and recompute_edit.c. */
#ifndef PASSES_RECOMPUTE_H
#define PASSES_RECOMPUTE_H
#include "passes.h"

enum { KEPT, ALONE, SEGMENT };

typedef struct Half {        /* tables by Val.id, or by op where they say so */
	Module *m;
	Graph *g;
	PassCtx *cx;
	Arena *a;
	bool *forward;           /* by op */
	bool *stored;            /* stands in memory, as the plan without recomputation says */
	int64_t *bytes;          /* of those */
	bool *back;              /* stored, and the backward half reads it */
	uint32_t *last;          /* last forward op that runs with it */
	bool *able; /* by op: it, and what it is computed from down to stored values, can be computed again */
	Val *anchor;             /* by op: what clones for this reader wait for */
	int64_t *cross;          /* by op: bytes that ops behind it still read */
	int64_t small;           /* values below this are not worth it */
	int64_t total;           /* bytes for the backward half */
	double flops;            /* of the graph */
} Half;

/* By Val.id: KEPT, ALONE, SEGMENT; values with the same number share their clones; what may not be left out. */
typedef struct Choice { uint8_t *drop; int32_t *scope; bool *pinned; } Choice;
enum { NO_SCOPE = -1 };      /* segments have numbers below this, values alone their own */

static inline bool is_cheap(const Op *op) { return op_has(op->kind, T_POINTWISE | T_VIEW); }
static inline bool is_free(const Op *op) { return op_has(op->kind, T_CONST | T_RANDOM); }
/* Never stored, but there whenever someone asks: states, constants, and what is small and no mere arithmetic of
 * something large. */
bool recompute_at_hand(const Half *h, Val v);

typedef struct Cost { double flops; uint32_t clones; } Cost;
/* Clones what c does not keep, for its backward readers. g is h's graph or a copy of it, value by value. */
Cost recompute_edit(const Half *h, const Choice *c, Graph *g, Arena *a);
#endif
