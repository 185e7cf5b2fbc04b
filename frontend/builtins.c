/* builtins.c: the table of the language's operators.
 *
 * In: builtins.def (operators with a function of their own) and ir/ew.def (elementwise ones, which need no row here).
 * Out: builtins[], each row with its parameter list parsed: names, and defaults as compile-time values. The elaborator
 * binds a call's arguments to that list and calls the function. Also what the language names but does not have yet,
 * with the reason. A malformed parameter list is a bug(), found by the first start of the program. */
#include <stdlib.h>
#include "builtins.h"
#include "words.h"

static const Builtin rows[] = {
#define BUILTIN(nm, pr, f, sh, gr, dc, src) \
	{.name = #nm, .params = pr, .fn = f, .shape = sh, .gradient = gr, .doc = dc, .source = src},
#include "builtins.def"
#undef BUILTIN
};
enum { NROWS = sizeof rows / sizeof *rows, NEW = 0
#define EW(...) + 1
#include "../ir/ew.def"
#undef EW
};

Builtin builtins[NROWS + NEW];
int nbuiltins;

/* Elementwise rows that are spelt as operators, or that another operator stands for. */
static const char *const not_by_name[] = {
        "add", "sub", "mul", "div", "idiv", "imod", "mod", "neg", "eq",
        "ne",  "lt",  "le",  "gt",  "ge",   "and",  "or",  "not", "gelu_tanh",
};

/* What the expression does not say by itself. */
static const struct { const char *name, *doc, *source; } ew_docs[] = {
	{"maximum", "the larger of two; the gradient of a tie goes half to each", ""},
	{"minimum", "the smaller of two; the gradient of a tie goes half to each", ""},
	{"relu", "x where positive, else 0; its derivative at 0 is 0", "Nair and Hinton 2010"},
	{"relu6", "relu, at most 6", "Howard et al. 2017, arXiv:1704.04861"},
	{"leaky_relu", "x where positive, else slope times x", "Maas et al. 2013"},
	{"elu", "x where positive, else alpha (exp(x) - 1)", "Clevert et al. 2015, arXiv:1511.07289"},
	{"silu", "x sigmoid(x)", "Hendrycks and Gimpel 2016, arXiv:1606.08415"},
	{"sigmoid", "1 / (1 + exp(-x))", ""},
	{"tanh", "hyperbolic tangent", ""},
	{"softplus", "log(1 + exp(x)) without overflow", ""},
	{"hardswish", "x clamp(x + 3, 0, 6) / 6", "Howard et al. 2019, arXiv:1905.02244"},
	{"hardsigmoid", "clamp(x + 3, 0, 6) / 6", "Courbariaux et al. 2015, arXiv:1511.00363"},
	{"exp", "e to the power x", ""},
	{"log", "natural logarithm", ""},
	{"log1p", "log(1 + x), exact for small x", ""},
	{"sqrt", "square root", ""},
	{"rsqrt", "1 / sqrt(x)", ""},
	{"square", "x times x", ""},
	{"reciprocal", "1 / x", ""},
	{"abs", "absolute value; its derivative at 0 is 0", ""},
	{"sign", "-1, 0 or 1; NaN stays", ""},
	{"floor", "largest integer not above x", ""},
	{"ceil", "smallest integer not below x", ""},
	{"round", "nearest integer, halves to the even one", ""},
	{"erf", "the error function", ""},
	{"sin", "sine", ""},
	{"cos", "cosine", ""},
};

static const struct { const char *name, *why; } not_yet[] = {
	{"unique", "no operator has a result whose shape depends on values"},
	{"nonzero", "no operator has a result whose shape depends on values"},
	{"masked_select", "no operator has a result whose shape depends on values; where keeps the shape"},
	{"scatter", "gather and take read by index; one_hot and matmul write by index"},
	{"scatter_add", "gather and take read by index; one_hot and matmul write by index"},
	{"cumprod", "cumsum of logarithms is the nearest there is"},
	{"conv3d", "convolutions have two spatial axes"},
	{"unfold", "conv2d, max_pool2d and avg_pool2d are what takes windows"},
	{"grid_sample", "no operator samples between pixels yet"},
	{"rnn", "lstm and gru are the recurrences there are"},
	{"ctc_loss", "cross_entropy with a label for each step is the nearest there is"},
	{"fft", "no operator transforms to frequencies yet"},
	{"while", "loops are unrolled: repeat and for take a number of turns that is known when compiling"},
	{"scan", "lstm, gru and cumsum are the recurrences there are; repeat unrolls a block"},
	{"color_jitter", "random_crop, random_flip and arithmetic with random are the augmentations there are"},
	{"random_rotation", "random_crop, random_flip and arithmetic with random are the augmentations there are"},
	{"lars", "momentum with a warm-up is the nearest optimizer there is"},
};

/* ---------------------------------------------------------------- parameter lists */

/* A default: none, true, a number, "text", f32, he_normal, normal(1), or the name of an earlier parameter. */
static bool
default_value(Arena *a, const char *text, Value *v)
{
	char *end;

	*v = (Value){.kind = V_NONE};
	if (!strcmp(text, "none"))
		return true;
	if (!strcmp(text, "true") || !strcmp(text, "false")) {
		*v = (Value){.kind = V_BOOL, .i = text[0] == 't'};
		return true;
	}
	if (text[0] == '"') {
		*v = (Value){.kind = V_STR, .s = arena_strndup(a, text + 1, strlen(text) - 2)};
		return true;
	}
	double f = strtod(text, &end);
	if (end != text && !*end) {
		bool whole = !strpbrk(text, ".e");

		*v = (Value){.kind = whole ? V_INT : V_FLOAT, .i = whole ? (int64_t)f : 0, .f = f};
		return true;
	}
	DType t = dtype_named(text, strlen(text));
	if (t) {
		*v = (Value){.kind = V_DTYPE, .i = t};
		return true;
	}
	*v = (Value){.kind = V_SPEC, .s = arena_strdup(a, text)};
	const char *open = strchr(text, '(');
	if (open) { /* one number, as in normal(1) */
		Value *arg = arena_new_of(a, Value);

		*arg = (Value){.kind = V_FLOAT, .f = strtod(open + 1, &end)};
		if (*end != ')')
			return false;
		v->s = arena_strndup(a, text, (size_t)(open - text));
		v->at = arg;
		v->n = 1;
		v->names = arena_array(a, const char *, 1);
	}
	return true;
}

static void
params_parse(Arena *a, Builtin *op)
{
	int n = 1;

	for (const char *p = op->params; *p; p++)
		n += *p == ',';
	op->param = arena_array(a, const char *, n);
	Value *def = arena_array(a, Value, n);
	bool *has = arena_array(a, bool, n);
	op->nparam = 0;
	for (const char *p = op->params; *p;) {
		p += strspn(p, " ,");
		size_t len = strcspn(p, ",");
		char *text = arena_strndup(a, p, len);
		char *eq = strchr(text, '=');
		int k = op->nparam++;

		p += len;
		op->param[k] = text;
		if (!eq)
			continue;
		*eq = 0;
		has[k] = true;
		if (!default_value(a, eq + 1, &def[k]))
			bug("operator %s: default of %s does not parse: %s", op->name, text, eq + 1);
		for (int j = 0; j < k; j++) /* stride=k: the function looks whether it was given */
			if (def[k].kind == V_SPEC && !strcmp(def[k].s, op->param[j]))
				def[k] = (Value){.kind = V_NONE};
	}
	op->def = def;
	op->has_def = has;
}

/* "x", "x, y", then the attributes with their defaults. */
static const char *
ew_params(Arena *a, const OpInfo *info)
{
	static const char *const tensors[] = {"", "x", "x, y", "x, y, z"};
	char *text = arena_strdup(a, tensors[info->nin]);

	for (int i = 0; i < info->nattr; i++) {
		const char *name = attr_names[info->attr_name[i]].name;
		const Attr *d = &info->attr_default[i];

		Buf number = {0};

		buf_double(&number, d->is_int ? (double)d->i : d->f);
		text = info->attr_required[i] ? arena_printf(a, "%s, %s", text, name)
		                              : arena_printf(a, "%s, %s=%s", text, name, number.at);
		buf_free(&number);
	}
	return text;
}

static bool
ew_is_public(const char *name)
{
	for (size_t i = 0; i < sizeof not_by_name / sizeof *not_by_name; i++)
		if (!strcmp(name, not_by_name[i]))
			return false;
	for (size_t i = 0; i < NROWS; i++)
		if (!strcmp(name, rows[i].name))
			return false;
	return name[0] != '_';
}

static void
add_elementwise(Arena *a, OpKind k)
{
	const OpInfo *info = &op_info[k];
	Builtin *op = &builtins[nbuiltins++];

	*op = (Builtin){
	        .name = info->name, .params = ew_params(a, info), .fn = builtin_elementwise, .ew = k, .source = ""};
	op->shape = info->nin == 1 ? "as x" : "NumPy broadcasting";
	op->gradient = info->nin == 1 ? "x" : "every floating input";
	for (size_t i = 0; i < sizeof ew_docs / sizeof *ew_docs; i++)
		if (!strcmp(op->name, ew_docs[i].name)) {
			op->doc = ew_docs[i].doc;
			op->source = ew_docs[i].source;
		}
	if (!op->doc)
		bug("%s is callable and has no sentence: ew_docs in frontend/builtins.c", op->name);
}

void
builtins_init(Arena *a)
{
	nbuiltins = 0;
	for (size_t i = 0; i < NROWS; i++)
		builtins[nbuiltins++] = rows[i];
	for (int k = 1; k < OP_COUNT; k++)
		if (op_info[k].ew >= 0 && op_info[k].part == 0 && op_has(k, T_EW) && ew_is_public(op_info[k].name))
			add_elementwise(a, k);
	for (int i = 0; i < nbuiltins; i++)
		params_parse(a, &builtins[i]);
}

const Builtin *
builtin_named(const char *name)
{
	for (int i = 0; i < nbuiltins; i++)
		if (!strcmp(builtins[i].name, name))
			return &builtins[i];
	return NULL;
}

const char *
builtin_not_yet(const char *name)
{
	for (size_t i = 0; i < sizeof not_yet / sizeof *not_yet; i++)
		if (names_alike(not_yet[i].name, name))
			return not_yet[i].why;
	return NULL;
}
