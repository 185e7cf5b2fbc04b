/* sema.h: compile-time values, the elaborator, and what an operator of the language is. sema*.c elaborate the AST into
 * a Module by calling operators; builtins*.c are the operators; neither knows the other's insides. */
#ifndef FRONTEND_SEMA_H
#define FRONTEND_SEMA_H
#include "../ir/ir.h"

typedef enum ValueKind {
	V_NONE,
	V_TENSOR,
	V_INT,
	V_FLOAT,
	V_BOOL,
	V_STR,
	V_DTYPE,
	V_LIST,
	V_TUPLE /* several results */,
	V_SPEC /* normal(0.02), momentum(...), cifar10(...) */
} ValueKind;
typedef struct Value {
	ValueKind kind;
	Loc loc;                 /* where it was written or computed */
	Val tensor;
	int64_t i; double f;     /* INT in i (f too), FLOAT in f, BOOL in i, DTYPE in i */
	/* an INT that is N times mul / div (mul 0: a plain number); i is its value for a full batch */
	int32_t mul, div;
	const char *s;           /* STR; name of a SPEC */
	const struct Value *at; int n;  /* LIST, TUPLE, arguments of a SPEC */
	const char **names;      /* SPEC: names of its arguments as given (NULL = positional) */
} Value;

struct Sema;
/* One call of an operator, arguments bound to the parameter list of its row: arg[i] belongs to parameter i, given[i]
 * says whether the caller wrote it (else arg[i] is the default). */
typedef struct Call {
	struct Sema *sema;
	const struct Builtin *op;
	Loc loc;                 /* of the call */
	const char *label;       /* "conv2d0" or the name after `as` */
	const char *path;        /* full label path: "stem.conv2d0" (also the stream of dropout etc.) */
	Value *arg; bool *given; int narg;
	Build *b;                /* build into the current graph; loc and path are set */
	bool training;
} Call;
typedef bool BuiltinFn(Call *c, Value *result); /* false after sema_error */

/* BUILTIN(name, params, labelled, fn, shape, doc, source). params: "x, channels, k, stride=1, pad=0, bias=true,
 * init=he_normal".
 * labelled: takes a label (owns parameters or a random stream): only those consume a counter... every operator call
 * takes one. */
typedef struct Builtin {
	const char *name, *params, *shape, *doc, *source, *gradient;
	BuiltinFn *fn;
	OpKind ew;               /* an elementwise row served by the generic function, else OP_none */
	/* parsed from params by builtins_init */
	int nparam; const char **param; const Value *def; bool *has_def;
} Builtin;
extern Builtin builtins[]; extern int nbuiltins;
void builtins_init(Arena *a);
const Builtin *builtin_named(const char *name);
const char *builtin_not_yet(const char *name); /* resize, top_k, ...: the reason; NULL if not such a name */
/* Unary and binary operators on values at least one of which is a tensor; op is the .net spelling: "+", "and", "not",
 * "-" with nargs 1. */
bool builtin_operator(struct Sema *s, Loc at, const char *op, const Value *a, int nargs, Value *result);

/* ---- services of the elaborator for operators (sema.c) */
/* plus a note per block call that leads there */
void sema_error(struct Sema *s, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sema_warning(struct Sema *s, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sema_note(struct Sema *s, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
Arena *sema_arena(struct Sema *s);
Build *sema_build(struct Sema *s);
bool sema_training(const struct Sema *s);
int64_t sema_shards(const struct Sema *s, int64_t *examples); /* train.shards; examples of one, NULL = not wanted */
/* The sum over all shards of a batch of what each has, in graph train; v itself where there is one. */
Val sema_joined(Call *c, Val v);
/* train.batch_stats = batch, and several shards, in graph train: their number, else 1 */
int64_t sema_joined_stats(const Call *c);
/* v, made of these (four at most), is an average over examples by its meaning: a metric of it is weighted by them. */
void sema_average(struct Sema *s, Val v, const Val *arg, int narg, bool counted);
const char *sema_path(struct Sema *s);   /* path of the call being evaluated */
/* Makes (training) or finds (evaluation) the parameter `path.suffix` (suffix NULL: the path itself) and loads it; once
 * per graph.
 * Errors: two parameters of one name; in evaluation one that training lacks or made with another shape. */
bool sema_param(Call *c, const char *suffix, const Type *t, StateKind kind, InitKind init, double a, double b,
                Val *loaded);
/* Running statistics: sema_stat_store writes the new value in the training graph. */
void sema_stat_store(Call *c, const char *suffix, Val v);
const char *value_kind_name(const Value *v);          /* "a tensor f32[64,10]", "the integer 3", "a list of 2" ... */
bool value_is_set_metric(const Value *v);             /* what an operator of whole sets gives, for a metric statement */
Value value_tensor(Val v, Loc loc);
Value value_int(int64_t i, Loc loc);
Value value_tuple(struct Sema *s, const Value *v, int n, Loc loc);

/* ---- the frontend's doors */
typedef struct Define { const char *name, *value; } Define; /* -D */
/* Reads file (and what it uses), elaborates, and returns the typed module: graphs train, eval, infer (without
 * gradients), settings, loops. batch, shards 0 = the file's; precision NULL = the file's. NULL after diagnostics. */
Module *frontend_compile(Arena *a, Diags *d, const char *file, const Define *define, int ndefine, int64_t batch,
                         int64_t shards, const char *precision);
/* The same for text in memory (fuzzing, tests). */
Module *frontend_compile_text(Arena *a, Diags *d, const char *name, const char *text, size_t bytes,
                              const Define *define, int ndefine, int64_t batch, int64_t shards, const char *precision);
#endif
