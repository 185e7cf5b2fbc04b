/* cmd.h: what the files of the command line share: options as read, a compilation under way, the subcommands. Private
 * to frontend/.
 *
 * main.c picks a row of the command table, options.c reads its arguments by options.def, cmd_NAME.c carries it out with
 * the steps of driver.c (load, passes) and build.c (emit, link). Exit status: 0 good, 1 failed, 2 wrong usage. */
#ifndef FRONTEND_CMD_H
#define FRONTEND_CMD_H
#include "../ir/ir.h"
#include "../ir/target.h"
#include "../passes/pass.h"
#include "../runtime/json.h"
#include "sema.h"

enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

enum {
	C_build = 1 << 0,
	C_run = 1 << 1,
	C_check = 1 << 2,
	C_dump = 1 << 3,
	C_opt = 1 << 4,
	C_info = 1 << 5,
	C_explain = 1 << 6,
	C_ops = 1 << 7,
	C_ref_run = 1 << 8,
	C_tune = 1 << 9,
	C_scale = 1 << 10,
	C_review = 1 << 11,
	C_manual = 1 << 12,
	COMMON = C_build | C_run | C_check | C_dump | C_opt | C_info | C_explain,
	SHAPING = COMMON | C_tune | C_scale, /* what shapes a program */
	ALL = COMMON | C_ops | C_ref_run | C_tune | C_scale | C_review | C_manual,
};

typedef struct TextList { const char **at; int n; } TextList;
typedef struct DefineList { Define *at; int n; } DefineList;

/* One field per row of options.def, zero where not given; level is -1. */
typedef struct Options {
#define FIELD_FLAG bool
#define FIELD_TEXT const char *
#define FIELD_FEATURES const char *
#define FIELD_COUNT int64_t
#define FIELD_LEVEL int64_t
#define FIELD_SIZE int64_t
#define FIELD_TIME int64_t
#define FIELD_LIST TextList
#define FIELD_DEFINE DefineList
#define OPT(field, spelling, kind, argument, commands, help) FIELD_##kind field;
#include "options.def"
#undef OPT
	const char *operand[4]; int noperand;
	char **rest; int nrest;          /* what stands after --; rest[nrest] is NULL */
	const char *program;             /* argv[0] of mantou */
} Options;

typedef struct Command {
	const char *name;
	unsigned bit;
	int (*run)(Arena *a, const Options *o);
	const char *usage;               /* operands */
	int least, most;                 /* how many operands */
	bool takes_rest;                 /* arguments after -- belong to the executable */
	const char *doc, *example;
	bool hidden;
} Command;

extern const Command commands[];
extern const int ncommands;

/* ---- options.c: -1 = read; else the exit status: help was printed (0), or wrong usage (2) */
int options_read(Arena *a, const Command *c, int argc, char **argv, Options *o);
void options_help(FILE *f, const Command *c);
/* The words of text, from column `indent` on (0, where the line stands already), in lines of 80 columns; where one is
 * broken it ends in `broken`. Then a line's end. */
void put_wrapped(FILE *f, int indent, const char *text, const char *broken);
void put_help_row(FILE *f, int left, const char *name, const char *text); /* the text begins in column `left` */
/* "mantou NAME: text" and where to look, on stderr; returns EXIT_USAGE. */
int usage_error(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "mantou: error: text" on stderr; returns EXIT_FAILED. */
int failure(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void message(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "mantou: note: text" on stderr */
bool colour_on(FILE *f);

/* ---- driver.c */
typedef struct Job {                     /* one compilation */
	Arena *arena;
	Diags diags;
	const Options *o;
	const char *command;
	const char *file;
	const Target *target;
	const char *arch[16]; int narch; /* canonical, best first, no two the same */
	const char *machine[16];         /* by arch: as tuning files call it; NULL: records of any machine */
	Module *module;                  /* as loaded */
	Tuning *tuning;                  /* NULL: no file */
	Race *race;                      /* kernels of --race; NULL: an ordinary program */
	uint64_t tuning_hash;            /* of the file's bytes; 0 without one */
	bool seal;                       /* programs end in their length and hash */
} Job;

/* Reads options that name targets, passes and stages. EXIT_GOOD, or the exit status after a message. */
int job_open(Job *j, Arena *a, const Options *o, const char *command, const char *file);
/* Reads and elaborates the model, or reads textual IR, into j->module, and the tuning file into j->tuning. */
int job_load(Job *j);
/* A context of passes for arch[k], as the options say. */
void job_context(const Job *j, Module *m, int k, PassCtx *cx);
/* job_load, then the pipeline for arch[k] to a stage (NULL: to its end, where contracts and the memory budget are
 * held). */
int job_compile(Job *j, int k, const char *stage, Module **m, PassCtx *cx);
const char *job_stem(const Job *j);      /* file name without folder and .net or .ir */
/* of a compiled module: the budget and what was recomputed; NULL without one */
const char *budget_text(Arena *a, const PassCtx *cx);

/* ---- build.c */
/* to a file (- or NULL: stdout); EXIT_GOOD, or another status after a message */
int job_output(const Job *j, const char *path, const Buf *b);
/* Early word on an output path that cannot be written, or that is the input. */
int job_check_output(const Job *j, const char *path);
/* Does --emit ask for code (or, of a command that prints a table, IR) in place of what this command prints? job_build
 * then writes it. */
bool job_emits(const Job *j);
/* What the target says of a compiled module in this form (EmitOptions.emit), for the job's first architecture; NULL, or
 * what went wrong. */
const char *job_emit(const Job *j, const Module *m, const char *form, Buf *text);
/* The same of a form that is JSON, parsed: it points into text. NULL: *error says why. */
const Json *job_json(const Job *j, const Module *m, const char *form, Buf *text, JsonDoc **doc, const char **error);
/* Builds what --emit says (exe by default) into path. */
int job_build(Job *j, const char *emit, const char *path);
bool job_sealed(const Job *j, const char *path); /* is it a whole program that was built with j->seal? */

/* ---- figures.c */
int64_t machine_memory(void);            /* bytes, 0 if unknown */
void print_bytes(Buf *b, int64_t bytes); /* 2.25 MiB */
void print_count(Buf *b, double n);      /* 4.1 G */
void print_where(Buf *b, const Module *m, Loc at); /* file:line:col, nothing if unknown */

/* ---- contracts.c */
bool contracts_hold(Module *m, const PassCtx *cx);      /* every `require` of a planned module; false after errors */
bool layer_under(const char *path, const char *prefix); /* "a.b" is under "a", "ab" is not */
bool layer_reads(const Graph *g, const char *b, const char *a); /* does b read what a computes? */

/* ---- cmd_explain.c: a line for each kernel with parameters to choose that holds layers a and b (NULL: any), as tuning
 * files hold them, sorted, no two the same. */
int tuning_records(Arena *arena, const Module *m, const PassCtx *cx, const char *a, const char *b, const char ***lines);

/* tune_report.c: what the journal of a search beside the tuning file says of the kernels of these records. */
void explain_tried(Buf *out, const char *tuning, const char *const *line, int n);

/* The same of choices that passes made at layer a; with b, of those between the two. */
int tuning_choices(Arena *arena, const PassCtx *cx, const char *a, const char *b, const char ***lines);

/* ---- cmd_info.c: predicted seconds of graph train and of graph update, by the plan and rates that are assumed */
int info_seconds(Job *j, Module *m, double *train, double *update);

/* Kernels of a training step that are predicted at less than a tenth of the roofline (the time of their operations or
 * of their bytes at the machine's rates), and contractions that take the plain kernel; share: of the step. For
 * arch[arch]. */
typedef struct Slow { const char *name, *layer, *where; bool plain; double roofline, share; } Slow;
Slow *info_slow(Job *j, Module *m, int arch, int *n);
void put_slow(Buf *b, const Slow *s);

/* ---- subcommands */
int cmd_build(Arena *a, const Options *o);
int cmd_manual(Arena *a, const Options *o);
int cmd_tune(Arena *a, const Options *o);
int cmd_run(Arena *a, const Options *o);
int cmd_check(Arena *a, const Options *o);
int cmd_dump(Arena *a, const Options *o);
int cmd_info(Arena *a, const Options *o);
int info_machine(Arena *a, const Options *o); /* info --machine (cmd_machine.c) */
int cmd_opt(Arena *a, const Options *o);
int cmd_explain(Arena *a, const Options *o);
int cmd_ops(Arena *a, const Options *o);
int cmd_scale(Arena *a, const Options *o);
int cmd_review(Arena *a, const Options *o);
int cmd_ref_run(Arena *a, const Options *o);
#endif
