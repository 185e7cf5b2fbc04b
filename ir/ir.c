/* ir.c: types, the operator table in use, modules, graphs and values.
 *
 * ir_init fills op_info from ops.def, red.def and ew.def: structural rows as they stand, a row per reduction, four per
 * elementwise line (value and three derivatives), with expressions and attribute lists parsed once. Where the tables
 * disagree it stops with bug(), so that a bad line never reaches a model.
 * A graph keeps its value names in a hash set, so that making a name unique stays cheap in graphs of a million values;
 * a module keeps its states' names in another. */
#include "ir.h"
#include "rules.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(MAX_RANK == 8, "rules and texts count on one digit per axis");
static_assert(OP_COUNT < UINT16_MAX, "Op.kind");

/* ---------------------------------------------------------------- types */

const DTypeInfo dtype_info[DT_COUNT] = {
	[DT_none] = {"none", 0, '?', "", ""},
#define DT(name, bytes, kind, st, npy) [DT_##name] = {#name, bytes, kind, st, npy},
#include "dtypes.def"
#undef DT
};

int64_t
dtype_lowest(DType t)
{
	return dtype_is_unsigned(t) ? 0 : -dtype_highest(t) - 1;
}

int64_t
dtype_highest(DType t)
{
	int bits = t == DT_bool ? 1 : 8 * dtype_info[t].bytes - !dtype_is_unsigned(t);

	return (int64_t)(UINT64_MAX >> (64 - bits));
}

int64_t
dtype_saturate(DType t, int64_t x)
{
	int64_t low = dtype_lowest(t), high = dtype_highest(t);

	return x < low ? low : x > high ? high : x;
}

DType
dtype_named(const char *name, size_t n)
{
	for (int t = DT_none + 1; t < DT_COUNT; t++)
		if (strlen(dtype_info[t].name) == n && memcmp(dtype_info[t].name, name, n) == 0)
			return (DType)t;
	return DT_none;
}

Type
type_of(DType t, int rank, const Axis *axes)
{
	Type r = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};

	if (rank < 0 || rank > MAX_RANK)
		bug("type of rank %d", rank);
	for (int i = 0; i < MAX_RANK; i++)
		r.perm[i] = (uint8_t)i;
	for (int i = 0; i < rank; i++)
		r.axis[i] = axes[i];
	return r;
}

Type
type_scalar(DType t)
{
	return type_of(t, 0, NULL);
}

/* Saturates: a product beyond 64 bits is above every limit, whatever its exact value. */
int64_t
type_elements(const Type *t)
{
	int64_t n = 1;
	bool zero = false, huge = false;

	for (int i = 0; i < t->rank; i++) {
		zero |= t->axis[i].n == 0;
		huge |= !mul_i64(n, t->axis[i].n, &n);
	}
	return zero ? 0 : huge ? INT64_MAX : n;
}

int64_t
type_bytes(const Type *t)
{
	int64_t n;

	return mul_i64(type_elements(t), dtype_info[t->dtype].bytes, &n) ? n : INT64_MAX;
}

bool
type_same_shape(const Type *a, const Type *b)
{
	if (a->rank != b->rank)
		return false;
	for (int i = 0; i < a->rank; i++)
		if (a->axis[i].n != b->axis[i].n)
			return false;
	return true;
}

bool
type_same(const Type *a, const Type *b)
{
	if (a->dtype != b->dtype || a->rank != b->rank)
		return false;
	for (int i = 0; i < a->rank; i++)
		if (!axis_same(a->axis[i], b->axis[i]) || a->perm[i] != b->perm[i])
			return false;
	return true;
}

bool
type_is_plain(const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->perm[i] != i)
			return false;
	return true;
}

bool
type_marked(const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->axis[i].mul > 0)
			return true;
	return false;
}

int64_t
axis_at(Axis a, int64_t n, int64_t full)
{
	if (a.mul <= 0 || n == full)
		return a.n;
	return n * a.mul / a.div;
}

void
type_print(Buf *b, const Type *t)
{
	buf_printf(b, "%s[", dtype_info[t->dtype].name);
	for (int i = 0; i < t->rank; i++) {
		Axis a = t->axis[i];

		buf_printf(b, "%s", i ? "," : "");
		if (a.mul > 0) {
			if (a.mul != 1)
				buf_printf(b, "%d", (int)a.mul);
			buf_printf(b, "N");
			if (a.div != 1)
				buf_printf(b, "/%d", (int)a.div);
			buf_printf(b, "<=");
		}
		buf_printf(b, "%lld", (long long)a.n);
	}
	buf_printf(b, "]");
	if (!type_is_plain(t)) {
		buf_printf(b, "@");
		for (int i = 0; i < t->rank; i++)
			buf_printf(b, "%d", t->perm[i]);
	}
}

/* ---------------------------------------------------------------- the operator table */

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

typedef struct RedRow { OpKind kind; const char *name, *doc; int nstate; } RedRow;
static const RedRow red_rows[] = {
#define RED(id, states, init, step, combine, finish, text) {OP_##id, #id, text, states},
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
	info->nout = w->kind == OP_moments ? 2 : 1;
	info->traits = T_REDUCE;
	info->flops = flops_read;
	info->attrs = "axes keep=false";
	info->shape = shape_red;
	info->grad = grad_red;
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

/* ---------------------------------------------------------------- names of values */

typedef struct NameSlot { const char *name; uint32_t next; /* suffix to try next */ } NameSlot;
typedef struct NameSet { NameSlot *at; uint32_t n, cap; uint32_t vals; /* values entered so far */ } NameSet;

static NameSlot *
name_slot(const NameSet *s, const char *name)
{
	uint64_t h = hash_bytes(HASH_START, name, strlen(name));

	for (uint32_t i = (uint32_t)(h ^ h >> 32) & (s->cap - 1);; i = (i + 1) & (s->cap - 1))
		if (!s->at[i].name || strcmp(s->at[i].name, name) == 0)
			return &s->at[i];
}

static void
name_enter(Graph *g, const char *name)
{
	NameSet *s = g->names;
	NameSlot *slot;

	if (2 * s->n >= s->cap) {
		NameSet old = *s;

		s->cap = old.cap ? 2 * old.cap : 64;
		s->at = arena_array(g->arena, NameSlot, s->cap);
		for (uint32_t i = 0; i < old.cap; i++)
			if (old.at[i].name)
				*name_slot(s, old.at[i].name) = old.at[i];
	}
	slot = name_slot(s, name);
	if (!slot->name) {
		*slot = (NameSlot){name, 1};
		s->n++;
	}
}

/* Brings the set up to date with values that were pushed by hand or compacted away. */
static void
name_set_refresh(Graph *g)
{
	if (!g->names || g->names->vals > g->val.n) {
		g->names = arena_new_of(g->arena, NameSet);
		name_enter(g, "");
	}
	for (; g->names->vals < g->val.n; g->names->vals++)
		if (g->val.at[g->names->vals].name)
			name_enter(g, g->val.at[g->names->vals].name);
}

/* x, x.1, x.2: a numeric suffix of the wish is dropped first, so that names do not grow with every pass. */
static const char *
unique_name(Graph *g, const char *wish)
{
	char *base = arena_strdup(g->arena, wish && *wish ? wish : "v");
	size_t n = strlen(base), digits = 0;
	NameSlot *slot;

	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", base[i]))
			base[i] = '_';
	name_set_refresh(g);
	if (!name_slot(g->names, base)->name)
		return base;
	while (digits < n && base[n - 1 - digits] >= '0' && base[n - 1 - digits] <= '9')
		digits++;
	if (digits && digits + 1 < n && base[n - 1 - digits] == '.')
		base[n - 1 - digits] = 0;
	name_enter(g, base);
	slot = name_slot(g->names, base);
	for (uint32_t k = slot->next;; k++) {
		const char *name = arena_printf(g->arena, "%s.%u", base, (unsigned)k);

		if (!name_slot(g->names, name)->name) {
			slot->next = k + 1;
			return name;
		}
	}
}

void
graph_name_val(Graph *g, Val v, const char *name)
{
	const char *unique = unique_name(g, name);

	val_info(g, v)->name = unique;
	name_enter(g, unique);
}

/* ---------------------------------------------------------------- modules and graphs */

const char *const variant_classes[CLASS_COUNT] = {"same", "order", "round"};
const char *const stage_names[STAGE_COUNT] = {
#define X(name) #name,
	STAGES(X)
#undef X
};

int
stage_number(const char *name)
{
	for (int i = 0; name && i < STAGE_COUNT; i++)
		if (!strcmp(name, stage_names[i]))
			return i;
	return -1;
}

Module *
module_new(Arena *a, Diags *d, const char *name)
{
	Module *m = arena_new_of(a, Module);

	*m = (Module){.arena = a, .diags = d, .name = intern(a, name), .stage = "typed"};
	return m;
}

Graph *
module_add_graph(Module *m, const char *name)
{
	Graph *g = arena_new_of(m->arena, Graph);
	ValInfo none = {.name = NULL, .op = UINT32_MAX, .offset = -1};

	*g = (Graph){.module = m, .arena = m->arena, .name = intern(m->arena, name), .multiple = 1};
	vec_push(g->arena, &g->val, none);
	vec_push(m->arena, &m->graph, g);
	return g;
}

Graph *
module_graph(const Module *m, const char *name)
{
	Graph *loop = NULL;

	for (uint32_t i = 0; i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		if (strcmp(g->name, name) != 0)
			continue;
		if (!g->is_loop)
			return g;
		loop = loop ? loop : g;
	}
	return loop; /* a loop may be called like the graph it runs, which comes first here */
}

/* States by name: open addressing over indices of Module.state, since models have thousands. States that were pushed by
 * hand are entered on the next look-up; a shorter list than was entered means another list, and a new index. */
typedef struct StateIndex { uint32_t *at /* index + 1, 0 = empty */, cap, n /* entered so far */; } StateIndex;

static uint32_t *
state_slot(const Module *m, const StateIndex *x, const char *name)
{
	uint64_t h = hash_bytes(HASH_START, name, strlen(name));

	for (uint32_t i = (uint32_t)(h ^ h >> 32) & (x->cap - 1);; i = (i + 1) & (x->cap - 1))
		if (!x->at[i] || strcmp(m->state.at[x->at[i] - 1].name, name) == 0)
			return &x->at[i];
}

static void
state_index_refresh(Module *m)
{
	StateIndex *x = m->states;

	if (!x || x->n > m->state.n)
		x = m->states = arena_new_of(m->arena, StateIndex);
	if (2 * m->state.n >= x->cap) {
		x->n = 0;
		for (x->cap = x->cap ? x->cap : 64; x->cap <= 2 * m->state.n; x->cap *= 2)
			;
		x->at = arena_array(m->arena, uint32_t, x->cap);
	}
	for (; x->n < m->state.n; x->n++) {
		uint32_t *slot = state_slot(m, x, m->state.at[x->n].name);

		if (!*slot)
			*slot = x->n + 1;
	}
}

State *
module_state(Module *m, const char *name)
{
	state_index_refresh(m);

	uint32_t i = *state_slot(m, m->states, name);

	return i ? &m->state.at[i - 1] : NULL;
}

State *
module_add_state(Module *m, const char *name, Type t, StateKind kind)
{
	State s = {.name = intern(m->arena, name), .type = t, .kind = kind, .offset = -1};

	vec_push(m->arena, &m->state, s);
	return &m->state.at[m->state.n - 1];
}

bool
label_matches(const char *pattern, const char *name)
{
	const char *star = NULL, *from = NULL;

	/* the last * takes one character more wherever what follows it does not fit */
	for (;;) {
		if (*pattern == '*') {
			star = ++pattern;
			from = name;
		} else if (!*pattern && (!*name || *name == '.')) {
			return true;
		} else if (*pattern && *pattern == *name) {
			pattern++;
			name++;
		} else if (star && *from) {
			pattern = star;
			name = ++from;
		} else {
			return false;
		}
	}
}

const Setting *
setting(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->setting.n; i++)
		if (strcmp(m->setting.at[i].name, name) == 0)
			return &m->setting.at[i];
	return NULL;
}

const Setting *
setting_arg(const Setting *s, const char *name)
{
	for (int i = 0; s && i < s->nargs; i++)
		if (s->arg[i].name && strcmp(s->arg[i].name, name) == 0)
			return &s->arg[i];
	return NULL;
}

Val
graph_add_val(Graph *g, Type t, const char *name, uint32_t op, int index)
{
	ValInfo v = {.type = t, .name = unique_name(g, name), .op = op, .index = (uint16_t)index, .offset = -1};

	vec_push(g->arena, &g->val, v);
	return (Val){g->val.n - 1};
}

Val
graph_add_input(Graph *g, Type t, const char *name, InputKind kind)
{
	Input in = {.v = graph_add_val(g, t, name, UINT32_MAX, 0), .name = intern(g->arena, name), .kind = kind};

	vec_push(g->arena, &g->input, in);
	return in.v;
}

Val
graph_input(const Graph *g, InputKind kind)
{
	for (uint32_t i = 0; i < g->input.n; i++)
		if (g->input.at[i].kind == kind)
			return g->input.at[i].v;
	return NOVAL;
}

Val
graph_need_input(Graph *g, InputKind kind)
{
	static const char *const names[] = {
	        [IN_DATA] = "data", [IN_SEED] = "seed", [IN_STEP] = "step", [IN_RATE] = "rate", [IN_FIRST] = "first"};
	Val v = graph_input(g, kind);

	return v.id ? v : graph_add_input(g, type_scalar(kind == IN_RATE ? DT_f64 : DT_i64), names[kind], kind);
}

void
graph_add_result(Graph *g, Val v, const char *name, ResultKind kind)
{
	Result r = {.v = v, .name = intern(g->arena, name), .kind = kind};

	vec_push(g->arena, &g->result, r);
}

Op *
val_op(const Graph *g, Val v)
{
	uint32_t i = g->val.at[v.id].op;

	return i < g->op.n ? &g->op.at[i] : NULL;
}

/* Does the range stand where a run of ops with this group begins and ends? */
static bool
range_holds(const Graph *g, const Group *gr, int32_t id)
{
	uint32_t a = gr->first, b = gr->last;

	return a < b && b <= g->op.n && g->op.at[a].group == id && g->op.at[b - 1].group == id &&
	       (a == 0 || g->op.at[a - 1].group != id) && (b == g->op.n || g->op.at[b].group != id);
}

uint32_t
graph_group_ops(const Graph *g, int group, uint32_t *last)
{
	Group *at = g->group.at;

	if (!range_holds(g, &at[group], group)) {
		for (uint32_t k = 0; k < g->group.n; k++)
			at[k].first = at[k].last = 0;
		for (uint32_t i = 0; i < g->op.n; i++) {
			int32_t id = g->op.at[i].group;

			if (id < 0 || id >= (int64_t)g->group.n)
				continue;
			if (!at[id].last)
				at[id].first = i;
			at[id].last = i + 1;
		}
	}
	*last = at[group].last;
	return at[group].first;
}

const Op *
graph_group_contraction(const Graph *g, int group)
{
	const Op *found = NULL;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && op_has((OpKind)g->op.at[i].kind, T_CONTRACT))
			found = &g->op.at[i];
	return found;
}

static void
mark_named(const Graph *g, bool *named)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++)
			named[op->in[k].id] = true;
		for (int k = 0; k < op->nout; k++)
			named[op->out[k].id] = true;
	}
	for (uint32_t i = 0; i < g->input.n; i++)
		named[g->input.at[i].v.id] = true;
	for (uint32_t i = 0; i < g->result.n; i++)
		named[g->result.at[i].v.id] = true;
}

void
graph_compact(Graph *g)
{
	Arena *scratch = arena_new();
	bool *named = arena_array(scratch, bool, g->val.n);
	uint32_t *to = arena_array(scratch, uint32_t, g->val.n);
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->op.n; i++)
		if (!g->op.at[i].dead)
			g->op.at[n++] = g->op.at[i];
	g->op.n = n;
	mark_named(g, named);
	n = 1;
	for (uint32_t i = 1; i < g->val.n; i++) {
		if (!named[i])
			continue;
		to[i] = n;
		g->val.at[n] = g->val.at[i];
		/* set again below; stays so for inputs and for what lost its definition */
		g->val.at[n++].op = UINT32_MAX;
	}
	g->val.n = n;
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++)
			op->in[k].id = to[op->in[k].id];
		for (int k = 0; k < op->nout; k++) {
			op->out[k].id = to[op->out[k].id];
			g->val.at[op->out[k].id].op = i;
			g->val.at[op->out[k].id].index = (uint16_t)k;
		}
	}
	for (uint32_t i = 0; i < g->input.n; i++)
		g->input.at[i].v.id = to[g->input.at[i].v.id];
	for (uint32_t i = 0; i < g->result.n; i++)
		g->result.at[i].v.id = to[g->result.at[i].v.id];
	g->names = NULL;
	arena_free(scratch);
}

uint32_t *
graph_use_counts(const Graph *g, Arena *a)
{
	uint32_t *uses = arena_array(a, uint32_t, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; !g->op.at[i].dead && k < g->op.at[i].nin; k++)
			uses[g->op.at[i].in[k].id]++;
	for (uint32_t i = 0; i < g->result.n; i++)
		uses[g->result.at[i].v.id]++;
	return uses;
}

/* Of a load or a store: does its state hold a sum over an evaluation's batches, or what is carried to the next call? */
static bool
is_sum(const Graph *g, const Op *op)
{
	const State *s = module_state(g->module, attr_str(op, A_state));

	return s && (s->kind == ST_SUM || s->kind == ST_CARRY);
}

bool
graph_carries(const Graph *g)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		const State *s = op->kind == OP_load || op->kind == OP_store
			? module_state(g->module, attr_str(op, A_state)) : NULL;

		if (s && s->kind == ST_CARRY)
			return true;
	}
	return false;
}

/* A marked value differs with n. What a group makes that runs in each call is not steady for others either, whatever it
 * is made of: groups that run in the first call alone come before it. */
bool *
graph_steady(const Graph *g, Arena *a)
{
	bool *steady = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == OP_store && !g->op.at[i].dead && !is_sum(g, &g->op.at[i]))
			return steady;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool all = (op->kind == OP_load && !is_sum(g, op))
			|| (!op_has((OpKind)op->kind, T_RANDOM | T_EFFECT | T_LOOP)
			    && (op->nin || op_has((OpKind)op->kind, T_CONST)));

		for (int k = 0; k < op->nin; k++)
			all &= steady_for(g, steady, op->in[k], op->group);
		for (int k = 0; k < op->nout; k++)
			all &= !type_marked(val_type(g, op->out[k]));
		for (int k = 0; k < op->nout; k++)
			steady[op->out[k].id] = all;
	}
	return steady;
}

bool
steady_for(const Graph *g, const bool *steady, Val v, int32_t group)
{
	uint32_t def = g->val.at[v.id].op;
	int32_t made = def < g->op.n ? g->op.at[def].group : -1;

	return steady[v.id] && (made < 0 || made == group || made >= (int64_t)g->group.n || g->group.at[made].once);
}
