/* attention_parts.h: what the files of attention's kernel share: the plan of one, and the kernel that is being emitted.
 * Private to them: attention_params.c (plans), attention.c (forward, and what both use), attention_back.c. */
#ifndef CODEGEN_CPU_ATTENTION_PARTS_H
#define CODEGEN_CPU_ATTENTION_PARTS_H
#include "rnn.h"
#include "../contract/gemm.h"

typedef struct Att {
	const Op *op;
	bool back, causal;
	int lead;                /* leading axes */
	const Type *q, *mask;    /* mask: NULL if there is none */
	int64_t entries, t, s, d, e; /* of a full batch; queries, keys, widths */
	double scale, p;
	int first, nmask, nseed; /* operands: q; the mask; seed and step */
	int bq, bk;              /* queries and keys of a block; keys are padded */
	int w;
	int threads;             /* that take part, at most; 0: all */
	/* of q, k, v, backward of g and y too. Of bf16 products are of pairs along the sum, whose elements are `unit`
	 * elements in 32 bits */
	DType type;
	bool pairs;
	int unit;
	GemmParams keys;         /* of products whose columns are a block of keys */
} Att;

enum { ATT_DQ, ATT_DK, ATT_DV, ATT_RESULTS };

/* A thread's memory: k (backward v too) in panels, tiles of scores (and of their gradient); forward the sums of a block
 * of queries, their maxima and totals. With pairs also: a block's values (backward keys) in pairs of rows, backward all
 * queries and gradients so, the scores' gradients in bf16, and the results' sums: of all queries, of a block's keys and
 * values. */
typedef struct AttMemory {
	int64_t transposed[2], tile[2], sums, top, total;
	int64_t beside, queries, grads, rounded, result[ATT_RESULTS];
	int64_t bytes;
} AttMemory;

typedef struct Product { GemmParams p; Tiles tiles; int64_t npanel, b_panel, am, cm; V strides; } Product;

/* One kernel that is being emitted. */
typedef struct AttMain {
	Emit *e;
	const Att *a;
	V in[10], out[3], half[3]; /* results in f32, in the operands' type; NULL: nobody reads it so */
	V rows;                  /* backward: sums of g y, [entries][T] */
	V transposed[2];         /* in the thread's memory: panels of keys (and values) */
	Mem tile[2], sums, top, total; /* [query][key], [query][column], [query] */
	V beside, queries, grads, rounded, result[ATT_RESULTS]; /* as AttMemory has them */
	Cell seed, step;
	V entry, mask;           /* number of the leading axes' entry; element number of its mask */
	V mask_row; int64_t mask_column;
	int bk;                  /* keys of the block that is being emitted: of the last one fewer vectors */
	GemmParams keys;         /* of products whose columns they are */
	Product scores, values;  /* q k^T; backward g v^T */
	Product weighted, dq, dk, dv;
} AttMain;

/* attention_params.c: the kernel of this text; NULL, or why it is not possible. */
const char *attention_read(const Graph *g, const Op *op, int vector_bytes, const char *text, Att *a);
AttMemory attention_memory(const Att *a);

/* ---- what all of them write */
static inline int64_t
att_round(int64_t n, int64_t by)
{
	return (n + by - 1) / by * by;
}
static inline Cell att_add(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_ADD, a, b); }
static inline Cell att_mul(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_MUL, a, b); }
static inline Cell att_number(const Emit *e, double x) { return cell_const(e, DT_f32, x); }
static inline Cell
att_scalar(Emit *e, V at)
{
	return cell_of(LLVMBuildLoad2(here(e), e->l->f32, at, ""), false, DT_f32);
}
static inline void
att_scalar_put(Emit *e, V at, Cell c)
{
	LLVMBuildStore(here(e), c.v, at);
}
/* Vector k of a row of f32. */
static inline Cell
att_vector(Emit *e, V row, int k)
{
	return cell_of(vec_load(e, ptr_at(e, row, k64(e, F32(k * e->W))), NULL), true, DT_f32);
}
static inline void
att_put(Emit *e, V row, int k, Cell c)
{
	vec_store(e, ptr_at(e, row, k64(e, F32(k * e->W))), cell_vec(e, c), NULL);
}
/* The lanes of columns from `column` on of rows of so many; NULL: all. */
static inline V
att_tail(Emit *e, int64_t columns, V column)
{
	return columns % e->W ? mask_below(e, i_sub(e, k64(e, columns), column)) : NULL;
}
/* 1 if a > b, else 0. */
static inline V
att_more(Emit *e, V a, V b)
{
	return LLVMBuildZExt(here(e), LLVMBuildICmp(here(e), LLVMIntSGT, a, b, ""), e->l->i64, "");
}

/* ---- attention.c */
/* A product whose second operand has so many columns; strides in bytes. packed_rows: it is in panels of so many rows;
 * 0: its rows are bk bytes apart. */
Product attention_product(Emit *e, GemmParams p, int64_t columns, int64_t am, int64_t ak, int64_t bk, int64_t cm,
	int64_t packed_rows);
GemmParams attention_columns(const Att *a, int64_t columns); /* its tile */
/* C[rows] (+)= A B over nk, all its columns. */
void attention_multiply(Emit *e, const Product *p, V rows, V a, V b, V c, V nk, V acc);
/* Row `row` of this entry in a tensor [entries, n, width]; NULL if there is no tensor. */
V attention_row(const AttMain *m, V base, DType dt, int64_t n, int64_t width, V row);
/* With pairs: rows [first, first + count) of an operand [entries, n, width], each two side by side, to `to`: [pair of
 * rows][width]. A row behind the entry's last one is zeros. */
void attention_beside(const AttMain *m, V base, int64_t n, int64_t width, V first, V count, V to);
/* W elements, f32, of result k, [entries, n, width]: columns from j on of row `row`. */
void attention_result(const AttMain *m, int k, int64_t n, int64_t width, V row, V j, Cell c);
/* Steps of a sum over so many rows. */
static inline V
att_steps(const AttMain *m, V rows)
{
	return m->a->pairs ? i_div_k(m->e, i_add_k(m->e, rows, 1), 2) : rows;
}
/* Vector k of a row of bf16. */
static inline void
att_put_half(Emit *e, V row, int k, V half)
{
	LLVMSetAlignment(LLVMBuildStore(here(e), half, ptr_at(e, row, k64(e, (int64_t)k * e->W * 2))), 2);
}
/* Sets where the entry's mask begins: its leading axes broadcast to the entry's. */
void attention_mask(AttMain *m);
/* Vector k of the tile's row of scores: scaled and masked. query, key: numbers of the row and of the vector's first
 * key. */
Cell attention_score(const AttMain *m, V row, int k, V query, V key);
/* Which of vector k of a query's weights dropout keeps; x with the others 0. */
Cell attention_kept(const AttMain *m, V query, V first_key, int k);
Cell attention_dropped(const AttMain *m, Cell keep, Cell x);
/* Rows [row, row + keys of the block) of [entries, S, width] transposed: panels of columns = rows. */
void attention_turn(const AttMain *m, V base, int64_t width, V row, V to);
/* Sets the block's keys: all that a block has, or those of the last one in whole vectors. */
void attention_block(AttMain *m, int bk);
/* Keys of the last block, in whole vectors; those before it are whole blocks. 0: all are. */
int attention_last_keys(const Att *a);
/* attention_back.c: the tasks of the gradient's kernel. */
void attention_backward(AttMain *m);
#endif
