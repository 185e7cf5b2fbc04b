/* graph.c: loops as CUDA graphs: one step, several, or a loop node around one.
 *
 * In: a loop's ops, in the descriptor.   Out: a graph whose kernels stand in a chain, as their order is what the plan
 * of memory relies on: for each call loop_call (seed, step, rate, and a batch), its kernels, of training with loop_loss
 * behind that of the loss, and for each emit loop_emit (a record; the next step). In a loop node loop_while comes last.
 * Of several processes a stream captures the same chain. All arguments are constant: what
 * changes by step lies in front of the arena. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

enum { GRAPH_BLOCKS = 65535, GRAPH_THREADS = 256 };

CuPtr
cuda_input_table(const Cuda *c, int graph)
{
	return c->tables + (CuPtr)graph * sizeof(LoopInput) * RT_MAX_INPUTS;
}

CuPtr
cuda_result_table(const Cuda *c, int graph)
{
	return cuda_input_table(c, RT_G_COUNT) + (CuPtr)graph * sizeof(LoopResult) * RT_MAX_RESULTS;
}

bool
cuda_row_context(Cuda *c, const RtRow *r)
{
	return rt_context(&c->h->error, "kernel %s (%s%s%s)", r->name, r->layers, *r->layers && *r->where ? ", " : "",
	                  r->where);
}

/* A map of rows of r->map[k].inner elements, as many as n examples have. */
static bool
kernel_map(Cuda *c, const RtRow *r, int k, int64_t n)
{
	const RtMap *m = &r->map[k];
	unsigned long long extent[2] = {(unsigned long long)m->inner,
	                                (unsigned long long)(m->outer * (m->mul ? n * m->mul / m->div : 1))},
	                   stride[1] = {2 * extent[0]};
	unsigned box[2] = {(unsigned)m->box[0], (unsigned)m->box[1]}, step[2] = {1, 1};

	CuTensorMap made; /* where it is made must begin at a multiple of 128 */

	if (!CUDA(c, cuTensorMapEncodeTiled, &made, CU_16_BITS, 2, (void *)(uintptr_t)(c->arena + (CuPtr)m->offset),
	          extent, stride, box, step, 0, CU_SWIZZLE_128, CU_PROMOTE_128, 0))
		return false;
	memcpy(c->map[k], &made, sizeof made);
	return true;
}

/* Of an update that processes share, this one's elements: so many, its offsets moved to them; of what makes numbers of
 * a gradient the first of its pieces and the end of them. Their tasks. */
static int64_t
kernel_part(Cuda *c, const RtRow *r)
{
	int64_t from, to, tasks;

	memcpy(c->moved, r->off, sizeof *c->moved * (size_t)r->noff);
	if (r->cut->total) {
		c->moved[2] = r->cut->edge[c->h->rank];
		c->moved[3] = r->cut->edge[c->h->rank + 1];
		tasks = c->moved[3] - c->moved[2];
	} else if (r->cut->solo) {
		tasks = r->cut->edge[c->h->rank + 1] - r->cut->edge[c->h->rank];
	} else {
		tasks = rt_cuts_part(c->h, r, &from, &to);
		c->moved[0] = to - from;
		for (int k = 1; k < r->noff; k++)
			c->moved[k] += from * r->cut->size[k];
	}
	for (int k = 0; k < r->noff; k++)
		c->parameter[2 + k] = &c->moved[k];
	return tasks;
}

bool
cuda_kernel(Cuda *c, const RtRow *r, int64_t *n, CuKernelNode *to)
{
	const RtCode *code = c->h->object->code;
	/* a measurement without an exchange has nobody's numbers but its own */
	bool part = rt_cuts_cut(c->h) && r->cut && (!r->cut->total || cuda_exchanges(c));
	int64_t tasks = rt_row_tasks(r, *n);

	c->parameter[0] = &c->arena;
	c->parameter[1] = n;
	for (int k = 0; k < r->noff; k++)
		c->parameter[2 + k] = (void *)&r->off[k];
	if (part && (tasks = kernel_part(c, r)) < 1) {
		*to = (CuKernelNode){0};
		return true;
	}
	for (int k = 0; k < r->nmap; k++) {
		if (!kernel_map(c, r, k, *n))
			return cuda_row_context(c, r);
		c->parameter[2 + r->noff + k] = c->map[k];
	}
	*to = (CuKernelNode){.function = c->fn[r->fn],
	                     .grid = {tasks < 1              ? 1
	                              : tasks < GRAPH_BLOCKS ? (unsigned)tasks
	                                                     : GRAPH_BLOCKS,
	                              1, 1},
	                     .block = {(unsigned)code->block[r->fn], 1, 1},
	                     .shared = (unsigned)code->shared[r->fn],
	                     .parameter = c->parameter};
	return true;
}

/* ---- a chain of kernels */

bool
cuda_chain_add(Chain *h, const CuKernelNode *node)
{
	Cuda *c = h->c;
	CuNode made;

	if (!h->graph)
		return CUDA(c, cuLaunchKernel, node->function, node->grid[0], 1, 1, node->block[0], 1, 1, node->shared,
		            cuda_chain_stream(h), node->parameter, NULL) &&
		       (h->capture || CUDA(c, cuStreamSynchronize, c->stream));
	if (!CUDA(h->c, cuGraphAddKernelNode, &made, h->graph, &h->last, h->last != NULL, node))
		return false;
	h->last = made;
	return true;
}

/* A plan of cuDNN. */
static bool
chain_plan(Chain *h, const RtRow *r)
{
	CuNode made;

	if (!h->graph)
		return cuda_dnn_run(h->c, r) && (h->capture || CUDA(h->c, cuStreamSynchronize, h->c->stream));
	if (!cuda_dnn_add(h->c, h->graph, &h->last, h->last != NULL, r, &made))
		return false;
	h->last = made;
	return true;
}

/* Of a call that is launched the host gathers the batch. */
static bool
chain_begin_now(Chain *h, int graph)
{
	RtHost *host = h->c->h;
	const RtGraph *g = &host->program.graph[graph];

	if (h->batch) {
		host->run.micro = h->micro;
		rt_batch(&host->run, g->input, host->program.ninput);
	}
	h->batch = false;
	return cuda_inputs(h->c, g, host->run.n) && cuda_scalars(h->c, g);
}

bool
cuda_chain_begin(Chain *h, int graph)
{
	Cuda *c = h->c;
	const RtGraph *g = &c->h->program.graph[graph];
	CuPtr table = cuda_input_table(c, graph);
	long long inputs = h->batch ? c->h->program.ninput : 0, n = c->h->run.batch, micro = h->micro, seed = g->seed,
	          step = g->step, rate = g->rate, first = g->first;
	void *parameter[] = {&c->arena, &table, &inputs, &n, &micro, &seed, &step, &rate, &first};
	unsigned blocks = h->batch ? (unsigned)c->set[c->h->mode == RT_M_EVAL].blocks[graph] : 1;
	CuKernelNode node = {.function = c->loop_call,
	                     .grid = {blocks, 1, 1},
	                     .block = {h->batch ? GRAPH_THREADS : 1, 1, 1},
	                     .parameter = parameter};

	if (!h->graph && !h->capture)
		return chain_begin_now(h, graph);
	h->batch = false;
	return cuda_chain_add(h, &node) || rt_context(&c->h->error, "kernel loop_call");
}

/* What has just been launched and waited for. */
static bool
chain_timed(Chain *h, const RtGraph *g, int row)
{
	Cuda *c = h->c;
	double end = rt_now();
	float ms = 0;

	if (!CUDA(c, cuEventElapsedTime, &ms, c->event[0], c->event[1]))
		return false;
	h->time(h->cx, g, row, end - ms * 1e-3, end);
	return true;
}

bool
cuda_chain_row(Chain *h, const RtGraph *g, int row)
{
	const RtRow *r = &g->row[row];
	Cuda *c = h->c;
	int64_t n = c->h->run.batch;
	bool good, timed = !h->graph && !h->capture && h->time;
	CuKernelNode node;

	if (timed && (!cuda_events(c, 2) || !CUDA(c, cuEventRecord, c->event[0], c->stream)))
		return false;
	if (cuda_dnn_is(c, r))
		good = chain_plan(h, r);
	else
		good = cuda_kernel(c, r, &n, &node) &&
		       (!node.grid[0] || cuda_chain_add(h, &node) || cuda_row_context(c, r));
	return good && (!timed || (CUDA(c, cuEventRecord, c->event[1], c->stream) &&
	                           CUDA(c, cuEventSynchronize, c->event[1]) && chain_timed(h, g, row)));
}

/* The bits of a number that is not finite: all of the exponent. */
static long long
exponent(int dtype)
{
	return dtype == RT_F64    ? 0x7ff0000000000000
	       : dtype == RT_F32  ? 0x7f800000
	       : dtype == RT_F16  ? 0x7c00
	       : dtype == RT_BF16 ? 0x7f80
	                          : 0;
}

/* The loss stands, and no parameter has changed. */
static bool
chain_loss(Chain *h, const RtGraph *g)
{
	Cuda *c = h->c;
	int dtype = g->scalar_dtype[g->loss];
	long long offset = g->scalar_offset[g->loss], bytes = rt_dtype[dtype].bytes, bits = exponent(dtype);
	void *parameter[] = {&c->arena, &offset, &bytes, &bits};
	CuKernelNode node = {.function = c->loop_loss, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameter = parameter};

	return !bits || cuda_chain_add(h, &node) || rt_context(&c->h->error, "kernel loop_loss");
}

/* once: with the kernels that need not run in each step. */
static bool
chain_call(Chain *h, int graph, bool once)
{
	const RtGraph *g = &h->c->h->program.graph[graph];

	bool ends = h->c->h->mode == RT_M_TRAIN && !h->c->h->run.allow_nan;

	if (!cuda_chain_begin(h, graph))
		return false;
	for (int k = 0; k < g->nrow; k++)
		if ((once || !g->row[k].once) &&
		    ((graph == RT_G_UPDATE && (!cuda_shards_wait(h, k) || (g->row[k].tell && !cuda_cut_tell(h)))) ||
		     !cuda_chain_row(h, g, k) ||
		     (ends && g->row[k].loss && !chain_loss(h, g))))
			return false;
	return graph != RT_G_UPDATE || (cuda_shards_wait(h, g->nrow) && cuda_cut_spread(h));
}

static bool
chain_emit(Chain *h, int graph)
{
	Cuda *c = h->c;
	const RtGraph *g = &c->h->program.graph[graph];
	CuPtr table = cuda_result_table(c, graph);
	long long n = g->nscalar, loss = g->loss, bits = loss >= 0 ? exponent(g->scalar_dtype[loss]) : 0;
	void *parameter[] = {&c->arena, &table, &n, &loss, &bits};
	CuKernelNode node = {.function = c->loop_emit, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameter = parameter};

	return cuda_chain_add(h, &node) || rt_context(&c->h->error, "kernel loop_emit");
}

/* Ops [at, end) of a loop, once; a counted repeat as many times as it says. Training writes states, so there nothing
 * runs once. */
static bool
chain_ops(Chain *h, const RtLoop *l, int at, int end)
{
	bool good = true;

	for (; at < end && good; at++) {
		const RtLoopOp *op = &l->op[at];

		switch (op->kind) {
		case RT_L_REPEAT:
			if (op->shards)
				good = cuda_shards_add(h);
			for (int64_t i = 0, n = op->shards ? 0 : op->counted ? op->count : 1; i < n && good; i++) {
				h->micro = op->counted ? i : 0;
				good = chain_ops(h, l, at + 1, op->end);
			}
			at = op->end;
			break;
		case RT_L_BATCH: h->batch = true; break;
		case RT_L_CALL: good = chain_call(h, op->graph, l == &h->c->h->program.train); break;
		case RT_L_EMIT: good = chain_emit(h, op->graph); break;
		default: break;
		}
	}
	return good;
}

/* ---- plans */

static bool
plan_loop(Cuda *c, Plan *p)
{
	Chain h = {.c = c};
	CuNode node;
	CuNodeParams loop = {.type = CU_NODE_CONDITIONAL};
	unsigned long long handle = 0;
	void *parameter[] = {&c->arena, &handle};
	CuKernelNode last = {.function = c->loop_while, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameter = parameter};

	if (!CUDA(c, cuGraphConditionalHandleCreate, &handle, p->graph, c->context, 1, CU_ASSIGN_DEFAULT))
		return false;
	loop.as.conditional.handle = handle;
	loop.as.conditional.type = CU_WHILE;
	loop.as.conditional.size = 1;
	loop.as.conditional.context = c->context;
	if (!CUDA(c, cuGraphAddNode, &node, p->graph, NULL, NULL, 0, &loop))
		return false;
	h.graph = loop.as.conditional.body[0];
	return chain_ops(&h, p->loop, 0, p->loop->n) && cuda_chain_add(&h, &last);
}

static void
plan_free(Cuda *c, Plan *p)
{
	if (p->exec)
		c->cu.cuGraphExecDestroy(p->exec);
	if (p->graph)
		c->cu.cuGraphDestroy(p->graph);
	*p = (Plan){0};
}

/* Of several processes: a stream captures the steps, as NCCL puts its work into streams alone. What was captured is
 * ended, after an error too. */
static bool
plan_capture(Cuda *c, Plan *p)
{
	Chain h = {.c = c, .capture = true}, before = {.c = c, .bad = -1};
	bool good = (p->loop || cuda_shards_earlier(&before)) &&
	            CUDA(c, cuStreamBeginCapture, c->stream, CU_CAPTURE_THREAD);
	int status;

	if (!good)
		return false;
	for (int64_t i = 0; i < p->steps && good; i++)
		good = p->loop ? chain_ops(&h, p->loop, 0, p->loop->n) : cuda_shards_exchange(&h);
	status = c->cu.cuStreamEndCapture(c->stream, &p->graph);
	return good && cuda_ok(c, status, "cuStreamEndCapture") && CUDA(c, cuGraphInstantiate, &p->exec, p->graph, 0);
}

static bool
plan_make(Cuda *c, Plan *p)
{
	if (!p->loop || (cuda_exchanges(c) && p->loop == &c->h->program.train))
		return plan_capture(c, p);
	Chain h = {.c = c};
	bool good = CUDA(c, cuGraphCreate, &p->graph, 0);

	h.graph = p->graph;
	if (good && p->steps == 0)
		good = plan_loop(c, p);
	for (int64_t i = 0; i < p->steps && good; i++)
		good = chain_ops(&h, p->loop, 0, p->loop->n);
	return good && CUDA(c, cuGraphInstantiate, &p->exec, p->graph, 0);
}

Plan *
cuda_plan(Cuda *c, const RtLoop *l, int64_t steps)
{
	Plan *p;

	for (int i = 0; i < c->nplan; i++)
		if (c->plan[i].loop == l && c->plan[i].steps == steps)
			return &c->plan[i];
	if (c->nplan == CUDA_PLANS) {
		rt_fail(&c->h->error, "more than %d graphs", CUDA_PLANS);
		return NULL;
	}
	p = &c->plan[c->nplan];
	*p = (Plan){.loop = l, .steps = steps};
	if (plan_make(c, p)) {
		c->nplan++;
		return p;
	}
	rt_context(&c->h->error, "a graph of %s",
	           !l                          ? "the exchange"
	           : l == &c->h->program.eval  ? "eval"
	           : l == &c->h->program.infer ? "infer"
	                                       : "train");
	plan_free(c, p);
	return NULL;
}

void
cuda_plans_free(Cuda *c)
{
	for (int i = 0; i < c->nplan; i++)
		plan_free(c, &c->plan[i]);
	c->nplan = 0;
}
