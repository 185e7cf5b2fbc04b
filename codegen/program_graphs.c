/* program_graphs.c: of the descriptor: graphs with their results and kernel tables, races of kernels, loops.
 *
 * In: a planned Module and its kernels (none for target ref).   Out: the tables of runtime/descriptor.md. */
#include "program.h"
#include <math.h>
#include <string.h>

/* v is computed from states and constants alone: it is the same in every batch. */
static bool
is_constant(const Graph *g, Val v, Arena *a)
{
	bool *varies = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->input.n; i++)
		varies[g->input.at[i].v.id] = true;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool any = op_has((OpKind)op->kind, T_RANDOM);

		for (int k = 0; k < op->nin; k++)
			any |= varies[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			varies[op->out[k].id] = any;
	}
	return !varies[v.id];
}

static void
put_results(Buf *b, const Graph *g, Arena *a)
{
	buf_printf(b, ", \"results\": [");
	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];
		const Type *t = val_type(g, r->v);

		buf_printf(b, "%s{\"name\": ", i ? ", " : "");
		buf_json(b, r->name);
		buf_printf(b, ", \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": ", text_result_kinds[r->kind],
		           dtype_info[t->dtype].name);
		program_put_shape(b, t);
		buf_printf(b, ", \"mark\": [");
		for (int k = 0; k < t->rank; k++)
			buf_printf(b, "%s[%d,%d]", k ? "," : "", t->axis[k].mul, t->axis[k].mul ? t->axis[k].div : 1);
		buf_printf(b, "], \"offset\": %lld%s}", (long long)val_info(g, r->v)->offset,
		           r->kind == RES_OUTPUT && is_constant(g, r->v, a) ? ", \"constant\": true" : "");
	}
	buf_printf(b, "]");
}

/* How metrics of the whole set are made of what is kept: settings metric.NAME = FUNCTION(iou = [..]). */
static void
put_sets(Buf *b, const Graph *g)
{
	const char *before = ", \"sets\": [";

	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];
		const Setting *s = r->kind == RES_SET ? setting(g->module, arena_printf(g->arena, "metric.%s", r->name))
		                                      : NULL,
		              *iou = s ? setting_arg(s, "iou") : NULL;

		if (!s)
			continue;
		buf_printf(b, "%s{\"name\": ", before);
		buf_json(b, r->name);
		buf_printf(b, ", \"function\": \"%s\", \"iou\": [", s->s);
		for (int k = 0; iou && k < iou->nargs; k++)
			buf_printf(b, "%s%.17g", k ? ", " : "", iou->arg[k].f);
		buf_printf(b, "]}");
		before = ", ";
	}
	buf_printf(b, before[2] == '"' ? "" : "]");
}

/* The layers of a kernel's ops, each once; the place is that of its most costly op. */
static void
put_layers(Buf *b, const Module *m, Arena *a, const Graph *g, int group)
{
	const char *seen[16];
	int n = 0;
	const Op *main_op = NULL;

	buf_printf(b, ", \"layers\": [");
	for (uint32_t last = 0, i = group < 0 ? 0 : graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];
		bool known = op->dead || op->group != group;

		if (known)
			continue;
		if (!main_op || op_has((OpKind)op->kind, T_CONTRACT))
			main_op = op;
		if (!op->path || !*op->path)
			continue;
		for (int k = 0; k < n; k++)
			known |= !strcmp(seen[k], op->path);
		if (!known && n < 16) {
			buf_printf(b, n ? ", " : "");
			buf_json(b, op->path);
			seen[n++] = op->path;
		}
	}
	buf_printf(b, "]");
	program_put_text(b, "where", main_op ? program_where(m, a, main_op->loc) : "");
}

bool *
program_infinite(const Graph *g, Arena *a)
{
	bool *has = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool any = op->kind == OP_full && isinf(attr_num(op, A_value));

		for (int k = 0; k < op->nin; k++)
			any |= has[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			has[op->out[k].id] = any;
	}
	return has;
}

/* The tensors of floats that a group stores, in order, for the search of the first that is not finite. */
static void
put_made(Buf *b, const Module *m, Arena *a, const Graph *g, int group, const bool *infinite)
{
	int n = 0;

	for (uint32_t last = 0, i = group < 0 ? 0 : graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < op->nout; k++) {
			const Type *t = val_type(g, op->out[k]);

			if (!dtype_is_float((DType)t->dtype) || !val_is_stored(g, op->out[k]))
				continue;
			buf_printf(b, n++ ? ",\n     {\"name\": " : ",\n    \"made\": [{\"name\": ");
			buf_json(b, op->path && *op->path ? op->path : op_info[op->kind].name);
			program_put_text(b, "where", program_where(m, a, op->loc));
			program_put_type(b, t);
			buf_printf(b, ", \"offset\": %lld%s}", (long long)val_info(g, op->out[k])->offset,
			           infinite[op->out[k].id] ? ", \"infinities\": true" : "");
		}
	}
	buf_printf(b, n ? "]" : "");
}

/* The gradients of parameters that a group stores. by: graph_gradients' */
static void
put_gradients(Buf *b, const Module *m, const Graph *g, int group, const Val *by)
{
	int n = 0;

	for (uint32_t i = 0; i < m->state.n; i++) {
		if (!by[i].id || val_op(g, by[i])->group != group)
			continue;
		buf_printf(b, n++ ? ", {\"state\": %u" : ", \"gradients\": [{\"state\": %u", (unsigned)i);
		program_put_type(b, val_type(g, by[i]));
		buf_printf(b, ", \"offset\": %lld}", (long long)val_info(g, by[i])->offset);
	}
	buf_printf(b, n ? "]" : "");
}

static void
put_cut(Buf *b, const KernelRec *k)
{
	buf_printf(b, ", \"cut\": {\"each\": %lld, \"grad\": %u, \"whole\": %s, \"states\": [", (long long)k->each,
	           (unsigned)k->cut->grad, k->cut->whole ? "true" : "false");
	for (uint32_t i = 0; i < k->cut->state.n; i++)
		buf_printf(b, "%s%u", i ? ", " : "", (unsigned)k->cut->state.at[i]);
	for (uint32_t i = 0; i < k->cut->late.n; i++)
		buf_printf(b, "%s%u", i ? ", " : "], \"late\": [", (unsigned)k->cut->late.at[i]);
	buf_printf(b, "]%s", k->cut->solo ? ", \"solo\": true" : "");
	if (k->total && !k->cut->solo)
		buf_printf(b, ", \"total\": %lld, \"sums\": [", (long long)k->total);
	for (int i = 0; i < k->nsum && k->total && !k->cut->solo; i++)
		buf_printf(b, "%s[%lld,%d]%s", i ? "," : "", (long long)k->sum[i].offset, k->sum[i].bytes,
		           i + 1 == k->nsum ? "]" : "");
	for (int i = 0; k->size && !k->cut->solo && i < k->noff; i++)
		buf_printf(b, "%s%d%s", i ? ", " : ", \"sizes\": [", (int)k->size[i], i + 1 == k->noff ? "]" : "");
	buf_printf(b, "}");
}

static void
put_kernels(Buf *b, const Module *m, Arena *a, const Graph *g, const KernelRec *list, uint32_t n)
{
	uint32_t searched = 0; /* kernels up to the one that makes the loss */
	const Val *gradients = !strcmp(g->name, "train") ? graph_gradients(g, a) : NULL;

	for (uint32_t i = 0; i < n; i++)
		searched = list[i].loss ? i + 1 : searched;
	const bool *infinite = searched ? program_infinite(g, a) : NULL;

	for (uint32_t i = 0; i < n; i++) {
		const KernelRec *k = &list[i];

		buf_printf(b, "%s{\"name\": ", i ? ",\n   " : "");
		buf_json(b, k->name);
		buf_printf(b, ", \"fn\": %d, \"off\": [", k->fn);
		for (int j = 0; j < k->noff; j++)
			buf_printf(b, "%s%lld", j ? "," : "", (long long)k->off[j]);
		buf_printf(b, "]");
		for (int j = 0; j < k->nmap; j++)
			buf_printf(b, "%s[%lld,%lld,%lld,%d,%d,%d,%d]%s", j ? "," : ", \"maps\": [",
			           (long long)k->map[j].offset, (long long)k->map[j].inner, (long long)k->map[j].outer,
			           (int)k->map[j].box[0], (int)k->map[j].box[1], (int)k->map[j].mul, (int)k->map[j].div,
			           j + 1 == k->nmap ? "]" : "");
		put_layers(b, m, a, g, k->group);
		program_put_number(b, "flops", k->flops);
		program_put_number(b, "bytes", k->bytes);
		buf_printf(b, ", \"rows\": %lld, \"mul\": %d, \"div\": %d, \"grain\": %lld, \"check\": %s%s",
		           (long long)k->rows, k->mul, k->mul ? k->div : 1, (long long)k->grain,
		           k->check ? "true" : "false", k->once ? ", \"once\": true" : "");
		const char *kernel = k->group >= 0 ? g->group.at[k->group].kernel : NULL;

		buf_printf(b, "%s", k->early ? ", \"early\": true" : "");
		buf_printf(b, "%s%s%s", k->shares ? ", \"shares\": true" : "", k->loss ? ", \"loss\": true" : "",
		           kernel && !strcmp(kernel, PLAIN_KERNEL) ? ", \"plain\": true" : "");
		if (k->whole)
			buf_printf(b, ", \"whole\": %lld", (long long)k->whole);
		if (k->turns)
			buf_printf(b, ", \"turns\": %lld", (long long)k->turns);
		if (k->threads)
			buf_printf(b, ", \"threads\": %d", k->threads);
		if (k->cut)
			put_cut(b, k);
		if (k->tell)
			buf_printf(b, ", \"tell\": true");
		if (i < searched && (i + 1 == n || list[i + 1].group != k->group))
			put_made(b, m, a, g, k->group, infinite);
		if (gradients && k->group >= 0 && (i + 1 == n || list[i + 1].group != k->group))
			put_gradients(b, m, g, k->group, gradients);
		buf_printf(b, "}");
	}
}

/* ---------------------------------------------------------------- groups of a racing program */
/* Where a group reads (`what` 0) or writes (1) memory, but for its workspace: [offset, bytes, type], ... */
static void
put_places(Buf *b, const Module *m, const Graph *g, int group, bool writes)
{
	bool first = true;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < (writes ? op->nout : op->nin); k++) {
			Val v = writes ? op->out[k] : op->in[k];
			const Op *by = val_op(g, v);
			bool inside = by && by->group == group;

			if (writes ? !val_is_stored(g, v) : inside || val_info(g, v)->offset < 0)
				continue;
			buf_printf(b, "%s[%lld,%lld,\"%s\"]", first ? "" : ",", (long long)val_info(g, v)->offset,
			           (long long)type_bytes(val_type(g, v)), dtype_info[val_type(g, v)->dtype].name);
			first = false;
		}
		if (writes && !op->dead && op->group == group && op->kind == OP_store) {
			const State *s = module_state((Module *)(uintptr_t)m, attr_str(op, A_state));

			if (s->offset != val_info(g, op->in[0])->offset)
				buf_printf(b, "%s[%lld,%lld,\"%s\"]", first ? "" : ",", (long long)s->offset,
				           (long long)type_bytes(&s->type), dtype_info[s->type.dtype].name);
			first = first && s->offset == val_info(g, op->in[0])->offset;
		}
	}
}

/* One kernel of a group: the group's own has its rows in the graph's table, another brings them along. */
static void
put_variant(Buf *b, const Module *m, Arena *a, const GraphKernels *gk, int group, uint32_t which)
{
	const GroupVariant *v = &gk->g->group.at[group].variant.at[which];
	bool first = true;

	buf_printf(b, "%s{\"kernel\": ", which ? ",\n    " : "");
	buf_json(b, v->kernel);
	buf_printf(b, ", \"bits\": \"%s\", \"bound\": %lld, \"workspace\": %lld, \"rows\": [", variant_classes[v->bits],
	           (long long)v->bound, (long long)v->workspace);
	for (uint32_t i = 0; !which && i < gk->k.n; i++)
		if (gk->k.at[i].group == group) {
			buf_printf(b, "%s%u", first ? "" : ",", (unsigned)i);
			first = false;
		}
	for (uint32_t i = 0; which && i < gk->variant.n; i++)
		if (gk->variant.at[i].group == group && gk->variant.at[i].variant == which)
			put_kernels(b, m, a, gk->g, gk->variant.at[i].k.at, gk->variant.at[i].k.n);
	buf_printf(b, "]}");
}

static void
put_races(Buf *b, const Module *m, Arena *a, const GraphKernels *gk)
{
	int n = 0;

	for (uint32_t i = 0; gk && i < gk->g->group.n; i++) {
		const Group *gr = &gk->g->group.at[i];

		if (gr->variant.n < 2)
			continue;
		buf_printf(b, n++ ? ",\n   {\"group\": " : ",\n  \"races\": [{\"group\": ");
		buf_json(b, gr->name);
		program_put_text(b, "record", gr->record);
		put_layers(b, m, a, gk->g, (int)i);
		buf_printf(b, ", \"workspace\": [%lld,%lld], \"prepacked\": [%lld,%lld], \"reads\": [",
		           (long long)gr->workspace_offset, (long long)gr->workspace, (long long)gr->prepacked_offset,
		           (long long)gr->prepacked);
		put_places(b, m, gk->g, (int)i, false);
		buf_printf(b, "], \"writes\": [");
		put_places(b, m, gk->g, (int)i, true);
		buf_printf(b, "], \"variants\": [");
		for (uint32_t v = 0; v < gr->variant.n; v++)
			put_variant(b, m, a, gk, (int)i, v);
		buf_printf(b, "]}");
	}
	buf_printf(b, n ? "]" : "");
}

static int64_t
special_input(const Graph *g, InputKind kind)
{
	Val v = graph_input(g, kind);

	return v.id ? val_info(g, v)->offset : -1;
}

void
program_put_graphs(Buf *b, const Module *m, Arena *a, const ProgramInputs *in, const ProgramKernels *ks)
{
	static const char *const names[] = {"train", "update", "eval", "infer", "begin", "step", "hop", "share"};
	bool first = true;

	buf_printf(b, ",\n\"graphs\": {");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const Graph *g = program_graph(m, names[i]);
		const GraphKernels *gk = NULL;
		unsigned addressed = 0; /* bits by the model's inputs */

		if (!g)
			continue;
		for (uint32_t k = 0; ks && k < ks->graph.n; k++)
			if (ks->graph.at[k]->g == g)
				gk = ks->graph.at[k];
		buf_printf(b, "%s\"%s\": {\"inputs\": [", first ? "" : ",\n ", names[i]);
		first = false;
		for (int j = 0; j < in->n; j++) {
			const Input *x = program_input(g, in->at[j]);

			buf_printf(b, "%s%lld", j ? "," : "", x ? (long long)val_info(g, x->v)->offset : -1);
			if (gk && x && x - g->input.at < 32 && gk->addressed >> (x - g->input.at) & 1)
				addressed |= 1u << j;
		}
		buf_printf(b, "]");
		if (addressed)
			buf_printf(b, ", \"addressed\": %u", addressed);
		buf_printf(b, ", \"seed\": %lld, \"step\": %lld, \"rate\": %lld", (long long)special_input(g, IN_SEED),
		    (long long)special_input(g, IN_STEP), (long long)special_input(g, IN_RATE));
		if (special_input(g, IN_FIRST) >= 0)
			buf_printf(b, ", \"first\": %lld", (long long)special_input(g, IN_FIRST));
		if (g->multiple > 1) {
			buf_printf(b, ", \"multiple\": %lld", (long long)g->multiple);
			program_put_text(b, "multiple_at", program_where(m, a, g->multiple_loc));
		}
		put_results(b, g, a);
		put_sets(b, g);
		program_put_joins(b, g, gk, ks && ks->joins_early);
		buf_printf(b, ",\n  \"kernels\": [");
		put_kernels(b, m, a, g, gk ? gk->k.at : NULL, gk ? gk->k.n : 0);
		buf_printf(b, "]");
		put_races(b, m, a, gk);
		buf_printf(b, "}");
	}
	buf_printf(b, "}");
}

/* ---------------------------------------------------------------- loops */
/* The graph whose call this loop op belongs to: for batch the call behind it, for emit the one that made its
 * operands. */
const char *
program_graph_of(const Graph *loop, uint32_t at)
{
	const Op *op = &loop->op.at[at];

	if (op->kind == OP_call)
		return attr_str(op, A_graph);
	if (op->kind == OP_emit)
		for (int k = 0; k < op->nin; k++) {
			const Op *def = val_op(loop, op->in[k]);

			if (def && def->kind == OP_call)
				return attr_str(def, A_graph);
		}
	if (op->kind == OP_emit)
		while (at-- > 0)
			if (loop->op.at[at].kind == OP_call)
				return attr_str(&loop->op.at[at], A_graph);
	for (uint32_t i = at; i < loop->op.n; i++)
		if (loop->op.at[i].kind == OP_call)
			return attr_str(&loop->op.at[i], A_graph);
	return loop->name;
}

void
program_put_loops(Buf *b, const Module *m)
{
	bool first = true;

	buf_printf(b, ",\n\"loops\": {");
	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];
		int n = 0;

		if (!g->is_loop)
			continue;
		buf_printf(b, "%s\"%s\": [", first ? "" : ",\n ", g->name);
		first = false;
		for (uint32_t k = 0; k < g->op.n; k++) {
			const Op *op = &g->op.at[k];

			if (op->dead)
				continue;
			buf_printf(b, "%s{\"op\": \"%s\"", n++ ? ", " : "", op_info[op->kind].name);
			if (op->kind == OP_repeat)
				buf_printf(b, ", \"what\": \"%s\", \"count\": %lld", attr_str(op, A_what),
				           (long long)attr_int(op, A_count));
			if (op->kind == OP_batch || op->kind == OP_call || op->kind == OP_emit)
				buf_printf(b, ", \"graph\": \"%s\"", program_graph_of(g, k));
			buf_printf(b, "}");
		}
		buf_printf(b, "]");
	}
	buf_printf(b, "}");
}
