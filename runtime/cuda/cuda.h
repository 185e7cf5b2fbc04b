/* cuda.h: what the files of the CUDA device share: the driver's types, the device of one executable.
 *
 * Names, numbers and layouts of types are those of the driver's binary interface, so that no toolkit is needed to
 * build. A function that can fail returns false after rt_fail on the host's error. */
#ifndef RUNTIME_CUDA_H
#define RUNTIME_CUDA_H
#include "../host.h"

typedef unsigned long long CuPtr;
typedef struct CuContextBody *CuContext;
typedef struct CuModuleBody *CuModule;
typedef struct CuFunctionBody *CuFunction;
typedef struct CuStreamBody *CuStream;
typedef struct CuEventBody *CuEvent;
typedef struct CuGraphBody *CuGraph;
typedef struct CuNodeBody *CuNode;
typedef struct CuExecBody *CuExec;
typedef struct CuKernelNode {       /* CUDA_KERNEL_NODE_PARAMS_v2 */
	CuFunction function;
	unsigned grid[3], block[3], shared;
	void **parameter, **extra, *kernel;
	CuContext context;
} CuKernelNode;
typedef struct CuTensorMap { _Alignas(128) unsigned long long x[16]; } CuTensorMap;
/* of a tensor map: elements, swizzle, promotion in the L2 */
enum { CU_16_BITS = 1, CU_SWIZZLE_128 = 3, CU_PROMOTE_128 = 2 };
typedef struct CuNodeParams {       /* CUgraphNodeParams, of which a conditional node is used */
	int type, reserved0[3];
	union {
		long long reserved1[29];
		struct {
			unsigned long long handle;
			int type;
			unsigned size;
			CuGraph *body;
			CuContext context;
		} conditional;
	} as;
	long long reserved2;
} CuNodeParams;
typedef struct CuPlace { int type, number; } CuPlace;                        /* CUmemLocation */
typedef struct CuMemProp {                                                   /* CUmemAllocationProp */
	int type, handles;
	CuPlace location;
	void *other;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
} CuMemProp;
typedef struct CuMemAccess { CuPlace location; int flags; } CuMemAccess;     /* CUmemAccessDesc */
enum { CU_PINNED = 1, CU_ON_DEVICE = 1, CU_READ_WRITE = 3 };
typedef struct CuPiece { CuPtr at; size_t bytes; } CuPiece;                  /* of mapped memory */
enum { CU_OUT_OF_MEMORY = 2, CU_NOT_READY = 600 };                           /* statuses */
/* attributes, options */
enum { CU_SMS = 16, CU_MAJOR = 75, CU_MINOR = 76, CU_DYNAMIC_SHARED = 8, CU_CARVEOUT = 9 };
enum { CU_MAPPED_MEMORY = 102, CU_RDMA_WITH_MAPPED = 110 };
enum { CU_ERROR_LOG = 5, CU_ERROR_LOG_BYTES = 6 };
enum { CU_PORTABLE = 1, CU_MAPPED = 2, CU_NON_BLOCKING = 1, CU_NO_TIMING = 2 };                  /* flags */
/* run->prepacked: states are the device's, but no graph's kernels that run once stand */
enum { CUDA_CURRENT = 1 };
/* places in Cuda.mapped */
enum { CUDA_HEAD = 0, CUDA_MAIL = 64, CUDA_RECORDS = 256 };
enum { CU_CAPTURE_THREAD = 1 };              /* a capture that other threads do not disturb */
enum { CU_NODE_CONDITIONAL = 13, CU_WHILE = 1, CU_ASSIGN_DEFAULT = 1 };

typedef struct CuDriver {
#define CU(name, symbol, since, arguments) int (*name) arguments;
#include "driver.def"
#undef CU
} CuDriver;

#define FIELD(name) long long name;
typedef struct LoopState { RT_LOOP_STATE(FIELD) } LoopState;
typedef struct LoopInput { RT_LOOP_INPUT(FIELD) } LoopInput;
typedef struct LoopResult { RT_LOOP_RESULT(FIELD) } LoopResult;
typedef struct LoopPart { RT_LOOP_PART(FIELD) } LoopPart;
typedef struct LoopJoin { RT_LOOP_JOIN(FIELD) } LoopJoin;
typedef struct LoopTold { RT_LOOP_TOLD(FIELD) } LoopTold;
#undef FIELD
/* from the arena - 256 */
typedef struct LoopHead { LoopState state; char room[RT_LOOP_BYTES - sizeof(LoopState)]; RtFault fault; } LoopHead;

/* A data set: on the device whole, or the batches of two steps at a time. */
typedef struct DeviceSet {
	const RtData *host;                         /* whose copy it is; NULL: of none */
	int64_t examples, offset[RT_MAX_INPUTS];    /* offset: of an input in the copy */
	CuPtr at;
	bool staged;
	uint8_t *pinned;                            /* staged: what the copies come from */
	CuEvent copied[2], used[2];                 /* of the halves */
	int64_t half;                               /* bytes */
	int blocks[RT_G_COUNT];                     /* that gather for a graph */
} DeviceSet;

/* A loop as a graph: `steps` of it, or all of them (0); NULL: the exchange of a step's sums. */
typedef struct Plan { const RtLoop *loop; int64_t steps; CuGraph graph; CuExec exec; } Plan;
#define CUDA_PLANS 8

/* The shards of a batch (shards.c). */
typedef struct CudaShards {
	CuFunction sum, copy, fault, take, tree, give, vote, heed, mark, tell;
	CuPtr part, join;                           /* LoopPart, h->sums.npart of them; LoopJoin by join */
	CuPtr room[RT_MAX_NODES];                   /* for the sums of complete nodes */
	CuPtr value, root;                          /* of joins: by shard; joined */
	int copies; CuPtr stride;                   /* of the arena: of shards that run in step; else 1 */
	/* of several processes: what arrives; what each says, RT_VOTE words by rank; a wish to stop of all */
	CuPtr in, votes, agreed;
	RtAdd add[2 * RT_MAX_NODES]; int nadd;      /* behind the last shard, before the others' */
	int started, waited;                        /* buckets of this step that go, that the steps have waited for */
	int64_t *marks; CuPtr marks_at;             /* loop_mark's; then mail of this process alone */
	struct RtMsg *spread;                       /* cuts.spread, on the device */
	CuPtr told, place; struct RtMsg *telling;   /* cuts.told, LoopTold of cuts.place; cuts.tell */
	/* where buckets travel while the last shard runs, and the update; NULL: nowhere. arrived: by bucket */
	CuStream beside; CuEvent forked, joined, *arrived;
} CudaShards;

typedef struct Cuda {
	RtHost *h;
	CuDriver cu;
	int version, device, major, minor, sms;     /* version: of CUDA that the driver is for; sms: multiprocessors */
	char name[320];
	CuContext context;
	bool retained;
	CuStream stream, copy;                      /* copy: of data and orders beside the steps */
	CuModule *module, condition;                /* RtCode.nmodule, and the loop's condition */
	CuFunction *fn, loop_call, loop_loss, loop_emit, loop_while;
	CuPtr base, arena;                          /* base: RT_LOOP_BYTES in front */
	/* addresses that were reserved, 0: base is an allocation; the memory behind them */
	size_t reserved; CuPiece *piece; int npiece;
	CuPtr tables;                               /* LoopInput by graph, then LoopResult by graph */
	/* by input: the examples of a batch that the host gathered, if the graph takes addresses; 0: none yet */
	CuPtr beside[RT_MAX_INPUTS];
	/* room for those of one kernel; for the offsets of a part of one */
	void **parameter; int parameters; int64_t *moved;
	unsigned char map[RT_MAX_MAPS][sizeof(CuTensorMap)]; /* and for its tensor maps */
	LoopHead top;                               /* as it last went up or came down */
	/* telemetry: the device writes, the host reads */
	uint8_t *mapped; CuPtr mapped_at;           /* head, mail, then the records */
	int64_t capacity, words, seen;              /* records, a power of two; of the largest record; moved on */
	CuPtr rates;                                /* capacity of them */
	/* data */
	DeviceSet set[2];                           /* training, test */
	CuPtr order[2]; int64_t order_room, order_epoch[2]; /* by the epoch's parity */
	Plan plan[CUDA_PLANS]; int nplan;
	/* an epoch takes a graph a step, and that was said; and of the data set that it does not fit */
	bool no_while, said, told;
	/* why there is no loop in a graph, as found when the device was opened */
	char why_while[400];
	CuEvent *event; int nevent;
	struct CudaDnn *dnn;                        /* NULL: the code object holds no plans of cuDNN */
	CudaShards shards;
	struct CudaNccl *nccl;                      /* NULL: one process */
} Cuda;

/* driver.c */
bool cuda_ok(Cuda *c, int status, const char *call);    /* false after rt_fail if the call did not end well */
#define CUDA(c, name, ...) cuda_ok(c, (c)->cu.name(__VA_ARGS__), #name)
bool cuda_ready(RtHost *h);
const char *cuda_missing(RtHost *h, const RtCodeObject *m, char *text, size_t n);
bool cuda_takes_code(const Cuda *c, const RtCode *code); /* does the device take the code object's code? */
bool cuda_takes_ptx(const Cuda *c, const RtCode *code); /* does the device take the code object's PTX? */
/* device.c */
bool cuda_load(Cuda *c, const RtCode *code);            /* the code object's module */
bool cuda_open(RtHost *h);
void cuda_close(RtHost *h);
/* blocks of the row's kernel that a multiprocessor holds, by the driver; 0: it is a plan of cuDNN, or unknown */
int cuda_resident(RtHost *h, const RtRow *r);
/* the calling thread uses the device; states go up if they are new */
bool cuda_here(Cuda *c);
bool cuda_alloc(Cuda *c, CuPtr *to, int64_t bytes, const char *what); /* what: for the message */
bool cuda_put(Cuda *c, CuPtr to, const void *from, int64_t bytes);
bool cuda_get(Cuda *c, void *to, CuPtr from, int64_t bytes);
bool cuda_fetch(RtHost *h, int64_t offset, int64_t bytes);
bool cuda_inputs(Cuda *c, const RtGraph *g, int64_t n); /* from the host's arena, if they are fresh */
/* room for an input's examples that the host gathers, where it holds addresses */
bool cuda_beside(Cuda *c, int k);
/* arena.c */
int cuda_arena_alloc(Cuda *c, size_t bytes);            /* sets base and the host's device_bytes; the driver's status */
void cuda_arena_free(Cuda *c);
bool cuda_arena_put(Cuda *c, int64_t begin, int64_t end); /* from the host's, but for slots that are others'; back: */
bool cuda_arena_get(Cuda *c, int64_t begin, int64_t end);
/* data.c */
bool cuda_use(Cuda *c, DeviceSet **set);                /* the data set that the run points at */
bool cuda_order(Cuda *c, int64_t epoch, bool wait);
bool cuda_stage(Cuda *c, DeviceSet *s, int64_t step);   /* the batches of a step, before it is launched; and after: */
bool cuda_staged(Cuda *c, DeviceSet *s, int64_t step);
void cuda_data_free(Cuda *c);
bool cuda_room(Cuda *c, int64_t steps);                 /* for records and rates */
/* graph.c */
Plan *cuda_plan(Cuda *c, const RtLoop *l, int64_t steps);
void cuda_plans_free(Cuda *c);
CuPtr cuda_input_table(const Cuda *c, int graph);
CuPtr cuda_result_table(const Cuda *c, int graph);
/* Kernels one after the other, into a graph; or (graph NULL) launched and waited for, each timed where time is not
 * NULL. */
typedef struct Chain {
	Cuda *c;
	CuGraph graph;
	CuNode last;
	bool capture, beside;                       /* no graph yet: into what c->stream captures, or shards.beside */
	int64_t micro;
	int64_t bad; RtFault fault;                 /* launched, of several: the first shard with a fault, -1 */
	bool batch;                                 /* the next call takes one */
	RtTimeFn *time; void *cx;
} Chain;
static inline CuStream
cuda_chain_stream(const Chain *h)
{
	return h->beside ? h->c->shards.beside : h->c->stream;
}
bool cuda_chain_add(Chain *h, const CuKernelNode *node);
bool cuda_chain_begin(Chain *h, int graph);             /* a call: its scalars, its batch */
bool cuda_chain_row(Chain *h, const RtGraph *g, int row);
/* parameters: in c->parameter, until the next. No blocks: this process has no part of it */
bool cuda_kernel(Cuda *c, const RtRow *r, int64_t *n, CuKernelNode *to);
bool cuda_row_context(Cuda *c, const RtRow *r);         /* names kernel and layers; false */
/* cudnn.c */
/* library, handle and plans, if the code object has any; behind the arena */
bool cuda_dnn_open(Cuda *c);
void cuda_dnn_close(Cuda *c);
bool cuda_dnn_is(const Cuda *c, const RtRow *r);        /* is the row a plan of cuDNN? */
bool cuda_dnn_run(Cuda *c, const RtRow *r);             /* on the stream */
bool cuda_dnn_add(Cuda *c, CuGraph graph, const CuNode *after, size_t n, const RtRow *r, CuNode *made);
/* nccl.c */
bool cuda_nccl_open(Cuda *c);                           /* all ranks alike */
void cuda_nccl_close(Cuda *c);
const char *cuda_nccl_name(const Cuda *c);
bool cuda_nccl_well(Cuda *c);                           /* false after rt_fail: NCCL has met an error */
bool cuda_nccl_wait(Cuda *c, CuStream s);
bool cuda_nccl_move(Cuda *c, CuStream s, const struct RtMsg *m, int count); /* one group; `at` is of the device */
bool cuda_nccl_sum(Cuda *c, CuStream s, CuPtr at, int64_t n, int dtype);
/* shards.c */
bool cuda_exchanges(const Cuda *c);                     /* do several processes share each batch of training? */
void cuda_shards_room(Cuda *c);                         /* how many copies of the arena, before it is made */
bool cuda_shards_open(Cuda *c);                         /* behind the arena; nothing where there are no shards */
void cuda_shards_close(Cuda *c);
/* All of a step: graph train of each and their sums. A fault of kernels that are launched is in run->arena. */
bool cuda_shards_add(Chain *h);
int64_t cuda_shards(RtHost *h, RtTimeFn *time, void *cx);
bool cuda_shards_merge(RtHost *h);
/* the exchange of a step's sums, whatever stands there: behind what all shards but the last leave */
bool cuda_shards_earlier(Chain *h);
bool cuda_shards_exchange(Chain *h);
bool cuda_shards_wait(Chain *h, int row);               /* before a row of graph update: for what it reads; behind it */
/* a kernel of theirs, of so many blocks */
bool cuda_shards_kernel(Chain *h, CuFunction f, int64_t blocks, void **parameter, const char *what);
bool cuda_shards_mark(Chain *h);                        /* tells the host that the device has come so far */
/* What follows is put beside the steps, behind all that they have so far; the steps again, which wait for it. */
bool cuda_shards_fork(Chain *h);
bool cuda_shards_join(Chain *h);
/* cut.c */
bool cuda_cut_open(Cuda *c);                            /* of several processes, behind shards' own */
void cuda_cut_close(Cuda *c);
bool cuda_cut_tell(Chain *h);                           /* what each has made of its part of the gradients */
bool cuda_cut_spread(Chain *h);                         /* behind an update that processes share */
/* links.c */
bool cuda_link(RtHost *h, int other, int64_t bytes, double *seconds);
bool cuda_adds(RtHost *h, int64_t bytes, double *seconds);
/* run.c */
bool cuda_scalars(Cuda *c, const RtGraph *g);           /* of a call, to where the graph reads them */
bool cuda_events(Cuda *c, int n);
extern const RtDevice rt_cuda;
int64_t cuda_call(RtHost *h, int graph, RtTimeFn *time, void *cx);
int64_t cuda_enter(RtHost *h, const RtLoop *loop);
#endif
