/* lex.c: scanner of PTX text.
 *
 * In: text that ends with a NUL.   Out: words (opcodes with their dots, names, directives), numbers as bits, strings,
 * single marks. Comments are skipped. An opcode such as cp.async.ca.shared::cta.global is one word. */
#include "ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void
lex_open(Lex *l, const char *text)
{
	*l = (Lex){ .at = text, .end = text + strlen(text), .line = 1 };
}

static void
lex_space(Lex *l)
{
	for (;;) {
		if (*l->at == '\n') {
			l->line++;
			l->at++;
		} else if (isspace((unsigned char)*l->at)) {
			l->at++;
		} else if (l->at[0] == '/' && l->at[1] == '/') {
			while (*l->at && *l->at != '\n')
				l->at++;
		} else if (l->at[0] == '/' && l->at[1] == '*') {
			while (*l->at && !(l->at[0] == '*' && l->at[1] == '/')) {
				l->line += *l->at == '\n';
				l->at++;
			}
			l->at += *l->at ? 2 : 0;
		} else {
			return;
		}
	}
}

static bool
lex_in_word(const char *c)
{
	return isalnum((unsigned char)*c) || *c == '_' || *c == '$' || *c == '%' || *c == '.' ||
	       (c[0] == ':' && c[1] == ':') || (c[0] == ':' && c[-1] == ':');
}

static void
lex_number(Lex *l)
{
	char *end;

	l->tok = TOK_INT;
	if (l->at[0] == '0' && (l->at[1] == 'f' || l->at[1] == 'F' || l->at[1] == 'd' || l->at[1] == 'D')) {
		l->tok = l->at[1] == 'f' || l->at[1] == 'F' ? TOK_F32 : TOK_F64;
		l->value = strtoull(l->at + 2, &end, 16);
	} else {
		l->value = strtoull(l->at, &end, 0);
		if ((*end == '.' && isdigit((unsigned char)end[1])) || *end == 'e' || *end == 'E') {
			double d = strtod(l->at, &end);

			l->tok = TOK_F64;
			memcpy(&l->value, &d, 8);
		}
		if (*end == 'U')
			end++;
	}
	l->at = end;
}

void
lex_next(Lex *l)
{
	lex_space(l);
	l->text = l->at;
	l->len = 1;
	if (!*l->at) {
		l->tok = TOK_END;
	} else if (isdigit((unsigned char)*l->at)) {
		lex_number(l);
	} else if (isalpha((unsigned char)*l->at) || strchr("_$%.", *l->at)) {
		l->tok = TOK_WORD;
		for (l->at++; lex_in_word(l->at) && !(*l->text == '.' && *l->at == '.'); l->at++) /* .reg.b16 is two */
			;
		l->len = (uint32_t)(l->at - l->text);
	} else if (*l->at == '"') {
		l->tok = TOK_STRING;
		l->text = ++l->at;
		while (*l->at && *l->at != '"')
			l->at++;
		l->len = (uint32_t)(l->at - l->text);
		l->at += *l->at == '"';
	} else {
		l->tok = TOK_PUNCT;
		l->at++;
	}
}

bool
lex_is(const Lex *l, const char *word)
{
	return (l->tok == TOK_WORD || l->tok == TOK_PUNCT) && strlen(word) == l->len && !memcmp(word, l->text, l->len);
}

const char *
lex_unknown(const Lex *l, char *to, size_t n)
{
	size_t len = l->tok == TOK_END ? 0 : l->len < n - 1 ? l->len : n - 1;

	memcpy(to, l->text, len);
	to[len] = 0;
	return len ? to : "the end";
}
