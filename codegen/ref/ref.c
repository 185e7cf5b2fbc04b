/* ref.c: target ref: an RtCodeObject without kernels whose calls run the interpreter.
 *
 * In: a module whose training graph has its gradients and stores.  Out: the exit status of the runtime's main.
 * The runtime's arena holds what the runtime reads and writes: the fault record at 0, states, each graph's inputs and
 * results. A call copies states and inputs in as double or int64_t, runs the graph, and copies results and stored
 * states out, rounded to their types; values in between stay in the interpreter. Every target's layout of the same
 * module differs, the descriptor says where things are. It emits no code: the launcher holds the IR as text. */
#include "ref.h"
#include "../codegen.h"
#include "../program.h"
#include "../../ir/interp.h"
#include "../../ir/ref.h"
#include "../../runtime/rt.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

/* ---------------------------------------------------------------- layout */
static int64_t
place(int64_t *end, const Type *t)
{
	int64_t at = *end;

	*end = (at + type_bytes(t) + ALIGN - 1) / ALIGN * ALIGN;
	return at;
}

static void
place_value(Graph *g, Val v, int64_t *end)
{
	ValInfo *info = val_info(g, v);

	if (info->offset < 0)
		info->offset = place(end, &info->type);
}

static bool
is_join(const Op *op)
{
	return !op->dead && (op->kind == OP_all_reduce || op->kind == OP_all_moments);
}

/* Gives states, inputs and results their places. Graphs share nothing: the results of one may be read after another
 * ran. */
static void
lay_out(Module *m)
{
	int64_t end = ALIGN;

	for (uint32_t i = 0; i < m->state.n; i++)
		m->state.at[i].offset = place(&end, &m->state.at[i].type);
	for (uint32_t i = 0; i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		for (uint32_t v = 0; v < g->val.n; v++)
			g->val.at[v].offset = -1;
		if (g->is_loop)
			continue;
		for (uint32_t k = 0; k < g->input.n; k++)
			place_value(g, g->input.at[k].v, &end);
		for (uint32_t k = 0; k < g->result.n; k++)
			place_value(g, g->result.at[k].v, &end);
		for (uint32_t k = 0; program_joining(m) == g && k < g->op.n; k++)
			for (int q = 0; is_join(&g->op.at[k]) && q < g->op.at[k].nout; q++)
				place_value(g, g->op.at[k].out[q], &end);
	}
	m->arena_bytes = end;
	m->scratch_bytes = 0;
}

/* ---------------------------------------------------------------- calls */
/* Whether graph g has an op of kind k on state s. */
static bool
touches(const Graph *g, OpKind k, const char *s)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind == k && !op->dead && strcmp(attr_str(op, A_state), s) == 0)
			return true;
	}
	return false;
}

static void
states_in(Interp *in, const Graph *g, const uint8_t *arena)
{
	const Module *m = in->module;

	for (uint32_t i = 0; i < m->state.n; i++)
		if (touches(g, OP_load, m->state.at[i].name))
			ref_bytes_in(&in->state[i], arena + m->state.at[i].offset);
}

static void
states_out(const Interp *in, const Graph *g, uint8_t *arena)
{
	const Module *m = in->module;

	for (uint32_t i = 0; i < m->state.n; i++)
		if (touches(g, OP_store, m->state.at[i].name))
			ref_bytes_out(&in->state[i], arena + m->state.at[i].offset);
}

/* The first element that the failed check refuses. */
static RtFault
fault_of(const Interp *in)
{
	const Op *op = in->failed;
	const RefTensor *x = &in->cx.val[op->in[0].id];
	RtFault f = {.set = 1, .op = check_number(in->module, op)};
	int64_t limit = ref_extent(&in->cx, check_limit(op));

	for (; f.element < x->n; f.element++) {
		int64_t v = x->i[f.element];

		if (!(v >= 0 && v < limit) && !(attr_bool(op, A_has_ignore) && v == attr_int(op, A_ignore))) {
			f.value = v;
			break;
		}
	}
	return f;
}

/* Loops may have the names of graphs. */
static Graph *
graph_of(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && strcmp(m->graph.at[i]->name, name) == 0)
			return m->graph.at[i];
	die("there is no graph %s", name);
}

/* shard: the interpreters of a process's shards, which run in step. found: of the last call whose loss was not
 * finite */
typedef struct Ref { Interp *in, **shard; int64_t n; const Op **stopped; RtFound found; } Ref;

static Interp *
interp_of(Ref *r, int64_t shard)
{
	Arena *a = r->in->module->arena;

	if (shard >= r->n) {
		Interp **more = arena_array(a, Interp *, shard + 1);
		const Op **stopped = arena_array(a, const Op *, shard + 1);

		for (int64_t i = 0; i < r->n; i++) {
			more[i] = r->shard[i];
			stopped[i] = r->stopped[i];
		}
		r->shard = more;
		r->stopped = stopped;
		r->n = shard + 1;
	}
	if (!r->shard[shard])
		r->shard[shard] = interp_new(r->in->module, true);
	return r->shard[shard];
}

/* What shards exchange: from the arena, or to it. */
static void
joined(Interp *in, const Graph *g, const Op *op, uint8_t *arena, bool out)
{
	for (int k = 0; op && k < op->nout; k++) {
		RefTensor *x = &in->cx.val[op->out[k].id];

		if (ref_cells(x))
			out ? ref_bytes_out(x, arena + val_info(g, op->out[k])->offset)
			    : ref_bytes_in(x, arena + val_info(g, op->out[k])->offset);
	}
}

static void
call_begin(Interp *in, const Graph *g, const RtRun *run)
{
	states_in(in, g, run->arena);
	interp_begin(in, g, run->n);
	for (uint32_t k = 0; k < g->input.n; k++)
		ref_bytes_in(interp_input(in, (int)k), run->arena + val_info(g, g->input.at[k].v)->offset);
}

/* The loss of graph train is one to end with. Processes that share a batch learn of it together, later. */
static bool
is_lost(const Interp *in, const Graph *g, const RtRun *run)
{
	int64_t shards = 1;
	Val loss = graph_loss(g);

	program_calls(in->module, &shards);
	return strcmp(g->name, "train") == 0 && !run->allow_nan && loss.id &&
	       (shards < 2 || (run->shard == 0 && run->shard_end == shards)) &&
	       !isfinite(ref_get(&in->cx.val[loss.id], 0));
}

/* Runs the call again, on the same states and inputs, to find where that began. */
static void
find(Ref *r, const Graph *g, RtRun *run)
{
	Interp *in = r->in;
	Arena *a = in->module->arena;
	const InterpFound *f = &in->found;

	call_begin(in, g, run);
	in->search = program_infinite(g, a);
	in->found = (InterpFound){0};
	interp_run(in);
	in->search = NULL;
	run->found = f->op ? &r->found : NULL;
	if (!f->op)
		return;
	r->found = (RtFound){.layer = f->op->path && *f->op->path ? f->op->path : op_info[f->op->kind].name,
	                     .where = program_where(in->module, a, f->op->loc),
	                     .dtype = dtype_info[val_type(g, f->v)->dtype].name,
	                     .rank = f->rank,
	                     .value = f->x};
	memcpy(r->found.shape, f->shape, sizeof f->shape);
	memcpy(r->found.index, f->index, sizeof f->index);
}

static int64_t
ref_call(RtRun *run, const char *name)
{
	Ref *r = run->self;
	Interp *in = r->in;
	Graph *g = graph_of(in->module, name);
	bool joins = program_joining(in->module) == g;
	const char *error = NULL;
	const Op *stopped = NULL;

	if (joins)
		in = interp_of(r, run->micro - run->shard);
	if (!joins || !run->part) {
		call_begin(in, g, run);
	} else {
		joined(in, g, r->stopped[run->micro - run->shard], run->arena, false);
	}
	if (joins)
		stopped = r->stopped[run->micro - run->shard] = interp_resume(in, &error);
	else
		error = interp_run(in);
	if (error && in->failed && in->failed->kind == OP_check) {
		RtFault f = fault_of(in);

		memcpy(run->arena, &f, sizeof f);
		return RT_FAULT;
	}
	if (error)
		die("%s: %s", name, error);
	if (stopped) {
		joined(in, g, stopped, run->arena, true);
		return RT_OK;
	}
	if (!joins && is_lost(in, g, run)) {
		find(r, g, run);
		return RT_NOT_FINITE;
	}
	states_out(in, g, run->arena);
	for (uint32_t k = 0; k < g->result.n; k++)
		ref_bytes_out(interp_result(in, (int)k), run->arena + val_info(g, g->result.at[k].v)->offset);
	return RT_OK;
}

int
ref_main(Module *m, int argc, char **argv)
{
	Buf program = {0};
	Ref r = {.in = interp_new(m, true)};
	RtCodeObject object = {.version = RT_VERSION, .needs = "", .self = &r, .call = ref_call};
	const RtCodeObject *objects[] = {&object};
	int status;

	lay_out(m);
	program_json(&program, m, "ref", "", NULL);
	object.program = program.at;
	status = rt_main(argc, argv, objects, 1);
	interp_free(r.in);
	for (int64_t i = 0; i < r.n; i++)
		if (r.shard[i])
			interp_free(r.shard[i]);
	buf_free(&program);
	return status;
}

/* ---------------------------------------------------------------- the target */
static bool
ref_has_kernel(const Target *t, OpKind k)
{
	(void)t;
	return op_info[k].ref || op_info[k].ew >= 0 || op_info[k].red >= 0;
}

static const char *
ref_resolve_arch(const Target *t, Arena *a, const char *arch, const char **error)
{
	(void)t, (void)a;
	if (strcmp(arch, "ref") == 0 || strcmp(arch, "native") == 0)
		return "ref";
	*error = "target ref interprets and has no architectures";
	return NULL;
}

static bool
ref_conv_layout(const Target *t, const Type *x, uint8_t perm[MAX_RANK])
{
	(void)t, (void)x, (void)perm;
	return false;
}

static const char *
ref_select(const Target *t, Graph *g, int group, SelectCx *cx)
{
	(void)t, (void)cx;
	g->group.at[group].kernel = "interpreted";
	g->group.at[group].workspace = 0;
	return NULL;
}

static const char *
ref_may_fuse(const Target *t, const Graph *g, const Op *member, const Op *op)
{
	(void)t, (void)g, (void)member, (void)op;
	return "the interpreter runs every op alone";
}

const Target target_ref = {
	.name = "ref",
	.doc = "interprets the IR in double: slow, the oracle",
	.default_arch = "ref",
	.has_kernel = ref_has_kernel,
	.resolve_arch = ref_resolve_arch,
	.may_fuse = ref_may_fuse,
	.select = ref_select,
	.layout.images = ref_conv_layout,
};
