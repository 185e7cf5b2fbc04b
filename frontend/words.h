/* words.h: every name of the language with what is known of it, and other libraries' names for the same things:
 * for `mantou ops`, the reference in language.md, and messages about names that do not exist. */
#ifndef FRONTEND_WORDS_H
#define FRONTEND_WORDS_H
#include "../ir/base.h"

typedef struct Word {
	const char *section, *title;     /* of language.md: "layers", "Layers" */
	const char *kind, *name;         /* "operator", "conv2d"; words.def lists the kinds */
	const char *params;              /* "rate, weight_decay=0", "" if it takes none */
	const char *const *takes;        /* what each of params may be; NULL: the operator's own errors say so */
	const char *def;                 /* of a setting: its default; NULL: it must be set */
	const char *doc, *example;       /* "" where words.def has no row */
	const char *shape, *gradient, *source; /* "" but for operators */
	bool known;                      /* the name is in the compiler's own tables */
} Word;
extern Word *words; extern int nwords;
void words_init(Arena *a);                                /* after builtins_init */
int word_param(const char *params);                       /* length of the first of them: a default may hold commas */
const char *word_kind(const char *kind);                  /* as people say it: "schedule of the rate"; or NULL */

/* What another library calls it, what it is here, and how that is written: "" where the name alone says it. */
typedef struct Alias { const char *name, *here, *example; } Alias;
extern const Alias aliases[]; extern const int naliases;
/* Equal but for case and underscores: BatchNorm2d and batch_norm_2d. */
bool names_alike(const char *a, const char *b);
/* The row of a name that has an example, else NULL. */
const Alias *alias_written(const char *name);
const char *alias_line(Arena *a, const Alias *alias);    /* its example on one line */
/* What stands in the place of another library's argument or setting (advice.def), or NULL. place: the operator,
 * optimizer or schedule called, "train", "data"; "" for any. */
const char *advice(const char *place, const char *name);
/* One of names: alike, else by an alias, else the nearest spelling, else NULL. */
const char *suggest_known(const char *name, const char *const *names, int n);
const char *names_joined(Arena *a, const char *const *names, int n); /* "rate, momentum"; of none "nothing" */

/* ---- where words come from beside builtins[]: each fills in kind, name, params, takes and def of its k-th name, and
 * is false behind the last */
bool settings_word(Arena *a, int k, Word *w);             /* settings.c */
bool init_word(int k, Word *w);                           /* sema_call.c */
bool contract_word(int k, Word *w);                       /* sema_require.c */
const char *keyword_name(int k);                          /* net.l; NULL behind the last */
#endif
