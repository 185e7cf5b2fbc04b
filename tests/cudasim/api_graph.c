/* api_graph.c: calls about graphs: capture from streams, nodes, instances.
 *
 * A stream that captures puts what it is given into a graph; an event recorded there stands for the nodes so far, and a
 * stream that waits for it joins the capture.
 * Refused: work of the legacy stream, waiting for the host, streams that were not joined. */
#include <stdlib.h>
#include <string.h>

#include "work.h"

/* capture */

static void
capture_reset(Stream *s)
{
	free(s->last);
	s->last = NULL;
	s->nlast = s->caplast = 0;
	s->capture = NULL;
	s->origin = NULL;
}

CUresult
capture_put(Stream *s, const Work *k)
{
	static const int types[] = {[WORK_LAUNCH] = CU_GRAPH_NODE_TYPE_KERNEL, [WORK_CALL] = CU_GRAPH_NODE_TYPE_KERNEL,
	                            [WORK_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,   [WORK_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
	                            [WORK_HOST] = CU_GRAPH_NODE_TYPE_HOST,     [WORK_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
	                            [WORK_CHILD] = CU_GRAPH_NODE_TYPE_GRAPH};
	Work mine = *k;
	Node *node;

	if (k->kind > WORK_CHILD ||
	    (k->kind != WORK_EMPTY && !types[k->kind] && k->kind != WORK_LAUNCH && k->kind != WORK_CALL) ||
	    k->kind == WORK_GRAPH) {
		s->capture_failed = true;
		work_free(&mine);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	node = graph_add(s->capture, s->last, (size_t)s->nlast, types[k->kind], k);
	s->last = graph_more(s->last, 0, &s->caplast, sizeof *s->last);
	s->last[0] = node;
	s->nlast = 1;
	return CUDA_SUCCESS;
}

/* The event stands for what the stream has captured so far. */
void
capture_record(Stream *s, Event *e)
{
	free(e->last);
	e->last = malloc(((size_t)s->nlast + 1) * sizeof *e->last);
	if (!e->last)
		abort();
	for (int i = 0; i < s->nlast; i++)
		e->last[i] = s->last[i];
	e->nlast = s->nlast;
	e->capture = s->capture;
}

void
capture_join(Stream *s, const Event *e)
{
	if (!s->capture) {
		s->capture = e->capture;
		s->nlast = 0;
		s->capture_owned = false;
	}
	for (int i = 0; i < e->nlast; i++) {
		s->last = graph_more(s->last, s->nlast, &s->caplast, sizeof *s->last);
		s->last[s->nlast++] = e->last[i];
	}
}

static CUresult
capture_begin(CUstream h, Graph *g, const CUgraphNode *deps, size_t n, int mode)
{
	Stream *s = stream_of(h);

	if (!s || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->capture)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s == stream_of(NULL))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	s->capture_owned = !g;
	s->capture = g ? g : graph_new();
	s->origin = s;
	s->capture_failed = false;
	for (size_t i = 0; i < n; i++) {
		s->last = graph_more(s->last, s->nlast, &s->caplast, sizeof *s->last);
		s->last[s->nlast++] = deps[i];
	}
	return CUDA_SUCCESS;
}

CUresult
cuStreamBeginCapture_v2(CUstream h, int mode)
{
	ENTER(true);
	return api_leave(capture_begin(h, NULL, NULL, 0, mode));
}

CUresult
cuStreamBeginCaptureToGraph(CUstream h, CUgraph g, const CUgraphNode *deps, const CUgraphEdgeData *edge, size_t n,
                            int mode)
{
	ENTER(true);
	return api_leave(g && !edge ? capture_begin(h, g, deps, n, mode) : CUDA_ERROR_INVALID_VALUE);
}

/* Work of other streams that nothing in this one waits for is an error: they must have been joined. */
static bool
capture_joined(const Graph *g, const Stream *s)
{
	for (int i = 0; i < g->n; i++) {
		bool used = false;

		for (int k = 0; k < s->nlast; k++)
			used |= s->last[k] == g->node[i];
		for (int j = 0; j < g->n; j++)
			for (int k = 0; k < g->node[j]->ndep; k++)
				used |= g->node[j]->dep[k] == g->node[i];
		if (!used)
			return false;
	}
	return true;
}

static void
capture_leave(Stream *s, void *graph)
{
	if (s->capture == graph)
		capture_reset(s);
}

CUresult
cuStreamEndCapture(CUstream h, CUgraph *to)
{
	Stream *s;
	Graph *g;
	CUresult r;

	ENTER(true);
	s = stream_of(h);
	if (!s || !s->capture || !to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	if (s->origin != s)
		return api_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	g = s->capture;
	r = s->capture_failed                           ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	    : s->capture_owned && !capture_joined(g, s) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
	                                                : CUDA_SUCCESS;
	*to = r ? NULL : g;
	if (r && s->capture_owned)
		graph_free(g);
	stream_each(capture_leave, g);
	return api_leave(r);
}

CUresult
cuStreamIsCapturing(CUstream h, int *to)
{
	Stream *s;

	ENTER(true);
	s = stream_of(h);
	if (!s || !to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = !s->capture         ? CU_STREAM_CAPTURE_STATUS_NONE
	      : s->capture_failed ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER(false);
	(void)mode;
	return api_leave(CUDA_SUCCESS);
}

/* calls: graphs */

CUresult
cuGraphCreate(CUgraph *to, unsigned flags)
{
	ENTER(true);
	if (!to || flags)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = graph_new();
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuGraphDestroy(CUgraph g)
{
	ENTER(true);
	if (!g || g->body)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	graph_free(g);
	return api_leave(CUDA_SUCCESS);
}

static bool
graph_conditional(const Graph *g)
{
	for (int i = 0; i < g->n; i++)
		if (g->node[i]->work.kind == WORK_CONDITIONAL)
			return true;
	return false;
}

CUresult
cuGraphClone(CUgraph *to, CUgraph g)
{
	ENTER(true);
	if (!to || !g)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	if (graph_conditional(g))
		return api_leave(CUDA_ERROR_NOT_SUPPORTED);
	*to = graph_copy(g, NULL);
	return api_leave(CUDA_SUCCESS);
}

static CUresult
add(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, int type, const Work *k)
{
	if (!to || !g || (n && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		if (!deps[i] || deps[i]->graph != g)
			return CUDA_ERROR_INVALID_VALUE;
	*to = graph_add(g, deps, n, type, k);
	return CUDA_SUCCESS;
}

static CUresult
kernel_work(Work *k, const CUDA_KERNEL_NODE_PARAMS *p)
{
	CUlaunchConfig c = {p->gridDimX,  p->gridDimY,       p->gridDimZ, p->blockDimX, p->blockDimY,
	                    p->blockDimZ, p->sharedMemBytes, NULL,        NULL,         0};

	return work_launch(k, &c, p->func ? p->func : p->kern, p->kernelParams, p->extra);
}

CUresult
cuGraphAddKernelNode_v2(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_KERNEL_NODE_PARAMS *p)
{
	Work k;
	CUresult r;

	ENTER(true);
	r = p ? kernel_work(&k, p) : CUDA_ERROR_INVALID_VALUE;
	return api_leave(r ? r : add(to, g, deps, n, CU_GRAPH_NODE_TYPE_KERNEL, &k));
}

CUresult
cuGraphAddMemcpyNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_MEMCPY3D *p, CUcontext c)
{
	Work k;
	CUresult r;

	ENTER(true);
	(void)c;
	r = p ? work_copy_3d(&k, p) : CUDA_ERROR_INVALID_VALUE;
	return api_leave(r ? r : add(to, g, deps, n, CU_GRAPH_NODE_TYPE_MEMCPY, &k));
}

CUresult
cuGraphAddMemsetNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_MEMSET_NODE_PARAMS *p,
                     CUcontext c)
{
	Work k;
	CUresult r;

	ENTER(true);
	(void)c;
	r = p ? work_set_make(&k, p) : CUDA_ERROR_INVALID_VALUE;
	return api_leave(r ? r : add(to, g, deps, n, CU_GRAPH_NODE_TYPE_MEMSET, &k));
}

CUresult
cuGraphAddHostNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_HOST_NODE_PARAMS *p)
{
	Work k = { .kind = WORK_HOST };

	ENTER(true);
	if (!p || !p->fn)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	k.as.host.fn = p->fn;
	k.as.host.data = p->userData;
	return api_leave(add(to, g, deps, n, CU_GRAPH_NODE_TYPE_HOST, &k));
}

CUresult
cuGraphAddEmptyNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n)
{
	Work k = { .kind = WORK_EMPTY };

	ENTER(true);
	return api_leave(add(to, g, deps, n, CU_GRAPH_NODE_TYPE_EMPTY, &k));
}

static CUresult
child_work(Work *k, const Graph *child, const Graph *g)
{
	if (!child || !g)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph_conditional(child))
		return CUDA_ERROR_NOT_SUPPORTED;
	*k = (Work){ .kind = WORK_CHILD, .as.child = graph_copy(child, g->root) };
	return CUDA_SUCCESS;
}

CUresult
cuGraphAddChildGraphNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, CUgraph child)
{
	Work k;
	CUresult r;

	ENTER(true);
	r = child_work(&k, child, g);
	return api_leave(r ? r : add(to, g, deps, n, CU_GRAPH_NODE_TYPE_GRAPH, &k));
}

CUresult
cuGraphConditionalHandleCreate(CUgraphConditionalHandle *to, CUgraph g, CUcontext c, unsigned value, unsigned flags)
{
	static uint64_t next = 0x51000;
	Graph *root;

	ENTER(true);
	(void)c;
	if (!to || !g || flags > CU_GRAPH_COND_ASSIGN_DEFAULT || value > 0xffffff)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	root = g->root;
	root->condition = graph_more(root->condition, root->ncondition, &root->capcondition, sizeof *root->condition);
	root->condition[root->ncondition++] = (Condition){ *to = next++, value, flags | value << 8 };
	return api_leave(CUDA_SUCCESS);
}

static CUresult
conditional_work(Work *k, Graph *g, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	unsigned most = p->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : p->type == CU_GRAPH_COND_TYPE_IF ? 2 : 1024;
	bool known = false;

	for (int i = 0; g && i < g->root->ncondition; i++)
		known |= g->root->condition[i].handle == p->handle;
	if (!known || !p->size || p->size > most)
		return CUDA_ERROR_INVALID_VALUE;
	*k = (Work){ .kind = WORK_CONDITIONAL, .as.cond = { .handle = p->handle, .type = p->type, .size = p->size } };
	k->as.cond.body = calloc(p->size, sizeof(Graph *));
	if (!k->as.cond.body)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < p->size; i++) {
		k->as.cond.body[i] = graph_new();
		k->as.cond.body[i]->root = g->root;
		k->as.cond.body[i]->body = true;
	}
	p->phGraph_out = k->as.cond.body;
	return CUDA_SUCCESS;
}

CUresult
cuGraphAddNode_v2(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, const CUgraphEdgeData *edge, size_t n,
                  CUgraphNodeParams *p)
{
	Work k = { .kind = WORK_EMPTY };
	CUresult r = CUDA_SUCCESS;

	ENTER(true);
	if (!p || !g)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; edge && i < n; i++)
		r = edge[i].to_port ? CUDA_ERROR_INVALID_VALUE : r;
	if (!r)
		switch (p->type) {
		case CU_GRAPH_NODE_TYPE_KERNEL: r = kernel_work(&k, &p->as.kernel); break;
		case CU_GRAPH_NODE_TYPE_MEMCPY: r = work_copy_3d(&k, &p->as.memcpy.copyParams); break;
		case CU_GRAPH_NODE_TYPE_MEMSET: r = work_set_make(&k, &p->as.memset); break;
		case CU_GRAPH_NODE_TYPE_HOST:
			k = (Work){.kind = WORK_HOST, .as.host = {p->as.host.fn, p->as.host.userData}};
			break;
		case CU_GRAPH_NODE_TYPE_GRAPH: r = child_work(&k, p->as.graph.graph, g); break;
		case CU_GRAPH_NODE_TYPE_EMPTY: break;
		case CU_GRAPH_NODE_TYPE_CONDITIONAL: r = conditional_work(&k, g, &p->as.conditional); break;
		default: r = CUDA_ERROR_NOT_SUPPORTED;
		}
	return api_leave(r ? r : add(to, g, deps, n, p->type, &k));
}

CUresult
cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edge,
                          size_t n)
{
	ENTER(true);
	(void)edge;
	for (size_t i = 0; i < n; i++) {
		if (!from[i] || !to[i] || from[i]->graph != g || to[i]->graph != g)
			return api_leave(CUDA_ERROR_INVALID_VALUE);
		node_depend(to[i], from[i]);
	}
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuGraphGetNodes(CUgraph g, CUgraphNode *to, size_t *n)
{
	ENTER(true);
	if (!g || !n)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; to && i < *n && i < (size_t)g->n; i++)
		to[i] = g->node[i];
	*n = (size_t)g->n;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *to)
{
	ENTER(true);
	if (!node || !to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = (CUgraphNodeType)node->type;
	return api_leave(CUDA_SUCCESS);
}

/* calls: instances */

static CUresult
instantiate(CUgraphExec *to, const Graph *g)
{
	CUresult r = !to || !g || g->body ? CUDA_ERROR_INVALID_VALUE : graph_check(g, false);
	GraphExec *e;

	if (r)
		return r;
	e = calloc(1, sizeof *e);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->graph = graph_copy(g, NULL);
	device.count.beside += graph_beside(e->graph);
	*to = e;
	return CUDA_SUCCESS;
}

CUresult
cuGraphInstantiateWithFlags(CUgraphExec *to, CUgraph g, unsigned long long flags)
{
	ENTER(true);
	(void)flags;
	return api_leave(instantiate(to, g));
}

CUresult
cuGraphInstantiateWithParams(CUgraphExec *to, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	CUresult r;

	ENTER(true);
	r = p ? instantiate(to, g) : CUDA_ERROR_INVALID_VALUE;
	if (p)
		p->result_out = r ? r == CUDA_ERROR_NOT_SUPPORTED ? 3 : 1 : 0;
	return api_leave(r);
}

static Node *
node_of(Graph *g, const Node *original)
{
	for (int i = 0; i < g->n; i++) {
		Node *node = g->node[i], *inner = NULL;

		if (node->original == original)
			return node;
		if (node->work.kind == WORK_CHILD)
			inner = node_of(node->work.as.child, original);
		for (unsigned b = 0; node->work.kind == WORK_CONDITIONAL && b < node->work.as.cond.size && !inner; b++)
			inner = node_of(node->work.as.cond.body[b], original);
		if (inner)
			return inner;
	}
	return NULL;
}

/* Launches that wait already keep their parameters on the machine; here the caller must not change a graph that is
 * pending. */
CUresult
cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode original, const CUDA_KERNEL_NODE_PARAMS *p)
{
	Node *node;
	Work k;
	CUresult r;

	ENTER(true);
	node = e && !e->destroyed ? node_of(e->graph, original) : NULL;
	if (!node || node->work.kind != WORK_LAUNCH || !p)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	while (e->pending && !device.lost)
		pthread_cond_wait(&device.changed, &device.lock);
	r = kernel_work(&k, p);
	if (!r) {
		work_free(&node->work);
		node->work = k;
	}
	return api_leave(r);
}

static CUresult
node_replace(CUgraphExec e, const Node *original, WorkKind kind, Work *k)
{
	Node *node = e && !e->destroyed ? node_of(e->graph, original) : NULL;

	if (!node || node->work.kind != kind) {
		work_free(k);
		return CUDA_ERROR_INVALID_VALUE;
	}
	while (e->pending && !device.lost)
		pthread_cond_wait(&device.changed, &device.lock);
	work_free(&node->work);
	node->work = *k;
	return CUDA_SUCCESS;
}

CUresult
cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode original, const CUDA_MEMCPY3D *p, CUcontext c)
{
	Work k;
	CUresult r;

	ENTER(true);
	(void)c;
	r = p ? work_copy_3d(&k, p) : CUDA_ERROR_INVALID_VALUE;
	return api_leave(r ? r : node_replace(e, original, WORK_COPY, &k));
}

CUresult
cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode original, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c)
{
	Work k;
	CUresult r;

	ENTER(true);
	(void)c;
	r = p ? work_set_make(&k, p) : CUDA_ERROR_INVALID_VALUE;
	return api_leave(r ? r : node_replace(e, original, WORK_SET, &k));
}

/* The same nodes with the same dependencies, in the order in which they were added. */
static bool
same_shape(const Graph *a, const Graph *b)
{
	bool same = a->n == b->n;

	for (int i = 0; same && i < a->n; i++) {
		same = a->node[i]->work.kind == b->node[i]->work.kind && a->node[i]->ndep == b->node[i]->ndep &&
		       a->node[i]->work.kind != WORK_CONDITIONAL;
		for (int k = 0; same && k < a->node[i]->ndep; k++)
			same = a->node[i]->dep[k]->index == b->node[i]->dep[k]->index;
		if (same && a->node[i]->work.kind == WORK_CHILD)
			same = same_shape(a->node[i]->work.as.child, b->node[i]->work.as.child);
	}
	return same;
}

CUresult
cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *info)
{
	ENTER(true);
	if (!e || e->destroyed || !g || !info)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*info = (CUgraphExecUpdateResultInfo){ .result = 0 };
	if (!same_shape(e->graph, g)) {
		info->result = 2; /* the topology has changed */
		return api_leave(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	}
	while (e->pending && !device.lost)
		pthread_cond_wait(&device.changed, &device.lock);
	graph_free(e->graph);
	e->graph = graph_copy(g, NULL);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuGraphExecDestroy(CUgraphExec e)
{
	ENTER(true);
	if (!e || e->destroyed)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	e->destroyed = true;
	if (!e->pending)
		exec_free(e);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuGraphUpload(CUgraphExec e, CUstream h)
{
	ENTER(true);
	return api_leave(e && !e->destroyed && stream_of(h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult
cuGraphLaunch(CUgraphExec e, CUstream h)
{
	Work k = { .kind = WORK_GRAPH, .as.exec = e };
	Stream *s;

	ENTER(true);
	s = stream_of(h);
	if (!e || e->destroyed || !s)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	return api_leave(s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : stream_put(s, &k, false));
}
