/* expr.c: the small expression language of ew.def and red.def.
 *
 * In: text such as "x < 0 ? 0 : x". Out: a tree with the variables it uses, or a message. Precedence climbing over
 *   ?:   ||   &&   == !=   < <= > >=   + -   * /   unary - and !   calls, numbers, the variables x y z r g a b,
 * or variables of whatever names the caller has (codegen/tune.def: parameters of kernels, facts of a group).
 * Every number is a double, as the same tokens pasted into C must mean the same: a quotient of two literals is refused,
 * since C would divide integers. Both arms of ?: are evaluated by the emitters, so nothing here may trap. */
#include "ir.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 200 };

static const struct { const char *name; ExprKind kind; int args;
} calls[] = {
        {"exp", EX_EXP, 1},     {"log", EX_LOG, 1},     {"log1p", EX_LOG1P, 1}, {"sqrt", EX_SQRT, 1},
        {"erf", EX_ERF, 1},     {"expm1", EX_EXPM1, 1}, {"erfc", EX_ERFC, 1},   {"floormod", EX_FLOORMOD, 2},
        {"tanh", EX_TANH, 1},   {"sin", EX_SIN, 1},     {"cos", EX_COS, 1},     {"pow", EX_POW, 2},
        {"floor", EX_FLOOR, 1}, {"ceil", EX_CEIL, 1},   {"rint", EX_RINT, 1},   {"fabs", EX_FABS, 1},
        {"fmin", EX_FMIN, 2},   {"fmax", EX_FMAX, 2},   {"idiv", EX_IDIV, 2},   {"imod", EX_IMOD, 2},
};

/* Longest spelling first where one begins another. level: binding strength, higher binds tighter. */
static const struct { const char *text; ExprKind kind; int level; } binary[] = {
	{"||", EX_OR, 1}, {"&&", EX_AND, 2}, {"==", EX_EQ, 3}, {"!=", EX_NE, 3}, {"<=", EX_LE, 4}, {">=", EX_GE, 4},
	{"<", EX_LT, 4},  {">", EX_GT, 4},   {"+", EX_ADD, 5}, {"-", EX_SUB, 5}, {"*", EX_MUL, 6}, {"/", EX_DIV, 6},
};

static const char *const letters[] = {"x", "y", "z", "r", "g", "a", "b"};
enum { NLETTER = sizeof letters / sizeof *letters };
static_assert(NLETTER == sizeof EXPR_VARS - 1, "letters are EXPR_VARS");

typedef struct Reader {
	Arena *arena;
	const char *at;
	const char *error;
	const char *const *names; int nname;
	int depth;
} Reader;

static const Expr *parse_select(Reader *r);

static const Expr *
fail(Reader *r, const char *what)
{
	if (!r->error)
		r->error = arena_printf(r->arena, "%s at \"%.20s\"", what, r->at);
	return NULL;
}

static void
skip_space(Reader *r)
{
	while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n')
		r->at++;
}

static bool
accept(Reader *r, const char *text)
{
	skip_space(r);
	if (strncmp(r->at, text, strlen(text)) != 0)
		return false;
	r->at += strlen(text);
	return true;
}

static const Expr *
node(Reader *r, ExprKind kind, const Expr *a, const Expr *b, const Expr *c)
{
	Expr *e = arena_new_of(r->arena, Expr);

	*e = (Expr){.kind = kind, .a = a, .b = b, .c = c};
	e->uses = (a ? a->uses : 0) | (b ? b->uses : 0) | (c ? c->uses : 0);
	return e;
}

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static const Expr *
parse_call(Reader *r, const char *name, size_t n)
{
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		const Expr *a, *b = NULL;

		if (strlen(calls[i].name) != n || strncmp(calls[i].name, name, n) != 0)
			continue;
		if (!accept(r, "("))
			return fail(r, "a call needs (");
		a = parse_select(r);
		if (a && calls[i].args == 2) {
			if (!accept(r, ","))
				return fail(r, "the call needs two arguments");
			b = parse_select(r);
		}
		if (!a || (calls[i].args == 2 && !b))
			return NULL;
		return accept(r, ")") ? node(r, calls[i].kind, a, b, NULL) : fail(r, "missing )");
	}
	r->at = name;
	return fail(r, "no such function or variable");
}

static const Expr *
parse_name(Reader *r)
{
	const char *name = r->at;
	int i = 0;
	Expr *e;

	while (is_letter(*r->at) || is_digit(*r->at))
		r->at++;
	size_t n = (size_t)(r->at - name);

	while (i < r->nname && (strncmp(r->names[i], name, n) != 0 || r->names[i][n]))
		i++;
	if (i == r->nname)
		return parse_call(r, name, n);
	e = arena_new_of(r->arena, Expr);
	*e = (Expr){.kind = EX_VAR, .var = n == 1 ? *name : 0, .index = i, .uses = i < 32 ? 1u << i : 0};
	return e;
}

static const Expr *
parse_number(Reader *r)
{
	char text[64], *end;
	size_t n = strspn(r->at, "0123456789."); /* strtod alone would also take hexadecimal and names */
	Expr *e;

	if ((r->at[n] == 'e' || r->at[n] == 'E') &&
	    is_digit(r->at[n + 1 + (r->at[n + 1] == '-' || r->at[n + 1] == '+')])) {
		n += 2;
		n += strspn(r->at + n, "0123456789");
	}
	if (n >= sizeof text)
		return fail(r, "number too long");
	memcpy(text, r->at, n);
	text[n] = 0;
	e = arena_new_of(r->arena, Expr);
	*e = (Expr){.kind = EX_NUM, .num = strtod(text, &end)};
	if (*end || end == text)
		return fail(r, "malformed number");
	r->at += n;
	return e;
}

static const Expr *
parse_unary(Reader *r)
{
	const Expr *e = NULL;

	if (++r->depth > MAX_DEPTH)
		return fail(r, "nested too deeply");
	skip_space(r);
	if (accept(r, "-")) {
		e = parse_unary(r);
		e = e ? node(r, EX_NEG, e, NULL, NULL) : NULL;
	} else if (*r->at == '!' && r->at[1] != '=') {
		r->at++;
		e = parse_unary(r);
		e = e ? node(r, EX_NOT, e, NULL, NULL) : NULL;
	} else if (accept(r, "(")) {
		e = parse_select(r);
		if (e && !accept(r, ")"))
			e = fail(r, "missing )");
	} else if (is_digit(*r->at) || *r->at == '.') {
		e = parse_number(r);
	} else if (is_letter(*r->at)) {
		e = parse_name(r);
	} else {
		fail(r, "an operand is missing");
	}
	r->depth--;
	return e;
}

static const Expr *
parse_binary(Reader *r, int level)
{
	const Expr *a = parse_unary(r);

	while (a) {
		size_t i = 0, n = sizeof binary / sizeof binary[0];
		const Expr *b;

		skip_space(r);
		while (i < n && strncmp(r->at, binary[i].text, strlen(binary[i].text)) != 0)
			i++;
		if (i == n || binary[i].level < level)
			return a;
		r->at += strlen(binary[i].text);
		b = parse_binary(r, binary[i].level + 1);
		if (!b)
			return NULL;
		if (binary[i].kind == EX_DIV && a->kind == EX_NUM && b->kind == EX_NUM)
			return fail(r, "a quotient of two literals (C would divide integers)");
		a = node(r, binary[i].kind, a, b, NULL);
	}
	return NULL;
}

static const Expr *
parse_select(Reader *r)
{
	const Expr *a, *b, *c;

	if (++r->depth > MAX_DEPTH)
		return fail(r, "nested too deeply");
	a = parse_binary(r, 1);
	if (a && accept(r, "?")) {
		b = parse_select(r);
		if (b && !accept(r, ":"))
			b = fail(r, "? without :");
		c = b ? parse_select(r) : NULL;
		a = c ? node(r, EX_SELECT, a, b, c) : NULL;
	}
	r->depth--;
	return a;
}

const Expr *
expr_parse(Arena *a, const char *text, const char **error)
{
	return expr_parse_names(a, text, letters, NLETTER, error);
}

const Expr *
expr_parse_names(Arena *a, const char *text, const char *const *names, int n, const char **error)
{
	Reader r = {.arena = a, .at = text, .names = names, .nname = n};
	const Expr *e = parse_select(&r);

	skip_space(&r);
	if (e && *r.at)
		e = fail(&r, "the expression should end");
	*error = r.error;
	return e;
}

/* The divisor's sign, as Python and NumPy have it. fmod is exact; x - y * floor(x / y) is not, once the quotient has
 * rounded. */
double
floormod(double x, double y)
{
	double rest = fmod(x, y);

	return rest == 0 ? copysign(rest, y) : (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Of integers: by 0 gives 0. */
static int64_t
floor_divide(int64_t x, int64_t y, bool rest)
{
	int64_t q, r;

	if (y == 0 || (y == -1 && rest))
		return 0;
	if (y == -1)
		return (int64_t)(0 - (uint64_t)x); /* the smallest number has no negative */
	q = x / y;
	r = x % y;
	if (r != 0 && (r < 0) != (y < 0)) {
		q--;
		r += y;
	}
	return rest ? r : q;
}

bool
expr_reads(const Expr *e, int index)
{
	if (!e)
		return false;
	if (e->kind == EX_VAR)
		return e->index == index;
	return expr_reads(e->a, index) || expr_reads(e->b, index) || expr_reads(e->c, index);
}

bool
expr_costly(const Expr *e)
{
	if (!e)
		return false;
	if (e->kind == EX_DIV || (e->kind >= EX_EXP && e->kind <= EX_POW))
		return true;
	return expr_costly(e->a) || expr_costly(e->b) || expr_costly(e->c);
}

double
expr_eval(const Expr *e, const double *var)
{
	double a, b, c;

	if (e->kind == EX_NUM)
		return e->num;
	if (e->kind == EX_VAR)
		return var[e->index];
	a = expr_eval(e->a, var);
	b = e->b ? expr_eval(e->b, var) : 0;
	c = e->c ? expr_eval(e->c, var) : 0;
	switch (e->kind) {
	case EX_NEG: return -a;
	case EX_NOT: return !a;
	case EX_ADD: return a + b;
	case EX_SUB: return a - b;
	case EX_MUL: return a * b;
	case EX_DIV: return a / b;
	case EX_EQ: return a == b;
	case EX_NE: return a != b;
	case EX_LT: return a < b;
	case EX_LE: return a <= b;
	case EX_GT: return a > b;
	case EX_GE: return a >= b;
	case EX_AND: return a && b;
	case EX_OR: return a || b;
	case EX_SELECT: return a ? b : c;
	case EX_EXP: return exp(a);
	case EX_EXPM1: return expm1(a);
	case EX_LOG: return log(a);
	case EX_LOG1P: return log1p(a);
	case EX_SQRT: return sqrt(a);
	case EX_ERF: return erf(a);
	case EX_ERFC: return erfc(a);
	case EX_TANH: return tanh(a);
	case EX_SIN: return sin(a);
	case EX_COS: return cos(a);
	case EX_FLOORMOD: return floormod(a, b);
	case EX_POW: return pow(a, b);
	case EX_FLOOR: return floor(a);
	case EX_CEIL: return ceil(a);
	case EX_RINT: return rint(a);
	case EX_FABS: return fabs(a);
	case EX_FMIN: return fmin(a, b);
	case EX_FMAX: return fmax(a, b);
	case EX_IDIV: return b == 0 ? 0 : (a - floormod(a, b)) / b;
	case EX_IMOD: return b == 0 ? 0 : floormod(a, b);
	case EX_NUM:
	case EX_VAR: break;
	}
	bug("expression of kind %d", (int)e->kind);
}

int64_t
expr_eval_int(const Expr *e, const int64_t *var)
{
	int64_t a, b, c;
	uint64_t ua, ub;

	if (e->kind == EX_NUM)
		return (int64_t)e->num;
	if (e->kind == EX_VAR)
		return var[e->index];
	a = expr_eval_int(e->a, var);
	b = e->b ? expr_eval_int(e->b, var) : 0;
	c = e->c ? expr_eval_int(e->c, var) : 0;
	ua = (uint64_t)a;
	ub = (uint64_t)b;
	switch (e->kind) {
	case EX_NEG: return (int64_t)(0 - ua);
	case EX_NOT: return !a;
	case EX_ADD: return (int64_t)(ua + ub);
	case EX_SUB: return (int64_t)(ua - ub);
	case EX_MUL: return (int64_t)(ua * ub);
	case EX_EQ: return a == b;
	case EX_NE: return a != b;
	case EX_LT: return a < b;
	case EX_LE: return a <= b;
	case EX_GT: return a > b;
	case EX_GE: return a >= b;
	case EX_AND: return a && b;
	case EX_OR: return a || b;
	case EX_SELECT: return a ? b : c;
	case EX_FABS: return a < 0 ? (int64_t)(0 - ua) : a;
	case EX_FMIN: return a < b ? a : b;
	case EX_FMAX: return a > b ? a : b;
	case EX_DIV:
	case EX_IDIV: return floor_divide(a, b, false);
	case EX_IMOD: return floor_divide(a, b, true);
	default: bug("expression of kind %d on integers", (int)e->kind);
	}
}
