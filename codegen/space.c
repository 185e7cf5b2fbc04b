/* space.c: parser, printer, checks, search space and documentation of kernels' parameters, from tune.def.
 *
 * In: a kernel's text, or its parameters and the facts of a group.   Out: the other; a condition that does not hold;
 * the values worth trying; the key of how it adds. A text is read by the forms of its rows, one after the other:
 * numbers have no leading zeros, and a value that can be left out is: so each kernel has one text. Expressions are
 * parsed when they are asked for, over one scope of names: constants, facts, then parameters with their words; each
 * parameter sees those before it. Values are tried by counting, the last parameter fastest, and checked one by one.
 * Refuses numbers beyond 32 bits, which no kernel has: products of two do not overflow in expressions. */
#include "space.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define FAMILY(target, name, ...) static const Param target##_##name[] = {
#define PARAM(name, kind, ...) {#name, PARAM_##kind, __VA_ARGS__},
#define END(target, name) };
#include "tune.def"

const Family space_family[FAMILY_COUNT] = {
#define FAMILY(target, name, text, version, ops, class, doc) \
	[FAMILY_##target##_##name] = {#target, #name, text, false,           version, \
	                              ops,     class, doc,  target##_##name, sizeof target##_##name / sizeof(Param)},
#define END(target, name)
#define BARE(target, name, text, doc) [FAMILY_##target##_##name] = \
	{#target, #name, text, true, 1, "", "order", doc, NULL, 0},
#include "tune.def"
};

static const char *const fact_names[] = {
#define FACT(name, doc) #name,
#include "tune.def"
};
enum { NFACT = sizeof fact_names / sizeof *fact_names, MOST_NAMES = 80, MOST_PARAMS = 16, MOST_CHECKS = 8 };

/* ---------------------------------------------------------------- places */
static int
numbers_of(ParamKind k)
{
	return k == PARAM_pairs ? 1 + 2 * PAIRS_MOST : k == PARAM_name ? NAME_SIZE / (int)sizeof(int) : 1;
}

/* Where parameter i is in Params.at. */
static int
place_of(const Family *f, int i)
{
	int at = 0;

	for (int k = 0; k < i; k++)
		at += numbers_of(f->param[k].kind);
	return at;
}

/* In expressions. */
static int
value_of(const Family *f, const Params *p, int i)
{
	const int *at = &p->at[place_of(f, i)];

	return f->param[i].kind == PARAM_name ? (int)strlen((const char *)at) : *at;
}

/* NULL: its family has none of that name. */
static const int *
find_number(const Params *p, const char *name)
{
	const Family *f = &space_family[p->family];

	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].kind <= PARAM_word && !strcmp(f->param[i].name, name))
			return &p->at[place_of(f, i)];
	return NULL;
}

int
space_number(const Params *p, const char *name)
{
	const int *at = find_number(p, name);

	return at ? *at : 0;
}

void
space_set(Params *p, const char *name, int value)
{
	const int *at = find_number(p, name);

	if (at)
		p->at[at - p->at] = value;
}

/* ---------------------------------------------------------------- lists: parts of a column */
typedef struct Piece { const char *at; size_t n; } Piece;

/* The next part between separators outside of parentheses, without the spaces around it; false: there is none. */
static bool
next_piece(const char **s, char separator, Piece *p)
{
	int depth = 0;

	while (**s == ' ' || (**s && **s == separator))
		++*s;
	p->at = *s;
	for (; **s && (depth || **s != separator); ++*s)
		depth += (**s == '(') - (**s == ')');
	for (p->n = (size_t)(*s - p->at); p->n && p->at[p->n - 1] == ' ';)
		p->n--;
	return p->n > 0;
}

static bool
piece_is(Piece p, const char *s)
{
	return strlen(s) == p.n && !memcmp(p.at, s, p.n);
}

/* Word `number` of a list; false: it has fewer. */
static bool
word_at(const char *list, int number, Piece *p)
{
	for (int i = 0; next_piece(&list, ' ', p); i++)
		if (i == number)
			return true;
	return false;
}

/* ---------------------------------------------------------------- reading */
static bool
accept(const char **s, const char *form)
{
	size_t n = strlen(form);

	if (strncmp(*s, form, n) != 0)
		return false;
	*s += n;
	return true;
}

static bool
is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* A number as printf writes it. */
static bool
read_number(const char **s, int *to)
{
	const char *at = *s;
	bool minus = *at == '-';
	int64_t x = 0;

	at += minus;
	if (*at < '0' || *at > '9' || (*at == '0' && (minus || (at[1] >= '0' && at[1] <= '9'))))
		return false;
	for (; *at >= '0' && *at <= '9'; at++) {
		x = 10 * x + (*at - '0');
		if (x > INT_MAX)
			return false;
	}
	*to = (int)(minus ? -x : x);
	*s = at;
	return true;
}

static bool
read_word(const char **s, const char *words, int *to)
{
	Piece w, found = {*s, 0};

	while (is_name(found.at[found.n]))
		found.n++;
	for (*to = 0; word_at(words, *to, &w); ++*to)
		if (w.n == found.n && !memcmp(w.at, found.at, w.n)) {
			*s += found.n;
			return true;
		}
	return false;
}

static bool
read_name(const char **s, char *to)
{
	size_t n = 0;

	while (is_name((*s)[n]) && (*s)[n] != '_')
		n++;
	if (n == 0 || n >= NAME_SIZE)
		return false;
	memcpy(to, *s, n);
	*s += n;
	return true;
}

/* Behind the first one's form. */
static bool
read_pairs(const char **s, const char *form, int *to)
{
	do {
		int *pair = &to[1 + 2 * to[0]];

		if (to[0] == PAIRS_MOST || !read_number(s, &pair[0]) || pair[0] < 0 || pair[0] >= PAIR_KINDS)
			return false;
		if (!accept(s, ":") || !read_number(s, &pair[1]))
			return false;
		to[0]++;
	} while (accept(s, form));
	return true;
}

/* The value that is left out; false: none is. */
static bool
left_out(const Param *q, int *value)
{
	const char *s = q->left_out;

	*value = 0;
	return *s && (q->kind == PARAM_word ? read_word(&s, q->values, value) : read_number(&s, value));
}

/* One parameter, whose text begins at *s; to: zeros. */
static bool
read_param(const char **s, const Param *q, int *to)
{
	const char *at = *s;
	int out;
	bool may = left_out(q, &out), good = accept(&at, q->form);

	if (good)
		switch (q->kind) {
		case PARAM_number: good = read_number(&at, to); break;
		case PARAM_word: good = read_word(&at, q->values, to); break;
		case PARAM_pairs: good = read_pairs(&at, q->form, to); break;
		case PARAM_name: good = read_name(&at, (char *)to); break;
		}
	if (good && !(may && *to == out)) {
		*s = at;
		return true;
	}
	if (may) { /* what stands here is the next one's, or wrong: then that one says so */
		*to = out;
		return true;
	}
	return (q->kind == PARAM_pairs || q->kind == PARAM_name) && *s == at;
}

static bool
read_all(const Family *f, const char *text, Params *p)
{
	const char *s = text;

	memset(p->at, 0, sizeof p->at);
	if (!accept(&s, f->text) || (!f->bare && !accept(&s, "{")))
		return false;
	for (int i = 0; i < f->nparam; i++)
		if (!read_param(&s, &f->param[i], &p->at[place_of(f, i)]))
			return false;
	return (f->bare || accept(&s, "}")) && !*s;
}

/* Is it a kernel of this target and operator? */
static bool
of_op(const Family *f, const char *target, const char *op)
{
	const char *ops = f->ops;
	Piece p;

	if (strcmp(f->target, target) != 0)
		return false;
	while (op && next_piece(&ops, ' ', &p))
		if (piece_is(p, op))
			return true;
	return !op || !*f->ops;
}

/* Does the text begin with the family's word? */
static bool
begins(const Family *f, const char *text)
{
	return accept(&text, f->text) && *text == (f->bare ? 0 : '{');
}

FamilyId
space_family_of(const char *target, const char *op, const char *text)
{
	for (int i = 1; i < FAMILY_COUNT && text; i++)
		if (of_op(&space_family[i], target, op) && begins(&space_family[i], text))
			return (FamilyId)i;
	return FAMILY_none;
}

bool
space_parse(const char *target, const char *op, const char *text, Params *p)
{
	for (int i = 1; i < FAMILY_COUNT && text; i++)
		if (of_op(&space_family[i], target, op) && read_all(&space_family[i], text, p)) {
			p->family = (FamilyId)i;
			return true;
		}
	*p = (Params){.family = FAMILY_none};
	return false;
}

/* ---------------------------------------------------------------- writing */
static void
write_value(Buf *b, const Param *q, const int *at)
{
	Piece w;

	switch (q->kind) {
	case PARAM_number: buf_printf(b, "%s%d", q->form, *at); break;
	case PARAM_word:
		if (!word_at(q->values, *at, &w))
			bug("parameter %s has no word %d", q->name, *at);
		buf_printf(b, "%s%.*s", q->form, (int)w.n, w.at);
		break;
	case PARAM_pairs:
		for (int i = 0; i < *at; i++)
			buf_printf(b, "%s%d:%d", q->form, at[1 + 2 * i], at[2 + 2 * i]);
		break;
	case PARAM_name:
		if (*(const char *)at)
			buf_printf(b, "%s%s", q->form, (const char *)at);
		break;
	}
}

/* The buffer's text in the arena; the buffer is freed. */
static const char *
taken(Arena *a, Buf *b)
{
	const char *s = arena_strndup(a, b->at ? b->at : "", b->n);

	buf_free(b);
	return s;
}

const char *
space_text(Arena *a, const Params *p)
{
	const Family *f = &space_family[p->family];
	Buf b = {0};
	int out;

	if (f->bare)
		return f->text;
	buf_printf(&b, "%s{", f->text);
	for (int i = 0; i < f->nparam; i++) {
		const int *at = &p->at[place_of(f, i)];

		if (!left_out(&f->param[i], &out) || *at != out)
			write_value(&b, &f->param[i], at);
	}
	buf_printf(&b, "}");
	return taken(a, &b);
}

const char *
space_form(Arena *a, FamilyId id)
{
	const Family *f = &space_family[id];
	Buf b = {0};

	buf_printf(&b, "%s%s", f->text, f->bare ? "" : "{");
	for (int i = 0; i < f->nparam; i++) {
		const Param *q = &f->param[i];
		const char *words = q->values;
		Piece w;

		bool may = *q->left_out || q->kind == PARAM_pairs || q->kind == PARAM_name;

		buf_printf(&b, "%s%s", may ? "[" : "", q->form);
		for (int k = 0; q->kind == PARAM_word && next_piece(&words, ' ', &w); k++)
			buf_printf(&b, "%s%.*s", k ? "|" : "", (int)w.n, w.at);
		buf_printf(&b, "%s%s", q->kind == PARAM_pairs ? ".." : "", may ? "]" : "");
	}
	buf_printf(&b, "%s", f->bare ? "" : "}");
	return taken(a, &b);
}

/* ---------------------------------------------------------------- expressions */
enum { V_listed, V_same, V_order, V_rounds, V_facts };
typedef struct Scope {
	Arena *a;
	const Family *f;
	const char *names[MOST_NAMES];
	int64_t v[MOST_NAMES];
	int n, at[MOST_PARAMS];  /* names; where parameter i's is */
	bool constant[MOST_NAMES];
} Scope;

static void
add_name(Scope *s, const char *name, int64_t v, bool constant)
{
	if (s->n == MOST_NAMES)
		bug("tune.def: too many names at %s", name);
	s->names[s->n] = name;
	s->constant[s->n] = constant;
	s->v[s->n++] = v;
}

/* facts NULL: all 0. */
static Scope
scope_of(Arena *a, const Family *f, const Facts *facts)
{
	static const Facts nothing;
	Scope s = {.a = a, .f = f};
	int64_t fact[NFACT];
	Piece w;

	memcpy(fact, facts ? facts : &nothing, sizeof fact);
	add_name(&s, "listed", 0, true);
	add_name(&s, "same", BITS_same, true);
	add_name(&s, "order", BITS_order, true);
	add_name(&s, "rounds", BITS_rounds, true);
	for (int i = 0; i < NFACT; i++)
		add_name(&s, fact_names[i], fact[i], false);
	for (int i = 0; i < f->nparam; i++) {
		const Param *q = &f->param[i];

		s.at[i] = s.n;
		add_name(&s, q->name, 0, false);
		for (int k = 0; q->kind == PARAM_word && word_at(q->values, k, &w); k++)
			add_name(&s, arena_printf(a, "%s_%.*s", q->name, (int)w.n, w.at), k, true);
	}
	return s;
}

/* Names that parameter i sees, up to its own. */
static int
names_seen(const Scope *s, int i)
{
	return i + 1 < s->f->nparam ? s->at[i + 1] : s->n;
}

static const Expr *
expr_of(const Scope *s, Piece p, int nname)
{
	const char *error = NULL;
	const Expr *e = expr_parse_names(s->a, arena_strndup(s->a, p.at, p.n), s->names, nname, &error);

	if (!e)
		bug("tune.def, %s of %s, '%.*s': %s", s->f->name, s->f->target, (int)p.n, p.at, error);
	return e;
}

static int64_t
eval(const Scope *s, const Expr *e)
{
	return expr_eval_int(e, s->v);
}

typedef struct Range { const Expr *from, *to; } Range;
typedef struct Check { Piece text; const Expr *e; } Check;
/* A parameter's columns, parsed. */
typedef struct Column { Check check[MOST_CHECKS]; int ncheck; VEC(Range) range; int words; } Column;

static Column
column_of(const Scope *s, int i)
{
	const Param *q = &s->f->param[i];
	const char *fits = q->fits, *values = q->values;
	Column c = {0};
	Piece p;

	while (next_piece(&fits, ';', &p)) {
		if (c.ncheck == MOST_CHECKS)
			bug("tune.def: too many conditions of %s", q->name);
		c.check[c.ncheck++] = (Check){p, expr_of(s, p, names_seen(s, i))};
	}
	while (next_piece(&values, ' ', &p)) {
		Piece from = p, to = p;

		if (q->kind == PARAM_word) {
			c.words++;
			continue;
		}
		for (size_t k = 0; k + 1 < p.n; k++)
			if (p.at[k] == '.' && p.at[k + 1] == '.') {
				from.n = k;
				to = (Piece){p.at + k + 2, p.n - k - 2};
				break;
			}
		vec_push(s->a, &c.range, ((Range){expr_of(s, from, s->at[i]), expr_of(s, to, s->at[i])}));
	}
	return c;
}

static bool
is_listed(const Scope *s, const Column *c, int64_t x)
{
	bool listed = c->range.n == 0;

	for (uint32_t i = 0; i < c->range.n && !listed; i++)
		listed = x >= eval(s, c->range.at[i].from) && x <= eval(s, c->range.at[i].to);
	return listed;
}

/* The first condition of parameter i that its value, which is set, does not hold; NULL: all hold. */
static const Check *
failed(Scope *s, const Column *c, int i)
{
	s->v[V_listed] = is_listed(s, c, s->v[s->at[i]]);
	for (int k = 0; k < c->ncheck; k++)
		if (!eval(s, c->check[k].e))
			return &c->check[k];
	return NULL;
}

static const char *
message(const Scope *s, const Params *p, int i, const Check *c)
{
	const Param *q = &s->f->param[i];
	const char *form = q->form;
	Buf value = {0}, b = {0};

	write_value(&value, q, &p->at[place_of(s->f, i)]);
	form = (value.at ? value.at : "") + (*form == ',');
	if (piece_is(c->text, "listed")) {
		buf_printf(&b, "%s is not one of %s", form, q->values);
	} else {
		int n = 0;

		buf_printf(&b, "%s does not fit: %.*s", form, (int)c->text.n, c->text.at);
		for (int k = V_facts; k < s->n; k++)
			if (!s->constant[k] && expr_reads(c->e, k))
				buf_printf(&b, "%s%s=%lld", n++ ? ", " : ", with ", s->names[k], (long long)s->v[k]);
	}
	buf_free(&value);
	return taken(s->a, &b);
}

/* ---------------------------------------------------------------- what fits */
const char *
space_misfit(Arena *a, const Params *p, const Facts *facts)
{
	const Family *f = &space_family[p->family];
	Scope s = scope_of(a, f, facts);

	for (int i = 0; i < f->nparam; i++) {
		Column c = column_of(&s, i);

		s.v[s.at[i]] = value_of(f, p, i);
		const Check *bad = failed(&s, &c, i);

		if (bad)
			return message(&s, p, i, bad);
	}
	return NULL;
}

bool
space_tunable(FamilyId id)
{
	const Family *f = &space_family[id];

	for (int i = 0; i < f->nparam; i++)
		if (*f->param[i].values && f->param[i].kind != PARAM_word)
			return true;
	return false;
}

int
space_version(const char *target, const char *family)
{
	for (int i = FAMILY_none + 1; i < FAMILY_COUNT; i++)
		if (!strcmp(space_family[i].target, target) && !strcmp(space_family[i].text, family)
		    && space_tunable((FamilyId)i))
			return space_family[i].version;
	return -1;
}

typedef struct Walk {
	Scope s;
	Column column[MOST_PARAMS];
	Params p;
	const Params *from; int left;  /* parameters that may still be others than in from; -1: any */
	bool own[MOST_PARAMS];         /* shape and machine gave from a value that is not listed: it is tried, too */
	bool (*each)(void *, const Params *); void *cx;
} Walk;

static bool walk(Walk *w, int i);

/* Goes on with this value of parameter i, if it fits; false: it is to end. */
static bool
walk_value(Walk *w, int i, int64_t x)
{
	bool other = w->left >= 0 && x != value_of(w->s.f, w->from, i), more;

	if (other && !w->left)
		return true;
	w->s.v[w->s.at[i]] = x;
	if (failed(&w->s, &w->column[i], i))
		return true;
	if (w->s.f->param[i].kind == PARAM_number || w->s.f->param[i].kind == PARAM_word)
		w->p.at[place_of(w->s.f, i)] = (int)x;
	w->left -= other;
	more = walk(w, i + 1);
	w->left += other;
	return more;
}

static bool
walk(Walk *w, int i)
{
	if (i == w->s.f->nparam)
		return w->each(w->cx, &w->p);
	const Column *c = &w->column[i];

	if (!c->words && !c->range.n)
		return walk_value(w, i, value_of(w->s.f, &w->p, i));
	for (int k = 0; k < c->words; k++)
		if (!walk_value(w, i, k))
			return false;
	for (uint32_t k = 0; k < c->range.n; k++) {
		int64_t to = eval(&w->s, c->range.at[k].to);

		for (int64_t x = eval(&w->s, c->range.at[k].from); x <= to; x++)
			if (!walk_value(w, i, x))
				return false;
	}
	return !w->own[i] || walk_value(w, i, value_of(w->s.f, w->from, i));
}

void
space_each(const Params *p, const Facts *facts, int steps, bool (*each)(void *cx, const Params *p), void *cx)
{
	const Family *f = &space_family[p->family];
	Arena *a = arena_new();
	Walk *w = arena_new_of(a, Walk);

	*w = (Walk){.s = scope_of(a, f, facts), .p = *p, .from = p, .left = steps ? steps : -1, .each = each,
		.cx = cx};
	for (int i = 0; i < f->nparam; i++) {
		w->column[i] = column_of(&w->s, i);
		w->own[i] = w->column[i].range.n && !is_listed(&w->s, &w->column[i], value_of(f, p, i));
		w->s.v[w->s.at[i]] = value_of(f, p, i);
	}
	walk(w, 0);
	arena_free(a);
}

/* ---------------------------------------------------------------- bits */
static Scope
filled(Arena *a, const Params *p, const Facts *facts)
{
	Scope s = scope_of(a, &space_family[p->family], facts);

	for (int i = 0; i < s.f->nparam; i++)
		s.v[s.at[i]] = value_of(s.f, p, i);
	return s;
}

static int64_t
eval_text(const Scope *s, const char *text)
{
	return eval(s, expr_of(s, (Piece){text, strlen(text)}, s->n));
}

const char *
space_order_key(Arena *a, const Params *p, const Facts *facts)
{
	Scope s = filled(a, p, facts);
	Buf b = {0};

	buf_printf(&b, "%s", s.f->text);
	for (int i = 0; i < s.f->nparam; i++) {
		const Param *q = &s.f->param[i];

		if (*q->order && q->kind == PARAM_pairs)
			write_value(&b, q, &p->at[place_of(s.f, i)]);
		else if (*q->order)
			buf_printf(&b, " %s=%lld", q->name, (long long)eval_text(&s, q->order));
	}
	return taken(a, &b);
}

BitsClass
space_class(const Params *base, const Params *p, const Facts *facts)
{
	Arena *a = arena_new();
	bool same = base->family == p->family && !strcmp(space_order_key(a, base, facts), space_order_key(a, p, facts));
	Scope s = filled(a, p, facts);
	BitsClass r = same ? BITS_same : (BitsClass)eval_text(&s, s.f->differs);

	arena_free(a);
	return r;
}

/* ---------------------------------------------------------------- documentation */
/* In a cell of a table: in code, its bars escaped; nothing if it is empty. */
static void
put_code(Buf *out, const char *s)
{
	buf_printf(out, *s ? " `" : "");
	for (; *s; s++)
		buf_printf(out, *s == '|' ? "\\|" : "%c", *s);
}

static void
put_cell(Buf *out, const char *s)
{
	put_code(out, s);
	buf_printf(out, *s ? "` |" : " |");
}

void
space_document(Buf *out)
{
	const char *target = "";

	for (int i = 1; i < FAMILY_COUNT; i++) {
		const Family *f = &space_family[i];

		if (strcmp(target, f->target) != 0) {
			target = f->target;
			buf_printf(out, "| %s | values tried | must hold | changes bits | what |\n", target);
			buf_printf(out, "|---|---|---|---|---|\n");
		}
		Arena *a = arena_new();

		buf_printf(out, "|");
		put_cell(out, space_form(a, (FamilyId)i));
		buf_printf(out, " | |");
		put_cell(out, f->bare ? "" : f->differs);
		buf_printf(out, " %s%s%s |\n", f->doc, *f->ops ? "; of " : "", f->ops);
		arena_free(a);
		for (int k = 0; k < f->nparam; k++) {
			const Param *q = &f->param[k];

			buf_printf(out, "| - `%s` |", q->name);
			put_cell(out, q->values);
			put_cell(out, q->fits);
			put_cell(out, q->order);
			buf_printf(out, " %s |\n", q->doc);
		}
		if (i + 1 == FAMILY_COUNT || strcmp(space_family[i + 1].target, target) != 0)
			buf_printf(out, "\n");
	}
}

/* ---------------------------------------------------------------- sizes in the word of a machine */
const char *
bytes_word(Arena *a, int64_t bytes)
{
	static const struct { int shift; const char *letter; } units[] = {{30, "G"}, {20, "M"}, {10, "K"}, {0, ""}};
	size_t i = 0;

	while (units[i].shift && (bytes >> units[i].shift == 0 || bytes & (((int64_t)1 << units[i].shift) - 1)))
		i++;
	return arena_printf(a, "%lld%s", (long long)(bytes >> units[i].shift), units[i].letter);
}
