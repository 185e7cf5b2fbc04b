/* print.c: a module as text; parse.c reads it back and the next print gives the same bytes. text.md has the format.
 *
 * Driven by the tables: attributes in table order with defaults left out, everything a stage has filled in (groups,
 * offsets, layouts) beside the types. Numbers print so that they read back exactly. No pointers, hash order or dates.
 * Prints broken graphs too, since the verifier shows what it complains about. */
#include "text.h"
#include <string.h>

const char *const text_state_kinds[ST_COUNT] = {
#define STATE_KIND(name, word) [ST_##name] = word,
#include "../runtime/kinds.def"
};
const char *const text_inits[INIT_COUNT] = {
#define INIT_KIND(name, word) [INIT_##name] = word,
#include "../runtime/kinds.def"
};
const char *const text_input_kinds[IN_COUNT] = {
        [IN_DATA] = "data", [IN_SEED] = "seed", [IN_STEP] = "step", [IN_RATE] = "rate", [IN_FIRST] = "first"};
const char *const text_result_kinds[RES_COUNT] = {
#define RESULT_KIND(name, word) [RES_##name] = word,
#include "../runtime/kinds.def"
};

static bool
text_is_bare(const char *s)
{
	if (!*s)
		return false;
	for (; *s; s++)
		if (!text_is_bare_char(*s))
			return false;
	return true;
}

bool
text_training_by_name(const char *name)
{
	return strcmp(name, "train") == 0 || strcmp(name, "update") == 0;
}

const char *
text_result_name(ResultKind k, const char *value)
{
	switch (k) {
	case RES_METRIC: case RES_WHOLE: case RES_BATCH: case RES_OUTPUT: case RES_SET: case RES_KEPT: case RES_TABLE:
		return value;
	default:
		return text_result_kinds[k];
	}
}

static bool
attr_same(const Attr *a, const Attr *b)
{
	if (a->name != b->name)
		return false;
	switch (attr_names[a->name].kind) {
	case AK_STR: return strcmp(a->s ? a->s : "", b->s ? b->s : "") == 0;
	case AK_INTS: return a->n == b->n && (a->n == 0 || memcmp(a->list, b->list, sizeof *a->list * a->n) == 0);
	case AK_NUM: return a->is_int == b->is_int && a->i == b->i; /* the bits: -0 and NaN are what they are */
	default: return a->i == b->i;
	}
}

/* ---------------------------------------------------------------- words, numbers */

static bool
special(unsigned char c)
{
	return c == '"' || c == '\\' || c < 0x20 || c == 0x7f;
}

static void
print_quoted(Buf *b, const char *s)
{
	buf_put(b, "\"", 1);
	for (; *s; s++) {
		size_t plain = 0;

		while (s[plain] && !special((unsigned char)s[plain]))
			plain++;
		buf_put(b, s, plain);
		s += plain;
		if (!*s)
			break;
		unsigned char c = (unsigned char)*s;

		buf_printf(b, c == '"' || c == '\\' ? "\\%c" : "\\x%02x", c);
	}
	buf_put(b, "\"", 1);
}

static void
print_word(Buf *b, const char *s)
{
	if (!s)
		s = "";
	if (text_is_bare(s))
		buf_put(b, s, strlen(s));
	else
		print_quoted(b, s);
}

/* A double always shows that it is one, as whole numbers without a point read as integers. */
static void
print_double(Buf *b, double x)
{
	size_t from = b->n;

	buf_double(b, x);
	if (strspn(b->at + from, "-0123456789") == b->n - from)
		buf_put(b, ".0", 2);
}

static void
print_loc(Buf *b, const Module *m, Loc at)
{
	const Diags *d = m ? m->diags : NULL;

	if (!at.line && !at.file && !at.col)
		return;
	buf_printf(b, " !");
	if (d && at.file && at.file < d->source.n)
		print_word(b, d->source.at[at.file].name);
	else
		buf_printf(b, "?");
	buf_printf(b, ":%u:%u", (unsigned)at.line, (unsigned)at.col);
}

static void
print_val(Buf *b, const Graph *g, Val v)
{
	if (v.id == 0 || v.id >= g->val.n || !g->val.at[v.id].name)
		buf_printf(b, "%%?%u", (unsigned)v.id);
	else {
		buf_printf(b, "%%");
		print_word(b, g->val.at[v.id].name);
	}
}

/* ---------------------------------------------------------------- settings */

void
setting_print(Buf *b, const Setting *s)
{
	switch (s->kind) {
	case SET_NONE: buf_printf(b, "none"); return;
	case SET_INT: buf_printf(b, "%lld", (long long)s->i); return;
	case SET_NUM: print_double(b, s->f); return;
	case SET_BOOL: buf_printf(b, "%s", s->i ? "true" : "false"); return;
	case SET_STR: buf_printf(b, "\"%s\"", s->s); return; /* no escapes in the .net */
	case SET_NAME: buf_printf(b, "%s", s->s); return;
	case SET_LIST:
	case SET_CALL:
		buf_printf(b, "%s%s", s->kind == SET_CALL ? s->s : "", s->kind == SET_CALL ? "(" : "[");
		for (int i = 0; i < s->nargs; i++) {
			buf_printf(b, "%s", i ? ", " : "");
			if (s->kind == SET_CALL && s->arg[i].name)
				buf_printf(b, "%s = ", s->arg[i].name);
			setting_print(b, &s->arg[i]);
		}
		buf_printf(b, "%s", s->kind == SET_CALL ? ")" : "]");
		return;
	}
}

/* ---------------------------------------------------------------- ops */

static void
print_attr_value(Buf *b, const Attr *a)
{
	switch (attr_names[a->name].kind) {
	case AK_INT: buf_printf(b, "%lld", (long long)a->i); return;
	case AK_BOOL: buf_printf(b, "%s", a->i ? "true" : "false"); return;
	case AK_STR: print_word(b, a->s); return;
	case AK_NUM:
		if (a->is_int)
			buf_printf(b, "%lld", (long long)a->i);
		else
			print_double(b, a->f);
		return;
	case AK_INTS:
	case AK_NUMS:
		buf_printf(b, "[");
		for (int i = 0; i < a->n; i++)
			buf_printf(b, "%s%lld", i ? "," : "", (long long)a->list[i]);
		buf_printf(b, "]");
		return;
	}
}

void
op_print_attrs(Buf *b, const Op *op, bool names)
{
	const OpInfo *info = &op_info[op->kind];
	int shown = 0;

	for (int i = 0; i < op->nattr; i++) {
		if (i < info->nattr && !info->attr_required[i] && attr_same(&op->attr[i], &info->attr_default[i]))
			continue;
		if (!names && attr_names[op->attr[i].name].kind == AK_STR)
			continue;
		buf_printf(b, "%s%s=", shown++ ? " " : " {", attr_names[op->attr[i].name].name);
		print_attr_value(b, &op->attr[i]);
	}
	if (shown)
		buf_printf(b, "}");
}

/* " #3 at 4096, none !file:8:12 "path"": what stands behind the types. */
static void
print_marks(Buf *b, const Graph *g, const Op *op)
{
	bool placed = false;

	if (op->group != -1)
		buf_printf(b, " #%d", (int)op->group);
	for (int i = 0; i < op->nout; i++)
		placed |= op->out[i].id < g->val.n && val_info(g, op->out[i])->offset >= 0;
	for (int i = 0; placed && i < op->nout; i++) {
		int64_t at = op->out[i].id < g->val.n ? val_info(g, op->out[i])->offset : -1;

		buf_printf(b, "%s", i ? ", " : " at ");
		if (at >= 0)
			buf_printf(b, "%lld", (long long)at);
		else
			buf_printf(b, "none");
	}
	print_loc(b, g->module, op->loc);
	if (op->path && *op->path) {
		buf_printf(b, " ");
		print_quoted(b, op->path);
	}
}

void
op_print(Buf *b, const Graph *g, const Op *op)
{
	for (int i = 0; i < op->nout; i++) {
		buf_printf(b, "%s", i ? ", " : "");
		print_val(b, g, op->out[i]);
	}
	buf_printf(b, "%s%s", op->nout ? " = " : "", op->kind < OP_COUNT ? op_info[op->kind].name : "?");
	for (int i = 0; i < op->nin; i++) {
		buf_printf(b, "%s", i ? ", " : " ");
		print_val(b, g, op->in[i]);
	}
	if (op->kind < OP_COUNT)
		op_print_attrs(b, op, true);
	for (int i = 0; i < op->nout; i++) {
		buf_printf(b, "%s", i ? ", " : " : ");
		if (op->out[i].id < g->val.n)
			type_print(b, val_type(g, op->out[i]));
	}
	print_marks(b, g, op);
}

/* ---------------------------------------------------------------- graphs */

static void
print_header(Buf *b, const Graph *g)
{
	bool by_name = text_training_by_name(g->name);

	buf_printf(b, "%s ", g->is_loop ? "loop" : "graph");
	print_word(b, g->name);
	buf_printf(b, "(");
	for (uint32_t i = 0; i < g->input.n; i++) {
		const Input *in = &g->input.at[i];
		const ValInfo *v = val_info(g, in->v);

		buf_printf(b, "%s", i ? ", " : "");
		print_val(b, g, in->v);
		buf_printf(b, ": ");
		type_print(b, &v->type);
		if (v->offset >= 0)
			buf_printf(b, " at %lld", (long long)v->offset);
		if (in->kind != IN_DATA)
			buf_printf(b, " = %s", text_input_kinds[in->kind]);
		if (strcmp(in->name, v->name) != 0) {
			buf_printf(b, " as ");
			print_word(b, in->name);
		}
	}
	buf_printf(b, ")");
	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];
		const char *value = r->v.id < g->val.n && g->val.at[r->v.id].name ? g->val.at[r->v.id].name : "";

		buf_printf(b, "%s%s ", i ? ", " : " -> ", text_result_kinds[r->kind]);
		if (strcmp(r->name, text_result_name(r->kind, value)) != 0) {
			print_word(b, r->name);
			buf_printf(b, " ");
		}
		print_val(b, g, r->v);
	}
	if (g->training != by_name)
		buf_printf(b, g->training ? " training" : " evaluation");
	if (g->full_only) {
		buf_printf(b, " full_only ");
		print_quoted(b, g->full_why ? g->full_why : "");
		print_loc(b, g->module, g->full_loc);
	}
	if (g->one_batch) {
		buf_printf(b, " one_batch ");
		print_quoted(b, g->one_batch);
		print_loc(b, g->module, g->one_batch_loc);
	}
	if (g->multiple > 1) {
		buf_printf(b, " multiple %lld", (long long)g->multiple);
		print_loc(b, g->module, g->multiple_loc);
	}
	buf_printf(b, " {\n");
}

static void
print_group(Buf *b, const Group *gr, int number)
{
	buf_printf(b, "  group #%d ", number);
	print_word(b, gr->name);
	if (gr->kernel) {
		buf_printf(b, " ");
		print_quoted(b, gr->kernel);
	}
	if (gr->workspace)
		buf_printf(b, " workspace %lld", (long long)gr->workspace);
	if (gr->workspace_offset != -1)
		buf_printf(b, " at %lld", (long long)gr->workspace_offset);
	if (gr->prepacked)
		buf_printf(b, " prepacked %lld", (long long)gr->prepacked);
	if (gr->prepacked_offset != -1)
		buf_printf(b, " prepacked_at %lld", (long long)gr->prepacked_offset);
	if (gr->once)
		buf_printf(b, " once");
	for (uint32_t i = 0; i < gr->launch.n; i++) {
		buf_printf(b, i ? ", " : " launch ");
		if (gr->launch.at[i] < 0)
			buf_printf(b, "none");
		else
			buf_printf(b, "%d", (int)gr->launch.at[i]);
	}
	if (gr->record) {
		buf_printf(b, " record ");
		print_quoted(b, gr->record);
	}
	buf_printf(b, "\n");
	for (uint32_t i = 0; i < gr->variant.n; i++) {
		const GroupVariant *v = &gr->variant.at[i];

		buf_printf(b, "  variant #%d ", number);
		print_quoted(b, v->kernel);
		buf_printf(b, " %s", variant_classes[v->bits]);
		if (v->bound)
			buf_printf(b, " bound %lld", (long long)v->bound);
		if (v->workspace)
			buf_printf(b, " workspace %lld", (long long)v->workspace);
		if (v->prepacked)
			buf_printf(b, " prepacked %lld", (long long)v->prepacked);
		buf_printf(b, "\n");
	}
}

/* `repeat` opens a brace, its `end` is the closing one; an end that closes nothing stays a word. */
void
graph_print(Buf *b, const Graph *g)
{
	int depth = 0;

	print_header(b, g);
	for (uint32_t i = 0; i < g->group.n; i++)
		print_group(b, &g->group.at[i], (int)i);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool closes = op->kind == OP_end && depth > 0;

		if (op->dead)
			continue;
		depth -= closes;
		buf_printf(b, "%*s", 2 + 2 * (depth < 20 ? depth : 20), "");
		if (closes) {
			buf_printf(b, "}");
			print_marks(b, g, op);
		} else {
			op_print(b, g, op);
		}
		if (op->kind == OP_repeat) {
			buf_printf(b, " {");
			depth++;
		}
		buf_printf(b, "\n");
	}
	buf_printf(b, "}\n");
}

/* ---------------------------------------------------------------- modules */

static void
print_state(Buf *b, const Module *m, const State *s)
{
	buf_printf(b, "state @");
	print_word(b, s->name);
	buf_printf(b, " : ");
	type_print(b, &s->type);
	buf_printf(b, " = %s(", text_inits[s->init]);
	buf_double(b, s->a);
	if (s->init != INIT_CONSTANT) {
		buf_printf(b, ", ");
		buf_double(b, s->b);
	}
	buf_printf(b, ") {kind=%s%s%s}", text_state_kinds[s->kind], s->decay ? " decay" : "",
	           s->frozen ? " frozen" : "");
	if (s->offset >= 0)
		buf_printf(b, " at %lld", (long long)s->offset);
	print_loc(b, m, s->loc);
	buf_printf(b, "\n");
}

static void
print_module_line(Buf *b, const Module *m)
{
	buf_printf(b, "module ");
	print_word(b, m->name);
	buf_printf(b, " {batch=%lld stage=%s hash=%016llx", (long long)m->batch, m->stage,
	           (unsigned long long)m->source_hash);
	if (m->target) {
		buf_printf(b, " target=");
		print_word(b, m->target);
	}
	if (m->arch) {
		buf_printf(b, " arch=");
		print_word(b, m->arch);
	}
	if (m->arena_bytes)
		buf_printf(b, " arena_bytes=%lld", (long long)m->arena_bytes);
	if (m->scratch_bytes)
		buf_printf(b, " scratch_bytes=%lld", (long long)m->scratch_bytes);
	buf_printf(b, "}\n");
}

void
module_print(Buf *b, const Module *m)
{
	print_module_line(b, m);
	for (uint32_t i = 0; i < m->setting.n; i++) {
		buf_printf(b, "setting %s = ", m->setting.at[i].name);
		setting_print(b, &m->setting.at[i]);
		buf_printf(b, "\n");
	}
	for (uint32_t i = 0; i < m->state.n; i++)
		print_state(b, m, &m->state.at[i]);
	for (uint32_t i = 0; i < m->graph.n; i++) {
		buf_printf(b, "\n");
		graph_print(b, m->graph.at[i]);
	}
}
