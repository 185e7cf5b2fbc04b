/* sema_generate.c: the section generate: how to write with a language model or a translator, a token at a time.
 *
 * In: its settings and the elaborated graphs.   Out: settings generate.token, .logits, .start, .end of the module.
 * token names an integer input [N, T], logits an output [N, T, V] of the evaluation graph; start and end are tokens. */
#include "sema_local.h"
#include "words.h"

#include <string.h>

enum { TOKEN, LOGITS, START, END, GENERATE_SETTINGS };
static const char *const names[GENERATE_SETTINGS] = {"token", "logits", "start", "end"};

/* Number of the setting; -1 after an error. */
static int
known(Sema *s, const Arg *a)
{
	const char *near;

	for (int k = 0; k < GENERATE_SETTINGS; k++)
		if (!strcmp(names[k], a->name))
			return k;
	near = suggest_known(a->name, names, GENERATE_SETTINGS);
	sema_error(s, a->loc, "generate has no setting `%s`%s%s%s", a->name, near ? "; did you mean `" : "",
	           near ? near : "", near ? "`?" : "");
	return -1;
}

/* start and end: a token, a constant of the file. */
static bool
take_token(Sema *s, const Arg *a, Setting *out)
{
	Value v = sema_eval(s, a->value);

	if (value_is_broken(&v))
		return false;
	if (v.kind == V_NONE && !strcmp(a->name, names[END])) {
		*out = (Setting){.kind = SET_NONE};
		return true;
	}
	if (v.kind != V_INT || v.mul || v.i < 0 || v.i > INT32_MAX) {
		sema_error(s, a->value->loc, "generate.%s is %s, needs a token: an integer, 0 or more", a->name,
		           value_kind_name(&v));
		return false;
	}
	*out = (Setting){.kind = SET_INT, .i = v.i, .f = (double)v.i};
	return true;
}

static const Type *
input_named(const Graph *g, const char *name)
{
	for (uint32_t k = 0; k < g->input.n; k++)
		if (g->input.at[k].kind == IN_DATA && !strcmp(g->input.at[k].name, name))
			return val_type(g, g->input.at[k].v);
	return NULL;
}

static const Type *
output_named(const Graph *g, const char *name)
{
	for (uint32_t k = 0; k < g->result.n; k++)
		if (g->result.at[k].kind == RES_OUTPUT && !strcmp(g->result.at[k].name, name))
			return val_type(g, g->result.at[k].v);
	return NULL;
}

static const char *
words_of(Sema *s, const Type *t)
{
	Buf b = {0};

	type_print(&b, t);
	const char *r = arena_strdup(s->arena, b.at);

	buf_free(&b);
	return r;
}

static bool
by_example(const Type *t, int rank)
{
	bool fixed = t->rank == rank && t->axis[0].mul == 1 && t->axis[0].div == 1;

	for (int k = 1; fixed && k < rank; k++)
		fixed = !t->axis[k].mul;
	return fixed;
}

/* Do token and logits name what they must? */
static void
check_shapes(Sema *s, const Setting *set, const Loc *where)
{
	const Graph *g = module_graph(s->module, "eval");
	const Type *token = input_named(g, set[TOKEN].s), *logits = output_named(g, set[LOGITS].s);

	if (!token)
		sema_error(s, where[TOKEN], "generate.token is `%s`, the model has no such input", set[TOKEN].s);
	else if (!dtype_is_int((DType)token->dtype) || !by_example(token, 2))
		sema_error(s, where[TOKEN], "generate.token is %s, needs an integer input [N, T]",
		           arena_printf(s->arena, "`%s`: %s", set[TOKEN].s, words_of(s, token)));
	if (!logits)
		sema_error(s, where[LOGITS], "generate.logits is `%s`, the model has no such output", set[LOGITS].s);
	else if (!dtype_is_float((DType)logits->dtype) || !by_example(logits, 3) ||
	         (token && token->rank == 2 && logits->axis[1].n != token->axis[1].n))
		sema_error(s, where[LOGITS],
		           "generate.logits is `%s`: %s, needs an output [N, T, V] with the T of the token",
		           set[LOGITS].s, words_of(s, logits));
}

void
sema_generate(Sema *s)
{
	Setting set[GENERATE_SETTINGS] = {[START] = {.kind = SET_INT}, [END] = {.kind = SET_NONE}};
	Loc where[GENERATE_SETTINGS] = {0}, section = {0};
	int errors = s->errors;

	for (uint32_t i = 0; i < s->settings.n; i++) {
		const Item *it = s->settings.at[i];

		if (strcmp(it->name, "generate"))
			continue;
		section = it->loc;
		for (const Arg *a = it->settings.first; a; a = a->next) {
			int k = known(s, a);

			if (k < 0)
				continue;
			if (where[k].line) {
				sema_error(s, a->loc, "generate.%s is set twice", a->name);
				sema_note(s, where[k], "it was set here");
				continue;
			}
			where[k] = a->loc;
			if (k >= START)
				take_token(s, a, &set[k]);
			else if (a->value->kind == N_NAME)
				set[k] = (Setting){.kind = SET_NAME, .s = a->value->s};
			else
				sema_error(s, a->value->loc, "generate.%s is the name of %s", a->name,
				           k == TOKEN ? "an input" : "an output");
		}
	}
	if (!section.line || s->errors > errors)
		return;
	for (int k = 0; k < START; k++)
		if (!set[k].s)
			sema_error(s, section, "generate.%s is not set: it names %s", names[k],
			           k ? "the output that scores the next token" : "the input that is written");
	if (s->errors > errors)
		return;
	check_shapes(s, set, where);
	for (int k = 0; k < GENERATE_SETTINGS; k++) {
		set[k].name = arena_printf(s->arena, "generate.%s", names[k]);
		vec_push(s->arena, &s->module->setting, set[k]);
	}
}
