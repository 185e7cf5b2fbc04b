/* red.h: the columns of red.def, for passes and targets: they ask these of a reduction, never its name. */
#ifndef IR_RED_H
#define IR_RED_H
#include "ir.h"

typedef enum RedJoin { RED_ADD, RED_HIGH, RED_LOW, RED_FIRST } RedJoin;
typedef enum RedThen { RED_ONCE, RED_SQUARES, RED_EXPONENTIALS } RedThen;
/* The variables of RedInfo.value, in the order in which expressions count them. */
enum { RED_S, RED_N, RED_I, RED_VARS };
typedef struct RedInfo {
	const char *types;
	RedJoin join;
	RedThen then;
	const Expr *element;     /* of x alone */
	const Expr *value;       /* of RED_S, RED_N, RED_I */
	bool sums;               /* one pass that adds */
	bool linear;             /* that of x plus y is that of x plus that of y: sum, mean */
} RedInfo;
extern RedInfo red_info[];       /* a row of red.def each, complete after ir_init() */

/* Is op a reduction, and what row. */
static inline bool op_reduces(const Op *op) { return op_info[op->kind].red >= 0; }
static inline const RedInfo *red_of(const Op *op) { return &red_info[op_info[op->kind].red]; }
/* Is this expression that variable, as it stands? */
static inline bool expr_is(const Expr *e, int index) { return e->kind == EX_VAR && e->index == index; }
/* Keeps s an index as well? */
static inline bool red_indexes(const Op *op) { return red_of(op)->join == RED_FIRST; }
/* The type of s. */
static inline DType
red_dtype(const Op *op, DType x)
{
	const RedInfo *r = red_of(op);

	if (r->join != RED_ADD && r->then == RED_ONCE)
		return x;
	if (!dtype_is_float(x))
		return x == DT_bool ? DT_i32 : DT_i64;
	return x == DT_f64 ? DT_f64 : DT_f32;
}

void red_init(Arena *a);         /* of ir_init */
#endif
