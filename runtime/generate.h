/* generate.h: what the files of the command generate share: sequences, and who computes the logits of what follows. */
#ifndef RUNTIME_GENERATE_H
#define RUNTIME_GENERATE_H
#include "host.h"

/* What stands behind each other in a sequence; its other inputs; by steps the row of the call before that it goes on
 * from. */
typedef struct Row { int64_t example; const int32_t *token; int64_t n, from; } Row;
typedef struct Generate {
	RtHost *h;
	const RtGraph *g;        /* infer */
	const RtResult *logits;
	int token;               /* number of the input */
	int64_t places, vocab;   /* T, V */
	int64_t n, prompt, length; /* sequences; tokens of a prompt; the most that follow it */
	int64_t end;             /* the token that ends a sequence; -1 */
	int32_t *ids;            /* [n, prompt + length] */
	double *score;
	bool scored;             /* is the sum of the chosen tokens' log-probabilities asked for? Beams have theirs */
	uint8_t *other[RT_MAX_INPUTS]; /* of each sequence */
	double *row;             /* logits of the rows that ran: [rows, V] */
	int64_t rows;            /* room */
	int64_t tokens;          /* written so far */
	uint32_t stream;         /* of what is drawn */
	bool shown;              /* as text, as it is written */
	bool steps;              /* by graph step; else by whole windows */
	int64_t first, fed;      /* by steps: the window's first token; so many have been read; -1: none */
} Generate;

/* generate_rows.c */
bool rows_step(const Generate *x);  /* may steps be taken? A note says why not, where that is not asked for */
void rows_begin(Generate *x);       /* the next rows have nothing to do with those before */
/* Logits of what follows each row, into x->row. By steps: the same number of rows in each call since rows_begin, all
 * of one length. */
bool rows_run(Generate *x, const Row *row, int64_t n);
#endif
