/* pass.h: what a pass is, the context it is given, verdicts. passes.def is the pipeline. */
#ifndef PASSES_PASS_H
#define PASSES_PASS_H
#include "../ir/ir.h"
#include "../ir/target.h"
#include "tuning.h"

/* A rule fired or declined: why, the predicate's value, bytes saved or that it would save. explain prints these. */
typedef struct Verdict {
	const char *pass, *rule;           /* "fuse", "fuse.epilogue" */
	const char *graph;
	const char *a, *b;                 /* layers (paths) of the ops concerned; b may be NULL */
	const char *opa, *opb;             /* op names: conv2d, moments */
	bool fired;
	const char *why;                   /* the predicate, in words with its values */
	double value;                      /* the predicate's number, NAN if none */
	int64_t bytes_saved;
	Loc loc;
} Verdict;

/* What a rule chose between ways that are all right, as costs or a tuning file say. */
typedef struct Decision {
	const char *what;                  /* the rule and what it chose at, as records call it */
	const char *a; Loc loc;            /* layer (path) and place of the op */
	/* layers of the ops that it was asked with, but for those of an update of states */
	const char **with; int nwith;
	int way, ways, predicted;
	double ratio;                      /* predicted time of way 1, of that of way 0; 0: nobody says */
	const TuneRecord *by;              /* NULL: the rule itself */
	bool misfit;                       /* as the record names no way that there is */
} Decision;

/* ---- race.c: a race file's kernels by key, for racing programs */
typedef struct Race Race;
/* bound 0: none was given; used: a group has the key; told: a warning was given */
typedef struct RaceLine {
	const char *key, *kernel;
	VariantClass bits;
	int64_t bound;
	Loc at;
	bool used, told;
} RaceLine;
Race *race_read(Arena *a, Diags *d, const char *file, const char *text, size_t bytes); /* text must live as long as d */
RaceLine *race_first(const Race *r, const char *key);         /* NULL if no line has the key */
RaceLine *race_next(const Race *r, const RaceLine *l);        /* of the same key */
void race_tell_unused(const Race *r);                         /* warns of keys that no group had */

typedef struct PassCtx {
	Module *module;
	const Target *target;
	const char *arch;
	Arena *scratch;                    /* emptied after each pass */
	int opt;                           /* -O 0, 1, 2 */
	const char *const *disabled; int ndisabled;
	const char *limit_rule; int64_t limit, fired;   /* --pass-limit RULE:N */
	VEC(Verdict) verdict;
	VEC(Decision) choice;
	const char *print_after;           /* pass name, "all", or NULL */
	bool time_passes, check;           /* check: verify and round-trip after every pass */
	Buf *read_back;                    /* the text that check has read back last; the runner's */
	const char *stop_stage;            /* run no pass beyond this stage; NULL = all */
	const char *only;                  /* opt --passes: comma-separated; NULL = the pipeline */
	bool failed;                       /* a pass reported a user error through module->diags */
	int64_t memory_budget;             /* 0 = none */
	Tuning *tuning;                    /* NULL = no file */
	const char *machine;               /* as tuning files call it; NULL: not known, records of any machine */
	bool locked;                       /* a record that does not fit is an error */
	Race *race;                        /* NULL = no racing program */
} PassCtx;

/* ---- tuning_lock.c */
/* The record of what a compiled module was made of, a line without its end; steps: of training taken from the seed,
 * with a hash of all states behind them; 0: none. */
const char *tuning_lock(Arena *a, const Module *m, const PassCtx *cx, const char *graph, int steps, uint64_t states);
typedef enum TuneLock { LOCK_NONE, LOCK_HOLDS, LOCK_BROKEN } TuneLock;
/* Of the file's locks of this model, batch and precision; tell: errors that list what is another, or that there is
 * none. */
TuneLock tuning_lock_state(Arena *a, const Module *m, const PassCtx *cx, bool tell);

typedef bool PassFn(Graph *g, PassCtx *cx);   /* changed anything? */
typedef bool ModulePassFn(Module *m, PassCtx *cx);
/* Permission for a rewrite under --pass-limit; counts it. */
bool pass_may(PassCtx *cx, const char *rule);
/* What a choice is about: an op, and those that read it or hang together with it; more: words of the key beyond them,
 * NULL; ratio: as Decision has it. */
typedef struct ChoiceAt {
	const Graph *g;
	const Op *op;
	const Op *const *with;
	int nwith;
	const char *more;
	bool update;
	double ratio;
} ChoiceAt;
/* Which of the ways, 0 .. ways - 1: the tuning file's record of this rule there, else what the rule itself predicts
 * to be best. Each must be legal: asked only where there is a choice. A record with another number is a misfit. The
 * last of cx->choice says whose word it was. */
int pass_choose(PassCtx *cx, const char *rule, const ChoiceAt *at, int ways, int predicted);
/* A verdict's words, with those of the last choice's record if the file decided. */
const char *pass_chose(PassCtx *cx, const char *why);
/* bytes/s, elementwise operations/s, seconds from one kernel to the next */
Rates pass_rates(PassCtx *cx);            /* the target's, or those of the tuning file's record `rates` */
void verdict(PassCtx *cx, Verdict v);         /* copies texts into the module's arena */
bool pass_enabled(const PassCtx *cx, const char *name);
bool select_keeps(const PassCtx *cx);         /* does what kernels make of steady operands stay from call to call? */
/* The whole pipeline, or cx->only. False after an error (diagnosed). */
bool passes_run(Module *m, PassCtx *cx);
typedef struct PassInfo {
	const char *name;
	PassFn *fn;
	ModulePassFn *module_fn;
	int level;
	const char *needs, *gives, *graphs, *doc;
	bool required;
} PassInfo;
extern const PassInfo pass_info[]; extern const int npass_info;
/* What train.precision asks for, resolved for a target. */
typedef struct Precision {
	DType narrow;                      /* f16, bf16; DT_none: everything in f32 */
	bool mixed;                        /* what gains nothing may stay in f32 */
	bool scaled;                       /* the loss is scaled, as f16 has no small numbers */
	const Setting *keep, *force;       /* mixed's lists of label prefixes; NULL: none */
} Precision;
Precision precision_of(const Module *m, const Target *t, const char *arch);
/* Buckets of n gradients of that size, done at those seconds: cut[i] is where the bucket that ends before i begins. Of
 * the numbers of buckets up to 16 the least whose exchange ends within `start` of the soonest: each costs its process a
 * message and a look. start, rate: of an exchange, seconds and bytes/s. */
void buckets_cut(const double *size, const double *done, uint32_t n, double start, double rate, uint32_t *cut,
                 Arena *a);
const char *plancheck(const Module *m, Arena *a); /* NULL, or which buffers overlap */
/* of a selected module: NULL, or which group cannot have its kernel */
const char *kernelcheck(const Module *m, const Target *t, const char *arch, Arena *a);
#endif
