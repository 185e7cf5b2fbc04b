/* loop.c: keeps loop train in step with what autodiff made of graph train.
 *
 * In: repeat steps { batch; rate; call train; emit; poll }.  Out: the call's results are the graph's (a gradient norm
 * may have joined them), and with accumulate = a:
 *   repeat steps { repeat a { batch; call train }; rate; call update; emit; poll }
 * where emit reports the results of update, averaged over the a batches. With shards = S:
 *   repeat steps { repeat {shards S} { batch; call train; merge }; rate; call update; emit; poll } */
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
		                        : graph_add_val(loop, *val_type(callee, callee->result.at[i].v),
		                                        callee->result.at[i].name, at, (int)i);
	call->out = out;
	call->nout = (uint16_t)callee->result.n;
}

/* emit takes all results of the call it reports, and what else it took (the rate) behind them. */
static void
emit_results(Graph *loop, Op *emit, const Op *reported, const Op *call)
{
	Val *in = arena_array(loop->arena, Val, call->nout + emit->nin);
	int n = 0;

	for (int k = 0; k < call->nout; k++)
		in[n++] = call->out[k];
	for (int k = 0; k < emit->nin; k++) {
		bool result = false;

		for (int j = 0; j < reported->nout; j++)
			result |= emit->in[k].id == reported->out[j].id;
		if (!result)
			in[n++] = emit->in[k];
	}
	emit->in = in;
	emit->nin = (uint16_t)n;
}

static void
keep(Graph *loop, const Op *op)
{
	for (int k = 0; k < op->nout; k++)
		val_info(loop, op->out[k])->op = loop->op.n;
	vec_push(loop->arena, &loop->op, *op);
}

/* train has no use for the rate now. */
static Op
without(Op call, Val rate)
{
	int n = 0;

	for (int k = 0; k < call.nin; k++)
		if (call.in[k].id != rate.id)
			call.in[n++] = call.in[k];
	call.nin = (uint16_t)n;
	return call;
}

/* The ops again, with batch and call train in a region of their own and call update behind it. */
static void
nest(Graph *loop, const Graph *update, int64_t a, bool shards)
{
	Build b = {.g = loop};
	Op *old = loop->op.at, rate = {0}, train = {0};
	uint32_t n = loop->op.n, results = update->result.n;
	Type *types = arena_array(loop->arena, Type, results);
	Op call = {0};

	loop->op.at = NULL;
	loop->op.n = loop->op.cap = 0;
	for (uint32_t i = 0; i < results; i++)
		types[i] = *val_type(update, update->result.at[i].v);
	for (uint32_t i = 0; i < n; i++)
		if (old[i].kind == OP_rate)
			rate = old[i];
	for (uint32_t i = 0; i < n; i++) {
		Op op = old[i];

		b.loc = op.loc;
		b.path = op.path;
		if (op.kind == OP_batch)
			build_op_n(&b, OP_repeat, NULL, 0, ATTRS(AS(what, shards ? "shards" : "count"), AI(count, a)),
			           NULL, 0);
		if (op.kind == OP_emit && call.nout)
			emit_results(loop, &op, &train, &call);
		if (op.kind == OP_call)
			train = op = without(op, rate.nout ? rate.out[0] : NOVAL);
		if (op.kind != OP_rate)
			keep(loop, &op);
		if (op.kind != OP_call)
			continue;
		if (shards)
			build_op_n(&b, OP_merge, NULL, 0, NULL, NULL, 0);
		build_op_n(&b, OP_end, NULL, 0, NULL, NULL, 0);
		if (rate.nout)
			keep(loop, &rate);
		build_op_n(&b, OP_call, rate.out, rate.nout, ATTRS(AS(graph, "update")), types, (int)results);
		call = *build_last(&b);
	}
	if (b.error)
		bug("loop %s does not build: %s", loop->name, b.error);
}

void
loop_follow(Module *m, int64_t a, bool shards)
{
	Graph *loop = graph_named(m, "train", true);
	Op *call = loop ? find_op(loop, OP_call) : NULL, *emit = loop ? find_op(loop, OP_emit) : NULL, before;

	if (!call)
		return;
	if (a > 1) {
		nest(loop, graph_named(m, "update", false), a, shards);
		return;
	}
	before = *call;
	call_results(loop, (uint32_t)(call - loop->op.at), graph_named(m, "train", false));
	if (emit)
		emit_results(loop, emit, &before, call);
}
