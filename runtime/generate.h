/* generate.h: what the files of the command generate share: sequences, and who computes the logits of what follows. */
#ifndef RUNTIME_GENERATE_H
#define RUNTIME_GENERATE_H
#include "host.h"

/* The first n tokens of a sequence; its other inputs; by steps the row of the call before that it goes on from. */
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
	double *row;             /* by whole windows: logits of the rows that ran, [rows, V] */
	int64_t rows;            /* room */
	int64_t tokens;          /* written so far */
	uint32_t stream;         /* of what is drawn */
	bool shown;              /* as text, as it is written */
	bool steps;              /* by graph step; else by whole windows */
	int64_t first, fed;      /* by steps: the window's first token; so many have been read; -1: none */
	int64_t ran;             /* by steps: rows of the last call */
	int64_t *left;           /* by steps, of each row of the batch: the example whose begin it has; -1: none */
} Generate;

/* generate_rows.c */
bool rows_step(const Generate *x);  /* may steps be taken? A note says why not, where that is not asked for */
void rows_begin(Generate *x);       /* the next rows have nothing to do with those before */
/* Logits of what follows each row. By steps all are of one length; rows of one example stand together, and more than
 * one of it only where the batch can number its rows. */
bool rows_run(Generate *x, const Row *row, int64_t n);
/* Of the rows that ran: the V logits of row k, in `room` or where they stand. */
const double *rows_logits(const Generate *x, int64_t k, double *room);
/* By steps: of n rows `live` have so many places before them: is it cheaper to move them together than to run all? */
bool rows_leave(const Generate *x, int64_t n, int64_t live, int64_t places);

/* generate_logits.c */
double logits_log_sum(const double *x, int64_t n); /* ln of the sum of exponentials */
int32_t logits_largest(const double *x, int64_t n); /* the first of the largest */
/* The first one from `from` on of which score + (x - sum) is above the least; n: there is none. */
int64_t logits_above(const double *x, int64_t from, int64_t n, double score, double sum, double least);

/* generate.c */
int32_t *generate_sequence(const Generate *x, int64_t i);
void generate_show(const Generate *x, const int32_t *token, int64_t n); /* where it is text */

/* generate_beams.c */
bool generate_beams(Generate *x);
#endif
