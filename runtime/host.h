/* host.h: what the runtime's own files share. Private: generated code sees rt.h only.
 *
 * Errors: a function that can fail returns false after rt_fail(); callers add context with rt_context() on the way up,
 * and the command prints the text once. Only the exhaustion of memory for small tables ends the program on the spot. */
#ifndef RUNTIME_HOST_H
#define RUNTIME_HOST_H
#include "json.h"
#include "rt.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

#define RT_MAX_RANK 8
#define RT_NAME "mantou-runtime 0.1.0"
/* 10^15, of a run: sums and products of such counts with those of a data set do not overflow */
#define RT_MAX_STEPS ((int64_t)1000000000000000)
#define RT_MAX_THREADS 4096
#define RT_COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---------------------------------------------------------------- errors and text (text.c) */
typedef struct RtError { char text[1536]; } RtError;
/* sets the text; returns false */
bool rt_fail(RtError *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* puts "words: " before it; false */
bool rt_context(RtError *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool rt_hint(RtError *e, const char *what);   /* puts "; what" behind it; false */
void *rt_alloc(size_t bytes);                 /* zeroed; exit 1 with a message if there is none */
/* for data: of malloc, in huge pages where it is large; not zeroed; NULL if there is none */
void *rt_large(size_t bytes);
char *rt_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));             /* of rt_alloc */
const char *rt_suggest(const char *name, const char *const *names, int n);               /* nearest, or NULL */
void rt_json_text(FILE *f, const char *s);    /* a JSON string with its quotes */
void rt_json_number(FILE *f, double x, int digits); /* null where JSON has no number for it */
const char *rt_basename(const char *path);
double rt_now(void);                          /* seconds, monotonic */
bool rt_write_all(int fd, const void *bytes, size_t n); /* false with errno set */

/* ---------------------------------------------------------------- files that are written (file.c) */
/* real, temporary: of a file that is replaced; fd -1: none yet */
typedef struct RtOut { const char *path; char *real, *temporary; int fd; } RtOut;
bool rt_out_open(RtOut *o, const char *path, RtError *e);   /* false: nothing to drop */
/* Could the file be written? Asked before the work whose result it is to hold. real: unless NULL, the file's path
 * through links, malloc'd; NULL of a device. */
bool rt_out_could(const char *path, char **real, RtError *e);
void rt_out_clean(const char *real);                        /* removes what killed runs left of it */
bool rt_out_try(const char *path, char **real, RtError *e); /* both; real may be NULL */
bool rt_out_write(RtOut *o, const void *bytes, size_t n, RtError *e);
bool rt_out_sync(RtOut *o, RtError *e);
bool rt_out_end(RtOut *o, bool sync, RtError *e);           /* puts it in its place; false: it has been dropped */
bool rt_out_drop(RtOut *o);                                 /* leaves what was there as it is */
/* through links, there or not; malloc'd; NULL with errno set */
char *rt_file_real(const char *path);
int rt_file_descriptor(const char *path);                   /* 1 of /dev/stdout, 7 of /dev/fd/7; -1 */
typedef struct RtLock { char *path; int fd; } RtLock;
bool rt_lock_take(RtLock *l, const char *path, RtError *e); /* PATH.lock; false where another run holds it */
void rt_lock_release(RtLock *l);
bool rt_lock_file(int fd);                                  /* a file's own lock; false where another run holds it */


/* ---------------------------------------------------------------- samples (stats.c) */
typedef struct RtTiming { double median, least, most; } RtTiming;
RtTiming rt_timing(double *x, int64_t n);     /* sorts them; n > 0 */
double rt_median(const double *x, int64_t n); /* leaves them as they are; NAN of none */

/* ---------------------------------------------------------------- element types (dtype.c) */
typedef struct RtDTypeInfo {
	const char *name;
	int bytes;
	char kind;
	const char *safetensors, *npy;
	double low, high;
} RtDTypeInfo;
extern const RtDTypeInfo rt_dtype[RT_DTYPE_COUNT];
int rt_dtype_named(const char *name);         /* 0 if none */
double rt_dtype_read(int dtype, const uint8_t *at);            /* i64 beyond 2^53 is rounded */
/* rounds to nearest even; integers truncate and saturate, NaN to 0 */
void rt_dtype_write(int dtype, uint8_t *at, double x);
/* n elements of one type to another. An integer that the other integer type cannot hold is refused: *bad is its
 * index. */
bool rt_dtype_convert(int to, uint8_t *out, int from, const uint8_t *in, int64_t n, bool swap, int64_t *bad);
float rt_bf16_to_f32(uint16_t h);
float rt_f16_to_f32(uint16_t h);
uint16_t rt_f64_to_f16(double x);

/* ---------------------------------------------------------------- the descriptor (program.c) */
typedef struct RtTensor {
	const char *name;
	int dtype, rank;
	int64_t shape[RT_MAX_RANK];
	int64_t mul[RT_MAX_RANK], div[RT_MAX_RANK]; /* results: extent(n) = n * mul / div where mul > 0 */
	int64_t offset;                             /* in the arena; -1 */
	int64_t bytes, count;                       /* of the full shape */
	bool permuted;                              /* states: memory order differs from the logical row-major one */
	int64_t stride[RT_MAX_RANK];                /* elements in memory per logical axis */
} RtTensor;
/* Where element j of the logical row-major order lies, in elements. */
int64_t rt_tensor_place(const RtTensor *t, int64_t j);
/* All elements between memory order (at) and logical order (flat); bytes: of an element. */
void rt_tensor_to_logical(const RtTensor *t, const uint8_t *at, uint8_t *flat);
void rt_tensor_from_logical(const RtTensor *t, uint8_t *at, const uint8_t *flat);

typedef struct RtInput {
	RtTensor t;
	int64_t limit;
	bool has_ignore;
	int64_t ignore; /* a number that may stand beside 0..limit-1 */
	bool infer;
	int64_t example; /* elements of one example */
	int64_t rows;    /* first-axis rows of one example */
} RtInput;
/* SUM: of an evaluation's batches, CARRY: of generate, COPY: of a parameter, in no checkpoint; the second lies where
 * other graphs work */
typedef enum RtStateKind {
#define STATE_KIND(name, word) RT_##name,
#include "kinds.def"
} RtStateKind;
typedef struct RtState { RtTensor t; RtStateKind kind; char init; /* c n u */ double a, b; } RtState;
/* WHOLE: of all batches so far, the last one's counts; BATCH: of a set of one batch only; SET: computed at the end from
 * all examples' KEPT values; TABLE: a vector or matrix of all batches so far */
typedef enum RtResultKind {
#define RESULT_KIND(name, word) RT_##name,
#include "kinds.def"
} RtResultKind;
static inline bool
rt_is_metric(RtResultKind k)
{
	return k == RT_METRIC || k == RT_WHOLE || k == RT_BATCH || k == RT_SET;
}
/* constant: of an output that depends on no input, and so is the same in every batch. value: of a table, the last
 * evaluation's, in logical order */
typedef struct RtResult { RtTensor t; RtResultKind kind; bool constant; double *value; } RtResult;
/* a matrix of 16-bit elements: loops.md */
typedef struct RtMap { int64_t offset, inner, outer, box[2], mul, div; } RtMap;
enum { RT_MAX_MAPS = 2 };       /* of a kernel */
/* What a kernel stores; infinities: it may hold some by what it is computed from */
typedef struct RtMade { RtTensor t; const char *layer, *where; bool infinities; } RtMade;
typedef struct RtGradient { RtTensor t; int state; } RtGradient; /* of a parameter, as a kernel stores it */
/* Of an update that ranks share: elements of a task; by place in the states the gradient and what is stored; whole:
 * all ranks know the whole gradient. Of what makes numbers of a gradient: total elements, of which each row of tasks
 * has `each`, or (0) a nearly equal part; where row 0 leaves what, and bytes of it. solo: of an update that is one
 * rank's: all of its rows, of which one has the states. edge: rank r has tasks [edge[r], edge[r + 1]);
 * NULL: one process. */
typedef struct RtLeft { int64_t at, bytes; } RtLeft;
typedef struct RtCut {
	int64_t each, total;
	RtLeft *left; int nleft;
	int grad, nstate, *state, *size;    /* size: of a device's kernel, bytes an element by offset; NULL */
	bool *late;                         /* by state: no step reads it but the update that stores it */
	bool whole, solo;
	int64_t *edge;
} RtCut;
typedef struct RtRow {          /* one kernel call */
	const char *name, *where, *layers;          /* layers: joined by ", " */
	int32_t fn, noff;
	int64_t *off;
	RtMap *map; int32_t nmap;
	double flops, bytes;
	int64_t rows, mul, div, grain;
	int64_t whole;                              /* tasks with work in common; 0: none */
	int64_t turns;                              /* that the tasks are done in, numbered on; 0: once */
	int64_t threads;                            /* that take part, at most; 0: all */
	bool check, once, shares, loss;             /* loss: after it the step's loss stands */
	bool early; int join;                       /* what early joins need; index of the join that it is, -1 */
	bool plain;                                 /* a contraction, a number at a time: no other kernel takes it */
	RtMade *made; int32_t nmade;
	RtGradient *gradient; int32_t ngradient;
	RtCut *cut;                                 /* of graph update; NULL: all ranks do all of it */
	bool tell;                                  /* before it ranks tell each other what such rows have left */
} RtRow;
enum { RT_SET_ARGS = 5 };
/* A metric of the whole set: its function, and what it keeps: results by number; all examples' values, dense. */
typedef struct RtSet {
	const char *name, *function;
	double *iou; int niou;
	int result, kept[RT_SET_ARGS], nkept;
	uint8_t *at[RT_SET_ARGS];
	int64_t examples, room;
} RtSet;
/* What shards exchange: values at in[k], joined at out[k], `pairs` of them. kernel: the row in whose place; -1 */
typedef struct RtJoin {
	int kernel, dtype, pairs;
	bool moments;
	int64_t count, in[2], out[2];
} RtJoin;
typedef struct RtGraph {
	const char *name;
	bool present;
	int64_t input[RT_MAX_INPUTS], seed, step, rate, first;
	/* bits by input: those that hold the address of each example (target cuda) */
	unsigned addressed;
	int64_t multiple; const char *multiple_at;  /* what a batch must be one of, and why: where */
	RtResult *result; int nresult;
	int loss;                                   /* index of the loss among the results that emit reports, -1 */
	/* all but outputs */
	int64_t scalar_offset[RT_MAX_RESULTS];
	int32_t scalar_dtype[RT_MAX_RESULTS];
	int scalar[RT_MAX_RESULTS];
	int nscalar, ntable;
	RtSet *set; int nset;
	RtRow *row; int nrow;
	RtJoin *join; int njoin;                    /* of graph train of a batch in shards */
	bool early;                                 /* they depend on the data alone */
} RtGraph;
typedef enum RtLoopKind {
	RT_L_SHUFFLE, RT_L_REPEAT, RT_L_END, RT_L_BATCH, RT_L_RATE, RT_L_CALL, RT_L_EMIT, RT_L_POLL, RT_L_MERGE
} RtLoopKind;
/* repeat: counted = "count", shards = "shards", end: its end's index */
typedef struct RtLoopOp { RtLoopKind kind; int graph, end; bool counted, shards; int64_t count; } RtLoopOp;
typedef struct RtLoop { RtLoopOp *op; int n, reports; } RtLoop; /* reports: the graph whose results it emits */
enum { RT_G_TRAIN, RT_G_UPDATE, RT_G_EVAL, RT_G_INFER, RT_G_BEGIN, RT_G_STEP, RT_G_HOP, RT_G_SHARE, RT_G_COUNT };
extern const char *const rt_graph_names[RT_G_COUNT];
/* called between the calls of graph step, of which what is made once must stand */
static inline bool rt_graph_between(int graph) { return graph == RT_G_HOP || graph == RT_G_SHARE; }
/* mul > 0: the limit is n * mul / div */
typedef struct RtCheck { const char *what, *where; int64_t limit, mul, div, per_example; } RtCheck;
typedef enum RtRateKind {
	RT_RATE_CONSTANT, RT_RATE_POLY, RT_RATE_COSINE, RT_RATE_LINEAR, RT_RATE_STEP, RT_RATE_ONE_CYCLE,
} RtRateKind;
typedef struct RtRate {
	RtRateKind kind;
	double rate, from, peak, to, power, warmup_epochs, warmup_steps, factor, pct_start, div_factor,
	        final_div_factor;
	bool three_phase, straight;                 /* of one_cycle */
	double *at; int nat;
} RtRate;
typedef struct RtReader {
	const char *kind;
	const char **train, **test;
	int ntrain, ntest;
	int64_t length, examples;
	const Json *json; /* all of its arguments */
} RtReader;

/* Of gradients (processes.md): complete behind that row of graph train; not read before the row `wait` of graph
 * update, which may be its number of rows. */
typedef struct RtBucket { int64_t offset, bytes; int kernel, wait; double ready; } RtBucket;
typedef struct RtProgram {
	JsonDoc *doc;
	const char *model, *target, *arch, *precision, *source_hash, *full_only, *one_batch;
	/* sink: -1 epoch, 0 off, N; accumulate: calls of graph train a step */
	int64_t batch, seed, epochs, sink, accumulate;
	/* of a step's batch, `batch` examples each; 1: it is not cut, else also `accumulate` */
	int64_t shards;
	int threads_start;                             /* that short steps begin with; 0: all */
	bool shuffle, narrow;                          /* narrow: products of bf16 or f16 */
	int64_t memory_total, arena_bytes, scratch_bytes, fault_offset, parameters, parameter_bytes;
	double gflop_per_step, bytes_per_step;
	RtRate rate;
	RtReader reader;
	/* token NULL: there is no such section; end -1: none; carried: some op carries a state along T; places: the
	 * graph step knows no more than T places; whole: why there is no such graph, NULL */
	struct { const char *token, *logits, *whole; int64_t start, end; bool carried, places; } generate;
	RtInput *input; int ninput;
	RtState *state; int nstate;
	RtCheck *check; int ncheck;
	RtBucket *bucket; int nbucket;
	/* what buckets are cut for: so many processes, 0: nobody said; seconds, bytes/s */
	struct { int64_t processes; double start, rate; } link;
	RtGraph graph[RT_G_COUNT];
	RtLoop train, eval, infer;
} RtProgram;
bool rt_program_read(RtProgram *p, const char *text, RtError *e);
/* Fills g->row. nkernel: functions of the code object, -1: not known yet. */
bool rt_program_rows(RtGraph *g, const Json *list, int nkernel, RtError *e);
/* extents for n examples; returns the elements */
int64_t rt_tensor_at(const RtTensor *t, int64_t n, int64_t shape[RT_MAX_RANK]);
int64_t rt_row_tasks(const RtRow *r, int64_t n);
/* May so many examples run in batches of this graph, the last one smaller? False, and why not, where it takes only
 * whole batches or only multiples of a number. what: "test examples" */
bool rt_batches_fit(const RtProgram *p, const RtGraph *g, int64_t examples, const char *what, RtError *e);
/* Does every metric have a value on so many test examples? */
bool rt_evaluation_fits(const RtProgram *p, int64_t examples, RtError *e);

/* ---------------------------------------------------------------- options (options.c) */
typedef enum RtCommand {
	RT_C_TRAIN, RT_C_EVAL, RT_C_INFER, RT_C_GENERATE, RT_C_BENCH, RT_C_INFO, RT_C_COUNT,
} RtCommand;
#define RT_MAX_SETTINGS 32
typedef struct RtNamed { const char *name, *file; } RtNamed;
typedef struct RtOptions {
	RtCommand command;
	const char *program;                        /* argv[0]'s last part */
	const char *data, *words, *weights, *names, *resume, *save, *log, *mode, *keep, *by;
	const char *profile; bool profiling, top;   /* top: --profile=top */
	bool partial, replan, goes_on, no_save, overwrite, no_eval, allow_nan, synthetic, quiet, json, whole, reader;
	bool latency;
	/* -1: not given; sink -2 */
	int64_t epochs, steps, stop, every, sink, threads, seed, warmup, bench_steps, repeat, readers;
	int64_t patience;                           /* of --stop-after-worse; 0: not given */
	const char *watch; int64_t watch_every;     /* 0: not given */
	/* of several processes: the launcher is ignored; seconds that a rank may be silent, 0: any, -1 */
	bool alone; int64_t silence;
	const char *exchange;                       /* "tree", "messages", "library"; NULL: not given */
	int64_t processes;                          /* of info; 0: not given */
	bool no_exchange, only_exchange, links;
	bool has_seed;
	const char *prompt;                         /* of generate */
	int64_t length, top_k, beam, samples;       /* -1: not given */
	double temperature, top_p, length_penalty;
	bool usage; const char *usage_file; double interval; /* seconds */
	RtNamed *input, *output; int ninput, noutput; /* in the order of the options; names may occur again */
	int nargument;                              /* of the command line: so many of these at most */
	const char *rate, *set[RT_MAX_SETTINGS]; int nset; /* --set: NAME=VALUE */
} RtOptions;
/* Exit status, or -1 to go on. Prints help, version and usage errors. */
int rt_options_read(RtOptions *o, int argc, char **argv);

/* ---------------------------------------------------------------- files of infer (rounds.c) */
/* An input or output: a file for each round, or one for all. star: what the * of its name stands for; NULL */
typedef struct RtGiven { const char *name; char **file, **star; int n; } RtGiven;
/* rounds: so many, but where streams: an input is standard input then, and there are as many rounds as it holds */
typedef struct RtRounds { RtGiven *input, *output; int ninput, noutput; int64_t rounds; bool streams; } RtRounds;
bool rt_rounds(RtRounds *r, const RtOptions *o, RtError *e); /* also tries whether the outputs can be written */
void rt_rounds_free(RtRounds *r);
static inline bool
rt_is_stream(const char *file)
{
	return file[0] == '-' && !file[1];
}

/* ---------------------------------------------------------------- threads (threads.c) */
typedef struct RtThreads RtThreads;
typedef void RtWork(void *cx, int64_t t0, int64_t t1, int thread);
RtThreads *rt_threads_new(int n, RtError *e); /* n - 1 threads beside the caller; NULL after rt_fail */
void rt_threads_run(RtThreads *p, RtWork *work, void *cx, int64_t tasks); /* all tasks, then a barrier */
/* the same, each thread's share in one call: for tasks that cost less together */
void rt_threads_run_shares(RtThreads *p, RtWork *work, void *cx, int64_t tasks);
/* the same; each `whole` tasks stay together where there are enough of them (rt_parallel_whole) */
void rt_threads_run_whole(RtThreads *p, RtWork *work, void *cx, int64_t tasks, int64_t whole);
void rt_threads_free(RtThreads *p);
int rt_threads_count(const RtThreads *p);
/* Between two looks of who spins. */
static inline void
rt_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("" ::: "memory");
#endif
}

void rt_threads_use(RtThreads *p, int n);     /* between jobs: how many take part from now on, 1 to all */
int rt_threads_used(const RtThreads *p);
int rt_cpus(void);                            /* that this process may run on */

/* ---------------------------------------------------------------- .npy (npy.c) */
typedef struct RtNpy {
	int dtype;
	bool swap;
	int rank;
	int64_t shape[RT_MAX_RANK];
	int64_t count;
	size_t data; /* byte where the elements begin */
} RtNpy;
/* also checks that the elements are all there */
bool rt_npy_header(RtNpy *h, const uint8_t *file, size_t bytes, RtError *e);
/* The next array of a stream, malloc'd, also where it fails; end: there is none. */
bool rt_npy_stream(FILE *f, uint8_t **at, size_t *n, bool *end, RtError *e);
bool rt_npy_write(const char *path, int dtype, int rank, const int64_t *shape, const void *data, size_t bytes,
                  RtError *e);

/* ---------------------------------------------------------------- files that are read (data_file.c) */
typedef struct RtFile { char *path; uint8_t *at; size_t n; bool mapped; } RtFile;
bool rt_file_read(RtFile *f, const char *path, RtError *e);  /* whole; gunzips what begins as gzip */
bool rt_file_map(RtFile *f, const char *path, RtError *e);   /* the same, mapped where it is a plain file */
void rt_file_forget(const RtFile *f, size_t from, size_t to); /* gives a mapping's pages back; they can be read again */
void rt_file_free(RtFile *f);
/* In librtgz.a: *out is malloc'd. Absent where the link left it out. */
bool rt_gzip_read(const uint8_t *in, size_t n, uint8_t **out, size_t *nout, char *why, size_t why_bytes)
        __attribute__((weak));
typedef struct RtPaths { char **at; int n; } RtPaths;
/* in name order; none is an error */
bool rt_paths_find(RtPaths *p, const char *folder, const char *pattern, RtError *e);
void rt_paths_free(RtPaths *p);

/* ---------------------------------------------------------------- data sets (data.c, data_*.c, ring.c) */
/* Memory of one thread, for readers that make examples: grows as it is asked for, NULL where there is none. */
enum { RT_SCRATCH = 6 };
typedef struct RtScratch { void *at[RT_SCRATCH]; size_t room[RT_SCRATCH]; } RtScratch;
void *rt_scratch(RtScratch *s, int which, size_t bytes);
void rt_scratch_free(RtScratch *s);
/* Examples first .. first + examples - 1 of an input: elements of one type, an example every `stride` bytes. */
typedef struct RtPart {
	const uint8_t *at;
	int dtype;
	bool swap;
	int64_t first, examples, stride;
	const char *file;
} RtPart;
typedef struct RtColumn { RtPart *part; int n, room; } RtColumn;
typedef struct RtData RtData;
/* Makes an example: input k to out[k], in its own type; out[k] may be NULL. Any thread, any order, always the same. */
typedef bool RtMakeFn(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e);
struct RtData {
	const RtProgram *p;
	const char *what;                           /* "training" or "test", for messages */
	bool train;
	int64_t examples, seed;
	int64_t bytes[RT_MAX_INPUTS];               /* of an example of an input in its own type; 0: it is not fed */
	RtColumn column[RT_MAX_INPUTS];             /* of inputs that stand in files; joined they are the set */
	RtFile **file; int nfile;                   /* that stay open */
	int64_t mapped, touched;                    /* bytes of mapped files; of pages that were asked for, so far */
	int64_t others;                             /* of files in memory before it was opened; -1: unknown */
	RtMakeFn *make;                             /* instead of columns */
	void *maker; void (*maker_free)(void *maker);
	bool (*words)(const RtData *d, const char *path, RtError *e); /* writes the vocabulary; NULL: there is none */
	/* threads that fill a ring of batches; 0: who asks for a batch gathers it */
	int readers;
	struct RtRing *ring;
};
/* A reader opens the files of one set and says where its examples are. */
typedef bool RtReadFn(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e);
/* Weak: in librtimages.a, which is linked where the model's reader needs it. */
#define READER(name, params) RtReadFn rt_read_##name;
#define IMAGE_READER(name, params) RtReadFn rt_read_##name __attribute__((weak));
#include "readers.def"
bool rt_data_load(const RtProgram *p, const RtOptions *o, bool train, RtData *d, RtError *e);
bool rt_data_synthetic(const RtProgram *p, int64_t seed, int64_t examples, RtData *d, RtError *e);
void rt_data_free(RtData *d);
/* Example numbers are those of the set. out: of one input, or of all (NULL: not wanted). */
bool rt_data_copy(const RtData *d, int k, int64_t example, int64_t n, uint8_t *out, RtError *e);
bool rt_data_example(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e);
/* so many have been read: gives pages back where there are too many */
void rt_data_touch(RtData *d, int64_t examples);
/* For readers. A file that stays open with the set; NULL after rt_fail. */
RtFile *rt_data_file(RtData *d, const char *path, RtError *e);
/* The next .npy array of a stream. NULL after rt_fail, or at the stream's end: *end */
RtFile *rt_data_stream(RtData *d, FILE *from, const char *name, bool *end, RtError *e);
/* The next examples of input k: checked against its limit and type. f: where they stand; NULL: in memory. */
bool rt_data_add(RtData *d, int k, const RtPart *part, const RtFile *f, RtError *e);
/* ring.c: batches that threads make ready. */
typedef struct RtRing RtRing;
/* What follows an epoch's last batch: nothing, the next epoch, the same again. */
typedef enum RtAfter { RT_AFTER_NOTHING, RT_AFTER_EPOCH, RT_AFTER_WRAP } RtAfter;
/* per: 0, or of so many in a row those from lo to below hi are taken */
typedef struct RtCourse { int64_t seed, batch, batches, per, lo, hi; bool shuffle; RtAfter after; } RtCourse;
RtRing *rt_ring_new(RtData *d, const RtCourse *c, RtError *e);
/* Waits for a batch, which stays until the next call; n: its examples. False after rt_fail, with what its first bad
 * example says. */
/* waited: grows by the seconds until the batch was ready. */
bool rt_ring_take(RtRing *r, int64_t epoch, int64_t index, int64_t n, uint8_t *const **at, double *waited, RtError *e);
void rt_ring_free(RtRing *r);
void rt_shuffle_order(int64_t seed, int64_t epoch, int64_t n, int64_t *order);
/* Parsers of one file, for readers and fuzzing. */
bool rt_cifar_check(const uint8_t *file, size_t n, int record, int label, int classes, const char *name,
                    int64_t *records, RtError *e);
typedef struct RtIdx { int dtype; int rank; int64_t shape[RT_MAX_RANK]; int64_t count; size_t data; } RtIdx;
bool rt_idx_header(RtIdx *h, const uint8_t *file, size_t n, RtError *e);

/* ---------------------------------------------------------------- the host: one executable at work */
typedef enum RtMode { RT_M_IDLE, RT_M_TRAIN, RT_M_EVAL } RtMode;

/* How many of the pool's threads short steps use (pace.c): of each mode, and what was measured last. */
#define PACE_STEPS 16
typedef struct RtPace {
	int start;                                  /* what the first step uses; 0: all */
	/* threads now, and before the comparison under way; steps not to measure; steps measured */
	int used, from, skip, ntook;
	int way;                                    /* what the next comparison is with */
	bool compares;                              /* one is under way */
	int slower, worse;                          /* its steps that were no better than before, plainly worse */
	/* seconds: the step's beginning, the next comparison's, this one's; the time of a step before it, times without
	 * waiting for a batch, what all of them waited */
	double last, rest, began, before, took[PACE_STEPS], waits;
} RtPace;
/* A step begins; waited: what the one before took of it until its batch was ready. */
void rt_pace_step(RtPace p[RT_M_EVAL + 1], RtThreads *t, RtMode mode, double now, double waited);
/* A file that a run saves to. step: of what stands there, -1 */
typedef struct RtSave { char *path; RtLock lock; bool wrote; int64_t step; } RtSave;
/* What --by judges evaluations by (best.c). */
typedef struct RtBest {
	bool on, keeps;                             /* evaluations are judged; the best one's state is saved */
	char *name; bool largest;                   /* "loss" or a metric; whether more is better */
	int result;                                 /* its place among the evaluation's scalars */
	bool any; double value; int64_t epoch;      /* the best so far, */
	int64_t worse, judged;                      /* the evaluations since then; the step of the last, -1 */
	RtSave save;
} RtBest;
/* A number that a run may set (settings.c): of the rate, or of a state, -1. set: it is not the program's own */
typedef struct RtSetting { const char *name; double *rate; int state; double value; bool set; } RtSetting;
typedef struct RtHost RtHost;
/* of one thread, in the kernel that runs; end 0: it took no part */
typedef struct RtLane { double begin, end; } RtLane;

/* ---------------------------------------------------------------- metrics of a whole set (set.c) */
void rt_sets_begin(RtGraph *g);
bool rt_sets_take(RtHost *h, RtGraph *g);  /* of the batch that has run */
bool rt_sets_value(const RtGraph *g, int64_t batch, int result, double *value, RtError *e);

/* ---------------------------------------------------------------- metrics of several values (table.c) */
bool rt_evaluates(const RtProgram *p);             /* has an evaluation anything to report? */
bool rt_tables_take(RtHost *h, const RtGraph *g);  /* behind the last batch of an evaluation */
void rt_tables_print(const RtGraph *g);
void rt_tables_json(const RtGraph *g, FILE *f, const char *before); /* "NAME": [..] of each, `before` the first */

typedef void RtTimeFn(void *cx, const RtGraph *g, int row, double begin, double end); /* clock: rt_now's */
/* What runs a code object's kernels in place of the CPU. The host's arena keeps the layout of the device's: states,
 * inputs and outputs stand at the same offsets in both. States go up when run->prepacked is 0, inputs when h->fresh is
 * set, before a call; what the host wants to read it asks for. */
typedef struct RtDevice {
	/* finds driver and device, sets h->device_name; false after rt_fail */
	bool (*ready)(RtHost *h);
	/* what the code object needs that is not there; NULL */
	const char *(*missing)(RtHost *h, const RtCodeObject *m, char *text, size_t n);
	bool (*open)(RtHost *h);                    /* code and memory, before the first call; false after rt_fail */
	/* a loop's `call`, kernel by kernel; then scalars stand in the host's arena */
	int64_t (*call)(RtHost *h, int graph, RtTimeFn *time, void *cx);
	/* an entry point: steps [step, until). RT_ERROR after rt_fail */
	int64_t (*enter)(RtHost *h, const RtLoop *loop);
	/* the device's arena to the host's; false after rt_fail */
	bool (*fetch)(RtHost *h, int64_t offset, int64_t bytes);
	void (*close)(RtHost *h);
	/* the parts of a call, for the command race and finite.c; false after rt_fail. begin: states, inputs and
	 * scalars go up; rows: launched behind what was, not waited for; mark: number k, behind what was launched;
	 * wait: for all of it; end: the scalars come down, and the fault */
	bool (*begin)(RtHost *h, int graph);
	bool (*rows)(RtHost *h, const RtRow *row, int n);
	bool (*mark)(RtHost *h, int k);
	bool (*wait)(RtHost *h);
	bool (*end)(RtHost *h, int graph);
	double (*between)(RtHost *h, int a, int b); /* seconds from mark to mark, after wait; NAN after rt_fail */
	bool (*put)(RtHost *h, int64_t offset, int64_t bytes); /* the host's arena to the device's, as it is */
	/* train.shards > 1. shards: all of a step, graph train of each and their sums; merge: rt_merge's work */
	int64_t (*shards)(RtHost *h, RtTimeFn *time, void *cx);
	bool (*merge)(RtHost *h);
	/* of several processes: n exchanges of all sums, as a step's, with nothing beside them; waits for all of it */
	bool (*exchange)(RtHost *h, int64_t n);
	/* seconds in which bytes go to another process's device and as many come from there, which does the same; in
	 * which as many bytes of f32 are added. False after rt_fail */
	bool (*link)(RtHost *h, int other, int64_t bytes, double *seconds);
	bool (*adds)(RtHost *h, int64_t bytes, double *seconds);
	void (*forget)(RtHost *h);                  /* steps are made anew: an option has changed */
	/* blocks of the row's kernel that a multiprocessor holds, by the driver; 0: unknown */
	int (*resident)(RtHost *h, const RtRow *row);
} RtDevice;

/* ---------------------------------------------------------------- the sum over the shards of a batch (exchange.c) */
typedef struct RtNode { int64_t a, n; } RtNode; /* shards [a, a + n) */
/* Elements of one state, at a byte of the range. owned: of a gradient that only those know who apply it. */
typedef struct RtSpan { int64_t at, n; int dtype; bool owned; } RtSpan;
enum { RT_MAX_NODES = 128 };
/* out = left + right, by number of the room; or the states themselves; left RT_NOTHING: a copy */
enum { RT_STATES = -1, RT_NOTHING = -2 };
typedef struct RtAdd { int out, left, right; } RtAdd;
/* of a rank; slot: of the first among those that arrive */
typedef struct RtPieces { int64_t lo, hi; RtNode *node; int n; int64_t slot; } RtPieces;
typedef struct RtExtra { int rank; int64_t from, to; } RtExtra; /* bytes of the range */
typedef struct RtSums {
	int64_t shards, lo, hi;                     /* in all; those of this process are [lo, hi) */
	int64_t begin, bytes;                       /* the states of kind grad in the arena */
	RtSpan *part; int64_t npart;
	RtNode node[RT_MAX_NODES]; int nnode;       /* complete, of this process's shards so far, from the left */
	/* where their sums stand; the last one's behind the last shard in the arena */
	uint8_t *room[RT_MAX_NODES]; int deepest;
	int64_t joined;                             /* the step whose sums have been joined last; -1 */
	/* of several processes: room for what arrives, bytes of a part of a chunk */
	uint8_t *in; int64_t width, arrives;        /* arrives: bytes of `in` */
	struct RtMsg *msg;
	RtBucket *bucket; int nbucket;              /* of the program; one where it has none */
	int started, waited;                        /* of this step: those under way, those that have arrived */
	int64_t *number;                            /* by bucket: the exchange thread's job */
	bool overlap;                               /* buckets go while the shard still runs, and the update */
	/* seconds of the exchanges, and those that the loop waited for them; for what all say to all: of both */
	double busy, exposed, voting;
	/* both, and bytes of sums, up to the beginning of the epoch */
	double told_busy, told_exposed;
	int64_t moved, told_moved;
	RtPieces *rank;                             /* by rank */
	struct RtVote *vote; struct RtMsg *say;     /* by rank; what carries them */
	int64_t *vote_at;                           /* by rank: bytes before its vote */
	struct RtWindow *window;                    /* ranks see each other's sums; NULL: these travel */
	/* --shard-optimizer: by bucket * (ranks + 1) + rank where the rank's part of the range begins; -1: parts are
	 * equal */
	int64_t *edge;
	RtExtra *extra; int nextra;                 /* sums that others own, and a rank needs */
} RtSums;

/* ---------------------------------------------------------------- updates that ranks share (cut.c) */
typedef struct RtOther { int64_t at, n; } RtOther;
typedef struct RtTold { int64_t from, at, n; } RtTold; /* bytes of the arena; where they lie in what all tell */
typedef struct RtCuts {
	int n;                                      /* rows of graph update that have a part for each rank */
	RtRow **beside; int nbeside;                /* those of one rank's updates, but the ones with states */
	/* rows that make numbers of gradients; what all leave, rank by rank: its bytes, and where each rank's begin,
	 * there and among its places */
	RtRow **norm; int nnorm;
	uint8_t *told; int64_t *told_at; struct RtMsg *tell; int ntell;
	RtTold *place; int *place_at;
	struct RtMsg *spread; int nspread;          /* the parameters behind an update, of all ranks to all */
	struct RtMsg *late; int nlate;              /* those that no step reads, before somebody else does */
	bool behind;                                /* others have newer ones of these */
	struct RtMsg *collect; int ncollect;        /* the slots, to rank 0 */
	int64_t spared, moved;                      /* bytes of slots that are others'; of parameters, a step */
	int64_t begin, end;                         /* where slots stand in the arena */
	RtOther *other; int nother;                 /* those of other ranks, by place */
	bool saves, named;                          /* rank 0 writes checkpoints; --save names one */
	bool held; int64_t collected;               /* rank 0 has all slots; of the step; -1 */
} RtCuts;
bool rt_cuts_open(RtHost *h);                 /* behind the buckets; false after rt_fail */
bool rt_cuts_cut(const RtHost *h);            /* this process has a part of the slots */
/* Of a row with a cut this rank's elements [from, to), its number of tasks. */
int64_t rt_cuts_part(const RtHost *h, const RtRow *r, int64_t *from, int64_t *to);
/* The next bytes [*at, *at + *n) of the arena from *at to `end` that are not other ranks' slots; false: none are. */
bool rt_cuts_own(const RtHost *h, int64_t *at, int64_t end, int64_t *n);
bool rt_cuts_collect(RtHost *h, int64_t step);  /* before a checkpoint; all ranks alike; false after rt_fail */
void rt_cuts_late(RtHost *h);                   /* before parameters are read outside of steps; all ranks alike */
void rt_cuts_over(RtHost *h);                 /* a step begins behind a checkpoint: rank 0 needs the slots no more */
void rt_cuts_release(RtHost *h, int state);   /* the memory of the slots that are others'; -1: of all states */
/* The node whose half x is, and whether it is the right one; false of the root, and of what is no node. */
bool rt_tree_parent(int64_t shards, RtNode x, RtNode *parent, bool *right);
void rt_sum(int dtype, uint8_t *out, const uint8_t *left, const uint8_t *right, int64_t n);
bool rt_exchange_library(const RtHost *h);    /* --exchange library */
/* links.c: bench --links, bench --only-exchange, of several processes; false after rt_fail */
bool rt_links(RtHost *h);
bool rt_only_exchange(RtHost *h);
/* Several processes begin a measurement together: none counts what it waits for one that begins late. */
void rt_together(RtHost *h);
bool rt_exchanges(RtHost *h, int64_t n);      /* n of them, as steps would ask for them; false after rt_fail */
/* The exchanges of the epoch that ends: into the log's line; a warning where they are slow. seconds: of the epoch */
void rt_exchange_log(const RtHost *h);
void rt_exchange_warn(RtHost *h, int64_t epoch, double seconds);
bool rt_sums_open(RtHost *h);                 /* memory, before the first step; false after rt_fail */
/* Of several processes, once all have their memory: how sums will go from one to another. False after rt_fail. */
bool rt_sums_meet(RtHost *h);
/* What is added behind shard k, shards coming in order: into add, RT_MAX_NODES of them; their number. */
int rt_merge_adds(RtSums *s, int64_t k, RtAdd *add);
/* The largest nodes of shards [lo, hi), from the left; their number. out: RT_MAX_NODES of them. */
int rt_tree_pieces(int64_t shards, int64_t lo, int64_t hi, RtNode *out);
/* This process met a fault, or its own loop ended with one, before the step's sums were joined: the others hear of it.
 * RT_FAULT, with the lowest shard's fault in the arena. */
int64_t rt_sums_fault(RtHost *h);

/* ------------------------------------------------------- what shards exchange within a step (joins.c) */
typedef struct RtJoins {
	int copies;                                 /* of the values of graph train: shards that run in step; else 1 */
	size_t stride;                              /* bytes between copies */
	int64_t work;                               /* from here on, and in the sums' range, each shard has its own */
	int64_t **off, (*input)[RT_MAX_INPUTS];     /* by shard * rows + row, by shard */
	uint8_t *value, *root, *slot;               /* by shard; joined; of all ranks' pieces */
	int64_t room, slots, *first;                /* bytes of a shard; pieces of all ranks; by rank its first */
	uint8_t *data; int64_t data_bytes;          /* early: the inputs of each shard, */
	int64_t bytes;                              /* of all of these together */
	int64_t counted;                            /* of the step whose joins are done; -1 */
} RtJoins;
size_t rt_joins_room(RtHost *h);              /* bytes of the arena, from the number of shards of this process */
int rt_joins_unit(const RtGraph *g, int a);   /* the end of joins [a, ..) that are exchanged together */
int64_t rt_join_bytes(const RtJoin *j);       /* of what a shard brings */
int64_t rt_joins_said(const RtHost *h, int rank); /* bytes that the rank says at once at most */
bool rt_joins_open(RtHost *h);                /* behind rt_sums_open; false after rt_fail */
bool rt_joins_in_step(const RtHost *h);       /* a process's shards run in step */
/* rt_batch's work where the shard's inputs stand ready from rt_count; false: they do not */
bool rt_joins_batch(RtHost *h, const int64_t *input_offset, int64_t ninput);

struct RtHost {
	const RtCodeObject *const *objects; int nobjects;
	const RtCodeObject *object;
	uint64_t able;                              /* by code object: this CPU runs it; of a device the chosen one */
	void *device; const char *device_name;      /* of object->device, */
	size_t device_bytes;                        /* and what arena and data sets have of its memory */
	bool rewritten;                             /* states were made or read since copies of them were */
	bool fresh;                                 /* inputs stand in the host's arena that the device has not got */
	RtProgram program;
	RtOptions opt;
	RtRun run;
	RtSums sums;
	RtCuts cuts;
	RtJoins joins;
	RtThreads *threads;
	RtPace pace[RT_M_EVAL + 1];
	double waited;                              /* seconds for batches since the last step began */
	const struct RtComm *comm;                  /* several processes (comm.h); NULL: linked without */
	int rank, ranks;                            /* of this process, of all: 0, 1 alone */
	/* several devices: odd while this one waits for the others; then why, in their library's words */
	const volatile int64_t *mark; const char *(*stuck)(RtHost *h);
	bool agreed;                                /* h->error is known to all ranks, and the same */
	FILE *err;                                  /* of several processes: stderr as it was, for what ends the job */
	/* of several processes: the signal that all have agreed to stop for */
	int stop;
	RtLane *lane;                               /* by thread, while a trace is taken; NULL */
	bool profiles;                              /* kernels are timed one by one: the number of threads stays */
	uint8_t **scratch;                          /* by thread */
	RtError error;
	double start;                               /* rt_now() at the program's start */
	int64_t parent;                             /* who had started this process then */
	size_t arena_bytes;
	/* data */
	RtData train, test;
	bool have_train, have_test;
	RtData *data; bool shuffle;                 /* in use */
	/* out of an entry point, where a batch cannot be read; NULL outside of one */
	jmp_buf *escape;
	/* the loop */
	RtMode mode;
	int64_t accumulate, total, warmup;          /* T and W; accumulate is 1 outside training */
	int64_t *order, order_epoch;                /* order's room; -1: none shuffled yet */
	bool wrap;                                  /* bench: batches go round and round */
	const RtGraph *graph;                       /* whose scalars the ring's records hold */
	/* telemetry, under lock */
	pthread_mutex_t lock;
	double sum[RT_MAX_RESULTS], weight;         /* of the epoch or evaluation */
	int64_t drained;                            /* records */
	RtRecord *kept; int64_t nkept;              /* of an evaluation by several processes: this one's; NULL */
	int64_t last_step; double last_loss;
	FILE *log; int log_error;                   /* errno of the first line that could not be written, 0 */
	/* stopping and saving */
	int signal;                                 /* atomic; 0 none */
	int64_t first_step, stop_step, next_save, completed; /* first_step: where this process began */
	bool stopped_by_stop;
	RtSave save;
	dev_t resumed_dev; ino_t resumed_ino; bool resumed;
	RtBest best;
	struct RtWatch *watch; bool watching;       /* --watch (watch.c); NULL: nothing; this step is watched */
	RtSetting setting[RT_MAX_SETTINGS]; int nsetting;
	bool bar_shown, bar_over;                   /* a bar stands on the terminal; none may be drawn any more */
	double epoch_start;                         /* when this process began the epoch, */
	int64_t epoch_from;                         /* and its first step of it */
};
static inline RtHost *rt_host(const RtRun *run) { return run->host; }

/* host.c: memory, code objects, entry points */
/* picks the code object, reads its descriptor */
bool rt_host_open(RtHost *h, const RtCodeObject *const *objects, int nobjects);
bool rt_host_take(RtHost *h, int object);           /* another one of them, before memory is made for it */
bool rt_host_memory(RtHost *h, int64_t order_examples); /* arena, scratch, ring, order, threads */
void rt_host_use(RtHost *h, RtMode mode, RtData *d, bool shuffle); /* points run at a data set */
void rt_host_pace(RtHost *h);                 /* a step begins: rt_pace_step, where it is the CPU's */
int64_t rt_host_enter(RtHost *h, RtEntry *entry, const RtLoop *loop, bool walk); /* runs to run->until */
/* makes the host's arena hold what the device's does; false after rt_fail */
bool rt_host_fetch(RtHost *h, int64_t offset, int64_t bytes);
void rt_host_fault(RtHost *h);                          /* sets h->error from the fault record */
int64_t rt_peak_rss(void);
/* has the system find the arena's memory, by all threads at once; all zeros after it */
void rt_host_touch(RtHost *h);
/* init.c */
bool rt_host_init_state(RtHost *h);                     /* initial values of everything; the arena is new */
void rt_host_init_average(RtHost *h, int state);        /* an average is its parameter */
void rt_host_copies(RtHost *h);                         /* of parameters, if states are rewritten */
int rt_state_averaged(const RtProgram *p, int state);   /* the parameter that state NAME.average is the mean of, -1 */
/* loop.c */
int64_t rt_loop_walk(RtHost *h, const RtLoop *loop);    /* the --sink off walker */
int64_t rt_host_call(RtHost *h, int graph);    /* a call of a graph that no loop has; RtStatus */
/* of a program for the CPU: all tasks of a kernel, its buffers at `off` */
void rt_row_run(RtHost *h, const RtRow *r, const int64_t *off);
int64_t rt_loop_call(RtHost *h, int graph, RtTimeFn *time, void *cx); /* one call, kernel by kernel */
int64_t rt_joined_step(RtHost *h, RtTimeFn *time, void *cx); /* the shards of a step in step, batches to merge */
int64_t rt_sink(const RtHost *h);                       /* the option, else the model's setting: -1 epoch, 0 off, N */
/* after RT_NOT_FINITE: what was the first (finite.c), malloc'd; NULL: not known */
char *rt_not_finite(RtHost *h);
double rt_rate_at(const RtHost *h, int64_t step);
/* watch.c: --watch */
bool rt_watch_prepare(RtHost *h);                       /* before anything is read; false after rt_fail */
/* is step run->step to be watched? *until is lowered to its end, or to the beginning of the next one that is */
bool rt_watch_due(const RtHost *h, int64_t *until);
void rt_watch_begin(RtHost *h);
int64_t rt_watch_call(RtHost *h, int graph);            /* rt_loop_call, in a watched step */
void rt_watch_end(RtHost *h, int64_t step);             /* the step has run: says what was seen */
/* rt_batch to base + offset; false after rt_fail */
bool rt_gather(RtRun *run, uint8_t *base, const int64_t *input_offset, int64_t ninput);
void rt_publish(RtRun *run, const RtRecord *r);         /* into the ring */
int rt_stops(const RtHost *h);                          /* the signal that ends this run; 0: none */
void rt_set_stop(RtHost *h);                            /* stop_at: the next step that wants a look, 0 after a signal */
void rt_drain(RtHost *h);                               /* takes all records from the ring */
/* checkpoint.c, safetensors.c */
/* from: what the file calls it, where a table says so (names.c) */
typedef struct RtStEntry {
	const char *name, *dtype, *from;
	int rank;
	int64_t shape[RT_MAX_RANK];
	uint64_t begin, end;
} RtStEntry;
typedef struct RtSt {
	JsonDoc *doc;
	const Json *meta;
	RtStEntry *entry;
	int nentry;
	const uint8_t *data;
	size_t data_bytes;
} RtSt;
bool rt_st_parse(RtSt *s, const uint8_t *file, size_t n, RtError *e);
void rt_st_free(RtSt *s);
uint64_t rt_hash(uint64_t h, const void *p, size_t n);
#define RT_HASH_START 0xcbf29ce484222325ull
bool rt_checkpoint_save(RtHost *h, int64_t step);
bool rt_checkpoint_save_best(RtHost *h, int64_t step);   /* to its file, as it is now */
/* Can FILE be saved, and FILE~? Before anything is read; FILE.lock is this run's from here to rt_checkpoint_end. */
bool rt_checkpoint_try(RtHost *h);
/* the run's seed is the file's, if it can be read: before data that depend on it */
void rt_checkpoint_seed(RtHost *h, const char *path);
void rt_checkpoint_end(RtHost *h);
bool rt_checkpoint_weights(RtHost *h, const char *path, bool partial);
bool rt_names_apply(RtHost *h, RtSt *st, bool partial);      /* --names: entries take the model's names (names.c) */
typedef struct RtResume { int64_t step, seed, total, batch, shards, examples; } RtResume;
/* states, and the epoch's partial sums into h->sum */
bool rt_checkpoint_resume(RtHost *h, const char *path, RtResume *r);
/* best.c: --keep best, --stop-after-worse */
bool rt_best_prepare(RtHost *h);                        /* before anything is read; false after rt_fail */
/* data are read: can every epoch be judged? false after rt_fail */
bool rt_best_begin(RtHost *h);
/* after an evaluation; true: better than all before */
bool rt_best_judge(RtHost *h, const double *mean, int64_t epoch);
bool rt_best_over(const RtHost *h);                     /* --stop-after-worse ends the run */
void rt_best_write(const RtHost *h, FILE *f);           /* into a checkpoint's metadata */
void rt_best_read(RtHost *h, const Json *meta);
/* settings.c: --rate, --set */
/* what may be set, and what the command line sets; false after rt_fail */
bool rt_settings_prepare(RtHost *h);
void rt_settings_apply(RtHost *h);                      /* into the rate, and the states in the arena */
bool rt_settings_any(const RtHost *h);                  /* one is not the program's own */
void rt_settings_meta(const RtHost *h, FILE *f);        /* into a checkpoint's metadata */
void rt_settings_resume(RtHost *h, const Json *meta, int64_t step); /* from there */
void rt_settings_json(const RtHost *h, FILE *f);
/* progress.c */
void rt_progress_draw(RtHost *h);
void rt_progress_clear(RtHost *h);
void rt_progress_end(RtHost *h);
void rt_progress_flush(RtHost *h);                      /* standard output */
void rt_log_record(RtHost *h, const RtRecord *r);
void rt_log_flush(RtHost *h);                           /* nothing without a log; a failure is kept in log_error */
void rt_overflow_report(RtHost *h, const RtRecord *r);
bool rt_log_open(RtHost *h, int64_t from_step, int64_t steps_per_epoch);
void rt_epoch_report(RtHost *h, int64_t epoch, const double *mean, double seconds, double speed);
void rt_eval_report(RtHost *h, const double *mean, const char *word); /* word: behind the figures */
void rt_epoch_log(RtHost *h, int64_t epoch, const double *train, const double *eval, bool best, double seconds,
                  double speed);
/* commands: exit status */
int rt_train(RtHost *h);
int rt_eval(RtHost *h);
int rt_infer(RtHost *h);
int rt_generate(RtHost *h);
int rt_generate_bench(RtHost *h);             /* bench --mode generate */
/* usage.c: what a run keeps busy, sampled every h->opt.interval seconds by a thread of its own */
typedef struct RtUsage RtUsage;
bool rt_usage_try(const char *path, FILE **f, RtError *e);  /* path NULL: no file */
RtUsage *rt_usage_begin(RtHost *h, FILE *file);             /* a line a sample to file, NULL */
int rt_usage_samples(const RtUsage *u);
void rt_usage_end(RtUsage *u);
void rt_usage_json(const RtUsage *u);                       /* ", "usage": {..}" of the samples' medians */
void rt_usage_text(const RtUsage *u);
int rt_bench(RtHost *h);
int rt_info(RtHost *h);
int rt_die(RtHost *h);                                  /* prints h->error; returns 1 */
/* one pass over h->test; false: error or stop */
bool rt_evaluate(RtHost *h, double mean[RT_MAX_RESULTS], int64_t *examples);
/* peak.c: best of several samples, in FLOP/s, of all the threads together */
double rt_peak_memory(RtThreads *p); /* best of several samples, in bytes/s; 0: no room to measure */
/* narrow: RtProgram.narrow; needs: of the code object that runs; 0: unknown */
double rt_peak_flops(RtThreads *p, bool narrow, const char *needs);
#endif
