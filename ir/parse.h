/* parse.h: the reader of IR text, shared by parse_word.c (words, numbers, types) and parse.c (lines). Private to
 * ir/. */
#ifndef IR_PARSE_H
#define IR_PARSE_H
#include "text.h"

/* interned name -> value; id 0: broken */
typedef struct NameMap { const char **name; uint32_t *id; uint32_t n, cap; } NameMap;

typedef struct Parse {
	Module *m;
	Graph *g;
	Diags *d;
	Arena *scratch;
	uint16_t file;
	const char *at, *end, *line_at;   /* line_at: where the current line begins */
	uint32_t line;
	int depth;                        /* open repeat braces */
	bool failed;
	NameMap names;                    /* of the current graph */
} Parse;

Loc p_loc(const Parse *p);                                   /* of the next byte */
bool p_error(Parse *p, Loc at, const char *fmt, ...) __attribute__((format(printf, 3, 4))); /* false, always */
const char *p_hint(Parse *p, const char *name, const char *const *names, int n); /* "" or "; did you mean x?" */

char p_peek(const Parse *p);                                 /* next byte, 0 at the end */
void p_space(Parse *p);                                      /* blanks and a comment, not the line's end */
void p_lines(Parse *p);                                      /* blanks, comments and line ends */
void p_skip_line(Parse *p);
bool p_at_line_end(Parse *p);
bool p_char(Parse *p, char c);                               /* takes c if it comes next */
bool p_need_char(Parse *p, char c, const char *where);
bool p_keyword(Parse *p, const char *word);                  /* takes the bare word if it comes next */
/* takes the first of words that comes next: its index, or -1 */
int p_one_of(Parse *p, const char *const *words, int n);
const char *p_bare(Parse *p);                                /* bare word, interned; NULL if none, without error */
const char *p_word(Parse *p, const char *what);              /* bare or "quoted"; NULL after an error */
const char *p_quoted(Parse *p);
bool p_int(Parse *p, int64_t low, int64_t high, const char *what, int64_t *out);
bool p_number(Parse *p, const char *what, bool *is_int, int64_t *i, double *f); /* f is set in both cases */
bool p_type(Parse *p, Type *t);
bool p_source_loc(Parse *p, Loc *at);                        /* after '!' */

/* ---- lines (parse_module.c); the keyword has been taken */
bool p_module_line(Parse *p);
bool p_setting_line(Parse *p);
bool p_state_line(Parse *p);
#endif
