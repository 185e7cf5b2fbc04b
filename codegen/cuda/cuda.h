/* cuda.h: private interface of the CUDA target.
 *
 * Code is CUDA C text, made by pulling: a kernel loops over what it stores, and cu_value_at() writes whatever computes
 * one value at an index, back to what lies in memory, as local variables. Each question at equal indices is answered
 * once in a scope (Memo), each index expression has one variable (Cse). A scope is a pair of braces; what it defines
 * ends with it. */
#ifndef CODEGEN_CUDA_H
#define CODEGEN_CUDA_H
#include "../../ir/ir.h"
#include "../../ir/window.h"
#include "../../ir/target.h"
#include "../space.h"
#include "emit/emit.h"
#include "loop.h"

#define BLOCK 256 /* threads of a block, but in tiles of a contraction; the prelude's trees are made for it */

/* Of all devices: threads of a warp; bytes of shared memory that the driver takes of a block; bytes that a
 * multiprocessor reads of L2 in a cycle, half of the 64 that it could. */
enum { WARP = 32, SHARED_KEPT = 1024, L2_READ = 32 };
/* Of reductions: elements of a row that one thread adds up, at most; of a part of a long one, at least. */
enum { SHORT_ROW = 64, PIECE = 4096 };

typedef const char *Ix;             /* an index: a decimal number, or the name of a variable */
typedef struct Cell { const char *v; uint8_t dt; } Cell; /* a value: C text of few tokens; f16 and bf16 are floats */
typedef struct Memo { uint32_t val; int rank; Ix ix[MAX_RANK]; Cell cell; } Memo;
typedef struct Cse { const char *text, *name; } Cse;
typedef struct Joined { Ix sum, outer, ext, inner; } Joined; /* sum = outer * ext + inner, 0 <= inner < ext */
typedef struct Scope { uint32_t memo, cse, joined; } Scope;
/* Neighbours in the making, element u of `vec` in a loop of its own: what lies along them in memory, as numbers of each
 * channel do, is loaded in vectors before (vectors.c). */
typedef struct Lanes {
	const Type *type; int axis, vec; /* of what the loop goes over; its axis of neighbours */
	Ix first[MAX_RANK], lane;       /* indices of the first one; that of element u along the axis */
	/* Where loads are put into Cuda.body: [0] where of `first` only the index along the axis is known, if `early`;
	 * [1] before the loop. */
	struct { size_t at; int depth; } place[2];
	bool early;
	const char *valid;              /* early: NULL, or a condition under which that index is in range */
	VEC(Cse) taken[2];              /* addresses and arrays */
} Lanes;
typedef struct Out { Val v; const Type *type; int64_t offset; } Out; /* what a kernel stores, and where */

/* A group in the making: tables by Val.id, and the kernel that is open. */
typedef struct Cuda {
	Arena *a;
	CuProgram *p;
	GraphKernels *gk;
	const Module *m;
	const Graph *g;
	int group;                      /* -1: an op outside groups */
	Params kernel;                  /* of the group, its text parsed; no family: its text has no parameters */
	uint32_t first, last;           /* its ops */
	bool *inside, *ready;           /* defined by the group; stored by a kernel before this one */
	int *phase;                     /* rows.c */
	const char *it;                 /* C type of indices */
	/* kernels so far; of these, those ahead of the first that makes what the group does, and of the group's bytes
	 * what that one leaves to them */
	int nkernel, nahead; double ahead_bytes, ahead_flops;
	const Op *parts;                /* a contraction whose result cuDNN left in memory (cudnn.c): */
	Type part_type; int64_t part_at; /* as this type, there */
	/* the open kernel */
	const char *name;
	Buf head, body;
	int depth, nvar;
	/* offsets that are its parameters, behind so many numbers that are none: a process's part has others */
	VEC(int64_t) off; uint32_t counts;
	VEC(KernelMap) map; char map_name[2]; /* tensor maps behind them, map_X */
	int threads; int64_t shared;    /* of a block: threads, bytes of shared memory that the launch gives */
	int team;                       /* blocks that wait for each other; 1: none does */
	int beside;                     /* as CuFunction's */
	/* flat: o0 is the number of elements, and nothing else tells shapes apart; loose: threads do not meet, it may
	 * share a launch; two: see CuFunction */
	bool check, writes_state, flat, loose, two;
	VEC(Memo) memo;
	VEC(Cse) rounded;               /* variables that have 16 bits already, and what was rounded to them */
	VEC(Cse) cse;
	VEC(Joined) joined;
	VEC(Cse) top;                   /* pointers and extents, at the kernel's start */
	Lanes *lanes;                   /* NULL: one element at a time */
	/* what is asked for from below (group.c sets it): cu_value_at, cu_window_neighbours, cu_window_values */
	Cell (*value)(struct Cuda *c, Val v, const Ix *ix);
	bool (*neighbours)(const Graph *g, const Op *op);
	const char *(*windows)(struct Cuda *c, const Op *op, const Ix *ix, int vec);
	const Type *root; Ix root_ix[MAX_RANK], root_i; /* elements of this type at root_ix are at root_i */
} Cuda;

/* computed by the group, stored by it */
static inline bool
cu_value_is_out(const Cuda *c, Val v)
{
	return c->inside[v.id] && val_is_stored(c->g, v);
}

/* ---- text.c: lines, scopes, indices, memory */
void cu_line(Cuda *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
Scope cu_scope_open(Cuda *c, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* fmt { */
void cu_scope_close(Cuda *c, Scope s);
/* cu_kernel_close, of a kernel that moves `bytes` to find what the next one reads, which then moves `less` */
void cu_kernel_ahead(Cuda *c, const char *what, int64_t blocks, double bytes, double less);
void cu_kernel_turns(Cuda *c, double turns);            /* of the kernel that was closed last: CuFunction.turns */
Scope cu_loop_open(Cuda *c, const char *count, Ix *i);  /* i from 0 to below count */
const char *cu_fresh(Cuda *c, char letter);             /* v7 */
/* a variable for a text, one in a scope */
const char *cu_let(Cuda *c, const char *type, char letter, const char *text);
bool cu_ix_number(Ix i, int64_t *k);
Ix cu_ix_k(Cuda *c, int64_t k);
Ix cu_ix_add(Cuda *c, Ix a, Ix b);
Ix cu_ix_sub(Cuda *c, Ix a, Ix b);
Ix cu_ix_mul(Cuda *c, Ix a, Ix b);
Ix cu_ix_div(Cuda *c, Ix a, Ix b);                      /* of numbers >= 0 */
/* parts of `each`, the last perhaps a smaller one, that a takes */
Ix cu_ix_parts(Cuda *c, Ix a, int64_t each);
Ix cu_ix_rem(Cuda *c, Ix a, Ix b);
Ix cu_ix_join(Cuda *c, Ix outer, Ix ext, Ix inner);     /* outer * ext + inner */
const char *cu_in_range(Cuda *c, Ix i, Ix ext);         /* a condition; "1" and "0" where that is known */
const char *cu_both(Cuda *c, const char *a, const char *b);
Ix cu_extent(Cuda *c, Axis a);
Ix cu_product(Cuda *c, const Type *t, uint32_t axes);   /* of the extents of a set of axes */
int64_t cu_full_product(const Type *t, uint32_t axes);  /* the same of a full batch */
/* Takes number i apart into indices of the axes, the innermost in memory fastest. */
void cu_take_apart(Cuda *c, const Type *t, uint32_t axes, Ix i, Ix *ix);
const char *cu_c_type(DType t);                         /* of a cell */
const char *cu_memory_type(DType t);                    /* of an element in memory */
const char *cu_from_memory(Cuda *c, DType t, const char *text); /* a cell's text, of that of an element in memory */
const char *cu_to_memory(Cuda *c, DType t, const char *text);
/* of a number of type t that was rounded to 16 bits what was, else the text: for who rounds it to t */
const char *cu_unrounded(Cuda *c, DType t, const char *text);
Cell cu_cell_let(Cuda *c, const char *text, DType t);   /* a variable */
Cell cu_load_at(Cuda *c, const Type *t, int64_t offset, const Ix *ix);
/* false: it does not lie along them */
bool cu_lanes_take(Cuda *c, const Type *t, int64_t offset, const Ix *ix, Cell *x);
void cu_store_at(Cuda *c, const Type *t, int64_t offset, const Ix *ix, Cell x);
/* said of stores that go another way: a kernel that writes states asks first whether the loop has ended */
void cu_stores_at(Cuda *c, int64_t offset);
const char *cu_pointer(Cuda *c, DType t, int64_t offset); /* the name of a pointer into the arena */
void cu_count(Cuda *c, int64_t n);      /* the kernel's next parameter is this number: before any pointer */
const char *cu_element(Cuda *c, const Type *t, const Ix *ix); /* its number in memory's order */
const char *cu_address(Cuda *c, const Type *t, int64_t offset, const Ix *ix); /* of an element */
void cu_memo_put(Cuda *c, Val v, const Ix *ix, Cell x);
bool cu_memo_find(const Cuda *c, Val v, const Ix *ix, int rank, Cell *x);
void cu_kernel_open(Cuda *c, const char *what);
/* how threads share the work; blocks of a full batch */
void cu_kernel_close(Cuda *c, const char *what, int64_t blocks);
/* in place of a kernel: a plan of cuDNN, with the group's figures */
void cu_plan_close(Cuda *c, const char *plan, const int64_t *off, int noff);

/* ---- inputs.c: examples read where the data set has them */
void cu_inputs_find(const Module *m, GraphKernels *gk); /* fills gk->addressed */
bool cu_input_is_addressed(const Cuda *c, Val v);
Cell cu_input_at(Cuda *c, Val v, const Ix *ix);

/* ---- ew.c: arithmetic */
Cell cu_cell_number(Cuda *c, DType t, double x);
/* a number that an attribute gives: to integers exact, saturated */
Cell cu_cell_attr(Cuda *c, DType t, const Attr *a);
Cell cu_cell_lowest(DType t, bool highest);
Cell cu_cell_cast(Cuda *c, Cell x, DType to);
Cell cu_cell_rounded(Cuda *c, Cell x);            /* to its type, where that has 16 bits: arithmetic goes on in f32 */
Cell cu_cell_bin(Cuda *c, ExprKind k, Cell a, Cell b);
Cell cu_cell_fma(Cuda *c, Cell a, Cell b, Cell s);
Cell cu_cell_ew(Cuda *c, const Op *op, const Cell *in);
Cell cu_cell_apply(Cuda *c, OpKind k, Cell x);          /* an elementwise op of one operand */
Cell cu_cell_expr(Cuda *c, const Expr *x, const Cell *var, DType dt); /* var: by Expr.index */
uint32_t cu_stream_number(const char *stream);
Cell cu_cell_random(Cuda *c, const Op *op, Ix element, Cell seed, Cell step);
const char *cu_suffix(DType t);                         /* of the prelude's functions: f32, i64, ... */

/* ---- windows.c: poolings */
/* A variable, or an array of vec where that is not 1: all `start`, or not set if that is NULL. */
const char *cu_numbers_open(Cuda *c, int vec, char letter, const char *type, const char *start);
bool cu_window_neighbours(const Graph *g, const Op *op);  /* may channels be taken some at a time? */
/* at ix and the channels behind it: the name of a variable, of an array where vec is not 1 */
const char *cu_window_values(Cuda *c, const Op *op, const Ix *ix, int vec);
/* what it takes a pooling to make operand k itself */
void cu_windows_prologue(const Graph *g, const Op *op, int k, DType narrow, Prologue *p);
int64_t cu_windows_workspace(const Graph *g, int group);  /* of the group, for what cu_windows_emit finds */
/* the kernel before a gradient of max pooling: the first maximum of each window */
void cu_windows_emit(Cuda *c, const Op *op);

/* ---- depthwise.c: convolutions of groups of fewer than 8 channels */
/* may channels of the result be taken some at a time? conv2d and conv2d.dx */
bool cu_depthwise_neighbours(const Graph *g, const Op *op);
/* as cu_window_values */
const char *cu_depthwise_values(Cuda *c, const Op *op, const Ix *ix, int vec);
/* the same of so many neighbouring pixels of a row: the name of an array of such arrays */
const char *cu_depthwise_tile(Cuda *c, const Op *op, const Ix *ix, int vec, int pixels);
/* sets kernel and workspace; false: the plain kernel */
bool cu_depthwise_select(Graph *g, int group, const Op *op);
Facts cu_depthwise_facts(const Graph *g, const Op *op, const SelectCx *cx);
const char *cu_depthwise_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p);
int64_t cu_depthwise_workspace(const Graph *g, const Op *op, const Params *p);
/* the kernel before a gradient in weights: sums of pieces of the pixels */
void cu_depthwise_emit(Cuda *c, const Op *op);
/* the sum of these pieces at ix; false: there are none */
bool cu_depthwise_pieces(Cuda *c, const Op *op, const Ix *ix, Cell *x);

/* ---- eval.c, eval_sum.c: the value of an element */
Cell cu_eval_value(Cuda *c, Val v, const Ix *ix);
static inline Cell
cu_value_at(Cuda *c, Val v, const Ix *ix)
{
	return c->value(c, v, ix);
}
Cell cu_guarded(Cuda *c, Val x, const Ix *ix, const char *valid, Cell fill);
/* ---- frame.c: what many kernels begin with */
Scope cu_threads_open(Cuda *c, const Type *t, uint32_t axes, Ix *ix); /* the loop of threads over a set of axes of t */
int64_t cu_blocks_of(const Type *t, uint32_t axes);     /* of a full batch */
/* Of convolutions, in one direction: the row that a tap of output row o reads, o * stride + tap * dil - pad; the output
 * row of which a tap reads row i, if *valid, which it adds to. */
Ix cu_row_in(Cuda *c, Ix o, int64_t stride, Ix tap, int64_t dil, int64_t pad);
Ix cu_row_out(Cuda *c, Ix i, int64_t stride, Ix tap, int64_t dil, int64_t pad, const char **valid);
/* `valid`, and the pixel is one of t's */
const char *cu_in_plane(Cuda *c, const Type *t, const Ix *ix, const char *valid);
/* ---- eval_sum.c, rows.c */
Cell cu_eval_contract(Cuda *c, const Op *op, const Ix *ix);
Cell cu_eval_reduce(Cuda *c, const Op *op, int index, const Ix *ix);

/* ---- rows.c: reductions */
/* one pass of one reduction: its state */
/* below_zero: of exponentials, all of numbers of 0 and less */
typedef struct Atom { const Op *op; int pass; const char *s[2]; Cell before; bool warp, below_zero; } Atom;
/* Which ops of a group are its reductions, or wait for one: late[i - first]. */
typedef struct Late { uint32_t first, last; bool *late; } Late;
Late cu_late_find(const Graph *g, int group);
bool cu_late_is(const Graph *g, const Late *l, Val v);  /* is it what such an op makes? */
int cu_red_passes(const Op *op);
uint32_t cu_red_axes(const Graph *g, const Op *op);
const char *cu_atom_type(const Cuda *c, const Atom *a); /* C type of its state */
void cu_atom_open(Cuda *c, Atom *a);
void cu_atom_step(Cuda *c, Atom *a, Cell x, Ix index);
void cu_atom_join(Cuda *c, Atom *a);                    /* over the threads of the block, or of a->warp */
Cell cu_atom_value(Cuda *c, Atom *a, Ix count);         /* what the next pass, or the result, takes of it */
/* What a reduction takes in of an element; its result of state s, index and count. */
Cell cu_red_element(Cuda *c, const Op *op, Cell x);
Cell cu_red_value(Cuda *c, const Op *op, Cell s, const char *index, Ix count);
/* blocks to a row, 1 unless rows are few and long; of these: bytes of workspace */
int cu_rows_pieces(const Graph *g, int group, const Op *red, int64_t *workspace);
Facts cu_rows_facts(const Graph *g, const Op *red, const SelectCx *cx);
const char *cu_rows_misfit(const Graph *g, const Op *red, const SelectCx *cx, const Params *p);
int64_t cu_rows_workspace(const Graph *g, const Op *red, const Params *p);
/* p: of the family, or the family alone: as other kernels' groups have it */
void cu_rows_emit(Cuda *c, const Params *p);
int cu_rows_threads(const Graph *g, const Op *op);      /* of a row: one, a warp's, a block's */
/* threads of a row that has a block: as many as it takes for their registers to hold it */
int cu_rows_block(const Graph *g, int group, const Op *red);

/* ---- scatter.c: elements added to places that indices name */
void cu_scatter_emit(Cuda *c, const Op *op);
int64_t cu_scatter_workspace(const Graph *g, const Op *op);

/* ---- totals.c: whole tensors to a number */
/* sets the kernel; false: the group has what such a kernel cannot do */
bool cu_totals_select(Graph *g, int group, const Op *red);
void cu_totals_emit(Cuda *c, int pieces);

/* ---- maps.c, merge.c */
void cu_map_emit(Cuda *c, const Out *out, int n);       /* all of one shape */
/* the loop of threads over vectors of `count` elements in all; i: the number of a vector's first */
Scope cu_vectors_open(Cuda *c, int vec, Ix i, Ix count);
/* does the open kernel name an index that a flat one does not have? */
bool cu_asks_index(const Cuda *c);
enum { CU_LAUNCH = 256 }; /* kernels of a launch: the table lies in 64 KB of constant memory with others */
/* one block, whose threads do not meet: it may share a launch with any other such */
bool cu_is_small(const CuProgram *p, const KernelRec *k);
/* Kernels into the launches that the plan says; then the program's text. NULL, or why that cannot be. */
const char *cu_merge(CuProgram *p);

/* ---- group.c */
bool cu_special_op(const Op *op);                       /* has a kernel of its own */
void cu_group_emit(CuProgram *p, const Module *m, GraphKernels *gk, int group, uint32_t first);

/* ---- machine.c */
bool cu_is_turing(const char *arch);                    /* sm_75, which multiplies no bf16 */
bool cu_has_mma(DType t, const char *arch);             /* products of f16 or bf16 by mma.sync? */

/* ---- prelude.cu, small.cu (embed.py), object.c, native.c, machine.c */
bool cu_wgmma_arch(const char *arch);                     /* sm_90a, whose four warps multiply together */
const Machine *cuda_machine(const Target *t, const char *arch);
const Machine *cuda_card(const Target *t, const char *arch, const char *name, Arena *a, const char **word);
/* The card of that word (TargetHere.word), NULL or another's: the architecture's own. */
const Machine *cuda_forecast_machine(const char *arch, const char *word);
bool cuda_machine_here(const Target *t, const char *arch, Machine *m);
const char *cuda_machine_word(const Target *t, const char *arch, Arena *a);
const char *cuda_device_name(const Target *t, Arena *a); /* native.c */
/* The row of the graph's architecture; of the oldest where none is named. */
static inline const Machine *cu_machine(const Graph *g) { return cuda_machine(NULL, g->module->arch); }
/* of tensor cores, if its products are theirs */
double cuda_product_rate(const Target *t, const Rates *r, const char *kernel);
bool cuda_device_version(int *major, int *minor);       /* false: there is no device, or no driver */
/* Multiprocessors, the most bytes of shared memory that a block may have, bytes of L2, of device 0. False as above. */
typedef struct CudaDevice { int sms, shared, l2; } CudaDevice;
bool cuda_device_read(CudaDevice *d);
/* An object with mantou_object_INDEX: a descriptor, the functions, a cubin for each part and, in the last one, the
 * same as PTX. NULL, or what went wrong. */
const char *cuda_object(CuProgram *p, const char *json, const EmitOptions *o, const NvrtcJob *job, int parts, Buf *out);
extern const char cuda_prelude[], cuda_small[]; /* of prelude.cu and small.cu */
#endif
