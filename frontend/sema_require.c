/* sema_require.c: `require`: contracts that the compiler checks later, and conditions that are known at once.
 *
 * Out: a Require per contract, which becomes the setting require.K = NAME(arguments, where = "file:line:column"). The
 * names are fused("layer"[, "layer"]), peak_memory (beside <= or <), deterministic, no_transpose[("layer")]; `and`
 * joins several. */
#include <string.h>
#include "sema_local.h"
#include "words.h"

static const char *const contracts[] = {"fused", "peak_memory", "deterministic", "no_transpose"};
enum { NCONTRACTS = sizeof contracts / sizeof *contracts };

bool
contract_word(int k, Word *w)
{
	static const char *const params[] = {"layer, with=none", "", "", "layer=none"};

	_Static_assert(sizeof params / sizeof *params == NCONTRACTS, "a list of arguments for each");
	if (k < NCONTRACTS)
		*w = (Word){.kind = "contract", .name = contracts[k], .params = params[k]};
	return k < NCONTRACTS;
}

static bool
is_contract(const char *name)
{
	for (int k = 0; k < NCONTRACTS; k++)
		if (!strcmp(name, contracts[k]))
			return true;
	return false;
}

static void
add_contract(Sema *s, const Node *n, const char *name, const Setting *arg, int nargs)
{
	Setting *all = arena_array(s->arena, Setting, nargs + 1), set;
	const Source *src = &s->diags->source.at[n->loc.file];

	/* Once, though the body is elaborated twice and a block may be called often. */
	for (uint32_t k = 0; k < s->require.n; k++)
		if (s->require.at[k].loc.file == n->loc.file && s->require.at[k].loc.line == n->loc.line &&
		    s->require.at[k].loc.col == n->loc.col)
			return;
	for (int k = 0; k < nargs; k++)
		all[k] = arg[k];
	all[nargs] = (Setting){.kind = SET_STR,
	                       .name = "where",
	                       .s = arena_printf(s->arena, "%s:%u:%u", src->name, n->loc.line, n->loc.col)};
	set = (Setting){.kind = SET_CALL, .s = name, .arg = all, .nargs = nargs + 1};
	vec_push(s->arena, &s->require, ((Require){.loc = n->loc, .setting = set}));
}

static void
peak_memory(Sema *s, const Node *n)
{
	Value v;

	if (n->kind != N_BINARY || (strcmp(n->s, "<=") && strcmp(n->s, "<")) || n->a->kind != N_NAME) {
		sema_error(s, n->loc, "peak_memory is bounded from above: require peak_memory <= 2GiB");
		return;
	}
	v = sema_eval(s, n->b);
	if (value_is_broken(&v) || sema_follows_n(s, n->b->loc, "the bound", &v))
		return;
	if (!value_is_number(&v) || v.f < 1 || v.f > 9e18) {
		sema_error(s, n->b->loc, "peak_memory is bounded by a number of bytes, here %s", value_kind_name(&v));
		return;
	}
	int64_t bytes = v.kind == V_INT ? v.i : (int64_t)v.f;
	Setting limit = {.kind = SET_INT, .name = "limit", .i = bytes - (n->s[1] ? 0 : 1)};

	limit.f = (double)limit.i;
	add_contract(s, n, "peak_memory", &limit, 1);
}

/* fused, deterministic, no_transpose: with as many strings as they take. */
static void
plain_contract(Sema *s, const Node *n)
{
	static const char *const names[] = {"layer", "with"};
	Setting arg[2] = {{.kind = SET_NONE, .name = "layer"}, {.kind = SET_NONE, .name = "with"}};
	int low = !strcmp(n->s, "fused"), high = low ? 2 : !strcmp(n->s, "no_transpose"), k = 0;

	if (n->args.n < low || n->args.n > high) {
		sema_error(s, n->loc, "%s takes %s, here %d", n->s,
		           low    ? "one or two layers"
		           : high ? "at most one layer"
		                  : "no argument",
		           n->args.n);
		return;
	}
	for (const Arg *a = n->args.first; a; a = a->next, k++) {
		Value v = sema_eval(s, a->value);

		if (value_is_broken(&v))
			return;
		if (v.kind != V_STR || a->name) {
			sema_error(s, a->value->loc, "%s takes the path of a layer as a string, here %s", n->s,
			           a->name ? "a named argument" : value_kind_name(&v));
			return;
		}
		arg[k] = (Setting){.kind = SET_STR, .name = names[k], .s = v.s};
	}
	add_contract(s, n, n->s, arg, high);
}

static bool
mentions(const Node *n, const char *name)
{
	return n && (n->kind == N_NAME || n->kind == N_CALL) && !strcmp(n->s, name);
}

static bool
is_unknown_name(Sema *s, const Node *n)
{
	return n->kind == N_NAME && !frame_find(s->frame, n->s) && !map_get(&s->const_of, n->s) &&
	       strcmp(n->s, "training") && strcmp(n->s, "N");
}

static void
unknown_contract(Sema *s, const Node *n)
{
	const char *near = suggest(n->s, contracts, NCONTRACTS);

	if (s->lost || s->frame->lost)
		s->errors++;
	else
		sema_error(
		        s, n->loc,
		        "there is no contract `%s`%s%s%s: fused, peak_memory, deterministic and no_transpose are known",
		        n->s, near ? "; did you mean `" : "", near ? near : "", near ? "`?" : "");
}

void
sema_require(Sema *s, const Node *n)
{
	bool call, yes;

	for (; n->kind == N_AND; n = n->a)
		sema_require(s, n->b);
	if (n->kind == N_BINARY && (mentions(n->a, "peak_memory") || mentions(n->b, "peak_memory"))) {
		peak_memory(s, n);
		return;
	}
	call = n->kind == N_CALL;
	if (mentions(n, "peak_memory")) {
		peak_memory(s, n);
	} else if ((call || n->kind == N_NAME) && is_contract(n->s)) {
		plain_contract(s, n);
	} else if ((call && !builtin_named(n->s) && !map_get(&s->block_of, n->s)) || is_unknown_name(s, n)) {
		unknown_contract(s, n);
	} else if (n->kind == N_BINARY && is_unknown_name(s, n->a) && suggest(n->a->s, contracts, NCONTRACTS)) {
		unknown_contract(s, n->a);
	} else if (sema_condition(s, n, &yes) && !yes) {
		sema_error(s, n->loc, "the requirement does not hold");
	}
}
