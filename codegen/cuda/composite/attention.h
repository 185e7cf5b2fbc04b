/* attention.h: what the two files of attention share: attention.c (what is taken, tiles, kernels) and attention_tiles.c
 * (the text of a tile). Private to codegen/cuda. */
#ifndef CODEGEN_CUDA_ATTENTION_H
#define CODEGEN_CUDA_ATTENTION_H
#include "composite.h"

/* QUERY_BYTES: of what the workspace of a gradient has of a query, its log-sum in base 2 and its sum of g y */
enum { MMA_WIDTH = 128, STAGES = 2, QUERY_BYTES = 8 };
#define LOG2E 1.4426950408889634

/* An operand in tiles: of rows it is there once, of columns in as many stages as the kernel has. */
/* in shared memory pitch, chunks of 16 bytes or floats, from line to line, and bytes of a tile; in memory `line`
 * elements from line to line */
typedef struct Side { Val v; char name; int width, pitch; int bytes; int64_t line; } Side;
typedef enum Part { FORWARD, QUERIES, KEYS } Part;

typedef struct Att {
	Cuda *c;
	const Graph *g;
	const Op *op;
	/* strided: rows of an entry do not all lie together, its indices are in lead_ix */
	bool back, causal, mma, strided;
	int lead, first;         /* leading axes; operand q */
	const Type *q, *mask;    /* mask: NULL if there is none */
	DType dt;
	int64_t entries, t, s;   /* of a full batch; queries, keys */
	int d, e;                /* widths */
	double scale, p;
	int nmask, nseed;        /* operands */
	int rows, columns, threads; /* of a tile, of a block */
	/* the open kernel */
	Part part;
	Side row[2], column[2];
	/* row operands; tiles of columns; where the columns' log-sums are, and the weights' tile (FMAs) */
	int nrow, stages, stats, weights;
	int64_t all_rows, all_columns;
	Ix lead_ix[MAX_RANK];
	Cell seed, step;
} Att;

/* What a thread holds of a tile: so many rows, and of each so many columns. */
static inline int att_own_rows(const Att *a) { return a->mma ? 2 : a->rows / 16; }
static inline int att_own_columns(const Att *a) { return a->mma ? a->columns / 4 : a->columns / 16; }
static inline int att_own_width(const Att *a, int width) { return a->mma ? width / 4 : (width + 15) / 16; }

/* ---- attention.c */
Att att_of(const Graph *g, const Op *op);
int att_round_to(int n, int by);
int att_power_of_two(int n);                            /* the least that holds n */
int att_float_pitch(int width);
int att_side_bytes(const Att *a, int width, int lines); /* of a tile in shared memory */

/* ---- attention_tiles.c: text */
const char *att_lit(Cuda *c, double x);
Scope att_unrolled(Cuda *c, char i, int n);
const char *att_element(const Att *a, const char *array, char j);
void att_array_open(const Att *a, const char *name, int columns);
void att_row_join(const Att *a, const char *name, const char *join);
/* operands */
int64_t att_line(const Att *a, const Type *t);          /* elements from row to row in memory */
const char *att_entry(const Att *a, const Type *t);     /* number of the element at which this entry's rows begin */
void att_entry_indices(Att *a);
void att_sides_choose(Att *a);
void att_load_lines(const Att *a, const Side *s, const char *from, int lines, int64_t limit, const char *slot);
void att_load_columns(const Att *a, const char *from, const char *slot);
int64_t att_query_places(const Att *a);                 /* of an entry, in the workspace of a gradient */
void att_power(const Att *a, const char *x, const char *of);
/* products */
void att_places(const Att *a);
void att_hold_rows(const Att *a);
void att_multiply(const Att *a, int k, const char *array);
void att_accumulate(const Att *a, const char *tile, int k, const char *sums, int which);
void att_share_tile(const Att *a, const char *tile, int which);
/* masks, scores */
Cell att_mask_load(const Att *a);
bool att_mask_follows(const Att *a, int back);
const char *att_exist(const Att *a, bool rows, bool columns); /* a condition */
void att_score(const Att *a, const char *element);
void att_numbers(const Att *a, bool row, bool column);
/* dropout */
bool att_by_four(const Att *a);
void att_kept_bits(const Att *a);
void att_keep(const Att *a);
const char *att_dropped(const Att *a, const char *x);
/* results */
int att_outs_of(const Att *a, int k, Out *out);
bool att_wanted(const Att *a, int k);
void att_put_one(const Att *a, const Out *o, const char *at, const char *x);
void att_put_row(const Att *a, int k, const char *sums, int width, const char *how);
Scope att_rows_open(const Att *a);
#endif
