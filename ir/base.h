/* base.h: arena, vector, text buffer, interned strings, hash. No globals but the intern table of a Module.
 *
 * Memory: everything a compilation makes lives in an Arena and is freed with it; passes free nothing.
 * Out of memory is an environment error: message and exit 1. */
#ifndef IR_BASE_H
#define IR_BASE_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- arena */
typedef struct Arena Arena;
Arena *arena_new(void);
void arena_free(Arena *a);
void *arena_alloc(Arena *a, size_t bytes); /* zeroed, 16-byte aligned */
void *arena_grow(Arena *a, void *old, size_t old_bytes, size_t new_bytes);
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *a, const char *fmt, va_list ap);
#define arena_new_of(a, T) ((T *)arena_alloc(a, sizeof(T)))
#define arena_array(a, T, n) ((T *)arena_alloc(a, sizeof(T) * (size_t)((n) > 0 ? (n) : 1)))

/* ---- vector: struct { T *at; uint32_t n, cap; Arena *arena; } grown by vec_push */
#define VEC(T) struct { T *at; uint32_t n, cap; }
#define vec_push(a, v, x) \
	((v)->n == (v)->cap ? (void)((v)->at = arena_grow(a, (v)->at, sizeof *(v)->at * (v)->cap, \
	 sizeof *(v)->at * ((v)->cap ? 2 * (v)->cap : 8)), (v)->cap = (v)->cap ? 2 * (v)->cap : 8) : (void)0, \
	 (v)->at[(v)->n++] = (x))

/* ---- text buffer */
typedef struct Buf { char *at; size_t n, cap; } Buf; /* malloc'd, always 0-terminated after the first append */
void buf_printf(Buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(Buf *b, const char *fmt, va_list ap);
void buf_put(Buf *b, const void *bytes, size_t n);
void buf_double(Buf *b, double x);      /* shortest text that reads back as the same double; inf, -inf, nan */
void buf_json(Buf *b, const char *s);   /* a JSON string with its quotes, escaped */
void buf_free(Buf *b);

/* ---- strings and hashes */
const char *intern(Arena *a, const char *s); /* same bytes, same pointer, within one arena */
uint64_t hash_bytes(uint64_t h, const void *p, size_t n); /* FNV-1a 64; start with HASH_START */
#define HASH_START 0xcbf29ce484222325ull
int edit_distance(const char *a, const char *b); /* Levenshtein, for "did you mean" */
/* The best of names within distance 2 (1 for names of up to 3 letters), or NULL. */
const char *suggest(const char *name, const char *const *names, int n);

/* ---- files: NULL/false with errno set on failure */
char *file_read(const char *path, size_t *bytes); /* malloc'd, 0-terminated beyond the end */
/* Whole or not at all: temporary name, sync, rename; links are followed, devices and pipes written as they are. */
bool file_write(const char *path, const void *bytes, size_t n);
bool file_write_executable(const char *path, const void *bytes, size_t n);
bool file_special(const char *path);     /* a device, a pipe: there is nothing to replace */
char *file_target(const char *path);     /* malloc'd: what a write to path replaces, symbolic links followed */
/* Keeps others who ask for it from path, by a lock of PATH.lock: from reading it to replacing it. NULL: errno, or
 * *holder (malloc'd) says who has it. Where the file system has no locks nobody is kept out. */
typedef struct Temporary FileHold;
FileHold *file_hold(const char *path, const char *who, char **holder);
void file_release(FileHold *h);
/* Temporaries: a signal removes them if temp_signals was called; what a kill left is removed by whoever makes one
 * beside it. temp_free forgets the malloc'd name and leaves the file. */
char *temp_folder(const char *beside);
void temp_note(const char *path);
void temp_free(char *path);
void temp_signals(void);
void temp_end(int sig); /* a signal handler: removes them, then lets sig do what it does without one */

/* ---- integers with overflow check: false = overflow */
bool mul_i64(int64_t a, int64_t b, int64_t *r);
bool add_i64(int64_t a, int64_t b, int64_t *r);
int64_t gcd_i64(int64_t a, int64_t b); /* of positive numbers: extents of N are kept in lowest terms */
#endif
