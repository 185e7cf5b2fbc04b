/* text.h: what print.c and parse.c must agree on. Private to ir/. */
#ifndef IR_TEXT_H
#define IR_TEXT_H
#include "ir.h"

extern const char *const text_input_kinds[IN_COUNT];   /* by InputKind */

/* Letters of names that stand without quotes. */
static inline bool
text_is_bare_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
	       c == '-' || c == '+' || c == '/';
}
/* A graph of this name is for training unless its header says otherwise. */
bool text_training_by_name(const char *name);
/* Name that a result has if none is written: the kind's word, or for metrics and outputs the value's name. */
const char *text_result_name(ResultKind k, const char *value);
#endif
