/* diag.h: source locations, errors and notes with caret, bug().
 *
 * Three kinds that never mix: user errors (diag_error: file:line:col, source line, caret; at most 20, then exit 1),
 * environment errors (die), bugs (bug: names pass and op, says how to reproduce, aborts). */
#ifndef IR_DIAG_H
#define IR_DIAG_H
#include "base.h"

typedef struct Loc { uint16_t file; uint16_t col; uint32_t line; } Loc; /* file 0 = unknown; line and col from 1 */

typedef struct Source { const char *name; const char *text; size_t bytes; } Source;

typedef struct Diags {
	Arena *arena;
	VEC(Source) source;        /* index = Loc.file; entry 0 is unused */
	FILE *out;                 /* stderr, or a test's stream; NULL: errors and warnings are counted, no more */
	bool colour;
	int nerror, nwarning;
	bool full;                 /* 20 errors were printed: say nothing more */
} Diags;

void diags_init(Diags *d, Arena *a, FILE *out);
uint16_t diags_add_source(Diags *d, const char *name, const char *text, size_t bytes);
/* "file:line:col: error: text", the source line, a caret; tabs and UTF-8 count as a reader sees them. */
void diag_error(Diags *d, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void diag_warning(Diags *d, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* belongs to the error before it */
void diag_note(Diags *d, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Environment error: "mantou: text" on stderr, exit 1. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A defect of mantou itself: names where, prints how to report it, aborts. */
#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_at(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
extern _Thread_local const char *bug_context; /* what runs now: "pass fuse, op %c1 = conv2d"; set by the runner */
#endif
