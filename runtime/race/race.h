/* race.h: what the files of the command race share; README.md beside it says what is measured and how. Private.
 *
 * One process, the parent, decides, judges and writes the journal; a second, the worker, trains and runs the kernels.
 * They share some pages (RaceShared) and two pipes. Units are what a step's time is taken of: a raced group, whichever
 * of its kernels runs, or one row of the kernel table that has no other. */
#ifndef RUNTIME_RACE_H
#define RUNTIME_RACE_H
#include "../host.h"

/* ---------------------------------------------------------------- the descriptor's "races" (table.c) */
typedef struct RacePlace { int64_t offset, bytes; int dtype; } RacePlace; /* of the arena */
typedef enum RaceBits { RACE_SAME, RACE_ORDER, RACE_ROUND } RaceBits;
/* workspace: the largest of the record's groups */
typedef struct RaceText { const char *kernel; RaceBits bits; int64_t bound, workspace; } RaceText;
/* What a tuning file calls by one key: groups of equal structure, and kernels for them; text 0 is the baseline. */
typedef struct RaceRecord { const char *key; RaceText *text; int ntext; int *group; int ngroup; } RaceRecord;
/* row, n: what is timed; once, nonce: before it, what eval and infer compute from states in their first call (kept
 * memory, which the kernels of a group share). */
typedef struct RaceRows { RtRow *row, *once; int n, nonce; } RaceRows;
/* What limits a unit: other slow phases of the machine for each. */
typedef enum RaceLimit { RACE_PRODUCTS, RACE_TILES, RACE_MEMORY, RACE_LIMITS } RaceLimit;
extern const char *const race_limits[RACE_LIMITS];
typedef struct RaceGroup {
	const char *name, *layers;
	int record, unit;
	RacePlace workspace, kept, *read, *write;
	int nread, nwrite;
	RaceRows *rows;                      /* by text of the record; n 0: it has not that kernel */
} RaceGroup;
typedef struct RaceUnit { int group, row; RaceLimit limit; } RaceUnit; /* group -1: only the row */
typedef struct RaceTable {
	const RtGraph *graph;
	int which;                           /* RT_G_TRAIN, RT_G_EVAL, RT_G_INFER */
	RtRow *once; int nonce;              /* of groups that do not race: run in a worker's first step */
	int *owner;                          /* by row of the graph: the group whose own kernel it is of, -1 */
	RaceRecord *record; int nrecord;
	RaceGroup *group; int ngroup;
	RaceUnit *unit; int nunit;
	int most;                            /* texts of a record */
} RaceTable;
bool race_table_read(RaceTable *t, int which, const RtProgram *p, const RtCodeObject *object, RtError *e);

/* ---------------------------------------------------------------- times that no clock gave (costs.c) */
typedef enum RaceFault {
	RACE_NO_FAULT, RACE_CRASH, RACE_HANG, RACE_STRAY, RACE_FAR, RACE_WRONG, RACE_NAN, RACE_ULP, RACE_COMPILER,
	RACE_FAULTS
} RaceFault;
typedef struct RaceCosts RaceCosts;
RaceCosts *race_costs_read(const char *path, RtError *e);
/* Nanoseconds of a unit at this step. kernel NULL: of a row; before: the kernel of the unit before it, or NULL. */
int64_t race_costs_time(const RaceCosts *c, uint64_t seed, int64_t step, int unit, RaceLimit limit,
                        const char *kernel, const char *before);
double race_costs_whole(const RaceCosts *c, const char *kernel); /* times that, where whole programs are compared */
RaceFault race_costs_fault(const RaceCosts *c, const char *kernel, int64_t step); /* c may be NULL */

/* ---------------------------------------------------------------- the worker (worker.c, check.c) */
typedef enum RaceVerdict {
	RACE_UNKNOWN, RACE_GOOD, RACE_BAD_WRONG, RACE_BAD_NAN, RACE_BAD_STRAY, RACE_BAD_BASE, RACE_BAD_CRASH,
	RACE_BAD_HANG, RACE_VERDICTS
} RaceVerdict;
extern const char *const race_verdicts[RACE_VERDICTS];
typedef enum RaceWhat { RACE_STEP, RACE_CHECK } RaceWhat;
typedef struct RaceShared {
	/* the worker's, before each kernel: whose a death or a hang is */
	volatile int64_t step;
	volatile int32_t unit, text;         /* unit -1: none runs */
	volatile int32_t stray;              /* it died of a store to the arena's read-only part */
	volatile int32_t stuck;              /* an injected hang has begun */
	volatile int64_t limit;              /* nanoseconds after which this kernel hangs */
	volatile uint64_t beat;              /* raised with each */
	/* the parent's order, then the worker's answer */
	RaceWhat what;
	int32_t careful;                     /* a device: each kernel is waited for, so that a failure is its own */
	int64_t number;                      /* the step's, in the journal */
	int32_t only_record, only_text;      /* --isolate: what is checked; only_record -1: everything */
	int32_t failed;                      /* the worker could not go on: error */
	RtError error;
	/* behind it lie, at what race_shared_* say: a text a group; nanoseconds and a limit a unit; a verdict a group
	 * and text; a detail a group */
	_Alignas(64) unsigned char room[];
} RaceShared;
typedef struct Race Race;
size_t race_shared_bytes(const RaceTable *t);
int32_t *race_shared_order(const Race *r);                /* by group: the text it runs */
int64_t *race_shared_time(const Race *r);                 /* by unit: nanoseconds of the last step */
int64_t *race_shared_limit(const Race *r);                /* by unit: nanoseconds after which its kernel hangs */
uint8_t *race_shared_verdict(const Race *r, int group);   /* by text */
enum { RACE_DETAIL = 160 };
char *race_shared_detail(const Race *r, int group);       /* of its last verdict that is not good */
bool race_worker_start(Race *r);                          /* false after rt_fail */
void race_worker_stop(Race *r);
typedef enum RaceEnd { RACE_DONE, RACE_DIED, RACE_HUNG, RACE_FAILED } RaceEnd;
RaceEnd race_worker_run(Race *r, RaceWhat what, int64_t number, int *signal); /* signal: of which the worker died */
/* In the worker. What a device launches is not waited for. */
void race_worker_rows(Race *r, const RtRow *row, int n);
_Noreturn void race_worker_lost(Race *r);                 /* the device failed, h->error says how: the worker ends */
void race_check_group(Race *r, int group);                /* in the worker: every kernel whose verdict is unknown */

/* ---------------------------------------------------------------- a device (device.c) */
/* Chooses the code object, and reads its descriptor: the device itself is the worker's alone, as it does not live
 * through fork. False after rt_fail. */
bool race_device_open(Race *r, const RtCodeObject *const *objects, int nobjects);
bool race_device_ready(Race *r);                          /* in the worker: the device, with the code object's code */
/* In the worker: a call of the graph, unit by unit; nanoseconds are added to ns. False: a check has failed. */
bool race_device_units(Race *r, const int32_t *order, int64_t *ns);

/* ---------------------------------------------------------------- samples and judgement (schedule.c, judge.c) */
typedef struct RaceSamples { double *x; int n, room; } RaceSamples;
typedef struct RaceInterval { double middle, low, high; } RaceInterval;
void race_samples_add(RaceSamples *s, double x);
/* The median with its distribution-free interval of 95 %: -INFINITY and INFINITY below six samples. */
RaceInterval race_interval(const RaceSamples *s);
/* How much longer b takes than v, as log(b / v): Hodges and Lehmann's estimate with its interval, which holds with a
 * chance of 95 % for z = 1.96, 99 % for 2.576. */
RaceInterval race_shift(const RaceSamples *b, const RaceSamples *v, double z);
typedef struct RaceScore {
	bool out;
	RaceVerdict verdict;                 /* why, if it is no question of time */
	const char *why;                     /* of what is out */
	RaceSamples all, fresh, behind;      /* by reference and state; fresh, and behind it: of the last rung */
} RaceScore;
enum { RACE_RUNGS = 16 };
typedef struct RaceRun {                     /* a record's race */
	RaceScore *score;
	int rung;                            /* 0: the first sample; nrung + 1: over */
	int look;                            /* how often the last rung was doubled */
	int leader, winner;                  /* texts; winner 0: the baseline stays */
	RaceInterval gain;                   /* of the winner, else of the leader: shares of the baseline's time */
	double charge;                       /* what the group behind loses by it, likewise; in gain already */
} RaceRun;
int race_want(const Race *r, int record);                 /* samples that the rung under way asks of each kernel */
int race_alive(const Race *r, int record);
bool race_over(const Race *r, int record);
void race_judge(Race *r, int record);                     /* after samples were added: rungs that are complete */
void race_hurry(Race *r, int record);                     /* to the last rung at once */
void race_settle(Race *r, int record);                    /* of what there is, at the end */
void race_drop(Race *r, int record, int text, RaceVerdict verdict); /* it is out for good, in all groups */

typedef enum RaceKind { RACE_REFERENCE, RACE_RACE } RaceKind;
RaceKind race_plan(Race *r, int64_t number, int32_t *order);  /* the next step: what each group runs */
void race_take(Race *r, int64_t number, RaceKind kind, const int32_t *order, const int64_t *ns); /* its times */
double race_reference(const Race *r, int unit);           /* nanoseconds of the baseline */

/* ---------------------------------------------------------------- the journal (journal.c) */
typedef struct RaceJournal { const char *path; int fd; RtLock lock; } RaceJournal;
bool race_journal_open(Race *r);                          /* --resume: reads what stands there into r */
bool race_journal_good(Race *r);                          /* what was found good since the last call */
bool race_journal_out(Race *r, int group, int text, RaceVerdict verdict, const char *detail);
bool race_journal_death(Race *r, int signal, int unit);
bool race_journal_step(Race *r, int64_t number, RaceKind kind, const int32_t *order, const int64_t *ns);
bool race_journal_results(Race *r, const char *end);
void race_journal_close(Race *r);

struct Race {
	RtHost *h;
	RaceTable table;
	RtData data;
	RaceCosts *costs;                    /* NULL: the clock's times */
	/* options */
	const char *output, *costs_path;
	int which;                           /* the graph: RT_G_TRAIN, .. */
	int64_t budget;                      /* nanoseconds */
	int rung[RACE_RUNGS], nrung;
	bool resume, checks, isolate;        /* checks: nothing is timed; isolate: a worker for each kernel */
	/* the device: NULL is the CPU */
	const RtDevice *device;
	const char *device_name;
	bool simulated;                      /* its times mean nothing */
	bool careful;                        /* the next step is made kernel by kernel: one has failed */
	/* the worker */
	RaceShared *shared; size_t shared_bytes;
	int to, from;                        /* pipes */
	pid_t worker;
	int worker_record, worker_text;      /* --isolate: whose it is; text 0: nobody's yet */
	bool ready, checked, kept;           /* it has warmed up; it has made checks; what runs once has run */
	int deaths;                          /* that no kernel explains */
	uint8_t *snapshot; size_t snapshot_bytes; /* states as they began: the worker's */
	/* the race */
	RaceRun *run;                        /* by record */
	int64_t next;                        /* number of the next step */
	int64_t spent;                       /* nanoseconds, those of a resumed journal included */
	int64_t first;                       /* of that, when the first step was over */
	int64_t begun;                       /* the clock when this process began, less what was spent before */
	RaceSamples *reference;              /* by unit: of the reference steps under way */
	double *expect;                      /* by unit: nanoseconds of the baseline */
	int references;                      /* steps still to be taken */
	int steps, thrown;                   /* since the last references; not used */
	int64_t unquiet;                     /* how often new references were taken */
	RaceJournal journal;
	uint8_t *known;                      /* verdicts by group and text, as the journal has them */
	bool done;                           /* the journal says that the race is over */
	bool hurried;                        /* time is short: every record is in its last rung */
};
#define RACE_REFERENCES 5
#define RACE_WARMUP 2                        /* steps, so that no state is as it began */
#endif
