/* tune.h: what the files of `mantou tune` share; private to frontend/. tuning.md beside it says how a search goes.
 *
 * cmd_tune.c is the command, tune_race.c its races, tune_elsewhere.c those of another machine, tune_space.c what is
 * tried, tune_choices.c tries choices of passes, tune_child.c builds and runs programs, tune_journal.c keeps what was
 * seen, tune_final.c decides what is written, tune_report.c says it. */
#ifndef FRONTEND_TUNE_H
#define FRONTEND_TUNE_H
#include "cmd.h"
#include "../runtime/json.h"

#include <sys/types.h>

enum { EXIT_STOPPED = 130, TUNE_ROUNDS = 8 };

/* ---- a compiled program, as the search sees it (tune_space.c) */
typedef struct Variant {
	const char *kernel;
	BitsClass bits;
	double predicted;                /* of the time that the program's own kernel is predicted to take; NAN */
	int changed;                     /* parameters that are others than its own */
	bool rival;                      /* it has none of these */
	uint64_t which;                  /* a hash of their names */
	double far;                      /* how far they are from half and double of its own */
} Variant;

/* Groups of one key, which a tuning file gives one kernel. */
typedef struct Record {
	const char *key, *what;          /* whole, and from the operator on */
	const char *layer, *kernel;      /* of the first group */
	const char *own;                 /* its kernel without a tuning file; NULL: there is none */
	int ngroup;
	double us;                       /* microseconds of a group, mean; 0 if nobody has measured */
	double share;                    /* of the step, all groups */
	double forecast;                 /* seconds of a group, by machine code; 0: nobody knows */
	VEC(Variant) variant;            /* to be raced, in their order */
} Record;

typedef struct Program {
	Arena *arena;
	Job job;
	Module *module;
	PassCtx cx;                      /* of architecture number Tune.arch of the job */
	const Graph *graph;              /* whose step is timed */
	VEC(Record) record;
} Program;

/* ---- what a race found out, of a kernel and of a record, over all rounds (tune_journal.c) */
typedef struct Raced { const char *kernel; int n; double time, low, high; const char *out; } Raced;
typedef struct Won {
	const char *key, *kernel, *was;  /* kernels' texts; was: of the program that the first race began with */
	double gain, low, high;          /* shares of `was_us` */
	double us, was_us, error, share; /* error: half of the interval of us, a share; share: of the step */
	int64_t n;
	int threads;                     /* of the race */
	BitsClass bits;
	bool raced_last;                 /* won in the last round */
	bool kept;                       /* the final says so */
	bool choice, back;               /* a pass's; that which the rule itself would make */
} Won;

typedef struct Failure { const char *why; int n; } Failure; /* crash, hang, stray, wrong, nan, .. */

typedef struct Tune {
	Arena *arena;
	const Options *o;
	const char *graph;               /* whose time counts: train, eval or infer */
	const char *path;                /* of the tuning file; NULL: to stdout */
	const char *journal, *race;      /* of the search, of the running race */
	char *folder;                    /* of what is built */
	TuneText base;                   /* the tuning file as it was */
	FileHold *hold;
	BitsClass most;                  /* class of bits that is allowed */
	int threads; int64_t seed;
	int arch;                        /* number of the architecture that programs are compiled for */
	bool simulated;                  /* the device's times mean nothing: results are compared, nothing is written */
	struct RaceCosts *costs;         /* times of a table; NULL: real ones */

	int64_t budget, begun, spent;    /* nanoseconds; spent: before --resume, and by the table's clock */
	int64_t phase[4];                /* baseline, compiling, racing, final */
	double step;                     /* nanoseconds of a step of the baseline */
	double build;                    /* seconds that building it took */
	double memory, peak;             /* bytes and floating-point operations a second, as `bench` measures them; 0 */

	const char *race_text;           /* of the race that is under way; NULL: none is */
	VEC(Won) won;
	VEC(const char *) tried;         /* "KEY : KERNEL" of all rounds */
	VEC(const char *) line;          /* of the journal: results and outs of all rounds, JSON */
	uint32_t round_line;             /* the first of the last round */
	int rounds, variants;
	VEC(Failure) failure;
	int fd;                          /* of the journal; -1 */
	TextList lock;                   /* to be written */
	bool stopped;
	bool chosen;                     /* choices have been tried */
} Tune;

/* What of the final. */
typedef struct Final {
	int pairs;
	double base, tuned;              /* milliseconds a step, medians */
	double ratio, low, high;         /* of the times base : tuned, with its 95 % interval */
	double predicted;                /* the ratio that the races promise */
	bool kept;
	bool equal;                      /* states, or results, are those of the program without, byte for byte */
	TextList lock;                   /* the records that hold for what was timed */
} Final;

/* ---- tune_child.c */
int64_t tune_now(void);                                  /* nanoseconds, of a clock that nobody sets */
int64_t tune_spent(const Tune *t);                       /* of the budget */
void tune_catch(void);                                   /* the first Ctrl-C goes to the child, the second ends all */
bool tune_interrupted(void);
int64_t tune_deadline(void);                             /* of tune_now: when all is to end after Ctrl-C */
/* Builds in a child: with --tuning and --race where they are not NULL. False: what it said is printed, or, if *killed
 * is not NULL, that a signal ended it is in there and nothing is said. */
bool tune_build(Tune *t, const char *tuning, const char *race, const char *output, int *killed);
/* argv[0] and what stands behind it, to a NULL. Its stdout is in out; each line of its stderr goes to say, or to the
 * terminal if that is NULL. forward: the first Ctrl-C is for it, too. The exit status, 128 + the signal's number; -1:
 * it could not be started. */
typedef void TuneSay(void *cx, const char *line);
int tune_run(const char *const *argv, bool forward, Buf *out, TuneSay *say, void *say_cx);
const char *tune_file(const Tune *t, const char *name);  /* in the folder */
/* A program's command line: bench on the graph and the data of the search; the caller appends to it, at *n. */
enum { TUNE_ARGS = 32 };
void tune_bench(const Tune *t, const char *program, const char *argv[TUNE_ARGS], int *n);

/* ---- tune_space.c */
/* Compiled with that tuning file, of which it warns the first time. */
int tune_program(Tune *t, const char *tuning, Program *p);
void program_free(Program *p);
Record *program_record(const Program *p, const char *key); /* NULL */
/* Fills `variant` of records that are worth it: at most `most` for each, of kernels that differ in `steps` parameters;
 * only: records of this name or layer alone. */
void tune_candidates(Tune *t, Program *p, int steps, double race_ns, int most);
/* Of a kernel in the record's place, two parameters from its own at most; BITS_rounds: nobody knows. */
BitsClass program_class(const Program *p, const Record *r, const char *kernel);
int program_own(Tune *t, Program *p);                    /* fills `own` */

/* ---- cmd_tune.c */
/* Is there what a search or --verify needs: one architecture, of this machine? An exit status. */
int tune_machine(Tune *t, const Program *p);

/* ---- tune_race.c */
/* The first so many of the program's candidates: lists are cut from their ends, the longest first. */
void race_cut(Program *p, int most);
/* The race file of the program's candidates. */
const char *race_file(Tune *t, const Program *p, int *variants, int *records);
/* Builds the racing program. What kills the compiler is found by halving; it goes from text. False: it cannot be built,
 * which was said. */
bool race_build(Tune *t, const char *tuning, char *text);
int race_rounds(Tune *t, Program *base);                 /* round after round */

/* ---- tune_elsewhere.c */
int tune_prepare(Tune *t, Program *base);
int tune_results(Tune *t, Program *base, Final *f);

/* ---- tune_journal.c */
bool journal_open(Tune *t, const char *what);            /* what: the search, as a line of JSON */
void journal_close(Tune *t, bool ended);
bool journal_put(Tune *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What the journal of a finished race says, into won, tried, line; race: the text of its race file. False: it has no
 * results. */
bool journal_take(Tune *t, const char *race, const char *text, size_t bytes);
/* A line for the journal: the race that begins, the one that is over. */
bool journal_begin(Tune *t, const char *race);
bool journal_done(Tune *t);

/* Choices that won, from won[from] on. */
bool journal_choices(Tune *t, uint32_t from);

/* ---- tune_choices.c: false: the search is to end */
bool tune_choices(Tune *t, Program *base);

/* ---- tune_final.c */
/* A kernel's text as records have it; p NULL: a choice's, or rates. */
const char *tune_value(const Tune *t, const Program *p, const char *kernel);
/* Hodges and Lehmann's estimate of the ratios' middle, with Wilcoxon's interval of 95 % (of six to twelve). */
void tune_estimate(const double *ratio, int n, Final *f);
/* Writes the file's text with the records that are in, as path. */
bool final_file(Tune *t, const Program *base, const bool *in, const char *path);
int final_decide(Tune *t, const Program *base, Final *f); /* which of won are kept */
int final_write(Tune *t, const Program *base);
int final_verify(Tune *t);

/* ---- tune_report.c */
void tune_line(const Tune *t, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void report_explain(const Tune *t, Buf *out);
void report_json(const Tune *t, const Final *f, Buf *out);
#endif
