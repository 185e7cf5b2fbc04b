/* graph.c: graphs: nodes, copies, running.
 *
 * In: nodes with dependencies.   Out: each node run after those it depends on, in random order where they leave a
 * choice. An instance is a copy of the graph. Conditional nodes read a value that a kernel sets; bodies are graphs
 * whose handles belong to the outermost one.
 * Refused: host nodes inside of a conditional body, as on the machine; cycles. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

/* building */

Graph *
graph_new(void)
{
	Graph *g = calloc(1, sizeof *g);

	if (!g)
		abort();
	g->root = g;
	return g;
}

void
graph_free(Graph *g)
{
	for (int i = 0; g && i < g->n; i++) {
		work_free(&g->node[i]->work);
		free(g->node[i]->dep);
		free(g->node[i]);
	}
	if (g) {
		free(g->node);
		free(g->condition);
	}
	free(g);
}

void *
graph_more(void *list, int n, int *cap, size_t size)
{
	if (n < *cap)
		return list;
	*cap = *cap ? *cap * 2 : 8;
	list = realloc(list, (size_t)*cap * size);
	if (!list)
		abort();
	return list;
}

void
node_depend(Node *node, Node *on)
{
	for (int i = 0; i < node->ndep; i++)
		if (node->dep[i] == on)
			return;
	node->dep = graph_more(node->dep, node->ndep, &node->capdep, sizeof *node->dep);
	node->dep[node->ndep++] = on;
}

Node *
graph_add(Graph *g, Node *const *dep, size_t n, int type, const Work *k)
{
	Node *node = calloc(1, sizeof *node);

	if (!node)
		abort();
	node->graph = g;
	node->work = *k;
	node->type = type;
	node->index = g->n;
	g->node = graph_more(g->node, g->n, &g->cap, sizeof *g->node);
	g->node[g->n++] = node;
	for (size_t i = 0; i < n; i++)
		node_depend(node, dep[i]);
	return node;
}

/* copying */

void
work_copy(Work *to, const Work *from)
{
	*to = *from;
	if (from->kind == WORK_LAUNCH) {
		to->as.launch = malloc(sizeof *to->as.launch);
		if (!to->as.launch)
			abort();
		*to->as.launch = *from->as.launch;
	}
	if (from->kind == WORK_CALL) {
		to->as.call.data = malloc(from->as.call.bytes + 1);
		if (!to->as.call.data)
			abort();
		memcpy(to->as.call.data, from->as.call.data, from->as.call.bytes);
	}
}

static void
node_copy_work(Node *to, const Node *from, Graph *root)
{
	work_copy(&to->work, &from->work);
	if (from->work.kind == WORK_CHILD)
		to->work.as.child = graph_copy(from->work.as.child, root);
	if (from->work.kind == WORK_CONDITIONAL) {
		to->work.as.cond.body = calloc(from->work.as.cond.size, sizeof(Graph *));
		if (!to->work.as.cond.body)
			abort();
		for (unsigned i = 0; i < from->work.as.cond.size; i++) {
			to->work.as.cond.body[i] = graph_copy(from->work.as.cond.body[i], root);
			to->work.as.cond.body[i]->body = true;
		}
	}
}

Graph *
graph_copy(const Graph *g, Graph *root)
{
	Graph *c = graph_new();

	c->root = root ? root : c;
	c->body = g->body;
	for (int i = 0; i < g->n; i++) {
		Work empty = { .kind = WORK_EMPTY };
		Node *node = graph_add(c, NULL, 0, g->node[i]->type, &empty);

		node_copy_work(node, g->node[i], c->root);
		node->original = g->node[i];
	}
	for (int i = 0; i < g->n; i++)
		for (int k = 0; k < g->node[i]->ndep; k++)
			node_depend(c->node[i], c->node[g->node[i]->dep[k]->index]);
	for (int i = 0; i < g->ncondition; i++) {
		c->condition = graph_more(c->condition, c->ncondition, &c->capcondition, sizeof *c->condition);
		c->condition[c->ncondition++] = g->condition[i];
	}
	return c;
}

/* running */

void
graph_set_conditional(GraphRun *run, uint64_t handle, unsigned value)
{
	for (int i = 0; i < run->n; i++)
		if (run->condition[i].handle == handle)
			__atomic_store_n(&run->condition[i].value, value, __ATOMIC_SEQ_CST);
}

static unsigned
condition_value(const GraphRun *run, uint64_t handle)
{
	for (int i = 0; i < run->n; i++)
		if (run->condition[i].handle == handle)
			return __atomic_load_n(&run->condition[i].value, __ATOMIC_SEQ_CST);
	return 0;
}

static CUresult
conditional_run(Work *k, uint64_t *random, GraphRun *run)
{
	unsigned v = condition_value(run, k->as.cond.handle),
	         body = k->as.cond.type == CU_GRAPH_COND_TYPE_SWITCH ? v : !v;
	CUresult r = CUDA_SUCCESS;

	if (k->as.cond.type == CU_GRAPH_COND_TYPE_WHILE) {
		while (!r && condition_value(run, k->as.cond.handle)) {
			__atomic_fetch_add(&device.count.conditional_runs, 1, __ATOMIC_RELAXED);
			r = graph_run(k->as.cond.body[0], random, run);
		}
	} else if (body < k->as.cond.size) {
		__atomic_fetch_add(&device.count.conditional_runs, 1, __ATOMIC_RELAXED);
		r = graph_run(k->as.cond.body[body], random, run);
	}
	return r;
}

static int
graph_order(const Graph *g, int *left, int *ready)
{
	int n = 0;

	for (int i = 0; i < g->n; i++) {
		left[i] = g->node[i]->ndep;
		if (!left[i])
			ready[n++] = i;
	}
	return n;
}

/* Takes any node whose dependencies are done, until none is left. */
CUresult
graph_run(Graph *g, uint64_t *random, GraphRun *run)
{
	int *left = calloc((size_t)g->n * 2 + 2, sizeof *left), *ready = left + g->n + 1, n;
	CUresult r = CUDA_SUCCESS;

	if (!left)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n = graph_order(g, left, ready);
	while (n && !r) {
		int pick = (int)(random_next(random) % (uint64_t)n), k = ready[pick];
		Node *node = g->node[k];

		ready[pick] = ready[--n];
		r = node->work.kind == WORK_CONDITIONAL ? conditional_run(&node->work, random, run)
		                                        : work_run(&node->work, random, run);
		for (int i = 0; i < g->n; i++)
			for (int j = 0; j < g->node[i]->ndep; j++)
				if (g->node[i]->dep[j] == node && !--left[i])
					ready[n++] = i;
	}
	free(left);
	return r;
}

/* Pairs of another library's work (hook.c) and a kernel of which neither waits for the other. */
uint64_t
graph_beside(const Graph *g)
{
	uint64_t pairs = 0;
	bool *reach = calloc((size_t)g->n * (size_t)g->n + 1, 1); /* [i][k]: i waits for k */
	bool *seen = calloc((size_t)g->n + 1, 1);

	for (int done = 0; reach && seen && done < g->n;) /* any order of nodes that is none of a circle */
		for (int i = 0; i < g->n; i++) {
			const Node *node = g->node[i];
			bool *row = reach + (size_t)i * (size_t)g->n, ready = !seen[i];

			for (int d = 0; d < node->ndep && ready; d++)
				ready = seen[node->dep[d]->index];
			for (int d = 0; d < node->ndep && ready; d++)
				for (int k = 0; k < g->n; k++)
					row[k] |= k == node->dep[d]->index ||
					          reach[(size_t)node->dep[d]->index * (size_t)g->n + (size_t)k];
			seen[i] |= ready;
			done += ready;
		}
	for (int i = 0; reach && i < g->n; i++)
		for (int k = 0; k < g->n && g->node[i]->work.kind == WORK_CALL; k++)
			pairs += g->node[k]->work.kind == WORK_LAUNCH && !reach[(size_t)i * (size_t)g->n + (size_t)k] &&
			         !reach[(size_t)k * (size_t)g->n + (size_t)i];
	free(reach);
	free(seen);
	return pairs;
}

CUresult
exec_run(GraphExec *e, uint64_t *random)
{
	GraphRun run = { .condition = e->graph->condition, .n = e->graph->ncondition };

	for (int i = 0; i < run.n; i++)
		if (run.condition[i].flags & CU_GRAPH_COND_ASSIGN_DEFAULT)
			run.condition[i].value = run.condition[i].flags >> 8;
	__atomic_fetch_add(&device.count.graph_launches, 1, __ATOMIC_RELAXED);
	return graph_run(e->graph, random, &run);
}

void
exec_free(GraphExec *e)
{
	graph_free(e->graph);
	free(e);
}

/* checking */

static bool
graph_has_cycle(const Graph *g)
{
	int *left = calloc((size_t)g->n * 2 + 2, sizeof *left), *ready = left + g->n + 1, n, done = 0;

	if (!left)
		abort();
	n = graph_order(g, left, ready);
	while (n) {
		const Node *node = g->node[ready[--n]];

		done++;
		for (int i = 0; i < g->n; i++)
			for (int j = 0; j < g->node[i]->ndep; j++)
				if (g->node[i]->dep[j] == node && !--left[i])
					ready[n++] = i;
	}
	free(left);
	return done != g->n;
}

/* Bodies of conditions hold kernels, copies and fills on the device, empty nodes, graphs and conditions. */
CUresult
graph_check(const Graph *g, bool inside)
{
	if (graph_has_cycle(g))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < g->n; i++) {
		const Work *k = &g->node[i]->work;
		CUresult r = CUDA_SUCCESS;

		if (inside && (k->kind == WORK_HOST || k->kind == WORK_RECORD || k->kind == WORK_WAIT))
			return CUDA_ERROR_NOT_SUPPORTED;
		if (k->kind == WORK_CHILD)
			r = graph_check(k->as.child, inside);
		for (unsigned b = 0; k->kind == WORK_CONDITIONAL && b < k->as.cond.size && !r; b++)
			r = graph_check(k->as.cond.body[b], true);
		if (r)
			return r;
	}
	return CUDA_SUCCESS;
}
