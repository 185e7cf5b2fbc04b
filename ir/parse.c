/* parse.c: IR text to a Module. Takes what print.c wrote at any stage, and hand-written text that leaves optional parts
 * out.
 *
 * In: lines (text.md has the grammar).  Out: a module whose result types agree with the shape rules, or NULL after
 * messages with line, caret and, for misspelt names, a suggestion. A bad line is skipped and its results count as
 * broken: what uses them is passed over silently, so that one mistake makes one message.
 * Refuses nothing that is merely pointless; verify.c judges the module as a whole. */
#include "parse.h"
#include <math.h>
#include <string.h>

#define BEING_DEFINED UINT32_MAX
enum { MAX_LIST = 1000, MAX_OPERANDS = 60000, MAX_HINT_NAMES = 4000 };

/* ---------------------------------------------------------------- names of values */

static uint32_t
name_place(const NameMap *map, const char *name)
{
	uint32_t i = (uint32_t)((uintptr_t)name >> 4) * 2654435761u & (map->cap - 1);

	while (map->name[i] && map->name[i] != name)
		i = (i + 1) & (map->cap - 1);
	return i;
}

static void
name_put(Parse *p, const char *name, uint32_t id)
{
	NameMap *map = &p->names, old = *map;
	uint32_t i;

	if (2 * map->n >= map->cap) {
		*map = (NameMap){.n = old.n, .cap = old.cap ? 2 * old.cap : 256};
		map->name = arena_array(p->scratch, const char *, map->cap);
		map->id = arena_array(p->scratch, uint32_t, map->cap);
		for (uint32_t k = 0; k < old.cap; k++)
			if (old.name[k]) {
				i = name_place(map, old.name[k]);
				map->name[i] = old.name[k];
				map->id[i] = old.id[k];
			}
	}
	i = name_place(map, name);
	map->n += map->name[i] == NULL;
	map->name[i] = name;
	map->id[i] = id;
}

static bool
name_get(const Parse *p, const char *name, uint32_t *id)
{
	uint32_t i;

	if (!p->names.cap)
		return false;
	i = name_place(&p->names, name);
	*id = p->names.id[i];
	return p->names.name[i] != NULL;
}

static const char *
value_hint(Parse *p, const char *name)
{
	const char **names = arena_array(p->scratch, const char *, MAX_HINT_NAMES);
	const char *s;
	int n = 0;

	for (uint32_t i = 0; i < p->names.cap && n < MAX_HINT_NAMES; i++)
		if (p->names.name[i])
			names[n++] = p->names.name[i];
	s = suggest(name, names, n);
	return s ? arena_printf(p->scratch, "; did you mean %%%s?", s) : "";
}

/* A value as it is mentioned. false after an error; *v is NOVAL for one whose definition was refused. */
static bool
parse_use(Parse *p, Val *v, Loc *at)
{
	const char *name;

	p_space(p);
	*at = p_loc(p);
	*v = NOVAL;
	if (!p_need_char(p, '%', "before a value's name"))
		return false;
	name = p_word(p, "a value's name");
	if (!name)
		return false;
	if (!name_get(p, name, &v->id))
		return p_error(p, *at, "no value %%%s is defined above%s", name, value_hint(p, name));
	return v->id != BEING_DEFINED || p_error(p, *at, "%%%s is used in its own definition", name);
}

typedef struct Fresh { const char *name; Loc at; } Fresh; /* a name being defined */

static bool
parse_fresh(Parse *p, Fresh *f)
{
	uint32_t id;

	p_space(p);
	f->at = p_loc(p);
	if (!p_need_char(p, '%', "before a value's name"))
		return false;
	f->name = p_word(p, "a value's name");
	if (!f->name)
		return false;
	if (name_get(p, f->name, &id))
		return p_error(p, f->at, "%%%s is defined twice", f->name);
	name_put(p, f->name, BEING_DEFINED);
	return true;
}

static Val
push_value(Parse *p, const char *name, Type t, uint32_t op, int index)
{
	ValInfo v = {.type = t, .name = name, .op = op, .index = (uint16_t)index, .offset = -1};

	vec_push(p->g->arena, &p->g->val, v);
	return (Val){p->g->val.n - 1};
}

/* ---------------------------------------------------------------- attributes */

static const char *
attr_hint(Parse *p, const OpInfo *info, const char *name)
{
	const char *names[16], *list = "";

	for (int i = 0; i < info->nattr; i++) {
		names[i] = attr_names[info->attr_name[i]].name;
		list = arena_printf(p->scratch, "%s%s%s", list, i ? ", " : "; it takes ", names[i]);
	}
	return *p_hint(p, name, names, info->nattr) ? p_hint(p, name, names, info->nattr)
	       : *list                              ? list
	                                            : "; it takes none";
}

static bool
parse_int_list(Parse *p, Attr *a, const char *what)
{
	int64_t list[MAX_LIST];
	int n = 0;

	if (!p_need_char(p, '[', "before a list"))
		return false;
	while (!p_char(p, ']')) {
		if (n == MAX_LIST)
			return p_error(p, p_loc(p), "%s: a list of more than %d numbers", what, MAX_LIST);
		if ((n && !p_need_char(p, ',', "between numbers")) || !p_int(p, INT64_MIN, INT64_MAX, what, &list[n++]))
			return false;
	}
	a->n = (uint16_t)n;
	a->list = memcpy(arena_array(p->m->arena, int64_t, n), list, sizeof *list * (size_t)n);
	return true;
}

static bool
parse_attr_value(Parse *p, Attr *a)
{
	const char *what = attr_names[a->name].name;
	bool is_int;
	double f;

	switch (attr_names[a->name].kind) {
	case AK_INT: return p_int(p, INT64_MIN, INT64_MAX, what, &a->i);
	case AK_INTS: return parse_int_list(p, a, what);
	case AK_STR: return (a->s = p_word(p, "a word or string")) != NULL;
	case AK_BOOL:
		a->i = p_keyword(p, "true");
		return a->i || p_keyword(p, "false") || p_error(p, p_loc(p), "%s: true or false expected", what);
	case AK_NUM:
		if (!p_number(p, what, &is_int, &a->i, &f))
			return false;
		if (!is_int && f == floor(f) && fabs(f) <= 9007199254740992.0 && !(f == 0 && signbit(f))) {
			is_int = true; /* 1.0 is kept as 1, as the builder does */
			a->i = (int64_t)f;
		}
		a->is_int = is_int;
		if (!is_int)
			a->f = f;
		return true;
	case AK_NUMS: break;
	}
	return p_error(p, p_loc(p), "%s: no such kind of attribute", what);
}

static bool
parse_attr(Parse *p, const OpInfo *info, Op *op, uint32_t *given)
{
	const char *name;
	Loc at;
	int i = 0;

	p_space(p);
	at = p_loc(p);
	name = p_bare(p);
	if (!name)
		return p_error(p, at, "an attribute's name or '}' expected");
	while (i < info->nattr && strcmp(attr_names[info->attr_name[i]].name, name) != 0)
		i++;
	if (i == info->nattr)
		return p_error(p, at, "%s has no attribute \"%s\"%s", info->name, name, attr_hint(p, info, name));
	if (*given & 1u << i)
		return p_error(p, at, "%s is given twice", name);
	*given |= 1u << i;
	return p_need_char(p, '=', "after the attribute's name") && parse_attr_value(p, &op->attr[i]);
}

static bool
parse_attrs(Parse *p, Op *op, Loc at)
{
	const OpInfo *info = &op_info[op->kind];
	uint32_t given = 0;

	op->nattr = info->nattr;
	op->attr = memcpy(arena_array(p->m->arena, Attr, info->nattr), info->attr_default, sizeof(Attr) * info->nattr);
	if (p_char(p, '{'))
		while (!p_char(p, '}')) {
			p_char(p, ',');
			if (!parse_attr(p, info, op, &given))
				return false;
		}
	for (int i = 0; i < info->nattr; i++)
		if (info->attr_required[i] && !(given & 1u << i))
			return p_error(p, at, "%s needs the attribute %s", info->name,
			               attr_names[info->attr_name[i]].name);
	return true;
}

/* ---------------------------------------------------------------- ops */

typedef struct OpLine {
	Op op;
	Loc at;                  /* of the operator's name */
	VEC(Fresh) result;
	VEC(Val) in;
	VEC(Loc) in_at;
	VEC(Type) type;
	VEC(int64_t) offset;
	bool broken;             /* an operand's definition was refused */
} OpLine;

static const char *
op_hint(Parse *p, const char *name)
{
	const char *names[OP_COUNT];
	int n = 0;

	for (int k = OP_none + 1; k < OP_COUNT; k++)
		if (op_info[k].ew < 0 || op_info[k].expr)
			names[n++] = op_info[k].name;
	return p_hint(p, name, names, n);
}

static bool
parse_operator(Parse *p, OpLine *l)
{
	const char *name;

	p_space(p);
	l->at = p_loc(p);
	name = p_bare(p);
	if (!name)
		return p_error(p, l->at, "an operator expected");
	l->op.kind = (uint16_t)op_named(name);
	return l->op.kind != OP_none || p_error(p, l->at, "there is no operator \"%s\"%s", name, op_hint(p, name));
}

static bool
parse_operands(Parse *p, OpLine *l)
{
	const OpInfo *info = &op_info[l->op.kind];

	p_space(p);
	if (p_peek(p) == '%')
		do {
			Val v;
			Loc at;

			if (!parse_use(p, &v, &at))
				return false;
			if (l->in.n == MAX_OPERANDS)
				return p_error(p, at, "more than %d operands", MAX_OPERANDS);
			l->broken |= v.id == 0;
			vec_push(p->scratch, &l->in, v);
			vec_push(p->scratch, &l->in_at, at);
		} while (p_char(p, ','));
	if (info->nin >= 0 && (int)l->in.n != info->nin)
		return p_error(p, l->at, "%s takes %d operand%s, %u %s given", info->name, info->nin,
		               info->nin == 1 ? "" : "s", (unsigned)l->in.n, l->in.n == 1 ? "is" : "are");
	if (info->nout >= 0 && (int)l->result.n != info->nout)
		return p_error(p, l->at, "%s has %d result%s, %u %s named", info->name, info->nout,
		               info->nout == 1 ? "" : "s", (unsigned)l->result.n, l->result.n == 1 ? "is" : "are");
	return true;
}

/* "at 4096, none": the offsets of all results. */
static bool
parse_offsets(Parse *p, OpLine *l)
{
	do {
		int64_t at = -1;

		if (!p_keyword(p, "none") && !p_int(p, 0, INT64_MAX, "an offset", &at))
			return false;
		vec_push(p->scratch, &l->offset, at);
	} while (p_char(p, ','));
	return l->offset.n == l->result.n ||
	       p_error(p, l->at, "%u offsets for %u results", (unsigned)l->offset.n, (unsigned)l->result.n);
}

/* " : types #group at offsets !location "path"", in this order or another; each may be left out. */
static bool
parse_tail(Parse *p, OpLine *l)
{
	int64_t group;

	for (;;) {
		p_space(p);
		if (p_char(p, ':')) {
			do {
				Type t;

				if (!p_type(p, &t))
					return false;
				vec_push(p->scratch, &l->type, t);
			} while (p_char(p, ','));
		} else if (p_char(p, '#')) {
			if (!p_int(p, 0, INT32_MAX, "a group's number", &group))
				return false;
			l->op.group = (int32_t)group;
		} else if (p_keyword(p, "at")) {
			if (!parse_offsets(p, l))
				return false;
		} else if (p_char(p, '!')) {
			if (!p_source_loc(p, &l->op.loc))
				return false;
		} else if (p_peek(p) == '"') {
			if (!(l->op.path = p_quoted(p)))
				return false;
		} else {
			break;
		}
	}
	return l->type.n == 0 || l->type.n == l->result.n ||
	       p_error(p, l->at, "%u types for %u results", (unsigned)l->type.n, (unsigned)l->result.n);
}

/* Runs the shape rule over the types as declared, or without any. On an error the values are taken back. */
static bool
infer_types(Parse *p, OpLine *l)
{
	Graph *g = p->g;
	Op *op = &l->op;
	const OpInfo *info = &op_info[op->kind];
	const char *error;
	int which = -1;

	for (int i = 0; i < op->nout; i++)
		op->out[i] = push_value(p, l->result.at[i].name, l->type.n ? l->type.at[i] : (Type){0}, g->op.n, i);
	error = info->shape(g, op, &which);
	for (int i = 0; !error && i < op->nout; i++)
		if (val_type(g, op->out[i])->dtype == DT_none)
			error = "needs a result type";
	if (!error)
		return true;
	p_error(p, l->at, "%s: %s", info->name, error);
	if (which >= 0 && which < op->nin) {
		Buf b = {0};

		type_print(&b, val_type(g, op->in[which]));
		diag_note(p->d, l->in_at.at[which], "%%%s is %s", val_info(g, op->in[which])->name, b.at);
		buf_free(&b);
	}
	g->val.n -= op->nout;
	return false;
}

static bool
finish_op(Parse *p, OpLine *l)
{
	Graph *g = p->g;
	Op *op = &l->op;

	if (g->op.n >= MAX_OPS)
		return p_error(p, l->at, "more than %d operators in a graph", MAX_OPS);
	op->nin = (uint16_t)l->in.n;
	op->nout = (uint16_t)l->result.n;
	op->in = memcpy(arena_array(g->arena, Val, op->nin), op->nin ? l->in.at : &NOVAL, sizeof(Val) * op->nin);
	op->out = arena_array(g->arena, Val, op->nout);
	if (!infer_types(p, l))
		return false;
	for (int i = 0; i < op->nout; i++) {
		name_put(p, l->result.at[i].name, op->out[i].id);
		if (l->offset.n)
			val_info(g, op->out[i])->offset = l->offset.at[i];
	}
	vec_push(g->arena, &g->op, *op);
	return true;
}

static bool
parse_results(Parse *p, OpLine *l)
{
	do {
		Fresh f;

		if (!parse_fresh(p, &f))
			return false; /* a second definition keeps the first */
		if (l->result.n == MAX_OPERANDS)
			return p_error(p, f.at, "more than %d results", MAX_OPERANDS);
		vec_push(p->scratch, &l->result, f);
	} while (p_char(p, ','));
	return p_need_char(p, '=', "after the results' names");
}

static bool
parse_op_parts(Parse *p, OpLine *l)
{
	bool opens;

	if ((p_peek(p) == '%' && !parse_results(p, l)) || !parse_operator(p, l) || !parse_operands(p, l) ||
	    !parse_attrs(p, &l->op, l->at) || !parse_tail(p, l))
		return false;
	opens = l->op.kind == OP_repeat && p_char(p, '{');
	p->depth += opens;
	if (l->op.kind == OP_end && p->depth > 0)
		p->depth--;
	if (!opens && !p_at_line_end(p) && p_peek(p) != '}')
		return p_error(p, p_loc(p), "the line should end here");
	return l->broken || finish_op(p, l);
}

static bool
parse_op(Parse *p)
{
	OpLine l = {.op = {.group = -1, .path = intern(p->m->arena, "")}};
	bool good = parse_op_parts(p, &l);

	if (good && !l.broken)
		return true;
	for (uint32_t i = 0; i < l.result.n; i++) {
		uint32_t id;

		if (name_get(p, l.result.at[i].name, &id) && id == BEING_DEFINED)
			name_put(p, l.result.at[i].name, 0);
	}
	return good;
}

/* A '}' inside a repeat: its end, which may carry a location like any op. */
static bool
parse_brace_end(Parse *p)
{
	OpLine l = {.op = {.kind = OP_end, .group = -1, .path = intern(p->m->arena, "")}, .at = p_loc(p)};

	p->depth--;
	if (!parse_attrs(p, &l.op, l.at) || !parse_tail(p, &l))
		return false;
	return finish_op(p, &l);
}

/* ---------------------------------------------------------------- graphs */

/* launch 3, none: by the group's kernels */
static bool
parse_launch(Parse *p, Group *gr)
{
	if (gr->launch.n)
		return p_error(p, p_loc(p), "a group's launches are written once");
	do {
		int64_t number = -1;

		if (!p_keyword(p, "none") && !p_int(p, 0, INT32_MAX, "a launch's number", &number))
			return false;
		vec_push(p->g->arena, &gr->launch, (int32_t)number);
	} while (p_char(p, ','));
	return true;
}

/* group #0 NAME "kernel" workspace 64 at 4096 prepacked 128 prepacked_at 8192 once launch 3, none record "key" */
static bool
parse_group(Parse *p)
{
	Group gr = {.workspace_offset = -1, .prepacked_offset = -1};
	Loc at = p_loc(p);
	int64_t number;

	if (!p_need_char(p, '#', "before the group's number") || !p_int(p, 0, INT32_MAX, "a group's number", &number))
		return false;
	if (number != p->g->group.n)
		return p_error(p, at, "group lines are numbered in order: #%u is next", (unsigned)p->g->group.n);
	if (!(gr.name = p_word(p, "the group's name")))
		return false;
	p_space(p);
	if (p_peek(p) == '"' && !(gr.kernel = p_quoted(p)))
		return false;
	while (!p_at_line_end(p)) {
		if (p_keyword(p, "workspace")) {
			if (!p_int(p, 0, INT64_MAX, "a workspace", &gr.workspace))
				return false;
		} else if (p_keyword(p, "at")) {
			if (!p_int(p, -1, INT64_MAX, "an offset", &gr.workspace_offset))
				return false;
		} else if (p_keyword(p, "prepacked_at")) {
			if (!p_int(p, -1, INT64_MAX, "an offset", &gr.prepacked_offset))
				return false;
		} else if (p_keyword(p, "prepacked")) {
			if (!p_int(p, 0, INT64_MAX, "a size", &gr.prepacked))
				return false;
		} else if (p_keyword(p, "once")) {
			gr.once = true;
		} else if (p_keyword(p, "launch")) {
			if (!parse_launch(p, &gr))
				return false;
		} else if (p_keyword(p, "record")) {
			p_space(p);
			if (!(gr.record = p_quoted(p)))
				return false;
		} else {
			return p_error(p, p_loc(p),
			               "workspace, at, prepacked, prepacked_at, once, launch or record expected");
		}
	}
	vec_push(p->g->arena, &p->g->group, gr);
	return true;
}

/* variant #0 "kernel" order bound 64 workspace 64 kept 128: of the last group */
static bool
parse_variant(Parse *p)
{
	GroupVariant v = {.bits = CLASS_COUNT};
	Loc at = p_loc(p);
	int64_t number;

	if (!p_need_char(p, '#', "before the group's number") || !p_int(p, 0, INT32_MAX, "a group's number", &number))
		return false;
	if (number + 1 != p->g->group.n)
		return p_error(p, at, "a variant stands behind its group's line");
	p_space(p);
	if (!(v.kernel = p_quoted(p)))
		return false;
	for (int i = 0; i < CLASS_COUNT && v.bits == CLASS_COUNT; i++)
		if (p_keyword(p, variant_classes[i]))
			v.bits = (VariantClass)i;
	if (v.bits == CLASS_COUNT)
		return p_error(p, p_loc(p), "same, order or round expected");
	while (!p_at_line_end(p)) {
		int64_t *number_at = p_keyword(p, "bound")       ? &v.bound
		                     : p_keyword(p, "workspace") ? &v.workspace
		                     : p_keyword(p, "prepacked")      ? &v.prepacked
		                                                 : NULL;

		if (!number_at)
			return p_error(p, p_loc(p), "bound, workspace or kept expected");
		if (!p_int(p, 0, INT64_MAX, "a number", number_at))
			return false;
	}
	vec_push(p->g->arena, &p->g->group.at[number].variant, v);
	return true;
}

static bool
parse_body(Parse *p)
{
	for (;;) {
		p_lines(p);
		if (p->at == p->end)
			return p_error(p, p_loc(p), "graph %s is not closed: '}' expected", p->g->name);
		if (p->d->full)
			return false;
		if (p_char(p, '}')) {
			if (p->depth == 0)
				return true;
			if (!parse_brace_end(p))
				p_skip_line(p);
		} else if (p_keyword(p, "group")) {
			if (!parse_group(p))
				p_skip_line(p);
		} else if (p_keyword(p, "variant")) {
			if (!parse_variant(p))
				p_skip_line(p);
		} else if (!parse_op(p)) {
			p_skip_line(p);
		}
	}
}

/* %x: TYPE at 64 = seed as name */
static bool
parse_input(Parse *p)
{
	Input in = {.kind = IN_DATA};
	Fresh f;
	Type t;

	if (!parse_fresh(p, &f) || !p_need_char(p, ':', "after the input's name") || !p_type(p, &t))
		return false;
	in.v = push_value(p, f.name, t, UINT32_MAX, 0);
	in.name = f.name;
	name_put(p, f.name, in.v.id);
	if (p_keyword(p, "at") && !p_int(p, 0, INT64_MAX, "an offset", &val_info(p->g, in.v)->offset))
		return false;
	if (p_char(p, '=')) {
		int k = p_one_of(p, text_input_kinds, IN_COUNT);

		if (k < 0)
			return p_error(p, p_loc(p), "data, seed, step, rate or first expected");
		in.kind = (InputKind)k;
	}
	if (p_keyword(p, "as") && !(in.name = p_word(p, "the input's name")))
		return false;
	vec_push(p->g->arena, &p->g->input, in);
	return true;
}

typedef struct ResultLine { Loc at; const char *value; Result r; } ResultLine;
typedef struct ResultLines { VEC(ResultLine) line; } ResultLines;

/* loss %v | metric NAME %v | output NAME %v | norm %v | scale %v | overflow %v | %v; the values are defined further
 * down. */
static bool
parse_result(Parse *p, ResultLines *out)
{
	ResultLine l = {.r = {.kind = RES_OUTPUT}};
	int k;

	p_space(p);
	if (p_peek(p) != '%') {
		k = p_one_of(p, text_result_kinds, RES_COUNT);
		if (k < 0)
			return p_error(p, p_loc(p), "loss, metric, output, norm, scale, overflow or a value expected");
		l.r.kind = (ResultKind)k;
		p_space(p);
		if (p_peek(p) != '%' && !(l.r.name = p_word(p, "the result's name")))
			return false;
	}
	p_space(p);
	l.at = p_loc(p);
	if (!p_need_char(p, '%', "before a value's name") || !(l.value = p_word(p, "a value's name")))
		return false;
	if (!l.r.name)
		l.r.name = intern(p->m->arena, text_result_name(l.r.kind, l.value));
	vec_push(p->scratch, &out->line, l);
	return true;
}

static bool
parse_header(Parse *p, ResultLines *results)
{
	Graph *g = p->g;

	if (!p_need_char(p, '(', "after the graph's name"))
		return false;
	for (p_lines(p); !p_char(p, ')'); p_lines(p))
		if ((g->input.n && !p_need_char(p, ',', "between inputs")) || (p_lines(p), !parse_input(p)))
			return false;
	if (p_char(p, '-')) {
		if (!p_need_char(p, '>', "before the results"))
			return false;
		do
			if (!parse_result(p, results))
				return false;
		while (p_char(p, ','));
	}
	for (Loc *loc = NULL; !p_char(p, '{');) {
		if (p_keyword(p, "training")) {
			g->training = true;
		} else if (p_keyword(p, "evaluation")) {
			g->training = false;
		} else if (p_keyword(p, "full_only")) {
			g->full_only = true;
			p_space(p);
			if (p_peek(p) == '"' && !(g->full_why = p_quoted(p)))
				return false;
			loc = &g->full_loc;
		} else if (p_keyword(p, "one_batch")) {
			p_space(p);
			if (!(g->one_batch = p_quoted(p)))
				return false;
			loc = &g->one_batch_loc;
		} else if (p_keyword(p, "multiple")) {
			if (!p_int(p, 1, MAX_ELEMENTS, "what the batch is a multiple of", &g->multiple))
				return false;
			loc = &g->multiple_loc;
		} else if (loc && p_char(p, '!')) {
			if (!p_source_loc(p, loc))
				return false;
		} else {
			return p_error(p, p_loc(p), "'{' expected before the graph's lines");
		}
	}
	return true;
}

static void
add_results(Parse *p, const ResultLines *results)
{
	for (uint32_t i = 0; i < results->line.n; i++) {
		ResultLine l = results->line.at[i];

		if (!name_get(p, l.value, &l.r.v.id))
			p_error(p, l.at, "no value %%%s is defined in the graph%s", l.value, value_hint(p, l.value));
		else if (l.r.v.id)
			vec_push(p->g->arena, &p->g->result, l.r);
	}
}

/* Hand-written text may number groups without describing them. */
static void
add_groups(Parse *p)
{
	Graph *g = p->g;
	int64_t most = -1;

	for (uint32_t i = 0; i < g->op.n; i++)
		most = g->op.at[i].group > most ? g->op.at[i].group : most;
	if (most >= (int64_t)g->group.n && (g->group.n || most >= (int64_t)g->op.n)) {
		p_error(p, p_loc(p), "graph %s: an op is of group #%lld, which no group line describes", g->name,
		        (long long)most);
		return;
	}
	while ((int64_t)g->group.n <= most) {
		Group gr = {.workspace_offset = -1, .prepacked_offset = -1};

		gr.name = intern(g->arena, arena_printf(p->scratch, "%s_group%u", g->name, (unsigned)g->group.n));
		vec_push(g->arena, &g->group, gr);
	}
}

/* After a header that cannot be read: up to the line that begins with the closing brace. */
static void
skip_graph(Parse *p)
{
	for (p_skip_line(p); p->at < p->end; p_skip_line(p))
		if (*p->at == '}') {
			p->at++;
			return;
		}
}

static bool
parse_graph(Parse *p, bool is_loop)
{
	ResultLines results = {{0}};
	const char *name;
	Loc at;

	p_space(p);
	at = p_loc(p);
	if (!(name = p_word(p, "the graph's name"))) {
		skip_graph(p);
		return false;
	}
	for (uint32_t i = 0; i < p->m->graph.n; i++)
		if (p->m->graph.at[i]->name == name && p->m->graph.at[i]->is_loop == is_loop)
			p_error(p, at, "there are two %s %s", is_loop ? "loops" : "graphs", name);
	p->g = module_add_graph(p->m, name);
	p->g->is_loop = is_loop;
	p->g->training = text_training_by_name(name);
	p->names = (NameMap){0};
	p->depth = 0;
	if (!parse_header(p, &results)) {
		skip_graph(p);
		return false;
	}
	if (!parse_body(p))
		return false;
	add_results(p, &results);
	add_groups(p);
	return true;
}

/* ---------------------------------------------------------------- the whole text */

static bool
parse_item(Parse *p)
{
	static const char *const names[] = {"module", "setting", "state", "graph", "loop"};
	Loc at = p_loc(p);
	const char *word;
	int k = p_one_of(p, names, 5);

	switch (k) {
	case 0:
		if (p->m->graph.n || p->m->state.n || p->m->setting.n)
			return p_error(p, at, "the module line stands first");
		return p_module_line(p);
	case 1: return p_setting_line(p);
	case 2: return p_state_line(p);
	case 3:
	case 4:
		parse_graph(p, k == 4); /* it has found the graph's end itself */
		return true;
	default:
		word = p_bare(p);
		return p_error(p, at, "a line begins with module, setting, state, graph or loop%s",
		               word ? p_hint(p, word, names, 5) : "");
	}
}

Module *
module_parse(Arena *a, Diags *d, const char *file, const char *text, size_t bytes)
{
	Parse p = {.d = d, .at = text, .line_at = text, .end = text + bytes, .line = 1};

	ir_init();
	p.scratch = arena_new();
	p.m = module_new(a, d, "m");
	p.file = diags_add_source(d, file, text, bytes);
	for (p_lines(&p); p.at < p.end && !d->full; p_lines(&p)) {
		if (!parse_item(&p))
			p_skip_line(&p);
		else if (!p_at_line_end(&p)) {
			p_error(&p, p_loc(&p), "the line should end here");
			p_skip_line(&p);
		}
	}
	arena_free(p.scratch);
	return p.failed ? NULL : p.m;
}
