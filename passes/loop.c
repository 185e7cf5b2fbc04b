/* loop.c: keeps loop train in step with what autodiff made of graph train.
 *
 * In: repeat steps { batch; rate; call train; emit; poll }.  Out: the call's results are the graph's (a gradient norm may have
 * joined them), and with accumulate = a:
 *   repeat steps { repeat a { batch; call train }; rate; call update; emit; poll }
 * where emit reports the results of update, averaged over the a batches. */
#include <string.h>
#include "passes.h"

static Op *
find_op(Graph *g, OpKind k)
{
	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].kind == k)
			return &g->op.at[i];
	return NULL;
}

/* A call's results: those that callee has now; the old ones keep their values. */
static void
call_results(Graph *loop, uint32_t at, const Graph *callee)
{
	Op *call = &loop->op.at[at];
	Val *out = arena_array(loop->arena, Val, callee->result.n);

	for (uint32_t i = 0; i < callee->result.n; i++)
		out[i] = i < call->nout ? call->out[i]
		       : graph_add_val(loop, *val_type(callee, callee->result.at[i].v), callee->result.at[i].name, at, (int)i);
	call->out = out;
	call->nout = (uint16_t)callee->result.n;
}

/* emit takes all results of the call it reports, and what else it took (the rate) behind them. */
static void
emit_results(Graph *loop, const Op *old_call, const Op *call)
{
	Op *emit = find_op(loop, OP_emit);
	Val *in;
	int n = 0;

	if (!emit)
		return;
	in = arena_array(loop->arena, Val, call->nout + emit->nin);
	for (int k = 0; k < call->nout; k++)
		in[n++] = call->out[k];
	for (int k = 0; k < emit->nin; k++) {
		bool of_call = false;

		for (int j = 0; j < old_call->nout; j++)
			of_call |= emit->in[k].id == old_call->out[j].id;
		for (int j = 0; j < call->nout; j++)
			of_call |= emit->in[k].id == call->out[j].id;
		if (!of_call)
			in[n++] = emit->in[k];
	}
	emit->in = in;
	emit->nin = (uint16_t)n;
}

static void
push(Build *b, OpKind k, const Val *in, int nin, const AttrArg *attrs)
{
	build_op_n(b, k, in, nin, attrs, NULL, 0);
}

static void
keep(Graph *loop, const Op *op)
{
	for (int k = 0; k < op->nout; k++)
		val_info(loop, op->out[k])->op = loop->op.n;
	vec_push(loop->arena, &loop->op, *op);
}

/* The ops again, with batch and call train in a region of their own, and call update after it. */
static void
nest(Graph *loop, const Graph *train, const Graph *update, int64_t a)
{
	Build b = {.g = loop};
	Op *old = loop->op.at, old_call = {0}, rate = {0};
	uint32_t n = loop->op.n, results = update->result.n;
	Type *types = arena_array(loop->arena, Type, results);

	loop->op.at = NULL;
	loop->op.n = loop->op.cap = 0;
	for (uint32_t i = 0; i < results; i++)
		types[i] = *val_type(update, update->result.at[i].v);
	for (uint32_t i = 0; i < n; i++) {
		const Op *op = &old[i];

		b.loc = op->loc;
		b.path = op->path;
		if (op->kind == OP_rate) {
			rate = *op;
			continue;
		}
		if (op->kind == OP_batch)
			push(&b, OP_repeat, NULL, 0, ATTRS(AS(what, "count"), AI(count, a)));
		keep(loop, op);
		if (op->kind != OP_call)
			continue;
		old_call = *op;
		Op *call = &loop->op.at[loop->op.n - 1];
		int kept = 0;

		for (int k = 0; k < call->nin; k++)   /* train has no use for the rate now */
			if (rate.nout == 0 || call->in[k].id != rate.out[0].id)
				call->in[kept++] = call->in[k];
		call->nin = (uint16_t)kept;
		push(&b, OP_end, NULL, 0, NULL);
		if (rate.nout)
			keep(loop, &rate);
		build_op_n(&b, OP_call, rate.out, rate.nout, ATTRS(AS(graph, "update")), types, (int)results);
		emit_results(loop, &old_call, build_last(&b));
		for (uint32_t k = i + 1; k < n; k++)
			if (old[k].kind == OP_emit) {
				Op *last = build_last(&b);
				Val *in = arena_array(loop->arena, Val, last->nout + rate.nout);
				int m = 0;

				for (int j = 0; j < last->nout; j++)
					in[m++] = last->out[j];
				if (rate.nout)
					in[m++] = rate.out[0];
				old[k].in = in;
				old[k].nin = (uint16_t)m;
			}
	}
	(void)train;
	if (b.error)
		bug("loop %s does not build: %s", loop->name, b.error);
}

void
loop_follow(Module *m, int64_t a)
{
	Graph *loop = graph_named(m, "train", true), *train = graph_named(m, "train", false), *update = graph_named(m, "update", false);
	Op *call = loop ? find_op(loop, OP_call) : NULL;

	if (!call)
		return;
	if (a > 1) {
		nest(loop, train, update, a);
	} else {
		Op before = *call;

		call_results(loop, (uint32_t)(call - loop->op.at), train);
		emit_results(loop, &before, call);
	}
}
