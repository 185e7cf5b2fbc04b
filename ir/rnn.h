/* rnn.h: what the decompositions of lstm and gru (decompose_rnn.c) and of their recurrences (decompose_cells.c) share.
 * Private to ir/. */
#ifndef IR_RNN_H
#define IR_RNN_H
#include "grad.h"

/* One op being decomposed. Values [N,T,W] are steps of rows; [N*T,W] the same rows flat. */
typedef struct Rnn {
	Build *b;
	const Op *op;
	DType dt;
	Axis n, rows;            /* the batch; batch times T */
	int64_t t, h;            /* steps, width */
	bool reverse;
	Val length;
	Val alive;               /* bool [N,T,1], none without length */
} Rnn;

/* x: a value [N,T,*]; h: the width; length: operand of the lengths, read if the op has them. */
Rnn rnn_begin(Build *b, const Op *op, Val x, int64_t h, int length);
static inline int64_t
rnn_step(const Rnn *r, int64_t i)
{
	return r->reverse ? r->t - 1 - i : i;
}
Val rnn_ew(const Rnn *r, OpKind k, Val x, Val y);
Val rnn_constant(const Rnn *r, double v);
Val rnn_flat(const Rnn *r, Val v);           /* [N,T,W] -> [N*T,W] */
Val rnn_steps(const Rnn *r, Val v);          /* and back */
Val rnn_first(const Rnn *r, Val v);          /* [N,W] -> [N,1,W]: one step of a concat over T */
Val rnn_gate(const Rnn *r, Val v, int k);    /* block k of width h along the last axis */
/* v of the step processed before, the start's for the first live one */
Val rnn_previous(const Rnn *r, Val v, Val start);
Val rnn_masked(const Rnn *r, Val v, double dead); /* v where alive, else dead */
Val rnn_project(const Rnn *r, Val x, Val w, Val bias); /* x W^T + bias for all steps: [N,T,G*H]; bias may be NOVAL */
/* Gates [N,T,4H] after their activations from the sums of both sides, 0 where dead: i f g o; r z n and U h + b of n. */
Val lstm_gates(const Rnn *r, Val sums);
Val gru_gates(const Rnn *r, Val gx, Val gh);
#endif
