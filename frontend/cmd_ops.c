/* cmd_ops.c: `ops`: the operators of the language, from the table of builtins and ir's tables of expressions.
 *
 * Without a name a line each; with one all that is known: arguments with defaults, shapes, gradient, expression, source. */
#include "cmd.h"

#include <string.h>

static const char *
doc_of(const Builtin *p)
{
	if (p->doc && *p->doc)
		return p->doc;
	return p->ew != OP_none && op_info[p->ew].doc ? op_info[p->ew].doc : "";
}

static void
put_field(Buf *b, const char *name, const char *text)
{
	if (text && *text)
		buf_printf(b, "  %-9s %s\n", name, text);
}

static void
put_operator(Buf *b, const Builtin *p)
{
	buf_printf(b, "%s(%s)\n", p->name, p->params ? p->params : "");
	put_field(b, "meaning", doc_of(p));
	put_field(b, "shape", p->shape);
	put_field(b, "gradient", p->gradient);
	put_field(b, "source", p->source);
}

static void
put_json(Buf *b, const Builtin *p)
{
	static const char *const names[] = {"name", "arguments", "doc", "shape", "gradient", "source"};
	const char *values[] = {p->name, p->params, doc_of(p), p->shape, p->gradient, p->source};

	for (int i = 0; i < 6; i++) {
		buf_printf(b, "%s\"%s\": ", i ? ", " : "{", names[i]);
		buf_json(b, values[i] ? values[i] : "");
	}
	buf_printf(b, "}");
}

static int
one_operator(const Options *o, const char *name, Buf *b)
{
	const Builtin *p = builtin_named(name);

	if (p) {
		if (o->json)
			put_json(b, p);
		else
			put_operator(b, p);
		if (o->json)
			buf_printf(b, "\n");
		return EXIT_GOOD;
	}
	const char *why = builtin_not_yet(name);

	if (why)
		return failure("operator '%s': %s", name, why);
	const char *names[512];
	int n = 0;

	for (int i = 0; i < nbuiltins && n < 512; i++)
		names[n++] = builtins[i].name;
	const char *near = suggest(name, names, n);

	return near ? failure("there is no operator '%s'; did you mean '%s'?", name, near) : failure("there is no operator '%s'; mantou ops lists them", name);
}

int
cmd_ops(Arena *a, const Options *o)
{
	Buf b = {0};
	int status = EXIT_GOOD;

	builtins_init(a);
	if (o->noperand) {
		status = one_operator(o, o->operand[0], &b);
	} else {
		for (int i = 0; i < nbuiltins; i++) {
			const Builtin *p = &builtins[i];

			if (o->json) {
				buf_printf(&b, "%s", i ? ",\n " : "[");
				put_json(&b, p);
			} else {
				buf_printf(&b, "%s(%s)\n    %s\n", p->name, p->params ? p->params : "", doc_of(p));
			}
		}
		if (o->json)
			buf_printf(&b, "]\n");
	}
	if (b.n)
		fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return status;
}
