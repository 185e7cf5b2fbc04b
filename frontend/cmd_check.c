/* cmd_check.c: `check`: a summary of a model, a line per layer.
 *
 * In: the typed training graph; a layer is a call of an operator, named by its path.   Out: name, output shape,
 * parameters and FLOPs of one forward step of the full batch, in the order of the model; totals; and whether the
 * planned memory fits this machine. Exit status 1 if the model has errors; a plan that does not fit is said, not
 * failed. */
#include "cmd.h"
#include "../codegen/codegen.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

typedef struct Layer { const char *name; const Type *type; int64_t parameters; double flops; } Layer;
typedef VEC(Layer) Layers;

/* Layers come in runs, so the last ones are looked at first. */
static Layer *
find_layer(Arena *a, Layers *ls, const char *name)
{
	for (uint32_t i = ls->n; i-- > 0;)
		if (!strcmp(ls->at[i].name, name))
			return &ls->at[i];
	Layer l = {.name = name};

	vec_push(a, ls, l);
	return &ls->at[ls->n - 1];
}

static int
state_index(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->state.n; i++)
		if (!strcmp(m->state.at[i].name, name))
			return (int)i;
	return -1;
}

static void
collect(Arena *a, const Module *m, const Graph *g, Layers *ls)
{
	bool *counted = arena_array(a, bool, m->state.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op_has(op->kind, T_LOOP))
			continue;
		Layer *l = find_layer(a, ls, op->path ? op->path : "");

		l->flops += op_flops(g, op);
		if (op->kind == OP_load) {
			int s = state_index(m, attr_str(op, A_state));

			if (s >= 0 && !counted[s] && m->state.at[s].kind == ST_PARAM) {
				counted[s] = true;
				l->parameters += type_elements(&m->state.at[s].type);
			}
			if (!l->type)
				l->type = val_type(g, op->out[0]);
		} else if (op->nout) {
			l->type = val_type(g, op->out[0]);
		}
	}
}

static void
put_extents(Buf *b, const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		buf_printf(b, "%s%" PRId64, i ? "," : "", t->axis[i].n);
}

/* f32[64,6,28,28]: extents of the full batch, whatever the layout. */
static const char *
shape_text(Arena *a, const Type *t)
{
	Buf b = {0};

	if (!t)
		return "-";
	buf_printf(&b, "%s[", dtype_info[t->dtype].name);
	put_extents(&b, t);
	buf_printf(&b, "]");
	const char *s = arena_strdup(a, b.at);

	buf_free(&b);
	return s;
}

static void
print_table(Arena *a, const Layers *ls, Buf *out)
{
	int width = 5, shape_width = 6;

	for (uint32_t i = 0; i < ls->n; i++) {
		int w = (int)strlen(ls->at[i].name), s = (int)strlen(shape_text(a, ls->at[i].type));

		width = w > width ? w : width;
		shape_width = s > shape_width ? s : shape_width;
	}
	buf_printf(out, "%-*s  %-*s  %12s  %10s\n", width, "layer", shape_width, "output", "parameters", "FLOPs");
	for (uint32_t i = 0; i < ls->n; i++) {
		const Layer *l = &ls->at[i];
		Buf flops = {0};

		if (!l->name[0])
			continue; /* sums and comparisons of the body: in the total */
		print_count(&flops, l->flops);
		buf_printf(out, "%-*s  %-*s  %12s  %10s\n", width, l->name, shape_width, shape_text(a, l->type),
		           l->parameters ? arena_printf(a, "%" PRId64, l->parameters) : "-",
		           l->flops > 0 ? flops.at : "-");
		buf_free(&flops);
	}
}

static void
print_json(const Module *m, const Layers *ls, int64_t parameters, double flops, int64_t peak, int64_t memory,
           const char *budget, Buf *out)
{
	buf_printf(out, "{\"model\": ");
	buf_json(out, m->name);
	buf_printf(out, ", \"batch\": %" PRId64 ", \"layers\": [", m->batch);
	for (uint32_t i = 0, n = 0; i < ls->n; i++) {
		const Layer *l = &ls->at[i];

		if (!l->name[0])
			continue;
		buf_printf(out, "%s\n {\"name\": ", n++ ? "," : "");
		buf_json(out, l->name);
		if (l->type) {
			buf_printf(out, ", \"dtype\": \"%s\", \"shape\": [", dtype_info[l->type->dtype].name);
			put_extents(out, l->type);
			buf_printf(out, "]");
		}
		buf_printf(out, ", \"parameters\": %" PRId64 ", \"flops\": %.17g}", l->parameters, l->flops);
	}
	buf_printf(out, "], \"parameters\": %" PRId64 ", \"flops\": %.17g", parameters, flops);
	if (peak)
		buf_printf(out, ", \"peak_bytes\": %" PRId64 ", \"memory_bytes\": %" PRId64 ", \"fits\": %s", peak,
		           memory, peak <= memory ? "true" : "false");
	if (budget) {
		buf_printf(out, ", \"budget\": ");
		buf_json(out, budget);
	}
	buf_printf(out, "}\n");
}

/* What would help: no batch makes parameters and the optimizer's state smaller. */
static void
print_too_large(const Module *m, int64_t memory, Buf *out)
{
	double states = 0;

	for (uint32_t i = 0; i < m->state.n; i++)
		states += (double)type_bytes(&m->state.at[i].type);
	buf_printf(out, ": does not fit; ");
	if (states <= (double)memory) {
		buf_printf(out, "use a smaller --batch\n");
		return;
	}
	buf_printf(out, "parameters and the optimizer's state alone are ");
	print_bytes(out, (int64_t)states);
	buf_printf(out, "\n");
}

static void
print_totals(const Module *m, int64_t parameters, double flops, int64_t peak, int64_t memory, const char *budget,
             Buf *out)
{
	int64_t shards;

	program_calls(m, &shards);
	buf_printf(out, "\n%s: batch %" PRId64, m->name, m->batch * shards);
	if (shards > 1)
		buf_printf(out, " in %" PRId64 " shards of %" PRId64, shards, m->batch);
	buf_printf(out, ", %" PRId64 " parameters, ", parameters);
	print_count(out, flops * (double)shards);
	buf_printf(out, "%sFLOP a step forward\n", flops < 1000 ? " " : "");
	if (!peak)
		return;
	buf_printf(out, "memory: ");
	print_bytes(out, peak);
	buf_printf(out, " planned, this machine has ");
	print_bytes(out, memory);
	if (peak <= memory)
		buf_printf(out, ": fits\n");
	else
		print_too_large(m, memory, out);
	if (budget)
		buf_printf(out, "budget: %s\n", budget);
}

/* Bytes that the program will hold at once; 0 where there is no plan (ref). The module is changed. */
static int
planned_peak(Job *j, int64_t *peak, const char **budget)
{
	Module *m;
	PassCtx cx;

	*peak = 0;
	if (!strcmp(j->target->name, "ref"))
		return EXIT_GOOD;
	int status = job_compile(j, 0, NULL, &m, &cx);

	if (status == EXIT_GOOD) {
		*peak = m->arena_bytes + m->scratch_bytes * sysconf(_SC_NPROCESSORS_ONLN);
		*budget = budget_text(j->arena, &cx);
	}
	return status;
}

int
cmd_check(Arena *a, const Options *o)
{
	Job j;
	Layers ls = {0};
	int status = job_open(&j, a, o, "check", o->operand[0]);

	if (status == EXIT_GOOD)
		status = job_load(&j);
	if (status != EXIT_GOOD)
		return status;
	const Graph *g = module_graph(j.module, "train");

	if (!g)
		return failure("'%s' has no graph 'train'", j.file);
	collect(a, j.module, g, &ls);
	int64_t parameters = 0, peak, memory = machine_memory();
	const char *budget = NULL;
	double flops = 0;
	Buf out = {0};

	for (uint32_t i = 0; i < ls.n; i++) {
		parameters += ls.at[i].parameters;
		flops += ls.at[i].flops;
		const Type *old = ls.at[i].type; /* in a graph that the passes will change */

		if (old) {
			Type *kept = arena_new_of(a, Type);

			*kept = *old;
			ls.at[i].type = kept;
		}
	}
	if (!o->json)
		print_table(a, &ls, &out);
	status = planned_peak(&j, &peak, &budget);
	if (o->json)
		print_json(j.module, &ls, parameters, flops, peak, memory, budget, &out);
	else
		print_totals(j.module, parameters, flops, peak, memory, budget, &out);
	fwrite(out.at, 1, out.n, stdout);
	buf_free(&out);
	return status;
}
