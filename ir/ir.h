/* ir.h: the one IR. A Module is state lines, graphs and loops; a Graph is a list of ops over values; every prototype of
 * ir/.
 *
 * Values are 32-bit indices; definitions stand before uses; a type on every value. The same Op goes through all stages
 * typed -> diffed -> lowered -> fused -> scheduled -> selected -> planned; later stages fill fields that print.c
 * shows. */
#ifndef IR_IR_H
#define IR_IR_H
#include "base.h"
#include "diag.h"

/* ---------------------------------------------------------------- limits: named, checked, each a clear error */
#define MAX_RANK 8
#define MAX_ELEMENTS ((int64_t)1 << 40)   /* of one tensor */
#ifndef MAX_OPS                           /* set smaller where readers are fuzzed */
#define MAX_OPS 500000                    /* of one graph */
#endif

/* ---------------------------------------------------------------- types (type.c) */
typedef enum DType {
	DT_none,
#define DT(name, bytes, kind, st, npy) DT_##name,
#include "dtypes.def"
#undef DT
	DT_COUNT
} DType;
typedef struct DTypeInfo { const char *name; int bytes; char kind; const char *safetensors, *npy; } DTypeInfo;
extern const DTypeInfo dtype_info[DT_COUNT];
DType dtype_named(const char *name, size_t n); /* DT_none if none */
static inline bool dtype_is_float(DType t) { return dtype_info[t].kind == 'f'; }
static inline bool dtype_is_int(DType t) { return dtype_info[t].kind == 'i'; }
static inline bool dtype_is_unsigned(DType t) { return t == DT_u8 || t == DT_u16 || t == DT_bool; }
int64_t dtype_lowest(DType t);                              /* of an integer type */
int64_t dtype_highest(DType t);
int64_t dtype_saturate(DType t, int64_t x);    /* an attribute's number as one of an integer type: the nearest */

/* One axis: its extent for a full batch, and how it follows the run-time batch n: extent(n) = n * mul / div if mul >
 * 0. */
typedef struct Axis { int64_t n; int32_t mul, div; } Axis;
static inline Axis axis(int64_t n) { return (Axis){.n = n, .mul = 0, .div = 1}; }
static inline bool is_one(Axis a) { return a.n == 1 && !a.mul; } /* a 1 that no number of examples changes */
static inline bool axis_same(Axis a, Axis b) { return a.n == b.n && a.mul == b.mul && (!a.mul || a.div == b.div); }

/* dtype, logical shape and physical layout. perm lists the logical axes from the outermost to the innermost in memory
 * (identity = row-major; NHWC of a logical NCHW is 0,2,3,1; HWNC is 2,3,0,1). Always dense for the actual n. */
typedef struct Type { uint8_t dtype, rank; uint8_t perm[MAX_RANK]; Axis axis[MAX_RANK]; } Type;
Type type_scalar(DType t);
Type type_of(DType t, int rank, const Axis *axes);          /* identity layout */
int64_t type_elements(const Type *t);                       /* full batch */
int64_t type_bytes(const Type *t);                          /* full batch, without padding */
bool type_same(const Type *a, const Type *b);               /* dtype, shape, marks and layout */
bool type_same_shape(const Type *a, const Type *b);         /* extents only, not the marks */
/* shape, marks and layout: elements of equal indices lie at equal numbers */
bool type_same_place(const Type *a, const Type *b);
/* Between the shapes of a reshape: moves j (axes of from) and i (of to) on to the end of the next axes that hold the
 * same elements, and the same marks. */
void type_block(const Type *from, const Type *to, int *j, int *i);
bool type_is_plain(const Type *t);                          /* identity layout */
bool type_marked(const Type *t);                            /* some axis follows n */
int64_t axis_at(Axis a, int64_t n, int64_t full);           /* extent for n of a batch of full */
void type_print(Buf *b, const Type *t);                     /* f32[N<=64,6,28,28]@0231; "2N<=128", "N/2<=32" */

/* ---------------------------------------------------------------- attributes */
typedef enum AttrKind { AK_INT, AK_INTS, AK_NUM, AK_NUMS, AK_STR, AK_BOOL } AttrKind;
typedef enum AttrName {
#define ATTR(name, kind) A_##name,
#include "attrs.def"
#undef ATTR
	A_COUNT
} AttrName;
/* f also holds i for a NUM that is an integer (is_int). INTS: n and list. An Axis list (reshape's shape) lives in the
 * result type. */
typedef struct Attr {
	uint8_t name, is_int;
	uint16_t n;
	union {
		int64_t i;
		double f;
		const char *s;
		const int64_t *list;
	};
} Attr;
extern const struct AttrNameInfo { const char *name; AttrKind kind; } attr_names[A_COUNT];

/* ---------------------------------------------------------------- operators: their table (table.c) */
typedef enum Trait {
	T_EW = 1 << 0,        /* elementwise, NumPy broadcasting; its expression is in ew.def */
	T_REDUCE = 1 << 1,    /* a row of red.def over attribute axes */
	T_CONTRACT = 1 << 2,  /* sums of products over two operands: matmul, conv2d and their gradients */
	T_VIEW = 1 << 3,      /* moves no element if the layout allows: reshape transpose expand slice ... */
	T_MOVE = 1 << 4,      /* copies elements: concat pad gather take crop */
	T_WINDOW = 1 << 5,    /* pooling */
	T_SCAN = 1 << 6,      /* cumsum */
	T_STATE = 1 << 7,     /* load, store */
	T_CONST = 1 << 8,     /* full, iota: no inputs, the same every time */
	T_RANDOM = 1 << 9,    /* a function of seed, step and stream: may be cloned and merged like any pure op */
	T_EFFECT = 1 << 10,   /* never removed, order kept among effects: store, check, loop ops */
	T_COMPOSITE = 1 << 11,/* has an expansion: attention, lstm, gru and their .dx */
	T_POINTWISE = 1 << 12,/* each element comes from the operands' elements at its own index: T_EW and cast */
	T_LOOP = 1 << 13,     /* only in loops */
	T_SCATTER = 1 << 14,  /* adds into rows: take.dx, gather.dx */
	T_ALIAS = 1 << 15,    /* the same elements in row-major order: the result may share the operand's buffer */
	T_AXES = 1 << 16,     /* axis i of the result is axis i of the operand (of like rank): one layout serves both */
	T_PARTS = 1 << 17,    /* a contraction that sums over examples: kernels do so in parts, added afterwards */
	/* the result may take operand 0's place, of which the kernel then touches what changes and no more; no other
	 * operand's */
	T_INPLACE = 1 << 19,
	T_ORDER = 1 << 18,    /* operand 1 is not read: who reads the result only runs after it stands */
	T_CROP = 1 << 20,     /* each element is one of operand 0's, each of these once, elsewhere, or a constant */
	/* a kernel of its own, of row-major operands; f32 stays f32: order, nms, roi_align and its .dx */
	T_ALONE = 1 << 21,
} Trait;

/* OP_name for ops.def and red.def; OP_name, OP_name_dx, _dy, _dz for every row of ew.def. */
typedef enum OpKind {
	OP_none,
#define OP(name, ...) OP_##name,
#include "ops.def"
#undef OP
#define RED(name, ...) OP_##name,
#include "red.def"
#undef RED
#define EW(name, ...) OP_##name, OP_##name##_dx, OP_##name##_dy, OP_##name##_dz,
#include "ew.def"
#undef EW
	OP_COUNT
} OpKind;

typedef struct Val { uint32_t id; } Val; /* index into Graph.val; 0 = none */
#define NOVAL ((Val){0})

struct Graph; struct Module; struct Op; struct Build; struct RefCtx; struct Access;
/* Result types of op from its inputs' types and attributes. NULL if good, else the message (without operator name or
 * location), in the graph's arena; *which = the operand to blame with a note, -1 if none. An op whose result type
 * already stands there (reshape, full, expand, cast...) is checked against it. */
typedef const char *ShapeRule(struct Graph *g, struct Op *op, int *which);
/* Appends the backward of op to b. dout[i]: gradient of result i or NOVAL. Sets din[k] for every k with need[k];
 * leave NOVAL where it is zero. Shapes of din are those of the inputs. */
typedef void GradRule(struct Build *b, const struct Op *op, const Val *dout, const bool *need, Val *din);
/* Reference evaluation: see RefTensor below. NULL if good, else a run-time error's message. */
typedef const char *RefRule(struct RefCtx *cx, const struct Op *op);
/* Composite ops: appends primitive ops to b and sets out[i]. */
typedef void DecomposeRule(struct Build *b, const struct Op *op, Val *out);
/* Floating point operations of one execution with a full batch: 2 for an FMA; NULL in a row: it computes
 * nothing. */
typedef double FlopsRule(const struct Graph *g, const struct Op *op);

/* Which elements of operand k those of the result come from (access.h); false: the operand is not read. */
typedef bool AccessRule(const struct Graph *g, const struct Op *op, int k, struct Access *a);

typedef struct OpInfo {
	const char *name;      /* as in the text: conv2d, conv2d.dx, relu.dx */
	int8_t nin, nout;      /* -1: any number (concat, call, batch) */
	uint32_t traits;
	/* "stride=[1,1] pad=[0,0] groups=1 axis": order of printing; without '=' it must be given */
	const char *attrs;
	/* whose layout the target chooses, a letter an operand, > and a letter a result: a activation N C H W, w weight
	 * O I H W; NULL: none */
	const char *images;
	ShapeRule *shape; GradRule *grad; RefRule *ref; DecomposeRule *decompose; FlopsRule *flops;
	AccessRule *access;    /* of T_VIEW, T_MOVE, T_POINTWISE */
	const char *doc, *source;
	/* elementwise rows */
	int16_t ew;            /* row of ew.def, -1 otherwise */
	int8_t part;           /* 0 value, 1..3 d/dx d/dy d/dz */
	const char *types;     /* dtype kinds allowed: F I B */
	const struct Expr *expr; /* parsed once; variables x y z r g a b and which of them it uses */
	const char *operands;  /* of ew ops: the letters of in[0..nin), e.g. "rg" for relu.dx, "xy" for add */
	/* reductions */
	int16_t red;           /* row of red.def, -1 otherwise */
	/* parsed attribute list */
	uint8_t nattr; const uint8_t *attr_name; const Attr *attr_default; const bool *attr_required;
} OpInfo;
extern OpInfo op_info[OP_COUNT];  /* complete after ir_init() */
void ir_init(void);               /* once, first; checks the tables and calls bug() where they disagree */
OpKind op_named(const char *name);/* OP_none if none; name as in the text */
static inline bool op_has(OpKind k, uint32_t traits) { return (op_info[k].traits & traits) != 0; }

/* ---------------------------------------------------------------- ops, values, graphs */
typedef struct Op {
	uint16_t kind;           /* OpKind */
	uint16_t nin, nout;
	bool dead;               /* removed by a pass; graph_compact drops it */
	uint8_t nattr;
	int32_t group;           /* kernel it belongs to, -1 before fuse */
	Val *in, *out;
	Attr *attr;              /* in the order of op_info[kind].attrs, all filled in */
	Loc loc;
	/* the layer: call path with labels, "stage0.bottleneck1.conv_bn2.conv2d0"; "" in the model's body */
	const char *path;
} Op;

typedef struct ValInfo {
	Type type;
	const char *name;        /* without %; unique in its graph */
	uint32_t op;             /* index of the defining op; UINT32_MAX for a graph input or nothing */
	uint16_t index;          /* which result */
	/* planned: byte offset in the arena; -1 = none (kept in registers, or not planned yet) */
	int64_t offset;
} ValInfo;

/* seed, step, first (place of the shard's first example in the whole batch): i64[]; rate: f64[] */
typedef enum InputKind { IN_DATA, IN_SEED, IN_STEP, IN_RATE, IN_FIRST, IN_COUNT } InputKind;
typedef struct Input { Val v; const char *name; InputKind kind; } Input;
/* norm: of the gradients before clipping. scale: the loss scale of this step. overflow: index of the state whose
 * gradient is not finite, so that the step changed nothing; -1 = none. whole: a metric on all examples so far, of which
 * the last batch's counts; batch: one that only a single batch has; a metric is averaged over batches instead. set: a
 * metric NAME that setting metric.NAME computes at the end of an evaluation from all examples' kept values NAME.0,
 * NAME.1, ...; its own value is 0. table: a vector or matrix on all examples so far, read behind the last batch */
typedef enum ResultKind {
#define RESULT_KIND(name, word) RES_##name,
#include "../runtime/kinds.def"
	RES_COUNT,
} ResultKind;
/* Is it one of the scalars that each batch reports? */
static inline bool
result_reported(ResultKind k)
{
	return k != RES_OUTPUT && k != RES_KEPT && k != RES_TABLE;
}
typedef struct Result { Val v; const char *name; ResultKind kind; } Result;

/* One of several kernels of a group, in a racing program: what it alone needs. Class: `same` bits as the group's own
 * kernel, another `order` of sums, `round`: fewer bits; bound, of the latter two: how many roundings (2^-23 in f32) of
 * a result's largest element any of its elements may differ by. */
typedef enum VariantClass { CLASS_same, CLASS_order, CLASS_round, CLASS_COUNT } VariantClass;
extern const char *const variant_classes[CLASS_COUNT];
typedef struct GroupVariant {
	const char *kernel;
	VariantClass bits;
	int64_t bound, workspace, prepacked;
} GroupVariant;

/* A kernel: the ops with Op.group == id, contiguous once scheduled. */
typedef struct Group {
	const char *name;        /* unique in the module, a C identifier; from the ops and the layer */
	/* family and parameters as text: "rows{vec=16}", "brgemm{mr=6,nv=4,...}"; NULL before select */
	const char *kernel;
	int64_t workspace, workspace_offset; /* bytes of partial results, and where; 0, -1 */
	/* bytes that it computes from states alone, once, and reads in every call of the graph; 0, -1 */
	int64_t prepacked, prepacked_offset;
	bool once; /* all of it is computed from states alone: it runs in the first call, its results stay */
	const char *record;      /* of a racing program: the key that a tuning file calls the kernel by; else NULL */
	/* of a racing program: the kernel itself, then others in its place; workspace and kept are the largest of
	 * theirs */
	VEC(GroupVariant) variant;
	/* by its kernels, in their order: the number of the launch (launch.c), -1: one of its own, where it stands.
	 * None: all are such */
	VEC(int32_t) launch;
	uint32_t first, last;    /* ops [first, last) once graph_group_ops was asked; never printed */
} Group;

typedef struct Graph {
	struct Module *module;
	Arena *arena;
	const char *name;        /* train, update, eval, infer, or a loop's name */
	bool is_loop;
	bool training;           /* N bound: no axis is marked */
	/* a marked axis met an unmarked one: only whole batches run */
	bool full_only; Loc full_loc; const char *full_why;
	/* why a metric cannot be put together from several batches; NULL: all can */
	const char *one_batch; Loc one_batch_loc;
	int64_t multiple; Loc multiple_loc; /* of it n must be one, or an axis of N/2 has no whole extent; 1: any n */
	VEC(Op) op;
	VEC(ValInfo) val;        /* entry 0 unused */
	VEC(Input) input;
	VEC(Result) result;
	VEC(Group) group;
	struct NameSet *names;   /* of values, for graph_add_val; never printed */
} Graph;

/* ---------------------------------------------------------------- attributes of an op (table.c) */
/* attr_* call bug() if the operator has none of that name. */
const Attr *attr_get(const Op *op, AttrName n);
int64_t attr_int(const Op *op, AttrName n);
bool attr_bool(const Op *op, AttrName n);
double attr_num(const Op *op, AttrName n);
const char *attr_str(const Op *op, AttrName n);
const int64_t *attr_ints(const Op *op, AttrName n, int *count); /* count may be NULL */
double op_flops(const Graph *g, const Op *op);              /* by the row's rule; 0 without one */

/* ---------------------------------------------------------------- modules (module.c, clone.c) */
/* STAT: running statistics; SLOT: optimizer; GRAD: accumulated; SUM: of an evaluation's batches, never saved; CARRY:
 * what generate carries from place to place, never saved, whose memory other graphs use, and which may follow the
 * batch; SETTING: a number of the recipe that a run may set, which no graph stores and no checkpoint holds; AVERAGE: a
 * parameter's running mean, NAME.average; COPY: a parameter rounded to fewer bits, NAME.copy, never saved */
typedef enum StateKind {
#define STATE_KIND(name, word) ST_##name,
#include "../runtime/kinds.def"
	ST_COUNT
} StateKind;
typedef enum InitKind { /* value | mean 0, std | low, high */
#define INIT_KIND(name, word) INIT_##name,
#include "../runtime/kinds.def"
	INIT_COUNT
} InitKind;
typedef struct State {
	const char *name;        /* the contract's: "stem.conv2d0.weight"; slots "stem.conv2d0.weight.momentum" */
	Type type;
	StateKind kind;
	InitKind init; double a, b;
	bool decay, frozen;      /* weight decay applies; not trained */
	Loc loc;
	int64_t offset;          /* planned; -1 */
} State;

/* Settings of data and train, all defaults filled in, named "train.batch", "train.optimizer", "data.reader"...
 * A value is a number, string, bool, none, list or call: momentum(rate = poly(...), momentum = 0.9). */
typedef enum SetKind { SET_NONE, SET_INT, SET_NUM, SET_BOOL, SET_STR, SET_NAME, SET_LIST, SET_CALL } SetKind;
typedef struct Setting {
	SetKind kind;
	const char *name;        /* of this argument, or NULL in a list; the full name at the top */
	int64_t i; double f;     /* f also holds i */
	const char *s;           /* text, or a call's or a name's name */
	/* of a list or call; every argument of a call is named and defaults are filled in */
	struct Setting *arg; int nargs;
} Setting;

/* What a module has been through, in order: STAGE_typed .. STAGE_planned. passes/README.md says what each promises. */
#define STAGES(X) X(typed) X(diffed) X(lowered) X(fused) X(scheduled) X(selected) X(planned)
typedef enum Stage {
#define X(name) STAGE_##name,
	STAGES(X)
#undef X
	STAGE_COUNT
} Stage;
extern const char *const stage_names[STAGE_COUNT];
int stage_number(const char *name);                         /* a Stage; -1 if none */

typedef struct Module {
	Arena *arena;
	Diags *diags;
	const char *name;        /* of the model */
	int64_t batch;           /* N of a full batch */
	VEC(Setting) setting;
	VEC(State) state;
	struct StateIndex *states; /* by name, for module_state; never printed */
	VEC(Graph *) graph;      /* train, [update,] eval, infer, then loops */
	int64_t arena_bytes;     /* planned: state, inputs, values, workspaces; 0 before */
	int64_t scratch_bytes;   /* planned: per thread */
	const char *stage;       /* one of stage_names */
	const char *target, *arch;  /* once chosen, else NULL */
	uint64_t source_hash;    /* of all the files read */
} Module;

Module *module_new(Arena *a, Diags *d, const char *name);
Graph *module_add_graph(Module *m, const char *name);
Graph *module_graph(const Module *m, const char *name);     /* NULL if none */
State *module_state(Module *m, const char *name);           /* NULL if none */
State *module_add_state(Module *m, const char *name, Type t, StateKind kind);
/* Does a pattern name a parameter, or a label that begins its path? * stands for any characters, points too. */
bool label_matches(const char *pattern, const char *name);
const Setting *setting(const Module *m, const char *name);  /* NULL if not set */
/* A setting that a tuning file makes: how many threads short steps begin with. */
#define TUNED_THREADS "tuning.threads"
#define CUT_SETTING "train.shard_optimizer" /* of build --shard-optimizer: 1 */
/* What the exchange is cut for (build --cluster): link(processes, start, rate, shard), a message's seconds, bytes/s of
 * gradients, and of a shard as far as the description says its speed, else 0. Without it: the two below. */
#define LINK_SETTING "bucket.link"
#define LINK_START 50e-6
#define LINK_RATE 1e9
const Setting *setting_arg(const Setting *s, const char *name); /* argument of a call */
double setting_number(const Setting *s, const char *name, double fallback); /* such an argument, if it is above 0 */
void setting_print(Buf *b, const Setting *s);               /* as in the .net */
Module *module_clone(const Module *m, Arena *a);

/* ---------------------------------------------------------------- graphs (graph.c) */
Val graph_add_val(Graph *g, Type t, const char *name, uint32_t op, int index); /* name made unique: x, x.1, x.2 */
void graph_name_val(Graph *g, Val v, const char *name);     /* another name for v, made unique */
Val graph_add_input(Graph *g, Type t, const char *name, InputKind kind);
/* seed, step, rate; added on first use by graph_need_input */
Val graph_input(const Graph *g, InputKind kind);
Val graph_need_input(Graph *g, InputKind kind);
void graph_add_result(Graph *g, Val v, const char *name, ResultKind kind);
static inline ValInfo *val_info(const Graph *g, Val v) { return &g->val.at[v.id]; }
static inline const Type *val_type(const Graph *g, Val v) { return &g->val.at[v.id].type; }
Op *val_op(const Graph *g, Val v);                          /* its definition; NULL for an input */
/* Drops dead ops and values nobody names; renumbers Val.id and ValInfo.op; names stay. */
void graph_compact(Graph *g);
/* The ops of a group: the first; *last is one behind the last. Other ops stand between them only before the schedule is
 * made. */
uint32_t graph_group_ops(const Graph *g, int group, uint32_t *last);
const Op *graph_group_contraction(const Graph *g, int group); /* NULL: it has none */
/* By Val.id: operands of ops that are not dead, and results, that it is. */
uint32_t *graph_use_counts(const Graph *g, Arena *a);
/* loads or stores a state of kind carry: all of those keep their places in it */
bool graph_carries(const Graph *g);
/* hop or share: called between the calls of graph step, of which what is made once must stand */
bool graph_between(const Graph *g);
/* By Val.id: computed from states and constants alone, in a graph that stores nothing but sums of an evaluation, and of
 * a size that does not follow n, so that it is the same in every call until somebody else changes a state. Through
 * values of other groups only where these run once. */
bool *graph_steady(const Graph *g, Arena *a);
/* May a kernel of this group read v in the first call, before all groups that do not run once? What its own group
 * makes, it makes again. */
bool steady_for(const Graph *g, const bool *steady, Val v, int32_t group);

/* ---------------------------------------------------------------- questions that more than one target asks (ask.c) */
/* workspace, kept: its variants' largest; without any they stay */
void group_room(Group *gr);
/* elementwise all through, of one shape (or single numbers): every element is read before it is written */
bool group_is_map(const Graph *g, int group);
/* ---- launch.c */
bool op_joins_shards(const Op *op);                       /* alive, and waits for what other shards have */
typedef struct MemSpan { int64_t from, to; } MemSpan;   /* bytes of the arena */
typedef struct Touched { VEC(MemSpan) read, written; } Touched;
/* What the kernels of a group read and write, all of them, of a planned graph; the group's workspace as well, which may
 * be the place of what another group's kernels read. */
void group_touches(const Graph *g, int group, Touched *t, Arena *a);
void touched_add(Touched *all, const Touched *one, Arena *a);
/* NULL: a and b may run in any order, or what b does to a, as a format that takes a's name. */
const char *touched_meet(const Touched *b, const Touched *a);
/* NULL, or why kernels cannot be launched as Group.launch says. */
const char *launches_wrong(const Graph *g, Arena *a);
/* a view whose elements lie in memory in the order of its operand's, as the layouts of both say: it may share the
 * operand's place */
bool view_moves_nothing(const Graph *g, const Op *op);
/* Lets `to`, what a reshape makes of `from`, lie so that nothing moves; false: it cannot. */
bool reshape_lies(const Type *from, Type *to);
/* does its op store it, of a planned graph? A view in its operand's place is there already */
bool val_is_stored(const Graph *g, Val v);
Axis check_limit(const Op *check);                           /* what its elements are below */
/* its place in the descriptor's "checks": those of all graphs, in order */
int64_t check_number(const Module *m, const Op *check);

/* ---------------------------------------------------------------- building (build.c) */
/* One call makes an op, infers and checks its types. */
typedef struct Build {
	Graph *g;
	Loc loc;                 /* for the ops made from now on */
	const char *path;        /* likewise */
	const char *error;       /* first shape error since it was cleared: message; the result is then NOVAL */
	int which;               /* operand to blame, -1 */
} Build;
/* Values for attributes: ATTRS(AI(axis, 1), AL(axes, list, n), AF(slope, 0.1), AS(state, "w"), AB(keep, true)) */
typedef struct AttrArg {
	AttrName name;
	AttrKind kind;
	int64_t i;
	double f;
	const char *s;
	const int64_t *list;
	int n;
} AttrArg;
#define AI(nm, x) {.name = A_##nm, .kind = AK_INT, .i = (x)}
#define AB(nm, x) {.name = A_##nm, .kind = AK_BOOL, .i = (x)}
#define AF(nm, x) {.name = A_##nm, .kind = AK_NUM, .f = (x)}
#define AS(nm, x) {.name = A_##nm, .kind = AK_STR, .s = (x)}
#define AL(nm, l, c) {.name = A_##nm, .kind = AK_INTS, .list = (l), .n = (c)}
#define ATTRS(...) (AttrArg[]){__VA_ARGS__, {.name = A_COUNT}}
#define VALS(...) (Val[]){__VA_ARGS__}, (int)(sizeof((Val[]){__VA_ARGS__}) / sizeof(Val))
/* result: wanted result type where the operator cannot infer it (reshape, expand, cast, full, iota, random), else NULL.
 * All results are op->out; the first is returned. */
Val build_op(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *result);
/* The same for operators with any number of results (call, batch): types of all results. */
Val build_op_n(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *results, int nout);
/* The same op of other operands, at b's location; results as build_op_n has them, of type DT_none where the op infers
 * them. Its results, or NULL. */
const Val *build_again(Build *b, const Op *op, const Val *in, const Type *results);
Op *build_last(Build *b);                                    /* the op just made */
#define build(b, kind, ...) build_op(b, kind, VALS(__VA_ARGS__), NULL, NULL)
Val build_const(Build *b, DType t, double x);                /* rank 0; broadcast by use */
Val build_full(Build *b, Type t, double x);
Val build_cast(Build *b, Val x, DType t);                    /* x itself if it has that type */
Val build_reshape(Build *b, Val x, int rank, const Axis *axes);
Val build_transpose(Build *b, Val x, const int64_t *perm);
Val build_expand(Build *b, Val x, int rank, const Axis *axes);
Val build_reduce(Build *b, OpKind red, Val x, const int64_t *axes, int n, bool keep);
Val build_load(Build *b, const char *state);
/* the setting's state, made of dt where it is not there */
Val build_setting(Build *b, DType dt, const char *name, double value);
Val build_sum_to(Build *b, Val g, const Type *shape);        /* undoes broadcasting: sums g to shape */
void graph_multiple(Graph *g);                           /* Graph.multiple again, of the ops that are left */
/* NumPy broadcasting of shapes (marks unify: marked with unmarked of equal extent sets full_only). NULL if good. */
const char *broadcast_axes(Graph *g, int n, const Type *const *t, Type *out);
/* ---------------------------------------------------------------- gradients (grad*.c) */
/* the rule of any op: a row of ew.def, of red.def, or its own */
GradRule grad_op;
/* May a gradient of op's results reach input k? False for integers, derivatives NONE and 0, and ops without a rule. */
bool grad_passes(const Graph *g, const Op *op, int k);

/* ---------------------------------------------------------------- expressions of ew.def (expr.c) */
typedef enum ExprKind {
	EX_NUM,
	EX_VAR, /* index: of a name; var: it, if it is a letter */
	EX_NEG,
	EX_NOT,
	EX_ADD,
	EX_SUB,
	EX_MUL,
	EX_DIV,
	EX_EQ,
	EX_NE,
	EX_LT,
	EX_LE,
	EX_GT,
	EX_GE,
	EX_AND,
	EX_OR,
	EX_SELECT,
	EX_EXP,
	EX_EXPM1,
	EX_LOG,
	EX_LOG1P,
	EX_SQRT,
	EX_ERF,
	EX_ERFC,
	EX_TANH,
	EX_SIN,
	EX_COS,
	EX_FLOORMOD,
	EX_POW,
	EX_FLOOR,
	EX_CEIL,
	EX_RINT,
	EX_FABS,
	EX_FMIN,
	EX_FMAX,
	EX_IDIV,
	EX_IMOD /* floor division and its remainder; by 0 gives 0 */
} ExprKind;
typedef struct Expr {
	ExprKind kind; char var; int index; double num;
	const struct Expr *a, *b, *c;
	uint32_t uses;                                             /* bit per variable, of the first 32 */
} Expr;
#define EXPR_VARS "xyzrgab"
const Expr *expr_parse(Arena *a, const char *text, const char **error);
/* The same of n variables of these names, which hide functions; they are read no more afterwards. */
const Expr *expr_parse_names(Arena *a, const char *text, const char *const *names, int n, const char **error);
bool expr_reads(const Expr *e, int index);                    /* that variable? */
double expr_eval(const Expr *e, const double *var);            /* in the order of the names, or of EXPR_VARS */
/* + - * wrap; of what ew.def has for integers and conditions */
int64_t expr_eval_int(const Expr *e, const int64_t *var);
/* the call of that name: remainder of floor division, exact */
double floormod(double x, double y);
bool expr_costly(const Expr *e);                              /* a division or a transcendental function in it? */

/* ---------------------------------------------------------------- text (print.c, parse.c) */
extern const char *const text_state_kinds[ST_COUNT];    /* by StateKind */
extern const char *const text_inits[INIT_COUNT];        /* by InitKind */
extern const char *const text_result_kinds[RES_COUNT];  /* by ResultKind */
void module_print(Buf *b, const Module *m);
void graph_print(Buf *b, const Graph *g);
void op_print(Buf *b, const Graph *g, const Op *op);          /* one line without its end */
/* " {pad=[1,1]}", nothing if all are the default; without names: of states, streams */
void op_print_attrs(Buf *b, const Op *op, bool names);
/* NULL after diagnostics. Accepts what module_print wrote at any stage, and hand-written parts (locations, paths,
 * groups optional). */
Module *module_parse(Arena *a, Diags *d, const char *file, const char *text, size_t bytes);

/* ---------------------------------------------------------------- verifier: structure, and what the stage promises */
/* false: every violated rule a line, op printed under it */
bool module_verify(const Module *m, Buf *errors);

/* ---------------------------------------------------------------- reference evaluator (ref.c, interp.c) */
/* Floating numbers and conditions are double, in f; integers of any width are int64_t, in i; the other pointer is NULL.
 * After each op results are rounded to their dtype: f32 to float only if RefCtx.round; integers wrap, saturate as the
 * language says. Logical row-major. */
typedef struct RefTensor { Type type; int64_t n; /* elements for the actual batch */ double *f; int64_t *i; } RefTensor;
typedef struct RefCtx {
	const Graph *g;
	Arena *arena;
	int64_t n, full;          /* actual batch, full batch */
	bool round;               /* round f32 results to float */
	RefTensor *val;           /* by Val.id */
	RefTensor *state;         /* by index in Module.state */
	const char *error;
} RefCtx;
const char *ref_op(RefCtx *cx, const Op *op);                 /* runs one op; NULL or a message */
int64_t ref_extent(const RefCtx *cx, Axis a);
#endif
