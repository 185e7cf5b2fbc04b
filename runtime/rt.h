/* rt.h: the whole interface between generated code and runtime, versioned. Includes nothing of the compiler; may be
 * included from anywhere.
 *
 * An executable holds one RtCodeObject per --arch. A code object is a descriptor (JSON text, see
 * runtime/descriptor.md), a table of kernels and three entry points, which are emissions of the module's loops. The
 * runtime owns no training loop: with --sink off a table walker runs the descriptor's loop ops one by one, otherwise
 * the entry points run them. */
#ifndef RUNTIME_RT_H
#define RUNTIME_RT_H
#include <stdint.h>

#define RT_VERSION 5
#define RT_MAX_RESULTS 64    /* loss, metrics, norm of one step */
#define RT_MAX_INPUTS 16

/* Numbers of the element types in result_dtype: those of ir/dtypes.def, in its order from 1. */
typedef enum RtDType {
	RT_F64 = 1, RT_F32, RT_F16, RT_BF16, RT_I64, RT_I32, RT_U8, RT_BOOL, RT_I16, RT_U16, RT_I8, RT_DTYPE_COUNT
} RtDType;

/* A kernel works on tasks [t0, t1) of its group. Buffers are at arena + off[k] in the order of the descriptor's "off".
 * n: examples of this batch. scratch: this thread's own, descriptor "scratch_bytes" long, 64-byte aligned.
 * Tasks are cut by shape, never by the number of threads: results have the same bits for any. */
typedef void RtKernel(uint8_t *arena, const int64_t *off, int64_t n, int64_t t0, int64_t t1, uint8_t *scratch);

typedef enum RtStatus {
	RT_OK = 0,
	RT_STOPPED = 1,          /* poll said stop */
	RT_FAULT = 2,            /* a check found a number out of range: RtFault at arena + fault_offset */
	RT_NOT_FINITE = 3,       /* loss of step run->step is not finite and allow_nan is 0 */
	RT_ERROR = 4,            /* of a device: the host's error text says it */
} RtStatus;

/* Written by check kernels (the first fault of a step is kept: smallest op index, then smallest element). */
/* op: index into descriptor "checks" */
typedef struct RtFault { int64_t set; int64_t op; int64_t element; int64_t value; } RtFault;

typedef struct RtRecord {    /* one telemetry record: `emit` */
	int64_t step, epoch, n;  /* n: examples of the batch (weight of an evaluation batch) */
	double rate;
	double value[RT_MAX_RESULTS]; /* the call's results in the order of the descriptor's graph "results" */
} RtRecord;

/* The first tensor of a call that is not finite: its first such element. */
typedef struct RtFound {
	const char *layer, *where, *dtype; /* where: "" or file:line:column */
	int rank; int64_t shape[8], index[8];
	double value;
} RtFound;

/* Shared by generated code and runtime; generated code reaches fields by offsetof, so only append, and raise
 * RT_VERSION. */
typedef struct RtRun {
	uint8_t *arena;
	int64_t n;               /* examples of the current batch */
	int64_t step;            /* train: global step (updates), from 0; eval: batch number */
	int64_t until;           /* first step that this call does not run */
	int64_t epoch;
	int64_t steps_per_epoch;
	int64_t examples;        /* of the data set in use */
	int64_t batch;           /* full batch */
	const int64_t *order;    /* of this epoch, `examples` long; NULL = file order */
	int64_t seed;
	double rate;             /* of this step */
	int64_t allow_nan;
	/* poll takes the slow way when step + 1 >= stop_at (checkpoint, stop, pause); 0 = at once */
	volatile int64_t stop_at;
	int64_t micro;           /* batch within the update, with accumulate > 1; shard of the batch */
	/* head: written by the loop */
	RtRecord *ring; int64_t ring_mask; volatile int64_t ring_head; volatile int64_t ring_tail;
	void *host;              /* the runtime's own */
	void *self;              /* RtCodeObject.self */
	/* RT_PREPACKED of the graph whose kernels that run once have run and still stand; 0: none. Whoever writes
	 * states sets it to 0 */
	int64_t prepacked;
	int64_t shard, shard_end;/* the shards of a batch that this process runs */
	int64_t first;           /* place in the whole batch of the first example of the shard that runs */
	int64_t part; /* of graph train whose shards run in step, by RtCodeObject.call: the joins behind it */
	const RtFound *found;    /* of RtCodeObject.call, where it ended with RT_NOT_FINITE; NULL: not known */
} RtRun;
#define RT_PREPACKED(name) ((int64_t)(name)[0]) /* graphs: train, update, eval, infer */

/* Helpers that generated loops call; each is the emission of one loop op. */
void rt_shuffle(RtRun *run);                    /* shuffle: fills run->order for run->epoch */
/* batch: gathers examples into arena + offset (parallel), sets n */
void rt_batch(RtRun *run, const int64_t *input_offset, int64_t ninput);
double rt_rate(RtRun *run);                     /* rate: schedule at run->step, double, contract's formulas */
void rt_parallel(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks); /* all tasks, then a barrier */
/* the same, each thread's share of the tasks in one call */
void rt_parallel_shares(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks);
/* the same; each `whole` tasks, from the first on, have work in common that a call does once: they are parted only
 * where there are too few of them for the threads */
void rt_parallel_whole(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole);
/* `turns` times so many tasks, numbered on: each turn as rt_parallel_shares, and a barrier behind it. A thread has the
 * same share of every turn. threads: at most; 0: all */
void rt_parallel_turns(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t turns, int64_t threads);
/* one of the first three by so many threads at most; whole 0: the first, RT_SHARES: the second */
#define RT_SHARES (-1)
void rt_parallel_few(RtRun *run, RtKernel *k, const int64_t *off, int64_t tasks, int64_t whole, int64_t threads);
/* RT_OK or RT_NOT_FINITE; loss: index of the loss, -1 */
int64_t rt_emit(RtRun *run, const int64_t *result_offset, const int32_t *result_dtype, int64_t nresult, int64_t loss);
/* after the loss's kernel, before anything is updated: RT_OK or RT_NOT_FINITE, of training */
int64_t rt_loss(RtRun *run, int64_t offset, int64_t dtype);
/* RT_OK or RT_STOPPED; called when step + 1 >= stop_at or the ring is half full */
int64_t rt_poll(RtRun *run);
/* in graph train of a model with shards: the gradients of a bucket stand; in graph update: their sums are to be read;
 * behind it, with the number of buckets: all of them have been */
void rt_start(RtRun *run, int64_t bucket);
void rt_wait(RtRun *run, int64_t bucket);
/* merge: the shard just run joins the sums; behind the last the states of kind grad hold them, of several processes as
 * far as rt_wait has waited. RtStatus */
int64_t rt_merge(RtRun *run);
/* --shard-optimizer: this process's part of the tasks of a row of graph update; behind the graph: the parameters that
 * others have updated. */
void rt_parallel_own(RtRun *run, RtKernel *k, const int64_t *off, int64_t row);
void rt_tell(RtRun *run); /* within: what each has made of its part of the gradients, to all */
void rt_spread(RtRun *run);
/* All shards of a step in step: batches, calls of graph train from join to join, merges. RtStatus */
int64_t rt_joined(RtRun *run);
/* Early joins: what all shards need of each other, before the first one runs; the value in the join's place. */
int64_t rt_count(RtRun *run);
void rt_give(RtRun *run, int64_t join);
int64_t rt_fault(RtRun *run);                   /* 1 if a check has failed */

/* ---- kernels in C
 *
 * What kernels of target cpu call where an algorithm is no loop nest. buf: the op's operands, then its results,
 * row-major; NULL: not there, or not wanted. Tasks [t0, t1) are lines, entries or planes. scratch: of this thread, as
 * many bytes as the function beside says. Sums have one order, whatever the tasks. */
typedef void RtCall(const void *spec, uint8_t *const *buf, int64_t t0, int64_t t1, uint8_t *scratch);
/* x [outer, n, inner]: a task is a line */
typedef struct RtOrder { int64_t dtype, n, inner, count, descending; } RtOrder;
typedef struct RtNms {
	int64_t box_dtype, score_dtype, group_dtype /* 0: none */, boxes, count;
	double iou, least;
} RtNms;
typedef struct RtRoi {
	int64_t dtype, box_dtype, channels, height, width, regions, rows, columns, samples, aligned;
	double scale;
} RtRoi;
/* what shards of a batch exchange, of one shard: copies buffer k to buffer pairs + k */
typedef struct RtShared { int64_t bytes, pairs; } RtShared;
RtCall rt_shared;
RtCall rt_order;         /* (x, index i32 [outer, count, inner]) */
RtCall rt_nms;           /* (boxes, scores, group, index i32, keep bool): a task is an entry of the leading axes */
RtCall rt_roi_align;     /* (x, boxes, y): a task is a region */
RtCall rt_roi_align_dx;  /* (g, boxes, dx): a task is a plane of an example */
enum { RT_ITEM = 16, RT_PLACE = 32 };
static inline int64_t rt_order_scratch(int64_t n) { return 2 * RT_ITEM * n; }
static inline int64_t rt_nms_scratch(int64_t boxes, int64_t count) { return 2 * RT_ITEM * boxes + 48 * count; }
static inline int64_t
rt_roi_scratch(int64_t rows, int64_t columns, int64_t samples, int64_t plane)
{
	return RT_PLACE * (rows + columns) * samples + 8 * plane;
}

/* ---- devices
 *
 * A kernel of a device takes (char *arena, long long n, long long off[0], ...) and is right for any number of blocks;
 * of one whose blocks wait for each other all of a full batch are launched.
 * 256 bytes in front of the device's arena hold its loop's state, of which status comes first; the fault record is at
 * offset 0. A kernel that stores states begins with
 * `if (*(long long *)(arena - 256) | *(long long *)arena) return;`: after a stop or a fault nothing changes any more.
 * The lists here make C structs for the host and CUDA text for the device; every field is a long long. */
typedef struct RtModule {
	const uint8_t *code;            /* a cubin, or PTX text ending with 0, as RtCode.arch says */
	int64_t packed;                 /* bytes of code compressed by gzip; 0: it is as it is */
	const uint8_t *ptx;             /* the same as PTX; NULL: there is none */
	int64_t ptx_packed;
} RtModule;
typedef struct RtCode {             /* kernels of a device */
	const char *arch;               /* "sm_90a", "sm_80", ...: cubins; "compute_80": PTX */
	const char *ptx_arch;           /* "compute_80", ...: of RtModule.ptx, for newer devices; NULL: there is none */
	int64_t ptx_version;            /* of PTX, wherever it stands: 90 for .version 9.0; 0: unknown */
	const RtModule *module;         /* the first holds the loop's functions */
	int64_t nmodule;
	const char *const *name;        /* functions by the kernel table's "fn"; RtCodeObject.nkernel of them */
	const int32_t *block, *shared;  /* by fn: threads of a block; bytes of dynamic shared memory */
	/* by fn: its module; -1: it is no kernel, its name is the line of a plan of cuDNN (runtime/cuda/cudnn.h) */
	const int32_t *from;
	/* by fn: blocks that wait for each other, so that the device must hold them at one time; 1, or NULL: none do */
	const int32_t *team;
} RtCode;

#define RT_LOOP_BYTES 256
#define RT_LOOP_STATE(F) \
	F(status)     /* 0: go on; RT_STOPPED: `until` is reached, or mail came; RT_NOT_FINITE */ \
	F(step)       /* the step that runs */ \
	F(until)      /* the first that does not */ \
	F(base)       /* step of rates[0] */ \
	F(start)      /* first step of the epoch */ \
	F(accumulate) /* batches of a step */ \
	F(batch)      /* examples of a batch */ \
	F(batches)    /* of the data set: beyond them they come round again */ \
	F(staged)     /* the data set holds the batches of two steps, even and odd */ \
	F(seed) \
	F(finite)     /* a loss that is not finite ends the loop */ \
	F(rates)      /* double by step, or 0 */ \
	F(order)      /* long long by place in the epoch, or 0: file order */ \
	F(ring)       /* records: step, then the bits of each scalar */ \
	F(mask)       /* of the number of a record */ \
	F(words)      /* of a record */ \
	F(records)    /* written so far */ \
	F(head)       /* where the host reads that number */ \
	F(mail)       /* not 0 there: end after this step */ \
	F(micro)      /* the batch of the step that runs, or in which the first fault is, or the loss that ended it */
/* offset: of an example; unit: 16, 8, 4, 2 or 1 bytes are copied at a time; 0: its address takes its place */
#define RT_LOOP_INPUT(F) F(data) F(stride) F(bytes) F(unit) F(offset)
#define RT_LOOP_RESULT(F) F(offset) F(bytes)
/* Elements of a state of kind grad, from byte `at` of all of them on. type: 0 f32, 1 f64, 2 bf16, 3 f16 */
#define RT_LOOP_PART(F) F(at) F(n) F(type)
/* What shards exchange within a step: count elements from arena + from, joined to arena + to (moments: means, and
 * variances from from2 on, to to2; to, to2 -1: nobody reads it); at: byte of what a shard brings */
#define RT_LOOP_TOLD(F) F(from) F(at) F(n)
#define RT_LOOP_JOIN(F) F(from) F(to) F(from2) F(to2) F(count) F(type) F(moments) F(at)

typedef int64_t RtEntry(RtRun *run);            /* an RtStatus */

typedef struct RtCodeObject {
	int32_t version;
	int32_t nkernel;
	const char *program;     /* JSON descriptor */
	/* CPU features, space-separated as __builtin_cpu_supports names them: "avx2 fma avx512f" */
	const char *needs;
	RtKernel *const *kernel;
	/* NULL where the model has none. train: steps [step, until) of one epoch at most; eval: batches [step, until);
	 * infer: one batch whose inputs stand in the arena */
	RtEntry *train, *eval, *infer;
	void *self;              /* the interpreter's module; NULL in compiled code objects */
	/* Not NULL: runs one call of a graph ("train", "eval", ...) in place of its kernels when the descriptor's loops
	 * are walked (the interpreter has no kernels). seed, step and rate stand in the arena; ends with RT_OK,
	 * RT_FAULT, or, before a state has changed, RT_NOT_FINITE. A code object whose entry points are NULL is always
	 * walked. */
	int64_t (*call)(RtRun *run, const char *graph);
	/* of a device, which runs the loops too: then kernel and the entry points are NULL */
	const RtCode *code;
	const struct RtDevice *device; /* how the host reaches it, of an archive that this reference links in */
} RtCodeObject;

/* What main (entry.c) of an executable calls: returns the exit status. Code objects best first; the first whose needs
 * are met runs. */
int rt_main(int argc, char **argv, const RtCodeObject *const *objects, int nobjects);
#endif
