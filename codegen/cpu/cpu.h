/* cpu.h: private interface of the CPU target.
 *
 * Code is made by pulling: a kernel's loops run over the space of what it stores, and lane_eval() emits whatever
 * computes one vector of a value at an index, back to what lies in memory. Every instruction goes to the outermost loop
 * level on which its operands stand (Level), so that nothing needs to be hoisted afterwards. */
#ifndef CODEGEN_CPU_H
#define CODEGEN_CPU_H
#include "../../ir/ir.h"
#include "../../ir/access.h"
#include "../../ir/window.h"
#include "../../ir/target.h"
#include "../codegen.h"
#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>

typedef LLVMValueRef V;
typedef LLVMTypeRef T;

#define MAX_LEVEL 24

/* ---------------------------------------------------------------- the machine (llvm.c) */
typedef struct Arch {
	const char *name, *cpu, *features, *needs;
	int vector_bytes;
	bool round_bf16;         /* rounds vectors of f32 to bf16 */
	bool dot_bf16;           /* dot products of bf16 pairs at more than the rate of f32 FMAs */
	bool fma_f16;            /* FMAs of f16 at twice that rate */
	bool tiles;              /* AMX with bf16 */
	bool emulated;           /* for tests: those instructions are calls of C functions, and no user can name it */
	Machine machine;
} Arch;
const Arch *arch_named(const char *name);           /* NULL if unknown */
bool arch_runs(const Arch *a);                      /* on this machine */
const char *arch_native(void);
int arch_list(const char **names, int max);
const Arch *arch_for(const Graph *g);              /* the row that g is compiled for */
const Machine *machine_of(const Graph *g);          /* the row that choices for g count with */
/* host.c: data caches of CPU 0 as the system tells of them below `root` (/sys), level 1 first. False: not all of
 * L1 and L2 are there. */
bool host_caches(const char *root, int64_t bytes[3]);

typedef struct Llvm {                               /* one LLVM module in the making */
	LLVMContextRef cx;
	LLVMModuleRef mod;
	LLVMTargetMachineRef tm;
	const Arch *arch;
	struct Units *units;                        /* NULL: everything stands in mod */
	bool debug;                                 /* -g: functions get lines and frames (lines.c) */
	struct { const char *file; unsigned line, column; } at; /* of the group that is emitted; file NULL: unknown */
	unsigned align;                             /* of functions, in bytes; 0: as the CPU likes */
	T i1, i8, i16, i32, i64, f32, f64, half, ptr, voidt;
} Llvm;
const char *llvm_open(Llvm *l, const char *name, const Arch *a, int opt, Arena *arena);
void llvm_close(Llvm *l);
/* x * y + z: fused where the CPU does it in one instruction, else a product and a sum, each rounded. A vector or
 * a scalar. */
V llvm_fma(Llvm *l, LLVMBuilderRef b, V x, V y, V z);
bool llvm_has_fma(const Llvm *l); /* one instruction, one rounding */
/* isa.c. Does the CPU convert f16? Where it does not: bits of f16 (i16, or a vector of them) to f32 and back. */
bool isa_converts_f16(const Llvm *l);
V isa_widen_f16(const Llvm *l, LLVMBuilderRef b, V half);
V isa_narrow_f16(const Llvm *l, LLVMBuilderRef b, V f);
V llvm_round(Llvm *l, LLVMBuilderRef b, const char *name, V x); /* llvm.floor, llvm.ceil, llvm.rint of f32 or f64 */
LLVMModuleRef llvm_module(const Llvm *l, const char *name);

/* unit.c: functions that are compiled each by itself. */
typedef struct Units Units;
/* Before the first function: from now on each is a unit. jobs: threads, 0 as many as CPUs. */
void units_open(Llvm *l, int opt, int jobs, Arena *arena);
/* A function, what is emitted goes into its module until unit_end, which gives it as others see it. shared: they find
 * it by its name, which says all of it. */
V unit_begin(Llvm *l, const char *name, T type, bool shared);
V unit_end(Llvm *l, V fn);
/* lines.c, of nothing without -g: unwind table and frame pointer; lines of l->at under the name. */
void lines_frames(Llvm *l, V fn);
void lines_add(Llvm *l, V fn, const char *name);
V unit_find(Llvm *l, const char *name);             /* a shared one as this module sees it; NULL: there is none yet */
/* The object of all units and the module that is open. NULL or a message. */
const char *units_finish(Llvm *l, Buf *out, EmitCounts *counts);
void units_close(Llvm *l);
LLVMTargetMachineRef llvm_machine(const Arch *a, int opt, char **error);
/* Runs the light pass list, then writes text or object. NULL or a malloc'd message. */
char *llvm_code(LLVMModuleRef mod, LLVMTargetMachineRef tm, const char *emit, Buf *out);

/* ---------------------------------------------------------------- cells and indices (lane.c) */
typedef struct Ix {          /* an index: s + c * lane, or the vector g */
	V s; int64_t c; V g;
} Ix;
typedef struct Cell {        /* a value: one number for all lanes, or a vector of them */
	V v; bool vec; uint8_t dt;
} Cell;
typedef struct Off { V s; int64_t c; V g; } Off; /* element offset, like Ix */

typedef struct Memo { uint32_t val; V mask, pred; uint8_t rank; Ix ix[MAX_RANK]; Cell cell; } Memo;
typedef struct Cse { int op; V a, b, r; } Cse;
typedef struct Level {
	LLVMBuilderRef b;
	VEC(Memo) memo;
	VEC(Cse) cse;
	LLVMBasicBlockRef head, exit; V iv, phi, step, hi; /* of the loop that this level is the body of */
	bool inlined;        /* a loop of one turn: no blocks of its own */
	bool multiple4;      /* its variable is a multiple of 4 */
} Level;

/* Random numbers of 4 * W elements: of neighbours, lanes' elements 1 apart, or of 4 neighbours of each lane's. */
typedef struct RandomBlock { const Op *op; V base, word[4]; int64_t apart; } RandomBlock;
typedef struct BlockLevel { LLVMBasicBlockRef bb; int level; } BlockLevel;

typedef struct Emit {        /* one kernel function in the making */
	Llvm *l;
	Arena *arena;
	Module *m;
	const Graph *g;
	V fn, arg_arena, arg_off, arg_n, arg_t0, arg_t1, arg_scratch;
	Level lv[MAX_LEVEL];
	int depth;
	BlockLevel *blocks; uint32_t nblock_cap, nblocks;
	int W;               /* lanes */
	bool lanes;          /* a lane loop is open: cells may be vectors */
	V mask;              /* <W x i1> of the lanes that count, NULL = all */
	V pred;              /* i1: loads of single elements must be safe when it is false; NULL = true */
	V lane_id;           /* <W x i64> 0..W-1 */
	struct GroupCx *gc;
	VEC(V) buf;          /* pointers, made on first use at level 0 */
	bool uses_scratch;
	int block_n, block_u; /* vectors evaluated together by lane_blocks, and which of them now */
	VEC(RandomBlock) random;
	bool wide;           /* indices may need more than 32 bits */
	bool stream;         /* whole vectors go past the caches: they begin at multiples of their size */
	bool streamed;       /* some did: a fence at the end */
	bool opaque;         /* LLVM is not told how loops' variables grow */
	void (*close)(struct Emit *e); /* at the end, of what was opened: releases matrix tiles (micro_amx.c) */
	/* lane_eval, for what it calls itself (group.c sets it) */
	Cell (*eval)(struct Emit *e, Val v, const Ix *ix);
	bool fetches;        /* loads ask for the lines of their lanes, and give 0 */
	bool rows_in_lanes;  /* an element of a row is asked for as are all: they are loaded together */
	bool load_here;      /* loads stay where they are asked for: memory that this kernel writes */
} Emit;

void emit_begin(Emit *e, Llvm *l, struct GroupCx *gc, const char *name);
V emit_end(Emit *e);                                      /* the function, as others see it */
void emit_lanes(Emit *e, int w);                          /* vectors of w lanes from here on */
int level_of(const Emit *e, V v);
LLVMBuilderRef at1(Emit *e, V a);
LLVMBuilderRef at2(Emit *e, V a, V b);
LLVMBuilderRef at3(Emit *e, V a, V b, V c);
static inline LLVMBuilderRef here(Emit *e) { return e->lv[e->depth].b; }
LLVMBasicBlockRef block_new(Emit *e, int level, const char *name);

V k64(const Emit *e, int64_t x);
bool is_const(V v, int64_t *x);
V i_add(Emit *e, V a, V b); V i_sub(Emit *e, V a, V b); V i_mul(Emit *e, V a, V b);
V i_div(Emit *e, V a, V b); V i_rem(Emit *e, V a, V b);   /* operands >= 0 */
V i_split(V x, int64_t *k);
bool i_multiple4(const Emit *e, V x);
V i_min(Emit *e, V a, V b); V i_max(Emit *e, V a, V b);
/* the same with a constant; up: to the next whole number */
static inline V i_add_k(Emit *e, V a, int64_t k) { return i_add(e, a, k64(e, k)); }
static inline V i_sub_k(Emit *e, V a, int64_t k) { return i_sub(e, a, k64(e, k)); }
static inline V i_mul_k(Emit *e, V a, int64_t k) { return i_mul(e, a, k64(e, k)); }
static inline V i_div_k(Emit *e, V a, int64_t k) { return i_div(e, a, k64(e, k)); }
static inline V i_rem_k(Emit *e, V a, int64_t k) { return i_rem(e, a, k64(e, k)); }
static inline V i_min_k(Emit *e, V a, int64_t k) { return i_min(e, a, k64(e, k)); }
static inline V i_div_up_k(Emit *e, V a, int64_t k) { return i_div_k(e, i_add_k(e, a, k - 1), k); }
V extent(Emit *e, Axis a);
V splat(Emit *e, V s);                                    /* scalar to vector */
T vec_of(const Emit *e, T t);
T ctype(const Emit *e, DType dt);                         /* type that arithmetic uses: i1 for bool, float for halves */
T ctype_v(const Emit *e, DType dt, bool vec);
V cell_vec(Emit *e, Cell c);
Cell cell_const(const Emit *e, DType dt, double x);
/* a number that an attribute gives: to integers exact, saturated */
Cell cell_attr(const Emit *e, DType dt, const Attr *a);
Cell cell_of(V v, bool vec, DType dt);

/* index arithmetic */
Ix ix_s(V s);
Ix ix_k(const Emit *e, int64_t x);
bool ix_is(const Ix *x, int64_t k);
Ix ix_add(Emit *e, Ix a, Ix b);
Ix ix_add_k(Emit *e, Ix a, int64_t k);
Ix ix_mul_k(Emit *e, Ix a, int64_t k);
Ix ix_mul(Emit *e, Ix a, V k);
V ix_vec(Emit *e, Ix a);                                  /* <W x i64> */
Ix ix_div(Emit *e, Ix a, V d); Ix ix_rem(Emit *e, Ix a, V d);   /* a >= 0 */
bool ix_lane(const Ix *a);                                /* differs between lanes */
V ix_in_range(Emit *e, Ix a, V ext, bool *vec);           /* 0 <= a < ext: i1 or <W x i1> */
Cell ix_cell(Emit *e, Ix a, DType dt);
Ix ix_of_cell(Emit *e, Cell c);

void strides_of(Emit *e, const Type *t, V stride[MAX_RANK]); /* in elements, by logical axis */
Off offset_of(Emit *e, const Type *t, const Ix *ix);
Cell load_at(Emit *e, V base, DType dt, Off o);
void store_at(Emit *e, V base, DType dt, Off o, Cell c);
/* v, w vectors of w lanes: lane i of vector k changes places with lane k of vector i. */
void lanes_transpose(const Llvm *l, LLVMBuilderRef b, V *v, int w);
/* n cells whose lanes are rows of elements side by side: cell k of lane l belongs at o + k + l * o.c. Loading says
 * false, and does nothing, where lanes are masked or rows have another shape than vectors can take apart. */
void store_columns(Emit *e, V base, DType dt, Off o, const Cell *cell, int n);
bool load_columns(Emit *e, V base, DType dt, Off o, Cell *cell, int n);
/* Is v larger than what caches will keep until it is read, and do its rows begin with cache lines? Then its stores may
 * stream; where a vector is less than a line, if no other result of the group does and nothing lay in its place. */
bool store_streams(const Graph *g, Val v);
void store_past(Llvm *l, V store);            /* marks a store of whole lines: past the caches */
bool store_may_stream(const Graph *g, Val v); /* whatever its size */
V vec_half(Emit *e, V v, DType to);                      /* floats rounded to bf16 or f16, as 16-bit integers */
V vec_load(Emit *e, V p, V mask);                         /* W floats at p, where this stands; mask NULL: all of them */
void vec_store(Emit *e, V p, V v, V mask);
V buffer(Emit *e, int k);
V round_half(Emit *e, V v, DType to, bool vec);            /* to the nearest number of f16 or bf16 */
Cell cell_rounded(Emit *e, Cell c);                       /* to its type, if that has 16 bits: arithmetic is f32 */
V scratch_ptr(Emit *e, int64_t byte_offset);

/* ---- regions (region.c): memory that has a name and axes, outermost first. An index that is NULL is 0, as are those
 * of trailing axes that are left out. */
static inline V
ptr_at(Emit *e, V base, V bytes)
{
	return LLVMBuildInBoundsGEP2(at2(e, base, bytes), e->l->i8, base, &bytes, 1, "");
}
/* Bytes of n elements of f32, or of n pairs of 16-bit elements. */
#define F32(n) ((int64_t)(n) * 4)
enum { MEM_AXES = 6 };
/* joined: to the next axis, `step` of which are one of this; else `step` is the bytes from one to the next */
typedef struct MemAxis { V step; bool joined; } MemAxis;
typedef struct Mem {
	V base, start;           /* start: bytes from base to where it begins; NULL: none */
	int rank;
	MemAxis axis[MEM_AXES];
} Mem;
Mem mem_dense_of(const Emit *e, V base, DType dt, const int64_t *extent, int rank);
Mem mem_rows_of(const Emit *e, V base, DType dt, const int64_t *extent, int rank);
typedef struct MemStep { int64_t n; bool joined; } MemStep;
Mem mem_axes_of(const Emit *e, V base, const MemStep *step, int rank);
V mem_offset_of(Emit *e, const Mem *m, const V *index, int n);
V mem_at_of(Emit *e, const Mem *m, const V *index, int n);
Mem mem_part_of(Emit *e, const Mem *m, const V *index, int n);
Mem mem_fix_of(Emit *e, const Mem *m, const V *index, int n);
#define LIST(type, ...) (const type[]){__VA_ARGS__}, (int)(sizeof((const type[]){__VA_ARGS__}) / sizeof(type))
/* Elements of dt without gaps, by the extents of the axes, of which the first is not looked at; rows: the same, but
 * what leads to a row and what leads to an element of it are added up as bytes. */
#define mem_dense(e, base, dt, ...) mem_dense_of(e, base, dt, LIST(int64_t, __VA_ARGS__))
#define mem_rows(e, base, dt, ...) mem_rows_of(e, base, dt, LIST(int64_t, __VA_ARGS__))
/* Each axis BY(so many bytes from one to the next), or OF(so many of the next axis). */
#define mem_axes(e, base, ...) mem_axes_of(e, base, LIST(MemStep, __VA_ARGS__))
#define BY(bytes) {bytes, false}
#define OF(count) {count, true}
/* The address at these indices; the bytes to it from base. */
#define mem_at(e, m, ...) mem_at_of(e, m, LIST(V, __VA_ARGS__))
#define mem_offset(e, m, ...) mem_offset_of(e, m, LIST(V, __VA_ARGS__))
/* Of a region whose axes count elements instead of bytes: W neighbours, for load_at and store_at. */
#define mem_lanes(e, m, ...) ((Off){.s = mem_offset(e, m, __VA_ARGS__), .c = 1})
/* What lies at these indices of the first axes, with the others. part: from its address on; fix: an address is taken
 * once, of all indices. */
#define mem_part(e, m, ...) mem_part_of(e, m, LIST(V, __VA_ARGS__))
#define mem_fix(e, m, ...) mem_fix_of(e, m, LIST(V, __VA_ARGS__))

/* Named regions of one piece of memory (workspace, a thread's own): whoever asks for its size and whoever addresses it
 * carve it by the same function. */
typedef struct Layout { int64_t bytes, unit; } Layout;   /* so far; regions begin at multiples, 0: of a cache line */
static inline int64_t
layout_take(Layout *l, int64_t bytes)                    /* where a region of so many bytes begins */
{
	int64_t unit = l->unit ? l->unit : 64, at = (l->bytes + unit - 1) / unit * unit;

	l->bytes = at + bytes;
	return at;
}

/* loops: body is at depth + 1 until closed */
V loop_open(Emit *e, V lo, V hi, int64_t step);
void loop_close(Emit *e);
/* The statement behind it is the body, with the variable i; its end closes the loop: no break or return from there. */
#define LOOP(e, i, lo, hi, step) for (V i = loop_open(e, lo, hi, step); i; loop_close(e), i = NULL)
#define EACH(e, i, count) LOOP(e, i, k64(e, 0), count, 1) /* count: a value */
#define TIMES(e, i, n) EACH(e, i, k64(e, n))
/* Over this call's tasks; over what they consist of, `grain` to a task, n in all. */
#define TASKS(e, i) LOOP(e, i, (e)->arg_t0, (e)->arg_t1, 1)
#define GRAINS(e, i, grain, n) LOOP(e, i, grains_lo(e, grain), grains_hi(e, grain, k64(e, n)), 1)
static inline V grains_lo(Emit *e, int64_t grain) { return i_mul_k(e, e->arg_t0, grain); }
static inline V grains_hi(Emit *e, int64_t grain, V n) { return i_min(e, i_mul_k(e, e->arg_t1, grain), n); }
/* In the loops that `opened` opens, which says how many: none, one or several. */
#define LOOPS(e, opened) LOOPS_LINE(e, opened, __LINE__)
#define LOOPS_LINE(e, opened, line) LOOPS_AT(e, opened, line)
#define LOOPS_AT(e, opened, line) LOOPS_NAMED(e, opened, loops##line, once##line)
#define LOOPS_NAMED(e, opened, n, once) for (int n = opened, once = 1; once; loops_close(e, n), once = 0)
static inline void
loops_close(Emit *e, int n)
{
	while (n-- > 0)
		loop_close(e);
}
/* Loops over a set of axes of t, the first outermost, their indices into ix. */
bool axes_open(Emit *e, const Type *t, uint32_t axes, Ix *ix);
void axes_close(Emit *e, uint32_t axes);
#define ALL_AXES(t) ((1u << (t)->rank) - 1)
#define OVER(e, t, axes, ix) for (bool open = axes_open(e, t, axes, ix); open; axes_close(e, axes), open = false)
V slot_new(Emit *e, T t);                                 /* a variable, promoted to registers afterwards */
V slot_get(Emit *e, V slot, T t);
void slot_set(Emit *e, V slot, V v);
V mask_below(Emit *e, V count);                           /* lanes whose number is below count */
V mask_and(Emit *e, V a, V b);
V intrinsic(Emit *e, LLVMBuilderRef b, const char *name, T *overload, int nover, V *args, int nargs);
/* Asks for the line at an address, to be read: 3 into the L1, 2 into the second; no fault where no memory is. isa.c has
 * the second one. */
void prefetch(Emit *e, V at, int near);
void isa_prefetch(Llvm *l, LLVMBuilderRef b, V at, unsigned near);

/* ---------------------------------------------------------------- arithmetic (math.c, ew.c) */
typedef enum MathFn {
	MF_EXP, MF_EXPM1, MF_LOG, MF_LOG1P, MF_TANH, MF_ERF, MF_ERFC, MF_SIN, MF_COS, MF_FLOORMOD, MF_POW
} MathFn;
Cell math_call(Emit *e, MathFn f, Cell x, Cell y);
Cell cell_cast(Emit *e, Cell c, DType to);
Cell cell_bin(Emit *e, ExprKind k, Cell a, Cell b);
Cell cell_select(Emit *e, Cell c, Cell a, Cell b);
Cell cell_fma(Emit *e, Cell a, Cell b, Cell c);
Cell expr_emit(Emit *e, const Expr *x, const Cell *var, DType dt); /* var: by Expr.index */
Cell ew_emit(Emit *e, const Op *op, const Cell *in);
Cell random_emit(Emit *e, const Op *op, Ix element, Cell seed, Cell step, DType dt);

/* ---------------------------------------------------------------- evaluation (eval.c, eval_move.c, eval_contract.c,
 * eval_window.c, reduce.c) */
Cell lane_eval(Emit *e, Val v, const Ix *ix);
/* of all lanes, or of one of them each; NULL: true */
typedef struct Valid { V lane, one; } Valid;
Cell eval_move(Emit *e, const Op *op, const Ix *ix);
/* The indices in operand k of what stands at ix of the result, by its access rule (no blocks). valid: what must hold
 * for them to be the operand's; NULL: they always are. */
void access_index(Emit *e, const Op *op, int k, const Access *a, const Ix *ix, Ix *in, Valid *valid);
Cell eval_contract(Emit *e, const Op *op, const Ix *ix);
Cell eval_window(Emit *e, const Op *op, const Ix *ix);
void memo_put(Emit *e, Val v, const Ix *ix, Cell c, int level);

/* Tests of indices: those of each lane, and those of all lanes at once. NULL: none. */
void valid_and(Emit *e, Valid *v, V test, bool vec);
V valid_all(Emit *e, Valid v, bool *vec);                 /* both, as one test */
Cell eval_plane(Emit *e, Val x, const Ix in[4], Valid extra, Cell fill, V *valid, bool *vec);

/* Accumulators of one reduction op (reduce.c). */
#define MAX_UNROLL 8
typedef struct RedAcc {
	const Op *op;
	DType dt;                /* of the accumulator */
	/* values of the state between kernels: mean and M2, maximum and sum, value and index */
	int nstate;
	int npass;
	bool vec;                /* one state per lane */
	bool lanes_reduced;      /* lanes are elements of one sum, not separate sums */
	bool compensated;        /* sums carry what rounding took from them, in slots behind those of the states */
	V slot[MAX_UNROLL][4];
	/* moments: about which number sums are taken; logsumexp: the maximum, from pass 1 on */
	Cell shift[MAX_UNROLL];
	Cell state[3];           /* after acc_done */
} RedAcc;
/* chain: how many elements one number adds up, one after the other; sums of many are compensated. 0: few. */
RedAcc acc_new(Emit *e, const Op *op, bool vec, bool lanes_reduced, int unroll, int64_t chain);
void acc_first(Emit *e, RedAcc *a, int u, Cell x, V lanes);         /* the first element, before the loops (moments) */
void acc_step(Emit *e, RedAcc *a, int u, int pass, Cell x, Cell index);
void acc_pass_end(Emit *e, RedAcc *a, int u, int pass);
/* unrolled accumulators into the first (lanes_reduced) */
void acc_merge(Emit *e, RedAcc *a, int unroll);
void acc_done(Emit *e, RedAcc *a, int u, Cell count);               /* fills state */
/* s with t; ns, nt: elements behind each */
void state_combine(Emit *e, const RedAcc *a, Cell s[3], const Cell t[3], Cell ns, Cell nt);
Cell state_finish(Emit *e, const RedAcc *a, const Cell s[3], Cell count, int result);
typedef void LaneBody(Emit *e, void *cx, Ix i, int u);
typedef void BlockBody(Emit *e, void *cx, const Ix *i, int n);       /* n vectors at once */
void lane_blocks(Emit *e, V lo, V hi, int unroll, BlockBody *body, void *cx);
bool eval_contract_dot(const Graph *g, const Op *op);
/* W (and unroll * W) at a time, masked rest */
void lane_loop(Emit *e, V lo, V hi, int unroll, LaneBody *body, void *cx);
Cell horizontal_sum(Emit *e, Cell c);
Cell eval_reduce(Emit *e, const Op *op, int index, const Ix *ix);

/* ------------------------------------------------------- groups (group.c, nest.c, maps.c, rows.c, special.c) */
typedef struct Buffer { uint32_t val; int64_t offset; } Buffer; /* val 0: workspace */
typedef struct GroupCx {
	struct Compile *c;
	Arena *tmp;              /* for this group's compilation only */
	const Graph *g;
	Cell (*eval)(Emit *e, Val v, const Ix *ix);
	int group;
	uint32_t first, last;    /* ops [first, last) */
	bool *inside;            /* by Val.id: defined by an op of the group */
	bool *ready;             /* by Val.id: stands in memory for the kernel being emitted */
	int *buf_of;             /* by Val.id: index into buf, -1 */
	VEC(Buffer) buf;
	int *ws_of;              /* by Val.id: buffer index of a materialised reduction */
	int *phase;              /* by Val.id: rows.c's; -1 */
	int nkernel;
	const char *key;         /* structure of the group as text */
	const char *part;        /* of the kernel being emitted */
	uint32_t main_kernel;    /* the one that the group's flops are counted with */
	bool once;               /* the kernel being emitted makes what the group keeps */
	double flops_less;       /* operations that its ops name and its kernels do without */
	int threads;             /* that take part in its kernels, at most; 0: all */
	int fetch, stream;       /* words of tune.def: what its contraction's epilogue asks of the caches */
} GroupCx;

typedef struct Rows {
	int64_t rows; int32_t mul, div; int64_t grain;
	bool shares; int64_t whole, each, turns; /* as in KernelRec */
} Rows;
typedef struct Out { Val v; int buf; } Out;              /* a value and where it is stored */

/* One loop of a nest: logical axes of the root's type merged into one, outermost first. */
typedef struct LoopAxis { uint8_t axis[MAX_RANK]; int naxis; bool reduced; } LoopAxis;
typedef struct LeafAccess { const Type *type; int8_t map[MAX_RANK]; } LeafAccess;
typedef struct Nest {
	const Type *root;
	LoopAxis loop[MAX_RANK]; int nloop;
	uint32_t atomic;         /* root axes that may not be merged */
	const Machine *machine;  /* nest_build's graph is for it */
	VEC(LeafAccess) leaf;
} Nest;
void nest_walk(GroupCx *gc, Nest *n, Val v, const int8_t *map);
void nest_leaf(GroupCx *gc, Nest *n, const Type *t, const int8_t *map);
void nest_build(GroupCx *gc, Nest *n, uint32_t reduced);
int loop_of(const Nest *n, int axis);                    /* the loop that walks the root's axis; -1: it is 1 */
bool loop_marked(const Nest *n, const LoopAxis *l);      /* does its extent follow n? */
/* an operand that strides along the last loop and lies dense along another; NULL */
const LeafAccess *nest_crossed(const Nest *n);
/* The loop along which l lies dense becomes the last, whose lanes store apart, where the last has few. */
void nest_lanes(Nest *n, const LeafAccess *l);
/* all loops but the last, as l lies in memory; their number */
int nest_order(const Nest *n, const LeafAccess *l, const LoopAxis **outer);
V loop_extent(Emit *e, const Nest *n, const LoopAxis *l);
int64_t loop_full(const Nest *n, const LoopAxis *l);
void loop_set(Emit *e, const LoopAxis *l, Ix iv, Ix *ix);

/* How a nest becomes tasks: outer loops times pieces of the last one times pieces of the reduced range. */
/* crossed: the last of `outer` runs faster than the pieces */
typedef struct Tasks {
	const LoopAxis *outer[MAX_RANK];
	int nouter;
	const LoopAxis *last;
	int64_t piece, npiece, nred;
	bool crossed;
	Rows rows;
} Tasks;
Tasks tasks_of(const Nest *n, const LoopAxis *const *outer, int nouter, const LoopAxis *last, int64_t piece,
               int64_t nred, int64_t cost);
typedef struct TaskAt { V lo, hi, red; } TaskAt;         /* range of the last loop; number of the reduced piece */
int64_t task_grain(const Machine *m, int64_t rows, double work); /* rows of a task, each of so many operations */
TaskAt tasks_open(Emit *e, const Nest *n, const Tasks *t, Ix *ix);
void tasks_close(Emit *e);
bool group_random(const GroupCx *gc);                    /* has random ops: their numbers come four vectors at a time */
int64_t group_cost(const GroupCx *gc);                   /* instructions per element, roughly */

typedef struct FnRec { const char *key; uint64_t hash; int fn; const char *name; bool scratch; } FnRec;
/* Tables by Val.id of one graph. Every group uses them in turn and leaves them as it found them: clearing all for each
 * would be quadratic. */
typedef struct ValTables { bool *inside, *ready; int *buf_of, *ws_of, *phase, *number; } ValTables;
typedef struct Compile {
	Llvm l;
	Arena *arena;
	Module *m;
	const EmitOptions *o;
	ProgramKernels *ks;
	VEC(FnRec) fns;          /* shared functions by structural text */
	uint32_t *fn_slot, fn_cap; /* hash table of indices + 1 into fns */
	ValTables table;         /* of the graph being compiled */
	const bool *steady;      /* of it: graph_steady */
	VEC(V) fn;               /* by index */
	const char *error;
} Compile;

/* Before the groups of a graph. */
void group_tables(Compile *c, const Graph *g);
/* An op outside groups: a load or a view in place is nothing, a store elsewhere a copy. */
void loose_op(Compile *c, Graph *g, uint32_t at, GraphKernels *gk);
void group_compile(Compile *c, Graph *g, int group, uint32_t first, GraphKernels *gk);
/* The same of a racing program: its own kernels into gk->k, those of its variants into gk->variant. */
void group_race(Compile *c, Graph *g, int group, uint32_t first, GraphKernels *gk);
/* Workspace bytes that the group's split reductions need. */
int64_t group_workspace(const Graph *g, int group);
/* ---------------------------------------------------------------- what kernels begin and end with (frame.c) */
bool value_is_out(const GroupCx *gc, Val v);           /* computed by the group, stored by it */
int group_buffer(GroupCx *gc, uint32_t val);           /* the number of val's buffer */
int64_t workspace_start(GroupCx *gc);                  /* byte of the arena */
int workspace_at(GroupCx *gc);                         /* the buffer number of the group's workspace */
/* of what is computed from the second operand: kept, or first in the workspace */
int panels_at(GroupCx *gc);
/* Says that a kernel needs that much memory of each thread (select), and checks that the plan has it (emission). */
void scratch_plan(Graph *g, int64_t bytes);
void scratch_check(GroupCx *gc, int64_t bytes);
/* Begins a kernel function, or finds the one already emitted for this structure; *fresh says whether the body must be
 * emitted. */
int kernel_begin(GroupCx *gc, Emit *e, const char *part, bool *fresh);
void kernel_end(GroupCx *gc, Emit *e, GraphKernels *gk, int fn, Rows r, bool fresh, bool check);

/* Pieces into which the reduced range is cut, each a task with partial results; 1 = none. Of shapes alone. */
int64_t red_pieces(const Type *t, uint32_t reduced);
/* Tasks of a reduction in one piece: kept elements, or 64 of them where these lie side by side. */
int64_t red_units(const Type *t, uint32_t reduced);
uint32_t red_mask(const Graph *g, const Op *op);
int64_t red_workspace(const Graph *g, const Op *op);
int red_states(const Op *op);                           /* values of a reduction's state between kernels */
static inline int64_t align64(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; } /* to the next cache line */
int64_t kept_elements(const Type *t, uint32_t reduced);
int64_t states_bytes(const Type *t, uint32_t mask, const Op *op);
/* v's axes are t's kept ones? axis of v -> axis of t */
bool kept_map(const Type *t, uint32_t mask, const Type *v, int8_t *map);
void mapped_index(Emit *e, const Type *v, const int8_t *map, const Ix *ix, Ix *r);
bool special_op(const Graph *g, const Op *op);         /* has a kernel of its own shape (special.c): shares none */
bool pool_dx_special(const Graph *g, const Op *op);    /* pool.c has a kernel for it */
bool pool_dx_cast(const Graph *g, const Op *op);       /* a cast that its group's kernel makes as it loads or stores */
void pool_dx_select(Graph *g, const Op *op);
void pool_dx_emit(GroupCx *gc, const Op *op, GraphKernels *gk);
bool gather_dx_pulls(const Graph *g, const Op *op);    /* few indices: an expression like any other */
Cell eval_gather_dx(Emit *e, const Op *op, const Ix *ix);
/* v as it stands in memory, copied to `offset` in the layout of `to` (maps.c) */
void store_copy(GroupCx *gc, Val v, const Type *to, int64_t offset, GraphKernels *gk);
const char *special_select(Graph *g, const Op *op);    /* the thread's memory that it takes; or why it cannot be */
void special_emit(GroupCx *gc, const Op *op, GraphKernels *gk);
/* Is a table read by ids large enough, and does it lie so, that rows are worth asking for ahead (fetch_row)? */
bool fetches_rows(const Graph *g, const Type *ids, const Type *table);
void fetch_row(Emit *e, const Type *ids, V list, const Ix *at, const Type *table, V base, V lo);
bool calls_op(OpKind k);                               /* a function of the runtime does it (calls.c) */
const char *calls_select(Graph *g, const Op *op);      /* NULL, or why it cannot */
void calls_emit(GroupCx *gc, const Op *op, GraphKernels *gk);
void maps_emit(GroupCx *gc, GraphKernels *gk);         /* what is left of a group */
bool rows_emit(GroupCx *gc, GraphKernels *gk);         /* groups with reductions */

/* Partial states of reductions that several tasks take part in (rows.c, finish.c). */
typedef struct Red { const Op *op; int phase; uint32_t mask; const Type *t; bool done; } Red;
/* [piece, kept axes in memory order]; map: axis of that -> axis of the operand, -1 the piece. */
Type state_type(const Red *d, int64_t npiece, DType dt, int8_t *map);
DType state_dtype(const RedAcc *a, int s);
/* Number s of the state of a piece, at the operand's index ix (kept axes count), in buffer ws. */
Cell state_load(Emit *e, const Red *d, const RedAcc *a, int s, int64_t npiece, int ws, V piece, const Ix *ix);
void state_store(Emit *e, const Red *d, const RedAcc *a, int s, int64_t npiece, int ws, V piece, const Ix *ix, Cell c);
typedef V PieceCount(Emit *e, void *cx, V piece);      /* elements of each reduction that a piece has seen; 0 = none */
typedef struct Finish {
	Red **red; int nred;     /* over one space */
	const Out *out; int nout; /* of the kept shape, made of the results */
	int64_t npiece; const int *ws;
	PieceCount *count; void *cx;
	bool (*compensated)(const Op *red); /* its state has a second number to be added to the first; NULL: none has */
} Finish;
/* Of reductions of one space and outputs of its shape or the kept one: the loops; one kernel, its reduced range cut
 * into npiece pieces, whose states go to the buffers ws (no outputs then), or whole. */
void rows_nest(GroupCx *gc, Nest *n, Red **red, int nred, const Out *out, int nout);
void rows_kernel(GroupCx *gc, GraphKernels *gk, Red **red, int nred, int nphase, const Out *out, int nout,
                 int64_t npiece, const int *ws, const char *part);
void finish_emit(GroupCx *gc, GraphKernels *gk, const Finish *p, const char *part);

/* ---------------------------------------------------------------- loops.c */
void loops_emit(Compile *c, const char *json);

#endif
