/* table.c: the operator table in use, and the attributes of an op by name.
 *
 * ir_init fills op_info from ops.def, red.def and ew.def: structural rows as they stand, a row per reduction, four per
 * elementwise line (value and three derivatives), with expressions and attribute lists parsed once. Where the tables
 * disagree it stops with bug(), so that a bad line never reaches a model. */
#include "red.h"
#include "rules.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(MAX_RANK == 8, "rules and texts count on one digit per axis");
static_assert(OP_COUNT < UINT16_MAX, "Op.kind");

const struct AttrNameInfo attr_names[A_COUNT] = {
#define ATTR(name, kind) [A_##name] = {#name, AK_##kind},
#include "attrs.def"
#undef ATTR
};

/* Names are set apart from the rows: a row may name itself (conv2d.dx), the others are called as their C name. */
OpInfo op_info[OP_COUNT] = {
#define OP(id, ...) [OP_##id] = {__VA_ARGS__},
#include "ops.def"
#undef OP
};

static const char *const op_ids[OP_COUNT] = {
#define OP(id, ...) [OP_##id] = #id,
#include "ops.def"
#undef OP
};

typedef struct RedRow { OpKind kind; const char *name, *doc; GradRule *grad; } RedRow;
static const RedRow red_rows[] = {
#define RED(id, types, join, element, value, then, grad, text) {OP_##id, #id, text, grad},
#include "red.def"
#undef RED
};

typedef struct EwRow { OpKind kind; const char *name; int arity; const char *attrs, *types, *text[4]; } EwRow;
static const EwRow ew_rows[] = {
#define EW(id, arity, attrs, types, value, dx, dy, dz) {OP_##id, #id, arity, attrs, types, {#value, #dx, #dy, #dz}},
#include "ew.def"
#undef EW
};

static AttrName
attr_named(const char *name, size_t n)
{
	int i = 0;

	while (i < A_COUNT && (strlen(attr_names[i].name) != n || memcmp(attr_names[i].name, name, n) != 0))
		i++;
	return (AttrName)i;
}

/* A default of the attribute list: a number, [list], true, false or "". */
static Attr
parse_default(Arena *a, AttrName name, const char *text, const char *op)
{
	Attr r = {.name = (uint8_t)name};
	char *end;

	switch (attr_names[name].kind) {
	case AK_BOOL: r.i = text[0] == 't'; return r;
	case AK_STR: r.s = ""; return r;
	case AK_INT: r.i = strtoll(text, &end, 10); return r;
	case AK_NUM:
		r.i = strtoll(text, &end, 10);
		r.is_int = *end == 0 || *end == ' ';
		if (!r.is_int)
			r.f = strtod(text, &end);
		return r;
	case AK_INTS: {
		int64_t list[8];

		for (end = (char *)text; *end && *end != ']' && r.n < 8; r.n++)
			list[r.n] = strtoll(end + 1, &end, 10);
		r.list = memcpy(arena_array(a, int64_t, r.n), list, sizeof *list * r.n);
		return r;
	}
	case AK_NUMS: break;
	}
	bug("operator %s: attribute %s cannot have a default", op, attr_names[name].name);
}

static void
parse_attrs(Arena *a, OpInfo *info)
{
	const char *p = info->attrs;
	uint8_t *names = arena_array(a, uint8_t, 16);
	Attr *defaults = arena_array(a, Attr, 16);
	bool *required = arena_array(a, bool, 16);

	info->nattr = 0;
	while (*p) {
		size_t n = strcspn(p, " ="), k = info->nattr;
		AttrName name = attr_named(p, n);

		if (name == A_COUNT || k == 16)
			bug("operator %s: no attribute \"%.*s\" in attrs.def", info->name, (int)n, p);
		names[k] = (uint8_t)name;
		required[k] = p[n] != '=';
		defaults[k] =
		        required[k] ? (Attr){.name = (uint8_t)name} : parse_default(a, name, p + n + 1, info->name);
		info->nattr++;
		p += strcspn(p, " ");
		p += strspn(p, " ");
	}
	info->attr_name = names;
	info->attr_default = defaults;
	info->attr_required = required;
}

/* The value takes x y z by arity, whatever its expression reads; a derivative takes the variables it reads. */
static void
ew_operands(Arena *a, OpInfo *info, int arity)
{
	char letters[8] = "";
	int n = 0;

	for (int v = 0; v < 5; v++) {
		bool takes = info->part == 0 ? v < arity : info->expr->uses & 1u << v;

		if (takes)
			letters[n++] = EXPR_VARS[v];
	}
	info->operands = arena_strndup(a, letters, (size_t)n);
	info->nin = (int8_t)n;
}

static void
fill_ew(Arena *a, int row, int part)
{
	const EwRow *w = &ew_rows[row];
	OpInfo *info = &op_info[w->kind + part];
	static const char *const suffix[4] = {"", ".dx", ".dy", ".dz"};
	static const char *const doc[4] = {
	        "", "derivative in x, times g: ", "derivative in y, times g: ", "derivative in z, times g: "};
	const char *error = NULL;

	info->name = arena_printf(a, "%s%s", w->name, suffix[part]);
	info->nout = 1;
	info->traits = T_EW | T_POINTWISE;
	info->flops = flops_made;
	info->attrs = w->attrs;
	info->shape = shape_ew;
	info->access = access_broadcast;
	info->grad = part == 0 ? grad_ew : NULL;
	info->doc = arena_printf(a, "%s%s", doc[part], w->text[part]);
	info->ew = (int16_t)row;
	info->part = (int8_t)part;
	info->types = w->types;
	parse_attrs(a, info);
	if (strcmp(w->text[part], "NONE") == 0)
		return;
	info->expr = expr_parse(a, strcmp(w->text[part], "ZERO") == 0 ? "0" : w->text[part], &error);
	if (!info->expr)
		bug("ew.def, %s: %s", info->name, error);
	if (part == 0 && (info->expr->uses & 0x1fu) >> w->arity)
		bug("ew.def, %s: the value reads more than its %d inputs", info->name, w->arity);
	if (info->expr->uses >> 5 & 3u & ~((1u << info->nattr) - 1))
		bug("ew.def, %s: reads an attribute that is not listed", info->name);
	ew_operands(a, info, w->arity);
}

static void
fill_red(int row)
{
	const RedRow *w = &red_rows[row];
	OpInfo *info = &op_info[w->kind];

	info->name = w->name;
	info->nin = 1;
	info->nout = red_info[row].then == RED_SQUARES ? 2 : 1;
	info->traits = T_REDUCE;
	info->flops = flops_read;
	info->attrs = "axes keep=false";
	info->shape = shape_red;
	info->grad = w->grad;
	info->doc = w->doc;
	info->red = (int16_t)row;
}

/* Names in order, for op_named. */
static uint16_t op_order[OP_COUNT];
static int op_order_n;

static int
compare_ops(const void *a, const void *b)
{
	return strcmp(op_info[*(const uint16_t *)a].name, op_info[*(const uint16_t *)b].name);
}

static void
sort_names(void)
{
	op_order_n = 0;
	for (int k = OP_none + 1; k < OP_COUNT; k++)
		if (op_info[k].ew < 0 || op_info[k].expr)
			op_order[op_order_n++] = (uint16_t)k;
	qsort(op_order, (size_t)op_order_n, sizeof *op_order, compare_ops);
	for (int i = 1; i < op_order_n; i++)
		if (strcmp(op_info[op_order[i - 1]].name, op_info[op_order[i]].name) == 0)
			bug("two operators are called %s", op_info[op_order[i]].name);
}

void
ir_init(void)
{
	static bool done;
	static Arena *a; /* reachable: no leak */

	if (done)
		return;
	done = true;
	a = arena_new(); /* lives as long as the table */
	op_info[OP_none] = (OpInfo){.name = "none", .attrs = "", .ew = -1, .red = -1, .doc = ""};
	for (int k = OP_none + 1; k < OP_COUNT; k++) {
		op_info[k].ew = op_info[k].red = -1;
		if (!op_info[k].name)
			op_info[k].name = op_ids[k];
	}
	red_init(a);
	for (int i = 0; i < (int)(sizeof red_rows / sizeof red_rows[0]); i++)
		fill_red(i);
	for (int i = 0; i < (int)(sizeof ew_rows / sizeof ew_rows[0]); i++)
		for (int part = 0; part < 4; part++)
			fill_ew(a, i, part);
	for (int k = OP_none + 1; k < OP_COUNT; k++) {
		OpInfo *info = &op_info[k];

		if (!info->name || !info->shape || !info->doc || !info->attrs)
			bug("operator %d (%s): its row lacks a name, shape rule, attributes or doc", k,
			    info->name ? info->name : "?");
		if (!info->access && (info->traits & (T_VIEW | T_MOVE | T_POINTWISE)))
			bug("operator %s: its row lacks an access rule", info->name);
		if (info->images && (info->nin < 0 || strcspn(info->images, ">") != (size_t)info->nin ||
		                     strlen(info->images) != (size_t)(info->nin + 1 + info->nout)))
			bug("operator %s: images is \"%s\", needs a letter for each of its operands, > and one for "
			    "each result",
			    info->name, info->images);
		if (info->ew < 0)
			parse_attrs(a, info);
	}
	sort_names();
}

OpKind
op_named(const char *name)
{
	int lo = 0, hi = op_order_n;

	while (lo < hi) {
		int mid = (lo + hi) / 2, c = strcmp(name, op_info[op_order[mid]].name);

		if (c == 0)
			return (OpKind)op_order[mid];
		if (c < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return OP_none;
}

/* ---------------------------------------------------------------- attributes */

const Attr *
attr_get(const Op *op, AttrName n)
{
	for (int i = 0; i < op->nattr; i++)
		if (op->attr[i].name == n)
			return &op->attr[i];
	bug("operator %s has no attribute %s", op_info[op->kind].name, attr_names[n].name);
}

int64_t
attr_int(const Op *op, AttrName n)
{
	const Attr *a = attr_get(op, n);

	if (attr_names[n].kind == AK_NUM && !a->is_int)
		return (int64_t)a->f;
	return a->i;
}

bool
attr_bool(const Op *op, AttrName n)
{
	return attr_get(op, n)->i != 0;
}

double
attr_num(const Op *op, AttrName n)
{
	const Attr *a = attr_get(op, n);

	return attr_names[n].kind == AK_NUM && !a->is_int ? a->f : (double)a->i;
}

const char *
attr_str(const Op *op, AttrName n)
{
	return attr_get(op, n)->s;
}

const int64_t *
attr_ints(const Op *op, AttrName n, int *count)
{
	const Attr *a = attr_get(op, n);

	if (count)
		*count = a->n;
	return a->list;
}
