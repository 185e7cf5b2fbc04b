/* settings.c: the settings of data and train: names, defaults, values, and the calls that stand in them (optimizers,
 * rates, readers, mixed), each with its parameters in a table row.
 *
 * In: the data and train items of the program, and what the command line overrides.   Out: Setting entries train.* and
 * data.* of the module, every default filled in, every argument of a call named.
 * Refuses: unknown or repeated names (with the nearest known one), values of the wrong kind or out of range. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "sema_local.h"
#include "words.h"

/* A parameter is NAME:RULE or NAME:RULE=DEFAULT. Rules:
 *   P number >= 0   Q number > 0   U number in [0, 1)   B true or false   J integer >= 0   I integer >= 1
 *   R rate: P or a schedule   E list of epochs, growing   F file name or list of them   S list of strings
 *   Z size: I or [rows, columns]   M columns of each input   D a character between fields
 *   A two numbers, growing   C the same, of at most 1   Lower case: none is allowed too. */
typedef struct SpecRow { const char *group, *name, *params; } SpecRow;
static const SpecRow specs[] = {
#define OPTIMIZER(name, step, decay, params) {"optimizer", #name, params},
#include "../passes/optimizers.def"
#undef OPTIMIZER
        {"rate", "poly", "from:P=0 peak:P to:P=0 warmup_epochs:P=0 power:P=2 warmup_steps:j=none"},
        {"rate", "cosine", "from:P=0 peak:P to:P=0 warmup_epochs:P=0 warmup_steps:j=none"},
        {"rate", "linear", "from:P=0 peak:P to:P=0 warmup_epochs:P=0 warmup_steps:j=none"},
        {"rate", "step", "rate:P at:E factor:Q=0.1"},
        {"rate", "one_cycle",
         "peak:P pct_start:U=0.3 div_factor:Q=25 final_div_factor:Q=1e4 three_phase:B=false linear:B=false"},
#define READER(name, params) {"reader", #name, params},
#define IMAGE_READER READER
#include "../runtime/readers.def"
        {"reader", "synthetic", "examples:I=1024"},
        {"average", "ema", "decay:U=0.999"},
        {"precision", "mixed", "keep_f32:S=[] narrow:S=[]"},
};
enum { NSPECS = sizeof specs / sizeof *specs, MAX_PARAMS = 8 };

/* What each rule asks for, in errors and in `mantou ops`. */
static const char *const rule_needs[] = {
        ['P'] = "a number, 0 or more",
        ['Q'] = "a number above 0",
        ['U'] = "a number from 0 to below 1",
        ['B'] = "true or false",
        ['J'] = "an integer, 0 or more",
        ['I'] = "an integer from 1 to 2147483647",
        ['R'] = "a number, 0 or more, or one of poly, cosine, linear, step, one_cycle",
        ['E'] = "a list of growing epochs, as in [30, 60]",
        ['F'] = "a file name or a list of them",
        ['S'] = "a list of strings",
        ['Z'] = "a size or [rows, columns]",
        ['M'] = "columns of each input, by heading or by number from 0, as in {x = [\"age\", \"rooms\"], y = "
                "\"price\"}",
        ['A'] = "[least, most], two numbers above 0, as in [0.75, 1.3333333]",
        ['C'] = "[least, most], two numbers above 0 and at most 1, as in [0.08, 1]",
        ['D'] = "\",\", \";\", \"|\", \":\" or \"tab\"",
};

typedef struct ParamRule { char name[24], rule; char def[24]; bool has_def; } ParamRule;

/* Where a value stands, for messages: "train.batch", "momentum: rate". */
typedef struct Place { Sema *s; const char *what; Loc loc; } Place;

static bool spec_bind(Place p, const char *group, const Value *v, Setting *out);

static bool
wrong(Place p, const Value *v, const char *needs)
{
	sema_error(p.s, v->loc.line ? v->loc : p.loc, "%s is %s, needs %s", p.what, value_kind_name(v), needs);
	return false;
}

/* ---------------------------------------------------------------- plain values */

static bool
take_number(Place p, const Value *v, double low, bool open, double high, const char *needs, Setting *out)
{
	if (!value_is_number(v))
		return wrong(p, v, needs);
	if (sema_follows_n(p.s, v->loc, p.what, v))
		return false;
	double f = v->kind == V_INT ? (double)v->i : v->f;
	if (!(open ? f > low : f >= low) || !(f < high))
		return wrong(p, v, needs);
	*out = v->kind == V_INT ? (Setting){.kind = SET_INT, .i = v->i, .f = f} : (Setting){.kind = SET_NUM, .f = f};
	return true;
}

static bool
take_int(Place p, const Value *v, int64_t low, int64_t high, const char *needs, Setting *out)
{
	if (v->kind == V_INT && sema_follows_n(p.s, v->loc, p.what, v))
		return false;
	if (v->kind != V_INT || v->i < low || v->i > high)
		return wrong(p, v, needs);
	*out = (Setting){.kind = SET_INT, .i = v->i, .f = (double)v->i};
	return true;
}

static bool
take_strings(Place p, const Value *v, bool one, const char *needs, Setting *out)
{
	int n = v->kind == V_LIST ? v->n : 1;
	const Value *at = v->kind == V_LIST ? v->at : v;
	Setting *item = arena_array(p.s->arena, Setting, n);

	if (v->kind != V_LIST && !(one && v->kind == V_STR))
		return wrong(p, v, needs);
	if (one && !n)
		return wrong(p, v, needs);
	for (int k = 0; k < n; k++) {
		if (at[k].kind != V_STR || (one && !*at[k].s))
			return wrong(p, &at[k], needs);
		item[k] = (Setting){.kind = SET_STR, .s = at[k].s};
	}
	*out = (Setting){.kind = SET_LIST, .arg = item, .nargs = n};
	return true;
}

static bool
take_ints(Place p, const Value *v, bool growing, int64_t low, const char *needs, Setting *out)
{
	Setting *item;

	if (v->kind != V_LIST)
		return wrong(p, v, needs);
	item = arena_array(p.s->arena, Setting, v->n);
	for (int k = 0; k < v->n; k++)
		if (!take_int(p, &v->at[k], growing && k ? item[k - 1].i + 1 : low, INT32_MAX, needs, &item[k]))
			return false;
	*out = (Setting){.kind = SET_LIST, .arg = item, .nargs = v->n};
	return true;
}

/* [least, most], both below high. */
static bool
take_pair(Place p, const Value *v, double high, const char *needs, Setting *out)
{
	Setting *item = arena_array(p.s->arena, Setting, 2);

	if (v->kind != V_LIST || v->n != 2)
		return wrong(p, v, needs);
	for (int k = 0; k < 2; k++)
		if (!take_number(p, &v->at[k], k ? item[0].f : 0, !k, high, needs, &item[k]))
			return false;
	*out = (Setting){.kind = SET_LIST, .arg = item, .nargs = 2};
	return true;
}

/* {x = ["age", 3], y = "price"}: a list of names and numbers for each. */
static bool
take_columns(Place p, const Value *v, const char *needs, Setting *out)
{
	Setting *list;

	if (v->kind != V_SPEC || strcmp(v->s, NODE_TABLE) || !v->n)
		return wrong(p, v, needs);
	list = arena_array(p.s->arena, Setting, v->n);
	for (int k = 0; k < v->n; k++) {
		const Value *x = &v->at[k];
		int n = x->kind == V_LIST ? x->n : 1;
		Setting *item = arena_array(p.s->arena, Setting, n);

		if (!v->names[k] || !n)
			return wrong(p, x, needs);
		for (int j = 0; j < n; j++) {
			const Value *one = x->kind == V_LIST ? &x->at[j] : x;

			if (one->kind == V_STR)
				item[j] = (Setting){.kind = SET_STR, .s = one->s};
			else if (!take_int(p, one, 0, INT32_MAX, needs, &item[j]))
				return false;
		}
		list[k] = (Setting){.kind = SET_LIST, .name = v->names[k], .arg = item, .nargs = n};
	}
	*out = (Setting){.kind = SET_CALL, .s = "columns", .arg = list, .nargs = v->n};
	return true;
}

static bool
take_rule(Place p, char rule, const Value *v, Setting *out)
{
	if (rule >= 'a' && v->kind == V_NONE) {
		*out = (Setting){.kind = SET_NONE};
		return true;
	}
	rule = rule >= 'a' ? (char)(rule - 'a' + 'A') : rule;
	const char *needs = rule_needs[(unsigned char)rule];

	switch (rule) {
	case 'P': return take_number(p, v, 0, false, HUGE_VAL, needs, out);
	case 'Q': return take_number(p, v, 0, true, HUGE_VAL, needs, out);
	case 'U': return take_number(p, v, 0, false, 1, needs, out);
	case 'J': return take_int(p, v, 0, INT64_MAX, needs, out);
	case 'I': return take_int(p, v, 1, INT32_MAX, needs, out);
	case 'E': return take_ints(p, v, true, 0, needs, out);
	case 'F': return take_strings(p, v, true, needs, out);
	case 'S': return take_strings(p, v, false, needs, out);
	case 'Z':
		if (v->kind == V_LIST && v->n == 2)
			return take_ints(p, v, false, 1, needs, out);
		return take_int(p, v, 1, INT32_MAX, needs, out);
	case 'A': return take_pair(p, v, HUGE_VAL, needs, out);
	case 'C': return take_pair(p, v, nextafter(1, 2), needs, out);
	case 'M': return take_columns(p, v, needs, out);
	case 'D':
		if (v->kind != V_STR || (strcmp(v->s, "tab") && (strlen(v->s) != 1 || !strchr(",;|:", *v->s))))
			return wrong(p, v, needs);
		*out = (Setting){.kind = SET_STR, .s = v->s};
		return true;
	case 'R':
		if (v->kind == V_SPEC)
			return spec_bind(p, "rate", v, out);
		return take_number(p, v, 0, false, HUGE_VAL, needs, out);
	case 'B':
		if (v->kind != V_BOOL)
			return wrong(p, v, needs);
		*out = (Setting){.kind = SET_BOOL, .i = v->i, .f = (double)v->i};
		return true;
	}
	bug("settings: no rule %c", rule);
}

/* ---------------------------------------------------------------- calls */

static int
params_parse(const char *text, ParamRule *at)
{
	int n = 0;

	for (; *text; n++) {
		size_t len = strcspn(text, " "), name = strcspn(text, ":");
		ParamRule *r = &at[n];

		*r = (ParamRule){.rule = text[name + 1], .has_def = name + 2 < len};
		memcpy(r->name, text, name);
		if (r->has_def)
			memcpy(r->def, text + name + 3, len - name - 3);
		text += len + (text[len] == ' ');
	}
	return n;
}

static Setting
default_setting(Arena *a, const char *text)
{
	char *end;
	double f = strtod(text, &end);

	if (!strcmp(text, "none"))
		return (Setting){.kind = SET_NONE};
	if (!strcmp(text, "[]"))
		return (Setting){.kind = SET_LIST};
	if (!strcmp(text, "true") || !strcmp(text, "false"))
		return (Setting){.kind = SET_BOOL, .i = *text == 't', .f = *text == 't'};
	if (*text == '[' && text[1] != ']') {    /* two numbers */
		Setting *item = arena_array(a, Setting, 2);

		item[0] = (Setting){.kind = SET_NUM, .f = strtod(text + 1, &end)};
		item[1] = (Setting){.kind = SET_NUM, .f = strtod(end + 1, &end)};
		return (Setting){.kind = SET_LIST, .arg = item, .nargs = 2};
	}
	if (*text == '"')
		return (Setting){.kind = SET_STR, .s = ","}; /* the one string that is a default */
	if (*end)
		bug("settings: the default %s does not parse", text);
	if (!strpbrk(text, ".e"))
		return (Setting){.kind = SET_INT, .i = (int64_t)f, .f = f};
	return (Setting){.kind = SET_NUM, .f = f};
}

static const SpecRow *
spec_find(Place p, const char *group, const Value *v)
{
	static const char *const types[] = {"f32", "bf16", "f16"};
	const char *names[NSPECS + 3], *near, *why = builtin_not_yet(v->s);
	bool precision = !strcmp(group, "precision");
	Buf list = {0};
	int n = 0;

	for (; precision && n < 3; n++) /* types are no names of calls */
		buf_printf(&list, "%s%s", n ? ", " : "", names[n] = types[n]);
	for (int k = 0; k < NSPECS; k++) {
		if (strcmp(specs[k].group, group))
			continue;
		if (!strcmp(specs[k].name, v->s)) {
			buf_free(&list);
			return &specs[k];
		}
		buf_printf(&list, "%s%s", n ? ", " : "", specs[k].name);
		names[n++] = specs[k].name;
	}
	near = suggest_known(v->s, names, n);
	if (why)
		sema_error(p.s, v->loc, "`%s` is not there yet: %s", v->s, why);
	else
		sema_error(p.s, v->loc, "%s: there is no %s `%s`%s%s%s: %s are known", p.what, group, v->s,
		           near ? "; did you mean `" : "", near ? near : "", near ? "`?" : "", list.at);
	buf_free(&list);
	return NULL;
}

/* Rules between arguments of one call. */
static bool
spec_check(Place p, const Value *v, const Setting *out)
{
	const Setting *epochs = setting_arg(out, "warmup_epochs"), *steps = setting_arg(out, "warmup_steps");

	if (epochs && steps && epochs->f > 0 && steps->kind == SET_INT) {
		sema_error(p.s, v->loc, "%s: the warm-up is given in epochs and in steps, needs one of them", v->s);
		return false;
	}
	return true;
}

static bool
spec_bind(Place p, const char *group, const Value *v, Setting *out)
{
	const SpecRow *row = spec_find(p, group, v);
	ParamRule rule[MAX_PARAMS];
	const char *names[MAX_PARAMS];
	const Value *given[MAX_PARAMS] = {0};
	Setting *arg;
	int n;
	bool good = row != NULL, meant[MAX_PARAMS] = {0};

	if (!row)
		return false;
	n = params_parse(row->params, rule);
	for (int i = 0; i < n; i++)
		names[i] = arena_strdup(p.s->arena, rule[i].name);
	for (int k = 0; k < v->n; k++) {
		int i = k;

		if (v->names[k])
			for (i = 0; i < n && strcmp(names[i], v->names[k]);)
				i++;
		if (i < n && !given[i]) {
			given[i] = &v->at[k];
			continue;
		}
		good = false;
		if (i < n) {
			sema_error(p.s, v->at[k].loc, "%s: argument `%s` is given twice", v->s, names[i]);
		} else if (v->names[k]) {
			const char *near = sema_no_argument(p.s, v->at[k].loc, v->s, v->names[k], names, n,
			                                    advice(v->s, v->names[k]));

			for (i = 0; near && i < n; i++)
				meant[i] |= !strcmp(names[i], near);
		} else {
			sema_error(p.s, v->loc, "%s: %d arguments, takes at most %d", v->s, v->n, n);
			return false;
		}
	}
	arg = arena_array(p.s->arena, Setting, n);
	for (int i = 0; i < n; i++) {
		Place inner = {p.s, arena_printf(p.s->arena, "%s: %s", v->s, names[i]), v->loc};

		if (given[i]) {
			good &= take_rule(inner, rule[i].rule, given[i], &arg[i]);
		} else if (rule[i].has_def) {
			arg[i] = default_setting(p.s->arena, rule[i].def);
		} else {
			good = false;
			if (meant[i]) /* that is said already */
				continue;
			sema_error(p.s, v->loc, "%s: argument `%s` is missing%s%s%s", v->s, names[i],
			           i && given[0] && !v->names[0] ? ": what stands first is `" : "",
			           i && given[0] && !v->names[0] ? names[0] : "",
			           i && given[0] && !v->names[0] ? "`" : "");
		}
		arg[i].name = names[i];
	}
	*out = (Setting){.kind = SET_CALL, .s = row->name, .arg = arg, .nargs = n};
	return good && spec_check(p, v, out);
}

/* ---------------------------------------------------------------- the settings themselves */

typedef bool TakeFn(Place p, const Value *v, Setting *out);

static bool
take_batch(Place p, const Value *v, Setting *out)
{
	return take_rule(p, 'I', v, out);
}

static bool
take_bool(Place p, const Value *v, Setting *out)
{
	return take_rule(p, 'B', v, out);
}

static bool
take_seed(Place p, const Value *v, Setting *out)
{
	return take_int(p, v, INT64_MIN, INT64_MAX, "an integer", out);
}

static bool
take_optimizer(Place p, const Value *v, Setting *out)
{
	return v->kind == V_SPEC ? spec_bind(p, "optimizer", v, out) : wrong(p, v, "an optimizer, as in sgd(0.1)");
}

static bool
take_reader(Place p, const Value *v, Setting *out)
{
	if (v->kind == V_NONE) {
		*out = (Setting){.kind = SET_NONE};
		return true;
	}
	return v->kind == V_SPEC ? spec_bind(p, "reader", v, out) : wrong(p, v, "a reader, as in synthetic(1024)");
}

static bool
take_precision(Place p, const Value *v, Setting *out)
{
	if (v->kind == V_DTYPE && (v->i == DT_f32 || v->i == DT_bf16 || v->i == DT_f16)) {
		*out = (Setting){.kind = SET_NAME, .s = dtype_info[v->i].name};
		return true;
	}
	p.s->mixed_loc = v->loc;
	return v->kind == V_SPEC ? spec_bind(p, "precision", v, out) : wrong(p, v, "f32, bf16, f16 or mixed");
}

static bool
take_sink(Place p, const Value *v, Setting *out)
{
	if (v->kind == V_SPEC && !v->n && (!strcmp(v->s, "epoch") || !strcmp(v->s, "off"))) {
		*out = (Setting){.kind = SET_NAME, .s = v->s};
		return true;
	}
	return take_int(p, v, 1, INT32_MAX, "epoch, off or a number of steps", out);
}

static bool
take_stats(Place p, const Value *v, Setting *out)
{
	if (v->kind != V_SPEC || v->n || (strcmp(v->s, "shard") && strcmp(v->s, "batch")))
		return wrong(p, v, "shard or batch");
	*out = (Setting){.kind = SET_NAME, .s = v->s};
	return true;
}

static bool
take_clip(Place p, const Value *v, Setting *out)
{
	return take_rule(p, 'q', v, out);
}

static bool
take_freeze(Place p, const Value *v, Setting *out)
{
	p.s->freeze_loc = v->loc;
	return take_strings(p, v, false, "a list of labels, as in [\"stem\"]", out);
}

static bool
take_memory(Place p, const Value *v, Setting *out)
{
	if (v->kind == V_NONE)
		return take_rule(p, 'q', v, out);
	return take_int(p, v, 1, INT64_MAX, "none or a number of bytes, as in 2GiB", out);
}

/* [["head.*", 10], ...]: patterns of parameters, and what a number of the optimizer is multiplied by for them. */
static bool
take_factors(Place p, const Value *v, Loc *at, Setting *out)
{
	static const char needs[] = "a list of [pattern, factor], as in [[\"head.*\", 10]]";
	Setting *list;

	*at = v->loc;
	if (v->kind != V_LIST)
		return wrong(p, v, needs);
	list = arena_array(p.s->arena, Setting, v->n);
	for (int k = 0; k < v->n; k++) {
		const Value *x = &v->at[k];
		Setting *pair = arena_array(p.s->arena, Setting, 2);

		if (x->kind != V_LIST || x->n != 2 || x->at[0].kind != V_STR)
			return wrong(p, x, needs);
		pair[0] = (Setting){.kind = SET_STR, .s = x->at[0].s};
		if (!take_number(p, &x->at[1], 0, false, HUGE_VAL, "a number, 0 or more", &pair[1]))
			return false;
		list[k] = (Setting){.kind = SET_LIST, .arg = pair, .nargs = 2};
	}
	*out = (Setting){.kind = SET_LIST, .arg = list, .nargs = v->n};
	return true;
}

static bool
take_rates(Place p, const Value *v, Setting *out)
{
	return take_factors(p, v, &p.s->factors_loc[0], out);
}

static bool
take_decays(Place p, const Value *v, Setting *out)
{
	return take_factors(p, v, &p.s->factors_loc[1], out);
}

static bool
take_average(Place p, const Value *v, Setting *out)
{
	if (v->kind == V_NONE)
		return take_rule(p, 'q', v, out);
	return v->kind == V_SPEC ? spec_bind(p, "average", v, out)
	                         : wrong(p, v, "none or an average, as in ema(0.999)");
}

/* def: NULL = it must be set; what does not parse as a plain value is made by fill_defaults. */
static const struct SettingRow { const char *item, *name, *def; TakeFn *take; } rows[] = {
	{"train", "batch", NULL, take_batch},
	{"train", "epochs", "1", take_batch},
	{"train", "optimizer", "sgd(0.1)", take_optimizer},
	{"train", "precision", "f32", take_precision},
	{"train", "sink", "epoch", take_sink},
	{"train", "seed", "0", take_seed},
	{"train", "clip_norm", "none", take_clip},
	{"train", "decay_all", "false", take_bool},
	{"train", "accumulate", "1", take_batch},
	{"train", "shards", "1", take_batch},
	{"train", "batch_stats", "shard", take_stats},
	{"train", "freeze", "[]", take_freeze},
	{"train", "memory", "none", take_memory},
	{"train", "average", "none", take_average},
	{"train", "rates", "[]", take_rates},
	{"train", "decays", "[]", take_decays},
	{"data", "reader", "none", take_reader},
	{"data", "shuffle", "true", take_bool},
};
enum {
	NROWS = sizeof rows / sizeof *rows, ROW_BATCH = 0, ROW_OPTIMIZER = 2, ROW_PRECISION = 3, ROW_SINK = 4,
	ROW_ACCUMULATE = 8, ROW_SHARDS = 9, ROW_STATS = 10,
};

static int
row_find(Sema *s, const char *item, const Arg *a)
{
	const char *names[NROWS], *near;
	int n = 0;

	for (int k = 0; k < NROWS; k++) {
		if (strcmp(rows[k].item, item))
			continue;
		if (!strcmp(rows[k].name, a->name))
			return k;
		names[n++] = rows[k].name;
	}
	near = suggest_known(a->name, names, n);
	if (advice(item, a->name)) {
		sema_error(s, a->loc, "%s has no setting `%s`: %s", item, a->name, advice(item, a->name));
		return -1;
	}
	sema_error(s, a->loc, "%s has no setting `%s`%s%s%s", item, a->name, near ? "; did you mean `" : "",
	           near ? near : "", near ? "`?" : "");
	return -1;
}

/* A bare name that the setting knows is no constant's name. */
static Value
setting_value(Sema *s, int row, const Node *n)
{
	if (n->kind == N_NAME && (((row == ROW_SINK || row == ROW_PRECISION) &&
	    (!strcmp(n->s, "epoch") || !strcmp(n->s, "off") || !strcmp(n->s, "mixed"))) ||
	    (row == ROW_STATS && (!strcmp(n->s, "shard") || !strcmp(n->s, "batch")))))
		return (Value){.kind = V_SPEC, .s = n->s, .loc = n->loc};
	return sema_eval(s, n);
}

static void
read_item(Sema *s, const Item *item, Setting *set, Loc *where)
{
	for (const Arg *a = item->settings.first; a; a = a->next) {
		int k = row_find(s, item->name, a);
		Value v;

		if (k < 0)
			continue;
		if (where[k].line) {
			sema_error(s, a->loc, "%s.%s is set twice", item->name, a->name);
			sema_note(s, where[k], "it was set here");
			continue;
		}
		where[k] = a->loc;
		v = setting_value(s, k, a->value);
		Place p = {s, arena_printf(s->arena, "%s.%s", item->name, a->name), a->value->loc};

		if (v.kind == V_TUPLE)
			wrong(p, &v, "one value");
		else if (!value_is_broken(&v) && !rows[k].take(p, &v, &set[k]))
			set[k].kind = SET_NONE;
	}
}

/* Defaults that are calls or names: sgd(0.1), f32, epoch. */
static void
fill_defaults(Sema *s, Setting *set, const Loc *where)
{
	Value rate = value_float(0.1, (Loc){0}),
	      sgd = {.kind = V_SPEC, .s = "sgd", .at = &rate, .n = 1, .names = (const char *[1]){NULL}};

	for (int k = 0; k < NROWS; k++)
		if (!where[k].line && rows[k].def && k != ROW_OPTIMIZER && k != ROW_PRECISION && k != ROW_SINK &&
		    k != ROW_STATS)
			set[k] = default_setting(s->arena, rows[k].def);
	if (!where[ROW_OPTIMIZER].line)
		take_optimizer((Place){s, "train.optimizer", {0}}, &sgd, &set[ROW_OPTIMIZER]);
	if (!where[ROW_PRECISION].line)
		set[ROW_PRECISION] = (Setting){.kind = SET_NAME, .s = "f32"};
	if (!where[ROW_SINK].line)
		set[ROW_SINK] = (Setting){.kind = SET_NAME, .s = "epoch"};
	if (!where[ROW_STATS].line)
		set[ROW_STATS] = (Setting){.kind = SET_NAME, .s = "shard"};
}

static void
override_precision(Sema *s, const char *name, Setting *set)
{
	static const char *const names[] = {
#define PRECISION(word) word,
#include "../runtime/kinds.def"
	};
	Value mixed = {.kind = V_SPEC, .s = "mixed"};

	for (int k = 0; k < 4; k++) {
		if (strcmp(name, names[k]))
			continue;
		if (k == 3 && set->kind == SET_CALL) /* the file's lists stay */
			return;
		if (k == 3)
			spec_bind((Place){s, "train.precision", {0}}, "precision", &mixed, set);
		else
			*set = (Setting){.kind = SET_NAME, .s = names[k]};
		return;
	}
	diag_error(s->diags, (Loc){0}, "--precision %s: needs f32, bf16, f16 or mixed", name);
}

/* The whole numbers below and above n that are multiples of s. */
static const char *
nearest_multiples(Sema *s, int64_t n, int64_t shards)
{
	int64_t below = n / shards * shards;

	return below ? arena_printf(s->arena, "%lld or %lld", (long long)below, (long long)(below + shards))
	             : arena_printf(s->arena, "%lld", (long long)shards);
}

/* train.shards = S: graphs are made for one of the S equal parts of the batch, and s->batch is its examples from here
 * on. */
static void
cut_batch(Sema *s, Setting *set, const Loc *where)
{
	Loc at = where[ROW_SHARDS].line ? where[ROW_SHARDS] : where[ROW_BATCH].line ? where[ROW_BATCH] : s->model_loc;
	int64_t n = s->batch, a = set[ROW_ACCUMULATE].kind == SET_INT ? set[ROW_ACCUMULATE].i : 1;

	s->shards = set[ROW_SHARDS].kind == SET_INT ? set[ROW_SHARDS].i : 1;
	s->batch_stats = set[ROW_STATS].kind == SET_NAME && !strcmp(set[ROW_STATS].s, "batch");
	if (s->shards > 1 && a > 1)
		sema_error(s, at,
		           "train.accumulate = %lld does not go with train.shards = %lld; the same is batch = %lld, "
		           "shards = %lld",
		           (long long)a, (long long)s->shards, (long long)(a * n), (long long)(a * s->shards));
	else if (n % s->shards)
		sema_error(s, at, "train.batch is %lld, which %lld shards do not divide: use %s", (long long)n,
		           (long long)s->shards, nearest_multiples(s, n, s->shards));
	else
		s->batch = n / s->shards;
}

bool
settings_read(Sema *s, int64_t batch, int64_t shards, const char *precision)
{
	Setting set[NROWS] = {0};
	Loc where[NROWS] = {0};
	int errors = s->errors;

	s->in_settings = true;
	for (uint32_t k = 0; k < s->settings.n; k++)
		if (strcmp(s->settings.at[k]->name, "generate") !=
		    0) /* sema_generate reads it, when graphs are there */
			read_item(s, s->settings.at[k], set, where);
	s->in_settings = false;
	fill_defaults(s, set, where);
	if (precision)
		override_precision(s, precision, &set[ROW_PRECISION]);
	if (batch > 0)
		set[ROW_BATCH] = (Setting){.kind = SET_INT, .i = batch, .f = (double)batch};
	else if (!where[ROW_BATCH].line && !s->lost && !s->settings_lost)
		sema_error(s, s->model_loc,
		           "train.batch is not set: train { batch = ... } says how many examples make a step");
	/* After an error in it the body is looked through with some batch. */
	s->batch = set[ROW_BATCH].kind == SET_INT ? set[ROW_BATCH].i : 64;
	if (shards > 0)
		set[ROW_SHARDS] = (Setting){.kind = SET_INT, .i = shards, .f = (double)shards};
	cut_batch(s, set, where);
	for (int k = 0; k < NROWS; k++) {
		if ((k == ROW_SHARDS || k == ROW_STATS) && s->shards == 1)
			continue;                        /* a program without shards is as if there were none */
		set[k].name = arena_printf(s->arena, "%s.%s", rows[k].item, rows[k].name);
		vec_push(s->arena, &s->module->setting, set[k]);
	}
	s->reader_loc = where[NROWS - 2];
	s->module->batch = s->batch;
	return s->errors == errors;
}

/* ---------------------------------------------------------------- for `mantou ops` */

bool
settings_word(Arena *a, int k, Word *w)
{
	ParamRule rule[MAX_PARAMS];
	const char **takes;
	char *text = "";

	*w = (Word){0};
	if (k >= NSPECS + NROWS)
		return false;
	if (k >= NSPECS) {
		const struct SettingRow *row = &rows[k - NSPECS];

		*w = (Word){.kind = row->item, .name = row->name, .def = row->def};
		return true;
	}
	int n = params_parse(specs[k].params, rule);

	takes = arena_array(a, const char *, n);
	for (int i = 0; i < n; i++) {
		bool none = rule[i].rule >= 'a';
		const char *needs = rule_needs[(unsigned char)(none ? rule[i].rule - 'a' + 'A' : rule[i].rule)];

		takes[i] = none ? arena_printf(a, "none or %s", needs) : needs;
		text = arena_printf(a, "%s%s%s%s%s", text, i ? ", " : "", rule[i].name, rule[i].has_def ? "=" : "",
		                    rule[i].def);
	}
	*w = (Word){.kind = specs[k].group, .name = specs[k].name, .params = text, .takes = takes};
	return true;
}

/* ---------------------------------------------------------------- readers beside the model's inputs */

/* what: the reader names files, "training file"; NULL: it gives inputs by itself. */
static void
check_count(Sema *s, const char *reader, const char *what, int gives)
{
	if (gives != s->model->inputs.n) {
		sema_error(s, s->reader_loc, "data.reader: %s %s %d %s%s, the model has %d input%s", reader,
		           what ? "names" : "gives", gives, what ? what : "input", gives == 1 ? "" : "s",
		           s->model->inputs.n, s->model->inputs.n == 1 ? "" : "s");
		sema_note(s, s->model_loc, "the model");
	}
}

/* Input k must hold as many elements an example as the reader gives. */
static void
check_elements(Sema *s, const char *reader, int k, int64_t want, const char *what)
{
	const Graph *g = module_graph(s->module, "train");
	const InputDecl *in = s->model->inputs.first;
	int64_t has;

	for (int i = 0; i < k && in; i++)
		in = in->next;
	if (!in || (uint32_t)k >= g->input.n)
		return;
	has = type_elements(val_type(g, g->input.at[k].v)) / s->batch;
	if (has != want) {
		sema_error(s, in->loc, "input `%s` has %lld element%s an example, %s gives %lld: %s", in->name,
		           (long long)has, has == 1 ? "" : "s", reader, (long long)want, what);
		sema_note(s, s->reader_loc, "the reader");
	}
}

/* Every input has as many columns as elements of an example; without headings all are given by number. */
static void
check_columns(Sema *s, const Setting *columns, bool header)
{
	const Graph *g = module_graph(s->module, "train");
	int k = 0;

	if (columns->kind != SET_CALL)
		return;
	for (const InputDecl *in = s->model->inputs.first; in && (uint32_t)k < g->input.n; in = in->next, k++) {
		const Setting *list = setting_arg(columns, in->name);
		int64_t has = type_elements(val_type(g, g->input.at[k].v)) / s->batch;

		if (!list)
			sema_error(s, s->reader_loc, "data.reader: columns names none for input `%s`", in->name);
		else if (list->nargs != has)
			sema_error(s, s->reader_loc,
			           "data.reader: columns gives input `%s` %d, which has %lld element%s an example",
			           in->name, list->nargs, (long long)has, has == 1 ? "" : "s");
		for (int j = 0; list && !header && j < list->nargs; j++)
			if (list->arg[j].kind == SET_STR)
				sema_error(s, s->reader_loc,
				           "data.reader: column \"%s\" of input `%s` has no heading with header = "
				           "false: give its number, from 0",
				           list->arg[j].s, in->name);
	}
	for (int i = 0; i < columns->nargs; i++) {
		bool known = false;

		for (const InputDecl *in = s->model->inputs.first; in; in = in->next)
			known |= !strcmp(in->name, columns->arg[i].name);
		if (!known)
			sema_error(s, s->reader_loc, "data.reader: columns names `%s`, which is no input of the model",
			           columns->arg[i].name);
	}
}

/* The first input holds images of 1 or 3 channels, and what they are scaled to before they are cut covers them. */
static void
check_images(Sema *s, const char *reader, const Setting *size, const Setting *resize)
{
	int64_t high = size->kind == SET_LIST ? size->arg[0].i : size->i,
	        wide = size->kind == SET_LIST ? size->arg[1].i : size->i;
	const Graph *g = module_graph(s->module, "train");
	int64_t has = g->input.n ? type_elements(val_type(g, g->input.at[0].v)) / s->batch : 0;

	if (has != high * wide)
		check_elements(s, reader, 0, 3 * high * wide, "an image [3, rows, columns], or with 1 channel");
	if (resize && resize->kind == SET_INT && (resize->i < high || resize->i < wide))
		sema_error(s, s->reader_loc,
		           "data.reader: %s: resize is %lld, below the size %lld x %lld that is cut out of it", reader,
		           (long long)resize->i, (long long)high, (long long)wide);
}

void
settings_check_inputs(Sema *s)
{
	const Setting *r = setting(s->module, "data.reader");
	const char *name = r ? r->s : NULL;

	if (!r || r->kind != SET_CALL)
		return;
	if (!strncmp(name, "cifar", 5)) {
		check_count(s, name, NULL, 2);
		check_elements(s, name, 0, 3 * 32 * 32, "an image [3, 32, 32]");
		check_elements(s, name, 1, 1, "a label");
	} else if (!strcmp(name, "idx") || !strcmp(name, "npy")) {
		static const char *const sets[] = {"train", "test"};

		for (int k = 0; k < 2; k++)
			check_count(s, name, k ? "test file" : "training file",
			            setting_arg(r, sets[k])->nargs);
	} else if (!strcmp(name, "csv")) {
		check_columns(s, setting_arg(r, "columns"), setting_arg(r, "header")->i);
	} else if (!strcmp(name, "tokens")) {
		check_count(s, name, NULL, 2);
		for (int k = 0; k < 2; k++)
			check_elements(s, name, k, setting_arg(r, "length")->i,
			               k ? "the window's targets" : "the window's ids");
	} else if (!strcmp(name, "coco")) {
		int64_t most = setting_arg(r, "boxes")->i;

		check_count(s, name, NULL, 3);
		check_images(s, name, setting_arg(r, "size"), NULL);
		check_elements(s, name, 1, 4 * most, "boxes [boxes, 4]");
		check_elements(s, name, 2, most, "labels of the boxes");
		if (setting_arg(r, "images")->nargs > 2)
			sema_error(s, s->reader_loc,
			           "data.reader: coco: images names %d folders, needs one, or one for training and one "
			           "for the test set",
			           setting_arg(r, "images")->nargs);
	} else if (!strcmp(name, "skipgram")) {
		check_count(s, name, NULL, 4);
		check_elements(s, name, 0, 1, "the word in the middle");
		check_elements(s, name, 1, 2 * setting_arg(r, "window")->i, "its neighbours, 2 * window");
		check_elements(s, name, 2, 1, "how many neighbours there are");
		check_elements(s, name, 3, setting_arg(r, "negatives")->i, "negatives");
	} else if (!strcmp(name, "images")) {
		check_count(s, name, NULL, 2);
		check_images(s, name, setting_arg(r, "size"), setting_arg(r, "resize"));
		check_elements(s, name, 1, 1, "a label");
	} else if (!strcmp(name, "synthetic") && setting_arg(r, "examples")->i < s->batch * s->shards) {
		sema_error(s, s->reader_loc, "data.reader: %lld training examples are fewer than one batch of %lld",
		           (long long)setting_arg(r, "examples")->i, (long long)(s->batch * s->shards));
	}
}
