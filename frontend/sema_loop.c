/* sema_loop.c: the loops that run the graphs, as ops: the one training loop of a program, evaluation, inference.
 *
 * Out: loop train  { shuffle; repeat steps { batch; rate; call train; emit; poll } }
 *      loop eval   { repeat batches { batch; call eval; emit; poll } }
 *      loop infer  { call infer } where the model has outputs; its inputs stand in memory already. */
#include "sema_local.h"

typedef struct Loop { Sema *s; Graph *g; Build b; } Loop;

static Loop
loop_new(Sema *s, const char *name)
{
	Loop l = {.s = s, .g = module_add_graph(s->module, name)};

	l.g->is_loop = true;
	l.b = (Build){.g = l.g, .loc = s->model_loc, .path = ""};
	return l;
}

static const Val *
put(Loop *l, OpKind k, const Val *in, int nin, const AttrArg *attrs, const Type *results, int nout)
{
	build_op_n(&l->b, k, in, nin, attrs, results, nout);
	if (l->b.error)
		bug("loop %s, op %s: %s", l->g->name, op_info[k].name, l->b.error);
	return build_last(&l->b)->out;
}

/* batch: a value per data input of the graph. */
static int
data_types(const Graph *g, Type *out)
{
	int n = 0;

	for (uint32_t k = 0; k < g->input.n; k++)
		if (g->input.at[k].kind == IN_DATA)
			out[n++] = *val_type(g, g->input.at[k].v);
	return n;
}

static int
result_types(const Graph *g, bool outputs, Type *out)
{
	int n = 0;

	for (uint32_t k = 0; k < g->result.n; k++)
		if (!outputs || g->result.at[k].kind == RES_OUTPUT)
			out[n++] = *val_type(g, g->result.at[k].v);
	return n;
}

/* One turn: batch [, rate], call, emit, poll. */
static void
turn(Loop *l, const char *graph, const Val *order, bool rate)
{
	const Graph *g = module_graph(l->s->module, graph);
	Type *in = arena_array(l->s->arena, Type, g->input.n), *res = arena_array(l->s->arena, Type, g->result.n),
	     f64 = type_scalar(DT_f64);
	int nin = data_types(g, in), nres = result_types(g, false, res), n;
	Val *arg = arena_array(l->s->arena, Val, nin + nres + 1);
	const Val *out = put(l, OP_batch, order, order ? 1 : 0, NULL, in, nin), *r = NULL;

	for (n = 0; n < nin; n++)
		arg[n] = out[n];
	if (rate) {
		r = put(l, OP_rate, NULL, 0, NULL, &f64, 1);
		arg[n++] = *r;
	}
	out = put(l, OP_call, arg, n, ATTRS(AS(graph, graph)), res, nres);
	for (int k = n = 0; k < nres; k++) /* outputs are written by infer, not reported */
		if (result_reported(g->result.at[k].kind))
			arg[n++] = out[k];
	if (rate)
		arg[n++] = *r;
	put(l, OP_emit, arg, n, NULL, NULL, 0);
	put(l, OP_poll, NULL, 0, NULL, NULL, 0);
}

static void
loop_infer(Sema *s)
{
	const Graph *g = module_graph(s->module, "eval");
	Loop l = loop_new(s, "infer");
	Type *res = arena_array(s->arena, Type, g->result.n);
	int n = result_types(g, true, res), nin = 0;
	Val *arg = arena_array(s->arena, Val, g->input.n);

	for (uint32_t k = 0; k < g->input.n; k++)
		if (g->input.at[k].kind == IN_DATA)
			arg[nin++] = graph_add_input(l.g, *val_type(g, g->input.at[k].v), g->input.at[k].name, IN_DATA);
	put(&l, OP_call, arg, nin, ATTRS(AS(graph, "infer")), res, n);
}

void
sema_loops(Sema *s)
{
	Type order = type_scalar(DT_i64);
	Loop l = loop_new(s, "train");
	const Val *shuffled;

	l.g->training = true;
	shuffled = put(&l, OP_shuffle, NULL, 0, NULL, &order, 1);
	put(&l, OP_repeat, NULL, 0, ATTRS(AS(what, "steps")), NULL, 0);
	turn(&l, "train", shuffled, true);
	put(&l, OP_end, NULL, 0, NULL, NULL, 0);
	l = loop_new(s, "eval");
	put(&l, OP_repeat, NULL, 0, ATTRS(AS(what, "batches")), NULL, 0);
	turn(&l, "eval", NULL, false);
	put(&l, OP_end, NULL, 0, NULL, NULL, 0);
	if (s->output.n)
		loop_infer(s);
}
