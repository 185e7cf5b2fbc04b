/* tuning.h: tuning files: records as they are read, found and written; what kernels and choices are called there;
 * locks.
 *
 * A record a line: TARGET ARCH MACHINE OPERATOR ... : FAMILY.VERSION{PARAMETERS} ; FACTS. passes/tuning.md holds the
 * reference. */
#ifndef PASSES_TUNING_H
#define PASSES_TUNING_H
#include "../ir/ir.h"
#include "../ir/target.h"

/* TUNE_OLD: a line as they were while the compiler's version stood in the key; of use for being named, no more. */
typedef enum TuneKind { TUNE_KERNEL, TUNE_CHOICE, TUNE_RATES, TUNE_THREADS, TUNE_LOCK, TUNE_OLD } TuneKind;

typedef struct TuneRecord {
	TuneKind kind;
	const char *key;             /* all before ` : ` */
	/* where in the key these words begin; what: the operator or the rule, and all behind it */
	uint16_t arch, machine, what;
	const char *value;           /* family{parameters}, as kernels stand in the IR */
	int version;
	const char *facts;           /* what stands behind ` ; `, as it is; "" if nothing does */
	Loc at;                      /* of the value; of the third word of an old line */
	uint32_t hash;               /* of the key */
	/* of another version (once tuning_bind has asked the target); it does not fit, which was said */
	bool stale, told;
} TuneRecord;

/* Facts, for people and for merging. */
typedef struct TuneFacts {
	double us, was;              /* microseconds, and of what stood there before; NAN: not said */
	double error, step;          /* half of the 95 % interval, the part of a step: shares; NAN */
	int64_t samples;             /* 0 */
	int threads;                 /* 0 */
	char bits[16];               /* class of bits; "" */
} TuneFacts;
TuneFacts tuning_facts(const char *text); /* words that it does not know count for nothing */

/* ---- tuning.c: reading and finding */
typedef struct Tuning Tuning;
/* text must live as long as d */
Tuning *tuning_read(Arena *a, Diags *d, const char *file, const char *text, size_t bytes);
const char *tuning_file(const Tuning *t);
uint32_t tuning_count(const Tuning *t);                     /* records, without old lines */
const TuneRecord *tuning_at(const Tuning *t, uint32_t i);
TuneRecord *tuning_named(const Tuning *t, const char *key); /* by the whole key, whatever its version; NULL */
/* The record of `what` for a machine, else that for any (*), of the target's version; NULL. */
TuneRecord *tuning_find(const Tuning *t, const char *target, const char *arch, const char *machine, const char *what);
/* The one machine that the file has records of for this architecture; NULL if it has none or several. */
const char *tuning_machine(const Tuning *t, const char *target, const char *arch);
/* Which records of this architecture are of another version of their family; says so once, as an error if `strict`. */
void tuning_bind(Tuning *t, const Target *target, const char *arch, const char *machine, bool strict);
/* elsewhere: of this architecture and another machine */
typedef struct TuneCount { int records, stale, elsewhere; } TuneCount;
TuneCount tuning_count_of(const Tuning *t, const char *target, const char *arch, const char *machine);
bool tuning_is_machine(const char *s, size_t n);            /* `*`, or features: l1=32K,l2=1M */
/* A parameter's text in a value: 0 of choice{take=0}. Its length; -1: there is none. */
int tuning_param(const char *value, const char *name, const char **at);

enum { TUNE_VERSION = 1 };   /* of choice, rates, threads, lock */
bool tuning_is_other(const char *family, size_t n); /* one of these */
/* The rules that a record may decide, with their names. NULL at the end. */
extern const char *const tuning_rules[];

/* ---- tuning_key.c: what kernels and choices are called, from the operator on */
/* Of a graph at one stage: what the keys of its groups need. */
typedef struct TuneKeys TuneKeys;
/* keeps: does the target make of steady operands once what kernels read in every call? */
TuneKeys *tuning_keys(const Graph *g, Arena *a, bool keeps);
/* Appends; returns the group's contraction or first op, NULL if the group is empty. */
const Op *tuning_key(Buf *b, const TuneKeys *k, int group);
/* Appends what a choice at op is called: op, how many ops go with it, a hash of theirs. */
void tuning_choice_key(Buf *b, const char *rule, const Graph *g, const Op *op, const Op *const *with, int n,
	DType narrow, const char *more);
/* as records have it: brgemm.1{mr=6}; without a version if the target has none for it */
const char *tuning_value(Arena *a, const Target *t, const char *kernel);

/* ---- tuning_write.c: changing */
typedef struct TuneEdit {
	const char *const *line; uint32_t nline; /* records to put in, without their ends */
	const char *const *drop; uint32_t ndrop; /* whole keys of records to take out */
} TuneEdit;
/* The text with a change. base: what the change was made for, NULL: this text; a record that is another since then
 * stays if it is better, and locks to put in are left out. */
void tuning_edit(Buf *out, Arena *a, const char *text, size_t bytes, const char *base, size_t base_bytes,
	const TuneEdit *e);
/* The same of a file, which need not be there; untouched if nothing changes. False with errno set: it is as it was.
 * Whoever calls it holds the file (file_hold). */
bool tuning_write(Arena *a, const char *path, const char *base, size_t base_bytes, const TuneEdit *e);
typedef struct TuneText { const char *name, *text; size_t bytes; } TuneText;
/* records of y that are new, that replace x's; locks left out */
typedef struct TuneMerge { int added, replaced, locks; VEC(const char *) warning; } TuneMerge;
void tuning_merge(Buf *out, Arena *a, const TuneText *x, const TuneText *y, TuneMerge *m);
#endif
