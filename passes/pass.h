/* pass.h: what a pass is, the context it is given, verdicts. passes.def is the pipeline. */
#ifndef PASSES_PASS_H
#define PASSES_PASS_H
#include "../ir/ir.h"
#include "../ir/target.h"

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

/* ---- tuning.c: a tuning file's records of this version, and how kernels are called there */
typedef struct Tuning Tuning;
typedef struct TunedKernel { const char *key, *kernel; Loc at; bool told; } TunedKernel; /* told: that it does not fit was said */
Tuning *tuning_read(Arena *a, Diags *d, const char *file, const char *text, size_t bytes); /* text must live as long as d */
TunedKernel *tuning_find(const Tuning *t, const char *key);   /* NULL if there is none */
const char *tuning_file(const Tuning *t);
uint32_t tuning_count(const Tuning *t);
/* Appends a group's key; returns its contraction or first op, NULL if the group is empty. */
const Op *tuning_key(Buf *b, const Graph *g, int group, const char *target, const char *arch);

/* ---- race.c: a race file's kernels by key, for racing programs */
typedef struct Race Race;
/* bound 0: none was given; used: a group has the key; told: a warning was given */
typedef struct RaceLine { const char *key, *kernel; VariantClass bits; int64_t bound; Loc at; bool used, told; } RaceLine;
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
	const char *print_after;           /* pass name, "all", or NULL */
	bool time_passes, check;           /* check: verify and round-trip after every pass */
	const char *stop_stage;            /* run no pass beyond this stage; NULL = all */
	const char *only;                  /* opt --passes: comma-separated; NULL = the pipeline */
	bool failed;                       /* a pass reported a user error through module->diags */
	int64_t memory_budget;             /* 0 = none */
	Tuning *tuning;                    /* NULL = no file */
	Race *race;                        /* NULL = no racing program */
} PassCtx;

typedef bool PassFn(Graph *g, PassCtx *cx);   /* changed anything? */
typedef bool ModulePassFn(Module *m, PassCtx *cx);
/* Permission for a rewrite under --pass-limit; counts it. */
bool pass_may(PassCtx *cx, const char *rule);
void verdict(PassCtx *cx, Verdict v);         /* copies texts into the module's arena */
bool pass_enabled(const PassCtx *cx, const char *name);
/* The whole pipeline, or cx->only. False after an error (diagnosed). */
bool passes_run(Module *m, PassCtx *cx);
typedef struct PassInfo { const char *name; PassFn *fn; ModulePassFn *module_fn; int level; const char *needs, *gives, *graphs, *doc; bool required; } PassInfo;
extern const PassInfo pass_info[]; extern const int npass_info;
/* What train.precision asks for, resolved for a target. */
typedef struct Precision {
	DType narrow;                      /* f16, bf16; DT_none: everything in f32 */
	bool mixed;                        /* what gains nothing may stay in f32 */
	bool scaled;                       /* the loss is scaled, as f16 has no small numbers */
	const Setting *keep, *force;       /* mixed's lists of label prefixes; NULL: none */
} Precision;
Precision precision_of(const Module *m, const Target *t, const char *arch);
const char *plancheck(const Module *m, Arena *a); /* NULL, or which buffers overlap */
/* of a selected module: NULL, or which group cannot have its kernel */
const char *kernelcheck(const Module *m, const Target *t, const char *arch, Arena *a);
#endif
