/* test_graphs.c: graphs made by hand: every kind of node, conditions, random legal order. */
#include <stdlib.h>
#include <string.h>

#include "test.h"

static CUmodule module;
static CUstream stream;

static CUgraphNode
kernel(CUgraph g, const char *name, CUgraphNode after, void **params)
{
	CUDA_KERNEL_NODE_PARAMS p = {.func = test_function(module, name),
	                             .gridDimX = 1,
	                             .gridDimY = 1,
	                             .gridDimZ = 1,
	                             .blockDimX = 1,
	                             .blockDimY = 1,
	                             .blockDimZ = 1,
	                             .kernelParams = params};
	CUgraphNode n = NULL;

	check(!cu.cuGraphAddKernelNode_v2(&n, g, &after, after != NULL, &p), "node %s", name);
	return n;
}

static CUgraphNode
number(CUgraph g, const char *name, CUgraphNode after, CUdeviceptr at, uint32_t v)
{
	void *params[] = { &at, &v };

	return kernel(g, name, after, params);
}

static void
launch(CUgraph g, int times)
{
	CUgraphExec x = NULL;
	CUresult r = cu.cuGraphInstantiateWithFlags(&x, g, 0);

	for (int i = 0; i < times && !r; i++)
		r = cu.cuGraphLaunch(x, stream);
	if (!r)
		r = cu.cuStreamSynchronize(stream);
	check(!r, "a graph runs: %d", (int)r);
	if (x)
		cu.cuGraphExecDestroy(x);
}

static CUgraph
conditional(CUgraph g, CUgraphNode after, CUgraphConditionalHandle h, int type, unsigned size, CUgraph *second)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };
	CUgraphNode n;

	p.as.conditional.handle = h;
	p.as.conditional.type = type;
	p.as.conditional.size = size;
	CUresult r = cu.cuGraphAddNode_v2(&n, g, &after, NULL, after != NULL, &p);

	check(!r && p.as.conditional.phGraph_out, "a conditional node: %d", (int)r);
	if (second)
		*second = p.as.conditional.phGraph_out[1];
	return p.as.conditional.phGraph_out[0];
}

static void
graphs_nodes(void)
{
	uint32_t v[4] = { 2, 0, 0, 0 }, got[4];
	CUdeviceptr at = test_upload(v, sizeof v);
	CUgraph g, child;
	CUgraphNode a, b, c, d;
	CUDA_MEMSET_NODE_PARAMS set = { .dst = at + 8, .value = 0x55, .elementSize = 1, .width = 4, .height = 1 };
	CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .srcDevice = at,
	                      .dstMemoryType = CU_MEMORYTYPE_HOST,
	                      .dstHost = got,
	                      .WidthInBytes = 16,
	                      .Height = 1,
	                      .Depth = 1};

	cu.cuGraphCreate(&g, 0);
	cu.cuGraphCreate(&child, 0);
	a = number(child, "add", NULL, at, 1);
	number(child, "mul", a, at, 10);
	check(!cu.cuGraphAddChildGraphNode(&a, g, NULL, 0, child) && !cu.cuGraphDestroy(child), "a graph in a graph");
	check(!cu.cuGraphAddMemsetNode(&b, g, NULL, 0, &set, NULL), "a fill");
	check(!cu.cuGraphAddEmptyNode(&c, g, (CUgraphNode[]){ a, b }, 2), "an empty node");
	number(g, "add", c, at + 4, 7);
	CUgraphNode e = number(g, "mul", c, at + 12, 1);

	check(!cu.cuGraphAddMemcpyNode(&d, g, &e, 1, &copy, NULL), "a copy");
	check(cu.cuGraphAddMemsetNode(&d, g, &e, 1,
	                              &(CUDA_MEMSET_NODE_PARAMS){.dst = at, .elementSize = 3, .width = 4, .height = 1},
	                              NULL) == CUDA_ERROR_INVALID_VALUE,
	      "a fill of threes is refused");
	memset(got, 0, sizeof got);
	launch(g, 2);
	check(got[0] == ((2 + 1) * 10 + 1) * 10 && got[2] == 0x55555555, "kinds of nodes: %u %x", got[0], got[2]);
	test_download(got, at, sizeof got);
	check(got[1] == 14, "both launches ran all nodes: %u", got[1]);
	check(!cu.cuGraphAddDependencies_v2(g, &e, &a, NULL, 1) && !cu.cuGraphAddDependencies_v2(g, &a, &e, NULL, 1),
	      "a cycle");
	CUgraphExec x;

	check(cu.cuGraphInstantiateWithFlags(&x, g, 0) == CUDA_ERROR_INVALID_VALUE, "a cycle is refused");
	cu.cuGraphDestroy(g);
	cu.cuMemFree_v2(at);
}

/* Ten nodes without order, and one before and one after them all. */
static void
graphs_order(void)
{
	uint32_t v[32] = { 0 };
	CUdeviceptr at = test_upload(v, sizeof v);
	CUgraph g;
	CUgraphNode first, middle[10], last;
	unsigned seen = 0, in_order = 0;

	cu.cuGraphCreate(&g, 0);
	first = number(g, "log", NULL, at, 100);
	for (uint32_t k = 0; k < 10; k++)
		middle[k] = number(g, "log", first, at, k);
	last = number(g, "log", middle[0], at, 200);
	for (int k = 1; k < 10; k++)
		cu.cuGraphAddDependencies_v2(g, &middle[k], &last, NULL, 1);
	for (int run = 0; run < 8; run++) {
		bool sorted = true;

		cu.cuMemsetD32Async(at, 0, 32, stream);
		launch(g, 1);
		test_download(v, at, sizeof v);
		seen = 0;
		for (int k = 2; k < 12; k++) {
			seen |= 1u << (v[k] & 31);
			sorted &= v[k] == (uint32_t)k - 2;
		}
		in_order += sorted;
		check(v[0] == 12 && v[1] == 100 && v[12] == 200 && seen == 0x3ff,
		      "order of nodes: %u first, %u last, %x", v[1], v[12], seen);
	}
	check(in_order < 8, "nodes without order run in several orders");
	cu.cuGraphDestroy(g);
	cu.cuMemFree_v2(at);
}

/* while (i < n) { i++; x = x * 3; if (flag) y += 1; else y += 100; } */
static void
graphs_while(void)
{
	uint32_t v[4] = { 0, 1, 0, 1 }, n = 6;
	CUdeviceptr at = test_upload(v, sizeof v), i = at, flag = at + 12;
	CUgraph g, body, yes, no = NULL;
	CUgraphConditionalHandle h, k;
	CUgraphNode a, b;
	CUgraphExec x;

	cu.cuGraphCreate(&g, 0);
	check(!cu.cuGraphConditionalHandleCreate(&h, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT), "a handle");
	check(!cu.cuGraphConditionalHandleCreate(&k, g, NULL, 0, CU_GRAPH_COND_ASSIGN_DEFAULT), "a second handle");
	body = conditional(g, NULL, h, CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
	void *pick[] = { &flag, &k }, *more[] = { &i, &h, &n };

	number(body, "mul", NULL, at + 4, 3);
	a = kernel(body, "pick", NULL, pick);
	yes = conditional(body, a, k, CU_GRAPH_COND_TYPE_IF, 2, &no);
	number(yes, "add", NULL, at + 8, 1);
	number(no, "add", NULL, at + 8, 100);
	b = kernel(body, "more", NULL, more);
	(void)b;
	check(!cu.cuGraphInstantiateWithFlags(&x, g, 0), "an instance");
	check(!cu.cuGraphLaunch(x, stream) && !cu.cuStreamSynchronize(stream), "a loop runs");
	test_download(v, at, sizeof v);
	check(v[0] == 6 && v[1] == 729 && v[2] == 6, "a loop in a graph: %u %u %u", v[0], v[1], v[2]);
	cu.cuMemsetD32Async(at, 0, 1, stream);
	cu.cuMemsetD32Async(flag, 0, 1, stream);
	check(!cu.cuGraphLaunch(x, stream) && !cu.cuStreamSynchronize(stream), "it runs again");
	test_download(v, at, sizeof v);
	check(v[0] == 6 && v[1] == 729 * 729 && v[2] == 606, "the other branch: %u %u %u", v[0], v[1], v[2]);
	n = 3;
	CUDA_KERNEL_NODE_PARAMS p = {.func = test_function(module, "more"),
	                             .gridDimX = 1,
	                             .gridDimY = 1,
	                             .gridDimZ = 1,
	                             .blockDimX = 1,
	                             .blockDimY = 1,
	                             .blockDimZ = 1,
	                             .kernelParams = more};

	check(!cu.cuGraphExecKernelNodeSetParams_v2(x, b, &p), "new parameters for a node of the body");
	cu.cuMemsetD32Async(at, 0, 1, stream);
	check(!cu.cuGraphLaunch(x, stream) && !cu.cuStreamSynchronize(stream), "and again");
	test_download(v, at, sizeof v);
	check(v[0] == 3, "the loop has other bounds: %u", v[0]);
	CUDA_HOST_NODE_PARAMS host = { (CUhostFn *)abort, NULL };

	cu.cuGraphExecDestroy(x);
	check(!cu.cuGraphAddHostNode(&a, body, NULL, 0, &host) &&
	              cu.cuGraphInstantiateWithFlags(&x, g, 0) == CUDA_ERROR_NOT_SUPPORTED,
	      "the host inside a loop is refused");
	check(cu.cuGraphConditionalHandleCreate(&h, NULL, NULL, 0, 0) == CUDA_ERROR_INVALID_VALUE,
	      "a handle without a graph");
	cu.cuGraphDestroy(g);
	cu.cuMemFree_v2(at);
}

/* An instance takes new parameters, and the nodes of another graph of the same shape. */
static void
graphs_update(void)
{
	uint32_t v[2] = { 0, 0 };
	CUdeviceptr at = test_upload(v, sizeof v);
	CUgraph g, h, other;
	CUgraphNode a;
	CUgraphExec x;
	CUgraphExecUpdateResultInfo info;
	CUDA_MEMSET_NODE_PARAMS set = { .dst = at, .value = 5, .elementSize = 4, .width = 1, .height = 1 };

	cu.cuGraphCreate(&g, 0);
	cu.cuGraphCreate(&h, 0);
	cu.cuGraphCreate(&other, 0);
	check(!cu.cuGraphAddMemsetNode(&a, g, NULL, 0, &set, NULL), "a fill");
	number(g, "add", a, at, 1);
	check(!cu.cuGraphInstantiateWithFlags(&x, g, 0) && !cu.cuGraphLaunch(x, stream), "an instance");
	set.value = 70;
	check(!cu.cuGraphExecMemsetNodeSetParams(x, a, &set, NULL) && !cu.cuGraphLaunch(x, stream) &&
	              !cu.cuStreamSynchronize(stream),
	      "another fill");
	test_download(v, at, sizeof v);
	check(v[0] == 71, "a fill with new parameters: %u", v[0]);
	cu.cuGraphAddMemsetNode(&a, h, NULL, 0, &set, NULL);
	number(h, "mul", a, at, 2);
	number(other, "mul", NULL, at, 2);
	check(!cu.cuGraphExecUpdate_v2(x, h, &info) && !cu.cuGraphLaunch(x, stream) && !cu.cuStreamSynchronize(stream),
	      "nodes of another graph");
	test_download(v, at, sizeof v);
	check(v[0] == 140, "an updated instance: %u", v[0]);
	check(cu.cuGraphExecUpdate_v2(x, other, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE && info.result == 2,
	      "another shape is refused");
	cu.cuGraphExecDestroy(x);
	cu.cuGraphDestroy(g);
	cu.cuGraphDestroy(h);
	cu.cuGraphDestroy(other);
	cu.cuMemFree_v2(at);
}

static void
graphs_switch(void)
{
	uint32_t v[2] = { 0, 0 };
	CUdeviceptr at = test_upload(v, sizeof v), to = at + 4;
	CUgraph g, first, second = NULL;
	CUgraphConditionalHandle h;
	CUgraphNode a;
	void *pick[] = { &at, &h };

	cu.cuGraphCreate(&g, 0);
	cu.cuGraphConditionalHandleCreate(&h, g, NULL, 0, 0);
	a = kernel(g, "pick", NULL, pick);
	first = conditional(g, a, h, CU_GRAPH_COND_TYPE_SWITCH, 2, &second);
	number(first, "add", NULL, to, 1);
	number(second, "add", NULL, to, 10);
	for (uint32_t k = 0; k < 3; k++) {
		cu.cuMemsetD32Async(at, k, 1, stream);
		launch(g, 1);
	}
	test_download(v, at, sizeof v);
	check(v[1] == 11, "a switch: %u", v[1]);
	cu.cuGraphDestroy(g);
	cu.cuMemFree_v2(at);
}

void
test_graphs(void)
{
	char *text = test_source("graphs.ptx");

	module = test_module(text);
	free(text);
	if (!module || cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
		return;
	graphs_nodes();
	graphs_order();
	graphs_while();
	graphs_switch();
	graphs_update();
	cu.cuModuleUnload(module);
}
