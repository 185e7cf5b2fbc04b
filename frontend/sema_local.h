/* sema_local.h: what the files of the elaborator (sema*.c, settings.c, value.c) share and operators do not see.
 *
 * One Sema lives for one compilation. The text is read once; constants and the model's body are evaluated once per
 * elaboration (training, evaluation). An expression that failed evaluates to a broken value, which passes silently
 * through everything that uses it: one mistake makes one message. */
#ifndef FRONTEND_SEMA_LOCAL_H
#define FRONTEND_SEMA_LOCAL_H
#include "ast.h"
#include "sema.h"

/* Each of these is an error with its number when exceeded; together they bound time and memory for any text. */
enum {
	MAX_LIST = 1000000,        /* items of one list */
	MAX_LIST_DEPTH = 200,      /* lists inside lists */
	MAX_LIST_WORK = 4000000,   /* items of all lists made in one elaboration */
	MAX_REPEAT = 1000000,      /* turns of one loop */
	MAX_STEPS = 10000000,      /* expressions and statements evaluated in one elaboration */
	MAX_STATES = 20000,        /* parameters and running statistics */
	CALL_STEPS = 20,           /* what a call counts */
	MAX_CALL_DEPTH = 200,      /* blocks calling blocks */
	MAX_WALK_DEPTH = 1500,     /* all of these together: bounds the C stack */
	MAX_USE_DEPTH = 100,
	MAX_FILES = 1000,
	MAX_INPUTS = 16,           /* of a model: the runtime's table */
	MAX_GIVEN = 60,            /* metrics, and outputs: a step's record holds no more */
	MAX_TABLE = 1 << 20,       /* values of a metric that is a vector or matrix */
	MAX_PATH_BYTES = 4000,     /* of a call path */
};

/* Interned pointer -> number; open addressing. */
typedef struct Map { const void **key; uint32_t *val; uint32_t n, cap; } Map;
uint32_t *map_get(const Map *m, const void *key);             /* NULL if absent */
void map_put(Arena *a, Map *m, const void *key, uint32_t val);/* adds or replaces */

typedef struct Var { const char *name; Value v; Loc loc; } Var;

/* One call of a block, or the model's body. */
typedef struct Frame {
	struct Frame *up;
	const Item *item;
	Loc call;                  /* where it was called */
	const char *path;          /* "" in the model's body */
	uint64_t site;             /* which calls of the file lead here; labels given with `as` count by name */
	VEC(Var) var; Map var_of;
	Map label_count;           /* call name -> next number */
	Map label_of; VEC(Loc) label; /* labels in use -> where */
	bool lost;                 /* names may be missing through no fault of their user */
	bool returned;
	Value result;
	int depth;
} Frame;

typedef struct Const { const char *name; Loc loc; Node *value; Value now; bool ready; } Const;
typedef struct Block { const char *name; const Item *item; bool active; } Block;

/* Beside Module.state, same index. */
typedef struct StateExtra { uint64_t site; Loc loc; uint32_t loaded[2]; /* Val.id by training */ } StateExtra;
typedef struct StatStore { const char *state; Val v; Loc loc; const char *path; } StatStore;
/* What a loss or an accuracy gave, and the tensors it was given. */
/* counted: its divisor is not the number of examples, but one that each batch has of its own. */
typedef struct Average { Val v, arg[4]; int narg; bool counted; } Average;
typedef struct Require { Loc loc; Setting setting; } Require;

typedef enum Phase {
	PHASE_SETTINGS /* constants for settings: N has no number yet */,
	PHASE_TRAIN,
	PHASE_EVAL,
	PHASE_PROBE
} Phase;

struct Sema {
	Arena *arena;
	Diags *diags;
	Module *module;
	Graph *graph;
	Build build;
	Phase phase;
	bool training;
	int64_t batch, shards;   /* examples of a shard; shards of a step's batch, 1: it is not cut */
	bool batch_stats;        /* batch normalisation sees the whole batch */
	/* the text */
	VEC(Const) constant; Map const_of;
	VEC(Block) block; Map block_of;
	uint16_t main_file;
	const Item *model; Loc model_loc;
	VEC(const Item *) settings;     /* data, train and generate items */
	Map file_of; int files, use_depth; /* by real path: 1 being read, 2 read */
	bool lost;                      /* an item was lost to a syntax error */
	bool settings_lost;             /* a setting was */
	bool uses_training;
	uint64_t hash;
	const Define *define; int ndefine;
	/* the elaboration */
	Frame *frame;
	const char *path;               /* of the call being evaluated */
	uint64_t call_site;             /* likewise: Frame.site of that call */
	int64_t steps, list_work;
	int walk;                       /* depth of recursion */
	bool stop;                      /* a limit was exceeded, or 20 errors printed */
	bool in_settings;
	bool training_failed;           /* evaluation keeps silent about parameters that are missing */
	Loc freeze_loc, mixed_loc, reader_loc, factors_loc[2]; /* of rates and decays */
	int probe_errors;
	Map state_of; VEC(StateExtra) state;
	VEC(StatStore) store;
	VEC(Val) loss; VEC(Loc) loss_loc; bool loss_broken;
	VEC(Var) metric, output;        /* of this elaboration */
	VEC(Average) average;           /* likewise: losses and accuracies, averages over examples by their meaning */
	VEC(Require) require;
	/* messages */
	Map said;                       /* hash of a message and its place */
	bool quiet;                     /* the last error was a repetition: its notes are dropped too */
	int errors;                     /* including repetitions */
};
typedef struct Sema Sema;

/* ---- values (value.c) */
static inline Value value_broken(Loc at) { return (Value){.kind = V_TENSOR, .loc = at}; }
bool value_is_broken(const Value *v);                 /* itself or anything inside */
bool value_holds_tensor(const Value *v);
static inline bool value_is_number(const Value *v) { return v->kind == V_INT || v->kind == V_FLOAT; }
static inline bool value_follows_n(const Value *v) { return v->kind == V_INT && v->mul; }
Value value_float(double f, Loc loc);
Value value_bool(bool b, Loc loc);
Value value_list(const Value *at, int n, Loc loc);
Value value_axis_extent(Axis a, Loc loc);
void value_seal(Value *v);                            /* after filling in the items of a list or spec */
/* Both operands compile-time. False after an error. */
bool value_binary(Sema *s, Loc at, const char *op, const Value *a, const Value *b, Value *out);
bool value_negate(Sema *s, Loc at, const Value *a, Value *out);

/* ---- expressions (sema_expr.c) */
Value sema_eval(Sema *s, const Node *n);
bool sema_step(Sema *s, Loc at);                      /* counts work; false: stop */
bool sema_enter(Sema *s, Loc at);                     /* counts recursion; sema_leave undoes it if true was returned */
void sema_leave(Sema *s);
bool sema_follows_n(Sema *s, Loc at, const char *what, const Value *v); /* true after the error */
bool sema_condition(Sema *s, const Node *n, bool *out);
Value sema_make_list(Sema *s, const Value *at, int64_t n, Loc loc);

/* ---- calls (sema_call.c) */
/* Says that `of` has no argument `name` (why: what to do instead, or NULL); which of names was meant, or NULL. */
const char *sema_no_argument(Sema *s, Loc at, const char *of, const char *name, const char *const *names, int n,
                             const char *why);
Value sema_call(Sema *s, const Node *n, const Value *piped);
bool sema_is_init(const char *name);
void sema_unknown_value(Sema *s, Loc at, const char *name);

/* ---- bodies (sema_body.c) */
void sema_body(Sema *s, const Body *b);
Frame *frame_push(Sema *s, const Item *item, Loc call, const char *path, uint64_t site);
void frame_pop(Sema *s);
Value *frame_find(Frame *f, const char *name);
void frame_set(Sema *s, const char *name, Loc loc, Value v);
bool sema_name_is_free(Sema *s, const char *name, Loc at); /* no assignment to N or training */

/* ---- parameters (sema_state.c) */
void sema_stores(Sema *s);
void sema_match_freeze(Sema *s);
void sema_match_factors(Sema *s);
/* error if no layer's path begins with name */
void sema_check_layer(Sema *s, Loc at, const char *what, const char *name);

/* ---- contracts (sema_require.c) */
void sema_require(Sema *s, const Node *n);

/* ---- settings (settings.c) */
/* adds train.* and data.* to the module; sets s->batch, s->shards */
bool settings_read(Sema *s, int64_t batch, int64_t shards, const char *precision);
void sema_generate(Sema *s);                           /* after the evaluation graph: adds generate.* to the module */
void settings_check_inputs(Sema *s);                  /* after the training graph: readers against the model's inputs */

/* ---- loops (sema_loop.c) */
void sema_loops(Sema *s);
/* metrics of the evaluation graph that are no averages (sema_metric.c) */
void sema_metrics(Sema *s);
#endif
