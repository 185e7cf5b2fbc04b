/* red.c: the rows of red.def as tables: expressions parsed once, and what follows from a row's columns.
 *
 * Stops with bug() where a row says what no target computes, so that a bad line never reaches a model. */
#include "red.h"
#include <string.h>

static const struct { OpKind kind; const char *name, *types; RedJoin join; RedThen then; const char *element, *value;
} rows[] = {
#define RED(id, types, join, element, value, then, grad, doc) \
	{OP_##id, #id, types, RED_##join, RED_##then, #element, #value},
#include "red.def"
#undef RED
};
enum { ROWS = sizeof rows / sizeof *rows };

RedInfo red_info[ROWS];

/* A second pass is about what the targets know to join. */
static const char *
refused(int i)
{
	const RedInfo *r = &red_info[i];
	bool plain = expr_is(r->element, 0);

	if (strpbrk(r->types, "IB") && !(plain && (expr_is(r->value, RED_S) || expr_is(r->value, RED_I))))
		return "integers are taken in as they are, their state is the result";
	if (expr_reads(r->value, RED_I) != (r->join == RED_FIRST))
		return "FIRST has an index and nothing but its index";
	if (r->then == RED_SQUARES && !(plain && r->join == RED_ADD && strcmp(rows[i].value, "s / n") == 0))
		return "SQUARES are about a mean";
	if (r->then == RED_EXPONENTIALS && !(plain && r->join == RED_HIGH && expr_is(r->value, RED_S)))
		return "EXPONENTIALS are below the largest";
	return NULL;
}

void
red_init(Arena *a)
{
	static const char *const of_element[] = {"x"};
	static const char *const of_value[RED_VARS] = {[RED_S] = "s", [RED_N] = "n", [RED_I] = "i"};
	const char *error = NULL;

	for (int i = 0; i < ROWS; i++) {
		RedInfo *r = &red_info[i];

		*r = (RedInfo){.types = rows[i].types, .join = rows[i].join, .then = rows[i].then};
		r->element = expr_parse_names(a, rows[i].element, of_element, 1, &error);
		r->value = r->element ? expr_parse_names(a, rows[i].value, of_value, RED_VARS, &error) : NULL;
		error = r->value ? refused(i) : error;
		if (error)
			bug("red.def, %s: %s", rows[i].name, error);
		r->sums = r->join == RED_ADD && r->then == RED_ONCE;
		r->linear = r->sums && expr_is(r->element, 0) &&
		            (expr_is(r->value, RED_S) || strcmp(rows[i].value, "s / n") == 0);
	}
}
