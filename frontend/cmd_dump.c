/* cmd_dump.c: `dump` and `opt`: the IR as text, dot or JSON, and passes over textual IR.
 *
 * The text form is module_print's and reads back at every stage; dot (Graphviz) draws a box per kernel; JSON holds the
 * same ops for programs.
 * `opt` without --passes only reads, verifies and prints, so that `dump | opt -` gives the same text. */
#include "cmd.h"

#include <inttypes.h>
#include <string.h>

/* Only the graphs that --graph names; loops go with `loop`. */
static int
keep_graphs(const Job *j, Module *m, const char *name)
{
	uint32_t n = 0;
	bool loops = !strcmp(name, "loop");

	for (uint32_t i = 0; i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		if (loops ? g->is_loop : !g->is_loop && !strcmp(g->name, name))
			m->graph.at[n++] = g;
	}
	if (!n) {
		const char *names[64];
		int k = 0;

		for (uint32_t i = 0; i < m->graph.n && k < 63; i++)
			if (!m->graph.at[i]->is_loop)
				names[k++] = m->graph.at[i]->name;
		names[k++] = "loop";
		const char *near = suggest(name, names, k);

		return near ? usage_error(j->command, "--graph: there is no '%s'; did you mean '%s'?", name, near)
		            : usage_error(j->command, "--graph: '%s' has no graph '%s'", m->name, name);
	}
	m->graph.n = n;
	return EXIT_GOOD;
}

/* ---------------------------------------------------------------- dot */
static void
dot_text(Buf *b, const char *s)
{
	for (; *s; s++)
		buf_printf(b, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
}

static void
dot_op(Buf *b, const Graph *g, int graph, uint32_t i)
{
	const Op *op = &g->op.at[i];

	buf_printf(b, "\tg%d_%u [label=\"", graph, i);
	dot_text(b, op_info[op->kind].name);
	if (op->kind == OP_load || op->kind == OP_store) {
		buf_printf(b, " ");
		dot_text(b, attr_str(op, A_state));
	}
	for (int k = 0; k < op->nout; k++) {
		buf_printf(b, "\\n%%");
		dot_text(b, val_info(g, op->out[k])->name);
		buf_printf(b, ": ");
		type_print(b, val_type(g, op->out[k]));
	}
	buf_printf(b, "\"];\n");
}

static void
dot_graph(Buf *b, const Graph *g, int n)
{
	buf_printf(b, "subgraph cluster_g%d {\n\tlabel=\"%s\";\n", n, g->name);
	for (uint32_t k = 0; k < g->input.n; k++) {
		buf_printf(b, "\tg%d_in%u [shape=ellipse, label=\"%s: ", n, g->input.at[k].v.id, g->input.at[k].name);
		type_print(b, val_type(g, g->input.at[k].v));
		buf_printf(b, "\"];\n");
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		if (!g->op.at[i].dead && g->op.at[i].group < 0)
			dot_op(b, g, n, i);
	for (uint32_t k = 0; k < g->group.n; k++) {
		buf_printf(b, "\tsubgraph cluster_g%d_k%u {\n\tlabel=\"", n, k);
		dot_text(b, g->group.at[k].name ? g->group.at[k].name : "");
		buf_printf(b, "\"; style=filled; fillcolor=\"#eeeeee\";\n");
		for (uint32_t last, i = graph_group_ops(g, (int)k, &last); i < last; i++)
			if (!g->op.at[i].dead && g->op.at[i].group == (int32_t)k)
				dot_op(b, g, n, i);
		buf_printf(b, "\t}\n");
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && k < op->nin; k++) {
			const ValInfo *v = val_info(g, op->in[k]);

			if (v->op == UINT32_MAX)
				buf_printf(b, "\tg%d_in%u -> g%d_%u;\n", n, op->in[k].id, n, i);
			else
				buf_printf(b, "\tg%d_%u -> g%d_%u;\n", n, v->op, n, i);
		}
	}
	buf_printf(b, "}\n");
}

static void
dot_module(Buf *b, const Module *m)
{
	buf_printf(b, "digraph \"%s\" {\nnode [shape=box, fontname=\"sans-serif\"];\n", m->name);
	for (uint32_t i = 0; i < m->graph.n; i++)
		dot_graph(b, m->graph.at[i], (int)i);
	buf_printf(b, "}\n");
}

/* ---------------------------------------------------------------- JSON */
static void
json_type(Buf *b, const Type *t)
{
	Buf s = {0};

	type_print(&s, t);
	buf_json(b, s.at ? s.at : "");
	buf_free(&s);
}

static void
json_attr(Buf *b, const Attr *a)
{
	switch (attr_names[a->name].kind) {
	case AK_STR: buf_json(b, a->s ? a->s : ""); break;
	case AK_BOOL: buf_printf(b, a->i ? "true" : "false"); break;
	case AK_INT: buf_printf(b, "%" PRId64, a->i); break;
	case AK_NUM: {
		double x = a->f;

		if (a->is_int)
			buf_printf(b, "%" PRId64, a->i);
		else if (x - x != 0) /* JSON knows no infinity */
			buf_printf(b, x > 0 ? "\"inf\"" : x < 0 ? "\"-inf\"" : "\"nan\"");
		else
			buf_double(b, x);
		break;
	}
	case AK_INTS:
	case AK_NUMS:
		buf_printf(b, "[");
		for (int i = 0; i < a->n; i++)
			buf_printf(b, "%s%" PRId64, i ? ", " : "", a->list[i]);
		buf_printf(b, "]");
		break;
	}
}

static void
json_op(Buf *b, const Graph *g, const Op *op)
{
	buf_printf(b, "\n   {\"op\": ");
	buf_json(b, op_info[op->kind].name);
	buf_printf(b, ", \"in\": [");
	for (int k = 0; k < op->nin; k++) {
		buf_printf(b, "%s", k ? ", " : "");
		buf_json(b, val_info(g, op->in[k])->name);
	}
	buf_printf(b, "], \"out\": [");
	for (int k = 0; k < op->nout; k++) {
		const ValInfo *v = val_info(g, op->out[k]);

		buf_printf(b, "%s{\"name\": ", k ? ", " : "");
		buf_json(b, v->name);
		buf_printf(b, ", \"type\": ");
		json_type(b, &v->type);
		if (v->offset >= 0)
			buf_printf(b, ", \"offset\": %" PRId64, v->offset);
		buf_printf(b, "}");
	}
	buf_printf(b, "], \"attrs\": {");
	for (int k = 0; k < op->nattr; k++) {
		buf_printf(b, "%s\"%s\": ", k ? ", " : "", attr_names[op->attr[k].name].name);
		json_attr(b, &op->attr[k]);
	}
	buf_printf(b, "}");
	if (op->group >= 0)
		buf_printf(b, ", \"group\": %d", op->group);
	if (op->path && *op->path) {
		buf_printf(b, ", \"layer\": ");
		buf_json(b, op->path);
	}
	Buf where = {0};

	print_where(&where, g->module, op->loc);
	if (where.n) {
		buf_printf(b, ", \"where\": ");
		buf_json(b, where.at);
	}
	buf_free(&where);
	buf_printf(b, "}");
}

static void
json_graph(Buf *b, const Graph *g)
{
	const char *comma = "";

	buf_printf(b, "\n  {\"name\": ");
	buf_json(b, g->name);
	buf_printf(b, ", \"loop\": %s, \"inputs\": [", g->is_loop ? "true" : "false");
	for (uint32_t k = 0; k < g->input.n; k++) {
		buf_printf(b, "%s{\"name\": ", k ? ", " : "");
		buf_json(b, g->input.at[k].name);
		buf_printf(b, ", \"type\": ");
		json_type(b, val_type(g, g->input.at[k].v));
		buf_printf(b, "}");
	}
	buf_printf(b, "], \"results\": [");
	for (uint32_t k = 0; k < g->result.n; k++) {
		buf_printf(b, "%s{\"name\": ", k ? ", " : "");
		buf_json(b, g->result.at[k].name);
		buf_printf(b, ", \"kind\": \"%s\", \"value\": ", text_result_kinds[g->result.at[k].kind]);
		buf_json(b, val_info(g, g->result.at[k].v)->name);
		buf_printf(b, "}");
	}
	buf_printf(b, "], \"ops\": [");
	for (uint32_t i = 0; i < g->op.n; i++) {
		if (g->op.at[i].dead)
			continue;
		buf_printf(b, "%s", comma);
		json_op(b, g, &g->op.at[i]);
		comma = ",";
	}
	buf_printf(b, "]}");
}

static void
json_module(Buf *b, const Module *m)
{
	buf_printf(b, "{\"name\": ");
	buf_json(b, m->name);
	buf_printf(b, ", \"batch\": %" PRId64 ", \"stage\": \"%s\", \"state\": [", m->batch, m->stage);
	for (uint32_t i = 0; i < m->state.n; i++) {
		buf_printf(b, "%s\n  {\"name\": ", i ? "," : "");
		buf_json(b, m->state.at[i].name);
		buf_printf(b, ", \"kind\": \"%s\", \"type\": ", text_state_kinds[m->state.at[i].kind]);
		json_type(b, &m->state.at[i].type);
		buf_printf(b, "}");
	}
	buf_printf(b, "], \"graphs\": [");
	for (uint32_t i = 0; i < m->graph.n; i++) {
		buf_printf(b, "%s", i ? "," : "");
		json_graph(b, m->graph.at[i]);
	}
	buf_printf(b, "]}\n");
}

/* ---------------------------------------------------------------- the commands */
static int
check_choice(const char *option, const char *got, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(got, names[i]))
			return EXIT_GOOD;
	const char *near = suggest(got, names, n);

	return near ? usage_error("dump", "--%s: there is no '%s'; did you mean '%s'?", option, got, near)
	            : usage_error("dump", "--%s: there is no '%s'; mantou dump --help lists them", option, got);
}

int
cmd_dump(Arena *a, const Options *o)
{
	static const char *const formats[] = {"text", "dot", "json", "html"};
	Job j;
	Module *m;
	PassCtx cx;
	Buf b = {0};
	const char *format = o->format ? o->format : "text";
	int status = job_open(&j, a, o, "dump", o->operand[0]);

	if (status == EXIT_GOOD && o->stage)
		status = check_choice("stage", o->stage, stage_names, STAGE_COUNT);
	if (status == EXIT_GOOD)
		status = check_choice("format", format, formats, 4);
	if (status == EXIT_GOOD && !strcmp(format, "html"))
		status = failure("--format html: not built in; text, dot and json are");
	if (status == EXIT_GOOD)
		status = job_check_output(&j, o->output);
	if (status == EXIT_GOOD && job_emits(&j))
		return job_build(&j, o->emit, o->output ? o->output : "-");
	if (status == EXIT_GOOD)
		status = job_load(&j);
	if (status != EXIT_GOOD)
		return status;
	/* IR that is further on than `fused` is printed as it is. */
	const char *stage = o->stage                                      ? o->stage
	                    : stage_number(j.module->stage) < STAGE_fused ? "fused"
	                                                                  : j.module->stage;

	status = job_compile(&j, 0, stage, &m, &cx);
	if (status == EXIT_GOOD && o->graph)
		status = keep_graphs(&j, m, o->graph);
	if (status != EXIT_GOOD)
		return status;
	if (!strcmp(format, "dot"))
		dot_module(&b, m);
	else if (!strcmp(format, "json"))
		json_module(&b, m);
	else
		module_print(&b, m);
	status = job_output(&j, o->output, &b);
	buf_free(&b);
	return status;
}

int
cmd_opt(Arena *a, const Options *o)
{
	Job j;
	Module *m;
	PassCtx cx;
	Buf b = {0};
	int status = job_open(&j, a, o, "opt", o->operand[0]);

	if (status == EXIT_GOOD)
		status = job_check_output(&j, o->output);
	if (status == EXIT_GOOD)
		status = job_load(&j);
	if (status != EXIT_GOOD)
		return status;
	m = j.module;
	if (o->passes.n) {
		Buf list = {0};

		for (int i = 0; i < o->passes.n; i++)
			buf_printf(&list, "%s%s", i ? "," : "", o->passes.at[i]);
		job_context(&j, m, 0, &cx);
		cx.only = arena_strdup(a, list.at);
		buf_free(&list);
		bool good = passes_run(m, &cx) && !cx.failed && !j.diags.nerror;

		arena_free(cx.scratch);
		if (!good)
			return EXIT_FAILED;
	}
	if (job_emits(&j))
		return job_build(&j, o->emit, o->output ? o->output : "-");
	module_print(&b, m);
	status = job_output(&j, o->output, &b);
	buf_free(&b);
	return status;
}
