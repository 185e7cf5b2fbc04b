/* codegen.h: what the driver and the tests use of codegen/: targets, the program's descriptor, linking.
 *
 * A target's emit() turns a planned Module into an object with one RtCodeObject in it (symbol mantou_object_INDEX);
 * link.c joins objects and the runtime's archive into an executable. */
#ifndef CODEGEN_H
#define CODEGEN_H
#include "../ir/ir.h"
#include "../ir/target.h"

/* ---- kernels of a program, as the descriptor lists them */
/* A matrix of 16-bit elements in memory, which the device copies in boxes by itself: `outer` rows of `inner` elements,
 * times n * mul / div where mul is not 0. */
typedef struct KernelMap { int64_t offset, inner, outer; int32_t box[2], mul, div; } KernelMap;
/* What ranks share: an update, the states that it stores by place in the module, the gradient of its parameter, and
 * whether somebody else reads that whole; or what computes scalars of a gradient, and stores no state. solo: one of
 * several kernels of an update that no element has to itself: one rank runs them, and the first has the states. late:
 * those of them that no step reads but this update. */
typedef struct KernelCut { uint32_t grad; bool whole, solo; VEC(uint32_t) state, late; } KernelCut;
typedef struct KernelSum { int64_t offset; int bytes; } KernelSum; /* of a row: the first one's place */
typedef struct KernelRec {
	const char *name;
	int fn;                      /* index in RtCodeObject.kernel */
	const int64_t *off; int noff;
	const KernelMap *map; int nmap; /* parameters behind the offsets */
	int group;                   /* of the graph: its ops give layers, location, flops */
	int64_t rows; int32_t mul, div; int64_t grain; /* tasks: runtime/descriptor.md */
	bool check;
	bool shares;                 /* a thread's share of the tasks is one call (rt_parallel_shares) */
	int64_t whole;               /* so many tasks in a row have work in common (rt_parallel_whole); 0: none */
	int64_t turns;               /* that tasks are done in, numbered on (rt_parallel_turns); 0: once */
	int threads;                 /* that take part, at most (rt_parallel_few); 0: all */
	/* makes what stays from call to call: run only in a graph's first call (RtRun.prepacked) */
	bool once;
	/* the loss stands after it, and no parameter has changed: asked then whether it is finite (rt_loss) */
	bool loss;
	bool scratch;                /* uses the thread's scratch */
	/* elements of a task, of a kernel that goes through its values as they lie in memory; 0: of another */
	int64_t each;
	const int32_t *size;         /* of a flat kernel of target cuda: bytes an element, by offset; 0: one for all */
	/* a kernel that computes scalars from all `total` elements of a tensor, each of its rows `each` of them as they
	 * lie in memory (0: a nearly equal part); what a row leaves. finish: joins what such a kernel has left, told:
	 * of all ranks */
	int64_t total; const KernelSum *sum; int nsum;
	bool finish, told;
	const KernelCut *cut;        /* of graph update: a rank runs its own tasks (cut.c); NULL */
	bool tell;                   /* before it ranks tell each other what theirs of such kernels have left */
	/* of graph train of a batch in shards: its joins, from 1, where this is one; what early joins need */
	int join;
	bool early;
	double flops, bytes;
} KernelRec;
/* Kernels of Group.variant[variant], of a racing program: in no table that a loop runs. Variant 0 is the group's own,
 * whose kernels are in the graph's table. */
typedef struct VariantKernels { int group; uint32_t variant; VEC(KernelRec) k; } VariantKernels;
/* nonce: so many come first that run once; addressed: bits of the first 32 inputs, those that hold an address for each
 * example */
typedef struct GraphKernels {
	const Graph *g;
	VEC(KernelRec) k;
	VEC(VariantKernels) variant;
	uint32_t nonce, addressed;
} GraphKernels;
/* States first .. last are complete behind graph train's kernel, and not read before kernel `wait` of graph update, the
 * number of its kernels where none reads them; ready: at which part of graph train's predicted time. */
typedef struct Bucket { uint32_t first, last, kernel, wait; double ready; } Bucket;
typedef struct ProgramKernels {
	VEC(GraphKernels *) graph;
	Bucket *bucket;
	uint32_t nbucket;
	int njoin; bool joins_early;
	int64_t scratch_bytes;
} ProgramKernels;
/* buckets.c: the kernels behind which pass overlap's buckets are complete, and before which they are waited for. For
 * targets whose loops call rt_start and rt_wait. */
void program_mark_buckets(const Module *m, ProgramKernels *ks, Arena *a);
/* cut.c: with setting train.shard_optimizer, updates of which each rank makes its part; their number. */
int program_mark_cuts(const Module *m, ProgramKernels *ks, Arena *a);
const char *program_lacks_cuts(const Module *m, int cuts); /* an error where the setting asks for some; NULL */
/* joins.c: what shards exchange before the step is over. NULL: graph train has none. */
const Graph *program_joining(const Module *m);
void program_mark_joins(const Module *m, ProgramKernels *ks, Arena *a);
void program_put_joins(Buf *b, const Graph *g, const GraphKernels *gk, bool early);
/* A list of [bytes, part of graph train's time at which it is complete] for each gradient, in the order of backward. */
void program_gradients(Buf *out, const Module *m, const ProgramKernels *ks, Rates r, Arena *a);

/* The descriptor's JSON (runtime/descriptor.md). ks NULL: no kernel tables (target ref). */
Val graph_loss(const Graph *g);              /* the first result that is a loss; NOVAL */
/* gradient.c: by the module's states, the value that memory holds of a parameter's gradient; NOVAL: none does. */
Val *graph_gradients(const Graph *g, Arena *a);
/* Sets KernelRec.loss in graph train, if the loss is made before the first kernel that changes a parameter, a slot or a
 * sum of gradients. */
void program_mark_loss(const Module *m, ProgramKernels *ks, Arena *a);
/* by value: it holds infinities because a constant does: masks, and what is computed from them */
bool *program_infinite(const Graph *g, Arena *a);
/* of graph train in a step: its shards, or what it accumulates; *shards unless NULL */
int64_t program_calls(const Module *m, int64_t *shards);
void program_json(Buf *b, const Module *m, const char *target, const char *arch, const ProgramKernels *ks);

/* ---- linking */
typedef struct LinkOptions {
	const char *const *objects; int nobject; /* paths; each holds mantou_object_0, _1 ... in this order */
	const char *output;
	const char *argv0;           /* to find librt.a beside the program */
	bool gzip;                   /* the reader may meet gzip: librtgz.a and zlib */
	bool images;                 /* the reader meets images: librtimages.a, libjpeg and libpng */
	bool distribute;             /* several processes: librtcomm.a */
	bool debug;                  /* symbols and debug information stay */
	bool race;                   /* a racing program: librtrace.a, whose main knows the command race */
} LinkOptions;
/* NULL, or what was tried and what went wrong, in arena. */
const char *link_program(Arena *a, const LinkOptions *o);

/* ---- machines */
const char *bytes_word(Arena *a, int64_t bytes); /* 48K, 2M: with the largest unit of which it is a whole number */

/* ---- targets.def */
extern const Target *const targets[];
extern const int ntargets;
#endif
