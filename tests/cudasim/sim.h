/* sim.h: what the files of the simulated device share: instructions, modules, memory, blocks, launches, reports.
 *
 * A module is PTX text, decoded once into an array of Ins. A warp of 32 lanes runs one Ins at a time: every operand is
 * an offset into the warp's register file, where a 32-bit register is 32 lanes of 4 bytes; constants and special
 * registers are registers filled beforehand. A guard predicate and the lanes that are here give a mask; an operation
 * writes only lanes of its mask. */
#ifndef SIM_H
#define SIM_H
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cu.h"

#define LANES 32
#define ALL_LANES 0xffffffffu
#define MAX_WARPS 32                     /* of a block */
#define MAX_CLUSTER 8                    /* blocks */
#define CLOCKS \
	(MAX_WARPS * MAX_CLUSTER + \
	 1) /* entries of a vector clock: warps of a cluster, and copies that no thread makes */
#define BULK_CLOCK (MAX_WARPS * MAX_CLUSTER)
#define SHARED_BASE 1024u                /* what the machine keeps of shared memory; address 0 is never valid */
#define SHARED_LIMIT (227u << 10)        /* a block's dynamic and static shared memory at most */
#define MAX_PARAMS 32764u               /* bytes of parameters of a kernel */
#define RANK_SHIFT 24                    /* shared::cluster address: (rank + 1) << RANK_SHIFT | offset */

/* Windows of the generic address space; all else is global. */
#define WINDOW_SHIFT 48
#define WINDOW_SHARED 1
#define WINDOW_LOCAL 2
#define WINDOW_PARAM 4

typedef struct Warp Warp;
typedef struct Ins Ins;
typedef struct Block Block;
typedef struct Launch Launch;
typedef struct Module Module;
typedef struct Func Func;
typedef void OpFn(Warp *w, const Ins *x, uint32_t m);

typedef enum Space {
	SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACE_CONST, SPACE_FRAME,
} Space;

/* What the warp's loop does with an instruction besides calling its function. */
typedef enum Kind {
	KIND_PLAIN,
	KIND_BRANCH,
	KIND_CALL,
	KIND_RETURN,
	KIND_EXIT,
	KIND_BARRIER,  /* of the block: all lanes of the warp meet, then the warp waits for others */
	KIND_TOGETHER, /* lanes of a member mask meet, then the function runs once for all of them */
	KIND_YIELD,    /* after it other warps get their turn */
} Kind;

struct Ins {
	OpFn *fn, *inner;       /* inner: what a wrapper calls (directed rounding) */
	uint32_t d, a, b, c;    /* byte offsets into the register file */
	uint32_t guard;         /* offset | 1 if negated; 0: none */
	/* branch: index of an instruction; call: function; lanes together: register of the member mask, 0: all */
	uint32_t target;
	int64_t imm;            /* address offset, immediate */
	uint8_t kind, type, space, bytes; /* bytes: of one element */
	uint8_t n, wide, flags, sub;      /* n: elements; wide: bytes of the register of an element */
	uint32_t extra;         /* first of this instruction's operands in Module.extra */
	uint32_t line;          /* of the PTX text */
};

enum { INS_SIGNED = 1, INS_LOOKS = 2 }; /* LOOKS: a load that sees what other blocks store now */

/* Special registers: 32-bit, in this order at the start of every register file. */
enum Special {
	SR_ZERO, SR_TID_X, SR_TID_Y, SR_TID_Z, SR_NTID_X, SR_NTID_Y, SR_NTID_Z, SR_CTAID_X, SR_CTAID_Y, SR_CTAID_Z,
	SR_NCTAID_X, SR_NCTAID_Y, SR_NCTAID_Z, SR_LANEID, SR_WARPID, SR_NWARPID, SR_LANEMASK_EQ, SR_LANEMASK_LT,
	SR_LANEMASK_LE, SR_LANEMASK_GT, SR_LANEMASK_GE, SR_SMID, SR_NSMID, SR_GRIDID, SR_DYNAMIC_SMEM, SR_TOTAL_SMEM,
	SR_CLUSTER_CTAID_X, SR_CLUSTER_CTAID_Y, SR_CLUSTER_CTAID_Z, SR_CLUSTER_NCTAID_X, SR_CLUSTER_NCTAID_Y,
	SR_CLUSTER_NCTAID_Z, SR_CLUSTER_CTARANK, SR_CLUSTER_NCTARANK, SR_CLUSTERID_X, SR_CLUSTERID_Y, SR_CLUSTERID_Z,
	SR_NCLUSTERID_X, SR_NCLUSTERID_Y, SR_NCLUSTERID_Z, SR_IS_EXPLICIT_CLUSTER, SR_COUNT,
};

/* module.c, parse.c, decode.c */
typedef struct Param { uint32_t offset, bytes; } Param;
/* shared: index of a shared variable whose address is added, or -1 */
typedef struct Const { uint32_t reg, bytes; uint64_t value; int32_t shared; } Const;
typedef struct SharedVar { char *name; uint32_t bytes, align, offset; bool external; int32_t func; } SharedVar;
typedef struct Fixup { uint32_t ins; int32_t shared; } Fixup; /* an offset that waits for the variable's place */
typedef struct Loc { uint32_t ins, file, line; } Loc;

struct Func {
	char *name;
	Module *module;
	bool entry, defined;
	uint32_t first, count;       /* instructions */
	Param *param, *result;       /* results and parameters of a .func lie in the frame */
	int nparam, nresult;
	uint32_t param_bytes;
	uint32_t regs_from, regs_to; /* bytes of the register file */
	/* bytes of a thread's local memory, above those of all that it calls */
	uint32_t frame_from, frame_to;
	Const *constant;
	int nconstant;
	Func **callee;               /* each once */
	int ncallee;
	Func **reach;                /* of a kernel: what it calls, and what that calls */
	int nreach;
	enum { PLACE_NOWHERE, PLACE_UNDER_WAY, PLACE_KNOWN } place;
	uint32_t shared_static;
	uint32_t max_threads, req[3], cluster[3];
	uint32_t max_dynamic;        /* cuFuncSetAttribute */
	int builtin;                 /* vprintf and the like: see BUILTIN_ */
};
enum { BUILTIN_NONE, BUILTIN_PRINTF, BUILTIN_ASSERT, BUILTIN_CONDITIONAL };

typedef struct Global { char *name; uint64_t address; uint64_t bytes; bool constant; } Global;

struct Module {
	Module *next;
	Ins *ins;
	uint32_t nins;
	uint32_t *extra;
	uint32_t nextra;
	Func **func;
	int nfunc;
	Global *global;
	int nglobal;
	SharedVar *shared;
	int nshared;
	Fixup *fixup;
	int nfixup;
	Loc *loc;
	int nloc;
	char *file[256];
	int version, target;         /* 90 for 9.0; 90 for sm_90 */
	bool target_exact;           /* sm_90a */
	bool calls;
	uint32_t func_regs, func_shared;
};

/* Reads PTX; NULL and a message if it cannot. */
Module *module_read(const char *text, int sm, char *error, size_t error_bytes, CUresult *status);
void module_free(Module *m);
Func *module_func(Module *m, const char *name);
const char *module_line(const Module *m, uint32_t ins, char *to, size_t bytes); /* "file.cu:12" or "PTX line 40" */

/* alu.c: operations on registers only, by name; built once for any CPU and once for AVX2. */
/* bytes of each operand; 0: none; 1: predicate */
typedef struct AluRow { const char *names; OpFn *fn; uint8_t d, a, b, c; } AluRow;
extern const AluRow alu_rows_v1[], alu_rows_v3[];
const AluRow *alu_find(const char *name); /* lookup.c */

/* memory.c: arenas of device and of page-locked host memory, with a byte of state for each byte. */
enum { MEM_ALLOCATED = 1, MEM_WRITTEN = 2, MEM_READONLY = 4, MEM_PENDING = 8 };
typedef struct Arena {
	uint64_t base;        /* first address that kernels see */
	uint8_t *host, *state;
	uint64_t size, used, peak;
	struct Allocation *allocation; /* by address */
	int n, cap;
} Arena;
/* owner: 0 the user, else a module; reserved: addresses, behind which stands what is mapped */
typedef struct Allocation { uint64_t at, bytes; bool freed, reserved; int owner; } Allocation;

bool arena_open(Arena *a, uint64_t size, bool hidden);
uint64_t arena_alloc(Arena *a, uint64_t bytes, int owner);
uint64_t arena_reserve(Arena *a, uint64_t bytes);
bool arena_free(Arena *a, uint64_t at);
bool arena_backed(const Arena *a, const Allocation *v, uint64_t at, uint64_t bytes); /* is it all there, within v? */
const Allocation *arena_find(const Arena *a, uint64_t at); /* that holds the address, or NULL */
/* the last that begins at or before it, freed ones too; or the first */
const Allocation *arena_near(const Arena *a, uint64_t at);
void arena_state(Arena *a, uint64_t at, uint64_t bytes, uint8_t set, uint8_t clear);
static inline bool
arena_has(const Arena *a, uint64_t at, uint64_t bytes)
{
	return at - a->base < a->size && bytes <= a->size - (at - a->base);
}

/* block.c */
typedef struct SharedWord { /* who touched 4 bytes of shared memory last */
	uint32_t write_clock, read_clock, read2_clock;
	uint16_t write, read, read2; /* thread of the cluster + 1; 0: nobody */
	uint8_t atomic;
	uint8_t write_bytes, read_bytes, read2_bytes; /* which of the four */
} SharedWord;

typedef struct AsyncCopy { /* of cp.async: lands when waited for */
	uint32_t to, bytes, fill, line;
	uint8_t lane;
	uint32_t group;
	uint8_t data[16];
} AsyncCopy;

enum { LANE_RUNS, LANE_PARKED, LANE_DONE };
#define MAX_CALLS 16

struct Warp {
	uint8_t *rf;
	Block *block;
	uint32_t index, base;        /* of the block; first thread */
	uint32_t pc, next;           /* next: lowest place of lanes that wait, UINT32_MAX if none */
	uint32_t mask, live, parked; /* lanes at pc; not exited; waiting for others of the warp */
	uint32_t lanes;              /* that exist */
	uint32_t pcs[LANES];
	uint32_t parked_mask[LANES]; /* member masks of the parked */
	uint32_t calls[LANES][MAX_CALLS];
	uint8_t depth[LANES];
	uint8_t *frame, *frame_state; /* local memory, a thread after the other */
	int barrier;                 /* waits at this barrier of the block, or -1 */
	int cluster_phase;           /* waits for this phase of the cluster's barrier, or -1 */
	bool done;
	/* steps for which lanes elsewhere are left waiting, so that a loop on one of them ends */
	uint32_t hold;
	uint32_t clock[CLOCKS]; /* vector clock over warps of the cluster: what this warp has seen */
	AsyncCopy *copy;             /* issued by cp.async and not waited for */
	int ncopy, capcopy;
	uint32_t group[LANES];       /* groups committed, per lane */
	struct Product *product;     /* of wgmma, not waited for */
	int nproduct, capproduct;
	uint32_t products;           /* groups of them committed */
	uint32_t fenced;             /* own time of the last fence between proxies */
	uint32_t fair;               /* steps since other lanes ran */
};

typedef struct Barrier {
	uint32_t arrived, expected;
	uint32_t waiting;
	uint32_t clock[CLOCKS];
	uint32_t result_or, result_and, result_count;
} Barrier;
typedef struct Mbarrier Mbarrier;

struct Block {
	Launch *launch;
	struct Group *group;
	uint32_t id[3], rank;
	Warp *warp[MAX_WARPS];
	int nwarp, nthread, alive;
	uint8_t *shared, *shared_state;
	SharedWord *word;
	uint32_t shared_bytes;
	Barrier barrier[16];
	Mbarrier *mbarrier;
	int nmbarrier, capmbarrier;
	uint32_t frame_bytes;
};

/* Blocks that run side by side: one, or those of a cluster. */
typedef struct Group {
	Launch *launch;
	Block *block[MAX_CLUSTER];
	int nblock;
	uint64_t ran;
	uint32_t cluster_arrived, cluster_phase;
	uint32_t cluster_clock[CLOCKS];
	uint64_t number;             /* of the launch */
	uint8_t *room;               /* of blocks, registers, shared memory */
	size_t room_bytes;
	struct Bulk *bulk;           /* copies under way that no thread makes */
	int nbulk, capbulk;
	uint32_t bulk_clock;
} Group;

struct Launch {
	Module *module;
	Func *func;
	uint32_t grid[3], block[3], cluster[3], dynamic;
	uint8_t param[MAX_PARAMS + 16];
	uint64_t blocks, taken;
	uint64_t limit;          /* instructions of warps after which the launch is given up */
	uint64_t warp_instructions, thread_instructions;
	bool checks;
	uint64_t seed;
	CUresult status;         /* of the first thread that failed */
	pthread_mutex_t lock;
	struct GraphRun *graph;  /* whose conditional handles the kernel may set */
};

CUresult launch_run(Launch *l);

/* The thread that interprets; one block at a time. */
typedef struct Worker {
	jmp_buf fail;
	Launch *launch;
	Warp *warp;
	uint64_t warp_instructions, thread_instructions;
	uint64_t random, stores, looks;
	const void *storing; /* the bytes being stored: writing what is there already is no race */
} Worker;
extern _Thread_local Worker *worker __attribute__((tls_model("initial-exec")));

/* access.c */
typedef enum Access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC, ACCESS_ASYNC, ACCESS_ASYNC_END } Access;
/* Where an address leads; reports and leaves the block if it leads nowhere or may not be touched. */
uint8_t *access_at(Warp *w, const Ins *x, int lane, Space space, uint64_t at, uint32_t bytes, Access how);
uint64_t lane_address(Warp *w, const Ins *x, uint32_t reg, int lane);
uint8_t *shared_at(Warp *w, const Ins *x, int lane, uint32_t at, uint32_t bytes, uint32_t align, Access how);
OpFn op_load, op_store, op_load_param, op_atom, op_cp_async, op_cp_commit, op_cp_wait, op_cp_mbarrier, op_frame_copy,
        op_isspace;
void clock_join(Warp *w, uint32_t *clock, const uint32_t *other);
void bulk_land(struct Group *g, bool all);
bool group_bulk_pending(const struct Group *g);

/* warp.c */
bool warp_run(Warp *w, uint32_t steps); /* false: the warp waits or is done */
OpFn op_clock, op_builtin, op_trap, op_nothing, op_rounded, op_activemask, op_nanosleep, op_barrier_arrive,
        op_warp_sync, op_cluster_arrive, op_elect;

/* cross.c: lanes of a warp together */
OpFn op_shfl, op_vote, op_match, op_redux, op_ldmatrix, op_stmatrix, op_movmatrix;
/* mma.c */
OpFn op_mma;
/* bulk.c: mbarrier, bulk and tensor copies; wgmma.c */
OpFn op_mbarrier, op_bulk, op_bulk_commit, op_bulk_wait, op_tensor, op_mapa, op_wgmma, op_wgmma_commit, op_wgmma_wait,
        op_proxy_fence;

/* convert.c */
OpFn op_convert, op_convert_pack, op_convert_unpack;

/* report.c */
_Noreturn void report(Warp *w, const Ins *x, int lane, CUresult status, const char *format, ...)
        __attribute__((format(printf, 5, 6)));
_Noreturn void report_at(Warp *w, const Ins *x, int lane, CUresult status, uint64_t at, const char *format, ...)
        __attribute__((format(printf, 6, 7)));

static inline uint64_t
random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* The library's own is a call into a table where the CPU may be any. */
static inline uint32_t
lanes_count(uint32_t m)
{
	m -= m >> 1 & 0x55555555;
	m = (m & 0x33333333) + (m >> 2 & 0x33333333);
	return ((m + (m >> 4)) & 0x0f0f0f0f) * 0x01010101u >> 24;
}

#define REG(w, type, offset) ((type *)(void *)((w)->rf + (offset)))
#define FOR_LANES(i, m) \
	for (uint32_t rest_##i = (m), i; rest_##i && (i = (uint32_t)__builtin_ctz(rest_##i), 1); \
	     rest_##i &= rest_##i - 1)

static inline uint64_t
lane_get(const Warp *w, uint32_t offset, uint32_t bytes, int lane)
{
	const uint8_t *p = w->rf + offset;

	switch (bytes) {
	case 2: return ((const uint16_t *)(const void *)p)[lane];
	case 4: return ((const uint32_t *)(const void *)p)[lane];
	case 8: return ((const uint64_t *)(const void *)p)[lane];
	default: return *(const uint32_t *)(const void *)p >> lane & 1;
	}
}

static inline void
lane_set(Warp *w, uint32_t offset, uint32_t bytes, int lane, uint64_t v)
{
	uint8_t *p = w->rf + offset;
	uint32_t *pred = (uint32_t *)(void *)p;

	switch (bytes) {
	case 2: ((uint16_t *)(void *)p)[lane] = (uint16_t)v; break;
	case 4: ((uint32_t *)(void *)p)[lane] = (uint32_t)v; break;
	case 8: ((uint64_t *)(void *)p)[lane] = v; break;
	default: *pred = (*pred & ~(1u << lane)) | (uint32_t)(v & 1) << lane;
	}
}
#endif
