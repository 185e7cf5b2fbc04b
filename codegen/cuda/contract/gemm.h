/* gemm.h: contractions as products of matrices, in tiles; private to codegen/cuda.
 *
 * C[b][m][n] = sum over k of A[b][m][k] * B[b][k][n], where b, m, n and k stand for lists of axes of the operator, the
 * last fastest. A block makes a tile of m x n, a tile of k at a time. */
#ifndef CODEGEN_CUDA_GEMM_H
#define CODEGEN_CUDA_GEMM_H
#include "../cuda.h"

enum { WGMMA_BARRIERS = 64 }; /* bytes of shared memory behind the tiles, where tensor maps are copied */

/* Parameters of a kernel: what select chooses and a tuning file may give. */
typedef struct Tiles {
	bool mma;                /* matrix instructions; else FMAs of f32 */
	int m, n, k;             /* the tile */
	int stages;              /* tiles of k in shared memory */
	int wm, wn;              /* mma: warps along m and n. Else 16 x 16 threads */
	int split;               /* split-K: parts of k, added in their order by the last block that has one */
	/* mma: warpgroups along m that multiply by wgmma, 4 warps each, wn is 1; 0: mma.sync */
	int groups;
	bool copied;             /* wgmma: operands come by cp.async, none by the tensor memory accelerator */
	bool tf32;               /* mma: of f32, operands rounded to 11 bits: for a tuning file to choose */
} Tiles;
/* Tiles of `side` that an extent takes. */
static inline int64_t cu_tiles_along(int64_t extent, int side) { return (extent + side - 1) / side; }
/* Bytes of an operand's number in shared memory. */
static inline int tile_bytes(const Tiles *p) { return p->mma && !p->tf32 ? 2 : 4; }

/* By wgmma: steps of k in a tile; rows that lie side by side in memory come in blocks of so many. */
enum { WGMMA_DEPTH = 64, WGMMA_ROWS = 64 };
static inline int wgmma_blocks(int rows) { return (rows + WGMMA_ROWS - 1) / WGMMA_ROWS; }
/* Bytes of a tile of an operand in shared memory. */
static inline int
cu_tile_bytes(const Tiles *p, int rows, bool along_k)
{
	int room = p->groups && !along_k ? WGMMA_ROWS * wgmma_blocks(rows) : rows;

	return p->mma ? room * p->k * tile_bytes(p) : (room + 4) * p->k * 4;
}

static inline const char *tile_type(const Tiles *p) { return tile_bytes(p) == 2 ? "unsigned short" : "float"; }

/* Floats between lines of the sums in shared memory. */
static inline int
cu_slab_line(const Tiles *p)
{
	return p->n + 8;
}

/* Rows of the tile that lie there at once. */
static inline int
cu_slab_rows(const Tiles *p, int64_t shared)
{
	int rows = p->m;

	while ((int64_t)rows * cu_slab_line(p) * 4 > shared)
		rows /= 2;
	return rows;
}

/* What blocks leave is added up by the last of them (finish.c): up to AT_ONCE parts at once, more in two levels, sets
 * of so many neighbours first, then the sets. */
static inline int64_t
cu_parts_at_once(int64_t count)
{
	enum { AT_ONCE = 32 };
	int64_t members = count;

	if (count > AT_ONCE)
		for (members = 1; members * members < count; members++)
			;
	return members;
}

/* The same of parts of k, of `floats` sums each, which a multiprocessor reads at 64 bytes a cycle: in two levels, each
 * behind a fence and a ticket, where that is read sooner. */
static inline int64_t
cu_parts_members(int64_t count, int64_t floats)
{
	enum { BYTES = 64, LEVEL = 1200 };
	int64_t members = 1, part = floats * 4 / BYTES;

	while (members * members < count)
		members++;
	return count * part <= (members + (count + members - 1) / members + 1) * part + LEVEL ? count : members;
}

/* A contraction in these terms (gemm_form.c). */
typedef struct Form {
	const Op *op;
	int nb, nm, nn, nk;
	Axis b[MAX_RANK], m[MAX_RANK], n[MAX_RANK], k[MAX_RANK];
	Window at; int64_t groups; /* of a convolution */
	/* conv2d.dx with a stride: b counts the remainders of a pixel's place, each with taps of its own */
	bool classes;
} Form;

/* Full-size operands in memory, loaded in vectors before the elements are computed one by one; what is computed from
 * windows, if that is asked for, likewise; a value that is the same for all neighbours (a row's mean), if that is. */
typedef struct Leaf { Val v; const char *name; const Op *window; bool made, repeats; } Leaf; /* made: it has a name */
/* rows > 1: so many are loaded before the first is used, row q of them is meant */
typedef struct Leaves { VEC(Leaf) at; int vec, rows; bool windows, repeats; } Leaves;
/* An operand as it comes into shared memory. */
typedef struct Operand {
	int which;               /* 0: A, its lines are m; 1: B, n */
	char name;               /* a, b */
	Val v; const Type *t;
	bool along_k;            /* elements next to each other in memory follow k, else the rows' axis */
	/* cp.async; element by element, more of them than registers; else through registers, put into shared memory
	 * after the products */
	bool async, direct;
	bool mapped;             /* none of these: the device copies boxes of a tensor map by itself */
	/* its rows and k are those of a matrix in memory: an element's number is a product and a sum */
	bool matrix;
	bool fixed;              /* all units of a thread lie in one row */
	int vec;                 /* elements loaded at once: of 16 bytes, or, by cp.async, of 8 or 4 */
	int rows;                /* m or n of the tile */
	int per_line, units, each; /* units of vec elements in a line, in a tile, for each thread */
	int bytes;               /* of a tile in shared memory */
	/* through registers: what its units are computed from, all loaded before the first is made */
	Leaves leaves;
} Operand;
static inline bool in_registers(const Operand *o) { return !o->async && !o->direct && !o->mapped; }

/* A kernel in the making. */
typedef struct Gemm {
	Cuda *c;
	const Op *op;            /* NULL: no contraction, what is reduced lies in memory (columns.c) */
	const Type *space; int column; /* of the result, or of what is reduced; the axis of its columns */
	Form f;
	Tiles p;
	int threads;
	int64_t shared;
	Operand x[2];
	Ix b[MAX_RANK], ext_m[MAX_RANK], ext_n[MAX_RANK], ext_k[MAX_RANK]; /* in this tile */
	Ix M, N, K, tile_m, tile_n, m0, n0, part, row_tiles, col_tiles, blocks_b, number_b;
	Ix place[2], tap[2], back[2]; /* classes: remainder, first tap, output row of the first */
	int slab;                /* rows of the tile that lie in shared memory at once, after the sum */
	/* of the epilogue: elements of operands that a thread loads ahead, sums that it keeps for a column */
	int read, states;
	int ahead;               /* columns.c: rows of a thread that are loaded before the first is used */
} Gemm;

/* ---- gemm_form.c */
Form cu_form(const Graph *g, const Op *op);
int64_t cu_form_count(const Axis *a, int n);
/* Numbers to coordinates, and indices of operands and of the result. */
void cu_split_number(Cuda *c, Ix i, const Ix *ext, int n, Ix *out);
/* Indices of operand `which` at a row (m or n) and k; returns a condition under which they lie in it. */
const char *cu_operand_index(const Gemm *x, int which, const Ix *row, const Ix *k, Ix *ix);
void cu_result_index(const Gemm *x, const Ix *m, const Ix *n, Ix *ix);
/* Makes the number of the result's element in row m, column n known (Cuda.root), where these are a matrix's. */
void cu_result_root(const Gemm *x, Ix m, Ix n, const Ix *ix);
/* Which of an operand's coordinates is next to its neighbour in memory: extent of that run (1: none), along k or the
 * rows. */
int64_t cu_operand_run(const Graph *g, const Form *f, int which, bool *along_k);

/* ---- gemm_tiles.c: parameters */
/* What else the group does: ops that need registers beside the sums; reductions; operands that it makes. */
typedef struct Load { bool heavy, reduces, made[2]; } Load;
Load cu_gemm_load(const Graph *g, int group, const Op *op);
/* May k be split, so that few tiles fill the machine? An operand that is made on its way in is made once for each tile
 * across: fewer and larger ones with parts of k are sooner worth it. l: NULL where operands are not made. */
bool cu_gemm_has_parts(const Op *op, const Form *f, const Load *l);
void cu_gemm_parts(const Graph *g, const Op *op, const Form *f, const Load *l, Tiles *p); /* sets split */
/* what tune.def asks of kernels in tiles */
Facts cu_gemm_facts(const Graph *g, int group, const Op *op, const char *arch);
FamilyId cu_tiles_family(const Tiles *p);
const char *cu_gemm_text(Arena *a, const Tiles *p);
const char *cu_gemm_why_not(const Graph *g, const Op *op); /* NULL: a kernel in tiles is possible */
bool cu_gemm_parse(const char *text, Tiles *p);
bool cu_tiles_of(const Params *q, Tiles *p); /* false: it is another kernel's, or nothing that a block could be */
int cu_gemm_threads(const Tiles *p);
int64_t cu_gemm_shared(const Tiles *p);
int64_t cu_gemm_tiles(const Form *f, const Tiles *p); /* of the result */
int64_t cu_gemm_workspace(const Graph *g, int group, const Op *op, const Tiles *p);
const char *cu_gemm_misfit(const Graph *g, int group, const Op *op);
void cu_gemm_prologue(const Graph *g, const Op *op, int k, DType narrow, Prologue *r);
/* fragment i of an operand whose memory follows k, for step ks */
const char *cu_ldsm_text(const Gemm *x, const Operand *o, char i);

/* ---- wgmma.c */
void cu_wgmma_steps(Gemm *x, Ix first, Ix count); /* the loop over tiles of k */
void cu_wgmma_open(Gemm *x);                      /* before the first tile of the result */

/* ---- gemm_load.c */
bool cu_wgmma_map(const Gemm *x, const Operand *o, KernelMap *m); /* is it a plain matrix in memory, and which? */
/* does operand `which` lie in memory as a matrix whose rows and columns are k and the lines, in their order? */
bool cu_is_matrix(const Gemm *x, int which);
void cu_operands(Gemm *x);
/* Numbers that a thread copies at once of an operand that lies in memory in runs of so many: a chunk of 16 bytes, or a
 * part of one; 1: number by number. Of convolutions 8 bytes at least, whose places are more. */
int cu_operand_part(const Op *op, const Tiles *p, int64_t run);
int cu_slots_at(const Gemm *x, const Operand *o); /* where its slots begin in shared memory */
const char *cu_slot_text(const Gemm *x, const Operand *o, const char *slot); /* and where this one does */
void cu_load_rows(Gemm *x, const Operand *o); /* at the tile's start */
void cu_load_open(Gemm *x, Operand *o);       /* the registers that a tile goes through, if it does */
void cu_load_tile(Gemm *x, Operand *o);       /* tile `next` of k, global memory to shared memory or registers */
/* what these registers hold, made the operand's elements, to shared memory, if it was there */
void cu_load_keep(Gemm *x, const Operand *o);

/* ---- epilogue.c: what follows a contraction in its group */
const char *cu_epilogue_reduces(const Graph *g, const Op *contract, const Op *red);
/* NULL: red keeps that axis of this space, and is one of those that tiles can join */
const char *cu_reduces_to(const Graph *g, const Type *space, int column, const Op *red);
int cu_result_column(const Graph *g, const Op *contract); /* the axis of the result's columns */
void cu_epilogue_emit(Gemm *x);

/* ---- vectors.c */
bool cu_vector_type(DType t);
/* are elements there that lie as those of `like`, in whole vectors? */
bool cu_vector_place(const Type *t, int64_t offset, const Type *like);
int cu_inner_axis(const Type *t);                 /* of neighbours in memory; -1: there is one element */
void cu_leaves_find(Cuda *c, Val v, const Type *like, Val stop, Leaves *l);
int cu_leaves_read(const Leaves *l); /* values of a row in registers, by `vec` */
void cu_leaves_open(Cuda *c, Leaves *l, int vec, int rows);
void cu_leaves_load(Cuda *c, Leaves *l, const Ix *ix);
void cu_leaves_put(Cuda *c, const Leaves *l, const Ix *ix, Ix lane);
/* What lies along neighbours, while element u of them is computed, is loaded where the text ends at cu_lanes_begin,
 * which comes before their loop; what needs of the first one's indices no other than that along the axis, where it
 * ended at cu_lanes_early, if that was called and *l is not cleared again. From begin to end l->lane is set as soon as
 * it is known. */
void cu_lanes_early(const Cuda *c, Lanes *l, const char *valid);
void cu_lanes_begin(Cuda *c, Lanes *l, const Type *type, int axis, int vec, const Ix *first);
void cu_lanes_end(Cuda *c);
/* A loop over u of vec neighbours; nothing where vec is 1. */
Scope cu_each_open(Cuda *c, int vec);
void cu_each_close(Cuda *c, int vec, Scope s);
/* Value v at indices `first` and at the neighbours along an axis: between open and close element u of them. *n is
 * zeros, or has lanes that begin early. */
typedef struct Near { int vec; Scope loop; Leaves leaves; Lanes lanes; } Near;
Cell cu_near_open(Cuda *c, Near *n, Val v, int axis, const Ix *first, int vec);
void cu_near_close(Cuda *c, const Near *n);
/* Outputs, of which `vec` neighbours are stored at once: the name of their array; element u, in memory at once if the
 * name is NULL; the store at the first one's indices. */
const char *cu_stored_open(Cuda *c, const Out *o, int vec);
void cu_stored_put(Cuda *c, const Out *o, const char *name, const Ix *ix, Cell x);
void cu_stored_close(Cuda *c, const Out *o, const char *name, int vec, const Ix *first);

/* ---- tf32.c */
void cu_tf32_fragments(Gemm *x, const Operand *o, int count); /* for products of 8 of k */

/* ---- finish.c: what the last block at a place does */
int64_t cu_parts_bytes(const Form *f, const Tiles *p); /* of the workspace, before all else; split 1: none */
/* text after which the sums of all parts are in this block's registers; blocks that are not last go on with the next
 * tile */
void cu_parts_join(Gemm *x);
/* gemm_tiles.c: may two of the kernel's blocks be on a multiprocessor, with 128 registers for a thread? */
bool cu_gemm_shares(const Gemm *x);
/* of the workspace, for the group's reductions */
int64_t cu_states_bytes(const Graph *g, int group, const Form *f, const Tiles *p);
int64_t cu_state_offset(const Gemm *x, int k, int s); /* where values s of the group's reduction k begin */
Ix cu_state_place(Gemm *x, Ix column);         /* and which of them is this tile's */
void cu_columns_finish(Gemm *x, const Op *const *red, int nred); /* text behind that which leaves them there */

void cu_gemm_emit(Cuda *c, const Op *op);

/* ---- columns.c: reductions that keep what is innermost in memory */
bool cu_columns_can(const Graph *g, const Op *red); /* may a group of elementwise ops be reduced so? */
/* sets kernel and workspace; false: the group has what such a kernel cannot do */
bool cu_columns_select(const Graph *g, int group, const Op *red);
Facts cu_columns_facts(const Graph *g, const Op *red, const SelectCx *cx);
const char *cu_columns_misfit(const Graph *g, const Op *red, const SelectCx *cx, const Params *p);
int64_t cu_columns_workspace(const Graph *g, const Op *red, const Params *p);
void cu_columns_emit(Cuda *c);
#endif
