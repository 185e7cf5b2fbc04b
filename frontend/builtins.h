/* builtins.h: what the files of operators (builtins*.c) share: arguments by name, errors that begin with the operator's
 * name, shapes whose axes may follow N, parameters of an operator's own, and short spellings for building ops.
 *
 * Conventions: a function that returns bool has reported its error when it returns false. A building function given
 * NOVAL returns NOVAL, so that a chain needs one test at its end, which is call_give. No call builds in two of its
 * arguments: C leaves their order open, and the IR's text must not depend on the compiler that built this one. */
#ifndef FRONTEND_BUILTINS_H
#define FRONTEND_BUILTINS_H
#include <math.h>
#include <string.h>
#include "sema.h"

/* ---- errors */
bool call_fail(Call *c, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4))); /* always false */
void call_note_val(Call *c, const char *what, Val v);  /* "x is f32[2,3], made here by matmul" where its op stands */
const char *val_text(Call *c, Val v);                 /* "f32[64,10]" */
const char *value_text(Call *c, const Value *v);       /* "0.5", "the tensor f32[64,10]" */

/* ---- arguments, by the name in the row's parameter list */
const Value *call_arg(const Call *c, const char *name);
bool call_given(const Call *c, const char *name);
Loc call_loc(const Call *c, const char *name);         /* of the argument where it was written, else of the call */
bool arg_tensor(Call *c, const char *name, Val *v);
bool arg_float_tensor(Call *c, const char *name, Val *v);
bool arg_int_tensor(Call *c, const char *name, Val *v);
bool arg_rank(Call *c, const char *name, Val v, int rank, const char *axes); /* axes: "[N, C, H, W]" */
bool arg_int(Call *c, const char *name, int64_t low, int64_t high, int64_t *out);
bool arg_num(Call *c, const char *name, double low, double high, double *out); /* bounds included */
bool arg_bool(Call *c, const char *name, bool *out);
bool arg_dtype(Call *c, const char *name, DType *out);
bool arg_pair(Call *c, const char *name, int64_t low, int64_t out[2]);        /* k: a number or one per spatial axis */
bool arg_axis(Call *c, const char *name, int rank, int *out);                 /* negative from the end */
bool arg_axes(Call *c, const char *name, int rank, int64_t *out, int *n);     /* none = all; sorted */
/* Extents that may follow N (marks only in the evaluation graph). hole: index of the one -1, -1 if none; NULL forbids
 * it. */
bool arg_shape(Call *c, const char *name, Axis *out, int *rank, int *hole);
bool value_axis(Call *c, const Value *v, Axis *out);   /* an INT as an extent */
bool value_fixed(Call *c, const Value *v);             /* error if it depends on N */
bool axis_fixed(Call *c, const char *what, Val v, int axis, int64_t *extent); /* error if the axis follows N */
bool axis_times(Axis a, Axis b, Axis *out);            /* false: overflow, or both follow N */
const char *shape_too_large(int rank, const Axis *axes); /* NULL if a tensor may have it */

/* ---- operands of elementwise operators: a tensor, or a number that takes type t */
bool operand_fits(Call *c, const Value *v, DType t, const char *beside);
bool operand(Call *c, const Value *v, DType t, const char *beside, Val *out);
/* every element is the number v, all 64 bits of an integer kept */
Val full_of(Call *c, Type t, const Value *v);
bool same_dtype(Call *c, const char *na, Val a, const char *nb, Val b);
/* The op k on values of which at least one is a tensor; names[i] is how messages call args[i]. */
bool elementwise(Call *c, OpKind k, const Value *const *args, const char *const *names, int n, const AttrArg *attrs,
                 Value *result);
BuiltinFn builtin_elementwise;                         /* every row of ew.def without a function of its own */

/* ---- building */
static inline Graph *call_graph(const Call *c) { return c->b->g; }
/* a copy: the graph's array moves as it grows */
static inline Type val_type_of(const Call *c, Val v) { return *val_type(c->b->g, v); }
Val num(Call *c, DType t, double x);
Val ew1(Call *c, OpKind k, Val x);
Val ew2(Call *c, OpKind k, Val x, Val y);
Val ew3(Call *c, OpKind k, Val x, Val y, Val z);
Val ewn(Call *c, OpKind k, Val x, double y);           /* the number y takes x's type */
Val op_with(Call *c, OpKind k, Val x, const AttrArg *attrs); /* one input */
Val op_with2(Call *c, OpKind k, Val x, Val y, const AttrArg *attrs);
Val to_shape(Call *c, Val x, int rank, const Axis *axes);
Val reduce_over(Call *c, OpKind k, Val x, int axis, bool keep);
Val reduce_all(Call *c, OpKind k, Val x);
Val add_axis(Call *c, Val x, int at);                  /* unsqueeze */
Val counting(Call *c, DType t, int rank, int axis, Axis extent); /* 0, 1, ... along axis, the other axes 1 */
Val widen(Call *c, Val x);                             /* f16 and bf16 to f32, the type of statistics and losses */
Val to_dtype(Call *c, Val x, DType t);
Val random_uniform(Call *c, int rank, const Axis *axes); /* f32 in [0, 1), stream = the call's path */
Val keep_mask(Call *c, Val u, double p);               /* u >= p, exactly as in double */
Val less_maximum(Call *c, Val x, int axis);            /* x - max(x), through which no gradient of max flows */
Val safe_softmax(Call *c, Val x, int axis, bool logarithm);
void build_check(Call *c, Val ids, Axis limit, const char *what, bool has_ignore, int64_t ignore);
bool call_give(Call *c, Val v, Value *result);         /* the result, or the first shape error since the call began */

/* ---- parameters that an operator owns */
typedef struct Init { InitKind kind; double a, b; } Init;
typedef struct Fans { double in, out; const char *why; /* why there are none, or NULL */ } Fans;
bool init_value(Call *c, const char *name, Init standard, Fans fans, Init *out);
/* Argument arg given as a tensor: checked and used. Else the parameter path.suffix, made or found. t: the type beside
 * which it is used. */
bool own_param(Call *c, const char *suffix, const Value *given, DType t, int rank, const int64_t *dims,
               const char *meaning, Init init, Val *out);
bool own_bias(Call *c, DType t, int64_t n, Init init, bool *has, Val *out); /* argument bias: true, false or a tensor */

#define INIT_ZERO ((Init){INIT_CONSTANT, 0, 0})
#define INIT_ONE ((Init){INIT_CONSTANT, 1, 0})
#define NO_FANS(text) ((Fans){0, 0, text})

#define BUILTIN(name, params, fn, shape, gradient, doc, source) BuiltinFn fn;
#include "builtins.def"
#undef BUILTIN
#endif
