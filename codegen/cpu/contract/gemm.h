/* gemm.h: register-blocked contractions; private to codegen/cpu. */
#ifndef CODEGEN_CPU_GEMM_H
#define CODEGEN_CPU_GEMM_H
#include "../cpu.h"

typedef struct Algo Algo;    /* algo.h: the algorithm that computes it */

/* engine.c: by which instructions elements are multiplied. FMA: of f32, to which anything else is widened. */
/* In the order of tune.def's words of `pairs`. */
typedef enum EngineId { ENGINE_FMA, ENGINE_PAIRS, ENGINE_F16, ENGINE_AMX, ENGINE_COUNT } EngineId;

/* Parameters of the kernels of small groups (depthwise.h): of shape and CPU alone. */
typedef struct DepthParams {
	int lanes;               /* elements of a vector */
	int cols;                /* pixels of a row that a step computes together, or whose gradients it takes */
	int images, block;       /* of a tile: images and channels; not of the weight gradient */
	/* of a task: rows, images; of the weight gradient: images that go over rows together */
	int rows, strip;
	int chunk;               /* of a task: channels */
	int band;                /* 1: a task copies the rows that it meets first, in the order of its loops */
	int parts; /* weight gradient: split-K, fixed groups of pixel rows with sums of their own; else 0 */
} DepthParams;

/* Parameters of a contraction kernel: what select chooses and the tuner writes. */
typedef struct GemmParams {
	const Algo *algo;
	int mr, nv;              /* register tile: rows x vectors */
	int lanes;               /* floats of a vector: fewer than the machine's where there are few columns */
	bool panel_outer;        /* tasks walk weight panels, not rows of pixels */
	int parts;               /* weight gradient: split-K, fixed groups of pixel rows with sums of their own */
	int band;                /* weight gradient: pixel rows per pass */
	/* weight gradient: images of such a row per pass, or pairs of them: a divisor of all; 0: all */
	int images;
	bool pack;               /* second operand copied into panels first */
	bool own;                /* of a product: a task makes the panels that it multiplies itself, block by block */
	/* product of a transposed first operand: a task copies its rows into the thread's scratch memory first */
	bool copy;
	EngineId engine;
	DepthParams depth;       /* of small groups, in place of all these */
	/* interleaved sums of every result; 0: as gemm_chains says, one in kernels of other operators */
	int chains;
	int blocks;              /* winograd: parts of a tile's images; 0: as winograd_block says */
	int span;                /* winograd: points of a row of a tile; 0: 6 */
	/* words and numbers of tune.def that all rows write and read alike */
	int threads;             /* that take part in the group's kernels, at most; 0: all */
	int ahead, next, fetch, stream;
	int share;               /* of no text: bytes of the next panel that a step of the microkernel asks for */
	bool past;               /* of no text: its tiles, whole lines, are stored past the caches */
	bool kept;               /* of no text: panels are kept from call to call; for choices */
} GemmParams;

/* What a choice of these goes by, beside the op and its graph. */
typedef struct PlanCx {
	const Arch *arch;
	/* the operands' type where that is f16 or bf16: what it is, or what it will be; DT_none: f32 */
	DType half;
	const SelectCx *select;  /* variants that may be chosen, a tuning file's kernel; NULL: all may */
	/* gets what was looked at, and why the tuning file's kernel does not fit; NULL: nobody asks */
	SelectCx *tell;
	bool prepacked;          /* panels would be made in the first call and kept */
} PlanCx;

/* The microkernel: C[mr][nv vectors] (+)= sum over p < np, q < nq, k < nk of A[p*ap + q*aq + k*ak + i*am] * B[p*bp +
 * q*bq + k*bk + j]. Strides in bytes, in a block of int64; S_NEXT: where what the call asks for (GemmParams.share)
 * begins: */
enum { S_AM, S_AK, S_AP, S_AQ, S_BP, S_BQ, S_BK, S_CM, S_NK, S_NEXT, S_COUNT };
/* void (A, B, C, np, nq, strides, accumulate, mask of the last vector). accumulate: 0: C is written; GOES_ON: the sum
 * begins at C; ADDED (of gemm_micro alone): a sum from zero is added to C, which rounds a long sum of such blocks less
 * (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). Of p: lanes; chains: 0, 1, 2, 4 or 8; ahead: steps of
 * k by which B's rows are fetched before they are read, up to 8 to L1, more to L2; 0: they are not. pair: elements of
 * A and B are VNNI pairs of bf16 */
enum { GOES_ON = 1, ADDED = 2 };
/* S_AK and S_BK where they are known as code is emitted, or 0: steps of a loop over k are then unrolled (Budget). */
typedef struct Steps { int64_t a, b; } Steps;
V gemm_micro(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, bool pair, Steps steps);
V gemm_micro_f16(Llvm *l, int mr, int nv, int lanes, bool masked);   /* ENGINE_F16: pairs of f16 (micro_fp16.c) */
/* Of a matrix tile: rows, and columns of 32 bits; bytes; pairs of k that a tile of an operand holds. */
enum { AMX_EDGE = 16, AMX_BYTES = 1024, AMX_PAIRS = 16 };
/* ENGINE_AMX (micro_amx.c): a ninth argument, the number of rows, up to two tiles'; lanes are a tile's, nv 1 or 2,
 * S_AK 4.
 * copy_b: masked vectors of B have nothing behind them. */
V gemm_micro_amx(Llvm *l, int rows, int nv, bool masked, bool copy_b, int share);
/* Before the loops of a kernel that uses tiles; Emit.close releases them at its end. */
void amx_open(Emit *e);
/* Copies the first operand of a sum over rows, pairs of rows 2i and 2i + 1, to buffer dst: a row for each column, pairs
 * side by side. */
V amx_copy_out(Llvm *l);       /* its function that stores a tile's rows: see copy_function */
void amx_transpose(GroupCx *gc, Val val, bool made, int dst, GraphKernels *gk);
/* Rows of the first operand in a microkernel's innermost loop, at `a` in this step; row[i]: bytes from row 0 to row i.
 * An address is `a`, an odd row's distance and a scale of the instruction: few registers, no additions. LLVM's strength
 * reduction would take each row from the one before, a chain that takes longer than the products of a tile of one
 * vector: micro_step hides from it what `a` is. */
V micro_step(Llvm *l, LLVMBuilderRef b, V a);
V micro_row(Llvm *l, LLVMBuilderRef b, V step, const V *row, int i);
/* Attributes of a function of its own: the machine's vectors, never inlined. */
void fn_machine(Llvm *l, V fn);

/* What follows a contraction in its group (epilogue.c): elementwise outputs, reductions over rows, and what is computed
 * from these. */
enum { EPILOGUE_OUTS = 128 }; /* more than fuse puts into a group */
typedef struct Epilogue {
	GroupCx *gc; const Op *op;
	int raw;                 /* buffer of the raw sums; -1: a tile on the stack */
	Out out[EPILOGUE_OUTS], late[EPILOGUE_OUTS]; int nout, nlate;
	Red red[EPILOGUE_OUTS]; int ws[EPILOGUE_OUTS], nred;
	int64_t npiece;          /* states of each column: of pixel rows, or tasks */
	Out fetch[EPILOGUE_OUTS]; int nfetch; /* full-size buffers that a tile reads or writes */
	V carry;                 /* on the stack: what the tiles of a block have added up so far */
} Epilogue;
/* Sets the logical indices of row `row` of the tile, all but the columns' axis. */
typedef void EpilogueIndex(Emit *e, void *cx, V row, Ix *ix);
typedef struct EpilogueTile {
	V rows, column, columns; /* its extent, its first column */
	V piece, done;           /* which of the states, rows of these columns that it has seen before */
	/* rows of its block that other tiles have had before; NULL: it is a block of its own */
	V carried;
	V tile; int64_t tile_columns; /* where raw is -1: its first number, numbers of a panel */
	int64_t tile_line;       /* from one of its rows to the next; 0: tile_columns */
	int unroll;              /* vectors at once */
	EpilogueIndex *index; void *cx;
} EpilogueTile;
/* Why a reduction cannot be taken in the contraction's tiles; NULL if it can. */
const char *epilogue_reduces(const Graph *g, const Op *contract, const Op *red);
/* workspace: bytes of the group's that the contraction itself uses; the states follow. */
void epilogue_find(GroupCx *gc, const Op *op, int64_t npiece, int64_t workspace, Epilogue *p);
int64_t epilogue_workspace(const Graph *g, const Op *red, int64_t npiece);
/* Where raw sums go: a buffer, or a tile of this function's own; and room for what tiles leave to each other. */
V epilogue_raw(Emit *e, Epilogue *p, int64_t rows, int64_t columns, bool *tile);
void epilogue_tile(Emit *e, Epilogue *p, const EpilogueTile *t);
/* Behind the tiles of a block, which t describes as if it were one. */
void epilogue_block(Emit *e, Epilogue *p, const EpilogueTile *t);
/* Asks for what epilogue_tile will read and write; `columns` floats of a row. */
void epilogue_fetch(Emit *e, const Epilogue *p, const EpilogueTile *t, int64_t columns);
void epilogue_finish(GroupCx *gc, GraphKernels *gk, Epilogue *p, PieceCount *count, void *cx);

static inline int64_t
ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* What the packed operand is: [taps][k][j] with byte strides in memory. */
typedef struct Pack {
	int64_t taps, k, j, tap_stride, k_stride, j_stride;
	/* pairs whose halves do not lie side by side: bytes from the first to the second; else 0 */
	int64_t second;
	bool odd;                     /* the last row of pairs has no second half: zeros */
	int64_t groups, group_stride; /* of a convolution: each has k and j of its own */
	bool past;                    /* panels go past the caches */
} Pack;
Pack pack_of(const Graph *g, const Op *op, bool pair);
/* One panel of a matrix whose k is contiguous: w columns of w rows at a time; in: its first column, left: columns from
 * there on. */
void transpose_rows(Emit *e, const Pack *k, const GemmParams *p, V in, V out, V left);
/* Do panels of so many bytes go past the caches? Those that no L2 holds, as one thread makes what others read: where
 * they share no L3, lines that another one has read before are the slowest to write. */
bool pack_streams(const Graph *g, const GemmParams *p, int64_t bytes);
/* bytes of a thread's own memory that pack_emit needs */
int64_t pack_scratch(const Graph *g, const Op *op, const GemmParams *p);
/* Copies buffer src to panels [panel][tap][k][nv * lanes] in buffer dst, zeros behind the last column. */
void pack_emit(GroupCx *gc, const Op *op, const GemmParams *p, int src, int dst, GraphKernels *gk);

typedef struct Mat {         /* a matrix product: out[batch][m][n] */
	int rank;                /* of out */
	bool merged;             /* leading axes of A and out are rows */
	Axis m; int64_t n, k;    /* m: rows of one batch entry (all rows if merged) */
	int64_t batch;           /* full-batch entries */
	const Budget *budget;    /* of the machine */
} Mat;
/* facts.c. Layouts, types and extents that the microkernel takes? */
bool gemm_possible(const Graph *g, const Op *op);
/* false: not of row-major matrices of types and extents that the kernel takes */
bool matmul_mat(const Graph *g, const Op *op, Mat *m);
/* Pixels of a row that a convolution, or its gradient in the image, takes as a piece: of the shape alone. */
int64_t image_cut(const Graph *g, const Op *op, const GemmParams *p);
int64_t wgrad_cut(const Graph *g, const Op *op, const GemmParams *p); /* columns of a weight gradient's pass */
int64_t matmul_block(const Mat *m, const GemmParams *p); /* rows of a piece: of the shape, not of the tile */
/* Steps of the sum that a piece takes before it goes on: all, or so many that its rows and a panel stay in L2. */
int64_t matmul_steps(const Mat *m, const GemmParams *p);
/* Steps of a pass of few rows over a second operand that is read as it lies, in lines of a page; 0: of no other. */
int matmul_lines(const Mat *m, const GemmParams *p);
/* Of a block of steps of a panel that a task makes itself, and, of pairs, of columns that are rounded first. */
int64_t matmul_panel_bytes(const GemmParams *p);
enum { OWN_STEPS = 128, ROUNDED_STEPS = 16 }; /* of such a panel, which stays in L1; of such columns */
/* A piece's rows of a transposed operand as they are copied; `high` of them, with room for a vector's rest. */
int64_t matmul_copy_bytes(const Mat *m, const GemmParams *p, bool tiled);
enum { PANEL_ROOM = 64 }; /* bytes behind a panel: vectors that hold its last row reach beyond it */
int64_t matmul_tile_bytes(const Mat *m, int64_t high);
typedef struct MatAt { const Type *t; V first; } MatAt; /* first: flat number of the tile's first row */
EpilogueIndex mat_index; /* of a MatAt */
void matmul_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, Epilogue *epi, GraphKernels *gk);
/* Bytes of the group's workspace: partial sums, tiles, and panels that are not prepacked; operand k's copy, 0 if it is
 * read as it lies; all of it. */
int64_t gemm_own_workspace(const Graph *g, const Op *op, const GemmParams *p);
int64_t gemm_copy_bytes(const Graph *g, const Op *op, const GemmParams *p, int k);
int64_t gemm_workspace(const Graph *g, const Op *op, const GemmParams *p);

/* What kernels of several products share (tiles.c). */
V strides_block(Emit *e, V st[S_COUNT]);
V strides_of_constants(Emit *e, const int64_t st[S_COUNT]); /* the same of constants */
/* p with the share of each step, where tiles of `rows` rows ask for all of the next panel between them. */
GemmParams panel_shared(const GemmParams *p, int64_t rows);
/* Tells the microkernel's next call, of the tile at row `lo` and `steps` steps, its part of the panel at `next`;
 * nothing where p has no share. */
void panel_next(Emit *e, const GemmParams *p, V strides, V next, V lo, int64_t steps);
/* Microkernels by rows 1..mr, for whole panels and for the last one. */
typedef struct Tiles { V whole, last; T fn; int64_t last_mask; bool rows; /* an argument of the microkernel */ } Tiles;
enum { ANY_ROWS = -1 };
/* rows: bit r - 1 for each number of rows that a tile may have; others get no function. */
Tiles tiles_make(Emit *e, const GemmParams *p, int64_t columns, int64_t rows, Steps steps);
Steps steps_known(const V st[S_COUNT]);
/* Do rows of a register tile lie together in the copy of a transposed matrix? */
bool gemm_copies_tiles(const Graph *g, const GemmParams *p);
/* What TILES, TILES_CUT make of `rows` rows, cut into blocks of `block` first. */
int64_t tile_rows(int64_t rows, int64_t block, int mr);
int64_t tile_rows_cut(bool whole, int64_t rows, int64_t block, int mr);
/* Calls the microkernel of `rows` rows for panel kb of npanel. np, nq that are NULL: 1; acc: 0. */
void tile_call(Emit *e, const Tiles *t, V rows, V kb, int64_t npanel, V a, V b, V c, V np, V nq, V strides, V acc);
/* Opens a loop over row tiles of `rows` rows, mr at most each, all nearly equal, or whole: of mr rows, the last of
 * which may have fewer, for copies that keep a tile together. Sets *lo, returns the number of rows of the tile. */
V tiles_open(Emit *e, bool whole, V rows, int mr, V *lo);
/* Over tiles [lo, lo + count), all nearly equal; whole or nearly equal. */
#define TILES(e, lo, count, rows, mr) TILES_CUT(e, lo, count, false, rows, mr)
#define TILES_CUT(e, lo, count, whole, rows, mr) \
	for (V lo, count = tiles_open(e, whole, rows, mr, &lo); count; loop_close(e), count = NULL)
/* A kernel's work in pieces, each of so many slices that share what is prepared (a copy, a prologue, a transform). Its
 * tasks are the slices, so that many threads find work; a call does a piece's slices [*lo, *hi) together. Opens the
 * loop over the pieces of this call and returns the piece. */
V slices_open(Emit *e, int64_t slices, V *lo, V *hi);
#define SLICES(e, piece, slices, lo, hi) \
	for (V lo, hi, piece = slices_open(e, slices, &lo, &hi); piece; loop_close(e), piece = NULL)
Rows slices_rows(int64_t pieces, int64_t slices);
/* Rows of a product: a tile [lo, lo + count) of the block [first, first + rows). Blocks are cut by the number of rows
 * alone, and what the epilogue reduces it adds up row by row within a block, whatever its tiles: so none of their sizes
 * changes a bit. Where nothing is reduced there are no blocks, and only tiles are cut. */
typedef struct RowLoops { V lo, count, first, rows; bool blocks; } RowLoops;
RowLoops rows_open(Emit *e, const Epilogue *epi, const GemmParams *p, V rows);
/* Do its blocks begin where tiles of mr rows do, or are there none? */
bool rows_meet_tiles(const Epilogue *epi, const GemmParams *p);
/* Closes what rows_open has opened. `block`: of the index that t has, at the block's first row. */
void rows_close(Emit *e, const RowLoops *r, Epilogue *epi, const EpilogueTile *t, void *block);
/* What rows_open makes of `rows` rows, cut into parts of `part` first. */
int64_t row_tiles(const Epilogue *epi, const GemmParams *p, int64_t rows, int64_t part);
int64_t gemm_scratch(const Graph *g, const Op *op, const GemmParams *p); /* bytes of a thread's own memory */
bool gemm_copies(const Graph *g, const Op *op, const GemmParams *p); /* is GemmParams.copy possible? */
/* are there panels, made of the operand as it lies, not of a copy in the workspace? */
bool gemm_prepacks(const Graph *g, const Op *op, const GemmParams *p);
/* bytes of that; 0: the operand is read as it lies */
int64_t gemm_panels(const Graph *g, const Op *op, const GemmParams *p);
/* void (in, stride, left, out, row): transposes w x w floats: out[i * row] = column i of the rows in[0], in[stride],
 * ...; columns from `left` on are 0 (pack.c). past: out goes past the caches, in whole lines. */
V transpose_block(Llvm *l, int w, bool past);

typedef struct Engine {
	const char *doc;         /* for people, of a whole model: tensors, products, sums */
	DType type;              /* of both operands; DT_none: f32 */
	int unit;                /* steps of the sum to one element of 32 bits */
	int least;               /* steps of a sum that it pays for */
	/* rounds more than one of its type asks for: only where speed was asked for (attribute wide), not a type */
	bool asked;
	bool chains;             /* sums of few results are interleaved (gemm_chains) */
	/* rows of the unit that blocks of rows are made of, of a matrix product's task; 0: as columns ask (tiles.c,
	 * matmul_block) */
	int block, task;
	int units;               /* such units of a block */
	bool counts;             /* its microkernel takes the number of rows, one function for many */
	bool owns;               /* tasks of few rows make panels themselves, where they can (GemmParams.own) */
	/* the first operand's elements of a row lie side by side: where the sum is over rows, they are transposed first
	 * (amx_transpose) */
	bool side_by_side;
	bool (*has)(const Arch *a);
	V (*micro)(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, Steps steps);
	void (*open)(Emit *e);   /* before the loops of a kernel; NULL: nothing */
	void (*tile)(GemmParams *p, int64_t columns); /* its default register tile; NULL: that of f32 */
} Engine;
extern const Engine engines[ENGINE_COUNT];
static inline const Engine *engine_of(const GemmParams *p) { return &engines[p->engine]; }
/* are operands VNNI pairs, two elements of 16 bits? */
static inline bool engine_pairs(const GemmParams *p) { return engine_of(p)->unit > 1; }
/* Can these operands, of type `half` (DT_none: f32), be multiplied so on this CPU? FMA can always. */
bool engine_can(const Graph *g, const Op *op, const Arch *a, DType half, EngineId id);
/* The fastest that can. */
EngineId engine_choose(const Graph *g, const Op *op, const Arch *a, DType half);
void engine_set(const Graph *g, const Op *op, EngineId id, GemmParams *p); /* with what of the parameters it asks for */

/* pack16.c: VNNI pairs: two elements of 16 bits that are neighbours along k, side by side in four bytes. */
/* Two vectors of 16-bit elements, as pairs. */
V halves_beside(Emit *e, V first, V second);
/* Lanes `mask` (NULL: all) of two rows of 16-bit elements, as pairs to `to`; the second row is zeros unless `there`
 * (NULL: it is). */
void vnni_beside(Emit *e, V first, V second, V mask, V there, V to);
/* Where this stands: columns [c0, c1) of the pairs of two rows from `from` on, or of pair r of rows of the value,
 * column c at to + 4 c. */
void vnni_row_of(Emit *e, V from, int64_t length, V c0, V c1, V to);
void vnni_made_row(Emit *e, Val v, V entry, V r, V c0, V c1, V to);
/* Copies val, rows of `length` elements, to buffer dst: rows 2i and 2i + 1 become row i of pairs, which lie `line`
 * pairs apart. */
void vnni_emit(GroupCx *gc, Val val, int64_t length, int64_t line, int dst, GraphKernels *gk);
/* The same for a value that the kernel makes. */
void vnni_make(GroupCx *gc, Val val, int64_t line, int dst, GraphKernels *gk);
/* Panels of pairs from two rows of 16-bit elements each, or of f32 that are rounded to `half` (DT_none: not): as
 * copy_rows of pack.c. */
void vnni_copy_rows(Emit *e, const Pack *k, const GemmParams *p, DType half, V in, V out, V left);
/* k->k pairs of each of `left` columns of f32 (pack.c), rounded to `half`, to `to`, [column][element]. */
void round_columns(Emit *e, const Pack *k, const GemmParams *p, DType half, V in, V left, V to);
/* Length of the rows of operand k where their elements must be paired in the workspace first, 0 where they are pairs as
 * they lie. */
int64_t vnni_row(const Graph *g, const Op *op, int k);
/* Is the sum over rows of the first operand, not along each? */
static inline bool
sums_over_rows(const Op *op)
{
	return op->kind == OP_conv2d_dw || (op->kind == OP_matmul && attr_bool(op, A_ta));
}
/* Is operand k copied with a zero behind each row, so that all of a row are pairs? */
bool pads_rows(const Graph *g, const Op *op, const GemmParams *p, int k);
void pad_emit(GroupCx *gc, const Type *padded, int dst, GraphKernels *gk); /* its zeros */
/* Rows of pairs of an operand of type t: of an odd number of rows the last is one beside zeros. */
int64_t vnni_rows(const Type *t);
int64_t vnni_line(const Graph *g, const Op *op, int k); /* from one such row of pairs to the next */
V row_mask(Emit *e, V left, int64_t from); /* lanes of columns from.. that are among `left` (pack.c) */

/* prologue.c: operands made by the contraction's own kernel. */
typedef enum PrologueWay { PROLOGUE_TILES, PROLOGUE_BAND, PROLOGUE_PAIRS, PROLOGUE_PANELS, PROLOGUE_COPY } PrologueWay;
/* The f32 value in memory that operand 1 is cast of, if the kernel rounds it on the way into its panels; else NOVAL. */
Val prologue_rounded(const Graph *g, const Op *op, const GemmParams *p);
bool prologue_rounds(const Graph *g, const Op *op, const GemmParams *p); /* Algo.rounds, no where there is none */
/* will it, if op's operands are as cx says? (algo.c) */
bool gemm_packs(const Graph *g, const Op *op, const PlanCx *cx);
bool pack_rounds(const Graph *g, const Op *op, const GemmParams *p); /* Algo.rounds where pack.c makes the panels */
bool prologue_made(const Graph *g, const Op *op, int k);
/* Where operand k is made, if it is. */
PrologueWay prologue_way(const Graph *g, const Op *op, const GemmParams *p, int k);
/* For fuse: with parameters; before anything is chosen (algo.c). */
void prologue_price(const Graph *g, const Op *op, int k, const GemmParams *p, DType half, Prologue *r);
void prologue_cost(const Graph *g, const Op *op, int k, const PlanCx *cx, Prologue *r);
int64_t prologue_pixels(const Graph *g, const Op *op, const GemmParams *p); /* of a band of operand 0 */
/* Does a kernel whose tasks walk rows of pixels make it so? */
bool prologue_bands(const Graph *g, const Op *op, const GemmParams *p);
/* Goes a kernel of one tap over bands of pixels for the sake of what follows it? Where that reduces, sums begin with a
 * band, whatever the order of the loops. */
bool epilogue_bands(const Graph *g, const Op *op, const GemmParams *p, bool reduces);
int64_t prologue_scratch(const Graph *g, const Op *op, const GemmParams *p); /* bytes of a thread's own memory */
/* Where this stands: W neighbours along c of image n at pixel (h, w). */
Cell prologue_at(Emit *e, Val v, V n, Ix c, V h, V w);
/* Pixels [w0, w1) of row h of all images, to `out`. */
void prologue_row(Emit *e, Val v, V h, V w0, V w1, V out);
/* Rows [h0, h1) of operand k of a weight gradient, to the scratch memory that it returns. */
V prologue_band(Emit *e, const Op *op, const GemmParams *p, int k, V h0, V h1);

/* Groups of a convolution: a panel holds columns of one of them. */
int64_t gemm_groups(const Op *op);
/* Panel kb of all groups': its group, its number there. */
void panel_find(Emit *e, int64_t groups, int64_t npanel, V kb, V *group, V *panel);
/* Steps of the sum to one element of the operands. */
static inline int64_t gemm_unit(const GemmParams *p) { return engine_of(p)->unit; }
V table(Emit *e, const int64_t *v, int64_t n);         /* a constant array */
V table_at(Emit *e, V t, V index);
/* wgrad.c: the gradient in a convolution's weights. */
/* Adds `parts` partial results of so many elements each, buffer src, in order. */
void wgrad_join(GroupCx *gc, int64_t parts, int64_t elements, int src, int dst, GraphKernels *gk);
/* One input channel: are the filter's columns the rows of the product? */
bool wgrad_columns(const Graph *g, const Op *op, const GemmParams *p);

/* strassen.c: the operands of seven products from four quarters of each factor, vectors: upper left, upper right, lower
 * left, lower right; the result's quarters from the products. */
enum { STRASSEN_PRODUCTS = 7, STRASSEN_QUARTERS = 4 };
void strassen_first(Emit *e, const V x[STRASSEN_QUARTERS], V r[STRASSEN_PRODUCTS]);
void strassen_second(Emit *e, const V x[STRASSEN_QUARTERS], V r[STRASSEN_PRODUCTS]);
void strassen_quarters(Emit *e, const V m[STRASSEN_PRODUCTS], V r[STRASSEN_QUARTERS]);
/* f16 or bf16 where the operands have that type, DT_none where they are f32. */
DType gemm_half(const Graph *g, const Op *op);
GemmParams gemm_params(const Graph *g, const Op *op, int vector_bytes);
/* Steps by which panels of so many bytes in all are fetched ahead: where they come from beyond L2 and few rows go over
 * each. Not where each row of pixels goes over all of a filter: it is fetched in vain from the second on. */
int gemm_ahead(const Graph *g, const GemmParams *p, int64_t rows, int64_t bytes);
/* p for few rows over panels of so many bytes in all, some steps after the others: high tiles, and panels from beyond
 * L2 are asked for before their turn, as the first tile would wait for memory, which those behind it leave idle. */
void gemm_few_rows(const Graph *g, GemmParams *p, int64_t bytes);
/* Is the product one piece, so that each panel is met once, and transposed on its way into panels? */
bool gemm_owns(const Graph *g, const Op *op, const GemmParams *p, int vector_bytes);
GemmParams gemm_tile(int lanes);                       /* the register tile that fills the registers; nothing else */
/* No wider than n columns, of as many rows as the registers leave. */
void gemm_tile_columns(GemmParams *p, int64_t n);
/* Does a core multiply two vectors of half the width in the time of one? The tile for n columns in such. */
bool gemm_halves(const Graph *g);
void gemm_halve(GemmParams *p, int64_t n);
/* p->chains, or how many the shape and the machine ask for where that is 0: no size of tiles enters. */
int gemm_chains(const Graph *g, const Op *op, const GemmParams *p, int vector_bytes);
const char *gemm_text(Arena *a, const GemmParams *p);
bool gemm_parse(const char *text, GemmParams *p);      /* false: no row of algos.def prints such a text */
/* of the second operand's panels, if it is packed */
int64_t pack_bytes(const Graph *g, const Op *op, const GemmParams *p);
/* The contraction's own, then states of the group's reductions for each task. */
int64_t gemm_group_workspace(const Graph *g, int group, const Op *op, const GemmParams *p);
/* Tasks over rows, which keep states of the epilogue's reductions. */
int64_t gemm_pieces(const Graph *g, const Op *op, const GemmParams *p);
/* The epilogue of a row's main kernel; where its panels are, made by a kernel of pack.c, if it has any (-1: it has
 * none). */
void gemm_epilogue(GroupCx *gc, const Op *op, const GemmParams *p, Epilogue *epi);
/* The operands' buffers: their own, or copies behind the workspace's own part; -1: made as they are loaded. */
void gemm_operands(GroupCx *gc, const Op *op, const GemmParams *p, int a[2], GraphKernels *gk);
int gemm_pack(GroupCx *gc, const Op *op, const GemmParams *p, int b, Epilogue *epi, GraphKernels *gk);
/* Algo.offer and Algo.pieces of products of the operands themselves (gemm_params.c). */
bool products_offer(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *best, GemmParams *p);
int64_t products_pieces(const Graph *g, const Op *op, const GemmParams *p);
void gemm_emit(GroupCx *gc, const Op *op, GraphKernels *gk); /* dispatch.c */
#endif
